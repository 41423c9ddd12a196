//! The inventory: which machines make the cluster and how hvdctl reaches and sets them up.
//!
//! Read from a TOML file in one pass that collects *every* fault with its place, so that a user corrects a file once
//! and not once per fault. `inventory.example.toml` shows each field with its default.
//!
//! `fields` describes each field once; its types [`Cluster`], [`Node`] and [`Container`] are what other modules see.
//! `kind` reads the values of a field, over the rules for strings in `check` and for mounts and the like in
//! `container`. `reader` walks a table and `fault` places what is wrong. `assemble` puts an [`Inventory`] together,
//! with what `nodes` reads; the two check what concerns several fields. `schema` shows the fields to editors and
//! people.

mod assemble;
mod check;
mod container;
mod env_file;
pub mod export;
mod fault;
mod fields;
mod kind;
mod layout;
mod nodes;
#[cfg(test)]
mod properties;
mod reader;
#[cfg(test)]
mod refusals;
mod schema;
#[cfg(test)]
mod sets;

pub use crate::model::engine::{EngineChoice, RuntimeChoice};
pub use crate::model::launcher::{Bind, Controller, LauncherName};
pub use check::{
    ENDPOINT, FILE, GPU, HOST, HOST_KEY, IMAGE, LINE, NAME, NODE_NAME, OWNER, Rule, USER, VARIABLE, is_ipv6, parse_size,
};
pub use container::{Device, Mount, Ulimit};
pub use env_file::env_lines;
pub use fault::{Faults, FieldFault};
pub use fields::{Bench, Cluster, Container, LONGEST_LIFETIME, Node, Pool, Slurm, TABLES, names};
pub use kind::LONGEST_LIST;
pub use layout::Layout;
pub use nodes::canonical_host;
pub use schema::schema;

use crate::error::Error;
use crate::files;
use crate::text::nodeset::Groups;
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most bytes of an inventory's file.
const MOST: u64 = 16 << 20;

/// A cluster as its operator wrote it down, valid in itself, with all defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inventory {
    /// Settings of the whole cluster; `[cluster]`.
    pub cluster: Cluster,
    /// The requirements of `bench`; `[bench]`.
    pub bench: Bench,
    /// The pool that its nodes are published in; `[pool]`.
    pub pool: Option<Pool>,
    /// The cluster of Slurm to which jobs may be submitted; `[slurm]`.
    pub slurm: Option<Slurm>,
    /// The machines in the file's order; at least one, and exactly one is the master. `[[node]]` over `[defaults]`.
    /// Under Slurm the login node alone.
    pub nodes: Vec<Node>,
    /// The nodes of each group by its name, in the inventory's order; `[groups]`.
    pub groups: Groups,
}

/// When `up` gets the image, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pull {
    /// If the node does not have it.
    Missing,
    /// Each time, in case the registry has a newer one of the same name.
    Always,
    /// From a node that has it, or else from the operator's machine, and from no registry.
    Peers,
    /// Not at all.
    Never,
}

/// The type of a key pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KeyType {
    /// RSA, as in Horovod's documentation
    Rsa,
    /// Ed25519: short, and generated at once
    Ed25519,
}

/// The GPUs of a node that its containers get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Gpus {
    /// All that `nvidia-smi` lists on the node, which may be none.
    Auto,
    /// All, and there is at least one.
    All,
    /// The first so many, 0 to 1024; 0 is none.
    #[serde(untagged)]
    Count(u32),
    /// These, by index or UUID, as they are written; at least one.
    #[serde(untagged)]
    List(Vec<String>),
}

impl Gpus {
    /// Returns the GPUs if they are not all of the node's.
    pub fn choice(&self) -> Option<&Gpus> {
        matches!(self, Gpus::Count(_) | Gpus::List(_)).then_some(self)
    }
}

impl Node {
    /// Returns whether other nodes may run what this one has as an image without a word of the operator: the operator's
    /// own nodes, and the master, which can log in to the workers of all.
    pub fn is_source(&self) -> bool {
        self.master || self.owner.is_none()
    }

    /// Returns its `endpoint` without the port.
    pub fn endpoint_host(&self) -> Option<String> {
        let (_, host, _) = check::destination(self.endpoint.as_deref()?).ok()?;
        Some(if host.contains(':') { format!("[{host}]") } else { host.to_owned() })
    }
}

impl Inventory {
    /// Reads the text of an inventory. `file` names it in messages, and relative paths start from its directory; `~/`
    /// is the home directory. No file is touched.
    ///
    /// # Errors
    /// Every fault of the text, in its order. Where the text is no TOML, what keeps it from being that.
    pub fn parse(text: &str, file: &Path) -> Result<Inventory, Faults> {
        assemble::inventory(text, file)
    }

    /// Reads an inventory file; see [`Inventory::parse`].
    ///
    /// # Errors
    /// As of [`Inventory::parse`]; also a file that cannot be read or is not UTF-8.
    pub fn load(file: &Path) -> Result<Inventory, Error> {
        let refused = |why: String| Error::Inventory(format!("{}:{why}", file.display()));
        let bytes = files::read(file, MOST).map_err(|error| refused(format!(" cannot be read: {error}")))?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
            refused(format!("{line}: expected UTF-8 text"))
        })?;
        Ok(Inventory::parse(text, file)?)
    }

    /// This machine alone with processes of the user: the cluster `local` as in [`Inventory::local`].
    pub fn local_processes(name: &str) -> Inventory {
        let mut inventory = Inventory::local(name, "");
        let user = rustix::process::getuid().as_raw();
        inventory.cluster.runtime = RuntimeChoice::Process;
        inventory.cluster.state_dir = Some(format!("/var/tmp/hvdctl-local-{user}"));
        inventory.cluster.place_state(|_| false);
        inventory
    }

    /// The cluster of Slurm that this machine is a login node of: the cluster `local` as in [`Inventory::local`].
    pub fn local_slurm(name: &str) -> Inventory {
        let mut inventory = Inventory::local(name, "");
        inventory.slurm = Some(Slurm::default());
        inventory.under_slurm()
    }

    /// Returns this inventory for jobs that are submitted to its Slurm: the login node is its only node.
    #[must_use]
    pub fn under_slurm(mut self) -> Inventory {
        let slurm = self.slurm.clone().unwrap_or_default();
        self.cluster.runtime = RuntimeChoice::Slurm;
        self.cluster.launcher = slurm.launcher.unwrap_or(self.cluster.launcher);
        self.cluster.state_dir.clone_from(&slurm.state_dir);
        self.nodes = vec![slurm.login()];
        self.groups = Groups::new();
        self
    }

    /// Gives hvdctl's files under Slurm their places, in this directory unless the inventory names another one.
    pub fn place_under(&mut self, directory: &str) {
        self.cluster.state_dir.get_or_insert_with(|| directory.to_owned());
        self.cluster.place_state(|_| false);
    }

    /// This machine alone with its own Docker: the cluster `local` with one node, which is the master.
    pub fn local(name: &str, image: &str) -> Inventory {
        let cluster = Cluster { name: "local".to_owned(), image: image.to_owned(), ..Cluster::default() };
        let node = Node { name: name.to_owned(), host: "localhost".to_owned(), master: true, ..Node::default() };
        Inventory {
            cluster,
            bench: Bench::default(),
            pool: None,
            slurm: None,
            nodes: vec![node],
            groups: Groups::new(),
        }
    }

    /// Returns this inventory without its encrypted network: nodes have the addresses by which they are reached.
    #[must_use]
    pub fn outside_network(&self) -> Inventory {
        let mut outside = self.clone();
        if outside.cluster.network.take().is_some() {
            outside.nodes.iter_mut().for_each(|node| node.interface = None);
        }
        outside
    }

    /// Returns the files of the operator's machine that it names, each with a field that names it.
    pub fn files(&self) -> BTreeMap<&Path, &'static str> {
        let of_nodes =
            self.nodes.iter().flat_map(|node| [(&node.identity, "identity"), (&node.container.env_file, "env_file")]);
        let of_pool = self.pool.iter().flat_map(|pool| {
            pool.key.iter().map(|key| (key, "pool.key")).chain([(&pool.allowed_signers, "pool.allowed_signers")])
        });
        let optional = [(&self.cluster.ssh_config, "cluster.ssh_config")].into_iter().chain(of_nodes);
        let named = optional.filter_map(|(file, field)| Some((file.as_ref()?, field)));
        named.chain(of_pool).map(|(file, field)| (file.as_path(), field)).collect()
    }

    /// Returns the paths of [`Inventory::files`].
    pub fn own_files(&self) -> Vec<PathBuf> {
        self.files().into_keys().map(Path::to_owned).collect()
    }

    /// Returns the node that jobs are launched from.
    ///
    /// # Panics
    /// If there are no nodes, which no inventory made in this module is like.
    pub fn master(&self) -> &Node {
        self.nodes.iter().find(|node| node.master).unwrap_or(&self.nodes[0])
    }
}

impl Slurm {
    /// Returns the login node: one that ssh reaches, or this machine.
    fn login(&self) -> Node {
        let name = self.host.as_deref().unwrap_or("localhost");
        // the reader has checked it
        let (user, host, ssh_port) = check::destination(name).unwrap_or((None, name, None));
        let (user, host) = (user.map(str::to_owned), host.to_owned());
        let container = Container { activate: self.activate.clone(), ..Container::default() };
        Node { name: host.clone(), host, user, ssh_port, master: true, container, ..Node::default() }
    }
}

impl Pool {
    /// Returns the machine with the directory as a node that ssh reaches; `None` if it is this machine.
    pub fn machine(&self) -> Option<Node> {
        let name = self.host.as_ref()?;
        // the reader has checked it
        let (user, host, ssh_port) = check::destination(name).unwrap_or((None, name, None));
        let (user, host) = (user.map(str::to_owned), host.to_owned());
        // a space is in no other node's name
        Some(Node { name: format!("pool at {name}"), host, user, ssh_port, master: true, ..Node::default() })
    }
}

/// Durations as whole seconds.
mod seconds {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(duration.as_secs())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_secs)
    }
}
