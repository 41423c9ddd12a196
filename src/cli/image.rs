//! Arguments of `image`.

use super::Waiting;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// The subcommands of `image`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Compare the image of the nodes
    #[command(after_help = STATUS)]
    Status(ImageStatus),
    /// Give all nodes the same image, without a registry
    #[command(after_help = PUSH)]
    Push(ImagePush),
    /// Pull an image from its registry on every node, with this machine's login
    #[command(after_help = PULL)]
    Pull(ImagePull),
    /// Build the image that a project needs, and give it to all nodes
    #[command(after_help = BUILD)]
    Build(ImageBuild),
    /// Remove images of earlier setups
    #[command(after_help = PRUNE)]
    Prune(ImagePrune),
}

/// Options of `image status`.
#[derive(Debug, Args)]
pub struct ImageStatus {
    /// Image [default: the cluster's]
    #[arg(value_name = "IMAGE")]
    pub name: Option<String>,
}

const STATUS: &str = "\
Nodes with the same CONTENT have the same layers and environment; ids may differ between engines. LACKS counts the \
layers that a node lacks, compared with the image that most nodes have.

Exit codes: 0 all nodes have the same image; 1 it is missing or differs; 3 some nodes cannot be reached; 4 none can.";

/// Options of `image push`.
#[derive(Debug, Args)]
pub struct ImagePush {
    /// Image [default: the cluster's]
    #[arg(value_name = "IMAGE")]
    pub name: Option<String>,
    /// Node that has it, file of `docker save` (also compressed, a directory or `-`), or `local` for this machine's
    /// engine [default: a selected node, otherwise local]
    #[arg(long, value_name = "NODE|FILE|local", value_hint = ValueHint::AnyPath)]
    pub from: Option<String>,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const PUSH: &str = "\
The engine of each node that lacks the image pulls it from this process over the SSH connection: only missing layers, \
each verified by its digest. Nothing is installed, and nothing but the image is left behind.

Examples:
  hvdctl image push
  hvdctl image push team/app:2 --from node1
  hvdctl --on '!node1' image push team/app:2 --from app.tar.gz";

/// Options of `image pull`.
#[derive(Debug, Args)]
pub struct ImagePull {
    /// Image [default: the cluster's]
    #[arg(value_name = "IMAGE")]
    pub name: Option<String>,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const PULL: &str = "\
Uses what `docker login` has stored on this machine: $DOCKER_CONFIG/config.json or ~/.docker/config.json, and the \
programs that it names (docker-credential-...). Each engine gets the login for its pull only; nothing is stored on a \
node. `up` pulls in the same way.

Examples:
  hvdctl image pull
  hvdctl image pull registry.example.com/team/app:2";

/// Options of `image build`.
#[derive(Debug, Args)]
pub struct ImageBuild {
    /// Project directory; its hvdctl.toml defines what to build [default: only OpenSSH is added]
    #[arg(value_hint = ValueHint::DirPath)]
    pub project: Option<PathBuf>,
    /// Time limit of each step
    #[arg(long, value_name = "SPAN", default_value = "2h", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const BUILD: &str = "\
The commands of `setup` run one after the other in a container of the cluster's image on the master, as root, with the \
inventory's environment, in a directory with the project's `setup_files`. OpenSSH is installed first if the image \
lacks it. The result is named hvdctl/NAME:HASH; if it exists, nothing is done. `train` builds and uses it \
automatically. -v shows the output.

hvdctl.toml:
  setup = [\"pip install -r requirements.txt\", \"apt-get update && apt-get install -y libsndfile1\"]
  setup_files = [\"requirements.txt\", \"mylib\"]    # files, directories and patterns
  build = \"Dockerfile\"    # replaces the cluster's image; built on the master from project files";

/// Options of `image prune`.
#[derive(Debug, Args)]
pub struct ImagePrune {
    /// Also remove the newest image of each project
    #[arg(long)]
    pub all: bool,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

const PRUNE: &str = "\
Removes the images hvdctl/NAME:HASH of this cluster that no container uses, except the newest one of each project. \
`train` and `image build` build a missing one again. Images of other clusters stay, as do images of earlier versions \
of hvdctl, which do not record their cluster.";
