//! The errors of the Docker Engine and of the programs that reach it, with what an operator can do about those that are known.

use crate::error::{Kind, NodeError};
use crate::text::failure::{self, Docker};
use bollard::errors::Error as DockerError;

/// Returns the error of an operation on a node, with a hint if its cause is known.
pub(super) fn explain(node: &str, operation: &str, error: &DockerError) -> NodeError {
    let failed = NodeError::failed(node, operation, message(error));
    let Some(cause) = failure::docker(&failed.message) else { return failed };
    let (kind, hint) = match cause {
        Docker::NoGpuRuntime => (
            Kind::GpusMissing,
            "Docker has no NVIDIA runtime there: install nvidia-container-toolkit and restart Docker, or set `gpus = 0` for \
             this node",
        ),
        Docker::NoSpace => (Kind::NoSpace, "free space on that node: df -h, docker system df"),
        Docker::ImageMissing => {
            (Kind::ImageMissing, "load the image on that node: docker save IMAGE | ssh NODE sudo docker load")
        }
        Docker::NotInstalled => (Kind::EngineUnavailable, "install Docker Engine on that node"),
        Docker::NotRunning => (Kind::EngineUnavailable, "start it on that node: sudo systemctl start docker"),
        Docker::SudoRefused => {
            (Kind::EngineUnavailable, "let the user run sudo without a password, or add the user to the group docker")
        }
        Docker::NotAllowed => {
            (Kind::EngineUnavailable, "add the user to the group docker, or let the user run sudo without a password")
        }
    };
    failed.kind(kind).hint(hint)
}

/// Returns the message of an error, without what bollard adds to it.
pub(super) fn message(error: &DockerError) -> String {
    match error {
        DockerError::DockerResponseServerError { message, .. } => message.clone(),
        DockerError::DockerStreamError { error } => error.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_causes_have_hints() {
        for (message, hint) in [
            ("could not select device driver \"\" with capabilities: [[gpu]]", "nvidia-container-toolkit"),
            ("No such image: a/b:1", "docker save"),
            ("sh: 1: docker: not found", "install Docker Engine"),
            ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "systemctl start docker"),
            ("ana is not in the sudoers file.", "group docker"),
        ] {
            let error = DockerError::DockerResponseServerError { status_code: 500, message: message.into() };
            let error = explain("gpu1", "start hworker", &error).to_string();
            assert!(error.starts_with(&format!("gpu1: cannot start hworker: {message}")), "{error}");
            assert!(error.contains("hint: ") && error.contains(hint), "{error}");
        }
        let error = explain("gpu1", "start hworker", &DockerError::DockerStreamError { error: "odd".into() });
        assert_eq!(error.to_string(), "gpu1: cannot start hworker: odd");
    }
}
