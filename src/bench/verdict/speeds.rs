//! The ranks whose devices slow the others down.

use super::evidence::{OUT_OF_LINE, SHARED, median, processor};
use crate::bench::collectives::RankSpeed;
use crate::bench::measurements::Measurements;
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
    /// The slow rank or node and its symptom, as one sentence.
    pub text: String,
    /// Its share of the speed of the others.
    pub share: f64,
    /// Set if it was measured again without the other nodes, and its processors had time left. Not a finding otherwise.
    pub is_judged: bool,
    /// Set if this speed may be normal: of two processors either may be of another model. Not a finding then.
    pub is_doubtful: bool,
}

impl Straggler {
    /// Returns whether it is a finding.
    pub fn is_finding(&self) -> bool {
        self.is_judged && !self.is_doubtful
    }

    /// Returns whether it would be one if its processors had had time left.
    pub fn is_unclear(&self) -> bool {
        !self.is_judged && !self.is_doubtful
    }
}

/// Returns the ranks whose devices are slower than those of the others, the slowest first; like devices are compared.
/// If all ranks of a node are slow, they are one. The speed of a device is its own, so unlike that of a connection it
/// names one of two as well: two GPUs of one name should be equally fast. A node whose processor shows by itself why it
/// is slow is named with the network's findings, and not here.
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
    /// The work that it does slowly; `None` if it gets no processor.
    work: Option<&'static str>,
    /// Its share of the speed of the others.
    share: f64,
    /// Set if only the device can be the reason.
    is_judged: bool,
    /// Set if there is only one other processor.
    is_one_of_two: bool,
}

impl Slow<'_> {
    fn straggler(&self, who: &str) -> Straggler {
        let RankSpeed { node, device, .. } = self.own;
        let device = if device == PROCESSOR { String::new() } else { format!(" ({device})") };
        let Slow { share, is_judged, is_one_of_two: is_doubtful, .. } = *self;
        let what = match self.work {
            Some(work) => format!("{work} at {:.0} % of the speed of the others", share * 100.0),
            None => format!("gets its processors only {:.0} % of the time", self.own.share.unwrap_or_default() * 100.0),
        };
        let why = match (is_doubtful, is_judged) {
            (true, _) => ", which may be a different model: a ring runs at the pace of its slowest rank",
            (false, true) => ": a ring runs at the pace of its slowest rank",
            (false, false) => "; it is not judged: no measurement ran without the other nodes and on idle processors",
        };
        let text = format!("{who}{device} {what}{why}");
        Straggler { node: node.clone(), text, share, is_judged, is_doubtful }
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
    // what it would reach if it had its processors all the time
    let had = own.share.filter(|share| own.device == PROCESSOR && *share > 0.0).map_or(1.0, |share| share.min(1.0));
    let share = |of: fn(&RankSpeed) -> f64| slow_share(of(own) / had, &others, of);
    let shares =
        [("multiplies matrices", share(|speed| speed.flops)), ("copies memory", share(|speed| speed.copy_bytes_per_s))];
    let found = shares.into_iter().filter_map(|(work, share)| Some((Some(work), share?)));
    let (work, share) = match without_processor(own, &others) {
        Some(share) => (None, share),
        None => found.min_by(|a, b| a.1.total_cmp(&b.1))?,
    };
    let has_time = own.device != PROCESSOR || work.is_none() || own.share.is_some_and(|share| share >= SHARED);
    let is_one_of_two = own.device == PROCESSOR && work.is_some() && others.len() == 1;
    Some(Slow { own, work, share, is_judged: own.alone && has_time, is_one_of_two })
}

/// Returns the share of the time in which a rank has its processors if that is low also without the other nodes, while
/// most of the others have theirs all the time: then the nodes share none.
fn without_processor(own: &RankSpeed, others: &[&RankSpeed]) -> Option<f64> {
    let together: Vec<f64> = others.iter().filter(|other| !other.alone).filter_map(|other| other.share).collect();
    let is_most = own.device == PROCESSOR && own.alone && 2 * together.len() > others.len();
    let others = median(together).filter(|share| is_most && *share >= SHARED)?;
    own.share.map(|share| share / others).filter(|share| *share < OUT_OF_LINE)
}

/// Returns a device's share of the speed of the others if that is low.
fn slow_share(own: f64, others: &[&RankSpeed], of: fn(&RankSpeed) -> f64) -> Option<f64> {
    let is_processor = others.iter().any(|other| other.device == PROCESSOR);
    let others: Vec<f64> = others.iter().map(|other| of(other)).filter(|speed| *speed > 0.0).collect();
    let centre = median(others.clone())?;
    let mut differences: Vec<f64> = others.iter().map(|speed| (speed / centre).ln().abs()).collect();
    differences.sort_by(f64::total_cmp);
    // of few values the larger one: they say little of what else may happen
    let deviation = TO_DEVIATION * differences[differences.len() / 2];
    // the models of processors are not known
    let low = if is_processor && others.len() + 1 < FEW { OUT_OF_LINE } else { SLOW };
    let share = own / centre;
    (share < low.min((-DEVIATIONS * deviation).exp())).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measurements::{Compute, NodeEvidence, Usage};
    use crate::bench::verdict::blame;

    /// Returns the measurements of ranks, `per_node` on each node, at these shares of a GPU's speed.
    fn speeds(per_node: usize, device: &str, shares: &[f64]) -> Vec<RankSpeed> {
        let speed = |(rank, share): (usize, &f64)| RankSpeed {
            rank: rank as u32,
            node: format!("node{}", rank / per_node + 1),
            device: device.to_owned(),
            flops: 19e12 * share,
            copy_bytes_per_s: 8e11,
            share: (device == PROCESSOR).then_some(1.0),
            alone: *share < 0.8,
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
        (slow[2].copy_bytes_per_s, slow[2].alone) = (4e11, true);
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
    fn what_was_measured_while_processors_were_short_accuses_no_one() {
        let found = |change: fn(&mut RankSpeed), shares: [f64; 4]| -> Vec<(f64, bool)> {
            let mut all = speeds(1, "cpu", &[1.0, 0.61, 1.0, 1.0]);
            all.iter_mut().zip(shares).for_each(|(speed, share)| speed.share = Some(share));
            change(&mut all[1]);
            let rounded = |share: f64| (share * 100.0).round() / 100.0;
            stragglers(&all, &nodes(4)).iter().map(|of| (rounded(of.share), of.is_finding())).collect()
        };
        let shared = [0.5, 1.0, 0.4, 0.5];
        assert_eq!(found(|_| (), shared), [(0.61, true)], "it is slow without the others");
        assert_eq!(found(|own| own.alone = false, shared), [(0.61, false)], "with the others it was");
        assert_eq!(
            found(|own| own.share = None, shared),
            [(0.61, false)],
            "other programs may have had its processors"
        );
        assert_eq!(found(|_| (), [0.5, 0.7, 0.4, 0.5]), [], "by the share that it had, it is not slow");
        let at_half = found(|own| own.flops /= 2.0, [0.5, 0.5, 0.4, 0.5]);
        assert_eq!(at_half, [(0.61, false)], "it had them for too short a time");
        // a node whose processors others have, or a limit keeps
        let own = [1.0, 0.3, 0.9, 1.0];
        assert_eq!(found(|own| own.flops = 6e12, own), [(0.3, true)]);
        assert_eq!(found(|own| own.flops = 6e12, [1.0, 0.3, 0.6, 0.5]), [], "they share their processors");
        let mut together = speeds(1, "cpu", &[1.0, 1.0, 1.0, 0.5]);
        together[3].alone = false;
        let text = &stragglers(&together, &nodes(4))[0].text;
        assert!(text.contains("at 50 % of the speed of the others; it is not judged: "), "{text}");
    }

    #[test]
    fn of_two_processors_only_evidence_names_one() {
        let slow = speeds(1, "cpu", &[1.0, 0.4]);
        let text =
            "rank 1 on node2 multiplies matrices at 40 % of the speed of the others, which may be a different model";
        let found = stragglers(&slow, &Measurements::default());
        assert_eq!((found.len(), found[0].text.as_str()), (1, format!("{text}{RING}").as_str()));
        assert!(found[0].node == "node2" && found[0].is_doubtful && !found[0].is_finding());
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
