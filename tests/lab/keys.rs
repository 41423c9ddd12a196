//! `keys push`: what lies in the nodes' key folders, and where the private key never is.

use crate::process::{Done, Running, run, s};
use crate::state::{Lab, NODES, container, node_sh, on};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Every file of the key folder with its mode and owner, the folder first.
fn folder(node: &str) -> Vec<String> {
    let listed = on(node, "cd /opt/horovod/ssh && { stat -c '%n %a %u:%g' .; stat -c '%n %a %u:%g' $(ls -A); }");
    listed.lines().map(str::to_owned).collect()
}

/// Inodes, times and contents of the key folder.
fn fingerprint(node: &str) -> String {
    on(node, "cd /opt/horovod/ssh && stat -c '%n %i %y %z %a %u:%g' . * && sha256sum *")
}

/// Type and base64 of a private key's public half, by ssh-keygen on the node.
fn public_half(node: &str, file: &str) -> String {
    let line = node_sh(node, "ssh-keygen -y -f \"/opt/horovod/ssh/$1\"", &[file]).ok();
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

fn read(node: &str, file: &str) -> String {
    node_sh(node, "cat \"/opt/horovod/ssh/$1\"", &[file]).ok()
}

/// Collects the arguments and environments of all processes that come by until its standard input ends.
const WATCH: &str = r#"
import glob, sys, threading
seen, done = set(), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
print("watching", flush=True)
while not done.is_set():
    for name in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(name, "rb") as file: seen.add(file.read())
        except OSError: pass
sys.stdout.buffer.write(b"\n".join(seen))
"#;

/// A watcher on a node, or on this machine.
struct Watcher {
    child: std::process::Child,
}

impl Watcher {
    fn start(node: Option<&str>) -> Watcher {
        use std::io::{BufRead, BufReader};
        let mut command = match node {
            Some(node) => {
                let mut command = Command::new("docker");
                command.args(["exec", "-i", "-e", "HVDCTL_TEST=1", &container(node), "timeout", "120", "python3"]);
                command
            }
            None => {
                let mut command = Command::new("timeout");
                command.args(["120", "python3"]);
                command
            }
        };
        command.args(["-c", WATCH]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        // one byte at a time would do; nothing comes behind this line until the end
        BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "watching\n");
        Watcher { child }
    }

    fn end(mut self) -> Vec<u8> {
        drop(self.child.stdin.take());
        self.child.wait_with_output().unwrap().stdout
    }
}

/// Runs a command and collects the contents of every file that lies meanwhile, or afterwards, in these folders and in
/// the one for its ssh sessions.
fn run_and_collect(command: Command, folders: &[PathBuf]) -> (Done, Vec<u8>) {
    fn collect(folder: &Path, into: &mut BTreeSet<Vec<u8>>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => collect(&entry.path(), into),
                Ok(kind) if kind.is_file() => into.extend(fs::read(entry.path())),
                _ => {}
            }
        }
    }
    let mut seen = BTreeSet::new();
    let mut running = Running::start(command, &[]);
    let prefix = format!("hvdctl-ssh.{}.", running.pid());
    let mut look = || {
        let sessions = fs::read_dir("/tmp").unwrap().flatten();
        let sessions = sessions.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix)).map(|e| e.path());
        for folder in sessions.chain(folders.iter().cloned()) {
            collect(&folder, &mut seen);
        }
    };
    while running.runs() {
        look();
        std::thread::sleep(Duration::from_millis(5));
    }
    look();
    (running.end(s(5)), seen.into_iter().collect::<Vec<_>>().join(&b'\n'))
}

fn has(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle.as_bytes())
}

#[test]
fn from_nothing_to_the_state_that_the_contract_names() {
    let lab = Lab::empty();
    let temporary = lab.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let watchers: Vec<(&str, Watcher)> =
        NODES.iter().map(|n| (*n, Watcher::start(Some(n)))).chain([("this machine", Watcher::start(None))]).collect();
    let mut push = lab.command(&["keys", "push"]);
    push.env("TMPDIR", &temporary);
    let (done, files_here) = run_and_collect(push, &[lab.path().to_owned(), lab.path().join("home")]);
    let watched: Vec<(&str, Vec<u8>)> = watchers.into_iter().map(|(name, w)| (name, w.end())).collect();
    done.code(0).says(&["node1: wrote", "id_rsa", "node2: wrote"]);

    // who has what, with which mode
    let common = [
        "authorized_keys 600 0:0",
        "known_hosts 644 0:0",
        "ssh_host_ed25519_key 600 0:0",
        "ssh_host_ed25519_key.pub 644 0:0",
    ];
    let mut node1 = vec![". 700 0:0", common[0], "id_rsa 600 0:0", "id_rsa.pub 644 0:0"];
    node1.extend(&common[1..]);
    assert_eq!(folder("node1"), node1);
    assert_eq!(folder("node2"), [". 700 0:0", common[0], common[1], common[2], common[3]]);

    // the cluster's key
    let listed = on("node1", "ssh-keygen -l -f /opt/horovod/ssh/id_rsa");
    assert!(listed.starts_with("4096 SHA256:") && listed.trim_end().ends_with("(RSA)"), "{listed}");
    let public = public_half("node1", "id_rsa");
    assert_eq!(read("node1", "id_rsa.pub").trim(), format!("{public} hvdctl:lab"));
    for node in NODES {
        assert_eq!(read(node, "authorized_keys"), format!("restrict {public} hvdctl:lab\n"), "{node}");
    }

    // a host key of its own on each node, and the master knows which
    let host_keys = NODES.map(|node| public_half(node, "ssh_host_ed25519_key"));
    assert_ne!(host_keys[0], host_keys[1]);
    for (node, key) in NODES.iter().zip(&host_keys) {
        assert!(read(node, "ssh_host_ed25519_key.pub").starts_with(key.as_str()), "{node}");
        let address = on(node, "hostname -i").split_whitespace().next().unwrap().to_owned();
        for name in [format!("[{node}]:12345"), format!("[{address}]:12345")] {
            let found = node_sh("node1", "ssh-keygen -F \"$1\" -f /opt/horovod/ssh/known_hosts", &[&name]).ok();
            let lines: Vec<&str> = found.lines().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(lines.len(), 1, "{name}: {found}");
            assert!(lines[0].contains(key.as_str()), "{name} is pinned to another key than {node} has: {found}");
        }
    }

    // where the private key must not be: pieces of it as it is, and as it is when it travels
    let private = read("node1", "id_rsa");
    let travelling = on("node1", "base64 -w0 /opt/horovod/ssh/id_rsa");
    let body = private.lines().filter(|line| !line.starts_with("-----") && line.len() > 20);
    let mut pieces: Vec<String> = body.skip(8).map(str::to_owned).collect();
    pieces.extend(travelling.as_bytes().chunks(60).skip(12).map(|c| String::from_utf8_lossy(c).trim().to_owned()));
    pieces.retain(|p| p.len() > 20);
    assert!(pieces.len() > 50, "{}", pieces.len());
    assert!(files_here.len() > 100, "the folders of this machine were seen");
    for (place, seen) in &watched {
        assert!(
            has(seen, if *place == "this machine" { "hvdctl-ssh." } else { "HVDCTL_ADDRESS" }),
            "{place}: nothing seen"
        );
    }
    for piece in &pieces {
        assert!(!has(&files_here, piece), "a part of the private key lay in a file of this machine");
        for (place, seen) in &watched {
            assert!(!has(seen, piece), "a part of the private key was an argument or in the environment on {place}");
        }
    }
    let elsewhere = "grep -rlF -- \"$1\" /opt /root /home /etc /tmp /var/tmp /run 2>/dev/null | sort";
    assert_eq!(node_sh("node1", elsewhere, &[&pieces[3]]).out, "/opt/horovod/ssh/id_rsa\n");
    assert_eq!(node_sh("node2", elsewhere, &[&pieces[3]]).out, "");
}

#[test]
fn a_second_push_changes_nothing() {
    let lab = Lab::empty();
    lab.hvdctl(&["keys", "push"]).code(0);
    let before = NODES.map(fingerprint);
    lab.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]);
    assert_eq!(NODES.map(fingerprint), before);
    let document: serde_json::Value = serde_json::from_str(&lab.hvdctl(&["--json", "keys", "push"]).ok()).unwrap();
    assert_eq!(document["ok"], true);
    let changed: Vec<bool> = document["nodes"].as_array().unwrap().iter().map(|n| n["changed"] == true).collect();
    assert_eq!(changed, [false, false]);
    assert_eq!(NODES.map(fingerprint), before);
}

#[test]
fn what_is_wrong_is_repaired_and_said_and_what_is_others_stays() {
    let lab = Lab::quick();
    lab.hvdctl(&["keys", "push"]).code(0);
    let right = NODES.map(folder);
    let keys = NODES.map(|node| public_half(node, "ssh_host_ed25519_key"));
    on("node1", "cd /opt/horovod/ssh && chmod 755 . && chown 1000 authorized_keys && chmod 644 id_ed25519");
    on("node2", "cd /opt/horovod/ssh && chown 1000:1000 . && echo x >id_ed25519 && chmod 666 ssh_host_ed25519_key");
    lab.hvdctl(&["keys", "push"]).code(0).says(&[
        "the folder (755 0:0)",
        "authorized_keys (600 1000:0)",
        "id_ed25519 (644 0:0)",
        "node2: removed id_ed25519",
        "the folder (700 1000:1000)",
        "ssh_host_ed25519_key (666 0:0)",
    ]);
    assert_eq!(NODES.map(folder), right, "modes and owners are right again; no private key on node2");
    assert_eq!(NODES.map(|node| public_half(node, "ssh_host_ed25519_key")), keys, "the host keys are the old ones");
    lab.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]);

    // lines of others, before ours and behind, are no reason to write the files anew; neither is a part of the nodes
    on(
        "node1",
        "cd /opt/horovod/ssh && sed -i '1i # from ana' authorized_keys && echo 'ssh-ed25519 AAAAfriend ana@desk' >>authorized_keys &&
         echo 'git.example ssh-ed25519 AAAAgit' >>known_hosts && echo x >notes && chmod 600 notes",
    );
    let before = fingerprint("node1");
    lab.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]);
    lab.hvdctl(&["--on", "node1", "keys", "push"]).code(0).says(&["nothing to do"]);
    assert_eq!(fingerprint("node1"), before);

    // and they stay when ours has to be written
    let ours = read("node2", "authorized_keys");
    on(
        "node1",
        "cd /opt/horovod/ssh && sed -i '/hvdctl:lab/d' authorized_keys known_hosts && printf %s '# no newline' >>authorized_keys",
    );
    lab.hvdctl(&["keys", "push"]).code(0).says(&["node1: wrote authorized_keys, known_hosts", "node2: unchanged"]);
    let lines = read("node1", "authorized_keys");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines, ["# from ana", "ssh-ed25519 AAAAfriend ana@desk", "# no newline", ours.trim_end()]);
    assert!(read("node1", "known_hosts").contains("git.example ssh-ed25519 AAAAgit\n"));
    assert_eq!(read("node1", "known_hosts").matches("hvdctl:lab").count(), 2);
    assert_eq!(read("node1", "notes"), "x\n");

    // the public half can be made again from the private one
    let cluster_key = public_half("node1", "id_ed25519");
    on("node1", "rm /opt/horovod/ssh/id_ed25519.pub");
    on("node2", "rm /opt/horovod/ssh/authorized_keys");
    lab.hvdctl(&["keys", "push"]).code(0).says(&["node1: wrote id_ed25519.pub", "node2: wrote authorized_keys"]);
    assert_eq!(public_half("node1", "id_ed25519"), cluster_key);
    assert_eq!(read("node2", "authorized_keys"), format!("restrict {cluster_key} hvdctl:lab\n"));
}

#[test]
fn without_the_master_there_is_no_key_to_push() {
    let lab = Lab::quick();
    lab.hvdctl(&["--on", "node2", "keys", "push"]).code(2).complains(&["node1", "--on"]);
    for node in NODES {
        on(node, "test ! -e /opt/horovod");
    }
    // a node that was selected with the master gets all; the other nothing
    lab.hvdctl(&["--on", "node1", "keys", "push"]).code(0);
    assert_eq!(folder("node1").len(), 7);
    on("node2", "test ! -e /opt/horovod");
    let mut pushed = lab.command(&["keys", "push"]);
    pushed.env("HVDCTL_INVENTORY", lab.inventory()).current_dir("/");
    run(pushed, s(60)).code(0).says(&["node2: wrote"]);
}
