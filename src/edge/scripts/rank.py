"""The supervisor of one rank: starts the program that the run's record names and writes what it says and how it
ends into this node's log, a frame a line (core/frames.rs reads them). The launcher only ever starts this file, so no
word of the user's command passes through a shell, and the output does not pass through the launcher.

When the launcher goes away (a rank failed elsewhere, it was killed, the connection broke), the program is ended:
Horovod under Gloo would leave it running."""
import ctypes
import json
import os
import resource
import select
import selectors
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 1 << 16  # a line longer than this is cut into several frames, so that memory stays bounded


def first(*names):
    for name in names:
        if os.environ.get(name):
            return int(os.environ[name])
    return 0


RANK = first("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOG = os.open(os.path.join(HERE, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


lost = 0  # bytes that a full disk did not take
torn = b""  # ends a line that a full disk cut off


def frames(kind, lines, tries=1):
    """Appends frames in one write: with O_APPEND the writes of several ranks do not mix. A full disk loses output, not
    the training."""
    global lost, torn
    head = b"%.6f %d %s " % (time.time(), RANK, kind)
    data = torn + b"".join(head + line + b"\n" for line in lines)
    while data:
        try:
            data = data[os.write(LOG, data):]
            torn = b"\n"
        except OSError:
            tries -= 1
            if tries <= 0:
                lost += len(data)
                return
            time.sleep(1)
    torn = b""


def state(kind, text):
    """A frame that says how far the rank is. It goes into `states` too, a short file beside the log."""
    frames(kind, [text], tries=30 if kind == b"x" else 1)
    try:
        file = os.open(os.path.join(HERE, "states"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, b"%.6f %d %s %s\n" % (time.time(), RANK, kind, text))
        os.close(file)
    except OSError:
        pass


def updates(line):
    """The states of a progress bar that were written over one another in a line."""
    return [part for part in line.split(b"\r") if part]


class Lines:
    """Turns a stream's bytes into whole lines; each state of a progress bar is one. What waits for its end for a second is
    shown as it is."""

    def __init__(self, kind):
        self.kind, self.rest, self.since = kind, b"", 0.0

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
        if lines:
            frames(self.kind, lines)

    def idle(self):
        if self.rest and time.monotonic() - self.since > 1:
            self.end()

    def end(self):
        if updates(self.rest):
            frames(self.kind, updates(self.rest))
        self.rest = b""


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
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, prctl(2)


def main():
    with open(os.path.join(HERE, "job.json")) as file:
        job = json.load(file)
    limits(job["ulimits"])
    with open(os.path.join(HERE, "env.json")) as file:
        given = json.load(file)
    env = dict(os.environ, HVDCTL_PROGRAM="1", PYTHONUNBUFFERED="1")
    if job["interface"]:
        # the launcher knows the master's interface only; this is this node's own
        env.update(HOROVOD_GLOO_IFACE=job["interface"], NCCL_SOCKET_IFNAME=job["interface"])
        env.setdefault("GLOO_SOCKET_IFNAME", job["interface"])
    # the inventory's own words go before all that
    env.update(given)
    try:
        child = subprocess.Popen(
            job["command"], cwd=job["cwd"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, preexec_fn=own_group, bufsize=0,
        )
    except (OSError, subprocess.SubprocessError) as error:
        frames(b"b", [str(error).encode(errors="replace").replace(b"\n", b" ")])
        # what shells and `docker run` say: 127 is not found, 126 is found and cannot be run
        code = 127 if isinstance(error, FileNotFoundError) else 126
        state(b"x", b"%d" % code)
        return code
    state(b"s", b"")

    deadline = None

    def end(_signal=None, _frame=None):
        nonlocal deadline
        if deadline is None:
            deadline = time.monotonic() + job["grace"]
            # the program alone: what it started (data loaders, say) is its own to end, before or after a last checkpoint
            os.kill(child.pid, signal.SIGTERM)

    def kill(number):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)

    selector = selectors.DefaultSelector()
    streams = {child.stdout: Lines(b"o"), child.stderr: Lines(b"e")}
    for stream in streams:
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ)
    # a peer that closed its end of our standard output shows as an error on it: the launcher has gone
    launcher = select.poll()
    launcher.register(1, 0)

    open_streams = set(streams)
    while True:
        for key, _ in selector.select(0.2):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                streams[key.fileobj].take(data)
            else:
                streams[key.fileobj].end()
                selector.unregister(key.fileobj)
                open_streams.discard(key.fileobj)
        code = child.poll()
        if code is not None:
            break
        if not open_streams:
            time.sleep(0.05)
        if launcher.poll(0):
            end()
        for lines in streams.values():
            lines.idle()
        if deadline is not None and time.monotonic() > deadline:
            kill(signal.SIGKILL)

    # what the program started must not outlive it; what it said last must not be lost
    kill(signal.SIGKILL)
    for stream in open_streams:
        try:
            while True:
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    break
                streams[stream].take(data)
        except BlockingIOError:
            pass
        streams[stream].end()
    code = code if code >= 0 else 128 - code
    if lost:
        frames(b"e", [b"hvdctl: the disk was full, %d bytes of this rank's output are lost" % lost])
    # an end that was asked for (another rank failed, a signal) is no failure of this rank's own
    state(b"x", b"%d%s" % (code, b" asked" if deadline is not None else b""))
    return code


if __name__ == "__main__":
    sys.exit(main())
