//! Connections to nodes: host keys, jump hosts, the user's own configuration, and the first login by a password.

use crate::operator::{
    Operator, engine_has, fingerprint, interactive, needle, nothing_is_there, password, sshd_listens, sshd_log,
};
use crate::pool::{network_bridge, pair_number};
use crate::process::{eventually, kill, run, s};
use crate::state::{NODES, Restore, address, lab_dir, node_sh, on, ours};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).permissions().mode() & 0o7777
}

/// Type and base64 of a node's host key.
#[track_caller]
pub fn host_key(node: &str) -> String {
    let line = on(node, "ssh-keygen -y -f /etc/ssh/ssh_host_ed25519_key");
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Keys that a known-hosts file has, whatever their hosts are called in it.
fn keys_in(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// The number of messages about the first contact with a node, with its name and fingerprint.
#[track_caller]
fn contacts(err: &str, node: &str) -> usize {
    let (address, key) = (address(node), fingerprint(node));
    let lines = err.lines().filter_map(|line| line.split_once(": first contact with ").map(|(_, rest)| rest));
    let of_node = lines.filter(|line| line.ends_with(&format!(": ED25519 {key}")));
    of_node.inspect(|l| assert!([node, &address, "fd28:"].iter().any(|name| l.contains(name)), "{l}")).count()
}

/// A new host key for a node whose sshd runs on, as after a new installation.
#[track_caller]
pub fn change_host_key(node: &str) {
    on(
        node,
        "cd /etc/ssh && mv ssh_host_ed25519_key kept_key && ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key &&
         rm -f ssh_host_ed25519_key.pub && kill -HUP \"$(cat /run/sshd.pid)\" && sleep 2",
    );
    sshd_listens(node);
}

#[test]
fn unknown_host_keys_are_shown_and_stored() {
    let mut operator = Operator::new("user = \"workshop\"", "user = \"root\"\nssh_port = 2222");
    let done = operator.hvdctl(&["status"]).code(0);
    for node in NODES {
        assert_eq!(contacts(&done.err, node), 1, "{node}\n{}", done.err);
        assert!(!done.out.contains("first contact"), "{}", done.out);
        assert!(keys_in(&operator.known_hosts()).contains(&host_key(node)), "{}", keys_in(&operator.known_hosts()));
    }
    assert_eq!(mode(&operator.known_hosts()), 0o600);
    assert_eq!(mode(operator.known_hosts().parent().unwrap()), 0o700);
    let kept = keys_in(&operator.known_hosts());
    assert_eq!(kept.lines().count(), 2, "{kept}");

    // once is enough
    let done = operator.hvdctl(&["status"]).code(0);
    assert!(!done.err.contains("first contact"), "{}", done.err);
    assert_eq!(keys_in(&operator.known_hosts()), kept);
    operator.hvdctl(&["--strict", "status"]).code(0);

    // in scripts' mode too, and not among the results
    fs::remove_file(operator.known_hosts()).unwrap();
    let done = operator.hvdctl(&["--json", "status"]).code(0).complains(&["first contact with "]);
    serde_json::from_str::<serde_json::Value>(&done.out).unwrap();
    assert!(!operator.home().join(".ssh/known_hosts").exists(), "the user's own file is not written");

    // the state directory may be elsewhere
    fs::remove_file(operator.known_hosts()).unwrap();
    let state = operator.lab.path().join("a state");
    operator.set("XDG_STATE_HOME", state.to_str().unwrap());
    operator.hvdctl(&["status"]).code(0).complains(&["first contact with "]);
    let file = state.join("hvdctl/known_hosts");
    assert!(NODES.iter().all(|node| keys_in(&file).contains(&host_key(node))), "{}", keys_in(&file));
    assert_eq!((mode(&file), mode(&state.join("hvdctl"))), (0o600, 0o700));
    assert!(!operator.known_hosts().exists());
}

#[test]
fn host_keys_that_the_user_knows_are_no_first_contact() {
    let operator = Operator::new("user = \"workshop\"", "user = \"workshop\"");
    let theirs = operator.home().join(".ssh/known_hosts");
    fs::copy(lab_dir().join("known_hosts"), &theirs).unwrap();
    let before = fs::read_to_string(&theirs).unwrap();
    let file = format!("  UserKnownHostsFile {}\n", theirs.display());
    operator.configure(&format!("{}{}{file}", operator.hosts(), operator.with_key()));
    let done = operator.hvdctl(&["--strict", "status"]).code(0);
    assert!(!done.err.contains("first contact"), "{}", done.err);
    let done = operator.hvdctl(&["status"]).code(0);
    assert!(!done.err.contains("first contact"), "{}", done.err);
    let ours = keys_in(&operator.known_hosts());
    assert!(NODES.iter().all(|node| !ours.contains(&host_key(node))), "{ours}");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), before);

    // `StrictHostKeyChecking yes` of the user applies without an option of hvdctl
    fs::write(&theirs, "").unwrap();
    operator.configure(&format!("{}{}{file}  StrictHostKeyChecking yes\n", operator.hosts(), operator.with_key()));
    let done = operator.hvdctl(&["keys", "push"]).code(4).complains(&["node1", "node2", "hint:"]);
    assert!(!done.err.contains("first contact"), "{}", done.err);
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "");
    nothing_is_there();
}

#[test]
fn strict_takes_no_unknown_key() {
    let operator = Operator::new("user = \"workshop\"", "user = \"workshop\"");
    let accepted = || sshd_log("node1").iter().filter(|line| line.contains("Accepted")).count();
    let before = accepted();
    for args in [&["--strict", "keys", "push"][..], &["up", "--strict"], &["--strict", "down", "--purge", "-y"]] {
        let done = operator.hvdctl(args).code(4).complains(&["node1", "node2", "hint:"]);
        assert!(!done.err.contains("first contact"), "{}", done.err);
        assert_eq!(keys_in(&operator.known_hosts()), "");
        nothing_is_there();
    }
    assert_eq!(accepted(), before, "nobody logged in");
    // one that is known, and one that is not
    operator.hvdctl(&["--on", "node1", "status"]).code(0);
    let done = operator.hvdctl(&["--strict", "keys", "push"]).code(4).complains(&["node2:"]);
    assert!(!done.err.contains("error: node1:"), "{}", done.err);
    nothing_is_there();
}

#[test]
fn a_changed_host_key_is_refused_until_it_is_accepted() {
    let operator = Operator::new("user = \"workshop\"", "user = \"workshop\"\nssh_port = 2222");
    operator.hvdctl(&["keys", "push"]).code(0);
    let old = fingerprint("node2");
    change_host_key("node2");
    let new = fingerprint("node2");
    assert_ne!(old, new);
    let kept = keys_in(&operator.known_hosts());
    let count = || sshd_log("node2").iter().filter(|line| line.contains("[preauth]")).count();
    let before = count();

    let done = operator.hvdctl(&["up"]).code(4).complains(&["node2", &old, &new, "ssh-keygen -R"]);
    assert!(!done.err.contains("first contact"), "{}", done.err);
    // at most one scan of the new key besides the attempt itself
    assert!(count() - before <= 2, "{} connections", count() - before);
    assert!(NODES.iter().all(|node| ours(node).is_empty()), "nothing was changed");
    assert_eq!(keys_in(&operator.known_hosts()), kept);
    for strict in [&["--strict", "up"][..], &["--on", "node2", "up"]] {
        operator.hvdctl(strict).code(4).complains(&[&old, &new]);
    }
    // the other node continues
    let status = operator.hvdctl(&["status"]);
    assert_ne!(status.code, 0);
    assert!(status.out.contains("node1"), "{}{}", status.out, status.err);

    // the command of the hint works as it is
    let hint = done.err.split_once("ssh-keygen -R").unwrap().1;
    let hint = format!("ssh-keygen -R{}", hint.split(['`', '\n']).next().unwrap());
    assert!(hint.contains(" -f "), "{hint}");
    let repaired = Command::new("sh").args(["-c", &hint]).env("HOME", operator.home()).output().unwrap();
    assert!(repaired.status.success(), "{hint}: {}", String::from_utf8_lossy(&repaired.stderr));
    let done = operator.hvdctl(&["up"]).code(0);
    assert_eq!((contacts(&done.err, "node1"), contacts(&done.err, "node2")), (0, 1), "{}", done.err);
    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
}

/// Makes the sshd of node2 reachable only from node1.
#[track_caller]
fn only_through_node1() {
    let rule = "for p in 22 2222; do iptables -I INPUT ! -s \"$1\" -p tcp --dport $p -j DROP; done";
    node_sh("node2", rule, &[&address("node1")]).code(0);
}

#[track_caller]
fn comes_from_node1(user: &str) {
    let line = format!("Accepted publickey for {user} from {} ", address("node1"));
    let log = sshd_log("node2");
    assert!(log.iter().any(|l| l.contains(&line)), "no {line:?} in\n{}", log.join("\n"));
}

#[test]
fn a_node_behind_a_jump_host() {
    let operator = Operator::new("user = \"workshop\"", "user = \"workshop\"\njump = \"root@node1:2222\"");
    let before = NODES.map(engine_has);
    only_through_node1();
    let direct = fs::read_to_string(operator.lab.inventory()).unwrap();
    let without = direct.replace("jump = \"root@node1:2222\"\n", "");
    assert_ne!(direct, without);
    fs::write(operator.lab.inventory(), without).unwrap();
    operator.hvdctl(&["keys", "push"]).code(4).complains(&["node2"]);
    nothing_is_there();
    fs::write(operator.lab.inventory(), direct).unwrap();

    // the jump host is checked in the same way
    let _ = fs::remove_file(operator.known_hosts());
    operator.hvdctl(&["--strict", "--on", "node2", "status"]).code(4);
    assert_eq!(keys_in(&operator.known_hosts()), "");
    let done = operator.hvdctl(&["--on", "node2", "status"]).code(0);
    assert_eq!((contacts(&done.err, "node1"), contacts(&done.err, "node2")), (1, 1), "{}", done.err);
    operator.hvdctl(&["keys", "push"]).code(0);
    operator.hvdctl(&["up"]).code(0);
    assert_eq!(ours("node2"), "hworker running\n");
    operator.hvdctl(&["run", "-np", "2", "--", "hostname"]).code(0).says(&["node1", "node2"]);
    operator.hvdctl(&["--strict", "status"]).code(0);
    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
    comes_from_node1("workshop");
    nothing_is_there();
    assert_eq!(NODES.map(engine_has), before);
}

#[test]
fn aliases_chains_and_included_files_of_the_users_configuration() {
    let operator = Operator::new("", "");
    only_through_node1();
    let (one, two) = (address("node1"), address("node2"));
    let more = operator.home().join(".ssh/more of it");
    fs::write(
        &more,
        format!(
            "Host hop\n  HostName {one}\n  Port 2222\n  User root\n\
             Host master\n  HostName {one}\n  User workshop\n  Port 2222\n\
             Host far\n  HostName {two}\n  User dock\n  ProxyJump hop,workshop@master\n"
        ),
    )
    .unwrap();
    let (interactive, _taken) = interactive();
    operator.configure(&format!("Include \"{}\"\n{}{interactive}", more.display(), operator.with_key()));
    operator.inventory(&["master", "far"], "", "");
    operator.hvdctl(&["keys", "push"]).code(0).says(&["node1: wrote", "node2: wrote"]);
    comes_from_node1("dock");
    operator.hvdctl(&["up"]).code(0);
    operator.hvdctl(&["run", "-np", "2", "--", "hostname"]).code(0).says(&["node1", "node2"]);
    // each field of the inventory overrides the configuration
    operator.inventory(&["master", "far"], "user = \"root\"\nssh_port = 22", "user = \"workshop\"\njump = \"hop\"");
    let before = sshd_log("node2").len();
    operator.hvdctl(&["status"]).code(0);
    let accepted = sshd_log("node2").split_off(before).join("\n");
    assert!(accepted.contains(&format!("Accepted publickey for workshop from {one} ")), "{accepted}");
    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
    nothing_is_there();
}

#[test]
fn the_inventory_overrides_user_port_key_and_jump() {
    let operator = Operator::new("", "");
    let key = operator.home().join(".ssh/id_ed25519");
    operator.configure(&format!(
        "{}Host *\n  User nobody\n  Port 9\n  IdentityFile /nonexistent/key\n  IdentitiesOnly yes\n  ProxyJump \
         127.0.0.1:9\n",
        operator.hosts()
    ));
    operator.hvdctl(&["status"]).code(4);
    let fields = |user: &str, port: u16| {
        format!("user = \"{user}\"\nssh_port = {port}\nidentity = \"{}\"\njump = \"none\"", key.display())
    };
    operator.inventory(&["node1", "node2"], &fields("root", 2222), &fields("workshop", 22));
    operator.hvdctl(&["status"]).code(0);
    // and in [defaults] they hold for all
    let text = fs::read_to_string(operator.lab.inventory()).unwrap();
    let text = text.replace(&fields("root", 2222), "").replace(&fields("workshop", 22), "");
    fs::write(operator.lab.inventory(), text.replace("[defaults]", &format!("[defaults]\n{}", fields("dock", 2222))))
        .unwrap();
    operator.hvdctl(&["up"]).code(0);
    assert!(sshd_log("node2").join("\n").contains("Accepted publickey for dock"));
    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
    nothing_is_there();
}

#[test]
fn a_key_that_only_an_agent_holds() {
    let mut operator = Operator::new("user = \"workshop\"", "user = \"root\"");
    let socket = operator.lab.path().join("agent");
    let agent = Command::new("ssh-agent").args(["-D", "-a"]).arg(&socket).stdout(std::process::Stdio::null()).spawn();
    let mut agent = agent.unwrap();
    let _end = Restore(move || {
        kill(&agent.id().to_string(), "TERM");
        let _ = agent.wait();
    });
    assert!(eventually(s(5), || socket.exists()));
    let key = operator.home().join(".ssh/id_ed25519");
    let mut add = Command::new("ssh-add");
    assert!(add.arg("-q").arg(&key).env("SSH_AUTH_SOCK", &socket).status().unwrap().success());
    fs::remove_file(&key).unwrap();
    fs::remove_file(key.with_extension("pub")).unwrap();
    operator.configure(&operator.hosts());
    operator.hvdctl(&["status"]).code(4).complains(&["Permission denied"]);
    operator.set("SSH_AUTH_SOCK", socket.to_str().unwrap());
    operator.hvdctl(&["status"]).code(0);

    // a key with a passphrase, without a terminal and without the agent
    let locked = operator.home().join(".ssh/locked");
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "a passphrase", "-f"]).arg(&locked).status();
    assert!(made.unwrap().success());
    operator.set("SSH_AUTH_SOCK", "");
    operator.configure(&format!("{}Host *\n  IdentityFile {}\n", operator.hosts(), locked.display()));
    operator.hvdctl(&["status"]).code(4);
}

#[test]
fn a_first_login_by_password_installs_the_operators_key() {
    let operator = Operator::new("user = \"pass\"", "user = \"pass\"");
    let (interactive, _taken) = interactive();
    operator.configure(&format!("{}{}{interactive}", operator.hosts(), operator.with_key()));
    on(
        "node2",
        "install -d -m 700 -o pass -g pass /home/pass/.ssh && cd /home/pass/.ssh &&
         printf %s 'ssh-ed25519 AAAAfriend ana@desk' >authorized_keys && chown pass:pass authorized_keys && chmod 600 \
         authorized_keys",
    );
    operator.hvdctl(&["keys", "push"]).code(4).complains(&["Permission denied", "--first-login"]);
    // no terminal to ask on
    let done = operator.hvdctl(&["keys", "push", "--first-login"]);
    assert_eq!(done.code, 2, "{}{}", done.out, done.err);
    assert!(done.err.contains("terminal"), "{}", done.err);
    for node in NODES {
        assert_eq!(on(node, "cat /home/pass/.ssh/authorized_keys 2>/dev/null | grep -c lab || :"), "0\n", "{node}");
    }
    nothing_is_there();

    let right = password("pass");
    let answer = format!("{right}\n");
    let done =
        operator.terminal(&["keys", "push", "--first-login"], &[("assword:", &answer), ("assword:", &answer)]).code(0);
    assert_eq!(done.out.matches("assword:").count(), 2, "one question a node\n{}", done.out);
    assert!(!done.out.contains(&needle(&right)), "{}", done.out);
    let key = fs::read_to_string(operator.home().join(".ssh/id_ed25519.pub")).unwrap();
    let files = |node| on(node, "cd /home/pass/.ssh && stat -c '%n %a %U' . * && cat authorized_keys");
    let right_modes = ". 700 pass\nauthorized_keys 600 pass\n";
    assert_eq!(files("node1"), format!("{right_modes}{key}"));
    assert_eq!(files("node2"), format!("{right_modes}ssh-ed25519 AAAAfriend ana@desk\n{key}"));
    for node in NODES {
        assert_eq!(on(node, "stat -c '%a %u:%g' /opt/horovod/ssh"), "700 0:0\n", "{node}: and the push went on");
    }

    // from now on no question is asked, and nothing is added twice
    let before = NODES.map(files);
    operator.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]);
    let done = operator.terminal(&["keys", "push", "--first-login"], &[]).code(0);
    assert!(!done.out.contains("assword"), "{}", done.out);
    assert_eq!(NODES.map(files), before);
    operator.hvdctl(&["up"]).code(0);
    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
    nothing_is_there();
    assert_eq!(NODES.map(files), before, "how one logs in is not hvdctl's to remove");
}

#[test]
fn a_first_login_with_a_wrong_password_installs_nothing() {
    let operator = Operator::new("user = \"workshop\"", "user = \"pass\"");
    let wrong = ("assword:", "wrong\n");
    let done = operator.terminal(&["keys", "push", "--first-login"], &[wrong, wrong, wrong]).complains(&["echo on"]);
    done.code(4).says(&["node2", "Permission denied"]);
    on("node2", "test ! -e /home/pass/.ssh");
    nothing_is_there();
}

#[test]
fn addresses_of_ip_version_6() {
    let operator = Operator::new("user = \"workshop\"", "");
    // each pair has a network of its own on this machine
    let pair = pair_number();
    let [here, master, worker] = [1, 11, 12].map(|last| format!("fd28:0:0:{pair}::{last}"));
    let jump = format!("user = \"root\"\njump = \"root@[{master}]:2222\"");
    operator.configure(&operator.with_key());
    operator.inventory(&[&master, &worker], "user = \"workshop\"", &jump);
    let bridge = network_bridge();
    let on_bridge = |what: &str| {
        let nodad: &[&str] = if what == "add" { &["nodad"] } else { &[] };
        let mut command = Command::new("ip");
        command.args(["-6", "addr", what, &format!("{here}/64"), "dev", &bridge]).args(nodad);
        run(command, s(10))
    };
    on_bridge("add").code(0);
    let _end = Restore(|| {
        on_bridge("del");
        for node in NODES {
            node_sh(node, "ip -6 addr flush dev eth0; sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1", &[]);
        }
    });
    for (node, address) in NODES.iter().zip([&master, &worker]) {
        let give = "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0 && ip -6 addr add \"$1/64\" dev eth0 nodad";
        node_sh(node, give, &[address]).code(0);
    }
    let before = sshd_log("node2").len();
    let done = operator.hvdctl(&["keys", "push"]).code(0);
    assert_eq!(contacts(&done.err, "node2"), 1, "{}", done.err);
    let accepted = sshd_log("node2").split_off(before).join("\n");
    assert!(accepted.contains(&format!("Accepted publickey for root from {master} ")), "{accepted}");
    let pinned = on("node1", "cat /opt/horovod/ssh/known_hosts");
    assert!([&master, &worker].iter().all(|address| pinned.contains(&format!("[{address}]:12345"))), "{pinned}");
    operator.hvdctl(&["up"]).code(0);
    operator.hvdctl(&["run", "-np", "2", "--", "hostname"]).code(0).says(&["node1", "node2"]);
    operator.hvdctl(&["down", "--purge", "-y"]).code(0);
    nothing_is_there();
}
