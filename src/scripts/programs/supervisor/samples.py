"""Samples of what a rank, its node and the node's GPUs use while the job runs: frames in the file `samples` next to the
log, for `hvdctl top` and `hvdctl report` (record/samples.rs reads them). Each rank supervisor samples its own rank. The
one that holds the lock on the file also samples the node and its GPUs; when it ends, another one takes the lock.

The file stays small however long the job runs: samples become rarer with the job's age (`interval`), and end at MOST
bytes."""
import contextlib
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
import activity  # noqa: E402
import starting  # noqa: E402
from processes import fields  # noqa: E402

MOST = 64 << 20  # bytes of the file
# the interval is at least the job's age divided by this: with 16 ranks and GPUs, 64 MiB last for a month
SERIES = 10000
KIND = b"m"
MEBI, KIBI, SECTOR = 1 << 20, 1 << 10, 512
PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")  # in a second
AGAIN = 60  # seconds until an nvidia-smi that has ended is started again
LONGEST = 300  # bytes of a text
# devices that are no disks, or whose disks are counted already
BLOCKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
QUERY = ("index,uuid,name,driver_version,memory.total,power.limit,"
         "utilization.gpu,memory.used,power.draw,temperature.gpu,clocks.sm,clocks.mem")
DESCRIBES = 6  # fields of a GPU that stay the same


def interval(every, age):
    """Seconds between two samples of a job that has run for `age` seconds."""
    return max(every, age / SERIES)


def lines_of(path):
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
        return file.read().splitlines()
    return []


def text(path):
    return "".join(lines_of(path)[:1]).strip()


def number(word):
    """A number of nvidia-smi as a whole one; `-` for one that the GPU does not have ([N/A])."""
    try:
        return "%d" % round(float(word))
    except (ValueError, OverflowError):
        return "-"


def encoded(words):
    """A text in one line of limited length."""
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:LONGEST].encode(errors="replace")


class Usage:
    """The usage of a rank's processes until now: seconds of processors, bytes of memory, bytes read from and written
    to disks."""

    def __init__(self, pid):
        self.processor = self.memory = self.read = self.written = 0
        for process in activity.whole_family(pid):
            # one that has just ended cannot be read
            with contextlib.suppress(OSError, IndexError, ValueError):
                self.add(process, process == pid)

    def add(self, process, is_first):
        stat = fields("/proc/%d/stat" % process)
        self.processor += sum(map(int, stat[11:15])) / TICK
        with open("/proc/%d/statm" % process) as file:
            resident, shared = map(int, file.read().split()[1:3])
        # what processes share, such as a data set that loaders were forked with, is counted with the first one
        self.memory += (resident if is_first else max(resident - shared, 0)) * PAGE
        # not every kernel counts them, or shows them for another user's process
        with contextlib.suppress(OSError, StopIteration):
            path = "/proc/%d/io" % process
            read, written = activity.value(path, b"read_bytes"), activity.value(path, b"write_bytes")
            self.read, self.written = self.read + read, self.written + written


class NodeUsage:
    """The usage of the whole node, and bytes that its network interface and InfiniBand adapters have received and
    sent."""

    def __init__(self, interface):
        words = list(map(int, (text("/proc/stat").split()[1:9]) or [0] * 8))
        self.idle, self.total = sum(words[3:5]), sum(words)
        memory = {line.split(":")[0]: line.split()[1] for line in lines_of("/proc/meminfo") if len(line.split()) > 1}
        self.memory_total = int(memory.get("MemTotal", 0)) * KIBI
        self.memory = self.memory_total - int(memory.get("MemAvailable", 0)) * KIBI
        self.received = self.sent = self.read = self.written = 0
        for line in lines_of("/proc/net/dev"):
            name, _, counts = line.partition(":")
            if name.strip() == interface:
                words = counts.split()
                self.received, self.sent = int(words[0]), int(words[8])
        with contextlib.suppress(OSError):
            for adapter in os.listdir("/sys/class/infiniband"):
                self.add_ports("/sys/class/infiniband/%s/ports" % adapter)
        for line in lines_of("/proc/diskstats"):
            words = line.split()
            if len(words) > 9 and not words[2].startswith(BLOCKS) and os.path.isdir("/sys/block/" + words[2]):
                self.read, self.written = self.read + int(words[5]) * SECTOR, self.written + int(words[9]) * SECTOR

    def add_ports(self, ports):
        for port in os.listdir(ports):
            # in units of four bytes (Documentation/ABI/stable/sysfs-class-infiniband)
            received, sent = (text("%s/%s/counters/port_%s_data" % (ports, port, way)) for way in ("rcv", "xmit"))
            if received.isdigit() and sent.isdigit():
                self.received, self.sent = self.received + 4 * int(received), self.sent + 4 * int(sent)


def rate(before, after, seconds):
    """KiB a second between two counts of bytes. Counts fall when a process ends."""
    return max(after - before, 0) / KIBI / seconds


class Gpus:
    """The GPUs that this container sees, as one nvidia-smi reports them again and again. `start`: starts a child, as
    `subprocess.Popen`."""

    def __init__(self, every, start):
        self.every, self.start = every, start
        self.child = self.stream = None
        self.due = 0.0  # when it may be started
        self.rest, self.last, self.failure = b"", {}, None
        self.is_expected = any(map(os.path.exists, ("/dev/nvidiactl", "/proc/driver/nvidia")))

    def begin(self):
        program = shutil.which("nvidia-smi")
        self.due = time.monotonic() + AGAIN
        if not program:
            self.failure = "there is no nvidia-smi in this container" if self.is_expected else None
            return
        # a terminal, to which it writes each line at once
        ours, theirs = starting.terminal() or os.pipe()
        try:
            command = [program, "--query-gpu=" + QUERY, "--format=csv,noheader,nounits", "-l",
                       str(max(1, int(self.every)))]
            self.child = self.start(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.STDOUT, cwd="/")
            os.set_blocking(ours, False)
            self.stream = os.fdopen(ours, "rb", 0)
        except OSError as error:
            os.close(ours)
            self.failure = "cannot start nvidia-smi: %s" % error.strerror
        finally:
            os.close(theirs)

    def read(self):
        """Takes what nvidia-smi has printed, and starts it if it does not run. It may hang, so nothing waits for it."""
        if self.child is None and time.monotonic() >= self.due:
            self.begin()
        if self.child is None:
            return
        try:
            data = os.read(self.stream.fileno(), 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal that no process has open any more
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.take(line.decode(errors="replace").strip())
        self.rest = self.rest[:1 << 12]
        if not data:
            self.end()

    def take(self, line):
        words = [word.strip() for word in line.split(",")]
        if len(words) == QUERY.count(",") + 1 and words[0].isdigit():
            self.last[int(words[0])], self.failure = words, None
        elif line:
            self.failure = "nvidia-smi: " + line

    def end(self):
        """Ends nvidia-smi without waiting for it: one that hangs in the kernel does not end."""
        if self.child:
            with contextlib.suppress(OSError):
                self.child.send_signal(signal.SIGKILL)
            self.stream.close()
        self.child, self.stream, self.rest = None, None, b""

    def take_last(self):
        """What it has reported last of each GPU since this was called before."""
        last, self.last = self.last, {}
        return [last[index] for index in sorted(last)]


class Samples:
    """The samples of one rank, and of its node while this supervisor has the lock."""

    def __init__(self, log, every, interface, local_rank, start):
        self.log, self.every, self.interface, self.local_rank = log, every, interface, local_rank
        self.began = self.due = self.sampled = time.monotonic()
        self.before = self.node = None
        self.gpus, self.start = None, start
        self.described = {}  # what has been written of the node and its GPUs
        self.number = None  # of the rank whose place was written
        self.file = None
        with contextlib.suppress(OSError):
            path = os.path.join(log.directory, "samples")
            self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    def sample(self, pid):
        """Samples the rank's processes, and the node if that is this supervisor's part, if the next sample is due.
        Called once a second."""
        if self.file is None:
            return
        # descriptors may run out
        with contextlib.suppress(OSError, ValueError):
            if self.gpus:
                self.gpus.read()
        now = time.monotonic()
        if now < self.due:
            return
        passed, self.sampled = now - self.sampled, now
        self.due = now + interval(self.every, now - self.began)
        # what cannot be read, or is not as expected on some kernel, costs a sample
        with contextlib.suppress(OSError, IndexError, ValueError):
            self.write(self.of_rank(pid, passed))
        with contextlib.suppress(OSError, IndexError, ValueError):
            if self.is_of_node():
                self.write(self.of_node(passed) + self.of_gpus())

    def of_rank(self, pid, passed):
        frames = []
        if self.number != self.log.rank:
            self.number = self.log.rank
            frames.append(b"R %d" % self.local_rank)
        before, self.before = self.before, Usage(pid)
        if before and passed > 0:
            after = self.before
            processor = max(after.processor - before.processor, 0) / passed * 100
            read, written = rate(before.read, after.read, passed), rate(before.written, after.written, passed)
            frames.append(b"r %d %d %d %d" % (processor, after.memory // MEBI, read, written))
        return frames

    def is_of_node(self):
        """Returns whether this supervisor has the lock. Where there are no locks, the node's first rank has it."""
        if self.gpus is None:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:
                if self.local_rank:
                    return False
            self.gpus = Gpus(self.every, self.start)
            self.gpus.read()
        return True

    def describe(self, name, frame):
        """The frame, unless it has been written."""
        if self.described.get(name) == frame:
            return []
        self.described[name] = frame
        return [frame]

    def of_node(self, passed):
        before, self.node = self.node, NodeUsage(self.interface)
        after = self.node
        words = os.cpu_count() or 0, after.memory_total // MEBI, platform.python_version(), platform.release()
        frames = self.describe("node", b"N " + encoded("%d %d %s %s" % words))
        if before and after.total > before.total and passed > 0:
            busy = 100 - 100 * (after.idle - before.idle) / (after.total - before.total)
            rates = [rate(getattr(before, name), getattr(after, name), passed)
                     for name in ("received", "sent", "read", "written")]
            frames.append(b"n %d %d %d %d %d %d" % (max(busy, 0), after.memory // MEBI, *rates))
        return frames

    def of_gpus(self):
        frames = []
        for words in self.gpus.take_last():
            index, uuid, name, driver, memory, limit = words[:DESCRIBES]
            what = "G %s %s %s %s %s %s" % (index, uuid or "-", number(memory), number(limit), driver or "-", name)
            frames += self.describe(index, encoded(what))
            frames.append(("g %s %s" % (index, " ".join(map(number, words[DESCRIBES:])))).encode())
        if self.gpus.failure:
            frames += self.describe("failure", b"e " + encoded(self.gpus.failure))
        return frames

    def write(self, frames):
        # a full disk loses samples, not the training
        with contextlib.suppress(OSError):
            if frames and os.fstat(self.file).st_size < MOST:
                head = b"%.1f %d %s " % (time.time(), self.log.rank, KIND)
                os.write(self.file, b"".join(head + frame + b"\n" for frame in frames))

    def end(self):
        if self.gpus:
            self.gpus.end()
        if self.file is not None:
            os.close(self.file)
        self.file = self.gpus = None
