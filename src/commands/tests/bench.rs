//! `bench` where it measures nothing: one node, workers that are not up or have no Python, nodes that are in use; and
//! what it keeps, compares and writes.

use super::*;
use crate::transport::node::scripted::{Fault, Lease};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A job that has a process in a worker, and whose record cannot be read.
const JOB: &str = "20261121-101500-4f2a";

/// Nodes that are up.
async fn two_up() -> Nodes {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "up").await.code(0);
    nodes
}

/// Asserts that no program was started in a worker.
#[track_caller]
fn assert_nothing_measured(nodes: &Nodes) {
    assert_eq!(nodes.count("bench/network.py"), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn one_node_has_no_network_to_measure() {
    let nodes = two_up().await;
    let refused = hvdctl(&nodes, "--on node2 bench").await;
    refused.code(2).complains(&[
        "node2 is the only one",
        "hint: select at least two nodes with --on",
        "`hvdctl bench --only collectives` measures two or more ranks of one node",
    ]);
    assert_nothing_measured(&nodes);
}

#[tokio::test(start_paused = true)]
async fn what_the_ranks_need_is_found_before_anything_is_measured() {
    let nodes = two_up().await;
    for (line, code, texts) in [
        ("bench -np 1", 2, &["collectives need at least 2 ranks, but there would be 1", "`slots`"][..]),
        ("--on node2 bench --only collectives -np 1", 2, &["collectives need at least 2 ranks"]),
        ("bench -np 99", 2, &["99"]),
        ("bench --only network --params 124M", 2, &["--params", "hint: leave out --only network"]),
        ("bench --launcher torchrun --gloo", 2, &["--controller is for horovodrun"]),
    ] {
        hvdctl(&nodes, line).await.code(code).complains(texts);
    }
    nodes.fault("node2", "find modules", Fault::Fails("missing\n".into()));
    for line in ["bench", "bench --only collectives"] {
        hvdctl(&nodes, line).await.code(1).complains(&[
            "error: node2: cannot check the image: it has none of horovod.torch, horovod.tensorflow",
            "hint: the ranks communicate over one of these; hvdctl bench --only network needs none",
        ]);
    }
    assert_nothing_measured(&nodes);
    assert_eq!(nodes.count("job/start.sh"), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn workers_that_cannot_measure_are_named_before_anything_is_measured() {
    let nodes = two_up().await;
    hvdctl(&nodes, "--on node2 down").await.code(0);
    let refused = hvdctl(&nodes, "bench").await;
    refused
        .code(1)
        .complains(&["error: node2: cannot measure the network: its worker is not running\n  hint: hvdctl up"]);
    assert!(!refused.err.contains("node1:"), "{refused}");
    assert_nothing_measured(&nodes);

    // the workers of scripted nodes have no Python that could run it
    let nodes = two_up().await;
    let refused = hvdctl(&nodes, "bench").await;
    refused.code(1).complains(&[
        "node1: cannot measure the network: OCI runtime exec failed: exec: \"python3\": executable file not found",
        "node2: cannot measure the network",
        "hint: the worker's image needs python3",
    ]);
    assert_eq!(nodes.count("bench/network.py"), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn nodes_in_use_are_refused_and_none_is_locked() {
    let nodes = two_up().await;
    let before = nodes.count("lease/hold.sh");
    nodes.edit("node2", |state| {
        let worker = state.containers[0].id.clone();
        state.facts = format!("open {JOB} \nrank {JOB} 7 {worker} lab -\n");
    });
    let refused = hvdctl(&nodes, "bench").await;
    refused.code(5).complains(&[&format!("node2 is allocated exclusively to job {JOB}"), "hint: wait with --wait"]);
    let waited = hvdctl(&nodes, "bench --wait 1m").await;
    waited.code(5).complains(&[&format!("waiting: node2 is allocated exclusively to job {JOB}")]);

    let locked = two_up().await;
    let lease = Lease::of_another(locked.now());
    locked.edit("node1", |state| state.lease = Some(lease));
    hvdctl(&locked, "bench").await.code(5).complains(&["node1 is locked by bob@laptop", "hint: "]);
    assert_nothing_measured(&locked);

    // when the job has ended, the measurement begins
    let (other, observed) = (nodes.clone(), AtomicUsize::new(0));
    nodes.watch(move |moment| {
        let is_observed = moment.call == "node/facts.sh" && moment.node == "node2" && !moment.done;
        if is_observed && observed.fetch_add(1, Ordering::Relaxed) == 1 {
            other.edit("node2", |state| state.facts.clear());
        }
    });
    hvdctl(&nodes, "bench --wait").await.code(1).complains(&["waiting: node2", "node1: cannot measure the network"]);
    assert_eq!(nodes.count("lease/hold.sh"), before, "no node was locked");
}

/// Nodes that are up and send this many Mb/s each.
async fn two_that_send(rates: [u32; 2]) -> Nodes {
    let nodes = two_up().await;
    send(&nodes, rates);
    nodes
}

fn send(nodes: &Nodes, rates: [u32; 2]) {
    for (name, rate) in NODES.iter().zip(rates) {
        nodes.edit(name, |state| state.sends = Some(rate));
    }
}

fn past(nodes: &Nodes, node: &str) -> String {
    let mut past = String::new();
    nodes.edit(node, |state| past.clone_from(&state.past));
    past
}

#[tokio::test(start_paused = true)]
async fn nodes_keep_what_they_have_sent_and_a_slow_node_does_not_become_normal() {
    let nodes = two_that_send([9400, 9300]).await;
    let sessions = nodes.count("access/access.sh");
    for run in 1..=3 {
        hvdctl(&nodes, "bench --only network").await.code(0);
        let kept = vec!["1175000000.0"; run].join(",");
        let expected = format!("{{\"format\":1,\"node\":\"node1\",\"bytes_per_s\":{{\"node2\":[{kept}]}}}}");
        assert_eq!(past(&nodes, "node1"), expected);
    }
    assert_eq!(nodes.count("bench/past_read.sh"), [3, 3]);
    assert!(nodes.count("access/access.sh").iter().zip(sessions).all(|(after, before)| *after <= before + 3));

    // a node that got slower is named for as long as it is
    send(&nodes, [4000, 9300]);
    for _ in 0..4 {
        let slow = hvdctl(&nodes, "bench --only network").await;
        slow.code(1).says(&["failed: node1 → node2 transfers only 4.00 Gb/s, it was 9.40 Gb/s in earlier benchmarks"]);
    }
    assert!(!past(&nodes, "node1").contains("500000000"));
    assert_eq!(past(&nodes, "node2").matches("1162500000").count(), 7);
    // unless that is what the network now is
    hvdctl(&nodes, "bench --only network --forget").await.code(0);
    assert!(past(&nodes, "node1").ends_with("[500000000.0]}}"));
    hvdctl(&nodes, "bench --only network").await.code(0);
    // also where nothing of this benchmark is kept
    send(&nodes, [4000, 10]);
    hvdctl(&nodes, "bench --only network --forget").await.code(1);
    assert_eq!(past(&nodes, "node2"), "{\"format\":1,\"node\":\"node2\",\"bytes_per_s\":{}}");
}

#[tokio::test(start_paused = true)]
async fn what_a_job_disturbs_that_begins_meanwhile_is_neither_judged_nor_kept() {
    for rates in [[9400, 9300], [9400, 10]] {
        let nodes = two_that_send(rates).await;
        let before = NODES.map(|node| nodes.state(node).ledger);
        let other = nodes.clone();
        nodes.watch(move |moment| {
            if moment.call == "bench/network.py" {
                other.edit("node2", |state| {
                    let worker = state.containers[0].id.clone();
                    state.facts = format!("open {JOB} \nrank {JOB} 7 {worker} lab -\n");
                });
            }
        });
        let done = hvdctl(&nodes, "bench --only network").await;
        done.code(5).complains(&[
            "a job started during the measurement: the results are neither judged nor kept for later benchmarks",
            &format!("node2 is allocated exclusively to job {JOB}"),
        ]);
        assert_eq!(
            (done.out.as_str(), past(&nodes, "node1"), past(&nodes, "node2")),
            ("", String::new(), String::new())
        );
        assert_eq!(NODES.map(|node| nodes.state(node).ledger), before);
    }

    // a job of another cluster, as one that ran before
    let nodes = two_that_send([9400, 9300]).await;
    let before = NODES.map(|node| nodes.state(node).ledger);
    let other = nodes.clone();
    nodes.watch(move |moment| {
        if moment.call == "bench/network.py" {
            other.edit("node2", |state| state.facts = format!("rank {JOB} 7 c1 other -\n"));
        }
    });
    let done = hvdctl(&nodes, "bench --only network").await;
    done.code(0).complains(&[&format!("node2: job {JOB} runs there, which disturbs the measurement")]);
    assert_eq!([past(&nodes, "node1"), past(&nodes, "node2")], [""; 2]);
    assert_eq!(NODES.map(|node| nodes.state(node).ledger), before);
}

#[tokio::test(start_paused = true)]
async fn what_was_measured_is_shown_if_a_node_does_not_answer_afterwards() {
    let nodes = two_that_send([9400, 9300]).await;
    let before = NODES.map(|node| nodes.state(node).ledger);
    let other = nodes.clone();
    nodes.watch(move |moment| {
        if moment.call == "bench/network.py" {
            other.fault("node2", "node/facts.sh", Fault::Fails("Input/output error".into()));
        }
    });
    let done = hvdctl(&nodes, "bench --only network").await;
    done.code(0).says(&["ok: "]).complains(&[
        "warning: node2: cannot ",
        "Input/output error",
        "cannot tell whether a job started during the measurement: the results are not kept for later benchmarks",
    ]);
    assert_eq!([past(&nodes, "node1"), past(&nodes, "node2")], [""; 2]);
    assert_eq!(NODES.map(|node| nodes.state(node).ledger), before);
}

#[tokio::test(start_paused = true)]
async fn a_past_that_cannot_be_read_or_kept_is_no_failure() {
    let nodes = two_that_send([9400, 9300]).await;
    let newer = r#"{"format":2}"#;
    nodes.edit("node1", |state| state.past = newer.to_owned());
    nodes.edit("node2", |state| state.past = "{".to_owned());
    let done = hvdctl(&nodes, "bench --only network").await;
    done.code(0).complains(&[
        "node1: no earlier benchmarks: they were written by a newer hvdctl, in format 2",
        "node2: no earlier benchmarks: their file is damaged, and is replaced",
    ]);
    assert_eq!(past(&nodes, "node1"), newer, "it stays for the newer one");
    assert!(past(&nodes, "node2").contains("1162500000"));

    nodes.fault("node1", "bench/past_read.sh", Fault::Fails("head: Input/output error".to_owned()));
    nodes.fault("node2", "bench/past_write.sh", Fault::Fails("No space left on device".to_owned()));
    let done = hvdctl(&nodes, "bench --only network").await;
    done.code(0).complains(&[
        "node1: no earlier benchmarks: head: Input/output error",
        "warning: node2: ",
        "No space left",
    ]);
    assert_eq!(past(&nodes, "node1"), newer);
}

#[tokio::test(start_paused = true)]
async fn files_are_checked_before_anything_is_measured() {
    let nodes = two_that_send([9400, 9300]).await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(at("other.json"), r#"{"format":1,"nodes":[{"node":"gpu7"}],"directions":[]}"#).unwrap();
    for (arguments, text) in [
        (format!("--plot {}", at("none/x.svg")), "/none does not exist"),
        (format!("--plot {}", at("x.png")), "does not end with .svg"),
        (format!("--baseline {}", at("none.json")), "cannot read the baseline"),
        (format!("--baseline {}", at("other.json")), "is from other nodes: gpu7"),
    ] {
        hvdctl(&nodes, &format!("bench --only network {arguments}")).await.code(2).complains(&[text, "hint: "]);
    }
    assert_nothing_measured(&nodes);

    let before = hvdctl(&nodes, "--json bench --only network").await;
    std::fs::write(at("b.json"), &before.code(0).out).unwrap();
    let line = format!("bench --only network --forget --baseline {} --plot {}", at("b.json"), at("x.svg"));
    hvdctl(&nodes, &line).await.code(0).says(&["ok: "]);
    assert!(std::fs::read_to_string(at("x.svg")).unwrap().contains("\nnode2\n"));
    send(&nodes, [9400, 5000]);
    let slower = hvdctl(&nodes, &line).await;
    slower.code(1).says(&["failed: node2 → node1 transfers only 5.00 Gb/s, 9.30 Gb/s in the baseline"]);
    let document = hvdctl(&nodes, &format!("--json {line}")).await.document();
    assert_eq!((&document["ok"], &document["baseline"]["slower"][0]["from"]), (&false.into(), &"node2".into()));

    // what was measured is shown even if the plot has no room in the end
    let place = at("gone");
    std::fs::create_dir(&place).unwrap();
    let gone = place.clone();
    nodes.watch(move |moment| {
        if moment.call == "bench/network.py" {
            let _ = std::fs::remove_dir_all(&gone);
        }
    });
    let lost = hvdctl(&nodes, &format!("bench --only network --forget --plot {place}/x.svg")).await;
    lost.code(1).says(&["ok: "]).complains(&["error: ", "cannot write"]);
}
