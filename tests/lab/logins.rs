//! Logins and ways to become root: every kind of login that the lab's nodes have.

use crate::operator::{Operator, engine_has, needle, nothing_is_there, password, sshd_log, wrong_passwords};
use crate::process::{Running, eventually, s};
use crate::state::{FULL, NODES, Restore, files_with, no_job_is_left, node_sh, on, ours};
use crate::watch::{DIRECTORIES, Watcher};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// A detached job, and the output of one.
#[track_caller]
fn detached_and_fetched(operator: &Operator, project: &str) {
    let lasts = ["run", "-d", "-np", "2", "--", "sh", "-c", "echo here; exec sleep 300"];
    let id = operator.hvdctl(&lasts).ok().trim().to_owned();
    operator.hvdctl(&["jobs", "--running"]).code(0).says(&[&id]);
    operator.hvdctl(&["logs", &id]).code(0).says(&["[0 node1] here", "[1 node2] here"]);
    operator.hvdctl(&["stop", &id]).code(0);
    operator.hvdctl(&["attach", &id]).code(143).says(&["[1 node2] here"]);
    no_job_is_left();
    let writes = ["train", project, "-np", "2", "--", "sh", "-c", "hostname >of-$(hostname)"];
    operator.hvdctl(&writes).code(0);
    let directory = operator.lab.path().join("brought");
    operator.hvdctl(&["fetch", "-o", directory.to_str().unwrap()]).code(0);
    for node in NODES {
        assert_eq!(std::fs::read_to_string(directory.join(format!("of-{node}"))).unwrap(), format!("{node}\n"));
    }
}

/// All that a cluster is for, with these logins: keys, workers, a job over both nodes with a project, and nothing left.
#[track_caller]
fn everything_works(operator: &Operator) {
    let before = NODES.map(engine_has);
    let unchanged = |when: &str| {
        // the engine removes what stood for root a moment after it has ended
        let same = eventually(s(30), || NODES.map(engine_has) == before);
        assert!(same, "an engine has something new {when}: {:?}", NODES.map(engine_has));
    };

    operator.hvdctl(&["keys", "push"]).code(0).says(&["node1: wrote", "node2: wrote"]);
    for node in NODES {
        assert_eq!(on(node, "stat -c '%a %u:%g' /opt/horovod/ssh"), "700 0:0\n", "{node}");
        assert_eq!(on(node, "stat -c '%a %u:%g' /opt/horovod/ssh/authorized_keys"), "600 0:0\n", "{node}");
        assert_eq!(on(node, "find /opt/horovod ! -user 0"), "", "{node}: all of it is root's");
    }
    unchanged("after keys push");
    operator.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]);

    operator.hvdctl(&["up"]).code(0);
    for node in NODES {
        assert_eq!(ours(node), "hworker running\n", "{node}");
    }
    unchanged("after up");
    operator.hvdctl(&["status"]).code(0).says(&["node1", "node2", "up"]);

    let project = operator.lab.project("words", &[("a word", "shipped\n")]);
    let script = "cat '/workspace/a word'; echo on $(hostname)";
    let done = operator.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--", "sh", "-c", script]).code(0);
    assert_eq!(done.out.matches("shipped").count(), 2, "{}", done.out);
    done.says(&["on node1", "on node2"]);
    no_job_is_left();
    for node in NODES {
        assert_eq!(on(node, "find /opt/horovod ! -user 0"), "", "{node}: all of it is root's");
    }
    unchanged("after train");

    if FULL {
        detached_and_fetched(operator, project.to_str().unwrap());
        unchanged("after fetch");
    }

    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
    nothing_is_there();
    unchanged("after down");
}

#[test]
fn root_on_another_port_and_a_user_whose_sudo_asks() {
    let mut operator = Operator::new("user = \"root\"\nssh_port = 2222", "user = \"asks\"");
    operator.sudo_password(&password("asks"));
    let before = wrong_passwords("node2");
    let sudo = |node| on(node, "grep -c ' COMMAND=' /var/log/sudo.log || :").trim().parse::<u32>().unwrap_or(0);
    let sudo_before = NODES.map(sudo);
    everything_works(&operator);
    assert_eq!(wrong_passwords("node2"), before, "no wrong password was tried");
    assert_eq!(sudo("node1"), sudo_before[0], "root needs no sudo");
    assert!(sudo("node2") > sudo_before[1]);
    let log = sshd_log("node1").join("\n");
    assert!(log.contains("Server listening on 0.0.0.0 port 2222") && log.contains("Accepted publickey for root"));
}

#[test]
fn a_user_of_the_group_docker_and_one_with_a_socket_of_their_own() {
    let operator = Operator::new("user = \"dock\"", "user = \"own\"");
    for (node, user) in [("node1", "dock"), ("node2", "own")] {
        assert_ne!(node_sh(node, "su \"$1\" -c 'sudo -n true'", &[user]).code, 0, "{user} has no sudo");
    }
    everything_works(&operator);
}

#[test]
fn nothing_of_a_job_is_left_where_containers_provide_root() {
    let operator = Operator::new("user = \"dock\"", "user = \"own\"");
    let before = NODES.map(engine_has);
    operator.hvdctl(&["up"]).code(0);
    let signals = [("INT", Some(130)), ("KILL", None), ("TERM", Some(143))];
    for &(signal, code) in if FULL { &signals[..] } else { &signals[..2] } {
        let mut run =
            Running::start(operator.command(&["run", "-np", "2", "--", "sh", "-c", "echo there; sleep 300"]), &[]);
        assert!(eventually(s(60), || run.out().matches("there").count() == 2), "{}{}", run.out(), run.err());
        run.signal(signal);
        assert!(eventually(s(40), || !run.runs()), "{signal} ends it");
        let done = run.end(s(5));
        if let Some(code) = code {
            done.code(code);
            no_job_is_left();
        }
        // one that is killed leaves its job on the nodes; `down` knows what is its own
        if code.is_none() {
            operator.hvdctl(&["down"]).code(0);
        }
        eventually(s(10), || NODES.map(engine_has) == before);
        assert_eq!(NODES.map(engine_has), before, "after {signal}");
    }
    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
    nothing_is_there();
}

#[test]
fn an_agent_that_asks_is_waited_for_and_asks_once_at_a_time() {
    let mut operator = Operator::new("user = \"root\"", "user = \"root\"");
    operator.lab.edit("connect_timeout_s = 10", "connect_timeout_s = 1");
    let [asks, questions, socket] = ["asks", "questions", "agent"].map(|name| operator.lab.path().join(name));
    let script = format!("#!/bin/sh\necho asked >>'{0}'\nsleep 8\necho answered >>'{0}'\n", questions.display());
    fs::write(&asks, script).unwrap();
    fs::set_permissions(&asks, fs::Permissions::from_mode(0o755)).unwrap();
    let mut agent = Command::new("ssh-agent");
    agent
        .args(["-D", "-a"])
        .arg(&socket)
        .env("DISPLAY", ":9")
        .env("SSH_ASKPASS", &asks)
        .env("SSH_ASKPASS_REQUIRE", "force");
    let mut agent = agent.stdout(Stdio::null()).spawn().unwrap();
    let _end = Restore(move || {
        agent.kill().unwrap();
        agent.wait().unwrap();
    });
    assert!(eventually(s(10), || socket.exists()));
    let key = operator.home().join(".ssh/id_ed25519");
    let added = Command::new("ssh-add").arg("-c").arg(&key).env("SSH_AUTH_SOCK", &socket).status().unwrap();
    assert!(added.success());
    fs::remove_file(&key).unwrap();
    operator.set("SSH_AUTH_SOCK", socket.to_str().unwrap());
    let words = ["node1: the login waits for you: confirm it in the ssh agent", "node2: the login waits for you"];
    operator.hvdctl(&["status"]).code(0).complains(&words);
    assert_eq!(fs::read_to_string(&questions).unwrap(), "asked\nanswered\n".repeat(2), "one question at a time");
}

#[test]
fn no_process_log_or_file_shows_a_sudo_password() {
    let mut operator = Operator::new("user = \"asks\"", "user = \"asks\"");
    let secret = needle(&password("asks"));
    operator.sudo_password(&password("asks"));
    let watchers: Vec<(&str, Watcher)> = NODES.iter().map(|n| (*n, Watcher::start(Some(n), &DIRECTORIES))).collect();
    let here = Watcher::start(None, &[]);
    operator.set("TOKEN", "of-the-user");
    let run = ["--log-file", "log", "run", "-np", "2", "-e", "TOKEN", "--", "sh", "-c", ": an-argument"];
    for args in [&["--log-file", "log", "keys", "push"][..], &["--log-file", "log", "up"], &run] {
        let done = operator.hvdctl(args).code(0);
        assert!(!done.out.contains(&secret) && !done.err.contains(&secret));
    }
    let loud = operator.hvdctl(&["-vvv", "status"]).code(0);
    assert!(!loud.out.contains(&secret) && !loud.err.contains(&secret) && loud.err.contains("read the node state"));
    // nor does what hvdctl notes of each operation, where a private key and the user's own words would be, too
    let log = fs::read_to_string(operator.lab.path().join("log")).unwrap();
    let private = on("node1", "cat /opt/horovod/ssh/id_ed25519");
    let key = private.lines().nth(2).unwrap();
    assert!(log.contains("operation=\"write the keys to /opt/horovod/ssh\"") && log.contains("exited ms="), "{log}");
    for word in [&secret, key, "of-the-user", "an-argument"] {
        assert!(!log.contains(word), "{word}: {log}");
    }
    let kept = operator.home().join(".local/state/hvdctl/log");
    assert!(!kept.exists(), "all commands have succeeded");
    here.saw_but_not("this machine", "hvdctl-ssh.", &secret);
    for (node, watcher) in watchers {
        watcher.saw_but_not(node, "sudo\0", &secret);
        assert_eq!(files_with(node, &secret, "/var/log /opt /tmp /var/tmp /run /home /root"), [""; 0], "{node}");
        let said = node_sh(node, "docker logs hworker 2>&1 && docker inspect hworker", &[]).ok();
        assert!(!said.contains(&secret), "{node}");
        assert_eq!(on(node, "grep -c . /var/log/sudo.log >/dev/null && echo there"), "there\n", "sudo does log");
    }
    let kept = Command::new("grep").args(["-rlF", "--", &secret]).arg(operator.home()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "", "nothing of it stays in the operator's home");
    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
}

#[test]
fn a_wrong_sudo_password_is_tried_once_on_each_node() {
    let mut operator = Operator::new("user = \"asks\"", "user = \"asks\"");
    operator.sudo_password("not the password");
    let all = [&["keys", "push"][..], &["run", "-np", "2", "--", "true"], &["up"], &["status"]];
    for args in if FULL { &all[..] } else { &all[..2] } {
        let before = NODES.map(wrong_passwords);
        let done = operator.hvdctl(args);
        assert_ne!(done.code, 0, "{args:?}");
        for (node, before) in NODES.iter().zip(before) {
            assert_eq!(wrong_passwords(node), before + 1, "{node}: attempts of {args:?}\n{}{}", done.out, done.err);
            let said = done.err.lines().filter(|l| l.contains(node) && l.contains("sudo refused the password"));
            assert_eq!(said.count(), 1, "{args:?} for {node}:\n{}{}", done.out, done.err);
        }
        assert!(!done.err.contains("not the password"), "{}", done.err);
        nothing_is_there();
    }
    operator.hvdctl(&["keys", "push"]).code(1);
}

#[test]
fn without_a_terminal_and_a_password_it_ends_at_once() {
    let operator = Operator::new("user = \"asks\"", "user = \"asks\"");
    let before = NODES.map(wrong_passwords);
    let calls = [&["keys", "push"][..], &["up"], &["down", "--purge", "-y"], &["--ask-sudo-pass", "keys", "push"]];
    for args in calls {
        let asked = args[0] == "--ask-sudo-pass";
        let done = operator.hvdctl(args).code(if asked { 2 } else { 1 });
        if !asked {
            assert!(done.err.contains("--ask-sudo-pass"), "{args:?}: {}", done.err);
        }
        assert!(done.err.contains("HVDCTL_SUDO_PASSWORD_FILE"), "{args:?}: {}", done.err);
        nothing_is_there();
    }
    operator
        .hvdctl(&["run", "-np", "2", "--", "true"])
        .code(125)
        .complains(&["--ask-sudo-pass", "HVDCTL_SUDO_PASSWORD_FILE"]);

    // a silent standard input that never ends is no terminal either
    let fifo = operator.lab.path().join("silent");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    operator.hvdctl_reading(&fifo, &["keys", "push"]).code(1).complains(&["--ask-sudo-pass"]);
    assert_eq!(NODES.map(wrong_passwords), before, "an empty password is not tried");
}

#[test]
fn on_a_terminal_one_question_serves_all_nodes() {
    let operator = Operator::new("user = \"asks\"", "user = \"asks\"");
    let before = NODES.map(wrong_passwords);
    let right = password("asks");
    let answer = format!("{right}\n");
    let logins = || NODES.iter().map(|n| sshd_log(n).iter().filter(|l| l.contains("Accepted")).count()).sum::<usize>();

    for args in [&["keys", "push"][..], &["--ask-sudo-pass", "up"], &["run", "-np", "2", "--", "true"]] {
        let done = operator.terminal(args, &[("assword", &answer)]).code(0).complains(&["echo on"]);
        let shown = done.out.to_lowercase();
        assert_eq!(shown.matches("password").count(), 1, "{args:?}: one question\n{}", done.out);
        assert!(!done.out.contains(&needle(&right)), "{args:?}: it is not shown while it is typed");
        if args[0] == "--ask-sudo-pass" {
            let (head, _) = shown.split_once("password").unwrap();
            assert!(!head.contains("node1") && !head.contains("node2"), "asked before anything is done: {head}");
        }
    }
    assert_eq!(NODES.map(wrong_passwords), before);
    for node in NODES {
        assert_eq!(ours(node), "hworker running\n", "{node}");
    }
    // two questions of different kinds, one behind the other
    let done = operator.terminal(&["down", "--purge"], &[("[y/N]", "y\n"), ("assword", &answer)]).code(0);
    assert!(!done.out.contains(&needle(&right)), "{}", done.out);
    nothing_is_there();

    // no password is asked for if none is needed, unless an option requests it
    operator.inventory(&["node1", "node2"], "user = \"workshop\"", "user = \"root\"");
    let done = operator.terminal(&["status"], &[]).code(0);
    assert!(!done.out.to_lowercase().contains("password"), "{}", done.out);

    // a wrong one is not asked for again
    operator.inventory(&["node1", "node2"], "user = \"asks\"", "user = \"asks\"");
    let done = operator.terminal(&["keys", "push"], &[("assword", "wrong\n"), ("assword", "wrong again\n")]);
    let done = done.code(1).says(&["sudo refused the password"]);
    for (node, before) in NODES.iter().zip(before) {
        assert_eq!(wrong_passwords(node), before + 1, "{node}\n{}", done.out);
    }
    nothing_is_there();

    // Ctrl-C at the question ends hvdctl, and the echo of the terminal is on again
    let seen = logins();
    let done = operator.terminal(&["--ask-sudo-pass", "keys", "push"], &[("assword", "\u{3}")]);
    done.code(130).complains(&["echo on"]);
    assert_eq!(logins(), seen, "nobody had logged in by then");
    nothing_is_there();
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn an_agent_with_more_keys_than_sshd_takes_attempts() {
        let mut operator = Operator::new("user = \"root\"", "user = \"root\"");
        let socket = operator.lab.path().join("agent");
        let mut agent =
            Command::new("ssh-agent").arg("-D").arg("-a").arg(&socket).stdout(Stdio::null()).spawn().unwrap();
        let _end = Restore(move || {
            agent.kill().unwrap();
            agent.wait().unwrap();
        });
        assert!(eventually(s(10), || socket.exists()));
        for number in 0..8 {
            let key = operator.lab.path().join(format!("key{number}"));
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
            assert!(made.unwrap().success());
            let added = Command::new("ssh-add").arg("-q").arg(&key).env("SSH_AUTH_SOCK", &socket).status();
            assert!(added.unwrap().success());
        }
        operator.set("SSH_AUTH_SOCK", socket.to_str().unwrap());
        operator.configure(&operator.hosts());
        let words =
            ["node1", "node2", "Too many authentication failures", "hint: ssh offers more keys", "IdentitiesOnly yes"];
        assert_ne!(operator.hvdctl(&["status"]).complains(&words).code, 0);
        operator.configure(&format!("{}{}", operator.hosts(), operator.with_key()));
        operator.hvdctl(&["status"]).code(0);
    }

    #[test]
    fn an_engine_that_only_docker_host_names() {
        let operator = Operator::new("user = \"own\"", "user = \"workshop\"");
        on(
            "node1",
            "mv /run/user/$(id -u own)/docker.sock /run/moved-engine.sock &&
         sed -i '1i export DOCKER_HOST=unix:///run/moved-engine.sock' /home/own/.bashrc",
        );
        operator.hvdctl(&["up"]).code(0);
        assert_eq!(ours("node1"), "hworker running\n");
        operator.hvdctl(&["down", "--purge", "-y"]).code(0);
        nothing_is_there();
    }

    #[test]
    fn a_user_with_neither_sudo_nor_an_engine_is_refused() {
        let mut operator = Operator::new("user = \"plain\"", "user = \"plain\"");
        for args in [&["keys", "push"][..], &["up"], &["run", "-np", "2", "--", "true"], &["down", "--purge", "-y"]] {
            let done = operator.hvdctl(args);
            let code = if args[0] == "run" { 125 } else { 1 };
            done.code(code).complains(&["node1", "node2", "sudo", "hint:"]);
            nothing_is_there();
        }
        // sudo asks a user for the password before it refuses that user
        operator.sudo_password(&password("plain"));
        let before = NODES.map(wrong_passwords);
        let done = operator.hvdctl(&["keys", "push"]).code(1).complains(&["plain is not in the sudoers file", "hint:"]);
        assert!(!done.err.contains("refused the password"), "it was right: {}", done.err);
        assert_eq!(NODES.map(wrong_passwords), before);
        nothing_is_there();
        // one such node is no reason to be silent about the other
        operator.inventory(&["node1", "node2"], "user = \"workshop\"", "user = \"plain\"");
        let done = operator.hvdctl(&["status"]);
        assert_ne!(done.code, 0);
        assert!(done.out.contains("node1"), "{}", done.out);
        assert!(done.err.contains("node2"), "{}", done.err);
    }

    #[test]
    fn the_other_way_round() {
        // the master by the ways that only the worker took above
        let mut operator = Operator::new("user = \"asks\"\nssh_port = 2222", "user = \"dock\"");
        operator.sudo_password(&password("asks"));
        everything_works(&operator);
    }
}
