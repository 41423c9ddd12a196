//! The bandwidths of earlier benchmarks: what each node keeps of what it has sent, and what of that is normal.

use super::are_comparable;
use super::attribution::covers;
use super::evidence::median;
use super::samples::{Edge, samples};
use crate::bench::measurements::Measurements;
use crate::bench::verdict::NetworkVerdict;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of [`PastFile`].
const FORMAT: u32 = 1;

/// The most bytes that a node keeps.
pub const LARGEST: usize = 64 << 10;

/// The most values of each receiver.
const KEPT: usize = 32;

/// Fewer values do not say what is normal: one or two may have been disturbed.
const ENOUGH: usize = 3;

/// A node's bandwidths as a sender in earlier benchmarks, in bytes a second by the name of the receiver, the latest
/// last.
pub type Sent = BTreeMap<String, Vec<f64>>;

/// The file on a node.
#[derive(Serialize, Deserialize)]
struct PastFile {
    format: u32,
    /// The sender: the directory may be one that nodes share, or a copied disk's.
    node: String,
    bytes_per_s: Sent,
}

/// The reason why a node's file says nothing about the past.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// A newer hvdctl has written it. It is not replaced.
    Newer(u32),
    /// It is of another node.
    Foreign(String),
    /// It is damaged.
    Damaged,
}

/// Reads what this node has kept; an empty text is a node without a past.
///
/// # Errors
/// A text that cannot be read.
pub fn parse(text: &str, node: &str) -> Result<Sent, Unreadable> {
    #[derive(Deserialize)]
    struct PastVersion {
        format: u32,
    }
    if text.trim().is_empty() {
        return Ok(Sent::new());
    }
    let version: PastVersion = serde_json::from_str(text).map_err(|_| Unreadable::Damaged)?;
    if version.format > FORMAT {
        return Err(Unreadable::Newer(version.format));
    }
    let PastFile { node: sender, bytes_per_s: mut sent, .. } =
        serde_json::from_str(text).map_err(|_| Unreadable::Damaged)?;
    if sender != node {
        return Err(Unreadable::Foreign(sender));
    }
    sent.values_mut().for_each(|values| values.retain(|value| value.is_finite() && *value > 0.0));
    Ok(sent)
}

/// Returns what this node keeps from now on: the latest values with these, in at most [`LARGEST`] bytes. If there is
/// not enough room, receivers that were not measured now go first, and then the oldest values.
pub fn with(node: &str, mut sent: Sent, latest: &BTreeMap<String, f64>) -> String {
    for (receiver, value) in latest {
        sent.entry(receiver.clone()).or_default().push(value.round());
    }
    let shorten = |sent: &mut Sent, kept: usize| {
        sent.values_mut().for_each(|values| drop(values.drain(..values.len().saturating_sub(kept))));
    };
    let text = |sent: &Sent| {
        let stored = PastFile { format: FORMAT, node: node.to_owned(), bytes_per_s: sent.clone() };
        serde_json::to_string(&stored).unwrap_or_default()
    };
    shorten(&mut sent, KEPT);
    if text(&sent).len() > LARGEST {
        sent.retain(|receiver, _| latest.contains_key(receiver));
    }
    let mut kept = KEPT;
    while text(&sent).len() > LARGEST && kept > 0 {
        kept /= 2;
        shorten(&mut sent, kept);
        sent.retain(|_, values| !values.is_empty());
    }
    text(&sent)
}

/// Returns the bandwidths that are worth remembering, by sender and receiver. What is part of a finding is not: a node
/// that stays slow must not become normal. Neither are those that are not judged, or vary too much to be compared.
pub fn trusted(measurements: &Measurements, verdict: &NetworkVerdict) -> BTreeMap<Edge, f64> {
    if verdict.is_unclear || !are_comparable(measurements) {
        return BTreeMap::new();
    }
    let is_accused = |edge: Edge| verdict.accusations.iter().any(|accusation| covers(accusation.subject, edge));
    let is_known = |edge: &Edge| !is_accused(*edge) && !verdict.unjudged.contains(edge);
    let samples = samples(measurements).into_iter().filter(|(edge, _)| is_known(edge));
    samples.filter_map(|(edge, sample)| Some((edge, sample.bandwidth?))).collect()
}

/// Returns what is normal by these values: their median, and the standard deviation of their logarithms. `None` if they
/// are too few.
pub(super) fn usual(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < ENOUGH {
        return None;
    }
    let normal = median(values.to_vec())?;
    let count = values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value / normal).ln().powi(2)).sum();
    // few values say little about what else may happen
    let deviation = (1.0 + 2.0 / count) * (squares / count).sqrt();
    deviation.is_finite().then_some((normal, deviation))
}

#[cfg(test)]
mod tests {
    use super::super::blame;
    use super::*;
    use crate::bench::measurements::{Direction, NodeEvidence, Transfer, Usage};
    use crate::bench::verdict::{Accusation, Subject, Symptom, Way};

    fn sent(values: &[(&str, &[f64])]) -> Sent {
        values.iter().map(|(name, values)| ((*name).to_owned(), values.to_vec())).collect()
    }

    #[test]
    fn what_is_kept_is_read_again_and_the_oldest_go() {
        let mut text = String::new();
        for i in 1..=40 {
            let kept = with(
                "node1",
                parse(&text, "node1").unwrap(),
                &BTreeMap::from([("node2".to_owned(), f64::from(i) * 1e8 + 0.3)]),
            );
            assert!(kept.len() < LARGEST);
            text = kept;
        }
        let values = parse(&text, "node1").unwrap().remove("node2").unwrap();
        assert_eq!((values.len(), values[0], values[31]), (KEPT, 9e8, 4e9));
        assert!(text.starts_with("{\"format\":1,"), "{text}");
        assert_eq!(parse("\n", "node1"), Ok(Sent::new()));
        assert_eq!(parse(&text, "node3"), Err(Unreadable::Foreign("node1".to_owned())));
    }

    #[test]
    fn what_a_node_keeps_is_bounded() {
        let many = |n: usize, values: usize| -> Sent {
            (0..n).map(|i| (format!("{i:0>63}"), vec![123_456_789_012.0; values])).collect()
        };
        let latest: BTreeMap<String, f64> = [(format!("{:0>63}", 7), 1e9)].into();
        let text = with("a", many(2000, 32), &latest);
        assert!(text.len() <= LARGEST);
        let kept = parse(&text, "a").unwrap();
        assert_eq!((kept.len(), kept[&format!("{:0>63}", 7)].len()), (1, 32), "those of now have their past");

        let all: BTreeMap<String, f64> = many(600, 1).into_keys().map(|name| (name, 1e9)).collect();
        let kept = parse(&with("a", many(600, 32), &all), "a").unwrap();
        assert_eq!(kept.len(), 600);
        assert!(kept.values().all(|values| values.last() == Some(&1e9)));
        let all: BTreeMap<String, f64> = many(3000, 1).into_keys().map(|name| (name, 1e9)).collect();
        assert!(with("a", Sent::new(), &all).len() <= LARGEST);
    }

    #[test]
    fn what_cannot_be_read_is_no_past() {
        for text in [
            "{",
            "[]",
            "null",
            "{}",
            "{\"format\":1}",
            "{\"format\":1,\"node\":\"n\",\"bytes_per_s\":{\"a\":[\"x\"]}}",
            "\0\0",
        ] {
            assert_eq!(parse(text, "n"), Err(Unreadable::Damaged), "{text}");
        }
        assert_eq!(parse("{\"format\":2,\"values\":7}", "n"), Err(Unreadable::Newer(2)));
        let odd = parse("{\"format\":1,\"node\":\"n\",\"bytes_per_s\":{\"a\":[0,-1,5.5]},\"more\":1}", "n").unwrap();
        assert_eq!(odd, sent(&[("a", &[5.5])]));
    }

    /// Nodes with this bandwidth from one to another, in Gb/s.
    fn measured(n: usize, gigabits: impl Fn(usize, usize) -> f64) -> Measurements {
        let usage = Usage { idle: Some(0.8), steal: Some(0.0), busiest_idle: Some(0.5) };
        let edges = (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let direction = |(from, to)| Direction {
            from,
            to,
            transfers: vec![Transfer::of(4, gigabits(from, to) * 1.25e8, usage)],
            ..Direction::default()
        };
        let node = |node: usize| NodeEvidence { name: format!("node{}", node + 1), ..NodeEvidence::default() };
        let (nodes, directions) = ((0..n).map(node).collect(), edges.map(direction).collect());
        Measurements { nodes, directions, past: BTreeMap::new() }
    }

    fn with_past(mut measured: Measurements, from: &str, to: &str, gigabits: &[f64]) -> Measurements {
        let values = gigabits.iter().map(|value| value * 1.25e8).collect();
        measured.past.insert((from.to_owned(), to.to_owned()), values);
        measured
    }

    #[test]
    fn nothing_of_a_finding_is_remembered() {
        let good = measured(4, |_, _| 9.4);
        assert_eq!(trusted(&good, &blame::verdict(&good)).len(), 12);

        let slow = measured(4, |from, _| if from == 2 { 0.9 } else { 9.4 });
        let verdict = blame::verdict(&slow);
        assert!(!verdict.is_good());
        let remembered = trusted(&slow, &verdict);
        assert_eq!(remembered.len(), 9);
        assert!(remembered.keys().all(|(from, _)| *from != 2));

        // everything is slower than it was
        let mut all = measured(3, |_, _| 1.0);
        for (from, to) in [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)] {
            all = with_past(all, &format!("node{from}"), &format!("node{to}"), &[9.4, 9.3, 9.4]);
        }
        assert_eq!(trusted(&all, &blame::verdict(&all)), BTreeMap::new());

        let verdict = NetworkVerdict { is_unclear: true, ..NetworkVerdict::default() };
        assert_eq!(trusted(&good, &verdict), BTreeMap::new());
        // a busy processor disturbs both directions
        let subject = Subject::Node(1, Way::Both);
        let busy = Accusation { subject, symptom: Symptom::Local, reasons: vec!["busy".to_owned()] };
        let verdict = NetworkVerdict { accusations: vec![busy], ..NetworkVerdict::default() };
        assert_eq!(trusted(&good, &verdict).len(), 6);
    }

    #[test]
    fn only_a_past_that_says_enough_accuses() {
        let slow = || measured(2, |_, _| 3.0);
        let finding = |measured: &Measurements| blame::verdict(measured).accusations.first().map(|of| of.subject);
        for few in [&[][..], &[9.4], &[9.4, 9.4]] {
            assert_eq!(finding(&with_past(slow(), "node1", "node2", few)), None, "{few:?}");
        }
        let past = &[9.4, 9.3, 9.4];
        assert_eq!(finding(&with_past(slow(), "node1", "node2", past)), Some(Subject::Pair(0, 1, Way::Out)));
        assert_eq!(finding(&with_past(measured(2, |_, _| 8.9), "node1", "node2", past)), None);
        // where it always varied, this is no news
        assert_eq!(finding(&with_past(slow(), "node1", "node2", &[9.4, 2.8, 4.1, 9.0, 3.2])), None);
        // that of other nodes is none of these
        assert_eq!(finding(&with_past(slow(), "node1", "node3", past)), None);
    }

    #[test]
    fn a_node_that_stays_slow_is_found_again_and_again() {
        let mut kept: BTreeMap<Edge, String> = BTreeMap::new();
        for day in 0..60 {
            let mut today = measured(2, |from, _| if from == 0 && day >= 5 { 4.0 } else { 9.4 });
            for ((from, to), text) in &kept {
                let sent = parse(text, "n").unwrap().remove(&today.nodes[*to].name).unwrap();
                today.past.insert((today.nodes[*from].name.clone(), today.nodes[*to].name.clone()), sent);
            }
            let verdict = blame::verdict(&today);
            assert_eq!(verdict.is_good(), day < 5, "day {day}: {:?}", verdict.accusations);
            for ((from, to), value) in trusted(&today, &verdict) {
                let before = kept.get(&(from, to)).map(|text| parse(text, "n").unwrap()).unwrap_or_default();
                kept.insert((from, to), with("n", before, &BTreeMap::from([(today.nodes[to].name.clone(), value)])));
            }
        }
    }
}
