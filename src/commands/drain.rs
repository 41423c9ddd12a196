//! `hvdctl drain`.

use super::Outcome;
use super::context::{Context, node_rows};
use super::output::{DrainNode, NodeEntry};
use crate::cli::Drain;
use crate::cluster::nodes::{Member, NodeResults, Target, facts, now, operator};
use crate::error::{Error, NodeError};
use crate::job::record::{Record, open_records};
use crate::node::facts::{Drained, Facts};
use crate::transport::node::Script;

const DRAIN: &str = include_str!("../scripts/drain.sh");

/// `drain`. Takes no lock: each node needs one rename, which must not wait for a command that hangs.
pub async fn run(options: &Drain, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, .. } = context;
    let target = Target::new(target.inventory.clone(), Some(&options.nodes.join(",")))?;
    let drain = async |member: Member| drain(&target, &member, options.undo).await;
    Ok(outcome(fleet.members(&target, events).await?.then(events, drain).await))
}

async fn drain(target: &Target, member: &Member, undo: bool) -> Result<NodeEntry<DrainNode>, NodeError> {
    let cluster = target.cluster();
    let facts = facts(cluster, member).await?;
    let mark = (!undo).then(|| Drained { by: operator(), since: now() as u32 });
    // the first mark is kept
    let changed = facts.drained.is_some() != mark.is_some();
    if changed {
        let text = mark.as_ref().and_then(|mark| serde_json::to_string(mark).ok()).unwrap_or_default();
        let script =
            Script::new(DRAIN).with("jobs_dir", &cluster.jobs_dir).with("cluster", &cluster.name).with("mark", &text);
        member.transport.script(&script, if undo { "undo the drain" } else { "drain the node" }).await?;
    }
    let drained = if changed { mark } else { facts.drained.clone() };
    let (leaving, staying) = if undo { Default::default() } else { jobs(&member.node.name, &facts) };
    Ok(NodeEntry::new(&member.node.name, true, DrainNode { changed, drained, leaving, staying }))
}

/// The jobs with processes on a node: those that leave it, and those that stay until their end.
fn jobs(node: &str, facts: &Facts) -> (Vec<String>, Vec<String>) {
    let is_running = |record: &Record| facts.ranks.iter().any(|rank| rank.job == record.id && !rank.killed);
    let is_launcher = |record: &Record| record.placement.launcher() == node;
    let running = open_records(facts).filter(is_running);
    let (leaving, staying): (Vec<_>, Vec<_>) =
        running.partition(|record| record.min_ranks.is_some() && !is_launcher(record));
    let ids = |records: Vec<Record>| records.into_iter().map(|record| record.id).collect();
    (ids(leaving), ids(staying))
}

pub(super) fn outcome(nodes: NodeResults<NodeEntry<DrainNode>>) -> Outcome {
    let text = node_rows(&nodes.ok, |node| {
        let mut text = match (&node.drained, node.changed) {
            (Some(_), true) => "drained".to_owned(),
            (Some(mark), false) => format!("unchanged, {mark}"),
            (None, true) => "no longer drained".to_owned(),
            (None, false) => "unchanged, not drained".to_owned(),
        };
        let leaving = node.leaving.iter().map(|job| format!("; it leaves job {job}"));
        let staying = node.staying.iter().map(|job| format!("; job {job} stays until it ends"));
        text.extend(leaving.chain(staying));
        text
    });
    Outcome::of_nodes(text, nodes, &[])
}
