//! `bench`: a clean network accuses no node, a slow one is found, and nothing is left in the workers.

use crate::process::{eventually, s};
use crate::state::{FULL, Lab, NODES, Restore, no_session_is_left, node_sh, processes};
use serde_json::Value;

/// The processes of the measurement on both nodes.
fn programs() -> String {
    NODES.map(|node| processes(node, "Measures the network")).concat()
}

#[test]
fn the_network_between_two_workers() {
    let lab = Lab::up();
    let clean = lab.hvdctl(&["bench", "--quick"]);
    let clean = clean.says(&["NODE ", "b/s from the node of the row to that of the column", "node1 ", "node2 "]);
    // other tests may leave the processors no time
    let verdict = clean.out.lines().last().unwrap();
    let [good, unclear] = [
        "ok: no node and no connection is slower than the others",
        "unclear: the bandwidths vary too much to be compared",
    ];
    assert!((clean.code == 0 && verdict == good) || (clean.code == 1 && verdict == unclear), "{}", clean.out);
    assert_eq!(programs(), "");

    if FULL {
        a_slow_direction_is_found(&lab);
    }

    let bench = lab.start(&["bench"]);
    let pid = bench.pid();
    assert!(eventually(s(20), || programs().lines().count() >= 2));
    bench.signal("INT");
    bench.end(s(20)).code(130).complains(&["interrupted"]);
    assert!(eventually(s(10), || programs().is_empty()), "{}", programs());
    no_session_is_left(pid);
}

fn a_slow_direction_is_found(lab: &Lab) {
    // far below what the other direction reaches, also while other tests need the processors
    let script = "tc qdisc add dev eth0 root tbf rate 20mbit burst 32kb latency 50ms";
    let restore = Restore(|| drop(node_sh("node2", "tc qdisc del dev eth0 root", &[])));
    node_sh("node2", script, &[]).code(0);
    let mut document = Value::Null;
    let is_comparable = eventually(s(15), || {
        document = serde_json::from_str(&lab.hvdctl(&["bench", "--quick", "--json"]).out).unwrap();
        document["verdict"] != "the bandwidths vary too much to be compared"
    });
    drop(restore);
    assert!(is_comparable && document["ok"] == false, "{document:#}");
    let finding = &document["findings"][0];
    let text = finding["text"].as_str().unwrap();
    assert_eq!(finding["nodes"].as_array().unwrap().last(), Some(&"node1".into()), "{document:#}");
    assert!(text.starts_with("node2 → node1 transfers only ") && document["verdict"] == text, "{document:#}");
    assert_eq!(programs(), "");
}
