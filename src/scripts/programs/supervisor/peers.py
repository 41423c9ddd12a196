"""Determines from outside whether a rank communicates with others: whether its processes have TCP connections to them,
by what the kernel lists; proc(5). A rank without the variables of its library believes that it is alone, and trains by
itself."""
import contextlib
import ipaddress
import os
import sys
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
from processes import all_processes, descendants  # noqa: E402

LOOKS = 4  # times that a rank's connections are looked for: most stay, some libraries connect for a moment only
ESTABLISHED, CONNECTING = "01", "02"
# ports of services outside of the cluster; connections to others count, as those of ranks may have any port
WEB = (80, 443)


def endpoint(text):
    """Address and port of an endpoint as the kernel writes it: words of four bytes in the machine's order."""
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[at:at + 8]) for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    return getattr(address, "ipv4_mapped", None) or address, int(port, 16)


def sockets(pids):
    """The numbers of the sockets that processes have open. One that has ended has none."""
    found = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir("/proc/%d/fd" % pid):
                with contextlib.suppress(FileNotFoundError):
                    target = os.readlink("/proc/%d/fd/%s" % (pid, name))
                    if target.startswith("socket:["):
                        found.add(target[8:-1])
    return found


def connections(numbers, state=ESTABLISHED):
    """Both ends of the connections among sockets that are in this state."""
    found = []
    for name in ("tcp", "tcp6"):
        # a kernel without IPv6 has no such file
        with contextlib.suppress(FileNotFoundError), open("/proc/self/net/" + name) as file:
            for line in file:
                words = line.split()
                if len(words) > 9 and words[3] == state and words[9] in numbers:
                    found.append((endpoint(words[1]), endpoint(words[2])))
    return found


def is_other(here, there):
    """Returns whether a connection may lead to another rank, given the own ends of all: not to another process of this
    rank, or to the web."""
    return there not in here and not (there[1] in WEB and there[0].is_global)


def communicates(pids):
    """Whether processes have a connection that may lead to another rank. What cannot be read counts as one."""
    try:
        found = connections(sockets(pids))
        here = [ends[0] for ends in found]
        return any(is_other(here, there) for _, there in found)
    except (OSError, ValueError):
        return True


class Isolation:
    """Whether the descendants of a process had no connection to other ranks in the first `limit` seconds."""

    def __init__(self, limit, look=communicates):
        self.limit, self.started, self.looks, self.look = limit, time.monotonic(), 0, look

    def is_found(self, pid):
        """Looks if it is time to. True once, after the last look, if none has found a connection."""
        if self.looks >= LOOKS or time.monotonic() < self.started + self.limit * (self.looks + 1) / LOOKS:
            return False
        self.looks += 1
        if self.look(descendants(pid, all_processes())):
            self.looks = LOOKS + 1
        return self.looks == LOOKS
