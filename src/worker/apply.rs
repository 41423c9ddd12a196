//! The plan of a node, and its execution: containers are removed, created and started, and a worker counts as started when its sshd
//! listens.

use crate::cluster::nodes::{Observed, place};
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::{Cluster, Inventory};
use crate::node::network;
use crate::runtime::spec::ContainerSpec;
use crate::text::failure::{self, Sshd};
use crate::text::nodeset;
use crate::transport::node::Script;
use crate::worker::plan::{self, NodePlan, Operation, Workspace};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const WAIT_PORT: &str = include_str!("../scripts/wait_port.sh");

/// The worker that a node should have.
///
/// # Errors
/// When the node's place on the cluster's network is not known: its sshd would listen nowhere, or everywhere.
pub fn desired(inventory: &Inventory, seen: &Observed) -> Result<ContainerSpec, NodeError> {
    let node = &seen.member.node;
    let gpus = network::gpu_request(node, &seen.facts);
    Ok(ContainerSpec::worker(&inventory.cluster, node, gpus, place(inventory, seen)?.address))
}

/// What has to be done on a node; nothing is changed.
///
/// # Errors
/// When the node cannot have this worker: no image, too few GPUs, a foreign container of the name.
pub fn plan(
    cluster: &Cluster,
    seen: &Observed,
    desired: &ContainerSpec,
    workspace: &Workspace,
) -> Result<Vec<Operation>, NodeError> {
    let name = seen.name();
    if let Some(words) = network::missing_gpus(&seen.member.node, &seen.facts) {
        return Err(NodeError::failed(name, "find the promised GPUs", words)
            .hint("run nvidia-smi on the node, or set `gpus` to what it has"));
    }
    let image_id = seen.image_id(cluster)?;
    let facts = &seen.facts;
    let is_open = |run: &str| facts.open_jobs.iter().any(|open| open == run);
    let mut operations = plan::orphaned_workers(&cluster.name, &seen.docker.containers, &facts.ranks, is_open);
    operations.extend(plan::orphaned_shells(&cluster.name, &seen.docker.containers, facts.clock));
    operations.extend(plan::worker(desired, image_id, workspace, &seen.docker.containers).map_err(|foreign| {
        let hint = format!("remove or rename it, or set cluster.worker to another name than {}", foreign.name);
        NodeError::failed(name, &format!("start {}", desired.name), foreign).hint(hint)
    })?);
    Ok(operations)
}

/// Everything that is planned for a node: a value that the dry run prints and [`WorkerPlan::apply`] executes.
pub struct WorkerPlan {
    /// The node and its observed state.
    pub observed: Observed,
    /// The jobs that are ended first, on all their nodes.
    pub end_jobs: Vec<String>,
    /// The image that is pulled before the rest is planned; only then its id is known.
    pub pull: Option<String>,
    /// What is done to its containers.
    pub operations: Vec<Operation>,
}

impl WorkerPlan {
    /// Plans what makes the node's worker what the inventory wants. `pull`: the image that was pulled, or would be.
    ///
    /// # Errors
    /// When the node cannot have this worker.
    pub fn new(inventory: &Inventory, observed: Observed, pull: Option<String>) -> Result<WorkerPlan, NodeError> {
        let desired = desired(inventory, &observed)?;
        let operations = plan(&inventory.cluster, &observed, &desired, &Workspace::Any)?;
        Ok(WorkerPlan { observed, end_jobs: Vec::new(), pull, operations })
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        self.observed.name()
    }

    /// Whether anything is changed on the node.
    pub fn is_empty(&self) -> bool {
        self.end_jobs.is_empty() && self.pull.is_none() && self.operations.is_empty()
    }

    /// All steps as text, one for each operation.
    pub fn steps(&self) -> Vec<String> {
        self.before().chain(self.operations.iter().map(ToString::to_string)).collect()
    }

    /// All steps as one line.
    pub fn summary(&self) -> String {
        plan::summarize(&self.before().chain(plan::describe(&self.operations)).collect::<Vec<_>>())
    }

    fn before(&self) -> impl Iterator<Item = String> {
        let ends = self.end_jobs.iter().map(|job| format!("end the job {job}"));
        ends.chain(self.pull.iter().map(|image| format!("pull {image}")))
    }

    fn node_plan(&self) -> NodePlan<'_> {
        let Observed { facts, docker, .. } = &self.observed;
        NodePlan { name: self.node(), facts, containers: &docker.containers, operations: &self.operations }
    }

    /// Executes the operations. Before each, `goes_on` is asked; after each, `did` is called. Returns false if one was left out.
    ///
    /// # Errors
    /// With the engine's words, or the last lines of a worker that exited at once.
    pub async fn apply(
        &self,
        inventory: &Inventory,
        events: &Events,
        goes_on: impl Fn() -> bool,
        did: impl Fn(&Operation),
    ) -> Result<bool, NodeError> {
        apply_while(inventory, &self.observed, &self.operations, events, goes_on, did).await
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

/// The error of a command that would disrupt these jobs.
pub fn disrupted_error(jobs: &BTreeMap<String, Vec<String>>) -> Error {
    let lines = jobs.iter().map(|(job, nodes)| {
        format!("job {job} is running, and its workers would be replaced on {}", nodeset::fold(nodes))
    });
    Error::check(
        lines.collect::<Vec<_>>().join("\n"),
        "wait until it ends, or end it with `hvdctl up --force`; `hvdctl up --dry-run` shows what would be done",
    )
}

/// Carries a plan out, and waits until sshd listens where a container was started.
///
/// # Errors
/// With the engine's words, or the last lines of a worker that ended at once.
pub async fn apply(
    inventory: &Inventory,
    seen: &Observed,
    operations: &[Operation],
    events: &Events,
) -> Result<(), NodeError> {
    apply_while(inventory, seen, operations, events, || true, |_| {}).await.map(|_| ())
}

/// The same, and no further operation is begun where `goes_on` says so; false where one was left out. Each that is done is
/// told to `did`.
///
/// # Errors
/// As there.
async fn apply_while(
    inventory: &Inventory,
    seen: &Observed,
    operations: &[Operation],
    events: &Events,
    goes_on: impl Fn() -> bool,
    did: impl Fn(&Operation),
) -> Result<bool, NodeError> {
    let mut without_worker = false;
    let carried_out = async {
        let engine = &seen.docker.engine;
        let mut whole = true;
        for operation in operations {
            if !goes_on() {
                whole = false;
                break;
            }
            let _step = events.begin(seen.name(), Step::Applying(operation.to_string()));
            match operation {
                Operation::Remove { id, name, .. } => {
                    engine.remove(id).await?;
                    without_worker |= *name == inventory.cluster.worker;
                }
                Operation::Create(desired) => {
                    let id = engine.create_and_start(desired).await?;
                    match listening(inventory, seen, &desired.name).await? {
                        Ok(()) => without_worker &= desired.name != inventory.cluster.worker,
                        Err(deaf) => {
                            // a worker that serves nobody would pass for one that is as it should be
                            engine.remove(&id).await?;
                            return Err(deaf);
                        }
                    }
                }
                Operation::Start { name } => {
                    engine.start(name).await?;
                    listening(inventory, seen, name).await??;
                }
                Operation::Unpause { name } => {
                    engine.unpause(name).await?;
                    listening(inventory, seen, name).await??;
                }
            }
            did(operation);
        }
        Ok(whole)
    };
    let carried_out = carried_out.await.map_err(|error: NodeError| {
        if !without_worker {
            return error;
        }
        let up = format!("{} was removed; after fixing this, `hvdctl up` starts it again", inventory.cluster.worker);
        error.hint(up)
    });
    events.report(carried_out)
}

/// Waits until the worker's sshd listens; why it does not is the inner error.
///
/// # Errors
/// When the engine does not say what became of the worker.
async fn listening(inventory: &Inventory, seen: &Observed, name: &str) -> Result<Result<(), NodeError>, NodeError> {
    let cluster = &inventory.cluster;
    let listener = SocketAddr::new(place(inventory, seen)?.address, cluster.port).to_string();
    let link = &seen.member.transport;
    let limit = link.limit().min(Duration::from_secs(20));
    let tried = format!("reach sshd in {name} on port {}", cluster.port);
    let script = Script::new(WAIT_PORT).with("listener", &listener).with("seconds", &limit.as_secs().to_string());
    // a container that ends at once is seen sooner than the time-out
    let port = link.script_within(&script, &tried, limit + Duration::from_secs(5));
    let ended = async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if seen.docker.engine.running(name).await? != Some(true) {
                return Ok::<(), NodeError>(());
            }
        }
    };
    let answered = tokio::select! {
        answer = port => answer.is_ok(),
        ended = ended => {
            ended?;
            false
        }
    };
    // another program on the port answers too; only a worker that still runs has it
    tokio::time::sleep(Duration::from_millis(50)).await;
    if answered && seen.docker.engine.running(name).await? == Some(true) {
        return Ok(Ok(()));
    }
    let said = seen.docker.engine.last_lines(name, 10).await.unwrap_or_default();
    let said = if said.trim().is_empty() { format!("nothing listens after {} s", limit.as_secs()) } else { said };
    let hint = match failure::sshd(&said) {
        Sshd::PortInUse => format!(
            "another program has the port (ss -ltnp 'sport = :{0}' on the node); set cluster.port to a free one",
            cluster.port
        ),
        Sshd::AddressMissing => {
            "the address has gone from the node since it was observed; try again, or set `address` or `interface`"
                .into()
        }
        Sshd::Other => "hvdctl doctor checks what the worker needs".into(),
    };
    Ok(Err(NodeError::failed(seen.name(), &tried, said).hint(hint)))
}
