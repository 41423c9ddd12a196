//! The containers that hvdctl wants on a node, as values.

use crate::core::inventory::{Cluster, KeyType};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Whose container it is; only containers with this label are ever touched.
pub const LABEL_CLUSTER: &str = "hvdctl.cluster";
/// `worker` or `master`.
pub const LABEL_ROLE: &str = "hvdctl.role";
/// Hash of the desired state that it was made from.
pub const LABEL_SPEC: &str = "hvdctl.spec";
/// The same desired state in full (JSON), so that a later plan can say which part differs.
pub const LABEL_SPEC_FULL: &str = "hvdctl.spec.full";
/// The run that the container serves.
pub const LABEL_JOB: &str = "hvdctl.job";
/// The folder on the node that is mounted at [`WORKSPACE`].
pub const LABEL_WORKSPACE: &str = "hvdctl.workspace";

/// Where a project is seen in the containers.
pub const WORKSPACE: &str = "/workspace";
/// Where the containers see the cluster's keys.
pub const CONTAINER_SSH: &str = "/root/.ssh";

/// A role's word in its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// `hworker`: sshd, and the ranks of every node but the master.
    Worker,
    /// `hmaster`: the launcher, and the ranks of the master node.
    Master,
}

impl Role {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Master => "master",
        }
    }
}

/// A folder of the node in the container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path on the node.
    pub source: String,
    /// Absolute path in the container.
    pub target: String,
    /// Whether the container may only read.
    pub read_only: bool,
}

impl Mount {
    fn new(source: &str, target: &str, read_only: bool) -> Mount {
        Mount { source: source.into(), target: target.into(), read_only }
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
    /// Whether all GPUs are asked for (`--gpus all`).
    pub gpus: bool,
    /// Port of the sshd in it.
    pub port: u16,
    /// Mounts other than the workspace.
    pub mounts: Vec<Mount>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size: u64,
}

/// A container to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    /// Its name.
    pub name: String,
    /// The cluster's name.
    pub cluster: String,
    /// What it is for.
    pub role: Role,
    /// What the hash covers.
    pub spec: Spec,
    /// Folder on the node that is mounted at [`WORKSPACE`]; also the working directory then.
    pub workspace: Option<String>,
    /// The run it serves.
    pub job: Option<String>,
    /// Environment beside the image's, as `NAME=VALUE`; nothing secret.
    pub env: Vec<String>,
}

impl Spec {
    /// Twelve hex digits that change with any part of it.
    pub fn hash(&self) -> String {
        let json = self.json();
        Sha256::digest(json.as_bytes()).iter().take(6).map(|b| format!("{b:02x}")).collect()
    }

    /// The whole spec as JSON, for [`LABEL_SPEC_FULL`].
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a spec of strings and numbers is always JSON")
    }

    /// The names of the parts in which `old` (a [`LABEL_SPEC_FULL`]) differs; `spec` when it cannot be read.
    pub fn differences(&self, old: &str) -> Vec<String> {
        let Ok(old) = serde_json::from_str::<Spec>(old) else { return vec!["spec".into()] };
        let pairs = [
            ("image", self.image != old.image),
            ("command", self.command != old.command && self.port == old.port),
            ("gpus", self.gpus != old.gpus),
            ("port", self.port != old.port),
            ("mounts", self.mounts != old.mounts),
            ("shm", self.shm_size != old.shm_size),
        ];
        pairs.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).to_owned()).collect()
    }
}

impl Desired {
    /// The worker of a node.
    pub fn worker(cluster: &Cluster, gpus: bool) -> Desired {
        Desired {
            name: cluster.worker.clone(),
            cluster: cluster.name.clone(),
            role: Role::Worker,
            spec: spec(cluster, gpus, sshd(cluster)),
            workspace: None,
            job: None,
            env: Vec::new(),
        }
    }

    /// The launcher's container: the same image, GPUs, mounts and shared memory as the workers, because the ranks of
    /// the master node run in it and not in its `hworker`.
    pub fn master(cluster: &Cluster, gpus: bool, command: Vec<String>, job: &str) -> Desired {
        Desired {
            name: cluster.master.clone(),
            role: Role::Master,
            spec: spec(cluster, gpus, command),
            job: Some(job.to_owned()),
            ..Desired::worker(cluster, gpus)
        }
    }

    /// Every mount, the workspace included.
    pub fn mounts(&self) -> Vec<Mount> {
        let mut mounts = self.spec.mounts.clone();
        mounts.extend(self.workspace.as_ref().map(|source| Mount::new(source, WORKSPACE, false)));
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

fn spec(cluster: &Cluster, gpus: bool, command: Vec<String>) -> Spec {
    Spec {
        image: cluster.image.clone(),
        command,
        gpus,
        port: cluster.port,
        mounts: vec![
            Mount::new(&cluster.ssh_dir, CONTAINER_SSH, true),
            Mount::new(&cluster.jobs_dir, &cluster.jobs_dir, false),
        ],
        shm_size: cluster.shm_size,
    }
}

/// The worker's main process. sshd wants its full path and its privilege separation folder; the host key is the
/// cluster's own, so that a worker keeps its identity when it is made anew.
fn sshd(cluster: &Cluster) -> Vec<String> {
    let port = cluster.port.to_string();
    let host_key = format!("{CONTAINER_SSH}/{}", crate::core::trust::HOST_KEY);
    [
        "sh",
        "-c",
        "mkdir -p /run/sshd && exec \"$0\" \"$@\"",
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
        // Horovod's -H takes no IPv6; and with it sshd would live on when another program has the IPv4 port
        "AddressFamily=inet",
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
    use crate::core::inventory::Inventory;

    #[test]
    fn the_hash_moves_with_every_part_but_the_workspace() {
        let cluster = Inventory::local("here", "some/image:1").cluster;
        let base = Desired::worker(&cluster, true);
        let with = Desired { workspace: Some("/opt/horovod/projects/x".into()), ..base.clone() };
        assert_eq!(base.spec.hash(), with.spec.hash());
        assert_eq!(with.mounts().last().unwrap().target, WORKSPACE);
        let mut other = cluster.clone();
        other.port = 2222;
        let moved = Desired::worker(&other, true);
        assert_ne!(base.spec.hash(), moved.spec.hash());
        assert_eq!(moved.spec.differences(&base.spec.json()), ["port"]);
        assert_eq!(Desired::worker(&cluster, false).spec.differences(&base.spec.json()), ["gpus"]);
        assert_eq!(base.spec.differences("{}"), ["spec"]);
    }
}
