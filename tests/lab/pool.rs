//! The pool of node pairs (`scripts/lab up --pairs N`): a test checks one out, and as many tests run at once as there
//! are pairs.
//!
//! Each test has a thread of its own and holds one pair, so functions that examine a node ([`node_sh`] and its callers)
//! take only the node's name and use the pair of their thread.

use crate::process::{Done, Running, eventually, run, s};
use rustix::fs::{FlockOperation, flock};
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Both nodes of a pair, the master first.
pub const NODES: [&str; 2] = ["node1", "node2"];

/// The third node, which only one pair has.
pub const THIRD: &str = "node3";

/// The time for which a test waits for a free pair.
const WAIT: Duration = s(3600);

/// A pair that only this test uses. Dropping it releases the lock file.
pub struct Pair {
    _lock: File,
    started: Instant,
}

/// The pair of this thread, and the first process of each of its nodes.
struct Held {
    name: String,
    nodes: [Option<Process>; 3],
}

/// A process of this machine, identified by its id and its start time.
#[derive(Clone, PartialEq)]
struct Process {
    pid: u32,
    started: String,
}

impl Process {
    fn of(pid: u32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // proc(5): the 22nd field; the name in parentheses may have spaces
        let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.to_owned();
        Some(Process { pid, started })
    }

    fn runs(&self) -> bool {
        Process::of(self.pid).as_ref() == Some(self)
    }
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// The lab's own directory.
fn lab_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".lab")
}

/// The files that all pairs share: the operator's key and the nodes' passwords.
pub fn shared_file(name: &str) -> PathBuf {
    lab_root().join(name)
}

/// The directory of this test's pair: its ssh configuration and known hosts.
pub fn lab_dir() -> PathBuf {
    lab_root().join(pair_name())
}

/// The name of this test's pair, `p1` or the like.
#[track_caller]
pub fn pair_name() -> String {
    HELD.with_borrow(|held| held.as_ref().expect("this test has checked out no pair").name.clone())
}

/// The number of this test's pair, from 1.
#[track_caller]
pub fn pair_number() -> u8 {
    pair_name()[1..].parse().unwrap()
}

impl Pair {
    /// Waits for a pair that no other test holds.
    #[track_caller]
    pub fn check_out() -> Pair {
        Pair::check_out_with(&NODES)
    }

    /// Waits for a pair that has at least these nodes.
    #[track_caller]
    pub fn check_out_with(nodes: &[&str]) -> Pair {
        let has_all = |config: &str| nodes.iter().all(|node| config.lines().any(|line| line == format!("Host {node}")));
        let mut names: Vec<String> = fs::read_dir(lab_root())
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| fs::read_to_string(entry.path().join("ssh_config")).is_ok_and(|config| has_all(&config)))
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert!(!names.is_empty(), "there is no pool of node pairs with {nodes:?}: scripts/lab up --pairs 2");
        let end = Instant::now() + WAIT;
        loop {
            for name in &names {
                let lock = File::create(lab_root().join(name).join("lock")).unwrap();
                if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    HELD.set(Some(Held { name: name.clone(), nodes: [None, None, None] }));
                    nodes.iter().for_each(|node| wake(node));
                    return Pair { _lock: lock, started: Instant::now() };
                }
            }
            assert!(Instant::now() < end, "no pair became free within {} s", WAIT.as_secs());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        HELD.set(None);
        // scripts/test shows the slowest tests
        if let Some(file) = std::env::var_os("HVDCTL_TEST_TIMES") {
            let name = thread::current().name().unwrap_or("?").to_owned();
            let line = format!("{:.1} {name}\n", self.started.elapsed().as_secs_f64());
            let file = File::options().append(true).create(true).open(file);
            let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
    }
}

/// The lab's container that is the node.
fn container(node: &str) -> String {
    format!("hvdctl-lab-{}-{node}", pair_name())
}

/// The process id of a node's first process, as this machine counts; none where the node does not run.
pub fn init_of(node: &str) -> Option<u32> {
    let at = NODES
        .iter()
        .chain([&THIRD])
        .position(|name| *name == node)
        .unwrap_or_else(|| panic!("a pair has no node {node}"));
    let known = HELD.with_borrow(|held| held.as_ref().and_then(|held| held.nodes[at].clone()));
    if let Some(process) = known.filter(Process::runs) {
        return Some(process.pid);
    }
    let mut inspect = Command::new("docker");
    inspect.args(["inspect", "-f", "{{.State.Pid}}", &container(node)]);
    let process = run(inspect, s(30)).code(0).out.trim().parse().ok().filter(|pid| *pid > 0).and_then(Process::of);
    HELD.with_borrow_mut(|held| held.as_mut().unwrap().nodes[at] = process.clone());
    process.map(|process| process.pid)
}

/// Starts a node that is paused or switched off.
#[track_caller]
pub fn wake(node: &str) {
    let mut inspect = Command::new("docker");
    inspect.args(["inspect", "-f", "{{.State.Status}}", &container(node)]);
    match run(inspect, s(30)).ok().trim() {
        "running" => return,
        "paused" => power(&["unpause"], node),
        _ => power(&["start"], node),
    }
    let ready = "test -e /run/node-ready && docker version >/dev/null 2>&1";
    assert!(eventually(s(60), || node_sh(node, ready, &[]).code == 0), "{node} does not come back");
}

/// A program as root on a node, in its namespaces, which takes milliseconds and needs no engine.
#[track_caller]
pub fn node_command(node: &str, argv: &[&str]) -> Command {
    let mut command = match init_of(node) {
        Some(pid) => {
            let mut command = Command::new("nsenter");
            command.args([
                "--mount",
                "--uts",
                "--ipc",
                "--net",
                "--pid",
                "--cgroup",
                "--target",
                &pid.to_string(),
                "--",
            ]);
            command.args(argv);
            command
        }
        None => {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo {node} does not run >&2; exit 125")]);
            command
        }
    };
    command.env_clear().env("HOME", "/root");
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// A shell script as root on a node, with arguments.
#[track_caller]
pub fn node_sh(node: &str, script: &str, args: &[&str]) -> Done {
    run(node_command(node, &[&["sh", "-c", script, "sh"], args].concat()), s(60))
}

/// Runs a shell script as root on both nodes at once.
#[track_caller]
pub fn both_sh(script: &str, args: &[&str]) -> [Done; 2] {
    let argv = [&["sh", "-c", script, "sh"], args].concat();
    NODES.map(|node| Running::start(node_command(node, &argv), &[])).map(|running| running.end(s(120)))
}

/// Runs a Docker command on a node of the pair, which is a container of this machine's engine: `pause`, `kill`, `start`
/// …
#[track_caller]
pub fn power(words: &[&str], node: &str) {
    let mut command = Command::new("docker");
    command.args(words).arg(container(node));
    run(command, s(60)).code(0);
}

/// The output of `docker network inspect` for the pair's network.
#[track_caller]
fn network(format: &str) -> String {
    let mut command = Command::new("docker");
    command.args(["network", "inspect", "-f", format, &format!("hvdctl-lab-{}", pair_name())]);
    run(command, s(30)).ok().trim().to_owned()
}

/// The address of this machine in the pair's network.
#[track_caller]
pub fn gateway() -> String {
    let subnet = network("{{(index .IPAM.Config 0).Subnet}}");
    format!("{}.1", subnet.rsplit_once('.').unwrap().0)
}

/// This machine's interface in the pair's network.
#[track_caller]
pub fn network_bridge() -> String {
    format!("br-{}", &network("{{.Id}}")[..12])
}
