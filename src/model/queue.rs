//! The state of a job in a queue of Slurm.

use super::fault::Fault;
use super::job_state::JobState;
use schemars::JsonSchema;
use serde::Serialize;

/// The state of a job as Slurm reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "SlurmJob")]
pub struct QueueEntry {
    /// The number of the job in Slurm.
    pub job: String,
    /// Its state there: `PENDING`, `RUNNING`, `TIMEOUT`, …
    pub state: String,
    /// Why it waits, as Slurm reports it.
    pub reason: Option<String>,
    /// When it was submitted, in seconds since the epoch.
    pub submitted: Option<i64>,
    /// When it was started, or is expected to be, if that is known.
    pub start: Option<i64>,
}

/// Seconds. A later start is Slurm's way to say that it does not know: the jobs before have no time limit.
const LONGEST: f64 = 90.0 * 86_400.0;

/// How Slurm has ended a job.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueEnd {
    /// The state of the job.
    pub state: JobState,
    /// Why.
    pub fault: Fault,
}

impl QueueEntry {
    /// Reads what Slurm says of a job: number, state, reason, when it was submitted and when it was started or is
    /// expected to be, with `|` between them and perhaps `_` for spaces.
    pub fn parse(said: &str) -> Option<QueueEntry> {
        let mut parts = said.split('|');
        let mut part = || parts.next().map(|part| part.replace('_', " "));
        let job = part()?;
        let state = said.split('|').nth(1).filter(|state| !state.is_empty())?.to_owned();
        let (_, reason) = (part(), part());
        let reason = reason.filter(|reason| !matches!(reason.as_str(), "" | "None" | "N/A"));
        let mut time = || part()?.parse::<i64>().ok();
        Some(QueueEntry { job, state, reason, submitted: time(), start: time() })
    }

    /// Returns how Slurm has ended a job that has no result of its own; `None` while it has not, and if it only knows
    /// that the job has ended (<https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES>). `started`: how many of
    /// its ranks had started.
    pub fn end(&self, started: u32) -> Option<QueueEnd> {
        let failed = |fault| Some(QueueEnd { state: JobState::Failed, fault });
        match self.state.as_str() {
            "TIMEOUT" | "DEADLINE" => failed(Fault::TimeLimit),
            "PREEMPTED" => failed(Fault::Preempted { requeues: None }),
            "NODE_FAIL" => failed(Fault::NodeFailed { requeues: None }),
            "OUT_OF_MEMORY" => failed(Fault::OutOfMemory),
            "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => failed(Fault::NodesNotStarted),
            "FAILED" if started == 0 => failed(Fault::FailedEarly),
            "CANCELLED" | "REVOKED" => Some(QueueEnd { state: JobState::Stopped, fault: Fault::Cancelled }),
            _ => None,
        }
    }

    /// Returns why Slurm has not answered the question for the state of the job; `None` if it has.
    pub fn silence(&self) -> Option<&str> {
        self.reason.as_deref().filter(|_| self.state == "UNKNOWN")
    }

    /// Returns whether the job waits for nodes.
    pub fn is_waiting(&self) -> bool {
        const WAITING: [&str; 7] =
            ["PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"];
        WAITING.contains(&self.state.as_str())
    }

    /// Returns why the job waits and until when, as text; `None` if it does not. `now`: in seconds since the epoch.
    pub fn wait(&self, now: f64) -> Option<String> {
        if let Some(reason) = self.silence() {
            return Some(format!("it was submitted as job {}, and Slurm does not answer: {reason}", self.job));
        }
        if !self.is_waiting() {
            return None;
        }
        let reason = self.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let seconds = self.start.map(|start| start as f64 - now).filter(|seconds| (0.0..LONGEST).contains(seconds));
        let expected = seconds.map_or_else(String::new, |seconds| {
            let span = humantime::format_duration(std::time::Duration::from_secs(seconds as u64 / 60 * 60 + 60));
            format!(", expected to start within {span}")
        });
        Some(format!("it waits in Slurm's queue as job {}{reason}{expected}", self.job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(state: &str) -> QueueEntry {
        let reason = Some("Resources".to_owned());
        QueueEntry { job: "7".into(), state: state.into(), reason, submitted: Some(900), start: Some(1090) }
    }

    #[test]
    fn what_slurm_ended_has_a_reason() {
        assert_eq!(entry("CANCELLED").end(0).unwrap().state, JobState::Stopped);
        assert_eq!(entry("NODE_FAIL").end(2).unwrap().state, JobState::Failed);
        for state in ["PENDING", "RUNNING", "COMPLETING", "COMPLETED", "", "ODD"] {
            assert_eq!(entry(state).end(0), None, "{state}");
        }
        assert_eq!(entry("FAILED").end(1), None, "its supervisor was killed");
        assert_eq!(entry("FAILED").end(0).unwrap().fault, Fault::FailedEarly);
    }

    #[test]
    fn a_job_that_waits_says_why_and_how_long() {
        let expected = "it waits in Slurm's queue as job 7 (Resources), expected to start within 2m";
        assert_eq!(entry("PENDING").wait(1000.0).as_deref(), Some(expected));
        assert_eq!(entry("PENDING").wait(2000.0).as_deref(), Some("it waits in Slurm's queue as job 7 (Resources)"));
        assert_eq!(entry("PENDING").wait(-1e8).as_deref(), Some("it waits in Slurm's queue as job 7 (Resources)"));
        assert_eq!(entry("RUNNING").wait(0.0), None);
        let silent = QueueEntry::parse("7|UNKNOWN|Unable_to_contact_slurm_controller").unwrap();
        let expected = "it was submitted as job 7, and Slurm does not answer: Unable to contact slurm controller";
        assert_eq!(silent.wait(0.0).as_deref(), Some(expected));
    }
}
