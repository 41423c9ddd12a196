"""Starts a launcher on this node, or every rank if there is none. The job supervisor calls it in hmaster and over the workers' sshd, and
gives it an order on standard input, a line of JSON: the environment `env`, the argument vector `argv`, the number of `ranks` on this
node, and, if it is to start every rank, the `variables` of each.

It becomes the launcher, so that all of its processes carry the job's mark in their environment and nothing stands in between."""
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
import binding  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
EACH = "each"  # the argument of the second stage, which starts every rank


def load(name):
    """A file of the job; empty if it has ended on this node."""
    try:
        with open(os.path.join(HERE, name), "rb") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def start_each():
    """Starts every rank of this node, and ends when all have: with the exit code of the first that failed."""
    order = json.load(sys.stdin)
    nowhere, code = open(os.devnull), 0
    pids = {subprocess.Popen(order["argv"], env=dict(os.environ, **variables), stdin=nowhere).pid for variables in order["variables"]}
    while pids:
        pid, status = os.wait()
        pids.discard(pid)
        ended = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        code = code or ended
    return code


def main():
    if sys.argv[1:] == [EACH]:
        return start_each()
    order = json.loads(sys.stdin.buffer.readline().decode())
    env = dict(os.environ, **order["env"])
    if "OMP_NUM_THREADS" not in env:
        # a launcher would say 1 for each rank of several, whatever the node has
        _, _, threads = binding.here(load("job.json").get("bind"), order["ranks"], dict(env, **load("env.json")))
        env["OMP_NUM_THREADS"] = str(threads)
    argv = order["argv"]
    with tempfile.TemporaryFile() as rest:
        if order["variables"]:
            argv = [sys.executable, os.path.abspath(__file__), EACH]
            rest.write(json.dumps(order).encode())
            rest.seek(0)
        os.dup2(rest.fileno(), 0)
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        print("%s: %s" % (argv[0], error.strerror), flush=True)
        return 127


if __name__ == "__main__":
    sys.exit(main())
