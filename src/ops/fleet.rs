//! The nodes of a command: reached all at once, each with what was seen of it.

use crate::core::facts::Facts;
use crate::core::hostset;
use crate::core::inventory::{Cluster, Inventory, Node};
use crate::core::plan::Seen;
use crate::edge::docker::Engine;
use crate::edge::link::{Link, Script};
use crate::edge::ssh::Control;
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use futures_util::stream::{self, StreamExt};
use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

/// At most this many nodes are worked on at the same time: enough for hundreds, without a fork storm here.
const AT_ONCE: usize = 64;

const FACTS: &str = include_str!("../edge/scripts/facts.sh");

/// Which nodes a command is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// The whole inventory.
    pub inventory: Inventory,
    /// The selected nodes' names, in inventory order.
    pub selected: Vec<String>,
    /// Whether it is this machine alone, without ssh.
    pub local: bool,
}

impl Target {
    /// Selects by `--on`.
    ///
    /// # Errors
    /// When the expression names no node.
    pub fn new(inventory: Inventory, on: Option<&str>, local: bool) -> Result<Target, Error> {
        let all: Vec<String> = inventory.nodes.iter().map(|n| n.name.clone()).collect();
        let selected = match on {
            Some(expression) => hostset::select(expression, &all)
                .map_err(|e| Error::usage(e.to_string(), "names as in the inventory, node[01-16], a,b, !c"))?,
            None => all,
        };
        Ok(Target { inventory, selected, local })
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

/// One node with a link.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its line in the inventory.
    pub node: Node,
    /// The way to it.
    pub link: Arc<Link>,
}

/// What was seen of a node's engine.
#[derive(Clone)]
pub struct EngineSeen {
    /// The engine itself.
    pub engine: Engine,
    /// Its containers.
    pub containers: Vec<Seen>,
    /// The id that the cluster's image has there.
    pub image_id: Option<String>,
}

/// A node with all that a plan needs.
#[derive(Clone)]
pub struct Observed {
    /// The node and its link.
    pub member: Member,
    /// Its facts.
    pub facts: Facts,
    /// Its engine.
    pub docker: EngineSeen,
}

impl Observed {
    /// The node's name.
    pub fn name(&self) -> &str {
        &self.member.node.name
    }

    /// The id of the cluster's image.
    ///
    /// # Errors
    /// When the node does not have it.
    pub fn image_id(&self, cluster: &Cluster) -> Result<&str, NodeError> {
        self.docker.image_id.as_deref().ok_or_else(|| {
            NodeError::failed(self.name(), &format!("find the image {}", cluster.image), "No such image").hint(format!(
                "load it there: docker pull {0} on the node, or docker save {0} | ssh {1} sudo docker load",
                cluster.image, self.member.node.host
            ))
        })
    }
}

/// Does the same on many nodes at once; the results come in the nodes' order, and every node is finished whatever
/// becomes of the others.
pub async fn each<I, T, F>(items: Vec<I>, work: impl Fn(I) -> F) -> Vec<T>
where
    F: Future<Output = T>,
{
    stream::iter(items).map(work).buffered(AT_ONCE).collect().await
}

/// Splits results, telling the failures.
pub fn split<T>(events: &Events, results: Vec<Result<T, NodeError>>) -> (Vec<T>, Vec<NodeError>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(error) => {
                events.send(Event::Failed(error.clone()));
                bad.push(error);
            }
        }
    }
    (good, bad)
}

/// The results of a step after which nothing is done yet, or all failures as one error.
///
/// # Errors
/// [`Error::Nodes`] when one failed.
pub fn all<T>(events: &Events, results: Vec<Result<T, NodeError>>) -> Result<Vec<T>, Error> {
    let (good, failed) = split(events, results);
    if failed.is_empty() { Ok(good) } else { Err(Error::Nodes { failed, done: 0 }) }
}

/// Reaches the nodes; each comes with its link or the reason why not.
///
/// # Errors
/// When the operator's own machine is at fault (no ssh, no room for a control socket).
pub async fn connect(target: &Target, events: &Events) -> Result<Vec<Result<Member, NodeError>>, Error> {
    let control = if target.local { None } else { Some(Arc::new(Control::new(target.cluster())?)) };
    Ok(each(target.nodes(), async |node| {
        events.busy(&node.name, "connecting");
        let link = Link::open(target.cluster(), &node, control.clone()).await?;
        Ok(Member { node, link })
    })
    .await)
}

/// Reaches all nodes, or changes nothing.
///
/// # Errors
/// [`Error::Unreachable`] with every node that cannot be reached.
pub async fn connect_all(target: &Target, events: &Events) -> Result<Vec<Member>, Error> {
    let (members, failed) = split(events, connect(target, events).await?);
    if failed.is_empty() { Ok(members) } else { Err(Error::Unreachable(failed)) }
}

/// Looks at a node's system: one round trip.
///
/// # Errors
/// When root cannot be had on it, or the time is over.
pub async fn facts(cluster: &Cluster, member: &Member) -> Result<Facts, NodeError> {
    let script = Script::new(FACTS).with("ssh_dir", &cluster.ssh_dir);
    let output = member.link.script(&script, "look at the node").await?;
    Ok(Facts::parse(&String::from_utf8_lossy(&output)))
}

/// Looks at a node's engine.
///
/// # Errors
/// With the engine's words.
pub async fn engine(cluster: &Cluster, member: &Member) -> Result<EngineSeen, NodeError> {
    let engine = Engine::connect(&member.link).await?;
    let containers = engine.containers().await?;
    let image_id = engine.image_id(&cluster.image).await?;
    Ok(EngineSeen { engine, containers, image_id })
}

/// Looks at both at once.
///
/// # Errors
/// The first of the two that failed.
pub async fn observe(cluster: &Cluster, member: Member, events: &Events) -> Result<Observed, NodeError> {
    events.busy(&member.node.name, "looking");
    let (facts, docker) = tokio::join!(facts(cluster, &member), engine(cluster, &member));
    Ok(Observed { facts: facts?, docker: docker?, member })
}

/// Seconds since the epoch by our clock.
pub fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map(|d| d.as_secs_f64()).unwrap_or_default()
}
