//! The encrypted network in the topologies of `scripts/lab.d/networks.sh`: what a user does with each, a line for each step.

use super::machines::checkout;
use crate::pool::{THIRD, init_of, lab_dir, pair_number};
use crate::process::{Done, eventually, run, s};
use crate::state::{FULL_IMAGE, Lab, NODES, Restore, no_job_is_left, node_sh, on};
use crate::variants::{Steps, TRAININGS};
use serde_json::Value;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Instant;

/// Nodes in networks of this kind.
struct Topology {
    name: &'static str,
    /// The kind of each node's network. Those of the internet and those with a forwarded port have an endpoint.
    kinds: &'static [&'static str],
    /// How many pairs reach each other directly, and which do not, as `status` says it.
    paths: &'static str,
    /// The kind of network to which the last node moves.
    moves_to: &'static str,
}

const TOPOLOGIES: [Topology; 7] = [
    row("two public", &["public", "public"], "1 of 1 pairs direct", "public"),
    row("hole punching", &["public", "restricted", "restricted"], "3 of 3 pairs direct", "restricted"),
    row("forwarded port", &["public", "cone"], "1 of 1 pairs direct", "restricted"),
    row("behind one router", &["public", "restricted", "same"], "3 of 3 pairs direct", "restricted"),
    row(
        "symmetric",
        &["public", "symmetric", "symmetric"],
        "2 of 3 pairs direct, 1 relayed: node2–node3 through node1",
        "symmetric",
    ),
    row("small packets", &["public", "mtu1280"], "1 of 1 pairs direct", "mtu1280"),
    row("slow", &["slow", "slow"], "1 of 1 pairs direct", "slow"),
];

const fn row(
    name: &'static str,
    kinds: &'static [&'static str],
    paths: &'static str,
    moves_to: &'static str,
) -> Topology {
    Topology { name, kinds, paths, moves_to }
}

const ALL: [&str; 3] = [NODES[0], NODES[1], THIRD];

/// `networks.sh` with these arguments, for the nodes of this test's pair.
#[track_caller]
fn networks(action: &str, kind: &str, nodes: &[&str]) {
    let mut command = Command::new(checkout().join("scripts/lab.d/networks.sh"));
    command.args([action, kind].iter().filter(|word| !word.is_empty())).arg(prefix());
    command.args(nodes.iter().map(|node| format!("pid:{}", init_of(node).unwrap()))).env("NETWORKS_PORT", "51820");
    run(command, s(60)).code(0);
}

fn prefix() -> String {
    format!("lab{}", pair_number())
}

/// The IPv4 address on an interface, as `ip` shows it in the given way.
#[track_caller]
fn shown(done: Done) -> String {
    let out = done.ok();
    out.split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_owned()
}

/// Nodes in such networks, with an inventory that has the encrypted network, until the second part is dropped.
#[track_caller]
fn nodes_in(kinds: &[&str]) -> (Lab, impl Drop) {
    let lab = if kinds.len() > 2 { Lab::three_empty(FULL_IMAGE) } else { Lab::empty() };
    lab.edit("name = \"lab\"\n", "name = \"lab\"\nnetwork = \"wireguard\"\n");
    let down = Restore(|| networks("down", "", &[]));
    networks("up", &kinds.join(","), &ALL[..kinds.len()]);
    let mut routers = 0;
    for (node, kind) in ALL.iter().zip(kinds) {
        routers += usize::from(!matches!(*kind, "public" | "slow" | "same"));
        let address = match *kind {
            "public" | "slow" => shown(node_sh(node, "ip -o -4 addr show dev wan0", &[])),
            "cone" => {
                let mut show = Command::new("ip");
                show.args(["-n", &format!("{}-r{routers}", prefix()), "-o", "-4", "addr", "show", "dev", "wan"]);
                shown(run(show, s(10)))
            }
            _ => continue,
        };
        lab.edit(&format!("host = \"{node}\"\n"), &format!("host = \"{node}\"\nendpoint = \"{address}\"\n"));
    }
    (lab, down)
}

/// What a node knows of the network.
#[track_caller]
fn network(node: &str) -> Value {
    serde_json::from_str(&on(node, "cat /opt/horovod/network@lab/network.json")).unwrap()
}

/// Where a node reaches another one.
#[track_caller]
fn endpoint(node: &str, other: &str) -> String {
    let state: Value = serde_json::from_str(&on(node, "cat /opt/horovod/network@lab/state.json")).unwrap();
    state["peers"][other]["endpoint"].to_string()
}

/// Returns whether the worker of a node accepts a connection from another node at this address.
#[track_caller]
fn connects(from: &str, address: &str) -> bool {
    let program = "import socket, sys; socket.create_connection((sys.argv[1], 12345), 2)";
    node_sh(from, "exec python3 -c \"$1\" \"$2\" 2>/dev/null", &[program, address]).code == 0
}

/// Returns whether both nodes reach each other in the encrypted network.
#[track_caller]
fn reach(first: &str, second: &str) -> bool {
    let of = |node: &str| network(node)["address"].as_str().unwrap().to_owned();
    let (of_first, of_second) = (of(first), of(second));
    connects(first, &of_second) && connects(second, &of_first)
}

/// A step that is good if nothing in it fails.
fn step(steps: &mut Steps, name: &str, check: impl FnOnce()) {
    let started = Instant::now();
    let result = match catch_unwind(AssertUnwindSafe(check)) {
        Ok(()) => "ok".to_owned(),
        Err(panic) => format!("FAILED: {}", panic.downcast_ref::<String>().map_or("an assertion", String::as_str)),
    };
    steps.report(name, &result, started);
}

/// A node that gets into another network is reached again, and hvdctl has not been asked.
fn moves(steps: &mut Steps, nodes: &[&str], kind: &str) {
    let (last, others) = nodes.split_last().unwrap();
    step(steps, "a node moves", || {
        let before = endpoint(others[0], last);
        networks("move", kind, &[last]);
        assert!(eventually(s(60), || endpoint(others[0], last) != before), "{before}");
        for other in others {
            assert!(eventually(s(60), || reach(other, last)), "{other} and {last}");
        }
    });
}

/// A node that is not in the inventory any more gets no packet to any other, until it is back.
fn leaves(steps: &mut Steps, lab: &Lab, nodes: &[&str]) {
    let (last, others) = nodes.split_last().unwrap();
    let whole = fs::read_to_string(lab.inventory()).unwrap();
    let less = &whole[..whole.find(&format!("[[node]]\nhost = \"{last}\"")).unwrap()];
    step(steps, "a node leaves", || {
        let addresses: Vec<String> =
            others.iter().map(|other| network(other)["address"].as_str().unwrap().to_owned()).collect();
        let all = || addresses.iter().all(|address| connects(last, address));
        assert!(eventually(s(30), all), "{last} does not reach {addresses:?}");
        fs::write(lab.inventory(), less).unwrap();
        lab.hvdctl(&["up"]).code(0);
        for (other, address) in others.iter().zip(&addresses) {
            assert!(!network(other)["nodes"].to_string().contains(last), "{}", network(other));
            assert!(!connects(last, address), "{last} still reaches {other}");
        }
    });
    fs::write(lab.inventory(), &whole).unwrap();
    steps.step("it comes back", &["up"], "changed the encrypted network");
    step(steps, "it is reached", || assert!(reach(others[0], last)));
}

/// Does what a user does, and returns the steps that failed.
fn tried(topology: &Topology) -> Vec<String> {
    let (lab, _networks) = nodes_in(topology.kinds);
    let nodes = &ALL[..topology.kinds.len()];
    let ranks = nodes.len().to_string();
    let mut steps = Steps::new(topology.name, lab.path(), &lab_dir().join("ssh_config"));
    steps.step("up", &["up"], "started hmesh");
    if !steps.failed.is_empty() {
        return steps.failed;
    }
    steps.step("status", &["status"], &format!("encrypted network: {}\n", topology.paths));
    steps.step("verify", &["verify"], &format!("ok: {ranks} ranks where expected"));
    step(&mut steps, "bench", || {
        let done = lab.hvdctl(&["bench", "--quick", "--only", "network"]);
        // a busy machine makes the bandwidths vary
        assert!(done.code < 2, "{}{}", done.out, done.err);
        let directions = nodes.len() * (nodes.len() - 1);
        let apart = format!("{directions} of {directions} directions cannot be measured without the encrypted network");
        let is_slow = done.out.contains("the exchange of the gradients of 100 million parameters takes about");
        assert!(done.out.contains(&apart), "{}", done.out);
        assert!(is_slow || topology.name != "slow", "{}", done.out);
    });
    for index in [0, 2] {
        let (example, options, says) = TRAININGS[index];
        let project = format!("{}/examples/{example}", checkout().display());
        steps.step(&format!("train {example}"), &[&["train", &project, "-np", &ranks], options].concat(), says);
    }
    moves(&mut steps, nodes, topology.moves_to);
    leaves(&mut steps, &lab, nodes);
    step(&mut steps, "no job is left", no_job_is_left);
    steps.step("down", &["down", "--network"], "removed hworker, hmesh");
    steps.failed
}

#[test]
fn a_cluster_in_each_topology() {
    let only = std::env::var("HVDCTL_TEST_VARIANT").unwrap_or_default();
    let chosen: Vec<&Topology> = TOPOLOGIES.iter().filter(|topology| topology.name.contains(&only)).collect();
    assert!(!chosen.is_empty(), "there is no topology {only:?}");
    let failed: Vec<String> = chosen.into_iter().flat_map(tried).collect();
    assert!(failed.is_empty(), "{} steps failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn a_node_whose_network_drops_udp_is_named_and_the_others_are_up() {
    let (lab, _networks) = nodes_in(&["public", "restricted", "blocked"]);
    let done = lab.hvdctl(&["up"]).code(3);
    done.complains(&["node3: cannot connect it to the encrypted network: it reaches no other node on UDP port 51820"]);
    assert!(reach("node1", "node2"));
    let done = lab.hvdctl(&["--on", "node1,node2", "run", "-np", "2", "--", "hostname"]).code(0);
    done.says(&["[0 node1] node1", "[1 node2] node2"]);
}
