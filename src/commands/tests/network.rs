//! Commands of a cluster with an encrypted network.

use super::signals::signalled_on;
use super::*;
use crate::transport::node::scripted::{CONNECT, Fault, Moment};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

const THREE: [&str; 3] = ["node1", "node2", "node3"];

/// The inventory of a cluster with these further lines, of these nodes.
fn encrypted(lines: &str, names: &[&str]) -> Inventory {
    let mut text = format!(
        "[cluster]\nname = \"lab\"\nimage = \"test/horovod:1\"\nkey_type = \"ed25519\"\ncommand_timeout_s = 30\n\
         network = \"wireguard\"\n{lines}\n"
    );
    names.iter().for_each(|name| text.push_str(&format!("\n[[node]]\nhost = \"{name}\"\n")));
    Inventory::parse(&text, Path::new("inventory.toml")).unwrap()
}

async fn on(nodes: &Nodes, inventory: Inventory, line: &str) -> Done {
    hvdctl_on(nodes, inventory, line, mpsc::unbounded_channel().1).await
}

/// Runs hvdctl for all nodes of a cluster with an encrypted network.
async fn hvdctl(nodes: &Nodes, line: &str) -> Done {
    let names = nodes.names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    on(nodes, encrypted("", &names), line).await
}

/// Nodes that have the image of the network and nothing else.
async fn new(names: &[&str]) -> Nodes {
    let builder = Nodes::new(&names[..1]);
    on(&builder, encrypted("", names), "--on node1 up").await.code(0);
    let images = builder.state("node1").images;
    assert!(images.iter().any(|image| image.starts_with("hvdctl/")), "{images:?}");
    let nodes = Nodes::new(names);
    names.iter().for_each(|name| nodes.edit(name, |state| state.images.clone_from(&images)));
    nodes
}

async fn up(names: &[&str]) -> Nodes {
    let nodes = new(names).await;
    hvdctl(&nodes, "up").await.code(0);
    nodes
}

/// Name and state of each container, by name.
fn containers(nodes: &Nodes, name: &str) -> Vec<String> {
    let mut found = nodes.state(name).ps();
    found.sort();
    found
}

/// The address of each node, and the nodes that it knows.
fn known(nodes: &Nodes, name: &str) -> (Ipv4Addr, Vec<String>) {
    let network = nodes.state(name).mesh.network().unwrap_or_else(|| panic!("{name} knows no network"));
    (network.address, network.nodes.into_iter().map(|node| node.name).collect())
}

/// Asserts that these nodes reach each other, that each has an address of its own and a worker, and that another `up` has
/// nothing to do.
async fn assert_connected(nodes: &Nodes, inventory: Inventory, when: &str) {
    let names: Vec<String> = inventory.nodes.iter().map(|node| node.name.clone()).collect();
    let mut addresses = BTreeSet::new();
    for name in &names {
        let (address, all) = known(nodes, name);
        addresses.insert(address);
        assert_eq!(all, names, "{name} {when}");
        assert_eq!(containers(nodes, name), ["hmesh running", "hworker running"], "{name} {when}");
        assert_eq!(nodes.state(name).lease, None, "{name} {when}");
    }
    assert_eq!(addresses.len(), names.len(), "{when}");
    let pairs = names.len() * (names.len() - 1) / 2;
    let status = on(nodes, inventory.clone(), "status").await;
    status.code(0).says(&[&format!("encrypted network: {pairs} of {pairs} pairs direct\n")]);
    let again = on(nodes, inventory, "up").await;
    again.code(0).says(&["nothing to do"]);
}

#[tokio::test(start_paused = true)]
async fn up_connects_the_nodes() {
    let nodes = new(&NODES).await;
    let before = NODES.map(|node| nodes.state(node));
    let words = "start hmesh, change the encrypted network (address 10.90.0.1; add node2), start hworker";
    hvdctl(&nodes, "up --dry-run").await.code(0).says(&[words, "2 of 2 nodes would be changed"]);
    assert_eq!(NODES.map(|node| nodes.state(node)), before);
    let done = hvdctl(&nodes, "up").await;
    done.code(0).says(&["node1: started hmesh, changed the encrypted network (address 10.90.0.1; add node2), started"]);
    assert_connected(&nodes, encrypted("", &NODES), "after up").await;
    let (made, restarts) = (nodes.state("node1").made, nodes.state("node1").mesh.restarts);
    // a newer hvdctl has other programs
    nodes.edit("node1", |state| state.mesh.programs = "older".into());
    hvdctl(&nodes, "up").await.code(0);
    assert_eq!((nodes.state("node1").made, nodes.state("node1").mesh.restarts), (made, restarts + 1));
}

/// Signals a command at every moment, `count` times at once: two are as if it were killed. Hands the nodes to `then`.
async fn at_every_moment(
    before: &Nodes,
    inventory: &Inventory,
    line: &str,
    count: usize,
    then: impl AsyncFn(&Nodes, &str),
) {
    for number in 0.. {
        let nodes = before.copy();
        let (done, at) = signalled_on(&nodes, inventory.clone(), line, number, count).await;
        let Some((Moment { node, call, done: is_done, .. }, _)) = at else {
            done.code(0);
            assert!(number > 20, "{line} has {number} moments only");
            return;
        };
        assert!(count > 1 || matches!(done.code, 0 | 130), "{done}");
        let when = format!("after {count} signals when {call} of {node} {}", if is_done { "ends" } else { "arrives" });
        then(&nodes, &when).await;
    }
}

#[tokio::test(start_paused = true)]
async fn up_that_ends_at_any_moment_is_completed_by_the_next_one() {
    let (nodes, inventory) = (new(&NODES).await, encrypted("", &NODES));
    at_every_moment(&nodes, &inventory, "up", 1, async |nodes: &Nodes, when: &str| assert_given_back(nodes, when))
        .await;
    at_every_moment(&nodes, &inventory, "up", 2, async |nodes: &Nodes, when: &str| {
        hvdctl(nodes, "up").await.code(0);
        assert_connected(nodes, encrypted("", &NODES), when).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_rotation_that_ends_at_any_moment_leaves_a_network_that_up_connects() {
    let (nodes, inventory) = (up(&NODES).await, encrypted("", &NODES));
    let keys = |nodes: &Nodes| NODES.map(|node| nodes.state(node).mesh.key);
    let renewed = nodes.copy();
    let done = hvdctl(&renewed, "keys rotate").await;
    done.code(0).complains(&["node[1-2] (2): new keys of the encrypted network"]);
    assert_connected(&renewed, encrypted("", &NODES), "after a rotation").await;
    assert_eq!(keys(&renewed), keys(&nodes).map(|key| key.map(|key| key + 1)));
    at_every_moment(&nodes, &inventory, "keys rotate", 2, async |nodes: &Nodes, when: &str| {
        hvdctl(nodes, "up").await.code(0);
        assert_connected(nodes, encrypted("", &NODES), when).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_costs_no_other_one_its_network() {
    let new = new(&THREE).await;
    let fails = |words: &str| Fault::Fails(words.to_owned());
    for (call, fault, words) in [
        (
            "mesh/install.sh",
            fails("others can write"),
            "cannot write the programs of the encrypted network: others can",
        ),
        ("docker create hmesh", fails("no space left on device"), "no space left on device"),
        ("docker start hmesh", fails("error gathering device information /dev/net/tun"), "as root there, modprobe tun"),
        ("agent.py key", fails("hmesh: cannot make a key"), "cannot make its key of the encrypted network"),
        ("agent.py key", Fault::Silent, "no answer within 30 s"),
        ("mesh/state.sh", fails("no such file"), "cannot read the state of the encrypted network: no such file"),
    ] {
        let nodes = new.copy();
        nodes.fault("node2", call, fault);
        let done = hvdctl(&nodes, "up").await;
        done.code(3).complains(&["error: node2: ", words]);
        assert!(!done.err.contains("error: node1") && !done.err.contains("error: node3"), "{done}");
        for (name, other) in [("node1", "node3"), ("node3", "node1")] {
            assert_eq!(nodes.state(name).ps(), ["hmesh running", "hworker running"], "{name} {call}");
            assert!(known(&nodes, name).1.contains(&other.to_owned()), "{name} {call}");
        }
        nodes.repair();
        hvdctl(&nodes, "up").await.code(0);
        assert_connected(&nodes, encrypted("", &THREE), call).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_network_is_the_only_node_that_fails() {
    let nodes = new(&THREE).await;
    for (kind, words, hint) in [
        ("port_in_use", "another program has UDP port 51820", "network_port in [cluster] may name another one"),
        ("address_in_use", "tun0 has the address 10.90.0.2", "set network_range in [cluster]"),
        ("no_tun", "no /dev/net/tun", "modprobe tun"),
    ] {
        nodes.edit("node2", |state| state.mesh.problem = Some((kind, words)));
        let done = hvdctl(&nodes, "up").await;
        done.code(3).complains(&[&format!("node2: cannot connect it to the encrypted network: {words}"), hint]);
        assert!(!done.err.contains("error: node1") && !done.err.contains("error: node3"), "{done}");
    }
    nodes.edit("node2", |state| state.mesh.problem = None);
    hvdctl(&nodes, "up").await.code(0);
    assert_connected(&nodes, encrypted("", &THREE), "without the problem").await;
}

#[tokio::test(start_paused = true)]
async fn up_names_the_firewall_that_is_in_the_way() {
    let nodes = new(&THREE).await;
    nodes.edit("node2", |state| state.mesh.blocks_tcp = THREE.map(str::to_owned).into());
    let done = hvdctl(&nodes, "up").await;
    let words =
        "node2: cannot connect it to the encrypted network: its firewall drops TCP connections that come out of hmesh";
    done.code(3).complains(&[words, "ufw allow in on hmesh"]);
    assert!(!done.err.contains("error: node1") && !done.err.contains("error: node3"), "{done}");
    // nothing has to be changed, and it is still so
    hvdctl(&nodes, "up").await.code(3).complains(&[words]);
    hvdctl(&nodes, "status").await.says(&["3 of 3 pairs direct, 2 without TCP: node1–node2, node2–node3\n"]);
    nodes.edit("node2", |state| {
        (state.mesh.blocks_tcp, state.mesh.blocks) = (Default::default(), THREE.map(str::to_owned).into());
    });
    let done = hvdctl(&nodes, "up").await;
    done.code(3)
        .complains(&["node2: cannot connect it to the encrypted network: it reaches no other node on UDP port 51820"]);
    nodes.edit("node2", |state| state.mesh.blocks.clear());
    hvdctl(&nodes, "up").await.code(0);
    assert_connected(&nodes, encrypted("", &THREE), "without a firewall").await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_lost_its_key_gets_another_one() {
    for state in ["running", "exited"] {
        let nodes = up(&NODES).await;
        let before = nodes.state("node2").mesh.key;
        nodes.edit("node2", |node| {
            node.mesh.key = None;
            node.containers.iter_mut().filter(|c| c.name == "hmesh").for_each(|container| container.state = state);
        });
        hvdctl(&nodes, "up").await.code(0);
        assert_ne!(nodes.state("node2").mesh.key, before);
        assert_connected(&nodes, encrypted("", &NODES), &format!("hmesh {state}")).await;
    }
    // all files are gone
    let nodes = up(&NODES).await;
    nodes.edit("node2", |node| {
        node.mesh = Default::default();
        node.containers.clear();
    });
    hvdctl(&nodes, "up").await.code(0);
    assert_connected(&nodes, encrypted("", &NODES), "without its files").await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_not_asked_stay_in_the_network_as_they_are() {
    let nodes = up(&THREE).await;
    // one that is off
    nodes.fault("node3", CONNECT, Fault::Fails("No route to host".into()));
    nodes.edit("node3", |state| state.containers.iter_mut().for_each(|container| container.state = "exited"));
    hvdctl(&nodes, "up --skip-offline").await.code(0).says(&["nothing to do"]);
    nodes.edit("node2", |state| state.mesh.key = None);
    let done = hvdctl(&nodes, "up --skip-offline").await;
    done.code(0).complains(&["node3: left out; what has changed in the encrypted network gets there with the next"]);
    assert_eq!(known(&nodes, "node1").1, THREE);
    nodes.repair();
    hvdctl(&nodes, "up").await.code(0);
    assert_connected(&nodes, encrypted("", &THREE), "with node3 again").await;

    // one that is not selected
    nodes.edit("node1", |state| state.mesh.key = None);
    hvdctl(&nodes, "--on node[1-2] up").await.code(0).complains(&["node3: left out"]);
    assert_eq!(known(&nodes, "node1").1, THREE);
    hvdctl(&nodes, "up").await.code(0);
    assert_connected(&nodes, encrypted("", &THREE), "with all nodes").await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_that_is_selected_alone_gets_its_place_with_all_others() {
    let nodes = new(&THREE).await;
    on(&nodes, encrypted("", &NODES), "up").await.code(0);
    hvdctl(&nodes, "--on node[1,3] up").await.code(0);
    assert_eq!(known(&nodes, "node1").1.len(), 3);
    hvdctl(&nodes, "up").await.code(0);
    assert_connected(&nodes, encrypted("", &THREE), "with all nodes").await;
}

#[tokio::test(start_paused = true)]
async fn drained_nodes_stay_in_the_network() {
    let nodes = up(&NODES).await;
    hvdctl(&nodes, "drain node[1-2]").await.code(0);
    for node in NODES {
        nodes.edit(node, |state| state.containers.retain(|container| container.name != "hmesh"));
    }
    hvdctl(&nodes, "up").await.code(0).says(&["node[1-2] (2): started hmesh"]);
    let (_, all) = known(&nodes, "node1");
    assert_eq!(all, NODES);
    hvdctl(&nodes, "drain --undo node[1-2]").await.code(0);
    assert_connected(&nodes, encrypted("", &NODES), "after it was drained").await;
}

/// Lets a job run on a node. `record`: its record.
fn run_job(nodes: &Nodes, node: &str, record: &str) {
    nodes.edit(node, |state| {
        let worker = state.container("hworker").unwrap().id.clone();
        state.facts = format!("rank run-1 7 {worker} lab -\nopen run-1 {record}\n");
    });
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_ranks_run_is_not_removed_from_the_network() {
    let nodes = up(&THREE).await;
    let two = || encrypted("", &NODES);
    let record = |others: &str| {
        format!(
            r#"{{"id":"run-1","cluster":"lab","name":"n","operator":"o","created":1.0,"launcher":"env","placement":{{"shares":[{others}]}},"command":["x"],"cwd":"/","ranks":2,"port":12345,"interface":"hmesh","grace":1,"stall":0,"idle_margin":30,"ulimits":{{}}}}"#
        )
    };
    let share = |node: &str, first: u32| format!(r#"{{"node":"{node}","ranks":1,"first":{first}}}"#);
    run_job(&nodes, "node1", &record(&[share("node1", 0), share("node3", 1)].join(",")));
    let before = NODES.map(|node| nodes.state(node));
    let words = ["the encrypted network is changed (remove node3), and jobs use it: run-1", "--force goes on at once"];
    on(&nodes, two(), "up").await.code(1).complains(&words);
    on(&nodes, two(), "up --dry-run").await.complains(&words[..1]);
    assert_eq!(NODES.map(|node| nodes.state(node).mesh), before.map(|state| state.mesh));
    let forced = nodes.copy();
    on(&forced, two(), "up --force").await;
    assert_eq!(known(&forced, "node1").1, NODES);
    // a job of other nodes does not mind
    run_job(&nodes, "node1", &record(&[share("node1", 0), share("node2", 1)].join(",")));
    on(&nodes, two(), "up").await.code(0);
    assert_eq!(known(&nodes, "node2").1, NODES);
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.facts.clear()));
    assert_connected(&nodes, two(), "without node3").await;
    // it is let in again, and the old key is the same
    hvdctl(&nodes, "up").await.code(0);
    assert_connected(&nodes, encrypted("", &THREE), "with node3 again").await;
}

#[tokio::test(start_paused = true)]
async fn a_range_in_use_is_not_taken() {
    let nodes = new(&NODES).await;
    nodes.edit("node2", |state| state.facts = "route 10.90.4.0/24 dev tun0\n".into());
    let named = encrypted("network_range = \"10.90.0.0/16\"", &NODES);
    let refused = on(&nodes, named, "up").await;
    refused.code(1).complains(&["node2: ", "its route to 10.90.4.0/24 (dev tun0) is in the range 10.90.0.0/16"]);
    assert_eq!(NODES.map(|node| nodes.state(node).mesh.network()), [None, None]);
    hvdctl(&nodes, "up").await.code(0).says(&["address 10.91.0.1", "address 10.91.0.2"]);
    // it becomes one in use
    nodes.edit("node2", |state| state.facts = "route 10.91.0.0/24 dev tun1\n".into());
    hvdctl(&nodes, "up").await.code(0).says(&["recreated hworker (address)"]);
    assert_eq!(known(&nodes, "node1").0, Ipv4Addr::new(10, 90, 0, 1));
    assert_connected(&nodes, encrypted("", &NODES), "in another range").await;
}

#[tokio::test(start_paused = true)]
async fn down_removes_the_network_on_request_only() {
    let nodes = up(&NODES).await;
    hvdctl(&nodes, "down").await.code(0).says(&["node[1-2] (2): removed hworker\n"]);
    assert_eq!(nodes.state("node1").ps(), ["hmesh running"]);
    hvdctl(&nodes, "up").await.code(0).says(&["node[1-2] (2): started hworker\n"]);
    assert_connected(&nodes, encrypted("", &NODES), "after down").await;
    let inventory = encrypted("", &NODES);
    at_every_moment(&nodes, &inventory, "down --network", 2, async |nodes: &Nodes, when: &str| {
        let again = nodes.copy();
        hvdctl(&again, "up").await.code(0);
        assert_connected(&again, encrypted("", &NODES), when).await;
        hvdctl(nodes, "down --network").await.code(0);
        for node in NODES {
            let state = nodes.state(node);
            assert_eq!((state.ps().len(), state.mesh.network()), (0, None), "{node} {when}");
        }
    })
    .await;
}
