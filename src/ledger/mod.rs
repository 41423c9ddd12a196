//! The ledgers of the nodes: what commands record of a node, on the node itself. `record/ledger.rs` has their form, `checks/grade.rs` the
//! grades that follow from them.

use crate::checks::grade::{Evidence, assess, kind};
use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::error::NodeError;
use crate::event::{Events, Message, Step};
use crate::inventory::Cluster;
use crate::model::grade::NodeGrade;
use crate::node::facts::Facts;
use crate::record::ledger::{LARGEST, Ledger};
use crate::text::units::count;
use crate::transport::node::Script;

const READ: &str = concat!(include_str!("../scripts/ledger/system.sh"), include_str!("../scripts/ledger/read.sh"));

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
        events.note(Message::of(name, format!("its ledger has {lines} that cannot be read, and the rest counts")));
    }
    if ledger.newer > 0 {
        let entries = if ledger.newer == 1 { "1 entry".to_owned() } else { format!("{} entries", ledger.newer) };
        events.note(Message::of(name, format!("its ledger has {entries} of a newer hvdctl, and the rest counts")));
    }
    Ok(ledger)
}

/// Grades these nodes by their ledgers, the best first, and compares them with those of their kind among them. A node whose ledger cannot
/// be read has failed.
pub async fn grades(cluster: &Cluster, nodes: &[(&Member, &Facts)], events: &Events) -> NodeResults<NodeGrade> {
    let NodeResults { ok, failed } = each_node(nodes.to_vec(), events, async |(member, facts): (&Member, &Facts)| {
        evidence(cluster, member, facts, events).await
    })
    .await;
    NodeResults { ok: assess(&ok).into_iter().map(|assessed| assessed.grade).collect(), failed }
}

/// Returns what is known of a node.
///
/// # Errors
/// As [`read`].
pub async fn evidence(
    cluster: &Cluster,
    member: &Member,
    facts: &Facts,
    events: &Events,
) -> Result<Evidence, NodeError> {
    let ledger = read(cluster, member, events).await?;
    Ok(Evidence { node: member.node.name.clone(), kind: kind(facts, &ledger.driver), ledger })
}
