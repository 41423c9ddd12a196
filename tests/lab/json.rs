//! The documents of real commands have the fields of their types, no more and no less.

use crate::documented;
use crate::state::{FULL, Lab};
use serde_json::Value;

fn faults(name: &str, document: &Value) -> Vec<String> {
    documented::faults(&documented::schema(), name, document)
}

/// Runs it and holds what it writes against its type.
#[track_caller]
fn shaped(lab: &Lab, name: &str, args: &[&str], code: i32) -> Value {
    let done = lab.hvdctl(&[&["--json"], args].concat()).code(code);
    assert_eq!(done.out.lines().count(), 1, "{args:?}: one document, one line:\n{}", done.out);
    let document: Value = serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{args:?}: {e}\n{}", done.out));
    assert_eq!(faults(name, &document), [""; 0], "{args:?}: {document:#}");
    document
}

/// The names of a job's lines, each held against its type.
#[track_caller]
fn events(out: &str) -> Vec<String> {
    let mut seen = Vec::new();
    for line in out.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}\n{line}"));
        let name = format!("train-{}", event["event"].as_str().unwrap());
        let document = match name.as_str() {
            "train-end" if event["dry_run"] == true => "dry-run",
            "train-end" if event["job"].is_object() => "job-end",
            "train-end" if event["error"].is_string() => "error",
            "train-end" => "logs-end",
            _ => "line",
        };
        assert_eq!(faults(document, &event), [""; 0], "{line}");
        seen.push(name);
    }
    seen
}

#[test]
fn documents_are_as_they_are_shown() {
    let lab = Lab::empty();
    shaped(&lab, "verify", &["verify"], 1);
    shaped(&lab, "keys-status", &["keys", "status"], 1);
    shaped(&lab, "keys-generate", &["keys", "generate"], 0);
    shaped(&lab, "keys-push", &["keys", "push"], 0);
    shaped(&lab, "up", &["up", "--dry-run"], 0);
    shaped(&lab, "up", &["up"], 0);
    shaped(&lab, "status", &["status"], 0);
    shaped(&lab, "keys-status", &["keys", "status"], 0);
    shaped(&lab, "doctor", &["doctor"], 0);
    shaped(&lab, "verify", &["verify"], 0);
    if FULL {
        shaped(&lab, "verify", &["verify", "-np", "1"], 0);
    }
    shaped(&lab, "keys-rotate", &["keys", "rotate"], 0);

    let done = lab.hvdctl(&["--json", "-vv", "run", "-np", "2", "--", "sh", "-c", "echo here; exit 7"]).code(7);
    let seen = events(&done.out);
    for name in ["train-job", "train-node", "train-output", "train-end"] {
        assert!(seen.iter().any(|other| other == name), "no {name} in\n{}", done.out);
    }
    assert_eq!(seen.last().unwrap(), "train-end");

    let project = lab.project("p", &[("train.py", "open('out', 'w').write('x')")]);
    let (project, directory) = (project.to_str().unwrap(), lab.path().join("brought"));
    let words = ["--json", "train", project, "-np", "1", "--fetch", directory.to_str().unwrap()];
    let done = lab.hvdctl(&words).code(0);
    events(&done.out);
    let end: Value = serde_json::from_str(done.out.lines().last().unwrap()).unwrap();
    assert_eq!(end["fetched"]["files"][0]["path"], "out", "{end}");
    let again = [
        "--json",
        "run",
        "-np",
        "1",
        "--restarts",
        "1",
        "--",
        "sh",
        "-c",
        "echo try; exit $((7 - 7 * HVDCTL_RESTART))",
    ];
    let done = lab.hvdctl(&again).code(0);
    assert!(events(&done.out).iter().any(|name| name == "train-restart"), "{}", done.out);

    shaped(&lab, "dry-run", &["run", "-np", "2", "--dry-run", "--", "true"], 0);
    let done = lab.hvdctl(&["--json", "logs", "-n", "1"]).code(0);
    assert_eq!(events(&done.out), ["train-output", "train-end"]);
    shaped(&lab, "jobs", &["jobs"], 0);
    shaped(&lab, "jobs-prune", &["-y", "jobs", "prune"], 0);

    // with a node out of reach
    lab.edit("host = \"node2\"", "host = \"node2\"\nssh_port = 1");
    shaped(&lab, "error", &["up"], 4);
    let done = lab.hvdctl(&["--json", "run", "-np", "1", "--", "true"]).code(125);
    assert_eq!(events(&done.out), ["train-node", "train-end"]);
    shaped(&lab, "status", &["status"], 3);
    shaped(&lab, "keys-status", &["keys", "status"], 3);
    shaped(&lab, "doctor", &["doctor"], 3);
    shaped(&lab, "up", &["up", "--skip-offline"], 0);
    shaped(&lab, "down", &["down", "--skip-offline"], 0);
}
