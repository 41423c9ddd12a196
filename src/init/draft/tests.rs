//! The draft holds what was named and found, and is always an inventory.

use super::*;
use crate::init::machines;
use crate::inventory::{Cluster, Gpus, Inventory};
use proptest::prelude::*;
use std::path::Path;

const PLAIN: &str = "hostname a\ncores 8\nssh 10.0.0.1\naddr lo 127.0.0.1/8\naddr eth0 10.0.0.1/24\naddr eth0 \
    fe80::1/64\n\
                     addr docker0 172.17.0.1/16\nroot sudo\ndocker sudo 27.1.0\nimage x/y:1\n";

type Found = Option<Result<Probe, NodeError>>;

fn probed(text: &str) -> Found {
    Some(Ok(Probe::parse(text)))
}

fn failed(message: String) -> Found {
    Some(Err(NodeError::failed("d", "log in by ssh as d", message)))
}

/// Entries for hosts, each with what was found there; nothing where `found` is shorter.
fn probed_entries(hosts: Vec<Host>, found: Vec<Found>) -> Vec<DraftNode> {
    let mut entries = super::entries(hosts);
    entries.iter_mut().zip(found).for_each(|(entry, found)| entry.found = found);
    find_duplicates(&mut entries);
    entries
}

/// Entries for hosts as they are named.
fn entries(named: &str, found: Vec<Found>) -> Vec<DraftNode> {
    probed_entries(machines::read(named, None).unwrap(), found)
}

#[track_caller]
fn parse(text: &str) -> Inventory {
    Inventory::parse(text, Path::new("inventory.toml")).unwrap_or_else(|faults| panic!("{faults}\n{text}"))
}

/// The fields in force that the text only shows; of a field that it shows twice the first.
fn in_full(text: &str) -> String {
    let mut known = HashSet::new();
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with('[') {
            known.clear();
        }
        let line = line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).unwrap_or(line);
        let field = line.split(" = ").next().unwrap().to_owned();
        if !line.contains(" = ") || known.insert(field) {
            lines.push(line);
        }
    }
    lines.join("\n")
}

#[test]
fn a_whole_draft() {
    let gpus = PLAIN.replace(
        "root",
        "addr ib0 10.1.0.1/24\nnvidia-smi yes\ngpu exit 0\nmig exit 0\ngpu GPU 0: NVIDIA H200 (UUID: GPU-1)\n\
         gpu GPU 1: NVIDIA H200 (UUID: GPU-2)\nroot",
    );
    let bare =
        "hostname c\ncores 1\nssh 10.0.0.3\naddr eth0 10.0.0.3/24\nroot no sudo: a password is required\ndocker none\n";
    let failed = failed("Connection refused\nsecond \u{1b}[1mline".into());
    let again = probed(PLAIN);
    let entries = entries("a ana@b c d:2222 e", vec![probed(PLAIN), probed(&gpus), probed(bare), failed, again]);
    let text = text("lab", "x/y:1", &entries);
    insta::assert_snapshot!(text);
    let inventory = parse(&text);
    let hosts: Vec<&str> = inventory.nodes.iter().map(|node| node.host.as_str()).collect();
    assert_eq!(hosts, ["a", "b", "c", "d"], "e is a once more");
    assert_eq!((&inventory.nodes[0].gpus, &inventory.nodes[1].gpus), (&Gpus::Count(0), &Gpus::Count(2)));
    assert_eq!((inventory.nodes[0].address, inventory.nodes[1].address), (None, "10.0.0.1".parse().ok()));
    assert!(inventory.nodes[0].master);
}

#[test]
fn what_is_only_shown_is_right_too() {
    let text = text("lab", "horovod/horovod:latest", &entries("a b", vec![probed(PLAIN)]));
    let inventory = parse(&in_full(&text));
    assert_eq!(inventory.cluster, Cluster { name: "lab".into(), ..Cluster::default() });
    assert_eq!((inventory.nodes[0].slots, inventory.nodes[0].ssh_port), (Some(8), Some(22)));
    assert_eq!(inventory.nodes[0].address, "10.0.0.1".parse().ok());
}

#[test]
fn where_a_machine_is_on_the_network() {
    let place = |addresses: &[&str], ssh: &str| {
        let lines: String = addresses.iter().map(|a| format!("addr {a}/24\n")).collect();
        let probe = Probe::parse(&format!("{lines}ssh {ssh}\n"));
        let address = probe.address().map_or("open".to_owned(), |(_, address)| address.to_string());
        format!("{address} of {}", probe.candidates().len())
    };
    assert_eq!(place(&["eth0 10.0.0.1", "br-0123456789ab 172.18.0.1", "lo 127.0.0.1"], "10.0.0.1"), "10.0.0.1 of 1");
    assert_eq!(place(&["eth0 10.0.0.1", "ib0 10.1.0.1"], "10.1.0.1"), "10.1.0.1 of 2");
    // through a gateway's own address, or over IPv6
    assert_eq!(place(&["eth0 10.0.0.1"], "203.0.113.1"), "10.0.0.1 of 1");
    assert_eq!(place(&["eth0 10.0.0.1", "eth0 fd00::1"], "fd00::1"), "10.0.0.1 of 1");
    assert_eq!(place(&["eth0 10.0.0.1", "ib0 10.1.0.1"], "203.0.113.1"), "open of 2");
    assert_eq!(place(&["eth0 fd00::1", "docker0 172.17.0.1"], "fd00::1"), "open of 0");
}

#[test]
fn concerns_have_a_hint() {
    let concerns = |text: &str| Probe::parse(&format!("ssh 10.0.0.1\naddr eth0 10.0.0.1/24\n{text}")).concerns();
    assert_eq!(concerns("root sudo\ndocker sudo 20.10.24\n"), []);
    let one = |text: &str, what: &str, hint: &str| {
        let all = concerns(text);
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].0.contains(what) && all[0].1.contains(hint), "{all:?}");
    };
    one("root login\ndocker none\n", "Docker is not installed", "install Docker");
    one("root login\ndocker none\n", "Docker is not installed", "`runtime = \"process\"` in [cluster] (docs/guide/");
    one("root login\ndocker none\n", "Docker is not installed", "Slurm (docs/guide/slurm.md)");
    one("root login\ndocker login 27\naccelerator amd 8\n", "it has 8 AMD GPUs", "an image that has ROCm");
    let without = "os debian \nroot login\ndocker-command missing\ndocker-engine yes\ndocker none\n";
    one(without, "the `docker` command is not", "apt-get install docker-cli");
    one("root login\ndocker-command missing\ndocker none\n", "Docker is not installed", "install Docker");
    one("root sudo\ndocker no Cannot connect\n", "Cannot connect", "start docker");
    one("root no sudo: a password is required\ndocker no permission denied\n", "asks for a password", "ready");
    one("root no sudo: not found\ndocker no permission denied\n", "sudo: not found", "`user`");
    assert_eq!(concerns("root no ana is not in the sudoers file\ndocker login 27\n"), []);
    one("root login\ndocker login 27\nnvidia-smi yes\ngpu exit 0\nmig exit 0\n", "lists no GPU", "nvidia-smi -L");
    let failed = "nvidia-smi yes\ngpu Failed to initialize NVML: Driver/library version mismatch\ngpu exit 18\n";
    one(&format!("root login\ndocker login 27\n{failed}"), "Driver/library version mismatch", "reboot the node");
}

#[test]
fn what_could_not_be_probed_is_not_the_master() {
    let mut entries = entries("a b c d", vec![failed("x".into()), probed(PLAIN), failed("y".into())]);
    unprobed_last(&mut entries);
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["b", "d", "a", "c"]);
    assert_eq!(parse(&text("lab", "x/y:1", &entries)).master().name, "b");
}

#[test]
fn groups_name_what_is_left_of_them() {
    let entries = entries("a1 a2 b", vec![probed(PLAIN), None, probed(PLAIN)]);
    assert_eq!(entries[2].same_as.as_deref(), Some("a1"));
    let written = groups(&BTreeMap::from([("one".into(), vec![1, 0, 2]), ("two".into(), vec![2])]), &entries);
    let inventory = parse(&(text("lab", "x/y:1", &entries) + &written));
    assert_eq!(inventory.groups["one"], ["a1", "a2"]);
    assert_eq!(inventory.groups["two"], ["a1"]);
    assert_eq!(groups(&BTreeMap::new(), &entries), "");
}

#[test]
fn the_image_that_all_have() {
    let wanted = ["first", "second"];
    let with = |images: &[&str]| {
        let lines: String = images.iter().map(|i| format!("image {i}\n")).collect();
        probed(&format!("docker login 27\n{lines}"))
    };
    let chosen = |found: Vec<Found>| image(&wanted, &entries("a b", found)).to_owned();
    assert_eq!(chosen(vec![with(&["first", "second"]), with(&["second"])]), "second");
    assert_eq!(chosen(vec![with(&["first", "second"]), with(&["first", "second"])]), "first");
    assert_eq!(chosen(vec![with(&["second"]), with(&[])]), "first");
    // who cannot be asked has no say
    assert_eq!(chosen(vec![with(&["second"]), failed("x".into())]), "second");
    assert_eq!(chosen(vec![]), "first");
}

#[test]
fn gpus_that_the_image_cannot_use() {
    let gpus = |capabilities: &str| {
        probed(&format!("nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-a)\ngpu exit 0\n{capabilities}"))
    };
    let found = |image: &str, found: Vec<Found>| {
        let nodes = entries("a b", found);
        unsupported_gpus(image, &nodes).map(|(nodes, what, _)| format!("{}: {what}", nodes.join(",")))
    };
    let hopper = || gpus("compute-cap 8.6\ncompute-cap 9.0\ncompute-cap exit 0\n");
    assert_eq!(
        found("horovod/horovod:latest", vec![gpus("compute-cap 8.9\ncompute-cap exit 0\n"), hopper()]).unwrap(),
        "b: horovod/horovod:latest cannot use NVIDIA H200 (compute capability 9.0): its CUDA is 11.3, and Hopper and \
         later need 11.8"
    );
    assert!(found("horovod/horovod", vec![gpus("compute-cap 12.0\n"), hopper()]).unwrap().starts_with("a,b: "));
    assert_eq!(found("horovod/horovod-cuda12:1", vec![hopper()]), None);
    assert_eq!(found("team/train:1", vec![hopper()]), None);
    // a driver that does not know the query
    let old = "compute-cap Field \"compute_cap\" is not a valid field to query.\ncompute-cap exit 2\n";
    assert_eq!(found("horovod/horovod", vec![gpus(old), probed(PLAIN)]), None);
    let unknown = gpus("compute-cap [N/A]\ncompute-cap exit 0\n");
    assert_eq!(
        found("horovod/horovod", vec![gpus(old), unknown]).unwrap(),
        "b: horovod/horovod may not be able to use NVIDIA H200, whose compute capability is unknown (nvidia-smi \
         reports [N/A]): its CUDA is 11.3, and Hopper and later need 11.8"
    );
}

#[test]
fn names_differ_where_hosts_do_not() {
    let named = |text: &str| entries(text, vec![]).into_iter().map(|entry| entry.name).collect::<Vec<_>>().join(" ");
    assert_eq!(named("a b:22"), "a b");
    assert_eq!(named("h:2201 h:2202 h-2201"), "h h-2202 h-2201");
    assert_eq!(named("ana@h eve@h h:22"), "h node-1 h-22");
}

/// A host in any spelling that may be accepted, mostly alike so that names clash.
fn host() -> impl Strategy<Value = String> {
    let user = prop::sample::select(vec!["", "", "ana@", "corp\\eve@", "é.x@", "a@b@"]);
    let place = prop_oneof![
        "[a-cA-C]{1,2}",
        "[a-z0-9_.%:-]{1,20}",
        "\\[fd00::[1-3]\\]",
        "fd00::[1-3]",
        "10\\.0\\.0\\.[1-9]",
        "n\\[[0-9]-[0-9]\\]",
        "[a-z]{250,253}",
        "node-[1-4]",
    ];
    let port = prop_oneof!["", "", ":[0-9]{1,5}"];
    (user, place, port).prop_map(|(user, place, port)| format!("{user}{place}{port}"))
}

/// A strategy for the lines that a machine may print, true or not.
fn said() -> impl Strategy<Value = Found> {
    let line = prop_oneof![
        "(root|docker) (no|sudo|login|none) .{0,30}",
        "addr (eth0|ib0|lo|docker0) 10\\.0\\.0\\.[1-3]/24",
        "ssh 10\\.0\\.0\\.[1-3]",
        "gpu GPU [0-9]: .{0,20} \\(UUID: x\\)",
        "compute-cap .{0,10}",
        "(hostname|cores|image|nvidia-smi) .{0,10}",
    ];
    prop_oneof![
        Just(None::<Result<Probe, NodeError>>),
        any::<String>().prop_map(failed),
        prop::collection::vec(line, 0..8).prop_map(|lines| probed(&lines.join("\n"))),
    ]
}

proptest! {
    #[test]
    fn whatever_is_named_and_found_the_draft_is_an_inventory_of_it(
        named in prop::collection::vec(host(), 1..6),
        found in prop::collection::vec(said(), 0..6),
        user in prop::option::of("[a-z]{1,3}"),
    ) {
        let Ok(hosts) = machines::read(&named.join(" "), user.as_deref()) else { return Ok(()) };
        prop_assume!(!hosts.is_empty());
        let entries = probed_entries(hosts, found);
        let text = text("lab", "x/y:1", &entries);
        let inventory = match Inventory::parse(&text, Path::new("inventory.toml")) {
            Ok(inventory) => inventory,
            Err(faults) => return Err(TestCaseError::fail(format!("{faults}\n{text}"))),
        };
        let kept: Vec<&DraftNode> = entries.iter().filter(|entry| entry.same_as.is_none()).collect();
        prop_assert_eq!(inventory.nodes.len(), kept.len());
        for (node, entry) in inventory.nodes.iter().zip(kept) {
            let host = Host { host: node.host.clone(), user: node.user.clone(), port: node.ssh_port };
            prop_assert_eq!(&host, &entry.host);
            prop_assert_eq!(&node.name, &entry.name);
        }
    }
}
