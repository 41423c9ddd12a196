//! `hvdctl attach` and `hvdctl logs`.

use super::output::{End, LogsEnd};
use super::{Context, Outcome, job_end};
use crate::cli::{Attach, Logs};
use crate::error::Error;
use crate::job::list::Newest;
use crate::job::logs::{Filter, LogRequest, logs as read};
use crate::job::manage;
use crate::job::monitor::Monitor;
use crate::job::outcome::JobOutcome;
use crate::job::request::{Show, Until};
use crate::job::start;
use crate::job::supervision::OnSignal;
use crate::launch;

/// `attach`.
pub async fn attach(options: &Attach, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, verbose, .. } = context;
    let cancellation = &session.cancellation;
    let jobs = cancellation.run(manage::list(target, events)).await?;
    let job = jobs.find(options.job.as_deref(), Newest::Program)?;
    events.note(format!("job {}, started by {}", job.id, job.operator));
    let launcher = launch::recorded(job.launcher, job.controller);
    if !job.is_over() {
        let show = Show { output: true, launcher: *verbose > 1 };
        let until = Until { limit: None, all_started: false, on_signal: OnSignal::Leave };
        let ended = start::attach(target, &jobs, job, (show, until), events, cancellation.signal()).await?;
        return job_end::outcome(ended, None, launcher, events);
    }
    let mut monitor = Monitor::default();
    read(target, &jobs, job, &LogRequest::default(), &mut monitor, events, cancellation.signal()).await?;
    let Some(result) = job.result.clone() else {
        return Err(Error::check(
            format!("job {} is lost: its launcher is gone, and no result was recorded", job.id),
            format!("hvdctl stop {} ends what remains of it", job.id),
        ));
    };
    job_end::outcome(JobOutcome::new(&job.id, &job.placement, result, &monitor), None, launcher, events)
}

/// `logs`.
pub async fn logs(options: &Logs, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let filter = Filter { ranks: options.rank.clone(), since: options.since, grep: options.grep.clone() };
    let jobs = session.cancellation.run(manage::list(target, events)).await?;
    let job = jobs.find(options.job.as_deref(), Newest::Program)?;
    if let Some(rank) = filter.ranks.iter().find(|rank| **rank >= job.ranks) {
        return Err(Error::usage(
            format!("job {} has no rank {rank}", job.id),
            format!("its ranks are 0 to {}", job.ranks.saturating_sub(1)),
        ));
    }
    let request = LogRequest { filter, tail: options.tail, follow: options.follow };
    let signal = session.cancellation.signal();
    read(target, &jobs, job, &request, &mut Monitor::default(), events, signal).await?;
    Ok(ended())
}

pub(super) fn ended() -> Outcome {
    Outcome::ok("", LogsEnd { event: End::End, code: 0 })
}
