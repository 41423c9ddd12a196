//! Ranks that fail, hang, or never start.

use crate::cluster::Cluster;
use crate::job::{Method, Spec, each, each_kind, each_launcher};
use hvdctl::inventory::{Controller, LauncherName};
use hvdctl::launch::launcher;
use hvdctl::launch::programs::{ON_EVERY_NODE, RANK_SUPERVISOR};
use hvdctl::node::network::alone;
use hvdctl::record::JobState;
use hvdctl::record::frames::FrameKind;
use hvdctl::record::places::at_end;
use rustix::process::Signal;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

#[test]
fn the_rank_that_failed_is_named_and_the_others_get_little_time() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        // the grace period is for a request to end
        let program = "trap '' TERM INT HUP; echo ready
            [ $RANK = 0 ] || { until [ -e /run/cluster/shared/go ]; do sleep 0.05; done; exit 7; }
            while :; do sleep 0.1; done";
        let job = cluster.start(&Spec { grace: 600, ..Spec::shell(method, program) });
        job.until_ready();
        fs::write(cluster.shared("go"), "").unwrap();
        let end = job.end();
        end.failed("rank 1 on node2 ended with exit code 7", 7).ranks([(137, true), (7, false)]);
    });
}

#[test]
fn the_others_save_though_their_launcher_knows_of_the_failure() {
    each_launcher(|method| {
        each([0, 1], |culprit: u32| {
            let cluster = Cluster::new();
            let program = format!(
                "def save(*_):
    print('saved', flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
while not os.path.exists('/run/cluster/shared/go') or rank != {culprit}: time.sleep(0.05)
os._exit(7)"
            );
            let job = cluster.start(&Spec::python(method, &program));
            job.until_ready();
            fs::write(cluster.shared("go"), "").unwrap();
            let end = job.end();
            let node = culprit + 1;
            end.failed(&format!("rank {culprit} on node{node} ended with exit code 7"), 7);
            let other = 1 - culprit;
            assert_eq!((end.rank(other), end.rank(culprit)), ((0, true), (7, false)), "{}", end.all);
            assert_eq!(end.lines[other as usize], ["ready", "saved"], "{}", end.all);
        });
    });
}

#[test]
fn a_killed_rank_is_the_root_cause_though_its_streams_are_held_and_others_fail_because_of_it() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let program = "[ $RANK = 1 ] || { sleep 300 & for i in $(seq 30); do echo line $i; done; kill -9 $$; }
            until [ -e /run/cluster/shared/go ]; do sleep 0.05; done; exit 1";
        let job = cluster.start(&Spec::shell(method, &format!("trap '' TERM\n{program}")));
        job.until_holds("rank 0 has ended", || job.file(0, "states").is_some_and(|states| states.contains(" 0 x ")));
        fs::write(cluster.shared("go"), "").unwrap();
        let end = job.end();
        end.failed("rank 0 on node1 was killed by signal 9", 137);
        assert_eq!(end.rank(0), (137, false), "{}", end.all);
        assert_eq!(end.lines[0], (1..=30).map(|i| format!("line {i}")).collect::<Vec<_>>(), "{}", end.all);
    });
}

#[test]
fn the_rank_that_another_one_gave_up_waiting_for_is_the_root_cause() {
    let gave_up = "rank 0 on node1 gave up waiting for the others; rank 1 on node2";
    // it had lost a connection, too, and went on
    let sleeps = "echo 'RuntimeError: Connection closed by peer' >&2; exec sleep 300";
    // it computes, in a child process and in its own, and is not seen to wait
    let busy = "while :; do :; done";
    each_kind(|method| {
        each([(sleeps, true), (busy, false)], |(program, is_asleep): (&str, bool)| {
            let cluster = Cluster::new();
            let program = format!(
                "[ $RANK = 1 ] && {{ {program}; }}; sleep 8
                echo 'RuntimeError: [/pair.cc:78] Timed out waiting 5000ms for recv operation to complete' >&2; exit 3"
            );
            let end = cluster.start(&Spec::shell(method, &program)).end();
            let does = if is_asleep { "had made no progress for" } else { "was still running" };
            end.failed(&format!("{gave_up} {does}"), 3);
            let said = end.ending.reason(&end.placement).unwrap();
            assert_eq!(said.contains(" s: sleeping in clock_nanosleep"), is_asleep, "{said}");
            // where both were is in the result
            let places = at_end(&end.ending, &end.placement).unwrap_or_default();
            let sleeps = places.contains("rank 1 on node2 is sleeping in clock_nanosleep since");
            assert_eq!((places.contains("rank 1 on node2"), sleeps), (true, is_asleep), "{places}{}", end.all);
        });
    });
}

#[test]
fn a_rank_that_ended_with_0_is_the_root_cause_though_another_one_fails() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "[ $RANK = 1 ] && exit 0; sleep 3
            echo 'RuntimeError: [/pair.cc:561] Connection closed by peer [127.0.0.1]:14216.'; exit 1";
        let end = cluster.start(&Spec::shell(method, program)).end();
        let reason = end.ending.reason(&end.placement).unwrap_or_default();
        assert!(reason.starts_with("rank 1 on node2 ended with exit code 0 while"), "{reason}{}", end.all);
    });
}

#[test]
fn a_stopped_rank_hangs() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "if [ $RANK = 0 ]; then touch /run/cluster/shared/go; exec sleep 300; fi
            until [ -e /run/cluster/shared/go ]; do sleep 0.05; done; kill -STOP $$";
        let job = cluster.start(&Spec { stall: 1, ..Spec::shell(method, program) });
        let end = job.end();
        end.failed("rank 1 on node2 hung: it was stopped, and silent, for ", 137).ranks([(143, true), (137, false)]);
        assert_eq!(end.ending.hung.len(), 1, "{}", end.all);
    });
}

#[test]
fn a_rank_that_sleeps_is_named_before_the_one_that_waits_for_it() {
    each_kind(|method| {
        let cluster = Cluster::new();
        // a launcher may start one of them seconds before the other, so they begin together; then the one waits as
        // PyTorch waits in an
        // operation: it yields without end
        let program = "
open('/run/cluster/shared/%d' % rank, 'w').close()
while not os.path.exists('/run/cluster/shared/%d' % (1 - rank)):
    print('the other starts', flush=True)
    time.sleep(0.05)
if rank == 1: time.sleep(300)
while True: os.sched_yield()";
        let end = cluster.start(&Spec { stall: 3, idle_margin: 2, ..Spec::python(method, program) }).end();
        end.failed("rank 1 on node2 hung: it was idle and wrote nothing for ", 143);
    });
}

#[test]
fn a_rank_that_waits_is_reported_once_and_goes_on() {
    each_kind(|method| {
        let cluster = Cluster::new();
        // as for a license: the kernel wakes nothing until there is one
        let program = "
if rank == 1: open('/run/cluster/shared/license').close()
while not os.path.exists('/run/cluster/shared/go'):
    print('works', flush=True)
    time.sleep(0.2)";
        let license = cluster.shared("license");
        assert!(Command::new("mkfifo").arg(&license).status().unwrap().success());
        let job = cluster.start(&Spec { stall_warning: 3, ..Spec::python(method, program) });
        // the line in the log comes first
        let is_recorded = || job.file(1, "idle.1").is_some_and(|text| text.ends_with('\n'));
        job.until_holds("rank 1 is reported", || !job.waits().is_empty() && is_recorded());
        let recorded = job.file(1, "idle.1").unwrap_or_default();
        assert!(recorded.ends_with(" waiting in openat for a file to open\n"), "{recorded:?}");
        // another report would follow with one of the next samples
        thread::sleep(Duration::from_secs(2));
        fs::write(&license, "").unwrap();
        job.until_holds("rank 1 goes on", || job.waits().len() > 1 && job.file(1, "idle.1").is_none());
        let waits = job.waits();
        fs::write(cluster.shared("go"), "").unwrap();
        let end = job.end();
        end.ranks([(0, false), (0, false)]);
        assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
        let expected = [(1, "waiting in openat for a file to open".to_owned()), (1, "goes on".to_owned())];
        assert_eq!(waits, expected, "{}", end.all);
    });
}

#[test]
fn a_rank_that_is_stopped_is_reported_until_it_is_continued() {
    let cluster = Cluster::new();
    let program = "until_there() { until [ -e /run/cluster/shared/$1 ]; do sleep 0.1; done; }
        [ $RANK = 0 ] || { { until_there continue; kill -CONT $$; } & kill -STOP $$; }
        until [ -e /run/cluster/shared/go ]; do echo works; sleep 0.1; done";
    let job = cluster.start(&Spec { stall_warning: 2, ..Spec::shell(Method::Env, program) });
    let stopped = (1, "stopped by a signal (SIGSTOP)".to_owned());
    job.until_holds("rank 1 is reported", || job.waits() == [stopped.clone()]);
    fs::write(cluster.shared("continue"), "").unwrap();
    job.until_holds("rank 1 goes on", || job.waits() == [stopped.clone(), (1, "goes on".to_owned())]);
    fs::write(cluster.shared("go"), "").unwrap();
    job.end().ranks([(0, false), (0, false)]);
}

#[test]
fn ranks_without_connections_to_each_other_are_recorded() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let spec = Spec { isolated_after: 1, ..Spec::shell(method, "echo ready; exec sleep 300") };
        let job = cluster.start(&spec);
        job.until_holds("both ranks are isolated", || job.isolated().len() == 2);
        job.signal(Signal::TERM);
    });
}

#[test]
fn a_timeline_of_the_users_own_is_all_that_there_is() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let spec = Spec { stall: 60, ..Spec::shell(method, "env | grep -c ^HOROVOD_TIMELINE; exit 0") };
        let end = cluster.start(&spec).end();
        assert_eq!(end.lines, [["0"], ["0"]], "{}", end.all);
    });
}

#[test]
fn a_high_exit_code_is_no_signal() {
    each_kind(|method| {
        each([129, 200, 255], |code: i32| {
            let cluster = Cluster::new();
            let program = format!("[ $RANK = 1 ] || exec sleep 300; exit {code}");
            let end = cluster.start(&Spec::shell(method, &program)).end();
            end.failed(&format!("rank 1 on node2 ended with exit code {code}"), code.into());
        });
    });
}

#[test]
fn a_program_that_cannot_be_started() {
    each_kind(|method| {
        // the codes are those of shells and `docker run`; the job directory's log cannot be executed
        let programs = [
            ("no-such-program", 127, "cannot start no-such-program: No such file or directory"),
            (
                "./log",
                126,
                "cannot start ./log: Permission denied: it is not executable, and has no first line #!, which names \
                 its interpreter",
            ),
        ];
        each(programs, |(program, code, error): (&str, i32, &str)| {
            let cluster = Cluster::new();
            let spec = Spec { ranks: [0, 1], ..Spec::command(method, &[program]) };
            let end = cluster.start(&spec).end();
            let reason = format!("rank 0 on node2 ended with exit code {code} (could not be started)");
            end.failed(&reason, code.into());
            let broken = |kind: &FrameKind| matches!(kind, FrameKind::Broken(failure) if failure.to_string() == error);
            assert!(end.frames.iter().any(|frame| broken(&frame.kind)), "{}", end.all);
        });
    });
}

#[test]
fn the_python_that_the_image_has_runs_the_default_command() {
    let bin = tempfile::tempdir().unwrap();
    let python = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(python.stdout).unwrap();
    std::os::unix::fs::symlink(python.trim(), bin.path().join("python3")).unwrap();
    let env = format!("{{\"PATH\": {:?}}}", bin.path().display().to_string());
    each([true, false], |default_command| {
        let cluster = Cluster::new();
        let spec = Spec::command(Method::Gloo, &["python", "-c", "print('started')"]);
        let end = cluster.start(&Spec { default_command, env: env.clone(), ..spec }).end();
        let of_kind = |wanted: FrameKind| end.frames.iter().filter(|frame| frame.kind == wanted).count();
        if default_command {
            assert_eq!(
                (end.ending.state(), &end.lines[1][..]),
                (JobState::Succeeded, &["started".to_owned()][..]),
                "{}",
                end.all
            );
            assert_eq!(of_kind(FrameKind::Substituted("python3".into())), 1, "{}", end.all);
        } else {
            let error = "cannot start python: No such file or directory: the image has python3";
            let broken = |kind: &FrameKind| matches!(kind, FrameKind::Broken(failure) if failure.to_string() == error);
            assert!(end.frames.iter().any(|frame| broken(&frame.kind)), "{}", end.all);
        }
    });
}

#[test]
fn a_rank_that_never_starts_fails_the_job_and_its_node_is_named() {
    // without a launcher hvdctl starts each of them
    each([Method::Gloo, Method::Mpi, Method::Torchrun], |method| {
        let cluster = Cluster::new();
        let spec = Spec { start_timeout: 1, left_out: "1", ..Spec::shell(method, "exec sleep 300") };
        let end = cluster.start(&spec).end();
        let fault = end.ending.fault.as_ref().map(ToString::to_string).unwrap_or_default();
        // where this machine is slow, rank 0 may be late, too
        assert!(fault.starts_with("not all ranks had started within 1 s: "), "{fault}{}", end.all);
        assert!(fault.ends_with("0 of 1 on node2"), "{fault}{}", end.all);
        assert_eq!((end.ending.state(), end.ending.launcher), (JobState::Failed, Some(1)), "{}", end.all);
    });
}

#[test]
fn a_launcher_that_is_killed_ends_the_job() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let job = cluster.start(&Spec::shell(method, "echo ready; exec sleep 300"));
        job.until_ready();
        // the first of its processes: with Gloo it has one more for each rank
        let launcher = job.launchers().into_iter().min_by_key(|process| process.pid.as_raw_nonzero());
        // a busy machine: the job supervisor polls only after a rank has ended because the launcher was gone
        job.signal(Signal::STOP);
        launcher.expect("a launcher").signal(Signal::KILL);
        let states = || job.file(0, "states").unwrap_or_default();
        job.until_holds("rank 0 ends", || states().contains(" x 143 "));
        thread::sleep(Duration::from_millis(300));
        job.signal(Signal::CONT);
        let end = job.end();
        end.ranks([(143, true), (143, true)]);
        assert_eq!((end.ending.state(), end.ending.launcher), (JobState::Failed, Some(137)), "{}", end.all);
    });
}

#[test]
fn a_rank_that_starts_after_the_end_of_its_job_fails_nothing() {
    // the launcher was late with it: the reaper has removed the environment
    let dir = tempfile::tempdir().unwrap();
    for (_, name, text) in ON_EVERY_NODE {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let job = r#"{"command": ["true"], "grace": 600, "ulimits": {}, "stall": 0}"#;
    let place = alone();
    let launcher =
        launcher(LauncherName::Horovodrun, Controller::Gloo).rank_description(&place, place.address).to_string();
    fs::write(dir.path().join("job.json"), job).unwrap();
    fs::write(dir.path().join("launcher.json"), launcher).unwrap();
    let mut rank = Command::new("python3");
    rank.arg(dir.path().join(RANK_SUPERVISOR)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut rank = rank.spawn().unwrap();
    // it would keep its end from a launcher that still waits for others
    drop(rank.stdout.take());
    let done = rank.wait_with_output().unwrap();
    assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stderr).as_ref()), (Some(143), ""));
}
