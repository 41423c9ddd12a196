//! `hvdctl attach`.

use super::context::Context;
use super::{Outcome, job_end};
use crate::cli::Attach;
use crate::error::Error;
use crate::job::list::Newest;
use crate::job::log_order::Filter;
use crate::job::manage;
use crate::job::outcome::JobOutcome;
use crate::job::request::{Show, Until};
use crate::job::supervision::OnSignal;
use crate::job::tails::Tails;

/// `attach`.
pub async fn run(options: &Attach, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, verbose, .. } = context;
    let cancellation = &session.cancellation;
    let jobs = cancellation.run(manage::list(target, events)).await?;
    let job = jobs.find(options.job.as_deref(), Newest::Program)?;
    events.note(format!("job {}, started by {}", job.id, job.operator));
    if !job.is_over() {
        let show = Show { output: true, launcher: *verbose > 1 };
        let until = Until { limit: None, all_started: false, on_signal: OnSignal::Leave };
        let ended = manage::attach(target, &jobs, job, (show, until), events, cancellation.signal()).await?;
        return job_end::outcome(ended, events);
    }
    let mut tails = Tails::default();
    let wanted = (&Filter::default(), None, false);
    manage::logs(target, &jobs, job, wanted, &mut tails, events, cancellation.signal()).await?;
    let Some(state) = job.state.filter(|_| job.ended.is_some()) else {
        return Err(Error::check(
            format!("job {} is lost: its launcher is gone, and no result was recorded", job.id),
            format!("hvdctl stop {} removes what is left of it", job.id),
        ));
    };
    let rank = job.root_cause.as_ref().map(|root_cause| root_cause.rank);
    let ended = JobOutcome {
        state,
        code: job.code.unwrap_or(1),
        first_failure: job.first_failure.clone(),
        last_lines: rank.map(|rank| tails.of(rank)).unwrap_or_default(),
        just_shown: rank.is_some_and(|rank| tails.are_last(rank)),
        root_cause: job.root_cause.clone(),
        all_started: job.all_started,
        fault: job.fault.clone(),
        lost: job.lost.clone(),
        ..JobOutcome::running(&job.id, &job.placement)
    };
    job_end::outcome(ended, events)
}
