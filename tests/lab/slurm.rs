//! The cluster's queue: jobs wait for their turn, and nothing is left of it.

use crate::process::{eventually, s};
use crate::state::{Lab, NODES, no_job_is_left, on, ours, tell_jobs};
use serde_json::Value;

/// Says where it is, and waits for a file of its own name in the directory of its job.
const WAITS: &str = "echo ready; while [ ! -e /opt/horovod/jobs/$HVDCTL_JOB/go-$0 ]; do sleep 0.1; done; echo gone";

fn go(name: &str) {
    NODES.iter().for_each(|node| tell_jobs(node, &format!("go-{name}"), ""));
}

/// Submits a job of this name, and returns its id.
#[track_caller]
fn submit(lab: &Lab, name: &str, ranks: &str, options: &[&str]) -> String {
    let job = ["run", "-d", "--name", name, "-np", ranks, "--launcher", "env"];
    lab.hvdctl(&[&job[..], options, &["--", "sh", "-c", WAITS, name]].concat()).ok().trim().to_owned()
}

/// The state of a job, and what it waits for.
fn state(lab: &Lab, name: &str) -> (String, String) {
    let document: Value = serde_json::from_str(&lab.hvdctl(&["--json", "jobs"]).ok()).unwrap();
    let job = document["jobs"].as_array().unwrap().iter().find(|job| job["name"] == name).cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&job["state"]), text(&job["slurm"]["reason"]))
}

#[track_caller]
fn is(lab: &Lab, name: &str, wanted: &str) {
    assert!(eventually(s(60), || state(lab, name).0 == wanted), "{name}: {:?}", state(lab, name));
}

/// The state of a node in Slurm, and why it takes no jobs.
fn node(lab: &Lab, name: &str) -> (String, String) {
    let document: Value = serde_json::from_str(&lab.hvdctl(&["--json", "slurm", "status"]).ok()).unwrap();
    let nodes = document["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|node| node["node"] == name).cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&node["state"]), text(&node["reason"]))
}

#[test]
fn jobs_have_their_turns_in_a_slurm_of_the_clusters_own() {
    let lab = Lab::up();
    lab.hvdctl(&["run", "-np", "1", "--sbatch=--time=5", "--", "true"])
        .code(2)
        .complains(&["--sbatch=--time=5 is for jobs under Slurm", "hvdctl slurm up"]);
    lab.hvdctl(&["slurm", "status"]).code(1).complains(&["the cluster has no Slurm of its own", "hvdctl slurm up"]);
    lab.hvdctl(&["slurm", "up"]).code(0).says(&["node[1-2] (2): started hslurm"]);
    lab.hvdctl(&["slurm", "up"]).code(0).says(&["node[1-2] (2): unchanged"]);
    let modes = "stat -c '%a %n' /opt/horovod/slurm@lab /opt/horovod/slurm@lab/munge.key";
    NODES.iter().for_each(|node| {
        assert_eq!(on(node, modes), "700 /opt/horovod/slurm@lab\n600 /opt/horovod/slurm@lab/munge.key\n");
    });
    lab.hvdctl(&["down"]).code(1).complains(&["the cluster's queue runs there", "hvdctl slurm down"]);
    lab.hvdctl(&["run", "-np", "1", "--sbatch=--constraint=none", "--", "true"])
        .code(125)
        .complains(&["nvalid feature"]);

    // the first has both nodes, the others wait, and what waits can be stopped by hvdctl or Slurm
    let first = submit(&lab, "first", "2", &[]);
    is(&lab, "first", "running");
    for name in ["second", "third"] {
        submit(&lab, name, "2", &[]);
    }
    assert!(eventually(s(20), || state(&lab, "second") == ("queued".into(), "Resources".into())));
    lab.hvdctl(&["jobs"]).code(0).says(&["queued", "it waits in Slurm's queue as job "]);
    lab.hvdctl(&["logs", "second"]).code(0).complains(&["it waits in Slurm's queue"]);
    lab.hvdctl(&["status"]).code(0).says(&[&first]);
    lab.hvdctl(&["stop", "second"]).code(0);
    is(&lab, "second", "stopped");
    let cancel = "scancel $(squeue -h -o '%i %j' | sed -n 's/ third[.].*//p')";
    lab.hvdctl(&["slurm", "exec", "--", "sh", "-c", cancel]).code(0);
    is(&lab, "third", "stopped");
    // slurmctld, slurmd and the agent may be killed meanwhile
    let kill = "for file in /run/hvdctl-*.pid; do kill -9 $(cat $file); done";
    on("node1", &format!("docker exec hslurm sh -c '{kill}'"));
    go("first");
    is(&lab, "first", "succeeded");
    let attached = lab.hvdctl(&["attach", "first"]).code(0);
    attached.says(&["[0 node1] ready", "[1 node2] gone"]);
    no_job_is_left();

    // a job that was not submitted to Slurm keeps its node drained there, and only that
    submit(&lab, "outside", "1", &["--scheduler", "ssh", "--on", "node2"]);
    assert!(eventually(s(30), || node(&lab, "node2").1.starts_with("hvdctl: job ")), "{:?}", node(&lab, "node2"));
    submit(&lab, "both", "2", &[]);
    lab.hvdctl(&["run", "-np", "1", "--", "hostname"]).code(0).says(&["[0 node1] node1"]);
    assert_eq!(state(&lab, "both").0, "queued");
    go("outside");
    is(&lab, "both", "running");

    lab.hvdctl(&["slurm", "down"]).code(1).complains(&["Slurm has 1 job in its queue", "hvdctl slurm down --force"]);
    lab.hvdctl(&["slurm", "down", "--force"]).code(0).says(&["node[1-2] (2): removed hslurm"]);
    assert_eq!(state(&lab, "both").0, "stopped");
    no_job_is_left();
    for node in NODES {
        assert_eq!(ours(node).lines().filter(|line| line.contains("hslurm")).count(), 0);
        assert_eq!(on(node, "ls -A /opt/horovod | grep slurm; pgrep -l 'slurm|munge'; :"), "");
    }
    lab.hvdctl(&["run", "-np", "2", "--launcher", "env", "--", "true"]).code(0);
}
