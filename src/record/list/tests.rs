//! Jobs from lines of their files.

use super::*;
use crate::launch::placement::Share;
use crate::record::Scheduled;

fn record(id: &str, created: f64) -> Record {
    let share = |node: &str, first| Share { node: node.into(), ranks: 1, first, ..Share::default() };
    Record {
        id: id.into(),
        cluster: "lab".into(),
        name: "digits".into(),
        project: Some("digits".into()),
        operator: "ana@desk".into(),
        created,
        placement: Placement { shares: vec![share("a", 0), share("b", 1)], ..Placement::default() },
        command: vec!["python".into(), "a:b.py".into()],
        cwd: "/workspace".into(),
        ..Record::default()
    }
}

#[test]
fn a_job_has_the_nodes_that_were_added_to_it() {
    let grown = lines("j1", 1.0, 0);
    let mut record = record("j1", 1.0);
    record.placement.shares.pop();
    let earlier = format!("./j1/job.json:{}\n", serde_json::to_string(&record).unwrap());
    for nodes in [[("a", &earlier), ("b", &grown)], [("a", &grown), ("b", &earlier)]] {
        assert_eq!(listed("lab", &nodes, &[], 1.0)[0].nodes, ["a", "b"]);
    }
}

/// The jobs of a cluster whose nodes have these files, and these launchers that are up.
pub fn listed(cluster: &str, nodes: &[(&str, &String)], launchers: &[&str], now: f64) -> Vec<Job> {
    let mut stored = StoredJobs::new();
    nodes.iter().for_each(|(node, text)| add(&mut stored, node, text));
    for launcher in launchers {
        stored.entry((*launcher).to_owned()).or_default().container = Some("its id".into());
    }
    jobs(cluster, stored, &nodes.iter().map(|(node, _)| *node).collect::<Vec<_>>(), now)
}

/// The files of a job of two ranks, one on each of two nodes.
pub fn lines(id: &str, created: f64, started: u32) -> String {
    let json = serde_json::to_string(&record(id, created)).unwrap();
    format!("./{id}/job.json:{json}\n{}", starts(id, started))
}

/// The starts of so many ranks of a job.
fn starts(id: &str, ranks: u32) -> String {
    (0..ranks).map(|rank| format!("./{id}/states:1.0 {rank} s \n")).collect()
}

#[test]
fn the_state_of_a_job_follows_from_its_records() {
    let (text, none) = (lines("j1", 1000.0, 1), lines("j1", 1000.0, 0));
    let both = [("a", &text), ("b", &text)];
    let state = |nodes: &[(&str, &String)], launchers: &[&str], now| listed("lab", nodes, launchers, now)[0].state;
    assert_eq!(state(&both, &["j1"], 5000.0), Some(JobState::Running));
    assert_eq!(state(&[("a", &text), ("b", &none)], &["j1"], 5000.0), Some(JobState::Starting));
    // the rank of a role that was started again is the same one
    let twice = text.clone() + &starts("j1", 1);
    assert_eq!(state(&[("a", &twice), ("b", &none)], &["j1"], 5000.0), Some(JobState::Starting));
    assert_eq!(state(&both, &["other"], 5000.0), Some(JobState::Lost), "no launcher, no result");
    assert_eq!(state(&[("a", &none), ("b", &none)], &[], 1010.0), Some(JobState::Starting), "it is being prepared");
    assert_eq!(state(&both, &[], 1010.0), Some(JobState::Lost), "its ranks had started");
    assert_eq!(
        listed("lab", &both, &[], 1010.0)[0].reason.as_deref(),
        Some("its launcher on a is gone, and no result was recorded")
    );
    assert_eq!(state(&both[1..], &[], 5000.0), None, "the node that knows is away");
    assert!(listed("other", &both, &[], 0.0).is_empty(), "another cluster's in the same directory");
}

#[test]
fn a_job_under_slurm_has_the_state_that_slurm_gives_it_until_it_has_a_result() {
    let entry =
        |state: &str| QueueEntry { job: "7".into(), state: state.into(), reason: None, submitted: None, start: None };
    let job = |is_placed: bool, started: u32, is_up: bool, queue: Option<QueueEntry>| {
        let record = Record { scheduled: Some(Scheduled { is_placed, is_own: false }), ..record("j1", 1000.0) };
        let json = serde_json::to_string(&record).unwrap();
        let mut stored = StoredJobs::new();
        add(&mut stored, "login", &format!("./j1/job.json:{json}\n{}", starts("j1", started)));
        let files = stored.get_mut("j1").unwrap();
        (files.container, files.queue) = (is_up.then(|| "its id".into()), queue);
        let job = jobs("lab", stored, &["login"], 5000.0).remove(0);
        (job.state.unwrap(), job.reason)
    };
    assert_eq!(job(false, 0, true, Some(entry("PENDING"))).0, JobState::Queued);
    assert_eq!(job(true, 0, true, Some(entry("RUNNING"))).0, JobState::Starting);
    assert_eq!(job(true, 2, true, Some(entry("PENDING"))).0, JobState::Queued, "in the queue again");
    assert_eq!(job(true, 2, true, Some(entry("RUNNING"))).0, JobState::Running);
    let (state, reason) = job(true, 2, false, Some(entry("PREEMPTED")));
    assert_eq!((state, reason.as_deref()), (JobState::Failed, Some("Slurm preempted it for another job")));
    assert_eq!(job(false, 0, false, Some(entry("CANCELLED"))).0, JobState::Stopped);
    assert_eq!(job(true, 2, false, Some(entry("COMPLETED"))).0, JobState::Lost, "it has recorded no result");
    assert_eq!(job(true, 2, false, None).0, JobState::Lost);
}

#[test]
fn what_slurm_had_not_said_is_what_it_says_later() {
    let job = |fault: Fault, is_up: bool, state: Option<&str>| {
        let record = Record { scheduled: Some(Scheduled { is_placed: true, is_own: false }), ..record("j1", 1000.0) };
        let json = serde_json::to_string(&record).unwrap();
        let result = JobResult { launcher: Some(1), ..JobResult::ended_by(fault, 1060.0) };
        let result = serde_json::to_string(&result).unwrap();
        let mut stored = StoredJobs::new();
        add(&mut stored, "login", &format!("./j1/job.json:{json}\n./j1/result.json:{result}\n"));
        let files = stored.get_mut("j1").unwrap();
        files.container = is_up.then(|| "its id".into());
        files.queue = state.map(|state| QueueEntry {
            job: "7".into(),
            state: state.into(),
            reason: None,
            submitted: None,
            start: None,
        });
        let job = jobs("lab", stored, &["login"], 5000.0).remove(0);
        (job.state.unwrap(), job.reason.unwrap_or_default(), job.ended)
    };
    let unknown = "it was asked to end; Slurm did not answer why";
    for state in [None, Some("COMPLETED")] {
        let (state, reason, ended) = job(Fault::EndNotKnown, false, state);
        assert_eq!((state, reason.as_str(), ended), (JobState::Failed, unknown, Some(1060.0)));
    }
    let (state, reason, ended) = job(Fault::EndNotKnown, false, Some("NODE_FAIL"));
    assert_eq!((state, reason.as_str(), ended), (JobState::Failed, "a node of its allocation failed", Some(1060.0)));
    assert_eq!(job(Fault::EndNotKnown, false, Some("CANCELLED")).0, JobState::Stopped);
    let (state, _, ended) = job(Fault::EndNotKnown, true, Some("PENDING"));
    assert_eq!((state, ended), (JobState::Queued, None), "it is in the queue again");
    assert_eq!(job(Fault::TimeLimit, false, Some("CANCELLED")).1, "Slurm's time limit was reached");
    let preempted = |state: &str| job(Fault::Preempted { requeues: Some(true) }, true, Some(state)).0;
    assert_eq!(["PENDING", "COMPLETING"].map(preempted), [JobState::Queued, JobState::Failed]);
}

#[test]
fn a_running_job_has_its_ranks_without_progress() {
    let (text, none) = (lines("j1", 1000.0, 1), lines("j1", 1000.0, 1));
    let waits = format!("{text}./j1/idle.1:1000 waiting in read for data from /a:b\n./j1/idle.0:\n./j1/idle.x:1 a\n");
    let idle = |launchers: &[&str]| listed("lab", &[("a", &none), ("b", &waits)], launchers, 5000.0)[0].idle.clone();
    let does = "waiting in read for data from /a:b".to_owned();
    assert_eq!(idle(&["j1"]), [IdleRank { rank: 1, role: None, node: "b".into(), since: 1000.0, does }]);
    assert_eq!(idle(&[]), [], "it is over");
    // where it is, by its stack
    let stack =
        "{\"rank\":0,\"quiet\":9,\"left_out\":0,\"processes\":[{\"pid\":0,\"command\":\"\",\"does\":\"in: here\"}]}";
    let places = |text: &String| listed("lab", &[("a", &none), ("b", text)], &["j1"], 5000.0)[0].places.clone();
    assert_eq!(places(&waits), None);
    assert_eq!(places(&format!("{waits}./j1/place.1:{stack}\n")).as_deref(), Some("rank 1 on b is in: here"));
    assert_eq!(places(&format!("{waits}./j1/place.1:{{\n./j1/place.x:{stack}\n")), None);
    // of a node that shares the directory of the one that was asked; a rank can create others
    let shared = format!("./j1/states:1.0 1 s \n./j1/nodes/c7/idle.1:1000 sleeping\n./j1/nodes/c7/place.1:{stack}\n");
    let forged = "./j1/nodes/\u{1b}[2J/idle.0:1 a\n./j1/nodes/c7/x/idle.0:1 a\n./j1/nodes/c7/result.json:{}\n";
    let job = &listed("lab", &[("login", &format!("{text}{shared}{forged}"))], &["j1"], 5000.0)[0];
    let idle: Vec<(u32, &str)> = job.idle.iter().map(|idle| (idle.rank, &*idle.node)).collect();
    assert_eq!((idle, job.places.as_deref()), (vec![(1, "c7")], Some("rank 1 on c7 is in: here")));
}

#[test]
fn an_ended_job_has_its_result() {
    let ending = r#"{"ended": 1060.5, "launcher": 1, "stopped": false, "ranks": 2, "started": 2, "silent": [],
        "exits": [{"rank": 1, "node": "b", "code": 7, "time": 1060.0, "asked": false}]}"#;
    let text = format!("{}./j1/result.json:{}\nnoise\n./x/y/z:1\n", lines("j1", 1000.0, 1), ending.replace('\n', ""));
    let jobs = listed("lab", &[("a", &text)], &[], 5000.0);
    let job = &jobs[0];
    assert_eq!((job.state, job.code, job.ended, job.ranks), (Some(JobState::Failed), Some(7), Some(1060.5), 2));
    assert_eq!(job.first_failure.as_ref().unwrap().node, "b");
    assert_eq!(job.reason.as_deref(), Some("rank 1 on b ended with exit code 7"));
    assert!(job.is_over() && job.launcher() == "a");
}

#[test]
fn a_restarted_job_has_its_attempts_and_may_have_lost_ranks() {
    let attempts = r#"[{"started": 1000.0, "ended": 1060.5, "ranks": 2, "launcher": 1, "silent": ["b"],
        "exits": [{"rank": 1, "node": "b", "code": 7, "time": 1060.0, "asked": false}]}]"#;
    let text = format!("{}./j1/attempts.json:{}\n", lines("j1", 1000.0, 1), attempts.replace('\n', ""));
    let running = &listed("lab", &[("a", &text)], &["j1"], 5000.0)[0];
    assert_eq!((running.state, running.attempts[0].exits[0].code), (Some(JobState::Running), 7));
    let ending = r#"{"ended": 1090.5, "launcher": 0, "stopped": false, "started": 1, "silent": ["b"], "ranks": 1,
        "exits": [{"rank": 0, "node": "a", "code": 0, "time": 1090.0, "asked": false}]}"#;
    let text = format!("{text}./j1/result.json:{}\n", ending.replace('\n', ""));
    assert_eq!(listed("lab", &[("a", &text)], &[], 5000.0)[0].state, Some(JobState::Succeeded), "with one rank");
}

#[test]
fn a_record_that_was_cut_off_hides_no_other() {
    let text = format!("./j1/job.json:{{\"id\": \"j1\n{}", lines("j2", 1000.0, 0));
    let jobs = listed("lab", &[("a", &text)], &[], 5000.0);
    assert_eq!(
        jobs.iter().map(|job| (job.id.as_str(), job.has_record())).collect::<Vec<_>>(),
        [("j2", true), ("j1", false)]
    );
}

#[test]
fn a_job_whose_record_cannot_be_read_may_run_until_its_end_is_stored() {
    let id = "20261121-101500-4f2a";
    let file = |name: &str, text: &str| format!("./{id}/{name}:{text}\n");
    let newer = file("job.json", r#"{"format":9,"cluster":"lab","name":"digits","operator":"ana@desk"}"#);
    let open = format!("{newer}{}", file("env.json", ""));
    let one = |text: &String, launchers: &[&str]| {
        let jobs = listed("lab", &[("b", text)], launchers, 5000.0);
        let [job] = &jobs[..] else { panic!("{jobs:?}") };
        job.clone()
    };
    let job = one(&open, &[]);
    assert_eq!(
        (job.state, job.is_over(), job.has_record(), job.launcher),
        (Some(JobState::Unreadable), false, false, None)
    );
    assert_eq!((job.name.as_str(), job.operator.as_str(), &job.nodes), ("digits", "ana@desk", &vec!["b".to_owned()]));
    assert_eq!((stamp(job.started).as_str(), job.ended), ("2026-11-21T10:15:00Z", None));
    let in_milliseconds = open.replace("\"name\"", "\"created\":1795262584000,\"name\"");
    assert_eq!(one(&in_milliseconds, &[]).started, job.started);
    assert_eq!([stamp(1e300), stamp(-1.0)], ["9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"]);
    let newer_format = "written by a newer hvdctl (format 9); this one reads up to 1";
    assert_eq!(job.reason, Some(format!("its record cannot be read: {newer_format}")));
    assert_eq!(
        (one(&newer, &[id]).is_over(), one(&newer, &[]).is_over()),
        (false, true),
        "its launcher is up; nothing is left"
    );
    // no record at all, one of several lines, and one that does not show its cluster
    assert_eq!(one(&file("env.json", ""), &[]).reason.as_deref(), Some("its record cannot be read: empty or missing"));
    assert_eq!(one(&(file("job.json", "{") + &file("job.json", "\"format\": 9}")), &[]).reason, job.reason);
    assert!(listed("other", &[("b", &open)], &[], 5000.0).is_empty(), "another cluster's");
    // its end
    let stopped = one(&(open.clone() + &file("result.json", r#"{"ended": 1060.5, "stopped": true}"#)), &[]);
    assert_eq!((stopped.state, stopped.ended, stopped.is_over()), (Some(JobState::Stopped), Some(1060.5), true));
    let ended = one(&(open + &file("result.json", r#"{"format": 9}"#)), &[]);
    assert_eq!((ended.state, ended.ended, ended.is_over()), (Some(JobState::Unreadable), None, true));
    // a record that can be read goes before one that cannot
    let (good, bad) = (lines("j1", 1000.0, 0), "./j1/job.json:\n".to_owned());
    for nodes in [[("a", &bad), ("b", &good)], [("a", &good), ("b", &bad)]] {
        assert_eq!(listed("lab", &nodes, &[], 1010.0)[0].state, Some(JobState::Starting));
    }
    let ended = format!("{good}./j1/result.json:{{\"format\": 9}}\n");
    let ended = &listed("lab", &[("a", &ended)], &[], 1010.0)[0];
    assert_eq!((ended.state, ended.is_over(), ended.has_record()), (Some(JobState::Unreadable), true, true));
    assert_eq!(ended.reason, Some(format!("its result cannot be read: {newer_format}")));
}
