"""Passes connections on over standard input and output. As a program it lets a port of this node lead to hvdctl where
sshd forwards none (`AllowTcpForwarding no`); hvdctl runs it as the login: `python3 -I -c PROGRAM`. As a module
(notebook.py) it lets hvdctl connect to a socket of this node.

Standard output begins with a line: the port, on 127.0.0.1. Behind it, and on standard input, are frames: the number of
a connection, the count of its next bytes, and these. Without bytes, the sender has ended its direction; a second one
says that it takes nothing more either. Connection 0 does not exist: its frames say that hvdctl is there. The program
ends with its standard input, or after SILENCE without a frame.

hvdctl numbers the connections that it opens itself, and says how many bytes of each it has passed on: TAKEN added to
the number, and four bytes. At most WINDOW are on their way, so that a connection that takes nothing keeps none of the
others waiting."""
import os
import signal
import socket
import struct
import sys
import threading
import time

HEADER = struct.Struct(">IH")
SILENCE = 60  # seconds
STALL = 20  # seconds until a connection that takes nothing is ended, as the others wait for it, or one that should end
MOST_CONNECTIONS = 64
MOST = 65535  # bytes of a frame
WINDOW = 1 << 20  # bytes
TAKEN = 1 << 31

connections = {}
writing = threading.Lock()
ending = threading.Lock()


class Connection:
    """A connection to the port: `open` has the directions that have not ended, `last` is when something came from
    it."""

    def __init__(self, number, connected, window=None):
        self.number = number
        self.window = window  # bytes that may be sent to hvdctl now; None: any
        self.taking = threading.Condition()
        self.socket = connected
        self.open = {"in", "out"}
        self.last = time.monotonic()

    def read(self):
        """Returns the next bytes as soon as hvdctl takes some."""
        if self.window is None:
            return self.socket.recv(MOST)
        with self.taking:
            self.taking.wait_for(lambda: self.window > 0)
            most = min(MOST, self.window)
        data = self.socket.recv(most)
        self.taken(-len(data))
        return data

    def taken(self, count):
        if self.window is not None:
            with self.taking:
                self.window += count
                self.taking.notify_all()

    def end(self, direction):
        """Ends a direction. With the second one the connection is closed."""
        with ending:
            self.open.discard(direction)
            if not self.open and connections.pop(self.number, None):
                self.socket.close()

    def shut(self, how):
        try:
            self.socket.shutdown(how)
        except OSError:
            pass


def send(number, data):
    """Writes a frame."""
    with writing:
        sys.stdout.buffer.write(HEADER.pack(number, len(data)) + data)
        sys.stdout.buffer.flush()


def follow(connection):
    """Passes on what comes from a connection until that ends."""
    data = b"-"
    while data:
        try:
            data = connection.read()
        except OSError:
            data = b""
        connection.last = time.monotonic()
        if not data:
            # the other side may open another one as soon as it hears of the end
            connection.end("in")
        send(connection.number, data)


def deliver(connection, data):
    """Writes what hvdctl sends to a connection, or ends that direction; the other one goes on, unless nothing more is
    taken."""
    if data and "out" not in connection.open:
        return
    if data:
        try:
            connection.socket.sendall(data)
            return
        except OSError:
            # hvdctl may read nothing before this thread takes what it sends
            threading.Thread(target=send, args=(connection.number, b""), daemon=True).start()
    elif "out" in connection.open:
        # what was sent arrives
        connection.shut(socket.SHUT_WR)
        connection.last = time.monotonic()
        connection.end("out")
        return
    connection.shut(socket.SHUT_RDWR)
    connection.taken(MOST)
    connection.end("out")


def begin(number, connected, window=None):
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STALL, 0))
    connection = connections[number] = Connection(number, connected, window)
    threading.Thread(target=follow, args=(connection,), daemon=True).start()
    return connection


def accept(listener):
    """Accepts connections, and numbers them."""
    number = 0
    while True:
        try:
            connected = listener.accept()[0]
        except OSError:  # the node has no file or memory for it
            time.sleep(1)
            continue
        if len(connections) >= MOST_CONNECTIONS:
            connected.close()
            continue
        number += 1
        begin(number, connected)


def listen():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    pass_on(lambda number: None)


def reach(address):
    """Lets hvdctl connect to a Unix socket, or to a TCP address of this node."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    newest = 0

    def connect(number):
        nonlocal newest
        if number <= newest:
            return None
        newest = number
        connected = socket.socket(family)
        try:
            connected.connect(address)
        except OSError:
            connected.close()
            send(number, b"")
            send(number, b"")
            return None
        return begin(number, connected, WINDOW)

    pass_on(connect)


def pass_on(connect):
    """Delivers what comes from hvdctl. `connect` makes the connection of a number that is not known."""
    frames = sys.stdin.buffer
    while True:
        signal.alarm(SILENCE)
        header = frames.read(HEADER.size)
        if len(header) < HEADER.size:
            os._exit(0)
        number, count = HEADER.unpack(header)
        data = frames.read(count)
        if number >= TAKEN:
            connection = connections.get(number - TAKEN)
            if connection:
                connection.taken(int.from_bytes(data, "big"))
            continue
        connection = connections.get(number) or connect(number)
        if connection:
            deliver(connection, data)
        for other in list(connections.values()):
            if "out" not in other.open and time.monotonic() - other.last > STALL:
                other.shut(socket.SHUT_RDWR)


if __name__ == "__main__":
    listen()
