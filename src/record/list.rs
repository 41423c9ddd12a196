//! The jobs of a cluster, by the records on its nodes. No state is kept anywhere else, so that every operator sees the
//! same.

use super::restart::Membership;
use super::{
    Attempt, JobResult, JobState, LAUNCH_WINDOW, LostOutput, OutsideFiles, RankExit, Record, RootCause,
    UnreadableRecord, places, roles, stored,
};
use crate::diagnosis::lost::{lost_output, outside_in_short};
use crate::launch::placement::Placement;
use crate::launch::{self, Launcher};
use crate::model::fault::{Fault, as_text};
use crate::model::idle_rank::IdleRank;
use crate::model::job_state::is_job_id;
use crate::model::launcher::{Controller, LauncherName};
use crate::model::queue::{QueueEnd, QueueEntry};
use crate::model::role::RecordedRole;
use crate::model::stack::RankStack;
use crate::sync::commit::is_commit;
use crate::text::argument::ProgramArgument;
use crate::text::units::{LAST_SECOND, stamp};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::time::UNIX_EPOCH;

/// The files of a job that the nodes store.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobFiles {
    /// Its record; the same on all nodes except the node's own share and the nodes that were added later.
    pub record: Option<Result<Record, UnreadableRecord>>,
    /// Its result, or why that cannot be read; on the node of the launcher.
    pub result: Option<Result<JobResult, String>>,
    /// Its failed attempts; on the node of the launcher.
    pub attempts: Vec<Attempt>,
    /// The nodes that take part in an elastic job; on the node of the launcher.
    pub membership: Option<Membership>,
    /// The ranks that have started in the last attempt.
    pub started: u32,
    /// The ranks that make no progress.
    pub idle: Vec<IdleRank>,
    /// Their stacks, as far as they were read.
    pub places: Vec<RankStack>,
    /// The container of its launcher, if that is up.
    pub container: Option<String>,
    /// Slurm's report about it.
    pub queue: Option<QueueEntry>,
    /// The nodes that have its directory, that of the container first.
    pub nodes: Vec<String>,
    /// Set if it has not ended on one of them.
    pub is_open: bool,
}

/// The files of jobs that the nodes store, by the job's id.
pub type StoredJobs = BTreeMap<String, JobFiles>;

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Its own name, else that of the project or program; in JSON null if it is not known.
    #[serde(serialize_with = "null_if_default")]
    #[schemars(with = "Option<String>")]
    pub name: String,
    /// The name of its project on the nodes; null if its program is in the image.
    pub project: Option<String>,
    /// The commit of its project, if that was in a repository of git.
    pub commit: Option<String>,
    /// True if the project differed from the commit; null if unknown.
    pub dirty: Option<bool>,
    /// The operator who started it, `user@host`; in JSON null if unknown.
    #[serde(serialize_with = "null_if_default")]
    #[schemars(with = "Option<String>")]
    pub operator: String,
    /// Its state; null if the node of the launcher was not queried or did not answer.
    pub state: Option<JobState>,
    /// The number of ranks; in JSON null if the record cannot be read.
    #[serde(serialize_with = "null_if_default")]
    #[schemars(with = "Option<u32>")]
    pub ranks: u32,
    /// The placement of its ranks; the launcher is on the first node.
    pub placement: Placement,
    /// Its roles, in their order; left out for a job of one program. Then `launcher` and `command` are those of the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RecordedRole>,
    /// The launcher, which starts the ranks; null if the record cannot be read.
    pub launcher: Option<LauncherName>,
    /// Horovod's controller, if the launcher is `horovodrun`.
    pub controller: Option<Controller>,
    /// The program.
    pub command: Vec<ProgramArgument>,
    /// The number of times that it may be restarted after a failure.
    pub restarts: u32,
    /// The minimum number of ranks of an elastic job.
    pub min_ranks: Option<u32>,
    /// The nodes that take part in an elastic job, and how they changed.
    pub membership: Option<Membership>,
    /// The failed attempts, after each of which the job was started again.
    pub attempts: Vec<Attempt>,
    /// The ranks of a running job that have made no progress for `stall_warning_s`, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<IdleRank>,
    /// The places of the ranks that make no progress or, of an ended job with ranks that had waited, of those that were
    /// asked to end, in one sentence; left out if they were not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub places: Option<String>,
    /// Slurm's report about a job that was submitted to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm: Option<QueueEntry>,
    /// Set if its nodes share the directories of hvdctl, and are reached through one of them.
    #[serde(skip)]
    pub shares_directory: bool,
    /// Its result, as it was recorded.
    #[serde(skip)]
    pub result: Option<JobResult>,
    /// The time of its start, in seconds since the epoch; in JSON RFC 3339 in UTC.
    #[serde(serialize_with = "rfc3339")]
    #[schemars(with = "String")]
    pub started: f64,
    /// The time of its end, in the same form.
    #[serde(serialize_with = "rfc3339_option")]
    #[schemars(with = "Option<String>")]
    pub ended: Option<f64>,
    /// The program's exit code; null before its end, and if it is not known.
    pub code: Option<i64>,
    /// The rank that failed first.
    pub first_failure: Option<RankExit>,
    /// The root cause: the rank by which it failed, and how.
    pub root_cause: Option<RootCause>,
    /// The root cause as text, what else is known of its end, or why its record or result cannot be read.
    pub reason: Option<String>,
    /// The fault that ended it, if no rank did, or the reason why the job supervisor recorded no result.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "Option<String>")]
    pub fault: Option<Fault>,
    /// Output that a full disk lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostOutput>,
    /// Files that it wrote outside the mounts of its containers and that are lost with them, by node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<OutsideFiles>,
    /// Set if it is one of hvdctl's own checks.
    #[serde(skip)]
    pub is_check: bool,
    /// The port of its workers' sshd; 0 if it is not known.
    #[serde(skip)]
    pub port: u16,
    /// Bytes that its log may take on each node.
    #[serde(skip)]
    pub log_max: Option<u64>,
    /// Its record, if that can be read.
    #[serde(skip)]
    pub record: Option<Box<Record>>,
    /// The container of its launcher, if that is up.
    #[serde(skip)]
    pub container: Option<String>,
    /// Set if the job is unreadable and may be running.
    #[serde(skip)]
    pub may_run: bool,
    /// Its nodes; of an unreadable job those that have its directory.
    pub nodes: Vec<String>,
    /// The nodes that only earlier allocations of Slurm's had; their logs are those of the first part of the job.
    #[serde(skip)]
    pub earlier: Vec<String>,
}

fn rfc3339<S: Serializer>(seconds: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&stamp(*seconds))
}

/// Serializes a value that is empty or 0 as null.
fn null_if_default<T: Default + PartialEq + Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    Some(value).filter(|value| **value != T::default()).serialize(to)
}

fn rfc3339_option<S: Serializer>(seconds: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    seconds.map(stamp).serialize(serializer)
}

impl Job {
    /// Returns the number of ranks that it can have at most. What its logs say of others is not true: its ranks can write
    /// to them.
    pub fn most_ranks(&self) -> u32 {
        self.record.as_ref().and_then(|record| record.max_ranks).unwrap_or(self.ranks).max(self.ranks)
    }

    /// Returns whether its program is hvdctl's own, in the job's directory: that of a notebook or a check.
    pub fn has_own_program(&self) -> bool {
        let directory = format!("/{}/", self.id);
        self.command.iter().any(|argument| argument.to_string().contains(&directory))
    }

    /// Returns whether the job has certainly ended.
    pub fn is_over(&self) -> bool {
        match self.state {
            None | Some(JobState::Queued | JobState::Starting | JobState::Running) => false,
            Some(JobState::Unreadable) => !self.may_run,
            Some(JobState::Succeeded | JobState::Failed | JobState::Stopped | JobState::Lost) => true,
        }
    }

    /// Returns whether it waits in the queue of Slurm, or has begun there and its nodes are not known yet.
    pub fn waits_for_nodes(&self) -> bool {
        self.state == Some(JobState::Queued)
    }

    /// Returns why it waits in the queue of Slurm, as text, if it does and that is known. `now`: in seconds since the
    /// epoch.
    pub fn wait(&self, now: f64) -> Option<String> {
        self.slurm.as_ref().filter(|_| self.waits_for_nodes())?.wait(now)
    }

    /// Returns whether its record can be read: only then is it known what it runs and where.
    pub fn has_record(&self) -> bool {
        self.launcher.is_some()
    }

    /// Returns the program that starts its ranks; the default one if its record cannot be read.
    pub fn launch(&self) -> &'static Launcher {
        launch::launcher(self.launcher.unwrap_or_default(), self.controller)
    }

    /// The node of its launcher.
    pub fn launcher(&self) -> &str {
        self.placement.launcher()
    }
}

/// Adds the output of `job/list.sh` on a node. Ignores lines of other files. A file may have several lines.
pub fn add(jobs: &mut StoredJobs, node: &str, text: &str) {
    let mut found: BTreeMap<(&str, &str, &str), Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let Some((path, value)) = line.split_once(':') else { continue };
        let Some((id, file)) = path.trim_start_matches("./").split_once('/') else { continue };
        // of a node that shares the directory; ranks can create others there
        let shared = file.strip_prefix("nodes/").and_then(|path| path.split_once('/'));
        let (of_node, file) = match shared {
            Some((other, file)) if file.starts_with("idle.") || file.starts_with("place.") => (other, file),
            Some(_) => continue,
            None => (node, file),
        };
        if is_job_id(id) && !file.contains('/') && !of_node.chars().any(char::is_control) {
            found.entry((id, of_node, file)).or_default().push(value);
        }
    }
    for ((id, of_node, file), lines) in found {
        let files = jobs.entry(id.to_owned()).or_default();
        let value = lines.join("\n");
        match file {
            "job.json" => files.add_record(Record::read(id, &value)),
            "env.json" => files.is_open = true,
            "result.json" => files.result = Some(stored::read(&value)),
            "queue" => files.queue = QueueEntry::parse(&value),
            "attempts.json" => files.attempts = serde_json::from_str(&value).unwrap_or_default(),
            "members.json" => files.membership = serde_json::from_str(&value).ok(),
            // also of several nodes that share the directory. A rank of a role may start more than once
            "states" => {
                let ranks = lines.iter().filter_map(|line| line.split(' ').nth(1)?.parse::<u32>().ok());
                let started = u32::try_from(ranks.collect::<BTreeSet<_>>().len()).unwrap_or(u32::MAX);
                files.started = files.started.saturating_add(started);
            }
            _ => match file.split_once('.') {
                Some(("idle", rank)) => files.idle.extend(IdleRank::parse(of_node, &format!("{rank} {value}"))),
                Some(("place", rank)) => {
                    let stack = rank.parse().ok().zip(RankStack::read(of_node, &value));
                    files.places.extend(stack.map(|(rank, stack)| RankStack { rank, ..stack }));
                }
                _ => continue,
            },
        }
        if files.nodes.last().is_none_or(|last| last != node) {
            files.nodes.push(node.to_owned());
        }
    }
}

/// Returns the time by a node's clock, as `job/list.sh` prints it, in seconds since the epoch.
pub fn clock(text: &str) -> Option<f64> {
    let time: f64 = text.lines().find_map(|line| line.strip_prefix("clock:"))?.parse().ok()?;
    (0.0..LAST_SECOND as f64).contains(&time).then_some(time)
}

impl JobFiles {
    /// Keeps the record with the most nodes: it was written when nodes were added to the job. One that can be read goes
    /// before one that cannot.
    fn add_record(&mut self, record: Result<Record, UnreadableRecord>) {
        // nodes that Slurm has not chosen keep the record of a job that waits
        let known = |record: &Record| (!record.waits_for_nodes(), record.placement.shares.len());
        let is_better = match (&self.record, &record) {
            (None, _) | (Some(Err(_)), Ok(_)) => true,
            (Some(Ok(earlier)), Ok(record)) => known(record) > known(earlier),
            (Some(_), Err(_)) => false,
        };
        if is_better {
            self.record = Some(record);
        }
    }
}

/// Returns the cluster's jobs, the newest first. `answered`: the nodes whose files these are. `now` is in seconds since
/// the epoch.
pub fn jobs(cluster: &str, stored: StoredJobs, answered: &[&str], now: f64) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (id, mut files) in stored {
        match files.record.take() {
            Some(Ok(record)) if record.cluster == cluster => jobs.push(job(id, record, files, answered, now)),
            // it may be this cluster's
            Some(Err(record)) if record.cluster.as_ref().is_none_or(|other| other == cluster) => {
                jobs.push(unreadable(id, record, files));
            }
            None if files.is_open => jobs.push(unreadable(id, UnreadableRecord::missing(), files)),
            Some(_) | None => {}
        }
    }
    jobs.sort_by(|a, b| b.started.total_cmp(&a.started).then(b.id.cmp(&a.id)));
    jobs
}

/// Returns a job whose record cannot be read. Only its result says how it ended.
fn unreadable(id: String, record: UnreadableRecord, files: JobFiles) -> Job {
    let JobFiles { result, attempts, membership, container, nodes, is_open, .. } = files;
    // a later form may count another unit
    let created = record.created.filter(|created| (0.0..LAST_SECOND as f64).contains(created));
    let started = created.or_else(|| begun(&id)).unwrap_or_default();
    let placeholder = Record {
        name: record.name.unwrap_or_default(),
        operator: record.operator.unwrap_or_default(),
        created: started,
        ..Record::default()
    };
    let may_run = result.is_none() && (is_open || container.is_some());
    let reason = format!("its record cannot be read: {}", record.reason);
    let files = JobFiles { result: result.and_then(Result::ok).map(Ok), attempts, membership, ..JobFiles::default() };
    let job = job(id, placeholder, files, &[], started);
    let state = job.result.as_ref().map_or(JobState::Unreadable, JobResult::state);
    Job {
        state: Some(state),
        launcher: None,
        reason: Some(reason),
        record: None,
        container,
        may_run,
        nodes,
        is_check: false,
        ..job
    }
}

/// Returns the time in an id of a job, in seconds since the epoch.
fn begun(id: &str) -> Option<f64> {
    let digits: String = id.chars().take(15).filter(char::is_ascii_digit).collect();
    let part = |from: usize, to: usize| digits.get(from..to);
    let date = format!("{}-{}-{}", part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let time =
        humantime::parse_rfc3339(&format!("{date}T{}:{}:{}Z", part(8, 10)?, part(10, 12)?, part(12, 14)?)).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs_f64())
}

impl JobFiles {
    /// Returns how the job ended by what its scheduler reports, if its launcher is gone.
    fn queue_end(&self) -> Option<QueueEnd> {
        self.queue.as_ref().filter(|_| self.container.is_none())?.end(self.started)
    }

    /// Returns the result of the job, unless Slurm knows more: it has started a job again that it preempted, or of
    /// which it had not said why it was asked to end; or it has said so since.
    fn final_result(&self) -> Option<&Result<JobResult, String>> {
        // its supervisor has ended, and the job may have not
        let is_ending = self.queue.as_ref().is_none_or(|queue| queue.state == "COMPLETING");
        let is_again = self.container.is_some() && !is_ending;
        let is_overruled = |result: &JobResult| match result.fault {
            Some(Fault::EndNotKnown) => is_again || self.queue_end().is_some(),
            Some(Fault::Preempted { .. }) => is_again,
            _ => false,
        };
        self.result.as_ref().filter(|result| !result.as_ref().is_ok_and(is_overruled))
    }

    /// Returns the state of the job; `None` if the node of its launcher is not among those that answered.
    fn state(&self, record: &Record, answered: &[&str], now: f64) -> Option<JobState> {
        let needed = match &self.membership {
            Some(membership) => membership.ranks().max(1),
            None if self.attempts.is_empty() => record.placement.ranks(),
            // a restarted job may have lost nodes
            None => 1,
        };
        // one that has lost its nodes waits for others
        let is_waiting = || self.queue.as_ref().is_some_and(QueueEntry::is_waiting);
        let waits = record.scheduled.is_some_and(|job| !job.is_placed || is_waiting());
        let is_seen = answered.contains(&record.placement.launcher());
        match self.final_result() {
            Some(Ok(result)) => Some(result.state()),
            Some(Err(_)) => Some(JobState::Unreadable),
            None if self.container.is_some() && waits => Some(JobState::Queued),
            None if self.container.is_some() && self.started >= needed => Some(JobState::Running),
            None if self.container.is_some() => Some(JobState::Starting),
            None if record.scheduled.is_none_or(|scheduled| scheduled.is_own) && !is_seen => None,
            None if let Some(end) = self.queue_end() => Some(end.state),
            None if self.started == 0 && now - record.created < LAUNCH_WINDOW => Some(JobState::Starting),
            None => Some(JobState::Lost),
        }
    }

    /// Returns why a job in this state ended so, or what else is known of its end.
    fn reason(&self, placement: &Placement, state: Option<JobState>) -> Option<String> {
        match self.final_result() {
            Some(Ok(result)) => {
                let reason = result.reason(placement).or_else(|| lost_output(&result.lost));
                reason.or_else(|| outside_in_short(&result.outside))
            }
            _ if let Some(end) = self.queue_end() => Some(end.fault.to_string()),
            None if state == Some(JobState::Lost) => {
                Some(format!("its launcher on {} is gone, and no result was recorded", placement.launcher()))
            }
            Some(Err(reason)) => Some(format!("its result cannot be read: {reason}")),
            None => None,
        }
    }
}

fn job(id: String, record: Record, mut files: JobFiles, answered: &[&str], now: f64) -> Job {
    if files.container.is_some() && files.final_result().is_none() {
        files.result = None;
    }
    let state = files.state(&record, answered, now);
    let reason = files.reason(&record.placement, state);
    let JobFiles { result, attempts, membership, container, queue, mut idle, places, .. } = files;
    let result = result.and_then(Result::ok);
    let kept = Some(Box::new(record.clone()));
    let placement = record.placement;
    // a supervisor that was killed leaves its file
    idle.retain(|_| state == Some(JobState::Running));
    idle.sort_by_key(|idle| idle.rank);
    idle.iter_mut().for_each(|idle| idle.role = placement.role(idle.rank));
    let places: Vec<RankStack> = places.into_iter().map(|stack| roles::named(stack, &placement)).collect();
    let ranks = membership.as_ref().map_or(placement.ranks(), Membership::ranks);
    let places = match &result {
        Some(result) => places::at_end(result, &placement),
        None => places::of_running(places, &idle, ranks),
    };
    Job {
        is_check: record.cwd.ends_with(&format!("/{id}")),
        port: record.port,
        nodes: placement.shares.iter().map(|share| share.node.clone()).collect(),
        earlier: record.earlier,
        id,
        name: record.name,
        operator: record.operator,
        state,
        ranks: placement.ranks(),
        roles: record.roles,
        launcher: Some(record.launcher),
        controller: record.controller,
        command: record.command,
        project: record.project,
        commit: record.commit.filter(|id| is_commit(id)),
        dirty: record.dirty,
        restarts: record.restarts,
        min_ranks: record.min_ranks,
        membership,
        attempts,
        idle,
        places,
        started: record.created,
        ended: result.as_ref().map(|result| result.ended),
        code: result.as_ref().and_then(JobResult::code),
        first_failure: result.as_ref().and_then(JobResult::first_failure).cloned(),
        root_cause: result.as_ref().and_then(|result| result.root_cause(&placement)),
        reason,
        fault: result.as_ref().and_then(|result| result.fault.clone()),
        lost: result.as_ref().map(|result| result.lost.clone()).unwrap_or_default(),
        outside: result.as_ref().map(|result| result.outside.clone()).unwrap_or_default(),
        log_max: record.log_max,
        slurm: queue,
        shares_directory: record.scheduled.is_some_and(|scheduled| !scheduled.is_own),
        placement,
        result,
        record: kept,
        container,
        may_run: false,
    }
}

#[cfg(test)]
pub(super) mod tests;
