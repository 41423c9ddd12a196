"""The environment of ranks in an allocation of Slurm: what is a node's own, and the numbers of the ranks.

The environment of the first node is passed on to the others. A variable is a node's own if Slurm, the site or the lines
of `activate` have set it there: what the batch script has otherwise than the login that submitted it stays on the first
node, and each other node runs the lines of `activate` once and keeps what differs from the first one (allocation.py).

SLURM_ variables of a step or a task speak of the processes that hvdctl starts. Ranks that are no tasks of Slurm get
those that they would have as such, because libraries number themselves by them."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
from here import HERE  # noqa: E402

OWN = "own.json"  # a node's own variables: for each the first node's value and the own one, None where it is not set
SLURM = re.compile("SLURMD?_")
# the words that speak of a step or a task in the name of a variable; but _PER_TASK is what the job has asked for
OF_TASK = re.compile("SLURM_(?!.*_PER_TASK$)(.*_)?"
                     "(STEP|STEPID|STEPMGR|TASKS?|NTASKS|NPROCS|PROCID|LOCALID|NODEID|GTIDS|SRUN|LAUNCH|SCRIPT)(_.*)?$")
OF_NODE = re.compile("SLURMD_.*|SLURM_(.*_ON_NODE|TOPOLOGY_ADDR.*|JOB_GPUS)$")
OF_JOB = re.compile("SLURM_(JOB.*|CONF|CLUSTER_NAME|CPU_BIND)$")  # variables that do not ask for anything
TOKEN = "SLURM_JWT"
OF_SHELL = {"PWD", "OLDPWD", "SHLVL", "_", "BASHOPTS", "SHELLOPTS", "BASH_EXECUTION_STRING"}
# those of a login that has ended by the time when ranks run (process/main.sh)
OF_LOGIN = {"SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "SSH_ORIGINAL_COMMAND", "XDG_RUNTIME_DIR",
            "XDG_SESSION_ID", "XDG_SESSION_TYPE", "XDG_SESSION_CLASS", "DBUS_SESSION_BUS_ADDRESS"}
# a batch script may begin without the environment of the login (--export=NONE); no program does without these
ALWAYS = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG"}
# the last program of `activate` on a node (process/begin.sh is that of the first one)
PRINT = '. "$HVDCTL_GIVEN" && exec env -0 >"$HVDCTL_PLACE/environment"\n'


def parse(data):
    """The variables in the output of `env -0`."""
    pairs = (one.partition("=") for one in data.decode("utf-8", "surrogateescape").split("\0") if "=" in one)
    return {name: value for name, _, value in pairs}


def read(path):
    """The variables in a file; none if it is not there."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return parse(file.read())
    return {}


def is_own(name):
    """Returns whether a variable is never passed on: it belongs to one process, step or node."""
    return name in OF_SHELL | OF_LOGIN or name.startswith("HVDCTL_") or bool(SLURM.match(name))


def of_first(submitted, begun, now):
    """The names of the first node's own variables: what it has set before the lines of `activate`, and these have not
    changed. `submitted`, `begun`, `now`: the environments of the login, of the batch script, and after those lines."""
    if not submitted or not begun:
        return []
    return sorted(name for name, value in now.items() if not is_own(name) and name not in ALWAYS
                  and begun.get(name) == value != submitted.get(name))


def passed(now, own):
    """The part of the environment that other nodes get."""
    return {name: value for name, value in now.items() if name not in own and (not SLURM.match(name)
                                                                               or OF_JOB.match(name))}


def of_whole_job(now):
    """The variables of Slurm about the whole job; a step gets a part of them."""
    return {name: value for name, value in now.items() if SLURM.match(name) and name != TOKEN
            and not OF_TASK.match(name) and not OF_NODE.match(name)}


def differences(first, here, of_job):
    """The contents of OWN: `first` is what was passed to the node, `here` what the node has after the lines of
    `activate`, `of_job` as `of_whole_job`."""
    found = {name: [first.get(name), here.get(name)] for name in set(first) | set(here)
             if not is_own(name) and first.get(name) != here.get(name)}
    return dict(found, **{name: [first.get(name), value] for name, value in of_job.items()})


def activate(place, env, directory):
    """Runs the lines of `activate` in an environment on this node, and returns that after them. `place`: the directory
    of the process on the first node; `directory`: one of this node. Raises RuntimeError with the words of a line that
    failed."""
    with open(os.path.join(directory, "begin"), "w") as file:
        file.write(PRINT)
    given = os.path.join(place, "environment.given")
    env = {name: value for name, value in env.items() if name not in OF_LOGIN}
    env.update(HVDCTL_GIVEN=given, HVDCTL_PLACE=directory, HVDCTL_ACTIVE=active(env))
    shell = '. "$HVDCTL_GIVEN"; command -v bash >/dev/null || exec sh -l "$0"; exec bash -l "$0"'
    ran = subprocess.run(["sh", "-c", shell, os.path.join(place, "activate")], env=env, stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if ran.returncode:
        lines = ran.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(" ".join(lines[-3:]) or "the lines of activate end with exit code %d" % ran.returncode)
    path = os.path.join(directory, "environment")
    found = read(path)
    os.unlink(path)
    check_python(found.get("PATH", os.defpath))
    return found


def active(env):
    """The virtualenv or conda environment that is active, as `NAME=DIRECTORY`: as process/active.sh."""
    python = shutil.which("python3", path=env.get("PATH", os.defpath))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if python and python == "%s/bin/python3" % env.get(name):
            return "%s=%s" % (name, env[name])
    return ""


def check_python(path):
    """Raises RuntimeError if the first `python3` in a PATH is on another node only: as process/find_python.sh."""
    for place in path.split(os.pathsep):
        python = os.path.join(place or ".", "python3")
        if os.path.isdir(python) or not os.path.lexists(python):
            continue
        if not os.access(python, os.X_OK):
            why = "cannot be executed" if os.path.exists(python) else "leads to %s, which is not on this node" % (
                os.readlink(python))
            raise RuntimeError("%s, the first python3 in PATH, %s" % (python, why))
        return


def take_own(env, own=None):
    """Sets a node's own variables in an environment that has those of the first node. What a launcher or the step has
    set itself stays, and so does what a launcher has put in front of a path."""
    if own is None:
        own = {}
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(HERE, OWN), "rb") as file:
                own = json.loads(file.read().decode())
    for name, (first, here) in own.items():
        now = env.get(name)
        if SLURM.match(name):
            env[name] = here  # of the job, where the step has the same of itself
        elif now == first and here is None:
            env.pop(name, None)
        elif now == first:
            env[name] = here
        elif now and first and here and now.endswith(":" + first):
            env[name] = now[:-len(first)] + here


def of_rank(env, launcher, record, rank, size, role=None):
    """An environment with the numbers of a rank as Slurm's tasks have them, unless it is a task of Slurm, or in a
    container of the cluster's queue. `launcher`: launcher.json; `record`: job.json; `role`: the number of its role,
    whose ranks are numbered for themselves."""
    slurm = record.get("slurm")
    if not slurm or slurm.get("is_own") or SLURM.match(launcher["rank"][0]):
        return env
    env = {name: value for name, value in env.items() if not OF_TASK.match(name)}
    shares = record["placement"]["shares"]
    env.update(numbers(shares if role is None else of_role(shares, role), rank, size))
    return env


def of_role(shares, role):
    """The shares of the nodes with ranks of a role, as if the job had no others."""
    found, first = [], 0
    for share in shares:
        ranks = share["roles"][role]
        if ranks:
            found.append({"node": share["node"], "ranks": ranks, "first": first})
            first += ranks
    return found


def numbers(shares, rank, size):
    """The variables with the numbers of a rank; none if it is not where the job's record says, as after the loss of a
    node."""
    counts = [share["ranks"] for share in shares]
    node = next((at for at, share in enumerate(shares) if 0 <= rank - share["first"] < share["ranks"]), None)
    if node is None or sum(counts) != size:
        return {}
    first, per_node = shares[node]["first"], ",".join(map(str, counts))
    found = {
        "PROCID": rank, "LOCALID": rank - first, "NODEID": node, "NTASKS": size, "NPROCS": size, "NNODES": len(shares),
        "GTIDS": ",".join(map(str, range(first, first + counts[node]))), "TASKS_PER_NODE": per_node,
        "STEP_NUM_TASKS": size, "STEP_NUM_NODES": len(shares), "STEP_TASKS_PER_NODE": per_node,
        "STEP_NODELIST": ",".join(share["node"] for share in shares),
    }
    if len(set(counts)) == 1:
        found["NTASKS_PER_NODE"] = counts[0]
    return {"SLURM_" + name: str(value) for name, value in found.items()}
