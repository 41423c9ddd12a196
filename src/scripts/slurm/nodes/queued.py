"""Jobs that hvdctl has submitted to the cluster's queue, as the containers of that Slurm see them. hvdctl has put a
description of each on every node that may get it, `jobs/ID.json` (schedule/queue); only root reads and writes it. What
is in the job's own directory, ranks can change: nothing is read there after the job has begun."""
import contextlib
import fcntl
import json
import os
import re
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
import placement  # noqa: E402

os.environ["SLURM_TIME_FORMAT"] = "%s"
DIRECTORY = os.path.dirname(os.path.abspath(__file__))
ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
FORMAT = "%i|%T|%r|%V|%S|%j|%N"
ENVIRONMENT = re.compile(r"env\.(\d+\.)?json")  # that of the ranks, or of those of a role
LIMIT = 20  # seconds for an answer of Slurm
SUBMITTED = 600  # seconds after its description within which hvdctl has submitted a job


def settings():
    return load("node.json")


def sockets(here):
    """The paths of the engine's socket: in its directory, where it is also found after it was made anew, and the file
    that was mounted when this container was started. `here`: the settings."""
    return [here[name] for name in ("engine", "socket") if here.get(name)]


def path(*parts):
    return os.path.join(DIRECTORY, *parts)


def load(*parts):
    """Returns a file as JSON; None if it is missing."""
    try:
        with open(path(*parts)) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def store(value, *parts):
    """Writes a file as JSON, as a whole."""
    os.makedirs(os.path.dirname(path(*parts)), 0o700, exist_ok=True)
    put(path(*parts), json.dumps(value))


def put(name, text, mode=0o600):
    """Writes a whole file or none. Ranks may have put anything into the directory; they cannot know the name of the new
    file."""
    new = "%s.%s.new" % (name, os.urandom(16).hex())
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, name)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def read(name):
    """Reads a file of a job, which may be anything by now: at most 1 MiB of a regular one."""
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("%s is not a regular file" % name)
        return file.read(1 << 20)


def discard(*parts):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path(*parts))


def listed(directory):
    """The ids of the jobs that have a file in a directory."""
    names = os.listdir(path(directory)) if os.path.isdir(path(directory)) else []
    return sorted(name[:-5] for name in names if name.endswith(".json") and ID.fullmatch(name[:-5]))


def may_be_submitted(job):
    """Whether hvdctl may still be about to submit a job."""
    with contextlib.suppress(OSError):
        return time.time() - os.stat(path("jobs", job + ".json")).st_mtime < SUBMITTED
    return False


@contextlib.contextmanager
def locked():
    """Keeps two jobs from choosing among the same GPUs at the same time."""
    with open(path("lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ask(*argv):
    """What a command of Slurm prints. Raises OSError if it fails."""
    try:
        ran = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise OSError("%s has not answered within %d s" % (argv[0], LIMIT))
    if ran.returncode:
        raise OSError("%s: %s" % (argv[0], ran.stderr.decode(errors="replace").strip()))
    return ran.stdout.decode(errors="replace")


def queue():
    """What Slurm has of each job: number, state, nodes, and a text for `hvdctl jobs`, by the id of the job."""
    found = {}
    for line in ask("squeue", "--all", "--noheader", "--format=" + FORMAT).splitlines():
        number, state, reason, submitted, start, rest = line.split("|", 5)
        name, nodes = rest.rsplit("|", 1)
        job = name.rsplit(".", 1)[-1]
        if ID.fullmatch(job):
            text = "|".join([number, state, reason, submitted, start])
            # a job whose prologs still run is RUNNING for Slurm
            found[job] = {"number": number, "state": "CONFIGURING" if (state, reason) == ("RUNNING", "Prolog")
                          else state, "nodes": nodes, "text": text}
    return found


def remove_environment(job):
    """Removes the environment of the ranks of a job, which may be secret: no rank starts any more."""
    directory = os.path.join(settings()["jobs_dir"], job)
    with contextlib.suppress(OSError):
        for name in filter(ENVIRONMENT.fullmatch, os.listdir(directory)):
            os.unlink(os.path.join(directory, name))


def hostnames(nodes):
    return ask("scontrol", "show", "hostnames", nodes).split() if nodes else []


def place(job, nodes):
    """Which rank runs where on the nodes that Slurm has given (launch/placement.rs): the shares of a placement, that of
    the launcher's node first."""
    if job.get("roles"):
        return place_roles(job, nodes)
    slots = [(node["node"], min(node["slots"], job["per_node"] or node["slots"])) for node in job["nodes"]
             if node["node"] in nodes]
    given, left = [0] * len(slots), job["ranks"]
    while left and any(most > count for (_, most), count in zip(slots, given)):
        for place, (_, most) in enumerate(slots):
            room = most - given[place] if job["map_by"] == "slot" else min(1, most - given[place])
            given[place] += min(room, left)
            left -= min(room, left)
    if left:
        raise RuntimeError("Slurm has given it %s, which have %d slots, and it has %d ranks" % (
            ",".join(nodes), sum(given), job["ranks"]))
    shares, first = [], 0
    for (node, _), ranks in zip(slots, given):
        if ranks:
            shares.append(dict({"node": node, "ranks": ranks, "first": first},
                               **({"shared": True} if job["per_node"] else {})))
            first += ranks
    if not shares or shares[0]["node"] != job["launcher"]:
        shares.insert(0, {"node": job["launcher"], "ranks": 0, "first": 0})
    return shares


def place_roles(job, nodes):
    rooms = [node for node in job["nodes"] if node["node"] in nodes]
    try:
        shares = placement.place_roles(rooms, job["roles"])
    except placement.Lack as why:
        raise RuntimeError("the roles do not fit on %s, which Slurm has given it: %s" % (",".join(nodes), why))
    if shares[0]["node"] != job["launcher"]:
        shares.insert(0, {"node": job["launcher"], "ranks": 0, "first": 0, "roles": [0] * len(job["roles"])})
    return shares


def describe_roles(job, shares, mine, directory):
    """Writes for the ranks of a job on this node which role each has, where the others are, and their GPUs."""
    path, roles = os.path.join(directory, "launcher.json"), job["roles"]
    before = json.loads(read(path))["roles"]
    put(path, json.dumps({"roles": placement.described(before, roles, shares, mine, None)}), 0o644)
    addresses = {node["node"]: node["address"] for node in job["nodes"]}
    put(os.path.join(directory, "roles.json"), json.dumps(placement.table(roles, shares, addresses)), 0o644)
    gpus = list(job["gpus"])
    for number, (role, ranks) in enumerate(zip(roles, mine["roles"])):
        count = ranks * role["shape"]["gpus"]
        own, gpus = gpus[:count], gpus[count:]
        if job["gpus"] and not role["chooses_gpus"]:
            show_gpus(own, os.path.join(directory, "env.%d.json" % number))


def show_gpus(gpus, path):
    """Lets ranks see these GPUs alone. `path`: the file with their environment."""
    variables = json.loads(read(path))
    # a number is one in this order
    order = variables.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    name = "visible" if order == "PCI_BUS_ID" else "uuid"
    variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu[name] for gpu in gpus)
    put(path, json.dumps(variables))


def write_record(directory, shares, node):
    """Writes the placement into the record of a job on this node."""
    record = json.loads(read(os.path.join(directory, "job.json")))
    ranks = next(share["ranks"] for share in shares if share["node"] == node)
    record.update(ranks=ranks, placement={"shares": shares}, slurm={"is_placed": True, "is_own": True})
    # as hvdctl writes it: scripts look for "cluster":"NAME"
    put(os.path.join(directory, "job.json"), json.dumps(record, separators=(",", ":")))
