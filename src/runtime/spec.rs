//! The containers that hvdctl wants on a node, as values.

use crate::inventory::{Cluster, KeyType, Node, Ulimit};
use crate::node::gpus::GpuRequest;
use crate::paths::{CONTAINER_SSH, HOST_KEY, WORKSPACE};
use crate::text::digest::hex;
use crate::text::quote;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Whose container it is; only containers with this label are ever touched.
pub const LABEL_CLUSTER: &str = "hvdctl.cluster";
/// `worker`, `master`, `shell` or `helper`.
pub const LABEL_ROLE: &str = "hvdctl.role";
/// Hash of the desired state that it was made from.
pub const LABEL_SPEC: &str = "hvdctl.spec";
/// The same desired state in full (JSON), so that a later plan can say which part differs.
pub const LABEL_SPEC_FULL: &str = "hvdctl.spec.full";
/// The job that the container serves.
pub const LABEL_JOB: &str = "hvdctl.job";
/// The directory on the node that is mounted at [`WORKSPACE`].
pub const LABEL_WORKSPACE: &str = "hvdctl.workspace";
/// The hvdctl that works as root in the container.
pub const LABEL_PROCESS: &str = "hvdctl.process";

/// How long a job's own worker waits for its first rank, or for a restart.
const DAY: Duration = Duration::from_secs(86_400);

/// A role's word in its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// `hworker`: sshd, and the ranks of every node but the master.
    Worker,
    /// `hmaster`: the launcher, and the ranks of the master node.
    Master,
    /// An `hmaster` without a job, where somebody has a shell.
    Shell,
    /// Where hvdctl works as root for a moment, on nodes without sudo.
    Helper,
}

impl Role {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Master => "master",
            Role::Shell => "shell",
            Role::Helper => "helper",
        }
    }
}

pub use crate::inventory::{Device, Mount};

impl Serialize for GpuRequest {
    /// All and none as true and false, as hvdctl 0.1.0 wrote them in its labels.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            GpuRequest::None => serializer.serialize_bool(false),
            GpuRequest::All => serializer.serialize_bool(true),
            GpuRequest::First(count) => serializer.serialize_u32(*count),
            GpuRequest::Devices(devices) => devices.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for GpuRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            All(bool),
            First(u32),
            Devices(Vec<String>),
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::All(false) => GpuRequest::None,
            Written::All(true) => GpuRequest::All,
            Written::First(count) => GpuRequest::First(count),
            Written::Devices(devices) => GpuRequest::Devices(devices),
        })
    }
}

/// The part of a container that its hash covers. The workspace is not in it: any project may be mounted in a worker
/// without making it another worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    /// The image's reference.
    pub image: String,
    /// The command, as a vector.
    pub command: Vec<String>,
    /// The GPUs that are asked for.
    pub gpus: GpuRequest,
    /// Port of the workers' sshd.
    pub port: u16,
    /// The one address that the sshd in it listens on; none where there is no sshd, and in workers of hvdctl 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// hvdctl's own mounts other than the workspace.
    pub mounts: Vec<Mount>,
    /// The mounts of the inventory; that these are there is the operator's business, so nothing is made in their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_mounts: Vec<Mount>,
    /// Devices of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Limits of the processes by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ulimits: BTreeMap<String, Ulimit>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size: u64,
}

/// A container to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Its name.
    pub name: String,
    /// The cluster's name.
    pub cluster: String,
    /// What it is for.
    pub role: Role,
    /// What the hash covers.
    pub spec: Spec,
    /// Directory on the node that is mounted at [`WORKSPACE`]; also the working directory then.
    pub workspace: Option<String>,
    /// The job it serves.
    pub job: Option<String>,
    /// Environment beside the image's, as `NAME=VALUE`; nothing secret.
    pub env: Vec<String>,
}

impl Spec {
    /// Twelve hex digits that change with any part of it.
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.json())[..6])
    }

    /// The whole spec as JSON, for [`LABEL_SPEC_FULL`].
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a spec of strings and numbers is always JSON")
    }

    /// The names of the parts in which `old` (a [`LABEL_SPEC_FULL`]) differs; `spec` when it cannot be read. Another `keep_alive`
    /// is named by itself and not as `command`, of which it is a part.
    pub fn differences(&self, old: &str) -> Vec<String> {
        let Ok(old) = serde_json::from_str::<Spec>(old) else { return vec!["spec".into()] };
        let same_place = (self.port, self.address) == (old.port, old.address);
        let pairs = [
            ("image", self.image != old.image),
            ("command", command(&self.command).1 != command(&old.command).1 && same_place),
            ("gpus", self.gpus != old.gpus),
            ("port", self.port != old.port),
            ("address", self.address != old.address),
            ("keep_alive", command(&self.command).0 != command(&old.command).0),
            ("mounts", (&self.mounts, &self.extra_mounts) != (&old.mounts, &old.extra_mounts)),
            ("devices", self.devices != old.devices),
            ("ulimits", self.ulimits != old.ulimits),
            ("shm", self.shm_size != old.shm_size),
        ];
        pairs.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).to_owned()).collect()
    }
}

impl ContainerSpec {
    /// The worker of a node whose place on the cluster's network is `address`: its sshd listens there and nowhere else.
    pub fn worker(cluster: &Cluster, node: &Node, gpus: GpuRequest, address: IpAddr) -> ContainerSpec {
        ContainerSpec {
            name: cluster.worker.clone(),
            cluster: cluster.name.clone(),
            role: Role::Worker,
            spec: Spec { address: Some(address), ..spec(cluster, node, gpus, sshd(cluster, address)) },
            workspace: None,
            job: None,
            env: Vec::new(),
        }
    }

    /// The same for one job alone, whose end is its end too: where nobody is left to tell it, it notices.
    #[must_use]
    pub fn of_run(mut self, cluster: &Cluster, job: &str, may_restart: bool) -> ContainerSpec {
        self.job = Some(job.to_owned());
        let start = self.spec.command.iter_mut().find(|word| *word == START);
        let states = format!("{}/{job}/states", cluster.jobs_dir);
        let idle = if may_restart { DAY } else { cluster.worker_idle };
        start.expect("a worker's command begins so").insert_str(0, &until_idle(&states, idle));
        self
    }

    /// The launcher's container: the same image, GPUs, mounts and shared memory as the workers, because the ranks of
    /// the master node run in it and not in its `hworker`.
    pub fn master(cluster: &Cluster, node: &Node, gpus: GpuRequest, command: Vec<String>, job: &str) -> ContainerSpec {
        ContainerSpec {
            name: cluster.master.clone(),
            cluster: cluster.name.clone(),
            role: Role::Master,
            spec: spec(cluster, node, gpus, command),
            workspace: None,
            job: Some(job.to_owned()),
            env: Vec::new(),
        }
    }

    /// The same for a shell and without a job; `word` tells it from others.
    pub fn shell(cluster: &Cluster, node: &Node, gpus: GpuRequest, command: Vec<String>, word: &str) -> ContainerSpec {
        ContainerSpec {
            name: format!("{}-shell-{word}", cluster.master),
            role: Role::Shell,
            job: None,
            ..ContainerSpec::master(cluster, node, gpus, command, "")
        }
    }

    /// Every mount of hvdctl's own, the workspace included.
    pub fn mounts(&self) -> Vec<Mount> {
        let mut mounts = self.spec.mounts.clone();
        mounts.extend(self.workspace.as_ref().map(|source| mount(source, WORKSPACE, false)));
        mounts
    }

    /// The labels that make it ours.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::from([
            (LABEL_CLUSTER.to_owned(), self.cluster.clone()),
            (LABEL_ROLE.to_owned(), self.role.as_str().to_owned()),
            (LABEL_SPEC.to_owned(), self.spec.hash()),
            (LABEL_SPEC_FULL.to_owned(), self.spec.json()),
        ]);
        labels.extend(self.workspace.clone().map(|w| (LABEL_WORKSPACE.to_owned(), w)));
        labels.extend(self.job.clone().map(|j| (LABEL_JOB.to_owned(), j)));
        labels
    }
}

fn spec(cluster: &Cluster, node: &Node, gpus: GpuRequest, command: Vec<String>) -> Spec {
    Spec {
        image: cluster.image.clone(),
        command,
        gpus,
        port: cluster.port,
        address: None,
        mounts: vec![mount(&cluster.ssh_dir, CONTAINER_SSH, true), mount(&cluster.jobs_dir, &cluster.jobs_dir, false)],
        extra_mounts: node.container.mounts.clone(),
        devices: node.container.devices.clone(),
        ulimits: node.container.ulimits.clone(),
        shm_size: cluster.shm_size,
    }
}

fn mount(source: &str, target: &str, read_only: bool) -> Mount {
    Mount { source: source.into(), target: target.into(), read_only }
}

/// sshd's option for the time between keep-alive probes, without the seconds.
const KEEP_ALIVE: &str = "ClientAliveInterval=";

/// Splits the value of [`KEEP_ALIVE`] off a command. A command without it (an `hmaster`, an older worker) stays whole.
fn command(command: &[String]) -> (Option<&str>, Vec<&str>) {
    let seconds = command.iter().find_map(|argument| argument.strip_prefix(KEEP_ALIVE));
    let rest = command.iter().map(|argument| if argument.starts_with(KEEP_ALIVE) { KEEP_ALIVE } else { argument });
    (seconds, rest.collect())
}

/// How a worker's sshd becomes its main process.
const START: &str = "mkdir -p /run/sshd && exec \"$0\" \"$@\"";

/// A loop beside the sshd of a job's own worker, which ends that when nothing else has been in the container for long. The job's
/// job supervisor and its ranks are connected to it, and a rank that was cut off stays until its grace time is over. Before its first rank
/// writes down that it is there (`states`), the project may be on its way to another node; and where the job is to be started
/// again, a node that was cut off may come back for it.
fn until_idle(states: &str, idle: Duration) -> String {
    let (seconds, day) = (idle.as_secs(), DAY.as_secs());
    let states = quote::readable(states);
    // `$$` becomes sshd. The first process is another one where the image or the engine has an init
    format!(
        r#"(
    read -r own _ </proc/self/stat
    idle=0 limit={day}
    while [ "$idle" -lt "$limit" ]; do
        sleep 5
        idle=$((idle + 5)) limit={day}
        [ ! -e {states} ] || limit={seconds}
        for process in /proc/[0-9]*; do
            case "${{process#/proc/}}" in
            1 | "$$" | "$own") ;;
            *) idle=0 && break ;;
            esac
        done
    done
    kill "$$"
) &
"#
    )
}

/// The worker's main process. sshd wants its full path and its privilege separation directory; the host key is the
/// cluster's own, so that a worker keeps its identity when it is made anew.
fn sshd(cluster: &Cluster, address: IpAddr) -> Vec<String> {
    let listen = format!("ListenAddress={address}");
    // with both families sshd would live on when another program has the port of one
    let family = if address.is_ipv4() { "AddressFamily=inet" } else { "AddressFamily=inet6" };
    let port = cluster.port.to_string();
    let host_key = format!("{CONTAINER_SSH}/{}", HOST_KEY);
    let keep_alive = format!("{KEEP_ALIVE}{}", cluster.keep_alive.as_secs());
    [
        "sh",
        "-c",
        START,
        "/usr/sbin/sshd",
        "-D",
        "-e",
        "-p",
        &port,
        "-h",
        &host_key,
        "-o",
        "PermitRootLogin=prohibit-password",
        "-o",
        "PubkeyAuthentication=yes",
        "-o",
        "PasswordAuthentication=no",
        "-o",
        "KbdInteractiveAuthentication=no",
        "-o",
        // many ranks' launches arrive at once; sshd's default drops connections from the tenth on
        "MaxStartups=200:30:400",
        "-o",
        "UseDNS=no",
        "-o",
        // a rank whose launcher the network has cut off is ended: its connection closes, and its supervisor sees that
        &keep_alive,
        "-o",
        "ClientAliveCountMax=3",
        "-o",
        family,
        "-o",
        // the host's other networks have no business with it
        &listen,
    ]
    .map(str::to_owned)
    .to_vec()
}

/// The file name of a key pair's private half.
pub fn private_key_name(key_type: KeyType) -> &'static str {
    match key_type {
        KeyType::Rsa => "id_rsa",
        KeyType::Ed25519 => "id_ed25519",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    #[test]
    fn the_hash_moves_with_every_part_but_the_workspace() {
        let Inventory { cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        let address = IpAddr::from([10, 0, 0, 1]);
        let base = ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::All, address);
        let with = ContainerSpec { workspace: Some("/opt/horovod/projects/x".into()), ..base.clone() };
        assert_eq!(base.spec.hash(), with.spec.hash());
        assert_eq!(with.mounts().last().unwrap().target, WORKSPACE);
        let mut other = cluster.clone();
        other.port = 2222;
        let moved = ContainerSpec::worker(&other, &nodes[0], GpuRequest::All, address);
        assert_ne!(base.spec.hash(), moved.spec.hash());
        assert_eq!(moved.spec.differences(&base.spec.json()), ["port"]);
        assert_eq!(
            ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::None, address).spec.differences(&base.spec.json()),
            ["gpus"]
        );
        assert_eq!(base.spec.differences("{}"), ["spec"]);
    }

    #[test]
    fn the_worker_listens_on_one_address_which_is_a_part_of_it() {
        let Inventory { cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        let at = |address: &str| ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::All, address.parse().unwrap());
        let (v4, v6) = (at("10.0.0.1"), at("fd00::1"));
        let has = |desired: &ContainerSpec, words: &str| desired.spec.command.windows(2).any(|w| w == ["-o", words]);
        assert!(has(&v4, "ListenAddress=10.0.0.1") && has(&v4, "AddressFamily=inet"), "{:?}", v4.spec.command);
        // sshd_config(5): an IPv6 address without brackets has no port, and -p holds
        assert!(has(&v6, "ListenAddress=fd00::1") && has(&v6, "AddressFamily=inet6"), "{:?}", v6.spec.command);
        assert_ne!(v4.spec.hash(), at("10.0.0.2").spec.hash());
        assert_eq!(v4.spec.differences(&at("10.0.0.2").spec.json()), ["address"]);
        let mut without: serde_json::Value = serde_json::from_str(&v4.spec.json()).unwrap();
        without.as_object_mut().unwrap().remove("address");
        assert_eq!(v4.spec.differences(&without.to_string()), ["address"], "a worker that listens on all addresses");
        let master = ContainerSpec::master(&cluster, &nodes[0], GpuRequest::All, vec!["true".into()], "job");
        assert_eq!((master.spec.address, master.name.as_str()), (None, "hmaster"));
    }

    #[test]
    fn a_runs_own_worker_ends_itself_and_soon_where_the_run_is_not_started_again() {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        cluster.jobs_dir = "/my jobs".into();
        let worker = ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::All, IpAddr::from([10, 0, 0, 1]));
        for (idle, may_restart, seconds) in [(60, false, 60), (60, true, 86_400), (10, false, 10)] {
            assert!(idle == 10 || cluster.worker_idle.as_secs() == idle, "the default");
            cluster.worker_idle = Duration::from_secs(idle);
            let own = worker.clone().of_run(&cluster, "j1", may_restart);
            assert_eq!(own.spec.command[..2], worker.spec.command[..2]);
            assert_eq!(own.spec.command[3..], worker.spec.command[3..]);
            let text = own.spec.command[2].strip_suffix(worker.spec.command[2].as_str()).unwrap();
            assert!(text.contains(&format!("[ ! -e '/my jobs/j1/states' ] || limit={seconds}\n")), "{text}");
        }
    }

    #[test]
    fn shellcheck_finds_nothing_in_the_workers_commands() {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        for jobs_dir in quote::HOSTILE.into_iter().chain(["/opt/horovod/jobs"]) {
            cluster.jobs_dir = jobs_dir.into();
            let worker = ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::All, IpAddr::from([10, 0, 0, 1]));
            quote::shellcheck(&worker.spec.command[2]);
            for may_restart in [false, true] {
                quote::shellcheck(&worker.clone().of_run(&cluster, "j1", may_restart).spec.command[2]);
            }
        }
    }

    #[test]
    fn another_keep_alive_is_another_worker_and_the_default_changes_none() {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        let address = IpAddr::from([10, 0, 0, 1]);
        let made = |cluster: &Cluster| ContainerSpec::worker(cluster, &nodes[0], GpuRequest::None, address).spec;
        let base = made(&cluster);
        let at = |at: usize| base.command[at].as_str();
        let probes = base.command.iter().position(|word| word == "ClientAliveInterval=15").unwrap();
        assert_eq!((at(probes - 1), at(probes + 1), at(probes + 2)), ("-o", "-o", "ClientAliveCountMax=3"));
        // what hvdctl made before there was the setting; `up` would recreate every worker if this changed
        assert_eq!(base.hash(), "c4e31672f00b");
        // what concerns a job alone is no part of the cluster's worker
        cluster.worker_idle = Duration::from_secs(5);
        cluster.restart_pause = Duration::ZERO;
        assert_eq!(made(&cluster), base);

        cluster.keep_alive = Duration::from_secs(2);
        assert_ne!(made(&cluster).hash(), base.hash());
        assert_eq!(made(&cluster).differences(&base.json()), ["keep_alive"]);
        assert_eq!(base.differences(&made(&cluster).json()), ["keep_alive"]);
        cluster.port = 2222;
        assert_eq!(made(&cluster).differences(&base.json()), ["port", "keep_alive"]);
        let mut other = base.clone();
        other.command.push("-q".into());
        assert_eq!(other.differences(&base.json()), ["command"]);
    }

    #[test]
    fn what_the_inventory_adds_is_a_part_of_it_and_its_absence_changes_no_label() {
        let Inventory { cluster, mut nodes, .. } = Inventory::local("here", "some/image:1");
        let address = IpAddr::from([10, 0, 0, 1]);
        let made = |node: &Node, gpus: GpuRequest| ContainerSpec::worker(&cluster, node, gpus, address).spec;
        let plain = made(&nodes[0], GpuRequest::All);
        let json = plain.json();
        assert!(json.contains("\"gpus\":true") && !json.contains("devices") && !json.contains("ulimits"), "{json}");
        let two = made(&nodes[0], GpuRequest::First(2));
        let named = made(&nodes[0], GpuRequest::Devices(vec!["0".into(), "GPU-1".into()]));
        for other in [&two, &named] {
            assert_eq!(other.differences(&json), ["gpus"]);
            assert!(other.differences(&other.json()).is_empty(), "it is read as it was written");
        }
        let container = &mut nodes[0].container;
        container.mounts.push(mount("/data", "/data", true));
        container.devices.push(Device { source: "/dev/a".into(), target: "/dev/a".into(), permissions: "rwm".into() });
        container.ulimits.insert("memlock".into(), Ulimit { soft: -1, hard: -1 });
        container.env.insert("A".into(), "1".into());
        let more = made(&nodes[0], GpuRequest::All);
        assert_eq!(more.differences(&json), ["mounts", "devices", "ulimits"]);
        assert!(more.differences(&more.json()).is_empty());
        assert_ne!(more.hash(), plain.hash());
        assert!(!more.json().contains("env"), "the environment is the jobs', not the containers'");
    }
}
