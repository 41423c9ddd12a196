//! Who does not reach whom.

use super::Finding;
use crate::keys::reachability::{FailedLogins, Matrix, hint};

/// Logins from worker to worker that failed. Nodes whose worker is not up have a finding of their own.
pub fn logins(matrix: &Matrix, port: u16) -> Vec<Finding> {
    let finding = |row: FailedLogins| {
        Finding::error("login", "", format!("cannot log in to {} on port {port}: {}", row.to, row.reason))
            .about(row.sources)
            .explain(
                "the launcher starts ranks by these logins, and waits where one gets no answer",
                hint(&row.reason, port),
            )
    };
    matrix.rows().into_iter().map(finding).collect()
}

/// Connections on random ports that failed. `open`: the workers' own port gets through.
pub fn ports(matrix: &Matrix, open: Option<u16>) -> Vec<Finding> {
    let firewall = open.map_or(String::new(), |port| format!("a firewall lets port {port} through and not the rest; "));
    let finding = |row: FailedLogins| {
        Finding::error("ports", "", format!("cannot reach {} on random high ports: {}", row.to, row.reason))
            .about(row.sources)
            .explain(
                format!("{firewall}Horovod's ranks connect on random ports from 1024 on, and wait without a word"),
                "allow TCP from 1024 on between the nodes' addresses, both ways (firewall of the node, security group)",
            )
    };
    matrix.rows().into_iter().map(finding).collect()
}
