//! The plan of an encrypted network: pure decisions about what was observed.

use crate::error::{Error, NodeError};
use crate::inventory::{Cluster, Node};
use crate::model::mesh::{AddressRange, NetworkFile, NetworkNode};
use crate::node::facts::Facts;
use crate::node::network::is_virtual;
use crate::text::nodeset;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// A node of the network, as it was observed.
#[derive(Debug, Clone, Copy)]
pub struct MeshNode<'a> {
    /// Its entry in the inventory.
    pub node: &'a Node,
    /// Its facts.
    pub facts: &'a Facts,
    /// The host to which ssh connects, if nothing is in between.
    pub host: Option<&'a str>,
}

/// The addresses of the nodes in the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// The range that they are of.
    pub range: AddressRange,
    /// The address of each node.
    pub of: BTreeMap<String, Ipv4Addr>,
}

/// Returns the ranges that are tried in turn where the inventory names none.
fn candidates() -> impl Iterator<Item = AddressRange> {
    let tens = (90..=254).map(|second| format!("10.{second}.0.0/16"));
    let others = (20..=31).map(|second| format!("172.{second}.0.0/16"));
    tens.chain(others).chain((100..=127).map(|second| format!("100.{second}.0.0/16"))).flat_map(|text| text.parse())
}

/// Returns the route of a node that leads to addresses of a range, but for the one that keeps packets of its own network from
/// other ways.
fn collision<'a>(range: AddressRange, node: &'a MeshNode<'_>) -> Option<&'a (AddressRange, String)> {
    let own = node.facts.mesh.file.as_ref().map(|file| file.range);
    let is_own = |(route, device): &(AddressRange, String)| device == "unreachable" && Some(*route) == own;
    node.facts.mesh.routes.iter().find(|route| route.0.overlaps(range) && !is_own(route))
}

/// Chooses the range and the addresses. Nodes keep theirs; `elsewhere`: what nodes that were not observed are known to
/// have.
///
/// # Errors
/// If a node has a route to the range that the inventory names, no range is free, or there are more nodes than addresses.
pub fn addresses(
    cluster: &Cluster,
    nodes: &[MeshNode<'_>],
    elsewhere: &BTreeMap<String, NetworkNode>,
) -> Result<Addresses, Error> {
    let current = nodes.iter().find_map(|node| node.facts.mesh.file.as_ref().map(|file| file.range));
    let is_free = |range: &AddressRange| nodes.iter().all(|node| collision(*range, node).is_none());
    let range = match cluster.network_range {
        Some(range) => {
            let taken = nodes.iter().filter_map(|node| Some((node, collision(range, node)?)));
            let failed: Vec<NodeError> = taken
                .map(|(node, (route, device))| {
                    let cause = format!("its route to {route} (dev {device}) is in the range {range}");
                    NodeError::failed(&node.node.name, OPERATION, cause).hint("name another network_range in [cluster]")
                })
                .collect();
            if !failed.is_empty() {
                return Err(Error::Nodes { failed, done: 0 });
            }
            range
        }
        None => current.into_iter().chain(candidates()).find(is_free).ok_or_else(|| {
            let hint = "name a network_range in [cluster] that none of them uses";
            Error::check("the nodes have routes to all private ranges of addresses", hint)
        })?,
    };
    let own = |node: &MeshNode<'_>| {
        let file = node.facts.mesh.file.as_ref()?;
        Some((node.node.name.clone(), file.address))
    };
    let mut of: BTreeMap<String, Ipv4Addr> = BTreeMap::new();
    let mut taken: BTreeSet<Ipv4Addr> = BTreeSet::new();
    let known = nodes.iter().filter_map(own).chain(elsewhere.iter().map(|(name, node)| (name.clone(), node.address)));
    for (name, address) in known {
        if range.contains(address) && taken.insert(address) {
            of.insert(name, address);
        }
    }
    let mut free = range.hosts().filter(|address| !taken.contains(address));
    for node in nodes.iter().map(|node| &node.node.name).chain(elsewhere.keys()) {
        if !of.contains_key(node) {
            let address = free.next().ok_or_else(|| {
                Error::check(
                    format!("the range {range} has too few addresses for all nodes"),
                    "name a larger network_range in [cluster]",
                )
            })?;
            of.insert(node.clone(), address);
        }
    }
    Ok(Addresses { range, of })
}

/// Returns the nodes of the inventory that were not observed, as the others know them. Root of a node decides what that
/// knows, so what the operator's own nodes know goes first.
pub fn elsewhere(all: &[Node], observed: &[MeshNode<'_>]) -> BTreeMap<String, NetworkNode> {
    let is_absent =
        |name: &str| all.iter().any(|node| node.name == name) && observed.iter().all(|seen| seen.node.name != name);
    let mut known: Vec<&MeshNode<'_>> = observed.iter().collect();
    known.sort_by_key(|seen| (!seen.node.master, !seen.node.is_source()));
    let mut found = BTreeMap::new();
    for node in known.into_iter().filter_map(|seen| seen.facts.mesh.file.as_ref()).flat_map(|file| &file.nodes) {
        if is_absent(&node.name) {
            found.entry(node.name.clone()).or_insert_with(|| node.clone());
        }
    }
    found
}

/// The operation that errors name.
pub const OPERATION: &str = "connect it to the encrypted network";

/// Returns `host:port` of a host, or of an endpoint that may have a port.
pub fn with_port(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        _ if host.starts_with('[') && !host.ends_with(']') => host.to_owned(),
        _ if !host.starts_with('[') && host.contains(':') => host.to_owned(),
        _ => format!("{host}:{port}"),
    }
}

/// Returns where a node may be reached from outside, the likeliest first.
fn endpoints(cluster: &Cluster, MeshNode { node, host, facts }: &MeshNode<'_>) -> Vec<String> {
    let by_ssh = facts.network.ssh_address.filter(|address| !address.is_loopback()).map(|address| address.to_string());
    let named = node.endpoint.iter().map(String::as_str);
    let mut found: Vec<String> = Vec::new();
    for place in named.chain(*host).chain(by_ssh.as_deref()).filter(|host| *host != "localhost") {
        let place = with_port(place, cluster.network_port);
        if !found.contains(&place) {
            found.push(place);
        }
    }
    found
}

/// Returns the addresses by which nodes behind the same router may reach a node.
fn local(facts: &Facts) -> Vec<String> {
    let is_outside = |(interface, address): &&(String, IpAddr)| {
        address.is_ipv4() && !is_virtual(interface) && interface != crate::model::mesh::INTERFACE
    };
    facts.network.addresses.iter().filter(is_outside).map(|(_, address)| address.to_string()).collect()
}

/// Returns what each of the observed nodes is to know. `keys`: their public keys; `elsewhere`: nodes that were not
/// observed, as the others know them.
pub fn files(
    cluster: &Cluster,
    nodes: &[MeshNode<'_>],
    addresses: &Addresses,
    keys: &BTreeMap<String, String>,
    elsewhere: &BTreeMap<String, NetworkNode>,
) -> BTreeMap<String, NetworkFile> {
    let described = nodes.iter().filter_map(|node| {
        let name = &node.node.name;
        Some(NetworkNode {
            name: name.clone(),
            address: addresses.of[name],
            public_key: keys.get(name)?.clone(),
            endpoints: endpoints(cluster, node),
            local: local(node.facts),
        })
    });
    let others = elsewhere.iter().map(|(name, node)| NetworkNode { address: addresses.of[name], ..node.clone() });
    let all: Vec<NetworkNode> = described.chain(others).collect();
    let file = |node: &MeshNode<'_>| {
        let name = &node.node.name;
        let file = NetworkFile {
            cluster: cluster.name.clone(),
            node: name.clone(),
            port: cluster.network_port,
            range: addresses.range,
            address: addresses.of[name],
            mtu: None,
            nodes: all.clone(),
        };
        (name.clone(), file)
    };
    nodes.iter().filter(|node| keys.contains_key(&node.node.name)).map(file).collect()
}

/// A change of what a node knows of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkChange {
    /// It gets its first address, or another one.
    Address(Ipv4Addr),
    /// It gets another port.
    Port(u16),
    /// Its own key is another one.
    OwnKey,
    /// These nodes are added.
    Added(Vec<String>),
    /// These nodes are removed.
    Removed(Vec<String>),
    /// These nodes have other keys or addresses.
    Replaced(Vec<String>),
    /// These nodes are reached elsewhere.
    Moved(Vec<String>),
}

impl NetworkChange {
    /// Returns whether connections of jobs would break. `records`: those of the jobs that run on the node.
    pub fn breaks_jobs(&self, records: &[&str]) -> bool {
        match self {
            NetworkChange::Address(_) | NetworkChange::Port(_) | NetworkChange::OwnKey | NetworkChange::Replaced(_) => {
                true
            }
            NetworkChange::Removed(nodes) => {
                nodes.iter().any(|node| records.iter().any(|record| may_name(record, node)))
            }
            NetworkChange::Added(_) | NetworkChange::Moved(_) => false,
        }
    }
}

/// Returns whether the record of a job names a node; one that cannot be read may name any.
fn may_name(record: &str, node: &str) -> bool {
    fn names(value: &Value, node: &str) -> bool {
        match value {
            Value::String(text) => text == node,
            Value::Array(values) => values.iter().any(|value| names(value, node)),
            Value::Object(fields) => fields.values().any(|value| names(value, node)),
            _ => false,
        }
    }
    serde_json::from_str(record).map_or(true, |value| names(&value, node))
}

impl fmt::Display for NetworkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, nodes) = match self {
            NetworkChange::Address(address) => return write!(f, "address {address}"),
            NetworkChange::Port(port) => return write!(f, "UDP port {port}"),
            NetworkChange::OwnKey => return f.write_str("a new key"),
            NetworkChange::Added(nodes) => ("add", nodes),
            NetworkChange::Removed(nodes) => ("remove", nodes),
            NetworkChange::Replaced(nodes) => ("new key or address of", nodes),
            NetworkChange::Moved(nodes) => ("new place of", nodes),
        };
        write!(f, "{text} {}", nodeset::fold(nodes))
    }
}

/// Returns the differences between what a node knows and what it is to know.
pub fn changes(old: Option<&NetworkFile>, new: &NetworkFile) -> Vec<NetworkChange> {
    let key =
        |file: &NetworkFile| file.nodes.iter().find(|node| node.name == file.node).map(|node| node.public_key.clone());
    let others = |file: &NetworkFile| -> BTreeMap<String, NetworkNode> {
        let others = file.nodes.iter().filter(|node| node.name != file.node);
        others.map(|node| (node.name.clone(), node.clone())).collect()
    };
    let mut found = Vec::new();
    let before = old.map(others).unwrap_or_default();
    match old {
        Some(old) => {
            if old.address != new.address || old.range != new.range {
                found.push(NetworkChange::Address(new.address));
            }
            if old.port != new.port {
                found.push(NetworkChange::Port(new.port));
            }
            if key(old) != key(new) {
                found.push(NetworkChange::OwnKey);
            }
        }
        None => found.push(NetworkChange::Address(new.address)),
    }
    let now = others(new);
    let names = |nodes: &mut dyn Iterator<Item = &String>| nodes.cloned().collect::<Vec<String>>();
    let differing = |differ: fn(&NetworkNode, &NetworkNode) -> bool| {
        let pairs = now.iter().filter_map(|(name, node)| Some((name, before.get(name)?, node)));
        pairs.filter(|(_, old, new)| differ(old, new)).map(|(name, ..)| name.clone()).collect::<Vec<String>>()
    };
    let is_replaced =
        |old: &NetworkNode, new: &NetworkNode| old.public_key != new.public_key || old.address != new.address;
    let is_moved = |old: &NetworkNode, new: &NetworkNode| old.endpoints != new.endpoints || old.local != new.local;
    let added = names(&mut now.keys().filter(|name| !before.contains_key(*name)));
    let removed = names(&mut before.keys().filter(|name| !now.contains_key(*name)));
    found.extend((!added.is_empty()).then_some(NetworkChange::Added(added)));
    found.extend((!removed.is_empty()).then_some(NetworkChange::Removed(removed)));
    let (replaced, moved) = (differing(is_replaced), differing(is_moved));
    found.extend((!replaced.is_empty()).then_some(NetworkChange::Replaced(replaced)));
    found.extend((!moved.is_empty()).then_some(NetworkChange::Moved(moved)));
    found
}

#[cfg(test)]
mod tests;
