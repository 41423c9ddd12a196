//! The ledger of a node.

use super::Machine;
use hvdctl::grade::ledger::{Ledger, LedgerEvent};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const APPEND: &[&str] = &["node/close.sh", "node/permissions.sh", "ledger/system.sh", "ledger/append.sh"];
const READ: &[&str] = &["ledger/system.sh", "ledger/read.sh"];

/// The files of a node's ledger.
const FILES: [&str; 2] = [".ledger.lock@lab", ".ledger@lab"];

fn files(machine: &Machine) -> Vec<String> {
    let names = fs::read_dir(machine.path("jobs")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// The variables of `ledger/append.sh` for a check of this name.
fn added(check: &str) -> String {
    format!("most=65536 entries='{{\"what\":\"check\",\"by\":\"{check}\"}}'")
}

/// Returns the ledger that `ledger/read.sh` reports.
fn ledger(machine: &Machine) -> Ledger {
    Ledger::parse(machine.prints(READ, "most=65536").as_bytes())
}

/// The names of the checks in a ledger, and the number of its entries of the system.
fn checks(ledger: &Ledger) -> (Vec<&str>, usize) {
    let names = ledger.entries.iter().filter_map(|entry| match &entry.event {
        LedgerEvent::Check { by, .. } => Some(by.as_str()),
        _ => None,
    });
    let systems = ledger.entries.iter().filter(|entry| matches!(entry.event, LedgerEvent::System { .. }));
    (names.collect(), systems.count())
}

#[test]
fn a_ledger_begins_with_the_system_and_notes_when_it_was_booted_again() {
    let machine = Machine::new(&[]);
    // it may hang so that it cannot even be killed
    machine.stub("nvidia-smi", &format!("touch {}", machine.path("called").display()));
    assert_eq!(ledger(&machine).entries, []);
    assert!(!machine.path("called").exists(), "a ledger is read without nvidia-smi");
    machine.prints(APPEND, &added("verify"));
    machine.prints(APPEND, &added("doctor"));
    let once = ledger(&machine);
    assert_eq!((checks(&once), once.restarts().len()), ((vec!["verify", "doctor"], 1), 0));
    assert!(once.entries.iter().all(|entry| (once.now - entry.time).abs() < 600.0), "{once:?}");
    let LedgerEvent::System { boot, booted, .. } = &once.entries[0].event else { panic!("{once:?}") };
    assert!(*boot == once.boot && *booted > 0.0 && *booted <= once.now, "{once:?}");
    // as it was before the machine was booted
    let file = machine.path("jobs/.ledger@lab");
    let before = fs::read_to_string(&file).unwrap().replace(boot.as_str(), "0-1");
    fs::write(&file, before).unwrap();
    assert_eq!(ledger(&machine).restarts().len(), 1, "it is known before it is recorded");
    machine.prints(APPEND, &added("bench"));
    machine.prints(APPEND, "most=65536 entries=''");
    let again = ledger(&machine);
    assert_eq!((checks(&again), again.restarts().len()), ((vec!["verify", "doctor", "bench"], 2), 1));
    let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn a_ledger_that_is_no_file_is_reported_and_not_waited_for() {
    let machine = Machine::new(&[("jobs/x", "")]);
    // where a script waits for a writer or a reader of the pipe, it is given none, and ends with another message
    machine.break_tool("tail", "*", "the pipe was read");
    machine.break_tool("sed", "*.ledger@lab", "the pipe was read");
    let made = Command::new("mkfifo").arg(machine.path("jobs/.ledger@lab")).status().unwrap();
    assert!(made.success());
    let expected = format!("{}: not a regular file\n", machine.path("jobs/.ledger@lab").display());
    assert_eq!(machine.fails(READ, "most=65536"), expected);
    assert_eq!(machine.fails(APPEND, &added("verify")), expected);
    // nor is a link followed
    fs::remove_file(machine.path("jobs/.ledger@lab")).unwrap();
    for target in [machine.path("jobs/x"), machine.path("jobs/none")] {
        let _ = fs::remove_file(machine.path("jobs/.ledger@lab"));
        std::os::unix::fs::symlink(target, machine.path("jobs/.ledger@lab")).unwrap();
        assert_eq!(machine.fails(READ, "most=65536"), expected);
        assert_eq!(machine.fails(APPEND, &added("verify")), expected);
    }
}

#[test]
fn a_directory_of_jobs_may_be_below_the_root() {
    let machine = Machine::new(&[]);
    // the root is not touched
    for tool in ["mkdir", "flock"] {
        machine.break_tool(tool, "*", "reached");
    }
    let below_root = format!("{} jobs_dir=/hvdctl-test", added("verify"));
    assert_eq!(machine.fails(APPEND, &below_root), "mkdir: reached\n");
    let not_set_up = format!("{} jobs_dir=/hvdctl-test/jobs", added("verify"));
    assert_eq!(machine.prints(APPEND, &not_set_up), "");
}

#[test]
fn an_append_that_a_power_failure_cut_anywhere_loses_nothing_else() {
    let machine = Machine::new(&[]);
    // it only takes time here
    machine.stub("sync", "exit 0");
    machine.prints(APPEND, &added("first"));
    machine.prints(APPEND, &added("second"));
    let file = machine.path("jobs/.ledger@lab");
    let whole = fs::read(&file).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let printed = machine.prints(READ, "most=65536");
    let head = printed.split_inclusive("\n\n").next().unwrap().as_bytes().to_vec();
    for cut in last..=whole.len() {
        // a file system may have the length of what was not written yet
        let tails = if (whole.len() - cut).is_multiple_of(16) { &[&b""[..], b"\0\0"][..] } else { &[&b""[..]] };
        for tail in tails {
            fs::write(&file, [&whole[..cut], tail].concat()).unwrap();
            machine.prints(APPEND, &added("third"));
            let ledger = Ledger::parse(&[head.as_slice(), &fs::read(&file).unwrap()].concat());
            let expected = if cut >= whole.len() - 1 && tail.is_empty() || cut == whole.len() {
                vec!["first", "second", "third"]
            } else {
                vec!["first", "third"]
            };
            let damaged = usize::from(expected.len() == 2 && (cut > last || !tail.is_empty()))
                + usize::from(cut == whole.len() && !tail.is_empty());
            assert_eq!((checks(&ledger), ledger.damaged), ((expected, 1), damaged), "cut at {cut}, then {tail:?}");
        }
    }
}

#[test]
fn appends_at_the_same_time_lose_no_entry() {
    let machine = Machine::new(&[]);
    let names: Vec<String> = (0..12).map(|i| format!("c{i}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| machine.prints(APPEND, &added(name)));
        }
    });
    let ledger = ledger(&machine);
    let (mut found, systems) = checks(&ledger);
    found.sort_unstable();
    let mut expected: Vec<&str> = names.iter().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!((found, systems, ledger.damaged), (expected, 1, 0));
}

#[test]
fn a_full_ledger_keeps_its_newer_half() {
    let machine = Machine::new(&[]);
    // it only takes time here
    machine.stub("sync", "exit 0");
    let variables = |i: usize| added(&format!("{i:0>300}")).replace("65536", "8192");
    let size = || fs::metadata(machine.path("jobs/.ledger@lab")).unwrap().len();
    for i in 0..60 {
        machine.prints(APPEND, &variables(i));
        assert!(size() <= 8192, "{i}: {}", size());
    }
    let ledger = ledger(&machine);
    let (found, systems) = checks(&ledger);
    let numbers: Vec<usize> = found.iter().map(|name| name.parse().unwrap()).collect();
    assert_eq!((numbers.last(), ledger.damaged, systems), (Some(&59), 0, 1));
    assert!(numbers.len() >= 8 && numbers.is_sorted(), "{numbers:?}");
    assert_eq!(files(&machine), FILES, "no other file is left");
}

#[test]
fn a_ledger_that_cannot_be_written_stays_as_it_was() {
    let machine = Machine::new(&[]);
    machine.prints(APPEND, &added("first"));
    let before = fs::read(machine.path("jobs/.ledger@lab")).unwrap();
    // a disk that is full when the newer half is written, another command that holds the lock, and a node without flock
    for (tool, message) in [("sed", "write error: No space left on device"), ("flock", "no"), ("sync", "I/O error")] {
        machine.break_tool(tool, "*", message);
        let small = added("second").replace("65536", "200");
        let output = machine.run(APPEND, &small);
        assert!(!output.status.success() && !output.stderr.is_empty(), "{tool}: {output:?}");
        assert_eq!(fs::read(machine.path("jobs/.ledger@lab")).unwrap(), before, "{tool}");
        assert_eq!(files(&machine), FILES, "{tool}");
        machine.repair();
    }
    machine.break_tool("tail", "*", "Input/output error");
    let unread = machine.run(READ, "most=65536");
    assert!(!unread.status.success(), "{unread:?}");
}
