//! Applies a plan on one node and sees to it that the worker really listens.

use crate::core::inventory::Cluster;
use crate::core::network;
use crate::core::plan::{self, Operation, Workspace};
use crate::core::spec::Desired;
use crate::edge::link::Script;
use crate::error::NodeError;
use crate::event::Events;
use crate::ops::fleet::Observed;
use std::time::Duration;

const WAIT_PORT: &str = include_str!("../edge/scripts/wait_port.sh");

/// The worker that a node should have.
pub fn desired(cluster: &Cluster, seen: &Observed) -> Desired {
    Desired::worker(cluster, network::wants_gpus(&seen.member.node, &seen.facts))
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
    cluster: &Cluster,
    seen: &Observed,
    operations: &[Operation],
    events: &Events,
) -> Result<(), NodeError> {
    let engine = &seen.docker.engine;
    let mut started = None;
    for operation in operations {
        events.busy(seen.name(), operation.to_string());
        match operation {
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
    }
    match started {
        Some(name) => listening(cluster, seen, name).await,
        None => Ok(()),
    }
}

/// Waits until the worker's sshd listens.
async fn listening(cluster: &Cluster, seen: &Observed, name: &str) -> Result<(), NodeError> {
    let link = &seen.member.link;
    let limit = link.limit().min(Duration::from_secs(20));
    let tried = format!("reach sshd in {name} on port {}", cluster.port);
    let script =
        Script::new(WAIT_PORT).with("port", &cluster.port.to_string()).with("seconds", &limit.as_secs().to_string());
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
    } else {
        format!("see `docker logs {name}` on the node")
    };
    Err(NodeError::failed(seen.name(), &tried, said).hint(hint))
}
