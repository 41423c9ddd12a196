//! The placement of ranks on nodes, and the launchers that start them.
//!
//! A [`Launcher`] is everything that hvdctl knows about a program that starts ranks, as data where possible;
//! [`launcher`] chooses one. The job supervisor and the rank supervisors ([`programs`]) get what they need of it as
//! JSON ([`description`]) and know no launcher by name. Each launcher has its own module.

pub mod description;
mod env;
pub mod env_file;
pub mod horovodrun;
pub mod job_size;
mod mpirun;
pub mod open_mpi;
pub mod placement;
pub mod programs;
pub mod role_placement;
mod srun;
#[cfg(test)]
mod tests;
mod torchrun;

use crate::error::Error;
use crate::model::launcher::{Controller, LauncherName};
use crate::node::network::Endpoint;
use crate::text::argument::ProgramArgument;
use crate::text::collectives;
use description::{Argument, LaunchHost, Position, RankDescription, RankVariables, Start};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

/// The program that `verify` runs as every rank: it initializes the library and sums a number over all ranks. Its
/// arguments are [`Launcher::verify_with`]. It needs [`BACKENDS`].
pub const VERIFY: &str = include_str!("../scripts/ranks/verify.py");
/// The Python module with which `verify` reports the place of a rank.
pub const PLACE: &str = include_str!("../scripts/ranks/place.py");
/// The program that `bench` runs as every rank: collectives with known results. Its arguments are what is measured, and
/// [`Launcher::verify_with`]. It needs [`BACKENDS`].
pub const COLLECTIVES: &str = include_str!("../scripts/ranks/collectives.py");
/// The Python module over which the ranks of [`VERIFY`] and [`COLLECTIVES`] communicate.
pub const BACKENDS: &str = include_str!("../scripts/ranks/backends.py");

/// Python code that follows `src/scripts/worker/inside.py` and prints the launchers of the image, and what they depend
/// on.
pub const INSIDE: &str =
    concat!(include_str!("../scripts/worker/launchers.py"), include_str!("../scripts/worker/horovodrun.py"));

/// The lines of [`INSIDE`] that must be the same on all nodes: name and key.
pub const VERSIONS: [(&str, &str); 3] =
    [("Horovod", "horovod"), ("Horovod build", "build"), ("set of launchers", "launchers")];

/// A program that starts the ranks of a job.
#[derive(Debug)]
pub struct Launcher {
    /// The program, as messages name it.
    pub program: &'static str,
    /// The nodes on which it is started.
    pub start: Start,
    /// Its argument vector; with [`Start::PerRank`] that of each rank.
    pub arguments: fn(&LaunchRequest<'_>) -> Vec<Argument>,
    /// The variables of each rank with [`Start::PerRank`].
    pub variables: fn(&LaunchRequest<'_>) -> Vec<(&'static str, Argument)>,
    /// Files of the job's directory that it reads on its node.
    pub files: fn(&LaunchRequest<'_>) -> Vec<(String, Argument)>,
    /// Environment that it needs.
    pub environment: fn(&LaunchRequest<'_>) -> Vec<(&'static str, String)>,
    /// The command with which a user in `hvdctl shell` starts a program on all nodes, if one command does.
    pub by_hand: fn(&ShellRequest<'_>) -> Option<String>,
    /// Environment that such a shell needs.
    pub shell_environment: fn(&ShellRequest<'_>) -> Vec<(&'static str, String)>,
    /// Prefixes of variables that the launcher itself reads; other variables of the user reach only the ranks.
    pub reads: &'static [&'static str],
    /// Patterns of the shell for the names of the variables that it gets of the environment of its node; `None`: all.
    /// A launcher that writes its environment into command lines gets what it needs itself, and the ranks read the
    /// rest in a file.
    pub inherits: Option<&'static [&'static str]>,
    /// The program that requires the same interface name on all nodes, if one does.
    pub one_interface: Option<&'static str>,
    /// Set if ranks connect to the address to which their node resolves its own host name.
    pub by_host_name: bool,
    /// The variables by which a rank learns its number, in order of preference.
    pub rank: &'static [&'static str],
    /// The variables by which it learns its number on its node.
    pub local_rank: &'static [&'static str],
    /// The variables by which it learns the number of ranks.
    pub size: &'static [&'static str],
    /// The variable by which it learns its node's address, as the launcher was given it, if there is one.
    pub address: Option<&'static str>,
    /// The variable with the address of the launcher's node, if it takes that from the interface's name.
    pub launcher_address: Option<&'static str>,
    /// Variables that pin a rank to its node's interface.
    pub interface_variables: &'static [&'static str],
    /// Variables that do so unless the user's own environment sets them.
    pub interface_defaults: &'static [&'static str],
    /// The call in which ranks wait until all have begun, as failures name it.
    pub init: &'static str,
    /// A hint on what gives ranks more time for that.
    pub init_hint: Option<&'static str>,
    /// The Python modules over which [`VERIFY`] and [`COLLECTIVES`] may communicate, in order of preference.
    pub verify_with: &'static [&'static str],
    /// The patterns of messages about ranks that hang (`HangReports` in `rank_supervisor.py`).
    pub hang_reports: &'static [(&'static str, &'static str)],
    /// The names of the process that it leaves on each node, above the ranks, by version.
    pub daemons: &'static [&'static str],
    /// Set if a thread of each rank waits for the others without ever sleeping.
    pub spins: bool,
    /// Set if an argument `:` separates the programs of different ranks.
    pub joins_programs: bool,
    /// Set if it can keep the remaining ranks when nodes leave or join an elastic job.
    pub keeps_ranks: bool,
}

/// The defaults of a launcher. Its module always sets the program, arguments, variables of the ranks, `init` and
/// `verify_with`.
const BASE: Launcher = Launcher {
    program: "",
    start: Start::Central,
    arguments: |_| Vec::new(),
    variables: |_| Vec::new(),
    files: |_| Vec::new(),
    environment: |_| Vec::new(),
    by_hand: |_| None,
    shell_environment: |_| open_mpi::container_environment(),
    reads: &[],
    inherits: None,
    one_interface: None,
    by_host_name: false,
    rank: &[],
    local_rank: &[],
    size: &[],
    address: None,
    launcher_address: None,
    interface_variables: &[],
    interface_defaults: &[],
    init: "",
    init_hint: None,
    verify_with: &[],
    hang_reports: &[],
    daemons: &[],
    spins: false,
    joins_programs: false,
    keeps_ranks: false,
};

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
    /// The interface of all nodes on the cluster network, or what stands for it ([`Launcher::shared_interface`]).
    pub interface: &'a str,
    /// Time for all ranks to start.
    pub start_timeout: Duration,
    /// Time limit for a collective operation that waits for a rank, after which the job ends; zero for no limit.
    pub stall_timeout: Duration,
    /// The job's directory, the same path on the nodes and in the containers.
    pub job_dir: &'a str,
    /// The program of that directory that is started as every rank.
    pub rank_program: &'static str,
    /// The limits of an elastic job whose launcher keeps the ranks ([`Launcher::keeps_ranks`]).
    pub kept: Option<KeptRanks>,
    /// The number of the role whose ranks it starts, which these get as an argument; `None` in a job without roles.
    pub role: Option<usize>,
}

/// The limits of an elastic job, for a launcher that keeps its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptRanks {
    /// The least number of ranks.
    pub min: u32,
    /// The greatest number of ranks.
    pub max: u32,
    /// Time limit for a job with fewer than the least number of ranks.
    pub timeout: Duration,
    /// The number of times that nodes may leave or join; `None` for no limit.
    pub changes: Option<u32>,
}

impl LaunchRequest<'_> {
    /// Returns the command with which every rank is started.
    fn rank_command(&self) -> Vec<Argument> {
        let command = programs::command(self.job_dir, self.rank_program).into_iter();
        command.chain(self.role.map(|role| role.to_string())).map(Argument::from).collect()
    }

    /// Returns the name of a file that a launcher reads in the job's directory, which belongs to its role alone.
    fn file(&self, name: &str) -> String {
        self.role.map_or_else(|| name.to_owned(), |role| format!("{name}.{role}"))
    }
}

/// Everything that decides how a user launches a program by hand from a shell.
#[derive(Debug, Clone, Copy)]
pub struct ShellRequest<'a> {
    /// The slots of all nodes in the hostfile.
    pub slots: u32,
    /// Path of the hostfile in the container.
    pub hostfile: &'a str,
    /// Port of the workers' sshd.
    pub port: u16,
    /// The interface of the shell's node on the cluster network, if it is known.
    pub interface: Option<&'a str>,
}

/// Checks that launchers can be given a node's address. `-H` of `horovodrun` and `mpirun`, `TF_CONFIG` and the other
/// lists that hvdctl writes put a colon between the address and the number after it, so they have no room for IPv6
/// under any launcher.
///
/// # Errors
/// Returns why the address cannot be used.
pub fn check_address(address: IpAddr) -> Result<(), String> {
    match address {
        IpAddr::V4(_) => Ok(()),
        IpAddr::V6(_) => Err(format!("launchers are given IPv4 addresses only, but {address} is an IPv6 address")),
    }
}

/// Returns a launcher. `controller` is that of `horovodrun`, Gloo by default.
pub fn launcher(name: LauncherName, controller: impl Into<Option<Controller>>) -> &'static Launcher {
    match (name, controller.into()) {
        (LauncherName::Horovodrun, Some(Controller::Mpi)) => &horovodrun::MPI,
        (LauncherName::Horovodrun, _) => &horovodrun::GLOO,
        (LauncherName::Torchrun, _) => &torchrun::LAUNCHER,
        (LauncherName::Mpirun, _) => &mpirun::LAUNCHER,
        (LauncherName::Env, _) => &env::LAUNCHER,
        (LauncherName::Srun, _) => &srun::LAUNCHER,
    }
}

/// The command that is started on a node, for a dry run.
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

/// Returns the value of a variable that pins a rank to its node's interface. Where the name does not lead to the
/// address, there is none: Gloo and TensorPipe then take the address of the host name. NCCL cannot do without, and
/// takes a name without `=` for the beginning of a name.
fn interface_value(variable: &str, endpoint: &Endpoint) -> Option<String> {
    match variable {
        "NCCL_SOCKET_IFNAME" => Some(format!("={}", endpoint.label)),
        _ => Some(endpoint.label.clone()).filter(|_| !endpoint.is_ambiguous),
    }
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

    /// Returns the environment of the launcher's container as `NAME=VALUE`; it is handed on to every rank. The user's
    /// own variables may be secret: the job supervisor takes those that the launcher reads from the job's directory.
    /// With roles, each has its own launcher's (`RoleDescription::environment`).
    pub fn container_environment(&self, id: &str, request: &LaunchRequest<'_>) -> Vec<String> {
        let base = [("HVDCTL_JOB", id.to_owned()), ("PYTHONUNBUFFERED", "1".to_owned())];
        let own = if request.role.is_none() { (self.environment)(request) } else { Vec::new() };
        let all = base.into_iter().chain(own);
        all.map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// Returns what the launcher is given as the interface of these nodes (name and endpoint): that of the first node.
    /// A launcher that takes one name for all nodes is given their network if the names differ.
    ///
    /// # Errors
    /// [`Error::Check`] with the interface of each node, if these nodes have no network in common either.
    pub fn shared_interface(&self, nodes: &[(&str, &Endpoint)]) -> Result<String, Error> {
        let labels: BTreeSet<&str> = nodes.iter().map(|(_, endpoint)| endpoint.label.as_str()).collect();
        let networks: BTreeSet<Option<&str>> = nodes.iter().map(|(_, endpoint)| endpoint.network.as_deref()).collect();
        let first = nodes.first().map_or("", |(_, endpoint)| endpoint.label.as_str());
        let Some(name) = self.one_interface.filter(|_| labels.len() > 1) else { return Ok(first.to_owned()) };
        if let (1, Some(Some(network))) = (networks.len(), networks.first()) {
            return Ok((*network).to_owned());
        }
        let list: Vec<String> = nodes.iter().map(|(node, endpoint)| format!("{node}: {}", endpoint.label)).collect();
        Err(Error::check(
            format!(
                "{name} requires the same interface name or the same network on all nodes; both differ ({})",
                list.join(", ")
            ),
            "use --launcher torchrun or env, or horovodrun with --controller gloo, which take the interface of each \
             node; or set \
             `interface` or `address` of each node so that the names agree",
        ))
    }

    /// Checks that the user's environment has none of the variables by which ranks learn their numbers. It would set
    /// them to the same value for all ranks.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check_variables<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<(), Error> {
        let is_set = |name: &str| [self.rank, self.local_rank, self.size].iter().any(|set| set.contains(&name));
        match names.into_iter().find(|name| is_set(name)) {
            None => Ok(()),
            Some(name) => Err(Error::usage(
                format!("{name} cannot be set: the launcher {} sets it for every rank", self.program),
                "remove it from -e, `env` and `env_file`, or set it in the command: env NAME=VALUE PROGRAM",
            )),
        }
    }

    /// Checks that what is to be the program of every rank has no options of the launcher.
    ///
    /// # Errors
    /// [`Error::Usage`] with what does the same.
    pub fn check_command(&self, command: &[ProgramArgument]) -> Result<(), Error> {
        let texts: Vec<String> = command.iter().map(ToString::to_string).collect();
        let Some((program, arguments)) = texts.split_first() else { return Ok(()) };
        // `sh -c :` has no further program
        let is_joined =
            self.joins_programs && arguments.split_last().is_some_and(|(_, rest)| rest.contains(&":".into()));
        if is_joined || program == "--multi-prog" {
            return Err(Error::usage(
                format!("{}: all ranks run one command", if is_joined { ":" } else { program }),
                format!(
                    "let that choose the program: sh -c 'case ${} in 0) exec PROGRAM ;; *) exec OTHER ;; esac'",
                    self.rank[0]
                ),
            ));
        }
        if program.starts_with('-') {
            let read = self.reads.iter().map(|prefix| format!("{prefix}…")).collect::<Vec<_>>().join(", ");
            return Err(Error::usage(
                format!(
                    "{program}: what each rank runs begins with a program; hvdctl passes {}'s options",
                    self.program
                ),
                if read.is_empty() { "leave it out".to_owned() } else { format!("it also reads variables: -e {read}") },
            ));
        }
        Ok(())
    }

    /// Returns the description of this launcher for the rank supervisors on a node. `launcher` is the address of the
    /// launcher's node.
    pub fn rank_description(&self, endpoint: &Endpoint, launcher: IpAddr) -> RankDescription {
        let pinned = |names: &[&'static str]| -> BTreeMap<&'static str, Option<String>> {
            names.iter().map(|name| (*name, interface_value(name, endpoint))).collect()
        };
        let mut environment = pinned(self.interface_variables);
        environment.extend(self.launcher_address.map(|name| (name, Some(launcher.to_string()))));
        let variables = RankVariables { environment, defaults: pinned(self.interface_defaults) };
        RankDescription { variables, ..self.unpinned_description() }
    }

    /// Returns the same where the site has set up which networks programs use, as in an allocation of Slurm.
    pub fn unpinned_description(&self) -> RankDescription {
        RankDescription {
            rank: self.rank,
            local_rank: self.local_rank,
            size: self.size,
            address: self.address,
            variables: RankVariables::default(),
            init: self.init,
            hang_reports: self.hang_reports.iter().copied().collect(),
            gave_up: collectives::texts().collect(),
            daemons: self.daemons,
            spins: self.spins,
        }
    }
}
