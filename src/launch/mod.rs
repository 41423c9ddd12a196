//! Which rank runs where, and how a launcher starts the ranks.
//!
//! A [`Launcher`] is everything that hvdctl knows about a program that starts ranks, as data where possible; [`launcher`] chooses one.
//! The job supervisor and the rank supervisors ([`programs`]) get what they need of it as JSON ([`description`]) and know no launcher
//! by name. `horovodrun` is the only directory that does; another launcher is another directory beside it.

pub mod description;
pub mod env_file;
pub mod horovodrun;
pub mod placement;
pub mod programs;

use crate::inventory::{Controller, Node};
use description::{Argument, RankDescription, Start};
/// What all launchers of today have in common.
pub use horovodrun::{INIT, INSIDE, MORE_TIME_FOR_INIT, VERIFY, VERSIONS, by_hand};
use std::net::IpAddr;
use std::time::Duration;

/// A program that starts the ranks of a job.
#[derive(Debug)]
pub struct Launcher {
    /// The program, as messages name it.
    pub program: &'static str,
    /// On which nodes it is started.
    pub start: Start,
    /// Its argument vector.
    pub arguments: fn(&LaunchRequest<'_>) -> Vec<Argument>,
    /// Environment that it needs.
    pub environment: &'static [(&'static str, &'static str)],
    /// Environment that a shell in its container needs, for launches by hand.
    pub shell_environment: &'static [(&'static str, &'static str)],
    /// Prefixes of the variables that it reads itself; everything else of the inventory's environment only goes to the ranks.
    pub reads: &'static [&'static str],
    /// Who takes one interface name for all nodes, if nodes may not have interfaces of different names.
    pub one_interface: Option<&'static str>,
    /// The variables by which a rank learns its number, in order of preference.
    pub rank: &'static [&'static str],
    /// The same for the number of ranks.
    pub size: &'static [&'static str],
    /// Variables that pin a rank to its node's interface.
    pub interface_variables: &'static [&'static str],
    /// The same for those that the user's own environment may set otherwise.
    pub interface_defaults: &'static [&'static str],
    /// What ranks wait in until all have begun, as failures name it.
    pub init: &'static str,
    /// The patterns of messages about ranks that hang (`HangReports` in `rank_supervisor.py`).
    pub hang_reports: &'static [(&'static str, &'static str)],
    /// The process that it leaves on each node, above the ranks.
    pub daemon: Option<&'static str>,
    /// Whether a thread of each rank waits for the others without ever sleeping.
    pub spins: bool,
}

/// Everything that decides a launcher's arguments.
#[derive(Debug, Clone, Copy)]
pub struct LaunchRequest<'a> {
    /// Port of the workers' sshd.
    pub port: u16,
    /// The interface of the first node on the cluster network.
    pub interface: &'a str,
    /// Time for all ranks to start.
    pub start_timeout: Duration,
    /// How long a collective operation may wait for a rank before the job ends; zero: forever.
    pub stall_timeout: Duration,
    /// The job's directory, the same path on the nodes and in the containers.
    pub job_dir: &'a str,
}

/// Returns the launcher for a controller.
pub fn launcher(controller: Controller) -> &'static Launcher {
    match controller {
        Controller::Gloo => &horovodrun::GLOO,
        Controller::Mpi => &horovodrun::MPI,
    }
}

impl Launcher {
    /// Returns the argument vector for these hosts (address and ranks of each, in rank order); `first` is the node of the launcher.
    pub fn argv(&self, request: &LaunchRequest<'_>, hosts: &[(IpAddr, u32)], first: IpAddr) -> Vec<String> {
        description::resolve(&(self.arguments)(request), hosts, first)
    }

    /// Returns the environment of the launcher's container as `NAME=VALUE`; a central launcher hands it on to every rank.
    pub fn container_environment(&self, id: &str, first: &Node) -> Vec<String> {
        let base = [("HVDCTL_JOB", id), ("PYTHONUNBUFFERED", "1")];
        let reads = |name: &str| self.reads.iter().any(|prefix| name.starts_with(prefix));
        let own = first.container.env.iter().filter(|(name, _)| reads(name));
        let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
        let all = base.into_iter().chain(self.environment.iter().copied()).chain(own);
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
            size: self.size,
            environment: pinned(self.interface_variables),
            defaults: pinned(self.interface_defaults),
            init: self.init,
            hang_reports: self.hang_reports.iter().copied().collect(),
            daemon: self.daemon,
            spins: self.spins,
        }
    }
}
