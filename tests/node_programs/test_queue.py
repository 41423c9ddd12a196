"""Unit tests of what starts and ends the jobs of the cluster's queue (slurm/nodes), and of what waits for their nodes
(programs/slurm/queue_wait.py)."""
import http.server
import json
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True
SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "scripts")
PARTS = ["slurm", "nodes"], ["programs", "slurm"], ["programs", "environment"], ["programs"]
sys.path[:0] = [os.path.join(SCRIPTS, *parts) for parts in PARTS]
import agent  # noqa: E402
import engine as node_engine  # noqa: E402
import faults  # noqa: E402
import node  # noqa: E402
import placement  # noqa: E402
import queue_state  # noqa: E402
import queued  # noqa: E402
import queue_wait  # noqa: E402
import result  # noqa: E402

ID = "20261127-101500-4f2a"
OTHER = "20261127-101501-4f2a"
NAMED = "JobName=q.%s " % ID  # begins what scontrol shows of the job


def description(**fields):
    nodes = [{"node": name, "slots": 2} for name in ("a", "b", "c")]
    return dict({"nodes": nodes, "launcher": "a", "master": "hmaster-" + ID, "ranks": 3, "per_node": None,
                 "map_by": "slot",
                 "worker": None, "gpus": [], "submit": ["sbatch", "--wrap", "true"], "grace": 1}, **fields)


def with_roles(**fields):
    def role(name, ranks):
        shape = {"size": {"ranks": ranks}, "gpus": 1, "beside": None, "nodes": None}
        return {"name": name, "shape": shape, "chooses_gpus": False}

    nodes = [{"node": name, "slots": 2, "gpus": 2, "address": "10.0.0.%d" % at}
             for at, name in enumerate(("a", "b", "c"), 1)]
    return description(nodes=nodes, roles=[role("train", 2), role("serve", 1)], **fields)


class Isolated(unittest.TestCase):
    def test_the_agents_find_their_modules_in_a_python_that_does_not_look_next_to_them(self):
        with tempfile.TemporaryDirectory() as directory:
            for module in (agent, node_engine, faults, node, placement, queue_state, queued, queue_wait, result):
                shutil.copy(module.__file__, directory)
            for program in ("agent", "node"):
                loads = "import runpy; runpy.run_path(%r, run_name='loaded')" % os.path.join(directory, program + ".py")
                done = subprocess.run([sys.executable, "-I", "-B", "-c", loads], stderr=subprocess.PIPE)
                self.assertEqual((done.returncode, done.stderr), (0, b""), program)


class Placement(unittest.TestCase):
    def place(self, nodes, **fields):
        return [(share["node"], share["ranks"], share["first"]) for share in queued.place(description(**fields), nodes)]

    def test_ranks_are_where_they_would_be_without_slurm(self):
        self.assertEqual(self.place(["a", "b"]), [("a", 2, 0), ("b", 1, 2)])
        self.assertEqual(self.place(["b", "a"]), [("a", 2, 0), ("b", 1, 2)], "in the order of the inventory")
        self.assertEqual(self.place(["a", "b"], map_by="node", ranks=2), [("a", 1, 0), ("b", 1, 1)])
        self.assertEqual(self.place(["a", "b", "c"], per_node=1), [("a", 1, 0), ("b", 1, 1), ("c", 1, 2)])
        self.assertTrue(all(share["shared"] for share in queued.place(description(per_node=1), ["a", "b", "c"])))

    def test_the_master_launches_also_without_ranks(self):
        self.assertEqual(self.place(["b", "c"]), [("a", 0, 0), ("b", 2, 0), ("c", 1, 2)])

    def test_too_few_slots_are_an_error_and_no_loop(self):
        with self.assertRaisesRegex(RuntimeError, "which have 2 slots, and it has 3 ranks"):
            self.place(["b"])
        with self.assertRaises(RuntimeError):
            self.place([])

    def test_roles_are_placed_on_the_nodes_that_slurm_has_given(self):
        job = with_roles()
        found = [(share["node"], share["first"], share["roles"]) for share in queued.place(job, ["c", "b"])]
        self.assertEqual(found, [("a", 0, [0, 0]), ("b", 0, [2, 0]), ("c", 2, [0, 1])], "a launches")
        with self.assertRaisesRegex(RuntimeError, "do not fit on b, which Slurm has given it: the role serve needs"):
            queued.place(job, ["b"])


class Queue(unittest.TestCase):
    def test_a_job_has_its_nodes_when_its_prologs_have_ended(self):
        self.addCleanup(setattr, queued, "ask", queued.ask)
        for state, reason, expected in (("RUNNING", "Prolog", "CONFIGURING"), ("RUNNING", "None", "RUNNING"),
                                        ("COMPLETING", "Prolog", "COMPLETING"), ("PENDING", "Resources", "PENDING")):
            queued.ask = lambda *_: "7|%s|%s|1|2|a.b.%s|n[1-2]\n8|RUNNING|None|1|2|other|n3\n" % (state, reason, ID)
            found = queued.queue()
            self.assertEqual([(id, one["state"], one["nodes"]) for id, one in found.items()],
                             [(ID, expected, "n[1-2]")])


class Directory(unittest.TestCase):
    """A directory of the cluster's queue, and one of jobs."""

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.jobs = os.path.join(place.name, "jobs")
        self.addCleanup(setattr, queued, "DIRECTORY", queued.DIRECTORY)
        queued.DIRECTORY = os.path.join(place.name, "slurm")
        self.here = {"node": "a", "cluster": "lab", "jobs_dir": self.jobs, "socket": "/nothing", "is_controller": True}
        queued.store(self.here, "node.json")
        os.makedirs(os.path.join(self.jobs, ID))
        self.write("job.json", json.dumps({"id": ID, "ranks": 2, "placement": {"shares": []}}))

    def write(self, name, text):
        with open(os.path.join(self.jobs, ID, name), "w") as file:
            file.write(text)

    def read(self, name):
        with open(os.path.join(self.jobs, ID, name)) as file:
            return file.read()


class Engine:
    """A container engine."""

    def __init__(self):
        self.states, self.signals = {}, []

    def running(self, name):
        return self.states.get(name)

    def process(self, name):
        return 0

    def start(self, name):
        self.states[name] = True

    def signal(self, name, signal):
        self.signals.append((name, signal))
        if signal == "SIGKILL":
            self.states[name] = False


class Agent(Directory):
    """The agent, a Slurm with the entries that a test gives, and the commands that it was given."""

    def setUp(self):
        super().setUp()
        queued.store(description(), "jobs", ID + ".json")
        self.given = []
        self.agent, self.asked, self.shown = agent.Agent(), [], "JobName=q.%s JobState=CANCELLED Reason=None" % ID
        self.agent.engine = self.engine = Engine()
        self.entries = {}
        replaced = {"ask": self.ask, "queue": lambda: self.entries, "hostnames": lambda nodes: nodes.split(",")}
        for name, function in replaced.items():
            self.addCleanup(setattr, queued, name, getattr(queued, name))
            setattr(queued, name, function)

    def ask(self, *argv):
        self.asked.append(argv)
        self.given.append(argv)  # in all rounds
        if argv[:2] == ("scontrol", "--oneliner") or argv[:2] == ("scontrol", "show"):
            if self.shown is None:
                raise OSError("scontrol: slurm_load_jobs error: Invalid job id specified")
            return self.shown
        return "8\n" if argv[0] == "sbatch" else ""

    def look(self, state=None, nodes="", is_up=None):
        """A round of the agent with this state of the job in Slurm, and of the launcher's container."""
        self.entries = {ID: {"number": "7", "state": state, "nodes": nodes,
                             "text": "7|%s|None|1|2" % state}} if state else {}
        if is_up is not None:
            self.engine.states["hmaster-" + ID] = is_up
        for _ in range(1 if state else queue_state.MISSING + 1):
            self.asked.clear()
            self.agent.look()
        return self.asked

    def exists(self, kind):
        return os.path.exists(queued.path(kind, ID + ".json"))

    def test_a_job_begins_when_it_has_its_nodes(self):
        self.look("PENDING", is_up=True)
        self.assertEqual(self.read("queue"), "7|PENDING|None|1|2\n")
        self.look("CONFIGURING", "b,c")
        self.assertFalse(self.exists("allocated"), "prologs are still starting its workers")
        self.look("RUNNING", "b,c")
        shares = json.loads(self.read("allocation.json"))["shares"]
        self.assertEqual([(share["node"], share["ranks"]) for share in shares], [("a", 0), ("b", 2), ("c", 1)])
        # no prolog has written the record of the master, which has no ranks
        self.assertEqual(json.loads(self.read("job.json"))["slurm"], {"is_placed": True, "is_own": True})
        self.assertEqual(self.look("RUNNING", "b,c"), [])

    def test_an_allocation_ends_with_its_job(self):
        self.look("RUNNING", "a,b", is_up=True)
        signal = ("scancel", "--batch", "--signal=USR1", "7")
        self.assertEqual(self.look("RUNNING", "a,b", is_up=False), [signal])
        for _ in range(queue_state.SIGNALS - 1):
            self.assertEqual(self.look("RUNNING", "a,b"), [signal])
        self.assertEqual(self.look("RUNNING", "a,b"), [("scancel", "7")], "what waits there is gone")
        self.look()
        self.assertFalse(self.exists("jobs") or self.exists("allocated"))

    def test_a_launcher_ends_when_slurm_takes_its_nodes_away(self):
        for shown, state in ((NAMED + "JobState=COMPLETING Reason=TimeLimit", "TIMEOUT"),
                             (NAMED + "JobState=CANCELLED Reason=None", "CANCELLED"),
                             (NAMED + "JobState=COMPLETING Reason=NodeDown", "NODE_FAIL"), (None, "NODE_FAIL"),
                             ("JobName=other.%s JobState=COMPLETED" % OTHER, "NODE_FAIL")):
            self.setUp()
            self.look("RUNNING", "a,b", is_up=True)
            self.shown = shown
            self.look("COMPLETING", "a,b")
            self.look("COMPLETING", "a,b")
            self.assertEqual((self.read("deallocated"), self.engine.signals), (state, [("hmaster-" + ID, "SIGTERM")]))

    def test_a_launcher_ends_although_slurm_did_not_answer_when_its_nodes_were_lost(self):
        self.look("RUNNING", "a,b", is_up=True)
        answers = queued.ask

        def is_away(*_):
            raise OSError("Unable to contact slurm controller")

        queued.ask = is_away
        self.look("COMPLETING", "a,b")
        self.assertEqual(self.engine.signals, [])
        queued.ask = answers
        self.look("COMPLETING", "a,b")
        self.assertEqual((self.read("deallocated"), len(self.engine.signals)), ("CANCELLED", 1))

    def test_a_launcher_is_asked_again_only_if_the_engine_did_not_take_the_signal(self):
        self.look("RUNNING", "a,b", is_up=True)
        take = self.engine.signal

        def refuse(*_):
            raise agent.EngineError("500: cannot kill container")

        self.engine.signal = refuse
        self.look("COMPLETING", "a,b")
        self.engine.signal = take
        # ranks keep the reason from being written
        os.remove(os.path.join(self.jobs, ID, "deallocated"))
        os.mkdir(os.path.join(self.jobs, ID, "deallocated"))
        for _ in range(3):
            self.look("COMPLETING", "a,b")
        self.assertEqual(self.engine.signals, [("hmaster-" + ID, "SIGTERM")])

    def test_a_job_that_was_cancelled_in_the_queue_knows_it(self):
        self.look("PENDING", is_up=True)
        self.look()
        self.assertEqual(json.loads(self.read("allocation.json")), {"end": "CANCELLED", "why": ""})
        self.setUp()
        self.look("PENDING", is_up=True)
        self.shown = NAMED + "JobState=CANCELLED Reason=None\n   AdminComment=b: port 20001 is in use\n"
        self.look()
        self.assertEqual(json.loads(self.read("allocation.json"))["why"], "b: port 20001 is in use")

    def test_a_job_that_slurm_has_forgotten_is_submitted_again(self):
        self.look("PENDING", is_up=True)
        self.shown = None
        for _ in range(queue_state.MISSING + 1):
            self.look()
        self.assertIn(("sbatch", "--wrap", "true"), self.given)
        self.assertFalse(os.path.exists(os.path.join(self.jobs, ID, "allocation.json")))

    def test_a_job_that_slurm_forgot_at_once_is_submitted_again(self):
        self.look(is_up=True)
        queued.store({"number": "7"}, "numbers", ID + ".json")
        self.shown = None
        self.look()
        self.assertIn(("sbatch", "--wrap", "true"), self.given)

    def test_a_job_is_not_ended_before_it_is_submitted(self):
        self.look(is_up=None)
        self.look(is_up=True)
        self.assertTrue(self.exists("jobs") and not self.exists("allocated"))

    def test_a_job_that_is_suspended_or_asked_for_again_keeps_its_launcher_or_loses_it(self):
        self.look("RUNNING", "a,b", is_up=True)
        self.look("SUSPENDED", "a,b")
        self.assertEqual(self.engine.signals, [])
        # it has lost a node, and Slurm has put it into its queue again
        self.assertIn(("scancel", "7"), self.look("PENDING"))
        self.assertEqual((self.read("deallocated"), len(self.engine.signals)), ("NODE_FAIL", 1))

    def test_nodes_that_do_not_suffice_end_the_job(self):
        self.look("RUNNING", "b", is_up=True)
        self.assertIn("which have 2 slots", json.loads(self.read("allocation.json"))["why"])

    def test_ranks_cannot_keep_their_launcher(self):
        self.look("RUNNING", "a,b", is_up=True)
        os.makedirs(os.path.join(self.jobs, ID, "deallocated", "x"))
        self.look("COMPLETING", "a,b")
        self.assertEqual(len(self.engine.signals), 1)

    def test_a_job_whose_launcher_is_removed_has_an_end(self):
        self.write("launch.json", '{"format": 1}')
        self.look("PENDING", is_up=True)
        del self.engine.states["hmaster-" + ID]
        self.assertEqual(self.look("PENDING"), [("scancel", "7")])
        self.look()
        recorded = json.loads(self.read("result.json"))
        self.assertLess(abs(time.time() - recorded.pop("ended")), 60)
        self.assertEqual(recorded, {"format": 1, "launcher": 1, "stopped": False, "ranks": 3,
                                    "reason": {"kind": "container_removed"}})

    def test_a_job_that_cannot_begin_on_a_node_ends(self):
        self.look("CONFIGURING", "a,b", is_up=True)
        self.shown = NAMED + "JobState=CANCELLED Reason=None\n   AdminComment=b: cannot start hworker: port in use\n"
        self.look("COMPLETING", "a,b")
        self.look()
        self.assertEqual(json.loads(self.read("allocation.json"))["why"], "b: cannot start hworker: port in use")

    def test_a_job_that_a_prolog_puts_into_the_queue_again_waits_on(self):
        self.shown = NAMED + "JobState=COMPLETING Reason=Prolog\n"
        for state in ("CONFIGURING", "COMPLETING", "REQUEUED", "PENDING"):
            self.look(state, "a,b", is_up=True)
        self.assertFalse(self.exists("allocated"))
        self.look("RUNNING", "a,b")
        self.assertTrue(self.exists("allocated"))

    def test_what_hvdctl_could_not_submit_is_submitted(self):
        self.look(is_up=True)
        job = self.agent.jobs[ID]
        job.state = job.state._replace(since=job.state.since - queue_state.UNSUBMITTED - 1)
        self.entries = {}
        self.asked.clear()
        self.agent.look()
        self.agent.look()
        self.assertEqual(self.asked.count(("sbatch", "--wrap", "true")), 1)

    def test_a_file_that_cannot_be_read_stops_no_other_job(self):
        os.makedirs(queued.path("numbers"), exist_ok=True)
        with open(queued.path("numbers", ID + ".json"), "w") as file:
            file.write('{"number": "Usage\n')
        queued.store(description(master="hmaster-" + OTHER), "jobs", OTHER + ".json")
        os.makedirs(os.path.join(self.jobs, OTHER))
        self.engine.states["hmaster-" + OTHER] = True
        self.entries = {OTHER: {"number": "8", "state": "PENDING", "nodes": "", "text": "8|PENDING"}}
        self.agent.look()
        self.assertTrue(os.path.exists(os.path.join(self.jobs, OTHER, "queue")))

    def test_a_launcher_that_waited_is_started_again_with_its_machine(self):
        self.look("PENDING", is_up=True)
        self.engine.states["hmaster-" + ID] = False
        self.assertEqual(self.look("PENDING"), [])
        self.assertTrue(self.engine.states["hmaster-" + ID])
        # one that was stopped has a result
        self.write("result.json", "{}")
        self.assertEqual(self.look("PENDING", is_up=False), [("scancel", "7")])

    def test_what_has_ended_is_cancelled_if_slurm_remembers_it(self):
        self.entries = {OTHER: {"number": "3", "state": "RUNNING", "nodes": "a", "text": ""}}
        self.asked.clear()
        self.engine.states["hmaster-" + ID] = True
        self.agent.look()
        self.assertIn(("scancel", "3"), self.asked)

    def test_an_agent_that_is_started_again_goes_on(self):
        self.look("RUNNING", "a,b", is_up=True)
        os.unlink(os.path.join(self.jobs, ID, "allocation.json"))
        self.agent = agent.Agent()
        self.agent.engine = self.engine
        self.look("RUNNING", "a,b")
        self.assertFalse(os.path.exists(os.path.join(self.jobs, ID, "allocation.json")), "ranks may be running")


class Node(Directory):
    def test_a_job_gets_gpus_that_no_other_one_has(self):
        gpus = [{"uuid": "GPU-%d" % number, "visible": str(number)} for number in range(3)]
        job = description(per_node=2, gpus=gpus)
        self.write("env.json", json.dumps({"A": "b"}))
        queued.store(dict(job, chosen=["GPU-0"]), "begun", OTHER + ".json")
        # of an earlier try
        queued.store(dict(job, chosen=["GPU-1"]), "begun", ID + ".json")
        chosen = node.choose_gpus(ID, job, 2)
        self.assertEqual(chosen, ["GPU-1", "GPU-2"])
        queued.show_gpus(gpus[1:], os.path.join(self.jobs, ID, "env.json"))
        self.assertEqual(json.loads(self.read("env.json")),
                         {"A": "b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,2"})
        self.write("env.json", json.dumps({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}))
        queued.show_gpus(gpus[1:], os.path.join(self.jobs, ID, "env.json"))
        self.assertEqual(json.loads(self.read("env.json"))["CUDA_VISIBLE_DEVICES"], "GPU-1,GPU-2")
        with self.assertRaisesRegex(RuntimeError, "2 of its 3 GPUs are free"):
            node.choose_gpus(ID, job, 3)

    def test_a_prolog_writes_which_ranks_of_each_role_a_node_has(self):
        gpus = [{"uuid": "GPU-%d" % number, "visible": str(number)} for number in range(2)]
        job = with_roles(gpus=gpus)
        job["roles"][0]["shape"]["size"] = {"ranks": 1}
        job["roles"][1]["shape"]["beside"] = 0
        queued.store(job, "jobs", ID + ".json")
        self.write("launcher.json", json.dumps({"roles": [{"name": "train"}, {"name": "serve"}]}))
        for number in range(2):
            self.write("env.%d.json" % number, json.dumps({"A": "b", "CUDA_VISIBLE_DEVICES": ""}))
        patches = {"ask": lambda *_: NAMED + "NodeList=a", "hostnames": lambda _: ["a"]}
        with unittest.mock.patch.multiple(queued, **patches):
            # Slurm may have put it into the queue again
            for _ in range(2):
                self.assertEqual(node.prolog("7"), 0)
        found = [(role["name"], role["ranks"], role["first"], role["before"], role["offset"])
                 for role in json.loads(self.read("launcher.json"))["roles"]]
        self.assertEqual(found, [("train", 1, 0, 0, 0), ("serve", 1, 1, 0, 1)])
        visible = [json.loads(self.read("env.%d.json" % number))["CUDA_VISIBLE_DEVICES"] for number in range(2)]
        self.assertEqual(visible, ["0", "1"])
        self.assertEqual(json.loads(self.read("roles.json"))["serve"],
                         {"ranks": 1, "hosts": ["10.0.0.1"], "ports": {}})
        shares = json.loads(self.read("job.json"))["placement"]["shares"]
        self.assertEqual(shares, [{"node": "a", "ranks": 2, "first": 0, "roles": [1, 1]}])
        modes = [os.stat(os.path.join(self.jobs, ID, name)).st_mode & 0o777
                 for name in ("launcher.json", "roles.json", "env.0.json")]
        self.assertEqual(modes, [0o644, 0o644, 0o600])
        queued.remove_environment(ID)
        self.assertEqual(sorted(os.listdir(os.path.join(self.jobs, ID))), ["job.json", "launcher.json", "roles.json"])

    def test_jobs_that_hvdctl_prepares_without_slurm_are_outside(self):
        self.write("env.json", "{}")
        self.assertIn(ID, node.jobs_outside())
        self.write("job.json", '{"slurm": {"is_placed": false, "is_own": true}}')
        self.assertNotIn(ID, node.jobs_outside())
        self.write("job.json", "{}")
        queued.store(description(), "jobs", ID + ".json")
        self.assertNotIn(ID, node.jobs_outside())
        queued.discard("jobs", ID + ".json")
        old = time.time() - node.FRESH - 1
        os.utime(os.path.join(self.jobs, ID, "env.json"), (old, old))
        # those of this machine may be of another run of this test
        other = [b"HVDCTL_PROGRAM=1", b"HVDCTL_JOB=other"]
        with unittest.mock.patch.object(node, "processes", return_value=[(1, other)]):
            self.assertNotIn(ID, node.jobs_outside(), "its processes count then")

    def check(self, state, reason):
        """The update of a node that a check asks of a Slurm in which it has this state and reason."""
        asked = []

        def ask(*argv):
            asked.append(" ".join(argv))
            return "%s|%s\n" % (state, reason) if argv[0] == "sinfo" else ""

        with unittest.mock.patch.object(queued, "ask", ask):
            self.assertEqual(node.check(""), 0)
        return [one for one in asked if one.startswith("scontrol update")]

    def test_a_node_whose_epilog_failed_is_back_when_nothing_of_its_jobs_is_left(self):
        engine, entries = Engine(), {ID: {"state": "PENDING"}, OTHER: {"state": "RUNNING"}}
        for place, name, value in ((queued, "queue", lambda: entries), (node, "Engine", lambda _: engine)):
            patch = unittest.mock.patch.object(place, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        for id, number in ((ID, "7"), (OTHER, "8")):
            queued.store(dict(description(grace=0, master=id, worker={"name": id}), number=number), "begun",
                         id + ".json")
            queued.store(description(), "jobs", id + ".json")
            engine.states[id] = True
        self.assertEqual(self.check("drained", "maintenance of the operator"), [])
        self.assertEqual((engine.signals, queued.listed("begun")), ([], [ID, OTHER]))
        with node.clearing:
            self.assertEqual(self.check("drained", "Epilog error"), [], "an earlier check still waits")
        self.assertEqual(self.check("draining", "Epilog error"), ["scontrol update nodename=a state=resume"])
        # a slurmctld that was killed has started a job a second time
        self.assertEqual(self.check("drained", "Duplicate jobid"), ["scontrol update nodename=a state=resume"])
        # the other one has its allocation
        self.assertEqual((engine.signals, queued.listed("begun")), ([(ID, "SIGKILL")], [OTHER]))

    def test_what_slurm_no_longer_has_is_forgotten(self):
        """A node that was down gets no epilog."""
        engine = Engine()
        for name, stand_in in ((queued, ("queue", lambda: {})), (node, ("Engine", lambda _: engine))):
            self.addCleanup(setattr, name, stand_in[0], getattr(name, stand_in[0]))
            setattr(name, *stand_in)
        queued.store(dict(description(), number="7"), "begun", ID + ".json")
        engine.states["hmaster-" + ID] = True
        node.forget(self.here)
        self.assertEqual(queued.listed("begun"), [ID])
        engine.states.clear()
        node.forget(self.here)
        self.assertEqual(queued.listed("begun"), [])

    def test_the_environment_goes_with_a_job_that_never_began_here(self):
        queued.store(dict(self.here, is_controller=False), "node.json")
        entries = {ID: {}}
        for name, stand_in in ((queued, ("queue", lambda: entries)), (node, ("Engine", lambda _: Engine()))):
            self.addCleanup(setattr, name, stand_in[0], getattr(name, stand_in[0]))
            setattr(name, *stand_in)
        queued.store(description(), "jobs", ID + ".json")
        self.write("env.json", "{}")
        here = queued.settings()
        node.forget(here)
        self.assertEqual((self.read("env.json"), queued.listed("jobs")), ("{}", [ID]))
        entries.clear()
        node.forget(here)
        self.assertEqual((os.path.exists(os.path.join(self.jobs, ID, "env.json")), queued.listed("jobs")), (False, []))

    def test_a_worker_without_ranks_keeps_no_node_and_its_job_may_come_back(self):
        engine, worker = Engine(), {"name": "hworker-" + ID}
        for name, value in (("Engine", lambda _: engine), ("has_ranks", lambda _: False), ("WITHOUT_RANKS", 0)):
            self.addCleanup(setattr, node, name, getattr(node, name))
            setattr(node, name, value)
        queued.store(description(worker=worker), "jobs", ID + ".json")
        queued.store(dict(description(worker=worker, grace=600), number="7"), "begun", ID + ".json")
        self.write("env.json", "{}")
        engine.states[worker["name"]] = True
        self.assertEqual(node.epilog("8"), 0)
        self.assertEqual(engine.signals, [], "this is another job's number")
        self.assertEqual(node.epilog("7"), 0)
        self.assertEqual(engine.signals, [(worker["name"], "SIGKILL")])
        self.assertEqual((queued.listed("begun"), queued.listed("jobs"), self.read("env.json")), ([], [ID], "{}"))

    def test_a_launcher_that_still_waits_keeps_no_node(self):
        engine = Engine()
        self.addCleanup(setattr, node, "Engine", node.Engine)
        node.Engine = lambda _: engine
        for is_allocated, signals in ((False, []), (True, [("hmaster-" + ID, "SIGKILL")])):
            if is_allocated:
                queued.store({}, "allocated", ID + ".json")
            queued.store(dict(description(grace=0), number="7"), "begun", ID + ".json")
            engine.states["hmaster-" + ID] = True
            node.epilog("7")
            self.assertEqual((queued.listed("begun"), engine.signals), ([], signals))

    def test_what_a_rank_puts_into_its_directory_is_neither_followed_nor_removed_nor_waited_for(self):
        place, target = os.path.join(self.jobs, ID), os.path.join(self.jobs, "target")
        os.symlink(target, os.path.join(place, "queue"))
        os.makedirs(os.path.join(place, "queue.new", "x"))
        queued.put(os.path.join(place, "queue"), "7|PENDING\n")
        self.assertEqual((self.read("queue"), os.path.exists(target)), ("7|PENDING\n", False))
        self.assertEqual(os.listdir(os.path.join(place, "queue.new")), ["x"])
        # nothing is left of what cannot be put into place
        os.makedirs(os.path.join(place, "full", "x"))
        before = set(os.listdir(place))
        with self.assertRaises(OSError):
            queued.put(os.path.join(place, "full"), "x")
        self.assertEqual(set(os.listdir(place)), before)
        for plant in (os.mkfifo, os.mkdir, lambda name: os.symlink("/etc/hostname", name)):
            os.unlink(os.path.join(place, "job.json")) if os.path.lexists(os.path.join(place, "job.json")) else None
            plant(os.path.join(place, "job.json"))
            self.assertFalse(node.is_queued(place))
            with self.assertRaises(OSError):
                queued.write_record(place, [{"node": "a", "ranks": 1, "first": 0}], "a")
            os.rmdir(os.path.join(place, "job.json")) if os.path.isdir(os.path.join(place, "job.json")) else None


class Ranks(Directory):
    """Processes that say of themselves that they are ranks."""

    def process(self, *argv):
        """Starts a process, and waits until it says that it is there. It does not change its program after that:
        the environment is empty meanwhile."""
        process = subprocess.Popen([*argv, "sh", "-c", "echo there; read end"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        for end in (process.stdin.close, process.stdout.close, process.wait, process.kill):
            self.addCleanup(end)
        self.assertEqual(process.stdout.readline(), "there\n")
        return process

    def rank(self, job, *isolated):
        """Starts one of a job."""
        return self.process(*isolated, "env", "HVDCTL_PROGRAM=1", "HVDCTL_JOB=" + job)

    def test_a_process_alone_drains_no_node(self):
        self.rank(OTHER)
        self.assertNotIn(OTHER, node.jobs_outside())
        # hvdctl has started this one, and its ranks still run
        os.makedirs(os.path.join(self.jobs, OTHER))
        environment = os.path.join(self.jobs, OTHER, "env.json")
        with open(environment, "w"):
            old = time.time() - node.FRESH - 1
            os.utime(environment, (old, old))
        self.assertIn(OTHER, node.jobs_outside())
        os.unlink(environment)
        os.symlink("/proc/self/environ", environment)
        os.utime(environment, (old, old), follow_symlinks=False)
        self.assertNotIn(ID, node.jobs_outside())

    def test_the_ranks_of_a_job_are_those_in_its_container(self):
        inside = self.rank(ID)
        self.assertTrue(node.has_ranks(inside.pid))
        self.assertFalse(node.has_ranks(0))
        # one of another container may call itself what it likes; that of the tests may have ranks of another run
        isolated = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
        other, container = self.rank(ID, *isolated), self.process(*isolated)
        main = {}
        for process in (other, container):
            with open("/proc/%d/task/%d/children" % (process.pid, process.pid)) as children:
                main[process] = int(children.read())
        self.assertTrue(node.has_ranks(main[other]))
        self.assertFalse(node.has_ranks(main[container]), "of process %d" % other.pid)


class Hook(Directory):
    """The hooks of slurmd, and what answers them."""

    def setUp(self):
        super().setUp()
        self.tools = tempfile.TemporaryDirectory()
        self.addCleanup(self.tools.cleanup)
        for name in ("hook.py", "node.py", "queued.py", "engine.py"):
            shutil.copy(os.path.join(SCRIPTS, "slurm", "nodes", name), queued.DIRECTORY)
        shutil.copy(placement.__file__, queued.DIRECTORY)
        self.tool("sinfo", "echo 'idle|none'")
        self.tool("squeue", ":")
        self.tool("scontrol", 'echo "$@" >>%s/asked; [ "$2" != show ] || echo JobName=other' % self.tools.name)
        self.environment = dict(os.environ, PATH=self.tools.name + ":" + os.environ["PATH"])

    def tool(self, name, body):
        path = os.path.join(self.tools.name, name)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n%s\n" % body)
        os.chmod(path, 0o755)

    def ask(self, what, program="sys.exit(hook.main(sys.argv[1]))", **variables):
        code = "import sys; sys.path.insert(0, %r); import hook; %s" % (queued.DIRECTORY, program)
        return subprocess.run([sys.executable, "-c", code, what], env=dict(self.environment, **variables),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=30)

    def start(self):
        agent = subprocess.Popen([sys.executable, os.path.join(queued.DIRECTORY, "node.py")], env=self.environment,
                                 stderr=subprocess.PIPE, text=True)
        self.addCleanup(agent.stderr.close)
        self.addCleanup(agent.wait)
        self.addCleanup(agent.kill)
        socket = queued.path("agent.sock")
        until = time.monotonic() + 20
        while not os.path.exists(socket):
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)
        self.assertEqual(os.stat(socket).st_mode & 0o777, 0o600)
        return agent

    def test_the_agent_answers_what_slurmd_asks(self):
        self.start()
        self.assertEqual(self.ask("check").returncode, 0)
        # a job that was not submitted by hvdctl
        self.assertEqual(self.ask("prolog", SLURM_JOB_ID="7").returncode, 0)
        with open(os.path.join(self.tools.name, "asked")) as file:
            self.assertEqual(file.read(), "--oneliner show job 7\n")

    def test_nothing_but_such_a_question_is_answered(self):
        agent = self.start()
        for what, number in (("prolog", "7; reboot"), ("prolog", ""), ("run", "7")):
            program = "hook.MISSING = 0; sys.exit(hook.main(sys.argv[1]))"
            self.assertEqual(self.ask(what, program, SLURM_JOB_ID=number).returncode, 1, (what, number))
        self.assertIsNone(agent.poll())
        self.assertEqual(self.ask("check").returncode, 0)

    def test_a_node_whose_agent_is_away_takes_no_job_until_it_is_back(self):
        done = self.ask("prolog", "hook.MISSING = 0; sys.exit(hook.main(sys.argv[1]))", SLURM_JOB_ID="7")
        self.assertEqual(done.returncode, 1)
        self.assertIn("the agent of this node does not answer", done.stderr)
        with open(os.path.join(self.tools.name, "asked")) as file:
            asked = file.read()
        self.assertIn("update nodename=a state=drain reason=" + node.MARK, asked, "it is resumed by this mark")


class Sockets(Directory):
    def serve(self, path):
        """Starts an engine that says that each container runs."""

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"State": {"Running": true}}')

            def address_string(self):
                return ""

            def log_message(self, *_):
                pass

        server = socketserver.UnixStreamServer(path, Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def test_an_engine_whose_socket_is_made_anew_is_found(self):
        directory = os.path.join(self.jobs, "engine")
        os.mkdir(directory)
        new, mounted = os.path.join(directory, "docker.sock"), os.path.join(self.jobs, "mounted")
        here = {"engine": new, "socket": mounted}
        engine = node_engine.Engine(queued.sockets(here))
        self.assertEqual(queued.sockets({"socket": mounted, "engine": None}), [mounted], "in the root directory")
        server = self.serve(new)
        # a container that has the file keeps it
        os.link(new, mounted)
        self.assertTrue(engine.running("x"))
        server.shutdown()
        server.server_close()
        os.unlink(new)
        with self.assertRaises(OSError):
            engine.running("x")
        again = self.serve(new)
        self.addCleanup(again.server_close)
        self.addCleanup(again.shutdown)
        self.assertTrue(engine.running("x"))
        self.assertTrue(node_engine.Engine(["/nowhere", new]).running("x"))


class Ending(unittest.TestCase):
    def test_a_job_that_ends_in_the_queue_has_failed_unless_that_was_requested(self):
        for allocation, expected in (
            (None, (faults.ENDED_IN_QUEUE, True)),
            ({"end": "CANCELLED", "why": ""}, (faults.CANCELLED_IN_QUEUE, True)),
            ({"end": "DEADLINE", "why": ""}, (faults.TIME_LIMIT, False)),
            ({"end": "CANCELLED", "why": "b: port 7 is in use"}, (faults.not_allocated("b: port 7 is in use"), False)),
        ):
            self.assertEqual(queue_wait.ending(allocation), expected)

    def test_a_result_has_the_launcher_s_exit_code_unless_its_end_was_requested(self):
        written = []
        for arguments in ((faults.TIME_LIMIT,), (None, True, 3), (None, False, 3)):
            result.write(lambda name, text: written.append((name, json.loads(text))), 1, 2, *arguments, exits=[])
        self.assertTrue(all(name == "result.json" and one["ended"] and one["exits"] == [] for name, one in written))
        found = [(one["launcher"], one["stopped"], one.get("reason", "none")) for _, one in written]
        self.assertEqual(found, [(1, False, faults.TIME_LIMIT), (None, True, "none"), (3, False, "none")])

    def test_one_program_writes_results_and_one_makes_faults(self):
        found = {'"result.json"': set(), '"kind":': set(), "kind=": set()}
        for directory, _, names in os.walk(SCRIPTS):
            if os.path.basename(directory) == "mesh":
                # the encrypted network is no part of a job
                continue
            for name in (name for name in names if name.endswith(".py")):
                with open(os.path.join(directory, name)) as file:
                    text = file.read()
                for part in found:
                    found[part].update([name] * (part in text))
        self.assertEqual(found, {'"result.json"': {"result.py"}, '"kind":': set(), "kind=": {"faults.py"}})


class Turn(unittest.TestCase):
    def test_the_launcher_knows_the_nodes_that_the_job_has(self):
        launch = {"node": "a", "ranks": 2, "address": "10.0.0.1", "workers": [
            {"node": "b", "address": "10.0.0.2", "ranks": 2}, {"node": "c", "address": "10.0.0.3", "ranks": 2}]}
        shares = [{"node": "a", "ranks": 0, "first": 0}, {"node": "c", "ranks": 1, "first": 0}]
        found = queue_wait.with_nodes(launch, shares)
        self.assertEqual((found["ranks"], found["workers"]), (0, [{"node": "c", "address": "10.0.0.3", "ranks": 1}]))

    def test_it_knows_the_nodes_of_each_role(self):
        self.addCleanup(setattr, queue_wait.files, "HERE", queue_wait.files.HERE)
        with tempfile.TemporaryDirectory() as queue_wait.files.HERE:
            launch = {"node": "a", "ranks": 2, "address": "10.0.0.1", "roles": [dict(role, places=[]) for role in
                                                                               with_roles()["roles"]],
                      "workers": [{"node": node["node"], "address": node["address"], "ranks": 2}
                                  for node in with_roles()["nodes"][1:]]}
            found = queue_wait.with_nodes(launch, queued.place(with_roles(), ["b", "c"]))
            places = [[(place["node"], place["address"], place["ranks"], place["first"]) for place in role["places"]]
                      for role in found["roles"]]
            self.assertEqual(places, [[("b", "10.0.0.2", 2, 0)], [("c", "10.0.0.3", 1, 2)]])
            with open(os.path.join(queue_wait.files.HERE, "roles.json")) as file:
                self.assertEqual(json.load(file)["serve"], {"ranks": 1, "hosts": ["10.0.0.3"], "ports": {}})


if __name__ == "__main__":
    unittest.main()
