//! The root cause of a job's failure: the rank by which it failed, and how. `diagnosis/root_cause.rs` finds it.

use super::role::{RankOfRole, name, names};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The activity of a rank without progress, as its supervisor observes it from outside (`activity.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Its own threads sleep.
    Blocked,
    /// The kernel keeps it waiting, for a file system or a device (state D).
    Kernel,
    /// It waits for other ranks in a collective operation.
    Waiting,
}

/// The root cause of a job's failure.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RootCause {
    /// The global rank.
    pub rank: u32,
    /// Its role, in a job with roles.
    #[serde(flatten)]
    pub role: Option<RankOfRole>,
    /// The node it ran on.
    pub node: String,
    /// The kind of its failure.
    #[serde(flatten)]
    pub how: FailureKind,
}

/// The failure of the rank that made a job fail.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "how", rename_all = "lowercase")]
pub enum FailureKind {
    /// Its program ended with another exit code than 0, or too early.
    #[serde(rename = "ended")]
    Exited {
        /// Exit code, 128 + N for signal N.
        code: i32,
        /// The signal that ended it, if one did.
        signal: Option<i32>,
        /// True if the kernel killed a process of its container because memory ran out.
        oom: bool,
    },
    /// It kept the others waiting, or made no progress.
    Hung {
        /// The time without progress, in seconds.
        seconds: u64,
        /// The tensors that the others waited for, as named by Horovod.
        tensors: Option<String>,
        /// Its activity. `waiting`: all ranks waited for one another. If `tensors` is null too, it was stopped.
        idle: Option<Idle>,
    },
    /// Another rank gave up waiting for it.
    Missing {
        /// The rank that gave up.
        waiting: u32,
        /// Its rank in the role, which is that of `rank`; only in a job with roles.
        #[serde(skip_serializing_if = "Option::is_none")]
        waiting_role_rank: Option<u32>,
        /// The node of that rank.
        waiting_node: String,
        /// The collective operation or the tensors in which that rank waited, if that is known.
        operation: Option<String>,
        /// The address to which that rank could not connect, with the port, if that is known.
        address: Option<String>,
        /// The activity of the rank that did not come.
        #[serde(flatten)]
        activity: Activity,
    },
    /// It gave up waiting for others, and no single one of them is known to be the cause.
    #[serde(rename = "gave_up")]
    GaveUp {
        /// The collective operation or the tensors in which it waited, if that is known.
        operation: Option<String>,
        /// The address to which it could not connect, with the port, if that is known.
        address: Option<String>,
        /// The ranks that did not come, those with the same activity together; empty if all others waited, too.
        others: Vec<OtherRanks>,
    },
    /// It is gone; how it ended is unknown.
    Gone {
        /// The error of its node's worker, which did not answer.
        error: Option<String>,
    },
}

/// The activity of a rank, or of several, when another one gave up waiting.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Activity {
    /// The time without progress, in seconds; null if it was still running.
    pub seconds: Option<u64>,
    /// The activity itself, as text; null if it is not known.
    pub does: Option<String>,
}

/// Ranks with the same activity.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OtherRanks {
    /// The global ranks.
    pub ranks: Vec<u32>,
    /// Their ranks in the role, which is that of the rank that gave up; only in a job with roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub role_ranks: Vec<u32>,
    /// Their activity.
    #[serde(flatten)]
    pub activity: Activity,
}

impl OtherRanks {
    /// Describes them; `role`: the name of their role, in a job with roles.
    fn describe(&self, role: Option<&str>) -> String {
        let of = |rank: &u32| role.map(|role| RankOfRole { role: role.to_owned(), rank: *rank });
        let roles: Vec<Option<RankOfRole>> = self.role_ranks.iter().map(of).collect();
        let role_of = |at: usize| roles.get(at).and_then(Option::as_ref);
        let named = self.ranks.iter().enumerate().map(|(at, rank)| (*rank, role_of(at)));
        format!("{} {}", names(named), self.activity.describe(self.ranks.len() > 1))
    }
}

impl Activity {
    /// Describes it in words that follow the ranks.
    fn describe(&self, are_several: bool) -> String {
        let were = if are_several { "were" } else { "was" };
        match (self.seconds, &self.does) {
            (Some(seconds), Some(does)) => format!("had made no progress for {seconds} s: {does}"),
            (Some(seconds), None) => format!("had made no progress for {seconds} s"),
            (None, Some(does)) => format!("{were} {does}"),
            (None, None) => format!("{were} still running"),
        }
    }
}

impl fmt::Display for RootCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let FailureKind::Missing { waiting, waiting_role_rank, waiting_node, operation, address, .. } = &self.how {
            let role = self.role.clone().zip(*waiting_role_rank).map(|(role, rank)| RankOfRole { rank, ..role });
            let waiting = name(*waiting, role.as_ref());
            write!(f, "{waiting} on {waiting_node} {}; ", gave_up(operation.as_deref(), address.as_deref()))?;
        }
        write!(f, "{} on {} {}", self.name(), self.node, self.description())
    }
}

/// Describes that a rank gave up.
fn gave_up(operation: Option<&str>, address: Option<&str>) -> String {
    if let Some(address) = address {
        return format!("gave up connecting to {address}");
    }
    let place = operation.map_or_else(String::new, |operation| format!(" in {operation}"));
    format!("gave up waiting for the others{place}")
}

impl RootCause {
    /// Formats the rank for sentences: `rank 3`, in a job with roles `rank 0 of trainer`.
    pub fn name(&self) -> String {
        name(self.rank, self.role.as_ref())
    }

    /// Describes what happened.
    fn description(&self) -> String {
        use FailureKind::{Exited, GaveUp, Gone, Hung, Missing};
        match &self.how {
            Exited { code: 0, .. } => "ended with exit code 0 while the others waited for it".into(),
            Exited { signal: Some(9), oom: true, .. } => "ran out of memory: the kernel killed it (signal 9)".into(),
            Exited { code, oom: true, .. } => format!(
                "ended with exit code {code} after the kernel killed one of its processes because memory ran out"
            ),
            Exited { code: code @ (126 | 127), .. } => format!("ended with exit code {code} (could not be started)"),
            Exited { signal: Some(signal), .. } => format!("was killed by signal {signal}"),
            Exited { code, .. } => format!("ended with exit code {code}"),
            Hung { seconds, idle: Some(Idle::Blocked), .. } => {
                format!("hung: it was idle and wrote nothing for {seconds} s")
            }
            Hung { seconds, idle: Some(Idle::Kernel), .. } => {
                format!("hung: the kernel kept it waiting for {seconds} s (state D)")
            }
            Hung { seconds, idle: Some(Idle::Waiting), .. } => {
                format!("hung: all ranks waited {seconds} s for one another, in different collective operations")
            }
            Hung { seconds, tensors: Some(tensors), .. } => {
                format!("hung: the others waited {seconds} s for it in {tensors}")
            }
            Hung { seconds, tensors: None, idle: None } => {
                format!("hung: it was stopped, and silent, for {seconds} s")
            }
            Missing { activity, .. } => activity.describe(false),
            GaveUp { address: Some(address), others, .. } if others.is_empty() => {
                format!("gave up connecting to {address}; the others gave up, too")
            }
            GaveUp { operation, others, .. } if others.is_empty() => {
                format!("{}, which waited, too", gave_up(operation.as_deref(), None))
            }
            GaveUp { operation, address, others } => {
                let role = self.role.as_ref().map(|role| &*role.role);
                let others: Vec<String> = others.iter().map(|others| others.describe(role)).collect();
                format!("{}; {}", gave_up(operation.as_deref(), address.as_deref()), others.join("; "))
            }
            Gone { error: Some(error) } => format!("is gone: the worker there did not answer at the end: {error}"),
            Gone { error: None } => "is gone; how it ended is unknown".into(),
        }
    }
}
