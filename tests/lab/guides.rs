//! The guides of `docs/guide`, as their readers type them. What needs more than two minutes is in `full/guides.rs`.

use crate::guide::{differences, outcomes, script, steps};
use crate::operator::own_home;
use crate::process::{run, s};
use crate::state::{FULL_IMAGE, Lab, NODES, Restore, hvdctl_in, lab_dir, on};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The checkout.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Follows a guide in the directory of a lab, with the examples next to the inventory, as a reader whose ssh knows the
/// nodes.
#[track_caller]
pub fn follow(page: &str, lab: &Lab) {
    follow_with(page, lab, &[]);
}

/// Follows a guide with these environment variables.
#[track_caller]
fn follow_with(page: &str, lab: &Lab, variables: &[(&str, &Path)]) {
    let root = root();
    let text = fs::read_to_string(root.join("docs/guide").join(page)).unwrap();
    let steps = steps(&text).unwrap_or_else(|fault| panic!("{page}: {fault}"));
    let home = lab.path().join("home");
    fs::create_dir_all(home.join(".ssh")).unwrap();
    fs::write(home.join(".ssh/config"), format!("Include {}\n", lab_dir().join("ssh_config").display())).unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(root.join("examples")).arg(lab.path());
    run(copy, s(10)).code(0);
    let hvdctl = hvdctl_in(lab.path());
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(script(&steps)).current_dir(lab.path());
    for (name, value) in hvdctl.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let program = Path::new(hvdctl.get_program()).parent().unwrap();
    shell.env("HOME", home).env("PATH", format!("{}:{}", program.display(), own_home()));
    shell.env_remove("XDG_STATE_HOME").env_remove("SSH_AUTH_SOCK").envs(variables.iter().copied());
    let done = run(shell, s(400));
    let found = differences(&steps, &outcomes(&done.out));
    assert!(found.is_empty(), "docs/guide/{page}\n\n{}", found.join("\n\n"));
}

#[test]
fn the_guide_to_the_first_cluster() {
    let lab = Lab::empty();
    // `init` writes one
    fs::remove_file(lab.inventory()).unwrap();
    follow("first-cluster.md", &lab);
}

/// The nodes have the lab's image under the name that `init` proposes. It has no Python packages that Horovod's own lacks.
#[test]
fn the_quick_start_of_the_readme() {
    const PROPOSED: &str = "horovod/horovod:latest";
    let lab = Lab::empty();
    fs::remove_file(lab.inventory()).unwrap();
    for node in NODES {
        assert_eq!(on(node, &format!("docker tag {FULL_IMAGE} {PROPOSED}")), "");
    }
    // after the worker that uses it
    let _untag = Restore(|| {
        for node in NODES {
            on(node, &format!("docker ps -aq | xargs -r docker rm -fv; docker rmi {PROPOSED}"));
        }
    });
    follow("../../README.md", &lab);
    assert!(fs::read_to_string(lab.inventory()).unwrap().contains(&format!("\nimage = \"{PROPOSED}\" ")));
    assert!(lab.path().join("results/checkpoint.pt").exists());
}

#[test]
fn the_guide_to_a_script_of_ones_own() {
    let lab = Lab::empty();
    fs::remove_file(lab.inventory()).unwrap();
    follow("own-script.md", &lab);
}

/// It contacts no node.
#[test]
fn the_guide_to_kubernetes() {
    follow("kubernetes.md", &Lab::empty());
}

#[test]
fn the_guide_to_data() {
    follow("data.md", &Lab::up());
}

#[test]
fn the_guide_to_failures() {
    let lab = Lab::up();
    // a hung rank is named half a minute earlier
    lab.edit("connect_timeout_s = 10\n", "connect_timeout_s = 10\nidle_margin_s = 1\n");
    follow("failures.md", &lab);
    // the real one is fetched over the network
    follow_with("hangs.md", &lab, &[("HVDCTL_PY_SPY", &root().join("tests/fixtures/py-spy"))]);
}

#[test]
fn the_guide_to_elastic_jobs() {
    follow("elastic.md", &Lab::up());
}

#[test]
fn the_guide_to_sharing() {
    follow("sharing.md", &Lab::up());
}

#[test]
fn the_guide_to_speed() {
    follow("speed.md", &Lab::up());
}

#[test]
fn the_guide_to_seeing_a_job() {
    follow("see-a-job.md", &Lab::up());
}

#[test]
fn the_guide_to_launchers() {
    follow("launchers.md", &Lab::up());
}

#[test]
fn the_guide_without_docker() {
    follow("without-docker.md", &Lab::empty());
}

#[test]
fn the_guide_to_moving_here() {
    follow("moving-here.md", &Lab::up());
}
