//! Prepares the nodes for a job: its directory, the project and the workers.

use super::hosts::{HostAssignment, JobHosts};
use super::imports;
use super::plan::{JobPlan, Workers};
use crate::cluster::each_node::{NodeResults, each_node, for_each_node};
use crate::cluster::observation::ObservedNode;
use crate::error::{Error, ErrorKind, NodeError};
use crate::event::{Completion, Events, Phase, Step};
use crate::inventory::Inventory;
use crate::node::facts::Facts;
use crate::node::names::HostNames;
use crate::record::{Record, UnreadableRecord, open_jobs};
use crate::runtime::container::running_worker;
use crate::runtime::spec::{ContainerSpec, LABEL_WORKSPACE, Role};
use crate::sync::NodeProject;
use crate::sync::upload::{Project, Uploaded, Workspace};
use crate::worker::plan::{Operation, ended_containers, interrupted_builds, orphaned_shells};
use crate::worker::{apply, directories};
use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// Where the project is, by node.
pub type Workspaces = BTreeMap<String, Workspace>;

/// How often the project is sent at most, while files of it change.
const UPLOADS: usize = 5;

/// A node, and what it gets of the job.
type PreparedNode<'a> = (&'a ObservedNode, NodeRole<'a>);

/// A node's part in a job.
#[derive(Clone, Copy)]
enum NodeRole<'a> {
    /// Its launcher.
    Launcher(&'a HostAssignment),
    /// Ranks in a worker.
    Worker(&'a HostAssignment),
    /// Only the project.
    Project,
}

/// The project on a node, and what was uploaded, if anything had to be.
type Placed = (Option<Workspace>, Option<Uploaded>);

/// Creates the job's directory, uploads the project and starts the workers, on all nodes at once. Returns the project's
/// directory on each node. `describe` is called with each node of the launcher or of a worker, and the project's place
/// there, before anything is started on it.
///
/// # Errors
/// [`Error::Nodes`] with each node that failed.
pub async fn prepare(
    plan: &JobPlan,
    events: &Events,
    describe: impl AsyncFn(&HostAssignment, Option<&Workspace>) -> Result<(), NodeError>,
) -> Result<Workspaces, Error> {
    let JobHosts { launcher, others } = &plan.hosts;
    let workers = others.iter().map(|host| (&host.observed, NodeRole::Worker(host)));
    let nodes: Vec<PreparedNode<'_>> = std::iter::once((&launcher.observed, NodeRole::Launcher(launcher)))
        .chain(workers)
        .chain(plan.others.iter().map(|observed| (observed, NodeRole::Project)))
        .collect();
    let inventory = plan.workers.of_job(&plan.inventory);
    events.phase(Phase::Preparing);
    let uploads = Uploads { plan, events, created: Mutex::default() };
    // the upload takes its time, and afterwards the worker may be replaced. A test's thread has a small stack
    let (placed, missing) = tokio::join!(Box::pin(uploads.to_all(&nodes)), Box::pin(imports::missing(plan)));
    let placed = placed?;
    if let Some(missing) = missing {
        let place = nodes.iter().zip(&placed).find(|((observed, _), _)| observed.name() == missing.node);
        missing.check(place.and_then(|(_, (place, _))| place.as_ref()))?;
    }
    let placed = nodes.into_iter().zip(placed).collect();
    let started = async |(host, (place, uploaded)): (PreparedNode<'_>, Placed)| {
        directories::prepare(&inventory.cluster, host.0, events).await?;
        if let NodeRole::Launcher(host) | NodeRole::Worker(host) = host.1 {
            describe(host, place.as_ref()).await?;
        }
        start_container(plan, &inventory, host, place.as_ref(), events).await?;
        events.done(host.0.name(), completion(uploaded.as_ref()));
        Ok(place.map(|place| (host.0.name().to_owned(), place)))
    };
    Ok(each_node(placed, events, started).await.all()?.into_iter().flatten().collect())
}

/// Returns the paths of pushed data in the containers that all nodes have.
fn common_data<'a>(place: &str, nodes: impl Iterator<Item = &'a Facts>) -> Vec<String> {
    let of_node = |facts: &'a Facts| {
        facts
            .storage
            .pushed
            .iter()
            .filter(|(_, data)| data.inode.is_some())
            .map(|(name, _)| name)
            .collect::<BTreeSet<_>>()
    };
    let names = nodes.map(of_node).reduce(|all, of_node| &all & &of_node);
    names.unwrap_or_default().into_iter().map(|name| format!("{place}/{name}")).collect()
}

/// The uploads of a project to the nodes of a job.
struct Uploads<'a> {
    plan: &'a JobPlan,
    events: &'a Events,
    /// The nodes on which one of them created the project's directory.
    created: Mutex<BTreeSet<String>>,
}

/// Uploads a project to all nodes at once with `to_node`, whose last argument is true the first time. If files have
/// changed so that what was read of them is lost, reads these again and uploads to all nodes again: all have the same
/// files.
///
/// # Errors
/// [`Error::Nodes`] with each node that failed.
pub async fn upload_to_all<N: Clone, T>(
    mut project: Option<Project>,
    nodes: &[N],
    events: &Events,
    to_node: impl AsyncFn(Option<&Project>, N, bool) -> Result<T, NodeError>,
) -> Result<Vec<T>, Error> {
    let mut number = 1;
    loop {
        let upload = async |node| match to_node(project.as_ref(), node, number == 1).await {
            // the next upload may succeed
            Err(error) if error.kind == ErrorKind::FileChanged => Err(error),
            result => events.report(result),
        };
        let results = for_each_node(nodes.to_vec(), upload).await;
        let mut errors = results.iter().filter_map(|result| result.as_ref().err()).peekable();
        let may_help = errors.peek().is_some() && errors.all(|error| error.kind == ErrorKind::FileChanged);
        let Some(Project { files, .. }) = project.as_mut().filter(|_| may_help && number < UPLOADS) else {
            let report = |result: Result<T, NodeError>| match result {
                Err(error) if error.kind == ErrorKind::FileChanged => events.report(Err(error)),
                result => result,
            };
            return results.into_iter().map(report).collect::<NodeResults<T>>().all();
        };
        let earlier = files.clone();
        let refreshed = tokio::task::spawn_blocking(move || earlier.refresh()).await;
        *files = refreshed.context("cannot read the project")??;
        files.notes.iter().for_each(|note| events.note(note));
        number += 1;
    }
}

impl Uploads<'_> {
    /// Creates the job's directory and uploads the project, on all nodes at once.
    async fn to_all(&self, nodes: &[PreparedNode<'_>]) -> Result<Vec<Placed>, Error> {
        let mut project = self.plan.program.project.clone();
        if let Some(project) = &mut project {
            let layout = self.plan.inventory.cluster.layout(&self.plan.container.name);
            project.mounts.extend(common_data(&layout.data, nodes.iter().map(|(observed, _)| &observed.facts)));
        }
        let to_node = async |project: Option<&Project>, host, is_first| self.to_node(project, host, is_first).await;
        upload_to_all(project, nodes, self.events, to_node).await
    }

    /// Returns the place of the project on a node, which is new in every upload of a job that created it.
    fn placed(&self, node: &str, place: Workspace) -> Workspace {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_new {
            created.insert(node.to_owned());
        }
        Workspace { is_new: created.contains(node), ..place }
    }

    /// Uploads the project to a node, and creates the job's directory there the `first` time.
    async fn to_node(
        &self,
        project: Option<&Project>,
        (observed, role): PreparedNode<'_>,
        first: bool,
    ) -> Result<Placed, NodeError> {
        let Uploads { plan, events, .. } = self;
        let (cluster, transport) = (&plan.inventory.cluster, &observed.member.transport);
        let node_project = NodeProject { cluster, transport, name: &plan.program.name, job: &plan.id };
        let mut place = None;
        let uploading = async {
            let Some(project) = project else { return Ok(None) };
            // a job whose record cannot be read may use any project, and one in the queue will
            let uses = |record: &Result<Record, UnreadableRecord>| match record {
                Ok(record) => record.project.as_ref() == Some(&plan.program.name),
                Err(_) => true,
            };
            let others = open_jobs(&observed.open.jobs).filter(|(job, _)| observed.open.is_under_way(job));
            let concurrent: Vec<&str> = others.filter(|(_, record)| uses(record)).map(|(job, _)| job).collect();
            let comparing = node_project.compare(project, &concurrent, events);
            let compared = events.step(observed.name(), Step::read("comparing the project"), comparing).await?;
            let is_separate = compared.workspace.is_separate;
            place = Some(self.placed(observed.name(), compared.workspace.clone()));
            match role {
                // nothing of this job is there, and another job's directory stays as it is
                NodeRole::Project if is_separate => Ok(None),
                _ => node_project.upload(project, compared, events).await.map(Some),
            }
        };
        let writing = async {
            match role {
                NodeRole::Launcher(host) if first => plan.create_directory_of_launcher(host).await,
                NodeRole::Worker(host) if first => plan.create_directory(host).await,
                _ => Ok(()),
            }
        };
        let (uploaded, written) = tokio::join!(uploading, writing);
        match (uploaded, written) {
            // the other job keeps what it has
            (_, Err(written)) if written.kind == ErrorKind::JobExists => Err(written),
            // the next upload may succeed
            (Err(uploaded), Ok(())) if uploaded.kind == ErrorKind::FileChanged => Err(uploaded),
            (Err(uploaded), Err(written)) if uploaded.kind == ErrorKind::FileChanged => Err(written),
            // if both fail, the upload's error says more about the node, so it is reported
            (uploaded, written) => {
                let uploaded = uploaded?;
                written.map(|()| (place, uploaded))
            }
        }
    }
}

/// Starts the worker on a node that has ranks, or removes from that of the launcher what an earlier job left.
async fn start_container(
    plan: &JobPlan,
    inventory: &Inventory,
    (observed, role): PreparedNode<'_>,
    place: Option<&Workspace>,
    events: &Events,
) -> Result<(), NodeError> {
    match role {
        // another node may be chosen: what chooses it starts its worker
        NodeRole::Worker(_) if plan.queue.is_some() => remove_ended(plan, inventory, observed, events).await,
        NodeRole::Project => Ok(()),
        NodeRole::Worker(_) => {
            // after the upload, which may create the directory that the worker mounts
            let own = (plan.workers != Workers::Shared).then(|| (plan.id.as_str(), plan.options.may_restart()));
            ensure_worker(inventory, observed, place, own, &plan.names, events).await
        }
        NodeRole::Launcher(_) => {
            remove_ended_master(&plan.container.name, observed).await?;
            remove_ended(plan, inventory, observed, events).await
        }
    }
}

/// Removes from a node what earlier jobs and commands left there.
async fn remove_ended(
    plan: &JobPlan,
    inventory: &Inventory,
    observed: &ObservedNode,
    events: &Events,
) -> Result<(), NodeError> {
    let (cluster, containers, jobs) = (&inventory.cluster, &observed.runtime.containers, &observed.facts.jobs);
    let mut left = ended_containers(&cluster.name, containers, jobs, |job| observed.open.has(job));
    let is_gone =
        |operation: &Operation| matches!(operation, Operation::Remove { name, .. } if *name == plan.container.name);
    left.retain(|operation| !is_gone(operation));
    left.extend(orphaned_shells(&cluster.name, containers, observed.facts.clock));
    left.extend(interrupted_builds(&cluster.name, containers));
    apply::apply(inventory, observed, &left, events).await
}

/// Returns what an upload did; a program in the image has none.
fn completion(uploaded: Option<&Uploaded>) -> Completion {
    match uploaded {
        None => "ready".into(),
        Some(Uploaded { sent, bytes, removed }) => {
            Completion::Uploaded { files: *sent, bytes: *bytes, removed: *removed }
        }
    }
}

/// Starts a worker that mounts the project, or replaces one that does not or has lost its GPUs. `own`: the id of the
/// job that has the worker to itself, and whether its ranks may be started more than once. `names` are written to it.
///
/// # Errors
/// If the node cannot have this worker, or as the engine reports it.
pub(super) async fn ensure_worker(
    inventory: &Inventory,
    observed: &ObservedNode,
    place: Option<&Workspace>,
    own: Option<(&str, bool)>,
    names: &HostNames,
    events: &Events,
) -> Result<(), NodeError> {
    apply::ensure(inventory, observed, &desired_worker(inventory, observed, place, own)?, names, events).await
}

/// Returns that worker.
///
/// # Errors
/// If the node cannot have it.
pub fn desired_worker(
    inventory: &Inventory,
    observed: &ObservedNode,
    place: Option<&Workspace>,
    own: Option<(&str, bool)>,
) -> Result<ContainerSpec, NodeError> {
    let (workspace, new_workspace) =
        (place.map(|place| place.directory.clone()), place.is_some_and(|place| place.is_new));
    let desired = ContainerSpec { workspace, new_workspace, ..apply::desired(inventory, observed)? };
    Ok(match own {
        Some((job, may_restart)) => desired.for_job(&inventory.cluster, job, may_restart),
        None => desired,
    })
}

/// Checks once more before the launch that each worker has this job's project mounted: another operator's job that was
/// prepared at the same time may have replaced it, and ranks must never run other code than theirs.
///
/// # Errors
/// [`Error::Nodes`] with each worker that does not.
pub(super) async fn check_workspaces(plan: &JobPlan, workspaces: &Workspaces, events: &Events) -> Result<(), Error> {
    let cluster = &plan.workers.of_job(&plan.inventory).cluster;
    let checked = each_node(plan.hosts.others.iter().collect(), events, async |host: &HostAssignment| {
        let Some(place) = workspaces.get(host.observed.name()) else { return Ok(()) };
        let containers = host.observed.runtime.engine.containers().await?;
        if running_worker(cluster, &containers).and_then(|c| c.label(LABEL_WORKSPACE)) == Some(place.directory.as_str())
        {
            return Ok(());
        }
        let message = format!("{} was removed, or another project is mounted in it now", cluster.worker);
        Err(NodeError::failed(host.observed.name(), "launch the job", message)
            .hint("another job was started at the same time: see hvdctl status, and try again when that job has ended"))
    })
    .await;
    checked.all().map(drop)
}

async fn remove_ended_master(name: &str, observed: &ObservedNode) -> Result<(), NodeError> {
    let ended = observed.runtime.containers.iter().find(|c| c.name == name && c.is(Role::Master));
    match ended {
        Some(container) => observed.runtime.engine.remove(&container.id).await,
        None => Ok(()),
    }
}

/// Moves what a job wrote in a directory of its own to the project's; where that fails, the next `train` does it.
pub async fn gather_outputs(plan: &JobPlan, workspaces: &Workspaces, events: &Events) {
    let own = |host: &&HostAssignment| workspaces.get(host.observed.name()).is_some_and(|place| place.is_separate);
    let gathered = for_each_node(plan.hosts.all().filter(own).collect(), async |host: &HostAssignment| {
        let (cluster, transport) = (&plan.inventory.cluster, &host.observed.member.transport);
        NodeProject { cluster, transport, name: &plan.program.name, job: &plan.id }.merge(events).await
    })
    .await;
    for error in gathered.into_iter().filter_map(Result::err) {
        events.warn(error);
    }
}
