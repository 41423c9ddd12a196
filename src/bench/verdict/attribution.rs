//! Attribution: the subjects that explain why some connections are affected and others are not.

use super::samples::Edge;
use crate::bench::verdict::{Accusation, Subject, Symptom, Way};
use std::collections::{BTreeMap, BTreeSet};

/// A node is named if at least this share of its pairs in a direction is affected.
pub(super) const MOST: f64 = 0.7;

/// The whole cluster is named if at least this share of all is affected: no single node then explains it.
const ALL: f64 = 0.9;

/// Says which nodes, or else pairs, explain that these edges are affected. Of nodes that explain as much, the one with
/// more edges that are certain comes first.
pub(super) fn attribute(
    n: usize,
    measured: &BTreeSet<Edge>,
    affected: &BTreeSet<Edge>,
    is_certain: impl Fn(&Edge) -> bool,
) -> Vec<(Subject, Vec<Edge>)> {
    if n > 2 && !affected.is_empty() && affected.len() as f64 >= ALL * measured.len() as f64 {
        return vec![(Subject::Cluster, affected.iter().copied().collect())];
    }
    let end = |edge: &Edge, way: Way| if way == Way::Out { edge.0 } else { edge.1 };
    let (mut measured, mut affected) = (measured.clone(), affected.clone());
    let mut nodes: BTreeMap<usize, (Way, Vec<Edge>)> = BTreeMap::new();
    loop {
        let candidates = (0..n).flat_map(|node| [(node, Way::Out), (node, Way::In)]).filter_map(|(node, way)| {
            let of = |edges: &BTreeSet<Edge>| edges.iter().filter(|edge| end(edge, way) == node).count();
            let (bad, all) = (of(&affected), of(&measured));
            let certain = affected.iter().filter(|edge| end(edge, way) == node && is_certain(edge)).count();
            (bad >= 2 && bad as f64 >= MOST * all as f64).then(|| (bad as f64 / all as f64, (bad, certain), node, way))
        });
        let Some((_, _, node, way)) = candidates.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))) else { break };
        let explained: Vec<Edge> = affected.iter().copied().filter(|edge| end(edge, way) == node).collect();
        affected.retain(|edge| end(edge, way) != node);
        measured.retain(|edge| end(edge, way) != node);
        let entry = nodes.entry(node).or_insert_with(|| (way, Vec::new()));
        entry.0 = if entry.0 == way { way } else { Way::Both };
        entry.1.extend(explained);
    }
    // a node that is named in one direction explains the other one, too, with fewer pairs
    for (node, (way, edges)) in &mut nodes {
        let left: Vec<Edge> = affected.iter().copied().filter(|(a, b)| a == node || b == node).collect();
        let all = measured.iter().filter(|(a, b)| a == node || b == node).count();
        if !left.is_empty() && 2 * left.len() >= all {
            affected.retain(|edge| !left.contains(edge));
            *way = Way::Both;
            edges.extend(left);
        }
    }
    let mut found: Vec<_> = nodes.into_iter().map(|(node, (way, edges))| (Subject::Node(node, way), edges)).collect();
    while let Some((a, b)) = affected.pop_first() {
        let pair = match affected.remove(&(b, a)) {
            true => (Subject::Pair(a, b, Way::Both), vec![(a, b), (b, a)]),
            false => (Subject::Pair(a, b, Way::Out), vec![(a, b)]),
        };
        found.push(pair);
    }
    found
}

/// Turns affected edges into findings.
pub(super) fn accuse(
    n: usize,
    measured: BTreeSet<Edge>,
    affected: BTreeSet<Edge>,
    symptom: impl Fn(Subject, &[Edge]) -> Symptom,
) -> Vec<Accusation> {
    let found = attribute(n, &measured, &affected, |_| true).into_iter();
    let accusation = |(subject, edges): (Subject, Vec<Edge>)| {
        let symptom = symptom(subject, &edges);
        Accusation { subject, symptom, reasons: Vec::new() }
    };
    found.map(accusation).collect()
}

/// Returns true if an edge belongs to a subject.
pub(super) fn covers(subject: Subject, edge: Edge) -> bool {
    match subject {
        Subject::Cluster => true,
        Subject::Node(node, Way::Out) => edge.0 == node,
        Subject::Node(node, Way::In) => edge.1 == node,
        Subject::Node(node, Way::Both) => edge.0 == node || edge.1 == node,
        Subject::Pair(a, b, Way::Out) => edge == (a, b),
        Subject::Pair(a, b, Way::In) => edge == (b, a),
        Subject::Pair(a, b, Way::Both) => edge == (a, b) || edge == (b, a),
    }
}

/// Returns true if everything that affects the one subject affects the other.
pub(super) fn includes(cause: Subject, effect: Subject) -> bool {
    match (cause, effect) {
        (Subject::Node(a, way), Subject::Node(b, other)) => a == b && (way == Way::Both || way == other),
        (Subject::Node(node, _), Subject::Pair(a, b, _)) => node == a || node == b,
        (Subject::Pair(a, b, _), Subject::Pair(c, d, _)) => (a.min(b), a.max(b)) == (c.min(d), c.max(d)),
        _ => cause == effect,
    }
}
