//! A hundred seeded clusters for each fault: bandwidth(i→j) = min(out i, in j), with noise that was recorded on eight
//! nodes of the lab, and with the second and third measurement of what looks slow.

use super::blame::{AGAIN, ALONE, suspects, verdict};
use crate::bench::measure::schedule;
use crate::bench::measurements::*;
use crate::bench::verdict::*;
use serde::Deserialize;
use std::sync::LazyLock;

/// The measurements of eight nodes without a fault, on a machine with two cores.
static RECORDED: LazyLock<Recorded> = LazyLock::new(|| serde_json::from_str(include_str!("noise.json")).unwrap());

#[derive(Deserialize)]
pub(super) struct Recorded {
    /// Behind a limit of 200 Mb/s, which is lower than what the processors could do, while other programs kept them
    /// busy.
    pub(super) limited: Vec<Run>,
    /// With nothing but the processors to limit them.
    pub(super) free: Vec<Run>,
    /// Speeds of processors, in loops a second of their time.
    loops_per_s: Vec<f64>,
}

pub(super) fn recorded() -> &'static Recorded {
    &RECORDED
}

/// One benchmark's measurements of each direction of a pair.
#[derive(Deserialize)]
pub(super) struct Run(Vec<Row>);

/// Sender, receiver, the bandwidths with one and four streams in MB/s, the shortest round trip in µs, the idle share of
/// the busier machine's processors in %, and the datagrams that were lost of a thousand.
#[derive(Clone, Copy, Deserialize)]
struct Row(usize, usize, f64, f64, f64, #[serde(default)] f64, #[serde(default)] u32);

impl Run {
    fn row(&self, from: usize, to: usize) -> Row {
        *self.0.iter().find(|row| (row.0, row.1) == (from, to)).unwrap()
    }
}

/// The limit behind which noise was recorded, in MB/s.
const LIMIT: f64 = 25.0;

/// A generator of numbers that always gives the same ones.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() * n as f64) as usize).min(n - 1)
    }

    fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        (1..n).rev().for_each(|i| all.swap(i, self.below(i + 1)));
        all
    }

    /// Recorded nodes for as many of a cluster: each once, as long as there are enough.
    fn labels(&mut self, n: usize) -> Vec<usize> {
        (0..n.div_ceil(8)).flat_map(|_| self.shuffled(8)).take(n).collect()
    }
}

/// A network without a fault.
#[derive(Clone, Copy)]
pub(super) struct Network {
    noise: &'static [Run],
    /// The nominal speed of its links in Mb/s; `None` for virtual ones.
    speed: Option<u32>,
    /// The bandwidth that each node can send and receive, in MB/s.
    each: f64,
    /// If set, the processors limit it further, to the recorded bandwidth.
    is_processor_bound: bool,
}

/// Links that limit the bandwidth, while the processors have to do with other programs.
pub(super) fn links(speed: Option<u32>) -> Network {
    let each = speed.map_or(LIMIT, |speed| f64::from(speed) / 8.0);
    Network { noise: &RECORDED.limited, speed, each, is_processor_bound: false }
}

/// Virtual links whose only limit is the processors.
pub(super) fn processors() -> Network {
    Network { noise: &RECORDED.free, speed: None, each: f64::INFINITY, is_processor_bound: true }
}

/// The fault of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    None,
    /// This node sends or receives at this share of its bandwidth.
    Rate(usize, Way, f64),
    /// The connection from one node to the other does.
    PairRate(usize, usize, f64),
    /// This share of what a node sends or receives is lost.
    Loss(usize, Way, f64),
    /// This share of what goes from one node to the other is lost.
    PairLoss(usize, usize, f64),
    /// Packets of this node take longer by these µs.
    Delay(usize, f64),
    /// This node's processor has this share of its speed.
    Processor(usize, f64),
    /// Packets to and from this node are lost if they have more than 1500 bytes, while all interfaces have 9000.
    Mtu(usize),
}

impl Fault {
    fn concerns(self, from: usize, to: usize) -> bool {
        let of = |node: usize, way: Way| (way != Way::In && node == from) || (way != Way::Out && node == to);
        match self {
            Fault::None => false,
            Fault::Rate(node, way, _) | Fault::Loss(node, way, _) => of(node, way),
            Fault::PairRate(a, b, _) | Fault::PairLoss(a, b, _) => (a, b) == (from, to),
            Fault::Delay(node, _) | Fault::Processor(node, _) | Fault::Mtu(node) => of(node, Way::Both),
        }
    }

    /// The subject that is right.
    fn subject(self, n: usize) -> Option<Subject> {
        match self {
            Fault::None => None,
            // of two nodes nothing tells which one it is
            Fault::Rate(node, way, _) | Fault::Loss(node, way, _) if n == 2 => {
                let is_from_first = (node == 0) == (way == Way::Out);
                Some(match way {
                    Way::Both => Subject::Pair(0, 1, Way::Both),
                    _ if is_from_first => Subject::Pair(0, 1, Way::Out),
                    _ => Subject::Pair(1, 0, Way::Out),
                })
            }
            Fault::Rate(node, way, _) | Fault::Loss(node, way, _) => Some(Subject::Node(node, way)),
            Fault::PairRate(a, b, _) | Fault::PairLoss(a, b, _) => Some(Subject::Pair(a, b, Way::Out)),
            Fault::Delay(node, _) | Fault::Processor(node, _) | Fault::Mtu(node) => {
                Some(Subject::Node(node, Way::Both))
            }
        }
    }
}

/// Measures these pairs, with a fault and the noise of one recorded benchmark.
pub(super) fn measure(
    random: &mut Random,
    network: Network,
    run: &Run,
    labels: &[usize],
    fault: Fault,
    pairs: &[(usize, usize)],
) -> Vec<Direction> {
    let mut directions = Vec::new();
    for (from, to) in pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]) {
        let (a, b) = (labels[from], labels[to]);
        let Row(_, _, one, four, trip, idle, lost) = run.row(a, if a == b { (b + 1) % 8 } else { b });
        let is_affected = fault.concerns(from, to);
        let (mut rate, mut loss, mut delay, mut largest) = (1.0, 0.0, 0.0, 9000);
        match fault {
            Fault::Rate(_, _, share) | Fault::PairRate(_, _, share) if is_affected => rate = share,
            Fault::Loss(_, _, share) | Fault::PairLoss(_, _, share) if is_affected => (rate, loss) = (0.4, share),
            Fault::Delay(_, us) if is_affected => (rate, delay) = (0.6, us),
            Fault::Processor(_, share) if is_affected => rate = share,
            Fault::Mtu(_) if is_affected => (rate, largest) = (0.0, 1500),
            _ => {}
        }
        let most = network.each * rate;
        let bandwidth = |mega: f64| match fault {
            // infinite capacities have no share
            Fault::Rate(..) | Fault::PairRate(..) if network.is_processor_bound => mega.min(most),
            _ if network.is_processor_bound => mega * rate,
            _ => most * mega / LIMIT,
        };
        let usage = Usage { idle: Some(idle / 100.0), steal: Some(0.0), busiest_idle: Some(0.0) };
        let transfer = |streams, mega: f64| Transfer {
            streams,
            bytes_per_s: bandwidth(mega) * 1e6,
            retransmits: Some(0),
            segments: Some(1000),
            snd_mss: Some(1448),
            pmtu: Some(9000),
            sender: usage,
            receiver: usage,
        };
        let dropped = if loss > 0.0 { (0..1000).filter(|_| random.next() < loss).count() as u32 } else { 0 };
        let (min, median, p99) = (trip + delay, trip * 1.2 + delay, trip * 5.0 + delay);
        directions.push(Direction {
            from,
            to,
            error: None,
            round_trip_us: Some(RoundTrip { median, min, p99, count: 900 }),
            transfers: vec![transfer(1, one), transfer(4, four)],
            probes: Some(Probes {
                sent: 1000,
                received: 1000 - (dropped + lost).min(1000),
                largest: Some(largest),
                sendable: Some(9000),
                ..Probes::default()
            }),
            alone: false,
        });
    }
    directions
}

/// The interface of a node.
pub(super) fn link(speed: Option<u32>) -> Link {
    Link { interface: "eth0".into(), mtu: Some(9000), speed, ..Link::default() }
}

/// A whole benchmark of `n` nodes, with the second and third measurement of suspicious pairs.
fn bench(random: &mut Random, network: Network, n: usize, fault: Fault) -> NetworkVerdict {
    let labels = random.labels(n);
    let nodes = (0..n).map(|node| {
        let mut loops_per_s = RECORDED.loops_per_s[random.below(RECORDED.loops_per_s.len())];
        if let Fault::Processor(slow, share) = fault {
            loops_per_s *= if slow == node { share } else { 1.0 };
        }
        let usage = Usage { idle: Some(0.0), ..Usage::default() };
        let compute =
            Compute { loops_per_s, share: 0.05 + random.next() / 5.0, copy_bytes_per_s: 9e9, throttled: None, usage };
        NodeEvidence {
            name: format!("node{}", node + 1),
            before: Some(link(network.speed)),
            after: Some(link(network.speed)),
            compute: Some(compute),
        }
    });
    let mut measurements = Measurements { nodes: nodes.collect(), ..Measurements::default() };
    let pairs: Vec<(usize, usize)> = schedule::rounds(n).concat();
    let runs = random.shuffled(network.noise.len());
    measurements.directions = measure(random, network, &network.noise[runs[0]], &labels, fault, &pairs);
    for run in &runs[1..=AGAIN] {
        let again = suspects(&measurements);
        let together = measure(random, network, &network.noise[*run], &labels, fault, &again.together);
        let mut alone = measure(random, network, &network.noise[*run], &labels, fault, &again.alone);
        alone.iter_mut().for_each(|direction| direction.alone = true);
        if !network.is_processor_bound {
            // what the links limit leaves processors time once the other nodes wait
            for transfer in alone.iter_mut().flat_map(|direction| &mut direction.transfers) {
                (transfer.sender.idle, transfer.receiver.idle) = (Some(0.6), Some(0.6));
            }
        }
        measurements.directions.extend(together.into_iter().chain(alone));
    }
    verdict(&measurements)
}

/// The bandwidth of all transfers together on a machine whose processors the nodes share, and that of a slow link, in
/// MB/s.
const SHARED: (f64, f64) = (1400.0, 6.25);

/// Measures pairs at the same time between nodes that share their processors, as those of the lab do. A node of them
/// may have a slow link. One of ten transfers hardly gets a processor, or other programs have them while a pair is
/// measured alone.
fn measure_shared(random: &mut Random, slow: Option<usize>, round: &[(usize, usize)]) -> Vec<Direction> {
    let mut directions = Vec::new();
    for (from, to) in round.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]) {
        let (is_slow, is_alone) = (slow == Some(from), round.len() == 1);
        let mut transfer = |streams: u32| {
            let is_disturbed = random.next() < 0.1;
            let normal = (0..12).map(|_| random.next()).sum::<f64>() - 6.0;
            let spread = if is_alone { 0.2 } else { 0.5 };
            let left = if is_disturbed { 0.1 + 0.4 * random.next() } else { 1.0 };
            let mega = SHARED.0 / round.len() as f64 * left * (spread * normal).exp();
            // what waits in buffers while its receiver has no processor arrives all at once
            let late = if is_alone { 1.0 } else { 1.0 + random.next() };
            let mega = if is_slow { mega.min(SHARED.1 * late) } else { mega };
            let idle = match (is_alone && !is_disturbed, is_slow) {
                (true, true) => 0.8,
                (true, false) => 0.3 * random.next(),
                (false, _) => 0.06 * random.next(),
            };
            Transfer::of(streams, mega * 1e6, Usage { idle: Some(idle), ..Usage::default() })
        };
        let transfers = vec![transfer(1), transfer(4)];
        let min = 15.0 + 60.0 * random.next();
        let round_trip_us = Some(RoundTrip { median: 2.0 * min, min, p99: 90.0 * min, count: 300 });
        let probes = Some(Probes { sent: 1000, received: 1000, ..Probes::default() });
        directions.push(Direction { from, to, error: None, round_trip_us, transfers, probes, alone: is_alone });
    }
    directions
}

/// A whole benchmark of nodes that share their processors.
fn bench_shared(seed: u64, n: usize, slow: Option<usize>) -> NetworkVerdict {
    let mut random = Random(seed);
    let nodes = (0..n).map(|node| NodeEvidence {
        name: format!("node{}", node + 1),
        before: Some(link(None)),
        after: Some(link(None)),
        compute: None,
    });
    let mut measurements = Measurements { nodes: nodes.collect(), ..Measurements::default() };
    let mut add = |measurements: &mut Measurements, rounds: Vec<schedule::Round>| {
        for round in rounds {
            measurements.directions.extend(measure_shared(&mut random, slow, &round));
        }
    };
    add(&mut measurements, schedule::rounds(n));
    for _ in 0..AGAIN {
        let again = suspects(&measurements);
        assert!(again.alone.len() <= ALONE.0);
        add(&mut measurements, again.rounds());
    }
    verdict(&measurements)
}

/// The numbers of nodes of the lab that are measured.
const OF_LAB: [usize; 3] = [2, 4, 8];

#[test]
fn nodes_that_share_their_processors_accuse_no_one() {
    for n in OF_LAB {
        let verdicts: Vec<NetworkVerdict> = (0..200).map(|seed| bench_shared(seed, n, None)).collect();
        let accusing: Vec<_> = verdicts.iter().filter(|verdict| !verdict.accusations.is_empty()).collect();
        assert!(accusing.is_empty(), "{n} nodes: {accusing:#?}");
        let unclear = verdicts.iter().filter(|verdict| !verdict.is_good()).count();
        assert!(unclear <= 10, "{n} nodes: {unclear} of 200 are unclear");
    }
}

#[test]
fn a_slow_link_between_nodes_that_share_their_processors_is_found() {
    for n in OF_LAB {
        for seed in 0..200 {
            let slow = seed as usize % n;
            let verdict = bench_shared(seed, n, Some(slow));
            let subjects: Vec<Subject> = verdict.accusations.iter().map(|of| of.subject).collect();
            let is_right = match subjects[..] {
                // of two nodes nothing tells which one it is, but the direction
                [Subject::Pair(from, _, Way::Out)] => n == 2 && from == slow,
                [Subject::Node(node, Way::Out | Way::Both)] => node == slow,
                _ => false,
            };
            assert!(is_right, "{n} nodes, {seed}, node{}: {verdict:#?}", slow + 1);
        }
    }
}

/// Returns the seeds whose benchmarks do not name exactly the right subject, with what they name: a hundred of eight
/// nodes, which are the claim, and fewer of others.
fn wrong(n: usize, network: Network, fault: impl Fn(&mut Random) -> Fault) -> Vec<(u64, Fault, Vec<Subject>)> {
    let run = |seed: u64| {
        let mut random = Random(seed);
        let fault = fault(&mut random);
        let subjects = bench(&mut random, network, n, fault).accusations.iter().map(|of| of.subject).collect();
        (seed, fault, subjects)
    };
    let seeds = match (n, network.speed) {
        (8, None) => 100,
        (9.., _) => 10,
        _ => 25,
    };
    (0..seeds).map(run).filter(|(_, fault, subjects)| *subjects != Vec::from_iter(fault.subject(n))).collect()
}

/// Requires that all benchmarks but one name exactly the right subject, and all of those without a fault.
#[track_caller]
fn assert_named(n: usize, network: Network, fault: impl Fn(&mut Random) -> Fault) {
    let wrong = wrong(n, network, fault);
    let limit = usize::from(!wrong.iter().any(|(_, fault, _)| *fault == Fault::None));
    assert!(wrong.len() <= limit, "{n} nodes, {:?}, {} wrong: {wrong:#?}", network.speed, wrong.len());
}

/// Some node, and a direction.
fn some(random: &mut Random, n: usize) -> (usize, Way) {
    (random.below(n), [Way::Out, Way::In, Way::Both][random.below(3)])
}

/// Some node, and one direction.
fn some_way(random: &mut Random, n: usize) -> (usize, Way) {
    (random.below(n), [Way::Out, Way::In][random.below(2)])
}

const SPEEDS: [Option<u32>; 4] = [None, Some(1_000), Some(25_000), Some(100_000)];

#[test]
fn a_clean_cluster_is_never_accused() {
    for n in [2, 3, 4, 8, 16] {
        for speed in SPEEDS {
            assert_named(n, links(speed), |_| Fault::None);
        }
        assert_named(n, processors(), |_| Fault::None);
    }
}

#[test]
fn a_low_rate_is_found_with_its_direction() {
    for (n, speed) in [(3, None), (4, None), (8, None), (8, Some(1_000)), (8, Some(100_000)), (16, Some(25_000))] {
        for share in [0.1, 0.5] {
            assert_named(n, links(speed), |random| {
                let (node, way) = some(random, n);
                Fault::Rate(node, way, share)
            });
        }
        assert_named(n, links(speed), |random| {
            let pair = random.shuffled(n);
            Fault::PairRate(pair[0], pair[1], 0.1)
        });
    }
}

#[test]
fn of_two_nodes_a_low_rate_names_the_direction() {
    for speed in SPEEDS {
        let wrong = wrong(2, links(speed), |random| {
            let (node, way) = some_way(random, 2);
            Fault::Rate(node, way, 0.1)
        });
        // so few measurements may vary too much to be compared, but never name what is not slow
        assert!(wrong.len() <= 2 && wrong.iter().all(|(.., subjects)| subjects.is_empty()), "{speed:?}: {wrong:?}");
    }
}

#[test]
fn loss_in_one_direction_is_found() {
    for n in [2, 3, 5, 8, 16] {
        assert_named(n, links(None), |random| {
            let (node, way) = some_way(random, n);
            Fault::Loss(node, way, 0.01)
        });
        // also where the processors leave nothing to see of the bandwidth
        assert_named(n, processors(), |random| Fault::Loss(random.below(n), Way::In, 0.01));
    }
    assert_named(8, links(None), |random| {
        let pair = random.shuffled(8);
        Fault::PairLoss(pair[0], pair[1], 0.01)
    });
}

#[test]
fn delay_sizes_and_slow_processors_are_found() {
    for n in [3, 5, 8, 16] {
        assert_named(n, links(None), |random| Fault::Delay(random.below(n), 2_000.0));
        assert_named(n, processors(), |random| Fault::Processor(random.below(n), 0.4));
        assert_named(n, processors(), |random| Fault::Mtu(random.below(n)));
    }
    assert_named(2, processors(), |random| Fault::Processor(random.below(2), 0.4));
}
