"""Unit tests of what begins a job in an allocation of Slurm (slurm/allocation.py), and of where a node's files are
(here.py)."""
import os
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "scripts", "programs")
sys.path[:0] = [PROGRAMS, os.path.join(PROGRAMS, "slurm")]
import allocation  # noqa: E402
import here  # noqa: E402


class Placement(unittest.TestCase):
    def test_lists_of_slurm_are_read(self):
        for text, expected in (("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2])):
            self.assertEqual(allocation.per_node(text), expected)

    def test_ranks_fill_the_tasks_in_the_order_of_the_nodes(self):
        def shares(counts, ranks):
            return [(one["node"], one["ranks"], one["first"])
                    for one in allocation.shares(["a", "b", "c"], counts, ranks)]

        self.assertEqual(shares([2, 1, 1], 0), [("a", 2, 0), ("b", 1, 2), ("c", 1, 3)])
        self.assertEqual(shares([2, 2, 2], 3), [("a", 2, 0), ("b", 1, 2)])
        self.assertEqual(shares([2, 1, 1], 4), shares([2, 1, 1], 0))
        with self.assertRaisesRegex(RuntimeError, "allocated 4 tasks, and the job has 5 ranks"):
            shares([2, 1, 1], 5)

    def test_a_node_has_files_of_its_own_where_it_has_a_directory(self):
        with tempfile.TemporaryDirectory() as directory:
            own = os.path.join(directory, "nodes", "b")
            os.makedirs(own)
            self.assertEqual(here.own(directory, "b"), own)
            for first in ("a", "", None):
                self.assertEqual(here.own(directory, first), directory)


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
        """What comes of the addresses of two nodes with this srun."""
        self.put("srun", "#!/bin/sh\n" + script)
        os.environ["PATH"] = self.state + ":/usr/bin:/bin"
        os.environ["SLURM_JOB_NODELIST"] = "b,c"
        self.put("scontrol", "#!/bin/sh\n")
        return allocation.addresses(["b", "c"], limit)

    def test_a_slow_prolog_is_waited_for_and_the_node_named_that_took_too_long(self):
        script = "echo hvdctl-address b 10.0.0.1; sleep %s; echo hvdctl-address c 10.0.0.2\n"
        # the limit was that of the program, whatever the site's prologs do
        with unittest.mock.patch.object(allocation, "LIMIT", 0.1):
            self.assertEqual(self.start(script % 0.5, 30), {"b": "10.0.0.1", "c": "10.0.0.2"})
        with self.assertRaisesRegex(RuntimeError, "has not started a program on c within 0.5 s; .*start_timeout_s"):
            self.start("exec 2>&-\n" + script % 20, 0.5)
        # srun of 22.05, whose node still runs a prolog
        again = "[ -e %s/tried ] && exec echo 'hvdctl-address b 10.0.0.1\nhvdctl-address c 10.0.0.2'; : >%s/tried\n"
        gives_up = "echo 'srun: error: Task launch failed on node c: Socket timed out on send/recv operation'; exit 1\n"
        with unittest.mock.patch.object(allocation, "PAUSE", 0):
            self.assertEqual(self.start(again % (self.state, self.state) + gives_up, 30)["c"], "10.0.0.2")
            with self.assertRaisesRegex(RuntimeError, "could not start a program on every node: srun: error: Task"):
                self.start("sleep 0.3; " + gives_up, 0.1)
        with self.assertRaises(allocation.NotShared):
            self.start("echo python3: cannot open /x: No such file or directory; exit 2\n", 9)
        with self.assertRaisesRegex(RuntimeError, "could not start a program on every node: srun: error: Prolog"):
            self.start("echo srun: error: Prolog failed; exit 1\n", 9)


class Endings(unittest.TestCase):
    def test_why_slurm_ends_a_job_follows_from_the_job_and_its_nodes(self):
        def state(nodes=(), restarted="0", **fields):
            return allocation.state_of(dict({"Restarts": "0", "PreemptTime": "None"}, **fields), nodes, restarted)

        self.assertEqual(state(JobState="RUNNING"), "RUNNING")
        self.assertEqual(state(["allocated", "down*"], JobState="RUNNING"), "RUNNING", "it has not been ended")
        self.assertEqual(state(["completing"], JobState="COMPLETING"), "COMPLETING")
        self.assertEqual(state(JobState="COMPLETING", PreemptTime="2026-11-27T20:39:43"), "PREEMPTED")
        self.assertEqual(state(["completing", "down*"], JobState="COMPLETING"), "NODE_FAIL")
        self.assertEqual(state(["idle*"], JobState="COMPLETING"), "NODE_FAIL")
        self.assertEqual(state(["idle*"], JobState="CANCELLED"), "CANCELLED")
        self.assertEqual(state(JobState="RUNNING", PreemptTime="2026-11-27T20:39:43"), "PREEMPTED",
                         "it has some time left")
        self.assertEqual(state(JobState="COMPLETING", Restarts="1", PreemptTime="2026-11-27T20:39:43"), "REQUEUED")
        self.assertEqual(state(restarted="1", JobState="RUNNING", Restarts="1"), "RUNNING")
        self.assertEqual(allocation.state_of({}, [], "0"), "", "it does not answer")

    def test_ranks_of_mpi_connect_as_the_site_wants(self):
        self.assertIsNone(allocation.mpi_type({"MpiDefault": "pmix_v4"}, 2))

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
                    allocation.connect_mpi({"MpiDefault": "none"}, 2)
                    self.assertEqual(os.environ["SLURM_MPI_TYPE"], expected)
                # that ranks of MPI are alone is in the job's log
                written = os.path.exists(os.path.join(directory, "log"))
                self.assertEqual(written, expected == "none")
                if written:
                    with open(os.path.join(directory, "log")) as file:
                        self.assertRegex(file.read(), r"^[0-9.]+ 0 c \n$")


if __name__ == "__main__":
    unittest.main()
