//! The state of a job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of a job. Its names in JSON and in messages are part of the command line's contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "JobState")]
pub enum JobState {
    /// It waits in the queue of Slurm.
    Queued,
    /// The launcher is up, not every rank has started its program.
    Starting,
    /// Every rank has started; at least one is running.
    Running,
    /// Every rank ended with 0.
    Succeeded,
    /// A rank, or the launcher, ended with something else.
    Failed,
    /// Ended on request.
    Stopped,
    /// It ended without a recorded result.
    Lost,
    /// Its record or its result cannot be read: it may be running, unless nothing of it is left.
    Unreadable,
}

/// Returns whether a job of hvdctl can have this id. Scripts that run as root on other nodes get ids that a node has
/// sent: as a part of a path, and of a pattern for processes.
pub fn is_job_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=64).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(is_plain)
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
