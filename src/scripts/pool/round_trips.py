"""Measures the round trips to hosts: how long it takes to open a TCP connection. Reads lines "NUMBER HOST PORT" from standard input and
prints "NUMBER MICROSECONDS", "NUMBER -" if there is no connection, or "NUMBER ?" if there was no time to try."""

import errno
import selectors
import socket
import sys
import time

# Two, so that one that is late by chance does not count. sshd refuses those who connect often without a login (PerSourcePenalties).
TRIES = 2
# The most seconds of a try: a lost packet is sent again after one.
LIMIT = 3
# How many are open at the same time. While some are opened the answers to others wait.
AT_ONCE = 8
# The most seconds of all.
ALL = 40


def addresses(lines):
    for line in lines:
        number, host, port = line.split()
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError):
            continue
        yield number, (family, kind, protocol), address


def connect(targets):
    """Yields the number of each target that can be connected to, and the seconds that it took."""
    selector = selectors.DefaultSelector()
    for number, kind, address in targets:
        try:
            connection = socket.socket(*kind)
        except OSError:
            continue
        connection.setblocking(False)
        began = time.monotonic()
        if connection.connect_ex(address) in (0, errno.EINPROGRESS):
            selector.register(connection, selectors.EVENT_WRITE, (number, began))
        else:
            connection.close()
    end = time.monotonic() + LIMIT
    while selector.get_map() and time.monotonic() < end:
        ready = selector.select(max(0, end - time.monotonic()))
        now = time.monotonic()
        for key, _ in ready:
            number, began = key.data
            if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                yield number, now - began
            selector.unregister(key.fileobj)
            key.fileobj.close()
    for key in list(selector.get_map().values()):
        key.fileobj.close()
    selector.close()


def main():
    lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
    targets = list(addresses(lines))
    best, untried = {}, set()
    end = time.monotonic() + ALL
    for first in range(0, len(targets), AT_ONCE):
        batch = targets[first : first + AT_ONCE]
        if time.monotonic() > end:
            untried.update(target[0] for target in batch)
            continue
        for _ in range(TRIES):
            for number, seconds in connect(batch):
                best[number] = min(seconds, best.get(number, seconds))
            # what does not answer costs the time of all others
            batch = [target for target in batch if target[0] in best]
    for line in lines:
        number = line.split()[0]
        print(number, round(best[number] * 1e6) if number in best else "?" if number in untried else "-")


main()
