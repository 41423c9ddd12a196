//! Elastic jobs, whose nodes leave and join.

use crate::cluster::Cluster;
use crate::job::{Job, Method, Spec, each_launcher, host};
use hvdctl::record::JobState;
use rustix::process::Signal;

fn elastic(method: Method, min_ranks: u32, program: &str) -> Spec {
    Spec { min_ranks: Some(min_ranks), ..Spec::shell(method, program) }
}

/// A program that saves when it is asked to end, for longer than ranks have after a failure, and ends by itself in the third attempt.
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
        assert!(left.starts_with("node2 left (") && left.ends_with("; the job continues with 1 of 2 ranks"), "{left}");
        assert_eq!(joined, "node2 joined; the job continues with 2 of 2 ranks");
        assert!(end.attempts.is_empty(), "a node that leaves is no failed attempt: {:?}", end.attempts);
    });
}

#[test]
fn a_drained_node_leaves_with_the_grace_period_and_joins_again() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&elastic(method, 1, SAVES));
        (0..2).for_each(|rank| job.until(rank, "attempt 0"));
        let mark = cluster.dir().join("node2/.drained@test");
        std::fs::write(&mark, "").unwrap();
        job.until(0, "attempt 1");
        std::fs::remove_file(mark).unwrap();
        let end = job.end();
        assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
        assert_eq!(end.lines[1], ["attempt 0", "saved", "attempt 2"], "{}", end.all);
        let [left, joined] = &end.restarts()[..] else { panic!("{:?}\n{}", end.restarts(), end.all) };
        assert_eq!(left, "node2 left (drained); the job continues with 1 of 2 ranks");
        assert_eq!(joined, "node2 joined; the job continues with 2 of 2 ranks");
    });
}

#[test]
fn ranks_have_the_grace_period_when_a_node_joins() {
    each_launcher(|method| {
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
    each_launcher(|method| {
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
        assert_eq!(joined, "node2 joined; the job continues with 2 of 2 ranks");
        assert!(left.starts_with("node2 left (") && left.ends_with("; the job continues with 1 of 2 ranks"), "{left}");
        assert_eq!(back, joined);
    });
}

#[test]
fn a_list_of_added_nodes_that_cannot_be_read_adds_none() {
    each_launcher(|method| {
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
    each_launcher(|method| {
        let cluster = Cluster::new();
        let end = cluster.start(&elastic(method, 1, "[ $RANK = 1 ] || exec sleep 300; exit 7")).end();
        end.failed("rank 1 on node2 ended with exit code 7", 7);
        assert!(end.restarts().is_empty(), "{:?}", end.restarts());
    });
}

#[test]
fn too_few_nodes_end_an_elastic_job_after_its_time() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let spec = Spec { elastic_timeout: 1, ..elastic(method, 2, "echo begun; exec sleep 300") };
        let job = cluster.start(&spec);
        (0..2).for_each(|rank| job.until(rank, "begun"));
        cluster.worker.signal(Signal::KILL);
        let end = job.end();
        assert_eq!(end.ending.state(), JobState::Failed, "{}", end.all);
        assert_eq!(end.ending.fault.as_deref(), Some("it had fewer than 2 ranks for 1 s"), "{}", end.all);
        let [waits] = &end.restarts()[..] else { panic!("{:?}", end.restarts()) };
        assert!(waits.ends_with("; the job has 1 of 2 ranks and waits 1 s for more"), "{waits}");
    });
}

#[test]
fn an_elastic_job_that_waits_for_nodes_can_be_stopped() {
    each_launcher(|method| {
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
