//! Endings and their causes.

use super::*;
use crate::job::frames::{Frame, Idle, Kind};
use crate::job::monitor::Monitor;
use crate::launch::{Launcher, launcher};
use crate::model::launcher::{Controller, LauncherName};

fn frame(rank: u32, time: f64, kind: Kind) -> Frame {
    Frame { time, rank, kind }
}

#[test]
fn the_first_failure_is_found_across_skewed_clocks() {
    let mut monitor = Monitor::default();
    let exited = |code, asked| Kind::Exited { code, signal: None, asked, oom: false };
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
    let record = Record::parse(text).unwrap();
    assert_eq!((record.restarts, record.controller, record.port), (0, None, 12345));
    assert!(!record.log_progress);
}

#[test]
fn states() {
    let exit =
        |rank, code, asked| RankExit { rank, node: "a".into(), code, signal: None, time: 1.0, asked, oom: false };
    let ending =
        |launcher, exits: &[RankExit]| JobResult { launcher, ranks: 2, exits: exits.to_vec(), ..JobResult::default() };
    let well = [exit(0, 0, false), exit(1, 0, false)];
    assert_eq!(ending(Some(0), &well).state(), State::Succeeded);
    assert_eq!(ending(Some(0), &well[..1]).state(), State::Lost, "the end of the other rank is not recorded");
    assert_eq!(ending(Some(1), &well).state(), State::Failed, "the launcher's own failure");
    assert_eq!(ending(None, &well).state(), State::Lost, "the launcher's end is not recorded");
    assert_eq!(ending(None, &[exit(0, 7, false)]).state(), State::Failed);
    assert_eq!(ending(Some(0), &[exit(0, 7, false), exit(1, 0, false)]).state(), State::Failed);
    let fault = Some("not all ranks had started".to_owned());
    let ends = [exit(0, 143, true), exit(1, 143, true)];
    for seen in [1, 2] {
        let late = JobResult { fault: fault.clone(), started: seen, ..ending(Some(1), &ends[..seen as usize]) };
        assert_eq!((late.state(), late.first_failure()), (State::Failed, None), "also of one that started in the end");
    }
    let fault = Some("hmaster was killed".to_owned());
    assert_eq!(JobResult { fault: fault.clone(), ..ending(None, &[]) }.state(), State::Failed, "it never began");
    assert_eq!(JobResult { fault, started: 2, ..ending(None, &[]) }.state(), State::Lost);
    assert_eq!(JobResult { stopped: true, ..ending(None, &[exit(0, 143, true)]) }.state(), State::Stopped);
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
    assert_eq!((gone.state(), gone.code()), (State::Failed, Some(1)));
    let broken = JobResult { exits: vec![exit(0, 1, false, false)], ..gone.clone() };
    assert!(said(&broken).starts_with("rank 1 on b is gone"), "the other lost its connection to it");
    assert_eq!(broken.code(), Some(1));
    assert_eq!(said(&JobResult { started: 1, ..ending(&[]) }), "", "it never began: no rank caused that");
    assert_eq!(said(&JobResult { stopped: true, ..both.clone() }), "");
    let lost =
        JobResult { launcher: None, fault: Some("hmaster was gone".into()), ..ending(&[exit(1, 143, true, false)]) };
    assert_eq!((lost.state(), said(&lost)), (State::Lost, "hmaster was gone".into()));
}

#[test]
fn hints_name_what_ranks_wait_in_under_their_launcher() {
    let hint = |how: FailureKind, launcher: &Launcher| {
        RootCause { rank: 1, node: "b".into(), how }.hint(launcher).unwrap_or_default()
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
