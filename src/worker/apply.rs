//! Plans a node's worker and executes the plan. A worker counts as started when its sshd listens.

use crate::cluster::each_node::NodeResults;
use crate::cluster::observation::{ObservedNode, OwnEnvironment, check_gpus, place};
use crate::cluster::session::ProgressLog;
use crate::cluster::site::Site;
use crate::error::{Error, ErrorKind, NodeError};
use crate::event::{Events, Message, Step};
use crate::inventory::{Cluster, Inventory};
use crate::node::names::HostNames;
use crate::node::network;
use crate::runtime::container::running_worker;
use crate::runtime::credentials::RegistryLogin;
use crate::runtime::spec::ContainerSpec;
use crate::text::failure::{self, Sshd};
use crate::text::nodeset;
use crate::transport::node::Script;
use crate::worker::plan::{self, NodePlan, Operation, Tense};
use crate::worker::ready;
use crate::worker::{directories, image, names};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const WAIT_PORT: &str = include_str!("../scripts/node/wait_port.sh");

/// The reason for recreating a worker that has lost its GPUs.
const LOST_GPUS: &str = "lost its GPUs";

/// Returns the worker that a node should have.
///
/// # Errors
/// If the node's address on the cluster's network is unknown: the worker's sshd listens nowhere else.
pub fn desired(inventory: &Inventory, observed: &ObservedNode) -> Result<ContainerSpec, NodeError> {
    let node = &observed.member.node;
    let gpus = network::gpu_request(node, &observed.facts);
    let mut worker = ContainerSpec::worker(&inventory.cluster, node, gpus, place(inventory, observed)?.address);
    worker.spec.image = observed.runtime.image_name(&inventory.cluster);
    worker.for_role = observed.runtime.own != OwnEnvironment::default();
    let storage = &observed.facts.storage;
    let worker = worker.with_data(&inventory.cluster, node, &storage.pushed);
    Ok(worker.with_virtualenvs(&inventory.cluster, &storage.virtualenvs))
}

/// Returns what has to be done on a node to have the desired worker. Changes nothing.
///
/// # Errors
/// If the node cannot have this worker: no image, too few GPUs or unknown ones, another container of its name.
pub fn plan(cluster: &Cluster, observed: &ObservedNode, desired: &ContainerSpec) -> Result<Vec<Operation>, NodeError> {
    let (node, facts, containers) = (observed.name(), &observed.facts, &observed.runtime.containers);
    check_gpus(&observed.member.node, facts)?;
    let image_id = observed.image_id(cluster)?;
    let is_open = |job: &str| observed.open.has(job);
    let mut operations = plan::ended_containers(&cluster.name, containers, &facts.jobs, is_open);
    operations.extend(plan::orphaned_shells(&cluster.name, containers, facts.clock));
    operations.extend(plan::interrupted_builds(&cluster.name, containers));
    operations.extend(plan::worker(desired, image_id, containers).map_err(|foreign| {
        let hint = foreign.hint("cluster.worker");
        NodeError::failed(node, &format!("start {}", desired.name), foreign).hint(hint)
    })?);
    Ok(operations)
}

/// The plans of the nodes on which all steps so far have succeeded, and the failures of the others.
pub type WorkerPlans = NodeResults<WorkerPlan>;

/// Everything that `up` plans for a node. A dry run prints it.
pub struct WorkerPlan {
    /// The node and its observed state.
    pub observed: ObservedNode,
    /// The jobs that are ended first, on all their nodes.
    pub end_jobs: Vec<String>,
    /// The operations that were executed and have changed the node.
    done: Vec<Operation>,
    /// The operations that are left, in order.
    left: Vec<Operation>,
}

impl WorkerPlan {
    /// Plans what makes the node's worker what the inventory describes. Changes nothing.
    ///
    /// # Errors
    /// If the node cannot have this worker.
    pub fn new(inventory: &Inventory, mut observed: ObservedNode) -> Result<WorkerPlan, NodeError> {
        let image = &mut observed.runtime.image;
        let pulls = image::is_wanted(&inventory.cluster, image.is_some());
        if pulls {
            image.get_or_insert_with(image::to_be_pulled);
        }
        let pull = pulls.then(|| Operation::Pull { image: inventory.cluster.image.clone() });
        let operations = plan(&inventory.cluster, &observed, &desired(inventory, &observed)?)?;
        let operations = plan::kept_for_job(&inventory.cluster, &observed, operations);
        let left = pull.into_iter().chain(operations).collect();
        Ok(WorkerPlan { observed, end_jobs: Vec::new(), done: Vec::new(), left })
    }

    /// Asks a running worker that would stay for its GPUs. If it has lost them, its recreation is added to the plan.
    ///
    /// # Errors
    /// If the worker does not answer.
    pub async fn check_worker(mut self, inventory: &Inventory, events: &Events) -> Result<WorkerPlan, NodeError> {
        let (cluster, containers) = (&inventory.cluster, &self.observed.runtime.containers);
        let Some(worker) = running_worker(cluster, containers).filter(|worker| !self.removes(&worker.id)) else {
            return Ok(self);
        };
        let asking = ready::lost_gpus(cluster, &self.observed, &worker.id);
        if events.step(self.observed.name(), Step::read("checking the worker"), asking).await?.is_some() {
            self.left.extend(plan::recreate(worker, &desired(inventory, &self.observed)?, LOST_GPUS));
        }
        Ok(self)
    }

    /// Returns whether a container is removed.
    fn removes(&self, container: &str) -> bool {
        self.left.iter().any(|operation| matches!(operation, Operation::Remove { id, .. } if id == container))
    }

    /// Returns the operation that is executed next.
    pub fn next(&self) -> Option<&Operation> {
        self.left.first()
    }

    /// Pulls the image if that is the next operation, with the operator's login to its registry, and plans the rest
    /// again. Does not report a failure.
    ///
    /// # Errors
    /// As [`image::pull`] and [`plan()`].
    pub async fn pull(
        &mut self,
        inventory: &Inventory,
        login: &RegistryLogin,
        progress: &ProgressLog,
        events: &Events,
    ) -> Result<(), NodeError> {
        let Some(Operation::Pull { image }) = self.next() else { return Ok(()) };
        {
            let _step = events.begin(self.node(), image::step(image));
            image::pull(image, login, &self.observed.member, events).await?;
        }
        let operation = self.left[0].phrase(Tense::Done);
        self.received_image(inventory).await?;
        if !self.done.is_empty() {
            progress.record(self.node(), operation);
        }
        Ok(())
    }

    /// Executes the next operation, if one is left.
    ///
    /// # Errors
    /// As [`execute`].
    async fn execute_next(
        &mut self,
        inventory: &Inventory,
        progress: &ProgressLog,
        events: &Events,
    ) -> Result<(), NodeError> {
        if self.left.is_empty() {
            return Ok(());
        }
        let operation = self.left.remove(0);
        execute(inventory, &self.observed, &operation, events).await?;
        progress.record(self.node(), operation.phrase(Tense::Done));
        self.done.push(operation);
        Ok(())
    }

    /// Prepares the directories that containers mount, executes what is left, and writes the nodes' names to the
    /// worker. Begins no further operation once the command is cancelled.
    ///
    /// # Errors
    /// As [`execute`], and when the directories or the names cannot be written.
    pub async fn carry_out(mut self, names: &HostNames, site: Site<'_>) -> Result<WorkerPlan, NodeError> {
        let Site { target, session, events, .. } = site;
        let inventory = &target.inventory;
        if session.cancellation.check().is_ok() {
            directories::prepare(&inventory.cluster, &self.observed, events).await?;
        }
        check_environment(&self.observed, &self.left).await?;
        while self.next().is_some() {
            if session.cancellation.check().is_err() {
                return Ok(self);
            }
            self.execute_next(inventory, &session.progress, events).await?;
        }
        let (observed, limit) = (&self.observed, self.observed.member.transport.limit());
        names::write(observed, &inventory.cluster.worker, names, limit).await?;
        session.progress.done(self.node());
        events.done(self.node(), self.summary(Tense::Done));
        Ok(self)
    }

    /// Plans what is left on a node that was given the image instead of the pull that is next.
    ///
    /// # Errors
    /// As [`plan()`].
    pub async fn received_image(&mut self, inventory: &Inventory) -> Result<(), NodeError> {
        let operation = self.left.remove(0);
        if self.plan_again(inventory).await? {
            self.done.push(operation);
        }
        Ok(())
    }

    /// Plans what is left after a pull. Returns whether the node has another image than before.
    async fn plan_again(&mut self, inventory: &Inventory) -> Result<bool, NodeError> {
        let cluster = &inventory.cluster;
        let before = self.observed.image_id(cluster)?.to_owned();
        self.observed.runtime.image = self.observed.runtime.engine.image(&cluster.image).await?;
        let operations = plan(cluster, &self.observed, &desired(inventory, &self.observed)?)?;
        self.left = plan::kept_for_job(cluster, &self.observed, operations);
        Ok(self.observed.image_id(cluster)? != before)
    }

    /// Returns the node's name.
    pub fn node(&self) -> &str {
        self.observed.name()
    }

    /// Formats the ends of jobs and all operations as one line.
    pub fn summary(&self, tense: Tense) -> String {
        let ends = self.end_jobs.iter().map(|job| format!("{} the job {job}", tense.of("end")));
        plan::summarize(&ends.chain(plan::describe(&self.operations(), tense)).collect::<Vec<_>>())
    }

    /// Returns all operations, executed or not, in order.
    pub fn operations(&self) -> Vec<Operation> {
        [&self.done[..], &self.left].concat()
    }

    fn node_plan(&self) -> NodePlan<'_> {
        node_plan(&self.observed, &self.left)
    }
}

/// Returns the jobs that these plans would disrupt, each with the nodes where it loses a worker.
pub fn disrupted_jobs(cluster: &Cluster, plans: &[WorkerPlan]) -> BTreeMap<String, Vec<String>> {
    plan::disrupted_jobs(&cluster.name, &plans.iter().map(WorkerPlan::node_plan).collect::<Vec<_>>())
}

/// Adds the ends of these jobs to the plans of all nodes that have anything of them.
pub fn end_jobs<'a>(cluster: &Cluster, plans: &mut [WorkerPlan], jobs: impl Iterator<Item = &'a String> + Clone) {
    for plan in plans {
        plan.end_jobs = jobs.clone().filter(|job| plan.node_plan().has_job(&cluster.name, job)).cloned().collect();
    }
}

/// Checks that no job would be disrupted by what is planned on these nodes.
///
/// # Errors
/// [`disrupted_error`] if one would.
pub fn check_disrupted<'a>(
    cluster: &Cluster,
    planned: impl Iterator<Item = (&'a ObservedNode, &'a [Operation])>,
) -> Result<(), Error> {
    let plans: Vec<_> = planned.map(|(observed, operations)| node_plan(observed, operations)).collect();
    let disrupted = plan::disrupted_jobs(&cluster.name, &plans);
    if disrupted.is_empty() { Ok(()) } else { Err(disrupted_error(&disrupted)) }
}

/// Checks the same of one node before its worker is changed: only then is it known which project the worker has to
/// mount.
fn check_worker_unused(cluster: &Cluster, observed: &ObservedNode, operations: &[Operation]) -> Result<(), NodeError> {
    let disrupted = plan::disrupted_jobs(&cluster.name, &[node_plan(observed, operations)]);
    let Some(job) = disrupted.keys().next() else { return Ok(()) };
    let operation = format!("replace {}", cluster.worker);
    let hint = format!("wait until it ends, or end it with `hvdctl stop {job}`");
    Err(NodeError::failed(observed.name(), &operation, format!("job {job} is running there")).hint(hint))
}

fn node_plan<'a>(observed: &'a ObservedNode, operations: &'a [Operation]) -> NodePlan<'a> {
    let ObservedNode { facts, runtime, open, .. } = observed;
    NodePlan { name: observed.name(), ranks: &facts.jobs.ranks, open, containers: &runtime.containers, operations }
}

/// Returns the error of a command that would disrupt these jobs.
pub fn disrupted_error(jobs: &BTreeMap<String, Vec<String>>) -> Error {
    let lines = jobs.iter().map(|(job, nodes)| {
        format!("job {job} is running, and its workers would be replaced on {}", nodeset::fold(nodes))
    });
    Error::check(
        lines.collect::<Vec<_>>().join("\n"),
        "wait until it ends, or end it with `hvdctl up --force`; `hvdctl up --dry-run` shows what would be done",
    )
}

/// Makes a worker the desired one, writes the nodes' names there, and asks whether it is ready for ranks. One that has
/// lost its GPUs is recreated.
///
/// # Errors
/// As of [`plan()`] and [`execute`], if another job has ranks in the worker that would be replaced, or if a new worker
/// does not see its GPUs.
pub async fn ensure(
    inventory: &Inventory,
    observed: &ObservedNode,
    desired: &ContainerSpec,
    names: &HostNames,
    events: &Events,
) -> Result<(), NodeError> {
    let cluster = &inventory.cluster;
    let operations = plan(cluster, observed, desired)?;
    check_worker_unused(cluster, observed, &operations)?;
    check_environment(observed, &operations).await?;
    apply(inventory, observed, &operations, events).await?;
    let Some(lost) = prepare(cluster, observed, &desired.name, names).await? else { return Ok(()) };
    let is_new = operations.iter().any(|o| matches!(o, Operation::Create(created) if created.name == desired.name));
    let Some(worker) = running_worker(cluster, &observed.runtime.containers).filter(|_| !is_new) else {
        return Err(ready::error(observed, &desired.name, &lost));
    };
    let operations = plan::recreate(worker, desired, LOST_GPUS);
    check_worker_unused(cluster, observed, &operations)?;
    events.warn(Message::of(observed.name(), format!("{} was {lost}; it is recreated", desired.name)));
    apply(inventory, observed, &operations, events).await?;
    match prepare(cluster, observed, &desired.name, names).await? {
        Some(lost) => Err(ready::error(observed, &desired.name, &lost)),
        None => Ok(()),
    }
}

/// Writes the nodes' names to a running worker, and returns what it lacks.
async fn prepare(
    cluster: &Cluster,
    observed: &ObservedNode,
    worker: &str,
    names: &HostNames,
) -> Result<Option<String>, NodeError> {
    let writing = names::write(observed, worker, names, cluster.command_timeout);
    let (written, lost) = tokio::join!(writing, ready::lost_gpus(cluster, observed, worker));
    written?;
    lost
}

/// Executes operations on a node, one after the other.
///
/// # Errors
/// As [`execute`].
pub async fn apply(
    inventory: &Inventory,
    observed: &ObservedNode,
    operations: &[Operation],
    events: &Events,
) -> Result<(), NodeError> {
    for operation in operations {
        execute(inventory, observed, operation, events).await?;
    }
    Ok(())
}

/// Executes one operation on a node. Where a worker was started, waits until its sshd listens.
///
/// # Errors
/// With the engine's message, or the last lines of a worker that exited.
pub async fn execute(
    inventory: &Inventory,
    observed: &ObservedNode,
    operation: &Operation,
    events: &Events,
) -> Result<(), NodeError> {
    let engine = &observed.runtime.engine;
    let step = match operation {
        Operation::Pull { image } => image::step(image),
        _ => Step::write(operation.phrase(Tense::Ongoing)),
    };
    let _step = events.begin(observed.name(), step);
    match operation {
        Operation::Pull { image } => image::pull(image, &RegistryLogin::default(), &observed.member, events).await,
        Operation::Remove { id, .. } => engine.remove(id).await,
        Operation::Create(desired) => {
            let created = async {
                let id = engine.create_and_start(desired).await?;
                let listening = wait_until_listening(inventory, observed, &desired.name).await;
                if listening.is_err() {
                    // a worker without sshd would look like one in the desired state
                    let _ = engine.remove(&id).await;
                }
                listening
            };
            let was_replaced = observed.runtime.containers.iter().any(|c| c.name == desired.name);
            created.await.map_err(|error| match was_replaced {
                true => {
                    error.hint(format!("{} was removed; after fixing this, `hvdctl up` starts it again", desired.name))
                }
                false => error,
            })
        }
        Operation::Start { name } => {
            engine.start(name).await?;
            wait_until_listening(inventory, observed, name).await
        }
        Operation::Unpause { name } => {
            engine.unpause(name).await?;
            wait_until_listening(inventory, observed, name).await
        }
    }
}

/// Checks whether ranks can run in a worker that is to be created, before the one that it replaces is removed. One that
/// differs only in its project has been checked.
async fn check_environment(observed: &ObservedNode, operations: &[Operation]) -> Result<(), NodeError> {
    let is_known = operations.iter().any(|operation| match operation {
        Operation::Remove { reasons, .. } => *reasons == ["workspace"],
        _ => false,
    });
    for operation in operations.iter().filter(|_| !is_known) {
        if let Operation::Create(desired) = operation {
            observed.runtime.engine.check(desired).await?;
        }
    }
    Ok(())
}

/// Waits until the worker's sshd listens.
///
/// # Errors
/// If it does not, with the last lines of its log.
async fn wait_until_listening(inventory: &Inventory, observed: &ObservedNode, name: &str) -> Result<(), NodeError> {
    let (cluster, engine, transport) = (&inventory.cluster, &observed.runtime.engine, &observed.member.transport);
    let listener = SocketAddr::new(place(inventory, observed)?.address, cluster.port).to_string();
    // what sets up the environment of a process of the login goes before its sshd
    let longest = if cluster.can().images { Duration::from_secs(20) } else { transport.limit() };
    let limit = transport.limit().min(longest);
    let operation = format!("reach sshd in {name} on port {}", cluster.port);
    let script = Script::new(WAIT_PORT).with("listener", &listener).with("seconds", &limit.as_secs().to_string());
    let port = transport.script_within(&script, &operation, limit + Duration::from_secs(5));
    // a container that exits at once is noticed before the time-out
    let exited = async {
        while engine.is_running(name).await? {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Ok::<(), NodeError>(())
    };
    let is_open = tokio::select! {
        port = port => port.is_ok(),
        exited = exited => {
            exited?;
            false
        }
    };
    // another program may have the port; then the worker's sshd exits
    tokio::time::sleep(Duration::from_millis(50)).await;
    if is_open && engine.is_running(name).await? {
        return Ok(());
    }
    let log = engine.last_lines(name, 10).await.unwrap_or_default();
    let cause = if log.trim().is_empty() { format!("nothing listens after {} s", limit.as_secs()) } else { log };
    let (kind, hint) = match failure::sshd(&cause) {
        Sshd::PortInUse => (
            ErrorKind::PortInUse,
            format!(
                "another program has the port (ss -ltnp 'sport = :{0}' on the node); set cluster.port to a free one",
                cluster.port
            ),
        ),
        Sshd::AddressMissing => (
            ErrorKind::Failed,
            "the node no longer has this address; try again, or set `address` or \
                `interface`"
                .into(),
        ),
        Sshd::Missing if !cluster.can().images => {
            (ErrorKind::Failed, "install OpenSSH's server (the package openssh-server) on the node".into())
        }
        Sshd::Missing => (
            ErrorKind::Failed,
            "the image lacks OpenSSH: `hvdctl image build` builds one with it, and prints the line for the inventory; \
             or add to its Dockerfile: RUN apt-get update && apt-get install -y openssh-server openssh-client"
                .into(),
        ),
        Sshd::Other => (ErrorKind::Failed, "hvdctl doctor checks what the worker needs".into()),
    };
    Err(NodeError::failed(observed.name(), &operation, cause).kind(kind).hint(hint))
}
