//! What is wrong with single nodes, and with their views of each other.

use super::before::{is_virtual, place};
use super::uniform::Groups;
use super::{Details, Engine, Finding, Fix, NodeView};
use crate::inventory::{Gpus, Inventory, Node};
use crate::keys::files;
use crate::node::facts::Disk;
use crate::node::gpus::GpuRequest;
use crate::node::network;
use crate::runtime::pull;
use crate::runtime::spec::ContainerSpec;
use crate::text::units::human;
use crate::worker::plan::{self, Operation, Workspace};
use std::net::IpAddr;

/// Docker's own `/dev/shm`, which several ranks outgrow.
const SMALLEST_SHM: u64 = 64 << 20;
/// What a rank should have of it.
const SHM_OF_A_RANK: u64 = 128 << 20;
/// Free space below which the next write may fail.
const DISK_FULL: u64 = 128 << 20;
/// The first Docker Engine with `--gpus` (its release notes, 19.03; API 1.40).
const ENGINE_WITH_GPUS: (u32, u32) = (19, 3);
/// Free space below which it is worth a word.
const DISK_LOW: u64 = 1 << 30;
/// sshd's own default of `MaxSessions`.
const SESSIONS: u32 = 10;
/// Free space that loading an image takes at least.
const DISK_FOR_IMAGE: u64 = 8 << 30;

pub(super) fn examine(inventory: &Inventory, view: &NodeView<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    found.extend(no_place(inventory, view));
    found.extend(gpus(view));
    found.extend(noise(view));
    if let Some(engine) = view.engine {
        found.extend(old_engine(view, &engine));
        found.extend(toolkit(view, &engine));
        found.extend(image(inventory, view, &engine));
        found.extend(containers(inventory, view, &engine));
    }
    found.extend(shm(inventory, view));
    if let Some(details) = view.details {
        found.extend(memlock(view, details));
        found.extend(max_sessions(view, details));
        found.extend(disks(view, details));
    }
    found
}

fn no_place(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let said = match network::place(inventory, view.node, view.facts) {
        Err(words) => words,
        Ok(place) if place.address.is_ipv6() => network::no_ipv6(place.address),
        Ok(_) => return None,
    };
    Some(
        Finding::error("network", view.name(), format!("its place in the cluster is not known: {said}"))
            .why("its worker would listen nowhere, and the others would not find it")
            .cure("set `address` or `interface` of this [[node]] in the inventory"),
    )
}

fn gpus(view: &NodeView<'_>) -> Option<Finding> {
    let cure = "run nvidia-smi on the node, or set `gpus` to what it has";
    if let Some(words) = network::missing_gpus(view.node, view.facts) {
        let why = "ranks would have no GPU of their own";
        return Some(Finding::error("gpus", view.name(), words).why(why).cure(cure));
    }
    let promised = match &view.node.gpus {
        Gpus::Auto | Gpus::Count(0) => return None,
        Gpus::Count(count) => count.to_string(),
        Gpus::All => "\"all\"".to_owned(),
        Gpus::List(list) => list.join(", "),
    };
    if !view.facts.nvidia_smi {
        let seen = format!("the inventory promises {promised}, and there is no nvidia-smi");
        return Some(
            Finding::warning("gpus", view.name(), seen)
                .why("without the NVIDIA driver no container sees a GPU")
                .cure("install the NVIDIA driver on the node, or set `gpus = 0`"),
        );
    }
    let there = view.facts.gpus.len();
    let more = matches!(view.node.gpus, Gpus::Count(count) if there > count as usize);
    more.then(|| Finding::note("gpus", view.name(), format!("nvidia-smi lists {there}, the inventory has {promised}")))
}

/// An engine older than the request for GPUs: it ignores what it does not know, and the container sees none.
fn old_engine(view: &NodeView<'_>, engine: &Engine<'_>) -> Option<Finding> {
    let mut numbers = engine.version.split('.').map(|number| number.parse::<u32>().ok());
    let version = (numbers.next()??, numbers.next()??);
    if version >= ENGINE_WITH_GPUS || network::gpu_request(view.node, view.facts) == GpuRequest::None {
        return None;
    }
    Some(
        Finding::error("engine", view.name(), format!("Docker Engine {} knows no --gpus", engine.version))
            .why("its containers would see no GPU")
            .cure("install Docker Engine 19.03 or later on the node"),
    )
}

fn toolkit(view: &NodeView<'_>, engine: &Engine<'_>) -> Option<Finding> {
    let registered = engine.runtimes?.iter().any(|name| name.contains("nvidia"));
    if network::gpu_request(view.node, view.facts) == GpuRequest::None || registered || view.details?.toolkit {
        return None;
    }
    Some(
        Finding::error("toolkit", view.name(), "Docker has no NVIDIA runtime, and the node has GPUs or should")
            .why("a container that asks for GPUs cannot be started")
            .cure("install nvidia-container-toolkit on the node and restart Docker, or set `gpus = 0`"),
    )
}

fn image(inventory: &Inventory, view: &NodeView<'_>, engine: &Engine<'_>) -> Option<Finding> {
    let cluster = &inventory.cluster;
    let image = &cluster.image;
    if engine.image_id.is_some() {
        return None;
    }
    let from_registry = pull::is_wanted(cluster.pull, false) && pull::reference(image).is_some();
    let by_hand = format!("docker pull {image} on the node, or docker save {image} | ssh NODE sudo docker load");
    Some(
        Finding::error("image", view.name(), format!("the image {image} is not there"))
            .why("no container can be started without it")
            .cure(if from_registry {
                format!("hvdctl up, which gets it from its registry; else {by_hand}")
            } else {
                by_hand
            }),
    )
}

/// Containers that are in the way, and what `up` would do.
fn containers(inventory: &Inventory, view: &NodeView<'_>, engine: &Engine<'_>) -> Vec<Finding> {
    let cluster = &inventory.cluster;
    let mut found = Vec::new();
    let wanted = [(&cluster.worker, "worker", true), (&cluster.master, "master", view.node.master)];
    for (name, field, needed) in wanted {
        let there = engine.containers.iter().find(|c| c.name == *name && !c.belongs_to(&cluster.name));
        if let Some(there) = there.filter(|_| needed) {
            let cluster = there.label(crate::runtime::spec::LABEL_CLUSTER).map(str::to_owned);
            let foreign = plan::Foreign { name: there.name.clone(), cluster };
            found.push(
                Finding::error("container", view.name(), foreign.to_string())
                    .why("hvdctl needs the name, and does not touch what it did not make")
                    .cure(format!("remove or rename it, or set cluster.{field} to another name")),
            );
        }
    }
    let (Some(place), Some(image_id)) = (place(inventory, view), engine.image_id) else { return found };
    let desired = ContainerSpec::worker(cluster, view.node, network::gpu_request(view.node, view.facts), place.address);
    let Ok(operations) = plan::worker(&desired, image_id, &Workspace::Any, engine.containers) else { return found };
    let finding = match operations.as_slice() {
        [] => {
            found.extend(lost_gpus(view));
            return found;
        }
        [Operation::Create(_)] => Finding::note("worker", view.name(), "its worker is not up")
            .why("what is in the image and who can log in to whom was not looked at there"),
        _ => {
            let seen =
                format!("its worker differs from the inventory: {}", plan::summarize(&plan::describe(&operations)));
            Finding::warning("worker", view.name(), seen).why("jobs do not get what the inventory says by now")
        }
    };
    found.push(finding.cure("hvdctl up"));
    found
}

/// GPUs that a worker was given when it was started, and has no more.
fn lost_gpus(view: &NodeView<'_>) -> Option<Finding> {
    let seen: usize = view.inside?.values.get("gpus")?.parse().ok()?;
    let given = network::chosen_gpus(view.node, view.facts).len();
    (seen < given).then(|| {
        Finding::error("gpus", view.name(), format!("its worker was given {given} and sees {seen}"))
            .why("systemctl daemon-reload and a driver that is loaded anew take the GPUs from containers that run")
            .cure("hvdctl --on NODE down, then hvdctl up")
    })
}

fn shm(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let size = inventory.cluster.shm_size;
    let ranks = network::slots(view.node, view.facts);
    let cure = "set cluster.shm_size (8g is the default), then hvdctl up";
    let memory = view.details.and_then(|details| details.memory);
    if ranks > 1 && size <= SMALLEST_SHM {
        let seen = format!("/dev/shm of its containers has {} for {ranks} ranks", human(size));
        let why = "NCCL, Gloo and data loaders meet there: too little ends in \"Bus error\", or in a hang";
        return Some(Finding::error("shm", view.name(), seen).why(why).cure(cure));
    }
    if ranks > 1 && size < SHM_OF_A_RANK.saturating_mul(ranks.into()) {
        let seen = format!("/dev/shm of its containers has {} for {ranks} ranks", human(size));
        let why = format!("less than {} a rank may end in \"Bus error\"", human(SHM_OF_A_RANK));
        return Some(Finding::warning("shm", view.name(), seen).why(why).cure(cure));
    }
    let memory = memory.filter(|memory| size > *memory)?;
    let seen =
        format!("/dev/shm of its containers may grow to {}, the node has {} of memory", human(size), human(memory));
    let why = "what lies there is memory: a job that fills it is ended by the kernel";
    Some(Finding::note("shm", view.name(), seen).why(why).cure("a smaller cluster.shm_size, then hvdctl up"))
}

fn memlock(view: &NodeView<'_>, details: &Details) -> Option<Finding> {
    let limit = details.memlock.filter(|limit| details.infiniband && *limit != u64::MAX)?;
    Some(
        Finding::warning("memlock", view.name(), format!("its worker may lock {} of memory", human(limit)))
            .why("InfiniBand registers memory by locking it, and falls back or fails where it may not")
            .cure("ulimits = { memlock = -1 } in [defaults] or this [[node]], then hvdctl up"),
    )
}

/// An sshd that starts fewer programs on a connection than hvdctl has at the same time.
fn max_sessions(view: &NodeView<'_>, details: &Details) -> Option<Finding> {
    let sessions = details.max_sessions.filter(|sessions| *sessions < SESSIONS)?;
    Some(
        Finding::warning("sshd", view.name(), format!("its sshd has MaxSessions {sessions}"))
            .why("hvdctl has to open several connections in place of one, and each command takes longer")
            .cure(format!(
                "set MaxSessions to {SESSIONS}, sshd's default, in /etc/ssh/sshd_config there, and restart it"
            )),
    )
}

/// A login shell that prints something.
fn noise(view: &NodeView<'_>) -> Option<Finding> {
    let (seen, cure) = view.noise?;
    let why = "hvdctl skips it; scp, rsync and other programs over ssh may not";
    Some(Finding::warning("shell", view.name(), seen).why(why).cure(cure))
}

fn disks(view: &NodeView<'_>, details: &Details) -> Vec<Finding> {
    let has_image = view.engine.is_none_or(|engine| engine.image_id.is_some());
    let finding = |disk: &Disk| {
        let seen = format!("Docker's directory {} has {} left", disk.path, human(disk.free));
        let why = "images, containers and what ranks write into them lie there";
        let cure = "make room on the node: docker system prune, or remove what is not needed";
        let finding = if disk.free < DISK_FULL {
            Finding::error("disk", view.name(), seen).why(why)
        } else if disk.free < DISK_LOW {
            Finding::warning("disk", view.name(), seen).why(why)
        } else if !has_image && disk.free < DISK_FOR_IMAGE {
            Finding::warning("disk", view.name(), seen).why("the image still has to be loaded, and may not fit")
        } else {
            return None;
        };
        Some(finding.cure(cure))
    };
    details.disks.iter().filter_map(finding).collect()
}

/// What is wrong with the key directories; where this cluster never had keys, that is a word and no fault.
pub(super) fn keys(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let seen: Vec<_> = views.iter().map(|view| (view.node, view.facts)).collect();
    let cluster = &inventory.cluster.name;
    let has_worker =
        |view: &NodeView<'_>| view.engine.is_some_and(|e| e.containers.iter().any(|c| c.belongs_to(cluster)));
    let pushed = views.iter().any(|view| has_worker(view) || !files::our_keys(view.facts, cluster).is_empty());
    if !pushed {
        let note = |view: &NodeView<'_>| {
            Finding::note("keys", view.name(), "there are no keys yet").cure("hvdctl up, or hvdctl keys push")
        };
        return views.iter().map(note).collect();
    }
    let report = files::report(inventory, &seen);
    let why = "workers that do not know or trust each other's keys cannot be logged in to";
    let mut found = Vec::new();
    for row in &report.rows {
        for fault in &row.faults {
            let finding = Finding::error("keys", &row.node, &fault.text).why(why).cure(fault.cure);
            let is_push = fault.cure.ends_with("push");
            found.push(if is_push { finding.fix(Fix::PushKeys) } else { finding });
        }
    }
    if let Some(fault) = &report.rotation {
        let master = &inventory.master().name;
        found.push(
            Finding::warning("keys", master, &fault.text).why("both keys are let in until then").cure(fault.cure),
        );
    }
    found
}

/// How the nodes see each other: routes, names, packet sizes, names of interfaces.
pub(super) fn between(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    if views.len() < 2 {
        return Vec::new();
    }
    let mut found = Vec::new();
    for view in views {
        let Some(details) = view.details else { continue };
        for other in views.iter().filter(|other| other.name() != view.name()) {
            found.extend(route(inventory, view, details, other));
            found.extend(name(view, details, other));
        }
    }
    let mtus =
        on_interface(inventory, views, |view, interface| view.details?.mtu.get(interface).map(ToString::to_string));
    if let Some(groups) = Groups::of(&mtus) {
        let seen = format!("its interface has another MTU than the others': {}", groups.told(str::to_owned));
        found.push(
            Finding::warning("mtu", "", seen)
                .about(groups.odd())
                .why("large packets may be lost on the way: small ones pass, and the first large tensor hangs")
                .cure("the same MTU on every node: sudo ip link set dev INTERFACE mtu N, and in its configuration"),
        );
    }
    let interfaces = on_interface(inventory, views, |_, interface| Some(interface.to_owned()));
    if let Some(groups) = Groups::of(&interfaces) {
        let seen = format!("its interface has another name than the others': {}", groups.told(str::to_owned));
        found.push(
            Finding::note("interface", "", seen)
                .about(groups.odd())
                .why("with Gloo every rank gets its own; MPI takes one name for all, and jobs with --mpi are refused")
                .cure("set `interface` so that the names agree, or use Gloo"),
        );
    }
    found
}

/// Something about the interface of each node's place, where it is known.
fn on_interface<'a>(
    inventory: &Inventory,
    views: &[NodeView<'a>],
    of: impl Fn(&NodeView<'a>, &str) -> Option<String>,
) -> Vec<(&'a Node, String)> {
    let value = |view: &NodeView<'a>| Some((view.node, of(view, &place(inventory, view)?.interface)?));
    views.iter().filter_map(value).collect()
}

/// By where packets to another node leave.
fn route(inventory: &Inventory, view: &NodeView<'_>, details: &Details, other: &NodeView<'_>) -> Option<Finding> {
    let (own, target) = (place(inventory, view)?, place(inventory, other)?.address);
    let route = details.routes.get(&target)?;
    let cure = "fix the route (ip route get ADDRESS on the node), or set `address` or `interface` of the [[node]]s";
    let Some(interface) = &route.interface else {
        return Some(
            Finding::error(
                "route",
                view.name(),
                format!("has no way to {} ({target}): {}", other.name(), route.source),
            )
            .why("no rank there can reach the other's")
            .cure(cure),
        );
    };
    if is_virtual(interface) {
        let seen =
            format!("packets to {} ({target}) leave by {interface}, which leads to no other machine", other.name());
        let why =
            "another network on the node has the same addresses, or both have one: ranks wait for answers for ever";
        return Some(Finding::error("route", view.name(), seen).why(why).cure(cure));
    }
    let own = &own.interface;
    (interface != own).then(|| {
        let seen = format!("packets to {} ({target}) leave by {interface} and not by {own}", other.name());
        if details.strict.contains(own) {
            Finding::warning("route", view.name(), format!("{seen}, which drops what comes from there (rp_filter)"))
                .why("the kernel takes such packets for forged: ranks wait for answers for ever")
                .cure(format!("{cure}; or sudo sysctl net.ipv4.conf.{{all,{own}}}.rp_filter=2"))
        } else {
            Finding::warning("route", view.name(), seen)
                .why("ranks bind to the one and are answered by the other: slow, and firewalls may not know the answer")
                .cure(cure)
        }
    })
}

/// What a node takes another's host name for.
fn name(view: &NodeView<'_>, details: &Details, other: &NodeView<'_>) -> Option<Finding> {
    let hostname = &other.facts.hostname;
    let cure = format!("a line for {hostname} in /etc/hosts of the node, or in the DNS");
    match details.names.get(hostname)? {
        Some(address) if has_address(other, *address) => None,
        Some(address) => Some(
            Finding::warning("names", view.name(), format!("takes {hostname} ({}) for {address}", other.name()))
                .why("hvdctl hands out addresses, but a program that connects by name waits at the wrong machine")
                .cure(cure),
        ),
        None => Some(
            Finding::note("names", view.name(), format!("does not know the host name {hostname} ({})", other.name()))
                .why("hvdctl hands out addresses and needs no names; your program may")
                .cure(cure),
        ),
    }
}

fn has_address(view: &NodeView<'_>, address: IpAddr) -> bool {
    !address.is_loopback() && view.facts.addresses.iter().any(|(_, own)| *own == address)
}
