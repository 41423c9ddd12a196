//! The plan of an encrypted network: pure decisions about what was observed.

use super::trust::{self, MeshNode, OPERATION};
use crate::error::{Error, NodeError};
use crate::inventory::{Cluster, Node};
use crate::model::mesh::{AddressRange, NetworkFile, NetworkNode, is_interface};
use crate::node::facts::Facts;
use crate::node::network::is_virtual;
use crate::text::nodeset;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

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

/// Returns the route of a node that leads to addresses of a range, other than those of the network itself: that of its
/// interface, and the one that keeps its packets from other ways. That one stays on a node whose files are gone.
fn collision<'a>(cluster: &Cluster, range: AddressRange, node: &'a MeshNode<'_>) -> Option<&'a (AddressRange, String)> {
    let (mesh, file) = (&node.facts.mesh, node.facts.mesh.file.as_ref());
    let is_own = |(route, interface): &(AddressRange, String)| {
        let is_known = file.is_some_and(|file| file.interface == *interface);
        *interface == cluster.network_interface || is_known || (interface == "unreachable" && *route == range)
    };
    mesh.routes.iter().find(|route| route.0.overlaps(range) && !is_own(route))
}

/// Chooses the range and the addresses. Nodes keep theirs, as far as the master and the operator's own nodes know them;
/// `elsewhere`: what these know of nodes that were not observed.
///
/// # Errors
/// If no range is free, or there are more nodes than addresses.
pub fn addresses(
    cluster: &Cluster,
    nodes: &[MeshNode<'_>],
    elsewhere: &BTreeMap<String, NetworkNode>,
) -> Result<Addresses, Error> {
    let (range, believed) = (range(cluster, nodes)?, trust::believed(nodes));
    let all: Vec<&String> = nodes.iter().map(|node| &node.node.name).chain(elsewhere.keys()).collect();
    let own = nodes.iter().filter(|seen| seen.node.is_source());
    let own = own.filter_map(|seen| Some((&seen.node.name, seen.facts.mesh.file.as_ref()?.address)));
    let known = own.chain(believed.iter().flat_map(|file| &file.nodes).map(|node| (&node.name, node.address)));
    let mut of: BTreeMap<String, Ipv4Addr> = BTreeMap::new();
    let mut taken: BTreeSet<Ipv4Addr> = BTreeSet::new();
    for (name, address) in known {
        if all.contains(&name) && !of.contains_key(name) && range.contains(address) && taken.insert(address) {
            of.insert(name.clone(), address);
        }
    }
    let mut free = range.hosts().filter(|address| !taken.contains(address));
    for node in all {
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

/// Chooses the range: that of the inventory, the current one, or one to which no node has a route. Nodes of other owners
/// move no network that there is: see [`collisions`].
fn range(cluster: &Cluster, nodes: &[MeshNode<'_>]) -> Result<AddressRange, Error> {
    if let Some(range) = cluster.network_range {
        return Ok(range);
    }
    let is_free = |range: &AddressRange, node: &MeshNode<'_>| collision(cluster, *range, node).is_none();
    let of_all = |range: &AddressRange| nodes.iter().all(|node| is_free(range, node));
    let of_own = |range: &AddressRange| nodes.iter().all(|node| !node.node.is_source() || is_free(range, node));
    let current = trust::believed(nodes).first().map(|file| file.range).filter(|range| range.is_private());
    let current = current.filter(|range| of_own(range));
    // one of another network, whose interface is missing at the moment
    let is_kept = |range: &AddressRange, node: &MeshNode<'_>| {
        node.facts.mesh.routes.iter().any(|(route, device)| route == range && device == "unreachable")
    };
    let new = || candidates().filter(|range| !nodes.iter().any(|node| is_kept(range, node)));
    current.or_else(|| new().find(of_all)).or_else(|| new().find(of_own)).ok_or_else(|| {
        let hint = "name a network_range in [cluster] that none of them uses";
        Error::check("the nodes have routes to all private ranges of addresses", hint)
    })
}

/// Returns the errors of nodes that have a route to the range for something else.
pub fn collisions(cluster: &Cluster, range: AddressRange, nodes: &[MeshNode<'_>]) -> Vec<NodeError> {
    let error = |node: &MeshNode<'_>| {
        let (route, device) = collision(cluster, range, node)?;
        let cause = format!("its route to {route} (dev {device}) is in the range {range}");
        let hint = "name another network_range in [cluster]";
        Some(NodeError::failed(&node.node.name, OPERATION, cause).hint(hint))
    };
    nodes.iter().filter_map(error).collect()
}

/// Returns the nodes of the inventory that were not observed, as the master and the operator's own nodes know them.
pub fn elsewhere(all: &[Node], observed: &[MeshNode<'_>]) -> BTreeMap<String, NetworkNode> {
    let believed: Vec<NetworkFile> = trust::believed(observed).into_iter().cloned().collect();
    absent(all, observed, &believed)
}

/// Returns the nodes of the inventory that are not among these, as files that are believed have them, the best one first.
pub fn absent(all: &[Node], observed: &[MeshNode<'_>], believed: &[NetworkFile]) -> BTreeMap<String, NetworkNode> {
    let is_absent =
        |name: &str| all.iter().any(|node| node.name == name) && observed.iter().all(|seen| seen.node.name != name);
    let mut found = BTreeMap::new();
    for node in believed.iter().flat_map(|file| &file.nodes) {
        if is_absent(&node.name) {
            found.entry(node.name.clone()).or_insert_with(|| node.clone());
        }
    }
    found
}

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

/// The most addresses of its interfaces that a node's peers know; it sends as many itself (`scripts/mesh/messages.py`).
const MOST_LOCAL: usize = 8;

/// Returns the addresses by which nodes behind the same router may reach a node.
fn local(facts: &Facts) -> Vec<String> {
    let is_outside = |(interface, address): &&(String, IpAddr)| {
        address.is_ipv4() && !is_virtual(interface) && !is_interface(interface)
    };
    let outside = facts.network.addresses.iter().filter(is_outside).map(|(_, address)| address.to_string());
    outside.take(MOST_LOCAL).collect()
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
            interface: cluster.network_interface.clone(),
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
    /// It gets another interface.
    Interface(String),
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
            NetworkChange::Address(_)
            | NetworkChange::Interface(_)
            | NetworkChange::Port(_)
            | NetworkChange::OwnKey => true,
            NetworkChange::Removed(nodes) | NetworkChange::Replaced(nodes) => {
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
            NetworkChange::Interface(interface) => return write!(f, "interface {interface}"),
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
            if old.interface != new.interface {
                found.push(NetworkChange::Interface(new.interface.clone()));
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
pub(super) mod tests;
