"""Where the processes of a rank are: their stacks as py-spy reads them, and what the kernel shows of processes that it
cannot read. The supervisor starts the rank, so it may read it where other processes of the login may not
(/proc/sys/kernel/yama/ptrace_scope). A rank goes on while it is read, and is read only if a person asks or if something
is wrong: it makes no progress, or its end is requested because another rank has failed. If a person asks, PyTorch's
flight recorder is asked, too (flight_recorder.py), and with --native gdb reads what py-spy cannot (debugger.py).

`hvdctl stack` asks with the file `stack.wanted` in the job's directory (job/stack.sh).
The answer is the file `stack.RANK`. All other readings become frames of the log (model/stack.rs)."""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
import activity  # noqa: E402
import debugger  # noqa: E402
import files  # noqa: E402
import flight_recorder  # noqa: E402
import frames  # noqa: E402
import processes  # noqa: E402
import reap  # noqa: E402
import waiting  # noqa: E402
from here import PROGRAMS  # noqa: E402

REQUEST = {"number": files.is_text, "locals": files.is_flag, "native": files.is_flag, "failed": files.is_flag}
PY_SPY = "py-spy"  # in the job's directory if hvdctl has sent it
PROCESSES, THREADS, FRAMES, LOCALS, LONGEST = 8, 16, 100, 20, 200  # the most of each; characters of a text
MOST_LINE = (1 << 31) - 1
MOST = 60 << 10  # bytes of an answer: a frame of the log takes no more
LONG = 4  # seconds that py-spy may take
# the same for a reading that delays an end, for how long it does so at most, and the most processes that it reads
SHORT, DELAY, FEW = 0.4, reap.READING, 3
AGAIN, AGAIN_AT_END = 600, 10  # seconds between two that become frames
NO_PY_SPY, NO_START = "there is no py-spy", "cannot start py-spy"  # job/stack.rs sends one then
LOOK = 1  # seconds between two looks at what another node may have written
QUIET = 5  # seconds without progress after which a rank is read before it is asked for its end


def short(text, most=LONGEST):
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))[:most]


def py_spy(directory, path):
    """The path of py-spy: that of the job, or else the environment's own. `directory`: that of the job's programs."""
    sent = os.path.join(directory, PY_SPY)
    # hvdctl, which may be root of the node, sets no mode where this job's programs may exchange the file for a link
    with contextlib.suppress(OSError):
        os.chmod(sent, 0o755)
    return sent if os.access(sent, os.X_OK) else shutil.which("py-spy", path=path)


def shown(name, file, line):
    """A frame within limits."""
    return {"name": short(name), "file": short(file), "line": min(max(line, 0), MOST_LINE)}


def frame(found, with_locals):
    """A frame of py-spy's, shorter."""
    short_one = shown(found.get("name"), found.get("filename"), int(found.get("line") or 0))
    if with_locals:
        short_one["locals"] = [{"name": short(one.get("name")), "value": short(one.get("repr"), 80)}
                               for one in (found.get("locals") or [])[:LOCALS]]
    return short_one


def threads(pid, text, with_locals):
    """The threads that py-spy has found in a process, the first one in front. Raises ValueError if the text is not
    py-spy's."""
    try:
        found = sorted(json.loads(text), key=lambda one: one.get("os_thread_id") != pid)
        if not found:
            raise ValueError
        return [{"name": short(one.get("thread_name") or "thread %s" % one.get("os_thread_id")),
                 "active": bool(one.get("active")),
                 "frames": [frame(each, with_locals) for each in one["frames"][:FRAMES]]} for one in found[:THREADS]]
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(error)


def kernel_stack(thread):
    """Where a thread is in the kernel; only root may know."""
    found = [line.split("] ")[-1].split("+")[0] for line in waiting.text_of(thread + "/stack").splitlines()]
    return [{"name": short(name), "file": "", "line": 0} for name in found[:FRAMES]]


def kernel_threads(pid):
    """The threads of a process as the kernel shows them, the first one in front."""
    found = []
    with contextlib.suppress(OSError):
        tasks = sorted(map(int, os.listdir("/proc/%d/task" % pid)), key=lambda task: (task != pid, task))
        for task in tasks[:THREADS]:
            thread = "/proc/%d/task/%d" % (pid, task)
            with contextlib.suppress(OSError, IndexError):
                condition = processes.fields(thread + "/stat")[0]
                does = waiting.STOPPED.get(condition) or "running" if condition not in (b"S", b"D") else (
                    waiting.of_blocked(thread) if condition == b"D" else waiting.of_thread(thread))
                found.append({"name": short(waiting.text_of(thread + "/comm")), "active": condition == b"R",
                              "does": short(does), "frames": kernel_stack(thread)})
    return found


def reason(text):
    """The reason of a failure in the words of py-spy, in one line."""
    lines = [line.strip() for line in text.decode(errors="replace").split("Stack backtrace")[0].splitlines()]
    lines = [line for line in lines if line and line != "Caused by:"]
    first = [line.split("Error: ")[-1] for line in lines[:1]]
    return short(": ".join(first + lines[1:][-1:]))


class Reading(threading.Thread):
    """One reading of all processes of a program. `program`, `gdb`: the paths of py-spy and gdb, as far as they are
    there; `result` is set when it is done."""

    def __init__(self, pid, program, request, limit, start, gdb=None):
        super().__init__(daemon=True)
        self.pid, self.program, self.request, self.limit, self.start_child = pid, program, request, limit, start
        self.gdb, self.result = gdb, None

    def run(self):
        found = self.family()
        most = PROCESSES if self.limit == LONG else FEW
        until = time.monotonic() + self.limit
        result = {"time": time.time(), "pid": self.pid, "left_out": max(len(found) - most, 0)}
        if not found:
            result["failure"] = "it has just ended"
        started = [self.begin(pid) for pid in found[:most]]
        result["processes"] = [self.end(*one, until=until) for one in started]
        if self.request["number"]:
            self.ask_flight_recorders(result["processes"])
        if self.request["native"]:
            self.debug(result["processes"])
        self.result = result

    @staticmethod
    def ask_flight_recorders(found):
        """Asks them for a dump, and notes where it goes."""
        for process in found:
            dump = flight_recorder.ask(process["pid"])
            if dump is not None:
                process["dump"] = short(dump)

    def debug(self, found):
        """Reads with gdb the processes that py-spy cannot read, those that only wait for others at last. One that is
        Python's and has no py-spy yet is left for that."""
        until = time.monotonic() + debugger.LIMIT
        failed = [process for process in found if "failure" in process]
        for process in sorted(failed, key=lambda one: waiting.FOR_A_CHILD in (one.get("does") or "")):
            lacks_py_spy = process["failure"].startswith((NO_PY_SPY, NO_START))
            if lacks_py_spy and debugger.runs_python(process["pid"]):
                continue
            if self.gdb is None:
                if not lacks_py_spy:
                    process["failure"] = short(process["failure"] + "; gdb, which is not there, would show more")
                continue
            if time.monotonic() >= until:
                process["failure"] = short(process["failure"] + "; no time was left for gdb")
                continue
            try:
                found_threads = debugger.read(self.gdb, process["pid"], until - time.monotonic(), self.start_child)
                process["threads"] = [dict(one, name=short(one["name"]),
                                           frames=[shown(**each) for each in one["frames"][:FRAMES]])
                                      for one in found_threads[:THREADS]]
                del process["failure"]
            except ValueError as error:
                process["failure"] = short("%s; %s" % (process["failure"], error))

    def family(self):
        """The program's processes. One of them may end meanwhile."""
        if processes.condition(self.pid) == b"X":
            return []
        for find in (activity.whole_family, activity.whole_family):
            with contextlib.suppress(OSError):
                return find(self.pid)
        return activity.family(self.pid)

    def begin(self, pid):
        """Starts py-spy for a process."""
        options = ["--locals"] * self.request["locals"]
        options.append("--native" if self.request["native"] else "--nonblocking")
        if not self.program:
            return pid, None, NO_PY_SPY
        try:
            child = self.start_child([self.program, "dump", "--json", "--pid", str(pid)] + options, env={}, cwd="/",
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            return pid, child, None
        except OSError as error:
            return pid, None, "%s: %s" % (NO_START, error.strerror)

    def end(self, pid, child, failure, until):
        """The result for a process."""
        found = {"pid": pid, "command": short(b" ".join(processes.command(pid)).decode(errors="replace"))}
        with contextlib.suppress(OSError, IndexError, ValueError):
            running = processes.condition(pid) == b"R"
            found["does"] = "running" if running else short(waiting.describe(pid, activity.BLOCKED, [pid]))
        if child:
            try:
                output, error = child.communicate(timeout=max(until - time.monotonic(), 0.01))
                failure = None if child.returncode == 0 else reason(error) or "py-spy failed"
                found["threads"] = threads(pid, output.decode(errors="replace"), self.request["locals"])
            except subprocess.TimeoutExpired:
                child.kill()
                child.stdout.close()
                child.stderr.close()
                failure = "py-spy took longer than %g s" % self.limit
            except ValueError:
                failure = failure or "py-spy printed something else"
        if failure:
            found.update(failure=failure, threads=kernel_threads(pid))
        return found


def encoded(result):
    """The result as JSON in one line of limited length: the last threads and frames are left out first."""
    text = json.dumps(result)
    for threads_kept, frames_kept in ((THREADS, 30), (4, 30), (1, 30), (1, 10), (1, 3), (0, 0)):
        if len(text) <= MOST:
            break
        for process in result["processes"]:
            process["threads"] = [dict(thread, frames=thread["frames"][:frames_kept])
                                  for thread in process["threads"][:threads_kept]]
        text = json.dumps(result)
    return text.encode()


def place(result):
    """Where the rank is, as a short JSON text of the same form: the process that shows it (as `main` of model/stack.rs)
    with its innermost frames; None if that is not known."""
    for process in sorted(result["processes"], key=lambda one: (
            "failure" in one, waiting.FOR_A_CHILD in (one.get("does") or "")))[:1]:
        thread = (process.get("threads") or [{"name": "", "active": False, "frames": []}])[0]
        innermost = [dict(frame) for frame in thread["frames"]]
        for frame in innermost:
            frame.pop("locals", None)
        for most in (30, 20, 12, 6, 2, 0):
            short_one = dict(process, command="", pid=0, threads=[dict(thread, frames=innermost[:most])])
            text = json.dumps(dict({name: result[name] for name in ("rank", "quiet", "ending")}, left_out=0,
                                   processes=[short_one])).encode()
            if len(text) <= reap.MOST_PLACE:
                return text
    return None


class Stacks:
    """The readings of one rank, one at a time. `path`: the rank's PATH; `start`: starts a child, as
    `subprocess.Popen`; `note_place`: is given where the rank is."""

    OWN = {"number": "", "locals": False, "native": False, "failed": True}  # a request of the supervisor itself

    def __init__(self, log, path, start, note_place=lambda text: None):
        self.log, self.path, self.start, self.note_place = log, path, start, note_place
        self.reading, self.quiet, self.last = None, 0, None  # last: the result that was recorded
        self.awaited = []  # the ranks that the library waits for, as it says itself
        self.recorded = None  # when a frame was written
        self.is_ending = False  # whether it was read before its end, or need not be
        # other nodes of Slurm's write the request; a network file system may remember that it was missing
        self.is_shared, self.due = "SLURMD_NODENAME" in os.environ, 0.0
        self.seen = self.mark()  # a request from before the rank's start is not for it

    def mark(self):
        """The identity of the file of the last request; None without one."""
        if self.is_shared and time.monotonic() >= self.due:
            self.due = time.monotonic() + LOOK
            with contextlib.suppress(OSError):
                os.listdir(self.log.directory)
        with contextlib.suppress(OSError):
            found = os.lstat(os.path.join(self.log.directory, reap.WANTED))
            return found.st_ino, found.st_mtime_ns
        return None

    def wanted(self):
        """The request that has come since the last call, if any."""
        mark = self.mark()
        if mark in (None, self.seen):
            return None
        self.seen = mark
        with contextlib.suppress(OSError, ValueError):
            return files.read_json(reap.WANTED, REQUEST)
        return None

    def follow(self, pid, quiet):
        """Begins what is asked for, and records what is done. `quiet`: seconds without progress until now."""
        self.finish(0)
        request = None if self.reading else self.wanted()
        if request:
            self.begin(pid, quiet, request)

    def begin(self, pid, quiet, request=OWN, limit=LONG, again=AGAIN):
        """Begins a reading, unless one goes on or, if no operator waits for it, one was recorded less than `again`
        seconds ago. Returns whether one goes on."""
        is_soon = self.recorded is not None and time.monotonic() - self.recorded < again
        if self.reading:
            return True
        if not request["number"] and is_soon:
            return False
        self.quiet = quiet
        gdb = debugger.find(self.path) if request["native"] else None
        self.reading = Reading(pid, py_spy(PROGRAMS, self.path), request, limit, self.start, gdb)
        self.reading.start()
        return True

    def read_before_end(self, pid, quiet):
        """Reads a program that is about to be asked for its end, once, if others have failed or it makes no
        progress."""
        if self.is_ending:
            return
        self.is_ending = True
        self.finish(0)
        request = self.wanted()
        if quiet >= QUIET or request and request["failed"]:
            if self.reading and not self.reading.request["locals"]:
                # an operator has just asked; variables are not for the log
                self.reading.request = dict(self.reading.request, failed=True)
            is_soon = not self.begin(pid, quiet, limit=SHORT, again=AGAIN_AT_END)
            if is_soon and self.last:
                self.note(dict(self.last, ending=True))
            self.finish(DELAY)

    def finish(self, seconds):
        """Records the result of a reading if it is done within this time."""
        if self.reading is None:
            return
        self.reading.join(seconds)
        result = self.reading.result
        if result is None:
            if not self.reading.is_alive():
                self.reading = None
            return
        request, self.reading = self.reading.request, None
        result.update(rank=self.log.rank, quiet=int(self.quiet), number=request["number"], ending=self.is_ending,
                      waits_for=self.awaited)
        if request["number"]:
            with contextlib.suppress(OSError):
                files.write("stack.%d" % self.log.rank, encoded(result).decode(), False)
        if request["failed"]:
            self.recorded, self.last = time.monotonic(), result
            self.log.write(b"k", [encoded(result)])
            self.note(result)

    def note(self, result):
        """Notes where the rank is, for the list of jobs: at its end for the result of the job."""
        text = place(result)
        if text and self.is_ending:
            # the rest of what is reserved is for the exits of ranks
            self.log.note(b"k", text, time.time(), frames.RESERVED // 4)
        elif text:
            self.note_place(text)
