//! The desired key directories of a cluster, and what has to change on a node.

use super::lines::{
    address_of, is_our_host_key, known_hosts_line, known_hosts_names, merge_authorized, merge_known_hosts, owner,
    pinned_names, without_ours,
};
use super::pair::{Keyring, Pair};
use super::{AUTHORIZED_KEYS, Changes, KEY_NAMES, KNOWN_HOSTS, Put, WrongMode, is_ours, mode, text};
use crate::inventory::{Inventory, Node};
use crate::node::facts::Facts;
use crate::node::network;
use crate::paths::HOST_KEY;
use crate::secret::Secret;
use crate::text::public_key::bare;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The keys that the nodes should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// The public keys that every node accepts.
    pub authorized: Vec<String>,
    /// If set, a node keeps further keys of the cluster that it accepts.
    pub keep_further: bool,
    /// The pair on the master, where no other of ours belongs. `None` while a rotation is unfinished: its files stay as
    /// they are, and only `keys rotate` continues with them.
    pub pair: Option<Pair>,
}

impl Keys {
    /// Keys for one pair and nothing else.
    pub fn only(pair: Pair) -> Keys {
        Keys { authorized: vec![pair.public.clone()], keep_further: false, pair: Some(pair) }
    }

    /// The keys that a push distributes: during a rotation both, so that the nodes accept whichever the master uses.
    /// `None` where the master has no pair, or its public half is missing.
    pub fn to_push(ring: &Keyring) -> Option<Keys> {
        let current = ring.current.iter().filter(|pair| !pair.public.is_empty());
        let Some(next) = &ring.next else { return current.cloned().map(Keys::only).next() };
        let mut authorized: Vec<String> = current.chain([next]).map(|pair| pair.public.clone()).collect();
        authorized.dedup();
        Some(Keys { authorized, keep_further: true, pair: None })
    }

    /// The keys that a launch needs: only the one that the master uses, whatever else a rotation has authorized.
    pub fn to_launch(ring: &Keyring) -> Option<Keys> {
        let mut keys = Keys::to_push(ring)?;
        let in_use = bare(&ring.current.as_ref()?.public);
        if !in_use.is_empty() {
            keys.authorized.retain(|key| bare(key) == in_use);
        }
        Some(Keys { keep_further: true, ..keys })
    }
}

/// The desired key directories of all nodes.
#[derive(Debug, Clone)]
pub struct Desired<'a> {
    inventory: &'a Inventory,
    keys: Keys,
    /// The pairs of host keys that were generated for nodes without one, by node.
    new_host_keys: BTreeMap<String, Pair>,
    /// Our lines of `known_hosts`, by node.
    known_hosts: Vec<(String, String)>,
    /// The nodes' own names in `known_hosts` form; our lines about others are dropped.
    members: BTreeSet<String>,
    /// Set if the address from which the master connects is known, so that `from=` can be written.
    is_restricted: bool,
}

impl<'a> Desired<'a> {
    /// Computes it from the observed nodes. Those without a host key, old or new, are not pinned.
    pub fn new(
        inventory: &'a Inventory,
        nodes: &[(&Node, &Facts)],
        keys: Keys,
        new_host_keys: BTreeMap<String, Pair>,
    ) -> Desired<'a> {
        let cluster = &inventory.cluster;
        let (mut known_hosts, mut is_restricted) = (Vec::new(), false);
        for (node, facts) in nodes {
            let new = new_host_keys.get(&node.name).map(|pair| pair.public.as_str());
            let Some(host_key) = new.or_else(|| public_host_key(facts)) else { continue };
            let addresses = addresses(node, facts);
            is_restricted |= node.master && !addresses.is_empty();
            let names = names(inventory, node, facts, &addresses);
            known_hosts.push((node.name.clone(), known_hosts_line(&cluster.name, &names, host_key)));
        }
        let members = inventory.nodes.iter().flat_map(|n| known_hosts_names(&[&n.name], &[], cluster.port)).collect();
        Desired { inventory, keys, new_host_keys, known_hosts, members, is_restricted }
    }

    /// Returns whether a node pins host keys of nodes that the inventory does not have.
    pub fn pins_others(&self, facts: &Facts) -> bool {
        let mut pinned = pinned_names(text(facts, KNOWN_HOSTS), &self.inventory.cluster.name);
        pinned.any(|names| !names.iter().any(|name| self.members.contains(*name)))
    }

    /// The line that pins a node's host key, if it has one.
    pub fn pin(&self, node: &str) -> Option<&str> {
        self.known_hosts.iter().find(|(name, _)| name == node).map(|(_, line)| line.as_str())
    }

    /// Returns a node's desired `known_hosts`.
    pub fn known_hosts(&self, facts: &Facts) -> String {
        let wanted: Vec<String> = self.known_hosts.iter().map(|(_, line)| line.clone()).collect();
        merge_known_hosts(text(facts, KNOWN_HOSTS), &wanted, &self.members, &self.inventory.cluster.name)
    }

    /// Returns a node's desired `authorized_keys`. The key is accepted from the cluster's addresses only: those in the
    /// node's own `known_hosts`, so that nodes which were not observed now keep theirs.
    pub fn authorized_keys(&self, facts: &Facts) -> String {
        let cluster = &self.inventory.cluster.name;
        let known_hosts = if self.is_restricted { self.known_hosts(facts) } else { String::new() };
        let from = pinned_names(&known_hosts, cluster).flatten().filter_map(address_of).collect();
        let Keys { authorized, keep_further, .. } = &self.keys;
        merge_authorized(text(facts, AUTHORIZED_KEYS), authorized, *keep_further, cluster, &from)
    }

    /// Returns what has to change on a node.
    pub fn changes(&self, node: &Node, facts: &Facts) -> Changes {
        let pairs = self.new_host_keys.get(&node.name).into_iter().chain(self.keys.pair.iter().filter(|_| node.master));
        let mut puts: Vec<Put> = pairs.flat_map(Pair::files).collect();
        for (name, text) in [(AUTHORIZED_KEYS, self.authorized_keys(facts)), (KNOWN_HOSTS, self.known_hosts(facts))] {
            puts.push(Put { name: name.to_owned(), text: Secret::plain(text) });
        }
        puts.retain(|put| facts.keys.files.get(&put.name).is_none_or(|file| file.text != put.text.expose()));
        let removes = self.unwanted(node, facts);

        let changed: Vec<&String> = puts.iter().map(|put| &put.name).chain(&removes).collect();
        let kept = facts.keys.files.iter().filter(|(name, _)| self.governs(node, name) && !changed.contains(name));
        let kept = kept.map(|(name, file)| (Some(name.clone()), file, mode(name)));
        let wrong = facts.keys.directory.iter().map(|dir| (None, dir, "700")).chain(kept);
        let wrong = wrong.filter(|(_, file, mode)| file.mode != *mode || !facts.keys.is_own(file));
        let repairs = wrong.map(|(name, found, _)| WrongMode {
            file: name,
            mode: found.mode.clone(),
            owner: found.owner.clone(),
        });
        let repairs = repairs.collect();
        Changes { puts, removes, repairs }
    }

    /// Returns whether this cluster manages a file of this name on a node.
    fn governs(&self, node: &Node, name: &str) -> bool {
        let private = name.trim_end_matches(".pub").trim_end_matches(".next");
        match KEY_NAMES.contains(&private) {
            true => node.master && self.keys.pair.as_ref().is_none_or(|pair| pair.name == private),
            false => [AUTHORIZED_KEYS, KNOWN_HOSTS, HOST_KEY].contains(&private),
        }
    }

    /// Private keys that must not be there, with their public halves: all on a node that does not launch, and on the
    /// master one of the other type, if it is ours. Another cluster that shares the directory may launch from this
    /// node.
    fn unwanted(&self, node: &Node, facts: &Facts) -> Vec<String> {
        let cluster = &self.inventory.cluster.name;
        let is_ours = |name: &str| is_ours(facts, name, cluster);
        let in_use = self.keys.pair.as_ref().map(|pair| pair.name);
        let is_shared = !others(facts, cluster).is_empty();
        let mut unwanted = Vec::new();
        for name in KEY_NAMES {
            let next = format!("{name}.next");
            let (is_unwanted, is_next_unwanted) = if node.master {
                (in_use.is_some_and(|in_use| in_use != name) && is_ours(name), false)
            } else {
                (is_ours(name) || (!is_shared && in_use == Some(name)), is_ours(&next) || !is_shared)
            };
            unwanted.extend(is_unwanted.then(|| name.to_owned()));
            unwanted.extend(is_next_unwanted.then_some(next));
        }
        let files = unwanted.into_iter().flat_map(|name| [name.clone(), format!("{name}.pub")]);
        files.filter(|name| facts.keys.files.contains_key(name)).collect()
    }
}

/// The private keys on a node that are those of another cluster, which shares the directory, and that cluster. While it
/// rotates, the public half may still be the staged one.
fn others<'a>(facts: &'a Facts, cluster: &str) -> Vec<(&'static str, &'a str)> {
    let other = |name: &'static str| {
        let public = [format!("{name}.pub"), format!("{name}.next.pub")];
        let public = public.iter().find(|file| facts.keys.files.contains_key(*file))?;
        let owner = owner(text(facts, public)).filter(|owner| *owner != cluster)?;
        facts.keys.files.contains_key(name).then_some((name, owner))
    };
    KEY_NAMES.into_iter().filter_map(other).collect()
}

/// Returns what a person should know about a node's directory although a push does not change it.
pub fn warnings(inventory: &Inventory, node: &Node, facts: &Facts) -> Vec<String> {
    let others = others(facts, &inventory.cluster.name).into_iter().map(|(file, owner)| {
        format!("{file} is kept: it is the key of the cluster {owner}, which uses the same directory")
    });
    // `up` makes the encrypted network, and pushes keys that are tied to the master's address there
    let is_to_come = inventory.cluster.network.is_some() && facts.mesh.file.is_none();
    let unplaced = network::place(inventory, node, facts).err();
    let unplaced = unplaced.filter(|_| node.master && !is_to_come).map(|why| {
        format!(
            "the workers accept the cluster's key from any address, because that of the master is not known \
             ({why}): set `address` for it"
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
    let further =
        facts.network.addresses.iter().filter(|(name, _)| *name == endpoint.interface).map(|(_, address)| *address);
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

/// Returns a worker's public host key, if both halves exist.
pub fn public_host_key(facts: &Facts) -> Option<&str> {
    let public = text(facts, &format!("{HOST_KEY}.pub")).trim();
    (facts.keys.files.contains_key(HOST_KEY) && !public.is_empty()).then_some(public)
}

/// Returns the names of the nodes whose directory differs from what the master's pair asks for: [`Keys::to_push`], or
/// [`Keys::to_launch`] where an unfinished rotation does not matter.
pub fn differing(inventory: &Inventory, nodes: &[(&Node, &Facts)], keys: fn(&Keyring) -> Option<Keys>) -> Vec<String> {
    let keys = Keyring::of_master(inventory, nodes).as_ref().and_then(keys);
    let desired = keys.map(|keys| Desired::new(inventory, nodes, keys, BTreeMap::new()));
    let is_right = |node, facts| {
        let desired = desired.as_ref().filter(|_| public_host_key(facts).is_some());
        desired.is_some_and(|desired| desired.changes(node, facts).is_empty())
    };
    let differing = nodes.iter().filter(|(node, facts)| !is_right(node, facts));
    differing.map(|(node, _)| node.name.clone()).collect()
}

/// Returns the changes that remove the cluster's lines and key pairs from a node's directory. All else stays, because
/// another cluster may use the same directory.
pub fn removal(facts: &Facts, cluster: &str) -> Changes {
    let public = |name: &str| format!("{name}.pub");
    let exists = |name: &str| facts.keys.files.contains_key(name);
    let mut changes = Changes::default();
    for name in [AUTHORIZED_KEYS, KNOWN_HOSTS] {
        let existing = text(facts, name);
        let others = without_ours(existing, cluster);
        if others.is_empty() {
            changes.removes.push(name.to_owned());
        } else if others != existing {
            changes.puts.push(Put { name: name.to_owned(), text: Secret::plain(others) });
        }
    }
    for name in KEY_NAMES {
        let next = format!("{name}.next");
        if is_ours(facts, name, cluster) {
            changes.removes.extend([name.to_owned(), public(name)]);
        }
        if is_ours(facts, &next, cluster) {
            // a switch that was interrupted has removed the old public half and moved the private one
            changes.removes.extend((!exists(&public(name))).then(|| name.to_owned()));
            changes.removes.extend([next.clone(), public(&next)]);
        } else if !exists(&public(&next)) {
            // a rotation was interrupted before it had written the public half
            changes.removes.push(next);
        }
    }
    if is_our_host_key(text(facts, &public(HOST_KEY)), cluster) {
        changes.removes.extend([HOST_KEY.to_owned(), public(HOST_KEY)]);
    }
    changes.removes.retain(|name| exists(name));
    changes
}
