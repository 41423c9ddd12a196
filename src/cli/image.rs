//! Arguments of `image`.

use super::Waiting;
use clap::{Args, Subcommand, ValueHint};

/// The subcommands of `image`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Compare the image of the nodes
    #[command(after_help = STATUS)]
    Status(ImageStatus),
    /// Give all nodes the same image, without a registry
    #[command(after_help = PUSH)]
    Push(ImagePush),
}

/// Options of `image status`.
#[derive(Debug, Args)]
pub struct ImageStatus {
    /// Image [default: that of the cluster]
    #[arg(value_name = "IMAGE")]
    pub name: Option<String>,
}

const STATUS: &str = "\
Nodes of the same content have the same layers and environment; ids may differ between engines. LACKS counts the layers that a \
node lacks of the image that most nodes have.

Exit codes: 0 all nodes have the same image; 1 it is missing or differs; 3 some nodes cannot be reached; 4 none can.";

/// Options of `image push`.
#[derive(Debug, Args)]
pub struct ImagePush {
    /// Image [default: that of the cluster]
    #[arg(value_name = "IMAGE")]
    pub name: Option<String>,
    /// Node that has it, file of `docker save`, or `local` for this machine's engine [default: a selected node, else local]
    #[arg(long, value_name = "NODE|FILE|local", value_hint = ValueHint::AnyPath)]
    pub from: Option<String>,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// Whether it waits for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const PUSH: &str = "\
The engine of each node that lacks the image pulls it over the SSH connection from this process: only layers that it does not \
have, each verified by its digest. Nothing is installed, and nothing is left but the image.

Examples:
  hvdctl image push
  hvdctl image push team/app:2 --from node1
  hvdctl --on '!node1' image push team/app:2 --from app.tar";
