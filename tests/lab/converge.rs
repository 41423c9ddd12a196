//! `up` reaches the desired state from every state of the workers, and reports what prevents it. By default the tests
//! over scripted nodes show it (`src/commands/tests/`).

use crate::pool::power;
use crate::process::{eventually, s};
use crate::state::{IMAGE, Lab, NODES, Restore, id_of, no_job_is_left, node_sh, on, ours};
use crate::up::banner;

/// Puts things back on node2.
fn undo(script: &str) -> Restore<impl FnMut() + '_> {
    Restore(move || {
        node_sh("node2", script, &[]).code(0);
    })
}

/// The id of the worker, or nothing.
fn id_of_any(node: &str) -> String {
    on(node, "docker ps -aq --no-trunc --filter name='^hworker$'")
}

/// A rank that saves a checkpoint at SIGTERM.
const SAVES: &str = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.2; done";

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn every_state_of_a_worker_leads_back() {
        let lab = Lab::up();
        let first = id_of("node1", "hworker");
        // one with the labels of the worker that is there, changed by `sed`
        let like_it = |sed: &str, made: &str| {
            let labels = "/opt/horovod/test-labels";
            let list = r#"{{range $k, $v := .Config.Labels}}{{$k}}={{$v}}{{"\n"}}{{end}}"#;
            format!(
                "docker inspect -f '{list}' hworker | grep . | sed '{sed}' >{labels} && docker rm -f hworker &&
                 docker {made} --name hworker --label-file {labels} {IMAGE} sleep 600"
            )
        };
        let cases = [
            ("killed", "docker kill hworker".to_owned(), "started hworker again (stopped)", true),
            ("paused", "docker pause hworker".to_owned(), "unpaused hworker", true),
            ("removed", "docker rm -f hworker".to_owned(), "started hworker", false),
            // as an hvdctl that was killed in the middle leaves it
            ("never started", like_it("", "create"), "recreated hworker (never started)", false),
            (
                "older",
                like_it("s/\"address\":\"[^\"]*\",//; s/^hvdctl.spec=.*/hvdctl.spec=0123456789ab/", "run -d"),
                "recreated hworker (address)",
                false,
            ),
        ];
        for (state, make, summary, same) in cases {
            on("node2", &make);
            let before = id_of_any("node2");
            lab.hvdctl(&["up"]).code(0).says(&["node1: unchanged\n", &format!("node2: {summary}\n")]);
            assert_eq!(ours("node2"), "hworker running\n", "{state}");
            assert_eq!(id_of_any("node2") == before, same, "{state}: whether it is the same container");
            assert_eq!(banner("node2", 12345), "SSH-2.0-", "{state}");
            lab.hvdctl(&["up"]).code(0).says(&["node[1-2] (2): unchanged\n", "nothing to do"]);
        }
        assert_eq!(id_of("node1", "hworker"), first, "node1 was never touched");
    }

    #[test]
    fn a_worker_that_does_not_come_up_is_not_left_behind() {
        let lab = Lab::empty();
        lab.hvdctl(&["keys", "push"]).code(0);
        // its public half is in order, so that only sshd itself finds out
        on("node2", "echo broken >/opt/horovod/ssh/ssh_host_ed25519_key");
        let done = lab.hvdctl(&["up"]).code(3).says(&["node1: started hworker\n"]);
        done.complains(&["node2: cannot reach sshd in hworker on port 12345", "no hostkeys available", "hint: "]);
        assert_eq!(NODES.map(ours), ["hworker running\n", ""]);
        on("node2", "rm /opt/horovod/ssh/ssh_host_ed25519_key*");
        lab.hvdctl(&["up"]).code(0).says(&["node1: unchanged\n", "node2: started hworker\n"]);
        assert_eq!(banner("node2", 12345), "SSH-2.0-");
    }

    #[test]
    fn a_disk_that_is_full_is_named() {
        let lab = Lab::empty();
        lab.hvdctl(&["keys", "push"]).code(0);
        // a file system of its own without room, over the directory
        let full = |directory: &str, options: &str| {
            on("node2", &format!("mkdir -p {directory} && mount -t tmpfs -o {options} test {directory}"));
        };
        {
            let directory = "/var/lib/docker/containers";
            full(directory, "nr_inodes=1");
            let off = format!("umount {directory}");
            let _restore = undo(&off);
            let done = lab.hvdctl(&["up"]).code(3).says(&["node1: started hworker\n"]);
            done.complains(&[
                "node2: cannot start hworker: ",
                "no space left on device",
                "hint: free space on that node",
            ]);
        }
        assert_eq!(NODES.map(ours), ["hworker running\n", ""]);
        {
            full("/opt/horovod/ssh", "nr_inodes=2");
            let _restore = undo("umount /opt/horovod/ssh");
            lab.hvdctl(&["up"]).code(3).complains(&["node2: cannot ", "No space left on device"]);
            assert_eq!(ours("node2"), "");
        }
        lab.hvdctl(&["up"]).code(0).says(&["node1: unchanged\n", "node2: started hworker\n"]);
        full("/opt/horovod/projects", "size=1m");
        let _restore = undo("umount /opt/horovod/projects");
        let done = lab.hvdctl(&["doctor"]).code(1);
        done.says(&["error node2: ", "1.0 MiB", "/opt/horovod/projects"]);
    }

    #[test]
    fn a_worker_is_not_replaced_during_a_job() {
        let lab = Lab::up();
        let ids = || NODES.map(|node| id_of(node, "hworker"));
        let before = ids();
        let mut run = lab.start(&["run", "-np", "2", "--", "sh", "-c", SAVES]);
        let come = run.comes(&["[0 node1] ready", "[1 node2] ready"], s(60));
        let state = || NODES.map(|node| on(node, "cat /opt/horovod/jobs/*/log; ps axfww")).join("\n");
        assert!(come, "no rank is ready\n{}{}{}", run.out(), run.err(), state());
        lab.hvdctl(&["up"]).code(0).says(&["nothing to do"]);
        lab.edit("[defaults]", "shm_size = \"1g\"\n[defaults]");
        let dry = lab.hvdctl(&["up", "--dry-run"]).code(0).says(&["node[1-2] (2): recreate hworker (shm)\n"]);
        dry.complains(&["warning: job ", "is running", "would be replaced on node2"]);
        let refusal = ["is running, and its workers would be replaced on node2", "hint: ", "--force"];
        lab.hvdctl(&["up"]).code(1).complains(&refusal);
        // without its launcher's node in sight, too
        lab.hvdctl(&["--on", "node2", "up"]).code(1).complains(&refusal);
        assert_eq!(ids(), before);
        assert!(run.runs(), "{}", run.err());

        let dry = lab.hvdctl(&["up", "--force", "--dry-run"]).code(0);
        dry.says(&["node[1-2] (2): end the job ", ", recreate hworker (shm)\n"]);
        assert!(run.runs() && ids() == before, "{}", run.err());
        lab.hvdctl(&["up", "--force"]).code(0).says(&["node[1-2] (2): ended the job ", ", recreated hworker (shm)\n"]);
        // in order: every rank had its time
        let run = run.end(s(60)).says(&["[0 node1] saved", "[1 node2] saved"]);
        assert_eq!(run.code, 143, "a job that was ended is no success");
        no_job_is_left();
        for (node, before) in NODES.iter().zip(before) {
            assert_eq!(ours(node), "hworker running\n");
            assert_ne!(id_of(node, "hworker"), before);
        }
        let record = on("node1", "cat /opt/horovod/jobs/*/result.json");
        assert!(record.contains("\"stopped\": true"), "{record}");

        // a rank that runs only next to the launcher prevents nothing
        let mut run = lab.start(&["run", "-np", "1", "--", "sh", "-c", SAVES]);
        run.until(&["[0 node1] ready"], s(60));
        lab.edit("shm_size = \"1g\"", "shm_size = \"2g\"");
        lab.hvdctl(&["up"]).code(0).says(&["node[1-2] (2): recreated hworker (shm)\n"]);
        assert!(run.runs(), "{}", run.err());
        run.signal("INT");
        run.end(s(60)).code(130);
    }

    #[test]
    fn a_node_that_hangs_in_the_middle_holds_up_no_other() {
        let lab = Lab::empty();
        lab.hvdctl(&["keys", "push"]).code(0);
        lab.edit("connect_timeout_s = 10", "connect_timeout_s = 6\ncommand_timeout_s = 15");
        // the worker's port cannot be checked there, so that its start lasts until the node hangs
        on("node2", "printf '#!/bin/sh\\n' >/usr/local/bin/ss && chmod 755 /usr/local/bin/ss");
        let restore = undo("rm -f /usr/local/bin/ss");
        let mut up = lab.start(&["up"]);
        let comes = |node: &'static str| eventually(s(60), || ours(node) == "hworker running\n");
        assert!(comes("node2"), "{}", up.err());
        power(&["pause"], "node2");
        let resume = Restore(|| power(&["unpause"], "node2"));
        assert!(up.runs(), "it ended before the node hung: {}", up.err());
        assert!(comes("node1") && up.runs(), "node1 had to wait: {}", up.err());
        let done = up.end(s(120)).code(3).says(&["node1: started hworker\n"]);
        done.complains(&["node2: cannot ", "no answer within 15 s"]);
        drop(resume);
        drop(restore);
        // it is as far as it came, and what is missing is done now
        lab.hvdctl(&["up"]).code(0);
        assert_eq!(NODES.map(ours), ["hworker running\n"; 2]);
        assert_eq!(NODES.map(|node| banner(node, 12345)), ["SSH-2.0-"; 2]);
        lab.hvdctl(&["up"]).code(0).says(&["nothing to do"]);
    }

    #[test]
    fn an_engine_that_does_not_answer_holds_up_no_other_node() {
        let lab = Lab::up();
        lab.edit("connect_timeout_s = 10", "connect_timeout_s = 6\ncommand_timeout_s = 10");
        on("node1", "docker stop -t 1 hworker");
        on("node2", "kill -STOP $(cat /run/docker.pid)");
        let restore =
            undo("kill -CONT $(cat /run/docker.pid); for i in $(seq 100); do docker version >/dev/null && break; done");
        let done = lab.hvdctl(&["up"]).code(3).says(&["node1: started hworker again (stopped)\n"]);
        done.complains(&[
            "node2: cannot reach the Docker Engine: no answer within 10 s",
            "hint: see `systemctl status docker`",
        ]);
        assert_eq!(ours("node1"), "hworker running\n");
        let done = lab.hvdctl(&["status"]).code(3);
        let row = |node: &str| done.out.lines().find(|line| line.starts_with(node)).unwrap_or_default();
        assert!(row("node1").contains(" up ") && row("node2").contains(" – "), "{}", done.out);
        drop(restore);
        lab.hvdctl(&["up"]).code(0).says(&["nothing to do"]);
    }

    #[test]
    fn a_node_that_is_off_or_drops_all_packets_is_left_out_on_request_only() {
        let lab = Lab::up();
        lab.edit("connect_timeout_s = 10", "connect_timeout_s = 3");
        on("node1", "docker stop -t 1 hworker");
        let drop_all = "INPUT ! -i lo -j DROP";
        type Step<'a> = Box<dyn Fn() + 'a>;
        let drops: Step = Box::new(|| {
            on("node2", &format!("iptables -w 10 -I {drop_all}"));
        });
        let drops_no_more: Step = Box::new(|| {
            on("node2", &format!("iptables -w 10 -D {drop_all}"));
        });
        let off: Step = Box::new(|| power(&["stop"], "node2"));
        let on_again: Step = Box::new(|| {
            power(&["start"], "node2");
            let ready = "test -e /run/node-ready && docker version >/dev/null 2>&1";
            assert!(eventually(s(60), || node_sh("node2", ready, &[]).code == 0), "node2 did not come back");
        });
        for (fault, make, undo) in [("drops", drops, drops_no_more), ("off", off, on_again)] {
            make();
            let restore = Restore(&*undo);
            let done = lab.hvdctl(&["up"]).code(4);
            done.complains(&["node2: cannot log in by ssh as workshop@node2: ", "hint: ", "nothing was changed"]);
            assert_eq!(ours("node1"), "hworker exited\n", "{fault}");
            let done = lab.hvdctl(&["status"]).code(3);
            let row = |node: &str| done.out.lines().find(|line| line.starts_with(node)).unwrap_or_default();
            assert!(
                row("node1").contains(" stopped ") && row("node2").ends_with(" unreachable"),
                "{fault}\n{}",
                done.out
            );
            let done =
                lab.hvdctl(&["up", "--skip-offline"]).code(0).says(&["node1: started hworker again (stopped)\n"]);
            done.complains(&["warning: node2: cannot log in"]);
            assert_eq!(ours("node1"), "hworker running\n", "{fault}");
            on("node1", "docker stop -t 1 hworker");
            drop(restore);
        }
        // a machine that was switched off comes back with its worker stopped
        lab.hvdctl(&["up"]).code(0).says(&["node[1-2] (2): started hworker again (stopped)\n"]);
    }
}
