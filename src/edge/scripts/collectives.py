"""Who keeps the others waiting in a collective operation, and when one ended last, by Horovod's own timeline (docs/timeline.rst of
Horovod), which rank 0 writes. Under Gloo, Horovod's check for stalled ranks never names one (StallInspector::CheckForStalledTensors
is given the controller's global_ranks_, and Gloo leaves them empty; seen with 0.28.1).

The file is read behind the writer and given back to the disk at once. With HOROVOD_TIMELINE_MARK_CYCLES something is written in
every cycle: without that the last records of a stall would stay in the writer's buffer, and nobody could tell a stall from a
timeline that has ended."""
import contextlib
import ctypes
import os
import re
import time

WINDOW = 1 << 20  # bytes of records that are kept for the case that nothing more happens
SEAM = 400  # no record is longer, but for names of tensors
NAMES = 100000  # tensors whose names are kept; PyTorch numbers those that have none without end
FRESH = 10  # seconds after which a timeline without a new record says nothing any more
KEEP_SIZE, PUNCH_HOLE = 1, 3  # FALLOC_FL_KEEP_SIZE, and with it FALLOC_FL_PUNCH_HOLE: fallocate(2)

# the first character of a record may have been read as the bracket that stood there before
CYCLE = re.compile(rb'[{\]]?"ph": "i", "name": "CYCLE_START"[^}]*\}[,\]]?')
TENSOR = re.compile(rb'"pid": (\d+), "args": \{"name": "((?:[^"\\]|\\.)*)"')
RECORD = re.compile(rb'"ph": "([BEX])",(?: "name": "([^"]*)",)? "ts": \d+, "pid": (\d+)')
END = b'"ph": "E"'
WRITER = re.compile(rb"^wchar: (\d+)$", re.M)  # proc(5), /proc/PID/io


def environment(path):
    """What makes Horovod write the timeline there, for rank 0. It has to be set for all ranks alike."""
    return {"HOROVOD_TIMELINE": path, "HOROVOD_TIMELINE_MARK_CYCLES": "1"}


def fallocate(file, mode, length):
    """fallocate(2) for the file's first bytes; false where its file system cannot do that."""
    call = ctypes.CDLL(None).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    return call(file, mode, 0, length) == 0


class Collectives:
    """Reads the timeline in `path`, which need not be there yet; `size` is the number of ranks."""

    def __init__(self, path, size):
        self.path, self.size = path, size
        self.file, self.read, self.window, self.tensors = None, 0, b"", {}
        # when something was written last, when an operation ended last, since when which tensor is waited for
        self.fresh = self.ended = self.looked = time.monotonic()
        self.waiting = {}
        self.suspect = self.writer = None  # the thread that seems to write it; the one that does, and has been made to give way

    def make(self):
        """Makes the file; false where the disk would not take its bytes back, so that it would only grow."""
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(self.file, b"\n" * 8192)
            return self.forget(8192)
        except OSError:
            return False
        finally:
            os.ftruncate(self.file, 0)

    def forget(self, end):
        """Gives the bytes before `end` back to the disk."""
        return fallocate(self.file, PUNCH_HOLE, end)

    def look(self):
        """Takes in what is new. Gives, of each tensor that some ranks wait for others in, for how many seconds, its name and the
        missing ranks."""
        last, self.looked = self.looked, time.monotonic()
        now = self.looked
        if self.read and os.pread(self.file, 1, 0) != b"\0":
            # what was read was given back: hvd.init once more has begun the file anew
            self.read, self.window, self.tensors, self.waiting = 0, b"", {}, {}
            self.suspect = self.writer = None
        while True:
            data = os.pread(self.file, WINDOW, self.read)
            if not data:
                break
            self.read += len(data)
            self.fresh = now
            # records may be split between two reads
            seam = self.window[-SEAM:] + data
            for pid, name in TENSOR.findall(seam) if b'"process_name"' in seam else []:
                self.tensors[pid] = name
            while len(self.tensors) > NAMES:
                del self.tensors[next(iter(self.tensors))]
            if END in self.window[1 - len(END):] + data:
                self.ended, self.waiting = now, {}
            self.window = CYCLE.sub(b"", self.window + data)[-WINDOW:]
        self.forget(self.read)
        if now - last > FRESH:
            # nobody looked, and perhaps all of it stood still
            self.waiting = {}
        if now - self.fresh > FRESH or now - self.ended < 1:
            return []
        found, since = [], {}
        for pid, ready in negotiations(self.window).items():
            since[pid] = self.waiting.get(pid, now)
            missing = sorted(set(range(self.size)) - ready)
            if ready and missing:
                found.append((now - since[pid], self.tensors.get(pid, b"?"), missing))
        self.waiting = since
        return found

    def quieten(self, processes):
        """Has the thread that writes the timeline run only where nobody else wants to: it never sleeps (TimelineWriter::WriterLoop,
        horovod/common/timeline.cc), and would take a core from the training. It is known by having written as many bytes as are in
        the file, twice in a row."""
        if self.writer:
            return
        least = os.fstat(self.file).st_size
        written = {task: count for process in processes for task, count in written_by_tasks(process)}
        most = os.fstat(self.file).st_size * 1.1
        found = [task for task, count in written.items() if max(least * 0.9, WINDOW / 8) < count < most]
        if len(found) == 1 and found[0] == self.suspect:
            os.setpriority(os.PRIO_PROCESS, self.suspect, 19)
            self.writer = self.suspect
        self.suspect = found[0] if len(found) == 1 else None

    def last(self):
        """The thread that writes, and when an operation ended last, as long as it goes on; else nothing."""
        if self.writer and time.monotonic() - self.fresh <= FRESH:
            return self.writer, self.ended
        return None, None

    def close(self):
        with contextlib.suppress(OSError):
            os.close(self.file)
            os.unlink(self.path)


def written_by_tasks(process):
    """A process's threads, each with the bytes that it has written to any file; none of what cannot be read."""
    folder = "/proc/%d/task" % process
    with contextlib.suppress(OSError):
        for task in os.listdir(folder):
            with contextlib.suppress(OSError):
                with open(os.path.join(folder, task, "io"), "rb") as file:
                    yield int(task), int(WRITER.search(file.read()).group(1))


def negotiations(records):
    """The ranks that are ready by the tensor's number, where not all are."""
    ready = {}
    for phase, name, pid in RECORD.findall(records):
        if phase == b"B" and name.startswith(b"NEGOTIATE_"):
            ready[pid] = set()
        elif phase == b"X" and pid in ready and name.isdigit():
            ready[pid].add(int(name))
        elif phase == b"E":
            ready.pop(pid, None)
    return ready
