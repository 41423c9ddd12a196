"""Reports that a rank makes no progress: once for each time that it waits, with what it does, and that it goes on. A
rank that waits for a license, a database or a debugger looks like one that hangs, so nothing here ends it. What it does
is read only when it is reported, from what the kernel shows of its processes; proc(5)."""
import contextlib
import os
import sys
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
import activity  # noqa: E402
import peers  # noqa: E402
from processes import fields  # noqa: E402

LONGEST = 300  # bytes of a description; paths are part of it
STOPPED = {b"T": "stopped by a signal (SIGSTOP)", b"t": "stopped by a debugger"}
FOR_A_CHILD = "for a child process"
# system calls in which programs wait, by their numbers (x86_64, aarch64), with what they wait for; %s: what the first
# argument, a file descriptor, stands for
CALLS = {
    "clock_nanosleep": (230, 115, ""), "nanosleep": (35, 101, ""),
    "futex": (202, 98, "for a lock or another thread"),
    "poll": (7, None, "for input"), "ppoll": (271, 73, "for input"),
    "select": (23, None, "for input"), "pselect6": (270, 72, "for input"),
    "epoll_wait": (232, None, "for input"), "epoll_pwait": (281, 22, "for input"),
    "read": (0, 63, "for data from %s"), "readv": (19, 65, "for data from %s"), "pread64": (17, 67, "for data from %s"),
    "recvfrom": (45, 207, "for data from %s"), "recvmsg": (47, 212, "for data from %s"),
    "write": (1, 64, "to write to %s"), "writev": (20, 66, "to write to %s"), "pwrite64": (18, 68, "to write to %s"),
    "sendto": (44, 206, "to write to %s"), "sendmsg": (46, 211, "to write to %s"),
    "fsync": (74, 82, "for the disk of %s"), "fdatasync": (75, 83, "for the disk of %s"),
    "open": (2, None, "for a file to open"), "openat": (257, 56, "for a file to open"),
    "accept": (43, 202, "for a connection"), "accept4": (288, 242, "for a connection"),
    "connect": (42, 203, "for a connection"),
    "flock": (73, 32, "for a lock on %s"), "fcntl": (72, 25, "for a lock on %s"), "ioctl": (16, 29, "for %s"),
    "wait4": (61, 260, FOR_A_CHILD), "waitid": (247, 95, FOR_A_CHILD),
    "pause": (34, None, "for a signal"), "rt_sigsuspend": (130, 133, "for a signal"),
    "rt_sigtimedwait": (128, 137, "for a signal"),
    "semop": (65, 193, "for a semaphore"), "semtimedop": (220, 192, "for a semaphore"),
    "msgrcv": (70, 188, "for a message"),
    "io_getevents": (208, 4, "for input or output"), "io_uring_enter": (426, 426, "for input or output"),
}
MACHINES = ("x86_64", "aarch64")
FOR_CHILD = ("wait4", "waitid")
# calls in which a program waits for a connection that it has begun
CONNECT = ("connect", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")


def text_of(path):
    """What a file of /proc contains; empty if it cannot be read, for which some need rights to trace the process."""
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
        return file.read().strip()
    return ""


def call(thread, machine=None):
    """The system call in which a thread is, by its directory in /proc: its name and first argument; empty, 0 if that is
    not known."""
    machine = os.uname().machine if machine is None else machine
    number, _, arguments = text_of(thread + "/syscall").partition(" ")
    if machine in MACHINES and number.isdigit():
        at = MACHINES.index(machine)
        name = next((name for name, numbers in CALLS.items() if numbers[at] == int(number)), "")
        return name, int(arguments.split(" ", 1)[0], 16) if name else 0
    return "", 0


def opened(thread, number):
    """What a file descriptor stands for, in words."""
    try:
        target = os.readlink("%s/fd/%d" % (thread, number))
    except OSError:
        return "file descriptor %d" % number
    if target.startswith("pipe:["):
        return "a pipe"
    if target.startswith("socket:["):
        with contextlib.suppress(OSError, ValueError):
            for _, (address, port) in peers.connections({target[8:-1]}):
                return "%s port %d" % (address, port)
        return "a socket"
    return target


def goal(thread):
    """The address to which the process of a thread tries to connect; empty if there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        address, port = peers.connections(peers.sockets([int(thread.split("/")[2])]), peers.CONNECTING)[0][1]
        return "%s port %d" % (address, port)
    return ""


def in_call(thread):
    """The system call in which a thread waits and what for, in words; empty if that is not known."""
    name, argument = call(thread)
    reason = CALLS[name][2] if name else ""
    there = goal(thread) if name in CONNECT else ""
    if there:
        return "in %s for a connection to %s" % (name, there)
    return " ".join(["in", name, reason % opened(thread, argument) if "%s" in reason
                     else reason]).strip() if name else ""


def of_thread(thread):
    """What a thread that sleeps does, in words."""
    name, _ = call(thread)
    kernel = text_of(thread + "/wchan")
    if name.endswith("sleep"):
        return "sleeping in " + name
    return "waiting " + in_call(thread) if name else "sleeping" + (" in " + kernel if kernel.strip("0") else "")


def of_blocked(thread):
    """What a thread waits for that not even SIGKILL ends (state D), in words."""
    kernel, where = text_of(thread + "/wchan"), in_call(thread)
    return "blocked in the kernel" + (" in " + kernel if kernel.strip("0") else "") + (" (%s)" % where if where else "")


def describe(pid, does, family=None):
    """The activity of a program without progress, in words. `does`: how `activity` classifies that; `family`: the
    processes that are considered, all of the program's by default."""
    if does == activity.WAITING:
        return "polling, as a rank that waits for others in a collective operation"
    try:
        firsts = ["/proc/%d/task/%d" % (one, one) for one in family or activity.whole_family(pid)]
        others = [os.path.join(tasks, thread) for tasks in map(os.path.dirname, firsts) for thread in os.listdir(tasks)]
        states = {thread: fields(thread + "/stat")[0] for thread in firsts + others}
        stopped = next((STOPPED[states[thread]] for thread in firsts if states[thread] in STOPPED), None)
        blocked = next((thread for thread in states if states[thread] == b"D"), None)
        # a shell only waits for its program
        first = next((thread for thread in firsts if call(thread)[0] not in FOR_CHILD), firsts[0])
        awake = "running" if states[first] == b"R" else of_thread(first)
        return stopped or (of_blocked(blocked) if blocked else awake)
    except (OSError, IndexError, ValueError):
        return "what it does cannot be read"


def encoded(words):
    """A description as it is in the log: one line of limited length."""
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:LONGEST].encode(errors="replace")


class Waiting:
    """A watch on whether a rank has been without progress for `limit` seconds (0: never). `log` gets the frames; the
    file `idle.RANK` in the job's directory exists while it waits, so that others see it (job/list.sh,
    node/facts.sh), and so does `place.RANK` when its stacks have been read (stacks.py)."""

    def __init__(self, log, limit):
        self.log, self.limit = log, limit
        self.since = None  # when the wait that was reported began
        self.paths = [os.path.join(log.directory, "%s.%d" % (name, log.rank)) for name in ("idle", "place")]
        self.forget()  # an earlier attempt's that was killed

    def note(self, seconds, describe_it):
        """Takes for how many seconds there has been no progress. Returns whether that is reported now. A wait is over
        when these start anew: a program that was stopped may only turn out to sleep."""
        if self.since is None and 0 < self.limit <= seconds:
            self.since = time.monotonic() - seconds
            words = encoded(describe_it())
            self.log.state(b"q", b"%d %s" % (seconds, words))
            self.record(0, b"%d %s\n" % (time.time() - seconds, words))
            return True
        if self.since is not None and seconds < self.limit:
            self.log.state(b"g", b"%d" % max(time.monotonic() - seconds - self.since, 0))
            self.since = None
            self.forget()
        return False

    def note_place(self, text):
        """Notes where the rank is, if it waits."""
        if self.since is not None:
            self.record(1, text + b"\n")

    def record(self, which, line):
        # a full disk keeps it out of the lists of jobs; the log has it
        with contextlib.suppress(OSError):
            file = os.open(self.paths[which], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(file, line)
            os.close(file)

    def forget(self):
        for path in self.paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
