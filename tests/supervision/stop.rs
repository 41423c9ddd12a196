//! Jobs that are asked to end.

use crate::cluster::Cluster;
use crate::job::{Spec, each, each_kind, each_launcher};
use hvdctl::launch::description::Warning;
use hvdctl::schedule::slurm::options::OWN_SIGNAL;
use rustix::process::Signal;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Ignores every request to end.
const STUBBORN: &str = "trap '' TERM INT HUP; echo ready; while :; do sleep 0.1; done";

#[test]
fn ranks_that_ignore_the_request_are_killed_after_the_grace_period() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        // with children, one of them in a session of its own
        let family = format!("setsid sleep 300 & sleep 300 & {STUBBORN}");
        let job = cluster.start(&Spec { grace: 1, ..Spec::shell(method, &family) });
        job.until_ready();
        job.signal(Signal::TERM);
        job.end().stopped([(137, true), (137, true)]);
    });
}

#[test]
fn a_second_request_ends_the_grace_period() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done";
        let job = cluster.start(&Spec { grace: 600, ..Spec::shell(method, program) });
        job.until_ready();
        job.signal(Signal::TERM);
        (0..2).for_each(|rank| job.until(rank, "asked"));
        job.signal(Signal::INT);
        job.end().stopped([(137, true), (137, true)]);
    });
}

#[test]
fn a_job_that_the_engine_stops_has_failed_and_gets_little_time() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&Spec { grace: 600, ..Spec::shell(method, STUBBORN) });
        job.until_ready();
        job.signal(Signal::USR1);
        let end = job.end();
        end.failed("its launcher's container was stopped", 1).ranks([(137, true), (137, true)]);
    });
}

#[test]
fn signals_for_ranks_within_an_allocation_reach_them_and_end_nothing() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "for name in 'SIGUSR1', 'SIGUSR2':
    signal.signal(getattr(signal, name), lambda number, _: print(signal.Signals(number).name, flush=True))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print('ready', flush=True)
while True: time.sleep(0.1)";
        let warning = Some(Warning { signal: 10, seconds: 1 });
        let job = cluster.start(&Spec { warning, ..Spec::python(method, program) });
        job.until_ready();
        // as `scancel --batch --signal=USR2`
        job.signal(Signal::USR2);
        (0..2).for_each(|rank| job.until(rank, "SIGUSR2"));
        // Slurm, some time before the limit
        let main = job.launching.main().unwrap().as_raw_nonzero().to_string();
        let sent = Command::new("kill").args([&format!("-{OWN_SIGNAL}"), &main]).status().unwrap();
        assert!(sent.success());
        (0..2).for_each(|rank| job.until(rank, "SIGUSR1"));
        job.end().failed("Slurm's time limit was reached", 1).ranks([(0, true), (0, true)]);
    });
}

#[test]
fn a_checkpoint_is_saved_with_the_help_of_the_programs_own_processes() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let program = "import multiprocessing
def save(*_):
    print('saved', helper.is_alive(), flush=True)
    helper.kill()
    sys.exit(0)
helper = multiprocessing.Process(target=time.sleep, args=(300,))
helper.start()
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
while True: time.sleep(1)";
        let job = cluster.start(&Spec::python(method, program));
        job.until_ready();
        job.signal(Signal::TERM);
        let end = job.end();
        end.stopped([(0, true), (0, true)]);
        assert_eq!(end.lines, [["ready", "saved True"]; 2], "{}", end.all);
    });
}

/// A program that saves when it is asked to, inside a shell.
const TRAINING: &str = "python3 -c \"import signal, sys, time
def save(*_): print('saved', flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
time.sleep(300)\"; true";

#[test]
fn a_training_gets_the_signal_although_its_shell_exits_at_once() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&Spec::shell(method, TRAINING));
        job.until_ready();
        job.signal(Signal::TERM);
        let end = job.end();
        end.stopped([(143, true), (143, true)]);
        assert_eq!(end.lines, [["ready", "saved"]; 2], "{}", end.all);
    });
}

#[test]
fn a_training_gets_the_signal_although_its_shell_waits_for_it_with_a_trap() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&Spec::shell(method, &format!("trap 'echo cleaned' TERM; {TRAINING}")));
        job.until_ready();
        job.signal(Signal::TERM);
        let end = job.end();
        end.stopped([(0, true), (0, true)]);
        assert_eq!(end.lines, [["ready", "saved", "cleaned"]; 2], "{}", end.all);
    });
}

#[test]
fn a_shell_that_cleans_up_has_its_grace_period_even_if_other_ranks_exit_earlier() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        // rank 1 fails at once; rank 0 ends when its test requests it
        let go = cluster.shared("go");
        let program = "trap '[ $RANK = 1 ] || until [ -e /run/cluster/shared/go ]; do sleep 0.05; done
            echo saved; exit $((RANK * 143))' TERM; echo ready; sleep 300 & wait";
        let job = cluster.start(&Spec::shell(method, program));
        job.until_ready();
        job.signal(Signal::TERM);
        job.until(1, "saved");
        job.until_holds("rank 1 has ended", || job.file(1, "states").is_some_and(|states| states.contains(" 1 x ")));
        fs::write(go, "").unwrap();
        let end = job.end();
        end.stopped([(0, true), (143, true)]);
        assert_eq!(end.lines, [["ready", "saved"]; 2], "{}", end.all);
    });
}

#[test]
fn a_job_that_is_asked_to_end_while_it_starts_leaves_nothing() {
    each_launcher(|method| {
        // the launcher has just been started, its connections are made, ranks start
        each([0, 100, 200, 300], |moment| {
            let cluster = Cluster::new();
            let job = cluster.start(&Spec::shell(method, "exec sleep 300"));
            job.until_holds("the launcher runs", || !job.launchers().is_empty());
            thread::sleep(Duration::from_millis(moment));
            job.signal(Signal::TERM);
            assert!(job.end().ending.stopped);
        });
    });
}

#[test]
fn orphaned_processes_are_ended_even_without_the_jobs_environment() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let go = cluster.shared("go");
        // its own session, its own environment, and both with its parent gone
        let program = "setsid sleep 9711 & env -i setsid sleep 9712 & (env -i setsid sh -c 'sleep 9713; true' &)
            echo ready; until [ -e /run/cluster/shared/go-$RANK ]; do sleep 0.05; done; echo left";
        let job = cluster.start(&Spec::shell(method, program));
        job.until_ready();
        let left_on = |node: &crate::cluster::Node| {
            let all = node.processes().into_iter().map(|process| process.arguments);
            let mut sleeping: Vec<String> = all.filter(|words| words.starts_with("sleep 971")).collect();
            sleeping.sort_unstable();
            sleeping
        };
        for node in [&job.launching, &cluster.worker] {
            job.until_holds("all of them run", || left_on(node).len() == 3);
        }
        // while the job goes on: a process without the mark could not be found later
        fs::write(go.with_file_name("go-0"), "").unwrap();
        job.until_holds("the unmarked ones are ended", || left_on(&job.launching) == ["sleep 9711"]);
        assert_eq!(left_on(&cluster.worker).len(), 3, "those of the rank that still runs");
        fs::write(go.with_file_name("go-1"), "").unwrap();
        let end = job.end();
        end.ranks([(0, false), (0, false)]);
        assert_eq!((end.ending.launcher, &end.lines), (Some(0), &vec![vec!["ready".into(), "left".to_owned()]; 2]));
    });
}
