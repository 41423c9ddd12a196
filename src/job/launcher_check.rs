//! Checks, before anything is uploaded, that the image has the launcher.

use super::plan::JobPlan;
use crate::error::Error;
use crate::runtime::container::running_worker;

const FIND_PROGRAM: &str = include_str!("../scripts/launcher_check.sh");
const OPERATION: &str = "check the image for the launcher";

/// Checks in a worker that the image has the launcher, or Python if there is none. If no worker is up, the launch itself fails.
///
/// # Errors
/// The image does not have it; the worker's node does not answer.
pub async fn check(plan: &JobPlan) -> Result<(), Error> {
    let cluster = plan.shared_cluster();
    let program = plan.commands[0].argv[0].as_str();
    let mut engines = plan.hosts.iter().map(|host| &host.observed.runtime);
    let Some((runtime, worker)) =
        engines.find_map(|runtime| Some((runtime, running_worker(cluster, &runtime.containers)?)))
    else {
        return Ok(());
    };
    let argv = ["sh", "-c", FIND_PROGRAM, "sh", program];
    let output = runtime.engine.run_in(&worker.id, &argv, b"", OPERATION, cluster.command_timeout).await?;
    if !output.stdout.starts_with(b"missing") {
        return Ok(());
    }
    Err(Error::check(
        format!("the image {} has no {program}", cluster.image),
        "hvdctl doctor lists the launchers of the image; choose one with --launcher, or set another cluster.image",
    ))
}
