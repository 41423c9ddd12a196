//! `exec` on every node, and `fetch`: outputs arrive as the nodes have them.

use crate::process::{eventually, s};
use crate::state::{FULL, Lab, NODES, no_job_is_left, no_session_is_left, node_sh, on, ours};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The number of processes of a node with this command line.
#[track_caller]
fn count(node: &str, words: &str) -> usize {
    // the brackets keep the search from finding itself
    let pattern = format!("^[{}]{}$", &words[..1], &words[1..]);
    node_sh(node, "pgrep -fc -- \"$1\"; :", &[&pattern]).ok().trim().parse().unwrap()
}

#[track_caller]
fn everywhere(words: &str, number: usize) {
    assert!(eventually(s(30), || NODES.iter().all(|node| count(node, words) == number)), "{words}: not {number} each");
}

#[test]
fn a_command_runs_on_every_node_and_ends_with_hvdctl() {
    let lab = Lab::up();
    let odd = "a  b'\"$(touch /tmp/hit)`touch /tmp/hit`\\n*;&| ü";
    let done = lab.hvdctl(&["exec", "--", "printf", "%s|", odd, ""]).ok();
    assert_eq!(done, format!("node[1-2] (2): {odd}||\n"));
    assert_eq!(lab.hvdctl(&["exec", "-c", "--", "printf", "%s|", odd, ""]).ok(), done);
    assert_eq!(lab.hvdctl(&["exec", "--", "id", "-un"]).ok(), "node[1-2] (2): workshop\n");
    assert_eq!(lab.hvdctl(&["exec", "--root", "--", "id", "-un"]).ok(), "node[1-2] (2): root\n");
    for node in NODES {
        assert_eq!(on(node, "[ ! -e /tmp/hit ] || echo hit"), "", "{node}: a shell has read an argument");
        let seen = lab.hvdctl(&["exec", "-c", "--on", node, "--", "sha256sum", "/root/.ssh/known_hosts"]).ok();
        let there = on(node, "sha256sum /opt/horovod/ssh/known_hosts");
        assert_eq!(seen.split_whitespace().nth(1), there.split_whitespace().next(), "{node}: not in its worker");
    }
    // only the master has the private key
    let script = "ls /opt/horovod/ssh; [ ! -f /opt/horovod/ssh/id_ed25519 ] || exit 9";
    let done = lab.hvdctl(&["exec", "--root", "--", "sh", "-c", script]).code(9);
    done.says(&["node1:\n  ", "node2:\n  "]).complains(&["node1: cannot run sh -c", "exit code 9"]);
    lab.hvdctl(&["exec", "--", "no-such-program"]).code(127).says(&["node[1-2] (2): ", "no-such-program"]);
    let done = lab.hvdctl(&["exec", "--on", "node1", "--", "head", "-c", "3000000", "/dev/zero"]).code(0);
    assert!(done.out.len() < 1_100_000 && done.out.contains(" omitted]"), "{} bytes", done.out.len());

    for (place, signal, code) in [("-c", "INT", 130), ("-c", "KILL", 137), ("--root", "KILL", 137), ("-q", "TERM", 143)]
    {
        let running = lab.start(&["exec", place, "--", "sh", "-c", "sleep 54321 & exec sleep 54321"]);
        everywhere("sleep 54321", 2);
        running.signal(signal);
        let done = running.end(s(60)).code(code);
        everywhere("sleep 54321", 0);
        if signal != "KILL" {
            no_session_is_left(done.pid);
        }
    }
    // it may hear nothing itself, or leave something behind that hears nothing
    let left = "(trap '' TERM; sleep 54321; :) & exec sleep 43211";
    lab.hvdctl(&["exec", "--timeout", "1s", "--", "sh", "-c", left]).code(124);
    everywhere("sleep 54321", 0);
    let deaf = "trap '' TERM; exec sleep 54321";
    lab.hvdctl(&["exec", "--timeout", "1s", "--", "sh", "-c", deaf]).code(124).complains(&["time limit", "--timeout"]);
    everywhere("sleep 54321", 0);

    lab.edit("host = \"node2\"", "host = \"node2\"\nssh_port = 1");
    lab.hvdctl(&["exec", "--", "id", "-un"])
        .code(125)
        .says(&["node1: workshop\n"])
        .complains(&["node2: cannot log in"]);
}

const WRITES: &str = r#"
import os, sys, torch, horovod.torch as hvd
hvd.init()
rank = hvd.rank()
os.makedirs('out put', exist_ok=True)
open('same', 'w').write('the same')
open('out put/log', 'w').write('of rank %d' % rank)
open('own-%d' % rank, 'w').write('x')
open('data', 'a').write('written by a job')
if rank == 0:
    open('best.pt', 'wb').write(bytes(range(256)) * 40000)
    os.chmod('best.pt', 0o640)
    os.path.lexists('latest') or os.symlink('best.pt', 'latest')
# none fails before the other has written
hvd.allreduce(torch.zeros(1))
sys.exit(3)
"#;

/// Everything in a directory but what fetching keeps there: names with hashes, or links with targets.
fn list(directory: &Path) -> String {
    let script = "cd \"$1\" && find . -name .hvdctl-fetch -prune -o -type l -printf '%P -> %l\\n' -o -type f -print |
        sort | while IFS= read -r f; do [ -f \"$f\" ] && [ ! -h \"$f\" ] && sha256sum \"$f\" || echo \"$f\"; done";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(directory);
    crate::process::run(command, s(20)).ok()
}

#[test]
fn outputs_are_fetched_even_after_a_failure() {
    let lab = Lab::up();
    let project = lab.project("writes", &[("train.py", WRITES), ("data", "shipped "), ("untouched", "x")]);
    let results = lab.path().join("results");
    let to = results.to_str().unwrap();
    lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--fetch", to]).code(3);
    let sum = |node: &str, name: &str| {
        let path = format!("/opt/horovod/projects/writes/{name}");
        node_sh(node, "sha256sum <\"$1\"", &[&path]).ok().split(' ').next().unwrap().to_owned()
    };
    let mut expected: Vec<String> = [
        ("node1", "best.pt", "./best.pt"),
        ("node1", "data", "./data"),
        ("node1", "out put/log", "./out put/log"),
        ("node2", "out put/log", "./node2/out put/log"),
        ("node1", "own-0", "./own-0"),
        ("node2", "own-1", "./own-1"),
        ("node1", "same", "./same"),
    ]
    .map(|(node, name, path)| format!("{}  {path}", sum(node, name)))
    .to_vec();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    expected.push("latest -> best.pt".into());
    expected.sort();
    assert_eq!(sorted(&list(&results)), expected);
    assert_eq!(fs::metadata(results.join("best.pt")).unwrap().permissions().mode() & 0o777, 0o640);

    // existing files are not fetched again, and foreign files are not overwritten
    lab.hvdctl(&["fetch", "-o", to]).code(0).says(&["unchanged"]);
    fs::write(results.join("same"), "mine").unwrap();
    lab.hvdctl(&["fetch", "-o", to]).code(1).complains(&["results/same", "--force"]);
    assert_eq!(fs::read_to_string(results.join("same")).unwrap(), "mine");
    lab.hvdctl(&["fetch", "-o", to, "--force"]).code(0);
    assert_eq!(sorted(&list(&results)), expected);

    // another time: only what is missing comes, and nothing but what the node has gets a name
    let again = lab.path().join("again");
    lab.hvdctl(&["fetch", "writes", "-o", again.to_str().unwrap()]).code(0);
    assert_eq!(sorted(&list(&again)), expected);
    fs::remove_file(again.join("best.pt")).unwrap();
    let parts = again.join(".hvdctl-fetch/parts");
    fs::create_dir_all(&parts).unwrap();
    fs::write(parts.join("cut off"), vec![7; 5_000_000]).unwrap();
    lab.hvdctl(&["fetch", "-o", again.to_str().unwrap()]).code(0).says(&["1 fetched, 7 unchanged"]);
    assert_eq!(sorted(&list(&again)), expected);
    assert!(!parts.exists(), "unfinished files are removed");

    // a later job's checkpoint replaces the one that was fetched
    on("node1", "echo newer >/opt/horovod/projects/writes/best.pt");
    lab.hvdctl(&["fetch", "-o", to]).code(0);
    assert_eq!(fs::read_to_string(results.join("best.pt")).unwrap(), "newer\n");

    lab.hvdctl(&["run", "-np", "1", "--launcher", "env", "--", "true"]).code(0);
    let id = lab.hvdctl(&["--json", "jobs"]).ok();
    let id: serde_json::Value = serde_json::from_str(&id).unwrap();
    let id = id["jobs"][0]["id"].as_str().unwrap();
    lab.hvdctl(&["fetch", id]).code(1).complains(&["has no project"]);
    // without an argument, the newest job that has one
    lab.hvdctl(&["fetch", "-o", to]).code(0).says(&["unchanged"]);
}

#[test]
fn an_interrupted_fetch_after_a_job_is_completed_by_the_hinted_command() {
    const SIZE: u64 = if FULL { 1 << 29 } else { 1 << 28 };
    let lab = Lab::up();
    // a hole costs the node nothing, and is on its way for a while like anything else
    let writes = format!("import os; os.truncate(os.open('large', os.O_CREAT | os.O_RDWR), {SIZE})");
    let project = lab.project("large", &[("train.py", &writes)]);
    let results = lab.path().join("the results");
    let to = results.to_str().unwrap();
    let mut run = lab.start(&["--on", "node1", "train", project.to_str().unwrap(), "-np", "1", "--fetch", to]);
    let parts = results.join(".hvdctl-fetch/parts");
    let so_far = || {
        let part = fs::read_dir(&parts).ok().and_then(|mut files| files.next()?.ok());
        part.map_or(0, |part| part.metadata().map_or(0, |metadata| metadata.len()))
    };
    let limit = Instant::now() + s(600);
    while so_far() == 0 && run.runs() && Instant::now() < limit {
        sleep(Duration::from_millis(5));
    }
    run.signal("INT");
    // the job itself went well
    let done = run.end(s(60)).code(125).complains(&["cannot fetch the outputs", "hint: hvdctl fetch "]);
    assert!(!results.join("large").exists(), "{}", done.err);
    no_session_is_left(done.pid);
    no_job_is_left();
    let serving = || node_sh("node1", "pgrep -af '[p]rojects/large'; :", &[]).out;
    assert!(eventually(s(30), || serving().is_empty()), "{}", serving());

    let again = done.err.lines().find_map(|line| line.trim().strip_prefix("hint: hvdctl ")).unwrap();
    let mut typed = Command::new("sh");
    typed.args(["-c", &format!("exec \"$0\" {again}"), env!("CARGO_BIN_EXE_hvdctl")]).current_dir(lab.path());
    typed.env_remove("HVDCTL_INVENTORY");
    crate::process::run(typed, s(120)).code(0).says(&["1 fetched"]);
    let there = node_sh("node1", "sha256sum <\"$1\"", &["/opt/horovod/projects/large/large"]).ok();
    let here = crate::process::run(sha256sum(&results.join("large")), s(60)).ok();
    assert_eq!(here.split(' ').next(), there.split(' ').next());
    assert!(!parts.exists(), "unfinished files are removed");
}

#[test]
fn files_outside_the_mounts_are_fetched_from_the_container_that_is_kept() {
    let lab = Lab::up();
    let write = |bytes: &str| {
        let script = format!("mkdir -p /root/ckpt && head -c {bytes} /dev/urandom >/root/ckpt/last.pt");
        lab.hvdctl(&["run", "-np", "2", "--map-by", "node", "--launcher", "env", "--", "sh", "-c", &script]).code(0)
    };
    write("5000000").complains(&["/root/ckpt/last.pt (4.8 MiB) on node1", "--from-container"]);
    let got = lab.path().join("got");
    let fetch = ["fetch", "--from-container", "-o", got.to_str().unwrap()];
    lab.hvdctl(&fetch).code(0).says(&["2 fetched"]);
    let size = |node: &str| fs::metadata(got.join(node).join("root/ckpt/last.pt")).unwrap().len();
    assert_eq!(NODES.map(size), [5_000_000; 2]);
    lab.hvdctl(&fetch).code(0).says(&["unchanged"]);
    // one stays, that of the newest job
    let stopped = || ours("node1").lines().filter(|line| line.ends_with(" exited")).count();
    assert_eq!(stopped(), 1, "{}", ours("node1"));
    write("6000000");
    assert_eq!(stopped(), 1, "{}", ours("node1"));
    assert!(!lab.hvdctl(&["doctor"]).out.contains("still exists"));
    lab.hvdctl(&["down"]).code(0);
    assert_eq!(ours("node1"), "");
}

fn sha256sum(file: &Path) -> Command {
    let mut command = Command::new("sha256sum");
    command.arg(file);
    command
}
