//! The output of a benchmark's ranks (`collectives.py`), combined into one result.

use crate::bench::collectives::{Collectives, Exchange, RankSpeed, WrongResult};
use crate::bench::measurements::Measurements;
use crate::launch::placement::Placement;
use crate::model::collective::{Collective, Dtype};
use crate::text::units;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A line of a rank.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankLine {
    /// It can communicate.
    Start {
        /// The number of ranks that it knows of.
        size: u32,
        /// The library, and its version.
        library: String,
        /// The framework, and its version.
        framework: String,
    },
    /// The speed of its device.
    Speed {
        /// The name of a GPU, or `cpu`.
        device: String,
        /// Floating-point operations a second.
        flops: f64,
        /// Bytes a second.
        copy_bytes_per_s: f64,
        /// The share of the time in which it had a processor, if that is known.
        #[serde(default)]
        share: Option<f64>,
        /// Set if the other nodes waited meanwhile.
        #[serde(default)]
        alone: bool,
    },
    /// The times of an operation's repetitions, in µs.
    #[expect(missing_docs, reason = "as in `Exchange`")]
    Exchange { collective: Collective, dtype: Dtype, bytes: u64, times_us: Vec<f64> },
    /// A wrong result.
    #[expect(missing_docs, reason = "as in `WrongResult`")]
    Wrong {
        collective: Collective,
        dtype: Dtype,
        bytes: u64,
        /// The number of wrong elements.
        count: u64,
        /// The first of them.
        expected: String,
        /// The actual value of that element.
        got: String,
        /// The rank whose contribution explains the result.
        suspect: Option<u32>,
    },
    /// A measurement that was not possible, as a sentence.
    Note(String),
    /// It has measured everything.
    End(u32),
}

/// The answers of a job's ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answers {
    /// Their measurements.
    pub collectives: Collectives,
    /// Measurements that were not possible, as sentences.
    pub notes: Vec<String>,
    /// The ranks that did not measure everything.
    pub unfinished: Vec<u32>,
    /// A sentence that the ranks are not one job, if each counts a different number of them.
    pub apart: Option<String>,
}

/// An operation with arrays of one type and size.
type SizedOperation = (Collective, Dtype, u64);

impl Answers {
    /// Puts the lines of the ranks together. `link`: the bandwidth of the slowest link of the ring, in bytes a second.
    pub fn new(placement: &Placement, lines: &[(u32, RankLine)], link: Option<f64>) -> Answers {
        let ranks = placement.ranks();
        let node = |rank: u32| placement.node_of(rank).map_or("?", |(node, _)| node).to_owned();
        let mut answers = Answers { unfinished: (0..ranks).collect(), ..Answers::default() };
        let mut times: BTreeMap<SizedOperation, BTreeMap<u32, &[f64]>> = BTreeMap::new();
        let mut wrong: BTreeMap<SizedOperation, BTreeMap<u32, (Option<u32>, String)>> = BTreeMap::new();
        let mut speeds: BTreeMap<u32, RankSpeed> = BTreeMap::new();
        for (rank, line) in lines {
            match line {
                RankLine::Start { size, library, framework } => {
                    if *size != ranks {
                        let apart = format!("rank {rank} counts {size} ranks, but there are {ranks}");
                        answers.apart.get_or_insert(apart);
                    }
                    if *rank == 0 {
                        answers.collectives.library = format!("{library}, {framework}");
                    }
                }
                RankLine::Speed { device, flops, copy_bytes_per_s, share, alone } => {
                    let measured = RankSpeed {
                        rank: *rank,
                        node: node(*rank),
                        device: device.clone(),
                        flops: *flops,
                        copy_bytes_per_s: *copy_bytes_per_s,
                        share: *share,
                        alone: *alone,
                    };
                    let known = speeds.remove(rank);
                    speeds.insert(*rank, known.map_or_else(|| measured.clone(), |known| known.better(&measured)));
                }
                RankLine::Exchange { collective, dtype, bytes, times_us } => {
                    times.entry((*collective, *dtype, *bytes)).or_default().insert(*rank, times_us);
                }
                RankLine::Wrong { collective, dtype, bytes, count, expected, got, suspect } => {
                    let text =
                        format!("{}: expected {expected}, found {got}", units::count(*count as usize, "wrong element"));
                    let key = (*collective, *dtype, *bytes);
                    wrong.entry(key).or_default().entry(*rank).or_insert((*suspect, text));
                }
                RankLine::Note(text) if answers.notes.contains(text) => {}
                RankLine::Note(text) => answers.notes.push(text.clone()),
                RankLine::End(_) => answers.unfinished.retain(|unfinished| unfinished != rank),
            }
        }
        if answers.apart.is_some() {
            // what each did alone says nothing of the cluster
            times.clear();
        }
        answers.collectives.ranks = ranks;
        answers.collectives.speeds = speeds.into_values().collect();
        answers.collectives.exchanges =
            times.iter().filter_map(|(key, times)| exchange(*key, times, ranks, link)).collect();
        answers.collectives.wrong =
            wrong.into_iter().flat_map(|(key, of_ranks)| name(key, of_ranks, ranks, node)).collect();
        answers
    }
}

/// Returns the measurement of an operation that all ranks have done, by the slowest rank of each repetition.
fn exchange(
    (collective, dtype, bytes): SizedOperation,
    times: &BTreeMap<u32, &[f64]>,
    ranks: u32,
    link: Option<f64>,
) -> Option<Exchange> {
    let repetitions = times.values().map(|times| times.len()).min().filter(|_| times.len() == ranks as usize)?;
    let slowest = |repetition: usize| times.values().map(|times| times[repetition]).fold(0.0, f64::max);
    let mut slowest: Vec<f64> = (0..repetitions).map(slowest).collect();
    slowest.sort_by(f64::total_cmp);
    let time_us = *slowest.get(repetitions / 2)?;
    let time = Duration::try_from_secs_f64(time_us / 1e6).ok()?;
    let bandwidth = collective.bandwidth(bytes, time, ranks as usize)?;
    Some(Exchange {
        collective,
        dtype,
        bytes,
        time_us,
        algorithm_bandwidth: bandwidth.algorithm,
        bus_bandwidth: bandwidth.bus,
        ring_share: link.map(|link| bandwidth.bus * 1e9 / link),
    })
}

/// Names the rank whose contribution explains the results of all others, else each rank that has a wrong result.
fn name(
    (collective, dtype, bytes): SizedOperation,
    of_ranks: BTreeMap<u32, (Option<u32>, String)>,
    ranks: u32,
    node: impl Fn(u32) -> String,
) -> Vec<WrongResult> {
    let wrong = |rank: u32, text: String| WrongResult { rank, node: node(rank), collective, dtype, bytes, text };
    let suspects: BTreeSet<Option<u32>> = of_ranks.values().map(|(suspect, _)| *suspect).collect();
    let by_all =
        |suspect: &u32| of_ranks.len() > 1 && (0..ranks).all(|rank| rank == *suspect || of_ranks.contains_key(&rank));
    let suspect = suspects.first().copied().flatten().filter(|suspect| suspects.len() == 1 && by_all(suspect));
    if let Some((suspect, (_, text))) = suspect.zip(of_ranks.values().next()) {
        return vec![wrong(suspect, format!("its contribution is wrong on the other ranks ({text})"))];
    }
    of_ranks.into_iter().map(|(rank, (_, text))| wrong(rank, text)).collect()
}

/// Returns the bandwidth of the slowest link of a ring of nodes in this order, in bytes a second. `None` if one was not
/// measured, or there is only one node.
pub fn slowest_link(measured: &Measurements, ring: &[&str]) -> Option<f64> {
    let index = |name: &str| measured.nodes.iter().position(|node| node.name == name);
    let next = ring.iter().skip(1).chain(ring.first());
    let edges = ring.iter().zip(next).filter(|(from, to)| from != to);
    let bandwidth = |(from, to): (&&str, &&str)| {
        let (from, to) = (index(from)?, index(to)?);
        let of_edge = measured.directions.iter().filter(|direction| (direction.from, direction.to) == (from, to));
        of_edge.filter_map(crate::bench::measurements::Direction::bandwidth).max_by(f64::total_cmp)
    };
    let all: Vec<f64> = edges.map(bandwidth).collect::<Option<_>>()?;
    all.into_iter().min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measurements::{Direction, NodeEvidence, Transfer, Usage};
    use crate::launch::placement::{MapBy, place};

    fn placement(nodes: &[&str]) -> Placement {
        let slots: Vec<_> = nodes.iter().map(|node| ((*node).to_owned(), 1)).collect();
        place(&slots, nodes.len() as u32, MapBy::Slot).unwrap()
    }

    fn line(text: &str) -> RankLine {
        serde_json::from_str(text).unwrap()
    }

    fn wrong(suspect: &str) -> RankLine {
        line(&format!(
            r#"{{"wrong": {{"collective": "allreduce", "dtype": "float16", "bytes": 1024, "count": 3, "expected": "7 at 0", "got": "6",
            "suspect": {suspect}}}}}"#
        ))
    }

    fn named(wrong: &[(u32, &str)]) -> Vec<(u32, String)> {
        let lines: Vec<_> = wrong.iter().map(|(rank, suspect)| (*rank, self::wrong(suspect))).collect();
        let answers = Answers::new(&placement(&["a", "b", "c"]), &lines, None);
        answers.collectives.wrong.into_iter().map(|wrong| (wrong.rank, wrong.node)).collect()
    }

    #[test]
    fn the_slowest_rank_of_each_repetition_counts() {
        let exchange = |times: &str| {
            line(&format!(
                r#"{{"exchange": {{"collective": "allreduce", "dtype": "float32", "bytes": 1000000, "times_us": {times}}}}}"#
            ))
        };
        let speed = |rest: &str| line(&format!(r#"{{"speed": {{"device": "cpu", {rest}}}}}"#));
        let lines = [
            (0, line(r#"{"start": {"rank": 0, "size": 2, "library": "Horovod 0.28.1", "framework": "torch 1.13"}}"#)),
            (1, speed(r#""flops": 2e9, "copy_bytes_per_s": 1e10"#)),
            (0, speed(r#""flops": 1e9, "copy_bytes_per_s": 6e9, "share": 0.9"#)),
            (0, speed(r#""flops": 8e8, "copy_bytes_per_s": 9e9, "share": 0.7, "alone": true"#)),
            (0, speed(r#""flops": 9e8, "copy_bytes_per_s": 8e9, "share": 0.8, "alone": true"#)),
            (0, exchange("[1000.0, 9000.0, 500.0]")),
            (1, exchange("[2000.0, 100.0, 400.0]")),
            (0, line(r#"{"note": "no bfloat16"}"#)),
            (0, line(r#"{"note": "no bfloat16"}"#)),
            (0, line(r#"{"end": 0}"#)),
        ];
        let answers = Answers::new(&placement(&["a", "b"]), &lines, Some(1e9));
        let [exchange] = &answers.collectives.exchanges[..] else { panic!("{answers:?}") };
        // of 2000, 9000 and 500
        assert_eq!(exchange.time_us, 2000.0);
        assert!((exchange.bus_bandwidth - 0.5).abs() < 1e-9 && (exchange.algorithm_bandwidth - 0.5).abs() < 1e-9);
        assert!((exchange.ring_share.unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(answers.collectives.library, "Horovod 0.28.1, torch 1.13");
        assert_eq!(answers.collectives.speeds.iter().map(|speed| speed.node.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let first = &answers.collectives.speeds[0];
        assert_eq!((first.flops, first.copy_bytes_per_s, first.share, first.alone), (1e9, 9e9, Some(0.8), true));
        assert_eq!((answers.notes, answers.unfinished), (vec!["no bfloat16".to_owned()], vec![1]));

        // what one rank has not done is no measurement
        let answers = Answers::new(&placement(&["a", "b", "c"]), &lines, None);
        assert_eq!((answers.collectives.exchanges, answers.unfinished), (vec![], vec![1, 2]));
        assert_eq!(answers.apart.as_deref(), Some("rank 0 counts 2 ranks, but there are 3"));
    }

    #[test]
    fn the_rank_of_a_wrong_result() {
        let of = |rank: u32| (rank, ["a", "b", "c"][rank as usize].to_owned());
        assert_eq!(named(&[(1, "null")]), [of(1)], "only one has it");
        assert_eq!(named(&[(1, "2")]), [of(1)], "the others have what rank 2 contributes");
        assert_eq!(named(&[(0, "1"), (1, "1"), (2, "1")]), [of(1)], "all lack the same");
        assert_eq!(named(&[(0, "1"), (2, "1")]), [of(1)], "all others");
        assert_eq!(named(&[(0, "1"), (1, "1")]), [of(0), of(1)], "not all others");
        assert_eq!(named(&[(0, "1"), (2, "0")]), [of(0), of(2)], "they differ");
        assert_eq!(named(&[(0, "null"), (1, "null"), (2, "null")]), [of(0), of(1), of(2)]);
        assert_eq!(named(&[]), []);
    }

    #[test]
    fn a_ring_is_as_fast_as_its_slowest_link() {
        let usage = Usage::default();
        let transfer = |bytes_per_s| Transfer::of(1, bytes_per_s, usage);
        let direction = |(from, to, speed): (usize, usize, f64)| Direction {
            from,
            to,
            transfers: vec![transfer(speed / 2.0), transfer(speed)],
            ..Direction::default()
        };
        let nodes = ["a", "b", "c"].map(|name| NodeEvidence { name: name.into(), ..NodeEvidence::default() }).to_vec();
        let all = [(0, 1, 9.0), (1, 2, 8.0), (2, 0, 7.0), (1, 0, 1.0)];
        let measured = Measurements { nodes, directions: all.map(direction).to_vec(), ..Measurements::default() };
        assert_eq!(slowest_link(&measured, &["a", "b", "c"]), Some(7.0));
        assert_eq!(slowest_link(&measured, &["a", "a", "b"]), Some(1.0), "two ranks of a node are next to each other");
        assert_eq!(slowest_link(&measured, &["a", "c", "b"]), None, "not measured");
        assert_eq!(slowest_link(&measured, &["a", "a"]), None);
        assert_eq!(slowest_link(&measured, &["a", "b", "d"]), None);
    }
}
