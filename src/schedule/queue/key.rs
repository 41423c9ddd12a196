//! The key by which the daemons of the cluster's queue know one another. Who has it commands the daemons of all
//! nodes, so a node that leaves must not keep one that is in use.

use super::daemons;
use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::error::NodeError;
use crate::event::Events;
use crate::inventory::Cluster;
use crate::schedule::queue::config::SlurmNode;
use crate::secret::Secret;
use crate::transport::node::Script;
use zeroize::Zeroizing;

const KEY: &str = concat!(
    include_str!("../../scripts/node/close.sh"),
    include_str!("../../scripts/node/permissions.sh"),
    include_str!("../../scripts/slurm/nodes/key.sh")
);
const GIVE: &str = concat!(
    include_str!("../../scripts/node/close.sh"),
    include_str!("../../scripts/node/permissions.sh"),
    include_str!("../../scripts/slurm/nodes/give_key.sh")
);
const HAS_KEY: &str = include_str!("../../scripts/slurm/nodes/has_key.sh");
const GIVEN: &str = include_str!("../../scripts/slurm/nodes/given.sh");

/// The key, as the master has it.
pub struct MungeKey {
    /// The key in base64.
    pub key: Secret,
    /// Why it was made just now, or has to be recorded; `None` for one that was there.
    pub renewed: Option<Renewal>,
}

/// Why there is a new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// There was none.
    First,
    /// An earlier hvdctl made the old one, and did not record which nodes have it.
    Unknown,
    /// A node that had the old one is no longer in the inventory.
    Left,
    /// `keys rotate`.
    Asked,
    /// It is an old one, and it is not recorded which nodes have it: an earlier command was cut off.
    Unrecorded,
}

impl Renewal {
    fn parse(word: &str) -> Option<Renewal> {
        match word {
            "first" => Some(Renewal::First),
            "unknown" => Some(Renewal::Unknown),
            "left" => Some(Renewal::Left),
            "asked" => Some(Renewal::Asked),
            "unrecorded" => Some(Renewal::Unrecorded),
            _ => None,
        }
    }

    /// Returns what the operator is told; `None` where nothing was replaced, or it was asked for.
    pub fn message(self) -> Option<&'static str> {
        match self {
            Renewal::First | Renewal::Asked | Renewal::Unrecorded => None,
            Renewal::Unknown => {
                Some("Slurm's daemons get a new key: an earlier hvdctl made the old one, which former nodes may have")
            }
            Renewal::Left => Some("Slurm's daemons get a new key: a node that has the old one left the inventory"),
        }
    }
}

/// Returns how nodes are named where it is recorded who has the key: another machine of the same name is another one.
fn names(nodes: &[SlurmNode]) -> String {
    nodes.iter().map(|node| format!("{} {}", node.name, node.address)).collect::<Vec<_>>().join("\n")
}

async fn of_master(cluster: &Cluster, master: &Member, nodes: &str, renew: &str) -> Result<MungeKey, NodeError> {
    let script = Script::new(KEY).with("directory", &cluster.slurm_dir()).with("nodes", nodes).with("renew", renew);
    let printed = Zeroizing::new(master.transport.script(&script, "make the key of Slurm's daemons").await?);
    let text = Zeroizing::new(String::from_utf8_lossy(&printed).into_owned());
    let (why, key) = text.split_once('\n').unwrap_or_default();
    Ok(MungeKey { key: Secret::new(Zeroizing::new(key.trim().to_owned())), renewed: Renewal::parse(why) })
}

/// Returns the key. The master keeps it, and makes a new one if it has none or a node that had it has left.
///
/// # Errors
/// [`NodeError`] with the node's message.
pub async fn current(cluster: &Cluster, master: &Member, nodes: &[SlurmNode]) -> Result<MungeKey, NodeError> {
    of_master(cluster, master, &names(nodes), "").await
}

/// Records on the master which nodes have the key.
///
/// # Errors
/// [`NodeError`] with the node's message.
pub async fn record(cluster: &Cluster, master: &Member, nodes: &[&str]) -> Result<(), NodeError> {
    let script = Script::new(GIVEN).with("directory", &cluster.slurm_dir()).with("nodes", &nodes.join("\n"));
    master.transport.script(&script, "record who has the key of Slurm's daemons").await.map(drop)
}

/// Returns true if the master has a key, and so the cluster a queue.
///
/// # Errors
/// [`NodeError`] with the node's message.
pub async fn exists(cluster: &Cluster, master: &Member) -> Result<bool, NodeError> {
    let script = Script::new(HAS_KEY).with("directory", &cluster.slurm_dir());
    let printed = master.transport.script(&script, "look for the key of Slurm's daemons").await?;
    Ok(!printed.is_empty())
}

/// Replaces the key on these nodes. Returns those that have it.
///
/// # Errors
/// [`NodeError`] of the master.
pub async fn renew(
    cluster: &Cluster,
    master: &Member,
    members: &[Member],
    events: &Events,
) -> Result<NodeResults<String>, NodeError> {
    let made = of_master(cluster, master, "", "asked").await?;
    let given = each_node(members.iter().collect(), events, async |member: &Member| {
        let script = Script::new(GIVE).with("directory", &cluster.slurm_dir()).with("key", made.key.expose());
        member.transport.script(&script, "write the key of Slurm's daemons").await?;
        let runtime = member.runtime().await?;
        daemons::restart(cluster, &runtime, member).await?;
        Ok(member.node.name.clone())
    });
    let given = given.await;
    let have: Vec<&str> = given.ok.iter().map(String::as_str).collect();
    record(cluster, master, &have).await?;
    Ok(given)
}
