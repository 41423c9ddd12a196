//! Under which address and on which interface a node takes part in a run.

use crate::core::facts::Facts;
use crate::core::inventory::{Gpus, Node};
use std::net::{IpAddr, Ipv4Addr};

/// A node's place on the cluster's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The address that the launcher and the other ranks use.
    pub address: IpAddr,
    /// The interface that carries it.
    pub interface: String,
}

/// The place of a node that runs all ranks itself: nothing has to leave it.
pub fn alone() -> Endpoint {
    Endpoint { address: Ipv4Addr::LOCALHOST.into(), interface: "lo".into() }
}

/// The inventory's address, else the address on the inventory's interface, else the one by which ssh reached the node:
/// that one is certain to be the node's own, whatever jump hosts or names lie between.
///
/// # Errors
/// In words: what is missing or does not fit.
pub fn endpoint(node: &Node, facts: &Facts) -> Result<Endpoint, String> {
    let address = match (&node.address, &node.interface) {
        (Some(address), _) => *address,
        (None, Some(interface)) => facts.address_on(interface).ok_or_else(|| {
            format!("the interface {interface} is not there or has no address (there: {})", interfaces(facts))
        })?,
        (None, None) => facts.ssh_address.ok_or("ssh did not say by which address it reached the node")?,
    };
    let interface = facts
        .interface_of(address)
        .ok_or_else(|| format!("no interface of the node has the address {address} (there: {})", interfaces(facts)))?;
    if let Some(wanted) = node.interface.as_deref().filter(|wanted| *wanted != interface) {
        return Err(format!("the address {address} is on {interface}, not on {wanted}"));
    }
    Ok(Endpoint { address, interface: interface.to_owned() })
}

fn interfaces(facts: &Facts) -> String {
    facts.addresses.iter().map(|(name, address)| format!("{name} {address}")).collect::<Vec<_>>().join(", ")
}

/// The ranks that a node may run: its slots, else its GPUs, else its cores.
pub fn slots(node: &Node, facts: &Facts) -> u32 {
    match (node.slots, node.gpus) {
        (Some(slots), _) => slots,
        (None, Gpus::Count(n @ 1..)) => n,
        (None, Gpus::Auto) if !facts.gpus.is_empty() => facts.gpus.len() as u32,
        (None, _) => facts.cores.max(1),
    }
}

/// The slots that are known without asking the node.
pub fn known_slots(node: &Node) -> Option<u32> {
    match (node.slots, node.gpus) {
        (Some(slots), _) => Some(slots),
        (None, Gpus::Count(n @ 1..)) => Some(n),
        _ => None,
    }
}

/// Whether the node's containers ask for GPUs.
pub fn wants_gpus(node: &Node, facts: &Facts) -> bool {
    match node.gpus {
        Gpus::Count(n) => n > 0,
        Gpus::Auto => !facts.gpus.is_empty(),
    }
}

/// The GPUs that the inventory promises and the node does not have, as a sentence.
pub fn missing_gpus(node: &Node, facts: &Facts) -> Option<String> {
    match node.gpus {
        Gpus::Count(n) if facts.nvidia_smi && (facts.gpus.len() as u32) < n => {
            Some(format!("the inventory promises {n}, nvidia-smi lists {}", facts.gpus.len()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::inventory::Inventory;

    #[test]
    fn the_inventory_goes_before_ssh() {
        let facts = Facts::parse(
            "ssh 192.168.0.5\naddr lo 127.0.0.1/8\naddr eth0 192.168.0.5/24\naddr ib0 10.0.0.5/24\ncores 8\n",
        );
        let mut node = Inventory::local("n", "i").nodes.remove(0);
        let place = |node: &Node| endpoint(node, &facts).map(|e| format!("{} {}", e.address, e.interface));
        assert_eq!(place(&node).unwrap(), "192.168.0.5 eth0");
        node.interface = Some("ib0".into());
        assert_eq!(place(&node).unwrap(), "10.0.0.5 ib0");
        node.address = Some("192.168.0.5".parse().unwrap());
        assert_eq!(place(&node).unwrap_err(), "the address 192.168.0.5 is on eth0, not on ib0");
        node.interface = Some("eth9".into());
        node.address = None;
        assert!(place(&node).unwrap_err().starts_with("the interface eth9 is not there"));
        node.address = Some("1.2.3.4".parse().unwrap());
        assert!(place(&node).unwrap_err().contains("no interface of the node has the address 1.2.3.4"));
        assert_eq!(slots(&node, &facts), 8);
        node.gpus = Gpus::Count(4);
        assert_eq!((slots(&node, &facts), known_slots(&node)), (4, Some(4)));
        assert_eq!(
            missing_gpus(&node, &Facts { nvidia_smi: true, ..facts.clone() }).unwrap(),
            "the inventory promises 4, nvidia-smi lists 0"
        );
    }
}
