//! The messages of container engines, their runtimes and registries.

use super::{classify, is_from_sudo, sudo};

/// A reason why the Docker Engine, or a program that reaches it, failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Docker {
    /// The engine cannot give GPUs to containers.
    NoGpuRuntime,
    /// The image asks for a newer driver than the node has.
    CudaTooNew,
    /// NVIDIA's container tools cannot use the driver.
    DriverFailed,
    /// The engine's disk is full.
    NoSpace,
    /// The image is not on the node.
    ImageMissing,
    /// There is no `docker`.
    NotInstalled,
    /// The engine is not running.
    NotRunning,
    /// sudo did not run `docker`.
    SudoRefused,
    /// The engine runs without root, and may not raise a limit so far.
    LimitTooHigh,
    /// The engine runs without root, and its login has no or too few subordinate ids.
    NoSubordinateIds,
    /// The login may not use the engine.
    NotAllowed,
}

/// Classifies the text of the Docker Engine (20.10 and later), of Podman (4.3 and later) and of their commands; `None`
/// for anything else.
pub fn docker(text: &str) -> Option<Docker> {
    let no_runtime = [
        "could not select device driver",
        "failed to discover GPU vendor",
        "unresolvable CDI devices",
        "runtime name: nvidia",
        "runtime specified nvidia",
        "nvidia-container-runtime-hook",
    ];
    let driver = ["nvidia-container-cli: initialization error", "nvml error", "failed to initialize NVML"];
    let ids =
        ["insufficient UIDs or GIDs", "no subuid ranges found", "no subgid ranges found", "newuidmap", "newgidmap"];
    let kinds: [(Docker, &[&str]); 10] = [
        (Docker::NoGpuRuntime, &no_runtime),
        (Docker::NoSubordinateIds, &ids),
        (Docker::CudaTooNew, &["unsatisfied condition: ", "nvidia-container-cli: requirement error"]),
        (Docker::DriverFailed, &driver),
        (Docker::NoSpace, &["no space left on device"]),
        (Docker::ImageMissing, &["No such image", "Unable to find image", "image not known"]),
        (Docker::NotInstalled, &["command not found", "docker: not found"]),
        (
            Docker::NotRunning,
            &[
                "Cannot connect to the Docker daemon",
                "connection refused",
                "docker.sock: connect: no such file",
                "podman.sock: connect: no such file",
            ],
        ),
        (Docker::LimitTooHigh, &["setrlimit", "error setting rlimit"]),
        (Docker::NotAllowed, &["permission denied"]),
    ];
    let is_refusal = |line: &str| {
        line.contains("sudoers") || line.starts_with("Sorry, user ") || is_from_sudo(line) && sudo(line).is_some()
    };
    classify(text, &kinds).or_else(|| text.lines().any(is_refusal).then_some(Docker::SudoRefused))
}

/// Returns whether Podman refuses a signal because the container has no processes.
pub fn is_not_running(text: &str) -> bool {
    text.contains("can only kill running containers")
}

/// Returns whether the engine's own builder refuses a Dockerfile because it needs BuildKit, which is no part of the
/// engine's interface.
pub fn needs_buildkit(text: &str) -> bool {
    text.contains("requires BuildKit")
}

/// A reason why a registry did not provide an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryRefusal {
    /// It has given too many to this address or login.
    RateLimited,
    /// It has the image for other platforms only.
    NoPlatform,
    /// It has the image in a format that engines do not read any more.
    OldFormat,
    /// It speaks HTTP, and the engine HTTPS.
    PlainHttp,
    /// The engine does not trust its certificate.
    Untrusted,
    /// The login is missing or may not have the image. Registries refuse an unknown image in the same way.
    Refused,
    /// It does not have the image.
    NoImage,
    /// The engine does not reach it.
    Unreachable,
}

/// Classifies the text of an engine that pulls (Docker 20.10 and later with both image stores, Podman); `None` for
/// anything else.
pub fn registry(text: &str) -> Option<RegistryRefusal> {
    let refused = [
        "access denied",
        "unauthorized",
        "denied: ",
        "no basic auth credentials",
        "403 forbidden",
        "authorization failed",
        "payment required",
    ];
    let unreachable = [
        "no such host",
        "i/o timeout",
        "connection refused",
        "connection reset",
        "network is unreachable",
        "no route to host",
        "tls handshake timeout",
        "proxyconnect",
        "deadline exceeded",
        "client.timeout",
        "request canceled while waiting for connection",
    ];
    let kinds: [(RegistryRefusal, &[&str]); 8] = [
        (RegistryRefusal::RateLimited, &["toomanyrequests", "too many requests", "rate limit"]),
        (
            RegistryRefusal::NoPlatform,
            &[
                "no matching manifest for",
                "no match for platform",
                "does not match the specified platform",
                "no image found in manifest list",
            ],
        ),
        (RegistryRefusal::OldFormat, &["manifest.v1+prettyjws", "docker image format v1", "schema 1"]),
        (RegistryRefusal::PlainHttp, &["server gave http response to https client"]),
        (RegistryRefusal::Untrusted, &["x509:", "failed to verify certificate"]),
        (RegistryRefusal::Refused, &refused),
        (RegistryRefusal::NoImage, &["manifest unknown", "name unknown", ": not found"]),
        (RegistryRefusal::Unreachable, &unreachable),
    ];
    // the first is about a file of the engine
    let text = text.to_ascii_lowercase().replace("permission denied", "");
    // a layer that the engine has lost is no missing tag
    let text = if text.contains("content digest") { text.replace(": not found", "") } else { text };
    classify(&text, &kinds)
}

/// Returns true if a line says that the container runtime could not start a program in a container (runc and crun).
pub fn is_from_runtime(line: &str) -> bool {
    line.contains("OCI runtime exec failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_is_classified() {
        let said = [
            ("could not select device driver \"\" with capabilities: [[gpu]]", Some(Docker::NoGpuRuntime)),
            (
                "failed to create task for container: failed to create shim task: OCI runtime create failed: could not \
                 apply required \
                 modification to OCI specification: error modifying OCI spec: failed to inject CDI devices: \
                 unresolvable CDI devices \
                 nvidia.com/gpu=all: unknown",
                Some(Docker::NoGpuRuntime),
            ),
            ("failed to discover GPU vendor from CDI: no known GPU vendor found", Some(Docker::NoGpuRuntime)),
            ("unknown or invalid runtime name: nvidia", Some(Docker::NoGpuRuntime)),
            ("Unknown runtime specified nvidia", Some(Docker::NoGpuRuntime)),
            (
                "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver \
                 to a newer version, \
                 or use an earlier cuda container: unknown",
                Some(Docker::CudaTooNew),
            ),
            (
                "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open \
                 shared object file: no such \
                 file or directory: unknown",
                Some(Docker::DriverFailed),
            ),
            (
                "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
                Some(Docker::DriverFailed),
            ),
            (
                "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch",
                Some(Docker::DriverFailed),
            ),
            ("nvidia-container-cli: device error: 7: unknown device: unknown", None),
            ("write /var/lib/docker/tmp/x: no space left on device", Some(Docker::NoSpace)),
            ("No such image: a/b:1", Some(Docker::ImageMissing)),
            ("Unable to find image 'a/b:1' locally", Some(Docker::ImageMissing)),
            ("sh: 1: docker: not found", Some(Docker::NotInstalled)),
            ("docker: command not found", Some(Docker::NotInstalled)),
            ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", Some(Docker::NotRunning)),
            ("dial unix /var/run/docker.sock: connect: no such file or directory", Some(Docker::NotRunning)),
            ("ana is not in the sudoers file.", Some(Docker::SudoRefused)),
            (
                "sudo: unable to resolve host gpu1: Name or service not known\nsudo: a password is required",
                Some(Docker::SudoRefused),
            ),
            ("sudo: unable to resolve host gpu1: Name or service not known", None),
            ("dial unix /var/run/docker.sock: connect: permission denied", Some(Docker::NotAllowed)),
            ("driver failed programming external connectivity", None),
        ];
        for (text, kind) in said {
            assert_eq!(docker(text), kind, "{text}");
        }
    }

    #[test]
    fn what_registries_answer_is_classified() {
        for text in [
            "pull access denied for a/b, repository does not exist or may require 'docker login': denied: requested \
             access to the \
             resource is denied",
            "Head \"https://r.example/v2/a/manifests/1\": no basic auth credentials",
            "unauthorized: authentication required",
            "failed to resolve reference \"r/a:1\": pull access denied, repository does not exist or may require \
             authorization: \
             server message: insufficient_scope: authorization failed",
            "failed to authorize: failed to fetch oauth token: unexpected status from GET request to https://r/token: \
             401 Unauthorized",
            "Error response from daemon: denied: your authorization token has expired",
            "initializing source docker://r/a:1: reading manifest 1 in r/a: Unauthorized: access to the requested \
             resource is not authorized",
        ] {
            assert_eq!(registry(text), Some(RegistryRefusal::Refused), "{text}");
        }
        for (text, kind) in [
            (
                "toomanyrequests: You have reached your unauthenticated pull rate limit. \
                 https://www.docker.com/increase-rate-limit",
                Some(RegistryRefusal::RateLimited),
            ),
            ("received unexpected HTTP status: 429 Too Many Requests", Some(RegistryRefusal::RateLimited)),
            ("no matching manifest for linux/arm64/v8 in the manifest list entries", Some(RegistryRefusal::NoPlatform)),
            ("no match for platform in manifest: not found", Some(RegistryRefusal::NoPlatform)),
            (
                "choosing an image from manifest list docker://r/a:1: no image found in manifest list for architecture arm64",
                Some(RegistryRefusal::NoPlatform),
            ),
            (
                "media type \"application/vnd.docker.distribution.manifest.v1+prettyjws\" is no longer supported since \
                 containerd v2.1",
                Some(RegistryRefusal::OldFormat),
            ),
            (
                "[DEPRECATION NOTICE] Docker Image Format v1 and Docker Image manifest version 2, schema 1 support is \
                 disabled",
                Some(RegistryRefusal::OldFormat),
            ),
            (
                "Get \"https://10.0.0.9:5000/v2/\": http: server gave HTTP response to HTTPS client",
                Some(RegistryRefusal::PlainHttp),
            ),
            (
                "Get \"https://r.example/v2/\": tls: failed to verify certificate: x509: certificate signed by unknown \
                 authority",
                Some(RegistryRefusal::Untrusted),
            ),
            ("manifest for a/b:2 not found: manifest unknown: manifest unknown", Some(RegistryRefusal::NoImage)),
            (
                "failed to resolve reference \"docker.io/a/b:2\": docker.io/a/b:2: not found",
                Some(RegistryRefusal::NoImage),
            ),
            (
                "Get \"https://registry-1.docker.io/v2/\": dial tcp: lookup registry-1.docker.io: no such host",
                Some(RegistryRefusal::Unreachable),
            ),
            (
                "Get \"https://r.example/v2/\": net/http: request canceled while waiting for connection \
                 (Client.Timeout exceeded while \
                 awaiting headers)",
                Some(RegistryRefusal::Unreachable),
            ),
            (
                "proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: connection refused",
                Some(RegistryRefusal::Unreachable),
            ),
            ("write /var/lib/docker/tmp/x: no space left on device", None),
            ("open /var/lib/docker/tmp/x: permission denied: x", None),
        ] {
            assert_eq!(registry(text), kind, "{text}");
        }
    }
}
