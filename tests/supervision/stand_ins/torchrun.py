#!/run/cluster/bin/python3 -IS
"""Stands in for torchrun: the agent of one node (torch/distributed/elastic/agent/server/local_elastic_agent.py) with
the static rendezvous. It starts the ranks of its node, whose streams are its own. When one fails, the others of the
node get SIGTERM and 30 s later SIGKILL, and its exit code is 1. Other nodes' agents do not learn of it. SIGTERM ends it
in the same way.

The ranks in HOROVOD_STAND_IN_LEAVES_OUT sleep in place of what they were to run."""
import os
import signal
import subprocess
import sys
import time

FLAGS = {"--no_python"}


def arguments(argv):
    options, words = {}, iter(argv)
    for word in words:
        if not word.startswith("-"):
            return options, [word] + list(words)
        options[word] = None if word in FLAGS else next(words)
    raise SystemExit("torchrun: nothing to run")


def main():
    options, program = arguments(sys.argv[1:])
    assert options["--max_restarts"] == "0" and "--no_python" in options
    nodes, node, local = (int(options[name]) for name in ("--nnodes", "--node_rank", "--nproc_per_node"))
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: asked.append(number))
    children = []
    for index in range(local):
        # the cases have as many ranks on each node
        rank = node * local + index
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(index), WORLD_SIZE=str(nodes * local),
                   LOCAL_WORLD_SIZE=str(local),
                   GROUP_RANK=str(node), MASTER_ADDR=options["--master_addr"], MASTER_PORT=options["--master_port"])
        left_out = str(rank) in os.environ.get("HOROVOD_STAND_IN_LEAVES_OUT", "").split()
        children.append(subprocess.Popen(["sleep", "600"] if left_out else program, env=env, stdin=subprocess.DEVNULL))
    limit = None
    while any(child.poll() is None for child in children):
        if limit is None and (asked or any(child.poll() for child in children)):
            limit = time.monotonic() + 30
            for child in children:
                child.terminate()
        if limit and time.monotonic() > limit:
            for child in children:
                child.kill()
        time.sleep(0.05)
    return 1 if asked or any(child.returncode for child in children) else 0


sys.exit(main())
