//! Who takes part in a run, and what would make it fail before anything is shipped.

use super::Seat;
use crate::checks::preflight;
use crate::cluster::nodes;
use crate::cluster::nodes::{Observed, Target};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::inventory::{Cluster, Controller};
use crate::keys::push;
use crate::launch::placement::Placement;
use crate::node::network;
use crate::runtime::container::ContainerSummary;
use crate::text::nodeset;
use crate::worker::apply;
use crate::worker::plan::Workspace;
use std::net::IpAddr;

/// Splits the nodes into those with ranks, each with its place on the network, and the others.
pub(super) fn seats(
    target: &Target,
    placement: &Placement,
    nodes: Vec<Observed>,
    controller: Controller,
) -> Result<(Vec<Seat>, Vec<Observed>), Error> {
    let inventory = &target.inventory;
    let alone = placement.shares.len() == 1;
    let (mut seats, mut others) = (Vec::new(), Vec::new());
    let mut failed = Vec::new();
    for seen in nodes {
        let Some(share) = placement.shares.iter().find(|s| s.node == seen.name()) else {
            // the master may have been asked for the case that it has to launch
            others.extend(Some(seen).filter(|seen| target.selected.iter().any(|selected| selected == seen.name())));
            continue;
        };
        let place = if alone { Ok(network::alone()) } else { nodes::place(inventory, &seen) };
        let place = place.and_then(|e| match e.address {
            IpAddr::V6(_) => Err(nodes::no_place(seen.name(), network::no_ipv6(e.address))),
            IpAddr::V4(_) => Ok(e),
        });
        match place {
            Ok(endpoint) => seats.push(Seat {
                seen,
                endpoint,
                ranks: share.ranks,
                launches: placement.shares[0].node == share.node,
                gpus: share.gpus.clone(),
            }),
            Err(error) => failed.push(error),
        }
    }
    if !failed.is_empty() {
        return Err(Error::Nodes { failed, done: 0 });
    }
    if let Some(first) = seats.first().filter(|first| !alone && !first.seen.member.node.master) {
        return Err(Error::usage(
            format!(
                "the master is not among the selected nodes, and {} cannot log in to the others",
                first.seen.name()
            ),
            "add the master to --on, or set `master = true` for another [[node]] and push the keys",
        ));
    }
    let names: std::collections::BTreeSet<&str> = seats.iter().map(|s| s.endpoint.interface.as_str()).collect();
    if controller == Controller::Mpi && names.len() > 1 {
        let list: Vec<String> = seats.iter().map(|s| format!("{}: {}", s.seen.name(), s.endpoint.interface)).collect();
        return Err(Error::check(
            format!("the nodes' interfaces have different names ({}), and MPI takes one for all", list.join(", ")),
            format!(
                "use --controller gloo, which takes each node's own; or give {} other interfaces",
                inventory.cluster.name
            ),
        ));
    }
    Ok((seats, others))
}

/// What would make the run fail, before anything is shipped.
pub(super) fn check(target: &Target, seats: &[Seat], events: &Events) -> Result<(), Error> {
    let cluster = target.cluster();
    let mut failed = Vec::new();
    for seat in seats {
        let seen = &seat.seen;
        // the launcher's ranks run in hmaster, so its worker does not matter
        let fault = if seat.launches {
            master_is_ours(cluster, seen).and_then(|()| match network::missing_gpus(&seen.member.node, &seen.facts) {
                Some(words) if seat.ranks > 0 => Err(NodeError::failed(seen.name(), "find the promised GPUs", words)
                    .hint("run nvidia-smi on the node, or set `gpus` to what it has")),
                _ => seen.image_id(cluster).map(|_| ()),
            })
        } else {
            apply::desired(&target.inventory, seen)
                .and_then(|worker| apply::plan(cluster, seen, &worker, &Workspace::Any))
                .map(|_| ())
        };
        if let Err(error) = fault {
            events.send(Event::Failed(error.clone()));
            failed.push(error);
        }
    }
    let taking_part: Vec<_> = seats.iter().map(|seat| (&seat.seen, !seat.launches)).collect();
    failed.extend(preflight::stops(&preflight::before(&target.inventory, &taking_part), events));
    if !failed.is_empty() {
        return Err(Error::Nodes { failed, done: 0 });
    }
    // a run on one node logs in nowhere
    let nodes: Vec<_> = seats.iter().map(|seat| (&seat.seen.member.node, &seat.seen.facts)).collect();
    let lacking = if seats.len() > 1 { push::lacking(&target.inventory, &nodes) } else { Vec::new() };
    if !lacking.is_empty() {
        return Err(Error::check(
            format!("the cluster's keys are missing or not as they should be on {}", nodeset::fold(&lacking)),
            "hvdctl keys push",
        ));
    }
    Ok(())
}

fn master_is_ours(cluster: &Cluster, seen: &Observed) -> Result<(), NodeError> {
    let foreign = |c: &&ContainerSummary| c.name == cluster.master && !c.belongs_to(&cluster.name);
    match seen.docker.containers.iter().find(foreign) {
        None => Ok(()),
        Some(_) => Err(NodeError::failed(
            seen.name(),
            &format!("start {}", cluster.master),
            "a container of that name is there that is not this cluster's",
        )
        .hint("remove or rename it, or set cluster.master to another name")),
    }
}
