//! Leases: every node is locked while a command changes it; and what an interrupted command leaves.

use crate::process::{Running, eventually, kill, s};
use crate::state::{FULL, Lab, NODES, Restore, no_session_is_left, node_sh, on, ours};
use serde_json::Value;

const FILE: &str = "/run/hvdctl/lab.lease";

/// The lease file of a node.
#[track_caller]
fn lease(node: &str) -> String {
    on(node, &format!("cat {FILE} 2>/dev/null; :"))
}

/// Another command holds both nodes and renewed its leases so many seconds ago.
#[track_caller]
fn somebody_holds(ago: i32) {
    for node in NODES {
        let write = "mkdir -p /run/hvdctl && printf 'id 0\nholder bob@laptop\npid 4711\npurpose hvdctl down\nsince %s\n' \
                     $(($(date +%s) - 60)) >\"$1\" && touch -d \"-$2 seconds\" \"$1\"";
        node_sh(node, write, &[FILE, &ago.to_string()]).code(0);
    }
}

#[track_caller]
fn assert_unlocked() {
    NODES.iter().for_each(|node| drop(on(node, &format!("rm -f {FILE}"))));
}

/// Asserts that no node is locked any more.
#[track_caller]
pub fn is_given_back() {
    is_given_back_after("");
}

#[track_caller]
fn is_given_back_after(what: &str) {
    // at once, or where the way to the node is gone by its own time-out
    let is_empty = || NODES.iter().all(|node| lease(node).is_empty());
    // one that was being taken when its hvdctl was killed comes once more, for a moment
    let given_back = eventually(s(45), || {
        let was_empty = is_empty();
        std::thread::sleep(std::time::Duration::from_millis(500));
        was_empty && is_empty()
    });
    let seen = NODES.map(|node| {
        on(node, "ps axo pid,ppid,etimes,wchan:20,args | grep -v ' ps axo'; ls -l --full-time /run/hvdctl")
    });
    assert!(given_back, "{what}: {:?}\n{}", NODES.map(lease), seen.join("\n---\n"));
}

/// An `up` that runs until this is dropped: it holds both leases, and the engine of node2 does not answer.
struct Held<'a> {
    up: Running,
    _engine: Restore<Box<dyn FnMut() + 'a>>,
}

#[track_caller]
fn up_is_held(lab: &Lab) -> Held<'_> {
    on("node2", "kill -STOP $(pidof dockerd)");
    let engine = Restore(Box::new(|| drop(on("node2", "kill -CONT $(pidof dockerd)"))) as Box<dyn FnMut()>);
    let up = lab.start(&["-v", "up"]);
    assert!(eventually(s(60), || NODES.iter().all(|node| lease(node).contains("hvdctl up"))), "{}", up.err());
    Held { up, _engine: engine }
}

#[test]
fn the_lock_of_a_killed_command_is_released() {
    let lab = Lab::empty();
    let held = up_is_held(&lab);
    let pid = held.up.pid();
    held.up.signal("KILL");
    is_given_back();
    drop(held);
    lab.hvdctl(&["up"]).code(0);
    // the next hvdctl ends what it left on this machine
    no_session_is_left(pid);
    assert_eq!(NODES.map(ours), ["hworker running\n"; 2]);
}

/// A step of a command: what hvdctl prints when it begins, and a program of the step on node2, by which it can be held
/// there.
struct Step {
    args: &'static [&'static str],
    says: &'static str,
    program: &'static str,
    /// A text among the program's arguments at that time.
    argument: &'static str,
    /// Set if it changes the node, and so is finished before an interrupted hvdctl ends.
    changes: bool,
}

const UP: &[&str] = &["-v", "up"];
const PURGE: &[&str] = &["-v", "down", "--purge", "-y"];
const STEPS: [Step; 5] = [
    Step { args: UP, says: "node2: reading the node state", program: "date", argument: "", changes: false },
    Step { args: UP, says: "node2: writing keys", program: "chown", argument: "0:0", changes: true },
    Step { args: UP, says: "node2: starting hworker", program: "ss", argument: "src", changes: true },
    Step {
        args: PURGE,
        says: "node2: reading the node state",
        program: "docker",
        argument: "dial-stdio",
        changes: false,
    },
    Step { args: PURGE, says: "node2: removing keys", program: "rmdir", argument: "", changes: true },
];

/// Holds a program of node2 that has this argument until it is released, or this is dropped.
fn hold(program: &str, argument: &str) -> Restore<impl FnMut()> {
    let stub = r#"cat >/usr/local/bin/$1 <<END && chmod 755 /usr/local/bin/$1 && touch /run/test-hold
#!/bin/sh
case "\$*" in *$2*)
  touch /run/test-held
  while [ -e /run/test-hold ]; do sleep 0.05; done ;;
esac
exec /usr/bin/$1 "\$@"
END"#;
    node_sh("node2", stub, &[program, argument]).code(0);
    let program = program.to_owned();
    Restore(move || {
        node_sh("node2", "rm -f /run/test-hold /run/test-held /usr/local/bin/$1", &[&program]);
    })
}

/// Signals hvdctl while it is at this step: it ends by the signal, and nothing of it is left.
#[track_caller]
fn signalled_at(lab: &Lab, step: &Step, signal: &str) {
    let place = format!("{:?}, {signal} at {:?}", step.args, step.says);
    let held = hold(step.program, step.argument);
    let running = lab.start(step.args);
    let under_way =
        || running.err().contains(step.says) && !on("node2", "[ ! -e /run/test-held ] || echo held").is_empty();
    assert!(eventually(s(60), under_way), "{place}: it never came to it\n{}", running.err());
    let pid = running.pid();
    running.signal(signal);
    if step.changes && signal != "KILL" {
        let finishes = eventually(s(20), || running.err().contains("stopping after the current step"));
        assert!(finishes, "{place}\n{}", running.err());
    }
    on("node2", "rm /run/test-hold");
    let code = match signal {
        "INT" => 130,
        "TERM" => 143,
        "HUP" => 129,
        _ => 137,
    };
    let done = running.end(s(60)).code(code);
    drop(held);
    is_given_back_after(&place);
    if signal == "KILL" {
        // ends what would go on connecting; the next hvdctl would do so, too
        kill_sessions(pid);
        return;
    }
    no_session_is_left(pid);
    assert!(NODES.iter().all(|node| done.err.contains(node)), "{place}: where things stand\n{}", done.err);
    for node in NODES {
        assert!(!ours(node).contains("created"), "{place}: half-made on {node}: {}", ours(node));
        assert_eq!(on(node, "find /opt/horovod -name '.*.hvdctl*' 2>/dev/null; :"), "", "{place}");
    }
}

fn kill_sessions(pid: u32) {
    let name = format!("hvdctl-ssh.{pid}.");
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&words).contains(&name) {
            kill(&process.file_name().to_string_lossy(), "TERM");
        }
    }
}

#[test]
fn interrupted_at_any_step_nothing_is_left_and_the_next_one_finishes() {
    let lab = Lab::empty();
    // commands/tests/signals.rs has every moment of every command, but cannot kill hvdctl
    let few = [(2, "KILL"), (4, "INT")];
    let all = (0..STEPS.len()).flat_map(|step| ["INT", "TERM", "KILL", "HUP"].map(|signal| (step, signal)));
    for (i, signal) in if FULL { all.collect() } else { few.to_vec() } {
        let step = &STEPS[i];
        let removes = step.args == PURGE;
        if removes {
            lab.hvdctl(&["up"]).code(0);
        }
        signalled_at(&lab, step, signal);
        let again = if removes { PURGE } else { UP };
        lab.hvdctl(again).code(0);
        let left = if removes { ["", ""] } else { ["hworker running\n"; 2] };
        assert_eq!(NODES.map(ours), left, "after {signal} at {:?}", step.says);
        if !removes {
            lab.hvdctl(PURGE).code(0);
        }
        for node in NODES {
            on(node, "test ! -e /opt/horovod");
        }
    }
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn of_two_at_once_one_does_the_work() {
        let lab = Lab::empty();
        for round in 0..2 {
            let args: &[&str] = if round == 0 { &["up"] } else { &["up", "--wait", "2m"] };
            let both = [lab.start(args), lab.start(args)];
            let both = both.map(|up| up.end(s(200)));
            for done in &both {
                assert!(done.code == 0 || round == 0 && done.code == 5, "{}\n{}", done.code, done.err);
            }
            // one that came when the other was done has nothing to do
            assert!(both.iter().any(|done| done.code == 0), "neither: {}\n{}", both[0].err, both[1].err);
            let starts = both.iter().map(|done| done.out.matches("started hworker").count()).sum::<usize>();
            assert_eq!(starts, 1, "both nodes in one row of one of them: {}{}", both[0].out, both[1].out);
            assert_eq!(NODES.map(ours), ["hworker running\n"; 2]);
            is_given_back();
            lab.hvdctl(&["down"]).code(0);
        }
    }

    #[test]
    fn another_command_is_refused_and_the_holder_is_named() {
        let lab = Lab::empty();
        lab.hvdctl(&["keys", "push"]).code(0);
        // as if it were renewed a moment from now: each command has nearly a minute
        let held = || somebody_holds(-25);
        let words = ["node[1-2] are locked by bob@laptop (process 4711)", "`hvdctl down` since", "hvdctl lock release"];
        let project = lab.project("p", &[("train.py", "")]);
        let changing = [
            (vec!["up"], 5),
            (vec!["down", "--purge", "-y"], 5),
            (vec!["keys", "push"], 5),
            (vec!["keys", "rotate"], 5),
            (vec!["verify"], 5),
            (vec!["up", "--wait", "1s"], 5),
            (vec!["run", "-np", "2", "--", "true"], 125),
            (vec!["train", project.to_str().unwrap(), "-np", "2"], 125),
        ];
        let before = on("node1", "cd /opt/horovod && find . -type f | sort | xargs cat | sha256sum");
        for (args, code) in changing {
            held();
            lab.hvdctl(&args).code(code).complains(&words);
            assert_eq!(NODES.map(ours), ["", ""], "{args:?}");
            assert!(NODES.iter().all(|node| lease(node).contains("bob@laptop")), "{args:?}");
        }
        assert_eq!(on("node1", "cd /opt/horovod && find . -type f | sort | xargs cat | sha256sum"), before);
        // only the master has a part in it
        held();
        lab.hvdctl(&["keys", "generate"]).code(5).complains(&["node1 is locked by bob@laptop"]);
        let document: Value = serde_json::from_str(&lab.hvdctl(&["up", "--json"]).code(5).out).unwrap();
        assert_eq!((&document["code"], &document["nodes"][1]["lease"]["holder"]), (&5.into(), &"bob@laptop".into()));

        // commands that only read do not wait
        held();
        lab.hvdctl(&["status"]).code(0);
        lab.hvdctl(&["up", "--dry-run"]).code(0).says(&["start hworker"]);
        held();
        lab.hvdctl(&["lock", "status"]).code(0).says(&["node1", "node2", "bob@laptop", "hvdctl down", "4711"]);
        // one of the two nodes is enough to be in the way, and the other is left alone
        on("node1", &format!("rm {FILE}"));
        lab.hvdctl(&["up"]).code(5).complains(&["node2 is locked by bob@laptop"]);
        assert_eq!((lease("node1").as_str(), ours("node1").as_str()), ("", ""));
        lab.hvdctl(&["--on", "node1", "up"]).code(0);
        assert_unlocked();
    }

    #[test]
    fn a_waiting_command_gets_the_lock() {
        let lab = Lab::empty();
        somebody_holds(-25);
        let mut up = lab.start(&["up", "--wait"]);
        assert!(
            eventually(s(60), || up.err().contains("waiting for node[1-2]: bob@laptop (process 4711)")),
            "{}",
            up.err()
        );
        assert!(up.runs());
        assert_eq!(NODES.map(ours), ["", ""]);
        assert_unlocked();
        up.end(s(120)).code(0);
        assert_eq!(NODES.map(ours), ["hworker running\n"; 2]);
        is_given_back();

        // that one has expired
        somebody_holds(40);
        lab.hvdctl(&["lock", "status"]).code(0).says(&["–"]);
        lab.hvdctl(&["down"]).code(0);
        is_given_back();
    }

    #[test]
    fn a_released_command_stops_and_says_so() {
        let lab = Lab::empty();
        lab.hvdctl(&["lock", "release", "-y"]).code(0).says(&["nothing to do"]);
        let held = up_is_held(&lab);
        let pid = held.up.pid();
        let document: Value = serde_json::from_str(&lab.hvdctl(&["lock", "status", "--json"]).code(0).out).unwrap();
        for node in document["nodes"].as_array().unwrap() {
            assert_eq!(
                (&node["lease"]["purpose"], &node["lease"]["pid"]),
                (&"hvdctl up".into(), &pid.into()),
                "{node}"
            );
        }
        let done = lab.hvdctl(&["--on", "node2", "lock", "release", "-y"]).code(0);
        done.says(&["node2: released the lock of", &format!("(process {pid}) with `hvdctl up`")]);
        let Held { up, _engine: engine } = held;
        let done = up.end(s(30)).code(5);
        done.complains(&["node2: cannot keep the lock: another command released the lock", "node[1-2]: not started"]);
        drop(engine);
        is_given_back();
        assert_eq!(NODES.map(ours), ["", ""]);
    }

    #[test]
    fn the_step_in_hand_is_finished_and_a_second_signal_leaves_at_once() {
        let lab = Lab::empty();
        // a command that writes keys waits until the directory is unlocked
        let hold = "mkdir -p /opt/horovod/ssh && cd /opt/horovod/ssh && \
                    HVDCTL_TEST=1 setsid flock . sh -c 'echo $$ >/run/test-flock; exec sleep 100' >/dev/null 2>&1 &";
        let is_held = || on("node2", "flock -n /opt/horovod/ssh true && echo free; :").is_empty();
        let release = || drop(on("node2", "kill $(cat /run/test-flock); rm -f /run/test-flock; :"));
        for again in [true, false] {
            on("node2", hold);
            let restore = Restore(release);
            assert!(eventually(s(20), || on("node2", "ls /run").contains("test-flock") && is_held()));
            let mut push = lab.start(&["-v", "keys", "push"]);
            assert!(eventually(s(60), || push.err().contains("node2: writing keys")), "{}", push.err());
            assert!(eventually(s(30), || !on("node1", "ls /opt/horovod/ssh 2>/dev/null; :").is_empty()));
            let pid = push.pid();
            push.signal("INT");
            assert!(eventually(s(20), || push.err().contains("stopping after the current step")), "{}", push.err());
            assert!(push.runs(), "{}", push.err());
            assert!(lease("node2").contains("keys push"), "it still is at work there");
            if again {
                push.signal("INT");
                let done = push.end(s(15)).code(130);
                done.complains(&["exited without waiting"]);
                drop(restore);
            } else {
                drop(restore);
                push.end(s(60)).code(130).complains(&["interrupted", "node1: done: wrote", "node2: done: wrote"]);
                on("node2", "test -s /opt/horovod/ssh/authorized_keys");
            }
            is_given_back();
            no_session_is_left(pid);
            lab.hvdctl(&["down", "--purge", "-y"]).code(0);
        }
    }
}
