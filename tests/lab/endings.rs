//! However a job ends, nothing of it is left: no rank, no launcher, no follower, no ssh master.

use crate::process::{Running, eventually, kill, s};
use crate::state::{
    FULL, Lab, NODES, Restore, address, controllers, no_job_is_left, no_session_is_left, node_sh, on, ours, processes,
    rank_processes, sessions_of, tell_jobs,
};
use std::fs;
use std::thread;
use std::time::Duration;

/// Starts two ranks of this program, which prints `ready`, and waits until both have.
pub fn sleeping(lab: &Lab, controller: &str, program: &str) -> Running {
    let mut run = lab.start(&["run", "-np", "2", controller, "--", "sh", "-c", program]);
    if !run.comes(&["[0 node1] ready", "[1 node2] ready"], s(60)) {
        let look = "docker logs --tail 30 hmaster 2>&1; cd /opt/horovod/jobs && tail -n 20 */log; ps axf -o \
            pid,stat,etimes,wchan:20,args";
        let seen = NODES.map(|node| format!("--- {node}\n{}", node_sh(node, look, &[]).out)).join("");
        panic!("the ranks do not start\n{}{}{seen}", run.out(), run.err());
    }
    assert!(ours("node1").contains("hmaster running"));
    assert!(NODES.iter().all(|node| !rank_processes(node).is_empty()));
    run
}

pub const SLEEP: &str = "echo ready; exec sleep 300";

fn signalled(name: &str, code: i32, controller: &'static str) {
    let lab = Lab::up();
    for controller in controllers(controller) {
        let run = sleeping(&lab, controller, SLEEP);
        run.signal(name);
        let done = run.end(s(60)).code(code).complains(&["was stopped"]);
        no_job_is_left();
        no_session_is_left(done.pid);
        assert_eq!(NODES.map(ours), ["hworker running\n", "hworker running\n"], "{controller}");
        let records = on("node1", "tail -qn1 /opt/horovod/jobs/*/result.json");
        assert!(records.contains("\"stopped\": true") && !records.contains("\"stopped\": false"), "{records}");
    }
}

#[test]
fn a_disk_that_ranks_fill_takes_away_output_and_no_more() {
    let lab = Lab::empty();
    lab.hvdctl(&["keys", "push"]).code(0);
    for node in NODES {
        on(node, "mkdir -p /opt/horovod/jobs && mount -t tmpfs -o size=2m,mode=700 test /opt/horovod/jobs");
    }
    let _small = Restore(|| {
        for node in NODES {
            node_sh(
                node,
                "for p in $(grep -lz '^HVDCTL_TEST=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do \
                kill -9 $p; done
                docker rm -f hworker; umount -l /opt/horovod/jobs",
                &[],
            );
        }
    });
    lab.hvdctl(&["up"]).code(0);
    // space that becomes free is filled again
    let greedy = "cd /opt/horovod/jobs; while :; do set -- */full; [ -e \"$1\" ] && cat /dev/zero >>taken 2>/dev/null; \
        sleep 0.01; done";
    for node in NODES {
        on(node, &format!("HVDCTL_TEST=1 setsid sh -c '{greedy}' >/dev/null 2>&1 </dev/null &"));
    }
    let lost =
        regex::Regex::new(r"warning: (\d+) lines of output were lost: the disk of node\[1-2\] was full").unwrap();
    for (controller, code) in if FULL { vec![("--gloo", 0), ("--mpi", 7)] } else { vec![("--mpi", 7)] } {
        let program = format!(
            "touch /opt/horovod/jobs/$HVDCTL_JOB/full; head -c 3000000 /dev/zero | tr '\\0' x | fold -w 100
             [ \"${{HOROVOD_RANK:-$OMPI_COMM_WORLD_RANK}}\" = 0 ] || exit {code}; [ {code} = 0 ] || sleep 300"
        );
        let done = lab.hvdctl(&["run", "-np", "2", controller, "--", "sh", "-c", &program]).code(code);
        for node in NODES {
            let left = || on(node, "df --output=avail /opt/horovod/jobs | tail -n1");
            assert!(eventually(s(10), || left().trim() == "0"), "{node} has {}", left());
            on(node, "cd /opt/horovod/jobs && rm */full && sleep 0.1 && rm -f taken");
        }
        // what was lost is counted, now and later
        let count = |text: &str| lost.captures(text).unwrap_or_else(|| panic!("{text}"))[1].parse::<usize>().unwrap();
        let came = done.out.lines().filter(|line| line.contains("xxx")).count();
        // a line may come in part
        assert!((59_990..=60_010).contains(&(came + count(&done.err))), "{came} came, {}", done.err);
        assert_eq!(count(&lab.hvdctl(&["logs", "-n", "1"]).code(0).err), count(&done.err));
        done.complains(&["hint: hvdctl jobs prune"]);
        no_job_is_left();
        let job = newest(&lab);
        assert!(job["lost"].as_array().unwrap().len() == 2, "{job}");
        if code != 0 {
            assert!(job["reason"].as_str().unwrap().contains("rank 1 on node2 ended with exit code 7"), "{job}");
        }
        let state = if code == 0 { "succeeded" } else { "failed" };
        assert!(job["state"] == state && job["code"] == code, "{controller} {job}");
        lab.hvdctl(&["jobs", "prune", "-y"]).code(0);
    }
}

#[test]
fn a_node_whose_network_goes_down_is_named_at_once_and_as_the_cause() {
    let lab = Lab::empty();
    lab.edit("[defaults]", "keep_alive_s = 5\n[defaults]");
    lab.hvdctl(&["up"]).code(0);
    // the other rank fails a while later, as it would in a collective operation
    let program = "echo ready; [ $HOROVOD_RANK = 0 ] || exec sleep 300; until [ -e /opt/horovod/jobs/$HVDCTL_JOB/fail \
        ]; do sleep 0.2; done; exit 1";
    let run = sleeping(&lab, "--gloo", program);
    let route = on("node2", "ip route show default");
    on("node2", "ip link set eth0 down");
    let back = format!("ip link set eth0 up; ip route replace {}", route.trim());
    let up_again = Restore(|| drop(node_sh("node2", &back, &[])));
    // the connections themselves are given up after 15 s, and by default after 45 s (full::cuts)
    assert!(eventually(s(30), || run.err().contains("node2: no answer for 10 s")), "{}", run.err());
    tell_jobs("node1", "fail", "");
    run.end(s(150)).code(1).complains(&["rank 1 on node2 is gone", "hint: "]);
    drop(up_again);
    let back = || lab.hvdctl(&["status"]).code == 0;
    assert!(eventually(s(30), back), "node2 does not answer again");
    assert!(newest(&lab)["reason"].as_str().unwrap().starts_with("rank 1 on node2 is gone"), "{}", newest(&lab));
    assert!(eventually(s(60), || rank_processes("node2").is_empty()), "{}", rank_processes("node2"));
}

#[test]
fn after_hvdctl_was_killed_down_ends_the_job_and_its_session() {
    let lab = Lab::up();
    for controller in controllers("--mpi") {
        lab.hvdctl(&["up"]).code(0);
        let run = sleeping(&lab, controller, SLEEP);
        let pid = run.pid();
        kill(&pid.to_string(), "KILL");
        run.end(s(10)).code(137);
        assert!(!sessions_of(pid).is_empty(), "its ssh masters were ended");
        // the job does not depend on the operator's machine
        assert!(ours("node1").contains("hmaster running"));
        assert!(NODES.iter().all(|node| !rank_processes(node).is_empty()));
        lab.hvdctl(&["down"]).code(0).says(&["hmaster"]);
        assert_eq!(NODES.map(ours), ["", ""]);
        no_job_is_left();
        assert!(eventually(s(5), || sessions_of(pid).is_empty()), "{:?}", sessions_of(pid));
    }
}

#[test]
fn the_others_have_their_grace_period_although_their_launcher_knows_of_the_failure() {
    let lab = Lab::up();
    // MPI's daemons go with the launcher, and what they connect aborts 1.05 s later
    let program = "import os, signal, sys, time, horovod.torch as hvd
def save(*_):
    time.sleep(1.2)
    print('saved', flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
hvd.init()
if hvd.rank() == int(sys.argv[1]):
    time.sleep(3)
    os._exit(7)
while True: time.sleep(0.1)";
    for controller in controllers("--mpi") {
        let ways = [("1", "[0 node1]"), ("0", "[1 node2]")];
        for &(fails, saves) in if FULL { &ways[..] } else { &ways[..1] } {
            let words = ["run", "-np", "2", controller, "--", "python3", "-c", program, fails];
            lab.hvdctl(&words).code(7).says(&[&format!("{saves} saved")]);
            no_job_is_left();
        }
    }
}

/// The newest job as `jobs` shows it.
pub fn newest(lab: &Lab) -> serde_json::Value {
    let document: serde_json::Value = serde_json::from_str(&lab.hvdctl(&["--json", "jobs"]).ok()).unwrap();
    document["jobs"][0].clone()
}

#[test]
fn a_worker_dies_during_a_job() {
    let lab = Lab::up();
    for controller in controllers("--gloo") {
        let run = sleeping(&lab, controller, SLEEP);
        on("node2", "docker kill hworker");
        let done = run.end(s(90));
        assert!(!matches!(done.code, 0 | 130 | 143), "{}: {}{}", done.code, done.out, done.err);
        done.complains(&["rank 1 on node2 is gone: the worker there did not answer at the end: ", "hint: "]);
        no_job_is_left();
        let job = newest(&lab);
        assert_eq!((&job["state"], &job["root_cause"]["how"]), (&"failed".into(), &"gone".into()), "{job}");
    }
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn a_supervisor_or_the_launcher_that_is_killed() {
        let lab = Lab::up();
        for controller in controllers("--mpi") {
            let run = sleeping(&lab, controller, SLEEP);
            // the supervisor of node2's rank: nothing is left that could record how the program ended
            on("node2", "kill -9 $(pgrep -x hvdctl-rank)");
            let done = run.end(s(60));
            assert!(done.code != 0, "{controller}\n{}{}", done.out, done.err);
            no_job_is_left();
            no_session_is_left(done.pid);

            let run = sleeping(&lab, controller, SLEEP);
            on("node1", "docker kill hmaster");
            let done = run.end(s(60));
            assert!(done.code != 0, "{controller}\n{}{}", done.out, done.err);
            let done = done.complains(&["is lost: the job supervisor"]);
            no_job_is_left();
            no_session_is_left(done.pid);
            let job = newest(&lab);
            assert!(job["state"] == "lost" && job["reason"].as_str().unwrap().contains("job supervisor"), "{job}");
        }
    }

    #[test]
    fn the_last_output_of_a_stopped_program_is_shown() {
        let lab = Lab::empty();
        lab.edit("[defaults]", "stop_grace_s = 40\n[defaults]");
        lab.hvdctl(&["up"]).code(0);
        let polite = "trap 'sleep 3 && echo saved; exit 0' TERM; echo ready; sleep 300 & wait";
        // a rank that ends first, with any exit code, does not shorten the others' time
        let late = "trap '[ ${HOROVOD_RANK:-$OMPI_COMM_WORLD_RANK} = 0 ] || { echo saved; exit 143; }
        sleep 8 && echo saved; exit 0' TERM; echo ready; sleep 300 & wait";
        // also if MPI connects them
        let connected = "exec python3 -c \"import os, signal, sys, time, horovod.torch as hvd
hvd.init()
def save(*_):
    if hvd.rank() == 0: time.sleep(5)
    print('saved', flush=True)
    os._exit(0 if hvd.rank() == 0 else 143)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
while True: time.sleep(1)\"";
        // the shell exits at the signal, and only then does the training get it
        let inside = "python3 -c \"import signal, sys, time
def save(*_): time.sleep(1); print('saved', flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
time.sleep(300)\"; true";
        // or it has a trap, which it runs when the training has ended
        let trapped = format!("trap 'echo cleaned' TERM; {inside}");
        let programs = [polite, inside, trapped.as_str()];
        let mut cases = vec![("--mpi", connected), ("--gloo", late)];
        cases.extend(programs.map(|program| ("--gloo", program)));
        cases.extend(programs.map(|program| ("--mpi", program)));
        for (controller, program) in cases {
            let run = sleeping(&lab, controller, program);
            run.signal("INT");
            let done = run.end(s(60)).code(130);
            done.says(&["[0 node1] saved", "[1 node2] saved"]);
            no_job_is_left();
            let end = newest(&lab);
            assert!(end["state"] == "stopped" && end["code"] == 143, "{end}");
        }
    }

    #[test]
    fn a_second_signal_leaves_at_once_and_the_nodes_do_the_rest() {
        let lab = Lab::empty();
        lab.edit("[defaults]", "stop_grace_s = 10\n[defaults]");
        lab.hvdctl(&["up"]).code(0);
        for controller in controllers("--gloo") {
            let mut run = sleeping(&lab, controller, "trap 'echo asked' TERM; echo ready; while :; do sleep 1; done");
            run.signal("INT");
            run.until(&["[0 node1] asked", "[1 node2] asked"], s(20));
            run.signal("INT");
            let done = run.end(s(10)).code(130);
            // the nodes finish the work after the grace period, and the workers stay
            assert!(NODES.iter().all(|node| !rank_processes(node).is_empty()), "it waited for them");
            no_session_is_left(done.pid);
            assert!(eventually(s(60), || newest(&lab)["state"] == "stopped"), "{}", newest(&lab));
            no_job_is_left();
            // no hvdctl was there to remove it
            assert_eq!(NODES.map(ours), ["hmaster exited\nhworker running\n", "hworker running\n"]);
        }
        lab.hvdctl(&["down"]).code(0);
        no_job_is_left();
        assert_eq!(NODES.map(ours), ["", ""]);
    }

    #[test]
    fn interrupted() {
        signalled("INT", 130, "--gloo");
    }

    #[test]
    fn interrupted_at_any_moment() {
        let lab = Lab::up();
        let project = lab.project("p", &[("train.py", "import time; time.sleep(300)")]);
        // connecting, preparing, starting the launcher, starting the ranks
        let moments: &[u64] = if FULL { &[100, 300, 600, 900, 1200, 1600, 2000, 2500] } else { &[600, 1600] };
        for (i, moment) in moments.iter().copied().enumerate() {
            fs::write(project.join("changed"), moment.to_string()).unwrap();
            let controller = ["--gloo", "--mpi"][i % 2];
            let run = lab.start(&["train", project.to_str().unwrap(), "-np", "2", controller]);
            thread::sleep(Duration::from_millis(moment));
            run.signal("INT");
            let done = run.end(s(60)).code(130);
            no_job_is_left();
            no_session_is_left(done.pid);
        }
        assert_eq!(
            lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--", "echo", "x"]).ok().lines().count(),
            2
        );
    }

    #[test]
    fn a_launcher_that_the_engine_stops_is_no_requested_end() {
        let lab = Lab::up();
        for controller in controllers("--gloo") {
            let run = sleeping(&lab, controller, SLEEP);
            on("node1", "docker stop hmaster");
            run.end(s(60)).code(125).complains(&["its launcher's container was stopped", "docker stop", "hint: "]);
            no_job_is_left();
            let job = newest(&lab);
            assert!(job["state"] == "failed" && job["reason"].as_str().unwrap().contains("docker stop"), "{job}");
        }
    }

    #[test]
    fn the_first_failure_is_reported_although_others_follow_at_once() {
        let lab = Lab::up();
        // what the killed rank has started still holds its streams; the other one sees the connection break
        let program = "import os, signal, socket, subprocess, sys, time
if os.environ['HOROVOD_RANK'] == '0':
    subprocess.Popen(['sleep', '300'])
    peer = socket.create_server(('', 21217)).accept()
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    try: peer = socket.create_connection((os.environ['FIRST'], 21217)); break
    except OSError: time.sleep(0.05)
peer.recv(1)
time.sleep(0.1)
sys.exit(1)";
        let first = format!("FIRST={}", address("node1"));
        for _ in 0..if FULL { 5 } else { 2 } {
            let run = lab.start(&["run", "-np", "2", "--gloo", "-e", &first, "--", "python3", "-c", program]);
            run.end(s(60)).code(137).complains(&["rank 0 on node1 was killed by signal 9"]);
        }
        no_job_is_left();
    }

    #[test]
    fn ranks_that_ignore_the_request_are_killed_after_their_time() {
        let lab = Lab::empty();
        lab.edit("[defaults]", "stop_grace_s = 2\n[defaults]");
        lab.hvdctl(&["up"]).code(0);
        for controller in controllers("--mpi") {
            // it has children, too, one of them in a session of its own
            let stubborn = "trap '' TERM INT HUP; setsid sleep 301 & sleep 302 & echo ready; while :; do sleep 1; done";
            let run = sleeping(&lab, controller, stubborn);
            run.signal("TERM");
            let done = run.end(s(60)).code(143);
            no_job_is_left();
            no_session_is_left(done.pid);
            for node in NODES {
                assert_eq!(processes(node, "^sleep 30[12]$"), "", "{node}");
            }
        }
    }

    #[test]
    fn after_a_failure_the_others_have_not_the_time_that_a_request_leaves() {
        let lab = Lab::empty();
        lab.edit("[defaults]", "stop_grace_s = 120\n[defaults]");
        lab.hvdctl(&["up"]).code(0);
        for controller in controllers("--gloo") {
            let program = "trap '' TERM INT HUP; echo ready
            [ \"${HOROVOD_RANK:-$OMPI_COMM_WORLD_RANK}\" = 0 ] || { sleep 2; exit 7; }
            while :; do sleep 1; done";
            let run = sleeping(&lab, controller, program);
            run.end(s(60)).code(7).complains(&["rank 1 on node2 ended with exit code 7"]);
            no_job_is_left();
            // what docs/reference/jobs.md promises; both nodes of the lab have one clock
            let result = on("node1", "ls -t /opt/horovod/jobs/*/result.json | head -n 1 | xargs cat");
            let result: serde_json::Value = serde_json::from_str(&result).unwrap();
            let mut times: Vec<f64> =
                result["exits"].as_array().unwrap().iter().map(|exit| exit["time"].as_f64().unwrap()).collect();
            times.sort_by(f64::total_cmp);
            assert!(times.len() == 2 && times[1] - times[0] < 5.0, "{controller}: {result}");
        }
    }

    #[test]
    fn a_rank_that_never_starts_ends_the_job_and_its_node_is_named() {
        let lab = Lab::empty();
        lab.edit("[defaults]", "start_timeout_s = 15\n[defaults]");
        lab.hvdctl(&["up"]).code(0);
        // Python comes up everywhere but where a supervisor is to run on node2
        let _restore = Restore(|| drop(on("node2", "docker rm -f hworker")));
        on(
            "node2",
            r##"docker exec -i hworker sh -e <<'END'
p=$(command -v python3)
mv "$p" "$p.real"
cat >"$p" <<EOF
#!/bin/sh
case \$1 in */rank_supervisor.py) exec sleep 600 ;; esac
exec $p.real "\$@"
EOF
chmod 755 "$p"
END"##,
        );
        for controller in controllers("--gloo") {
            let run = lab.start(&["run", "-np", "2", controller, "--", "sleep", "300"]);
            let done = run.end(s(100)).code(125);
            done.complains(&["not all ranks had started within 15 s: 0 of 1 on node2", "start_timeout_s"]);
            no_job_is_left();
            for node in NODES {
                assert_eq!(processes(node, "^sleep (300|600)$"), "", "{node}");
            }
            let jobs = lab.hvdctl(&["jobs"]).ok();
            assert!(jobs.contains("failed") && jobs.contains("0 of 1 on node2"), "{jobs}");
        }
    }

    #[test]
    fn what_a_program_leaves_behind_goes_though_it_lost_its_environment() {
        let lab = Lab::up();
        let leaves = "env -i setsid sleep 9711 & (env -i setsid sh -c 'sleep 9712; true' &)
        setsid sleep 9713 & while [ ! -e /opt/horovod/jobs/$HVDCTL_JOB/go ]; do sleep 0.1; done; echo left";
        for controller in controllers("--mpi") {
            let run = lab.start(&["run", "-np", "2", controller, "--", "sh", "-c", leaves]);
            let all = "pgrep -cfx 'sleep 971[123]' || :";
            assert!(eventually(s(60), || NODES.iter().all(|node| on(node, all) == "3\n")), "{controller}");
            for node in NODES {
                tell_jobs(node, "go", "");
            }
            run.end(s(60)).code(0).says(&["[0 node1] left", "[1 node2] left"]);
            no_job_is_left();
            for node in NODES {
                assert_eq!(processes(node, "sleep 971[123]$"), "", "{node} {controller}");
            }
        }
    }

    #[test]
    fn terminated() {
        signalled("TERM", 143, "--mpi");
    }
}
