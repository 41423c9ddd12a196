//! `train` and `run`: placement, arguments, environment, files and output of ranks.

use crate::process::{Done, run, s};
use crate::state::{
    FULL, Lab, NODES, address, controllers, files_with, no_job_is_left, no_session_is_left, node_sh, on, ours,
    tell_jobs,
};
use crate::watch::{Watcher, has};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Says which rank is where on both streams, reads a shipped file and writes one beside it.
pub const WHO: &str = r#"
import os, socket, sys
rank = os.environ.get("HOROVOD_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
data = open("data.txt").read()
print("out", rank, socket.gethostname(), os.getcwd(), data)
print("err", rank, socket.gethostname(), file=sys.stderr)
open("seen-by-" + rank, "w").write(socket.gethostname())
"#;

#[test]
fn every_rank_runs_in_its_place_with_the_project_there() {
    let lab = Lab::up_with_full_image();
    // each of them takes an interface in a way of its own
    let nets = ["HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"];
    let program = format!("{WHO}\nprint('net', rank, *(os.environ.get(name) for name in {nets:?}))");
    let project = lab.project("who", &[("train.py", &program), ("data.txt", "data with  spaces")]);
    let project = project.to_str().unwrap();
    for controller in ["gloo", "mpi"] {
        let done = lab.hvdctl(&["train", project, "-np", "2", "--controller", controller]).code(0);
        no_job_is_left();
        no_session_is_left(done.pid);
        for (rank, node) in NODES.iter().enumerate() {
            let out = format!("[{rank} {node}] out {rank} {node} /workspace data with  spaces");
            let err = format!("[{rank} {node}] err {rank} {node}");
            let mpi = if controller == "mpi" { "eth0" } else { "None" };
            let net = format!("[{rank} {node}] net {rank} eth0 eth0 =eth0 {mpi}");
            assert!(done.out.lines().any(|l| l == net), "{controller}: no {net:?} in\n{}", done.out);
            assert_eq!(done.out.lines().filter(|l| *l == out).count(), 1, "{controller}: {out:?} in\n{}", done.out);
            assert_eq!(done.err.lines().filter(|l| *l == err).count(), 1, "{controller}: {err:?} in\n{}", done.err);
        }
        // nothing but the ranks' lines on standard output, and none of the other stream's
        assert!(done.out.lines().all(|l| l.starts_with('[')) && !done.out.contains("] err "), "{}", done.out);
        assert!(!done.err.contains("] out "), "{}", done.err);
    }
    let dir = "/opt/horovod/projects/who";
    for (rank, node) in NODES.iter().enumerate() {
        let there = on(node, &format!("cd {dir} && ls && cat seen-by-*"));
        assert_eq!(there, format!("data.txt\nseen-by-{rank}\ntrain.py\n{node}"), "{node}");
    }
    assert_eq!(on("node2", "docker exec hworker cat /workspace/data.txt"), "data with  spaces");
    assert_eq!(on("node2", "docker inspect -f '{{index .Config.Labels \"hvdctl.workspace\"}}' hworker").trim(), dir);
}

#[test]
fn the_environment_of_a_job_reaches_its_ranks() {
    let lab = Lab::empty();
    lab.edit("host = \"node1\"", "host = \"node1\"\nslots = 2\nenv = { A = \"inventory\", B = \"inventory\" }");
    lab.hvdctl(&["up"]).code(0);
    let file = lab.path().join("variables");
    std::fs::write(&file, "B=file\nC=from the file\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    // long enough to be watched on a busy node
    let program = ["--", "sh", "-c", "echo $A/$B/$C/$D; sleep 2"];

    // nothing is started, and the exact command line is shown
    let words = ["run", "-np", "2", "--dry-run", "--map-by", "node", "--stall-timeout", "90s"];
    let dry = lab.hvdctl(&[&words[..], &program].concat()).code(0);
    dry.says(&[
        "each rank: sh -c 'echo $A/$B/$C/$D; sleep 2'",
        &format!("-H {}:1,{}:1", address("node1"), address("node2")),
        "-seconds 90 ",
    ]);
    // by default, no silence ends a job
    let dry = lab.hvdctl(&[&["run", "-np", "2", "--mpi", "--dry-run"][..], &program].concat()).code(0);
    dry.says(&["horovodrun --mpi -np 2", "--stall-check-shutdown-time-seconds 0 "]);
    for node in NODES {
        assert_eq!(on(node, "ls /opt/horovod/jobs 2>/dev/null; :"), "", "{node}");
    }

    let watchers = NODES.map(Watcher::on_arguments);
    let run = |words: &[&str]| {
        let given = ["run", "-np", "2", "--env-file", file, "-e", "D=d of it", "-e", "C=own"];
        lab.hvdctl(&[&given[..], words, &program].concat()).code(0).out
    };
    let both = run(&[]);
    let mut lines: Vec<&str> = both.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0 node1] inventory/file/own/d of it", "[1 node1] inventory/file/own/d of it"]);
    let both = run(&["--map-by", "node", "--mpi"]);
    let mut lines: Vec<&str> = both.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0 node1] inventory/file/own/d of it", "[1 node2] /file/own/d of it"]);
    // on no command line of a node, though the launcher's were seen
    for (node, watcher) in NODES.iter().zip(watchers) {
        let seen = watcher.stop();
        assert!(has(&seen, "rank_supervisor.py") && !has(&seen, "from the file") && !has(&seen, "d of it"), "{node}");
    }
    // and stays nowhere
    for node in NODES {
        assert_eq!(files_with(node, "from the file", "/opt/horovod"), [""; 0], "{node}");
    }
}

#[test]
fn a_program_of_the_image_needs_no_project() {
    let lab = Lab::up();
    let program = "import os; print(os.environ['HOROVOD_RANK'], os.getcwd(), os.path.exists('/workspace/data.txt'))";
    let done = lab.hvdctl(&["run", "-np", "2", "--", "python3", "-c", program]).code(0);
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0 node1] 0 / False", "[1 node2] 1 / False"]);
    // a node that is not the master can be chosen, too
    assert_eq!(lab.hvdctl(&["--on", "node2", "run", "-np", "1", "--", "uname", "-n"]).ok(), "[0 node2] node2\n");
    assert_eq!(NODES.map(ours), ["hworker running\n", "hworker running\n"]);
    // one rank alone is on the master, and its standard input is empty
    let done =
        lab.hvdctl(&["run", "-np", "1", "--mpi", "--", "sh", "-c", "cat; echo $OMPI_COMM_WORLD_SIZE; exit 3"]).code(3);
    assert_eq!(done.out, "[0 node1] 1\n");
    for node in NODES {
        on(node, "! ls -A /opt/horovod/projects | grep .");
    }
    no_job_is_left();
}

/// The lines of rank 0 about each epoch, without the time that it took.
fn epochs(out: &str) -> Vec<&str> {
    out.lines()
        .filter(|line| line.starts_with("[0 node1] epoch "))
        .map(|line| line.rsplit_once(", ").unwrap().0)
        .collect()
}

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits");

/// Trains on the digits from the first epoch to the last.
#[track_caller]
fn learn(lab: &Lab) -> Done {
    let before = std::fs::read_dir(DIGITS).unwrap().count();
    let epochs = if FULL { "15" } else { "6" };
    let program = ["python3", "train.py", "--epochs", epochs];
    let done = lab.hvdctl(&[&["train", DIGITS, "-np", "2", "--gloo", "--"], &program[..]].concat()).code(0);
    let done = done.says(&["[0 node1] rank 0 of 2 on node1", "[1 node2] rank 1 of 2 on node2"]);
    let accuracy: f64 = test_accuracy(&done).split_whitespace().nth(4).unwrap().parse().unwrap();
    assert!(accuracy >= if FULL { 0.95 } else { 0.9 }, "{}", test_accuracy(&done));
    on("node1", "test -s /opt/horovod/projects/digits/checkpoint.pt");
    on("node2", "test ! -e /opt/horovod/projects/digits/checkpoint.pt");
    assert_eq!(std::fs::read_dir(DIGITS).unwrap().count(), before, "nothing is written to the project here");
    done
}

/// The line with the accuracy at the end.
#[track_caller]
fn test_accuracy(done: &Done) -> &str {
    let line = done.out.lines().rfind(|line| line.starts_with("[0 node1] test accuracy "));
    line.unwrap_or_else(|| panic!("{}", done.out))
}

#[test]
fn each_rank_has_a_colour_of_its_own_where_colours_are_wanted() {
    let lab = Lab::up();
    let lines = |when: &str| lab.hvdctl(&["--color", when, "run", "-np", "2", "--", "echo", "text"]).ok();
    let seen = lines("always");
    for bracket in ["\u{1b}[38;5;33m[0 node1]\u{1b}[0m text\n", "\u{1b}[38;5;166m[1 node2]\u{1b}[0m text\n"] {
        assert!(seen.contains(bracket), "{seen:?}");
    }
    assert!(!lines("never").contains('\u{1b}'));
}

#[test]
fn arguments_arrive_byte_for_byte() {
    let lab = Lab::up();
    let project = lab.project("words", &[("train.py", "")]);
    // Python has a byte that is not UTF-8 as a lone surrogate
    let program =
        "import json, os, sys; print(json.dumps([os.fsencode(word).decode('latin-1') for word in sys.argv[1:]]))";
    let words = [
        "a b",
        "$HOME",
        "q'q",
        "--json",
        "-np",
        "*",
        "",
        "two\nlines",
        "\"",
        "\\",
        "`id`",
        "$(id)",
        "--",
        "é€",
        "!x",
        "~",
        "{a,b}",
        ";",
        "%s",
        " lead",
        "#",
    ];
    for controller in controllers("--gloo") {
        let args = ["train", project.to_str().unwrap(), "-np", "2", controller, "--", "python3", "-c", program];
        let mut train = lab.command(&args);
        train.args(words).arg(OsStr::from_bytes(b"no \xff UTF-8"));
        let done = run(train, s(120)).code(0);
        for (rank, node) in NODES.iter().enumerate() {
            let prefix = format!("[{rank} {node}] ");
            let line = done.out.lines().find_map(|l| l.strip_prefix(&prefix)).unwrap_or_else(|| panic!("{}", done.out));
            let bytes = |word: String| word.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect::<Vec<u8>>();
            let came: Vec<Vec<u8>> = serde_json::from_str::<Vec<_>>(line).unwrap().into_iter().map(bytes).collect();
            let sent = words.iter().map(|word| word.as_bytes()).chain([&b"no \xff UTF-8"[..]]);
            assert!(came.iter().map(Vec::as_slice).eq(sent), "{controller}, {node}: {line}");
        }
    }
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn every_job_has_its_own_project() {
        let lab = Lab::up();
        let show = "print(open('/workspace/mine').read())";
        let projects = ["one", "two"].map(|name| lab.project(name, &[("train.py", show), ("mine", name)]));
        let all = [(0, "--gloo"), (1, "--mpi"), (0, "--mpi"), (0, "--gloo")];
        for &(i, controller) in if FULL { &all[..] } else { &all[..2] } {
            // named after the working directory, as well
            let mut train = lab.command(&["train", ".", "-np", "2", controller]);
            train.current_dir(&projects[i]).env("HVDCTL_INVENTORY", lab.inventory());
            let done = run(train, s(120)).code(0);
            let mut lines: Vec<&str> = done.out.lines().collect();
            lines.sort_unstable();
            let name = ["one", "two"][i];
            assert_eq!(lines, [format!("[0 node1] {name}"), format!("[1 node2] {name}")]);
        }
        assert_eq!(on("node2", "ls /opt/horovod/projects"), "one\ntwo\n");
        // `up` takes no worker away from the project that it has
        lab.hvdctl(&["up"]).code(0).says(&["nothing to do"]);
    }

    #[test]
    fn json_is_a_line_per_event_and_ends_with_the_code() {
        let lab = Lab::up();
        let waits = "import time\nwhile not os.path.exists('/opt/horovod/jobs/' + os.environ['HVDCTL_JOB'] + '/go'): \
            time.sleep(0.1)";
        let program = format!("{WHO}\n{waits}\nif rank == '1': sys.exit(7)\ntime.sleep(300)");
        let project = lab.project("who", &[("train.py", &program), ("data.txt", "d")]);
        let mut run = lab.start(&["--json", "train", project.to_str().unwrap(), "-np", "2"]);
        run.until(&["out 0 node1", "err 0 node1", "out 1 node2", "err 1 node2"], s(60));
        for node in NODES {
            tell_jobs(node, "go", "");
        }
        let done = run.end(s(60)).code(7);
        let events: Vec<Value> =
            done.out.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l:?}"))).collect();
        assert!(events.iter().all(|e| e["event"].is_string()), "{}", done.out);
        let output = |rank: usize, stream: &str| {
            let of = |e: &&Value| {
                e["event"] == "output" && e["rank"] == rank && e["stream"] == stream && e["node"] == NODES[rank]
            };
            events.iter().filter(of).map(|e| e["line"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        for (rank, node) in NODES.iter().enumerate() {
            assert_eq!(output(rank, "stdout"), [format!("out {rank} {node} /workspace d")]);
            assert_eq!(output(rank, "stderr"), [format!("err {rank} {node}")]);
        }
        let last = events.last().unwrap();
        assert_eq!((&last["event"], &last["ok"], &last["code"]), (&"end".into(), &false.into(), &7.into()));
        let states: Vec<&str> =
            events.iter().filter(|e| e["event"] == "job").map(|e| e["state"].as_str().unwrap()).collect();
        assert_eq!(states.first(), Some(&"starting"));
        assert_eq!(states.last(), Some(&"failed"));
        // an error before the job is a line too
        let done = lab.hvdctl(&["--json", "train", "no-such-project", "-np", "2"]).code(2);
        let end: Value = serde_json::from_str(done.out.trim()).unwrap();
        assert_eq!((&end["event"], &end["ok"], &end["code"]), (&"end".into(), &false.into(), &2.into()));
    }

    #[test]
    fn the_digits_are_learnt() {
        learn(&Lab::up());
    }

    #[test]
    fn a_program_that_cannot_be_started_is_said_so() {
        let lab = Lab::up();
        let project = lab.project("fail", &[("main.py", "")]);
        // the codes are those of shells and `docker run`
        for (program, code, words) in [
            ("no-such-program", 127, "cannot start no-such-program: No such file"),
            ("/etc/hostname", 126, "cannot start /etc/hostname: Permission denied: it is not executable"),
            // its file is here
            ("./main.py", 2, "./main.py is not executable"),
        ] {
            let done = lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--", program]).code(code);
            done.complains(&[words]);
            no_job_is_left();
        }
    }

    #[test]
    fn a_progress_bar_is_seen_while_it_moves() {
        let lab = Lab::up();
        let bar = "import time
for i in range(3): print(f'\\rstep {i}', end='', flush=True)
print('\\r\\ndone\\r\\n\\nand a prompt', end='', flush=True)
time.sleep(300)";
        let mut run = lab.start(&["run", "-np", "1", "--log-progress", "--", "python3", "-c", bar]);
        let lines =
            ["step 0", "step 1", "step 2", "done", "", "and a prompt"].map(|l| format!("[0 node1] {l}\n")).concat();
        run.until(&[&lines], s(60));
        run.signal("TERM");
        assert_eq!(run.end(s(60)).code(143).out, lines);
    }

    #[test]
    fn a_checkpoint_can_be_written_after_the_request_to_end() {
        let lab = Lab::up();
        // a helper of the program's must not be taken from it while it saves
        let saves = "import multiprocessing, signal, sys, time
def helper(): time.sleep(300)
def save(*_):
    time.sleep(1)
    print('saved', worker.is_alive(), flush=True)
    worker.kill()
    sys.exit(0)
worker = multiprocessing.Process(target=helper)
worker.start()
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
while True: time.sleep(1)";
        for controller in controllers("--gloo") {
            let mut run = lab.start(&["run", "-np", "2", controller, "--", "python3", "-c", saves]);
            run.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
            run.signal("INT");
            run.end(s(60)).code(130).says(&["[0 node1] saved True", "[1 node2] saved True"]);
            no_job_is_left();
        }
    }

    #[test]
    fn a_rank_that_is_killed_goes_on_from_its_checkpoint_and_comes_to_the_same() {
        let lab = Lab::up();
        let done = learn(&lab);
        let last = test_accuracy(&done);
        // again from the beginning, in a directory of its own; as soon as there is a checkpoint its rank is killed
        for controller in ["--gloo", "--mpi"] {
            let name = format!("killed{controller}");
            let run = lab.start(&["train", DIGITS, "--as", &name, "-np", "2", controller, "--restarts", "1"]);
            let kill =
                "for i in $(seq 1000); do [ ! -e /opt/horovod/projects/$1/checkpoint.pt ] || break; sleep 0.05; done
                kill -9 $(grep -lzxF HVDCTL_PROGRAM=1 /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3)";
            node_sh("node1", kill, &[&name]).code(0);
            let again =
                run.end(s(200)).code(0).complains(&["rank 0 on node1 was killed by signal 9", "attempt 2 of 2"]);
            let (_, resumed) =
                again.out.split_once("[0 node1] resumed from checkpoint.pt after epoch ").expect("a checkpoint");
            let at: usize = resumed.lines().next().unwrap().parse().unwrap();
            assert!((1..15).contains(&at), "{}", again.out);
            // with the same seed and number of ranks it comes to the same, bit for bit, from the first epoch to the
            // last
            let whole = epochs(&done.out);
            assert_eq!((whole.len(), epochs(resumed)), (15, whole[at..].to_vec()));
            assert!(again.out.lines().any(|line| line == last), "{}", again.out);
            no_job_is_left();
        }
    }
}
