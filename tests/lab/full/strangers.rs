//! The stranger of `mallory.rs` on nodes of a site's Slurm, where all nodes have the same home directory.

use super::machines::{Machines, checkout, on};
use crate::mallory::{NAMES, PROBE, backwards, compare, gains};
use crate::process::{Running, run, s};
use crate::state::{NODES, hvdctl_in};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The directory of this machine that the machines share.
const SHARED: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/shared-with-strangers");

/// The file at which the stranger stops.
const STOP: &str = "/srv/shared/stop";

/// A directory of a group that the stranger belongs to, and one of hvdctl's below it.
const TEAM: &str = "/srv/shared/team";

/// In a file for `--env-file`, and in the start-up file of the login.
const SECRETS: [&str; 2] = ["of-the-file", "of-the-login"];

/// `mallory` on a node, without any right but to the directory of her group.
fn stranger(node: &str) -> Running {
    let ids: Vec<u32> = on(node, "id -u mallory; id -g mallory").lines().map(|line| line.parse().unwrap()).collect();
    let settings = json!({
        "user": ids, "limit": 600, "stop": STOP, "names": NAMES, "secrets": backwards(&SECRETS),
        "places": ["/run", "/tmp", "/var/tmp", "/dev/shm"], "own": ["/srv/shared/home/shared"],
    });
    let mut command = Command::new(checkout().join("scripts/lab"));
    command.args(["sh", node, "python3", "-c", PROBE, &settings.to_string()]);
    let mut running = Running::start(command, &[]);
    running.until(&["tries\n"], s(30));
    running
}

fn hvdctl(dir: &Path, args: &[&str]) -> Command {
    let mut command = hvdctl_in(dir);
    command.args(args);
    command
}

#[test]
fn a_stranger_gets_only_what_is_listed_of_a_job_under_slurm() {
    let _ = fs::remove_dir_all(SHARED);
    fs::create_dir_all(SHARED).unwrap();
    let shared = format!("{SHARED}:/srv/shared");
    let _machines = Machines::up(&["--engine", "slurm", "--names", "own", "--share", &shared]);
    for node in NODES {
        on(node, "groupadd -g 4242 team && usermod -aG team mallory && usermod -aG team shared");
    }
    on("node1", &format!("install -d -m 2775 -g team {TEAM}"));
    on("node1", &format!("echo export WANDB_API_KEY={} >>~shared/.profile", SECRETS[1]));
    let dir = tempfile::tempdir().unwrap();
    let inventory = |state: &str| {
        let ssh_config = checkout().join(".lab/ssh_config");
        let text = format!(
            "[cluster]\nname = \"lab\"\nssh_config = \"{}\"\nconnection_idle_s = 0\n\n[slurm]\nhost = \"shared@node1\"\n\
             gres = \"gpu:1\"\n{state}",
            ssh_config.display()
        );
        fs::write(dir.path().join("inventory.toml"), text).unwrap();
    };
    let env_file = dir.path().join("secrets");
    fs::write(&env_file, format!("TOKEN={}\n", SECRETS[0])).unwrap();
    fs::set_permissions(&env_file, Permissions::from_mode(0o600)).unwrap();
    let env_file = env_file.to_str().unwrap();
    let job = ["run", "-np", "2", "--launcher", "horovodrun", "--gloo", "--env-file", env_file, "--", "sh", "-c"];

    // whoever may write above the directory puts another one in its place
    inventory(&format!("state_dir = \"{TEAM}/hvdctl\"\n"));
    let refused = run(hvdctl(dir.path(), &[&job[..], &["true"]].concat()), s(120));
    assert_eq!(refused.code, 125, "{}", refused.out);
    refused.complains(&[TEAM, "team"]);
    assert_eq!(on("node1", &format!("ls -A {TEAM}")), "");

    inventory("");
    let strangers = NODES.map(stranger);
    let mut running = Running::start(hvdctl(dir.path(), &[&job[..], &["echo ready; exec sleep 600"]].concat()), &[]);
    running.until(&["[0 node1] ready", "[1 node2] ready"], s(120));
    on("node1", &format!("sleep 3; touch {STOP}"));
    let mut gained: BTreeSet<String> =
        strangers.into_iter().flat_map(|stranger| gains("node", &stranger.end(s(60)).code(0).out)).collect();
    run(hvdctl(dir.path(), &["stop"]), s(60)).code(0);
    running.end(s(60)).code(143);
    // Slurm's own
    gained.retain(|line| ![" connect srun at ", " connect slurmstepd at "].iter().any(|port| line.contains(port)));
    compare(&gained, &[]);
}
