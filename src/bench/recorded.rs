//! The results of a benchmark that are recorded in the ledger of each node.

use super::collectives::RankSpeed;
use super::measurements::Measurements;
use super::verdict::speeds::PROCESSOR;
use super::verdict::{NetworkVerdict, Subject, are_comparable};
use crate::grade::evidence::NodeEvents;
use crate::grade::ledger::{Figure, LedgerEvent};
use std::collections::BTreeMap;

/// Returns what `bench` found between nodes. Nothing is known of any if its measurements vary too much.
pub fn of_network(measured: &Measurements, verdict: &NetworkVerdict) -> NodeEvents {
    if verdict.is_unclear {
        return NodeEvents::new();
    }
    let names: Vec<&str> = measured.nodes.iter().map(|node| node.name.as_str()).collect();
    let is_comparable = are_comparable(measured);
    let of = |(index, name): (usize, &&str)| {
        let accused =
            verdict.accusations.iter().filter(|found| matches!(found.subject, Subject::Node(node, _) if node == index));
        let failed = accused.map(|accusation| accusation.sentence(&names)).collect();
        let best = |is_own: &dyn Fn(usize, usize) -> bool| {
            let own = measured.directions.iter().filter(|direction| is_own(direction.from, direction.to));
            own.filter_map(|direction| direction.bandwidth()).max_by(f64::total_cmp)
        };
        let processor = measured.nodes[index].compute.map(|compute| compute.loops_per_s);
        // of two nodes it is not known which one is slow
        let tells = names.len() > 2 && is_comparable;
        let figures = [
            (Figure::Send, best(&|from, _| tells && from == index)),
            (Figure::Receive, best(&|_, to| tells && to == index)),
            (Figure::Processor, processor),
        ];
        let figures = LedgerEvent::bench(figures.into_iter().filter_map(|(figure, value)| Some((figure, value?))));
        ((*name).to_owned(), vec![LedgerEvent::check("bench", failed, Vec::new()), figures])
    };
    names.iter().enumerate().map(of).collect()
}

/// Returns what the ranks of `bench` found on the nodes of their job, each with the node that it is about.
pub fn of_ranks(nodes: &[String], findings: &[(Option<String>, String)]) -> NodeEvents {
    let of = |name: &String| {
        let own = findings.iter().filter(|(node, _)| node.as_ref() == Some(name));
        vec![LedgerEvent::check("bench", own.map(|(_, text)| text.clone()).collect(), Vec::new())]
    };
    nodes.iter().map(|name| (name.clone(), of(name))).collect()
}

/// Returns the speed of the slowest GPU of each node. That of its processors depends on how many threads a rank has;
/// [`of_network`] has one that does not.
pub fn of_speeds(speeds: &[RankSpeed]) -> NodeEvents {
    let mut slowest: BTreeMap<&str, f64> = BTreeMap::new();
    for speed in speeds.iter().filter(|speed| speed.device != PROCESSOR) {
        let known = slowest.entry(&speed.node).or_insert(speed.flops);
        *known = known.min(speed.flops);
    }
    let event = |flops| vec![LedgerEvent::bench([(Figure::Product, flops)])];
    slowest.into_iter().map(|(node, flops)| (node.to_owned(), event(flops))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measurements::{Compute, Direction, NodeEvidence, Transfer, Usage};
    use crate::bench::verdict::{Accusation, Symptom, Way};
    use crate::grade::evidence::joined;

    #[test]
    fn a_benchmark_is_one_check_and_one_measurement_of_each_node() {
        let usage = Usage::default();
        let direction = |from, to, bytes| Direction {
            from,
            to,
            transfers: vec![Transfer::of(4, bytes, usage)],
            ..Direction::default()
        };
        let compute = Compute { loops_per_s: 7.0, share: 1.0, copy_bytes_per_s: 1.0, throttled: None, usage };
        let node = |name: &str| NodeEvidence { name: name.into(), compute: Some(compute), ..NodeEvidence::default() };
        let measured = Measurements {
            nodes: vec![node("a"), node("b"), node("c")],
            directions: vec![direction(0, 1, 9.0), direction(0, 2, 2.0), direction(1, 0, 8.0), direction(2, 0, 3.0)],
            past: BTreeMap::new(),
        };
        let accused = |subject| Accusation { subject, symptom: Symptom::Local, reasons: vec!["busy".to_owned()] };
        let accusations = vec![accused(Subject::Node(2, Way::Both)), accused(Subject::Pair(0, 1, Way::Out))];
        let verdict = NetworkVerdict { accusations, ..NetworkVerdict::default() };
        let network = of_network(&measured, &verdict);
        let (failing, _) = network
            .iter()
            .find(|(_, events)| matches!(&events[0], LedgerEvent::Check { failed, .. } if !failed.is_empty()))
            .unwrap();
        assert_eq!(failing, "c", "a connection between two accuses neither");
        assert_eq!(
            of_network(&measured, &NetworkVerdict { is_unclear: true, ..NetworkVerdict::default() }),
            NodeEvents::new()
        );
        let mut noisy = measured.clone();
        for direction in &mut noisy.directions {
            let bytes = direction.transfers[0].bytes_per_s;
            direction.transfers.push(Transfer::of(1, bytes / 3.0, usage));
        }
        let [recorded, noisy] = [&measured, &noisy].map(|of| format!("{:?}", of_network(of, &verdict)));
        assert!(recorded.contains("Send") && noisy.contains("Processor") && !noisy.contains("Send"), "{noisy}");

        let speed = |rank, node: &str, flops| RankSpeed {
            rank,
            node: node.into(),
            device: "NVIDIA H200".into(),
            flops,
            copy_bytes_per_s: 1.0,
            share: None,
            alone: false,
        };
        let speeds = of_speeds(&[speed(0, "a", 5.0), speed(1, "a", 4.0), speed(2, "b", 6.0)]);
        let ranks =
            of_ranks(&["a".into(), "b".into()], &[(Some("a".into()), "rank 1 is slow".into()), (None, "x".into())]);
        let all = joined(network, joined(ranks, speeds));
        assert!(all.values().all(|events| events.len() == 2), "{all:?}");
        let figures = [(Figure::Send, 9.0), (Figure::Receive, 8.0), (Figure::Product, 4.0), (Figure::Processor, 7.0)];
        assert_eq!(
            all["a"],
            [LedgerEvent::check("bench", vec!["rank 1 is slow".into()], Vec::new()), LedgerEvent::bench(figures)]
        );
    }
}
