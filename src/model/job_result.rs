//! The result of a job, as it is stored: what is known of its ranks at its end. `diagnosis` finds out why it failed.

use super::fault::{Fault, as_text};
use super::root_cause::{FailureKind, Idle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A failed attempt, after which the job was started again; `JOBS/ID/attempts.json` on the launcher's node has all of
/// them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// When it started, in seconds since the epoch.
    pub started: f64,
    /// When it ended.
    pub ended: f64,
    /// Its number of ranks: fewer than in the first attempt if nodes had left.
    pub ranks: u32,
    /// The exit code of the launcher, or of the rank whose failure ended it.
    pub launcher: Option<i64>,
    /// How its ranks ended.
    pub exits: Vec<RankExit>,
    /// Nodes that did not answer at its end.
    pub silent: Vec<String>,
    /// The fault that ended it if no rank did, as [`JobResult::fault`].
    #[serde(default, alias = "reason", serialize_with = "as_text")]
    #[schemars(with = "Option<String>")]
    pub fault: Option<Fault>,
}

/// The result of a job, as its supervisor records it in `JOBS/ID/result.json` on the node of the launcher.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JobResult {
    /// When it ended, in seconds since the epoch by that node's clock.
    pub ended: f64,
    /// The exit code of the launcher, or of the rank whose failure ended it; `None` if the end was requested.
    pub launcher: Option<i64>,
    /// Set if the end was requested.
    pub stopped: bool,
    /// The number of ranks of the last attempt.
    pub ranks: u32,
    /// How many of them had started their program.
    pub started: u32,
    /// How they ended, as far as their nodes answered.
    pub exits: Vec<RankExit>,
    /// The ranks of roles that were asked to end because the role had ended that they served. Their exit codes say
    /// nothing about the job. Earlier builds had no roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub served: Vec<u32>,
    /// The nodes that did not answer at the end.
    pub silent: Vec<String>,
    /// The errors of the connections to these nodes.
    pub silence: BTreeMap<String, String>,
    /// The ranks that were reported to hang.
    pub hung: Vec<HungRank>,
    /// The last lines of ranks that gave up waiting for others, or lost their connections to them.
    pub gave_up: Vec<LineOfRank>,
    /// The ranks that made no progress when they were asked to end.
    pub quiet: Vec<QuietRank>,
    /// The places of the ranks when they were asked to end, if ranks had waited. Earlier builds recorded none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<PlaceOfRanks>,
    /// Output that a full disk lost.
    pub lost: Vec<LostOutput>,
    /// Files that were written outside the mounts of the containers, by node.
    pub outside: Vec<OutsideFiles>,
    /// The fault that ended it if no rank did: not all ranks started in time, or the engine was shut down. If hvdctl wrote this
    /// instead of the job supervisor: why that recorded nothing. Earlier builds recorded a text, `fault`.
    #[serde(rename = "reason", alias = "fault")]
    pub fault: Option<Fault>,
}

impl JobResult {
    /// Returns a result of which only this is known: what ended the job, and when.
    pub fn ended_by(fault: Fault, ended: f64) -> JobResult {
        JobResult { ended, fault: Some(fault), ..JobResult::default() }
    }
}

impl From<&RankExit> for FailureKind {
    fn from(exit: &RankExit) -> FailureKind {
        FailureKind::Exited { code: exit.code, signal: exit.signal, oom: exit.oom }
    }
}

/// A rank that was reported to hang.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HungRank {
    /// The global rank.
    pub rank: u32,
    /// For how many seconds.
    pub seconds: u64,
    /// As in [`FailureKind::Hung`].
    #[serde(default)]
    pub tensors: Option<String>,
    /// As in [`FailureKind::Hung`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// When that was reported, as [`RankExit::time`].
    pub time: f64,
}

/// A line of a rank that gave up waiting (`last_lines.py`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LineOfRank {
    /// The global rank.
    pub rank: u32,
    /// The beginning of the line.
    pub text: String,
}

/// A rank that made no progress when it was asked to end (`rank_state.py`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuietRank {
    /// The global rank.
    pub rank: u32,
    /// The time without progress, in seconds.
    pub seconds: u64,
    /// Its activity meanwhile, as text.
    pub does: String,
}

/// Ranks that were at the same place (`attempt.py`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlaceOfRanks {
    /// The global ranks.
    pub ranks: Vec<u32>,
    /// The stack of one of them, as JSON.
    pub stack: String,
}

/// Lines of a rank that a full disk lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LostOutput {
    /// The global rank.
    pub rank: u32,
    /// Its node.
    pub node: String,
    /// The number of lines.
    pub lines: u64,
}

/// How one rank ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankExit {
    /// The global rank.
    pub rank: u32,
    /// The node it ran on.
    pub node: String,
    /// Exit code, 128 + N for signal N.
    pub code: i32,
    /// The signal that ended it, if one did. A program can also exit with such a code.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Seconds since the epoch, by the operator's clock.
    pub time: f64,
    /// Set if it had been asked to end.
    pub asked: bool,
    /// Set if the kernel killed a process of its container because memory ran out.
    #[serde(default)]
    pub oom: bool,
}

/// Files on one node that may be results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutsideFiles {
    /// The node.
    pub node: String,
    /// The number of files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Up to three of them, the largest first.
    pub largest: Vec<OutsideFile>,
    /// True if all directories were examined; otherwise there may be more.
    pub whole: bool,
}

/// One of these files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutsideFile {
    /// The first 200 characters of its path in the container.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}
