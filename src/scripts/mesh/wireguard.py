"""The interface of the encrypted network: made and changed by the programs `ip`, `wg` and `wireguard-go`."""
import os
import socket
import subprocess
import time

import endpoints
import network

TUN = "/dev/net/tun"
# seconds until wireguard-go answers
START = 5
# interfaces whose addresses only this node and its containers have, and those of all encrypted networks
INSIDE = ("docker", "br-", "veth", "virbr", "cni", "podman", "lxc", "flannel", "cali", "hmesh")


class Problem(Exception):
    """Why there is no interface: a kind that hvdctl knows, and the words of the program that failed."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


class Device:
    """The interface. `kind` says who encrypts: the kernel, or wireguard-go (`userspace`)."""

    def __init__(self, name):
        self.name, self.kind = name, None

    def ensure(self):
        """Takes over an interface that works, so that traffic goes on while the agent starts again, or makes one."""
        try:
            network.run(["wg", "show", self.name, "listen-port"])
            details = network.run(["ip", "-d", "link", "show", "dev", self.name])
            self.kind = "userspace" if " tun " in details else "kernel"
            return
        except OSError:
            remove(self.name)
        try:
            network.run(["ip", "link", "add", self.name, "type", "wireguard"])
            self.kind = "kernel"
        except OSError as error:
            self.start(error.strerror)

    def start(self, kernel):
        """Starts wireguard-go. It outlives the agent, as the kernel's interface does, and ends with its interface."""
        if not os.path.exists(TUN):
            raise Problem("no_tun", "no %s, and the kernel has no WireGuard: %s" % (TUN, kernel))
        started = launch(self.name, "silent", subprocess.DEVNULL)
        deadline = time.monotonic() + START
        while not answers(self.name):
            if started.poll() is not None or time.monotonic() > deadline:
                started.kill()
                started.wait()
                raise failure(self.name)
            time.sleep(0.01)
        self.kind = "userspace"

    def configure(self, key, port, address, prefix, mtu):
        """Sets what belongs to this node. Peers stay as they are."""
        try:
            network.run(["wg", "set", self.name, "private-key", key])
            if int(network.run(["wg", "show", self.name, "listen-port"])) != port:
                network.run(["wg", "set", self.name, "listen-port", str(port)])
            network.run(["ip", "link", "set", self.name, "mtu", str(mtu), "up"])
        except OSError as error:
            if "ddress already in use" in str(error) or "ddress in use" in str(error):
                raise Problem("port_in_use", "%s has UDP port %d" % (holder(port, self.name), port))
            raise Problem("wireguard", error.strerror)
        wanted = "%s/%d" % (address, prefix)
        try:
            if wanted not in [text for name, text in addresses(all_of_them=True) if name == self.name]:
                network.run(["ip", "addr", "flush", "dev", self.name])
                network.run(["ip", "addr", "add", wanted, "dev", self.name])
        except OSError as error:
            raise Problem("wireguard", error.strerror)

    def has_address(self, address):
        """True if the interface has it, or is missing."""
        found = [text.split("/")[0] for name, text in addresses(all_of_them=True) if name == self.name]
        return address in found or not os.path.exists("/sys/class/net/" + self.name)

    def change(self, changes):
        """Changes peers: tuples of key, address, endpoint or None, and how: `add`, `move` (another endpoint, the
        session goes on), `try` (a new handshake, at once) or `remove`."""
        arguments = []
        for key, address, endpoint, how in changes:
            if how in ("try", "remove"):
                arguments += ["peer", key, "remove"]
            if how != "remove":
                arguments += ["peer", key, "allowed-ips", address + "/32"]
                arguments += ["endpoint", endpoint] if endpoint else []
        if arguments:
            network.run(["wg", "set", self.name] + arguments)

    def look(self):
        """By public key: endpoint, addresses, time of the last handshake, bytes received and sent."""
        found = {}
        for line in network.run(["wg", "show", self.name, "dump"]).splitlines()[1:]:
            key, _, endpoint, allowed, handshake, received, sent, _ = line.split("\t")
            found[key] = {
                "endpoint": None if endpoint == "(none)" else endpoint,
                "allowed": allowed,
                "handshake": int(handshake) or None,
                "received": int(received),
                "sent": int(sent),
            }
        return found

    def routes(self, changes, source):
        """Sets the routes to peers: address to MTU, or to None to remove it."""
        lines = []
        for address, mtu in changes.items():
            if mtu is None:
                lines.append("route del %s/32 dev %s" % (address, self.name))
            else:
                lines.append("route replace %s/32 dev %s mtu %d src %s" % (address, self.name, mtu, source))
        # with -force, a route that is gone already keeps none of the others
        if lines:
            subprocess.run(
                ["ip", "-force", "-batch", "-"], input="\n".join(lines) + "\n", universal_newlines=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=network.LIMIT,
            )

    def routed(self):
        """The addresses that have a route of their own."""
        lines = network.run(["ip", "-4", "route", "show", "dev", self.name]).splitlines()
        return {line.split()[0] for line in lines if line.strip() and "/" not in line.split()[0]}


def holder(port, own):
    """Who has a UDP port. No process has that of another WireGuard of the kernel, so that `ss` would not show it."""
    try:
        lines = network.run(["wg", "show", "all", "listen-port"]).splitlines()
    except OSError:
        lines = []
    shown = (line.split("\t") for line in lines)
    others = [name for name, used in shown if name != own and used == str(port)]
    return "the WireGuard interface %s" % others[0] if others else "another program"


def launch(name, level, output):
    environment = dict(os.environ, WG_I_PREFER_BUGGY_USERSPACE_TO_POLISHED_KMOD="1", LOG_LEVEL=level)
    try:
        return subprocess.Popen(
            ["wireguard-go", "-f", name], env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, universal_newlines=True,
        )
    except OSError as error:
        raise Problem("wireguard", "cannot start wireguard-go: %s" % error)


def failure(name):
    """The words of a wireguard-go that does not start. One that works says nothing: it outlives who would read it."""
    started = launch(name, "error", subprocess.PIPE)
    try:
        said = started.communicate(timeout=2)[0].strip()
    except subprocess.TimeoutExpired:
        started.kill()
        said = started.communicate()[0].strip()
    kind = "no_tun" if "TUN" in said or TUN in said else "wireguard"
    return Problem(kind, said or "wireguard-go did not answer within %d s" % START)


def socket_of(name):
    """The socket by which wireguard-go is configured."""
    return "/var/run/wireguard/%s.sock" % name


def answers(name):
    """True if wireguard-go accepts configuration."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(socket_of(name))
            return True
        except OSError:
            return False


def remove(name):
    try:
        network.run(["ip", "link", "del", name])
    except OSError:
        pass
    try:
        # of a wireguard-go that was killed
        os.unlink(socket_of(name))
    except OSError:
        pass


def addresses(all_of_them=False):
    """Interfaces and addresses with their prefixes: those that other machines may reach, or all."""
    found = []
    for line in network.run(["ip", "-o", "addr", "show"]).splitlines():
        words = line.split()
        if len(words) < 4 or words[2] not in ("inet", "inet6"):
            continue
        name, text = words[1], words[3]
        # that of a point-to-point interface has no prefix
        text = text if "/" in text else text + ("/32" if words[2] == "inet" else "/128")
        if all_of_them or (not name.startswith(INSIDE) and endpoints.address_of(text.split("/")[0])):
            found.append((name, text))
    return found
