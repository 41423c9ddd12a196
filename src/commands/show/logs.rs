//! `hvdctl attach` and `hvdctl logs`.

use crate::cli::{Attach, Logs};
use crate::cluster::operator::now;
use crate::commands::shared::recording::record_job;
use crate::commands::show::job_end;
use crate::commands::{Context, Outcome};
use crate::diagnosis::program::{FailedProgram, KnownProject};
use crate::document::End;
use crate::error::Error;
use crate::job::logs::{LogRequest, logs as read};
use crate::job::manage;
use crate::job::queue;
use crate::job::roles::wanted_ranks;
use crate::job::supervision::WatchOptions;
use crate::job::watch;
use crate::record::JobState;
use crate::record::find::Newest;
use schemars::JsonSchema;
use serde::Serialize;

/// The last line of `logs`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LogsEnd {
    /// `end`.
    pub event: End,
    /// The exit code.
    pub code: u8,
}

/// `attach`.
pub async fn attach(options: &Attach, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, session, verbose, .. } = context;
    let cancellation = &session.cancellation;
    let mut jobs = cancellation.run(manage::list(target, fleet, events)).await?;
    let job = jobs.find_readable(options.job.as_deref(), Newest::Program)?;
    events.note(format!("job {}, started by {}", job.id, job.operator));
    let id = job.id.clone();
    if job.waits_for_nodes() {
        jobs = queue::placed(target, fleet, &id, events, cancellation.signal()).await?;
    }
    let job = jobs.find_readable(Some(&id), Newest::Program)?;
    let launcher = job.launch();
    let project = if job.project.is_some() { KnownProject::Elsewhere } else { KnownProject::None };
    let directory = job.project.as_deref().and_then(|project| target.cluster().project_directory(project));
    let restarts_help = job.shares_directory && job.restarts == 0;
    let program = FailedProgram { command: &job.command, project, directory, restarts_help, ports: jobs.ports(job) };
    if !job.is_over() {
        // by the clock of this machine, as its end is
        let began = now() - (jobs.now - job.started);
        let launcher_output = *verbose > 1;
        let ends_together = job.min_ranks.is_none() && !job.is_check && !job.has_own_program();
        let options = WatchOptions {
            output: true,
            launcher_output,
            leave_on_signal: true,
            ends_together,
            ..WatchOptions::default()
        };
        let ended = watch::attach(&jobs, job, options, events, cancellation.signal(), &mut |_, _| {}).await?;
        if !job.is_check {
            record_job(context, &ended, began).await;
        }
        return job_end::outcome(ended, None, launcher, &program, events);
    }
    let monitor = read(&jobs, job, &LogRequest::default(), events, cancellation.signal()).await?;
    let Some(result) = job.result.clone() else {
        let message = match (job.state, &job.reason) {
            (Some(JobState::Unreadable), Some(reason)) => format!("job {} has ended: {reason}", job.id),
            _ => format!("job {} is lost: its launcher is gone, and no result was recorded", job.id),
        };
        return Err(Error::check(message, format!("hvdctl stop {} ends what remains of it", job.id)));
    };
    let ended = monitor.outcome(&job.id, &job.placement, result);
    job_end::outcome(ended, None, launcher, &program, events)
}

/// `logs`.
pub async fn logs(options: &Logs, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, session, .. } = context;
    let mut jobs = session.cancellation.run(manage::list(target, fleet, events)).await?;
    let job = jobs.find_readable(options.job.as_deref(), Newest::Program)?;
    let id = job.id.clone();
    if job.waits_for_nodes() && options.follow {
        jobs = queue::placed(target, fleet, &id, events, session.cancellation.signal()).await?;
    }
    let job = jobs.find_readable(Some(&id), Newest::Program)?;
    if let Some(wait) = job.wait(jobs.now) {
        events.note(wait);
        // one that is in the queue again has lines of before
        if job.record.as_ref().is_none_or(|record| record.waits_for_nodes()) {
            return Ok(ended());
        }
    }
    let wanted = LogRequest {
        ranks: wanted_ranks(job, options.role.as_deref(), &options.rank)?,
        since: options.since,
        grep: options.grep.clone(),
        tail: options.tail,
        follow: options.follow,
    };
    read(&jobs, job, &wanted, events, session.cancellation.signal()).await?;
    Ok(ended())
}

pub(in crate::commands) fn ended() -> Outcome {
    Outcome::ok("", LogsEnd { event: End::End, code: 0 })
}
