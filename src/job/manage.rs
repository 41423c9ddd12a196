//! Jobs that were started by whomever: found, watched again, ended, forgotten.

use crate::cancel::signalled;
use crate::cluster::nodes::{Member, Target, connect, for_each_node, now, split};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events, Step};
use crate::inventory::Cluster;
use crate::job::cleanup::{self, SUPERVISOR_STOPS_WITHIN};
use crate::job::list::{self, Job, Newest, NodeRecords};
use crate::job::log_order::Filter;
use crate::job::logs::{self, Reading};
use crate::job::outcome::JobOutcome;
use crate::job::record::{JobResult, lost_output};
use crate::job::request::{Show, Until};
use crate::job::start;
use crate::job::tails::Tails;
use crate::runtime::Runtime;
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::Role;
use crate::transport::node::Script;
use tokio::sync::watch;

const LIST: &str = include_str!("../scripts/jobs_list.sh");
const PRUNE: &str = include_str!("../scripts/jobs_prune.sh");

/// The jobs of a cluster, and the nodes that were asked.
pub struct Runs {
    /// The jobs, the newest first.
    pub jobs: Vec<Job>,
    /// The nodes that answered.
    pub members: Vec<Member>,
    /// Those that did not; what only they know is missing.
    pub failed: Vec<NodeError>,
}

/// Looks for runs on all nodes. A node that does not answer hides only what it alone knows.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn list(target: &Target, events: &Events) -> Result<Runs, Error> {
    let cluster = target.cluster();
    let (members, mut failed) = split(events, connect(target, events).await?);
    let looked = for_each_node(members, async |member| {
        let _step = events.begin(&member.node.name, Step::ListingJobs);
        let script = Script::new(LIST).with("jobs_dir", &cluster.jobs_dir);
        // the containers first: a job supervisor writes its record before its container ends, so where that is gone the record is there
        let containers = Runtime::connect(&member.transport).await?.containers().await?;
        let launchers = launchers(cluster, &containers).map(|(job, _)| job.to_owned()).collect();
        let said = member.transport.script(&script, "look for jobs").await?;
        let pieces = list::parse(&String::from_utf8_lossy(&said));
        Ok((NodeRecords { node: member.node.name.clone(), pieces, launchers }, member))
    })
    .await;
    let (looked, bad) = split(events, looked);
    failed.extend(bad);
    let (looks, members): (Vec<NodeRecords>, Vec<Member>) = looked.into_iter().unzip();
    let mut jobs = list::jobs(&cluster.name, &looks, now());
    for job in jobs.iter_mut().filter(|job| job.state.is_none()) {
        job.reason = Some(unseen(job.launcher(), &failed));
    }
    Ok(Runs { jobs, members, failed })
}

/// Why nobody knows how a job stands.
fn unseen(launcher: &str, failed: &[NodeError]) -> String {
    match failed.iter().find(|error| error.node == launcher) {
        Some(error) => {
            let said = error.message.lines().next().unwrap_or_default();
            format!("its launcher's node {launcher} does not answer: {said}")
        }
        None => format!("its launcher's node {launcher} was not asked: --on, or an inventory without it"),
    }
}

/// The jobs whose launcher is up among these containers, and its id.
fn launchers<'a>(cluster: &'a Cluster, containers: &'a [ContainerSummary]) -> impl Iterator<Item = (&'a str, &'a str)> {
    containers
        .iter()
        .filter(|c| c.belongs_to(&cluster.name) && c.is(Role::Master) && c.state.is_up())
        .filter_map(|c| Some((c.job()?, c.id.as_str())))
}

impl Runs {
    /// The job that was meant.
    ///
    /// # Errors
    /// There is none, or several are meant; and which nodes were not asked.
    pub fn find(&self, word: Option<&str>, newest: Newest) -> Result<&Job, Error> {
        list::find(&self.jobs, word, newest).map_err(|words| {
            let away: Vec<String> = self.failed.iter().map(|e| e.node.clone()).collect();
            let unseen = match away.len() {
                0 => String::new(),
                _ => format!(" on the nodes that answered ({} did not)", crate::text::nodeset::fold(&away)),
            };
            Error::check(format!("{words}{unseen}"), "hvdctl jobs lists them")
        })
    }

    /// The nodes of a job, that of the launcher first.
    ///
    /// # Errors
    /// When that one did not answer.
    pub fn members_of(&self, job: &Job) -> Result<Vec<Member>, Error> {
        let members: Vec<Member> = job
            .nodes()
            .iter()
            .filter_map(|name| self.members.iter().find(|member| member.node.name == *name).cloned())
            .collect();
        match members.first() {
            Some(first) if first.node.name == job.launcher() => Ok(members),
            _ => {
                let why = self.failed.iter().find(|e| e.node == job.launcher()).cloned();
                Err(why.map_or_else(
                    || {
                        Error::check(
                            format!("the job {} was launched on {}, which was not asked", job.id, job.launcher()),
                            "add it to --on, or leave --on out",
                        )
                    },
                    |error| Error::Nodes { failed: vec![error], done: 0 },
                ))
            }
        }
    }
}

/// The newest job whose launcher is up, with that one's node, engine and container.
///
/// # Errors
/// When a node that has one does not answer any more.
pub async fn under_way<'a>(
    cluster: &Cluster,
    runs: &'a Runs,
) -> Result<Option<(&'a Job, Member, Runtime, String)>, NodeError> {
    for job in runs.jobs.iter().filter(|job| !job.is_over()) {
        let Some(member) = runs.members.iter().find(|member| member.node.name == job.launcher()) else { continue };
        let engine = Runtime::connect(&member.transport).await?;
        let containers = engine.containers().await?;
        if let Some((_, container)) = launchers(cluster, &containers).find(|(id, _)| *id == job.id) {
            let container = container.to_owned();
            return Ok(Some((job, member.clone(), engine, container)));
        }
    }
    Ok(None)
}

/// Watches a job that is under way from its first line on.
///
/// # Errors
/// As of [`start::start`] after the launch.
pub async fn attach(
    target: &Target,
    runs: &Runs,
    job: &Job,
    (show, until): (Show, Until),
    events: &Events,
    mut cancel: watch::Receiver<Option<u8>>,
) -> Result<JobOutcome, Error> {
    let members = runs.members_of(job)?;
    let launcher = launcher(target.cluster(), job, &members[0]).await?;
    start::watch(target.cluster(), job, members, launcher, (show, until), events, &mut cancel).await
}

/// Tells what a job's ranks have said; with `follow` also what they say until its end. `tails` takes note of what they had
/// said by then.
///
/// # Errors
/// When one of its nodes does not answer; a signal.
pub async fn logs(
    target: &Target,
    runs: &Runs,
    job: &Job,
    (filter, tail, follow): (&Filter, Option<usize>, bool),
    tails: &mut Tails,
    events: &Events,
    mut cancel: watch::Receiver<Option<u8>>,
) -> Result<(), Error> {
    let cluster = target.cluster();
    let members = runs.members_of(job)?;
    let reading =
        logs::history(cluster, &job.id, &members, Reading { filter, tail, log_max: job.log_max }, tails, events);
    let offsets = tokio::select! {
        offsets = reading => offsets?,
        signal = signalled(&mut cancel) => return Err(Error::Signal(signal)),
    };
    if let Some(lost) = lost_output(&job.lost) {
        events.send(Event::Warning(format!("{lost}\n  hint: hvdctl jobs prune removes old logs")));
    }
    if follow && !job.is_over() {
        let (engine, container) = launcher(cluster, job, &members[0]).await?;
        let from = (&members[..], offsets);
        logs::follow(cluster, &job.id, from, (&engine, &container), filter, events, &mut cancel).await?;
    }
    Ok(())
}

/// The engine and the container of a job's launcher; of one that has gone meanwhile a name that no container has.
async fn launcher(cluster: &Cluster, job: &Job, member: &Member) -> Result<(Runtime, String), NodeError> {
    let engine = Runtime::connect(&member.transport).await?;
    let containers = engine.containers().await?;
    let up = launchers(cluster, &containers).find(|(id, _)| *id == job.id);
    let container = up.map_or_else(|| format!("ended-{}", job.id), |(_, container)| container.to_owned());
    Ok((engine, container))
}

/// Ends a job, and waits until nothing of it is left on the nodes that answer.
///
/// # Errors
/// When the node of the launcher does not answer, or not in time.
pub async fn stop(target: &Target, runs: &Runs, job: &Job, events: &Events) -> Result<JobResult, Error> {
    let cluster = target.cluster();
    let members = runs.members_of(job)?;
    let (engine, container) = launcher(cluster, job, &members[0]).await?;
    events.phase(format!("stopping the job {}", job.id));
    engine.terminate(&container).await?;
    let limit = cluster.stop_grace + SUPERVISOR_STOPS_WITHIN;
    // what it cannot end in its time is ended from outside
    if let Ok(ended) = tokio::time::timeout(limit, engine.wait(&container)).await {
        ended?;
    }
    cleanup::finish(cluster, &job.id, &members, engine, events).await.map_err(Into::into)
}

/// Removes the records and logs of these jobs from every node that answered.
pub async fn prune(target: &Target, runs: &Runs, ids: &[String], events: &Events) -> Vec<Result<String, NodeError>> {
    let cluster = target.cluster();
    let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
    for_each_node(runs.members.clone(), async |member| {
        let _step = events.begin(&member.node.name, Step::RemovingRecords);
        let script = Script::new(PRUNE).with("jobs_dir", &cluster.jobs_dir).with("ids", &lines);
        member.transport.script(&script, "remove the records of jobs").await?;
        Ok(member.node.name)
    })
    .await
}
