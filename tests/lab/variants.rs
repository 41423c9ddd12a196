//! Unlike machines: everything that a user does on a new cluster, from `init` to `down`, one step after the other.
//! `full::variants` has a table of machines that are started for this; here are those that a pair of the pool can
//! become.

use crate::operator::own_home;
use crate::pool::lab_dir;
use crate::process::{Done, run, s};
use crate::state::{FULL, FULL_IMAGE, IMAGE, Lab, NODES, Restore, hvdctl_in, no_job_is_left, node_sh};
use std::fs;
use std::io::{Write, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

/// The launchers, each with the example that is trained under it and the text that shows its success.
pub const TRAININGS: [(&str, &[&str], &str); 6] = [
    ("digits", &["--gloo", "--", "python", "train.py", "--epochs", "4"], "[0 node1] test accuracy 0.9"),
    ("digits", &["--mpi", "--", "python", "train.py", "--epochs", "4"], "[0 node1] test accuracy 0.9"),
    ("digits_ddp", &["--launcher", "torchrun", "--", "python", "train.py", "--epochs", "3"], "[0 node1] accuracy: 0.9"),
    ("digits_ddp", &["--launcher", "env", "--", "python", "train.py", "--epochs", "3"], "[0 node1] accuracy: 0.9"),
    ("mpi_pi", &["--launcher", "mpirun"], "[0 node1] pi is about 3.1415926536"),
    ("mpi_pi", &["--launcher", "srun"], "[0 node1] pi is about 3.1415926536"),
];

/// The steps of a user with the two nodes of a cluster, and those that failed.
pub struct Steps<'a> {
    variant: &'a str,
    dir: &'a Path,
    home: tempfile::TempDir,
    /// A line for each step that failed.
    pub failed: Vec<String>,
}

impl Steps<'_> {
    /// A directory without an inventory, and a home whose ssh configuration is the lab's.
    pub fn new<'a>(variant: &'a str, dir: &'a Path, ssh_config: &Path) -> Steps<'a> {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".ssh")).unwrap();
        fs::write(home.path().join(".ssh/config"), format!("Include {}\n", ssh_config.display())).unwrap();
        Steps { variant, dir, home, failed: Vec::new() }
    }

    /// Runs hvdctl; the step is good if it ends with 0, in time, and its output contains the text.
    pub fn step(&mut self, name: &str, args: &[&str], says: &str) {
        let started = Instant::now();
        let mut command = hvdctl_in(self.dir);
        command.env("HOME", self.home.path()).env("PATH", own_home()).args(args);
        let result = match catch_unwind(AssertUnwindSafe(|| run(command, s(240)))) {
            Ok(done) if done.code == 0 && done.out.contains(says) => "ok".to_owned(),
            Ok(done) => failure(&done),
            Err(_) => "FAILED: it did not end".to_owned(),
        };
        self.report(name, &result, started);
    }

    /// Prints the result of a step, at once where there is a table of them, and keeps it if it is a failure.
    pub fn report(&mut self, step: &str, result: &str, started: Instant) {
        let line = format!("{}: {step}: {result} ({:.1} s)", self.variant, started.elapsed().as_secs_f64());
        if FULL {
            // not with the macro, whose output appears only if the test fails
            let _ = writeln!(stderr(), "{line}");
        }
        if result != "ok" {
            self.failed.push(line);
        }
    }

    /// From `init` to `down`, with the inventory changed in between and one training for each of these launchers. A
    /// step is tried even if an earlier one failed, except that nothing is possible without an inventory.
    pub fn run_all(&mut self, edit: impl Fn(String) -> String, trainings: &[usize]) {
        self.step("init", &["init", NODES[0], NODES[1]], "wrote inventory.toml with 2 nodes");
        let inventory = self.dir.join("inventory.toml");
        let Ok(text) = fs::read_to_string(&inventory) else { return };
        let text = edit(text.replacen("# key_type = \"rsa\"", "key_type = \"ed25519\"", 1));
        fs::write(inventory, text).unwrap();
        self.step("keys push", &["keys", "push"], "node2: wrote ");
        self.step("up", &["up"], "started hworker");
        self.step("verify", &["verify"], "ok: 2 ranks where expected");
        for &index in trainings {
            let (example, options, says) = TRAININGS[index];
            let project = format!("{}/examples/{example}", env!("CARGO_MANIFEST_DIR"));
            let launcher = options[..options.len().min(2)].join(" ");
            let launcher = launcher.trim_end_matches(" --");
            self.step(
                &format!("train {example} {launcher}"),
                &[&["train", &project, "-np", "2"], options].concat(),
                says,
            );
            if example == "digits" {
                self.step("fetch", &["fetch", "--force", "-o", "fetched"], "fetched");
                let started = Instant::now();
                if fs::remove_file(self.dir.join("fetched/checkpoint.pt")).is_err() {
                    self.report("fetch", "FAILED: there is no checkpoint.pt", started);
                }
            }
        }
        self.step("down", &["down", "--purge", "-y"], "removed hworker");
    }
}

/// The first lines of an error, as one.
fn failure(done: &Done) -> String {
    let lines = done.err.lines().filter(|line| line.starts_with("error: ") || line.starts_with("hint: "));
    let mut lines: Vec<&str> = lines.take(4).collect();
    if lines.is_empty() {
        lines = done.err.lines().chain(done.out.lines()).rev().take(4).collect();
        lines.reverse();
    }
    format!("FAILED with {}: {}", done.code, lines.join(" / "))
}

/// Both nodes without the names of nodes in /etc/hosts, and with a second address that may have the own name; until
/// this is dropped. reset.sh undoes it too.
fn strange(own_name_is_second: bool) -> impl Drop {
    let script = "cp /etc/hosts /run/hvdctl-test-hosts
        awk '!/node[1-3]/' /run/hvdctl-test-hosts >/etc/hosts
        [ -z \"$1\" ] || { ip addr add \"$1/24\" dev eth0 && echo \"$1 $(hostname)\" >>/etc/hosts; }
        ! getent hosts \"$(hostname)\" | grep -v \"^$1 \"";
    let restore = Restore(|| NODES.into_iter().for_each(|node| drop(node_sh(node, RESTORE, &[]))));
    for (index, node) in NODES.into_iter().enumerate() {
        let second = if own_name_is_second { format!("10.77.0.{}", 11 + index) } else { String::new() };
        node_sh(node, script, &[&second]).code(0);
    }
    restore
}

/// The line of reset.sh that puts the names and addresses back.
const RESTORE: &str =
    "cat /run/hvdctl-test-hosts >/etc/hosts; ip addr flush dev eth0 to 10.77.0.0/24; rm /run/hvdctl-test-hosts";

/// Runs all steps on the pair's nodes as they are now.
#[track_caller]
fn all_steps_succeed(lab: &Lab, variant: &str, trainings: &[usize]) {
    let dir = lab.path().join(variant);
    fs::create_dir(&dir).unwrap();
    let mut steps = Steps::new(variant, &dir, &lab_dir().join("ssh_config"));
    steps.run_all(|inventory| inventory.replacen(FULL_IMAGE, IMAGE, 1), trainings);
    assert!(steps.failed.is_empty(), "{}", steps.failed.join("\n"));
    no_job_is_left();
}

#[test]
fn machines_that_cannot_resolve_their_own_names() {
    let lab = Lab::empty();
    let _names = strange(false);
    all_steps_succeed(&lab, "names none", &[0, 4]);
}

#[test]
fn machines_whose_own_names_are_in_another_network() {
    let lab = Lab::empty();
    let _names = strange(true);
    all_steps_succeed(&lab, "names other", &[3]);
}
