//! The inventory: which machines make the cluster and how hvdctl reaches and sets them up.
//!
//! Read from a TOML file in one pass that collects *every* fault with its place, so that a user corrects a file once
//! and not once per fault. `inventory.example.toml` shows each field with its default.
//!
//! `fields` describes each field once; its types [`Cluster`], [`Node`] and [`Container`] are what other modules see. `kind`
//! reads the values of a field, over the rules for strings in `check` and for lists and tables in `container`. `reader`
//! walks a table and `fault` places what is wrong. `assemble`, `nodes` and `groups` put an [`Inventory`] together and check
//! what concerns several fields. `schema` shows the fields to editors and people.

mod assemble;
mod check;
mod container;
pub mod export;
mod fault;
mod fields;
mod groups;
mod kind;
mod nodes;
#[cfg(test)]
mod properties;
mod reader;
#[cfg(test)]
mod refusals;
mod schema;
#[cfg(test)]
mod sets;

pub use crate::model::launcher::{Controller, LauncherName};
pub use check::parse_size;
pub use container::{Device, Mount, Ulimit, env_lines, variable_name};
pub use fault::{Excerpt, Fault, Faults};
pub use fields::{CLUSTER_FIELDS, Cluster, Container, DEFAULTS_FIELDS, NODE_FIELDS, Node, TABLES};
pub use schema::schema;

use crate::text::nodeset::Groups;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::io::Read as _;
use std::path::{Path, PathBuf};

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

/// When `up` gets the image from its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyType {
    /// RSA of 4096 bits, as in Horovod's documentation.
    Rsa,
    /// Ed25519: short and made at once.
    Ed25519,
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

impl<'de> Deserialize<'de> for Gpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Count(u32),
            Word(String),
            List(Vec<String>),
        }
        match Written::deserialize(deserializer)? {
            Written::Count(count) => Ok(Gpus::Count(count)),
            Written::List(list) => Ok(Gpus::List(list)),
            Written::Word(word) if word == "auto" => Ok(Gpus::Auto),
            Written::Word(word) if word == "all" => Ok(Gpus::All),
            Written::Word(word) => Err(serde::de::Error::custom(format!("{word:?} stands for no GPUs"))),
        }
    }
}

impl Inventory {
    /// Reads the text of an inventory. `file` names it in messages, and relative paths start from its directory; `~/`
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

    /// Returns the node that jobs are launched from.
    ///
    /// # Panics
    /// If there are no nodes, which no inventory made in this module is like.
    pub fn master(&self) -> &Node {
        self.nodes.iter().find(|node| node.master).unwrap_or(&self.nodes[0])
    }
}

/// Checks a text as a node's `host`, and returns it.
///
/// # Errors
/// What was expected, as text.
pub fn host(text: &str) -> Result<String, String> {
    checked(&check::HOST, text)
}

/// Checks a text as a `user`, and returns it.
///
/// # Errors
/// What was expected, as text.
pub fn user(text: &str) -> Result<String, String> {
    checked(&check::USER, text)
}

/// Checks a text as the `name` of a cluster, and returns it.
///
/// # Errors
/// What was expected, as text.
pub fn cluster_name(text: &str) -> Result<String, String> {
    checked(&check::NAME, text)
}

/// Checks a text as an `image`, and returns it.
///
/// # Errors
/// What was expected, as text.
pub fn image(text: &str) -> Result<String, String> {
    checked(&check::IMAGE, text)
}

fn checked(rule: &check::Rule, text: &str) -> Result<String, String> {
    let expected = rule.expected;
    match rule.check(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(hint) if hint.is_empty() => Err(format!("expected {expected}")),
        Err(hint) => Err(format!("expected {expected}; {hint}")),
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
