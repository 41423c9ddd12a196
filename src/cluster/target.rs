//! The target of a command: the nodes that it is about.

use crate::error::Error;
use crate::inventory::{Cluster, Inventory, Node};
use crate::text::nodeset;

/// The nodes that a command is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// The whole inventory.
    pub inventory: Inventory,
    /// The selected nodes' names, in inventory order.
    pub selected: Vec<String>,
}

impl Target {
    /// Selects by `--on`.
    ///
    /// # Errors
    /// When the expression names no node.
    pub fn new(inventory: Inventory, on: Option<&str>) -> Result<Target, Error> {
        let all: Vec<String> = inventory.nodes.iter().map(|n| n.name.clone()).collect();
        let selected = match on {
            Some(expression) => nodeset::select(expression, &all, &inventory.groups).map_err(|why| {
                let hint = "names as in the inventory, node[01-16], @group, a,b, !c";
                Error::usage(format!("--on {}: {why}", nodeset::printable(expression)), hint)
            })?,
            None => all,
        };
        Ok(Target { inventory, selected })
    }

    /// The inventory with these nodes selected.
    #[must_use]
    pub fn only(&self, selected: impl IntoIterator<Item = String>) -> Target {
        Target { inventory: self.inventory.clone(), selected: selected.into_iter().collect() }
    }

    /// Other nodes, with the settings of the inventory's cluster.
    #[must_use]
    pub fn of_nodes(&self, nodes: Vec<Node>) -> Target {
        let selected = nodes.iter().map(|node| node.name.clone()).collect();
        Target { inventory: Inventory { nodes, groups: Default::default(), ..self.inventory.clone() }, selected }
    }

    /// This target with the master, where a job on several nodes may need it as its launcher: only there is the private
    /// key.
    #[must_use]
    pub fn with_launcher(&self) -> Target {
        let mut with = self.clone();
        let master = &self.inventory.master().name;
        if self.selected.len() > 1 && !self.selected.contains(master) {
            with.selected.push(master.clone());
        }
        with
    }

    /// This target with the master, which launches every job of the cluster's queue.
    #[must_use]
    pub fn with_master(&self) -> Target {
        let mut with = self.clone();
        let master = &self.inventory.master().name;
        if !self.selected.contains(master) {
            with.selected.push(master.clone());
        }
        with
    }

    /// The selected nodes; the master first, because rank 0 is there.
    pub fn nodes(&self) -> Vec<Node> {
        let mut nodes: Vec<Node> =
            self.inventory.nodes.iter().filter(|n| self.selected.contains(&n.name)).cloned().collect();
        nodes.sort_by_key(|n| !n.master);
        nodes
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.inventory.cluster
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expression_is_escaped_in_the_error() {
        let selected = |on| Target::new(Inventory::local("node1", "image"), Some(on));
        let message = |on| selected(on).expect_err("no node").to_string();
        assert!(message("node2").starts_with("--on node2: no node is named node2"), "{}", message("node2"));
        assert!(message("\u{1b}[31m").starts_with("--on \"\\u{1b}[31m\": "), "{}", message("\u{1b}[31m"));
    }
}
