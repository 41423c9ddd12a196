//! Arguments of `slurm`.

use super::Waiting;
use clap::{Args, Subcommand};
use std::time::Duration;

/// The subcommands of `slurm`.
#[derive(Debug, Subcommand)]
pub enum Slurm {
    /// Start Slurm on every node, or bring it up to date
    #[command(after_help = UP)]
    Up(SlurmUp),
    /// Show its nodes and jobs
    Status,
    /// Run a Slurm command on the master: squeue, scancel, scontrol, sinfo
    #[command(after_help = EXEC)]
    Exec(SlurmExec),
    /// Remove Slurm from every node
    #[command(after_help = DOWN)]
    Down(SlurmDown),
}

/// Options of `slurm up`.
#[derive(Debug, Args)]
pub struct SlurmUp {
    /// Image with slurmctld, slurmd, munge and Python [default: the cluster's image with these added]
    #[arg(value_name = "IMAGE")]
    pub name: Option<String>,
    /// Time limit for each step of building the image, e.g. 30m
    #[arg(long, value_name = "SPAN", default_value = "30m", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const UP: &str = "\
From then on, train, run and verify submit their jobs to its queue, from every machine. Each job starts when its nodes \
are free, even if the machine that submitted it is off. The ports 6817, 6818 and 20000 to 32767 must be open between \
the nodes.

Examples:
  hvdctl slurm up
  hvdctl train ./digits -np 8 -d
  hvdctl jobs
  hvdctl slurm exec -- squeue";

/// Options of `slurm exec`.
#[derive(Debug, Args)]
pub struct SlurmExec {
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

const EXEC: &str = "\
Examples:
  hvdctl slurm exec -- squeue
  hvdctl slurm exec -- scontrol update jobid=7 priority=1000
  hvdctl slurm exec -- scontrol update nodename=node2 state=drain reason=fan";

/// Options of `slurm down`.
#[derive(Debug, Args)]
pub struct SlurmDown {
    /// Stop running and queued jobs [default: change nothing if there are any]
    #[arg(long)]
    pub force: bool,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const DOWN: &str =
    "Removes its containers and its directory with the queue. Keeps its image and the jobs that have ended.";
