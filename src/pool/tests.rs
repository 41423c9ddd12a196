//! Pools with real programs: `ssh-keygen` makes and checks signatures, and the scripts run on this machine.

use super::directory::{MOST_FILES, PoolDirectory};
use super::format::PoolNode;
use super::format::tests::node;
use super::keygen::KeygenKey;
use super::round_trips::{PoolEndpoint, from_here, from_node};
use super::signature::{NAMESPACE, SigningKey, SigningKeyFault, public_half};
use super::signers::AllowedSigners;
use super::verification::{FileState, PoolFile, Verifier};
use crate::inventory::{Cluster, Node};
use crate::transport::node::{Transport, TransportKind};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const NOW: u64 = 1_000_600;
const OWNER: &str = "ana@example.com";

/// Runs ssh-keygen in a directory; returns whether it succeeded, and what it printed.
fn ssh_keygen(dir: &Path, arguments: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new("ssh-keygen");
    command.current_dir(dir).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("ssh-keygen");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// A directory with a key of ssh-keygen's and the file of allowed signers that names it.
fn with_key(kind: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (made, said) = ssh_keygen(dir.path(), &[&["-q", "-N", "", "-f", "key"], kind].concat(), "");
    assert!(made, "{said}");
    let public = fs::read_to_string(dir.path().join("key.pub")).unwrap();
    fs::write(dir.path().join("members"), format!("{OWNER} namespaces=\"{NAMESPACE}\" {public}")).unwrap();
    dir
}

fn read(dir: &TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(name)).unwrap()
}

fn judge(dir: &TempDir, content: &str) -> PoolFile {
    let signers = AllowedSigners::parse(&read(dir, "members"));
    assert_eq!(signers.faults, []);
    PoolFile::judge(&node().file_name(), content.as_bytes(), Verifier { signers: &signers, now: NOW })
}

#[test]
fn ssh_keygen_verifies_what_is_signed_here_and_signs_what_is_verified_here() {
    for kind in [&["-t", "ed25519"][..], &["-t", "rsa", "-b", "2048"]] {
        let dir = with_key(kind);
        let key = SigningKey::parse(&read(&dir, "key")).map_err(|fault| format!("{fault:?}")).unwrap();
        let text = node().text().unwrap();
        let file = key.sign(&text).unwrap();
        assert_eq!(judge(&dir, &file).state, FileState::Valid, "{}", judge(&dir, &file).reason);

        // as docs/reference/pool.md takes a file apart
        fs::write(dir.path().join("file"), &file).unwrap();
        let script = "sed '/^-----BEGIN SSH SIG/,$d' file >text; sed -n '/^-----BEGIN SSH SIG/,$p' file >signature";
        assert!(Command::new("sh").current_dir(dir.path()).args(["-c", script]).status().unwrap().success());
        assert_eq!(read(&dir, "text"), text);
        let verify = ["-Y", "verify", "-f", "members", "-I", OWNER, "-n", NAMESPACE, "-s", "signature"];
        let (good, said) = ssh_keygen(dir.path(), &verify, &text);
        assert!(good && said.contains("Good \"hvdctl-pool\" signature for ana@example.com"), "{said}");
        assert!(!ssh_keygen(dir.path(), &verify, &text.replace("\"A\"", "\"B\"")).0);
        let other = ["-Y", "verify", "-f", "members", "-I", "bob", "-n", NAMESPACE, "-s", "signature"];
        assert!(!ssh_keygen(dir.path(), &other, &text).0);

        fs::remove_file(dir.path().join("signature")).unwrap();
        let (signed, said) = ssh_keygen(dir.path(), &["-q", "-Y", "sign", "-f", "key", "-n", NAMESPACE, "text"], "");
        assert!(signed, "{said}");
        let file = text.clone() + &read(&dir, "text.sig");
        assert_eq!(judge(&dir, &file).state, FileState::Valid, "{}", judge(&dir, &file).reason);
        let sha256 = ["-q", "-Y", "sign", "-O", "hashalg=sha256", "-f", "key", "-n", NAMESPACE];
        let (signed, armor) = ssh_keygen(dir.path(), &sha256, &text);
        assert!(signed, "{armor}");
        assert_eq!(judge(&dir, &(text.clone() + &armor)).state, FileState::Valid);
        let (_, armor) = ssh_keygen(dir.path(), &["-q", "-Y", "sign", "-f", "key", "-n", "file"], &text);
        assert_eq!(judge(&dir, &(text + &armor)).state, FileState::Forged, "of another namespace");
    }
}

#[test]
fn lines_of_allowed_signers_mean_what_they_mean_to_ssh_keygen() {
    let dir = with_key(&["-t", "ed25519"]);
    let key = SigningKey::parse(&read(&dir, "key")).ok().unwrap();
    let text = node().text().unwrap();
    let armor = key.sign(&text).unwrap().split_off(text.len());
    fs::write(dir.path().join("signature"), armor).unwrap();
    let public = read(&dir, "key.pub");
    for (line, is_good) in [
        ("ana@example.com KEY", true),
        ("*@example.com,!bob@example.com KEY", true),
        ("*@example.com,!ana@* KEY", false),
        ("ana@example.c? KEY", false),
        ("\"ana@example.com\" KEY", true),
        ("bob,ana@example.com namespaces=\"git,hvd*\" KEY", true),
        ("ana@example.com namespaces=\"git\" KEY", false),
        ("ana@example.com valid-after=\"20200101\" KEY", true),
        ("ana@example.com valid-after=\"19700101000001Z\",valid-before=\"20990101Z\" KEY", true),
        ("ana@example.com valid-before=\"20200101Z\" KEY", false),
        ("ana@example.com valid-after=\"20990101Z\" KEY", false),
        ("ana@example.com unknown=\"x\" KEY", false),
        ("ana@example.com namespaces=\"a\",namespaces=\"hvdctl-pool\" KEY", false),
        ("# ana@example.com KEY", false),
        ("ana@example.com", false),
    ] {
        let line = line.replace("KEY", public.trim());
        fs::write(dir.path().join("members"), format!("{line}\n")).unwrap();
        let verify = ["-Y", "verify", "-f", "members", "-I", OWNER, "-n", NAMESPACE, "-s", "signature"];
        let (good, said) = ssh_keygen(dir.path(), &verify, &text);
        assert_eq!(good, is_good, "{line}: {said}");
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let ours = AllowedSigners::parse(&line).check(OWNER, key.public(), now);
        // a time without Z is a local one, which is refused
        let is_local = line.contains("\"20200101\"");
        assert_eq!(ours.is_ok(), is_good && !is_local, "{line}: {ours:?}");
    }
}

#[test]
fn a_key_that_cannot_sign_is_named() {
    let dir = with_key(&["-t", "ed25519"]);
    let fault = |dir: &TempDir| SigningKey::parse(&read(dir, "key")).err();
    assert_eq!(fault(&dir), None);
    assert!(ssh_keygen(dir.path(), &["-q", "-p", "-f", "key", "-N", "secret"], "").0);
    let public = Box::new(public_half(&read(&dir, "key.pub")).unwrap());
    assert_eq!(fault(&dir), Some(SigningKeyFault::Encrypted(public)));
    assert_eq!(fault(&with_passphrase(&["-t", "ecdsa"])), Some(SigningKeyFault::Type));
    assert_eq!(public_half(&read(&with_key(&["-t", "ecdsa"]), "key.pub")), None);
    assert_eq!(fault(&with_key(&["-t", "ecdsa"])), Some(SigningKeyFault::Type));
    assert_eq!(fault(&with_key(&["-t", "rsa", "-b", "2048", "-m", "PEM"])), Some(SigningKeyFault::Format));
    assert_eq!(SigningKey::parse(&read(&dir, "key.pub")).err(), Some(SigningKeyFault::Format));
}

/// As [`with_key`], and the key has the passphrase `secret`.
fn with_passphrase(kind: &[&str]) -> TempDir {
    let dir = with_key(kind);
    assert!(ssh_keygen(dir.path(), &["-q", "-p", "-f", "key", "-N", "secret"], "").0);
    dir
}

/// A program that answers questions for a passphrase, and records each in the file `asked`.
fn askpass(dir: &TempDir, passphrase: &str) -> PathBuf {
    let (program, asked) = (dir.path().join("askpass"), dir.path().join("asked"));
    fs::write(&program, format!("#!/bin/sh\necho >>'{}'\necho {passphrase}\n", asked.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    program
}

/// ssh-keygen or ssh-add, which asks a program and an agent.
fn asking(name: &str, askpass: &Path, agent: &Path) -> tokio::process::Command {
    let mut program = tokio::process::Command::new(name);
    program.env("SSH_ASKPASS", askpass).env("SSH_ASKPASS_REQUIRE", "force").env("SSH_AUTH_SOCK", agent);
    program.stdin(Stdio::null());
    program
}

#[tokio::test]
async fn a_passphrase_is_asked_for_once_and_a_key_in_an_agent_needs_none() {
    let dir = with_passphrase(&["-t", "ed25519"]);
    let public = public_half(&read(&dir, "key.pub")).unwrap();
    let key = |file: &str| KeygenKey { file: dir.path().join(file), public: public.clone() };
    let texts = [node().text().unwrap(), PoolNode { slots: 7, ..node() }.text().unwrap()];
    let (right, socket) = (askpass(&dir, "secret"), dir.path().join("agent"));
    let files = key("key").sign_with(asking("ssh-keygen", &right, &socket), &texts).await.unwrap();
    let judged: Vec<PoolFile> = files.iter().map(|file| judge(&dir, file)).collect();
    assert_eq!(judged.iter().map(|file| file.node.as_ref().unwrap().slots).collect::<Vec<_>>(), [8, 7]);
    assert!(judged.iter().all(|file| file.state == FileState::Valid));
    assert_eq!(read(&dir, "asked").lines().count(), 1);
    let wrong = asking("ssh-keygen", &askpass(&dir, "wrong"), &socket);
    let error = key("key").sign_with(wrong, &texts).await.unwrap_err().to_string();
    assert!(error.starts_with("ssh-keygen: ") && error.contains("incorrect passphrase"), "{error}");
    // a signature of another key is none
    let other = KeygenKey { public: public_half(&read(&with_key(&[]), "key.pub")).unwrap(), ..key("key") };
    let error = other.sign_with(asking("ssh-keygen", &askpass(&dir, "secret"), &socket), &texts).await.unwrap_err();
    assert_eq!(error.to_string(), "ssh-keygen did not write a signature with the key");

    let mut agent = Command::new("ssh-agent").arg("-D").arg("-a").arg(&socket).stdout(Stdio::null()).spawn().unwrap();
    while !socket.exists() {
        assert_eq!(agent.try_wait().unwrap(), None);
        tokio::task::yield_now().await;
    }
    let added = asking("ssh-add", &right, &socket).arg("-q").arg(dir.path().join("key")).status().await;
    fs::remove_file(dir.path().join("asked")).unwrap();
    fs::rename(dir.path().join("key"), dir.path().join("elsewhere")).unwrap();
    let by_agent = key("key.pub").sign_with(asking("ssh-keygen", &right, &socket), &texts).await;
    agent.kill().and_then(|()| agent.wait()).unwrap();
    assert!(added.unwrap().success());
    assert_eq!(by_agent.unwrap(), files, "Ed25519 gives one signature of a text");
    assert!(!dir.path().join("asked").exists());
}

async fn here() -> Transport {
    let node = Node { name: "here".into(), ..Node::default() };
    Transport::open_as_login(&Cluster::default(), &node, TransportKind::Local).await.unwrap()
}

/// The names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn files_are_written_whole_and_replace_only_their_own() {
    let (dir, transport) = (tempfile::tempdir().unwrap(), here().await);
    let path = dir.path().join("it's a pool");
    let path = path.to_str().unwrap();
    let directory = PoolDirectory { transport: &transport, path };
    let missing = directory.read().await.unwrap_err().to_string();
    assert!(missing.contains("there is no directory") && missing.contains("hint: create it once"), "{missing}");
    assert!(directory.publish(&[("a.node".into(), "a".into())]).await.is_err());
    assert!(!Path::new(path).exists(), "a directory that is not mounted is not created");
    fs::create_dir(path).unwrap();
    assert_eq!(directory.read().await.unwrap().files, []);

    let file = |owner: &str, text: &str| {
        let name = PoolNode { owner: owner.into(), ..node() }.file_name();
        vec![(name, text.to_owned() + &"x".repeat(9000))]
    };
    let (ana, bob) = (file("ana", "'$(id)\n"), file("bob", "b"));
    let (one, other, again) = tokio::join!(directory.publish(&ana), directory.publish(&bob), directory.publish(&ana));
    one.and(other).and(again).unwrap();
    let expected: Vec<(String, Vec<u8>)> =
        [ana.clone(), bob].concat().into_iter().map(|(name, text)| (name, text.into_bytes())).collect();
    assert_eq!(directory.read().await.unwrap().files, expected);
    assert_eq!(names(Path::new(path)).len(), 2, "no temporary file is left");
    let mode = fs::metadata(Path::new(path).join(&ana[0].0)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);

    // a link in the file's place is replaced, and what it leads to stays
    let outside = dir.path().join("outside");
    fs::write(&outside, "outside").unwrap();
    let place = Path::new(path).join("c.node");
    symlink(&outside, &place).unwrap();
    directory.publish(&[("c.node".into(), "mine".into())]).await.unwrap();
    assert_eq!(
        (fs::read_to_string(&outside).unwrap().as_str(), fs::read_to_string(&place).unwrap().as_str()),
        ("outside", "mine")
    );
    fs::create_dir(Path::new(path).join("d.node")).unwrap();
    let error = directory.publish(&[("d.node".into(), "mine".into())]).await.unwrap_err().to_string();
    assert!(error.contains("d.node is a directory"), "{error}");
    assert!(!names(Path::new(path)).iter().any(|name| name.starts_with('.')));
}

#[tokio::test]
async fn whatever_lies_in_the_directory_is_read_within_bounds() {
    let (dir, transport) = (tempfile::tempdir().unwrap(), here().await);
    let directory = PoolDirectory { transport: &transport, path: dir.path().to_str().unwrap() };
    let write = |name: &str, content: &[u8]| fs::write(dir.path().join(name), content).unwrap();
    write("good.node", b"{}\n");
    write("rubbish.node", b"\0\xff\n\0");
    write("empty.node", b"");
    write("-rf.node", b"x");
    write("other.txt", b"x");
    write("a b.node", b"x");
    write("a\nlink b.node", b"x");
    write("large.node", &[b'x'; (16 << 10) + 1]);
    write("most.node", &[b'x'; 16 << 10]);
    fs::File::create(dir.path().join("huge.node")).unwrap().set_len(1 << 40).unwrap();
    symlink("/etc/passwd", dir.path().join("link.node")).unwrap();
    symlink("/dev/zero", dir.path().join("zero.node")).unwrap();
    symlink("nowhere", dir.path().join("broken.node")).unwrap();
    fs::create_dir(dir.path().join("dir.node")).unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe.node")).status().unwrap().success());
    let listing = directory.read().await.unwrap();
    let read: Vec<&str> = listing.files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(read, ["-rf.node", "empty.node", "good.node", "most.node", "rubbish.node"]);
    assert_eq!(listing.files[4].1, b"\0\xff\n\0");
    let mut unread: Vec<String> = listing.unread.iter().map(|file| format!("{}: {}", file.name, file.reason)).collect();
    unread.sort();
    assert_eq!(
        unread,
        [
            "*.node: 2 with unexpected characters in the name",
            "broken.node: it is a link",
            "dir.node: it is not a file",
            "huge.node: it is larger than 16.0 KiB",
            "large.node: it is larger than 16.0 KiB",
            "link.node: it is a link",
            "pipe.node: it is not a file",
            "zero.node: it is a link",
        ]
    );
    assert!(!listing.is_cut);
    (0..2 * MOST_FILES).for_each(|number| write(&format!("{number:05}.node"), b"x"));
    let listing = directory.read().await.unwrap();
    assert!(listing.is_cut && listing.files.len() + listing.unread.len() <= MOST_FILES);
    assert!(listing.files.len() > MOST_FILES - 20, "{}", listing.files.len());
}

#[tokio::test]
async fn round_trips_are_measured_from_a_node_and_from_here() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap().port();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = |number, host: &str, port| PoolEndpoint { number, host: host.into(), port };
    let targets = [endpoint(3, "127.0.0.1", open), endpoint(5, "127.0.0.1", closed), endpoint(10, "no.invalid", 22)];
    let times = from_node(&here().await, &targets).await.unwrap();
    assert_eq!(times.keys().collect::<Vec<_>>(), [&3, &5, &10]);
    assert!(times[&3].is_some() && times[&5].is_none() && times[&10].is_none(), "{times:?}");
    assert_eq!(from_node(&here().await, &[]).await, Ok(Default::default()));
    assert!(from_here(&targets[0]).await.is_some());
    assert_eq!([from_here(&targets[1]).await, from_here(&targets[2]).await], [None, None]);
}
