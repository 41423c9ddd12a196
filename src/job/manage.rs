//! Jobs that any operator started: listed, found, stopped, and their records removed.

use super::cleanup::{clean_up, result, stop_supervisor, unrecorded};
use super::list::{self, Job, Newest, NodeJobs};
use super::record::JobResult;
use crate::cluster::nodes::{Member, NodeResults, Target, connect, for_each_node, now};
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::Cluster;
use crate::runtime::Runtime;
use crate::runtime::container::{ContainerSummary, launchers};
use crate::text::nodeset;
use crate::transport::node::Script;

const LIST: &str = include_str!("../scripts/jobs_list.sh");
pub(super) const PRUNE: &str = include_str!("../scripts/jobs_prune.sh");

/// The jobs of a cluster, and the nodes that were asked.
pub struct JobList {
    /// The jobs, the newest first.
    pub jobs: Vec<Job>,
    /// The nodes that answered.
    pub members: Vec<Member>,
    /// Those that did not; what only they know is missing.
    pub failed: Vec<NodeError>,
}

/// Lists the jobs of all nodes. A node that does not answer hides only what it alone knows.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn list(target: &Target, events: &Events) -> Result<JobList, Error> {
    let cluster = target.cluster();
    let list = async |member: Member| {
        let _step = events.begin(&member.node.name, Step::read("listing jobs"));
        // containers first: a job supervisor writes its record before its container ends, so that one of the two is always seen
        let containers = Runtime::connect(&member.transport).await?.containers().await?;
        let script = Script::new(LIST).with("jobs_dir", &cluster.jobs_dir);
        let output = member.transport.script(&script, "list the jobs").await?;
        let files = list::parse(&String::from_utf8_lossy(&output));
        let launchers = running(cluster, &containers).filter_map(|c| c.job().map(str::to_owned)).collect();
        Ok((NodeJobs { node: member.node.name.clone(), files, launchers }, member))
    };
    let NodeResults { ok, failed } = connect(target, events).await?.then(events, list).await;
    let (nodes, members): (Vec<NodeJobs>, Vec<Member>) = ok.into_iter().unzip();
    let mut list = JobList { jobs: list::jobs(&cluster.name, &nodes, now()), members, failed };
    for job in list.jobs.iter_mut().filter(|job| job.state.is_none()) {
        let launcher = job.launcher();
        job.reason = Some(match list.failed.iter().find(|error| error.node == launcher) {
            Some(error) => {
                let message = error.message.lines().next().unwrap_or_default();
                format!("its launcher's node {launcher} does not answer: {message}")
            }
            None => {
                format!(
                    "its launcher's node {launcher} was not queried: --on excludes it, or it is not in the inventory"
                )
            }
        });
    }
    Ok(list)
}

/// Returns the containers of the cluster's launchers that are up.
pub(super) fn running<'a>(
    cluster: &'a Cluster,
    containers: &'a [ContainerSummary],
) -> impl Iterator<Item = &'a ContainerSummary> {
    launchers(&cluster.name, containers).filter(|container| container.state.is_up())
}

impl JobList {
    /// Returns the job that was meant.
    ///
    /// # Errors
    /// There is none, or several are meant; and which nodes were not asked.
    pub fn find(&self, name: Option<&str>, newest: Newest) -> Result<&Job, Error> {
        list::find(&self.jobs, name, newest).map_err(|message| {
            let silent: Vec<String> = self.failed.iter().map(|e| e.node.clone()).collect();
            let unseen = match silent.len() {
                0 => String::new(),
                _ => format!(" on the nodes that answered ({} did not)", nodeset::fold(&silent)),
            };
            Error::check(format!("{message}{unseen}"), "hvdctl jobs lists them")
        })
    }

    /// Returns the nodes of a job that answered, that of the launcher first.
    ///
    /// # Errors
    /// When that one did not answer.
    pub fn members_of(&self, job: &Job) -> Result<Vec<Member>, Error> {
        let member = |node: &str| self.members.iter().find(|member| member.node.name == node).cloned();
        if member(job.launcher()).is_some() {
            return Ok(job.nodes().iter().filter_map(|node| member(node)).collect());
        }
        Err(match self.failed.iter().find(|error| error.node == job.launcher()) {
            Some(error) => error.clone().into(),
            None => Error::check(
                format!("the job {} was launched on {}, which is not selected", job.id, job.launcher()),
                "add it to --on, or leave out --on",
            ),
        })
    }
}

/// Returns the newest job whose launcher is up, with its node, engine and container.
///
/// # Errors
/// When a node that has one no longer answers.
pub async fn newest_running<'a>(
    cluster: &Cluster,
    list: &'a JobList,
) -> Result<Option<(&'a Job, Member, Runtime, String)>, NodeError> {
    for job in list.jobs.iter().filter(|job| !job.is_over()) {
        let Some(member) = list.members.iter().find(|member| member.node.name == job.launcher()) else { continue };
        if let (engine, Some(container)) = find_launcher(cluster, job, member).await? {
            return Ok(Some((job, member.clone(), engine, container)));
        }
    }
    Ok(None)
}

/// Returns the engine of a launcher's node, and the launcher's container if it is up.
async fn find_launcher(cluster: &Cluster, job: &Job, member: &Member) -> Result<(Runtime, Option<String>), NodeError> {
    let engine = Runtime::connect(&member.transport).await?;
    let containers = engine.containers().await?;
    let container = running(cluster, &containers).find(|container| container.job() == Some(&job.id));
    Ok((engine, container.map(|container| container.id.clone())))
}

/// Returns the engine of a launcher's node and the launcher's container; if that is gone, a name that no container has.
pub(super) async fn launcher(cluster: &Cluster, job: &Job, member: &Member) -> Result<(Runtime, String), NodeError> {
    let (engine, container) = find_launcher(cluster, job, member).await?;
    Ok((engine, container.unwrap_or_else(|| format!("ended-{}", job.id))))
}

/// Ends a job, and waits until nothing of it is left on the nodes that answer.
///
/// # Errors
/// When the node of the launcher does not answer, or not in time.
pub async fn stop(target: &Target, list: &JobList, job: &Job, events: &Events) -> Result<JobResult, Error> {
    let cluster = target.cluster();
    let members = list.members_of(job)?;
    let (engine, container) = launcher(cluster, job, &members[0]).await?;
    events.phase(format!("stopping the job {}", job.id));
    stop_supervisor(cluster, &engine, &container).await?;
    let (_, silent) = clean_up(cluster, &job.id, &members, events).await;
    let instead = JobResult { stopped: true, ranks: job.ranks, silent, ..unrecorded(cluster, None) };
    Ok(result(cluster, &job.id, &members[0], &instead).await?)
}

/// Removes the records and logs of these jobs from every node that answered.
pub async fn prune(target: &Target, list: &JobList, ids: &[String], events: &Events) -> Vec<Result<String, NodeError>> {
    let cluster = target.cluster();
    let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
    for_each_node(list.members.clone(), async |member| {
        let _step = events.begin(&member.node.name, Step::write("removing records"));
        let script = Script::new(PRUNE).with("jobs_dir", &cluster.jobs_dir).with("ids", &lines);
        member.transport.script(&script, "remove the records of jobs").await?;
        Ok(member.node.name)
    })
    .await
}
