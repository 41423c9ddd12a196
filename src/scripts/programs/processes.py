"""Processes: what /proc has about them (proc(5)), and children whose exits are collected without taking one
another's."""
import contextlib
import os
import resource
import signal
import subprocess
import threading

ENDED = (b"Z", b"X")  # states of a process that has ended
MAX_FILES = 1 << 20  # programs may close every descriptor up to the limit when they start another one
SHELLS = {"sh", "bash", "dash", "ash", "ksh", "ksh93", "mksh", "zsh", "busybox"}


def raise_open_files():
    """Raises the soft limit of open files to the hard one, for this process and what it starts. Docker 29 leaves 1024,
    which data loaders and launchers of many ranks exceed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def fields(path):
    """Returns the fields of a `stat` file after the name, which may contain any character; the state comes first."""
    with open(path, "rb") as file:
        return file.read().rpartition(b") ")[2].split()


def condition(pid):
    """The state as a letter: T if a signal has stopped the process, X if it is gone."""
    try:
        return fields("/proc/%d/stat" % pid)[0]
    except (OSError, IndexError):
        return b"X"


def start_time(pid):
    """When a process was started, in ticks since the boot, or None if it is gone. Distinguishes a process from a later
    one with the same id."""
    with contextlib.suppress(OSError, IndexError):
        return fields("/proc/%d/stat" % pid)[19]
    return None


def all_processes():
    """State, parent and process group of every process, by its number."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent, group = fields("/proc/%s/stat" % pid)[:3]
        except (OSError, ValueError):
            continue
        found[int(pid)] = state, int(parent), int(group)
    return found


def is_any_alive(chosen):
    """Whether a process has not ended for which `chosen(parent, group)` is true."""
    return any(chosen(parent, group) for state, parent, group in all_processes().values() if state not in ENDED)


def descendants(pid, processes):
    """The process and all that descend from it, given the result of `all_processes`."""
    found = [pid]
    for one in found:
        found += [child for child, (_state, parent, _group) in processes.items() if parent == one]
    return found


def ancestors(pid):
    """The process, its parent, and so on up to the first one; None if they cannot be read."""
    found = [pid]
    while found[-1] > 1:
        try:
            found.append(int(fields("/proc/%d/stat" % found[-1])[1]))
        except (OSError, IndexError):
            return None
    return found


def children(process, thread):
    """The processes that a thread has started and not waited for; empty if the kernel does not list them
    (CONFIG_PROC_CHILDREN)."""
    with contextlib.suppress(OSError), open("/proc/%d/task/%s/children" % (process, thread)) as file:
        return [int(word) for word in file.read().split()]
    return []


def children_of_shell(pid):
    """The processes that a shell has started itself; empty for any other program."""
    with contextlib.suppress(OSError):
        if os.path.basename(os.readlink("/proc/%d/exe" % pid)) in SHELLS:
            return children(pid, pid)
    return []


def reads_pipe(pid):
    """Whether the standard input is a pipe."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/%d/fd/0" % pid).startswith("pipe:")
    return False


def environment(pid):
    """The environment that a process was started with, as NAME=VALUE; empty if it cannot be read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def command(pid):
    """The arguments of a process; empty if it is gone."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read().split(b"\0")[:-1]
    except OSError:
        return []


def name(pid):
    """The process's name (`comm`); empty if it is gone."""
    try:
        with open("/proc/%d/comm" % pid, "rb") as file:
            return file.read().strip()
    except OSError:
        return b""


def signals(pid, field):
    """The set of signals in a field of `status`, as a bit mask; None if it cannot be read. `pid`: a process, or
    `PROCESS/task/THREAD`."""
    # as bytes, because the name in it may contain any character
    with contextlib.suppress(OSError, StopIteration), open("/proc/%s/status" % pid, "rb") as file:
        line = next(line for line in file if line.startswith(field + b":"))
        return int(line.split()[1], 16)
    return None


def ignores(pid, number):
    """Whether a process ignores a signal, or is gone."""
    ignored = signals(pid, b"SigIgn")
    return ignored is None or bool(ignored & 1 << number - 1)


def is_killed(pid):
    """Whether a process that still exists has been killed: it waits in the kernel, and no grace period helps."""
    return bool((signals(pid, b"SigPnd") or 0) & 1 << signal.SIGKILL - 1)


def send(number, pids, to=os.kill):
    """Sends a signal to those processes (with `os.killpg`: process groups) that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            to(pid, number)


class Children:
    """The children that this process has started. It also gets orphaned processes as children (it is the main process
    of a container, or a subreaper). Collecting their exits with waitpid(-1) would also take that of a child whose
    `Popen` still waits for it, and which could later signal a process with the same id."""

    def __init__(self):
        self.started, self.lock = [], threading.Lock()

    def start(self, *args, **options):
        """As `subprocess.Popen`."""
        # between fork and return only Popen knows the number
        with self.lock:
            child = subprocess.Popen(*args, **options)
            self.started.append(child)
            return child

    def reap_orphans(self):
        """Collects the exits of all children that were not started here."""
        with self.lock:
            self.started = [child for child in self.started if child.poll() is None]
            known = {child.pid for child in self.started}
            with contextlib.suppress(ChildProcessError):
                while True:
                    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    # a child of ours; its Popen collects it
                    if ended is None or ended.si_pid in known:
                        return
                    os.waitpid(ended.si_pid, 0)
