"""Nodes of an encrypted network in network namespaces, behind the routers of scripts/lab.d/networks.sh."""
import atexit
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
NETWORKS = os.path.join(ROOT, "scripts", "lab.d", "networks.sh")
PROGRAMS = os.path.join(ROOT, "src", "scripts", "mesh")
PORT = 51821
# a limit, not an expectation
LIMIT = 60

numbers = itertools.count(1)


def missing():
    """Why such networks cannot be made here, or None."""
    if os.geteuid():
        return "network namespaces need root"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    tools = [tool for tool in ("ip", "iptables", "nft", "wg", "wireguard-go", "nsenter") if shutil.which(tool) is None]
    if tools:
        return "not installed: " + ", ".join(tools)
    name = "hvm%d-can" % os.getpid()
    if subprocess.call(["ip", "netns", "add", name], stderr=subprocess.DEVNULL):
        return "network namespaces cannot be made"
    subprocess.call(["ip", "netns", "del", name])
    return None


def wait_for(check, about, limit=LIMIT):
    """The first true result of `check`."""
    deadline = time.monotonic() + limit
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError("not within %d s: %s" % (limit, about() if callable(about) else about))
        time.sleep(0.05)


class Node:
    def __init__(self, networks, index, kind):
        self.name = "node%d" % index
        self.address = networks.range.replace("0.0/16", "0.%d" % index)
        self.namespace = "%s-%s" % (networks.prefix, self.name)
        self.path = os.path.join(networks.path, self.name)
        self.networks = networks
        self.endpoints = []
        self.process = None
        self.log = os.path.join(networks.path, self.name + ".log")
        if networks.has_namespaces:
            subprocess.check_call(["ip", "netns", "add", self.namespace])
        os.mkdir(self.path, 0o700)
        os.symlink(PROGRAMS, os.path.join(self.path, "run"))
        self.key = self.agent("key")

    def agent(self, command):
        program = os.path.join(self.path, "run", "agent.py")
        return subprocess.check_output(
            [sys.executable, "-B", program, self.path, command], universal_newlines=True).strip()

    def start(self):
        """Starts the container's main process, with a /var/run/wireguard of its own."""
        prepare = "mkdir -p /var/run/wireguard; mount -t tmpfs none /var/run/wireguard; exec sh $0/run/main.sh $0"
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, "sh", "-c", prepare, self.path], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=dict(os.environ, PATH=self.networks.bin + ":" + os.environ["PATH"]))

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def arguments(self, *command):
        """A command in this node's namespaces."""
        return ["nsenter", "-t", str(self.process.pid), "-m", "-n"] + list(command)

    def run(self, *command):
        done = subprocess.run(
            self.arguments(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
            timeout=LIMIT)
        return done.returncode, done.stdout

    def state(self):
        try:
            with open(os.path.join(self.path, "state.json")) as file:
                return json.load(file)
        except FileNotFoundError:
            return {"peers": {}}

    def peer(self, other):
        return self.state()["peers"].get(other.name, {})

    def outside(self):
        """The address on wan0."""
        lines = subprocess.check_output(
            ["ip", "-n", self.namespace, "-o", "-4", "addr", "show", "dev", "wan0"], universal_newlines=True)
        return lines.split()[3].split("/")[0]


class Networks:
    """`kinds` as of networks.sh. Only nodes with a public address or a forwarded port have an endpoint, unless
    `endpoints` has others by the number of the node. `same_nodes`: those of another cluster on them."""

    def __init__(self, kinds, mtu=None, start=True, endpoints=None, same_nodes=None):
        # namespaces of two runs at once have different names
        self.prefix = same_nodes.prefix if same_nodes else "hvm%dx%d" % (os.getpid(), next(numbers))
        self.has_namespaces = same_nodes is None
        self.interface, self.port, self.range = ("hmesh-2", PORT + 1, "10.218.0.0/16") if same_nodes else (
            "hmesh", PORT, "10.219.0.0/16")
        self.path = tempfile.mkdtemp()
        self.kinds, self.mtu, self.left_out = kinds, mtu, set()
        self.bin = os.path.join(self.path, "bin")
        os.mkdir(self.bin)
        os.symlink(os.path.realpath(sys.executable), os.path.join(self.bin, "python3"))
        self.nodes = []
        atexit.register(self.close)
        try:
            self.nodes = [Node(self, index, kind) for index, kind in enumerate(kinds.split(","), 1)]
            names = [node.namespace for node in self.nodes]
            if self.has_namespaces:
                subprocess.check_call([NETWORKS, "up", kinds, self.prefix] + names)
            self.find_endpoints()
            for index, found in (endpoints or {}).items():
                self.nodes[index - 1].endpoints = found
            self.write()
            if start:
                for node in self.nodes:
                    node.start()
        except BaseException:
            self.close()
            raise

    def find_endpoints(self):
        """Finds the endpoints that hvdctl would know, because it reaches these nodes by ssh."""
        lan = 0
        for node, kind in zip(self.nodes, self.kinds.split(",")):
            word = kind.split("+")[0]
            if word in ("cone", "restricted", "symmetric", "blocked", "mtu1280"):
                lan += 1
            if word in ("public", "slow", "silent"):
                node.endpoints = ["%s:%d" % (node.outside(), self.port)]
            elif word == "cone":
                lines = subprocess.check_output(
                    ["ip", "-n", "%s-r%d" % (self.prefix, lan), "-o", "-4", "addr", "show", "dev", "wan"],
                    universal_newlines=True)
                node.endpoints = ["%s:%d" % (lines.split()[3].split("/")[0], self.port)]

    def write(self, only=None):
        """Writes network.json of each node, as hvdctl does."""
        listed = [node for node in self.nodes if node.name not in self.left_out]
        nodes = [
            {"name": node.name, "address": node.address, "public_key": node.key, "endpoints": node.endpoints,
             "local": [node.outside()]}
            for node in listed
        ]
        for node in only or listed:
            path = os.path.join(node.path, "network.json")
            with open(path + ".new", "w") as file:
                json.dump({
                    "cluster": "lab", "node": node.name, "interface": self.interface, "port": self.port,
                    "range": self.range, "address": node.address, "mtu": self.mtu, "nodes": nodes,
                }, file)
            os.rename(path + ".new", path)

    def states(self):
        return {node.name: {name: (peer["state"], peer["via"], peer["endpoint"])
                            for name, peer in node.state()["peers"].items()} for node in self.nodes}

    def wait_until(self, first, second, state, limit=LIMIT):
        """Waits until both of two nodes have this state of each other."""
        def reached():
            return first.peer(second).get("state") == state and second.peer(first).get("state") == state
        wait_for(reached, lambda: "%s and %s %s: %s\n%s" % (
            first.name, second.name, state, self.states(), self.logs()), limit)

    def logs(self):
        texts = []
        for node in self.nodes:
            if os.path.exists(node.log):
                with open(node.log) as file:
                    texts.append("%s: %s" % (node.name, file.read()[-2000:]))
        return "\n".join(texts)

    def move(self, node, kind):
        subprocess.check_call([NETWORKS, "move", kind, self.prefix, node.namespace])

    def close(self):
        atexit.unregister(self.close)
        for node in self.nodes:
            node.stop()
        if self.has_namespaces:
            subprocess.call([NETWORKS, "down", self.prefix])
            for node in self.nodes:
                subprocess.call(["ip", "netns", "del", node.namespace])
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


RECEIVE = """
import socket, sys, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], 9000))
server.listen(1)
server.settimeout(float(sys.argv[2]))
print("ready", flush=True)
connection, _ = server.accept()
connection.settimeout(float(sys.argv[2]))
begun, size = time.monotonic(), 0
while True:
    data = connection.recv(1 << 18)
    if not data:
        break
    size += len(data)
print(size, time.monotonic() - begun)
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 9000), timeout=float(sys.argv[2]))
data = (sys.argv[3].encode() * 65536)[:65536]
size, seconds = int(sys.argv[4]), float(sys.argv[5])
begun, sent = time.monotonic(), 0
while sent < size and time.monotonic() - begun < seconds:
    connection.sendall(data)
    sent += len(data)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(sent)
"""


def transfer(sender, receiver, size=1 << 40, seconds=LIMIT, text="x", limit=LIMIT, address=None):
    """Sends by TCP, and returns the bytes that arrived and the seconds that took."""
    address = address or receiver.address
    receiving = subprocess.Popen(
        receiver.arguments(sys.executable, "-c", RECEIVE, address, str(limit)), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, universal_newlines=True)
    sending = None
    try:
        if receiving.stdout.readline() != "ready\n":
            raise AssertionError(receiving.communicate()[1])
        arguments = [sys.executable, "-c", SEND, address, str(limit), text, str(size), str(seconds)]
        sending = subprocess.run(
            sender.arguments(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
            timeout=limit + seconds)
        if sending.returncode:
            raise AssertionError(sending.stderr)
        out, errors = receiving.communicate(timeout=limit)
        if receiving.returncode:
            raise AssertionError(errors)
    finally:
        if receiving.poll() is None:
            receiving.kill()
        receiving.wait()
        receiving.stdout.close()
        receiving.stderr.close()
    size, took = out.split()
    return int(size), float(took)


def kill_agent(node):
    """Kills the agent, not the container's main process."""
    pid = node.state()["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid
