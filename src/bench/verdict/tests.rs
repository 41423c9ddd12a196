//! Verdicts on synthetic measurements. What a hundred noisy clusters of each kind give is in `simulation`.

use super::blame::{suspects, verdict};
use super::simulation::{Fault, Random, link, links, measure, recorded};
use crate::bench::measure::schedule;
use crate::bench::measurements::*;
use crate::bench::verdict::*;
use std::collections::BTreeMap;

/// Two nodes between which everything is as it should be.
fn two() -> Measurements {
    let node = |name: &str| NodeEvidence {
        name: name.to_owned(),
        before: Some(Link { speed: Some(10_000), duplex: Some("full".into()), ..link(None) }),
        after: None,
        compute: None,
    };
    let usage = Usage { idle: Some(0.6), steal: Some(0.0), busiest_idle: Some(0.1) };
    let direction =
        |from, to| Direction { from, to, transfers: vec![Transfer::of(4, 1.17e9, usage)], ..Direction::default() };
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

/// A cluster whose bandwidths are these, in bytes a second, except a little noise.
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
    assert_eq!(subjects, [Subject::Pair(0, 62, Way::Out), Subject::Node(40, Way::In)], "the strongest first");
    assert_eq!(suspects(&slow).together, [(0, 62)], "a node is named by many pairs");
    let text = sentence(&slow);
    assert!(text.starts_with("node1 → node63 transfers only ") && text.ends_with("; and 1 finding more"), "{text}");
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
    let counters = |errors: u64, packets: u64, including: &str| {
        let names =
            ["rx_errors", "rx_crc_errors", "rx_dropped", "rx_missed_errors", "tx_errors", "collisions", "tx_dropped"];
        let mut all: BTreeMap<String, Option<u64>> = names.map(|name| (name.to_owned(), Some(0))).into();
        all.extend([
            ("rx_crc_errors".into(), Some(errors)),
            (including.into(), Some(errors)),
            ("rx_packets".into(), Some(packets)),
            ("tx_packets".into(), Some(packets)),
        ]);
        all
    };
    let grown = |errors: u64, including: &str| {
        changed(|of| {
            let node = &mut of.nodes[1];
            let link = Link { counters: counters(5, 1000, including), ..node.before.take().unwrap() };
            node.after = Some(Link { counters: counters(5 + errors, 101_000, including), ..link.clone() });
            node.before = Some(link);
        })
    };
    // most drivers count the same packets in both
    for including in ["rx_errors", "rx_crc_errors"] {
        assert_eq!(grown(0, including), sentence(&two()));
        assert_eq!(grown(9, including), sentence(&two()), "few errors may be chance");
        assert_eq!(grown(400, including), "node2: 400 receive errors on eth0");
    }
}

#[test]
fn what_busy_processors_made_slow_accuses_no_one() {
    let usage = |idle, steal| Usage { idle: Some(idle), steal: Some(steal), busiest_idle: None };
    // what is measured of the first direction: bandwidth, usage of its processors, and whether nothing else is measured
    let add = |of: &mut Measurements, bytes_per_s: f64, usage: Usage, alone: bool| {
        let transfers = vec![Transfer::of(4, bytes_per_s, usage)];
        of.directions.push(Direction { from: 0, to: 1, transfers, alone, ..Direction::default() });
    };
    let mut busy = two();
    busy.directions.remove(0);
    add(&mut busy, 1e7, usage(0.0, 0.0), false);
    for also in [None, Some((usage(0.6, 0.0), false)), Some((usage(0.0, 0.0), true)), Some((usage(0.6, 0.3), true))] {
        let mut busy = busy.clone();
        also.into_iter().for_each(|(usage, alone)| add(&mut busy, 1e7, usage, alone));
        let found = verdict(&busy);
        assert_eq!(
            (found.accusations.as_slice(), found.is_unclear, found.is_good()),
            (&[][..], true, false),
            "{also:?}"
        );
        let note = "the processors were busy whenever 1 of 2 connections were measured: their bandwidth is not judged";
        assert!(found.notes.iter().any(|of| of == note), "{:?}", found.notes);
        assert_eq!(found.sentence(&["node1", "node2"]), "the bandwidths vary too much to be compared");
        assert_eq!((suspects(&busy).alone, suspects(&busy).together), (vec![(0, 1)], vec![]), "{also:?}");
        assert!(!past::trusted(&busy, &found).contains_key(&(0, 1)));
    }
    let mut fast = busy.clone();
    add(&mut fast, 1.1e9, usage(0.0, 0.0), true);
    assert_eq!(sentence(&fast), sentence(&two()), "what disturbs a measurement never makes it faster");
    // also if it seemed a little faster, as what waits in buffers may
    add(&mut busy, 8e6, usage(0.6, 0.0), true);
    let text = sentence(&busy);
    assert!(text.starts_with("node1 → node2 transfers only 80 Mb/s, the other direction reaches 9.36 Gb/s"), "{text}");
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
    cluster.directions =
        measure(&mut random, links(None), &recorded().limited[0], &[0, 1, 2, 3, 4], Fault::None, &pairs);
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

#[test]
fn a_processor_that_shares_its_core_is_not_accused() {
    let accused = |n, share| {
        let mut measured = crate::bench::measurements::tests::measured(n, |_, _| Ok(9.4));
        measured.nodes[1].compute.iter_mut().for_each(|compute| compute.loops_per_s *= share);
        verdict(&measured).accusations.into_iter().map(|of| of.subject).collect::<Vec<_>>()
    };
    for n in [2, 3] {
        assert_eq!(accused(n, 0.59), [], "two threads of one core have about 0.6 of its speed each");
        assert_eq!(accused(n, 0.45), [Subject::Node(1, Way::Both)]);
    }
}
