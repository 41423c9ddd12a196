//! Arguments of the commands that start jobs.

use super::Waiting;
use crate::error::Error;
use crate::inventory::{Bind, Cluster, Controller, LauncherName, VARIABLE, parse_size};
use crate::launch;
use crate::launch::job_size::JobSize;
use crate::launch::placement::{MapBy, RankCount};
use crate::model::launcher::ElasticMode;
use crate::sync::project;
use crate::text::argument::ProgramArgument;
use clap::{ArgGroup, Args, ValueHint};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// Options that select the launcher and its controller.
#[derive(Debug, Clone, Args)]
pub struct LauncherChoice {
    /// Launcher of the ranks [default: `launcher` in hvdctl.toml, otherwise slurm.launcher under Slurm, otherwise
    /// cluster.launcher, otherwise horovodrun]
    #[arg(long, value_name = "LAUNCHER")]
    pub launcher: Option<LauncherName>,
    /// Horovod's controller, which connects the ranks [default: cluster.controller]
    #[arg(long, value_name = "CONTROLLER")]
    pub controller: Option<Controller>,
    /// Same as --controller gloo
    #[arg(long, conflicts_with_all = ["controller", "mpi"])]
    pub gloo: bool,
    /// Same as --controller mpi
    #[arg(long, conflicts_with = "controller")]
    pub mpi: bool,
}

/// Options of the launch of ranks.
#[derive(Debug, Clone, Args)]
pub struct Launching {
    /// Launcher and controller
    #[command(flatten)]
    pub choice: LauncherChoice,
    /// Option of sbatch, such as --sbatch=--exclude=node3, or --sbatch=--signal=USR1@300 for the ranks; may be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, value_parser = sbatch)]
    pub sbatch: Vec<String>,
}

pub(super) fn sbatch(text: &str) -> Result<String, String> {
    match text.starts_with('-') {
        true => Ok(text.to_owned()),
        false => Err("an option of sbatch begins with `-`: --sbatch=--partition=gpu".to_owned()),
    }
}

/// Options of a job.
#[derive(Debug, Clone, Args)]
pub struct Running {
    /// Launch options
    #[command(flatten)]
    pub launching: Launching,
    /// Return once every rank has started, or the job is in Slurm's queue, and print the job's id
    #[arg(short, long)]
    pub detach: bool,
    /// Set a variable for the ranks: NAME=VALUE, or NAME to pass its local value
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Set the variables of this file for the ranks, as in a .env file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub env_file: Option<PathBuf>,
    /// Place ranks slot by slot, or node by node
    #[arg(long, value_name = "BY", default_value = "slot")]
    pub map_by: MapBy,
    /// Bind each rank to cores of its node [default: cluster.bind, otherwise numa where GPUs and several NUMA nodes are
    /// known]
    #[arg(long, value_name = "BIND")]
    pub bind: Option<Bind>,
    /// Run on the N best free nodes of one kind, by grade; --on limits the choice
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub best: Option<u32>,
    /// Allocate only K GPUs (or slots, without GPUs) of each node [default: whole nodes]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus_per_node: Option<u32>,
    /// Name of the job [default: that of the project or program]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    /// Restart the job up to N times after a failure, on the nodes that answer
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    pub restarts: u32,
    /// Behaviour when nodes leave or join an elastic job (-np MIN:MAX) [default: in-place with horovodrun and Gloo,
    /// otherwise restart]
    #[arg(long, value_name = "MODE")]
    pub elastic: Option<ElasticMode>,
    /// How often nodes may leave or join while ranks continue in place [default: no limit]
    #[arg(long, value_name = "N")]
    pub reset_limit: Option<u32>,
    /// End the job when a rank makes no progress for this long; 0s: only warn [default: cluster.stall_timeout_s, 0s]
    #[arg(long, value_name = "SPAN", value_parser = whole_seconds)]
    pub stall_timeout: Option<Duration>,
    /// Keep at most this much output on each node, e.g. 512m or 2g; the oldest lines are dropped first [default: all]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub log_max: Option<u64>,
    /// Keep every state of progress bars in the log [default: the newest one, at most once a second]
    #[arg(long)]
    pub log_progress: bool,
    /// Show which rank would run where, and with which command; start nothing
    #[arg(long, conflicts_with = "detach")]
    pub dry_run: bool,
    /// Set-up of the cluster before the job
    #[command(flatten)]
    pub set_up: SetUp,
}

/// Options of the set-up of a cluster before its job.
#[derive(Debug, Clone, Args)]
pub struct SetUp {
    /// If nodes lack keys, image or workers, do first what `hvdctl up` does [default: ask]
    #[arg(long)]
    pub up: bool,
}

pub(super) fn name(text: &str) -> Result<String, String> {
    if project::directory_name(text) == text {
        return Ok(text.to_owned());
    }
    Err("expected 1 to 64 letters, digits, `.`, `_` or `-`, without `.` or `-` at the start".to_owned())
}

/// Rounds up to whole seconds, in which Horovod and the rank supervisors count; 0 would mean never.
fn whole_seconds(text: &str) -> Result<Duration, humantime::DurationError> {
    let span = humantime::parse_duration(text)?;
    Ok(Duration::from_secs(span.as_secs() + u64::from(span.subsec_nanos() > 0)))
}

pub(super) fn ranks(text: &str) -> Result<u32, String> {
    let ranks = text.parse::<NonZeroU32>().map(u32::from);
    ranks.map_err(|_| "the number of ranks must be a whole number of at least 1".to_owned())
}

/// Reads the number of ranks of a job that has no project.
fn ranks_without_roles(text: &str) -> Result<RankCount, String> {
    match text.contains('=') {
        true => Err("roles are those of a project: hvdctl train PROJECT -np ROLE=N".to_owned()),
        false => text.parse(),
    }
}

/// An eighth of a log is removed at a time, which must be longer than any of its lines.
fn size(text: &str) -> Result<u64, String> {
    let size = parse_size(text).filter(|size| *size >= 2 << 20);
    size.ok_or_else(|| "a size of at least 2m, as in 512m or 2g".to_owned())
}

pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
    VARIABLE.read(name)?;
    match value.or_else(|| std::env::var(name).ok()) {
        None => Err(format!("{name} is not set in this environment, and no value was given")),
        Some(value) => Ok((name.to_owned(), value)),
    }
}

impl Launching {
    /// Returns the launcher of a job; see [`LauncherChoice::launcher`].
    ///
    /// # Errors
    /// As of [`LauncherChoice::launcher`].
    pub fn launcher(&self, project: Option<LauncherName>, cluster: &Cluster) -> Result<LauncherName, Error> {
        self.choice.launcher(project, cluster)
    }

    /// Returns the controller of the arguments, else the cluster's.
    pub fn controller(&self, default: Controller) -> Controller {
        self.choice.controller(default)
    }
}

impl LauncherChoice {
    /// Returns the launcher of the arguments, else that of the project, else the cluster's.
    ///
    /// # Errors
    /// A controller for another launcher than `horovodrun`; what only Slurm has.
    pub fn launcher(&self, project: Option<LauncherName>, cluster: &Cluster) -> Result<LauncherName, Error> {
        self.launchers(&[None], project, cluster).map(|launchers| launchers[0])
    }

    /// Returns the launcher of each role: its `own`, else that of the arguments, else that of the project, else the
    /// cluster's.
    ///
    /// # Errors
    /// A controller where none is `horovodrun`; what only Slurm has.
    pub fn launchers(
        &self,
        own: &[Option<LauncherName>],
        project: Option<LauncherName>,
        cluster: &Cluster,
    ) -> Result<Vec<LauncherName>, Error> {
        let default = self.launcher.or(project).unwrap_or(cluster.launcher);
        let launchers: Vec<LauncherName> = own.iter().map(|own| own.unwrap_or(default)).collect();
        if launchers.contains(&LauncherName::Srun) && cluster.can().choose_nodes {
            let hint = "use --scheduler slurm, or a table [slurm] in the inventory";
            return Err(Error::usage("srun is the launcher of Slurm", hint));
        }
        let has_controller = self.controller.is_some() || self.gloo || self.mpi;
        if has_controller && !launchers.iter().any(|launcher| launcher.has_controller()) {
            return Err(Error::usage(
                format!("--controller is for horovodrun, but the launcher is {}", launchers[0]),
                "leave out --controller, or use --launcher horovodrun",
            ));
        }
        Ok(launchers)
    }

    /// Returns the controller of the arguments, else the cluster's.
    pub fn controller(&self, default: Controller) -> Controller {
        let named = [(self.gloo, Controller::Gloo), (self.mpi, Controller::Mpi)];
        let named = named.into_iter().find(|(is_named, _)| *is_named).map(|(_, controller)| controller);
        self.controller.or(named).unwrap_or(default)
    }
}

impl Running {
    /// Returns what is to happen to the ranks of an elastic job when nodes leave or join.
    ///
    /// # Errors
    /// A job of a fixed size, or a launcher that cannot keep them.
    pub fn elastic(
        &self,
        ranks: Option<RankCount>,
        launcher: LauncherName,
        controller: Controller,
    ) -> Result<Option<ElasticMode>, Error> {
        let can_keep = launch::launcher(launcher, controller).keeps_ranks;
        let option = match (self.elastic, self.reset_limit) {
            (None, None) => return Ok(None),
            (Some(_), _) => "--elastic",
            (None, Some(_)) => "--reset-limit",
        };
        if ranks.is_none_or(|ranks| ranks.min.is_none()) {
            return Err(Error::usage(
                format!("{option} is for elastic jobs, but this one has a fixed number of ranks"),
                format!("leave out {option}, or use -np MIN:MAX"),
            ));
        }
        if self.reset_limit.is_some() && self.elastic == Some(ElasticMode::Restart) {
            return Err(Error::usage(
                "--reset-limit counts changes in place, but --elastic restart starts all ranks again",
                "leave out one of them",
            ));
        }
        if self.elastic != Some(ElasticMode::Restart) && !can_keep {
            return Err(Error::usage(
                format!("{option} needs horovodrun with Gloo: no other launcher keeps ranks when nodes leave or join"),
                "use --launcher horovodrun --controller gloo, or --elastic restart",
            ));
        }
        Ok(self.elastic)
    }
}

/// Options of `verify`.
#[derive(Debug, Clone, Args)]
pub struct Verify {
    /// Number of ranks, also written -np N [default: one on every slot]
    #[arg(long = "np", value_name = "N", allow_negative_numbers = true, value_parser = ranks)]
    pub np: Option<u32>,
    /// Launch options
    #[command(flatten)]
    pub launching: Launching,
    /// Place ranks slot by slot, or node by node
    #[arg(long, value_name = "BY", default_value = "slot")]
    pub map_by: MapBy,
    /// Bind each rank to cores of its node [default: cluster.bind, otherwise numa where GPUs and several NUMA nodes are
    /// known]
    #[arg(long, value_name = "BIND")]
    pub bind: Option<Bind>,
    /// Also check every collective operation in every type, and the GPUs with DCGM, if it is installed
    #[arg(long)]
    pub full: bool,
    /// Time limit of the job in seconds
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub timeout: u64,
    /// Set-up of the cluster before the job
    #[command(flatten)]
    pub set_up: SetUp,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Returns the group of options that state the size of a job: one of them is needed.
fn size_of_job() -> ArgGroup {
    ArgGroup::new("size").args(["np", "best"]).required(true).multiple(true)
}

/// Options of `train`.
#[derive(Debug, Clone, Args)]
pub struct Train {
    /// Project directory; uploaded to every node, and mounted at /workspace
    #[arg(value_hint = ValueHint::DirPath)]
    pub project: PathBuf,
    /// Number of ranks, also written -np N; MIN:MAX makes the job elastic; ROLE=N,ROLE=N sets those of roles [default:
    /// that of the roles in hvdctl.toml; with --best all slots of its nodes]
    #[arg(long = "np", value_name = "N", allow_negative_numbers = true)]
    pub np: Option<JobSize>,
    /// Start only this role of hvdctl.toml
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
    /// Project name on the nodes; replaces an existing project of that name [default: the directory's name]
    #[arg(long = "as", value_name = "NAME")]
    pub name_on_nodes: Option<String>,
    /// Fetch what the job wrote to /workspace into this directory at the end, also if it failed
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["detach", "dry_run"])]
    pub fetch: Option<PathBuf>,
    /// Use the cluster's image as it is; ignore `setup` and `build` in hvdctl.toml
    #[arg(long)]
    pub no_setup: bool,
    /// Options of the job
    #[command(flatten)]
    pub running: Running,
    /// Program to run [default: `command` in hvdctl.toml, otherwise train.py or main.py]
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<ProgramArgument>,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `run`.
#[derive(Debug, Clone, Args)]
#[command(group = size_of_job())]
pub struct Run {
    /// Number of ranks, also written -np N; MIN:MAX makes the job elastic [default with --best: all slots of its nodes]
    #[arg(long = "np", value_name = "N", allow_negative_numbers = true, value_parser = ranks_without_roles)]
    pub np: Option<RankCount>,
    /// Options of the job
    #[command(flatten)]
    pub running: Running,
    /// Program to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<ProgramArgument>,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        running: Running,
    }

    #[test]
    fn ranks_are_kept_only_where_that_is_possible() {
        let elastic = |options: &[&str], ranks: &str, launcher, controller| {
            let only = <Only as clap::Parser>::try_parse_from([&["x"], options].concat()).unwrap();
            only.running.elastic(Some(ranks.parse().unwrap()), launcher, controller).map_err(|error| error.to_string())
        };
        let (horovodrun, env, gloo, mpi) =
            (LauncherName::Horovodrun, LauncherName::Env, Controller::Gloo, Controller::Mpi);
        assert_eq!(elastic(&[], "2", env, mpi), Ok(None));
        assert_eq!(elastic(&["--elastic", "restart"], "1:2", env, gloo), Ok(Some(ElasticMode::Restart)));
        assert_eq!(elastic(&["--elastic", "in-place"], "1:2", horovodrun, gloo), Ok(Some(ElasticMode::InPlace)));
        assert_eq!(elastic(&["--reset-limit", "3"], "1:2", horovodrun, gloo), Ok(None));
        for (options, ranks, launcher, controller, message) in [
            (
                &["--elastic", "restart"][..],
                "2",
                horovodrun,
                gloo,
                "--elastic is for elastic jobs, but this one has a fixed number",
            ),
            (&["--reset-limit", "3"], "2", horovodrun, gloo, "--reset-limit is for elastic jobs"),
            (&["--elastic", "in-place"], "1:2", horovodrun, mpi, "--elastic needs horovodrun with Gloo"),
            (&["--reset-limit", "3"], "1:2", env, gloo, "--reset-limit needs horovodrun with Gloo"),
            (&["--reset-limit", "3", "--elastic", "restart"], "1:2", horovodrun, gloo, "--reset-limit counts changes"),
        ] {
            let error = elastic(options, ranks, launcher, controller).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn a_job_name_is_plain() {
        assert_eq!(name("big-run_2.1"), Ok("big-run_2.1".into()));
        for bad in ["", "a b", "-a", ".a", "a/b", "ä", &"a".repeat(65)] {
            assert!(name(bad).is_err(), "{bad}");
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
}
