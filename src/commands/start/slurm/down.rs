//! `hvdctl slurm down`.

use crate::cli::SlurmDown;
use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::shared::context::{Context, node_rows};
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::event::Step;
use crate::inventory::Cluster;
use crate::job::cleanup::stop_limit;
use crate::job::manage::running;
use crate::launch::programs::QUEUE_WAIT;
use crate::runtime::Runtime;
use crate::runtime::container::{SLURM, with_role};
use crate::runtime::spec::{LABEL_SPEC_FULL, Role};
use crate::schedule::queue::daemons::{ANSWER_LIMIT, PAUSE};
use crate::text::units::count;
use crate::transport::node::Script;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::{Instant, sleep};

const REMOVE: &str = concat!(
    include_str!("../../../scripts/node/close.sh"),
    include_str!("../../../scripts/node/permissions.sh"),
    include_str!("../../../scripts/slurm/nodes/remove.sh")
);

/// The result of `slurm down` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SlurmDownNode {
    /// True if anything was removed.
    pub changed: bool,
}

/// `slurm down`.
pub async fn run(options: &SlurmDown, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let cluster = target.cluster();
    let members = context.connect_and_lock().await?;
    let listed = each_node(members, events, async |member: Member| {
        let runtime = member.runtime().await?;
        let listed = runtime.containers().await?;
        // the daemons first: the agent still answers their hooks
        let found = [Role::Slurm, Role::SlurmAgent].map(|role| with_role(cluster, &listed, role).cloned());
        Ok((member, runtime, found))
    });
    let nodes = session.cancellation.run(async { listed.await.all() }).await?;
    session.cancellation.run(end_jobs(cluster, &nodes[0].1, options.force)).await?;
    let removed = each_node(nodes, events, async |(member, runtime, found)| {
        let _step = events.begin(&member.node.name, Step::write(format!("removing {SLURM}")));
        let changed = found.iter().any(Option::is_some);
        for container in found.iter().flatten() {
            runtime.remove(&container.id).await?;
        }
        let script = Script::new(REMOVE).with("directory", &cluster.slurm_dir()).with("jobs_dir", &cluster.jobs_dir);
        member.transport.script(&script, "remove the files of Slurm").await?;
        session.progress.record(&member.node.name, format!("removed {SLURM}"));
        events.done(&member.node.name, "removed");
        Ok(NodeEntry::new(&member.node.name, true, SlurmDownNode { changed }))
    });
    let removed = removed.await;
    session.progress.failed(&removed.failed);
    session.cancellation.check()?;
    Ok(outcome(removed))
}

pub(crate) fn outcome(nodes: NodeResults<NodeEntry<SlurmDownNode>>) -> Outcome {
    let done = |node: &SlurmDownNode| match node.changed {
        true => format!("removed {SLURM}"),
        false => "nothing to do".to_owned(),
    };
    Outcome::of_nodes(node_rows(&nodes.ok, done), nodes, &[])
}

/// Checks that no job is in the queue or has its nodes from there, or stops these jobs and waits for their end.
async fn end_jobs(cluster: &Cluster, master: &Runtime, force: bool) -> Result<(), Error> {
    let found = launchers(cluster, master).await?;
    if !(found.is_empty() || force) {
        return Err(Error::check(
            format!("Slurm has {} in its queue", count(found.len(), "job")),
            "wait until they have ended, or stop them: hvdctl slurm down --force",
        ));
    }
    for container in &found {
        master.terminate(container).await?;
    }
    let until = Instant::now() + stop_limit(cluster) + ANSWER_LIMIT;
    while !launchers(cluster, master).await?.is_empty() {
        if Instant::now() > until {
            let cause = "its jobs have not ended";
            return Err(NodeError::failed(master.node(), "remove Slurm", cause)
                .hint("hvdctl jobs, hvdctl stop")
                .into());
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Returns the containers of the launchers of queued jobs that are up. All are on the master.
async fn launchers(cluster: &Cluster, master: &Runtime) -> Result<Vec<String>, NodeError> {
    let containers = master.containers().await?;
    let is_queued = |spec: &str| spec.contains(QUEUE_WAIT);
    let found = running(cluster, &containers).filter(|one| one.label(LABEL_SPEC_FULL).is_some_and(is_queued));
    Ok(found.map(|one| one.id.clone()).collect())
}
