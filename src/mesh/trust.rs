//! Whom hvdctl believes about an encrypted network of several owners. Root of a node decides what its files say, so nodes
//! of other owners are believed about themselves only, and what is false there costs no other node its network.

use crate::error::NodeError;
use crate::inventory::Node;
use crate::model::mesh::{NetworkFile, NetworkNode};
use crate::node::facts::Facts;
use std::collections::{BTreeMap, BTreeSet};

/// The operation that errors name.
pub const OPERATION: &str = "connect it to the encrypted network";

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

/// Returns what the master and the operator's own nodes know of the network, the master first.
pub fn believed<'a>(nodes: &[MeshNode<'a>]) -> Vec<&'a NetworkFile> {
    let mut own: Vec<&MeshNode<'a>> = nodes.iter().filter(|seen| seen.node.is_source()).collect();
    own.sort_by_key(|seen| !seen.node.master);
    own.into_iter().filter_map(|seen| seen.facts.mesh.file.as_ref()).collect()
}

/// Returns the errors of nodes that claim the public key of another one: its packets would go to them. The key is that of
/// the node that had it before, otherwise of one of the operator's own. `keys`: those of the observed nodes;
/// `elsewhere`: the nodes that were not observed.
pub fn claimed_keys(
    nodes: &[MeshNode<'_>],
    keys: &BTreeMap<String, String>,
    elsewhere: &BTreeMap<String, NetworkNode>,
) -> Vec<NodeError> {
    let current = |name: &str| keys.get(name).or_else(|| elsewhere.get(name).map(|node| &node.public_key));
    let before = believed(nodes).into_iter().flat_map(|file| &file.nodes);
    let before = before.filter(|node| current(&node.name) == Some(&node.public_key)).map(|node| node.name.as_str());
    let mut now: Vec<&MeshNode<'_>> = nodes.iter().collect();
    now.sort_by_key(|seen| !seen.node.is_source());
    let now = now.into_iter().map(|seen| seen.node.name.as_str());
    let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
    for name in before.chain(now) {
        if let Some(key) = current(name) {
            holders.entry(key).or_insert(name);
        }
    }
    let held = keys.iter().filter_map(|(name, key)| Some((name, *holders.get(key.as_str())?)));
    let claimed = held.filter(|(name, holder)| name != holder);
    let error = |(name, holder): (&String, &str)| {
        let hint = format!("hvdctl --on {name} down --network, then hvdctl up: it makes a key of its own");
        NodeError::failed(name, OPERATION, format!("it has the public key of {holder}")).hint(hint)
    };
    claimed.map(error).collect()
}

/// Returns the nodes at fault where two do not reach each other: of one of the operator's own and one of another owner
/// the latter, which may report what it likes; then those that several others do not reach; and both of a pair that is
/// left. `is_own`: whether a node is the operator's own, or the master.
pub fn at_fault<'a>(pairs: &[[&'a str; 2]], is_own: impl Fn(&str) -> bool) -> BTreeSet<&'a str> {
    let of_other_owners = pairs.iter().filter(|[a, b]| is_own(a) != is_own(b));
    let mut found: BTreeSet<&str> = of_other_owners.map(|[a, b]| if is_own(a) { *b } else { *a }).collect();
    loop {
        let open: Vec<&[&str; 2]> = pairs.iter().filter(|[a, b]| !found.contains(a) && !found.contains(b)).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        open.iter().flat_map(|pair| pair.iter()).for_each(|name| *counts.entry(*name).or_default() += 1);
        match counts.into_iter().max_by_key(|(_, count)| *count) {
            Some((worst, 2..)) => drop(found.insert(worst)),
            _ => {
                found.extend(open.into_iter().flatten());
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests;
