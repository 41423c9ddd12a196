"""The main process of a worker: starts its sshd and ends in order. The arguments are the seconds that it may take for
that, and the command that becomes sshd.

When it is asked to end (SIGTERM: `docker stop`, or the engine or the machine shuts down), or its sshd has ended, it
asks the rank supervisors in the worker to end their programs, and waits for them. The ranks get their grace period, as
far as what has asked lets this process live. A rank supervisor knows by the file `stopping` why it is asked."""
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

NAME = b"hvdctl-worker"  # of this process, so that others find it (workers.py)
SUPERVISOR = b"hvdctl-rank"  # the name of a rank supervisor (reap.py)
REAPER = b"reap.py"  # reports how the ranks have ended
REPORT_LIMIT = 5  # seconds for that when all ranks have ended
SSHD_LIMIT = 2  # seconds for the end of sshd
PLACE = os.environ.get("HVDCTL_PLACE", "/run/hvdctl")
STOPPING = os.path.join(PLACE, "stopping")
# of a worker that is a process of the login: others of the login, and their ranks, may run on the machine
MARK = b"HVDCTL_PROCESS=" + os.environ.get("HVDCTL_PROCESS", "").encode()
WAITED = {signal.SIGTERM, signal.SIGCHLD}
PR_SET_PDEATHSIG = 1  # prctl(2)


def read(pid, name):
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


def own():
    """The other processes of this worker."""
    found = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    if MARK.endswith(b"="):
        return found
    return [pid for pid in found if MARK in read(pid, "environ").split(b"\0")]


def send(number, pid):
    with contextlib.suppress(OSError):
        os.kill(pid, number)


class Worker:
    def __init__(self, limit, command):
        self.limit, self.code = limit, None
        with contextlib.suppress(OSError):
            # of an earlier start of this container
            os.unlink(STOPPING)
        for number in WAITED:
            signal.signal(number, lambda *_: None)
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
        self.sshd = subprocess.Popen(command, preexec_fn=self.prepare)

    def prepare(self):
        """In the child. Where this process is killed and its container does not end with it, nothing else would know
        that sshd belongs to it; its sessions go on."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def reap(self):
        """Collects the exits of children: the main process of a container gets every orphan."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.sshd.pid:
                    self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def run(self):
        while self.code is None:
            if signal.sigwaitinfo(WAITED).si_signo == signal.SIGTERM:
                break
            self.reap()
        is_asked = self.code is None
        self.end_ranks()
        self.end_sshd()
        return 0 if is_asked else self.code or 1

    def end_ranks(self):
        with contextlib.suppress(OSError):
            os.makedirs(PLACE, exist_ok=True)
            os.close(os.open(STOPPING, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        asked, ended, until = set(), None, time.monotonic() + self.limit
        while time.monotonic() < until:
            processes = own()
            ranks = {pid for pid in processes if read(pid, "comm").strip() == SUPERVISOR}
            # one that was starting, too
            for pid in ranks - asked:
                send(signal.SIGTERM, pid)
            asked |= ranks
            if not ranks:
                ended = ended or time.monotonic()
                reports = any(REAPER in read(pid, "cmdline") for pid in processes) if asked else False
                if not reports or time.monotonic() > ended + REPORT_LIMIT:
                    return
            time.sleep(0.1)
            self.reap()

    def end_sshd(self):
        if self.code is None:
            send(signal.SIGTERM, self.sshd.pid)
        until = time.monotonic() + SSHD_LIMIT
        while self.code is None and time.monotonic() < until:
            time.sleep(0.02)
            self.reap()


def main():
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as file:
        file.write(NAME)
    return Worker(float(sys.argv[1]), sys.argv[2:]).run()


if __name__ == "__main__":
    sys.exit(main())
