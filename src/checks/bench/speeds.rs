//! Which rank's device slows the others down.

use super::Measurements;
use super::collectives::RankSpeed;
use super::evidence::{OUT_OF_LINE, median, processor};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// A device below this share of the speed of the others of its kind is slow: boards of one model stay above.
const SLOW: f64 = 0.8;

/// It must also be this many standard deviations below.
const DEVIATIONS: f64 = 4.0;

/// From the median of differences from the centre to the standard deviation.
const TO_DEVIATION: f64 = 1.48;

/// Fewer processors than this are not known to be of one model.
const FEW: usize = 4;

/// The name of a device that is a processor, whatever its model.
pub const PROCESSOR: &str = "cpu";

/// A rank whose device is slower than others of its kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Straggler {
    /// Its node.
    pub node: String,
    /// Who is slow, and how that shows, as one sentence.
    pub text: String,
    /// Whether this may as well be as it should be: of two processors either may be of another model. Not a finding then.
    pub is_doubtful: bool,
}

/// Returns the ranks whose devices are slower than those of the others, the slowest first; like devices are compared. If all ranks of a
/// node are slow, they are one. The speed of a device is its own, so unlike that of a connection it names one of two as well: two GPUs of
/// one name should be equally fast. A node whose processor shows by itself why it is slow is named with the network's findings, and not
/// here.
pub fn stragglers(speeds: &[RankSpeed], measurements: &Measurements) -> Vec<Straggler> {
    let is_known = |node: &str| {
        let index = measurements.nodes.iter().position(|of| of.name == node);
        index.is_some_and(|index| !processor(measurements, index).is_empty())
    };
    let mut found: Vec<Slow<'_>> = speeds.iter().filter_map(|own| slow(own, speeds)).collect();
    found.retain(|of| of.own.device != PROCESSOR || !is_known(&of.own.node));
    found.sort_by(|a, b| a.share.total_cmp(&b.share));
    let slow = |node: &str| found.iter().filter(|of| of.own.node == node).count();
    let is_whole = |node: &str| slow(node) > 1 && slow(node) == speeds.iter().filter(|of| of.node == node).count();
    let whole: BTreeSet<&str> = found.iter().map(|of| of.own.node.as_str()).filter(|node| is_whole(node)).collect();
    let mut named = BTreeSet::new();
    let is_first = found.iter().map(|of| !whole.contains(of.own.node.as_str()) || named.insert(&of.own.node));
    let straggler = |of: &Slow<'_>| match whole.contains(of.own.node.as_str()) {
        true => of.straggler(&of.own.node),
        false => of.straggler(&format!("rank {} on {}", of.own.rank, of.own.node)),
    };
    found.iter().zip(is_first).filter(|(_, is_first)| *is_first).map(|(of, _)| straggler(of)).collect()
}

/// A slow device.
#[derive(Debug, Clone, Copy)]
struct Slow<'a> {
    own: &'a RankSpeed,
    /// What it does slowly.
    work: &'static str,
    /// Its share of the speed of the others.
    share: f64,
    /// Whether there is only one other processor.
    is_one_of_two: bool,
}

impl Slow<'_> {
    fn straggler(&self, who: &str) -> Straggler {
        let RankSpeed { node, device, .. } = self.own;
        let device = if device == PROCESSOR { String::new() } else { format!(" ({device})") };
        let what = format!("{} at {:.0} % of the speed of the others", self.work, self.share * 100.0);
        let doubt = if self.is_one_of_two { ", which may be of another model" } else { "" };
        let text = format!("{who}{device} {what}{doubt}: a ring runs at the pace of its slowest rank");
        Straggler { node: node.clone(), text, is_doubtful: self.is_one_of_two }
    }
}

/// Returns what a rank's device does slowly, and of several the slowest.
fn slow<'a>(own: &'a RankSpeed, speeds: &[RankSpeed]) -> Option<Slow<'a>> {
    let is_like = |other: &&RankSpeed| other.device == own.device && other.rank != own.rank;
    let mut others: Vec<&RankSpeed> = speeds.iter().filter(is_like).collect();
    if own.device == PROCESSOR {
        // the ranks of a node share its processors, which count once
        others.retain(|other| other.node != own.node);
        others.sort_by(|a, b| (&a.node, b.flops).partial_cmp(&(&b.node, a.flops)).unwrap_or(Ordering::Equal));
        others.dedup_by(|next, first| next.node == first.node);
    }
    let share = |of: fn(&RankSpeed) -> f64| slow_share(own, &others, of);
    let shares =
        [("multiplies matrices", share(|speed| speed.flops)), ("copies memory", share(|speed| speed.copy_bytes_per_s))];
    let found = shares.into_iter().filter_map(|(work, share)| Some((work, share?)));
    let (work, share) = found.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Slow { own, work, share, is_one_of_two: own.device == PROCESSOR && others.len() == 1 })
}

/// Returns a device's share of the speed of the others if that is low.
fn slow_share(own: &RankSpeed, others: &[&RankSpeed], of: fn(&RankSpeed) -> f64) -> Option<f64> {
    let others: Vec<f64> = others.iter().map(|other| of(other)).filter(|speed| *speed > 0.0).collect();
    let centre = median(others.clone())?;
    let mut differences: Vec<f64> = others.iter().map(|speed| (speed / centre).ln().abs()).collect();
    differences.sort_by(f64::total_cmp);
    // of few values the larger one: they say little of what else may happen
    let deviation = TO_DEVIATION * differences[differences.len() / 2];
    // the models of processors are not known
    let low = if own.device == PROCESSOR && others.len() + 1 < FEW { OUT_OF_LINE } else { SLOW };
    let share = of(own) / centre;
    (share < low.min((-DEVIATIONS * deviation).exp())).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::bench::{Compute, NodeEvidence, Usage, blame};

    /// What ranks measured, with as many on each node, at these shares of a GPU's speed.
    fn speeds(per_node: usize, device: &str, shares: &[f64]) -> Vec<RankSpeed> {
        let speed = |(rank, share): (usize, &f64)| RankSpeed {
            rank: rank as u32,
            node: format!("node{}", rank / per_node + 1),
            device: device.to_owned(),
            flops: 19e12 * share,
            copy_bytes_per_s: 8e11,
        };
        shares.iter().enumerate().map(speed).collect()
    }

    fn nodes(n: usize) -> Measurements {
        let node = |node: usize| NodeEvidence { name: format!("node{}", node + 1), ..NodeEvidence::default() };
        Measurements { nodes: (0..n).map(node).collect(), ..Measurements::default() }
    }

    fn sentences(speeds: &[RankSpeed]) -> Vec<String> {
        stragglers(speeds, &nodes(8)).into_iter().map(|of| of.text).collect()
    }

    const RING: &str = ": a ring runs at the pace of its slowest rank";

    #[test]
    fn a_slow_gpu_is_named() {
        let mut shares = [1.0, 0.99, 1.01, 1.0, 0.98, 1.0, 1.02, 1.0];
        assert_eq!(sentences(&speeds(4, "A100", &shares)), [""; 0]);
        shares[6] = 0.77;
        let text = "rank 6 on node2 (A100) multiplies matrices at 77 % of the speed of the others";
        assert_eq!(sentences(&speeds(4, "A100", &shares)), [format!("{text}{RING}")]);
        // unlike devices are not compared, and two of one name are
        let mut unlike = speeds(4, "A100", &shares);
        unlike[6].device = "V100".to_owned();
        assert_eq!(sentences(&unlike), [""; 0]);
        unlike[5].device = "V100".to_owned();
        assert_eq!(sentences(&unlike).len(), 1);
    }

    #[test]
    fn slow_memory_shows_as_well() {
        let mut slow = speeds(1, "A100", &[1.0, 1.0, 1.0]);
        slow[2].copy_bytes_per_s /= 2.0;
        assert_eq!(
            sentences(&slow),
            [format!("rank 2 on node3 (A100) copies memory at 50 % of the speed of the others{RING}")]
        );
    }

    #[test]
    fn a_node_is_named_if_all_its_ranks_are_slow() {
        let shares = [1.0, 1.01, 0.99, 1.0, 0.6, 0.61, 0.62, 0.6];
        let text = "node2 (A100) multiplies matrices at 61 % of the speed of the others";
        assert_eq!(sentences(&speeds(4, "A100", &shares)), [format!("{text}{RING}")]);
    }

    #[test]
    fn differences_that_are_usual_accuse_no_one() {
        let shares = [1.0, 0.72, 1.3, 0.9, 1.2, 0.75, 1.1, 0.95];
        assert_eq!(sentences(&speeds(1, "cpu", &shares)), [""; 0]);
        // a few processors may be of different models
        assert_eq!(sentences(&speeds(1, "cpu", &[1.0, 1.0, 0.7])), [""; 0]);
        assert_eq!(sentences(&speeds(1, "cpu", &[1.0, 1.0, 0.5])).len(), 1);
        assert_eq!(sentences(&speeds(1, "cpu", &[1.0, 1.0, 1.01, 0.99, 0.7])).len(), 1);
        assert_eq!(sentences(&speeds(1, "cpu", &[1.0, 0.0, 1.0, 1.0])).len(), 1, "a rank that computes nothing");
        assert_eq!(sentences(&speeds(1, "cpu", &[1.0])), [""; 0]);
    }

    #[test]
    fn of_two_processors_only_evidence_names_one() {
        let slow = speeds(1, "cpu", &[1.0, 0.4]);
        let text =
            "rank 1 on node2 multiplies matrices at 40 % of the speed of the others, which may be of another model";
        let expected = Straggler { node: "node2".to_owned(), text: format!("{text}{RING}"), is_doubtful: true };
        assert_eq!(stragglers(&slow, &Measurements::default()), [expected]);
        let mut two = nodes(2);
        for (node, throttled) in two.nodes.iter_mut().zip([0.0, 0.55]) {
            let usage = Usage::default();
            let throttled = Some(throttled);
            node.compute = Some(Compute { loops_per_s: 1e7, share: 1.0, copy_bytes_per_s: 1e9, throttled, usage });
        }
        assert_eq!(stragglers(&slow, &two), [], "the verdict on the network names it");
        let verdict = blame::verdict(&two);
        let reason = "a limit on processors stops its worker 55 % of the time";
        let texts: Vec<&String> = verdict.accusations.iter().flat_map(|of| &of.reasons).collect();
        assert_eq!(texts, [reason]);
        // two GPUs of one name are alike
        assert!(!stragglers(&speeds(1, "A100", &[1.0, 0.7]), &two)[0].is_doubtful);
    }
}
