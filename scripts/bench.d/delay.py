"""Delays every packet that a rule of iptables puts into a queue, for the kernels that lack netem: `python3 -I -c
PROGRAM QUEUE SECONDS`. It prints a line when it has the queue, and ends with its standard input; a rule with
--queue-bypass then lets packets pass."""
import collections
import os
import select
import socket
import struct
import sys
import time

NETFILTER, SOL_NETLINK, NO_ENOBUFS = 12, 270, 5
QUEUE = 3 << 8  # the subsystem of a message's type
PACKET, CONFIG, BATCH = 0, 2, 3
ACCEPT = 1


def attribute(kind, value):
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def message(kind, queue, *attributes, acknowledge=False):
    body = struct.pack("!BBH", 0, 0, queue) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), QUEUE | kind, 5 if acknowledge else 1, 1, 0) + body


def packets(data):
    """The numbers of the packets in what the kernel sent."""
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        offset = 20
        while kind == QUEUE | PACKET and offset + 4 <= length:
            size, attribute_kind = struct.unpack_from("=HH", data, offset)
            if attribute_kind == 1:
                yield struct.unpack_from("!I", data, offset + 4)[0]
            offset += max(4, size + 3 & ~3)
        data = data[max(16, length + 3 & ~3):]


def main():
    queue, delay = int(sys.argv[1]), float(sys.argv[2])
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
    kernel.setsockopt(SOL_NETLINK, NO_ENOBUFS, 1)
    kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    bind = attribute(1, struct.pack("!BBH", 1, 0, 0))
    # only numbers; whole segments, however large; and what the queue has no room for passes
    plan = [attribute(2, struct.pack("!IB", 0, 1)), attribute(3, struct.pack("!I", 16384)),
            attribute(4, struct.pack("!I", 5)), attribute(5, struct.pack("!I", 5))]
    for attributes in ([bind], plan):
        kernel.send(message(CONFIG, queue, *attributes, acknowledge=True))
        length, kind, _, _, _, error = struct.unpack_from("=IHHIIi", kernel.recv(65536))
        if kind != 2 or error:
            sys.exit("the kernel gives no queue: %s" % os.strerror(-error))
    print("ready", flush=True)
    waiting = collections.deque()
    while True:
        timeout = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        readable = select.select([kernel, sys.stdin], [], [], timeout)[0]
        if sys.stdin in readable and not os.read(0, 4096):
            return
        now = time.monotonic()
        if kernel in readable:
            waiting.extend((now + delay, number) for number in packets(kernel.recv(1 << 20)))
        due = None
        while waiting and waiting[0][0] <= now:
            due = waiting.popleft()[1]
        if due is not None:
            # all up to this one
            kernel.send(message(BATCH, queue, attribute(2, struct.pack("!II", ACCEPT, due))))


if __name__ == "__main__":
    main()
