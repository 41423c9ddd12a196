//! Findings about the encrypted network: what its agents report, as rules of `doctor` and errors of `up`.

use crate::inventory::Cluster;
use crate::model::check::Check;
use crate::model::finding::{Finding, Severity};
use crate::model::mesh::{NetworkProblem, NetworkState, PeerPath, PeerState, let_in};
use crate::node::mesh::NodeMesh;
use crate::text::nodeset;
use std::collections::{BTreeMap, BTreeSet};

/// Seconds for which what an agent has seen of a peer counts. While a peer is looked for, the next attempt follows within
/// seconds, but the places where it may be take turns.
const RECENT: f64 = 30.0;

/// Packets of fewer bytes are small: ordinary lines, also with PPPoE or a relaying node, let larger ones through.
const SMALL: u32 = 1280;

/// The part of a node in the network, as it was observed.
#[derive(Debug, Clone, Copy)]
pub struct MeshView<'a> {
    /// The node's name.
    pub name: &'a str,
    /// Its report.
    pub mesh: &'a NodeMesh,
    /// Its clock, in seconds since the epoch.
    pub now: f64,
    /// Set if the container runs.
    pub is_up: bool,
}

/// The reports of nodes about the others, by name.
type Reports<'a> = BTreeMap<&'a str, &'a BTreeMap<String, PeerState>>;

/// Returns what is wrong with the network.
pub fn examine(cluster: &Cluster, views: &[MeshView<'_>]) -> Vec<Finding> {
    let mut found: Vec<Finding> = views.iter().filter_map(|view| of_node(cluster, view)).collect();
    let states = views.iter().filter_map(|view| Some((view.name, view.mesh.current(view.now)?))).collect();
    found.extend(between(cluster, &states));
    found.extend(userspace(cluster, &states));
    found
}

/// Returns why a node has no network.
fn of_node(cluster: &Cluster, view: &MeshView<'_>) -> Option<Finding> {
    let error = |message: String| Finding::new(Severity::Error, Check::EncryptedNetwork, view.name, message);
    let (why, container) = ("no other node reaches it", &cluster.network_interface);
    match view.mesh.current(view.now) {
        _ if !view.is_up => Some(error(format!("{container} does not run")).explain(why, "hvdctl up")),
        None => {
            let message = format!("the agent in {container} has written no state for a while");
            Some(error(message).explain(why, format!("see the logs of {container} on the node, then hvdctl up")))
        }
        Some(NetworkState { problem: Some(problem), .. }) => {
            let message = format!("it has no encrypted network: {}", problem.text);
            Some(error(message).explain(why, hint(problem, cluster)))
        }
        Some(state) if state.network != view.mesh.hash => {
            let message = "its agent does not know the network as it is now";
            Some(Finding::new(Severity::Warning, Check::EncryptedNetwork, view.name, message).explain("", "hvdctl up"))
        }
        Some(NetworkState { exposed: Some(fault), .. }) => {
            let message = format!("machines on its other networks reach its address in the encrypted network: {fault}");
            let finding = Finding::new(Severity::Warning, Check::EncryptedNetwork, view.name, message);
            let hint = "a kernel with nf_tables keeps them away: as root there, modprobe nf_tables";
            Some(finding.explain("ranks and workers listen there and trust who connects", hint))
        }
        Some(_) => None,
    }
}

/// Returns the next step for a node whose agent has this problem.
pub fn hint(problem: &NetworkProblem, cluster: &Cluster) -> String {
    match problem.kind.as_str() {
        "no_tun" => "the node needs /dev/net/tun: as root there, modprobe tun".to_owned(),
        "port_in_use" => format!(
            "another WireGuard has it, perhaps another cluster's (`wg show` on the node), or a program (`ss -lnup`); instead \
             of {}, network_port in [cluster] may name another one",
            cluster.network_port
        ),
        "address_in_use" => "another interface has its address: set network_range in [cluster]".to_owned(),
        _ => format!("the logs of {} on the node show more", cluster.network_interface),
    }
}

/// The reports of the agents of all nodes, by name.
pub type States<'a> = BTreeMap<&'a str, &'a NetworkState>;

/// Returns what is wrong between nodes. `states`: what their agents report. One that reports nothing, or no network, is
/// off, or has a finding of its own.
pub fn between(cluster: &Cluster, states: &States<'_>) -> Vec<Finding> {
    let (port, interface) = (cluster.network_port, cluster.network_interface.as_str());
    let states: &States<'_> =
        &states.iter().filter(|(_, state)| state.problem.is_none()).map(|(name, state)| (*name, *state)).collect();
    let mut found = firewalls(interface, states);
    found.extend(unreachable(port, states));
    found.extend(relayed(port, states));
    found.extend(small_packets(states));
    found
}

/// Returns what a node reports of another one, if both report.
fn seen<'a>(states: &States<'a>, node: &str, peer: &str) -> Option<(&'a NetworkState, &'a PeerState)> {
    let state = states.get(node).filter(|_| states.contains_key(peer))?;
    Some((state, state.peers.get(peer)?))
}

/// Returns whether something has happened shortly before the agent reported.
fn is_recent(state: &NetworkState, at: Option<f64>) -> bool {
    at.is_some_and(|at| state.time - at < RECENT)
}

/// Returns whether a node's firewall drops what comes out of the network from another one: WireGuard gets its packets, and
/// the agent none of them.
fn drops_all(states: &States<'_>, node: &str, from: &str) -> bool {
    let (Some((state, peer)), Some((_, of_node))) = (seen(states, node, from), seen(states, from, node)) else {
        return false;
    };
    let is_apart = [peer, of_node].iter().any(|peer| peer.path == PeerPath::Unreachable);
    is_apart && is_recent(state, peer.handshake) && !is_recent(state, peer.heard)
}

/// Returns whether no TCP connection from another node gets to this one, though its agent answers.
fn drops_tcp(states: &States<'_>, node: &str, from: &str) -> bool {
    seen(states, from, node).is_some_and(|(_, peer)| peer.tcp == Some(false))
}

/// Returns the firewalls that drop what comes out of the network.
fn firewalls(interface: &str, states: &States<'_>) -> Vec<Finding> {
    let names: Vec<&str> = states.keys().copied().collect();
    let mut found = Vec::new();
    for node in &names {
        let all = |from: &str| drops_all(states, node, from);
        let tcp = |from: &str| drops_tcp(states, node, from) && !drops_tcp(states, from, node);
        for (what, drops) in [("packets", &all as &dyn Fn(&str) -> bool), ("TCP connections", &tcp)] {
            let from: Vec<&str> = names.iter().copied().filter(|from| drops(from)).collect();
            let whose = match from.len() {
                0 => continue,
                count if count + 1 == names.len() => String::new(),
                _ => format!(" from {}", nodeset::fold(&from)),
            };
            let message = format!("its firewall drops {what} that come out of {interface}{whose}");
            found.push(dropped(interface, vec![(*node).to_owned()], message));
        }
    }
    found.extend(without_tcp(interface, states, &names));
    found
}

/// Returns the pairs between which connections fail in both directions: one of the two firewalls may drop the answers as
/// well.
fn without_tcp(interface: &str, states: &States<'_>, names: &[&str]) -> Option<Finding> {
    let mut nodes = BTreeSet::new();
    let mut pairs = Vec::new();
    for (index, a) in names.iter().enumerate() {
        for b in &names[index + 1..] {
            if drops_tcp(states, a, b) && drops_tcp(states, b, a) {
                nodes.extend([(*a).to_owned(), (*b).to_owned()]);
                pairs.push(format!("{a}–{b}"));
            }
        }
    }
    let is_each = pairs.len() == nodes.len() * nodes.len().saturating_sub(1) / 2;
    let which = if is_each { String::new() } else { format!(" ({})", pairs.join(", ")) };
    let message = format!(
        "no TCP connection between them succeeds{which}: their firewalls, or one of them, drop what comes out of {interface}"
    );
    (!pairs.is_empty()).then(|| dropped(interface, nodes.into_iter().collect(), message))
}

fn dropped(interface: &str, nodes: Vec<String>, message: String) -> Finding {
    Finding::of_nodes(Severity::Error, Check::EncryptedNetwork, nodes, message)
        .explain("WireGuard's packets arrive, and ranks that do not connect to each other hang", let_in(interface))
}

/// Returns the nodes and pairs whose packets do not arrive at WireGuard.
fn unreachable(port: u16, states: &States<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let peers = |name: &str| {
        let known = states.get(name).into_iter().flat_map(|state| &state.peers);
        known.filter(|(peer, _)| states.contains_key(peer.as_str()))
    };
    let is_firewalled = |a: &str, b: &str| drops_all(states, a, b) || drops_all(states, b, a);
    let arrives = |node: &str, from: &str| {
        seen(states, node, from).map(|(state, peer)| peer.received > 0 || is_recent(state, peer.arrived))
    };
    // nodes that reach no other one are one finding each, and not one for each other node
    let alone = |name: &str| {
        let mut all = peers(name);
        let is_lost =
            |(peer, of): (&String, &PeerState)| of.path == PeerPath::Unreachable && !is_firewalled(name, peer);
        peers(name).count() > 1 && all.all(is_lost)
    };
    for name in states.keys().filter(|name| alone(name)) {
        let what = match peers(name).any(|(peer, _)| arrives(name, peer) == Some(true)) {
            true => "packets arrive, and none of its own do elsewhere",
            false => "no packet arrives",
        };
        let message = format!("it reaches no other node on UDP port {port}: {what}");
        found.push(unreached(vec![(*name).to_owned()], message, port));
    }
    for (a, b, of) in reported(states) {
        let is_apart = of.into_iter().flatten().any(|peer| peer.path == PeerPath::Unreachable);
        if is_apart && !is_firewalled(a, b) && !alone(a) && !alone(b) {
            let lost = direction((a, arrives(a, b)), (b, arrives(b, a)));
            let message = format!("they do not reach each other on UDP port {port}{lost}");
            found.push(unreached(vec![a.to_owned(), b.to_owned()], message, port));
        }
    }
    found
}

/// Returns the nodes that pass on packets of others.
fn relayed(port: u16, states: &States<'_>) -> Vec<Finding> {
    let mut relayed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (a, b, of) in reported(states) {
        let known = || of.into_iter().flatten();
        let is = |path| known().any(|peer| peer.path == path);
        if is(PeerPath::Relayed) && !is(PeerPath::Unreachable) {
            let via = known().find_map(|peer| peer.via.clone()).unwrap_or_else(|| "another node".to_owned());
            let trip = known().next().and_then(|peer| peer.round_trip_ms);
            let trip = trip.map_or_else(String::new, |trip| format!(" ({trip:.0} ms there and back)"));
            relayed.entry(via).or_default().push(format!("{a}–{b}{trip}"));
        }
    }
    let finding = |(via, pairs): (String, Vec<String>)| {
        let message = format!("it passes on the packets between {}", pairs.join(", "));
        Finding::new(Severity::Note, Check::EncryptedNetwork, &via, message).explain(
            "their routers let them reach each other in no other way, which costs time and the speed of its line",
            format!("forward UDP port {port} to one of the two, and name that place as its `endpoint`"),
        )
    };
    relayed.into_iter().map(finding).collect()
}

/// Returns the pairs between which only small packets pass. Others need no words: the routes of the nodes carry the size.
fn small_packets(states: &States<'_>) -> Option<Finding> {
    let mut nodes = BTreeSet::new();
    let mut pairs = Vec::new();
    for (a, b, of) in reported(states) {
        let known = || of.into_iter().flatten().filter(|peer| peer.path != PeerPath::Unreachable);
        if let Some(size) = known().filter_map(|peer| peer.mtu).min().filter(|size| *size < SMALL) {
            nodes.extend([a.to_owned(), b.to_owned()]);
            pairs.push(format!("{a}–{b} {size} bytes"));
        }
    }
    let message = format!("only small packets pass between them: {}", pairs.join(", "));
    let finding = Finding::of_nodes(Severity::Note, Check::EncryptedNetwork, nodes.into_iter().collect(), message);
    (!pairs.is_empty()).then(|| {
        finding.explain(
            "the nodes send no larger ones, so nothing is lost, but each costs as much processor time as a large one",
            "where both are on lines for packets of 1500 bytes, look for a tunnel or a VPN on the way",
        )
    })
}

/// Returns the nodes on which a program encrypts, and not the kernel.
fn userspace(cluster: &Cluster, states: &States<'_>) -> Option<Finding> {
    let is_slow = |state: &NetworkState| state.kind.as_deref() == Some("userspace");
    let nodes: Vec<String> =
        states.iter().filter(|(_, state)| is_slow(state)).map(|(name, _)| (*name).to_owned()).collect();
    let message = "the kernel has no WireGuard, so a program encrypts".to_owned();
    (!nodes.is_empty()).then(|| {
        Finding::of_nodes(Severity::Note, Check::EncryptedNetwork, nodes, message).explain(
            "that is slower, and takes processor time from the ranks",
            format!(
                "Linux 5.6 and later have it: `sudo modprobe wireguard` shows whether this kernel does; then restart the \
                 container {}",
                cluster.network_interface
            ),
        )
    })
}

fn unreached(nodes: Vec<String>, message: String, port: u16) -> Finding {
    Finding::of_nodes(Severity::Error, Check::EncryptedNetwork, nodes, message).explain(
        "ranks that do not reach each other hang",
        format!(
            "open UDP port {port} in the firewalls of both, or of a third node that both reach; behind a router, forward it \
             and name that place as `endpoint`"
        ),
    )
}

/// Returns the pairs of nodes that both report.
fn reported<'a>(states: &States<'a>) -> Vec<(&'a str, &'a str, [Option<&'a PeerState>; 2])> {
    let reports = states.iter().map(|(name, state)| (*name, &state.peers)).collect();
    pairs(&reports).into_iter().filter(|(a, b, _)| states.contains_key(a) && states.contains_key(b)).collect()
}

/// Returns the pairs of nodes of which at least one reports, with what each reports of the other.
fn pairs<'a>(reports: &Reports<'a>) -> Vec<(&'a str, &'a str, [Option<&'a PeerState>; 2])> {
    let ordered = |a: &'a str, b: &'a str| if a < b { (a, b) } else { (b, a) };
    let reported = reports.iter().flat_map(|(name, peers)| peers.keys().map(move |peer| ordered(name, peer)));
    let pairs: BTreeSet<(&str, &str)> = reported.filter(|(a, b)| a != b).collect();
    let of = |a: &str, b: &str| reports.get(a).and_then(|peers| peers.get(b));
    pairs.into_iter().map(|(a, b)| (a, b, [of(a, b), of(b, a)])).collect()
}

/// Returns in which direction packets are lost, if both report. Each node with whether packets of the other one arrive.
fn direction((a, at_a): (&str, Option<bool>), (b, at_b): (&str, Option<bool>)) -> String {
    match (at_a, at_b) {
        (Some(false), Some(true)) => format!(": packets of {b} do not arrive at {a}"),
        (Some(true), Some(false)) => format!(": packets of {a} do not arrive at {b}"),
        (Some(false), Some(false)) => ": packets arrive in neither direction".to_owned(),
        _ => String::new(),
    }
}

/// Returns how the nodes reach each other, as a line; nothing where no agent reports.
pub fn summary(reports: &Reports<'_>) -> Option<String> {
    let (mut direct, mut relayed, mut unreachable, mut without_tcp) = (0, Vec::new(), Vec::new(), Vec::new());
    for (a, b, of) in pairs(reports) {
        if of.into_iter().flatten().any(|peer| peer.tcp == Some(false)) {
            without_tcp.push(format!("{a}–{b}"));
        }
        let worst = of.into_iter().flatten().map(|peer| (rank(peer.path), peer)).max_by_key(|(rank, _)| *rank);
        match worst {
            Some((2, _)) => unreachable.push(format!("{a}–{b}")),
            Some((1, peer)) => {
                relayed.push(format!("{a}–{b} through {}", peer.via.as_deref().unwrap_or("another node")))
            }
            _ => direct += 1,
        }
    }
    let total = direct + relayed.len() + unreachable.len();
    let list = |what: &str, pairs: &[String]| match pairs {
        [] => String::new(),
        pairs => format!(", {} {what}: {}", pairs.len(), pairs.join(", ")),
    };
    (total > 0).then(|| {
        format!(
            "encrypted network: {direct} of {total} pairs direct{}{}{}\n",
            list("relayed", &relayed),
            list("unreachable", &unreachable),
            list("without TCP", &without_tcp)
        )
    })
}

/// Returns a number for a path, the worse the higher.
fn rank(path: PeerPath) -> u8 {
    match path {
        PeerPath::Direct => 0,
        PeerPath::Relayed => 1,
        PeerPath::Unreachable => 2,
    }
}

#[cfg(test)]
mod tests;
