//! Compares the data of nodes.

use super::transfer::DataOnNode;
use crate::text::nodeset;
use std::collections::BTreeSet;

/// The name of a node, and the data that it has.
pub type NodeListing = (String, Vec<DataOnNode>);

/// Returns the names of all data.
pub fn names(nodes: &[NodeListing]) -> BTreeSet<&str> {
    nodes.iter().flat_map(|(_, listed)| listed).map(|data| data.name.as_str()).collect()
}

/// Returns the data of this name among those of a node.
pub fn named<'a>(listed: &'a [DataOnNode], name: &str) -> Option<&'a DataOnNode> {
    listed.iter().find(|data| data.name == name)
}

/// Returns the nodes with data that are not complete, or not those that most nodes have.
pub fn odd_nodes(nodes: &[NodeListing]) -> BTreeSet<&str> {
    let mut odd = BTreeSet::new();
    for name in names(nodes) {
        let common = common(nodes, name);
        let is_odd = |listed: &[DataOnNode]| common.is_none() || content(listed, name) != common;
        odd.extend(nodes.iter().filter(|(_, listed)| is_odd(listed)).map(|(node, _)| node.as_str()));
    }
    odd
}

/// Returns the hash of the data of this name that most nodes have.
fn common<'a>(nodes: &'a [NodeListing], name: &str) -> Option<&'a str> {
    let all = nodeset::alike(nodes.iter().map(|(node, listed)| (content(listed, name), node)));
    all.into_iter().filter(|(content, _)| content.is_some()).max_by_key(|(_, nodes)| nodes.len())?.0
}

/// Returns the hash of the data of this name, if the node has them complete.
fn content<'a>(listed: &'a [DataOnNode], name: &str) -> Option<&'a str> {
    named(listed, name).filter(|data| data.state == "complete")?.hash.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_odd_whose_data_most_others_do_not_have() {
        let of = |data: &[(&str, &str, &str)]| {
            let data = data.iter().map(|(name, state, hash)| DataOnNode {
                name: (*name).into(),
                state: (*state).into(),
                hash: Some((*hash).into()),
                files: 1,
                size: 1,
                age: None,
                origin: String::new(),
            });
            data.collect::<Vec<_>>()
        };
        let same = of(&[("a", "complete", "1")]);
        let odd = |others: &[Vec<DataOnNode>]| {
            let all = [&same, &same].into_iter().chain(others);
            let nodes: Vec<NodeListing> = all.zip(1..).map(|(data, n)| (format!("n{n}"), data.clone())).collect();
            odd_nodes(&nodes).into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(odd(&[]), "");
        assert_eq!(odd(&[same.clone(), of(&[])]), "n4", "it lacks them");
        assert_eq!(odd(&[of(&[("a", "complete", "2")]), of(&[("a", "changed", "1")])]), "n3 n4");
        assert_eq!(odd(&[of(&[("a", "complete", "1"), ("b", "incomplete", "1")])]), "n1 n2 n3", "no node has all of b");
    }
}
