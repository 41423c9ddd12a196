//! Nodes that lose their power or their network under a job, with the time-outs that hvdctl has by default.

use crate::endings::{SLEEP, newest, sleeping};
use crate::pool::power;
use crate::process::{Running, eventually, s};
use crate::state::{Lab, NODES, Restore, no_job_is_left, node_sh, on, ours, rank_processes};

#[test]
fn a_node_restarts_or_loses_power_during_a_job() {
    let lab = Lab::up();
    let comes_back = |node: &str| {
        let ready = "test -e /run/node-ready && docker version >/dev/null 2>&1";
        assert!(eventually(s(90), || node_sh(node, ready, &[]).code == 0), "{node} did not come back");
    };
    let restart = |node: &str| {
        power(&["restart", "-t", "1"], node);
        comes_back(node);
    };
    // it is back only when the job has ended and the other node is free of it
    let lose_power = |node: &str, other: &str, run: Running| {
        power(&["kill"], node);
        let on_again = Restore(|| power(&["start"], node));
        let done = run.end(s(120));
        let left = || rank_processes(other) + &ours(other);
        assert!(eventually(s(60), || left() == "hworker running\n"), "{}", left());
        drop(on_again);
        comes_back(node);
        done
    };
    for controller in ["--gloo", "--mpi"] {
        lab.hvdctl(&["up"]).code(0);
        let first = sleeping(&lab, controller, SLEEP);
        let done = if controller == "--gloo" {
            restart("node2");
            first.end(s(120))
        } else {
            lose_power("node2", "node1", first)
        };
        assert!(done.code != 0, "{}{}", done.out, done.err);
        assert!(eventually(s(60), || newest(&lab)["ended"].is_string()), "{}", newest(&lab));
        no_job_is_left();
        let job = newest(&lab);
        assert!(
            job["state"] == "failed" && job["reason"].as_str().unwrap().contains("rank 1 on node2 is gone"),
            "{job}"
        );
        lab.hvdctl(&["logs"]).code(0).says(&["[0 node1] ready", "[1 node2] ready"]);
    }

    // the launcher's own node: no process is left to record anything
    for controller in ["--gloo", "--mpi"] {
        let second = sleeping(&lab, controller, SLEEP);
        let done = if controller == "--mpi" {
            restart("node1");
            second.end(s(120))
        } else {
            lose_power("node1", "node2", second)
        };
        assert!(done.code != 0, "{}{}", done.out, done.err);
        assert!(eventually(s(90), || rank_processes("node2").is_empty()), "{}", rank_processes("node2"));
        let job = newest(&lab);
        // if the engine was shut down in order and gave the job supervisor time, that is the reason
        assert!(matches!(job["state"].as_str(), Some("lost" | "failed")) && job["reason"].is_string(), "{job}");
        lab.hvdctl(&["logs"]).code(0).says(&["[0 node1] ready", "[1 node2] ready"]);
        lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(0);
        no_job_is_left();
    }
}

#[test]
fn the_network_is_cut_during_unwatched_jobs() {
    let lab = Lab::empty();
    lab.edit("gpus = 1", "gpus = 0\nslots = 2");
    lab.hvdctl(&["up"]).code(0);
    // one of each controller at the same time
    let ids = ["--gloo", "--mpi"].map(|controller| {
        let half = ["--gpus-per-node", "1", "--map-by", "node", controller, "--", "sh", "-c", SLEEP];
        lab.hvdctl(&[&["run", "-d", "-np", "2"][..], &half].concat()).ok().trim().to_owned()
    });
    let rule = "INPUT -s $(getent hosts node1 | cut -d' ' -f1) -j DROP";
    on("node2", &format!("iptables -w 10 -I {rule}"));
    let whole = Restore(|| {
        on("node2", &format!("iptables -w 10 -D {rule}"));
    });
    // neither side waits forever for the other
    for node in NODES {
        assert!(eventually(s(150), || rank_processes(node).is_empty()), "{node}: {}", rank_processes(node));
    }
    for id in ids {
        let job = || -> serde_json::Value {
            let document: serde_json::Value = serde_json::from_str(&lab.hvdctl(&["--json", "jobs"]).ok()).unwrap();
            let jobs = document["jobs"].as_array().unwrap();
            jobs.iter().find(|job| job["id"] == id.as_str()).unwrap_or_else(|| panic!("{document}")).clone()
        };
        assert!(eventually(s(90), || job()["ended"].is_string()), "{}", job());
        let job = job();
        assert_eq!(job["state"], "failed", "{job}");
        assert!(job["reason"].as_str().unwrap().starts_with("rank 1 on node2 is gone"), "{job}");
    }
    // the worker of the second was not asked to end, and notices
    assert!(eventually(s(150), || ours("node2") == "hworker running\n"), "{}", ours("node2"));
    drop(whole);
    no_job_is_left();
    assert_eq!(ours("node1"), "hworker running\n");
}
