//! The output of `src/scripts/node/doctor.sh`, parsed.

use crate::node::lines::{known, parts};
use crate::node::storage::{Disk, Inodes, disk, inodes};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::str::FromStr;

/// The versions in a worker, by `src/scripts/worker/inside.py`: `python`, `torch`, `horovod`, `build`, `cuda`, `nccl`,
/// …, without packages that are not installed. `name:HOST`: the addresses that a host name resolves to there.
/// `unread:KEY`: the reason why a value could not be read.
pub type Versions = BTreeMap<String, String>;

/// Parses the lines of `inside.py`: `KEY VALUE`.
pub fn versions(text: &str) -> Versions {
    text.lines().filter_map(pair).collect()
}

/// A process that uses a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuUser {
    /// The GPU.
    pub uuid: String,
    /// The process.
    pub pid: u32,
    /// Megabytes of the GPU's memory.
    pub memory: Option<u64>,
    /// The user of the process.
    pub user: String,
    /// The job of hvdctl's that it belongs to.
    pub job: Option<String>,
    /// Its program.
    pub program: String,
}

/// Facts about a node that only `doctor` reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// `uname -r`.
    pub kernel: Option<String>,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// Set if a program of the NVIDIA Container Toolkit is installed, or Docker has a runtime of it.
    pub toolkit: bool,
    /// The number of programs that its sshd starts on one connection (`MaxSessions`, sshd_config(5)).
    pub max_sessions: Option<u32>,
    /// Set if there are InfiniBand devices.
    pub infiniband: bool,
    /// Devices of networks by which ranks reach each other's memory.
    pub fabrics: BTreeSet<String>,
    /// Adapters of InfiniBand, RoCE or EFA with a connected port: `NAME LINK-LAYER`, without the latter if it is not
    /// known.
    pub adapters: BTreeSet<String>,
    /// The limit of locked memory in the worker, in bytes; `u64::MAX`: none.
    pub memlock: Option<u64>,
    /// The number of files that a rank may open in the worker; `u64::MAX`: any number.
    pub nofile: Option<u64>,
    /// Largest packet of each interface.
    pub mtu: BTreeMap<String, u32>,
    /// Interfaces that drop packets from an address to which packets would leave by another one (`rp_filter` 1).
    pub strict: BTreeSet<String>,
    /// Room.
    pub disks: Vec<Disk>,
    /// Room for files of images.
    pub inodes: Vec<Inodes>,
    /// Its own host name, if that resolves to no address there.
    pub unresolved: Option<String>,
    /// The interfaces by which packets to other nodes' addresses leave; if there is no route, the message of `ip`.
    pub routes: BTreeMap<IpAddr, Result<String, String>>,
    /// The programs that use the GPUs.
    pub gpu_users: Vec<GpuUser>,
    /// The checks that could not be made, with the message of the program that failed.
    pub unchecked: BTreeMap<String, String>,
}

impl Details {
    /// Adds what the names of Docker's OCI runtimes tell.
    #[must_use]
    pub fn with_runtimes(self, runtimes: &[String]) -> Details {
        let is_registered = runtimes.iter().any(|runtime| runtime.contains("nvidia"));
        Details { toolkit: self.toolkit || is_registered, ..self }
    }

    /// Parses the script's lines: `KEY VALUE`. Unknown keys are ignored.
    pub fn parse(text: &str) -> Details {
        let mut details = Details::default();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "kernel" => details.kernel = Some(value.to_owned()),
                "driver" => details.driver = Some(value.trim().to_owned()).filter(|v| !v.is_empty()),
                "toolkit" => details.toolkit = true,
                "max-sessions" => details.max_sessions = value.parse().ok(),
                "infiniband" => details.infiniband = true,
                "fabric" => drop(details.fabrics.insert(value.to_owned())),
                "adapter" => drop(details.adapters.insert(value.trim().to_owned())),
                "memlock" => details.memlock = limit(value),
                "nofile" => details.nofile = limit(value),
                "mtu" => details.mtu.extend(pair(value)),
                "strict" => drop(details.strict.insert(value.to_owned())),
                "disk" => details.disks.extend(disk(value)),
                "inodes" => details.inodes.extend(inodes(value)),
                "unresolved" => details.unresolved = Some(value.to_owned()),
                "route" => details.routes.extend(route(value)),
                "gpu-user" => details.gpu_users.extend(gpu_user(value)),
                "unchecked" => details.unchecked.extend(pair(value)),
                _ => {}
            }
        }
        details
    }
}

/// A limit of a process in `/proc`.
fn limit(value: &str) -> Option<u64> {
    if value == "unlimited" { Some(u64::MAX) } else { value.parse().ok() }
}

/// `NAME VALUE`.
fn pair<V: FromStr>(text: &str) -> Option<(String, V)> {
    let (name, value) = text.split_once(' ')?;
    Some((name.to_owned(), value.parse().ok()?))
}

/// Parses `ADDRESS INTERFACE SOURCE` or `ADDRESS - MESSAGE`.
fn route(value: &str) -> Option<(IpAddr, Result<String, String>)> {
    let [address, interface, rest] = parts(value)?;
    Some((address.parse().ok()?, known(interface).ok_or_else(|| rest.to_owned())))
}

/// `USER JOB PROGRAM, PID, MEMORY, UUID`: the first part is ours, the second as `nvidia-smi` prints it.
fn gpu_user(value: &str) -> Option<GpuUser> {
    let [uuid, memory, pid, ours] = value.rsplitn(4, ", ").collect::<Vec<_>>().try_into().ok()?;
    let [user, job, program] = parts(ours)?;
    Some(GpuUser {
        uuid: uuid.trim().to_owned(),
        pid: pid.trim().parse().ok()?,
        // `[N/A]` where the driver does not say
        memory: memory.split_whitespace().next().and_then(|m| m.parse().ok()),
        user: user.to_owned(),
        job: known(job),
        program: program.to_owned(),
    })
}
