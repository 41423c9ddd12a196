"""Starts the jobs to which the cluster's own Slurm allocates nodes, and ends their allocations with them. Runs on the master.

The container of a job's launcher is up from its submission on, and waits (queue_wait.py). When Slurm has allocated nodes and their prologs
have started the job's workers, the launcher goes on. When it has ended, its allocation is ended; when the allocation has ended, the launcher
is."""
import contextlib
import json
import os
import re
import sys
import time

import queued
from engine import Engine, EngineError

PAUSE = 0.5  # seconds
SIGNALS = 6  # after which the allocation of a job that has ended is cancelled: what waits there may be gone
IDLE = 20  # rounds after which Slurm is asked although no job is known
UNSUBMITTED = 120  # seconds after the start of its launcher in which hvdctl has submitted a job
MISSING = 4  # rounds without a job in the queue after which it is taken for gone
# why Slurm has ended a job
REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}
# in which a job has its nodes, or is about to
HAS_NODES = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
FAILURES = (OSError, RuntimeError, EngineError, ValueError, KeyError)


class Job:
    """A job, as this program has seen it so far."""

    def __init__(self, id, here):
        self.id, self.description = id, queued.load("jobs", id + ".json")
        self.directory = os.path.join(here["jobs_dir"], id)
        self.is_allocated = queued.load("allocated", id + ".json") is not None
        self.number = None
        self.read_number()
        self.shown, self.was_up, self.up_since, self.is_asked, self.signals, self.missing = None, False, 0, False, 0, 0

    def read_number(self):
        """Reads the number that Slurm has given it, which hvdctl writes when it submits the job."""
        self.number = (queued.load("numbers", self.id + ".json") or {}).get("number")

    def show(self, entry):
        """Shows what Slurm says of it to `hvdctl jobs`."""
        if entry["number"] != self.number:
            queued.store({"number": entry["number"]}, "numbers", self.id + ".json")
            self.number = entry["number"]
        if entry["text"] != self.shown:
            queued.put(os.path.join(self.directory, "queue"), entry["text"] + "\n")
            self.shown = entry["text"]

    def answer(self, answer):
        """Lets the launcher go on, or end."""
        queued.put(os.path.join(self.directory, "allocation.json"), json.dumps(answer))
        queued.store({}, "allocated", self.id + ".json")
        self.is_allocated = True

    def has_result(self):
        return os.path.lexists(os.path.join(self.directory, "result.json"))

    def record_end(self):
        """Records the end of a job whose launcher was removed while it waited: nothing else does."""
        if self.is_allocated or self.has_result():
            return
        with contextlib.suppress(OSError, ValueError, KeyError):
            form = json.loads(queued.read(os.path.join(self.directory, "launch.json")))["format"]
            fault = {"kind": "container_removed"}  # model/fault.rs
            result = {"format": form, "ended": time.time(), "launcher": 1, "ranks": self.description["ranks"], "reason": fault}
            queued.put(os.path.join(self.directory, "result.json"), json.dumps(result))

    def forget(self):
        queued.remove_environment(self.id)
        for kind in ("jobs", "allocated", "numbers"):
            queued.discard(kind, self.id + ".json")


class Agent:
    def __init__(self):
        self.here = queued.settings()
        self.engine, self.jobs, self.rounds = Engine(self.here["socket"]), {}, 0

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
        job.missing = 0 if entry else job.missing + 1
        if not job.number:
            job.read_number()
        if entry:
            with contextlib.suppress(OSError):
                job.show(entry)
        is_up = self.engine.running(job.description["master"])
        if is_up and not job.was_up:
            job.was_up, job.up_since = True, time.monotonic()
        if not is_up:
            self.follow_end(job, entry, exists=is_up is not None)
        elif not job.is_allocated:
            self.follow_wait(job, entry)
        elif not entry and job.missing > MISSING or entry and entry["state"] not in HAS_NODES:
            self.end_launcher(job, entry)

    def follow_wait(self, job, entry):
        """Of a job that waits for its nodes."""
        if entry and entry["state"] == "RUNNING":
            nodes = queued.hostnames(entry["nodes"])
            try:
                shares = queued.place(job.description, nodes)
            except RuntimeError as error:
                job.answer({"end": "CANCELLED", "why": str(error)})
                return
            if self.here["node"] not in nodes:
                queued.write_record(job.directory, shares, self.here["node"])
            job.answer({"shares": shares})
        elif job.number and job.missing > MISSING:
            # not while it is COMPLETING: a prolog may have put it into the queue again
            state, why = end(job)
            if state:
                job.answer({"end": state, "why": why})
            else:
                self.submit_again(job)
        elif not entry and not job.number and time.monotonic() - job.up_since > UNSUBMITTED:
            # hvdctl was ended before it could
            self.submit_again(job)

    def submit_again(self, job):
        """Of a job that Slurm does not know: slurmctld has ended before it could save it, or hvdctl before it could submit it."""
        print("job %s: submitting it" % job.id, file=sys.stderr, flush=True)
        try:
            number = queued.ask(*job.description["submit"]).strip().split(";")[0]
            queued.store({"number": number}, "numbers", job.id + ".json")
            job.number, job.missing = number, 0
        except OSError as error:
            if "contact" in str(error):
                raise  # slurmctld is starting
            job.answer({"end": "CANCELLED", "why": str(error)})

    def follow_end(self, job, entry, exists):
        """Of a job whose launcher is not up."""
        if not job.is_allocated and exists and not job.has_result() and entry:
            # the machine was started again while it waited
            self.engine.start(job.description["master"])
        elif not (job.was_up or job.is_allocated or job.has_result()) and queued.may_be_submitted(job.id):
            pass  # hvdctl is about to start it
        elif not entry:
            if job.missing > MISSING:
                job.record_end()
                job.forget()
        elif entry["state"] == "RUNNING" and job.signals < SIGNALS:
            job.signals += 1
            queued.ask("scancel", "--batch", "--signal=USR1", entry["number"])
        elif entry["state"] != "COMPLETING":
            queued.ask("scancel", entry["number"])

    def end_launcher(self, job, entry):
        """Ends the launcher of a job that no longer has its nodes."""
        if not job.is_asked:
            job.is_asked = True
            # Slurm puts a job into the queue again that has lost a node
            state = "NODE_FAIL" if entry and entry["state"] == "PENDING" else end(job)[0] or "NODE_FAIL"
            try:
                queued.put(os.path.join(job.directory, "deallocated"), state)
            finally:
                self.engine.signal(job.description["master"], "SIGTERM")
        if entry and entry["state"] == "PENDING":
            queued.ask("scancel", entry["number"])


def end(job):
    """How Slurm has ended a job: its state, and why it could not begin on a node (node.py); empty if Slurm does not know it."""
    try:
        return end_of(queued.ask("scontrol", "show", "job", job.number), job.id)
    except OSError as error:
        if "nvalid job id" in str(error):
            return "", ""
        raise


def end_of(shown, id):
    """The same by what scontrol shows of a job. While its nodes are given back, that is COMPLETING, and the reason says why."""
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
