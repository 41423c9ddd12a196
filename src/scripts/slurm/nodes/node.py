"""Does on a node what the jobs of the cluster's queue need of its container engine. Runs in hslurm-agent, and does
what slurmd's hooks ask through the socket `agent.sock` (hook.py): `prolog` when a job gets the node, which starts the
job's worker; `epilog` when it gives it back, which waits until nothing of the job runs here any more; `check` now and
then, which keeps Slurm from using a node that a job outside of it has. `begun/ID.json` is there from prolog to epilog.

Who asks may be any job of Slurm: in hslurm all are root. So nothing but the number of a job is taken from a question,
and what is started for it is what hvdctl has described."""
import contextlib
import glob
import json
import os
import socket
import socketserver
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
import queued  # noqa: E402
from engine import Engine, EngineError  # noqa: E402

READY = 60  # seconds for a worker's sshd to listen
FRESH = 300  # seconds in which a job that hvdctl prepares without Slurm gets its first process
WITHOUT_RANKS = 5  # seconds after which a worker without ranks ends with its allocation
PATIENCE = 300  # seconds in which an epilog tries again what has failed
MARK = "hvdctl: "  # begins the reasons of nodes that this program has drained
# with which Slurm itself drains a node for good: when a hook has failed, as while the engine did not answer, or when
# slurmctld was killed before it had written that a job had begun, which it then starts a second time
OF_SLURM = ("Prolog error", "Epilog error", "Kill task failed", "Duplicate jobid", "batch job complete failure")
SOCKET = "agent.sock"
QUESTION = 4096  # bytes of the longest one
FAILURES = (OSError, RuntimeError, EngineError, ValueError, KeyError)
clearing = threading.Lock()


def of_job(number):
    """The id of hvdctl's job and its nodes, for the job of Slurm; None for a job that was not submitted by hvdctl."""
    shown = queued.ask("scontrol", "--oneliner", "show", "job", number)
    fields = dict(field.split("=", 1) for field in shown.split() if "=" in field)
    job = fields.get("JobName", "").rsplit(".", 1)[-1]
    return (job, queued.hostnames(fields.get("NodeList", ""))) if queued.ID.fullmatch(job) else None


def prolog(number):
    """Returns an exit code, as the functions for the other questions do."""
    found = of_job(number)
    if not found:
        return 0
    id, nodes = found
    job = queued.load("jobs", id + ".json")
    if not job:
        raise RuntimeError("hvdctl has not prepared this node for job %s" % id)
    outside = jobs_outside()
    if outside:
        # the job is put into the queue again
        drain("job %s" % outside[0])
        return 1
    here = queued.settings()
    directory = os.path.join(here["jobs_dir"], id)
    shares = queued.place(job, nodes)
    mine = next((share for share in shares if share["node"] == here["node"] and share["ranks"]), None)
    if not mine:
        return 0
    with queued.locked():
        if job["per_node"] and job["gpus"]:
            mine["gpus"] = choose_gpus(id, job, mine["ranks"])
        queued.store(dict(job, chosen=mine.get("gpus", []), number=number), "begun", id + ".json")
    queued.store({}, "seen", id + ".json")
    if "gpus" in mine:
        chosen = [gpu for gpu in job["gpus"] if gpu["uuid"] in mine["gpus"]]
        queued.show_gpus(chosen, os.path.join(directory, "env.json"))
    if job.get("roles"):
        queued.describe_roles(job, shares, mine, directory)
    queued.write_record(directory, shares, here["node"])
    if job["worker"]:
        start_worker(job["worker"], Engine(queued.sockets(here)))
    return 0


def choose_gpus(id, job, count):
    """The UUIDs of GPUs that no other job has here."""
    others = [queued.load("begun", other + ".json") or {} for other in queued.listed("begun") if other != id]
    chosen = {gpu for other in others for gpu in other.get("chosen", [])}
    free = [gpu["uuid"] for gpu in job["gpus"] if gpu["uuid"] not in chosen]
    if len(free) < count:
        raise RuntimeError("%d of its %d GPUs are free, and job %s needs %d" % (len(free), len(job["gpus"]), id, count))
    return free[:count]


def start_worker(worker, engine):
    engine.create(worker)
    until = time.monotonic() + READY
    while not is_sshd(worker["address"], worker["port"]) or not engine.running(worker["name"]):
        if not engine.running(worker["name"]):
            raise RuntimeError("cannot start %s: %s" % (worker["name"],
                                                        engine.last_lines(worker["name"]) or "it has ended"))
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


def epilog(number):
    begun = {id: queued.load("begun", id + ".json") or {} for id in queued.listed("begun")}
    id, job = next(((id, job) for id, job in begun.items() if job.get("number") == number), (None, None))
    if not id:
        return 0
    engine, until, seen = Engine(queued.sockets(queued.settings())), time.monotonic() + job["grace"], time.monotonic()
    name = container(job)
    # a launcher that still waits for nodes has no ranks
    while engine.running(name) and (job["worker"] or queued.load("allocated", id + ".json") is not None):
        if has_ranks(engine.process(name)):
            seen = time.monotonic()
        # the worker of a job that has never begun, because another prolog has failed, does not end by itself
        if time.monotonic() > until or job["worker"] and time.monotonic() > seen + WITHOUT_RANKS:
            engine.signal(name, "SIGKILL")
            until = seen = time.monotonic() + 10
        time.sleep(0.2)
    # the rest stays until Slurm no longer has the job, which may be in its queue again
    queued.discard("begun", id + ".json")
    return 0


def container(job):
    """The container of a job in which its ranks run here."""
    return job["worker"]["name"] if job["worker"] else job["master"]


def processes():
    """Yields the directory in /proc of each process whose program is root's, and its environment. Other users could
    pretend to run ranks."""
    for directory in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):
            if os.stat(directory).st_uid == os.geteuid():
                with open(os.path.join(directory, "environ"), "rb") as file:
                    yield directory, file.read().split(b"\0")


def has_ranks(main):
    """Tests whether ranks run in the container with this main process: in its PID namespace, whatever their environment
    says."""
    with contextlib.suppress(OSError):
        inside = os.stat("/proc/%d/ns/pid" % main).st_ino
        for directory, variables in processes():
            with contextlib.suppress(OSError):
                if b"HVDCTL_PROGRAM=1" in variables and os.stat(directory + "/ns/pid").st_ino == inside:
                    return True
    return False


def jobs_outside():
    """The jobs that have ranks on this node, or are about to, and were not submitted to Slurm. hvdctl has written the
    environment of the ranks of each; a process alone proves nothing, because ranks can give any to theirs."""
    known = set(queued.listed("jobs")) | set(queued.listed("begun"))
    prepared, fresh = set(), set()
    for file in glob.glob(os.path.join(glob.escape(queued.settings()["jobs_dir"]), "*", "env.json")):
        directory = os.path.dirname(file)
        job = os.path.basename(directory)
        with contextlib.suppress(OSError):
            changed = os.lstat(file).st_mtime
            if job not in known and queued.ID.fullmatch(job) and not is_queued(directory):
                prepared.add(job)
                if 0 <= time.time() - changed < FRESH:
                    fresh.add(job)
    if not prepared - fresh:
        return sorted(fresh)
    running = set()
    for _, variables in processes():
        if b"HVDCTL_PROGRAM=1" in variables:
            running.update(entry[11:].decode(errors="replace") for entry in variables
                           if entry.startswith(b"HVDCTL_JOB="))
    return sorted(fresh | prepared & running)


def is_queued(directory):
    """Whether hvdctl is about to submit a job, by its record."""
    try:
        return bool(json.loads(queued.read(os.path.join(directory, "job.json")))["slurm"]["is_own"])
    except OSError:
        return False
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def drain(why):
    queued.ask("scontrol", "update", "nodename=" + queued.settings()["node"], "state=drain", "reason=" + MARK + why)


def check(_number):
    here = queued.settings()
    state, reason = queued.ask("sinfo", "--noheader", "--nodes=" + here["node"],
                               "--format=%T|%E").splitlines()[0].split("|", 1)
    outside = jobs_outside()
    marked = os.path.exists(os.path.join(here["jobs_dir"], ".drained@" + here["cluster"]))
    why = "drained" if marked else "job %s" % outside[0] if outside else None
    is_drained = state.startswith("drain")
    if why and not is_drained:
        drain(why)
    elif not why and is_drained and (reason.startswith(MARK) or reason in OF_SLURM and clear()):
        queued.ask("scontrol", "update", "nodename=" + here["node"], "state=resume")
    forget(here)
    return 0


def clear():
    """Does for each job that no longer has this drained node what its epilog could not do, as that does. Returns
    whether nothing of them is left."""
    # an earlier question may still wait for the end of ranks
    if not clearing.acquire(blocking=False):
        return False
    try:
        known = queued.queue()
        begun = {id: queued.load("begun", id + ".json") or {} for id in queued.listed("begun")}
        numbers = [job["number"] for id, job in begun.items()
                   if known.get(id, {}).get("state", "PENDING") == "PENDING" and "number" in job]
        return not any([epilog(number) for number in numbers])
    finally:
        clearing.release()


def forget(here):
    """Ends what is known here of jobs that Slurm no longer has. A node that was down gets no epilog. The agent does the
    rest on its node."""
    known, engine = queued.queue(), Engine(queued.sockets(here))
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


def answer(what, number):
    """The exit code of a hook."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return {"prolog": prolog, "epilog": epilog, "check": check}[what](number)
        except FAILURES as error:
            print("hvdctl: %s: %s" % (what, error), file=sys.stderr, flush=True)
            # slurmctld or the engine may be starting; what cannot be checked keeps the node
            if what != "epilog" or time.monotonic() > until:
                return fail(what, number, error)
            time.sleep(1)


def fail(what, number, error):
    if what != "prolog":
        return 1
    # the job cannot begin here, and the node is none the worse for it
    here = queued.settings()["node"]
    try:
        queued.ask("scontrol", "update", "jobid=" + number,
                   "admincomment=%s: %s" % (here, " ".join(str(error).split())[:300]))
        queued.ask("scancel", number)
    except OSError as failed:
        print("hvdctl: %s" % failed, file=sys.stderr, flush=True)
        return 1
    return 0


class Question(socketserver.StreamRequestHandler):
    timeout = 10  # seconds for the question

    def handle(self):
        question = json.loads(self.rfile.readline(QUESTION).decode())
        what, number = question["what"], str(question.get("job") or "")
        if what not in ("prolog", "epilog", "check") or what != "check" and not number.isdigit():
            raise ValueError("not a question of slurmd's hooks")
        self.wfile.write(b"%d\n" % answer(what, number))


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        print("hvdctl: a question was not answered: %s" % sys.exc_info()[1], file=sys.stderr, flush=True)


def main():
    # the path of a socket is short
    os.chdir(queued.DIRECTORY)
    os.umask(0o177)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    server = Server(SOCKET, Question)
    os.umask(0o077)
    server.serve_forever()


if __name__ == "__main__":
    main()
