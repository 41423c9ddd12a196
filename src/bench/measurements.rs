//! The measurements of the network and the nodes, as `scripts/bench/network.py` prints them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The load of a machine's processors, as shares of their time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// The idle share.
    pub idle: Option<f64>,
    /// The share that the hypervisor gave to others.
    pub steal: Option<f64>,
    /// The idle share of the busiest processor.
    pub busiest_idle: Option<f64>,
}

/// Round trips of a small message, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoundTrip {
    /// Half of them were faster.
    pub median: f64,
    /// The fastest one.
    pub min: f64,
    /// One of a hundred was slower.
    pub p99: f64,
    /// The number of round trips.
    pub count: u32,
}

/// A transfer in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Transfer {
    /// The connections that were used at once.
    pub streams: u32,
    /// The bandwidth at the receiver.
    pub bytes_per_s: f64,
    /// The segments that the sender sent again.
    pub retransmits: Option<u64>,
    /// The segments that it sent.
    pub segments: Option<u64>,
    /// The maximum size of its segments, in bytes.
    pub snd_mss: Option<u32>,
    /// The MTU of the path, as the sender's kernel knows it.
    pub pmtu: Option<u32>,
    /// The sender's processors meanwhile.
    pub sender: Usage,
    /// The receiver's processors meanwhile.
    pub receiver: Usage,
}

#[cfg(test)]
impl Transfer {
    /// A transfer of which nothing but its speed is of interest.
    pub fn of(streams: u32, bytes_per_s: f64, usage: Usage) -> Transfer {
        Transfer {
            streams,
            bytes_per_s,
            retransmits: None,
            segments: None,
            snd_mss: None,
            pmtu: None,
            sender: usage,
            receiver: usage,
        }
    }
}

/// Numbered datagrams in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probes {
    /// The small ones that should arrive.
    pub sent: u32,
    /// The part of them that the sender itself refused or lost.
    pub unsent: u32,
    /// The number of datagrams that arrived.
    pub received: u32,
    /// The number of datagrams that arrived and for which the receiving program was too slow.
    pub overflowed: u32,
    /// The largest size that arrived, in bytes with headers.
    pub largest: Option<u32>,
    /// The largest size that the sender can send.
    pub sendable: Option<u32>,
}

impl Probes {
    /// Returns how many were lost on the way or by the sender.
    pub fn lost(&self) -> u32 {
        self.sent.saturating_sub(self.received.saturating_add(self.overflowed))
    }
}

/// A measurement of one direction of a pair. A direction may be measured several times.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Direction {
    /// The index of the sender.
    pub from: usize,
    /// The index of the receiver.
    pub to: usize,
    /// The reason why nothing could be measured.
    pub error: Option<String>,
    /// Round trips between the two.
    pub round_trip_us: Option<RoundTrip>,
    /// Transfers, with different numbers of streams.
    #[serde(default)]
    pub transfers: Vec<Transfer>,
    /// Datagrams, or `None` where none arrives at all.
    pub probes: Option<Probes>,
    /// Set if no other pair was measured at the same time.
    #[serde(skip)]
    pub alone: bool,
}

impl Direction {
    /// Returns the bandwidth of the fastest transfer in bytes a second: what disturbs a transfer never makes it faster.
    pub fn bandwidth(&self) -> Option<f64> {
        self.transfers.iter().map(|transfer| transfer.bytes_per_s).max_by(f64::total_cmp)
    }

    /// Returns the bandwidth of the fastest transfer over a single connection, in bytes a second.
    pub fn bandwidth_of_one(&self) -> Option<f64> {
        let single = self.transfers.iter().filter(|transfer| transfer.streams == 1);
        single.map(|transfer| transfer.bytes_per_s).max_by(f64::total_cmp)
    }
}

/// An interface as a kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its name.
    pub interface: String,
    /// Its nominal speed in Mb/s; `None` for a virtual one.
    pub speed: Option<u32>,
    /// `full` or `half`.
    pub duplex: Option<String>,
    /// The largest packet in bytes.
    pub mtu: Option<u32>,
    /// Its counters.
    #[serde(default)]
    pub counters: BTreeMap<String, Option<u64>>,
    /// Other interfaces that are up and have a higher speed.
    #[serde(default)]
    pub faster: BTreeMap<String, u32>,
}

/// A node's processor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compute {
    /// Its speed while the program had it, in loops a second.
    pub loops_per_s: f64,
    /// The share of the time that the program had it.
    pub share: f64,
    /// The speed of a copy in memory.
    pub copy_bytes_per_s: f64,
    /// The share of the time in which a limit on processors stopped the program.
    pub throttled: Option<f64>,
    /// The load of all processors.
    #[serde(flatten)]
    pub usage: Usage,
}

/// A node's data about itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeEvidence {
    /// Its name.
    pub name: String,
    /// Its interface before the measurement.
    pub before: Option<Link>,
    /// Its interface after the measurement.
    pub after: Option<Link>,
    /// Its processor.
    pub compute: Option<Compute>,
}

/// Everything that was measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurements {
    /// The nodes; directions have their indices.
    pub nodes: Vec<NodeEvidence>,
    /// The pairs' directions.
    pub directions: Vec<Direction>,
    /// The bandwidths of earlier benchmarks by names of sender and receiver, in bytes a second.
    pub past: BTreeMap<(String, String), Vec<f64>>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns measurements of some nodes. `gigabits` gives the bandwidth from one node to another, or the reason why
    /// it was not measured.
    pub fn measured(n: usize, gigabits: impl Fn(usize, usize) -> Result<f64, &'static str>) -> Measurements {
        let usage = Usage { idle: Some(0.8), steal: Some(0.0), busiest_idle: Some(0.5) };
        let transfer = |streams, bytes_per_s| Transfer {
            streams,
            bytes_per_s,
            retransmits: Some(3),
            segments: Some(2000),
            snd_mss: Some(1448),
            pmtu: Some(1500),
            sender: usage,
            receiver: usage,
        };
        let direction = |(from, to)| match gigabits(from, to) {
            Err(error) => Direction { from, to, error: Some(error.to_owned()), ..Direction::default() },
            Ok(gigabits) => Direction {
                from,
                to,
                error: None,
                round_trip_us: Some(RoundTrip { median: 62.0, min: 51.0, p99: 118.0, count: 1000 }),
                transfers: vec![transfer(1, gigabits * 1.2e8), transfer(4, gigabits * 1.25e8)],
                probes: Some(Probes {
                    sent: 1000,
                    received: 1000,
                    largest: Some(1500),
                    sendable: Some(1500),
                    ..Probes::default()
                }),
                alone: false,
            },
        };
        let node = |node: usize| NodeEvidence {
            name: format!("node{}", node + 1),
            before: Some(Link {
                interface: "eth0".into(),
                speed: Some(10_000),
                duplex: Some("full".into()),
                mtu: Some(1500),
                ..Link::default()
            }),
            after: None,
            compute: Some(Compute {
                loops_per_s: 18.2e6,
                share: 0.98,
                copy_bytes_per_s: 9.1e9,
                throttled: Some(0.0),
                usage,
            }),
        };
        let edges = (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to);
        Measurements {
            nodes: (0..n).map(node).collect(),
            directions: edges.map(direction).collect(),
            past: BTreeMap::new(),
        }
    }
}
