//! `collectives.py` as the supervisor of rank 0 uses it, over timelines as Horovod 0.28.1 writes them.

use std::process::Command;

/// Runs a script that has `Collectives`, a file to write to, and a clock that it can turn.
#[track_caller]
fn python(script: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let head = format!(
        "import os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, {:?})
import collectives
clock = [1000.0]
collectives.time.monotonic = lambda: clock[0]
seen = collectives.Collectives({:?}, 3)
assert seen.make()
out = open(seen.path, 'r+b', buffering=0)
def write(text, end=True):
    # as Horovod does: a bracket that the next record is written over
    out.write(text.encode() + (b']' if end else b''))
    out.seek(-1 if end else 0, 1)
def tensor(pid, name):
    write('{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {{\"name\": \"%s\"}}}},\\n' % (pid, name))
def begin(pid, what='NEGOTIATE_ALLREDUCE'):
    write('{{\"ph\": \"B\", \"name\": \"%s\", \"ts\": 7, \"pid\": %d}},' % (what, pid))
def ready(pid, rank):
    write('{{\"ph\": \"X\", \"name\": \"%d\", \"ts\": 7, \"pid\": %d, \"dur\": 0}},' % (rank, pid))
def end(pid):
    write('{{\"ph\": \"E\", \"ts\": 7, \"pid\": %d, \"args\": {{\"dtype\": \"float32\", \"shape\": \"[1]\"}}}},' % pid)
def cycles(seconds):
    for _ in range(seconds):
        clock[0] += 1
        write('{{\"ph\": \"i\", \"name\": \"CYCLE_START\", \"ts\": 7, \"s\": \"g\"}},' * 700)
        last = seen.look()
    return last
",
        concat!(env!("CARGO_MANIFEST_DIR"), "/src/edge/scripts"),
        dir.path().join("timeline"),
    );
    let done = Command::new("python3").args(["-c", &(head + script)]).output().expect("python3");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn who_is_missing_in_what_and_for_how_long() {
    let said = python(
        "tensor(1, 'allreduce.loss'); tensor(2, 'broadcast.w')
begin(1); ready(1, 0); ready(1, 2); ready(1, 1); end(1)
begin(1, 'ALLREDUCE'); begin(1, 'GLOO_ALLREDUCE'); end(1); end(1)
# all ranks compute for long, and then one is late by a little: nobody hangs
print(cycles(100))
begin(1)
ready(1, 0)
print(cycles(3))
ready(1, 1); ready(1, 2); end(1); begin(1, 'ALLREDUCE'); end(1)
print(cycles(50))
begin(2); ready(2, 0)
begin(1); ready(1, 2); ready(1, 0)
print(cycles(1)); print(cycles(1800)); print(len(seen.window) < 10000)",
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "[]");
    assert_eq!(lines[1], "[(2.0, b'allreduce.loss', [1, 2])]");
    assert_eq!(lines[2], "[]");
    assert_eq!(lines[3], "[(0.0, b'broadcast.w', [1, 2]), (0.0, b'allreduce.loss', [1])]");
    assert_eq!(lines[4], "[(1800.0, b'broadcast.w', [1, 2]), (1800.0, b'allreduce.loss', [1])]");
    assert_eq!(lines[5], "True");
}

#[test]
fn a_timeline_that_ended_or_goes_on_accuses_nobody() {
    let said = python(
        "tensor(1, 'allreduce.loss'); tensor(2, 'allreduce.other')
begin(1); ready(1, 0)
print(cycles(9))
# a full disk: Horovod writes no more, and the ranks go on
clock[0] += 11
print(seen.look())
# another tensor goes on: the job is not stalled as a whole
for _ in range(30):
    begin(2); end(2); begin(2, 'ALLREDUCE'); end(2)
    assert cycles(1) == []
print(cycles(3))
# hvd.shutdown and hvd.init: Horovod begins its file anew
out.truncate(0); out.seek(0)
tensor(1, 'allreduce.new'); begin(1); ready(1, 1)
print(cycles(5))",
    );
    let wanted = "[(8.0, b'allreduce.loss', [1, 2])]\n[]\n[(2.0, b'allreduce.loss', [1, 2])]\n\
                  [(4.0, b'allreduce.new', [0, 2])]\n";
    assert_eq!(said, wanted);
}

#[test]
fn neither_disk_nor_memory_fills_up() {
    let said = python(
        "tensor(1, 'allreduce.loss')
for _ in range(40):
    for _ in range(400):
        begin(1); ready(1, 0); ready(1, 1); ready(1, 2); end(1); begin(1, 'ALLREDUCE'); end(1)
    cycles(1)
stat = os.fstat(seen.file)
assert stat.st_size > 4 << 20, stat
print(stat.st_blocks * 512 < 1 << 20, len(seen.window) <= collectives.WINDOW)
# what is open is found behind all that
begin(1); ready(1, 1); ready(1, 2)
print(cycles(5))
path = seen.path
seen.close()
print(os.path.exists(path))",
    );
    assert_eq!(said, "True True\n[(4.0, b'allreduce.loss', [0])]\nFalse\n");
}

#[test]
fn the_thread_that_writes_gives_way_and_no_other_does() {
    let said = python(
        "import threading
def nice(task): return os.getpriority(os.PRIO_PROCESS, task)
def writer(file, size, stop):
    def work():
        os.write(file, b' ' * size)
        stop.wait()
    thread = threading.Thread(target=work)
    thread.start()
    while os.path.getsize(other) + os.path.getsize(seen.path) < size: pass
    return thread
other = seen.path + '.other'
checkpoint = os.open(other, os.O_WRONLY | os.O_CREAT)
stop = threading.Event()
threads = [writer(checkpoint, 400000, stop), writer(out.fileno(), 300000, stop)]
while os.path.getsize(seen.path) < 300000: pass
def look():
    seen.quieten([os.getpid()])
    print([nice(task) for task in [os.getpid()] + [thread.native_id for thread in threads]])
# once may be chance
look(); look(); look()
stop.set()",
    );
    assert_eq!(said, "[0, 0, 0]\n[0, 0, 19]\n[0, 0, 19]\n");
}
