//! The launcher's words: what `horovodrun` is given, as an argument vector.

use crate::inventory::Controller;
use serde::Serialize;
use std::net::IpAddr;
use std::time::Duration;

/// The file name of the rank supervisor in a run's folder.
pub const SUPERVISOR: &str = "rank.py";
/// That of the run's keeper, the main process of `hmaster`.
pub const KEEPER: &str = "keeper.py";

/// Everything that decides the launcher's command line.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// Gloo or MPI; always said, because the official image defaults to MPI without a word.
    pub controller: Controller,
    /// Address and number of ranks per node, in rank order; the sum is exactly `-np`.
    pub hosts: &'a [(IpAddr, u32)],
    /// Port of the workers' sshd.
    pub port: u16,
    /// The one interface that Horovod shall use; with it the launcher probes nothing (4 s saved on two nodes, and
    /// no hang on `docker0`).
    pub interface: &'a str,
    /// Horovod's own time-out for start-up.
    pub start_timeout: Duration,
    /// How long a collective operation may wait for a rank before Horovod ends the run; zero: for ever, which is Horovod's own
    /// default (horovodrun(1), `--stall-check-shutdown-time-seconds`).
    pub stall_timeout: Duration,
    /// The run's folder, the same path on the node and in the container.
    pub job_dir: &'a str,
}

impl Launch<'_> {
    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.hosts.iter().map(|(_, n)| n).sum()
    }

    /// The vector for `horovodrun`. What the ranks run is always the supervisor: the user's program is in the run's
    /// record, so none of its words is quoted, split or expanded by the launcher.
    pub fn horovodrun(&self) -> Vec<String> {
        let controller = match self.controller {
            Controller::Gloo => "--gloo",
            Controller::Mpi => "--mpi",
        };
        let hosts: Vec<String> = self.hosts.iter().map(|(address, n)| format!("{address}:{n}")).collect();
        // Horovod heeds the time-out only where it is longer than that of its warning, 60 s
        let stall = self.stall_timeout.as_secs();
        let warning = if stall == 0 { 60 } else { (stall / 2).clamp(1, 60) };
        [
            "horovodrun",
            controller,
            "-np",
            &self.ranks().to_string(),
            "-H",
            &hosts.join(","),
            "-p",
            &self.port.to_string(),
            "--network-interfaces",
            self.interface,
            "--disable-cache",
            "--start-timeout",
            &self.start_timeout.as_secs().to_string(),
            "--stall-check-warning-time-seconds",
            &warning.to_string(),
            "--stall-check-shutdown-time-seconds",
            &stall.to_string(),
            "python3",
            &format!("{}/{SUPERVISOR}", self.job_dir),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// The command of the `hmaster` container.
    pub fn container_command(&self) -> Vec<String> {
        vec!["python3".to_owned(), format!("{}/{KEEPER}", self.job_dir)]
    }
}

/// What the keeper has to know; `JOBS/ID/launch.json` on the node of the launcher.
#[derive(Debug, Clone, Serialize)]
pub struct Keeping<'a> {
    /// The launcher's vector.
    pub launcher: Vec<String>,
    /// The node of the launcher.
    pub node: &'a str,
    /// Its address in the cluster.
    pub address: IpAddr,
    /// Its ranks; none where it only launches.
    pub ranks: u32,
    /// The others.
    pub workers: Vec<Worker>,
    /// How often the run is started again after a failure.
    pub restarts: u32,
    /// Whether the workers are this run's alone, and end with it.
    pub own_workers: bool,
    /// Port of their sshd.
    pub port: u16,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace: u64,
    /// Seconds for all ranks to start.
    pub start_timeout: u64,
    /// Seconds before the first restart.
    pub restart_pause: u64,
    /// Seconds between keep-alive probes of the connections to the workers.
    pub keep_alive: u64,
}

/// A node that the keeper reaches over the sshd of its worker.
#[derive(Debug, Clone, Serialize)]
pub struct Worker {
    /// Its name.
    pub node: String,
    /// Its address in the cluster.
    pub address: IpAddr,
    /// Its ranks.
    pub ranks: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_is_exact() {
        let hosts = [("10.0.0.1".parse().unwrap(), 2), ("10.0.0.2".parse().unwrap(), 1)];
        let launch = Launch {
            controller: Controller::Mpi,
            hosts: &hosts,
            port: 12345,
            interface: "eth0",
            start_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(1800),
            job_dir: "/opt/horovod/jobs/j1",
        };
        assert_eq!(
            launch.horovodrun().join(" "),
            "horovodrun --mpi -np 3 -H 10.0.0.1:2,10.0.0.2:1 -p 12345 --network-interfaces eth0 --disable-cache \
             --start-timeout 30 --stall-check-warning-time-seconds 60 --stall-check-shutdown-time-seconds 1800 python3 /opt/horovod/jobs/j1/rank.py"
        );
        assert_eq!(launch.container_command(), ["python3", "/opt/horovod/jobs/j1/keeper.py"]);
    }
}
