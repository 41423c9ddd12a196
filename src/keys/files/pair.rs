//! The cluster's key pair on the master, and the progress of a rotation.
//!
//! A rotation stages the new pair as `NAME.next` and `NAME.next.pub`, authorizes it everywhere, and then puts it in
//! place: private half first, public half last. The staged public half is written after the private one and removed
//! last, so the files show at any moment how to go on.

use super::lines::{authorized, our_key, owner};
use super::public::{PublicKey, describe};
use super::{AUTHORIZED_KEYS, KEY_NAMES, Put, text};
use crate::inventory::{Cluster, Inventory, KeyType, Node};
use crate::node::facts::Facts;
use crate::secret::Secret;

/// A key pair of a node, in OpenSSH's formats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// File name of the private half in the key directory.
    pub name: &'static str,
    /// `TYPE BASE64 COMMENT`, no newline; empty where its file is missing.
    pub public: String,
    /// The private half, if this command has generated it.
    pub private: Option<Secret>,
}

impl Pair {
    /// The files of the halves that are known.
    pub fn files(&self) -> impl Iterator<Item = Put> {
        let private = self.private.iter().map(|text| Put { name: self.name.to_owned(), text: text.clone() });
        let public = Secret::plain(format!("{}\n", self.public));
        private.chain([Put { name: format!("{}.pub", self.name), text: public }])
    }
}

/// The key pairs on the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyring {
    /// The pair that launches use.
    pub current: Option<Pair>,
    /// The pair that an unfinished rotation has staged.
    pub next: Option<Pair>,
    /// Set if the private half of `next` is already in its place; `next` is `current` then.
    pub in_place: bool,
}

impl Keyring {
    /// Reads the master's directory.
    pub fn read(cluster: &Cluster, facts: &Facts) -> Keyring {
        let exists = |name: &str| facts.keys.files.contains_key(name);
        let public = |name: &str| text(facts, &format!("{name}.pub")).trim();
        let is_ours = |name: &str| our_key(public(name), &cluster.name).is_some();
        let pair = |name, public: &str| Pair { name, public: public.to_owned(), private: None };

        // the switch first removes the old public half: where it lies, no private half has been put in place
        let is_staged = |name: &str| exists(&format!("{name}.next"));
        let in_place = |name: &str| !is_staged(name) && exists(name) && public(name).is_empty();
        let next = KEY_NAMES
            .into_iter()
            .find(|name| is_ours(&format!("{name}.next")) && (is_staged(name) || in_place(name)))
            .map(|name| pair(name, public(&format!("{name}.next"))));
        let in_place = next.as_ref().is_some_and(|next| in_place(next.name));
        // the pair with the cluster's tag, else any pair of the inventory's key type
        let preferred = private_key_name(cluster.key_type);
        let mut names = KEY_NAMES;
        names.sort_by_key(|name| *name != preferred);
        let tagged = names.into_iter().find(|name| exists(name) && is_ours(name));
        let any = || names.into_iter().find(|name| exists(name) && (*name == preferred || public(name).is_empty()));
        let current = match in_place {
            true => next.clone(),
            false => tagged.or_else(any).map(|name| pair(name, public(name))),
        };
        Keyring { current, next, in_place }
    }

    /// Reads the directory of the master, if it is among these nodes.
    pub fn of_master(inventory: &Inventory, nodes: &[(&Node, &Facts)]) -> Option<Keyring> {
        let (_, facts) = nodes.iter().find(|(node, _)| node.master)?;
        Some(Keyring::read(&inventory.cluster, facts))
    }

    /// Returns the cluster that the current pair is tagged for if it is another one, which shares the directory.
    pub fn belongs_to_another(&self, cluster: &str) -> Option<&str> {
        owner(&self.current.as_ref()?.public).filter(|owner| *owner != cluster)
    }

    /// Describes the current pair.
    pub fn described(&self) -> Option<PublicKey> {
        describe(&self.current.as_ref()?.public)
    }

    /// Returns what an unfinished rotation has left to do.
    pub fn unfinished(&self) -> Option<String> {
        self.next.as_ref().map(|Pair { name, .. }| match self.in_place {
            true => format!("{name}.next.pub has not been renamed to {name}.pub"),
            false => format!("the new pair {name}.next is staged and not in use"),
        })
    }
}

/// Returns the keys of the cluster that a node accepts, as `TYPE BASE64`.
pub fn our_keys(facts: &Facts, cluster: &str) -> Vec<String> {
    authorized(text(facts, AUTHORIZED_KEYS), cluster)
}

/// Returns the file name of a key pair's private half.
pub fn private_key_name(key_type: KeyType) -> &'static str {
    match key_type {
        KeyType::Rsa => "id_rsa",
        KeyType::Ed25519 => "id_ed25519",
    }
}
