//! Who does not reach whom.

use super::Finding;
use crate::keys::reachability::Matrix;
use crate::text::failure::{self, Ssh};
use crate::text::nodeset;

/// Logins from worker to worker that failed. Nodes whose worker is not up are told elsewhere.
pub fn logins(matrix: &Matrix, port: u16) -> Vec<Finding> {
    let finding = |row: crate::keys::reachability::Row| {
        let cure = if matches!(failure::ssh(&row.reason), Ssh::Refused | Ssh::HostKeyUnknown) {
            "hvdctl keys push, and hvdctl down and up for workers that still show another host key".to_owned()
        } else {
            format!("allow TCP port {port} between the nodes' addresses, and see `docker logs` of the worker")
        };
        Finding::error("login", "", format!("cannot log in to {} on port {port}: {}", row.to, row.reason))
            .about(names(&row.from))
            .why("the launcher starts ranks by these logins, and waits where one gets no answer")
            .cure(cure)
    };
    matrix.rows().into_iter().map(finding).collect()
}

/// Connections on random ports that failed. `open`: the workers' own port gets through.
pub fn ports(matrix: &Matrix, open: Option<u16>) -> Vec<Finding> {
    let finding = |row: crate::keys::reachability::Row| {
        let though =
            open.map_or(String::new(), |port| format!("a firewall lets port {port} through and not the rest; "));
        Finding::error("ports", "", format!("cannot reach {} on random high ports: {}", row.to, row.reason))
            .about(names(&row.from))
            .why(format!("{though}Horovod's ranks connect on random ports from 1024 on, and wait without a word"))
            .cure(
                "allow TCP from 1024 on between the nodes' addresses, both ways (firewall of the node, security group)",
            )
    };
    matrix.rows().into_iter().map(finding).collect()
}

/// The nodes of a folded set.
fn names(folded: &str) -> Vec<String> {
    nodeset::split(folded).into_iter().flat_map(|term| nodeset::expand(term).into_iter().flatten()).collect()
}
