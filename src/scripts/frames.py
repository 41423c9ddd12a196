"""A node's log of a job: frames, one a line (job/frames.rs reads them), and the short file `states` next to it."""
import ctypes
import os
import time

LONGEST = 1 << 16  # bytes; a longer line is cut into several frames, so that memory stays bounded
RESERVED = 1 << 16  # bytes for what must be recorded even if the disk is full
KEEP_SIZE, PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE: fallocate(2)
OUTPUT = (b"o", b"e")  # frames with output of a rank


def fallocate(file, mode, length):
    """fallocate(2) for the file's first bytes."""
    call = ctypes.CDLL(None).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    call(file, mode, 0, length)


def reserve(file):
    """Reserves room on the disk without growing the file, so that a later write fits even if the disk is full by then."""
    fallocate(file, KEEP_SIZE, RESERVED)


class Log:
    """The log in which one rank, or the job supervisor (as rank 0), writes its frames."""

    def __init__(self, directory, rank=0):
        self.directory, self.rank = directory, rank
        self.file = self.open("log")
        self.limit = None  # bytes that the log may take on this node
        self.freed = 0  # bytes at its start whose blocks were freed
        self.lost = 0  # lines of output that a full disk did not take
        self.torn = b""  # ends a line that a full disk cut off

    def open(self, name):
        return os.open(os.path.join(self.directory, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind, lines, attempts=1, at=None):
        """Appends frames in one write: with O_APPEND the writes of several ranks do not mix. A full disk loses output, not the
        training."""
        head = b"%.6f %d %s " % (at or time.time(), self.rank, kind)
        data = self.torn + b"".join(head + line + b"\n" for line in lines)
        while data:
            try:
                data = data[os.write(self.file, data):]
                self.torn = b"\n"
            except OSError:
                attempts -= 1
                if attempts <= 0:
                    self.lost += data.lstrip(b"\n").count(b"\n") if kind in OUTPUT else 0
                    return
                time.sleep(1)
        self.torn = b""
        if self.limit:
            self.free_oldest()

    def free_oldest(self):
        """Frees the blocks of the oldest part of the log if the log exceeds its limit. The bytes keep their offsets, so that a reader
        continues where it was."""
        start = os.fstat(self.file).st_size - self.limit
        if start >= self.freed + self.limit // 8:
            self.freed = start
            fallocate(self.file, KEEP_SIZE | PUNCH_HOLE, start)

    def reserve_states(self):
        try:
            states = self.open("states")
            reserve(states)
            os.close(states)
        except OSError:
            pass

    def state(self, kind, text, at=None):
        """Writes a frame about the rank's progress, also into `states`: it shows which rank failed first, even if earlier
        output or a full disk delays the frame in the log."""
        at = at or time.time()
        try:
            states = self.open("states")
            os.write(states, b"%.6f %d %s %s\n" % (at, self.rank, kind, text))
            os.close(states)
        except OSError:
            pass
        self.write(kind, [text], attempts=3 if kind == b"x" else 1, at=at)


def updates(line):
    """The states of a progress bar that overwrote one another in a line."""
    return [part for part in line.split(b"\r") if part]


class Lines:
    """Turns a stream's bytes into whole lines; each state of a progress bar is one. A line without an end is shown after a second.
    `see` is called with each line; a true result keeps the line out of the log."""

    def __init__(self, log, kind, see=None):
        self.log, self.kind, self.see = log, kind, see
        self.rest, self.since = b"", 0.0

    def take(self, data):
        *whole, rest = (self.rest + data).split(b"\n")
        lines = [part for line in whole for part in updates(line) or [b""]]
        # the last state of an unfinished line may still grow
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
            self.log.write(self.kind, lines)

    def idle(self):
        """Shows a line that has waited for its end for a second."""
        if self.rest and time.monotonic() - self.since > 1:
            self.end()

    def end(self):
        self.show(updates(self.rest))
        self.rest = b""
