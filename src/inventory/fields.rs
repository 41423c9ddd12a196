//! The fields of an inventory. This is their one description: the types [`Cluster`], [`Bench`], [`Slurm`], [`Node`] and
//! [`Container`], the defaults, the reader, the known fields in messages, the JSON Schema and
//! `docs/reference/inventory.md` all follow from it.
//!
//! A macro makes types and tables of it, rather than `serde` and `schemars` reading the file into types: serde stops at
//! the first fault, and the reader reports all of them with their places. What the reader has accepted becomes JSON,
//! and from that serde makes the types.

use super::kind::ValueKind::{self, *};
use super::kind::{PORT, seconds};
use super::{Bind, Controller, EngineChoice, KeyType, LauncherName, Pull, RuntimeChoice, check, container};
use crate::model::mesh::{self, NetworkKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The longest time after which what is published in a pool is stale. No reader trusts a grade for longer, whatever its
/// owner says.
pub const LONGEST_LIFETIME: Duration = Duration::from_secs(30 * 86_400);

/// One field of a table.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: ValueKind,
    /// Its purpose, in a sentence or two.
    pub(super) doc: &'static str,
}

/// The tables of an inventory.
pub const TABLES: &[&str] = &["bench", "cluster", "defaults", "groups", "node", "pool", "slurm"];

/// Makes a type and a table of fields from `name: type = default, kind;` with the documentation of each.
/// `as "…_s"` is the name in the file of a duration, which has whole seconds there.
macro_rules! tables {
    ($($(#[doc = $about:literal])+ $table:ident, $fields:ident { $(
        $(#[doc = $doc:literal])+
        $name:ident $(as $seconds:literal)?: $type:ty = $default:expr, $kind:expr;
    )* $(.. $(#[doc = $rest_doc:literal])+ $rest:ident: $rest_type:ty)? })*) => {$(
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $table {
            $(
                $(#[doc = $doc])+
                $(#[serde(rename = $seconds, with = "super::seconds")])?
                pub $name: $type,
            )*
            $($(#[doc = $rest_doc])+ #[serde(flatten)] pub $rest: $rest_type,)?
        }

        impl Default for $table {
            fn default() -> Self {
                $table { $($name: $default,)* $($rest: Default::default(),)? }
            }
        }

        pub(super) static $fields: &[Field] = &[$(Field {
            name: [$($seconds,)? stringify!($name)][0],
            kind: $kind,
            doc: concat!($($doc),+).trim_ascii(),
        },)*];
    )*};
}

tables! {
    /// Settings of the whole cluster; `[cluster]` in the file.
    Cluster, CLUSTER {
        /// Name of the cluster; in the label of everything that hvdctl creates on the nodes.
        name: String = "local".into(), Text(&check::NAME);
        /// Image of all containers. Name a version to keep jobs repeatable.
        image: String = "horovod/horovod:latest".into(), Text(&check::IMAGE);
        /// When `up` pulls the image: if a node does not have it, each time, or never; `peers` copies it from another
        /// node to those that do not have it, and contacts no registry.
        pull: Pull = Pull::Missing, Choice(&["missing", "always", "peers", "never"]);
        /// Container engine of the nodes: Docker, Podman, or Docker where it is installed and otherwise Podman; that of
        /// a node takes precedence.
        engine: EngineChoice = EngineChoice::Auto, Choice(&["auto", "docker", "podman"]);
        /// The runtime of the ranks: containers, or processes of the login user, which need neither an engine nor root.
        runtime: RuntimeChoice = RuntimeChoice::Container, Choice(&["container", "process"]);
        /// With `runtime = "process"`: directory on each node, on a disk of its own, for everything that hvdctl keeps
        /// there; otherwise /var/tmp/hvdctl-NAME. The other directories are in it.
        state_dir: Option<String> = None, Text(&check::STATE_DIR);
        /// An encrypted network between the nodes that `up` makes, for nodes on different networks; otherwise the nodes
        /// reach each other without it.
        network: Option<NetworkKind> = None, Choice(&["wireguard"]);
        /// The range of the nodes' addresses in that network; otherwise one that none of them has a route to.
        network_range: Option<mesh::AddressRange> = None, Text(&check::NETWORK_RANGE);
        /// UDP port of that network on every node. Two clusters on the same nodes need one each.
        network_port: u16 = 51820, PORT;
        /// Name of that network's interface and of its container on every node. Two clusters on the same nodes need one
        /// each.
        network_interface: String = mesh::INTERFACE.into(), Text(&check::NETWORK_INTERFACE);
        /// Port of the workers' sshd, over which the nodes reach each other.
        port: u16 = 12345, PORT;
        /// Name of the worker's container on every node.
        worker: String = "hworker".into(), Text(&check::CONTAINER);
        /// Name of the launcher's container on the master.
        master: String = "hmaster".into(), Text(&check::CONTAINER);
        /// Directory on the nodes for the cluster's keys.
        ssh_dir: String = "/opt/horovod/ssh".into(), Text(&check::DIRECTORY);
        /// Directory on the nodes for the projects that `train` uploads.
        projects_dir: String = "/opt/horovod/projects".into(), Text(&check::DIRECTORY);
        /// Directory on the nodes for the records and logs of jobs.
        jobs_dir: String = "/opt/horovod/jobs".into(), Text(&check::DIRECTORY);
        /// Directory on the nodes for the data that `data push` uploads; in the containers, read-only, as /data/NAME.
        data_dir: String = "/opt/horovod/data".into(), Text(&check::DIRECTORY);
        /// Type of the key pair with which the containers reach each other.
        key_type: KeyType = KeyType::Rsa, Choice(&["rsa", "ed25519"]);
        /// The launcher of the ranks; `--launcher` and the project's hvdctl.toml take precedence.
        launcher: LauncherName = LauncherName::Horovodrun, Choice(&["horovodrun", "torchrun", "mpirun", "env"]);
        /// Horovod's controller for `horovodrun`; `--controller` takes precedence.
        controller: Controller = Controller::Gloo, Choice(&["gloo", "mpi"]);
        /// Cores that each rank is bound to: those of its GPU's NUMA node, an equal share, or all; `--bind` takes
        /// precedence. Without it: numa if there are several NUMA nodes and GPUs that belong to them, otherwise none.
        bind: Option<Bind> = None, Choice(&["numa", "core", "none"]);
        /// Size of /dev/shm in the containers. If it is too small, data loaders and NCCL fail.
        shm_size: u64 = 8 << 30, Size;
        /// SSH configuration of this cluster, read before yours; relative to the inventory.
        ssh_config: Option<PathBuf> = None, Text(&check::FILE);
        /// Seconds for one node to answer a login.
        connect_timeout as "connect_timeout_s": Duration = Duration::from_secs(10), seconds(1, 600);
        /// Seconds for one step on one node.
        command_timeout as "command_timeout_s": Duration = Duration::from_secs(60), seconds(1, 86_400);
        /// Seconds for all ranks of a job to start; otherwise the job fails.
        start_timeout as "start_timeout_s": Duration = Duration::from_secs(120), seconds(1, 86_400);
        /// Seconds between SIGTERM and SIGKILL when a job is stopped.
        stop_grace as "stop_grace_s": Duration = Duration::from_secs(10), seconds(0, 3600);
        // long, because rank 0 alone may evaluate or save for many minutes while the others wait
        /// Seconds without progress after which a rank is reported; the job continues; 0: never.
        stall_warning as "stall_warning_s": Duration = Duration::from_secs(1800), seconds(0, 604_800);
        // what waits for a license, a database or a debugger looks like what hangs
        /// Seconds without progress after which a rank ends the job; --stall-timeout takes precedence; 0: never.
        stall_timeout as "stall_timeout_s": Duration = Duration::ZERO, seconds(0, 604_800);
        /// Seconds added to the stall time-out if only a rank's supervisor sees that the rank makes no progress.
        idle_margin as "idle_margin_s": Duration = Duration::from_secs(30), seconds(0, 86_400);
        /// Seconds after which a job is warned about if none of its ranks has a connection to another one; 0: never.
        isolated_after as "isolated_after_s": Duration = Duration::from_secs(180), seconds(0, 86_400);
        /// Seconds between two samples of what ranks, nodes and GPUs use, for `top` and `report`; 0: none.
        sample as "sample_s": Duration = Duration::from_secs(5), seconds(0, 3600);
        /// Seconds before the first of --restarts; the pause doubles each time, up to 300 s.
        restart_pause as "restart_pause_s": Duration = Duration::from_secs(2), seconds(0, 300);
        /// Seconds that an elastic job may have fewer than its minimum number of ranks before it fails.
        elastic_timeout as "elastic_timeout_s": Duration = Duration::from_secs(600), seconds(0, 604_800);
        /// Seconds after which a job's own worker exits if nothing runs in it and no hvdctl has stopped it.
        worker_idle as "worker_idle_s": Duration = Duration::from_secs(60), seconds(5, 86_400);
        /// Seconds between keep-alive probes of every SSH connection, which is lost after 3 unanswered probes. `up`
        /// recreates workers when this changes.
        keep_alive as "keep_alive_s": Duration = Duration::from_secs(15), seconds(1, 600);
        /// Seconds that an SSH connection stays open after its last use, for the next command; 0: it ends with the
        /// command.
        connection_idle as "connection_idle_s": Duration = Duration::from_secs(600), seconds(0, 86_400);
    }

    /// The requirements of `bench` on the cluster; `[bench]` in the file.
    Bench, BENCH {
        /// The minimum bus bandwidth of allreduce, in GB/s (10⁹ bytes a second) as nccl-tests defines it, at the best
        /// size: `bench` and `verify` fail below it.
        min_busbw: Option<u64> = None, Bandwidth;
    }

    /// The pool in which `grade --publish` and `pool` exchange nodes with other owners; `[pool]` in the file.
    Pool, POOL {
        /// Machine with the pool's directory as for ssh, `[user@]host[:port]`; otherwise this machine.
        host: Option<String> = None, Text(&check::DESTINATION);
        /// Directory of the pool there, which all members can write to.
        path: String = String::new(), Text(&check::POOL_DIRECTORY);
        /// Members and their public keys, in OpenSSH's format of allowed signers (ssh-keygen(1)). Relative to the
        /// inventory.
        allowed_signers: PathBuf = "allowed_signers".into(), Text(&check::FILE);
        /// Your key, with which `grade --publish` signs, or its public half FILE.pub if an agent has the private one;
        /// otherwise ~/.ssh/id_ed25519. Relative to the inventory.
        key: Option<PathBuf> = None, Text(&check::FILE);
        /// Your name among the members; otherwise the one that has your key.
        owner: Option<String> = None, Text(&check::OWNER);
        /// Seconds after which what you publish is stale.
        lifetime as "lifetime_s": Duration = Duration::from_secs(604_800), seconds(3600, LONGEST_LIFETIME.as_secs());
    }

    /// A cluster of Slurm, to which jobs are submitted; `[slurm]` in the file.
    Slurm, SLURM {
        /// Login node as for ssh, `[user@]host[:port]`; otherwise this machine.
        host: Option<String> = None, Text(&check::DESTINATION);
        /// Directory that the login node and all other nodes share, for everything that hvdctl keeps there; otherwise
        /// .hvdctl in your home directory.
        state_dir: Option<String> = None, Text(&check::STATE_DIR);
        /// The launcher of the ranks; otherwise that of the cluster.
        launcher: Option<LauncherName> = None, Choice(&["horovodrun", "torchrun", "mpirun", "env", "srun"]);
        /// Lines of bash that set up the environment of a job, like "module load CUDA". A login shell runs them on each
        /// node when the job starts.
        activate: Vec<String> = Vec::new(), List(&Text(&check::LINE));
        /// Partition of the jobs. Without this or one of the following fields, Slurm's default applies.
        partition: Option<String> = None, Text(&check::SLURM);
        /// Account that jobs are charged to.
        account: Option<String> = None, Text(&check::SLURM);
        /// Quality of service of the jobs.
        qos: Option<String> = None, Text(&check::SLURM);
        /// Features that nodes must have.
        constraint: Option<String> = None, Text(&check::SLURM);
        /// Time limit of a job, as for sbatch.
        time: Option<String> = None, Text(&check::SLURM);
        /// Generic resources of each node. With "gpu:4" a node has at most 4 ranks.
        gres: Option<String> = None, Text(&check::SLURM);
        /// Further options of sbatch, passed on unchanged; --sbatch adds to them.
        options: Vec<String> = Vec::new(), List(&Text(&check::SLURM_OPTION));
    }

    /// One machine; a `[[node]]` of the file, over `[defaults]`.
    Node, NODE {
        /// Host as for ssh: an alias, a name or an address. gpu[01-16] stands for sixteen nodes.
        host: String = "localhost".into(), Range(&check::HOST);
        /// Name of the node in hvdctl; otherwise the host. With a range of hosts, a range of the same length.
        name: String = "localhost".into(), Range(&check::NODE_NAME);
        /// User to log in as; otherwise that of your SSH configuration.
        user: Option<String> = None, Text(&check::USER);
        /// Port of the machine's own sshd; otherwise that of your SSH configuration.
        ssh_port: Option<u16> = None, PORT;
        /// Your private key for the nodes; otherwise that of your SSH configuration. Relative to the inventory.
        identity: Option<PathBuf> = None, Text(&check::FILE);
        /// Jump hosts, as for ssh -J; "none" overrides those of your SSH configuration.
        jump: Option<String> = None, Text(&check::JUMP);
        /// Container engine of the node; otherwise that of the cluster.
        engine: Option<EngineChoice> = None, Choice(&["auto", "docker", "podman"]);
        /// GPUs and MIG devices for jobs: a number (the first N), "auto" (all that nvidia-smi lists), "all" (the same,
        /// at least one), "none", or a list of indices and UUIDs.
        gpus: super::Gpus = super::Gpus::Auto, Gpus;
        /// Maximum number of ranks of one job; otherwise one per GPU, or per CPU core.
        slots: Option<u32> = None, Number("a number of slots", 1, 1024);
        /// Address on the network between the nodes; otherwise detected. With a range of hosts, a range of the same
        /// length, like 10.0.0.[1-16].
        address: Option<IpAddr> = None, Range(&check::ADDRESS);
        /// Network interface between the nodes, if they have several; otherwise detected.
        interface: Option<String> = None, Text(&check::INTERFACE);
        /// With `network = "wireguard"`: where the other nodes reach it on UDP, `host` or `host:port`, if its router
        /// forwards a port or it has an outside address; otherwise found out.
        endpoint: Option<String> = None, Text(&check::ENDPOINT);
        /// Owner of the node, if that is someone else. A password or a registry's login is given to the nodes of one
        /// owner only.
        owner: Option<String> = None, Text(&check::OWNER);
        /// Public host key of the machine's own sshd: ssh accepts no other, even at first contact; otherwise the key
        /// that ssh knows.
        host_key: Option<String> = None, Text(&check::HOST_KEY);
        /// If true, jobs are launched here; true for at most one node.
        master: bool = false, Flag;
        ..
        /// Settings of the node's containers in addition to the image.
        container: Container
    }

    /// The additions of a node's containers to the image; fields of `[[node]]`, too.
    Container, CONTAINER {
        /// Further directories and files of the node in the containers.
        mounts: Vec<container::Mount> = Vec::new(), List(&Mount);
        /// Devices of the node in the containers; a directory stands for all devices in it.
        devices: Vec<container::Device> = Vec::new(), List(&Device);
        /// Limits of the processes in the containers, by name. RDMA needs memlock = -1. Ranks get the hard limit of
        /// nofile as their soft one, unless it is set here.
        ulimits: BTreeMap<String, container::Ulimit> = BTreeMap::new(), Table(&check::LIMIT, &Limit);
        /// Capabilities of the containers in addition to Docker's default ones without NET_RAW, like "NET_RAW" or
        /// "SYS_NICE".
        cap_add: Vec<String> = Vec::new(), List(&Text(&check::CAPABILITY));
        /// With `runtime = "process"`: lines of bash that set up the environment of ranks, like "module load CUDA" or
        /// "source ~/venv/bin/activate". A login shell runs them when `up` or a job starts.
        activate: Vec<String> = Vec::new(), List(&Text(&check::LINE));
        /// Variables of every rank, in addition to the image's; not for secrets. Those that the engine's runtime for
        /// GPUs reads, like NVIDIA_DRIVER_CAPABILITIES, are also the containers'.
        env: BTreeMap<String, String> = BTreeMap::new(), Table(&check::VARIABLE, &Variable);
        /// File on this machine with further NAME=VALUE lines, like a .env file of Compose; its values may be secret.
        /// Relative to the inventory.
        env_file: Option<PathBuf> = None, Text(&check::FILE);
    }
}

/// The groups, of which there may be any; here as the one field that they are read as.
static GROUPS: Field = Field {
    name: "groups",
    kind: Table(&check::NAME, &Nodes),
    doc: "Names for sets of nodes, used as --on @NAME: an expression as for --on, or a list of expressions; other \
        groups as @NAME.",
};

/// The fields of the table `bench`, `cluster`, `defaults`, `node`, `pool` or `slurm`; of the whole file, `""`, what is
/// no table of fields.
pub(super) fn of(table: &str) -> Vec<&'static Field> {
    let node = NODE.iter().chain(CONTAINER);
    match table {
        "cluster" => CLUSTER.iter().collect(),
        "bench" => BENCH.iter().collect(),
        "pool" => POOL.iter().collect(),
        "slurm" => SLURM.iter().collect(),
        // what many nodes may share
        "defaults" => node
            .filter(|field| !matches!(field.kind, Range(_) | Flag) && !matches!(field.name, "host_key" | "endpoint"))
            .collect(),
        "node" => node.collect(),
        _ => vec![&GROUPS],
    }
}

/// The names of the fields of the table `bench`, `cluster`, `defaults`, `node`, `pool` or `slurm`, or of these tables
/// for `""`.
pub fn names(table: &str) -> Vec<&'static str> {
    match table {
        "" => TABLES.to_vec(),
        table => of(table).into_iter().map(|field| field.name).collect(),
    }
}
