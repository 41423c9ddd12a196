//! The description of a launcher and a job for the programs on the nodes, as JSON: `launch.json` for the job supervisor,
//! `launcher.json` for the rank supervisors, `notebook.json` for launches by hand. Files of earlier builds have the same
//! fields.

use super::role_placement::RoleShape;
use super::{LaunchRequest, Launcher};
use crate::model::role::{Ends, ReadyWhen};
use crate::node::names::HostEntry;
use crate::text::argument::ProgramArgument;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// On which nodes a launcher is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// One process on the first node starts the ranks of all nodes.
    Central,
    /// One process on each node starts the ranks there.
    PerNode,
    /// One process for each rank: there is no launcher.
    PerRank,
}

/// An argument of the launcher, or the value of a variable. What depends on the nodes is filled in by the job
/// supervisor: after a failure a job may continue on those that still answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    /// The number of ranks.
    Ranks {},
    /// `ADDRESS:RANKS,…` in rank order.
    Hosts {},
    /// A hostfile of Open MPI, `ADDRESS slots=RANKS` on a line each, in rank order.
    Hostfile {},
    /// An interface name, which differs if all ranks are on the node of the launcher.
    Interface {
        /// On several nodes.
        shared: String,
        /// On that node alone.
        alone: String,
    },
    /// The number of nodes.
    Nodes {},
    /// The number of this node, from 0 on.
    Node {},
    /// The number of ranks on this node.
    LocalRanks {},
    /// The address of the first node.
    FirstAddress {},
    /// The address of the first node and this port.
    FirstEndpoint {
        /// The port.
        port: u16,
    },
    /// The port at which ranks find one another.
    RendezvousPort {
        /// The port.
        port: u16,
    },
    /// The number of this rank.
    Rank {},
    /// The number of this rank among those of its node.
    LocalRank {},
    /// `TF_CONFIG` of this rank (<https://www.tensorflow.org/guide/distributed_training#TF_CONFIG>).
    TfConfig {
        /// The port of the first rank of each node; the next rank has the next port.
        port: u16,
    },
    /// A text that does not depend on the nodes.
    #[serde(untagged)]
    Text(String),
}

impl<T: Into<String>> From<T> for Argument {
    fn from(text: T) -> Argument {
        Argument::Text(text.into())
    }
}

/// Where a launcher, or a rank, is started.
#[derive(Debug, Clone, Copy)]
pub struct Position<'a> {
    /// The nodes with ranks, in rank order.
    pub hosts: &'a [LaunchHost<'a>],
    /// The node of the launcher.
    pub first: LaunchHost<'a>,
    /// The node's number in `hosts`.
    pub node: usize,
    /// The rank's number on that node.
    pub local_rank: u32,
}

impl Position<'_> {
    /// Returns the text of an argument here, for a dry run. `attempt.py` does the same for a job;
    /// `tests/launcher_arguments.json` has what both return.
    pub fn text(&self, argument: &Argument) -> String {
        let Position { hosts, first, node, local_rank } = *self;
        let before: u32 = hosts[..node].iter().map(|host| host.ranks).sum();
        let is_alone = *hosts == [first];
        let first_address = hosts.first().unwrap_or(&first).address;
        match argument {
            Argument::Ranks {} => hosts.iter().map(|host| host.ranks).sum::<u32>().to_string(),
            Argument::Hosts {} => {
                hosts.iter().map(|host| format!("{}:{}", host.address, host.ranks)).collect::<Vec<_>>().join(",")
            }
            Argument::Hostfile {} => {
                hosts.iter().map(|host| format!("{} slots={}\n", host.address, host.ranks)).collect()
            }
            Argument::Interface { alone, .. } if is_alone => alone.clone(),
            Argument::Interface { shared, .. } => shared.clone(),
            Argument::Nodes {} => hosts.len().to_string(),
            Argument::Node {} => node.to_string(),
            Argument::LocalRanks {} => hosts.get(node).map_or(0, |host| host.ranks).to_string(),
            Argument::FirstAddress {} => first_address.to_string(),
            Argument::FirstEndpoint { port } => format!("{first_address}:{port}"),
            Argument::RendezvousPort { port } => port.to_string(),
            Argument::Rank {} => (before + local_rank).to_string(),
            Argument::LocalRank {} => local_rank.to_string(),
            Argument::TfConfig { port } => {
                let ranks = hosts.iter().flat_map(|host| (0..host.ranks).map(move |rank| (host.address, rank)));
                let workers: Vec<String> =
                    ranks.map(|(address, rank)| format!("{address}:{}", u32::from(*port) + rank)).collect();
                let task = json!({"type": "worker", "index": before + local_rank});
                json!({"cluster": {"worker": workers}, "task": task}).to_string()
            }
            Argument::Text(text) => text.clone(),
        }
    }
}

/// The description of a launch for the job supervisor: `JOBS/ID/launch.json` on the node of the launcher.
#[derive(Debug, Clone, Serialize)]
pub struct LaunchDescription<'a> {
    /// On which nodes the launcher is started.
    pub start: Start,
    /// The argument vector of the launcher, or of every rank.
    pub launcher: Vec<Argument>,
    /// The variables of every rank, if no launcher sets them.
    pub variables: BTreeMap<&'static str, Argument>,
    /// The surroundings of the launcher.
    #[serde(flatten)]
    pub surroundings: Surroundings<Argument>,
    /// The node of the launcher.
    #[serde(flatten)]
    pub first: LaunchHost<'a>,
    /// The nodes' names for `/etc/hosts` of its container (`hosts.py`), its own node's first.
    pub names: Vec<&'a HostEntry>,
    /// The other nodes, which the job supervisor reaches over the sshd of their workers.
    pub workers: Vec<LaunchHost<'a>>,
    /// How often the job is started again after a failure.
    pub restarts: u32,
    /// The limits of an elastic job; none: the job has a fixed size.
    pub elastic: Option<Elastic>,
    /// Set if the nodes are an allocation of a site's Slurm. Then the job supervisor chooses the port at which ranks find
    /// one another, for each attempt: nothing is known of its nodes before.
    pub slurm: bool,
    /// The signal that the ranks get before the allocation ends; none: SIGTERM alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<Warning>,
    /// Set if its nodes are an allocation of the cluster's queue, which may end it (`deallocated`).
    pub queued: bool,
    /// Set if the workers belong to this job and are removed with it.
    pub own_workers: bool,
    /// Seconds between SIGTERM and SIGKILL if the end is requested.
    pub grace: u64,
    /// Seconds for all ranks to start.
    pub start_timeout: u64,
    /// Seconds before the first restart.
    pub restart_pause: u64,
    /// Seconds between keep-alive probes of the connections to the workers.
    pub keep_alive: u64,
    /// The roles of the job, in their order; empty for a job of one program. Then the fields above that describe a
    /// launcher are those of the first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleDescription<'a>>,
}

/// The description of a role for the job supervisor.
#[derive(Debug, Clone, Serialize)]
pub struct RoleDescription<'a> {
    /// Its name.
    pub name: &'a str,
    /// As [`LaunchDescription::start`].
    pub start: Start,
    /// As [`LaunchDescription::launcher`].
    pub launcher: Vec<Argument>,
    /// As [`LaunchDescription::variables`].
    pub variables: BTreeMap<&'static str, Argument>,
    /// As [`LaunchDescription::surroundings`]. The name of each file is its own.
    #[serde(flatten)]
    pub surroundings: Surroundings<Argument>,
    /// The environment of its launcher, over that of the container.
    pub environment: BTreeMap<&'static str, String>,
    /// The nodes of its ranks, in rank order.
    pub places: Vec<RolePlace<'a>>,
    /// Its size, if Slurm chooses the nodes: then `placement.py` finds the places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<RoleShape<'a>>,
    /// The effect of its end.
    pub ends: Ends,
    /// The numbers of the roles that have to be ready before it begins.
    pub needs: Vec<usize>,
    /// The names of its ports: each of its ranks gets one for each name.
    pub ports: Vec<String>,
    /// The condition under which its ranks are ready; none: when they have started.
    pub ready: Option<ReadyWhen>,
    /// Seconds for that, from its start on.
    pub ready_timeout: u64,
}

/// The ranks of a role on a node.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RolePlace<'a> {
    /// The node, with the number of the role's ranks there.
    #[serde(flatten)]
    pub host: LaunchHost<'a>,
    /// The rank in the job of the first of them.
    pub first: u32,
}

/// The surroundings of a launcher, whether the job supervisor or a cell of a notebook starts it (`node_launcher.py`).
/// `T`: a text, or one that is filled in for each attempt.
#[derive(Debug, Clone, Serialize)]
pub struct Surroundings<T> {
    /// The files that it reads on its node, by their names in the job's directory.
    pub files: BTreeMap<String, T>,
    /// Prefixes of the ranks' variables that it gets too.
    pub reads: &'static [&'static str],
    /// Patterns for the names of the variables that it gets of the environment of its node, or of the cell; none: all.
    pub inherits: Option<&'static [&'static str]>,
    /// The port of the workers' sshd.
    pub port: u16,
}

impl Surroundings<Argument> {
    /// Returns those of a launcher that starts this.
    pub fn of(launcher: &Launcher, request: &LaunchRequest<'_>, port: u16) -> Surroundings<Argument> {
        let files = (launcher.files)(request).into_iter().collect();
        Surroundings { files, reads: launcher.reads, inherits: launcher.inherits, port }
    }

    /// Fills in what depends on the nodes.
    pub fn at(self, position: &Position<'_>) -> Surroundings<String> {
        let Surroundings { files, reads, inherits, port } = self;
        let files = files.into_iter().map(|(name, text)| (name, position.text(&text))).collect();
        Surroundings { files, reads, inherits, port }
    }
}

/// A signal that ranks get before they are asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Its number.
    pub signal: u8,
    /// Seconds between the two.
    pub seconds: u64,
}

/// The limits of an elastic job, whose nodes may leave and join (`membership.py`).
#[derive(Debug, Clone, Serialize)]
pub struct Elastic {
    /// The least number of ranks.
    pub min_ranks: u32,
    /// Seconds for which it may have fewer.
    pub timeout: u64,
    /// Set if the launcher keeps the ranks that are left (`in_place.py`).
    pub in_place: bool,
}

/// A node of a job, as the launcher and the job supervisor know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LaunchHost<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its address in the cluster.
    pub address: IpAddr,
    /// Its ranks; 0 if it only launches.
    pub ranks: u32,
}

/// The variables of a node's ranks; one without a value is not set.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RankVariables {
    /// Those that are set whatever the launcher sets. The user's own go first.
    pub environment: BTreeMap<&'static str, Option<String>>,
    /// Those that the launcher's environment replaces.
    pub defaults: BTreeMap<&'static str, Option<String>>,
}

/// The description of a launcher for the rank supervisors of a node: `JOBS/ID/launcher.json`.
#[derive(Debug, Clone, Serialize)]
pub struct RankDescription {
    /// The variables by which a rank learns its number: the first one that is set counts.
    pub rank: &'static [&'static str],
    /// Those with its number on its node.
    pub local_rank: &'static [&'static str],
    /// Those with the number of ranks.
    pub size: &'static [&'static str],
    /// The variable with the address of the rank's node, if there is one.
    pub address: Option<&'static str>,
    /// The variables of the ranks.
    #[serde(flatten)]
    pub variables: RankVariables,
    /// The function in which ranks wait until all have begun, as failures name it.
    pub init: &'static str,
    /// The patterns of messages about ranks that hang.
    pub hang_reports: BTreeMap<&'static str, &'static str>,
    /// Texts of lines about a rank that gave up waiting for others.
    pub gave_up: Vec<&'static str>,
    /// The names of the process that it leaves on each node, above the ranks, by version.
    pub daemons: &'static [&'static str],
    /// Set if a thread of each rank waits for the others without ever sleeping.
    pub spins: bool,
}

/// Writes the file.
impl fmt::Display for RankDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", json!(self))
    }
}

/// The description of the launchers of a job with roles for the rank supervisors of a node: `launcher.json` has a list
/// `roles` of these. The number of a rank's role is the argument of its rank supervisor.
#[derive(Debug, Clone, Serialize)]
pub struct RankRoleDescription<'a> {
    /// The launcher.
    #[serde(flatten)]
    pub launcher: RankDescription,
    /// The name of the role.
    pub name: &'a str,
    /// The number of its ranks on this node.
    pub ranks: u32,
    /// The rank in the job of the first of them.
    pub first: u32,
    /// The rank in the role of the first of them.
    pub before: u32,
    /// The number of the first of them among all ranks of this node.
    pub offset: u32,
    /// The names of its ports.
    pub ports: &'a [String],
    /// The condition under which a rank is ready.
    pub ready: Option<&'a ReadyWhen>,
    /// The number of GPUs of each rank, which sees no other ones; none: a rank sees those of all ranks of its role on the
    /// node, and chooses by its local rank.
    pub gpus: Option<u32>,
    /// The fields of the job's record that differ for this role.
    pub job: RoleOverrides<'a>,
}

/// The fields of a job's record that differ from role to role.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RoleOverrides<'a> {
    /// As [`crate::record::Record::command`].
    pub command: &'a [ProgramArgument],
    /// As [`crate::record::Record::default_command`].
    pub default_command: bool,
    /// As [`crate::record::Record::stall`].
    pub stall: u64,
    /// As [`crate::record::Record::stall_warning`].
    pub stall_warning: u64,
}

/// The description of a launch on the nodes of a running job: `JOBS/ID/notebook.json`.
#[derive(Debug, Serialize)]
pub struct ByHand<'a> {
    /// The nodes in rank order, that of the launcher first.
    pub nodes: Vec<ByHandNode<'a>>,
    /// The surroundings of the launcher.
    #[serde(flatten)]
    pub surroundings: Surroundings<String>,
    /// The processes that are started.
    pub commands: Vec<ByHandCommand>,
    /// The environment of the launcher.
    pub environment: BTreeMap<&'static str, String>,
    /// The variables that tell a program which rank of the job it is.
    pub remove: Vec<&'static str>,
    /// As [`RankDescription::local_rank`].
    pub local_rank: &'static [&'static str],
}

/// A node and its ranks.
#[derive(Debug, Serialize)]
pub struct ByHandNode<'a> {
    /// The node.
    #[serde(flatten)]
    pub host: LaunchHost<'a>,
    /// The variables of its ranks.
    #[serde(flatten)]
    pub variables: RankVariables,
}

/// A launcher, the agent of a node, or its ranks.
#[derive(Debug, Serialize)]
pub struct ByHandCommand {
    /// The node's number.
    pub node: usize,
    /// The argument vector, up to the program that it starts.
    pub argv: Vec<String>,
    /// The variables of each rank, `NAME=VALUE`, if no launcher sets them.
    pub variables: Vec<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::HashMap;

    /// The table that the job supervisor's test reads too.
    #[derive(Deserialize)]
    struct Table {
        addresses: HashMap<String, IpAddr>,
        positions: Vec<Row>,
    }

    #[derive(Deserialize)]
    struct Row {
        nodes: Vec<(String, u32)>,
        launcher: String,
        node: usize,
        local_rank: u32,
        arguments: Vec<(Argument, Value)>,
    }

    #[test]
    fn arguments_have_the_text_that_the_job_supervisor_gives_them() {
        let table: Table = serde_json::from_str(include_str!("../../tests/launcher_arguments.json")).unwrap();
        for Row { nodes, launcher, node, local_rank, arguments } in table.positions {
            let host = |node, ranks| LaunchHost { node, address: table.addresses[node], ranks };
            let hosts: Vec<_> = nodes.iter().map(|(name, ranks)| host(name, *ranks)).collect();
            let first = hosts.iter().find(|host| host.node == launcher).copied().unwrap_or(host(&launcher, 0));
            let at = Position { hosts: &hosts, first, node, local_rank };
            for (argument, expected) in arguments {
                let text = at.text(&argument);
                // an object stands for any text of it
                let text: Value = if expected.is_string() { text.into() } else { serde_json::from_str(&text).unwrap() };
                assert_eq!(text, expected, "{argument:?}");
            }
        }
    }
}
