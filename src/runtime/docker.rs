//! The engine of a node as the runtime: the Docker Engine, or Podman by its Docker-compatible interface and, where that
//! lacks something, its own one. This directory is the only user of `bollard`.

mod build;
mod connections;
mod containers;
mod exec;
mod images;
mod podman;
mod request;

use crate::error::{ErrorKind, NodeError};
use crate::model::engine::EngineName;
use crate::text::failure::{self, Docker as Cause};
use crate::trace;
use crate::transport::node::Transport;
use bollard::Docker;
use bollard::errors::Error as DockerError;
pub use build::DockerfileBuild;
use connections::ConnectionPool;
pub use images::{EXPORT_SILENCE, Image, ListedImage, RootArchive, image_content};
use std::future::Future;
use std::sync::Arc;

/// The engine's report about itself.
#[derive(Debug, Clone, Default)]
pub struct EngineInfo {
    /// The directory of images and containers.
    pub root_dir: String,
    /// The directory of images, if that is another one: containerd's.
    pub image_dir: Option<String>,
    /// The names of its OCI runtimes, such as `runc` and `nvidia`.
    pub runtimes: Vec<String>,
}

/// The container engine of one node. Clones share its connections.
#[derive(Clone)]
pub struct ContainerEngine {
    docker: Docker,
    connections: ConnectionPool,
    transport: Arc<Transport>,
    /// The kind of engine.
    pub name: EngineName,
    /// The engine's version, e.g. `20.10.24`.
    pub version: String,
    /// The platform of the images that it runs, e.g. `linux/amd64`; empty if it does not report that.
    pub platform: String,
}

/// Returns the next step where the engine's disk is full.
fn make_space(engine: EngineName) -> String {
    format!("free space on that node: df -h, {} system df; df -i if there are too many files", engine.command())
}

impl ContainerEngine {
    /// Connects to a node's engine.
    ///
    /// # Errors
    /// [`NodeError`] with the message of `docker`, sudo or the engine.
    pub async fn connect(transport: &Arc<Transport>) -> Result<ContainerEngine, NodeError> {
        let name = transport.engine_name();
        let operation = &format!("reach {}", name.noun());
        transport.check_engine(operation)?;
        let connections = ConnectionPool::new(transport);
        let dialler = connections.clone();
        let send = move |request| Box::pin(dialler.clone().request(request));
        // bollard's own time-out covers a whole request, long waits included; `call` sets one per call
        let day = 24 * 3600;
        // bollard names no version of the protocol (`url.join` in its uri.rs removes it), so each engine uses its
        // latest: negotiating a version would only start two more programs on the node
        let docker =
            Docker::connect_with_custom_transport(send, Some("http://docker"), day, bollard::API_DEFAULT_VERSION)
                .map_err(|e| NodeError::failed(transport.node(), operation, e))?;
        let (transport, version, platform) = (Arc::clone(transport), String::new(), String::new());
        let mut runtime = ContainerEngine { docker, connections, transport, name, version, platform };
        let answered = runtime.call(operation, runtime.docker.version()).await;
        let answered = answered.map_err(|error| match error.kind {
            // the engine answers this at once unless its service hangs, so a longer time limit does not help
            ErrorKind::TimedOut => NodeError { hints: Vec::new(), ..error }.hint(match name {
                EngineName::Docker => "see `systemctl status docker` on the node",
                EngineName::Podman => "see `systemctl status podman.socket podman.service` on the node",
            }),
            _ => error,
        })?;
        runtime.version = answered.version.unwrap_or_default();
        if name == EngineName::Podman && !is_supported_podman(&runtime.version) {
            let message = format!("it is Podman {}, and hvdctl needs 4.3 or later", runtime.version);
            return Err(NodeError::failed(runtime.node(), operation, message)
                .kind(ErrorKind::EngineUnavailable)
                .hint("install a newer Podman or Docker Engine on that node"));
        }
        runtime.platform = images::platform(answered.os, answered.arch);
        Ok(runtime)
    }

    /// Closes the connections that no request uses; the next request opens another one.
    pub fn close_idle(&self) {
        self.connections.close_idle();
    }

    /// Returns the node's name.
    pub fn node(&self) -> &str {
        self.transport.node()
    }

    /// Returns the path of the engine's socket on the node; `None` if it has none.
    pub fn socket(&self) -> Option<String> {
        self.transport.engine_socket()
    }

    /// Returns what the engine reports about itself.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn info(&self) -> Result<EngineInfo, NodeError> {
        let info = self.call(&format!("query {}", self.name.noun()), self.docker.info()).await?;
        let driver = info.driver_status.into_iter().flatten().flatten();
        let is_containerd = driver.into_iter().any(|text| text.starts_with("io.containerd.snapshotter"));
        Ok(EngineInfo {
            root_dir: info.docker_root_dir.unwrap_or_default(),
            image_dir: is_containerd.then(|| "/var/lib/containerd".to_owned()),
            runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
        })
    }

    /// Awaits a call of the engine within the node's time limit. `operation` is for messages.
    async fn call<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, DockerError>>,
    ) -> Result<T, NodeError> {
        let node = self.transport.node();
        let answer = async {
            let answered = self.transport.in_time(call, operation, self.transport.limit()).await?;
            answered.map_err(|error| self.explain(operation, &error))
        };
        trace::operation(node, "engine", operation, answer).await
    }

    /// Returns the error of an operation on the node, with a hint if its cause is known.
    fn explain(&self, operation: &str, error: &DockerError) -> NodeError {
        explain(self.transport.node(), self.name, self.transport.engine_start(), operation, error)
    }
}

/// Returns whether hvdctl was written for this version of Podman; one that cannot be read is tried.
fn is_supported_podman(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= (4, 3),
        _ => true,
    }
}

/// Awaits a call of the engine. Returns `None` for an answer with one of these HTTP status codes.
async fn none_for<T>(
    statuses: &[u16],
    call: impl Future<Output = Result<T, DockerError>>,
) -> Result<Option<T>, DockerError> {
    match call.await {
        Err(DockerError::DockerResponseServerError { status_code, .. }) if statuses.contains(&status_code) => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the error of an operation on a node, with a hint if its cause is known. `start`: how its engine is started.
fn explain(node: &str, engine: EngineName, start: &str, operation: &str, error: &DockerError) -> NodeError {
    let failed = NodeError::failed(node, operation, message(error));
    let Some(cause) = failure::docker(&failed.message) else { return failed };
    let is_podman = engine == EngineName::Podman;
    let (kind, hint) = match cause {
        Cause::NoGpuRuntime if is_podman => (ErrorKind::GpusMissing, NO_CDI),
        Cause::NoGpuRuntime => (
            ErrorKind::GpusMissing,
            "Docker has no NVIDIA runtime there: install nvidia-container-toolkit and restart Docker (from Docker 28 \
             on, also `sudo \
             nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`), or set `gpus = 0` for this node",
        ),
        Cause::CudaTooNew => (
            ErrorKind::GpusMissing,
            "the image needs a newer NVIDIA driver than the node has: update the driver, or use an image for an older \
             CUDA. Where it \
             works all the same (compatibility packages), an image with ENV NVIDIA_DISABLE_REQUIRE=1 is not checked",
        ),
        Cause::DriverFailed => (
            ErrorKind::GpusMissing,
            "the NVIDIA driver does not work there: run `nvidia-smi` and `sudo dmesg` on the node; after an update of \
             the driver reboot it",
        ),
        Cause::NoSpace => return failed.kind(ErrorKind::NoSpace).hint(make_space(engine)),
        Cause::ImageMissing => {
            let command = engine.command();
            let hint = format!("load the image on that node: {command} save IMAGE | ssh NODE sudo {command} load");
            return failed.kind(ErrorKind::ImageMissing).hint(hint);
        }
        Cause::NotInstalled if is_podman => (ErrorKind::EngineUnavailable, "install podman on that node"),
        Cause::NotInstalled => (ErrorKind::EngineUnavailable, "install Docker Engine on that node"),
        Cause::NotRunning => (ErrorKind::EngineUnavailable, start),
        Cause::LimitTooHigh => (
            ErrorKind::Failed,
            "without root, an engine cannot raise a limit above the hard one of its user: lower it in `ulimits`, or let \
             the administrator raise it (Limit…= in user@.service, or /etc/security/limits.d)",
        ),
        Cause::NoSubordinateIds => (
            ErrorKind::EngineUnavailable,
            "the user needs 65536 subordinate ids in /etc/subuid and /etc/subgid, and newuidmap and newgidmap: sudo \
             usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER, then podman system migrate as that \
             user",
        ),
        Cause::SudoRefused | Cause::NotAllowed if is_podman => {
            (ErrorKind::EngineUnavailable, "let the user run sudo without a password, or start Podman for the user")
        }
        Cause::SudoRefused | Cause::NotAllowed => (
            ErrorKind::EngineUnavailable,
            "add the user to the group docker, or let the user run sudo without a password",
        ),
    };
    failed.kind(kind).hint(hint)
}

/// The next step where Podman knows no GPU of a node.
const NO_CDI: &str = "Podman knows no such GPU there: install nvidia-container-toolkit and describe the \
    GPUs on that node, `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, also after each change of the \
    driver, or set `gpus = 0` for this node";

/// Returns the message of an error, without what bollard adds to it.
fn message(error: &DockerError) -> String {
    match error {
        DockerError::DockerResponseServerError { message, .. } => message.clone(),
        DockerError::DockerStreamError { error } => error.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::access::START_PODMAN;

    const DOCKER_START: &str = "sudo systemctl start docker";

    #[test]
    fn older_podmans_are_not_used() {
        let versions = ["3.0.1", "3.4.4", "4.2.1", "4.3.1", "4.9.3-rhel", "5.4.2", "10.0.0", "unreadable"];
        let supported = versions.map(is_supported_podman);
        assert_eq!(supported, [false, false, false, true, true, true, true, true]);
    }

    #[test]
    fn hints_speak_of_the_engine_that_is_there() {
        for (message, hint) in [
            ("setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", "nvidia-ctk cdi generate"),
            ("a/b:1: image not known", "sudo podman load"),
            ("write /var/lib/containers/x: no space left on device", "podman system df"),
            ("dial unix /run/podman/podman.sock: connect: no such file or directory", "enable --now podman.socket"),
            ("podman: command not found", "install podman"),
            ("dial unix /run/podman/podman.sock: connect: permission denied", "start Podman for the user"),
            (
                "crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied",
                "hard one of its user: lower it in `ulimits`",
            ),
            (
                "potentially insufficient UIDs or GIDs available in user namespace (requested 0:42 for /etc/shadow)",
                "usermod --add-subuids 100000-165535",
            ),
        ] {
            let error = DockerError::DockerResponseServerError { status_code: 500, message: message.into() };
            let error = explain("gpu1", EngineName::Podman, START_PODMAN, "start hworker", &error).to_string();
            assert!(error.contains(hint) && !error.contains("ocker "), "{error}");
        }
    }

    #[test]
    fn known_causes_have_hints() {
        for (message, hint) in [
            ("could not select device driver \"\" with capabilities: [[gpu]]", "nvidia-container-toolkit"),
            ("unresolvable CDI devices nvidia.com/gpu=all", "nvidia-ctk cdi generate"),
            ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4", "update the driver"),
            ("nvidia-container-cli: initialization error: nvml error: driver not loaded", "after an update"),
            ("No such image: a/b:1", "docker save"),
            ("sh: 1: docker: not found", "install Docker Engine"),
            ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "systemctl start docker"),
            ("ana is not in the sudoers file.", "group docker"),
        ] {
            let error = DockerError::DockerResponseServerError { status_code: 500, message: message.into() };
            let error = explain("gpu1", EngineName::Docker, DOCKER_START, "start hworker", &error).to_string();
            assert!(error.starts_with(&format!("gpu1: cannot start hworker: {message}")), "{error}");
            assert!(error.contains("hint: ") && error.contains(hint), "{error}");
        }
        let error = explain(
            "gpu1",
            EngineName::Docker,
            DOCKER_START,
            "start hworker",
            &DockerError::DockerStreamError { error: "odd".into() },
        );
        assert_eq!(error.to_string(), "gpu1: cannot start hworker: odd");
    }
}
