//! What running jobs have of the nodes, and what is left for another job.

use super::manage::running;
use super::request::ResourceRequest;
use crate::cluster::nodes::{Observed, Target, connect, for_each_node};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::inventory::Cluster;
use crate::job::allocation::{self, Allocation, AllocationConflict, Resources};
use crate::job::record::{Record, open_records};
use crate::launch::placement::{Placement, place};
use crate::node::facts::Facts;
use crate::node::gpus::GpuRequest;
use crate::node::network;
use crate::runtime::Runtime;
use crate::runtime::container::ContainerSummary;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What running jobs have, by node.
pub(super) type Allocations = BTreeMap<String, Vec<Allocation>>;

/// Removes from the observed state the open jobs that have ended although that is recorded nowhere. A job goes on if its launcher is up
/// or ranks of it are there; if its launcher would be on a node that was not observed, that node is asked. While the nodes are locked no
/// job can be on its way to that.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn drop_ended_jobs(target: &Target, nodes: &mut [&mut Observed], events: &Events) -> Result<(), Error> {
    let cluster = target.cluster();
    let mut known: BTreeSet<String> =
        nodes.iter().flat_map(|observed| launched(cluster, &observed.docker.containers)).collect();
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

/// Asks nodes of which the command knows nothing which jobs have a launcher there. Returns those that answered.
async fn ask_launchers(
    target: &Target,
    nodes: &BTreeSet<String>,
    events: &Events,
) -> Result<Vec<(String, Vec<String>)>, Error> {
    // of nodes that are none of the command's only warnings are shown: whom ssh met for the first time
    let (quiet, reported) = Events::channel();
    let members = connect(&Target { selected: nodes.iter().cloned().collect(), ..target.clone() }, &quiet).await?;
    let asked = for_each_node(members.into_iter().flatten().collect(), async |member| {
        let containers = Runtime::connect(&member.transport).await?.containers().await?;
        Ok::<_, NodeError>((member.node.name.clone(), launched(target.cluster(), &containers)))
    })
    .await;
    while let Ok(event) = reported.receive(Duration::ZERO) {
        if matches!(event, Event::Warning(_)) {
            events.send(event);
        }
    }
    Ok(asked.into_iter().flatten().collect())
}

/// Returns the jobs whose launcher is up among these containers.
fn launched(cluster: &Cluster, containers: &[ContainerSummary]) -> Vec<String> {
    running(cluster, containers).filter_map(|container| container.job().map(str::to_owned)).collect()
}

/// Returns what the running jobs have of these nodes, from which ended jobs were dropped.
pub(super) fn allocations(nodes: &[Observed]) -> Allocations {
    let of = |observed: &Observed| -> Vec<Allocation> {
        open_records(&observed.facts).filter_map(|record| allocation::allocation(&record, observed.name())).collect()
    };
    let all = nodes.iter().map(|observed| (observed.name().to_owned(), of(observed)));
    all.filter(|(_, allocations)| !allocations.is_empty()).collect()
}

/// Places the ranks of a job on the selected nodes: on whole ones in their order, or on what others leave of each. If the master
/// launches the job and has none of its ranks, it comes first all the same.
///
/// # Errors
/// Too many ranks, GPUs that are not there, and [`Error::Allocated`] if others are in the way.
pub(super) fn placed(
    target: &Target,
    nodes: &[Observed],
    wanted: ResourceRequest,
    allocations: &Allocations,
) -> Result<Placement, Error> {
    let is_selected = |observed: &&Observed| target.selected.iter().any(|name| name == observed.name());
    let (drained, selected): (Vec<&Observed>, Vec<&Observed>) =
        nodes.iter().filter(is_selected).partition(|observed| observed.facts.drained.is_some());
    let of = |observed: &Observed| allocations.get(observed.name()).map_or(&[][..], Vec::as_slice);
    let slots = |observed: &Observed| network::slots(&observed.member.node, &observed.facts);
    let free_of = |observed: &Observed, allocations: &[Allocation], per_node| {
        let gpus = network::chosen_gpus(&observed.member.node, &observed.facts);
        allocation::left(slots(observed), &gpus, allocations, per_node)
    };
    let with_slots = |observed: &Observed| {
        let slots = match wanted.per_node {
            None => slots(observed),
            Some(per_node) => {
                check_per_node(observed, per_node)?;
                free_of(observed, &[], per_node).slots
            }
        };
        Ok((observed.name().to_owned(), slots))
    };
    let all: Vec<(String, u32)> = selected.iter().map(|observed| with_slots(observed)).collect::<Result<_, Error>>()?;
    let available = all.iter().fold(0u32, |sum, (_, slots)| sum.saturating_add(*slots));
    let ranks = wanted.ranks.map_or(available, |ranks| ranks.on(available));
    let mut placement = match super::request::placement(&all, ranks, wanted.map_by) {
        Err(error) if !drained.is_empty() => return Err(is_drained(&drained, &error.to_string())),
        _ if selected.is_empty() => return Err(is_drained(&drained, "no other node is available")),
        placement => placement?,
    };
    let conflict = |concerned: &dyn Fn(&str) -> bool| {
        let concerned = selected.iter().filter(|observed| concerned(observed.name()));
        let allocations =
            concerned.flat_map(|observed| of(observed).iter().map(|one| (observed.name().to_owned(), one.clone())));
        let free =
            selected.iter().filter(|observed| of(observed).is_empty()).map(|observed| observed.name().to_owned());
        Error::Allocated(AllocationConflict { allocations: allocations.collect(), free: free.collect() })
    };
    match wanted.per_node {
        None => {
            let is_used = |node: &str| placement.shares.iter().any(|share| share.node == node);
            if selected.iter().any(|observed| is_used(observed.name()) && !of(observed).is_empty()) {
                return Err(conflict(&is_used));
            }
        }
        Some(per_node) => {
            let mut parts: BTreeMap<&str, Resources> =
                selected.iter().map(|observed| (observed.name(), free_of(observed, of(observed), per_node))).collect();
            let free: Vec<_> =
                selected.iter().map(|observed| (observed.name().to_owned(), parts[observed.name()].slots)).collect();
            placement = place(&free, ranks, wanted.map_by).map_err(|_| conflict(&|_| true))?;
            for share in &mut placement.shares {
                share.shared = true;
                share.gpus = parts.remove(share.node.as_str()).unwrap_or_default().gpus;
                share.gpus.truncate(share.ranks as usize);
            }
        }
    }
    let Some(master) = nodes.iter().find(|observed| observed.member.node.master) else { return Ok(placement) };
    if placement.shares.len() < 2 || placement.shares[0].node == master.name() {
        return Ok(placement);
    }
    if master.facts.drained.is_some() {
        return Err(is_drained(&[master], "jobs on several nodes are launched on the master"));
    }
    Ok(placement.launched_on(master.name()))
}

/// Returns the error of a job that cannot do without drained nodes.
fn is_drained(nodes: &[&Observed], why: &str) -> Error {
    let why = why.lines().next().unwrap_or_default();
    let marks: Vec<String> = nodes.iter().filter_map(|observed| drained(observed)).collect();
    let names: Vec<&str> = nodes.iter().map(|observed| observed.name()).collect();
    Error::check(format!("{}: {why}", marks.join("; ")), format!("hvdctl drain --undo {}", names.join(" ")))
}

/// Describes by whom and why a node is drained, if it is.
pub(super) fn drained(observed: &Observed) -> Option<String> {
    observed.facts.drained.as_ref().map(|mark| format!("{} is {mark}", observed.name()))
}

/// Checks that enough slots and GPUs are unallocated.
///
/// # Errors
/// Too many ranks, [`Error::Allocated`].
pub fn check_capacity(target: &Target, nodes: &[Observed], wanted: ResourceRequest) -> Result<(), Error> {
    placed(target, nodes, wanted, &allocations(nodes)).map(|_| ())
}

/// Checks that a node has as many GPUs or slots as a job asks for of each.
fn check_per_node(observed: &Observed, per_node: u32) -> Result<(), Error> {
    let (node, facts) = (&observed.member.node, &observed.facts);
    let (gpus, slots) = (network::chosen_gpus(node, facts).len(), network::slots(node, facts));
    let s = |n: u32| if n == 1 { "" } else { "s" };
    let reason = match u32::try_from(gpus).unwrap_or(u32::MAX) {
        0 if network::gpu_request(node, facts) != GpuRequest::None => {
            "its GPUs cannot be distinguished, because nvidia-smi lists none".to_owned()
        }
        there @ 1.. if there < per_node => format!("it has {there} GPU{}", s(there)),
        _ if slots < per_node => format!("it has {slots} slot{}", s(slots)),
        _ => return Ok(()),
    };
    let hint = "lower --gpus-per-node, choose other nodes with --on, or see `gpus` and `slots` of this [[node]]";
    Err(Error::usage(format!("{}: --gpus-per-node {per_node}: {reason}", observed.name()), hint))
}
