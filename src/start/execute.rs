//! Launches a job and watches it to its end, for `train`, `run` and `verify`.

use super::plan::JobPlan;
pub use super::prepare::gather_outputs;
use super::prepare::{Workspaces, check_workspaces, prepare};
use crate::cluster::operator::now;
use crate::cluster::session::Session;
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Events, Phase, Step};
use crate::job::follow::Follow;
use crate::job::node_log::logs;
use crate::job::watch::Watch;
use crate::launch;
use crate::model::fault::Fault;
use crate::random;
use crate::record::frames::Frame;
use crate::record::monitor::Monitor;
use crate::record::outcome::JobOutcome;
use crate::record::{JobResult, JobState};
use crate::runtime::Runtime;
use crate::runtime::spec::ContainerSpec;
use std::time::SystemTime;

/// Carries out the plan of a job and follows it to its end. Every line of output goes to `events`, every frame to
/// `on_frame`. A signal stops the job. The locks are released as soon as the launcher is up, which shows by itself that
/// the nodes are allocated.
///
/// # Errors
/// When the job could not be started, or the connection to the master broke; a program that fails is no error but an
/// outcome.
pub async fn start(
    plan: &JobPlan,
    session: &Session,
    events: &Events,
    mut on_frame: impl FnMut(&str, &Frame),
) -> Result<JobOutcome, Error> {
    let engine = plan.hosts.launcher.observed.runtime.engine.clone();
    events.send(Event::Job { id: plan.id.clone(), state: JobState::Starting });
    let prepared = tokio::select! {
        prepared = prepare_launch(plan, events) => prepared,
        error = session.cancellation.cancelled() => Err(error),
    };
    let launched = async {
        let (follow, workspaces) = prepared?;
        // the engine completes a request whose sender has gone, perhaps after the cleanup
        let container = launch(plan, &engine, &workspaces).await?;
        session.cancellation.check()?;
        Ok((follow, container, workspaces))
    };
    let (follow, container, workspaces) = match launched.await {
        Ok(launched) => launched,
        Err(error) => {
            abandon(plan, &error, events).await;
            return Err(error);
        }
    };
    // from here on hmaster itself shows that a job is running
    session.locks.release().await;
    let (job, placement, options) = (plan.nodes(), &plan.placement, plan.options.watch);
    let (on_frame, monitor) = (&mut on_frame, Monitor::default());
    let launcher = launch::launcher(plan.options.launcher, plan.options.controller);
    let watch = Watch { job, placement, engine, container, options, events, on_frame, monitor, launcher };
    let outcome = watch.run(follow, &mut session.cancellation.signal()).await;
    // a job that goes on, in its next attempt perhaps, keeps its directory; a notebook's has what was edited there, and is
    // fetched first
    let keeps = plan.program.is_notebook();
    if !keeps && outcome.as_ref().is_ok_and(|outcome| outcome.state != JobState::Running) {
        gather_outputs(plan, &workspaces, events).await;
    }
    outcome
}

/// Prepares every node that may get a job, and submits it to the cluster's own Slurm with these options of sbatch.
///
/// # Errors
/// Why it was not submitted; then nothing of it is left.
pub async fn submit(
    plan: &JobPlan,
    sbatch: &[String],
    session: &Session,
    events: &Events,
) -> Result<Workspaces, Error> {
    let engine = &plan.hosts.launcher.observed.runtime.engine;
    events.send(Event::Job { id: plan.id.clone(), state: JobState::Starting });
    let prepared = tokio::select! {
        prepared = prepare(plan, events) => prepared,
        error = session.cancellation.cancelled() => Err(error),
    };
    let submitted = async {
        let workspaces = prepared?;
        launch(plan, engine, &workspaces).await?;
        session.cancellation.check()?;
        let name = &plan.hosts.launcher.observed.member.node.name;
        events.step(name, Step::write("submitting the job"), plan.sbatch_on_master(sbatch, false)).await?;
        Ok(workspaces)
    };
    let submitted: Result<Workspaces, Error> = submitted.await;
    match &submitted {
        Ok(_) => session.locks.release().await,
        Err(error) => abandon(plan, error, events).await,
    }
    submitted
}

/// Asks the cluster's own Slurm whether it would take a job. Changes nothing.
///
/// # Errors
/// With the message of sbatch.
pub async fn check_queue(plan: &JobPlan, sbatch: &[String]) -> Result<(), Error> {
    match plan.sbatch_on_master(sbatch, true).await {
        // it also says so of a job that has to wait for a drained node, which it takes all the same
        Err(error) if error.message.contains("node configuration is not available") => Ok(()),
        tested => Ok(tested?),
    }
}

/// Prepares the nodes, and starts the followers of the logs, which begin before the launcher.
async fn prepare_launch<'a>(plan: &JobPlan, events: &'a Events) -> Result<(Follow<'a>, Workspaces), Error> {
    let workspaces = prepare(plan, events).await?;
    let logs = logs(&plan.nodes(), plan.options.log_max);
    let follow = Follow::start(logs, vec![0; plan.hosts.all().count()], events).await?;
    let ranks = plan.placement.ranks();
    events.phase(Phase::StartingRanks { ranks });
    check_workspaces(plan, &workspaces, events).await?;
    Ok((follow, workspaces))
}

/// Starts the launcher's container and returns its id.
async fn launch(plan: &JobPlan, engine: &Runtime, workspaces: &Workspaces) -> Result<String, Error> {
    let workspace = workspaces.get(plan.hosts.launcher.observed.name()).map(|place| place.directory.clone());
    Ok(engine.create_and_start(&ContainerSpec { workspace, ..plan.container.clone() }).await?)
}

/// Cleans up after a job that could not be launched, and records why. Where another job has its id nothing is this
/// job's.
async fn abandon(plan: &JobPlan, error: &Error, events: &Events) {
    let job = plan.nodes();
    let failed = if let Error::Nodes { failed, .. } = error { failed.as_slice() } else { &[] };
    let is_own = |node: &str| failed.iter().all(|e| e.node != node || e.kind != ErrorKind::JobExists);
    let own = job.members().filter(|member| is_own(&member.node.name)).collect();
    let silent = job.clean_up_on(own, events).await;
    let never = JobResult {
        stopped: matches!(error, Error::Signal(_)),
        ranks: plan.queue.map_or_else(|| plan.placement.ranks(), |queue| queue.ranks),
        ..JobResult::ended_by(Fault::NotLaunched { error: error.to_string() }, now())
    };
    // if its directory was not even created there is nothing to write to
    let launcher = &job.launcher.node.name;
    if is_own(launcher) && !silent.contains(launcher) {
        let _ = job.stored_result(&never).await;
    }
}

/// Returns a unique job id that sorts by time: `20261121-101500-4f2a`.
pub fn new_id() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let time = time.replace(['-', ':', 'Z'], "").replace('T', "-");
    format!("{time}-{:04x}", random::below(1 << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_a_time_and_a_salt() {
        let id = new_id();
        let parts: Vec<&str> = id.split('-').collect();
        assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), [8, 6, 4], "{id}");
        assert!(id.starts_with("20") && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-'), "{id}");
        assert_ne!(id, new_id());
    }
}
