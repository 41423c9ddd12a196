//! The command line: what may be typed, and nothing of what it does.

use crate::core::inventory::{Controller, KeyType, variable_name};
use crate::core::lease::Wait;
use crate::core::slots;
use crate::core::trust::Kind;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use regex::bytes::Regex;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

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
down, status, doctor, jobs, attach, logs and stop work on this machine alone, with its own Docker. `hvdctl init` writes one.

Exit codes: 0 done or nothing to do; 1 failed; 2 usage or inventory wrong, nothing touched; 3 some nodes failed; \
4 nodes unreachable, nothing changed; 5 another command holds the nodes; 125 train and run: hvdctl itself failed; 130, 143 interrupted, terminated. \
Otherwise train and run end with the program's own code, that of the rank that failed first.";

/// Options that every command takes.
#[derive(Debug, Args)]
pub struct Global {
    /// The inventory
    #[arg(short, long, value_name = "FILE", global = true, env = "HVDCTL_INVENTORY", value_hint = ValueHint::FilePath)]
    pub inventory: Option<PathBuf>,
    /// Only these nodes: names, node[01-16,20], @group, a,b to join, !c to take away
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
    /// Accept no host key that is not known, not even at first contact
    #[arg(long, global = true)]
    pub strict: bool,
    /// Ask now for the password for sudo on the nodes [else: $HVDCTL_SUDO_PASSWORD_FILE, or asked when a node needs it]
    #[arg(long, global = true, conflicts_with = "yes")]
    pub ask_sudo_pass: bool,
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
    /// Write an inventory: looks at each machine for address, cores, GPUs and Docker
    Init(Init),
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
    /// Find what would make a run fail or hang: on every node, and between every two
    #[command(after_help = DOCTOR)]
    Doctor(Doctor),
    /// Prove rank placement, collective communication and GPUs with a real run
    Verify(Verify),
    /// Ship a project to every node and train it
    Train(Train),
    /// Run a program that is already in the image
    Run(Run),
    /// The runs: id, name, who, state, ranks, nodes, started, lasted, exit code
    #[command(args_conflicts_with_subcommands = true)]
    Jobs(Jobs),
    /// Follow a run from its first line, and end with its exit code
    #[command(after_help = ATTACH)]
    Attach(Attach),
    /// What a run's ranks have written
    Logs(Logs),
    /// End a run: SIGTERM to its ranks, SIGKILL after the grace time; its records stay
    Stop(Stop),
    /// Who is at work on the nodes
    #[command(subcommand)]
    Lock(Lock),
    /// Print what completes hvdctl's words in a shell
    Completions(Completions),
    /// Print the manual page, as in: hvdctl man | man -l -
    Man(Man),
    /// Print the JSON Schema of the inventory, from which editors complete it
    #[command(after_help = SCHEMA)]
    Schema,
}

/// Options of `init`.
#[derive(Debug, Args)]
#[command(after_help = INIT)]
pub struct Init {
    /// Machines as ssh takes them, [user@]host[:port]; also node[1-4] and [fd00::1]:22. Without any it asks
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname)]
    pub hosts: Vec<String>,
    /// Take the names that ~/.ssh/config and what it includes give to machines; on a terminal you pick among them
    #[arg(long, conflicts_with = "hosts")]
    pub from_ssh_config: bool,
    /// The file to write [default: that of -i, else inventory.toml]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Write over a file that is there
    #[arg(long)]
    pub force: bool,
    /// Reach no machine; write only what was named
    #[arg(long)]
    pub no_probe: bool,
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "lab")]
    pub name: String,
    /// The user to log in as, where a HOST names none
    #[arg(long, value_name = "USER", value_hint = ValueHint::Username)]
    pub user: Option<String>,
}

const INIT: &str = "\
The first machine becomes the master. --image IMAGE names the image in the file. A machine that cannot be looked at is \
written all the same, with what ssh said. Nothing is changed on any of them.

Exit codes: 0 written; 2 the file is there already, or words do not fit; 3 written, but some machines could not be looked \
at; 4 written, but none could.";

const SCHEMA: &str = "\
hvdctl schema > inventory.schema.json, and as the first line of the inventory: #:schema ./inventory.schema.json
Editors with taplo (as in Even Better TOML) read that line.";

/// Options of `jobs`.
#[derive(Debug, Args)]
pub struct Jobs {
    /// Something else than listing them
    #[command(subcommand)]
    pub what: Option<JobsCommand>,
    /// Only those that have not ended
    #[arg(short, long)]
    pub running: bool,
}

/// What is done with runs.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// Remove records and logs of ended runs from the nodes
    Prune(Prune),
}

/// Options of `jobs prune`.
#[derive(Debug, Args)]
pub struct Prune {
    /// Keep the newest N that have ended
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep: usize,
    /// Only those that were started longer ago than that, as in 7d or "12h 30m"
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    pub older_than: Option<Duration>,
}

/// Options of `attach`.
#[derive(Debug, Args)]
pub struct Attach {
    /// Its id, the beginning of it, or a name [default: the newest run]
    pub job: Option<String>,
}

const ATTACH: &str = "\
Ctrl-C leaves the run as it is; `hvdctl stop` ends it.

Exit codes: those of `train`.";

/// Options of `stop`.
#[derive(Debug, Args)]
pub struct Stop {
    /// Its id, the beginning of it, or a name [default: the newest that is under way]
    pub job: Option<String>,
}

/// Options of `logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// Its id, the beginning of it, or a name [default: the newest run]
    pub job: Option<String>,
    /// Go on until the run ends
    #[arg(short, long)]
    pub follow: bool,
    /// Only these ranks: 0,3
    #[arg(long, value_name = "RANK", value_delimiter = ',')]
    pub rank: Vec<u32>,
    /// Only lines written since then: 10m (ago), or a time as in 2026-11-21T10:15:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Since>,
    /// Only lines that match this regular expression
    #[arg(long, value_name = "REGEX")]
    pub grep: Option<Regex>,
    /// Only the last N lines of what is there by now
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<usize>,
}

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Since {
    /// So long ago.
    Ago(Duration),
    /// Then, in seconds since the epoch.
    At(f64),
}

fn since(text: &str) -> Result<Since, String> {
    if let Ok(span) = humantime::parse_duration(text) {
        return Ok(Since::Ago(span));
    }
    let at = humantime::parse_rfc3339_weak(text).ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    at.map(|at| Since::At(at.as_secs_f64()))
        .ok_or_else(|| "say how long ago, as in 10m or 2h, or a time in UTC, as in 2026-11-21T10:15:00Z".to_owned())
}

/// Options of `completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

const COMPLETIONS: &str = "\
bash:  hvdctl completions bash > ~/.local/share/bash-completion/completions/hvdctl
zsh:   hvdctl completions zsh > ~/.zfunc/_hvdctl    # with `fpath+=~/.zfunc` before compinit in ~/.zshrc
fish:  hvdctl completions fish > ~/.config/fish/completions/hvdctl.fish";

/// Options of `man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Write it into this folder instead, and a page for each command beside it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// What is done with keys.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Make the pair on the master where it has none; touches no other node
    Generate(Generate),
    /// Make the pair where the master has none, and bring every node's key folder to the state it should have
    Push(Push),
    /// Every node's keys: present, agreed with the master's, pinned, and who can log in to whom; changes nothing
    Status,
    /// A new pair in the old one's place, on every node; finishes a rotation that was broken off
    Rotate(Rotate),
}

/// Options of `keys push`.
#[derive(Debug, Args)]
pub struct Push {
    /// Where a node takes only a password for now, let ssh ask for it and install your public key first
    #[arg(long)]
    pub first_login: bool,
    /// Whether to wait
    #[command(flatten)]
    pub waiting: Waiting,
}

/// What a new pair shall be.
#[derive(Debug, Args)]
pub struct NewPair {
    /// Its type [default: cluster.key_type]
    #[arg(long = "type", value_name = "TYPE")]
    pub key_type: Option<PairType>,
    /// Its size, for RSA: 2048 to 8192, a multiple of 8 [default: 4096]
    #[arg(long, value_name = "N", value_parser = bits)]
    pub bits: Option<u32>,
}

/// Types of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PairType {
    /// As in Horovod's documentation
    Rsa,
    /// Short, and made at once
    Ed25519,
}

impl NewPair {
    /// What was asked for; `None` where nothing was. `usual`: the inventory's type.
    ///
    /// # Errors
    /// In words: a size for what has only one.
    pub fn kind(&self, usual: KeyType) -> Result<Option<Kind>, String> {
        let key_type = match self.key_type {
            Some(PairType::Rsa) => KeyType::Rsa,
            Some(PairType::Ed25519) => KeyType::Ed25519,
            None => usual,
        };
        match self.bits {
            Some(_) if key_type == KeyType::Ed25519 => Err("--bits is for RSA: an Ed25519 key has one size".to_owned()),
            None if self.key_type.is_none() => Ok(None),
            bits => Ok(Some(Kind { key_type, bits })),
        }
    }
}

fn bits(text: &str) -> Result<u32, String> {
    let bits = text.parse().ok().filter(|bits| (2048..=8192).contains(bits) && bits % 8 == 0);
    bits.ok_or_else(|| "an RSA key has 2048 to 8192 bits, a multiple of 8".to_owned())
}

/// What is done with the nodes' leases.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Lock {
    /// Every node's lease: who holds it, for what, and since when; changes nothing
    Status,
    /// Release the nodes, whoever holds them: a command that is still at work there stops after the step in hand
    Release,
}

/// Of every command that changes nodes.
#[derive(Debug, Clone, Copy, Args)]
pub struct Waiting {
    /// Wait while another command holds the nodes, at most so long, as in 10m [default: fail at once]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, value_parser = humantime::parse_duration)]
    wait: Option<Option<Duration>>,
}

impl From<Waiting> for Wait {
    fn from(waiting: Waiting) -> Wait {
        waiting.wait.map_or(Wait::No, Wait::Within)
    }
}

/// Options of `keys generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// What the pair shall be
    #[command(flatten)]
    pub pair: NewPair,
    /// Whether to wait
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `keys rotate`.
#[derive(Debug, Args)]
pub struct Rotate {
    /// What the new pair shall be
    #[command(flatten)]
    pub pair: NewPair,
    /// Leave nodes out that cannot be reached, instead of changing nothing; they get the new key by `keys push`
    #[arg(long)]
    pub skip_offline: bool,
    /// Whether to wait
    #[command(flatten)]
    pub waiting: Waiting,
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
    /// Where a worker is to be replaced under a run, end that run in order first, instead of changing nothing
    #[arg(long)]
    pub force: bool,
    /// Whether to wait
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Carry out what is safe: remove containers and end processes of this cluster's ended runs, push keys
    #[arg(long)]
    pub fix: bool,
    /// Whether to wait
    #[command(flatten)]
    pub waiting: Waiting,
}

const DOCTOR: &str = "\
Changes nothing without --fix. Each finding says what was seen, why it matters and what cures it. `up`, `verify`, `train` \
and `run` look at the part that costs no time, and stop on its errors.

Exit codes: 0 no errors (warnings and notes do not count); 1 errors; 3 some nodes cannot be reached; 4 none can.";

/// Options of `down`.
#[derive(Debug, Args)]
pub struct Down {
    /// Remove keys, shipped projects and records of runs too
    #[arg(long)]
    pub purge: bool,
    /// Leave nodes out that cannot be reached, instead of changing nothing
    #[arg(long)]
    pub skip_offline: bool,
    /// Whether to wait
    #[command(flatten)]
    pub waiting: Waiting,
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

/// How a run is started and left.
#[derive(Debug, Args)]
pub struct Running {
    /// How ranks are launched
    #[command(flatten)]
    pub launching: Launching,
    /// Return as soon as every rank has started, and print the run's id; it goes on by itself
    #[arg(short, long)]
    pub detach: bool,
    /// Set a variable for the ranks: NAME=VALUE, or NAME alone for its value here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Set the ranks' variables that this file names, NAME=VALUE a line
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub env_file: Option<PathBuf>,
    /// Fill a node before the next one gets a rank, or give every node one in turn
    #[arg(long, value_name = "BY", default_value = "slot")]
    pub map_by: MapBy,
    /// End the run when a rank keeps the others waiting in a collective operation for so long; 0s: never
    #[arg(long, value_name = "SPAN", default_value = "30m", value_parser = humantime::parse_duration)]
    pub stall_timeout: Duration,
    /// Say who would run where and with what command, and start nothing
    #[arg(long, conflicts_with = "detach")]
    pub dry_run: bool,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
    variable_name(name)?;
    match value.or_else(|| std::env::var(name).ok()) {
        None => Err(format!("{name} is not set here, and no value was given")),
        Some(value) => Ok((name.to_owned(), value)),
    }
}

/// How ranks are spread over the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MapBy {
    /// A node's slots are filled before the next node gets a rank
    Slot,
    /// Every node gets a rank before any gets another
    Node,
}

impl From<MapBy> for slots::MapBy {
    fn from(by: MapBy) -> slots::MapBy {
        match by {
            MapBy::Slot => slots::MapBy::Slot,
            MapBy::Node => slots::MapBy::Node,
        }
    }
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
    /// Whether to wait
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `train`.
#[derive(Debug, Args)]
pub struct Train {
    /// The project's folder; it is shipped to every node and seen at /workspace
    #[arg(value_hint = ValueHint::DirPath)]
    pub project: PathBuf,
    /// The number of ranks, also written -np N
    #[arg(long = "np", value_name = "N")]
    pub np: u32,
    /// The project's name on the nodes, whoever had it before; without it the folder's name
    #[arg(long = "as", value_name = "NAME")]
    pub name_on_nodes: Option<String>,
    /// How it is started and left
    #[command(flatten)]
    pub running: Running,
    /// The program; without it hvdctl.toml's command, else train.py or main.py
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Whether to wait
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The number of ranks, also written -np N
    #[arg(long = "np", value_name = "N")]
    pub np: u32,
    /// How it is started and left
    #[command(flatten)]
    pub running: Running,
    /// The program
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Whether to wait
    #[command(flatten)]
    pub waiting: Waiting,
}

impl Command {
    /// Whether it passes a program's exit code on.
    pub fn runs_a_program(&self) -> bool {
        matches!(self, Command::Train(_) | Command::Run(_) | Command::Attach(_))
    }

    /// Whether it tells ranks' lines as they come: with `--json` a line per event, and no node's failure is told twice.
    pub fn tells_output(&self) -> bool {
        self.runs_a_program() || matches!(self, Command::Logs(_))
    }

    /// Whether it is about a run, which goes on by itself where hvdctl leaves.
    pub fn is_about_a_run(&self) -> bool {
        self.tells_output() || matches!(self, Command::Verify(_) | Command::Stop(_))
    }

    /// Whether it changes nodes, and so ends in order at the first signal, behind the step in hand.
    pub fn ends_in_order(&self) -> bool {
        match self {
            Command::Up(_) | Command::Down(_) => true,
            Command::Keys(keys) => !matches!(keys, Keys::Status),
            Command::Doctor(doctor) => doctor.fix,
            command => command.is_about_a_run(),
        }
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
    fn a_time_is_a_span_or_a_point() {
        assert_eq!(since("90m"), Ok(Since::Ago(Duration::from_secs(5400))));
        assert_eq!(since("2023-11-14T22:13:20Z"), Ok(Since::At(1_700_000_000.0)));
        assert_eq!(since("2023-11-14 22:13:20"), Ok(Since::At(1_700_000_000.0)));
        for bad in ["", "yesterday", "10", "1969-12-31T23:59:59Z"] {
            assert!(since(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_variable_has_a_name_and_a_value_or_that_of_here() {
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(variable("A="), Ok(("A".into(), String::new())));
        assert_eq!(variable("PATH"), Ok(("PATH".into(), std::env::var("PATH").unwrap())));
        for bad in ["", "=x", "1A=x", "A B=x", "HVDCTL_NO_SUCH_VARIABLE", "HOROVOD_RANK=1"] {
            assert!(variable(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_rsa_has_sizes() {
        let kind = |line: &str, usual| {
            let Command::Keys(Keys::Generate(pair)) = parse(&format!("hvdctl keys generate{line}")).unwrap().command
            else {
                panic!("{line}")
            };
            pair.pair.kind(usual)
        };
        let rsa = |bits| Ok(Some(Kind { key_type: KeyType::Rsa, bits }));
        assert_eq!(kind("", KeyType::Rsa), Ok(None));
        assert_eq!(kind(" --bits 2056", KeyType::Rsa), rsa(Some(2056)));
        assert_eq!(kind(" --type rsa", KeyType::Ed25519), rsa(None));
        assert!(kind(" --bits 4096", KeyType::Ed25519).is_err());
        assert!(kind(" --type ed25519 --bits 2048", KeyType::Rsa).is_err_and(|e| e.contains("one size")));
        for bits in ["2047", "2049", "8200", "0", "-8", "x", "99999999999"] {
            assert!(parse(&format!("hvdctl keys rotate --bits {bits}")).is_err(), "{bits}");
        }
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
