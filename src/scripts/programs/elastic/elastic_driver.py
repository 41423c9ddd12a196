"""Horovod's launcher with its elastic driver (`horovodrun --min-np`), which keeps the ranks that are left when nodes
leave or join. Runs under the interpreter of `horovodrun`. Its arguments are those of `horovodrun`. `Corrections` has
what it changes of Horovod 0.28.1.

If Horovod is not as expected, it becomes `horovodrun` itself: the job supervisor then knows of no rank that is kept,
and restarts the job."""
import contextlib
import json
import os
import shlex
import shutil
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = os.path.join(HERE, "available_hosts")  # ADDRESS:SLOTS on a line each, in the order of their ranks (in_place.py)
ASSIGNMENT = os.path.join(HERE, "assignment.json")
AGAIN = 5  # seconds until a change is notified again
# where ranks store their hosts and addresses in `hvd.init` (common/gloo/gloo_context.cc, HOROVOD_GLOO_GLOBAL_PREFIX)
SCOPE = "global"
GLOO_LIMIT = 30  # seconds in which ranks that are in `hvd.init` store them
COOL_DOWN = "--blacklist-cooldown-range"  # older releases do not have it
# begins the second line of a script whose interpreter has a path that is too long for the kernel (pip, conda)
WRAPPER = b"'''exec'"


def interpreter(script):
    """The Python interpreter of a script with its arguments, or an empty list if the script is a program of another
    kind."""
    with open(script, "rb") as file:
        first, second = file.readline(4096), file.readline(4096)
    if not first.startswith(b"#!"):
        return []
    line = os.fsdecode(second[len(WRAPPER):] if second.startswith(WRAPPER) else first[2:])
    words = shlex.split(line)
    words = words[:1] if second.startswith(WRAPPER) else words
    programs = [os.path.basename(word) for word in words if not word.startswith("-")]
    return words if programs and programs[-1].startswith(("python", "pypy")) else []


def available():
    """Returns the hosts that Horovod may use, as in the output of its script."""
    with open(HOSTS) as file:
        return file.read()


class Assignment:
    """The state that the job supervisor reads: which process has which rank, whether ranks wait for new ones, whether
    they use `hvd.elastic.run`, and why Horovod ends the job."""

    def __init__(self):
        self.lock, self.is_written = threading.Lock(), True
        # `version` grows with every change, `number` with every assignment
        self.known = {"version": 0, "number": 0, "time": 0, "ranks": {}, "waits": False, "registered": False,
                      "error": None}

    def assign(self, slots):
        ranks = {}
        for slot in sorted(slots, key=lambda slot: slot.local_rank):
            ranks.setdefault(slot.hostname, []).append(slot.rank)
        self.change(lambda known: {"number": known["number"] + 1, "time": time.time(), "ranks": ranks})

    def wait(self, arrivals):
        self.change(lambda _known: {"waits": bool(arrivals.new)})

    def register(self):
        self.change(lambda _known: {"registered": True})

    def end(self, error):
        self.change(lambda known: {"error": error or known["error"]})

    def change(self, fields):
        """Changes the value, which is never changed in place, and writes it: Horovod calls this from several threads,
        and the last one to write must know what all others have changed. So `fields(known)` looks at what has happened
        only under the lock."""
        with self.lock:
            new = dict(self.known, **fields(self.known))
            if new != self.known:
                self.known = dict(new, version=new["version"] + 1)
                self.write()

    def repeat(self):
        """Writes what could not be written."""
        with self.lock:
            if not self.is_written:
                self.write()

    def write(self):
        try:
            with open(os.open(ASSIGNMENT + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(self.known, file)
                file.flush()
                os.rename(ASSIGNMENT + ".new", ASSIGNMENT)
            self.is_written = True
        except OSError:
            self.is_written = False  # a full disk is no reason to give up


class Arrivals:
    """The processes that were started while others go on, until each is in `hvd.init`. There it first stores its host
    as `rank_RANK` and, when those with lower ranks have done so, its address as `RANK` (gloo/rendezvous/context.cc,
    `connectFullMesh`)."""

    def __init__(self):
        self.changed = threading.Condition()
        self.number = 0  # of assignments so far
        # the rank of each that was started for the current assignment, by host and local rank; empty once all have
        # arrived
        self.new = {}
        self.stored = set()  # what ranks have stored
        self.exited = set()  # processes of the current assignment that will not take part
        self.is_over = False

    def begin(self, assigned, started):
        """There is an assignment, for which processes are started. At first that is all of them, and Horovod limits the
        wait. A process that exited while the assignment was made may still be in it."""
        slots = {(slot.hostname, slot.local_rank): str(slot.rank) for slot in started}
        with self.changed:
            self.new = slots if len(slots) < len(assigned) else {}
            self.exited &= assigned - set(slots)

    def clear(self):
        with self.changed:
            self.number += 1
            self.stored.clear()
            self.changed.notify_all()

    def store(self, key):
        with self.changed:
            self.stored.add(key)
            if {key.rpartition("_")[2] for key in self.stored}.issuperset(self.new.values()):
                self.new = {}
            self.changed.notify_all()

    def exit(self, process):
        with self.changed:
            self.exited.add(process)
            self.changed.notify_all()

    def end(self):
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def wait(self, process, limit):
        """Waits until all new processes have arrived, and returns None. If there has to be another assignment, because
        a process has exited or new ones are late, returns the hosts of the new ones."""
        with self.changed:
            self.changed.wait_for(lambda: not self.new or self.exited or self.is_over, limit)
            is_complete = not self.new and not self.exited
            return None if is_complete or self.is_over or process in self.exited else {host for host, _ in self.new}

    def wait_for(self, key, limit):
        """Lets a new process wait for what another one stores, which may wait for more new ones."""
        with self.changed:
            number = self.number

            def has_ended():
                return self.number != number or self.exited or self.is_over

            if self.new:
                self.changed.wait_for(lambda: not self.new or has_ended(), limit)
                self.changed.wait_for(lambda: key in self.stored or has_ended(), GLOO_LIMIT)


class Corrections:
    """What replaces methods of Horovod 0.28.1 (horovod/runner). Each gets the replaced method as its first argument."""

    def __init__(self, mixed):
        self.assignment, self.arrivals = Assignment(), Arrivals()
        self.ended = set()  # hosts whose processes count as ended
        self.mixed = mixed  # hosts were added and removed
        # of the hosts since the last assignment; when the ranks were notified of one
        self.change, self.notified = None, 0
        self.limit = 0  # seconds for which ranks wait for one another

    def discover(self, _old, _script):
        """Horovod starts a Python interpreter for its script every second, which takes the ranks' processors
        (elastic/discovery.py)."""
        return available()

    def order(self, old, hosts, previous):
        """New hosts get their ranks in the order of the file. In Horovod they come from a set
        (elastic/discovery.py)."""
        position = {line.rpartition(":")[0]: number for number, line in enumerate(available().split())}
        return old(sorted(hosts, key=lambda host: position.get(host, len(position))), previous)

    def blacklist(self, old, manager, host):
        self.ended.add(host)
        old(manager, host)

    def assign(self, old, driver, hosts):
        """Processes of a blacklisted host have ended. Horovod waits forever for them if it takes the host back before
        the other ranks could continue without it (elastic/driver.py)."""
        while self.ended:
            # one by one: another thread may add one meanwhile
            driver.host_assignments.pop(self.ended.pop(), None)
        started = old(driver, hosts)
        self.limit = driver._timeout
        assigned = {(slot.hostname, slot.local_rank) for slots in driver.host_assignments.values() for slot in slots}
        self.arrivals.begin(assigned, started)
        self.assignment.wait(self.arrivals)
        return started

    def update(self, old, manager):
        """The ranks are notified of a change until they have taken part in it; Horovod itself compares whether anything
        is left to change. It notifies rank 0 once, who may just be joining the other ranks and forget it
        (elastic/driver.py, `_notify_workers_host_changes`; common/elastic.py, `on_reset`). Without the news that hosts
        were added, ranks do not synchronize with the new ones."""
        self.assignment.repeat()
        change = old(manager)
        # once: another thread may take part in the change and reset it meanwhile
        before = self.change
        if change:
            self.change = before = change if before is None else before | change
        elif time.monotonic() < self.notified + AGAIN:
            return change
        self.notified = time.monotonic()
        return self.mixed if before is None else before

    def notify(self, old, *arguments):
        """Does not wait for the answer of a rank: its node may be gone, and hosts could not change before TCP times
        out."""
        def work():
            with contextlib.suppress(Exception):
                old(*arguments)

        threading.Thread(target=work, daemon=True).start()

    def slot(self, old, driver, host, local_rank):
        """Ranks that go on get their new numbers when the new processes are there. If they were in `hvd.init` before,
        they would abort if one of these fails, or comes later than Gloo's time-out (common/gloo/gloo_context.cc,
        `Rendezvous`). A process that is in no assignment any more gets its answer at once: it would be counted as
        another one."""
        while driver.has_rank_assignment(host, local_rank) and not driver.finished():
            late = self.arrivals.wait((host, local_rank), self.limit)
            if late is None:
                break
            for other in late:
                # ends its processes, which count as failed
                driver._host_manager._hosts_state[other].set_event()
            driver.record_ready(host, local_rank)
        return old(driver, host, local_rank)

    def exit(self, old, driver, slot, *arguments):
        if driver.has_rank_assignment(slot.hostname, slot.local_rank):
            self.arrivals.exit((slot.hostname, slot.local_rank))
        old(driver, slot, *arguments)

    def put(self, old, handler, scope, key, value):
        old(handler, scope, key, value)
        if scope == SCOPE:
            self.arrivals.store(key)
            self.assignment.wait(self.arrivals)

    def get(self, old, handler, scope, key):
        found = old(handler, scope, key)
        if found is None and scope == SCOPE:
            self.arrivals.wait_for(key, self.limit)
            found = old(handler, scope, key)
        return found

    def initialize(self, old, server, slots):
        self.change = None
        self.assignment.assign(slots)
        old(server, slots)
        self.arrivals.clear()

    def register(self, old, *arguments):
        old(*arguments)
        self.assignment.register()

    def stop(self, old, driver, error_message=None):
        self.assignment.end(error_message)
        self.arrivals.end()
        old(driver, error_message)


def replace(owner, name, new):
    """Replaces a method. Fails if there is none."""
    old = getattr(owner, name)

    def method(*arguments, **more):
        return new(old, *arguments, **more)

    setattr(owner, name, staticmethod(method) if isinstance(vars(owner).get(name), staticmethod) else method)


def install():
    """Corrects Horovod. Fails if it is not as expected."""
    from horovod.runner.elastic.discovery import HostDiscoveryScript, HostManager
    from horovod.runner.elastic.driver import ElasticDriver
    from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient
    from horovod.runner.http.http_server import KVStoreHandler, RendezvousServer

    corrections = Corrections(HostUpdateResult.mixed)
    replace(HostDiscoveryScript, "_execute_discovery_script", corrections.discover)
    replace(HostManager, "order_available_hosts", corrections.order)
    replace(HostManager, "blacklist", corrections.blacklist)
    replace(HostManager, "update_available_hosts", corrections.update)
    replace(WorkerNotificationClient, "notify_hosts_updated", corrections.notify)
    replace(ElasticDriver, "_update_host_assignments", corrections.assign)
    replace(ElasticDriver, "get_slot_info", corrections.slot)
    replace(ElasticDriver, "_handle_worker_exit", corrections.exit)
    replace(ElasticDriver, "register_worker_server", corrections.register)
    replace(ElasticDriver, "stop", corrections.stop)
    replace(KVStoreHandler, "_put_value", corrections.put)
    replace(KVStoreHandler, "_get_value", corrections.get)
    replace(RendezvousServer, "init", corrections.initialize)


def main(arguments):
    horovodrun, *rest = arguments
    # the job's directory has modules of its own
    sys.path = [path for path in sys.path if path != HERE]
    try:
        install()
        from horovod.runner.launch import run_commandline
    except (ImportError, AttributeError) as error:
        print("hvdctl: this Horovod is not as expected, so ranks are not kept when nodes leave or join: %s" % error,
              flush=True)
        return plain(horovodrun, rest)
    sys.argv = [horovodrun] + rest
    return run_commandline()


def plain(horovodrun, arguments):
    """Becomes horovodrun itself."""
    if COOL_DOWN in arguments:
        at = arguments.index(COOL_DOWN)
        arguments = arguments[:at] + arguments[at + 3:]
    os.execv(horovodrun, [horovodrun] + arguments)


def start(arguments):
    """Continues under the interpreter of horovodrun."""
    horovodrun = shutil.which("horovodrun")
    if not horovodrun:
        print("horovodrun: %s" % os.strerror(2), flush=True)
        return 127
    try:
        python = interpreter(horovodrun)
    except (OSError, ValueError):
        python = []
    if python:
        os.execvp(python[0], python + [os.path.abspath(__file__), "--with", horovodrun] + arguments)
    return plain(horovodrun, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]) if sys.argv[1:2] == ["--with"] else start(sys.argv[1:]))
