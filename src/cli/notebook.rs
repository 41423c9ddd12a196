//! Arguments of `notebook`.

use super::Waiting;
use super::run::{Launching, name, variable};
use clap::{Args, ValueHint};
use std::num::NonZeroU16;
use std::path::PathBuf;

/// The options that say how a notebook is started.
const NEW: [&str; 11] =
    ["launcher", "controller", "gloo", "mpi", "sbatch", "env", "env_file", "gpus_per_node", "name", "no_setup", "wait"];

/// A port of this machine that leads to a port of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardedPort {
    /// The port of this machine.
    pub here: u16,
    /// The port of the node.
    pub there: u16,
}

/// Reads `[HERE:]PORT`.
fn forwarded(text: &str) -> Result<ForwardedPort, String> {
    let number = |text: &str| {
        let number = text.parse().ok().filter(|port: &u16| *port > 0);
        number.ok_or_else(|| "expected PORT or HERE:PORT, each from 1 to 65535".to_owned())
    };
    let (here, there) = text.split_once(':').unwrap_or((text, text));
    Ok(ForwardedPort { here: number(here)?, there: number(there)? })
}

/// Options of `notebook`.
#[derive(Debug, Args)]
pub struct Notebook {
    /// Project directory; uploaded to every node; JupyterLab starts in it
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub project: PathBuf,
    /// Launch options of $HVDCTL_LAUNCH
    #[command(flatten)]
    pub launching: Launching,
    /// Port on this machine [default: 8888, or the next free one]
    #[arg(long, value_name = "PORT")]
    pub port: Option<NonZeroU16>,
    /// Let a port of this machine lead to this port of the notebook's node, such as TensorBoard's 6006: PORT, or
    /// HERE:PORT; may be repeated
    #[arg(long, value_name = "[HERE:]PORT", value_parser = forwarded)]
    pub forward: Vec<ForwardedPort>,
    /// Open it in this machine's browser
    #[arg(long)]
    pub open: bool,
    /// Open a running notebook again, after its terminal or the connection was lost
    #[arg(long, value_name = "JOB", conflicts_with_all = NEW)]
    pub attach: Option<String>,
    /// Leave what was written on the nodes; `hvdctl fetch` fetches it later
    #[arg(long)]
    pub no_fetch: bool,
    /// Set a variable for the cells and ranks: NAME=VALUE, or NAME to pass its local value
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Set the variables of this file for the cells and ranks, as in a .env file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub env_file: Option<PathBuf>,
    /// Allocate only K GPUs (or slots, without GPUs) of each node; 0: none, on the first node alone [default: whole
    /// nodes]
    #[arg(long, value_name = "K")]
    pub gpus_per_node: Option<u32>,
    /// Name of the job
    #[arg(long, value_name = "NAME", default_value = "notebook", value_parser = name)]
    pub name: String,
    /// Use the cluster's image as it is; ignore `setup` and `build` in hvdctl.toml
    #[arg(long)]
    pub no_setup: bool,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}
