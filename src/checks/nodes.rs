//! Rules on single nodes.

use super::Severity::{Error, Warning};
use super::preflight::{INODES_LOW, NO_INODES};
use super::{Check, Details, Finding, Fix, NodeView};
use crate::inventory::{Gpus, Inventory, Node, Pull};
use crate::keys::files::{self, KeyFault};
use crate::launch::check_address;
use crate::model::engine::EngineName;
use crate::node::facts::Facts;
use crate::node::gpus::{self, NvidiaSmi};
use crate::node::network;
use crate::node::storage::{Disk, Inodes};
use crate::runtime::spec::ContainerSpec;
use crate::text::units::{count, human};
use crate::worker::image::is_wanted;
use crate::worker::plan::{self, ForeignContainer, Operation, Tense};
use std::path::Path;

/// Docker's default size of `/dev/shm`, too small for several ranks.
const SMALLEST_SHM: u64 = 64 << 20;
/// The part of it that a rank should have.
const SHM_OF_A_RANK: u64 = 128 << 20;
/// Free bytes below which the next write may fail.
const DISK_FULL: u64 = 128 << 20;
/// Free bytes below which there is a warning.
const DISK_LOW: u64 = 1 << 30;
/// sshd's own default of `MaxSessions`.
const SESSIONS: u32 = 10;
/// Fewer open files than this are too few for data loaders with several processes.
const FEW_FILES: u64 = 4096;
/// The number of adapters that a message names.
const SHOWN_ADAPTERS: usize = 8;
/// Free inodes below which the next image, job or container may fail.
const INODES_FULL: u64 = 1000;
/// Free inodes below which there is a warning if the image is still to be loaded.
const INODES_FOR_IMAGE: u64 = 100_000;
/// Free bytes that loading an image takes at least.
const DISK_FOR_IMAGE: u64 = 8 << 30;

pub(super) fn examine(inventory: &Inventory, view: &NodeView<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = no_place(view).into_iter().chain(has_gpus(view.node, view.facts)).collect();
    if view.engine.is_some() {
        found.extend(toolkit(view).filter(|_| inventory.cluster.can().images));
        found.extend(image(inventory, view));
        found.extend(containers(inventory, view));
    }
    found.extend(shm(inventory, view));
    if let Some(details) = &view.details {
        found.extend(memlock(view, details));
        found.extend(open_files(view, details));
        found.extend(max_sessions(view, details));
        found.extend(own_name(view, details));
        found.extend(details.disks.iter().filter_map(|disk| images_disk(view, disk)));
        found.extend(details.inodes.iter().filter_map(|inodes| images_inodes(view, inodes)));
        found.extend(details.unchecked.iter().filter_map(|(check, message)| unchecked(view, check, message)));
    }
    found
}

fn no_place(view: &NodeView<'_>) -> Option<Finding> {
    let reason = view.place.clone().and_then(|place| check_address(place.address)).err()?;
    Some(view.error(Check::Network, format!("its address in the cluster is unknown: {reason}")).explain(
        "the worker has no address to listen on, and the other nodes cannot connect to it",
        network::hint(view.node),
    ))
}

fn own_name(view: &NodeView<'_>, details: &Details) -> Option<Finding> {
    let name = details.unresolved.as_ref()?;
    Some(view.warning(Check::Names, format!("its host name {name} does not resolve to an address there")).explain(
        "programs that look up the address of their own machine fail, and sudo warns with every command",
        format!("add {name} to /etc/hosts of the node, with its address in the cluster"),
    ))
}

/// Finds that a node does not have the GPUs that the inventory promises, or that they are not known.
pub fn has_gpus(node: &Node, facts: &Facts) -> Option<Finding> {
    let error = |message: String| Finding::new(Error, Check::Gpus, &node.name, message);
    if let Some(failed) = network::gpu_failure(node, facts) {
        let why = "its GPUs are not known, so no job can start there; a program on the node finds no GPU";
        return Some(error(format!("nvidia-smi failed: {failed}")).explain(why, gpus::hint(failed)));
    }
    if let Some(missing) = network::missing_gpus(node, facts) {
        let hint = "run `nvidia-smi` on the node, or set `gpus` to what it lists";
        return Some(error(missing).explain("some ranks would have no GPU", hint));
    }
    let configured = match &node.gpus {
        _ if facts.nvidia_smi != NvidiaSmi::Missing => return None,
        Gpus::Auto | Gpus::Count(0) => return None,
        Gpus::Count(count) => count.to_string(),
        Gpus::All => "\"all\"".to_owned(),
        Gpus::List(list) => list.join(", "),
    };
    let message = format!("the inventory has `gpus` = {configured}, but the node has no nvidia-smi");
    let hint = match facts.accelerators.first() {
        None => "install the NVIDIA driver on the node, or set `gpus = 0`".to_owned(),
        Some(found) => format!(
            "`gpus` is for NVIDIA GPUs, but the node has {}: leave it out; hvdctl doctor shows the lines for the \
             inventory",
            count(found.count as usize, found.name())
        ),
    };
    Some(error(message).explain("without the NVIDIA driver no container can use a GPU", hint))
}

fn toolkit(view: &NodeView<'_>) -> Option<Finding> {
    let failed = network::gpu_failure(view.node, view.facts).is_some();
    let details = view.details.as_ref()?;
    let is_docker = view.engine_name == EngineName::Docker;
    if failed || !is_docker || details.toolkit || network::gpu_request(view.node, view.facts).is_none() {
        return None;
    }
    Some(view.error(Check::Toolkit, "the node should have GPUs, but Docker has no NVIDIA runtime").explain(
        "no container with GPUs can be started",
        "install nvidia-container-toolkit on the node and restart Docker, or set `gpus = 0`",
    ))
}

fn image(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let image = &inventory.cluster.image;
    if view.image.is_some() {
        return None;
    }
    let up = match inventory.cluster.pull {
        _ if !is_wanted(&inventory.cluster, false) => "",
        Pull::Peers => "`hvdctl up`, which takes it from another node; or ",
        _ => "`hvdctl up`, which pulls it from its registry; or ",
    };
    Some(view.error(Check::Image, format!("the image {image} is missing")).explain(
        "no container can be started",
        format!(
            "{up}`{} pull {image}` on the node, or `hvdctl image push` from a node that has it",
            view.engine_name.command()
        ),
    ))
}

/// Finds foreign containers with names that hvdctl needs, and workers that `up` would change.
fn containers(inventory: &Inventory, view: &NodeView<'_>) -> Vec<Finding> {
    let cluster = &inventory.cluster;
    let mut found = Vec::new();
    let has_network = cluster.network.is_some() && inventory.nodes.len() > 1;
    for (name, field, needed) in [
        (&cluster.worker, "worker", true),
        (&cluster.master, "master", view.node.master),
        (&cluster.network_interface, "network_interface", has_network),
    ] {
        let foreign = ForeignContainer::find(name, &cluster.name, view.containers);
        found.extend(foreign.filter(|_| needed).map(|foreign| {
            view.error(Check::Container, foreign.to_string()).explain(
                "hvdctl needs this name, and never changes a container that it did not create",
                foreign.hint(&format!("cluster.{field}")),
            )
        }));
    }
    let (Some(place), Some(image)) = (view.place(), view.image) else { return found };
    if network::gpu_failure(view.node, view.facts).is_some() {
        // what the worker should have is not known
        return found;
    }
    let desired = ContainerSpec::worker(cluster, view.node, network::gpu_request(view.node, view.facts), place.address)
        .with_data(cluster, view.node, &view.facts.storage.pushed)
        .with_virtualenvs(cluster, &view.facts.storage.virtualenvs);
    let Ok(operations) = plan::worker(&desired, &image.id, view.containers) else { return found };
    found.extend(match operations.as_slice() {
        [] => lost_gpus(view),
        [Operation::Create(_)] => {
            let why = "the image and logins of a stopped worker cannot be checked";
            Some(view.note(Check::Worker, "its worker is not running").explain(why, "hvdctl up"))
        }
        _ => {
            let changes = plan::summarize(&plan::describe(&operations, Tense::Planned));
            let message = format!("its worker differs from the inventory: {changes}");
            Some(view.warning(Check::Worker, message).explain("jobs still use the old settings", "hvdctl up"))
        }
    });
    found
}

/// Finds GPUs that a worker has lost since it was started.
fn lost_gpus(view: &NodeView<'_>) -> Option<Finding> {
    let lost = view.answer.as_ref()?.lost_gpus(view.node, view.facts)?;
    Some(view.error(Check::Worker, format!("its worker was {lost}")).explain(
        "`systemctl daemon-reload`, or reloading the driver, takes GPUs away from running containers",
        "`hvdctl up`, which recreates the worker",
    ))
}

fn shm(inventory: &Inventory, view: &NodeView<'_>) -> Option<Finding> {
    let size = inventory.cluster.shm_size;
    let ranks = network::slots(view.node, view.facts);
    if ranks < 2 || size >= SHM_OF_A_RANK.saturating_mul(ranks.into()) {
        return None;
    }
    let severity = if size <= SMALLEST_SHM { Error } else { Warning };
    let message = format!("/dev/shm of its containers has {} for {ranks} ranks", human(size));
    let why = format!(
        "NCCL, Gloo and data loaders share memory there; with less than {} per rank they may fail with \"Bus error\", \
         or hang",
        human(SHM_OF_A_RANK)
    );
    let hint = "set cluster.shm_size (8g is the default), then `hvdctl up`";
    Some(Finding::new(severity, Check::Shm, view.name(), message).explain(why, hint))
}

fn memlock(view: &NodeView<'_>, details: &Details) -> Option<Finding> {
    let limit = details.memlock.filter(|limit| details.infiniband && *limit != u64::MAX)?;
    Some(view.warning(Check::Memlock, format!("its worker may lock {} of memory", human(limit))).explain(
        "InfiniBand needs locked memory; with less it is slow or fails",
        "set `ulimits = { memlock = -1 }` in [defaults] or this [[node]], then `hvdctl up`",
    ))
}

/// Networks that ranks of several nodes would use if their containers had the devices and the image the libraries.
pub(super) fn fabrics(view: &NodeView<'_>) -> Vec<Finding> {
    let Some(details) = &view.details else { return Vec::new() };
    let has = |directory: &str| details.fabrics.iter().any(|device| device.starts_with(directory));
    let is_given = |directory: &str| {
        view.node.container.devices.iter().any(|device| Path::new(&device.source).starts_with(directory))
    };
    let mut found = Vec::new();
    let is_ethernet = details.adapters.iter().all(|adapter| adapter.ends_with(" Ethernet"));
    let name = |adapter: &str| adapter.split(' ').next().unwrap_or_default().to_owned();
    let adapters: Vec<String> = details.adapters.iter().take(SHOWN_ADAPTERS).map(|adapter| name(adapter)).collect();
    if has("/dev/infiniband") && !adapters.is_empty() {
        if !is_given("/dev/infiniband") {
            let adapters = adapters.join(", ");
            if is_ethernet {
                let message =
                    format!("it has Ethernet cards with RoCE or iWARP ({adapters}), which its containers cannot use");
                found.push(view.note(Check::Fabric, message).explain(
                    "if the network is set up for it, NCCL and MPI are faster with it",
                    "then set `devices = [\"/dev/infiniband\"]` and `ulimits = { memlock = -1 }` in [defaults] or this \
                     [[node]], and `hvdctl up`",
                ));
            } else {
                let message = format!("it has InfiniBand or EFA ({adapters}), which its containers cannot use");
                found.push(view.warning(Check::Fabric, message).explain(
                    "NCCL and MPI silently use TCP there, at a fraction of the speed",
                    "set `devices = [\"/dev/infiniband\"]` and `ulimits = { memlock = -1 }` in [defaults] or this \
                     [[node]], then `hvdctl up`",
                ));
            }
        } else if !view.inside.is_empty()
            && !view.inside.contains_key("ibverbs")
            && !view.inside.contains_key("unread:ibverbs")
        {
            found.push(view.warning(Check::Fabric, "the image has no libibverbs for its InfiniBand, RoCE or \
                EFA").explain(
                "NCCL and MPI silently use TCP, at a fraction of the speed",
                "add libibverbs1 and ibverbs-providers (Debian; for EFA also Amazon's libfabric) to the image, or to \
                 `setup` of the project",
            ));
        }
    }
    for (device, what) in [
        ("/dev/nvidia-caps-imex-channels", "IMEX channels, through which GPUs of several nodes share NVLinks"),
        ("/dev/gdrdrv", "GDRCopy, which gets small messages to GPUs sooner"),
    ] {
        if has(device) && !is_given(device) && !view.facts.gpus.is_empty() {
            let message = format!("it has {what}, which its containers cannot use");
            let hint = format!("set `devices = [\"{device}\"]` in [defaults] or this [[node]], then `hvdctl up`");
            found.push(view.note(Check::Fabric, message).explain("jobs work without it, but may be slower", hint));
        }
    }
    found
}

/// A hard limit that data loaders of one rank reach.
fn open_files(view: &NodeView<'_>, details: &Details) -> Option<Finding> {
    let limit = details.nofile.filter(|limit| *limit < FEW_FILES)?;
    Some(view.warning(Check::Limits, format!("a rank in its worker may open only {limit} files")).explain(
        "data loaders and large jobs fail with \"Too many open files\"",
        "set `ulimits = { nofile = 1048576 }` in [defaults] or this [[node]], then `hvdctl up`",
    ))
}

/// An sshd that starts fewer programs on a connection than hvdctl has at the same time.
fn max_sessions(view: &NodeView<'_>, details: &Details) -> Option<Finding> {
    let sessions = details.max_sessions.filter(|sessions| *sessions < SESSIONS)?;
    Some(view.warning(Check::Sshd, format!("its sshd has MaxSessions {sessions}")).explain(
        "hvdctl must open several connections instead of one, which slows down every command",
        format!(
            "set MaxSessions to {SESSIONS}, the default, in /etc/ssh/sshd_config of the node, and restart its sshd"
        ),
    ))
}

/// Room for images and containers.
fn images_disk(view: &NodeView<'_>, disk: &Disk) -> Option<Finding> {
    let has_image = view.engine.is_none() || view.image.is_some();
    let written = "images, containers and files that ranks write in containers are stored there";
    let (severity, why) = match disk.free {
        ..DISK_FULL => (Error, written),
        DISK_FULL..DISK_LOW => (Warning, written),
        DISK_LOW..DISK_FOR_IMAGE if !has_image => (Warning, "the image is not loaded yet and may not fit"),
        _ => return None,
    };
    let engine = view.engine_name;
    let message = format!("{}'s directory {} has {} left", engine.product(), disk.path, human(disk.free));
    let hint = format!("free space on the node: `{} system prune`, or remove other files", engine.command());
    Some(Finding::new(severity, Check::Disk, view.name(), message).explain(why, hint))
}

/// Room for the files of images, of which layers have tens of thousands.
fn images_inodes(view: &NodeView<'_>, Inodes { free, path, .. }: &Inodes) -> Option<Finding> {
    let has_image = view.engine.is_none() || view.image.is_some();
    let (severity, why) = match *free {
        ..INODES_FULL => (Error, NO_INODES),
        INODES_FULL..INODES_LOW => (Warning, NO_INODES),
        INODES_LOW..INODES_FOR_IMAGE if !has_image => (Warning, "the image is not loaded yet and may not fit"),
        _ => return None,
    };
    let engine = view.engine_name;
    let message = format!("{}'s directory {path} has room for {free} more files", engine.product());
    let prune = format!("`{} system prune`", engine.command());
    let hint = format!("remove files on the node: {prune}; df -i shows how many each disk can have");
    Some(Finding::new(severity, Check::Disk, view.name(), message).explain(why, hint))
}

/// A check that could not be made.
fn unchecked(view: &NodeView<'_>, check: &str, message: &str) -> Option<Finding> {
    match check {
        "disk" => {
            let what = format!("cannot find out how much space {}'s directory has left", view.engine_name.product());
            let why = "a full disk makes images and jobs fail";
            Some(view.error(Check::Disk, format!("{what}: {message}")).explain(why, "run `df` on the node"))
        }
        // a node whose driver lists no GPU has a finding if it should have one
        "gpu-users" if !view.facts.gpus.is_empty() => {
            let what = "cannot find out which programs use its GPUs";
            let why = "a job that shares the GPUs with other programs may run out of memory";
            Some(view.error(Check::GpuUsers, format!("{what}: {message}")).explain(why, "run `nvidia-smi` on the node"))
        }
        _ => None,
    }
}

/// Returns the faults of the key directories; if this cluster never had keys, that is a note.
pub(super) fn keys(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let cluster = &inventory.cluster.name;
    let is_pushed = |view: &NodeView<'_>| {
        view.containers.iter().any(|c| c.belongs_to(cluster)) || !files::our_keys(view.facts, cluster).is_empty()
    };
    if !views.iter().any(is_pushed) {
        let hint = "`hvdctl up`, or `hvdctl keys push`";
        return views.iter().map(|view| view.note(Check::Keys, "there are no keys yet").explain("", hint)).collect();
    }
    let nodes: Vec<_> = views.iter().map(|view| (view.node, view.facts)).collect();
    let report = files::report(inventory, &nodes);
    let faults = report.rows.iter().flat_map(|row| row.faults.iter().map(move |fault| (&row.node, fault)));
    let finding = |(node, fault): (&String, &KeyFault)| {
        Finding::new(Error, Check::Keys, node, &fault.text)
            .explain("workers cannot log in to each other without the right keys", fault.hint)
            .fix(Fix::PushKeys)
    };
    let rotation = report.rotation.as_ref().map(|fault| {
        Finding::new(Warning, Check::Keys, &inventory.master().name, &fault.text)
            .explain("until then the workers accept both keys", fault.hint)
    });
    faults.map(finding).chain(rotation).collect()
}
