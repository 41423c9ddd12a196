//! Jobs whose records or containers cannot be read, because a newer hvdctl wrote them or a full disk cut them off: they
//! count as running.

use super::jobs::ends_with;
use super::*;
use crate::transport::node::scripted::{CONNECT, DIAL, Fault};

const ID: &str = "20261121-101500-4f2a";

/// A record of a form that is not known here.
const NEWER: &str = r#"{"format":3,"id":"20261121-101500-4f2a","cluster":"lab","name":"big","operator":"bob@laptop","launcher":"slurm"}"#;

/// The reason why it cannot be read.
const REASON: &str = "written by a newer hvdctl (format 3); this one reads up to 1";

/// Nodes that are up, and a job with this record on the second of them.
async fn up_with(names: &[&str], record: &str) -> Nodes {
    let nodes = Nodes::new(names);
    hvdctl(&nodes, "up").await.code(0);
    nodes.edit(names[1], |state| {
        state.facts = format!("open {ID} {record}\n");
        state.jobs = format!("./{ID}/job.json:{record}\n./{ID}/env.json:\n");
    });
    nodes
}

/// Adds a rank of the job to the worker of a node.
fn add_rank(nodes: &Nodes, node: &str) {
    nodes.edit(node, |state| state.facts.push_str(&format!("rank {ID} 7 {} lab -\n", state.containers[0].id)));
}

/// Adds the launcher's container of the job to a node.
fn add_launcher(nodes: &Nodes, node: &str) {
    let labels = [("hvdctl.cluster", "lab"), ("hvdctl.role", "master"), ("hvdctl.job", ID)];
    nodes.edit(node, |state| state.add("hmaster", &labels));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_an_exclusive_allocation_until_stop() {
    for (record, reason) in [
        (NEWER, REASON),
        (r#"{"id":"20261121-101500-4f2a","cluster":"lab","name":"bi"#, "incomplete: EOF while parsing a string"),
        ("#!", "not JSON: "),
        ("", "empty or missing"),
    ] {
        let nodes = up_with(&NODES, record).await;
        add_rank(&nodes, "node2");
        let before = nodes.state("node2");
        let words = format!("node2 is allocated exclusively to job {ID}, whose record cannot be read: {reason}");
        let refused = hvdctl(&nodes, "run -np 8 -- true").await;
        refused.code(125).complains(&[&words, "nothing was changed", &format!("`hvdctl stop {ID}`"), "--on node1"]);
        hvdctl(&nodes, "--on node2 run -np 1 --gpus-per-node 1 -- true").await.code(125).complains(&[&words]);
        hvdctl(&nodes, "verify").await.code(5).complains(&[&words]);
        assert_eq!(nodes.state("node2").contents(), before.contents(), "its worker is untouched");

        let listed = hvdctl(&nodes, "jobs --running").await;
        listed.code(0).says(&[ID, "unreadable", "node2", &format!("its record cannot be read: {reason}")]);
        let document = hvdctl(&nodes, "jobs --json").await.code(0).document();
        let job = &document["jobs"][0];
        assert_eq!(
            (&job["id"], &job["state"], &job["launcher"]),
            (&ID.into(), &"unreadable".into(), &Value::Null),
            "{job}"
        );
        assert_eq!(job["started"], "2026-11-21T10:15:00Z", "from its id");
        for line in ["logs", "attach", "fetch"].map(|command| format!("{command} {ID}")) {
            let complaint = format!("job {ID}: its record cannot be read: {reason}");
            hvdctl(&nodes, &line).await.complains(&[&complaint, "use the version of hvdctl that started it"]);
        }
        hvdctl(&nodes, "drain node2").await.code(0).says(&[&format!("job {ID} stays until it ends")]);
        hvdctl(&nodes, "drain --undo node2").await.code(0);
        nodes.edit("node2", |state| state.facts = before.facts.clone());

        hvdctl(&nodes, &format!("stop {ID}")).await.code(0).says(&[&format!("job {ID} has ended")]);
        hvdctl(&nodes, &format!("stop {ID}")).await.code(0).says(&["has already ended"]);
        hvdctl(&nodes, "jobs --running").await.code(0).says(&["no jobs"]);
        hvdctl(&nodes, "jobs").await.code(0).says(&[ID, "stopped"]);
        hvdctl(&nodes, "run -np 8 --dry-run -- true").await.code(0);
        assert_eq!(nodes.state("node2").contents(), before.contents(), "its worker is untouched");
    }
}

#[tokio::test(start_paused = true)]
async fn stop_ends_an_unreadable_job_on_every_node_and_first_its_launcher() {
    let nodes = up_with(&["node1", "node2", "node3"], NEWER).await;
    add_rank(&nodes, "node3");
    add_launcher(&nodes, "node2");
    hvdctl(&nodes, &format!("stop {ID}")).await.code(0);
    let calls = nodes.calls("node2");
    let at = |call: &str| calls.iter().position(|other| other == call).unwrap_or_else(|| panic!("{call}: {calls:?}"));
    assert!(at("docker kill hmaster") < at("job/end.sh") && at("job/end.sh") < at("job/result.sh"), "{calls:?}");
    for node in nodes.names() {
        assert_eq!(nodes.state(&node).ps(), ["hworker running"]);
        assert!(!nodes.state(&node).facts.contains(ID));
    }
    // what does not answer may have ranks
    let nodes = up_with(&["node1", "node2", "node3"], NEWER).await;
    nodes.fault("node3", CONNECT, Fault::Fails("No route to host".into()));
    hvdctl(&nodes, &format!("stop {ID}")).await.code(3).says(&["no answer from node3"]);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_job_that_has_certainly_ended_blocks_no_node() {
    let names = ["node1", "node2", "node3"];
    let (words, line) = ("whose record cannot be read", "--on node2 run -np 1 --dry-run -- true");
    // nothing of it is anywhere
    let nodes = up_with(&names, NEWER).await;
    hvdctl(&nodes, line).await.code(0);
    assert!(nodes.calls("node3").contains(&"docker list".to_owned()), "it might have its launcher");
    // a container serves it on a node outside the command, in a role that is not known here
    nodes
        .edit("node3", |state| state.add("x", &[("hvdctl.role", "agent"), ("hvdctl.job", ID), ("hvdctl.format", "3")]));
    hvdctl(&nodes, line).await.code(125).complains(&[words, REASON]);
    // a node that may have one does not answer
    let nodes = up_with(&names, NEWER).await;
    nodes.fault("node3", DIAL, Fault::Fails("is the docker daemon running?".into()));
    let refused = hvdctl(&nodes, line).await;
    let unclear = format!("warning: job {ID} counts as running: its record cannot be read, and node3 did not answer");
    refused.code(125).complains(&[words, REASON, &unclear, &format!("hvdctl stop {ID}")]);
    // it is known to run without node3
    add_rank(&nodes, "node2");
    assert!(!hvdctl(&nodes, line).await.err.contains("warning: "));
}

#[tokio::test(start_paused = true)]
async fn train_waits_for_an_unreadable_job() {
    let nodes = up_with(&NODES, NEWER).await;
    add_rank(&nodes, "node2");
    let waiting = hvdctl(&nodes, "run -np 8 --wait 10s -- true").await;
    waiting.code(125).complains(&[&format!("waiting: node2 is allocated exclusively to job {ID}, whose record")]);
}

#[tokio::test(start_paused = true)]
async fn up_replaces_no_worker_of_an_unreadable_job() {
    let nodes = up_with(&NODES, NEWER).await;
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.containers[0].image = "older".into()));
    let before = nodes.state("node2");
    let words = format!("job {ID} is running, and its workers would be replaced on node2");
    // it may be about to start ranks there
    add_launcher(&nodes, "node1");
    hvdctl(&nodes, "up").await.code(1).complains(&[&words]);
    nodes.edit("node1", |state| state.containers.truncate(1));
    add_rank(&nodes, "node2");
    hvdctl(&nodes, "up").await.code(1).complains(&[&words]);
    assert_eq!(nodes.state("node2").contents(), before.contents());
    hvdctl(&nodes, "up --force").await.code(0).says(&[&format!("ended the job {ID}, recreated hworker (image)")]);
}

#[tokio::test(start_paused = true)]
async fn a_job_never_replaces_a_worker_with_ranks_of_another_job() {
    let nodes = two_up().await;
    nodes.edit("node2", |state| state.containers[0].image = "older".into());
    // its directory is gone, but not its ranks
    add_rank(&nodes, "node2");
    let before = nodes.state("node2");
    let refused = hvdctl(&nodes, "run -np 8 -- true").await;
    refused
        .code(125)
        .complains(&[&format!("job {ID} is running, and its workers would be replaced on node2"), "hint: "]);
    assert_eq!(nodes.state("node2").contents(), before.contents());
    assert_eq!(nodes.calls("node2").iter().filter(|call| call.starts_with("job/")).count(), 0);
    assert_given_back(&nodes, "after the refusal");
}

#[tokio::test(start_paused = true)]
async fn containers_of_a_newer_hvdctl_are_refused_by_name_and_stay() {
    let newer = |nodes: &Nodes, node: &str, name: &str| {
        nodes.edit(node, |state| {
            let container = state.containers.iter_mut().find(|c| c.name == name).unwrap();
            container.labels.insert("hvdctl.format".into(), "3".into());
            container.labels.insert("hvdctl.spec".into(), "another".into());
        });
    };
    let words = |name: &str| format!("a container named {name} exists already and its labels were {REASON}");
    let nodes = two_up().await;
    newer(&nodes, "node2", "hworker");
    let before = nodes.state("node2");
    for (line, code) in [("up", 3), ("up --force", 3), ("up --dry-run", 3), ("run -np 8 -- true", 125)] {
        let hint = "hint: use the version of hvdctl that created it";
        hvdctl(&nodes, line).await.code(code).complains(&[
            "error: node2: cannot start hworker",
            &words("hworker"),
            hint,
        ]);
        assert_eq!(nodes.state("node2").contents(), before.contents(), "{line}");
    }
    hvdctl(&nodes, "status").await.code(0).says(&["node2           Docker 27.1.0  foreign"]);
    // under the name that the worker had in an earlier inventory
    nodes.edit("node2", |state| {
        state.containers[0].name = "hworker-old".into();
        state.containers[0].labels.insert("hvdctl.name".into(), "hworker-old".into());
    });
    hvdctl(&nodes, "up").await.code(3).complains(&[&words("hworker-old")]);
    // a launcher that has ended is not replaced either
    let nodes = two_up().await;
    add_launcher(&nodes, "node1");
    newer(&nodes, "node1", "hmaster");
    nodes.edit("node1", |state| state.containers[1].state = "exited");
    let refused = hvdctl(&nodes, "run -np 8 -- true").await;
    refused.code(125).complains(&["error: node1: cannot start hmaster", &words("hmaster")]);
    assert_eq!(nodes.state("node1").ps(), ["hworker running", "hmaster exited"]);
    // `down` is asked for all of them
    hvdctl(&nodes, "down").await.code(0).says(&["node1: removed hworker, hmaster"]);
}

#[tokio::test(start_paused = true)]
async fn relative_times_are_by_the_clocks_of_the_nodes() {
    // this machine is two hours ahead of the nodes, or behind
    for ahead in [-7200, 7200] {
        let nodes = two_up().await;
        NODES.iter().for_each(|node| nodes.edit(node, |state| state.clock_ahead = ahead));
        nodes.play(ends_with([0, 0]));
        hvdctl(&nodes, "run -np 2 --map-by node -- true").await.code(0);
        let log = hvdctl(&nodes, "logs --since 10m").await;
        assert!(log.ranks.contains("0 step 1"), "{ahead}: {log}");
        let jobs = hvdctl(&nodes, "jobs").await;
        assert!(!jobs.out.contains("2h") && jobs.out.contains("s ago"), "{ahead}: {jobs}");
        hvdctl(&nodes, "jobs prune --older-than 1h").await.code(0).says(&["nothing to remove"]);
        hvdctl(&nodes, "jobs prune --older-than 0s").await.code(0).says(&["removed 1 job"]);
    }
    // a line that one node wrote an hour ago by its own clock
    let nodes = two_up().await;
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, "run -np 2 --map-by node -- true").await.code(0);
    nodes.edit("node2", |state| state.clock_ahead = 3600);
    let log = hvdctl(&nodes, "logs --since 10m").await;
    assert!(log.ranks.contains("0 step 1") && !log.ranks.contains("1 step 1"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_id_another_one_has_leaves_that_alone() {
    let nodes = two_up().await;
    nodes.edit("node1", |state| state.ids_are_taken = true);
    let refused = hvdctl(&nodes, "run -np 8 -- true").await;
    refused
        .code(125)
        .complains(&["error: node1: cannot create the directory of the job", "hint: run the command again"]);
    let ended = |node: &str| nodes.calls(node).iter().filter(|call| call.starts_with("job/end")).count();
    assert_eq!([ended("node1"), ended("node2")], [0, 1], "only what this one created is ended");
    assert!(!nodes.calls("node1").contains(&"job/result.sh".to_owned()));
}
