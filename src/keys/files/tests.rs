//! The directories of a small cluster: what a push changes, and what is reported.

use super::*;
use crate::inventory::{Inventory, KeyType, Node};
use crate::node::facts::Facts;
use crate::node::key_directory::KeyFile;
use crate::paths::HOST_KEY;
use std::collections::BTreeMap;

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
         addr eth0 10.0.9.{number}/24\naddr eth0 169.254.0.{number}/16\naddr eth0 fe80::{number}/64\naddr eth1 \
         10.1.0.{number}/24\n"
    ))
}

fn file(name: &str, text: &str) -> (String, KeyFile) {
    (name.to_owned(), KeyFile { mode: mode(name).into(), owner: "0:0".into(), text: text.to_owned() })
}

/// A directory with these files.
fn directory(files: &[(&str, &str)]) -> Facts {
    let mut facts = node(1);
    facts.keys.files = files.iter().map(|(name, text)| file(name, text)).collect();
    facts
}

/// The directory after the changes, as the next look would see it.
fn apply(facts: &mut Facts, changes: &Changes) {
    facts.keys.directory = Some(KeyFile { mode: "700".into(), owner: "0:0".into(), text: String::new() });
    for name in &changes.removes {
        facts.keys.files.remove(name);
    }
    for put in &changes.puts {
        let secret = put.text.expose().contains("PRIVATE");
        facts.keys.files.extend([file(&put.name, if secret { "" } else { put.text.expose() })]);
    }
    for (name, there) in &mut facts.keys.files {
        *there = file(name, &there.text).1;
    }
}

/// A push of these keys; gives what changed.
fn push(inventory: &Inventory, nodes: &mut [Facts; 2], keys: Keys) -> [Changes; 2] {
    let pair = |n: usize| Pair {
        name: HOST_KEY,
        private: Some(Secret::plain("PRIVATE")),
        public: format!("ssh-ed25519 HOST{n} x"),
    };
    let without = (0..2).filter(|n| public_host_key(&nodes[*n]).is_none());
    let new = without.map(|n| (inventory.nodes[n].name.clone(), pair(n))).collect();
    let desired = Desired::new(inventory, &observed(inventory, nodes), keys, new);
    let changes = [0, 1].map(|n| desired.changes(&inventory.nodes[n], &nodes[n]));
    for (facts, changes) in nodes.iter_mut().zip(&changes) {
        apply(facts, changes);
    }
    changes
}

fn new_keys(name: &'static str, public: &str) -> Keys {
    Keys::only(Pair { name, public: public.to_owned(), private: Some(Secret::plain("PRIVATE")) })
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

fn observed<'a>(inventory: &'a Inventory, nodes: &'a [Facts; 2]) -> Vec<(&'a Node, &'a Facts)> {
    inventory.nodes.iter().zip(nodes).collect()
}

fn faults(inventory: &Inventory, nodes: &[Facts; 2]) -> Vec<String> {
    let report = report(inventory, &observed(inventory, nodes));
    let faults = report.rows.iter().flat_map(|row| &row.faults).chain(&report.rotation);
    faults.map(|fault| format!("{}: {}", fault.text, fault.hint.rsplit(' ').next().unwrap())).collect()
}

fn text<'a>(facts: &'a Facts, name: &str) -> &'a str {
    &facts.keys.files[name].text
}

#[test]
fn the_key_is_accepted_from_the_clusters_addresses_and_the_second_push_is_empty() {
    let (inventory, mut nodes) = pushed(NEW, "id_ed25519");
    let line = format!("restrict,from=\"10.0.0.1,10.0.0.2,10.0.9.1,10.0.9.2\" {NEW}\n");
    for facts in &nodes {
        assert_eq!(text(facts, AUTHORIZED_KEYS), line);
        assert_eq!(
            text(facts, KNOWN_HOSTS).lines().next().unwrap(),
            "[node1]:12345,[10.0.0.1]:12345,[10.0.9.1]:12345 ssh-ed25519 HOST0 hvdctl:lab"
        );
    }
    assert!(nodes[0].keys.files.contains_key("id_ed25519") && !nodes[1].keys.files.contains_key("id_ed25519"));
    let keys = Keys::to_push(&ring(&inventory, &nodes));
    assert!(push(&inventory, &mut nodes, keys.unwrap()).iter().all(Changes::is_empty));
    assert!(differing(&inventory, &observed(&inventory, &nodes), Keys::to_push).is_empty());
    assert_eq!(faults(&inventory, &nodes), [""; 0]);
    // a part of the nodes is no reason to write anything anew
    assert!(differing(&inventory, &observed(&inventory, &nodes)[..1], Keys::to_push).is_empty());
}

#[test]
fn without_the_masters_address_the_key_is_not_tied_to_any() {
    let inventory = inventory();
    let mut nodes = [node(1), node(2)];
    nodes[0].network.ssh_address = None;
    push(&inventory, &mut nodes, new_keys("id_ed25519", NEW));
    assert_eq!(text(&nodes[1], AUTHORIZED_KEYS), format!("restrict {NEW}\n"));
    // which is a warning, and not a fault that a push repairs
    assert_eq!(faults(&inventory, &nodes), [""; 0]);
    let words = "the workers accept the cluster's key from any address, because that of the master is not known \
                 (the address at which ssh reached the node is unknown): set `address` for it";
    let report = report(&inventory, &observed(&inventory, &nodes));
    assert_eq!(report.rows.into_iter().map(|row| row.warnings).collect::<Vec<_>>(), [vec![words.to_owned()], vec![]]);
    // one that `up` is to make is known then
    let mut encrypted = inventory.clone();
    encrypted.cluster.network = Some(crate::model::mesh::NetworkKind::WireGuard);
    encrypted.nodes.iter_mut().for_each(|node| node.interface = Some("hmesh".into()));
    assert_eq!(warnings(&encrypted, &encrypted.nodes[0], &nodes[0]), [""; 0]);
    // a single node accepts no logins from elsewhere
    let mut alone = inventory.clone();
    alone.nodes.pop();
    assert_eq!(warnings(&alone, &alone.nodes[0], &nodes[0]), [""; 0]);
    assert_eq!(warnings(&inventory, &inventory.nodes[0], &node(1)), [""; 0]);
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
        nodes[1].keys.files.extend(state.iter().map(|(name, text)| file(name, text)));
        assert_eq!(faults(&inventory, &nodes), [""; 0], "{state:?}");
        assert_eq!(
            warnings(&inventory, &inventory.nodes[1], &nodes[1]),
            ["id_ed25519 is kept: it is the key of the cluster other, which uses the same directory"]
        );
        let keys = Keys::to_push(&ring(&inventory, &nodes)).unwrap();
        assert!(push(&inventory, &mut nodes, keys).iter().all(Changes::is_empty), "{state:?}");
    }
    // one with our tag, or with none, goes as ever
    for public in [Some(NEW), Some("ssh-ed25519 AAAA ana@desk"), None] {
        let mut nodes = nodes.clone();
        nodes[1].keys.files.extend([file("id_ed25519", "")]);
        nodes[1].keys.files.extend(public.map(|text| file("id_ed25519.pub", text)));
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
    let desired = Desired::new(&inventory, &there, keys.unwrap(), BTreeMap::new());
    let changes = desired.changes(&inventory.nodes[0], &nodes[0]);
    apply(&mut nodes[0], &changes);
    assert_eq!(text(&nodes[0], AUTHORIZED_KEYS), format!("restrict,from=\"10.0.0.1,10.0.9.1\" {NEW}\n"));
    assert!(!text(&nodes[0], KNOWN_HOSTS).contains("node2"));
}

#[test]
fn the_pair_with_our_tag_is_used_whatever_the_inventory_has() {
    let (mut inventory, mut nodes) = pushed(NEW, "id_ed25519");
    inventory.cluster.key_type = KeyType::Rsa;
    assert_eq!(ring(&inventory, &nodes).current, Some(Pair { name: "id_ed25519", public: NEW.into(), private: None }));
    // another owner's pair of that name stays
    nodes[0].keys.files.extend([file("id_rsa", ""), file("id_rsa.pub", "ssh-rsa AAAA ana@desk\n")]);
    let keys = Keys::to_push(&ring(&inventory, &nodes)).unwrap();
    assert!(push(&inventory, &mut nodes, keys).iter().all(Changes::is_empty));
    // one that lacks its public half is taken for ours
    nodes[0].keys.files.retain(|name, _| !name.starts_with("id_rsa") && name != "id_ed25519.pub");
    let lone = ring(&inventory, &nodes);
    assert_eq!(lone.current, Some(Pair { name: "id_ed25519", public: String::new(), private: None }));
    assert_eq!(Keys::to_push(&lone), None);
    nodes[0].keys.files.extend([file("id_rsa", ""), file("id_rsa.pub", "ssh-rsa AAAA hvdctl:other\n")]);
    assert_eq!(ring(&inventory, &nodes).belongs_to_another("lab"), Some("other"));
}

#[test]
fn private_keys_that_must_not_be_there_go() {
    let (inventory, mut nodes) = pushed(NEW, "id_ed25519");
    nodes[0].keys.files.extend([file("id_rsa", ""), file("id_rsa.pub", OLD)]);
    nodes[1].keys.files.extend([file("id_ed25519", ""), file("id_rsa", ""), file("id_rsa.next", "")]);
    assert_eq!(
        faults(&inventory, &nodes),
        [
            "node1 has a private key that is not in use: id_rsa: push",
            "node2 has a private key that belongs only on the master: id_rsa.next, id_ed25519: push",
        ]
    );
    let keys = Keys::to_push(&ring(&inventory, &nodes)).unwrap();
    let [first, second] = push(&inventory, &mut nodes, keys);
    assert_eq!(first.removes, ["id_rsa", "id_rsa.pub"]);
    assert_eq!(second.removes, ["id_rsa.next", "id_ed25519"], "id_rsa has another owner");
}

/// A rotation's states, in the order in which they follow each other: files of the master, and whether each node
/// accepts the new key.
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
            nodes[0].keys.files.retain(|name, _| !name.starts_with("id_"));
            let staged = files.contains(&format!("{new}.next"));
            nodes[0].keys.files.extend(files.iter().map(|name| {
                let before_is_there = *name == format!("{old}.pub") && (staged || old != new);
                let public = if before_is_there { &before } else { &after };
                file(name, &if name.ends_with(".pub") { format!("{public}\n") } else { String::new() })
            }));
            let from = ["10.0.0.1", "10.0.0.2", "10.0.9.1", "10.0.9.2"].map(|a| a.parse().unwrap()).into();
            for (facts, has) in nodes.iter_mut().zip(has_new) {
                let text = text(facts, AUTHORIZED_KEYS).to_owned();
                let more = if has { vec![after.clone()] } else { Vec::new() };
                facts.keys.files.extend([file(AUTHORIZED_KEYS, &merge_authorized(&text, &more, true, "lab", &from))]);
            }
            let ring = ring(&inventory, &nodes);
            let place = format!("{old} to {new}, step {step}: {ring:?}");

            // the private key that a launch uses is accepted, and neither launch nor push sees a fault in that
            let moved = !staged;
            let in_use = if moved && files.contains(&new.to_owned()) { &after } else { &before };
            assert!(differing(&inventory, &observed(&inventory, &nodes), Keys::to_launch).is_empty(), "{place}");
            assert_eq!(ring.next.is_some(), files.iter().any(|f| f.ends_with(".next.pub")), "{place}");
            if let Some(next) = &ring.next {
                assert_eq!((next.name, ring.in_place), (new, moved), "{place}");
            }
            let last = ring.next.is_none() && moved;
            push(&inventory, &mut nodes, Keys::to_push(&ring).unwrap());
            let keys = our_keys(&nodes[1], "lab");
            assert!(keys.contains(&bare(in_use)), "{place}: {keys:?}");
            assert_eq!(keys.len(), if last { 1 } else { 2 }, "{place}");
            assert_eq!(
                faults(&inventory, &nodes).len(),
                usize::from(!last),
                "{place}: {:?}",
                faults(&inventory, &nodes)
            );
            assert!(
                nodes[0].keys.files.keys().filter(|n| n.starts_with("id_")).eq(files_sorted(&files).iter()),
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
fn each_fault_has_its_message_and_its_hint() {
    let (inventory, nodes) = pushed(NEW, "id_ed25519");
    let fault = |make: &dyn Fn(&mut [Facts; 2])| {
        let mut nodes = nodes.clone();
        make(&mut nodes);
        faults(&inventory, &nodes)
    };
    let edit = |facts: &mut Facts, name: &str, edit: &dyn Fn(&str) -> String| {
        let changed = edit(text(facts, name));
        facts.keys.files.get_mut(name).unwrap().text = changed;
    };
    assert_eq!(
        fault(&|n| edit(&mut n[1], AUTHORIZED_KEYS, &|t| t.replace("10.0.9.1,", ""))),
        ["node2 accepts the key without the right restrictions (restrict, and from= the cluster's addresses): push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], AUTHORIZED_KEYS, &|_| format!("restrict {OLD}\n"))),
        ["node2 accepts another key than the master's: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], AUTHORIZED_KEYS, &|_| String::new())),
        ["node2 does not accept the cluster's key: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], AUTHORIZED_KEYS, &|t| format!("{t}ssh-rsa AAAA hvdctl:lab\n"))),
        ["node2 still accepts an earlier key: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[0], KNOWN_HOSTS, &|t| t.replace("HOST1", "HOSTX"))),
        ["the host key of node2 is not pinned correctly on node1: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], KNOWN_HOSTS, &|t| t.replace("[10.0.9.1]:12345", "[10.0.9.8]:12345"))),
        ["the host key of node1 is not pinned correctly on node2: push"]
    );
    assert_eq!(
        fault(&|n| edit(&mut n[1], KNOWN_HOSTS, &|t| format!("[gone]:12345 ssh-rsa AAAA hvdctl:lab\n{t}"))),
        ["node2 still pins nodes that the inventory does not have: push"]
    );
    assert_eq!(
        fault(&|n| n[1].keys.files.get_mut(AUTHORIZED_KEYS).unwrap().mode = "644".into()),
        ["wrong mode or owner on node2: authorized_keys (644 0:0): push"]
    );
    assert_eq!(
        fault(&|n| {
            n[0].keys.files.remove("id_ed25519.pub");
        }),
        ["id_ed25519.pub is missing on the master: push"]
    );
    assert_eq!(
        fault(&|n| n[1] = node(2))[..3],
        [
            "the host key of node1 is not pinned correctly on node2: push",
            "node2 does not accept the cluster's key: push",
            "node2 has no host key for its worker: push"
        ]
    );
    let nothing = [node(1), node(2)];
    assert_eq!(faults(&inventory, &nothing)[0], "the master has no key pair of the cluster: push");
}

#[test]
fn the_command_for_a_pair_of_a_kind() {
    let words = |key_type, bits| KeyKind { key_type, bits }.rotation();
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
    let known = &nodes[0].keys.files[KNOWN_HOSTS].text;
    let pinned: Vec<&str> = known.lines().filter(|line| line.contains("[node1]:12345")).collect();
    assert_eq!(pinned.len(), 1, "{known}");
    assert!(pinned[0].contains("HOST0"), "{known}");
}

#[test]
fn a_removal_takes_what_the_cluster_has_and_nothing_else() {
    let friends = "ssh-rsa FRIEND copy of ssh-rsa AAAA hvdctl:lab\nssh-ed25519 B hvdctl:other\r\n";
    let pin = "[node1]:12345 ssh-ed25519 AAAA hvdctl:lab\n";
    let mut facts = directory(&[
        (AUTHORIZED_KEYS, &format!("restrict {OLD}\n{friends}restrict {NEW}\n")),
        (KNOWN_HOSTS, pin),
        ("id_ed25519", ""),
        ("id_ed25519.pub", &format!("{NEW}\n")),
        ("id_rsa.next", ""),
        ("id_rsa.next.pub", &format!("{OLD}\n")),
        // of a user called "ana hvdctl:lab"
        ("id_rsa", ""),
        ("id_rsa.pub", "ssh-rsa AAAA ana hvdctl:lab\n"),
        (HOST_KEY, ""),
        (&format!("{HOST_KEY}.pub"), "ssh-ed25519 AAAA gpu1 hvdctl:lab\n"),
        ("notes", ""),
    ]);
    let changes = removal(&facts, "lab");
    apply(&mut facts, &changes);
    let left: Vec<&str> = facts.keys.files.keys().map(String::as_str).collect();
    assert_eq!(left, [AUTHORIZED_KEYS, "id_rsa", "id_rsa.pub", "notes"]);
    assert_eq!(text(&facts, AUTHORIZED_KEYS), friends);
    assert!(removal(&facts, "lab").is_empty());
    assert_eq!(removal(&facts, "other").puts.len(), 1);

    // of host keys, too, only one with hvdctl's comment goes
    for comment in ["", "gpu1", "hvdctl:lab", "gpu1 hvdctl:lab2", "ana of gpu1 hvdctl:lab"] {
        let own = directory(&[(HOST_KEY, ""), (&format!("{HOST_KEY}.pub"), &format!("ssh-ed25519 AAAA {comment}\n"))]);
        assert!(removal(&own, "lab").is_empty(), "{comment}");
    }
}

#[test]
fn a_removal_takes_the_private_half_of_an_interrupted_rotation() {
    let next = format!("{NEW}\n");
    type Files<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Files<'_>, &[&str]); 5] = [
        // staged, with a pair of another owner in place
        (
            &[("id_rsa", ""), ("id_rsa.pub", "ssh-rsa AAAA ana"), ("id_rsa.next", ""), ("id_rsa.next.pub", &next)],
            &["id_rsa", "id_rsa.pub"],
        ),
        // the private half is in place
        (&[("id_rsa", ""), ("id_rsa.next.pub", &next)], &[]),
        // the public half was not yet written
        (&[("id_rsa.next", "")], &[]),
        // that of another cluster, and a private key that nothing says anything about
        (&[("id_rsa.next", ""), ("id_rsa.next.pub", "ssh-rsa AAAA hvdctl:x")], &["id_rsa.next", "id_rsa.next.pub"]),
        (&[("id_rsa", "")], &["id_rsa"]),
    ];
    for (files, left) in cases {
        let mut facts = directory(files);
        let changes = removal(&facts, "lab");
        apply(&mut facts, &changes);
        assert_eq!(facts.keys.files.keys().map(String::as_str).collect::<Vec<_>>(), left, "{files:?}");
    }
}
