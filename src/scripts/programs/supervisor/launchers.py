"""The launchers of a job with roles, for one attempt: each role has one. The job supervisor sees them as one launcher,
whose end is that of the attempt. roles.py decides which role is started and ended when; this file observes the roles
and acts."""
import json
import select
import threading
import time

import addresses
import reap
import roles
import roster
import workers
from attempt import Launcher, StartCheck
from reaping import Reaping


def ranks_of(role):
    """The numbers of a role's ranks in the job, by those in the role."""
    return [place["first"] + index for place in role["places"] for index in range(place["ranks"])]


class OfRole:
    """A role, from one start to its end. `earlier`: its start before, if it is started again; `since`: when it was
    then, in seconds since the epoch: what the nodes know from before belongs to earlier starts. 0 at the first one."""

    def __init__(self, number, launch, log, children, nodes, earlier=None):
        self.number, self.launch, self.nodes = number, launch, nodes
        self.places, self.ranks = launch["roles"][number]["places"], ranks_of(launch["roles"][number])
        self.launcher = Launcher(launch, log, children, nodes, number)
        self.failed, self.thread, self.report = None, None, workers.Report()
        self.since = time.time() if earlier else 0
        ahead = {node: end["ahead"] for node, end in earlier.report.ends.items()} if earlier else {}
        self.check = StartCheck(launch, nodes, self.places, self.since, role=number, ahead=ahead)

    def observe(self):
        missing = [number for number, rank in enumerate(self.ranks) if rank not in self.launcher.ready]
        if self.thread:
            return roles.Role(None, None, missing, not self.thread.is_alive())
        code = self.launcher.poll()
        if code is not None:
            # what it has written before its end
            self.launcher.listen(0)
        if self.launcher.failures and self.failed is None:
            self.failed = self.launcher.failures[0][0]
        return roles.Role(code, self.failed, missing, False)

    def begin_end(self, grace):
        """Begins to end its ranks, on all of its nodes, while those of other roles go on."""
        self.thread = threading.Thread(target=self.end_ranks, args=(grace,), daemon=True)
        self.thread.start()

    def end_ranks(self, grace):
        here, names = self.launch["node"], roster.nodes(self.places)
        others = [worker for worker in self.launch["workers"] if worker["node"] in names]
        reaping = Reaping(self.nodes, others, grace, role=self.number, again=True, report=self.report)
        while not reaping.has_ended():
            pass  # it waits a moment
        self.launcher.end()
        reap.rest(reap.Role(self.number))
        reaping.finish()
        reaping.join()
        self.launcher.close()
        self.report.ends[here] = dict(reap.states(), ahead=0.0)

    def failure(self):
        """How its rank ended that failed first, after the end of all; None if that is not known."""
        own = set(self.ranks)
        ends = [dict(one, node=node, time=one["time"] - end["ahead"]) for node, end in self.report.ends.items()
                for one in end["exits"] if one["rank"] in own]
        failed = [one for one in ends if one["time"] >= self.since and one["code"] and not one["asked"]]
        first = min(failed, key=lambda one: one["time"], default=None)
        return first and {name: first[name] for name in ("rank", "node", "code", "signal")}


class Launchers:
    """Has the attributes and methods of a launcher. `fault`: that which ends the attempt; `served`: the ranks in the
    job whose ends count for nothing, when it has ended; `silent`: nodes that do not answer."""

    def __init__(self, launch, log, children, nodes):
        self.launch, self.log, self.children, self.nodes = launch, log, children, nodes
        self.roles = launch["roles"]
        self.states, self.started = roles.begin(self.roles), {}  # OfRole by the numbers of roles
        self.failures, self.code, self.fault, self.served, self.number = [], None, None, [], 0
        self.silent, self.taken = [], set()  # the latter: the ports of ranks, and those at which they find one another

    @property
    def processes(self):
        return [process for one in self.started.values() for process in one.launcher.processes]

    @property
    def stopping(self):
        return next((one.launcher.stopping for one in self.started.values() if one.launcher.stopping), [])

    @property
    def missing(self):
        """As of `StartCheck`."""
        return {(one.number, node): text for one in self.started.values() if not one.thread
                for node, text in one.check.missing.items()}

    def query(self):
        """As of `StartCheck`: queries the nodes of roles whose ranks should have started."""
        for one in self.started.values():
            if not one.thread and one.launcher.code is None:
                one.check.query()

    def start(self, _places, number):
        """Begins the attempt with this number, on the nodes of all roles."""
        self.number = number
        try:
            if self.silent:
                raise OSError("no answer from %s: a job with roles needs all of its nodes" % ", ".join(self.silent))
            self.taken = addresses.choose(self.launch, self.nodes)
        except OSError as error:
            self.log.write(b"l", [str(error).encode(errors="replace")])
            self.code = 1
            return
        self.follow()

    def start_role(self, number, again):
        earlier = self.started.get(number)
        if again:
            self.note(number, {"again": again, "of": self.roles[number]["ends"]["times"],
                               "exit": earlier and earlier.failure()})
        one = self.started[number] = OfRole(number, self.launch, self.log, self.children, self.nodes, earlier)
        one.launcher.taken = self.taken
        one.launcher.start(one.places, self.number + again)

    def end_role(self, number, has_failed):
        grace = self.launch["grace"]
        self.started[number].begin_end(min(grace, reap.AFTER_FAILURE) if has_failed else grace)

    def note_ready(self, number, seconds):
        if self.roles[number]["ready"]:
            self.note(number, {"ready": round(seconds)})

    def note(self, number, event):
        """Logs what has happened to a role (record/restart.rs)."""
        self.log.write(b"r", [json.dumps(dict(event, role=self.roles[number]["name"])).encode()])

    def listen(self, seconds):
        """Logs the output of all for at most this many seconds; returns after the first output."""
        open_ones = [one.launcher for one in self.started.values() if not one.thread]
        waits, files = select.poll(), [file for one in open_ones for file in one.selector.get_map()]
        for file in files:
            waits.register(file, select.POLLIN)
        # one whose output is closed may still run
        is_silent = any(one.code is None and not one.selector.get_map() for one in open_ones)
        waits.poll(1000 * (min(seconds, 0.05) if is_silent else seconds))
        for one in open_ones:
            one.listen(0)

    def poll(self):
        """The exit code of the attempt, or None while it goes on."""
        if self.code is None:
            self.follow()
        return self.code

    def follow(self):
        seen = [self.started[number].observe() if number in self.started
                else roles.Role(None, None, list(range(len(ranks_of(role)))), False)
                for number, role in enumerate(self.roles)]
        observed = roles.Observed(time.monotonic(), seen, self.launch["restart_pause"])
        self.states, actions, end = roles.decide(self.roles, self.states, observed)
        perform = {roles.START: self.start_role, roles.END: self.end_role, roles.NOTE_READY: self.note_ready}
        for action, *arguments in actions:
            perform[action](*arguments)
        if not end:
            return
        self.fault = end.fault
        self.served = sorted(rank for number in end.served for rank in ranks_of(self.roles[number]))
        if end.code:
            self.failures.append((end.code, ""))
        elif not end.fault:
            self.code = end.code

    def since(self, rank):
        """When the role of a rank was started again last, in seconds since the epoch."""
        return next((one.since for one in self.started.values() if rank in one.ranks), 0)

    def add_to(self, outcome):
        """Adds what is known of roles to the outcome of the attempt."""
        if self.served:
            outcome["served"] = self.served

    def end(self):
        # the ranks of all are gone; a node that does not answer may keep the end of a role waiting
        for one in self.started.values():
            if one.thread:
                one.thread.join(workers.PROGRAM_LIMIT)
        workers.for_each([one.launcher for one in self.started.values()], lambda launcher: launcher.end())

    def close(self):
        for one in self.started.values():
            one.launcher.close()
