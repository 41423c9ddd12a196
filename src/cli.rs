//! The command line: arguments and help, without behaviour.
// help texts show hosts as [user@]host[:port]
#![allow(rustdoc::broken_intra_doc_links)]

mod bench;
mod data;
mod description;
mod env;
mod export;
mod image;
mod jobs;
mod keys;
mod notebook;
mod pool;
mod queue;
mod run;
mod tools;

use crate::delivery::relay::package::ARGUMENT;
use crate::text::table::columns;
use crate::text::wrap::wrap;
pub use bench::{Bench, BenchPart};
use clap::builder::Resettable;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint};
pub use data::{Data, DataPush, DataRm};
pub use description::{Description, ExitCode, FOR_SLURM, Locks, NodeUse, OutputForm, SignalPolicy};
pub use env::{Env, EnvCreate, EnvRm};
pub use export::{Export, ExportPods, ExportSbatch, ExportedJob};
pub use image::{Image, ImageBuild, ImagePrune, ImagePull, ImagePush, ImageStatus};
pub use jobs::{Attach, Jobs, JobsCommand, Logs, Prune, Report, Stack, Stop, Top};
pub use keys::{Generate, Keys, KeysPush, NewPair, Rotate};
pub use notebook::{ForwardedPort, Notebook};
pub use pool::{Pool, PoolCommand, PoolPick};
pub use queue::{Slurm, SlurmDown, SlurmExec, SlurmUp};
pub use run::{LauncherChoice, Launching, Run, Running, Train, Verify};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
pub use tools::{Exec, Fetch, Hosts, HostsFormat, Shell, Status, StatusFormat};

/// Train one model on many GPU machines over plain SSH and Docker.
#[derive(Debug, Parser)]
#[command(name = "hvdctl", version, max_term_width = WIDEST, after_help = AFTER)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The most columns of a help.
const WIDEST: usize = 100;

// tests/described compares its lists with the descriptions of the commands
const AFTER: &str = "\
Without an inventory (-i, $HVDCTL_INVENTORY, ./inventory.toml, ~/.config/hvdctl/inventory.toml) commands work on this \
machine alone, with its own Docker, except bench, disconnect, env, keys, pool and slurm, which need one. `hvdctl init` \
writes one.

Exit codes: 0 done or nothing to do; 1 failed; 2 wrong usage or inventory, nothing changed; 3 some nodes failed; 4 \
nodes unreachable, nothing changed; 5 nodes locked by another command; 125 attach, exec, notebook, run, shell, slurm \
exec and train: hvdctl itself failed; 130, 143 interrupted, terminated. Otherwise train, run and attach exit with the \
code of the rank that failed first.";

/// The commands by what they are for, as the help shows them.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Set up a cluster", &["init", "keys", "up", "down", "drain", "image", "data", "env"]),
    ("Check and measure it", &["status", "doctor", "verify", "bench", "grade", "pool"]),
    ("Start jobs", &["train", "run", "notebook", "slurm", "export"]),
    ("Show and stop jobs", &["jobs", "attach", "logs", "top", "stack", "report", "stop", "fetch"]),
    ("Work on the nodes", &["exec", "shell", "hosts", "lock", "disconnect"]),
    ("Use hvdctl itself", &["completions", "man", "schema"]),
];

/// Returns a template for the help of hvdctl itself, because clap cannot group commands.
fn grouped_help(command: &clap::Command, width: usize) -> String {
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (title, names) in GROUPS {
        text.push_str(&format!("\n{header}{title}:{header:#}\n"));
        for name in names {
            let Some(command) = command.find_subcommand(name) else { continue };
            let aliases: Vec<_> = command.get_visible_aliases().collect();
            let mut about = command.get_about().map(ToString::to_string).unwrap_or_default();
            if !aliases.is_empty() {
                about.push_str(&format!(" [alias: {}]", aliases.join(", ")));
            }
            let lines = wrap(&about, width.saturating_sub(15).max(20)).join(&format!("\n{:15}", ""));
            text.push_str(&format!("  {literal}{name}{literal:#}{:1$}{lines}\n", "", 13 - name.len()));
        }
    }
    text + &format!("\n{header}Options:{header:#}\n{{options}}{{after-help}}")
}

/// Names the inventory file where `-i` does not.
const INVENTORY_VARIABLE: &str = "HVDCTL_INVENTORY";

/// Options that every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Inventory file
    #[arg(short, long, value_name = "FILE", global = true, env = INVENTORY_VARIABLE, value_hint = ValueHint::FilePath)]
    pub inventory: Option<PathBuf>,
    /// Select nodes: names, node[01-16,20], @group, a,b for both, !c for all but c; for train also ROLE=NODES
    #[arg(long, value_name = "NODES", global = true, allow_hyphen_values = true)]
    pub on: Option<String>,
    /// Print the result as one JSON document (train, run, attach, logs: one line per event)
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colours
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto")]
    pub color: Color,
    /// Pass all control sequences of ranks and nodes to the terminal [default: only colours; others are escaped]
    #[arg(long, global = true)]
    pub raw: bool,
    /// Show only results and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Show every step; twice: also the launcher's output; three times: each operation on each node [env:
    /// HVDCTL_LOG=debug]
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Write each operation on each node to this file
    #[arg(long, value_name = "FILE", global = true, value_hint = ValueHint::FilePath)]
    pub log_file: Option<PathBuf>,
    /// Answer yes to every question
    #[arg(short = 'y', long, global = true)]
    pub yes: bool,
    /// Reject unknown host keys, also at first contact
    #[arg(long, global = true)]
    pub strict: bool,
    /// Ask for the sudo password at the start [default: $HVDCTL_SUDO_PASSWORD_FILE, or ask when a node needs it]
    #[arg(long, global = true, conflicts_with = "yes")]
    pub ask_sudo_pass: bool,
    /// How jobs are started: over SSH on the nodes, or through Slurm [default: ssh; slurm for an inventory with [slurm]
    /// and no nodes]
    #[arg(long, value_name = "SCHEDULER", global = true)]
    pub scheduler: Option<SchedulerChoice>,
    /// Image to use without an inventory [default: $HVDCTL_IMAGE, otherwise horovod/horovod:latest]
    #[arg(long, value_name = "IMAGE", global = true)]
    pub image: Option<String>,
}

/// The scheduler that decides when and where a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchedulerChoice {
    /// hvdctl, on the nodes of the inventory.
    Ssh,
    /// Slurm.
    Slurm,
}

/// The use of colours in output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On terminals; NO_COLOR, CLICOLOR and CLICOLOR_FORCE apply.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write an inventory of machines, with their addresses, cores, GPUs and Docker versions
    Init(Init),
    /// Manage the cluster's keys
    #[command(subcommand)]
    Keys(Keys),
    /// Start or update the worker of every node
    Up(Up),
    /// Remove the containers of every node
    Down(Down),
    /// Take nodes out of running elastic jobs and of all new jobs
    #[command(after_help = DRAIN)]
    Drain(Drain),
    /// Show the state of every node: engine, worker, image, GPUs, running job
    #[command(visible_alias = "ps")]
    Status(Status),
    /// Grade the nodes by their records: checks, speed, lost jobs, restarts
    Grade(Grade),
    /// List the nodes that other owners publish, or pick the best nearby ones
    #[command(args_conflicts_with_subcommands = true)]
    Pool(Pool),
    /// Find problems on and between the nodes that would make a job fail or hang
    #[command(after_help = DOCTOR)]
    Doctor(Doctor),
    /// Verify rank placement, collective communication and GPUs with a real job
    Verify(Verify),
    /// Measure the network between the workers and the collectives of a real job, and report what is slow or wrong
    Bench(Bench),
    /// Compare the image of the nodes, or give all nodes the same one
    #[command(subcommand)]
    Image(Image),
    /// Copy data to every node for all jobs to read; show or remove it
    #[command(subcommand)]
    Data(Data),
    /// Create the same virtualenv on every node without containers; show or remove it
    #[command(subcommand)]
    Env(Env),
    /// Upload a project to every node and train it
    Train(Train),
    /// Run a program that is already in the image
    Run(Run),
    /// Open JupyterLab on the cluster, with a project and the nodes of a job
    #[command(after_help = NOTEBOOK)]
    Notebook(Notebook),
    /// Show jobs, or remove old ones
    #[command(args_conflicts_with_subcommands = true)]
    Jobs(Jobs),
    /// Follow a job from its first line, and exit with its code
    #[command(after_help = ATTACH)]
    Attach(Attach),
    /// Show the output of a job's ranks
    Logs(Logs),
    /// Watch a running job: what each rank and its GPU use, and its last line
    Top(Top),
    /// Show where the ranks of a job are: their stacks, those at the same place together
    Stack(Stack),
    /// Write one HTML file about a job: ranks, GPUs, nodes and metrics over time, and why it failed
    Report(Report),
    /// Stop a job: SIGTERM to its ranks, SIGKILL after the grace period
    Stop(Stop),
    /// Fetch what a job wrote: outputs and checkpoints
    Fetch(Fetch),
    /// Run a command on every node, or in every worker
    Exec(Exec),
    /// Open a shell in hmaster, or in a node's worker
    Shell(Shell),
    /// Close the SSH connections that earlier commands left open
    #[command(after_help = DISCONNECT)]
    Disconnect,
    /// Manage the cluster's queue, a Slurm in containers
    #[command(subcommand)]
    Slurm(Slurm),
    /// Print the nodes in the formats of other tools
    Hosts(Hosts),
    /// Print a job for another scheduler: Kubernetes or Slurm
    #[command(subcommand)]
    Export(Export),
    /// Show or release the locks of the nodes
    #[command(subcommand)]
    Lock(Lock),
    /// Generate shell completions
    Completions(Completions),
    /// Print the manual page
    Man(Man),
    /// Print the JSON Schema of the inventory
    #[command(after_help = SCHEMA)]
    Schema,
}

/// Options of `init`.
#[derive(Debug, Args)]
#[command(after_help = INIT)]
pub struct Init {
    /// Machines as for ssh, [user@]host[:port]; also node[1-4] and [fd00::1]:22 [default: ask]
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname)]
    pub hosts: Vec<String>,
    /// Use the machines in ~/.ssh/config; on a terminal, choose among them
    #[arg(long, conflicts_with = "hosts")]
    pub from_ssh_config: bool,
    /// Use the hosts and slots of a hostfile of Open MPI, DeepSpeed, MPICH or pdsh
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["hosts", "from_ssh_config"])]
    pub from_hostfile: Option<PathBuf>,
    /// Use the hosts and groups of an Ansible inventory in INI form
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["hosts", "from_ssh_config", "from_hostfile"])]
    pub from_ansible: Option<PathBuf>,
    /// File to write [default: that of -i, otherwise inventory.toml]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    /// Do not contact the machines
    #[arg(long)]
    pub no_probe: bool,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = "lab")]
    pub name: String,
    /// User to log in as, unless HOST names one
    #[arg(long, value_name = "USER", value_hint = ValueHint::Username)]
    pub user: Option<String>,
}

const INIT: &str = "\
The first machine becomes the master. --image IMAGE names the image in the file. A machine that cannot be reached is \
written to the file anyway, with ssh's error. Nothing is changed on any machine.

Exit codes: 0 written; 2 wrong usage, or the file exists; 3 written, but some machines could not be reached; 4 \
written, but none could.";

const SCHEMA: &str = "\
hvdctl schema > inventory.schema.json, and as the first line of the inventory: #:schema ./inventory.schema.json
Editors with taplo (such as Even Better TOML) then complete and check the file.";

const ATTACH: &str = "\
Ctrl-C leaves the job running; `hvdctl stop` stops it.

Exit codes: those of `train`.";

const NOTEBOOK: &str = "\
The job keeps its nodes until JupyterLab is shut down, or until Ctrl-C or `hvdctl stop` ends it. Then what was written \
to the project is fetched. In a cell, !$HVDCTL_LAUNCH python3 train.py starts ranks on all slots of the job; \
HVDCTL_NODES, HVDCTL_HOSTS and HVDCTL_NP describe the nodes.

Exit codes: 0 the notebook was ended; otherwise those of `train`.";

/// Options of `completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub struct Completions {
    /// Shell to generate completions for
    pub shell: clap_complete::Shell,
}

const COMPLETIONS: &str = "\
bash:  hvdctl completions bash > ~/.local/share/bash-completion/completions/hvdctl
zsh:   hvdctl completions zsh > ~/.zfunc/_hvdctl    # with `fpath+=~/.zfunc` before compinit in ~/.zshrc
fish:  hvdctl completions fish > ~/.config/fish/completions/hvdctl.fish";

/// Options of `man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Write hvdctl.1 and a page for each command to this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// The subcommands of `lock`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Lock {
    /// Show who has locked which nodes, for what, and since when
    Status,
    /// Release the locks; a command that still holds them stops after its current step
    Release,
}

/// Options of commands that may wait for the locks of others.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Waiting {
    /// Wait until the nodes are free, at most this long, e.g. 10m [default: fail at once]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, value_parser = humantime::parse_duration)]
    wait: Option<Option<Duration>>,
}

impl Waiting {
    /// Returns how long the command may wait; `None`: it fails at once.
    pub fn limit(self) -> Option<Duration> {
        self.wait.map(|limit| limit.unwrap_or(Duration::MAX))
    }
}

/// Options of `up`.
#[derive(Debug, Default, Args)]
pub struct Up {
    /// Show what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// End jobs whose workers must be replaced [default: change nothing if there are any]
    #[arg(long)]
    pub force: bool,
    /// Options on waiting for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Fix what is safe to fix: remove containers and processes of ended jobs, push keys
    #[arg(long)]
    pub fix: bool,
    /// Options on waiting for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `grade`.
#[derive(Debug, Args)]
#[command(after_help = GRADE)]
pub struct Grade {
    /// Also write one signed file for each node to the pool of the inventory (docs/reference/pool.md)
    #[arg(long)]
    pub publish: bool,
}

const GRADE: &str = "\
Grades each node from A to F by what verify, doctor, bench and jobs have recorded on it. A node without records is \
new. Nodes of one kind (GPUs, driver, cores) are compared with each other; the best comes first. On a terminal, \
reasons are cut to its width; -v, a pipe and --json show all of them. docs/reference/grade.md has the weights.

Also records jobs that ended while no hvdctl watched them.";

const DOCTOR: &str = "\
Changes nothing without --fix, but records the result in each node's ledger (`hvdctl grade`). Each finding says what \
was found, why it matters and how to fix it. `up`, `verify`, `train` and `run` apply the rules that take no time, and \
stop on their errors.

Exit codes: 0 no errors (warnings and notes do not count); 1 errors; 3 some nodes cannot be reached; 4 none can.";

/// Options of `down`.
#[derive(Debug, Args)]
pub struct Down {
    /// Also remove keys, uploaded projects, records of jobs, the ledgers and the encrypted network
    #[arg(long)]
    pub purge: bool,
    /// Also remove the encrypted network
    #[arg(long)]
    pub network: bool,
    /// Skip unreachable nodes [default: change nothing if there are any]
    #[arg(long)]
    pub skip_offline: bool,
    /// Options on waiting for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `drain`.
#[derive(Debug, Args)]
pub struct Drain {
    /// Nodes to drain, as for --on
    #[arg(value_name = "NODE", required = true, conflicts_with = "on")]
    pub nodes: Vec<String>,
    /// Let jobs use the nodes again
    #[arg(long)]
    pub undo: bool,
}

const DRAIN: &str = "\
Ranks of elastic jobs (-np MIN:MAX) get the grace period to save their state, and the jobs continue without these \
nodes. Jobs of a fixed size, and jobs launched on one of these nodes, stay there until they end.";

const DISCONNECT: &str = "\
A connection stays open for 10 minutes after its last use (cluster.connection_idle_s), and the next command reuses it. \
Changes that a node applies only to new logins, such as a user's groups, take effect after this command. Running \
commands are not disturbed.";

/// Returns whether the process is to be a relay on a node.
pub fn is_relay() -> bool {
    std::env::args_os().skip(1).eq([ARGUMENT])
}

/// Parses the arguments of the process. Ends it with a message if they are wrong, or only help is asked for.
pub fn parse() -> Cli {
    let mut command = Cli::command();
    // an empty variable is one that is not set
    if std::env::var_os(INVENTORY_VARIABLE).is_some_and(|file| file.is_empty()) {
        command = command.mut_arg("inventory", |inventory| inventory.env(Resettable::Reset));
    }
    let width = columns().map_or(WIDEST, |columns| columns.min(WIDEST));
    let help = grouped_help(&command, width);
    let matches = command.help_template(help).get_matches_from(rewrite(std::env::args_os()));
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Rewrites `-np 2` and `-np=2` to `--np`, because clap would parse `-n p`. Arguments after `--` are not changed.
pub fn rewrite(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut ours = true;
    args.into_iter()
        .map(|arg| {
            ours = ours && arg != "--";
            match arg.to_str() {
                Some(text) if ours && (text == "-np" || text.starts_with("-np=")) => format!("-{text}").into(),
                _ => arg,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::argument::ProgramArgument;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(rewrite(line.split(' ').map(OsString::from)))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_has_each_command_in_one_group() {
        let command = Cli::command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let mut all: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
        let help = grouped_help(&command, 60);
        let names = grouped.iter().filter(|name| help.contains(&format!("{name}\u{1b}[0m ")));
        assert_eq!(names.count(), grouped.len(), "{help}");
        let text = console::strip_ansi_codes(&help).into_owned();
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    }

    #[test]
    fn np_in_all_its_spellings() {
        for line in ["hvdctl train p -np 2", "hvdctl train -np=2 p", "hvdctl train p --np 2", "hvdctl train p --np=2"] {
            let Command::Train(train) = parse(line).unwrap().command else { panic!("{line}") };
            assert_eq!(train.np.unwrap().ranks().unwrap().max, 2, "{line}");
        }
        assert!(parse("hvdctl run -- true").is_err(), "-np is required");
        let Command::Train(train) = parse("hvdctl train p").unwrap().command else { panic!() };
        assert_eq!(train.np, None, "roles may have sizes in the project");
        let Command::Train(train) = parse("hvdctl train p --best 2").unwrap().command else { panic!() };
        assert_eq!((train.np, train.running.best), (None, Some(2)), "it has all slots of its nodes");
    }

    #[test]
    fn a_short_time_to_stall_is_not_for_ever() {
        for (typed, seconds) in [("0s", 0), ("1ms", 1), ("300ms", 1), ("1s", 1), ("1500ms", 2), ("30m", 1800)] {
            let line = format!("hvdctl run -np 2 --stall-timeout {typed} -- true");
            let Command::Run(run) = parse(&line).unwrap().command else { panic!("{line}") };
            assert_eq!(run.running.stall_timeout, Some(Duration::from_secs(seconds)), "{typed}");
        }
    }

    #[test]
    fn what_follows_the_dashes_is_the_programs() {
        let Command::Train(train) = parse("hvdctl train p -np 2 -- python -np=3 -v --json -- x").unwrap().command
        else {
            panic!()
        };
        assert_eq!(train.command, ["python", "-np=3", "-v", "--json", "--", "x"].map(ProgramArgument::from));
    }
}
