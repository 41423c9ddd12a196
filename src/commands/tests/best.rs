//! `--best`: which nodes a job gets by their ledgers, what is left out, and other commands that are faster.

use super::*;
use crate::transport::node::scripted::{CONNECT, Fault, Lease, Play};
use std::sync::atomic::{AtomicBool, Ordering};

const THREE: [&str; 3] = ["node1", "node2", "node3"];

/// Three nodes that are up: node2 is the best, then node3, then node1, which is half as fast and has failed a check.
async fn three_up() -> Nodes {
    let nodes = Nodes::new(&THREE);
    hvdctl(&nodes, "up").await.code(0);
    // the clock of their facts is this machine's
    let now = crate::cluster::operator::now() as u64;
    let entries = [
        ("node1", "{\"what\":\"check\",\"by\":\"verify\",\"failed\":[\"GPU 0: hardware slowdown\"]}\n", 5e10),
        ("node2", "{\"what\":\"check\",\"by\":\"verify\"}\n", 1e11),
        ("node3", "{\"what\":\"check\",\"by\":\"verify\",\"warned\":[\"clock differs\"]}\n", 1e11),
    ];
    for (node, check, product) in entries {
        let bench = format!("{{\"what\":\"bench\",\"figures\":{{\"product\":{product}}}}}\n");
        nodes.edit(node, |state| state.append_to_ledger(&format!("{check}{bench}"), now));
    }
    nodes
}

/// A job whose only rank is on this node, and ends well after 5 s.
fn on(node: &str) -> Play {
    Play::default().frame(0, node, "0 s ").frame(5000, node, "0 x 0").ends(5000, 0)
}

/// The jobs that a node has had.
fn jobs(nodes: &Nodes, node: &str) -> usize {
    nodes.state(node).directories.len()
}

/// The variable of the ranks of the job that runs on a node.
fn speed(nodes: &Nodes, node: &str) -> String {
    let directories = nodes.state(node).directories.into_values();
    let directory = directories.into_iter().find(|directory| directory.files.contains_key("env.json")).unwrap();
    let environment: Value = serde_json::from_str(&directory.files["env.json"]).unwrap();
    environment["HVDCTL_SPEED"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn the_best_node_is_taken_and_the_choice_is_explained() {
    let nodes = three_up().await;
    let done = hvdctl(&nodes, "run --best 2 --dry-run -- true").await;
    done.code(0).complains(&["the best 2 nodes of 4 cores: node2 (A), node3 (", "left out: node1 (F: health:"]);
    let document = hvdctl(&nodes, "--json run --best 2 --dry-run -- true").await.document();
    assert_eq!(
        (&document["best"]["nodes"][0]["node"], document["speeds"].to_string()),
        (&"node2".into(), "[{\"node\":\"node2\",\"speed\":1.0},{\"node\":\"node3\",\"speed\":1.0}]".into())
    );
    let ranks =
        document["placement"]["shares"].as_array().unwrap().iter().map(|share| share["ranks"].as_u64().unwrap());
    assert_eq!(ranks.collect::<Vec<_>>(), [0, 4, 4], "all slots of the chosen nodes; the master only launches");

    nodes.play(on("node2"));
    hvdctl(&nodes, "run --best 1 -np 1 -- true").await.code(0).complains(&["the best 1 node of 4 cores: node2 (A); "]);
    assert_eq!(THREE.map(|node| jobs(&nodes, node)), [0, 1, 0]);
    // among the selected ones
    nodes.play(on("node1"));
    let done = hvdctl(&nodes, "--on node1 run --best 1 -np 1 -- true").await;
    done.code(0).complains(&["warning: took node1 (F: health: ", "): no better node of this kind is free"]);
}

#[tokio::test(start_paused = true)]
async fn every_operator_gets_the_same_nodes() {
    let nodes = three_up().await;
    let mut other = inventory(&nodes);
    other.nodes.reverse();
    for line in ["hosts --best 3", "hosts --best 3"] {
        let done = hvdctl(&nodes, line).await;
        done.code(0).says(&["node2:4,node3:4,node1:4\n"]);
        let again = hvdctl_on(&nodes, other.clone(), line, mpsc::unbounded_channel().1).await;
        assert_eq!((again.code, &again.out), (0, &done.out));
    }
}

#[tokio::test(start_paused = true)]
async fn hosts_are_printed_the_best_first_in_every_format() {
    let nodes = three_up().await;
    let hosts = async |format: &str| hvdctl(&nodes, &format!("hosts --best 2 --format {format}")).await;
    hosts("env").await.code(0).says(&[
        "export HVDCTL_NODES='node2 node3'\n",
        "export HVDCTL_HOSTS=node2:4,node3:4\n",
        "export HOROVOD_HOSTNAME=node2:4,node3:4\n",
        "export HVDCTL_MASTER=node2\n",
    ]);
    hosts("mpi").await.says(&["node2 slots=4\nnode3 slots=4\n"]);
    hosts("torchrun").await.says(&["node2: torchrun --nnodes 2 --node_rank 0", "--master_addr node2"]);
    let document = hvdctl(&nodes, "--json hosts --best 1").await.document();
    assert_eq!((&document["nodes"][0]["node"], &document["best"]["nodes"][0]["grade"]), (&"node2".into(), &"A".into()));
    hvdctl(&nodes, "hosts").await.says(&["node1:4,node2:4,node3:4\n"]);
    // a node that others use is left out
    nodes.play(on("node2"));
    hvdctl(&nodes, "--on node2 run --detach -np 1 -- true").await.code(0);
    hvdctl(&nodes, "hosts --best 1").await.says(&["node3:4\n"]).complains(&["node2 (allocated to job "]);
    let done = hvdctl(&nodes, "hosts --best 3").await;
    done.code(5).complains(&[
        "--best 3: no kind of node has 3 free nodes",
        "4 cores: 2 of 3 free (node[1,3])",
        "not free: node2 (allocated to job ",
    ]);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_do_not_answer_or_are_drained_are_left_out() {
    let nodes = three_up().await;
    nodes.fault("node2", CONNECT, Fault::Fails("Connection refused".into()));
    hvdctl(&nodes, "hosts --best 1").await.code(0).says(&["node3:4\n"]).complains(&["node2 (unreachable)"]);
    nodes.edit("node3", |state| state.facts = "drained {\"by\":\"ana@desk\",\"since\":0}\n".into());
    let done = hvdctl(&nodes, "hosts --best 1").await;
    done.code(0).says(&["node1:4\n"]).complains(&["warning: took node1 (F: ", "node3 (drained by ana@desk)"]);
    hvdctl(&nodes, "hosts --best 2").await.code(1).complains(&["4 cores: 1 of 2 free (node1)", "hint: lower it to 1"]);
    nodes.fault("node1", "ledger/read.sh", Fault::Fails("Input/output error".into()));
    hvdctl(&nodes, "hosts --best 1")
        .await
        .code(1)
        .complains(&["no kind of node has 1 free node", "node1 (cannot read its ledger)"]);
}

#[tokio::test(start_paused = true)]
async fn a_part_of_each_node_may_be_asked_for() {
    let nodes = three_up().await;
    let gpu = "nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-1)\ngpu exit 0\nmig exit 0\n";
    nodes.edit("node1", |state| state.facts = gpu.into());
    let mut inventory = inventory(&nodes);
    // more slots than GPUs
    inventory.nodes[0].slots = Some(4);
    let hvdctl = async |line: &str| hvdctl_on(&nodes, inventory.clone(), line, mpsc::unbounded_channel().1).await;
    let done = hvdctl("--on node1 hosts --best 1").await;
    done.code(0).says(&["node1:4\n"]).complains(&["1 x NVIDIA H200, 4 cores: node1 (F: "]);
    let done = hvdctl("--on node1 run --best 1 --gpus-per-node 2 --dry-run -- true").await;
    done.code(125).complains(&["node1 (has fewer than 2 GPUs or slots)"]);
    // two jobs share a node, and a third one that wants the rest of it has another
    nodes.play(on("node2"));
    hvdctl("--on node2 run --best 1 --gpus-per-node 3 -np 1 --detach -- true").await.code(0);
    let done = hvdctl("run --best 1 --gpus-per-node 3 -np 1 --dry-run -- true").await;
    done.code(0).complains(&["the best 1 node of 4 cores: node2 (A)"]);
    let done = hvdctl("run --best 1 --gpus-per-node 4 -np 1 --dry-run -- true").await;
    done.code(0).complains(&["the best 1 node of 4 cores: node3 (B", "node2 (allocated to job "]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_another_command_takes_meanwhile_is_replaced() {
    let nodes = three_up().await;
    // the first attempt to lock is too late
    let (other, is_taken) = (nodes.clone(), AtomicBool::new(false));
    nodes.watch(move |moment| {
        let locks = moment.call == "lease/hold.sh" && !moment.done;
        if locks && moment.node == "node2" && !is_taken.swap(true, Ordering::Relaxed) {
            let lease = Lease::of_another(other.now());
            other.edit("node2", |state| state.lease = Some(lease));
        }
    });
    nodes.play(on("node3"));
    let done = hvdctl(&nodes, "run --best 1 -np 1 -- true").await;
    done.code(0).complains(&[
        "node2 is locked by bob@laptop (process 4711) with `hvdctl down`",
        "choosing again",
        "the best 1 node of 4 cores: node3 (",
        "node2 (locked by bob@laptop with `hvdctl down`)",
    ]);
    assert_eq!(THREE.map(|node| jobs(&nodes, node)), [0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_gets_nodes_when_a_job_has_ended() {
    let nodes = three_up().await;
    nodes.play(on("node2"));
    hvdctl(&nodes, "--on node2 run --detach -np 1 -- sleep 600").await.code(0);
    let refused = hvdctl(&nodes, "run --best 3 -np 1 -- true").await;
    refused.code(125).complains(&["nothing was changed", "hint: wait with --wait, or lower it to 2"]);
    nodes.play(on("node1"));
    let done = hvdctl(&nodes, "run --best 3 -np 1 --wait -- true").await;
    done.code(0).complains(&["waiting: --best 3: no kind of node has 3 free nodes\n", "the best 3 nodes of 4 cores"]);
    // a dry run does not wait
    nodes.play(on("node2"));
    hvdctl(&nodes, "--on node2 run --detach -np 1 -- sleep 600").await.code(0);
    hvdctl(&nodes, "run --best 3 --wait --dry-run -- true").await.code(125).complains(&["no kind of node has 3"]);
}

#[tokio::test(start_paused = true)]
async fn every_rank_has_the_speed_of_its_node() {
    let nodes = three_up().await;
    let play = || {
        let all = THREE.iter().enumerate();
        let started =
            all.clone().fold(Play::default(), |play, (rank, node)| play.frame(0, node, &format!("{rank} s ")));
        all.fold(started, |play, (rank, node)| play.frame(60_000, node, &format!("{rank} x 0"))).ends(60_000, 0)
    };
    nodes.play(play());
    hvdctl(&nodes, "run --detach -np 3 --map-by node -- true").await.code(0);
    assert_eq!(THREE.map(|node| speed(&nodes, node)), ["0.50", "1", "1"]);
    hvdctl(&nodes, "attach").await.code(0);
    // an ordinary job reads no ledger
    assert_eq!(nodes.count("ledger/read.sh"), [0, 0, 0]);
    hvdctl(&nodes, "run -np 12 --dry-run -- true").await.code(0).says(&["speed of node1: HVDCTL_SPEED=0.50\n"]);
    THREE.iter().for_each(|node| nodes.edit(node, |state| state.ledger.clear()));
    nodes.play(play());
    hvdctl(&nodes, "run --detach -np 3 --map-by node -- true").await.code(0);
    assert_eq!(THREE.map(|node| speed(&nodes, node)), ["1", "1", "1"]);
}
