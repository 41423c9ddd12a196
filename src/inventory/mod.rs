//! The inventory: which machines make the cluster and how hvdctl reaches and sets them up.
//!
//! Read from a TOML file in one pass that collects *every* fault with its place, so that a user corrects a file once
//! and not once per fault. `inventory.example.toml` shows each field with its default.

mod assemble;
mod check;
mod container;
pub mod export;
mod fault;
mod groups;
mod nodes;
#[cfg(test)]
mod properties;
mod reader;
#[cfg(test)]
mod refusals;
mod schema;
#[cfg(test)]
mod sets;

pub use assemble::{CLUSTER_FIELDS, DEFAULTS_FIELDS, NODE_FIELDS, TABLES};
pub use check::parse_size;
pub use container::{Container, Device, Mount, Ulimit, env_lines, variable_name};
pub use fault::{Excerpt, Fault, Faults};
pub use schema::SCHEMA;

use crate::text::nodeset::Groups;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A larger file than this is no inventory; it keeps a mistaken `-i /dev/zero` from being read for ever.
const LARGEST_FILE: u64 = 4 << 20;

/// A cluster as its operator wrote it down, valid in itself, with all defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inventory {
    /// What holds for all nodes; `[cluster]`.
    pub cluster: Cluster,
    /// The machines in the file's order; at least one, and exactly one is the master. `[[node]]` over `[defaults]`.
    pub nodes: Vec<Node>,
    /// The nodes of each group by its name, in the inventory's order; `[groups]`.
    pub groups: Groups,
}

/// Where paths start that the file names.
#[derive(Clone, Copy)]
struct Paths<'p> {
    /// Relative ones on the operator's machine: the inventory's folder.
    base: &'p Path,
    /// `~/` on the operator's machine.
    home: Option<&'p Path>,
    /// The cluster's own folder in every container.
    jobs_dir: &'p str,
}

impl Paths<'_> {
    fn file(&self, text: &str) -> Result<PathBuf, reader::Hint> {
        check::file(text, self.base, self.home)
    }
}

/// What holds for all nodes; `[cluster]` in the file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cluster {
    /// The cluster's name, on every label; 1 to 63 letters, digits, `_`, `.`, `-`, the first a letter or digit.
    pub name: String,
    /// The image of the workers and the launcher.
    pub image: String,
    /// When `up` gets the image from its registry.
    pub pull: Pull,
    /// The port of the workers' own sshd.
    pub port: u16,
    /// The name of the worker's container on every node.
    pub worker: String,
    /// The name of the launcher's container on the master.
    pub master: String,
    /// The folder on the nodes with the cluster's keys; absolute, normalized, without `:`.
    pub ssh_dir: String,
    /// The folder on the nodes for shipped projects; absolute, normalized, without `:`.
    pub projects_dir: String,
    /// The folder on the nodes for the runs' records and logs; absolute, normalized, without `:`.
    pub jobs_dir: String,
    /// The kind of the cluster's own key pair.
    pub key_type: KeyType,
    /// What starts and connects the ranks, unless a run says otherwise.
    pub controller: Controller,
    /// Size of `/dev/shm` in the containers, in bytes.
    pub shm_size: u64,
    /// The operator's own ssh configuration for this cluster; absolute if the inventory's folder is.
    #[serde(serialize_with = "lossy_option")]
    pub ssh_config: Option<PathBuf>,
    /// How long connecting to one node may take.
    #[serde(rename = "connect_timeout_s", serialize_with = "seconds")]
    pub connect_timeout: Duration,
    /// How long one step on one node may take.
    #[serde(rename = "command_timeout_s", serialize_with = "seconds")]
    pub command_timeout: Duration,
    /// How long Horovod waits for its ranks at the start.
    #[serde(rename = "start_timeout_s", serialize_with = "seconds")]
    pub start_timeout: Duration,
    /// How long ranks have between SIGTERM and SIGKILL.
    #[serde(rename = "stop_grace_s", serialize_with = "seconds")]
    pub stop_grace: Duration,
    /// How long a rank may make no progress, unless a job says otherwise; zero: forever.
    #[serde(rename = "stall_timeout_s", serialize_with = "seconds")]
    pub stall_timeout: Duration,
    /// How much longer than the stall time-out a rank may make no progress that neither Horovod nor a stopped process shows.
    #[serde(rename = "idle_margin_s", serialize_with = "seconds")]
    pub idle_margin: Duration,
    /// The pause before the first restart of a job; each further pause is twice the one before.
    #[serde(rename = "restart_pause_s", serialize_with = "seconds")]
    pub restart_pause: Duration,
    /// How long a job's own worker stays when nothing runs in it.
    #[serde(rename = "worker_idle_s", serialize_with = "seconds")]
    pub worker_idle: Duration,
    /// The time between two keep-alive probes of an SSH connection. After three unanswered probes it counts as lost.
    #[serde(rename = "keep_alive_s", serialize_with = "seconds")]
    pub keep_alive: Duration,
}

/// One machine; a `[[node]]` of the file, over `[defaults]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Node {
    /// What the node is called everywhere; unique. The host where the file names none.
    pub name: String,
    /// What ssh is given: an alias of its configuration, a name or an address. Never begins with `-`.
    pub host: String,
    /// The user to log in as; `None` leaves it to ssh.
    pub user: Option<String>,
    /// The port of the machine's own sshd; `None` leaves it to ssh.
    pub ssh_port: Option<u16>,
    /// The operator's private key for this node; `None` leaves it to ssh. Absolute if the inventory's folder is.
    #[serde(serialize_with = "lossy_option")]
    pub identity: Option<PathBuf>,
    /// The hosts to jump over on the way to it, as `ssh -J` takes them; `none` takes away what ssh's configuration says;
    /// `None` leaves it to ssh.
    pub jump: Option<String>,
    /// The node's GPUs.
    pub gpus: Gpus,
    /// The most ranks of one run; at least 1. `None`: as many as GPUs, or decided from what the machine has.
    pub slots: Option<u32>,
    /// The node's address on the network of the cluster; `None`: found out.
    pub address: Option<IpAddr>,
    /// The network interface with that address (`eth0`); `None`: found out.
    pub interface: Option<String>,
    /// What its containers have beside the image.
    #[serde(flatten)]
    pub container: Container,
    /// Whether runs are launched from here.
    pub master: bool,
}

/// When `up` gets the image from its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pull {
    /// Where the node does not have it.
    Missing,
    /// Each time, in case the registry has a newer one of the same name.
    Always,
    /// Not at all.
    Never,
}

/// The kind of a key pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyType {
    /// RSA of 4096 bits, as in Horovod's documentation.
    Rsa,
    /// Ed25519: short and made at once.
    Ed25519,
}

/// What starts and connects the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    /// Horovod's own, over ssh.
    Gloo,
    /// `mpirun` of the image.
    Mpi,
}

/// The GPUs of a node that its containers get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpus {
    /// The first so many, 0 to 1024; 0 is none.
    Count(u32),
    /// All that `nvidia-smi` lists on the node, which may be none.
    Auto,
    /// All, and there is at least one.
    All,
    /// These, by index or UUID, as they are written; at least one.
    List(Vec<String>),
}

impl Serialize for Gpus {
    /// As in the file.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Gpus::Count(count) => serializer.serialize_u32(*count),
            Gpus::Auto => serializer.serialize_str("auto"),
            Gpus::All => serializer.serialize_str("all"),
            Gpus::List(list) => list.serialize(serializer),
        }
    }
}

impl Inventory {
    /// Reads the text of an inventory. `file` names it in messages, and relative paths start from its folder; `~/`
    /// is `$HOME`. No file is touched.
    ///
    /// # Errors
    /// Every fault of the text, in its order. Where the text is no TOML, what keeps it from being that.
    pub fn parse(text: &str, file: &Path) -> Result<Inventory, Faults> {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        assemble::inventory(text, file, home.as_deref())
    }

    /// Reads an inventory file; see [`Inventory::parse`].
    ///
    /// # Errors
    /// As of [`Inventory::parse`]; also a file that cannot be read, is too large or is no UTF-8.
    pub fn load(file: &Path) -> Result<Inventory, Faults> {
        let mut bytes = Vec::new();
        std::fs::File::open(file)
            .and_then(|open| open.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
            .map_err(|error| Faults::of_file(file, format!("cannot be read: {error}")))?;
        if bytes.len() as u64 > LARGEST_FILE {
            let limit = LARGEST_FILE >> 20;
            return Err(Faults::of_file(file, format!("expected an inventory, found a file of more than {limit} MiB")));
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => Inventory::parse(text, file),
            Err(error) => Err(Faults::not_utf8(file, &bytes, error.valid_up_to())),
        }
    }

    /// This machine alone with its own Docker: the cluster `local` with one node, which is the master.
    pub fn local(name: &str, image: &str) -> Inventory {
        let cluster = Cluster { name: "local".to_owned(), image: image.to_owned(), ..Cluster::default() };
        let node = Node { name: name.to_owned(), host: "localhost".to_owned(), master: true, ..Node::default() };
        Inventory { cluster, nodes: vec![node], groups: Groups::new() }
    }

    /// The node that runs are launched from.
    ///
    /// # Panics
    /// If there are no nodes, which no inventory made in this module is like.
    pub fn master(&self) -> &Node {
        self.nodes.iter().find(|node| node.master).unwrap_or(&self.nodes[0])
    }
}

/// Judges a single text as a node's `host`, and gives it back.
///
/// # Errors
/// In words: what was expected.
pub fn host(text: &str) -> Result<String, String> {
    judged(check::HOST, check::host(text))
}

/// [`host`] for a `user`.
///
/// # Errors
/// As there.
pub fn user(text: &str) -> Result<String, String> {
    judged(check::USER, check::user(text))
}

/// [`host`] for the `name` of a cluster.
///
/// # Errors
/// As there.
pub fn cluster_name(text: &str) -> Result<String, String> {
    judged(check::NAME, check::name(text))
}

/// [`host`] for an `image`.
///
/// # Errors
/// As there.
pub fn image(text: &str) -> Result<String, String> {
    judged(check::IMAGE, check::image(text))
}

fn judged(expected: &str, checked: Result<String, reader::Hint>) -> Result<String, String> {
    checked.map_err(|hint| {
        if hint.is_empty() { format!("expected {expected}") } else { format!("expected {expected}; {hint}") }
    })
}

impl Default for Cluster {
    /// The documented defaults, under the name `local`.
    fn default() -> Self {
        Cluster {
            name: "local".to_owned(),
            image: "horovod/horovod:latest".to_owned(),
            pull: Pull::Missing,
            port: 12345,
            worker: "hworker".to_owned(),
            master: "hmaster".to_owned(),
            ssh_dir: "/opt/horovod/ssh".to_owned(),
            projects_dir: "/opt/horovod/projects".to_owned(),
            jobs_dir: "/opt/horovod/jobs".to_owned(),
            key_type: KeyType::Rsa,
            controller: Controller::Gloo,
            shm_size: 8 << 30,
            ssh_config: None,
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(60),
            start_timeout: Duration::from_secs(120),
            stop_grace: Duration::from_secs(10),
            // long, because rank 0 alone may evaluate or save for many minutes while the others wait
            stall_timeout: Duration::from_secs(30 * 60),
            idle_margin: Duration::from_secs(30),
            restart_pause: Duration::from_secs(2),
            worker_idle: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
        }
    }
}

impl Default for Node {
    /// `localhost` with nothing said about it, not the master.
    fn default() -> Self {
        Node {
            name: "localhost".to_owned(),
            host: "localhost".to_owned(),
            user: None,
            ssh_port: None,
            identity: None,
            jump: None,
            gpus: Gpus::Auto,
            slots: None,
            address: None,
            interface: None,
            container: Container::default(),
            master: false,
        }
    }
}

/// Whole seconds, under the field's name in the file.
fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(duration.as_secs())
}

/// A path as text; what is no UTF-8 in it is replaced instead of failing the whole document.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// [`lossy`] for a path that may be absent.
fn lossy_option<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => lossy(path, serializer),
        None => serializer.serialize_none(),
    }
}
