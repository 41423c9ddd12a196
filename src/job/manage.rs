//! Jobs that any operator started: listed, found, stopped, and their records removed.

use super::cleanup::{JobNodes, stop_supervisor, unrecorded};
use crate::cluster::each_node::{NodeResults, each_node, unreached};
use crate::cluster::fleet::Fleet;
use crate::cluster::member::Member;
use crate::cluster::operator::now;
use crate::cluster::target::Target;
use crate::diagnosis::ports::KnownPorts;
use crate::error::{Error, NodeError};
use crate::event::{Events, Phase, Step};
use crate::inventory::Cluster;
use crate::model::fault::Fault;
use crate::model::queue::QueueEntry;
use crate::record::find::{self, Newest};
use crate::record::list::{self, Job, StoredJobs};
use crate::record::{JobResult, JobState, stored};
use crate::runtime::container::{ContainerSummary, launchers};
use crate::text::nodeset;
use crate::transport::node::Script;
use crate::worker::plan::exited;

const LIST: &str = concat!(
    include_str!("../scripts/job/directory.sh"),
    include_str!("../scripts/job/lend.sh"),
    include_str!("../scripts/job/list.sh")
);
const PRUNE: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/job/prune.sh")
);

/// The jobs of a cluster, and the nodes that were asked.
pub struct JobList<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The jobs, the newest first.
    pub jobs: Vec<Job>,
    /// The nodes that answered.
    pub members: Vec<Member>,
    /// Those that did not; what only they know is missing.
    pub failed: Vec<NodeError>,
    /// The time by the nodes' clocks, in seconds since the epoch: that of the operator's machine may be wrong by hours.
    pub now: f64,
}

impl JobList<'_> {
    /// Returns the ports that are known to be in use on the nodes of a job: of their workers, and of the other jobs that
    /// run there.
    pub fn ports(&self, job: &Job) -> Vec<KnownPorts> {
        let workers = Some(self.cluster.port).filter(|_| self.cluster.can().workers);
        let shares_node = |other: &&Job| other.nodes.iter().any(|node| job.nodes.contains(node));
        let others = self.jobs.iter().filter(|other| other.id != job.id && !other.is_over()).filter(shares_node);
        let of_others =
            others.filter_map(|other| other.record.as_ref()).flat_map(|record| record.ports(self.cluster.port));
        workers.map(KnownPorts::of_workers).into_iter().chain(of_others).collect()
    }
}

/// Lists the jobs of all nodes. A node that does not answer hides only what it alone knows.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn list<'a>(target: &'a Target, fleet: &Fleet, events: &Events) -> Result<JobList<'a>, Error> {
    let cluster = target.cluster();
    let list = async |member: Member| {
        let _step = events.begin(&member.node.name, Step::read("listing jobs"));
        // containers first: a job supervisor writes its record before its container ends, so that one of the two is
        // always seen
        let containers = member.runtime().await?.containers().await?;
        let script = Script::new(LIST).with("jobs_dir", &cluster.jobs_dir);
        Ok((member.transport.script(&script, "list the jobs").await?, containers, member))
    };
    let NodeResults { ok, failed } = fleet.members(target, events).await?.then(events, list).await;
    let (mut stored, mut members, mut clocks) = (StoredJobs::new(), Vec::new(), Vec::new());
    for (files, containers, member) in ok {
        let node = &member.node.name;
        let files = String::from_utf8_lossy(&files);
        list::add(&mut stored, node, &files);
        clocks.extend(list::clock(&files));
        let mut queued = containers.iter().filter_map(|container| container.queue.as_ref());
        if let Some(silence) = queued.find_map(QueueEntry::silence) {
            let hint = "what is recorded of jobs is shown; it may be out of date for those that have not ended";
            events.warn(NodeError::failed(node, "ask Slurm for the jobs", silence).hint(hint));
        }
        for container in launchers(&cluster.name, &containers).filter(|container| container.queue.is_some()) {
            stored.entry(container.job().unwrap_or_default().to_owned()).or_default().queue = container.queue.clone();
        }
        for container in running(cluster, &containers) {
            let files = stored.entry(container.job().unwrap_or_default().to_owned()).or_default();
            files.container = Some(container.id.clone());
            files.nodes.retain(|other| other != node);
            files.nodes.insert(0, node.clone());
        }
        members.push(member);
    }
    let answered: Vec<&str> = members.iter().map(|member| member.node.name.as_str()).collect();
    // one that is wrong changes nothing as long as most are right; of two the earlier one counts, as no job is too old
    // by it
    clocks.sort_by(f64::total_cmp);
    let now = clocks.get(clocks.len().saturating_sub(1) / 2).copied().unwrap_or_else(now);
    let mut jobs = list::jobs(&cluster.name, stored, &answered, now);
    for job in jobs.iter_mut().filter(|job| job.state.is_none()) {
        let launcher = job.launcher();
        let reason = match failed.iter().find(|error| error.node == launcher) {
            Some(error) => format!("does not answer: {}", error.message.lines().next().unwrap_or_default()),
            None => "was not queried: --on excludes it, or it is not in the inventory".to_owned(),
        };
        job.reason = Some(format!("its launcher's node {launcher} {reason}"));
    }
    Ok(JobList { cluster, jobs, members, failed, now })
}

/// Returns the containers of the cluster's launchers that are up.
pub fn running<'a>(
    cluster: &'a Cluster,
    containers: &'a [ContainerSummary],
) -> impl Iterator<Item = &'a ContainerSummary> {
    launchers(&cluster.name, containers).filter(|container| container.state.is_up())
}

impl JobList<'_> {
    /// Returns the job that was meant.
    ///
    /// # Errors
    /// There is none, or several are meant; and which nodes were not asked.
    pub fn find(&self, name: Option<&str>, newest: Newest) -> Result<&Job, Error> {
        find::find(&self.jobs, name, newest).map_err(|message| {
            let silent: Vec<String> = self.failed.iter().map(|e| e.node.clone()).collect();
            let unseen = match silent.len() {
                0 => String::new(),
                _ => format!(" on the nodes that answered ({} did not)", nodeset::fold(&silent)),
            };
            Error::check(format!("{message}{unseen}"), "hvdctl jobs lists them")
        })
    }

    /// Returns the job that was meant, for a command that has to know what it runs and where.
    ///
    /// # Errors
    /// As [`JobList::find`], and if its record cannot be read.
    pub fn find_readable(&self, name: Option<&str>, newest: Newest) -> Result<&Job, Error> {
        let job = self.find(name, newest)?;
        if job.has_record() {
            return Ok(job);
        }
        let message = format!("job {}: {}", job.id, job.reason.as_deref().unwrap_or_default());
        Err(Error::check(message, "use the version of hvdctl that started it, or name another job"))
    }

    /// Returns a job's nodes that answered. A job whose record cannot be read may have anything on all that answered.
    ///
    /// # Errors
    /// When that of the launcher did not.
    pub fn nodes_of<'j>(&'j self, job: &'j Job) -> Result<JobNodes<'j>, Error> {
        let of = |mut members: Vec<Member>| {
            let launcher = (!members.is_empty()).then(|| members.remove(0))?;
            let shares_directory = job.shares_directory;
            Some(JobNodes { cluster: self.cluster, id: &job.id, launcher, others: members, shares_directory })
        };
        if job.shares_directory
            && let Some(login) = self.members.first()
        {
            let members = job.nodes.iter().chain(&job.earlier).map(|node| login.of_slurm(node)).collect();
            return of(members).ok_or_else(|| unreached(self.failed.clone()));
        }
        if !job.has_record() {
            let mut members = self.members.clone();
            let place = |member: &Member| job.nodes.iter().position(|node| *node == member.node.name);
            members.sort_by_key(|member| place(member).unwrap_or(usize::MAX));
            return of(members).ok_or_else(|| unreached(self.failed.clone()));
        }
        let is_of_job = |node: &String| self.members.iter().find(|member| member.node.name == *node).cloned();
        let found = of(job.nodes.iter().filter_map(is_of_job).collect());
        if let Some(found) = found.filter(|found| found.launcher.node.name == job.launcher()) {
            return Ok(found);
        }
        Err(match self.failed.iter().find(|error| error.node == job.launcher()) {
            Some(error) => error.clone().into(),
            None => Error::check(
                format!("the job {} was launched on {}, which is not selected", job.id, job.launcher()),
                "add it to --on, or leave out --on",
            ),
        })
    }

    /// Returns the newest job whose launcher is up, with its node and container.
    pub fn newest_running(&self) -> Option<(&Job, &Member, &str)> {
        self.jobs.iter().filter(|job| job.has_record() && !job.is_over()).find_map(|job| {
            let member = self.members.iter().find(|member| member.node.name == job.launcher())?;
            Some((job, member, job.container.as_deref()?))
        })
    }
}

impl JobList<'_> {
    /// Returns the job that was meant, for a command that shows it while it runs; without a name the newest running one.
    ///
    /// # Errors
    /// As [`JobList::find_readable`]; and if it does not run.
    pub fn find_running(&self, name: Option<&str>) -> Result<&Job, Error> {
        let job = match name {
            Some(_) => self.find_readable(name, Newest::Program)?,
            None => self.newest_running().map(|(job, ..)| job).ok_or_else(|| {
                Error::check("no job is running", "hvdctl jobs lists those that ended, and hvdctl report shows one")
            })?,
        };
        if job.is_over() {
            let state = job.state.map_or_else(String::new, |state| format!(" ({state})"));
            let hint = format!(
                "hvdctl report {} shows it, and where its ranks were; hvdctl logs {} shows its output",
                job.id, job.id
            );
            return Err(Error::check(format!("job {} has ended{state}", job.id), hint));
        }
        if job.waits_for_nodes() {
            return Err(Error::check(format!("job {} waits for its nodes", job.id), "hvdctl jobs shows why"));
        }
        Ok(job)
    }
}

/// Ends a job, and waits until nothing of it is left on the nodes that answer. Returns its state, and the nodes that
/// did not answer.
///
/// # Errors
/// When the node of the launcher does not answer, or not in time.
pub async fn stop(list: &JobList<'_>, job: &Job, events: &Events) -> Result<(JobState, Vec<String>), Error> {
    let nodes = list.nodes_of(job)?;
    events.phase(Phase::StoppingJob { job: job.id.clone() });
    let (engine, container) = nodes.launcher_container().await?;
    stop_supervisor(list.cluster, &engine, &container).await?;
    let mut silent = nodes.clean_up(events).await;
    if !job.has_record() {
        silent.extend(list.failed.iter().map(|error| error.node.clone()));
    }
    let mut instead = JobResult { stopped: true, ranks: job.ranks, silent, ..unrecorded(None) };
    if job.waits_for_nodes() {
        instead.fault = Some(Fault::EndedInQueue);
    }
    // a newer job supervisor may have recorded a result of its own form
    let result = stored::read::<JobResult>(&nodes.stored_result(&instead).await?);
    Ok(result.map_or((JobState::Unreadable, instead.silent), |result| (result.state(), result.silent)))
}

/// Removes the records and logs of these jobs, and what is left of their containers, from every node that answered.
pub async fn prune(list: &JobList<'_>, ids: &[String], events: &Events) -> NodeResults<String> {
    each_node(list.members.clone(), events, async |member| {
        let _step = events.begin(&member.node.name, Step::write("removing records"));
        let engine = member.runtime().await?;
        let containers = engine.containers().await?;
        let is_pruned = |c: &&ContainerSummary| c.job().is_some_and(|job| ids.iter().any(|id| id == job));
        for container in exited(&list.cluster.name, &containers).filter(is_pruned) {
            engine.remove(&container.id).await?;
        }
        remove_records(list.cluster, &member, ids).await?;
        Ok(member.node.name)
    })
    .await
}

/// Removes the records and logs of these jobs from a node.
pub async fn remove_records(cluster: &Cluster, member: &Member, ids: &[String]) -> Result<(), NodeError> {
    let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
    let script = Script::new(PRUNE).with("jobs_dir", &cluster.jobs_dir).with("ids", &lines);
    member.transport.script(&script, "remove the records of jobs").await.map(drop)
}
