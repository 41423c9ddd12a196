//! Verdicts on synthetic measurements: what the lab measured without a fault, and faults on top of it.

use super::blame::{AGAIN, suspects, verdict};
use super::*;
use std::sync::LazyLock;

/// What eight nodes measured of each other, with no fault, on a machine of two cores whose processors were always busy.
static RECORDED: LazyLock<Recorded> = LazyLock::new(|| serde_json::from_str(include_str!("noise.json")).unwrap());

#[derive(Deserialize)]
struct Recorded {
    /// Behind a limit of 200 Mb/s, which is lower than what the processors could do.
    limited: Vec<Matrix>,
    /// With nothing but the processors to limit them.
    free: Vec<Matrix>,
    /// Speeds of processors, in loops a second of their time.
    loops_per_s: Vec<f64>,
}

/// One run: for each direction of a pair the bandwidths with one and four streams in MB/s, and the shortest round trip in µs.
#[derive(Deserialize)]
struct Matrix(Vec<(usize, usize, f64, f64, f64)>);

/// A generator of numbers that always gives the same ones.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
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
}

/// What is wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// This node sends or receives at this share of its bandwidth.
    Rate(usize, Way, f64),
    /// The connection from one node to the other does.
    PairRate(usize, usize, f64),
    /// This share of what a node sends or receives is lost.
    Loss(usize, Way, f64),
    /// The same between two nodes.
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
            Fault::Rate(0, _, _) if n == 2 => Some(Subject::Pair(0, 1, Way::Out)),
            Fault::Rate(node, way, _) | Fault::Loss(node, way, _) => Some(Subject::Node(node, way)),
            Fault::PairRate(a, b, _) | Fault::PairLoss(a, b, _) => Some(Subject::Pair(a, b, Way::Out)),
            Fault::Delay(node, _) | Fault::Processor(node, _) | Fault::Mtu(node) => {
                Some(Subject::Node(node, Way::Both))
            }
        }
    }
}

/// Measures these pairs of `n` nodes, with a fault on top of one recorded run.
fn measure(
    random: &mut Random,
    run: &Matrix,
    labels: &[usize],
    fault: Fault,
    pairs: &[(usize, usize)],
) -> Vec<Direction> {
    let usage = Usage { idle: Some(0.0), steal: Some(0.0), busiest_idle: Some(0.0) };
    let mut directions = Vec::new();
    for (from, to) in pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]) {
        let (_, _, one, four, trip) = *run.0.iter().find(|row| (row.0, row.1) == (labels[from], labels[to])).unwrap();
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
        let transfer = |streams, mega: f64| Transfer {
            streams,
            bytes_per_s: mega * 1e6 * rate,
            retransmits: Some(0),
            segments: Some(1000),
            snd_mss: Some(1448),
            pmtu: Some(9000),
            sender: usage,
            receiver: usage,
        };
        let lost = if loss > 0.0 { (0..1000).filter(|_| random.next() < loss).count() as u32 } else { 0 };
        let (min, median, p99) = (trip + delay, trip * 1.2 + delay, trip * 5.0 + delay);
        directions.push(Direction {
            from,
            to,
            error: None,
            round_trip_us: Some(RoundTrip { median, min, p99, count: 900 }),
            transfers: vec![transfer(1, one), transfer(4, four)],
            probes: Some(Probes {
                sent: 1000,
                received: 1000 - lost,
                largest: Some(largest),
                sendable: Some(9000),
                ..Probes::default()
            }),
        });
    }
    directions
}

fn link() -> Link {
    Link { interface: "eth0".into(), mtu: Some(9000), ..Link::default() }
}

/// A whole benchmark of `n` nodes, with the second measurement of suspicious pairs.
fn bench(random: &mut Random, recorded: &[Matrix], n: usize, fault: Fault) -> Verdict {
    let labels = random.shuffled(8);
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
            before: Some(link()),
            after: Some(link()),
            compute: Some(compute),
        }
    });
    let mut measurements = Measurements { nodes: nodes.collect(), ..Measurements::default() };
    let pairs: Vec<(usize, usize)> = schedule::rounds(n).concat();
    let runs = random.shuffled(recorded.len());
    measurements.directions = measure(random, &recorded[runs[0]], &labels, fault, &pairs);
    for run in &runs[1..=AGAIN] {
        let again = suspects(&measurements);
        measurements.directions.extend(measure(random, &recorded[*run], &labels, fault, &again));
    }
    verdict(&measurements)
}

/// Returns how many of a hundred runs name exactly the right subject.
#[track_caller]
fn assert_named(n: usize, recorded: &[Matrix], fault: impl Fn(&mut Random) -> Fault) {
    let mut wrong = Vec::new();
    for seed in 0..100 {
        let mut random = Random(seed);
        let fault = fault(&mut random);
        let subjects: Vec<Subject> =
            bench(&mut random, recorded, n, fault).accusations.iter().map(|of| of.subject).collect();
        if subjects != Vec::from_iter(fault.subject(n)) {
            wrong.push((seed, fault, subjects));
        }
    }
    let limit = usize::from(!wrong.iter().any(|(_, fault, _)| *fault == Fault::None));
    assert!(wrong.len() <= limit, "{n} nodes, {} wrong: {wrong:#?}", wrong.len());
}

/// Some node, and a direction.
fn some(random: &mut Random, n: usize) -> (usize, Way) {
    (random.below(n), [Way::Out, Way::In, Way::Both][random.below(3)])
}

#[test]
fn a_clean_cluster_is_never_accused() {
    for n in [2, 3, 4, 8] {
        assert_named(n, &RECORDED.limited, |_| Fault::None);
        assert_named(n, &RECORDED.free, |_| Fault::None);
    }
}

#[test]
fn a_low_rate_is_found_with_its_direction() {
    for n in [3, 4, 8] {
        for share in [0.1, 0.5] {
            assert_named(n, &RECORDED.limited, |random| {
                let (node, way) = some(random, n);
                Fault::Rate(node, way, share)
            });
        }
        assert_named(n, &RECORDED.limited, |random| {
            let pair = random.shuffled(n);
            Fault::PairRate(pair[0], pair[1], 0.1)
        });
    }
}

#[test]
fn loss_in_one_direction_is_found() {
    for n in [3, 5, 8] {
        assert_named(n, &RECORDED.limited, |random| {
            let way = [Way::Out, Way::In][random.below(2)];
            Fault::Loss(random.below(n), way, 0.01)
        });
        // also where the processors leave nothing to see of the bandwidth
        assert_named(n, &RECORDED.free, |random| Fault::Loss(random.below(n), Way::In, 0.01));
    }
    assert_named(2, &RECORDED.limited, |_| Fault::PairLoss(0, 1, 0.01));
}

#[test]
fn delay_sizes_and_slow_processors_are_found() {
    for n in [3, 5, 8] {
        assert_named(n, &RECORDED.limited, |random| Fault::Delay(random.below(n), 2_000.0));
        assert_named(n, &RECORDED.free, |random| Fault::Processor(random.below(n), 0.4));
        assert_named(n, &RECORDED.free, |random| Fault::Mtu(random.below(n)));
    }
    assert_named(2, &RECORDED.free, |random| Fault::Processor(random.below(2), 0.4));
}

/// Two nodes between which everything is as it should be.
fn two() -> Measurements {
    let node = |name: &str| NodeEvidence {
        name: name.to_owned(),
        before: Some(Link { speed: Some(10_000), duplex: Some("full".into()), ..link() }),
        after: None,
        compute: None,
    };
    let usage = Usage { idle: Some(0.6), steal: Some(0.0), busiest_idle: Some(0.1) };
    let direction = |from, to| Direction {
        from,
        to,
        transfers: vec![Transfer {
            streams: 4,
            bytes_per_s: 1.17e9,
            retransmits: None,
            segments: None,
            snd_mss: None,
            pmtu: None,
            sender: usage,
            receiver: usage,
        }],
        ..Direction::default()
    };
    Measurements {
        nodes: vec![node("node1"), node("node2")],
        directions: vec![direction(0, 1), direction(1, 0)],
        past: BTreeMap::new(),
    }
}

fn sentence(measurements: &Measurements) -> String {
    let names: Vec<&str> = measurements.nodes.iter().map(|node| node.name.as_str()).collect();
    verdict(measurements).sentence(&names)
}

/// The sentence after a change.
fn changed(change: impl FnOnce(&mut Measurements)) -> String {
    let mut measurements = two();
    change(&mut measurements);
    sentence(&measurements)
}

fn slow(measurements: &mut Measurements, direction: usize, bytes_per_s: f64) {
    measurements.directions[direction].transfers[0].bytes_per_s = bytes_per_s;
}

#[test]
fn of_two_nodes_only_local_evidence_names_one() {
    assert_eq!(sentence(&two()), "no node and no connection is slower than the others");
    let back = "node1 → node2 transfers only 936 Mb/s, the other direction reaches 9.36 Gb/s";
    let unknown = "; the measurements cannot tell which node it is";
    assert_eq!(changed(|of| slow(of, 0, 1.17e8)), format!("{back}{unknown}"));
    let both = |of: &mut Measurements| (0..2).for_each(|direction| slow(of, direction, 1.17e8));
    assert_eq!(changed(both), format!("node1 ↔ node2 transfers only 936 Mb/s, the link has 10.0 Gb/s{unknown}"));
    let limited = changed(|of| {
        both(of);
        let link = of.nodes[1].before.as_mut().unwrap();
        (link.speed, link.faster) = (Some(1000), BTreeMap::from([("ib0".into(), 10_000)]));
    });
    assert_eq!(limited, "node2: its link has 1 Gb/s (ib0 has 10 Gb/s), those of the others 10 Gb/s");
    let half = changed(|of| {
        slow(of, 0, 1.17e8);
        of.nodes[0].before.as_mut().unwrap().duplex = Some("half".into());
    });
    assert_eq!(half, "node1 sends only 936 Mb/s, the other direction reaches 9.36 Gb/s: its link is half duplex");
    let past = changed(|of| {
        both(of);
        of.nodes.iter_mut().for_each(|node| node.before = None);
        for (from, to) in [("node1", "node2"), ("node2", "node1")] {
            of.past.insert((from.into(), to.into()), vec![1.1e9, 1.0e9, 1.2e9]);
        }
    });
    assert_eq!(past, format!("node1 ↔ node2 transfers only 936 Mb/s, it was 8.80 Gb/s in earlier benchmarks{unknown}"));
}

/// A cluster whose bandwidths are these, in bytes a second, but for a little noise.
fn cluster(n: usize, bandwidth: impl Fn(usize, usize) -> f64) -> Measurements {
    let mut random = Random(n as u64);
    let mut all = Measurements { nodes: vec![two().nodes[0].clone(); n], ..Measurements::default() };
    for (index, node) in all.nodes.iter_mut().enumerate() {
        node.name = format!("node{}", index + 1);
    }
    for (from, to) in schedule::rounds(n).concat().into_iter().flat_map(|(a, b)| [(a, b), (b, a)]) {
        let mut direction = Direction { from, to, ..two().directions[0].clone() };
        direction.transfers[0].bytes_per_s = bandwidth(from, to) * (0.95 + random.next() / 10.0);
        all.directions.push(direction);
    }
    all
}

#[test]
fn a_sample_of_a_large_cluster_is_enough() {
    assert_eq!(sentence(&cluster(64, |_, _| 1e9)), "no node and no connection is slower than the others");
    let slow = cluster(64, |from, to| {
        if to == 40 {
            3e8
        } else if (from, to) == (0, 62) {
            1e8
        } else {
            1e9
        }
    });
    let subjects: Vec<Subject> = verdict(&slow).accusations.iter().map(|of| of.subject).collect();
    assert_eq!(subjects, [Subject::Node(40, Way::In), Subject::Pair(0, 62, Way::Out)]);
    assert_eq!(suspects(&slow), [(0, 62)], "a node is named by many pairs");
    let text = sentence(&slow);
    assert!(text.starts_with("node41 receives only 2.4") && text.ends_with("; and 1 finding more"), "{text}");
}

#[test]
fn what_concerns_every_connection_names_no_node() {
    let mut jumbo = cluster(5, |_, _| 0.0);
    for direction in &mut jumbo.directions {
        direction.probes =
            Some(Probes { sent: 1000, received: 1000, largest: Some(1500), sendable: Some(9000), ..Probes::default() });
    }
    let text = "every connection loses packets of more than 1500 bytes, while the interfaces send up to 9000";
    assert_eq!(sentence(&jumbo), text);
}

#[test]
fn where_everything_is_slower_than_it_was_no_node_is() {
    let mut slower = cluster(4, |_, _| 3e8);
    let names = slower.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    for (from, to) in schedule::rounds(4).concat().into_iter().flat_map(|(a, b)| [(a, b), (b, a)]) {
        slower.past.insert((names[from].clone(), names[to].clone()), vec![1e9, 1e9, 1.1e9]);
    }
    let text = sentence(&slower);
    assert!(
        text.starts_with("every connection transfers only 2.")
            && text.ends_with("it was 8.00 Gb/s in earlier benchmarks"),
        "{text}"
    );
}

#[test]
fn counters_that_grow_are_evidence() {
    let counters = |errors: u64, packets: u64| {
        let names =
            ["rx_errors", "rx_crc_errors", "rx_dropped", "rx_missed_errors", "tx_errors", "collisions", "tx_dropped"];
        let mut all: BTreeMap<String, Option<u64>> = names.map(|name| (name.to_owned(), Some(0))).into();
        all.extend([
            ("rx_crc_errors".into(), Some(errors)),
            ("rx_packets".into(), Some(packets)),
            ("tx_packets".into(), Some(packets)),
        ]);
        all
    };
    let grown = |errors: u64| {
        changed(|of| {
            let node = &mut of.nodes[1];
            let link = Link { counters: counters(5, 1000), ..node.before.take().unwrap() };
            node.after = Some(Link { counters: counters(5 + errors, 101_000), ..link.clone() });
            node.before = Some(link);
        })
    };
    assert_eq!(grown(0), sentence(&two()));
    assert_eq!(grown(9), sentence(&two()), "few errors may be chance");
    assert_eq!(grown(400), "node2: 400 receive errors on eth0");
}

#[test]
fn what_is_unknown_is_not_fine() {
    let cannot_tell = "; the measurements cannot tell which node it is";
    let nothing = sentence(&Measurements { directions: Vec::new(), ..two() });
    assert_eq!(nothing, format!("node1 ↔ node2 could not be measured (no result){cannot_tell}"));
    assert_eq!(
        sentence(&Measurements { nodes: vec![NodeEvidence::default()], ..Measurements::default() }),
        "nothing could be measured"
    );
    let failed = |of: &mut Measurements, direction: usize| {
        let Direction { from, to, .. } = of.directions[direction];
        of.directions[direction] =
            Direction { from, to, error: Some("no answer within 10 s".into()), ..Direction::default() };
    };
    let text = changed(|of| (0..2).for_each(|direction| failed(of, direction)));
    assert_eq!(text, format!("node1 ↔ node2 could not be measured (no answer within 10 s){cannot_tell}"));
    let (n, mut random) = (5, Random(1));
    let mut cluster = Measurements { nodes: vec![two().nodes[0].clone(); n], ..Measurements::default() };
    let pairs = schedule::rounds(n).concat();
    cluster.directions = measure(&mut random, &RECORDED.limited[0], &[0, 1, 2, 3, 4], Fault::None, &pairs);
    for index in 0..cluster.directions.len() {
        if [cluster.directions[index].from, cluster.directions[index].to].contains(&3) {
            failed(&mut cluster, index);
        }
    }
    let mut nothing = cluster.clone();
    (0..nothing.directions.len()).for_each(|index| failed(&mut nothing, index));
    assert_eq!(sentence(&nothing), "no connection could be measured (no answer within 10 s)");
    let verdict = verdict(&cluster);
    assert_eq!(verdict.accusations.iter().map(|of| of.subject).collect::<Vec<_>>(), [Subject::Node(3, Way::Both)]);
    assert_eq!((verdict.measured, verdict.unmeasured), (12, 8));
    assert_eq!(verdict.notes[0], "8 of 20 connections could not be measured");
}

#[test]
fn the_programs_lines_are_read() {
    let lines = r#"{"from": 0, "to": 1, "round_trip_us": {"median": 11.3, "min": 10.4, "p99": 16.9, "count": 900}, "transfers": [{"sender": {"idle": 0.1, "steal": 0.0, "busiest_idle": null}, "retransmits": 0, "segments": 226875, "snd_mss": 1448, "pmtu": 1500, "min_rtt": 2, "streams": 1, "bytes_per_s": 916455424.0, "receiver": {"idle": null, "steal": null, "busiest_idle": null}}], "probes": {"sent": 1000, "unsent": 2, "sendable": 1500, "received": 990, "overflowed": 3, "largest": 1500, "ended": true}}
{"from": 1, "to": 0, "error": "Connection refused"}
{"from": 1, "to": 2, "round_trip_us": {"median": 11.3, "min": 10.4, "p99": 16.9, "count": 900}, "transfers": [], "probes": null}"#;
    let directions: Vec<Direction> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(directions[0].bandwidth(), Some(916_455_424.0));
    assert_eq!(directions[0].probes.unwrap().lost(), 7);
    assert_eq!(directions[1].error.as_deref(), Some("Connection refused"));
    assert_eq!((directions[2].bandwidth(), directions[2].probes), (None, None));
    let link = r#"{"interface": "eth0", "speed": null, "mtu": 1500, "duplex": null, "counters": {"rx_errors": 0, "collisions": null}, "faster": {}}"#;
    assert_eq!(serde_json::from_str::<Link>(link).unwrap().counters["collisions"], None);
    let compute = r#"{"idle": 0.9, "steal": 0.0, "busiest_idle": 0.1, "loops_per_s": 14760959.7, "share": 0.99, "copy_bytes_per_s": 9642515953.3, "throttled": null}"#;
    assert_eq!(serde_json::from_str::<Compute>(compute).unwrap().usage.idle, Some(0.9));
}
