//! Allocations of running jobs, and the capacity that remains.

use super::manage::running;
use super::request::ResourceRequest;
use crate::cluster::nodes::{Member, ObservedNode, Target, connect};
use crate::error::Error;
use crate::event::{Event, Events};
use crate::inventory::Cluster;
use crate::job::allocation::{self, Allocation, AllocationConflict, Resources};
use crate::job::record::{Record, open_records};
use crate::launch::placement::{MapBy, Placement, place};
use crate::node::facts::Facts;
use crate::node::gpus::GpuRequest;
use crate::node::network;
use crate::runtime::Runtime;
use crate::runtime::container::ContainerSummary;
use crate::text::units::count;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What running jobs have, by node.
pub(super) type Allocations = BTreeMap<String, Vec<Allocation>>;

/// Removes jobs from the observed state that have ended without a recorded result. A job goes on if its launcher is up
/// or ranks of it are there; if its launcher would be on a node that was not observed, that node is asked. While the
/// nodes are locked no other job can be starting.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn drop_ended_jobs(target: &Target, nodes: &mut [&mut ObservedNode], events: &Events) -> Result<(), Error> {
    let cluster = target.cluster();
    let mut known: BTreeSet<String> =
        nodes.iter().flat_map(|observed| launched(cluster, &observed.runtime.containers)).collect();
    let ranks = nodes.iter().flat_map(|observed| &observed.facts.ranks).filter(|rank| !rank.killed);
    known.extend(ranks.map(|rank| rank.job.clone()));
    let launcher = |record: &Record| record.placement.shares.first().map(|share| share.node.clone());
    let unknown =
        nodes.iter().flat_map(|observed| open_records(&observed.facts)).filter(|record| !known.contains(&record.id));
    let mut silent: BTreeSet<String> = unknown.filter_map(|record| launcher(&record)).collect();
    silent.retain(|launcher| nodes.iter().all(|observed| observed.name() != launcher));
    if !silent.is_empty() {
        for (node, jobs) in ask_launchers(target, &silent, events).await? {
            silent.remove(&node);
            known.extend(jobs);
        }
    }
    for observed in nodes {
        let records: Vec<Record> = open_records(&observed.facts).collect();
        let Facts { open_jobs, open_records, under_way, .. } = &mut observed.facts;
        // a job whose launcher's node does not answer allocates nothing, but nothing of it is removed
        let may_go_on = |job: &String| {
            let record = records.iter().find(|record| record.id == *job);
            record.and_then(launcher).is_none_or(|launcher| silent.contains(&launcher))
        };
        open_jobs.retain(|job| known.contains(job) || may_go_on(job));
        open_records.retain(|text| Record::parse(text).is_some_and(|record| known.contains(&record.id)));
        *under_way = open_jobs.iter().filter(|job| known.contains(*job)).cloned().collect();
    }
    Ok(())
}

/// Reads which jobs have a launcher on nodes that the command has not observed. Returns those that answered.
async fn ask_launchers(
    target: &Target,
    nodes: &BTreeSet<String>,
    events: &Events,
) -> Result<Vec<(String, Vec<String>)>, Error> {
    // for nodes outside the command only warnings are shown, such as first contacts of ssh
    let (quiet, reported) = Events::channel();
    let launchers = Target { selected: nodes.iter().cloned().collect(), ..target.clone() };
    let ask = async |member: Member| {
        let containers = Runtime::connect(&member.transport).await?.containers().await?;
        Ok((member.node.name.clone(), launched(target.cluster(), &containers)))
    };
    let asked = connect(&launchers, &quiet).await?.then(&quiet, ask).await;
    while let Ok(event) = reported.receive(Duration::ZERO) {
        if matches!(event, Event::Warning(_)) {
            events.send(event);
        }
    }
    Ok(asked.ok)
}

/// Returns the jobs whose launcher is up among these containers.
fn launched(cluster: &Cluster, containers: &[ContainerSummary]) -> Vec<String> {
    running(cluster, containers).filter_map(|container| container.job().map(str::to_owned)).collect()
}

/// Returns what the running jobs have of these nodes, from which ended jobs were dropped.
pub(super) fn allocations(nodes: &[ObservedNode]) -> Allocations {
    let of = |observed: &ObservedNode| -> Vec<Allocation> {
        open_records(&observed.facts).filter_map(|record| allocation::allocation(&record, observed.name())).collect()
    };
    let all = nodes.iter().map(|observed| (observed.name().to_owned(), of(observed)));
    all.filter(|(_, allocations)| !allocations.is_empty()).collect()
}

/// Places the ranks of a job on the selected nodes: on whole nodes in their order, or on the unallocated part of each.
/// If the master launches the job, it comes first even without ranks.
///
/// # Errors
/// Too many ranks, GPUs that are not there, and [`Error::Allocated`] if other jobs have the resources.
pub(super) fn placed(
    target: &Target,
    nodes: &[ObservedNode],
    wanted: ResourceRequest,
    allocations: &Allocations,
) -> Result<Placement, Error> {
    let is_selected = |observed: &&ObservedNode| target.selected.iter().any(|name| name == observed.name());
    let (drained, selected): (Vec<&ObservedNode>, Vec<&ObservedNode>) =
        nodes.iter().filter(is_selected).partition(|observed| observed.facts.drained.is_some());
    let slots = selected.iter().map(|observed| most_slots(observed, wanted.per_node)).collect::<Result<Vec<_>, _>>()?;
    let available = slots.iter().fold(0u32, |sum, (_, slots)| sum.saturating_add(*slots));
    let ranks = wanted.ranks.map_or(available, |ranks| ranks.on(available));
    let on_all = match place(&slots, ranks, wanted.map_by) {
        Err(error) if !drained.is_empty() => return Err(is_drained(&drained, &error.to_string())),
        _ if selected.is_empty() => return Err(is_drained(&drained, "no other node is available")),
        placement => placement?,
    };
    let allocated = |observed: &ObservedNode| allocations.get(observed.name()).map_or(&[][..], Vec::as_slice);
    let candidates: Vec<Candidate<'_>> = selected.iter().map(|observed| (*observed, allocated(observed))).collect();
    let placement = match wanted.per_node {
        None => exclusively(&candidates, on_all)?,
        Some(per_node) => shared(&candidates, per_node, ranks, wanted.map_by)?,
    };
    with_launcher(placement, nodes)
}

/// Returns a node's name and how many ranks a job may have there if nothing is allocated.
fn most_slots(observed: &ObservedNode, per_node: Option<u32>) -> Result<(String, u32), Error> {
    let slots = match per_node {
        None => network::slots(&observed.member.node, &observed.facts),
        Some(per_node) => {
            check_per_node(observed, per_node)?;
            left((observed, &[]), per_node).slots
        }
    };
    Ok((observed.name().to_owned(), slots))
}

/// A node on which ranks may be placed, and its allocations.
type Candidate<'a> = (&'a ObservedNode, &'a [Allocation]);

/// Returns what a job with `per_node` GPUs or slots of each node may have of this one.
fn left((observed, allocated): Candidate<'_>, per_node: u32) -> Resources {
    let (node, facts) = (&observed.member.node, &observed.facts);
    allocation::left(network::slots(node, facts), &network::chosen_gpus(node, facts), allocated, per_node)
}

/// Returns the placement if nothing is allocated on its nodes.
fn exclusively(candidates: &[Candidate<'_>], placement: Placement) -> Result<Placement, Error> {
    let is_used = |node: &str| placement.shares.iter().any(|share| share.node == node);
    let is_free = candidates.iter().all(|(observed, allocated)| allocated.is_empty() || !is_used(observed.name()));
    if is_free { Ok(placement) } else { Err(conflict(candidates, is_used)) }
}

/// Places ranks on what other jobs leave of each node.
fn shared(candidates: &[Candidate<'_>], per_node: u32, ranks: u32, map_by: MapBy) -> Result<Placement, Error> {
    let mut left: BTreeMap<&str, Resources> =
        candidates.iter().map(|candidate| (candidate.0.name(), left(*candidate, per_node))).collect();
    let slots = |(observed, _): &Candidate<'_>| (observed.name().to_owned(), left[observed.name()].slots);
    let slots: Vec<(String, u32)> = candidates.iter().map(slots).collect();
    let mut placement = place(&slots, ranks, map_by).map_err(|_| conflict(candidates, |_| true))?;
    for share in &mut placement.shares {
        share.shared = true;
        share.gpus = left.remove(share.node.as_str()).unwrap_or_default().gpus;
        share.gpus.truncate(share.ranks as usize);
    }
    Ok(placement)
}

/// Returns the error of a job that needs nodes with allocations of other jobs.
fn conflict(candidates: &[Candidate<'_>], is_needed: impl Fn(&str) -> bool) -> Error {
    let mut conflict = AllocationConflict { allocations: Vec::new(), free: Vec::new() };
    for (observed, allocated) in candidates {
        let node = observed.name();
        conflict.free.extend(allocated.is_empty().then(|| node.to_owned()));
        let needed = allocated.iter().filter(|_| is_needed(node));
        conflict.allocations.extend(needed.map(|allocation| (node.to_owned(), allocation.clone())));
    }
    Error::Allocated(conflict)
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

/// Checks that enough slots and GPUs are unallocated.
///
/// # Errors
/// Too many ranks, [`Error::Allocated`].
pub fn check_capacity(target: &Target, nodes: &[ObservedNode], wanted: ResourceRequest) -> Result<(), Error> {
    placed(target, nodes, wanted, &allocations(nodes)).map(|_| ())
}

/// Checks that a node has as many GPUs or slots as a job asks for of each.
fn check_per_node(observed: &ObservedNode, per_node: u32) -> Result<(), Error> {
    let (node, facts) = (&observed.member.node, &observed.facts);
    let (gpus, slots) = (network::chosen_gpus(node, facts).len(), network::slots(node, facts));
    let reason = match gpus {
        0 if network::gpu_request(node, facts) != GpuRequest::None => {
            "its GPUs cannot be distinguished, because nvidia-smi lists none".to_owned()
        }
        1.. if gpus < per_node as usize => format!("it has {}", count(gpus, "GPU")),
        _ if slots < per_node => format!("it has {}", count(slots as usize, "slot")),
        _ => return Ok(()),
    };
    let hint = "lower --gpus-per-node, choose other nodes with --on, or see `gpus` and `slots` of this [[node]]";
    Err(Error::usage(format!("{}: --gpus-per-node {per_node}: {reason}", observed.name()), hint))
}
