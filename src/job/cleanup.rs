//! Cleanup after a job: ends its processes, removes its containers, and records its result.

use crate::cluster::each_node::for_each_node;
use crate::cluster::member::Member;
use crate::cluster::operator::now;
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::Cluster;
use crate::model::fault::Fault;
use crate::node::facts::Facts;
use crate::record::{JobResult, stored};
use crate::runtime::Runtime;
use crate::runtime::container::{ContainerSummary, launchers};
use crate::transport::node::Script;
use crate::worker::apply::{WorkerPlan, WorkerPlans};
use crate::worker::plan::exited;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;

/// Ends every process on a node that has the job's id in its environment, and takes the job's directory back from the
/// shared worker.
pub const END: &str = concat!(
    include_str!("../scripts/node/marked.sh"),
    include_str!("../scripts/node/killed.sh"),
    include_str!("../scripts/job/directory.sh"),
    include_str!("../scripts/job/lend.sh"),
    include_str!("../scripts/job/end.sh")
);
const OUTSIDE: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/outside.sh"));
const RESULT: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/result.sh"));

/// The most logs in a shared directory that are followed: a program on the login node follows each.
const MOST_LOGS: usize = 100;

/// An operation, for messages.
const READ_RESULT: &str = "read the result of the job";

/// Returns how long a job supervisor may take to stop its job: the ranks' grace period, and the time to end what is
/// left on all nodes.
pub fn stop_limit(cluster: &Cluster) -> Duration {
    cluster.stop_grace + Duration::from_secs(30)
}

/// Lets a job supervisor stop its job. [`JobNodes::clean_up`] ends what remains after that.
///
/// # Errors
/// When the engine does not answer.
pub async fn stop_supervisor(cluster: &Cluster, engine: &Runtime, container: &str) -> Result<(), NodeError> {
    engine.terminate(container).await?;
    timeout(stop_limit(cluster), engine.wait(container)).await.unwrap_or(Ok(None)).map(drop)
}

/// A job and the nodes that take part in it.
pub struct JobNodes<'a> {
    /// Their cluster.
    pub cluster: &'a Cluster,
    /// The job's id.
    pub id: &'a str,
    /// The node of its launcher.
    pub launcher: Member,
    /// The other nodes.
    pub others: Vec<Member>,
    /// Set if all nodes share the directories of hvdctl, and are reached through one of them.
    pub shares_directory: bool,
}

impl JobNodes<'_> {
    /// Replaces the connections that are lost, as far as their nodes answer.
    pub async fn reconnect(&mut self) {
        let again = async |member: Member| match member.transport.is_connected().await {
            true => member,
            false => member.reconnected().await.unwrap_or(member),
        };
        if self.shares_directory {
            self.launcher = again(self.launcher.clone()).await;
            self.others.iter_mut().for_each(|other| *other = self.launcher.of_slurm(&other.node.name));
            return;
        }
        let (launcher, others) =
            tokio::join!(again(self.launcher.clone()), for_each_node(std::mem::take(&mut self.others), again));
        (self.launcher, self.others) = (launcher, others);
    }

    /// Checks that the logs of all nodes can be followed at once.
    ///
    /// # Errors
    /// If they are too many.
    pub fn check_logs(&self) -> Result<(), Error> {
        let nodes = self.members().count();
        if !self.shares_directory || nodes <= MOST_LOGS {
            return Ok(());
        }
        Err(Error::check(
            format!("job {} has {nodes} nodes, but hvdctl shows the output of at most {MOST_LOGS}", self.id),
            format!("the logs are in {}/{} of the login node", self.cluster.jobs_dir, self.id),
        ))
    }

    /// Returns all nodes, that of the launcher first.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        std::iter::once(&self.launcher).chain(&self.others)
    }

    /// Returns the engine of the launcher's node and the launcher's container; if that is gone, a name that no
    /// container has.
    pub async fn launcher_container(&self) -> Result<(Runtime, String), NodeError> {
        let engine = self.launcher.runtime().await?;
        // not from the list of jobs: the container may have started while that waited for other nodes
        let containers = engine.containers().await?;
        let container = launchers(&self.cluster.name, &containers)
            // how Slurm has ended a job is known from what is there of it
            .find(|container| (container.state.is_up() || self.shares_directory) && container.job() == Some(self.id));
        let container = container.map_or_else(|| format!("ended-{}", self.id), |container| container.id.clone());
        Ok((engine, container))
    }

    /// Ends what is left of the job on every node, and removes its containers. Failures are reported as warnings.
    /// Returns the names of the nodes that did not answer.
    pub async fn clean_up(&self, events: &Events) -> Vec<String> {
        let members = if self.shares_directory { vec![&self.launcher] } else { self.members().collect() };
        self.clean_up_on(members, events).await
    }

    /// Ends what is left of the job on some of its nodes, as [`JobNodes::clean_up`] does on all of them.
    pub async fn clean_up_on(&self, members: Vec<&Member>, events: &Events) -> Vec<String> {
        let JobNodes { cluster, id, launcher, .. } = self;
        let ended = for_each_node(members, async |member: &Member| {
            let (ended, removed) =
                tokio::join!(end_and_report(cluster, id, member, events), remove_containers(cluster, id, member));
            match removed {
                // workers have no ranks any more, so a failed removal does no harm
                Err(error) if member.node.name != launcher.node.name => events.warn(error),
                removed => removed?,
            }
            ended
        })
        .await;
        let silent = ended.into_iter().filter_map(Result::err);
        silent.inspect(|error| events.warn(error)).map(|error| error.node).collect()
    }

    /// Returns the result that the job supervisor recorded; `None` if there is none or its node does not answer.
    pub async fn recorded_result(&self) -> Option<JobResult> {
        let text = result_text(self.cluster, self.id, &self.launcher, "").await.ok()?;
        stored::read(&text).ok()
    }

    /// Reads the result that the job supervisor recorded; if there is none, records `instead`.
    ///
    /// # Errors
    /// When the launcher's node does not answer.
    pub async fn result(&self, instead: &JobResult) -> Result<JobResult, NodeError> {
        let text = self.stored_result(instead).await?;
        stored::read::<JobResult>(&text).map_err(|e| NodeError::failed(self.launcher.transport.node(), READ_RESULT, e))
    }

    /// Returns the same as it is stored.
    pub async fn stored_result(&self, instead: &JobResult) -> Result<String, NodeError> {
        stored_result(self.cluster, self.id, &self.launcher, instead).await
    }
}

/// Returns the result of a job as it is stored on the node of its launcher. If there is none, records `instead`.
///
/// # Errors
/// When the node does not answer, or has no directory of the job.
pub async fn stored_result(
    cluster: &Cluster,
    id: &str,
    launcher: &Member,
    instead: &JobResult,
) -> Result<String, NodeError> {
    let failed = |cause| NodeError::failed(launcher.transport.node(), "record the result of the job", cause);
    let instead = stored::write_checked("result.json", instead).map_err(failed)?;
    result_text(cluster, id, launcher, &instead).await
}

/// Returns the stored result; if there is none, stores `instead` unless that is empty.
async fn result_text(cluster: &Cluster, id: &str, launcher: &Member, instead: &str) -> Result<String, NodeError> {
    let script = Script::new(RESULT).with("jobs_dir", &cluster.jobs_dir).with("id", id).with("result", instead);
    let output = launcher.transport.script(&script, READ_RESULT).await?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Ends the jobs that these plans disrupt, before anything else is changed on any node. A node where that fails is left
/// as it is.
pub async fn end_disrupted(cluster: &Cluster, plans: WorkerPlans, events: &Events) -> WorkerPlans {
    let ending = |plan: &WorkerPlan, job: &str| events.begin(plan.node(), Step::write(format!("ending job {job}")));
    let stop = async |plan: WorkerPlan| {
        for container in launchers(&cluster.name, &plan.observed.runtime.containers) {
            if let Some(job) = plan.end_jobs.iter().find(|job| container.job() == Some(job.as_str())) {
                let _step = ending(&plan, job);
                stop_supervisor(cluster, &plan.observed.runtime.engine, &container.id).await?;
            }
        }
        Ok(plan)
    };
    let end = async |plan: WorkerPlan| {
        for job in &plan.end_jobs {
            let _step = ending(&plan, job);
            end_and_report(cluster, job, &plan.observed.member, events).await?;
            remove_containers(cluster, job, &plan.observed.member).await?;
        }
        Ok(plan)
    };
    // the job supervisors first, which give the ranks of all nodes the grace period and record the result
    plans.then(events, stop).await.then(events, end).await
}

/// Ends what is left of a job on one node. Processes that not even SIGKILL ends are reported as a warning.
async fn end_and_report(cluster: &Cluster, id: &str, member: &Member, events: &Events) -> Result<(), NodeError> {
    end_ranks(cluster, id, member).await?.iter().for_each(|stuck| events.warn(stuck));
    Ok(())
}

/// Ends the ranks and supervisors that a job left on one node. Returns an error to report if not even SIGKILL ends a
/// process.
///
/// # Errors
/// When the node does not answer, or gives no root.
pub async fn end_ranks(cluster: &Cluster, id: &str, member: &Member) -> Result<Option<NodeError>, NodeError> {
    const OPERATION: &str = "end the remaining processes of the job";
    let grace = cluster.stop_grace;
    let script = Script::new(END).with("jobs_dir", &cluster.jobs_dir).with("id", id);
    let script = script.with("grace", &grace.as_secs().to_string());
    let output = member.transport.script_within(&script, OPERATION, grace + Duration::from_secs(20)).await?;
    Ok(stuck(&String::from_utf8_lossy(&output)).map(|stuck| {
        NodeError::failed(&member.node.name, OPERATION, stuck).hint(
            "the process waits in the kernel for a disk, a network file system or a driver, and holds memory and GPUs \
             until that \
             responds or the node is restarted",
        )
    }))
}

/// Describes the processes that `job/end.sh` could not end, if there are any.
pub fn stuck(output: &str) -> Option<String> {
    let process = |line: &str| {
        let line: String = line.chars().filter(|c| !c.is_control()).collect();
        let mut parts = line.splitn(3, ' ');
        let mut part = || parts.next().unwrap_or_default();
        let (pid, place, argv) = (part(), part(), part().trim());
        let waits = if matches!(place, "" | "0") { String::new() } else { format!(", in {place}") };
        format!("process {pid} ({argv}) is still there after SIGKILL{waits}")
    };
    let processes: Vec<String> = output.lines().map(process).collect();
    (!processes.is_empty()).then(|| processes.join("\n"))
}

/// Returns the result of a job whose supervisor was killed before it recorded one. `code` is the exit code of its
/// container, if known.
pub fn unrecorded(code: Option<i64>) -> JobResult {
    JobResult::ended_by(Fault::Unrecorded { code }, now())
}

/// Removes the job's containers from a node. If the job has written files there outside the mounts, they are stopped
/// and stay, and those of earlier jobs go that were kept for the same reason.
async fn remove_containers(cluster: &Cluster, id: &str, member: &Member) -> Result<(), NodeError> {
    let engine = member.runtime().await?;
    let containers = engine.containers().await?;
    let own = containers.iter().filter(|c| c.belongs_to(&cluster.name) && c.job() == Some(id));
    let own: Vec<&ContainerSummary> = own.collect();
    if own.is_empty() {
        return Ok(());
    }
    // what processes of the login have written outside the project stays where it is
    let mut outside = BTreeSet::new();
    if cluster.can().images {
        let script = Script::new(OUTSIDE).with("jobs_dir", &cluster.jobs_dir);
        let listed = member.transport.script(&script, "find the files that jobs wrote outside the mounts").await?;
        outside = Facts::parse(&String::from_utf8_lossy(&listed)).jobs.outside;
    }
    if !outside.contains(id) {
        for container in own {
            engine.remove(&container.id).await?;
        }
        return Ok(());
    }
    for container in own.iter().filter(|container| container.state.is_up()) {
        engine.kill(&container.id).await?;
    }
    let earlier = |c: &&ContainerSummary| c.job().is_some_and(|job| job != id && outside.contains(job));
    for container in exited(&cluster.name, &containers).filter(earlier) {
        engine.remove(&container.id).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::transport::node::scripted::Nodes;
    use crate::transport::node::{Transport, TransportKind};
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn the_launchers_container_is_looked_up_when_it_is_used() {
        let nodes = Nodes::new(&["node1"]);
        let Inventory { cluster, nodes: mut hosts, .. } = Inventory::local("node1", "test/horovod:1");
        let kind = TransportKind::Scripted(nodes.clone());
        let transport = Arc::new(Transport::open_as_login(&cluster, &hosts[0], kind).await.unwrap());
        let launcher = Member::new(hosts.remove(0), transport);
        let job = JobNodes { cluster: &cluster, id: "run-1", launcher, others: Vec::new(), shares_directory: false };
        assert_eq!(job.launcher_container().await.unwrap().1, "ended-run-1");
        let labels = [("hvdctl.cluster", cluster.name.as_str()), ("hvdctl.role", "master"), ("hvdctl.job", "run-1")];
        nodes.edit("node1", |state| state.add("hmaster", &labels));
        assert_eq!(job.launcher_container().await.unwrap().1, nodes.state("node1").containers[0].id);
    }
}
