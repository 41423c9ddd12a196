//! The direction of dependencies: which directory may import which, that no subjects import each other in a circle, and that the core
//! is pure. It reads the `crate::` paths of the sources, tests left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// From top to bottom: each may import only from what stands below it.
const LAYERS: [&[&str]; 7] =
    [&["main"], &["commands"], &["cli", "render"], &["ops"], &["edge"], &["event", "error"], &["core"]];

/// What a pure file must not name.
const IMPURE: [&str; 6] = ["tokio::", "openssh::", "bollard::", "std::fs", "std::process", "std::net::Tcp"];

/// An inventory is read from its file there; the others have tests outside of a module of that name.
const EXCEPTIONS: [&str; 3] = ["src/core/inventory.rs", "src/core/inventory/properties.rs", "src/core/quote.rs"];

/// Each source file with its text, without test modules.
fn sources() -> BTreeMap<String, String> {
    fn collect(dir: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_str().unwrap().to_owned();
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

/// A file's subject: `ops/run` for src/ops/run/watch.rs, `event` for src/event.rs.
fn subject(file: &str) -> String {
    let parts: Vec<&str> = file.trim_start_matches("src/").trim_end_matches(".rs").split('/').take(2).collect();
    parts.join("/")
}

/// The subjects that a text names by `crate::A::b`.
fn imports(text: &str, known: &BTreeSet<String>) -> BTreeSet<String> {
    let path = regex::Regex::new(r"\bcrate::([a-z_]+)(?:::([a-z_]+))?").unwrap();
    let named = path.captures_iter(text).map(|found| {
        let top = found[1].to_owned();
        let inner = found.get(2).map(|inner| format!("{top}/{}", inner.as_str()));
        inner.filter(|inner| known.contains(inner)).unwrap_or(top)
    });
    named.collect()
}

fn layer(subject: &str) -> usize {
    let top = subject.split('/').next().unwrap();
    LAYERS.iter().position(|layer| layer.contains(&top)).unwrap_or_else(|| panic!("{subject} is in no layer"))
}

#[test]
fn dependencies_point_one_way() {
    let sources = sources();
    let known: BTreeSet<String> = sources.keys().map(|file| subject(file)).collect();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut faults = Vec::new();
    for (file, text) in sources.iter().filter(|(file, _)| *file != "src/lib.rs") {
        let from = subject(file);
        for to in imports(text, &known) {
            if layer(&to) < layer(&from) {
                faults.push(format!("{file} imports {to}, which stands above it"));
            }
            if to != from && known.contains(&to) && to.contains('/') {
                edges.entry(from.clone()).or_default().insert(to);
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // a subject that reaches itself is in a circle
    for start in edges.keys() {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(at) = next.pop() {
            for to in edges.get(at).into_iter().flatten() {
                assert!(to != start, "{start} and {at} import each other in a circle");
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
    }
}

#[test]
fn the_core_is_pure() {
    for (file, text) in sources() {
        let pure = file.starts_with("src/core/") && !EXCEPTIONS.contains(&file.as_str());
        for name in IMPURE.iter().filter(|_| pure) {
            assert!(!text.contains(name), "{file} names {name}");
        }
    }
}
