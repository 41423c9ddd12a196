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


class Connections(unittest.TestCase):
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
