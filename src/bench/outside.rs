//! The encrypted network compared with the way without it, and what slow connections mean for training.

use super::measurements::{Direction, Measurements};
use crate::text::units::{gigabits, micros};
use std::collections::BTreeMap;

/// Connections below this many bytes a second are too slow for the usual exchange of gradients: 1 Gb/s.
const SLOW: f64 = 125e6;

/// The gradients of a model of 100 million parameters in single precision, in bytes.
const GRADIENTS: f64 = 400e6;

/// The best of all measurements of a direction.
#[derive(Debug, Clone, Copy, Default)]
struct Fastest {
    /// In bytes a second.
    bandwidth: Option<f64>,
    /// The median round trip in µs.
    round_trip: Option<f64>,
}

fn best(measured: &Measurements, bandwidth: fn(&Direction) -> Option<f64>) -> BTreeMap<(&str, &str), Fastest> {
    let mut all: BTreeMap<(&str, &str), Fastest> = BTreeMap::new();
    let name = |node: usize| measured.nodes[node].name.as_str();
    for direction in &measured.directions {
        let best = all.entry((name(direction.from), name(direction.to))).or_default();
        best.bandwidth = best.bandwidth.into_iter().chain(bandwidth(direction)).max_by(f64::total_cmp);
        let trip = |direction: &Direction| direction.round_trip_us.map(|trip| trip.median);
        best.round_trip = best.round_trip.into_iter().chain(trip(direction)).min_by(f64::total_cmp);
    }
    all
}

/// Returns what encryption costs between the nodes, by the measurements through the network and those without it.
pub fn compared(through: &Measurements, without: &Measurements) -> Vec<String> {
    let (through, without) = (best(through, Direction::bandwidth), best(without, Direction::bandwidth));
    let both: Vec<_> = through.iter().filter_map(|(edge, best)| Some((edge, best, without.get(edge)?))).collect();
    let measured = both
        .iter()
        .filter_map(|(edge, with, without)| Some((*edge, with, without, with.bandwidth? / without.bandwidth?)));
    let mut notes = Vec::new();
    // the one that loses most
    let worst = measured.clone().min_by(|a, b| a.3.total_cmp(&b.3));
    if let Some(((from, to), with, without, share)) = worst {
        let trip = |best: &Fastest| best.round_trip.map_or_else(String::new, |trip| format!(", {}", micros(trip)));
        let rate = |best: &Fastest| gigabits(best.bandwidth.unwrap_or_default());
        let change = (1.0 - share) * 100.0;
        let cost = if change >= 1.0 { format!("costs {change:.0} %") } else { "costs nothing".to_owned() };
        notes.push(format!(
            "encryption {cost} of the bandwidth from {from} to {to}: {}{} through the encrypted network, {}{} without it",
            rate(with),
            trip(with),
            rate(without),
            trip(without)
        ));
    }
    let apart = through.keys().filter(|edge| without.get(*edge).is_none_or(|best| best.bandwidth.is_none())).count();
    if apart > 0 {
        notes.push(format!("{apart} of {} directions cannot be measured without the encrypted network", through.len()));
    } else if measured.clone().next().is_some() {
        notes.push(
            "all nodes reach each other without the encrypted network; if its users and programs are trusted, leave out \
             `network` in [cluster]"
                .to_owned(),
        );
    }
    notes
}

/// Returns what the slowest connection means for an exchange of gradients, and what helps; nothing if it is fast enough.
pub fn advice(measured: &Measurements) -> Option<String> {
    // Gloo and MPI have one connection between two ranks
    let all = best(measured, Direction::bandwidth_of_one);
    let ((from, to), slowest) = all.iter().min_by(|(_, a), (_, b)| {
        let rate = |best: &Fastest| best.bandwidth.unwrap_or(f64::INFINITY);
        rate(a).total_cmp(&rate(b))
    })?;
    let rate = slowest.bandwidth.filter(|rate| *rate < SLOW)?;
    // a ring sends each gradient to the next node twice, except for one part, in 2 (n − 1) steps
    let nodes = measured.nodes.len() as f64;
    let steps = 2.0 * (nodes - 1.0);
    let latency = slowest.round_trip.unwrap_or_default() / 2e6;
    let seconds = steps / nodes * GRADIENTS / rate + steps * latency;
    let trip = slowest.round_trip.map_or_else(String::new, |trip| format!(" and {}", micros(trip)));
    Some(format!(
        "a connection from {from} to {to} has {}{trip}: the exchange of the gradients of 100 million parameters takes about \
         {seconds:.1} s a step. Fewer or smaller exchanges help: more steps between two of them (Horovod: \
         backward_passes_per_step; PyTorch: no_sync or PostLocalSGDOptimizer), half precision (Horovod: \
         compression=hvd.Compression.fp16; PyTorch: fp16_compress_hook), larger batches",
        gigabits(rate)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measurements::{NodeEvidence, RoundTrip, Transfer, Usage};

    fn measured(rate: Option<f64>, median: f64) -> Measurements {
        let node = |name: &str| NodeEvidence { name: name.into(), ..NodeEvidence::default() };
        let direction = |from, to| Direction {
            from,
            to,
            round_trip_us: Some(RoundTrip { median, min: median, p99: median, count: 1 }),
            transfers: rate.map(|rate| Transfer::of(1, rate, Usage::default())).into_iter().collect(),
            ..Direction::default()
        };
        Measurements {
            nodes: vec![node("a"), node("b")],
            directions: vec![direction(0, 1), direction(1, 0)],
            past: Default::default(),
        }
    }

    #[test]
    fn the_cost_of_encryption_is_named() {
        let notes = compared(&measured(Some(60e6), 900.0), &measured(Some(120e6), 300.0));
        assert!(notes[0].starts_with("encryption costs 50 % of the bandwidth from a to b: "), "{notes:?}");
        assert!(notes[1].starts_with("all nodes reach each other without"), "{notes:?}");
        let apart = compared(&measured(Some(60e6), 900.0), &measured(None, 1.0));
        assert_eq!(apart, ["2 of 2 directions cannot be measured without the encrypted network"]);
        assert!(
            compared(&measured(Some(60e6), 9.0), &measured(Some(60e6), 9.0))[0].starts_with("encryption costs nothing")
        );
    }

    #[test]
    fn a_slow_line_says_what_an_exchange_costs() {
        // 400 MB over 6.25 MB/s once, and two steps of 20 ms
        let text = advice(&measured(Some(6.25e6), 40_000.0)).unwrap();
        assert!(text.contains("takes about 64.0 s a step"), "{text}");
        // four connections at once say nothing of one
        let mut several = measured(Some(6.25e6), 40_000.0);
        several.directions.iter_mut().for_each(|it| it.transfers.push(Transfer::of(4, 1e9, Usage::default())));
        assert_eq!(advice(&several).unwrap(), text);
        assert_eq!(advice(&measured(Some(1e9), 100.0)), None);
        assert_eq!(advice(&measured(None, 100.0)), None);
    }
}
