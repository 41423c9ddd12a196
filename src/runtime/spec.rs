//! The desired containers of a node, as values.

use crate::inventory::{Cluster, KeyType, Node, Ulimit};
pub use crate::inventory::{Device, Mount};
use crate::model::format;
use crate::node::gpus::GpuRequest;
use crate::paths::{AUTHORIZED_KEYS, CONTAINER_SSH, DATA, HOST_KEY};
use crate::text::digest::hex;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// The cluster that the container belongs to; hvdctl touches only containers with this label.
pub const LABEL_CLUSTER: &str = "hvdctl.cluster";
/// The number of the form of all labels; see [`crate::model::format`].
pub const LABEL_FORMAT: &str = "hvdctl.format";
/// `worker`, `master`, `shell`, `helper`, `setup` or `relay`.
pub const LABEL_ROLE: &str = "hvdctl.role";
/// Hash of the [`Spec`] that the container was created from.
pub const LABEL_SPEC: &str = "hvdctl.spec";
/// That [`Spec`] as JSON, so that a later plan can name the parts that differ.
pub const LABEL_SPEC_FULL: &str = "hvdctl.spec.full";
/// The job that the container serves.
pub const LABEL_JOB: &str = "hvdctl.job";
/// The directory on the node that is mounted at [`WORKSPACE`](crate::paths::WORKSPACE).
pub const LABEL_WORKSPACE: &str = "hvdctl.workspace";
/// The hvdctl process that works as root in the container.
pub const LABEL_PROCESS: &str = "hvdctl.process";

/// The repository of the images that hvdctl makes of a project's setup.
pub const SETUP_REPOSITORY: &str = "hvdctl";

/// Returns whether an image was made of a project's setup, by its name.
pub fn is_setup_image(image: &str) -> bool {
    image.split_once('/').is_some_and(|(repository, _)| repository == SETUP_REPOSITORY)
}

/// How long a worker of a single job waits for its first rank, or for a restart of the job.
const DAY: Duration = Duration::from_secs(86_400);

/// What a container is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `hworker`: sshd, and the ranks of every node but the master.
    Worker,
    /// `hmaster`: the launcher, and the ranks of the master node.
    Master,
    /// A container like `hmaster` without a job, for `hvdctl shell`.
    Shell,
    /// A short-lived container in which hvdctl works as root, on nodes without sudo.
    Helper,
    /// A short-lived container of which an image is made.
    Setup,
    /// A container that passes an image or data on to other nodes.
    Relay,
}

impl Role {
    /// Returns the value of [`LABEL_ROLE`].
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Master => "master",
            Role::Shell => "shell",
            Role::Helper => "helper",
            Role::Setup => "setup",
            Role::Relay => "relay",
        }
    }
}

impl Serialize for GpuRequest {
    /// Serializes `All` and `None` as true and false, for compatibility with labels of hvdctl 0.1.0.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            GpuRequest::None => false.serialize(serializer),
            GpuRequest::All => true.serialize(serializer),
            GpuRequest::First(count) => count.serialize(serializer),
            GpuRequest::Devices(devices) => devices.serialize(serializer),
        }
    }
}

/// The node's directory of pushed data, mounted read-only at [`DATA`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct DataMount {
    /// The directory.
    pub source: String,
    /// Its inode: a container does not see a directory that was removed and created again.
    pub inode: u64,
}

/// The part of a container that its hash covers. The workspace is not in it: a worker with another project mounted is the same worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Spec {
    /// The image's reference.
    pub image: String,
    /// The main process, as argv.
    pub command: Vec<String>,
    /// The GPUs to request.
    pub gpus: GpuRequest,
    /// Port of the workers' sshd.
    pub port: u16,
    /// The address that the container's sshd listens on; `None` without sshd, and in workers of hvdctl 0.1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// hvdctl's own mounts other than the workspace.
    pub mounts: Vec<Mount>,
    /// The mounts of the inventory. A source that is missing on the node is an error; Docker creates missing sources only for hvdctl's
    /// own mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_mounts: Vec<Mount>,
    /// Where the node has data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataMount>,
    /// Devices of the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Limits of the processes by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ulimits: BTreeMap<String, Ulimit>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size: u64,
}

/// A container to be created.
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
    /// Directory on the node that is mounted at [`WORKSPACE`](crate::paths::WORKSPACE), which is the working directory then.
    /// `None`: whatever is mounted may stay.
    pub workspace: Option<String>,
    /// Whether that directory was created just now: a container that had an earlier one mounted does not see it.
    pub new_workspace: bool,
    /// The job that it serves.
    pub job: Option<String>,
    /// Environment in addition to the image's, as `NAME=VALUE`; nothing secret.
    pub env: Vec<String>,
}

impl Spec {
    /// Returns twelve hex digits that depend on every part of it.
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.json())[..6])
    }

    /// Returns it as JSON, for [`LABEL_SPEC_FULL`].
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a spec of strings and numbers is always JSON")
    }

    /// Returns the names of the parts in which `old`, a [`LABEL_SPEC_FULL`], differs; `spec` if it cannot be read. `command` is named
    /// only if it differs in more than the port, the address and the keep-alive interval, which have names of their own.
    pub fn differences(&self, old: &str) -> Vec<String> {
        let old: Value = serde_json::from_str(old).unwrap_or_default();
        if !old["command"].is_array() {
            return vec!["spec".into()];
        }
        let new = json!(self);
        let ((keep_alive, command), (old_keep_alive, old_command)) = (split_keep_alive(&new), split_keep_alive(&old));
        let differ = |keys: &[&str]| keys.iter().any(|key| new[key] != old[key]);
        let parts = [
            ("image", differ(&["image"])),
            ("command", command != old_command && !differ(&["port", "address"])),
            ("gpus", differ(&["gpus"])),
            ("port", differ(&["port"])),
            ("address", differ(&["address"])),
            ("keep_alive", keep_alive != old_keep_alive),
            ("mounts", differ(&["mounts", "extra_mounts"])),
            ("data", differ(&["data"])),
            ("devices", differ(&["devices"])),
            ("ulimits", differ(&["ulimits"])),
            ("shm", differ(&["shm_size"])),
        ];
        parts.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).to_owned()).collect()
    }
}

impl ContainerSpec {
    fn new(cluster: &Cluster, node: &Node, gpus: GpuRequest, role: Role, command: Vec<String>) -> Self {
        let own =
            |source: &str, target: &str, read_only| Mount { source: source.into(), target: target.into(), read_only };
        let spec = Spec {
            image: cluster.image.clone(),
            command,
            gpus,
            port: cluster.port,
            address: None,
            mounts: vec![own(&cluster.ssh_dir, CONTAINER_SSH, true), own(&cluster.jobs_dir, &cluster.jobs_dir, false)],
            extra_mounts: node.container.mounts.clone(),
            data: None,
            devices: node.container.devices.clone(),
            ulimits: node.container.ulimits.clone(),
            shm_size: cluster.shm_size,
        };
        let name = if role == Role::Worker { cluster.worker.clone() } else { cluster.master.clone() };
        let (cluster, env) = (cluster.name.clone(), Vec::new());
        ContainerSpec { name, cluster, role, spec, workspace: None, new_workspace: false, job: None, env }
    }

    /// Returns the worker of a node. Its sshd listens only on `address`, the node's address on the cluster's network.
    pub fn worker(cluster: &Cluster, node: &Node, gpus: GpuRequest, address: IpAddr) -> ContainerSpec {
        let mut worker = ContainerSpec::new(cluster, node, gpus, Role::Worker, sshd(cluster, address));
        worker.spec.address = Some(address);
        worker
    }

    /// Makes it the worker of a single job. It exits when it has been idle for long, even if no hvdctl is left to remove it.
    #[must_use]
    pub fn for_job(mut self, cluster: &Cluster, job: &str, may_restart: bool) -> ContainerSpec {
        let idle = if may_restart { DAY } else { cluster.worker_idle };
        let limits = [idle, DAY].map(|limit| limit.as_secs().to_string());
        let command = &mut self.spec.command;
        command[2] = START_FOR_JOB.to_owned();
        command.splice(4..4, [format!("{}/{job}/states", cluster.jobs_dir)].into_iter().chain(limits));
        self.job = Some(job.to_owned());
        self
    }

    /// Returns the launcher's container. It has the image, GPUs, mounts and shared memory of the workers, because the ranks of the master
    /// node run in it and not in that node's worker.
    pub fn master(cluster: &Cluster, node: &Node, gpus: GpuRequest, command: Vec<String>, job: &str) -> ContainerSpec {
        ContainerSpec { job: Some(job.to_owned()), ..ContainerSpec::new(cluster, node, gpus, Role::Master, command) }
    }

    /// Returns such a container for a shell and without a job; its name ends with `suffix`.
    pub fn shell(
        cluster: &Cluster,
        node: &Node,
        gpus: GpuRequest,
        command: Vec<String>,
        suffix: &str,
    ) -> ContainerSpec {
        let name = format!("{}-shell-{suffix}", cluster.master);
        ContainerSpec { name, ..ContainerSpec::new(cluster, node, gpus, Role::Shell, command) }
    }

    /// Returns a container of an image in which programs are run that change it.
    pub fn setup(cluster: &Cluster, node: &Node, gpus: GpuRequest, name: String, image: String) -> ContainerSpec {
        // longer than any setup
        let command = ["sleep", "2147483"].map(str::to_owned).to_vec();
        let mut setup = ContainerSpec { name, ..ContainerSpec::new(cluster, node, gpus, Role::Setup, command) };
        // the cluster's keys and the jobs' directories are none of its business
        setup.spec.mounts.clear();
        setup.spec.image = image;
        setup
    }

    /// Returns a container that passes an image or data on. `image`: that of the relay itself; `mounts`: what it needs of the node.
    pub fn relay(
        cluster: &Cluster,
        node: &Node,
        name: String,
        image: String,
        command: Vec<String>,
        mounts: Vec<Mount>,
    ) -> ContainerSpec {
        let mut relay =
            ContainerSpec { name, ..ContainerSpec::new(cluster, node, GpuRequest::None, Role::Relay, command) };
        relay.spec.image = image;
        (relay.spec.mounts, relay.spec.extra_mounts) = (Vec::new(), mounts);
        relay.spec.devices.clear();
        relay
    }

    /// Mounts the node's directory of pushed data, given by its inode if it is there, unless something else is mounted at its place.
    #[must_use]
    pub fn with_data(mut self, cluster: &Cluster, node: &Node, inode: Option<u64>) -> ContainerSpec {
        let inode = inode.filter(|_| data_obstacle(cluster, node).is_none());
        self.spec.data = inode.map(|inode| DataMount { source: cluster.data_dir.clone(), inode });
        self
    }

    /// Returns the labels that identify the container.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let labels = [
            (LABEL_CLUSTER, Some(self.cluster.clone())),
            (LABEL_FORMAT, Some(format::LABELS.to_string())),
            (LABEL_ROLE, Some(self.role.as_str().to_owned())),
            (LABEL_SPEC, Some(self.spec.hash())),
            (LABEL_SPEC_FULL, Some(self.spec.json())),
            (LABEL_WORKSPACE, self.workspace.clone()),
            (LABEL_JOB, self.job.clone()),
        ];
        labels.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// Returns what is mounted at [`DATA`] or below it in a node's containers by the inventory, where pushed data cannot be mounted then.
pub fn data_obstacle<'a>(cluster: &'a Cluster, node: &'a Node) -> Option<&'a str> {
    let targets = node.container.mounts.iter().map(|mount| mount.target.as_str());
    targets.chain([cluster.jobs_dir.as_str()]).find(|target| Path::new(target).starts_with(DATA))
}

/// sshd's option for the time between keep-alive probes, without the seconds.
const KEEP_ALIVE: &str = "ClientAliveInterval=";

/// Splits the value of [`KEEP_ALIVE`] off a spec's command. The launcher's container and workers of earlier versions have none.
fn split_keep_alive(spec: &Value) -> (Option<&str>, Vec<&str>) {
    let command = spec["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let (keep_alive, rest): (Vec<&str>, Vec<&str>) = command.partition(|argument| argument.starts_with(KEEP_ALIVE));
    (keep_alive.first().copied(), rest)
}

/// Becomes a worker's sshd, whose sessions have the image's environment. Arguments: sshd's full path and options.
const START: &str = include_str!("../scripts/worker_start.sh").trim_ascii_end();

/// The same for the worker of a single job, with a loop next to the sshd that ends it. Arguments between sshd's path and options: where
/// ranks record their states, and two limits in seconds.
const START_FOR_JOB: &str =
    concat!(include_str!("../scripts/worker_idle.sh"), include_str!("../scripts/worker_start.sh"));

/// Returns the worker's main process. sshd needs its full path. The host key is the cluster's, so that a worker keeps its identity when it
/// is recreated. sshd reads no configuration of the image, which is made for other users and purposes (`AllowUsers`, `ListenAddress`).
fn sshd(cluster: &Cluster, address: IpAddr) -> Vec<String> {
    let (port, host_key) = (cluster.port.to_string(), format!("{CONTAINER_SSH}/{HOST_KEY}"));
    let authorized_keys = format!("AuthorizedKeysFile={CONTAINER_SSH}/{AUTHORIZED_KEYS}");
    let options = [
        "PermitRootLogin=prohibit-password",
        "PubkeyAuthentication=yes",
        &authorized_keys,
        // the keys are mounted read-only; the modes of the image's home directory do not matter
        "StrictModes=no",
        // the image's PAM modules may refuse root, and change limits and environment
        "UsePAM=no",
        "PasswordAuthentication=no",
        "KbdInteractiveAuthentication=no",
        // the logins of many ranks arrive at once; sshd's default drops connections from the tenth on
        "MaxStartups=200:30:400",
        "UseDNS=no",
        // ends a rank that the network has cut off from its launcher: the connection closes, which its rank supervisor notices
        &format!("{KEEP_ALIVE}{}", cluster.keep_alive.as_secs()),
        "ClientAliveCountMax=3",
        // with both families, sshd would keep running if another program used the port in one of them
        if address.is_ipv4() { "AddressFamily=inet" } else { "AddressFamily=inet6" },
        // not reachable from the host's other networks
        &format!("ListenAddress={address}"),
    ];
    let program = ["sh", "-c", START, "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", &port, "-h", &host_key];
    program.into_iter().chain(options.into_iter().flat_map(|option| ["-o", option])).map(str::to_owned).collect()
}

/// Returns the file name of a key pair's private half.
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
        let has = |desired: &ContainerSpec, option: &str| desired.spec.command.windows(2).any(|w| w == ["-o", option]);
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
    fn the_worker_of_a_single_job_exits_soon_unless_the_job_may_restart() {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        cluster.jobs_dir = "/my jobs".into();
        let worker = ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::All, IpAddr::from([10, 0, 0, 1]));
        for (idle, may_restart, seconds) in [(60, false, 60), (60, true, 86_400), (10, false, 10)] {
            assert!(idle == 10 || cluster.worker_idle.as_secs() == idle, "the default");
            cluster.worker_idle = Duration::from_secs(idle);
            let own = worker.clone().for_job(&cluster, "j1", may_restart);
            assert_eq!(own.spec.command[4..7], ["/my jobs/j1/states", &seconds.to_string(), "86400"]);
            assert_eq!(
                [&own.spec.command[..2], &own.spec.command[3..4]],
                [&worker.spec.command[..2], &["/usr/sbin/sshd".into()]]
            );
            assert_eq!(own.spec.command[7..], worker.spec.command[4..]);
            assert_eq!(
                own.spec.command[2].trim_end().strip_suffix(&worker.spec.command[2]),
                Some(include_str!("../scripts/worker_idle.sh"))
            );
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
        // `up` would recreate every worker if this changed
        assert_eq!(base.hash(), "0420e2345d96");
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
    fn data_are_mounted_where_a_node_has_them_and_nothing_else_is_there() {
        let Inventory { mut cluster, mut nodes, .. } = Inventory::local("here", "some/image:1");
        let address = IpAddr::from([10, 0, 0, 1]);
        let worker = ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::None, address);
        let data = |cluster: &Cluster, node: &Node, inode| worker.clone().with_data(cluster, node, inode).spec;
        assert_eq!(data(&cluster, &nodes[0], None), worker.spec, "no worker changes before the first push");
        let mounted = data(&cluster, &nodes[0], Some(7));
        assert_eq!(mounted.differences(&worker.spec.json()), ["data"]);
        assert_eq!(data(&cluster, &nodes[0], Some(8)).differences(&mounted.json()), ["data"]);
        for target in ["/data", "/data/x", "/database"] {
            let mount = Mount { source: "/mnt".into(), target: target.into(), read_only: true };
            nodes[0].container.mounts = vec![mount];
            assert_eq!(data(&cluster, &nodes[0], Some(7)).data.is_some(), target == "/database", "{target}");
        }
        nodes[0].container.mounts.clear();
        cluster.jobs_dir = "/data/jobs".into();
        assert_eq!(data_obstacle(&cluster, &nodes[0]), Some("/data/jobs"));
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
        container.mounts.push(Mount { source: "/data".into(), target: "/data".into(), read_only: true });
        container.devices.push(Device { source: "/dev/a".into(), target: "/dev/a".into(), permissions: "rwm".into() });
        container.ulimits.insert("memlock".into(), Ulimit { soft: -1, hard: -1 });
        container.env.insert("A".into(), "1".into());
        let more = made(&nodes[0], GpuRequest::All);
        assert_eq!(more.differences(&json), ["mounts", "devices", "ulimits"]);
        assert!(more.differences(&more.json()).is_empty());
        assert_ne!(more.hash(), plain.hash());
        assert!(json!(more).get("env").is_none(), "the environment is the jobs', not the containers'");
    }
}
