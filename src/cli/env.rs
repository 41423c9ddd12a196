//! Arguments of `env`.

use super::Waiting;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// The subcommands of `env`.
#[derive(Debug, Subcommand)]
pub enum Env {
    /// Make the same virtualenv on every node, as the login
    #[command(after_help = CREATE)]
    Create(EnvCreate),
    /// Show the virtualenvs of the nodes, and whether they are the same
    #[command(after_help = LIST)]
    List,
    /// Remove a virtualenv from every node
    #[command(after_help = REMOVE)]
    Rm(EnvRm),
}

/// Options of `env create`.
#[derive(Debug, Args)]
pub struct EnvCreate {
    /// pylock.toml, uv.lock or a requirements file [default: the first of pylock.toml, uv.lock, requirements.txt that
    /// the current directory has]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Name of the virtualenv on the nodes
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub name: String,
    /// Version of Python, or a program on the nodes: 3.12, /opt/python/bin/python3 [default: python3 there, else uv's]
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<String>,
    /// Send the wheels of this directory, and let nodes download nothing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub wheels: Option<PathBuf>,
    /// Time limit on each node, e.g. 10m or 2h; 0s: none
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// Whether it waits for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const CREATE: &str = "\
For nodes without containers (runtime = \"process\" in the inventory). uv installs the packages where a node has it, \
else pip in a venv of python3; pylock.toml needs uv or pip 26.1. uv.lock needs uv on this machine, and its project is \
left out: `train` uploads it. Nothing is done where the node has the same virtualenv already. Jobs that run keep the \
virtualenv that they began with. At the end it prints the line for `activate` in the inventory.

Ctrl-C ends pip and uv on the nodes, and what they have made is removed.

Examples:
  hvdctl env create
  hvdctl env create train/requirements.txt --python 3.12
  hvdctl env create --wheels wheels          # nodes without internet

Exit codes: 0 all nodes have the same packages; 1 they differ, or none could be made; 3 some nodes failed.";

const LIST: &str = "\
INCOMPLETE are those that were interrupted, CREATING those that a command makes now, and BROKEN those whose Python \
does not run any more; the next `env create` makes them again.

Exit codes: 0 all nodes have the same virtualenvs; 1 they differ; 3 some nodes cannot be reached; 4 none can.";

/// Options of `env rm`.
#[derive(Debug, Args)]
pub struct EnvRm {
    /// Name of the virtualenv
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// Whether it waits for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const REMOVE: &str = "\
Asks first, unless -y is given. Refuses where a process has activated the virtualenv.";
