//! The stored state of a job, and the conclusions from it: its record and result, the frames of its logs, the root
//! cause of a failure.
//!
//! `frames` are what the programs on the nodes write to a log. `monitor`, `waits`, `early_ends` and `outcome` read from
//! them how the ranks are and how the job ended; `list` is the jobs that the nodes know, `places` where their ranks wait,
//! `restart` why one began again. Nothing here does input or output.

pub mod early_ends;
pub mod files;
pub mod find;
pub mod frames;
pub mod list;
pub mod monitor;
pub mod outcome;
pub mod places;
pub mod restart;
pub mod roles;
pub mod samples;
pub mod stored;
#[cfg(test)]
mod tests;
pub mod waits;

pub use crate::model::job_result::{Attempt, HungRank, JobResult, LostOutput, OutsideFile, OutsideFiles, RankExit};
pub use crate::model::root_cause::{FailureKind, RootCause};

use crate::diagnosis::ports::KnownPorts;
use crate::inventory::Ulimit;
use crate::launch::placement::Placement;
use crate::launch::{self, Launcher};
pub use crate::model::job_state::JobState;
use crate::model::launcher::{Bind, Controller, LauncherName};
use crate::model::role::{RankOfRole, RecordedRole};
use crate::node::facts::Span;
use crate::node::jobs::RecordedJob;
use crate::sync::project::directory_name;
use crate::text::argument::ProgramArgument;
use crate::text::quote;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Seconds for which a job without a launcher counts as starting.
pub const LAUNCH_WINDOW: f64 = 120.0;

/// The facts that a node needs to run its ranks. They are written to `JOBS/ID/job.json` on every node of the job (mode 600), so
/// that neither the program's arguments nor its environment pass through a launcher or a shell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The job's id: time of its start and a few random letters.
    pub id: String,
    /// The cluster it belongs to.
    pub cluster: String,
    /// The name that was given to it, else that of the project, the program or the check.
    pub name: String,
    /// The project's name on the nodes.
    pub project: Option<String>,
    /// The number of times that it may be restarted after a failure. Earlier builds left out 0.
    #[serde(default)]
    pub restarts: u32,
    /// The minimum number of ranks of an elastic job.
    pub min_ranks: Option<u32>,
    /// The maximum number of ranks of an elastic job on all nodes of the inventory, which nodes that are added join.
    pub max_ranks: Option<u32>,
    /// The operator who started it, `user@host`.
    pub operator: String,
    /// The time of its start, in seconds since the epoch by the operator's clock.
    pub created: f64,
    /// The launcher, which starts the ranks.
    pub launcher: LauncherName,
    /// Horovod's controller, if the launcher is `horovodrun`.
    pub controller: Option<Controller>,
    /// The placement of its ranks; the launcher runs on the first node.
    pub placement: Placement,
    /// The program and its arguments, byte for byte.
    pub command: Vec<ProgramArgument>,
    /// Its roles, in their order; empty for a job of one program. Then `command` and `launcher` are those of the first
    /// one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RecordedRole>,
    /// Set if the command is the default of a project, `python train.py`: the ranks run `python3` if the image has no
    /// `python`.
    #[serde(default)]
    pub default_command: bool,
    /// The commit of its project, if that is in a repository of git.
    #[serde(default)]
    pub commit: Option<String>,
    /// True if the project differs from it; `None` if unknown.
    #[serde(default)]
    pub dirty: Option<bool>,
    /// The cores to which the ranks are bound; `None`: as the GPUs suggest.
    pub bind: Option<Bind>,
    /// The working directory, as a path in the container.
    pub cwd: String,
    /// The number of ranks.
    pub ranks: u32,
    /// The port of its workers' sshd.
    pub port: u16,
    /// The first of the ports by which its ranks find one another, if hvdctl has chosen it; one for each rank of a node
    /// follows. Earlier builds left it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous_port: Option<u16>,
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
    /// Seconds between two samples of what ranks, nodes and GPUs use; 0: none. Earlier builds had none.
    #[serde(default)]
    pub sample: u64,
    /// Bytes that the log may take on each node; the oldest lines go first.
    pub log_max: Option<u64>,
    /// Set if the log keeps every state of progress bars. Earlier builds kept them all and left this out.
    #[serde(default)]
    pub log_progress: bool,
    /// How its nodes are chosen, unless hvdctl has chosen them. Earlier builds had none.
    #[serde(rename = "slurm", default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Scheduled>,
    /// The nodes that only earlier allocations of Slurm's had, before it started the job again: their logs are in the
    /// job's directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<String>,
    /// The image of its containers; none without containers. Earlier builds left it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The names of the variables that the operator and the inventory set. Their values may be secret, and are not
    /// recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
    /// The version of the hvdctl that started it. Earlier builds left it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The inventory's limits by name: a login by sshd may have changed those of the container.
    pub ulimits: BTreeMap<String, Ulimit>,
}

/// How a scheduler chooses the nodes of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Scheduled {
    /// Set when it has allocated them, and the placement is that of the job's ranks (`allocation.py`, `queued.py`).
    pub is_placed: bool,
    /// Set if it is the cluster's queue, whose nodes are those of the inventory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_own: bool,
}

/// A record that cannot be read, and what it shows of the job all the same.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnreadableRecord {
    /// The reason why it cannot be read.
    pub reason: String,
    /// The cluster of the job.
    pub cluster: Option<String>,
    /// As [`Record::name`].
    pub name: Option<String>,
    /// As [`Record::operator`].
    pub operator: Option<String>,
    /// As [`Record::created`].
    pub created: Option<f64>,
}

impl UnreadableRecord {
    /// The record of a job that has none.
    pub fn missing() -> UnreadableRecord {
        UnreadableRecord { reason: stored::MISSING.into(), ..UnreadableRecord::default() }
    }
}

impl Record {
    /// Returns true if a scheduler has not yet chosen the job's nodes.
    pub fn waits_for_nodes(&self) -> bool {
        self.scheduled.is_some_and(|scheduled| !scheduled.is_placed)
    }

    /// Reads the record in the directory of the job `id`.
    ///
    /// # Errors
    /// [`UnreadableRecord`] if a newer hvdctl wrote it, a full disk cut it off, or it is another job's.
    pub fn read(id: &str, text: &str) -> Result<Record, UnreadableRecord> {
        let reason = match stored::read::<Record>(text) {
            Ok(record) if record.id != id => format!("the record of job {}", record.id),
            Ok(record) => match record.odd_name() {
                None => return Ok(record.with_roles()),
                Some(name) => format!("{} is not a valid name of a job, a project or a role", quote::readable(&name)),
            },
            Err(reason) => reason,
        };
        let fields: Value = serde_json::from_str(text).unwrap_or_default();
        let field = |name: &str| fields[name].as_str().map(str::to_owned);
        let (cluster, name, operator) = (field("cluster"), field("name"), field("operator"));
        Err(UnreadableRecord { reason, cluster, name, operator, created: fields["created"].as_f64() })
    }

    /// Returns it with its roles in its placement, which is stored without them.
    fn with_roles(mut self) -> Record {
        self.placement.roles.clone_from(&self.roles);
        self
    }

    /// Returns its name, or that of its project or a role, if hvdctl gives no such one: they become parts of paths, here and on
    /// other nodes.
    fn odd_name(&self) -> Option<String> {
        let names = [Some(&self.name), self.project.as_ref()];
        let odd = names.into_iter().flatten().find(|name| directory_name(name) != **name);
        let is_plain = |name: &str| name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        odd.or_else(|| self.roles.iter().map(|role| &role.name).find(|name| !is_plain(name))).cloned()
    }

    /// Returns the ports that the job has on its nodes. `workers`: the port of the cluster's own workers.
    pub fn ports(&self, workers: u16) -> Vec<KnownPorts> {
        let own = (self.port != workers && self.port != 0).then_some((self.port, 1, "the sshd of its workers"));
        let count = u16::try_from(self.placement.rendezvous_ports()).unwrap_or(u16::MAX).max(1);
        let rendezvous = self.rendezvous_port.map(|port| (port, count, "its MASTER_PORT"));
        let known = |(first, count, what)| KnownPorts { first, count, owner: format!("job {} ({what})", self.id) };
        own.into_iter().chain(rendezvous).map(known).collect()
    }

    /// Returns the role of a rank, and its rank in that; `None` in a job without roles.
    pub fn role_of(&self, rank: u32) -> Option<RankOfRole> {
        let (role, rank) = self.placement.role_of(rank)?;
        self.roles.get(role).map(|role| RankOfRole { role: role.name.clone(), rank })
    }

    /// Returns the launcher, which starts the ranks.
    pub fn launcher(&self) -> &'static Launcher {
        launch::launcher(self.launcher, self.controller)
    }
}

/// Returns the ids of jobs, each with its record.
pub fn open_jobs(jobs: &[RecordedJob]) -> impl Iterator<Item = (&str, Result<Record, UnreadableRecord>)> {
    jobs.iter().map(|job| (job.id.as_str(), Record::read(&job.id, &job.record)))
}

/// Returns the records of jobs that can be read.
pub fn open_records(jobs: &[RecordedJob]) -> impl Iterator<Item = Record> {
    open_jobs(jobs).filter_map(|(_, record)| record.ok())
}

/// Returns the jobs whose records cannot be read, each with the reason.
pub fn unreadable(jobs: &[RecordedJob]) -> Vec<(String, String)> {
    open_jobs(jobs).filter_map(|(id, record)| Some((id.to_owned(), record.err()?.reason))).collect()
}

/// Returns the open jobs of a node whose launcher may not be up yet: their record is recent by the node's clock, or
/// cannot be read.
pub fn starting(jobs: &[RecordedJob], clock: Option<Span>) -> Vec<String> {
    let is_starting = |(job, record): (&str, Result<Record, UnreadableRecord>)| {
        let begun = record.ok().zip(clock).map(|(record, clock)| clock.high - record.created);
        begun.is_none_or(|age| age < LAUNCH_WINDOW).then(|| job.to_owned())
    };
    open_jobs(jobs).filter_map(is_starting).collect()
}
