//! The direction of dependencies: which directory may import which, and that files that decide do no input or output. It reads the
//! `crate::` paths of the sources, without their tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// From top to bottom: a directory imports only from rows below its own.
const ROWS: [&[&str]; 16] = [
    &["main"],
    &["commands"],
    &["render"],
    &["cli"],
    &["doctor", "init"],
    &["job"],
    &["checks"],
    &["sync", "launch", "keys", "worker"],
    &["cluster"],
    &["runtime"],
    &["node"],
    &["transport"],
    &["inventory", "terminal"],
    &["event"],
    &["error"],
    &["model", "cancel", "text", "secret", "paths"],
];

/// The leaves, which also import each other, from top to bottom.
const LEAVES: [&str; 5] = ["model", "cancel", "text", "secret", "paths"];

/// Files and directories that decide: they are given values and give values back.
const PURE: [&str; 28] = [
    "text/",
    "model/",
    "inventory/",
    "node/",
    "runtime/spec.rs",
    "runtime/container.rs",
    "runtime/progress.rs",
    "transport/access.rs",
    "transport/host_key.rs",
    "keys/files.rs",
    "keys/files/",
    "keys/reachability.rs",
    "worker/plan.rs",
    "worker/plan/",
    "launch/mod.rs",
    "launch/description.rs",
    "launch/horovodrun/mod.rs",
    "launch/placement.rs",
    "launch/programs.rs",
    "sync/manifest.rs",
    "sync/outputs.rs",
    "sync/project.rs",
    "job/record.rs",
    "job/supervision.rs",
    "job/outcome.rs",
    "job/record/",
    "job/list.rs",
    "job/frames.rs",
];

/// What a pure file must not name.
const IMPURE: [&str; 6] = ["tokio::", "openssh::", "bollard::", "std::fs", "std::process", "std::net::Tcp"];

/// An inventory is read from its file there; the others have tests outside of a module of that name.
const EXCEPTIONS: [&str; 3] = ["inventory/mod.rs", "inventory/properties.rs", "text/quote.rs"];

/// Each source file by its path below src/, with its text, without test modules.
fn sources() -> BTreeMap<String, String> {
    fn collect(dir: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix("src").unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                collect(&path, found);
            } else if name.ends_with(".rs") && !name.contains("/tests") && !name.contains("scripted") {
                let text = fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                found.insert(name, code.collect::<Vec<_>>().join("\n"));
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(Path::new("src"), &mut found);
    assert!(found.len() > 100, "{found:?}");
    found
}

/// The directory or top-level file that a path is in: `job` for job/run.rs, `event` for event.rs.
fn room(path: &str) -> &str {
    path.trim_end_matches(".rs").split('/').next().unwrap()
}

/// How far down a room stands; leaves stand below each other.
fn row(room: &str) -> usize {
    if let Some(leaf) = LEAVES.iter().position(|leaf| *leaf == room) {
        return ROWS.len() + leaf;
    }
    ROWS.iter().position(|row| row.contains(&room)).unwrap_or_else(|| panic!("{room} is in no row"))
}

#[test]
fn dependencies_point_one_way() {
    let path = regex::Regex::new(r"\bcrate::([a-z_]+)").unwrap();
    let sources = sources();
    let mut edges = 0;
    let mut faults = Vec::new();
    for (file, text) in sources.iter().filter(|(file, _)| *file != "lib.rs") {
        let from = room(file);
        for to in path.captures_iter(text).map(|found| found.get(1).unwrap().as_str()).filter(|to| *to != from) {
            edges += 1;
            if row(to) <= row(from) {
                faults.push(format!("{file} imports {to}, which does not stand below {from}"));
            }
        }
    }
    assert!(edges > 300, "the sources are not read as they are written: {edges} imports");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_directory_holds_more_than_a_fifth_of_the_code() {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    let sources = sources();
    for (file, text) in &sources {
        *lines.entry(room(file)).or_default() += text.lines().filter(|line| !line.trim().is_empty()).count();
    }
    let all: usize = lines.values().sum();
    for (room, lines) in lines {
        assert!(lines * 5 <= all, "{room} has {lines} of {all} lines");
    }
}

#[test]
fn only_its_directory_knows_the_container_engines_client() {
    for (file, text) in sources() {
        assert!(file.starts_with("runtime/docker") || !text.contains("bollard"), "{file} names bollard");
    }
}

#[test]
fn files_that_decide_do_no_input_or_output() {
    let sources = sources();
    for pure in PURE {
        let files: Vec<_> = sources.iter().filter(|(file, _)| file.starts_with(pure)).collect();
        assert!(!files.is_empty(), "there is no {pure}");
        for (file, text) in files.into_iter().filter(|(file, _)| !EXCEPTIONS.contains(&file.as_str())) {
            for name in IMPURE {
                assert!(!text.contains(name), "{file} names {name}");
            }
        }
    }
}
