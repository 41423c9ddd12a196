//! `hvdctl attach`.

use super::context::Context;
use super::{Outcome, job_end};
use crate::cli::Attach;
use crate::error::Error;
use crate::job::list::Newest;
use crate::job::logs::{LogRequest, logs};
use crate::job::manage;
use crate::job::monitor::Monitor;
use crate::job::outcome::JobOutcome;
use crate::job::request::{Show, Until};
use crate::job::start::attach;
use crate::job::supervision::OnSignal;
use crate::launch;

/// `attach`.
pub async fn run(options: &Attach, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, verbose, .. } = context;
    let cancellation = &session.cancellation;
    let jobs = cancellation.run(manage::list(target, events)).await?;
    let job = jobs.find(options.job.as_deref(), Newest::Program)?;
    events.note(format!("job {}, started by {}", job.id, job.operator));
    let launcher = launch::launcher(job.launcher, job.controller);
    if !job.is_over() {
        let show = Show { output: true, launcher: *verbose > 1 };
        let until = Until { limit: None, all_started: false, on_signal: OnSignal::Leave };
        let ended = attach(target, &jobs, job, (show, until), events, cancellation.signal()).await?;
        return job_end::outcome(ended, None, launcher, events);
    }
    let mut monitor = Monitor::default();
    logs(target, &jobs, job, &LogRequest::default(), &mut monitor, events, cancellation.signal()).await?;
    let Some(result) = job.result.clone() else {
        return Err(Error::check(
            format!("job {} is lost: its launcher is gone, and no result was recorded", job.id),
            format!("hvdctl stop {} ends what remains of it", job.id),
        ));
    };
    job_end::outcome(JobOutcome::new(&job.id, &job.placement, result, &monitor), None, launcher, events)
}
