//! The cluster's queue: a Slurm for machines that have none. Its daemons run in a container on every node, `hslurm`,
//! next to the worker; slurmctld and its state are on the master. `hslurm-agent`, next to it, starts and ends the
//! containers of jobs.
//!
//! Slurm decides when a job begins and on which nodes. Everything else is as without it: `submission` prepares
//! every node that may get the job and submits an allocation that only waits, `scripts/slurm/nodes` lets the job begin
//! on the nodes that are allocated, and ends the allocation with the job. `config` is Slurm's configuration as text,
//! `containers` what a node has, `daemons` what is asked of the daemons and how they are started, `key` by which they know
//! one another.

pub mod config;
pub mod containers;
pub mod daemons;
pub mod key;
pub mod submission;

use crate::cluster::observation::ObservedNode;
use crate::error::{Error, NodeError};
use crate::inventory::Cluster;

/// Returns whether jobs are queued in the cluster's queue. `nodes`: those that were observed.
///
/// # Errors
/// If one of them has its container, and that is not running; if only some have one.
pub fn is_up(nodes: &[ObservedNode], cluster: &Cluster) -> Result<bool, Error> {
    let state = |node: &ObservedNode| daemons::running(cluster, &node.runtime.containers);
    if nodes.iter().all(|node| state(node).is_none()) {
        return Ok(false);
    }
    let hint = "hvdctl slurm up starts it, hvdctl slurm down removes it; --scheduler ssh bypasses it";
    let failed = |node: &ObservedNode, cause: &str| {
        Err(NodeError::failed(node.name(), "queue the job", cause).hint(hint).into())
    };
    for node in nodes.iter().filter(|node| node.facts.drained.is_none()) {
        match state(node) {
            Some(Ok(())) => {}
            Some(Err(container)) => return failed(node, &format!("{container} is not running")),
            None => return failed(node, "this node is not in the cluster's queue"),
        }
    }
    Ok(true)
}
