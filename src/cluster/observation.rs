//! Observation of a node: its system and its engine.

use super::member::Member;
use super::operator::now;
use crate::error::{ErrorKind, NodeError};
use crate::event::{Events, Step};
use crate::inventory::{Cluster, Inventory, Node, Pull};
use crate::model::engine::EngineName;
use crate::node::facts::Facts;
use crate::node::gpus;
use crate::node::jobs::OpenJobs;
use crate::node::names::HostNames;
use crate::node::network::{self, Endpoint};
use crate::node::permissions::{ExposedPath, WHY};
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::{image_of, is_setup_image};
use crate::runtime::{Image, Runtime};
use crate::transport::node::Script;

const FACTS: &str = concat!(
    include_str!("../scripts/node/machine.sh"),
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/node/nvidia_smi.sh"),
    include_str!("../scripts/node/gpus.sh"),
    include_str!("../scripts/node/accelerators.sh"),
    include_str!("../scripts/node/marked.sh"),
    include_str!("../scripts/node/killed.sh"),
    include_str!("../scripts/job/directory.sh"),
    include_str!("../scripts/job/outside.sh"),
    include_str!("../scripts/node/facts.sh")
);

/// The observed state of a node's engine.
#[derive(Clone)]
pub struct RuntimeState {
    /// The engine itself.
    pub engine: Runtime,
    /// Its containers.
    pub containers: Vec<ContainerSummary>,
    /// The image of its containers, if the node has it: the cluster's, or its own.
    pub image: Option<Image>,
    /// The environment of its containers for a role of a job.
    pub own: OwnEnvironment,
}

/// The environment that the containers of a node have for a role of a job, as far as it is not that of the inventory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnEnvironment {
    /// The name of their image, if that is not the cluster's.
    pub image: Option<String>,
    /// The lines of `activate`, if they are not the node's. [`ObservedNode::member`] has them, too.
    pub activate: Option<Vec<String>>,
}

impl RuntimeState {
    /// Returns the name of the image of its containers; processes have none.
    pub fn image_name(&self, cluster: &Cluster) -> String {
        self.own.image.clone().unwrap_or_else(|| image_of(cluster))
    }
}

/// The observed state of a node.
#[derive(Clone)]
pub struct ObservedNode {
    /// The node.
    pub member: Member,
    /// Its system.
    pub facts: Facts,
    /// Its engine.
    pub runtime: RuntimeState,
    /// Its jobs that have not ended: all that are recorded, until a command has asked the nodes of their launchers.
    pub open: OpenJobs,
}

impl ObservedNode {
    /// Returns a node with what was observed of it.
    pub fn new(member: Member, facts: Facts, runtime: RuntimeState) -> ObservedNode {
        let open = OpenJobs::recorded(&facts.jobs);
        ObservedNode { member, facts, runtime, open }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.member.node.name
    }

    /// The id of the image of its containers.
    ///
    /// # Errors
    /// When the node does not have it.
    pub fn image_id(&self, cluster: &Cluster) -> Result<&str, NodeError> {
        self.runtime.image.as_ref().map(|image| image.id.as_str()).ok_or_else(|| {
            if let Some(image) = self.runtime.own.image.as_ref().filter(|image| !is_setup_image(image)) {
                return NodeError::failed(self.name(), &format!("find the image {image} of a role"), "No such image")
                    .kind(ErrorKind::ImageMissing)
                    .hint(format!(
                        "hvdctl image push {image} copies it from a node that has it, hvdctl image pull {image} gets it \
                         from its registry"
                    ));
            }
            let first = match cluster.pull {
                Pull::Never => "load it on the node",
                Pull::Peers => "`hvdctl up` takes it from another node; otherwise load it on the node",
                Pull::Missing | Pull::Always => {
                    "`hvdctl up` pulls it if a registry has it; otherwise load it on the node"
                }
            };
            let image = self.runtime.own.image.as_ref().unwrap_or(&cluster.image);
            if is_setup_image(image) {
                return NodeError::failed(self.name(), &format!("find the image {image}"), "No such image")
                    .kind(ErrorKind::ImageMissing)
                    .hint(
                        "hvdctl image push copies it from a node that has it; train and image build rebuild a \
                         project's image",
                    );
            }
            let hint = format!(
                "{first}: {2} pull {0} on the node, hvdctl image push from a node that has it, or docker save {0} | \
                 ssh {1} sudo {2} load",
                cluster.image,
                self.member.node.host,
                self.member.transport.engine_name().command()
            );
            let operation = format!("find the image {}", cluster.image);
            NodeError::failed(self.name(), &operation, "No such image").kind(ErrorKind::ImageMissing).hint(hint)
        })
    }
}

/// Returns a node's endpoint in its cluster.
///
/// # Errors
/// With what is missing or does not match.
pub fn place(inventory: &Inventory, node: &ObservedNode) -> Result<Endpoint, NodeError> {
    network::place(inventory, &node.member.node, &node.facts).map_err(|cause| no_place(&node.member.node, cause))
}

/// Returns the names by which these nodes know each other in their containers.
pub fn host_names<'a>(inventory: &Inventory, nodes: impl Iterator<Item = &'a ObservedNode>) -> HostNames {
    let is_written = |_: &&ObservedNode| inventory.cluster.layout(&inventory.cluster.worker).own_hosts;
    HostNames::new(inventory, nodes.filter(is_written).map(|observed| (&observed.member.node, &observed.facts)))
}

/// Returns the error of a node without an endpoint.
pub fn no_place(node: &Node, cause: String) -> NodeError {
    NodeError::failed(&node.name, "find its address on the cluster's network", cause).hint(network::hint(node))
}

/// Checks that a node has the GPUs that the inventory gives its containers.
///
/// # Errors
/// If it does not, or `nvidia-smi` failed there.
pub fn check_gpus(node: &Node, facts: &Facts) -> Result<(), NodeError> {
    if let Some(failed) = network::gpu_failure(node, facts) {
        return Err(NodeError::failed(&node.name, "list the GPUs", format!("nvidia-smi failed: {failed}"))
            .kind(ErrorKind::NvidiaSmiFailed)
            .hint(gpus::hint(failed)));
    }
    match network::missing_gpus(node, facts) {
        None => Ok(()),
        Some(missing) => Err(NodeError::failed(&node.name, "find the configured GPUs", missing)
            .kind(ErrorKind::GpusMissing)
            .hint("run `nvidia-smi` on the node, or set `gpus` to what it lists")),
    }
}

/// Checks that nobody but root and the login that hvdctl uses can change these directories of a node (`ssh`, `jobs`,
/// `projects`, `data`), in which root is about to work.
///
/// # Errors
/// With all that others can change, or hvdctl cannot.
pub fn check_permissions(cluster: &Cluster, node: &str, facts: &Facts, directories: &[&str]) -> Result<(), NodeError> {
    let closed = facts.permissions.closed.iter().find(|closed| closed.leads_to(directories));
    if let Some(closed) = closed {
        let hint = closed.hint(cluster, facts.permissions.home.as_deref());
        return Err(NodeError::failed(node, "use the node", closed).kind(ErrorKind::PrivilegesDenied).hint(hint));
    }
    let exposed: Vec<&ExposedPath> =
        facts.permissions.exposed.iter().filter(|exposed| exposed.leads_to(directories)).collect();
    if exposed.is_empty() {
        return Ok(());
    }
    let found: String = exposed.iter().map(|exposed| format!("{exposed}\n")).collect();
    let error = NodeError::failed(node, "use the node", format!("{found}{WHY}"));
    Err(exposed.iter().fold(error, |error, exposed| error.hint(exposed.hint(cluster))))
}

/// Observes a node's system in one round trip.
///
/// # Errors
/// When there is no root, or the time is over.
pub async fn facts(cluster: &Cluster, member: &Member) -> Result<Facts, NodeError> {
    let node = &member.node;
    let lines = |paths: &mut dyn Iterator<Item = &str>| paths.collect::<Vec<_>>().join("\n");
    let script = Script::new(FACTS)
        .with("ssh_dir", &cluster.ssh_dir)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("projects_dir", &cluster.projects_dir)
        .with("data_dir", &cluster.data_dir)
        .with("devices", &lines(&mut node.container.devices.iter().map(|device| device.source.as_str())))
        .with("mounts", &lines(&mut node.container.mounts.iter().map(|mount| mount.source.as_str())))
        .with("run_dir", member.transport.run_dir().unwrap_or_default())
        .with("cluster", &cluster.name)
        .with("port", &cluster.port.to_string())
        .with("network_dir", &cluster.network.map_or_else(String::new, |_| cluster.network_dir()));
    let asked = now();
    let output = member.transport.script(&script, "read the node state").await?;
    let mut facts = Facts::parse(&String::from_utf8_lossy(&output)).between(asked, now());
    if !cluster.can().images || member.transport.engine_name() == EngineName::Docker {
        facts.cdi = None;
    }
    if !cluster.can().root {
        // the script that takes the lease creates the directory of a login, or checks whose it is
        facts.permissions.exposed.retain(|exposed| !exposed.is_creation());
    }
    Ok(facts)
}

/// Observes a node's engine.
///
/// # Errors
/// With the engine's message.
pub async fn engine(cluster: &Cluster, member: &Member) -> Result<RuntimeState, NodeError> {
    let engine = member.runtime().await?;
    let containers = engine.containers().await?;
    let image = engine.image(&cluster.image).await?;
    Ok(RuntimeState { engine, containers, image, own: OwnEnvironment::default() })
}

/// Observes a node's system and engine concurrently.
pub async fn observe_parts(
    cluster: &Cluster,
    member: &Member,
    events: &Events,
) -> (Result<Facts, NodeError>, Result<RuntimeState, NodeError>) {
    let _step = events.begin(&member.node.name, Step::OBSERVING);
    tokio::join!(facts(cluster, member), engine(cluster, member))
}

/// Observes a node.
///
/// # Errors
/// When its system or its engine cannot be observed.
pub async fn observe(cluster: &Cluster, member: Member, events: &Events) -> Result<ObservedNode, NodeError> {
    let (facts, runtime) = observe_parts(cluster, &member, events).await;
    Ok(ObservedNode::new(member, facts?, runtime?))
}
