"""Tells a rank that does nothing any more from one that computes or waits in Horovod, by the processor time that the kernel counts
for its processes; proc(5)."""
import contextlib
import os
import time

TICK = os.sysconf("SC_CLK_TCK")  # in a second
LEAST = 0.001  # of a core: who sleeps, or is stuck in the kernel, stays below; who waits in MPI_Init takes 0.08
HOROVOD = 0.6  # of a core: more than Horovod's own threads take while there is nothing to do; under Gloo that was up to 0.36
SHORT = 0.02  # of a core, under MPI: more than that is a program's work, also where the thread or process that did it has ended since
ROUNDED = 6  # ticks by which a process and its threads may differ
SLEPT = 10  # seconds by which a look may be late; after more this process stood still itself, and what others did is not known


def fields(path):
    """Those behind the name; the state is the first."""
    with open(path, "rb") as file:
        return file.read().rpartition(b") ")[2].split()


def children(process, thread):
    """What a thread has started and waits for; none where the kernel does not list that (CONFIG_PROC_CHILDREN)."""
    with contextlib.suppress(OSError), open("/proc/%d/task/%s/children" % (process, thread)) as file:
        return [int(word) for word in file.read().split()]
    return []


def family(pid):
    """A process and all that descend from it by the processes' first threads."""
    found = [pid]
    for one in found:
        found += children(one, one)
    return found


def whole_family(pid):
    """The same by all their threads, of which there may be hundreds."""
    found = [pid]
    for one in found:
        for thread in os.listdir("/proc/%d/task" % one):
            found += children(one, thread)
    return found


def of_thread(process, thread):
    return sum(map(int, fields("/proc/%d/task/%d/stat" % (process, thread))[11:13]))


def ticks(processes):
    """What the processes' first threads have used, and what all of them and what they started has."""
    first = sum(of_thread(process, process) for process in processes)
    return first, sum(sum(map(int, fields("/proc/%d/stat" % process)[11:15])) for process in processes)


def by_thread(processes):
    """What each thread has used that is not the first of its process."""
    threads = ((process, int(thread)) for process in processes for thread in os.listdir("/proc/%d/task" % process))
    return {thread: of_thread(process, thread) for process, thread in threads if thread != process}


class Activity:
    """Since when nothing is done; `limit` is the time in seconds that is of interest, `mpi` whether the ranks are MPI's."""

    def __init__(self, limit, mpi):
        self.mpi = mpi
        self.every = min(max(limit / 100, 1), 60)
        # since when nothing is done; when it was looked at last, and what was seen then
        self.since = self.looked = time.monotonic()
        self.seen = None

    def look(self, pid, writer=None, ended=None):
        """Takes in what a process and its descendants have done. Where it is known when the last of Horovod's operations ended, and
        which thread writes that down, Horovod's own threads, which never rest, do not count."""
        now = time.monotonic()
        if now - self.looked < self.every:
            return
        late, passed = now - self.looked > self.every + SLEPT, (now - self.looked) * TICK
        before, self.seen, self.looked = self.seen, None, now
        # one that has ended just now cannot be read
        with contextlib.suppress(OSError):
            processes = whole_family(pid)
            self.seen = seen = processes, writer, ticks(processes), by_thread(processes)
        # whoever starts and ends processes does something
        if before and self.seen and before[:2] == seen[:2] and not late:
            first, everything = (new - old for new, old in zip(seen[2], before[2]))
            if everything <= passed * LEAST:
                return
            if writer and first <= passed * LEAST and self.only_horovod(everything, before[3], seen[3], writer, passed):
                self.since = max(self.since, ended)
                return
        self.since = now

    def only_horovod(self, everything, before, threads, writer, passed):
        """Whether what was used in the time that passed is no more than Horovod's own threads take. With MPI one of them waits for
        the other ranks all the time, and no other does anything: were the busiest one the program's, Horovod's would show."""
        used = {thread: count - before.get(thread, 0) for thread, count in threads.items()}
        rest = everything - used.pop(writer, 0)
        if not self.mpi:
            return rest <= passed * HOROVOD
        busiest = max(used.values(), default=0)
        return sum(used.values()) - busiest <= passed * LEAST + 1 and rest - busiest <= passed * SHORT + ROUNDED
