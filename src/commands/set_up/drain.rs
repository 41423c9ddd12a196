//! `hvdctl drain`.

use crate::cli::{Drain, Global};
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::observation::{check_permissions, facts};
use crate::cluster::operator::{now, operator};
use crate::cluster::target::Target;
use crate::commands::Outcome;
use crate::commands::shared::context::{Context, node_rows};
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::node::facts::{Drained, Facts};
use crate::record::{Record, open_jobs};
use crate::transport::node::Script;
use schemars::JsonSchema;
use serde::Serialize;

/// A node as `drain` left it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DrainNode {
    /// True if something was changed.
    pub changed: bool,
    /// The user who drained it; null if it is not drained.
    pub drained: Option<Drained>,
    /// The elastic jobs that continue without it.
    pub leaving: Vec<String>,
    /// The jobs that stay there until their end: of a fixed size, or launched there.
    pub staying: Vec<String>,
}

const DRAIN: &str =
    concat!(include_str!("../../scripts/job/directory.sh"), include_str!("../../scripts/node/drain.sh"));

/// Checks that the nodes are named in one way.
///
/// # Errors
/// Nodes that `--on` names.
pub fn check(global: &Global) -> Result<(), Error> {
    match global.on {
        Some(_) => Err(Error::usage("drain takes its nodes as arguments, not with --on", "hvdctl drain NODE…")),
        None => Ok(()),
    }
}

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
    check_permissions(cluster, &member.node.name, &facts, &["jobs"])?;
    let mark = (!undo).then(|| Drained { by: operator(), since: now() as u32 });
    // the first mark is kept
    let changed = facts.drained.is_some() != mark.is_some();
    if changed {
        let operation = if undo { "undo the drain" } else { "drain the node" };
        let failed = |e| NodeError::failed(&member.node.name, operation, e);
        let text = mark.as_ref().map_or(Ok(String::new()), serde_json::to_string).map_err(failed)?;
        let script =
            Script::new(DRAIN).with("jobs_dir", &cluster.jobs_dir).with("cluster", &cluster.name).with("mark", &text);
        member.transport.script(&script, operation).await?;
    }
    let drained = if changed { mark } else { facts.drained.clone() };
    let (leaving, staying) = if undo { Default::default() } else { jobs(&member.node.name, &facts) };
    Ok(NodeEntry::new(&member.node.name, true, DrainNode { changed, drained, leaving, staying }))
}

/// The jobs with processes on a node: those that leave it, and those that stay until their end. One whose record cannot
/// be read stays.
fn jobs(node: &str, facts: &Facts) -> (Vec<String>, Vec<String>) {
    let is_running = |job: &str| facts.jobs.ranks.iter().any(|rank| rank.job == job && !rank.killed);
    let leaves = |record: &Record| record.min_ranks.is_some() && record.placement.launcher() != node;
    let running = open_jobs(&facts.jobs.recorded).filter(|(job, _)| is_running(job));
    let (leaving, staying): (Vec<_>, Vec<_>) = running.partition(|(_, record)| record.as_ref().is_ok_and(leaves));
    let ids = |jobs: Vec<(&str, _)>| jobs.into_iter().map(|(job, _)| job.to_owned()).collect();
    (ids(leaving), ids(staying))
}

pub(in crate::commands) fn outcome(nodes: NodeResults<NodeEntry<DrainNode>>) -> Outcome {
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
