//! Tests of the plan.

use super::*;
use crate::inventory::Inventory;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

/// A node with these routes, that knows this of the network.
pub(in crate::mesh) fn facts(routes: &str, file: Option<&NetworkFile>) -> Facts {
    let mut text =
        "ssh 10.0.0.1\naddr lo 127.0.0.1/8\naddr eth0 192.168.1.5/24\naddr docker0 172.17.0.1/16\n".to_owned();
    let device = |route: &str| if route.starts_with("unreachable") { "" } else { " dev eth0" };
    text.extend(routes.lines().map(|route| format!("route {route}{}\n", device(route))));
    text.extend(file.map(|file| format!("network-file {}\n", serde_json::to_string(file).unwrap())));
    Facts::parse(&text)
}

pub(in crate::mesh) fn inventory(count: usize, range: Option<&str>) -> Inventory {
    let mut inventory = Inventory::local("n0", "image");
    let first = inventory.nodes[0].clone();
    inventory.nodes = (0..count).map(|n| Node { name: format!("n{n}"), ..first.clone() }).collect();
    inventory.cluster.network_range = range.map(|range| range.parse().unwrap());
    inventory
}

pub(in crate::mesh) fn view<'a>(inventory: &'a Inventory, facts: &'a [Facts]) -> Vec<MeshNode<'a>> {
    let nodes = inventory.nodes.iter().zip(facts);
    nodes.map(|(node, facts)| MeshNode { node, facts, host: Some("gpu.example.org") }).collect()
}

/// A public key.
pub(in crate::mesh) fn key_of(name: &str) -> String {
    let mut key = [7; 32];
    key[..name.len()].copy_from_slice(name.as_bytes());
    STANDARD.encode(key)
}

pub(in crate::mesh) fn keys(inventory: &Inventory) -> BTreeMap<String, String> {
    inventory.nodes.iter().map(|node| (node.name.clone(), key_of(&node.name))).collect()
}

/// Plans for nodes with these facts, and returns what each is to know.
pub(in crate::mesh) fn plan(inventory: &Inventory, facts: &[Facts]) -> Result<BTreeMap<String, NetworkFile>, Error> {
    let (nodes, none) = (view(inventory, facts), BTreeMap::new());
    let addresses = addresses(&inventory.cluster, &nodes, &none)?;
    Ok(files(&inventory.cluster, &nodes, &addresses, &keys(inventory), &none))
}

#[test]
fn nodes_keep_their_addresses_and_new_ones_get_free_ones() {
    let three = inventory(3, None);
    let new = [facts("", None), facts("", None), facts("", None)];
    let first = plan(&three, &new).unwrap();
    let addresses = |files: &BTreeMap<String, NetworkFile>| -> Vec<String> {
        files.values().map(|file| file.address.to_string()).collect()
    };
    assert_eq!(addresses(&first), ["10.90.0.1", "10.90.0.2", "10.90.0.3"]);
    // n0 has left, and n3 is new
    let mut later = inventory(4, None);
    later.nodes.remove(0);
    let known = [facts("", first.get("n1")), facts("", first.get("n2")), facts("", None)];
    let second = plan(&later, &known).unwrap();
    assert_eq!(addresses(&second), ["10.90.0.2", "10.90.0.3", "10.90.0.1"]);
    let found = changes(first.get("n1"), &second["n1"]);
    assert_eq!(found, [NetworkChange::Added(vec!["n3".into()]), NetworkChange::Removed(vec!["n0".into()])]);
    let breaks = |records: &[&str]| found.iter().any(|change| change.breaks_jobs(records));
    assert!(!breaks(&[]) && !breaks(&[r#"{"ranks":[{"node":"n1"}]}"#]));
    assert!(breaks(&[r#"{"ranks":[{"node":"n0"}]}"#]) && breaks(&["{"]), "a job would lose its ranks on n0");
    assert_eq!(changes(second.get("n1"), &second["n1"]), []);
}

#[test]
fn a_range_that_a_node_uses_is_not_taken() {
    let two = inventory(2, None);
    let routed = [facts("10.90.0.0/16\n10.91.4.0/24", None), facts("10.92.7.7", None)];
    assert_eq!(plan(&two, &routed).unwrap()["n0"].range.to_string(), "10.93.0.0/16");
    // one that the inventory names is taken, and costs the node its network
    let named = inventory(2, Some("10.91.0.0/16"));
    let range = plan(&named, &routed).unwrap()["n0"].range;
    let failed = collisions(&named.cluster, range, &view(&named, &routed));
    assert_eq!(failed.iter().map(|error| error.node.as_str()).collect::<Vec<_>>(), ["n0"]);
    assert!(failed[0].message.contains("its route to 10.91.4.0/24 (dev eth0)"), "{}", failed[0].message);
    // the route that keeps the network's own packets in it, on a node that has the network and on one that has not
    let first = plan(&two, &[facts("", None), facts("", None)]).unwrap();
    let kept = "unreachable 10.90.0.0/16 metric 4294967295";
    let range = |file| plan(&two, &[facts(kept, file), facts("", None)]).unwrap()["n0"].range.to_string();
    assert_eq!((range(first.get("n0")), range(None)), ("10.90.0.0/16".to_owned(), "10.91.0.0/16".to_owned()));
    // it stays on a node whose files are gone
    let lost = [facts("", first.get("n0")), facts(kept, None)];
    assert_eq!(plan(&two, &lost).unwrap()["n1"].range.to_string(), "10.90.0.0/16");
    // that of the network itself is none, also where its interface has another name from now on
    let mut renamed = inventory(2, None);
    renamed.cluster.network_interface = "hmesh-2".into();
    for (inventory, device, expected) in [
        (&two, "hmesh", "10.90.0.0/16"),
        (&renamed, "hmesh", "10.90.0.0/16"),
        (&renamed, "hmesh-2", "10.90.0.0/16"),
        (&renamed, "hmesh-3", "10.91.0.0/16"),
    ] {
        let mut known = [facts("", first.get("n0")), facts("", first.get("n1"))];
        known[1].mesh.routes = vec![("10.90.0.0/16".parse().unwrap(), device.to_owned())];
        assert_eq!(plan(inventory, &known).unwrap()["n0"].range.to_string(), expected, "{device}");
    }
    assert_eq!(
        changes(first.get("n0"), &plan(&renamed, &[facts("", first.get("n0")), facts("", None)]).unwrap()["n0"])[0],
        NetworkChange::Interface("hmesh-2".into())
    );
    let everywhere = [facts("10.0.0.0/8\n172.16.0.0/12\n100.64.0.0/10", None), facts("", None)];
    assert!(plan(&two, &everywhere).is_err());
    let small = inventory(9, Some("10.1.0.0/29"));
    assert!(plan(&small, &vec![facts("", None); 9]).unwrap_err().to_string().contains("too few addresses"));
}

#[test]
fn what_breaks_jobs_is_known() {
    let two = inventory(2, None);
    let first = plan(&two, &[facts("", None), facts("", None)]).unwrap();
    let (old, mut new) = (&first["n0"], first["n0"].clone());
    new.nodes[1].public_key = "another".into();
    let replaced = changes(Some(old), &new);
    assert_eq!(replaced, [NetworkChange::Replaced(vec!["n1".into()])]);
    let breaks = |record: &str| replaced[0].breaks_jobs(&[record]);
    assert!(breaks(r#"{"ranks":[{"node":"n1"}]}"#) && !breaks(r#"{"ranks":[{"node":"n0"}]}"#));
    let mut moved = old.clone();
    moved.nodes[1].endpoints = vec!["elsewhere:1".into()];
    assert!(!changes(Some(old), &moved)[0].breaks_jobs(&[]));
    let mut port = old.clone();
    port.port = 7;
    port.nodes[0].public_key = "another".into();
    let found = changes(Some(old), &port);
    assert_eq!(found, [NetworkChange::Port(7), NetworkChange::OwnKey]);
    assert!(found.iter().all(|change| change.breaks_jobs(&[])));
}

#[test]
fn what_is_known_of_an_absent_node_comes_from_the_operators_own_nodes() {
    let mut three = inventory(3, None);
    let first = plan(&three, &[facts("", None), facts("", None), facts("", None)]).unwrap();
    let mut forged = first["n0"].clone();
    forged.nodes[2].public_key = key_of("forged");
    (three.nodes[0].owner, three.nodes[0].master, three.nodes[1].master) = (Some("mallory".into()), false, true);
    let known = [facts("", Some(&forged)), facts("", first.get("n1"))];
    let absent = elsewhere(&three.nodes, &view(&three, &known));
    assert_eq!(absent.keys().collect::<Vec<_>>(), ["n2"]);
    assert_eq!(absent["n2"].public_key, key_of("n2"));
    // of no other job
    let unknown = [facts("", Some(&forged)), facts("", None)];
    assert!(elsewhere(&three.nodes, &view(&three, &unknown)).is_empty());
    // one that has left the inventory is no member any more
    three.nodes.truncate(2);
    assert!(elsewhere(&three.nodes, &view(&three, &known)).is_empty());
}

#[test]
fn a_node_is_reached_at_its_endpoint_first() {
    let mut one = inventory(1, None);
    let found = |one: &Inventory, ssh: &str| {
        let facts = [Facts::parse(&format!("ssh {ssh}\n"))];
        endpoints(&one.cluster, &view(one, &facts)[0])
    };
    assert_eq!(found(&one, "192.168.1.5"), ["gpu.example.org:51820", "192.168.1.5:51820"]);
    one.nodes[0].endpoint = Some("[fd00::1]:7".into());
    assert_eq!(found(&one, "fd00::2"), ["[fd00::1]:7", "gpu.example.org:51820", "[fd00::2]:51820"]);
    one.nodes[0].endpoint = Some("gpu.example.org".into());
    assert_eq!(found(&one, "127.0.0.1"), ["gpu.example.org:51820"]);
    assert_eq!(local(&facts("", None)), ["192.168.1.5"]);
    let many: String = (0..99).map(|n| format!("addr eth{n} 10.0.1.{n}/24\n")).collect();
    let found = local(&Facts::parse(&format!("addr hmesh-2 10.91.0.1/16\n{many}")));
    assert_eq!((found.len(), found[0].as_str()), (MOST_LOCAL, "10.0.1.0"));
}

proptest! {
    /// Whatever nodes say they have, no two get one address, and all are in one range.
    #[test]
    fn no_address_is_given_twice(known in prop::collection::vec(prop::option::of(0u8..6), 1..8)) {
        let all = inventory(known.len(), None);
        let file = |name: usize, last: u8| NetworkFile {
            cluster: "local".into(),
            node: format!("n{name}"),
            interface: "hmesh".into(),
            port: 51820,
            range: "10.90.0.0/16".parse().unwrap(),
            address: [10, 90, 0, last].into(),
            mtu: None,
            nodes: Vec::new(),
        };
        let facts: Vec<Facts> =
            known.iter().enumerate().map(|(n, last)| facts("", last.map(|last| file(n, last)).as_ref())).collect();
        let files = plan(&all, &facts).unwrap();
        let addresses: BTreeSet<Ipv4Addr> = files.values().map(|file| file.address).collect();
        prop_assert_eq!(addresses.len(), known.len());
        prop_assert!(files.values().all(|file| file.range.contains(file.address)));
    }
}
