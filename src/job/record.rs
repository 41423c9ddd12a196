//! The record of a job, its result, and the root cause of a failure.

mod result;
#[cfg(test)]
mod tests;

pub use result::{Attempt, FailureKind, HungRank, JobResult, LostOutput, RankExit, RootCause, lost_output};

use crate::inventory::Ulimit;
use crate::launch::placement::Placement;
use crate::launch::{self, Launcher};
pub use crate::model::job_state::State;
use crate::model::launcher::{Bind, Controller, LauncherName};
use crate::node::facts::Facts;
use crate::text::argument::ProgramArgument;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many seconds a job without a launcher counts as starting.
pub const LAUNCH_WINDOW: f64 = 120.0;

/// What a node must know to run its ranks. It is written to `JOBS/ID/job.json` on every node of the job (mode 600), so
/// that neither the program's arguments nor its environment pass through a launcher or a shell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The job's id: time of its start and a few random letters.
    pub id: String,
    /// The cluster it belongs to.
    pub cluster: String,
    /// The name that was given to it, else that of the project, the program or the check.
    pub name: String,
    /// The project's name on the nodes.
    pub project: Option<String>,
    /// How often it may be restarted after a failure. Earlier builds left out 0.
    #[serde(default)]
    pub restarts: u32,
    /// The minimum number of ranks of an elastic job.
    pub min_ranks: Option<u32>,
    /// The maximum number of ranks of an elastic job on all nodes of the inventory, which nodes that are added join.
    pub max_ranks: Option<u32>,
    /// Who started it, `user@host`.
    pub operator: String,
    /// When, in seconds since the epoch by the operator's clock.
    pub created: f64,
    /// The launcher, which starts the ranks.
    pub launcher: LauncherName,
    /// Horovod's controller, if the launcher is `horovodrun`.
    pub controller: Option<Controller>,
    /// Which rank runs where; the launcher runs on the first node.
    pub placement: Placement,
    /// The program and its arguments, byte for byte.
    pub command: Vec<ProgramArgument>,
    /// Which cores the ranks are bound to; `None`: as the GPUs suggest.
    pub bind: Option<Bind>,
    /// The working directory, as a path in the container.
    pub cwd: String,
    /// The number of ranks.
    pub ranks: u32,
    /// The port of its workers' sshd.
    pub port: u16,
    /// This node's interface on the cluster network; the supervisor pins Gloo and NCCL to it.
    pub interface: String,
    /// Seconds between SIGTERM and SIGKILL when the job is to end.
    pub grace: u64,
    /// Seconds after which the supervisor ends a program that is stopped and silent; 0: never, it only reports that.
    pub stall: u64,
    /// Seconds beyond that after which a rank that makes no progress ends the job.
    pub idle_margin: u64,
    /// Seconds without progress after which a rank is reported; 0: never. Earlier builds had none.
    #[serde(default)]
    pub stall_warning: u64,
    /// Seconds after which a rank without a connection to another one is recorded; 0: never. Earlier builds had none.
    #[serde(default)]
    pub isolated_after: u64,
    /// Bytes that the log may take on each node; the oldest lines go first.
    pub log_max: Option<u64>,
    /// Whether the log keeps every state of progress bars. Earlier builds kept them all and left this out.
    #[serde(default)]
    pub log_progress: bool,
    /// The inventory's limits by name: a login by sshd may have changed those of the container.
    pub ulimits: BTreeMap<String, Ulimit>,
}

impl Record {
    /// Reads a record; none of one that a full disk cut off.
    pub fn parse(text: &str) -> Option<Record> {
        serde_json::from_str(text).ok()
    }

    /// Returns the launcher, which starts the ranks.
    pub fn launcher(&self) -> &'static Launcher {
        launch::launcher(self.launcher, self.controller)
    }
}

/// The records of a node's open jobs, as far as they can be read.
pub fn open_records(facts: &Facts) -> impl Iterator<Item = Record> {
    facts.open_records.iter().filter_map(|text| Record::parse(text))
}

/// The open jobs of a node whose launcher may not be up yet: their record is recent, or cannot be read.
pub fn starting(facts: &Facts) -> Vec<String> {
    let is_starting = |job: &&String| {
        let record = open_records(facts).find(|record| record.id == **job);
        let begun = record.zip(facts.clock).map(|(record, clock)| clock.high - record.created);
        begun.is_none_or(|age| age < LAUNCH_WINDOW)
    };
    facts.open_jobs.iter().filter(is_starting).cloned().collect()
}
