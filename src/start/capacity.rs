//! Allocations of running jobs, and the capacity that remains.
//!
//! A job has its nodes exclusively, unless it was started with a number of GPUs per node (of slots, if there are no
//! GPUs): then it has that many, and other jobs of that kind may have the rest.

use super::request::{JobOptions, ResourceRequest};
use super::roles::JobRole;
use crate::cluster::observation::{ObservedNode, check_gpus};
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::launch::placement::{MapBy, Placement, Share, place};
use crate::launch::role_placement::{Room, place_roles};
use crate::model::allocation::{Allocation, AllocationConflict, Resources};
use crate::node::gpus::GpuDevice;
use crate::node::network;
use crate::record::{Record, UnreadableRecord, open_jobs};
use crate::text::units::count;
use std::collections::BTreeMap;

/// Returns what the running jobs have of a node whose open jobs are known. A job whose record cannot be read has all of
/// it.
pub(super) fn allocations(observed: &ObservedNode) -> Vec<Allocation> {
    jobs_of(observed, false)
}

/// Returns the jobs with ranks on a node, those that have nothing for themselves there only if `all` are asked for.
fn jobs_of(observed: &ObservedNode, all: bool) -> Vec<Allocation> {
    let is_running = |(job, _): &(&str, _)| observed.open.is_under_way(job);
    let of_job = |(job, record): (&str, Result<Record, UnreadableRecord>)| match record {
        Ok(record) => allocation(record, observed.name(), all),
        Err(unreadable) => Some(Allocation {
            job: job.to_owned(),
            name: unreadable.name.unwrap_or_default(),
            operator: unreadable.operator.unwrap_or_default(),
            unreadable: Some(unreadable.reason),
            ..Allocation::default()
        }),
    };
    open_jobs(&observed.open.jobs).filter(is_running).filter_map(of_job).collect()
}

/// Returns the allocation of a job on a node, or `None` if it has no ranks or nothing for itself there.
fn allocation(record: Record, node: &str, all: bool) -> Option<Allocation> {
    if record.waits_for_nodes() {
        // it is in the queue
        return None;
    }
    let share = record
        .placement
        .shares
        .into_iter()
        .find(|share| share.node == node && share.ranks > 0 && (all || !share.unallocated))?;
    Some(Allocation {
        job: record.id,
        name: record.name,
        project: record.project,
        port: record.port,
        operator: record.operator,
        unreadable: None,
        resources: share.shared.then_some(Resources { slots: share.ranks, gpus: share.gpus }),
    })
}

/// Nodes on which a job may have its ranks: no other job has what it gets of them. They are locked, except in a dry
/// run.
pub struct AllocatedNodes {
    /// The observed nodes, the master first; not all of them need have ranks.
    pub nodes: Vec<ObservedNode>,
    /// Which ranks run where, or may run where if Slurm chooses.
    pub placement: Placement,
    /// The request to the cluster's queue, if that chooses the nodes.
    pub queue: Option<QueueRequest>,
}

/// A job's request to the cluster's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueRequest {
    /// The number of ranks.
    pub ranks: u32,
    /// How they are spread over the nodes.
    pub map_by: MapBy,
    /// GPUs (or slots, where there are no GPUs) of each node; `None`: whole nodes.
    pub per_node: Option<u32>,
    /// The number of nodes that the roles of the job need; `None` without roles.
    pub role_nodes: Option<usize>,
}

impl AllocatedNodes {
    /// Places the ranks of a job on nodes; see [`placed`].
    ///
    /// # Errors
    /// As [`placed`].
    pub fn new(target: &Target, nodes: Vec<ObservedNode>, options: &JobOptions) -> Result<AllocatedNodes, Error> {
        let placement = match options.roles.as_slice() {
            [] => placed(target, &nodes, options.resources)?,
            roles => placed_roles(target, &nodes, roles)?,
        };
        Ok(AllocatedNodes { nodes, placement, queue: None })
    }

    /// Returns the selected nodes with all of their slots, of which Slurm chooses: they need not be free. The master
    /// launches every such job.
    ///
    /// # Errors
    /// As [`placed`], but for other jobs.
    pub fn candidates(
        target: &Target,
        nodes: Vec<ObservedNode>,
        options: &JobOptions,
    ) -> Result<AllocatedNodes, Error> {
        let wanted = options.resources;
        let (slots, ranks, role_nodes) = match options.roles.as_slice() {
            [] => {
                let JobCandidates { slots, ranks, .. } = JobCandidates::new(target, &nodes, wanted)?;
                (slots, ranks, None)
            }
            roles => {
                let on_all = fit_roles(target, &nodes, roles)?;
                (slots_for_roles(target, &nodes, &on_all)?, on_all.ranks(), Some(on_all.shares.len()))
            }
        };
        let mut placement = place(&slots, slots.iter().map(|(_, slots)| slots).sum(), MapBy::Slot)?;
        for share in &mut placement.shares {
            // each role may have all of any node
            share.roles = vec![share.ranks; options.roles.len()];
        }
        let master = &target.inventory.master().name;
        let placement = match nodes.iter().find(|observed| observed.name() == master) {
            Some(master) if master.facts.drained.is_some() => {
                return Err(is_drained(&[master], "it launches the jobs of the cluster's queue"));
            }
            _ if placement.launcher() == master => placement,
            _ => placement.launched_on(master),
        };
        let queue = Some(QueueRequest { ranks, map_by: wanted.map_by, per_node: wanted.per_node, role_nodes });
        Ok(AllocatedNodes { nodes, placement, queue })
    }
}

/// Places the roles of a job on the selected nodes that are not drained, without regard to other jobs.
///
/// # Errors
/// Too many ranks; GPUs that are not known or cannot be divided.
pub fn fit_roles(target: &Target, nodes: &[ObservedNode], roles: &[JobRole]) -> Result<Placement, Error> {
    let (drained, selected) = selected(target, nodes)?;
    let rooms = selected.iter().map(|observed| room(observed)).collect::<Result<Vec<_>, _>>()?;
    let shapes: Vec<_> = roles.iter().map(JobRole::shape).collect();
    let hint = "ask for fewer ranks in hvdctl.toml or by -np ROLE=N, select more nodes, or raise `slots` (or `gpus`) of a \
                [[node]]; roles get nodes in their order in the file, first those with the fewest by --on ROLE=NODES";
    match place_roles(&rooms, &shapes, hint) {
        Err(error) if !drained.is_empty() => Err(is_drained(&drained, &error.to_string())),
        placement => placement,
    }
}

/// Returns the slots and GPUs of a node, which are divided among roles.
fn room(observed: &ObservedNode) -> Result<Room, Error> {
    let (node, facts) = (&observed.member.node, &observed.facts);
    let gpus = network::chosen_gpus(node, facts).len();
    if gpus == 0 && !network::gpu_request(node, facts).is_none() {
        return Err(Error::check(
            format!("{}: its GPUs cannot be divided among roles, because nvidia-smi lists none", node.name),
            format!(
                "repair the driver, set `gpus = \"none\"` of this [[node]], or leave the node out: --on '!{}'",
                node.name
            ),
        ));
    }
    let gpus = u32::try_from(gpus).ok().filter(|gpus| *gpus > 0);
    Ok(Room { node: node.name.clone(), slots: network::slots(node, facts), gpus })
}

/// Returns the nodes among which Slurm may choose for a job with roles, with their slots: all of them if they are alike.
/// Otherwise the roles might not fit on others than those that they have been placed on.
fn slots_for_roles(
    target: &Target,
    nodes: &[ObservedNode],
    placement: &Placement,
) -> Result<Vec<(String, u32)>, Error> {
    let (_, selected) = selected(target, nodes)?;
    let rooms = selected.iter().map(|observed| room(observed)).collect::<Result<Vec<_>, _>>()?;
    let are_alike = rooms.windows(2).all(|two| (two[0].slots, two[0].gpus) == (two[1].slots, two[1].gpus));
    let is_placed_on = |room: &Room| placement.shares.iter().any(|share| share.node == room.node);
    let chosen = rooms.into_iter().filter(|room| are_alike || is_placed_on(room));
    Ok(chosen.map(|room| (room.node, room.slots)).collect())
}

/// Places the roles of a job on whole nodes.
fn placed_roles(target: &Target, nodes: &[ObservedNode], roles: &[JobRole]) -> Result<Placement, Error> {
    let placement = fit_roles(target, nodes, roles)?;
    let placement = Placement { roles: roles.iter().map(JobRole::recorded).collect(), ..placement };
    let (_, selected) = selected(target, nodes)?;
    with_launcher(exclusively(&selected, placement)?, nodes)
}

/// Returns the selected nodes: those that are drained, and the others.
///
/// # Errors
/// With the others whose GPUs are not known.
fn selected<'a>(
    target: &Target,
    nodes: &'a [ObservedNode],
) -> Result<(Vec<&'a ObservedNode>, Vec<&'a ObservedNode>), Error> {
    let is_selected = |observed: &&ObservedNode| target.selected.iter().any(|name| name == observed.name());
    let (drained, selected): (Vec<&ObservedNode>, Vec<&ObservedNode>) =
        nodes.iter().filter(is_selected).partition(|observed| observed.facts.drained.is_some());
    let failed = selected.iter().filter_map(|observed| gpus_unknown(observed)).collect::<Vec<_>>();
    if failed.is_empty() { Ok((drained, selected)) } else { Err(Error::Nodes { failed, done: 0 }) }
}

/// Places the ranks of a job on the selected nodes: on whole nodes in their order, or on the unallocated part of each.
/// If the master launches the job, it comes first even without ranks.
///
/// # Errors
/// Too many ranks, GPUs that are not there or not known, and [`Error::Allocated`] if other jobs have the resources.
pub fn placed(target: &Target, nodes: &[ObservedNode], wanted: ResourceRequest) -> Result<Placement, Error> {
    let JobCandidates { nodes: selected, ranks, on_all, .. } = JobCandidates::new(target, nodes, wanted)?;
    let placement = match wanted.per_node {
        None => exclusively(&selected, on_all)?,
        Some(0) => unallocated(on_all),
        Some(per_node) => shared(&selected, per_node, ranks, wanted.map_by)?,
    };
    with_launcher(placement, nodes)
}

/// The nodes on which a job could run if no other job had anything of them.
struct JobCandidates<'a> {
    /// The selected nodes that are not drained.
    nodes: Vec<&'a ObservedNode>,
    /// How many ranks the job may have on each.
    slots: Vec<(String, u32)>,
    /// The number of its ranks.
    ranks: u32,
    /// Which of them would run where.
    on_all: Placement,
}

impl JobCandidates<'_> {
    fn new<'a>(
        target: &Target,
        nodes: &'a [ObservedNode],
        wanted: ResourceRequest,
    ) -> Result<JobCandidates<'a>, Error> {
        let (drained, selected) = selected(target, nodes)?;
        let slots =
            selected.iter().map(|observed| most_slots(observed, wanted.per_node)).collect::<Result<Vec<_>, _>>()?;
        let available = slots.iter().fold(0u32, |sum, (_, slots)| sum.saturating_add(*slots));
        let ranks = wanted.ranks.map_or(available, |ranks| ranks.on(available));
        let on_all = match place(&slots, ranks, wanted.map_by) {
            Err(error) if !drained.is_empty() => return Err(is_drained(&drained, &error.to_string())),
            _ if selected.is_empty() => return Err(is_drained(&drained, "no other node is available")),
            placement => placement?,
        };
        Ok(JobCandidates { nodes: selected, slots, ranks, on_all })
    }
}

/// Returns the error of a node whose GPUs are not known: then its slots are not either, or ranks there would find no
/// GPU.
fn gpus_unknown(observed: &ObservedNode) -> Option<NodeError> {
    let (node, facts) = (&observed.member.node, &observed.facts);
    network::gpu_failure(node, facts)?;
    let hint = format!("or leave the node out: hvdctl drain {0}, or --on '!{0}'", node.name);
    check_gpus(node, facts).err().map(|error| error.hint(hint))
}

/// Returns a node's name and how many ranks a job may have there if nothing is allocated.
fn most_slots(observed: &ObservedNode, per_node: Option<u32>) -> Result<(String, u32), Error> {
    let slots = match per_node {
        None => network::slots(&observed.member.node, &observed.facts),
        // it takes no slot
        Some(0) => 1,
        Some(per_node) => {
            check_per_node(observed, per_node)?;
            left_of(observed, &[], per_node).slots
        }
    };
    Ok((observed.name().to_owned(), slots))
}

/// Returns what a job with `per_node` GPUs or slots of each node may have of this one.
pub(super) fn left_of(observed: &ObservedNode, allocations: &[Allocation], per_node: u32) -> Resources {
    let (node, facts) = (&observed.member.node, &observed.facts);
    let gpus: Vec<&str> = network::chosen_gpus(node, facts).iter().map(GpuDevice::uuid).collect();
    left(network::slots(node, facts), &gpus, allocations, per_node)
}

/// Returns the resources that a job with `per_node` GPUs or slots may get on a node with these slots and GPUs, given by
/// their UUIDs.
fn left(slots: u32, gpus: &[&str], allocations: &[Allocation], per_node: u32) -> Resources {
    let parts: Option<Vec<&Resources>> = allocations.iter().map(|allocation| allocation.resources.as_ref()).collect();
    let Some(parts) = parts else { return Resources::default() };
    let taken = parts.iter().fold(0u32, |sum, part| sum.saturating_add(part.slots));
    let slots = slots.saturating_sub(taken).min(per_node);
    if gpus.is_empty() {
        return Resources { slots, gpus: Vec::new() };
    }
    let free = gpus.iter().filter(|uuid| !parts.iter().any(|part| part.gpus.iter().any(|taken| taken == *uuid)));
    let gpus: Vec<String> = free.take(slots as usize).map(|uuid| (*uuid).to_owned()).collect();
    Resources { slots: gpus.len() as u32, gpus }
}

/// Returns the placement if nothing is allocated on its nodes.
fn exclusively(selected: &[&ObservedNode], placement: Placement) -> Result<Placement, Error> {
    let is_used = |node: &str| placement.shares.iter().any(|share| share.node == node);
    let conflict = conflict(selected, is_used);
    if conflict.allocations.is_empty() { Ok(placement) } else { Err(Error::Allocated(conflict)) }
}

/// Returns the placement of a job that takes nothing from other jobs.
fn unallocated(placement: Placement) -> Placement {
    let share = |share| Share { shared: true, unallocated: true, ..share };
    Placement { shares: placement.shares.into_iter().map(share).collect(), ..placement }
}

/// Places ranks on what other jobs leave of each node.
fn shared(selected: &[&ObservedNode], per_node: u32, ranks: u32, map_by: MapBy) -> Result<Placement, Error> {
    let left = |observed: &&ObservedNode| left_of(observed, &allocations(observed), per_node);
    let mut left: BTreeMap<&str, Resources> = selected.iter().map(|node| (node.name(), left(node))).collect();
    let slots: Vec<_> = selected.iter().map(|node| (node.name().to_owned(), left[node.name()].slots)).collect();
    let mut placement = place(&slots, ranks, map_by).map_err(|_| Error::Allocated(conflict(selected, |_| true)))?;
    for share in &mut placement.shares {
        share.shared = true;
        share.gpus = left.remove(share.node.as_str()).unwrap_or_default().gpus;
        share.gpus.truncate(share.ranks as usize);
    }
    Ok(placement)
}

/// Checks that no job has ranks on these nodes, whose open jobs are known.
///
/// # Errors
/// [`Error::Allocated`] with all jobs that have.
pub fn check_unallocated(nodes: &[ObservedNode]) -> Result<(), Error> {
    let conflict = conflict_with(&nodes.iter().collect::<Vec<_>>(), |_| true, |node| jobs_of(node, true));
    if conflict.allocations.is_empty() { Ok(()) } else { Err(Error::Allocated(conflict)) }
}

/// Returns the allocations of other jobs on the nodes that are needed, and the nodes without one.
fn conflict(selected: &[&ObservedNode], is_needed: impl Fn(&str) -> bool) -> AllocationConflict {
    conflict_with(selected, is_needed, allocations)
}

/// Returns what conflicts with a job, where `of_node` returns the allocations of a node.
fn conflict_with(
    selected: &[&ObservedNode],
    is_needed: impl Fn(&str) -> bool,
    of_node: impl Fn(&ObservedNode) -> Vec<Allocation>,
) -> AllocationConflict {
    let mut conflict = AllocationConflict { allocations: Vec::new(), free: Vec::new() };
    for node in selected {
        let allocations = of_node(node);
        if allocations.is_empty() {
            conflict.free.push(node.name().to_owned());
        } else if is_needed(node.name()) {
            conflict.allocations.extend(allocations.into_iter().map(|allocation| (node.name().to_owned(), allocation)));
        }
    }
    conflict
}

/// Adds the master, which launches jobs on several nodes, if it has no ranks.
fn with_launcher(placement: Placement, nodes: &[ObservedNode]) -> Result<Placement, Error> {
    let only_launches = |observed: &&ObservedNode| {
        observed.member.node.master && placement.shares.len() > 1 && placement.launcher() != observed.name()
    };
    match nodes.iter().find(only_launches) {
        Some(master) if master.facts.drained.is_some() => {
            Err(is_drained(&[master], "jobs on several nodes are launched on the master"))
        }
        Some(master) => Ok(placement.launched_on(master.name())),
        None => Ok(placement),
    }
}

/// Returns the error of a job that cannot do without drained nodes.
fn is_drained(nodes: &[&ObservedNode], why: &str) -> Error {
    let why = why.lines().next().unwrap_or_default();
    let marks: Vec<String> = nodes.iter().filter_map(|observed| drained(observed)).collect();
    let names: Vec<&str> = nodes.iter().map(|observed| observed.name()).collect();
    Error::check(format!("{}: {why}", marks.join("; ")), format!("hvdctl drain --undo {}", names.join(" ")))
}

/// Describes by whom and why a node is drained, if it is.
pub(super) fn drained(observed: &ObservedNode) -> Option<String> {
    observed.facts.drained.as_ref().map(|mark| format!("{} is {mark}", observed.name()))
}

/// Checks that a node has as many GPUs or slots as a job asks for of each.
fn check_per_node(observed: &ObservedNode, per_node: u32) -> Result<(), Error> {
    let (node, facts) = (&observed.member.node, &observed.facts);
    let (gpus, slots) = (network::chosen_gpus(node, facts).len(), network::slots(node, facts));
    let reason = match gpus {
        0 if !network::gpu_request(node, facts).is_none() => {
            "its GPUs cannot be distinguished, because nvidia-smi lists none".to_owned()
        }
        1.. if gpus < per_node as usize => format!("it has {}", count(gpus, "GPU")),
        _ if slots < per_node => format!("it has {}", count(slots as usize, "slot")),
        _ => return Ok(()),
    };
    let hint = "lower --gpus-per-node, choose other nodes with --on, or see `gpus` and `slots` of this [[node]]";
    Err(Error::usage(format!("{}: --gpus-per-node {per_node}: {reason}", observed.name()), hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::allocation::tests::allocated;
    use proptest::prelude::*;

    fn gpus(count: u32) -> Vec<&'static str> {
        const ALL: [&str; 8] = ["GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"];
        ALL[..count as usize].to_vec()
    }

    #[test]
    fn a_whole_node_leaves_nothing_and_a_part_the_rest() {
        let whole = [allocated("j1", None)];
        assert_eq!(left(4, &gpus(4), &whole, 1), Resources::default());
        let part = [allocated("j1", Some(Resources { slots: 2, gpus: vec!["GPU-0".into(), "GPU-2".into()] }))];
        assert_eq!(left(4, &gpus(4), &part, 1), Resources { slots: 1, gpus: vec!["GPU-1".into()] });
        assert_eq!(left(4, &gpus(4), &part, 9).gpus, ["GPU-1", "GPU-3"]);
        // no GPUs: slots are counted
        let slots = [allocated("j1", Some(Resources { slots: 2, gpus: Vec::new() }))];
        assert_eq!(left(3, &[], &slots, 2), Resources { slots: 1, gpus: Vec::new() });
        // even with more slots than GPUs, a GPU belongs to one job
        let one = [allocated("j1", Some(Resources { slots: 1, gpus: vec!["GPU-0".into()] }))];
        assert_eq!(left(2, &gpus(1), &one, 1).slots, 0);
    }

    proptest! {
        #[test]
        fn no_two_jobs_ever_have_a_gpu_or_a_slot_in_common(
            slots in 0u32..9, count in 0u32..9, asked in prop::collection::vec(1u32..5, 0..12)
        ) {
            let gpus = gpus(count);
            let mut allocations = Vec::new();
            for (i, per_node) in asked.into_iter().enumerate() {
                let part = left(slots, &gpus, &allocations, per_node);
                prop_assert!(part.slots <= per_node);
                if part.slots > 0 {
                    allocations.push(allocated(&format!("j{i}"), Some(part)));
                }
            }
            let parts = || allocations.iter().filter_map(|allocation| allocation.resources.as_ref());
            prop_assert!(parts().map(|part| part.slots).sum::<u32>() <= slots);
            let mut all: Vec<&String> = parts().flat_map(|part| &part.gpus).collect();
            prop_assert_eq!(all.len() as u32, if count == 0 { 0 } else { parts().map(|part| part.slots).sum() });
            all.sort();
            all.dedup();
            prop_assert_eq!(all.len(), parts().map(|part| part.gpus.len()).sum::<usize>());
        }
    }
}
