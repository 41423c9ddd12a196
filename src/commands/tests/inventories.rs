//! Inventories that differ from what the nodes have, or that leave nodes out.

use super::*;
use crate::inventory::{Gpus, KeyType};
use crate::transport::node::scripted::{CONNECT, Fault, NodeState};

/// Runs hvdctl with an inventory that is changed in this way.
async fn hvdctl_changed(nodes: &Nodes, change: impl FnOnce(&mut Inventory), line: &str) -> Done {
    let mut inventory = inventory(nodes);
    change(&mut inventory);
    hvdctl_on(nodes, inventory, line, mpsc::unbounded_channel().1).await
}

#[tokio::test(start_paused = true)]
async fn only_the_selected_nodes_are_touched() {
    let nodes = Nodes::new(&NODES);
    // its keys come from the master, which has none
    hvdctl(&nodes, "--on !node1 up").await.code(1).complains(&["node2: ", "node1", "hint: "]);
    assert_eq!(NODES.map(|node| nodes.state(node)), [NodeState::new("node1", 1), NodeState::new("node2", 2)]);
    hvdctl(&nodes, "--on node1 up").await.code(0).says(&["node1: started hworker\n"]);
    assert_eq!(nodes.state("node2"), NodeState::new("node2", 2));
    hvdctl(&nodes, "up").await.code(0).says(&["node1: unchanged\n", "node2: started hworker\n"]);
    hvdctl(&nodes, "--on !node1 down").await.code(0);
    assert_eq!(NODES.map(|node| nodes.state(node).ps()), [vec!["hworker running".to_owned()], Vec::new()]);
}

#[tokio::test(start_paused = true)]
async fn another_port_takes_the_pinned_keys_along() {
    let nodes = two_up().await;
    let on_another_port = |inventory: &mut Inventory| inventory.cluster.port = 12399;
    let pinned = |node: &str| nodes.state(node).keys.unwrap()["known_hosts"].text.clone();
    assert!(pinned("node1").contains("[node2]:12345"), "{}", pinned("node1"));
    let refused = hvdctl_changed(&nodes, on_another_port, "run -np 8 -- true").await;
    refused.code(125).complains(&["node[1-2]", "hint: `hvdctl up` pushes them"]);
    let dry = hvdctl_changed(&nodes, on_another_port, "up --dry-run").await;
    dry.code(0).says(&["node[1-2] (2): recreate hworker (port)\n", "2 of 2 nodes"]);
    let done = hvdctl_changed(&nodes, on_another_port, "up").await;
    done.code(0).says(&["node[1-2] (2): recreated hworker (port)\n"]).complains(&["pushing them first"]);
    assert_up(&nodes, "on another port");
    assert!(pinned("node1").contains("[node2]:12399") && !pinned("node1").contains(":12345"), "{}", pinned("node1"));
    hvdctl_changed(&nodes, on_another_port, "run -np 8 --dry-run -- true").await.code(0);
}

#[tokio::test(start_paused = true)]
async fn promised_gpus_that_are_not_there_name_both_numbers() {
    let nodes = Nodes::new(&NODES);
    let one = "nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-aa)\ngpu exit 0\nmig exit 0\n";
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.facts = one.into()));
    let promises = |inventory: &mut Inventory| inventory.nodes[1].gpus = Gpus::Count(2);
    let done = hvdctl_changed(&nodes, promises, "up").await;
    done.code(3).says(&["node1: started hworker\n"]);
    done.complains(&["error: node2: ", "the inventory requires 2, nvidia-smi lists 1", "hint: "]);
    assert_eq!(nodes.state("node2").ps(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn more_ranks_than_slots_are_refused_before_any_node_is_asked() {
    let nodes = Nodes::new(&NODES);
    let project = tempfile::tempdir().unwrap();
    std::fs::write(project.path().join("train.py"), "").unwrap();
    let slots = |inventory: &mut Inventory| inventory.nodes.iter_mut().for_each(|node| node.slots = Some(1));
    for line in [format!("train {} -np 3", project.path().display()), "run -np 3 -- true".to_owned()] {
        hvdctl_changed(&nodes, slots, &line).await.code(2).complains(&["3 ranks", "2 slots"]);
    }
    assert_eq!(NODES.map(|node| nodes.calls(node)), [vec![""; 0], vec![""; 0]]);
}

#[tokio::test(start_paused = true)]
async fn an_unusable_env_file_stops_a_job_before_any_change() {
    let nodes = two_up().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secrets.env");
    let with_file = |inventory: &mut Inventory| {
        inventory.nodes.iter_mut().for_each(|node| node.container.env_file = Some(file.clone()));
    };
    let before = NODES.map(|node| nodes.state(node));
    let missing = hvdctl_changed(&nodes, with_file, "run -np 1 -- true").await;
    missing.code(2).complains(&["env_file ", "secrets.env: No such file"]);
    std::fs::write(&file, "A=1\nhidden words\n").unwrap();
    let set_mode = |mode| std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    set_mode(0o644);
    let done = hvdctl_changed(&nodes, with_file, "run -np 1 -- true").await;
    done.code(2).complains(&["secrets.env: other users can read it (mode 644)", "hint: chmod 600 "]);
    set_mode(0o600);
    let done = hvdctl_changed(&nodes, with_file, "run -np 1 -- true").await;
    done.code(2).complains(&["line 2: expected NAME=VALUE"]);
    assert!(!done.err.contains("hidden"), "{done}");
    assert_eq!(NODES.map(|node| nodes.state(node)), before);
}

#[tokio::test(start_paused = true)]
async fn a_pair_of_keys_is_made_once() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "--on node2 keys generate").await.code(2).complains(&["node1", "--on"]);
    assert_eq!(nodes.state("node1").keys, None);
    let made = hvdctl(&nodes, "keys generate").await;
    made.code(0).says(&["node1: generated a key pair: Ed25519 SHA256:"]);
    let keys = nodes.state("node1").keys.unwrap();
    assert_eq!(keys.keys().collect::<Vec<_>>(), ["id_ed25519", "id_ed25519.pub"]);
    assert_eq!(nodes.state("node2").keys, None);
    let sha = made.out.split_whitespace().find(|word| word.starts_with("SHA256:")).unwrap();
    for line in ["keys generate", "--on node1 keys generate --type ed25519"] {
        hvdctl(&nodes, line).await.code(0).says(&["nothing to do", "Ed25519", sha]);
    }
    for (line, hint) in [
        ("keys generate --type rsa", "hvdctl keys rotate --type rsa"),
        ("keys generate --type rsa --bits 2048", "hvdctl keys rotate --type rsa --bits 2048"),
    ] {
        hvdctl(&nodes, line).await.code(1).complains(&[hint]);
    }
    let document = hvdctl(&nodes, "--json keys generate").await.document();
    let reported = (&document["changed"], &document["type"], &document["bits"], &document["fingerprint"]);
    assert_eq!(reported, (&false.into(), &"ed25519".into(), &256.into(), &sha.into()));

    // a push uses it, whatever the inventory's type is now
    let push = hvdctl_changed(&nodes, |inventory| inventory.cluster.key_type = KeyType::Rsa, "keys push").await;
    push.code(0).complains(&["the cluster's pair is Ed25519, but the inventory has another key_type"]);
    let pushed = nodes.state("node1").keys.unwrap();
    assert_eq!((&pushed["id_ed25519"], pushed.contains_key("id_rsa")), (&keys["id_ed25519"], false));
}

#[tokio::test(start_paused = true)]
async fn a_node_out_of_reach_hides_no_keys_of_the_others() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "keys push").await.code(0);
    nodes.fault("node2", CONNECT, Fault::Fails("No route to host".into()));
    let status = hvdctl(&nodes, "keys status").await;
    status.code(3).complains(&["error: node2: cannot log in by ssh"]);
    let row = |node: &str| {
        let line = status.out.lines().find(|line| line.starts_with(node)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(row("node2"), ["node2", "unreachable"]);
    assert_eq!(row("node1")[4..], ["ok", "yes", "yes", "–"], "{status}");
    hvdctl(&nodes, "--on node2 keys status").await.code(4);
    // only the master has a part in this
    hvdctl(&nodes, "keys generate").await.code(0);
}
