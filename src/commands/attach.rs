//! `hvdctl attach`.

use super::{Context, Outcome, train, unless_signalled};
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
pub async fn run(options: &Attach, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, cancel, verbose, .. } = context;
    let runs = unless_signalled(&cancel, manage::list(&target, &events)).await?;
    let job = runs.find(options.job.as_deref(), Newest::Program)?;
    events.note(format!("the job {}, started by {}", job.id, job.operator));
    if !job.is_over() {
        let show = Show { output: true, launcher: verbose > 1 };
        let until = Until { limit: None, all_started: false, on_signal: OnSignal::Leave };
        let ran = manage::attach(&target, &runs, job, (show, until), &events, cancel).await?;
        return train::outcome(ran, &events);
    }
    let mut tails = Tails::default();
    manage::logs(&target, &runs, job, (&Filter::default(), None, false), &mut tails, &events, cancel).await?;
    let Some(state) = job.state.filter(|_| job.ended.is_some()) else {
        return Err(Error::check(
            format!("the job {} is lost: its launcher has gone, and nobody wrote down how it ended", job.id),
            format!("hvdctl stop {} sees to it that nothing of it is left", job.id),
        ));
    };
    let ran = JobOutcome {
        id: job.id.clone(),
        state,
        placement: job.placement.clone(),
        code: job.code.unwrap_or(1),
        first_failure: job.first_failure.clone(),
        last_lines: job.root_cause.as_ref().map(|root_cause| tails.of(root_cause.rank)).unwrap_or_default(),
        just_shown: job.root_cause.as_ref().is_some_and(|root_cause| tails.are_last(root_cause.rank)),
        root_cause: job.root_cause.clone(),
        all_started: job.all_started,
        silent: Vec::new(),
        fault: job.fault.clone(),
        lost: job.lost.clone(),
        launcher: Vec::new(),
    };
    train::outcome(ran, &events)
}
