//! Elastic jobs, whose nodes leave and join.

use crate::cluster::Cluster;
use crate::job::{Job, Method, Spec, each_kind, each_launcher, host};
use hvdctl::model::fault::Fault;
use hvdctl::record::JobState;
use rustix::process::Signal;

fn elastic(method: Method, min_ranks: u32, program: &str) -> Spec {
    Spec { min_ranks: Some(min_ranks), ..Spec::shell(method, program) }
}

/// A program that saves when it is asked to end, for longer than ranks have after a failure, and ends by itself in the
/// third attempt.
const SAVES: &str = "trap 'sleep 4; echo saved; exit 0' TERM; echo attempt $HVDCTL_RESTART
    [ $HVDCTL_RESTART = 2 ] || while :; do sleep 0.1; done";

#[test]
fn a_node_leaves_and_comes_back() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        // the third attempt, with both nodes again, ends by itself
        let program = "echo attempt $HVDCTL_RESTART; [ $HVDCTL_RESTART = 2 ] || exec sleep 300";
        let job = cluster.start(&elastic(method, 1, program));
        (0..2).for_each(|rank| job.until(rank, "attempt 0"));
        cluster.worker.signal(Signal::KILL);
        job.until(0, "attempt 1");
        let _again = cluster.start_worker_again();
        let end = job.end();
        assert_eq!((end.ending.state(), end.ending.ranks), (JobState::Succeeded, 2), "{}", end.all);
        assert_eq!(
            end.lines,
            [vec!["attempt 0", "attempt 1", "attempt 2"], vec!["attempt 0", "attempt 2"]],
            "{}",
            end.all
        );
        let [left, joined] = &end.restarts()[..] else { panic!("{:?}\n{}", end.restarts(), end.all) };
        assert!(
            left.starts_with("node2 left (")
                && left.ends_with("; the job continues with 1 of 2 ranks, which start again"),
            "{left}"
        );
        assert_eq!(joined, "node2 joined; the job continues with 2 of 2 ranks, which start again");
        assert!(end.attempts.is_empty(), "a node that leaves is no failed attempt: {:?}", end.attempts);
    });
}

#[test]
fn a_node_whose_worker_is_stopped_leaves_with_the_grace_period() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "trap 'sleep 4; echo saved; exit 0' TERM; echo attempt $HVDCTL_RESTART
            [ $HVDCTL_RESTART = 1 ] || while :; do sleep 0.1; done";
        let job = cluster.start(&elastic(method, 1, program));
        (0..2).for_each(|rank| job.until(rank, "attempt 0"));
        cluster.worker.signal(Signal::TERM);
        let end = job.end();
        assert_eq!((end.ending.state(), end.ending.ranks), (JobState::Succeeded, 1), "{}", end.all);
        assert_eq!(end.lines, [vec!["attempt 0", "saved", "attempt 1"], vec!["attempt 0", "saved"]], "{}", end.all);
        let left = "node2 left (its worker was stopped); the job continues with 1 of 2 ranks, which start again";
        assert_eq!(end.restarts(), [left], "{}", end.all);
    });
}

#[test]
fn a_drained_node_leaves_with_the_grace_period_and_joins_again() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&elastic(method, 1, SAVES));
        (0..2).for_each(|rank| job.until(rank, "attempt 0"));
        let mark = cluster.job_file(1, "drained");
        std::fs::write(&mark, "").unwrap();
        job.until(0, "attempt 1");
        std::fs::remove_file(mark).unwrap();
        let end = job.end();
        assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
        assert_eq!(end.lines[1], ["attempt 0", "saved", "attempt 2"], "{}", end.all);
        let [left, joined] = &end.restarts()[..] else { panic!("{:?}\n{}", end.restarts(), end.all) };
        assert_eq!(left, "node2 left (drained); the job continues with 1 of 2 ranks, which start again");
        assert_eq!(joined, "node2 joined; the job continues with 2 of 2 ranks, which start again");
    });
}

#[test]
fn a_node_that_is_drained_after_a_failure_has_no_ranks_of_the_next_attempt() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "echo attempt $HVDCTL_RESTART; [ $HVDCTL_RESTART = 0 ] || exit 0
            [ $RANK = 0 ] || exit 7; exec sleep 300";
        let job = cluster.start(&Spec { restarts: 1, ..elastic(method, 1, program) });
        job.until_holds("an attempt has failed", || job.file(0, "attempts.json").is_some());
        std::fs::write(cluster.job_file(1, "drained"), "").unwrap();
        let end = job.end();
        assert_eq!((end.ending.state(), end.ending.ranks), (JobState::Succeeded, 1), "{}", end.all);
        assert_eq!(end.lines, [vec!["attempt 0", "attempt 1"], vec!["attempt 0"]], "{}", end.all);
        let restarts = [
            "rank 1 on node2 ended with exit code 7; attempt 2 of 2 begins in 1 s",
            "node2 left (drained); the job continues with 1 of 2 ranks, which start again",
        ];
        assert_eq!(end.restarts(), restarts, "{}", end.all);
    });
}

#[test]
fn ranks_have_the_grace_period_when_a_node_joins() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&elastic(method, 1, SAVES));
        (0..2).for_each(|rank| job.until(rank, "attempt 0"));
        cluster.worker.signal(Signal::KILL);
        job.until(0, "attempt 1");
        let _again = cluster.start_worker_again();
        let end = job.end();
        assert_eq!(end.lines[0].last().map(String::as_str), Some("attempt 2"), "{}", end.all);
        assert_eq!(end.lines[0][end.lines[0].len() - 2], "saved", "{}", end.all);
    });
}

/// Adds the second node to a job, as `job/join.sh` does, and waits until the job supervisor has accepted it.
fn add_node(cluster: &Cluster, job: &Job<'_>) {
    let joining = cluster.job_file(0, "joining.json");
    let new = joining.with_extension("json.new");
    std::fs::write(&new, serde_json::to_string(&[host(1, 1)]).unwrap()).unwrap();
    std::fs::rename(&new, &joining).unwrap();
    job.until_holds("the node is accepted", || !joining.exists());
}

#[test]
fn a_node_that_is_added_joins_and_may_leave_again() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "echo attempt $HVDCTL_RESTART; [ $HVDCTL_RESTART = 3 ] || exec sleep 300";
        let job = cluster.start(&Spec { ranks: [1, 0], ..elastic(method, 1, program) });
        job.until(0, "attempt 0");
        add_node(&cluster, &job);
        (0..2).for_each(|rank| job.until(rank, "attempt 1"));
        // the same node once more changes nothing
        add_node(&cluster, &job);
        cluster.worker.signal(Signal::KILL);
        job.until(0, "attempt 2");
        let _again = cluster.start_worker_again();
        let end = job.end();
        assert_eq!((end.ending.state(), end.ending.ranks), (JobState::Succeeded, 2), "{}", end.all);
        let [joined, left, back] = &end.restarts()[..] else { panic!("{:?}\n{}", end.restarts(), end.all) };
        assert_eq!(joined, "node2 joined; the job continues with 2 of 2 ranks, which start again");
        assert!(
            left.starts_with("node2 left (")
                && left.ends_with("; the job continues with 1 of 2 ranks, which start again"),
            "{left}"
        );
        assert_eq!(back, joined);
    });
}

#[test]
fn a_list_of_added_nodes_that_cannot_be_read_adds_none() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "[ $HVDCTL_RESTART = 0 ] || exit 0; echo begun; exec sleep 300";
        let job = cluster.start(&Spec { ranks: [1, 0], ..elastic(method, 1, program) });
        job.until(0, "begun");
        // a file that cannot be read adds nothing
        let joining = cluster.job_file(0, "joining.json");
        std::fs::write(&joining, "[{").unwrap();
        job.until_holds("the file is taken", || !joining.exists());
        add_node(&cluster, &job);
        let end = job.end();
        assert_eq!((end.ending.state(), end.ending.ranks), (JobState::Succeeded, 2), "{}", end.all);
    });
}

#[test]
fn a_job_ends_what_is_left_on_an_added_node() {
    let cluster = Cluster::new();
    let job = cluster.start(&Spec { ranks: [1, 0], ..elastic(Method::Env, 1, "echo begun; exec sleep 300") });
    job.until(0, "begun");
    add_node(&cluster, &job);
    job.until(1, "begun");
    job.signal(Signal::TERM);
    job.until_worker_is_clean();
    let end = job.end();
    assert!(end.ending.stopped, "{}", end.all);
    assert!(!cluster.job_file(1, "env.json").exists(), "what may be secret is removed");
}

#[test]
fn a_rank_that_fails_on_its_own_ends_an_elastic_job() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let end = cluster.start(&elastic(method, 1, "[ $RANK = 1 ] || exec sleep 300; exit 7")).end();
        end.failed("rank 1 on node2 ended with exit code 7", 7);
        assert!(end.restarts().is_empty(), "{:?}", end.restarts());
    });
}

#[test]
fn too_few_nodes_end_an_elastic_job_after_its_time() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let spec = Spec { elastic_timeout: 1, ..elastic(method, 2, "echo begun; exec sleep 300") };
        let job = cluster.start(&spec);
        (0..2).for_each(|rank| job.until(rank, "begun"));
        cluster.worker.signal(Signal::KILL);
        let end = job.end();
        assert_eq!(end.ending.state(), JobState::Failed, "{}", end.all);
        assert_eq!(end.ending.fault, Some(Fault::TooFewRanks { ranks: 2, seconds: 1 }), "{}", end.all);
        let [waits] = &end.restarts()[..] else { panic!("{:?}", end.restarts()) };
        assert!(waits.ends_with("; the job has 1 of 2 ranks and waits 1 s for more"), "{waits}");
    });
}

#[test]
fn an_elastic_job_that_waits_for_nodes_can_be_stopped() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&elastic(method, 2, "echo begun; exec sleep 300"));
        (0..2).for_each(|rank| job.until(rank, "begun"));
        cluster.worker.signal(Signal::KILL);
        job.until_holds("the job waits", || job.file(0, "members.json").is_some_and(|text| text.contains("waits")));
        job.signal(Signal::TERM);
        let end = job.end();
        assert!(end.ending.stopped, "{}", end.all);
    });
}

#[test]
fn an_elastic_job_that_the_engine_stops_while_it_waits_for_nodes_has_failed() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let mut job = cluster.start(&elastic(method, 2, "echo begun; exec sleep 300"));
        (0..2).for_each(|rank| job.until(rank, "begun"));
        cluster.worker.signal(Signal::KILL);
        job.until_holds("the job waits", || job.file(0, "members.json").is_some_and(|text| text.contains("waits")));
        job.signal(Signal::USR1);
        assert_eq!(job.wait(), 1);
        let ending = job.ending();
        assert_eq!((ending.state(), ending.launcher), (JobState::Failed, Some(1)), "{ending:?}");
        assert_eq!(ending.fault, Some(Fault::ContainerStopped));
    });
}

/// A rank that counts, and ends with 0 when the file `goes-on` is in the directory of its job.
const COUNTS: &str = "i=0; while :; do i=$((i + 1)); echo $i; [ ! -e goes-on ] || exit 0; sleep 0.1; done";

fn in_place(min_ranks: u32, program: &str) -> Spec {
    Spec { in_place: true, ..elastic(Method::Gloo, min_ranks, program) }
}

/// Commands of a rank that wait until it is known to be kept: a failure before starts all ranks again.
fn until_kept(cluster: &Cluster) -> String {
    let world = cluster.dir().join("jobs/job-1/world.json");
    format!("until [ -e {} ]; do sleep 0.1; done", world.display())
}

/// Lets the ranks of both nodes end.
fn finish(cluster: &Cluster) {
    (0..2).for_each(|node| std::fs::write(cluster.job_file(node, "goes-on"), "").unwrap());
}

/// Returns the number of times that a rank has begun.
fn starts(lines: &[String]) -> usize {
    lines.iter().filter(|line| *line == "1").count()
}

#[test]
fn ranks_are_kept_while_a_node_leaves_and_comes_back() {
    let cluster = Cluster::new();
    let counts = format!("cd {}; {COUNTS}", cluster.dir().join("jobs/job-1").display());
    let job = cluster.start(&in_place(1, &counts));
    (0..2).for_each(|rank| job.until(rank, "5"));
    cluster.worker.signal(Signal::KILL);
    job.until_holds("the node leaves", || job.file(0, "members.json").is_some_and(|text| text.contains("left")));
    let _again = cluster.start_worker_again();
    job.until_holds("it returns", || job.file(0, "members.json").is_some_and(|text| text.contains("[\"node2\"]")));
    job.until_holds("its rank begins again", || starts(&job.lines(1)) == 2);
    finish(&cluster);
    let end = job.end();
    assert_eq!((end.ending.state(), end.ending.ranks), (JobState::Succeeded, 2), "{}", end.all);
    assert_eq!((starts(&end.lines[0]), starts(&end.lines[1])), (1, 2), "{}", end.all);
    let [left, joined] = &end.restarts()[..] else { panic!("{:?}\n{}", end.restarts(), end.all) };
    assert!(left.starts_with("node2 left (") && left.ends_with("continues in place with 1 of 2 ranks"), "{left}");
    assert_eq!(joined, "node2 joined; the job continues in place with 2 of 2 ranks");
}

#[test]
fn a_drained_node_leaves_and_the_other_ranks_are_kept() {
    let cluster = Cluster::new();
    let counts = format!("cd {}; {COUNTS}", cluster.dir().join("jobs/job-1").display());
    let job = cluster.start(&in_place(1, &counts));
    (0..2).for_each(|rank| job.until(rank, "5"));
    let mark = cluster.job_file(1, "drained");
    std::fs::write(&mark, "").unwrap();
    job.until_holds("its rank ends", || job.file(1, "states").is_some_and(|text| text.contains(" 1 x ")));
    std::fs::remove_file(mark).unwrap();
    job.until_holds("its rank begins again", || starts(&job.lines(1)) == 2);
    finish(&cluster);
    let end = job.end();
    assert_eq!((end.ending.state(), starts(&end.lines[0])), (JobState::Succeeded, 1), "{}", end.all);
    assert_eq!(
        end.restarts(),
        [
            "node2 left (drained); the job continues in place with 1 of 2 ranks",
            "node2 joined; the job continues in place with 2 of 2 ranks"
        ],
        "{}",
        end.all
    );
}

#[test]
fn a_rank_that_fails_is_replaced_and_the_third_failure_ends_a_job_that_needs_it() {
    let cluster = Cluster::new();
    let fails = format!("echo begun; [ $RANK = 1 ] || exec sleep 300; {}; sleep 1; exit 7", until_kept(&cluster));
    let end = cluster.start(&in_place(2, &fails)).end();
    end.failed("rank 1 on node2 ended with exit code 7", 7);
    assert_eq!(end.lines[0].len(), 1, "{}", end.all);
    assert_eq!(end.lines[1].len(), 3, "{}", end.all);
    assert!(
        end.restarts()[0].starts_with("node2 left (a rank there ended with exit code 7); "),
        "{:?}",
        end.restarts()
    );
}

#[test]
fn a_node_whose_ranks_do_not_start_leaves_and_after_the_third_time_for_long() {
    let cluster = Cluster::new();
    let counts = format!("cd {}; {COUNTS}", cluster.dir().join("jobs/job-1").display());
    let job = cluster.start(&Spec { start_timeout: 1, left_out: "1", ..in_place(1, &counts) });
    let left = || job.restarts().into_iter().filter(|line| line.starts_with("node2 left")).collect::<Vec<_>>();
    job.until_holds("the node leaves three times", || left().len() == 3);
    // it would be back after a second
    let steps = job.lines(0).len();
    job.until_holds("the job goes on", || job.lines(0).len() > steps + 30);
    let first =
        "node2 left (not all of its ranks had started within 1 s); the job continues in place with 1 of 2 ranks";
    assert_eq!(left(), [first; 3]);
    finish(&cluster);
    let end = job.end();
    assert_eq!(
        (end.ending.state(), end.ending.ranks, starts(&end.lines[0])),
        (JobState::Succeeded, 1, 1),
        "{}",
        end.all
    );
    assert!(end.lines[1].is_empty(), "{}", end.all);
}

#[test]
fn a_job_with_too_few_ranks_waits_in_place_for_its_time() {
    let cluster = Cluster::new();
    let spec = Spec { elastic_timeout: 2, ..in_place(2, "echo begun; exec sleep 300") };
    let mut job = cluster.start(&spec);
    (0..2).for_each(|rank| job.until(rank, "begun"));
    job.until_holds("the ranks are known to be kept", || job.file(1, "world.json").is_some());
    cluster.worker.signal(Signal::KILL);
    assert_eq!(job.wait(), 1);
    let ending = job.ending();
    assert_eq!(ending.fault, Some(Fault::TooFewRanks { ranks: 2, seconds: 2 }), "{ending:?}");
    assert_eq!((ending.state(), job.lines(0).len()), (JobState::Failed, 1), "{ending:?}");
}

#[test]
fn all_ranks_start_again_when_the_launcher_that_keeps_them_is_killed() {
    let cluster = Cluster::new();
    let program = "echo attempt $HVDCTL_RESTART; [ $HVDCTL_RESTART = 1 ] || exec sleep 300";
    let job = cluster.start(&in_place(1, program));
    (0..2).for_each(|rank| job.until(rank, "attempt 0"));
    job.until_holds("the ranks are known to be kept", || job.file(1, "world.json").is_some());
    // the others are its children
    let driver = job.launchers().into_iter().map(|process| process.pid).min_by_key(|pid| pid.as_raw_nonzero()).unwrap();
    rustix::process::kill_process(driver, Signal::KILL).unwrap();
    let end = job.end();
    assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
    assert_eq!(end.lines, [["attempt 0", "attempt 1"], ["attempt 0", "attempt 1"]], "{}", end.all);
    let [lost, again] = &end.restarts()[..] else { panic!("{:?}\n{}", end.restarts(), end.all) };
    assert!(lost.starts_with("the launcher exited with code 137 although no rank had failed; "), "{lost}");
    assert_eq!(again, "the job continues with 2 of 2 ranks, which start again");
}

#[test]
fn a_program_that_does_not_let_its_ranks_be_kept_starts_again() {
    let cluster = Cluster::new();
    let program = "echo attempt $HVDCTL_RESTART; [ $HVDCTL_RESTART = 1 ] || exec sleep 300";
    let mut job = cluster.start(&Spec { registers: false, ..in_place(1, program) });
    (0..2).for_each(|rank| job.until(rank, "attempt 0"));
    cluster.worker.signal(Signal::KILL);
    assert_eq!(job.wait(), 0);
    let ending = job.ending();
    assert_eq!((ending.state(), ending.ranks), (JobState::Succeeded, 1), "{ending:?}");
    assert_eq!(job.lines(0), ["attempt 0", "attempt 1"]);
}

#[test]
fn a_job_whose_ranks_are_kept_can_be_stopped_and_they_save() {
    let cluster = Cluster::new();
    let job = cluster.start(&in_place(1, "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"));
    (0..2).for_each(|rank| job.until(rank, "begun"));
    job.until_holds("the ranks are known to be kept", || job.file(1, "world.json").is_some());
    job.signal(Signal::TERM);
    let end = job.end();
    end.stopped([(0, true), (0, true)]);
    assert_eq!(end.lines, [["begun", "saved"], ["begun", "saved"]], "{}", end.all);
}

#[test]
fn a_program_that_fails_everywhere_is_not_started_again() {
    let cluster = Cluster::new();
    // all of them at the same moment: one may have started seconds before the other
    let shared = "touch /run/cluster/shared/$RANK; until [ -e /run/cluster/shared/0 -a -e /run/cluster/shared/1 ]";
    let fails = format!("echo begun; {}; {shared}; do sleep 0.1; done; sleep 1; exit 7", until_kept(&cluster));
    let end = cluster.start(&in_place(1, &fails)).end();
    assert_eq!((end.ending.state(), end.ending.code()), (JobState::Failed, Some(7)), "{}", end.all);
    assert!(end.ending.reason(&hvdctl::launch::placement::Placement::default()).is_some(), "{}", end.all);
    assert_eq!(end.lines, [["begun"], ["begun"]], "{}", end.all);
}
