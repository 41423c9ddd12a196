//! Findings about the encrypted network: what its agents report, as rules of `doctor` and errors of `up`.

use crate::model::check::Check;
use crate::model::finding::{Finding, Severity};
use crate::model::mesh::{NetworkProblem, NetworkState, PeerPath, PeerState};
use crate::node::mesh::NodeMesh;
use crate::runtime::container::MESH;
use std::collections::{BTreeMap, BTreeSet};

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

/// Returns what is wrong with the network. `port`: its UDP port.
pub fn examine(port: u16, views: &[MeshView<'_>]) -> Vec<Finding> {
    let mut found: Vec<Finding> = views.iter().filter_map(|view| of_node(port, view)).collect();
    let states = views.iter().filter_map(|view| Some((view.name, view.mesh.current(view.now)?)));
    found.extend(between(port, &states.collect()));
    found
}

/// Returns why a node has no network.
fn of_node(port: u16, view: &MeshView<'_>) -> Option<Finding> {
    let error = |message: String| Finding::new(Severity::Error, Check::EncryptedNetwork, view.name, message);
    let why = "no other node reaches it";
    match view.mesh.current(view.now) {
        _ if !view.is_up => Some(error(format!("{MESH} does not run")).explain(why, "hvdctl up")),
        None => {
            let message = format!("the agent in {MESH} has written no state for a while");
            Some(error(message).explain(why, format!("see the logs of {MESH} on the node, then hvdctl up")))
        }
        Some(NetworkState { problem: Some(problem), .. }) => {
            let message = format!("it has no encrypted network: {}", problem.text);
            Some(error(message).explain(why, hint(problem, port)))
        }
        Some(state) if state.network != view.mesh.hash => {
            let message = "its agent does not know the network as it is now";
            Some(Finding::new(Severity::Warning, Check::EncryptedNetwork, view.name, message).explain("", "hvdctl up"))
        }
        Some(_) => None,
    }
}

/// Returns the next step for a node whose agent has this problem.
pub fn hint(problem: &NetworkProblem, port: u16) -> String {
    match problem.kind.as_str() {
        "no_tun" => "the node needs /dev/net/tun or WireGuard in its kernel: as root there, modprobe tun".to_owned(),
        "port_in_use" => format!(
            "`ss -lnup` on the node shows which program has it, and `wg show` another WireGuard; instead of {port}, \
             network_port in [cluster] may name another one"
        ),
        "address_in_use" => "another interface has its address: set network_range in [cluster]".to_owned(),
        _ => format!("the logs of {MESH} on the node show more"),
    }
}

/// Returns what is wrong between nodes. `states`: what their agents report.
pub fn between(port: u16, states: &BTreeMap<&str, &NetworkState>) -> Vec<Finding> {
    let mut found = Vec::new();
    // one that reports nothing is off, or has a finding of its own
    let peers = |name: &str| {
        let known = states.get(name).into_iter().flat_map(|state| &state.peers);
        known.filter(|(peer, _)| states.contains_key(peer.as_str()))
    };
    // nodes that reach no other one are one finding each, and not one for each other node
    let alone = |name: &str| {
        let mut paths = peers(name).map(|(_, peer)| peer.path);
        peers(name).count() > 1 && states[name].problem.is_none() && paths.all(|path| path == PeerPath::Unreachable)
    };
    for name in states.keys().filter(|name| alone(name)) {
        let arrives = peers(name).any(|(_, peer)| peer.received > 0);
        let what = if arrives { "packets arrive, and none of its own do elsewhere" } else { "no packet arrives" };
        let message = format!("it reaches no other node on UDP port {port}: {what}");
        found.push(unreached(vec![(*name).to_owned()], message, port));
    }
    let mut relayed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let reports = states.iter().map(|(name, state)| (*name, &state.peers)).collect();
    let both = |(a, b, _): &(&str, &str, _)| states.contains_key(a) && states.contains_key(b);
    for (a, b, [of_a, of_b]) in pairs(&reports).into_iter().filter(both) {
        let either = |path| [of_a, of_b].into_iter().flatten().any(|peer| peer.path == path);
        if either(PeerPath::Unreachable) && !alone(a) && !alone(b) {
            let message = format!("they do not reach each other on UDP port {port}{}", direction((a, of_a), (b, of_b)));
            found.push(unreached(vec![a.to_owned(), b.to_owned()], message, port));
        } else if either(PeerPath::Relayed) {
            let via = [of_a, of_b].into_iter().flatten().find_map(|peer| peer.via.clone());
            let trip = of_a.or(of_b).and_then(|peer| peer.round_trip_ms);
            let trip = trip.map_or_else(String::new, |trip| format!(" ({trip:.0} ms there and back)"));
            relayed.entry(via.unwrap_or_else(|| "another node".to_owned())).or_default().push(format!("{a}–{b}{trip}"));
        }
    }
    found.extend(relayed.into_iter().map(|(via, pairs)| {
        let message = format!("it passes on the packets between {}", pairs.join(", "));
        Finding::new(Severity::Note, Check::EncryptedNetwork, &via, message).explain(
            "their routers let them reach each other in no other way, which costs time and the speed of its line",
            format!("forward UDP port {port} to one of the two, and name that place as its `endpoint`"),
        )
    }));
    found
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

/// Returns the pairs of nodes of which at least one reports, with what each reports of the other.
fn pairs<'a>(reports: &Reports<'a>) -> Vec<(&'a str, &'a str, [Option<&'a PeerState>; 2])> {
    let ordered = |a: &'a str, b: &'a str| if a < b { (a, b) } else { (b, a) };
    let reported = reports.iter().flat_map(|(name, peers)| peers.keys().map(move |peer| ordered(name, peer)));
    let pairs: BTreeSet<(&str, &str)> = reported.collect();
    let of = |a: &str, b: &str| reports.get(a).and_then(|peers| peers.get(b));
    pairs.into_iter().map(|(a, b)| (a, b, [of(a, b), of(b, a)])).collect()
}

/// Returns in which direction packets are lost, if both report.
fn direction((a, of_a): (&str, Option<&PeerState>), (b, of_b): (&str, Option<&PeerState>)) -> String {
    let arrives = |peer: Option<&PeerState>| peer.map(|peer| peer.received > 0);
    match (arrives(of_a), arrives(of_b)) {
        (Some(false), Some(true)) => format!(": packets of {b} do not arrive at {a}"),
        (Some(true), Some(false)) => format!(": packets of {a} do not arrive at {b}"),
        (Some(false), Some(false)) => ": packets arrive in neither direction".to_owned(),
        _ => String::new(),
    }
}

/// Returns how the nodes reach each other, as a line; nothing where no agent reports.
pub fn summary(reports: &Reports<'_>) -> Option<String> {
    let (mut direct, mut relayed, mut unreachable) = (0, Vec::new(), Vec::new());
    for (a, b, of) in pairs(reports) {
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
            "encrypted network: {direct} of {total} pairs direct{}{}\n",
            list("relayed", &relayed),
            list("unreachable", &unreachable)
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
mod tests {
    use super::*;

    /// A node that reports this of each other one: `d`irect, `r`elayed through x, `u`nreachable, `h`alf: packets arrive.
    fn report(peers: &[(&str, char)]) -> NodeMesh {
        let peers: Vec<String> = peers
            .iter()
            .map(|(name, how)| match how {
                'd' => format!(r#""{name}":{{"state":"direct","received":9}}"#),
                'r' => format!(r#""{name}":{{"state":"relayed","via":"x","received":9,"round_trip_ms":41.6}}"#),
                'h' => format!(r#""{name}":{{"state":"unreachable","received":9}}"#),
                _ => format!(r#""{name}":{{"state":"unreachable","received":0}}"#),
            })
            .collect();
        let state = format!(r#"{{"time":100,"peers":{{{}}}}}"#, peers.join(","));
        NodeMesh { state: Some(serde_json::from_str(&state).unwrap()), ..NodeMesh::default() }
    }

    fn found(nodes: &[(&str, NodeMesh)]) -> Vec<String> {
        let mut views = Vec::new();
        for (name, mesh) in nodes {
            views.push(MeshView { name, mesh, now: 101.0, is_up: true });
        }
        examine(51820, &views).iter().map(|finding| format!("{} {finding}", finding.severity)).collect()
    }

    #[test]
    fn a_pair_is_named_with_the_direction_in_which_packets_are_lost() {
        let all = [
            ("a", report(&[("b", 'h'), ("x", 'd')])),
            ("b", report(&[("a", 'u'), ("x", 'd')])),
            ("x", report(&[("a", 'd'), ("b", 'd')])),
        ];
        let found = found(&all);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with(
                "error a,b: they do not reach each other on UDP port 51820: packets of a do not arrive at b"
            )
        );
    }

    #[test]
    fn a_node_that_reaches_no_other_one_is_one_finding() {
        let all = [
            ("a", report(&[("b", 'u'), ("x", 'u')])),
            ("b", report(&[("a", 'u'), ("x", 'd')])),
            ("x", report(&[("a", 'u'), ("b", 'd')])),
        ];
        let found = found(&all);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("error a: it reaches no other node on UDP port 51820: no packet arrives"));
    }

    #[test]
    fn a_node_that_is_off_accuses_no_other_one() {
        let all = [("a", report(&[("b", 'd'), ("off", 'u')])), ("b", report(&[("a", 'd'), ("off", 'u')]))];
        assert!(found(&all).is_empty(), "{:?}", found(&all));
        let two = [("a", report(&[("b", 'u'), ("off", 'u')])), ("b", report(&[("a", 'u'), ("off", 'u')]))];
        let listed = found(&two);
        assert!(listed.len() == 1 && listed[0].starts_with("error a,b: they do not reach each other"), "{listed:?}");
    }

    #[test]
    fn a_relaying_node_is_named() {
        let all = [
            ("a", report(&[("b", 'r'), ("x", 'd')])),
            ("b", report(&[("a", 'r'), ("x", 'd')])),
            ("x", report(&[("a", 'd'), ("b", 'd')])),
        ];
        let listed = found(&all);
        assert!(
            listed[0].starts_with("note x: it passes on the packets between a–b (42 ms there and back)"),
            "{listed:?}"
        );
        let states = all.iter().map(|(name, mesh)| (*name, &mesh.state.as_ref().unwrap().peers)).collect();
        let line = "encrypted network: 2 of 3 pairs direct, 1 relayed: a–b through x\n";
        assert_eq!(summary(&states).unwrap(), line);
    }

    #[test]
    fn a_node_without_a_network_says_why() {
        let with_problem = |kind: &str| {
            let state = format!(r#"{{"time":100,"problem":{{"kind":"{kind}","text":"in use"}}}}"#);
            NodeMesh { state: Some(serde_json::from_str(&state).unwrap()), ..NodeMesh::default() }
        };
        let taken = found(&[("a", with_problem("port_in_use"))]);
        assert!(
            taken[0].contains("it has no encrypted network: in use") && taken[0].contains("network_port"),
            "{taken:?}"
        );
        assert!(found(&[("a", with_problem("address_in_use"))])[0].contains("network_range"));
        assert!(found(&[("a", NodeMesh::default())])[0].contains("has written no state"));
        let (name, mesh) = ("a", &NodeMesh::default());
        let down = examine(1, &[MeshView { name, mesh, now: 1.0, is_up: false }]);
        assert!(down[0].message.contains("hmesh does not run"));
    }
}
