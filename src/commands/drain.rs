//! `hvdctl drain`.

use super::Outcome;
use super::context::{Context, NodeResults};
use super::output::{DrainNode, NodeEntry};
use crate::cli::Drain;
use crate::cluster::nodes::{Member, Target, connect, facts, now, operator, split};
use crate::error::{Error, NodeError};
use crate::job::record::{Record, open_records};
use crate::node::facts::{Drained, Facts};
use crate::text::nodeset;
use crate::transport::node::Script;

const DRAIN: &str = include_str!("../scripts/drain.sh");

/// `drain`. Takes no lock: each node needs one rename, which must not wait for a command that hangs.
pub async fn run(options: &Drain, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let chosen = Target::new(target.inventory.clone(), Some(&options.nodes.join(",")), target.local)?;
    let target = Target { selected: chosen.selected, ..target.clone() };
    let (ok, failed) = split(events, connect(&target, events).await?);
    let drain = async |member: Member| drain(&target, &member, options.undo).await;
    let NodeResults { ok, failed } = NodeResults { ok, failed }.then(events, drain).await;
    Ok(outcome(&ok, &failed))
}

/// What was done on a node.
pub(super) struct Done {
    pub(super) node: String,
    pub(super) result: DrainNode,
}

async fn drain(target: &Target, member: &Member, undo: bool) -> Result<Done, NodeError> {
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
    Ok(Done { node: member.node.name.clone(), result: DrainNode { changed, drained, leaving, staying } })
}

/// The jobs with processes on a node: those that leave it, and those that stay until their end.
fn jobs(node: &str, facts: &Facts) -> (Vec<String>, Vec<String>) {
    let is_running = |record: &Record| facts.ranks.iter().any(|rank| rank.job == record.id && !rank.killed);
    let is_launcher = |record: &Record| record.placement.shares.first().is_some_and(|share| share.node == node);
    let running = open_records(facts).filter(is_running);
    let (leaving, staying): (Vec<_>, Vec<_>) =
        running.partition(|record| record.min_ranks.is_some() && !is_launcher(record));
    let ids = |records: Vec<Record>| records.into_iter().map(|record| record.id).collect();
    (ids(leaving), ids(staying))
}

pub(super) fn outcome(done: &[Done], failed: &[NodeError]) -> Outcome {
    let rows = done.iter().map(|Done { node, result }| {
        let mut text = match (&result.drained, result.changed) {
            (Some(_), true) => "drained".to_owned(),
            (Some(mark), false) => format!("unchanged, {mark}"),
            (None, true) => "no longer drained".to_owned(),
            (None, false) => "unchanged, not drained".to_owned(),
        };
        let leaving = result.leaving.iter().map(|job| format!("; it leaves job {job}"));
        let staying = result.staying.iter().map(|job| format!("; job {job} stays until it ends"));
        text.extend(leaving.chain(staying));
        (node.clone(), text)
    });
    let text = nodeset::rows(rows);
    let nodes = done.iter().map(|done| NodeEntry::new(&done.node, true, done.result.clone())).collect();
    Outcome::of_nodes(text, nodes, failed)
}
