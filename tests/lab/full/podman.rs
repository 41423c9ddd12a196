//! The main path on nodes whose engine is Podman, of Debian 12 and 13.

use super::variants::{checkout, lab};
use crate::process::{Running, run, s};
use crate::state::{FULL_IMAGE, Restore, hvdctl_in};
use std::fs;
use std::path::Path;
use std::process::Command;

const NODES: [&str; 2] = ["node1", "node2"];

/// What a shell script prints on a node.
#[track_caller]
fn on(node: &str, script: &str) -> String {
    lab(&["sh", node, "sh", "-ec", script]).ok()
}

fn hvdctl(dir: &Path, args: &[&str]) -> Command {
    let mut command = hvdctl_in(dir);
    command.args(args);
    command
}

/// The containers and volumes of a node, its images, and files of hvdctl.
fn found(node: &str) -> String {
    on(
        node,
        "podman ps -aq --external; podman volume ls -q; podman images -q | sort -u
         ls -d /opt/horovod 2>/dev/null || :; find /tmp /var/tmp /root -name '*hvdctl*'",
    )
}

#[test]
fn the_main_path_with_podman() {
    let _removed = Restore(|| drop(lab(&["up", "--nodes", "0"])));
    lab(&["up", "--engine", "podman", "--distro", "bookworm,trixie"]).ok();
    let dir = tempfile::tempdir().unwrap();
    let inventory = fs::read_to_string(checkout().join(".lab/inventory.toml")).unwrap();
    let config = format!("ssh_config = \"{}\"", checkout().join(".lab/ssh_config").display());
    let inventory = inventory.replace("ssh_config = \"ssh_config\"", &format!("{config}\nkey_type = \"ed25519\""));
    fs::write(dir.path().join("inventory.toml"), &inventory).unwrap();
    let hvdctl = |args: &[&str]| run(hvdctl(dir.path(), args), s(300));
    let before = NODES.map(found);

    hvdctl(&["keys", "push"]).code(0);
    hvdctl(&["up"]).code(0).says(&["start hworker"]);
    hvdctl(&["status"]).code(0).says(&["Podman 4.3", "Podman 5."]);
    hvdctl(&["verify"]).code(0).says(&["ok: 2 ranks where expected"]);
    let doctor = hvdctl(&["doctor"]);
    assert!(!doctor.out.contains("Docker") && doctor.out.contains("Podman 5."), "{}", doctor.out);
    assert_eq!(hvdctl(&["exec", "-c", "--", "nvidia-smi", "-L"]).ok().matches("GPU 0: ").count(), 2);
    let digits = checkout().join("examples/digits");
    let digits = digits.to_str().unwrap();
    let train = ["train", digits, "-np", "2", "--gloo", "--", "python", "train.py", "--epochs", "4"];
    hvdctl(&train).code(0).says(&["[0 node1] test accuracy 0.9"]);
    hvdctl(&["fetch", "--force", "-o", "fetched"]).code(0);
    assert!(dir.path().join("fetched/checkpoint.pt").exists());

    // a job that is stopped by another command
    let waits = "echo ready; while :; do sleep 0.1; done";
    let mut job = Running::start(self::hvdctl(dir.path(), &["run", "-np", "2", "--mpi", "--", "sh", "-c", waits]), &[]);
    job.until(&["[0 node1] ready", "[1 node2] ready"], s(90));
    hvdctl(&["stop"]).code(0);
    job.end(s(60)).code(143);
    for node in NODES {
        let marked = "grep -lz '^HVDCTL_JOB=' /proc/[0-9]*/environ 2>/dev/null | wc -l";
        assert_eq!(on(node, marked).trim(), "0", "{node}");
    }

    // an engine that is asked for and absent
    fs::write(dir.path().join("docker.toml"), inventory.replace("[cluster]\n", "[cluster]\nengine = \"docker\"\n"))
        .unwrap();
    let refused = hvdctl(&["-i", "docker.toml", "status"]);
    assert!(refused.err.contains("docker: command not found"), "{}", refused.err);

    hvdctl(&["down", "--purge", "-y"]).code(0).says(&["removed hworker"]);
    assert_eq!(NODES.map(found), before, "{FULL_IMAGE} stays, and nothing else");
}
