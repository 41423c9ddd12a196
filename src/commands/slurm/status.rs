//! `hvdctl slurm status`.

use super::master;
use crate::commands::Outcome;
use crate::commands::context::{Context, node_table};
use crate::document::{NodeEntry, Nodes};
use crate::error::Error;
use crate::schedule::queue::daemons::{self, QueueNode};
use crate::text::nodeset;
use crate::text::table::{cell, key, note, text};
use schemars::JsonSchema;
use serde::Serialize;

/// `slurm status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SlurmStatus {
    /// The nodes.
    #[serde(flatten)]
    pub nodes: Nodes<QueueNode>,
    /// The number of running jobs.
    pub running: usize,
    /// The number of waiting jobs.
    pub waiting: usize,
}

/// `slurm status`.
pub async fn run(context: &Context) -> Result<Outcome, Error> {
    let master = master(context).await?;
    let asked = async {
        let runtime = master.runtime().await?;
        daemons::check_up(context.target.cluster(), &runtime).await?;
        let cluster = context.target.cluster();
        let asked =
            tokio::join!(daemons::states(&runtime), daemons::jobs(&runtime), daemons::with_key(cluster, &runtime));
        let (states, jobs, with_key) = (asked.0?, asked.1?, asked.2?.unwrap_or_default());
        let states = states.into_iter().map(|(name, state)| {
            let has_old_key = !with_key.contains(&name);
            (name, QueueNode { has_old_key, ..state })
        });
        Ok::<_, Error>((states.collect(), jobs))
    };
    let (nodes, jobs): (Vec<_>, Vec<_>) = context.session.cancellation.run(asked).await?;
    Ok(outcome(nodes, &jobs))
}

/// `jobs`: their states.
pub(crate) fn outcome(nodes: Vec<(String, QueueNode)>, jobs: &[String]) -> Outcome {
    let nodes: Vec<_> = nodes.into_iter().map(|(name, node)| NodeEntry::new(&name, true, node)).collect();
    let header = [key("NODE"), text("STATE"), key("SLOTS"), text("GRES"), note("REASON")];
    let mut text = node_table(header, &nodes, |name, node: &QueueNode| {
        let slots = format!("{}/{}", node.used, node.slots);
        vec![name.to_owned(), node.state.clone(), slots, cell(node.gres.as_ref()), cell(node.reason.as_ref())]
    });
    let waiting = jobs.iter().filter(|state| *state == "PENDING").count();
    let running = jobs.len() - waiting;
    text.push_str(&format!("{running} running, {waiting} waiting: hvdctl jobs\n"));
    let has_old_key = |entry: &&NodeEntry<QueueNode>| entry.result.as_ref().is_some_and(|node| node.has_old_key);
    let old: Vec<&str> = nodes.iter().filter(has_old_key).map(|entry| entry.node.as_str()).collect();
    if !old.is_empty() {
        text.push_str(&format!(
            "{}: an old key of Slurm's daemons, which hvdctl slurm up replaces\n",
            nodeset::fold(&old)
        ));
    }
    Outcome::ok(text, SlurmStatus { nodes: Nodes { nodes }, running, waiting })
}
