//! Facts on the image and the ranks that the running workers give before anything is uploaded.

use super::hosts::HostAssignment;
use super::plan::JobPlan;
use crate::cluster::each_node::each_node;
use crate::cluster::observation::{ObservedNode, RuntimeState};
use crate::diagnosis::launchers::OPEN_MPI;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::inventory::Cluster;
use crate::launch::programs::BINDING;
use crate::node::network::CUDA_VISIBLE_DEVICES;
use crate::runtime::container::{ContainerSummary, running_worker};
use crate::text::nodeset::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const FIND_PROGRAM: &str = include_str!("../scripts/worker/launcher_check.sh");

/// Finds the first module that is installed, with the package that it is in, without importing it.
const FIND_MODULES: &str = "import importlib.util, sys
is_there = lambda name: all(importlib.util.find_spec(part) for part in name.split('.'))
print('found' if any(map(is_there, sys.argv[1:])) else 'missing')
";

/// The variables that decide the cores of a rank, besides the node.
const VARIABLES: [&str; 2] = [CUDA_VISIBLE_DEVICES, "OMP_NUM_THREADS"];

/// The cores and threads of the ranks of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Cores")]
pub struct NodeCores {
    /// The node's name.
    #[serde(default)]
    pub node: String,
    /// How its ranks are bound: `numa`, `core` or `none`.
    pub bind: String,
    /// `OMP_NUM_THREADS` of each rank.
    pub threads: String,
    /// The CPUs of each rank of the node, as `0-3,8`.
    pub cpus: Vec<String>,
}

/// Asks the workers that are up for the cores and threads of each rank, which they work out as the ranks would.
///
/// # Errors
/// A worker that is up and does not answer.
pub async fn cores(plan: &JobPlan, events: &Events) -> Result<Vec<NodeCores>, Error> {
    let with_ranks = plan.hosts.all().filter(|host| host.ranks > 0).collect();
    let asked = each_node(with_ranks, events, async |host| of_node(plan, host).await).await;
    Ok(asked.all()?.into_iter().flatten().collect())
}

/// Returns the worker that is up, if it has the image of the job: another one says nothing of that.
pub(super) fn worker_of_image<'a>(cluster: &Cluster, runtime: &'a RuntimeState) -> Option<&'a ContainerSummary> {
    let image_name = runtime.image_name(cluster);
    let has_image = |worker: &&ContainerSummary| worker.spec_image().is_none_or(|image| image == image_name);
    running_worker(cluster, &runtime.containers).filter(has_image)
}

async fn of_node(plan: &JobPlan, host: &HostAssignment) -> Result<Option<NodeCores>, NodeError> {
    let (cluster, runtime) = (&plan.inventory.cluster, &host.observed.runtime);
    let Some(worker) = worker_of_image(cluster, runtime) else { return Ok(None) };
    let set = |name: &&str| Some(format!("{name}={}", host.environment.get(*name)?.expose()));
    let set: Vec<String> = VARIABLES.iter().filter_map(set).collect();
    let (bind, ranks) = (plan.options.bind.map_or("auto".into(), |bind| bind.to_string()), host.ranks.to_string());
    let program = ["python3", "-I", "-", &bind, &ranks];
    let argv: Vec<&str> = ["env"].into_iter().chain(set.iter().map(String::as_str)).chain(program).collect();
    let operation = "read the cores of the worker";
    let output =
        runtime.engine.run_in(&worker.id, &argv, BINDING.as_bytes(), operation, cluster.command_timeout).await?;
    let node = host.observed.name();
    let cores: NodeCores =
        serde_json::from_slice(&output.stdout).map_err(|_| NodeError::failed(node, operation, output.complaint()))?;
    Ok(Some(NodeCores { node: node.to_owned(), ..cores }))
}

/// Checks in the workers that are up that the image has one of these modules. A worker without Python has none.
///
/// # Errors
/// The workers whose image has none, with this hint.
pub async fn check_modules(
    nodes: &[&ObservedNode],
    cluster: &Cluster,
    (modules, hint): (&[&str], &str),
    events: &Events,
) -> Result<(), Error> {
    let operation = "check the image";
    let check = async |observed: &ObservedNode| {
        let Some(worker) = worker_of_image(cluster, &observed.runtime) else { return Ok(()) };
        let argv = [&["python3", "-"], modules].concat();
        let engine = &observed.runtime.engine;
        let output =
            engine.run_in(&worker.id, &argv, FIND_MODULES.as_bytes(), operation, cluster.command_timeout).await?;
        if output.stdout.starts_with(b"found") {
            return Ok(());
        }
        let cause = match output.stdout.is_empty() {
            true => output.complaint(),
            false => format!("it has none of {}", modules.join(", ")),
        };
        Err(NodeError::failed(observed.name(), operation, cause).hint(hint))
    };
    each_node(nodes.to_vec(), events, check).await.all().map(drop)
}

/// Checks in a worker that the image has the program of a launcher, or Python if there is none, and that its `mpirun`
/// is that of Open MPI. If no worker is up, the launch itself fails. `image`: that of the ranks which it starts.
///
/// # Errors
/// The image does not have it, or another one; the worker's node does not answer.
pub async fn check_launcher(plan: &JobPlan, program: &str, image: &str) -> Result<(), Error> {
    let cluster = &plan.inventory.cluster;
    let all = plan.hosts.observed().map(|observed| &observed.runtime);
    let mut engines = all.filter(|runtime| runtime.image_name(cluster) == image);
    let Some((runtime, worker)) = engines.find_map(|runtime| Some((runtime, worker_of_image(cluster, runtime)?)))
    else {
        return Ok(());
    };
    let operation = "check the image for the launcher";
    let argv = ["sh", "-c", FIND_PROGRAM, "sh", program];
    let output = runtime.engine.run_in(&worker.id, &argv, b"", operation, cluster.command_timeout).await?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => Ok(()),
        "missing" => Err(Error::check(
            format!("{} has no {program}", place(image)),
            "hvdctl doctor lists the launchers that are there; choose one with --launcher, or install it in another \
             image or, without containers, on the nodes",
        )),
        other => Err(Error::check(
            format!(
                "the first {program} in PATH of {} is that of {}, which has none of Open MPI's options",
                place(image),
                printable(other)
            ),
            OPEN_MPI,
        )),
    }
}

/// Returns what ranks find their programs in, for messages. `image`: the name of their image; empty without one.
pub(super) fn place(image: &str) -> String {
    match image {
        "" => "what is installed".to_owned(),
        image => format!("the image {image}"),
    }
}
