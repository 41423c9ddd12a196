//! Endings and their causes.

use super::frames::{Frame, FrameKind, Idle};
use super::monitor::Monitor;
use super::restart::Membership;
use super::*;
use crate::diagnosis::lost::lost_output;
use crate::launch::{Launcher, launcher};
use crate::model::fault::Fault;
use crate::model::launcher::{Controller, LauncherName};
use crate::model::role::Ends;

fn frame(rank: u32, time: f64, kind: FrameKind) -> Frame {
    Frame { time, rank, kind }
}

#[test]
fn the_first_failure_is_found_across_skewed_clocks() {
    let mut monitor = Monitor::default();
    let exited = |code, asked| FrameKind::Exited { code, signal: None, asked, oom: false };
    // by the clocks this one came first, but it had been asked to
    monitor.record("a", &frame(3, 99.0, exited(143, true)), 0.0);
    monitor.record("a", &frame(0, 100.0, exited(1, false)), 0.0);
    // node b's clock is 60 s ahead: its rank failed at 99.5 of ours
    monitor.record("b", &frame(1, 159.5, exited(7, false)), 60.0);
    let ending = JobResult { ranks: 3, exits: monitor.exits, ..JobResult::default() };
    let first = ending.first_failure().unwrap();
    assert_eq!((first.rank, first.code, first.node.as_str()), (1, 7, "b"));
}

#[test]
fn a_record_of_an_earlier_build_is_read() {
    // it left out 0 restarts and options that were not set
    let text = r#"{"id": "j1", "cluster": "lab", "name": "digits", "operator": "ana@desk", "created": 1.0,
        "launcher": "horovodrun", "placement": {"shares": []}, "command": ["true"], "cwd": "/", "ranks": 2,
        "port": 12345, "interface": "eth0", "grace": 10, "stall": 60, "idle_margin": 30, "ulimits": {}}"#;
    let record = Record::read("j1", text).unwrap();
    assert_eq!((record.restarts, record.controller, record.port), (0, None, 12345));
    assert!(!record.log_progress);
}

/// A file that an hvdctl stored before files had a number (tests/compat).
macro_rules! compat {
    ($name:literal) => {
        include_str!(concat!("../../tests/compat/", $name))
    };
}

#[test]
fn files_of_the_first_form_are_read() {
    let record = Record::read("20261125-203344-5ae9", compat!("job.json")).unwrap();
    assert_eq!((record.cluster.as_str(), record.name.as_str(), record.operator.as_str()), ("lab", "compat", "root@vm"));
    assert_eq!((record.launcher, record.controller), (LauncherName::Horovodrun, Some(Controller::Gloo)));
    assert_eq!(
        (record.restarts, record.min_ranks, record.max_ranks, record.created),
        (2, Some(1), Some(2), 1_795_638_824.725_367)
    );
    let shares: Vec<_> =
        record.placement.shares.iter().map(|share| (share.node.as_str(), share.ranks, share.first)).collect();
    assert_eq!((shares, record.placement.launcher()), (vec![("node1", 1, 0), ("node2", 1, 1)], "node1"));
    assert_eq!(
        (record.command.len(), record.cwd.as_str(), record.port, record.interface.as_str()),
        (3, "/", 12345, "eth0")
    );
    assert_eq!((record.grace, record.stall, record.idle_margin, record.isolated_after), (10, 1800, 30, 180));
    let result = stored::read::<JobResult>(compat!("result.json")).unwrap();
    assert_eq!((result.state(), result.code(), result.ranks, result.started), (JobState::Succeeded, Some(0), 2, 2));
    assert_eq!((result.exits[1].node.as_str(), result.exits[1].time), ("node2", 1_795_638_843.043_638_5));
    assert!((result.ended - 1_795_638_843.288_319).abs() < 1e-5, "{}", result.ended);
    let attempts: Vec<Attempt> = serde_json::from_str(compat!("attempts.json")).unwrap();
    assert_eq!((attempts[0].launcher, attempts[0].exits[1].code, attempts[0].exits[0].signal), (Some(7), 7, Some(15)));
    let members: Membership = serde_json::from_str(compat!("members.json")).unwrap();
    assert_eq!((members.ranks(), members.members[1].node.as_str(), members.changes.len()), (2, "node2", 0));
    let launch: Value = stored::read(compat!("launch.json")).unwrap();
    assert_eq!((&launch["address"], &launch["keep_alive"]), (&"172.28.101.11".into(), &15.into()));
    // it is written with its number and the fields that were added since, and is otherwise the same
    let (written, stored) = (stored::write_checked("job.json", &record).unwrap(), compat!("job.json").trim());
    let added =
        ["\"stall_warning\":0,", "\"sample\":0,", "\"default_command\":false,", "\"commit\":null,", "\"dirty\":null,"];
    let without =
        added.iter().fold(written.replacen("{\"format\":1,", "{", 1), |text, field| text.replacen(field, "", 1));
    assert_eq!(without, stored);
}

#[test]
fn what_cannot_be_read_has_a_reason_and_shows_what_it_can() {
    let stored = compat!("job.json");
    let read = |text: &str| Record::read("20261125-203344-5ae9", text).unwrap_err();
    let newer = read(&stored.replacen('{', "{\"format\":3,\"launcher\":7,", 1).replace("\"ranks\"", "\"places\""));
    assert_eq!(newer.reason, "written by a newer hvdctl (format 3); this one reads up to 1");
    assert_eq!(
        (newer.cluster.as_deref(), newer.name.as_deref(), newer.operator.as_deref()),
        (Some("lab"), Some("compat"), Some("root@vm"))
    );
    assert_eq!(newer.created, Some(1_795_638_824.725_367));
    let last = read(&stored.replacen('{', "{\"format\":\"next\",", 1)).reason;
    assert_eq!(last, "written by a newer hvdctl (format \"next\"); this one reads up to 1");
    assert!(read(&stored.replace("horovodrun", "slurm")).reason.starts_with("unknown variant `slurm`"));
    assert!(read(&stored[..300]).reason.starts_with("incomplete: EOF"), "{}", read(&stored[..300]).reason);
    assert!(read("# a file").reason.starts_with("not JSON: "));
    assert_eq!([read(""), read("\n")].map(|record| record.reason), ["empty or missing"; 2]);
    let other = Record::read("20261125-203344-ffff", stored).unwrap_err();
    assert_eq!(other.reason, "the record of job 20261125-203344-5ae9");
    for odd in ["../../etc", "/etc", "a b", ".ssh", ""] {
        let project = stored.replace("\"project\":null", &format!("\"project\":{odd:?}"));
        for forged in [stored.replace("\"compat\"", &format!("{odd:?}")), project] {
            assert_eq!(
                read(&forged).reason,
                format!("{} is not a valid name of a job, a project or a role", quote::readable(odd))
            );
        }
    }
    let numbered = |number: &str| {
        Record::read("20261125-203344-5ae9", &stored.replacen('{', &format!("{{\"format\":{number},"), 1))
    };
    assert!([numbered("0"), numbered("1"), numbered("null")].iter().all(Result::is_ok));
    assert_eq!(
        stored::read::<JobResult>("{\"format\": 2}").unwrap_err(),
        "written by a newer hvdctl (format 2); this one reads up to 1"
    );
}

#[test]
fn what_json_cannot_represent_is_never_written() {
    use std::os::unix::ffi::OsStrExt;
    let never = Record { created: f64::NAN, ..Record::default() };
    let error = stored::write_checked("job.json", &never).unwrap_err();
    assert!(error.starts_with("cannot write job.json: invalid type: null, expected f64"), "{error}");
    let ended = JobResult { ended: f64::INFINITY, ..JobResult::default() };
    assert!(stored::write_checked("result.json", &ended).unwrap_err().starts_with("cannot write result.json: "));
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(b"/data/\xff"));
    let paths = BTreeMap::from([("path", path)]);
    let message = "cannot write launch.json: path contains invalid UTF-8 characters";
    assert_eq!(stored::write("launch.json", &paths).unwrap_err(), message);
    assert_eq!(stored::json("launch.json", &paths).unwrap_err(), message);
}

#[test]
fn states() {
    let exit =
        |rank, code, asked| RankExit { rank, node: "a".into(), code, signal: None, time: 1.0, asked, oom: false };
    let ending =
        |launcher, exits: &[RankExit]| JobResult { launcher, ranks: 2, exits: exits.to_vec(), ..JobResult::default() };
    let well = [exit(0, 0, false), exit(1, 0, false)];
    assert_eq!(ending(Some(0), &well).state(), JobState::Succeeded);
    assert_eq!(ending(Some(0), &well[..1]).state(), JobState::Lost, "the end of the other rank is not recorded");
    assert_eq!(ending(Some(1), &well).state(), JobState::Failed, "the launcher's own failure");
    assert_eq!(ending(None, &well).state(), JobState::Lost, "the launcher's end is not recorded");
    assert_eq!(ending(None, &[exit(0, 7, false)]).state(), JobState::Failed);
    assert_eq!(ending(Some(0), &[exit(0, 7, false), exit(1, 0, false)]).state(), JobState::Failed);
    let fault = Some(Fault::NotStarted { seconds: 1, missing: "rank 1".into() });
    let ends = [exit(0, 143, true), exit(1, 143, true)];
    for seen in [1, 2] {
        let late = JobResult { fault: fault.clone(), started: seen, ..ending(Some(1), &ends[..seen as usize]) };
        assert_eq!(
            (late.state(), late.first_failure()),
            (JobState::Failed, None),
            "also of one that started in the end"
        );
    }
    let fault = Some(Fault::Unrecorded { code: Some(137) });
    assert_eq!(JobResult { fault: fault.clone(), ..ending(None, &[]) }.state(), JobState::Failed, "it never began");
    assert_eq!(JobResult { fault, started: 2, ..ending(None, &[]) }.state(), JobState::Lost);
    assert_eq!(JobResult { stopped: true, ..ending(None, &[exit(0, 143, true)]) }.state(), JobState::Stopped);
}

#[test]
fn the_job_supervisors_record_is_read() {
    let text = r#"{"ended": 5.5, "launcher": 7, "stopped": false, "ranks": 2, "started": 1, "silent": ["b"],
        "exits": [{"time": 4.5, "rank": 0, "code": 7, "asked": false, "node": "a"}]}"#;
    let ending: JobResult = serde_json::from_str(text).unwrap();
    assert_eq!((ending.first_failure().unwrap().code, ending.silent.len(), ending.fault), (7, 1, None));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn root_causes() {
    let placement = |text: &str| serde_json::from_str::<Placement>(text).unwrap();
    let placement =
        placement(r#"{"shares": [{"node": "a", "first": 0, "ranks": 1}, {"node": "b", "first": 1, "ranks": 1}]}"#);
    let exit = |rank, code, asked, oom| RankExit {
        rank,
        node: ["a", "b"][rank as usize].into(),
        code,
        signal: (code == 137).then_some(9),
        time: 1.0,
        asked,
        oom,
    };
    let ending = |exits: &[RankExit]| JobResult {
        launcher: Some(1),
        ranks: 2,
        started: 2,
        exits: exits.to_vec(),
        ..JobResult::default()
    };
    let said = |ending: &JobResult| ending.reason(&placement).unwrap_or_default();
    let gloo = launcher(LauncherName::Horovodrun, Controller::Gloo);
    let hint = |ending: &JobResult| ending.root_cause(&placement).unwrap().hint(gloo).unwrap();

    let both = ending(&[exit(0, 143, true, false), exit(1, 7, false, false)]);
    assert_eq!(said(&both), "rank 1 on b ended with exit code 7");
    let killed = ending(&[exit(0, 143, true, false), exit(1, 137, false, true)]);
    assert_eq!(said(&killed), "rank 1 on b ran out of memory: the kernel killed it (signal 9)");
    assert!(hint(&killed).contains("docker stats"));
    // Horovod's elastic driver ends the others when a rank has ended
    let ended = ending(&[exit(0, 143, true, false), exit(1, 0, false, false)]);
    assert_eq!(said(&ended), "rank 1 on b ended with exit code 0 while the others waited for it");
    let fault = "reset limit of 0 exceeded".to_owned();
    assert_eq!(said(&JobResult { fault: Some(Fault::Text(fault.clone())), ..ended }), fault);
    // 255, 200 and 129 are what programs end with by themselves
    for code in [129, 200, 255] {
        let words = format!("rank 1 on b ended with exit code {code}");
        assert_eq!(said(&ending(&[exit(0, 143, true, false), exit(1, code, false, false)])), words);
    }
    let killed = ending(&[exit(0, 143, true, false), exit(1, 137, false, false)]);
    assert_eq!(said(&killed), "rank 1 on b was killed by signal 9");
    // the others fail by themselves once Horovod gives up, and yet it is not their doing
    let hung = |tensors: Option<&str>, idle: Option<Idle>| HungRank {
        rank: 1,
        seconds: 5,
        tensors: tensors.map(str::to_owned),
        idle,
        time: 1.0,
    };
    let stalled = ending(&[exit(0, 1, false, false), exit(1, 143, true, false)]);
    let waited = JobResult { hung: vec![hung(Some("allreduce.a"), None)], ..stalled.clone() };
    assert_eq!(said(&waited), "rank 1 on b hung: the others waited 5 s for it in allreduce.a");
    assert_eq!(waited.code(), Some(1), "the code is that of a rank that has one");
    let absent = JobResult { hung: vec![hung(Some(gloo.init), None)], ..stalled.clone() };
    assert!(hint(&absent).contains("HOROVOD_GLOO_TIMEOUT_SECONDS"));
    assert_eq!(
        said(&JobResult { hung: vec![hung(None, None)], ..stalled.clone() }),
        "rank 1 on b hung: it was stopped, and silent, for 5 s"
    );
    assert_eq!(
        said(&JobResult { hung: vec![hung(None, Some(Idle::Blocked))], ..stalled.clone() }),
        "rank 0 on a ended with exit code 1",
        "no rank was given up: this one only waited when another failed"
    );
    // rank 0 is given up first, and rank 1 asked for its end then
    let given_up = ending(&[exit(0, 143, false, false), exit(1, 143, true, false)]);
    let idle = |rank, idle| HungRank { rank, time: f64::from(rank), ..hung(None, Some(idle)) };
    for (ones, words) in [
        (vec![idle(0, Idle::Blocked)], "rank 0 on a hung: it was idle and wrote nothing for 5 s"),
        (
            vec![idle(0, Idle::Waiting), idle(1, Idle::Blocked)],
            "rank 1 on b hung: it was idle and wrote nothing for 5 s",
        ),
        (
            vec![idle(0, Idle::Waiting), idle(1, Idle::Kernel)],
            "rank 1 on b hung: the kernel kept it waiting for 5 s (state D)",
        ),
        (vec![idle(0, Idle::Waiting), hung(None, None)], "rank 1 on b hung: it was stopped, and silent, for 5 s"),
        (vec![idle(0, Idle::Waiting)], "rank 1 on b hung: the others waited 5 s for it in a collective operation"),
        (
            vec![idle(0, Idle::Waiting), idle(1, Idle::Waiting)],
            "rank 0 on a hung: all ranks waited 5 s for one another, in different collective operations",
        ),
    ] {
        assert_eq!(said(&JobResult { hung: ones, ..given_up.clone() }), words);
    }
    // who waits does not see that the other has ended, or that its node is gone
    let late = HungRank { time: 2.0, ..hung(Some(gloo.init), None) };
    let left =
        JobResult { hung: vec![late.clone()], ..ending(&[exit(0, 134, false, false), exit(1, 0, false, false)]) };
    assert_eq!(said(&left), "rank 1 on b ended with exit code 0 while the others waited for it");
    assert!(hint(&left).contains("must reach hvd.init"));
    assert_eq!(left.code(), Some(134));
    let failed =
        JobResult { hung: vec![late.clone()], ..ending(&[exit(0, 134, false, false), exit(1, 1, false, false)]) };
    assert_eq!(said(&failed), "rank 1 on b ended with exit code 1", "it had failed before");
    let early = JobResult { hung: vec![hung(Some(gloo.init), None)], ..left };
    assert_eq!(said(&early), "rank 1 on b hung: the others waited 5 s for it in hvd.init", "it came to its end later");
    let cut = JobResult { hung: vec![late], silent: vec!["b".into()], ..ending(&[exit(0, 134, false, false)]) };
    assert_eq!(said(&cut), "rank 1 on b is gone; how it ended is unknown");
    // a rank that was asked to end is not the root cause while another's end was not seen
    let gone = JobResult {
        silent: vec!["b".into()],
        silence: BTreeMap::from([("b".into(), "Connection refused".into())]),
        ..ending(&[exit(0, 143, true, false)])
    };
    assert_eq!(said(&gone), "rank 1 on b is gone: the worker there did not answer at the end: Connection refused");
    assert_eq!((gone.state(), gone.code()), (JobState::Failed, Some(1)));
    let broken = JobResult { exits: vec![exit(0, 1, false, false)], ..gone.clone() };
    assert!(said(&broken).starts_with("rank 1 on b is gone"), "the other lost its connection to it");
    assert_eq!(broken.code(), Some(1));
    assert_eq!(said(&JobResult { started: 1, ..ending(&[]) }), "", "it never began: no rank caused that");
    assert_eq!(said(&JobResult { stopped: true, ..both.clone() }), "");
    let lost = JobResult {
        launcher: None,
        fault: Some(Fault::Unrecorded { code: None }),
        ..ending(&[exit(1, 143, true, false)])
    };
    let unrecorded = "the job supervisor exited without recording a result";
    assert_eq!((lost.state(), said(&lost)), (JobState::Lost, unrecorded.into()));
}

#[test]
fn hints_name_what_ranks_wait_in_under_their_launcher() {
    let hint = |how: FailureKind, launcher: &Launcher| {
        RootCause { rank: 1, role: None, node: "b".into(), how }.hint(launcher).unwrap_or_default()
    };
    let early = || FailureKind::Exited { code: 0, signal: None, oom: false };
    let hung = |tensors: &str| FailureKind::Hung { seconds: 5, tensors: Some(tensors.into()), idle: None };
    for (name, controller, init, more_time) in [
        (
            LauncherName::Horovodrun,
            Controller::Gloo,
            "hvd.init",
            "; -e HOROVOD_GLOO_TIMEOUT_SECONDS=600 gives it more time",
        ),
        (LauncherName::Horovodrun, Controller::Mpi, "hvd.init", ""),
        (LauncherName::Mpirun, Controller::Gloo, "MPI_Init", ""),
        (LauncherName::Torchrun, Controller::Gloo, "init_process_group", ""),
        (LauncherName::Env, Controller::Gloo, "the initialization of its framework", ""),
    ] {
        let launcher = launcher(name, controller);
        let operations = "and the same collective operations as all others";
        assert_eq!(hint(early(), launcher), format!("every rank must reach {init}, {operations}"));
        assert_eq!(hint(hung(init), launcher), format!("every rank must reach {init}{more_time}"));
        let operations = "every rank must reach the same collective operations; --stall-timeout gives it more time";
        assert_eq!(hint(hung("allreduce.a"), launcher), operations);
    }
}

#[test]
fn numbers_that_cannot_be_make_no_panic_and_no_endless_search() {
    let share = |node: &str, first, ranks| crate::launch::placement::Share {
        node: node.into(),
        ranks,
        first,
        ..Default::default()
    };
    let placement = Placement {
        shares: vec![share("a", 0, 1), share("b", 1, u32::MAX), share("c", u32::MAX, 1)],
        ..Placement::default()
    };
    let exit = RankExit { rank: 0, node: "a".into(), code: 0, signal: None, time: 1.0, asked: false, oom: false };
    let result = |silent: &[&str], started| JobResult {
        launcher: Some(1),
        ranks: u32::MAX,
        started,
        exits: vec![exit.clone()],
        silent: silent.iter().map(|node| (*node).to_owned()).collect(),
        ..JobResult::default()
    };
    let cause =
        |silent: &[&str], started| result(silent, started).root_cause(&placement).map(|cause| (cause.rank, cause.node));
    assert_eq!(cause(&["d"], 0), None);
    assert_eq!(cause(&["b", "c"], 0), Some((1, "b".into())));
    assert_eq!(cause(&["d"], u32::MAX), Some((1, "b".into())));

    let lost = |lines| LostOutput { rank: 0, node: "a".into(), lines };
    assert!(lost_output(&[lost(u64::MAX), lost(1)]).unwrap().starts_with("18446744073709551615 lines"));
    let members = format!(r#"{{"members": [{0}, {0}], "changes": []}}"#, r#"{"node": "a", "ranks": 4294967295}"#);
    assert_eq!(serde_json::from_str::<Membership>(&members).unwrap().ranks(), u32::MAX);
    let mut stored = list::StoredJobs::new();
    for node in ["a", "b"] {
        list::add(
            &mut stored,
            node,
            "./j1/states:1.0 4294967295 s \n./../job.json:{}\n./.*/env.json:\n./-rf/env.json:\n",
        );
    }
    assert_eq!(stored.iter().map(|(id, files)| (id.as_str(), files.started)).collect::<Vec<_>>(), [("j1", 2)]);
}

/// Two ranks of a trainer and one of a generator on `a`, one of each on `b`. The generators serve the trainer.
pub fn two_roles() -> Placement {
    let mut placement = Placement::default();
    for (node, roles) in [("a", vec![2, 1]), ("b", vec![1, 1])] {
        placement.push(node, roles.iter().sum());
        placement.shares.last_mut().unwrap().roles = roles;
    }
    placement.roles =
        vec![RecordedRole::example("trainer", Ends::Job), RecordedRole::example("generator", Ends::With { role: 0 })];
    placement
}
