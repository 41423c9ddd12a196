"""Tries TCP between nodes on random ports. Standard input: a line "TOKEN ADDRESS PORTS LIMIT"; once all nodes listen, a
line with "INDEX=ADDRESS" for each of the others. Prints "listening" or "busy REASON", then a JSON object: why no
connection to the node of an index was possible, or null. Listens until standard input ends."""
import json
import socket
import sys
import threading
import time

CONNECTIONS = 256  # at once, with those of strangers


def listen(address, port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(CONNECTIONS)
    return listener


def answer(connection, token, limit, free):
    try:
        connection.settimeout(limit)
        received = connection.recv(len(token), socket.MSG_WAITALL)
        connection.sendall(token if received == token else b"?" * len(token))
    except OSError:
        pass
    finally:
        connection.close()
        free.release()


def serve(listener, token, limit):
    free = threading.Semaphore(CONNECTIONS)
    while True:
        free.acquire()
        try:
            connection, _ = listener.accept()
        except OSError:  # the node has no file or memory for it
            free.release()
            time.sleep(0.1)
            continue
        threading.Thread(target=answer, args=(connection, token, limit, free), daemon=True).start()


def connect(target, port, token, limit):
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


def main():
    token, address, ports, limit = sys.stdin.readline().split()
    token, ports, limit = token.encode(), [int(port) for port in ports.split(",")], int(limit)
    try:
        listeners = [listen(address, port) for port in ports]
    except OSError as error:
        print("busy", error.strerror or error)
        return
    for listener in listeners:
        threading.Thread(target=serve, args=(listener, token, limit), daemon=True).start()
    print("listening", flush=True)

    reasons = {}

    def attempt(index, target):
        reasons[index] = next(filter(None, (connect(target, port, token, limit) for port in ports)), None)

    pairs = [pair.split("=") for pair in sys.stdin.readline().split()]
    attempts = [threading.Thread(target=attempt, args=pair, daemon=True) for pair in pairs]
    for thread in attempts:
        thread.start()
    for thread in attempts:
        thread.join()
    print(json.dumps(reasons), flush=True)
    sys.stdin.read()


main()
