"""The main process of hmaster while a job waits in the cluster's queue. When Slurm has allocated nodes
to the job, writes these into the description of its launch, and becomes the job supervisor. allocation.json comes from
the agent (slurm/nodes/agent.py)."""
import json
import os
import signal
import sys
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
import endings  # noqa: E402
import faults  # noqa: E402
import files  # noqa: E402
import placement  # noqa: E402
import result  # noqa: E402
from here import command_of  # noqa: E402

PAUSE = 0.1  # seconds
ENDS = {endings.TIME_LIMIT: faults.TIME_LIMIT, endings.NODE_LOST: faults.NODE_FAILED,
        endings.NOT_STARTED: faults.NODES_NOT_STARTED}
asked = []


def wait():
    """Returns what the agent has written; None when the job is to end."""
    while not asked:
        try:
            return json.loads(files.read("allocation.json").decode())
        except FileNotFoundError:
            time.sleep(PAUSE)
    return None


def ending(allocation):
    """How a job has ended in the queue, by the answer of the agent, or by none if the job is to end: the fault, and
    whether its end was requested."""
    if allocation is None:
        return faults.ENDED_IN_QUEUE, True
    means = endings.STATES.get(allocation["end"])
    fault = faults.not_allocated(allocation["why"]) if allocation["why"] else ENDS.get(means)
    return fault or faults.CANCELLED_IN_QUEUE, not fault


def with_nodes(launch, shares):
    """The description with the nodes that the job has."""
    ranks = {share["node"]: share["ranks"] for share in shares}
    workers = [dict(worker, ranks=ranks[worker["node"]]) for worker in launch["workers"] if ranks.get(worker["node"])]
    launch = dict(launch, ranks=ranks.get(launch["node"], 0), workers=workers)
    if launch.get("roles"):
        addresses = {host["node"]: host["address"] for host in [launch] + workers}
        launch["roles"] = [dict(role, places=placement.places(shares, number, addresses))
                           for number, role in enumerate(launch["roles"])]
        # also where this node has no ranks, and so no prolog that writes it; addresses.py adds the ports
        files.write("roles.json", json.dumps(placement.table(launch["roles"], shares, addresses)), False, 0o644)
    return launch


def main():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: asked.append(number))
    # the machine is shut down: the agent starts this again
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(1))
    launch = json.loads(files.read("launch.json").decode())
    ranks = sum(share["ranks"] for share in json.loads(files.read("job.json").decode())["placement"]["shares"])
    allocation = wait()
    if allocation is None or "shares" not in allocation:
        fault, stopped = ending(allocation)
        result.write(files.write, launch["format"], ranks, fault, stopped)
        return 0
    files.write_json("launch.json", with_nodes(launch, allocation["shares"]))
    os.execvp("sh", command_of("job_supervisor.py"))


if __name__ == "__main__":
    sys.exit(main())
