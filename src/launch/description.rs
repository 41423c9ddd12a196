//! What the programs on the nodes are told about a launcher and a job, as JSON.

use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// On which nodes a launcher is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// One process on the first node starts the ranks of all nodes.
    Central,
    /// One process on each node starts the ranks there. No launcher of this kind is implemented yet: the job supervisor needs a class
    /// for it (`LAUNCHERS`), and [`Argument`] what differs from node to node.
    PerNode,
}

/// An argument of the launcher. What depends on the nodes is filled in by the job supervisor: after a failure a job may continue on
/// those that still answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    /// The number of ranks.
    Ranks {},
    /// `ADDRESS:RANKS,…` in rank order.
    Hosts {},
    /// An interface name, which differs if all ranks are on the node of the launcher.
    Interface {
        /// On several nodes.
        shared: String,
        /// On that node alone.
        alone: String,
    },
    /// The same on any nodes.
    #[serde(untagged)]
    Text(String),
}

impl From<&str> for Argument {
    fn from(text: &str) -> Argument {
        Argument::Text(text.to_owned())
    }
}

/// Returns the argument vector for these hosts (address and ranks of each, in rank order); `first` is the node of the launcher.
/// `job_supervisor.py` does the same.
pub fn resolve(arguments: &[Argument], hosts: &[(IpAddr, u32)], first: IpAddr) -> Vec<String> {
    let is_alone = matches!(hosts, [(address, _)] if *address == first);
    let value = |argument: &Argument| match argument {
        Argument::Ranks {} => hosts.iter().map(|(_, ranks)| ranks).sum::<u32>().to_string(),
        Argument::Hosts {} => {
            hosts.iter().map(|(address, ranks)| format!("{address}:{ranks}")).collect::<Vec<_>>().join(",")
        }
        Argument::Interface { alone, .. } if is_alone => alone.clone(),
        Argument::Interface { shared, .. } => shared.clone(),
        Argument::Text(text) => text.clone(),
    };
    arguments.iter().map(value).collect()
}

/// What the job supervisor has to know: `JOBS/ID/launch.json` on the node of the launcher.
#[derive(Debug, Clone, Serialize)]
pub struct LaunchDescription<'a> {
    /// On which nodes the launcher is started.
    pub start: Start,
    /// The launcher's argument vector.
    pub launcher: Vec<Argument>,
    /// The node of the launcher.
    pub node: &'a str,
    /// Its address in the cluster.
    pub address: IpAddr,
    /// Its ranks; 0 if it only launches.
    pub ranks: u32,
    /// The other nodes.
    pub workers: Vec<Worker>,
    /// How often the job is started again after a failure.
    pub restarts: u32,
    /// Whether the workers are this job's alone, and end with it.
    pub own_workers: bool,
    /// Port of their sshd.
    pub port: u16,
    /// Seconds between SIGTERM and SIGKILL if the end is requested.
    pub grace: u64,
    /// Seconds for all ranks to start.
    pub start_timeout: u64,
    /// Seconds before the first restart.
    pub restart_pause: u64,
    /// Seconds between keep-alive probes of the connections to the workers.
    pub keep_alive: u64,
}

/// A node that the job supervisor reaches over the sshd of its worker.
#[derive(Debug, Clone, Serialize)]
pub struct Worker {
    /// Its name.
    pub node: String,
    /// Its address in the cluster.
    pub address: IpAddr,
    /// Its ranks.
    pub ranks: u32,
}

/// What the rank supervisors on a node have to know about the launcher: `JOBS/ID/launcher.json`. The fields are those of
/// [`Launcher`](super::Launcher).
#[derive(Debug, Clone, Serialize)]
pub struct RankDescription<'a> {
    /// The variables with the rank's number; the first that is set counts.
    pub rank: &'static [&'static str],
    /// Those with the number of ranks.
    pub size: &'static [&'static str],
    /// The program's environment over that of the launcher.
    pub environment: BTreeMap<&'static str, &'a str>,
    /// The same under it.
    pub defaults: BTreeMap<&'static str, &'a str>,
    /// What ranks wait in until all have begun.
    pub init: &'static str,
    /// Patterns of the library's messages, in Python's syntax.
    pub hang_reports: BTreeMap<&'static str, &'static str>,
    /// The launcher's process above the ranks of a node.
    pub daemon: Option<&'static str>,
    /// Whether a thread of each rank waits for the others without ever sleeping.
    pub spins: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_depend_on_the_nodes_are_marked() {
        let arguments = [
            "run".into(),
            Argument::Ranks {},
            Argument::Hosts {},
            Argument::Interface { shared: "eth0".into(), alone: "lo".into() },
        ];
        assert_eq!(
            serde_json::to_string(&arguments).unwrap(),
            r#"["run",{"ranks":{}},{"hosts":{}},{"interface":{"shared":"eth0","alone":"lo"}}]"#
        );
        let [first, second] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let resolved = |hosts: &[(IpAddr, u32)]| resolve(&arguments, hosts, first).join(" ");
        assert_eq!(resolved(&[(first, 2), (second, 1)]), "run 3 10.0.0.1:2,10.0.0.2:1 eth0");
        assert_eq!(resolved(&[(first, 2)]), "run 2 10.0.0.1:2 lo");
        assert_eq!(resolved(&[(second, 1)]), "run 1 10.0.0.2:1 eth0");
    }
}
