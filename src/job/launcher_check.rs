//! Whether the image has the launcher of a job, before anything is uploaded.

use super::plan::{HostAssignment, JobPlan};
use crate::error::Error;
use crate::inventory::Cluster;
use crate::runtime::container::{ContainerState, ContainerSummary};
use crate::runtime::spec::Role;

const FIND_PROGRAM: &str = include_str!("../scripts/launcher_check.sh");
const TRIED: &str = "check the image for the launcher";

/// Returns the cluster's worker on a node, if it is up.
pub(super) fn worker<'a>(cluster: &Cluster, host: &'a HostAssignment) -> Option<&'a ContainerSummary> {
    let is_worker =
        |c: &&ContainerSummary| c.belongs_to(&cluster.name) && c.is(Role::Worker) && c.state == ContainerState::Running;
    host.observed.docker.containers.iter().find(is_worker)
}

/// Checks in a worker that the image has the launcher, or Python if there is none. If no worker is up, the launch itself fails.
///
/// # Errors
/// The image does not have it; the worker's node does not answer.
pub async fn check(plan: &JobPlan) -> Result<(), Error> {
    let cluster = plan.target.cluster();
    let program = plan.commands[0].argv[0].as_str();
    let Some((host, worker)) = plan.hosts.iter().find_map(|host| Some((host, worker(cluster, host)?))) else {
        return Ok(());
    };
    let argv = ["sh", "-c", FIND_PROGRAM, "sh", program];
    let process = host.observed.docker.engine.exec(&worker.id, &argv, TRIED).await?;
    let output = process.finish(b"").await.map_err(|e| host.observed.member.transport.broken(TRIED, &e))?;
    if !output.stdout.starts_with(b"missing") {
        return Ok(());
    }
    Err(Error::check(
        format!("the image {} has no {program}", cluster.image),
        "hvdctl doctor lists the launchers of the image; choose one with --launcher, or set another cluster.image",
    ))
}
