"""The supervisor of one rank: starts the program that the job's record names, and writes its output and how it ended
into this node's log. The launcher only ever starts this file, so no argument of the user's command passes through a
shell, and the output does not pass through the launcher.

When the launcher goes away (a rank failed elsewhere, it was killed, the connection broke), the program is ended: not
every launcher would do that. The launcher does not limit that time, because it can kill only the shim that it started.

rank_state.py decides what is done about the program; this file observes it and acts.

In its directory, launcher.json describes the launcher (launch/description.rs), job.json is the job's record, env.json
the environment. Its argument, if there is one, is the number of the rank's role (rank_role.py)."""
import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import selectors
import signal
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
import activity  # noqa: E402
import binding  # noqa: E402
import files  # noqa: E402
import flight_recorder  # noqa: E402
import frames  # noqa: E402
import last_lines  # noqa: E402
import peers  # noqa: E402
import processes  # noqa: E402
import rank_role  # noqa: E402
import rank_state  # noqa: E402
import ready  # noqa: E402
import reap  # noqa: E402
import samples  # noqa: E402
import stacks  # noqa: E402
import starting  # noqa: E402
import variables  # noqa: E402
import waiting  # noqa: E402
from hang_reports import HangReports  # noqa: E402
from here import HERE, PROGRAMS  # noqa: E402
from rank_role import first_number  # noqa: E402

REQUESTS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, reap.ASKED}  # signals that request the end
# seconds until the shim reports a failure to the launcher: the job supervisor may have to log in first
SHIM_DELAY = reap.AFTER_FAILURE + 6
# variables of a program that writes to one: no colours, and nothing waits for a key
TERMINAL = {"TERM": "dumb", "PAGER": "cat"}
SEEN = 5  # seconds for which a signal for the program stays pending here
WORLD = {"attempt": files.is_count, "number": files.is_count, "ranks": [files.is_count], "size": files.is_count,
         "waits": files.is_flag}
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER = 1, 15, 36, 0x59616D61  # prctl(2)


def prctl(option, value):
    ctypes.CDLL(None).prctl(option, value)


def oom_files(groups, exists=os.path.exists):
    """The file that counts the processes that the kernel has killed because memory ran out, and whether it counts those
    of this process's own control group: that of a container, of a step of Slurm or of a login. `groups`: the lines of
    /proc/self/cgroup. Without such a file it is that of a group above, or of the machine, where others count too."""
    found = [line.rstrip("\n").split(":", 2) for line in groups]
    for kind, top, name in (("", "/sys/fs/cgroup", "memory.events"),
                            ("memory", "/sys/fs/cgroup/memory", "memory.oom_control")):
        group = next((path for _, controllers, path in found if kind in controllers.split(",")), None)
        # a container may see the path that its group has outside, and its own group at the top
        own = group if group is None or exists(top + group) else "/"
        while own and own != "/" and not exists(os.path.join(top + own, name)):
            own = os.path.dirname(own)
        path = os.path.join(top + own.rstrip("/"), name) if own else None
        if path and exists(path):
            return path, own == group or group is not None and not exists(top + group)
    return "/proc/vmstat", False


def oom_kills():
    """How many processes the kernel has killed because memory ran out, and whether these are of this rank's own group
    of processes."""
    try:
        with open("/proc/self/cgroup") as file:
            path, is_own = oom_files(file.readlines())
        with open(path) as file:
            return next(int(line.split()[1]) for line in file if line.startswith("oom_kill ")), is_own
    except (OSError, ValueError, StopIteration):
        return 0, False


def is_out_of_memory(before, after, code):
    """Returns whether memory ran out for a rank. Of others' processes nothing follows, unless the kernel has killed
    this one."""
    return after[0] > before[0] and (after[1] or code == -signal.SIGKILL)


def set_limits(wanted):
    """The inventory's limits, which PAM may have changed at the login; as far as this container may set them. A soft
    limit of open files that the inventory does not set is the hard one."""
    for name, limit in wanted.items():
        try:
            resource.setrlimit(getattr(resource, "RLIMIT_" + name.upper()), (limit["soft"], limit["hard"]))
        except (AttributeError, OSError, ValueError):
            pass
    if "nofile" not in wanted:
        processes.raise_open_files()


def own_device(visible, local_rank, count=None):
    """CUDA_VISIBLE_DEVICES, or its like, of one rank, given that of all ranks of its node, or of its role there. CUDA
    uses only the first MIG device, so each rank gets one. `count`: how many GPUs each rank of the role has for itself,
    if its project says that."""
    names = visible.split(",")
    if count and len(names) >= count * (local_rank + 1):
        return ",".join(names[count * local_rank:count * (local_rank + 1)])
    return names[local_rank % len(names)] if any(name.strip().startswith("MIG-") for name in names) else visible


def program_environment(inherited, launcher, given):
    """The program's environment: the launcher's, under what hvdctl sets for it, under the inventory's and the
    operator's own."""
    env = dict(launcher["defaults"])
    env.update(inherited)
    env.update(launcher["environment"], HVDCTL_PROGRAM="1", PYTHONUNBUFFERED="1")
    # None: not set, whatever the launcher set
    env = {name: value for name, value in env.items() if value is not None}
    env.update(given)
    return env


def idle_limit(job, size):
    """Seconds without progress after which this rank is ended, or None if it is not. Checks that know more go first:
    the launcher's own, and that for stopped programs."""
    return job["stall"] + job["idle_margin"] if job["stall"] and size > 1 else None


def first_limit(limits):
    """The shortest of these times in seconds that are set; None if there is none, or the kernel shows too little
    (CONFIG_PROC_CHILDREN)."""
    limits = list(filter(None, limits))
    return min(limits) if limits and os.path.exists("/proc/self/task/%d/children" % os.getpid()) else None


class World:
    """The job supervisor's answers about this rank while its launcher keeps it although nodes leave and join
    (in_place.py)."""

    def __init__(self, local_rank):
        self.local_rank, self.said = local_rank, None  # said: WORLD

    def read(self):
        """Reads it again if there is something new. Returns whether there was."""
        with contextlib.suppress(OSError, ValueError):
            world = files.read_json("world.json", WORLD)
            newest = self.said["number"] if self.said else 0
            if str(world["attempt"]) == os.environ.get("HVDCTL_RESTART") and world["number"] > newest:
                self.said = world
                return True
        return False

    def rank(self):
        """The number of this rank; None if it has none."""
        ranks = self.said["ranks"] if self.said else []
        return ranks[self.local_rank] if self.local_rank < len(ranks) else None


def describe_exit(code, asked, oom):
    """The frame for an exit code as Popen has it (negative: a signal): 128 + N for signal N."""
    number = code if code >= 0 else 128 - code
    return b"%d%s%s%s" % (number, b" signal" if code < 0 else b"", b" asked" if asked else b"", b" oom" if oom else b"")


class Program:
    """The user's program, which leads a process group of its own. `terminal`: the ends of that which is its standard
    output, if any."""

    def __init__(self, argv, cwd, env, cpus, children, terminal):
        ours, theirs = terminal or (None, None)
        try:
            self.child = children.start(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=theirs or subprocess.PIPE,
                stderr=subprocess.PIPE, preexec_fn=lambda: self.lead(cpus), bufsize=0,
            )
        except BaseException:
            if terminal:
                os.close(ours)
            raise
        finally:
            if terminal:
                os.close(theirs)
        self.stdout = os.fdopen(ours, "rb", 0) if terminal else self.child.stdout
        self.pid = self.child.pid
        self.background = set()  # what a shell has put into the background
        self.awaited = []  # what a shell waited for when it got SIGTERM

    @staticmethod
    def lead(cpus):
        """In the child: its cores, a process group of its own, the usual signals, and an end together with the
        supervisor whatever happens to that."""
        os.sched_setaffinity(0, cpus)
        os.setpgid(0, 0)
        # what has started this may have ignored some of them, as shells do for what runs in their background
        for number in reap.PASSED | {signal.SIGINT, signal.SIGQUIT}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS | reap.PASSED)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # what the supervisor starts may read its stacks (stacks.py)
        prctl(PR_SET_PTRACER, os.getppid())

    def has_ended(self):
        """Returns whether it has ended. Leaves its exit code to `Popen`, which a signal handler may interrupt just
        after it collected that."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def signal(self, number):
        processes.send(number, [self.pid])

    def signal_group(self, number):
        processes.send(number, [self.pid], os.killpg)

    def is_group_alive(self):
        return processes.is_any_alive(lambda _parent, group: group == self.pid)

    def look(self):
        """Returns whether a signal has stopped one of its processes, and the seconds of processor time that they and
        the children that they have waited for have used."""
        is_stopped, ticks = False, 0
        for pid in activity.family(self.pid):
            # a process that has just ended cannot be read
            with contextlib.suppress(OSError, IndexError, ValueError):
                found = processes.fields("/proc/%d/stat" % pid)
                is_stopped = is_stopped or found[0] == b"T"
                ticks += sum(map(int, found[11:15]))
        return is_stopped, ticks / activity.TICK

    def note_background(self):
        """A shell's programs in the background ignore SIGINT from their start on (POSIX, Shell Command Language,
        2.11)."""
        started = processes.children_of_shell(self.pid)
        self.background.update(pid for pid in started if processes.ignores(pid, signal.SIGINT))

    def awaited_by_shell(self):
        """The processes for which a shell waits before it runs a trap, each with its start time. It asks its programs
        in the background itself. One that reads from a pipe is not asked: what writes there may still have something to
        say."""
        started = processes.children_of_shell(self.pid)
        found = [pid for pid in started if pid not in self.background and not processes.ignores(pid, signal.SIGINT)]
        return [(pid, processes.start_time(pid)) for pid in found if not processes.reads_pipe(pid)]

    def terminate(self):
        self.awaited = self.awaited_by_shell()
        self.signal(signal.SIGTERM)

    def terminate_awaited(self):
        processes.send(signal.SIGTERM, [pid for pid, start in self.awaited if processes.start_time(pid) == start])

    def end_unmarked(self):
        """Ends processes of the program that lack the job's mark (`env -i`), because nothing could identify them later.
        Its process group has just been killed; the children of its processes become ours only when their parents are
        gone."""
        limit, quiet = time.monotonic() + 1, 0
        while quiet < 2 and time.monotonic() < limit:
            known = processes.all_processes()
            left = [pid for pid in processes.descendants(os.getpid(), known)[1:] if known[pid][0] not in processes.ENDED
                    and (known[pid][2] == self.pid or reap.MARK not in processes.environment(pid))]
            processes.send(signal.SIGKILL, left)
            quiet = 0 if left else quiet + 1
            time.sleep(0.005)


def read_some(file):
    """Some bytes of a stream that does not block; empty at its end. A terminal ends with an error when no process has
    it open any more."""
    try:
        return os.read(file, 1 << 16)
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise


class LauncherWatch:
    """A watch on whether the launcher is still there. A peer that closed its end of our standard output shows as an
    error on it, and that of the shim as an end. If a daemon of the launcher is in between, it loses the session of sshd
    that started it. `lost`: whether it has; `orphan`: that daemon. A session outlives the sshd that accepted it, with
    which the worker has ended."""

    def __init__(self, shim, gone, daemons):
        self.shim, self.daemons = shim, [name.encode() for name in daemons]
        self.ancestors = processes.ancestors(shim)
        self.session = self.up_to_session(self.ancestors)
        self.lost, self.orphan = False, None
        self.streams = select.poll()
        self.streams.register(1, 0)
        self.streams.register(gone, 0)

    def has_let_go(self):
        """Whether it has closed its streams; true once. It would wait for the other ends, which are closed then."""
        if not self.streams.poll(0):
            return False
        self.streams = select.poll()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.close(nowhere)
        return True

    @staticmethod
    def up_to_session(ancestors):
        """Returns the processes that belong to the session of sshd, the last of which is that sshd; all where there is
        none."""
        for count, pid in enumerate(ancestors or [], 1):
            if processes.name(pid).startswith(b"sshd"):
                return ancestors[:count]
        return ancestors

    def has_lost_worker(self):
        """Returns whether the worker has ended and the session has not."""
        now = processes.ancestors(self.shim) if self.ancestors else None
        return now not in (self.ancestors, None) and now[:len(self.session)] == self.session

    def has_lost_session(self):
        """Returns whether the shim has other ancestors in its session than at the start."""
        now = processes.ancestors(self.shim) if self.ancestors else None
        if now is None or now[:len(self.session)] == self.session:
            return False
        self.lost, self.orphan = True, now[1] if processes.name(now[1]) in self.daemons else None
        return True


class Supervisor:
    """One rank's program from its start to its end."""

    def __init__(self, log, role, watch):
        self.log, self.role, self.job, self.launcher, self.watch = log, role, role.job, role.launcher, watch
        job, launcher = self.job, self.launcher
        self.children, self.program = processes.Children(), None
        self.oom_kills = oom_kills()
        self.selector = selectors.DefaultSelector()
        self.streams = {}  # those of the program to their lines
        self.last_lines = last_lines.LastLines(launcher.get("gave_up", ()))
        self.signals = []  # that requested the end
        self.is_worker_stopping = False  # whether that is why
        self.ended = None  # when
        size = first_number(launcher["size"], os.environ)
        # records of earlier builds do not have the times
        warning = job.get("stall_warning", 0)
        observed = first_limit([idle_limit(job, size), warning])
        self.state = rank_state.Running(hung=None)
        self.limits = rank_state.Limits(job["grace"], idle_limit(job, size) if observed else None, job["stall"])
        self.pending_since = None  # of signals for the program
        self.next_sample = time.monotonic()
        self.progress = rank_state.Progress(self.next_sample)
        self.activity = activity.Activity(observed, launcher["spins"], self.children.start) if observed else None
        self.waiting = waiting.Waiting(log, warning)
        isolated_after = job.get("isolated_after") if size > 1 else None
        self.isolation = peers.Isolation(isolated_after) if isolated_after else None
        local_rank = first_number(launcher["local_rank"], os.environ)
        self.world = World(local_rank)
        self.stacks = self.reports = None
        every = job.get("sample")  # records of earlier builds do not have it
        self.samples = samples.Samples(log, every, job["interface"], role.index, self.children.start) if every else None
        self.ready = ready.Check(launcher.get("ready"), role, self.report_ready)

    def run(self):
        set_limits(self.job["ulimits"])
        self.log.limit = self.job.get("log_max")
        try:
            given = files.load(self.role.given)
        except FileNotFoundError:
            # the reaper was here before this rank: the job has ended on this node, and nothing has failed
            self.state, self.signals = rank_state.Ended(-signal.SIGTERM, True, None), [reap.ASKED]
            return
        self.log.reserve_states()
        self.watch_children()
        if self.start(given):
            self.follow()
            self.finish()

    def watch_children(self):
        """Lets the program's exit wake `read`: its children may hold its streams open, and other ranks soon fail
        because it is gone."""
        woken, wakes = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wakes, False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(wakes)
        self.selector.register(woken, selectors.EVENT_READ)

    def start(self, given):
        """Starts the program. Returns whether it could be started."""
        argv = self.role.command()
        size = first_number(self.launcher["size"], os.environ)
        inherited = variables.of_rank(os.environ, self.launcher, self.job, self.role.in_role, size, self.role.number)
        env = program_environment(inherited, self.launcher, given)
        env.update(self.role.variables())
        path = env.get("PATH", os.defpath)
        wanted, argv = argv, starting.available(argv, self.job.get("default_command"), path)
        if argv != wanted and self.log.rank == 0:
            self.log.write(b"p", [argv[0].encode()])
        _, cpus, threads = binding.here(self.job.get("bind"), self.job["ranks"], self.role.bound_by(env))
        env.setdefault("OMP_NUM_THREADS", str(threads))
        env.update(flight_recorder.variables(env, self.job, role=self.role.name))
        local_rank = first_number(self.launcher["local_rank"], os.environ)
        for name in rank_role.VISIBLE:
            if name in env:
                visible = env[name] if name in given else rank_role.part_of(self.launcher, env[name])
                env[name] = own_device(visible, local_rank, self.launcher.get("gpus"))
        # what is not Python writes in blocks to anything but a terminal
        terminal = None if starting.runs_python(argv, self.job["cwd"], path) else starting.terminal()
        if terminal:
            env.update({name: value for name, value in TERMINAL.items() if name not in given})
        try:
            own = cpus[self.role.index % len(cpus)]
            self.program = Program(argv, self.job["cwd"], env, own, self.children, terminal)
        except (OSError, subprocess.SubprocessError) as error:
            failure = starting.failure(argv[0], error, self.job["cwd"], path)
            self.log.write(b"b", [json.dumps(failure, ensure_ascii=False).encode(errors="replace")])
            # as shells and `docker run`: 127 is not found, 126 is found and cannot be run
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self.log.state(b"x", b"%d" % code)
            self.state = rank_state.Ended(code, False, None)
            return False
        self.log.state(b"s", b"")
        self.stacks = stacks.Stacks(self.log, path, self.children.start, lambda text: self.waiting.note_place(text))
        reports = self.reports = HangReports(self.log, self.launcher, self.role.in_job)
        lines_of = frames.Lines if self.job.get("log_progress") else frames.LastStates

        def see_all(line):
            self.last_lines.see(line)
            self.ready.see(line)

        see = see_all if self.ready.kind == "line" else self.last_lines.see

        def see_error(line):
            see(line)
            reports.see(line)

        for stream, lines in ((self.program.stdout, lines_of(self.log, b"o", see)),
                              (self.program.child.stderr, lines_of(self.log, b"e", see_error))):
            self.streams[stream] = lines
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, selectors.EVENT_READ)
        for number in REQUESTS:
            signal.signal(number, lambda number, _frame: self.signals.append(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)
        return True

    def follow(self):
        """Waits for the end of the program and of its process group."""
        self.ready.begin()
        while True:
            if self.is_state(rank_state.Running):
                self.ready.follow()
            has_exited = self.is_state(rank_state.Exited)
            self.read(0.05 if has_exited else 0.2)
            if self.signals:
                self.note_stop(os.path.exists(reap.STOPPING_MARK))
                self.request_end()
            if not has_exited:
                self.check_exit()
            if self.is_state(rank_state.Exited):
                self.decide(rank_state.Group(time.monotonic(), self.program.is_group_alive()))
            if self.is_state(rank_state.Ended):
                return
            is_due = time.monotonic() >= self.next_sample
            if is_due and not self.is_worker_stopping and self.watch.has_lost_worker():
                self.note_stop(True)
                self.request_end()
            if self.watch.has_let_go() or is_due and self.watch.has_lost_session():
                self.request_end()
            for lines in self.streams.values():
                lines.idle()
            if self.is_state(rank_state.Running):
                self.stacks.awaited = self.reports.awaited()
                self.stacks.follow(self.program.pid, self.idle_for())
                if self.reports.take_new():
                    self.stacks.begin(self.program.pid, self.idle_for())
            else:
                self.stacks.finish(0)
            if is_due:
                self.next_sample = time.monotonic() + 1
                self.sample()
            self.decide(rank_state.Tick(time.monotonic()))

    def note_stop(self, is_stopping):
        """Reports that the worker is stopping, once: the job supervisor ends the ranks of all nodes then."""
        if not is_stopping or self.is_worker_stopping:
            return
        self.is_worker_stopping = True
        report(b"%s%d" % (reap.STOPPING, self.log.rank))

    def report_ready(self):
        """Reports that the rank is ready for those of other roles; returns whether that was possible."""
        return self.role.name is None or report(b"%s%d" % (reap.READY_RANK, self.log.rank))

    def is_state(self, state):
        return isinstance(self.state, state)

    def decide(self, observation):
        self.state, actions = rank_state.decide(self.state, observation, self.limits)
        perform = {rank_state.REPORT_IDLE: self.report_idle, rank_state.REPORT_QUIET: self.report_quiet,
                   rank_state.TERMINATE: self.program.terminate,
                   rank_state.TERMINATE_AWAITED: self.program.terminate_awaited,
                   rank_state.SIGNAL_GROUP: self.program.signal_group}
        for action, *arguments in actions:
            perform[action](*arguments)

    def report_idle(self, seconds):
        self.log.state(b"i", b"%d %s" % (seconds, self.activity.does))
        # its end follows
        self.stacks.read_before_end(self.program.pid, seconds)

    def idle_for(self):
        """Returns for how many seconds the program has made no progress."""
        now = time.monotonic()
        return max(self.progress.stopped_for(now), self.progress.quiet[-1], self.progress.unused_for(now))

    def report_quiet(self, seconds):
        does = waiting.describe(self.program.pid, activity.BLOCKED if self.progress.unused_for(time.monotonic())
                                >= rank_state.MIN_QUIET else self.activity.does)
        self.log.state(b"v", b"%d %s" % (seconds, waiting.encoded(does)))

    def read(self, seconds):
        """Logs the program's output for at most this many seconds; returns after the first output, or when it has
        exited."""
        for key, _ in self.selector.select(seconds):
            try:
                data = read_some(key.fd)
            except BlockingIOError:
                continue
            if key.fileobj not in self.streams:
                continue
            if data:
                self.progress.last_output = time.monotonic()
                self.streams[key.fileobj].take(data)
            else:
                self.selector.unregister(key.fileobj)
                self.streams.pop(key.fileobj).end()

    def check_exit(self):
        code = self.program.child.poll()
        if code is not None:
            self.ended = time.time()
            self.decide(rank_state.Exit(code))

    def request_end(self):
        exited = self.program.has_ended()
        if self.is_state(rank_state.Running) and not exited:
            self.stacks.read_before_end(self.program.pid, self.idle_for())
            exited = self.program.has_ended()
        now = time.monotonic()
        stopped, quiet = self.progress.stopped_for(now), max(self.progress.quiet)
        self.decide(rank_state.Request(now, exited, stopped, quiet, max(quiet, self.progress.unused_for(now))))

    def sample(self):
        """Checks what the program's processes do, once a second."""
        self.children.reap_orphans()
        self.forget_signals()
        self.program.note_background()
        is_stopped, used = self.program.look()
        self.progress.note_stopped(is_stopped, time.monotonic())
        self.progress.note_use(used, time.monotonic())
        if not self.is_state(rank_state.Running):
            return
        if self.samples:
            self.samples.sample(self.program.pid)
        if self.isolation and self.isolation.is_found(os.getpid()):
            self.log.write(b"a", [b"%d" % self.isolation.limit])
        if self.activity:
            self.activity.sample(self.program.pid)
            now = time.monotonic()
            self.progress.note_idle(self.activity.idle_since(now), now)
        self.follow_world()
        now = time.monotonic()
        stopped, quiet = self.progress.stopped_for(now), self.progress.quiet[-1]
        self.decide(rank_state.Sample(now, self.program.has_ended(), stopped, quiet))
        if self.waiting.note(max(stopped, quiet), self.describe):
            # a reading of the last minutes was not recorded for the list of jobs
            self.stacks.begin(self.program.pid, max(stopped, quiet), again=stacks.AGAIN_AT_END)

    def forget_signals(self):
        """Drops signals for the program that have come here, too, when no other process needs to see them any more
        (reap.py)."""
        now, pending = time.monotonic(), signal.sigpending() & reap.PASSED
        self.pending_since = (self.pending_since or now) if pending else None
        if pending and now - self.pending_since > SEEN:
            signal.sigwait(pending)

    def follow_world(self):
        """Takes another number if the launcher has given it one. A rank that waits for others to join makes no
        progress, and should not."""
        if self.world.read():
            rank, size = self.world.rank(), self.world.said["size"]
            self.limits = self.limits._replace(idle=idle_limit(self.job, size) if self.activity else None)
            if rank not in (None, self.log.rank):
                self.waiting.forget()
                self.log.write(b"n", [b"%d %d" % (rank, size)])
                self.log.rank = rank
                self.waiting = waiting.Waiting(self.log, self.waiting.limit)
        if self.world.said and self.world.said["waits"]:
            self.progress.last_output = time.monotonic()

    def describe(self):
        """What the program does while it makes no progress, in words."""
        return waiting.describe(self.program.pid, self.activity.does if self.activity else activity.BLOCKED)

    def finish(self):
        """Ends what the program has left, logs its last output, and records how it ended."""
        self.ended = self.ended or time.time()
        self.waiting.forget()
        if self.samples:
            self.samples.end()
        self.stacks.finish(0)
        self.program.signal_group(signal.SIGKILL)
        self.program.end_unmarked()
        for stream, lines in self.streams.items():
            try:
                # more than a pipe buffers; does not wait for a process that escaped and still writes
                for _ in range(64):
                    data = read_some(stream.fileno())
                    if not data:
                        break
                    lines.take(data)
            except BlockingIOError:
                pass
            lines.end()
        if self.state.code == 0 and not self.state.asked:
            self.ready.finish()
        if self.log.lost:
            self.log.state(b"w", b"%d" % self.log.lost)
        if self.state.hung is not None:
            self.log.state(b"h", b"%d %d " % (self.log.rank, self.state.hung))
        is_possible = last_lines.may_have_given_up(self.state.code, self.state.asked)
        lines = self.last_lines.gave_up() if is_possible else []
        for line in lines:
            self.log.state(b"u", waiting.encoded(line.decode(errors="replace")))
        for one in self.reports.awaited()[:last_lines.MOST] if lines else ():
            self.log.state(b"u", waiting.encoded("Missing ranks: %d: [%s]" % (one["rank"], one["tensors"])))
        oom = is_out_of_memory(self.oom_kills, oom_kills(), self.state.code)
        self.log.state(b"x", describe_exit(self.state.code, self.state.asked, oom), self.ended)


def detach():
    """Continues in a process that the launcher does not know of, while the one that it started, the shim, waits for the
    end. When a rank has failed, launchers kill what they started on the others, be it in the middle of a checkpoint.
    Returns the shim's process ID, a file that is at its end when the shim has exited, and a file that takes the exit
    code, the seconds for which the shim is to delay it, and 1 if it is not to delay a failure."""
    shim = os.getpid()
    answers, answer = os.pipe()
    gone, alive = os.pipe()
    between = os.fork()
    if between == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(answers)
            os.close(alive)
            # handles a request for the end only when the program has been started
            signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)
            # the reaper distinguishes it from the shim by this name; and orphaned processes become its children
            prctl(PR_SET_NAME, reap.SUPERVISOR)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            return shim, gone, answer
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.close(answer)
    os.waitpid(between, 0)
    be_shim(answers, alive)


def node_address():
    """This node's address as the launcher has given it; empty if it is not known."""
    with contextlib.suppress(OSError, ValueError):
        return os.environ.get(rank_role.described(sys.argv[1:]).get("address") or "", "")
    return ""


def report(message):
    """Writes a message to the job supervisor into the launcher's output. Returns whether that was possible."""
    address = node_address()
    with contextlib.suppress(OSError):
        os.set_blocking(1, False)
        os.write(1, b"%s%s\n" % (message, b" on " + address.encode() if address else b""))
        return True
    return False  # the suppressed error


def be_shim(answers, alive):
    """Waits for the rank's end and passes it on to the launcher; does not return. Slurm ends a step when the process
    has ended that it has started, which may be this one: at its SIGTERM this lets the supervisor end the rank, for
    which `alive` is closed, and goes on waiting."""
    if "SLURMD_NODENAME" in os.environ:
        signal.signal(signal.SIGTERM, lambda _number, _frame: os.dup2(answers, alive))
    # no answer: the supervisor was killed
    code, delay, is_replaced = map(int, os.read(answers, 64).split() or (128 + signal.SIGKILL, 0, 0))
    if "SLURMD_NODENAME" in os.environ:
        signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(code))
    if code and not delay:
        # the job supervisor learns of it first and ends the ranks of all nodes at once; launchers are slower, and
        # shorten the grace period
        report(b"%s%d" % (reap.FAILED, code))
        delay = 0 if is_replaced else SHIM_DELAY
    launcher = select.poll()
    launcher.register(1, 0)
    launcher.poll(delay * 1000)
    os._exit(code)


def end_orphan(daemon):
    """Ends the launcher's daemon if this was its last rank. Its session was lost because the network was cut, and it
    would wait until TCP times out."""
    name = processes.name(daemon)
    for _ in range(40):
        time.sleep(0.05)
        if not name or processes.name(daemon) != name:
            return
        if not processes.is_any_alive(lambda parent, _group: parent == daemon):
            processes.send(signal.SIGKILL, [daemon])


def inherit():
    """Takes what the launcher did not get of its environment (attempt.py). The file is on its node, or where all nodes
    share the job's directory; on other nodes sshd's session has the node's own environment."""
    with contextlib.suppress(FileNotFoundError):
        with open(os.path.join(PROGRAMS, "inherited.json"), "rb") as file:
            for name, value in json.load(file).items():
                os.environ.setdefault(name, value)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, reap.PASSED)
    shim, gone, answer = detach()
    code, delay, is_replaced, orphan = 1, 0, False, None
    try:
        # on the launcher's node, where ranks are processes of the login (attempt.py)
        with contextlib.suppress(OSError, ValueError):
            for name, value in files.read_json("process.json", {"HVDCTL_PROCESS": files.is_text}).items():
                os.environ.setdefault(name, value)
        inherit()
        variables.take_own(os.environ)
        role = rank_role.Role(sys.argv[1:], os.environ)
        watch = LauncherWatch(shim, gone, role.launcher["daemons"])
        supervisor = Supervisor(frames.Log(HERE, role.rank), role, watch)
        supervisor.run()
        is_replaced = supervisor.world.said is not None
        is_with_others = reap.ASKED in supervisor.signals or supervisor.is_worker_stopping and not is_replaced
        code, delay = rank_state.answer(supervisor.state.code, is_with_others, watch.lost, supervisor.limits.grace)
        if supervisor.is_worker_stopping:
            # it may have saved, but the others have not finished
            code = code or 128 + signal.SIGTERM
        # a launcher that keeps the other ranks is to know at once
        orphan = watch.orphan
    except Exception:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        os.write(answer, b"%d %d %d" % (code, delay, is_replaced))
    if orphan:
        end_orphan(orphan)


if __name__ == "__main__":
    main()
