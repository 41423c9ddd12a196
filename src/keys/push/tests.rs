//! The scripts that write the key directory, run on a local directory, without root.

use super::rotate::{STAGE, SWITCH};
use super::*;
use crate::keys::files::{KNOWN_HOSTS, Put};
use crate::secret::Secret;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const FACTS: &str = concat!(
    include_str!("../../scripts/node/machine.sh"),
    include_str!("../../scripts/node/close.sh"),
    include_str!("../../scripts/node/permissions.sh"),
    include_str!("../../scripts/node/nvidia_smi.sh"),
    include_str!("../../scripts/node/gpus.sh"),
    include_str!("../../scripts/node/accelerators.sh"),
    include_str!("../../scripts/node/marked.sh"),
    include_str!("../../scripts/node/killed.sh"),
    include_str!("../../scripts/node/facts.sh")
);
const OLD: &str = "ssh-ed25519 OLD hvdctl:lab";
const NEW: &str = "ssh-rsa NEW hvdctl:lab";

/// A directory with these files.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).unwrap());
    dir
}

/// Returns the files in a directory, with their contents.
fn files(dir: &TempDir) -> BTreeMap<String, String> {
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.map(|name| (name.clone(), fs::read_to_string(dir.path().join(name)).unwrap())).collect()
}

fn name_of(dir: &TempDir) -> &str {
    dir.path().to_str().unwrap()
}

fn cluster(dir: &TempDir) -> Cluster {
    let mut cluster = Inventory::local("node1", "image").cluster;
    cluster.name = "lab".into();
    cluster.ssh_dir = dir.path().to_str().unwrap().to_owned();
    cluster
}

/// Runs a script with these shell functions in front, as a node's shell would; its words, and its complaint where it
/// fails.
fn run(functions: &str, script: &str) -> Result<String, String> {
    let mut shell = Command::new("sh");
    let nfs4 = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs4");
    shell.env("PATH", format!("{nfs4}:{}", std::env::var("PATH").unwrap()));
    let shell = shell.arg("-s").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("chown() {{ :; }}\n{functions}\n{script}").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn look(dir: &TempDir) -> Facts {
    let place = |name: &str| dir.path().join(name).display().to_string();
    let script = Script::new(FACTS).with("ssh_dir", name_of(dir)).with("cluster", "lab").with("port", "12345");
    let script =
        script.with("network_dir", "").with("jobs_dir", &place("jobs")).with("projects_dir", &place("projects"));
    let script = script.with("data_dir", &place("data")).with("run_dir", "").with("devices", "").with("mounts", "");
    Facts::parse(&run("", &script.whole()).unwrap())
}

fn put(name: &str, text: &str) -> Changes {
    Changes { puts: vec![Put { name: name.into(), text: Secret::plain(text) }], ..Changes::default() }
}

fn stage(dir: &TempDir) -> Script {
    let script = Script::new(STAGE).with("ssh_dir", name_of(dir)).with("name", "id_rsa");
    script.with("private", &base64("PRIVATE NEW\n")).with("public", &base64(&format!("{NEW}\n")))
}

fn switch(dir: &TempDir, new: &str, old: &str) -> Result<String, String> {
    let script = Script::new(SWITCH)
        .with("ssh_dir", dir.path().to_str().unwrap())
        .with("new", new)
        .with("public", NEW)
        .with("old", old);
    run("", &script.whole())
}

#[test]
fn what_was_written_after_the_observation_is_not_undone() {
    // texts that a shell or a careless reader would change
    let texts = ["", "a\n", "no newline", "  two  spaces \\n and\t\n\n\nempty\r\n", "é ''\"$HOME\"\n"];
    for name in [AUTHORIZED_KEYS, KNOWN_HOSTS, "id_rsa.pub"] {
        for text in texts {
            let dir = directory(&[(name, text)]);
            let facts = look(&dir);
            let changes = put(name, "stale\n");
            fs::write(dir.path().join(name), format!("{text}\nnew\n")).unwrap();
            let refused = run("", &script(name_of(&dir), &facts, &changes).whole()).unwrap_err();
            let complaint = "was changed by another program meanwhile; run the same command again";
            assert_eq!(refused, format!("{name} {complaint}\n"));
            assert_eq!(files(&dir), BTreeMap::from([(name.to_owned(), format!("{text}\nnew\n"))]));

            fs::write(dir.path().join(name), text).unwrap();
            run("", &script(name_of(&dir), &facts, &changes).whole()).unwrap();
            assert_eq!(files(&dir), BTreeMap::from([(name.to_owned(), "stale\n".to_owned())]), "{text:?}");
        }
    }
    // neither is one that was not there, or is no more
    let dir = directory(&[]);
    let facts = look(&dir);
    run("", &script(name_of(&dir), &facts, &put(AUTHORIZED_KEYS, "first\n")).whole()).unwrap();
    run("", &script(name_of(&dir), &facts, &put(AUTHORIZED_KEYS, "second\n")).whole()).unwrap_err();
    let facts = look(&dir);
    fs::remove_file(dir.path().join(AUTHORIZED_KEYS)).unwrap();
    run("", &script(name_of(&dir), &facts, &put(AUTHORIZED_KEYS, "second\n")).whole()).unwrap_err();
    assert!(files(&dir).is_empty());
}

#[test]
fn a_link_becomes_a_file_and_a_directory_is_an_error() {
    let elsewhere = directory(&[("keys", "theirs\n")]);
    let target = elsewhere.path().join("keys");
    fs::set_permissions(&target, Permissions::from_mode(0o644)).unwrap();
    for changes in [Changes::default(), put(AUTHORIZED_KEYS, "ours\n")] {
        let dir = directory(&[]);
        let file = dir.path().join(AUTHORIZED_KEYS);
        symlink(&target, &file).unwrap();
        run("", &script(name_of(&dir), &look(&dir), &changes).whole()).unwrap();
        let metadata = fs::symlink_metadata(&file).unwrap();
        assert_eq!((metadata.is_file(), metadata.mode() & 0o777), (true, 0o600));
        let expected = if changes.puts.is_empty() { "theirs\n" } else { "ours\n" };
        assert_eq!(files(&dir), BTreeMap::from([(AUTHORIZED_KEYS.to_owned(), expected.to_owned())]));
    }
    assert_eq!(files(&elsewhere), BTreeMap::from([("keys".to_owned(), "theirs\n".to_owned())]));
    assert_eq!(fs::metadata(&target).unwrap().mode() & 0o777, 0o644);

    let dir = directory(&[]);
    fs::create_dir(dir.path().join(AUTHORIZED_KEYS)).unwrap();
    let refused = run("", &script(name_of(&dir), &look(&dir), &put(AUTHORIZED_KEYS, "ours\n")).whole()).unwrap_err();
    assert!(refused.contains("cannot overwrite directory"), "{refused}");
    assert_eq!(fs::read_dir(dir.path().join(AUTHORIZED_KEYS)).unwrap().count(), 0);
}

#[test]
fn a_directory_that_another_writes_in_is_left_alone_and_so_is_one_whose_script_is_cut_off() {
    let before =
        [("id_ed25519", "PRIVATE OLD\n"), ("id_ed25519.pub", OLD), ("id_rsa.next", ""), ("id_rsa.next.pub", NEW)];
    let dir = directory(&before);
    let there = files(&dir);
    let name = dir.path().to_str().unwrap();
    let push = script(name_of(&dir), &look(&dir), &put(AUTHORIZED_KEYS, "x\n")).whole();
    let stage = stage(&dir).whole();
    let switch = Script::new(SWITCH).with("ssh_dir", name).with("new", "id_rsa").with("public", NEW).with("old", "");
    for script in [&push, &stage, &switch.whole()] {
        let refused = run("flock() { return 1; }", script).unwrap_err();
        assert_eq!(refused, "another hvdctl command is writing the key directory; run the same command again\n");
        assert_eq!(files(&dir), there);
        // all but the last line, and all but its last letters
        let cut = script.trim_end().strip_suffix("main").unwrap();
        for cut in [cut.to_owned(), format!("{cut}mai")] {
            let _ = run("mai() { :; }", &cut);
            assert_eq!(files(&dir), there);
        }
    }
}

#[test]
fn a_staged_public_key_alone_removes_no_pair() {
    let left = [("id_ed25519", "PRIVATE OLD\n"), ("id_ed25519.pub", OLD), ("id_rsa.next.pub", NEW)];
    let dir = directory(&left);
    let before = files(&dir);
    assert_eq!(Keyring::read(&cluster(&dir), &look(&dir)).next, None);
    assert_eq!(switch(&dir, "id_rsa", "id_ed25519").unwrap_err(), "id_rsa.next is missing\n");
    assert_eq!(files(&dir), before);
    // with the same name for both, the public half in place says that nothing was moved
    let same = directory(&[("id_rsa", "PRIVATE OLD\n"), ("id_rsa.pub", OLD), ("id_rsa.next.pub", NEW)]);
    let before = files(&same);
    assert_eq!(switch(&same, "id_rsa", "").unwrap_err(), "id_rsa.next is missing\n");
    assert_eq!(files(&same), before);

    // the next rotation makes a pair that is whole
    fs::write(dir.path().join("id_rsa.next.pub"), "ssh-rsa LONE hvdctl:lab\n").unwrap();
    assert_eq!(run("", &stage(&dir).whole()).unwrap(), format!("id_rsa {NEW}\n"));
    assert_eq!(files(&dir)["id_rsa.next"], "PRIVATE NEW\n");
    switch(&dir, "id_rsa", "id_ed25519").unwrap();
    let whole = [("id_rsa", "PRIVATE NEW\n".to_owned()), ("id_rsa.pub", format!("{NEW}\n"))];
    assert_eq!(files(&dir), whole.map(|(name, text)| (name.to_owned(), text)).into());
}

#[test]
fn a_switch_that_was_cut_off_is_finished_and_another_pair_is_not_put_in_place() {
    let (new, old, public) = ("PRIVATE NEW\n", "PRIVATE OLD\n", format!("{NEW}\n"));
    let states: [&[(&str, &str)]; 4] = [
        &[("id_ed25519", old), ("id_ed25519.pub", OLD), ("id_rsa.next", new), ("id_rsa.next.pub", &public)],
        &[("id_ed25519", old), ("id_ed25519.pub", OLD), ("id_rsa", new), ("id_rsa.next.pub", &public)],
        &[("id_ed25519.pub", OLD), ("id_rsa", new), ("id_rsa.next.pub", &public)],
        &[("id_rsa", new), ("id_rsa.next.pub", &public)],
    ];
    for state in states {
        let dir = directory(state);
        // a staging meanwhile finds what is there
        assert_eq!(run("", &stage(&dir).whole()).unwrap(), format!("id_rsa {public}"));
        switch(&dir, "id_rsa", "id_ed25519").unwrap();
        let whole = [("id_rsa", new), ("id_rsa.pub", public.as_str())];
        assert_eq!(files(&dir), whole.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
        // once more changes nothing
        switch(&dir, "id_rsa", "id_ed25519").unwrap();
        assert_eq!(files(&dir).len(), 2);
    }
    let other = directory(&[
        ("id_ed25519", old),
        ("id_rsa.next", "PRIVATE X\n"),
        ("id_rsa.next.pub", "ssh-rsa X hvdctl:lab\n"),
    ]);
    let before = files(&other);
    assert!(switch(&other, "id_rsa", "id_ed25519").unwrap_err().contains("a different pair"));
    assert_eq!(files(&other), before);
}

#[test]
fn a_removal_refuses_changed_files_and_keeps_those_of_others() {
    let friends = "# mine\nssh-rsa FRIEND copy of ssh-rsa AAAA hvdctl:lab\n\n";
    let before = [
        (AUTHORIZED_KEYS, format!("{friends}restrict {NEW}\n")),
        (KNOWN_HOSTS, "[node1]:12345 ssh-ed25519 AAAA hvdctl:lab\n".to_owned()),
        ("id_rsa", "PRIVATE\n".to_owned()),
        ("id_rsa.pub", format!("{NEW}\n")),
        ("id_ed25519", "PRIVATE\n".to_owned()),
        ("id_ed25519.pub", "ssh-ed25519 AAAA ana hvdctl:lab\n".to_owned()),
        (".id_rsa.hvdctl.7", "PRIVATE\n".to_owned()),
    ];
    let dir = directory(&before.each_ref().map(|(name, text)| (*name, text.as_str())));
    let facts = look(&dir);
    let remove = || run("", &script(name_of(&dir), &facts, &removal(&facts, "lab")).whole());
    // another pair was put in its place meanwhile
    fs::write(dir.path().join("id_rsa.pub"), "ssh-rsa OTHER ana\n").unwrap();
    assert!(remove().unwrap_err().starts_with("id_rsa.pub was changed by another program meanwhile"));
    assert!(files(&dir).contains_key("id_rsa"));

    fs::write(dir.path().join("id_rsa.pub"), format!("{NEW}\n")).unwrap();
    remove().unwrap();
    let left = [
        (AUTHORIZED_KEYS.to_owned(), friends.to_owned()),
        ("id_ed25519".to_owned(), before[4].1.clone()),
        ("id_ed25519.pub".to_owned(), before[5].1.clone()),
    ];
    assert_eq!(files(&dir), left.into());
}

#[test]
fn a_file_that_cannot_be_flushed_is_not_put_in_place() {
    let dir = directory(&[(AUTHORIZED_KEYS, "before\n")]);
    let push = script(name_of(&dir), &look(&dir), &put(AUTHORIZED_KEYS, "after\n"));
    let failing = "sync() { echo 'sync: Input/output error' >&2; return 1; }";
    assert_eq!(run(failing, &push.whole()).unwrap_err(), "sync: Input/output error\n");
    assert_eq!(files(&dir), BTreeMap::from([(AUTHORIZED_KEYS.to_owned(), "before\n".to_owned())]));
}

#[test]
fn nothing_is_written_without_a_lock() {
    let dir = directory(&[("id_rsa", "PRIVATE\n")]);
    let facts = look(&dir);
    let push = script(name_of(&dir), &facts, &put(AUTHORIZED_KEYS, "ours\n"));
    let tools = tempfile::tempdir().unwrap();
    for tool in ["id", "mkdir", "sha256sum", "chmod", "base64", "sync", "mv", "rm"] {
        let path = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(tool)).into_iter().find(|path| path.exists());
        symlink(path.unwrap(), tools.path().join(tool)).unwrap();
    }
    let without = format!("PATH={}", tools.path().display());
    assert_eq!(run(&without, &push.whole()).unwrap_err(), "flock: not found (util-linux)\n");
    assert_eq!(files(&dir).len(), 1);
}
