//! Login shells and sshd as real machines have them: text before every command, floods, no shell at all, few sessions.

use crate::operator::Operator;
use crate::process::{eventually, run, s};
use crate::state::{Lab, NODES, Restore, address, no_job_is_left, node_sh, on, ours};
use std::fs;
use std::net::TcpStream;
use std::process::Command;

/// The start-up file of the login on node2, which is put back as it was.
const BASHRC: &str = "/home/workshop/.bashrc";

fn with_start_up(line: &str) -> Restore<impl FnMut()> {
    on("node2", &format!("cp -p {BASHRC} {BASHRC}.before && sed -i '1i {line}' {BASHRC}"));
    Restore(|| drop(node_sh("node2", &format!("mv {BASHRC}.before {BASHRC}"), &[])))
}

/// sshd on node2 with these settings in front of all others.
fn with_sshd(settings: &str) -> Restore<impl FnMut()> {
    const FILE: &str = "/etc/ssh/sshd_config.d/00-test.conf";
    let starts = || on("node2", "grep -c 'Server listening on .* port 22[.]' /var/log/sshd.log || :");
    let before = starts();
    on("node2", &format!("printf '{settings}' >{FILE} && sshd -t && kill -HUP $(cat /run/sshd.pid)"));
    let listens = || starts() != before && on("node2", "ss -Hltn 'sport = :22' | wc -l").trim() != "0";
    assert!(eventually(s(10), listens), "sshd does not listen");
    Restore(|| drop(node_sh("node2", &format!("rm -f {FILE}; kill -HUP $(cat /run/sshd.pid)"), &[])))
}

#[test]
fn text_of_a_start_up_file_is_skipped_on_every_channel_and_the_file_is_named() {
    let lab = Lab::up();
    let _back = with_start_up("echo Welcome to gpu2; echo noise >&2; printf \"no newline\"");
    let said = lab.hvdctl(&["status"]).code(0).says(&["up"]);
    said.complains(&["node2: the login shell prints text before every command: ", "hint: in ~/.bashrc there"]);
    // leases, scripts, Docker's streams, uploads, logs, fetched files
    let project = lab.project("noisy", &[("data", "shipped\n")]);
    let script = "cat data; echo from $(hostname) >made-on-$(hostname)";
    let done = lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--", "sh", "-c", script]).code(0);
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0 node1] shipped", "[1 node2] shipped"]);
    let out = lab.path().join("fetched");
    lab.hvdctl(&["fetch", "-o", out.to_str().unwrap()]).code(0);
    assert_eq!(fs::read_to_string(out.join("made-on-node2")).unwrap(), "from node2\n");
    let ran = lab.hvdctl(&["exec", "--on", "node2", "--", "echo", "hello"]).code(0);
    assert!(
        ran.out.contains("hello") && !ran.out.contains("Welcome") && !ran.out.contains("no newline"),
        "{}",
        ran.out
    );
    lab.hvdctl(&["doctor"]).complains(&["node2: the login shell prints text before every command", "~/.bashrc"]);
    lab.hvdctl(&["down"]).code(0);
    lab.hvdctl(&["up"]).code(0);
    assert_eq!(NODES.map(ours), ["hworker running\n", "hworker running\n"]);
    no_job_is_left();
}

#[test]
fn a_start_up_file_that_ends_the_shell_or_makes_one_stream_of_both() {
    let lab = Lab::up();
    {
        let _back = with_start_up("exit 0");
        for args in [&["status"][..], &["exec", "--on", "node2", "--", "echo", "hi"]] {
            let done = lab.hvdctl(args);
            assert!(done.code != 0 && !done.out.contains("hi"), "{}: {}{}", done.code, done.out, done.err);
            done.complains(&["node2: ", "the login shell exited with code 0 and printed nothing"]);
        }
    }
    let _back = with_start_up("exec 2>&1; echo noise >&2");
    lab.hvdctl(&["status"]).code(0).complains(&["prints text before every command: noise"]);
    let done = lab.hvdctl(&["exec", "--on", "node2", "--", "echo", "hi"]).code(0);
    assert!(done.out.contains("hi") && !done.out.contains("hvdctl-begins"), "{}", done.out);
}

#[test]
fn a_start_up_file_that_prints_without_end_fills_no_memory() {
    let lab = Lab::up();
    let _back = with_start_up("yes flood");
    let hvdctl = lab.command(&["status"]);
    let mut command = Command::new("python3");
    command.args(["-c", PEAK]).arg(hvdctl.get_program()).args(hvdctl.get_args()).current_dir(lab.path());
    for (name, value) in hvdctl.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let done = run(command, s(60)).code(3).complains(&[
        "node2: ",
        "the login shell keeps printing",
        "flood",
        "hint: ",
        "~/.bashrc",
    ]);
    let peak: u64 = done.out.lines().last().unwrap().strip_prefix("peak ").unwrap().parse().unwrap();
    assert!((1..64 << 10).contains(&peak), "hvdctl took {peak} KiB");
    assert!(eventually(s(20), || on("node2", "pgrep -cx yes; :").trim() == "0"), "the flood goes on");
}

/// Runs a program, and prints the most memory that it or one of its children took.
const PEAK: &str = "import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)";

#[test]
fn a_login_without_a_shell_is_an_error_with_the_nodes_message() {
    let lab = Lab::up();
    {
        on("node2", "usermod -s /usr/sbin/nologin workshop");
        let _back = Restore(|| drop(node_sh("node2", "usermod -s /bin/bash workshop", &[])));
        let done = lab.hvdctl(&["status"]).code(3);
        let done = done.complains(&["node2: ", "This account is currently not available", "the user has no shell"]);
        assert!(!done.err.contains("user  ") && !done.err.contains("let  run"), "no name is missing: {}", done.err);
    }
    let _back = with_sshd("ForceCommand echo only backups here\\n");
    lab.hvdctl(&["status"]).code(3).complains(&["node2: ", "only backups here", "ForceCommand"]);
}

#[test]
fn one_program_at_a_time_on_a_connection_is_enough() {
    let lab = Lab::up();
    let _back = with_sshd("MaxSessions 1\\n");
    let files: Vec<(String, String)> = (0..3000).map(|i| (format!("d/{i}"), format!("{i}\n"))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let project = lab.project("many", &files);
    let script = "cat d/2999; ls d | wc -l";
    let done = lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--", "sh", "-c", script]).code(0);
    for line in ["[0 node1] 2999", "[1 node2] 2999", "[0 node1] 3000", "[1 node2] 3000"] {
        assert!(done.out.contains(line), "{}", done.out);
    }
    lab.hvdctl(&["status"]).code(0).says(&["up"]);
    lab.hvdctl(&["doctor"]).says(&["node2: its sshd has MaxSessions 1", "set MaxSessions to 10"]);
    // and on one that an earlier command has left open
    lab.edit("connection_idle_s = 0", "connection_idle_s = 600");
    for _ in 0..2 {
        lab.hvdctl(&["status"]).code(0).says(&["up"]);
    }
    no_job_is_left();
}

#[test]
fn a_node_without_room_for_a_login_is_reached_over_an_open_connection() {
    let lab = Lab::up();
    lab.edit("connection_idle_s = 0", "connection_idle_s = 600");
    let _back = with_sshd("MaxStartups 1:100:1\n");
    let exec = || lab.hvdctl(&["exec", "--on", "node2", "--", "true"]);
    exec().code(0);
    let _waiting = TcpStream::connect((address("node2"), 22)).unwrap();
    eventually(s(5), || on("node2", "pgrep -fc '^sshd: .*1 of 1-1 startups' || :").trim() == "1");
    exec().code(0);
    lab.hvdctl(&["status"]).code(0);
    lab.hvdctl(&["disconnect"]).code(0);
    exec().code(125).complains(&["error: node2: cannot log in by ssh as "]);
}

#[test]
fn a_sudo_that_warns_and_a_docker_context_that_is_gone() {
    let lab = Lab::up();
    let project = lab.project("warned", &[("train.py", "open('made', 'w').write('here')\n")]);
    lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "1", "--launcher", "env"]).code(0);
    on(
        "node1",
        "hostname nowhere.invalid && mkdir -p /home/workshop/.docker &&
         echo '{\"currentContext\": \"desktop-linux\"}' >/home/workshop/.docker/config.json",
    );
    let _back = Restore(|| drop(node_sh("node1", "hostname node1; rm -rf /home/workshop/.docker", &[])));
    let said = node_sh("node1", "su workshop -c 'sudo -n true' 2>&1", &[]).out;
    assert!(said.contains("unable to resolve host"), "{said}");
    let out = lab.path().join("fetched");
    let fetched = lab.hvdctl(&["fetch", "-o", out.to_str().unwrap()]).code(0);
    assert!(!fetched.err.contains("unable to resolve"), "{}", fetched.err);
    assert_eq!(fs::read_to_string(out.join("made")).unwrap(), "here");
    let context = "node1: /home/workshop/.docker/config.json names the Docker context desktop-linux, ";
    let doctor = lab.hvdctl(&["doctor"]).says(&["node1: its host name nowhere.invalid does not resolve to an address"]);
    doctor.complains(&[context, "docker context use default"]);
    on("node1", "echo '{\"currentContext\":\"default\"}' >/home/workshop/.docker/config.json");
    let status = lab.hvdctl(&["status"]).code(0).says(&["up"]);
    assert!(!status.err.contains("context"), "{}", status.err);
}

#[test]
fn control_sequences_of_ranks_reach_no_terminal() {
    let operator = Operator::new("user = \"workshop\"", "user = \"workshop\"");
    operator.hvdctl(&["up"]).code(0);
    let program = r"printf '\033]0;title\007\033]52;c;aGk=\007\033[6n\033[31mred\033[0m\n'";
    let bytes = "\x1b]0;title\x07\x1b]52;c;aGk=\x07\x1b[6n\x1b[31mred\x1b[0m";
    let shown = "\\u{1b}]0;title\\u{7}\\u{1b}]52;c;aGk=\\u{7}\\u{1b}[6n\x1b[31mred\x1b[0m";
    let seen = operator.terminal(&["run", "-np", "1", "--", "sh", "-c", program], &[]).code(0);
    assert!(seen.out.contains(shown) && !seen.out.contains("\x1b]"), "{:?}", seen.out);
    let seen = operator.terminal(&["logs"], &[]).code(0);
    assert!(seen.out.contains(shown) && !seen.out.contains("\x1b]"), "{:?}", seen.out);
    let raw = operator.terminal(&["--raw", "logs"], &[]).code(0);
    assert!(raw.out.contains(bytes), "{:?}", raw.out);
    assert_eq!(operator.hvdctl(&["logs"]).ok(), format!("[0 node1] {bytes}\n"), "off a terminal bytes are as they are");
    let exec = operator.terminal(&["exec", "--on", "node1", "--", "printf", r"\033[2Jcleared"], &[]).code(0);
    assert!(exec.out.contains("\\u{1b}[2Jcleared"), "{:?}", exec.out);
    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
}
