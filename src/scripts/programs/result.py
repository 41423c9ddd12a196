"""The end of a job, as result.json has it (model/job_result.rs). This is the only program that writes the file; hvdctl
itself writes one where no program did."""
import json
import time

NAME = "result.json"


def write(put, form, ranks, fault=None, stopped=False, launcher=1, **outcome):
    """Writes how a job has ended. `put` writes a file of the job's directory, given its name and text. `form`: that of
    launch.json; `ranks`: how many the job has; `fault`: as in faults.py, if no rank has ended it; `stopped`: whether
    its end was requested; `launcher`: the exit code of the launcher; `outcome`: what the nodes have reported of its
    ranks."""
    result = {"format": form, "ended": time.time(), "launcher": None if stopped else launcher, "stopped": stopped,
              "ranks": ranks}
    if fault:
        result["reason"] = fault
    put(NAME, json.dumps(dict(result, **outcome)))
