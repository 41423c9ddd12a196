#!/run/cluster/bin/python3 -IS
"""Stands in for the OpenSSH client; it is mounted over /usr/bin/ssh, so that the job directory's own ssh.sh runs it.

It takes every option of ssh(1), before and after the host, and heeds these: `-p`, `-n`, `-N`, `-G`, `ConnectTimeout`,
`ServerAliveInterval` and `ServerAliveCountMax`. As with OpenSSH the first value of an option holds. Connections are
never shared (`-S`, `ControlMaster`): each client logs in by itself.

Exit codes and messages are OpenSSH's: those of the command, or 255 where there is no connection or it breaks."""
import os
import select
import socket
import struct
import sys
import time

NETWORK = "/run/cluster/network"  # a socket per node and port
HURRY = "/run/cluster/shared/hurry"  # where this exists, a login is given up in a 25th of its time
WITH_VALUE = "bcDEeFIiJLlmOopQRSWw"


def arguments(argv):
    """The options (by letter, and by lower-case name those of -o), the host and the command."""
    options, host, position = {}, None, 0
    while position < len(argv):
        argument = argv[position]
        position += 1
        if not argument.startswith("-") or argument == "-":
            if host is not None:
                return options, host, argv[position - 1:]
            host = argument
            continue
        letters = argument[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            value = ""
            if letter in WITH_VALUE:
                value = letters
                if not value:
                    value = argv[position]
                    position += 1
                letters = ""
            if letter == "o":
                letter, _, value = value.replace(" ", "=", 1).partition("=")
                letter = letter.lower()
            options.setdefault(letter, value)
    return options, host, []


def fail(message):
    print(message, file=sys.stderr, flush=True)
    os._exit(255)


def connect(host, port, limit):
    """Logs in; a node that accepts the connection and then says nothing is given up after the limit."""
    session = socket.socket(socket.AF_UNIX)
    if os.path.exists(HURRY):
        limit /= 25
    session.settimeout(limit or None)
    try:
        session.connect("%s/%s:%s" % (NETWORK, host, port))
    except socket.timeout:
        fail("ssh: connect to host %s port %s: Connection timed out" % (host, port))
    except OSError:
        fail("ssh: connect to host %s port %s: Connection refused" % (host, port))
    try:
        if not session.recv(1):
            fail("kex_exchange_identification: Connection closed by remote host")
    except socket.timeout:
        fail("Connection timed out during banner exchange")
    except OSError as error:
        fail("kex_exchange_identification: read: %s" % error.strerror)
    session.settimeout(None)
    return session


def frame(kind, data=b""):
    return kind + struct.pack(">I", len(data)) + data


def write(fd, data):
    try:
        while data:
            data = data[os.write(fd, data):]
    except OSError:
        pass  # it has no reader any more


def send(session, data):
    try:
        session.sendall(data)
    except OSError:
        pass  # its end is read next


def main():
    with open("/run/cluster/shared/of_ssh", "a") as file:
        file.write("".join(name + "\n" for name in os.environ))
    options, host, command = arguments(sys.argv[1:])
    if "G" in options:
        return  # ssh.sh asks whether an option is known
    session = connect(host, options.get("p", "22"), float(options.get("connecttimeout", 0)))
    alive = float(options.get("serveraliveinterval", 0))
    unanswered, most, heard = 0, int(options.get("serveralivecountmax", 3)), time.monotonic()
    # without a command (-N) the connection only stands
    send(session, frame(b"n") if "N" in options else frame(b"c", os.fsencode(" ".join(command))))
    poll, pending, code = select.poll(), b"", None
    poll.register(session, select.POLLIN)
    if "N" not in options and "n" not in options:
        poll.register(0, select.POLLIN)
    while True:
        ready = poll.poll(alive * 1000 if alive else None)
        if alive and time.monotonic() - heard >= alive * (unanswered + 1):
            if unanswered == most:
                fail("Timeout, server %s not responding." % host)
            unanswered += 1
            send(session, frame(b"k"))
        for fd, _event in ready:
            if fd == 0:
                data = os.read(0, 1 << 16)
                send(session, frame(b"i", data))
                if not data:
                    poll.unregister(0)
                continue
            try:
                data = session.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                if code is not None:
                    os._exit(code)
                fail("Connection to %s closed by remote host." % host)
            heard, unanswered = time.monotonic(), 0
            pending += data
            while len(pending) >= 5:
                kind, size = pending[:1], struct.unpack(">I", pending[1:5])[0]
                if len(pending) < 5 + size:
                    break
                data, pending = pending[5:5 + size], pending[5 + size:]
                if kind in b"oe":
                    write(1 if kind == b"o" else 2, data)
                elif kind == b"x":
                    code = int(data)


main()
