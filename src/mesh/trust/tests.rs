//! Tests of what nodes of other owners can and cannot do.

use super::*;
use crate::mesh::plan::tests::{facts, inventory, key_of, keys, plan, view};
use crate::mesh::plan::{addresses, collisions, elsewhere, files};
use crate::model::mesh::AddressRange;
use proptest::prelude::*;

/// n0 and n1 are of other owners, n2 is the operator's own, and n3 the master.
fn of_owners() -> crate::inventory::Inventory {
    let mut inventory = inventory(4, None);
    for (node, owner) in inventory.nodes.iter_mut().zip([Some("eve"), Some("bob"), None, Some("cai")]) {
        (node.owner, node.master) = (owner.map(str::to_owned), false);
    }
    inventory.nodes[3].master = true;
    inventory
}

fn settled(inventory: &crate::inventory::Inventory) -> BTreeMap<String, NetworkFile> {
    plan(inventory, &vec![facts("", None); inventory.nodes.len()]).unwrap()
}

fn known(files: &BTreeMap<String, NetworkFile>) -> Vec<Facts> {
    files.values().map(|file| facts("", Some(file))).collect()
}

#[test]
fn a_false_file_moves_only_its_own_node() {
    let all = of_owners();
    let first = settled(&all);
    let range = |text: &str| text.parse::<AddressRange>().unwrap();
    let address = |name: &str| first[name].address;
    for (its_range, its_address) in [
        (range("10.90.0.0/16"), address("n3")),
        (range("10.200.0.0/16"), [10, 200, 0, 1].into()),
        (range("8.8.0.0/16"), [8, 8, 8, 8].into()),
        (range("0.0.0.0/0"), address("n2")),
    ] {
        let mut forged = first["n0"].clone();
        (forged.range, forged.address) = (its_range, its_address);
        forged.nodes.iter_mut().for_each(|node| {
            (node.address, node.public_key) = (its_address, key_of("eve"));
        });
        let mut seen = known(&first);
        seen[0] = facts("", Some(&forged));
        assert_eq!(plan(&all, &seen).unwrap(), first, "{its_range}");
        // also of one that is off
        let views = view(&all, &seen);
        for off in 1..4 {
            let mut here = views.clone();
            here.remove(off);
            let absent = elsewhere(&all.nodes, &here);
            let addresses = addresses(&all.cluster, &here, &absent).unwrap();
            let found = files(&all.cluster, &here, &addresses, &keys(&all), &absent);
            assert_eq!(addresses.of.values().collect::<BTreeSet<_>>().len(), 4);
            let public = |file: &NetworkFile| {
                let nodes = file.nodes.iter().map(|node| (node.name.clone(), (node.address, node.public_key.clone())));
                nodes.collect::<BTreeMap<_, _>>()
            };
            assert_eq!(public(&found["n0"]), public(&first["n0"]), "without n{off}");
        }
    }
}

#[test]
fn a_false_route_costs_only_the_node_that_has_it() {
    let all = of_owners();
    let first = settled(&all);
    let mut seen = known(&first);
    seen[0] = facts("10.0.0.0/8\n172.16.0.0/12\n100.64.0.0/10", first.get("n0"));
    let found = plan(&all, &seen).unwrap();
    assert_eq!(found["n3"], first["n3"]);
    let failed = collisions(&all.cluster, found["n3"].range, &view(&all, &seen));
    assert_eq!(failed.iter().map(|error| error.node.as_str()).collect::<Vec<_>>(), ["n0"]);
    // before there is a network, one is chosen that suits all if there is one
    let new = |routes: &str| [facts(routes, None), facts("", None), facts("", None), facts("", None)];
    assert_eq!(plan(&all, &new("10.90.0.0/16")).unwrap()["n3"].range.to_string(), "10.91.0.0/16");
    assert_eq!(plan(&all, &new("10.0.0.0/8\n172.16.0.0/12\n100.64.0.0/10")).unwrap()["n3"].range, first["n3"].range);
}

#[test]
fn no_node_gets_the_key_of_another_one() {
    let all = of_owners();
    let first = settled(&all);
    let seen = known(&first);
    let claimed = |keys: &BTreeMap<String, String>, seen: &[Facts], absent: &BTreeMap<String, NetworkNode>| {
        let errors = claimed_keys(&view(&all, seen), keys, absent);
        errors.into_iter().map(|error| format!("{}: {}", error.node, error.message)).collect::<Vec<_>>()
    };
    let none = BTreeMap::new();
    assert!(claimed(&keys(&all), &seen, &none).is_empty());
    for (of, name) in [(1, "n1"), (2, "n2"), (3, "n3")] {
        let mut forged = keys(&all);
        forged.insert("n0".into(), key_of(name));
        let expected = [format!("n0: it has the public key of {name}")];
        assert_eq!(claimed(&forged, &seen, &none), expected);
        // nor of one that is off
        let mut here = seen.clone();
        here.remove(of);
        let mut nodes = all.clone();
        nodes.nodes.remove(of);
        let absent = elsewhere(&all.nodes, &view(&nodes, &here));
        forged.remove(name);
        let errors = claimed_keys(&view(&nodes, &here), &forged, &absent);
        assert_eq!(errors.iter().map(|error| error.node.as_str()).collect::<Vec<_>>(), ["n0"], "without {name}");
    }
    // of two new ones the operator's own has it
    let mut forged = keys(&all);
    forged.insert("n0".into(), key_of("n2"));
    let new = vec![facts("", None); 4];
    assert_eq!(claimed(&forged, &new, &none), ["n0: it has the public key of n2"]);
}

#[test]
fn of_two_nodes_the_one_that_several_do_not_reach_is_at_fault() {
    let at_fault = |pairs: &[[&'static str; 2]]| -> Vec<&str> { super::at_fault(pairs).into_iter().collect() };
    assert!(at_fault(&[]).is_empty());
    assert_eq!(at_fault(&[["a", "b"]]), ["a", "b"]);
    assert_eq!(at_fault(&[["a", "b"], ["a", "c"], ["a", "d"]]), ["a"]);
    assert_eq!(at_fault(&[["b", "a"], ["c", "a"], ["d", "a"], ["c", "d"]]), ["a", "c", "d"]);
}

#[test]
fn what_another_owners_node_reports_costs_only_itself_its_network() {
    // of each node, what it reports of the others: `d`irect, without `t`cp, `u`nreachable, and shaken hands but not `h`eard
    let faults = |reports: &[(&'static str, &[(&str, char)])]| -> Vec<(String, String)> {
        let state = |peers: &[(&str, char)]| -> crate::model::mesh::NetworkState {
            let peer = |(name, how): &(&str, char)| match how {
                'd' => format!(r#""{name}":{{"state":"direct","tcp":true,"handshake":95,"heard":95}}"#),
                't' => format!(r#""{name}":{{"state":"direct","tcp":false,"handshake":95,"heard":95}}"#),
                'h' => format!(r#""{name}":{{"state":"unreachable","handshake":95,"arrived":95,"heard":10}}"#),
                _ => format!(r#""{name}":{{"state":"unreachable"}}"#),
            };
            let peers = peers.iter().map(peer).collect::<Vec<_>>().join(",");
            serde_json::from_str(&format!(r#"{{"time":100,"peers":{{{peers}}}}}"#)).unwrap()
        };
        let states: Vec<(&str, crate::model::mesh::NetworkState)> =
            reports.iter().map(|(name, peers)| (*name, state(peers))).collect();
        let states = states.iter().map(|(name, state)| (*name, state)).collect();
        let found = super::faults(&Cluster::default(), &states, |name| name.starts_with("own"));
        found.into_iter().map(|Unconnected { node, cause, .. }| (node, cause)).collect()
    };
    let nodes = |found: &[(String, String)]| found.iter().map(|(node, _)| node.clone()).collect::<Vec<_>>();
    // it says that no other node's TCP works
    let found = faults(&[
        ("own1", &[("own2", 'd'), ("x", 'd'), ("y", 'd')]),
        ("own2", &[("own1", 'd'), ("x", 'd'), ("y", 'd')]),
        ("x", &[("own1", 't'), ("own2", 't'), ("y", 'd')]),
        ("y", &[("own1", 'd'), ("own2", 'd'), ("x", 'd')]),
    ]);
    assert_eq!(nodes(&found), ["x"]);
    assert!(found[0].1.starts_with("own1: its firewall drops TCP connections"), "{found:?}");
    // it answers handshakes and nothing else; two of them are silent
    let silent: [(&str, &[(&str, char)]); 3] =
        [("own1", &[("x", 'h'), ("y", 'u')]), ("x", &[("own1", 'u'), ("y", 'd')]), ("y", &[("own1", 'u'), ("x", 'd')])];
    assert_eq!(nodes(&faults(&silent)), ["x", "y"]);
    // an operator's own nodes accuse each other
    let own: [(&str, &[(&str, char)]); 2] = [("own1", &[("own2", 't')]), ("own2", &[("own1", 'd')])];
    assert_eq!(nodes(&faults(&own)), ["own2"]);
}

#[test]
fn a_key_of_another_node_is_found() {
    let shared = |keys: &[(&'static str, &'static str)]| super::shared_key(keys.iter().copied());
    assert_eq!(shared(&[("a", "1"), ("b", "2"), ("a", "3"), ("b", "2")]), None);
    assert_eq!(shared(&[("a", "1"), ("b", "2"), ("a", "3"), ("b", "1")]), Some(["b", "a"]));
}

proptest! {
    /// What other owners' nodes say that they know changes nothing of what all others get.
    #[test]
    fn no_file_of_another_owner_counts(last in 0u8..9, named in 0usize..4, bits in 8u32..25, routes in any::<bool>()) {
        let all = of_owners();
        let first = settled(&all);
        let mut seen = known(&first);
        for (at, name) in [(0, "n0"), (1, "n1")] {
            let mut forged = first[name].clone();
            forged.range = format!("10.0.0.0/{bits}").parse().unwrap();
            forged.address = [10, 90, 0, last].into();
            forged.nodes.iter_mut().for_each(|node| node.address = forged.address);
            forged.node = format!("n{named}");
            seen[at] = facts(if routes { "10.64.0.0/10" } else { "" }, Some(&forged));
        }
        prop_assert_eq!(plan(&all, &seen).unwrap(), first);
    }
}
