"""A hook of slurmd: for a job that gets this node (prolog) or gives it back (epilog), and now and then (check).
Argument: which of them. Asks node.py in hslurm-agent, which has the container engine: in hslurm every job of Slurm is
root."""
import json
import os
import socket
import subprocess
import sys
import time

DIRECTORY = os.path.dirname(os.path.abspath(__file__))
SOCKET = "agent.sock"
MISSING = 60  # seconds in which hslurm-agent may be started again
LIMIT = 3600  # seconds for an answer: an epilog waits for the end of ranks, and keeps its node meanwhile


def ask(question):
    """The exit code that the agent answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LIMIT)
        connection.connect(SOCKET)
        connection.sendall(json.dumps(question).encode() + b"\n")
        return int(connection.makefile().readline())


def main(what):
    # the path of a socket is short
    os.chdir(DIRECTORY)
    until = time.monotonic() + (LIMIT if what == "epilog" else MISSING)
    while True:
        began = time.monotonic()
        try:
            return ask({"what": what, "job": os.environ.get("SLURM_JOB_ID", "")})
        except (OSError, ValueError) as error:
            failure = error
        if time.monotonic() - began > 1:
            # it was there, and has ended
            until = max(until, time.monotonic() + MISSING)
        if what == "check" or time.monotonic() > until:
            break
        time.sleep(0.5)
    print("hvdctl: %s: the agent of this node does not answer: %s" % (what, failure), file=sys.stderr)
    if what == "prolog":
        # the job is put into the queue again, and the agent resumes the node when it is back
        with open("node.json") as file:
            node = json.load(file)["node"]
        subprocess.run(["scontrol", "update", "nodename=" + node, "state=drain",
                        "reason=hvdctl: hslurm-agent does not answer"], timeout=20)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
