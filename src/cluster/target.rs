//! The target of a command: the nodes that it is about.

use crate::error::Error;
use crate::inventory::{Cluster, Inventory, Node};
use crate::text::nodeset;
use std::collections::BTreeMap;

/// The nodes that a command is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// The whole inventory.
    pub inventory: Inventory,
    /// The selected nodes' names, in inventory order.
    pub selected: Vec<String>,
    /// The nodes that each role of a job may have, by `--on ROLE=NODES`; other roles may have all of them.
    pub of_roles: BTreeMap<String, Vec<String>>,
}

impl Target {
    /// Selects by `--on`. With `ROLE=NODES,…` these are all nodes that it names; those before the first role are for
    /// all roles that it does not name.
    ///
    /// # Errors
    /// When the expression names no node, or a role twice.
    pub fn new(inventory: Inventory, on: Option<&str>) -> Result<Target, Error> {
        let all: Vec<String> = inventory.nodes.iter().map(|n| n.name.clone()).collect();
        let Some(on) = on else { return Ok(Target { inventory, selected: all, of_roles: BTreeMap::new() }) };
        let wrong = |why: String| {
            let hint = "names as in the inventory, node[01-16], @group, a,b, !c; ROLE=NODES,ROLE=NODES by role";
            Error::usage(format!("--on {}: {why}", nodeset::printable(on)), hint)
        };
        let select = |expression: &str| nodeset::select(expression, &all, &inventory.groups).map_err(wrong);
        let (for_all, roles) = by_role(on).map_err(wrong)?;
        let mut of_roles = BTreeMap::new();
        for (role, expression) in roles {
            of_roles.insert(role.to_owned(), select(&expression)?);
        }
        let is_for_all = of_roles.is_empty() || !for_all.is_empty();
        let for_all = if is_for_all { select(&for_all)? } else { Vec::new() };
        let is_selected = |node: &&String| for_all.contains(node) || of_roles.values().flatten().any(|of| of == *node);
        let selected = all.iter().filter(is_selected).cloned().collect();
        Ok(Target { inventory, selected, of_roles })
    }

    /// Checks that no role has nodes of its own.
    ///
    /// # Errors
    /// With the first one that has.
    pub fn refuse_roles(&self) -> Result<(), Error> {
        match self.of_roles.keys().next() {
            None => Ok(()),
            Some(role) => Err(Error::usage(
                format!("--on {role}=…: only train starts roles"),
                "use --on NODES, for all ranks and for what is not a job",
            )),
        }
    }

    /// The inventory with these nodes selected.
    #[must_use]
    pub fn only(&self, selected: impl IntoIterator<Item = String>) -> Target {
        Target { selected: selected.into_iter().collect(), ..self.clone() }
    }

    /// Other nodes, with the settings of the inventory's cluster.
    #[must_use]
    pub fn of_nodes(&self, nodes: Vec<Node>) -> Target {
        let selected = nodes.iter().map(|node| node.name.clone()).collect();
        let inventory = Inventory { nodes, groups: Default::default(), ..self.inventory.clone() };
        Target { inventory, selected, of_roles: BTreeMap::new() }
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

/// Roles, each with the expression of its nodes.
type NodesByRole<'a> = Vec<(&'a str, String)>;

/// Splits `NODES,ROLE=NODES,…` into the nodes that are of no role, and those of each role.
fn by_role(expression: &str) -> Result<(String, NodesByRole<'_>), String> {
    if !expression.contains('=') {
        return Ok((expression.to_owned(), Vec::new()));
    }
    let (mut for_all, mut roles): (Vec<&str>, Vec<(&str, Vec<&str>)>) = (Vec::new(), Vec::new());
    for part in nodeset::split(expression) {
        match part.split_once('=') {
            Some((role, _)) if roles.iter().any(|(other, _)| *other == role) => {
                return Err(format!("the role {} is in it twice", nodeset::printable(role)));
            }
            Some((role, "")) => return Err(format!("no node follows {}=", nodeset::printable(role))),
            Some((role, nodes)) => roles.push((role, vec![nodes])),
            None => roles.last_mut().map_or(&mut for_all, |(_, nodes)| nodes).push(part),
        }
    }
    Ok((for_all.join(","), roles.into_iter().map(|(role, nodes)| (role, nodes.join(","))).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_may_have_nodes_of_their_own() {
        let inventory = Inventory::parse(
            "[cluster]\nname = 'lab'\nimage = 'i'\n[[node]]\nhost = 'n[1-6]'\n[groups]\nfast = 'n[1-3]'\n",
            std::path::Path::new("inventory.toml"),
        );
        let inventory = inventory.unwrap();
        let selected = |on: &str| {
            let target = Target::new(inventory.clone(), Some(on)).map_err(|error| error.to_string())?;
            let of_role = |(role, nodes): (&String, &Vec<String>)| format!("; {role} {}", nodeset::fold(nodes));
            let of_roles: String = target.of_roles.iter().map(of_role).collect();
            Ok::<_, String>(nodeset::fold(&target.selected) + &of_roles)
        };
        for (on, expected) in [
            ("@fast,!n2", "n[1,3]"),
            ("a=@fast,b=n5", "n[1-3,5]; a n[1-3]; b n5"),
            // what follows belongs to the role before it
            ("a=@fast,!n2,n4,b=n[4-5]", "n[1,3-5]; a n[1,3-4]; b n[4-5]"),
            ("b=!n1", "n[2-6]; b n[2-6]"),
            ("n6,a=n[1,3]", "n[1,3,6]; a n[1,3]"),
        ] {
            assert_eq!(selected(on).as_deref(), Ok(expected), "{on}");
        }
        for (on, words) in [
            ("a=n1,b=@slow", "--on a=n1,b=@slow: there is no group slow (groups: @fast)"),
            ("a=n7", "no node is named n7"),
            ("a=n1,a=n2", "the role a is in it twice"),
            ("a=,b=n1", "no node follows a="),
            ("a=n1,!n1", "no node is left"),
        ] {
            let error = selected(on).unwrap_err();
            assert!(error.contains(words) && error.contains("ROLE=NODES"), "{error}");
        }
        let target = Target::new(inventory, Some("a=n1")).unwrap();
        let refused = target.refuse_roles().unwrap_err().to_string();
        assert!(refused.starts_with("--on a=…: only train starts roles"), "{refused}");
        assert!(target.only(["n1".to_owned()]).of_roles.contains_key("a"));
    }

    #[test]
    fn the_expression_is_escaped_in_the_error() {
        let selected = |on| Target::new(Inventory::local("node1", "image"), Some(on));
        let message = |on| selected(on).expect_err("no node").to_string();
        assert!(message("node2").starts_with("--on node2: no node is named node2"), "{}", message("node2"));
        assert!(message("\u{1b}[31m").starts_with("--on \"\\u{1b}[31m\": "), "{}", message("\u{1b}[31m"));
    }
}
