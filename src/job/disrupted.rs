//! Jobs that are ended because their workers are replaced.

use super::cleanup::{SUPERVISOR_STOPS_WITHIN, clean_up_node};
use crate::cluster::nodes::for_each_node;
use crate::error::NodeError;
use crate::event::{Events, Step};
use crate::inventory::Cluster;
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::Role;
use crate::worker::apply::WorkerPlan;

/// Ends the jobs that the plans end, on all their nodes at once, before anything else is changed on any. A node where that fails is
/// left as it is.
pub async fn end_disrupted(
    cluster: &Cluster,
    plans: Vec<WorkerPlan>,
    events: &Events,
) -> Vec<Result<WorkerPlan, NodeError>> {
    // their supervisors first, which give the ranks the grace period and record the result
    let stopped = for_each_node(plans, async |plan: WorkerPlan| {
        let engine = &plan.observed.docker.engine;
        for (job, launcher) in launchers(cluster, &plan) {
            let _step = events.begin(plan.node(), Step::EndingJob(job.to_owned()));
            engine.terminate(launcher).await?;
            let limit = cluster.stop_grace + SUPERVISOR_STOPS_WITHIN;
            if let Ok(ended) = tokio::time::timeout(limit, engine.wait(launcher)).await {
                ended?;
            }
        }
        Ok(plan)
    })
    .await;
    for_each_node(stopped, async |plan: Result<WorkerPlan, NodeError>| {
        let plan = plan?;
        for job in &plan.end_jobs {
            let _step = events.begin(plan.node(), Step::EndingJob(job.clone()));
            clean_up_node(cluster, job, &plan.observed.member, events).await?;
        }
        for (_, launcher) in launchers(cluster, &plan) {
            plan.observed.docker.engine.remove(launcher).await?;
        }
        Ok(plan)
    })
    .await
}

/// The jobs to be ended whose launcher is on this node, and its container.
fn launchers<'a>(cluster: &'a Cluster, plan: &'a WorkerPlan) -> Vec<(&'a str, &'a str)> {
    let containers_of = |job: &'a String| {
        let ours =
            move |c: &&ContainerSummary| c.belongs_to(&cluster.name) && c.is(Role::Master) && c.job() == Some(job);
        plan.observed.docker.containers.iter().filter(ours).map(move |c| (job.as_str(), c.id.as_str()))
    };
    plan.end_jobs.iter().flat_map(containers_of).collect()
}
