//! What the cluster's key directory holds on each node: who may log in, which host keys are pinned, with which modes.

mod directory;
mod lines;
mod pair;
mod public;
mod report;
#[cfg(test)]
mod tests;

pub use directory::{Desired, Files, Keys, differing, public_host_key, remarks};
pub use lines::{
    Pin, address_of, authorized, authorized_line, bare, known_hosts_line, known_hosts_names, merge_authorized,
    merge_known_hosts, our_key, owner, pins, tag,
};
pub use pair::{Held, Keyring, Kind, Next, our_keys};
pub use public::{Described, describe, kind};
pub use report::{Fault, Report, Row, report};

use crate::node::facts::Facts;
use crate::secret::Secret;
use sha2::{Digest as _, Sha256};
use std::fmt;

/// Who may log in to the workers.
pub const AUTHORIZED_KEYS: &str = "authorized_keys";
/// The workers' pinned host keys.
pub const KNOWN_HOSTS: &str = "known_hosts";

/// The names that a cluster's private key may have.
pub const KEY_NAMES: [&str; 2] = ["id_rsa", "id_ed25519"];

/// A key pair in OpenSSH's formats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// `-----BEGIN OPENSSH PRIVATE KEY-----` …
    pub private: Secret,
    /// `TYPE BASE64 COMMENT`, no newline.
    pub public: String,
}

/// A file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Its name in the key directory.
    pub name: String,
    /// Permission bits, `600` or `644`.
    pub mode: &'static str,
    /// Its whole content.
    pub text: Secret,
}

/// What a node's key directory needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files to be written, new or with other content.
    pub puts: Vec<Put>,
    /// Files that must not be there.
    pub removes: Vec<String>,
    /// Things whose owner or mode is wrong, with both as seen; the push sets them right.
    pub repairs: Vec<String>,
}

impl Changes {
    /// Whether the directory is as it should be.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.removes.is_empty() && self.repairs.is_empty()
    }

    /// The texts that are to be written anew as they were seen, `NAME SHA256` a line: where one is another by then, it is
    /// somebody else's work. Bytes that are no UTF-8 were not seen as they are and cannot be compared.
    pub fn computed_from(&self, facts: &Facts) -> String {
        let texts = self.puts.iter().map(|put| &put.name);
        let texts =
            texts.filter(|name| [AUTHORIZED_KEYS, KNOWN_HOSTS].contains(&name.as_str()) || name.ends_with(".pub"));
        let seen = texts.map(|name| (name, facts.key_files.get(name).map_or("", |file| file.text.as_str())));
        let seen = seen.filter(|(_, text)| !text.contains(char::REPLACEMENT_CHARACTER));
        seen.map(|(name, text)| {
            let sum: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{name} {sum}\n")
        })
        .collect()
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written: Vec<&str> = self.puts.iter().map(|p| p.name.as_str()).collect();
        let mut parts = Vec::new();
        if !written.is_empty() {
            parts.push(format!("wrote {}", written.join(", ")));
        }
        if !self.removes.is_empty() {
            parts.push(format!("removed {}", self.removes.join(", ")));
        }
        if !self.repairs.is_empty() {
            parts.push(format!("repaired {}", self.repairs.join(", ")));
        }
        f.write_str(&parts.join("; "))
    }
}
