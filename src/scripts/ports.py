"""Tries TCP between nodes on random ports. `listen` serves this node's ports in the background, until all the others have connected or the
time is over; `connect`, once all nodes listen, connects to those of the others.

Standard input of `listen`: "TOKEN ADDRESS PORTS SECONDS EXPECTED"; it prints "busy REASON" if it cannot listen. That of `connect`:
"TOKEN PORTS LIMIT", then "INDEX ADDRESS" for each target; it prints "INDEX ok" or "INDEX REASON" for each. Both print nothing else."""
import os
import signal
import socket
import sys
import threading
import time


def bind(address, port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(256)
    return listener


def answer(connection, token, connected):
    try:
        connection.settimeout(10)
        received = connection.recv(len(token), socket.MSG_WAITALL)
        connection.sendall(token if received == token else b"?" * len(token))
        if received == token:
            connected.release()
    except OSError:
        pass
    finally:
        connection.close()


def serve(listener, token, connected):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection, token, connected), daemon=True).start()


def listen(token, address, ports, seconds, expected):
    try:
        listeners = [bind(address, int(port)) for port in ports.split(",")]
    except OSError as error:
        print("busy", error.strerror or error)
        return
    # the parent's end must not end the child, before or after it has a session of its own
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork():
        return
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    end = time.monotonic() + float(seconds)
    connected = threading.Semaphore(0)
    for listener in listeners:
        threading.Thread(target=serve, args=(listener, token.encode(), connected), daemon=True).start()
    for _ in range(int(expected) * len(listeners)):
        connected.acquire(timeout=max(0, end - time.monotonic()))


def connect(token, target, port, limit):
    """Returns why a connection failed, or None."""
    try:
        with socket.create_connection((target, port), timeout=limit) as connection:
            connection.sendall(token)
            if connection.recv(len(token), socket.MSG_WAITALL) == token:
                return None
            return "another program answers"
    except socket.timeout:
        return "no answer within %d s" % limit
    except OSError as error:
        return error.strerror or str(error)


def connect_all(token, ports, limit, targets):
    def attempt(index, target):
        reasons = (connect(token.encode(), target, int(port), int(limit)) for port in ports.split(","))
        print("%s %s\n" % (index, next(filter(None, reasons), "ok")), end="", flush=True)

    attempts = [threading.Thread(target=attempt, args=target) for target in targets]
    for thread in attempts:
        thread.start()
    for thread in attempts:
        thread.join()


arguments = sys.stdin.readline().split()
if sys.argv[1] == "listen":
    listen(*arguments)
else:
    connect_all(*arguments, [line.split() for line in sys.stdin])
