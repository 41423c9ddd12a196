#!/run/cluster/bin/python3 -IS
"""Stands in for a worker's sshd, as the main process of its container. Wants the path of the socket that it listens on.

As with OpenSSH each session has a process of its own, whose child is the command's shell in a session (setsid(2)) of
its own. Its standard input and output are one socket pair, its standard error another. The exit code goes to the client
at once, but the session lasts until no process holds these streams any more. When the client has gone, the session's
process goes too: the command is sent no signal, its streams are closed at the other end, and its parent is the main
process from then on."""
import os
import selectors
import signal
import socket
import struct
import sys

# the last one is what the node's login has exported
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "OF_LOGIN")}
with open("/run/cluster/variables") as file:
    ENVIRONMENT.update(line.rstrip("\n").split("=", 1) for line in file)


def frame(kind, data=b""):
    return kind + struct.pack(">I", len(data)) + data


def start(command):
    """Starts the command; gives its process ID and our ends of its streams."""
    streams, of_child = socket.socketpair()
    errors, errors_of_child = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(of_child.fileno(), 0)
        os.dup2(of_child.fileno(), 1)
        os.dup2(errors_of_child.fileno(), 2)
        os.execve("/bin/sh", ["sh", "-c", command], ENVIRONMENT)
    return pid, streams, errors


def serve(client):
    """A session from login to exit."""
    woken, wakes = os.pipe()
    for fd in (woken, wakes):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
    signal.set_wakeup_fd(wakes)
    client.sendall(b"S")
    selector = selectors.DefaultSelector()
    selector.register(client, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    pending, pid, streams, opened = b"", None, None, set()
    while True:
        for key, _events in selector.select():
            if key.fd == woken:
                os.read(woken, 1 << 16)
                ended, status = os.waitpid(-1, os.WNOHANG)
                if ended:
                    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 255
                    client.sendall(frame(b"x", b"%d" % code))
                    pid = None
                continue
            try:
                data = key.fileobj.recv(1 << 16)
            except OSError:
                data = b""
            if key.fileobj is not client:
                if data:
                    client.sendall(frame(b"o" if key.fileobj is streams else b"e", data))
                else:
                    selector.unregister(key.fileobj)
                    opened.discard(key.fileobj)
                continue
            if not data:
                return
            pending += data
            while len(pending) >= 5:
                kind, size = pending[:1], struct.unpack(">I", pending[1:5])[0]
                if len(pending) < 5 + size:
                    break
                data, pending = pending[5:5 + size], pending[5 + size:]
                if kind == b"c":
                    pid, streams, errors = start(data)
                    opened = {streams, errors}
                    for stream in opened:
                        selector.register(stream, selectors.EVENT_READ)
                elif kind == b"i":
                    try:
                        streams.sendall(data) if data else streams.shutdown(socket.SHUT_WR)
                    except OSError:
                        pass  # the command reads no more
                elif kind == b"k":
                    client.sendall(frame(b"k"))
        if streams and pid is None and not opened:
            return


def main():
    # orphans become ours; their exit codes are not needed
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1] + ".new")
    listener.listen(64)
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            try:
                serve(client)
            except OSError:
                pass  # the client has gone
            os._exit(0)
        client.close()


main()
