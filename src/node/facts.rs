//! Parses what `src/scripts/node/facts.sh` reports about a node.

use crate::node::gpus::{self, Gpu, NvidiaSmi};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, UNIX_EPOCH};

/// A file in the cluster's key directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyFile {
    /// Permission bits in octal, as `stat -c %a` prints them.
    pub mode: String,
    /// `UID:GID`.
    pub owner: String,
    /// Contents of the files that hold no secret; empty for private keys.
    pub text: String,
}

/// A process that listens on the workers' port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The address it listens on; none: on all of them.
    pub address: Option<IpAddr>,
    /// Its process, if that is visible.
    pub pid: Option<u32>,
    /// The user of the process.
    pub user: String,
    /// The id of the container that it runs in.
    pub container: Option<String>,
    /// Its program.
    pub program: String,
}

/// A process of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    /// The job that its environment names.
    pub job: String,
    /// Its process id.
    pub pid: u32,
    /// The id of the container that it runs in.
    pub container: Option<String>,
    /// The cluster that the job belongs to, by the record that lies on the node.
    pub cluster: Option<String>,
    /// Whether it was killed and waits in the kernel, so that it is still there.
    pub killed: bool,
}

/// A span of seconds: what is known of a value that lies in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// At least.
    pub low: f64,
    /// At most.
    pub high: f64,
}

/// The mark of a drained node, which takes no part in new jobs; `JOBS/.drained@CLUSTER` there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Drained {
    /// Who drained it, `user@host`.
    pub by: String,
    /// When, in seconds since the epoch by the operator's clock.
    pub since: u32,
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drained { by, since } = self;
        match UNIX_EPOCH + Duration::from_secs((*since).into()) {
            UNIX_EPOCH => write!(f, "drained by {by}"),
            since => write!(f, "drained by {by} since {}", humantime::format_rfc3339_seconds(since)),
        }
    }
}

/// Room on a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// What it is for: `images`, `jobs` or `projects`.
    pub what: String,
    /// Bytes that are free.
    pub free: u64,
    /// The directory.
    pub path: String,
}

/// A directory of the cluster on a node, or its nearest parent that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDirectory {
    /// What it is for: `ssh`, `jobs`, `projects` or `data`.
    pub what: String,
    /// The type of its file system, as `stat` names it without spaces.
    pub file_system: String,
    /// The directory.
    pub path: String,
}

/// A directory that is the same one on several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedDirectory {
    /// What it is for: `ssh`, `jobs`, `projects` or `data`.
    pub what: String,
    /// The directory.
    pub path: String,
    /// The other nodes.
    pub with: Vec<String>,
}

/// The observed state of a node's system.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// `uname -n`.
    pub hostname: String,
    /// Cores that processes may use.
    pub cores: u32,
    /// The address by which the operator's ssh reached it (`SSH_CONNECTION`).
    pub ssh_address: Option<IpAddr>,
    /// The interface that a link-local one of these came in by (`fe80::1%eth0`); several may have the same address.
    pub ssh_zone: Option<String>,
    /// Interface and address, loopback included.
    pub addresses: Vec<(String, IpAddr)>,
    /// The label of each IPv4 address, by which programs find it (getifaddrs(3)); without `ip addr add … label` the interface's name.
    pub labels: BTreeMap<IpAddr, String>,
    /// The network of each address, as `10.0.0.0/24`.
    pub networks: BTreeMap<IpAddr, String>,
    /// What `nvidia-smi` says.
    pub nvidia_smi: NvidiaSmi,
    /// GPUs that the machine itself sees. They may not be all if `nvidia-smi` failed.
    pub gpus: Vec<Gpu>,
    /// When its report began and ended by its own clock, in seconds since the epoch.
    pub clock: Option<Span>,
    /// How far its clock is ahead of ours.
    pub ahead: Option<Span>,
    /// Listeners on the workers' port.
    pub listeners: Vec<Listener>,
    /// The processes of jobs, other clusters' too.
    pub ranks: Vec<Rank>,
    /// The jobs of this cluster that have ranks here and whose end is not recorded.
    pub open_jobs: Vec<String>,
    /// Their records by the jobs' ids, each as it is stored; empty if there is none.
    pub open_records: BTreeMap<String, String>,
    /// Those that are known to be running, by their launchers or ranks on any node.
    pub under_way: Vec<String>,
    /// The ranks of open jobs that make no progress, each as `JOB RANK SINCE WHAT` (`waiting.py`).
    pub idle_ranks: Vec<String>,
    /// Whether the node is drained.
    pub drained: Option<Drained>,
    /// Room for jobs and projects.
    pub disks: Vec<Disk>,
    /// The directories that belong to this node alone, or should.
    pub directories: Vec<NodeDirectory>,
    /// Those of them that are other nodes' too.
    pub shared: Vec<SharedDirectory>,
    /// Why that could not be found out.
    pub shared_unknown: Option<String>,
    /// The inode of the directory of pushed data, if it is there.
    pub data: Option<u64>,
    /// The hash of each of this cluster's data; `-` for one of which a push is incomplete.
    pub pushed: BTreeMap<String, String>,
    /// The TCP ports with a listener on any address.
    pub ports: BTreeSet<u16>,
    /// The key directory itself (mode and owner), if it is there.
    pub key_dir: Option<KeyFile>,
    /// Its files by name.
    pub key_files: BTreeMap<String, KeyFile>,
}

impl Facts {
    /// Killed processes of ended jobs that wait in the kernel. A process of a running job may have been killed just now
    /// and is not listed.
    pub fn unending(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| rank.killed && !self.open_jobs.contains(&rank.job))
    }

    /// Parses the script's lines: `KEY VALUE`. Unknown keys are passed over, so that an older program can read a
    /// newer script's output.
    pub fn parse(text: &str) -> Facts {
        let (nvidia_smi, gpus) = gpus::read(text);
        let mut facts = Facts { nvidia_smi, gpus, ..Facts::default() };
        // a carriage return belongs to the line of the key file that has it
        for line in text.split_terminator('\n') {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "hostname" => facts.hostname = value.to_owned(),
                "cores" => facts.cores = value.parse().unwrap_or(1),
                "ssh" => {
                    let mut parts = value.split('%');
                    facts.ssh_address = parts.next().and_then(|address| address.parse().ok());
                    facts.ssh_zone = parts.next().map(str::to_owned);
                }
                "clock" => {
                    let low = facts.clock.map(|span| span.low);
                    facts.clock =
                        value.parse().ok().map(|high| Span { low: low.unwrap_or(high), high }).or(facts.clock);
                }
                "listener" => facts.listeners.extend(listener(value)),
                "rank" => facts.ranks.extend(rank(value)),
                "open" => {
                    let (run, record) = value.split_once(' ').unwrap_or((value, ""));
                    facts.open_jobs.push(run.to_owned());
                    facts.open_records.insert(run.to_owned(), record.to_owned());
                }
                "idle" => facts.idle_ranks.push(value.to_owned()),
                "drained" => {
                    // a full disk may have cut it off
                    let unknown = || Drained { by: "an unknown user".into(), since: 0 };
                    facts.drained = Some(serde_json::from_str(value).unwrap_or_else(|_| unknown()));
                }
                "disk" => facts.disks.extend(disk(value)),
                "directory" => facts.directories.extend(directory(value)),
                "data" => facts.data = value.parse().ok(),
                "pushed" => facts.pushed.extend(value.split_once(' ').map(|(name, hash)| (name.into(), hash.into()))),
                "ports" => facts.ports.extend(value.split(' ').filter_map(|port| port.parse::<u16>().ok())),
                "addr" => drop(facts.add_address(value)),
                "dir" => facts.key_dir = file(value).map(|(_, directory)| directory),
                "file" => facts.key_files.extend(file(value)),
                "text" => {
                    let (name, line) = value.split_once(' ').unwrap_or_default();
                    if let Some(file) = facts.key_files.get_mut(name) {
                        file.text.extend([line, "\n"]);
                    }
                }
                _ => {}
            }
        }
        facts
    }

    /// Parses `eth0 10.0.0.1/24 LABEL`.
    fn add_address(&mut self, value: &str) -> Option<()> {
        let mut words = value.split(' ');
        let (name, text) = (words.next()?.split('@').next()?, words.next()?);
        // that of a point-to-point interface has no prefix: ip shows the prefix of its peer
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, bits)| (a, bits.parse().ok()));
        let address = address.parse().ok()?;
        self.addresses.push((name.to_owned(), address));
        self.labels.extend(words.next().map(|label| (address, label.to_owned())));
        self.networks.extend(bits.map(|bits| (address, network(address, bits))));
        Some(())
    }

    /// Compares the node's clock with ours. The report was requested at `asked` and complete at `came`: the node began
    /// it after the first and ended it before the second.
    #[must_use]
    pub fn between(mut self, asked: f64, came: f64) -> Facts {
        self.ahead = self.clock.map(|clock| {
            let (a, b) = (clock.high - came, clock.low - asked);
            Span { low: a.min(b), high: a.max(b) }
        });
        self
    }

    /// The interface that carries `address`.
    pub fn interface_of(&self, address: IpAddr) -> Option<&str> {
        self.addresses.iter().find(|(_, a)| *a == address).map(|(name, _)| name.as_str())
    }

    /// The IPv4 addresses with this label, in the kernel's order: a program that knows only the name takes the first.
    pub fn labelled(&self, label: &str) -> impl Iterator<Item = IpAddr> {
        self.addresses
            .iter()
            .map(|(_, address)| *address)
            .filter(move |a| self.labels.get(a).is_some_and(|l| l == label))
    }

    /// The first address of an interface, IPv4 before IPv6, which launchers are not given. A link-local one means
    /// nothing without its interface, and is none.
    pub fn address_on(&self, interface: &str) -> Option<IpAddr> {
        let mut on = self.addresses.iter().filter(|(name, _)| name == interface).map(|(_, a)| *a);
        on.clone().find(IpAddr::is_ipv4).or_else(|| on.find(|a| !link_local(*a)))
    }
}

fn link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Splits a value at spaces into N parts, of which the last may contain spaces.
pub fn parts<const N: usize>(value: &str) -> Option<[&str; N]> {
    value.splitn(N, ' ').collect::<Vec<_>>().try_into().ok()
}

/// Returns a part that is known, which `-` is not.
pub fn known(part: &str) -> Option<String> {
    (part != "-").then(|| part.to_owned())
}

/// Parses `WHAT KILOBYTES PATH`.
pub fn disk(value: &str) -> Option<Disk> {
    let [what, free, path] = parts(value)?;
    Some(Disk { what: what.to_owned(), free: free.parse::<u64>().ok()? << 10, path: path.to_owned() })
}

/// Parses `WHAT FILE-SYSTEM PATH`.
fn directory(value: &str) -> Option<NodeDirectory> {
    let [what, file_system, path] = parts(value)?.map(str::to_owned);
    Some(NodeDirectory { what, file_system, path })
}

/// Returns the network of an address.
fn network(address: IpAddr, bits: u32) -> String {
    let network: IpAddr = match address {
        IpAddr::V4(v4) => Ipv4Addr::from(v4.to_bits() & u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(v6.to_bits() & u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0)).into(),
    };
    format!("{network}/{bits}")
}

/// Parses `ADDRESS:PORT PID USER CONTAINER PROGRAM`, with `-` for what is not known. `ss` writes `*` and `0.0.0.0` for all addresses;
/// `[::]` is those of IPv6 only.
fn listener(value: &str) -> Option<Listener> {
    let [local, pid, user, container, program] = parts(value)?;
    let (address, _) = local.rsplit_once(':')?;
    let address = address.split('%').next()?.trim_matches(['[', ']']);
    let address = if matches!(address, "*" | "0.0.0.0") { None } else { Some(address.parse().ok()?) };
    let (user, program) = (user.to_owned(), program.to_owned());
    Some(Listener { address, pid: pid.parse().ok(), user, container: known(container), program })
}

/// Parses `JOB PID CONTAINER CLUSTER KILLED`, with `-` for what is not known.
fn rank(value: &str) -> Option<Rank> {
    let [job, pid, container, cluster, killed] = parts(value)?;
    let (job, pid) = (job.to_owned(), pid.parse().ok()?);
    Some(Rank { job, pid, container: known(container), cluster: known(cluster), killed: killed != "-" })
}

/// Parses `NAME MODE OWNER`.
fn file(value: &str) -> Option<(String, KeyFile)> {
    let [name, mode, owner] = parts(value)?;
    Some((name.to_owned(), KeyFile { mode: mode.into(), owner: owner.into(), text: String::new() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read() {
        let facts = Facts::parse(
            "hostname node1\ncores 2\nssh 10.0.0.1\naddr lo 127.0.0.1/8\naddr eth0 fe80::1/64\n\
             addr eth0@if7 10.0.0.1/24 eth0\naddr eth0@if7 10.0.9.130/25 eth0\naddr eth0@if7 10.8.0.1/0 eth0:1\n\
             addr tun0 10.9.0.1 tun0\n\
             nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-1-2)\ngpu exit 0\nmig exit 0\ndir . 700 0:0\n\
             file id_rsa.pub 644 0:0\n\
             text id_rsa.pub ssh-rsa AAAA x\nlater thing\n",
        );
        assert_eq!(facts.hostname, "node1");
        assert_eq!(facts.interface_of("10.0.0.1".parse().unwrap()), Some("eth0"));
        assert_eq!(facts.address_on("eth0"), Some("10.0.0.1".parse().unwrap()));
        let addresses = |label| facts.labelled(label).map(|address| address.to_string()).collect::<Vec<_>>();
        assert_eq!(
            (addresses("eth0"), addresses("eth0:1")),
            (vec!["10.0.0.1".into(), "10.0.9.130".into()], vec!["10.8.0.1".into()])
        );
        assert_eq!(facts.interface_of("10.9.0.1".parse().unwrap()), Some("tun0"));
        let networks = ["10.0.0.1", "10.0.9.130", "10.8.0.1", "fe80::1"]
            .map(|a| facts.networks[&a.parse::<IpAddr>().unwrap()].clone());
        assert_eq!(networks, ["10.0.0.0/24", "10.0.9.128/25", "0.0.0.0/0", "fe80::/64"]);
        assert_eq!(facts.nvidia_smi, NvidiaSmi::Listed);
        assert_eq!(facts.gpus, [Gpu { name: "NVIDIA H200".into(), uuid: "GPU-1-2".into(), ..Gpu::default() }]);
        assert_eq!(facts.key_files["id_rsa.pub"].text, "ssh-rsa AAAA x\n");
        assert_eq!(facts.key_dir.unwrap().mode, "700");
    }

    #[test]
    fn listeners_are_read() {
        let id = "ab".repeat(32);
        let facts = Facts::parse(&format!(
            "listener 10.0.0.1:12345 7 root {id} sshd\nlistener *:12345 - - - -\nlistener [::]:12345 8 ana - my prog\n\
             listener 10.0.0.9%eth0:12345 9 ana - x\nlistener junk\n"
        ));
        let reported: Vec<_> = facts.listeners.iter().map(|l| (l.address.map(|a| a.to_string()), l.pid)).collect();
        assert_eq!(
            reported,
            [
                (Some("10.0.0.1".to_owned()), Some(7)),
                (None, None),
                (Some("::".to_owned()), Some(8)),
                (Some("10.0.0.9".to_owned()), Some(9))
            ]
        );
        assert_eq!(facts.listeners[0].container.as_deref(), Some(id.as_str()));
        assert_eq!((facts.listeners[2].program.as_str(), facts.listeners[2].user.as_str()), ("my prog", "ana"));
    }

    #[test]
    fn ranks_are_read() {
        let facts = Facts::parse(
            "rank run-1 7 abc lab -\nrank run-2 8 - - killed\nrank run-3 x - -\nopen run-1\nopen run-2 {\"id\"\nports 22 x 12345 \n",
        );
        let reported: Vec<_> = facts
            .ranks
            .iter()
            .map(|r| (r.job.as_str(), r.pid, r.container.as_deref(), r.cluster.as_deref(), r.killed))
            .collect();
        assert_eq!(reported, [("run-1", 7, Some("abc"), Some("lab"), false), ("run-2", 8, None, None, true)]);
        // the job of a truncated record is still known
        assert_eq!(facts.open_jobs, ["run-1", "run-2"]);
        assert_eq!(facts.open_records["run-2"], "{\"id\"");
        assert_eq!(facts.open_records["run-1"], "");
        assert_eq!(facts.ports.into_iter().collect::<Vec<_>>(), [22, 12345]);
    }

    #[test]
    fn a_drained_node_stays_drained_if_its_mark_cannot_be_read() {
        let drained = |line: &str| Facts::parse(line).drained.unwrap().to_string();
        let mark = r#"drained {"by": "ana@desk", "since": 1795262584}"#;
        assert_eq!(drained(mark), "drained by ana@desk since 2026-11-21T12:03:04Z");
        assert_eq!(drained(&mark[..20]), "drained by an unknown user");
    }

    #[test]
    fn a_slow_answer_makes_the_clock_no_vaguer() {
        // asked at 100 and answered at 105 by our clock, of which the node needed 4.8 s for itself; it is 30 s ahead
        let facts = Facts::parse("clock 130.100\ngpu slow\nclock 134.900\n").between(100.0, 105.0);
        let ahead = facts.ahead.unwrap();
        assert!(ahead.low > 29.8 && ahead.low <= 30.0 && ahead.high >= 30.0 && ahead.high < 30.2, "{ahead:?}");
        assert_eq!(Facts::parse("clock x\n").between(0.0, 1.0).ahead, None);
    }
}
