//! What the running jobs have of the nodes that another job asks for.

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
use crate::runtime::spec::Role;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What running jobs have, by node.
pub(super) type Allocations = BTreeMap<String, Vec<Allocation>>;

/// The jobs whose launcher is up among these containers.
fn launched<'a>(cluster: &'a Cluster, containers: &'a [ContainerSummary]) -> impl Iterator<Item = String> + 'a {
    let up = |c: &&ContainerSummary| c.belongs_to(&cluster.name) && c.is(Role::Master) && c.state.is_up();
    containers.iter().filter(up).filter_map(|c| c.job().map(str::to_owned))
}

/// Strikes the open jobs that have ended from what these nodes said, although nobody wrote it down there: a record alone does not
/// say that its job goes on. Its launcher is up, or ranks of it are there. Where the launcher would be on another node, that one
/// is asked. With the nodes' leases taken no job can be on its way to that.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn settle(target: &Target, nodes: &mut [&mut Observed], events: &Events) -> Result<(), Error> {
    let cluster = target.cluster();
    let mut under_way: BTreeSet<String> =
        nodes.iter().flat_map(|seen| launched(cluster, &seen.docker.containers)).collect();
    under_way.extend(
        nodes.iter().flat_map(|seen| seen.facts.ranks.iter().filter(|rank| !rank.killed).map(|rank| rank.job.clone())),
    );
    let records = || nodes.iter().flat_map(|seen| open_records(&seen.facts));
    let launcher = |record: &Record| record.placement.shares.first().map(|share| share.node.clone());
    let mut silent: BTreeSet<String> = records()
        .filter(|record| !under_way.contains(&record.id))
        .filter_map(|record| launcher(&record))
        .filter(|launcher| nodes.iter().all(|seen| seen.name() != launcher))
        .collect();
    if !silent.is_empty() {
        let selected = silent.iter().cloned().collect();
        // these are not nodes of this command: only warnings, such as unknown host keys, are reported
        let (quiet, reported) = Events::channel();
        let members = connect(&Target { selected, ..target.clone() }, &quiet).await?;
        let asked = for_each_node(members.into_iter().flatten().collect(), async |member| {
            let containers = Runtime::connect(&member.transport).await?.containers().await?;
            Ok::<_, NodeError>((member.node.name.clone(), launched(cluster, &containers).collect::<Vec<_>>()))
        })
        .await;
        while let Ok(event) = reported.receive(Duration::ZERO) {
            if matches!(event, Event::Warning(_)) {
                events.send(event);
            }
        }
        for (node, runs) in asked.into_iter().flatten() {
            silent.remove(&node);
            under_way.extend(runs);
        }
    }
    for seen in nodes {
        let records: Vec<Record> = open_records(&seen.facts).collect();
        let Facts { open_jobs, open_records, under_way: known, .. } = &mut seen.facts;
        // a node that does not answer has no say in what is free, but nothing of its runs is removed
        let unsure = |run: &String| {
            let record = records.iter().find(|record| record.id == *run);
            record.and_then(launcher).is_none_or(|launcher| silent.contains(&launcher))
        };
        open_jobs.retain(|run| under_way.contains(run) || unsure(run));
        open_records.retain(|text| Record::parse(text).is_some_and(|record| under_way.contains(&record.id)));
        *known = open_jobs.iter().filter(|run| under_way.contains(*run)).cloned().collect();
    }
    Ok(())
}

/// What the running jobs have of these nodes, which have been settled.
pub(super) fn allocations(nodes: &[Observed]) -> Allocations {
    let of = |seen: &Observed| {
        let held = open_records(&seen.facts).filter_map(|record| allocation::allocation(&record, seen.name()));
        (seen.name().to_owned(), held.collect::<Vec<_>>())
    };
    nodes.iter().map(of).filter(|(_, allocations)| !allocations.is_empty()).collect()
}

/// Places the ranks of a job on the selected nodes: on whole ones in their order, or on what others leave of each. Where the master
/// launches the job and has none of its ranks, it comes first all the same.
///
/// # Errors
/// Too many ranks, GPUs that are not there, and [`Error::Allocated`] where others are in the way.
pub(super) fn placed(
    target: &Target,
    nodes: &[Observed],
    wanted: ResourceRequest,
    allocations: &Allocations,
) -> Result<Placement, Error> {
    let (drained, selected): (Vec<&Observed>, Vec<&Observed>) = nodes
        .iter()
        .filter(|n| target.selected.iter().any(|s| s == n.name()))
        .partition(|seen| seen.facts.drained.is_some());
    let slots = |seen: &Observed| network::slots(&seen.member.node, &seen.facts);
    let left = |seen: &Observed, allocations: &[Allocation], asked| {
        allocation::left(slots(seen), &network::chosen_gpus(&seen.member.node, &seen.facts), allocations, asked)
    };
    let of = |seen: &Observed| allocations.get(seen.name()).map_or(&[][..], Vec::as_slice);
    let all: Vec<(String, u32)> = selected
        .iter()
        .map(|seen| match wanted.per_node {
            None => Ok((seen.name().to_owned(), slots(seen))),
            Some(asked) => enough(seen, asked).map(|()| (seen.name().to_owned(), left(seen, &[], asked).slots)),
        })
        .collect::<Result<_, Error>>()?;
    let available = all.iter().fold(0u32, |sum, (_, slots)| sum.saturating_add(*slots));
    let ranks = wanted.ranks.map_or(available, |ranks| ranks.on(available));
    let mut placement = match super::request::placement(&all, ranks, wanted.map_by) {
        Err(error) if !drained.is_empty() => return Err(is_drained(&drained, &error.to_string())),
        _ if selected.is_empty() => return Err(is_drained(&drained, "no node is left")),
        placement => placement?,
    };
    let held = |concerned: &dyn Fn(&str) -> bool| {
        let concerned = selected.iter().filter(|seen| concerned(seen.name()));
        Error::Allocated(AllocationConflict {
            allocations: concerned
                .flat_map(|seen| of(seen).iter().map(|allocation| (seen.name().to_owned(), allocation.clone())))
                .collect(),
            free: selected.iter().filter(|seen| of(seen).is_empty()).map(|seen| seen.name().to_owned()).collect(),
        })
    };
    match wanted.per_node {
        None => {
            let used = |node: &str| placement.shares.iter().any(|share| share.node == node);
            if placement.shares.iter().any(|share| allocations.contains_key(&share.node)) {
                return Err(held(&used));
            }
        }
        Some(asked) => {
            let parts: BTreeMap<&str, Resources> =
                selected.iter().map(|seen| (seen.name(), left(seen, of(seen), asked))).collect();
            let free: Vec<(String, u32)> =
                selected.iter().map(|seen| (seen.name().to_owned(), parts[seen.name()].slots)).collect();
            placement = place(&free, ranks, wanted.map_by).map_err(|_| held(&|_| true))?;
            for share in &mut placement.shares {
                let part = parts.get(share.node.as_str()).cloned().unwrap_or_default();
                allocation::share_out(share, part);
            }
        }
    }
    let master = nodes.iter().find(|seen| seen.member.node.master);
    Ok(match master {
        Some(master) if placement.shares.len() > 1 && placement.shares[0].node != master.name() => {
            if master.facts.drained.is_some() {
                return Err(is_drained(&[master], "jobs on several nodes are launched on the master"));
            }
            placement.launched_on(master.name())
        }
        _ => placement,
    })
}

/// The error of a job that cannot do without drained nodes.
fn is_drained(nodes: &[&Observed], why: &str) -> Error {
    let why = why.lines().next().unwrap_or_default();
    let marks: Vec<String> = nodes.iter().filter_map(|seen| drained(seen)).collect();
    let names: Vec<&str> = nodes.iter().map(|seen| seen.name()).collect();
    Error::check(format!("{}: {why}", marks.join("; ")), format!("hvdctl drain --undo {}", names.join(" ")))
}

/// Says that a node is drained, if it is.
pub(super) fn drained(seen: &Observed) -> Option<String> {
    seen.facts.drained.as_ref().map(|mark| format!("{} is {mark}", seen.name()))
}

/// Checks that enough slots and GPUs are unallocated.
///
/// # Errors
/// Too many ranks, [`Error::Allocated`].
pub fn check_capacity(target: &Target, nodes: &[Observed], wanted: ResourceRequest) -> Result<(), Error> {
    placed(target, nodes, wanted, &allocations(nodes)).map(|_| ())
}

/// Whether a node has as many GPUs or slots as a job asks for of each.
fn enough(seen: &Observed, asked: u32) -> Result<(), Error> {
    let (node, facts) = (&seen.member.node, &seen.facts);
    let gpus = network::chosen_gpus(node, facts);
    let refuse = |words: String| {
        let hint = "lower --gpus-per-node, choose other nodes with --on, or see `gpus` and `slots` of this [[node]]";
        Err(Error::usage(format!("{}: --gpus-per-node {asked}: {words}", seen.name()), hint))
    };
    if gpus.is_empty() && network::gpu_request(node, facts) != GpuRequest::None {
        return refuse("its GPUs cannot be told apart, because nvidia-smi lists none".into());
    }
    let slots = network::slots(node, facts);
    let plural = |n: u32| if n == 1 { "" } else { "s" };
    match u32::try_from(gpus.len()) {
        Ok(there @ 1..) if there < asked => refuse(format!("it has {there} GPU{}", plural(there))),
        _ if slots < asked => refuse(format!("it has {slots} slot{}", plural(slots))),
        _ => Ok(()),
    }
}
