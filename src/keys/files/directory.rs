//! The desired key directories of a cluster, and what has to change on a node.

use super::lines::{known_hosts_line, known_hosts_names, merge_authorized, merge_known_hosts, owner, pins};
use super::pair::{CurrentPair, Keyring};
use super::{AUTHORIZED_KEYS, Changes, KEY_NAMES, KNOWN_HOSTS, KeyPair, Put, is_ours, mode, text};
use crate::inventory::{Inventory, Node};
use crate::node::facts::Facts;
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
    /// The pair on the master, where no other of ours belongs. `None` while a rotation is unfinished: its files stay as
    /// they are, and only `keys rotate` goes on with them.
    pub pair: Option<MasterPair>,
}

/// The key pair as the master should have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterPair {
    /// File name of the private half.
    pub name: &'static str,
    /// The line of the public half.
    pub public: String,
    /// The private half, if it was made just now.
    pub new: Option<Secret>,
}

impl Keys {
    /// Keys for one pair and nothing else.
    pub fn only(pair: MasterPair) -> Keys {
        Keys { let_in: vec![pair.public.clone()], keep_ours: false, pair: Some(pair) }
    }

    /// Both keys of a rotation, so that whatever the master launches with is let in.
    pub fn both(ring: &Keyring, next: &str) -> Keys {
        let current = ring.current.iter().filter_map(|pair| pair.public.clone());
        let mut let_in: Vec<String> = current.chain([next.to_owned()]).collect();
        let_in.dedup();
        Keys { let_in, keep_ours: true, pair: None }
    }

    /// The keys that a push distributes; `None` where the master has no pair, or its public half is missing.
    pub fn to_push(ring: &Keyring) -> Option<Keys> {
        match (&ring.next, &ring.current) {
            (Some(next), _) => Some(Keys::both(ring, &next.public)),
            (None, Some(CurrentPair { name, public })) => {
                Some(Keys::only(MasterPair { name, public: public.clone()?, new: None }))
            }
            (None, None) => None,
        }
    }

    /// The keys that a launch needs: only the one that the master uses, whatever a rotation has let in or not.
    pub fn to_launch(ring: &Keyring) -> Option<Keys> {
        let keys = Keys::to_push(ring)?;
        let in_use = ring.current.as_ref()?.public.clone();
        Some(Keys { let_in: in_use.map_or(keys.let_in, |key| vec![key]), keep_ours: true, pair: keys.pair })
    }
}

/// The desired contents that all nodes' directories have in common.
#[derive(Debug, Clone)]
pub struct Desired<'a> {
    inventory: &'a Inventory,
    keys: Keys,
    /// Our lines of `known_hosts`, by node.
    known_hosts: Vec<(String, String)>,
    /// The nodes' own names in `known_hosts` form; our lines about others are dropped.
    members: BTreeSet<String>,
    /// Whether the address that the master comes from is known, so that `from=` can be written.
    restricted: bool,
}

impl<'a> Desired<'a> {
    /// Computes it from the observed nodes, each with its host key.
    pub fn new<'b>(
        inventory: &'a Inventory,
        nodes: impl IntoIterator<Item = (&'b Node, &'b Facts, &'b str)>,
        keys: Keys,
    ) -> Desired<'a> {
        let cluster = &inventory.cluster;
        let mut restricted = false;
        let mut known_hosts = Vec::new();
        for (node, facts, host_key) in nodes {
            let addresses = addresses(node, facts);
            restricted |= node.master && !addresses.is_empty();
            let names = names(inventory, node, facts, &addresses);
            known_hosts.push((node.name.clone(), known_hosts_line(&cluster.name, &names, host_key)));
        }
        let members = inventory.nodes.iter().flat_map(|n| known_hosts_names(&[&n.name], &[], cluster.port)).collect();
        Desired { inventory, keys, known_hosts, members, restricted }
    }

    /// Computes it from the observed nodes; those without a host key are left out.
    pub fn observed(inventory: &'a Inventory, nodes: &[(&Node, &Facts)], keys: Keys) -> Desired<'a> {
        let nodes = nodes.iter().filter_map(|(node, facts)| Some((*node, *facts, public_host_key(facts)?)));
        Desired::new(inventory, nodes, keys)
    }

    /// The nodes' own names in `known_hosts` form.
    pub fn members(&self) -> &BTreeSet<String> {
        &self.members
    }

    /// The line that pins a node's host key, if it has one.
    pub fn pin(&self, node: &str) -> Option<&str> {
        self.known_hosts.iter().find(|(name, _)| name == node).map(|(_, line)| line.as_str())
    }

    /// Returns a node's desired `known_hosts`.
    pub fn known_hosts(&self, facts: &Facts) -> String {
        let wanted = self.known_hosts.iter().map(|(_, line)| line.clone());
        let cluster = &self.inventory.cluster.name;
        merge_known_hosts(text(facts, KNOWN_HOSTS), &wanted.collect::<Vec<_>>(), &self.members, cluster)
    }

    /// Returns a node's desired `authorized_keys`. The key is accepted from the cluster's addresses only: those in the
    /// node's own `known_hosts`, so that nodes which were not observed now keep theirs.
    pub fn authorized_keys(&self, facts: &Facts) -> String {
        let cluster = &self.inventory.cluster.name;
        let pins = if self.restricted { pins(&self.known_hosts(facts), cluster) } else { Vec::new() };
        let from = pins.iter().flat_map(|pin| pin.addresses()).collect();
        merge_authorized(text(facts, AUTHORIZED_KEYS), &self.keys.let_in, self.keys.keep_ours, cluster, &from)
    }

    /// Returns what has to change on a node. `new_host_key`: for a node that has none.
    pub fn changes(&self, node: &Node, facts: &Facts, new_host_key: Option<&KeyPair>) -> Changes {
        let line = |text: &str| Secret::plain(format!("{text}\n"));
        // `None`: the file stays as it is
        let mut files: Vec<(String, Option<Secret>)> = vec![
            (HOST_KEY.to_owned(), new_host_key.map(|pair| pair.private.clone())),
            (format!("{HOST_KEY}.pub"), new_host_key.map(|pair| line(&pair.public))),
        ];
        match &self.keys.pair {
            Some(pair) if node.master => {
                files.push((pair.name.to_owned(), pair.new.clone()));
                files.push((format!("{}.pub", pair.name), Some(line(&pair.public))));
            }
            None if node.master => {
                files.extend(KEY_NAMES.iter().flat_map(|name| files_of(name)).map(|name| (name, None)));
            }
            _ => {}
        }
        files.push((AUTHORIZED_KEYS.to_owned(), Some(Secret::plain(self.authorized_keys(facts)))));
        files.push((KNOWN_HOSTS.to_owned(), Some(Secret::plain(self.known_hosts(facts)))));

        let mut changes = Changes { removes: self.unwanted(node, facts), ..Changes::default() };
        let dir = facts.key_dir.iter().filter(|dir| dir.mode != "700" || dir.owner != "0:0");
        changes.repairs.extend(dir.map(|dir| format!("the directory ({} {})", dir.mode, dir.owner)));
        for (name, content) in files {
            let file = facts.key_files.get(&name);
            match (content, file) {
                (Some(text), file) if file.is_none_or(|file| file.text != text.expose()) => {
                    changes.puts.push(Put { name, text });
                }
                (_, Some(file)) if file.mode != mode(&name) || file.owner != "0:0" => {
                    changes.repairs.push(format!("{name} ({} {})", file.mode, file.owner));
                }
                _ => {}
            }
        }
        changes
    }

    /// Private keys that must not be there, with their public halves: all on a node that does not launch, and on the
    /// master one of the other type, if it is ours. Another cluster that shares the directory may launch from this node.
    fn unwanted(&self, node: &Node, facts: &Facts) -> Vec<String> {
        let cluster = &self.inventory.cluster.name;
        let ours = |private: &str| is_ours(facts, private, cluster);
        let in_use = self.keys.pair.as_ref().map(|pair| pair.name);
        let alone = others(facts, cluster).is_empty();
        let mut names = Vec::new();
        for name in KEY_NAMES {
            let [private, public, next, next_public] = files_of(name);
            if node.master {
                if in_use.is_some_and(|in_use| in_use != name) && ours(&private) {
                    names.extend([private, public]);
                }
            } else {
                if ours(&private) || (alone && in_use == Some(name)) {
                    names.extend([private, public]);
                }
                if ours(&next) || alone {
                    names.extend([next, next_public]);
                }
            }
        }
        names.retain(|name| facts.key_files.contains_key(name));
        names
    }
}

/// The private keys on a node that are those of another cluster, which shares the directory, and that cluster. While it
/// rotates, the public half may still be the staged one.
fn others<'a>(facts: &'a Facts, cluster: &str) -> Vec<(&'static str, &'a str)> {
    let other = |name| {
        let [private, public, _, next_public] = files_of(name);
        let public = if facts.key_files.contains_key(&public) { public } else { next_public };
        let owner = owner(text(facts, &public)).filter(|owner| *owner != cluster)?;
        facts.key_files.contains_key(&private).then_some((name, owner))
    };
    KEY_NAMES.into_iter().filter_map(other).collect()
}

/// Returns what a person should know of a node's directory and no push changes.
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
    let link_local = |address: &IpAddr| match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let further = facts.addresses.iter().filter(|(name, _)| *name == endpoint.interface).map(|(_, address)| *address);
    let further = further.filter(|a| a.is_ipv4() == endpoint.address.is_ipv4() && !link_local(a));
    [endpoint.address].into_iter().chain(further).collect()
}

/// Every name that a launcher may use.
fn names(inventory: &Inventory, node: &Node, facts: &Facts, addresses: &[IpAddr]) -> Vec<String> {
    let mut own = vec![node.name.as_str(), node.host.as_str()];
    // a machine chooses its own host name: it must not pass for another node
    let mut others = inventory.nodes.iter().filter(|other| other.name != node.name);
    if others.all(|other| other.name != facts.hostname && other.host != facts.hostname) {
        own.push(&facts.hostname);
    }
    known_hosts_names(&own, addresses, inventory.cluster.port)
}

/// The files of a key pair: in place, and staged by a rotation.
fn files_of(name: &str) -> [String; 4] {
    [name.to_owned(), format!("{name}.pub"), format!("{name}.next"), format!("{name}.next.pub")]
}

/// Returns a worker's public host key, if both halves exist.
pub fn public_host_key(facts: &Facts) -> Option<&str> {
    let public = text(facts, &format!("{HOST_KEY}.pub")).trim();
    (facts.key_files.contains_key(HOST_KEY) && !public.is_empty()).then_some(public)
}

/// Returns the names of the nodes whose directory differs from what the master's pair asks for.
pub fn differing(inventory: &Inventory, nodes: &[(&Node, &Facts)], keys: fn(&Keyring) -> Option<Keys>) -> Vec<String> {
    let keys = Keyring::of_master(inventory, nodes).as_ref().and_then(keys);
    let desired = keys.map(|keys| Desired::observed(inventory, nodes, keys));
    let is_right = |node, facts| {
        let desired = desired.as_ref().filter(|_| public_host_key(facts).is_some());
        desired.is_some_and(|desired| desired.changes(node, facts, None).is_empty())
    };
    let differing = nodes.iter().filter(|(node, facts)| !is_right(node, facts));
    differing.map(|(node, _)| node.name.clone()).collect()
}
