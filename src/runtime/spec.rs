//! The desired containers of a node, as values.

use crate::inventory::{Cluster, Node, RuntimeChoice, Ulimit};
pub use crate::inventory::{Device, Mount};
use crate::model::format;
use crate::node::gpus::GpuRequest;
use crate::text::digest::hex;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The cluster that the container belongs to; hvdctl touches only containers with this label.
pub const LABEL_CLUSTER: &str = "hvdctl.cluster";
/// The name that the container was created with: one that was made of an image committed from it has the same labels.
pub const LABEL_NAME: &str = "hvdctl.name";
/// The number of the form of all labels; see [`crate::model::format`].
pub const LABEL_FORMAT: &str = "hvdctl.format";
/// `worker`, `master`, `shell`, `helper`, `setup`, `relay`, `slurm`, `slurm-agent` or `mesh`.
pub const LABEL_ROLE: &str = "hvdctl.role";
/// Hash of the [`Spec`] that the container was created from.
pub const LABEL_SPEC: &str = "hvdctl.spec";
/// That [`Spec`] as JSON, so that a later plan can name the parts that differ.
pub const LABEL_SPEC_FULL: &str = "hvdctl.spec.full";
/// The job that the container serves.
pub const LABEL_JOB: &str = "hvdctl.job";
/// The Python of a process of the login since its start: `VERSION of PREFIX (PATH)` (`process/begin.sh`).
pub const LABEL_PYTHON: &str = "hvdctl.python";
/// The directory on the node that is mounted at [`WORKSPACE`](crate::paths::WORKSPACE).
pub const LABEL_WORKSPACE: &str = "hvdctl.workspace";
/// A worker with the image or the lines of `activate` of a role of a job, which are not those of the inventory.
pub const LABEL_FOR_ROLE: &str = "hvdctl.for-role";
/// The hvdctl process that works as root in the container.
pub const LABEL_PROCESS: &str = "hvdctl.process";

/// The cluster for which hvdctl has built an image. Containers made of the image have this label, too, and it says
/// nothing of them.
pub const LABEL_BUILT_FOR: &str = "hvdctl.built-for";

/// The repository of the images that hvdctl makes of a project's setup.
pub const SETUP_REPOSITORY: &str = "hvdctl";

/// Returns whether an image was made of a project's setup, by its name.
pub fn is_setup_image(image: &str) -> bool {
    image.split_once('/').is_some_and(|(repository, _)| repository == SETUP_REPOSITORY)
}

/// The purpose of a container.
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
    /// `hslurm`: the daemons of the cluster's queue, and its jobs.
    Slurm,
    /// `hslurm-agent`: what starts and ends the containers of jobs for that Slurm.
    SlurmAgent,
    /// `hmesh`, or as the inventory names it: the encrypted network.
    Mesh,
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
            Role::Slurm => "slurm",
            Role::SlurmAgent => "slurm-agent",
            Role::Mesh => "mesh",
        }
    }
}

impl Serialize for GpuRequest {
    /// Serializes `All` and `None` as true and false, for compatibility with labels of hvdctl 0.1.0.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            GpuRequest::None | GpuRequest::Unstated => false.serialize(serializer),
            GpuRequest::All => true.serialize(serializer),
            GpuRequest::First(count) => count.serialize(serializer),
            GpuRequest::Devices(devices) => devices.serialize(serializer),
        }
    }
}

/// A directory of pushed data, mounted read-only below [`DATA`](crate::paths::DATA).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct DataMount {
    /// Its name there.
    pub name: String,
    /// The directory on the node.
    pub source: String,
    /// Its inode: a container does not see a directory that was removed and created again.
    pub inode: u64,
}

/// The part of a container that its hash covers. The workspace is not in it: a worker with another project mounted is
/// the same worker.
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
    /// Lines of bash that set up the environment of processes of the login.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub activate: Vec<String>,
    /// The directories of the virtualenvs that these lines activate: another one takes its place when it is made again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub virtualenvs: Vec<String>,
    /// hvdctl's own mounts other than the workspace.
    pub mounts: Vec<Mount>,
    /// The mounts of the inventory. A source that is missing on the node is an error; Docker creates missing sources
    /// only for hvdctl's own mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_mounts: Vec<Mount>,
    /// The data that the node has of the cluster, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataMount>,
    /// Devices of the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Limits of the processes by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ulimits: BTreeMap<String, Ulimit>,
    /// Capabilities in addition to Docker's default ones without `NET_RAW`; `None` for processes, and in containers of
    /// hvdctl 0.2.0, which had `NET_RAW`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_add: Option<Vec<String>>,
    /// Variables of the inventory that the engine's runtime for accelerators reads.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub runtime_env: BTreeMap<String, String>,
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
    /// Its purpose.
    pub role: Role,
    /// The properties that the hash covers.
    pub spec: Spec,
    /// Directory on the node that is mounted at [`WORKSPACE`](crate::paths::WORKSPACE), which is the working directory
    /// then. `None`: whatever is mounted may stay.
    pub workspace: Option<String>,
    /// Set if that directory was created just now: a container that had an earlier one mounted does not see it.
    pub new_workspace: bool,
    /// Set if it has the image or the lines of `activate` of a role, which are not those of the inventory.
    pub for_role: bool,
    /// The job that it serves.
    pub job: Option<String>,
    /// Environment in addition to the image's, as `NAME=VALUE`; nothing secret.
    pub env: Vec<String>,
    /// The beginning of its main process, if the command is not that. It is no part of the [`Spec`]: a container that
    /// an earlier hvdctl created without it is not another one.
    pub init: Option<ContainerInit>,
}

/// A program that starts the command of a container and ends it in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInit {
    /// The program and its arguments, before those of the command.
    pub argv: Vec<String>,
    /// The time that it may take for the end.
    pub limit: Duration,
}

/// How the engine asks a container to end when a user, or the end of the engine, stops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerStop {
    /// The signal, by name and number.
    pub signal: (&'static str, i32),
    /// The seconds after which the engine kills it.
    pub seconds: u64,
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

    /// Returns the names of the parts in which `old`, a [`LABEL_SPEC_FULL`], differs; `spec` if it cannot be read.
    /// `command` is named only if it differs in more than the port, the address and the keep-alive interval, which have
    /// names of their own.
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
            ("activate", differ(&["activate"])),
            ("virtualenv", differ(&["virtualenvs"]) && !differ(&["activate"])),
            ("mounts", differ(&["mounts", "extra_mounts"])),
            ("data", differ(&["data"])),
            ("devices", differ(&["devices"])),
            ("ulimits", differ(&["ulimits"])),
            ("capabilities", differ(&["cap_add"])),
            ("environment", differ(&["runtime_env"])),
            ("shm", differ(&["shm_size"])),
        ];
        parts.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).to_owned()).collect()
    }
}

/// Returns the image that containers are made of; processes have none.
pub fn image_of(cluster: &Cluster) -> String {
    match cluster.runtime {
        RuntimeChoice::Container => cluster.image.clone(),
        RuntimeChoice::Process | RuntimeChoice::Slurm => String::new(),
    }
}

impl ContainerSpec {
    /// Returns a container with the inventory's settings for the node's containers, without GPUs, a command, and the
    /// mounts of keys and jobs.
    pub fn new(cluster: &Cluster, node: &Node, role: Role, name: String) -> ContainerSpec {
        let spec = Spec {
            image: image_of(cluster),
            command: Vec::new(),
            gpus: GpuRequest::None,
            port: cluster.port,
            address: None,
            activate: node.container.activate.clone(),
            virtualenvs: Vec::new(),
            mounts: Vec::new(),
            extra_mounts: node.container.mounts.clone(),
            data: Vec::new(),
            devices: node.container.devices.clone(),
            ulimits: node.container.ulimits.clone(),
            cap_add: cluster.can().images.then(|| node.container.cap_add.clone()),
            runtime_env: BTreeMap::new(),
            shm_size: cluster.shm_size,
        };
        let (cluster, env) = (cluster.name.clone(), Vec::new());
        let (workspace, new_workspace, for_role) = (None, false, false);
        ContainerSpec { name, cluster, role, spec, workspace, new_workspace, for_role, job: None, env, init: None }
    }

    /// Returns its main process, as argv.
    pub fn argv(&self) -> Vec<String> {
        let init = self.init.iter().flat_map(|init| &init.argv);
        init.chain(&self.spec.command).cloned().collect()
    }

    /// Returns how it is asked to end, if not by the engine's defaults and the image's signal.
    pub fn stop(&self) -> Option<ContainerStop> {
        match (self.role, &self.init) {
            // hvdctl stops a job by SIGTERM, which its supervisor distinguishes from an engine that shuts down; more
            // seconds than the job supervisor takes when a node is lost
            (Role::Master, _) => Some(ContainerStop { signal: ("SIGUSR1", 10), seconds: 30 }),
            (_, Some(init)) => Some(ContainerStop { signal: ("SIGTERM", 15), seconds: init.limit.as_secs() + 5 }),
            _ => None,
        }
    }

    /// Returns the labels that identify the container.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let labels = [
            (LABEL_CLUSTER, Some(self.cluster.clone())),
            (LABEL_NAME, Some(self.name.clone())),
            (LABEL_FORMAT, Some(format::LABELS.to_string())),
            (LABEL_ROLE, Some(self.role.as_str().to_owned())),
            (LABEL_SPEC, Some(self.spec.hash())),
            (LABEL_SPEC_FULL, Some(self.spec.json())),
            (LABEL_WORKSPACE, self.workspace.clone()),
            (LABEL_FOR_ROLE, self.for_role.then(|| "yes".to_owned())),
            (LABEL_JOB, self.job.clone()),
        ];
        labels.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// sshd's option for the time between keep-alive probes, without the seconds.
pub const KEEP_ALIVE: &str = "ClientAliveInterval=";

/// Splits the value of [`KEEP_ALIVE`] off a spec's command. The launcher's container and workers of earlier versions
/// have none.
fn split_keep_alive(spec: &Value) -> (Option<&str>, Vec<&str>) {
    let command = spec["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let (keep_alive, rest): (Vec<&str>, Vec<&str>) = command.partition(|argument| argument.starts_with(KEEP_ALIVE));
    (keep_alive.first().copied(), rest)
}
