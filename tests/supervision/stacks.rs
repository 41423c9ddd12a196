//! Where ranks were: recorded by their supervisors when something is wrong.

use crate::cluster::Cluster;
use crate::job::{Job, Method, Spec, each, each_kind};
use hvdctl::model::stack::{self, RankStack};
use hvdctl::record::frames::{Frame, FrameKind};
use rustix::process::Signal;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;

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

/// The program of ranks that hang, which the lab runs too.
const PROGRAM: &str = include_str!("hangs.py");

/// A kind of hang of `hangs.py`. In the texts, lines and times are left out.
#[derive(Debug, Clone, Copy)]
struct Hang {
    kind: &'static str,
    /// Where ranks are by their stacks, and by the kernel's view.
    places: [&'static str; 2],
    /// The beginning of the cause when rank 0 gives up.
    cause: &'static str,
}

const MISSING: &str = "rank 0 on node1 gave up waiting for the others; rank 1 on node2 ";
/// Where rank 0 is if nothing is known of another one.
const ALONE: [&str; 2] =
    ["rank 0 on node1 waits in all_reduce (hangs.py)", "rank 0 on node1 is waiting in accept4 for a connection"];

#[rustfmt::skip]
const HANGS: [Hang; 11] = [
    Hang { kind: "sleep", cause: MISSING, places: [
        "rank 0 on node1 waits in all_reduce (hangs.py); rank 1 on node2 is in sleep (hangs.py), sleeping in clock_nanosleep",
        "rank 1 on node2 is sleeping in clock_nanosleep; rank 0 on node1 is waiting in accept4 for a connection"] },
    Hang { kind: "data loader", cause: MISSING, places: [
        "rank 0 on node1 waits in all_reduce (hangs.py); rank 1 on node2 is in next_batch (hangs.py), waiting in read for data from a pipe",
        "rank 1 on node2 is waiting in read for data from a pipe; rank 0 on node1 is waiting in accept4 for a connection"] },
    Hang { kind: "busy loop", cause: MISSING, places: [
        "rank 0 on node1 waits in all_reduce (hangs.py); rank 1 on node2 is in compute (hangs.py), running",
        "rank 1 on node2 is running; rank 0 on node1 is waiting in accept4 for a connection"] },
    Hang { kind: "other branch", cause: MISSING, places: [
        "rank 1 on node2 waits in broadcast (hangs.py); rank 0 on node1 waits in all_reduce (hangs.py)",
        "ranks 0-1 on node[1-2] are waiting in accept4 for a connection"] },
    Hang { kind: "missing barrier", cause: MISSING, places: [
        "rank 0 on node1 waits in all_reduce (hangs.py); rank 1 on node2 is in train_on (hangs.py), running",
        "rank 1 on node2 is running; rank 0 on node1 is waiting in accept4 for a connection"] },
    Hang { kind: "shorter loop", places: ALONE,
        cause: "rank 1 on node2 ended with exit code 0 while the others waited for it" },
    Hang { kind: "lock", cause: MISSING, places: [
        "rank 0 on node1 waits in all_reduce (hangs.py); rank 1 on node2 is in lock_twice (hangs.py), waiting in futex for a lock or another thread",
        "rank 1 on node2 is waiting in futex for a lock or another thread; rank 0 on node1 is waiting in accept4 for a connection"] },
    Hang { kind: "pipe", cause: MISSING, places: [
        "rank 0 on node1 waits in all_reduce (hangs.py); rank 1 on node2 is in read_pipe (hangs.py), waiting in read for data from a pipe",
        "rank 1 on node2 is waiting in read for data from a pipe; rank 0 on node1 is waiting in accept4 for a connection"] },
    Hang { kind: "lost node", places: ALONE, cause: "rank 1 on node2 is gone: the worker there did not answer at the end" },
    Hang { kind: "stopped", cause: "rank 1 on node2 hung: it was stopped, and silent, for ", places: [
        "rank 0 on node1 waits in all_reduce (hangs.py); rank 1 on node2 is in stop (hangs.py), stopped by a signal (SIGSTOP)",
        "rank 1 on node2 is stopped by a signal (SIGSTOP); rank 0 on node1 is waiting in accept4 for a connection"] },
    Hang { kind: "rendezvous", cause: MISSING, places: [
        "rank 1 on node2 waits in init_process_group (hangs.py), waiting in connect for a connection to 127.0.0.1 port N; rank 0 on node1 waits in all_reduce (hangs.py)",
        "rank 1 on node2 is waiting in connect for a connection to 127.0.0.1 port N; rank 0 on node1 is waiting in accept4 for a connection"] },
];

/// Leaves out lines, times and ports.
fn without_numbers(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let is_port = words.last().is_some_and(|last| last == "port");
        let (word, end) = word.find([')', ';', ',']).map_or((word, ""), |at| word.split_at(at));
        let word = word.split_once(".py:").map_or(word.to_owned(), |(file, _)| format!("{file}.py"));
        words.push(if is_port { format!("N{end}") } else { word + end });
    }
    // "since 14 s"
    while let Some(at) = words.iter().position(|word| word == "since") {
        let end = words[at + 2].trim_start_matches('s').to_owned();
        words.drain(at..at + 3);
        words[at - 1] += &end;
    }
    words.join(" ")
}

/// The py-spy of this machine, if the tests are given one.
fn py_spy() -> Option<OsString> {
    env::var_os("HVDCTL_PY_SPY").filter(|path| !path.is_empty())
}

/// Runs ranks that hang until they have been read, and lets rank 0 give up.
fn hang(method: Method, hang: Hang) {
    let cluster = Cluster::new();
    if let Some(program) = py_spy() {
        symlink(program, cluster.dir().join("cluster/bin/py-spy")).unwrap();
    }
    fs::write(cluster.shared("hangs.py"), PROGRAM).unwrap();
    let command = ["python3", "/run/cluster/shared/hangs.py", hang.kind, "/run/cluster/shared/go"];
    // a rank that was stopped for a shorter time is not the reason that others give up
    let stall_warning = if hang.kind == "stopped" { 4 } else { 2 };
    let job = cluster.start(&Spec { stall_warning, ..Spec::command(method, &command) });
    let is_read = |index| !stacks(&job.frames(index)).is_empty();
    job.until_holds("rank 0 is read", || is_read(0));
    // a rank that runs is read at its end
    if !hang.places[1].contains("running") && hang.places[1] != ALONE[1] {
        job.until_holds("rank 1 is read", || is_read(1));
    }
    if hang.kind == "lost node" {
        cluster.worker.signal(Signal::KILL);
    } else {
        UnixStream::connect(cluster.shared("go")).unwrap();
    }
    let end = job.end();
    end.failed(hang.cause, 1);
    let mut found = stacks(&end.frames);
    if hang.places == ALONE {
        found.retain(|stack| stack.rank == 0);
    }
    let has_stacks = found.iter().all(|stack| stack.processes[0].failure.is_none());
    assert!(has_stacks || py_spy().is_none(), "{}", end.all);
    let is_loader = found.iter().any(|stack| stack::others_of(stack).iter().any(|other| other.contains("load (")));
    assert_eq!(is_loader, has_stacks && hang.kind == "data loader", "{}", end.all);
    let sentence = stack::sentence(&stack::groups(found), None).unwrap_or_default();
    assert_eq!(without_numbers(&sentence), hang.places[usize::from(!has_stacks)], "{}", end.all);
}

#[test]
fn each_kind_of_hang_is_told_from_the_others() {
    let few = HANGS.into_iter().filter(|hang| ["sleep", "other branch", "shorter loop"].contains(&hang.kind));
    let others = [Method::Gloo, Method::Mpi, Method::Torchrun];
    let of_others = others.into_iter().flat_map(|method| few.clone().map(move |hang| (method, hang)));
    let all = HANGS.into_iter().map(|hang| (Method::Env, hang)).chain(of_others);
    each(all, |(method, kind)| hang(method, kind));
}

#[test]
fn a_job_that_makes_progress_is_not_read() {
    let cluster = Cluster::new();
    let program = "print('ready', flush=True)\nwhile True:\n    print('step'); time.sleep(0.05)";
    let job = cluster.start(&Spec::python(Method::Env, program));
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

#[test]
fn a_rank_that_horovod_names_is_recorded_with_the_stack_of_the_one_that_says_so() {
    each([Method::Gloo, Method::Mpi], |method| {
        let cluster = Cluster::new();
        let program = "if rank == 0:
    print('One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting '
          'for remainder of ranks for more than 60 seconds. This may\\nMissing ranks:\\n1: [grad_a, grad_b]\\nstep 1: [2]',
          file=sys.stderr)
print('ready', flush=True)
time.sleep(1000)";
        let job = cluster.start(&Spec::python(method, program));
        job.until_ready();
        job.until_holds("rank 0 is read", || !stacks(&job.frames(0)).is_empty());
        job.signal(Signal::TERM);
        let end = job.end();
        let mut found = stacks(&end.frames);
        found.retain(|stack| stack.rank == 0);
        let sentence = stack::sentence(&stack::groups(found), None).unwrap_or_default();
        assert!(sentence.ends_with("for rank 1 (Horovod: grad_a, grad_b)"), "{sentence}{}", end.all);
    });
}
