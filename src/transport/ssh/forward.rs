//! A port of a node that leads to a port of this machine.

use super::{Connection, Control, HERE_LIMIT, output};
use crate::error::NodeError;
use crate::inventory::Node;
use crate::text::failure;
use std::time::Duration;
use tokio::process::Command;

/// A port of a node's 127.0.0.1 that leads to this machine until it is dropped.
#[derive(Debug)]
pub struct Forward {
    /// The port on the node.
    pub port: u16,
    // a connection of its own: the port is closed with it, also by the next command if this one is killed, and what is sent over
    // it delays nothing on the others
    _connection: Connection,
}

impl Control {
    /// Lets a free port of a node lead to a port of this machine, both on 127.0.0.1. `operation` is for messages.
    ///
    /// # Errors
    /// As [`Control::connect`], and when the node's sshd refuses it.
    pub async fn forward(
        &self,
        node: &Node,
        port: u16,
        operation: &str,
        limit: Duration,
    ) -> Result<Forward, NodeError> {
        let connection = self.connect(node, limit).await?;
        // the master's configuration has `ClearAllForwardings`, which would take this one away as well
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "/dev/null", "-S"]).arg(connection.session.control_socket());
        ssh.args(["-O", "forward", "-R", &format!("127.0.0.1:0:127.0.0.1:{port}"), "--", &node.host]);
        let failed = |cause: &str| NodeError::failed(&node.name, operation, cause);
        let done = output(&mut ssh, limit.max(HERE_LIMIT)).await.map_err(|error| failed(&format!("ssh: {error}")))?;
        let printed = String::from_utf8_lossy(&done.stdout);
        match printed.lines().find_map(|line| line.trim().parse().ok()).filter(|_| done.status.success()) {
            Some(port) => Ok(Forward { port, _connection: connection }),
            None => {
                let errors = String::from_utf8_lossy(&done.stderr);
                let lines: Vec<&str> = errors.lines().filter(|line| !failure::is_ssh_notice(line)).collect();
                Err(failed(if lines.is_empty() { "ssh forwards no port" } else { errors.trim() }))
            }
        }
    }
}
