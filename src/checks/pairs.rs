//! Rules on connections between nodes.

use super::Finding;
use super::Severity::Error;
use crate::keys::reachability::{FailedLogins, Matrix, hint};

/// Logins from worker to worker that failed. Nodes whose worker is not running have a finding of their own.
pub fn logins(matrix: &Matrix, port: u16) -> Vec<Finding> {
    let finding = |row: FailedLogins| {
        Finding::new(Error, "login", "", format!("cannot log in to {} on port {port}: {}", row.to, row.reason))
            .about(row.sources)
            .explain(
                "the launcher starts ranks over these logins, and hangs if one of them does",
                hint(&row.reason, port),
            )
    };
    matrix.rows().into_iter().map(finding).collect()
}

/// Connections on random ports that failed. `open`: the workers' port can be reached.
pub fn ports(matrix: &Matrix, open: Option<u16>) -> Vec<Finding> {
    let firewall = open.map_or(String::new(), |port| format!("a firewall allows port {port} but not the others; "));
    let finding = |row: FailedLogins| {
        Finding::new(
            Error,
            "ports",
            "",
            format!("cannot reach {} on random high ports: {}", row.to, row.reason),
        )
        .about(row.sources)
        .explain(
            format!("{firewall}ranks connect on random ports above 1023, and hang without a message if they cannot"),
            "allow TCP ports above 1023 between the nodes in both directions (the nodes' firewalls, security groups)",
        )
    };
    matrix.rows().into_iter().map(finding).collect()
}
