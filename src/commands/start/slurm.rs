//! `hvdctl slurm`: the cluster's queue. This file has `slurm exec` and `slurm status`, and what the subcommands have in
//! common.

pub mod down;
pub mod up;

use crate::cli::{Slurm, SlurmExec};
use crate::cluster::each_node::NodeResults;
use crate::cluster::exec::{ExecPlace, RemoteProgram, exec};
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::nodes::exec as shown;
use crate::commands::shared::context::{Context, node_table};
use crate::document::{NodeEntry, Nodes};
use crate::error::Error;
use crate::schedule::queue::daemons::{self, QueueNode};
use crate::text::table::{cell, key, note, text};
use crate::text::{nodeset, quote};
use schemars::JsonSchema;
use serde::Serialize;

/// Runs a command of the group.
pub async fn run(command: &Slurm, context: &Context) -> Result<Outcome, Error> {
    let target = &context.target;
    if !target.cluster().can().images {
        let hint = "it needs Docker or Podman on the nodes, and runs jobs in containers";
        return Err(Error::usage("the cluster's queue is for nodes with a container engine", hint));
    }
    if target.selected.len() < target.inventory.nodes.len() {
        return Err(Error::usage("hvdctl slurm is for all nodes of the inventory", "leave out --on"));
    }
    match command {
        Slurm::Up(options) => up::run(options, context).await,
        Slurm::Status => status(context).await,
        Slurm::Exec(options) => exec_on_master(options, context).await,
        Slurm::Down(options) => down::run(options, context).await,
    }
}

/// Connects to the master.
async fn master(context: &Context) -> Result<Member, Error> {
    let Context { target, fleet, events, session, .. } = context;
    let master = target.only([target.inventory.master().name.clone()]);
    let mut members = session.cancellation.run(fleet.all(&master, events)).await?;
    Ok(members.remove(0))
}

/// `slurm exec`.
async fn exec_on_master(options: &SlurmExec, context: &Context) -> Result<Outcome, Error> {
    let cluster = context.target.cluster();
    let program = RemoteProgram { command: &options.command, place: ExecPlace::Slurm, limit: None };
    let master = master(context).await?;
    daemons::check_up(cluster, &master.runtime().await?).await?;
    let nodes = NodeResults { ok: vec![master], failed: Vec::new() };
    let outputs = exec(cluster, nodes, &program, &context.events).await;
    Ok(shown::outcome(&quote::command(&options.command), outputs))
}

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
async fn status(context: &Context) -> Result<Outcome, Error> {
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
    Ok(status_outcome(nodes, &jobs))
}

/// `jobs`: their states.
pub(crate) fn status_outcome(nodes: Vec<(String, QueueNode)>, jobs: &[String]) -> Outcome {
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
