//! The processes and records of jobs on a node.

use super::lines::{known, parts};
use crate::model::job_state::is_job_id;
use std::collections::BTreeSet;

/// A process of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    /// The job that its environment names.
    pub job: String,
    /// Its process id.
    pub pid: u32,
    /// The id of the container that it runs in.
    pub container: Option<String>,
    /// The cluster that the job belongs to, by the record that lies on the node.
    pub cluster: Option<String>,
    /// Set if it was killed but still exists, because it waits in the kernel.
    pub killed: bool,
}

/// A job of the cluster that has ranks on a node and whose end is not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedJob {
    /// The job's id.
    pub id: String,
    /// Its record as it is stored; empty if there is none.
    pub record: String,
}

/// The observed state of jobs on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeJobs {
    /// The processes of jobs, other clusters' too.
    pub ranks: Vec<Rank>,
    /// The cluster's jobs whose end is not recorded.
    pub recorded: Vec<RecordedJob>,
    /// Their ranks that make no progress, each as `JOB RANK SINCE WHAT` (`waiting.py`).
    pub idle: Vec<String>,
    /// The jobs, other clusters' too, that have written files here outside the mounts of their containers.
    pub outside: BTreeSet<String>,
}

/// The recorded jobs of a node that have not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenJobs {
    /// All of them.
    pub jobs: Vec<RecordedJob>,
    /// The ids of those that are known to be running, by their launchers or ranks on any node.
    pub under_way: Vec<String>,
}

impl NodeJobs {
    /// Takes a line of the script, if it is about this.
    pub(super) fn read(&mut self, key: &str, value: &str) {
        match key {
            "rank" => self.ranks.extend(rank(value)),
            "open" => {
                let (id, record) = value.split_once(' ').unwrap_or((value, ""));
                if is_job_id(id) {
                    self.recorded.push(RecordedJob { id: id.to_owned(), record: record.to_owned() });
                }
            }
            "idle" => self.idle.push(value.to_owned()),
            "outside" => self.outside.extend(Some(value).filter(|id| is_job_id(id)).map(str::to_owned)),
            _ => {}
        }
    }
}

impl OpenJobs {
    /// Takes all recorded jobs for open ones, as long as no other node was asked.
    pub fn recorded(jobs: &NodeJobs) -> OpenJobs {
        OpenJobs { jobs: jobs.recorded.clone(), under_way: Vec::new() }
    }

    /// Returns whether a job is one of them.
    pub fn has(&self, id: &str) -> bool {
        self.jobs.iter().any(|job| job.id == id)
    }

    /// Returns whether a job is known to be running.
    pub fn is_under_way(&self, id: &str) -> bool {
        self.under_way.iter().any(|known| known == id)
    }
}

/// Parses `JOB PID CONTAINER CLUSTER KILLED`, with `-` for what is not known.
fn rank(value: &str) -> Option<Rank> {
    let [job, pid, container, cluster, killed] = parts(value)?;
    let (job, pid) = (Some(job).filter(|job| is_job_id(job))?.to_owned(), pid.parse().ok()?);
    Some(Rank { job, pid, container: known(container), cluster: known(cluster), killed: killed != "-" })
}
