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
    /// Its number.
    pub port: u16,
    // a connection of its own: the port is closed with it, also by the next command if this one is killed, and what is
    // sent over
    // it delays nothing on the others
    _connection: Connection,
}

/// Returns why an ssh master forwards no port, without what ssh says of itself.
fn refusal(errors: &str) -> &str {
    let mut lines = errors.lines().filter(|line| !failure::is_ssh_notice(line) && !line.starts_with("muxclient: "));
    let cause = lines.next_back().unwrap_or("ssh forwards no port").trim();
    cause.strip_prefix("mux_client_forward: forwarding request failed: ").unwrap_or(cause)
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
        let to = format!("127.0.0.1:0:127.0.0.1:{port}");
        let printed = request(&connection, node, ["-R", &to], operation, limit).await?;
        match printed.lines().find_map(|line| line.trim().parse().ok()) {
            Some(port) => Ok(Forward { port, _connection: connection }),
            None => Err(NodeError::failed(&node.name, operation, "ssh forwards no port")),
        }
    }
}

/// Asks the ssh master of a connection to forward a port. Returns what it prints.
async fn request(
    connection: &Connection,
    node: &Node,
    forward: [&str; 2],
    operation: &str,
    limit: Duration,
) -> Result<String, NodeError> {
    // the master's configuration has `ClearAllForwardings`, which would take this one away as well
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "/dev/null", "-S"]).arg(connection.session.control_socket());
    ssh.args(["-O", "forward"]).args(forward).args(["--", &node.host]);
    let failed = |cause: &str| NodeError::failed(&node.name, operation, cause);
    let done = output(&mut ssh, limit.max(HERE_LIMIT)).await.map_err(|error| failed(&format!("ssh: {error}")))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(failed(refusal(&String::from_utf8_lossy(&done.stderr)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_what_the_node_said() {
        // OpenSSH 9.2 and 10.0
        let printed = "mux_client_forward: forwarding request failed: remote port forwarding failed for listen port 0\r\n\
            muxclient: master forward request failed\r\n";
        assert_eq!(refusal(printed), "remote port forwarding failed for listen port 0");
        assert_eq!(
            refusal("Control socket connect(/x): Connection refused\n"),
            "Control socket connect(/x): Connection refused"
        );
        assert_eq!(refusal(""), "ssh forwards no port");
    }
}
