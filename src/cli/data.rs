//! Arguments of `data`.

use super::Waiting;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// The subcommands of `data`.
#[derive(Debug, Subcommand)]
pub enum Data {
    /// Copy a directory to every node, where ranks read it as /data/NAME
    #[command(after_help = PUSH)]
    Push(DataPush),
    /// Show the data on the nodes, and whether they are the same everywhere
    #[command(after_help = STATUS)]
    Status,
    /// Remove pushed data from every node
    #[command(after_help = REMOVE)]
    Rm(DataRm),
}

/// Options of `data push`.
#[derive(Debug, Args)]
pub struct DataPush {
    /// Directory to push
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Name on the nodes; asks before it replaces other data [default: the directory's name]
    #[arg(long = "as", value_name = "NAME")]
    pub name: Option<String>,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const PUSH: &str = "\
Sends only files that a node lacks or that differ there, and each only once where nodes can pass them on. Files that \
were deleted here are deleted there. Each node proves by hash that it has the same files. An interrupted push \
continues where it stopped. Ignore files do not apply. Asks before it replaces the data of another directory, unless \
-y is given. While jobs run, data can be added but not changed.

Examples:
  hvdctl data push ./imagenet
  hvdctl data push ./imagenet-2026 --as imagenet";

const STATUS: &str = "\
CHANGED: others have changed files on the node. REMOVED: the directory is gone. INCOMPLETE: the last push was \
interrupted. The next push of the directory corrects all of these.

Exit codes: 0 all nodes have the same data; 1 they differ; 3 some nodes cannot be reached; 4 none can.";

/// Options of `data rm`.
#[derive(Debug, Args)]
pub struct DataRm {
    /// Name of the data
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
Asks first, unless -y is given. Refuses while jobs run on the nodes. Removes only files that hvdctl has pushed for \
this cluster; others in the same directory stay.";
