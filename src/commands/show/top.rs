//! `hvdctl top`.

use crate::cli::Top;
use crate::commands::{Context, Outcome};
use crate::document::End;
use crate::error::{Error, Verdict};
use crate::job::manage;
use crate::record::JobState;
use crate::record::find::Newest;
use crate::record::list::Job;
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
    let job = match &options.job {
        Some(name) => list.find_readable(Some(name), Newest::Program)?,
        None => list.newest_running().map(|(job, ..)| job).ok_or_else(|| {
            Error::check("no job is running", "hvdctl jobs lists those that ended, and hvdctl report shows one")
        })?,
    };
    if job.waits_for_nodes() {
        return Err(Error::check(format!("job {} waits for its nodes", job.id), "hvdctl jobs shows why"));
    }
    if job.is_over() {
        return Err(over(job));
    }
    let suspended = if *json { None } else { Some(events.suspend().await) };
    let display = match json {
        true => Display::Events,
        false => Display::Screen { screen: Screen::open()?, has_colours: console::colors_enabled() },
    };
    let watched = WatchedJob { target, fleet, list: &list, job, grep: options.grep.clone() };
    let state = session.cancellation.run(watch(watched, display, events)).await?;
    drop(suspended);
    Ok(ended(state))
}

fn over(job: &Job) -> Error {
    let state = job.state.map_or_else(String::new, |state| format!(" ({state})"));
    let hint = format!("hvdctl report {} shows it, hvdctl logs {} its output", job.id, job.id);
    Error::check(format!("job {} has ended{state}", job.id), hint)
}

pub(in crate::commands) fn ended(state: Option<JobState>) -> Outcome {
    let verdict = Verdict::Done;
    Outcome::new(verdict, "", TopEnd { event: End::End, code: verdict.exit_code(), state })
}
