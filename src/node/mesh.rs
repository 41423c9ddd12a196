//! A node's part of the cluster's encrypted network.

use crate::inventory::NODE_NAME;
use crate::model::mesh::{AddressRange, NetworkFile, NetworkNode, NetworkState, PeerPath, is_interface, is_key};
use crate::text::digest::hex;
use crate::text::nodeset::MOST_NAMES;
use sha2::{Digest, Sha256};

/// Seconds after which a state that its agent has not renewed says nothing any more. The agent writes it every 2 s.
const STALE: f64 = 15.0;

/// The longest endpoint, and the most of one node.
const LONGEST_ENDPOINT: usize = 300;
const MOST_ENDPOINTS: usize = 16;
/// The most characters of a program's words that are shown.
const LONGEST_TEXT: usize = 500;
/// The longest round trip that makes sense, in milliseconds.
const LONGEST_TRIP: f64 = 1e6;

/// The observed part of a node in the encrypted network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeMesh {
    /// The network as it knows it.
    pub file: Option<NetworkFile>,
    /// The hash of that file.
    pub hash: Option<String>,
    /// The state of the network there.
    pub state: Option<NetworkState>,
    /// The ranges that it has routes to, each with its interface, but for the default route.
    pub routes: Vec<(AddressRange, String)>,
}

impl NodeMesh {
    /// Takes a line of the script, if it is about this.
    pub(super) fn read(&mut self, key: &str, value: &str) {
        match key {
            "network-file" => {
                self.file = serde_json::from_str(value).ok().filter(is_sound);
                self.hash = Some(hash(value));
            }
            "network-state" => self.state = state(value),
            "route" => self.routes.extend(route(value)),
            _ => {}
        }
    }

    /// Returns the state, if an agent has written it shortly before `now`, by the node's clock.
    pub fn current(&self, now: f64) -> Option<&NetworkState> {
        self.state.as_ref().filter(|state| now - state.time < STALE)
    }

    /// Returns whether the agent knows the network as the file describes it, reaches all nodes that count, and has found
    /// out whether TCP connects to them.
    pub fn is_settled(&self, now: f64, counts: impl Fn(&str) -> bool) -> bool {
        self.current(now).is_some_and(|state| {
            state.network == self.hash
                && state.problem.is_none()
                && state
                    .peers
                    .iter()
                    .all(|(name, peer)| !counts(name) || (peer.path != PeerPath::Unreachable && peer.tcp.is_some()))
        })
    }

    /// Returns whether it is settled, and ranks may connect to all nodes that count.
    pub fn is_well(&self, now: f64, counts: impl Fn(&str) -> bool) -> bool {
        let connects =
            |state: &NetworkState| state.peers.iter().all(|(name, peer)| peer.tcp == Some(true) || !counts(name));
        self.is_settled(now, &counts) && self.state.as_ref().is_some_and(connects)
    }
}

/// Returns the hash of a `network.json`, which is a line.
pub fn hash(line: &str) -> String {
    hex(&Sha256::digest(format!("{line}\n")))
}

/// Parses a `state.json`. Root of the node decides what is in it: what other nodes or a terminal could not take is left out.
pub fn state(text: &str) -> Option<NetworkState> {
    let mut state: NetworkState = serde_json::from_str(text).ok()?;
    state.public_key = state.public_key.filter(|key| is_key(key));
    if let Some(problem) = &mut state.problem {
        problem.text = problem.text.chars().take(LONGEST_TEXT).collect();
    }
    state.exposed = state.exposed.map(|text| text.chars().take(LONGEST_TEXT).collect());
    state.peers.retain(|name, _| is_name(name));
    for peer in state.peers.values_mut() {
        peer.via = peer.via.take().filter(|name| is_name(name));
        peer.endpoint = peer.endpoint.take().filter(|endpoint| is_endpoint(endpoint));
        peer.round_trip_ms = peer.round_trip_ms.filter(|trip| (0.0..LONGEST_TRIP).contains(trip));
    }
    Some(state)
}

/// Returns whether hvdctl could have written a `network.json`.
fn is_sound(file: &NetworkFile) -> bool {
    let is_node = |node: &NetworkNode| {
        let places = [&node.endpoints, &node.local];
        is_name(&node.name)
            && is_key(&node.public_key)
            && places
                .iter()
                .all(|places| places.len() <= MOST_ENDPOINTS && places.iter().all(|place| is_endpoint(place)))
    };
    is_name(&file.node)
        && is_interface(&file.interface)
        && file.nodes.len() <= MOST_NAMES
        && file.nodes.iter().all(is_node)
}

fn is_name(name: &str) -> bool {
    NODE_NAME.read(name).is_ok()
}

fn is_endpoint(text: &str) -> bool {
    text.len() <= LONGEST_ENDPOINT && text.chars().all(|c| c.is_ascii_graphic())
}

/// Parses `10.0.0.0/8 via 10.0.0.1 dev eth0 …`, with the interface.
fn route(line: &str) -> Option<(AddressRange, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // `unreachable 10.0.0.0/8`
    let range = words.iter().take(2).find_map(|word| word.parse::<AddressRange>().ok())?;
    let device = words.iter().position(|word| *word == "dev").and_then(|at| words.get(at + 1)).copied();
    let device = device.unwrap_or(words[0]).to_owned();
    (!range.is_everything()).then_some((range, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[(&str, &str)]) -> NodeMesh {
        let mut read = NodeMesh::default();
        lines.iter().for_each(|(key, value)| read.read(key, value));
        read
    }

    #[test]
    fn routes_are_read() {
        let found = read(&[
            ("route", "default via 10.0.0.1 dev eth0"),
            ("route", "10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.7"),
            ("route", "172.17.0.0/16 dev docker0 linkdown"),
            ("route", "10.90.0.0/16 dev hmesh proto kernel"),
            ("route", "10.9.0.3 dev tun0"),
            ("route", "unreachable 10.96.0.0/12 metric 5"),
            ("route", "0.0.0.0/0 dev eth1"),
        ]);
        let routes: Vec<String> = found.routes.iter().map(|(range, device)| format!("{range} {device}")).collect();
        assert_eq!(
            routes,
            [
                "10.0.0.0/24 eth0",
                "172.17.0.0/16 docker0",
                "10.90.0.0/16 hmesh",
                "10.9.0.3/32 tun0",
                "10.96.0.0/12 unreachable"
            ]
        );
    }

    #[test]
    fn what_root_of_a_node_invents_reaches_no_terminal_and_no_other_node() {
        let key = "jNQKmw1DXbVGOXzvfW4zEkVGXnJ4cUKXTlLgjP9qXVQ=";
        let node = |name: &str, key: &str, endpoint: &str| {
            format!(
                r#"{{"name":"{name}","address":"10.9.0.2","public_key":"{key}","endpoints":["{endpoint}"],"local":[]}}"#
            )
        };
        let file = |interface: &str, node: &str| {
            let file = format!(
                r#"{{"cluster":"lab","node":"a","interface":"{interface}","port":1,"range":"10.9.0.0/24","address":"10.9.0.1","mtu":null,"nodes":[{node}]}}"#
            );
            read(&[("network-file", &file)]).file
        };
        assert!(file("hmesh", &node("b", key, "gate:7")).is_some());
        for (interface, node) in [
            ("eth0", node("b", key, "gate:7")),
            ("hmesh", node("b\\u001b[2J", key, "gate:7")),
            ("hmesh", node("b", "key", "gate:7")),
            ("hmesh", node("b", key, "gate:7\\n")),
            ("hmesh", node("b", key, &"x".repeat(301))),
        ] {
            assert_eq!(file(interface, &node), None, "{interface} {node}");
        }
        let peer = r#"{"state":"relayed","via":"\u001b[2J","endpoint":"\u001b[2J","round_trip_ms":1e300}"#;
        let invented = state(&format!(
            r#"{{"time":1,"public_key":"key","problem":{{"kind":"x","text":"{}"}},"peers":{{"b":{peer},"\u202e":{peer}}}}}"#,
            "x".repeat(10_000)
        ));
        let invented = invented.unwrap();
        assert_eq!((invented.public_key, invented.problem.unwrap().text.len()), (None, LONGEST_TEXT));
        assert_eq!(invented.peers.keys().collect::<Vec<_>>(), ["b"]);
        let peer = &invented.peers["b"];
        assert_eq!((&peer.via, &peer.endpoint, peer.round_trip_ms), (&None, &None, None));
    }

    #[test]
    fn a_state_that_is_old_or_of_another_network_says_nothing() {
        let file = r#"{"cluster":"lab","node":"a","interface":"hmesh","port":1,"range":"10.9.0.0/24","address":"10.9.0.1","mtu":null,"nodes":[]}"#;
        let state = |time: u32, network: &str, path: &str| {
            format!(r#"{{"time":{time},"network":"{network}","peers":{{"b":{{"state":"{path}","tcp":true}}}}}}"#)
        };
        let settled =
            |state: &str| read(&[("network-file", file), ("network-state", state)]).is_settled(100.0, |_| true);
        let current = hash(file);
        assert!(settled(&state(99, &current, "direct")) && settled(&state(99, &current, "relayed")));
        assert!(!settled(&state(99, &current, "unreachable")) && !settled(&state(99, &current, "lost")));
        assert!(!settled(&state(80, &current, "direct")) && !settled(&state(99, "00", "direct")));
        assert!(!settled("{") && !NodeMesh::default().is_settled(100.0, |_| true));
        let with_one_off = read(&[("network-file", file), ("network-state", &state(99, &current, "unreachable"))]);
        assert!(with_one_off.is_settled(100.0, |name| name != "b") && with_one_off.is_well(100.0, |name| name != "b"));
        let tcp = |tcp: &str| {
            let state = state(99, &current, "direct").replace("true", tcp);
            let read = read(&[("network-file", file), ("network-state", &state)]);
            (read.is_settled(100.0, |_| true), read.is_well(100.0, |_| true))
        };
        assert_eq!([tcp("null"), tcp("false"), tcp("true")], [(false, false), (true, false), (true, true)]);
    }
}
