//! What is looked at before anything is changed, on every `up`, `train`, `run` and `verify`: it needs no question beyond
//! those that they ask anyway. Keys, a missing image, missing GPUs and foreign containers are their own to refuse.

use super::uniform::Groups;
use super::{Finding, NodeView, Severity};
use crate::inventory::Inventory;
use crate::node::facts::Rank;
use crate::node::network::{self, Endpoint};
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::{LABEL_CLUSTER, Role};
use crate::text::units::human;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// From here on a clock is told.
const CLOCK_WARNS: f64 = 2.0;
/// Free space below which no job can be started: its records have to fit.
const JOBS_FULL: u64 = 1 << 20;
/// Free space below which no project can be uploaded.
const PROJECTS_FULL: u64 = 2 << 20;
/// Free space below which there is a warning.
const DISK_LOW: u64 = 512 << 20;
/// From here on a clock stops a job.
const CLOCK_FAILS: f64 = 10.0;

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

/// Where a node has its place; none where that is not known, which is told elsewhere.
pub(super) fn place(inventory: &Inventory, view: &NodeView<'_>) -> Option<Endpoint> {
    network::place(inventory, view.node, view.facts).ok()
}

/// Somebody else on the port of the worker.
fn port(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let cluster = &inventory.cluster;
    if !view.worker {
        return None;
    }
    let address = place(inventory, view).map(|place| place.address);
    let containers = view.engine.map_or(&[][..], |engine| engine.containers);
    let ours = |c: &ContainerSummary| c.belongs_to(&cluster.name) && c.is(Role::Worker);
    let taken = view.facts.listeners.iter().find_map(|listener| {
        // a wildcard of IPv6 alone leaves the IPv4 address free
        if listener.address.is_some() && listener.address != address {
            return None;
        }
        let inside = listener.container.as_ref().and_then(|id| containers.iter().find(|c| c.id == *id));
        // one that has the worker's name is refused for that
        if inside.is_some_and(|c| ours(c) || c.name == cluster.worker) {
            return None;
        }
        let process = match listener.pid {
            Some(pid) => format!("{} (process {pid} of {})", listener.program, listener.user),
            // a worker of ours whose process cannot be seen is no stranger
            None if containers.iter().any(|c| ours(c) && c.state.is_up()) => return None,
            None => "another program".to_owned(),
        };
        Some(match inside {
            Some(c) => match c.label(LABEL_CLUSTER) {
                Some(other) if other != cluster.name => format!("the container {} of the cluster {other}", c.name),
                _ => format!("the container {}", c.name),
            },
            None => process,
        })
    })?;
    let seen = format!("port {} is taken by {taken}", cluster.port);
    Some(
        Finding::error("port", view.name(), seen)
            .why("the worker's sshd needs this port, and no other node could log in without it")
            .cure(format!(
                "end that program, or set cluster.port to a free one (ss -ltnp 'sport = :{}' on the node)",
                cluster.port
            )),
    )
}

/// Programs that wait in the kernel and hold what the next job needs.
fn unending(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let ours = |rank: &&Rank| rank.cluster.as_ref() == Some(&inventory.cluster.name);
    let left: Vec<String> = view
        .facts
        .unending()
        .filter(ours)
        .map(|rank| format!("process {} of the job {}", rank.pid, rank.job))
        .collect();
    let seen = format!("killed and still there: {}", left.join(", "));
    (!left.is_empty()).then(|| {
        Finding::warning("killed", view.name(), seen)
            .why("it waits in the kernel for a disk, a file system of the network or a driver, and may hold memory of a GPU")
            .cure("see to what it waits for (ps -o pid,stat,wchan:30,args -p PID on the node), or restart the node")
    })
}

/// Room for projects, and for the records and the output of jobs.
fn disks(view: &NodeView<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
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
        let seen = format!("cluster.{field} has {} left in {}", human(disk.free), disk.path);
        let finding = match disk.free {
            free if free < full => Finding::error("disk", view.name(), seen),
            ..DISK_LOW => Finding::warning("disk", view.name(), seen),
            _ => continue,
        };
        found.push(finding.why(why).cure(cure));
    }
    found
}

/// Clocks against the middle one of all. Of an even number none is in the middle, and ours joins them: with two nodes it
/// tells which is wrong.
fn clocks(views: &[NodeView<'_>]) -> Vec<Finding> {
    let known: Vec<_> = views.iter().filter_map(|view| Some((view, view.facts.ahead?))).collect();
    let mut middles: Vec<f64> = known.iter().map(|(_, span)| f64::midpoint(span.low, span.high)).collect();
    if middles.len().is_multiple_of(2) {
        middles.push(0.0);
    }
    middles.sort_by(f64::total_cmp);
    let reference = middles[middles.len() / 2];
    let finding = |(view, span): &(&NodeView<'_>, crate::node::facts::Span)| {
        let (low, high) = (span.low - reference, span.high - reference);
        // what is certain counts: a slow answer is no wrong clock
        let (off, word) = if low > 0.0 { (low, "ahead of") } else { (-high, "behind") };
        if off < CLOCK_WARNS {
            return None;
        }
        let severity = if off < CLOCK_FAILS { Severity::Warning } else { Severity::Error };
        let seen = format!("its clock is {off:.0} s {word} the others'");
        Some(
            Finding::new(severity, "clock", view.name(), seen)
                .why("Horovod's launcher gives its ranks an absolute time, and a start \"timed out\" at once where clocks differ")
                .cure("set the clock: sudo timedatectl set-ntp true, or sudo chronyc makestep, on the node"),
        )
    };
    known.iter().filter_map(finding).collect()
}

fn host_names(views: &[NodeView<'_>]) -> Vec<Finding> {
    let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for view in views.iter().filter(|view| !view.facts.hostname.is_empty()) {
        by_name.entry(&view.facts.hostname).or_default().push(view.name().to_owned());
    }
    let twice = by_name.into_iter().filter(|(_, nodes)| nodes.len() > 1);
    twice
        .map(|(name, nodes)| {
            Finding::error("hostname", "", format!("their host name is {name} on each of them"))
                .about(nodes)
                .why("Horovod, MPI and NCCL tell machines apart by their host names, and would take these for one")
                .cure("sudo hostnamectl set-hostname NAME on the node, then hvdctl down and up for its worker")
        })
        .collect()
}

/// Whether an interface leads to no other machine, whatever its address.
pub(super) fn is_virtual(interface: &str) -> bool {
    let bridge_of_docker = |name: &str| {
        name.strip_prefix("br-").is_some_and(|id| id.len() == 12 && id.chars().all(|c| c.is_ascii_hexdigit()))
    };
    matches!(interface, "lo" | "docker0" | "docker_gwbridge" | "podman0" | "cni0" | "lxcbr0" | "lxdbr0")
        || interface.starts_with("virbr")
        || interface.starts_with("veth")
        || bridge_of_docker(interface)
}

fn interface(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let place = place(inventory, view).filter(|place| is_virtual(&place.interface))?;
    let (address, interface) = (place.address, place.interface);
    let seen = format!("its place in the cluster is {address} on {interface}, which leads to no other machine");
    Some(
        Finding::error("interface", view.name(), seen)
            .why("Horovod binds to it and waits for the others without a word")
            .cure(format!("set `interface` or `address` of this [[node]] (there: {})", others(view))),
    )
}

fn others(view: &NodeView<'_>) -> String {
    let good = view.facts.addresses.iter().filter(|(name, address)| address.is_ipv4() && !is_virtual(name));
    let list: Vec<String> = good.map(|(name, address)| format!("{name} {address}")).collect();
    if list.is_empty() { "none that would do".to_owned() } else { list.join(", ") }
}

fn addresses(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let mut by_address: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
    for view in views {
        let place = place(inventory, view).filter(|place| !is_virtual(&place.interface));
        if let Some(place) = place {
            by_address.entry(place.address).or_default().push(view.name().to_owned());
        }
    }
    let twice = by_address.into_iter().filter(|(_, nodes)| nodes.len() > 1);
    twice
        .map(|(address, nodes)| {
            Finding::error("address", "", format!("their address in the cluster is {address} for each of them"))
                .about(nodes)
                .why("they are one machine under two names, or their packets reach only one of them")
                .cure("take one of them out of the inventory, or set `address` or `interface` of each [[node]]")
        })
        .collect()
}

/// One image everywhere, whatever its id: engines that keep images in another way give the same one another.
fn images(inventory: &Inventory, views: &[NodeView<'_>]) -> Option<Finding> {
    let held = views.iter().filter_map(|view| {
        let engine = view.engine?;
        Some((view.node, engine.image_content?, engine.image_id?))
    });
    let (mut values, mut ids) = (Vec::new(), BTreeMap::new());
    for (node, content, id) in held {
        values.push((node, content.to_owned()));
        ids.entry(content.to_owned()).or_insert_with(|| short(id));
    }
    let groups = Groups::of(&values)?;
    let image = &inventory.cluster.image;
    let seen = format!("{image} is another image: {}", groups.told(|content| ids[content].clone()));
    Some(
        Finding::error("image", "", seen)
            .about(groups.odd())
            .why("ranks of different images exchange what the others do not understand, and hang or end in confusion")
            .cure(format!("load the same one: docker save {image} | ssh NODE sudo docker load, then hvdctl up")),
    )
}

/// The beginning of an image's id.
fn short(id: &str) -> String {
    let id = id.strip_prefix("sha256:").unwrap_or(id);
    id.get(..12).unwrap_or(id).to_owned()
}
