//! `hvdctl down`.

use super::output::{DownNode, NodeEntry};
use super::{Context, Outcome, Reached, connect_or_skip, in_session};
use crate::cli::Down;
use crate::cluster::nodes::{Member, RuntimeState, engine, for_each_node, split};
use crate::cluster::session::Session;
use crate::error::{Error, NodeError};
use crate::event::Step;
use crate::text::nodeset;
use crate::transport::node::Script;
use crate::worker::plan::{self, Operation};

const PURGE: &str = include_str!("../scripts/purge.sh");

/// `down`.
pub async fn run(options: &Down, context: Context) -> Result<Outcome, Error> {
    let work = async |session: &Session, context| work(options, session, context).await;
    in_session("hvdctl down", options.waiting, context, work).await
}

async fn work(options: &Down, session: &Session, context: Context) -> Result<Outcome, Error> {
    if options.purge {
        let question = format!(
            "remove the keys, the uploaded projects with all that jobs wrote into them, and the records of jobs of {} from \
             every node?",
            context.target.cluster().name
        );
        session.cancellation.run(context.confirm(&question)).await?;
    }
    let Context { target, events, .. } = context;
    let cluster = target.cluster();
    let reached = session.cancellation.run(connect_or_skip(&target, &events, options.skip_offline)).await?;
    let Reached { members, offline, refused } = reached;
    let unlocked = session.lock(&members).await?;
    let look = async {
        let look = async |member: Member| {
            let _step = events.begin(&member.node.name, Step::Observing);
            let RuntimeState { engine, containers, .. } = engine(cluster, &member).await?;
            Ok((member, engine, containers))
        };
        Ok(for_each_node(members.clone(), look).await)
    };
    let looked = session.cancellation.run(look).await?;
    let results = for_each_node(looked, async |looked| {
        let (member, engine, containers) = looked?;
        let node = member.node.name.clone();
        if let Some(error) = unlocked.iter().find(|error| error.node == node) {
            return Err(error.clone());
        }
        let mut removed = Vec::new();
        for operation in plan::down(&cluster.name, &containers) {
            if session.cancellation.check().is_err() {
                return Ok((node, removed));
            }
            if let Operation::Remove { name, id, .. } = operation {
                let _step = events.begin(&node, Step::RemovingContainer(name.clone()));
                engine.remove(&id).await?;
                session.progress.did(&node, format!("removed {name}"));
                removed.push(name);
            }
        }
        if session.cancellation.check().is_err() {
            return Ok((node, removed));
        }
        if options.purge {
            let _step = events.begin(&node, Step::Purging);
            let script = Script::new(PURGE)
                .with("ssh_dir", &cluster.ssh_dir)
                .with("projects_dir", &cluster.projects_dir)
                .with("jobs_dir", &cluster.jobs_dir)
                .with("cluster", &cluster.name);
            member.transport.script(&script, "remove keys, projects and records").await?;
            session.progress.did(&node, "removed keys, projects and records");
        }
        engine.remove_helpers(&cluster.name).await?;
        session.progress.done(&node);
        events.done(&node, "down");
        Ok((node, removed))
    })
    .await;
    let (done, mut failed) = split(&events, results);
    failed.extend(refused);
    session.progress.failed(&failed);
    session.cancellation.check()?;
    Ok(outcome(options.purge, &done, failed).skipping(&offline))
}

pub(super) fn outcome(purged: bool, done: &[(String, Vec<String>)], failed: Vec<NodeError>) -> Outcome {
    let (mut told, mut nodes) = (Vec::new(), Vec::new());
    for (node, removed) in done {
        let mut what =
            if removed.is_empty() { "nothing was up".to_owned() } else { format!("removed {}", removed.join(", ")) };
        if purged {
            what.push_str("; keys, projects and records removed");
        }
        told.push((node.clone(), what));
        let details = DownNode { changed: !removed.is_empty(), removed: removed.clone(), purged };
        nodes.push(NodeEntry::new(node, true, details));
    }
    Outcome::of_nodes(nodeset::rows(told), nodes, failed)
}
