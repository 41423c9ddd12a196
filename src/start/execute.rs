//! Launches a planned job, and watches it to its end.

use super::plan::JobPlan;
use super::prepare::{Workspaces, check_workspaces, gather_outputs, prepare};
use crate::cluster::operator::now;
use crate::cluster::session::Session;
use crate::diagnosis::outcome::JobOutcome;
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Events, Phase};
use crate::job::cleanup::JobNodes;
use crate::job::follow::Follow;
use crate::job::node_log::logs;
use crate::job::watch::Watch;
use crate::launch;
use crate::model::fault::Fault;
use crate::random;
use crate::record::frames::Frame;
use crate::record::monitor::Monitor;
use crate::record::{JobResult, JobState};
use crate::runtime::spec::ContainerSpec;
use std::future::Future;
use std::time::SystemTime;

/// A job whose launcher is up.
pub struct Launched<'a> {
    follow: Follow<'a>,
    /// The launcher's container.
    container: String,
    workspaces: Workspaces,
}

/// Carries out the plan of a job until its launcher is up. The locks are released then, because `hmaster` itself shows
/// that the nodes are allocated.
///
/// # Errors
/// When the job could not be started; then nothing of it is left.
pub async fn launch<'a>(plan: &JobPlan, session: &Session, events: &'a Events) -> Result<Launched<'a>, Error> {
    let launch = async |workspaces| {
        let engine = &plan.hosts.launcher.observed.runtime.engine;
        let spec = launcher_container(plan, &workspaces);
        // the engine completes a request whose sender has gone, perhaps after the cleanup
        let following = session.cancellation.run(follow(plan, &workspaces, events));
        let (follow, container) = tokio::join!(following, engine.create(&spec));
        let container = match (&follow, container) {
            // the engine may not have answered in the meantime
            (Err(Error::Signal(number)), Err(_)) => return Err(Error::Signal(*number)),
            (_, container) => container?,
        };
        let started = async {
            let follow = follow?;
            engine.start(&spec.name).await?;
            session.cancellation.check()?;
            Ok(follow)
        };
        match started.await {
            Ok(follow) => Ok(Launched { follow, container, workspaces }),
            Err(error) => {
                let _ = engine.remove(&container).await;
                Err(error)
            }
        }
    };
    let abandon = async |error: &Error| abandon(&plan.nodes(), error, plan.never_launched(error), events).await;
    let prepare = prepare(plan, events, async |_, _| Ok(()));
    let launched = begin(&plan.id, (session, events), prepare, launch, abandon).await?;
    session.locks.release().await;
    Ok(launched)
}

/// Follows a job to its end. Every line of output goes to `events`, every frame to `on_frame`. A signal stops the job.
///
/// # Errors
/// When the connection to the master is lost. The failure of a program is an outcome.
pub async fn watch(
    plan: &JobPlan,
    launched: Launched<'_>,
    session: &Session,
    events: &Events,
    mut on_frame: impl FnMut(&str, &Frame),
) -> Result<JobOutcome, Error> {
    let Launched { follow, container, workspaces } = launched;
    let engine = plan.hosts.launcher.observed.runtime.engine.clone();
    let (job, placement, options) = (plan.nodes(), &plan.placement, plan.options.watch);
    let (on_frame, monitor) = (&mut on_frame, Monitor::default());
    let launcher = launch::launcher(plan.options.launcher, plan.options.controller);
    let watch =
        Watch { job, placement, engine, container, options, events, on_frame, monitor, launcher, is_requeued: false };
    let outcome = watch.run(follow, &mut session.cancellation.signal()).await;
    // a job that goes on, in its next attempt perhaps, keeps its directory; a notebook's has what was edited there, and is
    // fetched first
    let keeps = plan.program.is_notebook();
    if !keeps && outcome.as_ref().is_ok_and(|outcome| outcome.state != JobState::Running) {
        gather_outputs(plan, &workspaces, events).await;
    }
    outcome
}

/// Begins a job: prepares its nodes, launches or submits it, and leaves nothing of it if that fails or is cancelled.
///
/// # Errors
/// Those of `prepare` and `launch`; a signal.
pub async fn begin<P, T>(
    id: &str,
    (session, events): (&Session, &Events),
    prepare: impl Future<Output = Result<P, Error>>,
    launch: impl AsyncFnOnce(P) -> Result<T, Error>,
    abandon: impl AsyncFnOnce(&Error),
) -> Result<T, Error> {
    events.send(Event::Job { id: id.to_owned(), state: JobState::Starting });
    let prepared = tokio::select! {
        prepared = prepare => prepared,
        error = session.cancellation.cancelled() => Err(error),
    };
    let launched = match prepared {
        Ok(prepared) => launch(prepared).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &launched {
        abandon(error).await;
    }
    launched
}

/// Starts the followers of the logs, which begin before the launcher, and checks the workers once more.
async fn follow<'a>(plan: &JobPlan, workspaces: &Workspaces, events: &'a Events) -> Result<Follow<'a>, Error> {
    let ranks = plan.placement.ranks();
    events.phase(Phase::StartingRanks { ranks });
    let logs = logs(&plan.nodes(), plan.options.log_max);
    let following = Follow::start(logs, vec![0; plan.hosts.all().count()], events);
    let (follow, checked) = tokio::join!(following, check_workspaces(plan, workspaces, events));
    checked.and(follow)
}

/// Returns the launcher's container.
fn launcher_container(plan: &JobPlan, workspaces: &Workspaces) -> ContainerSpec {
    let workspace = workspaces.get(plan.hosts.launcher.observed.name()).map(|place| place.directory.clone());
    ContainerSpec { workspace, ..plan.container.clone() }
}

/// Starts the launcher's container.
///
/// # Errors
/// As the engine reports it.
pub async fn start_launcher(plan: &JobPlan, workspaces: &Workspaces) -> Result<(), Error> {
    let engine = &plan.hosts.launcher.observed.runtime.engine;
    engine.create_and_start(&launcher_container(plan, workspaces)).await?;
    Ok(())
}

/// Cleans up after a job that could not be started, and records its `result`. Where another job has its id nothing is
/// this job's.
pub async fn abandon(job: &JobNodes<'_>, error: &Error, result: JobResult, events: &Events) {
    let failed = if let Error::Nodes { failed, .. } = error { failed.as_slice() } else { &[] };
    let is_own = |node: &str| failed.iter().all(|e| e.node != node || e.kind != ErrorKind::JobExists);
    let own = job.members().filter(|member| is_own(&member.node.name)).collect();
    let silent = job.clean_up_on(own, events).await;
    // if its directory was not even created there is nothing to write to
    let launcher = &job.launcher.node.name;
    // what shares a directory may be cleaned up only with the scheduler, which may be what does not answer
    if is_own(launcher) && (job.shares_directory || !silent.contains(launcher)) {
        let _ = job.stored_result(&result).await;
    }
}

impl JobPlan {
    /// Returns the result of the job if it could not be launched.
    pub fn never_launched(&self, error: &Error) -> JobResult {
        JobResult {
            stopped: matches!(error, Error::Signal(_)),
            ranks: self.queue.map_or_else(|| self.placement.ranks(), |queue| queue.ranks),
            ..JobResult::ended_by(Fault::NotLaunched { error: error.to_string() }, now())
        }
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
