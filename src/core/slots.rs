//! Which rank runs where: slots per node, clamped to exactly as many ranks as were asked for.
//!
//! Under Gloo `horovodrun -np 2 -H a:2,b:2` starts four ranks, under MPI two; only when the slots that are handed to
//! the launcher add up to `-np` do both agree, so the surplus is cut off here.

use serde::{Deserialize, Serialize};

/// The share of one node in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Name of the node in the inventory.
    pub node: String,
    /// Ranks that run there; at least 1.
    pub ranks: u32,
    /// The lowest of these ranks; they are consecutive.
    pub first: u32,
}

/// The nodes of a run in rank order; the sum of the shares is exactly the number of ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Nodes with at least one rank, the master first.
    pub shares: Vec<Share>,
}

/// More ranks were asked for than there are slots.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{asked} ranks were asked for, the cluster has {available} slots ({})", list(.slots))]
pub struct TooFewSlots {
    /// What `-np` said.
    pub asked: u32,
    /// The sum over all nodes.
    pub available: u32,
    /// Slots per node, as they were counted.
    pub slots: Vec<(String, u32)>,
}

fn list(slots: &[(String, u32)]) -> String {
    let parts: Vec<String> = slots.iter().map(|(node, n)| format!("{node}: {n}")).collect();
    parts.join(", ")
}

/// Fills the nodes in the given order (the master first) until every rank has its slot.
///
/// # Errors
/// [`TooFewSlots`] when the slots do not suffice. `ranks` of 0 gives an empty placement.
pub fn place(slots: &[(String, u32)], ranks: u32) -> Result<Placement, TooFewSlots> {
    let available = slots.iter().fold(0u32, |sum, (_, n)| sum.saturating_add(*n));
    if ranks > available {
        return Err(TooFewSlots { asked: ranks, available, slots: slots.to_vec() });
    }
    let mut first = 0;
    let mut shares = Vec::new();
    for (node, slots) in slots {
        let ranks = (*slots).min(ranks - first);
        if ranks > 0 {
            shares.push(Share { node: node.clone(), ranks, first });
            first += ranks;
        }
    }
    Ok(Placement { shares })
}

impl Placement {
    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.shares.iter().map(|s| s.ranks).sum()
    }

    /// The node that `rank` is expected on, and its local rank there.
    pub fn node_of(&self, rank: u32) -> Option<(&str, u32)> {
        self.shares
            .iter()
            .find(|s| (s.first..s.first + s.ranks).contains(&rank))
            .map(|s| (s.node.as_str(), rank - s.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots(counts: &[u32]) -> Vec<(String, u32)> {
        counts.iter().enumerate().map(|(i, n)| (format!("n{i}"), *n)).collect()
    }

    #[test]
    fn the_first_node_is_filled_first() {
        let placement = place(&slots(&[2, 2]), 3).unwrap();
        let got: Vec<(u32, u32)> = placement.shares.iter().map(|s| (s.ranks, s.first)).collect();
        assert_eq!(got, [(2, 0), (1, 2)]);
        assert_eq!(placement.node_of(2), Some(("n1", 0)));
        assert_eq!(placement.node_of(3), None);
    }

    #[test]
    fn too_many_ranks_name_both_numbers() {
        let error = place(&slots(&[1, 2]), 4).unwrap_err().to_string();
        assert_eq!(error, "4 ranks were asked for, the cluster has 3 slots (n0: 1, n1: 2)");
    }

    proptest! {
        #[test]
        fn exactly_np_ranks_and_never_more_than_slots(counts in prop::collection::vec(0u32..9, 1..20), np in 0u32..200) {
            let slots = slots(&counts);
            match place(&slots, np) {
                Ok(placement) => {
                    prop_assert_eq!(placement.ranks(), np);
                    let mut next = 0;
                    for share in &placement.shares {
                        prop_assert_eq!(share.first, next);
                        next += share.ranks;
                        let room = slots.iter().find(|(n, _)| *n == share.node).unwrap().1;
                        prop_assert!(share.ranks >= 1 && share.ranks <= room);
                    }
                    for rank in 0..np { prop_assert!(placement.node_of(rank).is_some()); }
                }
                Err(e) => prop_assert!(counts.iter().sum::<u32>() < np && e.asked == np),
            }
        }
    }
}
