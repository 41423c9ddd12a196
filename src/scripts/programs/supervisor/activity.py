"""Determines from outside whether a rank makes progress, by what the kernel counts for its processes and threads;
proc(5).

A rank in a collective operation is silent as well, and the threads of its communication library never rest: they
negotiate every millisecond. They are recognized by their pattern. A sample costs the training nothing
(docs/development/decisions/hangs.md has the figures)."""
import contextlib
import os
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
from processes import children, fields  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")  # in a second
LEAST = 0.001  # of a core: a thread that sleeps, or is stuck in the kernel, uses less
POLLING = 0.1  # of a core: a first thread that sleeps for 1 ms again and again takes less; measured up to 0.05
POLLS = 100  # wake-ups per second of such a thread, at least
# share of its time: a first thread that waits for an operation yields repeatedly (PyTorch); measured 0.62 to 0.65 in
# the kernel, and below 0.02 for one that computes
IN_KERNEL = 0.4
QUIET_IO = 64 << 10  # bytes read and written per second; a thread above that is working
QUIET_FAULTS = 200  # pages per second; the same for memory
LIBRARY = 0.6  # of a core: more than the library's own threads take while they are idle; measured up to 0.36
# of a core, if one of those threads spins: more is the program's own work, even if the thread or process that did it
# has ended since
SHORT = 0.02
ROUNDED = 6  # ticks by which a process and its threads may differ
# seconds by which a sample may be late; after more, this process itself was suspended and the sample is void
MAX_DELAY = 10
GPU_QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
GPU_TIME = 20  # seconds that it may take

BLOCKED, KERNEL, WAITING = b"blocked", b"kernel", b"waiting"  # what a rank without progress does; record/frames.rs


def family(pid):
    """A process and all that descend from it by the processes' first threads."""
    found = [pid]
    for one in found:
        found += children(one, one)
    return found


def whole_family(pid):
    """The same by all their threads, of which there may be hundreds."""
    found = [pid]
    for one in found:
        for thread in os.listdir("/proc/%d/task" % one):
            found += children(one, thread)
    return found


def value(path, name):
    """A number by its name in a file of such lines."""
    with open(path, "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + b":"))


class Sample:
    """What a rank's processes have used until now; times are in ticks."""

    def __init__(self, pid):
        self.processes = whole_family(pid)
        # of the first threads: time, time in the kernel, wake-ups, page faults, bytes of input and output
        self.first = self.kernel = self.wakings = self.faults = self.io = 0
        self.total, self.others = 0, {}
        self.in_kernel = False
        for process in self.processes:
            whole = fields("/proc/%d/stat" % process)
            self.in_kernel |= whole[0] == b"D"
            self.total += sum(map(int, whole[11:15]))
            self.wakings += value("/proc/%d/status" % process, b"voluntary_ctxt_switches")
            first = "/proc/%d/task/%d/io" % (process, process)
            # not every kernel counts them, or shows them for another user's process
            with contextlib.suppress(OSError, StopIteration):
                self.io += sum(value(first, name) for name in (b"rchar", b"wchar"))
            for thread in map(int, os.listdir("/proc/%d/task" % process)):
                stat = fields("/proc/%d/task/%d/stat" % (process, thread))
                user, kernel = map(int, stat[11:13])
                if thread == process:
                    self.first += user + kernel
                    self.kernel += kernel
                    self.faults += int(stat[7]) + int(stat[9])
                else:
                    self.others[thread] = user + kernel


class Activity:
    """Tracks since when a rank has made no progress. `limit`: the idle time-out in seconds; `spins`: whether one of the
    library's threads waits for the other ranks without ever sleeping; `start`: starts a child, as
    `subprocess.Popen`."""

    def __init__(self, limit, spins, start=subprocess.Popen):
        self.limit, self.spins = limit, spins
        self.every = min(max(limit / 100, 1), 60)
        # since when there is no progress; the time of the last sample, and that sample
        self.since = self.sampled_at = time.monotonic()
        self.last = None
        self.does = BLOCKED  # what it does meanwhile
        self.is_idle = False  # whether the last samples have shown that there is none
        self.gpus = Gpus(start)

    def sample(self, pid):
        """Samples what a process and its descendants have done, if the next sample is due."""
        now = time.monotonic()
        if now - self.sampled_at < self.every:
            return
        late, passed = now - self.sampled_at > self.every + MAX_DELAY, now - self.sampled_at
        before, self.last, self.sampled_at = self.last, None, now
        # a process that has just ended cannot be read
        with contextlib.suppress(OSError, StopIteration, IndexError, ValueError):
            self.last = Sample(pid)
        does = None
        # a program that starts and ends processes makes progress
        if before and self.last and before.processes == self.last.processes and not late:
            does = judge(before, self.last, passed, self.spins)
        # a program that only waits for a GPU uses no processor either
        if does and now - self.since > self.limit / 4 and self.gpus.compute():
            does = None
        self.is_idle = does is not None
        if does:
            self.does = does
        else:
            self.since = now

    def idle_since(self, now):
        """Since when there has been no progress, as far as samples have shown that; `now` if they have not."""
        return self.since if self.is_idle else now


def judge(before, after, seconds, spins):
    """Classifies a rank without progress between two samples; None if it made progress or may have."""
    passed = seconds * TICK
    first = after.first - before.first
    if after.total - before.total <= passed * LEAST:
        return KERNEL if before.in_kernel and after.in_kernel else BLOCKED
    polls = first <= passed * POLLING and after.wakings - before.wakings >= seconds * POLLS
    quiet = after.io - before.io <= seconds * QUIET_IO and after.faults - before.faults <= seconds * QUIET_FAULTS
    yields = after.kernel - before.kernel >= first * IN_KERNEL > passed * LEAST
    waits = quiet and (polls or yields)
    if not waits and first > passed * LEAST:
        return None
    used = {thread: count - before.others.get(thread, 0) for thread, count in after.others.items()}
    rest = after.total - before.total - first
    if spins:
        # one of the library's threads waits for the other ranks all the time, and all others rest: if the busiest one
        # were the program's, the library's would be among the others
        busiest = max(used.values(), default=0)
        idle = sum(used.values()) - busiest <= passed * LEAST + 1 and rest - busiest <= passed * SHORT + ROUNDED
    else:
        idle = rest <= passed * LIBRARY
    return None if not idle else WAITING if waits else BLOCKED


class Gpus:
    """Finds out whether a GPU of this container computes, without waiting: nvidia-smi may take seconds or hang."""

    def __init__(self, start=subprocess.Popen):
        self.start = start
        self.there = shutil.which(GPU_QUERY[0]) is not None
        self.child, self.asked = None, 0.0

    def compute(self):
        """Returns whether a GPU computed at the time of the previous call, and starts the next query."""
        answer = False
        if self.child and self.child.poll() is not None:
            with self.child:
                answer = any(line.strip().isdigit() and int(line) > 0 for line in self.child.stdout)
            self.child = None
        if self.child is None and self.there:
            with contextlib.suppress(OSError):
                self.asked = time.monotonic()
                self.child = self.start(GPU_QUERY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        elif self.child and time.monotonic() - self.asked > GPU_TIME:
            self.child.kill()
        return answer
