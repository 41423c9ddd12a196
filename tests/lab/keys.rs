//! `keys push`: the contents of the nodes' key directories, and the places where the private key must never be.

use crate::process::{Done, Running, run, s};
use crate::state::{FULL, Lab, NODES, address, files_with, node_sh, on};
use crate::watch::{Watcher, has};
use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Every file of the key directory with its mode and owner, the directory first.
pub fn directory(node: &str) -> Vec<String> {
    let listed = on(node, "cd /opt/horovod/ssh && { stat -c '%n %a %u:%g' .; stat -c '%n %a %u:%g' $(ls -A); }");
    listed.lines().map(str::to_owned).collect()
}

/// Inodes, times and contents of the key directory.
pub fn fingerprint(node: &str) -> String {
    on(node, "cd /opt/horovod/ssh && stat -c '%n %i %y %z %a %u:%g' . * && sha256sum *")
}

/// Type and base64 of a private key's public half, by ssh-keygen on the node.
pub fn public_half(node: &str, file: &str) -> String {
    let line = node_sh(node, "ssh-keygen -y -f \"/opt/horovod/ssh/$1\"", &[file]).ok();
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

pub fn read(node: &str, file: &str) -> String {
    node_sh(node, "cat \"/opt/horovod/ssh/$1\"", &[file]).ok()
}

/// The line that authorizes a key, from the addresses of these nodes.
#[track_caller]
pub fn line(public: &str, nodes: &[&str]) -> String {
    let addresses = nodes.iter().flat_map(|node| {
        let listed = on(node, "ip -o -4 addr show dev eth0");
        listed
            .lines()
            .filter_map(|l| l.split_whitespace().nth(3)?.split('/').next()?.parse().ok())
            .collect::<Vec<IpAddr>>()
    });
    let addresses: BTreeSet<IpAddr> = addresses.collect();
    assert!(addresses.len() >= nodes.len(), "{addresses:?}");
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    format!("restrict,from=\"{}\" {public} hvdctl:lab\n", addresses.join(","))
}

/// Logs in from node1 to the worker of node2 with the cluster's key, as a launcher does.
pub fn login() -> Done {
    let address = address("node2");
    let ssh = "docker exec hworker ssh -p 12345 -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10 \
        \"$1\" hostname";
    node_sh("node1", ssh, &[&address])
}

/// Runs a command and collects the contents of every file that lies meanwhile, or afterwards, in these directories and
/// in the one for its ssh sessions.
fn run_and_collect(command: Command, directories: &[PathBuf]) -> (Done, Vec<u8>) {
    fn collect(directory: &Path, into: &mut BTreeSet<Vec<u8>>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
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
        for directory in sessions.chain(directories.iter().cloned()) {
            collect(&directory, &mut seen);
        }
    };
    while running.runs() {
        look();
        std::thread::sleep(Duration::from_millis(5));
    }
    look();
    (running.end(s(5)), seen.into_iter().collect::<Vec<_>>().join(&b'\n'))
}

/// Pieces of a private key on the master, as it is and as it is when it travels, without those that begin with this
/// many lines: they hold the public half, too.
pub fn pieces(name: &str, skip: usize) -> Vec<String> {
    let private = read("node1", name);
    let travelling = node_sh("node1", "base64 -w0 \"/opt/horovod/ssh/$1\"", &[name]).ok();
    let body = private.lines().filter(|line| !line.starts_with("-----") && line.len() > 20);
    let mut pieces: Vec<String> = body.skip(skip).map(str::to_owned).collect();
    let travelling = travelling.as_bytes().chunks(60).skip(skip + skip / 2);
    pieces.extend(travelling.map(|c| String::from_utf8_lossy(c).trim().to_owned()));
    pieces.retain(|p| p.len() > 20);
    pieces
}

#[test]
fn from_nothing_to_the_state_that_the_contract_names() {
    let lab = Lab::with_rsa_keys();
    let temporary = lab.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let watchers: Vec<(&str, Watcher)> = NODES
        .iter()
        .map(|n| (*n, Watcher::start(Some(n), &[])))
        .chain([("this machine", Watcher::start(None, &[]))])
        .collect();
    let mut push = lab.command(&["keys", "push"]);
    push.env("TMPDIR", &temporary);
    let (done, files_here) = run_and_collect(push, &[lab.path().to_owned(), lab.path().join("home")]);
    let watched: Vec<(&str, Vec<u8>)> = watchers.into_iter().map(|(name, w)| (name, w.stop())).collect();
    done.code(0).says(&["node1: wrote", "id_rsa", "node2: wrote"]);

    // owners, files and modes
    let common = [
        "authorized_keys 600 0:0",
        "known_hosts 644 0:0",
        "ssh_host_ed25519_key 600 0:0",
        "ssh_host_ed25519_key.pub 644 0:0",
    ];
    let mut node1 = vec![". 700 0:0", common[0], "id_rsa 600 0:0", "id_rsa.pub 644 0:0"];
    node1.extend(&common[1..]);
    assert_eq!(directory("node1"), node1);
    assert_eq!(directory("node2"), [". 700 0:0", common[0], common[1], common[2], common[3]]);

    // the cluster's key
    let listed = on("node1", "ssh-keygen -l -f /opt/horovod/ssh/id_rsa");
    assert!(listed.starts_with("4096 SHA256:") && listed.trim_end().ends_with("(RSA)"), "{listed}");
    let public = public_half("node1", "id_rsa");
    assert_eq!(read("node1", "id_rsa.pub").trim(), format!("{public} hvdctl:lab"));
    let line = line(&public, &NODES);
    for node in NODES {
        assert_eq!(read(node, "authorized_keys"), line, "{node}");
    }

    // a host key of its own on each node, and the master knows which
    let host_keys = NODES.map(|node| public_half(node, "ssh_host_ed25519_key"));
    assert_ne!(host_keys[0], host_keys[1]);
    for (node, key) in NODES.iter().zip(&host_keys) {
        assert!(read(node, "ssh_host_ed25519_key.pub").starts_with(key.as_str()), "{node}");
        let address = address(node);
        for name in [format!("[{node}]:12345"), format!("[{address}]:12345")] {
            let found = node_sh("node1", "ssh-keygen -F \"$1\" -f /opt/horovod/ssh/known_hosts", &[&name]).ok();
            let lines: Vec<&str> = found.lines().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(lines.len(), 1, "{name}: {found}");
            assert!(lines[0].contains(key.as_str()), "{name} is pinned to another key than {node} has: {found}");
        }
    }

    // where the private key must not be: pieces of it as it is, and as it is when it travels
    let pieces = pieces("id_rsa", 8);
    assert!(pieces.len() > 50, "{}", pieces.len());
    assert!(files_here.len() > 100, "the directories of this machine were seen");
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
    let everywhere = "/opt /root /home /etc /tmp /var/tmp /run";
    assert_eq!(files_with("node1", &pieces[3], everywhere), ["/opt/horovod/ssh/id_rsa"]);
    assert_eq!(files_with("node2", &pieces[3], everywhere), [""; 0]);
}

#[test]
fn faults_are_repaired_and_reported_and_foreign_lines_are_kept() {
    let lab = Lab::empty();
    lab.hvdctl(&["keys", "push"]).code(0);
    let right = NODES.map(directory);
    let keys = NODES.map(|node| public_half(node, "ssh_host_ed25519_key"));
    on("node1", "cd /opt/horovod/ssh && chmod 755 . && chown 1000 authorized_keys && chmod 644 id_ed25519");
    on("node2", "cd /opt/horovod/ssh && chown 1000:1000 . && echo x >id_ed25519 && chmod 666 ssh_host_ed25519_key");
    lab.hvdctl(&["keys", "push"]).code(0).says(&[
        "the directory (755 0:0)",
        "authorized_keys (600 1000:0)",
        "id_ed25519 (644 0:0)",
        "node2: removed id_ed25519",
        "the directory (700 1000:1000)",
        "ssh_host_ed25519_key (666 0:0)",
    ]);
    assert_eq!(NODES.map(directory), right, "modes and owners are right again; no private key on node2");
    assert_eq!(NODES.map(|node| public_half(node, "ssh_host_ed25519_key")), keys, "the host keys are the old ones");
    lab.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]);

    // lines of others, before ours and after, are no reason to rewrite the files; neither is a selection of nodes
    on(
        "node1",
        "cd /opt/horovod/ssh && sed -i '1i # from ana' authorized_keys && echo 'ssh-ed25519 AAAAfriend ana@desk' \
         >>authorized_keys &&
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
        "cd /opt/horovod/ssh && sed -i '/hvdctl:lab/d' authorized_keys known_hosts && printf %s '# no newline' \
         >>authorized_keys",
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
    assert_eq!(read("node2", "authorized_keys"), line(&cluster_key, &NODES));
}

#[test]
fn the_key_is_of_use_from_the_clusters_addresses_only() {
    let lab = Lab::up();
    assert_eq!(login().code(0).out, on("node2", "uname -n"));
    on("node2", "sed -i 's/from=\"[^\"]*\"/from=\"192.0.2.1\"/' /opt/horovod/ssh/authorized_keys");
    login().code(255).complains(&["Permission denied"]);
    lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(125).complains(&["keys", "node2", "`hvdctl up` pushes them"]);
    lab.hvdctl(&["keys", "push"]).code(0).says(&["node1: unchanged", "node2: wrote authorized_keys"]);
    login().code(0);
    lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(0);
}

#[test]
fn the_state_of_every_nodes_keys() {
    let lab = Lab::empty();
    lab.hvdctl(&["keys", "status"]).code(1).says(&["the master has no key pair", "hint: hvdctl keys push"]);
    on("node1", "test ! -e /opt/horovod");
    lab.hvdctl(&["keys", "push"]).code(0);
    let before = NODES.map(fingerprint);
    let sha = on("node1", "ssh-keygen -l -f /opt/horovod/ssh/id_ed25519.pub");
    let sha = sha.split_whitespace().nth(1).unwrap();
    let rows =
        |text: &str| text.lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect::<Vec<Vec<_>>>();
    let clean = rows(&lab.hvdctl(&["keys", "status"]).ok());
    assert_eq!(clean[0], ["NODE", "KEY", "FINGERPRINT", "OWNER/MODES", "AGREED", "PINNED", "REACHES"]);
    assert_eq!(clean[1], ["node1", "(master)", "Ed25519", sha, "ok", "yes", "yes", "–"]);
    assert_eq!(clean[2..], [["node2", "–", sha, "ok", "yes", "yes", "–"]]);
    let document = |code| -> serde_json::Value {
        serde_json::from_str(&lab.hvdctl(&["keys", "status", "--json"]).code(code).out).unwrap()
    };
    let nodes = &document(0)["nodes"];
    assert_eq!((&nodes[0]["key"]["fingerprint"], &nodes[1]["key"]), (&sha.into(), &serde_json::Value::Null));
    assert_eq!((&nodes[1]["agreed"], &nodes[1]["pinned"], &nodes[1]["ok"]), (&true.into(), &true.into(), &true.into()));
    assert_eq!(NODES.map(fingerprint), before, "it changes nothing");

    let ssh = "cd /opt/horovod/ssh &&";
    let cases = [
        (
            "node2",
            "cp authorized_keys id_ed25519 && chmod 600 id_ed25519",
            "node2 has a private key that belongs only on the master: id_ed25519",
        ),
        (
            "node2",
            "chmod 755 . && chown 1000 authorized_keys",
            "wrong mode or owner on node2: the directory (755 0:0), authorized_keys (600 1000:0)",
        ),
        (
            "node2",
            "sed -i 's/from=.* ssh/from=\"192.0.2.1\" ssh/' authorized_keys",
            "node2 accepts the key without the right restrictions",
        ),
        ("node2", "rm authorized_keys", "node2 does not accept the cluster's key"),
        (
            "node2",
            "cat ssh_host_ed25519_key.pub | cut -d' ' -f1,2 | sed 's/$/ hvdctl:lab/' >authorized_keys",
            "node2 accepts another key",
        ),
        ("node1", "rm known_hosts", "the host key of node2 is not pinned correctly on node1"),
        (
            "node2",
            "rm ssh_host_ed25519_key* && ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key",
            "the host key of node2 is not pinned correctly on node[1-2]",
        ),
        ("node1", "rm id_ed25519.pub", "id_ed25519.pub is missing on the master"),
    ];
    // the messages of all faults are tested in keys::files::tests; here faults are made on nodes
    for (node, make, words) in if FULL { &cases[..] } else { &cases[1..4] } {
        on(node, &format!("{ssh} {make}"));
        let status = lab.hvdctl(&["keys", "status"]).code(1).says(&[words, "hint: hvdctl keys push"]);
        assert_eq!(status.out.matches(words).count(), 1, "{}", status.out);
        assert_eq!(document(1)["ok"], false);
        lab.hvdctl(&["keys", "push"]).code(0);
        lab.hvdctl(&["keys", "status"]).code(0);
    }

    // with the workers up, each logs in to the other
    lab.hvdctl(&["up"]).code(0);
    let reaching = rows(&lab.hvdctl(&["keys", "status"]).ok());
    assert_eq!(reaching[1..].iter().map(|row| row[row.len() - 3..].join(" ")).collect::<Vec<_>>(), ["1 of 1"; 2]);
    on("node2", &format!("{ssh} rm authorized_keys"));
    let status = lab.hvdctl(&["keys", "status"]).code(1);
    status.says(&["failed logins:", "node1", "0 of 1", "Permission denied (publickey)"]);
    assert_eq!(document(1)["logins"]["failed"][0]["to"][0], "node2");
    lab.hvdctl(&["keys", "push"]).code(0);
    lab.hvdctl(&["down"]).code(0);
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn a_node_that_leaves_the_inventory_is_revoked() {
        let lab = Lab::empty();
        lab.hvdctl(&["keys", "push"]).code(0);
        let key = public_half("node1", "id_ed25519");
        assert_eq!(read("node1", "authorized_keys"), line(&key, &NODES));
        // a worker leaves
        let both = fs::read_to_string(lab.inventory()).unwrap();
        lab.edit("\n[[node]]\nhost = \"node2\"\n", "");
        lab.hvdctl(&["keys", "status"]).code(1).says(&["node1 still pins nodes that the inventory does not have"]);
        lab.hvdctl(&["keys", "push"]).code(0).says(&["node1: wrote authorized_keys, known_hosts"]);
        assert_eq!(read("node1", "authorized_keys"), line(&key, &["node1"]));
        assert!(!read("node1", "known_hosts").contains("node2"), "{}", read("node1", "known_hosts"));
        // the master leaves: its key is worth nothing any more
        fs::write(lab.inventory(), &both).unwrap();
        lab.hvdctl(&["keys", "push"]).code(0);
        fs::write(lab.inventory(), both.replacen("\n[[node]]\nhost = \"node1\"\n", "", 1)).unwrap();
        lab.hvdctl(&["keys", "push"]).code(0).says(&["node2: wrote", "id_ed25519"]);
        let new = public_half("node2", "id_ed25519");
        assert_ne!(new, key);
        assert_eq!(read("node2", "authorized_keys"), line(&new, &["node2"]));
    }

    #[test]
    fn the_key_of_another_cluster_in_a_shared_directory_stays() {
        let lab = Lab::empty();
        let ours = fs::read_to_string(lab.inventory()).unwrap();
        let theirs = ours.replacen("name = \"lab\"", "name = \"other\"", 1);
        let theirs = theirs.replacen("\n[[node]]\nhost = \"node1\"\n", "", 1);
        fs::write(lab.inventory(), &theirs).unwrap();
        lab.hvdctl(&["keys", "push"]).code(0).says(&["node2: wrote", "id_ed25519"]);
        let their_key = public_half("node2", "id_ed25519");
        assert_eq!(read("node2", "id_ed25519.pub"), format!("{their_key} hvdctl:other\n"));

        fs::write(lab.inventory(), &ours).unwrap();
        let words = "node2: id_ed25519 is kept: it is the key of the cluster other, which uses the same directory";
        lab.hvdctl(&["keys", "push"]).code(0).complains(&[words]);
        assert_eq!(public_half("node2", "id_ed25519"), their_key);
        let our_key = public_half("node1", "id_ed25519");
        assert_ne!(our_key, their_key);
        let lines = read("node2", "authorized_keys");
        let lines: Vec<&str> = lines.lines().collect();
        assert!(lines.len() == 2 && lines[0].ends_with(&format!("{their_key} hvdctl:other")), "{lines:?}");
        assert_eq!(lines[1], line(&our_key, &NODES).trim_end());
        // to this cluster that is no fault
        lab.hvdctl(&["keys", "status"]).code(0).says(&[words]);
        lab.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]);
        let before = fingerprint("node2");
        fs::write(lab.inventory(), &theirs).unwrap();
        lab.hvdctl(&["keys", "status"]).code(0);
        lab.hvdctl(&["keys", "push"]).code(0).says(&["nothing to do"]);
        assert_eq!(fingerprint("node2"), before);
    }

    #[test]
    fn a_pair_is_made_once() {
        let lab = Lab::empty();
        lab.hvdctl(&["--on", "node2", "keys", "generate"]).code(2).complains(&["node1", "--on"]);
        lab.hvdctl(&["keys", "generate", "--bits", "4096"]).code(2).complains(&["one size", "--type rsa"]);
        on("node1", "test ! -e /opt/horovod");
        let made = lab.hvdctl(&["keys", "generate"]).code(0).says(&["node1: generated a key pair: Ed25519 SHA256:"]);
        assert_eq!(directory("node1"), [". 700 0:0", "id_ed25519 600 0:0", "id_ed25519.pub 644 0:0"]);
        on("node2", "test ! -e /opt/horovod");
        let listed = on("node1", "ssh-keygen -l -f /opt/horovod/ssh/id_ed25519");
        let sha = listed.split_whitespace().nth(1).unwrap();
        assert!(made.out.contains(sha), "{listed}{}", made.out);

        let before = fingerprint("node1");
        for words in [&["keys", "generate"] as &[&str], &["--on", "node1", "keys", "generate", "--type", "ed25519"]] {
            lab.hvdctl(words).code(0).says(&["nothing to do", "Ed25519", sha]);
        }
        lab.hvdctl(&["keys", "generate", "--type", "rsa"])
            .code(1)
            .complains(&["Ed25519", "hvdctl keys rotate --type rsa"]);
        let words = ["keys", "generate", "--type", "rsa", "--bits", "2048"];
        lab.hvdctl(&words).code(1).complains(&["hvdctl keys rotate --type rsa --bits 2048"]);
        assert_eq!(fingerprint("node1"), before);
        let document: serde_json::Value =
            serde_json::from_str(&lab.hvdctl(&["--json", "keys", "generate"]).ok()).unwrap();
        let reported =
            (&document["ok"], &document["changed"], &document["type"], &document["bits"], &document["fingerprint"]);
        assert_eq!(reported, (&true.into(), &false.into(), &"ed25519".into(), &256.into(), &sha.into()));

        // the public half is restored; a push uses the pair, whatever the inventory's type is now
        on("node1", "rm /opt/horovod/ssh/id_ed25519.pub");
        lab.hvdctl(&["keys", "generate"]).code(0).says(&["nothing to do", sha]);
        assert!(read("node1", "id_ed25519.pub").ends_with(" hvdctl:lab\n"));
        lab.edit("key_type = \"ed25519\"", "key_type = \"rsa\"");
        let push = lab.hvdctl(&["keys", "push"]).code(0);
        push.complains(&[
            "the cluster's pair is Ed25519, but the inventory has another key_type",
            "hvdctl keys rotate",
        ]);
        on("node1", "test ! -e /opt/horovod/ssh/id_rsa");
        assert_eq!(read("node2", "authorized_keys"), line(&public_half("node1", "id_ed25519"), &NODES));
    }

    #[test]
    fn a_second_push_changes_nothing() {
        let lab = Lab::with_rsa_keys();
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
    fn without_the_master_there_is_no_key_to_push() {
        let lab = Lab::empty();
        lab.hvdctl(&["--on", "node2", "keys", "push"]).code(2).complains(&["node1", "--on"]);
        for node in NODES {
            on(node, "test ! -e /opt/horovod");
        }
        // a node that was selected with the master gets all; the other nothing
        lab.hvdctl(&["--on", "node1", "keys", "push"]).code(0);
        assert_eq!(directory("node1").len(), 7);
        on("node2", "test ! -e /opt/horovod");
        let mut pushed = lab.command(&["keys", "push"]);
        pushed.env("HVDCTL_INVENTORY", lab.inventory()).current_dir("/");
        run(pushed, s(60)).code(0).says(&["node2: wrote"]);
    }
}
