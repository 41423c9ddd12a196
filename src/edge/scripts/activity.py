"""Tells a rank that does nothing any more from one that computes or waits in Horovod, by the processor time that the kernel counts
for its processes; proc(5)."""
import contextlib
import os
import time

TICK = os.sysconf("SC_CLK_TCK")  # in a second
LEAST = 0.001  # of a core: who sleeps, or is stuck in the kernel, stays below; who waits in MPI_Init takes 0.08
HOROVOD = 0.6  # of a core: more than Horovod's own threads take while there is nothing to do; under Gloo that was up to 0.36


def fields(path):
    """Those behind the name; the state is the first."""
    with open(path, "rb") as file:
        return file.read().rpartition(b") ")[2].split()


def family(pid):
    """A process and all that descend from it, whichever of its threads started them."""
    found = [pid]
    for one in found:
        folder = "/proc/%d/task" % one
        with contextlib.suppress(OSError):
            for task in os.listdir(folder):
                with contextlib.suppress(OSError), open(os.path.join(folder, task, "children")) as file:
                    found += [int(word) for word in file.read().split()]
    return found


def ticks(processes, thread):
    """Of the processes' first threads, of all that they and what they started have used, and of one thread. What ends meanwhile is
    left out: that is seen by the processes."""
    first = everything = alone = 0
    for process in processes:
        with contextlib.suppress(OSError):
            first += sum(map(int, fields("/proc/%d/task/%d/stat" % (process, process))[11:13]))
            everything += sum(map(int, fields("/proc/%d/stat" % process)[11:15]))
        if thread:
            with contextlib.suppress(OSError):
                alone += sum(map(int, fields("/proc/%d/task/%d/stat" % (process, thread))[11:13]))
    return first, everything, alone


class Activity:
    """Since when nothing is done; `limit` is the time in seconds that is of interest."""

    def __init__(self, limit):
        self.every = min(max(limit / 100, 1), 60)
        # since when nothing is done; when it was looked at last, and what was seen then
        self.since = self.looked = time.monotonic()
        self.seen = None

    def look(self, processes, writer=None, ended=None):
        """Takes in what these processes of a rank have done. Where it is known when the last of Horovod's operations ended, and
        which thread writes that down, Horovod's own threads, which never rest, do not count."""
        now = time.monotonic()
        passed = (now - self.looked) * TICK
        if passed < self.every * TICK:
            return
        seen = processes, writer, ticks(processes, writer)
        before, self.seen, self.looked = self.seen, seen, now
        # whoever starts and ends processes does something
        if before and before[:2] == seen[:2]:
            first, everything, alone = (new - old for new, old in zip(seen[2], before[2]))
            if everything <= passed * LEAST:
                return
            if writer and first <= passed * LEAST and everything - alone <= passed * HOROVOD:
                self.since = max(self.since, ended)
                return
        self.since = now
