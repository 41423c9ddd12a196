//! The names by which the nodes know each other in the containers.

use crate::inventory::{Inventory, Node};
use crate::node::facts::Facts;
use crate::node::network;
use serde::Serialize;
use std::net::IpAddr;

/// A node's address in the cluster and its names: `hosts.py` writes them to `/etc/hosts` of the containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostEntry(pub IpAddr, pub Vec<String>);

/// The names of observed nodes.
#[derive(Debug, Clone, Default)]
pub struct HostNames(Vec<(String, HostEntry)>);

impl HostNames {
    /// Collects the host names of these nodes, and their names in the inventory. A node without a place in the cluster
    /// is left out.
    pub fn new<'a>(inventory: &Inventory, nodes: impl Iterator<Item = (&'a Node, &'a Facts)>) -> HostNames {
        let entry = |(node, facts): (&Node, &Facts)| {
            let place = network::place(inventory, node, facts).ok()?;
            Some((node.name.clone(), HostEntry(place.address, names(&facts.hostname, &node.name))))
        };
        HostNames(nodes.filter_map(entry).collect())
    }

    /// Returns the entries as the containers of a node need them: its own first. None if its place is unknown, or it
    /// has no name.
    pub fn of_node(&self, node: &str) -> Option<Vec<&HostEntry>> {
        let (own, others): (Vec<_>, Vec<_>) = self.0.iter().partition(|(name, _)| name == node);
        let own = own.first().filter(|(_, HostEntry(_, names))| !names.is_empty())?;
        Some(std::iter::once(&own.1).chain(others.into_iter().map(|(_, entry)| entry)).collect())
    }
}

/// Returns the host name, the same without its domain, and the name in the inventory; not what stands for every
/// machine, and no address.
fn names(hostname: &str, name: &str) -> Vec<String> {
    let short = hostname.split('.').next().unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for name in [hostname, short, name] {
        let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
            && name.parse::<IpAddr>().is_err();
        if is_name && !is_localhost(name) && !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns whether a host name stands for every machine: installers leave `localhost` or `localhost.localdomain`
/// behind.
pub fn is_localhost(name: &str) -> bool {
    name.split('.').next().is_some_and(|first| first.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(hostname: &str, address: &str) -> Facts {
        Facts::parse(&format!("hostname {hostname}\nssh {address}\naddr eth0 {address}/24\n"))
    }

    #[test]
    fn each_node_has_its_own_names_first() {
        let mut inventory = Inventory::local("a", "i");
        let mut other = inventory.nodes[0].clone();
        other.name = "gpu-b".into();
        inventory.nodes.push(other);
        let facts = [facts("a", "10.0.0.1"), facts("ip-2.example.org", "10.0.0.2"), Facts::default()];
        let names = HostNames::new(&inventory, inventory.nodes.iter().zip(&facts));
        let json = |node| serde_json::to_string(&names.of_node(node)).unwrap();
        assert_eq!(json("gpu-b"), r#"[["10.0.0.2",["ip-2.example.org","ip-2","gpu-b"]],["10.0.0.1",["a"]]]"#);
        assert_eq!(json("a"), r#"[["10.0.0.1",["a"]],["10.0.0.2",["ip-2.example.org","ip-2","gpu-b"]]]"#);
        let lost = HostNames::new(&inventory, inventory.nodes.iter().zip(&facts[1..]));
        assert_eq!(lost.of_node("gpu-b"), None, "its place is unknown");
        assert_eq!(lost.of_node("a").unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_name_of_one_machine_is_left_out() {
        assert_eq!(names("localhost.localdomain", "10.0.0.7"), Vec::<String>::new());
        assert_eq!(names("LOCALHOST", "ana@gpu:22"), Vec::<String>::new());
        assert_eq!(names("gpu_1", "gpu_1"), ["gpu_1"]);
        assert_eq!(names("x y", "-n"), Vec::<String>::new());
    }
}
