//! The ledgers of the nodes: what commands record of a node, on the node itself. `ledger` has their form, `assessment`
//! the grades that follow from them.

use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::error::NodeError;
use crate::event::{Events, Message, Step};
use crate::grade::assessment::{Evidence, assess, kind, unknown_kind};
use crate::grade::ledger::{self, LARGEST, Ledger, LedgerEvent};
use crate::inventory::Cluster;
use crate::model::grade::NodeGrade;
use crate::node::facts::Facts;
use crate::text::units::count;
use crate::transport::node::Script;

const READ: &str = concat!(include_str!("../scripts/ledger/system.sh"), include_str!("../scripts/ledger/read.sh"));
const APPEND: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/ledger/system.sh"),
    include_str!("../scripts/ledger/append.sh")
);

/// Reads a node's ledger; one that has none is empty. Lines that cannot be read are reported.
///
/// # Errors
/// When the node cannot be asked, or its file cannot be read.
pub async fn read(cluster: &Cluster, member: &Member, events: &Events) -> Result<Ledger, NodeError> {
    let name = &member.node.name;
    let _step = events.begin(name, Step::read("reading its ledger"));
    let script = Script::new(READ)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("cluster", &cluster.name)
        .with("most", &LARGEST.to_string());
    let ledger = Ledger::parse(&member.transport.script(&script, "read its ledger").await?);
    if ledger.damaged > 0 {
        let lines = count(ledger.damaged, "line");
        events.note(Message::of(name, format!("its ledger has {lines} that cannot be read; the rest counts")));
    }
    if ledger.newer > 0 {
        let entries = if ledger.newer == 1 { "1 entry".to_owned() } else { format!("{} entries", ledger.newer) };
        events.note(Message::of(name, format!("its ledger has {entries} of a newer hvdctl; the rest counts")));
    }
    Ok(ledger)
}

/// Grades these nodes by their ledgers, the best first, and compares them with those of their kind among them. A node
/// whose ledger cannot be read has failed.
pub async fn grades(cluster: &Cluster, nodes: &[(&Member, &Facts)], events: &Events) -> NodeResults<NodeGrade> {
    let NodeResults { ok, failed } = each_node(nodes.to_vec(), events, async |(member, facts): (&Member, &Facts)| {
        Ok(evidence(member, facts, read(cluster, member, events).await?, events))
    })
    .await;
    NodeResults { ok: assess(&ok).into_iter().map(|assessed| assessed.grade).collect(), failed }
}

/// Returns a node's evidence. Warns if its kind is not known for certain.
pub fn evidence(member: &Member, facts: &Facts, ledger: Ledger, events: &Events) -> Evidence {
    let node = &member.node;
    if let Some(why) = unknown_kind(node, facts) {
        let message = format!("its kind is not known for certain, so its grade may be wrong: {why}");
        events.warn(Message::of(&node.name, message).hint("hvdctl doctor"));
    }
    Evidence { node: node.name.clone(), kind: kind(node, facts, &ledger.driver), ledger }
}

/// Adds events to a node's ledger; and that the node was booted or has another driver, if that is so.
///
/// # Errors
/// When the node cannot be asked, its disk is full, or another command writes for a long time.
pub async fn append(
    cluster: &Cluster,
    member: &Member,
    found: &[LedgerEvent],
    events: &Events,
) -> Result<(), NodeError> {
    let name = &member.node.name;
    // a step that writes is a line in a log, of each node at the end of every command
    let _step = events.begin(name, Step::read("recording in its ledger"));
    let operation = "record in its ledger";
    let lines = ledger::lines(found).map_err(|error| NodeError::failed(name, operation, error))?;
    let script = Script::new(APPEND)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("cluster", &cluster.name)
        .with("entries", lines.trim_end())
        .with("most", &LARGEST.to_string());
    member.transport.script(&script, operation).await.map(drop)
}
