//! `hvdctl logs`.

use super::Outcome;
use super::context::Context;
use super::output::{End, LogsEnd};
use crate::cli::Logs;
use crate::error::{Error, exit};
use crate::job::list::Newest;
use crate::job::logs::{LogRequest, logs};
use crate::job::manage;

/// `logs`.
pub async fn run(options: &Logs, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let jobs = session.cancellation.run(manage::list(target, events)).await?;
    let job = jobs.find(options.job.as_deref(), Newest::Program)?;
    if let Some(rank) = options.rank.iter().find(|rank| **rank >= job.ranks) {
        return Err(Error::usage(
            format!("job {} has no rank {rank}", job.id),
            format!("its ranks are 0 to {}", job.ranks.saturating_sub(1)),
        ));
    }
    let wanted = LogRequest {
        ranks: options.rank.clone(),
        since: options.since,
        grep: options.grep.clone(),
        tail: options.tail,
        follow: options.follow,
    };
    logs(&jobs, job, &wanted, events, session.cancellation.signal()).await?;
    Ok(ended())
}

pub(super) fn ended() -> Outcome {
    Outcome::ok("", &LogsEnd { event: End::End, ok: true, code: exit::OK })
}
