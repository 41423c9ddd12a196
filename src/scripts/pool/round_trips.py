"""Measures the round trips to hosts: how long it takes to open a TCP connection. Reads lines "NUMBER HOST PORT" from
standard input and prints "NUMBER MICROSECONDS", "NUMBER -" if there is no connection, or "NUMBER ?" if there was no
time to try. The argument is for how many seconds it may work."""

import errno
import queue
import selectors
import socket
import sys
import threading
import time

# Two, so that one that is late by chance does not count. sshd refuses those who connect often without a login
# (PerSourcePenalties).
TRIES = 2
# The most seconds of a try: a lost packet is sent again after one.
LIMIT = 3
# How many are open at the same time. While some are opened the answers to others wait.
AT_ONCE = 8
# How many names are resolved at the same time, and the share of the time that this may take: a name server may not
# answer.
LOOKUPS = 32
FOR_NAMES = 0.4


def resolve(lines, end):
    """Returns the targets whose names could be resolved by then, and the numbers of those whose names are still being
    resolved."""
    waiting, found = queue.Queue(), {}
    for line in lines:
        waiting.put(line)

    def work():
        while time.monotonic() < end:
            try:
                number, host, port = waiting.get_nowait().split()
            except queue.Empty:
                return
            try:
                found[number] = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
            except (OSError, ValueError, OverflowError):
                found[number] = None

    # a lookup cannot be interrupted: those that are late are left behind
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(LOOKUPS, len(lines)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
    known = dict(found)
    targets = [(number, known[number][:3], known[number][4]) for number in sorted(known, key=int) if known[number]]
    return targets, {line.split()[0] for line in lines} - set(known)


def connect(targets, end):
    """Yields the number of each target that can be connected to by then, and the seconds that it took."""
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
    end = min(time.monotonic() + LIMIT, end)
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
    began, limit = time.monotonic(), float(sys.argv[1])
    end = began + limit
    targets, untried = resolve(lines, began + limit * FOR_NAMES)
    best = {}
    for first in range(0, len(targets), AT_ONCE):
        batch = targets[first : first + AT_ONCE]
        numbers = {target[0] for target in batch}
        for _ in range(TRIES if time.monotonic() < end else 0):
            for number, seconds in connect(batch, end):
                best[number] = min(seconds, best.get(number, seconds))
            # what does not answer costs the time of all others
            batch = [target for target in batch if target[0] in best]
        if time.monotonic() >= end:
            untried |= numbers - set(best)
    for line in lines:
        number = line.split()[0]
        print(number, round(best[number] * 1e6) if number in best else "?" if number in untried else "-")


main()
