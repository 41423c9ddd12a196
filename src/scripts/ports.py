"""Tries TCP between nodes on random ports: listens on its own and connects to those of the others at once, since all nodes begin at
about the same time. Standard input: the token, then "address ports limit whole expected", then "INDEX ADDRESS" for each target.
Prints "INDEX ok" or "INDEX REASON" for each target, or "busy" if it cannot listen itself. Exits after `whole` seconds at the
latest."""
import socket
import sys
import threading
import time

token = sys.stdin.readline().strip().encode()
address, ports, limit, whole, expected = sys.stdin.readline().split()
targets = [line.split() for line in sys.stdin if line.strip()]
ports = [int(port) for port in ports.split(",")]
limit, end, expected = float(limit), time.monotonic() + float(whole), int(expected)
came = 0
changed = threading.Condition()


def listen(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(256)
    return listener


def answer(connection):
    global came
    try:
        connection.settimeout(limit)
        received = connection.recv(len(token), socket.MSG_WAITALL)
        connection.sendall(token if received == token else b"?" * len(token))
        with changed:
            came += received == token
            changed.notify()
    except OSError:
        pass
    finally:
        connection.close()


def serve(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def connect(target, port):
    """Returns the reason why a connection failed, or an empty text. Retries a port that refuses, because the other node may start
    later."""
    reason = ""
    while time.monotonic() < end:
        try:
            with socket.create_connection((target, port), timeout=limit) as connection:
                connection.sendall(token)
                if connection.recv(len(token), socket.MSG_WAITALL) == token:
                    return None
                reason = "another program answers"
        except socket.timeout:
            return "no answer within %d s" % limit
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(0.1)
    return reason


def attempt(index, target):
    reason = next((reason for reason in (connect(target, port) for port in ports) if reason), None)
    print(index, reason or "ok", flush=True)


try:
    listeners = [listen(port) for port in ports]
except OSError as error:
    print("busy", error.strerror or error, flush=True)
    sys.exit()
for listener in listeners:
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
attempts = [threading.Thread(target=attempt, args=target, daemon=True) for target in targets]
for thread in attempts:
    thread.start()
for thread in attempts:
    thread.join()
with changed:
    while came < expected * len(ports) and time.monotonic() < end:
        changed.wait(max(0, end - time.monotonic()))
