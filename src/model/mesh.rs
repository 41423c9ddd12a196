//! The encrypted network of a cluster, as hvdctl and its agents on the nodes describe it to one another
//! (`scripts/mesh/agent.py`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// The interface of the network on every node, unless the inventory gives it another name, which begins so.
pub const INTERFACE: &str = "hmesh";

/// The addresses that no machine on the internet has: those of RFC 1918, and of RFC 6598.
pub const PRIVATE: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"];

/// Returns whether an interface is one of an encrypted network, whichever cluster's.
pub fn is_interface(name: &str) -> bool {
    name.starts_with(INTERFACE)
}

/// The kind of network that hvdctl makes between the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkKind {
    /// WireGuard, of the kernel or as a process.
    WireGuard,
}

/// A range of IPv4 addresses, as `10.0.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange {
    /// The first address, as a number.
    first: u32,
    /// The number of bits that all addresses share.
    bits: u32,
}

impl AddressRange {
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - self.bits).unwrap_or(0)
    }

    /// Returns whether an address is in it.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & self.mask() == self.first
    }

    /// Returns whether the two have an address in common.
    pub fn overlaps(self, other: AddressRange) -> bool {
        let mask = self.mask() & other.mask();
        self.first & mask == other.first & mask
    }

    /// Returns whether it has all addresses of another range.
    pub fn covers(self, other: AddressRange) -> bool {
        self.bits <= other.bits && other.first & self.mask() == self.first
    }

    /// Returns its addresses for nodes, in order: not the first and the last, which have a meaning of their own.
    pub fn hosts(self) -> impl Iterator<Item = Ipv4Addr> {
        let last = self.first | !self.mask();
        (self.first.saturating_add(1)..last).map(Ipv4Addr::from_bits)
    }

    /// Returns whether it has 8 to 65536 private addresses, as the range of a network.
    pub fn is_private(self) -> bool {
        let private = PRIVATE.iter().flat_map(|range| range.parse::<AddressRange>());
        (16..=29).contains(&self.bits) && private.into_iter().any(|private| private.covers(self))
    }

    /// Returns whether it stands for all addresses, as the default route does.
    pub fn is_everything(self) -> bool {
        self.bits == 0
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.first), self.bits)
    }
}

impl FromStr for AddressRange {
    type Err = String;

    /// Reads `10.0.0.0/16`, or a single address.
    fn from_str(text: &str) -> Result<AddressRange, String> {
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().map_err(|_| "an IPv4 address, `/` and a number of bits".to_owned())?;
        let bits = bits.parse().ok().filter(|bits| *bits <= 32).ok_or("a number of bits from 0 to 32")?;
        let range = AddressRange { first: address.to_bits(), bits };
        match range.first & range.mask() == range.first {
            true => Ok(range),
            false => {
                let first = Ipv4Addr::from_bits(range.first & range.mask());
                Err(format!("the first address of the range, which is {first}"))
            }
        }
    }
}

impl TryFrom<String> for AddressRange {
    type Error = String;

    fn try_from(text: String) -> Result<AddressRange, String> {
        text.parse()
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> String {
        range.to_string()
    }
}

/// A node of the network, as all others know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkNode {
    /// Its name.
    pub name: String,
    /// Its address in the network.
    pub address: Ipv4Addr,
    /// Its public key, in base64.
    pub public_key: String,
    /// Where it may be reached from outside, as `host:port`, the likeliest first.
    pub endpoints: Vec<String>,
    /// The addresses of its interfaces, for nodes behind one router.
    pub local: Vec<String>,
}

/// The network as a node knows it: `network.json` there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkFile {
    /// The cluster's name.
    pub cluster: String,
    /// The node itself.
    pub node: String,
    /// The interface on every node.
    pub interface: String,
    /// The UDP port of every node.
    pub port: u16,
    /// The range of the addresses.
    pub range: AddressRange,
    /// The node's own address.
    pub address: Ipv4Addr,
    /// The largest packet, in bytes; none: found out.
    pub mtu: Option<u32>,
    /// All nodes, itself included.
    pub nodes: Vec<NetworkNode>,
}

/// Returns what to do about a firewall that drops what comes out of the network, by its interface.
pub fn let_in(interface: &str) -> String {
    format!(
        "let in what comes out of {interface} on the node: `sudo ufw allow in on {interface}`, or `sudo firewall-cmd \
         --permanent --zone=trusted --add-interface={interface} && sudo firewall-cmd --reload`, or `nft insert rule inet \
         filter input iifname \"{interface}\" accept`"
    )
}

/// Returns whether a text is a public key of WireGuard: 32 bytes in base64.
pub fn is_key(text: &str) -> bool {
    STANDARD.decode(text).is_ok_and(|bytes| bytes.len() == 32)
}

/// How packets reach another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PeerPath {
    /// Without a detour.
    Direct,
    /// Through a third node, which cannot read them.
    Relayed,
    /// Not at all.
    #[serde(other)]
    Unreachable,
}

/// Another node, as the agent of a node sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PeerState {
    /// How packets reach it.
    #[serde(rename = "state")]
    pub path: PeerPath,
    /// Where they are sent.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The node that passes them on.
    #[serde(default)]
    pub via: Option<String>,
    /// The largest packet to it, in bytes.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Milliseconds to it and back.
    #[serde(default)]
    pub round_trip_ms: Option<f64>,
    /// Bytes that were sent to it.
    #[serde(default)]
    pub sent: u64,
    /// Bytes that arrived from it.
    #[serde(default)]
    pub received: u64,
    /// When WireGuard last shook hands with it, in seconds since the epoch by the node's clock.
    #[serde(default)]
    pub handshake: Option<f64>,
    /// When a packet of it last arrived, of WireGuard at least.
    #[serde(default)]
    pub arrived: Option<f64>,
    /// When a message of its agent last arrived, out of the encrypted network.
    #[serde(default)]
    pub heard: Option<f64>,
    /// True if a TCP connection to it succeeds; null if that is not known.
    #[serde(default)]
    pub tcp: Option<bool>,
}

/// Why an agent has no network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkProblem {
    /// Its kind: `no_tun`, `port_in_use`, `address_in_use`, `wireguard`.
    pub kind: String,
    /// The words of the system.
    pub text: String,
}

/// The state of the network on a node: `state.json`, which the agent there writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetworkState {
    /// The process of the agent, in its container.
    #[serde(default)]
    pub pid: Option<u32>,
    /// When it was written, in seconds since the epoch by the node's clock.
    pub time: f64,
    /// The SHA-256 of the `network.json` that it is about, in hexadecimal.
    #[serde(default)]
    pub network: Option<String>,
    /// `kernel` or `userspace`.
    #[serde(default)]
    pub kind: Option<String>,
    /// The largest packet, in bytes.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// The node's public key.
    #[serde(default)]
    pub public_key: Option<String>,
    /// Its fault, if it has one.
    #[serde(default)]
    pub problem: Option<NetworkProblem>,
    /// Why packets of other networks reach its addresses, if they do.
    #[serde(default)]
    pub exposed: Option<String>,
    /// The other nodes by name.
    #[serde(default)]
    pub peers: BTreeMap<String, PeerState>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_compared() {
        let range = |text: &str| text.parse::<AddressRange>();
        assert_eq!(range("10.1.0.0/16").unwrap().to_string(), "10.1.0.0/16");
        assert_eq!(range("10.1.0.9/16").unwrap_err(), "the first address of the range, which is 10.1.0.0");
        assert!(range("10.1.0.0/33").is_err() && range("10.1.0/24").is_err() && range("fd00::/8").is_err());
        let overlap = |a: &str, b: &str| range(a).unwrap().overlaps(range(b).unwrap());
        assert!(overlap("10.0.0.0/8", "10.1.0.0/16") && overlap("10.1.0.0/16", "10.0.0.0/8"));
        assert!(!overlap("10.1.0.0/16", "10.2.0.0/16") && !overlap("10.1.0.0/16", "192.168.1.1"));
        assert!(range("0.0.0.0/0").unwrap().is_everything() && overlap("0.0.0.0/0", "10.1.0.0/16"));
        let hosts: Vec<String> = range("10.1.0.0/30").unwrap().hosts().map(|host| host.to_string()).collect();
        assert_eq!(hosts, ["10.1.0.1", "10.1.0.2"]);
        assert_eq!(range("10.1.0.0/32").unwrap().hosts().count(), 0);
        assert!(range("10.1.0.0/16").unwrap().contains([10, 1, 200, 3].into()));
    }
}
