//! `hvdctl status`.

mod prometheus;

use crate::checks::preflight;
use crate::checks::{Finding, fold};
use crate::cli::{self, StatusFormat};
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, RuntimeState, observe_parts};
use crate::cluster::operator::now;
use crate::commands::Outcome;
use crate::commands::shared::context::{Context, node_table, with_role};
use crate::document::{NodeEntry, Nodes};
use crate::error::{Error, NodeError, Verdict};
use crate::inventory::Inventory;
use crate::mesh::rules;
use crate::model::engine::EngineName;
use crate::model::idle_rank::{self, IdleRank};
use crate::model::mesh::PeerState;
use crate::node::facts::Drained;
use crate::node::facts::Facts;
use crate::node::gpus::Gpu;
use crate::node::gpus::GpuDevice;
use crate::node::network;
use crate::record::{Record, open_records};
use crate::text::table::{cell, detail, key, text};
use crate::worker::apply;
use crate::worker::plan;
use crate::worker::plan::WorkerStatus;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The status of a node.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct NodeStatus {
    /// True if it is the master.
    pub master: bool,
    /// The version of the engine; null if it does not answer, and then `worker` and `image` are null, too, or with
    /// `runtime = "process"`, where there are neither engines nor images.
    pub engine: Option<String>,
    /// The name of the engine; null if `engine` is null.
    pub engine_name: Option<EngineName>,
    /// The status of the worker, as in the column WORKER in [cluster.md](cluster.md#status).
    pub worker: Option<WorkerStatus>,
    /// The differences of a worker that `up` would replace.
    pub differs: Vec<String>,
    /// The id of the cluster's image on the node; null if the node does not have it.
    pub image: Option<String>,
    /// Its GPUs; null if `nvidia-smi` failed.
    pub gpus: Option<Vec<Gpu>>,
    /// The message of an `nvidia-smi` that failed, or null.
    pub nvidia_smi: Option<String>,
    /// Its slots.
    pub slots: u32,
    /// The ids of the jobs that have their launcher or ranks on the node.
    pub jobs: Vec<String>,
    /// The ranks of these jobs on the node that have made no progress for `stall_warning_s`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<IdleRank>,
    /// The user who drained it, or null.
    pub drained: Option<Drained>,
    /// The other nodes as its encrypted network reaches them, by name; absent without one, or where its agent has written
    /// nothing for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<BTreeMap<String, PeerState>>,
    /// Accelerators that its containers do not get, or that no slots stand for, and memory that ended jobs have left.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// `status`.
pub async fn run(options: &cli::Status, context: &Context) -> Result<Outcome, Error> {
    let is_metrics = options.format == StatusFormat::Prometheus;
    if is_metrics && context.json {
        return Err(Error::usage("--format prometheus and --json exclude each other", "leave out one of them"));
    }
    let Context { target, events, .. } = context;
    let observe = async |member: Member| {
        let (facts, runtime) = observe_parts(target.cluster(), &member, events).await;
        if let Ok(runtime) = &runtime {
            runtime.engine.close_idle();
        }
        Ok(entry(&target.inventory, member, facts?, events.report(runtime)))
    };
    let NodeResults { ok: nodes, failed } = context.connect().await?.then(events, observe).await;
    let metrics = is_metrics.then(|| {
        let unreached: Vec<_> = failed.iter().map(NodeEntry::unreached).collect();
        let all: Vec<_> = nodes.iter().chain(&unreached).collect();
        prometheus::metrics(&target.cluster().name, &all, now())
    });
    let outcome = outcome(nodes, failed);
    Ok(match metrics {
        Some(text) => Outcome { text: text.into(), ..outcome },
        None => outcome,
    })
}

/// Returns the entry of a node. Without the engine the rest of it is still useful.
fn entry(
    inventory: &Inventory,
    member: Member,
    facts: Facts,
    runtime: Result<RuntimeState, NodeError>,
) -> NodeEntry<NodeStatus> {
    let (name, cluster) = (member.node.name.clone(), &inventory.cluster);
    let failure = network::gpu_failure(&member.node, &facts);
    let (node, left) = (&member.node, preflight::left_memory(cluster, &member.node, &facts));
    let findings = [preflight::accelerators(node, &facts), left];
    let mut status = NodeStatus {
        master: member.node.master,
        engine: None,
        engine_name: None,
        worker: None,
        differs: Vec::new(),
        image: None,
        gpus: failure.is_none().then(|| facts.gpus.clone()),
        nvidia_smi: failure.map(ToString::to_string),
        slots: network::slots(&member.node, &facts),
        jobs: plan::running_jobs(&cluster.name, &facts, &[]),
        idle: idle_ranks(&name, &facts),
        drained: facts.drained.clone(),
        network: peers(inventory, &facts),
        findings: findings.into_iter().flatten().collect(),
    };
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return NodeEntry { error: Some(error), ..NodeEntry::reached(&name, false, status) },
    };
    let version = runtime.engine.version().map(|(name, version)| (name, version.to_owned()));
    (status.engine_name, status.engine) = version.unzip();
    status.jobs = plan::running_jobs(&cluster.name, &facts, &runtime.containers);
    let waits = Record::waits_for_nodes;
    let waiting: Vec<Record> = open_records(&facts.jobs.recorded).filter(waits).collect();
    status.jobs.retain(|job| waiting.iter().all(|record| record.id != *job));
    status.image = runtime.image.as_ref().map(|image| image.id.clone()).filter(|id| !id.is_empty());
    let observed = ObservedNode::new(member, facts, runtime);
    let planned = match status.nvidia_smi {
        // what the worker should have is not known, and `up` does not change it
        Some(_) => Ok(Vec::new()),
        None => apply::desired(inventory, &observed).and_then(|desired| apply::plan(cluster, &observed, &desired)),
    };
    let containers = &observed.runtime.containers;
    let (worker, differs) = plan::worker_status(cluster, containers, planned.as_deref().ok());
    (status.worker, status.differs) = (Some(worker), differs);
    NodeEntry::reached(&name, true, status)
}

/// Returns how the nodes of the inventory are reached through the encrypted network, by the agent of a node.
fn peers(inventory: &Inventory, facts: &Facts) -> Option<BTreeMap<String, PeerState>> {
    let mut peers = facts.mesh.current(facts.clock.map_or(f64::MAX, |clock| clock.high))?.peers.clone();
    peers.retain(|name, _| inventory.nodes.iter().any(|node| node.name == *name));
    Some(peers)
}

/// Returns the node's ranks that make no progress. A rank supervisor that was killed left its file, but has no
/// processes.
fn idle_ranks(node: &str, facts: &Facts) -> Vec<IdleRank> {
    let parsed = facts.jobs.idle.iter().filter_map(|text| text.split_once(' '));
    let is_running = |job: &str| facts.jobs.ranks.iter().any(|rank| rank.job == job && !rank.killed);
    let records: Vec<Record> = open_records(&facts.jobs.recorded).collect();
    let of_job = |(job, text): (&str, &str)| {
        let record = records.iter().find(|record| record.id == job);
        let idle = IdleRank::parse(node, text)?;
        Some(IdleRank { role: record.and_then(|record| record.role_of(idle.rank)), ..idle })
    };
    let mut idle: Vec<IdleRank> = parsed.filter(|(job, _)| is_running(job)).filter_map(of_job).collect();
    idle.sort_by_key(|idle| idle.rank);
    idle
}

/// Formats the jobs of a node, with their ranks there that make no progress.
fn jobs(status: &NodeStatus) -> String {
    let idle = idle_rank::summary(&status.idle, now()).map_or_else(String::new, |idle| format!(" ({idle})"));
    cell((!status.jobs.is_empty()).then(|| status.jobs.join(", "))) + &idle
}

/// Formats the engine with its version.
fn engine(status: &NodeStatus) -> String {
    match status.engine_name.zip(status.engine.as_ref()) {
        None if status.worker.is_some() => "processes".to_owned(),
        engine => cell(engine.map(|(name, version)| name.with(version))),
    }
}

/// Formats the start of the image's id, as `docker images` does.
fn image(status: &NodeStatus) -> String {
    let short = |id: &String| id.trim_start_matches("sha256:").chars().take(12).collect();
    cell(status.engine.as_ref().map(|_| status.image.as_ref().map_or("missing".to_owned(), short)))
}

pub(in crate::commands) fn outcome(mut nodes: Vec<NodeEntry<NodeStatus>>, mut failed: Vec<NodeError>) -> Outcome {
    nodes.extend(failed.iter().map(NodeEntry::unreached));
    failed.extend(nodes.iter().filter(|node| node.result.is_some()).filter_map(|node| node.error.clone()));
    let header =
        [key("NODE"), detail(2, "ENGINE"), text("WORKER"), detail(1, "IMAGE"), key("GPUS"), key("SLOTS"), text("JOB")];
    let mut text = node_table(header, &nodes, |node, status| {
        let differs =
            if status.differs.is_empty() { String::new() } else { format!(" ({})", status.differs.join(", ")) };
        vec![
            with_role(node, status.master),
            engine(status),
            cell(status.worker) + &differs,
            image(status),
            status.gpus.as_ref().map_or("unknown".to_owned(), |gpus| GpuDevice::of(gpus).len().to_string()),
            status.slots.to_string(),
            jobs(status),
        ]
    });
    let drained = |node: &NodeEntry<NodeStatus>| Some((node.node.clone(), node.result.as_ref()?.drained.clone()?));
    text.extend(nodes.iter().filter_map(drained).map(|(node, drained)| format!("{node} is {drained}\n")));
    let failed_gpus =
        |node: &NodeEntry<NodeStatus>| Some((node.node.clone(), node.result.as_ref()?.nvidia_smi.clone()?));
    text.extend(nodes.iter().filter_map(failed_gpus).map(|(node, why)| format!("{node}: nvidia-smi failed: {why}\n")));
    let peers = |node: &'_ NodeEntry<NodeStatus>| node.result.as_ref().and_then(|status| status.network.clone());
    let peers: Vec<_> = nodes.iter().filter_map(|node| Some((node.node.as_str(), peers(node)?))).collect();
    text.extend(rules::summary(&peers.iter().map(|(node, peers)| (*node, peers)).collect()));
    let findings = nodes.iter().filter_map(|node| node.result.as_ref());
    let findings = findings.flat_map(|status| status.findings.clone()).collect();
    text.extend(fold(findings).iter().map(|finding| format!("{finding}\n")));
    let done = nodes.iter().filter(|node| node.ok).count();
    Outcome::new(Verdict::Nodes { done, failed: &failed }, text, Nodes { nodes })
}
