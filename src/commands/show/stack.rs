//! `hvdctl stack`.

use crate::cli;
use crate::commands::{Context, Outcome};
use crate::document::{NoDetails, NodeEntry, entries};
use crate::error::{Error, Verdict};
use crate::job::manage;
use crate::job::roles::wanted_ranks;
use crate::job::stack::{StackReport, StackRequest, stacks};
use crate::model::stack::{self, RankStack};
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
    let job = list.find_running(options.job.as_deref())?;
    let request = StackRequest {
        ranks: wanted_ranks(job, options.role.as_deref(), &options.rank)?,
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
    let (groups, text) = (report.groups(), report.text(ranks_of_job, all));
    let StackReport { job, ranks, failed } = report;
    let done = ranks.iter().filter(|rank| rank.failure.is_none()).count();
    let verdict = match (done == ranks.len(), failed.is_empty()) {
        (false, true) => Verdict::Partly,
        _ => Verdict::Nodes { done, failed: &failed },
    };
    let details = StackDocument {
        job,
        text: stack::sentence(&groups, Some(ranks_of_job)),
        groups: groups.into_iter().map(|group| StackedRanks { text: group.describe(), ranks: group.ranks }).collect(),
        nodes: entries([], &failed),
    };
    Outcome::new(verdict, text, details)
}
