//! The scripts as the nodes run them, on folders of this machine.

use super::*;
use crate::text::digest::in_hex;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

/// A script's output.
fn sh(script: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// What is found in the projects' folder `root` of the run `j1`.
fn found(root: &str) -> Found {
    let mut found = Found::read(&sh(LOOK, &[root, "p", "lab", "j1"], b""));
    let names: String = found.files().map(|(name, _)| format!("{name}\0")).collect();
    if let Some(folder) = &found.folder {
        let said = sh(HASH, &[&format!("{root}/{folder}")], names.as_bytes());
        found.hashed(&said);
    }
    found
}

fn shipped(known: &std::path::Path, list: &str, files: &[(&str, &str)]) {
    fs::create_dir_all(known).unwrap();
    let text: String = files.iter().map(|(name, text)| format!("f 644 {} {name}\0", in_hex(text.as_bytes()))).collect();
    fs::write(known.join(list), text).unwrap();
}

#[test]
fn what_is_new_or_changed_is_found_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    assert_eq!(found(root), Found::default(), "there is no project");
    let at = |name: &str| dir.path().join("p").join(name);
    fs::create_dir_all(at("deep/__pycache__")).unwrap();
    for (name, text) in
        [("train.py", "code"), ("data", "scribbled"), ("-n ew\nline'", "x"), ("deep/__pycache__/a", "x")]
    {
        fs::write(at(name), text).unwrap();
    }
    symlink("data", at("deep/latest")).unwrap();
    shipped(&dir.path().join(".p@lab"), "shipped", &[("train.py", "code"), ("data", "as it was")]);
    let outputs = found(root).outputs;
    assert_eq!(outputs.keys().collect::<Vec<_>>(), ["-n ew\nline'", "data", "deep/latest"]);
    assert_eq!(outputs["deep/latest"], Output::Link("data".into()));
    let Output::File { hash, mode, size, .. } = &outputs["data"] else { panic!() };
    assert_eq!((hash.as_str(), mode & 0o700, *size), (in_hex(b"scribbled").as_str(), 0o600, 9));

    // a folder of the run's own goes before the project's
    fs::create_dir(dir.path().join("p+j1")).unwrap();
    fs::write(dir.path().join("p+j1/train.py"), "new code").unwrap();
    fs::write(dir.path().join("p+j1/best"), "x").unwrap();
    shipped(&dir.path().join(".p@lab"), "shipped+j1", &[("train.py", "new code")]);
    let own = found(root);
    assert_eq!((own.folder.as_deref(), own.outputs.len()), (Some("p+j1"), 1));
}

#[test]
fn exactly_so_many_bytes_come_whatever_became_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let long: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    for (name, text) in [("a b", &b"hello"[..]), ("-x", &b"world"[..]), ("long", &long[..]), ("q'\n", &b"odd"[..])] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let wanted = "1 3 a b\x000 5 -x\x000 0 -x\x00100000 200000 long\x002 6 a b\x000 4 gone\x000 3 q'\n\0";
    let said = sh(GET, &[dir.path().to_str().unwrap()], wanted.as_bytes());
    let expected = [b"ell".as_slice(), b"world", &long[100_000..], b"llo\0\0\0", b"\0\0\0\0", b"odd"].concat();
    assert!(said == expected, "{} bytes and not {}", said.len(), expected.len());
}
