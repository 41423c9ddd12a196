//! The bandwidths that are low: compared with the cluster, the other direction, the past and the speed of the links,
//! and only as far as the measurements differ less among themselves.

use super::attribution::{MOST, attribute, covers};
use super::evidence::median;
use super::past::usual as usual_in_past;
use super::samples::{Edge, PairSample, samples};
use crate::bench::measurements::Measurements;
use crate::bench::verdict::{Accusation, Reference, Subject, Symptom};
use std::collections::{BTreeMap, BTreeSet};

/// A bandwidth below this share of what is normal is low, unless the measurements differ much among themselves.
const LOW: f64 = 0.7;

/// A bandwidth must also be this many standard deviations below: that of each pair of a node, and that of a pair alone.
pub(super) const DEVIATIONS: (f64, f64) = (2.5, 4.0);

/// A bandwidth below this share of what is normal is low, however much the measurements differ.
const CERTAIN: f64 = 0.1;

/// The share of the normal bandwidth with which one of its pairs proves a node to be fine, even if bandwidths vary too
/// much to be compared.
const FINE: f64 = 0.5;

/// In so small a cluster the pairs of a node are too few to confirm each other, and bandwidths that vary too much to be
/// compared may have been disturbed.
pub(super) const FEW_NODES: usize = 3;

/// From the median of differences from the centre, and from the mean of differences of two values, to the standard
/// deviation.
const TO_DEVIATION: (f64, f64) = (1.48, 0.89);

/// The noise above which bandwidths cannot be compared if processors have nothing left: the standard deviation of the
/// logarithm of transfers between the same nodes.
const INCOMPARABLE: f64 = 0.35;

/// A bandwidth below this share of that of the other direction is low, where processors have nothing left: they serve
/// one direction at a time.
const LOW_IF_SATURATED: f64 = 0.3;

/// A bandwidth below this share of the links' speed is low, where nothing else can be compared.
const LOW_FOR_LINK: f64 = 0.5;

/// The normal bandwidth of a pair's direction.
#[derive(Debug, Clone, Copy)]
struct Normal {
    value: f64,
    reference: Reference,
    /// The share of it below which the bandwidth is low.
    low: f64,
    /// The standard deviation of its logarithm.
    deviation: f64,
}

impl Normal {
    /// Returns true if a bandwidth is low by more than this many standard deviations.
    fn is_missed_by(&self, bandwidth: f64, deviations: f64) -> bool {
        bandwidth < self.value * self.low.min((-deviations * self.deviation).exp()).max(CERTAIN)
    }
}

/// The low bandwidths and their subjects.
pub(super) struct LowBandwidths {
    /// Findings that were measured while the processors had time left, or that such measurements confirm.
    pub(super) low: Vec<Accusation>,
    /// The other directions that are low, or may be: the processors had no time left.
    pub(super) unjudged: BTreeSet<Edge>,
}

/// Finds who has low bandwidths, by this many standard deviations, apart from those that have a known cause.
pub(super) fn bandwidths(
    measurements: &Measurements,
    samples: &BTreeMap<Edge, PairSample>,
    causes: &[Accusation],
    deviations: (f64, f64),
) -> LowBandwidths {
    let n = measurements.nodes.len();
    // a bandwidth that is low for a known cause says nothing of the other end
    let is_explained = |edge: &Edge| causes.iter().any(|cause| covers(cause.subject, *edge));
    let values: BTreeMap<Edge, f64> = samples
        .iter()
        .filter(|(edge, _)| !is_explained(edge))
        .filter_map(|(edge, of)| Some((*edge, of.bandwidth?)))
        .collect();
    let usual = usual(n, &values, samples);
    let normals: BTreeMap<Edge, Normal> = values
        .keys()
        .filter_map(|edge| Some((*edge, normal(measurements, samples, &values, &usual, *edge)?)))
        .collect();
    let below = |deviations: f64| -> BTreeSet<Edge> {
        values
            .iter()
            .filter(|(edge, value)| normals.get(edge).is_some_and(|of| of.is_missed_by(**value, deviations)))
            .map(|(edge, _)| *edge)
            .collect()
    };
    let (affected, certain) = (below(deviations.0), below(deviations.1));
    let doubtful = unproven(n, &values, &usual);
    let bandwidths = |low: Vec<Accusation>| {
        let hindered = affected.iter().filter(|edge| samples[*edge].is_hindered());
        let is_named = |edge: &&Edge| low.iter().any(|of| covers(of.subject, **edge));
        let unjudged = hindered.chain(&doubtful).filter(|edge| !is_named(edge)).copied().collect();
        LowBandwidths { low, unjudged }
    };
    // what processors without time left made slow accuses no one, but confirms what was measured without them
    let is_free = |edge: &Edge| !samples[edge].is_hindered();
    let is_mostly_judged = |edges: &[Edge]| 2 * edges.iter().filter(|edge| is_free(edge)).count() >= edges.len();
    let by_cluster = |edge: &Edge| normals[edge].reference == Reference::Cluster;
    let describe = |edges: &[Edge]| {
        let slowest = edges.iter().min_by(|a, b| values[*a].total_cmp(&values[*b]));
        let measured = median(edges.iter().map(|edge| values[edge]).collect()).unwrap_or_default();
        let (normal, reference) =
            slowest.map_or((0.0, Reference::Cluster), |edge| (normals[edge].value, normals[edge].reference));
        Symptom::Bandwidth { measured, normal, reference }
    };
    // where everything is slower than it was, no node is
    let others = affected.iter().filter(|edge| !by_cluster(edge)).count();
    if n > 2 && others as f64 >= MOST * values.len() as f64 {
        let edges: Vec<Edge> = affected.iter().copied().filter(|edge| !by_cluster(edge)).collect();
        let all = || Accusation { subject: Subject::Cluster, symptom: describe(&edges), reasons: Vec::new() };
        return bandwidths(Vec::from_iter(is_mostly_judged(&edges).then(all)));
    }
    let mut found = attribute(n, &values.keys().copied().collect(), &affected, is_free);
    found.retain(|(subject, edges)| match subject {
        Subject::Cluster => is_mostly_judged(edges),
        // many pairs confirm each other
        Subject::Node(..) if n > FEW_NODES => edges.iter().any(is_free),
        _ => edges.iter().any(|edge| is_free(edge) && certain.contains(edge)),
    });
    let accusation = |(subject, edges): (Subject, Vec<Edge>)| {
        let symptom = describe(&edges);
        Accusation { subject, symptom, reasons: Vec::new() }
    };
    bandwidths(found.into_iter().map(accusation).collect())
}

/// Returns the directions of nodes that no measurement shows to be fine, where bandwidths vary too much for small
/// differences to count.
fn unproven(n: usize, values: &BTreeMap<Edge, f64>, usual: &Usual) -> BTreeSet<Edge> {
    if usual.noise <= INCOMPARABLE {
        return BTreeSet::new();
    }
    let best = values.values().copied().max_by(f64::total_cmp);
    let normal = if n == 2 { best.unwrap_or_default() } else { usual.bandwidth };
    let is_fine =
        |is_own: &dyn Fn(&Edge) -> bool| values.iter().any(|(edge, value)| is_own(edge) && *value >= FINE * normal);
    let is_unproven = |edge: &&Edge| !is_fine(&|other| other.0 == edge.0) || !is_fine(&|other| other.1 == edge.1);
    values.keys().filter(is_unproven).copied().collect()
}

/// Returns what is normal for a pair's direction: what sets the highest bar for it. Where four nodes reach 10 Gb/s of
/// each other:
///
/// | known of the direction | normal | it is low below |
/// |---|---|---|
/// | nothing else | 10 Gb/s, as the others | 7 Gb/s |
/// | 20 Gb/s in three earlier benchmarks | 20 Gb/s, as it was | 14 Gb/s |
/// | 2 Gb/s in three earlier benchmarks | 10 Gb/s, as the others | 7 Gb/s |
fn normal(
    measurements: &Measurements,
    samples: &BTreeMap<Edge, PairSample>,
    values: &BTreeMap<Edge, f64>,
    usual: &Usual,
    edge: Edge,
) -> Option<Normal> {
    // the best of several transfers varies less
    let deviation = usual.noise * (2.0 / samples[&edge].transfers.max(1) as f64).sqrt();
    let plain = |value: f64, reference: Reference| Normal { value, reference, low: LOW, deviation };
    let mut found: Vec<Normal> = Vec::new();
    let n = measurements.nodes.len();
    if n > 2 {
        found.push(Normal { deviation: deviation.max(usual.spread), ..plain(usual.bandwidth, Reference::Cluster) });
    } else if let Some(back) = values.get(&(edge.1, edge.0)) {
        // between virtual interfaces the processors move the bytes, also where they have some time left
        let speed = |node: usize| measurements.nodes[node].before.as_ref()?.speed;
        let is_virtual = speed(edge.0).or(speed(edge.1)).is_none();
        let low = if samples[&edge].is_saturated || is_virtual { LOW_IF_SATURATED } else { LOW };
        found.push(Normal { low, ..plain(*back, Reference::Back) });
    }
    let name = |node: usize| measurements.nodes[node].name.clone();
    let past = measurements.past.get(&(name(edge.0), name(edge.1)));
    if let Some((value, spread)) = past.and_then(|past| usual_in_past(past)) {
        found.push(Normal { deviation: deviation.max(spread), ..plain(value, Reference::Past) });
    }
    let speed = |node: usize| measurements.nodes[node].before.as_ref()?.speed;
    if let Some(slower) = speed(edge.0).min(speed(edge.1)).filter(|_| n == 2 && !samples[&edge].is_saturated) {
        found.push(Normal { low: LOW_FOR_LINK, ..plain(f64::from(slower) * 1e6 / 8.0, Reference::Nominal) });
    }
    found.into_iter().max_by(|a, b| (a.value * a.low).total_cmp(&(b.value * b.low)))
}

/// Properties that a cluster's bandwidths share.
struct Usual {
    /// The bandwidth that most nodes reach in both directions, in bytes a second.
    bandwidth: f64,
    /// The spread of the bandwidths around those that their ends reach: the standard deviation of the logarithm,
    /// without outliers.
    spread: f64,
    /// The difference between transfers of the same nodes while processors have nothing left and scheduling decides, in
    /// the same unit.
    noise: f64,
}

fn usual(n: usize, values: &BTreeMap<Edge, f64>, samples: &BTreeMap<Edge, PairSample>) -> Usual {
    // what an end reaches with its better pairs: the others may be limited by the other end
    let reached = |of: &dyn Fn(&Edge) -> bool| {
        let mut own: Vec<f64> = values.iter().filter(|(edge, _)| of(edge)).map(|(_, value)| *value).collect();
        own.sort_by(|a, b| b.total_cmp(a));
        own.get(own.len() / 4).copied()
    };
    let out: Vec<Option<f64>> = (0..n).map(|node| reached(&|edge| edge.0 == node)).collect();
    let into: Vec<Option<f64>> = (0..n).map(|node| reached(&|edge| edge.1 == node)).collect();
    let residual = |(edge, value): (&Edge, &f64)| {
        let expected = out[edge.0]?.min(into[edge.1]?);
        Some((value / expected).ln().abs()).filter(|residual| residual.is_finite())
    };
    let differences: Vec<f64> = samples.values().flat_map(|sample| &sample.noise).copied().collect();
    let count = differences.len().max(1) as f64;
    // few values say little about what else may happen
    let caution = 1.0 + 3.0 / count;
    Usual {
        bandwidth: median(out.iter().chain(&into).copied().flatten().collect()).unwrap_or_default(),
        spread: TO_DEVIATION.0 * median(values.iter().filter_map(residual).collect()).unwrap_or_default(),
        noise: caution * TO_DEVIATION.1 * differences.iter().sum::<f64>() / count,
    }
}

/// Returns how much transfers between the same nodes differ, as the standard deviation of their logarithms. `None` if
/// they differ too much to be compared.
pub(super) fn noise(measurements: &Measurements) -> Option<f64> {
    let noise = usual(measurements.nodes.len(), &BTreeMap::new(), &samples(measurements)).noise;
    (noise <= INCOMPARABLE).then_some(noise)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measurements::tests::measured;

    #[test]
    fn what_is_normal_is_the_highest_bar() {
        let bar = |past: &[f64]| {
            let mut measured = measured(4, |_, _| Ok(10.0));
            let name = |node: usize| measured.nodes[node].name.clone();
            let pair = (name(0), name(1));
            measured.past.insert(pair, past.iter().map(|gigabits| gigabits * 1.25e8).collect());
            let samples = samples(&measured);
            let values: BTreeMap<Edge, f64> =
                samples.iter().filter_map(|(edge, sample)| Some((*edge, sample.bandwidth?))).collect();
            let normal = normal(&measured, &samples, &values, &usual(4, &values, &samples), (0, 1)).unwrap();
            let gigabits = |bytes_per_s: f64| (bytes_per_s / 1.25e8).round();
            (gigabits(normal.value), normal.reference, gigabits(normal.value * normal.low))
        };
        assert_eq!(bar(&[]), (10.0, Reference::Cluster, 7.0));
        assert_eq!(bar(&[20.0; 3]), (20.0, Reference::Past, 14.0));
        assert_eq!(bar(&[2.0; 3]), (10.0, Reference::Cluster, 7.0));
    }
}
