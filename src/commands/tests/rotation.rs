//! `keys rotate`: at every moment every node accepts the key that the master launches with.

use super::signals::{assert_in_order, signalled_at};
use super::*;
use crate::keys::files::bare;
use crate::keys::key_pair::public_of;
use crate::transport::node::scripted::{CONNECT, Fault};

/// The public half of the private key that the master launches with.
fn key_in_use(nodes: &Nodes) -> String {
    bare(&public_of(&nodes.state("node1").keys.unwrap()["id_ed25519"].text))
}

/// The cluster's keys that a node lets in.
fn accepted(nodes: &Nodes, node: &str) -> Vec<String> {
    let text = nodes.state(node).keys.unwrap()["authorized_keys"].text.clone();
    text.lines().map(|line| bare(line.split_once(' ').unwrap().1)).collect()
}

/// Asserts that every node lets in the key in use and no other, and that nothing is left of a rotation.
#[track_caller]
fn assert_one_key(nodes: &Nodes, when: &str) {
    let key = key_in_use(nodes);
    for node in NODES {
        assert_eq!(accepted(nodes, node), std::slice::from_ref(&key), "{node} {when}");
        assert!(!nodes.state(node).keys.unwrap().keys().any(|file| file.contains(".next")), "{node} {when}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rotation_leaves_one_new_key_everywhere() {
    let nodes = two_up().await;
    let (old, workers) = (key_in_use(&nodes), NODES.map(|node| nodes.state(node).containers));
    let done = hvdctl(&nodes, "keys rotate").await;
    done.code(0).says(&["node1: accepts the new key only", "node2: accepts the new key only"]);
    done.complains(&[
        "not yet in use",
        "accept both keys",
        "launches with the new key",
        "accepts the old key any more",
    ]);
    assert_one_key(&nodes, "after the rotation");
    assert_ne!(key_in_use(&nodes), old);
    assert_eq!(NODES.map(|node| nodes.state(node).containers), workers, "no worker had to be replaced");
    hvdctl(&nodes, "up").await.code(0).says(&["nothing to do"]);
}

#[tokio::test(start_paused = true)]
async fn a_rotation_that_ends_at_any_moment_leaves_a_cluster_that_launches() {
    let up = two_up().await;
    // one signal ends it in order, and two at once, as if it were killed
    for count in [1, 2] {
        for number in 0.. {
            let nodes = up.copy();
            let (done, at) = signalled_at(&nodes, "keys rotate", number, count).await;
            let Some(at) = at else {
                done.code(0);
                assert!(number > 20, "{number} moments only");
                break;
            };
            let when = format!("after {count} signals at {at:?}");
            if count == 1 {
                assert_in_order(&nodes, &done, &at);
            }
            assert_given_back(&nodes, &when);
            let key = key_in_use(&nodes);
            for node in NODES {
                assert!(accepted(&nodes, node).contains(&key), "the key in use is not accepted on {node} {when}");
            }
            // a push in between breaks nothing of it
            hvdctl(&nodes, "keys push").await.code(0);
            assert_eq!(key_in_use(&nodes), key, "{when}");
            assert!(NODES.iter().all(|node| accepted(&nodes, node).contains(&key)), "{when}");
            hvdctl(&nodes, "keys rotate").await.code(0);
            assert_one_key(&nodes, &format!("{when} and once more"));
            assert_ne!(key_in_use(&nodes), key_in_use(&up), "{when}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_take_the_new_key_stops_it_before_the_switch() {
    for fault in [Fault::Fails("No space left on device".into()), Fault::Silent] {
        let nodes = two_up().await;
        let old = key_in_use(&nodes);
        nodes.fault("node2", "keys/push.sh", fault);
        let done = hvdctl(&nodes, "keys rotate").await;
        done.code(3).complains(&["error: node2: cannot write the keys"]);
        done.says(&["the old key is still in use", "run `hvdctl keys rotate` again"]);
        assert_eq!(key_in_use(&nodes), old);
        assert_eq!(accepted(&nodes, "node2"), [old]);
        let staged = bare(&nodes.state("node1").keys.unwrap()["id_ed25519.next.pub"].text);
        nodes.repair();
        hvdctl(&nodes, "keys rotate").await.code(0).complains(&["resuming the rotation"]);
        assert_one_key(&nodes, "once more");
        assert_eq!(key_in_use(&nodes), staged, "it is the pair that was staged");
    }
}

#[tokio::test(start_paused = true)]
async fn a_master_that_fails_at_the_switch_has_a_key_that_is_accepted() {
    for (call, fault) in [
        ("keys/switch.sh", Fault::Silent),
        ("keys/stage.sh", Fault::Fails("another hvdctl command is writing the key directory".into())),
    ] {
        let nodes = two_up().await;
        let old = key_in_use(&nodes);
        nodes.fault("node1", call, fault);
        hvdctl(&nodes, "keys rotate").await.complains(&["error: node1: cannot "]);
        assert_eq!(key_in_use(&nodes), old);
        assert!(NODES.iter().all(|node| accepted(&nodes, node).contains(&old)), "{call}");
        nodes.repair();
        hvdctl(&nodes, "keys rotate").await.code(0);
        assert_one_key(&nodes, call);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rotation_is_about_all_nodes_but_those_that_are_left_out_on_request() {
    let nodes = two_up().await;
    let before = NODES.map(|node| nodes.state(node).keys);
    hvdctl(&nodes, "--on node1 keys rotate").await.code(2).complains(&["--skip-offline"]);
    nodes.fault("node2", CONNECT, Fault::Fails("No route to host".into()));
    hvdctl(&nodes, "keys rotate").await.code(4).complains(&["nothing was changed"]);
    assert_eq!(NODES.map(|node| nodes.state(node).keys), before);
    let done = hvdctl(&nodes, "keys rotate --skip-offline").await;
    done.code(0).says(&["node1: accepts the new key only", "node2 was skipped: run hvdctl keys push"]);
    assert_eq!(nodes.state("node2").keys, before[1]);
    nodes.repair();
    hvdctl(&nodes, "keys push").await.code(0).says(&["node2: wrote authorized_keys"]);
    assert_one_key(&nodes, "when node2 is back");
}
