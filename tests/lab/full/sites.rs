//! A site's Slurm as sites set it up: names of nodes that are no names of hosts, commands that only login shells find, a
//! task prolog with a scratch directory on each node, jobs and nodes that other users do not see.

use super::machines::{Machines, checkout, on};
use crate::process::{Done, Running, eventually, run, s};
use crate::state::hvdctl_in;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The directory of this machine that the machines share.
const SHARED: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/shared-at-a-site");

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = hvdctl_in(dir);
    command.args(args);
    command
}

/// Runs `hvdctl` with the arguments.
#[track_caller]
fn hvdctl(dir: &Path, args: &[&str]) -> Done {
    run(command(dir, args), s(120))
}

/// The newest job as `jobs` shows it.
fn newest(dir: &Path) -> Value {
    let document: Value = serde_json::from_str(&hvdctl(dir, &["--json", "jobs"]).ok()).unwrap();
    document["jobs"][0].clone()
}

/// Ranks know who they are and have the directory of their own node.
fn ranks_are_placed(dir: &Path, launcher: &str) {
    let script = "echo rank $SLURM_PROCID/$SLURM_NTASKS on $(hostname) gpu $CUDA_VISIBLE_DEVICES scratch ${TMPDIR%-*}; \
                  test -d \"$TMPDIR\"";
    let done = hvdctl(dir, &["run", "-np", "2", "--launcher", launcher, "--", "sh", "-c", script]).code(0);
    done.says(&[
        "[0 gpu-a01] rank 0/2 on node1 gpu 0 scratch /var/tmp/scratch-gpu-a01\n",
        "[1 gpu-a02] rank 1/2 on node2 gpu 0 scratch /var/tmp/scratch-gpu-a02\n",
    ]);
}

/// A job that the site preempts is started again, and both of its halves are shown.
fn preempted_jobs_go_on(dir: &Path) {
    let script = "echo attempt $HVDCTL_RESTART of $RANK; [ $HVDCTL_RESTART = 0 ] || exit 0; \
                  trap 'sleep 3; echo saved $RANK; exit 0' TERM; while :; do sleep 0.2; done";
    let options = ["run", "-np", "2", "--launcher", "env", "--restarts", "1", "--sbatch=--partition=graceful", "--"];
    let mut job = Running::start(command(dir, &[&options[..], &["sh", "-c", script]].concat()), &[]);
    job.until(&["[0 gpu-a01] attempt 0 of 0", "[1 gpu-a02] attempt 0 of 1"], s(60));
    let preempted = newest(dir);
    let (id, number) = (preempted["id"].as_str().unwrap().to_owned(), preempted["slurm"]["job"].to_string());
    let urgent = ["run", "-np", "2", "--launcher", "env", "--sbatch=--partition=urgent", "--", "true"];
    run(command(dir, &urgent), s(120)).code(0);
    on("node1", &format!("sleep 2; /opt/slurm/bin/scontrol update jobid={number} StartTime=now"));
    let halves =
        ["[0 gpu-a01] saved 0", "[1 gpu-a02] saved 1", "[0 gpu-a01] attempt 1 of 0", "[1 gpu-a02] attempt 1 of 1"];
    job.end(s(200)).code(0).says(&halves);
    hvdctl(dir, &["logs", &id]).code(0).says(&halves);
    hvdctl(dir, &["attach", &id]).code(0).says(&halves);
}

/// A site's Slurm of this distribution.
fn jobs_run_at_a_site(suite: &str) {
    let _ = fs::remove_dir_all(SHARED);
    fs::create_dir_all(SHARED).unwrap();
    let shared = format!("{SHARED}:/srv/shared");
    let options = ["--engine", "slurm", "--site", "--distro", suite, "--names", "own", "--share", &shared];
    let _machines = Machines::up(&options);
    let dir = tempfile::tempdir().unwrap();
    let activate = if suite == "trixie" { "activate = [\"module load torch\"]\n" } else { "" };
    let inventory = format!(
        "[cluster]\nname = \"lab\"\nssh_config = \"{}\"\nconnection_idle_s = 0\n\n[slurm]\nhost = \"shared@node1\"\n\
         gres = \"gpu:1\"\n{activate}",
        checkout().join(".lab/ssh_config").display()
    );
    fs::write(dir.path().join("inventory.toml"), inventory).unwrap();
    let dir = dir.path();
    for launcher in ["srun", "env"] {
        ranks_are_placed(dir, launcher);
    }
    preempted_jobs_go_on(dir);
    let job = Running::start(command(dir, &["run", "-np", "2", "--launcher", "srun", "--", "sleep", "600"]), &[]);
    assert!(eventually(s(60), || newest(dir)["state"] == "running"), "{}", newest(dir));
    hvdctl(dir, &["stop"]).code(0);
    job.end(s(60)).code(143).complains(&["was stopped"]);
    for node in ["node1", "node2"] {
        assert!(eventually(s(20), || on(node, "pgrep -u shared -x 'sleep|sh|srun' || :").is_empty()), "left on {node}");
    }
}

#[test]
fn jobs_run_at_sites_with_slurm_20_11() {
    jobs_run_at_a_site("bullseye");
}

#[test]
fn jobs_run_at_sites_with_slurm_24_11() {
    jobs_run_at_a_site("trixie");
}
