//! The cluster's key pair as it lies on the master, and how far a rotation has come.
//!
//! A rotation stages the new pair as `NAME.next` and `NAME.next.pub`, lets it in everywhere, and then puts it in place:
//! private half first, public half last. The staged public half is written after the private one and goes last, so what
//! lies there shows at any moment how to go on.

use super::lines::{authorized, our_key, owner};
use super::public::{Described, describe};
use super::{AUTHORIZED_KEYS, KEY_NAMES, text};
use crate::inventory::{Cluster, Inventory, KeyType, Node};
use crate::node::facts::Facts;
use crate::runtime::spec::private_key_name;

/// The key pairs on the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyring {
    /// The pair that launches use.
    pub current: Option<CurrentPair>,
    /// The pair that an unfinished rotation has staged.
    pub next: Option<StagedPair>,
}

/// The pair that launches use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentPair {
    /// File name of the private half.
    pub name: &'static str,
    /// The line of the public half; `None` where its file is missing.
    pub public: Option<String>,
}

/// A pair that was staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedPair {
    /// The name that the private half will have, or has.
    pub name: &'static str,
    /// The line of the public half.
    pub public: String,
    /// Whether the private half is in its place already; launches use it then.
    pub in_place: bool,
}

impl Keyring {
    /// Reads the master's directory.
    pub fn read(cluster: &Cluster, facts: &Facts) -> Keyring {
        let exists = |name: &str| facts.key_files.contains_key(name);
        let ours = |name: &str| public(facts, name).filter(|line| our_key(line, &cluster.name).is_some());

        let next = KEY_NAMES.into_iter().find_map(|name| {
            let public_half = ours(&format!("{name}.next"))?;
            let staged = exists(&format!("{name}.next"));
            // the switch first removes the old public half: where it lies, no private half has been put in place
            let in_place = !staged && exists(name) && public(facts, name).is_none();
            (staged || in_place).then_some(StagedPair { name, public: public_half, in_place })
        });
        // the pair with the cluster's tag, whatever its type; else one of the inventory's type, whoever made it
        let preferred = private_key_name(cluster.key_type);
        let mut names = KEY_NAMES;
        names.sort_by_key(|name| *name != preferred);
        let tagged = || names.into_iter().find(|name| exists(name) && ours(name).is_some());
        let any = || names.into_iter().find(|n| exists(n) && (*n == preferred || public(facts, n).is_none()));
        let current = match &next {
            Some(StagedPair { name, public, in_place: true }) => {
                Some(CurrentPair { name, public: Some(public.clone()) })
            }
            _ => tagged().or_else(any).map(|name| CurrentPair { name, public: public(facts, name) }),
        };
        Keyring { current, next }
    }

    /// Reads the directory of the master, if it is among these nodes.
    pub fn of_master(inventory: &Inventory, nodes: &[(&Node, &Facts)]) -> Option<Keyring> {
        let (_, facts) = nodes.iter().find(|(node, _)| node.master)?;
        Some(Keyring::read(&inventory.cluster, facts))
    }

    /// Returns the cluster that the current pair is tagged for if it is another one, which shares the directory.
    pub fn belongs_to_another(&self, cluster: &str) -> Option<&str> {
        owner(self.current.as_ref()?.public.as_deref()?).filter(|owner| *owner != cluster)
    }

    /// Describes the current pair.
    pub fn described(&self) -> Option<Described> {
        describe(self.current.as_ref()?.public.as_deref()?)
    }

    /// Returns what an unfinished rotation has left to do.
    pub fn unfinished(&self) -> Option<String> {
        self.next.as_ref().map(|StagedPair { name, in_place, .. }| match in_place {
            true => format!("{name}.next.pub is not in its place yet"),
            false => format!("the new pair {name}.next is staged and not yet in use"),
        })
    }
}

/// The line of a public half, if there is one.
fn public(facts: &Facts, name: &str) -> Option<String> {
    let line = text(facts, &format!("{name}.pub")).trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// Returns the keys of the cluster that a node lets in, as `TYPE BASE64`.
pub fn our_keys(facts: &Facts, cluster: &str) -> Vec<String> {
    authorized(text(facts, AUTHORIZED_KEYS), cluster)
}

/// The kind of a new pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// RSA or Ed25519.
    pub key_type: KeyType,
    /// Its size, where RSA shall have another than usual.
    pub bits: Option<u32>,
}

impl Kind {
    /// Returns the command that replaces the pair by one of this kind.
    pub fn rotation(&self) -> String {
        let key_type = match self.key_type {
            KeyType::Rsa => "rsa",
            KeyType::Ed25519 => "ed25519",
        };
        let bits = self.bits.map(|bits| format!(" --bits {bits}")).unwrap_or_default();
        format!("hvdctl keys rotate --type {key_type}{bits}")
    }

    /// Returns whether a pair is of this kind; without `bits` any size is right.
    pub fn is(&self, pair: &Described) -> bool {
        pair.key_type == self.key_type && self.bits.is_none_or(|bits| bits == pair.bits)
    }
}
