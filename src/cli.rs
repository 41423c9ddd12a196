//! The command line: what may be typed, and nothing of what it does.

use crate::core::inventory::Controller;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Trains one model on many GPU machines over plain SSH and Docker, with Horovod.
#[derive(Debug, Parser)]
#[command(name = "hvdctl", version, max_term_width = 100, after_help = AFTER)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER: &str = "\
Without an inventory (-i, $HVDCTL_INVENTORY, ./inventory.toml, ~/.config/hvdctl/inventory.toml) train, run, verify, up, \
down and status work on this machine alone, with its own Docker.

Exit codes: 0 done or nothing to do; 1 failed; 2 usage or inventory wrong, nothing touched; 3 some nodes failed; \
4 nodes unreachable, nothing changed; 125 train and run: hvdctl itself failed; 130, 143 interrupted, terminated. \
Otherwise train and run end with the program's own code, that of the rank that failed first.";

/// Options that every command takes.
#[derive(Debug, Args)]
pub struct Global {
    /// The inventory
    #[arg(short, long, value_name = "FILE", global = true, env = "HVDCTL_INVENTORY")]
    pub inventory: Option<PathBuf>,
    /// Only these nodes: names, node[01-16,20], a,b to join, !c to take away
    #[arg(long, value_name = "NODES", global = true, allow_hyphen_values = true)]
    pub on: Option<String>,
    /// The result as one JSON document on standard output (train, run: a line per event)
    #[arg(long, global = true)]
    pub json: bool,
    /// Colours
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto")]
    pub color: Color,
    /// Only results and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// More about what is done; twice: what the launcher says too
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Ask nothing
    #[arg(short = 'y', long, global = true)]
    pub yes: bool,
    /// The image, without an inventory [default: $HVDCTL_IMAGE, else horovod/horovod:latest]
    #[arg(long, value_name = "IMAGE", global = true)]
    pub image: Option<String>,
}

/// When colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal that takes them; NO_COLOR, CLICOLOR and CLICOLOR_FORCE hold.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The cluster's key pair
    #[command(subcommand)]
    Keys(Keys),
    /// Bring every node to the desired state; a second run changes nothing
    Up(Up),
    /// Stop and remove what hvdctl made
    Down(Down),
    /// Every node: reachable, engine, worker, image, GPUs, running job
    #[command(visible_alias = "ps")]
    Status,
    /// Prove rank placement, collective communication and GPUs with a real run
    Verify(Verify),
    /// Ship a project to every node and train it
    Train(Train),
    /// Run a program that is already in the image
    Run(Run),
}

/// What is done with keys.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Make the pair where the master has none, and bring every node's key folder to the state it should have
    Push,
}

/// Options of `up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Say what would be done and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Leave nodes out that cannot be reached, instead of changing nothing
    #[arg(long)]
    pub skip_offline: bool,
}

/// Options of `down`.
#[derive(Debug, Args)]
pub struct Down {
    /// Remove keys, shipped projects and records of runs too
    #[arg(long)]
    pub purge: bool,
    /// Leave nodes out that cannot be reached, instead of changing nothing
    #[arg(long)]
    pub skip_offline: bool,
}

/// How ranks are launched.
#[derive(Debug, Args)]
pub struct Launching {
    /// Who starts and connects the ranks [default: cluster.controller]
    #[arg(long, value_name = "CONTROLLER")]
    pub launcher: Option<Launcher>,
    /// The same as --launcher gloo
    #[arg(long, conflicts_with_all = ["launcher", "mpi"])]
    pub gloo: bool,
    /// The same as --launcher mpi
    #[arg(long, conflicts_with = "launcher")]
    pub mpi: bool,
}

/// The launchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Launcher {
    /// horovodrun --gloo
    Gloo,
    /// horovodrun --mpi
    Mpi,
}

impl Launching {
    /// The controller that was asked for, else the cluster's.
    pub fn controller(&self, default: Controller) -> Controller {
        match (self.launcher, self.gloo, self.mpi) {
            (Some(Launcher::Gloo), _, _) | (_, true, _) => Controller::Gloo,
            (Some(Launcher::Mpi), _, _) | (_, _, true) => Controller::Mpi,
            _ => default,
        }
    }
}

/// Options of `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// The number of ranks, also written -np N [default: one on every slot]
    #[arg(long = "np", value_name = "N")]
    pub np: Option<u32>,
    /// How ranks are launched
    #[command(flatten)]
    pub launching: Launching,
    /// Seconds until it is given up
    #[arg(long, value_name = "S", default_value_t = 120)]
    pub timeout: u64,
}

/// Options of `train`.
#[derive(Debug, Args)]
pub struct Train {
    /// The project's folder; it is shipped to every node and seen at /workspace
    pub project: PathBuf,
    /// The number of ranks, also written -np N
    #[arg(long = "np", value_name = "N")]
    pub np: u32,
    /// How ranks are launched
    #[command(flatten)]
    pub launching: Launching,
    /// The program; without it hvdctl.toml's command, else train.py or main.py
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The number of ranks, also written -np N
    #[arg(long = "np", value_name = "N")]
    pub np: u32,
    /// How ranks are launched
    #[command(flatten)]
    pub launching: Launching,
    /// The program
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

impl Command {
    /// Whether it runs a program whose exit code is passed on.
    pub fn runs_a_program(&self) -> bool {
        matches!(self, Command::Train(_) | Command::Run(_))
    }

    /// Whether it may work on this machine alone.
    pub fn works_locally(&self) -> bool {
        !matches!(self, Command::Keys(_))
    }
}

/// `-np 2` and `-np=2` are how Horovod's users write it; clap reads `-n p`. Only words before `--` are hvdctl's.
pub fn rewrite(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut ours = true;
    args.into_iter()
        .map(|arg| {
            ours = ours && arg != "--";
            match arg.to_str() {
                Some(word) if ours && (word == "-np" || word.starts_with("-np=")) => format!("-{word}").into(),
                _ => arg,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(rewrite(line.split(' ').map(OsString::from)))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn np_in_all_its_spellings() {
        for line in ["hvdctl train p -np 2", "hvdctl train -np=2 p", "hvdctl train p --np 2", "hvdctl train p --np=2"] {
            let Command::Train(train) = parse(line).unwrap().command else { panic!("{line}") };
            assert_eq!(train.np, 2, "{line}");
        }
        assert!(parse("hvdctl train p").is_err(), "-np must be said");
    }

    #[test]
    fn what_follows_the_dashes_is_the_programs() {
        let Command::Train(train) = parse("hvdctl train p -np 2 -- python -np=3 -v --json -- x").unwrap().command
        else {
            panic!()
        };
        assert_eq!(train.command, ["python", "-np=3", "-v", "--json", "--", "x"]);
    }
}
