"""Unit tests of what begins a job in an allocation of Slurm (slurm/allocation.py), and of where a node's files are
(here.py)."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "scripts", "programs")
sys.path[:0] = [os.path.join(PROGRAMS, "environment"), PROGRAMS, os.path.join(PROGRAMS, "slurm")]
import allocation  # noqa: E402
import here  # noqa: E402
import placement  # noqa: E402
import processes  # noqa: E402
import variables  # noqa: E402

# a shell lets what it starts in its background ignore it, and children inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


class Placement(unittest.TestCase):
    def test_lists_of_slurm_are_read(self):
        for text, expected in (("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2])):
            self.assertEqual(placement.per_node(text), expected)

    def test_ranks_fill_the_tasks_in_the_order_of_the_nodes(self):
        def shares(counts, ranks):
            return [(one["node"], one["ranks"], one["first"])
                    for one in placement.shares(["a", "b", "c"], counts, ranks)]

        self.assertEqual(shares([2, 1, 1], 0), [("a", 2, 0), ("b", 1, 2), ("c", 1, 3)])
        self.assertEqual(shares([2, 2, 2], 3), [("a", 2, 0), ("b", 1, 2)])
        self.assertEqual(shares([2, 1, 1], 4), shares([2, 1, 1], 0))
        with self.assertRaisesRegex(RuntimeError, "allocated 4 tasks, and the job has 5 ranks"):
            shares([2, 1, 1], 5)

    def test_no_two_ranks_share_a_gpu_while_another_one_is_free(self):
        for counts, gpus, ranks, expected in (
            ([2, 1], [1, 2], 0, [1, 2]),
            ([4, 0], [2, 2], 4, [2, 2]),
            ([3, 1], [2, 4], 4, [2, 2]),
            ([2, 2], [4, 4], 3, [2, 2]),
            ([4, 4], [1, 1], 8, [4, 4]),
            ([2, 2], [0, 0], 4, [2, 2]),
        ):
            self.assertEqual(placement.by_gpus(counts, gpus, ranks), expected, (counts, gpus))
        self.assertEqual([placement.gpus_of(gres) for gres in ("gpu:a100:2,shard:1", "gpu:3,gpu:b:1", "none", "")],
                         [2, 4, 0, 0])

    def test_tasks_follow_from_what_slurm_has_allocated_and_from_what_was_asked(self):
        def tasks(ranks, gpus, **variables):
            with unittest.mock.patch.dict(os.environ, dict({"SLURM_TASKS_PER_NODE": "2,1"}, **variables), clear=True):
                return placement.tasks(ranks, gpus)

        # nodes may have different numbers of GPUs
        self.assertEqual(tasks(0, [1, 3]), [1, 3])
        self.assertEqual(tasks(0, [0, 0]), [2, 1])
        self.assertEqual(tasks(0, [1, 3], SLURM_NTASKS="3"), [1, 2])
        self.assertEqual(tasks(3, [1, 3]), [1, 2])
        for name in ("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU", "SLURM_GPUS_PER_TASK"):
            self.assertEqual(tasks(3, [1, 3], **{name: "1"}), [2, 1], "the user has placed them")
        self.assertEqual(tasks(3, [1, 3], HVDCTL_TASKS="3"), [3])

    def test_a_node_has_files_of_its_own_where_it_has_a_directory(self):
        with tempfile.TemporaryDirectory() as directory:
            own = os.path.join(directory, "nodes", "b")
            os.makedirs(own)
            self.assertEqual(here.own(directory, "b"), own)
            for first in ("a", "", None):
                self.assertEqual(here.own(directory, first), directory)


class Addresses(unittest.TestCase):
    def test_nodes_reach_the_first_one_where_srun_has_come_from(self):
        # no name of a host, no answer of slurmctld
        for seen, expected in (("127.0.0.2", "127.0.0.2"), ("fd00::1", "127.0.0.1"), ("", "127.0.0.1")):
            with unittest.mock.patch.dict(os.environ, {"SLURM_LAUNCH_NODE_IPADDR": seen}):
                name = "gpu-a01" if seen == "127.0.0.2" else "localhost"
                self.assertEqual(allocation.address(name), ("127.0.0.1", expected))


class Resources(unittest.TestCase):
    def test_a_step_asks_for_what_its_node_has_given(self):
        shown = """   JOB_GRES=gpu:3
     Nodes=a CPU_IDs=0-1 Mem=0 GRES=gpu:a100:2(IDX:0-1),shard:1
     Nodes=b,c CPU_IDs=0 Mem=0 GRES=
   MinCPUsNode=1
"""
        expected = {"a": "gpu:a100:2,shard:1", "b": "none", "c": "none"}
        self.assertEqual(allocation.resources(shown, lambda nodes: nodes.split(",")), expected)
        self.assertEqual(allocation.resources(""), {})


class Commands(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.state = place.name
        os.makedirs(os.path.join(self.state, "run", "h"))
        variables = {"HVDCTL_PLACE": os.path.join(self.state, "run", "h"), "SLURMD_NODENAME": "b", "PATH": "/nowhere"}
        replaced = unittest.mock.patch.dict(os.environ, variables)
        replaced.start()
        self.addCleanup(replaced.stop)

    def put(self, name, text, mode=0o755):
        path = os.path.join(self.state, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)

    def test_a_node_finds_the_commands_where_the_login_node_has_found_them(self):
        with self.assertRaisesRegex(allocation.NoCommands, "^scontrol: not found on b, with this PATH: /nowhere$"):
            allocation.find_commands()
        for name in ("scontrol", "srun"):
            self.put(name, "#!/bin/sh\n")
        self.put("slurm.environment", "PATH=/bin:%s\nSLURM_CONF=/etc/a=b\n\n" % self.state)
        allocation.find_commands()
        self.assertEqual(os.environ["PATH"], "/nowhere:/bin:" + self.state)
        self.assertEqual(os.environ["SLURM_CONF"], "/etc/a=b")
        self.put("slurm.environment", "SLURM_CONF=/another\n")
        allocation.find_commands()
        self.assertEqual(os.environ["SLURM_CONF"], "/etc/a=b", "they are found already")

    def test_a_site_s_prologs_have_their_time(self):
        limits = {(): 0, ("Prolog=(null)", "TaskProlog=n/a", "PrologSlurmctld=/x"): 0, ("Prolog=/x",): 600,
                  ("TaskProlog=/x", "PrologEpilogTimeout=65534"): 600, ("Prolog=/x", "PrologEpilogTimeout=900"): 900,
                  ("Prolog=/x", "PrologEpilogTimeout=65534", "PrologTimeout=120"): 120}
        for settings, expected in limits.items():
            config = dict(one.split("=") for one in settings)
            self.assertEqual(allocation.prolog_limit(config), expected, settings)

    def start(self, script, limit):
        """The addresses of two nodes that this srun gives."""
        self.put("srun", "#!/bin/sh\n" + script)
        os.environ["PATH"] = self.state + ":/usr/bin:/bin"
        os.environ["SLURM_JOB_NODELIST"] = "b,c"
        self.put("scontrol", "#!/bin/sh\n")
        return allocation.addresses(["b", "c"], None, limit)

    def test_a_slow_prolog_is_waited_for_and_the_node_named_that_took_too_long(self):
        script = "echo of a start-up file; sleep %s; echo hvdctl-address c 10.0.0.2 10.0.0.1\n"
        # the limit was that of the program, whatever the site's prologs do
        with unittest.mock.patch.object(allocation, "LIMIT", 0.1):
            self.assertEqual(self.start(script % 0.5, 30), {"b": "10.0.0.1", "c": "10.0.0.2"})
        with self.assertRaisesRegex(RuntimeError, "has not started a program on c within 0.5 s; .*start_timeout_s"):
            self.start("exec 2>&-\n" + script % 20, 0.5)
        # srun of 22.05, whose node still runs a prolog
        lines = "hvdctl-address c 10.0.0.2 10.0.0.1"
        again = "[ -e %s/tried ] && exec echo '" + lines + "'; : >%s/tried\n"
        gives_up = "echo 'srun: error: Task launch failed on node c: Socket timed out on send/recv operation'; exit 1\n"
        with unittest.mock.patch.object(allocation, "PAUSE", 0):
            self.assertEqual(self.start(again % (self.state, self.state) + gives_up, 30)["c"], "10.0.0.2")
            with self.assertRaisesRegex(RuntimeError, "could not start a program on every node: srun: error: Task"):
                self.start("sleep 0.3; " + gives_up, 0.1)
        # Slurm has another order than that of names
        answers = "case $* in *--nodelist=c\\ *) echo hvdctl-address c 10.0.0.2 10.0.0.1 ;; esac\n"
        self.assertEqual(self.start(answers, 9), {"b": "10.0.0.1", "c": "10.0.0.2"})
        with self.assertRaises(allocation.NotShared):
            self.start("echo hvdctl-address b 10.0.0.1 10.0.0.1\n", 9)
        with self.assertRaises(allocation.NotShared):
            self.start("echo python3: cannot open /x: No such file or directory; exit 2\n", 9)
        with self.assertRaisesRegex(RuntimeError, "could not start a program on every node: srun: error: Prolog"):
            self.start("echo srun: error: Prolog failed; exit 1\n", 9)


class Variables(unittest.TestCase):
    def test_what_the_first_node_has_set_is_its_own(self):
        submitted = {"PATH": "/bin", "TMPDIR": "/tmp", "HOME": "/home/a", "LANG": "C", "X": "1"}
        begun = dict(submitted, TMPDIR="/scratch/n1", SITE="n1", CUDA_VISIBLE_DEVICES="0", PATH="/site:/bin",
                     SLURM_JOB_ID="7", LOCAL="n1")
        now = dict(begun, LOCAL="changed", PATH="/venv:/site:/bin", VIRTUAL_ENV="/venv", X="2")
        self.assertEqual(variables.of_first(submitted, begun, now), ["CUDA_VISIBLE_DEVICES", "SITE", "TMPDIR"])
        # nothing is known: nothing is kept from the others
        self.assertEqual(variables.of_first({}, begun, now), [])
        passed = variables.passed(dict(now, SLURM_NTASKS="4"), ["TMPDIR"])
        self.assertEqual((passed.get("TMPDIR"), passed["SLURM_JOB_ID"], passed.get("SLURM_NTASKS")), (None, "7", None))

    def test_a_node_runs_the_lines_of_activate_and_keeps_what_is_its_own(self):
        with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as directory:
            lines = """export X=$NODE-1 Y='a
b'; unset GONE; export PATH=${VENV:-/venv}:$PATH; echo noise
[ -z "$FAIL" ] || { echo 'hvdctl: activate: it' >&2; exit 78; }
exec sh "$HVDCTL_PLACE/begin"
"""
            for name, text in (("activate", lines), ("environment.given", "export GIVEN='1 2'\n")):
                with open(os.path.join(place, name), "w") as file:
                    file.write(text)
            base = {"NODE": "n2", "PATH": os.environ["PATH"], "GONE": "1", "HOME": place, "SSH_CONNECTION": "1 2"}
            found = variables.activate(place, base, directory)
            self.assertEqual((found["X"], found["Y"], found["GIVEN"]), ("n2-1", "a\nb", "1 2"))
            self.assertTrue(found["PATH"].startswith("/venv:"))
            self.assertFalse({"GONE", "SSH_CONNECTION"} & set(found))
            with self.assertRaisesRegex(RuntimeError, "hvdctl: activate: it"):
                variables.activate(place, dict(base, FAIL="1"), directory)
            # a virtualenv whose Python is on the first node
            os.symlink("/nowhere/python3.12", os.path.join(place, "python3"))
            leads = "%s/python3, the first python3 in PATH, leads to /nowhere" % place
            with self.assertRaisesRegex(RuntimeError, leads):
                variables.activate(place, dict(base, VENV=place), directory)

    def test_the_virtualenv_of_the_login_is_active_on_every_node(self):
        with tempfile.TemporaryDirectory() as place:
            venv = os.path.join(place, "v")
            os.makedirs(os.path.join(venv, "bin"))
            os.symlink("/bin/true", os.path.join(venv, "bin", "python3"))
            with open(os.path.join(PROGRAMS, "..", "process", "activate.sh")) as file:
                lines = file.read() + 'exec sh "$HVDCTL_PLACE/begin"\n'
            # start-up files that set PATH anew
            for name, text in (("activate", lines), ("environment.given", ""), (".profile", "PATH=%s" % os.defpath)):
                with open(os.path.join(place, name), "w") as file:
                    file.write(text)
            env = {"HOME": place, "VIRTUAL_ENV": venv, "PATH": "%s/bin:%s" % (venv, os.environ["PATH"])}
            found = variables.activate(place, env, place)
            self.assertEqual((found["PATH"].split(":")[0], found["VIRTUAL_ENV"]), (venv + "/bin", venv))
            self.assertNotIn("HVDCTL_ACTIVE", found)
            # it is set, but another Python is the one of the login
            found = variables.activate(place, dict(env, PATH=os.environ["PATH"]), place)
            self.assertNotIn(venv, found["PATH"])

    def test_a_rank_has_its_nodes_variables_whatever_started_it(self):
        first = {"X": "n1", "PATH": "/n1:/bin", "GONE": "1", "SAME": "1"}
        here = {"X": "n2", "PATH": "/n2:/bin", "TMPDIR": "/scratch/n2", "SAME": "1"}
        own = variables.differences(first, here, {"SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_NAME": "job"})
        for given, expected in (
            # the environment of the first node, and what a launcher has put in front of PATH
            (dict(first, PATH="/job:/n1:/bin"), {"X": "n2", "PATH": "/job:/n2:/bin", "TMPDIR": "/scratch/n2"}),
            # what the step or the launcher has set
            ({"X": "mine", "TMPDIR": "/step"}, {"X": "mine", "TMPDIR": "/step", "PATH": None}),
        ):
            env = dict(given, SLURM_JOB_NAME="of the step")
            variables.take_own(env, own)
            self.assertEqual({name: env.get(name) for name in expected}, expected)
            self.assertNotIn("GONE", env)
            self.assertEqual((env["SLURM_CPUS_PER_TASK"], env["SLURM_JOB_NAME"]), ("2", "job"))

    def test_the_whole_job_has_what_speaks_neither_of_a_task_nor_of_a_node(self):
        now = dict.fromkeys("""SLURM_JOB_ID SLURM_CPUS_PER_TASK SLURM_NNODES SLURM_SUBMIT_DIR SLURM_GPUS_PER_TASK
            SLURM_JWT X SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS SLURM_GTIDS SLURM_STEP_ID
            SLURM_STEPID SLURM_STEP_NODELIST SLURM_TASK_PID SLURM_TASKS_PER_NODE SLURM_NTASKS_PER_NODE
            SLURM_SRUN_COMM_PORT SLURM_LAUNCH_NODE_IPADDR SLURM_JOB_GPUS SLURM_CPUS_ON_NODE SLURMD_NODENAME
            SLURM_TOPOLOGY_ADDR_PATTERN""".split(), "1")
        self.assertEqual(sorted(variables.of_whole_job(now)), [
            "SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_JOB_ID", "SLURM_NNODES", "SLURM_SUBMIT_DIR"])

    def test_ranks_have_the_numbers_that_they_would_have_as_tasks(self):
        shares = [{"node": "a", "ranks": 2, "first": 0}, {"node": "b", "ranks": 1, "first": 2}]
        record = {"slurm": {"is_placed": True}, "placement": {"shares": shares}}
        env = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "3", "X": "1",
               "SLURM_GPUS_ON_NODE": "2"}

        def of_rank(rank, size=3, launcher=("RANK",), record=record):
            return variables.of_rank(dict(env), {"rank": launcher}, record, rank, size)

        seen = [[one[name] for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS")]
                for one in map(of_rank, range(3))]
        self.assertEqual(seen, [["0", "0", "0", "0,1", "3"], ["1", "1", "0", "0,1", "3"], ["2", "0", "1", "2", "3"]])
        last = of_rank(2)
        self.assertEqual([last[name] for name in ("SLURM_JOB_ID", "X", "SLURM_GPUS_ON_NODE", "SLURM_NNODES",
                                                  "SLURM_STEP_NODELIST", "SLURM_TASKS_PER_NODE")],
                         ["7", "1", "2", "2", "a,b", "2,1"])
        self.assertNotIn("SLURM_STEP_ID", last)
        self.assertNotIn("SLURM_NTASKS_PER_NODE", last)
        # as Lightning decides: it takes Slurm's numbers if there is SLURM_NTASKS and the job has another name than bash
        self.assertTrue("SLURM_NTASKS" in last and last["SLURM_PROCID"] == "2")
        # on fewer nodes than recorded none is better than a wrong one
        self.assertEqual(sorted(of_rank(0, 2)), ["SLURM_GPUS_ON_NODE", "SLURM_JOB_ID", "X"])
        # tasks of Slurm's own launcher, and jobs elsewhere
        self.assertEqual(of_rank(2, launcher=("SLURM_PROCID",)), env)
        self.assertEqual(of_rank(2, record={}), env)
        self.assertEqual(of_rank(2, record=dict(record, slurm={"is_placed": True, "is_own": True})), env)

    def test_the_ranks_of_a_role_are_numbered_as_if_the_job_had_no_others(self):
        shares = [{"node": "a", "ranks": 3, "first": 0, "roles": [2, 1]},
                  {"node": "b", "ranks": 1, "first": 3, "roles": [1, 0]},
                  {"node": "c", "ranks": 2, "first": 4, "roles": [0, 2]}]
        record = {"slurm": {"is_placed": True}, "placement": {"shares": shares}}
        names = ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP_NODELIST"]

        def seen(role, rank):
            found = variables.of_rank({}, {"rank": ["RANK"]}, record, rank, 3, role)
            return [found[name] for name in names]

        self.assertEqual([seen(0, rank) for rank in range(3)],
                         [["0", "0", "0", "3", "a,b"], ["1", "1", "0", "3", "a,b"], ["2", "0", "1", "3", "a,b"]])
        self.assertEqual([seen(1, 1), seen(1, 2)], [["1", "0", "1", "3", "a,c"], ["2", "1", "1", "3", "a,c"]])


class Roles(unittest.TestCase):
    """The files of a job with roles, in an allocation of three nodes."""
    ROLES = [{"name": "trainer", "shape": {"size": {"ranks": 2}, "gpus": 1, "beside": None}},
             {"name": "server", "shape": {"size": {"ranks": 1}, "gpus": 2, "beside": None}}]

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.job = place.name
        for module, name in ((allocation, "PROGRAMS"), (allocation.files, "HERE")):
            replaced = unittest.mock.patch.object(module, name, self.job)
            replaced.start()
            self.addCleanup(replaced.stop)
        for name, value in (("launcher.json", {"roles": [{"name": "trainer"}, {"name": "server"}]}), ("env.json", {}),
                            ("env.0.json", {"A": "1"}), ("env.1.json", {"SLURM_MPI_TYPE": "x"}), ("job.json", {})):
            allocation.files.write_json(name, value)

    def load(self, *parts):
        with open(os.path.join(self.job, *parts)) as file:
            return json.load(file)

    def prepare(self, gpus, slots):
        with unittest.mock.patch.dict(os.environ, {"SLURM_TASKS_PER_NODE": slots}, clear=True):
            placed = placement.placed(["a", "b", "c"], 0, gpus, self.ROLES)
        for share in placed:
            allocation.prepare_node(share, share is placed[0], placed, {"id": "1"})
            allocation.describe_roles(share, self.ROLES, placed, gpus["abc".index(share["node"])])
        roles = [dict(role) for role in self.ROLES]
        allocation.put_roles(roles, placed, {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"})
        return placed, roles

    def test_each_node_has_its_ranks_of_each_role(self):
        placed, roles = self.prepare([2, 2, 2], "2(x3)")
        self.assertEqual([(share["node"], share["roles"]) for share in placed], [("a", [2, 0]), ("b", [0, 1])])
        self.assertEqual(roles[1]["places"], [{"node": "b", "address": "10.0.0.2", "ranks": 1, "first": 2}])
        table = {"trainer": {"ranks": 2, "hosts": ["10.0.0.1"] * 2, "ports": {}},
                 "server": {"ranks": 1, "hosts": ["10.0.0.2"], "ports": {}}}
        self.assertEqual([self.load("roles.json"), self.load("nodes", "b", "roles.json")], [table, table])
        for path, expected in ((["launcher.json"], [(2, [0, 2]), (0, [2, 0])]),
                               (["nodes", "b", "launcher.json"], [(0, [0, 0]), (1, [0, 2])])):
            self.assertEqual([(one["ranks"], one["devices"]) for one in self.load(*path)["roles"]], expected)
        self.assertEqual(self.load("nodes", "b", "env.1.json"), {"SLURM_MPI_TYPE": "x"})
        with open(os.path.join(self.job, "rank_nodes.0")) as file:
            self.assertEqual(file.read(), "a\na\n")
        launch = {"launcher": ["env"], "roles": [{"launcher": ["env"]}, {"launcher": ["srun"]}]}
        self.assertFalse(allocation.needs_mpi_type(launch, {}), "the user has chosen one for a role")
        allocation.files.remove("env.1.json")
        self.assertTrue(allocation.needs_mpi_type(launch, {}))

    def test_roles_are_placed_on_what_there_is_or_not_at_all(self):
        roles, self.ROLES = self.ROLES, [dict(one, shape=dict(one["shape"], gpus=2)) for one in self.ROLES]
        # a launcher runs where the batch script does
        placed, _ = self.prepare([1, 4, 2], "4(x3)")
        self.assertEqual([(share["node"], share["ranks"], share["first"], share["roles"]) for share in placed],
                         [("a", 0, 0, [0, 0]), ("b", 2, 0, [2, 0]), ("c", 1, 2, [0, 1])])
        self.ROLES = roles
        with self.assertRaisesRegex(RuntimeError, "do not fit on what Slurm has given: the role server needs a node"):
            self.prepare([1, 1, 1], "1(x3)")

    def test_nothing_secret_of_roles_is_left(self):
        self.prepare([2, 2, 2], "2(x3)")
        allocation.forget_ranks()
        self.assertEqual(self.load("nodes", "b", "env.0.json"), {"A": "1"}, "another allocation may follow")
        allocation.remove_secrets()
        left = [name for name in os.listdir(os.path.join(self.job, "nodes", "b")) if name.startswith("env")]
        self.assertEqual(left, [])


class Steps(unittest.TestCase):
    """Steps of Slurm, with an `srun` that starts them here."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.write("srun", """#!/bin/sh
[ "$1" != --version ] || exit 0
while :; do case $1 in -*) shift ;; *) exec "$@" ;; esac; done
""")
        path = self.directory + ":" + os.environ["PATH"]
        patch = unittest.mock.patch.dict(os.environ, {"PATH": path})
        patch.start()
        self.addCleanup(patch.stop)

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def shell(self):
        """The remote shell of a job."""
        text = "#!/bin/sh\n"
        for name in ("environment/environment.sh", "slurm/srun.sh"):
            with open(os.path.join(PROGRAMS, name)) as file:
                text += file.read()
        return self.write("ssh", text)

    def prepare(self):
        """Puts the programs of a job there, and returns its remote shell."""
        os.makedirs(os.path.join(self.directory, "nodes", "n2"))
        for directory, _, names in os.walk(PROGRAMS):
            for name in names:
                shutil.copy(os.path.join(directory, name), self.directory)
        self.write("hvdctl-python", "exec python3 -I \"$@\"\n")
        self.write("addresses", "10.0.0.2 n2 \n")
        return self.shell()

    def test_signals_for_ranks_end_nothing_that_starts_them(self):
        shell = self.prepare()
        ran = subprocess.run([shell, "-p", "1", "10.0.0.2", "kill -USR1 $$; kill -USR2 $$; echo $HVDCTL_NODE; exit 3"],
                             stdout=subprocess.PIPE)
        self.assertEqual((ran.stdout, ran.returncode), (b"n2\n", 3))
        self.assertEqual(subprocess.call([shell, "10.0.0.2", "true"]), 0)
        # a shell would start it so in its background
        ignores = "%s -c 'import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)'" % sys.executable
        self.assertEqual(subprocess.check_output([shell, "10.0.0.2", ignores]), b"False\n")
        ran = allocation.after_prologs(2, ["sh", "-c", "kill -USR1 $$; echo alive"], None, 30, [])
        self.assertEqual(ran.stdout, b"alive\n")

    def test_a_step_that_slurm_asks_to_end_waits_for_its_ranks(self):
        shell = self.prepare()
        # as a rank supervisor. Its launcher has ended by then
        rank = """import ctypes, os, signal, time
def save(*_):
    open("%s/asked", "w").close()
    time.sleep(0.3)
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
ctypes.CDLL(None).prctl(15, b"hvdctl-rank")
print(input(), flush=True)
time.sleep(60)""" % self.directory
        command = "exec 3<&0; %s -c '%s' <&3 & while [ ! -e %s/asked ]; do sleep 0.02; done; exit 7"
        env = dict(os.environ, HVDCTL_JOB=os.path.basename(self.directory))
        step = subprocess.Popen([shell, "10.0.0.2", command % (sys.executable, rank, self.directory)], env=env,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        step.stdin.write(b"begun\n")
        step.stdin.close()
        self.assertEqual(step.stdout.readline(), b"begun\n")
        step.terminate()
        self.assertEqual((step.wait(), step.stdout.read()), (7, b"saved\n"))
        step.stdout.close()

    def test_a_step_names_the_signals_that_slurm_sends_it(self):
        with allocation.listen("n1", subprocess.Popen) as step:
            self.addCleanup(step.kill)
            self.assertEqual(step.stdout.readline(), b"ready\n")
            for name in ("USR1", "USR2", "USR1"):
                step.send_signal(getattr(signal, "SIG" + name))
                self.assertEqual(step.stdout.readline(), name.encode() + b"\n")
            # Slurm may end this process alone, and wait a minute for others that hold its output
            self.assertEqual(list(processes.children(step.pid, step.pid)), [])
            step.terminate()
            self.assertEqual(step.wait(), -signal.SIGTERM)


class Connections(unittest.TestCase):
    def look_around(self, srun, addresses, launcher="srun", config=None):
        """The findings on two nodes with this srun, and the types of MPI that were tried, in their order."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "srun")
            with open(path, "w") as file:
                file.write("""#!/bin/sh
cd %s
case $* in
--mpi=list) echo 'pmi2 pmix'; exit ;;
*--mpi=pmix*) echo pmix >>tried ;;
*--mpi=pmi2*) echo pmi2 >>tried ;;
esac
""" % directory + srun)
            os.chmod(path, 0o755)
            in_path = unittest.mock.patch.dict(os.environ, {"PATH": directory + ":" + os.environ["PATH"]})
            replaced = unittest.mock.patch.multiple(allocation, addresses=lambda *_: addresses(directory),
                                                    declared=dict)
            launch = {"launcher": [launcher], "start_timeout": 5}
            with in_path, replaced:
                found = allocation.look_around(launch, config or {}, ["a", "b"], {})
            with contextlib.suppress(FileNotFoundError), open(os.path.join(directory, "tried")) as file:
                return found, file.read().split()
            return found, []

    def exists(self, path):
        """Waits for a file."""
        until = time.monotonic() + 30
        while not os.path.exists(path):
            self.assertLess(time.monotonic(), until, path)
            time.sleep(0.01)

    def test_pmix_is_tried_while_the_nodes_are_asked_unless_prologs_run(self):
        def asked(directory):
            self.exists(os.path.join(directory, "tried"))
            return "found"

        def not_asked(directory):
            self.assertFalse(os.path.exists(os.path.join(directory, "tried")))
            return "found"

        self.assertEqual(self.look_around("", asked), (("found", "pmix"), ["pmix"]))
        self.assertEqual(self.look_around("", not_asked, config={"Prolog": "/x"}), (("found", "pmix"), ["pmix"]))
        self.assertEqual(self.look_around("", not_asked, launcher="torchrun"), (("found", None), []))

    def test_pmix_that_fails_while_the_nodes_are_asked_is_tried_again(self):
        def asked(directory):
            self.exists(os.path.join(directory, "failed"))
            open(os.path.join(directory, "ready"), "w").close()
            return "found"

        slow = "[ -e ready ] || { : >failed; exit 1; }\n"
        self.assertEqual(self.look_around(slow, asked), (("found", "pmix"), ["pmix", "pmix"]))
        without = slow + "case $* in *--mpi=pmix*) exit 1 ;; esac\n"
        self.assertEqual(self.look_around(without, asked), (("found", "pmi2"), ["pmix", "pmix", "pmi2"]))

    def test_a_step_that_tries_pmix_ends_with_a_start_that_fails(self):
        steps, try_mpi = [], allocation.try_mpi

        def keep(*arguments):
            steps.append(try_mpi(*arguments))
            return steps[-1]

        def fails(directory):
            self.exists(os.path.join(directory, "tried"))
            raise error

        for error in (RuntimeError("why"), SystemExit(143)):
            with self.assertRaises(type(error)), unittest.mock.patch.object(allocation, "try_mpi", keep):
                self.look_around("exec sleep 60\n", fails)
            # by the signal, not after its minute
            self.assertEqual(steps[-1].wait(30), -signal.SIGTERM)

    def test_what_fails_on_its_way_fails_where_its_answer_is_needed(self):
        self.assertEqual(allocation.Question(lambda: 7).answer(), 7)
        with self.assertRaisesRegex(ValueError, "^why$"):
            allocation.Question(lambda: (_ for _ in ()).throw(ValueError("why"))).answer()

    def test_ranks_of_mpi_connect_as_the_site_wants(self):
        launch = {"launcher": ["srun"]}
        with unittest.mock.patch.object(allocation, "declared", dict):
            self.assertFalse(allocation.needs_mpi_type(launch, {"MpiDefault": "pmix_v4"}))
            self.assertTrue(allocation.needs_mpi_type(launch, {"MpiDefault": "none"}))
            with unittest.mock.patch.dict(os.environ, {"SLURM_MPI_TYPE": "pmi2"}):
                self.assertFalse(allocation.needs_mpi_type(launch, {}))

    def test_ranks_of_mpi_connect_over_what_slurm_can_load(self):
        # as srun of Debian, which lists PMIx without its library
        srun = """#!/bin/sh
case $* in
--mpi=list) echo 'MPI plugin types are...'; printf '\\t%s\\n' cray_shasta none pmi2 pmix ;;
*--mpi=none*|*--mpi=[LOADS]*) ;;
*) echo "srun: error: Invalid MPI type, --mpi=list for acceptable types" >&2; exit 1 ;;
esac
"""
        for loads, expected in (("pmix", "pmix"), ("pmi2", "pmi2"), ("nothing", "none")):
            with tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "srun")
                with open(path, "w") as file:
                    file.write(srun.replace("[LOADS]", loads))
                os.chmod(path, 0o755)
                path = directory + ":" + os.environ["PATH"]
                in_path = unittest.mock.patch.dict(os.environ, {"PATH": path})
                with in_path, unittest.mock.patch.object(allocation, "PROGRAMS", directory):
                    allocation.connect_mpi(allocation.mpi_type(2))
                    self.assertEqual(os.environ["SLURM_MPI_TYPE"], expected)
                # that ranks of MPI are alone is in the job's log
                written = os.path.exists(os.path.join(directory, "log"))
                self.assertEqual(written, expected == "none")
                if written:
                    with open(os.path.join(directory, "log")) as file:
                        self.assertRegex(file.read(), r"^[0-9.]+ 0 c \n$")


if __name__ == "__main__":
    unittest.main()
