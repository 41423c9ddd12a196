"""Unit tests of what the agents of the encrypted network decide (src/scripts/mesh). tests/node_programs.rs runs them
with every interpreter that it finds."""
import ast
import glob
import ipaddress
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
MESH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "scripts", "mesh")
sys.path.insert(0, MESH)
import collect  # noqa: E402
import endpoints  # noqa: E402
import messages  # noqa: E402
import mtu  # noqa: E402
import peers  # noqa: E402

RANGE = ipaddress.ip_network("10.219.0.0/16")


def node(index, endpoint=(), local=(), key=None):
    return {"name": "node%d" % index, "address": "10.219.0.%d" % index, "public_key": key or "key%d" % index,
            "endpoints": list(endpoint), "local": list(local)}


def network(*nodes, own=1, size=None):
    return {"cluster": "lab", "node": "node%d" % own, "port": 51821, "range": "10.219.0.0/16", "mtu": size,
            "address": "10.219.0.%d" % own, "nodes": [node(own)] + list(nodes)}


class Mesh:
    """One node's table, whose interface and peers are simulated. `ways` are the endpoints that lead to a peer."""

    def __init__(self, *nodes, own=1, addresses=("203.0.113.1/24",), size=None):
        self.table = peers.Peers()
        self.now = 100.0
        self.table.own = list(addresses)
        self.table.apply(network(*nodes, own=own, size=size), self.now)
        self.ways = {}
        self.endpoint = {}
        self.handshakes = {}
        self.seen = {}
        self.log = []
        self.largest = {}
        self.traffic = {}

    def peer(self, index):
        return self.table.peers["node%d" % index]

    def reach(self, index, *found):
        self.ways["node%d" % index] = found

    def look(self):
        self.table.looked({
            peer.key: {"endpoint": self.endpoint.get(name), "handshake": self.handshakes.get(name),
                       "received": self.traffic.get(name, 0), "sent": 0}
            for name, peer in self.table.peers.items()
        }, self.now)

    def step(self, seconds=0.05):
        self.now += seconds
        for action in self.table.due(self.now):
            name = action[1].name
            self.log.append((round(self.now - 100, 2), action[0], name) + tuple(action[2:]))
            if action[0] in ("try", "move"):
                self.endpoint[name] = action[2]
                if action[0] == "try":
                    self.handshakes[name] = None
            if action[0] in ("hello", "punch", "probe"):
                size = action[2] if action[0] == "probe" else 0
                sent = json.loads(self.table.hello(action[1], self.now, size, action[0] == "punch").decode())
                if self.endpoint.get(name) not in self.ways.get(name, ()) or size > self.largest.get(name, 9000):
                    continue
                self.handshakes[name] = self.now
                seen = {other: self.seen[name, other] for other in sent.get("seek", ()) if (name, other) in self.seen}
                reply = messages.read(messages.reply(sent["hello"], None, seen))
                self.table.received(action[1], reply, self.now + 0.001)
                self.look()

    def run(self, seconds, step=0.05):
        until = self.now + seconds
        while self.now < until:
            self.step(step)

    def tried(self, index):
        return [one[3] for one in self.log if one[1] in ("try", "move") and one[2] == "node%d" % index]


class Endpoints(unittest.TestCase):
    def test_are_tried_in_the_order_of_their_likelihood(self):
        found = endpoints.candidates(
            "192.0.2.9:7", ["203.0.113.2:51821"], ["198.51.100.7:4000", "10.1.1.1:51821", "192.0.2.9:7"],
            ["192.168.9.5", "192.168.1.5"], ["192.168.1.4/24"], 51821, RANGE)
        self.assertEqual(found, [
            "192.0.2.9:7", "192.168.1.5:51821", "203.0.113.2:51821", "198.51.100.7:4000", "10.1.1.1:51821",
            "192.168.9.5:51821"])

    def test_that_lead_back_or_into_the_network_itself_are_left_out(self):
        found = endpoints.candidates(
            "10.219.0.3:20001", ["192.168.1.4:51821"], ["[2001:db8::1]:5"], ["172.17.0.1", "127.0.0.1", "fe80::1"],
            ["192.168.1.4/24", "172.17.0.1/16"], 51821, RANGE)
        self.assertEqual(found, [])

    def test_of_ipv6_are_tried_by_nodes_that_have_it(self):
        found = endpoints.candidates(None, ["[2001:db8::1]:5"], [], [], ["2001:db8:1::4/64"], 51821, RANGE)
        self.assertEqual(found, ["[2001:db8::1]:5"])

    def test_texts_that_are_none(self):
        for text in ("", "host", "host:", ":5", "1.2.3.4:0", "1.2.3.4:65536", "1:2:3:5", "1.2.3.4:\u0661", None, 5, [],
                     "a:" + "1" * 400):
            self.assertIsNone(endpoints.split(text), text)
        for text in ("127.0.0.1:5", "0.0.0.0:5", "224.0.0.1:5", "name:5", "[fe80::1]:5", "169.254.1.1:5",
                     "[2001:db8::1%5]:5", "[::ffff:10.0.0.1]:5", "255.255.255.255:5"):
            self.assertIsNone(endpoints.valid(text), text)
        self.assertEqual(endpoints.split("[2001:db8::1]:51821"), ("2001:db8::1", 51821))


class Messages(unittest.TestCase):
    def test_forged_ones_are_dropped_or_lose_what_is_forged(self):
        for data in (b"", b"{", b"[1]", b"\xff", b'{"hello": true}', b'{"hello": "1"}', b'{"hello": 1, "reply": 1}',
                     b'{"hello": -1}', b'{"hello": 1}' + b" " * 9000, b"[" * 5000, b'{"hello": NaN}', b"null"):
            self.assertIsNone(messages.read(data), data[:40])
        forged = {
            "reply": 1, "via": 5, "local": ["10.0.0.1", "127.0.0.1", "evil", 5, "1.2.3.4; rm"],
            "seek": [1, "node2", []], "punch": 1, "public_key": "x", "seen": {
                "node2": ["127.0.0.1:5", 1420, 1, None], "node3": ["1.2.3.4:5", 99999, 1, None],
                "node4": ["1.2.3.4:5", 1420, 1, 22], "node5": ["1.2.3.4:5", 1420, 1, 20005], "node6": "x",
            },
        }
        self.assertEqual(messages.read(json.dumps(forged).encode()), {
            "reply": 1, "via": None, "local": ["10.0.0.1"], "seek": ["node2"],
            "seen": {"node5": ("1.2.3.4:5", 1420, 1, 20005)}})

    def test_fit_into_the_smallest_packet_that_carries_ipv6(self):
        long = ["node%d-with-a-long-name.example" % index for index in range(40)]
        local = ["2001:db8:1234:5678:9abc:def0:1234:5678"] * 20
        self.assertLess(len(messages.hello(2 ** 40, local, long, long[0])), 1180)
        seen = {name: ["[2001:db8::1234:5678]:51821", 1420, 123.45, 20005] for name in long[:messages.SOUGHT]}
        self.assertLess(len(messages.reply(2 ** 40, long[0], seen)), 1180)

    def test_a_padded_hello_fills_a_packet(self):
        self.assertEqual(len(messages.hello(7, [], size=1420)), 1392)
        self.assertEqual(messages.read(messages.hello(7, [], size=1420)), {"hello": 7})


class Mtu(unittest.TestCase):
    def test_of_a_way_leaves_room_for_the_headers_and_for_what_wireguard_fills_up(self):
        self.assertEqual([mtu.within(size) for size in (1500, 1480, 1479, 1280, 300)], [1420, 1420, 1408, 1216, 576])
        self.assertEqual(mtu.within(1500, 6), 1420)
        self.assertEqual(mtu.within(1280, 6), 1200)

    def settle(self, largest, ceiling=1420):
        path, now, sent = mtu.PathMtu(ceiling, 0), 0, []
        while now < 30:
            now += 0.1
            size = path.probe(now, now - 0.05, 1)
            if size:
                sent.append(size)
                if size <= largest:
                    path.answered(size, now)
        return path.value, sent

    def test_is_lowered_until_packets_are_answered_where_routers_say_nothing(self):
        self.assertEqual(self.settle(1420), (1420, [1420]))
        self.assertEqual(self.settle(1300)[0], 1280)
        self.assertEqual(self.settle(1220), (1216, [1420] * 3 + [1376] * 3 + [1344] * 3 + [1280] * 3 + [1216]))
        self.assertEqual(self.settle(9000, ceiling=1216), (1216, [1216]))

    def test_stays_while_small_packets_are_lost_as_well(self):
        path = mtu.PathMtu(1420, 0)
        for step in range(100):
            path.probe(step, -1, 1)
        self.assertEqual(path.value, 1420)

    def test_is_raised_when_the_way_allows_it_again(self):
        path = mtu.PathMtu(1216, 0)
        path.probe(0, 0, 1)
        path.answered(1216, 0)
        path.limit(1420, 1)
        self.assertEqual((path.value, path.probe(2, 2, 1)), (1216, 1420))
        path.answered(1420, 2)
        self.assertEqual((path.value, path.probe(3, 3, 1)), (1420, None))

    def test_that_is_configured_is_neither_measured_nor_tested(self):
        path = mtu.PathMtu(8920, 0, fixed=True)
        path.limit(1420, 1)
        self.assertEqual((path.value, path.probe(2, 2, 1)), (8920, None))


class Search(unittest.TestCase):
    def test_two_public_nodes_are_connected_at_once(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]))
        mesh.reach(2, "203.0.113.2:51821")
        mesh.run(0.2)
        self.assertEqual(mesh.peer(2).state, "direct")
        self.assertEqual(mesh.tried(2), ["203.0.113.2:51821"])
        mesh.run(60)
        self.assertEqual(mesh.tried(2), ["203.0.113.2:51821"], "a peer that answers is left alone")
        self.assertLess(len([one for one in mesh.log if one[1] == "hello"]), 40)

    def test_each_candidate_gets_its_turn(self):
        mesh = Mesh(node(2, ["192.0.2.2:51821", "name.example:7"], ["10.5.0.2", "203.0.113.9"]))
        mesh.table.resolved = {"name.example": ["192.0.2.3"]}
        self.assertEqual(mesh.table.names(), {"name.example"})
        mesh.run(8)
        every = ["203.0.113.9:51821", "192.0.2.2:51821", "192.0.2.3:7", "10.5.0.2:51821"]
        self.assertEqual(mesh.tried(2)[:8], every * 2)

    def test_what_another_node_sees_is_tried_next(self):
        mesh = Mesh(node(2, [], ["10.5.0.2"]), node(3, ["203.0.113.3:51821"]))
        mesh.reach(3, "203.0.113.3:51821")
        mesh.seen["node3", "node2"] = ["198.51.100.2:4000", 1420, 5, 20002]
        mesh.reach(2, "198.51.100.2:4000")
        mesh.run(4)
        self.assertEqual(mesh.tried(2), ["10.5.0.2:51821", "198.51.100.2:4000"])
        self.assertEqual(mesh.peer(2).state, "direct")

    def test_a_handshake_that_has_just_arrived_is_not_disturbed(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]))
        mesh.step()
        mesh.now += 0.9
        mesh.handshakes["node2"] = mesh.now
        mesh.look()
        mesh.run(1)
        self.assertEqual(len(mesh.tried(2)), 1)
        mesh.run(2)
        self.assertGreater(len(mesh.tried(2)), 1, "it goes on if no answer follows")

    def test_two_nodes_do_not_try_at_the_same_times(self):
        lower = Mesh(node(2, ["203.0.113.2:51821"]))
        higher = Mesh(node(1, ["203.0.113.1:51821"]), own=2, addresses=("203.0.113.2/24",))
        lower.run(10)
        higher.run(10)
        times = [{one[0] for one in mesh.log if one[1] == "try"} for mesh in (lower, higher)]
        self.assertLess(len(times[0] & times[1]), 4)

    def test_a_peer_that_is_away_for_long_is_tried_less_often(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]))
        mesh.run(60)
        before = len(mesh.tried(2))
        self.assertFalse(mesh.table.is_settled(mesh.now - 1))
        mesh.run(60)
        self.assertTrue(mesh.table.is_settled(mesh.now), "the interface is looked at less often as well")
        self.assertLess(len(mesh.tried(2)) - before, 15)

    def test_a_dead_peer_is_noticed_and_tried_from_where_it_was(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"], ["203.0.113.9"]))
        mesh.reach(2, "203.0.113.2:51821")
        mesh.run(3)
        mesh.reach(2)
        mesh.run(8)
        self.assertEqual(mesh.peer(2).state, "unreachable")
        self.assertEqual(mesh.tried(2)[2:4], ["203.0.113.2:51821", "203.0.113.9:51821"])
        mesh.reach(2, "203.0.113.9:51821")
        mesh.run(4)
        self.assertEqual((mesh.peer(2).state, mesh.peer(2).endpoint), ("direct", "203.0.113.9:51821"))

    def test_a_peer_whose_agent_is_silent_keeps_its_way_while_there_is_traffic(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]))
        mesh.reach(2, "203.0.113.2:51821")
        mesh.run(3)
        mesh.reach(2)
        for second in range(20):
            mesh.traffic["node2"] = 1000 * (second + 1)
            mesh.look()
            mesh.run(1)
        self.assertEqual((mesh.peer(2).state, len(mesh.tried(2))), ("direct", 1))
        mesh.run(8)
        self.assertEqual(mesh.peer(2).state, "unreachable")

    def test_a_peer_that_is_lost_is_tried_first_where_others_see_it(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]), node(3, ["203.0.113.3:51821"]))
        mesh.reach(2, "203.0.113.2:51821")
        mesh.reach(3, "203.0.113.3:51821")
        mesh.seen["node3", "node2"] = ["203.0.113.2:51821", 1420, 1, 20002]
        mesh.run(10)
        del mesh.log[:]
        mesh.reach(2)
        mesh.seen["node3", "node2"] = ["198.51.100.2:4000", 1420, 1, 20002]
        mesh.run(2.5)
        self.assertEqual(mesh.tried(2), [], "it may only be slow")
        mesh.run(4)
        self.assertEqual(mesh.tried(2)[0], "198.51.100.2:4000")

    def test_a_node_that_has_moved_says_so_at_once_and_soon_looks_for_those_who_do_not_answer(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]), node(3, ["203.0.113.3:51821"]))
        mesh.reach(2, "203.0.113.2:51821")
        mesh.reach(3, "203.0.113.3:51821")
        mesh.run(4.5)
        del mesh.log[:]
        mesh.reach(3)
        mesh.table.moved(["198.51.100.1/24"], mesh.now)
        mesh.step()
        # WireGuard forgets its old address with the endpoint
        for name in ("node2", "node3"):
            done = [one[1] for one in mesh.log if one[2] == name]
            self.assertEqual(done, ["move", "hello"])
        mesh.run(2.5)
        self.assertEqual((mesh.peer(2).state, mesh.peer(3).state), ("direct", "unreachable"))
        self.assertEqual([one[1] for one in mesh.log if one[1:3] == ("try", "node2")], [])

    def test_a_peer_that_has_moved_is_followed(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]))
        mesh.reach(2, "203.0.113.2:51821", "203.0.113.7:51821")
        mesh.run(3)
        mesh.endpoint["node2"] = "203.0.113.7:51821"
        mesh.look()
        self.assertEqual((mesh.peer(2).state, mesh.peer(2).endpoint), ("direct", "203.0.113.7:51821"))
        self.assertEqual(len(mesh.tried(2)), 1)
        mesh.reach(2, "203.0.113.7:51821")
        mesh.run(5)
        self.assertEqual((mesh.peer(2).state, len(mesh.tried(2))), ("direct", 1))


class Tcp(unittest.TestCase):
    def mesh(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]))
        mesh.reach(2, "203.0.113.2:51821")
        return mesh

    def connections(self, mesh, succeed, seconds):
        """Lets connections that are due succeed at once or fail after 3 s, for so long. Returns their number."""
        made, pending, until = 0, [], mesh.now + seconds
        while mesh.now < until:
            del mesh.log[:]
            mesh.step()
            begun = [mesh.now for one in mesh.log if one[1] == "connect"]
            made, pending = made + len(begun), pending + begun
            while pending and (succeed or mesh.now - pending[0] > 3):
                mesh.table.connected(mesh.peer(2), succeed, pending.pop(0), mesh.now)
        return made

    def test_is_tried_when_a_peer_is_reached_and_once_a_minute(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]))
        self.assertEqual(self.connections(mesh, True, 5), 0)
        mesh.reach(2, "203.0.113.2:51821")
        self.assertEqual(self.connections(mesh, True, 10), 1)
        self.assertEqual(mesh.peer(2).tcp, True)
        self.assertEqual(self.connections(mesh, True, 60), 1)
        mesh.reach(2)
        self.connections(mesh, True, 10)
        self.assertEqual((mesh.peer(2).state, mesh.peer(2).tcp), ("unreachable", None))

    def test_that_fails_again_after_an_answer_is_dropped_on_the_way(self):
        mesh = self.mesh()
        self.assertEqual(self.connections(mesh, False, 8), 2)
        self.assertEqual((mesh.peer(2).state, mesh.peer(2).tcp), ("direct", False))
        self.connections(mesh, True, 6)
        self.assertEqual(mesh.peer(2).tcp, True, "it is tried again")

    def test_that_fails_while_an_agent_starts_again_says_nothing(self):
        mesh = self.mesh()
        mesh.run(1)
        mesh.reach(2)
        mesh.table.connected(mesh.peer(2), False, mesh.now - 0.01, mesh.now)
        made = self.connections(mesh, False, 2)
        self.assertEqual((made, mesh.peer(2).tcp), (0, None))
        mesh.reach(2, "203.0.113.2:51821")
        self.connections(mesh, True, 2)
        self.assertEqual(mesh.peer(2).tcp, True)


class Relays(unittest.TestCase):
    def relayed(self):
        mesh = Mesh(node(2, ["192.0.2.2:51821"]), node(3, ["203.0.113.3:51821"]), node(4, ["203.0.113.4:51821"]))
        for index, round_trip in ((3, 9), (4, 5)):
            mesh.reach(index, "203.0.113.%d:51821" % index)
            mesh.seen["node%d" % index, "node2"] = ["198.51.100.2:4000", 1344, round_trip, 20002]
        mesh.reach(2, "10.219.0.4:20002", "10.219.0.3:20002")
        mesh.run(8)
        return mesh

    def test_the_nearest_node_that_both_reach_relays(self):
        mesh = self.relayed()
        self.assertEqual((mesh.peer(2).state, mesh.peer(2).via), ("relayed", "node4"))
        self.assertEqual(mesh.peer(2).path.value, 1280)
        begun = next(one[0] for one in mesh.log if one[1:3] == ("try", "node2") and one[3].startswith("10.219."))
        self.assertGreaterEqual(begun, 5, "a direct way is looked for first")

    def test_another_one_takes_over_at_once(self):
        mesh = self.relayed()
        mesh.reach(4)
        mesh.reach(2, "10.219.0.3:20002")
        mesh.run(9)
        self.assertEqual((mesh.peer(2).state, mesh.peer(2).via), ("relayed", "node3"))

    def test_a_node_that_no_longer_reaches_the_peer_does_not_relay(self):
        mesh = self.relayed()
        mesh.reach(2, "10.219.0.3:20002")
        del mesh.seen["node4", "node2"]
        del mesh.log[:]
        mesh.run(7)
        self.assertEqual((mesh.peer(2).state, mesh.peer(2).via), ("relayed", "node3"))
        self.assertEqual(mesh.tried(2)[0], "10.219.0.3:20002")

    def test_a_relaying_node_that_is_removed_leaves_no_way(self):
        mesh = self.relayed()
        mesh.table.apply(network(node(2, ["192.0.2.2:51821"]), node(3, ["203.0.113.3:51821"])), mesh.now)
        mesh.reach(2)
        mesh.step()
        self.assertEqual(mesh.peer(2).state, "unreachable")

    def test_a_new_candidate_is_tried_for_a_second_only(self):
        mesh = self.relayed()
        del mesh.log[:]
        mesh.run(10)
        self.assertEqual(mesh.tried(2), [], "what has failed is not tried again soon")
        mesh.seen["node4", "node2"] = ["198.51.100.2:5000", 1344, 5, 20002]
        mesh.run(5)
        moves = [one for one in mesh.log if one[1] in ("move", "try") and one[2] == "node2"]
        self.assertEqual({one[3] for one in moves[:-1]}, {"198.51.100.2:5000"})
        self.assertEqual((moves[-1][1], moves[-1][3]), ("move", "10.219.0.4:20002"))
        self.assertLess(moves[-1][0] - moves[0][0], 1.2)
        self.assertEqual(mesh.peer(2).state, "relayed")

    def test_what_has_failed_is_tried_again_less_and_less_often(self):
        mesh = self.relayed()
        del mesh.log[:]
        mesh.run(450, 0.2)
        tries = [one[0] for one in mesh.log if one[1:3] == ("punch", "node2")]
        self.assertEqual(len(tries), 6, "three times, two endpoints each")
        rounds = tries[::2]
        pauses = [later - sooner for sooner, later in zip(rounds, rounds[1:])]
        self.assertTrue(50 < pauses[0] < 70 and 290 < pauses[1] < 310, pauses)
        self.assertEqual(mesh.peer(2).state, "relayed")
        # a node that was busy when it was tried
        mesh.reach(2, "192.0.2.2:51821", "10.219.0.4:20002")
        mesh.table.peers["node2"].next_round = mesh.now
        mesh.run(5)
        self.assertEqual(mesh.peer(2).state, "direct")

    def test_a_new_candidate_that_works_is_kept(self):
        mesh = self.relayed()
        mesh.reach(2, "10.219.0.4:20002", "198.51.100.2:5000")
        mesh.seen["node4", "node2"] = ["198.51.100.2:5000", 1344, 5, 20002]
        mesh.run(5)
        self.assertEqual((mesh.peer(2).state, mesh.peer(2).endpoint), ("direct", "198.51.100.2:5000"))
        self.assertIn("punch", [one[1] for one in mesh.log], "the peer is asked to try as well")

    def test_a_peer_that_asks_for_it_is_tried_again(self):
        mesh = self.relayed()
        del mesh.log[:]
        for _ in range(3):
            mesh.table.received(mesh.peer(2), {"hello": 1, "punch": True}, mesh.now)
            mesh.run(3)
        self.assertEqual(set(mesh.tried(2)), {"192.0.2.2:51821", "198.51.100.2:4000", "10.219.0.4:20002"})
        mesh.run(9)
        self.assertEqual(mesh.tried(2).count("10.219.0.4:20002"), 2, "once for each candidate")


class Image(unittest.TestCase):
    def test_has_each_module_that_the_agent_imports(self):
        programs = glob.glob(os.path.join(MESH, "*.py"))
        own = {os.path.basename(path)[:-len(".py")] for path in programs}
        imported = set()
        for path in programs:
            with open(path) as file:
                found = [one for one in ast.walk(ast.parse(file.read())) if isinstance(one, ast.Import)]
            if not path.endswith("collect.py"):
                imported.update(name.name for one in found for name in one.names)
        self.assertIn("socket", imported)
        self.assertEqual(imported - own - set(collect.MODULES), set())

    def test_is_a_small_part_of_a_system_that_works_by_itself(self):
        programs = ("sh", "sleep")
        with tempfile.TemporaryDirectory() as root:
            copy = collect.Copy(root)
            copy.python()
            for name in programs:
                copy.program(shutil.which(name))
            inside = os.path.join(root, "usr/local/bin/python3")
            self.assertEqual(os.readlink(inside), os.path.realpath(sys.executable))
            self.assertLess(sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(root)
                                for name in names if not os.path.islink(os.path.join(place, name))), 80 << 20)
            if os.geteuid() == 0:
                code = "import %s; 'b\\u00fc'.encode('idna'); print(socket.getaddrinfo('127.0.0.1', 7)[0][4])"
                code %= ", ".join(collect.MODULES)
                done = subprocess.run(
                    ["chroot", root, "/usr/local/bin/python3", "-B", "-c", code], stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, universal_newlines=True)
                self.assertEqual((done.stdout, done.stderr), ("('127.0.0.1', 7)\n", ""))


class Trust(unittest.TestCase):
    def test_nothing_received_changes_keys_or_peers(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]))
        mesh.reach(2, "203.0.113.2:51821")
        mesh.run(2)
        before = mesh.peer(2).key, mesh.peer(2).address, sorted(mesh.table.peers)
        seen = {name: ("1.2.3.4:5", 1420, 1, 20002) for name in ("node1", "node2", "node9")}
        mesh.table.received(mesh.peer(2), {"reply": mesh.table.number, "seen": seen}, mesh.now)
        mesh.table.received(mesh.peer(2), {"reply": 10 ** 6}, mesh.now)
        mesh.run(1)
        self.assertEqual((mesh.peer(2).key, mesh.peer(2).address, sorted(mesh.table.peers)), before)
        self.assertEqual(set(mesh.tried(2)), {"203.0.113.2:51821"})

    def test_a_reply_to_no_hello_proves_nothing(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]))
        mesh.step()
        mesh.table.received(mesh.peer(2), {"reply": 10 ** 6}, mesh.now)
        mesh.look()
        self.assertEqual(mesh.peer(2).state, "unreachable")

    def test_a_node_says_only_what_it_reaches_directly(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]), node(3, ["203.0.113.3:51821"]), node(4, ["203.0.113.4:51821"]))
        mesh.reach(2, "203.0.113.2:51821")
        mesh.reach(3, "203.0.113.3:51821")
        mesh.run(2)
        asks = {"hello": 5, "seek": ["node3", "node4", "node2", "node1"]}
        reply, _ = mesh.table.received(mesh.peer(2), asks, mesh.now)
        self.assertEqual(list(messages.read(reply)["seen"]), ["node3"])


class Network(unittest.TestCase):
    def test_a_removed_peer_is_out_and_others_are_not_touched(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]), node(3, ["203.0.113.3:51821"]))
        mesh.reach(2, "203.0.113.2:51821")
        mesh.run(2)
        kept = mesh.peer(2)
        changes = mesh.table.apply(network(node(2, ["203.0.113.2:51821"])), mesh.now)
        self.assertIn(("key3", "10.219.0.3", None, "remove"), changes)
        self.assertEqual([one for one in changes if one[0] == "key2"], [("key2", "10.219.0.2", None, "add")])
        self.assertIs(mesh.peer(2), kept)
        self.assertIsNone(mesh.table.by_address("10.219.0.3"))

    def test_a_new_key_is_looked_for_where_the_old_one_was(self):
        mesh = Mesh(node(2, [], ["10.5.0.2"]))
        mesh.reach(2, "10.5.0.2:51821")
        mesh.run(2)
        changes = mesh.table.apply(network(node(2, key="new")), mesh.now)
        self.assertEqual([one[0::3] for one in changes], [("key2", "remove"), ("new", "add")])
        del mesh.log[:]
        mesh.run(1)
        self.assertEqual(mesh.tried(2), ["10.5.0.2:51821"])
        self.assertEqual(mesh.peer(2).state, "direct")

    def test_a_peer_whose_key_is_unknown_is_left_out(self):
        mesh = Mesh(dict(node(2), public_key=None))
        self.assertEqual(mesh.table.peers, {})

    def test_many_peers_that_are_looked_for_are_asked_for_in_turn(self):
        mesh = Mesh(*[node(index, ["203.0.113.%d:51821" % index]) for index in range(2, 42)])
        mesh.reach(2, "203.0.113.2:51821")
        asked = set()
        for _ in range(40):
            mesh.run(0.5)
            asked |= set(json.loads(mesh.table.hello(mesh.peer(2), mesh.now).decode()).get("seek", ()))
        self.assertEqual(len(asked), 39)

    def test_an_mtu_that_is_configured_is_that_of_each_peer(self):
        mesh = Mesh(node(2, ["203.0.113.2:51821"]), size=1300)
        mesh.reach(2, "203.0.113.2:51821")
        mesh.run(2)
        self.assertEqual([one[3] for one in mesh.log if one[1] == "route"], [1300])
        self.assertNotIn("probe", [one[1] for one in mesh.log])


if __name__ == "__main__":
    unittest.main()
