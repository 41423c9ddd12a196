"""Where a job's files are, and how its programs are started. On a node of its own disk all are in the job's directory;
nodes that Slurm has allocated share that, and each but the first has its own record and log in a directory of it
(allocation.py)."""
import os
import time

import environment

environment.take_back()

PROGRAMS = os.path.dirname(os.path.abspath(__file__))
JOB = os.path.basename(PROGRAMS)
PYTHON = "hvdctl-python"  # not a name that programs look for in PATH, where this directory comes first for launchers


def command_of(program, *arguments):
    """The command that starts a program of the job."""
    return ["sh", os.path.join(PROGRAMS, PYTHON), os.path.join(PROGRAMS, program), *arguments]


def own(directory, node, patience=0):
    """The directory of this node's own files. `patience`: for how many seconds it may not be seen here yet."""
    path, until = os.path.join(directory, "nodes", node or ""), time.monotonic() + patience
    while node and not os.path.isdir(path) and time.monotonic() < until:
        time.sleep(0.1)
        os.listdir(directory)  # a network file system may remember that it was missing
    return path if node and os.path.isdir(path) else directory


# srun.sh sets the first one for nodes that have one, and allocation.py to nothing for the first node. Slurm sets the
# other one, for the tasks of a launcher of its own
NODE = os.environ.get("HVDCTL_NODE")
HERE = own(PROGRAMS, os.environ.get("SLURMD_NODENAME")) if NODE is None else own(PROGRAMS, NODE, 30)
