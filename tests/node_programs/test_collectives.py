"""Tests of what `hvdctl bench` and `hvdctl verify` run on the ranks (src/scripts/ranks), as processes on this machine
that communicate over a stand-in for mpi4py. tests/node_programs.rs runs them with every interpreter that it finds."""
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "..", "..", "src", "scripts", "ranks")
SUPERVISORS = os.path.join(HERE, "..", "..", "src", "scripts", "programs")  # in a job they lie in the same directory
sys.path[:0] = [PROGRAMS, SUPERVISORS]
import backends  # noqa: E402
import collectives  # noqa: E402
import place  # noqa: E402


def run(program, arguments, size, fault=None):
    """Runs a program as so many ranks and returns the lines of each, and the exit codes. `fault`: a rank and
    `MPI_FAULT` there."""
    with tempfile.TemporaryDirectory() as directory:
        def start(rank):
            env = dict(os.environ, MPI_RANK=str(rank), MPI_SIZE=str(size), MPI_SOCKET=os.path.join(directory, "socket"),
                       PYTHONPATH=os.pathsep.join([os.path.join(HERE, "stand_ins"), SUPERVISORS]),
                       PYTHONDONTWRITEBYTECODE="1")
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


class Driver:
    """A stand-in for libcuda.so.1 with two devices, in which a call may fail."""

    def __init__(self, fails=None, code=802):
        self.fails, self.code = fails, code

    def __getattr__(self, name):
        def function(*arguments):
            if name == self.fails:
                return self.code
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = 2
            if name == "cuDeviceGet":
                arguments[0]._obj.value = arguments[1]
            if name == "cuDeviceGetUuid_v2":
                arguments[0]._obj.bytes[:] = [0xa0 + arguments[1].value] * 16
            if name == "cuDeviceGetPCIBusId":
                arguments[0].value = b"0000:4%d:00.0" % arguments[2].value
            if name == "cuGetErrorName":
                arguments[1]._obj.value = b"CUDA_ERROR_SYSTEM_NOT_READY"
            return 0
        return function


class Place(unittest.TestCase):
    LISTED = ["GPU 0: NVIDIA A100 (UUID: GPU-aa)", "  MIG 3g.20gb     Device  0: (UUID: MIG-c6)",
              "  MIG 3g.20gb     Device  1: (UUID: MIG-d7)", "GPU 1: NVIDIA A100 (UUID: GPU-bb)"]

    def test_the_device_is_the_one_that_cuda_gives(self):
        uuid = "a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1"
        self.assertEqual(place.own_device(Driver(), 1, False), ("GPU-" + uuid, "0000:41:00.0"))
        self.assertEqual(place.own_device(Driver(), 3, True)[0], "MIG-" + uuid)
        self.assertEqual(place.gpu(Driver("cuInit"), 0, self.LISTED, None),
                         (None, None, "CUDA does not work there: cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY"))
        self.assertEqual(place.gpu(Driver(), 0, self.LISTED, ""), (None, None, None), "it is hidden on purpose")
        self.assertEqual(place.gpu(Driver("cuInit", 100), 0, self.LISTED, "-1"), (None, None, None), "so it is")
        self.assertEqual(place.gpu(Driver(), 0, None, None), (None, None, None), "there is no GPU")

    def test_without_cuda_it_is_the_listed_one(self):
        for visible, local_rank, device in ((None, 0, "GPU-aa"), (None, 3, "GPU-bb"), ("1,0", 0, "GPU-bb"),
                                            ("GPU-bb", 0, "GPU-bb"),
                                            ("MIG-d7", 1, "MIG-d7"), ("MIG-c6,MIG-d7", 1, "MIG-d7"), ("9", 0, None)):
            self.assertEqual(place.gpu(None, local_rank, self.LISTED, visible), (device, None, None), visible)

    def test_a_driver_that_hangs_is_not_waited_for(self):
        child = mock.MagicMock()
        child.communicate.side_effect = subprocess.TimeoutExpired("place.py", place.LIMIT)
        with mock.patch("subprocess.Popen", return_value=child):
            self.assertEqual(place.ask(0, self.LISTED, None),
                             (None, None, "CUDA does not work there: cuInit failed: no answer within 30 s"))
        child.kill.assert_called_once_with()
        child.wait.assert_not_called()

    def test_its_own_process_answers(self):
        # there is no libcuda.so.1 here, so the listed device is the answer
        if place.load() is None:
            self.assertEqual(place.ask(1, self.LISTED, "1,0"), ["GPU-aa", None, None])

    def test_cores_are_those_of_the_process(self):
        here, first = os.sched_getaffinity(0), min(os.sched_getaffinity(0))
        try:
            os.sched_setaffinity(0, {first})
            found = place.find(0, None)
        finally:
            os.sched_setaffinity(0, here)
        self.assertEqual((found["cpus"], found["device"], len(found["numa"]) < 2), (str(first), None, True))
        self.assertGreater(found["cores"], 0)


class Together:
    """What ranks that are threads of this process have in common."""

    def __init__(self, size):
        self.barrier, self.values = threading.Barrier(size), [0] * size

    def total(self, rank, number):
        self.values[rank] = number
        self.barrier.wait(30)
        total = sum(self.values)
        self.barrier.wait(30)
        return total


class Devices(unittest.TestCase):
    def measured(self, hosts, speed, share=lambda rank, times: 1.0):
        """Returns the speeds that each rank says. `hosts`: that of each rank. `speed`: of a rank, and of which time.
        `share`: of the time in which it has a processor."""
        together, said, at_once = Together(len(hosts)), [[] for _ in hosts], []
        local, lock, measuring = threading.local(), threading.Lock(), set()

        def measure(_arrays, _seconds):
            with lock:
                measuring.add(local.rank)
                at_once.append(sorted(measuring))
            times = len(said[local.rank])
            flops = speed(local.rank, times)
            if flops is None:
                raise TypeError("no matrix product")
            time.sleep(0.02)
            with lock:
                measuring.discard(local.rank)
            return {"device": "cpu", "flops": flops * 1e9, "copy_bytes_per_s": 1e9, "share": share(local.rank, times)}

        def rank(number):
            local.rank = number
            backend = mock.Mock(rank=number, size=len(hosts), total=lambda value: together.total(number, value),
                                barrier=lambda: together.total(number, 0))
            collectives.Session(backend).measure_devices(0.02)

        with mock.patch.object(collectives, "speed", measure), \
                mock.patch.object(collectives, "say", lambda kind, value: kind == "speed"
                                  and said[local.rank].append(value)), \
                mock.patch.object(collectives.socket, "gethostname", lambda: hosts[local.rank]):
            threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(len(hosts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        return [[(round(each["flops"] / 1e9, 2), each.get("alone", False)) for each in of_rank]
                for of_rank in said], at_once

    def test_what_is_fast_is_measured_once(self):
        said, _ = self.measured("abc", lambda rank, _: [10, 9, 11][rank])
        self.assertEqual(said, [[(10, False)], [(9, False)], [(11, False)]])

    def test_what_looks_slow_is_measured_again_without_other_nodes(self):
        # rank 1 was only disturbed, rank 3 is slow
        said, at_once = self.measured("abcd", lambda rank, times: [10, 10 if times else 5, 10, 4][rank])
        self.assertEqual(said, [[(10, False)], [(5, False), (10, True)], [(10, False)], [(4, False)] + 3 * [(4, True)]])
        self.assertEqual(sorted(at_once[4:]), [[1], [3], [3], [3]])

    def test_the_ranks_of_a_node_are_measured_together(self):
        said, _ = self.measured("aabb", lambda rank, _: [10, 10, 10, 5][rank])
        self.assertEqual([len(of_rank) for of_rank in said], [1, 1, 4, 4])

    def test_the_first_measurement_may_be_the_slow_one(self):
        # all share their processors: what was the fastest of them is slow compared with what is measured alone
        said, _ = self.measured("ab", lambda rank, times: 20 if times else [10, 6][rank])
        self.assertEqual(said, [[(10, False), (20, True)], [(6, False), (20, True)]])

    def test_what_never_gets_a_processor_is_not_measured_over_and_over(self):
        said, _ = self.measured("abcd", lambda rank, _: [10, 5, 10, 4][rank], lambda rank, _: 0.2)
        self.assertEqual([len(of_rank) for of_rank in said], [1, 2, 1, 2])
        said, _ = self.measured("abcd", lambda rank, _: [10, 5, 10, 4][rank],
                                lambda rank, times: 0.9 if times and rank == 3 else 0.2)
        self.assertEqual([len(of_rank) for of_rank in said], [1, 4, 1, 4], "one of them had")
        said, _ = self.measured("abcd", lambda rank, _: [10, 5, 10, 4][rank], lambda rank, _: 0.2 if rank % 2 else 0.9)
        self.assertEqual([len(of_rank) for of_rank in said], [1, 4, 1, 4],
                         "most others have theirs: it may be disturbed for a moment")

    def test_ranks_without_a_speed_take_part(self):
        said, _ = self.measured("abc", lambda rank, _: [10, None, 5][rank])
        self.assertEqual([len(of_rank) for of_rank in said], [1, 0, 4])

    def test_the_slowest_of_many_nodes(self):
        slow = collectives.suspects(list(range(100)), [1] * 100, [[1000] + [99 - rank for rank in range(1, 100)]])
        self.assertEqual(slow, [99, 98, 97, 96, 95, 94, 93, 92])
        self.assertEqual(collectives.suspects([1, 2, 3], [7, 8, 0], [[10, 1, 0]]), [],
                         "unlike devices, and one that was not measured")

    def test_the_share_of_a_processor(self):
        # threads of other tests may still end
        with mock.patch.object(collectives.os, "listdir", return_value=[str(os.getpid())]):
            before = collectives.processor_times()
            end = time.monotonic() + 0.05
            while time.monotonic() < end:
                pass
            share = collectives.share_since(before)
        self.assertTrue(share is None if before is None else 0 < share <= 1, share)
        with mock.patch.object(collectives.os, "listdir", side_effect=OSError):
            self.assertIsNone(collectives.share_since(before))


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
            (("allreduce", "result", [1], None), ("reducescatter", "result", [1], None),
             ("alltoall", "result", [1], 0)),
            (("allreduce", "missing", [0, 1, 2], 1), ("reducescatter", "missing", [0, 1, 2], 1),
             ("allgather", "swapped", [0, 1, 2], 1), ("alltoall", "swapped", [0, 1, 2], 1)),
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
            self.assertTrue(lines[1][0]["place"]["cpus"], lines[1])
            self.assertEqual([len(of_kind(of_rank, "wrong")) > 0 for of_rank in lines], [False, bool(end)])

    def test_an_image_without_a_library(self):
        _, codes, errors = run("collectives.py", ["{}", "no.such.module"], 1)
        error = "nothing in this image lets the ranks communicate (no.such.module): none is installed\n"
        self.assertEqual((codes, errors), ([1], [error]))


if __name__ == "__main__":
    unittest.main()
