//! `hvdctl status`.

use super::Outcome;
use super::context::{Context, node_table, with_role};
use super::output::{NodeEntry, NodeStatus, Nodes};
use crate::cluster::nodes::{Member, NodeResults, ObservedNode, observe_parts};
use crate::error::{Error, NodeError, Verdict};
use crate::inventory::Inventory;
use crate::node::network;
use crate::render::table::cell;
use crate::worker::apply;
use crate::worker::plan;

/// `status`.
pub async fn run(context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let observe = async |member: Member| {
        let (facts, runtime) = observe_parts(target.cluster(), &member, events).await;
        let facts = facts?;
        // without the engine the rest of the row is still useful
        let status = NodeStatus {
            master: member.node.master,
            engine: "–".into(),
            worker: "–",
            differs: Vec::new(),
            image: "–".into(),
            gpus: facts.gpus.len().to_string(),
            slots: network::slots(&member.node, &facts),
            job: plan::running_jobs(&target.cluster().name, &facts, &[]),
            drained: facts.drained.clone(),
        };
        let name = member.node.name.clone();
        Ok(match runtime {
            Ok(runtime) => {
                let status = with_engine(status, &target.inventory, &ObservedNode { member, facts, runtime });
                NodeEntry::reached(&name, true, status)
            }
            Err(error) => {
                events.failed(&error);
                NodeEntry { error: Some(error), ..NodeEntry::reached(&name, false, status) }
            }
        })
    };
    let NodeResults { ok: nodes, failed } = context.connect().await?.then(events, observe).await;
    Ok(outcome(nodes, failed))
}

/// Adds what the engine reports.
fn with_engine(status: NodeStatus, inventory: &Inventory, observed: &ObservedNode) -> NodeStatus {
    let (cluster, runtime) = (&inventory.cluster, &observed.runtime);
    let job = plan::running_jobs(&cluster.name, &observed.facts, &runtime.containers);
    let planned = apply::desired(inventory, observed).and_then(|desired| apply::plan(cluster, observed, &desired));
    let (worker, differs) = plan::worker_status(cluster, &runtime.containers, planned.as_deref().ok());
    let image = runtime.image.as_ref().map_or("missing", |image| {
        let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
        id.get(..12).unwrap_or(id)
    });
    NodeStatus { engine: runtime.engine.version.clone(), worker, differs, image: image.to_owned(), job, ..status }
}

pub(super) fn outcome(mut nodes: Vec<NodeEntry<NodeStatus>>, mut failed: Vec<NodeError>) -> Outcome {
    nodes.extend(failed.iter().map(NodeEntry::unreached));
    failed.extend(nodes.iter().filter(|node| node.result.is_some()).filter_map(|node| node.error.clone()));
    let header = ["NODE", "ENGINE", "WORKER", "IMAGE", "GPUS", "SLOTS", "JOB"];
    let mut text = node_table(&header, &nodes, |node, status| {
        let differs =
            if status.differs.is_empty() { String::new() } else { format!(" ({})", status.differs.join(", ")) };
        vec![
            with_role(node, status.master),
            status.engine.clone(),
            format!("{}{differs}", status.worker),
            status.image.clone(),
            status.gpus.clone(),
            status.slots.to_string(),
            cell(status.job.as_ref()),
        ]
    });
    let drained = |node: &NodeEntry<NodeStatus>| Some((node.node.clone(), node.result.as_ref()?.drained.clone()?));
    text.extend(nodes.iter().filter_map(drained).map(|(node, drained)| format!("{node} is {drained}\n")));
    let done = nodes.iter().filter(|node| node.ok).count();
    Outcome::new(Verdict::Nodes { done, failed: &failed }, text, Nodes { nodes })
}
