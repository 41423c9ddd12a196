//! Whether a node or a connection slows the cluster down: what `bench_network.py` measured, and the verdict on it.
//!
//! [`schedule`] says which pairs are measured at once, [`blame`] finds who is slow, [`evidence`] why; [`speeds`] finds slow devices.
//! [`past`] and [`baseline`] compare with earlier benchmarks, [`limits`] with what the inventory requires.

pub mod answers;
mod attribution;
mod bandwidth;
pub mod baseline;
pub mod blame;
pub mod collectives;
pub mod evidence;
pub mod limits;
pub mod past;
mod samples;
pub mod schedule;
#[cfg(test)]
mod simulation;
pub mod speeds;
#[cfg(test)]
mod tests;

use crate::text::units::count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How busy the processors of a machine were, as shares of their time.
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
    /// How many were measured.
    pub count: u32,
}

/// A transfer in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Transfer {
    /// The connections that were used at once.
    pub streams: u32,
    /// What arrived.
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
    /// Those of them that the sender itself refused or lost.
    pub unsent: u32,
    /// Those that arrived.
    pub received: u32,
    /// Those that arrived and for which the receiving program was too slow.
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

/// What was measured of one direction of a pair. The same direction may be measured several times.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Direction {
    /// The index of the sender.
    pub from: usize,
    /// The index of the receiver.
    pub to: usize,
    /// Why nothing could be measured.
    pub error: Option<String>,
    /// Round trips between the two.
    pub round_trip_us: Option<RoundTrip>,
    /// Transfers, with different numbers of streams.
    #[serde(default)]
    pub transfers: Vec<Transfer>,
    /// Datagrams, or `None` where none arrives at all.
    pub probes: Option<Probes>,
    /// Whether no other pair was measured at the same time.
    #[serde(skip)]
    pub alone: bool,
}

impl Direction {
    /// Returns the bandwidth of the fastest transfer in bytes a second: what disturbs a transfer never makes it faster.
    pub fn bandwidth(&self) -> Option<f64> {
        self.transfers.iter().map(|transfer| transfer.bytes_per_s).max_by(f64::total_cmp)
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
    /// How busy all processors were.
    #[serde(flatten)]
    pub usage: Usage,
}

/// What a node knows of itself.
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

impl Measurements {
    /// Returns whether the bandwidths of single nodes say anything of them, or vary too much because the processors had no
    /// time left.
    pub fn is_comparable(&self) -> bool {
        bandwidth::noise(self).is_some()
    }
}

/// A direction as seen from one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// What it sends.
    Out,
    /// What it receives.
    In,
    /// Both.
    Both,
}

/// Who is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Everything.
    Cluster,
    /// A node.
    Node(usize, Way),
    /// The connection from one node to another: one of its ends, or something between them.
    Pair(usize, usize, Way),
}

/// What is wrong with it.
#[derive(Debug, Clone, PartialEq)]
pub enum Symptom {
    /// No measurement was possible.
    Unreachable(String),
    /// Its bandwidth is low. Both values are in bytes a second.
    Bandwidth {
        /// What was measured.
        measured: f64,
        /// What would be normal.
        normal: f64,
        /// Where that is from.
        reference: Reference,
    },
    /// This share of the datagrams is lost.
    Loss(f64),
    /// Its round trips are long. Both values are in µs.
    Delay {
        /// What was measured.
        measured: f64,
        /// What would be normal.
        normal: f64,
    },
    /// Packets larger than this do not arrive, but the interfaces send them.
    Mtu {
        /// The largest size that arrives.
        path: u32,
        /// What the interfaces take.
        interfaces: u32,
    },
    /// The node itself shows what is wrong.
    Local,
}

/// What a bandwidth is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// The other nodes.
    Cluster,
    /// The other direction of the same pair.
    Back,
    /// Earlier benchmarks.
    Past,
    /// The speed of the links.
    Nominal,
}

/// A finding: who is slow, how that shows, and likely reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct Accusation {
    /// Who is slow.
    pub subject: Subject,
    /// How that shows.
    pub symptom: Symptom,
    /// Likely reasons, from evidence.
    pub reasons: Vec<String>,
}

/// The result of a benchmark of the network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Who is slow, the strongest finding first. Empty if no one is.
    pub accusations: Vec<Accusation>,
    /// What limits the verdict: what could not be measured, and saturated processors.
    pub notes: Vec<String>,
    /// The pairs of nodes that were measured, and those that could not be.
    pub measured: usize,
    /// The pairs of nodes that could not be measured.
    pub unmeasured: usize,
    /// Whether no one is accused, and some directions are not judged.
    pub is_unclear: bool,
    /// The directions, from one node to another, that may be slow: whenever they were measured, the processors had no
    /// time left.
    pub unjudged: BTreeSet<(usize, usize)>,
}

impl Verdict {
    /// Returns whether all was measured and compared, and no one is slow.
    pub fn is_good(&self) -> bool {
        self.accusations.is_empty() && !self.is_unclear
    }

    /// Returns the verdict as one sentence.
    pub fn sentence(&self, names: &[&str]) -> String {
        match self.accusations.split_first() {
            None if self.measured == 0 => "nothing could be measured".to_owned(),
            None if self.is_unclear => "the bandwidths vary too much to be compared".to_owned(),
            None if self.unmeasured > 0 => format!(
                "no measured node or connection is slow, but {} could not be measured",
                count(self.unmeasured, "connection")
            ),
            None => "no node and no connection is slower than the others".to_owned(),
            Some((first, [])) => first.sentence(names),
            Some((first, rest)) => format!("{}; and {} more", first.sentence(names), count(rest.len(), "finding")),
        }
    }
}

impl Accusation {
    /// Returns who is slow, how that shows, and why, as one sentence.
    pub fn sentence(&self, names: &[&str]) -> String {
        if let (Subject::Cluster, Symptom::Unreachable(cause)) = (self.subject, &self.symptom) {
            return format!("no connection could be measured ({cause})");
        }
        let name = |node: usize| names.get(node).copied().unwrap_or("?");
        let (who, way) = match self.subject {
            Subject::Cluster => ("every connection".to_owned(), Way::Both),
            Subject::Node(node, way) => (name(node).to_owned(), way),
            Subject::Pair(a, b, Way::Both) => (format!("{} ↔ {}", name(a), name(b)), Way::Both),
            Subject::Pair(a, b, Way::In) => (format!("{} → {}", name(b), name(a)), Way::Out),
            Subject::Pair(a, b, Way::Out) => (format!("{} → {}", name(a), name(b)), Way::Out),
        };
        let is_node = matches!(self.subject, Subject::Node(..));
        let what = self.symptom.text(is_node, way);
        let reasons = if self.reasons.is_empty() { String::new() } else { format!(": {}", self.reasons.join(", ")) };
        let doubt = match self.subject {
            Subject::Pair(..) if self.reasons.is_empty() => "; the measurements cannot tell which node it is",
            _ => "",
        };
        if what.is_empty() { format!("{who}{reasons}") } else { format!("{who} {what}{reasons}{doubt}") }
    }
}

impl Symptom {
    /// Returns the share of the normal speed that is left, by which findings are ordered: the strongest one has the
    /// smallest. What does not pass at all has none; a loss of 1 % counts as half the speed; what only the node itself
    /// shows comes last.
    pub(crate) fn strength(&self) -> f64 {
        let share = match self {
            Symptom::Unreachable(_) | Symptom::Mtu { .. } => 0.0,
            Symptom::Loss(share) => 1.0 / (1.0 + 100.0 * share),
            Symptom::Delay { measured, normal } => normal / measured,
            Symptom::Bandwidth { measured, normal, .. } => measured / normal,
            Symptom::Local => 1.0,
        };
        if share.is_nan() { 1.0 } else { share }
    }

    /// Returns the part of the sentence after the subject.
    fn text(&self, is_node: bool, way: Way) -> String {
        let verb = match (is_node, way) {
            (true, Way::Out) => "sends",
            (true, Way::In) => "receives",
            (true, Way::Both) => "sends and receives",
            (false, _) => "transfers",
        };
        match self {
            Symptom::Unreachable(cause) if is_node => format!("cannot be measured ({cause})"),
            Symptom::Unreachable(cause) => format!("could not be measured ({cause})"),
            Symptom::Bandwidth { measured, normal, reference } => {
                let normal = gigabits(*normal);
                let of = match reference {
                    Reference::Cluster => format!("the others reach {normal}"),
                    Reference::Back => format!("the other direction reaches {normal}"),
                    Reference::Past => format!("it was {normal} in earlier benchmarks"),
                    Reference::Nominal => format!("the link has {normal}"),
                };
                format!("{verb} only {}, {of}", gigabits(*measured))
            }
            Symptom::Loss(share) => {
                let of = match (is_node, way) {
                    (true, Way::Out) => "of what it sends",
                    (true, Way::In) => "of what it receives",
                    _ => "of the packets",
                };
                format!("loses {:.1} % {of}", share * 100.0)
            }
            Symptom::Delay { measured, normal } => {
                format!("answers in {}, the others in {}", micros(*measured), micros(*normal))
            }
            Symptom::Mtu { path, interfaces } => {
                format!("loses packets of more than {path} bytes, while the interfaces send up to {interfaces}")
            }
            Symptom::Local => String::new(),
        }
    }
}

/// A bandwidth for people: `9.41 Gb/s`, `941 Mb/s`.
pub fn gigabits(bytes_per_s: f64) -> String {
    match bytes_per_s * 8.0 / 1e6 {
        mega @ 99_950.0.. => format!("{:.0} Gb/s", mega / 1e3),
        mega @ 9_995.0.. => format!("{:.1} Gb/s", mega / 1e3),
        mega @ 999.5.. => format!("{:.2} Gb/s", mega / 1e3),
        mega @ 9.95.. => format!("{mega:.0} Mb/s"),
        mega => format!("{mega:.1} Mb/s"),
    }
}

/// A time for people: `85 µs`, `1.2 ms`.
pub fn micros(us: f64) -> String {
    if us < 999.5 { format!("{us:.0} µs") } else { format!("{:.1} ms", us / 1e3) }
}
