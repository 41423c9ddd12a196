//! A node's part of the cluster's encrypted network.

use crate::model::mesh::{AddressRange, INTERFACE, NetworkFile, NetworkState, PeerPath};
use crate::text::digest::hex;
use sha2::{Digest, Sha256};

/// Seconds after which a state that its agent has not renewed says nothing any more. The agent writes it every 2 s.
const STALE: f64 = 15.0;

/// The observed part of a node in the encrypted network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeMesh {
    /// The network as it knows it.
    pub file: Option<NetworkFile>,
    /// The hash of that file.
    pub hash: Option<String>,
    /// The state of the network there.
    pub state: Option<NetworkState>,
    /// The ranges that it has routes to, but for the default route and those of the network itself.
    pub routes: Vec<(AddressRange, String)>,
}

impl NodeMesh {
    /// Takes a line of the script, if it is about this.
    pub(super) fn read(&mut self, key: &str, value: &str) {
        match key {
            "network-file" => {
                self.file = serde_json::from_str(value).ok();
                self.hash = Some(hash(value));
            }
            "network-state" => self.state = serde_json::from_str(value).ok(),
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

/// Parses `10.0.0.0/8 via 10.0.0.1 dev eth0 …`, with the interface.
fn route(line: &str) -> Option<(AddressRange, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // `unreachable 10.0.0.0/8`
    let range = words.iter().take(2).find_map(|word| word.parse::<AddressRange>().ok())?;
    let device = words.iter().position(|word| *word == "dev").and_then(|at| words.get(at + 1)).copied();
    let device = device.unwrap_or(words[0]).to_owned();
    (!range.is_everything() && device != INTERFACE).then_some((range, device))
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
            ["10.0.0.0/24 eth0", "172.17.0.0/16 docker0", "10.9.0.3/32 tun0", "10.96.0.0/12 unreachable"]
        );
    }

    #[test]
    fn a_state_that_is_old_or_of_another_network_says_nothing() {
        let file =
            r#"{"cluster":"lab","node":"a","port":1,"range":"10.9.0.0/24","address":"10.9.0.1","mtu":null,"nodes":[]}"#;
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
