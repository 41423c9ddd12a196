//! How a job ended, and the rank by which it failed.

use super::State;
use crate::job::frames::Idle;
use crate::launch::placement::Placement;
use crate::launch::{INIT, MORE_TIME_FOR_INIT};
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// An attempt of a job that failed, after which it was started again; `JOBS/ID/attempts.json` on the node of the launcher has them all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// When it was begun, in seconds since the epoch.
    pub started: f64,
    /// When it ended.
    pub ended: f64,
    /// Its ranks: fewer than the first had where nodes had gone.
    pub ranks: u32,
    /// The exit code of the launcher, or of the rank whose failure ended it.
    pub launcher: Option<i64>,
    /// How its ranks ended.
    pub exits: Vec<RankExit>,
    /// Nodes that did not answer at its end.
    pub silent: Vec<String>,
    /// What else than a rank ended it, as [`JobResult::fault`].
    #[serde(default)]
    pub fault: Option<String>,
}

/// What the job's job supervisor wrote down at its end, as `JOBS/ID/result.json` on the node of the launcher.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// When, in seconds since the epoch by that node's clock.
    #[serde(default)]
    pub ended: f64,
    /// The exit code of the launcher, or of the rank whose failure ended it; none where the end was requested.
    pub launcher: Option<i64>,
    /// Whether the end was requested.
    #[serde(default)]
    pub stopped: bool,
    /// How many ranks had started their program.
    pub started: u32,
    /// How the ranks ended, as far as their nodes answered.
    pub exits: Vec<RankExit>,
    /// Nodes that did not answer at the end.
    pub silent: Vec<String>,
    /// What was heard of them in place of an answer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub silence: BTreeMap<String, String>,
    /// Ranks that were said to hang.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hung: Vec<HungRank>,
    /// Output that a full disk lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostOutput>,
    /// The ranks of the last attempt, where nodes had gone since the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// What else than a rank ended it: not all of them started in time, the engine was shut down; or why hvdctl wrote this in the
    /// job supervisor's place, which was never started, or did not live to do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl JobResult {
    /// The state of a job of `ranks` ranks that ended so.
    pub fn state(&self, ranks: u32) -> State {
        let ranks = self.ranks.unwrap_or(ranks);
        let first_failure = self.first_failure(ranks);
        let ended_well = self.exits.len() as u32 == ranks && first_failure.is_none();
        match self.launcher {
            _ if self.stopped => State::Stopped,
            _ if self.fault.is_some() && self.started == 0 => State::Failed,
            Some(0) if ended_well => State::Succeeded,
            // what a rank's own end says holds even where nobody saw the launcher's
            _ if first_failure.is_some() => State::Failed,
            Some(0) | None => State::Lost,
            Some(_) => State::Failed,
        }
    }

    /// The rank that failed first: of those that failed by themselves, else, where it is known of all how they ended, of those
    /// that were asked to. The milliseconds between a failure and the end that it brings on others are less than clocks agree
    /// in, so that the supervisor's word for "asked" goes first and the time second.
    pub fn first_failure(&self, ranks: u32) -> Option<&RankExit> {
        // where the job supervisor had another reason it asked them all
        let all_known = self.exits.len() as u32 >= ranks && (self.fault.is_none() || self.launcher.is_none());
        let failed = self.exits.iter().filter(|e| e.code != 0 && (all_known || !e.asked));
        failed.min_by(|a, b| a.asked.cmp(&b.asked).then(a.time.total_cmp(&b.time)))
    }

    /// The rank that hung first, if that is why the job ended. What makes no progress while it waits for others is not what keeps them
    /// waiting: then this is a rank that was not seen to wait, or rank 0 where all wait for one another.
    fn root_hang(&self, ranks: u32) -> Option<HungRank> {
        let first = |chosen: &dyn Fn(&HungRank) -> bool| {
            self.hung.iter().filter(|hung| chosen(hung)).min_by(|a, b| a.time.total_cmp(&b.time)).cloned()
        };
        // a rank whose supervisor gave it up was not asked for its end
        let gave_up = |hung: &HungRank| self.exits.iter().any(|e| e.rank == hung.rank && !e.asked);
        let has_given_up = self.hung.iter().any(|hung| hung.idle.is_some() && gave_up(hung));
        first(&|hung| hung.idle.is_none())
            .or_else(|| first(&|hung| has_given_up && hung.idle != Some(Idle::Waiting)))
            .or_else(|| {
                let waits = |rank: &u32| self.hung.iter().any(|hung| hung.rank == *rank);
                let first = first(&|_| has_given_up)?;
                Some(match (0..ranks).find(|rank| !waits(rank)) {
                    Some(rank) => HungRank { rank, tensors: Some(OPERATION.into()), idle: None, ..first },
                    None => HungRank { rank: 0, ..first },
                })
            })
    }

    /// The rank that the job failed by, and how; none where it did not fail, or no rank caused that.
    pub fn root_cause(&self, placement: &Placement) -> Option<RootCause> {
        let ranks = self.ranks.unwrap_or(placement.ranks());
        if !matches!(self.state(ranks), State::Failed | State::Lost) {
            return None;
        }
        // a later attempt may have had fewer nodes
        let ended_on = |rank| self.exits.iter().find(|e| e.rank == rank).map(|e| e.node.as_str());
        let node =
            |rank| ended_on(rank).or(placement.node_of(rank).map(|(node, _)| node)).unwrap_or_default().to_owned();
        // the others' failures are what a hung rank brought on them
        if let Some(hung) = self.root_hang(ranks) {
            let node = node(hung.rank);
            let left = |e: &RankExit| e.rank == hung.rank && e.code == 0 && !e.asked && e.time < hung.time;
            // they may have waited for one that had gone
            let how = match hung.tensors.is_some() {
                true if self.exits.iter().any(left) => FailureKind::Exited { code: 0, signal: None, oom: false },
                true if self.silent.contains(&node) => FailureKind::Gone { silence: self.silence.get(&node).cloned() },
                _ => FailureKind::Hung { seconds: hung.seconds, tensors: hung.tensors.clone(), idle: hung.idle },
            };
            return Some(RootCause { rank: hung.rank, node, how });
        }
        let silent = |rank: &u32| self.silent.contains(&node(*rank));
        let unseen = |rank: &u32| self.exits.iter().all(|e| e.rank != *rank);
        // what fails by itself while another node has gone has most likely lost its connection to that
        let cut = (0..ranks).filter(unseen).find(silent).filter(|_| self.fault.is_none());
        if let Some(first) = self.first_failure(ranks).filter(|_| cut.is_none()) {
            let how = FailureKind::Exited { code: first.code, signal: first.signal, oom: first.oom };
            return Some(RootCause { rank: first.rank, node: first.node.clone(), how });
        }
        let gone = cut.or_else(|| (0..ranks).filter(unseen).find(|_| self.started >= ranks));
        gone.filter(|_| self.fault.is_none()).map(|rank| {
            let node = node(rank);
            RootCause { rank, how: FailureKind::Gone { silence: self.silence.get(&node).cloned() }, node }
        })
    }

    /// Why the job ended as it did, in words; none where there is nothing to tell.
    pub fn reason(&self, placement: &Placement) -> Option<String> {
        self.root_cause(placement).map(|root_cause| root_cause.to_string()).or_else(|| self.fault.clone())
    }

    /// The program's exit code: that of the rank that failed first, else the launcher's; 143 where the end was asked for, none
    /// where nobody knows.
    pub fn code(&self, ranks: u32) -> Option<i64> {
        let ranks = self.ranks.unwrap_or(ranks);
        match self.state(ranks) {
            State::Succeeded => Some(0),
            State::Stopped => Some(143),
            _ => self.first_failure(ranks).map(|e| i64::from(e.code)).or(self.launcher.filter(|code| *code != 0)),
        }
    }
}

/// Stands for the tensors where they are not known.
const OPERATION: &str = "a collective operation";

/// Who a job failed by.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RootCause {
    /// The global rank.
    pub rank: u32,
    /// The node it ran on.
    pub node: String,
    /// How.
    #[serde(flatten)]
    pub how: FailureKind,
}

/// How a job failed by a rank.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "how", rename_all = "lowercase")]
pub enum FailureKind {
    /// Its program ended with something else than 0, or too early.
    #[serde(rename = "ended")]
    Exited {
        /// Exit code, 128 + N for signal N.
        code: i32,
        /// The signal that ended it, if one did.
        signal: Option<i32>,
        /// Whether the kernel killed a process of its container for want of memory meanwhile.
        oom: bool,
    },
    /// It kept the others waiting, or did nothing.
    Hung {
        /// For so many seconds.
        seconds: u64,
        /// The tensors that the others waited for, in Horovod's words.
        tensors: Option<String>,
        /// What it did; with [`Idle::Waiting`] all ranks waited for one another. Where there are no tensors either, it was stopped.
        idle: Option<Idle>,
    },
    /// Nobody saw it end.
    Gone {
        /// What was heard of its node's worker in place of an answer.
        silence: Option<String>,
    },
}

impl fmt::Display for RootCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on {} ", self.rank, self.node)?;
        match &self.how {
            FailureKind::Exited { code: 0, .. } => write!(f, "ended with exit code 0 while the others waited for it"),
            FailureKind::Exited { signal: Some(9), oom: true, .. } => {
                write!(f, "ran out of memory: the kernel killed it (signal 9)")
            }
            FailureKind::Exited { code, oom: true, .. } => {
                write!(
                    f,
                    "ended with exit code {code} after the kernel had killed a process beside it for want of memory"
                )
            }
            FailureKind::Exited { code: code @ (126 | 127), .. } => {
                write!(f, "ended with exit code {code} (could not be started)")
            }
            FailureKind::Exited { signal: Some(signal), .. } => write!(f, "was killed by signal {signal}"),
            FailureKind::Exited { code, .. } => write!(f, "ended with exit code {code}"),
            FailureKind::Hung { seconds, idle: Some(Idle::Blocked), .. } => {
                write!(f, "hung: it wrote nothing and did nothing for {seconds} s")
            }
            FailureKind::Hung { seconds, idle: Some(Idle::Kernel), .. } => {
                write!(f, "hung: the kernel kept it waiting for {seconds} s (state D)")
            }
            FailureKind::Hung { seconds, idle: Some(Idle::Waiting), .. } => {
                write!(f, "hung: all ranks waited {seconds} s for one another, in different collective operations")
            }
            FailureKind::Hung { seconds, tensors: Some(tensors), .. } => {
                write!(f, "hung: the others waited {seconds} s for it in {tensors}")
            }
            FailureKind::Hung { seconds, tensors: None, .. } => {
                write!(f, "hung: it was stopped, and silent, for {seconds} s")
            }
            FailureKind::Gone { silence: Some(words) } => {
                write!(f, "is gone, and the worker there did not answer at the end: {words}")
            }
            FailureKind::Gone { silence: None } => write!(f, "is gone, and nobody saw how it ended"),
        }
    }
}

impl RootCause {
    /// What to do about it, where that is not for the program's own words to say.
    pub fn hint(&self) -> Option<String> {
        let node = &self.node;
        Some(match &self.how {
            FailureKind::Exited { code: 0, .. } => {
                format!("every rank must come to {INIT}, and to the same collective operations as all others")
            }
            FailureKind::Exited { oom: true, .. } => {
                format!("a smaller batch, fewer data loaders or ranks on {node}; `docker stats` there shows the limit")
            }
            FailureKind::Hung { idle: Some(Idle::Kernel), .. } => {
                format!("a file system or a device of {node} does not answer; `dmesg` there may say which")
            }
            FailureKind::Hung { idle: Some(Idle::Blocked), .. } => {
                "a deadlock, or a file system that does not answer; where it is meant to wait, --stall-timeout gives it \
                 more time"
                    .into()
            }
            FailureKind::Hung { idle: None, tensors: None, .. } => {
                "SIGSTOP, a terminal or a debugger stopped it; --stall-timeout gives it more time".into()
            }
            FailureKind::Hung { tensors: Some(place), .. } if place == INIT => {
                format!("every rank must come to {INIT}; {MORE_TIME_FOR_INIT}")
            }
            FailureKind::Hung { .. } => {
                "every rank must come to the same collective operations; --stall-timeout gives it more time".into()
            }
            FailureKind::Gone { .. } => {
                format!("hvdctl status shows the worker; `docker events` and `dmesg` on {node} may say why")
            }
            FailureKind::Exited { .. } => return None,
        })
    }
}

/// A rank that was said to hang.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HungRank {
    /// The global rank.
    pub rank: u32,
    /// For so many seconds.
    pub seconds: u64,
    /// As in [`FailureKind::Hung`].
    #[serde(default)]
    pub tensors: Option<String>,
    /// As in [`FailureKind::Hung`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// When that was said, as [`RankExit::time`].
    pub time: f64,
}

/// Lines of one rank that had no room in the log of its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LostOutput {
    /// The global rank.
    pub rank: u32,
    /// Its node.
    pub node: String,
    /// How many.
    pub lines: u64,
}

/// How much output of a job was lost and on which nodes, in words; none where none was.
pub fn lost_output(lost: &[LostOutput]) -> Option<String> {
    let lines: u64 = lost.iter().map(|lost| lost.lines).sum();
    let mut nodes: Vec<String> = lost.iter().map(|lost| lost.node.clone()).collect();
    nodes.sort();
    nodes.dedup();
    let count = if lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") };
    (lines > 0).then(|| format!("{count} of output were lost: the disk of {} was full", nodeset::fold(&nodes)))
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
    /// The signal that ended it, if one did; a program may end with such a code by itself.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Seconds since the epoch, by the operator's clock.
    pub time: f64,
    /// Whether it had been asked to end.
    pub asked: bool,
    /// Whether the kernel killed a process of its container for want of memory meanwhile.
    #[serde(default)]
    pub oom: bool,
}
