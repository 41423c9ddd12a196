"""The container engine of this node, over its socket."""
import http.client
import json
import socket
import time
from urllib.parse import quote

LIMIT = 60  # seconds for one answer


class EngineError(Exception):
    """What the engine has refused, in its own words."""


class Connection(http.client.HTTPConnection):
    def __init__(self, paths):
        super().__init__("localhost", timeout=LIMIT)
        self.paths = paths

    def connect(self):
        for path in self.paths:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            try:
                return self.sock.connect(path)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                self.sock.close()
                failure = error
        raise failure


class Engine:
    def __init__(self, paths):
        """`paths`: where its socket may be, the first that answers counts."""
        self.paths = paths

    def send(self, method, path, body=None, accepted=()):
        """Sends a request, and returns the answer, or None for an error whose status is accepted."""
        connection = Connection(self.paths)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode(errors="replace")
        except http.client.HTTPException as error:
            raise EngineError("the engine does not answer: %r" % error)
        finally:
            connection.close()
        if status in accepted:
            return None
        if status >= 400:
            raise EngineError(text.strip()[:500] or "status %d" % status)
        try:
            return json.loads(text) if text else {}
        except ValueError:
            return {}

    def running(self, name):
        """Whether a container is running; None if there is none."""
        found = self.send("GET", "/containers/%s/json" % quote(name), accepted=(404,))
        return None if found is None else bool(found.get("State", {}).get("Running"))

    def process(self, name):
        """The number of a container's main process on the node; 0 if it does not run."""
        found = self.send("GET", "/containers/%s/json" % quote(name), accepted=(404,)) or {}
        return found.get("State", {}).get("Pid") or 0

    def create(self, request):
        """Creates and starts a container as `ContainerEngine::creation` describes it."""
        self.remove(request["name"])
        self.send("POST", request["path"], request["body"])
        self.start(request["name"])

    def start(self, name):
        self.send("POST", "/containers/%s/start" % quote(name), accepted=(304,))

    def signal(self, name, signal):
        """Sends a signal to a container; one that is gone or has ended is no error."""
        try:
            self.send("POST", "/containers/%s/kill?signal=%s" % (quote(name), signal), accepted=(404, 409))
        except EngineError:
            if self.running(name):
                raise

    def remove(self, name):
        self.send("DELETE", "/containers/%s?force=true&v=true" % quote(name), accepted=(404,))

    def last_lines(self, name):
        """The last lines that a container has written, as one; empty if there are none."""
        connection = Connection(self.paths)
        try:
            connection.request("GET", "/containers/%s/logs?stdout=true&stderr=true&tail=2" % quote(name))
            left, text = connection.getresponse().read(), b""
        except (OSError, http.client.HTTPException):
            return ""
        finally:
            connection.close()
        while left:
            # the stream, three bytes, and the length of a piece come before it
            size = int.from_bytes(left[4:8], "big")
            text, left = text + left[8:8 + size], left[8 + size:]
        return " ".join(text.decode(errors="replace").split())[:300]

    def run(self, name, argv, limit=30):
        """Runs a program in a container."""
        ran = self.send("POST", "/containers/%s/exec" % quote(name), {"Cmd": argv, "User": "0"})["Id"]
        self.send("POST", "/exec/%s/start" % ran, {"Detach": True})
        until = time.monotonic() + limit
        while True:
            state = self.send("GET", "/exec/%s/json" % ran)
            if not state.get("Running"):
                break
            if time.monotonic() > until:
                raise EngineError("%s has not ended in %s within %d s" % (argv[0], name, limit))
            time.sleep(0.05)
        if state.get("ExitCode"):
            raise EngineError("%s has ended in %s with code %d" % (argv[0], name, state["ExitCode"]))
