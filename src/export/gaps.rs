//! The settings of an inventory for which another scheduler has no equivalent.

use super::{ExportRequest, roles};
use crate::error::Error;
use crate::inventory::{Cluster, Container, Gpus, Node, Pull};
use crate::text::nodeset;
use crate::text::quote::readable;
use std::collections::BTreeSet;
use std::time::Duration;

/// The scheduler to which a job is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OtherScheduler {
    /// Pods.
    Kubernetes,
    /// Processes in an allocation.
    Slurm,
}

/// A setting without an equivalent.
#[derive(Debug, PartialEq, Eq)]
struct Gap {
    /// The field and its value.
    setting: String,
    /// The closest alternative.
    instead: &'static str,
    /// Set if the program may find something else without it.
    matters: bool,
}

/// Returns the settings without an equivalent, a sentence each with the nodes that have it.
///
/// # Errors
/// The settings without which the program may not find what it needs, unless they are allowed to be missing.
pub(super) fn missing(request: &ExportRequest<'_>, to: OtherScheduler) -> Result<Vec<String>, Error> {
    let mut found: Vec<(Gap, Vec<String>)> = Vec::new();
    // a job under Slurm has nothing of nodes
    let is_of_slurm = to == OtherScheduler::Slurm && request.inventory.slurm.is_some();
    for node in request.nodes.iter().filter(|_| !is_of_slurm) {
        for gap in of_node(node, to) {
            match found.iter_mut().find(|(known, _)| *known == gap) {
                Some((_, nodes)) => nodes.push(node.name.clone()),
                None => found.push((gap, vec![node.name.clone()])),
            }
        }
    }
    let of_nodes = found.into_iter().map(|(gap, nodes)| (gap, format!("{}: ", nodeset::fold(&nodes))));
    let of_cluster = of_cluster(&request.inventory.cluster, to).into_iter().map(|gap| (gap, String::new()));
    let of_roles = roles::gaps(request).into_iter();
    let of_roles = of_roles.map(|(setting, instead, matters)| (Gap { setting, instead, matters }, String::new()));
    let all: Vec<(Gap, String)> = of_nodes.chain(of_cluster).chain(of_roles).collect();
    let sentence = |(gap, nodes): &(Gap, String)| format!("{nodes}{}: {}", gap.setting, gap.instead);
    let refused: Vec<String> = all.iter().filter(|(gap, _)| gap.matters).map(sentence).collect();
    if !refused.is_empty() && !request.allow_missing {
        let name = if to == OtherScheduler::Kubernetes { "Kubernetes" } else { "a job of Slurm" };
        return Err(Error::usage(
            format!("{name} has no equivalent for\n    {}", refused.join("\n    ")),
            "remove them from the inventory or hvdctl.toml, or export without them: --allow-missing",
        ));
    }
    // without nodes, the inventory has the one that stands for Slurm's
    let own = request.inventory.nodes.iter().filter(|node| is_of_slurm && !request.nodes.contains(node));
    let unused = unused_under_slurm(own);
    Ok(unused.into_iter().chain(all.iter().map(sentence)).collect())
}

/// Returns the settings of nodes that no job under Slurm gets, as with `train`: one sentence for all nodes, if there
/// are any.
fn unused_under_slurm<'a>(nodes: impl Iterator<Item = &'a Node>) -> Option<String> {
    let fields = |node: &Node| {
        let Container { mounts, devices, ulimits, cap_add, activate, env, env_file } = &node.container;
        let set = [
            (node.address.is_some(), "address"),
            (node.interface.is_some(), "interface"),
            (node.gpus != Gpus::Auto, "gpus"),
            (node.slots.is_some(), "slots"),
            (!mounts.is_empty(), "mounts"),
            (!devices.is_empty(), "devices"),
            (!ulimits.is_empty(), "ulimits"),
            (!cap_add.is_empty(), "cap_add"),
            (!activate.is_empty(), "activate"),
            (!env.is_empty(), "env"),
            (env_file.is_some(), "env_file"),
        ];
        set.into_iter().filter(|(is_set, _)| *is_set).map(|(_, field)| field)
    };
    let named: BTreeSet<&str> = nodes.flat_map(fields).collect();
    let named: Vec<&str> = named.into_iter().collect();
    (!named.is_empty())
        .then(|| format!("{} of [[node]] and [defaults]: a job gets only what [slurm] sets", named.join(", ")))
}

fn of_node(node: &Node, to: OtherScheduler) -> Vec<Gap> {
    let Node { address, interface, gpus, container, .. } = node;
    let Container { mounts, devices, ulimits, cap_add, .. } = container;
    let is_for_pods = to == OtherScheduler::Kubernetes;
    let mut gaps = Vec::new();
    let mut add = |setting: String, instead, matters| gaps.push(Gap { setting, instead, matters });
    if address.is_some() {
        let instead = if is_for_pods { "each pod gets its own address" } else { "Slurm has the nodes' addresses" };
        add("address".to_owned(), instead, true);
    }
    if let Some(interface) = interface {
        let instead = match is_for_pods {
            true => "pods have one interface, unless the cluster offers more (Multus)",
            false => "set NCCL_SOCKET_IFNAME and the like with -e",
        };
        add(format!("interface {}", readable(interface)), instead, true);
    }
    for mount in mounts {
        let instead = match is_for_pods {
            true => "a directory of this node is not on other nodes; use a PersistentVolumeClaim (--pvc), or the image",
            false => "processes see the files of the Slurm nodes at their own paths",
        };
        add(format!("mounts {} at {}", readable(&mount.source), readable(&mount.target)), instead, true);
    }
    for device in devices {
        let instead = match is_for_pods {
            true => {
                "devices other than NVIDIA GPUs come from a device plugin, under its own resource name (--resource NAME=N)"
            }
            false => "Slurm gives devices as generic resources (--sbatch=--gres=…)",
        };
        add(format!("devices {}", readable(&device.source)), instead, false);
    }
    for name in ulimits.keys() {
        let instead = match (is_for_pods, name.as_str()) {
            (true, "memlock") => "the runtime of the node sets limits; RDMA needs the capability IPC_LOCK in the pods",
            (true, _) => "the runtime of the node sets limits for all containers",
            (false, _) => "Slurm sets limits (PropagateResourceLimits)",
        };
        add(format!("ulimits.{name}"), instead, false);
    }
    for name in cap_add {
        let instead = match is_for_pods {
            true => "set securityContext.capabilities of the containers with --patch, if the cluster allows it",
            false => "processes have the rights of their user",
        };
        add(format!("cap_add {name}"), instead, false);
    }
    if let Gpus::List(list) = gpus {
        let instead = if is_for_pods { "Kubernetes chooses GPUs itself" } else { "Slurm chooses GPUs itself" };
        add(format!("gpus [{}]", list.join(", ")), instead, false);
    }
    gaps
}

fn of_cluster(cluster: &Cluster, to: OtherScheduler) -> Vec<Gap> {
    let is_for_pods = to == OtherScheduler::Kubernetes;
    let mut gaps = Vec::new();
    let mut add = |is_set: bool, setting: &str, instead| {
        is_set.then(|| gaps.push(Gap { setting: setting.to_owned(), instead, matters: false }))
    };
    add(is_for_pods && cluster.pull == Pull::Peers, "cluster.pull \"peers\"", "nodes pull the image from its registry");
    add(
        is_for_pods && cluster.bind.is_some(),
        "cluster.bind",
        "the kubelet's CPU and topology managers bind containers, not ranks",
    );
    add(cluster.stall_timeout != Duration::ZERO, "cluster.stall_timeout_s", "ranks without progress are not detected");
    gaps
}
