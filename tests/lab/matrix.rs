//! Every way in which a rank ends, under both controllers, next to the launcher and on another node: the exit code, the
//! message, and that nothing of the job is left. The template is the matrix of Horovod's own launcher tests
//! (test/integration/test_static_run.py).

use crate::process::{Running, eventually, s};
use crate::state::{FULL, IMAGE, Lab, NODES, controllers, no_job_is_left, on, ours, tell_jobs};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// The rank of the case prints 30 lines and ends in this way; all others would wait forever.
fn program(way: &str) -> String {
    format!(
        "[ ${{HOROVOD_RANK:-$OMPI_COMM_WORLD_RANK}} = $CULPRIT ] || exec sleep 300
         for i in $(seq 30); do echo line $i; done; {way}"
    )
}

/// The placement of two ranks, as arguments, and the rank and node that the case is about.
const ONE_NODE: (&[&str], u32, &str) = (&["--map-by", "slot"], 0, "node1");
const TWO_NODES: (&[&str], u32, &str) = (&["--map-by", "node"], 1, "node2");

/// Room for two ranks on the first node.
fn lab() -> Lab {
    let lab = Lab::up();
    lab.edit("host = \"node1\"", "host = \"node1\"\nslots = 2");
    lab
}

/// Runs it and then examines the nodes. Returns the last event.
#[track_caller]
fn ends(
    lab: &Lab,
    controller: &str,
    place: (&[&str], u32, &str),
    command: &[&str],
    code: i32,
    words: &[&str],
) -> Value {
    let culprit = format!("CULPRIT={}", place.1);
    let args = ["--json", "run", "-np", "2", "--stall-timeout", "5s", "-e", &culprit, controller];
    let done = lab.hvdctl(&[&args[..], place.0, &["--"], command].concat()).code(code);
    done.complains(words);
    no_job_is_left();
    assert_eq!(NODES.map(ours), ["hworker running\n", "hworker running\n"], "{controller} {command:?}");
    let id = on("node1", "ls -t /opt/horovod/jobs | head -n 1");
    let record = on("node1", &format!("cat /opt/horovod/jobs/{}/result.json", id.trim()));
    assert!(record.contains("\"stopped\": false"), "the job supervisor's own record: {record}");
    let last = lab.hvdctl(&["--json", "attach", id.trim()]).code(code).out;
    serde_json::from_str(last.lines().last().unwrap()).unwrap()
}

#[test]
fn a_rank_that_runs_out_of_memory() {
    let lab = lab();
    on("node2", "docker update --memory 256m --memory-swap 256m hworker");
    let eats = program("exec python3 -c 'all = [b\"x\" * (1 << 20) for i in range(2000)]'");
    for controller in controllers("--gloo") {
        let words = ["rank 1 on node2 ran out of memory", "hint: "];
        let end = ends(&lab, controller, TWO_NODES, &["sh", "-c", &eats], 137, &words);
        assert_eq!(end["job"]["root_cause"]["oom"], true, "{end}");
        // in the launcher's own container
        let waits = program(
            "while [ ! -e /opt/horovod/jobs/$HVDCTL_JOB/go ]; do sleep 0.1; done; exec python3 -c 'b\"x\" * (1 << 30)'",
        );
        let args = ["run", "-np", "2", "-e", "CULPRIT=0", controller, "--map-by", "slot", "--", "sh", "-c", &waits];
        let mut run = lab.start(&args);
        run.until(&["[0 node1] line 30"], s(60));
        on("node1", "docker update --memory 256m --memory-swap 256m hmaster");
        tell_jobs("node1", "go", "");
        run.end(s(60)).code(137).complains(&["rank 0 on node1 ran out of memory", "hint: "]);
        no_job_is_left();
    }
}

#[test]
fn a_rank_that_keeps_the_others_waiting_is_named() {
    let lab = lab();
    let program = "import os, time, torch, horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(1), name='first')
if hvd.rank() == int(os.environ['CULPRIT']): time.sleep(300)
hvd.allreduce(torch.ones(1), name='loss')";
    lab.edit("[defaults]", "idle_margin_s = 3\n[defaults]");
    // with MPI Horovod's own check names the operation; with Gloo the supervisors see which rank sleeps, and which
    // waits
    let sleeps = ["rank 1 on node2 hung: it was idle and wrote nothing for ", "hint: "];
    let named = ["rank 1 on node2 hung: the others waited 5 s for it in ", "loss", "hint: "];
    for controller in controllers("--gloo") {
        let (code, words) = if controller == "--mpi" { (1, &named[..]) } else { (143, &sleeps[..]) };
        let end = ends(&lab, controller, TWO_NODES, &["python3", "-c", program], code, words);
        assert_eq!(
            (&end["job"]["root_cause"]["how"], &end["job"]["root_cause"]["rank"]),
            (&"hung".into(), &1.into()),
            "{end}"
        );
    }
    // one that is busy while the others wait
    let busy = program.replace("time.sleep(300)", "exec('while True: pass')");
    let words = ["rank 1 on node2 hung: the others waited ", "hint: "];
    let end = ends(&lab, "--gloo", TWO_NODES, &["python3", "-c", &busy], 143, &words);
    assert_eq!(&end["job"]["first_failure"]["rank"], &0, "{end}");
}

/// A lab with two slots a node, where a rank that does nothing is reported after 3 s and ended after 17 s.
fn idle_lab() -> Lab {
    let lab = lab();
    lab.edit("host = \"node2\"", "host = \"node2\"\nslots = 2");
    lab.edit("[defaults]", "idle_margin_s = 12\nstall_warning_s = 3\n[defaults]");
    lab
}

/// Two ranks on a node that compute and then do nothing; with `EARLY` rank 1 hangs before it comes to the others, who
/// wait for it in `hvd.init`.
fn idle(lab: &Lab, on: &str, controller: &str, early: &[&str]) -> Running {
    let program = "import os, threading
rank = os.environ.get('HOROVOD_RANK') or os.environ['OMPI_COMM_WORLD_RANK']
if 'EARLY' in os.environ and rank == '1': threading.Event().wait()
import torch, horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(1), name='first')
print('computing', flush=True)
for _ in range(40 * 10**6): pass
threading.Event().wait()";
    let args = ["run", "-np", "2", "--on", on, "--stall-timeout", "5s", controller];
    lab.start(&[&args[..], early, &["--", "python3", "-c", program]].concat())
}

#[test]
fn an_idle_rank_is_named_even_if_no_other_waits() {
    let lab = idle_lab();
    let runs = [idle(&lab, "node1", "--gloo", &[]), idle(&lab, "node2", "--mpi", &["-e", "EARLY=1"])];
    // it is reported first, here and to every other hvdctl
    let is_reported = || runs[0].err().contains("made no progress since ");
    assert!(eventually(s(120), is_reported), "{}", runs[0].err());
    lab.hvdctl(&["jobs", "--running"]).code(0).says(&["running, rank", " idle since ", "waiting in futex"]);
    lab.hvdctl(&["status"]).says(&["(rank", " idle since "]);
    let ends = ["on node1 hung: ", "rank 1 on node2 hung: "];
    for (run, who) in runs.into_iter().zip(ends) {
        let done = run.end(s(180)).code(143);
        done.complains(&[who, "it was idle and wrote nothing for 1", "--stall-timeout gives it more time"]);
    }
    no_job_is_left();
}

/// The number of lines that each rank writes.
const LINES: usize = if FULL { 50_000 } else { 10_000 };

#[track_caller]
fn many_lines(lab: &Lab, controller: &str) {
    // many lines of each, a progress bar, bytes that are no UTF-8, a line longer than any buffer, and no newline at the
    // end
    let program = "import os, sys, time
out = sys.stdout.buffer
for i in range(int(sys.argv[1])): out.write(b'%d ' % i + b'x' * 200 + b'\\n')
for i in range(100): out.write(b'\\rbar %d' % i)
out.write(b'\\n' + b'y' * 300000 + b'\\n\\xff\\xfe end without newline')
out.flush()
time.sleep(4)";
    let options = ["run", "-np", "4", controller, "--log-progress"];
    let mut command = lab.command(&[&options[..], &["--", "python3", "-c", program, &LINES.to_string()]].concat());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // all is written on the nodes before a line of it is read here: 40 MB must not wait in memory, nor on the nodes
    let mut supervisors = 0;
    let over = eventually(s(120), || {
        let look = "for p in $(pgrep -x hvdctl-rank); do sed -n 's/^VmHWM:[^0-9]*\\([0-9]*\\).*/\\1/p' \
            /proc/$p/status; done; :";
        let seen = NODES.map(|node| on(node, look)).join("");
        supervisors = seen.lines().map(|kib| kib.parse().unwrap()).max().unwrap_or(0).max(supervisors);
        NODES.iter().all(|node| on(node, "cat /opt/horovod/jobs/*/states 2>/dev/null | grep -c ' x ' || :") == "2\n")
    });
    // 15 MiB of it are Python's own
    assert!((1..26 << 10).contains(&supervisors), "a supervisor held {supervisors} KiB of its rank's 10 MB");
    // nor when the job has ended, and what the followers had not brought by then is read
    let followers = "pgrep -fc '^tail -c [+]1 -f'; :";
    let over = over && eventually(s(120), || NODES.iter().all(|node| on(node, followers).trim() == "0"));
    let status = format!("/proc/{}/status", child.id());
    let status = || std::fs::read_to_string(&status).unwrap();
    let mut peak = status();
    let mut lines: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 4];
    for line in BufReader::new(child.stdout.take().unwrap()).split(b'\n') {
        let line = line.unwrap();
        let rank = usize::from(line[1] - b'0');
        let node = NODES[rank / 2];
        let text = line.strip_prefix(format!("[{rank} {node}] ").as_bytes());
        lines[rank].push(text.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&line))).to_vec());
        if lines[rank].len() == LINES {
            peak = status();
        }
    }
    assert!(child.wait().unwrap().success() && over);
    for of in &lines {
        for (i, line) in of.iter().take(LINES).enumerate() {
            assert_eq!(*line, format!("{i} {}", "x".repeat(200)).into_bytes());
        }
        for (i, line) in of[LINES..LINES + 100].iter().enumerate() {
            assert_eq!(*line, format!("bar {i}").into_bytes());
        }
        assert_eq!(of.iter().flatten().filter(|byte| **byte == b'y').count(), 300_000);
        assert_eq!(of.last().unwrap(), b"\xff\xfe end without newline");
    }
    let peak = peak.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(peak < 64 << 10, "{peak} KiB were held");
    no_job_is_left();
}

/// Tests of behaviour that other tests prove without a lab, or another one here in part (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn every_end_of_a_rank_under_both_controllers_on_one_node_and_on_two() {
        let lab = lab();
        let cases = [
            ("exit 7", 7, "ended with exit code 7"),
            ("kill -9 $$", 137, "was killed by signal 9"),
            ("kill -STOP $$", 137, "hung: it was stopped"),
        ];
        // a foreign program, and a foreign container of the same image
        let others = NODES.map(|node| {
            on(node, "HVDCTL_TEST=1 setsid sleep 9000 >/dev/null 2>&1 </dev/null &");
            on(node, &format!("docker run -d --network host --label hvdctl-test {IMAGE} sleep 9000"));
            let both = "for i in $(seq 300); do [ $(pgrep -cfx 'sleep 9000') != 2 ] || break; sleep 0.1; done";
            on(node, &format!("{both}; pgrep -fx 'sleep 9000' | sort"))
        });
        let all: Vec<_> = ["--gloo", "--mpi"]
            .into_iter()
            .flat_map(|controller| [ONE_NODE, TWO_NODES].map(|place| (controller, place, &cases[..])))
            .collect();
        for (controller, place, cases) in all {
            let end = ends(&lab, controller, place, &["sh", "-c", "echo done"], 0, &[]);
            assert_eq!((&end["job"]["state"], &end["job"]["root_cause"]), (&"succeeded".into(), &Value::Null), "{end}");
            for &(way, code, words) in cases {
                let words = format!("rank {} on {} {words}", place.1, place.2);
                let end = ends(&lab, controller, place, &["sh", "-c", &program(way)], code, &[&words]);
                assert_eq!(end["job"]["root_cause"]["rank"], place.1, "{end}");
                let wanted: Vec<String> = (11..=30).map(|i| format!("line {i}")).collect();
                assert_eq!(end["job"]["last_lines"], Value::from(wanted), "{controller} {way}");
                // the same later
                let jobs: Value = serde_json::from_str(&lab.hvdctl(&["--json", "jobs"]).ok()).unwrap();
                let reason = jobs["jobs"][0]["reason"].as_str().unwrap_or_default();
                assert!(reason.starts_with(&words), "{reason}");
                assert_eq!(jobs["jobs"][0]["state"], "failed");
            }
        }
        assert_eq!(NODES.map(|node| on(node, "pgrep -fx 'sleep 9000' | sort")), others, "others were touched");
        assert!(others.iter().all(|pids| pids.lines().count() == 2), "{others:?}");
    }

    #[test]
    fn many_lines_of_many_ranks_come_whole_while_the_reader_sleeps() {
        let lab = lab();
        lab.edit("host = \"node2\"", "host = \"node2\"\nslots = 2");
        for controller in controllers("--gloo") {
            lab.hvdctl(&["jobs", "prune", "-y"]).code(0);
            many_lines(&lab, controller);
        }

        // the last lines are those of all lines, however far back they begin
        let all = lab.hvdctl(&["logs", "--rank", "1"]).ok();
        let all: Vec<&str> = all.lines().collect();
        for tail in [1, 3, LINES / 2, all.len(), 2 * LINES] {
            let last = lab.hvdctl(&["logs", "--rank", "1", "-n", &tail.to_string()]).ok();
            assert!(last.lines().eq(all[all.len().saturating_sub(tail)..].iter().copied()), "the last {tail} lines");
        }

        // a log that breaks off in the middle is no log that has ended
        let mut command = lab.command(&["logs"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let reader = "pgrep -f '^tail -c [+]1 log'; :";
        assert!(eventually(s(60), || NODES.iter().all(|node| !on(node, reader).is_empty())));
        on("node2", &format!("kill -9 {}", on("node2", reader).trim()));
        let done = child.wait_with_output().unwrap();
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{complaint}");
        assert!(complaint.contains("node2: cannot read the job's log"), "{complaint}");
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(
            text.lines().filter(|line| line.starts_with("[0 node1]")).count() > LINES,
            "what could be read is shown"
        );
    }

    #[test]
    fn ranks_that_all_hang_and_one_that_does_not_come_to_the_others_are_named() {
        let lab = idle_lab();
        // with MPI Horovod's own thread takes a core meanwhile; with Gloo those that came give up, and say for whom
        // they waited
        let all = idle(&lab, "node2", "--mpi", &[]);
        let done = idle(&lab, "node1", "--gloo", &["-e", "EARLY=1", "-e", "HOROVOD_GLOO_TIMEOUT_SECONDS=5"])
            .end(s(60))
            .code(134);
        done.complains(&["rank 1 on node1 hung: the others waited 5 s for it in hvd.init"]);
        let leaves = "import os, sys, horovod.torch as hvd
sys.exit() if os.environ['HOROVOD_RANK'] == '1' else hvd.init()";
        let early = ["run", "-np", "2", "--on", "node1", "--gloo", "-e", "HOROVOD_GLOO_TIMEOUT_SECONDS=5"];
        let done = lab.hvdctl(&[&early[..], &["--", "python3", "-c", leaves]].concat()).code(134);
        done.complains(&["rank 1 on node1 ended with exit code 0 while the others waited for it", "hint: "]);
        let done = all.end(s(180)).code(143);
        done.complains(&["on node2 hung: ", "it was idle and wrote nothing for 1"]);
        no_job_is_left();
    }
}
