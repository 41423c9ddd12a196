//! What is checked before anything is changed, on every `up`, `train`, `run` and `verify`: it needs no question beyond
//! those that they ask anyway. Keys, a missing image, missing GPUs and foreign containers are refused by the commands.

use super::uniform::odd_ones;
use super::{Finding, NodeView, Severity};
use crate::inventory::Inventory;
use crate::node::facts::{Listener, Rank, Span};
use crate::node::network::{self, Endpoint};
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::Role;
use crate::text::nodeset;
use crate::text::units::human;
use std::collections::BTreeMap;

/// Seconds from which on a clock is warned of.
const CLOCK_WARNS: f64 = 2.0;
/// Seconds from which on a clock stops a job.
const CLOCK_FAILS: f64 = 10.0;
/// Free space below which no job can be started: its records have to fit.
const JOBS_FULL: u64 = 1 << 20;
/// Free space below which no project can be uploaded.
const PROJECTS_FULL: u64 = 2 << 20;
/// Free space below which there is a warning.
const DISK_LOW: u64 = 512 << 20;

/// The fast part.
pub fn before(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let mut found: Vec<Finding> = views.iter().filter_map(|view| port(inventory, view)).collect();
    found.extend(views.iter().filter_map(|view| unending(inventory, view)));
    found.extend(views.iter().flat_map(disks));
    if views.len() > 1 {
        found.extend(clocks(views));
        found.extend(host_names(views));
        found.extend(views.iter().filter_map(|view| interface(inventory, view)));
        found.extend(addresses(inventory, views));
        found.extend(images(inventory, views));
    }
    found
}

/// A node's place in the cluster, if it is known; if not, that is a finding of its own.
pub(super) fn place(inventory: &Inventory, view: &NodeView<'_>) -> Option<Endpoint> {
    network::place(inventory, view.node, view.facts).ok()
}

/// Another program on the port of the worker.
fn port(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let port = inventory.cluster.port;
    let mut listeners = view.facts.listeners.iter().filter(|_| view.worker);
    let taken = listeners.find_map(|listener| taken_by(inventory, view, listener))?;
    Some(Finding::error("port", view.name(), format!("port {port} is taken by {taken}")).explain(
        "the worker's sshd needs this port, and no other node could log in without it",
        format!("end that program, or set cluster.port to a free one (ss -ltnp 'sport = :{port}' on the node)"),
    ))
}

/// The program that listens, unless it leaves the worker's address free or is the worker's sshd.
fn taken_by(inventory: &Inventory, view: &NodeView<'_>, listener: &Listener) -> Option<String> {
    let cluster = &inventory.cluster;
    // a wildcard of IPv6 alone leaves the IPv4 address free
    if listener.address.is_some() && listener.address != place(inventory, view).map(|place| place.address) {
        return None;
    }
    let ours = |c: &ContainerSummary| c.belongs_to(&cluster.name) && c.is(Role::Worker);
    let container = view.containers().iter().find(|c| listener.container.as_ref() == Some(&c.id));
    match (container, listener.pid) {
        // one that has the worker's name is refused for that
        (Some(c), _) if ours(c) || c.name == cluster.worker => None,
        (Some(c), _) => Some(format!("the container {}", c.name)),
        (None, Some(pid)) => Some(format!("{} (process {pid} of {})", listener.program, listener.user)),
        // a process that cannot be seen is taken for that of our worker
        (None, None) if view.containers().iter().any(|c| ours(c) && c.state.is_up()) => None,
        (None, None) => Some("another program".to_owned()),
    }
}

/// Programs that wait in the kernel and hold what the next job needs.
fn unending(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let ours = view.facts.unending().filter(|rank| rank.cluster.as_ref() == Some(&inventory.cluster.name));
    let process = |rank: &Rank| format!("process {} of the job {}", rank.pid, rank.job);
    let left: Vec<String> = ours.map(process).collect();
    (!left.is_empty()).then(|| {
        Finding::warning("killed", view.name(), format!("killed and still there: {}", left.join(", "))).explain(
            "it waits in the kernel for a disk, a file system of the network or a driver, and may hold memory of a GPU",
            "see to what it waits for (ps -o pid,stat,wchan:30,args -p PID on the node), or restart the node",
        )
    })
}

/// Room for projects, and for the records and the output of jobs.
fn disks(view: &NodeView<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for disk in &view.facts.disks {
        let (field, full, why, cure) = match disk.what.as_str() {
            "jobs" => (
                "jobs_dir",
                JOBS_FULL,
                "what ranks print is lost where it does not fit",
                "hvdctl jobs prune, or make room on the node",
            ),
            _ => (
                "projects_dir",
                PROJECTS_FULL,
                "what is uploaded, and what ranks write, does not fit",
                "make room on the node",
            ),
        };
        if disk.free < DISK_LOW {
            let severity = if disk.free < full { Severity::Error } else { Severity::Warning };
            let seen = format!("cluster.{field} has {} left in {}", human(disk.free), disk.path);
            found.push(Finding::new(severity, "disk", view.name(), seen).explain(why, cure));
        }
    }
    found
}

/// Clocks against the middle one of all. Of an even number none is in the middle, and ours joins them: with two nodes it
/// shows which is wrong.
fn clocks(views: &[NodeView<'_>]) -> Vec<Finding> {
    let known: Vec<(&NodeView<'_>, Span)> = views.iter().filter_map(|view| Some((view, view.facts.ahead?))).collect();
    let mut middles: Vec<f64> = known.iter().map(|(_, span)| f64::midpoint(span.low, span.high)).collect();
    if middles.len().is_multiple_of(2) {
        middles.push(0.0);
    }
    middles.sort_by(f64::total_cmp);
    let reference = middles[middles.len() / 2];
    let finding = |(view, span): &(&NodeView<'_>, Span)| {
        let (low, high) = (span.low - reference, span.high - reference);
        // only what is certain counts: a slow answer is no wrong clock
        let (off, word) = if low > 0.0 { (low, "ahead of") } else { (-high, "behind") };
        let severity = if off < CLOCK_FAILS { Severity::Warning } else { Severity::Error };
        (off >= CLOCK_WARNS).then(|| {
            let seen = format!("its clock is {off:.0} s {word} the others'");
            Finding::new(severity, "clock", view.name(), seen).explain(
                "Horovod's launcher gives its ranks an absolute time: where clocks differ, a start times out at once",
                "set the clock: sudo timedatectl set-ntp true, or sudo chronyc makestep, on the node",
            )
        })
    };
    known.iter().filter_map(finding).collect()
}

/// The values that several nodes have, with those nodes.
fn shared<V: PartialEq>(values: impl Iterator<Item = (V, String)>) -> impl Iterator<Item = (V, Vec<String>)> {
    nodeset::alike(values).into_iter().filter(|(_, nodes)| nodes.len() > 1)
}

fn host_names(views: &[NodeView<'_>]) -> Vec<Finding> {
    let named = views.iter().filter(|view| !view.facts.hostname.is_empty());
    let finding = |(name, nodes)| {
        Finding::error("hostname", "", format!("their host name is {name} on each of them")).about(nodes).explain(
            "Horovod, MPI and NCCL tell machines apart by their host names, and would take these for one",
            "sudo hostnamectl set-hostname NAME on the node, then hvdctl down and up for its worker",
        )
    };
    shared(named.map(|view| (&view.facts.hostname, view.name().to_owned()))).map(finding).collect()
}

fn addresses(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let place = |view: &NodeView<'_>| {
        let place = place(inventory, view).filter(|place| !is_virtual(&place.interface))?;
        Some((place.address, view.name().to_owned()))
    };
    let finding = |(address, nodes)| {
        Finding::error("address", "", format!("their address in the cluster is {address} for each of them"))
            .about(nodes)
            .explain(
                "they are one machine under two names, or their packets reach only one of them",
                "take one of them out of the inventory, or set `address` or `interface` of each [[node]]",
            )
    };
    shared(views.iter().filter_map(place)).map(finding).collect()
}

/// Returns whether an interface leads to no other machine, whatever its address.
pub(super) fn is_virtual(interface: &str) -> bool {
    let bridge_of_docker = |id: &str| id.len() == 12 && id.chars().all(|c| c.is_ascii_hexdigit());
    matches!(interface, "lo" | "docker0" | "docker_gwbridge" | "podman0" | "cni0" | "lxcbr0" | "lxdbr0")
        || interface.starts_with("virbr")
        || interface.starts_with("veth")
        || interface.strip_prefix("br-").is_some_and(bridge_of_docker)
}

fn interface(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let Endpoint { address, interface } = place(inventory, view).filter(|place| is_virtual(&place.interface))?;
    let seen = format!("its place in the cluster is {address} on {interface}, which leads to no other machine");
    let others = view.facts.addresses.iter().filter(|(name, address)| address.is_ipv4() && !is_virtual(name));
    let others: Vec<String> = others.map(|(name, address)| format!("{name} {address}")).collect();
    let others = if others.is_empty() { "none that would do".to_owned() } else { others.join(", ") };
    Some(Finding::error("interface", view.name(), seen).explain(
        "Horovod binds to it and waits for the others without a word",
        format!("set `interface` or `address` of this [[node]] (there: {others})"),
    ))
}

/// One image everywhere, whatever its id: engines that keep images in another way give the same one another.
fn images(inventory: &Inventory, views: &[NodeView<'_>]) -> Option<Finding> {
    let mut ids = BTreeMap::new();
    let mut images = Vec::new();
    for view in views {
        if let Some((content, id)) = view.engine.and_then(|engine| engine.image_content.zip(engine.image_id)) {
            images.push((view.node, ids.entry(content).or_insert_with(|| short(id)).clone()));
        }
    }
    let (odd, text) = odd_ones(images)?;
    let image = &inventory.cluster.image;
    Some(Finding::error("image", "", format!("{image} is another image: {text}")).about(odd).explain(
        "ranks of different images exchange what the others do not understand, and hang or end in confusion",
        format!("load the same one: docker save {image} | ssh NODE sudo docker load, then hvdctl up"),
    ))
}

/// The beginning of an image's id.
fn short(id: &str) -> String {
    id.trim_start_matches("sha256:").chars().take(12).collect()
}
