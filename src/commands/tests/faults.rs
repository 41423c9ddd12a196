//! Commands where something fails on one node: that node is named with cause and hint, and the other is done.

use super::*;
use crate::transport::node::scripted::{CONNECT, DIAL, Fault, NodeState};
use std::sync::atomic::{AtomicUsize, Ordering};

/// `up` with a fault in a call of node2: its exit code, and texts of its standard error.
struct Case {
    call: &'static str,
    fault: Fault,
    code: u8,
    complains: &'static [&'static str],
}

/// The hint of a time-out.
const SLOW: &str = "hint: if the node is slow, raise cluster.command_timeout_s";

fn fails(words: &str) -> Fault {
    Fault::Fails(words.to_owned())
}

fn cases() -> Vec<Case> {
    let case = |call, fault, code, complains| Case { call, fault, code, complains };
    vec![
        case(
            CONNECT,
            fails("Connection refused"),
            4,
            &["node2: cannot log in by ssh as root@node2: Connection refused", "nothing was changed"],
        ),
        case(
            "access/access.sh",
            Fault::Silent,
            3,
            &["node2: cannot check for root access: no answer within 30 s", "hint: "],
        ),
        case("lease/hold.sh", fails("cannot be written"), 3, &["node2: cannot lock the node: cannot be written"]),
        case("lease/hold.sh", Fault::Silent, 3, &["node2: cannot lock the node: no answer within 30 s"]),
        case("node/facts.sh", fails("sh: no such file"), 3, &["node2: cannot read the node state: sh: no such file"]),
        case(
            "node/facts.sh",
            Fault::Silent,
            3,
            &["node2: cannot read the node state: no answer within 30 s", "hint: "],
        ),
        case(
            DIAL,
            fails("Cannot connect to the Docker daemon"),
            3,
            &["node2: cannot reach the Docker Engine: Cannot connect", "hint: start it on that node"],
        ),
        case(
            "docker version",
            Fault::Silent,
            3,
            &["node2: cannot reach the Docker Engine: no answer within 30 s", "hint: see `systemctl status docker`"],
        ),
        case("docker list", fails("database is locked"), 3, &["node2: cannot list the containers: database is locked"]),
        case("docker list", Fault::Silent, 3, &["node2: cannot list the containers: no answer within 30 s"]),
        case("docker image", Fault::Silent, 3, &["node2: cannot inspect the image", "no answer within 30 s"]),
        case(
            "keys/push.sh",
            fails("No space left on device"),
            3,
            &["node2: cannot write the keys to /opt/horovod/ssh: No space left on device"],
        ),
        case("keys/push.sh", Fault::Silent, 3, &["node2: cannot write the keys", "no answer within 30 s", SLOW]),
        case(
            "docker create",
            fails("no space left on device"),
            3,
            &["node2: cannot start hworker: no space left on device", "hint: free space on that node"],
        ),
        case("docker create", Fault::Silent, 3, &["node2: cannot start hworker: no answer within 30 s", SLOW]),
        case(
            "docker start",
            fails("could not select device driver \"\" with capabilities: [[gpu]]"),
            3,
            &["node2: cannot start hworker: could not select device driver", "nvidia-container-toolkit"],
        ),
        case("docker start", Fault::Silent, 3, &["node2: cannot start hworker: no answer within 30 s", SLOW]),
        case(
            "node/wait_port.sh",
            fails(""),
            3,
            &["node2: cannot reach sshd in hworker on port 12345: nothing listens after 20 s", "hint: hvdctl doctor"],
        ),
        case("node/wait_port.sh", Fault::Silent, 3, &["node2: cannot reach sshd in hworker on port 12345", "hint: "]),
    ]
}

#[tokio::test(start_paused = true)]
async fn up_names_the_node_that_fails_and_does_the_others() {
    for Case { call, fault, code, complains } in cases() {
        let nodes = Nodes::new(&NODES);
        nodes.fault("node2", call, fault.clone());
        let when = format!("{fault:?} at {call}");
        let done = hvdctl(&nodes, "up").await;
        done.code(code).complains(complains);
        assert!(done.err.contains("error: node2: "), "{when}\n{done}");
        assert!(!done.err.contains("error: node1: "), "{when}\n{done}");
        assert!(call != "docker version" || !done.err.contains(SLOW), "{when}\n{done}");
        assert_given_back(&nodes, &when);
        assert_eq!(nodes.state("node2").ps(), [""; 0], "nothing is left half-made: {when}");
        if code == 4 {
            assert_eq!(
                NODES.map(|node| nodes.state(node)),
                [NodeState::new("node1", 1), NodeState::new("node2", 2)],
                "{when}"
            );
        } else {
            done.says(&["node1: started hworker"]);
            assert_eq!(nodes.state("node1").ps(), ["hworker running"], "{when}");
        }
        nodes.repair();
        hvdctl(&nodes, "up").await.code(0);
        assert_up(&nodes, &format!("after {when}"));
        hvdctl(&nodes, "up").await.code(0).says(&["nothing to do"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_node_is_left_out_on_request_only() {
    let nodes = Nodes::new(&NODES);
    nodes.fault("node2", CONNECT, fails("No route to host"));
    for line in ["up", "down", "keys push", "keys rotate", "verify"] {
        hvdctl(&nodes, line).await.code(4).complains(&["error: node2: cannot log in", "nothing was changed"]);
        assert_eq!(nodes.state("node1"), NodeState::new("node1", 1), "{line}");
        assert_eq!(nodes.calls("node1").last().map(String::as_str), Some("access/access.sh"), "{line}");
    }
    hvdctl(&nodes, "run -np 2 -- true").await.code(125).complains(&["error: node2: cannot log in"]);
    let done = hvdctl(&nodes, "up --skip-offline").await;
    done.code(0).says(&["node1: started hworker"]).complains(&["warning: node2: cannot log in by ssh"]);
    assert_eq!(nodes.state("node1").ps(), ["hworker running"]);
    let document = hvdctl(&nodes, "down --skip-offline --json").await.code(0).document();
    assert_eq!((&document["nodes"][1]["node"], &document["nodes"][1]["skipped"]), (&"node2".into(), &true.into()));
    assert_eq!(nodes.state("node2"), NodeState::new("node2", 2));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_start_does_not_ask_launchers_of_others() {
    let nodes = Nodes::new(&["node1", "node2", "node3"]);
    let record = r#"{"id":"run-1","cluster":"lab","name":"n","operator":"o","created":1.0,"launcher":"env","placement":
        {"shares":[{"node":"node3","ranks":1,"first":0}]},"command":["x"],"cwd":"/","ranks":1,"port":12345,
        "interface":"eth0","grace":1,"stall":0,"idle_margin":30,"ulimits":{}}"#;
    nodes.edit("node1", |state| state.facts = format!("open run-1 {}\n", record.replace('\n', "")));
    let line = "--on node1,node2 run -np 9999 -- true";
    nodes.fault("node2", "node/facts.sh", fails("no"));
    hvdctl(&nodes, line).await.code(125).complains(&["error: node2: cannot read the node state: no"]);
    assert_eq!(nodes.calls("node3"), [""; 0]);
    nodes.repair();
    hvdctl(&nodes, line).await.complains(&["9999 ranks"]);
    assert_ne!(nodes.calls("node3"), [""; 0], "it is asked whether the other job goes on");
}

#[tokio::test(start_paused = true)]
async fn the_document_of_a_partial_failure_has_both_nodes() {
    let nodes = Nodes::new(&NODES);
    nodes.edit("node2", |state| state.images.clear());
    let words = "inspect the image";
    nodes.fault("node2", "docker image", fails("input/output error"));
    let document = hvdctl(&nodes, "up --json").await.code(3).document();
    let reported: Vec<_> =
        document["nodes"].as_array().unwrap().iter().map(|n| (n["node"].as_str().unwrap(), n["ok"] == true)).collect();
    assert_eq!((document["ok"] == true, reported), (false, vec![("node1", true), ("node2", false)]));
    let error = &document["nodes"][1]["error"];
    assert_eq!((&error["kind"], &error["message"]), (&"failed".into(), &"input/output error".into()));
    assert!(error["operation"].as_str().unwrap().starts_with(words), "{error}");
}

#[tokio::test(start_paused = true)]
async fn keys_push_does_the_nodes_that_do_not_fail() {
    for fault in [fails("No space left on device"), Fault::Silent] {
        let nodes = Nodes::new(&NODES);
        nodes.fault("node2", "keys/push.sh", fault);
        let done = hvdctl(&nodes, "keys push").await;
        done.code(3).says(&["node1: wrote "]).complains(&["error: node2: cannot write the keys"]);
        assert_eq!(nodes.state("node2").keys, None);
        assert!(nodes.state("node1").has_private_key());
        assert_given_back(&nodes, "after keys push");
        nodes.repair();
        // the host key that node2 has now is another one, and node1 pins it
        hvdctl(&nodes, "keys push").await.code(0).says(&["node1: wrote known_hosts\n", "node2: wrote "]);
        hvdctl(&nodes, "keys push").await.code(0).says(&["nothing to do"]);
    }
    // without the master there is no key to push
    let nodes = Nodes::new(&NODES);
    nodes.fault("node1", "node/facts.sh", fails("no"));
    hvdctl(&nodes, "keys push").await.code(1).complains(&["error: node1: cannot read the node state: no"]);
    assert_eq!(NODES.map(|node| nodes.state(node).keys), [None, None]);
    hvdctl(&nodes, "--on node2 keys push").await.code(2).complains(&["the master node1 is not among"]);
}

#[tokio::test(start_paused = true)]
async fn down_names_the_node_that_fails_and_does_the_others() {
    let cases = [
        (DIAL, fails("Cannot connect to the Docker daemon")),
        ("docker list", Fault::Silent),
        ("docker remove hworker", fails("device or resource busy")),
        ("docker remove hworker", Fault::Silent),
        ("node/facts.sh", fails("ss: command not found")),
        ("keys/push.sh", fails("Read-only file system")),
        ("node/purge.sh", fails("Read-only file system")),
        ("node/purge.sh", Fault::Silent),
    ];
    for (call, fault) in cases {
        let nodes = two_up().await;
        nodes.fault("node2", call, fault.clone());
        let when = format!("{fault:?} at {call}");
        let done = hvdctl(&nodes, "down --purge -y").await;
        done.code(3).says(&["node1: removed hworker"]).complains(&["error: node2: cannot "]);
        assert_eq!((nodes.state("node1").ps(), nodes.state("node1").keys), (Vec::new(), None), "{when}");
        assert!(nodes.state("node2").keys.is_some(), "{when}");
        assert_given_back(&nodes, &when);
        nodes.repair();
        hvdctl(&nodes, "down --purge -y").await.code(0);
        assert_eq!((nodes.state("node2").ps(), nodes.state("node2").keys), (Vec::new(), None), "after {when}");
    }
}

#[tokio::test(start_paused = true)]
async fn up_refuses_a_node_that_cannot_have_a_worker() {
    type Change = fn(&mut NodeState);
    let cases: [(Change, &[&str]); 8] = [
        (|state| state.images.clear(), &["cannot pull the image test/horovod:1: pull access denied", "docker load"]),
        (
            |state| state.facts = "listener 0.0.0.0:12345 7 www - nginx\n".into(),
            &["cannot use the node: port 12345 is in use by nginx (process 7 of www)", "cluster.port"],
        ),
        (
            |state| state.address = "127.0.0.1".into(),
            &["cannot find its address on the cluster's network", "interface"],
        ),
        (
            |state| state.access = "user ana\nsudo asks sudo: a password is required\n",
            &["cannot get root: sudo asks for a password, and -y disables questions", "NOPASSWD"],
        ),
        (
            |state| state.access = "user ana\nsudo no ana may not run sudo\n",
            &["cannot get root: ana may not run sudo", "group docker"],
        ),
        (|state| state.hostname = "node1".into(), &["they have the same host name, node1", "hostnamectl"]),
        (
            |state| state.clock_ahead = 30,
            &["cannot use the node: its clock is 30 s ahead", "set the clock on the node"],
        ),
        (
            |state| state.access = "os debian \nuser root\nsudo root\nengine open\nmissing ss iproute2\n",
            &["ss is missing", "apt-get install iproute2"],
        ),
    ];
    for (change, words) in cases {
        let nodes = Nodes::new(&NODES);
        nodes.edit("node2", change);
        let before = nodes.state("node2");
        let done = hvdctl(&nodes, "up -y").await;
        // two nodes of one name are two that are wrong
        let both = before.hostname == "node1";
        done.code(if both { 1 } else { 3 }).complains(words).complains(&["error: node2: ", "hint: "]);
        assert_eq!(nodes.state("node2").contents(), before.contents(), "{done}");
        let worker: &[&str] = if both { &[] } else { &["hworker running"] };
        assert_eq!(nodes.state("node1").ps(), worker, "{done}");
        assert_given_back(&nodes, "after up");
    }
    // less is a warning
    let nodes = Nodes::new(&NODES);
    nodes.edit("node2", |state| state.clock_ahead = -5);
    hvdctl(&nodes, "up").await.code(0).complains(&["warning: node2: its clock is 5 s behind"]);
    assert_up(&nodes, "with a clock that is behind");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_exits_at_once_is_reported_with_its_log_and_removed() {
    let nodes = Nodes::new(&NODES);
    nodes.edit("node2", |state| state.log = "sshd: no hostkeys available -- exiting.\n".into());
    let ends = nodes.clone();
    nodes.watch(move |moment| {
        if moment.node == "node2" && moment.call == "docker start hworker" && moment.done {
            ends.edit("node2", |state| state.containers[0].state = "exited");
        }
    });
    let began = nodes.now();
    let done = hvdctl(&nodes, "up").await;
    done.code(3).says(&["node1: started hworker\n"]);
    done.complains(&["node2: cannot reach sshd in hworker on port 12345: sshd: no hostkeys available", "hint: "]);
    assert!(nodes.now() - began < 10, "the port was waited for");
    assert_eq!(nodes.state("node2").ps(), [""; 0]);
    nodes.unwatch();
    hvdctl(&nodes, "up").await.code(0).says(&["node1: unchanged\n", "node2: started hworker\n"]);
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_is_left_hides_no_answer_and_a_failed_one_is_removed() {
    for (step, code, shown) in [(1, 3, true), (2, 3, true), (3, 0, false)] {
        let nodes = Nodes::new(&NODES);
        NODES.iter().for_each(|name| nodes.edit(name, |state| state.facts = "directory jobs nfs /opt/jobs\n".into()));
        let (other, calls) = (nodes.clone(), AtomicUsize::new(0));
        nodes.watch(move |moment| {
            if moment.call == "node/shared.sh" && moment.node == "node2" && !moment.done {
                match calls.fetch_add(1, Ordering::Relaxed) + 1 {
                    call if call == step => other.fault("node2", "node/shared.sh", fails("Stale file handle")),
                    _ => other.repair(),
                }
            }
        });
        let done = hvdctl(&nodes, "up").await;
        done.code(code);
        let complaint = "cannot find out whether the cluster's directories are local to the node: Stale file handle";
        assert_eq!(done.err.contains(complaint), shown, "{step}: {done}");
        let marks = NODES.map(|node| nodes.state(node).marks);
        assert_eq!(marks, [0, usize::from(step == 3)], "{step}");
        assert_eq!(nodes.count("node/shared.sh"), [3, if step == 1 { 2 } else { 3 }], "{step}");
    }
}
