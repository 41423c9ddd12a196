//! Parses what `src/scripts/node/facts.sh` reports about a node.

use super::accelerators::Accelerators;
use super::cdi::CdiDevices;
use super::gpus::{self, Gpu, NvidiaSmi};
use super::interfaces::NodeNetwork;
use super::jobs::NodeJobs;
use super::key_directory::KeyDirectory;
use super::mesh::NodeMesh;
use super::permissions::Permissions;
use super::storage::NodeStorage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

/// The most cores that a node is believed to have: more than any machine has.
pub const MOST_CORES: u32 = 65_536;

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
    /// The user who drained it, `user@host`.
    pub by: String,
    /// The time at which it was drained, in seconds since the epoch by the operator's clock.
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

/// The observed state of a node's system.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// `uname -n`.
    pub hostname: String,
    /// The address that its host name has there, where ranks are no containers; empty if it has none.
    pub own_address: Option<String>,
    /// Cores that processes may use.
    pub cores: u32,
    /// Its addresses and listeners.
    pub network: NodeNetwork,
    /// The state of `nvidia-smi`.
    pub nvidia_smi: NvidiaSmi,
    /// GPUs that the machine itself sees. They may not be all if `nvidia-smi` failed.
    pub gpus: Vec<Gpu>,
    /// The devices of its CDI files, if Podman is the engine and reads them in the usual directories.
    pub cdi: Option<CdiDevices>,
    /// Set if it has a device of NVIDIA's drivers, even of one without `nvidia-smi` (Jetson, WSL 2).
    pub has_nvidia_device: bool,
    /// Its accelerators of other makers.
    pub accelerators: Vec<Accelerators>,
    /// The times at which its report began and ended by its own clock, in seconds since the epoch.
    pub clock: Option<Span>,
    /// Seconds by which its clock is ahead of ours.
    pub ahead: Option<Span>,
    /// The processes and records of jobs on it.
    pub jobs: NodeJobs,
    /// The mark of a drained node, if it is drained.
    pub drained: Option<Drained>,
    /// The permissions of its directories.
    pub permissions: Permissions,
    /// Its directories and their room.
    pub storage: NodeStorage,
    /// The cluster's keys on it.
    pub keys: KeyDirectory,
    /// Its part of the encrypted network.
    pub mesh: NodeMesh,
    /// The latest entries of its ledger with figures of benchmarks, as they are stored.
    pub measured: Vec<String>,
}

impl Facts {
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
                "own-address" => facts.own_address = Some(value.to_owned()),
                "cores" => facts.cores = value.parse().unwrap_or(1).min(MOST_CORES),
                "clock" => {
                    let low = facts.clock.map(|span| span.low);
                    let read = value.parse().ok().filter(|time: &f64| time.is_finite());
                    facts.clock = read.map(|high| Span { low: low.unwrap_or(high), high }).or(facts.clock);
                }
                "nvidia-device" => facts.has_nvidia_device = true,
                "cdi" => facts.cdi.get_or_insert_default().read(value),
                "accelerator" => facts.accelerators.extend(Accelerators::parse(value)),
                "measured" => facts.measured.push(value.to_owned()),
                "drained" => {
                    // a full disk may have cut it off
                    let unknown = || Drained { by: "an unknown user".into(), since: 0 };
                    facts.drained = Some(serde_json::from_str(value).unwrap_or_else(|_| unknown()));
                }
                _ => {
                    facts.network.read(key, value);
                    facts.jobs.read(key, value);
                    facts.permissions.read(key, value);
                    facts.storage.read(key, value);
                    facts.keys.read(key, value);
                    facts.mesh.read(key, value);
                }
            }
        }
        facts
    }

    /// Returns by how many seconds its clock is ahead of ours, or 0 if the two may be equal.
    pub fn clock_ahead(&self) -> f64 {
        match self.ahead {
            Some(Span { low, high }) if low > 0.0 || high < 0.0 => (low + high) / 2.0,
            _ => 0.0,
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

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
        assert_eq!(facts.network.interface_of("10.0.0.1".parse().unwrap()), Some("eth0"));
        assert_eq!(facts.network.address_on("eth0"), Some("10.0.0.1".parse().unwrap()));
        let addresses = |label| facts.network.labelled(label).map(|address| address.to_string()).collect::<Vec<_>>();
        assert_eq!(
            (addresses("eth0"), addresses("eth0:1")),
            (vec!["10.0.0.1".into(), "10.0.9.130".into()], vec!["10.8.0.1".into()])
        );
        assert_eq!(facts.network.interface_of("10.9.0.1".parse().unwrap()), Some("tun0"));
        let networks = ["10.0.0.1", "10.0.9.130", "10.8.0.1", "fe80::1"]
            .map(|a| facts.network.networks[&a.parse::<IpAddr>().unwrap()].clone());
        assert_eq!(networks, ["10.0.0.0/24", "10.0.9.128/25", "0.0.0.0/0", "fe80::/64"]);
        assert_eq!(facts.nvidia_smi, NvidiaSmi::Listed);
        assert_eq!(facts.gpus, [Gpu { name: "NVIDIA H200".into(), uuid: "GPU-1-2".into(), ..Gpu::default() }]);
        assert_eq!(facts.keys.files["id_rsa.pub"].text, "ssh-rsa AAAA x\n");
        assert_eq!(facts.keys.directory.unwrap().mode, "700");
    }

    #[test]
    fn listeners_are_read() {
        let id = "ab".repeat(32);
        let facts = Facts::parse(&format!(
            "listener 10.0.0.1:12345 7 root {id} sshd\nlistener *:12345 - - - -\nlistener [::]:12345 8 ana - my prog\n\
             listener 10.0.0.9%eth0:12345 9 ana - x\nlistener junk\n"
        ));
        let reported: Vec<_> =
            facts.network.listeners.iter().map(|l| (l.address.map(|a| a.to_string()), l.pid)).collect();
        assert_eq!(
            reported,
            [
                (Some("10.0.0.1".to_owned()), Some(7)),
                (None, None),
                (Some("::".to_owned()), Some(8)),
                (Some("10.0.0.9".to_owned()), Some(9))
            ]
        );
        assert_eq!(facts.network.listeners[0].container.as_deref(), Some(id.as_str()));
        assert_eq!(
            (facts.network.listeners[2].program.as_str(), facts.network.listeners[2].user.as_str()),
            ("my prog", "ana")
        );
    }

    #[test]
    fn ranks_are_read() {
        let facts = Facts::parse(
            "rank run-1 7 abc lab -\nrank run-2 8 - - killed\nrank run-3 x - -\nopen run-1\nopen run-2 {\"id\"\nports \
             22 x 12345 \n",
        );
        let reported: Vec<_> = facts
            .jobs
            .ranks
            .iter()
            .map(|r| (r.job.as_str(), r.pid, r.container.as_deref(), r.cluster.as_deref(), r.killed))
            .collect();
        assert_eq!(reported, [("run-1", 7, Some("abc"), Some("lab"), false), ("run-2", 8, None, None, true)]);
        // the job of a truncated record is still known
        let recorded = facts.jobs.recorded.iter().map(|job| (job.id.as_str(), job.record.as_str()));
        assert_eq!(recorded.collect::<Vec<_>>(), [("run-1", ""), ("run-2", "{\"id\"")]);
        assert_eq!(facts.network.ports.into_iter().collect::<Vec<_>>(), [22, 12345]);
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
        let unknown = Facts::parse("clock x\nclock nan\nclock inf\n").between(0.0, 1.0);
        assert_eq!((unknown.ahead, unknown.clock_ahead()), (None, 0.0));
        assert!((29.8..30.2).contains(&facts.clock_ahead()));
        assert_eq!(Facts::parse("clock 102.0\nclock 102.5\n").between(100.0, 105.0).clock_ahead(), 0.0);
    }

    #[test]
    fn what_no_node_has_is_not_believed() {
        let facts = Facts::parse(
            "cores 4294967295\ndisk jobs 18446744073709551615 /opt\nopen .* {}\nopen ../../etc {}\nopen j1 {}\n\
             rank .* 1 - - -\nrank j1 2 - - -\noutside ../x\noutside j2\n",
        );
        assert_eq!((facts.cores, facts.storage.disks[0].free), (MOST_CORES, u64::MAX));
        assert_eq!(facts.jobs.recorded.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["j1"]);
        assert_eq!(facts.jobs.ranks.iter().map(|rank| rank.pid).collect::<Vec<_>>(), [2]);
        assert_eq!(facts.jobs.outside, ["j2".to_owned()].into());
    }
}
