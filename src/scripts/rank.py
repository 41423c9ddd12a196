"""The supervisor of one rank: starts the program that the run's record names and writes what it says and how it
ends into this node's log, a frame a line (core/frames.rs reads them). The launcher only ever starts this file, so no
word of the user's command passes through a shell, and the output does not pass through the launcher.

When the launcher goes away (a rank failed elsewhere, it was killed, the connection broke), the program is ended:
Horovod under Gloo would leave it running. How much time it has then is not for the launcher to say: what that started, and may
kill, is a mere front of the supervisor."""
import collections
import contextlib
import ctypes
import json
import os
import re
import resource
import select
import selectors
import signal
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True  # the folder keeps what was laid there, and no more
import activity  # noqa: E402
import reap  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 1 << 16  # a line longer than this is cut into several frames, so that memory stays bounded
ROOM = 1 << 16  # bytes for what a full disk must not keep from being written down
KEEP_SIZE, PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE: fallocate(2)
REQUESTS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, reap.ASKED}  # for the end
UNKILLABLE = 5  # seconds after which a killed program counts as ended though the kernel has not let it go
UNHEARD = reap.AFTER_FAILURE + 6  # seconds after which the launcher hears of a failure: the keeper may have to log in anew first
TRAPPED = 1  # second after which a shell that was asked for the end has a trap for that, and waits for its program first
SHELLS = {"sh", "bash", "dash", "ash", "ksh", "ksh93", "mksh", "zsh", "busybox"}
ENDED = (b"Z", b"X")  # states; proc(5)
STOPPED = 3  # seconds that a stopped program must have been so, where others give up waiting, to be the one they waited for


def first(*names):
    for name in names:
        if os.environ.get(name):
            return int(os.environ[name])
    return 0


RANK = first("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
SIZE = first("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOG = os.open(os.path.join(HERE, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


lost = 0  # lines of output that a full disk did not take
kept_from = 0  # the byte that the log begins with, where it is limited
log_max = None  # bytes that the log may have on this node
torn = b""  # ends a line that a full disk cut off


def frames(kind, lines, tries=1, at=None):
    """Appends frames in one write: with O_APPEND the writes of several ranks do not mix. A full disk loses output, not
    the training."""
    global lost, torn
    head = b"%.6f %d %s " % (at or time.time(), RANK, kind)
    data = torn + b"".join(head + line + b"\n" for line in lines)
    while data:
        try:
            data = data[os.write(LOG, data):]
            torn = b"\n"
        except OSError:
            tries -= 1
            if tries <= 0:
                lost += data.lstrip(b"\n").count(b"\n") if kind in (b"o", b"e") else 0
                return
            time.sleep(1)
    torn = b""
    if log_max:
        limit_log()


def limit_log():
    """Gives the oldest part of the log back to the disk, where it has grown beyond its limit. The bytes keep their places, so that a
    reader goes on where it was."""
    global kept_from
    start = os.fstat(LOG).st_size - log_max
    if start >= kept_from + log_max // 8:
        kept_from = start
        fallocate(LOG, KEEP_SIZE | PUNCH_HOLE, start)


def reserve(file):
    """Has the disk keep room for a file that does not grow by it; what is written there later fits, however full the disk is."""
    fallocate(file, KEEP_SIZE, ROOM)


def fallocate(file, mode, length):
    """fallocate(2) for the file's first bytes."""
    call = ctypes.CDLL(None).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    call(file, mode, 0, length)


def open_states():
    return os.open(os.path.join(HERE, "states"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def state(kind, text, at=None):
    """A frame that says how far the rank is. It goes into `states` too, a short file beside the log, with the time when that was
    so: who failed first is told by it, however long the last output or a full disk keeps the frame back."""
    at = at or time.time()
    try:
        file = open_states()
        os.write(file, b"%.6f %d %s %s\n" % (at, RANK, kind, text))
        os.close(file)
    except OSError:
        pass
    frames(kind, [text], tries=3 if kind == b"x" else 1, at=at)


def updates(line):
    """The states of a progress bar that were written over one another in a line."""
    return [part for part in line.split(b"\r") if part]


class Lines:
    """Turns a stream's bytes into whole lines; each state of a progress bar is one. What waits for its end for a second is
    shown as it is. `see` is given each line, and takes those for itself for which it is true."""

    def __init__(self, kind, see=None):
        self.kind, self.rest, self.since, self.see = kind, b"", 0.0, see

    def take(self, data):
        *whole, rest = (self.rest + data).split(b"\n")
        lines = [part for line in whole for part in updates(line) or [b""]]
        # of an unfinished line the last state is the one that may still grow
        last = rest.rstrip(b"\r").rfind(b"\r") + 1
        lines += updates(rest[:last])
        self.rest, self.since = rest[last:], time.monotonic()
        while len(self.rest) > LONGEST:
            lines.append(self.rest[:LONGEST])
            self.rest = self.rest[LONGEST:]
        self.show(lines)

    def show(self, lines):
        if self.see:
            lines = [line for line in lines if not self.see(line)]
        if lines:
            frames(self.kind, lines)

    def idle(self):
        if self.rest and time.monotonic() - self.since > 1:
            self.end()

    def end(self):
        self.show(updates(self.rest))
        self.rest = b""


class Stall:
    """Horovod's own word for ranks that keep the others waiting, when it gives up: in the standard error of the rank that
    coordinates, rank 0 (horovod/common/stall_inspector.cc), or of those that wait for the others to begin."""

    def __init__(self):
        self.missing = []

    def see(self, line):
        late = re.search(rb"Wait timeout after (\d+) seconds for key\(s\): (\d+)\.", line)
        if late:
            # Gloo's rendezvous, where each rank has a key (horovod/common/gloo/http_store.cc); whoever waited there aborts now
            state(b"h", b"%s %s hvd.init" % (late.group(2), late.group(1)))
        if b"Missing ranks:" in line:
            self.missing = []
        marked = re.match(rb"(\d+)!: \[(.*)\]$", line)
        if marked:
            self.missing.append(marked.groups())
        over = re.search(rb"stalled for longer than (\d+) seconds. Will shutdown", line)
        for number, tensors in self.missing if over else []:
            state(b"h", b"%s %s %s" % (number, over.group(1), tensors))


def lineage(pid):
    """The process, the one that started it, the one that started that, and so on; none where it cannot be read."""
    found = [pid]
    while found[-1] > 1:
        try:
            with open("/proc/%d/stat" % found[-1], "rb") as file:
                found.append(int(file.read().rpartition(b") ")[2].split()[1]))
        except OSError:
            return None
    return found


def condition(pid):
    """A process's state, a letter (proc(5)): T where it was stopped by a signal, Z where it has ended, X where it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b") ")[2][:1]
    except OSError:
        return b"X"


def all_processes():
    """Every process's state, parent and process group; proc(5)."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid, "rb") as file:
                state, parent, group = file.read().rpartition(b") ")[2].split()[:3]
        except (OSError, ValueError):
            continue
        found[int(pid)] = state, int(parent), int(group)
    return found


def is_alive(chosen):
    """Whether there is a process that has not ended and is chosen, given its parent's number and its process group's."""
    return any(chosen(parent, group) for state, parent, group in all_processes().values() if state not in ENDED)


def killed_for_memory():
    """How many processes the kernel has killed for want of memory: of this container (control groups version 2 and 1), else of
    the machine."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"):
        try:
            with open(path) as file:
                for line in file:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except (OSError, ValueError):
            pass
    return 0


def limits(wanted):
    """The inventory's limits, which PAM may have changed at the log-in; as far as this container may set them."""
    for name, limit in wanted.items():
        try:
            resource.setrlimit(getattr(resource, "RLIMIT_" + name.upper()), (limit["soft"], limit["hard"]))
        except (AttributeError, OSError, ValueError):
            pass


def own_group():
    """In the child: a process group of its own, and an end together with the supervisor whatever happens to it."""
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, prctl(2)


def bury_all_but(child):
    """Takes note of the ends of those that became ours because they had lost their parent; the program's own is waited for."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == child:
                return
            os.waitpid(ended.si_pid, 0)


def end_unmarked(group):
    """Ends what the program has left behind without the run's mark (`env -i`): nobody would know later whose it is. Its process
    group has just been killed; what one of those has started becomes ours only when it is gone."""
    limit, quiet = time.monotonic() + 1, 0
    while quiet < 2 and time.monotonic() < limit:
        processes = all_processes()
        mine = [os.getpid()]
        for one in mine:
            mine += [pid for pid, (_state, parent, _group) in processes.items() if parent == one]
        left = [pid for pid in mine[1:] if processes[pid][0] not in ENDED
                and (processes[pid][2] == group or reap.MARK not in reap.environment(pid))]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if left else quiet + 1
        time.sleep(0.005)


def of_shell(leader):
    """What a shell has started itself; nothing of another program's."""
    with contextlib.suppress(OSError):
        if os.path.basename(os.readlink("/proc/%d/exe" % leader)) in SHELLS:
            return activity.children(leader, leader)
    return []


def in_front_of(leader, behind):
    """What a shell waits for before it looks at a trap, each with the time of its start. Its programs in the background it tells
    itself; those ignore SIGINT from their start on (POSIX, Shell Command Language, 2.11), and `behind` are those that once did.
    One that reads from a pipe is not asked: what writes there may still have something to say."""
    found = [pid for pid in of_shell(leader) if pid not in behind and not ignores(pid, signal.SIGINT)]
    return [(pid, begun(pid)) for pid in found if not reads_a_pipe(pid)]


def begun(pid):
    """When a process was started; nothing where it is gone."""
    with contextlib.suppress(OSError):
        return activity.fields("/proc/%d/stat" % pid)[19]
    return None


def reads_a_pipe(pid):
    with contextlib.suppress(OSError):
        return os.readlink("/proc/%d/fd/0" % pid).startswith("pipe:")
    return False


def ignores(pid, number):
    # as bytes: the name in it may be anything
    with contextlib.suppress(OSError, StopIteration), open("/proc/%d/status" % pid, "rb") as file:
        ignored = next(line for line in file if line.startswith(b"SigIgn:"))
        return bool(int(ignored.split()[1], 16) & 1 << number - 1)
    return True


def idle_limit(job):
    """For how many seconds this rank may make no progress; nothing where that is not looked at. Horovod's own check under MPI, and
    the one for stopped programs, know more: they go first."""
    if job["stall"] and SIZE > 1 and os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        return job["stall"] + job.get("idle_margin", 30)
    return None


def behind_a_front():
    """Goes on in a process that the launcher does not know of, while the one that it started waits for the end. When one rank has
    ended otherwise than with 0, mpirun kills the others' process groups (odls_base_sigkill_timeout) and horovodrun's
    safe_shell_exec.py all that descends from its shells (5 s), be it in the middle of a checkpoint. Gives the front's process id, a
    file that is at its end when the front has gone, and a file that takes the exit code and for how many seconds the front is to
    keep it to itself."""
    front = os.getpid()
    answers, answer = os.pipe()
    gone, stands = os.pipe()
    between = os.fork()
    if between == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(answers)
            os.close(stands)
            # who is asked for the end before it can answer is so a moment later
            signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)
            # by this the reaper knows it from the front; and what loses its parent becomes its child
            ctypes.CDLL(None).prctl(15, reap.SUPERVISOR)  # PR_SET_NAME, prctl(2)
            ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
            return front, gone, answer
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.close(answer)
    os.waitpid(between, 0)
    code, _, hold = os.read(answers, 64).partition(b" ")
    # without a word it was killed
    code, hold = int(code) if code else 128 + signal.SIGKILL, int(hold or 0)
    if code and not hold:
        # the keeper hears of it first, and asks the ranks of all nodes at once: the launchers take their time, and then the others'
        with contextlib.suppress(OSError):
            os.set_blocking(1, False)
            os.write(1, b"%s%d\n" % (reap.FAILED, code))
        hold = UNHEARD
    launcher = select.poll()
    launcher.register(1, 0)
    launcher.poll(hold * 1000)
    os._exit(code)


def let_go():
    """Holds the launcher's streams no longer."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def main():
    front, gone, answer = behind_a_front()
    code, hold, orphan = 1, 0, None
    try:
        code, hold, orphan = supervise(front, gone)
    except Exception:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        # nobody hears the front of an orphan, whose daemon is ended when no rank is left of it
        os.write(answer, b"0 0" if orphan else b"%d %d" % (code, hold))
    if orphan:
        end_orphan(orphan)


def end_orphan(daemon):
    """MPI's daemon whose session has gone, because the network was cut, would wait for orders until TCP gives up. Whoever is its
    last rank ends it."""
    for _ in range(40):
        time.sleep(0.05)
        if reap.name(daemon) != b"orted":
            return
        if not is_alive(lambda parent, _group: parent == daemon):
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon, signal.SIGKILL)


def supervise(front, gone):
    """The program from its start to its end. Gives its exit code, and for how long the launcher is not to hear of it: where the
    reaper asks for the end, it does so of all ranks, and each has its time for a last checkpoint. A launcher that sees one of them
    end would take MPI's daemons away from the others. And the daemon here, where it has lost its session."""
    global log_max
    with open(os.path.join(HERE, "job.json"), "rb") as file:
        job = json.load(file)
    limits(job["ulimits"])
    log_max = job.get("log_max")
    try:
        with open(os.path.join(HERE, "env.json"), "rb") as file:
            given = json.load(file)
    except FileNotFoundError:
        # the reaper was here before this rank: the job has ended on this node, and nothing has failed
        return 128 + signal.SIGTERM, job["grace"] + 20, None
    env = dict(os.environ, HVDCTL_PROGRAM="1", PYTHONUNBUFFERED="1")
    if job["interface"]:
        # the launcher knows the master's interface only; this is this node's own
        env.update(HOROVOD_GLOO_IFACE=job["interface"], NCCL_SOCKET_IFNAME=job["interface"])
        env.setdefault("GLOO_SOCKET_IFNAME", job["interface"])
    # the inventory's own words go before all that
    env.update(given)
    try:
        states = open_states()
        reserve(states)
        os.close(states)
    except OSError:
        pass
    killed = killed_for_memory()
    # the end of the program wakes the wait below: what it started may hold its streams open, and others note soon that it is gone
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
    signal.set_wakeup_fd(wakes)
    # what is no UTF-8 is a list of bytes (core/word.rs)
    argv = [word if isinstance(word, str) else bytes(word) for word in job["command"]]
    try:
        child = subprocess.Popen(
            argv, cwd=job["cwd"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, preexec_fn=own_group, bufsize=0,
        )
    except (OSError, subprocess.SubprocessError) as error:
        frames(b"b", [str(error).encode(errors="replace").replace(b"\n", b" ")])
        # what shells and `docker run` say: 127 is not found, 126 is found and cannot be run
        code = 127 if isinstance(error, FileNotFoundError) else 126
        state(b"x", b"%d" % code)
        return code, 0, None
    state(b"s", b"")

    deadline = code = None
    heard = look = time.monotonic()  # when it last wrote something; when it is looked at next
    stopped = None  # since when a process of it has been seen to be stopped
    hung = None  # for how many seconds, where that is why it ends, or others did
    hold = 0  # seconds, see above
    orphan = None  # MPI's daemon, where nobody is left that it could hear of
    gave_up = False  # whether it was ended because it waited for others for too long
    by_itself = False  # whether it had ended when it was asked to, and nobody had looked yet
    behind = set()  # what a shell has in the background
    front_of_shell = []  # what a shell waited for when it was asked: asked as well where it keeps the shell from its end

    def idle():
        return 0 if stopped is None else time.monotonic() - max(stopped, heard)

    def end(signalled=None, _frame=None):
        nonlocal deadline, hung, hold, front_of_shell, by_itself
        if signalled == reap.ASKED:
            hold = job["grace"] + 20
        if deadline is None:
            deadline = time.monotonic() + job["grace"]
            # others may have given up waiting for it before its own time was over
            hung = idle() if hung is None and idle() >= STOPPED else hung
            # the program alone: what it started (data loaders, say) is its own to end, before or after a last checkpoint
            if child.returncode is None:
                by_itself = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
                if hung is None and not gave_up and not by_itself and limit:
                    # what it said in the last seconds may be of the failure for which it is asked
                    say_idle(max(quiet, default=0), limit / 2)
                front_of_shell = in_front_of(child.pid, behind)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGTERM)
            # a stopped one hears nothing else
            kill(signal.SIGCONT)

    def in_its_group(_parent, group):
        return group == child.pid

    def kill(number):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass

    limit = idle_limit(job)
    watched = activity.Activity(limit, job["controller"] == "mpi") if limit else None

    quiet = collections.deque(maxlen=3)  # for how many seconds it had made no progress when it was looked at last

    def say_idle(seconds, least):
        """Says that the rank has made no progress for so many seconds, where these are enough."""
        if seconds > least:
            state(b"i", b"%d %s" % (seconds, watched.does))
        return seconds > least

    for number in REQUESTS:
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)

    selector = selectors.DefaultSelector()
    selector.register(woken, selectors.EVENT_READ)
    streams = {child.stdout: Lines(b"o"), child.stderr: Lines(b"e", Stall().see)}
    for stream in streams:
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ)
    # a peer that closed its end of our standard output shows as an error on it, and that of the front as an end: the launcher has
    # gone. Where a daemon of MPI stands in between, that one is left without the session of sshd that started it
    parents = lineage(front)
    launcher = select.poll()
    launcher.register(1, 0)
    launcher.register(gone, 0)

    open_streams = set(streams)
    while True:
        for key, _ in selector.select(0.2 if code is None else 0.05):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if key.fd == woken:
                continue
            if data:
                heard = time.monotonic()
                streams[key.fileobj].take(data)
            else:
                streams[key.fileobj].end()
                selector.unregister(key.fileobj)
                open_streams.discard(key.fileobj)
        if code is None:
            code = child.poll()
            if code is not None:
                ended = time.time()
                # an end that was asked for (another rank failed, a signal) is no failure of this rank's own
                asked = b" asked" if deadline is not None and not gave_up and not by_itself else b""
                if deadline is not None and code == -signal.SIGKILL:
                    # somebody did not leave it all of its time: its group has no more
                    deadline = time.monotonic()
                elif deadline is not None:
                    # a shell around the training goes at once: now the training is asked itself, and has the rest of the time
                    kill(signal.SIGTERM)
        if code is not None and (deadline is None or time.monotonic() > deadline or not is_alive(in_its_group)):
            break
        if launcher.poll(0):
            # it would wait for the other ends of its streams
            launcher = select.poll()
            let_go()
            end()
        elif parents and time.monotonic() >= look:
            now = lineage(front)
            if now not in (parents, None):
                orphan = now[1] if reap.name(now[1]) == b"orted" else None
                end()
        for lines in streams.values():
            lines.idle()
        if time.monotonic() >= look:
            look = time.monotonic() + 1
            bury_all_but(child.pid)
            behind.update(pid for pid in of_shell(child.pid) if ignores(pid, signal.SIGINT))
            processes = activity.family(child.pid)
            frozen = any(condition(pid) == b"T" for pid in processes)
            stopped = (stopped or time.monotonic()) if frozen else None
            # Horovod waits for a stopped process without a word: its own check is only made between two rounds with all ranks
            if deadline is None and 0 < job["stall"] <= idle():
                hung = idle()
                kill(signal.SIGKILL)
            if watched and deadline is None:
                watched.look(child.pid)
                quiet.append(time.monotonic() - max(watched.since, heard))
                if say_idle(quiet[-1], limit):
                    gave_up = True
                    end()
        if front_of_shell and time.monotonic() > deadline - job["grace"] + min(TRAPPED, job["grace"] / 2):
            for pid, start in front_of_shell if code is None else []:
                with contextlib.suppress(ProcessLookupError):
                    if begun(pid) == start:
                        os.kill(pid, signal.SIGTERM)
            front_of_shell = []
        if deadline is not None and time.monotonic() > deadline:
            kill(signal.SIGKILL)
            if code is None and time.monotonic() > deadline + UNKILLABLE:
                # stuck in the kernel, in a file system that does not answer, say: the others are not to wait for it
                code, ended, asked = -signal.SIGKILL, time.time(), b"" if gave_up else b" asked"
                break

    # what the program started must not outlive it; what it said last must not be lost
    kill(signal.SIGKILL)
    end_unmarked(child.pid)
    for stream in open_streams:
        try:
            # more than a pipe holds; somebody who got away and still writes is not waited for
            for _ in range(64):
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    break
                streams[stream].take(data)
        except BlockingIOError:
            pass
        streams[stream].end()
    killed_by = b" signal" if code < 0 else b""
    code = code if code >= 0 else 128 - code
    if gave_up and code == 0:
        # a checkpoint and a good end: to the launcher it is none, the others still wait
        code = 128 + signal.SIGTERM
    if lost:
        state(b"w", b"%d" % lost)
    if hung is not None:
        state(b"h", b"%d %d " % (RANK, hung))
    state(b"x", b"%d%s%s%s" % (code, killed_by, asked, b" oom" if killed_for_memory() > killed else b""), ended)
    return code, 0 if orphan else hold, orphan


if __name__ == "__main__":
    main()
