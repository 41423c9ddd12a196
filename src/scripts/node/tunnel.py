"""Lets a port of this node lead to hvdctl where sshd forwards none (`AllowTcpForwarding no`): connections to it are passed on over standard
input and output. hvdctl runs it as the login: `python3 -I -c PROGRAM`.

Standard output begins with the port, on 127.0.0.1, in a line. Behind it, and on standard input, are frames: the number of a connection,
the count of its next bytes, and these. Without bytes, the sender has ended its direction; a second one says that it takes nothing more
either. Connection 0 does not exist: its frames say that hvdctl is there. The program ends with its standard input, or after SILENCE
without a frame."""
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

connections = {}
writing = threading.Lock()
ending = threading.Lock()


class Connection:
    """A connection to the port: `open` has the directions that have not ended, `last` is when something came from it."""

    def __init__(self, number, connected):
        self.number = number
        self.socket = connected
        self.open = {"in", "out"}
        self.last = time.monotonic()

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
            data = connection.socket.recv(MOST)
        except OSError:
            data = b""
        connection.last = time.monotonic()
        if not data:
            # the other side may open another one as soon as it hears of the end
            connection.end("in")
        send(connection.number, data)


def deliver(connection, data):
    """Writes what hvdctl sends to a connection, or ends that direction; the other one goes on, unless nothing more is taken."""
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
    connection.end("out")


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
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STALL, 0))
        number += 1
        connection = connections[number] = Connection(number, connected)
        threading.Thread(target=follow, args=(connection,), daemon=True).start()


def main():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    frames = sys.stdin.buffer
    while True:
        signal.alarm(SILENCE)
        header = frames.read(HEADER.size)
        if len(header) < HEADER.size:
            os._exit(0)
        number, count = HEADER.unpack(header)
        data = frames.read(count)
        connection = connections.get(number)
        if connection:
            deliver(connection, data)
        for other in list(connections.values()):
            if "out" not in other.open and time.monotonic() - other.last > STALL:
                other.shut(socket.SHUT_RDWR)


main()
