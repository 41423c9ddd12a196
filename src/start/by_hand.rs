//! How a program in a running job starts ranks of its own on all slots of the job: `notebook.json`, which
//! `scripts/notebook/notebook.py` reads.

use super::hosts::{HostAssignment, RENDEZVOUS_PORTS, rendezvous_port};
use super::plan::JobPlan;
use crate::error::Error;
use crate::inventory::{Controller, LauncherName};
use crate::launch::description::{ByHand, ByHandCommand, ByHandNode, LaunchHost, Position, Surroundings};
use crate::launch::{LaunchRequest, launcher};
use crate::random;
use crate::record::stored;

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
        let most = hosts.iter().map(|host| host.ranks).max().unwrap_or_default();
        let request = LaunchRequest {
            hosts: &hosts,
            first: hosts[0],
            // jobs that begin later take the first ones
            rendezvous_port: rendezvous_port(&self.hosts, most.max(1), random::below(RENDEZVOUS_PORTS) as u16)?,
            port: cluster.port,
            interface: &interface,
            start_timeout: cluster.start_timeout,
            stall_timeout: cluster.stall_timeout,
            job_dir: &job_dir,
            rank_program: program,
            kept: None,
            role: None,
        };
        let first = self.hosts.launcher.endpoint.address;
        let node = |host| ByHandNode {
            host: HostAssignment::launch_host(host),
            variables: by_hand.rank_description(&host.endpoint, first).variables,
        };
        let number = |name: &str| hosts.iter().position(|host| host.node == name).unwrap_or_default();
        let commands = by_hand.commands(&request).into_iter();
        let at = Position { hosts: &hosts, first: hosts[0], node: 0, local_rank: 0 };
        let of_job = launcher(self.options.launcher, self.options.controller);
        let description = ByHand {
            nodes: self.hosts.all().map(node).collect(),
            surroundings: Surroundings::of(by_hand, &request, cluster.port).at(&at),
            commands: commands
                .map(|command| ByHandCommand {
                    node: number(&command.node),
                    argv: command.argv,
                    variables: command.variables,
                })
                .collect(),
            environment: (by_hand.environment)(&request).into_iter().collect(),
            remove: (of_job.variables)(&request).into_iter().map(|(name, _)| name).collect(),
            local_rank: by_hand.local_rank,
        };
        stored::write("notebook.json", &description).map_err(Error::Local)
    }
}
