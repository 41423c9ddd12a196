//! The decision whether relays pay, and the order in which they receive from each other.

use std::time::Duration;

/// The amounts of data that a push would send.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// The nodes that lack the image.
    pub receivers: u64,
    /// The most bytes that one of them lacks.
    pub missing: u64,
    /// The bytes of the whole image, if a node has it.
    pub on_node: Option<u64>,
    /// The bytes of a relay.
    pub relay: u64,
}

/// A node that lacks at least as many bytes as this number of relays have gets a relay even if it is the only receiver:
/// with a relay, a push that was stopped continues.
const RESUMABLE: u64 = 20;

/// Returns whether relays save more bytes on the operator's link than they take, or than a push that is stopped sends
/// twice.
pub fn pays(offer: Offer) -> bool {
    let Offer { receivers, missing, on_node, relay } = offer;
    let (saved, relays) = match on_node {
        // without relays the operator receives all of it, and sends it to each
        Some(all) => (all.saturating_add(missing.saturating_mul(receivers)), receivers + 1),
        None => (missing.saturating_mul(receivers.saturating_sub(1)), receivers),
    };
    receivers > 0 && (saved > relay.saturating_mul(relays) || missing >= relay.saturating_mul(RESUMABLE))
}

/// The number of relays before a node in the chain that may be its sources.
const PREDECESSORS: usize = 3;

/// Returns the positions of the relays from which the one at `position` receives, the best first. What the chain begins
/// with comes behind them. No relay receives from a later one: two could wait for each other.
pub fn predecessors(position: usize) -> Vec<usize> {
    (0..position).rev().take(PREDECESSORS).collect()
}

/// The longest time without a byte of a source for the first relay of a chain, and how much longer each next one waits:
/// the relay before it shall choose another source first.
const STALL: Duration = Duration::from_secs(15);
const STALL_MORE: Duration = Duration::from_secs(3);
const MAX_STALL: Duration = Duration::from_secs(120);

/// Returns the longest time without a byte of a source for the relay at a position.
pub fn stall_limit(position: usize) -> Duration {
    let more = STALL_MORE.saturating_mul(u32::try_from(position).unwrap_or(u32::MAX));
    STALL.saturating_add(more).min(MAX_STALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_used_where_they_save_bytes() {
        let offer = |receivers, missing, on_node| Offer { receivers, missing, on_node, relay: 10 };
        for (offer, expected) in [
            (offer(1, 199, None), false),
            (offer(1, 200, None), true),
            (offer(2, 1000, None), true),
            (offer(2, 20, None), false),
            (offer(2, 21, None), true),
            (offer(8, 11, None), false),
            (offer(8, 12, None), true),
            (offer(1, 1000, Some(1000)), true),
            (offer(1, 1, Some(19)), false),
            (offer(1, 1, Some(20)), true),
            (offer(0, 1000, Some(1000)), false),
            (offer(0, 0, None), false),
            (Offer { relay: u64::MAX, ..offer(u64::MAX, u64::MAX - 1, None) }, false),
        ] {
            assert_eq!(pays(offer), expected, "{offer:?}");
        }
    }

    #[test]
    fn a_relay_receives_from_those_before_it_and_waits_longer_than_they() {
        assert_eq!([0, 1, 2, 7].map(predecessors), [vec![], vec![0], vec![1, 0], vec![6, 5, 4]]);
        for position in 0..100 {
            assert!(predecessors(position).iter().all(|source| *source < position));
            let (own, next) = (stall_limit(position), stall_limit(position + 1));
            assert!(own < next || next == MAX_STALL, "{position}: {own:?} {next:?}");
        }
    }
}
