#!/run/cluster/bin/python3 -IS
"""Stands in for horovodrun, and with --mpi for mpirun as well: starts the ranks of each host of -H, on its own node as
its children and elsewhere over the first `ssh` in PATH.

Gloo: a process per rank in a session of its own passes the output on (safe_shell_exec.py). When a rank fails, whatever
descends from the other ranks' shells and ssh gets SIGTERM and 5 s later SIGKILL; the exit code is 1. Ranks of other
nodes get no signal.

MPI: a daemon per node (`orted`; on its own node mpirun itself) starts the ranks, each in a process group of its own. It
takes orders over a connection of its own, not over ssh. When a rank fails, the daemons kill the other ranks' process
groups (SIGTERM, 1 s later SIGKILL) and go; the exit code is that rank's. A daemon whose connection to mpirun is closed
does the same.

With --min-np it is the elastic driver: it follows the hosts that the script prints, and writes which process has which
rank to the file that elastic_driver.py writes. A host whose rank has failed is not used for a second. Processes of a
host that is removed get SIGTERM; all others go on. It ends with 0 when a rank has, and with 1 when none is left. With
HOROVOD_STAND_IN_UNREGISTERED the ranks do not use `hvd.elastic.run`.

The ranks in HOROVOD_STAND_IN_LEAVES_OUT sleep in place of what they were to run."""
import ctypes
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time

HOME = "/run/cluster"
LEFT_OUT = os.environ.get("HOROVOD_STAND_IN_LEAVES_OUT", "").split()


def arguments(argv):
    """The options by name, and what the ranks run."""
    options = {"controller": "mpi"}
    words = iter(argv)
    for word in words:
        if word in ("--gloo", "--mpi"):
            options["controller"] = word[2:]
        elif word == "--disable-cache":
            pass
        elif word == "--blacklist-cooldown-range":
            next(words), next(words)
        elif word.startswith("-"):
            options[word.lstrip("-")] = next(words)
        else:
            return options, [word] + list(words)
    raise SystemExit("horovodrun: nothing to run")


def layout(options):
    """The ranks as (rank, local rank, ranks of the node, address)."""
    ranks = []
    for host in options["H"].split(","):
        address, _, slots = host.partition(":")
        ranks += [(len(ranks) + local, local, int(slots), address) for local in range(int(slots))]
    assert len(ranks) == int(options["np"]), "the slots are as many as the ranks"
    return ranks


def join(argv):
    return " ".join(map(shlex.quote, argv))


def is_here(address):
    with open("/run/address") as file:
        return file.read().strip() == address


def ssh(options, host, words, **streams):
    argv = ["ssh", "-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no", host, "-p", options["p"]]
    return subprocess.Popen(argv + words, **streams)


def show(data, prefix, rest, end=False):
    """Passes whole lines on, each behind the prefix; gives what is left of the last one."""
    *whole, rest = (rest + data).split(b"\n")
    whole += [rest] if end and rest else []
    for line in whole:
        os.write(1, prefix + line + b"\n")
    return rest


def descendants(pid):
    found = [pid]
    for one in found:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % entry) as file:
                    if int(file.read().rpartition(") ")[2].split()[1]) == one:
                        found.append(int(entry))
            except OSError:
                pass
    return found[1:]


def send(number, pids, to=os.kill):
    for pid in pids:
        try:
            to(pid, number)
        except ProcessLookupError:
            pass


def exit_code(status):
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


# --- Gloo


def middleman(options, program, place):
    """One rank's process of safe_shell_exec.py. Does not come back."""
    rank, local, of_node, address = place
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: it ends with its launcher
    variables = {"HOROVOD_RANK": rank, "HOROVOD_SIZE": options["np"], "HOROVOD_LOCAL_RANK": local,
                 "HOROVOD_LOCAL_SIZE": of_node, "HOROVOD_HOSTNAME": address, "HOROVOD_CONTROLLER": "gloo"}
    argv = ["sleep", "600"] if str(rank) in LEFT_OUT else program
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # as gloo_run.py: all of the environment is in the command, also on its own node (env.py, is_exportable)
    given = {name: value for name, value in os.environ.items() if name != "OLDPWD"
             and not name.endswith("CUDA_VISIBLE_DEVICES")}
    words = ["%s=%s" % (name, shlex.quote(str(value))) for name, value in dict(given, **variables).items()]
    command = "cd %s >/dev/null 2>&1; %s %s" % (shlex.quote(os.getcwd()), " ".join(words), join(argv))
    child = subprocess.Popen(command, shell=True,
                             **streams) if is_here(address) else ssh(options, address, [command], **streams)
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: asked.append(number))
    selector, rest = selectors.DefaultSelector(), {}
    for stream, name in ((child.stdout, "stdout"), (child.stderr, "stderr")):
        rest[stream] = b""
        selector.register(stream, selectors.EVENT_READ, b"[%d]<%s>:" % (rank, name.encode()))
    limit = None
    while selector.get_map():
        for key, _events in selector.select(0.1):
            data = os.read(key.fd, 1 << 16)
            rest[key.fileobj] = show(data, key.data, rest[key.fileobj], not data)
            if not data:
                selector.unregister(key.fileobj)
        if asked and (limit is None or time.monotonic() > limit):
            send(signal.SIGTERM if limit is None else signal.SIGKILL, descendants(os.getpid()))
            limit = limit or time.monotonic() + 5
    code = child.wait()
    os._exit(code if code >= 0 else 128 - code)


def gloo(options, program, places):
    # whether each node answers, as horovodrun asks first
    for address in dict.fromkeys(place[3] for place in places):
        if not is_here(address) and ssh(options, address, ["true"], stdin=subprocess.DEVNULL).wait():
            raise SystemExit("SSH was not successful on the following hosts:\n%s" % address)
    sys.stdout.flush()
    ranks = {}
    for place in places:
        pid = os.fork()
        if pid == 0:
            middleman(options, program, place)
        ranks[pid] = place[0]
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: (asked.append(number), send(number, ranks)))
    failed = False
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if status and not failed:
            failed = True
            print("Process %d exit with status code %d." % (rank, exit_code(status)), flush=True)
            send(signal.SIGTERM, ranks)
    return 1 if failed or asked else 0


def available(options, resting):
    """The hosts that are printed with their slots, without those that rest."""
    printed = subprocess.run(options["host-discovery-script"], shell=True,
                             stdout=subprocess.PIPE).stdout.decode().split()
    slots = (line.rpartition(":")[::2] for line in printed)
    return {address: int(number) for address, number in slots if resting.get(address, 0) < time.monotonic()}


def elastic(options, program):
    processes, resting, assigned, number, code = {}, {}, None, 0, None
    for sent in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sent, lambda _number, _frame: (send(signal.SIGTERM, processes), os._exit(1)))
    while code is None:
        hosts = available(options, resting)
        enough = sum(hosts.values()) >= int(options["min-np"])
        if enough and hosts != assigned:
            # hosts that were there before keep the order of their ranks
            order = [address for address in assigned or {} if address in hosts]
            order += [address for address in hosts if address not in order]
            assigned, number, ranks, size = {address: hosts[address]
                                             for address in order}, number + 1, {}, sum(hosts.values())
            for address in order:
                first = sum(map(len, ranks.values()))
                ranks[address] = list(range(first, first + hosts[address]))
            send(signal.SIGTERM, [pid for pid, (address, _local) in processes.items() if address not in hosts])
            file = os.path.join(os.path.dirname(program[1]), "assignment.json")
            with open(file + ".new", "w") as new:
                registered = "HOROVOD_STAND_IN_UNREGISTERED" not in os.environ
                json.dump({"version": number, "number": number, "time": time.time(), "ranks": ranks, "waits": False,
                           "registered": registered, "error": None}, new)
            os.rename(file + ".new", file)
            for address in order:
                for local, rank in enumerate(ranks[address]):
                    if (address, local) not in processes.values():
                        sys.stdout.flush()
                        pid = os.fork()
                        if pid == 0:
                            middleman(dict(options, np=str(size)), program, (rank, local, hosts[address], address))
                        processes[pid] = (address, local)
        time.sleep(0.1)
        while processes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            address, _local = processes.pop(pid)
            if status == 0:
                code = 0
            elif address in (assigned or {}):
                del assigned[address]
                resting[address] = time.monotonic() + 1
                code = None if assigned or not enough else 1
    while processes:
        processes.pop(os.wait()[0], None)
    return code


# --- MPI


def daemon(orders, places, options, program, env, name):
    """mpirun's part on one node. It ends on request, after its ranks."""
    with open("/proc/self/comm", "w") as file:
        file.write(name)
    selector, ranks, rest = selectors.DefaultSelector(), {}, {}
    selector.register(orders, selectors.EVENT_READ)
    for rank, local, of_node, _address in places:
        variables = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": options["np"],
                     "OMPI_COMM_WORLD_LOCAL_RANK": local, "OMPI_COMM_WORLD_LOCAL_SIZE": of_node}
        child = subprocess.Popen(["sleep", "600"] if str(rank) in LEFT_OUT else program,
                                 env=dict(env, **{name: str(value) for name, value in variables.items()}),
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 preexec_fn=lambda: os.setpgid(0, 0))
        ranks[rank] = child
        rest[rank] = b""
        selector.register(child.stdout, selectors.EVENT_READ, rank)
    limit, killed = None, False

    def tell(words):
        try:
            orders.sendall(words)
        except OSError:
            pass  # mpirun has gone

    while ranks or limit is None:
        for key, _events in selector.select(0.05):
            if key.fileobj is orders:
                try:
                    orders.recv(64)
                except OSError:
                    pass
                selector.unregister(orders)
                limit = time.monotonic() + 1
                send(signal.SIGCONT, [child.pid for child in ranks.values()], os.killpg)
                send(signal.SIGTERM, [child.pid for child in ranks.values()], os.killpg)
                continue
            data = os.read(key.fd, 1 << 16)
            *whole, rest[key.data] = (rest[key.data] + data).split(b"\n")
            whole += [rest[key.data]] if not data and rest[key.data] else []
            tell(b"".join(b"[1,%d]<stdout>:%s\n" % (key.data, line) for line in whole))
            if not data:
                selector.unregister(key.fileobj)
        if limit and not killed and time.monotonic() > limit:
            killed = True
            send(signal.SIGKILL, [child.pid for child in ranks.values()], os.killpg)
        for rank, child in list(ranks.items()):
            code = child.poll()
            if code is not None:
                del ranks[rank]
                tell(b"ended %d %d\n" % (rank, code if code >= 0 else 128 - code))


def mpi(options, program, places):
    path = "%s/network/mpirun-%d-%s" % (HOME, os.getpid(), os.environ.get("HVDCTL_RESTART"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    nodes = {}
    for place in places:
        nodes.setdefault(place[3], []).append(place)
    clients = {}
    # no rank is started before all of the other nodes' daemons are there
    for address, of_node in sorted(nodes.items(), key=lambda node: is_here(node[0])):
        if is_here(address):
            ours, theirs = socket.socketpair()
            if os.fork() == 0:
                ours.close()
                daemon(theirs, of_node, options, program, os.environ, "mpirun")
                os._exit(0)
            theirs.close()
        else:
            given = {name: value for name, value in os.environ.items() if name not in ("PATH", "HOME", "PWD", "OLDPWD")}
            orders = json.dumps([path, of_node, options, program])
            client = ssh(options, address, ["exec horovodrun --orted " + shlex.quote(orders)], stdin=subprocess.DEVNULL)
            listener.settimeout(0.1)
            while True:
                try:
                    ours, _ = listener.accept()
                    # the environment goes over the connection, not into the command
                    ours.sendall(json.dumps(given).encode() + b"\n")
                    break
                except socket.timeout:
                    if client.poll() is not None:
                        raise SystemExit("ORTE was unable to reliably start one or more daemons.")
        clients[ours] = b""
    os.unlink(path)
    first, asked, left = None, None, len(places)

    def stop(number, _frame):
        nonlocal asked
        asked = number
        end()

    def end():
        for client in clients:
            try:
                client.sendall(b"end\n")
            except OSError:
                pass

    signal.signal(signal.SIGTERM, stop)
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client, selectors.EVENT_READ)
    while selector.get_map():
        for key, _events in selector.select(0.1):
            try:
                data = key.fileobj.recv(1 << 16)
            except OSError:
                data = b""
            *whole, clients[key.fileobj] = (clients[key.fileobj] + data).split(b"\n")
            for line in whole:
                words = line.split()
                if words[:1] == [b"ended"]:
                    left -= 1
                    if int(words[2]) and not first and not asked:
                        first = int(words[2])
                        print("mpirun: rank %d exited with %d" % (int(words[1]), first), flush=True)
                        end()
                else:
                    os.write(1, line + b"\n")
            if not data:
                selector.unregister(key.fileobj)
                if left and not first and not asked:
                    first = 1
                    print("ORTE has lost communication with a remote daemon.", flush=True)
                    end()
        if not left:
            end()
    return first or (128 + asked if asked else 0)


def main():
    if sys.argv[1] == "--orted":
        path, places, options, program = json.loads(sys.argv[2])
        orders = socket.socket(socket.AF_UNIX)
        orders.connect(path)
        given = b""
        while not given.endswith(b"\n"):
            given += orders.recv(1)
        given = json.loads(given.decode())
        global LEFT_OUT
        LEFT_OUT = given.get("HOROVOD_STAND_IN_LEAVES_OUT", "").split()
        daemon(orders, places, options, program, dict(os.environ, **given), "orted")
        return 0
    options, program = arguments(sys.argv[1:])
    if "min-np" in options:
        return elastic(options, program)
    return {"gloo": gloo, "mpi": mpi}[options["controller"]](options, program, layout(options))


sys.exit(main())
