//! `hvdctl logs`.

use super::output::{End, LogsEnd};
use super::{Context, Outcome, unless_signalled};
use crate::cli::{Logs, Since};
use crate::cluster::nodes::now;
use crate::error::{Error, exit};
use crate::job::list::Newest;
use crate::job::logs::{Filter, LogRequest, logs};
use crate::job::manage;
use crate::job::monitor::Monitor;

/// `logs`.
pub async fn run(options: &Logs, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, cancel, .. } = context;
    let filter = Filter {
        ranks: options.rank.clone(),
        since: options.since.as_ref().map(|since| match since {
            Since::Ago(span) => now() - span.as_secs_f64(),
            Since::At(time) => *time,
        }),
        grep: options.grep.clone(),
    };
    let runs = unless_signalled(&cancel, manage::list(&target, &events)).await?;
    let job = runs.find(options.job.as_deref(), Newest::Program)?;
    if let Some(rank) = filter.ranks.iter().find(|rank| **rank >= job.ranks) {
        return Err(Error::usage(
            format!("the job {} has no rank {rank}", job.id),
            format!("its ranks are 0 to {}", job.ranks.saturating_sub(1)),
        ));
    }
    let wanted = LogRequest { filter, tail: options.tail, follow: options.follow };
    logs(&target, &runs, job, &wanted, &mut Monitor::default(), &events, cancel).await?;
    Ok(ended())
}

pub(super) fn ended() -> Outcome {
    let document = LogsEnd { event: End::End, ok: true, code: exit::OK };
    Outcome::new(exit::OK, String::new(), &document, Vec::new())
}
