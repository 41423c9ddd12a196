//! Jobs that are ended because their workers are replaced.

use super::cleanup::{SUPERVISOR_STOPS_WITHIN, clean_up_node};
use crate::cluster::nodes::{Observed, each};
use crate::error::NodeError;
use crate::event::Events;
use crate::inventory::Cluster;
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::Role;
use crate::worker::apply::Planned;
use crate::worker::plan::Operation;

/// Ends the jobs that the plans end, on all their nodes at once, before anything else is changed on any. A node where that fails is
/// left as it is.
pub async fn end_disrupted(
    cluster: &Cluster,
    planned: Vec<Planned>,
    events: &Events,
) -> Vec<Result<Planned, NodeError>> {
    // their supervisors first, which give the ranks the grace period and record the result
    let asked = each(planned, async |(seen, operations): Planned| {
        for (job, launcher) in ending(cluster, &seen, &operations) {
            events.busy(seen.name(), format!("ending the job {job}"));
            seen.docker.engine.terminate(launcher).await?;
            let ended = seen.docker.engine.wait(launcher);
            if let Ok(ended) = tokio::time::timeout(cluster.stop_grace + SUPERVISOR_STOPS_WITHIN, ended).await {
                ended?;
            }
        }
        Ok((seen, operations))
    })
    .await;
    each(asked, async |planned: Result<Planned, NodeError>| {
        let (seen, operations) = planned?;
        for operation in &operations {
            if let Operation::EndRun { job } = operation {
                events.busy(seen.name(), operation.to_string());
                clean_up_node(cluster, job, &seen.member, events).await?;
            }
        }
        for (_, launcher) in ending(cluster, &seen, &operations) {
            seen.docker.engine.remove(launcher).await?;
        }
        Ok((seen, operations))
    })
    .await
}

/// The runs that a plan ends whose launcher is on this node, and its container.
fn ending<'a>(cluster: &'a Cluster, seen: &'a Observed, operations: &'a [Operation]) -> Vec<(&'a str, &'a str)> {
    let jobs = operations.iter().filter_map(|operation| match operation {
        Operation::EndRun { job } => Some(job.as_str()),
        _ => None,
    });
    let launchers = |job: &'a str| {
        let ours =
            move |c: &&ContainerSummary| c.belongs_to(&cluster.name) && c.is(Role::Master) && c.job() == Some(job);
        seen.docker.containers.iter().filter(ours).map(move |c| (job, c.id.as_str()))
    };
    jobs.flat_map(launchers).collect()
}
