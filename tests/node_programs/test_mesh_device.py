"""Unit tests of the interface of the encrypted network (src/scripts/mesh/wireguard.py) with the kernel's WireGuard. The
programs `ip` and `wg` are scripted: where the tests run, the kernel mostly has no WireGuard."""
import errno
import os
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "scripts", "mesh"))
import network  # noqa: E402
import wireguard  # noqa: E402

# recorded with Debian 12: Linux 6.1, iproute2 6.1, wireguard-tools 1.0.20210914
UNKNOWN = "Error: Unknown device type."
IN_USE = "RTNETLINK answers: Address already in use"
CHANGED_TO_IN_USE = "Unable to modify interface: Address already in use"
NO_INTERFACE = "Unable to access interface: No such device"


class System:
    """A node's `ip` and `wg`. `kind` is that of its interface, if there is one; `taken` are UDP ports, `others` those
    of other interfaces of WireGuard."""

    def __init__(self, has_module=True, kind=None, taken=(), others=None):
        self.has_module, self.kind, self.taken, self.others = has_module, kind, taken, others or {}
        self.port, self.address, self.is_up = 0, None, False
        self.log = []

    def run(self, arguments, given=None):
        self.log.append(" ".join(arguments))
        found = getattr(self, arguments[0])(arguments[1:])
        if isinstance(found, str):
            return found
        raise OSError(errno.EIO, found[0])

    def ip(self, words):
        if words[:2] == ["link", "add"]:
            if not self.has_module:
                return [UNKNOWN]
            self.kind = "wireguard"
        elif words[:2] == ["link", "del"]:
            self.kind = None
        elif words[:2] == ["link", "set"]:
            if self.port in self.taken:
                return [IN_USE]
            self.is_up = True
        elif words[0] == "-d":
            return "3: hmesh: <POINTOPOINT,NOARP> mtu 1420\n    link/none promiscuity 0\n    %s addrgenmode none" % (
                "tun type tun" if self.kind == "tun" else "wireguard")
        elif words[:2] == ["-o", "addr"]:
            return "3: hmesh    inet %s scope global hmesh\n" % self.address if self.address else ""
        elif words[:2] == ["addr", "add"]:
            self.address = words[2]
        return ""

    def wg(self, words):
        if self.kind not in ("wireguard", "tun"):
            return [NO_INTERFACE]
        if words[:2] == ["show", "all"]:
            ports = dict(self.others, hmesh=self.port)
            return "".join("%s\t%d\n" % one for one in sorted(ports.items()))
        if words[0] == "show":
            return "%d\n" % self.port
        if words[2] == "listen-port":
            if self.is_up and int(words[3]) in self.taken:
                return [CHANGED_TO_IN_USE]
            self.port = int(words[3])
        return ""


class Kernel(unittest.TestCase):
    def device(self, system):
        patch = mock.patch.object(network, "run", system.run)
        patch.start()
        self.addCleanup(patch.stop)
        return wireguard.Device("hmesh")

    def configure(self, device, port=51820):
        device.configure("/x/private.key", port, "10.90.0.1", 16, 1420)

    def problem(self, call, *arguments):
        with self.assertRaises(wireguard.Problem) as raised:
            call(*arguments)
        return raised.exception.kind, str(raised.exception)

    def without_tun(self):
        patch = mock.patch.object(wireguard, "TUN", "/nonexistent")
        patch.start()
        self.addCleanup(patch.stop)

    def test_is_used_where_it_is_there_even_without_tun(self):
        self.without_tun()
        system = System()
        device = self.device(system)
        device.ensure()
        self.configure(device)
        self.assertEqual((device.kind, system.port, system.address, system.is_up),
                         ("kernel", 51820, "10.90.0.1/16", True))

    def test_and_tun_are_named_if_both_are_missing(self):
        self.without_tun()
        device = self.device(System(has_module=False))
        self.assertEqual(self.problem(device.ensure), (
            "no_tun", "no /nonexistent, and the kernel has no WireGuard: " + UNKNOWN))

    def test_is_replaced_by_a_program_where_it_is_missing(self):
        device = self.device(System(has_module=False))
        with mock.patch.object(wireguard, "launch") as launch, mock.patch.object(wireguard, "answers") as answers, \
                mock.patch.object(os.path, "exists", return_value=True):
            answers.side_effect = [False, True]
            launch.return_value.poll.return_value = None
            device.ensure()
        self.assertEqual((device.kind, launch.call_count), ("userspace", 1))

    def test_interface_of_an_agent_before_is_taken_over_as_it_is(self):
        for kind, name in (("wireguard", "kernel"), ("tun", "userspace")):
            system = System(kind=kind)
            device = self.device(system)
            device.ensure()
            self.configure(device)
            del system.log[:]
            device.ensure()
            self.configure(device)
            self.assertEqual(device.kind, name)
            changes = [line for line in system.log if " listen-port 51820" in line or " addr add " in line
                       or " link add " in line or " link del " in line]
            self.assertEqual(changes, [], "neither its port nor its address is set again")

    def test_interface_of_another_kind_is_replaced(self):
        system = System(kind="bridge")
        self.device(system).ensure()
        self.assertEqual(system.kind, "wireguard")

    def test_port_that_something_else_has_is_named_with_what_has_it(self):
        for others, who in (({}, "another program"), ({"wg0": 51820, "wg1": 7}, "the WireGuard interface wg0"),
                            ({"wg1": 7}, "another program")):
            system = System(taken={51820}, others=others)
            device = self.device(system)
            device.ensure()
            expected = "port_in_use", "%s has UDP port 51820" % who
            self.assertEqual(self.problem(self.configure, device), expected)
            # the interface has the port now, but is not up
            self.assertEqual(self.problem(self.configure, device), expected)
            system.taken = {}
            self.configure(device)
            self.assertTrue(system.is_up)

    def test_port_to_which_it_changes_is_named_as_well(self):
        system = System(taken={51821}, others={"wg0": 51821})
        device = self.device(system)
        device.ensure()
        self.configure(device)
        self.assertEqual(self.problem(self.configure, device, 51821), (
            "port_in_use", "the WireGuard interface wg0 has UDP port 51821"))


if __name__ == "__main__":
    unittest.main()
