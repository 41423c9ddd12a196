//! Prepares the nodes for a job: its directory, the project and the workers.

use super::capacity::allocations;
use super::plan::{HostAssignment, JobPlan};
use crate::cluster::nodes::{ObservedNode, all, for_each_node};
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::{Cluster, Inventory};
use crate::node::names::HostNames;
use crate::runtime::container::running_worker;
use crate::runtime::spec::{ContainerSpec, LABEL_WORKSPACE, Role};
use crate::sync::NodeProject;
use crate::sync::upload::{Uploaded, Workspace};
use crate::text::units::{count, human};
use crate::worker::apply;
use crate::worker::plan::orphaned_shells;
use std::collections::BTreeMap;

/// Where the project is, by node.
pub(super) type Workspaces = BTreeMap<String, Workspace>;

/// Creates the job's directory, uploads the project and starts the workers, on all nodes at once. Returns the project's directory on
/// each node.
///
/// # Errors
/// [`Error::Nodes`] with each node that failed.
pub(super) async fn prepare(plan: &JobPlan, events: &Events) -> Result<Workspaces, Error> {
    let hosts = plan.hosts.iter().map(|host| (&host.observed, Some(host)));
    let nodes: Vec<_> = hosts.chain(plan.others.iter().map(|observed| (observed, None))).collect();
    events.phase("preparing");
    let results = for_each_node(nodes, async |(observed, host)| prepare_node(plan, observed, host, events).await).await;
    Ok(all(events, results)?.into_iter().flatten().collect())
}

/// Prepares one node; `host` is its share of the job, if it has one.
async fn prepare_node(
    plan: &JobPlan,
    observed: &ObservedNode,
    host: Option<&HostAssignment>,
    events: &Events,
) -> Result<Option<(String, Workspace)>, NodeError> {
    let JobPlan { program, options, inventory, .. } = plan;
    let (cluster, transport) = (&inventory.cluster, &observed.member.transport);
    let node_project = NodeProject { cluster, transport, name: &program.name, job: &plan.id };
    let compared = match &program.project {
        Some(project) => {
            let others = allocations(observed);
            let of_project = others.iter().filter(|other| other.project.as_ref() == Some(&program.name));
            let concurrent: Vec<&str> = of_project.map(|other| other.job.as_str()).collect();
            let comparing = node_project.compare(project, &concurrent, events);
            Some((project, events.step(observed.name(), Step::read("comparing the project"), comparing).await?))
        }
        None => None,
    };
    let place = compared.as_ref().map(|(_, compared)| compared.workspace.clone());
    let uploading = async {
        match compared {
            // nothing of this job is there, and another job's directory stays as it is
            Some((_, compared)) if compared.workspace.is_separate && host.is_none() => Ok(None),
            Some((project, compared)) => events.report(node_project.upload(project, compared, events).await).map(Some),
            None => Ok(None),
        }
    };
    let writing = async {
        match host {
            Some(host) => plan.create_directory(host).await,
            None => Ok(()),
        }
    };
    // if both fail, the upload's error says more about the node, so it is reported
    let (uploaded, written) = tokio::join!(uploading, writing);
    let uploaded = uploaded?;
    written?;
    if host.is_some_and(|host| !host.launches) {
        // after the upload, which may create the directory that the worker mounts
        let own = plan.has_own_workers().then(|| (plan.id.as_str(), options.may_restart()));
        ensure_worker(inventory, observed, place.as_ref(), own, &plan.names, events).await?;
    }
    if host.is_some_and(|host| host.launches) {
        remove_ended_master(cluster, observed).await?;
        let left = orphaned_shells(&cluster.name, &observed.runtime.containers, observed.facts.clock);
        apply::apply(inventory, observed, &left, events).await?;
    }
    events.done(observed.name(), summarize(uploaded.as_ref()));
    Ok(place.map(|place| (observed.name().to_owned(), place)))
}

/// Formats what an upload did.
fn summarize(uploaded: Option<&Uploaded>) -> String {
    match uploaded {
        None => "ready".into(),
        Some(Uploaded { sent: 0, removed: 0, .. }) => "project unchanged".into(),
        Some(Uploaded { sent, bytes, removed: 0 }) => format!("uploaded {}, {}", count(*sent, "file"), human(*bytes)),
        Some(Uploaded { sent, bytes, removed }) => {
            format!("uploaded {}, {}; removed {}", count(*sent, "file"), human(*bytes), count(*removed, "file"))
        }
    }
}

/// Starts a worker that mounts the project, or replaces one that does not or has lost its GPUs. `own`: the id of the job that has the
/// worker to itself, and whether its ranks may be started more than once. `names` are written to it.
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
    let (workspace, new_workspace) =
        (place.map(|place| place.directory.clone()), place.is_some_and(|place| place.is_new));
    let mut desired = ContainerSpec { workspace, new_workspace, ..apply::desired(inventory, observed)? };
    if let Some((job, may_restart)) = own {
        desired = desired.for_job(&inventory.cluster, job, may_restart);
    }
    apply::ensure(inventory, observed, &desired, names, events).await
}

/// Checks once more before the launch that each worker has this job's project mounted: another operator's job that was prepared at
/// the same time may have replaced it, and ranks must never run other code than theirs.
///
/// # Errors
/// [`Error::Nodes`] with each worker that does not.
pub(super) async fn check_workspaces(plan: &JobPlan, workspaces: &Workspaces, events: &Events) -> Result<(), Error> {
    let cluster = &plan.inventory.cluster;
    let workers = plan.hosts.iter().filter(|host| !host.launches).collect();
    let checked = for_each_node(workers, async |host: &HostAssignment| {
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
    all(events, checked).map(|_| ())
}

async fn remove_ended_master(cluster: &Cluster, observed: &ObservedNode) -> Result<(), NodeError> {
    let ended = observed.runtime.containers.iter().find(|c| c.name == cluster.master && c.is(Role::Master));
    match ended {
        Some(container) => observed.runtime.engine.remove(&container.id).await,
        None => Ok(()),
    }
}

/// Moves what a job wrote in a directory of its own to the project's; where that fails, the next `train` does it.
pub(super) async fn gather_outputs(plan: &JobPlan, workspaces: &Workspaces, events: &Events) {
    let own = |host: &&HostAssignment| workspaces.get(host.observed.name()).is_some_and(|place| place.is_separate);
    let gathered = for_each_node(plan.hosts.iter().filter(own).collect(), async |host: &HostAssignment| {
        let (cluster, transport) = (&plan.inventory.cluster, &host.observed.member.transport);
        NodeProject { cluster, transport, name: &plan.program.name, job: &plan.id }.merge(events).await
    })
    .await;
    for error in gathered.into_iter().filter_map(Result::err) {
        events.warn(error);
    }
}
