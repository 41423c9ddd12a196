//! `activity.py` as a rank supervisor uses it: how it classifies counters of the kernel, and real processes.

use std::process::Command;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/programs");

/// Runs a script that has the module `activity` and `sample`, which creates a sample of a rank's processes: the ticks
/// of the first threads, how many of these in the kernel, the times that they went on after a sleep, the ticks of each
/// other thread, bytes and pages. A second has 100 ticks.
#[track_caller]
fn python(script: &str) -> String {
    let head = format!(
        "import sys, time
sys.dont_write_bytecode = True
sys.path[:0] = [{SCRIPTS:?} + '/supervisor', {SCRIPTS:?}]
import activity
activity.TICK = 100
Sample = activity.Sample
def sample(first=0, wakings=0, others=(), more=0, stuck=False, kernel=0, io=0, faults=0, processes=(7,)):
    one = object.__new__(Sample)
    one.processes, one.first, one.wakings, one.in_kernel = list(processes), first, wakings, stuck
    one.kernel, one.io, one.faults = kernel, io, faults
    one.others = dict(enumerate(others, 8))
    one.total = first + sum(others) + more
    return one
def judge(mpi=False, **after):
    # in ten seconds
    others = [0] * len(after.get('others', ()))
    found = activity.judge(sample(others=others, stuck=after.get('stuck', False)), sample(**after), 10, mpi)
    print((found or b'progress').decode(), end=' ')
",
    );
    let done = Command::new("python3").args(["-c", &(head + script)]).output().expect("python3");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn kernel_counters_classify_a_rank() {
    let said = python(
        "judge()
judge(stuck=True)
judge(first=1, wakings=20)
judge(first=2, wakings=20)
judge(others=[10])
# Horovod's threads under Gloo, with a program that sleeps, polls, computes; and more than they take
judge(others=[360])
judge(others=[200, 160], first=30, wakings=9000)
judge(others=[360], first=900, wakings=9000)
judge(others=[200, 160], first=30, wakings=500)
judge(others=[700], first=30, wakings=9000)
judge(others=[30], first=30, wakings=9000, io=1 << 20)
# a first thread that yields, reads, gets memory, computes
judge(others=[30], first=960, kernel=600)
judge(others=[30], first=960, kernel=600, io=1 << 20)
judge(others=[30], first=960, kernel=600, faults=3000)
judge(others=[30], first=960, kernel=20)",
    );
    assert_eq!(
        said,
        "blocked kernel blocked progress blocked blocked waiting progress progress progress progress waiting progress \
         progress progress "
    );
}

#[test]
fn with_mpi_one_thread_of_horovods_never_rests() {
    let said = python(
        "judge(True, others=[1000])
judge(True, others=[1000, 0], first=30, wakings=9000)
# another thread works, though little; and one that has ended since, which only the process has counted
judge(True, others=[1000, 20])
judge(True, others=[1000], more=40)",
    );
    assert_eq!(said, "blocked waiting progress progress ");
}

#[test]
fn progress_restarts_the_idle_time() {
    let said = python(
        "clock, now = [1000.0], [sample()]
activity.time.monotonic = lambda: clock[0]
activity.Sample = lambda pid: now[0]
tracked = activity.Activity(100, False)
def passes(seconds, **uses):
    for _ in range(seconds):
        clock[0] += 1
        if uses:
            now[0] = sample(**{name: getattr(now[0], name) + used if name == 'first' else used for name, used in \
            uses.items()})
        tracked.sample(7)
    shown = clock[0] - tracked.idle_since(clock[0])
    assert shown in (0, clock[0] - tracked.since), shown
    print(round(shown), end=' ')
passes(1)
passes(59)
passes(1, first=50), passes(10)
# a loop of a shell that starts a program again and again
passes(1, processes=(7, 9)), passes(1, processes=(7,)), passes(1), passes(40)
# one that ended while it was sampled
def gone(pid): raise FileNotFoundError
activity.Sample, before = gone, activity.Sample
passes(1)
activity.Sample = before
passes(1), passes(40)
# this process was suspended too, so the sample is void
clock[0] += 3000
passes(1), passes(40)",
    );
    assert_eq!(said, "0 59 0 10 0 0 1 41 0 0 40 0 40 ");
}

#[test]
fn a_gpu_that_computes_is_progress() {
    let dir = tempfile::tempdir().unwrap();
    let said = python(
        &format!(
            "import os
dir = {:?}
os.environ['PATH'] = dir + os.pathsep + os.environ['PATH']
def answers(script):
    with open(dir + '/nvidia-smi', 'w') as file: file.write('#!/bin/sh\\n' + script + '\\n')
    os.chmod(dir + '/nvidia-smi', 0o755)
    gpus = activity.Gpus()
    first = gpus.compute()
    if gpus.child and script != 'sleep 60': gpus.child.wait()
    print(first, gpus.compute(), end=' ')
    return gpus
print(activity.Gpus().compute(), end=' ') if not activity.shutil.which('nvidia-smi') else print(False, end=' ')
answers('echo 0; echo 97')
answers('echo 0; echo 0')
answers('echo NVIDIA-SMI has failed; exit 9')
hangs = answers('exec sleep 60')
hangs.asked -= activity.GPU_TIME + 1
print(hangs.compute(), hangs.child.wait(), end=' ')",
            dir.path()
        )
        .replace("script != 'sleep 60'", "'sleep' not in script"),
    );
    assert_eq!(said, "False False True False False False False False False False -9 ");
}

#[test]
fn real_processes_are_distinguished() {
    const EXPECTED: [&str; 6] = ["waiting", "blocked", "progress", "blocked", "waiting", "progress"];
    // a thread that negotiates as the library's does, in a program that waits for an operation, sleeps, or computes
    let outcome = || {
        python(
            "import subprocess
activity.TICK = activity.os.sysconf('SC_CLK_TCK')
head = 'import threading, time\\ndef polls():\\n while True: time.sleep(0.001)\\nthreading.Thread(target=polls, \
daemon=True).start()\\n'
programs = [head + 'polls()', head + 'threading.Event().wait()', head + 'while True: pass', 'import time; \
time.sleep(60)',
    'import os\\nwhile True: os.sched_yield()', 'import os\\nwhile True: open(\"/dev/zero\", \"rb\").read(1 << 16)']
children = [subprocess.Popen([sys.executable, '-c', program]) for program in programs]
time.sleep(1)
before, began = [activity.Sample(child.pid) for child in children], time.monotonic()
time.sleep(2)
after = [activity.Sample(child.pid) for child in children]
seconds = time.monotonic() - began
for child, one, other in zip(children, before, after):
    child.kill()
    print((activity.judge(one, other, seconds, False) or b'progress').decode(), end=' ')",
        )
    };
    // two seconds on a busy machine may be too few for the pattern of one of them to show
    let mut open: Vec<usize> = (0..EXPECTED.len()).collect();
    let mut said = String::new();
    for _ in 0..10 {
        said = outcome();
        let found: Vec<&str> = said.split_whitespace().collect();
        open.retain(|program| found[*program] != EXPECTED[*program]);
        if open.is_empty() {
            return;
        }
    }
    panic!("never {EXPECTED:?}: {said}");
}

#[test]
fn what_real_processes_wait_for_is_described() {
    let dir = tempfile::tempdir().unwrap();
    let said = python(&format!(
        "import os, signal, socket, subprocess, waiting
os.chdir({:?})
os.mkfifo('license')
server = socket.create_server(('127.0.0.1', 0))
port = server.getsockname()[1]
lock = open('lock', 'w')
import fcntl
fcntl.flock(lock, fcntl.LOCK_EX)
sleeps = 'import time; time.sleep(60)'
programs = [['python3', '-c', sleeps], ['sh', '-c', '$0 -c \"import time; time.sleep(60)\"; :', sys.executable],
    ['python3', '-c', 'import threading; threading.Event().wait()'],
    ['cat', 'license'],
    ['python3', '-c', 'import fcntl; fcntl.flock(open(\"lock\"), fcntl.LOCK_EX)'],
    ['python3', '-c', 'import socket; socket.create_connection((\"127.0.0.1\", %d)).recv(1)' % port],
    ['python3', '-c', 'import os, signal; os.kill(os.getpid(), signal.SIGSTOP)'],
    ['python3', '-c', 'while True: pass']]
# the kernel may hide system calls from all but the process's own ancestors, as this is
children = [subprocess.Popen(program, start_new_session=True) for program in programs]
expected = ['sleeping in clock_nanosleep', 'sleeping in clock_nanosleep', 'waiting in futex for a lock or another \
thread',
    'waiting in openat for a file to open', 'waiting in flock for a lock on ' + os.path.abspath('lock'),
    'waiting in recvfrom for data from 127.0.0.1 port %d' % port, 'stopped by a signal (SIGSTOP)',
    'running']
def described(): return [waiting.describe(child.pid, b'blocked').replace('pselect6', 'clock_nanosleep') for child in \
children]
limit = time.monotonic() + 20
while described() != expected and time.monotonic() < limit: time.sleep(0.1)
print('\\n'.join(one for pair in zip(described(), expected) if pair[0] != pair[1] for one in pair))
for child in children: os.killpg(child.pid, signal.SIGKILL)
for child in children: child.wait()",
        dir.path()
    ));
    assert_eq!(said.trim(), "");
}
