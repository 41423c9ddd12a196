"""Lets a port of this node lead to hvdctl where sshd forwards none (`AllowTcpForwarding no`): connections to it are passed on over standard
input and output. hvdctl runs it as the login: `python3 -I -c PROGRAM`.

Standard output begins with the port, on 127.0.0.1, in a line. Behind it, and on standard input, are frames: the number of a connection,
the count of its next bytes, and these. Without bytes, it has ended. Connection 0 does not exist: its frames say that hvdctl is there. The
program ends with its standard input, or after SILENCE without a frame."""
import os
import signal
import socket
import struct
import sys
import threading
import time

HEADER = struct.Struct(">IH")
SILENCE = 60  # seconds
STALL = 20  # seconds until a connection that takes nothing is ended: the others wait for it
MOST_CONNECTIONS = 64
MOST = 65535  # bytes of a frame

connections = {}
writing = threading.Lock()


def send(number, data):
    """Writes a frame."""
    with writing:
        sys.stdout.buffer.write(HEADER.pack(number, len(data)) + data)
        sys.stdout.buffer.flush()


def follow(number, connection):
    """Passes on what comes from a connection until it ends."""
    data = b"-"
    while data:
        try:
            data = connection.recv(MOST)
        except OSError:
            data = b""
        send(number, data)
    connections.pop(number, None)
    connection.close()


def end(connection):
    """Ends a connection; its thread closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def accept(listener):
    """Accepts connections, and numbers them."""
    number = 0
    while True:
        try:
            connection = listener.accept()[0]
        except OSError:  # the node has no file or memory for it
            time.sleep(1)
            continue
        if len(connections) >= MOST_CONNECTIONS:
            connection.close()
            continue
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STALL, 0))
        number += 1
        connections[number] = connection
        threading.Thread(target=follow, args=(number, connection), daemon=True).start()


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
        try:
            if connection and data:
                connection.sendall(data)
            elif connection:
                # what was sent arrives
                end(connection)
        except OSError:
            end(connection)


main()
