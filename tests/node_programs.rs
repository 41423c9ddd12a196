//! Unit tests of the node programs (`src/scripts/*.py`), with every supported Python interpreter that is in `PATH`.

use std::collections::BTreeMap;
use std::process::Command;

const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_node_programs.py");

/// The oldest and the newest minor version of Python 3 that the node programs are written for.
const VERSIONS: std::ops::RangeInclusive<u32> = 7..=14;

#[test]
fn node_programs_decide_the_same_with_every_python() {
    let names = std::iter::once("python3".to_owned()).chain(VERSIONS.map(|minor| format!("python3.{minor}")));
    // one interpreter may have several names
    let mut interpreters = BTreeMap::new();
    for name in names {
        let asked = Command::new(&name).args(["-c", "import sys; print(sys.version)"]).output();
        if let Some(asked) = asked.ok().filter(|asked| asked.status.success()) {
            interpreters.insert(asked.stdout, name);
        }
    }
    assert!(!interpreters.is_empty(), "these tests need python3");
    for name in interpreters.into_values() {
        let done = Command::new(&name).args(["-W", "error::SyntaxWarning", TESTS]).output().unwrap();
        assert!(done.status.success(), "{name}:\n{}", String::from_utf8_lossy(&done.stderr));
    }
}
