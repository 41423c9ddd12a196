//! `hvdctl slurm`: the cluster's queue.

pub mod down;
pub mod status;
pub mod up;

use super::context::Context;
use super::{Outcome, exec as shown};
use crate::cli::{Slurm, SlurmExec};
use crate::cluster::each_node::NodeResults;
use crate::cluster::exec::{ExecPlace, RemoteProgram, exec};
use crate::cluster::member::Member;
use crate::error::Error;
use crate::schedule::queue::daemons;
use crate::text::quote;

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
        Slurm::Status => status::run(context).await,
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
