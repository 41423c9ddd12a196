//! Arguments of `data`.

use super::Waiting;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// The subcommands of `data`.
#[derive(Debug, Subcommand)]
pub enum Data {
    /// Put a directory on every node, where ranks read it as /data/NAME
    #[command(after_help = PUSH)]
    Push(DataPush),
    /// Show the data of the nodes, and whether they are the same
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
    /// Name on the nodes; asks before it replaces other data [default: that of the directory]
    #[arg(long = "as", value_name = "NAME")]
    pub name: Option<String>,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// Whether it waits for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const PUSH: &str = "\
Only files that a node lacks or has with other contents are sent, once where nodes can pass them on; what was deleted \
here is deleted \
there. Each node proves by hash that it has the same files. An interrupted push continues where it ended. Ignore files \
do not apply. Asks, unless -y is given, before it replaces data of another directory. While jobs run, new data can be \
added, \
but no data changed.

Examples:
  hvdctl data push ./imagenet
  hvdctl data push ./imagenet-2026 --as imagenet";

const STATUS: &str = "\
CHANGED are data of which others have changed files on the node, REMOVED those whose directory is gone; INCOMPLETE are \
those whose \
last push was interrupted. The next push of the directory corrects that.

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
    /// Whether it waits for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const REMOVE: &str = "\
Asks first, unless -y is given. Refuses while jobs run on the nodes. Removes only files that hvdctl has pushed for \
this cluster; others in \
the same directory stay.";
