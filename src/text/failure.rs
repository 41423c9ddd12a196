//! Classifies what other programs print when they fail: one function per program; no other module searches their text.

/// Returns the first kind of which the text contains a pattern.
fn classify<K: Copy>(text: &str, kinds: &[(K, &[&str])]) -> Option<K> {
    kinds.iter().find(|(_, patterns)| patterns.iter().any(|pattern| text.contains(pattern))).map(|(kind, _)| *kind)
}

/// Why `ssh` could not log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ssh {
    /// The host key is not known, and ssh may not accept it.
    HostKeyUnknown,
    /// sshd accepted none of the keys that it was offered.
    Refused,
    /// The host name does not resolve.
    NameUnknown,
    /// Anything else.
    Other,
}

/// Classifies the text of OpenSSH's `ssh` (9.2 and later).
pub fn ssh(text: &str) -> Ssh {
    let kinds: [(Ssh, &[&str]); 3] = [
        (Ssh::HostKeyUnknown, &["Host key verification failed", "host key is known"]),
        (Ssh::Refused, &["Permission denied", "Too many authentication failures"]),
        (Ssh::NameUnknown, &["Could not resolve"]),
    ];
    classify(text, &kinds).unwrap_or(Ssh::Other)
}

/// Why `sudo` did not run a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sudo {
    /// It wants a password.
    PasswordRequired,
    /// The password was wrong, or there was none; sudo reports that in several lines.
    PasswordRefused,
    /// The user may not run it.
    NotAllowed,
    /// There is no sudo.
    NotInstalled,
}

/// Classifies a line of `sudo` in the C locale (1.8 and later, and sudo-rs); `None` for anything else, such as a warning about the
/// host name, after which it goes on.
pub fn sudo(line: &str) -> Option<Sudo> {
    let refused =
        ["incorrect password attempt", "incorrect authentication attempt", "no password was provided", "try again"];
    let kinds: [(Sudo, &[&str]); 4] = [
        (Sudo::PasswordRequired, &["a password is required", "authentication is required"]),
        (Sudo::PasswordRefused, &refused),
        // the last is that of sudo-rs
        (Sudo::NotAllowed, &["is not in the sudoers file", "is not allowed to", "I'm afraid I can't do that"]),
        (Sudo::NotInstalled, &["sudo: not found"]),
    ];
    classify(line, &kinds)
}

/// Why an `sshd` exited when it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sshd {
    /// Another program has the port.
    PortInUse,
    /// The node does not have the address.
    AddressMissing,
    /// The image has none.
    Missing,
    /// Anything else.
    Other,
}

/// Classifies the last lines of OpenSSH's `sshd -De`.
pub fn sshd(text: &str) -> Sshd {
    let kinds: [(Sshd, &[&str]); 3] = [
        (Sshd::PortInUse, &["Address already in use"]),
        (Sshd::AddressMissing, &["Cannot assign requested address"]),
        (Sshd::Missing, &["sshd: not found", "sshd: No such file"]),
    ];
    classify(text, &kinds).unwrap_or(Sshd::Other)
}

/// Why the Docker Engine, or a program that reaches it, failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Docker {
    /// The engine cannot give GPUs to containers.
    NoGpuRuntime,
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
    /// The login may not use the engine.
    NotAllowed,
}

/// Classifies the text of the Docker Engine (20.10 and later) and of its command; `None` for anything else.
pub fn docker(text: &str) -> Option<Docker> {
    let kinds: [(Docker, &[&str]); 6] = [
        (Docker::NoGpuRuntime, &["could not select device driver"]),
        (Docker::NoSpace, &["no space left on device"]),
        (Docker::ImageMissing, &["No such image", "Unable to find image"]),
        (Docker::NotInstalled, &["command not found", "docker: not found"]),
        (
            Docker::NotRunning,
            &["Cannot connect to the Docker daemon", "connection refused", "docker.sock: connect: no such file"],
        ),
        (Docker::NotAllowed, &["permission denied"]),
    ];
    let is_refusal = |line: &str| {
        line.contains("sudoers") || line.starts_with("Sorry, user ") || is_from_sudo(line) && sudo(line).is_some()
    };
    classify(text, &kinds).or_else(|| text.lines().any(is_refusal).then_some(Docker::SudoRefused))
}

/// Returns whether the engine's own builder refuses a Dockerfile because it needs BuildKit, which is no part of the engine's interface.
pub fn needs_buildkit(text: &str) -> bool {
    text.contains("requires BuildKit")
}

/// Returns whether a registry gave no image because of the login, by the text of an engine that pulls (Docker 20.10 and later with both
/// image stores, Podman). Registries refuse an unknown image in the same way.
pub fn is_registry_refusal(text: &str) -> bool {
    let patterns = [
        "access denied",
        "unauthorized",
        "denied: ",
        "no basic auth credentials",
        "403 forbidden",
        "authorization failed",
    ];
    // of a file of the engine
    let text = text.to_ascii_lowercase().replace("permission denied", "");
    patterns.iter().any(|pattern| text.contains(pattern))
}

/// Why `nvidia-smi` failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvidiaSmi {
    /// The driver was updated while the old one is loaded.
    DriverMismatch,
    /// The driver is not loaded.
    NoDriver,
    /// The driver has found no GPU.
    NoDevices,
    /// A GPU does not answer the driver.
    LostGpu,
}

/// Classifies the text of `nvidia-smi`; `None` for anything else.
pub fn nvidia_smi(text: &str) -> Option<NvidiaSmi> {
    let kinds: [(NvidiaSmi, &[&str]); 4] = [
        (NvidiaSmi::DriverMismatch, &["Driver/library version mismatch"]),
        (NvidiaSmi::NoDriver, &["couldn't communicate with the NVIDIA driver", "Driver Not Loaded"]),
        (NvidiaSmi::NoDevices, &["No devices were found", "No devices found"]),
        (NvidiaSmi::LostGpu, &["Unable to determine the device handle", "GPU is lost"]),
    ];
    classify(text, &kinds)
}

/// Returns whether a program's line says that a GPU or its driver failed, and not the program: messages of CUDA, NCCL and NVML.
pub fn is_gpu_fault(line: &str) -> bool {
    let patterns = [
        "uncorrectable ECC error",
        "fallen off the bus",
        "GPU is lost",
        "uncorrectable NVLink error",
        "no CUDA-capable device is detected",
        "CUDA-capable device(s) is/are busy or unavailable",
        "system not yet initialized",
        "hardware stack error",
        "Driver/library version mismatch",
    ];
    patterns.iter().any(|pattern| line.contains(pattern))
}

/// Why a program could not read or write a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// Something of another type has the place.
    Occupied,
    /// The disk or the quota is full.
    NoSpace,
    /// The file has vanished.
    Vanished,
}

/// Classifies the text of GNU tar and coreutils in the C locale, and of Rust's errors of files; `None` for anything else.
pub fn files(text: &str) -> Option<Files> {
    let kinds: [(Files, &[&str]); 3] = [
        (Files::Occupied, &["cannot overwrite", "cannot create hard link"]),
        (Files::NoSpace, &["No space left", "Disk quota exceeded", ": Wrote only "]),
        (Files::Vanished, &["No such file"]),
    ];
    classify(text, &kinds)
}

/// Returns whether the text of `ssh` only says that a connection through a jump host was closed; the jump host's own ssh has the cause.
pub fn is_from_jump_host(text: &str) -> bool {
    text.contains("UNKNOWN port")
}

/// Returns whether a line of `ssh` reports no failure.
pub fn is_ssh_notice(line: &str) -> bool {
    line.starts_with("Warning: Permanently added")
}

/// Returns whether an error of this machine, as Rust words it, says that a process, or all of them, may open no more files. The C
/// libraries have different texts for the same number.
pub fn is_out_of_files(text: &str) -> bool {
    text.contains("(os error 24)") || text.contains("(os error 23)")
}

/// Returns whether a line of the standard error of a program that sudo has started is sudo's own.
pub fn is_from_sudo(line: &str) -> bool {
    line.starts_with("sudo: ") || line.starts_with("sudo-rs: ")
}

/// Returns whether a line is bash's warning about a locale that the machine lacks.
pub fn is_locale_warning(line: &str) -> bool {
    line.contains("warning: setlocale")
}

/// Whether a line says that the container runtime could not start a program in a container (runc and crun).
pub fn is_from_runtime(line: &str) -> bool {
    line.contains("OCI runtime exec failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_is_classified() {
        let said = [
            ("ana@gpu1: Permission denied (publickey,password).", Ssh::Refused),
            (
                "Received disconnect from 10.0.0.2 port 22:2: Too many authentication failures\nDisconnected from 10.0.0.2",
                Ssh::Refused,
            ),
            (
                "No ED25519 host key is known for gpu1 and you have requested strict checking.\nHost key verification failed.",
                Ssh::HostKeyUnknown,
            ),
            ("ssh: Could not resolve hostname gpu9: Name or service not known", Ssh::NameUnknown),
            ("ssh: connect to host 10.0.0.2 port 22: Connection refused", Ssh::Other),
            ("kex_exchange_identification: Connection closed by remote host", Ssh::Other),
            ("", Ssh::Other),
        ];
        for (text, kind) in said {
            assert_eq!(ssh(text), kind, "{text}");
        }
    }

    #[test]
    fn sudo_is_classified() {
        let said = [
            ("sudo: a password is required", Some(Sudo::PasswordRequired)),
            ("sudo: interactive authentication is required", Some(Sudo::PasswordRequired)),
            ("sudo-rs: interactive authentication is required", Some(Sudo::PasswordRequired)),
            ("Sorry, try again.", Some(Sudo::PasswordRefused)),
            ("sudo: no password was provided", Some(Sudo::PasswordRefused)),
            ("sudo: 1 incorrect password attempt", Some(Sudo::PasswordRefused)),
            ("ana is not in the sudoers file.  This incident will be reported.", Some(Sudo::NotAllowed)),
            ("Sorry, user ana is not allowed to execute '/usr/bin/sh -s' as root on gpu1.", Some(Sudo::NotAllowed)),
            ("sudo: I'm sorry ana. I'm afraid I can't do that", Some(Sudo::NotAllowed)),
            ("sh: 1: sudo: not found", Some(Sudo::NotInstalled)),
            ("sudo: unable to resolve host gpu1: Name or service not known", None),
        ];
        for (text, kind) in said {
            assert_eq!(sudo(text), kind, "{text}");
        }
    }

    #[test]
    fn sshd_is_classified() {
        let said = [
            ("error: Bind to port 12345 on 10.0.0.1 failed: Address already in use.", Sshd::PortInUse),
            ("error: Bind to port 12345 on 10.0.0.1 failed: Cannot assign requested address.", Sshd::AddressMissing),
            ("sshd: no hostkeys available -- exiting.", Sshd::Other),
            ("sh: 15: exec: /usr/sbin/sshd: not found", Sshd::Missing),
            ("/bin/sh: line 15: /usr/sbin/sshd: No such file or directory", Sshd::Missing),
        ];
        for (text, kind) in said {
            assert_eq!(sshd(text), kind, "{text}");
        }
    }

    #[test]
    fn docker_is_classified() {
        let said = [
            ("could not select device driver \"\" with capabilities: [[gpu]]", Some(Docker::NoGpuRuntime)),
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
    fn refusals_of_registries_are_known() {
        for text in [
            "pull access denied for a/b, repository does not exist or may require 'docker login': denied: requested access to the \
             resource is denied",
            "Head \"https://r.example/v2/a/manifests/1\": no basic auth credentials",
            "unauthorized: authentication required",
            "failed to resolve reference \"r/a:1\": pull access denied, repository does not exist or may require authorization: \
             server message: insufficient_scope: authorization failed",
            "failed to authorize: failed to fetch oauth token: unexpected status from GET request to https://r/token: 401 Unauthorized",
            "Error response from daemon: denied: your authorization token has expired",
            "initializing source docker://r/a:1: reading manifest 1 in r/a: Unauthorized: access to the requested resource is not authorized",
        ] {
            assert!(is_registry_refusal(text), "{text}");
        }
        for text in [
            "manifest for a/b:2 not found: manifest unknown: manifest unknown",
            "Get \"https://registry-1.docker.io/v2/\": dial tcp: lookup registry-1.docker.io: no such host",
            "write /var/lib/docker/tmp/x: no space left on device",
            "open /var/lib/docker/tmp/x: permission denied: x",
        ] {
            assert!(!is_registry_refusal(text), "{text}");
        }
    }

    #[test]
    fn errors_of_files_are_classified() {
        let said = [
            ("cp: cannot overwrite directory './data' with non-directory", Some(Files::Occupied)),
            ("cp: cannot create hard link './a/b' to 't/a/b': Not a directory", Some(Files::Occupied)),
            ("tar: t/big.bin: Wrote only 4608 of 10240 bytes: No space left on device", Some(Files::NoSpace)),
            ("cp: error writing './x': Disk quota exceeded", Some(Files::NoSpace)),
            ("b2sum: ./gone: No such file or directory", Some(Files::Vanished)),
            ("/home/ana/p/gone: No such file or directory (os error 2)", Some(Files::Vanished)),
            ("b2sum: ./secret: Permission denied", None),
        ];
        for (text, kind) in said {
            assert_eq!(files(text), kind, "{text}");
        }
    }

    #[test]
    fn lines_that_say_nothing_of_the_cause_are_known() {
        assert!(is_from_jump_host("kex_exchange_identification: Connection closed by UNKNOWN port 65535"));
        assert!(!is_from_jump_host("Connection closed by 10.0.0.2 port 22"));
        assert!(is_ssh_notice("Warning: Permanently added 'gpu1' (ED25519) to the list of known hosts."));
        assert!(!is_ssh_notice("Warning: remote port forwarding failed"));
        assert!(is_out_of_files("cannot run ssh: Too many open files (os error 24)"));
        assert!(is_out_of_files("No file descriptors available (os error 24)"));
        assert!(!is_out_of_files("sh: 1: cannot open x: Too many open files"), "a node's");
        assert!(is_from_runtime(
            "OCI runtime exec failed: exec failed: unable to start container process: current working directory is outside of container"
        ));
        assert!(!is_from_runtime("sh: 1: x: not found"));
        assert!(is_locale_warning("bash: warning: setlocale: LC_ALL: cannot change locale (xx_XX)"));
    }
}
