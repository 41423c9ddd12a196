//! The key directories of a cluster as the contract wants them, and what has to change on a node.

use super::lines::{known_hosts_line, known_hosts_names, merge_authorized, merge_known_hosts, our_key, owner, pins};
use super::pair::{Held, Keyring};
use super::{AUTHORIZED_KEYS, Changes, KEY_NAMES, KNOWN_HOSTS, KeyPair, Put};
use crate::inventory::{Inventory, Node};
use crate::node::facts::{Facts, KeyFile};
use crate::node::network;
use crate::paths::HOST_KEY;
use crate::secret::Secret;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Which keys are let in, and what lies on the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// The public keys that every node lets in.
    pub let_in: Vec<String>,
    /// Whether further keys of the cluster that a node lets in stay.
    pub keep_ours: bool,
    /// The master's files.
    pub files: Files,
}

/// The key pair's files on the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    /// One pair and no other of ours.
    Pair {
        /// File name of the private half.
        name: &'static str,
        /// The line of the public half.
        public: String,
        /// The private half, where it was made just now.
        new: Option<Secret>,
    },
    /// A rotation is under way: they stay as they are, and only `keys rotate` goes on with them.
    Left,
}

impl Keys {
    /// For a pair and nothing else.
    pub fn only(name: &'static str, public: &str, new: Option<Secret>) -> Keys {
        let files = Files::Pair { name, public: public.to_owned(), new };
        Keys { let_in: vec![public.to_owned()], keep_ours: false, files }
    }

    /// What a push brings; `None` where the master has no pair, or its public half is missing. While a rotation is under
    /// way both keys are let in: whatever the master launches with holds.
    pub fn to_push(ring: &Keyring) -> Option<Keys> {
        match (&ring.next, &ring.current) {
            (Some(next), current) => {
                let current = current.iter().filter_map(|held| held.public.clone());
                let mut let_in: Vec<String> = current.chain([next.public.clone()]).collect();
                let_in.dedup();
                Some(Keys { let_in, keep_ours: true, files: Files::Left })
            }
            (None, Some(Held { name, public: Some(public) })) => Some(Keys::only(name, public, None)),
            (None, _) => None,
        }
    }

    /// What a launch needs: the key that the master has in use. A key that a rotation is bringing or has left behind is
    /// nothing to stop for.
    pub fn to_launch(ring: &Keyring) -> Option<Keys> {
        let keys = Keys::to_push(ring)?;
        let in_use = ring.current.as_ref()?.public.clone();
        Some(Keys { let_in: in_use.map_or(keys.let_in, |key| vec![key]), keep_ours: true, files: keys.files })
    }
}

/// What all nodes' directories have in common.
#[derive(Debug, Clone)]
pub struct Desired<'a> {
    inventory: &'a Inventory,
    keys: Keys,
    /// Our lines of `known_hosts`.
    known_hosts: Vec<String>,
    /// The nodes' own names in `known_hosts` form; our lines about others are dropped.
    members: BTreeSet<String>,
    /// Whether `from=` can be said: the address that the master comes from is known.
    restricted: bool,
}

impl<'a> Desired<'a> {
    /// For the nodes that were seen, each with its host key.
    pub fn new<'b>(
        inventory: &'a Inventory,
        seen: impl IntoIterator<Item = (&'b Node, &'b Facts, &'b str)>,
        keys: Keys,
    ) -> Desired<'a> {
        let cluster = &inventory.cluster;
        let mut restricted = false;
        let mut known_hosts = Vec::new();
        for (node, facts, host_key) in seen {
            let addresses = addresses(node, facts);
            restricted |= node.master && !addresses.is_empty();
            known_hosts.push(known_hosts_line(&cluster.name, &names(inventory, node, facts, &addresses), host_key));
        }
        let members = inventory.nodes.iter().flat_map(|n| known_hosts_names(&[&n.name], &[], cluster.port)).collect();
        Desired { inventory, keys, known_hosts, members, restricted }
    }

    /// The nodes' own names in `known_hosts` form.
    pub fn members(&self) -> &BTreeSet<String> {
        &self.members
    }

    /// `known_hosts` as this node shall have it.
    pub fn known_hosts(&self, facts: &Facts) -> String {
        merge_known_hosts(text(facts, KNOWN_HOSTS), &self.known_hosts, &self.members, &self.inventory.cluster.name)
    }

    /// `authorized_keys` as this node shall have it. The key is of use from the cluster's addresses only: those that the
    /// node's own `known_hosts` has, so that nodes which are not at hand now keep theirs.
    pub fn authorized_keys(&self, facts: &Facts) -> String {
        let cluster = &self.inventory.cluster.name;
        let from: BTreeSet<IpAddr> = if self.restricted {
            pins(&self.known_hosts(facts), cluster).iter().flat_map(|pin| pin.addresses().collect::<Vec<_>>()).collect()
        } else {
            BTreeSet::new()
        };
        merge_authorized(text(facts, AUTHORIZED_KEYS), &self.keys.let_in, self.keys.keep_ours, cluster, &from)
    }

    /// What has to change on a node. `new_host_key`: where it has none.
    pub fn changes(&self, node: &Node, facts: &Facts, new_host_key: Option<&KeyPair>) -> Changes {
        let mut changes = Changes { removes: self.not_wanted(node, facts), ..Changes::default() };
        let host_key_public = format!("{HOST_KEY}.pub");
        let mut secrets: Vec<(String, Secret)> = Vec::new();
        let mut texts = vec![
            (AUTHORIZED_KEYS.to_owned(), self.authorized_keys(facts)),
            (KNOWN_HOSTS.to_owned(), self.known_hosts(facts)),
        ];
        let mut kept = Vec::new();
        match new_host_key {
            Some(pair) => {
                secrets.push((HOST_KEY.to_owned(), pair.private.clone()));
                secrets.push((host_key_public, Secret::plain(format!("{}\n", pair.public))));
            }
            None => kept.extend([HOST_KEY.to_owned(), host_key_public]),
        }
        match &self.keys.files {
            Files::Pair { name, public, new } if node.master => {
                match new {
                    Some(private) => secrets.push(((*name).to_owned(), private.clone())),
                    None => kept.push((*name).to_owned()),
                }
                texts.push((format!("{name}.pub"), format!("{public}\n")));
            }
            Files::Left if node.master => kept.extend(KEY_NAMES.iter().flat_map(|name| files_of(name))),
            _ => {}
        }

        changes.puts = secrets.into_iter().map(|(name, text)| put(name, text)).collect();
        for (name, wanted) in texts {
            match facts.key_files.get(&name) {
                Some(there) if there.text == wanted => kept.push(name),
                _ => changes.puts.push(put(name, Secret::plain(wanted))),
            }
        }
        let dir = facts.key_dir.iter().filter(|dir| dir.mode != "700" || dir.owner != "0:0");
        changes.repairs.extend(dir.map(|dir| seen("the directory", dir)));
        for name in kept {
            let file = facts.key_files.get(&name).filter(|file| file.mode != mode(&name) || file.owner != "0:0");
            changes.repairs.extend(file.map(|file| seen(&name, file)));
        }
        changes
    }

    /// Files that must not be there: a node that does not launch holds no private key, and one that does none of another
    /// type, if it is ours. What another cluster's tag is on stays: it may launch from that node.
    fn not_wanted(&self, node: &Node, facts: &Facts) -> Vec<String> {
        let cluster = &self.inventory.cluster.name;
        let ours = |name: &str| our_key(text(facts, &format!("{name}.pub")).trim_end(), cluster).is_some();
        let in_use = match &self.keys.files {
            Files::Pair { name, .. } => Some(*name),
            Files::Left => None,
        };
        let others = others(facts, cluster);
        let mut names = Vec::new();
        for name in KEY_NAMES {
            let [private, public, next, next_public] = files_of(name);
            if node.master {
                if in_use.is_some_and(|in_use| in_use != name) && ours(name) {
                    names.extend([private, public]);
                }
            } else {
                if (in_use == Some(name) || ours(name)) && others.iter().all(|(other, _)| *other != name) {
                    names.extend([private, public]);
                }
                if ours(&next) || (others.is_empty() && !facts.key_files.contains_key(&next_public)) {
                    names.extend([next, next_public]);
                }
            }
        }
        names.retain(|name| facts.key_files.contains_key(name));
        names
    }
}

/// The private keys here that are another cluster's, which shares the directory, and that cluster. While it rotates, the
/// public half may still be the staged one.
fn others<'a>(facts: &'a Facts, cluster: &str) -> Vec<(&'static str, &'a str)> {
    let found = KEY_NAMES.into_iter().filter_map(|name| {
        let [private, public, _, next_public] = files_of(name);
        let public = if facts.key_files.contains_key(&public) { public } else { next_public };
        let owner = owner(text(facts, &public)).filter(|owner| *owner != cluster)?;
        facts.key_files.contains_key(&private).then_some((name, owner))
    });
    found.collect()
}

/// What a person should know of a node's directory, and no push changes.
pub fn remarks(inventory: &Inventory, node: &Node, facts: &Facts) -> Vec<String> {
    let others = others(facts, &inventory.cluster.name).into_iter().map(|(name, owner)| {
        format!("{name} on {} is the key of the cluster {owner}, which shares the directory: it stays", node.name)
    });
    let unplaced = network::place(inventory, node, facts).err().filter(|_| node.master).map(|why| {
        format!(
            "the address of the master {} is not known ({why}), so its key is let in from anywhere: set `address` for it",
            node.name
        )
    });
    others.chain(unplaced).collect()
}

/// A worker's addresses, the one on the cluster's network first; none where that is not known. A machine may send from
/// any address of that interface. Those of the other family go to no worker and change by themselves, as IPv6 does.
fn addresses(node: &Node, facts: &Facts) -> Vec<IpAddr> {
    let Ok(endpoint) = network::endpoint(node, facts) else { return Vec::new() };
    let further = facts.addresses.iter().filter(|(name, _)| *name == endpoint.interface).map(|(_, address)| *address);
    let further = further.filter(|a| a.is_ipv4() == endpoint.address.is_ipv4() && *a != endpoint.address);
    [endpoint.address].into_iter().chain(further.filter(|a| !link_local(a))).collect()
}

fn link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Every name that a launcher may use.
fn names(inventory: &Inventory, node: &Node, facts: &Facts, addresses: &[IpAddr]) -> Vec<String> {
    let mut own = vec![node.name.as_str(), node.host.as_str()];
    // what a machine calls itself is its own word: it must not pass for another node
    let others = || inventory.nodes.iter().filter(|other| other.name != node.name);
    if others().all(|other| other.name != facts.hostname && other.host != facts.hostname) {
        own.push(&facts.hostname);
    }
    known_hosts_names(&own, addresses, inventory.cluster.port)
}

/// The files of a key pair: in place, and staged by a rotation.
fn files_of(name: &str) -> [String; 4] {
    [name.to_owned(), format!("{name}.pub"), format!("{name}.next"), format!("{name}.next.pub")]
}

fn mode(name: &str) -> &'static str {
    if name == KNOWN_HOSTS || name.ends_with(".pub") { "644" } else { "600" }
}

fn put(name: String, text: Secret) -> Put {
    Put { mode: mode(&name), name, text }
}

fn seen(name: &str, file: &KeyFile) -> String {
    format!("{name} ({} {})", file.mode, file.owner)
}

fn text<'a>(facts: &'a Facts, name: &str) -> &'a str {
    facts.key_files.get(name).map(|file| file.text.as_str()).unwrap_or_default()
}

/// A worker's public host key, if both halves are there.
pub fn public_host_key(facts: &Facts) -> Option<String> {
    let public = text(facts, &format!("{HOST_KEY}.pub")).trim();
    (facts.key_files.contains_key(HOST_KEY) && !public.is_empty()).then(|| public.to_owned())
}

/// The names of the nodes whose directory differs from what these keys ask for. Nothing is changed.
pub fn differing(inventory: &Inventory, seen: &[(&Node, &Facts)], keys: Option<Keys>) -> Vec<String> {
    let Some(keys) = keys else { return seen.iter().map(|(node, _)| node.name.clone()).collect() };
    let hosts: Vec<Option<String>> = seen.iter().map(|(_, facts)| public_host_key(facts)).collect();
    let there = seen.iter().zip(&hosts).filter_map(|((node, facts), host)| Some((*node, *facts, host.as_deref()?)));
    let desired = Desired::new(inventory, there, keys);
    let differs = |node: &Node, facts: &Facts, host: &Option<String>| {
        host.is_none() || !desired.changes(node, facts, None).is_empty()
    };
    let names = seen.iter().zip(&hosts).filter(|((node, facts), host)| differs(node, facts, host));
    names.map(|((node, _), _)| node.name.clone()).collect()
}
