"""The agent of the encrypted network on one node: keeps a way to each peer. See peers.py for what it decides.

agent.py DIR          runs until it is ended
agent.py DIR key      prints this node's public key, whose private key is made if it is missing
agent.py DIR new-key  does so with the key that takes its place at the next rotation"""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import endpoints
import guard
import messages
import mtu
import network
import wireguard
from peers import Peers

# how often network.json is looked for, in seconds
POLL = 0.2
# between two decisions, while a peer is looked for
STEP = 0.05
# a session that is taken over has so long to answer
GRACE = 2.0
# how often the interface is looked at, while a peer is looked for and otherwise
LOOK, LOOK_SETTLED = 0.5, 5.0
# state.json is written at least so often; time until a failed start is tried again
WRITE, RETRY = 2.0, 2.0
# host names are resolved again, ways are measured again
RESOLVE, MEASURE = 10.0, 60.0
# a router's answer to a packet that is too large takes as long
ANSWER = 0.4
# a connection that takes longer has failed
CONNECTION = 3.0
# of <linux/rtnetlink.h>: addresses of IPv4 and IPv6
ADDRESSES_CHANGE = 0x10 | 0x100
# of <linux/in.h>
IP_MTU_DISCOVER, IP_PMTUDISC_DONT, IP_PMTUDISC_DO, IP_PMTUDISC_PROBE, IP_MTU = 10, 0, 2, 3, 14
IPV6_MTU_DISCOVER, IPV6_MTU = 23, 24


class Resolver:
    """Resolves host names in threads, because a name server may not answer for long."""

    def __init__(self):
        self.found = {}
        self.asked = {}

    def ask(self, names, now):
        for name in names:
            started, thread = self.asked.get(name, (None, None))
            if started is None or (now - started > RESOLVE and not thread.is_alive()):
                thread = threading.Thread(target=self.resolve, args=(name,), daemon=True)
                self.asked[name] = now, thread
                thread.start()

    def resolve(self, name):
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):
            return
        self.found[name] = list(dict.fromkeys(one[4][0] for one in found))[:4]


class Measurement:
    """How large packets to an endpoint may be, by what routers say of one that is too large."""

    def __init__(self, endpoint, now):
        self.endpoint, self.tries, self.at = endpoint, 0, now
        host, port = endpoints.split(endpoint)
        self.six = ":" in host
        self.socket = socket.socket(socket.AF_INET6 if self.six else socket.AF_INET, socket.SOCK_DGRAM)
        level, option = (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER) if self.six else (socket.IPPROTO_IP, IP_MTU_DISCOVER)
        self.socket.setsockopt(level, option, IP_PMTUDISC_DO)
        self.socket.setblocking(False)
        self.socket.connect((host, port))
        self.send(now)

    def size(self):
        level, option = (socket.IPPROTO_IPV6, IPV6_MTU) if self.six else (socket.IPPROTO_IP, IP_MTU)
        return self.socket.getsockopt(level, option)

    def send(self, now):
        self.tries += 1
        self.at = now + ANSWER
        self.tested = min(self.size(), mtu.HIGHEST + mtu.OVERHEAD[6])
        try:
            # a message of no type that WireGuard knows
            self.socket.send(bytes(self.tested - (48 if self.six else 28)))
        except OSError:
            pass

    def result(self, now):
        """The size, or None if it is not known yet."""
        if now < self.at:
            return None
        size = min(self.size(), mtu.HIGHEST + mtu.OVERHEAD[6])
        if size < self.tested and self.tries < 5:
            # a later router may have said something else
            self.send(now)
            return None
        self.socket.close()
        return size


def open_socket(interface, kind):
    """A socket that sends and receives through the encrypted network only."""
    opened = socket.socket(socket.AF_INET, kind)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    opened.setblocking(False)
    return opened


class Connection:
    """An attempt to connect to the agent of a peer by TCP."""

    def __init__(self, interface, address, now):
        self.address, self.began = address, now
        self.socket = open_socket(interface, socket.SOCK_STREAM)
        self.socket.connect_ex((address, messages.PORT))

    def result(self, now):
        """True or False, or None if it is not known yet."""
        # not `select`, which takes descriptors below 1024 only
        looked = select.poll()
        looked.register(self.socket, select.POLLOUT)
        if not looked.poll(0) and now - self.began < CONNECTION:
            return None
        try:
            self.socket.getpeername()
            return True
        except OSError:
            return False
        finally:
            self.socket.close()


class Agent:
    def __init__(self, path):
        self.directory = network.Directory(path)
        self.device = wireguard.Device(None)
        self.table = Peers()
        self.guard = None
        self.resolver = Resolver()
        self.control = self.listener = self.relay = None
        self.network, self.digest, self.stamp = None, None, None
        self.public_key, self.problem = None, None
        self.mtu = mtu.HIGHEST
        self.next_read = self.next_look = self.next_write = self.next_setup = self.next_act = self.next_guard = 0
        self.place = None
        self.want_look = self.readdress = False
        self.measurements, self.measured = {}, {}
        self.connections = {}
        self.events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self.events.bind((0, ADDRESSES_CHANGE))
        self.events.setblocking(False)

    # --- the network and the interface

    def read(self, now):
        """Applies network.json if it has changed."""
        stamp = self.directory.stamp()
        if stamp == self.stamp or stamp is None:
            return
        try:
            self.network, self.digest = self.directory.read_network()
        except (OSError, ValueError) as error:
            say("cannot read %s: %s" % (self.directory.network, error))
            self.stamp = stamp
            return
        self.stamp = stamp
        self.set_up(now)

    def set_up(self, now):
        """Makes the interface what network.json says. Tried again later if that fails."""
        self.next_setup = now + RETRY
        wanted = next((node for node in self.network["nodes"] if node["name"] == self.network["node"]), {})
        try:
            self.public_key = self.directory.own_key(wanted.get("public_key"))
            self.prepare()
            self.check_address()
            self.device.ensure()
            prefix = int(self.network["range"].split("/")[1])
            self.mtu = self.network.get("mtu") or mtu.HIGHEST
            # before the interface has its address
            self.guard.close()
            self.device.configure(
                self.directory.private_key, self.network["port"], self.network["address"], prefix, self.mtu)
            self.apply(now)
            self.open()
        except wireguard.Problem as problem:
            self.fail(problem.kind, str(problem))
        except OSError as error:
            self.fail("wireguard", error.strerror or str(error))
        else:
            self.problem = None
        self.next_write = now

    def fail(self, kind, text):
        found = {"kind": kind, "text": text}
        if found != self.problem:
            say("%s: %s" % (kind, text))
        self.problem = found

    def prepare(self):
        """Removes what there is for another interface or range of this network, perhaps by an agent before this one."""
        wanted = self.network["interface"], self.network["range"]
        made = self.directory.read_made()
        if made not in (None, wanted):
            if made[0] != wanted[0]:
                wireguard.remove(made[0])
            guard.Guard(*made).open()
        if made != wanted:
            self.directory.write_made(*wanted)
        if self.guard is None or (self.guard.interface, self.guard.range) != wanted:
            self.device, self.guard = wireguard.Device(wanted[0]), guard.Guard(*wanted)

    def check_address(self):
        """Another interface with an address of the range would get the packets of peers."""
        for name, text in wireguard.addresses(all_of_them=True):
            if name != self.device.name and text.split("/")[0] == self.network["address"]:
                raise wireguard.Problem("address_in_use", "%s has the address %s" % (name, text))

    def apply(self, now):
        known = {peer.key: peer.address for peer in self.table.peers.values()}
        changes = self.table.apply(self.network, now)
        found = self.device.look()
        kept = {peer.key: peer for peer in self.table.peers.values()}
        for key, shown in found.items():
            # of an agent before this one
            if key not in kept and key not in known:
                changes.insert(0, (key, "", None, "remove"))
        self.device.change(
            [one for one in changes if one[3] != "add" or found.get(one[0], {}).get("allowed") != one[1] + "/32"])
        addresses = {peer.address: peer for peer in self.table.peers.values()}
        for address in self.device.routed():
            if address not in addresses:
                self.device.routes({address: None}, None)
        for peer in addresses.values():
            peer.route = None
            shown = found.get(peer.key)
            if shown and shown["handshake"] and peer.worked is None:
                # a session of the agent before this one: the first hello shows whether it goes on
                peer.next_attempt, peer.handshake = now + GRACE, shown["handshake"]
                peer.worked = shown["endpoint"] if self.table.via_of(shown["endpoint"]) is None else None
        self.want_look = True
        self.readdress = True

    def open(self):
        """Opens the socket of the agents' messages and starts the relay, unless they are there."""
        own = self.network["address"]
        place = own, self.network["port"], socket.if_nametoindex(self.device.name)
        if self.control is None or self.place != place:
            self.close()
            self.place = None
            self.listen(own)
            self.control = open_socket(self.device.name, socket.SOCK_DGRAM)
            self.control.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
            try:
                self.control.bind((own, messages.PORT))
            except OSError as error:
                raise wireguard.Problem("port_in_use", "UDP port %d of %s: %s" % (messages.PORT, own, error.strerror))
            script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "relay.py")
            self.relay = subprocess.Popen(
                [sys.executable, "-B", script, self.device.name, own, str(self.network["port"])], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE)
            self.place = place
        addresses = sorted(peer.address for peer in self.table.peers.values())
        self.relay.stdin.write(json.dumps(addresses).encode() + b"\n")
        self.relay.stdin.flush()

    def listen(self, own):
        """Lets peers try whether TCP gets here. Where another program has the port, they get through to that."""
        self.listener = open_socket(self.device.name, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.listener.bind((own, messages.PORT))
            self.listener.listen(socket.SOMAXCONN)
        except OSError as error:
            say("TCP port %d of %s: %s" % (messages.PORT, own, error.strerror))
            self.listener.close()
            self.listener = None

    def close(self):
        for opened in (self.control, self.listener):
            if opened is not None:
                opened.close()
        if self.relay is not None:
            self.relay.stdin.close()
            self.relay.stdout.close()
            self.relay.wait()
        self.control = self.listener = self.relay = None

    # --- what arrives

    def receive(self, now):
        for _ in range(200):
            try:
                data, (address, port) = self.control.recvfrom(messages.LONGEST + 1)
            except OSError:
                return
            peer = self.table.by_address(address)
            message = messages.read(data) if peer is not None and port == messages.PORT else None
            if message is None:
                continue
            reply, look = self.table.received(peer, message, now)
            if reply is not None:
                self.send(peer, reply)
            self.want_look = self.want_look or look

    def accept(self):
        for _ in range(200):
            try:
                self.listener.accept()[0].close()
            except OSError:
                return

    def send(self, peer, data, probe=False):
        try:
            if probe:
                self.control.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
            self.control.sendto(data, (peer.address, messages.PORT))
        except OSError:
            # no way to it at present: the next one may arrive
            pass
        finally:
            if probe:
                self.control.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)

    def relayed(self):
        """Reads at which ports the relay listens."""
        line = self.relay.stdout.readline()
        if not line:
            self.close()
            self.fail("wireguard", "the relay has ended")
            self.next_setup = time.monotonic() + RETRY
            return
        ports = json.loads(line.decode())
        self.table.relay_ports = {
            peer.name: ports[peer.address] for peer in self.table.peers.values() if peer.address in ports}

    # --- what is due

    def look(self, now):
        self.want_look = False
        self.next_look = now + (LOOK_SETTLED if self.table.is_settled(now) else LOOK)
        try:
            self.table.looked(self.device.look(), now)
        except OSError as error:
            self.fail("wireguard", error.strerror or str(error))
            self.next_setup = now

    def own_addresses(self, now):
        self.readdress = False
        if not self.device.has_address(self.network["address"]):
            # a manager of networks has taken it from the interface
            self.set_up(now)
        own = [text for _, text in wireguard.addresses()]
        if own != self.table.own:
            self.table.moved(own, now)

    def act(self, now):
        self.table.resolved = self.resolver.found
        actions = self.table.due(now)
        changes = [(action[1].key, action[1].address, action[2], action[0]) for action in actions
                   if action[0] in ("try", "move")]
        try:
            self.device.change(changes)
        except OSError as error:
            say(error.strerror or str(error))
        self.device.routes(
            {action[1].address: action[2] for action in actions if action[0] == "route"}, self.network["address"])
        for action in actions:
            peer = action[1]
            if action[0] in ("hello", "punch"):
                self.send(peer, self.table.hello(peer, now, punch=action[0] == "punch"))
            elif action[0] == "probe":
                self.send(peer, self.table.hello(peer, now, size=action[2]), probe=True)
            elif action[0] == "connect" and peer.name not in self.connections:
                self.connect(peer, now)
        self.check_connections(now)
        self.resolver.ask(self.table.names(), now)
        self.measure(now)

    def connect(self, peer, now):
        try:
            self.connections[peer.name] = Connection(self.device.name, peer.address, now)
        except OSError:
            # no interface at present
            pass

    def check_connections(self, now):
        for name, connection in list(self.connections.items()):
            succeeded = connection.result(now)
            if succeeded is not None:
                del self.connections[name]
                peer = self.table.by_address(connection.address)
                if peer is not None:
                    self.table.connected(peer, succeeded, connection.began, now)

    def measure(self, now):
        for name, peer in self.table.peers.items():
            known = self.measured.get(name)
            due = known is None or known[0] != peer.endpoint or now - known[1] >= MEASURE
            if peer.state == "direct" and due and not peer.path.fixed:
                self.measured[name] = peer.endpoint, now
                try:
                    self.measurements[name] = Measurement(peer.endpoint, now)
                except OSError:
                    continue
        for name, measurement in list(self.measurements.items()):
            try:
                size = measurement.result(now)
            except OSError:
                del self.measurements[name]
                continue
            if size is not None:
                del self.measurements[name]
                peer = self.table.peers.get(name)
                if peer is not None and peer.endpoint == measurement.endpoint:
                    self.table.ceiling(peer, size, now)

    def write(self, now):
        self.next_write = now + WRITE
        self.table.changed = False
        clock = time.time()

        def time_of(moment):
            return None if moment is None else round(clock - (now - moment), 2)
        peers = {
            peer.name: {
                "state": peer.state, "endpoint": peer.endpoint, "via": peer.via, "mtu": peer.path.value,
                "round_trip_ms": None if peer.round_trip is None else round(peer.round_trip, 2),
                "since": time_of(peer.since), "sent": peer.sent, "received": peer.received,
                "handshake": time_of(peer.shaken), "arrived": time_of(peer.grown), "heard": time_of(peer.heard),
                "tcp": peer.tcp,
            }
            for peer in self.table.peers.values()
        }
        state = {
            "time": clock, "pid": os.getpid(), "network": self.digest, "kind": self.device.kind, "mtu": self.mtu,
            "public_key": self.public_key, "problem": self.problem,
            "exposed": self.guard and self.guard.fault, "peers": peers,
        }
        try:
            self.directory.write_state(state)
        except OSError as error:
            say("cannot write %s: %s" % (self.directory.state, error))

    def run(self):
        while True:
            now = time.monotonic()
            if now >= self.next_read:
                self.next_read = now + POLL
                self.read(now)
            if self.problem and now >= self.next_setup:
                self.set_up(now)
            if self.network is not None and self.problem is None:
                if now >= self.next_guard:
                    self.next_guard = now + guard.LOOK
                    self.guard.look()
                if self.readdress:
                    self.own_addresses(now)
            # which may have found that there is no network any more
            if self.network is not None and self.problem is None:
                if self.want_look or now >= self.next_look:
                    self.look(now)
                    self.next_act = now
                if now >= self.next_act:
                    self.next_act = now + self.step(now)
                    self.act(now)
            if now >= self.next_write or self.table.changed:
                self.write(now)
            self.wait(now)

    def step(self, now):
        return POLL if self.table.is_settled(now) and not self.measurements else STEP

    def wait(self, now):
        waited = [self.events] + ([self.control, self.relay.stdout] if self.control is not None else [])
        waited += [self.listener] if self.listener is not None else []
        ready = select.select(waited, [], [], self.step(now))[0]
        now = time.monotonic()
        if self.events in ready:
            self.readdress = True
            try:
                while self.events.recv(65536):
                    pass
            except OSError:
                pass
        if self.control is not None and self.control in ready:
            self.receive(now)
        if self.listener is not None and self.listener in ready:
            self.accept()
        if self.relay is not None and self.relay.stdout in ready:
            self.relayed()


def say(text):
    print("hmesh: %s" % text, file=sys.stderr, flush=True)


def main():
    directory = sys.argv[1]
    if sys.argv[2:] in (["key"], ["new-key"]):
        files = network.Directory(directory)
        try:
            print(files.public_key(files.private_key if sys.argv[2] == "key" else files.new_key))
        except OSError as error:
            sys.exit("hmesh: cannot make a key in %s: %s" % (directory, error.strerror or error))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Agent(directory).run()


if __name__ == "__main__":
    main()
