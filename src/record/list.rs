//! The jobs of a cluster, by the records on its nodes. No state is kept anywhere else, so that every operator sees the
//! same.

use super::restart::Membership;
use super::{
    Attempt, JobResult, JobState, LAUNCH_WINDOW, LostOutput, OutsideFiles, RankExit, Record, RootCause,
    UnreadableRecord, stored,
};
use crate::diagnosis::lost::{lost_output, outside_in_short};
use crate::launch::placement::Placement;
use crate::launch::{self, Launcher};
use crate::model::fault::{Fault, as_text};
use crate::model::idle_rank::IdleRank;
use crate::model::job_state::is_job_id;
use crate::model::launcher::{Controller, LauncherName};
use crate::model::queue::{QueueEnd, QueueEntry};
use crate::sync::commit::is_commit;
use crate::text::argument::ProgramArgument;
use crate::text::units::{LAST_SECOND, stamp};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
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
    let mut found: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let Some((path, value)) = line.split_once(':') else { continue };
        if let Some((id, file)) = path.trim_start_matches("./").split_once('/')
            && is_job_id(id)
            && !file.contains('/')
        {
            found.entry((id, file)).or_default().push(value);
        }
    }
    for ((id, file), lines) in found {
        let files = jobs.entry(id.to_owned()).or_default();
        let value = lines.join("\n");
        match file {
            "job.json" => files.add_record(Record::read(id, &value)),
            "env.json" => files.is_open = true,
            "result.json" => files.result = Some(stored::read(&value)),
            "queue" => files.queue = QueueEntry::parse(&value),
            "attempts.json" => files.attempts = serde_json::from_str(&value).unwrap_or_default(),
            "members.json" => files.membership = serde_json::from_str(&value).ok(),
            // of several nodes that share the directory
            "states" => {
                let started = lines.iter().filter_map(|line| line.trim().parse().ok());
                files.started = started.fold(files.started, u32::saturating_add);
            }
            _ => match file.strip_prefix("idle.") {
                Some(rank) => files.idle.extend(IdleRank::parse(node, &format!("{rank} {value}"))),
                None => continue,
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
    let JobFiles { result, attempts, membership, container, queue, mut idle, .. } = files;
    let result = result.and_then(Result::ok);
    let kept = Some(Box::new(record.clone()));
    let placement = record.placement;
    // a supervisor that was killed leaves its file
    idle.retain(|_| state == Some(JobState::Running));
    idle.sort_by_key(|idle| idle.rank);
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

/// The job that is meant if none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newest {
    /// The newest.
    Any,
    /// The newest that is not a check, as `verify` makes them; else the newest check.
    Program,
    /// The newest that has a project.
    Project,
}

/// Finds a job by its id, the beginning of its id, or its name (the newest of that name); without any of these the
/// newest of its kind.
///
/// # Errors
/// A message, if there is none, or several begin so.
pub fn find<'a>(jobs: &'a [Job], name: Option<&str>, newest: Newest) -> Result<&'a Job, String> {
    let Some(name) = name else {
        return match newest {
            Newest::Any => jobs.first(),
            Newest::Program => jobs.iter().find(|job| !job.is_check).or(jobs.first()),
            Newest::Project => jobs.iter().find(|job| job.project.is_some()),
        }
        .ok_or_else(|| match newest {
            Newest::Project => "there is no job with a project".to_owned(),
            Newest::Any | Newest::Program => "there are no jobs".to_owned(),
        });
    };
    if let Some(job) = jobs.iter().find(|job| job.id == name).or(jobs.iter().find(|job| job.name == name)) {
        return Ok(job);
    }
    let matching: Vec<&Job> = jobs.iter().filter(|job| job.id.starts_with(name)).collect();
    match matching[..] {
        [job] => Ok(job),
        [] => Err(format!("there is no job {name}")),
        _ => {
            let ids: Vec<&str> = matching.iter().take(5).map(|job| job.id.as_str()).collect();
            Err(format!("{name} is ambiguous: {} jobs match ({})", matching.len(), ids.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::placement::Share;
    use crate::record::Scheduled;

    fn record(id: &str, created: f64) -> Record {
        let share = |node: &str, first| Share { node: node.into(), ranks: 1, first, ..Share::default() };
        Record {
            id: id.into(),
            cluster: "lab".into(),
            name: "digits".into(),
            project: Some("digits".into()),
            operator: "ana@desk".into(),
            created,
            placement: Placement { shares: vec![share("a", 0), share("b", 1)] },
            command: vec!["python".into(), "a:b.py".into()],
            cwd: "/workspace".into(),
            ..Record::default()
        }
    }

    #[test]
    fn a_job_has_the_nodes_that_were_added_to_it() {
        let grown = lines("j1", 1.0, 0);
        let mut record = record("j1", 1.0);
        record.placement.shares.pop();
        let earlier = format!("./j1/job.json:{}\n", serde_json::to_string(&record).unwrap());
        for nodes in [[("a", &earlier), ("b", &grown)], [("a", &grown), ("b", &earlier)]] {
            assert_eq!(listed("lab", &nodes, &[], 1.0)[0].nodes, ["a", "b"]);
        }
    }

    /// The jobs of a cluster whose nodes have these files, and these launchers that are up.
    fn listed(cluster: &str, nodes: &[(&str, &String)], launchers: &[&str], now: f64) -> Vec<Job> {
        let mut stored = StoredJobs::new();
        nodes.iter().for_each(|(node, text)| add(&mut stored, node, text));
        for launcher in launchers {
            stored.entry((*launcher).to_owned()).or_default().container = Some("its id".into());
        }
        jobs(cluster, stored, &nodes.iter().map(|(node, _)| *node).collect::<Vec<_>>(), now)
    }

    fn lines(id: &str, created: f64, started: u32) -> String {
        let json = serde_json::to_string(&record(id, created)).unwrap();
        format!("./{id}/job.json:{json}\n./{id}/states:{started}\n")
    }

    #[test]
    fn the_state_of_a_job_follows_from_its_records() {
        let (text, none) = (lines("j1", 1000.0, 1), lines("j1", 1000.0, 0));
        let both = [("a", &text), ("b", &text)];
        let state = |nodes: &[(&str, &String)], launchers: &[&str], now| listed("lab", nodes, launchers, now)[0].state;
        assert_eq!(state(&both, &["j1"], 5000.0), Some(JobState::Running));
        assert_eq!(state(&[("a", &text), ("b", &none)], &["j1"], 5000.0), Some(JobState::Starting));
        assert_eq!(state(&both, &["other"], 5000.0), Some(JobState::Lost), "no launcher, no result");
        assert_eq!(state(&[("a", &none), ("b", &none)], &[], 1010.0), Some(JobState::Starting), "it is being prepared");
        assert_eq!(state(&both, &[], 1010.0), Some(JobState::Lost), "its ranks had started");
        assert_eq!(
            listed("lab", &both, &[], 1010.0)[0].reason.as_deref(),
            Some("its launcher on a is gone, and no result was recorded")
        );
        assert_eq!(state(&both[1..], &[], 5000.0), None, "the node that knows is away");
        assert!(listed("other", &both, &[], 0.0).is_empty(), "another cluster's in the same directory");
    }

    #[test]
    fn a_job_under_slurm_has_the_state_that_slurm_gives_it_until_it_has_a_result() {
        let entry = |state: &str| QueueEntry {
            job: "7".into(),
            state: state.into(),
            reason: None,
            submitted: None,
            start: None,
        };
        let job = |is_placed: bool, started: u32, is_up: bool, queue: Option<QueueEntry>| {
            let record = Record { scheduled: Some(Scheduled { is_placed, is_own: false }), ..record("j1", 1000.0) };
            let json = serde_json::to_string(&record).unwrap();
            let mut stored = StoredJobs::new();
            add(&mut stored, "login", &format!("./j1/job.json:{json}\n./j1/states:{started}\n"));
            let files = stored.get_mut("j1").unwrap();
            (files.container, files.queue) = (is_up.then(|| "its id".into()), queue);
            let job = jobs("lab", stored, &["login"], 5000.0).remove(0);
            (job.state.unwrap(), job.reason)
        };
        assert_eq!(job(false, 0, true, Some(entry("PENDING"))).0, JobState::Queued);
        assert_eq!(job(true, 0, true, Some(entry("RUNNING"))).0, JobState::Starting);
        assert_eq!(job(true, 2, true, Some(entry("PENDING"))).0, JobState::Queued, "in the queue again");
        assert_eq!(job(true, 2, true, Some(entry("RUNNING"))).0, JobState::Running);
        let (state, reason) = job(true, 2, false, Some(entry("PREEMPTED")));
        assert_eq!((state, reason.as_deref()), (JobState::Failed, Some("Slurm preempted it for another job")));
        assert_eq!(job(false, 0, false, Some(entry("CANCELLED"))).0, JobState::Stopped);
        assert_eq!(job(true, 2, false, Some(entry("COMPLETED"))).0, JobState::Lost, "it has recorded no result");
        assert_eq!(job(true, 2, false, None).0, JobState::Lost);
    }

    #[test]
    fn what_slurm_had_not_said_is_what_it_says_later() {
        let job = |fault: Fault, is_up: bool, state: Option<&str>| {
            let record =
                Record { scheduled: Some(Scheduled { is_placed: true, is_own: false }), ..record("j1", 1000.0) };
            let json = serde_json::to_string(&record).unwrap();
            let result = JobResult { launcher: Some(1), ..JobResult::ended_by(fault, 1060.0) };
            let result = serde_json::to_string(&result).unwrap();
            let mut stored = StoredJobs::new();
            add(&mut stored, "login", &format!("./j1/job.json:{json}\n./j1/result.json:{result}\n"));
            let files = stored.get_mut("j1").unwrap();
            files.container = is_up.then(|| "its id".into());
            files.queue = state.map(|state| QueueEntry {
                job: "7".into(),
                state: state.into(),
                reason: None,
                submitted: None,
                start: None,
            });
            let job = jobs("lab", stored, &["login"], 5000.0).remove(0);
            (job.state.unwrap(), job.reason.unwrap_or_default(), job.ended)
        };
        let unknown = "it was asked to end; Slurm did not answer why";
        for state in [None, Some("COMPLETED")] {
            let (state, reason, ended) = job(Fault::EndNotKnown, false, state);
            assert_eq!((state, reason.as_str(), ended), (JobState::Failed, unknown, Some(1060.0)));
        }
        let (state, reason, ended) = job(Fault::EndNotKnown, false, Some("NODE_FAIL"));
        assert_eq!(
            (state, reason.as_str(), ended),
            (JobState::Failed, "a node of its allocation failed", Some(1060.0))
        );
        assert_eq!(job(Fault::EndNotKnown, false, Some("CANCELLED")).0, JobState::Stopped);
        let (state, _, ended) = job(Fault::EndNotKnown, true, Some("PENDING"));
        assert_eq!((state, ended), (JobState::Queued, None), "it is in the queue again");
        assert_eq!(job(Fault::TimeLimit, false, Some("CANCELLED")).1, "Slurm's time limit was reached");
        let preempted = |state: &str| job(Fault::Preempted { requeues: Some(true) }, true, Some(state)).0;
        assert_eq!(["PENDING", "COMPLETING"].map(preempted), [JobState::Queued, JobState::Failed]);
    }

    #[test]
    fn a_running_job_has_its_ranks_without_progress() {
        let (text, none) = (lines("j1", 1000.0, 1), lines("j1", 1000.0, 1));
        let waits =
            format!("{text}./j1/idle.1:1000 waiting in read for data from /a:b\n./j1/idle.0:\n./j1/idle.x:1 a\n");
        let idle =
            |launchers: &[&str]| listed("lab", &[("a", &none), ("b", &waits)], launchers, 5000.0)[0].idle.clone();
        let does = "waiting in read for data from /a:b".to_owned();
        assert_eq!(idle(&["j1"]), [IdleRank { rank: 1, node: "b".into(), since: 1000.0, does }]);
        assert_eq!(idle(&[]), [], "it is over");
    }

    #[test]
    fn an_ended_job_has_its_result() {
        let ending = r#"{"ended": 1060.5, "launcher": 1, "stopped": false, "ranks": 2, "started": 2, "silent": [],
            "exits": [{"rank": 1, "node": "b", "code": 7, "time": 1060.0, "asked": false}]}"#;
        let text =
            format!("{}./j1/result.json:{}\nnoise\n./x/y/z:1\n", lines("j1", 1000.0, 1), ending.replace('\n', ""));
        let jobs = listed("lab", &[("a", &text)], &[], 5000.0);
        let job = &jobs[0];
        assert_eq!((job.state, job.code, job.ended, job.ranks), (Some(JobState::Failed), Some(7), Some(1060.5), 2));
        assert_eq!(job.first_failure.as_ref().unwrap().node, "b");
        assert_eq!(job.reason.as_deref(), Some("rank 1 on b ended with exit code 7"));
        assert!(job.is_over() && job.launcher() == "a");
    }

    #[test]
    fn a_restarted_job_has_its_attempts_and_may_have_lost_ranks() {
        let attempts = r#"[{"started": 1000.0, "ended": 1060.5, "ranks": 2, "launcher": 1, "silent": ["b"],
            "exits": [{"rank": 1, "node": "b", "code": 7, "time": 1060.0, "asked": false}]}]"#;
        let text = format!("{}./j1/attempts.json:{}\n", lines("j1", 1000.0, 1), attempts.replace('\n', ""));
        let running = &listed("lab", &[("a", &text)], &["j1"], 5000.0)[0];
        assert_eq!((running.state, running.attempts[0].exits[0].code), (Some(JobState::Running), 7));
        let ending = r#"{"ended": 1090.5, "launcher": 0, "stopped": false, "started": 1, "silent": ["b"], "ranks": 1,
            "exits": [{"rank": 0, "node": "a", "code": 0, "time": 1090.0, "asked": false}]}"#;
        let text = format!("{text}./j1/result.json:{}\n", ending.replace('\n', ""));
        assert_eq!(listed("lab", &[("a", &text)], &[], 5000.0)[0].state, Some(JobState::Succeeded), "with one rank");
    }

    #[test]
    fn a_record_that_was_cut_off_hides_no_other() {
        let text = format!("./j1/job.json:{{\"id\": \"j1\n{}", lines("j2", 1000.0, 0));
        let jobs = listed("lab", &[("a", &text)], &[], 5000.0);
        assert_eq!(
            jobs.iter().map(|job| (job.id.as_str(), job.has_record())).collect::<Vec<_>>(),
            [("j2", true), ("j1", false)]
        );
    }

    #[test]
    fn a_job_whose_record_cannot_be_read_may_run_until_its_end_is_stored() {
        let id = "20261121-101500-4f2a";
        let file = |name: &str, text: &str| format!("./{id}/{name}:{text}\n");
        let newer = file("job.json", r#"{"format":9,"cluster":"lab","name":"digits","operator":"ana@desk"}"#);
        let open = format!("{newer}{}", file("env.json", ""));
        let one = |text: &String, launchers: &[&str]| {
            let jobs = listed("lab", &[("b", text)], launchers, 5000.0);
            let [job] = &jobs[..] else { panic!("{jobs:?}") };
            job.clone()
        };
        let job = one(&open, &[]);
        assert_eq!(
            (job.state, job.is_over(), job.has_record(), job.launcher),
            (Some(JobState::Unreadable), false, false, None)
        );
        assert_eq!(
            (job.name.as_str(), job.operator.as_str(), &job.nodes),
            ("digits", "ana@desk", &vec!["b".to_owned()])
        );
        assert_eq!((stamp(job.started).as_str(), job.ended), ("2026-11-21T10:15:00Z", None));
        let in_milliseconds = open.replace("\"name\"", "\"created\":1795262584000,\"name\"");
        assert_eq!(one(&in_milliseconds, &[]).started, job.started);
        assert_eq!([stamp(1e300), stamp(-1.0)], ["9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"]);
        let newer_format = "written by a newer hvdctl (format 9); this one reads up to 1";
        assert_eq!(job.reason, Some(format!("its record cannot be read: {newer_format}")));
        assert_eq!(
            (one(&newer, &[id]).is_over(), one(&newer, &[]).is_over()),
            (false, true),
            "its launcher is up; nothing is left"
        );
        // no record at all, one of several lines, and one that does not show its cluster
        assert_eq!(
            one(&file("env.json", ""), &[]).reason.as_deref(),
            Some("its record cannot be read: empty or missing")
        );
        assert_eq!(one(&(file("job.json", "{") + &file("job.json", "\"format\": 9}")), &[]).reason, job.reason);
        assert!(listed("other", &[("b", &open)], &[], 5000.0).is_empty(), "another cluster's");
        // its end
        let stopped = one(&(open.clone() + &file("result.json", r#"{"ended": 1060.5, "stopped": true}"#)), &[]);
        assert_eq!((stopped.state, stopped.ended, stopped.is_over()), (Some(JobState::Stopped), Some(1060.5), true));
        let ended = one(&(open + &file("result.json", r#"{"format": 9}"#)), &[]);
        assert_eq!((ended.state, ended.ended, ended.is_over()), (Some(JobState::Unreadable), None, true));
        // a record that can be read goes before one that cannot
        let (good, bad) = (lines("j1", 1000.0, 0), "./j1/job.json:\n".to_owned());
        for nodes in [[("a", &bad), ("b", &good)], [("a", &good), ("b", &bad)]] {
            assert_eq!(listed("lab", &nodes, &[], 1010.0)[0].state, Some(JobState::Starting));
        }
        let ended = format!("{good}./j1/result.json:{{\"format\": 9}}\n");
        let ended = &listed("lab", &[("a", &ended)], &[], 1010.0)[0];
        assert_eq!((ended.state, ended.is_over(), ended.has_record()), (Some(JobState::Unreadable), true, true));
        assert_eq!(ended.reason, Some(format!("its result cannot be read: {newer_format}")));
    }

    #[test]
    fn a_job_is_found_by_id_by_its_beginning_and_by_name() {
        let text =
            [("20261121-1", 1.0), ("20261121-2", 2.0), ("20261122-1", 3.0)].map(|(id, t)| lines(id, t, 0)).concat();
        let jobs = listed("lab", &[("a", &text)], &[], 5000.0);
        let found = |word| find(&jobs, word, Newest::Any).map(|job| job.id.as_str());
        assert_eq!(found(None), Ok("20261122-1"));
        assert_eq!(found(Some("20261121-1")), Ok("20261121-1"));
        assert_eq!(found(Some("20261122")), Ok("20261122-1"));
        assert_eq!(found(Some("digits")), Ok("20261122-1"));
        assert_eq!(found(Some("20261121")), Err("20261121 is ambiguous: 2 jobs match (20261121-2, 20261121-1)".into()));
        assert_eq!(found(Some("x")), Err("there is no job x".into()));
        assert_eq!(find(&[], None, Newest::Any).unwrap_err(), "there are no jobs");
    }

    #[test]
    fn the_newest_of_its_kind_is_meant() {
        let text = ["p", "r", "v"].map(|id| lines(id, 1.0, 0)).concat();
        let mut jobs = listed("lab", &[("a", &text)], &[], 5000.0);
        jobs.sort_by_key(|job| std::cmp::Reverse(job.id.clone()));
        // v is a check, r a program of the image
        (jobs[0].is_check, jobs[0].project, jobs[1].project) = (true, None, None);
        let found = |newest| find(&jobs, None, newest).unwrap().id.as_str();
        assert_eq!([Newest::Any, Newest::Program, Newest::Project].map(found), ["v", "r", "p"]);
        assert_eq!(find(&jobs[..1], None, Newest::Program).unwrap().id, "v", "there is no other");
        assert_eq!(find(&jobs[..2], None, Newest::Project).unwrap_err(), "there is no job with a project");
    }
}
