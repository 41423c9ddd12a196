//! Checks the properties of `fuzz/properties.rs` with the inputs that fuzzing has kept.

#[path = "../fuzz/properties.rs"]
mod properties;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz");

/// The entries of a directory by name.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = listed.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// The kept inputs of a target: those written by hand, and those found.
fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directories = ["seeds", "corpus"].map(|kind| Path::new(FUZZ).join(kind).join(target));
    let files = directories.iter().flat_map(|directory| entries(directory));
    files.map(|file| (file.clone(), std::fs::read(&file).expect("it can be read"))).collect()
}

#[test]
fn every_kept_input_still_holds() {
    for (target, property) in properties::TARGETS {
        let inputs = inputs(target);
        assert!(inputs.len() >= 5, "{target} has only {} inputs", inputs.len());
        for (file, data) in inputs {
            let held = std::panic::catch_unwind(|| property(&data));
            assert!(held.is_ok(), "{target} does not hold for {}", file.display());
        }
    }
}

#[test]
fn every_target_has_its_program_and_its_inputs() {
    let named = |path: &PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let targets: BTreeSet<String> = properties::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    for directory in ["fuzz_targets", "seeds", "corpus"] {
        let there: BTreeSet<String> = entries(&Path::new(FUZZ).join(directory)).iter().map(named).collect();
        assert_eq!(there, targets, "fuzz/{directory}");
    }
}

#[test]
fn a_real_shell_gives_every_kept_value_back() {
    let (mut script, mut expected) = (String::new(), Vec::new());
    for (_, data) in inputs("quote") {
        let value = String::from_utf8_lossy(&data).replace('\0', "");
        let line = hvdctl::text::quote::assign("value", &value);
        // the same value as an assignment, and as text to copy from the screen
        let word = hvdctl::text::quote::readable(&value);
        script.push_str(&format!("{}printf '%s\\0' \"$value\" {word}\n", *line));
        for _ in 0..2 {
            expected.extend_from_slice(value.as_bytes());
            expected.push(0);
        }
    }
    let mut shell = Command::new("/bin/sh");
    let mut child = shell.arg("-s").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the shell starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || stdin.write_all(script.as_bytes()));
    let output = child.wait_with_output().expect("the shell ends");
    writer.join().expect("no panic").expect("the shell reads its script");
    assert!(output.status.success());
    assert!(output.stdout == expected, "{}", String::from_utf8_lossy(&output.stdout));
}
