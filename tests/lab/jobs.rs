//! Jobs without a watcher: they need neither a terminal nor the operator's machine.

use crate::pool::gateway;
use crate::process::{Running, eventually, kill, s};
use crate::state::{
    Lab, NODES, Restore, controllers, id_of, no_job_is_left, no_session_is_left, node_sh, on, ours, rank_processes,
    sessions_of, tell_jobs,
};
use serde_json::Value;

/// Ranks that wait for a file, and then end with the exit code in it.
const WAITS: &str =
    "echo ready; cd /opt/horovod/jobs/$HVDCTL_JOB; while [ ! -e go ]; do sleep 0.1; done; echo going; exit $(cat go)";

fn go(node: &str, code: u8) {
    tell_jobs(node, "go", &code.to_string());
}

fn jobs(lab: &Lab) -> Vec<Value> {
    let document: Value = serde_json::from_str(&lab.hvdctl(&["--json", "jobs"]).ok()).unwrap();
    document["jobs"].as_array().unwrap().clone()
}

/// Waits for the result that the job supervisor records on the launcher's node.
#[track_caller]
fn result(id: &str) -> Value {
    let file = format!("/opt/horovod/jobs/{id}/result.json");
    assert!(eventually(s(60), || on("node1", &format!("test -e {file} && echo yes; :")) == "yes\n"), "no {file}");
    serde_json::from_str(&on("node1", &format!("cat {file}"))).unwrap()
}

/// Ends an hvdctl as a crash does, and the ssh that it leaves.
fn crash(running: Running) {
    let pid = running.pid();
    kill(&pid.to_string(), "KILL");
    running.end(s(10)).code(137);
    for session in std::fs::read_dir("/proc").unwrap().flatten() {
        let words = std::fs::read(session.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&words).contains(&format!("hvdctl-ssh.{pid}.")) {
            kill(&session.file_name().to_string_lossy(), "KILL");
        }
    }
    for path in sessions_of(pid).iter().filter(|path| path.starts_with("/tmp/")) {
        let _ = std::fs::remove_dir_all(path);
    }
}

#[test]
fn a_detached_job_ends_by_itself_and_its_result_is_shown_later() {
    let lab = Lab::up();
    for controller in controllers("--gloo") {
        let done = lab.hvdctl(&["run", "-d", "-np", "2", controller, "--", "sh", "-c", WAITS]).code(0);
        let id = done.out.trim().to_owned();
        no_session_is_left(done.pid);
        let job = &jobs(&lab)[0];
        assert_eq!((job["id"].as_str(), job["state"].as_str()), (Some(&*id), Some("running")), "{job}");
        assert!(NODES.iter().all(|node| !rank_processes(node).is_empty()));
        lab.hvdctl(&["jobs", "--running"]).code(0).says(&[&id, "running", "node[1-2]"]);

        // rank 1 fails, rank 0 would wait forever; no hvdctl watches
        go("node2", 7);
        let ending = result(&id);
        no_job_is_left();
        // the next job or `up` removes it
        assert_eq!(NODES.map(ours), ["hmaster exited\nhworker running\n", "hworker running\n"]);
        let exits = ending["exits"].as_array().unwrap();
        let of = |rank: u64| exits.iter().find(|exit| exit["rank"] == rank).unwrap();
        assert_eq!((&of(1)["code"], &of(1)["node"], &of(1)["asked"]), (&7.into(), &"node2".into(), &false.into()));
        assert_eq!(&of(0)["asked"], true, "{ending}");
        assert!(on("node1", &format!("ls /opt/horovod/jobs/{id}")).lines().all(|file| file != "env.json"));
        let job = &jobs(&lab)[0];
        assert_eq!((job["state"].as_str(), job["code"].as_i64()), (Some("failed"), Some(7)), "{job}");
        assert!(jobs(&lab)[0]["ended"].is_string());
        let done =
            lab.hvdctl(&["attach", &id]).code(7).says(&["[0 node1] ready", "[1 node2] ready", "[1 node2] going"]);
        done.complains(&["rank 1 on node2 ended with exit code 7"]);
        lab.hvdctl(&["stop", &id]).code(0).says(&["has already ended"]);
    }
    // it is all that a prune removes
    lab.hvdctl(&["run", "-np", "1", "--launcher", "env", "--", "true"]).code(0);
    let before = jobs(&lab).len();
    assert_eq!(before, 1 + controllers("--gloo").len());
    lab.hvdctl(&["-y", "jobs", "prune", "--keep", "1"]).code(0).says(&[&format!("removed {} job", before - 1)]);
    assert_eq!(jobs(&lab).len(), 1);
    lab.hvdctl(&["-y", "jobs", "prune"]).code(0);
    for node in NODES {
        assert_eq!(on(node, "ls /opt/horovod/jobs"), "", "{node}");
    }
    lab.hvdctl(&["attach"]).code(125).complains(&["there are no jobs"]);
}

#[test]
fn a_job_outlives_hvdctl_and_another_operator_attaches() {
    let lab = Lab::up();
    for controller in controllers("--mpi") {
        outlives(&lab, controller);
    }
}

#[track_caller]
fn outlives(lab: &Lab, controller: &str) {
    let mut first = lab.start(&["run", "-np", "2", controller, "--", "sh", "-c", WAITS]);
    first.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
    crash(first);
    assert!(ours("node1").contains("hmaster running"));

    // a second machine without any state of the first; Ctrl-C at an attach does not end the job
    let home = tempfile::tempdir().unwrap();
    let mut theirs = lab.command(&["attach"]);
    theirs.env("HOME", home.path()).env_remove("XDG_STATE_HOME");
    let mut attached = Running::start(theirs, &[]);
    attached.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
    attached.signal("INT");
    let done = attached.end(s(30)).code(130).complains(&["continues", "hvdctl stop"]);
    no_session_is_left(done.pid);
    assert!(NODES.iter().all(|node| !rank_processes(node).is_empty()));
    // no follower stays behind for a watcher that has gone
    for node in NODES {
        assert!(eventually(s(10), || on(node, "pgrep -af 'tail -c' | grep -v pgrep; :").is_empty()), "{node}");
    }

    let mut attached = lab.start(&["attach"]);
    attached.until(&["[1 node2] ready"], s(60));
    for node in NODES {
        go(node, 0);
    }
    attached.end(s(60)).code(0).says(&["[0 node1] going", "[1 node2] going"]);
    no_job_is_left();
    assert_eq!(jobs(lab)[0]["state"], "succeeded");
}

#[test]
fn a_job_continues_without_its_terminal_and_is_stopped_from_another_machine() {
    let lab = Lab::up();
    for controller in controllers("--gloo") {
        let polite = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
        let mut first = lab.start(&["run", "-np", "2", controller, "--", "sh", "-c", polite]);
        first.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
        first.signal("HUP");
        first.end(s(30)).code(129).complains(&["continues"]);
        assert!(ours("node1").contains("hmaster running"));
        let mut watcher = lab.start(&["attach"]);
        watcher.until(&["[1 node2] ready"], s(60));
        lab.hvdctl(&["stop"]).code(0);
        no_job_is_left();
        let done = watcher.end(s(60)).code(143);
        done.says(&["[0 node1] saved", "[1 node2] saved"]).complains(&["was stopped"]);
        let job = &jobs(&lab)[0];
        assert_eq!((job["state"].as_str(), job["code"].as_i64()), (Some("stopped"), Some(143)), "{job}");
        assert_eq!(result(job["id"].as_str().unwrap())["stopped"], true);
        let table = lab.hvdctl(&["jobs"]).ok();
        let lines: Vec<Vec<&str>> =
            table.lines().map(|line| line.split("  ").filter(|w| !w.is_empty()).collect()).collect();
        let heads = ["JOB", "NAME", "PROJECT", "WHO", "STATE", "RANKS", "NODES", "STARTED", "LASTED", "CODE", "WHY"];
        assert!(lines[0].iter().map(|head| head.trim()).eq(heads), "{table}");
        let row: Vec<&str> = lines[1].iter().map(|word| word.trim()).collect();
        let (id, who) = (job["id"].as_str().unwrap(), job["operator"].as_str().unwrap());
        assert_eq!(row[..7], [id, "sh", "–", who, "stopped", "2", "node[1-2]"], "{table}");
        assert!(row[7].ends_with("s ago") && row[8].ends_with('s') && row[9] == "143", "{table}");
    }
}

#[test]
fn an_operator_reattaches_after_a_network_failure() {
    let lab = Lab::empty();
    lab.edit("[defaults]", "keep_alive_s = 3\n[defaults]");
    lab.hvdctl(&["up"]).code(0);
    let mut first = lab.start(&["run", "-np", "2", "--", "sh", "-c", WAITS]);
    first.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
    // this machine is the first of the lab's network
    let rule = format!("INPUT -s {} -j DROP", gateway());
    let cut = || NODES.map(|node| drop(on(node, &format!("iptables -w 10 -I {rule}"))));
    let whole =
        Restore(|| NODES.iter().for_each(|node| drop(node_sh(node, &format!("iptables -w 10 -D {rule}"), &[]))));
    cut();
    let done = first.end(s(120)).code(125).complains(&[" continues unless that node is down", "hvdctl attach"]);
    no_session_is_left(done.pid);
    let unseen = lab.hvdctl(&["jobs"]);
    assert_eq!(unseen.code, 4, "{}{}", unseen.out, unseen.err);
    drop(whole);
    let mut attached = lab.start(&["attach"]);
    attached.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
    for node in NODES {
        go(node, 0);
    }
    attached.end(s(60)).code(0).says(&["[0 node1] going", "[1 node2] going"]);
    // the followers of the first hvdctl end when TCP has retransmitted once more and is refused
    assert!(eventually(s(90), || NODES.iter().all(|node| rank_processes(node).is_empty())));
    no_job_is_left();

    // the state of a job while its launcher's node is unreachable
    lab.edit("host = \"node1\"", "host = \"node1\"\nssh_port = 1");
    let away: Value = serde_json::from_str(&lab.hvdctl(&["--json", "jobs"]).code(3).out).unwrap();
    let job = &away["jobs"][0];
    assert!(job["state"].is_null(), "{job}");
    assert!(job["reason"].as_str().unwrap().starts_with("its launcher's node node1 does not answer: "), "{job}");
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn logs_are_filtered_by_rank_time_and_pattern() {
        let lab = Lab::up();
        let program = "r=${HOROVOD_RANK:-$OMPI_COMM_WORLD_RANK}; for i in $(seq 500); do echo \"step $i of $r\"; done; \
            echo end >&2";
        lab.hvdctl(&["run", "-np", "2", "--", "sh", "-c", program]).code(0);
        let all = lab.hvdctl(&["logs"]).code(0).out;
        assert_eq!(all.lines().filter(|line| line.contains("step")).count(), 1000);
        for (rank, node) in [(0, "node1"), (1, "node2")] {
            let of: Vec<&str> = all.lines().filter(|line| line.starts_with(&format!("[{rank} {node}] step"))).collect();
            let wanted: Vec<String> = (1..=500).map(|i| format!("[{rank} {node}] step {i} of {rank}")).collect();
            assert_eq!(of, wanted, "each rank's lines are all there, in their order");
        }
        let one = lab.hvdctl(&["logs", "--rank", "1", "--grep", "^step [123] "]).ok();
        assert_eq!(one, "[1 node2] step 1 of 1\n[1 node2] step 2 of 1\n[1 node2] step 3 of 1\n");
        assert_eq!(lab.hvdctl(&["logs", "--rank", "0", "--grep", "step", "-n", "1"]).ok(), "[0 node1] step 500 of 0\n");
        assert_eq!(lab.hvdctl(&["logs", "--since", "2099-01-01T00:00:00Z"]).ok(), "");
        assert_eq!(lab.hvdctl(&["logs", "--since", "1h"]).ok(), all);
        let late = lab.hvdctl(&["run", "-np", "1", "--", "sh", "-c", "echo early; sleep 2; date -u +%FT%TZ"]).ok();
        let time = late.lines().last().unwrap().rsplit(' ').next().unwrap();
        assert_eq!(lab.hvdctl(&["logs", "--since", time]).ok(), format!("[0 node1] {time}\n"));
        lab.hvdctl(&["logs", "--rank", "2"]).code(2).complains(&["has no rank 2"]);
        lab.hvdctl(&["logs", "nosuch"]).code(1).complains(&["there is no job nosuch", "hvdctl jobs"]);

        let id = lab.hvdctl(&["run", "-d", "-np", "2", "--", "sh", "-c", WAITS]).ok();
        let mut follower = lab.start(&["logs", "-f", "--rank", "0"]);
        follower.until(&["[0 node1] ready"], s(60));
        for node in NODES {
            go(node, 0);
        }
        let done = follower.end(s(60)).code(0).says(&["[0 node1] going"]);
        assert!(!done.out.contains("node2"), "{}", done.out);
        assert_eq!(result(id.trim())["launcher"], 0);
        no_job_is_left();
    }

    #[test]
    fn a_job_of_a_newer_hvdctl_keeps_its_node_until_it_is_stopped() {
        let lab = Lab::up();
        let project = lab.project("digits", &[("train.py", "print('trained')\n")]);
        let train = || lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--", "python3", "train.py"]);
        let (id, directory) = ("20261121-101500-4f2a", "/opt/horovod/jobs/20261121-101500-4f2a");
        let record = format!(r#"{{"format":3,"id":"{id}","cluster":"lab","launcher":"slurm"}}"#);
        let rank = format!("docker exec -d -e HVDCTL_TEST=1 -e HVDCTL_JOB={id} -e HVDCTL_PROGRAM=1 hworker sleep 500");
        on(
            "node2",
            &format!(
                "mkdir -p {directory} && echo '{record}' >{directory}/job.json && echo '{{}}' >{directory}/env.json && {rank}"
            ),
        );
        assert!(eventually(s(10), || !rank_processes("node2").is_empty()));
        let worker = id_of("node2", "hworker");

        let newer = "its record cannot be read: written by a newer hvdctl (format 3); this one reads up to 1";
        train()
            .code(125)
            .complains(&[&format!("node2 is allocated exclusively to job {id}"), "written by a newer hvdctl"]);
        assert_eq!((id_of("node2", "hworker"), rank_processes("node2").lines().count()), (worker.clone(), 1));
        lab.hvdctl(&["jobs", "--running"]).code(0).says(&[id, "unreadable", "node2", newer]);

        lab.hvdctl(&["stop", id]).code(0).says(&[&format!("job {id} has ended")]);
        assert_eq!(
            (rank_processes("node2"), on("node2", &format!("ls {directory}"))),
            (String::new(), "job.json\nresult.json\n".into())
        );
        assert_eq!(id_of("node2", "hworker"), worker);
        train().code(0).says(&["[0 node1] trained", "[1 node2] trained"]);
    }

    #[test]
    fn a_launcher_killed_without_a_watcher_leaves_nothing() {
        let lab = Lab::up();
        for controller in controllers("--mpi") {
            let id = lab.hvdctl(&["run", "--detach", "-np", "2", controller, "--", "sh", "-c", WAITS]).ok();
            on("node1", "docker kill hmaster");
            no_job_is_left();
            // no result was recorded; stop ends what is left
            lab.hvdctl(&["stop", id.trim()]).code(0);
            let job = &jobs(&lab)[0];
            assert_eq!(job["id"], id.trim());
            assert!(job["fault"].as_str().unwrap().contains("without recording a result"), "{job}");
        }
        lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(0);
    }

    #[test]
    fn a_launcher_that_outlives_its_job_is_not_awaited() {
        let lab = Lab::up();
        let id = lab.hvdctl(&["run", "-d", "-np", "2", "--", "sh", "-c", WAITS]).code(0).out.trim().to_owned();
        let [mut attached, mut logs] = [["attach", &id].as_slice(), &["logs", "-f", &id]].map(|words| lab.start(words));
        attached.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
        logs.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
        // as where a rank waits in the kernel: the job supervisor has done all it had to, and its container does not
        // end
        let over = r#"
        kill -STOP "$(docker inspect -f '{{.State.Pid}}' hmaster)"
        exits='[{"rank": 1, "node": "node2", "code": 7, "time": 1, "asked": false}]'
        echo '{"ended": 2, "launcher": 1, "stopped": false, "started": 2, "exits": '"$exits"', "silent": []}' >result.json
        echo '2.0 0 d ' >>log"#;
        on("node1", &format!("cd /opt/horovod/jobs/{id}{over}"));
        attached.end(s(90)).code(7).complains(&["rank 1 on node2 ended with exit code 7"]);
        no_job_is_left();
        logs.end(s(60)).code(0);
        assert_eq!(jobs(&lab)[0]["state"], "failed");
    }
}
