//! What may be typed to look into the cluster and to bring things back from it.

use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// Options of `exec`.
#[derive(Debug, Args)]
#[command(after_help = EXEC)]
pub struct Exec {
    /// Inside each node's worker, where it is root's
    #[arg(short = 'c', long)]
    pub container: bool,
    /// As root on the nodes, by the way that hvdctl has it [default: as the login]
    #[arg(long, conflicts_with = "container")]
    pub root: bool,
    /// End it on a node where it takes longer, as in 90s or 2h; 0s: never
    #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// The program and its arguments; for a shell's words say sh -c
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

const EXEC: &str = "\
hvdctl exec -- nvidia-smi -L
hvdctl exec -c -- python -c 'import torch; print(torch.__version__)'
hvdctl exec --root --on '!node1' -- sh -c 'df -h /opt | tail -n 1'

Nodes with equal output are told once, folded and counted. The program has an empty standard input and ends with hvdctl, \
whatever ends that. Of more than 1 MiB that a node writes the rest is left out, and that is said.

Exit codes: the largest of all nodes; 124 for a node where the time was over; 125 where hvdctl itself failed, or a node did.";

/// Options of `shell`.
#[derive(Debug, Args)]
#[command(after_help = SHELL)]
pub struct Shell {
    /// In this node's worker [default: in hmaster]
    pub node: Option<String>,
}

const SHELL: &str = "\
Without NODE it is the hmaster of the newest run that is under way. Without one it is a container like it, with the cluster's \
keys, a hostfile and an ssh that knows the workers; it is removed at the end:
  horovodrun -np 2 -p 12345 -hostfile /root/hostfile python train.py

Exit codes: that of the shell; 2 without a terminal; 125 where hvdctl itself failed.";

/// Options of `fetch`.
#[derive(Debug, Args)]
#[command(after_help = FETCH)]
pub struct Fetch {
    /// Its id, the beginning of it, or a name [default: the newest that has a project]
    pub job: Option<String>,
    /// Where to [default: ./NAME-ID]
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Write over files that are there and were not fetched
    #[arg(long)]
    pub force: bool,
}

const FETCH: &str = "\
What is new in the project's folder on the run's nodes, or not as it was shipped: outputs and checkpoints. Broken off, the same \
command brings what is missing. Where nodes wrote other contents under one name, that of rank 0's node has it, and the others \
are in DIR/NODE.

hvdctl fetch                       the newest run, into ./NAME-ID
hvdctl fetch digits -o results
hvdctl train ./digits -np 4 --fetch results";

/// Options of `hosts`.
#[derive(Debug, Args)]
#[command(after_help = HOSTS)]
pub struct Hosts {
    /// For whom
    #[arg(long, value_name = "FORMAT", default_value = "horovod")]
    pub format: Format,
}

const HOSTS: &str = "\
horovodrun -H \"$(hvdctl hosts)\" -np 2 python train.py
hvdctl hosts --format mpi > hostfile
hvdctl hosts --format ssh > ssh_config && ssh -F ssh_config node2
eval \"$(hvdctl hosts --format env)\"

The nodes are asked only for slots that the inventory does not say.";

/// What `hosts` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For horovodrun -H: node1:1,node2:1
    Horovod,
    /// For mpirun and horovodrun -hostfile: node1 slots=1, a line each
    Mpi,
    /// For ssh -F: a Host for each node
    Ssh,
    /// For a shell: export HVDCTL_HOSTS=..., and others
    Env,
}
