"""An elastic job whose ranks are kept when nodes leave or join, by Horovod's elastic driver (elastic_driver.py). The
driver may use the nodes in available_hosts; assignment.json has which of its processes has which rank. roster.py
decides which nodes the driver may use."""
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
import roster
import workers

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS, ASSIGNMENT, WORLD = "available_hosts", "assignment.json", "world.json"


def are_ranks(ranks):
    """Returns whether a value lists the ranks of each address that has any."""
    return isinstance(ranks, dict) and files.fits(list(ranks.values()), [[files.is_count]]) and all(ranks.values())


# of ASSIGNMENT
SHAPE = {"version": files.is_count, "number": files.is_count, "time": files.is_number, "waits": files.is_flag,
         "registered": files.is_flag, "error": files.optional(files.is_text),
         "ranks": are_ranks}
SEND_LIMIT, SEND_AGAIN = 15, 2  # seconds to send a file to a node, and until it is sent once more


def placed(assignment, places):
    """The places of an assignment, in the order of their ranks; each with its number of ranks there."""
    ranks = assignment["ranks"]
    used = [dict(place, ranks=len(ranks[place["address"]])) for place in places if place["address"] in ranks]
    return sorted(used, key=lambda place: ranks[place["address"]][0])


class Driver:
    """Horovod's elastic driver during one attempt."""

    def __init__(self, roster, nodes):
        self.roster, self.nodes = roster, nodes
        self.assignment, self.written = None, None
        self.number, self.assigned = None, 0  # of the assignment that was followed last, and when it was made
        self.lock, self.sending, self.sent = threading.Lock(), None, 0
        self.short_since = None  # since when there are too few ranks
        self.waits = False  # whether the ranks wait for others
        self.cleaning = []  # threads
        self.is_closed = False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(HERE, ASSIGNMENT))
        self.write_hosts()

    def keeps_ranks(self):
        """Returns whether the program lets its ranks be kept: it has called the function that `hvd.elastic.run` has
        returned."""
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
        text = "".join("%s:%d\n" % (place["address"], place["ranks"]) for place in self.roster.listed())
        # a full disk is no reason to give up; the next call tries it again
        with contextlib.suppress(OSError):
            if text != self.written:
                files.write(HOSTS, text)
                self.written = text

    def read(self):
        """Reads the assignment. Its version shows whether it is newer: two that are written at once may have the same
        time."""
        with contextlib.suppress(OSError, ValueError):
            assignment = files.read_json(ASSIGNMENT, SHAPE)
            if self.assignment is None or assignment["version"] > self.assignment["version"]:
                self.assignment = assignment

    def follow(self, launcher, grace):
        """Lets Horovod use the nodes that can take part, and follows its assignment. `launcher`: its processes. Returns
        whether the assignment is a new one. Ranks of nodes that have left are no longer waited for, whenever the driver
        learns of it."""
        with self.lock:
            leaving, joining = self.roster.changes()
            for place in leaving:
                is_drained = place["node"] in self.roster.drained
                self.roster.leave(place["node"], roster.DRAINED if is_drained else "no answer")
                if not is_drained:
                    self.disconnect(launcher, place)
            dirty = self.roster.come_back(self.roster.fit(joining, time.monotonic()))
            is_new = self.assignment["number"] != self.number
            self.number, self.assigned = self.assignment["number"], self.assignment["time"]
            if is_new:
                self.roster.assign(placed(self.assignment, self.roster.places))
        for place in dirty:
            self.clean(place, grace)
        self.write_hosts()
        return is_new

    def fail(self, node, reason):
        """Ranks of a node have failed by themselves."""
        with self.lock:
            self.roster.fail(node, reason, time.monotonic())

    def leave(self, node, reason):
        """A node leaves with its ranks, and has to answer before it can join again."""
        with self.lock:
            if node in roster.nodes(self.roster.listed()):
                self.roster.leave(node, reason)
            self.roster.forget(node)

    def clean(self, place, grace):
        """Ends what the job has left on a node that returns, in a thread of its own. Then the driver may use it."""

        def work():
            answers = not self.is_closed and bool(self.nodes.answering([place], grace))
            with self.lock:
                # the next attempt has a driver of its own
                if not self.is_closed:
                    self.roster.cleaned(place["node"], answers)

        self.cleaning = [thread for thread in self.cleaning if thread.is_alive()]
        self.cleaning.append(threading.Thread(target=work, daemon=True))
        self.cleaning[-1].start()

    def close(self):
        """Ends what this attempt still does on the nodes: it would be done to the next one. The end of the ranks, which
        has just been requested on all nodes, is also that of a cleaning; a node that does not answer is not waited for
        any longer."""
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
        """Sends each node which rank its processes have now in this attempt, and whether they wait for more of them.
        Does not wait; sends it again to a node that did not get it, until there is something newer to send."""
        ranks = self.assignment["ranks"]
        self.sent += 1
        worlds = [(place, {"ranks": ranks.get(place["address"], []), "waits": self.waits,
                           "size": sum(map(len, ranks.values())),
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
        name = shlex.quote(os.path.join(HERE, WORLD))
        command = "umask 077 && cat >{0}.{1} && mv -f {0}.{1} {0}".format(name, number)
        try:
            if place["node"] == self.roster.home:
                files.write_json(WORLD, world)
                return True
            child = self.nodes.ssh(place, workers.SHARED, [command], subprocess.PIPE, subprocess.DEVNULL)
        except OSError:
            return False
        late = workers.kill_after(child, SEND_LIMIT)
        child.communicate(json.dumps(world).encode())
        late.cancel()
        return child.returncode == 0
