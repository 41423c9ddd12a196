//! Restarts of a job after a failure.

use super::fault::{Fault, as_text};
use super::root_cause::RootCause;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The reason why a job is started again, and how it continues.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "reason", rename_all = "lowercase")]
pub enum Restart {
    /// An attempt failed, and another one follows.
    Failed {
        /// The root cause, if a rank caused the failure.
        root_cause: Option<RootCause>,
        /// The fault that ended the attempt, if no rank caused it.
        #[serde(serialize_with = "as_text")]
        #[schemars(with = "Option<String>")]
        fault: Option<Fault>,
        /// The exit code of the launcher; null if it did not exit on its own.
        launcher: Option<i64>,
        /// The number of the attempt that follows, from 2 on.
        attempt: u32,
        /// The greatest number of attempts.
        attempts: u32,
        /// Seconds until then.
        pause: u64,
    },
    /// Nodes left an elastic job or joined it.
    Membership {
        /// The change.
        change: Change,
    },
    /// The launcher that was to keep the ranks of an elastic job ended by itself, so all are started again.
    Lost {
        /// Its exit code.
        launcher: i64,
    },
    /// Nodes did not answer, so the next attempt does without them.
    Without {
        /// These nodes.
        gone: Vec<String>,
        /// The ranks on the others.
        ranks: u32,
    },
    /// Slurm started the job again after it had put it into its queue.
    Requeued {
        /// Its nodes since then.
        nodes: Vec<String>,
    },
    /// A role failed and is started again, while the other roles go on.
    #[serde(rename = "role_failed")]
    Role {
        /// The name of the role.
        failed: String,
        /// The root cause, if a rank caused the failure.
        root_cause: Option<RootCause>,
        /// How often the role has been started again, with this time.
        again: u32,
        /// How often it may be.
        of: u32,
    },
    /// A role is ready for those that need it. Nothing is started again.
    #[serde(rename = "role_ready")]
    Ready {
        /// The name of the role.
        ready: String,
        /// Seconds since its start.
        seconds: f64,
    },
    /// The job supervisor of another version of hvdctl gave another reason.
    Other {
        /// The reason as it was logged.
        logged: String,
    },
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Restart::Failed { root_cause, fault, launcher, attempt, attempts, pause } => {
                match (root_cause, fault, launcher) {
                    (Some(cause), ..) => write!(f, "{cause}")?,
                    (None, Some(fault), _) => fault.fmt(f)?,
                    (None, None, Some(code)) => write!(f, "the launcher exited with code {code}")?,
                    (None, None, None) => f.write_str("the launcher did not exit on its own")?,
                }
                write!(f, "; attempt {attempt} of {attempts} begins in {pause} s")
            }
            Restart::Membership { change } => change.fmt(f),
            Restart::Lost { launcher } => {
                write!(f, "the launcher exited with code {launcher} although no rank had failed; ")?;
                f.write_str("it cannot keep the ranks, and all start again")
            }
            Restart::Without { gone, ranks } => {
                let left = count(*ranks as usize, "rank");
                write!(f, "{} did not answer: {left} on the other nodes", gone.join(", "))
            }
            Restart::Requeued { nodes } => write!(f, "Slurm started the job again on {}", nodes.join(", ")),
            Restart::Role { failed, root_cause: Some(cause), again, of } => {
                write!(f, "{cause}; {failed} is started again, {again} of {of}")
            }
            Restart::Role { failed, root_cause: None, again, of } => {
                write!(f, "{failed} failed; it is started again, {again} of {of}")
            }
            Restart::Ready { ready, seconds } => write!(f, "{ready} is ready after {seconds:.0} s"),
            Restart::Other { logged } => f.write_str(logged),
        }
    }
}

/// A change of the nodes of an elastic job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// The time of the change, in seconds since the epoch by the clock of the launcher's node.
    #[serde(default)]
    pub time: f64,
    /// The nodes that left.
    pub left: Vec<Departure>,
    /// The nodes that joined.
    pub joined: Vec<String>,
    /// The number of ranks after the change.
    pub ranks: u32,
    /// The number of ranks with all nodes.
    pub wanted: u32,
    /// Seconds for which the job waits for other nodes, because it has too few ranks; 0: it continues.
    pub waits: u64,
    /// True if the other ranks continue in place; otherwise all are started again.
    #[serde(default)]
    pub kept: bool,
}

/// A node that left an elastic job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Departure {
    /// The node.
    pub node: String,
    /// The reason: the error of the connection to the node, or `no answer`.
    pub reason: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Departure { node, reason } in &self.left {
            write!(f, "{node} left ({reason}); ")?;
        }
        for node in &self.joined {
            write!(f, "{node} joined; ")?;
        }
        match self.waits {
            0 if self.kept => {
                write!(f, "the job continues in place with {} of {} ranks", self.ranks, self.wanted)
            }
            0 => write!(f, "the job continues with {} of {} ranks, which start again", self.ranks, self.wanted),
            seconds => write!(f, "the job has {} of {} ranks and waits {seconds} s for more", self.ranks, self.wanted),
        }
    }
}
