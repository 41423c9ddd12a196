"""Starts a launcher on this node, or every rank if there is none. The job supervisor calls it in hmaster and over the
workers' sshd, and passes a request on standard input, a line of JSON: the environment `env`, the prefixes of variables
that the launcher `reads`, the argument vector `argv`, the number of `ranks` on this node, and, if it is to start every
rank, the `variables` of each. For the ranks of a role it has the file with their environment, `given`.

It becomes the launcher, so that all of its processes carry the job's mark in their environment and there is no process
in between."""
import contextlib
import fnmatch
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
import binding  # noqa: E402
import files  # noqa: E402
import variables  # noqa: E402
from here import command_of  # noqa: E402

EACH = "each"  # the argument of the second stage, which starts every rank


def load(name):
    """A file of the job; empty if it has ended on this node."""
    try:
        return files.load(name)
    except FileNotFoundError:
        return {}


def own_variables(prefixes, given="env.json"):
    """The ranks' variables on this node that the launcher reads too."""
    return {name: value for name, value in load(given).items() if name.startswith(tuple(prefixes))}


def inherited(env, patterns):
    """The part of an environment that a launcher gets: the names that match one of these patterns; None: all. It may
    set them for the ranks of other nodes, so the login's home directory, which programs find without the variable, is
    left out."""
    if patterns is None:
        return env
    kept = {name: value for name, value in env.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    with contextlib.suppress(KeyError):
        if kept.get("HOME") == pwd.getpwuid(os.getuid()).pw_dir:
            del kept["HOME"]
    return kept


def start_each():
    """Starts every rank of this node, and ends when all have: with the exit code of the first that failed."""
    if "SLURMD_NODENAME" in os.environ:
        # Slurm ends the step with this process, and the ranks get its SIGTERM, too
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    request = json.load(sys.stdin)
    nowhere, code = open(os.devnull), 0
    pids = {subprocess.Popen(request["argv"], env=dict(os.environ, **variables), stdin=nowhere).pid
            for variables in request["variables"]}
    while pids:
        pid, status = os.wait()
        pids.discard(pid)
        ended = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        code = code or ended
    return code


def main():
    if sys.argv[1:] == [EACH]:
        return start_each()
    request = json.loads(sys.stdin.buffer.readline().decode())
    given = request.get("given", "env.json")
    env = dict(os.environ, **dict(request["env"], **own_variables(request["reads"], given)))
    variables.take_own(env)
    if "OMP_NUM_THREADS" not in env:
        # torchrun would set 1 for each of several ranks, regardless of the cores
        job = load("job.json")
        ranks = job.get("ranks", 1) if "given" in request else request["ranks"]  # those of other roles, too
        _, _, threads = binding.here(job.get("bind"), ranks, dict(env, **load(given)))
        env["OMP_NUM_THREADS"] = str(threads)
    argv = request["argv"]
    with tempfile.TemporaryFile() as rest:
        if request["variables"]:
            argv = command_of("node_launcher.py", EACH)
            rest.write(json.dumps(request).encode())
            rest.seek(0)
        os.dup2(rest.fileno(), 0)
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        print("%s: %s" % (argv[0], error.strerror), flush=True)
        return 127


if __name__ == "__main__":
    sys.exit(main())
