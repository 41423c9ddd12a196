//! Checks for conditions that would make a job fail or hang: rules that turn the observed state of the nodes into
//! findings. A finding says what was found, why it matters and how to fix it.

mod between;
mod details;
mod engines;
mod jobs;
mod nodes;
pub mod place;
pub mod preflight;
mod python;
#[cfg(test)]
mod tests;
pub mod verify;

pub use between::{logins, ports};
pub use details::{Details, GpuUser, Versions, versions};
pub use nodes::has_gpus;

use crate::cluster::member::Member;
use crate::cluster::observation::{OwnEnvironment, RuntimeState};
use crate::error::NodeError;
use crate::gpus::health::report::NodeHealth;
use crate::gpus::rules::{self as gpu_rules, GpuNode};
use crate::inventory::{Inventory, Node};
use crate::mesh::rules::{self, MeshView};
pub use crate::model::check::Check;
use crate::model::engine::EngineName;
pub use crate::model::finding::{Finding, Fix, Severity};
use crate::node::facts::Facts;
use crate::node::jobs::{OpenJobs, Rank};
use crate::node::network::{self, Endpoint};
use crate::runtime::Image;
use crate::runtime::container::{ContainerState, ContainerSummary, with_role};
use crate::runtime::spec::Role;
use crate::worker::ready::GpuAnswer;
use std::collections::BTreeMap;

/// The observed state of one node.
#[derive(Debug, Clone)]
pub struct NodeView<'a> {
    /// Its line in the inventory.
    pub node: &'a Node,
    /// Its facts.
    pub facts: &'a Facts,
    /// Its open jobs.
    pub open: OpenJobs,
    /// Its place in the cluster, or why that is not known.
    pub place: Result<Endpoint, String>,
    /// The version of its engine, if that answered; empty for processes of the login.
    pub engine: Option<&'a str>,
    /// The engine that it has.
    pub engine_name: EngineName,
    /// The name of the login.
    pub user: &'a str,
    /// The hard limits that its containers cannot exceed, by name.
    pub limits: BTreeMap<String, u64>,
    /// Its containers.
    pub containers: &'a [ContainerSummary],
    /// The cluster's image, if the node has it.
    pub image: Option<&'a Image>,
    /// The environment of its containers for a role of a job.
    pub own: OwnEnvironment,
    /// Set if it needs a worker; the launcher's node needs none for its ranks.
    pub worker: bool,
    /// Facts that only `doctor` reads.
    pub details: Option<Details>,
    /// Jobs whose launcher may not be up yet.
    pub starting: Vec<String>,
    /// The open jobs there whose records cannot be read, each with the reason.
    pub unreadable: Vec<(String, String)>,
    /// The versions in its worker; empty if the worker is not running.
    pub inside: Versions,
    /// The answer of its worker about its GPUs, if it was asked.
    pub answer: Option<GpuAnswer>,
    /// The health of its GPUs, if it was examined.
    pub health: Option<&'a NodeHealth>,
}

impl<'a> NodeView<'a> {
    /// Returns a view of the facts that every command observes, with a worker that is needed.
    pub fn new(
        inventory: &Inventory,
        member: &'a Member,
        facts: &'a Facts,
        runtime: Option<&'a RuntimeState>,
    ) -> NodeView<'a> {
        let node = &member.node;
        NodeView {
            node,
            facts,
            open: OpenJobs::recorded(&facts.jobs),
            place: network::place(inventory, node, facts),
            engine: runtime.map(|runtime| runtime.engine.version().map_or("", |(_, version)| version)),
            engine_name: member.transport.engine_name(),
            user: member.transport.user(),
            limits: member.transport.engine_limits().clone(),
            containers: runtime.map_or(&[], |runtime| &runtime.containers),
            image: runtime.and_then(|runtime| runtime.image.as_ref()),
            own: runtime.map(|runtime| runtime.own.clone()).unwrap_or_default(),
            worker: true,
            details: None,
            starting: Vec::new(),
            unreadable: Vec::new(),
            inside: Versions::new(),
            answer: None,
            health: None,
        }
    }

    fn name(&self) -> &str {
        &self.node.name
    }

    /// Returns the killed processes of ended jobs that wait in the kernel. One of a job that has not ended may have
    /// been killed just now.
    fn unending(&self) -> impl Iterator<Item = &Rank> {
        self.facts.jobs.ranks.iter().filter(|rank| rank.killed && !self.open.has(&rank.job))
    }

    fn place(&self) -> Option<&Endpoint> {
        self.place.as_ref().ok()
    }

    fn error(&self, check: Check, message: impl Into<String>) -> Finding {
        Finding::new(Severity::Error, check, self.name(), message)
    }

    fn warning(&self, check: Check, message: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, check, self.name(), message)
    }

    fn note(&self, check: Check, message: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, check, self.name(), message)
    }
}

/// Returns the failure of a node as a finding. `unknown`: what is not known because of it; empty if that is obvious.
pub fn failure(error: &NodeError, unknown: &str) -> Finding {
    let check = if error.is_unreachable() { Check::Ssh } else { Check::Node };
    let message = format!("cannot {}: {}", error.operation, error.message);
    Finding::new(Severity::Error, check, &error.node, message).explain(unknown, error.hints.join("; "))
}

/// Applies all rules, except those on connections between nodes ([`logins()`], [`ports`]).
pub fn examine<'a>(inventory: &Inventory, views: &[NodeView<'a>]) -> Vec<Finding> {
    let mut found = preflight::rules(inventory, views);
    found.extend(views.iter().flat_map(|view| nodes::examine(inventory, view)));
    if views.len() > 1 {
        found.extend(views.iter().flat_map(nodes::fabrics));
    }
    found.extend(nodes::keys(inventory, views));
    found.extend(encrypted_network(inventory, views));
    found.extend(between::examine(&inventory.cluster, views));
    found.extend(jobs::examine(inventory, views));
    let examined = |view: &NodeView<'a>| Some(GpuNode { node: view.node, facts: view.facts, health: view.health? });
    found.extend(gpu_rules::examine(&views.iter().filter_map(examined).collect::<Vec<_>>()));
    found
}

/// Examines the encrypted network, if the cluster has one.
fn encrypted_network(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let cluster = &inventory.cluster;
    if cluster.network.is_none() || inventory.nodes.len() < 2 {
        return Vec::new();
    }
    let view = |view: &NodeView<'_>| {
        let container = with_role(cluster, view.containers, Role::Mesh);
        let is_up = container.is_some_and(|container| container.state == ContainerState::Running);
        (view.facts.clock.map_or(f64::MAX, |clock| clock.high), is_up)
    };
    // where the engine does not answer, another finding says so
    let known = views.iter().filter(|view| view.engine.is_some());
    let views: Vec<MeshView<'_>> = known
        .clone()
        .map(|known| {
            let (now, is_up) = view(known);
            MeshView { name: known.name(), mesh: &known.facts.mesh, now, is_up }
        })
        .collect();
    let mut found = rules::examine(cluster, &views);
    found.extend(shared_network(known));
    found
}

/// Finds that all nodes of an encrypted network share another one, in which they need it only against others there.
fn shared_network<'a>(views: impl Iterator<Item = &'a NodeView<'a>>) -> Option<Finding> {
    let network = |view: &NodeView<'_>| {
        let outside = &view.facts.network;
        Some((view.name().to_owned(), outside.networks.get(&outside.ssh_address?)?.clone()))
    };
    let networks: Vec<(String, String)> = views.map(network).collect::<Option<_>>()?;
    let (_, first) = networks.first().filter(|_| networks.len() > 1)?;
    if networks.iter().any(|(_, other)| other != first) {
        return None;
    }
    let message = format!("they share the network {first}, which is faster without encryption");
    let nodes = networks.iter().map(|(node, _)| node.clone()).collect();
    Some(Finding::of_nodes(Severity::Note, Check::EncryptedNetwork, nodes, message).explain(
        "",
        "if all who use that network are trusted, leave out `network` in [cluster]; hvdctl bench measures the difference",
    ))
}

/// Merges equal findings into one with all their nodes, and sorts errors first.
pub fn fold(found: Vec<Finding>) -> Vec<Finding> {
    let mut folded: Vec<Finding> = Vec::new();
    for mut finding in found {
        let same = |other: &&mut Finding| {
            (other.severity, other.check, &other.message, &other.why, &other.hint)
                == (finding.severity, finding.check, &finding.message, &finding.why, &finding.hint)
        };
        if let Some(other) = folded.iter_mut().find(same) {
            finding.nodes.retain(|node| !other.nodes.contains(node));
            other.nodes.append(&mut finding.nodes);
            other.fixes.append(&mut finding.fixes);
        } else {
            folded.push(finding);
        }
    }
    folded.sort_by_key(|finding| finding.severity);
    folded
}
