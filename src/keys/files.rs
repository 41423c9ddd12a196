//! The cluster's key directory on each node: authorized keys, pinned host keys and file modes.

mod directory;
mod lines;
mod pair;
mod public;
mod report;
#[cfg(test)]
mod tests;

pub use crate::paths::AUTHORIZED_KEYS;
pub use crate::text::public_key::bare;
pub use directory::{Desired, Keys, differing, public_host_key, removal, warnings};
pub use lines::{
    authorized, host_key_comment, known_hosts_line, known_hosts_names, merge_authorized, merge_known_hosts, our_key,
    owner, pinned_names, tag,
};
pub use pair::{Keyring, Pair, our_keys, private_key_name};
pub use public::{KeyKind, PublicKey, describe};
pub use report::{KeyFault, KeyReport, NodeKeys, report};

use crate::node::facts::Facts;
use crate::secret::Secret;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The workers' pinned host keys.
pub const KNOWN_HOSTS: &str = "known_hosts";

/// The names that a cluster's private key may have.
pub const KEY_NAMES: [&str; 2] = ["id_rsa", "id_ed25519"];

/// A file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Its name in the key directory.
    pub name: String,
    /// Its whole content.
    pub text: Secret,
}

/// The changes that a node's key directory needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files to be written, new or with other content.
    pub puts: Vec<Put>,
    /// Files to be removed.
    pub removes: Vec<String>,
    /// Files with a wrong owner or mode; the push repairs them.
    pub repairs: Vec<WrongMode>,
}

/// A file of a key directory, or the directory itself, with a wrong owner or mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WrongMode {
    /// The name of the file; null for the directory.
    pub file: Option<String>,
    /// Its mode in octal digits.
    pub mode: String,
    /// The numbers of its user and its group, `0:0` for root.
    pub owner: String,
}

impl fmt::Display for WrongMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.file.as_deref().unwrap_or("the directory"), self.mode, self.owner)
    }
}

impl Changes {
    /// Returns true if the directory is as it should be.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.removes.is_empty() && self.repairs.is_empty()
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written: Vec<String> = self.puts.iter().map(|put| put.name.clone()).collect();
        let repaired = self.repairs.iter().map(ToString::to_string).collect();
        let parts = [("wrote", &written), ("removed", &self.removes), ("repaired", &repaired)];
        let parts = parts.iter().filter(|(_, names)| !names.is_empty());
        let parts: Vec<String> = parts.map(|(verb, names)| format!("{verb} {}", names.join(", "))).collect();
        f.write_str(&parts.join("; "))
    }
}

/// The text of a file in a node's key directory; empty where there is none.
pub(super) fn text<'a>(facts: &'a Facts, name: &str) -> &'a str {
    facts.keys.files.get(name).map(|file| file.text.as_str()).unwrap_or_default()
}

/// Returns the permission bits of a file in the key directory.
pub fn mode(name: &str) -> &'static str {
    if name == KNOWN_HOSTS || name.ends_with(".pub") { "644" } else { "600" }
}

/// Returns whether the public half of a pair has the cluster's tag.
pub(super) fn is_ours(facts: &Facts, name: &str, cluster: &str) -> bool {
    our_key(text(facts, &format!("{name}.pub")).trim_end(), cluster).is_some()
}
