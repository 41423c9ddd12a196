//! `bench`: a clean network accuses no node, a slow one is found, and nothing is left in the workers.

use crate::process::{eventually, s};
use crate::state::{FULL, Lab, NODES, Restore, no_job_is_left, no_session_is_left, node_sh, on, processes};
use serde_json::Value;
use std::process::Command;

/// The processes of the measurement on both nodes.
fn programs() -> String {
    NODES.map(|node| processes(node, "Measures the network")).concat()
}

#[test]
fn the_network_between_two_workers() {
    let lab = Lab::up();
    let clean = lab.hvdctl(&["bench", "--quick", "--only", "network"]);
    let clean = clean.says(&["NODE ", "b/s from the row's node to the column's node", "node1 ", "node2 "]);
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
        document = serde_json::from_str(&lab.hvdctl(&["bench", "--quick", "--only", "network", "--json"]).out).unwrap();
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

/// Puts a library on a node which changes what a rank there receives from an allreduce of MPI. Returns its path in
/// containers.
fn put_wrong_sum(node: &str) -> &'static str {
    let dir = tempfile::tempdir().unwrap();
    let (source, library) =
        (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/wrong_sum.c"), dir.path().join("wrong_sum.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-s", "-o"]).arg(&library).arg(source);
    assert!(compiler.status().unwrap().success());
    let encoded = Command::new("base64").args(["-w0"]).arg(&library).output().unwrap();
    assert!(encoded.status.success());
    let encoded = String::from_utf8(encoded.stdout).unwrap();
    node_sh(node, "printf %s \"$1\" | base64 -d >/opt/wrong_sum.so", &[&encoded]).code(0);
    "/opt/wrong_sum.so"
}

#[test]
fn the_collectives_of_a_job_and_a_rank_whose_sums_are_wrong() {
    let lab = Lab::up();
    let bench = ["bench", "--only", "collectives", "--quick"];
    let estimate = ["--sizes", "1K,64K", "--params", "124M", "--step", "1.1s"];
    let good = lab.hvdctl(&[&bench[..], &estimate, &["--json"]].concat()).code(0);
    let document: Value = serde_json::from_str(&good.out).unwrap();
    assert_eq!(document["verdict"], "all results of 2 ranks are correct", "{document:#}");
    let exchanges = document["collectives"]["exchanges"].as_array().unwrap();
    let measured = |operation: &str, bytes: u64| {
        exchanges.iter().any(|one| one["collective"] == operation && one["bytes"] == bytes && one["dtype"] == "float32")
    };
    for operation in ["allreduce", "allgather", "reducescatter", "broadcast", "alltoall"] {
        assert!(measured(operation, 1024) && measured(operation, 65536), "{operation}: {document:#}");
    }
    let speeds = document["collectives"]["speeds"].as_array().unwrap();
    assert_eq!(speeds.iter().map(|speed| &speed["node"]).collect::<Vec<_>>(), ["node1", "node2"]);
    assert!(
        document["estimate"]["text"].as_str().unwrap().contains("a step on the wire, 1.1 s of computing"),
        "{document:#}"
    );
    no_job_is_left();

    let library = put_wrong_sum("node2");
    lab.edit(
        "host = \"node2\"",
        &format!("host = \"node2\"\nmounts = [\"{library}:{library}:ro\"]\nenv = {{ LD_PRELOAD = \"{library}\" }}"),
    );
    let wrong = lab.hvdctl(&[&bench[..], &["--mpi", "--sizes", "1K"]].concat()).code(1);
    let wrong = wrong.says(&["wrong: rank 1 on node2: allreduce of float32, 1K: ", "expected"]);
    let verdict = wrong.out.lines().last().unwrap();
    assert!(verdict.starts_with("failed: rank 1 on node2 is wrong: allreduce of float32, 1K"), "{}", wrong.out);
    assert!(!wrong.out.contains("node1 is wrong") && !wrong.out.contains("rank 0 on node1: "), "{}", wrong.out);
    let verify = lab.hvdctl(&["verify", "--full", "--mpi"]).code(1);
    verify.says(&["failed: rank 1: allreduce of float32, 1K: "]);
    no_job_is_left();
    // a benchmark is no job that has outputs
    lab.hvdctl(&["fetch"]).code(1).complains(&["there is no job with a project"]);

    let bench = lab.start(&["bench", "--only", "collectives"]);
    let pid = bench.pid();
    assert!(eventually(s(30), || NODES.iter().all(|node| !processes(node, "collectives.py").is_empty())));
    bench.signal("INT");
    bench.end(s(30)).code(130);
    no_job_is_left();
    no_session_is_left(pid);
    on("node2", "rm /opt/wrong_sum.so");
}
