"""Horovod's launcher with its elastic driver (`horovodrun --min-np`), which keeps the ranks that are left when nodes leave or join. Runs
under the interpreter of `horovodrun`. Its arguments are those of `horovodrun`. It changes four things of Horovod 0.28.1 (horovod/runner):

- It reads the hosts from available_hosts. Horovod starts a Python interpreter for its script every second (elastic/discovery.py,
  `_execute_discovery_script`), which takes the ranks' processors.
- Hosts that are new get their ranks in the order of that file, and not in that of a set (elastic/discovery.py, `order_available_hosts`).
- Processes of a host that is blacklisted count as ended. Horovod waits forever for them if it takes the host back before the other ranks
  could continue without it (elastic/driver.py, `_update_host_assignments`).
- It writes to assignment.json which process has which rank, whenever that changes, and whether the ranks use `hvd.elastic.run`.

If Horovod is not as expected, it becomes `horovodrun` itself: the job supervisor then knows of no rank that is kept, and restarts the
job."""
import json
import os
import shlex
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = os.path.join(HERE, "available_hosts")  # ADDRESS:SLOTS on a line each, in the order of their ranks (in_place.py)
ASSIGNMENT = os.path.join(HERE, "assignment.json")
WRAPPER = b"'''exec'"  # begins the second line of a script whose interpreter has a path that is too long for the kernel (pip, conda)


def interpreter(script):
    """The interpreter of a script with its arguments, or an empty list if the script is a program of another kind."""
    with open(script, "rb") as file:
        first, second = file.readline(4096), file.readline(4096)
    if not first.startswith(b"#!"):
        return []
    line = os.fsdecode(second[len(WRAPPER):] if second.startswith(WRAPPER) else first[2:])
    words = shlex.split(line)
    return words[:1] if second.startswith(WRAPPER) else words


def available():
    with open(HOSTS) as file:
        return file.read()


class Assignment:
    """Which ranks the processes on each host have."""

    def __init__(self):
        self.number, self.ranks, self.time, self.registered = 0, {}, 0, False

    def assign(self, slots):
        self.number, self.ranks, self.time = self.number + 1, {}, time.time()
        for slot in sorted(slots, key=lambda slot: slot.local_rank):
            self.ranks.setdefault(slot.hostname, []).append(slot.rank)
        self.write()

    def register(self):
        if not self.registered:
            self.registered = True
            self.write()

    def write(self):
        with open(ASSIGNMENT + ".new", "w") as file:
            json.dump({"number": self.number, "time": self.time, "ranks": self.ranks, "registered": self.registered}, file)
        os.rename(ASSIGNMENT + ".new", ASSIGNMENT)


def change(owner, name, new):
    """Replaces a method by `new`, which gets the old one as its first argument. Fails if there is none."""
    old = getattr(owner, name)
    setattr(owner, name, lambda *arguments: new(old, *arguments))


def install():
    """Changes Horovod. Fails if it is not as expected."""
    from horovod.runner.elastic.discovery import HostDiscoveryScript, HostManager
    from horovod.runner.elastic.driver import ElasticDriver
    from horovod.runner.http.http_server import RendezvousServer

    assignment, ended = Assignment(), set()

    def order(old, hosts, previous):
        position = {line.rpartition(":")[0]: number for number, line in enumerate(available().split())}
        return old(sorted(hosts, key=lambda host: position.get(host, len(position))), previous)

    def blacklist(old, manager, host):
        ended.add(host)
        old(manager, host)

    def update(old, driver, hosts):
        for host in ended:
            driver.host_assignments.pop(host, None)
        ended.clear()
        return old(driver, hosts)

    def initialize(old, server, slots):
        assignment.assign(slots)
        return old(server, slots)

    def register(old, *arguments):
        old(*arguments)
        assignment.register()

    change(HostDiscoveryScript, "_execute_discovery_script", lambda _old, _script: available())
    order_hosts = HostManager.order_available_hosts
    HostManager.order_available_hosts = staticmethod(lambda hosts, previous: order(order_hosts, hosts, previous))
    change(HostManager, "blacklist", blacklist)
    change(ElasticDriver, "_update_host_assignments", update)
    change(ElasticDriver, "register_worker_server", register)
    change(RendezvousServer, "init", initialize)


def main(arguments):
    horovodrun, *rest = arguments
    try:
        install()
        from horovod.runner.launch import run_commandline
    except (ImportError, AttributeError) as error:
        print("hvdctl: this Horovod is not as expected, so ranks are not kept when nodes leave or join: %s" % error, flush=True)
        os.execv(horovodrun, arguments)
    sys.argv = [horovodrun] + rest
    return run_commandline()


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
    os.execv(horovodrun, [horovodrun] + arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]) if sys.argv[1:2] == ["--with"] else start(sys.argv[1:]))
