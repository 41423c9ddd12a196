//! Pushes the cluster's keys before workers are changed: a worker without them could not start its sshd.

use crate::cluster::each_node::NodeResults;
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::keys::files::{AUTHORIZED_KEYS, Keys, differing};
use crate::keys::push::KeyDistribution;
use crate::node::facts::Facts;
use crate::paths::HOST_KEY;
use crate::text::nodeset;
use crate::worker::apply::{WorkerPlan, WorkerPlans};

/// Pushes the keys where they are missing or differ; a dry run only says so. They come from the master: without it only
/// nodes that have their keys continue.
///
/// # Errors
/// Returns why the command was cancelled, or what is wrong with the cluster's key pair.
pub async fn push_differing(mut plans: WorkerPlans, dry_run: bool, site: Site<'_>) -> Result<WorkerPlans, Error> {
    let Site { target, session, events, .. } = site;
    let inventory = &target.inventory;
    let nodes: Vec<_> = plans.ok.iter().map(|plan| (&plan.observed.member.node, &plan.observed.facts)).collect();
    let pending = differing(inventory, &nodes, Keys::to_push);
    let mut has_master = nodes.iter().any(|(node, _)| node.master);
    if pending.is_empty() {
        return Ok(plans);
    }
    let names = nodeset::fold(&pending);
    if dry_run {
        events.note(format!("keys would be pushed to {names}"));
        return Ok(plans);
    }
    if has_master {
        events.note(format!("keys are missing or differ on {names}: pushing them first"));
        let known = |plan: &WorkerPlan| (plan.observed.member.clone(), plan.observed.facts.clone());
        let observed = NodeResults { ok: plans.ok.iter().map(known).collect(), failed: Vec::new() };
        plans = match (KeyDistribution { inventory, session, events }).push(observed).await {
            Ok(pushed) => plans.leave_out(pushed.failed, WorkerPlan::node),
            Err(Error::Nodes { failed, .. }) => {
                has_master = false;
                plans.without(events, failed, WorkerPlan::node)
            }
            Err(error) => return Err(error),
        };
    }
    if !has_master {
        let without_keys = plans.ok.iter().filter(|plan| lacks_keys(&plan.observed.facts));
        let failed = without_keys.map(|plan| no_master(target, plan.node())).collect();
        plans = plans.without(events, failed, WorkerPlan::node);
    }
    Ok(plans)
}

/// Returns the error of a node whose keys cannot be pushed.
fn no_master(target: &Target, node: &str) -> NodeError {
    let master = &target.inventory.master().name;
    let next = match target.selected.contains(master) {
        true => "fix the master first, then run hvdctl up again",
        false => "add the master to --on",
    };
    let cause = format!("the keys come from the master {master}, which is not available");
    NodeError::failed(node, "push its keys", cause).hint(next)
}

/// Returns whether a worker could not start its sshd, or would accept no login.
fn lacks_keys(facts: &Facts) -> bool {
    [HOST_KEY, AUTHORIZED_KEYS].iter().any(|name| !facts.keys.files.contains_key(*name))
}
