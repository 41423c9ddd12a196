//! The records that commands write to the ledgers of the nodes, and the grades that follow from them.

use super::jobs::{RUN, ends_with, up_with};
use super::*;
use crate::inventory::Gpus;
use crate::transport::node::scripted::{CONNECT, Fault};

/// Returns the entries of a node's ledger without the beginning of each line.
fn ledger(nodes: &Nodes, node: &str) -> Vec<String> {
    let text = nodes.state(node).ledger;
    text.lines().map(|line| line.split_once("\"what\":").unwrap().1.to_owned()).collect()
}

/// Returns the number of times that each node has recorded something.
fn recorded(nodes: &Nodes) -> Vec<usize> {
    nodes.count("ledger/append.sh")
}

#[tokio::test(start_paused = true)]
async fn nodes_are_new_until_something_is_recorded_of_them() {
    let nodes = up_with(ends_with([0, 0])).await;
    hvdctl(&nodes, "grade").await.code(0).says(&["2 nodes: 4 cores\n", "\nnew    node1  –      0", "\nnew    node2"]);
    assert_eq!(recorded(&nodes), [0, 0], "there was nothing");
    hvdctl(&nodes, RUN).await.code(0);
    assert_eq!(recorded(&nodes), [1, 1], "one script on each node");
    let document = hvdctl(&nodes, "grade --json").await.code(0).document();
    let node = &document["nodes"][1];
    assert_eq!((&node["grade"], &node["evidence"], &node["jobs"]), (&"A".into(), &1.into(), &1.into()), "{document}");
    assert_eq!((&node["kind"]["cores"], &node["speed"], &node["lost"]), (&4.into(), &Value::Null, &0.into()));
    assert_eq!(recorded(&nodes), [1, 1], "it is recorded already");
    hvdctl(&nodes, "grade").await.code(0).says(&["A      node1  1.00   1"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_no_one_watched_is_recorded_by_the_next_grade() {
    let nodes = up_with(ends_with([0, 0])).await;
    hvdctl(&nodes, &RUN.replace("run ", "run --detach ")).await.code(0);
    let running = hvdctl(&nodes, "grade --json").await.code(0).document();
    assert_eq!(running["nodes"][0]["evidence"], 0);
    sleep(Duration::from_secs(60)).await;
    for _ in 0..2 {
        let document = hvdctl(&nodes, "grade --json").await.code(0).document();
        assert_eq!(document["nodes"][0]["evidence"], 1, "{document}");
    }
    assert_eq!(recorded(&nodes), [1, 1]);
    assert!(ledger(&nodes, "node2")[1].starts_with("\"job\",\"job\":"), "{:?}", ledger(&nodes, "node2"));
}

#[tokio::test(start_paused = true)]
async fn gpus_that_keep_verify_from_starting_its_job_are_recorded() {
    let nodes = Nodes::new(&NODES);
    let one = "nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-aa)\ngpu exit 0\nmig exit 0\n";
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.facts = one.into()));
    hvdctl(&nodes, "up").await.code(0);
    let mut promises = inventory(&nodes);
    promises.nodes[0].gpus = Gpus::Count(2);
    hvdctl_on(&nodes, promises, "--on node1 verify", mpsc::unbounded_channel().1).await.code(1);
    let entry = |text: &str| format!("\"check\",\"by\":\"verify\",\"failed\":[\"gpus: {text}\"]}}");
    let lists_one = entry("the inventory requires 2, nvidia-smi lists 1");
    assert_eq!(ledger(&nodes, "node1")[1..], [lists_one.as_str()]);
    nodes.edit("node1", |state| state.facts = "nvidia-smi yes\nmig exit 0\n".into());
    hvdctl(&nodes, "verify").await.code(1);
    assert_eq!(ledger(&nodes, "node1")[1..], [lists_one, entry("nvidia-smi failed: no answer within 20 s")]);
    assert_eq!(ledger(&nodes, "node2"), [""; 0], "it has no fault, and no job has shown more");
}

#[tokio::test(start_paused = true)]
async fn a_programs_failure_counts_for_no_node_and_operators_see_the_same() {
    let nodes = up_with(ends_with([0, 0])).await;
    nodes.play(ends_with([143, 3]));
    hvdctl(&nodes, RUN).await.code(3);
    nodes.edit("node2", |state| {
        let slow = "{\"what\":\"bench\",\"figures\":{\"send\":100}}\n{\"what\":\"check\",\"by\":\"verify\",\"failed\":[\"no GPU\"]}";
        state.append_to_ledger(slow, 1_763_735_528);
        // a power failure
        state.ledger.push_str("{\"format\":1,\"ti");
    });
    nodes.edit("node1", |state| {
        state.append_to_ledger("{\"what\":\"bench\",\"figures\":{\"send\":1000}}", 1_763_735_528)
    });
    let first = hvdctl(&nodes, "grade").await;
    first.code(0).says(&["\nA      node1", "\nF      node2", "health: the latest verify failed: no GPU"]);
    first.complains(&["node2: its ledger has 1 line that cannot be read; the rest counts"]);
    // another operator, whose inventory has them in another order
    let mut other = inventory(&nodes);
    other.nodes.reverse();
    let (_nobody, signals) = mpsc::unbounded_channel();
    assert_eq!(hvdctl_on(&nodes, other, "grade", signals).await.out, first.out);
    let long = hvdctl(&nodes, "-v grade").await;
    long.says(&["health: the latest verify failed: no GPU; network: sends 10 % of the fastest of its kind\n"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_gpus_are_not_known_is_no_silent_exception() {
    let nodes = up_with(ends_with([0, 0])).await;
    nodes.edit("node2", |state| {
        state.facts = "nvidia-smi yes\ngpu GPU 0: H200 (UUID: GPU-1)\ngpu exit 0\nmig exit 255\n".into()
    });
    let why = "node2: its kind is not known for certain, so its grade may be wrong: nvidia-smi failed: exit code 255\n";
    hvdctl(&nodes, "grade").await.code(0).complains(&[why]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_recorded_or_read_is_no_failure_of_anything_else() {
    let nodes = up_with(ends_with([0, 0])).await;
    nodes.fault("node2", "ledger/append.sh", Fault::Fails("sh: write error: No space left on device".into()));
    let done = hvdctl(&nodes, RUN).await;
    done.code(0).complains(&["node2: nothing was recorded in its ledger: ", "No space left on device"]);
    assert_eq!((ledger(&nodes, "node1").len(), ledger(&nodes, "node2").len()), (2, 0));
    nodes.fault("node2", "ledger/append.sh", Fault::Silent);
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, RUN).await.code(0).complains(&["node2: nothing was recorded in its ledger: "]);
    nodes.repair();
    // an unreadable ledger is a node without a grade
    nodes.fault("node2", "ledger/read.sh", Fault::Fails("tail: Input/output error".into()));
    let failed = hvdctl(&nodes, "grade").await;
    failed
        .code(3)
        .says(&["node1", "node2  failed"])
        .complains(&["node2: cannot read its ledger", "Input/output error"]);
    nodes.repair();
    nodes.fault("node2", CONNECT, Fault::Fails("No route to host".into()));
    hvdctl(&nodes, "grade").await.code(3).says(&["A      node1", "node2  unreachable"]);
    let document = hvdctl(&nodes, "grade --json").await.code(3).document();
    assert_eq!(document["nodes"][1]["error"]["kind"], "unreachable", "{document}");
}
