//! Batch jobs as the runtime: processes of the login that Slurm starts on the first node of an allocation. Labels,
//! environment and output lie in the same directories as those of processes of the login, which all nodes share. Slurm knows
//! whether they run.

use super::container::{ContainerState, ContainerSummary};
use super::process::{LoginProcesses, name_of, process_script, summary_of};
use super::spec::ContainerSpec;
use crate::error::NodeError;
use crate::model::queue::{QueueEnd, QueueEntry};
use crate::text::quote;
use crate::transport::node::Script;
use std::time::Duration;

const LIST: &str = process_script!("slurm/common.sh", "slurm/list.sh");
const CHECK: &str = process_script!("slurm/common.sh", "slurm/check.sh");
const SUBMIT: &str = process_script!("slurm/common.sh", "slurm/submit.sh");
const BEGUN: &str = process_script!("job/directory.sh", "slurm/begun.sh");
const CANCEL: &str = process_script!("slurm/common.sh", "slurm/cancel.sh");
const END: &str = process_script!("slurm/common.sh", "slurm/end.sh");
const WAIT: &str = process_script!("slurm/common.sh", "slurm/wait.sh");

/// How long before the limit of a command its script ends to wait for Slurm.
const BEFORE_LIMIT: Duration = Duration::from_secs(5);
/// How often a script that waits for the beginning of a job looks.
const LOOKS: u32 = 10;
/// The mark of the line with the number of the allocation that `slurm/check.sh` is within.
const WITHIN: &str = "hvdctl: within ";

/// How a job is submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRequest {
    /// How its name in the queue begins.
    pub name: String,
    /// The options of the command that submits it.
    pub options: Vec<String>,
    /// Why some of its steps need one node's GPUs at the same time, and the way out of that; none if none do.
    pub shared_gpus: Option<(&'static str, &'static str)>,
    /// How many ranks it has, or 0 for as many as there are tasks.
    pub ranks: u32,
}

/// The batch jobs of this login. Clones share the connection to the login node.
#[derive(Clone)]
pub struct BatchJobs {
    processes: LoginProcesses,
}

impl BatchJobs {
    pub(super) fn new(processes: LoginProcesses) -> BatchJobs {
        BatchJobs { processes }
    }

    pub(super) fn node(&self) -> &str {
        self.processes.node()
    }

    /// Returns the directories of what was submitted.
    pub(super) fn processes(&self) -> &LoginProcesses {
        &self.processes
    }

    fn script(&self, source: &'static str) -> Script {
        self.processes.script(source)
    }

    /// Returns the seconds for which a script waits for Slurm: less than the limit of a command on the node, so that it
    /// can say for what it has waited.
    fn limit(&self) -> String {
        let limit = self.processes.limit();
        limit.saturating_sub(BEFORE_LIMIT).max(limit / 2).as_secs().to_string()
    }

    pub(super) async fn list(&self) -> Result<Vec<ContainerSummary>, NodeError> {
        let listed = self.processes.run(&self.script(LIST), "ask Slurm for the jobs").await?;
        Ok(listed.lines().filter_map(summary).collect())
    }

    /// Asks Slurm whether it would take a job. Returns the number of the allocation that it would use, if the login is
    /// within one.
    ///
    /// # Errors
    /// [`NodeError`] with Slurm's message; the allocation has too few tasks.
    pub async fn check(&self, request: &BatchRequest) -> Result<Option<String>, NodeError> {
        let script = self.script(CHECK).with("options", &arguments(&request.options));
        let (why, instead) = request.shared_gpus.unwrap_or_default();
        let script = script.with("shared_gpus", why).with("instead", instead);
        let script = script.with("ranks", &request.ranks.to_string());
        let printed = self.processes.run(&script, "submit the job to Slurm").await?;
        Ok(printed.lines().find_map(|line| line.strip_prefix(WITHIN)).map(str::to_owned))
    }

    /// Submits a job whose first process this container describes. One that cannot be submitted is removed again.
    ///
    /// # Errors
    /// [`NodeError`] with Slurm's message.
    pub async fn submit(&self, spec: &ContainerSpec, request: &BatchRequest) -> Result<(), NodeError> {
        let id = self.processes.create(spec).await?;
        let script = self.script(SUBMIT).with("which", &id).with("name", &request.name);
        let script = script.with("options", &arguments(&request.options)).with("limit", &self.limit());
        let started = self.processes.run(&script, "submit the job to Slurm").await;
        if started.is_err() {
            let _ = self.end(&id, true).await;
        }
        started.map(drop)
    }

    /// Waits until a job has its nodes or has ended, which it writes to its directory in `jobs_dir`, or until the limit
    /// has passed. Slurm is not asked.
    ///
    /// # Errors
    /// When the login node does not answer.
    pub async fn begun(&self, jobs_dir: &str, id: &str, limit: Duration) -> Result<(), NodeError> {
        let pause = limit / LOOKS;
        let script = self.script(BEGUN).with("jobs_dir", jobs_dir).with("job", id).with("looks", &LOOKS.to_string());
        let script = script.with("pause", &format!("{:.3}", pause.as_secs_f64()));
        self.processes.run(&script, "wait for the job's nodes").await.map(drop)
    }

    /// Returns how a job has ended, as far as Slurm knows. `started`: how many ranks had started.
    pub(super) async fn end_of(&self, container: &str, started: u32) -> Option<QueueEnd> {
        self.list().await.ok()?.into_iter().find(|one| one.id == container)?.queue?.end(started)
    }

    pub(super) async fn terminate(&self, which: &str) -> Result<(), NodeError> {
        self.processes.run(&self.script(CANCEL).with("which", which), "stop the job").await.map(drop)
    }

    pub(super) async fn end(&self, which: &str, remove: bool) -> Result<(), NodeError> {
        let script = self.script(END).with("which", which).with("remove", if remove { "1" } else { "" });
        let script = script.with("limit", &self.limit());
        let operation = format!("{} {}", if remove { "remove" } else { "stop" }, name_of(which));
        self.processes.run(&script, &operation).await.map(drop)
    }

    pub(super) async fn is_running(&self, which: &str) -> Result<bool, NodeError> {
        let is_it = |one: &ContainerSummary| one.name == which || one.id == which;
        Ok(self.list().await?.iter().any(|one| is_it(one) && one.state == ContainerState::Running))
    }

    pub(super) async fn wait(&self, which: &str) -> Result<(), NodeError> {
        self.processes.wait_with(&self.script(WAIT).with("which", which)).await
    }

    /// Returns the error of what is not done while Slurm runs a job.
    pub(super) fn without_worker(&self, operation: &str) -> NodeError {
        NodeError::failed(self.node(), operation, "there are no workers under Slurm, which starts what a job needs")
            .hint("for a program on its nodes: hvdctl run, or srun and ssh as your site allows them")
    }
}

/// Returns a line of sh that makes these its arguments.
fn arguments(options: &[String]) -> String {
    options.iter().fold("set --".to_owned(), |line, option| format!("{line} {}", quote::always(option)))
}

/// Reads a line of `slurm/list.sh`.
fn summary(line: &str) -> Option<ContainerSummary> {
    let mut parts = line.splitn(5, ' ');
    let (id, created, state, said) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some(ContainerSummary { queue: QueueEntry::parse(said), ..summary_of([id, created, state, parts.next()?])? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_says_is_read() {
        let line =
            "hmaster-1@a1 1700000000 queued 7|PENDING|Resources|1700000001|1700000099|1:00 {\"hvdctl.job\":\"1\"}";
        let one = summary(line).unwrap();
        assert_eq!((one.name.as_str(), one.state), ("hmaster-1", ContainerState::Queued));
        assert!(one.state.is_up());
        let queue = one.queue.unwrap();
        assert_eq!(
            (queue.job.as_str(), queue.state.as_str(), queue.reason.as_deref()),
            ("7", "PENDING", Some("Resources"))
        );
        assert_eq!((queue.submitted, queue.start), (Some(1_700_000_001), Some(1_700_000_099)));
        let running = summary("h@a 1 running 7|RUNNING|None|1|N/A|UNLIMITED {}").unwrap().queue.unwrap();
        assert_eq!((running.reason, running.start), (None, None));
        let ended = summary("h@a 1 exited 7|NODE_FAIL {}").unwrap();
        assert_eq!((ended.state, ended.queue.unwrap().state.as_str()), (ContainerState::Exited, "NODE_FAIL"));
        assert_eq!(summary("h@a 1 created - {}").unwrap().queue, None);
        assert_eq!(summary("h@a 1 exited 7| {}").unwrap().queue, None);
        assert_eq!(summary("h@a 1 exited"), None);
    }
}
