"""Tests of the program that reads the stacks of a rank (stacks.py): with a stand-in for py-spy that prints what the
real one has printed, and with real processes."""
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
from unittest import mock

sys.dont_write_bytecode = True
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
JOB = tempfile.mkdtemp()
for directory, _, names in os.walk(os.path.join(TESTS, "..", "src", "scripts", "programs")):
    for script in names:
        shutil.copy(os.path.join(directory, script), JOB)
sys.path.insert(0, JOB)
import debugger  # noqa: E402
import files  # noqa: E402
import flight_recorder  # noqa: E402
import frames  # noqa: E402
import processes  # noqa: E402
import reap  # noqa: E402
import stacks  # noqa: E402

# py-spy 0.4.3, `dump --json --nonblocking --locals`, shortened; the first thread comes last
DUMP = """[{"pid": PID, "thread_id": 140416382379712, "thread_name": "bad\\u001b[31m", "os_thread_id": 10597,
  "active": true, "owns_gil": false, "frames": [{"name": "Thread.run", "filename": "/usr/lib/python3.11/threading.py",
    "module": null, "short_filename": "threading.py", "line": 982, "locals": null, "is_entry": false}],
  "process_info": null},
 {"pid": PID, "thread_id": 140416397794176, "thread_name": "MainThread", "os_thread_id": PID, "active": false,
  "owns_gil": false, "frames": [{"name": "stuck", "filename": "/p/t.py", "module": null, "short_filename": "t.py",
    "line": 6, "locals": [{"name": "a", "addr": 1, "arg": true, "repr": "REPR"}], "is_entry": false}],
  "process_info": null}]"""


# gdb 13.1, `thread apply all backtrace` with the settings of debugger.py, shortened; the first thread comes last
BACKTRACE = """[New LWP 4]
[Thread debugging using libthread_db enabled]
0x00007f8 in clock_nanosleep () from /lib/x86_64-linux-gnu/libc.so.6

Thread 2 (Thread 0x7f8d1f7fe6c0 (LWP 4) "work\x1ber"):
#0  0x00007f8d1fb4f7f2 in ?? () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x000055d0 in wait_for(std::vector<int, std::allocator<int> >&, int (*)(int)) (ranks=..., check=...) at /w/s.cc:12
#2  ?? ()

Thread 1 (Thread 0x7f8d1fa6c740 (LWP PID) "a.out"):
#0  0x00007f8d1fb8e3c5 in clock_nanosleep () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x000055d0 in MPI_Allreduce (sendbuf=..., count=...) at /src/mpi/all reduce.c:1044
#2  main () at solve.c:33
[Inferior 1 (process 3) detached]
"""


def tearDownModule():
    shutil.rmtree(JOB)


class Readings(unittest.TestCase):
    def setUp(self):
        self.clean()
        self.log = frames.Log(JOB, 3)
        self.tools = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.tools)
        self.addCleanup(self.clean)
        self.program = self.run_program(["sleep", "1000"])

    @staticmethod
    def clean():
        for name in ("log", "states", "stack.wanted", "stack.3", "py-spy"):
            files.remove(name)

    def run_program(self, argv):
        program = subprocess.Popen(argv)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        time.sleep(0.1)
        return program

    def py_spy(self, script, directory=None):
        path = os.path.join(directory or self.tools, "py-spy")
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + script)
        os.chmod(path, 0o755)

    def dumping(self, text=DUMP):
        """A stand-in that prints this of the process that it is to read."""
        with open(os.path.join(self.tools, "dump"), "w") as file:
            file.write(text)
        self.py_spy('sed "s/PID/$4/g" %s/dump\n' % self.tools)

    def gdb(self, script):
        path = os.path.join(self.tools, "gdb")
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + script)
        os.chmod(path, 0o755)

    def native(self, **changed):
        """The one process of an answer to `hvdctl stack --native`."""
        files.remove("stack.3")
        one = self.stacks()
        self.want(native=True, **changed)
        process, = self.answer(one)["processes"]
        return process

    def condition(self):
        return processes.condition(self.program.pid)

    def stacks(self):
        return stacks.Stacks(self.log, self.tools, processes.Children().start)

    def want(self, number="a1", **changed):
        request = dict({"number": number, "locals": False, "native": False, "failed": False}, **changed)
        files.write("stack.wanted", json.dumps(request))

    def answer(self, one, quiet=0):
        """Follows until there is an answer."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            one.follow(self.program.pid, quiet)
            if os.path.exists(os.path.join(JOB, "stack.3")):
                return files.load("stack.3")
            time.sleep(0.02)
        self.fail("no answer")

    def frames(self):
        """The readings in the log."""
        with open(os.path.join(JOB, "log")) as file:
            lines = [line.split(" ", 3) for line in file.read().splitlines()]
        return [json.loads(line[3]) for line in lines if line[2] == "k"]

    def test_who_asks_gets_an_answer(self):
        self.dumping()
        one = self.stacks()
        self.want()
        found = self.answer(one, 14.7)
        self.assertEqual((found["number"], found["rank"], found["quiet"], found["pid"], found["left_out"]),
                         ("a1", 3, 14, self.program.pid, 0))
        process, = found["processes"]
        self.assertEqual((process["command"], process["does"]), ("sleep 1000", "sleeping in clock_nanosleep"))
        main, other = process["threads"]
        self.assertEqual(main, {"name": "MainThread", "active": False,
                                "frames": [{"name": "stuck", "file": "/p/t.py", "line": 6}]})
        self.assertEqual((other["name"], other["active"]), ("bad?[31m", True))
        self.assertEqual(self.frames(), [])
        # once
        files.remove("stack.3")
        one.follow(self.program.pid, 0)
        one.finish(1)
        self.assertFalse(os.path.exists(os.path.join(JOB, "stack.3")))

    def test_a_request_from_before_the_start_is_not_for_this_rank(self):
        self.want()
        one = self.stacks()
        one.follow(self.program.pid, 0)
        self.assertIsNone(one.reading)

    def test_a_request_that_is_none_harms_nothing(self):
        one = self.stacks()
        for text in ("", "{", "[" * 100000, '{"number": 3}', '{"number": "a", "locals": 1}'):
            files.write("stack.wanted", text)
            one.follow(self.program.pid, 0)
            self.assertIsNone(one.reading, text)
        files.remove("stack.wanted")
        os.symlink("/etc/hostname", os.path.join(JOB, "stack.wanted"))
        one.follow(self.program.pid, 0)
        self.assertIsNone(one.reading)

    def test_locals_only_if_wanted(self):
        self.dumping(DUMP.replace("REPR", "x" * 500))
        one = self.stacks()
        self.want(locals=True)
        main = self.answer(one)["processes"][0]["threads"][0]
        self.assertEqual(main["frames"][0]["locals"], [{"name": "a", "value": "x" * 80}])

    def test_options_of_py_spy(self):
        self.py_spy('echo "$@" >>%s/arguments; env >>%s/arguments; exit 1' % (self.tools, self.tools))
        for number, changed in (("a", {}), ("b", {"locals": True, "native": True})):
            files.remove("stack.3")
            one = self.stacks()
            self.want(number, **changed)
            self.answer(one)
        with open(os.path.join(self.tools, "arguments")) as file:
            lines = file.read().splitlines()
        pid = self.program.pid
        self.assertIn("dump --json --pid %d --nonblocking" % pid, lines)
        self.assertIn("dump --json --pid %d --locals --native" % pid, lines)
        self.assertFalse([line for line in lines if line.startswith("HOME=")])

    def test_that_of_the_job_goes_first(self):
        self.py_spy("exit 1")
        self.py_spy("exit 1", JOB)
        self.assertEqual(stacks.py_spy(JOB, self.tools), os.path.join(JOB, "py-spy"))
        files.remove("py-spy")
        self.assertEqual(stacks.py_spy(JOB, self.tools), os.path.join(self.tools, "py-spy"))
        self.assertIsNone(stacks.py_spy(JOB, "/nonexistent"))

    def test_what_py_spy_cannot_read_the_kernel_shows(self):
        error = "Error: Failed to get process executable name. Check that the process is running.\n\nCaused by:\n" \
                "    0: Permission denied (os error 13)\n    1: Permission denied (os error 13)\n\n" \
                "Stack backtrace:\n  0: x"
        for script, words in (
                ("echo '%s' >&2; exit 1" % error, "Failed to get process executable name. Check that the process is "
                                                  "running.: 1: Permission denied (os error 13)"),
                ("echo 'Error: Failed to find python version from target process' >&2; exit 1",
                 "Failed to find python version from target process"),
                ("exit 7", "py-spy failed"), ("echo '[3]'", "py-spy printed something else"),
                ("echo '{}'", "py-spy printed something else"), ("echo", "py-spy printed something else"),
                ("exec sleep 100", "py-spy took longer than 1 s")):
            self.py_spy(script)
            one = self.stacks()
            one.begin(self.program.pid, 3, dict(stacks.Stacks.OWN, number="b"), limit=1)
            one.finish(5)
            process, = files.load("stack.3")["processes"]
            self.assertEqual(process["failure"], words)
            self.assertEqual((process["threads"][0]["name"], process["threads"][0]["does"]),
                             ("sleep", "sleeping in clock_nanosleep"), words)

    def test_a_stopped_program_is_named(self):
        self.program.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        one = self.stacks()
        self.want()
        process, = self.answer(one)["processes"]
        self.assertEqual((process["failure"], process["does"], process["threads"][0]["does"]),
                         ("there is no py-spy", "stopped by a signal (SIGSTOP)", "stopped by a signal (SIGSTOP)"))

    def test_children_come_with_their_rank(self):
        self.program = self.run_program(["sh", "-c", "sleep 1001 & sleep 1002 & wait"])
        one = self.stacks()
        self.want()
        found = self.answer(one)
        for process in found["processes"][1:]:
            self.addCleanup(processes.send, signal.SIGKILL, [process["pid"]])
        self.assertEqual(sorted(process["command"] for process in found["processes"]),
                         ["sh -c sleep 1001 & sleep 1002 & wait", "sleep 1001", "sleep 1002"])

    def test_a_program_that_has_just_ended(self):
        self.program.kill()
        self.program.wait()
        one = self.stacks()
        self.want()
        found = self.answer(one)
        self.assertEqual((found["processes"], found["failure"]), ([], "it has just ended"))

    def test_an_answer_is_bounded(self):
        many = [{"os_thread_id": number, "thread_name": "t", "active": True, "frames": [
            {"name": "f" * 500, "filename": "/p/" + "g" * 500, "line": 1}] * 300} for number in range(30)]
        self.dumping(json.dumps(many))
        one = self.stacks()
        one.begin(self.program.pid, 3)
        one.finish(10)
        found, = self.frames()
        self.assertLess(len(json.dumps(found)), stacks.MOST + 1)
        thread = found["processes"][0]["threads"][0]
        self.assertTrue(thread["frames"])
        self.assertEqual(len(thread["frames"][0]["name"]), 200)

    def test_a_rank_without_progress_is_recorded_once_in_a_while(self):
        self.dumping()
        one = self.stacks()
        for _ in range(2):
            one.begin(self.program.pid, 3)
            one.finish(5)
        self.assertEqual([(found["rank"], found["quiet"]) for found in self.frames()], [(3, 3)])
        # who asks gets an answer all the same
        self.want()
        self.answer(one)
        one.recorded -= stacks.AGAIN
        one.begin(self.program.pid, 3)
        one.finish(5)
        self.assertEqual(len(self.frames()), 2)

    def test_before_its_end_a_rank_is_read_if_something_is_wrong(self):
        self.dumping()
        self.stacks().read_before_end(self.program.pid, 4)
        self.assertEqual(self.frames(), [], "a healthy rank that is stopped")
        one = self.stacks()
        one.read_before_end(self.program.pid, 5)
        self.assertEqual([found["ending"] for found in self.frames()], [True])
        # another rank has failed
        without, other = self.stacks(), self.stacks()
        reap.ranks(0, True)
        without.read_before_end(self.program.pid, 0)
        self.assertEqual(len(self.frames()), 1, "without a grace period nothing is read")
        reap.ranks(0.01, True)
        other.read_before_end(self.program.pid, 0)
        self.assertEqual(len(self.frames()), 2)
        for again in (one, other):
            again.read_before_end(self.program.pid, 60)
        self.assertEqual(len(self.frames()), 2, "once")

    def test_where_a_rank_is_is_noted_in_short(self):
        self.dumping()
        noted = []
        one = stacks.Stacks(self.log, self.tools, processes.Children().start, noted.append)
        one.begin(self.program.pid, 30)
        one.finish(5)
        place, = map(json.loads, noted)
        process, = place["processes"]
        self.assertEqual((place["rank"], place["quiet"], place["ending"], process["does"]),
                         (3, 30, False, "sleeping in clock_nanosleep"))
        self.assertEqual(process["threads"], [{"name": "MainThread", "active": False, "frames": [
            {"name": "stuck", "file": "/p/t.py", "line": 6}]}])
        # at its end the same reading is the result's, as it is new
        one.read_before_end(self.program.pid, 31)
        recorded, = reap.states()["places"]
        self.assertEqual((recorded["rank"], json.loads(recorded["text"])), (3, dict(place, ending=True)))
        self.assertEqual(len(noted), 1)

    def test_the_process_that_shows_where_a_rank_is_is_noted(self):
        def process(command, frames, **more):
            return dict({"pid": 7, "command": command, "does": "sleeping",
                         "threads": [{"name": "t", "active": False, "frames": frames}]}, **more)
        long = [{"name": "f" * 150, "file": "/p/" + "g" * 150, "line": line, "locals": [{"name": "a", "value": "4"}]}
                for line in range(90)]
        shell = process("sh", [], does="waiting in wait4 for a child process", failure="no Python")
        result = {"rank": 3, "quiet": 30, "ending": True, "processes": [shell, process("python3", long)]}
        text = stacks.place(result)
        self.assertLessEqual(len(text), reap.MOST_PLACE)
        noted, = json.loads(text)["processes"]
        self.assertEqual((noted["does"], noted["threads"][0]["frames"][0]["line"]), ("sleeping", 0))
        self.assertNotIn(b"locals", text)
        self.assertIsNone(stacks.place(dict(result, processes=[])))
        self.assertIn(b"for a child", stacks.place(dict(result, processes=[shell])))

    def test_an_end_is_delayed_by_little(self):
        self.py_spy("exec sleep 100")
        one = self.stacks()
        began = time.monotonic()
        one.read_before_end(self.program.pid, 60)
        self.assertLess(time.monotonic() - began, 5)
        one.finish(5)
        failures = [found["processes"][0]["failure"] for found in self.frames()]
        self.assertEqual(failures, ["py-spy took longer than 0.4 s"])

    def test_an_end_records_what_a_person_has_asked_for(self):
        self.dumping()
        one = self.stacks()
        self.want()
        one.follow(self.program.pid, 0)
        one.read_before_end(self.program.pid, 60)
        self.assertEqual([found["number"] for found in self.frames()], ["a1"])
        self.assertEqual(files.load("stack.3")["number"], "a1")

    def test_variables_are_never_in_the_log(self):
        self.dumping()
        one = self.stacks()
        self.want(locals=True)
        one.follow(self.program.pid, 0)
        one.read_before_end(self.program.pid, 60)
        self.assertEqual(self.frames(), [])
        self.assertIn("locals", files.load("stack.3")["processes"][0]["threads"][0]["frames"][0])

    def test_a_rank_whose_children_come_and_go_is_read(self):
        one = self.stacks()
        with mock.patch("activity.whole_family", side_effect=FileNotFoundError):
            self.want()
            self.assertEqual([found["pid"] for found in self.answer(one)["processes"]], [self.program.pid])

    def test_a_line_is_a_number(self):
        for line in (-1, 1 << 40, None):
            self.assertIn(stacks.frame({"name": "f", "filename": "a", "line": line}, False)["line"], (0, (1 << 31) - 1))

    def test_what_was_asked_and_answered_goes_with_the_job(self):
        for name in ("stack.wanted", "stack.3", "place.3", "py-spy", "log"):
            files.write(name, "x")
        reap.forget(False)
        self.assertEqual([name for name in ("stack.wanted", "stack.3", "place.3", "py-spy", "log")
                          if os.path.exists(os.path.join(JOB, name))], ["log"])


    def test_gdb_shows_what_py_spy_cannot_read(self):
        with open(os.path.join(self.tools, "backtrace"), "w") as file:
            file.write(BACKTRACE.replace("PID", str(self.program.pid)))
        self.gdb('echo "$@" >%s/arguments; env >%s/variables; cat %s/backtrace' % ((self.tools,) * 3))
        for failing in ("echo 'Error: Failed to find python version from target process' >&2; exit 1", None):
            # without py-spy, a program that is not Python is read all the same
            self.py_spy(failing) if failing else os.unlink(os.path.join(self.tools, "py-spy"))
            process = self.native()
            self.assertNotIn("failure", process)
            main, other = process["threads"]
            self.assertEqual(main, {"name": "a.out", "active": False, "frames": [
                {"name": "clock_nanosleep", "file": "/lib/x86_64-linux-gnu/libc.so.6", "line": 0},
                {"name": "MPI_Allreduce", "file": "/src/mpi/all reduce.c", "line": 1044},
                {"name": "main", "file": "solve.c", "line": 33}]})
            self.assertEqual(other["name"], "work?er")
            self.assertEqual(other["frames"][1:], [
                {"name": "wait_for(std::vector<int, std::allocator<int> >&, int (*)(int))", "file": "/w/s.cc",
                 "line": 12}, {"name": "??", "file": "", "line": 0}])
        with open(os.path.join(self.tools, "arguments")) as file:
            arguments = file.read()
        for option in ("-nx", "-batch", "set debuginfod enabled off", "set auto-load off",
                       "set print frame-arguments none", "-p %d " % self.program.pid):
            self.assertIn(option, arguments)
        with open(os.path.join(self.tools, "variables")) as file:
            names = {line.split("=")[0] for line in file}
        self.assertLessEqual(names, {"DEBUGINFOD_URLS", "PATH", "LC_ALL", "PWD", "_", "SHLVL", "OLDPWD"})

    def test_gdb_runs_only_where_native_frames_are_wanted(self):
        self.gdb("touch %s/ran" % self.tools)
        self.py_spy("exit 1")
        one = self.stacks()
        self.want()
        self.answer(one)
        one.begin(self.program.pid, 3)
        one.finish(5)
        self.assertFalse(os.path.exists(self.tools + "/ran"))

    def test_python_without_py_spy_is_left_for_that(self):
        self.gdb("touch %s/ran" % self.tools)
        self.program = self.run_program([sys.executable, "-c", "import time; time.sleep(1000)"])
        self.assertEqual(self.native()["failure"], "there is no py-spy")
        self.assertFalse(os.path.exists(self.tools + "/ran"))

    def test_where_gdb_fails_the_kernel_shows_what_it_knows(self):
        self.py_spy("echo 'Error: no' >&2; exit 1")
        denied = "Could not attach to process.\nptrace: Operation not permitted."
        with mock.patch.object(debugger, "LIMIT", 0.5), mock.patch.object(debugger, "REST", 0.3):
            for script, words in (("echo '%s' >&2" % denied, "no; gdb: ptrace: Operation not permitted."),
                                  ("exit 3", "no; gdb: it printed nothing"),
                                  ("head -c 3000000 /dev/zero", "no; gdb: it printed nothing"),
                                  ("exec sleep 100", "no; gdb took longer than 0.5 s"),
                                  ("trap '' TERM; sleep 100 & wait; wait", "no; gdb took longer than 0.5 s")):
                self.gdb(script)
                process = self.native()
                self.assertEqual(process["failure"], words)
                self.assertEqual(process["threads"][0]["does"], "sleeping in clock_nanosleep")
        os.unlink(os.path.join(self.tools, "gdb"))
        with mock.patch.object(debugger, "find", return_value=None):
            self.assertEqual(self.native()["failure"], "no; gdb, which is not there, would show more")

    def test_a_rank_goes_on_after_a_gdb_that_was_killed(self):
        self.py_spy("exit 1")
        with mock.patch.object(debugger, "LIMIT", 0.3), mock.patch.object(debugger, "REST", 0.2):
            # what is left of a debugger that is killed while it attaches
            self.gdb("kill -STOP %d; trap '' TERM; sleep 100 & wait; wait" % self.program.pid)
            self.native()
            self.assertEqual(self.condition(), b"S")
            # but one that a person has stopped stays stopped
            self.program.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            self.native()
            self.assertEqual(self.condition(), b"T")

    def recorder(self, **changed):
        """A process that has a pipe as PyTorch's flight recorder has, and notes what it gets. Returns its process ID,
        and a function that returns the number of bytes that it has got."""
        env = dict({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": self.tools + "/dump.", "TORCH_FR_DUMP_TEMP_FILE": "trace_"},
                   **changed)
        code = "import os, sys, time\nos.mkfifo('dump.3.pipe')\n" \
               "pipe = os.open('dump.3.pipe', os.O_RDONLY | os.O_NONBLOCK)\nprint(1, flush=True)\n" \
               "while True:\n  got = os.read(pipe, 128)\n  open('got', 'ab').write(got)\n  time.sleep(0.02)\n"
        self.program = subprocess.Popen([sys.executable, "-c", code], env=env, cwd=self.tools, stdout=subprocess.PIPE)
        self.addCleanup(self.program.stdout.close)
        self.addCleanup(self.program.wait)
        self.addCleanup(self.program.kill)
        self.program.stdout.readline()

    def got(self):
        time.sleep(0.3)
        with contextlib.suppress(OSError):
            return os.path.getsize(self.tools + "/got")
        return 0

    def test_the_flight_recorder_is_asked_for_a_dump(self):
        self.recorder()
        self.dumping()
        one = self.stacks()
        one.begin(self.program.pid, 30)
        one.finish(5)
        self.assertEqual(self.got(), 0, "only a person asks")
        self.want()
        process, = self.answer(one)["processes"]
        self.assertEqual((process["dump"], self.got()), (self.tools + "/trace_", 1))

    def test_only_a_process_with_such_a_pipe_is_asked(self):
        self.assertIsNone(flight_recorder.ask(self.program.pid))
        self.recorder(TORCH_NCCL_DEBUG_INFO_PIPE_FILE=self.tools + "/other.")
        self.assertIsNone(flight_recorder.ask(self.program.pid))
        self.recorder_again(TORCH_FR_DUMP_TEMP_FILE="")
        self.assertEqual(flight_recorder.ask(self.program.pid), "")
        with mock.patch("os.geteuid", return_value=12345):
            self.assertIsNone(flight_recorder.ask(self.program.pid))
        self.assertEqual(self.got(), 1)
        # another file of that name
        os.unlink(self.tools + "/dump.3.pipe")
        program = subprocess.Popen(["sleep", "100"], stdin=open(self.tools + "/dump.3.pipe", "w+"),
                                   env={"TORCH_XCCL_DEBUG_INFO_PIPE_FILE": "dump."})
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        self.assertIsNone(flight_recorder.ask(program.pid))
        self.assertIsNone(flight_recorder.ask(1 << 22))

    def recorder_again(self, **changed):
        os.unlink(self.tools + "/dump.3.pipe")
        self.recorder(**changed)


@unittest.skipUnless(shutil.which("gdb"), "there is no gdb")
class RealGdb(unittest.TestCase):
    def setUp(self):
        self.program = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(self.program.wait)
        self.addCleanup(self.program.kill)
        time.sleep(0.2)

    def read(self, limit):
        return debugger.read(debugger.find(os.environ["PATH"]), self.program.pid, limit, subprocess.Popen)

    def test_a_program_that_is_not_python(self):
        self.assertFalse(debugger.runs_python(self.program.pid))
        self.assertTrue(debugger.runs_python(os.getpid()))
        thread, = self.read(60)
        self.assertTrue(any("nanosleep" in frame["name"] for frame in thread["frames"]), thread)
        self.assertIn(processes.condition(self.program.pid), (b"S", b"R"))

    def test_it_goes_on_whenever_gdb_is_killed(self):
        with mock.patch.object(debugger, "AFTER", 0.2):
            for hundredths in range(0, 40, 3):
                with contextlib.suppress(ValueError):
                    self.read(hundredths / 100)
                self.assertIn(processes.condition(self.program.pid), (b"S", b"R"), hundredths)

    def test_a_stopped_program_stays_stopped(self):
        self.program.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        for limit in (0.1, 60):
            with contextlib.suppress(ValueError):
                self.read(limit)
            self.assertEqual(processes.condition(self.program.pid), b"T")


@unittest.skipUnless(shutil.which("py-spy"), "there is no py-spy")
class RealPySpy(unittest.TestCase):
    def test_a_program_of_python(self):
        code = "import time\ndef stuck(a):\n  time.sleep(1000)\nstuck(1)\n"
        program = subprocess.Popen([sys.executable, "-c", code])
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        time.sleep(0.5)
        reading = stacks.Reading(program.pid, shutil.which("py-spy"), stacks.Stacks.OWN, 5, subprocess.Popen)
        reading.run()
        frames_found = reading.result["processes"][0]["threads"][0]["frames"]
        self.assertEqual([frame["name"] for frame in frames_found], ["stuck", "<module>"])


if __name__ == "__main__":
    unittest.main()
