//! `bench` where it measures nothing: one node, workers that are not up or have no Python, nodes that are in use.

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
    assert_eq!(nodes.count("bench_network.py"), [0, 0]);
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
        ("bench -np 1", 2, &["collectives need at least 2 ranks, and there would be 1", "`slots`"][..]),
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
            "error: node2: cannot check the image for a framework: it has none of horovod.torch, horovod.tensorflow",
            "hint: the ranks communicate over one of these; hvdctl bench --only network needs none",
        ]);
    }
    assert_nothing_measured(&nodes);
    assert_eq!(nodes.count("job_start.sh"), [0, 0]);
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
    assert_eq!(nodes.count("bench_network.py"), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn nodes_in_use_are_refused_and_none_is_locked() {
    let nodes = two_up().await;
    let before = nodes.count("lease_hold.sh");
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
        let is_observed = moment.call == "facts.sh" && moment.node == "node2" && !moment.done;
        if is_observed && observed.fetch_add(1, Ordering::Relaxed) == 1 {
            other.edit("node2", |state| state.facts.clear());
        }
    });
    hvdctl(&nodes, "bench --wait").await.code(1).complains(&["waiting: node2", "node1: cannot measure the network"]);
    assert_eq!(nodes.count("lease_hold.sh"), before, "no node was locked");
}
