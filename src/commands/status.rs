//! `hvdctl status`.

use super::output::{NodeEntry, Nodes};
use super::{Context, Outcome, failed_row};
use crate::cluster::nodes::{Member, Observed, RuntimeState, connect, for_each_node, observe_parts, split};
use crate::error::{Error, NodeError, exit};
use crate::inventory::Inventory;
use crate::node::facts::Drained;
use crate::node::network;
use crate::render::table::table;
use crate::worker::apply;
use crate::worker::plan;
use schemars::JsonSchema;
use serde::Serialize;

/// A node's row.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "NodeStatus")]
pub struct Row {
    #[serde(skip)]
    pub(super) node: String,
    #[serde(skip)]
    pub(super) ok: bool,
    /// Whether it is the master.
    pub(super) master: bool,
    /// The version of the engine; `–` if it does not answer.
    pub(super) engine: String,
    /// The state of the worker, as in the column WORKER in [cli.md](cli.md#status).
    pub(super) worker: &'static str,
    /// How a worker that `up` would replace differs.
    pub(super) differs: Vec<String>,
    /// The start of the image's id, or `missing`.
    pub(super) image: String,
    /// How many GPUs it has, as text.
    pub(super) gpus: String,
    /// Its slots.
    pub(super) slots: u32,
    /// The id of the running job, or null.
    pub(super) job: Option<String>,
    /// Who drained it, or null.
    pub(super) drained: Option<Drained>,
}

/// `status`.
pub async fn run(context: Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let cluster = target.cluster();
    let (members, mut failed) = split(&events, connect(&target, &events).await?);
    let looked = for_each_node(members, async |member: Member| {
        let (facts, docker) = observe_parts(cluster, &member, &events).await;
        let facts = facts?;
        // without an engine the rest of the row is still useful
        let row = Row {
            node: member.node.name.clone(),
            ok: false,
            master: member.node.master,
            engine: "–".into(),
            worker: "–",
            differs: Vec::new(),
            image: "–".into(),
            gpus: facts.gpus.len().to_string(),
            slots: network::slots(&member.node, &facts),
            job: None,
            drained: facts.drained.clone(),
        };
        Ok(match docker {
            Ok(docker) => (with_engine(row, &target.inventory, &Observed { member, facts, docker }), None),
            Err(error) => (row, Some(error)),
        })
    })
    .await;
    let (rows, bad) = split(&events, looked);
    failed.extend(bad);
    let (rows, engines): (Vec<Row>, Vec<Option<NodeError>>) = rows.into_iter().unzip();
    failed.extend(engines.into_iter().flatten());

    let good = rows.iter().filter(|r| r.ok).count();
    Ok(Outcome::new(exit::of_nodes(good, &failed), text(&rows, &failed), &document(&rows, &failed), failed))
}

/// Adds what the engine reports.
fn with_engine(row: Row, inventory: &Inventory, seen: &Observed) -> Row {
    let cluster = &inventory.cluster;
    let docker: &RuntimeState = &seen.docker;
    let job = plan::running_jobs(&cluster.name, &docker.containers);
    let planned = apply::desired(inventory, seen).and_then(|desired| apply::plan(cluster, seen, &desired));
    let (worker, differs) = plan::worker_status(cluster, &docker.containers, planned.as_deref().ok());
    let image = docker.image_id.as_deref().map_or("missing", |id| {
        let id = id.strip_prefix("sha256:").unwrap_or(id);
        id.get(..12).unwrap_or(id)
    });
    Row { ok: true, engine: docker.engine.version.clone(), worker, differs, image: image.to_owned(), job, ..row }
}

fn text(rows: &[Row], failed: &[NodeError]) -> String {
    let mut cells: Vec<Vec<String>> = rows
        .iter()
        .map(|r| {
            vec![
                format!("{}{}", r.node, if r.master { " (master)" } else { "" }),
                r.engine.clone(),
                if r.differs.is_empty() {
                    r.worker.to_owned()
                } else {
                    format!("{} ({})", r.worker, r.differs.join(", "))
                },
                r.image.clone(),
                r.gpus.clone(),
                r.slots.to_string(),
                r.job.clone().unwrap_or_else(|| "–".into()),
            ]
        })
        .collect();
    let without_row = failed.iter().filter(|e| rows.iter().all(|r| r.node != e.node));
    cells.extend(without_row.map(failed_row));
    let mut text = table(&["NODE", "ENGINE", "WORKER", "IMAGE", "GPUS", "SLOTS", "JOB"], &cells);
    text.extend(rows.iter().filter_map(|row| Some(format!("{} is {}\n", row.node, row.drained.as_ref()?))));
    text
}

pub(super) fn document(rows: &[Row], failed: &[NodeError]) -> Nodes<Row> {
    let seen = rows.iter().map(|row| {
        let error = failed.iter().find(|e| e.node == row.node).cloned();
        NodeEntry { error, ..NodeEntry::seen(&row.node, row.ok, row.clone()) }
    });
    let unseen = failed.iter().filter(|e| rows.iter().all(|r| r.node != e.node)).map(NodeEntry::unseen);
    Nodes { ok: failed.is_empty(), nodes: seen.chain(unseen).collect() }
}
