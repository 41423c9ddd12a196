//! The directories of a small cluster: what a push makes of them, and what is said of them.

use super::*;
use crate::inventory::{Inventory, KeyType, Node};
use crate::node::facts::{Facts, KeyFile};

const OLD: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQE= hvdctl:lab";
const NEW: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f hvdctl:lab";

fn inventory() -> Inventory {
    let mut inventory = Inventory::local("node1", "image");
    inventory.cluster.name = "lab".into();
    inventory.cluster.key_type = KeyType::Ed25519;
    inventory.nodes = ["node1", "node2"]
        .map(|n| Node { name: n.into(), host: n.into(), master: n == "node1", ..Node::default() })
        .into();
    inventory
}

fn node(number: u8) -> Facts {
    Facts::parse(&format!(
        "hostname node{number}\nssh 10.0.0.{number}\naddr lo 127.0.0.1/8\naddr eth0 10.0.0.{number}/24\n\
         addr eth0 10.0.9.{number}/24\naddr eth0 169.254.0.{number}/16\naddr eth0 fe80::{number}/64\naddr eth1 10.1.0.{number}/24\n"
    ))
}

fn file(name: &str, text: &str) -> (String, KeyFile) {
    (name.to_owned(), KeyFile { mode: mode(name).into(), owner: "0:0".into(), text: text.to_owned() })
}

/// The directory after the changes, as the next look would see it.
fn apply(facts: &mut Facts, changes: &Changes) {
    facts.key_dir = Some(KeyFile { mode: "700".into(), owner: "0:0".into(), text: String::new() });
    for name in &changes.removes {
        facts.key_files.remove(name);
    }
    for put in &changes.puts {
        let secret = put.text.expose().contains("PRIVATE");
        facts.key_files.extend([file(&put.name, if secret { "" } else { put.text.expose() })]);
    }
    for (name, there) in &mut facts.key_files {
        *there = file(name, &there.text).1;
    }
}

/// A push of these keys; gives what changed.
fn push(inventory: &Inventory, nodes: &mut [Facts; 2], keys: Keys) -> [Changes; 2] {
    let pair = |n: usize| KeyPair { private: Secret::plain("PRIVATE"), public: format!("ssh-ed25519 HOST{n} x") };
    let hosts: Vec<(String, Option<KeyPair>)> = nodes
        .iter()
        .enumerate()
        .map(|(n, facts)| {
            public_host_key(facts).map_or((pair(n).public, Some(pair(n))), |there| (there.to_owned(), None))
        })
        .collect();
    let seen = inventory.nodes.iter().zip(nodes.iter()).zip(&hosts).map(|((n, f), h)| (n, f, h.0.as_str()));
    let desired = Desired::new(inventory, seen, keys);
    let changes = [0, 1].map(|n| desired.changes(&inventory.nodes[n], &nodes[n], hosts[n].1.as_ref()));
    for (facts, changes) in nodes.iter_mut().zip(&changes) {
        apply(facts, changes);
    }
    changes
}

fn new_keys(name: &'static str, public: &str) -> Keys {
    Keys::only(MasterPair { name, public: public.to_owned(), new: Some(Secret::plain("PRIVATE")) })
}

/// Both nodes with a pair pushed.
fn pushed(public: &str, name: &'static str) -> (Inventory, [Facts; 2]) {
    let inventory = inventory();
    let mut nodes = [node(1), node(2)];
    push(&inventory, &mut nodes, new_keys(name, public));
    (inventory, nodes)
}

fn ring(inventory: &Inventory, nodes: &[Facts; 2]) -> Keyring {
    Keyring::read(&inventory.cluster, &nodes[0])
}

fn seen<'a>(inventory: &'a Inventory, nodes: &'a [Facts; 2]) -> Vec<(&'a Node, &'a Facts)> {
    inventory.nodes.iter().zip(nodes).collect()
}

fn says(inventory: &Inventory, nodes: &[Facts; 2]) -> Vec<String> {
    let report = report(inventory, &seen(inventory, nodes));
    let faults = report.rows.iter().flat_map(|row| &row.faults).chain(&report.rotation);
    faults.map(|fault| format!("{}: {}", fault.text, fault.cure.rsplit(' ').next().unwrap())).collect()
}

fn text<'a>(facts: &'a Facts, name: &str) -> &'a str {
    &facts.key_files[name].text
}

#[test]
fn the_key_is_let_in_from_the_clusters_addresses_and_the_second_push_is_empty() {
    let (inventory, mut nodes) = pushed(NEW, "id_ed25519");
    let line = format!("restrict,from=\"10.0.0.1,10.0.0.2,10.0.9.1,10.0.9.2\" {NEW}\n");
    for facts in &nodes {
        assert_eq!(text(facts, AUTHORIZED_KEYS), line);
        assert_eq!(
            text(facts, KNOWN_HOSTS).lines().next().unwrap(),
            "[node1]:12345,[10.0.0.1]:12345,[10.0.9.1]:12345 ssh-ed25519 HOST0 hvdctl:lab"
        );
    }
    assert!(nodes[0].key_files.contains_key("id_ed25519") && !nodes[1].key_files.contains_key("id_ed25519"));
    let keys = Keys::to_push(&ring(&inventory, &nodes));
    assert!(push(&inventory, &mut nodes, keys.unwrap()).iter().all(Changes::is_empty));
    assert!(differing(&inventory, &seen(&inventory, &nodes), Keys::to_push).is_empty());
    assert_eq!(says(&inventory, &nodes), [""; 0]);
    // a part of the nodes is no reason to write anything anew
    assert!(differing(&inventory, &seen(&inventory, &nodes)[..1], Keys::to_push).is_empty());
}

#[test]
fn without_the_masters_address_the_key_is_not_tied_to_any() {
    let inventory = inventory();
    let mut nodes = [Facts { ssh_address: None, ..node(1) }, node(2)];
    push(&inventory, &mut nodes, new_keys("id_ed25519", NEW));
    assert_eq!(text(&nodes[1], AUTHORIZED_KEYS), format!("restrict {NEW}\n"));
    // which is said, and is no fault that a push cures
    assert_eq!(says(&inventory, &nodes), [""; 0]);
    let words = "the address of the master node1 is not known (ssh did not say by which address it reached the node), so \
                 its key is let in from anywhere: set `address` for it";
    let report = report(&inventory, &seen(&inventory, &nodes));
    assert_eq!(report.rows.into_iter().map(|row| row.remarks).collect::<Vec<_>>(), [vec![words.to_owned()], vec![]]);
    // a node that is alone lets nobody in from elsewhere
    let mut alone = inventory.clone();
    alone.nodes.pop();
    assert_eq!(remarks(&alone, &alone.nodes[0], &nodes[0]), [""; 0]);
    assert_eq!(remarks(&inventory, &inventory.nodes[0], &node(1)), [""; 0]);
}

#[test]
fn another_clusters_key_in_a_shared_directory_stays() {
    const OTHER: &str = "ssh-ed25519 AAAA hvdctl:other";
    let (inventory, nodes) = pushed(NEW, "id_ed25519");
    // its master is node2: as it lies there at any moment, also of a rotation
    let states: [&[(&str, &str)]; 4] = [
        &[("id_ed25519", ""), ("id_ed25519.pub", OTHER)],
        &[("id_ed25519", ""), ("id_ed25519.pub", OTHER), ("id_rsa.next", "")],
        &[("id_ed25519", ""), ("id_ed25519.pub", OTHER), ("id_ed25519.next", ""), ("id_ed25519.next.pub", OTHER)],
        &[("id_ed25519", ""), ("id_ed25519.next.pub", OTHER)],
    ];
    for state in states {
        let mut nodes = nodes.clone();
        nodes[1].key_files.extend(state.iter().map(|(name, text)| file(name, text)));
        assert_eq!(says(&inventory, &nodes), [""; 0], "{state:?}");
        assert_eq!(
            remarks(&inventory, &inventory.nodes[1], &nodes[1]),
            ["id_ed25519 on node2 is the key of the cluster other, which shares the directory: it stays"]
        );
        let keys = Keys::to_push(&ring(&inventory, &nodes)).unwrap();
        assert!(push(&inventory, &mut nodes, keys).iter().all(Changes::is_empty), "{state:?}");
    }
    // one with our tag, or with none, goes as ever
    for public in [Some(NEW), Some("ssh-ed25519 AAAA ana@desk"), None] {
        let mut nodes = nodes.clone();
        nodes[1].key_files.extend([file("id_ed25519", "")]);
        nodes[1].key_files.extend(public.map(|text| file("id_ed25519.pub", text)));
        let keys = Keys::to_push(&ring(&inventory, &nodes)).unwrap();
        let removes = &push(&inventory, &mut nodes, keys)[1].removes;
        assert!(removes.contains(&"id_ed25519".to_owned()), "{public:?}");
    }
}

#[test]
fn a_node_that_leaves_the_inventory_is_revoked() {
    let (mut inventory, mut nodes) = pushed(NEW, "id_ed25519");
    inventory.nodes.pop();
    let there = vec![(&inventory.nodes[0], &nodes[0])];
    let keys = Keys::to_push(&ring(&inventory, &nodes));
    assert_eq!(differing(&inventory, &there, Keys::to_push), ["node1"]);
    assert!(!report(&inventory, &there).is_clean());
    let desired = Desired::observed(&inventory, &there, keys.unwrap());
    let changes = desired.changes(&inventory.nodes[0], &nodes[0], None);
    apply(&mut nodes[0], &changes);
    assert_eq!(text(&nodes[0], AUTHORIZED_KEYS), format!("restrict,from=\"10.0.0.1,10.0.9.1\" {NEW}\n"));
    assert!(!text(&nodes[0], KNOWN_HOSTS).contains("node2"));
}

#[test]
fn the_pair_with_our_tag_is_used_whatever_the_inventory_has() {
    let (mut inventory, mut nodes) = pushed(NEW, "id_ed25519");
    inventory.cluster.key_type = KeyType::Rsa;
    assert_eq!(ring(&inventory, &nodes).current, Some(CurrentPair { name: "id_ed25519", public: Some(NEW.into()) }));
    // somebody else's pair of that name beside it stays
    nodes[0].key_files.extend([file("id_rsa", ""), file("id_rsa.pub", "ssh-rsa AAAA ana@desk\n")]);
    let keys = Keys::to_push(&ring(&inventory, &nodes)).unwrap();
    assert!(push(&inventory, &mut nodes, keys).iter().all(Changes::is_empty));
    // one that lacks its public half is taken for ours
    nodes[0].key_files.retain(|name, _| !name.starts_with("id_rsa") && name != "id_ed25519.pub");
    let lone = ring(&inventory, &nodes);
    assert_eq!(lone.current, Some(CurrentPair { name: "id_ed25519", public: None }));
    assert_eq!(Keys::to_push(&lone), None);
    nodes[0].key_files.extend([file("id_rsa", ""), file("id_rsa.pub", "ssh-rsa AAAA hvdctl:other\n")]);
    assert_eq!(ring(&inventory, &nodes).belongs_to_another("lab"), Some("other"));
}

#[test]
fn private_keys_that_must_not_be_there_go() {
    let (inventory, mut nodes) = pushed(NEW, "id_ed25519");
    nodes[0].key_files.extend([file("id_rsa", ""), file("id_rsa.pub", OLD)]);
    nodes[1].key_files.extend([file("id_ed25519", ""), file("id_rsa", ""), file("id_rsa.next", "")]);
    assert_eq!(
        says(&inventory, &nodes),
        [
            "a private key (id_rsa) lies on node1, which is not in use: push",
            "a private key (id_rsa.next, id_ed25519) lies on node2, which launches nothing: push",
        ]
    );
    let keys = Keys::to_push(&ring(&inventory, &nodes)).unwrap();
    let [first, second] = push(&inventory, &mut nodes, keys);
    assert_eq!(first.removes, ["id_rsa", "id_rsa.pub"]);
    assert_eq!(second.removes, ["id_rsa.next", "id_ed25519"], "id_rsa is somebody else's");
}

/// A rotation's states, in the order in which they follow each other: files of the master, and whether each node lets the
/// new key in.
fn states(old: &'static str, new: &'static str) -> Vec<(Vec<String>, [bool; 2])> {
    let plain = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let (old_pub, new_pub) = (format!("{old}.pub"), format!("{new}.pub"));
    let (next, next_pub) = (format!("{new}.next"), format!("{new}.next.pub"));
    let mut states = vec![
        (plain(&[old, &old_pub, &next, &next_pub]), [false, false]),
        (plain(&[old, &old_pub, &next, &next_pub]), [true, false]),
        (plain(&[old, &old_pub, &next, &next_pub]), [true, true]),
    ];
    if old == new {
        states.push((plain(&[old, &next, &next_pub]), [true, true]));
    } else {
        states.push((plain(&[old, &old_pub, new, &next_pub]), [true, true]));
        states.push((plain(&[&old_pub, new, &next_pub]), [true, true]));
    }
    states.push((plain(&[new, &next_pub]), [true, true]));
    states.push((plain(&[new, &new_pub]), [true, true]));
    states
}

#[test]
fn in_every_state_of_a_rotation_a_launch_works_and_a_push_breaks_nothing() {
    for (old, new) in [("id_rsa", "id_rsa"), ("id_rsa", "id_ed25519"), ("id_ed25519", "id_rsa")] {
        let before = if old == "id_rsa" { OLD } else { NEW }.to_owned();
        let after = if new == "id_rsa" { OLD.replace("E= ", "I= ") } else { NEW.replace("4f ", "4g ") };
        for (step, (files, has_new)) in states(old, new).into_iter().enumerate() {
            let (inventory, mut nodes) = pushed(&before, old);
            nodes[0].key_files.retain(|name, _| !name.starts_with("id_"));
            let staged = files.contains(&format!("{new}.next"));
            nodes[0].key_files.extend(files.iter().map(|name| {
                let before_is_there = *name == format!("{old}.pub") && (staged || old != new);
                let public = if before_is_there { &before } else { &after };
                file(name, &if name.ends_with(".pub") { format!("{public}\n") } else { String::new() })
            }));
            let from = ["10.0.0.1", "10.0.0.2", "10.0.9.1", "10.0.9.2"].map(|a| a.parse().unwrap()).into();
            for (facts, has) in nodes.iter_mut().zip(has_new) {
                let text = text(facts, AUTHORIZED_KEYS).to_owned();
                let more = if has { vec![after.clone()] } else { Vec::new() };
                facts.key_files.extend([file(AUTHORIZED_KEYS, &merge_authorized(&text, &more, true, "lab", &from))]);
            }
            let ring = ring(&inventory, &nodes);
            let place = format!("{old} to {new}, step {step}: {ring:?}");

            // the private key that a launch uses is let in, and neither launch nor push sees a fault in that
            let moved = !staged;
            let in_use = if moved && files.contains(&new.to_owned()) { &after } else { &before };
            assert!(differing(&inventory, &seen(&inventory, &nodes), Keys::to_launch).is_empty(), "{place}");
            assert_eq!(ring.next.is_some(), files.iter().any(|f| f.ends_with(".next.pub")), "{place}");
            if let Some(next) = &ring.next {
                assert_eq!((next.name, next.in_place), (new, moved), "{place}");
            }
            let last = ring.next.is_none() && moved;
            push(&inventory, &mut nodes, Keys::to_push(&ring).unwrap());
            let keys = our_keys(&nodes[1], "lab");
            assert!(keys.contains(&bare(in_use)), "{place}: {keys:?}");
            assert_eq!(keys.len(), if last { 1 } else { 2 }, "{place}");
            assert_eq!(says(&inventory, &nodes).len(), usize::from(!last), "{place}: {:?}", says(&inventory, &nodes));
            assert!(
                nodes[0].key_files.keys().filter(|n| n.starts_with("id_")).eq(files_sorted(&files).iter()),
                "{place}"
            );
        }
    }
}

fn files_sorted(files: &[String]) -> Vec<String> {
    let mut files = files.to_vec();
    files.sort();
    files
}

#[test]
fn each_fault_has_its_message_and_its_cure() {
    let (inventory, nodes) = pushed(NEW, "id_ed25519");
    let fault = |make: &dyn Fn(&mut [Facts; 2])| {
        let mut nodes = nodes.clone();
        make(&mut nodes);
        says(&inventory, &nodes)
    };
    let edit = |facts: &mut Facts, name: &str, edit: &dyn Fn(&str) -> String| {
        let changed = edit(text(facts, name));
        facts.key_files.get_mut(name).unwrap().text = changed;
    };
    assert_eq!(
        fault(&|n| edit(&mut n[1], AUTHORIZED_KEYS, &|t| t.replace("10.0.9.1,", ""))),
        ["node2 does not restrict the key as it should (restrict, and from= the cluster's addresses): push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], AUTHORIZED_KEYS, &|_| format!("restrict {OLD}\n"))),
        ["node2 lets another key in than the master has: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], AUTHORIZED_KEYS, &|_| String::new())),
        ["node2 does not let the cluster's key in: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], AUTHORIZED_KEYS, &|t| format!("{t}ssh-rsa AAAA hvdctl:lab\n"))),
        ["node2 lets an earlier key in, too: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[0], KNOWN_HOSTS, &|t| t.replace("HOST1", "HOSTX"))),
        ["the host key of node2 is not pinned as it should be on node1: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], KNOWN_HOSTS, &|t| t.replace("[10.0.9.1]:12345", "[10.0.9.8]:12345"))),
        ["the host key of node1 is not pinned as it should be on node2: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], KNOWN_HOSTS, &|t| format!("[gone]:12345 ssh-rsa AAAA hvdctl:lab\n{t}"))),
        ["node2 still pins nodes that the inventory does not have: push"]
    );
    assert_eq!(
        fault(&|n| n[1].key_files.get_mut(AUTHORIZED_KEYS).unwrap().mode = "644".into()),
        ["wrong mode or owner on node2: authorized_keys (644 0:0): push"]
    );
    assert_eq!(
        fault(&|n| {
            n[0].key_files.remove("id_ed25519.pub");
        }),
        ["id_ed25519.pub is missing on the master: push"]
    );
    assert_eq!(
        fault(&|n| n[1] = node(2))[..3],
        [
            "the host key of node1 is not pinned as it should be on node2: push",
            "node2 does not let the cluster's key in: push",
            "node2 has no host key for its worker: push"
        ]
    );
    let nothing = [node(1), node(2)];
    assert_eq!(says(&inventory, &nothing)[0], "the master has no key pair of the cluster: push");
}

#[test]
fn the_command_for_a_pair_of_a_kind() {
    let words = |key_type, bits| Kind { key_type, bits }.rotation();
    assert_eq!(words(KeyType::Ed25519, None), "hvdctl keys rotate --type ed25519");
    assert_eq!(words(KeyType::Rsa, Some(2048)), "hvdctl keys rotate --type rsa --bits 2048");
}

#[test]
fn a_secret_is_not_printed() {
    assert_eq!(format!("{:?}", Secret::plain("hidden")), "Secret(…)");
}

#[test]
fn a_machine_that_calls_itself_by_anothers_name_is_not_pinned_under_it() {
    let inventory = inventory();
    let mut nodes = [node(1), node(2)];
    nodes[1].hostname = "node1".into();
    push(&inventory, &mut nodes, new_keys("id_ed25519", NEW));
    let known = &nodes[0].key_files[KNOWN_HOSTS].text;
    let pinned: Vec<&str> = known.lines().filter(|line| line.contains("[node1]:12345")).collect();
    assert_eq!(pinned.len(), 1, "{known}");
    assert!(pinned[0].contains("HOST0"), "{known}");
}
