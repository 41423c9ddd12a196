//! A signal at any moment of a command: it ends in order, nothing is left half-made, and the same command again does
//! the rest.

use super::*;
use crate::transport::node::scripted::{CONNECT, Fault, Moment};
use tokio::time::Instant;

const INT: u8 = 2;

/// Calls with which a step begins that changes a node.
const STEPS: [&str; 8] = [
    "docker kill",
    "docker create",
    "docker remove",
    "docker unpause",
    "keys/push.sh",
    "keys/stage.sh",
    "keys/switch.sh",
    "node/purge.sh",
];

/// Runs hvdctl and sends it so many signals at the moment of this number. Returns the moment and when it was; none
/// where the command ended before.
pub(super) async fn signalled(
    nodes: &Nodes,
    line: &str,
    number: usize,
    count: usize,
) -> (Done, Option<(Moment, Instant)>) {
    signalled_on(nodes, inventory(nodes), line, number, count).await
}

/// Does so with another inventory.
pub(super) async fn signalled_on(
    nodes: &Nodes,
    inventory: Inventory,
    line: &str,
    number: usize,
    count: usize,
) -> (Done, Option<(Moment, Instant)>) {
    let (sender, signals) = mpsc::unbounded_channel();
    let (tell, mut at) = mpsc::unbounded_channel();
    nodes.watch(move |moment| {
        if moment.number == number {
            (0..count).for_each(|_| sender.send(INT).unwrap());
            tell.send((moment.clone(), Instant::now())).unwrap();
        }
    });
    let done = hvdctl_on(nodes, inventory, line, signals).await;
    nodes.unwatch();
    (done, at.try_recv().ok())
}

/// Sends signals to a command that begins nothing more after the signal.
pub(super) async fn signalled_at(nodes: &Nodes, line: &str, number: usize, count: usize) -> (Done, Option<Moment>) {
    let (done, at) = signalled(nodes, line, number, count).await;
    let Some((at, when)) = at else { return (done, None) };
    // what was on its way at that moment arrives at the same time; a job's launcher is removed in the step that ends
    // the job
    let begins = |call: &&String| STEPS.iter().any(|step| call.contains(step)) && !call.ends_with("remove hmaster");
    let begun = nodes.calls_after(when);
    let begun: Vec<&String> = begun.iter().filter(begins).collect();
    assert!(begun.is_empty(), "{line} began {begun:?} after the signal at {at:?}");
    (done, Some(at))
}

/// Asserts what holds after a signal at any moment.
#[track_caller]
pub(super) fn assert_in_order(nodes: &Nodes, done: &Done, at: &Moment) {
    let when = format!("after a signal at {at:?}");
    assert!(matches!(done.code, 130 | 0), "{when}: {done}");
    assert_given_back(nodes, &when);
    for node in NODES {
        let ps = nodes.state(node).ps();
        assert!(ps.iter().all(|container| !container.ends_with(" created")), "half-made on {node} {when}: {ps:?}");
    }
    if done.code == 130 {
        // where each node stands
        assert!(done.err.contains("error: interrupted") && done.err.contains("node"), "{when}: {done}");
    }
}

/// Signals a command at each moment in turn, each time on a copy of these nodes; runs it again, and hands the nodes to
/// `reached`. Returns how often the signal ended the command.
async fn at_every_moment(line: &str, before: &Nodes, reached: impl AsyncFn(&Nodes, &str)) -> usize {
    let mut ended = 0;
    for number in 0.. {
        let nodes = before.copy();
        let (done, at) = signalled_at(&nodes, line, number, 1).await;
        let Some(at) = at else {
            done.code(0);
            assert!(number > 10, "{line} has {number} moments only");
            return ended;
        };
        assert_in_order(&nodes, &done, &at);
        ended += usize::from(done.code == 130);
        hvdctl(&nodes, line).await.code(0);
        reached(&nodes, &format!("after {at:?} and once more")).await;
    }
    ended
}

#[tokio::test(start_paused = true)]
async fn up_ends_in_order_at_every_moment_and_again_does_the_rest() {
    let reached = async |nodes: &Nodes, when: &str| {
        assert_up(nodes, when);
        hvdctl(nodes, "up").await.code(0).says(&["nothing to do"]);
    };
    let nodes = Nodes::new(&NODES);
    nodes.edit("node2", |state| (state.images, state.has_registry) = (Vec::new(), true));
    let ended = at_every_moment("up", &nodes, reached).await;
    assert!(ended > 20, "{ended}");
}

#[tokio::test(start_paused = true)]
async fn up_that_replaces_workers_ends_in_order_at_every_moment() {
    let older = two_up().await;
    NODES.iter().for_each(|node| older.edit(node, |state| state.containers[0].image = "older".into()));
    let reached = async |nodes: &Nodes, when: &str| {
        assert_up(nodes, when);
        hvdctl(nodes, "up").await.code(0).says(&["nothing to do"]);
    };
    assert!(at_every_moment("up", &older, reached).await > 10);
}

#[tokio::test(start_paused = true)]
async fn up_force_can_be_interrupted_at_any_moment() {
    let nodes = during_a_job().await;
    // the keys are pushed before the job is ended
    nodes.edit("node2", |state| drop(state.keys.as_mut().unwrap().remove("known_hosts")));
    let reached = async |nodes: &Nodes, when: &str| {
        assert_up(nodes, when);
        hvdctl(nodes, "up").await.code(0).says(&["nothing to do"]);
    };
    assert!(at_every_moment("up --force", &nodes, reached).await > 10);
}

#[tokio::test(start_paused = true)]
async fn down_ends_in_order_at_every_moment_and_again_does_the_rest() {
    let reached = async |nodes: &Nodes, when: &str| {
        for node in NODES {
            let state = nodes.state(node);
            assert_eq!((state.ps(), state.keys), (Vec::new(), None), "{node} {when}");
        }
        assert_given_back(nodes, when);
        hvdctl(nodes, "down --purge -y").await.code(0).says(&["no containers"]);
    };
    let nodes = two_up().await;
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.add("older", &[("hvdctl.cluster", "lab")])));
    assert!(at_every_moment("down --purge -y", &nodes, reached).await > 10);
}

#[tokio::test(start_paused = true)]
async fn keys_push_ends_in_order_at_every_moment_and_again_does_the_rest() {
    let reached = async |nodes: &Nodes, when: &str| {
        assert_eq!(NODES.map(|node| nodes.state(node).has_private_key()), [true, false], "{when}");
        assert_given_back(nodes, when);
        hvdctl(nodes, "keys push").await.code(0).says(&["nothing to do"]);
    };
    assert!(at_every_moment("keys push", &Nodes::new(&NODES), reached).await > 5);
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_leaves_at_every_moment_and_again_does_the_rest() {
    for number in 0.. {
        let nodes = Nodes::new(&NODES);
        let (done, at) = signalled_at(&nodes, "up", number, 2).await;
        let Some(at) = at else { break };
        assert!(matches!(done.code, 130 | 0), "{at:?}: {done}");
        assert_given_back(&nodes, &format!("after two signals at {at:?}"));
        hvdctl(&nodes, "up").await.code(0);
        assert_up(&nodes, &format!("after two signals at {at:?} and once more"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_current_step_is_finished_and_a_second_signal_leaves_at_once() {
    for twice in [false, true] {
        let nodes = Nodes::new(&NODES);
        let (sender, signals) = mpsc::unbounded_channel();
        nodes.fault("node2", "keys/push.sh", Fault::Late(Duration::from_secs(20)));
        nodes.watch(move |moment| {
            if moment.call == "keys/push.sh" && moment.node == "node2" && !moment.done {
                (0..=usize::from(twice)).for_each(|_| sender.send(INT).unwrap());
            }
        });
        let done = hvdctl_with(&nodes, "keys push", signals).await;
        done.code(130).complains(&["stopping after the current step"]);
        if twice {
            done.complains(&["exited without waiting"]);
            assert_eq!(nodes.state("node2").keys, None, "it had not ended there");
        } else {
            done.complains(&["error: interrupted", "node1: done: wrote", "node2: done: wrote"]);
            assert!(nodes.state("node2").keys.is_some());
        }
        assert_given_back(&nodes, "after the signal");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_changes_nothing_leaves_at_the_first_signal() {
    let nodes = two_up().await;
    let before = NODES.map(|node| nodes.state(node));
    nodes.fault("node2", "node/facts.sh", Fault::Silent);
    let (sender, signals) = mpsc::unbounded_channel();
    nodes.watch(move |moment| {
        if moment.call == "node/facts.sh" && moment.node == "node2" {
            sender.send(15).unwrap();
        }
    });
    let done = hvdctl_with(&nodes, "status", signals).await;
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (143, "", "error: terminated\n"));
    assert_eq!(NODES.map(|node| nodes.state(node)), before);
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_ends_ssh_first_is_the_cause() {
    for line in ["status", "jobs", "up", "up --skip-offline", "down", "keys push", "run -np 2 -- true"] {
        for (delay, interrupted) in [(50, true), (500, false)] {
            let nodes = Nodes::new(&NODES);
            NODES.iter().for_each(|node| nodes.fault(node, CONNECT, Fault::Fails("Connection closed".into())));
            let (sender, signals) = mpsc::unbounded_channel();
            nodes.watch(move |moment| {
                let sender = sender.clone();
                if moment.call == CONNECT && moment.node == "node2" {
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_millis(delay)).await;
                        let _ = sender.send(INT);
                    });
                }
            });
            let done = hvdctl_with(&nodes, line, signals).await;
            assert_eq!(
                (done.code == 130, done.err.contains("error: interrupted")),
                (interrupted, interrupted),
                "{line}: {done}"
            );
            assert_eq!(done.err.contains("cannot log in"), !interrupted, "{line}: {done}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_were_still_queued_are_not_started() {
    let names: Vec<String> = (1..=70).map(|number| format!("n{number:02}")).collect();
    let nodes = Nodes::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (sender, signals) = mpsc::unbounded_channel();
    nodes.watch(move |moment| {
        if moment.call == "keys/push.sh" && moment.node == "n01" && !moment.done {
            sender.send(INT).unwrap();
        }
    });
    let done = hvdctl_with(&nodes, "keys push", signals).await;
    // 64 nodes are worked on at the same time
    done.code(130).complains(&["n01: done: wrote", "n[65-70]: not started"]);
    let written = names.iter().filter(|name| nodes.state(name).keys.is_some()).count();
    assert_eq!(written, 64);
    nodes.unwatch();
    hvdctl(&nodes, "keys push").await.code(0);
    hvdctl(&nodes, "keys push").await.code(0).says(&["nothing to do"]);
}
