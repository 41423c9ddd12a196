//! The schedule of a measurement: the pairs of nodes that are measured, and those of them that are measured at once.

/// Up to this many nodes every pair is measured.
const ALL_PAIRS: usize = 32;

/// The number of rounds that are measured in a larger cluster.
const SAMPLE: usize = 10;

/// Pairs that are measured at once: no node is in two of them.
pub type Round = Vec<(usize, usize)>;

/// Returns the rounds in which the nodes are measured: a round-robin tournament. Beyond 32 nodes only some of its
/// rounds, so that every node still meets several others, and measured pairs connect any two parts of the cluster. With
/// an odd number of nodes one of them rests in each round.
pub fn rounds(nodes: usize) -> Vec<Round> {
    if nodes < 2 {
        return Vec::new();
    }
    let places = nodes + nodes % 2;
    let all = places - 1;
    let round = |round: usize| {
        // the last place stays, the others move on by one each round
        let at = |place: usize| if place + 1 == places { place } else { (place + round) % all };
        let pair = |place: usize| (at(place), at(places - 2 - place));
        let pairs = (0..places / 2 - 1).map(pair).chain([(at(places / 2 - 1), places - 1)]);
        pairs.filter(|(a, b)| *a.max(b) < nodes).collect()
    };
    if nodes <= ALL_PAIRS {
        return (0..all).map(round).collect();
    }
    // rounds 0 and 1 alone connect all nodes
    let spread = (1..SAMPLE - 1).map(|i| i * all / (SAMPLE - 1));
    [0, 1].into_iter().chain(spread).map(round).collect()
}

/// Returns rounds in which these pairs are measured again.
pub fn again(pairs: &[(usize, usize)]) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for (a, b) in pairs {
        let is_free = |round: &&mut Round| round.iter().all(|pair| ![pair.0, pair.1].iter().any(|x| x == a || x == b));
        match rounds.iter_mut().find(is_free) {
            Some(round) => round.push((*a, *b)),
            None => rounds.push(vec![(*a, *b)]),
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[track_caller]
    fn met(nodes: usize) -> BTreeMap<(usize, usize), usize> {
        let mut met = BTreeMap::new();
        for round in rounds(nodes) {
            let mut busy = BTreeSet::new();
            for (a, b) in round {
                assert!(a != b && a < nodes && b < nodes && busy.insert(a) && busy.insert(b), "{nodes}: {a} {b}");
                *met.entry((a.min(b), a.max(b))).or_default() += 1;
            }
            assert!(busy.len() >= nodes - nodes % 2, "{nodes}: {busy:?}");
        }
        met
    }

    #[test]
    fn every_pair_meets_once() {
        assert!(rounds(0).is_empty() && rounds(1).is_empty());
        for nodes in 2..=32 {
            let met = met(nodes);
            assert_eq!(rounds(nodes).len(), nodes - 1 + nodes % 2, "{nodes}");
            assert_eq!(met.len(), nodes * (nodes - 1) / 2, "{nodes}");
            assert!(met.values().all(|times| *times == 1), "{nodes}: {met:?}");
        }
    }

    #[test]
    fn a_sample_covers_a_large_cluster() {
        for nodes in [33, 34, 50, 64, 99, 1000] {
            let met = met(nodes);
            assert_eq!(rounds(nodes).len(), SAMPLE);
            assert!(met.values().all(|times| *times == 1), "{nodes}");
            let others = |node| met.keys().filter(|(a, b)| *a == node || *b == node).count();
            assert!((0..nodes).all(|node| others(node) >= SAMPLE - 1), "{nodes}");
            // every node is reached from the first
            let mut reached = BTreeSet::from([0]);
            for _ in 0..nodes {
                let next = met.keys().filter(|(a, b)| reached.contains(a) != reached.contains(b));
                let next: Vec<usize> = next.flat_map(|(a, b)| [*a, *b]).collect();
                if next.is_empty() {
                    break;
                }
                reached.extend(next);
            }
            assert_eq!(reached.len(), nodes);
        }
    }

    #[test]
    fn pairs_are_measured_again_in_few_rounds() {
        assert_eq!(
            again(&[(0, 1), (2, 3), (1, 2), (0, 3), (4, 0)]),
            [vec![(0, 1), (2, 3)], vec![(1, 2), (0, 3)], vec![(4, 0)]]
        );
    }
}
