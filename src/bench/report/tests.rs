//! Tests of what is shown of a benchmark.

use super::compared::Compared;
use super::text::TextFormat;
use super::*;
use crate::bench::collectives::Exchange;
use crate::bench::measurements::tests::measured;
use crate::bench::ranks::TrainedModel;
use crate::bench::ranks::tests::{ranks, slow};
use crate::bench::verdict::baseline::Baseline;
use crate::bench::verdict::blame;
use crate::bench::verdict::speeds::Straggler;
use crate::model::collective::{Collective, Dtype};
use serde_json::{Value, json};
use std::time::Duration;

/// Reads the report of measurements with or without ranks, compared with nothing else.
fn report<T>(measured: &Measurements, ranks: Option<&RankResults>, read: impl Fn(BenchReport<'_>) -> T) -> T {
    console::set_colors_enabled(false);
    let verdict = if measured.nodes.is_empty() { NetworkVerdict::default() } else { blame::verdict(measured) };
    read(BenchReport { measured, verdict: &verdict, ranks, compared: &Compared::default() })
}

fn shown(measured: &Measurements) -> String {
    report(measured, None, |report| TextFormat.format(&report).unwrap().to_string())
}

fn shown_of(ranks: &RankResults) -> String {
    report(&Measurements::default(), Some(ranks), |report| TextFormat.format(&report).unwrap().to_string())
}

fn document(report: BenchReport<'_>) -> Value {
    serde_json::to_value(report.document()).unwrap()
}

#[test]
fn two_good_nodes() {
    insta::assert_snapshot!(shown(&measured(2, |_, _| Ok(9.4))));
}

#[test]
fn a_node_that_sends_slowly_is_named_last() {
    let measured = measured(8, |from, _| Ok(if from == 2 { 0.94 } else { 9.4 }));
    let text = shown(&measured);
    assert!(text.lines().all(|line| console::measure_text_width(line) <= 80 || line.starts_with("failed")), "{text}");
    insta::assert_snapshot!(text);
    let (is_good, document) = report(&measured, None, |report| (report.is_good(), document(report)));
    let found = &document["findings"][0];
    assert_eq!((is_good, &found["nodes"][0], &found["direction"]), (false, &"node3".into(), &"out".into()));
    let ok: Vec<bool> = document["nodes"].as_array().unwrap().iter().map(|node| node["ok"] == true).collect();
    assert_eq!(ok, [true, true, false, true, true, true, true, true]);
}

#[test]
fn a_pair_without_a_measurement_has_its_cause() {
    let cut = |from: usize, to: usize| if from + to == 3 { Err("no answer within 3 s") } else { Ok(9.4) };
    let measured = measured(4, cut);
    insta::assert_snapshot!(shown(&measured));
}

#[test]
fn the_better_one_of_two_measurements_is_shown() {
    let mut measured = measured(2, |_, _| Ok(2.0));
    measured.directions.extend(self::measured(2, |_, _| Ok(9.4)).directions);
    let text = shown(&measured);
    assert!(text.contains("9.40 Gb/s") && !text.contains("2.00"), "{text}");
}

#[test]
fn what_is_too_slow_is_part_of_the_verdict() {
    let measured = measured(2, |from, _| Ok([2.0, 9.4][from]));
    let good = BenchReport {
        measured: &self::measured(2, |_, _| Ok(9.4)),
        verdict: &NetworkVerdict::default(),
        ranks: None,
        compared: &Compared::default(),
    };
    let baseline = Baseline::parse(&format!("{{\"ok\": true, {}", &document(good).to_string()[1..])).unwrap();
    let verdict = NetworkVerdict { measured: 2, ..NetworkVerdict::default() };
    let compared = Compared::new(Some(&baseline), &measured, None, Some(1_000_000_000));
    let result = BenchReport { measured: &measured, verdict: &verdict, ranks: None, compared: &compared };
    let shown = TextFormat.format(&result).unwrap().to_string();
    let last = "failed: node1 → node2 transfers only 2.00 Gb/s, 9.40 Gb/s in the baseline\n";
    assert!(shown.ends_with(last), "{shown}");
    assert!(shown.contains("note: bench.min_busbw is not checked: no collectives were measured\n"), "{shown}");
    assert!(!result.is_good());
    assert_eq!(document(result)["baseline"]["slower"][0]["from"], "node1");
    assert_eq!(document(result)["findings"], json!([]));

    // what the inventory requires comes first
    let exchange = Exchange {
        collective: Collective::AllReduce,
        dtype: Dtype::Float32,
        bytes: 1 << 26,
        time_us: 1e5,
        algorithm_bandwidth: 0.67,
        bus_bandwidth: 0.67,
        ring_share: None,
    };
    let collectives = Collectives { ranks: 2, exchanges: vec![exchange], ..Collectives::default() };
    let below = |minimum| {
        let compared = Compared::new(Some(&baseline), &measured, Some(&collectives), Some(minimum));
        let result = BenchReport { measured: &measured, verdict: &verdict, ranks: None, compared: &compared };
        (result.is_good(), document(result), result.last_line())
    };
    let (is_good, found, line) = below(1_000_000_000);
    assert!(line.starts_with("failed: allreduce has a bus bandwidth of only 0.67 GB/s, the inventory requires 1.00"));
    assert!(line.ends_with("; and 1 finding more"), "{line}");
    assert_eq!((is_good, &found["findings"][0]["nodes"]), (false, &json!([])));
    assert_eq!(below(670_000_000).1["findings"], json!([]));
}

#[test]
fn the_strongest_finding_comes_first() {
    let measured = measured(4, |from, _| Ok(if from == 2 { 0.05 } else { 9.4 }));
    let mut ranks = ranks(4, &[3]);
    ranks.stragglers = vec![slow("node1", "rank 0 is slow".to_owned(), 0.61)];
    let order = |ranks: &RankResults| -> Vec<String> {
        let (document, last) = report(&measured, Some(ranks), |report| (document(report), report.last_line()));
        assert_eq!(document["verdict"], last.trim_start_matches("failed: "), "{last}");
        let findings = document["findings"].as_array().unwrap().iter();
        findings.map(|finding| finding["nodes"][0].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(order(&ranks), ["node4", "node3", "node1"], "a wrong result, 1 %, 61 %");
    ranks.stragglers[0].share = 0.001;
    assert_eq!(order(&ranks), ["node4", "node1", "node3"]);
}

#[test]
fn a_rank_that_is_not_judged_makes_the_verdict_unclear() {
    let mut ranks = ranks(4, &[]);
    ranks.stragglers = vec![Straggler { is_judged: false, ..slow("node1", "rank 0".to_owned(), 0.61) }];
    assert_eq!(
        shown_of(&ranks).lines().last().unwrap(),
        "unclear: all results of 4 ranks are correct, but the speed of 1 rank is not judged"
    );
    let good = measured(4, |_, _| Ok(9.4));
    let is_good = |ranks: &RankResults| report(&good, Some(ranks), |report| report.is_good());
    assert!(!is_good(&ranks));
    ranks.stragglers[0].is_doubtful = true;
    assert!(is_good(&ranks), "of two processors either may be of another model");
}

#[test]
fn collectives_that_are_right() {
    let mut ranks = ranks(2, &[]);
    let step = Some(Duration::from_millis(1100));
    let model = TrainedModel { params: 124_000_000, dtype: Dtype::Float16, step };
    ranks.estimate = model.estimate(&ranks.answers.collectives, 2);
    let text = shown_of(&ranks);
    assert!(text.lines().all(|line| console::measure_text_width(line) <= 80 || line.contains("parameters")), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn wrong_results_come_first_and_last() {
    let text = shown_of(&ranks(12, &[1, 1, 4]));
    assert!(text.starts_with("wrong: rank 1 on node2: allreduce of float16, 1K: 1 wrong element"), "{text}");
    assert!(text.contains("\nthe 8 slowest of 12 ranks; --json has all\n"), "{text}");
    let last: Vec<&str> = text.lines().rev().take(3).collect();
    assert_eq!(
        last,
        [
            "failed: rank 1 on node2 is wrong: allreduce of float16, 1K, and 1 more; and 1 finding more",
            "found: rank 4 on node5 is wrong: allreduce of float16, 1K",
            "found: rank 1 on node2 is wrong: allreduce of float16, 1K, and 1 more",
        ]
    );
    let failed = RankResults { failure: Some("rank 1 was killed".into()), ..RankResults::default() };
    assert_eq!(shown_of(&failed), "failed: the collectives were not measured: rank 1 was killed\n");
}
