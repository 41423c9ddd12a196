"""When a rank of a role is ready for those of other roles (model/role.rs). An address is asked by a thread: it may not
answer for long, and the output of the rank does not wait for that. Modules that take a while are imported by those few
ranks that need them."""
import os
import re
import threading
import time

EVERY = 0.2  # seconds between two checks
ANSWER = 2  # seconds for an answer
URL = re.compile(r"http://:(\d+)(/.*)?\Z", re.S)
LOCAL = "127.0.0.1"
COARSE = 2  # seconds by which the times of a file system may be too early


def accepts(address, port):
    """Returns whether something accepts connections there."""
    import socket
    try:
        socket.create_connection((address, port), ANSWER).close()
        return True
    except OSError:
        return False


def answers(address, port, path):
    """Returns whether an HTTP server answers with a status below 400. Knows no proxies."""
    import http.client
    connection = http.client.HTTPConnection(address, port, timeout=ANSWER)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 400
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Check:
    """A check whether a rank is ready, made before its program starts. `condition`: as launcher.json has it; `role`:
    the rank's (rank_role.py); `report`: reports that it is, and returns whether that was possible."""

    def __init__(self, condition, role, report):
        self.kind = condition["kind"] if condition else None
        self.condition, self.role, self.report = condition, role, report
        self.is_ready, self.is_reported = self.kind is None, False
        self.text = condition["text"].encode() if self.kind == "line" else None
        self.since = time.time()
        self.left = self.written() if self.kind == "file" else None  # by an earlier start

    def begin(self):
        if self.kind in ("http", "port", "file"):
            threading.Thread(target=self.repeat, daemon=True).start()

    def see(self, line):
        """Takes a line of the rank."""
        self.is_ready = self.is_ready or self.text in line

    def repeat(self):
        while not self.is_ready:
            self.is_ready = self.holds()
            time.sleep(EVERY)

    def written(self):
        """When the file was written, and what else changes when it is written again; None if it does not exist."""
        try:
            found = os.stat(os.path.join(self.role.job["cwd"], self.condition["path"]))
            return found.st_mtime, found.st_ino, found.st_size
        except OSError:
            return None

    def holds(self):
        if self.kind == "file":
            # one that has changed since is new whatever the clock of a file server says
            written = self.written()
            return bool(written) and (written[0] >= self.since - COARSE or written != self.left)
        port, path = self.role.ports.get(self.condition.get("name")), None
        if self.kind == "http":
            found = URL.match(self.role.fill_in(self.condition["url"]))
            port, path = (int(found.group(1)), found.group(2) or "/") if found else (None, None)
        # a program may listen at one of them only
        return port is not None and any(answers(address, port, path) if path else accepts(address, port)
                                        for address in (self.role.address, LOCAL))

    def follow(self):
        """Reports once that the rank is ready."""
        if self.is_ready and not self.is_reported:
            self.is_reported = self.report()

    def finish(self):
        """Takes the end of a rank that has done what was to be done."""
        if self.kind == "file" and not self.is_ready:
            self.is_ready = self.holds()
        self.follow()
