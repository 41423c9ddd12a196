"""What a node does for the jobs of the cluster's own Slurm. Argument: `prolog` when a job gets the node, which starts the job's worker;
`epilog` when it gives it back, which waits until nothing of the job runs here any more; `check` now and then, which keeps Slurm from using
a node that a job outside of it has. `begun/ID.json` is there from prolog to epilog."""
import contextlib
import glob
import json
import os
import socket
import sys
import time

import queued
from engine import Engine, EngineError

READY = 60  # seconds for a worker's sshd to listen
FRESH = 300  # seconds in which a job that hvdctl prepares without Slurm gets its first process
WITHOUT_RANKS = 5  # seconds after which a worker without ranks ends with its allocation
PATIENCE = 300  # seconds in which an epilog tries again what has failed
MARK = "hvdctl: "  # begins the reasons of nodes that this program has drained
FAILURES = (OSError, RuntimeError, EngineError, ValueError, KeyError)


def number():
    return os.environ["SLURM_JOB_ID"]


def of_job():
    """The id of hvdctl's job and its nodes, for the job of Slurm; None for a job that was not submitted by hvdctl."""
    shown = queued.ask("scontrol", "--oneliner", "show", "job", number())
    fields = dict(field.split("=", 1) for field in shown.split() if "=" in field)
    job = fields.get("JobName", "").rsplit(".", 1)[-1]
    return (job, queued.hostnames(fields.get("NodeList", ""))) if queued.ID.fullmatch(job) else None


def prolog():
    found = of_job()
    if not found:
        return
    id, nodes = found
    job = queued.load("jobs", id + ".json")
    if not job:
        raise RuntimeError("hvdctl has not prepared this node for job %s" % id)
    outside = jobs_outside()
    if outside:
        # the job is put into the queue again
        drain("job %s" % outside[0])
        sys.exit(1)
    here = queued.settings()
    directory = os.path.join(here["jobs_dir"], id)
    shares = queued.place(job, nodes)
    mine = next((share for share in shares if share["node"] == here["node"] and share["ranks"]), None)
    if not mine:
        return
    with queued.locked():
        if job["per_node"] and job["gpus"]:
            mine["gpus"] = choose_gpus(id, job, mine["ranks"])
        queued.store(dict(job, chosen=mine.get("gpus", []), number=number()), "begun", id + ".json")
    queued.store({}, "seen", id + ".json")
    if "gpus" in mine:
        show_gpus(job, mine["gpus"], directory)
    queued.write_record(directory, shares, here["node"])
    if job["worker"]:
        start_worker(job["worker"], Engine(here["socket"]))


def choose_gpus(id, job, count):
    """The UUIDs of GPUs that no other job has here."""
    others = [queued.load("begun", other + ".json") or {} for other in queued.listed("begun") if other != id]
    chosen = {gpu for other in others for gpu in other.get("chosen", [])}
    free = [gpu["uuid"] for gpu in job["gpus"] if gpu["uuid"] not in chosen]
    if len(free) < count:
        raise RuntimeError("%d of its %d GPUs are free, and job %s needs %d" % (len(free), len(job["gpus"]), id, count))
    return free[:count]


def show_gpus(job, chosen, directory):
    """Lets the ranks of a job see these GPUs alone."""
    path = os.path.join(directory, "env.json")
    with open(path) as file:
        variables = json.load(file)
    variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu["visible"] for gpu in job["gpus"] if gpu["uuid"] in chosen)
    queued.put(path, json.dumps(variables))


def start_worker(worker, engine):
    engine.create(worker)
    until = time.monotonic() + READY
    while not is_sshd(worker["address"], worker["port"]) or not engine.running(worker["name"]):
        if not engine.running(worker["name"]):
            raise RuntimeError("cannot start %s: %s" % (worker["name"], engine.last_lines(worker["name"]) or "it has ended"))
        if time.monotonic() > until:
            raise RuntimeError("the sshd of %s does not answer on port %d" % (worker["name"], worker["port"]))
        time.sleep(0.05)
    if worker["names"]:
        engine.run(worker["name"], ["python3", "-I", "-c", worker["names"]])


def is_sshd(address, port):
    with contextlib.suppress(OSError):
        with socket.create_connection((address, port), 2) as connection:
            return connection.recv(4) == b"SSH-"
    return False


def epilog():
    begun = {id: queued.load("begun", id + ".json") or {} for id in queued.listed("begun")}
    id, job = next(((id, job) for id, job in begun.items() if job.get("number") == number()), (None, None))
    if not id:
        return
    engine, until, seen = Engine(queued.settings()["socket"]), time.monotonic() + job["grace"], time.monotonic()
    name = container(job)
    # a launcher that still waits for nodes has no ranks
    while engine.running(name) and (job["worker"] or queued.load("allocated", id + ".json") is not None):
        if id in jobs_with_ranks():
            seen = time.monotonic()
        # the worker of a job that has never begun, because another prolog has failed, does not end by itself
        if time.monotonic() > until or job["worker"] and time.monotonic() > seen + WITHOUT_RANKS:
            engine.signal(name, "SIGKILL")
            until = seen = time.monotonic() + 10
        time.sleep(0.2)
    # the rest stays until Slurm no longer has the job, which may be in its queue again
    queued.discard("begun", id + ".json")


def container(job):
    """The container of a job in which its ranks run here."""
    return job["worker"]["name"] if job["worker"] else job["master"]


def jobs_with_ranks():
    """The jobs whose ranks run on this node."""
    found = set()
    for directory in glob.glob("/proc/[0-9]*"):
        # other users could pretend to run ranks
        with contextlib.suppress(OSError):
            if os.stat(directory).st_uid != os.geteuid():
                continue
            with open(os.path.join(directory, "environ"), "rb") as file:
                variables = file.read().split(b"\0")
            if b"HVDCTL_PROGRAM=1" in variables:
                found.update(entry[11:].decode(errors="replace") for entry in variables if entry.startswith(b"HVDCTL_JOB="))
    return found


def jobs_outside():
    """The jobs that have ranks on this node, or are about to, and were not submitted to Slurm."""
    known, found = set(queued.listed("jobs")) | set(queued.listed("begun")), jobs_with_ranks()
    here = queued.settings()
    for file in glob.glob(os.path.join(glob.escape(here["jobs_dir"]), "*", "env.json")):
        with contextlib.suppress(OSError):
            if time.time() - os.stat(file).st_mtime < FRESH and not is_queued(os.path.dirname(file)):
                found.add(os.path.basename(os.path.dirname(file)))
    return sorted(job for job in found - known if queued.ID.fullmatch(job))


def is_queued(directory):
    """Whether hvdctl is about to submit a job, by its record."""
    try:
        with open(os.open(os.path.join(directory, "job.json"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            return bool(json.loads(file.read(1 << 20))["slurm"]["is_own"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def drain(why):
    queued.ask("scontrol", "update", "nodename=" + queued.settings()["node"], "state=drain", "reason=" + MARK + why)


def check():
    here = queued.settings()
    state, reason = queued.ask("sinfo", "--noheader", "--nodes=" + here["node"], "--format=%T|%E").splitlines()[0].split("|", 1)
    outside = jobs_outside()
    marked = os.path.exists(os.path.join(here["jobs_dir"], ".drained@" + here["cluster"]))
    why = "drained" if marked else "job %s" % outside[0] if outside else None
    is_drained = state.startswith("drain")
    if why and not is_drained:
        drain(why)
    elif not why and is_drained and reason.startswith(MARK):
        queued.ask("scontrol", "update", "nodename=" + here["node"], "state=resume")
    forget(here)


def forget(here):
    """Ends what is known here of jobs that Slurm no longer has. A node that was down gets no epilog. The agent does the rest on its node."""
    known, engine = queued.queue(), Engine(here["socket"])
    for id in queued.listed("begun"):
        job = queued.load("begun", id + ".json")
        if job and id not in known and not engine.running(container(job)):
            queued.discard("begun", id + ".json")
    if here["is_controller"]:
        return
    for id in queued.listed("jobs"):
        if id in known:
            queued.store({}, "seen", id + ".json")
        elif id not in queued.listed("begun") and (id in queued.listed("seen") or not queued.may_be_submitted(id)):
            queued.remove_environment(id)
            for kind in ("jobs", "seen"):
                queued.discard(kind, id + ".json")


def main(what):
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return {"prolog": prolog, "epilog": epilog, "check": check}[what]()
        except FAILURES as error:
            print("hvdctl: %s: %s" % (what, error), file=sys.stderr)
            # slurmctld or the engine may be starting; what cannot be checked keeps the node
            if what != "epilog" or time.monotonic() > until:
                return fail(what, error)
            time.sleep(1)


def fail(what, error):
    if what != "prolog":
        sys.exit(1)
    # the job cannot begin here, and the node is none the worse for it
    here = queued.settings()["node"]
    queued.ask("scontrol", "update", "jobid=" + number(), "admincomment=%s: %s" % (here, " ".join(str(error).split())[:300]))
    queued.ask("scancel", number())


if __name__ == "__main__":
    main(sys.argv[1])
