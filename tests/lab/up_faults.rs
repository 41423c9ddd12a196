//! `up` with a fault on one node: that node is named with a hint, and the others are completed.

use crate::pool::power;
use crate::process::{eventually, s};
use crate::state::{IMAGE, Lab, Restore, id_of, node_sh, on, ours};

/// A fault on node2 that is made, seen by `up`, and undone.
fn fault(lab: &Lab, make: &str, undo: &str, code: i32, words: &[&str]) {
    let restore = Restore(|| {
        on("node2", undo);
    });
    on("node2", make);
    lab.hvdctl(&["up"]).code(code).complains(&["node2: ", "hint: "]).complains(words);
    assert_eq!(ours("node2"), "");
    assert_eq!(ours("node1"), if code == 3 { "hworker running\n" } else { "" });
    lab.hvdctl(&["--on", "node1", "down"]).code(0);
    drop(restore);
}

#[test]
fn the_error_of_a_node_is_shown_with_a_hint() {
    let lab = Lab::empty();
    lab.hvdctl(&["keys", "push"]).code(0);
    let ssh = "/home/workshop/.ssh/authorized_keys";
    fault(
        &lab,
        &format!("mv {ssh} {ssh}.away"),
        &format!("mv {ssh}.away {ssh}"),
        4,
        &["Permission denied", "--first-login", "ssh-add"],
    );
    let sudo = "sed -i 's/NOPASSWD:/PASSWD:/' /etc/sudoers.d/*";
    fault(
        &lab,
        sudo,
        "sed -i 's/\\bPASSWD:/NOPASSWD:/' /etc/sudoers.d/*",
        3,
        &["sudo asks for a password", "there is no terminal", "NOPASSWD"],
    );
    let docker = "/usr/bin/docker";
    fault(
        &lab,
        &format!("mv {docker} {docker}.away"),
        &format!("mv {docker}.away {docker}"),
        3,
        &["the `docker` command is not", "apt-get install docker-cli"],
    );
    lab.hvdctl(&["up"]).code(0);
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn a_foreign_worker_is_named_and_left_alone() {
        let lab = Lab::empty();
        for label in ["x=y", "hvdctl.cluster=another"] {
            let start = "docker run -d --name hworker --label hvdctl-test=1 --label \"$1\" \"$2\" sleep 600";
            let id = node_sh("node2", start, &[label, IMAGE]).ok().trim().to_owned();
            lab.hvdctl(&["up"]).code(3).says(&["node1: started hworker"]).complains(&["node2: ", "hworker", "hint:"]);
            assert_eq!(ours("node1"), "hworker running\n");
            assert_eq!(id_of("node2", "hworker"), id);
            assert_eq!(
                on("node2", "docker ps -a --filter name='^hworker$' --format '{{.Names}} {{.State}}'"),
                "hworker running\n"
            );
            // neither do the other commands touch it
            let train = lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(125);
            train.complains(&["node2: ", "hworker"]);
            lab.hvdctl(&["down", "--purge", "-y"]).code(0);
            assert_eq!(id_of("node2", "hworker"), id);
            on("node2", "docker rm -f hworker");
        }
    }

    #[test]
    fn a_node_without_the_image_is_named_with_a_hint() {
        let lab = Lab::empty();
        node_sh("node2", "docker tag \"$1\" hvdctl-test/kept:1 && docker rmi \"$1\"", &[IMAGE]).code(0);
        let restore = Restore(|| {
            node_sh("node2", "docker tag hvdctl-test/kept:1 \"$1\" && docker rmi hvdctl-test/kept:1", &[IMAGE]).code(0);
        });
        lab.hvdctl(&["up"]).code(3).complains(&["node2: ", IMAGE, "docker load"]);
        assert_eq!((ours("node1").as_str(), ours("node2").as_str()), ("hworker running\n", ""));
        // with --json the same, as a value
        let done = lab.hvdctl(&["up", "--json"]).code(3);
        let document: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!(document["ok"], false);
        let nodes = document["nodes"].as_array().unwrap();
        let reported: Vec<_> = nodes.iter().map(|n| (n["node"].as_str().unwrap(), n["ok"] == true)).collect();
        assert_eq!(reported, [("node1", true), ("node2", false)]);
        drop(restore);
        lab.hvdctl(&["up"]).code(0).says(&["node1: unchanged", "node2: started hworker"]);
    }

    #[test]
    fn an_engine_that_is_down_is_named_and_the_other_node_is_done() {
        let lab = Lab::empty();
        lab.hvdctl(&["keys", "push"]).code(0);
        on("node2", "node-engine stop");
        let restore = Restore(|| {
            on("node2", "node-engine start");
            assert!(eventually(s(30), || node_sh("node2", "docker version", &[]).code == 0), "the engine of node2");
        });
        let up = lab.hvdctl(&["up"]).code(3).complains(&["node2: ", "Docker", "hint:", "systemctl start docker"]);
        assert!(!up.err.contains("pushing"), "the keys of node1 are as they should be:\n{}", up.err);
        assert_eq!(ours("node1"), "hworker running\n");
        let status = lab.hvdctl(&["status"]).code(3).complains(&["node2: "]);
        assert!(status.out.lines().any(|l| l.starts_with("node1") && l.contains("up")), "{}", status.out);
        drop(restore);
        lab.hvdctl(&["up"]).code(0).says(&["node1: unchanged", "node2: started hworker"]);
    }

    #[test]
    fn with_a_node_out_of_reach_nothing_is_changed() {
        let lab = Lab::empty();
        lab.edit("connect_timeout_s = 10", "connect_timeout_s = 3");
        lab.hvdctl(&["keys", "push"]).code(0);
        power(&["pause"], "node2");
        let restore = Restore(|| power(&["unpause"], "node2"));
        lab.hvdctl(&["up"]).code(4).complains(&["node2: ", "nothing was changed"]);
        assert_eq!(ours("node1"), "");
        lab.hvdctl(&["keys", "push"]).code(4).complains(&["node2: "]);
        lab.hvdctl(&["down"]).code(4).complains(&["node2: "]);
        lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(125).complains(&["node2: "]);
        lab.hvdctl(&["verify"]).code(4).complains(&["node2: "]);
        // on request without it
        lab.hvdctl(&["up", "--skip-offline"]).code(0).says(&["node1: started hworker"]).complains(&["node2: "]);
        assert_eq!(ours("node1"), "hworker running\n");
        drop(restore);
        assert_eq!(ours("node2"), "");
    }

    #[test]
    fn a_docker_without_nvidias_toolkit_is_named_and_nothing_is_left_behind() {
        let lab = Lab::empty();
        lab.hvdctl(&["keys", "push"]).code(0);
        let restart = "node-engine stop; node-engine start; for i in $(seq 300); do docker version >/dev/null 2>&1 && \
            break; sleep 0.1; done";
        let (hook, smi) = ("/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-smi");
        fault(
            &lab,
            &format!("mv {hook} {hook}.away; mv {smi} {smi}.away; {restart}"),
            &format!("mv {hook}.away {hook}; mv {smi}.away {smi}; {restart}"),
            3,
            &["could not select device driver", "nvidia-container-toolkit", "gpus = 0"],
        );
        lab.hvdctl(&["up"]).code(0);
    }
}
