//! Unit tests of the node programs (the Python files below `src/scripts`) and of what examples decide without a
//! framework, with the supported Python interpreters that are in `PATH` or installed by pyenv.

#![allow(clippy::print_stderr, reason = "tests that cannot be made here say so")]

use hvdctl::model::fault::Fault;
use hvdctl::model::job_state::JobState;
use hvdctl::model::queue::QueueEntry;
use hvdctl::model::start_fault::{StartFailure, StartFault};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_node_programs.py");
const STATE_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_states.py");
const IN_PLACE_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_in_place.py");
const ALLOCATION_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_allocation.py");
const ENDINGS_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_endings.py");
const STACK_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_stacks.py");
const QUEUE_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_queue.py");
const ROLE_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_roles.py");
const MESH_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_mesh.py");
const MESH_DEVICE_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_mesh_device.py");
const EXAMPLE_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_examples.py");
/// Ranks that are processes, for the oldest and the newest interpreter.
const RANK_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_collectives.py");
/// Real WireGuard between network namespaces, for the oldest interpreter: versions differ in syntax, not in networks.
const NETWORK_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_programs/test_mesh_networks.py");

/// The oldest and the newest minor version of Python 3 that the node programs are written for.
const VERSIONS: std::ops::RangeInclusive<u32> = 7..=14;

/// The number of tests that run at once: they mostly wait, but for a limited time.
const AT_ONCE: usize = 4;

/// The number of the day, which chooses the interpreter whose turn it is.
fn day() -> usize {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (now.as_secs() / 86_400) as usize
}

/// The interpreters by what they say of themselves: one may have several names.
fn interpreters() -> BTreeMap<String, PathBuf> {
    let in_path = std::iter::once("python3".to_owned()).chain(VERSIONS.map(|minor| format!("python3.{minor}")));
    // pyenv's own programs in PATH run one version only
    let pyenv = std::env::home_dir().map(|home| home.join(".pyenv/versions")).and_then(|dir| dir.read_dir().ok());
    let by_pyenv = pyenv.into_iter().flatten().flatten().map(|version| version.path().join("bin/python3"));
    let mut found = BTreeMap::new();
    for name in in_path.map(PathBuf::from).chain(by_pyenv) {
        let asked = Command::new(&name).args(["-c", "import sys; print(sys.version_info[1], sys.version)"]).output();
        let Some(asked) = asked.ok().filter(|asked| asked.status.success()) else { continue };
        let version = String::from_utf8(asked.stdout).unwrap();
        let minor = version.split(' ').next().and_then(|minor| minor.parse().ok());
        if minor.is_some_and(|minor| VERSIONS.contains(&minor)) {
            found.insert(version, name);
        }
    }
    found
}

/// Prints one of each fault of `faults.py`.
const EACH_FAULT: &str = "import faults, inspect, json
for name, made in sorted(vars(faults).items()):
    if inspect.isfunction(made) and name != 'fault':
        made = made(*([7] * len(inspect.signature(made).parameters))) if name != 'of_driver' else made('number of resets')
        texts = ('message', 'missing', 'node') + (('role', 'ranks') if made['kind'] == 'role_not_ready' else ())
        made = {key: 'x' if key in texts else value for key, value in made.items()}
    if isinstance(made, dict) and 'kind' in made:
        print(json.dumps(made))
print(json.dumps(faults.of_driver('another reason')))
";

#[test]
fn hvdctl_knows_each_fault_that_the_programs_record() {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/programs");
    let done = Command::new("python3").args(["-B", "-c", EACH_FAULT]).current_dir(programs).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let lines = String::from_utf8(done.stdout).unwrap();
    for line in lines.lines() {
        let fault: Fault = serde_json::from_str(line).unwrap();
        assert!(!matches!(fault, Fault::Unknown(_) | Fault::Text(_)), "{line}");
        let (again, line): (serde_json::Value, serde_json::Value) =
            (serde_json::to_value(&fault).unwrap(), serde_json::from_str(line).unwrap());
        assert_eq!(again, line, "no fact is lost");
    }
    assert!(lines.lines().count() >= 12, "{lines}");
}

#[test]
fn hvdctl_reads_the_states_of_slurm_as_the_programs_do() {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/programs/slurm");
    let print = "import endings, json; print(json.dumps(endings.STATES))";
    let done = Command::new("python3").args(["-B", "-c", print]).current_dir(programs).output().unwrap();
    let states: BTreeMap<String, String> = serde_json::from_slice(&done.stdout).unwrap();
    assert!(states.len() > 20, "{states:?}");
    for (state, meaning) in states {
        let queue = QueueEntry { job: "7".into(), state: state.clone(), reason: None, submitted: None, start: None };
        let waits = meaning == "in the queue" || state == "CONFIGURING";
        assert_eq!(queue.is_waiting(), waits, "{state}");
        let fault = match meaning.as_str() {
            "time limit" => Some(Fault::TimeLimit),
            "preempted" => Some(Fault::Preempted { requeues: None }),
            "node lost" => Some(Fault::NodeFailed { requeues: None }),
            "out of memory" => Some(Fault::OutOfMemory),
            "nodes not started" => Some(Fault::NodesNotStarted),
            "cancelled" => Some(Fault::Cancelled),
            "ended by itself" | "in the queue" | "goes on" => None,
            other => panic!("{other}"),
        };
        let end = queue.end(2);
        assert_eq!(end.as_ref().map(|end| end.fault.clone()), fault, "{state}");
        assert!(end.is_none_or(|end| (end.state == JobState::Stopped) == (meaning == "cancelled")), "{state}");
    }
}

#[test]
fn hvdctl_knows_each_fault_that_keeps_a_program_from_starting() {
    let source = include_str!("../src/scripts/programs/supervisor/starting.py");
    let (_, functions) = source.split_once("def missing(").unwrap();
    let (functions, _) = functions.split_once("\nPYTHON = ").unwrap();
    let fault = regex::Regex::new(r#"return \(?"([a-z_0-9]+)"|else \(?"([a-z_0-9]+)"\)?"#).unwrap();
    let mut found = 0;
    for named in fault.captures_iter(functions) {
        let name = named.get(1).or(named.get(2)).unwrap().as_str();
        let text = format!(r#"{{"program": "x", "error": "y", "fault": "{name}", "about": "z"}}"#);
        let StartFailure::Found { fault, .. } = StartFailure::read(&text) else { panic!("{text}") };
        assert!(fault.is_some_and(|fault| fault != StartFault::Unknown), "{name}");
        found += 1;
    }
    assert!(found >= 12, "{found}");
}

/// With the oldest and the newest interpreter, and another one each day; with `scripts/test --full` with all.
#[test]
fn node_programs_decide_the_same_with_every_python() {
    let interpreters = interpreters();
    assert!(!interpreters.is_empty(), "these tests need python3");
    let run = |tests: &str, version: &str, name: &PathBuf| {
        let mut command = Command::new(name);
        // hvdctl sets it for a job's supervisor
        command.env("HVDCTL_RUN", std::env::temp_dir().join("hvdctl"));
        command.args(["-W", "error::SyntaxWarning", tests]).stdout(Stdio::null()).stderr(Stdio::piped());
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{} ({version}):\n{said}", name.display());
        if said.starts_with("skipped") {
            eprintln!("{tests}: {said}");
        }
    };
    // an interpreter's key begins with its minor version
    let minor = |version: &&String| version.split(' ').next().and_then(|minor| minor.parse::<u32>().ok());
    let mut versions: Vec<&String> = interpreters.keys().collect();
    versions.sort_by_key(minor);
    let oldest = versions[0];
    let ends = BTreeSet::from([oldest, versions[versions.len() - 1]]);
    let others: Vec<&String> = versions.into_iter().filter(|version| !ends.contains(version)).collect();
    let mut chosen = ends.clone();
    match std::env::var_os("HVDCTL_TEST_FULL") {
        Some(_) => chosen.extend(others),
        None => chosen.extend((!others.is_empty()).then(|| others[day() % others.len()])),
    }
    let of_networks = std::iter::once((NETWORK_TESTS, oldest, &interpreters[oldest]));
    let of_ranks = ends.into_iter().map(|version| (RANK_TESTS, version, &interpreters[version]));
    let of_all = [
        TESTS,
        STATE_TESTS,
        ROLE_TESTS,
        IN_PLACE_TESTS,
        ALLOCATION_TESTS,
        ENDINGS_TESTS,
        QUEUE_TESTS,
        STACK_TESTS,
        MESH_TESTS,
        MESH_DEVICE_TESTS,
        EXAMPLE_TESTS,
    ];
    let of_all =
        of_all.iter().flat_map(|tests| chosen.iter().map(|version| (*tests, *version, &interpreters[*version])));
    let all = Mutex::new(of_networks.chain(of_all).chain(of_ranks));
    let next = || all.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((tests, version, name)) = next() {
                    run(tests, version, name);
                }
            });
        }
    });
}
