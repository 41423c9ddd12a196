//! `hvdctl slurm status`.

use super::master;
use crate::commands::Outcome;
use crate::commands::context::{Context, node_table};
use crate::document::{NodeEntry, Nodes};
use crate::error::Error;
use crate::slurm::daemons::{self, NodeState};
use crate::text::table::{cell, key, note, text};
use schemars::JsonSchema;
use serde::Serialize;

/// `slurm status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SlurmStatus {
    /// The nodes.
    #[serde(flatten)]
    pub nodes: Nodes<NodeState>,
    /// How many jobs run.
    pub running: usize,
    /// How many wait.
    pub waiting: usize,
}

/// `slurm status`.
pub async fn run(context: &Context) -> Result<Outcome, Error> {
    let master = master(context).await?;
    let asked = async {
        let runtime = master.runtime().await?;
        daemons::check_up(context.target.cluster(), &runtime).await?;
        Ok::<_, Error>((daemons::states(&runtime).await?, daemons::jobs(&runtime).await?))
    };
    let (nodes, jobs) = context.session.cancellation.run(asked).await?;
    Ok(outcome(nodes, &jobs))
}

/// `jobs`: their states.
pub(crate) fn outcome(nodes: Vec<(String, NodeState)>, jobs: &[String]) -> Outcome {
    let nodes: Vec<_> = nodes.into_iter().map(|(name, node)| NodeEntry::new(&name, true, node)).collect();
    let header = [key("NODE"), text("STATE"), key("SLOTS"), text("GRES"), note("REASON")];
    let mut text = node_table(header, &nodes, |name, node: &NodeState| {
        let slots = format!("{}/{}", node.used, node.slots);
        vec![name.to_owned(), node.state.clone(), slots, cell(node.gres.as_ref()), cell(node.reason.as_ref())]
    });
    let waiting = jobs.iter().filter(|state| *state == "PENDING").count();
    let running = jobs.len() - waiting;
    text.push_str(&format!("{running} running, {waiting} waiting: hvdctl jobs\n"));
    Outcome::ok(text, SlurmStatus { nodes: Nodes { nodes }, running, waiting })
}
