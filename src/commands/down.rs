//! `hvdctl down`: connect, lock, list the containers, remove them, and with `--purge` the files.

use super::Outcome;
use super::context::{Connected, Context, NodeResults};
use super::output::{DownNode, NodeEntry};
use crate::cli::Down;
use crate::cluster::nodes::{Member, RuntimeState, engine, for_each_node, split};
use crate::error::{Error, NodeError};
use crate::event::Step;
use crate::text::nodeset;
use crate::transport::node::Script;
use crate::worker::plan::{self, Operation};

const PURGE: &str = include_str!("../scripts/purge.sh");

/// `down`.
pub async fn run(options: &Down, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let cluster = target.cluster();
    if options.purge {
        let question = format!(
            "remove the keys, the uploaded projects with all outputs of jobs, and the job records of {} from every node?",
            cluster.name
        );
        context.confirm(&question).await?;
    }
    let Connected { members, offline, refused } = context.connect_or_skip(options.skip_offline).await?;
    let unlocked = session.lock(&members).await?;
    let list = async |member: Member| {
        let _step = events.begin(&member.node.name, Step::OBSERVING);
        if let Some(error) = unlocked.iter().find(|error| error.node == member.node.name) {
            return Err(error.clone());
        }
        let state = engine(cluster, &member).await?;
        Ok((member, state))
    };
    let listing = async { Ok(for_each_node(members, list).await) };
    let (ok, failed) = split(events, session.cancellation.run(listing).await?);
    let remove = async |(member, state): (Member, RuntimeState)| remove(options.purge, context, &member, state).await;
    let NodeResults { ok: done, mut failed } = NodeResults { ok, failed }.then(events, remove).await;
    failed.extend(refused);
    session.progress.failed(&failed);
    session.cancellation.check()?;
    Ok(outcome(options.purge, &done, &failed).skipping(&offline))
}

/// Removes a node's containers, and with `purge` its files. Returns the removed containers. Stops between two steps if the command is
/// cancelled.
async fn remove(
    purge: bool,
    context: &Context,
    member: &Member,
    state: RuntimeState,
) -> Result<(String, Vec<String>), NodeError> {
    let Context { target, events, session, .. } = context;
    let (cluster, node) = (target.cluster(), member.node.name.clone());
    let is_cancelled = || session.cancellation.check().is_err();
    let mut removed = Vec::new();
    for operation in plan::down(&cluster.name, &state.containers) {
        if is_cancelled() {
            return Ok((node, removed));
        }
        if let Operation::Remove { name, id, .. } = operation {
            let _step = events.begin(&node, Step::write(format!("removing {name}")));
            state.engine.remove(&id).await?;
            session.progress.did(&node, format!("removed {name}"));
            removed.push(name);
        }
    }
    if is_cancelled() {
        return Ok((node, removed));
    }
    if purge {
        let _step = events.begin(&node, Step::write("removing keys, projects and records"));
        let script = Script::new(PURGE)
            .with("ssh_dir", &cluster.ssh_dir)
            .with("projects_dir", &cluster.projects_dir)
            .with("jobs_dir", &cluster.jobs_dir)
            .with("cluster", &cluster.name);
        member.transport.script(&script, "remove keys, projects and records").await?;
        session.progress.did(&node, "removed keys, projects and records");
    }
    state.engine.remove_helpers(&cluster.name).await?;
    session.progress.done(&node);
    events.done(&node, "down");
    Ok((node, removed))
}

pub(super) fn outcome(purged: bool, done: &[(String, Vec<String>)], failed: &[NodeError]) -> Outcome {
    let row = |(node, removed): &(String, Vec<String>)| {
        let what = if removed.is_empty() { "no containers".into() } else { format!("removed {}", removed.join(", ")) };
        let files = if purged { "; removed keys, projects and records" } else { "" };
        (node.clone(), what + files)
    };
    let entry = |(node, removed): &(String, Vec<String>)| {
        NodeEntry::new(node, true, DownNode { changed: !removed.is_empty(), removed: removed.clone(), purged })
    };
    Outcome::of_nodes(nodeset::rows(done.iter().map(row)), done.iter().map(entry).collect(), failed)
}
