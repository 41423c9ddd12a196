//! The steps of commands if nothing goes wrong.

use super::*;
use crate::transport::node::scripted::{CONNECT, Fault, NodeState, Play};
use serde_json::Value;

#[tokio::test(start_paused = true)]
async fn up_starts_both_workers_and_gives_both_leases_back() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "up").await.code(0).says(&["node[1-2] (2): started hworker\n"]).complains(&["pushing them first"]);
    assert_up(&nodes, "after up");
    let first = NODES.map(|node| nodes.state(node));
    for node in NODES {
        let calls = nodes.calls(node);
        assert_eq!(calls.iter().filter(|call| *call == "lease/hold.sh").count(), 1, "{calls:?}");
        assert_eq!(calls.iter().filter(|call| call.starts_with("docker create")).count(), 1, "{calls:?}");
    }
    assert_eq!(first.each_ref().map(NodeState::has_private_key), [true, false]);

    hvdctl(&nodes, "up").await.code(0).says(&["nothing to do"]);
    for (node, first) in NODES.iter().zip(&first) {
        assert_eq!(nodes.state(node).contents(), first.contents(), "a second up changes nothing on {node}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing_and_takes_no_lease() {
    let nodes = Nodes::new(&NODES);
    let done = hvdctl(&nodes, "up --dry-run").await;
    done.code(0).says(&["node[1-2] (2): start hworker\n", "dry run: 2 of 2 nodes would be changed"]);
    done.complains(&["keys would be pushed to node[1-2]"]);
    for (node, number) in NODES.iter().zip(1..) {
        assert_eq!(nodes.state(node), NodeState::new(node, number));
        assert!(!nodes.calls(node).iter().any(|call| call.starts_with("lease")), "{:?}", nodes.calls(node));
    }
}

#[tokio::test(start_paused = true)]
async fn up_brings_every_state_of_a_worker_back() {
    let nodes = two_up().await;
    let first = nodes.state("node1");
    type Change = fn(&mut NodeState);
    let cases: [(&str, Change, &str, bool); 5] = [
        ("stopped", |state| state.containers[0].state = "exited", "started hworker again (stopped)", true),
        ("paused", |state| state.containers[0].state = "paused", "unpaused hworker", true),
        ("removed", |state| state.containers.clear(), "started hworker", false),
        ("never started", |state| state.containers[0].state = "created", "recreated hworker (never started)", false),
        ("of another image", |state| state.containers[0].image = "older".into(), "recreated hworker (image)", false),
    ];
    for (what, change, reported, stays) in cases {
        nodes.edit("node2", change);
        let before = nodes.state("node2").container("hworker").map(|worker| worker.id.clone());
        hvdctl(&nodes, "up").await.code(0).says(&["node1: unchanged\n", &format!("node2: {reported}\n")]);
        assert_up(&nodes, what);
        let after = nodes.state("node2").container("hworker").map(|worker| worker.id.clone());
        assert_eq!(before == after, stays, "{what}: whether it is the same container");
    }
    assert_eq!(nodes.state("node1").contents(), first.contents(), "node1 was never changed");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_was_removed_and_not_replaced_is_said_to_be_gone() {
    let nodes = two_up().await;
    nodes.edit("node2", |state| state.containers[0].image = "older".into());
    nodes.fault("node2", "docker create", Fault::Fails("no space left on device".into()));
    let done = hvdctl(&nodes, "up").await;
    done.code(3).complains(&["node2: cannot start hworker", "hworker was removed", "`hvdctl up` starts it again"]);
    assert_eq!(nodes.state("node2").ps(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_image_is_compared_as_it_is_after_the_pull() {
    let pulls = |is_older| {
        let nodes = Nodes::new(&NODES);
        nodes.edit("node1", |state| state.are_old = is_older);
        nodes.edit("node2", |state| (state.images, state.has_registry) = (Vec::new(), true));
        nodes
    };
    hvdctl(&pulls(false), "up").await.code(0);
    let nodes = pulls(true);
    hvdctl(&nodes, "up --dry-run").await.code(0).says(&["node2: pull test/horovod:1"]);
    hvdctl(&nodes, "up").await.code(3).complains(&["test/horovod:1 is not the same image on all nodes"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_node_lacks_is_known_before_its_image_is_pulled() {
    let nodes = Nodes::new(&NODES);
    nodes.edit("node2", |state| {
        (state.images, state.has_registry) = (Vec::new(), true);
        state.add("hworker", &[("x", "y")]);
    });
    hvdctl(&nodes, "up").await.code(3).complains(&["node2: cannot start hworker: a container named hworker exists"]);
    let calls = nodes.calls("node2");
    assert!(!calls.iter().any(|call| call.starts_with("docker pull")), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn down_removes_only_containers_of_its_cluster() {
    let nodes = two_up().await;
    nodes.edit("node1", |state| {
        state.add("somebodys", &[("x", "y")]);
        state.add("other-worker", &[("hvdctl.cluster", "other")]);
    });
    let keys = nodes.state("node1").keys;
    let done = hvdctl(&nodes, "down").await;
    done.code(0).says(&["node[1-2] (2): removed hworker\n"]);
    assert_eq!(nodes.state("node1").ps(), ["somebodys running", "other-worker running"]);
    assert_eq!(nodes.state("node2").ps(), [""; 0]);
    assert_eq!(nodes.state("node1").keys, keys, "keys stay without --purge");
    assert_given_back(&nodes, "after down");
    let friends = "ssh-rsa FRIEND copy of ssh-rsa AAAA hvdctl:lab\n";
    nodes.edit("node1", |state| {
        state.keys.as_mut().unwrap().get_mut("authorized_keys").unwrap().text.insert_str(0, friends);
    });
    hvdctl(&nodes, "down --purge -y").await.code(0).says(&["node[1-2] (2): no containers; removed keys"]);
    assert_eq!(nodes.state("node1").ps(), ["somebodys running", "other-worker running"]);
    assert_eq!(nodes.state("node2").keys, None);
    let left: Vec<_> = nodes.state("node1").keys.unwrap().into_iter().map(|(name, file)| (name, file.text)).collect();
    assert_eq!(left, [("authorized_keys".to_owned(), friends.to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_container_of_an_image_that_was_committed_from_a_worker_is_its_users() {
    let nodes = two_up().await;
    let copied = nodes.state("node1").container("hworker").unwrap().labels.clone();
    let labels: Vec<(&str, &str)> = copied.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    nodes.edit("node1", |state| state.add("mine", &labels));
    hvdctl(&nodes, "up").await.code(0).says(&["nothing to do"]);
    hvdctl(&nodes, "down").await.code(0).says(&["node[1-2] (2): removed hworker\n"]);
    assert_eq!(nodes.state("node1").ps(), ["mine running"]);
    // one that takes the worker's name is foreign, as any other
    nodes.edit("node1", |state| {
        state.containers.clear();
        let labels = labels.iter().map(|(name, value)| (*name, if *name == "hvdctl.name" { "hmaster" } else { value }));
        state.add("hworker", &labels.collect::<Vec<_>>());
    });
    let words = ["node1: cannot start hworker: a container named hworker exists already and was not created by hvdctl"];
    hvdctl(&nodes, "up").await.code(3).complains(&words);
    hvdctl(&nodes, "down --purge -y").await.code(0);
    assert_eq!(nodes.state("node1").ps(), ["hworker running"]);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_container_of_the_workers_name_is_left_alone() {
    for label in [("x", "y"), ("hvdctl.cluster", "other")] {
        let nodes = Nodes::new(&NODES);
        nodes.edit("node2", |state| state.add("hworker", &[label]));
        let before = nodes.state("node2");
        let done = hvdctl(&nodes, "up").await;
        done.code(3)
            .says(&["node1: started hworker"])
            .complains(&["error: node2: cannot start hworker", "hint: remove"]);
        assert_eq!(nodes.state("node2").containers, before.containers);
        assert_eq!(nodes.state("node1").ps(), ["hworker running"]);
        hvdctl(&nodes, "status").await.code(0).says(&["foreign"]);
        hvdctl(&nodes, "down").await.code(0).says(&["node2: no containers"]);
        assert_eq!(nodes.state("node2").containers, before.containers);
    }
}

#[tokio::test(start_paused = true)]
async fn status_has_a_row_for_every_node() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "status").await.code(0).says(&["node1 (master)  Docker 27.1.0  none"]);
    assert_eq!(NODES.map(|node| nodes.state(node)), [NodeState::new("node1", 1), NodeState::new("node2", 2)]);
    hvdctl(&nodes, "up").await.code(0);
    nodes.edit("node2", |state| state.containers[0].state = "exited");
    hvdctl(&nodes, "status")
        .await
        .code(0)
        .says(&["node1 (master)  Docker 27.1.0  up ", "node2           Docker 27.1.0  stopped "]);
    nodes.edit("node2", |state| state.containers[0].image = "older".into());
    hvdctl(&nodes, "status").await.code(0).says(&["node2           Docker 27.1.0  differs "]);
    nodes.fault("node2", CONNECT, Fault::Fails("Connection refused".into()));
    let done = hvdctl(&nodes, "status").await;
    done.code(3).says(&["node1 (master)  Docker 27.1.0  up ", "node2           unreachable"]);
    done.complains(&["error: node2: cannot log in by ssh as root@node2: Connection refused"]);
    let document = hvdctl(&nodes, "status --json").await.code(3).document();
    let reported = |node: &Value| (node["node"].clone(), node["reachable"] == true, node["ok"] == true);
    assert_eq!(reported(&document["nodes"][0]), ("node1".into(), true, true));
    assert_eq!(reported(&document["nodes"][1]), ("node2".into(), false, false));
    hvdctl(&nodes, "--on node2 status").await.code(4);
}

#[tokio::test(start_paused = true)]
async fn a_drained_node_takes_no_part_in_new_jobs() {
    let nodes = two_up().await;
    hvdctl(&nodes, "drain node2").await.code(0).says(&["node2: drained\n"]);
    let again = hvdctl(&nodes, "drain node[1-2] --json").await.code(0).document();
    assert_eq!(again["nodes"][1]["changed"], false, "{again}");
    assert!(again["nodes"][1]["drained"]["by"].as_str().unwrap().contains('@'), "{again}");
    hvdctl(&nodes, "drain --undo node1").await.code(0).says(&["node1: no longer drained\n"]);
    hvdctl(&nodes, "status").await.code(0).says(&["\nnode2 is drained by "]);
    hvdctl(&nodes, "up").await.code(0).says(&["nothing to do"]);

    // every slot of node1, and not one more
    let slots = hvdctl(&nodes, "status --json").await.document()["nodes"][0]["slots"].as_u64().unwrap();
    let run = async |np: &str, more: &str| hvdctl(&nodes, &format!("{more}run -np {np} --dry-run -- true")).await;
    let placed = run(&slots.to_string(), "").await;
    placed.code(0).says(&["node1"]).complains(&["node2 is drained by", " and gets no ranks"]);
    assert!(!placed.out.contains("node2"), "{placed}");
    run(&format!("{slots}:{}", 2 * slots), "").await.code(0);
    let refused = run(&(slots + 1).to_string(), "").await;
    refused.code(125).complains(&["error: node2 is drained by", "ranks were requested", "hvdctl drain --undo node2"]);
    run("1", "--on node2 ").await.code(125).complains(&["node2 is drained by"]);
    hvdctl(&nodes, "drain node1").await.code(0);
    hvdctl(&nodes, "verify").await.code(1).complains(&["node1 is drained by", "no other node is available"]);
    hvdctl(&nodes, "drain --undo node[1-2]").await.code(0).says(&["node[1-2] (2): no longer drained\n"]);
    run(&(slots + 1).to_string(), "").await.code(0).says(&["node2"]);
    hvdctl(&nodes, "drain node9").await.code(2);
}

#[tokio::test(start_paused = true)]
async fn drain_says_which_jobs_leave_a_node_and_which_stay() {
    let nodes = two_up().await;
    let record = |id: &str, first: &str, min: &str| {
        format!(
            "rank {id} 7 - lab -\nopen {id} \
             {{\"id\":\"{id}\",\"cluster\":\"lab\",\"name\":\"n\",\"operator\":\"o\",\"created\":1.0,{min}\
             \"placement\":{{\"shares\":[{{\"node\":\"{first}\",\"ranks\":1,\"first\":0}}]}},\"command\":[\"x\"],\"cwd\":\"/\",\
             \"ranks\":1,\"port\":12345,\"interface\":\"eth0\",\"launcher\":\"horovodrun\",\"restarts\":0,\"grace\":1,\"stall\":0,\
             \"idle_margin\":30,\"ulimits\":{{}}}}\n"
        )
    };
    let elastic = "\"min_ranks\":1,";
    let jobs = record("run-1", "node1", elastic) + &record("run-2", "node2", elastic) + &record("run-3", "node1", "");
    nodes.edit("node2", |state| state.facts = jobs.clone());
    let document = hvdctl(&nodes, "drain node2 --json").await.code(0).document();
    assert_eq!(document["nodes"][0]["leaving"], serde_json::json!(["run-1"]), "{document}");
    assert_eq!(document["nodes"][0]["staying"], serde_json::json!(["run-2", "run-3"]), "{document}");
    let words = ["; it leaves job run-1", "; job run-2 stays until it ends"];
    hvdctl(&nodes, "drain node2").await.code(0).says(&words);
    // no launcher of them is on the node
    let document = hvdctl(&nodes, "status --json").await.code(0).document();
    assert_eq!(document["nodes"][1]["jobs"], serde_json::json!(["run-1", "run-2", "run-3"]), "{document}");
    nodes.edit("node2", |state| state.facts = jobs.replace("7 - lab -", "7 - lab killed"));
    let document = hvdctl(&nodes, "status --json").await.code(0).document();
    assert_eq!(document["nodes"][1]["jobs"], serde_json::json!([]), "{document}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_replaced_during_a_job_only_with_force() {
    let nodes = during_a_job().await;
    let before = NODES.map(|node| nodes.state(node));
    let words = "job run-1 is running, and its workers would be replaced on node2";
    hvdctl(&nodes, "up").await.code(1).complains(&["error: ", words, "hint: ", "--force"]);
    hvdctl(&nodes, "--on node2 up").await.code(1).complains(&[words]);
    hvdctl(&nodes, "up --dry-run").await.code(0).complains(&["warning: ", words]);
    for (node, before) in NODES.iter().zip(&before) {
        assert_eq!(nodes.state(node).contents(), before.contents(), "{node}");
    }
    let done = hvdctl(&nodes, "up --force").await;
    done.code(0).says(&["node[1-2] (2): ended the job run-1, recreated hworker (image)\n"]);
    assert_up(&nodes, "after the job");
    // its job supervisor first, then what it left, and only then the worker
    let calls = nodes.calls("node1");
    let at = |call: &str| calls.iter().position(|other| other == call).unwrap_or_else(|| panic!("{call}: {calls:?}"));
    assert!(
        at("docker kill hmaster") < at("job/end.sh") && at("job/end.sh") < at("docker remove hworker"),
        "{calls:?}"
    );
}

/// The record of an elastic job of at most two ranks on node1.
const ELASTIC: &str = r#"{"id":"run-1","cluster":"lab","name":"n","operator":"o","created":1.0,"min_ranks":1,
"max_ranks":2,"placement":{"shares":[{"node":"node1","ranks":1,"first":0}]},"command":["x"],"cwd":"/","ranks":1,
"port":12345,"interface":"eth0","launcher":"horovodrun","restarts":0,"grace":1,"stall":0,"idle_margin":30,
"ulimits":{}}"#;

/// Runs a command beside an elastic job of at most two ranks on node1, with a part of its record replaced, and further
/// facts of node2.
async fn up_beside_an_elastic_job(replaced: (&str, &str), facts: &str, command: &str) -> (Nodes, Done) {
    let nodes = two_up().await;
    let labels = [("hvdctl.cluster", "lab"), ("hvdctl.role", "master"), ("hvdctl.job", "run-1")];
    let record = ELASTIC.replace('\n', "").replace(replaced.0, replaced.1);
    nodes.edit("node1", |state| {
        state.add("hmaster", &labels);
        state.facts = format!("open run-1 {record}\n");
    });
    nodes.edit("node2", |state| state.facts = facts.to_owned());
    let done = hvdctl(&nodes, command).await;
    (nodes, done)
}

#[tokio::test(start_paused = true)]
async fn a_new_node_joins_an_elastic_job_that_may_have_more_ranks() {
    let joins = "node2 would join job run-1";
    let (_, done) = up_beside_an_elastic_job(("", ""), "", "up --dry-run").await;
    done.code(0).complains(&[joins]);
    let drained = "drained 1 o\n";
    let reasons = [
        (("\"max_ranks\":2,", ""), ""),
        (("\"max_ranks\":2,", "\"max_ranks\":1,"), ""),
        (("\"first\":0", "\"first\":0,\"shared\":true"), ""),
        (("\"port\":12345", "\"port\":12346"), ""),
        (("\"cluster\":\"lab\"", "\"cluster\":\"other\""), ""),
        (("run-1", "run-2"), ""),
        (("", ""), "rank run-1 7 - lab -\n"),
        (("", ""), drained),
    ];
    for (replaced, facts) in reasons {
        let (_, done) = up_beside_an_elastic_job(replaced, facts, "up --dry-run").await;
        let done = done.code(0);
        assert!(!done.err.contains("would join"), "{replaced:?} {facts:?}: {}", done.err);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_with_an_image_of_its_own_is_not_joined_and_that_is_said() {
    let (nodes, _) = up_beside_an_elastic_job(("", ""), "", "up --dry-run").await;
    nodes.edit("node1", |state| {
        let launcher = state.containers.iter_mut().find(|container| container.name == "hmaster").unwrap();
        launcher.labels.insert("hvdctl.spec.full".into(), r#"{"image":"hvdctl/digits:1"}"#.into());
    });
    let words = ["node2 cannot join job run-1, which has an image of its own (hvdctl/digits:1)", "hvdctl stop run-1"];
    hvdctl(&nodes, "up --dry-run").await.code(0).complains(&words);
    hvdctl(&nodes, "up").await.code(0).complains(&words);
    assert_eq!(nodes.calls("node2").iter().filter(|call| call.starts_with("job/")).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_join_a_job_is_a_warning() {
    let (nodes, done) = up_beside_an_elastic_job(("", ""), "", "up").await;
    done.code(0)
        .complains(&["warning: node1: cannot read job run-1: No such file or directory", "continues without it"]);
    assert_eq!(nodes.calls("node2").iter().filter(|call| call.starts_with("job/")).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_where_the_directory_of_a_job_cannot_be_created_keeps_no_other_from_joining() {
    let nodes = Nodes::new(&["node1", "node2", "node3"]);
    hvdctl(&nodes, "up").await.code(0);
    let labels = [("hvdctl.cluster", "lab"), ("hvdctl.role", "master"), ("hvdctl.job", "run-1")];
    nodes.edit("node1", |state| {
        state.add("hmaster", &labels);
        let record = ELASTIC.replace('\n', "").replace("\"max_ranks\":2", "\"max_ranks\":99");
        state.facts = format!("open run-1 {record}\n");
        let files = &mut state.directories.entry("run-1".into()).or_default().files;
        files.insert("launch.json".into(), "{\"address\": \"10.0.0.1\"}".into());
        files.insert("env.json".into(), "{}".into());
    });
    nodes.fault("node2", "job/start.sh", Fault::Fails("No space left on device".into()));
    let done = hvdctl(&nodes, "up").await;
    done.code(0).complains(&["warning: node2: ", "No space left on device", "node3 joins job run-1"]);
    let record = |node: &str| nodes.state(node).directories["run-1"].files["job.json"].clone();
    for node in ["node1", "node3"] {
        let shares = serde_json::from_str::<serde_json::Value>(&record(node)).unwrap()["placement"]["shares"].clone();
        let shares: Vec<_> = shares.as_array().unwrap().iter().map(|share| share["node"].as_str().unwrap()).collect();
        assert_eq!(shares, ["node1", "node3"], "{node}");
    }
    assert!(!nodes.state("node2").directories.contains_key("run-1"));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "calls that no scripted node knows")]
async fn a_call_that_no_scripted_node_knows_fails_the_test() {
    hvdctl(&Nodes::new(&NODES), "doctor").await;
}

#[tokio::test(start_paused = true)]
async fn up_creates_the_directories_before_the_worker_and_closes_those_of_an_old_node_once() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "up").await.code(0);
    for node in NODES {
        let calls = nodes.calls(node);
        let at = |call: &str| calls.iter().position(|other| other.starts_with(call)).unwrap();
        assert!(at("node/directories.sh") < at("docker create"), "{calls:?}");
    }
    let nodes = nodes.copy();
    hvdctl(&nodes, "up").await.code(0);
    assert_eq!(nodes.count("node/directories.sh"), [0, 0], "nothing is missing");

    let old = ["/opt/horovod/jobs", "/opt/horovod/projects/.p@lab", "/opt/horovod/projects/p"].map(str::to_owned);
    nodes.edit("node2", |state| state.unclosed = old.to_vec());
    let done = hvdctl(&nodes, "up --dry-run").await;
    done.code(0).complains(&["node2: 3 directories below /opt/horovod would be closed to other users of the node"]);
    assert_eq!(nodes.count("node/directories.sh"), [0, 0]);
    let done = hvdctl(&nodes, "up").await;
    done.code(0).complains(&["node2: closed 3 directories below /opt/horovod to other users of the node"]);
    let again = hvdctl(&nodes, "up").await;
    assert!(!again.code(0).err.contains("closed"), "{again}");
    assert_eq!(nodes.count("node/directories.sh"), [0, 1]);

    // a job closes them, too
    nodes.edit("node1", |state| state.unclosed = old[..1].to_vec());
    nodes.play(Play::default().frame(0, "node1", "0 s ").frame(5000, "node1", "0 x 0").ends(5000, 0));
    let done = hvdctl(&nodes, "--on node1 run -np 1 -- true").await;
    done.code(0).complains(&["node1: closed /opt/horovod/jobs to other users of the node"]);
    assert_eq!(nodes.count("node/directories.sh"), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_where_others_can_change_the_directories() {
    let nodes = two_up().await;
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("x"), "").unwrap();
    let exposed = ["ssh", "jobs", "projects", "data"]
        .map(|what| format!("exposed {what} owner 755 mallory users /scratch/hvd\n"));
    nodes.edit("node2", |state| state.facts = exposed.concat());
    let words = [
        "node2: cannot use the node: other users can change cluster.ssh_dir, cluster.jobs_dir, cluster.projects_dir, \
         cluster.data_dir: /scratch/hvd belongs to mallory (mode 755)",
        "to a directory that only root can change, or `sudo chown root:root /scratch/hvd && sudo chmod go-w \
         /scratch/hvd` on the node, unless mallory is meant to keep it",
    ];
    let push = format!("data push {} --as set", data.path().display());
    for line in
        ["up", "run -np 8 -- true", "keys push", "keys rotate", &push, "data rm set", "drain node2", "down --purge -y"]
    {
        let nodes = nodes.copy();
        let done = hvdctl(&nodes, line).await;
        assert_ne!(done.code, 0, "{done}");
        done.complains(&words);
        let writes = [
            "node/directories.sh",
            "keys/push.sh",
            "keys/stage.sh",
            "job/start.sh",
            "data/compare.sh",
            "node/drain.sh",
            "node/purge.sh",
        ];
        assert_eq!(writes.map(|call| nodes.count(call)[1]), [0; 7], "{line}: {:?}", nodes.calls("node2"));
    }
}
