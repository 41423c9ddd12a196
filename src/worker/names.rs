//! Writes the nodes' names to `/etc/hosts` of a container.

use crate::cluster::observation::ObservedNode;
use crate::error::NodeError;
use crate::node::names::{HostEntry, HostNames};
use std::time::Duration;

const HOSTS: &str = include_str!("../scripts/programs/hosts.py");

/// Writes the nodes' names to a running container on a node.
///
/// # Errors
/// With Python's message, or if there is no answer within `limit`.
pub async fn write(
    observed: &ObservedNode,
    container: &str,
    names: &HostNames,
    limit: Duration,
) -> Result<(), NodeError> {
    let Some(entries) = names.of_node(observed.name()) else { return Ok(()) };
    let operation = format!("write the nodes' names to /etc/hosts in {container}");
    let program = program(&entries).map_err(|e| NodeError::failed(observed.name(), &operation, e))?;
    let output = observed
        .runtime
        .engine
        .run_in(container, &["python3", "-I", "-"], program.as_bytes(), &operation, limit)
        .await?;
    observed.member.transport.succeeded(output, &operation).map(drop)
}

/// Returns the program that writes the names. Lists and strings are the same in JSON and in Python.
///
/// # Errors
/// If JSON cannot represent them.
pub fn program(entries: &[&HostEntry]) -> Result<String, serde_json::Error> {
    Ok(format!("{HOSTS}\n\nwrite({})\n", serde_json::to_string(entries)?))
}
