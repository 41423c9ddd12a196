//! A value that is not the same on all nodes.

use crate::inventory::Node;
use crate::model::check::Check;
use crate::model::finding::{Finding, Severity};
use crate::text::nodeset;
use std::cmp::Reverse;

/// The finding about the nodes whose value is not that of most; it has all values as `gpu[01-07] 535.161 · gpu08
/// 550.54`. `None` if there is one value. In a tie, the master's value counts as right.
pub fn differing(severity: Severity, check: Check, what: &str, values: Vec<(&Node, String)>) -> Option<Finding> {
    let of_master = values.iter().find(|(node, _)| node.master).map(|(_, value)| value.clone());
    let mut groups = nodeset::alike(values.into_iter().map(|(node, value)| (value, node.name.clone())));
    groups.sort_by_key(|(value, nodes)| (Reverse(nodes.len()), Some(value) != of_master.as_ref()));
    if groups.len() < 2 {
        return None;
    }
    let texts: Vec<String> = groups.iter().map(|(value, nodes)| format!("{} {value}", nodeset::fold(nodes))).collect();
    let odd = groups.into_iter().skip(1).flat_map(|(_, nodes)| nodes).collect();
    Some(Finding::of_nodes(severity, check, odd, format!("{what}: {}", texts.join(" · "))))
}
