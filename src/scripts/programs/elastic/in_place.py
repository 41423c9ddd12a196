"""An elastic job whose ranks are kept when nodes leave or join, by Horovod's elastic driver (elastic_driver.py). The driver may use the
nodes in available_hosts; assignment.json has which of its processes has which rank. `Hosts` decides which nodes the driver may use."""
import contextlib
import json
import os
import shlex
import signal
import subprocess
import threading
import time

import files
import processes
import workers

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS, ASSIGNMENT, WORLD = "available_hosts", "assignment.json", "world.json"
SHAPE = {"version": files.is_count, "number": files.is_count, "time": files.is_number, "waits": files.is_flag,
         "registered": files.is_flag, "error": files.optional(files.is_text), "ranks": lambda ranks: isinstance(ranks, dict) and
         files.fits(list(ranks.values()), [[files.is_count]]) and all(ranks.values())}  # of ASSIGNMENT
# so many failures of the same node within so many seconds: then it is not used for so long
MAX_FAILURES, FAILURE_PERIOD = 3, 3600  # also those of the driver itself within that time, after which the job ends
LOST, DRAINED = "its connection was lost", "drained"
SEND_LIMIT, SEND_AGAIN = 15, 2  # seconds to send a file to a node, and until it is sent once more


def are_too_many(failures, now):
    """Whether there were too many failures lately, given when they were. A job that runs for weeks may have many."""
    return sum(now - time < FAILURE_PERIOD for time in failures) >= MAX_FAILURES


class Hosts:
    """The nodes that the driver may use. A node that leaves is not used again before what the job has left there has ended."""

    def __init__(self, places, home):
        self.home, self.listed = home, list(places)
        self.cleaning = set()  # nodes where that is ended now
        self.used = set()  # nodes of the driver's assignment
        self.lost = set()  # those where it has no processes any more
        self.reasons = {}  # nodes that left, and why
        self.failures = {}  # when ranks of a node have failed

    def leave(self, node, reason):
        """A node leaves. The launcher's stays: the driver does not use it for a while if a rank there has failed."""
        self.reasons.setdefault(node, reason)
        if reason != DRAINED:
            self.lost.add(node)
        if node != self.home:
            self.listed = [place for place in self.listed if place["node"] != node]

    def fail(self, node, reason, now):
        """Ranks of a node have failed by themselves; those of a node that has left fail because of that."""
        if node not in self.lost and any(place["node"] == node for place in self.listed):
            self.failures.setdefault(node, []).append(now)
            self.leave(node, reason)

    def is_unfit(self, node, now):
        """Whether ranks of a node have failed too often lately to use it."""
        return are_too_many(self.failures.get(node, []), now)

    def enter(self, place, order):
        self.listed = [other for other in order if other in self.listed or other == place]

    def come_back(self, ready, order):
        """These nodes can take part again. Returns those that are to be cleaned before: all but drained ones whose ranks the driver still
        uses. `order`: all places, in the order of their ranks."""
        ready = [place for place in ready if place["node"] not in self.cleaning]
        kept = [place for place in ready if place["node"] in self.used and self.reasons.get(place["node"]) == DRAINED]
        for place in kept:
            del self.reasons[place["node"]]
            self.enter(place, order)
        new = [place for place in ready if place not in kept]
        self.cleaning.update(place["node"] for place in new)
        return new

    def cleaned(self, place, done, order):
        """A node was cleaned, or could not be."""
        self.cleaning.discard(place["node"])
        if done and place not in self.listed:
            self.enter(place, order)

    def assigned(self, used):
        """The driver uses these nodes now. Returns the listed ones that it has dropped."""
        self.used = {place["node"] for place in used}
        for node in self.used.intersection(place["node"] for place in self.listed):
            self.reasons.pop(node, None)
        known, self.lost = self.used | self.lost | {self.home}, set()
        return [place["node"] for place in self.listed if place["node"] not in known]

    def running(self, used):
        """Those of the nodes of the assignment whose ranks take part now. Ranks of a drained one do until the next assignment."""
        listed = {place["node"] for place in self.listed} - self.lost
        drained = {node for node, reason in self.reasons.items() if reason == DRAINED}
        return [place for place in used if place["node"] in listed | drained]


def placed(assignment, places):
    """The places of an assignment, in the order of their ranks; each with its number of ranks there."""
    ranks = assignment["ranks"]
    used = [dict(place, ranks=len(ranks[place["address"]])) for place in places if place["address"] in ranks]
    return sorted(used, key=lambda place: ranks[place["address"]][0])


class Driver:
    """Horovod's elastic driver during one attempt."""

    def __init__(self, places, home, nodes):
        self.hosts, self.nodes, self.home = Hosts(places, home), nodes, home
        self.assignment, self.written = None, None
        self.number = None  # of the assignment that was followed last
        self.placed, self.assigned = None, 0  # where that has ranks, and when it was made
        self.lock, self.sending, self.sent = threading.Lock(), None, 0
        self.short_since = None  # since when there are too few ranks
        self.waits = False  # whether the ranks wait for others
        self.cleaning = []  # threads
        self.is_closed = False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(HERE, ASSIGNMENT))
        self.write_hosts()

    def keeps_ranks(self):
        """Whether the program lets its ranks be kept: it has called the function that `hvd.elastic.run` has returned."""
        return bool(self.assignment and self.assignment["registered"])

    def note_shortage(self, is_short):
        """Notes whether there are too few ranks. Returns whether the ranks begin to wait for others or no longer do."""
        if is_short != (self.short_since is not None):
            self.short_since = time.monotonic() if is_short else None
        before, self.waits = self.waits, is_short or bool(self.assignment.get("waits"))
        return before != self.waits

    def waited(self):
        """For how many seconds there have been too few ranks."""
        return 0 if self.short_since is None else time.monotonic() - self.short_since

    def error(self):
        """Why Horovod has ended the job, in its words, or None."""
        self.read()
        return self.assignment["error"] if self.assignment else None

    def write_hosts(self):
        text = "".join("%s:%d\n" % (place["address"], place["ranks"]) for place in self.hosts.listed)
        # a full disk is no reason to give up; the next call tries it again
        with contextlib.suppress(OSError):
            if text != self.written:
                files.write(HOSTS, text)
                self.written = text

    def read(self):
        """Reads the assignment. Its version shows whether it is newer: two that are written at once may have the same time."""
        with contextlib.suppress(OSError, ValueError):
            assignment = files.read_json(ASSIGNMENT, SHAPE)
            if self.assignment is None or assignment["version"] > self.assignment["version"]:
                self.assignment = assignment

    def follow(self, membership, launcher, order, grace):
        """Lets Horovod use the nodes that can take part, and follows its assignment. `launcher`: its processes; `order`: returns all
        places in the order of their ranks. Returns the places whose ranks take part now, and whether the assignment is a new one."""
        with self.lock:
            leaving, joining = membership.change(self.hosts.listed)
            for place in leaving:
                is_drained = place["node"] in membership.drained
                self.hosts.leave(place["node"], DRAINED if is_drained else "no answer")
                if not is_drained:
                    self.disconnect(launcher, place)
            dirty = self.hosts.come_back(self.fit(joining), order())
            is_new = self.assignment["number"] != self.number
            self.number, self.assigned = self.assignment["number"], self.assignment["time"]
            self.placed = placed(self.assignment, order())
            for node in self.hosts.assigned(self.placed) if is_new else []:
                self.hosts.leave(node, LOST)
                membership.forget(node)
            # ranks of nodes that have left are no longer waited for, whenever the driver learns of it
            used = self.hosts.running(self.placed)
        for place in dirty:
            self.clean(place, grace, order)
        self.write_hosts()
        return used, is_new

    def fail(self, node, reason):
        """Ranks of a node have failed by themselves."""
        with self.lock:
            self.hosts.fail(node, reason, time.monotonic())

    def fit(self, places):
        """Those of the places whose ranks have not failed too often lately."""
        now = time.monotonic()
        return [place for place in places if not self.hosts.is_unfit(place["node"], now)]

    def clean(self, place, grace, order):
        """Ends what the job has left on a node that returns, in a thread of its own. Then the driver may use it."""

        def work():
            answers = not self.is_closed and bool(self.nodes.answering([place], grace))
            with self.lock:
                self.hosts.cleaned(place, answers, order())

        self.cleaning = [thread for thread in self.cleaning if thread.is_alive()] + [threading.Thread(target=work, daemon=True)]
        self.cleaning[-1].start()

    def close(self):
        """Ends what this attempt still does on the nodes: it would be done to the next one. The end of the ranks, which has just been
        requested on all nodes, is also that of a cleaning; a node that does not answer is not waited for any longer."""
        self.is_closed, self.sent = True, self.sent + 1
        limit = time.monotonic() + SEND_LIMIT
        for thread in self.cleaning + [self.sending] * bool(self.sending):
            thread.join(max(0, limit - time.monotonic()))

    def disconnect(self, launcher, place):
        """Ends the driver's connections to a node that does not answer: it would wait until TCP times out."""
        known = processes.all_processes()
        for pid in {pid for process in launcher for pid in processes.descendants(process.pid, known)}:
            command = processes.command(pid)
            if command and os.path.basename(command[0]) == b"ssh" and place["address"].encode() in command:
                processes.send(signal.SIGTERM, [pid])

    def send_worlds(self, places, attempt):
        """Sends each node which rank its processes have now in this attempt, and whether they wait for more of them. Does not wait; sends
        it again to a node that did not get it, until there is something newer to send."""
        ranks = self.assignment["ranks"]
        self.sent += 1
        worlds = [(place, {"ranks": ranks.get(place["address"], []), "waits": self.waits, "size": sum(map(len, ranks.values())),
                           "attempt": attempt, "number": self.sent}) for place in places]
        number, before = self.sent, self.sending

        def send_all():
            if before:
                before.join()
            left = worlds
            while left and number == self.sent:
                failed = []
                workers.for_each(left, lambda one: self.send(number, *one) or failed.append(one))
                left = failed
                time.sleep(bool(left) * SEND_AGAIN)

        self.sending = threading.Thread(target=send_all, daemon=True)
        self.sending.start()

    def send(self, number, place, world):
        """Writes a file on a node. Returns whether that has succeeded."""
        command = "umask 077 && cat >{0}.{1} && mv -f {0}.{1} {0}".format(shlex.quote(os.path.join(HERE, WORLD)), number)
        try:
            if place["node"] == self.home:
                files.write_json(WORLD, world)
                return True
            child = self.nodes.ssh(place, workers.SHARED, [command], subprocess.PIPE, subprocess.DEVNULL)
        except OSError:
            return False
        late = workers.kill_after(child, SEND_LIMIT)
        child.communicate(json.dumps(world).encode())
        late.cancel()
        return child.returncode == 0
