"""Tests of the encrypted network with real WireGuard, in network namespaces behind routers. They run at once, because
they mostly wait. HVDCTL_TEST_FULL adds those that take longer."""
import concurrent.futures
import os
import signal
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
import mesh_networks  # noqa: E402
from mesh_networks import LIMIT, PORT, Networks, transfer, wait_for  # noqa: E402

AT_ONCE = 4
MARKER = "marker-that-no-one-reads"
full = unittest.skipUnless(os.environ.get("HVDCTL_TEST_FULL"), "with HVDCTL_TEST_FULL only")

# Counts on an interface, until it is killed: packets, fragments, and those that contain a text.
CAPTURE = """
import signal, socket, sys
text = sys.argv[2].encode()
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)
packets.bind((sys.argv[1], 3))
packets.settimeout(0.2)
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
print("ready", flush=True)
seen = fragments = found = 0
while not ended:
    try:
        data = packets.recv(65536)
    except socket.timeout:
        continue
    if data[0] >> 4 == 4:
        seen += 1
        fragments += bool((data[6] << 8 | data[7]) & 0x3fff)
        found += text in data
print(seen, fragments, found)
"""


class Capture:
    """Packets, fragments and packets with a text on an interface of a namespace."""

    def __init__(self, namespace, interface, text=MARKER):
        arguments = ["ip", "netns", "exec", namespace, sys.executable, "-c", CAPTURE, interface, text]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, universal_newlines=True)
        assert self.process.stdout.readline() == "ready\n"

    def end(self):
        self.process.terminate()
        out = self.process.communicate(timeout=LIMIT)[0]
        return tuple(int(word) for word in out.split())


def interfaces(node):
    """The interfaces of encrypted networks in the namespace of a node."""
    listed = subprocess.check_output(["ip", "-n", node.namespace, "-o", "link"], universal_newlines=True)
    return {line.split()[1].split(":")[0] for line in listed.splitlines() if " hmesh" in line}


def tables(node):
    """The tables of nftables that guard encrypted networks in the namespace of a node."""
    listed = subprocess.check_output(
        ["ip", "netns", "exec", node.namespace, "nft", "list", "tables"], universal_newlines=True)
    return {line.split()[2] for line in listed.splitlines() if " hvdctl_" in line}


class Cases(unittest.TestCase):
    def networks(self, kinds, **options):
        made = Networks(kinds, **options)
        self.addCleanup(made.close)
        return made

    def sends(self, sender, receiver, size=4 << 20):
        self.assertEqual(transfer(sender, receiver, size)[0], size)

    # --- ways

    def test_two_public_nodes_reach_each_other_and_packets_are_unreadable(self):
        networks = self.networks("public,public")
        first, second = networks.nodes
        networks.wait_until(first, second, "direct")
        outside, inside = Capture(first.namespace, "wan0"), Capture(first.namespace, "hmesh")
        size = 4 << 20
        self.assertEqual(transfer(first, second, size, text=MARKER)[0], size)
        outside, inside = outside.end(), inside.end()
        self.assertGreater(inside[2], 100, "the marker is in the packets of the interface")
        self.assertGreater(outside[0], 100)
        self.assertEqual(outside[1:], (0, 0), "fragments, markers")
        state = first.state()
        self.assertEqual((state["kind"] in ("kernel", "userspace"), state["problem"]), (True, None))
        self.assertEqual(state["public_key"], first.key)
        self.assertEqual(first.peer(second)["mtu"], 1420)
        shown = first.run("wg", "show", "hmesh", "allowed-ips")[1]
        self.assertEqual(shown.split(), [second.key, second.address + "/32"])

    def test_a_node_behind_nat_reaches_a_public_one_and_one_with_a_forwarded_port(self):
        networks = self.networks("public,restricted,cone,symmetric")
        public, restricted, cone, symmetric = networks.nodes
        for first, second in ((public, restricted), (public, cone), (public, symmetric), (cone, restricted),
                              (cone, symmetric)):
            networks.wait_until(first, second, "direct")
        networks.wait_until(restricted, symmetric, "relayed")
        self.sends(restricted, public)
        self.sends(symmetric, restricted)

    def test_two_nodes_behind_restricted_nat_are_introduced_by_a_third(self):
        networks = self.networks("restricted,restricted,public")
        first, second, _ = networks.nodes
        networks.wait_until(first, second, "direct")
        self.sends(first, second)

    def test_two_nodes_behind_symmetric_nat_are_relayed_unreadably(self):
        networks = self.networks("symmetric,symmetric,public")
        first, second, third = networks.nodes
        networks.wait_until(first, second, "relayed")
        self.assertEqual((first.peer(second)["via"], second.peer(first)["via"]), (third.name, third.name))
        self.assertEqual(first.peer(second)["mtu"], 1360)
        relaying, outside = Capture(third.namespace, "hmesh"), Capture(third.namespace, "wan0")
        size = 2 << 20
        self.assertEqual(transfer(first, second, size, text=MARKER)[0], size)
        relaying, outside = relaying.end(), outside.end()
        self.assertGreater(relaying[0], 1000, "packets pass it")
        self.assertEqual(relaying[1:] + outside[1:], (0, 0, 0, 0), "fragments, markers")
        # the relay passes on what comes from WireGuard's port alone, which no other program of a node gets
        arriving = Capture(second.namespace, "hmesh")
        place = first.peer(second)["endpoint"].split(":")
        send = ("import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('%s', %d));"
                "[s.sendto(b'%s', ('%s', %s)) for _ in range(9)]")
        self.assertEqual(first.run(sys.executable, "-c", send % (first.address, 0, MARKER, *place)), (0, ""))
        code, said = first.run(sys.executable, "-c", send % (first.address, PORT, MARKER, *place))
        self.assertIn("Address already in use", said)
        time.sleep(1)
        self.assertEqual(arriving.end()[2], 0)

    def test_two_nodes_behind_one_router_use_their_local_addresses(self):
        networks = self.networks("restricted,same")
        first, second = networks.nodes
        networks.wait_until(first, second, "direct")
        self.assertEqual(first.peer(second)["endpoint"], "%s:%d" % (second.outside(), PORT))
        self.sends(first, second)

    def test_two_nodes_reach_each_other_by_ipv6_alone(self):
        networks = self.networks("public,public", start=False)
        internet = networks.prefix + "-net"
        subprocess.check_call(
            ["ip", "netns", "exec", internet, "sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"])
        for index, node in enumerate(networks.nodes):
            own, router = "2001:db8:%d::2" % index, "2001:db8:%d::1" % index
            for namespace, line in (
                (internet, "addr add %s/64 dev up%d nodad" % (router, index)),
                (node.namespace, "addr add %s/64 dev wan0 nodad" % own),
                (node.namespace, "-6 route add default via " + router),
                (node.namespace, "route del 198.51.100.0/24"),
            ):
                subprocess.check_call(["ip", "-n", namespace] + line.split())
            node.endpoints = ["[%s]:%d" % (own, PORT)]
        networks.write()
        for node in networks.nodes:
            node.start()
        first, second = networks.nodes
        networks.wait_until(first, second, "direct")
        self.assertEqual(first.peer(second)["endpoint"], second.endpoints[0])
        self.assertEqual(first.peer(second)["mtu"], 1420)
        self.sends(first, second)

    def test_a_node_without_udp_is_unreachable(self):
        networks = self.networks("blocked,public,public")
        blocked, first, second = networks.nodes
        networks.wait_until(first, second, "direct")
        wait_for(lambda: blocked.peer(first).get("sent"), "attempts of the blocked node")
        for other in (first, second):
            self.assertEqual((blocked.peer(other)["state"], other.peer(blocked)["state"]), ("unreachable",) * 2)
            self.assertIsNone(blocked.peer(other)["handshake"])

    # --- packets

    def bulk(self, kinds):
        networks = self.networks(kinds)
        first, second = networks.nodes
        networks.wait_until(first, second, "direct")
        small = [("direct", 1216)] * 2

        def found():
            return [(peer["state"], peer["mtu"]) for peer in (first.peer(second), second.peer(first))] == small
        wait_for(found, lambda: "an MTU of 1216: %s %s" % (first.state(), second.state()))
        captures = [Capture(first.namespace, "wan0"), Capture(networks.prefix + "-r1", "wan")]
        self.sends(first, second)
        self.sends(second, first)
        for capture in captures:
            packets, fragments, _ = capture.end()
            self.assertGreater(packets, 1000)
            self.assertEqual(fragments, 0)

    def test_a_line_for_small_packets_gets_no_fragments(self):
        self.bulk("public,mtu1280")

    def test_a_line_for_small_packets_is_found_where_routers_are_silent(self):
        self.bulk("public,mtu1280+silent")

    # --- changes

    def test_a_node_that_moves_is_found_again(self):
        networks = self.networks("public,restricted,restricted")
        public, second, third = networks.nodes
        for first, other in ((public, second), (public, third), (second, third)):
            networks.wait_until(first, other, "direct")
        seen = public.peer(second)["endpoint"]
        networks.move(second, "restricted")
        begun = time.monotonic()

        def moved():
            return all(peer["state"] == "direct" and peer["endpoint"] != seen and peer["round_trip_ms"] is not None
                       for peer in (public.peer(second), third.peer(second)))
        wait_for(moved, lambda: "%s\n%s" % (networks.states(), networks.logs()))
        print("found again after %.1f s" % (time.monotonic() - begun))
        self.sends(third, second)

    def test_a_removed_node_is_out_at_once_and_its_old_key_gets_nothing(self):
        networks = self.networks("public,public,public")
        first, second, third = networks.nodes
        for one, other in ((first, second), (first, third), (second, third)):
            networks.wait_until(one, other, "direct")
        networks.left_out.add(third.name)
        kept = [node for node in networks.nodes if node is not third]
        networks.write()
        for node in kept:
            wait_for(lambda: third.name not in node.state()["peers"], lambda: networks.states())
            self.assertNotIn(third.key, node.run("wg", "show", "hmesh", "peers")[1])
            self.assertNotIn(third.address + " ", node.run("ip", "-4", "route", "show", "dev", "hmesh")[1])
        # its agent goes on with the old key and the old list
        wait_for(lambda: third.peer(first)["state"] == "unreachable", lambda: networks.states())
        with self.assertRaises((AssertionError, subprocess.TimeoutExpired)):
            transfer(third, first, 1 << 16, limit=2)
        for line in third.run("wg", "show", "hmesh", "dump")[1].splitlines()[1:]:
            # the peer was made anew: no handshake, nothing received
            self.assertEqual((line.split("\t")[4], line.split("\t")[5]), ("0", "0"))
        self.assertEqual(first.peer(second)["state"], "direct")
        self.sends(first, second)

    def test_keys_are_rotated_and_others_go_on(self):
        networks = self.networks("public,restricted")
        first, second = networks.nodes
        networks.wait_until(first, second, "direct")
        old = [node.key for node in networks.nodes]
        for node in networks.nodes:
            node.key = node.agent("new-key")
            self.assertEqual(node.agent("new-key"), node.key, "a key that has been made stays")
        self.assertEqual([node.agent("key") for node in networks.nodes], old)
        # one node a moment after the other
        networks.write(only=[first])
        wait_for(lambda: first.state()["public_key"] == first.key, "the new key")
        networks.write(only=[second])
        wait_for(lambda: second.state()["public_key"] == second.key, "the new key")
        networks.wait_until(first, second, "direct")
        self.assertEqual(first.run("wg", "show", "hmesh", "peers")[1].split(), [second.key])
        self.assertEqual(sorted(os.listdir(first.path)), [
            "made.json", "network.json", "private.key", "run", "state.json"])
        self.assertEqual(os.stat(os.path.join(first.path, "private.key")).st_mode & 0o777, 0o600)
        self.sends(first, second)

    def test_an_agent_that_is_killed_starts_again_and_traffic_goes_on(self):
        networks = self.networks("public,public")
        first, second = networks.nodes
        networks.wait_until(first, second, "direct")

        def handshakes():
            return first.run("wg", "show", "hmesh", "latest-handshakes")[1]
        before = handshakes()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            sending = pool.submit(transfer, first, second, 1 << 40, 4)
            time.sleep(1)
            killed = mesh_networks.kill_agent(first)
            wait_for(lambda: first.state()["pid"] != killed, "an agent that was started again")
            self.assertGreater(sending.result()[0], 1 << 20)
        networks.wait_until(first, second, "direct")
        self.assertEqual(handshakes(), before, "the interface was taken over")
        first.stop()
        names = subprocess.check_output(["ip", "-n", first.namespace, "-o", "link"], universal_newlines=True)
        self.assertNotIn("hmesh", names)

    def test_an_interface_that_is_left_over_or_lost_is_replaced(self):
        networks = self.networks("public,public", start=False)
        first, second = networks.nodes
        subprocess.check_call(["ip", "-n", first.namespace, "link", "add", "hmesh", "type", "bridge"])
        for node in networks.nodes:
            node.start()
        networks.wait_until(first, second, "direct")
        first.run("ip", "link", "del", "hmesh")
        wait_for(lambda: not first.run("wg", "show", "hmesh")[0], "a new interface")
        networks.wait_until(first, second, "direct")
        self.sends(first, second)
        # as a manager of networks that does not know the interface
        first.run("ip", "addr", "flush", "dev", "hmesh")
        wait_for(lambda: first.address in first.run("ip", "addr", "show", "hmesh")[1], "its address again")
        networks.wait_until(first, second, "direct")
        self.sends(first, second)

    # --- two clusters

    def test_networks_of_two_clusters_on_the_same_nodes_do_not_touch_each_other(self):
        first = self.networks("public,public")
        second = self.networks("public,public", same_nodes=first)
        for networks in (first, second):
            networks.wait_until(networks.nodes[0], networks.nodes[1], "direct")
        for networks in (first, second):
            one, other = networks.nodes
            self.assertEqual(one.peer(other)["endpoint"], "%s:%d" % (other.outside(), networks.port))
            self.sends(one, other)
        # the address of one is no place at which others reach the other
        ask = "import sys; sys.path.insert(0, %r); import wireguard; print(wireguard.addresses())"
        ask %= mesh_networks.PROGRAMS
        self.assertNotRegex(first.nodes[0].run(sys.executable, "-c", ask)[1], r"10\.21[89]\.")
        # with an agent that knows nothing of the one before, on one of the nodes
        second.interface = "hmesh-other"
        agent = second.nodes[0].state()["pid"]
        os.kill(agent, signal.SIGSTOP)
        second.write()
        os.kill(agent, signal.SIGKILL)
        for node in second.nodes:
            wait_for(lambda: interfaces(node) == {"hmesh", "hmesh-other"}, lambda: interfaces(node))
            wait_for(lambda: node.address in node.run("ip", "addr", "show", "hmesh-other")[1], "its address")
        second.wait_until(second.nodes[0], second.nodes[1], "direct")
        self.sends(*second.nodes)
        for node in (*first.nodes, *second.nodes):
            self.assertEqual((tables(node), node.state()["exposed"]), ({"hvdctl_hmesh", "hvdctl_hmesh-other"}, None))
        for node in first.nodes:
            node.stop()
            self.assertEqual(interfaces(node), {"hmesh-other"})
        self.sends(*second.nodes)
        # what a killed container leaves is removed, and nothing of another cluster
        alive, killed = first.nodes[0], second.nodes[0]
        alive.start()
        wait_for(lambda: interfaces(alive) == {"hmesh", "hmesh-other"}, lambda: interfaces(alive))
        killed.process.kill()
        killed.process.wait()
        mesh_networks.kill_agent(killed)
        scripts = []
        for part in ("node/close.sh", "node/permissions.sh", "mesh/remove.sh"):
            with open(os.path.join(mesh_networks.PROGRAMS, "..", part)) as file:
                scripts.append(file.read())
        code, said = alive.run("bash", "-c", "directory=%s\n%s" % (killed.path, "".join(scripts)))
        self.assertEqual((code, interfaces(alive), tables(alive)), (0, {"hmesh"}, {"hvdctl_hmesh"}), said)
        self.assertIn("unreachable 10.219.0.0/16", alive.run("ip", "route")[1])
        self.assertNotIn("10.218.0.0/16", alive.run("ip", "route")[1])

    # --- problems

    def test_a_port_or_an_address_in_use_is_reported_and_tried_again(self):
        networks = self.networks("public,public", start=False)
        first, second = networks.nodes
        subprocess.check_call(["ip", "-n", second.namespace, "link", "add", "other", "type", "bridge"])
        subprocess.check_call(["ip", "-n", second.namespace, "addr", "add", second.address + "/24", "dev", "other"])
        hold = "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', %d))" % PORT
        hold += "; print('bound', flush=True); time.sleep(600)"
        holding = subprocess.Popen(
            ["ip", "netns", "exec", first.namespace, sys.executable, "-c", hold], stdout=subprocess.PIPE)
        self.addCleanup(holding.stdout.close)
        self.addCleanup(holding.wait)
        self.addCleanup(holding.kill)
        holding.stdout.readline()
        for node in networks.nodes:
            node.start()

        def problem(node):
            return (node.state().get("problem") or {}).get("kind")
        wait_for(lambda: problem(first) == "port_in_use", lambda: first.state())
        wait_for(lambda: problem(second) == "address_in_use", lambda: second.state())
        self.assertIn("other", second.state()["problem"]["text"])
        holding.kill()
        subprocess.check_call(["ip", "-n", second.namespace, "link", "del", "other"])
        networks.wait_until(first, second, "direct")
        self.assertEqual((problem(first), problem(second)), (None, None))

    def test_a_firewall_that_drops_what_comes_out_of_the_network_is_reported(self):
        networks = self.networks("public,public", start=False)
        first, second = networks.nodes
        firewall = ["ip", "netns", "exec", second.namespace, "iptables", "-w"]
        subprocess.check_call(firewall + ["-A", "INPUT", "-i", "hmesh", "-j", "DROP"])
        for node in networks.nodes:
            node.start()

        def recent(node, other, what):
            found = node.state()
            last = found["peers"].get(other.name, {}).get(what)
            return last is not None and found["time"] - last < 10

        def dropped():
            opened = recent(first, second, "handshake") and recent(second, first, "handshake")
            return opened and recent(second, first, "arrived") and recent(first, second, "heard")
        wait_for(dropped, lambda: "%s %s" % (first.state(), second.state()))
        self.assertIsNone(second.peer(first)["heard"])
        self.assertEqual((first.peer(second)["state"], second.peer(first)["state"]), ("unreachable",) * 2)
        # most firewalls let in what answers the node, as the agents' messages do, and only drop connections
        answers = ["-i", "hmesh", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"]
        subprocess.check_call(firewall + ["-I", "INPUT"] + answers)
        networks.wait_until(first, second, "direct")

        def tcp():
            return first.peer(second)["tcp"], second.peer(first)["tcp"]
        wait_for(lambda: tcp() == (False, True), lambda: "TCP %s" % (tcp(),))
        self.assertEqual((first.peer(second)["state"], second.peer(first)["state"]), ("direct",) * 2)
        subprocess.check_call(firewall + ["-F", "INPUT"])
        wait_for(lambda: tcp() == (True, True), lambda: "TCP %s" % (tcp(),))

    def test_messages_of_other_programs_are_dropped(self):
        networks = self.networks("public,public")
        first, second = networks.nodes
        networks.wait_until(first, second, "direct")
        ask = (
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.bind(('%s', 0));"
            "s.sendto(b'{\"hello\": 1}', ('%s', 931)); print(s.recv(100))" % (first.address, second.address))
        code, said = first.run(sys.executable, "-c", ask)
        self.assertEqual(code, 1, said)
        self.assertRegex(said, "timed? ?out")
        # nor does anything listen outside the network
        code, said = first.run(sys.executable, "-c", ask.replace(first.address, first.outside()).replace(
            second.address, second.outside()))
        self.assertEqual(code, 1, said)

    # --- strangers

    def neighbour(self, networks, node):
        """Connects a node to a machine of another network, which is also its way to all other places."""
        stranger = networks.prefix + "-net"
        subprocess.run(
            ["ip", "-batch", "-"], check=True, universal_newlines=True,
            input="link add lan0 netns {0} type veth peer name near netns {1}\n".format(node.namespace, stranger))
        for namespace, lines in (
            (stranger, "addr add 203.0.113.1/24 dev near\nlink set near up\nroute add {} via 203.0.113.2\n"),
            (node.namespace, "addr add 203.0.113.2/24 dev lan0\nlink set lan0 up\nroute add default via 203.0.113.1\n"),
        ):
            subprocess.run(
                ["ip", "-n", namespace, "-batch", "-"], check=True, universal_newlines=True,
                input=lines.format(node.address))
        return stranger

    def test_a_neighbour_of_a_node_does_not_reach_the_network(self):
        networks = self.networks("public,public")
        first, second = networks.nodes
        networks.wait_until(first, second, "direct")
        stranger = self.neighbour(networks, first)
        serve = ("import http.server; http.server.HTTPServer(('%s', 9001), http.server.BaseHTTPRequestHandler)"
                 ".serve_forever()")
        for node, address in ((first, first.address), (first, "203.0.113.2"), (second, second.address)):
            server = subprocess.Popen(node.arguments(sys.executable, "-c", serve % address))
            self.addCleanup(server.wait)
            self.addCleanup(server.kill)

        def connects(before, address):
            connect = "import socket; socket.create_connection(('%s', 9001), 1)" % address
            return not subprocess.call(before + [sys.executable, "-c", connect], stderr=subprocess.DEVNULL)
        outside = ["ip", "netns", "exec", stranger]
        wait_for(lambda: connects(outside, "203.0.113.2"), "the neighbour reaches the node")
        wait_for(lambda: connects(second.arguments(), first.address), "the other node does")
        self.assertTrue(connects(first.arguments(), first.address), "so does the node itself")
        self.assertFalse(connects(outside, first.address))
        # a node that passes packets on, as all nodes with containers do
        subprocess.check_call(["ip", "-n", stranger, "route", "add", second.address, "via", "203.0.113.2"])
        first.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        first.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "hmesh", "-j", "MASQUERADE")
        self.assertTrue(connects(first.arguments(), second.address))
        self.assertFalse(connects(outside, second.address))
        # as a firewall that starts again
        first.run("ip", "route", "del", "unreachable", "10.219.0.0/16")
        first.run("nft", "flush", "ruleset")
        wait_for(lambda: not first.run("nft", "list", "table", "ip", "hvdctl_hmesh")[0], "the rule is made again")
        self.assertFalse(connects(outside, first.address))
        self.assertIn("unreachable 10.219.0.0/16", first.run("ip", "route")[1])
        self.assertIsNone(first.state()["exposed"])

    def test_packets_do_not_leave_unencrypted_while_there_is_no_interface(self):
        networks = self.networks("public,public")
        first, second = networks.nodes
        networks.wait_until(first, second, "direct")
        self.neighbour(networks, first)
        capture = Capture(first.namespace, "lan0")
        send = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'%s', ('%s', 9))"
        os.kill(first.state()["pid"], signal.SIGSTOP)
        self.addCleanup(os.kill, first.state()["pid"], signal.SIGCONT)
        first.run("ip", "link", "del", "hmesh")
        code, said = first.run(sys.executable, "-c", send % (MARKER, second.address))
        self.assertEqual(code, 1, said)
        self.assertIn("No route to host", said)
        self.assertEqual(first.run(sys.executable, "-c", send % ("others", "203.0.113.1")), (0, ""))
        packets, _, markers = capture.end()
        self.assertEqual((packets > 0, markers), (True, 0))

    @full
    def test_eight_nodes_behind_four_routers(self):
        networks = self.networks("restricted,same,cone,same,symmetric,same,restricted,same")
        begun = time.monotonic()

        def connected():
            states = [peer["state"] for node in networks.nodes for peer in node.state()["peers"].values()]
            return len(states) == 56 and "unreachable" not in states
        wait_for(connected, lambda: networks.states())
        print("eight nodes connected after %.1f s" % (time.monotonic() - begun))

    @full
    def test_a_relaying_node_that_dies_is_replaced_by_another(self):
        networks = self.networks("symmetric,symmetric,public,public")
        first, second, third, fourth = networks.nodes
        networks.wait_until(first, second, "relayed")
        relaying = next(node for node in (third, fourth) if node.name == first.peer(second)["via"])
        other = fourth if relaying is third else third
        relaying.stop()
        wait_for(lambda: first.peer(second)["via"] == second.peer(first)["via"] == other.name, networks.states)
        self.sends(first, second)

    @full
    def test_a_relayed_pair_finds_a_direct_way_when_one_of_it_moves(self):
        networks = self.networks("symmetric,symmetric,public")
        first, second, _ = networks.nodes
        networks.wait_until(first, second, "relayed")
        networks.move(first, "public")
        networks.wait_until(first, second, "direct")
        self.sends(first, second)


class AtOnce(unittest.TestSuite):
    """Runs tests in threads, and adds up their results."""

    def run(self, result, debug=False):
        tests = [test for suite in self for test in suite]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            found = [(test, pool.submit(self.one, test)) for test in tests]
            for test, ended in found:
                own, took = ended.result()
                print("%6.1f s  %s" % (took, test.id().split(".")[-1]))
                result.testsRun += own.testsRun
                for kind in ("failures", "errors", "skipped"):
                    getattr(result, kind).extend(getattr(own, kind))
        return result

    @staticmethod
    def one(test):
        own, begun = unittest.TestResult(), time.monotonic()
        test.run(own)
        return own, time.monotonic() - begun


def load_tests(loader, tests, pattern):
    return AtOnce(tests)


if __name__ == "__main__":
    reason = mesh_networks.missing()
    if reason:
        print("skipped: %s" % reason, file=sys.stderr)
        sys.exit(0)
    unittest.main()
