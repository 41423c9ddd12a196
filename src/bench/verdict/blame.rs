//! Finds who is slow: bandwidth(i→j) = min(what i can send, what j can receive), and alike for loss, delay and sizes
//! that do not pass. A node is named if most of its pairs in a direction are affected, otherwise the pairs are.

use super::attribution::{accuse, covers, includes};
use super::bandwidth::{DEVIATIONS, LowBandwidths, bandwidths};
use super::evidence::{self, Reason, median};
use super::samples::{Edge, PairSample, samples};
use crate::bench::measure::schedule;
use crate::bench::measure::schedule::Round;
use crate::bench::measurements::Measurements;
use crate::bench::verdict::{Accusation, NetworkVerdict, Subject, Symptom, Way};
use crate::text::units::count;
use std::collections::{BTreeMap, BTreeSet};

/// The number of times that [`suspects`] are measured again.
pub const AGAIN: usize = 2;

/// The maximum number of pairs that are measured alone each time, and of one node's pairs among them: the other nodes
/// wait, and two pairs confirm each other.
pub const ALONE: (usize, usize) = (6, 2);

/// The least share of lost datagrams that is loss, and the least number.
const LOSS: (f64, u32) = (0.002, 3);

/// The least excess of a round trip over the normal one that counts as long: a factor, and µs in addition.
const DELAY: (f64, f64) = (2.0, 200.0);

/// Nodes that are named by fewer pairs than this are measured again.
const FEW_PAIRS: usize = 4;

/// Finds who is slow.
pub fn verdict(measurements: &Measurements) -> NetworkVerdict {
    let samples = samples(measurements);
    let n = measurements.nodes.len();
    let mut accusations = unreachable(n, &samples);
    let causes = causes(measurements, &samples);
    let LowBandwidths { low, unjudged } = bandwidths(measurements, &samples, &causes, DEVIATIONS);
    accusations.extend(low);
    accusations.extend(causes);
    let reasons: Vec<Vec<Reason>> = (0..n).map(|node| evidence::reasons(measurements, node)).collect();
    let accusations = explain(accusations, &reasons);
    let measured = samples.values().filter(|sample| sample.is_measured()).count();
    let unmeasured = samples.len() - measured;
    let is_unclear = accusations.is_empty() && !unjudged.is_empty();
    let notes = notes(measurements, &samples, unmeasured, unjudged.len());
    NetworkVerdict { accusations, notes, measured, unmeasured, is_unclear, unjudged }
}

/// The pairs to measure again before a verdict is given, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspects {
    /// One after the other: processors had no time left, which others may have taken.
    pub alone: Vec<(usize, usize)>,
    /// With others at once.
    pub together: Vec<(usize, usize)>,
}

impl Suspects {
    /// Returns the number of pairs.
    pub fn count(&self) -> usize {
        self.alone.len() + self.together.len()
    }

    /// Returns the rounds in which they are measured.
    pub fn rounds(&self) -> Vec<Round> {
        let alone = self.alone.iter().map(|pair| vec![*pair]);
        schedule::again(&self.together).into_iter().chain(alone).collect()
    }
}

/// Returns the pairs to measure again: those that are named, and those of nodes that only few pairs name. A disturbance
/// while one of them was measured would look the same. What busy processors may have slowed down is measured alone, the
/// slowest first, as far as the time allows.
pub fn suspects(measurements: &Measurements) -> Suspects {
    let samples = samples(measurements);
    let n = measurements.nodes.len();
    let NetworkVerdict { mut accusations, unjudged, .. } = verdict(measurements);
    accusations.extend(bandwidths(measurements, &samples, &causes(measurements, &samples), (0.0, 0.0)).low);
    let of = |accusation: &Accusation| -> Vec<Edge> {
        let of_node = |node: usize| samples.keys().copied().filter(move |(a, b)| *a == node || *b == node);
        match (accusation.subject, &accusation.symptom) {
            (_, Symptom::Local) => Vec::new(),
            (Subject::Pair(a, b, _), _) => vec![(a, b)],
            (Subject::Node(node, _), _) if of_node(node).count() < 2 * FEW_PAIRS => of_node(node).collect(),
            (Subject::Node(..) | Subject::Cluster, _) => Vec::new(),
        }
    };
    let pair = |(a, b): Edge| (a.min(b), a.max(b));
    let mut together: BTreeSet<Edge> = accusations.iter().flat_map(of).map(pair).collect();
    let both = |(a, b): &Edge| [(*a, *b), (*b, *a)].into_iter().filter_map(|edge| samples.get(&edge));
    let is_busy = |pair: &&Edge| both(pair).any(|sample| sample.is_saturated);
    let busy: BTreeSet<Edge> = unjudged.into_iter().map(pair).chain(together.iter().filter(is_busy).copied()).collect();
    let mut slowest: Vec<(f64, Edge)> = Vec::new();
    for pair in busy {
        let bandwidths = both(&pair).filter_map(|sample| sample.bandwidth);
        slowest.push((bandwidths.min_by(f64::total_cmp).unwrap_or_default(), pair));
    }
    slowest.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut alone, mut times) = (Vec::new(), vec![0; n]);
    for (_, (a, b)) in slowest {
        if alone.len() < ALONE.0 && times[a].max(times[b]) < ALONE.1 {
            times[a] += 1;
            times[b] += 1;
            together.remove(&(a, b));
            alone.push((a, b));
        }
    }
    Suspects { alone, together: together.into_iter().collect() }
}

fn unreachable(n: usize, samples: &BTreeMap<Edge, PairSample>) -> Vec<Accusation> {
    let failed = samples.iter().filter(|(_, sample)| !sample.is_measured());
    let affected = failed.map(|(edge, _)| *edge).collect();
    accuse(n, samples.keys().copied().collect(), affected, |_, edges| {
        let error = edges.iter().find_map(|edge| samples[edge].error.clone());
        Symptom::Unreachable(error.unwrap_or_else(|| "no result".to_owned()))
    })
}

/// Returns the findings that explain a low bandwidth and are visible without it.
fn causes(measurements: &Measurements, samples: &BTreeMap<Edge, PairSample>) -> Vec<Accusation> {
    let n = measurements.nodes.len();
    [losses(n, samples), delays(n, samples), sizes(measurements, samples)].concat()
}

fn losses(n: usize, samples: &BTreeMap<Edge, PairSample>) -> Vec<Accusation> {
    let probed = samples.iter().filter(|(_, sample)| sample.sent > 0);
    let measured: BTreeSet<Edge> = probed.map(|(edge, _)| *edge).collect();
    let share = |edges: &[Edge]| {
        let (lost, sent) = edges.iter().map(|edge| &samples[edge]).fold((0u32, 0u32), |(lost, sent), sample| {
            (lost.saturating_add(sample.lost), sent.saturating_add(sample.sent))
        });
        (f64::from(lost) / f64::from(sent.max(1)), lost)
    };
    // two are enough for a pair of a node: others confirm them
    let affected =
        measured.iter().copied().filter(|edge| samples[edge].lost >= 2 && samples[edge].loss() >= LOSS.0 / 2.0);
    let found = accuse(n, measured.clone(), affected.collect(), |_, edges| Symptom::Loss(share(edges).0));
    let is_much = |accusation: &Accusation| {
        let edges: Vec<Edge> = measured.iter().copied().filter(|edge| covers(accusation.subject, *edge)).collect();
        let (share, lost) = share(&edges);
        share >= LOSS.0 && lost >= LOSS.1
    };
    found.into_iter().filter(is_much).collect()
}

/// Round trips have no direction.
fn delays(n: usize, samples: &BTreeMap<Edge, PairSample>) -> Vec<Accusation> {
    if n < 3 {
        return Vec::new();
    }
    let mut trips: BTreeMap<Edge, f64> = BTreeMap::new();
    for (edge, trip) in samples.iter().filter_map(|(edge, sample)| Some((edge, sample.round_trip?))) {
        for edge in [*edge, (edge.1, edge.0)] {
            let known = trips.entry(edge).or_insert(trip);
            *known = known.min(trip);
        }
    }
    let fastest =
        |node: usize| trips.iter().filter(|(edge, _)| edge.0 == node).map(|(_, trip)| *trip).min_by(f64::total_cmp);
    let Some(normal) = median((0..n).filter_map(fastest).collect()) else { return Vec::new() };
    let affected =
        trips.iter().filter(|(_, trip)| **trip > DELAY.0 * normal + DELAY.1).map(|(edge, _)| *edge).collect();
    accuse(n, trips.keys().copied().collect(), affected, |_, edges| {
        let measured = median(edges.iter().map(|edge| trips[edge]).collect()).unwrap_or_default();
        Symptom::Delay { measured, normal }
    })
}

fn sizes(measurements: &Measurements, samples: &BTreeMap<Edge, PairSample>) -> Vec<Accusation> {
    let mtu = |node: usize| measurements.nodes[node].before.as_ref()?.mtu;
    let of = |(edge, sample): (&Edge, &PairSample)| {
        let interfaces = mtu(edge.0)?.min(mtu(edge.1)?).min(sample.sendable?);
        Some((*edge, (sample.largest?, interfaces)))
    };
    let known: BTreeMap<Edge, (u32, u32)> = samples.iter().filter_map(of).collect();
    let affected = known.iter().filter(|(_, (path, interfaces))| path < interfaces).map(|(edge, _)| *edge).collect();
    accuse(measurements.nodes.len(), known.keys().copied().collect(), affected, |_, edges| {
        let worst = edges.iter().map(|edge| known[edge]).min().unwrap_or_default();
        Symptom::Mtu { path: worst.0, interfaces: worst.1 }
    })
}

/// Adds what nodes show of themselves. If node 1 has a link of half duplex, which proves that it is slow in both
/// directions:
///
/// | accused | named in the end | with the reason |
/// |---|---|---|
/// | node 1 sends slowly | node 1 sends and receives slowly | half duplex |
/// | node 0 sends slowly | node 0 sends slowly, and node 1 by itself | half duplex for node 1 |
/// | the pair 0 → 1 of two nodes | node 1 receives slowly | half duplex |
/// | nothing | node 1 by itself | half duplex |
fn explain(mut accusations: Vec<Accusation>, reasons: &[Vec<Reason>]) -> Vec<Accusation> {
    let text = |reason: &Reason| reason.text.clone();
    let fits = |way: Way, reason: &Reason| way == Way::Both || reason.way == Way::Both || reason.way == way;
    for accusation in &mut accusations {
        match accusation.subject {
            Subject::Node(node, way) => {
                let fitting = || reasons[node].iter().filter(|reason| fits(way, reason));
                // the cause is known better than its effects
                if matches!(accusation.symptom, Symptom::Bandwidth { .. })
                    && fitting().any(|of| of.is_proof && of.way == Way::Both)
                {
                    accusation.subject = Subject::Node(node, Way::Both);
                }
                accusation.reasons = fitting().map(text).collect();
            }
            Subject::Pair(a, b, way) => {
                let back = if way == Way::Out { Way::In } else { way };
                let of = |node: usize, way: Way| {
                    reasons[node].iter().filter(move |reason| reason.is_proof && fits(way, reason))
                };
                let (first, second): (Vec<_>, Vec<_>) =
                    (of(a, way).map(text).collect(), of(b, back).map(text).collect());
                let named = match (first.is_empty(), second.is_empty()) {
                    (false, true) => Some((Subject::Node(a, way), first)),
                    (true, false) => Some((Subject::Node(b, back), second)),
                    _ => None,
                };
                if let Some((subject, reasons)) = named.filter(|_| reasons.len() == 2) {
                    (accusation.subject, accusation.reasons) = (subject, reasons);
                }
            }
            Subject::Cluster => {}
        }
    }
    // what shows without any effect on the network
    for (node, reasons) in reasons.iter().enumerate() {
        let proofs: Vec<&Reason> = reasons.iter().filter(|reason| reason.is_proof).collect();
        let is_named = accusations.iter().any(|of| matches!(of.subject, Subject::Node(other, _) if other == node));
        if let (Some(first), false) = (proofs.first(), is_named) {
            let way = if proofs.iter().all(|reason| reason.way == first.way) { first.way } else { Way::Both };
            let reasons = proofs.into_iter().map(text).collect();
            accusations.push(Accusation { subject: Subject::Node(node, way), symptom: Symptom::Local, reasons });
        }
    }
    merge(accusations)
}

/// Keeps one finding for each subject's symptom, the strongest first. A low bandwidth follows from loss, from a long
/// way and from sizes that do not pass.
fn merge(mut accusations: Vec<Accusation>) -> Vec<Accusation> {
    let rank = |symptom: &Symptom| match symptom {
        Symptom::Unreachable(_) => 0,
        Symptom::Mtu { .. } => 1,
        Symptom::Loss(_) => 2,
        Symptom::Delay { .. } => 3,
        Symptom::Bandwidth { .. } => 4,
        Symptom::Local => 5,
    };
    accusations.sort_by(|a, b| {
        let strength = a.symptom.strength().total_cmp(&b.symptom.strength());
        strength.then(rank(&a.symptom).cmp(&rank(&b.symptom))).then(a.subject.cmp(&b.subject))
    });
    let explained: Vec<bool> = accusations
        .iter()
        .map(|effect| {
            let is_bandwidth = |of: &Accusation| matches!(of.symptom, Symptom::Bandwidth { .. });
            let explains = |cause: &Accusation| {
                let is_cause = if is_bandwidth(cause) {
                    cause.subject != effect.subject && !cause.reasons.is_empty()
                } else {
                    true
                };
                is_cause && includes(cause.subject, effect.subject)
            };
            is_bandwidth(effect) && accusations.iter().any(explains)
        })
        .collect();
    let mut explained = explained.into_iter();
    accusations.retain(|_| !explained.next().unwrap_or(false));
    accusations
}

/// Returns true if processors had no time left during most measurements.
fn saturated(samples: &BTreeMap<Edge, PairSample>) -> bool {
    let saturated = samples.values().filter(|sample| sample.is_measured() && sample.is_saturated);
    saturated.count() * 2 > samples.len()
}

/// Returns what limits the verdict.
fn notes(
    measurements: &Measurements,
    samples: &BTreeMap<Edge, PairSample>,
    unmeasured: usize,
    unjudged: usize,
) -> Vec<String> {
    let mut notes = Vec::new();
    if unmeasured > 0 {
        notes.push(format!("{} of {} could not be measured", unmeasured, count(samples.len(), "connection")));
    }
    if saturated(samples) {
        notes.push("the processors were busy while the network was measured: it may be faster than shown".to_owned());
    }
    if unjudged > 0 {
        notes.push(format!(
            "the processors were busy whenever {} of {} were measured: their bandwidth is not judged",
            unjudged,
            count(samples.len(), "connection")
        ));
    }
    let unprobed = samples.values().filter(|sample| sample.is_measured() && sample.sent == 0).count();
    if unprobed > 0 {
        notes.push(format!(
            "no UDP packets arrive over {}: their loss and largest size are unknown",
            count(unprobed, "connection")
        ));
    }
    let mtus: BTreeSet<u32> = measurements.nodes.iter().filter_map(|node| node.before.as_ref()?.mtu).collect();
    if mtus.len() > 1 {
        let all: Vec<String> = mtus.iter().map(u32::to_string).collect();
        notes.push(format!("the interfaces have different MTUs: {}", all.join(", ")));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::verdict::Reference;

    #[test]
    fn what_a_node_shows_of_itself_names_it() {
        let slow = |subject| Accusation {
            subject,
            symptom: Symptom::Bandwidth { measured: 1.0, normal: 10.0, reference: Reference::Cluster },
            reasons: Vec::new(),
        };
        let half = Reason { way: Way::Both, text: "half duplex".to_owned(), is_proof: true };
        let named = |nodes: usize, accused: Option<Subject>| {
            let mut reasons = vec![Vec::new(); nodes];
            reasons[1].push(half.clone());
            let found = explain(accused.into_iter().map(slow).collect(), &reasons);
            found.into_iter().map(|of| (of.subject, of.reasons.concat())).collect::<Vec<_>>()
        };
        let by = |subject| (subject, "half duplex".to_owned());
        assert_eq!(named(3, Some(Subject::Node(1, Way::Out))), [by(Subject::Node(1, Way::Both))]);
        assert_eq!(
            named(3, Some(Subject::Node(0, Way::Out))),
            [(Subject::Node(0, Way::Out), String::new()), by(Subject::Node(1, Way::Both))]
        );
        assert_eq!(named(2, Some(Subject::Pair(0, 1, Way::Out))), [by(Subject::Node(1, Way::In))]);
        assert_eq!(named(3, None), [by(Subject::Node(1, Way::Both))]);
    }
}
