"""Tests of what `hvdctl bench` and `hvdctl verify` run on the ranks (src/scripts/ranks), as processes on this machine that communicate over a
stand-in for mpi4py. tests/node_programs.rs runs them with every interpreter that it finds."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "..", "..", "src", "scripts", "ranks")
sys.path.insert(0, PROGRAMS)
import backends  # noqa: E402
import collectives  # noqa: E402


def run(program, arguments, size, fault=None):
    """Runs a program as so many ranks and returns the lines of each, and the exit codes. `fault`: a rank and `MPI_FAULT` there."""
    with tempfile.TemporaryDirectory() as directory:
        def start(rank):
            env = dict(os.environ, MPI_RANK=str(rank), MPI_SIZE=str(size), MPI_SOCKET=os.path.join(directory, "socket"),
                       PYTHONPATH=os.path.join(HERE, "stand_ins"), PYTHONDONTWRITEBYTECODE="1")
            env.update({"MPI_FAULT": fault[1]} if fault and fault[0] == rank else {})
            argv = [sys.executable, os.path.join(PROGRAMS, program)] + arguments
            return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        ranks = [start(rank) for rank in range(size)]
        ended = [rank.communicate(timeout=60) for rank in ranks]
    lines = [[json.loads(line) for line in out.decode().splitlines()] for out, _ in ended]
    return lines, [rank.returncode for rank in ranks], [err.decode() for _, err in ended]


def bench(size, fault=None, **request):
    request = dict({"sizes": [1024, 65536], "all": True, "budget": 0.2}, **request)
    return run("collectives.py", [json.dumps(request), "no.such.module", "mpi4py"], size, fault)


def of_kind(lines, kind):
    return [line[kind] for line in lines if kind in line]


class Numbers(unittest.TestCase):
    def test_sums_are_exact_and_contributions_differ(self):
        for dtype, exact in collectives.EXACT.items():
            for size in (2, 3, 8, 300):
                for is_sum in (False, True):
                    every = [collectives.numbers(rank, size, dtype, is_sum) for rank in range(size)]
                    totals = [sum(each) for each in zip(*every)] if is_sum else [max(each) for each in zip(*every)]
                    self.assertLessEqual(max(totals), exact, (dtype, size))
                    self.assertEqual(len(set(map(tuple, every))), size, (dtype, size))
                    self.assertGreater(min(max(each) for each in every), 0, "each contributes something")

    def test_the_rank_that_explains_a_difference(self):
        every = [collectives.numbers(rank, 3, "bfloat16", True) for rank in range(3)]
        missing = [(place, -every[1][place]) for place in range(40)]
        twice = [(place, every[2][place]) for place in range(40)]
        other = [(place, 5) for place in range(40)]
        self.assertEqual([collectives.suspect(each, every) for each in (missing, twice, other)], [1, 2, None])

    def test_a_module_whose_package_is_missing_is_only_absent(self):
        self.assertEqual(backends.usable("no_such_package.module"), (False, None))


class Ranks(unittest.TestCase):
    def test_every_operation_is_checked_and_measured(self):
        lines, codes, errors = bench(3)
        self.assertEqual(codes, [0] * 3, errors)
        for rank, of_rank in enumerate(lines):
            self.assertEqual(of_kind(of_rank, "wrong"), [])
            self.assertEqual((of_kind(of_rank, "start")[0]["size"], of_kind(of_rank, "end")), (3, [rank]))
            measured = {(each["collective"], each["bytes"]) for each in of_kind(of_rank, "exchange")}
            # three ranks have parts of equal size
            self.assertEqual(measured, {(each, bytes) for each in collectives.COLLECTIVES for bytes in (1020, 65532)})
        repetitions = [[len(each["times_us"]) for each in of_kind(of_rank, "exchange")] for of_rank in lines]
        self.assertEqual(repetitions[1:], repetitions[:1] * 2, "all ranks repeat as often")
        notes = of_kind(lines[0], "note")
        self.assertTrue(any("has no collectives of float16: no float16" in note for note in notes), notes)
        self.assertEqual(of_kind(lines[1], "note"), [])

    def test_the_time_ends_at_the_budget(self):
        sizes = [1024 << 2 * i for i in range(8)]
        lines, codes, errors = bench(2, sizes=sizes, all=False, budget=0.1)
        self.assertEqual(codes, [0, 0], errors)
        measured = [each["bytes"] for each in of_kind(lines[1], "exchange") if each["collective"] == "allreduce"]
        self.assertEqual((measured[0], max(measured) < sizes[-1]), (1024, True))
        self.assertTrue(any("not every size was measured" in note for note in of_kind(lines[0], "note")))

    def test_what_is_wrong_is_found_where_it_is(self):
        # what rank 1 does to which operations, which ranks see it, and the rank that explains it
        for faults in (
            (("allreduce", "result", [1], None), ("reducescatter", "result", [1], None), ("alltoall", "result", [1], 0)),
            (("allreduce", "missing", [0, 1, 2], 1), ("reducescatter", "missing", [0, 1, 2], 1), ("allgather", "swapped", [0, 1, 2], 1),
             ("alltoall", "swapped", [0, 1, 2], 1)),
            (("allreduce", "swapped", [0, 1, 2], None), ("broadcast", "result", [1], 0)),
        ):
            given = ",".join("%s %s" % (operation, kind) for operation, kind, _, _ in faults)
            lines, codes, errors = bench(3, (1, given), sizes=[1024], budget=0.01)
            self.assertEqual(codes, [0] * 3, errors)
            found = {}
            for rank, of_rank in enumerate(lines):
                for wrong in of_kind(of_rank, "wrong"):
                    found.setdefault(wrong["collective"], set()).add((rank, wrong["suspect"]))
            expected = {operation: {(rank, suspect) for rank in seen} for operation, _, seen, suspect in faults}
            self.assertEqual(found, expected)

    def test_an_operation_that_one_rank_refuses_is_left_out_by_all(self):
        lines, codes, errors = bench(2, (1, "alltoall refused"))
        self.assertEqual(codes, [0, 0], errors)
        for of_rank in lines:
            measured = {each["collective"] for each in of_kind(of_rank, "exchange")}
            self.assertEqual(measured, set(collectives.COLLECTIVES) - {"alltoall"})

    def test_verify_checks_the_same_operations(self):
        for arguments, end in (([], []), (["--full"], [0])):
            lines, codes, errors = run("verify.py", arguments + ["mpi4py"], 2, (1, "broadcast result"))
            self.assertEqual(codes, [0, 0], errors)
            self.assertEqual((lines[0][0]["sum"], lines[1][0]["rank"], of_kind(lines[0], "end")), (3, 1, end))
            self.assertEqual([len(of_kind(of_rank, "wrong")) > 0 for of_rank in lines], [False, bool(end)])

    def test_an_image_without_a_library(self):
        _, codes, errors = run("collectives.py", ["{}", "no.such.module"], 1)
        self.assertEqual((codes, errors), ([1], ["nothing in this image lets the ranks communicate (no.such.module): none is installed\n"]))


if __name__ == "__main__":
    unittest.main()
