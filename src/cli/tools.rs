//! Arguments of `exec`, `shell`, `fetch` and `hosts`.

use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// Options of `exec`.
#[derive(Debug, Args)]
#[command(after_help = EXEC)]
pub struct Exec {
    /// Run it in each node's worker, as root
    #[arg(short = 'c', long)]
    pub container: bool,
    /// Run it as root on the nodes [default: as the login user]
    #[arg(long, conflicts_with = "container")]
    pub root: bool,
    /// Time limit on each node, e.g. 90s or 2h; 0s: none
    #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Program and its arguments; for shell syntax, sh -c
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

const EXEC: &str = "\
Examples:
  hvdctl exec -- nvidia-smi -L
  hvdctl exec -c -- python -c 'import torch; print(torch.__version__)'
  hvdctl exec --root --on '!node1' -- sh -c 'df -h /opt | tail -n 1'

Changes that a program makes in a container are lost with it. Install packages with `setup` in a project's hvdctl.toml \
(hvdctl image build).
Equal output of several nodes is shown once. The program's standard input is empty, and it is stopped when hvdctl \
exits. At most 1 MiB of each node's output is shown, with a note if there was more.

Exit codes: the largest of all nodes; 124 if the time limit was exceeded; 125 if hvdctl itself or a node failed.";

/// Options of `shell`.
#[derive(Debug, Args)]
#[command(after_help = SHELL)]
pub struct Shell {
    /// Node whose worker to enter [default: hmaster]
    pub node: Option<String>,
}

const SHELL: &str = "\
Without NODE, the shell runs in the hmaster of the newest running job, or else in a new container like it, which is \
removed at the end. The container has the cluster's keys, a hostfile and an ssh that knows the workers:
  horovodrun -np 2 -p 12345 -hostfile /root/hostfile python train.py

What you install in a container is lost with it. Install packages with `setup` in a project's hvdctl.toml (hvdctl \
image build).

Exit codes: that of the shell; 2 without a terminal; 125 if hvdctl itself failed.";

/// Options of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: StatusFormat,
}

/// A form of the status of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    /// A table
    Table,
    /// Metrics for a textfile collector of Prometheus
    Prometheus,
}

/// Options of `fetch`.
#[derive(Debug, Args)]
#[command(after_help = FETCH)]
pub struct Fetch {
    /// Job id, a prefix of it, or a name [default: the newest with a project]
    pub job: Option<String>,
    /// Directory to write to [default: ./NAME-ID]
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Overwrite files that were not fetched
    #[arg(long)]
    pub force: bool,
    /// Fetch what the job wrote outside /workspace and other mounts, into DIR/NODE [default: ./NAME-ID-container]
    #[arg(long)]
    pub from_container: bool,
    /// Fetch only from the nodes that have ranks of this role
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
}

const FETCH: &str = "\
Fetches files that are new or changed in the project's directory on the job's nodes: outputs and checkpoints. After an \
interruption the same command fetches what is missing. If nodes wrote different contents under one name, the file of \
rank 0's node keeps the name, and the others go to DIR/NODE.

--from-container fetches what a job wrote elsewhere in its containers. Each node keeps the newest container with such \
files; a worker that jobs share keeps them until it is recreated.

Examples:
  hvdctl fetch                       # the newest job, into ./NAME-ID
  hvdctl fetch digits -o results
  hvdctl fetch digits --from-container
  hvdctl train ./digits -np 4 --fetch results";

/// Options of `hosts`.
#[derive(Debug, Args)]
#[command(after_help = HOSTS)]
pub struct Hosts {
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "horovod")]
    pub format: HostsFormat,
    /// Print only the N best free nodes of one kind, by their grades, the best first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub best: Option<u32>,
}

const HOSTS: &str = "\
Examples:
  horovodrun -H \"$(hvdctl hosts)\" -np 2 python train.py
  hvdctl hosts --format mpi > hostfile
  hvdctl hosts --format ssh > ssh_config && ssh -F ssh_config node2
  eval \"$(hvdctl hosts --format env)\"
  horovodrun -H \"$(hvdctl hosts --best 4)\" -np 32 python train.py

The nodes are contacted only for --best and slurm-conf, or if the inventory does not give their slots.";

/// The output format of `hosts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostsFormat {
    /// For horovodrun -H: node1:1,node2:1
    Horovod,
    /// For mpirun and horovodrun -hostfile: node1 slots=1, one line each
    Mpi,
    /// For ssh -F: one Host for each node
    Ssh,
    /// For a shell: export HVDCTL_HOSTS=..., and others
    Env,
    /// For deepspeed --hostfile: node1 slots=1, one line each
    Deepspeed,
    /// For PyTorch: the torchrun command of each node
    Torchrun,
    /// For Slurm's tools: node[1-2]
    Slurm,
    /// For administrators of Slurm: the nodes' lines of slurm.conf and gres.conf
    SlurmConf,
    /// For tf.distribute: the TF_CONFIG of each rank
    TfConfig,
}
