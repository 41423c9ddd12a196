//! The cluster's key pair as it lies on the master, and how far a rotation has come.
//!
//! A rotation stages the new pair as `NAME.next` and `NAME.next.pub`, lets it in everywhere, and then puts it in place:
//! private half first, public half last. The staged public half is written after the private one and goes last, so what
//! lies there says at any moment how to go on.

use super::lines::{authorized, bare, our_key, owner};
use super::public::{Described, describe, kind};
use super::{AUTHORIZED_KEYS, KEY_NAMES};
use crate::inventory::{Cluster, KeyType};
use crate::node::facts::Facts;
use crate::runtime::spec::private_key_name;

/// What lies on the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyring {
    /// The pair that launches use.
    pub current: Option<Held>,
    /// The pair that a rotation is bringing.
    pub next: Option<Next>,
    /// The private half that a rotation left before it had written the public one; nobody was told of it.
    pub abandoned: Option<String>,
}

/// A pair in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// File name of the private half.
    pub name: &'static str,
    /// The line of the public half; `None` where its file is missing.
    pub public: Option<String>,
}

/// A pair that was staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    /// The name that the private half will have, or has.
    pub name: &'static str,
    /// The line of the public half.
    pub public: String,
    /// Whether the private half is in its place already; launches use it then.
    pub in_place: bool,
    /// The earlier pair's name, where it is another; its files go.
    pub replaces: Option<&'static str>,
}

impl Keyring {
    /// Reads the master's directory.
    pub fn read(cluster: &Cluster, facts: &Facts) -> Keyring {
        let there = |name: &str| facts.key_files.contains_key(name);
        let public = |name: &str| {
            let text = facts.key_files.get(&format!("{name}.pub"))?.text.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        let ours = |name: &str| public(name).filter(|text| our_key(text, &cluster.name).is_some());
        let other = |name: &str| KEY_NAMES.into_iter().find(|n| *n != name);

        let next = KEY_NAMES.into_iter().find_map(|name| {
            let line = ours(&format!("{name}.next"))?;
            let staged = there(&format!("{name}.next"));
            // the switch takes the old public half away first: where it lies, no private half has been put in place
            let in_place = !staged && there(name) && public(name).is_none();
            (staged || in_place).then_some((name, line, in_place))
        });
        let current = match &next {
            Some((name, line, true)) => Some(Held { name, public: Some(line.clone()) }),
            _ => current(cluster, facts, &there, &public, &ours),
        };
        let next = next.map(|(name, public, in_place)| {
            let replaces = if in_place {
                other(name).filter(|n| ours(n).is_some())
            } else {
                current.as_ref().map(|c| c.name).filter(|n| *n != name)
            };
            Next { name, public, in_place, replaces }
        });
        let abandoned = KEY_NAMES.into_iter().map(|name| format!("{name}.next"));
        let abandoned = abandoned.into_iter().find(|name| there(name) && public(name).is_none());
        Keyring { current, next, abandoned }
    }

    /// The cluster that the current pair is tagged for, where that is another one: it shares the directory.
    pub fn belongs_to_another(&self, cluster: &str) -> Option<&str> {
        owner(self.current.as_ref()?.public.as_deref()?).filter(|owner| *owner != cluster)
    }

    /// What the current pair is.
    pub fn described(&self) -> Option<Described> {
        describe(self.current.as_ref()?.public.as_deref()?)
    }

    /// What a rotation has left to do, in words. `seen`: the `authorized_keys` of all nodes that were looked at.
    pub fn unfinished<'a>(&self, cluster: &str, seen: impl IntoIterator<Item = &'a Facts>) -> Option<String> {
        match (&self.next, &self.current, &self.abandoned) {
            (Some(next), _, _) if next.in_place => Some(format!("{}.next.pub is not in its place yet", next.name)),
            (Some(next), _, _) => Some(format!("the new pair {}.next is staged and not yet in use", next.name)),
            (None, Some(Held { public: Some(public), .. }), abandoned) => {
                let key = bare(public);
                let old = seen.into_iter().any(|facts| our_keys(facts, cluster).iter().any(|k| *k != key));
                match abandoned {
                    _ if old => Some("an earlier key is still let in".to_owned()),
                    Some(name) => Some(format!("{name} was made and never used")),
                    None => None,
                }
            }
            _ => None,
        }
    }
}

/// The keys of the cluster that a node lets in, as `TYPE BASE64`.
pub fn our_keys(facts: &Facts, cluster: &str) -> Vec<String> {
    facts.key_files.get(AUTHORIZED_KEYS).map(|file| authorized(&file.text, cluster)).unwrap_or_default()
}

/// The pair that is tagged as the cluster's, whatever its type; else the one that has the name which the inventory's type
/// gives it: somebody else may have made that.
fn current(
    cluster: &Cluster,
    facts: &Facts,
    there: &impl Fn(&str) -> bool,
    public: &impl Fn(&str) -> Option<String>,
    ours: &impl Fn(&str) -> Option<String>,
) -> Option<Held> {
    let made = private_key_name(cluster.key_type);
    let mut names = KEY_NAMES.to_vec();
    names.sort_by_key(|name| *name != made);
    let tagged = names.iter().find_map(|name| Some(Held { name, public: Some(ours(name).filter(|_| there(name))?) }));
    let lone = |name: &'static str| (there(name) && public(name).is_none()).then_some(Held { name, public: None });
    // a private key of the other type without its public half is ours if we ever let one of that type in
    let let_in = |name: &str| {
        our_keys(facts, &cluster.name)
            .iter()
            .any(|key| describe(key).is_some_and(|d| private_key_name(d.key_type) == name))
    };
    tagged
        .or_else(|| there(made).then(|| Held { name: made, public: public(made) }))
        .or_else(|| names.iter().find_map(|name| lone(name).filter(|_| let_in(name))))
}

/// What a new pair shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// RSA or Ed25519.
    pub key_type: KeyType,
    /// Its size, where RSA shall have another than usual.
    pub bits: Option<u32>,
}

impl Kind {
    /// The command that makes a pair of this kind in the old one's place.
    pub fn rotation(&self) -> String {
        let bits = self.bits.map(|bits| format!(" --bits {bits}")).unwrap_or_default();
        format!("hvdctl keys rotate --type {}{bits}", kind(self.key_type).to_lowercase())
    }

    /// Whether a pair is of this kind; without `bits` any size is right.
    pub fn is(&self, there: &Described) -> bool {
        there.key_type == self.key_type && self.bits.is_none_or(|bits| bits == there.bits)
    }
}
