//! The outcome of a watched job.

use crate::launch::placement::Placement;
use crate::model::fault::{Fault, as_text};
use crate::model::job_result::{JobResult, LostOutput, OutsideFiles, RankExit};
use crate::model::job_state::JobState;
use crate::model::role::label;
use crate::model::root_cause::RootCause;
use crate::model::start_fault::StartFailure;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of a job.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "JobResult")]
pub struct JobOutcome {
    /// Its id.
    pub id: String,
    /// How it ended, or its state while it has not ended.
    pub state: JobState,
    /// Which rank ran where.
    pub placement: Placement,
    /// The program's exit code: that of the rank that failed first, else the launcher's.
    pub code: i64,
    /// The rank that failed first.
    pub first_failure: Option<RankExit>,
    /// The root cause: the rank that made the job fail, and why.
    pub root_cause: Option<RootCause>,
    /// The last lines of that rank.
    pub last_lines: Vec<String>,
    /// Why it could not start its program, if it could not.
    #[serde(skip)]
    pub broken: Option<StartFailure>,
    /// Set if these are also the last lines that were shown.
    #[serde(skip)]
    pub just_shown: bool,
    /// True if every rank has started its program.
    pub all_started: bool,
    /// Nodes that did not answer at the end, where processes may be left.
    pub silent: Vec<String>,
    /// Why the job supervisor recorded no result.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "Option<String>")]
    pub fault: Option<Fault>,
    /// Output that a full disk lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostOutput>,
    /// Files that it wrote outside the mounts of its containers and that are lost with them, by node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<OutsideFiles>,
    /// The launcher's last lines.
    #[serde(skip)]
    pub launcher: Vec<String>,
}

/// Returns the rank whose last lines show why a job failed, and its node: that of the root cause or, if a role was not
/// ready, the first one that was not.
pub fn shown_rank(cause: Option<&RootCause>, fault: Option<&Fault>, placement: &Placement) -> Option<(u32, String)> {
    if let Some(cause) = cause {
        return Some((cause.rank, cause.node.clone()));
    }
    let Some(Fault::RoleNotReady { role, ranks, .. }) = fault else { return None };
    let number = placement.roles.iter().position(|other| other.name == *role)?;
    let first: usize = ranks.split(',').next()?.trim().parse().ok()?;
    let rank = placement.ranks_of(number).nth(first)?;
    Some((rank, placement.node_of(rank)?.0.to_owned()))
}

impl JobOutcome {
    /// Returns the rank whose last lines these are, and its node.
    pub fn shown_rank(&self) -> Option<(u32, String)> {
        shown_rank(self.root_cause.as_ref(), self.fault.as_ref(), &self.placement)
    }

    /// Formats the last lines of that rank to be appended to a sentence; empty if they were just shown.
    pub(super) fn tail_of_rank(&self) -> String {
        let Some((rank, node)) = self.shown_rank().filter(|_| !self.just_shown && !self.last_lines.is_empty()) else {
            return String::new();
        };
        let lines = if self.last_lines.len() == 1 { "line" } else { "lines" };
        let bracket = format!("[{} {node}]", label(rank, self.placement.role(rank).as_ref()));
        let mut text = format!("\n  last {lines} of {}:", self.placement.name(rank));
        text.extend(self.last_lines.iter().map(|line| format!("\n    {bracket} {line}")));
        text
    }

    /// Returns the outcome of a job whose ranks have all started and that goes on.
    pub fn running(id: &str, placement: &Placement) -> JobOutcome {
        let outcome = JobOutcome::new(id, placement, JobResult::default());
        JobOutcome { state: JobState::Running, code: 0, ..outcome }
    }

    /// Returns the outcome of a job that is in Slurm's queue.
    pub fn queued(id: &str) -> JobOutcome {
        JobOutcome { state: JobState::Queued, ..JobOutcome::running(id, &Placement::default()) }
    }

    /// Returns the outcome of a job with this result, without the lines of its log.
    pub fn new(id: &str, placement: &Placement, result: JobResult) -> JobOutcome {
        JobOutcome {
            id: id.to_owned(),
            state: result.state(),
            placement: placement.clone(),
            code: result.code().unwrap_or(1),
            first_failure: result.first_failure().cloned(),
            root_cause: result.root_cause(placement),
            last_lines: Vec::new(),
            broken: None,
            just_shown: false,
            all_started: result.started >= result.ranks,
            silent: Vec::new(),
            fault: result.fault,
            lost: result.lost,
            outside: result.outside,
            launcher: Vec::new(),
        }
    }
}

/// Formats the last lines of a program to be appended to a sentence.
pub fn tail<'a>(lines: impl IntoIterator<Item = &'a String>) -> String {
    lines.into_iter().map(|line| format!("\n    {line}")).collect()
}
