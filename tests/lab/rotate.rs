//! `keys rotate`: a new pair on every node, while the cluster can launch jobs at any moment.

use crate::keys::{directory, fingerprint, line, login, pieces, public_half, read};
use crate::pool::power;
use crate::process::{Running, kill, s};
use crate::state::{FULL, Lab, NODES, Restore, files_with, id_of, on};
use crate::watch::{Watcher, has};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A launch over both nodes, with the key that the master has in use.
#[track_caller]
fn launches(lab: &Lab) {
    lab.hvdctl(&["run", "-np", "2", "--mpi", "--", "true"]).code(0);
}

/// Asserts that both nodes let exactly the master's key in, and that nothing is left of a rotation.
#[track_caller]
fn one_key_everywhere(lab: &Lab, name: &str) -> String {
    let key = public_half("node1", name);
    assert_eq!(read("node1", &format!("{name}.pub")), format!("{key} hvdctl:lab\n"));
    for node in NODES {
        let ours: String = read(node, "authorized_keys")
            .lines()
            .filter(|l| l.contains("hvdctl:lab") && !l.starts_with('#'))
            .map(|l| format!("{l}\n"))
            .collect();
        assert_eq!(ours, line(&key, &NODES), "{node}");
        let files = directory(node);
        let keys: Vec<&str> =
            files.iter().filter_map(|f| f.split(' ').next()).filter(|f| f.starts_with("id_")).collect();
        let wanted = if node == "node1" { vec![name.to_owned(), format!("{name}.pub")] } else { Vec::new() };
        assert_eq!(keys, wanted, "{node}");
        assert!(!files.iter().any(|f| f.contains(".next") || f.contains(".hvdctl")), "{files:?}");
    }
    lab.hvdctl(&["keys", "status"]).code(0);
    key
}

/// Starts a rotation and kills hvdctl when this holds; true where it did before the end.
fn killed_when(lab: &Lab, words: &[&str], mut when: impl FnMut(&Running) -> bool) -> bool {
    let mut args = vec!["keys", "rotate"];
    args.extend(words);
    let mut running = lab.start(&args);
    while running.runs() && !when(&running) {
        sleep(Duration::from_millis(1));
    }
    let killed = running.runs();
    running.signal("KILL");
    let pid = running.pid();
    let _ = running.end(s(10));
    // ends the ssh masters of an hvdctl that was killed
    let ours = format!("hvdctl-ssh.{pid}.");
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&words).contains(&ours) {
            kill(&process.file_name().to_string_lossy(), "TERM");
        }
    }
    for entry in fs::read_dir("/tmp").unwrap().flatten().filter(|e| e.file_name().to_string_lossy().starts_with(&ours))
    {
        let _ = fs::remove_dir_all(entry.path());
    }
    killed
}

#[test]
fn a_new_pair_takes_the_old_ones_place() {
    let lab = Lab::up();
    on(
        "node2",
        "cd /opt/horovod/ssh && sed -i '1i # about hvdctl:lab' authorized_keys && echo 'ssh-ed25519 AAAAfriend \
         ana@desk' >>authorized_keys",
    );
    let workers = NODES.map(|node| id_of(node, "hworker"));
    let old = one_key_everywhere(&lab, "id_ed25519");
    launches(&lab);
    let done = lab
        .hvdctl(&["keys", "rotate"])
        .code(0)
        .says(&["node1: accepts the new key only", "node2: accepts the new key only"]);
    done.complains(&[
        "not yet in use",
        "accept both keys",
        "launches with the new key",
        "accepts the old key any more",
    ]);
    let new = one_key_everywhere(&lab, "id_ed25519");
    assert_ne!(new, old);
    let lines = read("node2", "authorized_keys");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines, ["# about hvdctl:lab", "ssh-ed25519 AAAAfriend ana@desk", line(&new, &NODES).trim_end()]);
    launches(&lab);

    // to another type, and to that of the inventory
    let words = ["--json", "keys", "rotate", "--type", "rsa", "--bits", "2048"];
    let document: serde_json::Value = serde_json::from_str(&lab.hvdctl(&words).ok()).unwrap();
    let reported = (&document["ok"], &document["switched"], &document["type"], &document["bits"]);
    assert_eq!(reported, (&true.into(), &true.into(), &"rsa".into(), &2048.into()));
    one_key_everywhere(&lab, "id_rsa");
    assert!(on("node1", "ssh-keygen -l -f /opt/horovod/ssh/id_rsa").starts_with("2048 "));
    launches(&lab);
    lab.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]).complains(&["pair is RSA 2048", "keys rotate"]);
    lab.hvdctl(&["up"]).code(0).says(&["nothing to do"]);
    lab.hvdctl(&["keys", "rotate"]).code(0);
    one_key_everywhere(&lab, "id_ed25519");
    launches(&lab);
    assert_eq!(NODES.map(|node| id_of(node, "hworker")), workers, "nothing had to start anew");
}

#[test]
fn no_part_of_the_new_key_is_ever_an_argument() {
    let lab = Lab::empty();
    lab.hvdctl(&["keys", "push"]).code(0);
    let watchers: Vec<(&str, Watcher)> = NODES
        .iter()
        .map(|n| (*n, Watcher::start(Some(n), &[])))
        .chain([("this machine", Watcher::start(None, &[]))])
        .collect();
    lab.hvdctl(&["keys", "rotate", "--type", "rsa", "--bits", "2048"]).code(0);
    let watched: Vec<(&str, Vec<u8>)> = watchers.into_iter().map(|(name, w)| (name, w.stop())).collect();
    let pieces = pieces("id_rsa", 14);
    assert!(pieces.len() > 20, "{}", pieces.len());
    for (place, seen) in &watched {
        let sign = if *place == "this machine" { "hvdctl-ssh." } else { "HVDCTL_ADDRESS" };
        assert!(has(seen, sign), "{place}: nothing seen");
        for piece in &pieces {
            assert!(!has(seen, piece), "a part of the private key was an argument or in the environment on {place}");
        }
    }
    for node in NODES {
        let wanted: &[&str] = if node == "node1" { &["/opt/horovod/ssh/id_rsa"] } else { &[] };
        assert_eq!(files_with(node, &pieces[3], "/opt /root /home /etc /tmp /var/tmp /run"), wanted, "{node}");
    }
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn killed_after_any_step_it_launches_and_the_next_one_finishes() {
        let lab = Lab::up();
        let mut key = one_key_everywhere(&lab, "id_ed25519");
        let steps = ["not yet in use", "accept both keys", "launches with the new key"];
        for step in if FULL { &steps[..] } else { &steps[1..2] } {
            assert!(
                killed_when(&lab, &[], |running| running.err().contains(*step)),
                "it ended before it could be killed: {step}"
            );
            lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(0);
            let left = directory("node1").iter().any(|f| f.contains(".next"));
            // the switch follows the second step at once, and may have been on its way when hvdctl was killed
            assert!(left || !step.starts_with("not yet"), "{step}: {:?}", directory("node1"));
            if left {
                lab.hvdctl(&["keys", "status"]).code(1).says(&["a rotation is unfinished", "hint: hvdctl keys rotate"]);
                // neither breaks what was begun
                lab.hvdctl(&["keys", "push"]).code(0).complains(&["a rotation is unfinished"]);
                lab.hvdctl(&["up"]).code(0);
                launches(&lab);
            }
            lab.hvdctl(&["keys", "rotate"]).code(0);
            let new = one_key_everywhere(&lab, "id_ed25519");
            assert_ne!(new, key);
            key = new;
            launches(&lab);
        }
    }

    #[test]
    fn cut_off_within_the_switch_it_launches_and_the_next_one_finishes() {
        let lab = Lab::up();
        // what keys/switch.sh does, a command at a time: the pair of the same type, and that of the other
        let same = ["rm id_ed25519.pub", "mv id_ed25519.next id_ed25519"];
        let other = ["mv id_rsa.next id_rsa", "rm id_ed25519", "rm id_ed25519.pub"];
        let kinds = [(&["--type", "rsa", "--bits", "2048"] as &[&str], &other as &[&str]), (&[], &same)];
        for &(words, steps) in if FULL { &kinds[..] } else { &kinds[..1] } {
            for last in if FULL { 1..=steps.len() } else { 1..=1 } {
                assert!(killed_when(&lab, words, |running| running.err().contains("not yet in use")));
                // the step before is complete by then; a push authorizes both keys
                sleep(Duration::from_millis(500));
                lab.hvdctl(&["keys", "push"]).code(0);
                assert!(directory("node1").iter().any(|f| f.contains(".next ")), "{:?}", directory("node1"));
                for step in &steps[..last] {
                    on("node1", &format!("cd /opt/horovod/ssh && {step}"));
                }
                let place = format!("after {:?}: {:?}", &steps[..last], directory("node1"));
                let run = lab.hvdctl(&["run", "-np", "2", "--", "true"]);
                assert_eq!(run.code, 0, "{place}\n{}", run.err);
                lab.hvdctl(&["keys", "status"]).code(1).says(&["a rotation is unfinished"]);
                let before = directory("node1");
                lab.hvdctl(&["keys", "push"]).code(0);
                assert_eq!(directory("node1"), before, "{place}");
                lab.hvdctl(&["keys", "rotate"]).code(0).complains(&["resuming the rotation"]);
                one_key_everywhere(&lab, if words.is_empty() { "id_ed25519" } else { "id_rsa" });
                launches(&lab);
                if !words.is_empty() {
                    lab.hvdctl(&["keys", "rotate", "--type", "ed25519"]).code(0);
                }
            }
        }
        // a purge takes what was staged
        assert!(killed_when(&lab, &[], |running| running.err().contains("not yet in use")));
        assert!(directory("node1").iter().any(|f| f.contains(".next ")), "{:?}", directory("node1"));
        lab.hvdctl(&["down", "--purge", "-y"]).code(0);
        on("node1", "test ! -e /opt/horovod/ssh");
    }

    #[test]
    fn a_push_with_an_older_observation_does_not_restore_the_old_key() {
        let lab = Lab::empty();
        lab.hvdctl(&["keys", "push"]).code(0);
        // a push prints this between its observation and its write, and is stopped there
        lab.edit("key_type = \"ed25519\"", "key_type = \"rsa\"");
        let old = public_half("node1", "id_ed25519");
        for _ in 0..20 {
            for node in NODES {
                on(node, "sed -i 's/from=\"[^\"]*\"/from=\"192.0.2.1\"/' /opt/horovod/ssh/authorized_keys");
            }
            let before = NODES.map(fingerprint);
            let mut push = lab.start(&["keys", "push"]);
            while push.runs() && !push.err().contains("the inventory has another key_type") {
                sleep(Duration::from_millis(1));
            }
            push.signal("STOP");
            // what it sent before that arrives
            sleep(Duration::from_millis(500));
            if NODES.map(fingerprint) != before {
                push.signal("CONT");
                push.end(s(60)).code(0);
                continue;
            }
            // it still holds its leases, so they are released first
            lab.hvdctl(&["keys", "rotate", "--type", "ed25519"]).code(5).complains(&["hvdctl keys push"]);
            lab.hvdctl(&["lock", "release", "--yes"]).code(0);
            lab.hvdctl(&["keys", "rotate", "--type", "ed25519"]).code(0);
            let after = NODES.map(fingerprint);
            push.signal("CONT");
            // which of the two stops it is a matter of moments: the lost lease, or that the files are not those that it
            // saw
            let done = push.end(s(60));
            let stopped = done.code == 5 && done.err.contains("another command released the lock")
                || done.code == 1
                    && done.err.contains("cannot write the keys")
                    && done.err.contains("run the same command again");
            assert!(stopped, "{}\n{}", done.code, done.err);
            assert_eq!(NODES.map(fingerprint), after);
            assert_ne!(one_key_everywhere(&lab, "id_ed25519"), old);
            lab.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]);
            return;
        }
        panic!("it wrote before it could be stopped, each time");
    }

    #[test]
    fn with_a_node_out_of_reach_nothing_is_changed() {
        let lab = Lab::up();
        lab.edit("connect_timeout_s = 10", "connect_timeout_s = 3");
        lab.hvdctl(&["--on", "node1", "keys", "rotate"]).code(2).complains(&["--on", "--skip-offline"]);
        let before = NODES.map(fingerprint);
        let old = public_half("node1", "id_ed25519");
        power(&["pause"], "node2");
        let restore = Restore(|| power(&["unpause"], "node2"));
        lab.hvdctl(&["keys", "rotate"]).code(4).complains(&["node2: ", "nothing was changed"]);
        assert_eq!(fingerprint("node1"), before[0]);
        let done = lab.hvdctl(&["keys", "rotate", "--skip-offline"]).code(0).complains(&["node2: "]);
        done.says(&["node1: accepts the new key only", "node2 was skipped: run hvdctl keys push"]);
        drop(restore);
        assert_eq!(fingerprint("node2"), before[1]);
        let new = public_half("node1", "id_ed25519");
        assert_ne!(new, old);
        assert_eq!(read("node1", "authorized_keys"), line(&new, &NODES));
        login().code(255);
        lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(125).complains(&["node2", "hvdctl keys push"]);
        lab.hvdctl(&["keys", "push"]).code(0);
        one_key_everywhere(&lab, "id_ed25519");
        launches(&lab);
    }

    #[test]
    fn killed_at_any_moment_it_launches_and_the_next_one_finishes() {
        let lab = Lab::up();
        let started = Instant::now();
        lab.hvdctl(&["keys", "rotate"]).code(0);
        let whole = started.elapsed();
        for part in 1..=8 {
            let words: &[&str] = if part % 2 == 0 { &[] } else { &["--type", "rsa", "--bits", "2048"] };
            // one that was quicker than the first is tried again sooner
            let killed = (1..=4).any(|sooner| {
                let begin = Instant::now();
                killed_when(&lab, words, |_| begin.elapsed() > whole * part / (9 * sooner))
            });
            assert!(killed, "it always ended before it could be killed");
            lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(0);
            lab.hvdctl(&["keys", "rotate"]).code(0);
            let name = if on("node1", "ls /opt/horovod/ssh").contains("id_rsa") { "id_rsa" } else { "id_ed25519" };
            one_key_everywhere(&lab, name);
            login().code(0);
        }
    }
}
