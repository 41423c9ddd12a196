use super::*;
use crate::inventory::Gpus;
use crate::model::job_state::JobState;

/// The clock of every node.
const NOW: f64 = 1_800_000_000.0;

/// A node whose entries have these ages in days.
fn node(name: &str, entries: Vec<(f64, LedgerEvent)>) -> Evidence {
    let entries = entries.into_iter().map(|(days, event)| Entry { time: NOW - days * DAY, event }).collect();
    let kind = NodeKind { cores: 8, ..NodeKind::default() };
    Evidence {
        node: name.to_owned(),
        kind,
        ledger: Ledger { entries, now: NOW, boot: "b0".into(), ..Ledger::default() },
    }
}

fn check(by: &str, failed: &[&str]) -> LedgerEvent {
    LedgerEvent::check(by, failed.iter().map(|text| (*text).to_owned()).collect(), Vec::new())
}

fn bench(gigabits: f64, product: f64) -> LedgerEvent {
    let bytes = gigabits * 1.25e8;
    LedgerEvent::bench([(Figure::Send, bytes), (Figure::Receive, bytes), (Figure::Product, product * 1e12)])
}

fn boot(id: &str) -> LedgerEvent {
    LedgerEvent::System { boot: id.to_owned(), driver: String::new(), booted: 0.0 }
}

fn job(id: &str, lost: Option<&str>) -> LedgerEvent {
    let state = if lost.is_some() { JobState::Failed } else { JobState::Succeeded };
    LedgerEvent::Job { job: id.to_owned(), state, seconds: 7200.0, gpus: Some(4), lost: lost.map(str::to_owned) }
}

/// Returns the entries that a good node records in a month.
fn good() -> Vec<(f64, LedgerEvent)> {
    let mut entries = vec![(30.0, boot("b0"))];
    for day in (0..30).rev().map(f64::from) {
        entries.push((day + 0.5, check("verify", &[])));
        entries.push((day + 0.4, job(&format!("job-{day}"), None)));
    }
    entries.push((1.0, bench(9.4, 40.0)));
    entries
}

fn with(more: Vec<(f64, LedgerEvent)>) -> Vec<(f64, LedgerEvent)> {
    let mut entries = [good(), more].concat();
    entries.sort_by(|a, b| b.0.total_cmp(&a.0));
    entries
}

/// Name, grade and reasons of each node, in their order.
fn shown(nodes: &[Evidence]) -> Vec<String> {
    let text = |assessed: Assessment| {
        let NodeGrade { node, grade, reasons, .. } = assessed.grade;
        [vec![format!("{node} {grade}")], reasons].concat().join("; ")
    };
    assess(nodes).into_iter().map(text).collect()
}

#[test]
fn a_slow_node_and_one_that_is_restarted_often_come_after_a_good_one() {
    let restarts = (1..=8).map(|i| (f64::from(i) * 3.0, boot(&format!("r{i}")))).collect();
    let slow = with(vec![(0.5, bench(0.9, 40.0))]);
    let nodes = [node("slow", slow), node("restarted", with(restarts)), node("good", good())];
    assert_eq!(
        shown(&nodes),
        [
            "good A",
            "restarted C; uptime: 8 restarts in 30 days",
            "slow F; network: sends 9 % of the fastest of its kind",
        ]
    );
    // whatever the order in which they answer
    let turned: Vec<Evidence> = nodes.iter().rev().cloned().collect();
    assert_eq!(assess(&turned), assess(&nodes));
}

#[test]
fn a_node_of_which_nothing_is_recorded_is_new_and_not_bad() {
    let bad = node("bad", vec![(1.0, check("verify", &["GPU 3 is gone"]))]);
    let usable = node("usable", good());
    // boots alone are no evidence
    let nodes = [bad, node("unknown", vec![(3.0, boot("b0")), (2.0, boot("b1")), (1.0, boot("b2"))]), usable];
    assert_eq!(shown(&nodes), ["usable A", "unknown new", "bad F; health: the latest verify failed: GPU 3 is gone"]);
    let assessed = assess(&nodes);
    assert_eq!(assessed.iter().map(|of| of.grade.evidence).collect::<Vec<_>>(), [61, 0, 1]);
    assert_eq!((assessed[1].grade.score, assessed[1].restarts), (None, 2));
}

#[test]
fn every_area_has_a_reason_of_its_own() {
    let of = |entries| shown(&[node("a", entries), node("b", good())]).into_iter().find(|text| text.starts_with("a "));
    let warned = LedgerEvent::check("doctor", Vec::new(), vec!["disk: 5 GiB are free".to_owned()]);
    for (entries, expected) in [
        (vec![(0.1, check("doctor", &["gpus: lost"]))], "a C; health: the latest doctor failed: gpus: lost"),
        (vec![(9.0, check("verify", &["x"]))], "a A; health: 1 of 31 checks failed"),
        (vec![(9.0, warned.clone()), (8.0, check("doctor", &[]))], "a A; health: 1 of 32 checks had warnings"),
        (vec![(0.1, warned)], "a A; health: the latest doctor warned: disk: 5 GiB are free"),
        (
            vec![(0.1, job("j", Some("the node did not answer")))],
            "a A; reliability: lost 1 of 31 jobs: the node did not answer",
        ),
        (vec![(0.1, bench(9.4, 12.0))], "a D; compute: computes 30 % of the fastest of its kind"),
        (vec![(0.1, bench(0.09, 40.0))], "a F; network: sends less than 1 % of the fastest of its kind"),
        (vec![(0.1, bench(8.6, 37.0))], "a A"),
        (vec![(5.0, boot("r1"))], "a A"),
    ] {
        assert_eq!(of(with(entries)).as_deref(), Some(expected));
    }
    // the heaviest first
    let several = vec![(0.3, check("doctor", &["gpus: lost"])), (0.2, bench(4.7, 40.0)), (0.1, job("j", Some("lost")))];
    let text = of(with(several)).unwrap();
    assert!(text.starts_with("a C; health: ") && text.contains("; network: sends 50 % of"), "{text}");
    assert!(text.find("network: ") < text.find("reliability: "), "{text}");
}

#[test]
fn a_node_that_loses_jobs_or_fails_checks_is_no_good_however_fast_it_is() {
    let jobs = (0..6).map(|i| (f64::from(i) / 10.0 + 0.1, job(&format!("j{i}"), Some("the node did not answer"))));
    let losing: Vec<_> = jobs.chain([(0.05, bench(9.4, 40.0)), (0.04, check("verify", &[]))]).collect();
    let failing = (0..6).map(|i| (f64::from(i), check("verify", &["no GPU"])));
    let failing: Vec<_> = failing.rev().chain([(0.0, bench(9.4, 40.0))]).collect();
    let grades = assess(&[node("losing", losing), node("failing", failing), node("good", good())]);
    let grades: Vec<(&str, Grade)> = grades.iter().map(|of| (of.grade.node.as_str(), of.grade.grade)).collect();
    assert_eq!(grades, [("good", Grade::A), ("losing", Grade::F), ("failing", Grade::F)]);
}

#[test]
fn old_entries_count_less_and_very_old_ones_not_at_all() {
    let score = |age: f64| {
        let entries = [vec![(age, check("verify", &["x"]))], (0..5).map(|_| (0.0, check("verify", &[]))).collect()];
        assess(&[node("a", entries.concat())])[0].grade.score.unwrap()
    };
    let scores: Vec<f64> = [0.0, 30.0, 90.0, 181.0].map(score).to_vec();
    assert!(scores.is_sorted_by(|a, b| a < b) && scores[3] == 1.0, "{scores:?}");
    // at half its weight: (1 + 5 / 5.5) / 2
    assert_eq!(scores[1], 0.955);
}

#[test]
fn clocks_that_jump_break_nothing() {
    let mut ahead = node("ahead", good());
    // all of it is of the future, and a clock that was never set
    ahead.ledger.now = NOW - 400.0 * DAY;
    let mut unset = node("unset", good());
    unset.ledger.now = 0.0;
    let mut far = node("far", good());
    far.ledger.entries.iter_mut().for_each(|entry| entry.time = 1e300);
    let mut back = node("back", good());
    back.ledger.entries.iter_mut().for_each(|entry| entry.time = -1e300);
    for assessed in assess(&[ahead, unset, far]) {
        assert_eq!((assessed.grade.grade, assessed.grade.evidence), (Grade::A, 61), "{}", assessed.grade.node);
    }
    assert_eq!(assess(&[back])[0].grade.grade, Grade::New);
}

#[test]
fn only_nodes_of_a_kind_are_compared_and_speed_is_relative_to_all() {
    let of = |name: &str, gpu: &str, product: f64| {
        let mut node = node(name, vec![(0.1, bench(9.4, product))]);
        node.kind = NodeKind { gpu: Some(gpu.to_owned()), gpus: 8, ..node.kind };
        node
    };
    let assessed =
        assess(&[of("h1", "H200", 600.0), of("h2", "H200", 590.0), of("v1", "V100", 100.0), of("v2", "V100", 60.0)]);
    let shown: Vec<_> =
        assessed.iter().map(|of| (of.grade.node.as_str(), of.grade.grade, of.grade.speed.unwrap())).collect();
    assert_eq!(shown, [("h1", Grade::A, 1.0), ("h2", Grade::A, 0.983), ("v1", Grade::A, 0.167), ("v2", Grade::C, 0.1)],);
    // there is nothing to compare it with
    let alone = assess(&[of("v2", "V100", 60.0)]);
    assert_eq!((alone[0].areas.len(), alone[0].grade.evidence, alone[0].grade.speed), (0, 1, Some(1.0)));
}

#[test]
fn one_good_measurement_does_not_make_up_for_bad_ones() {
    assert_eq!(representative(&[9.0, 9.1, 9.2]), 9.1);
    assert_eq!(representative(&[9.0, 9.1, 1.0]), 1.0, "it has become slow");
    assert_eq!(representative(&[1.0, 1.1, 9.0]), 1.1);
    assert_eq!(
        representative(&[1.0; 20].iter().chain(&[9.0; 9]).copied().collect::<Vec<_>>()),
        9.0,
        "the newest count"
    );
    assert_eq!(representative(&[]), 0.0);
}

#[test]
fn the_weights_add_up_and_are_documented() {
    let areas = [Area::Health, Area::Reliability, Area::Network, Area::Compute, Area::Uptime];
    assert!((areas.iter().map(|area| area.weight()).sum::<f64>() - 1.0).abs() < 1e-9);
    let text = include_str!("../../../docs/reference/grade.md");
    for area in areas {
        let row = format!("| {area} | {} |", area.weight());
        assert!(text.contains(&row), "{row}");
    }
    for (least, grade) in LETTERS {
        assert!(text.contains(&format!("{grade} from {least:.2}")), "{grade}");
    }
}

#[test]
fn gpu_hours_are_those_that_jobs_had() {
    let mut entries = with(vec![(
        0.1,
        LedgerEvent::Job { job: "whole".into(), state: JobState::Stopped, seconds: 1800.0, gpus: None, lost: None },
    )]);
    entries.push((0.0, boot("b1")));
    let mut node = node("a", entries);
    node.kind.gpus = 8;
    let idle = self::node("b", Vec::new());
    let assessed = &assess(&[node, idle])[..];
    assert!(assessed[1].gpu_hours.is_sign_positive(), "JSON would have -0.0");
    let assessed = &assessed[0];
    assert_eq!((assessed.gpu_hours, assessed.jobs, assessed.lost, assessed.restarts), (30.0 * 8.0 + 4.0, 31, 0, 1));
}

#[test]
fn a_kind_has_the_gpus_that_jobs_can_get() {
    let gpu = |index: u32, name: &str| format!("gpu GPU {index}: {name} (UUID: GPU-{index})\n");
    let list = [gpu(0, "H200"), gpu(1, "H200"), gpu(2, "T4")].concat();
    let memory = "mig 0, [N/A], 143771\nmig 1, [N/A], 143770\nmig 2, [N/A], 15360\nmig exit 0\n";
    let facts = Facts::parse(&format!("cores 64\nnvidia-smi yes\n{list}gpu exit 0\n{memory}"));
    let of = |gpus: Gpus, facts: &Facts| {
        let node = inventory::Node { gpus, ..inventory::Node::default() };
        (kind(&node, facts, "580.95.05").to_string(), unknown_kind(&node, facts))
    };
    let list = |ids: &[&str]| Gpus::List(ids.iter().map(|id| (*id).to_owned()).collect());
    for (gpus, expected) in [
        (Gpus::Auto, "3 x H200 + T4 15 GiB, driver 580, 64 cores"),
        (list(&["0", "1"]), "2 x H200 141 GiB, driver 580, 64 cores"),
        (Gpus::Count(1), "1 x H200 141 GiB, driver 580, 64 cores"),
        (Gpus::Count(0), "64 cores"),
    ] {
        assert_eq!(of(gpus, &facts), (expected.to_owned(), None));
    }
    // several MIG devices of one GPU
    let mig = "gpu GPU 0: A100 (UUID: GPU-0)\ngpu   MIG 3g.20gb Device 0: (UUID: MIG-1)\ngpu   MIG 3g.20gb Device 1: \
        (UUID: MIG-2)\n";
    let mig = Facts::parse(&format!("cores 8\nnvidia-smi yes\n{mig}gpu exit 0\nmig 0, Enabled, 40960\nmig exit 0\n"));
    assert_eq!(of(Gpus::Auto, &mig).0, "1 x A100 40 GiB, driver 580, 8 cores");
    // what is not known makes it another kind than its like, and is said
    let lost = Facts::parse(&format!(
        "cores 8\nnvidia-smi yes\n{}gpu exit 0\nmig 0, [N/A], [GPU is lost]\nmig exit 0\n",
        gpu(0, "T4")
    ));
    let unread = "cannot read the memory of GPU 0: GPU is lost";
    assert_eq!(of(Gpus::Auto, &lost), ("1 x T4, driver 580, 8 cores".to_owned(), Some(unread.to_owned())));
    let hangs = Facts::parse("cores 8\nnvidia-smi yes\n");
    let failed = "nvidia-smi failed: no answer within 20 s";
    assert_eq!(of(Gpus::Auto, &hangs), ("8 cores".to_owned(), Some(failed.to_owned())));
    assert_eq!(of(Gpus::Count(0), &hangs), ("8 cores".to_owned(), None));
}

#[test]
fn a_ledger_with_anything_in_it_gives_a_grade() {
    let forged = r#"clock 1800000000
booted x
host a
boot b

{"format":1,"time":1e308,"host":"a","what":"bench","figures":{"send":0,"receive":-1e308,"product":1e-320}}
{"format":1,"time":-1e308,"host":"a","what":"bench","figures":{"send":1e308}}
{"format":1,"time":1799999999,"host":"a","what":"job","job":"","state":"running","seconds":1e308,"gpus":4294967295}
{"format":1,"time":1799999999,"host":"a","what":"job","job":"x","state":"lost","seconds":-5,"lost":""}
{"format":1,"time":1799999999,"host":"a","what":"check","by":"","failed":["\u001b[31m\n"]}
{"format":1,"time":1799999999,"host":"a","what":"system","boot":"","driver":"x","booted":1e308}
"#;
    let ledger = Ledger::parse(forged.as_bytes());
    assert_eq!((ledger.entries.len(), ledger.damaged), (6, 0));
    let forged = Evidence { ledger, ..node("forged", Vec::new()) };
    let with_gpus = Evidence { kind: NodeKind { gpus: 8, ..forged.kind.clone() }, ..forged.clone() };
    for assessed in assess(&[forged, with_gpus, node("good", good())]) {
        let NodeGrade { score, reasons, speed, .. } = &assessed.grade;
        assert!(score.is_some_and(|score| (0.0..=1.0).contains(&score)), "{assessed:?}");
        assert!(speed.is_none_or(|speed| (0.0..=1.0).contains(&speed)), "{assessed:?}");
        assert!(assessed.areas.values().all(|area| (0.0..=1.0).contains(area)), "{assessed:?}");
        assert!(assessed.gpu_hours.is_finite() && reasons.iter().all(|text| !text.contains(char::is_control)));
    }
}
