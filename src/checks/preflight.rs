//! The rules that `up`, `train`, `run` and `verify` apply before they change anything. They use only what these
//! commands observe anyway. Keys, a missing image, missing GPUs and foreign containers are refused by the commands
//! themselves.

use super::Severity::{Error, Note, Warning};
use super::{Check, Finding, NodeView, engines, fold, python};
use crate::cluster::observation::ObservedNode;
use crate::error::NodeError;
use crate::inventory::{Cluster, Gpus, Inventory, Node};
use crate::node::differing::differing;
use crate::node::facts::{Facts, Span};
use crate::node::gpus::GpuRequest;
use crate::node::interfaces::Listener;
use crate::node::jobs::Rank;
use crate::node::names::is_localhost;
use crate::node::network::{self, Endpoint, is_virtual};
use crate::node::permissions::{ExposedPath, WHY};
use crate::node::storage::{Inodes, SharedMemory};
use crate::runtime::Image;
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::Role;
use crate::text::nodeset;
use crate::text::units::{count, human};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The difference of a clock in seconds that is a warning.
const CLOCK_WARNS: f64 = 2.0;
/// The difference of a clock in seconds that stops a job.
const CLOCK_FAILS: f64 = 10.0;
/// Free bytes below which no job can start, because its records do not fit.
const JOBS_FULL: u64 = 1 << 20;
/// Free bytes below which no project can be uploaded.
const PROJECTS_FULL: u64 = 2 << 20;
/// Free bytes below which there is a warning.
const DISK_LOW: u64 = 512 << 20;
/// Free inodes below which no job can start, because its records or any project do not fit.
const INODES_FULL: u64 = 50;
/// Free inodes below which there is a warning.
pub(super) const INODES_LOW: u64 = 10_000;
/// The consequence of having no free inodes.
pub(super) const NO_INODES: &str = "a new file fails with \"No space left on device\" although df shows free space";

/// The findings of the rules.
#[derive(Debug, Default)]
pub struct Preflight {
    /// The warnings.
    pub warnings: Vec<Finding>,
    /// The errors, as those of their nodes.
    pub failed: Vec<NodeError>,
}

/// Applies the rules to observed nodes, each with whether its worker is needed.
pub fn check<'a>(inventory: &Inventory, nodes: &[(&'a ObservedNode, bool)]) -> Preflight {
    let view = |(node, worker): &(&'a ObservedNode, bool)| NodeView {
        worker: *worker,
        open: node.open.clone(),
        ..NodeView::new(inventory, &node.member, &node.facts, Some(&node.runtime))
    };
    let views: Vec<NodeView<'_>> = nodes.iter().map(view).collect();
    let mut found = Preflight::default();
    for finding in fold(rules(inventory, &views)) {
        match finding.severity {
            Error => found.failed.extend(finding.nodes.iter().map(|node| {
                let message = format!("{}\n{}", finding.message, finding.why);
                NodeError::failed(node, "use the node", message).hint(&finding.hint)
            })),
            Warning => found.warnings.push(finding),
            Note => {}
        }
    }
    found
}

/// Applies the rules.
pub(super) fn rules(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let mut found: Vec<Finding> = views.iter().filter_map(|view| port(inventory, view)).collect();
    found.extend(views.iter().filter_map(|view| unending(inventory, view)));
    found.extend(views.iter().flat_map(|view| permissions(inventory, view)));
    found.extend(views.iter().flat_map(engines::variables));
    found.extend(views.iter().flat_map(engines::limits));
    found.extend(views.iter().flat_map(engines::denied));
    found.extend(views.iter().flat_map(disks));
    found.extend(views.iter().filter_map(|view| accelerators(view.node, view.facts)));
    found.extend(views.iter().filter_map(|view| left_memory(&inventory.cluster, view.node, view.facts)));
    found.extend(views.iter().filter_map(cdi));
    found.extend(views.iter().flat_map(inodes));
    found.extend(data(views));
    if views.len() > 1 {
        found.extend(views.iter().flat_map(own_directories));
        found.extend(clocks(views));
        found.extend(views.iter().filter_map(no_host_name));
        found.extend(host_names(views));
        found.extend(views.iter().filter_map(|view| interface(view)));
        found.extend(views.iter().filter_map(|view| second_address(view)));
        found.extend(addresses(views));
        found.extend(images(inventory, views));
        found.extend(python::differs(inventory, views));
    }
    found
}

/// Another program on the port of the worker.
fn port(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let port = inventory.cluster.port;
    let mut listeners = view.facts.network.listeners.iter().filter(|_| view.worker);
    let taken = listeners.find_map(|listener| taken_by(inventory, view, listener))?;
    Some(view.error(Check::Port, format!("port {port} is in use by {taken}")).explain(
        "the worker's sshd needs this port; without it no other node can log in",
        format!("end that program (on the node: `ss -ltnp 'sport = :{port}'`), or set cluster.port to a free port"),
    ))
}

/// The program that listens, unless it leaves the worker's address free or is the worker's sshd.
fn taken_by(inventory: &Inventory, view: &NodeView<'_>, listener: &Listener) -> Option<String> {
    let cluster = &inventory.cluster;
    // a listener on all IPv6 addresses only leaves the IPv4 address free
    if listener.address.is_some() && listener.address != view.place().map(|place| place.address) {
        return None;
    }
    let ours = |c: &ContainerSummary| c.belongs_to(&cluster.name) && c.is(Role::Worker);
    let container = view.containers.iter().find(|c| listener.container.as_ref() == Some(&c.id));
    match (container, listener.pid) {
        // one that has the worker's name is refused for that
        (Some(c), _) if ours(c) || c.name == cluster.worker => None,
        (Some(c), _) => Some(format!("the container {}", c.name)),
        (None, Some(pid)) => Some(format!("{} (process {pid} of {})", listener.program, listener.user)),
        // a process that cannot be seen is taken for that of our worker
        (None, None) if view.containers.iter().any(|c| ours(c) && c.state.is_up()) => None,
        (None, None) => Some("another program".to_owned()),
    }
}

/// Returns findings on directories in which root works: those that other users can change, and those that hvdctl
/// cannot.
fn permissions(inventory: &Inventory, view: &NodeView<'_>) -> Vec<Finding> {
    let finding = |exposed: &ExposedPath| {
        // without data, root does nothing in their directory
        let is_used = !view.facts.storage.pushed.is_empty() || exposed.leads_to(&["ssh", "jobs", "projects"]);
        let message = exposed.to_string();
        let finding = match is_used {
            true => view.error(Check::Permissions, message),
            false => view.warning(Check::Permissions, message),
        };
        finding.explain(WHY, exposed.hint(&inventory.cluster))
    };
    let permissions = &view.facts.permissions;
    let home = permissions.home.as_deref();
    let closed = permissions.closed.iter().filter(|closed| closed.leads_to(&["ssh", "jobs", "projects"]));
    let closed = closed.map(|closed| {
        let hint = closed.hint(&inventory.cluster, home);
        view.error(Check::Permissions, closed.to_string()).explain("keys, jobs and projects are written there", hint)
    });
    permissions.exposed.iter().map(finding).chain(closed).collect()
}

/// Finds killed processes that wait in the kernel and may keep memory or GPUs that the next job needs.
fn unending(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let ours = view.unending().filter(|rank| rank.cluster.as_ref() == Some(&inventory.cluster.name));
    let process = |rank: &Rank| format!("process {} of the job {}", rank.pid, rank.job);
    let left: Vec<String> = ours.map(process).collect();
    (!left.is_empty()).then(|| {
        view.warning(Check::Killed, format!("still there after SIGKILL: {}", left.join(", "))).explain(
            "the process waits in the kernel for a disk, a network file system or a driver, and may hold GPU memory \
             until that responds",
            "find out what the process waits for (on the node: `ps -o pid,stat,wchan:30,args -p PID`), or restart the node",
        )
    })
}

/// Directories that must be each node's own, but are other nodes' too.
fn own_directories(view: &NodeView<'_>) -> Vec<Finding> {
    let why = "every node keeps its own files there, under the same names, and would delete or replace those of the \
               others";
    let unknown = view.facts.storage.shared_unknown.iter().map(|cause| {
        let message = format!("cannot find out whether the cluster's directories are local to the node: {cause}");
        view.error(Check::Shared, message).explain(why, "fix that, or set other directories in the inventory")
    });
    // jobs only read data, and `data push` refuses to write them twice
    let found = view.facts.storage.shared.iter().filter(|shared| shared.what != "data").map(|shared| {
        let mut nodes = shared.with.clone();
        nodes.push(view.name().to_owned());
        nodes.sort_unstable();
        let (setting, nodes) = (format!("cluster.{}_dir", shared.what), nodeset::fold(&nodes));
        let message = format!("{setting} must be local to each node, but {} is one directory on {nodes}", shared.path);
        let hint = format!("set {setting} to a directory on a disk of each node, not on a shared file system");
        view.error(Check::Shared, message).explain(why, hint)
    });
    unknown.chain(found).collect()
}

/// Pushed data that are missing, incomplete or others on some nodes.
fn data(views: &[NodeView<'_>]) -> Vec<Finding> {
    let names: BTreeSet<&String> = views.iter().flat_map(|view| view.facts.storage.pushed.keys()).collect();
    let different = names.into_iter().filter_map(|name| {
        let state = |view: &NodeView<'_>| match view.facts.storage.pushed.get(name).map(|data| data.hash.as_str()) {
            None => "missing".to_owned(),
            Some("-") => "incomplete".to_owned(),
            Some(hash) => hash.chars().take(12).collect(),
        };
        let states: Vec<_> = views.iter().map(|view| (view.node, state(view))).collect();
        let finding = match &states[..] {
            [(_, first), ..] if first == "incomplete" && states.iter().all(|(_, state)| state == first) => {
                let nodes = views.iter().map(|view| view.name().to_owned()).collect();
                Some(Finding::of_nodes(Warning, Check::Data, nodes, format!("the data {name} are incomplete")))
            }
            _ => differing(Warning, Check::Data, &format!("the data {name} differ"), states),
        };
        finding.map(|finding| {
            let hint =
                format!("push them again: `hvdctl data push DIR --as {name}`; or remove them: `hvdctl data rm {name}`");
            finding.explain("ranks read other files, or none", hint)
        })
    });
    different.collect()
}

/// GPUs that the CDI files of a node with Podman do not describe.
fn cdi(view: &NodeView<'_>) -> Option<Finding> {
    let (node, facts) = (view.node, view.facts);
    if network::gpu_failure(node, facts).is_some() || network::missing_gpus(node, facts).is_some() {
        return None;
    }
    let (message, hint) = facts.cdi.as_ref()?.fault(&network::gpu_request(node, facts), &facts.gpus)?;
    Some(view.error(Check::Toolkit, message).explain("no container with these GPUs can be started", hint))
}

/// The share of a worker's `/dev/shm` that may be in use while no job runs.
const IDLE_SHM: u64 = 8;

/// Returns a finding on memory that nothing gives back: files that ranks of earlier jobs have left in the worker's
/// `/dev/shm`. hvdctl removes those of libraries when a job ends (`shared_memory.py`).
pub fn left_memory(cluster: &Cluster, node: &Node, facts: &Facts) -> Option<Finding> {
    let SharedMemory { size, used } = facts.storage.shared_memory?;
    if !facts.jobs.ranks.is_empty() || used.saturating_mul(IDLE_SHM) < size || used == 0 {
        return None;
    }
    let (used, size) = (human(used), human(size));
    let message = format!("{used} of {size} in its worker's /dev/shm are in use, and no job has ranks there");
    Some(Finding::new(Warning, Check::Shm, &node.name, message).explain(
        "ranks that were killed, or programs that keep data there, have left files, which take memory; where too little \
         is left, NCCL and data loaders fail with \"Bus error\"",
        format!(
            "list them with `docker exec {} ls -l /dev/shm` on the node (or `podman exec`) and remove those that are not \
             needed; a new worker has none of them: `hvdctl down`, then `hvdctl up`",
            cluster.worker
        ),
    ))
}

/// Returns a finding on accelerators that are not NVIDIA's or are not listed: without the inventory's help the node's
/// slots are its cores.
pub fn accelerators(node: &Node, facts: &Facts) -> Option<Finding> {
    let warning = |message: String| Finding::new(Warning, Check::Accelerators, &node.name, message);
    if node.gpus != Gpus::Auto || !facts.gpus.is_empty() || network::gpu_failure(node, facts).is_some() {
        return None;
    }
    let slots = network::slots(node, facts);
    let of_cores = format!("its slots are its {}", count(slots as usize, "core"));
    let Some(found) = facts.accelerators.first() else {
        let is_unlisted = network::gpu_request(node, facts) == GpuRequest::Unstated && node.slots.is_none();
        return is_unlisted.then(|| {
            warning("it has NVIDIA devices, but no nvidia-smi that lists its GPUs".to_owned()).explain(
                of_cores,
                "set `slots` of this [[node]] to the number of its GPUs; `gpus = \"all\"` gives them to its \
                 containers; `gpus = 0` if jobs are to use the CPU",
            )
        });
    };
    let devices = found.devices();
    let is_given = |device: &String| {
        let inside = format!("{device}/");
        node.container.devices.iter().any(|given| given.source == *device || given.source.starts_with(&inside))
    };
    let (has_devices, has_slots) = (devices.iter().all(is_given), node.slots.is_some());
    let (name, list) = (count(found.count as usize, found.name()), quoted(&devices));
    let (of_slots, number) = (format!("slots = {}", found.count), found.count);
    let line = if has_slots { String::new() } else { format!(", {of_slots}") };
    match (has_devices, has_slots) {
        (true, true) => None,
        (true, false) if slots == number => None,
        (true, false) => Some(warning(format!("it has {name}, but no `slots`")).explain(
            format!("{of_cores}, and ranks share whichever there are fewer of"),
            format!("set `{of_slots}` in this [[node]]"),
        )),
        (false, _) => Some(warning(format!("it has {name}, which its containers cannot use")).explain(
            if has_slots {
                "every rank computes on the CPU".to_owned()
            } else {
                format!(
                    "{of_cores}, and every rank \
                computes on the CPU"
                )
            },
            format!(
                "set `devices = [{list}]{line}` in this [[node]], with an image that has {}; `gpus = 0` if jobs are to \
                 use the CPU",
                found.software()
            ),
        )),
    }
}

/// Formats strings as a list of TOML has them.
fn quoted(list: &[String]) -> String {
    list.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(", ")
}

/// Room for projects, and for the records and the output of jobs.
fn disks(view: &NodeView<'_>) -> impl Iterator<Item = Finding> {
    view.facts.storage.disks.iter().filter(|disk| disk.free < DISK_LOW).map(|disk| {
        let (full, why, hint) = if disk.what == "jobs" {
            let hint = "`hvdctl jobs prune`, or free space on the node";
            (JOBS_FULL, "rank output that does not fit is lost", hint)
        } else {
            let why = "projects and the files that ranks write may not fit";
            (PROJECTS_FULL, why, "free space on the node")
        };
        let severity = if disk.free < full { Error } else { Warning };
        let message = format!("cluster.{}_dir has {} left in {}", disk.what, human(disk.free), disk.path);
        Finding::new(severity, Check::Disk, view.name(), message).explain(why, hint)
    })
}

/// Room for the files of projects, data, and jobs.
fn inodes(view: &NodeView<'_>) -> impl Iterator<Item = Finding> {
    view.facts.storage.inodes.iter().filter(|inodes| inodes.free < INODES_LOW).map(|Inodes { what, free, path }| {
        // what is pushed is counted before, and jobs only read data
        let severity = if *free < INODES_FULL && what != "data" { Error } else { Warning };
        let message = format!("cluster.{what}_dir has room for {free} more files in {path}");
        let hint = format!("remove files on the node (df -i), or set cluster.{what}_dir to another disk");
        Finding::new(severity, Check::Disk, view.name(), message).explain(NO_INODES, hint)
    })
}

/// Compares clocks with the median. If their number is even ours is added: of two nodes it shows which is wrong.
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
        // only what is certain counts: a slow answer does not make a clock wrong
        let (off, word) = if low > 0.0 { (low, "ahead of") } else { (-high, "behind") };
        let severity = if off < CLOCK_FAILS { Warning } else { Error };
        (off >= CLOCK_WARNS).then(|| {
            let message = format!("its clock is {off:.0} s {word} those of the other nodes");
            Finding::new(severity, Check::Clock, view.name(), message).explain(
                "launchers may give ranks an absolute deadline (horovodrun does): if clocks differ, the start times \
                 out at once",
                "set the clock on the node: `sudo timedatectl set-ntp true`, or `sudo chronyc makestep`",
            )
        })
    };
    known.iter().filter_map(finding).collect()
}

/// A finding for each value that several nodes have.
fn shared<V: PartialEq + fmt::Display>(
    check: Check,
    what: &str,
    values: impl Iterator<Item = (V, String)>,
) -> impl Iterator<Item = Finding> {
    let shared = nodeset::alike(values).into_iter().filter(|(_, nodes)| nodes.len() > 1);
    shared.map(move |(value, nodes)| {
        Finding::of_nodes(Error, check, nodes, format!("they have the same {what}, {value}"))
    })
}

/// A host name that stands for every machine: installers leave it behind.
fn no_host_name(view: &NodeView<'_>) -> Option<Finding> {
    let name = Some(&view.facts.hostname).filter(|name| is_localhost(name))?;
    Some(view.error(Check::Hostname, format!("its host name is {name}")).explain(
        "ranks look up their own address by host name, and other machines cannot reach this one",
        "run `sudo hostnamectl set-hostname NAME` there, then `hvdctl --on NODE down` and `hvdctl up`",
    ))
}

fn host_names(views: &[NodeView<'_>]) -> impl Iterator<Item = Finding> {
    let has_name = |view: &&NodeView<'_>| !view.facts.hostname.is_empty() && !is_localhost(&view.facts.hostname);
    let named = views.iter().filter(has_name);
    let names = named.map(|view| (&view.facts.hostname, view.name().to_owned()));
    shared(Check::Hostname, "host name", names).map(|finding| {
        finding.explain(
            "launchers and NCCL distinguish machines by host name, and would treat these as one machine",
            "run `sudo hostnamectl set-hostname NAME` on all but one of them, then `hvdctl --on NODES down` and \
             `hvdctl up`",
        )
    })
}

fn addresses(views: &[NodeView<'_>]) -> impl Iterator<Item = Finding> {
    let address = |view: &NodeView<'_>| {
        let place = view.place().filter(|place| !is_virtual(&place.interface))?;
        Some((place.address, view.name().to_owned()))
    };
    shared(Check::Address, "address in the cluster", views.iter().filter_map(address)).map(|finding| {
        finding.explain(
            "they are one machine with several names, or packets reach only one of them",
            "remove all but one from the inventory, or set `address` or `interface` of each [[node]]",
        )
    })
}

fn interface(view: &NodeView<'_>) -> Option<Finding> {
    let Endpoint { address, interface, .. } = view.place().filter(|place| is_virtual(&place.interface))?;
    let message =
        format!("its address in the cluster is {address} on {interface}, an interface that reaches no other machine");
    let others = view.facts.network.addresses.iter().filter(|(name, address)| address.is_ipv4() && !is_virtual(name));
    let others: Vec<String> = others.map(|(name, address)| format!("{name} {address}")).collect();
    let others = if others.is_empty() { "no other".to_owned() } else { others.join(", ") };
    Some(view.error(Check::Interface, message).explain(
        "ranks bind to this interface, and hang without a message because no other node can connect",
        format!("set `interface` or `address` of this [[node]] (the node has: {others})"),
    ))
}

/// An address that is not the first of its interface. Open MPI finds addresses by the kernel's number of the interface,
/// NCCL by the label. Gloo takes the address of the host name, which is always the one in the cluster.
fn second_address(view: &NodeView<'_>) -> Option<Finding> {
    let Endpoint { address, interface, is_ambiguous, .. } = view.place()?;
    let first = view.facts.network.address_on(interface).filter(|first| first != address && address.is_ipv4())?;
    let takers = if *is_ambiguous { "Open MPI and NCCL use" } else { "Open MPI uses" };
    let message = format!("its address in the cluster, {address}, is not the first of {interface}: {takers} {first}");
    Some(view.warning(Check::Address, message).explain(
        "such traffic uses a network other than the cluster's, and a job hangs if the nodes cannot reach each other \
         there",
        format!("give {address} an interface of its own (a VLAN or macvlan device); Gloo uses {address} in any case"),
    ))
}

/// Compares images by their content: engines that store images differently give the same image different ids. Nodes of
/// roles with other images are compared among each other.
fn images(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let name = |view: &NodeView<'_>| view.own.image.clone().unwrap_or_else(|| inventory.cluster.image.clone());
    let by_name = nodeset::alike(views.iter().map(|view| (name(view), view)));
    by_name.iter().filter_map(|(image, views)| same_image(image, views)).collect()
}

fn same_image(image: &str, views: &[&NodeView<'_>]) -> Option<Finding> {
    let mut ids = BTreeMap::new();
    let mut images = Vec::new();
    for view in views {
        if let Some(Image { id, content: Some(content), .. }) = view.image {
            images.push((view.node, ids.entry(content).or_insert_with(|| short(id)).clone()));
        }
    }
    let what = format!("{image} is not the same image on all nodes");
    Some(differing(Error, Check::Image, &what, images)?.explain(
        "ranks from different images may be incompatible, and hang or fail",
        format!("load the same image everywhere: `hvdctl image push {image} --from NODE`, then `hvdctl up`"),
    ))
}

/// The beginning of an image's id.
fn short(id: &str) -> String {
    id.trim_start_matches("sha256:").chars().take(12).collect()
}
