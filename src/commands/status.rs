//! `hvdctl status`.

use super::{Context, Outcome};
use crate::cluster::nodes::{EngineSeen, Member, Observed, connect, each, look, split};
use crate::error::{Error, Kind, NodeError, exit};
use crate::inventory::Inventory;
use crate::node::network;
use crate::render::table::table;
use crate::worker::apply;
use crate::worker::plan::{self, Workspace};
use serde::Serialize;
use serde_json::{Value, json};

/// A node's row.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) node: String,
    pub(super) ok: bool,
    pub(super) reachable: bool,
    pub(super) master: bool,
    pub(super) engine: String,
    pub(super) worker: &'static str,
    /// In what it differs.
    pub(super) differs: Vec<String>,
    pub(super) image: String,
    pub(super) gpus: String,
    pub(super) slots: u32,
    pub(super) job: Option<String>,
}

/// `status`.
pub async fn run(context: Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let cluster = target.cluster();
    let (members, mut failed) = split(&events, connect(&target, &events).await?);
    let unreachable = failed.iter().filter(|e| e.kind == Kind::Unreachable).count();
    let looked = each(members, async |member: Member| {
        let (facts, docker) = look(cluster, &member, &events).await;
        let facts = facts?;
        let row = match docker {
            Ok(docker) => row(&target.inventory, &Observed { member, facts, docker }),
            // without an engine the rest of the row still says something
            Err(error) => {
                return Ok((
                    Row {
                        node: member.node.name.clone(),
                        ok: false,
                        reachable: true,
                        master: member.node.master,
                        engine: "–".into(),
                        worker: "–",
                        differs: Vec::new(),
                        image: "–".into(),
                        gpus: facts.gpus.len().to_string(),
                        slots: network::slots(&member.node, &facts),
                        job: None,
                    },
                    Some(error),
                ));
            }
        };
        Ok((row, None))
    })
    .await;
    let (rows, bad) = split(&events, looked);
    failed.extend(bad);
    let (rows, engines): (Vec<Row>, Vec<Option<NodeError>>) = rows.into_iter().unzip();
    failed.extend(engines.into_iter().flatten());

    let good = rows.iter().filter(|r| r.ok).count();
    let code = match (failed.len(), good) {
        (0, _) => exit::OK,
        (_, 0) if unreachable == failed.len() => exit::UNREACHABLE,
        (_, 0) => exit::FAILED,
        _ => exit::PARTLY,
    };
    Ok(Outcome { code, text: text(&rows, &failed), document: document(&rows, &failed), failed })
}

fn row(inventory: &Inventory, seen: &Observed) -> Row {
    let cluster = &inventory.cluster;
    let docker: &EngineSeen = &seen.docker;
    let job = plan::running_jobs(&cluster.name, &docker.containers);
    let planned =
        apply::desired(inventory, seen).and_then(|desired| apply::plan(cluster, seen, &desired, &Workspace::Any));
    let (worker, differs) = plan::standing(cluster, &docker.containers, planned.as_deref().ok());
    let image = docker.image_id.as_deref().map_or("missing", |id| {
        let id = id.strip_prefix("sha256:").unwrap_or(id);
        id.get(..12).unwrap_or(id)
    });
    Row {
        node: seen.name().to_owned(),
        ok: true,
        reachable: true,
        master: seen.member.node.master,
        engine: docker.engine.version.clone(),
        worker,
        differs,
        image: image.to_owned(),
        gpus: seen.facts.gpus.len().to_string(),
        slots: network::slots(&seen.member.node, &seen.facts),
        job,
    }
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
    cells.extend(without_row.map(|e| {
        let what = if e.kind == Kind::Unreachable { "unreachable" } else { "failed" };
        vec![e.node.clone(), what.into()]
    }));
    table(&["NODE", "ENGINE", "WORKER", "IMAGE", "GPUS", "SLOTS", "JOB"], &cells)
}

pub(super) fn document(rows: &[Row], failed: &[NodeError]) -> Value {
    let mut nodes: Vec<Value> = rows
        .iter()
        .map(|row| {
            let mut value = json!(row);
            if let Some(error) = failed.iter().find(|e| e.node == row.node) {
                value["error"] = json!(error);
            }
            value
        })
        .collect();
    nodes.extend(
        failed
            .iter()
            .filter(|e| rows.iter().all(|r| r.node != e.node))
            .map(|e| json!({ "node": e.node, "ok": false, "reachable": e.kind != Kind::Unreachable, "error": e })),
    );
    json!({ "ok": failed.is_empty(), "nodes": nodes })
}
