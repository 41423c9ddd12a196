"""Ports of this node, and where the ranks of all roles are: `roles.json`, which the job supervisor writes on every node
before an attempt (addresses.py), and ranks read (rank_role.py)."""
import contextlib
import json
import random
import socket
import sys

import files

PORTS = range(20000, 32000)  # below those that systems give out (ip_local_port_range)
ROLES = "roles.json"


def is_free(port, count=1):
    """Returns whether so many ports in a row are free."""
    with contextlib.ExitStack() as listeners, contextlib.suppress(OSError):
        for number in range(port, port + count):
            listeners.enter_context(socket.socket()).bind(("", number))
        return True
    return False  # the suppressed error


def free_port(count, taken=()):
    """The first of so many ports in a row that are free on this node, at random: other jobs may start at the same
    time. `taken`: those that something else of the job will use."""
    while True:
        first = random.randrange(PORTS.start, PORTS.stop - count)
        if not any(port in taken for port in range(first, first + count)) and is_free(first, count):
            return first


def choose(count, taken=()):
    """So many ports that are free on this node, at random. `taken`: those that something else of the job will use."""
    found = []
    for port in random.sample(PORTS, len(PORTS)) if count else ():
        if port not in taken and is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    if count:
        raise OSError("of the ports %d to %d, %d are free, and %d are needed"
                      % (PORTS.start, PORTS.stop - 1, len(found), count))
    return found


def write(text):
    # as launcher.json: a program may have become another user
    files.write(ROLES, text, False, 0o644)


def serve(count, taken):
    """Prints ports for this node's ranks as a line of JSON, then writes what comes on the standard input. Returns the
    exit code."""
    try:
        print(json.dumps(choose(count, taken)), flush=True)
        text = sys.stdin.read()
        files.parse(text.encode(), lambda roles: isinstance(roles, dict))
        write(text)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
