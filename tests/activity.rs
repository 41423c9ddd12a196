//! `activity.py` as a rank's supervisor uses it, over what the kernel might say of its processes.

use std::process::Command;

/// Runs a script that has an `Activity` for a limit of 100 s, `used`, the ticks of each thread, and `passes`, which lets time go by and
/// says for how long nothing has been done.
#[track_caller]
fn python(mpi: bool, script: &str) -> String {
    let mpi = if mpi { "True" } else { "False" };
    let head = format!(
        "import sys
sys.dont_write_bytecode = True
sys.path.insert(0, {:?})
import activity
clock, used = [1000.0], {{7: 0, 8: 0, 9: 0}}
activity.TICK = 100
activity.time.monotonic = lambda: clock[0]
def fields(path):
    words = path.split('/')
    if int(words[2]) not in used: raise FileNotFoundError
    ticks = used[int(words[4])] if words[3] == 'task' else sum(used.values()) if words[2] == '7' else used[int(words[2])]
    return [b'S'] + [b'0'] * 10 + [b'%d' % ticks, b'0', b'0', b'0']
activity.fields = fields
activity.os.listdir = lambda path: list(used) if path == '/proc/7/task' else []
processes = [7]
activity.whole_family = lambda pid: list(processes)
seen = activity.Activity(100, {mpi})
def passes(seconds, writer=None, ended=None, **each):
    for _ in range(seconds):
        clock[0] += 1
        for thread, ticks in each.items():
            used[int(thread[1:])] += ticks
        seen.look(7, writer, ended)
    return round(clock[0] - seen.since)
",
        concat!(env!("CARGO_MANIFEST_DIR"), "/src/edge/scripts"),
    );
    let done = Command::new("python3").args(["-c", &(head + script)]).output().expect("python3");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn who_uses_no_processor_does_nothing() {
    let said = python(
        false,
        "passes(5, t7=100)
print(passes(60))
# whichever thread it is, and however little
print(passes(1, t8=1), passes(10))
# a loop of a shell that starts a program again and again
processes.append(9)
print(passes(1))
processes.pop()
print(passes(1), passes(1), passes(40))
# one that ended while it was looked at
used.pop(9), processes.append(9)
print(passes(1))
processes.pop(), used.update({9: 0})
print(passes(1), passes(40))
# it was frozen together with this: nobody knows what it would have done
clock[0] += 3000
print(passes(1), passes(40))",
    );
    assert_eq!(said, "60\n0 10\n0\n0 1 41\n0\n0 40\n0 40\n");
}

#[test]
fn horovods_own_threads_are_not_the_ranks_work() {
    let said = python(
        false,
        "passes(5, t7=100)
# 8 negotiates, 9 writes the timeline and has all that is left of a core
horovod = dict(writer=9, t8=36, t9=95)
print(passes(5, t8=36, t9=95))
passes(1, ended=clock[0], **horovod)
last = clock[0]
print(passes(50, ended=last, **horovod))
# an operation has ended, or the program's own thread did something, or others than Horovod's compute
print(passes(1, ended=clock[0], **horovod), passes(9, ended=clock[0], **horovod))
print(passes(1, ended=last, t7=1, **horovod), passes(9, ended=last, **horovod))
print(passes(1, ended=last, writer=9, t8=136, t9=1))
# and one whose timeline ended counts whole
print(passes(20, ended=last, **horovod), passes(5, t8=36, t9=95))",
    );
    assert_eq!(said, "0\n50\n1 9\n0 9\n0\n20 0\n");
}

#[test]
fn with_mpi_horovod_has_one_thread_that_never_rests() {
    let said = python(
        true,
        "passes(5, t7=100)
# 8 is Horovod's, 9 writes the timeline
horovod = dict(writer=9, t8=100, t9=95)
passes(1, ended=clock[0], **horovod)
last = clock[0]
print(passes(50, ended=last, **horovod))
# the program's own thread did something; another one does, though little and where Horovod has not much of a core; one more process
print(passes(1, ended=last, t7=1, **horovod), passes(9, ended=last, **horovod))
used[6] = 0
print(passes(2, ended=last, t6=2, **horovod), passes(2, ended=last, writer=9, t6=100, t8=2, t9=90), passes(9, ended=last, **horovod))
# a thread that has ended since, which only the process has counted
used[5] = 0
print(passes(1, ended=last, **horovod), passes(1, ended=last, t5=1, **horovod))
old = activity.by_thread
activity.by_thread = lambda processes: {thread: count for thread, count in old(processes).items() if thread != 5}
print(passes(1, ended=last, **horovod), passes(1, ended=last, t5=40, **horovod), passes(9, ended=last, **horovod))
processes.append(9)
print(passes(2, ended=last, **horovod))",
    );
    assert_eq!(said, "50\n0 9\n0 0 9\n10 11\n12 0 9\n0\n");
}

#[test]
fn with_gloo_only_rank_0_is_looked_at_and_others_may_wait_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/src/edge/scripts");
    for file in ["rank.py", "reap.py", "activity.py", "collectives.py"] {
        std::fs::copy(format!("{scripts}/{file}"), dir.path().join(file)).unwrap();
    }
    // a stall time may be followed by the margin; without it the record is an older hvdctl's
    let allowed = |rank: &str, size: &str, controller: &str, stall: &str| {
        let job = format!("import rank; print(rank.still_for({{'controller': '{controller}', 'stall': {stall}}}))");
        let mut command = Command::new("python3");
        command.current_dir(&dir).args(["-c", &job]).env("HOROVOD_RANK", rank).env("HOROVOD_SIZE", size);
        let done = command.output().expect("python3");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(allowed("0", "2", "gloo", "1800"), "2730.0\n");
    assert_eq!(allowed("1", "2", "gloo", "1800"), "None\n");
    assert_eq!(allowed("1", "2", "mpi", "1800"), "2730.0\n");
    assert_eq!(allowed("1", "2", "mpi", "1800, 'idle_margin': 30"), "2730.0\n");
    assert_eq!(allowed("1", "2", "mpi", "5, 'idle_margin': 3"), "10.5\n");
    assert_eq!(allowed("0", "1", "mpi", "1800"), "None\n", "nobody waits for it");
    assert_eq!(allowed("0", "2", "mpi", "0"), "None\n", "as long as it likes");
}
