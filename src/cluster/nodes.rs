//! The nodes of a command: which are selected, and what is observed of them.

use crate::error::{Error, Kind, NodeError};
use crate::event::{Events, Step};
use crate::inventory::{Cluster, Inventory, Node, Pull};
use crate::node::facts::Facts;
use crate::node::gpus;
use crate::node::names::HostNames;
use crate::node::network::{self, Endpoint};
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::is_setup_image;
use crate::runtime::{Image, Runtime};
use crate::text::nodeset;
use crate::transport::node::{Script, Transport};
use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::OnceCell;
use tracing::{Instrument, debug_span};

/// How many nodes are worked on at the same time: enough for hundreds of nodes, without a fork storm here.
const MAX_CONCURRENT_NODES: usize = 64;

/// How many files hvdctl has open, except for those of its nodes.
const OWN_FILES: u64 = 64;

/// How many files are open while a node is worked on: eight programs with three streams each would be more, but few nodes have them.
const FILES_PER_NODE: u64 = 20;

const FACTS: &str = concat!(
    include_str!("../scripts/node/machine.sh"),
    include_str!("../scripts/node/gpus.sh"),
    include_str!("../scripts/node/marked.sh"),
    include_str!("../scripts/node/killed.sh"),
    include_str!("../scripts/node/facts.sh")
);

/// Which nodes a command is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// The whole inventory.
    pub inventory: Inventory,
    /// The selected nodes' names, in inventory order.
    pub selected: Vec<String>,
}

impl Target {
    /// Selects by `--on`.
    ///
    /// # Errors
    /// When the expression names no node.
    pub fn new(inventory: Inventory, on: Option<&str>) -> Result<Target, Error> {
        let all: Vec<String> = inventory.nodes.iter().map(|n| n.name.clone()).collect();
        let selected = match on {
            Some(expression) => nodeset::select(expression, &all, &inventory.groups).map_err(|why| {
                let hint = "names as in the inventory, node[01-16], @group, a,b, !c";
                Error::usage(format!("--on {}: {why}", nodeset::printable(expression)), hint)
            })?,
            None => all,
        };
        Ok(Target { inventory, selected })
    }

    /// The same inventory with these nodes selected.
    #[must_use]
    pub fn only(&self, selected: impl IntoIterator<Item = String>) -> Target {
        Target { inventory: self.inventory.clone(), selected: selected.into_iter().collect() }
    }

    /// The same with the master, where a job on several nodes may need it as its launcher: only there is the private key.
    #[must_use]
    pub fn with_launcher(&self) -> Target {
        let mut with = self.clone();
        let master = &self.inventory.master().name;
        if self.selected.len() > 1 && !self.selected.contains(master) {
            with.selected.push(master.clone());
        }
        with
    }

    /// The selected nodes; the master first, because rank 0 is there.
    pub fn nodes(&self) -> Vec<Node> {
        let mut nodes: Vec<Node> =
            self.inventory.nodes.iter().filter(|n| self.selected.contains(&n.name)).cloned().collect();
        nodes.sort_by_key(|n| !n.master);
        nodes
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.inventory.cluster
    }
}

/// A node that is connected. Clones share its connections.
#[derive(Clone)]
pub struct Member {
    /// Its entry in the inventory.
    pub node: Node,
    /// How it is reached.
    pub transport: Arc<Transport>,
    runtime: Arc<OnceCell<Runtime>>,
}

impl Member {
    /// A node that is reached in this way.
    pub fn new(node: Node, transport: Arc<Transport>) -> Member {
        Member { node, transport, runtime: Arc::default() }
    }

    /// Returns the same node over a new connection.
    ///
    /// # Errors
    /// When ssh fails.
    pub async fn reconnected(&self) -> Result<Member, NodeError> {
        Ok(Member::new(self.node.clone(), Arc::new(self.transport.reconnected().await?)))
    }

    /// Returns the node's runtime. The first call connects to its engine.
    ///
    /// # Errors
    /// As [`Runtime::connect`]. The next call tries again.
    pub async fn runtime(&self) -> Result<Runtime, NodeError> {
        self.runtime.get_or_try_init(|| Runtime::connect(&self.transport)).await.cloned()
    }
}

/// The observed state of a node's engine.
#[derive(Clone)]
pub struct RuntimeState {
    /// The engine itself.
    pub engine: Runtime,
    /// Its containers.
    pub containers: Vec<ContainerSummary>,
    /// The cluster's image, if the node has it.
    pub image: Option<Image>,
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
}

impl ObservedNode {
    /// The node's name.
    pub fn name(&self) -> &str {
        &self.member.node.name
    }

    /// The id of the cluster's image.
    ///
    /// # Errors
    /// When the node does not have it.
    pub fn image_id(&self, cluster: &Cluster) -> Result<&str, NodeError> {
        self.runtime.image.as_ref().map(|image| image.id.as_str()).ok_or_else(|| {
            let first = match cluster.pull {
                Pull::Never => "load it on the node",
                Pull::Peers => "`hvdctl up` takes it from another node; otherwise load it on the node",
                Pull::Missing | Pull::Always => {
                    "`hvdctl up` pulls it if a registry has it; otherwise load it on the node"
                }
            };
            if is_setup_image(&cluster.image) {
                return NodeError::failed(self.name(), &format!("find the image {}", cluster.image), "No such image")
                    .kind(Kind::ImageMissing)
                    .hint("hvdctl image push takes it from a node that has it; train and image build make that of a project again");
            }
            let hint = format!(
                "{first}: docker pull {0} on the node, hvdctl image push from a node that has it, or docker save {0} | ssh {1} sudo docker load",
                cluster.image, self.member.node.host
            );
            let operation = format!("find the image {}", cluster.image);
            NodeError::failed(self.name(), &operation, "No such image").kind(Kind::ImageMissing).hint(hint)
        })
    }
}

/// Returns a node's endpoint in its cluster.
///
/// # Errors
/// With what is missing or does not match.
pub fn place(inventory: &Inventory, node: &ObservedNode) -> Result<Endpoint, NodeError> {
    network::place(inventory, &node.member.node, &node.facts).map_err(|cause| no_place(node.name(), cause))
}

/// Returns the names by which these nodes know each other in their containers.
pub fn host_names<'a>(inventory: &Inventory, nodes: impl Iterator<Item = &'a ObservedNode>) -> HostNames {
    HostNames::new(inventory, nodes.map(|observed| (&observed.member.node, &observed.facts)))
}

/// Returns the error of a node without an endpoint.
pub fn no_place(node: &str, cause: String) -> NodeError {
    NodeError::failed(node, "find its address on the cluster's network", cause)
        .hint("set `address` or `interface` of this [[node]] in the inventory")
}

/// Checks that a node has the GPUs that the inventory gives its containers.
///
/// # Errors
/// If it does not, or `nvidia-smi` failed there.
pub fn check_gpus(node: &Node, facts: &Facts) -> Result<(), NodeError> {
    if let Some(message) = network::gpu_failure(node, facts) {
        return Err(NodeError::failed(&node.name, "list the GPUs", format!("nvidia-smi failed: {message}"))
            .kind(Kind::NvidiaSmiFailed)
            .hint(gpus::hint(message)));
    }
    match network::missing_gpus(node, facts) {
        None => Ok(()),
        Some(missing) => Err(NodeError::failed(&node.name, "find the configured GPUs", missing)
            .kind(Kind::GpusMissing)
            .hint("run nvidia-smi on the node, or set `gpus` to what it lists")),
    }
}

/// Returns how many of `nodes` nodes are worked on at the same time, where so many files may be open: each connected node has one open.
fn concurrent_nodes(nodes: usize, open_files: Option<u64>) -> usize {
    let Some(open_files) = open_files else { return MAX_CONCURRENT_NODES };
    let left = open_files.saturating_sub(OWN_FILES + nodes as u64) / FILES_PER_NODE;
    usize::try_from(left).unwrap_or(usize::MAX).clamp(1, MAX_CONCURRENT_NODES)
}

/// Returns how many files this process may have open.
pub(super) fn open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Runs `work` on all nodes, at most as many as open files allow at a time. Returns the results in the order of the nodes. A slow node
/// delays no other.
pub async fn for_each_node<I, T, F>(items: Vec<I>, work: impl Fn(I) -> F) -> Vec<T>
where
    F: Future<Output = T>,
{
    let all = debug_span!("for_each_node", nodes = items.len());
    let numbered = |(i, item)| work(item).map(move |result| (i, result)).instrument(all.clone());
    let limit = concurrent_nodes(items.len(), open_files());
    // `buffered` would start no further node behind a slow one
    let mut results: Vec<(usize, T)> =
        stream::iter(items).enumerate().map(numbered).buffer_unordered(limit).collect().await;
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The nodes on which all steps so far have succeeded, and the failures of the others.
#[derive(Debug)]
pub struct NodeResults<T> {
    /// What the last step returned for each node.
    pub ok: Vec<T>,
    /// The failures.
    pub failed: Vec<NodeError>,
}

impl<T> FromIterator<Result<T, NodeError>> for NodeResults<T> {
    /// Splits results. It reports no failure.
    fn from_iter<I: IntoIterator<Item = Result<T, NodeError>>>(results: I) -> NodeResults<T> {
        let (mut ok, mut failed) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(value) => ok.push(value),
                Err(error) => failed.push(error),
            }
        }
        NodeResults { ok, failed }
    }
}

/// Performs a step on all nodes at once, and reports each failure when it happens: what runs on a node returns its failure and does not
/// report it.
pub async fn each_node<I, T, F>(items: Vec<I>, events: &Events, step: impl Fn(I) -> F) -> NodeResults<T>
where
    F: Future<Output = Result<T, NodeError>>,
{
    let reported = |item| step(item).map(|result| events.report(result));
    for_each_node(items, reported).await.into_iter().collect()
}

impl<T> NodeResults<T> {
    /// Performs the next step on the nodes that are left, all at once.
    pub async fn then<U, F>(self, events: &Events, step: impl Fn(T) -> F) -> NodeResults<U>
    where
        F: Future<Output = Result<U, NodeError>>,
    {
        let NodeResults { ok, failed } = each_node(self.ok, events, step).await;
        NodeResults { ok, failed: [self.failed, failed].concat() }
    }

    /// Leaves out the nodes that failed in a step for all of them, and reports that. `name`: the node's name.
    #[must_use]
    pub fn without(self, events: &Events, failed: Vec<NodeError>, name: impl Fn(&T) -> &str) -> NodeResults<T> {
        failed.iter().for_each(|error| events.failed(error));
        self.leave_out(failed, name)
    }

    /// Leaves out nodes whose failures have been reported.
    #[must_use]
    pub fn leave_out(self, failed: Vec<NodeError>, name: impl Fn(&T) -> &str) -> NodeResults<T> {
        let is_left = |node: &T| failed.iter().all(|error| error.node != name(node));
        NodeResults { ok: self.ok.into_iter().filter(is_left).collect(), failed: [self.failed, failed].concat() }
    }

    /// Returns all results, or all failures as one error.
    ///
    /// # Errors
    /// [`Error::Nodes`] if one failed.
    pub fn all(self) -> Result<Vec<T>, Error> {
        if self.failed.is_empty() { Ok(self.ok) } else { Err(Error::Nodes { failed: self.failed, done: 0 }) }
    }
}

/// Returns all results of what is no step on the nodes, or all failures as one error. Reports the failures.
///
/// # Errors
/// [`Error::Nodes`] if one failed.
pub fn all<T>(events: &Events, results: Vec<Result<T, NodeError>>) -> Result<Vec<T>, Error> {
    results.into_iter().map(|result| events.report(result)).collect::<NodeResults<T>>().all()
}

/// Reports that nodes have to wait for each other because few files may be open.
pub(super) fn note_few_files(nodes: usize, open_files: Option<u64>, events: &Events) {
    let limit = concurrent_nodes(nodes, open_files);
    if let Some(files) = open_files.filter(|_| limit < nodes.min(MAX_CONCURRENT_NODES)) {
        events.note(format!(
            "working on {limit} of {nodes} nodes at a time, because hvdctl may open only {files} files (`ulimit -Hn`)"
        ));
    }
}

/// Returns the error of a command that changes nothing, because nodes cannot be reached or give no root.
pub fn unreached(failed: Vec<NodeError>) -> Error {
    if failed.iter().any(|e| e.kind == Kind::Unreachable) {
        Error::Unreachable(failed)
    } else {
        Error::Nodes { failed, done: 0 }
    }
}

/// Observes a node's system in one round trip.
///
/// # Errors
/// When there is no root, or the time is over.
pub async fn facts(cluster: &Cluster, member: &Member) -> Result<Facts, NodeError> {
    let script = Script::new(FACTS)
        .with("ssh_dir", &cluster.ssh_dir)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("projects_dir", &cluster.projects_dir)
        .with("data_dir", &cluster.data_dir)
        .with("cluster", &cluster.name)
        .with("port", &cluster.port.to_string());
    let asked = now();
    let output = member.transport.script(&script, "read the node state").await?;
    Ok(Facts::parse(&String::from_utf8_lossy(&output)).between(asked, now()))
}

/// Observes a node's engine.
///
/// # Errors
/// With the engine's message.
pub async fn engine(cluster: &Cluster, member: &Member) -> Result<RuntimeState, NodeError> {
    let engine = member.runtime().await?;
    let containers = engine.containers().await?;
    let image = engine.image(&cluster.image).await?;
    Ok(RuntimeState { engine, containers, image })
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
    Ok(ObservedNode { facts: facts?, runtime: runtime?, member })
}

/// Returns who runs this command, as `user@host`.
pub fn operator() -> String {
    let named = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    // cron, containers and services set no variable
    let by_id = || {
        let id = rustix::process::getuid().as_raw().to_string();
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let name = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, _, uid) = (fields.next()?, fields.next()?, fields.next()?);
            (uid == id).then(|| name.to_owned())
        });
        name.unwrap_or(format!("uid{id}"))
    };
    let user = named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(by_id);
    format!("{user}@{}", host_name())
}

/// Returns the host name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the seconds since the epoch by our clock.
pub fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map(|d| d.as_secs_f64()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;

    #[test]
    fn the_expression_is_escaped_in_the_error() {
        let selected = |on| Target::new(Inventory::local("node1", "image"), Some(on));
        let message = |on| selected(on).expect_err("no node").to_string();
        assert!(message("node2").starts_with("--on node2: no node is named node2"), "{}", message("node2"));
        assert!(message("\u{1b}[31m").starts_with("--on \"\\u{1b}[31m\": "), "{}", message("\u{1b}[31m"));
    }

    #[test]
    fn few_open_files_are_for_fewer_nodes_at_a_time() {
        let limits = [(None, 64), (Some(65_536), 64), (Some(1024), 41), (Some(256), 3), (Some(20), 1)];
        for (open_files, nodes) in limits {
            assert_eq!(concurrent_nodes(128, open_files), nodes, "{open_files:?}");
        }
        let noted = |nodes, open_files| {
            let (events, receiver) = Events::channel();
            note_few_files(nodes, Some(open_files), &events);
            receiver.receive(std::time::Duration::ZERO).is_ok()
        };
        assert_eq!([noted(128, 256), noted(128, 4096), noted(2, 256), noted(4, 128)], [true, false, false, true]);
    }

    #[tokio::test]
    async fn one_that_hangs_holds_up_none_of_many() {
        // the first ends only when the last has: with a queue behind it that would never be
        let last = Notify::new();
        let count = 3 * MAX_CONCURRENT_NODES;
        let work = for_each_node((0..count).collect(), async |i| {
            match i {
                0 => last.notified().await,
                i if i == count - 1 => last.notify_one(),
                _ => {}
            }
            i
        });
        let results = tokio::time::timeout(std::time::Duration::from_secs(60), work).await.expect("it hangs");
        assert_eq!(results, (0..count).collect::<Vec<_>>());
    }
}
