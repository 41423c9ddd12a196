//! The documents of commands that need no node have the keys and types that docs/json.md shows.

mod documented;

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs it in a folder; exit code and what it wrote to standard output.
fn hvdctl(dir: &Path, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hvdctl"));
    command.current_dir(dir).env("HOME", dir).arg("--json").args(args).stdin(Stdio::null());
    for name in ["HVDCTL_INVENTORY", "HVDCTL_IMAGE", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    let done = command.output().unwrap();
    (done.status.code().unwrap(), String::from_utf8(done.stdout).unwrap())
}

#[test]
fn documents_are_as_they_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let inventory = "[cluster]\nname = \"lab\"\nconnect_timeout_s = 30\n[defaults]\nuser = \"nobody\"\nssh_port = 1\ngpus = 1\n\
                     [[node]]\nhost = \"127.0.0.1\"\n";
    std::fs::write(dir.path().join("refuses.toml"), inventory).unwrap();
    for (name, args, code) in [
        ("text", &["completions", "fish"][..], 0),
        ("text", &["man"], 0),
        ("dir", &["man", "--dir", "."], 0),
        ("text", &["schema"], 0),
        ("init", &["init", "-o", "unseen.toml", "nobody@127.0.0.1:1", "nobody@127.0.0.2:1"], 4),
        ("error", &["keys", "push"], 2),
        ("error", &["-i", "none.toml", "up"], 2),
        ("error", &["-i", "refuses.toml", "up"], 4),
        ("error", &["-i", "refuses.toml", "down"], 4),
        ("keys-status", &["-i", "refuses.toml", "keys", "status"], 4),
        ("status", &["-i", "refuses.toml", "status"], 4),
        ("doctor", &["-i", "refuses.toml", "doctor"], 4),
        ("train-end", &["-i", "refuses.toml", "run", "-np", "9", "--", "true"], 2),
    ] {
        let (ended, out) = hvdctl(dir.path(), args);
        assert_eq!(ended, code, "{args:?}: {out}");
        assert_eq!(out.lines().count(), 1, "{args:?}: one document, one line: {out}");
        let document: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(documented::faults(name, &document), [""; 0], "{args:?}: {document:#}");
        if name == "error" {
            assert_eq!(document["code"], code);
        }
    }
}
