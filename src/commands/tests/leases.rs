//! Leases: held by another operator, waited for, and lost in the middle of a command.

use super::*;
use crate::transport::node::scripted::{Fault, Lease, NodeState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Another operator holds these nodes, and renews the leases.
fn hold(nodes: &Nodes, names: &[&str]) {
    let lease = Lease::of_another(nodes.now());
    names.iter().for_each(|node| nodes.edit(node, |state| state.lease = Some(lease.clone())));
}

#[tokio::test(start_paused = true)]
async fn a_command_is_refused_if_another_has_locked_a_node() {
    let nodes = Nodes::new(&NODES);
    hold(&nodes, &NODES);
    let before = NODES.map(|node| nodes.state(node));
    let words = [
        "node[1-2] are locked by bob@laptop (process 4711) with `hvdctl down` since",
        "nothing was changed",
        "hint: wait with --wait",
    ];
    for line in ["up", "down --purge -y", "keys push", "keys rotate", "verify"] {
        hvdctl(&nodes, line).await.code(5).complains(&words);
        assert_eq!(NODES.map(|node| nodes.state(node)), before, "{line}");
    }
    hvdctl(&nodes, "run -np 2 -- true").await.code(125).complains(&words);
    hvdctl(&nodes, "keys generate").await.code(5).complains(&["node1 is locked by bob@laptop"]);
    let document = hvdctl(&nodes, "up --json").await.code(5).document();
    assert_eq!((&document["code"], &document["nodes"][1]["lease"]["holder"]), (&5.into(), &"bob@laptop".into()));

    // who only looks is not kept waiting
    hvdctl(&nodes, "status").await.code(0);
    hvdctl(&nodes, "up --dry-run").await.code(0).says(&["start hworker"]);
    hvdctl(&nodes, "lock status").await.code(0).says(&["bob@laptop", "hvdctl down", "4711"]);
    assert_eq!(NODES.map(|node| nodes.state(node)), before);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_locks_no_node() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "up").await.code(0);
    NODES.iter().for_each(|name| nodes.edit(name, |state| state.sends = Some(9400)));
    // what is left of a command whose machine was suspended
    let lease = Lease::of_another(nodes.now() - 60);
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.lease = Some(lease.clone())));
    hvdctl(&nodes, "bench --only network").await.code(0);
    hvdctl(&nodes, "lock status").await.code(0).says(&["node1  –"]);
    hvdctl(&nodes, "lock release -y").await.code(0).says(&["nothing to do: no node is locked"]);
}

#[tokio::test(start_paused = true)]
async fn one_node_that_is_held_is_enough_and_the_other_is_given_back() {
    let nodes = Nodes::new(&NODES);
    hold(&nodes, &["node2"]);
    hvdctl(&nodes, "up").await.code(5).complains(&["node2 is locked by bob@laptop"]);
    assert_eq!(nodes.state("node1").contents(), NodeState::new("node1", 1).contents());
    assert_eq!(nodes.state("node1").lease, None);
    assert_eq!(nodes.state("node2").lease.unwrap().holder, "bob@laptop");
    hvdctl(&nodes, "--on node1 up").await.code(0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_begins_when_the_lease_is_free() {
    let nodes = Nodes::new(&NODES);
    hold(&nodes, &NODES);
    // it is given back at the third attempt
    let other = nodes.clone();
    let attempts = std::sync::atomic::AtomicUsize::new(0);
    nodes.watch(move |moment| {
        let attempt = moment.call == "lease/hold.sh" && moment.node == "node2" && !moment.done;
        if attempt && attempts.fetch_add(1, Ordering::Relaxed) == 2 {
            for node in NODES {
                other.edit(node, |state| state.lease = None);
            }
        }
        // until then nothing is changed
        if other.state("node1").lease.is_some_and(|lease| lease.holder == "bob@laptop") {
            assert_eq!(other.state("node1").contents(), (&[][..], None));
        }
    });
    let done = hvdctl(&nodes, "up --wait").await;
    done.code(0).complains(&["waiting for node[1-2]: bob@laptop (process 4711) with `hvdctl down`"]);
    assert_up(&nodes, "after the wait");
    // the nodes are observed after the other command is done
    let looks = nodes.calls("node1").iter().filter(|call| *call == "docker list").count();
    assert_eq!(looks, 1, "{:?}", nodes.calls("node1"));
}

#[tokio::test(start_paused = true)]
async fn who_waits_gives_up_when_its_time_is_over() {
    let nodes = Nodes::new(&NODES);
    hold(&nodes, &["node1"]);
    let before = NODES.map(|node| nodes.state(node).contents().1.cloned());
    let done = hvdctl(&nodes, "up --wait 10m").await;
    done.code(5).complains(&["waiting for node1: bob@laptop", "error: node1 is locked by bob@laptop"]);
    assert!(nodes.now() - Lease::of_another(0).since >= 600, "it waited");
    assert_eq!(NODES.map(|node| nodes.state(node).contents().1.cloned()), before);
    assert_eq!(nodes.state("node2").lease, None);
}

/// Runs a command of which a call takes a while on both nodes, and in which node2 has another lease, or none, from that
/// call on.
async fn lost_during(line: &str, call: &'static str, to: Option<&'static str>) -> (Nodes, Done) {
    let nodes = if line.starts_with("down") { two_up().await } else { Nodes::new(&NODES) };
    for node in NODES {
        nodes.fault(node, call, Fault::Late(Duration::from_secs(5)));
    }
    let (other, lost) = (nodes.clone(), Arc::new(AtomicBool::new(false)));
    nodes.watch(move |moment| {
        let held = moment.call.starts_with(call) && other.state("node2").lease.is_some();
        if held && !lost.swap(true, Ordering::Relaxed) {
            let now = other.now();
            other.edit("node2", |state| state.lease = to.map(|_| Lease::of_another(now)));
        }
    });
    let done = hvdctl(&nodes, line).await;
    nodes.unwatch();
    nodes.repair();
    (nodes, done)
}

#[tokio::test(start_paused = true)]
async fn a_command_that_loses_a_lease_begins_no_further_step() {
    let words = "error: node2: cannot keep the lock: another command released the lock";
    let (nodes, done) = lost_during("up", "node/facts.sh", None).await;
    done.code(5).complains(&[words, "node[1-2]: not started", "hint: hvdctl lock status"]);
    for (node, number) in NODES.iter().zip(1..) {
        assert_eq!(nodes.state(node).contents(), NodeState::new(node, number).contents(), "{node}");
    }
    assert_given_back(&nodes, "after the loss");
    hvdctl(&nodes, "up").await.code(0);
    assert_up(&nodes, "once more");

    let (nodes, done) = lost_during("up", "keys/push.sh", None).await;
    done.code(5).complains(&[words, "node1: incomplete; done so far: wrote"]);
    for node in NODES {
        assert_eq!(nodes.state(node).ps(), [""; 0], "no further change on {node}");
        assert!(!nodes.calls(node).iter().any(|call| call.starts_with("docker create")), "{node}");
    }
    hvdctl(&nodes, "up").await.code(0);

    // a step that was begun is finished
    let (nodes, done) = lost_during("up", "docker create", None).await;
    done.code(5).complains(&[words, "done: wrote", "started hworker"]);
    assert_up(&nodes, "after the step");

    let (nodes, done) = lost_during("down --purge -y", "docker remove", None).await;
    done.code(5).complains(&[words, "node[1-2]: incomplete; done so far: removed hworker"]);
    assert!(NODES.iter().all(|node| nodes.state(node).keys.is_some()), "nothing was purged");
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_by_another_command_is_kept() {
    let (nodes, done) = lost_during("keys push", "node/facts.sh", Some("bob")).await;
    done.code(5)
        .complains(&["node2: cannot keep the lock: the lock expired and is now held by bob@laptop", "not started"]);
    assert_eq!(NODES.map(|node| nodes.state(node).keys), [None, None]);
    assert_eq!(nodes.state("node1").lease, None);
    assert_eq!(nodes.state("node2").lease.unwrap().holder, "bob@laptop");
}

#[tokio::test(start_paused = true)]
async fn a_release_is_of_the_lease_that_was_seen() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "lock release -y").await.code(0).says(&["nothing to do"]);
    hold(&nodes, &NODES);
    let done = hvdctl(&nodes, "--on node2 lock release -y").await;
    done.code(0).says(&["node2: released the lock of bob@laptop (process 4711) with `hvdctl down`"]);
    assert_eq!(NODES.map(|node| nodes.state(node).lease.is_some()), [true, false]);
}
