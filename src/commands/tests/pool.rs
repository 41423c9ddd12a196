//! `grade --publish`, `pool` and `pool pick`.

use super::*;
use crate::inventory::Gpus;
use crate::model::grade::Grade;
use crate::model::mesh::NetworkKind;
use crate::pool::format::PoolNode;
use crate::pool::signature::SigningKey;
use crate::text::public_key;
use crate::transport::node::scripted::Fault;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// The pool's machine, and nodes as `pool pick` names them.
const GATE: &str = "pool at gate";

/// The operator's directory with the keys of ana and bob, who are members, and of eve, who is not.
fn operator() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut members = String::new();
    for owner in ["ana", "bob", "eve"] {
        let file = dir.path().join(owner);
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&file).status();
        assert!(made.unwrap().success());
        if owner != "eve" {
            let public = fs::read_to_string(file.with_extension("pub")).unwrap();
            members.push_str(&format!("{owner} namespaces=\"hvdctl-pool\" {public}"));
        }
    }
    fs::write(dir.path().join("members"), members).unwrap();
    dir
}

/// The nodes of each owner, the pool's machine, and the nodes as they are in the pool.
fn pool_of(owners: &[&str]) -> Nodes {
    let mut names = vec!["node1".to_owned(), "node2".to_owned(), GATE.to_owned()];
    for owner in owners {
        names.extend(["node1", "node2"].map(|node| format!("{node} of {owner}")));
    }
    let nodes = Nodes::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    nodes.edit(GATE, |state| state.pool = Some(Default::default()));
    nodes
}

/// The inventory of an owner. Each has a network; in the pool are its addresses.
fn inventory_of(dir: &Path, owner: &str, more: &str) -> Inventory {
    let network = 1 + ["ana", "bob", "eve"].iter().position(|other| *other == owner).unwrap();
    let node = |number: usize| format!("[[node]]\nname = \"node{number}\"\nhost = \"192.0.2.{network}{number}\"\n");
    let text = format!(
        "[cluster]\nname = \"lab\"\nimage = \"test/horovod:1\"\n{}{}[pool]\nhost = \"gate\"\npath = \"/srv/pool\"\n\
         allowed_signers = \"members\"\nkey = \"{owner}\"\n{more}",
        node(1),
        node(2)
    );
    Inventory::parse(&text, &dir.join("inventory.toml")).unwrap_or_else(|faults| panic!("{faults}"))
}

/// Changes the node of a file and signs it again, as its owner.
fn publish_again(dir: &tempfile::TempDir, owner: &str, text: &mut String, change: impl Fn(&mut PoolNode)) {
    let key = SigningKey::parse(&fs::read_to_string(dir.path().join(owner)).unwrap()).ok().unwrap();
    let mut node: PoolNode = serde_json::from_str(&text[..text.find("-----BEGIN").unwrap()]).unwrap();
    change(&mut node);
    *text = key.sign(&node.text().unwrap()).unwrap();
}

async fn run(nodes: &Nodes, dir: &tempfile::TempDir, owner: &str, line: &str) -> Done {
    run_with(nodes, inventory_of(dir.path(), owner, ""), line).await
}

async fn run_with(nodes: &Nodes, inventory: Inventory, line: &str) -> Done {
    let (_sender, signals) = mpsc::unbounded_channel();
    hvdctl_on(nodes, inventory, line, signals).await
}

/// Lets the nodes of owners measure 0.3 ms to those of the same network and 50 ms to others.
fn two_sites(nodes: &Nodes, owners: &[&str]) {
    let hosts =
        |owner: &str| ["1", "2"].map(|number| format!("192.0.2.{}{number}", if owner == "ana" { 1 } else { 2 }));
    for owner in owners {
        for node in ["node1", "node2"] {
            nodes.edit(&format!("{node} of {owner}"), |state| {
                for other in owners {
                    let time = if other == owner { 300 } else { 50_000 };
                    state.round_trips.extend(hosts(other).map(|host| (host, time)));
                }
            });
        }
    }
}

/// Lets the nodes of the pool be what their owners have published. The scripted nodes of a cluster stand for those of
/// all owners.
fn prove(nodes: &Nodes, dir: &tempfile::TempDir) {
    for (_, text) in files(nodes) {
        let node: PoolNode = serde_json::from_str(text.split("-----BEGIN").next().unwrap()).unwrap();
        nodes.edit(&format!("{} of {}", node.node, node.owner), |state| {
            state.pool_owner = public(dir, &node.owner);
            state.host_key = node.host_key.clone();
        });
    }
}

/// The public key of an owner.
fn public(dir: &tempfile::TempDir, owner: &str) -> String {
    fs::read_to_string(dir.path().join(owner).with_extension("pub")).unwrap()
}

/// A pool in which these owners have published two nodes each, which are 0.3 ms from each other and 50 ms from those of
/// others.
async fn filled_pool(owners: &[&str]) -> (Nodes, tempfile::TempDir) {
    let (nodes, dir) = (pool_of(owners), operator());
    two_sites(&nodes, owners);
    for owner in owners {
        run(&nodes, &dir, owner, "grade --publish").await.code(0);
    }
    prove(&nodes, &dir);
    (nodes, dir)
}

/// Changes the files of one owner, and signs them again.
fn edit_published(nodes: &Nodes, dir: &tempfile::TempDir, owner: &str, change: impl Fn(&mut PoolNode)) {
    edit_files(nodes, |name, text| {
        if name.starts_with(&format!("{owner}_")) {
            publish_again(dir, owner, text, &change);
        }
    });
}

/// The files of the pool.
fn files(nodes: &Nodes) -> Vec<(String, String)> {
    nodes.state(GATE).pool.unwrap().into_iter().collect()
}

fn edit_files(nodes: &Nodes, change: impl Fn(&str, &mut String)) {
    nodes.edit(GATE, |state| state.pool.iter_mut().flatten().for_each(|(name, text)| change(name, text)));
}

#[tokio::test(start_paused = true)]
async fn owners_publish_their_nodes_and_see_those_of_all() {
    let (nodes, dir) = (pool_of(&[]), operator());
    run(&nodes, &dir, "ana", "pool").await.code(0).says(&["the pool has no nodes; hvdctl grade --publish adds yours"]);
    run(&nodes, &dir, "ana", "grade").await.code(0);
    assert_eq!(files(&nodes).len(), 0, "without --publish nothing is");
    let done = run(&nodes, &dir, "ana", "--json grade --publish").await;
    let document = done.code(0).document();
    run(&nodes, &dir, "bob", "grade --publish").await.code(0).says(&["published node[1-2] as bob until "]);
    let names: Vec<String> = files(&nodes).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(document["nodes"][0]["published_as"], json!(names[0]));
    let done = run(&nodes, &dir, "ana", "pool").await;
    done.code(0).says(&["OWNER  NODE   GRADE  SLOTS  PUBLISHED  KIND"]);
    done.says(&["ana    node1  new", "ana    node2  new", "bob    node1  new", "4 cores  valid"]);
    // again: the same files
    run(&nodes, &dir, "ana", "grade --publish").await.code(0);
    assert_eq!(files(&nodes).len(), 4);
    let document = run(&nodes, &dir, "bob", "--json pool").await.code(0).document();
    assert_eq!(document["files"][0]["node"]["host"], json!("192.0.2.11"));
    assert_eq!(document["files"][3]["state"], json!("valid"));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_signed_by_its_owner_is_shown_and_never_picked() {
    let (nodes, dir) = filled_pool(&["ana", "bob"]).await;
    let is_bobs = |name: &str| name.starts_with("bob_");
    // bob's nodes become better than they are, in the hands of another one
    edit_files(&nodes, |name, text| {
        if is_bobs(name) {
            *text = text.replace("\"grade\": \"new\"", "\"grade\": \"A\"");
        }
    });
    let done = run(&nodes, &dir, "ana", "pool").await;
    done.code(0).says(&["forged: it is not what was signed", "–      bob_lab_node1_"]);
    let done = run(&nodes, &dir, "ana", "pool pick -np 8").await;
    done.code(0)
        .complains(&["2 files of the pool are not valid and left out: hvdctl pool shows why"])
        .says(&["# node1 of ana's lab: grade new"]);
    assert!(!done.out.contains("192.0.2.2"), "{done}");
    run(&nodes, &dir, "ana", "pool pick -np 9")
        .await
        .code(1)
        .complains(&["the largest group with a master has 8 slots: 2 nodes"]);

    // without a signature, by a stranger, and long ago
    let states = async |state: &str| {
        let document = run(&nodes, &dir, "ana", "--json pool").await.code(0).document();
        let files = document["files"].as_array().unwrap();
        assert_eq!(files.iter().filter(|file| file["state"] == *state).count(), 2, "{state}: {document}");
        run(&nodes, &dir, "ana", "pool pick -np 9")
            .await
            .code(1)
            .complains(&["the largest group with a master has 8 slots"]);
    };
    edit_files(&nodes, |name, text| {
        if is_bobs(name) {
            text.truncate(text.find("-----BEGIN").unwrap());
        }
    });
    states("unsigned").await;
    edit_files(&nodes, |name, text| {
        if is_bobs(name) {
            let key = fs::read_to_string(dir.path().join("eve")).unwrap();
            *text = SigningKey::parse(&key).ok().unwrap().sign(text).unwrap();
        }
    });
    states("untrusted").await;
    edit_files(&nodes, |name, text| {
        if is_bobs(name) {
            publish_again(&dir, "bob", text, |node| (node.published, node.expires) = (1000, 2000));
        }
    });
    states("stale").await;
    // bob has published again
    run(&nodes, &dir, "bob", "grade --publish").await.code(0);
    let done = run(&nodes, &dir, "ana", "pool pick -np 9").await;
    done.code(0).says(&["round trips between them: 20 ms or more (the longest: 50.00 ms)", "bob's lab"]);
}

#[tokio::test(start_paused = true)]
async fn the_close_group_is_picked_and_is_an_inventory() {
    let (nodes, dir) = filled_pool(&["ana", "bob"]).await;
    let done = run(&nodes, &dir, "bob", "pool pick -np 8 --user guest").await;
    done.code(0)
        .says(&["(the longest: 0.30 ms)", "[defaults]\nuser = \"guest\"\n"])
        .complains(&["50.00 ms from the group"]);
    let inventory = Inventory::parse(&done.out, Path::new("pool.toml")).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(inventory.nodes.iter().map(|node| node.slots).collect::<Vec<_>>(), [Some(4), Some(4)]);
    let hosts: Vec<&str> = inventory.nodes.iter().map(|node| node.host.as_str()).collect();
    assert_eq!(hosts, ["192.0.2.21", "192.0.2.22"], "the master is bob's");
    let done = run(&nodes, &dir, "bob", "--json pool pick -np 8 --format horovod").await;
    let document = done.code(0).document();
    assert_eq!(document["text"], json!(format!("{}:4,{}:4\n", hosts[0], hosts[1])));
    assert_eq!((&document["distance"], &document["longest_us"]), (&json!("lan"), &json!(300)));
    run(&nodes, &dir, "bob", "pool pick -np 8 --user=-x").await.code(2).complains(&["--user: expected a user's name"]);

    // what decided about the login goes with it
    let mut own = inventory_of(dir.path(), "bob", "");
    own.cluster.ssh_config = Some("lab/ssh_config".into());
    let here = std::env::current_dir().unwrap().display().to_string();
    run_with(&nodes, own, "pool pick -np 8")
        .await
        .code(0)
        .says(&[&format!("ssh_config = \"{here}/lab/ssh_config\"\n")]);

    // one that refuses the login is not picked
    let refuse = |node: &str| nodes.fault(node, "connect", Fault::Fails("Permission denied (publickey)".into()));
    refuse("node1 of bob");
    let done = run(&nodes, &dir, "bob", "pool pick -np 8").await;
    done.code(0).complains(&["Permission denied", "hint: ask bob for a login"]).says(&["(the longest: 50.00 ms)"]);
    assert!(!done.out.contains("192.0.2.21"), "{done}");
    run(&nodes, &dir, "bob", "pool pick -np 16").await.code(1).complains(&[
        "the largest group with a master has 12 slots",
        "\n    node1 of bob: Permission denied (publickey)",
    ]);
    refuse("node2 of bob");
    run(&nodes, &dir, "bob", "pool pick -np 4").await.code(1).complains(&[
        "there is no master: none of the nodes of bob, which are yours, can be used",
        "\n    node2 of bob: Permission denied (publickey)",
    ]);
    nodes.repair();
    // a node without Python measures nothing, but its owner's other one does
    nodes.fault("node1 of bob", "pool/round_trips.sh", Fault::Fails("python3: not found".into()));
    run(&nodes, &dir, "bob", "pool pick -np 8").await.code(0).says(&["(the longest: 0.30 ms)"]).complains(&[
        "node1 of bob: cannot measure round trips: python3: not found",
        "hint: ask bob to install python3 there",
    ]);
}

#[tokio::test(start_paused = true)]
async fn a_group_with_an_encrypted_network_needs_no_connections_between_its_nodes() {
    let (nodes, dir) = filled_pool(&["ana", "bob"]).await;
    for owner in ["ana", "bob"] {
        ["node1", "node2"]
            .iter()
            .for_each(|node| nodes.edit(&format!("{node} of {owner}"), |state| state.round_trips.clear()));
    }
    run(&nodes, &dir, "ana", "pool pick -np 16")
        .await
        .code(1)
        .complains(&["the largest group with a master has 4 slots: 1 node"]);
    let mut own = inventory_of(dir.path(), "ana", "");
    own.cluster.network = Some(NetworkKind::WireGuard);
    let done = run_with(&nodes, own.clone(), "pool pick -np 16").await;
    done.code(0).says(&["# 6 of 6 pairs measured over ", "network = \"wireguard\"\nnetwork_port = "]);
    let inventory = Inventory::parse(&done.out, Path::new("pool.toml")).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(inventory.cluster.network, own.cluster.network);
    let interface = &inventory.cluster.network_interface;
    assert!(*interface != own.cluster.network_interface && inventory.cluster.network_port != own.cluster.network_port);
    assert!(inventory.nodes.iter().all(|node| node.interface.as_ref() == Some(interface)));
}

#[tokio::test(start_paused = true)]
async fn what_is_published_of_a_node_leads_members_to_it_and_not_into_its_own_network() {
    let (nodes, dir) = (pool_of(&[]), operator());
    let mut own = inventory_of(dir.path(), "ana", "");
    own.cluster.network = Some(NetworkKind::WireGuard);
    for (node, endpoint) in own.nodes.iter_mut().zip(["home.example.org:7", "gate"]) {
        (node.interface, node.endpoint) = (Some("hmesh".into()), Some(endpoint.into()));
    }
    own.nodes[1].host = "short".into();
    run_with(&nodes, own, "grade --publish").await.code(0);
    let document = run(&nodes, &dir, "ana", "--json pool").await.code(0).document();
    let published = |number: usize| &document["files"][number]["node"];
    assert_eq!(published(0)["endpoint"], json!("home.example.org"));
    assert_eq!(published(1)["endpoint"], json!(null), "others may have another machine of that name");
    assert_ne!(published(1)["host"], json!("short"));
}

#[tokio::test(start_paused = true)]
async fn the_master_is_ones_own_or_named_and_never_the_best() {
    let (nodes, dir) = filled_pool(&["ana", "bob"]).await;
    // bob's nodes are the best, and near everybody, as he says
    edit_published(&nodes, &dir, "bob", |node| (node.grade, node.score) = (Grade::A, Some(1.0)));
    for node in ["node1 of bob", "node2 of bob"] {
        nodes.edit(node, |state| state.round_trips.values_mut().for_each(|time| *time = 100));
    }
    let master = |done: &Done| {
        let inventory = Inventory::parse(&done.code(0).out, Path::new("pool.toml")).unwrap();
        let masters = inventory.nodes.into_iter().filter(|node| node.master).map(|node| node.host);
        assert_eq!(done.out.matches("master = true").count(), 1, "{done}");
        masters.collect::<Vec<_>>()
    };
    let done = run(&nodes, &dir, "ana", "pool pick -np 16").await;
    done.says(&["20 ms or more (the longest: 50.00 ms)"]);
    assert_eq!(master(&done), ["192.0.2.11"]);
    assert_eq!(done.out.matches("owner = \"bob\"").count(), 2, "{done}");
    assert_eq!(done.out.matches("owner = ").count(), 2, "one's own nodes have none: {done}");
    let done = run(&nodes, &dir, "ana", "pool pick -np 16 --master bob/node2").await;
    assert_eq!(master(&done), ["192.0.2.22"]);
    let done = run(&nodes, &dir, "ana", "pool pick -np 4 --master ana/node2").await;
    assert_eq!(master(&done), ["192.0.2.12"], "it is in the group");
    let done = run(&nodes, &dir, "ana", "pool pick -np 4 --master node2").await;
    assert_eq!(master(&done), ["192.0.2.12"], "a name alone is that of one's own node");
    run(&nodes, &dir, "ana", "pool pick -np 4 --master x").await.code(2).complains(&["no valid node x of ana"]);
    run(&nodes, &dir, "eve", "pool pick -np 4 --master node1").await.code(2).complains(&["OWNER/NODE"]);

    // who has no node, or is nobody, picks none without that, and contacts none
    let contacted = || nodes.count("pool/owner.sh");
    let before = contacted();
    run(&nodes, &dir, "eve", "pool pick -np 4").await.code(1).complains(&[
        "there is no master: which nodes are yours is not known: no member has your key. The master gets the cluster's \
         private key, which makes its owner root in the workers of all others",
        "hint: publish a node of yours (hvdctl grade --publish",
        "--master OWNER/NODE",
    ]);
    let as_cai = inventory_of(dir.path(), "eve", "owner = \"cai\"\n");
    run_with(&nodes, as_cai, "pool pick -np 4").await.code(1).complains(&["none of the nodes of cai, which are yours"]);
    assert_eq!(contacted(), before);
    let done = run(&nodes, &dir, "eve", "pool pick -np 4 --master bob/node1").await;
    assert_eq!(master(&done), ["192.0.2.21"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_proven_its_owners_is_not_picked() {
    let (nodes, dir) = filled_pool(&["ana", "bob"]).await;
    let pick = async |why: &str| {
        run(&nodes, &dir, "ana", "pool pick -np 16").await.code(1).complains(&[
            "the largest group with a master has 12 slots",
            &format!("\n    node1 of bob: {why}"),
            "warning: node1 of bob: cannot ",
            "hint: ask bob ",
        ]);
        let done = run(&nodes, &dir, "ana", "pool pick -np 12").await;
        assert!(!done.code(0).out.contains("192.0.2.21"), "{done}");
    };
    nodes.fault("node1 of bob", "pool/owner.sh", Fault::Fails("there is no /etc/hvdctl/pool-owner.pub".into()));
    pick("there is no /etc/hvdctl/pool-owner.pub").await;
    nodes.repair();
    nodes.edit("node1 of bob", |state| state.pool_owner = public(&dir, "eve"));
    pick("/etc/hvdctl/pool-owner.pub there has the key of another owner, SHA256:").await;
    nodes.edit("node1 of bob", |state| state.pool_owner = "junk\n".into());
    pick("/etc/hvdctl/pool-owner.pub there is not a public key").await;
    prove(&nodes, &dir);
    nodes.edit("node1 of bob", |state| state.host_key = Some("ssh-ed25519 AAAA".into()));
    pick("its host key is not the one in the inventory").await;
    prove(&nodes, &dir);
    run(&nodes, &dir, "ana", "pool pick -np 16").await.code(0).says(&["host_key = \"ssh-ed25519 AAAA"]);

    // as an older hvdctl has published them
    edit_published(&nodes, &dir, "bob", |node| node.host_key = None);
    run(&nodes, &dir, "ana", "pool").await.code(0).says(&["valid, not picked: no ssh host key; publish it again"]);
    let done = run(&nodes, &dir, "ana", "pool pick -np 9").await;
    done.code(1).complains(&["\n    node1 of bob: no ssh host key; publish it again with a newer hvdctl"]);
}

#[tokio::test(start_paused = true)]
async fn nobody_hides_another_owners_node() {
    let (nodes, dir) = filled_pool(&["ana", "bob"]).await;
    let key = |node: &str| nodes.state(node).host_key;
    let key_of_ana = key("node1 of ana");
    // bob publishes ana's machine later: with a host key of his own, and with that of the machine
    let own = key("node1 of bob");
    for host_key in [own, key_of_ana.clone()] {
        edit_published(&nodes, &dir, "bob", |node| {
            if node.node == "node1" {
                (node.host, node.host_key) = ("192.0.2.11".into(), host_key.clone());
                (node.published, node.expires) = (node.published + 100, node.expires + 100);
            }
        });
        // what answers there is ana's machine
        nodes.edit("node1 of bob", |state| {
            (state.host_key, state.pool_owner) = (key_of_ana.clone(), public(&dir, "ana"));
        });
        let done = run(&nodes, &dir, "ana", "pool pick -np 8").await;
        done.code(0).says(&["# node1 of ana's lab", "# node2 of ana's lab"]).complains(&["left out node1 of bob: "]);
    }
    // nor with grade F, whose nodes are not even contacted
    edit_published(&nodes, &dir, "bob", |node| node.grade = Grade::F);
    run(&nodes, &dir, "ana", "pool pick -np 8").await.code(0).says(&["# node1 of ana's lab"]);
}

#[tokio::test(start_paused = true)]
async fn root_of_a_node_says_whose_it_is_when_it_is_published() {
    let (nodes, dir) = (pool_of(&[]), operator());
    nodes.fault(
        "node2",
        "pool/claim.sh",
        Fault::Fails("cannot create directory '/etc/hvdctl': Read-only file system".into()),
    );
    run(&nodes, &dir, "ana", "grade --publish").await.code(1).says(&["published node1 as ana until "]).complains(&[
        "warning: node2: cannot write its owner's key: cannot create directory",
        "error: node2 not published",
    ]);
    let [written, own] = [nodes.state("node1").pool_owner, public(&dir, "ana")].map(|key| public_key::bare(&key));
    assert_eq!(written, own);
    assert_eq!(nodes.state("node2").pool_owner, "");
    let document = run(&nodes, &dir, "ana", "--json pool").await.code(0).document();
    let host_key = document["files"][0]["node"]["host_key"].as_str().unwrap();
    assert!(host_key.starts_with("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"), "{host_key}");
    // grade alone changes nothing
    let (nodes, dir) = (pool_of(&[]), operator());
    run(&nodes, &dir, "ana", "grade").await.code(0);
    assert_eq!(nodes.state("node1").pool_owner, "");
}

#[tokio::test(start_paused = true)]
async fn a_machine_under_two_hosts_is_picked_once() {
    let (nodes, dir) = filled_pool(&["ana", "bob"]).await;
    run(&nodes, &dir, "bob", "pool pick -np 16").await.code(0);
    let key = nodes.state("node1 of bob").host_key;
    edit_published(&nodes, &dir, "bob", |node| node.host_key = key.clone());
    prove(&nodes, &dir);
    let done = run(&nodes, &dir, "bob", "pool pick -np 16").await;
    done.code(1).complains(&["node2 of bob: the same machine as node1 of bob: they have one ssh host key"]);
    run(&nodes, &dir, "bob", "pool pick -np 12").await.code(0);
}

#[tokio::test(start_paused = true)]
async fn gpus_that_an_owner_keeps_are_not_offered() {
    let (nodes, dir) = (pool_of(&["ana"]), operator());
    two_sites(&nodes, &["ana"]);
    let mut some = inventory_of(dir.path(), "ana", "");
    some.nodes[0].gpus = Gpus::Count(0);
    run_with(&nodes, some, "grade --publish").await.code(0);
    prove(&nodes, &dir);
    let done = run(&nodes, &dir, "bob", "pool pick -np 8 --master ana/node1").await;
    let inventory = Inventory::parse(&done.code(0).out, Path::new("pool.toml")).unwrap();
    let gpus = |name: &str| inventory.nodes.iter().find(|node| node.name == name).unwrap().gpus.clone();
    assert_eq!((gpus("node1"), gpus("node2")), (Gpus::Count(0), Gpus::Auto));
}

#[tokio::test(start_paused = true)]
async fn a_node_of_grade_f_is_not_even_contacted() {
    let (nodes, dir) = filled_pool(&["ana"]).await;
    edit_published(&nodes, &dir, "ana", |node| {
        if node.node == "node1" {
            node.grade = Grade::F;
        }
    });
    let done = run(&nodes, &dir, "ana", "pool pick -np 4").await;
    done.code(0).says(&["host = \"192.0.2.12\""]).complains(&["left out node1 of ana: its grade is F"]);
    assert!(!done.out.contains("192.0.2.11"), "{done}");
    assert_eq!(nodes.count("pool/round_trips.sh"), [0, 0, 0, 1, 0], "only on node2 of ana");
    let done = run(&nodes, &dir, "ana", "pool pick -np 8").await;
    done.code(1)
        .complains(&["the largest group with a master has 4 slots: 1 node", "\n    node1 of ana: its grade is F"]);
}

// ssh-keygen is a real program, which a paused clock would not wait for
#[tokio::test]
async fn grades_are_shown_if_no_agent_has_the_key() {
    let (nodes, dir) = (pool_of(&[]), operator());
    fs::remove_file(dir.path().join("ana")).unwrap();
    let done = run(&nodes, &dir, "ana", "grade --publish").await;
    done.code(1).says(&["new    node1", "new    node2"]).complains(&[
        "cannot sign with your key ",
        "/ana.pub: ssh-keygen: ",
        "hint: add the private key to your agent (ssh-add)",
    ]);
    assert_eq!(files(&nodes).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_published_leaves_the_others() {
    let (nodes, dir) = (pool_of(&[]), operator());
    // its name is no plain one
    let gpu = "nvidia-smi yes\ngpu GPU 0: NVIDIA H\u{e9} (UUID: GPU-1)\ngpu exit 0\nmig exit 0\n";
    nodes.edit("node1", |state| state.facts = gpu.into());
    let mut inventory = inventory_of(dir.path(), "ana", "");
    // more than its cores
    inventory.nodes[1].slots = Some(64);
    let done = hvdctl_on(&nodes, inventory.clone(), "grade --publish", mpsc::unbounded_channel().1).await;
    done.code(1)
        .says(&["new    node1", "published node2 as ana until "])
        .complains(&["warning: node1: cannot publish it: `kind` is out of range", "error: node1 not published\n"]);
    run(&nodes, &dir, "ana", "pool").await.code(0).says(&["ana    node2  new    64     0 min ago  4 cores"]);
    inventory.nodes[1].address = Some("169.254.0.1".parse().unwrap());
    let done = hvdctl_on(&nodes, inventory, "grade --publish", mpsc::unbounded_channel().1).await;
    done.code(1)
        .says(&["new    node2"])
        .complains(&["node2: cannot publish it: `address` is out of range", "error: node[1-2] not published\n"]);
}

#[tokio::test(start_paused = true)]
async fn what_prevents_it_is_named_with_the_next_step() {
    let (nodes, dir) = (pool_of(&[]), operator());
    let (_sender, signals) = mpsc::unbounded_channel();
    for line in ["pool", "grade --publish"] {
        let (_sender, signals) = mpsc::unbounded_channel();
        hvdctl_on(&nodes, inventory(&Nodes::new(&NODES)), line, signals)
            .await
            .code(2)
            .complains(&["the inventory has no [pool]"]);
    }
    let eve = run(&nodes, &dir, "eve", "grade --publish").await;
    eve.code(2).complains(&[
        "/members has your key",
        "hint: add this line to ",
        "namespaces=\"hvdctl-pool\" ssh-ed25519 ",
    ]);
    let as_bob = inventory_of(dir.path(), "ana", "owner = \"bob\"\n");
    let done = hvdctl_on(&nodes, as_bob, "grade --publish", signals).await;
    done.code(2).complains(&["/members does not let bob sign with your key"]);
    assert_eq!(nodes.count("access/access.sh"), [0, 0, 0], "no node is contacted before");
    let key = dir.path().join("ana");
    let set_mode = |mode| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o640);
    run(&nodes, &dir, "ana", "grade --publish").await.code(2).complains(&[
        "other users can read your key ",
        "(mode 640)",
        "hint: chmod 600 ",
    ]);
    let mut public = inventory_of(dir.path(), "ana", "");
    public.pool.as_mut().unwrap().key = Some(dir.path().join("public"));
    fs::copy(dir.path().join("ana.pub"), dir.path().join("public")).unwrap();
    run_with(&nodes, public, "grade --publish")
        .await
        .code(2)
        .complains(&["/public is the public half of a key", "hint: key in [pool] names the private half"]);
    set_mode(0o600);
    // the public half of a key is known without its passphrase, and without the key
    let eve = dir.path().join("eve");
    let mut encrypt = Command::new("ssh-keygen");
    encrypt.args(["-q", "-p", "-N", "secret", "-f"]).arg(&eve).stdout(std::process::Stdio::null());
    assert!(encrypt.status().unwrap().success());
    run(&nodes, &dir, "eve", "grade --publish").await.code(2).complains(&["/members has your key"]);
    fs::remove_file(&eve).unwrap();
    run(&nodes, &dir, "eve", "grade --publish").await.code(2).complains(&["/members has your key"]);
    fs::remove_file(&key).unwrap();
    fs::remove_file(key.with_extension("pub")).unwrap();
    run(&nodes, &dir, "ana", "grade --publish").await.code(2).complains(&["cannot read your key", "No such file"]);

    nodes.edit(GATE, |state| state.pool = None);
    let done = run(&nodes, &dir, "bob", "grade --publish").await;
    done.code(1)
        .says(&["2 nodes: 4 cores\n", "new    node2"])
        .complains(&["pool at gate: cannot write to the pool /srv/pool: there is no directory", "hint: create it"]);
    assert!(!done.err.contains("failed on"), "the pool's machine is no node: {done}");
    nodes.fault(GATE, "connect", Fault::Fails("Connection refused".into()));
    let done = run(&nodes, &dir, "bob", "grade --publish").await;
    done.code(4).says(&["new    node1", "new    node2"]).complains(&["pool at gate: cannot log in"]);
    let document = run(&nodes, &dir, "bob", "--json grade --publish").await.code(4).document();
    assert_eq!((&document["ok"], &document["nodes"][1]["grade"]), (&json!(false), &json!("new")));
    assert!(document["publish_error"].as_str().unwrap().starts_with("pool at gate: cannot log in"), "{document}");
    run(&nodes, &dir, "bob", "pool").await.code(4).complains(&["pool at gate: cannot log in"]);
    nodes.repair();
    nodes.edit(GATE, |state| state.pool = Some(Default::default()));
    run(&nodes, &dir, "bob", "pool pick -np 1")
        .await
        .code(1)
        .complains(&["there is no master: none of the nodes of bob"]);
    let members = dir.path().join("members");
    let text = fs::read_to_string(&members).unwrap();
    fs::write(&members, format!("cai cert-authority ssh-ed25519 AAAA\n{text}")).unwrap();
    run(&nodes, &dir, "bob", "pool").await.code(0).complains(&["/members:1: this line adds no member: "]);
    fs::write(&members, [b"# Andr\xe9\n", text.as_bytes(), b"cai ssh-ed25519 AAAA Andr\xe9\n"].concat()).unwrap();
    let done = run(&nodes, &dir, "bob", "pool").await;
    done.code(0).complains(&["/members:4: this line adds no member: it is not UTF-8"]);
    fs::write(&members, "# none\n").unwrap();
    run(&nodes, &dir, "bob", "pool").await.code(2).complains(&["/members lists no members", "hint: one line for each"]);
    fs::remove_file(&members).unwrap();
    run(&nodes, &dir, "bob", "pool").await.code(2).complains(&["cannot read the members in "]);
}
