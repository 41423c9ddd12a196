//! Which nodes a new job could have for itself.

use super::capacity::{allocations, left_of};
use crate::cluster::observation::{ObservedNode, check_gpus};
use crate::error::NodeError;
use crate::grade::best::Unavailability;
use crate::model::allocation::Allocation;
use crate::model::lease::Lease;
use crate::node::network;

/// Returns why a job cannot have a node, if it cannot. `per_node`: how many of its GPUs (or slots) the job wants, or
/// `None` for all of them. `lease`: the lock of the node, if another command has it.
pub fn unavailable(observed: &ObservedNode, per_node: Option<u32>, lease: Option<&Lease>) -> Option<Unavailability> {
    let lasting = |reason: String| Some(Unavailability { reason, is_temporary: false });
    let temporary = |reason: String| Some(Unavailability { reason, is_temporary: true });
    let (node, facts) = (&observed.member.node, &observed.facts);
    if let Some(mark) = &facts.drained {
        return lasting(mark.to_string());
    }
    if let Err(error) = check_gpus(node, facts) {
        return lasting(error.message.lines().next().unwrap_or_default().to_owned());
    }
    let has = |allocations: &[Allocation]| match per_node {
        None => allocations.is_empty() && network::slots(node, facts) > 0,
        Some(wanted) => left_of(observed, allocations, wanted).slots >= wanted,
    };
    if !has(&[]) {
        return lasting(format!("has fewer than {} GPUs or slots", per_node.unwrap_or(1)));
    }
    let allocations = allocations(observed);
    let is_allocated = !has(&allocations);
    if let Some(allocation) = allocations.first().filter(|_| is_allocated) {
        return temporary(allocated(allocation));
    }
    let lease = lease?;
    temporary(format!("locked by {} with `{}`", lease.holder, lease.purpose))
}

/// Returns why a node is not available that failed before it could be examined.
pub fn failed(error: &NodeError) -> Unavailability {
    let reason = match error.is_unreachable() {
        true => "unreachable".to_owned(),
        false => format!("cannot {}", error.operation),
    };
    Unavailability { reason, is_temporary: false }
}

fn allocated(Allocation { job, operator, .. }: &Allocation) -> String {
    match operator.as_str() {
        "" => format!("allocated to job {job}"),
        operator => format!("allocated to job {job} of {operator}"),
    }
}
