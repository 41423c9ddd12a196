//! Connections that outlive the command.

use crate::process::{Done, eventually, kill, run, s};
use crate::state::{Lab, Restore, lab_dir, on};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// A lab whose connections stay open for this long.
#[track_caller]
fn lab(idle: u32) -> Lab {
    let lab = Lab::empty();
    lab.edit("connection_idle_s = 0", &format!("connection_idle_s = {idle}"));
    lab
}

/// The port on this machine of the connection over which a command runs on node1.
#[track_caller]
fn port(lab: &Lab) -> String {
    let shown = lab.hvdctl(&["exec", "-q", "--on", "node1", "--", "sh", "-c", "echo port $SSH_CONNECTION"]).ok();
    let (_, connection) = shown.split_once("port ").unwrap_or_else(|| panic!("{shown}"));
    connection.split_whitespace().nth(1).unwrap().to_owned()
}

/// The control sockets of the connections that are open for later commands.
fn sockets(lab: &Lab) -> Vec<PathBuf> {
    let files = fs::read_dir(lab.path().join("hvdctl")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut sockets: Vec<_> = files.filter(|path| path.file_name().unwrap().len() == 32).collect();
    sockets.sort();
    sockets
}

/// The ssh masters of this test.
fn masters(lab: &Lab) -> String {
    let mut pgrep = Command::new("pgrep");
    pgrep.args(["-f", &format!("^ssh .*ControlPersist=.*{}", lab.path().display())]);
    run(pgrep, s(10)).out
}

#[track_caller]
fn disconnected(lab: &Lab) -> Done {
    lab.hvdctl(&["disconnect"]).code(0)
}

#[test]
fn a_connection_serves_later_commands() {
    let lab = lab(600);
    let first = port(&lab);
    assert_eq!(port(&lab), first);
    lab.hvdctl(&["status"]).code(0);
    lab.hvdctl(&["exec", "--root", "--", "true"]).code(0);
    assert_eq!((port(&lab), sockets(&lab).len()), (first.clone(), 2), "one for each node");
    // two commands at once have one to share in the end, and those of the slower one are closed
    disconnected(&lab).says(&["node[1-2] (2): closed"]);
    disconnected(&lab).says(&["node[1-2] (2): none"]);
    let other = lab.start(&["exec", "--", "sleep", "1"]);
    let shared = port(&lab);
    other.end(s(30)).code(0);
    assert!(shared != first && sockets(&lab).len() == 2, "{:?}", sockets(&lab));
    eventually(s(5), || masters(&lab).lines().count() == 2);
    assert_eq!(masters(&lab).lines().count(), 2);
    // a master holds nothing of the command that has started it: no lock, no pipe, no directory
    disconnected(&lab);
    let mut shell = Command::new("sh");
    let script = "exec 9>held; flock 9; \"$1\" exec -- true 2>&1 | cat >shown";
    shell.args(["-c", script, "sh"]).arg(lab.command(&[]).get_program());
    shell.current_dir(lab.path()).env("XDG_RUNTIME_DIR", lab.path());
    run(shell, s(60)).code(0);
    assert_eq!(sockets(&lab).len(), 2);
    let mut lock = Command::new("flock");
    lock.arg("-n").arg(lab.path().join("held")).arg("true");
    run(lock, s(10)).code(0);
    for pid in masters(&lab).lines() {
        assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), PathBuf::from("/"));
        // a Ctrl-C at the terminal is for others
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        assert_eq!(stat.split(' ').nth(5), Some(pid), "it has a session of its own");
    }
    // jobs of many programs at once
    lab.hvdctl(&["up"]).code(0);
    lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(0);
    disconnected(&lab);
    eventually(s(5), || masters(&lab).is_empty());
    assert_eq!(masters(&lab), "");
}

#[test]
fn what_is_not_the_same_connection_any_more_is_replaced() {
    let lab = lab(600);
    let config = lab.path().join("ssh_config");
    fs::copy(lab_dir().join("ssh_config"), &config).unwrap();
    lab.edit(lab_dir().join("ssh_config").to_str().unwrap(), config.to_str().unwrap());
    let mut last = port(&lab);
    let mut is_new = |why: &str| {
        let new = port(&lab);
        assert_ne!(new, last, "{why}");
        assert_eq!(port(&lab), new, "{why}");
        last = new;
    };
    kill(masters(&lab).trim(), "KILL");
    is_new("its ssh was killed, and its socket is dead");
    let stopped = masters(&lab);
    kill(stopped.trim(), "STOP");
    is_new("its ssh does not answer");
    kill(stopped.trim(), "KILL");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\nHost other\n  User ana\n")).unwrap();
    is_new("the ssh configuration has changed");
    lab.edit("user = \"workshop\"", "user = \"workshop\"\nssh_port = 22");
    is_new("the inventory has changed");
    // as after the machine has slept for an hour
    for state in sockets(&lab).iter().map(|socket| socket.with_extension("state")) {
        let text = fs::read_to_string(&state).unwrap();
        fs::write(&state, text.replacen("slept ", "slept 3600", 1)).unwrap();
    }
    is_new("this machine has slept");
    // the node is gone, and comes back
    lab.edit("connect_timeout_s = 10", "connect_timeout_s = 1");
    let undo = "while iptables -D INPUT -p tcp --dport 22 -j DROP 2>/dev/null; do :; done";
    let _restore = Restore(|| drop(on("node1", undo)));
    on("node1", "iptables -I INPUT -p tcp --dport 22 -j DROP");
    lab.hvdctl(&["exec", "--on", "node1", "--", "true"])
        .code(125)
        .complains(&["error: node1: cannot log in by ssh as workshop@node1: "]);
    on("node1", undo);
    is_new("it was lost");
    lab.edit("connection_idle_s = 600", "connection_idle_s = 1");
    disconnected(&lab);
    port(&lab);
    eventually(s(10), || masters(&lab).is_empty());
    assert_eq!(masters(&lab), "", "none has used it for a second");
    port(&lab);
    // a directory that others can enter is not used
    let directory = lab.path().join("hvdctl");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    lab.hvdctl(&["exec", "--", "true"]).code(0).complains(&[
        "warning: connections end with this command: ",
        "/hvdctl: its mode is 755, not 700",
        "hint: ",
    ]);
    lab.hvdctl(&["disconnect"]).code(1).complains(&["error: cannot use the kept connections: "]);
}
