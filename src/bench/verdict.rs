//! The verdict of a benchmark: the nodes and connections that slow the cluster down.
//!
//! [`blame`] finds who is slow, [`evidence`] why; [`answers`] reads what ranks print, and [`speeds`] finds slow
//! devices. [`past`] and [`baseline`] compare with earlier benchmarks, [`limits`] with what the inventory requires.

pub mod answers;
mod attribution;
mod bandwidth;
pub mod baseline;
pub mod blame;
pub mod evidence;
pub mod limits;
pub mod past;
mod samples;
#[cfg(test)]
mod simulation;
pub mod speeds;
#[cfg(test)]
mod tests;

use super::measurements::Measurements;
use crate::text::units::{count, gigabits, micros};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;

/// Returns whether the bandwidths of single nodes say anything of them, or vary too much because the processors had no
/// time left.
pub fn are_comparable(measured: &Measurements) -> bool {
    bandwidth::noise(measured).is_some()
}

/// A direction as seen from one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Data that it sends.
    Out,
    /// Data that it receives.
    In,
    /// Both.
    Both,
}

/// The subject of a finding: the part of the cluster that is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Everything.
    Cluster,
    /// A node.
    Node(usize, Way),
    /// The connection from one node to another: one of its ends, or something between them.
    Pair(usize, usize, Way),
}

/// The symptom of a slow subject.
#[derive(Debug, Clone, PartialEq)]
pub enum Symptom {
    /// No measurement was possible.
    Unreachable(String),
    /// Its bandwidth is low. Both values are in bytes a second.
    Bandwidth {
        /// The measured bandwidth.
        measured: f64,
        /// The normal bandwidth.
        normal: f64,
        /// The source of the normal bandwidth.
        reference: Reference,
    },
    /// This share of the datagrams is lost.
    Loss(f64),
    /// Its round trips are long. Both values are in µs.
    Delay {
        /// The measured round trip.
        measured: f64,
        /// The normal round trip.
        normal: f64,
    },
    /// Packets larger than this do not arrive, but the interfaces send them.
    Mtu {
        /// The largest size that arrives.
        path: u32,
        /// The largest size that the interfaces send.
        interfaces: u32,
    },
    /// The node itself shows what is wrong.
    Local,
}

/// The source of the bandwidth with which another one is compared.
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
    /// The part of the cluster that is slow.
    pub subject: Subject,
    /// The symptom that shows it.
    pub symptom: Symptom,
    /// Likely reasons, from evidence.
    pub reasons: Vec<String>,
}

/// The result of a benchmark of the network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkVerdict {
    /// The slow subjects, the strongest finding first. Empty if there are none.
    pub accusations: Vec<Accusation>,
    /// The limits of the verdict: measurements that failed, and saturated processors.
    pub notes: Vec<String>,
    /// The pairs of nodes that were measured, and those that could not be.
    pub measured: usize,
    /// The pairs of nodes that could not be measured.
    pub unmeasured: usize,
    /// Set if no one is accused and some directions are not judged.
    pub is_unclear: bool,
    /// The directions, from one node to another, that may be slow: whenever they were measured, the processors had no
    /// time left.
    pub unjudged: BTreeSet<(usize, usize)>,
}

impl NetworkVerdict {
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
