"""The other nodes of a job, as the job supervisor reaches them: over the sshd of their workers."""
import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import threading
import time

import files
import outside
import reap
from here import command_of

HERE = os.path.dirname(os.path.abspath(__file__))
# closed to others; programs/ssh.sh looks there as well. Short, because the path of a socket has at most 107 bytes, and
# ssh adds 17
SOCKETS = os.environ["HVDCTL_RUN"] + "-" + os.path.basename(HERE).rpartition("-")[2]
SHARED = ["-S", os.path.join(SOCKETS, "%h")]
# ends the main process of the worker in which it runs: that of a container, or that with a number, which may be another
# program's by now. worker/init.py has this name; the main processes of earlier workers were sshd themselves
END_WORKER = ('if [ -z "${HVDCTL_MAIN:-}" ]; then kill 1; exit; fi; '
              'case $(cat "/proc/$HVDCTL_MAIN/comm") in hvdctl-worker | sshd) kill "$HVDCTL_MAIN" ;; esac')
READY_LIMIT = 8  # seconds for a node to say whether ranks can start there
OUTSIDE_LIMIT = 8  # seconds for a node to find the files outside the mounts
PROGRAM_LIMIT = 15  # seconds for an answer of reap.py beyond its grace period
MOST = 4096  # bytes of a short answer
MOST_TEXT = 300  # characters of an error


def for_each(workers, work):
    """Calls `work(worker)` for all workers at once and waits for all."""
    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def kill_after(child, seconds):
    """Kills a child after so many seconds, unless the timer that it returns is cancelled before."""
    timer = threading.Timer(seconds, child.kill)
    timer.daemon = True
    timer.start()
    return timer


def reaper(*arguments):
    """The line of sh that starts reap.py."""
    return " ".join(map(shlex.quote, command_of("reap.py", *arguments)))


def of_role(number):
    """The arguments of reap.py for one role only, by its number."""
    return [] if number is None else ["%s%d" % (reap.ROLE, number)]


def await_ready(child):
    """Reads what a reap.py prints up to its first line: the image's start-up files may have printed something."""
    line = None
    while line != reap.READY:
        # in pieces: a line may have no end
        line = child.stdout.readline(MOST)
        if not line:
            raise OSError("no answer")
        line = line.strip()


def clock_offset(child):
    """By how many seconds the clock of another node's reap.py is ahead of this one. It can be wrong by no more than the
    shortest round trip, however busy the nodes are: ranks that fail because of one another do so within fractions of a
    second."""
    rounds = []
    for _ in range(5):
        asked = time.time()
        child.stdin.write(b"\n")
        theirs = float(child.stdout.readline(MOST))
        answered = time.time()
        if not files.is_number(theirs):
            raise ValueError("no time")
        rounds.append((answered - asked, theirs - (asked + answered) / 2))
    return min(rounds)[1]


class Report:
    """The reports of the nodes at the end of an attempt: for each the result of reap.py with `ahead`, its clock offset;
    for those that did not answer, the error instead; and the files outside the mounts, if there is no other attempt."""

    def __init__(self):
        self.ends, self.silent, self.outside = {}, {}, {}


class Workers:
    """The job's other nodes."""

    def __init__(self, launch, children):
        self.list, self.port, self.children = launch["workers"], launch["port"], children
        self.own = set(launch.get("own", ()))  # variables of this node alone
        self.connections = {}  # node: the ssh process of its shared connection

    def ssh(self, worker, options, command, stdin, stdout, stderr=None, env=None, **more):
        """Starts a command in a worker, over its sshd, as the launcher reaches it. `stderr`: as `stdout` if it is not
        given; `env`: what the remote shell passes on under Slurm, which is that of this process without what is of this
        node alone if it is not given."""
        argv = [os.path.join(HERE, "ssh"), "-p", str(self.port), "-o", "ConnectTimeout=5"] + options
        # without the job's mark: this ssh must not be ended with the rest of the job
        env = {name: value for name, value in (env or os.environ).items()
               if name != "HVDCTL_JOB" and name not in self.own}
        return self.children.start(argv + [worker["address"]] + command, env=env, stdin=stdin, stdout=stdout,
                                   stderr=stdout if stderr is None else stderr, bufsize=0, **more)

    def connect(self):
        """Opens a connection to each worker that has none: the launcher's test whether it answers uses it, and at the
        end what ends the ranks. Where it fails, each logs in by itself. A worker of the job does not exit while the
        connection is open (worker/spec.rs)."""
        try:
            os.makedirs(SOCKETS, 0o700, exist_ok=True)
            for worker in self.list:
                node = worker["node"]
                # once: a thread that got no answer may close it meanwhile
                child = self.connections.get(node)
                if child is None or child.poll() is not None:
                    options = SHARED + ["-N", "-o", "ControlMaster=auto", "-o", "ControlPersist=no"]
                    # the stand-in for ssh under Slurm ends with this process by its input (slurm/srun.sh)
                    self.connections[node] = self.ssh(worker, options, [], subprocess.PIPE, subprocess.DEVNULL)
        except OSError:
            pass

    def disconnect(self, node):
        """Closes the connection to a node; ssh removes its socket then."""
        child = self.connections.pop(node, None)
        if child and child.poll() is None:
            child.terminate()

    def disconnect_all(self):
        for node in list(self.connections):
            self.disconnect(node)
        shutil.rmtree(SOCKETS, ignore_errors=True)

    def start_reaper(self, worker, *arguments):
        """Starts reap.py on another node. The open connection may lead to a machine that is gone: if nothing arrives
        over it, another one is opened."""
        command = [reaper(*arguments)]
        child = self.ssh(worker, SHARED, command, subprocess.PIPE, subprocess.PIPE)
        output = select.poll()
        output.register(child.stdout, select.POLLIN)
        if not output.poll(5000):
            child.kill()
            with child:
                pass  # not read to their ends: the open connection may hold the pipes
            self.disconnect(worker["node"])
            child = self.ssh(worker, [], command, subprocess.PIPE, subprocess.PIPE)
        return child

    def reap(self, worker, grace, again, report, ended, everywhere, failed=False, role=None):
        """Ends the job's ranks on another node, and what else is left of it there once they have ended `everywhere`.
        Sets `ended` when the ranks have. `failed`: whether a rank has failed; `role`: the number of the only role
        that is ended."""
        node = worker["node"]
        report.silent[node] = "no answer"
        try:
            child = self.start_reaper(worker, str(grace), *["again"] * again, *["failed"] * failed, *of_role(role))
        except OSError:
            ended.set()
            return
        late = kill_after(child, grace + PROGRAM_LIMIT)
        with child:
            try:
                self.read_end(child, node, report)
            except (OSError, ValueError):
                # a connection that broke during the comparison of clocks does not invalidate the report
                if node not in report.ends and child.wait() != -signal.SIGKILL:
                    last = (child.stderr.read(1 << 16) or b"").decode(errors="replace").strip().splitlines()[-1:]
                    report.silent[node] = "".join(last)[:MOST_TEXT] or "no answer"
            late.cancel()
            ended.set()
            if node in report.ends and not again:
                self.read_outside(child, node, report)
            everywhere.wait()
            late = kill_after(child, PROGRAM_LIMIT)
        late.cancel()
        if node in report.silent and child.returncode == -signal.SIGKILL:
            report.silent[node] = "no answer within %d s" % (grace + PROGRAM_LIMIT)
            self.disconnect(node)

    @staticmethod
    def read_end(child, node, report):
        await_ready(child)
        report.ends[node] = dict(files.parse(child.stdout.readline(files.MOST), reap.REPORT), ahead=0.0)
        report.silent.pop(node, None)
        report.ends[node]["ahead"] = clock_offset(child)

    @staticmethod
    def read_outside(child, node, report):
        """Asks a node whose ranks have ended for the files outside the mounts. What the job's result has must not
        depend on the answer."""
        report.outside[node] = outside.UNSEEN
        late = kill_after(child, OUTSIDE_LIMIT)
        try:
            child.stdin.write(reap.OUTSIDE.encode() + b"\n")
            report.outside[node] = files.parse(child.stdout.readline(files.MOST), files.optional(outside.REPORT))
        except (OSError, ValueError):
            pass
        late.cancel()

    def answering(self, candidates, grace=0):
        """The nodes that answer. Ends what is left of the job there, within the grace period in seconds."""
        report, everywhere = Report(), threading.Event()
        everywhere.set()
        for_each(candidates, lambda worker: self.reap(worker, grace, True, report, threading.Event(), everywhere))
        return set(report.ends)

    def started(self, worker, role=None, since=0):
        """How many ranks have started on a node, or None if it does not answer. Uses a login of its own: the open
        connection is for the end. `role`: the number of the only one that counts; `since`: when they have, by the
        node's clock."""
        command = [reaper("started", "%.6f" % since, *of_role(role))]
        try:
            child = self.ssh(worker, [], command, subprocess.DEVNULL, subprocess.PIPE)
        except OSError:
            return None
        late = kill_after(child, PROGRAM_LIMIT)
        try:
            with child:
                await_ready(child)
                return int(child.stdout.readline(MOST))
        except (OSError, ValueError):
            return None
        finally:
            late.cancel()

    def signal(self, worker, number):
        """Sends a signal to the ranks of a node."""
        # before Python 3.11, str() of one of the signal module is its name
        command = [reaper("signal", "%d" % number)]
        with contextlib.suppress(OSError):
            child = self.ssh(worker, SHARED, command, subprocess.DEVNULL, subprocess.DEVNULL)
            late = kill_after(child, PROGRAM_LIMIT)
            child.wait()
            late.cancel()

    def ready(self, worker):
        """Asks a node whether ranks can start there. Returns the exit code of `reap.py ready`, or None without an
        answer: a connection that does not lead to the node any more is closed."""
        command = [reaper("ready")]
        try:
            child = self.ssh(worker, SHARED, command, subprocess.DEVNULL, subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(READY_LIMIT)
                if code in (0, reap.DRAINED):
                    return code
            child.kill()
            child.wait()
        except OSError:
            pass
        self.disconnect(worker["node"])
        return None

    def end_all(self):
        """Ends the workers of this job's own: their main process, and with it the container. Its number is 1 in a
        container."""

        def end(worker):
            try:
                self.ssh(worker, SHARED, [END_WORKER], subprocess.DEVNULL, subprocess.DEVNULL).wait(20)
            except (OSError, subprocess.SubprocessError):
                pass

        for_each(self.list, end)
