"""Begins a job in an allocation of Slurm: the job supervisor, the main program of its batch job, calls `begin`. Finds
which ranks each node has, and at which addresses the nodes reach one another, and writes that to the job's files.

As a program it is started by Slurm on every other node, with the name of the first one. There it prints the node, its
address and that of the first node in the network by which they reach each other, and keeps what is the node's own in
the environment (variables.py)."""
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
os.environ["HVDCTL_NODE"] = ""  # this runs on the first node, whatever nodes an earlier allocation had (here.py)
import endings  # noqa: E402
import faults  # noqa: E402
import files  # noqa: E402
import frames  # noqa: E402
import placement  # noqa: E402
import result  # noqa: E402
import variables  # noqa: E402
from here import PROGRAMS, command_of  # noqa: E402

OWN = ("job.json", "launcher.json", "env.json")  # what each node has of its own
OPEN = (faults.END_NOT_KNOWN, faults.PREEMPTED, faults.PREEMPTED_TO_RETURN)
PLACED = {"is_placed": True}  # record/mod.rs
LOGS = ("log", "samples")
SIOCGIFADDR = 0x8915  # asks for the address of an interface
FIRST = "first.json"  # the environment that is passed from the first node to the others
SUBMITTED, BEGUN = "submitted", "begun"  # the environments of the login and of the batch script (slurm/submit.sh)
# environments, which may be secret
SECRETS = ("env.json", "inherited.json", "inherited.json.new", FIRST, FIRST + ".new", variables.OWN, "environment")
OF_RANKS = SECRETS + ("states", "world.json")  # what ranks leave that has ended with them, too
OF_ROLE = re.compile(r"env\.\d+\.json\Z")  # the environment of the ranks of a role
UNHARMED = "trap '' USR1 USR2; exec \"$@\""  # starts a program that signals for ranks do not end
# without a process of its own that could outlive it
LISTEN = """import signal
wanted = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print("ready", flush=True)
while True:
    print(signal.Signals(signal.sigwait(wanted)).name[3:], flush=True)"""
LIMIT = 60  # seconds for Slurm to start a program on nodes whose prologs have ended
PAUSE = 2  # seconds
LONGEST_PROLOG = 600  # seconds that a prolog may take where the site has set no limit
KILL_WAIT = 30  # seconds: that of Slurm if its configuration says nothing (slurm.conf(5))


class NotShared(RuntimeError):
    """The nodes do not all find the job's directory."""


class NoCommands(RuntimeError):
    """This node does not have the commands of Slurm."""


class Question(threading.Thread):
    """Something that is asked of Slurm while this process does something else."""

    def __init__(self, ask):
        super().__init__(daemon=True)
        self.ask, self.found, self.error = ask, None, None
        self.start()

    def run(self):
        try:
            self.found = self.ask()
        except Exception as error:
            self.error = error

    def answer(self):
        """Waits for the answer, and raises the error if there is none."""
        self.join()
        if self.error:
            raise self.error
        return self.found


def find_commands():
    """Takes over what a login shell on the login node had if only that finds the commands of Slurm
    (slurm/common.sh)."""
    kept = os.path.join(os.path.dirname(os.path.dirname(os.environ.get("HVDCTL_PLACE", ""))), "slurm.environment")
    if missing_command():
        with contextlib.suppress(OSError), open(kept, errors="surrogateescape") as file:
            for name, value in (line.rstrip("\n").split("=", 1) for line in file if "=" in line):
                os.environ[name] = os.environ.get(name, "") + ":" + value if name == "PATH" else value
    if missing_command():
        raise NoCommands("%s: not found on %s, with this PATH: %s" % (
            missing_command(), os.environ.get("SLURMD_NODENAME", ""), os.environ.get("PATH", "")))


def missing_command():
    """The first command of Slurm that is not in PATH; None if all are."""
    return next((name for name in ("scontrol", "srun") if not shutil.which(name)), None)


def address(first):
    """The address of this node in the network of the first one, and that of the first one there: srun has started this
    from it. Names of nodes need not be names of hosts, users may not see the nodes' addresses (PrivateData), and a
    node's own name may lead to a loopback address."""
    seen = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    # where Slurm uses IPv6, the name alone may have an IPv4 address
    first_address = socket.gethostbyname(seen if re.match(r"[\d.]+$", seen) else first)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((first_address, 9))  # no packet is sent
        return probe.getsockname()[0], first_address


def interface(wanted):
    """The name of the interface of this node that has an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                # struct ifreq: a name and a sockaddr_in; netdevice(7)
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == wanted:
                    return name
    raise RuntimeError("no interface of this node has the address %s" % wanted)


def of_job():
    """The environment without what asks for something else than a step does; as srun.sh."""
    return variables.passed(os.environ, ())


def listen(node, start):
    """Starts a step on a node that writes "ready", and then the name of each signal that Slurm sends to steps. `start`:
    as `subprocess.Popen`."""
    argv = ["srun", "--nodes=1", "--ntasks=1", "--nodelist=" + node, "--overlap", "--mpi=none", "--gres=none",
            "--mem=0", "--export=ALL", "--quiet", "--input=none", "--unbuffered", sys.executable, "-I", "-c", LISTEN]
    # without the mark by which the rest of an attempt is found
    env = {name: value for name, value in of_job().items() if name != "HVDCTL_JOB"}
    return start(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def is_step():
    """Returns whether this job is a step within another one's allocation (slurm/submit.sh)."""
    return os.path.exists(os.path.join(os.environ.get("HVDCTL_PLACE", PROGRAMS), "step"))


def on_each(count, mpi, command, options=()):
    """The command that runs another one once on each of so many nodes of the allocation as a step with this type of
    MPI. `options`: more of srun."""
    return ["srun", "--nodes=%d" % count, "--ntasks=%d" % count, "--ntasks-per-node=1", "--overlap", "--mpi=" + mpi,
            "--mem=0", "--export=ALL", "--quiet", "--input=none", *options, "sh", "-c", UNHARMED, "sh"] + command


def prolog_limit(config):
    """Seconds that the prologs of a site may take: they may run on a node when the first step of the job begins
    there."""
    if all(config.get(name, "(null)") in ("(null)", "n/a") for name in ("Prolog", "TaskProlog")):
        return 0
    text = config.get("PrologTimeout", config.get("PrologEpilogTimeout", ""))
    return int(text) if text.isdigit() and int(text) < 65534 else LONGEST_PROLOG  # 65534: no limit


def after_prologs(count, command, env, limit, options):
    """Runs a command as `on_each`, and again while srun gives up because prologs still run: it waits for twice the
    site's MessageTimeout, 20 s by default."""
    until = time.monotonic() + limit
    while True:
        ran = subprocess.run(on_each(count, "none", command, options), env=env or of_job(), stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=max(until - time.monotonic(), 1))
        if not ran.returncode or b"timed out" not in ran.stdout or time.monotonic() > until:
            return ran
        time.sleep(PAUSE)


def addresses(nodes, env, limit):
    """The address of every node of the allocation by its name. `env`: the environment that is passed to them. `limit`:
    seconds for Slurm to start a program on all of them."""
    first, *others = nodes
    if not others:
        return {first: "127.0.0.1"}
    command = command_of("allocation.py", first)
    try:
        # they know how they reach the first one, on which this runs
        asked = after_prologs(len(others), command, env, limit, ["--nodelist=" + ",".join(others)])
    except subprocess.TimeoutExpired as error:
        silent = [node for node in others if node not in printed(error.output or b"")[0]]
        raise RuntimeError("Slurm has not started a program on %s within %g s; if the site's prologs take longer, raise"
                           " cluster.start_timeout_s" % (", ".join(silent[:3] + ["…"] * (len(silent) > 3)), limit))
    found, lines = printed(asked.stdout)
    failed = next((line for line in lines if line.startswith("hvdctl-failed ")), None)
    if failed:
        raise RuntimeError(failed.partition(" ")[2])
    if not asked.returncode and set(found) == set(others):
        return dict({node: own for node, (own, _) in found.items()}, **{first: found[others[0]][1]})
    said = " ".join(lines[-3:])
    if "No such file" in said or not asked.returncode:
        raise NotShared("the nodes %s do not all find %s, which must be in a directory that they share: %s" % (
            os.environ["SLURM_JOB_NODELIST"], os.path.abspath(__file__), said))
    raise RuntimeError("Slurm could not start a program on every node: %s" % said)


def printed(output):
    """Reads what this program has printed on nodes: the addresses that it found, by their names, and its lines."""
    lines = output.decode(errors="replace").splitlines()
    found = [line.split()[1:] for line in lines if line.startswith("hvdctl-address ")]
    return {node: (own, first) for node, own, first in found}, lines


def configuration():
    """The settings of Slurm, by their names."""
    shown = subprocess.run(["scontrol", "show", "config"], stdout=subprocess.PIPE).stdout.decode(errors="replace")
    return dict(re.findall(r"^(\w+)(?:\[\d+\])?\s*=\s*(\S+)", shown, re.MULTILINE))  # `Prolog[0]` since 23.11


def mpi_type(nodes):
    """How Slurm connects the ranks of MPI on so many nodes if the site has no default: over PMIx or PMI2, the first
    that all of them can load, or "none". `srun --mpi=list` also shows PMIx where its library is missing."""
    listed = subprocess.run(["srun", "--mpi=list"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    kinds = listed.decode(errors="replace").split()
    return next((kind for kind in ("pmix", "pmi2") if kind in kinds and has_started(try_mpi(kind, nodes))), "none")


def needs_mpi_type(launch, config):
    """Returns whether the launcher needs a type of MPI of Slurm that neither the site nor the user has chosen."""
    has_default = config.get("MpiDefault", "none") not in ("none", "(null)")
    is_used = any(one["launcher"][0] == "srun" for one in [launch] + launch.get("roles", []))
    return is_used and not has_default and "SLURM_MPI_TYPE" not in {**os.environ, **declared()}


def connect_mpi(kind):
    """Lets Slurm connect the ranks of MPI so (`mpi_type`), and writes to the job's log if it does not."""
    if kind:
        os.environ["SLURM_MPI_TYPE"] = kind
    if kind == "none":
        frames.Log(PROGRAMS).write(b"c", [b""])


def try_mpi(kind, nodes):
    """Starts a step with this type of MPI on so many nodes that does nothing."""
    # up to 21.08 it would wait for the step that has the GPUs
    return subprocess.Popen(on_each(nodes, kind, ["true"], ["--gres=none"]), env=of_job(), stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def has_started(step):
    """Returns whether a step of `try_mpi` has started. None is left running."""
    try:
        return step.wait(LIMIT) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        step.terminate()


def ask(argv):
    """The output of a program of Slurm, with times in seconds since the epoch; nothing if it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ran = subprocess.run(argv, env=dict(os.environ, SLURM_TIME_FORMAT="%s"), stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, timeout=5)
        return ran.stdout.decode(errors="replace")
    return ""


def fields_of(what, name):
    """The fields that Slurm shows of a job or a partition, by their names; nothing if it does not answer."""
    return fields(ask(["scontrol", "show", what, "--oneliner", name]))


def fields(shown):
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def ending(begun):
    """The ending that Slurm prepares for this job, as far as it answers (endings.py). `begun`: as in launch.json."""
    job = fields_of("job", os.environ.get("SLURM_JOB_ID", ""))
    is_preempted = endings.meaning(job, begun.restarts) in (endings.PREEMPTING, endings.PREEMPTED)
    partition = fields_of("partition", job.get("Partition", "")) if is_preempted else {}
    return endings.ending(job, begun, partition, time.time())


def begun(config, job, is_step):
    """The facts about this job when it begins, for launch.json: the fields of endings.Begun. `job`: its fields."""
    # of a batch job it is exact. A shell within an allocation may have none
    counted = job.get("Restarts") if is_step else os.environ.get("SLURM_RESTART_COUNT", "0")
    wait, by_partition = endings.number(config.get("KillWait")), config.get("PreemptType") == "preempt/partition_prio"
    return {"restarts": endings.number(counted), "is_step": is_step, "kill_wait": KILL_WAIT if wait is None else wait,
            "by_partition": by_partition}


def hostnames(text):
    """The nodes in a list of Slurm such as `node[1-2],gpu7`."""
    return subprocess.run(["scontrol", "show", "hostnames", text], stdout=subprocess.PIPE,
                          check=True).stdout.decode().split()


def resources(shown, expand=hostnames):
    """The generic resources that each node has given to a job, by the details of it: a step asks for all of them,
    because what the job as a whole asked for (`--gpus=8`) may not be on its node. Nothing for a node of which Slurm
    says nothing."""
    listed = re.findall(r"^\s+Nodes=(\S+) .*?GRES=(\S*)\s*$", shown, re.MULTILINE)
    return {node: re.sub(r"\([^)]*\)", "", gres) or "none" for nodes, gres in listed for node in expand(nodes)}


def node_directory(node):
    return os.path.join(PROGRAMS, "nodes", node)


def remove_of_ranks(directory, is_kept=lambda name: False):
    """Removes what ranks of an earlier allocation have left in the directory of a node, except its log."""
    for name in os.listdir(directory):
        if (name in OF_RANKS or OF_ROLE.match(name) or name.startswith("idle.")) and not is_kept(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))


def is_declared(name):
    """Returns whether a file has variables that were declared for the ranks."""
    return name == "env.json" or bool(OF_ROLE.match(name))


def forget_ranks():
    """Removes the marks that ranks have started, on all nodes: those of the next allocation have not."""
    nodes = os.path.join(PROGRAMS, "nodes")
    others = [node_directory(node) for node in os.listdir(nodes)] if os.path.isdir(nodes) else []
    for directory in [PROGRAMS] + others:
        with contextlib.suppress(OSError):
            remove_of_ranks(directory, is_declared)


def remove_secrets():
    """Removes what may be secret of an ended job on nodes where Slurm starts no step any more, which would do it."""
    nodes = os.path.join(PROGRAMS, "nodes")
    for directory in [node_directory(node) for node in os.listdir(nodes)] if os.path.isdir(nodes) else []:
        for name in [name for name in os.listdir(directory) if name in SECRETS or OF_ROLE.match(name)]:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))


def move_logs(before, first):
    """Lets the log of each node have the node's name when another one is the first of the allocation, whose log is in
    the job's directory itself. Programs that follow a log follow it to its new place."""
    own, new = node_directory(before), node_directory(first)
    os.makedirs(own, 0o700, exist_ok=True)
    for name in LOGS:
        in_job = os.path.join(PROGRAMS, name)
        # one of the two may have been done before this was cut off
        for path, to in ((in_job, os.path.join(own, name)), (os.path.join(new, name), in_job)):
            if os.path.exists(path) and not os.path.exists(to):
                os.rename(path, to)


def prepare_again(record, nodes):
    """Prepares the job's directory for other nodes than those of an allocation before this one (--requeue). Returns the
    nodes that only earlier allocations had."""
    if not record["slurm"]["is_placed"]:
        return []
    before = [share["node"] for share in record["placement"]["shares"]]
    if before[0] != nodes[0]:
        move_logs(before[0], nodes[0])
    earlier = [node for node in record.get("earlier", []) + before if node not in nodes]
    for node in earlier:
        os.makedirs(node_directory(node), 0o700, exist_ok=True)
        remove_of_ranks(node_directory(node))
    remove_of_ranks(PROGRAMS, is_declared)
    return list(dict.fromkeys(earlier))


def prepare_node(share, is_first, placed, record):
    """Writes what a node has of its own. Its log may be there from an allocation before this one."""
    own = PROGRAMS if is_first else node_directory(share["node"])
    if is_first:
        shutil.rmtree(node_directory(share["node"]), ignore_errors=True)
    else:
        os.makedirs(own, 0o700, exist_ok=True)
        remove_of_ranks(own)
        for name in [name for name in os.listdir(PROGRAMS) if name in OWN[1:] or OF_ROLE.match(name)]:
            shutil.copy(os.path.join(PROGRAMS, name), own)
        own_record = dict(record, ranks=share["ranks"], placement={"shares": placed}, slurm=PLACED)
        files.write_json(os.path.join(own, "job.json"), own_record)
    for name in ["log"] + ["samples"] * bool(record.get("sample")):
        os.close(os.open(os.path.join(own, name), os.O_WRONLY | os.O_CREAT, 0o600))


def node_files(share, placed):
    """The directory of a node's own files."""
    return PROGRAMS if share is placed[0] else node_directory(share["node"])


def describe_roles(share, roles, placed, gpus):
    """Writes for the rank supervisors of a node which ranks of each role it has."""
    described = placement.described(files.load("launcher.json")["roles"], roles, placed, share, gpus or None)
    path = os.path.join(node_files(share, placed), "launcher.json")
    files.write(path, json.dumps({"roles": described}), False, 0o644)


def put_roles(roles, placed, addresses):
    """Adds the nodes of each role's ranks to its description, and writes on every node where they are."""
    for number, role in enumerate(roles):
        role["places"] = placement.places(placed, number, addresses)
        write_rank_nodes("rank_nodes.%d" % number, role["places"])
    # addresses.py writes it again with the ports
    text = json.dumps(placement.table(roles, placed, addresses))
    for share in placed:
        files.write(os.path.join(node_files(share, placed), "roles.json"), text, False, 0o644)


def write_rank_nodes(name, placed):
    """Writes the node of each rank, a line each, for the launcher `srun` (launch/srun.rs)."""
    files.write(name, "".join((share["node"] + "\n") * share["ranks"] for share in placed), False)


def note_requeue(before, placed):
    """Logs that Slurm has started the job again, where a program that follows the job sees it (record/restart.rs)."""
    own = PROGRAMS if before == placed[0]["node"] else node_directory(before)
    shares = [{"node": share["node"], "ranks": share["ranks"]} for share in placed]
    frames.Log(own).write(b"r", [json.dumps({"requeued": shares}).encode()])


def show_job():
    """The details of this job, as far as Slurm shows them."""
    asked = ["scontrol", "show", "job", os.environ["SLURM_JOB_ID"]]
    # 22.05 breaks off over the details where users may not see nodes (PrivateData)
    return ask(asked[:1] + ["--details"] + asked[1:]) or ask(asked)


def look_around(launch, config, nodes, env):
    """Asks the nodes for their addresses, and which type of MPI they can load if the launcher needs one. Returns both
    answers."""
    prologs, is_asked = prolog_limit(config), needs_mpi_type(launch, config)
    # a step that fails while a prolog still runs would say nothing about MPI
    tried = try_mpi("pmix", len(nodes)) if is_asked and not prologs else None
    try:
        found = addresses(nodes, env, launch["start_timeout"] + prologs)
        if tried and has_started(tried):
            return found, "pmix"
    finally:
        if tried:
            tried.terminate()
    # again by itself: a slow node may have been why it failed
    return found, mpi_type(len(nodes)) if is_asked else None


def prepare(ranks):
    """Writes the files of the job for the nodes of this allocation."""
    settings, details = Question(configuration), Question(show_job)
    nodes = hostnames(os.environ["SLURM_JOB_NODELIST"])
    config, shown = settings.answer(), details.answer()
    given, launch = resources(shown), files.load("launch.json")
    roles, gpus = launch.get("roles"), {node: placement.gpus_of(given.get(node, "")) for node in nodes}
    placed = placement.placed(nodes, ranks, list(gpus.values()), roles)
    record = json.loads(files.read("job.json").decode())
    before = record["placement"]["shares"][0]["node"] if record["slurm"]["is_placed"] else None
    earlier = prepare_again(record, [share["node"] for share in placed])
    # before anything runs on the other nodes
    for share in placed:
        prepare_node(share, share is placed[0], placed, record)
        if roles:
            describe_roles(share, roles, placed, gpus[share["node"]])
    now, own = dict(os.environ), of_this_node()
    passed = variables.passed(now, own)
    files.write(FIRST, json.dumps({"passed": passed, "job": variables.of_whole_job(now)}), is_lasting=False)
    try:
        found, kind = look_around(launch, config, nodes, passed)
    finally:
        files.remove(FIRST)
    connect_mpi(kind)
    if re.search("affinity|cgroup", config.get("TaskPlugin", "")):
        # a step of one process would get one core
        os.environ["SLURM_CPU_BIND"] = "none"
    files.write("addresses", "".join("%s %s %s\n" % (found[node], node, given.get(node, "")) for node in nodes), False)
    write_rank_nodes("rank_nodes", placed)
    hosts = [{"node": share["node"], "address": found[share["node"]], "ranks": share["ranks"]} for share in placed]
    launch.update(hosts[0], workers=hosts[1:], own=own)
    if roles:
        put_roles(roles, placed, found)
    for part in [part for one in [launch] + (roles or []) for part in one["launcher"]]:
        if isinstance(part, dict) and "interface" in part:
            part["interface"]["shared"] = interface(hosts[0]["address"])
    launch["slurm"] = begun(config, fields(shown), is_step())
    files.write_json("launch.json", launch)
    # after the directories: what reads it finds all logs
    record.update(ranks=placed[0]["ranks"], placement={"shares": placed}, slurm=PLACED)
    files.write_json("job.json", dict(record, earlier=earlier) if earlier else record)
    if before:
        note_requeue(before, placed)


def of_this_node():
    """The names of this node's own variables."""
    place = os.environ["HVDCTL_PLACE"]
    environments = [variables.read(os.path.join(place, name)) for name in (SUBMITTED, BEGUN)]
    return variables.of_first(*environments, now=dict(os.environ))


def keep_own():
    """Writes this node's own variables if it has ranks: runs the lines of `activate` in the
    environment in which they ran there, with what is this node's."""
    node, place = os.environ["SLURMD_NODENAME"], os.environ["HVDCTL_PLACE"]
    directory = os.path.join(PROGRAMS, "nodes", node)
    if not os.path.isdir(directory):
        return
    first = json.loads(files.read(FIRST).decode())
    begun, submitted = (variables.read(os.path.join(place, name)) for name in (BEGUN, SUBMITTED))
    # what the step has otherwise than it was given
    here = {name: value for name, value in os.environ.items() if first["passed"].get(name) != value}
    from_login = {name: value for name, value in begun.items() if submitted.get(name) == value}
    base = dict(from_login or first["passed"], **here)
    found = variables.activate(place, base, directory)
    text = json.dumps(variables.differences(first["passed"], found, first["job"]))
    path = os.path.join(directory, variables.OWN)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def declared():
    """The variables that were declared for the ranks; the launcher gets some of them, too (node_launcher.py)."""
    found = {}
    for name in filter(is_declared, os.listdir(PROGRAMS)):
        found.update(json.loads(files.read(name).decode()))
    return found


def has_ended():
    """Returns whether the job has a result. It is not final if Slurm had not said why the job was asked to end, or what
    becomes of one that it preempts: that it has started the job again is its answer."""
    path = os.path.join(PROGRAMS, result.NAME)
    if not os.path.exists(path):
        return False
    with contextlib.suppress(OSError, ValueError):
        is_open = json.loads(files.read(result.NAME).decode()).get("reason") in OPEN
        if is_open and "SLURM_RESTART_COUNT" in os.environ and os.path.exists(os.path.join(PROGRAMS, "env.json")):
            os.unlink(path)
            return False
    return True


def note_end():
    """Lets slurm/wait.sh know at once that the job has ended: Slurm takes some seconds to say so."""
    with contextlib.suppress(OSError):
        open(os.path.join(os.environ["HVDCTL_PLACE"], "done"), "w").close()


def report(ranks, error):
    """Records that the job has failed before its ranks were started."""
    message = str(error) or type(error).__name__
    kinds = {NotShared: faults.not_shared, NoCommands: faults.no_commands}
    fault = kinds.get(type(error), faults.not_allocated)(message)
    form = json.loads(files.read("launch.json").decode())["format"]
    result.write(files.write, form, ranks, fault)


def begin(ranks):
    """Begins the job. `ranks`: how many it has, or 0 for all tasks that Slurm has allocated. Returns whether it has not
    ended already."""
    if has_ended():
        # only Slurm has started it again, and 24.11 may do so each time that it ends
        note_end()
        with contextlib.suppress(OSError, NoCommands):
            find_commands()
            subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]])
        return False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what is on the way is removed then
    try:
        find_commands()
        prepare(ranks)
    except Exception as error:
        report(ranks, error)
        note_end()
        raise
    return True


def main():
    try:
        keep_own()
    except (OSError, RuntimeError, ValueError) as error:
        return print("hvdctl-failed %s: %s" % (os.environ["SLURMD_NODENAME"], error))
    print("hvdctl-address %s %s %s" % ((os.environ["SLURMD_NODENAME"],) + address(sys.argv[1])))


if __name__ == "__main__":
    main()
