//! Which rank runs where, and how a launcher starts the ranks.
//!
//! A [`Launcher`] is everything that hvdctl knows about a program that starts ranks, as data where possible; [`launcher`] chooses one.
//! The job supervisor and the rank supervisors ([`programs`]) get what they need of it as JSON ([`description`]) and know no launcher
//! by name. Each launcher has its own module.

pub mod description;
mod env;
pub mod env_file;
pub mod horovodrun;
mod mpirun;
mod open_mpi;
pub mod placement;
pub mod programs;
mod torchrun;

use crate::inventory::Node;
use crate::model::launcher::{Controller, LauncherName};
use description::{Argument, LaunchHost, Position, RankDescription, Start};
/// Items that all launchers share at present.
pub use horovodrun::{INIT, INSIDE, MORE_TIME_FOR_INIT, VERSIONS, by_hand};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

/// The program that `verify` runs as every rank: it initializes the library and sums a number over all ranks. Its
/// arguments are [`Launcher::ways`].
pub const VERIFY: &str = include_str!("verify.py");

/// A program that starts the ranks of a job.
#[derive(Debug)]
pub struct Launcher {
    /// The program, as messages name it.
    pub program: &'static str,
    /// On which nodes it is started.
    pub start: Start,
    /// Its argument vector; with [`Start::PerRank`] that of each rank.
    pub arguments: fn(&LaunchRequest<'_>) -> Vec<Argument>,
    /// The variables of each rank with [`Start::PerRank`].
    pub variables: fn(&LaunchRequest<'_>) -> Vec<(&'static str, Argument)>,
    /// Environment that it needs.
    pub environment: fn(&LaunchRequest<'_>) -> Vec<(&'static str, String)>,
    /// Environment for manual launches in `hvdctl shell`.
    pub shell_environment: &'static [(&'static str, &'static str)],
    /// Prefixes of variables that the launcher itself reads; other variables of the inventory reach only the ranks.
    pub reads: &'static [&'static str],
    /// The program that requires the same interface name on all nodes, if one does.
    pub one_interface: Option<&'static str>,
    /// The variables by which a rank learns its number, in order of preference.
    pub rank: &'static [&'static str],
    /// The same for its number on its node.
    pub local_rank: &'static [&'static str],
    /// The same for the number of ranks.
    pub size: &'static [&'static str],
    /// Variables that pin a rank to its node's interface.
    pub interface_variables: &'static [&'static str],
    /// The same for those that the user's own environment may set otherwise.
    pub interface_defaults: &'static [&'static str],
    /// What ranks wait in until all have begun, as failures name it.
    pub init: &'static str,
    /// The Python modules over which [`VERIFY`] may communicate, in order of preference.
    pub ways: &'static [&'static str],
    /// The patterns of messages about ranks that hang (`HangReports` in `rank_supervisor.py`).
    pub hang_reports: &'static [(&'static str, &'static str)],
    /// The names of the process that it leaves on each node, above the ranks, by version.
    pub daemons: &'static [&'static str],
    /// Whether a thread of each rank waits for the others without ever sleeping.
    pub spins: bool,
}

/// Everything that decides a launcher's arguments.
#[derive(Debug, Clone, Copy)]
pub struct LaunchRequest<'a> {
    /// The nodes with ranks, in rank order.
    pub hosts: &'a [LaunchHost<'a>],
    /// The node of the launcher.
    pub first: LaunchHost<'a>,
    /// Port of the workers' sshd.
    pub port: u16,
    /// The first of the ports that are free on all nodes, as many as a node has ranks.
    pub rendezvous_port: u16,
    /// The interface of the first node on the cluster network.
    pub interface: &'a str,
    /// Time for all ranks to start.
    pub start_timeout: Duration,
    /// How long a collective operation may wait for a rank before the job ends; zero: forever.
    pub stall_timeout: Duration,
    /// The job's directory, the same path on the nodes and in the containers.
    pub job_dir: &'a str,
}

/// Returns a launcher. `controller` is that of `horovodrun`.
pub fn launcher(name: LauncherName, controller: Controller) -> &'static Launcher {
    match (name, controller) {
        (LauncherName::Horovodrun, Controller::Gloo) => &horovodrun::GLOO,
        (LauncherName::Horovodrun, Controller::Mpi) => &horovodrun::MPI,
        (LauncherName::Torchrun, _) => &torchrun::LAUNCHER,
        (LauncherName::Mpirun, _) => &mpirun::LAUNCHER,
        (LauncherName::Env, _) => &env::LAUNCHER,
    }
}

/// What is started on a node, for a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Launch")]
pub struct NodeCommand {
    /// The node's name.
    pub node: String,
    /// The argument vector of the launcher, or of every rank.
    pub argv: Vec<String>,
    /// The variables of each rank, `NAME=VALUE`, if no launcher sets them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Vec<String>>,
}

impl Launcher {
    /// Returns what is started on each node: on the launcher's node alone if that starts all ranks.
    pub fn commands(&self, request: &LaunchRequest<'_>) -> Vec<NodeCommand> {
        let LaunchRequest { hosts, first, .. } = *request;
        let (arguments, variables) = ((self.arguments)(request), (self.variables)(request));
        let command = |(node, host): (usize, &LaunchHost<'_>)| {
            let at = |local_rank| Position { hosts, first, node, local_rank };
            let of_rank =
                |rank| variables.iter().map(|(name, value)| format!("{name}={}", at(rank).text(value))).collect();
            let ranks = if self.start == Start::PerRank { host.ranks } else { 0 };
            NodeCommand {
                node: host.node.to_owned(),
                argv: arguments.iter().map(|argument| at(0).text(argument)).collect(),
                variables: (0..ranks).map(of_rank).collect(),
            }
        };
        let started_on = if self.start == Start::Central { &[first] } else { hosts };
        started_on.iter().enumerate().map(command).collect()
    }

    /// Returns the environment of the launcher's container as `NAME=VALUE`; it is handed on to every rank.
    pub fn container_environment(&self, id: &str, first: &Node, request: &LaunchRequest<'_>) -> Vec<String> {
        let base = [("HVDCTL_JOB", id.to_owned()), ("PYTHONUNBUFFERED", "1".to_owned())];
        let reads = |name: &str| self.reads.iter().any(|prefix| name.starts_with(prefix));
        let own = first.container.env.iter().filter(|(name, _)| reads(name));
        let own = own.map(|(name, value)| (name.as_str(), value.clone()));
        let all = base.into_iter().chain((self.environment)(request)).chain(own);
        all.map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// Returns what the rank supervisors on a node have to know, given the node's interface.
    pub fn rank_description<'a>(&self, interface: &'a str) -> RankDescription<'a> {
        let pinned = |names: &[&'static str]| match interface {
            "" => Default::default(),
            _ => names.iter().map(|name| (*name, interface)).collect(),
        };
        RankDescription {
            rank: self.rank,
            local_rank: self.local_rank,
            size: self.size,
            environment: pinned(self.interface_variables),
            defaults: pinned(self.interface_defaults),
            init: self.init,
            hang_reports: self.hang_reports.iter().copied().collect(),
            daemons: self.daemons,
            spins: self.spins,
        }
    }
}
