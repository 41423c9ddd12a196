//! Whom hvdctl believes about an encrypted network of several owners. Root of a node decides what its files say, so nodes
//! of other owners are believed about themselves only, and what is false there costs no other node its network.

use super::rules::{self, States};
use crate::error::NodeError;
use crate::inventory::{Cluster, Node};
use crate::model::finding::{Finding, Severity};
use crate::model::mesh::{NetworkFile, NetworkNode};
use crate::node::facts::Facts;
use crate::text::nodeset;
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

/// Returns a node that has the key of one before it, and that one.
pub fn shared_key<'a>(keys: impl Iterator<Item = (&'a str, &'a str)>) -> Option<[&'a str; 2]> {
    let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
    keys.into_iter().find_map(|(name, key)| {
        let holder = *holders.entry(key).or_insert(name);
        (holder != name).then_some([name, holder])
    })
}

/// Why a node is not part of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconnected {
    /// Its name.
    pub node: String,
    /// What is wrong.
    pub cause: String,
    /// The next step.
    pub hint: String,
}

/// Returns the nodes that others do not reach, by what their agents report. A node of another owner may report what it
/// likes: where it and the operator's own nodes contradict each other, it alone is at fault. `is_own`: whether a node is
/// the operator's own, or the master.
pub fn faults(cluster: &Cluster, states: &States<'_>, is_own: impl Fn(&str) -> bool) -> Vec<Unconnected> {
    let (own, mut others): (States<'_>, States<'_>) =
        states.iter().map(|(name, state)| (*name, *state)).partition(|(name, _)| is_own(name));
    let mut found = between_equals(cluster, &own);
    for (name, state) in others.clone() {
        let with_it = own.iter().map(|(name, state)| (*name, *state)).chain([(name, state)]).collect();
        let new = between_equals(cluster, &with_it).into_iter().filter(|fault| !found.contains(fault));
        // what it says of itself first
        if let Some(Unconnected { node, cause, hint }) = new.min_by_key(|fault| fault.node != name) {
            let cause = if node == name { cause } else { format!("{node}: {cause}") };
            others.remove(name);
            found.push(Unconnected { node: name.to_owned(), cause, hint });
        }
    }
    found.extend(between_equals(cluster, &others));
    found
}

/// Returns the nodes at fault among those that are equally believed.
fn between_equals(cluster: &Cluster, states: &States<'_>) -> Vec<Unconnected> {
    let errors: Vec<Finding> =
        rules::between(cluster, states).into_iter().filter(|found| found.severity == Severity::Error).collect();
    let pairs = errors.iter().filter_map(|finding| match &finding.nodes[..] {
        [one, other] => Some([one.as_str(), other.as_str()]),
        _ => None,
    });
    let at_fault = at_fault(&pairs.collect::<Vec<_>>());
    let mut found: BTreeMap<String, Unconnected> = BTreeMap::new();
    for Finding { nodes, message, hint, .. } in &errors {
        for node in nodes.iter().filter(|node| nodes.len() != 2 || at_fault.contains(node.as_str())) {
            let others: Vec<&String> = nodes.iter().filter(|other| *other != node).collect();
            let cause = match nodes.len() {
                1 => message.clone(),
                _ => format!("{node} and {}: {message}", nodeset::fold(&others)),
            };
            let fault = || Unconnected { node: node.clone(), cause, hint: hint.clone() };
            found.entry(node.clone()).or_insert_with(fault);
        }
    }
    found.into_values().collect()
}

/// Returns the nodes at fault where two do not reach each other: those that several others do not reach, and both of a pair
/// that is left.
fn at_fault<'a>(pairs: &[[&'a str; 2]]) -> BTreeSet<&'a str> {
    let mut found: BTreeSet<&str> = BTreeSet::new();
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
