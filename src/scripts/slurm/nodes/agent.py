"""Starts the jobs to which the cluster's queue allocates nodes, and ends their allocations with them. Runs on the
master.

The container of a job's launcher is up from its submission on, and waits (queue_wait.py). When Slurm has allocated
nodes and their prologs have started the job's workers, the launcher goes on. When it has ended, its allocation is
ended; when the allocation has ended, the launcher is.

queue_state.py decides what is done about a job; this file observes it and acts."""
import contextlib
import json
import os
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
import faults  # noqa: E402
import queue_state  # noqa: E402
import queued  # noqa: E402
import result  # noqa: E402
from engine import Engine, EngineError  # noqa: E402

PAUSE = 0.5  # seconds
IDLE = 20  # rounds after which Slurm is asked although no job is known
# why Slurm has ended a job
REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": queue_state.NODE_FAIL}
FAILURES = (OSError, RuntimeError, EngineError, ValueError, KeyError)


class Job:
    """A job, its files, and what Slurm says of it."""

    def __init__(self, id, here):
        self.id, self.description = id, queued.load("jobs", id + ".json")
        self.directory = os.path.join(here["jobs_dir"], id)
        is_allocated = queued.load("allocated", id + ".json") is not None
        self.state = queue_state.Begun() if is_allocated else queue_state.Prepared()
        self.number = None
        self.read_number()
        self.entry, self.missing = None, 0  # of Slurm's queue, and for how many rounds there has been none
        self.shown = None  # what `hvdctl jobs` shows of it

    def read_number(self):
        """Reads the number that Slurm has given it, which hvdctl writes when it submits the job."""
        self.number = (queued.load("numbers", self.id + ".json") or {}).get("number")

    def note(self, entry):
        """Notes what Slurm's queue says of it, and shows that to `hvdctl jobs`."""
        self.entry, self.missing = entry, 0 if entry else self.missing + 1
        if not self.number:
            self.read_number()
        if entry:
            with contextlib.suppress(OSError):
                self.show(entry)

    def show(self, entry):
        if entry["number"] != self.number:
            queued.store({"number": entry["number"]}, "numbers", self.id + ".json")
            self.number = entry["number"]
        if entry["text"] != self.shown:
            self.put("queue", entry["text"] + "\n")
            self.shown = entry["text"]

    def path(self, name):
        return os.path.join(self.directory, name)

    def put(self, name, text):
        """Writes a file of the job's own directory."""
        queued.put(self.path(name), text)

    def observe(self, is_up):
        """Returns what is to be decided on. `is_up`: whether its launcher runs; None if its container is gone."""
        slurm = self.entry["state"] if self.entry else None
        if is_up:
            return queue_state.Up(time.monotonic(), slurm, self.missing, bool(self.number))
        has_result = os.path.lexists(self.path(result.NAME))
        return queue_state.Down(slurm, self.missing, is_up is not None, has_result, queued.may_be_submitted(self.id))

    def answer(self, answer):
        """Lets the launcher go on, or end."""
        self.put("allocation.json", json.dumps(answer))
        queued.store({}, "allocated", self.id + ".json")
        return queue_state.Answered()

    def record_removal(self):
        with contextlib.suppress(OSError, ValueError, KeyError):
            form = json.loads(queued.read(self.path("launch.json")))["format"]
            result.write(self.put, form, self.description["ranks"], faults.CONTAINER_REMOVED)

    def forget(self):
        queued.remove_environment(self.id)
        for kind in ("jobs", "allocated", "numbers"):
            queued.discard(kind, self.id + ".json")


class Agent:
    def __init__(self):
        self.here = queued.settings()
        self.engine, self.jobs, self.rounds = Engine(queued.sockets(self.here)), {}, 0

    def look(self):
        """Looks at every job once."""
        ids = queued.listed("jobs")
        self.rounds += 1
        if not ids and self.rounds % IDLE:
            return
        slurm = queued.queue()
        for id in set(slurm) - set(queued.listed("jobs")):
            # a slurmctld that was killed may remember what has ended
            queued.ask("scancel", slurm[id]["number"])
        self.jobs = {id: job for id, job in self.jobs.items() if id in ids}
        for id in ids:
            try:
                if id not in self.jobs:
                    self.jobs[id] = Job(id, self.here)
                self.follow(self.jobs[id], slurm.get(id))
            except FAILURES as error:
                print("job %s: %s" % (id, error), file=sys.stderr, flush=True)

    def follow(self, job, entry):
        job.note(entry)
        self.decide(job, job.observe(self.engine.running(job.description["master"])))

    def decide(self, job, observed):
        perform = {queue_state.START: self.start, queue_state.PLACE: self.place, queue_state.INQUIRE: self.inquire,
                   queue_state.SUBMIT: self.submit, queue_state.ANSWER: self.answer,
                   queue_state.END_LAUNCHER: self.end_launcher, queue_state.SIGNAL: self.signal,
                   queue_state.CANCEL: self.cancel, queue_state.RECORD_REMOVAL: Job.record_removal,
                   queue_state.FORGET: Job.forget}
        before = job.state
        job.state, actions = queue_state.decide(before, observed)
        try:
            for action, *arguments in actions:
                follows = perform[action](job, *arguments)
                if follows is not None:
                    self.decide(job, follows)
        except FAILURES:
            job.state = before
            raise

    def start(self, job):
        self.engine.start(job.description["master"])

    def place(self, job):
        nodes = queued.hostnames(job.entry["nodes"])
        try:
            shares = queued.place(job.description, nodes)
        except RuntimeError as error:
            return self.answer(job, "CANCELLED", str(error))
        if not any(share["node"] == self.here["node"] and share["ranks"] for share in shares):
            queued.write_record(job.directory, shares, self.here["node"])
        return job.answer({"shares": shares})

    def inquire(self, job):
        return queue_state.Reported(*end(job))

    def submit(self, job):
        print("job %s: submitting it" % job.id, file=sys.stderr, flush=True)
        try:
            number = queued.ask(*job.description["submit"]).strip().split(";")[0]
            queued.store({"number": number}, "numbers", job.id + ".json")
            job.number, job.missing = number, 0
        except OSError as error:
            if "contact" in str(error):
                raise  # slurmctld is starting
            return self.answer(job, "CANCELLED", str(error))
        return None

    def answer(self, job, state, why):
        return job.answer({"end": state, "why": why})

    def end_launcher(self, job, state):
        try:
            job.put("deallocated", state)
        except OSError as error:
            # ranks may keep that file from being written
            print("job %s: %s" % (job.id, error), file=sys.stderr, flush=True)
        self.engine.signal(job.description["master"], "SIGTERM")

    def signal(self, job):
        queued.ask("scancel", "--batch", "--signal=USR1", job.entry["number"])

    def cancel(self, job):
        queued.ask("scancel", job.entry["number"])


def end(job):
    """How Slurm has ended a job: its state, and why it could not begin on a node (node.py); empty if Slurm does not
    know it."""
    if not job.number:
        return "", ""
    try:
        return end_of(queued.ask("scontrol", "show", "job", job.number), job.id)
    except OSError as error:
        if "nvalid job id" in str(error):
            return "", ""
        raise


def end_of(shown, id):
    """How Slurm has ended a job and why, by what scontrol shows of it. While its nodes are given back, that is
    COMPLETING, and the reason says why."""
    name = re.search(r"\bJobName=(\S+)", shown)
    if not name or not name.group(1).endswith("." + id):
        return "", ""  # a slurmctld that has lost its state gives numbers again
    state, reason = re.search(r"\bJobState=(\w+)", shown), re.search(r"\bReason=(\w+)", shown)
    why = re.search(r"^\s*AdminComment=(.*)$", shown, re.MULTILINE)
    state = REASONS.get(reason.group(1) if reason else "") or (state.group(1) if state else "CANCELLED")
    return state, why.group(1).strip() if why else ""


def main():
    agent = Agent()
    while True:
        try:
            agent.look()
        except FAILURES as error:
            # slurmctld may be starting
            print(error, file=sys.stderr, flush=True)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
