//! The speeds of a job's nodes, compared with each other.

use crate::grade::assessment::{self, Evidence, kind};
use crate::grade::ledger::Ledger;
use crate::inventory::Node;
use crate::model::grade::NodeKind;
use crate::node::facts::Facts;

/// A node that is slower than the fastest by no more than this counts as equal to it: two measurements of one node
/// differ by that.
const EQUAL: f64 = 0.95;

/// The lowest speed and the highest one, that of a node that only launches, so that no program divides by zero.
const LOWEST: f64 = 0.01;
const HIGHEST: f64 = 1.0 / LOWEST;

/// A node of a job.
#[derive(Debug, Clone, Copy)]
pub struct JobNode<'a> {
    /// Its line in the inventory.
    pub node: &'a Node,
    /// Its facts.
    pub facts: &'a Facts,
    /// Set if it has ranks; a node that only launches is not the fastest of the job.
    pub has_ranks: bool,
}

/// Returns the speed of each node, relative to the fastest one that has ranks: 1 for that one and for all that are
/// about as fast. A node that was never measured is taken to be like those of its kind that were (the median), or else
/// to be as fast as the fastest.
pub fn speeds(nodes: &[JobNode<'_>]) -> Vec<f64> {
    let evidence: Vec<Evidence> = nodes.iter().map(measured).collect();
    let known: Vec<(&NodeKind, Option<f64>)> =
        evidence.iter().map(|node| &node.kind).zip(assessment::speeds(&evidence)).collect();
    let of_ranks = nodes.iter().zip(&known).filter(|(node, _)| node.has_ranks);
    let fastest = of_ranks.filter_map(|(_, (_, speed))| *speed).fold(0.0, f64::max);
    let relative = |(kind, speed): &(&NodeKind, Option<f64>)| {
        let speed = speed.or_else(|| median(known.iter().filter(|(other, _)| other == kind).filter_map(|(_, s)| *s)));
        // without any measured node with ranks there is nothing to compare with
        match speed.filter(|_| fastest > 0.0).map(|speed| speed / fastest) {
            None => 1.0,
            Some(speed) if (EQUAL..=1.0 / EQUAL).contains(&speed) => 1.0,
            Some(speed) => speed.clamp(LOWEST, HIGHEST),
        }
    };
    known.iter().map(relative).collect()
}

/// Returns the speed of a node that joins a job, relative to the node that was the fastest when the job began; it may
/// be more than 1. `launcher`: the node of the launcher and its speed in the job.
pub fn speed_of_joining(joining: JobNode<'_>, (launcher, speed): (JobNode<'_>, f64)) -> f64 {
    let pair = [JobNode { has_ranks: true, ..launcher }, JobNode { has_ranks: true, ..joining }];
    let relative = speeds(&pair);
    (speed * relative[1] / relative[0]).max(LOWEST)
}

/// Formats a speed for `HVDCTL_SPEED`: `1`, or two decimals as `0.50`.
pub fn variable(speed: f64) -> String {
    let text = format!("{speed:.2}");
    if text == "1.00" { "1".to_owned() } else { text }
}

/// Returns what benchmarks have measured of a node.
fn measured(JobNode { node, facts, .. }: &JobNode<'_>) -> Evidence {
    let now = facts.clock.map_or(0.0, |clock| clock.high);
    let ledger = Ledger::of_entries(&facts.hostname, now, facts.measured.iter().map(String::as_str));
    Evidence { node: node.name.clone(), kind: kind(node, facts, &ledger.driver), ledger }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A node with this GPU, whose benchmarks measured these products.
    fn facts(gpu: &str, products: &[f64]) -> Facts {
        let entry = |product: &f64| {
            format!(
                "measured \
                 {{\"format\":1,\"time\":1000,\"host\":\"h\",\"what\":\"bench\",\"figures\":{{\"product\":{product}}}}}\n"
            )
        };
        let gpus = if gpu.is_empty() { String::new() } else { format!("gpu GPU 0: {gpu} (UUID: GPU-1)\n") };
        let measured: String = products.iter().map(entry).collect();
        Facts::parse(&format!("clock 1000.5\nhostname h\ncores 8\nnvidia-smi yes\n{gpus}gpu exit 0\n{measured}"))
    }

    fn of(all: &[Facts]) -> Vec<String> {
        let node = Node::default();
        let nodes: Vec<JobNode<'_>> = all.iter().map(|facts| JobNode { node: &node, facts, has_ranks: true }).collect();
        speeds(&nodes).into_iter().map(variable).collect()
    }

    #[test]
    fn the_slower_node_has_its_share_of_the_fastest() {
        assert_eq!(
            of(&[facts("H200", &[4e13]), facts("V100", &[1.25e13]), facts("H200", &[4.1e13])]),
            ["1", "0.30", "1"]
        );
        assert_eq!(of(&[facts("", &[5e10]), facts("", &[1e11])]), ["0.50", "1"]);
        // the last measurement counts if it is lower than the usual one
        assert_eq!(of(&[facts("H200", &[4e13, 4e13, 2e13]), facts("H200", &[4e13])]), ["0.50", "1"]);
        assert_eq!(of(&[facts("H200", &[1.0]), facts("H200", &[1e13])]), ["0.01", "1"]);
    }

    #[test]
    fn all_are_equal_where_nothing_is_known() {
        assert_eq!(of(&[facts("H200", &[]), facts("V100", &[])]), ["1", "1"]);
        assert_eq!(of(&[facts("H200", &[4e13])]), ["1"]);
        assert!(of(&[]).is_empty());
        let mut damaged = facts("H200", &[1e13]);
        damaged.measured = vec!["{\"format\":1,\"time\"".into(), "{\"format\":2,\"time\":1,\"host\":\"h\"}".into()];
        assert_eq!(of(&[damaged, facts("H200", &[4e13])]), ["1", "1"]);
        // a copied disk has brought the figures of another machine
        let mut copied = facts("H200", &[1e13]);
        copied.hostname = "other".into();
        assert_eq!(of(&[copied, facts("V100", &[4e13])]), ["1", "1"]);
    }

    #[test]
    fn a_node_that_was_not_measured_is_like_its_kind() {
        let nodes = [facts("V100", &[1e13]), facts("V100", &[]), facts("H200", &[4e13]), facts("A100", &[])];
        assert_eq!(of(&nodes), ["0.25", "0.25", "1", "1"]);
    }

    #[test]
    fn a_node_that_only_launches_is_not_the_fastest() {
        let (fast, slow) = (facts("H200", &[4e13]), facts("V100", &[1e13]));
        let node = Node::default();
        let job_node = |facts, has_ranks| JobNode { node: &node, facts, has_ranks };
        let nodes = [job_node(&fast, false), job_node(&slow, true), job_node(&slow, true)];
        assert_eq!(speeds(&nodes), [4.0, 1.0, 1.0]);
        // a faster node that joins shows it
        assert_eq!(speed_of_joining(nodes[1], (nodes[0], 4.0)), 1.0);
        assert_eq!(speed_of_joining(nodes[0], (nodes[1], 0.5)), 2.0);
    }

    proptest! {
        #[test]
        fn no_rank_gets_a_speed_that_is_no_positive_number(
            all in prop::collection::vec(prop::collection::vec(prop_oneof![0.0..1e15, Just(f64::MAX), Just(0.0)], 0..4), 1..6)
        ) {
            let nodes: Vec<Facts> = all.iter().map(|products| facts("H200", products)).collect();
            let texts = of(&nodes);
            prop_assert!(texts.contains(&"1".to_owned()), "{texts:?}");
            for text in &texts {
                let speed: f64 = text.parse().unwrap();
                prop_assert!((0.01..=1.0).contains(&speed), "{texts:?}");
            }
        }
    }
}
