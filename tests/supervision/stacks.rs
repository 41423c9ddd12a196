//! Where ranks were: recorded by their supervisors when something is wrong.

use crate::cluster::Cluster;
use crate::job::{Job, Method, Spec, each, each_kind};
use hvdctl::model::stack::{self, RankStack};
use hvdctl::record::frames::{Frame, FrameKind};
use rustix::process::Signal;
use std::fs;

/// The stacks in the log of a job, with the nodes of ranks.
fn stacks(frames: &[Frame]) -> Vec<RankStack> {
    let read = |frame: &Frame| match &frame.kind {
        FrameKind::Stack(stack) => Some(RankStack { node: format!("node{}", frame.rank + 1), ..(**stack).clone() }),
        _ => None,
    };
    frames.iter().filter_map(read).collect()
}

/// Lets rank 0 fail a second after both ranks are ready, when the other one hangs.
fn fail(job: &Job<'_>, cluster: &Cluster) {
    job.until_ready();
    fs::write(cluster.shared("go"), "").unwrap();
}

const FAILS: &str = "if rank == 0:
    while not os.path.exists('/run/cluster/shared/go'): time.sleep(0.05)
    time.sleep(1)
    os._exit(7)
";

#[test]
fn when_a_rank_fails_it_is_recorded_where_the_others_are() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = format!("print('ready', flush=True)\n{FAILS}time.sleep(1000)");
        let job = cluster.start(&Spec::python(method, &program));
        fail(&job, &cluster);
        let end = job.end();
        end.failed("rank 0 on node1 ended with exit code 7", 7);
        let found = stacks(&end.frames);
        let [one] = &found[..] else { panic!("{found:?}{}", end.all) };
        assert_eq!(
            (one.rank, one.processes[0].does.as_deref()),
            (1, Some("sleeping in clock_nanosleep")),
            "{}",
            end.all
        );
        assert!(end.lines[1] == ["ready"] && one.processes[0].command.starts_with("python3 -c"), "{}", end.all);
    });
}

/// Kinds of ranks that hang: Python for rank 1, and what is recorded of it.
const HANGS: [(&str, &str, &str); 7] = [
    ("asleep", "time.sleep(1000)", "rank 1 on node2 is sleeping in clock_nanosleep"),
    ("a pipe", "os.read(os.pipe()[0], 1)", "rank 1 on node2 is waiting in read for data from a pipe"),
    (
        "a lock",
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        "rank 1 on node2 is waiting in futex for a lock or another thread",
    ),
    (
        "a lock on a file",
        "import fcntl\nfiles = [open('/run/cluster/shared/lock', 'w') for _ in range(2)]\nfor file in files: \
         fcntl.flock(file, fcntl.LOCK_EX)",
        "rank 1 on node2 is waiting in flock for a lock on /run/cluster/shared/lock",
    ),
    (
        "a child",
        "import subprocess\nsubprocess.call(['sleep', '1000'])",
        "rank 1 on node2 is sleeping in clock_nanosleep",
    ),
    (
        "a peer",
        "import socket\nlistener = socket.socket()\nlistener.bind(('127.0.0.1', 0))\nlistener.listen(1)\nlistener.accept()",
        "rank 1 on node2 is waiting in accept4 for a connection",
    ),
    ("a loop", "while True: pass", "rank 1 on node2 is running"),
];

#[test]
fn each_kind_of_hang_is_told_from_the_others() {
    each(HANGS, |(kind, program, expected)| {
        let cluster = Cluster::new();
        let program = format!("print('ready', flush=True)\n{FAILS}{program}");
        let job = cluster.start(&Spec::python(Method::Env, &program));
        fail(&job, &cluster);
        let end = job.end();
        let found = stacks(&end.frames);
        let sentence = stack::sentence(&stack::groups(found), None).unwrap_or_default();
        assert_eq!(sentence, expected, "{kind}{}", end.all);
    });
}

#[test]
fn a_job_that_makes_progress_is_not_read() {
    let cluster = Cluster::new();
    let job = cluster.start(&Spec::python(Method::Env, "print('ready', flush=True)\nwhile True: time.sleep(0.05)"));
    job.until_ready();
    job.signal(Signal::TERM);
    let end = job.end();
    assert_eq!(stacks(&end.frames), [], "{}", end.all);
}

#[test]
fn ranks_without_progress_are_read_once() {
    let cluster = Cluster::new();
    let program =
        "print('ready', flush=True)\nif rank: time.sleep(1000)\nwhile True:\n    print('step'); time.sleep(0.2)";
    let job = cluster.start(&Spec { stall_warning: 2, ..Spec::python(Method::Env, program) });
    job.until_ready();
    job.until_holds("rank 1 is reported", || !job.waits().is_empty());
    job.until_holds("rank 1 is read", || !stacks(&job.frames(1)).is_empty());
    job.signal(Signal::TERM);
    let end = job.end();
    let found = stacks(&end.frames);
    assert_eq!(found.iter().map(|one| one.rank).collect::<Vec<_>>(), [1], "{}", end.all);
    assert!(found[0].quiet >= 2, "{}", end.all);
}
