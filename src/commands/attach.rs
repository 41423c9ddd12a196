//! `hvdctl attach`.

use super::{Context, Outcome, train, unless_signalled};
use crate::cli::Attach;
use crate::error::Error;
use crate::job::list::Newest;
use crate::job::logs::{LogRequest, logs};
use crate::job::manage;
use crate::job::monitor::Monitor;
use crate::job::outcome::JobOutcome;
use crate::job::request::{Show, Until};
use crate::job::supervision::OnSignal;

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
    let mut monitor = Monitor::default();
    logs(&target, &runs, job, &LogRequest::default(), &mut monitor, &events, cancel).await?;
    let Some(result) = job.result.clone() else {
        return Err(Error::check(
            format!("the job {} is lost: its launcher is gone, and no result was recorded", job.id),
            format!("hvdctl stop {} ends what is left of it", job.id),
        ));
    };
    train::outcome(JobOutcome::new(&job.id, &job.placement, result, &monitor), &events)
}
