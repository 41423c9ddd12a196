//! Rules on pairs of nodes: routes, names, packet sizes, logins and random ports.

use super::Severity::{Error, Warning};
use super::preflight::place;
use super::uniform::differing;
use super::{Details, Finding, NodeView};
use crate::inventory::Inventory;
use crate::keys::reachability::{FailedLogins, Matrix, hint};
use crate::node::network::is_virtual;

/// How the nodes see each other.
pub(super) fn examine(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let mut found = Vec::new();
    for view in views {
        let Some(details) = view.details else { continue };
        for other in views.iter().filter(|other| other.name() != view.name()) {
            found.extend(route(inventory, view, details, other));
            found.extend(name(view, details, other));
        }
    }
    let mtu = |view: &NodeView<'_>| view.details?.mtu.get(&place(inventory, view)?.interface).map(u32::to_string);
    let mtus = views.iter().filter_map(|view| Some((view.node, mtu(view)?))).collect();
    found.extend(differing(Warning, "mtu", "its interface has a different MTU", mtus).map(|finding| {
        finding.explain(
            "large packets may be lost: small ones pass, and the job hangs with the first large tensor",
            "set the same MTU on every node (sudo ip link set dev INTERFACE mtu N), also in the network configuration",
        )
    }));
    found
}

/// The interface by which packets to another node leave.
fn route(inventory: &Inventory, view: &NodeView<'_>, details: &Details, other: &NodeView<'_>) -> Option<Finding> {
    let (own, target) = (place(inventory, view)?.interface, place(inventory, other)?.address);
    let hint = "fix the route (ip route get ADDRESS on the node), or set `address` or `interface` of the [[node]]s";
    let interface = match details.routes.get(&target)? {
        Ok(interface) if *interface == own => return None,
        Ok(interface) => interface,
        Err(reason) => {
            let message = format!("has no route to {} ({target}): {reason}", other.name());
            return Some(view.error("route", message).explain("ranks on the two nodes cannot connect", hint));
        }
    };
    let message = format!("packets to {} ({target}) leave by {interface}", other.name());
    Some(if is_virtual(interface) {
        view.error("route", format!("{message}, which leads to no other machine")).explain(
            "a local network has the same addresses as the cluster, or both nodes have the same address: ranks hang",
            hint,
        )
    } else if details.strict.contains(&own) {
        let message = format!("{message} instead of {own}, and {own} drops incoming packets from there (rp_filter)");
        view.warning("route", message).explain(
            "the kernel drops such packets because they may be forged: ranks hang",
            format!("{hint}; or sudo sysctl net.ipv4.conf.{{all,{own}}}.rp_filter=2"),
        )
    } else {
        view.warning("route", format!("{message} instead of {own}")).explain(
            "requests and replies take different interfaces: this is slow, and firewalls may drop the replies",
            hint,
        )
    })
}

/// Another node's host name that resolves to another machine.
fn name(view: &NodeView<'_>, details: &Details, other: &NodeView<'_>) -> Option<Finding> {
    let hostname = &other.facts.hostname;
    let address = details.names.get(hostname)?;
    if !address.is_loopback() && other.facts.interface_of(*address).is_some() {
        return None;
    }
    Some(view.warning("names", format!("resolves {hostname} ({}) to {address}", other.name())).explain(
        "hvdctl uses addresses, but a program that connects by host name reaches the wrong machine",
        format!("correct {hostname} in /etc/hosts of the node, or in DNS"),
    ))
}

/// Logins from worker to worker that failed. Nodes whose worker is not running have a finding of their own.
pub fn logins(matrix: &Matrix, port: u16) -> Vec<Finding> {
    let finding = |row: FailedLogins| {
        let message = format!("cannot log in to {} on port {port}: {}", row.to, row.reason);
        let why = "the launcher starts ranks over these logins, and hangs if one of them does";
        Finding::of_nodes(Error, "login", row.sources, message).explain(why, hint(&row.reason, port))
    };
    matrix.rows().into_iter().map(finding).collect()
}

/// Connections on random ports that failed. `open`: the workers' port can be reached.
pub fn ports(matrix: &Matrix, open: Option<u16>) -> Vec<Finding> {
    let firewall = open.map_or(String::new(), |port| format!("a firewall allows port {port} but not the others; "));
    let finding = |row: FailedLogins| {
        let message = format!("cannot reach {} on random high ports: {}", row.to, row.reason);
        Finding::of_nodes(Error, "ports", row.sources, message).explain(
            format!("{firewall}ranks connect on random ports above 1023, and hang without a message if they cannot"),
            "allow TCP ports above 1023 between the nodes in both directions (the nodes' firewalls, security groups)",
        )
    };
    matrix.rows().into_iter().map(finding).collect()
}
