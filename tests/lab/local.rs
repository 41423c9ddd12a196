//! One machine, no inventory: this machine's own Docker Engine, its port 12345 and its /opt/horovod. One such test runs
//! at a time.

use crate::process::{Done, eventually, run, s};
use crate::state::{FULL_IMAGE, Lab, Restore, controllers, hvdctl_in};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

fn here(script: &str) -> Done {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    run(command, s(60))
}

/// Name and state of hvdctl's containers on this machine that are of this machine alone.
fn ours() -> String {
    here("docker ps -a --filter label=hvdctl.cluster --format '{{.Names}} {{.State}}' | sort").ok()
}

fn processes() -> String {
    // jobs of other tests run on this kernel too, one PID namespace further in: there NSpid has a number more (proc(5))
    let own = "for p in $(grep -lz '^HVDCTL_JOB=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do
          grep -q docker \"/proc/$p/cgroup\" 2>/dev/null &&
            awk -v p=\"$p\" '/^NSpid:/ && NF <= 3 { print p }' \"/proc/$p/status\" 2>/dev/null
        done; :";
    here(own).ok()
}

/// Only one test at a time may use this machine.
static THIS_MACHINE: Mutex<()> = Mutex::new(());

#[test]
fn the_whole_job_on_this_machine_alone() {
    let _alone = THIS_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::empty();
    assert_eq!(
        here(&format!("docker image inspect {FULL_IMAGE}")).code,
        0,
        "the image is not on this machine: scripts/image/build"
    );
    let had_directory = Path::new("/opt/horovod").exists();
    let home = lab.path().join("home");
    let elsewhere = lab.path().join("elsewhere");
    fs::create_dir(&home).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    let hvdctl = |args: &[&str]| {
        let mut command = hvdctl_in(&elsewhere);
        command.env("HOME", &home).env("HVDCTL_IMAGE", FULL_IMAGE).args(args);
        run(command, s(120))
    };
    let _restore = Restore(|| {
        hvdctl(&["down", "--purge", "-y"]);
    });

    // leftovers of a test that was killed
    hvdctl(&["down", "--purge", "-y"]).code(0);
    hvdctl(&["up"]).code(0).says(&["started hworker"]).complains(&["no inventory: using this machine alone"]);
    assert_eq!(ours(), "hworker running\n");
    hvdctl(&["up"]).code(0).says(&["nothing to do"]);
    // this cluster has no other node that could log in
    assert_eq!(here("ss -Hltn 'sport = :12345' | awk '{ print $4 }'").ok(), "127.0.0.1:12345\n");
    let status = hvdctl(&["status"]).code(0);
    assert!(status.out.lines().nth(1).is_some_and(|l| l.contains("(master)") && l.contains(" up ")), "{}", status.out);
    for controller in controllers("--gloo") {
        hvdctl(&["verify", "-np", "2", controller]).code(0).says(&["ok: 2 ranks"]);
        assert_eq!(ours(), "hworker running\n");
    }
    let program =
        "import os, sys\nopen('by-' + os.environ['HOROVOD_RANK'], 'w')\nprint(os.getcwd(), flush=True)\nsys.exit(5)\n";
    let project = lab.project("local", &[("train.py", program)]);
    let done = hvdctl(&["train", project.to_str().unwrap(), "-np", "2"]).code(5);
    assert!(done.out.contains("] /workspace"), "{}", done.out);
    let is_clean = || (ours().as_str(), processes().as_str()) == ("hworker running\n", "");
    assert!(eventually(s(5), is_clean), "{}{}", ours(), processes());
    assert!(!project.join("by-0").exists(), "a job does not write to the project here");
    let done =
        hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--mpi", "--", "echo", "a  b", "$HOME"]).code(0);
    assert_eq!(done.out.lines().filter(|l| l.ends_with("] a  b $HOME")).count(), 2, "{}", done.out);

    let mut command = hvdctl_in(&elsewhere);
    command.env("HOME", &home).env("HVDCTL_IMAGE", FULL_IMAGE).args([
        "run",
        "-np",
        "2",
        "--",
        "sh",
        "-c",
        "echo ready; exec sleep 300",
    ]);
    let mut sleeper = crate::process::Running::start(command, &[]);
    sleeper.until(&["[0 ", "[1 "], s(60));
    sleeper.signal("INT");
    sleeper.end(s(40)).code(130);
    assert!(eventually(s(5), is_clean), "{}{}", ours(), processes());

    hvdctl(&["keys", "push"]).code(2).complains(&["no inventory"]);
    hvdctl(&["down", "--purge", "-y"]).code(0);
    assert_eq!(ours(), "");
    assert!(had_directory || !Path::new("/opt/horovod").exists(), "{}", here("find /opt/horovod").out);
    // of the command that was interrupted there is what it did
    let found =
        format!("find {0} {1} -mindepth 1 -path {0}/.local -prune -o -print", home.display(), elsewhere.display());
    assert_eq!(here(&found).ok(), "");
}

#[test]
fn without_the_image_it_says_how_to_get_one() {
    let _alone = THIS_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::empty();
    let mut command = hvdctl_in(&lab.path().join("."));
    fs::remove_file(lab.inventory()).unwrap();
    command.env("HOME", lab.path()).args(["--image", "hvdctl-test/none:1", "up"]);
    run(command, s(60)).code(1).complains(&["hvdctl-test/none:1", "hint:"]);
    assert_eq!(ours(), "");
}
