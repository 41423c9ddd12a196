//! The cores and threads of each rank, for a dry run: each node's worker works them out as its ranks would.

use super::directory::environment;
use super::plan::{HostAssignment, JobPlan};
use super::request::JobOptions;
use crate::cluster::nodes::{all, for_each_node};
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::launch::programs::BINDING;
use crate::runtime::container::running_worker;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What decides them besides the node.
const VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"];

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

/// Asks the workers that are up.
///
/// # Errors
/// A worker that is up and does not answer.
pub async fn cores(plan: &JobPlan, options: &JobOptions, events: &Events) -> Result<Vec<NodeCores>, Error> {
    let with_ranks = plan.hosts.iter().filter(|host| host.ranks > 0).collect();
    let asked = for_each_node(with_ranks, async |host| of_node(plan, options, host).await).await;
    Ok(all(events, asked)?.into_iter().flatten().collect())
}

async fn of_node(plan: &JobPlan, options: &JobOptions, host: &HostAssignment) -> Result<Option<NodeCores>, NodeError> {
    let (cluster, runtime) = (plan.shared_cluster(), &host.observed.runtime);
    let Some(worker) = running_worker(cluster, &runtime.containers) else { return Ok(None) };
    let env = environment(plan, options, host);
    let set: Vec<String> = VARIABLES.iter().filter_map(|name| Some(format!("{name}={}", env.get(name)?))).collect();
    let (bind, ranks) = (options.bind.map_or("auto".into(), |bind| bind.to_string()), host.ranks.to_string());
    let program = ["python3", "-", &bind, &ranks];
    let argv: Vec<&str> = ["env"].into_iter().chain(set.iter().map(String::as_str)).chain(program).collect();
    let operation = "read the cores of the worker";
    let output =
        runtime.engine.run_in(&worker.id, &argv, BINDING.as_bytes(), operation, cluster.command_timeout).await?;
    let node = host.observed.name();
    let cores: NodeCores =
        serde_json::from_slice(&output.stdout).map_err(|_| NodeError::failed(node, operation, output.complaint()))?;
    Ok(Some(NodeCores { node: node.to_owned(), ..cores }))
}
