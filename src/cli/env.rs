//! Arguments of `env`.

use super::Waiting;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// The subcommands of `env`.
#[derive(Debug, Subcommand)]
pub enum Env {
    /// Create the same virtualenv on every node, as the login user
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
    /// pylock.toml, uv.lock or a requirements file [default: the first of pylock.toml, uv.lock, requirements.txt in the
    /// current directory]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Name of the virtualenv on the nodes
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub name: String,
    /// Python version, or a program on the nodes: 3.12, /opt/python/bin/python3 [default: the node's python3, otherwise
    /// uv's]
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<String>,
    /// Send the wheels in this directory; nodes download nothing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub wheels: Option<PathBuf>,
    /// Time limit on each node, e.g. 10m or 2h; 0s: none
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const CREATE: &str = "\
For nodes without containers (runtime = \"process\" in the inventory). uv installs the packages on nodes that have it, \
otherwise pip in a venv of python3. pylock.toml needs uv or pip 26.1. uv.lock needs uv on this machine; its own \
project is left out, because `train` uploads it. Nodes that already have the same virtualenv are left as they are. \
Running jobs keep the virtualenv that they started with. Prints the line for `activate` in the inventory at the end.

Ctrl-C stops pip and uv on the nodes and removes what they created.

Examples:
  hvdctl env create
  hvdctl env create train/requirements.txt --python 3.12
  hvdctl env create --wheels wheels          # nodes without internet

Exit codes: 0 all nodes have the same packages; 1 they differ, or none could be created; 3 some nodes failed.";

const LIST: &str = "\
INCOMPLETE: its creation was interrupted. CREATING: a command is creating it now. BROKEN: its Python no longer runs. \
The next `env create` recreates incomplete and broken ones.

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
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const REMOVE: &str = "\
Asks first, unless -y is given. Refuses where a process has activated the virtualenv.";
