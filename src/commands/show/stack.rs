//! `hvdctl stack`.

use crate::cli;
use crate::commands::{Context, Outcome};
use crate::document::{NoDetails, NodeEntry, entries};
use crate::error::{Error, Verdict};
use crate::job::manage;
use crate::job::stack::{StackReport, StackRequest, stacks};
use crate::model::stack::{self, RankStack, StackGroup, StackProcess};
use crate::record::find::Newest;
use crate::secret::is_secret_value;
use schemars::JsonSchema;
use serde::Serialize;

/// `stack`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Stack")]
pub struct StackDocument {
    /// The id of the job.
    pub job: String,
    /// Where the ranks are, in one sentence; null if none was read.
    pub text: Option<String>,
    /// The ranks, those at the same place together, the fewest first.
    pub groups: Vec<StackedRanks>,
    /// The nodes that gave no answer.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// Ranks at the same place.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StackedRanks {
    /// Where they are, in words.
    pub text: String,
    /// The ranks.
    pub ranks: Vec<RankStack>,
}

/// `stack`.
pub async fn run(options: &cli::Stack, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, session, .. } = context;
    let list = session.cancellation.run(manage::list(target, fleet, events)).await?;
    let job = match &options.job {
        Some(name) => list.find_readable(Some(name), Newest::Program)?,
        None => list.newest_running().map(|(job, ..)| job).ok_or_else(|| {
            Error::check("no job is running", "hvdctl report shows where the ranks of a job were that has failed")
        })?,
    };
    if job.is_over() {
        let hint = format!("hvdctl report {} shows where its ranks were if it has failed", job.id);
        return Err(Error::check(format!("job {} has ended", job.id), hint));
    }
    if job.waits_for_nodes() {
        return Err(Error::check(format!("job {} waits for its nodes", job.id), "hvdctl jobs shows why"));
    }
    if let Some(rank) = options.rank.iter().find(|rank| **rank >= job.ranks) {
        return Err(Error::usage(
            format!("job {} has no rank {rank}", job.id),
            format!("its ranks are 0 to {}", job.ranks.saturating_sub(1)),
        ));
    }
    let request = StackRequest {
        ranks: options.rank.iter().copied().collect(),
        locals: options.locals,
        native: options.native,
        py_spy: options.py_spy.clone(),
    };
    let mut report = session.cancellation.run(stacks(&list, job, &request, events)).await?;
    report.ranks.iter_mut().for_each(withhold);
    Ok(outcome(report, job.ranks, options.all_threads))
}

/// Withholds the values of variables whose names say that they are secrets.
fn withhold(rank: &mut RankStack) {
    let threads = rank.processes.iter_mut().flat_map(|process| &mut process.threads);
    for one in threads.flat_map(|thread| &mut thread.frames).flat_map(|frame| &mut frame.locals) {
        if is_secret_value(&one.name, &one.value) {
            one.value = "…".to_owned();
        }
    }
}

/// `all`: all threads and frames are shown.
pub(in crate::commands) fn outcome(report: StackReport, ranks_of_job: u32, all: bool) -> Outcome {
    let StackReport { job, ranks, failed } = report;
    let done = ranks.iter().filter(|rank| rank.failure.is_none()).count();
    let is_complete = done == ranks.len();
    let groups = stack::groups(ranks);
    let sentence = stack::sentence(&groups, Some(ranks_of_job));
    let mut text: String = groups.iter().map(|group| show(group, all) + "\n").collect();
    text += &sentence.clone().map_or_else(|| "no rank was read\n".to_owned(), |text| text + "\n");
    let verdict = match (is_complete, failed.is_empty()) {
        (false, true) => Verdict::Partly,
        _ => Verdict::Nodes { done, failed: &failed },
    };
    let details = StackDocument {
        job,
        text: sentence,
        groups: groups
            .iter()
            .map(|group| StackedRanks { text: group.describe(), ranks: group.ranks.clone() })
            .collect(),
        nodes: entries([], &failed),
    };
    Outcome::new(verdict, text, details)
}

/// Formats a group as lines: its ranks and what they do, the stack of one of them, and their other processes.
fn show(group: &StackGroup, all: bool) -> String {
    let example = group.example();
    let does = example.main().and_then(|process| process.does.as_deref());
    let quiet = (example.quiet > 0).then(|| format!("no progress for {} s", example.quiet));
    let words: Vec<String> = [does.map(str::to_owned), quiet, example.failure.clone()].into_iter().flatten().collect();
    let mut text = format!("{}: {}\n", group.name(), words.join(", "));
    let processes: Vec<&StackProcess> = match all {
        true => example.processes.iter().collect(),
        false => example.main().into_iter().collect(),
    };
    for process in processes {
        if all {
            text += &format!("  {} {}\n", process.pid, process.command);
        }
        if let Some(failure) = &process.failure {
            text += &format!("  ({failure})\n");
        }
        let shown = if all { process.threads.len() } else { 1 };
        for thread in process.threads.iter().take(shown) {
            if all {
                text += &format!("  {}{}\n", thread.name, if thread.active { " (active)" } else { "" });
            }
            let lines = stack::lines_of(&thread.frames, all);
            lines.iter().for_each(|line| text += &format!("    {}\n", line.replace('\n', "\n    ")));
            if let Some(does) = thread.does.as_ref().filter(|_| thread.frames.is_empty()) {
                text += &format!("    {does}\n");
            }
        }
    }
    if !all {
        stack::others_of(example).iter().for_each(|other| text += &format!("  and {other}\n"));
    }
    text
}
