"""Unit tests of jobs with roles (roles.py, ports.py, addresses.py, rank_role.py, ready.py and their part of reap.py in
src/scripts/programs). tests/node_programs.rs runs them with every interpreter that it finds."""
import ast
import http.server
import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "scripts", "programs")
# the programs take their own directory for that of a job
JOB = tempfile.mkdtemp()
for directory, _, names in os.walk(PROGRAMS):
    for script in names:
        shutil.copy(os.path.join(directory, script), JOB)
with open(os.path.join(JOB, "hvdctl-python"), "w") as program:
    for script in ("environment.sh", "python.sh"):
        with open(os.path.join(JOB, script)) as part:
            program.write(part.read())
sys.path.insert(0, JOB)
import addresses  # noqa: E402
import attempt  # noqa: E402
import frames  # noqa: E402
import job_state  # noqa: E402
import launchers  # noqa: E402
import ports  # noqa: E402
import rank_role  # noqa: E402
import ready  # noqa: E402
import reap  # noqa: E402
import roles  # noqa: E402
import workers  # noqa: E402


def tearDownModule():
    shutil.rmtree(JOB)


ENDS_JOB, WITH_FIRST = {"kind": "job"}, {"kind": "with", "role": 0}


def restarts(times):
    return {"kind": "restarts", "times": times}


def role(name, ends=ENDS_JOB, needs=(), condition=None, timeout=600):
    return {"name": name, "ends": ends, "needs": list(needs), "ready": condition, "ready_timeout": timeout}


def seen(code=None, failed=None, missing=(), ended=False):
    return roles.Role(code, failed, list(missing), ended)


RUNS, STARTS = seen(), seen(missing=[0])


class Attempt:
    """An attempt with these roles, and what was done."""

    def __init__(self, *described, pause=0):
        self.pause, self.roles, self.states, self.done, self.end = pause, described, roles.begin(described), [], None

    def observe(self, now, *observed):
        """Returns what is done next."""
        seen_now = roles.Observed(now, observed, self.pause)
        self.states, actions, self.end = roles.decide(self.roles, self.states, seen_now)
        self.done += actions
        return actions


class States(unittest.TestCase):
    def test_what_decides_knows_no_clock_no_process_and_no_file(self):
        with open(roles.__file__) as file:
            nodes = list(ast.walk(ast.parse(file.read())))
        imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        self.assertEqual(imported, ["collections", "faults", "job_state"])
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        self.assertFalse(used & {"open", "print", "input", "exec", "eval", "__import__"})

    def test_a_role_begins_when_all_that_it_needs_are_ready(self):
        one = Attempt(role("a", needs=[1, 2]), role("b", WITH_FIRST), role("c", WITH_FIRST))
        idle = seen()
        self.assertEqual(one.observe(10, idle, idle, idle), [(roles.START, 1, 0), (roles.START, 2, 0)])
        self.assertEqual(one.observe(11, idle, RUNS, STARTS), [(roles.NOTE_READY, 1, 1)])
        self.assertEqual(one.observe(14, idle, RUNS, RUNS), [(roles.NOTE_READY, 2, 4), (roles.START, 0, 0)])
        self.assertEqual(one.observe(15, STARTS, RUNS, RUNS), [])
        self.assertIsNone(one.end)

    def test_a_role_that_is_started_again_has_to_be_ready_again(self):
        one = Attempt(role("a", needs=[1, 2]), role("b", restarts(1)), role("c", WITH_FIRST))
        one.observe(0, seen(), seen(), seen())
        one.observe(1, seen(), RUNS, STARTS)
        self.assertEqual(one.observe(2, seen(), seen(failed=7), STARTS), [(roles.END, 1, True)])
        self.assertEqual(one.observe(3, seen(), seen(ended=True), RUNS),
                         [(roles.START, 1, 1), (roles.NOTE_READY, 2, 3)])
        self.assertEqual(one.observe(4, seen(), STARTS, RUNS), [])
        self.assertEqual(one.observe(5, seen(), RUNS, RUNS), [(roles.NOTE_READY, 1, 2), (roles.START, 0, 0)])

    def test_what_is_not_ready_in_time_ends_the_attempt_if_something_waits_for_it(self):
        line = {"kind": "line", "text": "x"}
        late, over = (601, STARTS), (30, seen(code=0, missing=[0]))
        for condition, needs, (now, observed), seconds in (
                (line, [1], late, 600), (line, [], late, None), (None, [1], late, 600), (None, [], late, None),
                (line, [1], (599, STARTS), None), (line, [1], (601, RUNS), None),
                # it has ended, and never will be
                (line, [1], over, 30), (line, [], over, None)):
            one = Attempt(role("a", needs=needs), role("b", WITH_FIRST, condition=condition))
            one.observe(0, seen(), seen())
            one.observe(now, RUNS, observed)
            fault = {"kind": "role_not_ready", "role": "b", "seconds": seconds, "ranks": "0"}
            fault.update({"ended": True} if observed == over[1] else {})
            self.assertEqual(one.end, seconds and roles.End(None, fault, []), (condition, needs, now))
        # all have begun that need it
        one = Attempt(role("a", needs=[1]), role("b", restarts(1), condition=line))
        one.observe(0, seen(), seen())
        one.observe(1, seen(), RUNS)
        one.observe(2, RUNS, seen(failed=7))
        one.observe(3, RUNS, seen(missing=[0], ended=True))
        one.observe(700, RUNS, STARTS)
        self.assertIsNone(one.end)
        self.assertEqual(roles.names(list(range(20))), ", ".join(map(str, range(16))) + ", …")

    def test_what_never_begins_is_not_waited_for(self):
        serves = {"kind": "with", "role": 2}
        chosen = [role("a", needs=[1]), role("b", serves, needs=[3]), role("c", WITH_FIRST), role("d", WITH_FIRST)]
        for last, fault in ((chosen, {"kind": "role_not_ready", "role": "b", "seconds": 0, "ranks": "0, 1",
                                      "ended": True}),
                            # it never begins itself
                            ([role("a", {"kind": "with", "role": 1}, needs=[1])] + chosen[1:3] + [role("d")], None)):
            one, idle = Attempt(*last), seen(missing=[0, 1])
            one.observe(0, *[idle] * 4)
            for now in (1, 2):
                one.observe(now, idle, idle, seen(code=0), STARTS)
            self.assertEqual(one.end, fault and roles.End(None, fault, [1]))
        self.assertEqual(one.states[0], roles.Over(None, False, True))

    # ends of the second role, what is seen of it, what follows at once, and in the end; the first one goes on
    TABLE = (
        (ENDS_JOB, seen(code=0), [], roles.End(0, None, [0])),
        (ENDS_JOB, seen(failed=7), [], roles.End(7, None, [])),
        (ENDS_JOB, seen(code=9), [], roles.End(9, None, [])),
        (ENDS_JOB, seen(code=9, failed=7), [], roles.End(7, None, [])),
        (WITH_FIRST, seen(code=0), [], None),
        (WITH_FIRST, seen(failed=7), [], roles.End(7, None, [])),
        (WITH_FIRST, seen(code=137), [], roles.End(137, None, [])),
        (restarts(1), seen(code=0), [], None),
        (restarts(1), seen(failed=7), [(roles.END, 1, True)], None),
        (restarts(1), seen(code=137), [(roles.END, 1, True)], None),
        (restarts(0), seen(failed=7), [], roles.End(7, None, [])),
    )

    def test_the_end_of_a_role_means_what_it_says(self):
        for ends, observed, actions, end in self.TABLE:
            one = Attempt(role("a"), role("b", ends))
            one.observe(0, seen(), seen())
            one.observe(1, RUNS, RUNS)
            self.assertEqual(one.observe(2, RUNS, observed), actions, (ends, observed))
            if not one.end:
                one.observe(3.1, RUNS, observed)
            self.assertEqual(one.end, end, (ends, observed))

    def test_what_the_end_of_the_first_role_causes_is_no_failure(self):
        for ends in (WITH_FIRST, restarts(0)):
            one = Attempt(role("a"), role("b", ends))
            one.observe(0, seen(), seen())
            one.observe(1, RUNS, seen(failed=5))
            self.assertIsNone(one.end)
            one.observe(1.9, seen(code=0), seen(failed=5))
            self.assertEqual(one.end, roles.End(0, None, [1]))
        # the first one that ends the job decides, and a failure does rather than an end
        one = Attempt(role("a"), role("b"))
        one.observe(0, seen(), seen())
        one.observe(1, seen(code=0), seen(failed=5))
        self.assertEqual(one.end, roles.End(5, None, []))

    def test_a_role_is_started_again_as_often_as_it_says(self):
        one = Attempt(role("a"), role("b", restarts(2)))
        one.observe(0, seen(), seen())
        for again in (1, 2):
            self.assertEqual(one.observe(again, RUNS, seen(failed=7))[-1], (roles.END, 1, True))
            self.assertEqual(one.observe(again, RUNS, seen()), [], "its other ranks have not ended")
            self.assertEqual(one.observe(again, RUNS, seen(ended=True)), [(roles.START, 1, again)])
        one.observe(3, RUNS, seen(failed=8))
        one.observe(4, RUNS, seen(failed=8))
        self.assertEqual(one.end, roles.End(8, None, []))

    def test_pauses_between_the_starts_of_a_role_grow(self):
        one = Attempt(role("a"), role("b", restarts(2)), pause=5)
        one.observe(0, seen(), seen())
        one.observe(1, RUNS, seen(failed=7))
        one.observe(10, RUNS, seen(ended=True))
        self.assertEqual(one.observe(14.9, RUNS, seen(ended=True)), [])
        self.assertEqual(one.observe(15, RUNS, seen(ended=True)), [(roles.START, 1, 1)])
        one.observe(20, RUNS, seen(failed=7))
        one.observe(30, RUNS, seen(ended=True))
        self.assertEqual(one.observe(39.9, RUNS, seen(ended=True)), [])
        self.assertEqual(one.observe(40, RUNS, seen(ended=True)), [(roles.START, 1, 2)])

    def test_the_job_may_end_while_a_role_pauses(self):
        for ended, end in ((seen(code=0), roles.End(0, None, [1])), (seen(failed=9), roles.End(9, None, [1]))):
            one = Attempt(role("a"), role("b", restarts(1)), pause=5)
            one.observe(0, seen(), seen())
            one.observe(1, RUNS, seen(failed=7))
            one.observe(2, RUNS, seen(ended=True))
            self.assertEqual(one.observe(3, ended, seen(ended=True)), [])
            self.assertEqual(one.end, end)

    def test_roles_end_with_the_one_that_they_serve(self):
        chain = [role("a"), role("b", restarts(1)), role("c", {"kind": "with", "role": 1}),
                 role("d", {"kind": "with", "role": 2}), role("e", {"kind": "with", "role": 2}, needs=[4])]
        one = Attempt(*chain)
        one.observe(0, *[seen()] * 5)
        self.assertEqual(one.observe(1, RUNS, seen(code=0), RUNS, RUNS, seen())[-1], (roles.END, 2, False))
        self.assertEqual(one.observe(2, RUNS, seen(code=0), seen(), RUNS, seen()), [])
        # what has not begun never does
        self.assertEqual(one.observe(3, RUNS, seen(code=0), seen(ended=True), RUNS, seen()), [(roles.END, 3, False)])
        self.assertEqual(one.states[4], roles.Over(None, False, True))
        one.observe(4, seen(code=0), seen(code=0), seen(), seen(ended=True), seen())
        self.assertEqual(one.end, roles.End(0, None, [2, 3, 4]))

    def test_one_that_is_to_be_started_again_is_not_when_the_job_ends(self):
        one = Attempt(role("a"), role("b", restarts(1)))
        one.observe(0, seen(), seen())
        one.observe(1, RUNS, seen(failed=7))
        self.assertEqual(one.observe(2, seen(code=0), seen(ended=True)), [])
        self.assertEqual(one.end, roles.End(0, None, [1]))

    def test_any_sequence_ends_each_start_once_and_starts_nothing_twice(self):
        observations = (RUNS, STARTS, seen(code=0), seen(failed=7), seen(code=3), seen(ended=True))
        chosen = [role("a", needs=[1]), role("b", restarts(1)), role("c", WITH_FIRST, needs=[1])]
        for sequence in itertools.product(observations, repeat=4):
            for others in (RUNS, STARTS, seen(code=0)):
                one = Attempt(*chosen)
                one.observe(0, *[seen()] * 3)
                for now, observed in enumerate(sequence, 1):
                    if not one.end:
                        one.observe(2 * now, others, observed, others)
                for number in range(3):
                    of = [action[0] for action in one.done if action[1] == number and action[0] != roles.NOTE_READY]
                    expected = [roles.START, roles.END] * 3
                    self.assertEqual(of, expected[:len(of)], one.done)

    def test_ranks_that_were_served_count_for_nothing(self):
        exits = [{"rank": 0, "code": 0, "asked": False}, {"rank": 1, "code": 143, "asked": True}]
        for served, expected in (([1], True), ([], False), ([0, 1], False), ([1, 2], False)):
            result = {"launcher": 0, "exits": exits, "served": served}
            self.assertEqual(job_state.succeeded(result, 2), expected, served)
        # one that was not started has no end
        self.assertTrue(job_state.succeeded({"launcher": 0, "exits": exits[:1], "served": [1]}, 2))


PLACES = [{"node": "a", "address": "10.0.0.1", "ranks": 1, "first": 0},
          {"node": "b", "address": "10.0.0.2", "ranks": 2, "first": 2}]
TRAINER = dict(role("trainer"), launcher=["x", {"rendezvous_port": {"port": 29500}}], variables={}, places=PLACES,
               ports=[])
GENERATOR = dict(role("gen-er"), launcher=["x"], ports=["http", "peer"],
                 variables={"A": {"first_endpoint": {"port": 20100}}, "B": {"ranks": {}}, "C": "x"},
                 places=[dict(PLACES[0], first=1), dict(PLACES[1], first=4)])


class Addresses(unittest.TestCase):
    def test_each_rank_gets_ports_of_its_node(self):
        of_roles = [TRAINER, GENERATOR]
        self.assertEqual(addresses.counts(of_roles), {"a": 2, "b": 4})
        found = addresses.table(of_roles, {"a": [1, 2], "b": [3, 4, 5, 6]})
        hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.2"]
        self.assertEqual(found["trainer"], {"ranks": 3, "hosts": hosts, "ports": {}})
        self.assertEqual(found["gen-er"], {"ranks": 3, "hosts": hosts, "ports": {
            "http": ["10.0.0.1:1", "10.0.0.2:3", "10.0.0.2:4"], "peer": ["10.0.0.1:2", "10.0.0.2:5", "10.0.0.2:6"]}})

    def test_ports_that_launchers_use_are_not_chosen(self):
        launch = {"port": 12345, "roles": [TRAINER, GENERATOR]}
        self.assertEqual(addresses.reserved(launch), [12345, 20100, 20101, 29500, 29501])
        with mock.patch.object(ports, "PORTS", range(28110, 28114)), socket.socket() as taken:
            taken.bind(("", 28111))
            taken.listen(1)
            self.assertEqual(sorted(ports.choose(2, {28112})), [28110, 28113])
            self.assertEqual(ports.choose(0), [])
            with self.assertRaisesRegex(OSError, "of the ports 28110 to 28113, 2 are free, and 3 are needed"):
                ports.choose(3, {28112})

    def test_a_node_prints_ports_and_writes_what_it_is_given(self):
        path = os.path.join(JOB, ports.ROLES)
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))
        for text, code in (("", 1), ("[1]", 1), ('{"a": 1}', 0)):
            done = subprocess.run([sys.executable, "-I", os.path.join(JOB, "reap.py"), "ports", "3", "20000"],
                                  input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, code, done)
            _, begun, chosen = done.stdout.splitlines()
            self.assertEqual(begun, reap.READY)
            self.assertEqual(len(set(json.loads(chosen.decode()))), 3)
            self.assertEqual(os.path.exists(path), code == 0)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o644)


class Files(unittest.TestCase):
    """A role's files in the job's directory: this node has two ranks of the trainer, and the last two of three of the
    generator."""

    def setUp(self):
        of_job = {"command": ["serve", "--at", "$PORT_HTTP", "${PORT_PEER}$PORT_HTTPS", [255]], "stall": 0}
        # the numbers in the job are not those in the role
        trainer = {"name": "trainer", "ranks": 2, "first": 3, "before": 1, "offset": 0, "rank": ["RANK"],
                   "local_rank": ["LOCAL_RANK"], "ports": [], "ready": None, "job": dict(of_job, command=["x"])}
        generator = dict(trainer, name="gen-er", ranks=2, first=5, before=1, offset=2, ports=["http", "peer"],
                         job=of_job)
        table = addresses.table([TRAINER, GENERATOR], {"a": [1, 2], "b": [3, 4, 5, 6]})
        shares = [{"node": "a", "first": 0, "ranks": 3, "roles": [2, 1]}, {"node": "b", "first": 3, "ranks": 4,
                                                                          "roles": [2, 2]}]
        self.put("launcher.json", {"roles": [trainer, generator]})
        self.put("job.json", {"command": ["other"], "stall": 600, "ranks": 4, "placement": {"shares": shares}})
        self.put("roles.json", table)
        self.put("env.0.json", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
        self.put("env.1.json", {"CUDA_VISIBLE_DEVICES": "4,5"})

    def put(self, name, value):
        path = os.path.join(JOB, name)
        with open(path, "w") as file:
            json.dump(value, file)
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))

    def one(self, number="1", rank=2, local=1):
        return rank_role.Role([number], {"RANK": str(rank), "LOCAL_RANK": str(local)})

    def test_a_rank_has_a_number_in_the_role_one_in_the_job_and_one_on_the_node(self):
        self.assertEqual([(one.rank, one.index) for one in (self.one(rank=1, local=0), self.one())], [(5, 2), (6, 3)])
        one = self.one("0", 1, 0)
        self.assertEqual((one.rank, one.index, one.given), (3, 0, "env.0.json"))
        self.assertEqual([self.one().in_job(rank) for rank in range(4)], [2, 5, 6, 3])
        self.assertEqual([one.in_job(rank) for rank in range(4)], [0, 1, 3, 4])
        self.assertEqual((self.one().job["stall"], self.one().given), (0, "env.1.json"))

    def test_a_job_without_roles_has_the_files_and_numbers_of_its_launcher(self):
        self.put("launcher.json", {"rank": ["RANK"], "local_rank": ["LOCAL_RANK"], "x": 1})
        one = rank_role.Role([], {"RANK": "7", "LOCAL_RANK": "3"})
        self.assertEqual((one.rank, one.index, one.given, one.launcher["x"]), (7, 3, "env.json", 1))
        self.assertEqual((one.job["stall"], one.variables(), one.command(), one.in_job(9)), (600, {}, ["other"], 9))
        self.assertEqual(one.bound_by({"CUDA_VISIBLE_DEVICES": "1"}), {"CUDA_VISIBLE_DEVICES": "1"})

    def test_a_rank_finds_the_others_and_its_own_ports(self):
        one = self.one()
        self.assertEqual(one.command(), ["serve", "--at", "4", "6$PORT_HTTPS", b"\xff"])
        hosts = "10.0.0.1,10.0.0.2"
        self.assertEqual(one.variables(), {
            "HVDCTL_ROLE": "gen-er", "HVDCTL_ROLES": os.path.join(JOB, "roles.json"),
            "PORT_HTTP": "4", "PORT_PEER": "6",
            "HVDCTL_ROLE_TRAINER_HOSTS": hosts, "HVDCTL_ROLE_GEN_ER_HOSTS": hosts,
            "HVDCTL_ROLE_GEN_ER_HTTP": "10.0.0.1:1,10.0.0.2:3,10.0.0.2:4",
            "HVDCTL_ROLE_GEN_ER_PEER": "10.0.0.1:2,10.0.0.2:5,10.0.0.2:6"})
        with mock.patch.object(rank_role, "LONGEST", 30):
            self.assertNotIn("HVDCTL_ROLE_GEN_ER_HTTP", one.variables(), "the file has it")

    def test_all_ranks_of_a_node_are_bound_by_the_same_gpus(self):
        found = [self.one(*at).bound_by({"CUDA_VISIBLE_DEVICES": own})
                 for at, own in ((("0", 1, 0), "0,1,2,3"), (("1", 2, 1), "4,5"))]
        self.assertEqual(found, [{"CUDA_VISIBLE_DEVICES": "0,2,4,5"}] * 2)
        self.put("env.0.json", {})
        self.assertEqual(self.one().bound_by({"CUDA_VISIBLE_DEVICES": "4,5"}),
                         {"CUDA_VISIBLE_DEVICES": "none,none,4,5"})
        self.assertEqual(self.one().bound_by({}), {})

    def test_a_role_takes_its_part_of_the_gpus_that_slurm_has_given(self):
        described = [{"name": name, "ranks": 2, "devices": devices, "rank": [], "local_rank": []}
                     for name, devices in (("a", [0, 2]), ("b", [2, 1]), ("c", [3, 0]), ("d", None))]
        found = [rank_role.part_of(one, "4,5,6") for one in described]
        self.assertEqual(found, ["4,5", "6", "", "4,5,6"])
        self.put("launcher.json", {"roles": described[:2]})
        self.put("env.0.json", {})
        self.put("env.1.json", {"CUDA_VISIBLE_DEVICES": "9"})
        one = mock.Mock()
        one.name = "a"
        self.assertEqual(rank_role.Role.bound_by(one, {"CUDA_VISIBLE_DEVICES": "4,5,6"}),
                         {"CUDA_VISIBLE_DEVICES": "4,5,9,9"}, "what the user has set goes first")

    def test_the_environment_of_roles_is_removed_when_the_job_has_ended(self):
        self.put("env.x.json", {})
        reap.forget(True)
        self.assertTrue(os.path.exists(os.path.join(JOB, "env.1.json")))
        reap.forget(False)
        left = [name for name in os.listdir(JOB) if name.startswith("env.")]
        self.assertEqual(left, ["env.x.json"])

    def test_only_the_processes_of_a_role_are_its(self):
        mark = {"HVDCTL_JOB": os.path.basename(JOB)}
        supervisor = os.path.join(JOB, "rank_supervisor.py")
        wait = ["sh", "-c", "echo; read x"]
        started = [subprocess.Popen(command, env=dict(os.environ, **dict(mark, **env)), stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE)
                   for command, env in ((wait, {"HVDCTL_ROLE": "gen-er", "HVDCTL_PROGRAM": "1"}),
                                        (wait, {"HVDCTL_ROLE": "trainer", "HVDCTL_PROGRAM": "1"}),
                                        (wait + [supervisor, "1"], {}), (wait + [supervisor, "0"], {}),
                                        (wait + ["other.py", "1"], {}), (wait, {"HVDCTL_ROLE": "gen-er"}))]
        for one in started:
            one.stdout.readline()
        try:
            pids = [one.pid for one in started]
            for number, expected in ((1, [0, 2, 5]), (0, [1, 3])):
                found = reap.mine(reap.Role(number))
                self.assertEqual(sorted(found), sorted(pids[at] for at in expected))
                self.assertEqual([pid for pid, is_program in found.items() if is_program], [pids[expected[0]]])
            self.assertTrue(set(pids) <= set(reap.mine()))
            self.assertEqual(reap.role_of(["reap.py", "2", "again", "role=1"]).number, b"1")
            self.assertIsNone(reap.role_of(["reap.py", "2", "again"]))
        finally:
            for one in started:
                one.communicate()

    def test_only_the_ranks_of_a_role_have_started_for_it(self):
        states = ["1.0 3 s ", "1.0 5 s ", "1.0 6 s ", "2.0 5 x 7"]
        with open(os.path.join(JOB, "states"), "w") as file:
            file.write("\n".join(states) + "\n")
        self.addCleanup(os.unlink, os.path.join(JOB, "states"))
        self.assertEqual([reap.started(0, reap.Role(number)) for number in (0, 1)], [1, 2])
        self.assertEqual(reap.parse_states(states, of=range(5, 7))["exits"][0]["rank"], 5)

    def test_a_rank_that_started_again_counts_once_and_anew_for_the_next_start(self):
        with open(os.path.join(JOB, "states"), "w") as file:
            file.write("1.0 5 s \n1.0 6 s \n2.0 5 x 7\n2.1 6 x 143 signal asked\n4.0 5 s \n")
        self.addCleanup(os.unlink, os.path.join(JOB, "states"))
        self.assertEqual(reap.states()["started"], 2)
        program = [sys.executable, "-I", os.path.join(JOB, "reap.py"), "started"]
        for since, expected in (("0.000000", 2), ("3.000000", 1), ("5.000000", 0)):
            self.assertEqual(reap.started(float(since), reap.Role(1)), expected)
            printed = subprocess.check_output(program + [since, "role=1"]).split(b"\n")
            self.assertEqual(printed[1:3], [reap.READY, b"%d" % expected])
        # a rank that the driver of an elastic job has replaced
        self.put("launcher.json", {"rank": ["RANK"]})
        self.assertEqual(reap.states()["started"], 3)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({"/health": 200, "/moved": 302}.get(self.path, 503))
        self.end_headers()

    def log_message(self, *_):
        pass


class Ready(unittest.TestCase):
    def check(self, condition, ports=None, address="127.0.0.1", report=lambda: True):
        of = mock.Mock(ports=ports or {}, address=address, job={"cwd": JOB})
        of.fill_in = lambda text: rank_role.Role.fill_in(of, text)
        return ready.Check(condition, of, report)

    def test_an_http_server_is_ready_below_400_whatever_proxies_the_environment_has(self):
        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                at, nowhere = {"http": server.server_address[1]}, {"http": 1}
                with mock.patch.dict(os.environ, http_proxy="http://127.0.0.1:1", ALL_PROXY="http://127.0.0.1:1"):
                    for path, given, address, expected in (
                            ("/health", at, "127.0.0.1", True), ("/moved", at, "127.0.0.1", True),
                            ("/", at, "127.0.0.1", False), ("", at, "127.0.0.1", False),
                            # it does not listen at the node's address
                            ("/health", at, "127.0.0.9", True), ("/health", nowhere, "127.0.0.1", False)):
                        condition = {"kind": "http", "url": "http://:$PORT_HTTP" + path}
                        self.assertEqual(self.check(condition, given, address).holds(), expected, path)
                condition = {"kind": "port", "name": "http"}
                self.assertEqual([self.check(condition, given).holds() for given in (at, nowhere)], [True, False])
                self.assertFalse(self.check({"kind": "http", "url": "http://:$PORT_X/"}).holds())
            finally:
                server.shutdown()
                thread.join()

    def test_a_server_that_does_not_answer_is_not_ready(self):
        with socket.socket() as server, mock.patch.object(ready, "ANSWER", 0.05):
            server.bind(("127.0.0.1", 0))
            server.listen(5)
            at = {"http": server.getsockname()[1]}
            self.assertFalse(self.check({"kind": "http", "url": "http://:$PORT_HTTP/"}, at).holds())

    def test_a_line_is_found_in_a_longer_one(self):
        one = self.check({"kind": "line", "text": "now sérving"})
        for line, expected in ((b"now serving", False), ("[0] now sérving!".encode(), True), (b"", True)):
            one.see(line)
            self.assertEqual(one.is_ready, expected)

    def test_a_file_that_an_earlier_start_has_left_does_not_count(self):
        path = os.path.join(JOB, "is left")

        def left(seconds):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            open(path, "w").close()
            os.utime(path, (time.time() - seconds,) * 2)
            return self.check({"kind": "file", "path": "is left"})

        self.assertFalse(left(60).holds())
        # another rank has just written it, by a clock that is a little behind
        self.assertTrue(left(ready.COARSE / 2).holds())
        changed = left(60)
        os.utime(path, (time.time() - 30,) * 2)
        self.assertTrue(changed.holds())
        os.unlink(path)
        self.assertFalse(changed.holds())

    def test_a_file_may_be_there_only_at_the_end(self):
        path = os.path.join(JOB, "is there")
        one = self.check({"kind": "file", "path": "is there"})
        one.finish()
        self.assertFalse(one.is_reported)
        open(path, "w").close()
        self.addCleanup(os.unlink, path)
        one.finish()
        self.assertTrue(one.is_reported)

    def test_it_is_reported_once_as_soon_as_that_is_possible(self):
        report = mock.Mock(side_effect=[False, True])
        one = self.check(None, report=report)
        for _ in range(4):
            one.follow()
        self.assertEqual(report.call_count, 2)
        never = self.check({"kind": "line", "text": "x"}, report=mock.Mock())
        never.follow()
        never.report.assert_not_called()

    def test_a_thread_checks_again_and_again(self):
        one = self.check({"kind": "file", "path": "later"})
        checks, held = [], one.holds
        one.holds = lambda: checks.append(1) or held()
        with mock.patch.object(ready, "EVERY", 0.01):
            one.begin()
            while len(checks) < 2:
                time.sleep(0.01)
            self.assertFalse(one.is_ready)
            path = os.path.join(JOB, "later")
            open(path, "w").close()
            self.addCleanup(os.unlink, path)
            while not one.is_ready:
                time.sleep(0.01)


class Launchers(unittest.TestCase):
    LAUNCH = {"node": "a", "grace": 60, "start_timeout": 9, "workers": [], "roles": [TRAINER, GENERATOR],
              "restart_pause": 2}

    def test_reports_are_taken_for_the_ranks_of_a_role(self):
        log = frames.Log(JOB)
        self.addCleanup(os.unlink, os.path.join(JOB, "log"))
        one = launchers.OfRole(1, self.LAUNCH, log, None, None)
        one.launcher.poll = lambda: None
        self.assertEqual(one.observe().missing, [0, 1, 2])
        for text in (b"%s1", b"[0]<stdout>: %s5 on 10.0.0.2", b"%s0", b"%s99999999999", b"%s"):
            one.launcher.lines.take(text % reap.READY_RANK + b"\n")
        self.assertEqual(one.observe(), roles.Role(None, None, [1], False))
        one.launcher.lines.take(b"%s7 on 10.0.0.2\n" % reap.FAILED)
        self.assertEqual(one.observe().failed, 7)
        one.thread = mock.Mock(**{"is_alive.return_value": False})
        self.assertEqual(one.observe(), roles.Role(None, None, [1], True), "it has ended")
        self.assertEqual(one.launcher.mark, {"HVDCTL_ROLE": "gen-er"})
        self.assertEqual(one.launcher.given, "env.1.json")

    def test_the_rank_that_failed_first_since_the_start_is_named(self):
        one = launchers.OfRole(1, self.LAUNCH, None, None, None)
        one.since = 100

        def end(rank, time, code, asked=False, number=None):
            return {"rank": rank, "time": time, "code": code, "asked": asked, "signal": number}

        self.assertIsNone(one.failure())
        one.report.ends = {"a": {"ahead": 0.0, "exits": [end(1, 50.0, 9), end(1, 103.0, 7), end(0, 101.0, 6)]},
                           "b": {"ahead": 1000.0, "exits": [end(4, 1102.0, 137, number=9), end(5, 1101.5, 143, True)]}}
        self.assertEqual(one.failure(), {"rank": 4, "node": "b", "code": 137, "signal": 9})

    def test_only_the_new_starts_of_a_role_that_is_started_again_count(self):
        nodes = mock.Mock()
        nodes.started.return_value = 2
        first = launchers.OfRole(1, self.LAUNCH, None, None, nodes)
        first.report.ends = {"a": {"ahead": 0.0, "exits": []}, "b": {"ahead": 1000.0, "exits": []}}
        again = launchers.OfRole(1, self.LAUNCH, None, None, nodes, first)
        self.assertEqual(first.since, 0)
        self.assertAlmostEqual(again.since, time.time(), delta=60)
        for one, since in ((first, 0), (again, again.since + 1000)):
            nodes.started.reset_mock()
            with mock.patch.object(reap, "started", return_value=1) as here, mock.patch.object(reap, "Role"):
                one.check.poll()
            nodes.started.assert_called_once_with(GENERATOR["places"][1], 1, since)
            self.assertEqual(here.call_args[0][0], one.since)
        # without a role, as its driver has assigned the ranks
        self.assertEqual(attempt.StartCheck(self.LAUNCH, nodes, [], 7).since_on("b"), 0)
        ssh = mock.Mock(return_value=mock.MagicMock())
        ssh.return_value.stdout.readline.return_value = b""
        with mock.patch.object(workers.Workers, "ssh", ssh):
            workers.Workers({"workers": [], "port": 1}, None).started(GENERATOR["places"][1], 1, 7.5)
        self.assertTrue(ssh.call_args[0][2][0].endswith(" started 7.500000 role=1"), ssh.call_args)

    def test_an_end_counts_until_the_role_is_started_again(self):
        launch = dict(self.LAUNCH, roles=[TRAINER, dict(GENERATOR, ends=restarts(1))])
        one = launchers.Launchers(launch, mock.Mock(), None, None)
        with mock.patch.object(attempt.Launcher, "start"):
            one.start_role(1, 0)
            self.assertEqual(one.since(4), 0, "clocks may be wrong")
            one.start_role(1, 1)
        self.assertGreater(one.since(4), 0)
        self.assertEqual(one.since(0), 0)

    def test_a_node_that_roles_need_and_that_does_not_answer_ends_the_attempt(self):
        log = mock.Mock()
        one = launchers.Launchers(self.LAUNCH, log, None, None)
        one.silent = ["b"]
        one.start([], 1)
        self.assertEqual((one.code, one.started), (1, {}))
        log.write.assert_called_once_with(b"l", [b"no answer from b: a job with roles needs all of its nodes"])

    def test_ranks_that_did_not_start_are_not_ready(self):
        one = launchers.Launchers(self.LAUNCH, mock.Mock(), None, None)
        with mock.patch.object(roles, "decide", return_value=(one.states, [], None)) as decide:
            one.follow()
        observed = decide.call_args[0][2]
        self.assertEqual([role.missing for role in observed.roles], [[0, 1, 2]] * 2)
        self.assertEqual(observed.pause, 2)

    def test_ports_that_cannot_be_chosen_end_the_attempt(self):
        log = mock.Mock()
        one = launchers.Launchers(self.LAUNCH, log, None, None)
        with mock.patch.object(addresses, "choose", side_effect=OSError("cannot choose ports on b: no route")):
            one.start([], 0)
        self.assertEqual((one.code, one.poll(), one.processes, one.stopping), (1, 1, [], []))
        log.write.assert_called_once_with(b"l", [b"cannot choose ports on b: no route"])


if __name__ == "__main__":
    unittest.main()
