//! `hvdctl top`.

use crate::cli::Top;
use crate::commands::{Context, Outcome};
use crate::document::End;
use crate::error::{Error, Verdict};
use crate::job::manage;
use crate::job::roles::wanted_ranks;
use crate::record::JobState;
use crate::top::screen::Screen;
use crate::top::watch::{Display, WatchedJob, watch};
use schemars::JsonSchema;
use serde::Serialize;

/// The last line of `top --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TopEnd {
    /// `end`.
    pub event: End,
    /// The exit code.
    pub code: u8,
    /// The state in which the job has ended.
    pub state: Option<JobState>,
}

/// `top`.
pub async fn run(options: &Top, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, session, json, .. } = context;
    if !json && !Screen::is_possible() {
        let hint = "hvdctl top --json prints the same as lines; hvdctl report writes a file";
        return Err(Error::usage("top needs a terminal", hint));
    }
    let list = session.cancellation.run(manage::list(target, fleet, events)).await?;
    let job = list.find_running(options.job.as_deref())?;
    let only = wanted_ranks(job, options.role.as_deref(), &[])?;
    let suspended = if *json { None } else { Some(events.suspend().await) };
    let display = match json {
        true => Display::Events,
        false => Display::Screen { screen: Screen::open()?, has_colours: console::colors_enabled() },
    };
    let watched = WatchedJob { target, fleet, list: &list, job, only, grep: options.grep.clone() };
    let state = session.cancellation.run(watch(watched, display, events)).await?;
    drop(suspended);
    Ok(ended(state))
}

pub(in crate::commands) fn ended(state: Option<JobState>) -> Outcome {
    let verdict = Verdict::Done;
    Outcome::new(verdict, "", TopEnd { event: End::End, code: verdict.exit_code(), state })
}
