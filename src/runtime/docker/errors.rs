//! The Docker Engine's errors, with what an operator can do about those that are known.

use crate::error::NodeError;
use bollard::errors::Error as DockerError;

/// Returns the error of an operation on a node, with a hint where its cause is known.
pub(super) fn explain(node: &str, tried: &str, error: &DockerError) -> NodeError {
    let (code, said) = message(error);
    let failed = NodeError::failed(node, tried, &said);
    if said.contains("could not select device driver") {
        failed.hint(
            "Docker has no NVIDIA runtime there: install nvidia-container-toolkit and restart Docker, or set `gpus = 0` \
             for this node",
        )
    } else if said.contains("no space left on device") {
        failed.hint("make room on that node: df -h, docker system df")
    } else if code == 404 && said.contains("No such image") {
        failed.hint("load the image on that node: docker save IMAGE | ssh NODE sudo docker load")
    } else {
        hint_for_engine(failed)
    }
}

/// Returns the HTTP status (0 if there is none) and the message of an error.
pub(super) fn message(error: &DockerError) -> (u16, String) {
    match error {
        DockerError::DockerResponseServerError { status_code, message } => (*status_code, message.clone()),
        DockerError::DockerStreamError { error } => (0, error.clone()),
        other => (0, other.to_string()),
    }
}

fn hint_for_engine(error: NodeError) -> NodeError {
    let said = error.message.as_str();
    let hint = if said.contains("command not found") || said.contains("docker: not found") {
        "install Docker Engine on that node"
    } else if said.contains("Cannot connect to the Docker daemon")
        || said.contains("connection refused")
        || said.contains("docker.sock: connect: no such file")
    {
        "start it on that node: sudo systemctl start docker"
    } else if said.contains("sudo:") || said.contains("sudoers") {
        "let the user run sudo without a password, or add the user to the group docker"
    } else if said.contains("permission denied") {
        "add the user to the group docker, or let the user run sudo without a password"
    } else {
        return error;
    };
    error.hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_toolkit_has_a_hint() {
        let said = DockerError::DockerResponseServerError {
            status_code: 500,
            message: "could not select device driver \"\" with capabilities: [[gpu]]".into(),
        };
        let error = explain("gpu1", "start hworker", &said).to_string();
        assert!(error.starts_with("gpu1: cannot start hworker: could not select device driver"), "{error}");
        assert!(error.contains("nvidia-container-toolkit"), "{error}");
    }
}
