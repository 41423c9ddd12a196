//! Jobs that are started again after a failure.

use crate::cluster::Cluster;
use crate::job::{Spec, each_kind, each_launcher};
use hvdctl::record::JobState;
use rustix::process::Signal;

#[test]
fn a_failed_job_is_restarted_from_its_checkpoint() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let program = "echo try $HVDCTL_RESTART; [ $RANK = 1 ] || exec sleep $((300 * (1 - HVDCTL_RESTART)))
            if [ -e checkpoint ]; then echo resumed; else touch checkpoint; exit 7; fi";
        let end = cluster.start(&Spec { restarts: 3, ..Spec::shell(method, program) }).end();
        end.ranks([(0, false), (0, false)]);
        assert_eq!((end.ending.state(), end.ending.started), (JobState::Succeeded, 2), "{}", end.all);
        assert_eq!(end.lines[1], ["try 0", "try 1", "resumed"], "{}", end.all);
        assert_eq!(end.attempts.len(), 1, "{}", end.all);
        let [first] = &end.attempts[..] else { panic!("{:?}", end.attempts) };
        assert!(first.exits.iter().any(|exit| (exit.rank, exit.code) == (1, 7)), "{first:?}");
        assert_eq!(end.restarts(), ["rank 1 on node2 ended with exit code 7; attempt 2 of 4 begins in 1 s"]);
    });
}

#[test]
fn a_job_that_never_succeeds_ends_with_its_last_failure() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "[ $RANK = 0 ] || exec sleep 300; exit 9";
        let end = cluster.start(&Spec { restarts: 1, ..Spec::shell(method, program) }).end();
        end.failed("rank 0 on node1 ended with exit code 9", 9);
        assert_eq!(end.attempts.len(), 1, "{}", end.all);
    });
}

#[test]
fn a_job_that_is_stopped_between_two_attempts_is_not_restarted() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&Spec { restarts: 1000, ..Spec::shell(method, "exit 9") });
        job.until_holds("an attempt has failed", || job.file(0, "attempts.json").is_some());
        job.signal(Signal::TERM);
        let end = job.end();
        assert!(end.ending.stopped, "{}", end.all);
        // each was to be followed by another one
        assert_eq!(end.restarts().len(), end.attempts.len(), "{}", end.all);
    });
}

#[test]
fn a_restarted_job_continues_without_a_lost_node() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let program = "echo try $HVDCTL_RESTART; [ $HVDCTL_RESTART = 0 ] || exit 0; exec sleep 300";
        let job = cluster.start(&Spec { restarts: 2, ..Spec::shell(method, program) });
        (0..2).for_each(|rank| job.until(rank, "try 0"));
        cluster.worker.signal(Signal::KILL);
        let end = job.end();
        assert_eq!((end.ending.state(), end.ending.ranks), (JobState::Succeeded, 1), "{}", end.all);
        assert_eq!(end.lines, [vec!["try 0", "try 1"], vec!["try 0"]], "{}", end.all);
        assert_eq!((end.attempts.len(), &end.attempts[0].silent[..]), (1, &["node2".to_owned()][..]), "{}", end.all);
        let [failed, without] = &end.restarts()[..] else { panic!("{}", end.all) };
        assert!(
            failed.starts_with("rank 1 on node2 is gone") && failed.ends_with("attempt 2 of 3 begins in 1 s"),
            "{failed}"
        );
        assert_eq!(without, "node2 did not answer: 1 rank on the other nodes");
    });
}
