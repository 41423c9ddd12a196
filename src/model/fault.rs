//! The faults other than a rank's that end a job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// A fault other than a rank's that ended a job or an attempt, or kept it from starting, as the programs of the nodes
/// (`src/scripts/programs/faults.py`) and hvdctl record it in `result.json`. Only here it becomes a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fault {
    /// Not all ranks had started in time.
    NotStarted {
        /// The time limit.
        seconds: u64,
        /// Which ranks, on which nodes, and why if that is known.
        missing: String,
    },
    /// A role that others need was not ready in time.
    RoleNotReady {
        /// Its name.
        role: String,
        /// The time limit.
        seconds: u64,
        /// The ranks in the role that were not ready: `0, 1`.
        ranks: String,
        /// True if they had ended by themselves before.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ended: bool,
    },
    /// The engine stopped the container of the launcher.
    ContainerStopped,
    /// The worker of a node was stopped or killed, or its sshd was.
    WorkerStopped {
        /// The node.
        node: String,
    },
    /// The container of the launcher was removed while the job was in Slurm's queue.
    ContainerRemoved,
    /// The time limit that Slurm gave it was reached.
    TimeLimit,
    /// Slurm gave its nodes to another job.
    Preempted {
        /// True if Slurm starts jobs again that it preempts there; `None` if that is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requeues: Option<bool>,
    },
    /// Slurm put the allocation within which it ran into its queue again.
    AllocationRequeued,
    /// It was asked to end, and Slurm did not say why.
    EndNotKnown,
    /// A node of its allocation failed.
    NodeFailed {
        /// False within an allocation of the user, where Slurm starts nothing again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requeues: Option<bool>,
    },
    /// Slurm could not start its nodes.
    NodesNotStarted,
    /// It used more memory than Slurm had allocated to it.
    OutOfMemory,
    /// The job was cancelled in Slurm while it had its nodes.
    Cancelled,
    /// The job was cancelled in Slurm while it was in the queue.
    CancelledInQueue,
    /// The job was ended while it was in Slurm's queue.
    EndedInQueue,
    /// Slurm or the program that starts its jobs could not start it.
    NotAllocated {
        /// Why, as these programs report it.
        message: String,
    },
    /// The job's first node does not have the commands of Slurm.
    NoCommands {
        /// Which one, and where it was looked for.
        message: String,
    },
    /// Its nodes do not all find the job's directory.
    NotShared {
        /// The programs' finding.
        message: String,
    },
    /// Slurm reports only that it failed, before its ranks were started.
    FailedEarly,
    /// It ended before its ranks were started.
    EndedEarly {
        /// Its last lines.
        output: String,
    },
    /// A line of `activate` failed before its ranks were started.
    NotActivated {
        /// Its last lines.
        output: String,
    },
    /// An elastic job had too few ranks for too long.
    TooFewRanks {
        /// How many it needs.
        ranks: u32,
        /// For how long it waited.
        seconds: u64,
    },
    /// The nodes of an elastic job left or joined more often than it allows.
    TooManyChanges {
        /// Horovod's message.
        message: String,
    },
    /// Horovod's elastic driver ended the job.
    Driver {
        /// Its message.
        message: String,
    },
    /// The job supervisor was killed before it recorded a result.
    Unrecorded {
        /// The exit code of its container, if it is known.
        code: Option<i64>,
    },
    /// hvdctl could not launch the job.
    NotLaunched {
        /// The error.
        error: String,
    },
    /// hvdctl could not submit the job to Slurm.
    NotSubmitted {
        /// The error.
        error: String,
    },
    /// A text, as earlier builds recorded it.
    #[serde(untagged)]
    Text(String),
    /// A kind that only a later build knows.
    #[serde(untagged)]
    Unknown(BTreeMap<String, Value>),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotStarted { seconds, missing } => {
                write!(f, "not all ranks had started within {seconds} s: {missing}")
            }
            Fault::RoleNotReady { role, seconds, ranks, ended } => {
                let ranks_of = if ranks.contains(',') { "ranks" } else { "rank" };
                match ended {
                    true => write!(f, "the role {role} ended before it was ready: {ranks_of} {ranks}"),
                    false => write!(f, "the role {role} was not ready within {seconds} s: {ranks_of} {ranks}"),
                }
            }
            Fault::ContainerStopped => f.write_str(
                "its launcher's container was stopped by `docker stop`, or because the engine or the machine shut down",
            ),
            Fault::WorkerStopped { node } => {
                write!(f, "the worker of {node} was stopped or killed, or its engine or machine shut down")
            }
            Fault::ContainerRemoved => {
                f.write_str("its launcher's container was removed while it was in Slurm's queue")
            }
            Fault::TimeLimit => f.write_str("Slurm's time limit was reached"),
            Fault::Preempted { .. } => f.write_str("Slurm preempted it for another job"),
            Fault::AllocationRequeued => f.write_str("Slurm put the allocation that it ran in into the queue again"),
            Fault::EndNotKnown => f.write_str("it was asked to end; Slurm did not answer why"),
            Fault::NodeFailed { .. } => f.write_str("a node of its allocation failed"),
            Fault::NodesNotStarted => f.write_str("Slurm could not start its nodes"),
            Fault::OutOfMemory => f.write_str("it used more memory than Slurm had allocated to it"),
            Fault::Cancelled => f.write_str("it was cancelled in Slurm (scancel)"),
            Fault::CancelledInQueue => f.write_str("it was cancelled in Slurm's queue (scancel)"),
            Fault::EndedInQueue => f.write_str("it was still in Slurm's queue"),
            Fault::NotAllocated { message }
            | Fault::NoCommands { message }
            | Fault::NotShared { message }
            | Fault::TooManyChanges { message }
            | Fault::Driver { message } => f.write_str(message),
            Fault::FailedEarly => {
                f.write_str("it ended before its ranks were started; its nodes may not share hvdctl's directory")
            }
            Fault::EndedEarly { output } | Fault::NotActivated { output } => {
                write!(f, "it ended before its ranks were started:\n{output}")
            }
            Fault::TooFewRanks { ranks, seconds } => write!(f, "it had fewer than {ranks} ranks for {seconds} s"),
            Fault::Unrecorded { code } => {
                let code = code.map_or_else(String::new, |code| format!(" with code {code}"));
                write!(f, "the job supervisor exited{code} without recording a result")
            }
            Fault::NotLaunched { error } => write!(f, "not launched: {error}"),
            Fault::NotSubmitted { error } => write!(f, "not submitted: {error}"),
            Fault::Text(text) => f.write_str(text),
            Fault::Unknown(recorded) => {
                let kind = recorded.get("kind").and_then(Value::as_str).unwrap_or("unknown");
                write!(f, "a newer hvdctl recorded why: {}", kind.replace('_', " "))
            }
        }
    }
}

/// Serializes a fault as its text, for people and their programs.
///
/// # Errors
/// Those of the serializer.
pub fn as_text<S: Serializer>(fault: &Option<Fault>, serializer: S) -> Result<S::Ok, S::Error> {
    fault.as_ref().map(ToString::to_string).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Fault {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_fault_is_read_as_it_was_written() {
        let not_started = Fault::NotStarted { seconds: 120, missing: "rank 1 on node2".into() };
        let json = serde_json::to_string(&not_started).unwrap();
        assert_eq!(json, r#"{"kind":"not_started","seconds":120,"missing":"rank 1 on node2"}"#);
        assert_eq!(read(&json), not_started);
        let text = |ranks| {
            let json = format!(r#"{{"kind":"role_not_ready","role":"generator","seconds":600,"ranks":"{ranks}"}}"#);
            read(&json).to_string()
        };
        assert_eq!(text("0, 1"), "the role generator was not ready within 600 s: ranks 0, 1");
        assert_eq!(text("3"), "the role generator was not ready within 600 s: rank 3");
        let json = r#"{"kind":"role_not_ready","role":"generator","seconds":600,"ranks":"0","ended":true}"#;
        assert_eq!(read(json).to_string(), "the role generator ended before it was ready: rank 0");
        assert_eq!(serde_json::to_string(&read(json)).unwrap(), json);
        assert_eq!(read(r#"{"kind":"time_limit"}"#), Fault::TimeLimit);
        assert_eq!(read(r#"{"kind":"preempted"}"#), Fault::Preempted { requeues: None }, "of an earlier build");
        assert_eq!(read(r#""Slurm's time limit was reached""#).to_string(), Fault::TimeLimit.to_string());
        let later = read(r#"{"kind":"burst_pipe","floor":2}"#);
        assert_eq!(later.to_string(), "a newer hvdctl recorded why: burst pipe");
        assert_eq!(serde_json::to_string(&later).unwrap(), r#"{"floor":2,"kind":"burst_pipe"}"#);
    }
}
