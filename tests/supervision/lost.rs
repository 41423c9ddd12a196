//! Processes, connections and nodes that are lost during a job.

use crate::cluster::Cluster;
use crate::job::{Method, Spec, each_kind, each_launcher};
use hvdctl::record::JobState;
use rustix::process::Signal;
use std::fs;

/// Says when it is asked to end.
const POLITE: &str = "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done";

#[test]
fn a_rank_supervisor_that_is_killed_leaves_nothing_and_its_rank_is_named() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&Spec::shell(method, "trap '' TERM; echo ready; while :; do sleep 0.05; done"));
        job.until_ready();
        let supervisors = cluster.worker.named("hvdctl-rank");
        assert_eq!(supervisors.len(), 1, "{supervisors:?}");
        supervisors[0].signal(Signal::KILL);
        let end = job.end();
        end.failed("rank 1 on node2 is gone; how it ended is unknown", 137);
        assert_eq!(end.rank(0), (137, true), "{}", end.all);
    });
}

#[test]
fn ranks_end_by_themselves_when_the_job_supervisor_is_killed() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let mut job = cluster.start(&Spec::shell(method, POLITE));
        job.until_ready();
        job.signal(Signal::KILL);
        job.wait();
        job.until_worker_is_clean();
        job.until(1, "saved");
        let states = job.file(1, "states").unwrap();
        assert!(states.lines().last().unwrap().ends_with(" 1 x 3 asked"), "{states}");
        assert_eq!(job.file(0, "result.json"), None, "no process was left to write it");
    });
}

#[test]
fn ranks_end_by_themselves_when_their_connection_breaks() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&Spec::shell(method, POLITE));
        job.until_ready();
        // the sessions' processes; with MPI the daemon continues, and does not notice
        let sessions = cluster.worker.others().into_iter().filter(|process| process.name == "sshd");
        sessions.for_each(|session| session.signal(Signal::KILL));
        let end = job.end();
        end.ranks([(3, true), (3, true)]);
        assert_eq!((end.ending.launcher, end.ending.silent.len()), (Some(1), 0), "{}", end.all);
        assert!(end.lines.iter().all(|lines| lines == &["ready", "saved"]), "{}", end.all);
    });
}

#[test]
fn a_node_dies_during_a_job() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&Spec::shell(method, POLITE));
        job.until_ready();
        cluster.worker.signal(Signal::KILL);
        let end = job.end();
        let silence = "ssh: connect to host 127.0.0.2 port 12345: Connection refused";
        let reason = format!("rank 1 on node2 is gone: the worker there did not answer at the end: {silence}");
        end.failed(&reason, 1);
        assert_eq!(end.ending.silent, ["node2"]);
        assert_eq!(end.rank(0), (3, true), "{}", end.all);
    });
}

/// Saves for longer than ranks have after a failure.
const SAVES: &str = "trap 'sleep 4; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done";

#[test]
fn ranks_save_when_a_worker_is_stopped_and_the_job_names_it() {
    each_launcher(|method| {
        let mut cluster = Cluster::new();
        let job = cluster.start(&Spec::shell(method, SAVES));
        job.until_ready();
        // as `docker stop`
        cluster.worker.signal(Signal::TERM);
        let end = job.end();
        end.failed("the worker of node2 was stopped or killed", 1);
        assert!(end.lines.iter().all(|lines| lines == &["ready", "saved"]), "{}", end.all);
        end.ranks([(0, true), (0, true)]);
        assert_eq!(cluster.worker.wait(), Some(0), "it has waited for them and has not been killed");
    });
}

#[test]
fn ranks_save_when_the_sshd_of_a_worker_is_killed() {
    each_launcher(|method| {
        let mut cluster = Cluster::new();
        let job = cluster.start(&Spec::shell(method, SAVES));
        job.until_ready();
        cluster.worker.sshd().expect("an sshd").signal(Signal::KILL);
        let end = job.end();
        end.failed("the worker of node2 was stopped or killed", 1);
        assert!(end.lines.iter().all(|lines| lines == &["ready", "saved"]), "{}", end.all);
        assert_eq!(cluster.worker.wait(), Some(137));
    });
}

#[test]
fn a_job_that_may_restart_does_so_when_a_worker_is_stopped() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "echo attempt $HVDCTL_RESTART; [ $HVDCTL_RESTART = 0 ] || exit 0
            trap 'sleep 4; echo saved; exit 0' TERM; while :; do sleep 0.1; done";
        let job = cluster.start(&Spec { restarts: 1, ..Spec::shell(method, program) });
        (0..2).for_each(|rank| job.until(rank, "attempt 0"));
        cluster.worker.signal(Signal::TERM);
        let end = job.end();
        assert_eq!((end.ending.state(), end.ending.ranks), (JobState::Succeeded, 1), "{}", end.all);
        assert_eq!(end.lines, [vec!["attempt 0", "saved", "attempt 1"], vec!["attempt 0", "saved"]], "{}", end.all);
        let first = &end.restarts()[0];
        assert!(first.starts_with("the worker of node2 was stopped or killed"), "{first}");
    });
}

#[test]
fn a_node_that_does_not_answer_from_the_start() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        cluster.worker.signal(Signal::KILL);
        let end = cluster.start(&Spec::shell(method, POLITE)).end();
        let reason = "rank 1 on node2 is gone: the worker there did not answer at the end: ssh: connect to host ";
        end.failed(reason, 1);
        // without a launcher that attempts all nodes first, the rank of the other one may have started
        let most = u32::from(matches!(method, Method::Torchrun | Method::Env));
        assert!(end.ending.state() == JobState::Failed && end.ending.started <= most, "{}", end.all);
    });
}

#[test]
fn a_node_that_stops_answering_is_lost_and_its_ranks_end_by_themselves() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let mut job = cluster.start(&Spec::shell(method, POLITE));
        job.until_ready();
        let sshd = cluster.worker.named("sshd");
        sshd.iter().for_each(|process| process.signal(Signal::STOP));
        fs::write(cluster.shared("hurry"), "").unwrap();
        job.signal(Signal::TERM);
        let code = job.wait();
        let end = job.ending();
        assert_eq!((code, end.stopped, &end.silent[..]), (143, true, &["node2".to_owned()][..]), "{end:?}");
        assert_eq!(end.silence["node2"], "Connection timed out during banner exchange");
        // the connections are closed now, and node2 hears of it
        sshd.iter().for_each(|process| process.signal(Signal::CONT));
        job.until_worker_is_clean();
        job.until(1, "saved");
    });
}
