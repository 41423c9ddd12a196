//! How a program in a running job starts ranks of its own on all slots of the job: `notebook.json`, which
//! `scripts/notebook/notebook.py` reads.

use super::plan::{HostAssignment, JobPlan, RENDEZVOUS_PORTS, rendezvous_port};
use crate::error::Error;
use crate::inventory::{Controller, LauncherName};
use crate::launch::description::{LaunchHost, Position};
use crate::launch::{LaunchRequest, launcher};
use crate::random;
use crate::record::stored;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What a launch on the nodes of a job needs.
#[derive(Debug, Serialize)]
struct ByHand {
    /// The nodes in rank order, that of the launcher first.
    nodes: Vec<LaunchNode>,
    /// The port of the workers' sshd.
    port: u16,
    /// What is started where.
    commands: Vec<LaunchCommand>,
    /// The environment of the launcher.
    environment: BTreeMap<&'static str, String>,
    /// The files that the launcher reads, by their names in the job's directory.
    files: BTreeMap<&'static str, String>,
    /// The variables that say which rank of the job a program is.
    remove: Vec<&'static str>,
    /// Prefixes of variables that the launcher itself reads.
    reads: &'static [&'static str],
    /// Patterns for the names of the variables that the launcher gets of the environment of the cell; none: all.
    inherits: Option<&'static [&'static str]>,
    /// The variables by which a rank learns its number on its node.
    local_rank: &'static [&'static str],
}

/// A node and its ranks.
#[derive(Debug, Serialize)]
struct LaunchNode {
    node: String,
    address: IpAddr,
    ranks: u32,
    /// Variables that the ranks of this node have; null: not set.
    environment: Value,
    /// Those that the user's own replace.
    defaults: Value,
}

/// A launcher, the agent of a node, or its ranks.
#[derive(Debug, Serialize)]
struct LaunchCommand {
    /// The node's number.
    node: usize,
    /// The argument vector, up to the program that it starts.
    argv: Vec<String>,
    /// The variables of each rank, `NAME=VALUE`, if no launcher sets them.
    variables: Vec<Vec<String>>,
}

impl JobPlan {
    /// Returns `notebook.json`: how this launcher starts `program`, a file of the job's directory, on all slots of the
    /// job.
    ///
    /// # Errors
    /// Interfaces that the launcher cannot use, and no free port.
    pub fn by_hand(
        &self,
        (name, controller): (LauncherName, Controller),
        program: &'static str,
    ) -> Result<String, Error> {
        let cluster = &self.workers.of_job(&self.inventory).cluster;
        let by_hand = launcher(name, controller);
        let endpoints: Vec<_> = self.hosts.all().map(|host| (host.observed.name(), &host.endpoint)).collect();
        let interface = by_hand.shared_interface(&endpoints)?;
        let hosts: Vec<LaunchHost<'_>> = self.hosts.all().map(HostAssignment::launch_host).collect();
        let job_dir = format!("{}/{}", cluster.jobs_dir, self.id);
        let request = LaunchRequest {
            hosts: &hosts,
            first: hosts[0],
            // jobs that begin later take the first ones
            rendezvous_port: rendezvous_port(&self.hosts, random::below(RENDEZVOUS_PORTS) as u16)?,
            port: cluster.port,
            interface: &interface,
            start_timeout: cluster.start_timeout,
            stall_timeout: cluster.stall_timeout,
            job_dir: &job_dir,
            rank_program: program,
            kept: None,
        };
        let node = |host: &HostAssignment| {
            let mut description = by_hand.rank_description(&host.endpoint, self.hosts.launcher.endpoint.address);
            let LaunchHost { node, address, ranks } = host.launch_host();
            let [environment, defaults] = ["environment", "defaults"].map(|part| description[part].take());
            LaunchNode { node: node.to_owned(), address, ranks, environment, defaults }
        };
        let number = |name: &str| hosts.iter().position(|host| host.node == name).unwrap_or_default();
        let commands = by_hand.commands(&request).into_iter();
        let at = Position { hosts: &hosts, first: hosts[0], node: 0, local_rank: 0 };
        let of_job = launcher(self.options.launcher, self.options.controller);
        let description = ByHand {
            nodes: self.hosts.all().map(node).collect(),
            port: cluster.port,
            commands: commands
                .map(|command| LaunchCommand {
                    node: number(&command.node),
                    argv: command.argv,
                    variables: command.variables,
                })
                .collect(),
            environment: (by_hand.environment)(&request).into_iter().collect(),
            files: (by_hand.files)(&request).into_iter().map(|(name, text)| (name, at.text(&text))).collect(),
            remove: (of_job.variables)(&request).into_iter().map(|(name, _)| name).collect(),
            reads: by_hand.reads,
            inherits: by_hand.inherits,
            local_rank: by_hand.local_rank,
        };
        stored::write("notebook.json", &description).map_err(Error::Local)
    }
}
