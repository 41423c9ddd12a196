//! The document of `verify`.

use crate::checks::Finding;
use crate::checks::verify::RankRow;
use crate::commands::check::gpus::NodeGpus;
use crate::commands::set_up::keys::status::Logins;
use crate::document::NodeEntry;
use crate::inventory::Controller;
use crate::verify::verdict::VerifyVerdict;
use schemars::JsonSchema;
use serde::Serialize;

/// `verify`. If a worker cannot log in to another, nothing is launched, and `nodes` is empty.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerifyDocument {
    /// The id of its job; null if nothing was launched.
    pub job: Option<String>,
    /// Horovod's controller.
    pub controller: Controller,
    /// The number of ranks that were launched.
    pub ranks: usize,
    /// Everything that is wrong.
    pub faults: Vec<String>,
    /// The findings on the health of the GPUs, errors first. The errors are also among the faults.
    pub findings: Vec<Finding>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<VerifyNode>>,
    /// Logins from worker to worker; null if all ranks are on one node.
    pub logins: Option<Logins>,
}

/// The ranks of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerifyNode {
    /// The ranks that should be there.
    pub ranks: Vec<RankRow>,
    /// Its GPUs.
    #[serde(flatten)]
    pub gpus: NodeGpus,
}

impl VerifyDocument {
    /// Returns the document of what was found.
    pub(super) fn new(controller: Controller, found: VerifyVerdict) -> VerifyDocument {
        let node = |name: &String| {
            let ranks: Vec<RankRow> = found.rows.iter().filter(|row| row.expected == *name).cloned().collect();
            let is_faulty = found.gpus.errors().any(|finding| finding.nodes.contains(name));
            let is_ok = !is_faulty && ranks.iter().all(|row| row.faults.is_empty());
            NodeEntry::new(name, is_ok, VerifyNode { ranks, gpus: NodeGpus::of(name, &found.gpus.health) })
        };
        VerifyDocument {
            controller,
            ranks: found.rows.len(),
            faults: found.all_faults(),
            nodes: found.nodes.iter().map(node).collect(),
            logins: found.logins.as_ref().map(Logins::from),
            job: found.job,
            findings: found.gpus.findings,
        }
    }
}
