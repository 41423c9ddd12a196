"""Unit tests of the node programs in src/scripts: what they decide, without other nodes. tests/node_programs.rs runs
them with every interpreter that it finds."""
import errno
import fcntl
import io
import ipaddress
import itertools
import json
import mmap
import os
import pwd
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import threading
import time
import unittest
from random import Random
from unittest import mock

sys.dont_write_bytecode = True
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SCRIPTS = os.path.join(TESTS, "..", "src", "scripts")
# the programs take their own directory for that of a job
JOB = tempfile.mkdtemp()
for directory, _, names in os.walk(os.path.join(SCRIPTS, "programs")):
    for script in names:
        shutil.copy(os.path.join(directory, script), JOB)
with open(os.path.join(JOB, "hvdctl-python"), "w") as program:
    for script in ("environment.sh", "python.sh"):
        with open(os.path.join(JOB, script)) as part:
            program.write(part.read())
with open(os.path.join(SCRIPTS, "node", "ports.py")) as program:
    PORTS = program.read()
with open(os.path.join(SCRIPTS, "worker", "imports.py")) as program:
    IMPORTS = program.read()
with open(os.path.join(SCRIPTS, "bench", "network.py")) as program:
    BENCH_NETWORK = program.read()
shutil.copy(os.path.join(SCRIPTS, "bench", "network.py"), os.path.join(JOB, "bench_network.py"))
sys.path.insert(0, JOB)
sys.path.insert(1, os.path.dirname(os.path.abspath(__file__)))
import attempt  # noqa: E402
import bench_network  # noqa: E402
import binding  # noqa: E402
import files as job_files  # noqa: E402
import flight_recorder  # noqa: E402
import frames  # noqa: E402
import hang_reports  # noqa: E402
import hosts  # noqa: E402
import job_state  # noqa: E402
import job_supervisor  # noqa: E402
import last_lines  # noqa: E402
import machines  # noqa: E402
import membership  # noqa: E402
import node_launcher  # noqa: E402
import outside  # noqa: E402
import peers  # noqa: E402
import ports  # noqa: E402
import processes  # noqa: E402
import rank_supervisor  # noqa: E402
import reap  # noqa: E402
import relay  # noqa: E402
import roster  # noqa: E402
import shared_memory  # noqa: E402
import starting  # noqa: E402
import waiting  # noqa: E402
import workers  # noqa: E402

# a shell lets what it starts in its background ignore it, and children inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


def tearDownModule():
    shutil.rmtree(JOB)


class Arguments(unittest.TestCase):
    def test_arguments_have_the_text_of_a_dry_run(self):
        """The same table as in src/launch/description.rs."""
        with open(os.path.join(TESTS, "launcher_arguments.json")) as file:
            table = json.load(file)
        seen = set()
        for row in table["positions"]:
            places = [{"node": node, "address": table["addresses"][node], "ranks": ranks}
                      for node, ranks in row["nodes"]]
            at = attempt.Position(places, row["launcher"], row["node"], row["local_rank"])
            for argument, expected in row["arguments"]:
                text = at.text(argument)
                self.assertEqual(text if isinstance(expected, str) else json.loads(text), expected, argument)
                seen.update(argument if isinstance(argument, dict) else [])
        self.assertEqual(seen, {name[len("of_"):] for name in dir(attempt.Position) if name.startswith("of_")})

    def test_a_job_of_a_queue_gets_its_port_when_it_begins(self):
        for launch, is_chosen in (({"queued": True}, True), ({"slurm": True}, True), ({}, False)):
            one = attempt.Launcher(launch, None, None, None)
            one.choose_port([{"ranks": 2}])
            self.assertEqual(one.port is not None, is_chosen, launch)

    def test_each_attempt_within_an_allocation_has_a_port_that_is_free(self):
        with mock.patch.object(ports, "PORTS", range(28100, 28104)), socket.socket() as taken:
            taken.bind(("", 28101))
            taken.listen(1)
            self.assertEqual({ports.free_port(1) for _ in range(50)}, {28100, 28102})
            found = {ports.free_port(1, {28100}) for _ in range(50)}
            self.assertEqual(found, {28102}, "ranks of a role have the other")
        places = [{"node": "a", "address": "10.0.0.1", "ranks": 2}]
        at = attempt.Position(places, "a", port=7)
        self.assertEqual(at.text({"rendezvous_port": {"port": 0}}), "7")
        self.assertEqual(at.text({"first_endpoint": {"port": 0}}), "10.0.0.1:7")
        self.assertIn("10.0.0.1:8", at.text({"tf_config": {"port": 0}}))
        launch = {"slurm": True, "node": "a", "reads": [], "files": {}, "start": "per-node",
                  "launcher": [{"rendezvous_port": {"port": 0}}]}
        one = attempt.Launcher(launch, None, None, None)
        with mock.patch.object(attempt.Launcher, "start_processes", lambda *_: ()):
            chosen = set()
            for number in range(3):
                one.start(places, number)
                chosen.update(one.request(places, 0, {})["argv"])
        self.assertTrue(len(chosen) > 1 and all(int(port) in ports.PORTS for port in chosen), chosen)

    def test_pauses_double_up_to_a_limit(self):
        self.assertEqual([job_state.pause_before(number, 2) for number in (1, 2, 3, 9)], [2, 4, 8, 300])


class Peers(unittest.TestCase):
    def test_endpoints_as_the_kernel_writes_them(self):
        if sys.byteorder == "little":
            for text, expected in (
                ("0100007F:3039", "127.0.0.1 12345"),
                ("0000000000000000FFFF00000200000A:0016", "10.0.0.2 22"),
                ("000000FD000000000000000001000000:01BB", "fd00::1 443"),
            ):
                self.assertEqual("%s %d" % peers.endpoint(text), expected)

    def test_which_connections_may_lead_to_another_rank(self):
        own = [peers.endpoint("0100007F:3039")]
        for address, port, expected in (
            ("10.0.0.2", 40000, True), ("10.0.0.2", 443, True), ("127.0.0.1", 40000, True), ("127.0.0.1", 12345, False),
            ("8.8.8.8", 443, False), ("8.8.8.8", 80, False), ("8.8.8.8", 40000, True), ("fd00::1", 443, True),
        ):
            there = peers.ipaddress.ip_address(address), port
            self.assertEqual(peers.is_other(own, there), expected, there)

    def test_connections_of_processes(self):
        me = os.getpid()
        program = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); " \
            "print(1, flush=True); sys.stdin.read()"
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            self.assertFalse(peers.communicates([me]), "a socket that listens is no connection")
            child = subprocess.Popen([sys.executable, "-c", program, str(server.getsockname()[1])],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            with child, server.accept()[0]:
                child.stdout.readline()
                self.assertTrue(peers.communicates([me]))
                self.assertTrue(peers.communicates([child.pid]))
                self.assertFalse(peers.communicates([me, child.pid]), "a process of the same rank")
        self.assertFalse(peers.communicates([child.pid]), "it has ended")

    def test_what_cannot_be_read_counts_as_a_connection(self):
        def refuse(_path):
            raise PermissionError
        listdir, os.listdir = os.listdir, refuse
        try:
            self.assertTrue(peers.communicates([os.getpid()]))
        finally:
            os.listdir = listdir

    def test_a_rank_is_isolated_if_no_look_finds_a_connection(self):
        for found, expected in (("0000", "0001"), ("1", "000000"), ("0001", "000000"), ("01", "000000")):
            looks = list(found)
            isolation = peers.Isolation(0, lambda _pids: looks.pop(0) == "1")
            answers = "".join(str(int(isolation.is_found(os.getpid()))) for _ in range(6))
            self.assertEqual(answers.rstrip("0"), expected.rstrip("0"), found)
            self.assertEqual(looks, [], "nothing is looked for after the answer")
        self.assertFalse(peers.Isolation(60, self.fail).is_found(os.getpid()), "it is not time yet")


class NodeLauncher(unittest.TestCase):
    def test_a_launcher_has_the_variables_that_it_reads(self):
        own = os.path.join(JOB, "env.json")
        self.addCleanup(os.remove, own)
        with open(own, "w") as file:
            json.dump({"TORCH_A": "of -e", "TORCH_B": "of -e", "USE_LIBUV": "0", "TOKEN": "secret"}, file)
        request = {"env": {"PATH": os.environ["PATH"], "TORCH_A": "of the image", "OF_IMAGE": "1"},
                   "reads": ["TORCH_", "USE_LIBUV"], "argv": ["env"], "ranks": 1, "variables": None}
        done = subprocess.run([sys.executable, os.path.join(JOB, "node_launcher.py")], input=json.dumps(request) + "\n",
                              stdout=subprocess.PIPE, universal_newlines=True)
        lines = done.stdout.splitlines()
        for line in ("TORCH_A=of -e", "TORCH_B=of -e", "USE_LIBUV=0", "OF_IMAGE=1"):
            self.assertIn(line, lines)
        self.assertNotIn("secret", done.stdout)


class Hosts(unittest.TestCase):
    NODES = [["10.0.0.1", ["own"]], ["10.0.0.2", ["other", "gpu-b"]]]
    OURS = "10.0.0.1\town\t# hvdctl\n10.0.0.2\tother gpu-b\t# hvdctl\n"

    def check(self, before, after, nodes=None):
        nodes = nodes or self.NODES
        self.assertEqual(hosts.rewrite(before, nodes), after)
        self.assertEqual(hosts.rewrite(after, nodes), after, "again")

    def test_the_own_name_has_the_address_in_the_cluster_alone(self):
        self.check("", self.OURS)
        # Debian and Ubuntu; cloud images; a management network
        stock = "127.0.0.1\tlocalhost\n127.0.1.1\town.example.org\town\n::1 localhost ip6-localhost\n"
        self.check(stock, self.OURS.replace("own", "own.example.org own") +
                   "127.0.0.1\tlocalhost\n::1 localhost ip6-localhost\n")
        self.check("127.0.0.1 localhost OWN\n::1 own\n", self.OURS + "127.0.0.1\tlocalhost\n")
        self.check("192.168.0.1 own # management\n", self.OURS)

    def test_other_lines_stay(self):
        lines = "# own\n\n10.9.9.9 nfs # for own\nnonsense\n192.168.0.2\tother.mgmt\n"
        self.check(lines.replace(".mgmt", ".mgmt gpu-b other"), self.OURS + lines)

    def test_what_was_written_before_follows_the_addresses(self):
        before = hosts.rewrite("127.0.1.1 own.lan own\n", self.NODES)
        moved = "10.0.0.7\town.lan own\t# hvdctl\n10.0.0.3\tthird\t# hvdctl\n10.0.0.2\tother gpu-b\t# hvdctl\n"
        self.check(before, moved, [["10.0.0.7", ["own"]], ["10.0.0.3", ["third", "own"]]])

    def test_the_file_is_written_in_place(self):
        path = os.path.join(JOB, "hosts-of-a-test")
        with open(path, "wb") as file:
            file.write(b"127.0.1.1 own\n# caf\xe9, a long line that is longer than what is written\n")
        inode = os.stat(path).st_ino
        hosts.write([["10.0.0.1", ["own"]]], path)
        hosts.write([], path)
        with open(path, "rb") as file:
            self.assertEqual(file.read(), b"10.0.0.1\town\t# hvdctl\n"
                             b"# caf\xe9, a long line that is longer than what is written\n")
        self.assertEqual(os.stat(path).st_ino, inode)


class Ports(unittest.TestCase):
    """Addresses of the loopback interface stand for nodes: those of this process alone, so that nothing else takes a
    free port of them."""
    TOKEN = "0123456789abcdef"

    def setUp(self):
        self.ports = "%d,%d" % (self.free(), self.free())

    @staticmethod
    def node(number):
        # process ids have up to 22 bits (proc_pid_max(5)), and 127.0.0.0/8 has 24
        return str(ipaddress.ip_address("127.0.0.0") + 4 * os.getpid() + number)

    def free(self):
        with socket.socket() as probe:
            probe.bind((self.node(1), 0))
            return probe.getsockname()[1]

    def start(self, address, token=TOKEN):
        program = subprocess.Popen([sys.executable, "-c", PORTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   universal_newlines=True)
        self.addCleanup(program.wait, 60)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.stdin.close)
        return program, self.ask(program, "%s %s %s 5" % (token, address, self.ports))

    def ask(self, program, request):
        program.stdin.write(request + "\n")
        program.stdin.flush()
        return program.stdout.readline().strip()

    def test_nodes_connect_once_all_listen(self):
        nodes = [self.start(self.node(number)) for number in (1, 2)]
        self.assertEqual([answer for _, answer in nodes], ["listening"] * 2)
        for index, (program, _) in enumerate(nodes):
            answer = self.ask(program, "%d=%s 7=%s" % (1 - index, self.node(2 - index), self.node(3)))
            self.assertEqual(json.loads(answer), {str(1 - index): None, "7": "Connection refused"})

    def test_a_port_in_use_is_reported(self):
        self.start(self.node(1))
        self.assertEqual(self.start(self.node(1))[1], "busy Address already in use")
        other, answer = self.start(self.node(2), token="another-token")
        self.assertEqual(answer, "listening")
        self.assertEqual(json.loads(self.ask(other, "0=" + self.node(1))), {"0": "another program answers"})

    def test_a_node_listens_until_its_input_ends(self):
        program, _ = self.start(self.node(1))
        self.ask(program, "")
        self.assertIsNone(program.poll())
        program.stdin.close()
        self.assertEqual(program.wait(60), 0)


    def test_a_node_without_a_file_for_a_connection_goes_on(self):
        program, connection = {}, mock.Mock()
        exec(PORTS.rpartition("main()")[0], program)
        listener = mock.Mock()
        listener.accept.side_effect = [OSError("too many open files"), (connection, None), KeyboardInterrupt]
        answered = threading.Event()
        program["answer"] = lambda *_: answered.set()
        with self.assertRaises(KeyboardInterrupt):
            program["serve"](listener, b"token", 1)
        self.assertTrue(answered.wait(60))


class BenchNetwork(unittest.TestCase):
    TOKEN = "00112233445566778899aabbccddeeff"

    def launch(self, address, token=TOKEN, limit=60, answer_limit=20):
        program = subprocess.Popen([sys.executable, "-I", "-c", BENCH_NETWORK], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, universal_newlines=True)
        self.addCleanup(program.wait, 60)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.stdin.close)
        self.write(program, token=token, address=address, interface="lo", limit=limit, answer_limit=answer_limit)
        return program

    def start(self, address, **request):
        program = self.launch(address, **request)
        return program, json.loads(program.stdout.readline())

    @staticmethod
    def write(program, **request):
        program.stdin.write(json.dumps(request) + "\n")
        program.stdin.flush()

    def ask(self, program, **request):
        self.write(program, **request)
        answers = [json.loads(line) for line in iter(program.stdout.readline,
                                                     json.dumps({"done": request["do"]}) + "\n")]
        return answers

    def measure(self, program, address, port, **changed):
        plan = dict({"from": 4, "to": 7, "warm": 0.02, "seconds": 0.1, "streams": [1, 2], "probes": 50,
                     "sizes": [1500, 576]}, **changed)
        return self.ask(program, do="measure", address=address, port=port, **plan)

    def test_both_directions_are_measured(self):
        (first, _), (_, second) = self.start("127.0.0.1"), self.start("127.0.0.2")
        # a busy machine may give both ends no time at once in the shortest
        for seconds in (0.1, 1, 4):
            directions = self.measure(first, "127.0.0.2", second["listening"], seconds=seconds)
            if all(transfer["bytes_per_s"] for of in directions for transfer in of.get("transfers", [])):
                break
        self.assertEqual([(of["from"], of["to"]) for of in directions], [(4, 7), (7, 4)])
        for direction in directions:
            self.assertEqual([of["streams"] for of in direction["transfers"]], [1, 2])
            for transfer in direction["transfers"]:
                self.assertGreater(transfer["bytes_per_s"], 0)
                self.assertGreater(transfer["segments"], 0)
                self.assertGreaterEqual(transfer["retransmits"], 0)
                self.assertTrue(0 <= transfer["sender"]["idle"] <= 1 and 0 <= transfer["receiver"]["steal"] <= 1,
                                transfer)
            trips = direction["round_trip_us"]
            self.assertTrue(0 < trips["min"] <= trips["median"] <= trips["p99"], trips)
            probes = direction["probes"]
            self.assertEqual([probes[name] for name in ("sent", "unsent", "sendable", "largest")], [50, 0, 1500, 1500])
            self.assertEqual(probes["received"] + probes["overflowed"], 50)
        (link,), (compute,) = self.ask(first, do="link"), self.ask(first, do="compute")
        self.assertEqual((link["speed"], link["duplex"], link["mtu"]), (None, None, 65536), "loopback has no speed")
        self.assertTrue(0 < compute["share"] <= 1.1 and compute["loops_per_s"] > 1e5, compute)
        self.assertTrue(compute["throttled"] is None or 0 <= compute["throttled"] <= 1, compute)

    def test_a_stranger_gets_nothing(self):
        _, answer = self.start("127.0.0.1")
        for greeting in (b"GET / HTTP/1.1\r\nHost: node1.example.org\r\n\r\n", b"0" * len(self.TOKEN) + b"{}\n"):
            with socket.create_connection(("127.0.0.1", answer["listening"]), timeout=10) as stranger:
                stranger.sendall(greeting)
                try:
                    self.assertEqual(stranger.recv(100), b"")
                except ConnectionResetError:
                    pass
        other, _ = self.start("127.0.0.2", token="f" * len(self.TOKEN))
        errors = self.measure(other, "127.0.0.1", answer["listening"])
        self.assertEqual([sorted(of) for of in errors], [["error", "from", "to"]] * 2)

    def test_a_node_without_an_answer_is_an_error_in_both_directions(self):
        program, answer = self.start("127.0.0.1", answer_limit=0.2)
        with socket.socket() as closed:
            closed.bind(("127.0.0.2", 0))
            refused = self.measure(program, "127.0.0.2", closed.getsockname()[1])
        self.assertEqual(refused, [{"from": 4, "to": 7, "error": "Connection refused"},
                                   {"from": 7, "to": 4, "error": "Connection refused"}])
        with socket.socket() as silent:
            silent.bind(("127.0.0.2", 0))
            silent.listen(1)
            errors = self.measure(program, "127.0.0.2", silent.getsockname()[1])
        self.assertEqual([of["error"] for of in errors], ["no answer within 0.2 s"] * 2)
        other, answer = self.start("192.0.2.1")
        self.assertIn("cannot listen at 192.0.2.1: ", answer["error"])
        self.assertEqual(other.wait(60), 0)

    def test_what_another_node_makes_up_is_an_error_of_the_pair(self):
        def fails():
            raise TypeError("not a number")
            yield

        for measured in (lambda: iter([{"bytes_per_s": float("inf")}]), lambda: iter([{"median": float("nan")}]),
                         fails):
            with mock.patch.object(bench_network, "Pair", return_value=mock.Mock(measure=measured)):
                found = list(bench_network.measure(mock.Mock(limit=1), {"from": 4, "to": 7}))
            self.assertEqual([(one["from"], one["to"], "error" in one) for one in found], [(4, 7, True), (7, 4, True)])

    def test_probes_that_arrive_late_are_not_lost(self):
        # a sender without a processor takes longer than it should
        receiver, sender = (bench_network.Probes("127.0.0.1", "token") for _ in range(2))
        result = []
        waiting = threading.Thread(target=lambda: result.append(receiver.receive(time.monotonic() + 0.1)), daemon=True)
        waiting.start()
        with sender.socket, receiver.socket:
            for kind, index in [(1, index) for index in range(8)] + [(2, 0)] * bench_network.REPEATED:
                sender.socket.sendto(sender.nonce + struct.pack("!II", kind, index), ("127.0.0.1", receiver.port))
                time.sleep(0.05 if kind == 1 else 0)
            waiting.join(60)
        self.assertEqual((result[0]["received"], result[0]["ended"]), (8, True))

    def test_a_long_line_has_the_time_that_its_connections_need(self):
        request = {"warm": 0.05, "seconds": 0.2}
        self.assertEqual(bench_network.pace(request, {"median": 300}), request)
        # 80 ms at 50 Mbit/s are 500 kB on their way: 14 kB at the beginning, doubled five times
        plan = bench_network.pace(request, {"median": 80000})
        self.assertGreaterEqual(plan["warm"], 5 * 0.08)
        self.assertGreaterEqual(plan["seconds"], 5 * 0.08)
        # the other node may answer as late as it likes
        longest = bench_network.pace(request, {"median": 1e9})
        self.assertLess(sum(longest.values()), 10)

    def test_it_ends_with_its_input_or_at_its_limit(self):
        (first, _), (_, second) = self.start("127.0.0.1"), self.start("127.0.0.2")
        self.write(first, **{"do": "measure", "from": 0, "to": 1, "address": "127.0.0.2", "port": second["listening"],
                             "warm": 30, "seconds": 30, "streams": [1], "probes": 1, "sizes": []})
        first.stdin.close()
        self.assertEqual(first.wait(60), 0)
        self.assertEqual(self.launch("127.0.0.1", limit=0.2).wait(60), 1)

    def test_what_cannot_be_read_is_unknown(self):
        link = bench_network.link("no-such-interface")
        self.assertEqual((link["speed"], link["duplex"], link["mtu"], set(link["counters"].values())),
                         (None, None, None, {None}))
        self.assertEqual([bench_network.number(text) for text in ("1000", "-1", "", None, "x")], [1000] + [None] * 4)
        connection = mock.Mock(getsockopt=lambda *_: b"\0" * 104)
        self.assertEqual(bench_network.tcp_info(connection),
                         {"snd_mss": 0, "pmtu": 0, "retransmits": 0, "min_rtt": None, "segments": None})


class Outcome(unittest.TestCase):
    PLACES = [{"node": "a", "address": "", "ranks": 1}, {"node": "b", "address": "", "ranks": 1}]

    def test_times_are_by_the_clock_of_the_launchers_node(self):
        report = workers.Report()
        report.ends = {"a": dict(reap.parse_states(["5.0 0 s ", "9.0 0 x 1"]), ahead=0.0),
                       "b": dict(reap.parse_states(["105.0 1 s ", "108.0 1 x 7"]), ahead=100.0)}
        outcome = attempt.outcome(report, self.PLACES, "a")
        self.assertEqual([(one["rank"], one["node"], one["time"]) for one in outcome["exits"]],
                         [(0, "a", 9.0), (1, "b", 8.0)])
        self.assertEqual((outcome["started"], outcome["silent"], outcome["silence"]), (2, [], {}))

    def test_nodes_that_did_not_answer_are_listed(self):
        report = workers.Report()
        report.ends, report.silent = {"a": dict(reap.parse_states([]),
                                                ahead=0.0)}, {"b": "refused", "c": "not of this attempt"}
        outcome = attempt.outcome(report, self.PLACES, "a")
        self.assertEqual((outcome["silent"], outcome["silence"]), (["b"], {"b": "refused"}))

    def large(self, ranks, text, does="waiting in futex for a lock or another thread"):
        """The outcome of so many ranks that gave up with four lines each, in descending order, and did something."""
        report = workers.Report()
        end = reap.parse_states([])
        for rank in range(ranks):
            end["gave_up"] += [{"time": ranks - rank, "rank": rank, "text": "%s%d" % (text, i)} for i in range(4)]
            end["quiet"].append({"time": ranks, "rank": rank, "seconds": 1800, "does": does})
        report.ends = {"a": dict(end, ahead=0.0)}
        outcome = attempt.outcome(report, self.PLACES, "a")
        self.assertLessEqual(len(json.dumps({name: outcome[name] for name in ("gave_up", "quiet")})), 128 << 10)
        return outcome

    WATCHDOG = ("[E1003 18:37:01.832146912 ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0(default_pg) Rank 1] Watchdog "
                "caught collective operation timeout: WorkNCCL(SeqNum=6463, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, T")

    def test_what_many_ranks_say_is_shortened(self):
        outcome = self.large(128, self.WATCHDOG + "x" * 99)
        ranks = [line["rank"] for line in outcome["gave_up"]]
        self.assertEqual(ranks, sorted([*range(128), *range(96, 128)], reverse=True))
        self.assertEqual({len(line["text"]) for line in outcome["gave_up"]}, {240})
        # of more, what names the operation
        outcome = self.large(400, self.WATCHDOG)
        self.assertEqual([line["rank"] for line in outcome["gave_up"]], list(range(400))[::-1])
        for line in outcome["gave_up"]:
            self.assertTrue(line["text"].startswith("[PG ID 0 ") and "OpType=ALLREDUCE, " in line["text"], line)
        self.assertEqual(len(outcome["quiet"]), 400)

    def test_of_too_many_ranks_none_is_left_out_alone(self):
        for ranks, text in (4096, "a"), (600, "\u20ac" * 200):
            outcome = self.large(ranks, text)
            self.assertEqual((outcome["gave_up"], outcome["quiet"]), ([], []))

    def test_an_event_is_no_longer_than_its_readers_read(self):
        outcome = self.large(400, self.WATCHDOG)
        self.assertEqual(attempt.without_words(outcome, attempt.MOST_EVENT), dict(outcome, gave_up=[], quiet=[]))
        few = self.large(4, self.WATCHDOG)
        self.assertIs(attempt.without_words(few, attempt.MOST_EVENT), few)
        self.assertEqual(attempt.without_words(few), dict(few, gave_up=[], quiet=[]))


class Places(unittest.TestCase):
    """Where ranks were, by `states`."""

    @staticmethod
    def place(rank, quiet, line, does="sleeping", file="/w/a.py"):
        frames = [{"name": "f", "file": file, "line": line}]
        return json.dumps({"rank": rank, "quiet": quiet, "ending": True, "left_out": 0, "processes": [
            {"pid": 0, "command": "", "does": does, "threads": [{"name": "t", "active": False, "frames": frames}]}]})

    def outcome(self, lines, **more):
        report = workers.Report()
        report.ends = {"a": dict(reap.parse_states(lines), ahead=0.0, **more)}
        return attempt.outcome(report, Outcome.PLACES, "a")

    def test_ranks_at_the_same_place_are_one_entry_the_fewest_first(self):
        placed = [(0, 9, 44, "waiting for A"), (1, 31, 31, "sleeping"), (2, 12, 44, "waiting for B")]
        lines = ["5.0 1 k " + self.place(1, 3, 7)]
        lines += ["6.0 %d k %s" % (one[0], self.place(*one)) for one in placed]
        self.assertEqual(self.outcome(lines)["places"], [
            {"ranks": [1], "stack": self.place(1, 31, 31)},
            {"ranks": [0, 2], "stack": self.place(2, 12, 44, "waiting for B")}])
        # without frames of a program, by what they do
        lines = ["6.0 %d k %s" % (rank, self.place(rank, 9, 0, does, "")) for rank, does in enumerate("aba")]
        self.assertEqual([one["ranks"] for one in self.outcome(lines)["places"]], [[1], [0, 2]])

    def test_only_where_ranks_have_waited(self):
        lines = ["6.0 0 k " + self.place(0, 4, 44), "6.0 1 k " + self.place(1, 0, 31)]
        self.assertNotIn("places", self.outcome(lines))
        for more in ({"gave_up": [{"time": 1, "rank": 0, "text": "Timed out"}]},
                     {"quiet": [{"time": 1, "rank": 0, "seconds": 9, "does": "sleeping"}]}):
            self.assertEqual(len(self.outcome(lines, **more)["places"]), 2)
        self.assertEqual(len(self.outcome(lines + ["7.0 0 k " + self.place(0, 5, 44)])["places"]), 2)

    def test_what_is_none_or_too_much_is_left_out(self):
        for text in ("", "{", "[" * 1000, "{}", '{"quiet": 9, "processes": []}', self.place(0, 9, 1, "x" * 2000),
                     '{"quiet": 9, "processes": [{"threads": [{"frames": [3]}]}]}'):
            self.assertNotIn("places", self.outcome(["6.0 0 k " + text]), text)
        many = self.outcome(["6.0 %d k %s" % (rank, self.place(rank, 9, max(rank, 20))) for rank in range(60)])
        ranks = [one["ranks"] for one in many["places"]]
        self.assertEqual((len(ranks), ranks[0], ranks[-1]), (16, [21], list(range(21))))
        self.assertEqual(dict(attempt.without_places(many), places=many["places"]), many)
        # an earlier build's node has none
        end = reap.parse_states([])
        del end["places"]
        attempt.files.parse(json.dumps(end).encode(), reap.REPORT)


class Answers(unittest.TestCase):
    """What a node answers that may be anything."""

    END = {"started": 1, "exits": [{"time": 9.5, "rank": 1, "code": 7, "signal": None, "asked": False, "oom": False}],
           "lost": [],
           "gave_up": [{"time": 9, "rank": 1, "text": "Connection closed by peer"}],
           "quiet": [{"time": 9, "rank": 0, "seconds": 60, "does": "sleeping"}],
           "hung": [{"time": 9, "rank": 1, "seconds": 60, "idle": "blocked"},
                    {"time": 9, "rank": 1, "seconds": 60, "tensors": "a"}]}

    OUTSIDE = {"files": 1, "bytes": 7, "largest": [{"path": "/a", "bytes": 7}], "whole": True}

    def test_a_report_that_says_what_cannot_be_is_no_report(self):
        self.assertEqual(job_files.parse(json.dumps(self.END).encode(), reap.REPORT), self.END)
        exit, hung = self.END["exits"][0], self.END["hung"][0]
        for wrong in ([], None, 1, {}, dict(self.END, started=-1), dict(self.END, started=1 << 31),
                      dict(self.END, exits={}),
                      dict(self.END, exits=[1]), dict(self.END, exits=[dict(exit, time=float("nan"))]),
                      dict(self.END, exits=[dict(exit, time=float("inf"))]),
                      dict(self.END, exits=[dict(exit, time="9")]),
                      dict(self.END, exits=[dict(exit, rank=True)]), dict(self.END, exits=[dict(exit, code=10 ** 400)]),
                      dict(self.END, exits=[dict(exit, signal="9")]), dict(self.END, exits=[dict(exit, asked=None)]),
                      dict(self.END, hung=[dict(hung, idle="dreams")]), dict(self.END, hung=[dict(hung, tensors=[])]),
                      dict(self.END, hung=[dict(hung, tensors="\ud800")]),
                      dict(self.END, gave_up=[{"time": 9, "rank": 1, "text": None}]),
                      dict(self.END, quiet=[{"time": 9, "rank": 1, "seconds": -1, "does": ""}])):
            with self.assertRaises(ValueError):
                job_files.parse(json.dumps(wrong).encode(), reap.REPORT)
        for text in (b"", b"\xff", b"{", b"[" * (1 << 17)):
            with self.assertRaises(ValueError):
                job_files.parse(text, reap.REPORT)

    def read_outside(self, answer):
        """What is known of the files outside the mounts, by what a node answers to the question."""
        report = workers.Report()
        with processes.Children().start(["sh", "-c", "read -r asked; [ \"$asked\" = outside ] && printf %s \"$0\"",
                                         answer],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
            workers.Workers.read_outside(child, "b", report)
        return report.outside["b"]

    def test_files_outside_the_mounts_are_no_part_of_the_report(self):
        for known in self.OUTSIDE, None:
            self.assertEqual(self.read_outside(json.dumps(known) + "\n"), known)
        # an earlier version answers with the time; a connection breaks; and what cannot be
        wrong = ({"files": -1}, {"bytes": -1}, {"bytes": 1 << 63}, {"whole": 1}, {"largest": [1]},
                 {"largest": [{"path": "\udcff", "bytes": 1}]}, {"largest": [{"path": "a", "bytes": float("nan")}]})
        for answer in ("1700000000.5\n", "", "{", *(json.dumps(dict(self.OUTSIDE, **one)) for one in wrong)):
            self.assertEqual(self.read_outside(answer), outside.UNSEEN, answer)

    def test_a_node_with_a_forged_report_did_not_answer(self):
        report, ended, everywhere = workers.Report(), threading.Event(), threading.Event()
        everywhere.set()
        nodes = workers.Workers({"workers": [], "port": 1}, processes.Children())
        script = "printf '%s\\n{\"started\": 1, \"exits\": [{\"time\": \"now\"}]}\\n'; " % reap.READY.decode()
        script += "printf '%0999d\\n' 0 >&2"
        nodes.ssh = lambda _worker, _options, _command, stdin, stdout: nodes.children.start(
            ["sh", "-c", script], stdin=stdin, stdout=stdout, stderr=stdout, bufsize=0)
        nodes.reap({"node": "b"}, 0, False, report, ended, everywhere)
        self.assertEqual((report.ends, report.silent, ended.is_set()), ({}, {"b": "0" * workers.MOST_TEXT}, True))

    def test_a_clock_is_a_number(self):
        for text in (b"nan\n", b"inf\n", b"1e300\n", b"soon\n", b""):
            child = mock.Mock()
            child.stdout.readline.return_value = text
            with self.assertRaises(ValueError):
                workers.clock_offset(child)

    def test_a_first_line_without_an_end_takes_no_memory(self):
        child = mock.Mock()
        pieces = iter([b"x" * workers.MOST] * 3 + [b"x\n", reap.READY + b"\n"])
        child.stdout.readline = lambda most: next(pieces)
        workers.await_ready(child)

    def test_a_connection_that_is_closed_meanwhile_is_opened_again(self):
        nodes = workers.Workers({"workers": [{"node": "b", "address": "b"}], "port": 1}, mock.Mock())

        class Meanwhile(dict):
            def __contains__(self, node):
                return dict.__contains__(self, node) and dict.pop(self, node) is not None

        nodes.connections = Meanwhile(b=mock.Mock(poll=lambda: None))
        nodes.ssh = mock.Mock()
        with mock.patch("os.makedirs"):
            nodes.connect()
        self.assertIsNotNone(nodes.connections.get("b"))

    def test_a_signal_is_passed_on_by_its_number(self):
        class Named(int):
            """A signal as before Python 3.11, whose text is its name."""

            def __str__(self):
                return "Signals.SIGUSR1"

        nodes = workers.Workers({"workers": [{"node": "b", "address": "b"}], "port": 1}, mock.Mock())
        nodes.ssh = mock.Mock()
        nodes.signal({"node": "b"}, Named(10))
        (command,) = nodes.ssh.call_args[0][2]
        self.assertTrue(command.endswith("reap.py signal 10"), command)

    def test_exit_codes_of_failed_ranks_are_those_that_a_rank_can_have(self):
        launcher = attempt.Launcher.__new__(attempt.Launcher)
        launcher.failures = []
        for text in (b"[1]<stdout>:%s7 on b", b"%s255", b"%s0", b"%s1234", b"%s" + b"9" * 9999, b"%s-1"):
            launcher.see(text % reap.FAILED)
        self.assertEqual(launcher.failures, [(7, "b"), (255, "")])

    def test_nodes_that_are_added_have_the_form_of_nodes(self):
        nodes = membership.Membership(roster.Roster([], "a"), None)
        good = {"node": "b", "address": "b", "ranks": 1}
        for value in ("{", "{}", "[1]", '[{"node": "b"}]', json.dumps([dict(good, ranks=-1)]),
                      json.dumps([dict(good, node=[])])):
            with open(os.path.join(JOB, membership.JOINING), "w") as file:
                file.write(value)
            self.assertEqual(nodes.added(), [], value)
        with open(os.path.join(JOB, membership.JOINING), "w") as file:
            json.dump([good], file)
        self.assertEqual((nodes.added(), nodes.added()), ([good], []))

    def test_an_earlier_query_says_nothing_of_a_node_that_was_not_cleaned(self):
        nodes = mock.Mock()
        query = membership.Membership(roster.Roster([{"node": "b"}], "a"), nodes)
        asked, answers = threading.Event(), threading.Event()
        nodes.ready = lambda _place: asked.set() or answers.wait(60) and 0
        query.query()
        asked.wait(60)
        nodes.answering = lambda _workers: threading.Timer(0.1, answers.set).start() or set()
        self.assertEqual(query.present(), set())
        query.thread.join(60)
        self.assertEqual(query.roster.misses, {"b": roster.MISSES})

    def test_a_rank_takes_only_whole_and_newer_numbers(self):
        world, path = rank_supervisor.World(1), os.path.join(JOB, "world.json")
        self.addCleanup(os.unlink, path)

        def read(**fields):
            value = dict({"attempt": 0, "number": 1, "ranks": [4, 5], "size": 6, "waits": False}, **fields)
            with open(path, "w") as file:
                json.dump(value, file)
            os.utime(path, (1, 1))
            return world.read(), world.rank()

        with mock.patch.dict(os.environ, {"HVDCTL_RESTART": "0"}):
            for wrong in ({"ranks": None}, {"ranks": ["5"]}, {"attempt": 1}, {"size": None}, {"waits": 0},
                          {"number": -1}):
                self.assertEqual(read(**wrong), (False, None), wrong)
            self.assertEqual(read(), (True, 5))
            self.assertEqual(read(number=3, ranks=[2, 3]), (True, 3), "written at the same time")
            self.assertEqual(read(number=2), (False, 3), "it is older")
            self.assertEqual(read(number=4, ranks=[]), (True, None))

    def test_ranks_that_served_have_their_grace_period_unless_one_has_failed(self):
        for code, failed, fault, expected in ((0, [], None, 60), (None, [7], None, 2), (None, [], {"kind": "x"}, 2)):
            supervisor = job_supervisor.JobSupervisor.__new__(job_supervisor.JobSupervisor)
            launcher = mock.Mock(code=code, served=[2, 3], fault=fault)
            supervisor.attempt = mock.Mock(changed=False, stopping=[], launcher=launcher, failed=failed)
            supervisor.signals, supervisor.limits = [], job_state.Limits(60, 2, 0, None)
            supervisor.allocation, supervisor.start_reaping = job_state.OUTSIDE, mock.Mock()
            supervisor.reap_everywhere(workers.Report(), True)
            self.assertEqual(supervisor.start_reaping.call_args[0][0], expected, code)

    def test_roles_need_the_nodes_that_they_had(self):
        supervisor = job_supervisor.JobSupervisor.__new__(job_supervisor.JobSupervisor)
        places = [{"node": node, "address": node, "ranks": 1} for node in "abc"]
        supervisor.launch, supervisor.has_roles = {"node": "a", "workers": places[1:]}, True
        supervisor.roster, supervisor.nodes = roster.Roster(places, "a"), mock.Mock()
        supervisor.nodes.answering.side_effect = [{"b"}, {"b", "c"}]
        for expected in (["c"], []):
            supervisor.choose_nodes()
            self.assertEqual((supervisor.silent, roster.ranks(supervisor.roster.assigned)), (expected, 3))

    def test_a_launcher_may_be_lost_again_after_a_while(self):
        supervisor = job_supervisor.JobSupervisor.__new__(job_supervisor.JobSupervisor)
        launcher = mock.Mock(code=1, failures=[])
        supervisor.attempt = mock.Mock(outcome={}, failed=[], launcher=launcher)
        supervisor.attempts, supervisor.roster, supervisor.signals = [], roster.Roster([], "a"), []
        supervisor.launch = {"restart_pause": 1}
        supervisor.losses, supervisor.note = [], mock.Mock()
        kept = []
        for now in (0, 100, 200, 300, 3650, 90000, 180000, 270000):
            with mock.patch("time.monotonic", return_value=now):
                kept.append(supervisor.observe_end().kept)
                supervisor.record_loss(1)
        self.assertEqual(kept, [True] * 3 + [False] * 2 + [True] * 3)


class OutOfMemory(unittest.TestCase):
    """Whose processes count as killed because memory ran out."""

    def found(self, groups, *files):
        directories = {os.path.dirname(path) for path in files}
        while directories - {os.path.dirname(path) for path in directories} - {"/"}:
            more = {os.path.dirname(path) for path in directories}
            if more <= directories:
                break
            directories |= more
        return rank_supervisor.oom_files(groups, lambda path: path.rstrip("/") in directories | set(files))

    def test_those_of_the_own_group_count(self):
        top, task = "/sys/fs/cgroup", "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
        v2 = ["0::%s\n" % task]
        self.assertEqual(self.found(v2, top + task + "/memory.events", "/proc/vmstat"),
                         (top + task + "/memory.events", True))
        # in a container with groups of its own, and in one that sees the path outside
        for path in ("/", "/docker/0a1b"):
            self.assertEqual(self.found(["0::%s\n" % path], top + "/memory.events"), (top + "/memory.events", True))
        v1 = ["3:cpu:/\n", "4:memory:/slurm/uid_5/job_7\n", "0::/\n"]
        own = top + "/memory/slurm/uid_5/job_7/memory.oom_control"
        self.assertEqual(self.found(v1, own, top + "/memory/memory.oom_control"), (own, True))
        in_container = self.found(v1, top + "/memory/memory.oom_control")
        self.assertEqual(in_container, (top + "/memory/memory.oom_control", True))

    def test_those_of_others_do_not(self):
        top = "/sys/fs/cgroup"
        # the memory of the own group is not counted, or there is none: the machine's is left
        above = self.found(["0::/user.slice/a.scope\n"], top + "/user.slice/memory.events",
                           top + "/user.slice/a.scope/pids.max")
        self.assertEqual(above, (top + "/user.slice/memory.events", False))
        self.assertEqual(self.found(["0::/\n"], "/proc/vmstat"), ("/proc/vmstat", False))
        for own, code, expected in ((True, 1, True), (False, 1, False), (False, -9, True)):
            self.assertEqual(rank_supervisor.is_out_of_memory((3, own), (4, own), code), expected)
        self.assertFalse(rank_supervisor.is_out_of_memory((3, True), (3, True), -9))


class WorkerInit(unittest.TestCase):
    """The main process of a worker that is a process of the login."""
    RANK = """if True:
        import os, signal, sys, time
        def save(*_):
            time.sleep(0.5)
            open(sys.argv[1], "w").close()
            sys.exit()
        signal.signal(signal.SIGTERM, save)
        open("/proc/self/comm", "w").write("hvdctl-rank")
        print(flush=True)
        time.sleep(60)
    """

    def setUp(self):
        self.place = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.place)

    def start(self, argv, process="hworker@1", **more):
        env = dict(os.environ, HVDCTL_PROCESS=process, HVDCTL_PLACE=self.place)
        child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, **more)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    @staticmethod
    def script():
        text = ""
        for name in (("programs", "environment", "environment.sh"), ("worker", "init.sh")):
            with open(os.path.join(SCRIPTS, *name)) as file:
                text += file.read()
        return text

    def init(self, *command):
        with open(os.path.join(SCRIPTS, "worker", "init.py")) as program:
            argv = ["sh", "-c", self.script(), "sh", program.read(), "20"] + list(command)
        worker = self.start(argv)
        self.assertTrue(worker.stdout.readline())
        return worker

    def sshd(self):
        return self.init("sh", "-c", "echo $$; exec sleep 60")

    def rank(self, process):
        saved = os.path.join(self.place, "saved-" + process)
        rank = self.start([sys.executable, "-c", self.RANK, saved], process)
        rank.stdout.readline()
        return rank, saved

    def test_ranks_of_this_worker_save_when_it_is_stopped(self):
        worker, (_, saved), (other, saved_by_other) = self.sshd(), self.rank("hworker@1"), self.rank("hworker@2")
        sshd = processes.children(worker.pid, worker.pid)
        self.assertEqual(processes.name(worker.pid), b"hvdctl-worker")
        self.assertEqual([processes.ignores(pid, signal.SIGINT) for pid in sshd], [False])
        worker.terminate()
        self.assertEqual(worker.wait(20), 0)
        self.assertTrue(os.path.exists(saved))
        self.assertEqual((other.poll(), os.path.exists(saved_by_other)), (None, False))
        self.assertTrue(os.path.exists(os.path.join(self.place, "stopping")))
        self.assertEqual([pid for pid in sshd if processes.condition(pid) not in processes.ENDED], [])
        # it can be started again
        worker = self.sshd()
        self.assertFalse(os.path.exists(os.path.join(self.place, "stopping")))

    def test_ranks_save_when_sshd_has_ended_whose_exit_code_it_passes_on(self):
        _, saved = self.rank("hworker@1")
        worker = self.init("sh", "-c", "echo; exit 7")
        self.assertEqual(worker.wait(20), 7)
        self.assertTrue(os.path.exists(saved))

    def test_sshd_ends_with_it(self):
        worker = self.sshd()
        sshd, = processes.children(worker.pid, worker.pid)
        worker.kill()
        limit = time.monotonic() + 10
        while processes.condition(sshd) not in processes.ENDED and time.monotonic() < limit:
            time.sleep(0.02)
        self.assertIn(processes.condition(sshd), processes.ENDED)

    def test_an_image_without_python_has_an_sshd(self):
        tools = os.path.join(self.place, "tools")
        os.mkdir(tools)
        os.symlink(shutil.which("echo"), os.path.join(tools, "echo"))
        argv = [shutil.which("sh"), "-c", self.script(), "sh", "no program", "20", shutil.which("sh"), "-c",
                "echo sshd with $LD_LIBRARY_PATH"]
        env = {"PATH": tools, "LD_LIBRARY_PATH": "/of/ranks"}
        self.assertEqual(subprocess.check_output(argv, env=env), b"sshd with /of/ranks\n")

    def test_ranks_have_the_libraries_without_which_it_runs(self):
        # a Python that does not start with them
        os.mkdir(os.path.join(self.place, "tools"))
        python = os.path.join(self.place, "tools", "python3")
        with open(python, "w") as file:
            file.write("#!/bin/sh\n[ -z \"$LD_LIBRARY_PATH\" ] || exit 127\nexec %s \"$@\"\n" % sys.executable)
        os.chmod(python, 0o755)
        changed = {"PATH": os.path.dirname(python) + ":" + os.environ["PATH"], "LD_LIBRARY_PATH": "/of/ranks"}
        with unittest.mock.patch.dict(os.environ, changed):
            worker = self.init("sh", "-c", "echo; [ $LD_LIBRARY_PATH = /of/ranks ] && exit 7")
        self.assertEqual(processes.name(worker.pid), b"hvdctl-worker")
        self.assertEqual(worker.wait(20), 7)


class SharedMemory(unittest.TestCase):
    """Files that ranks have left in /dev/shm."""

    def setUp(self):
        self.top = tempfile.mkdtemp(dir="/dev/shm")
        self.addCleanup(shutil.rmtree, self.top)
        # when the job was created here
        self.began = time.time() - 10
        os.utime(shared_memory.__file__, (self.began, self.began))
        # other tests on this machine have jobs, too
        all_processes = processes.all_processes

        def own():
            return {pid: fields for pid, fields in all_processes().items() if os.getpid() in (pid, fields[1])}

        patch = mock.patch.object(processes, "all_processes", own)
        patch.start()
        self.addCleanup(patch.stop)

    def write(self, name, size=4096):
        path = os.path.join(self.top, name)
        with open(path, "wb") as file:
            file.write(b"x" * size)
        return path

    def left(self):
        return sorted(os.listdir(self.top))

    def test_what_no_process_uses_is_removed(self):
        for name in ("sem.mp-a1", "nccl-x8Zq1", "torch_123_456_0", "psm_0a1b2c3d", "cuda.shm.0.1a.1", "000000_locals"):
            self.write(name)
        self.assertEqual(shared_memory.remove(self.top), (6, 6 * 4096))
        self.assertEqual(self.left(), [])

    def test_what_may_be_of_others_stays(self):
        # a program's own, for example data for the next job
        self.write("dataset.bin")
        os.mkdir(os.path.join(self.top, "nccl-directory"))
        os.symlink("dataset.bin", os.path.join(self.top, "torch_1_2"))
        opened = open(self.write("nccl-open"), "rb")
        self.addCleanup(opened.close)
        with open(self.write("sem.mapped"), "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        self.addCleanup(memory.close)
        kept = self.left()
        self.write("nccl-unused")
        self.assertEqual(shared_memory.remove(self.top), (1, 4096))
        self.assertEqual(self.left(), kept)

    def test_what_was_there_before_the_job_stays(self):
        self.write("nccl-old")
        later = time.time() + 10
        os.utime(shared_memory.__file__, (later, later))
        self.assertEqual((shared_memory.remove(self.top), self.left()), ((0, 0), ["nccl-old"]))

    def test_nothing_is_removed_beside_another_job(self):
        self.write("sem.closed")
        other = subprocess.Popen(["sleep", "60"], env={"HVDCTL_JOB": "another", "PATH": os.environ["PATH"]})
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        self.assertEqual((shared_memory.remove(self.top), self.left()), ((0, 0), ["sem.closed"]))
        other.kill()
        other.wait()
        own = subprocess.Popen(["sleep", "60"], env={"HVDCTL_JOB": shared_memory.JOB, "PATH": os.environ["PATH"]})
        self.addCleanup(own.wait)
        self.addCleanup(own.kill)
        self.assertEqual(shared_memory.remove(self.top)[0], 1)

    def test_nothing_is_removed_if_a_process_cannot_be_examined(self):
        self.write("sem.closed")
        with mock.patch.object(shared_memory, "mapped", side_effect=PermissionError):
            self.assertEqual((shared_memory.remove(self.top), self.left()), ((0, 0), ["sem.closed"]))


class Outside(unittest.TestCase):
    """Files that a job has written outside the mounts."""

    def setUp(self):
        self.top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.top)

    def write(self, path, size=5, old=False):
        file = self.top + path
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "wb") as opened:
            opened.truncate(size)
        return file

    def found(self, since=0.0, others=(), **more):
        found = outside.find(since, others, top=self.top, **more)
        self.assertEqual(found.files, len(found.largest))
        return [path for _, _, path in sorted(found.largest, reverse=True)], found.is_whole

    def test_what_may_be_a_result(self):
        results = {"/root/ckpt/last.pt": 50, "/var/tmp/x.pt": 1 << 20, "/tmp/out/a.bin": 2 << 20, "/usr/src/app/log": 6,
                   "/a b\n\xe4": 7,
                   "/VOLUME/x": 8, "/opt/node1/y": 9, "/data/ray/x": 10, "/root/tmpab3_xy9z/x": 11,
                   "/opt/hvdctl-1/x": 12, "/tmp/out/ray/x": 3 << 20}
        for path, size in results.items():
            self.write(path, size)
        for path in ("/empty",):
            self.write(path, 0)
        for path in ("/root/.cache/hub/x", "/root/.hidden", "/usr/lib/x", "/etc/x", "/var/log/x", "/proc/x",
                     "/tmp/small", "/var/tmp/small",
                     "/opt/site-packages/x.py", "/app/__pycache__/x.pyc", "/mnt/data/x"):
            self.write(path)
        for path in ("/tmp/tmpab3_xy9z/x", "/tmp/torchinductor_root/x", "/tmp/ompi.node1.0/x", "/tmp/ray/x",
                     "/var/tmp/pymp-1/x"):
            self.write(path, 2 << 20)
        os.symlink(self.top + "/root/ckpt/last.pt", self.top + "/link")
        os.mkfifo(self.top + "/pipe")
        by_size = sorted(results, key=lambda path: -results[path])
        self.assertEqual(self.found(others={"/mnt/data"}), (by_size, True))

    def test_what_tells_why_a_job_failed_counts_whatever_its_size_is(self):
        reasons = {"/tmp/nccl_trace_rank_0": 90, "/tmp/comm_lib_trace_rank_11": 80, "/tmp/core": 70,
                   "/var/tmp/core.123": 60, "/tmp/app/python.core": 50, "/tmp/ray/session_2026/logs/worker.err": 40,
                   "/tmp/torchelastic_x1/none_ab/attempt_0/0/error.json": 30}
        for path, size in reasons.items():
            self.write(path, size)
        for path in ("/tmp/score", "/tmp/small", "/tmp/ray/session_2026/sockets/x", "/tmp/torchelastic_x1/0/stdout.log",
                     "/tmp/tmpab3_xy9z/core", "/tmp/core_ids.json"):
            self.write(path)
        for path in ("/tmp/ray/session_2026/x", "/tmp/torchelastic_x1/x"):
            self.write(path, 2 << 20)
        for name, text in (("stack.txt", "Thread 0x00007f (most recent call first):"), ("a", "Fatal Python error: x"),
                           ("hang", "Timeout (0:00:05)!\nThread")):
            with open(self.write("/tmp/" + name), "w") as file:
                file.write(text)
        os.mkfifo(self.top + "/tmp/pipe")
        expected = {*reasons, "/tmp/stack.txt", "/tmp/a", "/tmp/hang"}
        self.assertEqual(set(self.found(reasons=1 << 20)[0]), expected)
        self.assertEqual(self.found(), ([], True), "the job has not failed")
        found, is_whole = self.found(reasons=100)
        self.assertTrue(found and not is_whole, "under a limit on the sum")

    def test_a_job_has_failed_if_a_rank_of_the_node_did_not_end_with_0(self):
        path = os.path.join(JOB, "states")
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))
        self.assertFalse(outside.has_failed())
        for lines, failed in (("1.0 0 s \n2.0 0 x 0\n", False), ("2.0 0 x 0\n2.0 1 x 143 asked\n", True),
                              ("2.0 0 x 1\n", True), ("2.0 0 x\nx\n\n", False)):
            with open(path, "w") as file:
                file.write(lines)
            self.assertEqual(outside.has_failed(), failed, lines)

    def test_a_file_counts_if_it_was_changed_since_the_start(self):
        self.write("/old")
        since = os.stat(self.top + "/old").st_ctime + 1000
        self.assertEqual(self.found(since), ([], True))
        # an unpacked file has an old time of modification
        os.utime(self.top + "/old", (0, 0))
        self.assertEqual(self.found(os.stat(self.top + "/old").st_ctime), (["/old"], True))

    def test_it_takes_no_longer_than_its_limit_in_one_directory_either(self):
        for i in range(200):
            self.write("/root/%d" % i)
        seconds = itertools.count()
        with mock.patch.object(outside.time, "monotonic", lambda: next(seconds)):
            found, is_whole = self.found(limit=50)
        self.assertEqual((0 < len(found) <= 50, is_whole), (True, False))
        with mock.patch.object(outside, "MOST_DIRECTORIES", 3):
            self.assertEqual(self.found(), ([], False))

    def test_only_the_largest_are_kept(self):
        for i in range(20):
            self.write("/root/%d" % i, 1 + i * 7 % 20)
        with mock.patch.object(outside, "MOST", 3):
            found = outside.find(0.0, (), top=self.top)
        sizes = sorted(size for size, _, _ in found.largest)
        self.assertEqual((found.files, found.bytes, sizes, found.is_whole), (20, 210, [18, 19, 20], True))

    def test_what_cannot_be_read_was_not_examined(self):
        self.write("/a/b")
        scandir = os.scandir

        def fails(path, error):
            if path.endswith("/a"):
                raise error
            return scandir(path)

        for error, is_whole in ((FileNotFoundError(), True), (PermissionError(), False), (OSError(5, "EIO"), False)):
            with mock.patch.object(outside.os, "scandir", lambda path: fails(path, error)):
                self.assertEqual(self.found(), ([], is_whole), error)
        entry, found = mock.Mock(stat=mock.Mock(side_effect=OSError(5, "EIO"))), outside.Found()
        entry.name = "a"
        outside.examine(entry, "/a", 0.0, (), [], found)
        self.assertFalse(found.is_whole)

    def test_mount_points_are_left_out_but_an_images_own_volumes(self):
        lines = ["1 2 8:1 /opt/projects/p /workspace rw,relatime - ext4 /dev/sda1 rw",
                 "1 2 0:5 / /dev/shm rw - tmpfs shm rw",
                 "1 2 8:1 /var/lib/docker/volumes/%s/_data /checkpoints rw - ext4 /dev/sda1 rw" % ("a1" * 32),
                 "1 2 8:1 /var/lib/docker/volumes/named/_data /named rw - ext4 /dev/sda1 rw",
                 "1 2 8:1 /x /a\\040b rw - ext4 /dev/sda1 rw"]
        self.assertEqual(outside.mounts(lines), {"/workspace", "/dev/shm", "/named", "/a b"})

    def record(self, cwd, files, is_whole=True, **more):
        """What is reported, and what is in the file."""
        found = outside.Found()
        for file in files:
            found.add(file)
        found.is_whole = is_whole
        with open(os.path.join(JOB, "job.json"), "w") as file:
            json.dump({"cwd": cwd}, file)
        open(os.path.join(JOB, "launcher.json"), "w").close()
        # as job/start.sh has made it
        with open(os.path.join(JOB, "outside"), "w") as file:
            file.write("?")
        with mock.patch.object(outside, "find", **dict({"return_value": found}, **more)) as self.find:
            reported = outside.record()
        os.unlink(os.path.join(JOB, "job.json"))
        os.unlink(os.path.join(JOB, "launcher.json"))
        try:
            with open(os.path.join(JOB, "outside")) as file:
                text = file.read()
        except FileNotFoundError:
            return reported, None
        os.unlink(os.path.join(JOB, "outside"))
        return reported, text

    def test_the_list_and_what_is_reported(self):
        found = [(9, 5.5, "/a\udcff b\n"), (8, -1.0, "/" + "x" * 300), (7, 0.0, "/c"), (6, 0.0, "/d")]
        reported, text = self.record("/workspace", found)
        largest = [{"path": "/a\ufffd b\n", "bytes": 9}, {"path": "/" + "x" * 199, "bytes": 8},
                   {"path": "/c", "bytes": 7}]
        self.assertEqual(reported, {"files": 4, "bytes": 30, "largest": largest, "whole": True})
        self.assertTrue(job_files.fits(reported, outside.REPORT))
        self.assertEqual(text.splitlines()[::3], ['9 5 "/a\\udcff b\\n"', '6 0 "/d"'])
        many, text = self.record("/workspace", [(1 << 62, 0.0, "/x")] * 2000, False)
        self.assertEqual((many["bytes"], many["whole"], len(text.splitlines())), ((1 << 63) - 1, False, 1000))
        self.assertTrue(job_files.fits(many, outside.REPORT))

    def test_no_list_without_files_and_none_of_a_check(self):
        self.assertEqual(self.record("/workspace", []), (None, None))
        self.assertEqual(self.record("/jobs/" + os.path.basename(JOB), [(1, 0.0, "/x")]), (None, None))
        with mock.patch.object(outside.files, "write", side_effect=OSError):
            reported, text = self.record("/", [(1, 0.0, "/x")])
            self.assertEqual((reported["files"], text), (1, "?"))

    def test_no_job_fails_because_its_files_cannot_be_examined(self):
        self.assertEqual(self.record("/", [], False), (outside.UNSEEN, "?"))
        for error in OSError, MemoryError, UnicodeEncodeError("utf-8", "", 0, 1, ""), RuntimeError:
            self.assertEqual(self.record("/", [], side_effect=error), (outside.UNSEEN, "?"))
        # a file system that does not answer
        answers = threading.Event()
        with mock.patch.object(outside, "PATIENCE", 0):
            self.assertEqual(self.record("/", [], side_effect=lambda *_: answers.wait() and outside.Found()),
                             (outside.UNSEEN, "?"))
        answers.set()
        with mock.patch.object(outside.threading.Thread, "start", side_effect=RuntimeError):
            self.assertEqual(outside.record(), outside.UNSEEN)

    def test_what_the_image_has_is_older_than_its_container(self):
        for began in 0.0, 4e9:
            with mock.patch.object(outside, "began", return_value=began):
                self.record("/", [])
            self.assertEqual(self.find.call_args[0][0] == began, began > 0)
        clocks = mock.Mock(time=lambda: 5000.0, clock_gettime={time.CLOCK_BOOTTIME: 1000.0}.get,
                           CLOCK_BOOTTIME=time.CLOCK_BOOTTIME)
        started = b"%d" % (900 * os.sysconf("SC_CLK_TCK"))
        with mock.patch.object(outside, "time", clocks), mock.patch.object(processes, "start_time",
                                                                           return_value=started):
            self.assertEqual(outside.began(), 4900.0)
        self.assertLess(outside.began(), time.time())

    def test_the_result_has_the_files_of_so_many_nodes(self):
        one = {"files": 4, "bytes": 9, "largest": [{"path": "/" + "x" * 999, "bytes": 1, "more": 1}] * 9, "whole": True,
               "more": 1}
        nodes = outside.of_nodes(dict({"n%04d" % i: one for i in range(2000)}, gone=None))
        self.assertEqual([len(nodes), nodes[0]["node"], len(nodes[0]["largest"]), nodes[-1]["largest"]],
                         [2000, "n0000", 3, []])
        self.assertLess(len(json.dumps(nodes)), 300 << 10)


class OpenFiles(unittest.TestCase):
    """Each in a process of its own, which keeps what it has lowered."""

    def limits(self, given, call):
        program = "import resource, sys; sys.path.insert(0, %r); import job_supervisor, rank_supervisor;" \
            "from unittest import mock; resource.setrlimit(resource.RLIMIT_NOFILE, %r); %s;" \
            "print(*resource.getrlimit(resource.RLIMIT_NOFILE))" % (JOB, given, call)
        said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True,
                              universal_newlines=True)
        return tuple(map(int, said.stdout.split()))

    def test_ranks_get_the_hard_limit(self):
        self.assertEqual(self.limits((256, 1024), "rank_supervisor.set_limits({})"), (1024, 1024))
        self.assertEqual(self.limits((256, 1024), "rank_supervisor.set_limits({'stack': {'soft': 8192, 'hard': -1}})"),
                         (1024, 1024))
        self.assertEqual(self.limits((1024, 1024), "rank_supervisor.set_limits({})"), (1024, 1024))

    def test_the_inventory_has_the_last_word(self):
        set_limits = "rank_supervisor.set_limits({'nofile': {'soft': 256, 'hard': 1024}})"
        self.assertEqual(self.limits((512, 1024), set_limits), (256, 1024))

    def test_a_limit_is_bounded_and_never_lowered(self):
        for soft, hard, expected in [(1024, resource.RLIM_INFINITY, 1 << 20), (1024, 1 << 30, 1 << 20),
                                     (1 << 21, 1 << 30, None),
                                     (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None), (1024, 524288, 524288)]:
            with mock.patch.object(resource, "getrlimit", return_value=(soft, hard)), \
                    mock.patch.object(resource, "setrlimit") as changed:
                processes.raise_open_files()
            called = [mock.call(resource.RLIMIT_NOFILE, (expected, hard))] if expected else []
            self.assertEqual(changed.mock_calls, called)

    def test_a_limit_that_may_not_be_raised_is_left(self):
        with mock.patch.object(resource, "getrlimit", return_value=(256, 1024)), \
                mock.patch.object(resource, "setrlimit", side_effect=ValueError):
            processes.raise_open_files()

    def test_the_launcher_gets_it_too(self):
        # the rest of the supervisor has no part in it
        with open(os.path.join(JOB, "launch.json"), "w") as file:
            json.dump({"keep_alive": 15}, file)
        self.addCleanup(os.remove, os.path.join(JOB, "launch.json"))
        with_stand_in = "p = mock.patch.object(job_supervisor, 'JobSupervisor'); p.start(); job_supervisor.main()"
        self.addCleanup(lambda: os.path.exists(os.path.join(JOB, "result.json"))
                        and os.remove(os.path.join(JOB, "result.json")))
        self.assertEqual(self.limits((256, 1024), with_stand_in), (1024, 1024))


class EngineStop(unittest.TestCase):
    """The engine stops the job supervisor between two attempts, and kills it after a while."""

    def setUp(self):
        self.supervisor = job_supervisor.JobSupervisor.__new__(job_supervisor.JobSupervisor)
        self.supervisor.signals, self.supervisor.launch, self.supervisor.membership = [], {"node": "a"}, None
        self.supervisor.limits = job_state.Limits(1, 1, 1, None)

    def test_the_result_is_recorded_before_what_may_take_long(self):
        for sent, expected in ((job_state.BY_ENGINE, ["record", "clean", "finish"]),
                               (signal.SIGTERM, ["clean", "finish"])):
            self.supervisor.state = job_state.Starting(1, {"launcher": 7, "exits": []})
            self.supervisor.signals, order = [sent], []
            for name in ("write_names", "start"):
                setattr(self.supervisor, name, mock.Mock())
            for name in ("record", "clean", "finish"):
                setattr(self.supervisor, name, lambda *_, name=name: order.append(name))
            self.supervisor.run()
            self.assertEqual(order, expected)
            # a full disk does not keep what is left from being cleaned up
            self.supervisor.state, order[:] = job_state.Starting(1, {"launcher": 7, "exits": []}), []
            self.supervisor.record = mock.Mock(side_effect=OSError)
            self.supervisor.run()
            self.assertEqual(order, ["clean", "finish"])

    def test_nodes_that_do_not_answer_are_not_waited_for(self):
        asked, answered = threading.Event(), threading.Event()
        self.addCleanup(answered.set)
        present = mock.Mock(side_effect=lambda: asked.set() or answered.wait() and set())
        self.supervisor.membership = mock.Mock(present=present, added=list)
        self.supervisor.state, self.supervisor.roster = job_state.Regrouping(0, {}, 0, False), roster.Roster([], "a")
        self.supervisor.launch["workers"] = []
        threading.Thread(target=lambda: asked.wait() and self.supervisor.signals.append(job_state.BY_ENGINE)).start()
        self.assertEqual(self.supervisor.observe_nodes(), job_state.Request([job_state.BY_ENGINE]))

    def test_a_query_that_fails_here_is_repeated(self):
        present = mock.Mock(side_effect=[RuntimeError("no thread"), {"b"}])
        self.supervisor.membership = mock.Mock(present=present, added=list)
        self.supervisor.state = job_state.Regrouping(0, {}, time.monotonic() + 1000, False)
        self.supervisor.roster = roster.Roster([{"node": node, "ranks": 1} for node in "ab"], "a")
        self.supervisor.launch["workers"] = []
        with mock.patch("threading.excepthook", create=True), mock.patch("time.sleep"):
            observed = self.supervisor.observe_nodes()
        self.assertEqual((observed.ranks, observed.silent), (2, []))


class States(unittest.TestCase):
    def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(self):
        path = os.path.join(JOB, "states")
        os.mkfifo(path)
        self.addCleanup(os.unlink, path)
        self.assertEqual(reap.states(), reap.parse_states([]))

    def test_what_cannot_be_is_skipped(self):
        lines = ["nan 0 x 1", "1e400 0 x 1", "1.0 -1 x 1", "1.0 4294967296 x 1", "1.0 0 x 99999999999", "1.0 0 w -5",
                 "1.0 0 i 90 dreaming", "1.0 0 h 1 -60 ", "1.0 0 h 1 60 " + "a" * 5000]
        states = reap.parse_states(lines)
        self.assertEqual((states["exits"], states["lost"]), ([], []))
        self.assertEqual([len(hung["tensors"]) for hung in states["hung"]], [reap.MOST_TENSORS])

    def test_frames_of_ranks_are_read(self):
        lines = ["1.0 0 s ", "2.0 0 i 90 blocked", "3.0 0 h 1 60 grad, bias", "4.0 0 h 0 9 ", "5.0 0 w 12",
                 "5.1 1 u it timed out in  all_reduce [x]", "5.2 2 v 15 sleeping in clock_nanosleep",
                 "6.0 0 x 137 signal asked oom"]
        states = reap.parse_states(lines)
        self.assertEqual(states["started"], 1)
        self.assertEqual(states["exits"], [{"time": 6.0, "rank": 0, "code": 137, "signal": 9, "asked": True,
                                            "oom": True}])
        self.assertEqual(states["lost"], [{"time": 5.0, "rank": 0, "lines": 12}])
        self.assertEqual(states["gave_up"], [{"time": 5.1, "rank": 1, "text": "it timed out in  all_reduce [x]"}])
        self.assertEqual(states["quiet"], [{"time": 5.2, "rank": 2, "seconds": 15,
                                            "does": "sleeping in clock_nanosleep"}])
        self.assertEqual(states["hung"], [
            {"time": 2.0, "rank": 0, "seconds": 90, "idle": "blocked"},
            {"time": 3.0, "rank": 1, "seconds": 60, "tensors": "grad, bias"},
            {"time": 4.0, "rank": 0, "seconds": 9, "tensors": None},
        ])

    def test_a_rank_that_was_replaced_has_not_started(self):
        path = os.path.join(JOB, "states")
        self.addCleanup(os.unlink, path)
        place = {"node": "a", "address": "10.0.0.1", "ranks": 1}
        for lines, replaced, missing in ((["10.0 0 s "], 0, {}),
                                         (["10.0 0 s ", "20.0 0 x 7"], 25, {"a": "0 of 1 on a"}),
                                         (["10.0 0 s ", "20.0 0 x 7", "26.0 0 s "], 25, {}),
                                         # it was kept, and has ended
                                         (["10.0 0 s ", "30.0 0 x 0"], 25, {})):
            with open(path, "w") as file:
                file.write("\n".join(lines) + "\n")
            check = attempt.StartCheck({"node": "a", "start_timeout": 1}, None, [place], replaced)
            with mock.patch.object(attempt.time, "sleep"):
                check.poll()
            self.assertEqual(check.missing, missing, lines)

    def test_a_line_that_was_cut_off_is_skipped(self):
        self.assertEqual(reap.parse_states(["1.0 0 x", "1.0 0", "", "1.0 0 x no", "7.0 1 x 3"])["exits"][0]["code"], 3)

    def test_exit_codes_are_written_as_they_are_read(self):
        for code, asked, oom in [(0, False, False), (7, True, False), (-9, False, True), (143, True, True)]:
            frame = rank_supervisor.describe_exit(code, asked, oom).decode()
            read = reap.parse_states(["1.0 0 x " + frame])["exits"][0]
            self.assertEqual((read["code"], read["asked"], read["oom"]),
                             (code if code >= 0 else 128 - code, asked, oom))
            self.assertEqual(read["signal"], -code if code < 0 else None)


class Output(unittest.TestCase):
    def lines(self, *pieces, **options):
        written = []

        class Log:
            def write(self, _kind, lines):
                written.extend(lines)

        lines = frames.Lines(Log(), b"o", **options)
        for piece in pieces:
            lines.take(piece)
        lines.end()
        return written

    def test_lines_come_whole(self):
        self.assertEqual(self.lines(b"a", b"b\nc", b"\n\nd"), [b"ab", b"c", b"", b"d"])

    def test_each_state_of_a_progress_bar_is_a_line(self):
        """With --log-progress."""
        self.assertEqual(self.lines(b"\r 1%\r 2%", b"\r 3%\n", b"end\r\n"), [b" 1%", b" 2%", b" 3%", b"end"])

    def test_long_lines_are_cut(self):
        written = self.lines(b"x" * (2 * frames.LONGEST + 1))
        self.assertEqual([len(line) for line in written], [frames.LONGEST, frames.LONGEST, 1])

    def test_what_is_seen_is_not_logged(self):
        self.assertEqual(self.lines(b"a\nb\n", see=lambda line: line == b"a"), [b"b"])

    def test_a_log_gives_its_oldest_part_back(self):
        with tempfile.TemporaryDirectory() as directory:
            log = frames.Log(directory, 3)
            log.limit = 4096
            for _ in range(100):
                log.write(b"o", [b"x" * 100])
            self.assertGreater(log.freed, 0)
            with open(os.path.join(directory, "log"), "rb") as file:
                last = file.read().splitlines()[-1]
            self.assertEqual(last.split(b" ", 1)[1], b"3 o " + b"x" * 100)
            os.close(log.file)


class Signals(unittest.TestCase):
    """Signals of people for the ranks of a job under Slurm."""

    def start(self, program, **variables):
        env = dict(os.environ, HVDCTL_JOB=os.path.basename(JOB), HVDCTL_PROGRAM="1", **variables)
        child = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        child.stdout.readline()
        return child

    def test_processes_that_catch_a_signal_get_it_and_no_other_ends(self):
        catches = self.start("import signal, time\n"
                             "signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True))\n"
                             "print('ready', flush=True)\nwhile True: time.sleep(1)")
        other = self.start("import time; print('ready', flush=True); time.sleep(60)")
        reap.deliver(signal.SIGUSR1)
        self.assertEqual(catches.stdout.readline(), b"saved\n")
        self.assertIsNone(other.poll())
        # Slurm has sent it to all processes of the ranks
        bits = {b"ShdPnd": 1 << signal.SIGUSR1 - 1, b"SigCgt": 1 << signal.SIGUSR1 - 1}
        with mock.patch.object(reap, "supervisors", return_value=[1]), \
                mock.patch.object(reap, "signals", lambda _pid, field: bits[field]), \
                mock.patch.object(reap, "send") as send:
            reap.deliver(signal.SIGUSR1)
            send.assert_not_called()
            bits[b"ShdPnd"] = 0
            reap.deliver(signal.SIGUSR1)
            send.assert_called_once()

    def test_a_signal_goes_to_each_node_once(self):
        places = [{"node": "a"}, {"node": "b"}]
        nodes = mock.Mock()
        one = relay.Relay("a", lambda: places, nodes, None, None)
        with mock.patch.object(reap, "deliver") as here:
            # it comes to the batch script and to the step that listens
            one.send(10)
            one.send(10)
            one.send(12)
        self.assertEqual(here.call_args_list, [mock.call(10), mock.call(12)])
        self.assertEqual(nodes.signal.call_args_list, [mock.call(places[1], 10), mock.call(places[1], 12)])

    def test_an_end_of_the_step_that_listens_is_noted_if_slurm_has_ended_it(self):
        for is_over, expected in ((False, [mock.call()]), (True, [])):
            ended = mock.Mock()
            one = relay.Relay("a", list, None, mock.Mock(), ended)
            one.is_over = is_over
            step = mock.MagicMock(stdout=[b"ready\n"])
            with mock.patch.object(relay.allocation, "listen", return_value=step):
                one.listen()
            self.assertEqual(ended.call_args_list, expected)

    def test_what_ranks_are_to_get_before_the_limit_comes_before_the_request_to_end(self):
        supervisor = job_supervisor.JobSupervisor.__new__(job_supervisor.JobSupervisor)
        supervisor.warning, supervisor.signals, supervisor.relay = {"signal": 10, "seconds": 0}, [], mock.Mock()
        # of Slurm, which sends some signals twice
        supervisor.hold, supervisor.last_signal = mock.Mock(begun=True), None
        ended = threading.Event()
        with mock.patch.object(os, "kill", lambda pid, number: ended.set() or self.assertEqual(number, 50)):
            supervisor.note_limit()
            self.assertTrue(ended.wait(10))
        supervisor.relay.send.assert_called_once_with(10)
        self.assertEqual(supervisor.signals, [])
        supervisor.note_limit()
        self.assertEqual(supervisor.signals, [job_state.TIME_LIMIT])


class Shim(unittest.TestCase):
    """The process that a launcher has started in place of a rank's program."""

    def test_slurm_ends_a_rank_and_not_what_its_launcher_waits_for(self):
        answers, answer = os.pipe()
        gone, alive = os.pipe()
        shim = os.fork()
        if shim == 0:
            os.close(gone)
            os.environ["SLURMD_NODENAME"] = "n1"
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            rank_supervisor.be_shim(answers, alive)
        os.close(alive)
        while not processes.signals(shim, b"SigCgt") >> signal.SIGTERM - 1 & 1:
            time.sleep(0.01)
        os.kill(shim, signal.SIGTERM)
        self.assertEqual(os.read(gone, 1), b"", "the supervisor is not to know that the launcher is gone")
        # its launcher is to learn of that only when the ranks of all nodes have ended, or when it is ended itself
        os.write(answer, b"3 60 1")
        while os.waitpid(shim, os.WNOHANG)[0] == 0:
            time.sleep(0.05)
            os.kill(shim, signal.SIGTERM)
        for end in (answers, answer, gone):
            os.close(end)


class LauncherEnvironment(unittest.TestCase):
    def test_ranks_of_other_nodes_do_not_lose_their_gpus(self):
        """A launcher's container without GPUs says so in its environment, which launchers pass on."""
        for value, expected in ("void", None), ("all", "all"):
            seen = {}
            with mock.patch.dict(os.environ, NVIDIA_VISIBLE_DEVICES=value), \
                    mock.patch.object(attempt.Launcher, "start_processes",
                                      lambda _self, _places, env: seen.update(env) or []):
                attempt.Launcher({"reads": []}, None, None, None).start([], 0)
            self.assertEqual(seen.get("NVIDIA_VISIBLE_DEVICES"), expected)

    def test_what_a_launcher_does_not_get_is_in_a_file_for_the_ranks(self):
        patterns, path = ["PATH", "HOROVOD_*", "SLURM_JOB*", "SLURM_[!J]*"], os.path.join(JOB, "inherited.json")
        self.addCleanup(os.remove, path)
        login = {"PATH": "/bin", "TOKEN": "\udcff\n'", "horovod_x": "1", "SLURM_JWT": "1", "HVDCTL_PROCESS": "1",
                 "SLURM_PROCID": "0"}
        kept = {"HOROVOD_CACHE": "1", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
        seen = {}
        own = {"TMPDIR": "/scratch/a", "SLURM_CPUS_ON_NODE": "4", "SLURM_STEP_ID": "0"}
        with mock.patch.dict(os.environ, dict(login, **dict(kept, **own)), clear=True), \
                mock.patch.object(attempt.Launcher, "start_processes",
                                  lambda _self, _places, env: seen.update(env) or []):
            launch = {"reads": [], "slurm": True, "own": ["TMPDIR"], "inherits": patterns}
            attempt.Launcher(launch, None, None, None).start([], 3)
        self.assertEqual(seen, dict(kept, PATH=JOB + ":/bin"))
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        # what the launcher sets, and Slurm for the node, goes first
        with mock.patch.dict(os.environ, {"HOROVOD_CACHE": "2", "SLURM_PROCID": "1"}, clear=True):
            rank_supervisor.inherit()
            self.assertEqual(dict(os.environ), {"HOROVOD_CACHE": "2", "SLURM_PROCID": "1", "PATH": JOB + ":/bin",
                                                "TOKEN": "\udcff\n'",
                                                "horovod_x": "1", "SLURM_JWT": "1", "SLURM_JOB_ID": "7",
                                                "SLURM_NTASKS": "4", "HVDCTL_RESTART": "3"})
        # the reaper removes it with the environment of the user, unless there is another attempt
        reap.forget(True)
        self.assertTrue(os.path.exists(path))
        reap.forget(False)
        self.assertFalse(os.path.exists(path))
        open(path, "w").close()

    def test_other_nodes_of_an_allocation_get_no_environment_but_over_the_remote_shell(self):
        launch = {"slurm": True, "own": ["TMPDIR"], "node": "a", "reads": [], "files": {}, "start": "per-node",
                  "launcher": [], "workers": [], "port": 1}
        places = [{"node": name, "address": name, "ranks": 1} for name in "ab"]
        one, env = attempt.Launcher(launch, None, None, None), {"HVDCTL_JOB": "j", "X": "1"}
        self.assertEqual([one.request(places, at, env)["env"] for at in (0, 1)], [env, {"HVDCTL_JOB": "j"}])
        children = mock.Mock()
        workers.Workers(launch, children).ssh(places[1], [], ["true"], None, None, env=dict(env, TMPDIR="/first"))
        self.assertEqual(children.start.call_args[1]["env"], {"X": "1"})

    def test_the_home_directory_of_the_login_is_not_passed_on(self):
        home = pwd.getpwuid(os.getuid()).pw_dir
        self.assertEqual(node_launcher.inherited({"HOME": home, "LANG": "C"}, ["HOME", "LANG"]), {"LANG": "C"})
        self.assertEqual(node_launcher.inherited({"HOME": "/other", "X": "1"}, ["HOME"]), {"HOME": "/other"})
        self.assertEqual(node_launcher.inherited({"HOME": home, "X": "1"}, None), {"HOME": home, "X": "1"})

    def test_a_node_that_cannot_be_asked_has_failed(self):
        for name in (os.path.join("notebook", "notebook.py"), os.path.join("node", "tunnel.py")):
            shutil.copy(os.path.join(SCRIPTS, name), JOB)
        import notebook
        description = {"nodes": [{"node": "a"}, {"node": "b"}, {"node": "c"}, {"node": "d"}], "port": 22}

        def ssh(_description, node, _command, **more):
            if node["node"] == "b":
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            script = "cat" if node["node"] == "c" else "exit 3"
            return subprocess.Popen(["sh", "-c", script], **more)

        with mock.patch.object(notebook, "ssh", ssh):
            written, failed = notebook.on_others(description, ["receive"], b"files")
        self.assertEqual(written, {"c": b"files"})
        self.assertEqual(sorted(failed), ["b: [Errno 24] Too many open files", "d: exit code 3"])

    def test_a_launch_of_a_notebook_gets_no_more(self):
        shutil.copy(os.path.join(SCRIPTS, "notebook", "notebook.py"), JOB)
        shutil.copy(os.path.join(SCRIPTS, "node", "tunnel.py"), JOB)
        seen = "import json, os, sys; json.dump(dict(os.environ), open(%r, 'w'))" % os.path.join(JOB, "seen")
        description = {"nodes": [{"node": "a", "address": "10.0.0.1", "ranks": 1}], "port": 22, "reads": [],
                       "inherits": ["PATH", "HVDCTL_LAUNCH_MARK"],
                       "environment": {"HOROVOD_X": "1"}, "files": {},
                       "commands": [{"node": 0, "argv": [sys.executable, "-c", seen], "variables": []}]}
        here = {"cwd": JOB, "environment": {"PATH": os.environ["PATH"], "TOKEN": "secret", "DECLARED": "secret"},
                "defaults": {}}
        for name, value in (("notebook.json", description), ("notebook_rank.json", here),
                            ("env.json", {"DECLARED": "secret"})):
            with open(os.path.join(JOB, name), "w") as file:
                json.dump(value, file)
            self.addCleanup(os.remove, os.path.join(JOB, name))
        done = subprocess.run([sys.executable, os.path.join(JOB, "notebook.py"), "launch", "true"], timeout=60)
        self.assertEqual(done.returncode, 0)
        with open(os.path.join(JOB, "seen")) as file:
            names = set(json.load(file)) - {"LC_CTYPE"}
        self.assertEqual(names, {"PATH", "HVDCTL_LAUNCH_MARK"})

    def notebook(self, *arguments, **more):
        """notebook.py with the project `project` of the job's directory."""
        for program in ("notebook/notebook.py", "node/tunnel.py"):
            shutil.copy(os.path.join(SCRIPTS, program), JOB)
        project = os.path.join(JOB, "project")
        os.makedirs(project, exist_ok=True)
        self.addCleanup(shutil.rmtree, project, ignore_errors=True)
        rank = os.path.join(JOB, "notebook_rank.json")
        if not os.path.exists(rank):
            with open(rank, "w") as file:
                json.dump({"cwd": project, "environment": {}, "defaults": {}}, file)
            self.addCleanup(os.remove, rank)
        return subprocess.Popen([sys.executable, os.path.join(JOB, "notebook.py"), *arguments], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, **more)

    def test_a_node_that_keeps_nothing_says_nothing(self):
        def received(names):
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for name in names:
                    archive.addfile(tarfile.TarInfo(name))
            child = self.notebook("receive")
            out = child.communicate(packed.getvalue(), 60)[0]
            self.assertEqual(child.returncode, 0)
            return out
        self.assertEqual(received(["a.py"]), b"")
        names = ["out%d" % number for number in range(12)]
        os.utime(os.path.join(JOB, "notebook_rank.json"), (1, 1))
        for name in names:
            with open(os.path.join(JOB, "project", name), "w") as file:
                file.write("of a rank")
        self.assertEqual(received(names), (", ".join(names[:10]) + " and 2 more\n").encode())
        os.remove(os.path.join(JOB, "notebook_received.json"))

    def test_a_port_of_the_node_is_reached(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            listener.settimeout(30)
            child = self.notebook("forward", str(listener.getsockname()[1]))
            child.stdin.write(b"\n")
            child.stdin.flush()
            self.assertEqual(child.stdout.readline(), b"ready\n")
            child.stdin.write(struct.pack(">IH", 1, 3) + b"GET")
            child.stdin.flush()
            with listener.accept()[0] as connected:
                self.assertEqual(connected.recv(9), b"GET")
                connected.sendall(b"page")
                self.assertEqual(child.stdout.read(10), struct.pack(">IH", 1, 4) + b"page")
            child.stdin.close()
            child.wait(60)
            child.stdout.close()


class Isolated(unittest.TestCase):
    """Programs in a Python that looks neither for modules next to them nor at the environment."""

    def test_they_find_their_modules_and_those_of_python(self):
        shutil.copy(os.path.join(SCRIPTS, "notebook", "notebook.py"), JOB)
        shutil.copy(os.path.join(SCRIPTS, "node", "tunnel.py"), JOB)
        with tempfile.TemporaryDirectory() as of_user:
            for module in ("files", "resource", "json", "environment"):
                with open(os.path.join(of_user, module + ".py"), "w") as file:
                    file.write("raise SystemExit('%s of the user')" % module)
            env = dict(os.environ, PYTHONPATH=of_user, PYTHONHOME="/nowhere")
            for program in ("rank_supervisor", "job_supervisor", "node_launcher", "reap", "allocation", "queue_wait",
                            "notebook"):
                loads = "import runpy; runpy.run_path(%r, run_name='loaded')" % os.path.join(JOB, program + ".py")
                done = subprocess.run([sys.executable, "-I", "-c", loads], env=env, cwd=of_user,
                                      stderr=subprocess.PIPE)
                self.assertEqual((done.returncode, done.stderr), (0, b""), program)

    def test_the_environment_of_ranks_is_restored(self):
        with open(os.path.join(JOB, "shows.py"), "w") as file:
            file.write("import os, sys; sys.path.insert(0, %r); import environment; environment.take_back(); "
                       "print(sorted(os.environ.items()), sys.flags.isolated, sys.flags.utf8_mode)" % JOB)
        self.addCleanup(os.remove, os.path.join(JOB, "shows.py"))
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        for env in ({}, {"OPENSSL_CONF": "it's $x\n`y`", "GCONV_PATH": ""}, {"LC_CTYPE": "C.UTF-8"}, {"LC_ALL": "C"},
                    {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere", "LOCPATH": "a b"}):
            env = dict(env, PATH=path, PWD=JOB)
            done = subprocess.run(["sh", os.path.join(JOB, "hvdctl-python"), os.path.join(JOB, "shows.py")], env=env,
                                  cwd=JOB, stdout=subprocess.PIPE, check=True)
            # shells set these themselves
            shown = re.sub(r"\('(_|SHLVL|OLDPWD)', '[^']*'\)(, )?", "", done.stdout.decode()).replace(", ]", "]")
            self.assertEqual(shown.strip(), "%s 1 1" % sorted(env.items()))


class Kernels(unittest.TestCase):
    """The kernels of a notebook, with stand-ins for Jupyter's modules."""
    MODULES = {
        "ipykernel/kernelspec.py": "def get_kernel_dict(): return {'argv': ['x', '-m', 'ipykernel_launcher']}\n",
        "jupyter_client/kernelspec.py": "import os, types\nclass KernelSpecManager:\n"
                                        "    def get_kernel_spec(self, name):\n"
                                        "        return types.SimpleNamespace(argv=[os.environ['REGISTERED']])\n",
        "jupyter_client/provisioning.py": """
import signal
class LocalProvisioner:
    process = code = None
    def start(self):
        self.process, self.code = object(), None
    async def poll(self):
        return self.code
    async def send_signal(self, number):
        self.code = self.code if number == signal.SIGINT else -number
    async def kill(self, restart=False):
        self.code = -9
    async def terminate(self, restart=False):
        self.code = -15
""",
        "jupyterlab/__main__.py": """
import asyncio, json, os, signal, sys
from jupyter_client.provisioning import LocalProvisioner
one = LocalProvisioner()
def end(code, *asked):
    one.start()
    async def run():
        for method, *arguments in asked:
            await getattr(one, method)(*arguments)
        one.code = code or one.code
        return await one.poll(), await one.poll()
    print(asyncio.run(run()))
end(-9)
end(-9, ("send_signal", signal.SIGINT))
end(-11)
end(None, ("kill",))
end(None, ("terminate", True))
end(None, ("send_signal", signal.SIGTERM))
end(3)
print(os.environ.get("JUPYTER_PATH"))
""",
    }

    def run_server(self, registered):
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        for name, text in self.MODULES.items():
            path = os.path.join(directory, "modules", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(os.path.join(os.path.dirname(path), "__init__.py"), "w").close()
            with open(path, "w") as file:
                file.write(text)
        server = shutil.copy(os.path.join(SCRIPTS, "notebook", "server.py"), directory)
        env = dict(os.environ, PYTHONPATH=os.path.join(directory, "modules"), JUPYTER_RUNTIME_DIR=directory,
                   REGISTERED=registered, JUPYTER_PATH="/image")
        done = subprocess.run([sys.executable, server], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(directory, "kernels", "python3", "kernel.json")) as file:
            self.assertEqual(json.load(file)["argv"], [sys.executable, "-m", "ipykernel_launcher"])
        self.assertEqual(done.stdout.decode().splitlines()[-1], "%s:/image" % directory)
        return done.stderr.decode().splitlines()

    def test_cells_run_the_python_of_ranks_and_killed_kernels_are_named(self):
        killed = "a kernel was ended by SIGKILL; the machine or the container may have run out of memory"
        ends = [killed, killed, "a kernel was ended by SIGSEGV"]
        self.assertEqual(self.run_server(sys.executable), ends)
        # as from PATH
        self.assertEqual(self.run_server(shutil.which("python3") or "python3"), ends)
        other = "the kernel python3 is registered for /gone/python3 here; cells run %s, as ranks do" % sys.executable
        self.assertEqual(self.run_server("/gone/python3"), [other] + ends)


class Screen(unittest.TestCase):
    """A rank's output if of progress bars only the newest states are logged."""

    def written(self, pieces, see=None):
        """The lines that are logged, each with its time; pieces are bytes, or seconds that pass."""
        written = []
        clock = mock.Mock()
        clock.monotonic.return_value = 0.0

        class Log:
            def write(self, _kind, lines):
                written.extend((clock.monotonic(), line) for line in lines)

        with mock.patch.object(frames, "time", clock):
            lines = frames.LastStates(Log(), b"e", see)
            for piece in pieces:
                if isinstance(piece, bytes):
                    lines.take(piece)
                else:
                    clock.monotonic.return_value += piece
                lines.idle()
            lines.end()
        return written

    def lines(self, *pieces, **options):
        return [line for _, line in self.written(pieces, **options)]

    def test_a_bar_is_logged_once_a_second(self):
        for form in (b"\r%d%%", b"%d%%\r", b"\r\x1b[K%d%%", b"\r\x1b[2K\x1b[32m%d%%\x1b[0m", b"%d%%\x08\x08\x08\r"):
            pieces = [piece for step in range(1, 601) for piece in (form % step,
                                                                    0.1)] + [form.strip(b"\r") % 700 + b"\n", b"end\n"]
            written = self.written(pieces)
            times = [time for time, _ in written]
            self.assertTrue(55 <= len(written) <= 62, (form, written))
            self.assertTrue(all(after - before >= 0.99 for before, after in zip(times, times[1:-2])), (form, times))
            self.assertIn(b"700%", written[-2][1])
            self.assertEqual(written[-1][1], b"end")
            steps = [int(re.search(rb"([0-9]+)%", line).group(1)) for _, line in written[:-2]]
            self.assertTrue(all(abs(step - 10 * time) <= 2 for step, time in zip(steps, times)),
                            "the newest: %s" % written)

    def test_a_slow_bar_is_logged_while_it_waits(self):
        self.assertEqual(self.lines(b"\r1%", 1.5, b"\r2%", 1.5, b"\r2%\n"), [b"1%", b"2%", b"2%"])
        self.assertEqual(self.lines(b"1%\r", 1.5, b"2%\r", 1.5, b"\n", b"end\n"), [b"1%", b"2%", b"end"])

    def test_what_a_bar_leaves_is_always_logged(self):
        for rest in (b"", b"\n", b"\r", b"\r\n", b"\r\r\n", b"\r       ", b"\r       \r"):
            self.assertEqual(self.lines(b"\r 1%\r100%" + rest), [b"100%"], rest)
        self.assertEqual(self.lines(b"\r 1%\r100%\r", b"\nend"), [b"100%", b"end"])

    def test_other_output_is_as_it_was(self):
        for text in (b"a\n\nb\n", b"  \n", b"\x1b[31mred\x1b[0m\n\x1b]0;title\x07\x1b[2J\x08\n", b"\xff\xfe\x00\n"):
            self.assertEqual(self.lines(text), text.split(b"\n")[:-1])
        self.assertEqual(self.lines(b"one\r\n\r\ntwo\r", b"\nthree"), [b"one", b"", b"two", b"three"])
        self.assertEqual(self.lines(b"wait", 2, b" done\nask: ", 2, b"\n\nend\n"),
                         [b"wait", b" done", b"ask: ", b"", b"end"])
        written = self.lines(b"\r" + b"x" * (2 * frames.LONGEST + 1))
        self.assertEqual([len(line) for line in written], [frames.LONGEST, frames.LONGEST, 1])

    def test_lines_between_the_states_of_a_bar(self):
        """As `tqdm.write` prints them."""
        pieces = [piece for step in range(100) for piece in (
            b"\r%d%%" % step, b"\r      \r", b"loss %d" % step, b"\n", b"\r%d%%" % step, 0.1)]
        written = self.lines(*pieces)
        self.assertEqual([line for line in written if line.startswith(b"loss")],
                         [b"loss %d" % step for step in range(100)])
        self.assertEqual(written[-1], b"99%")
        self.assertLessEqual(len(written), 111)

    def test_each_of_several_bars_is_logged_once_a_second(self):
        """The cursor moves up between them: nested bars as tqdm draws them, and a table as rich does."""
        tqdm, table = [b"\router 0"], [b"a 0\nb 0\nc 0"]
        for step in range(1, 301):
            tqdm += [b"\n\rinner %d\x1b[A" % step, 0.1]
            tqdm += [b"\n\r        \x1b[A", b"\router %d" % step] if step % 10 == 0 else []
            table += [b"\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2Ka %d\nb %d\nc %d" % (step, step, step), 0.1]
        for pieces, last, bars in ((tqdm + [b"\n"], [b"outer 300", b"inner 300"], 2),
                                   (table, [b"a 300", b"b 300", b"c 300"], 3)):
            written = self.lines(*pieces)
            self.assertTrue(27 * bars <= len(written) <= 32 * bars, written)
            self.assertEqual(sorted(written[-bars:]), sorted(last))
            self.assertFalse([line for line in written if b"\x1b" in line])

    def test_what_a_terminal_shows_at_the_end_is_logged(self):
        random = Random(7)
        for _ in range(100):
            pieces, screen, row, bottom = [], {}, 0, 0
            for number in range(random.randrange(60)):
                text = b"%d." % number if random.random() < 0.7 else b""
                screen[row] = text or screen.get(row, b"")
                # a text begins in the first column
                end, rows = random.choice([(b"\r", 0), (b"\n", 1), (b"\r\n", 1), (b"\x1b[A\r", -1), (b"\x1b[2A\r", -2),
                                           (b"\x1b[B\r", 1)])
                row = row + rows if b"\n" in end else min(row + rows, bottom)
                bottom = max(row, bottom)
                pieces.append(text + end)
                pieces += [random.random()] if random.random() < 0.3 else []
            stream = [piece for piece in pieces if isinstance(piece, bytes)]
            for form in (pieces, [b"".join(stream)], [b"%c" % byte for byte in b"".join(stream)]):
                lines = self.lines(*form)
                self.assertEqual([text for text in screen.values() if text and text not in lines], [], (form, lines))

    def test_many_rows_wait_in_bounded_memory(self):
        with mock.patch.object(frames, "MOST_ROWS", 3):
            written = self.written([b"0\n1\x1b[A\r2\n3\n4\n5\n6\n", 0.5, b"7\n"])
        self.assertEqual([line for _, line in written], [b"0", b"2", b"3", b"4", b"5", b"6", b"7"])
        self.assertEqual(written[3][0], 0.0)

    def test_everything_is_seen_once(self):
        seen = []
        self.lines(b"a\n\rb\rc\x1b[A\nd\n", 2, b"e", 2, b"\n", see=lambda line: seen.append(line))
        self.assertEqual([text for text in seen if text], [b"a", b"b", b"c", b"d", b"e"])


class Hangs(unittest.TestCase):
    LAUNCHER = {"init": "start", "hang_reports": {
        "never_began": r"waited (?P<seconds>\d+) s for (?P<rank>\d+)", "missing": "Missing:",
        "missing_rank": r"^(?P<rank>\d{1,9})(?P<over>!?): (?P<tensors>.*)$",
        "gave_up": r"stalled for (?P<seconds>\d+)"}}

    def reports(self, lines, launcher=LAUNCHER):
        states = []

        class Log:
            def state(self, _kind, text):
                states.append(text)

        reports = rank_supervisor.HangReports(Log(), launcher)
        for line in lines:
            self.assertFalse(reports.see(line))
        return states

    def test_missing_ranks_are_reported_when_the_library_gives_up(self):
        lines = [b"3!: 0.1", b"Missing:", b"0!: old", b"Missing:", b"1!: grad", b"2!: bias, grad", b"3: a",
                 b"stalled for 60"]
        self.assertEqual(self.reports(lines), [b"1 60 grad", b"2 60 bias, grad"])
        self.assertEqual(self.reports(lines[:-1]), [])
        # another thread writes between its lines
        self.assertEqual(self.reports(lines[3:5] + [b"step 4"] + lines[5:]), [b"1 60 grad", b"2 60 bias, grad"])

    def test_what_others_wait_for_is_known_before_the_library_gives_up(self):
        reports = rank_supervisor.HangReports(None, self.LAUNCHER)
        self.assertEqual((reports.awaited(), reports.take_new()), ([], False))
        for line in (b"Missing:", b"1: grad", b"step 4", b"7: 0.5", b"8!: 0.5"):
            reports.see(line)
        found = [{"rank": 1, "tensors": "grad"}, {"rank": 8, "tensors": "0.5"}]
        self.assertEqual((reports.awaited(), reports.take_new(), reports.take_new()), (found, True, False))
        for line in [b"Missing:"] + [b"%d: \x1b[2J" % rank for rank in range(99)]:
            reports.see(line)
        self.assertEqual(len(reports.awaited()), 64)
        self.assertEqual(reports.awaited()[0], {"rank": 0, "tensors": "?[2J"})
        # Rust makes them numbers in the job, except in frames that have only those
        reports = rank_supervisor.HangReports(mock.Mock(), self.LAUNCHER, lambda rank: rank + 10)
        for line in (b"Missing:", b"1!: grad", b"stalled for 60"):
            reports.see(line)
        self.assertEqual(reports.awaited(), [{"rank": 1, "tensors": "grad"}])
        reports.log.state.assert_called_once_with(b"h", b"11 60 grad")
        # the ranks have gone on
        with mock.patch.object(hang_reports, "NAMED", -1):
            self.assertEqual(reports.awaited(), [])

    def test_a_rank_that_never_began_is_reported(self):
        self.assertEqual(self.reports([b"waited 30 s for 1"]), [b"1 30 start"])

    def test_a_launcher_without_such_messages_has_no_patterns(self):
        self.assertEqual(self.reports([b"Missing:", b"stalled for 60"], {"init": "", "hang_reports": {}}), [])


class FlightRecorder(unittest.TestCase):
    """Where PyTorch writes about its last operations."""

    def setUp(self):
        self.project, self.temporary = tempfile.mkdtemp(), tempfile.mkdtemp()
        for directory in self.project, self.temporary:
            self.addCleanup(shutil.rmtree, directory)

    def variables(self, env, **job):
        return flight_recorder.variables(env, dict({"cwd": self.project, "project": "digits"}, **job), self.temporary)

    def test_its_files_are_written_to_the_project_or_where_the_container_has_them(self):
        found = self.variables({})
        prefix = "%s/nccl_trace_%s_rank_" % (self.project, os.path.basename(JOB))
        self.assertEqual([found[name] for name in flight_recorder.FILES], [prefix] * 2)
        for job in ({"project": None}, {"cwd": "/nowhere"}):
            prefix = self.temporary + "/nccl_trace_rank_"
            self.assertEqual(self.variables({}, **job)[flight_recorder.FILES[0]], prefix)
        # a process of the login shares that directory with others
        with mock.patch.dict(os.environ, {"HVDCTL_PROCESS": "x"}):
            found = self.variables({}, project=None)
        own = {flight_recorder.FILES[0]: JOB + "/nccl_trace.", flight_recorder.PIPES[1]: JOB + "/dump."}
        self.assertEqual({name: found[name] for name in own}, own)
        self.assertEqual([os.listdir(self.project), os.listdir(self.temporary)], [[], []])

    def test_what_the_user_has_set_counts(self):
        for names in flight_recorder.FILES, flight_recorder.PIPES:
            for name in names:
                found = self.variables({name: "/mine/x"})
                self.assertFalse(set(names) & set(found), "a newer name would replace that of the user")
                self.assertEqual(len(found), 2)

    def test_there_is_no_pipe_where_none_can_be_created(self):
        pipes = set(flight_recorder.PIPES)
        self.assertLessEqual(pipes, set(self.variables({})))
        with mock.patch("os.mkfifo", side_effect=PermissionError):
            self.assertFalse(pipes & set(self.variables({})))


class GivingUp(unittest.TestCase):
    """The last lines of a rank that gave up waiting."""

    WAITED = b"RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete"
    CLOSED = b"RuntimeError: [/gloo/pair.cc:561] Connection closed by peer [127.0.0.1]:14216."
    CHAIN = b"The above exception was the direct cause of the following exception:"

    def lines(self, *lines):
        last = last_lines.LastLines(["Timed out waiting", "Connection closed by peer", "Connection refused"])
        for line in lines:
            self.assertFalse(last.see(line))
        return last.gave_up()

    def test_they_are_found_without_the_rank_before_them(self):
        trace = [b"Traceback (most recent call last):", b'  File "/workspace/train.py", line 9, in <module>']
        self.assertEqual(self.lines(*[b"[rank0]: " + line for line in trace + [self.WAITED]]), [self.WAITED])
        self.assertEqual(self.lines(self.CLOSED, self.WAITED, self.CLOSED), [self.WAITED, self.CLOSED])
        self.assertEqual(self.lines(*[b"%d " % i + self.WAITED for i in range(9)])[0], b"5 " + self.WAITED)
        self.assertEqual(self.lines(b"step 1", b"x" * 99), [])

    def test_another_error_counts_if_it_ended_the_program(self):
        other = b"torch.OutOfMemoryError: CUDA out of memory."
        self.assertEqual(self.lines(self.WAITED, other), [])
        self.assertEqual(self.lines(self.WAITED, b"[rank3]: " + other), [])
        self.assertEqual(self.lines(other, self.WAITED), [self.WAITED])
        self.assertEqual(self.lines(self.WAITED, b"", self.CHAIN, b"", b"RuntimeError: no step"), [self.WAITED])
        # of a program that started this one
        for wrapper in (b"subprocess.CalledProcessError: Command", b"terminate called after",
                        b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "):
            self.assertEqual(self.lines(self.WAITED, wrapper), [self.WAITED], wrapper)

    def test_a_lost_connection_counts_in_the_error_that_ended_the_program(self):
        warning = (b"[W socket.cpp:601] [c10d] The client socket has failed to connect to [node1]:29500 "
                   b"(errno: 111 - Connection refused).")
        waited = b"ERROR train.py: Timed out waiting 5000ms"
        newer = b"[rank1]:[W1003 18:37:01.832146912 TCPStore.cpp:125] recvValue failed: Connection closed by peer"
        other = b"torch.OutOfMemoryError: CUDA out of memory."
        error = b"torch.distributed.DistNetworkError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error"
        reason = b"socketStartConnect: Connect to 10.0.0.2<45> failed : Connection refused"
        watchdog = b"[E1003 18:37:01 ProcessGroupNCCL.cpp:607] Connection closed by peer"
        for lines, found in (([warning, newer, b"step 1"], []), ([warning, b"", other, newer], []),
                             ([b"INFO: api: Connection refused, again in 5 s"], []),
                             ([error, *[b"step"] * 9, reason], []), ([error, b"Last error:", reason], [reason]),
                             ([b"[rank1]:" + watchdog], [watchdog]), ([self.CLOSED, newer], [self.CLOSED]),
                             ([self.CLOSED, b"", self.CHAIN, b"", b"RuntimeError: no step"], [self.CLOSED]),
                             ([waited], [waited]),
                             ([b"[W1003 18:37:01 socket.cpp:1] Timed out waiting"], [])):
            self.assertEqual(self.lines(*lines), found, lines)

    def test_a_program_that_is_not_python_gave_up_at_its_end(self):
        texts = ["Connection closed by", "Connection reset by peer", "has unexpectedly", "network error",
                 "error with rank"]
        for line in (b"node1:812:830 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer",
                     b"node1: Test NCCL failure common.cu:303 'remote process exited or there was a network error / '",
                     b"[node1][[5,1],0][btl_tcp.c:559:mca_btl_tcp_recv_blocking] "
                     b"recv(25) failed: Connection reset by peer",
                     b"An MPI communication peer process has unexpectedly disconnected.  This",
                     b"MPIDI_CH3_iSendv(34)............: Communication error with rank 229",
                     b"MPIDI_CH3U_Recvq_FDU_or_AEP(629): Communication error with rank 3",
                     b"[16:1] node1:5 tcp_ep.c:1185 UCX  ERROR tcp_ep 0x5: recv failed: Connection reset by peer"):
            for after, found in ((9, [line]), (90, [])):
                last = last_lines.LastLines(texts)
                for each in [line] + [b"step"] * after:
                    last.see(each)
                self.assertEqual(last.gave_up(), found, line)
            last.see(line)
            last.see(b"torch.OutOfMemoryError: CUDA out of memory.")
            self.assertEqual(last.gave_up(), [])
        last = last_lines.LastLines(texts)
        last.see(b"node1:812:830 [0] NCCL INFO Call to connect returned Connection reset by peer, retrying")
        self.assertEqual(last.gave_up(), [])

    def test_a_rank_that_was_ended_has_not_given_up(self):
        for code in (1, 3, 255, 134, -signal.SIGABRT):
            self.assertTrue(last_lines.may_have_given_up(code, False), code)
            self.assertFalse(last_lines.may_have_given_up(code, True), code)
        for code in (0, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGSEGV, 143, 137, 139, None):
            self.assertFalse(last_lines.may_have_given_up(code, False), code)

    def test_only_the_last_lines_are_kept(self):
        self.assertEqual(self.lines(self.WAITED, *[b"step"] * last_lines.KEPT), [])
        self.assertEqual(self.lines(self.WAITED + b"x" * (1 << 16)), [self.WAITED + b"x" * (400 - len(self.WAITED))])


class Launchers(unittest.TestCase):
    """The loss of processes above a rank."""

    def watch(self, names):
        """A watch on a rank below these processes, by name; process 1 comes last."""
        names = {pid: name.encode() for pid, name in enumerate(names, 10)}
        self.ancestors = list(names) + [1]
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        self.addCleanup(os.close, write)
        for patch in (mock.patch.object(processes, "name", lambda pid: names.get(pid, b"init")),
                      mock.patch.object(processes, "ancestors", lambda _shim: list(self.ancestors))):
            patch.start()
            self.addCleanup(patch.stop)
        return rank_supervisor.LauncherWatch(10, read, ["orted"])

    def gone(self, watch, count):
        """Returns what is lost when only so many processes are left above the rank, and process 1."""
        self.ancestors = list(range(10, 10 + count)) + [1]
        return watch.has_lost_worker(), watch.has_lost_session(), watch.lost

    def test_a_worker_that_has_ended_is_no_lost_session(self):
        for names in (["python3", "orted", "sh", "sshd", "sshd", "hvdctl-worker"],
                      # newer OpenSSH; a worker of an earlier hvdctl
                      ["python3", "orted", "sh", "sshd-session", "sshd"]):
            watch = self.watch(names)
            self.assertEqual(self.gone(watch, len(names)), (False, False, False))
            # its main process, or its sshd
            for left in range(4, len(names)):
                self.assertEqual(self.gone(watch, left), (True, False, False), (names, left))
            self.assertEqual(self.gone(watch, 2), (False, True, True))
            self.assertEqual(watch.orphan, 11)

    def test_without_sshd_every_process_above_counts(self):
        names = ["python3", "slurmstepd"]
        self.assertEqual(self.gone(self.watch(names), 2), (False, False, False))
        self.assertEqual(self.gone(self.watch(names), 1), (False, True, True))


class Rank(unittest.TestCase):
    def test_the_first_variable_that_is_set_counts(self):
        self.assertEqual(rank_supervisor.first_number(["A", "B"], {"A": "", "B": "3", "C": "4"}), 3)
        self.assertEqual(rank_supervisor.first_number(["A"], {}), 0)

    def test_why_a_program_cannot_be_started(self):
        here = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, here)
        with open(sys.executable, "rb") as file:
            elf = bytearray(file.read(4096))
        elf[18:20] = b"\x08\x00" if sys.byteorder == "little" else b"\x00\x08"  # e_machine: MIPS
        for name, mode, text in [("crlf", 0o755, b"#!/bin/bash\r\n"), ("zsh", 0o755, b"#! /no/zsh -f\n"),
                                 ("nox", 0o644, b"#!/bin/sh\r\n"), ("text", 0o644, b"echo\n"),
                                 ("elf", 0o644, bytes(elf)),
                                 ("ape", 0o755, b"MZqFpD='\n"), ("jar", 0o755, b"\xca\xfe\xba\xbe\0"),
                                 ("bare", 0o755, b"echo hi\n"), ("bom", 0o755, b"\xef\xbb\xbf#!/bin/sh\n"),
                                 ("exe", 0o755, b"MZ\x90\0"), ("mac", 0o755, b"\xcf\xfa\xed\xfe"),
                                 ("mips", 0o755, bytes(elf)),
                                 ("python3", 0o755, b"#!/bin/sh\n")]:
            with open(os.path.join(here, name), "wb") as file:
                file.write(text)
            os.chmod(os.path.join(here, name), mode)
        gone, denied, wrong = "No such file or directory", "Permission denied", "Exec format error"
        for argv, cwd, error, fault, about in [
                (["no-such"], "/", gone, None, None), ([b"no-\xc3\xa4"], "/", gone, None, None),
                (["/"], "/", denied, None, None), (["./crlf"], here, gone, "line_ends", "/bin/bash"),
                (["./zsh"], here, gone, "interpreter_missing", "/no/zsh"),
                (["crlf"], here, gone, "not_in_path", here), (["./nox"], here, denied, "not_executable", "#!/bin/sh"),
                (["./text"], here, denied, "no_interpreter_either", None),
                (["./elf"], here, denied, "not_executable", None),
                (["./ape"], here, wrong, "portable", None), (["./jar"], here, wrong, "other_system", "Java or macOS"),
                (["./bare"], here, wrong, "no_interpreter", None), (["./bom"], here, wrong, "byte_order_mark", None),
                (["./exe"], here, wrong, "other_system", "Windows"), (["./mac"], here, wrong, "other_system", "macOS"),
                (["./mips"], here, wrong, "other_processor", None)]:
            with self.assertRaises(OSError) as failed:
                subprocess.call(argv, cwd=cwd)
            self.assertEqual(starting.failure(argv[0], failed.exception, cwd, os.environ["PATH"]),
                             {"program": os.fsdecode(argv[0]), "error": error, "fault": fault, "about": about})
        with self.assertRaises(OSError) as failed:
            subprocess.call(["true"], cwd="/no/such")
        self.assertEqual(starting.failure("true", failed.exception, "/no/such", "/"),
                         {"program": "true", "error": "/no/such: " + gone})
        error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "python")
        for path, fault in (here, "only_python3"), ("/no/such", None):
            self.assertEqual(starting.failure("python", error, "/", path),
                             {"program": "python", "error": gone, "fault": fault, "about": None})

    def test_programs_that_are_python_or_start_it(self):
        here = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, here)
        for name, text in [("train", "#!/usr/bin/env python3\n"), ("tool", "#!/bin/sh\nexec /opt/x/bin/python x\n"),
                           ("run.sh", "set -e\ntorchrun train.py\n"), ("prog.sh", "#!/bin/sh\n./prog\n"),
                           ("pythonic.sh", "#!/bin/sh\necho python-like\n"), ("far.sh", "#" * 60000 + "\npython x")]:
            with open(os.path.join(here, name), "w") as file:
                file.write(text)
            os.chmod(os.path.join(here, name), 0o755)
        python = ["python x", "python3.11 -m x", "/opt/bin/pypy3 x", "nsys profile python x", "./train", "train",
                  "./tool", "bash run.sh",
                  "bash -e far.sh", "sh -c|cd a && python x", "./main.py", "numactl -N 0 ./train",
                  "nohup ./prog"]
        others = ["./prog", "perl x.pl", "bash prog.sh", "./prog.sh", "./pythonic.sh", "ipython-like", "sh -c|echo a",
                  "no-such", here, "/"]
        for commands, expected in (python, True), (others, False):
            for command in commands:
                argv = command.split("|") if "|" in command else command.split()
                argv = argv[0].split() + argv[1:]
                with self.subTest(command):
                    self.assertIs(starting.runs_python(argv, here, here), expected)
        self.assertFalse(starting.runs_python([b"./\xff"], here, here))
        with mock.patch.object(os, "openpty", side_effect=OSError(errno.ENOSPC, "no ptys")):
            self.assertIsNone(starting.terminal())

    def test_the_python_that_the_image_has_runs_a_default_command(self):
        both, new, none = tempfile.mkdtemp(), tempfile.mkdtemp(), tempfile.mkdtemp()
        for directory in both, new, none:
            self.addCleanup(shutil.rmtree, directory)
        for file in both + "/python", both + "/python3", new + "/python3":
            os.symlink(sys.executable, file)
        default = ["python", "train.py"]
        for argv, is_default, path, runs in [(default, True, both, default),
                                             (default, True, new, ["python3", "train.py"]),
                                             (default, True, none, default), (default, False, new, default),
                                             (default, None, new, default),
                                             ([b"python", "x"], False, new, [b"python", "x"])]:
            self.assertEqual(starting.available(argv, is_default, path), runs)

    def test_whose_environment_goes_first(self):
        launcher = {"environment": {"IFACE": "eth0", "OWN": "launcher"}, "defaults": {"SOFT": "eth0", "HARD": "eth0"}}
        env = rank_supervisor.program_environment({"HARD": "lo", "IFACE": "lo"}, launcher,
                                                  {"OWN": "user", "PYTHONUNBUFFERED": "0"})
        self.assertEqual(env, {"IFACE": "eth0", "OWN": "user", "SOFT": "eth0", "HARD": "lo", "HVDCTL_PROGRAM": "1",
                               "PYTHONUNBUFFERED": "0"})

    def test_how_long_a_rank_may_be_idle(self):
        for stall, size, limit in [(1800, 2, 1830), (1800, 1, None), (0, 2, None)]:
            self.assertEqual(rank_supervisor.idle_limit({"stall": stall, "idle_margin": 30}, size), limit)

    def test_the_shortest_time_decides_how_often_a_rank_is_observed(self):
        for exists in (True, False):
            with mock.patch("os.path.exists", return_value=exists):
                limits = [rank_supervisor.first_limit(limits)
                          for limits in ([None, 1800], [90, 1800], [90, 0], [None, 0])]
            self.assertEqual(limits, [1800, 90, 90, None] if exists else [None] * 4)


class Waits(unittest.TestCase):
    class Log:
        def __init__(self, directory):
            self.directory, self.rank, self.written = directory, 3, []

        def state(self, kind, text):
            self.written.append(b"%s %s" % (kind, text))

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.log, self.file = self.Log(directory.name), os.path.join(directory.name, "idle.3")
        self.clock = 1000.0

    def note(self, rank, seconds, later=0, does="sleeping"):
        self.clock += later
        with mock.patch("time.monotonic", lambda: self.clock), mock.patch("time.time", lambda: 5000.0 + self.clock):
            rank.note(seconds, lambda: does)
        written, self.log.written = self.log.written, []
        return written

    def test_a_wait_is_reported_once_and_that_it_is_over(self):
        rank = waiting.Waiting(self.log, 60)
        self.assertEqual([self.note(rank, seconds, 1) for seconds in (0, 59, 59.9)], [[], [], []])
        self.assertEqual(self.note(rank, 60, 1, "waiting in futex\n\u00e4\udcff"), [b"q 60 waiting in futex?\xc3\xa4?"])
        with open(self.file, "rb") as file:
            self.assertEqual(file.read(), b"5944 waiting in futex?\xc3\xa4?\n")
        self.assertEqual(self.note(rank, 3600, 3540), [])
        # it went on 5 s ago
        self.assertEqual(self.note(rank, 5, 65), [b"g 3660"])
        self.assertFalse(os.path.exists(self.file))
        self.assertEqual([self.note(rank, seconds, 1) for seconds in (59, 60, 61)], [[], [b"q 60 sleeping"], []])

    def test_a_stopped_rank_that_only_turns_out_to_sleep_still_waits(self):
        rank = waiting.Waiting(self.log, 60)
        self.assertEqual([self.note(rank, seconds, 1) for seconds in (100, 90, 91)], [[b"q 100 sleeping"], [], []])

    def test_where_it_is_is_there_as_long_as_it_waits(self):
        place = self.file.replace("idle", "place")
        rank = waiting.Waiting(self.log, 60)
        rank.note_place(b"{}")
        self.assertFalse(os.path.exists(place), "it went on before it had been read")
        self.note(rank, 60)
        rank.note_place(b"{}")
        with open(place, "rb") as file:
            self.assertEqual(file.read(), b"{}\n")
        self.note(rank, 1, 1)
        self.assertFalse(os.path.exists(place))

    def test_without_a_limit_nothing_is_reported(self):
        rank = waiting.Waiting(self.log, 0)
        self.assertEqual(self.note(rank, 1e6) + self.note(rank, 0), [])

    def test_what_an_earlier_attempt_left_is_removed_and_a_full_disk_is_no_error(self):
        with open(self.file, "w"):
            pass
        rank = waiting.Waiting(self.log, 60)
        self.assertFalse(os.path.exists(self.file))
        with mock.patch("os.write", side_effect=OSError(28, "No space left on device")):
            self.assertEqual(self.note(rank, 60), [b"q 60 sleeping"])

    def test_system_calls_have_words(self):
        for machine, number, name in [("x86_64", 202, "futex"), ("aarch64", 98, "futex"), ("x86_64", 7, "poll"),
                                      ("aarch64", 73, "ppoll")]:
            with mock.patch("waiting.text_of", lambda _path, number=number: "%d 0x5 0x0" % number):
                self.assertEqual(waiting.call("/proc/self", machine), (name, 5))
        for text, machine in [("running", "x86_64"), ("-1 0x7ffe 0x55", "x86_64"), ("", "x86_64"),
                              ("9999 0x1", "x86_64"), ("202 0x1", "riscv64")]:
            with mock.patch("waiting.text_of", lambda _path, text=text: text):
                self.assertEqual(waiting.call("/proc/self", machine), ("", 0))

    def test_what_a_thread_does(self):
        def of(thread, syscall, wchan="0"):
            files = {"t/syscall": syscall, "t/wchan": wchan}
            with mock.patch("waiting.text_of", files.get), mock.patch("os.uname",
                                                                      return_value=mock.Mock(machine="x86_64")):
                with mock.patch("os.readlink", lambda path: {"t/fd/3": "/mnt/a b", "t/fd/4": "pipe:[7]",
                                                             "t/fd/5": "socket:[8]"}[path]):
                    return thread("t")
        here = ("10.0.0.1", 40000), ("10.0.0.9", 5432)
        self.assertEqual(of(waiting.of_thread, "230 0x0"), "sleeping in clock_nanosleep")
        self.assertEqual(of(waiting.of_thread, "202 0x7f00"), "waiting in futex for a lock or another thread")
        self.assertEqual(of(waiting.of_thread, "0 0x3"), "waiting in read for data from /mnt/a b")
        self.assertEqual(of(waiting.of_thread, "0 0x4"), "waiting in read for data from a pipe")
        with mock.patch("peers.connections", lambda numbers: [here] if numbers == {"8"} else []):
            self.assertEqual(of(waiting.of_thread, "45 0x5"), "waiting in recvfrom for data from 10.0.0.9 port 5432")
        # a connection that is not there yet
        for number, name in ((7, "poll"), (42, "connect"), (232, "epoll_wait")):
            with mock.patch.object(waiting, "goal", lambda _thread: "10.0.0.9 port 5432"):
                self.assertEqual(of(waiting.of_thread, "%d 0x5" % number),
                                 "waiting in %s for a connection to 10.0.0.9 port 5432" % name)
        self.assertEqual(of(waiting.of_thread, "7 0x5"), "waiting in poll for input")
        self.assertEqual(of(waiting.of_thread, "", "hrtimer_nanosleep"), "sleeping in hrtimer_nanosleep")
        self.assertEqual([of(waiting.of_thread, ""), of(waiting.of_blocked, "")], ["sleeping", "blocked in the kernel"])
        self.assertEqual(of(waiting.of_blocked, "0 0x3", "nfs_wait"),
                         "blocked in the kernel in nfs_wait (in read for data from /mnt/a b)")

    def test_where_a_program_tries_to_connect_is_known(self):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        found = [socket.socket() for _ in range(4)]
        for one in [listener] + found:
            self.addCleanup(one.close)
        self.assertEqual(waiting.goal("/proc/self/task/1"), "")
        thread = "/proc/%d/task/%d" % (os.getpid(), os.getpid())
        found[0].connect(listener.getsockname())
        self.assertEqual(waiting.goal(thread), "", "it is connected")
        # a listener that takes no more connections is as a node that does not answer
        for one in found[1:]:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        self.assertEqual(waiting.goal(thread), "127.0.0.1 port %d" % listener.getsockname()[1])

    def test_a_program_that_is_gone_cannot_be_described(self):
        self.assertEqual(waiting.describe(1 << 22, b"blocked"), "what it does cannot be read")


def reader(files):
    return lambda path: files.get(path, "")


class Binding(unittest.TestCase):
    def bound(self, how, ranks, machine=machines.DGX, usable=range(256), gpus=machines.DGX_GPUS, visible=None):
        """How ranks are bound, and the CPUs of each as text."""
        homes = binding.gpu_nodes(reader(machine), gpus, visible)
        how, found = binding.bind(how, ranks, set(usable), reader(machine), homes)
        return how, [binding.format_list(cpus) for cpus in found]

    def test_a_rank_gets_the_cores_next_to_its_gpu(self):
        nodes = [machines.DGX_NODES[node] for node in (3, 3, 1, 1, 7, 7, 5, 5)]
        self.assertEqual(self.bound(None, 8), ("numa", nodes))
        self.assertEqual(self.bound("numa", 2, visible="5,GPU-3d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77")[1],
                         [nodes[5], nodes[2]])
        # of the CPU set of the container, whatever of it lies there
        self.assertEqual(self.bound("numa", 3, usable=range(20, 50))[1], ["48-49", "48-49", "20-31"])

    def test_a_mig_device_is_where_its_gpu_is(self):
        devices = ["MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb", "MIG-GPU-6d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/0/0",
                   "MIG-unknown"]
        gpus = machines.DGX_GPUS + machines.DGX_MIG_DEVICES
        self.assertEqual(binding.gpu_nodes(reader(machines.DGX), gpus, ",".join(devices)), [7, 5, -1])

    def test_each_rank_gets_a_mig_device_of_its_own(self):
        of_rank = [rank_supervisor.own_device("MIG-1,MIG-2", rank) for rank in range(3)]
        self.assertEqual(of_rank, ["MIG-1", "MIG-2", "MIG-1"])
        of_role = [rank_supervisor.own_device("a,b,c,d", rank, 2) for rank in range(2)]
        self.assertEqual(of_role, ["a,b", "c,d"])
        self.assertEqual(rank_supervisor.own_device("a,b", 1, 1), "b")
        self.assertEqual(rank_supervisor.own_device("", 0, 0), "")
        self.assertEqual([rank_supervisor.own_device(visible, 1) for visible in ("0,1", "GPU-a,GPU-b", "")],
                         ["0,1", "GPU-a,GPU-b", ""])

    def test_nothing_is_bound_where_nothing_is_known(self):
        self.assertEqual(self.bound(None, 2, gpus=""), ("none", ["0-255"] * 2))
        self.assertEqual(self.bound(None, 2, gpus="Failed to initialize NVML: Unknown Error\n")[0], "none")
        self.assertEqual(self.bound(None, 2, visible="MIG-1,MIG-2")[0], "none")
        self.assertEqual(self.bound(None, 2, machines.VM, range(2), machines.VM_GPUS), ("none", ["0-1"] * 2))
        self.assertEqual(self.bound("numa", 2, {}, range(2), ""), ("numa", ["0-1"] * 2))
        self.assertEqual(self.bound("none", 1)[1], ["0-255"])

    def test_without_gpus_ranks_are_spread_over_the_numa_nodes(self):
        self.assertEqual(self.bound("numa", 4, gpus="")[1], [machines.DGX_NODES[node] for node in (0, 2, 4, 6)])

    def test_each_rank_gets_an_equal_share_of_whole_cores(self):
        self.assertEqual(self.bound("core", 16, gpus="")[1][:3], ["0-7,128-135", "8-15,136-143", "16-23,144-151"])
        # those next to their GPU first get theirs
        found = self.bound("core", 8)[1]
        self.assertEqual([found[rank] for rank in (2, 3, 0)], ["0-15,128-143", "16-31,144-159", "32-47,160-175"])
        for ranks in (1, 3, 5, 7, 128):
            found = [binding.parse(cpus) for cpus in self.bound("core", ranks)[1]]
            self.assertEqual(sum(map(len, found)), len(set().union(*found)))
            self.assertLessEqual(max(map(len, found)) - min(map(len, found)), 2)
        # more ranks than cores
        self.assertEqual(self.bound("core", 5, machines.VM, range(2), "")[1], ["0", "0", "0", "1", "1"])
        self.assertEqual(self.bound("core", 2, {}, {3, 5}, "")[1], ["3", "5"])

    def test_a_quota_counts_in_whole_cores(self):
        for files, cores in machines.QUOTAS:
            self.assertEqual(binding.quota(reader(files)), cores)

    def test_threads_are_the_cores_of_a_rank(self):
        some, others = frozenset(range(8)), frozenset(range(8, 16))
        for found, limit, threads in [([some] * 2, None, 4), ([some] * 9, None, 1), ([some, others], None, 8),
                                      ([some] * 2, 3, 1), ([some, some, others], None, 4)]:
            self.assertEqual(binding.threads(found, limit), threads)

    def test_lists_of_cpus(self):
        for text in ("", "0", "0-3", "0-3,8,10-11"):
            self.assertEqual(binding.format_list(binding.parse(text)), text)

    def test_a_dry_run_gets_the_same(self):
        usable = binding.format_list(os.sched_getaffinity(0))
        said = subprocess.run([sys.executable, os.path.join(JOB, "binding.py"), "none", "2"], stdout=subprocess.PIPE,
                              check=True, env={"OMP_NUM_THREADS": "7"}).stdout
        self.assertEqual(json.loads(said.decode()), {"bind": "none", "threads": "7", "cpus": [usable] * 2})


class Image(unittest.TestCase):
    def launchers(self, **programs):
        """The launchers that are found with these programs in PATH, each of which prints a text."""
        with tempfile.TemporaryDirectory() as path:
            for name, text in programs.items():
                program = os.path.join(path, name)
                with open(program, "w") as file:
                    file.write("#!/bin/sh\nprintf '%%s' '%s'\n" % text)
                os.chmod(program, 0o755)
            # the project has modules that are named like those of Python
            for name in ("platform", "resource", "subprocess", "csv"):
                with open(os.path.join(path, name + ".py"), "w") as file:
                    file.write("raise SystemExit('%s of the project')" % name)
            program = "NAMES = ['localhost', 'no-such-host.invalid']\nLIMIT = 180\n"
            for part in (os.path.join(SCRIPTS, "worker", part) for part in ("inside.py", "launchers.py")):
                with open(part) as file:
                    program += file.read()
            said = subprocess.run([sys.executable, "-"], input=program.encode(), stdout=subprocess.PIPE, check=True,
                                  env={"PATH": path, "PYTHONPATH": path}, cwd=path).stdout.decode()
        said = dict(line.split(" ", 1) for line in said.splitlines())
        self.assertEqual([said["name:localhost"], said["name:no-such-host.invalid"]], ["127.0.0.1", ""])
        return said["launchers"]

    def test_the_launchers_of_an_image(self):
        self.assertEqual(self.launchers(), "env")
        for text, version in [("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n",
                               "Open MPI 4.1.4"),
                              ("mpirun (Open MPI) 5.0.11\n", "Open MPI 5.0.11"),
                              ("Intel(R) MPI Library for Linux* OS, Version 2021.5 Build 20211102\n",
                               "Intel MPI 2021.5"),
                              ("HYDRA build details:\n    Version:                        4.2.1\n    Release Date: x\n",
                               "MPICH 4.2.1"),
                              ("mpiexec of a kind\n", "not Open MPI")]:
            self.assertEqual(self.launchers(mpirun=text), "mpirun (%s), env" % version)
        found = self.launchers(torchrun="", horovodrun="")
        self.assertRegex(found, r"^horovodrun \(Horovod .*\), torchrun \(PyTorch .*\), env$")

    def build(self, extension, limit=120):
        """What is said of the build of an image with this extension of Horovod's for PyTorch."""
        with tempfile.TemporaryDirectory() as path:
            os.makedirs(os.path.join(path, "horovod", "torch"))
            os.makedirs(os.path.join(path, "torch"))
            for name, text in [("horovod/__init__.py", ""), ("torch/__init__.py", ""),
                               ("horovod/torch/__init__.py", extension)]:
                with open(os.path.join(path, name), "w") as file:
                    file.write(text)
            program = "NAMES = []\nLIMIT = 180\n"
            for part in (os.path.join(SCRIPTS, "worker", part) for part in ("inside.py", "horovodrun.py")):
                with open(part) as file:
                    program += file.read().replace("IMPORT_LIMIT = 120", "IMPORT_LIMIT = %d" % limit)
            said = subprocess.run([sys.executable, "-"], input=program.encode(), stdout=subprocess.PIPE, check=True,
                                  env={"PATH": os.environ["PATH"], "PYTHONPATH": path}).stdout.decode()
        return [line for line in said.splitlines() if "build" in line]

    def test_a_build_that_cannot_be_read_is_not_called_none(self):
        built = "".join("def %s_built(): return %s\n" % pair
                        for pair in [("nccl", 0), ("ddl", 0), ("ccl", 0), ("mpi", 1), ("gloo", 1)])
        expected = "build frameworks PyTorch; controllers MPI, Gloo; tensor operations MPI, Gloo"
        self.assertEqual(self.build(built), [expected])
        self.assertEqual(self.build("raise ImportError()"), [])
        self.assertEqual(self.build("import os; os.kill(os.getpid(), 9)"),
                         ["unread:build importing horovod.torch was ended by signal 9"])
        self.assertEqual(self.build("import time; time.sleep(60)", limit=2),
                         ["unread:build importing horovod.torch timed out"])

    def inside(self, path, limit):
        """What is said of an image with these files in so many seconds."""
        program = "NAMES = []\nLIMIT = %d\n" % limit
        for part in ("inside.py", "launchers.py", "horovodrun.py"):
            with open(os.path.join(SCRIPTS, "worker", part)) as file:
                program += file.read()
        said = subprocess.run([sys.executable, "-"], input=program.encode(), stdout=subprocess.PIPE, check=True,
                              timeout=100,
                              env={"PATH": path + os.pathsep + os.environ["PATH"], "PYTHONPATH": path}).stdout.decode()
        return dict(line.split(" ", 1) for line in said.splitlines())

    def test_what_hangs_is_named_at_the_deadline_and_what_was_read_is_kept(self):
        with tempfile.TemporaryDirectory() as path:
            os.makedirs(os.path.join(path, "torch"))
            with open(os.path.join(path, "torch", "__init__.py"), "w"):
                pass
            # as a file of a file system that does not answer
            os.mkfifo(os.path.join(path, "torch", "version.py"))
            said = self.inside(path, 1)
            self.assertIn("python", said)
            for key in ("torch", "nccl", "launchers", "build"):
                self.assertEqual(said["unread:" + key], "reading torch did not end within 1 s")
            self.assertNotIn("unread:python", said)

    def test_a_program_that_hangs_leaves_time_for_the_others(self):
        with tempfile.TemporaryDirectory() as path:
            mpirun = os.path.join(path, "mpirun")
            with open(mpirun, "w") as file:
                file.write("#!/bin/sh\nexec sleep 600\n")
            os.chmod(mpirun, 0o755)
            said = self.inside(path, 4)
            self.assertRegex(said["unread:launchers"], r"^mpirun --version did not end within \d s$")
            self.assertIn("version unknown", said["launchers"])
            self.assertNotIn("unread:build", said)


class Processes(unittest.TestCase):
    def orphan(self, script):
        """Starts a shell that leaves a child behind, which becomes ours."""
        rank_supervisor.prctl(rank_supervisor.PR_SET_CHILD_SUBREAPER, 1)
        done = subprocess.run(["sh", "-c", "(%s) >/dev/null 2>&1 & echo $!" % script], stdout=subprocess.PIPE,
                              check=True)
        return int(done.stdout)

    def until(self, is_true):
        limit = time.monotonic() + 60
        while not is_true() and time.monotonic() < limit:
            time.sleep(0.01)

    def test_orphans_are_reaped_and_no_child_loses_its_exit_code(self):
        children = processes.Children()
        mine = [children.start(["sh", "-c", "exit %d" % code]) for code in (3, 4)]
        orphan = self.orphan("sleep 0.1; exit 5")
        for pid in [orphan] + [child.pid for child in mine]:
            self.until(lambda pid=pid: processes.condition(pid) == b"Z")
        # one that ends in the middle of it may hold up those behind it once
        for _ in range(2):
            children.reap_orphans()
        self.assertEqual([child.wait() for child in mine], [3, 4])
        self.assertEqual(processes.condition(orphan), b"X")
        self.assertEqual(children.started, [])

    def test_what_proc_says_of_a_process(self):
        with subprocess.Popen(["sleep", "60"], env={"A": "1"},
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) as child:
            try:
                # Popen returns when exec has closed its pipe, shortly before the kernel sets the new environment
                self.until(lambda: processes.environment(child.pid) != [b""])
                self.assertEqual(processes.environment(child.pid)[0], b"A=1")
                self.assertEqual(processes.name(child.pid), b"sleep")
                self.assertEqual(processes.ancestors(child.pid)[:2], [child.pid, os.getpid()])
                self.assertIn(child.pid, processes.descendants(os.getpid(), processes.all_processes()))
                self.assertTrue(processes.ignores(child.pid, signal.SIGINT))
                self.assertFalse(processes.ignores(child.pid, signal.SIGTERM))
                self.assertFalse(processes.is_killed(child.pid))
                start = processes.start_time(child.pid)
                self.assertEqual(start, processes.start_time(child.pid))
            finally:
                child.kill()
        self.assertEqual((processes.condition(child.pid), processes.name(child.pid), processes.start_time(child.pid)),
                         (b"X", b"", None))
        self.assertTrue(processes.ignores(child.pid, signal.SIGTERM))
        processes.send(signal.SIGTERM, [child.pid])


class RoundTrips(unittest.TestCase):
    def measure(self, targets, seconds=2):
        """What is printed of targets, of which the name `slow` cannot be resolved."""
        program = "import socket, time\nlookup = socket.getaddrinfo\n" \
            "socket.getaddrinfo = lambda host, *arguments, **options: (" \
                  "time.sleep(600) if host == 'slow' else lookup(host, *arguments, **options))\n"
        with open(os.path.join(SCRIPTS, "pool", "round_trips.py")) as file:
            program += file.read()
        lines = "".join("%d %s %d\n" % (number, host, port) for number, (host, port) in enumerate(targets))
        said = subprocess.run([sys.executable, "-I", "-c", program, str(seconds)], input=lines.encode(),
                              stdout=subprocess.PIPE, check=True, timeout=100).stdout.decode()
        return [line.split()[1] for line in said.splitlines()]

    def test_names_that_are_not_resolved_leave_time_for_the_others(self):
        with socket.socket() as listener, socket.socket() as closed:
            for one in (listener, closed):
                one.bind(("127.0.0.1", 0))
            listener.listen(16)
            here, nowhere = (("127.0.0.1", one.getsockname()[1]) for one in (listener, closed))
            slow = [("slow", 22)]
            # a busy machine is slow to try
            found = self.measure(slow * 20 + [here, nowhere, ("127.0.0.1", 99999)], seconds=10)
            self.assertEqual(found[:20] + found[21:], ["?"] * 20 + ["-", "-"])
            self.assertTrue(found[20].isdigit(), found)
            # more than are resolved at once
            self.assertEqual(self.measure(slow * 50 + [here]), ["?"] * 51)
            self.assertEqual(self.measure([]), [])
            self.assertEqual(self.measure([here], 0), ["?"], "there is no time")


class Tunnel(unittest.TestCase):
    """node/tunnel.py with hvdctl's side of it."""

    def setUp(self):
        with open(os.path.join(SCRIPTS, "node", "tunnel.py")) as file:
            program = file.read()
        for constant, value in [("STALL = 20", "STALL = 1"), ("MOST_CONNECTIONS = 64", "MOST_CONNECTIONS = 2")]:
            self.assertIn(constant, program)
            program = program.replace(constant, value)
        self.process = subprocess.Popen([sys.executable, "-I", "-c", program], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())

    def tearDown(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def connect(self, data):
        connection = socket.create_connection(("127.0.0.1", self.port), 20)
        connection.sendall(data)
        self.addCleanup(connection.close)
        return connection

    def frame(self):
        number, count = struct.unpack(">IH", self.process.stdout.read(6))
        return number, self.process.stdout.read(count)

    def send(self, number, data):
        self.process.stdin.write(struct.pack(">IH", number, len(data)) + data)
        self.process.stdin.flush()

    def test_a_connection_that_takes_nothing_is_ended_and_the_others_go_on(self):
        self.connect(b"a")
        self.assertEqual(self.frame(), (1, b"a"))
        other = self.connect(b"b")
        self.assertEqual(self.frame(), (2, b"b"))
        for _ in range(2000):
            self.send(1, b"x" * 65535)
        self.send(2, b"answer")
        self.assertEqual(other.recv(6), b"answer")
        self.assertEqual(self.frame(), (1, b""), "hvdctl knows that it has ended")

    def test_a_direction_that_ends_leaves_the_other_one(self):
        client = self.connect(b"a")
        self.assertEqual(self.frame(), (1, b"a"))
        client.shutdown(socket.SHUT_WR)
        self.assertEqual(self.frame(), (1, b""))
        self.send(1, b"answer")
        self.assertEqual(client.recv(6), b"answer")
        self.send(1, b"")
        self.assertEqual(client.recv(1), b"")
        # hvdctl ends its direction first
        client = self.connect(b"b")
        self.assertEqual(self.frame(), (2, b"b"))
        self.send(2, b"")
        self.assertEqual(client.recv(1), b"")
        client.sendall(b"more")
        self.assertEqual(self.frame(), (2, b"more"))
        client.close()
        self.assertEqual(self.frame(), (2, b""))
        # neither is one of those that may be open
        for number in (3, 4):
            self.connect(b"a")
            self.assertEqual(self.frame(), (number, b"a"))

    def test_hvdctl_hears_that_nothing_is_taken(self):
        client = self.connect(b"a")
        self.assertEqual(self.frame(), (1, b"a"))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        self.assertEqual(self.frame(), (1, b""))
        self.send(1, b"x")
        # the connection is already closed where its client has reset it
        other = self.connect(b"b")
        frames = [self.frame(), self.frame()]
        self.assertIn((2, b"b"), frames)
        self.assertIn((1, b""), frames)
        self.assertTrue(other)

    def test_a_connection_that_fails_does_not_keep_it_from_reading(self):
        busy, client = self.connect(b"a"), self.connect(b"b")
        self.assertEqual({self.frame(), self.frame()}, {(1, b"a"), (2, b"b")})
        # hvdctl reads nothing until all that it sends has been taken
        threading.Thread(target=lambda: busy.sendall(bytes(200000)), daemon=True).start()
        waiting = [-1, 0]
        while waiting[-1] < 30000 or waiting[-1] != waiting[-2]:
            time.sleep(0.05)
            waiting.append(struct.unpack("i", fcntl.ioctl(self.process.stdout, termios.FIONREAD, bytes(4)))[0])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        sending = threading.Thread(target=lambda: [self.send(2, bytes(65535)) for _ in range(10)], daemon=True)
        sending.start()
        sending.join(20)
        is_taken = not sending.is_alive()
        frames, ended = 0, 0
        while frames < 200000 or ended < 2:
            number, data = self.frame()
            frames, ended = frames + len(data), ended + (number == 2)
        sending.join()
        self.assertTrue(is_taken)

    def test_a_client_that_does_not_close_is_closed(self):
        self.connect(b"a")
        self.assertEqual(self.frame(), (1, b"a"))
        self.send(1, b"")
        time.sleep(1.5)
        self.send(0, b"")
        self.assertEqual(self.frame(), (1, b""))

    def test_more_connections_than_are_allowed_are_closed(self):
        for number in (1, 2):
            self.connect(b"a")
            self.assertEqual(self.frame(), (number, b"a"))
        with socket.create_connection(("127.0.0.1", self.port), 20) as third:
            self.assertEqual(third.recv(1), b"")


class Imports(unittest.TestCase):
    """The first imports of a script, sought before the job starts."""

    @staticmethod
    def found(script, own=(), directory="/nonexistent"):
        program = IMPORTS + "\n\ncheck(%s, %s, %s)\n" % (json.dumps(script, ensure_ascii=False), json.dumps(directory),
                                                         json.dumps(list(own)))
        done = subprocess.run([sys.executable, "-"], input=program.encode(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=dict(os.environ, LC_ALL="C"), timeout=60)
        return done.stdout.decode()

    def test_the_first_module_that_is_missing_is_named(self):
        script = '"""Trains."""\nfrom __future__ import annotations\nimport os.path as p, json\n' \
            'from no_such.b import c\nimport no_such_either\n'
        self.assertEqual(self.found(script), "missing no_such 4\n")
        self.assertEqual(self.found("import json\nimport xml.dom\n"), "")

    def test_what_an_earlier_job_has_left_next_to_the_script_is_found(self):
        with tempfile.TemporaryDirectory() as directory:
            open(os.path.join(directory, "no_such.py"), "w").close()
            self.assertEqual(self.found("import no_such", directory=directory), "")

    def test_what_may_change_what_can_be_imported_ends_the_search(self):
        for before in ("import sys\nsys.path.insert(0, 'lib')",
                       "try:\n    import no_such\nexcept ImportError:\n    pass", "from . import x",
                       "import own", "from own.a import b", "def f(): pass", "x = 1", "if True:\n    import no_such_b"):
            self.assertEqual(self.found(before + "\nimport no_such\n", ["own"]), "", before)

    def test_a_script_that_cannot_be_read_is_left_to_its_ranks(self):
        for script in ("import", "import a\0b", "print 'x'", "", "\ufeffimport json"):
            self.assertEqual(self.found(script), "", script)
        self.assertEqual(self.found("import json  # \U0001f600 \u2028\nimport no_such"), "missing no_such 2\n")


if __name__ == "__main__":
    unittest.main()
