//! Applies a plan on one node and sees to it that the worker really listens.

use crate::core::inventory::{Cluster, Inventory};
use crate::core::network::{self, Endpoint};
use crate::core::plan::{self, Operation, Workspace};
use crate::core::spec::Desired;
use crate::edge::link::Script;
use crate::error::NodeError;
use crate::event::Events;
use crate::ops::fleet::Observed;
use std::net::SocketAddr;
use std::time::Duration;

const WAIT_PORT: &str = include_str!("../edge/scripts/wait_port.sh");

/// The worker that a node should have.
///
/// # Errors
/// When the node's place on the cluster's network is not known: its sshd would listen nowhere, or everywhere.
pub fn desired(inventory: &Inventory, seen: &Observed) -> Result<Desired, NodeError> {
    let node = &seen.member.node;
    let gpus = network::gpu_request(node, &seen.facts);
    Ok(Desired::worker(&inventory.cluster, node, gpus, place(inventory, seen)?.address))
}

/// A node's place in its cluster.
///
/// # Errors
/// With what is missing or does not fit.
pub fn place(inventory: &Inventory, seen: &Observed) -> Result<Endpoint, NodeError> {
    network::place(inventory, &seen.member.node, &seen.facts).map_err(|words| no_place(seen.name(), words))
}

/// The error of a node without a place.
pub fn no_place(node: &str, words: String) -> NodeError {
    NodeError::failed(node, "find its place on the cluster's network", words)
        .hint("set `address` or `interface` of this [[node]] in the inventory")
}

/// What has to be done on a node; nothing is changed.
///
/// # Errors
/// When the node cannot have this worker: no image, too few GPUs, a foreign container of the name.
pub fn plan(
    cluster: &Cluster,
    seen: &Observed,
    desired: &Desired,
    workspace: &Workspace,
) -> Result<Vec<Operation>, NodeError> {
    let name = seen.name();
    if let Some(words) = network::missing_gpus(&seen.member.node, &seen.facts) {
        return Err(NodeError::failed(name, "find the promised GPUs", words)
            .hint("run nvidia-smi on the node, or set `gpus` to what it has"));
    }
    let image_id = seen.image_id(cluster)?;
    let operations = plan::worker(desired, image_id, workspace, &seen.docker.containers).map_err(|foreign| {
        let hint = format!("remove or rename it, or set cluster.worker to another name than {}", foreign.name);
        NodeError::failed(name, &format!("start {}", desired.name), foreign).hint(hint)
    })?;
    Ok(operations)
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
pub async fn apply_while(
    inventory: &Inventory,
    seen: &Observed,
    operations: &[Operation],
    events: &Events,
    goes_on: impl Fn() -> bool,
    did: impl Fn(&Operation),
) -> Result<bool, NodeError> {
    let engine = &seen.docker.engine;
    let mut started = None;
    let mut whole = true;
    for operation in operations {
        if !goes_on() {
            whole = false;
            break;
        }
        events.busy(seen.name(), operation.to_string());
        match operation {
            // its id had to be known before anything else could be planned
            Operation::Pull { .. } => {}
            Operation::Remove { id, .. } => engine.remove(id).await?,
            Operation::Create(desired) => {
                engine.create_and_start(desired).await?;
                started = Some(desired.name.as_str());
            }
            Operation::Start { name } => {
                engine.start(name).await?;
                started = Some(name.as_str());
            }
        }
        did(operation);
    }
    if let Some(name) = started {
        listening(inventory, seen, name).await?;
    }
    Ok(whole)
}

/// Waits until the worker's sshd listens.
async fn listening(inventory: &Inventory, seen: &Observed, name: &str) -> Result<(), NodeError> {
    let cluster = &inventory.cluster;
    let listener = SocketAddr::new(place(inventory, seen)?.address, cluster.port).to_string();
    let link = &seen.member.link;
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
        _ = ended => false,
    };
    // another program on the port answers too; only a worker that still runs has it
    tokio::time::sleep(Duration::from_millis(50)).await;
    if answered && seen.docker.engine.running(name).await? == Some(true) {
        return Ok(());
    }
    let said = seen.docker.engine.last_lines(name, 5).await.unwrap_or_default();
    let said = if said.trim().is_empty() { format!("nothing listens after {} s", limit.as_secs()) } else { said };
    let hint = if said.contains("Address already in use") {
        format!(
            "another program has the port (ss -ltnp 'sport = :{0}' on the node); set cluster.port to a free one",
            cluster.port
        )
    } else if said.contains("Cannot assign requested address") {
        "the address has gone from the node since it was looked at; try again, or set `address` or `interface`".into()
    } else {
        format!("see `docker logs {name}` on the node")
    };
    Err(NodeError::failed(seen.name(), &tried, said).hint(hint))
}
