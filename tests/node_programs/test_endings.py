"""Unit tests of how jobs end in an allocation of Slurm (endings.py, hold.py, and what allocation.py does before and
after a requeue), by answers of four versions of Slurm that were recorded (tests/fixtures/slurm)."""
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAMS = os.path.join(TESTS, "..", "src", "scripts", "programs")
# the programs take their own directory for that of a job
JOB = tempfile.mkdtemp()
for directory, _, names in os.walk(PROGRAMS):
    for script in names:
        shutil.copy(os.path.join(directory, script), JOB)
sys.path.insert(0, JOB)
os.environ.setdefault("HVDCTL_RUN", os.path.join(tempfile.gettempdir(), "hvdctl"))
import allocation  # noqa: E402
import endings  # noqa: E402
import faults  # noqa: E402
import hold  # noqa: E402
import job_state  # noqa: E402
import job_supervisor  # noqa: E402

VERSIONS = ("20.11", "22.05", "24.11", "26.05")
WAITS, GOES_ON, PREEMPTING, PREEMPTED = endings.WAITS, endings.GOES_ON, endings.PREEMPTING, endings.PREEMPTED
# what each situation means, one after the other, from when the job runs. Slurm forgets a job that has ended
SITUATIONS = {
    "cancelled": [GOES_ON, endings.CANCELLED],
    "cancelled_pending": [WAITS, endings.CANCELLED],
    "completed": [GOES_ON, endings.ENDED],
    "deadline": [WAITS],
    "failed": [GOES_ON, endings.ENDED],
    "held": [WAITS],
    "invalid": [endings.UNKNOWN],
    "killed": [GOES_ON, endings.ENDED],
    "node_down_by_admin": [GOES_ON, endings.NODE_LOST],
    "node_failed": [GOES_ON, endings.NODE_LOST],
    "node_failed_requeue": [GOES_ON, WAITS],
    "out_of_memory": [GOES_ON, endings.OUT_OF_MEMORY],
    "preempt_cancel": [GOES_ON, PREEMPTING, PREEMPTED],
    "preempt_norequeue": [GOES_ON, PREEMPTING, PREEMPTED],
    "preempt_requeue": [GOES_ON, PREEMPTING, WAITS],
    "preempt_requeue_kept": [GOES_ON, PREEMPTING, WAITS],
    "preempt_requeue_nograce": [GOES_ON, WAITS],
    "requeued": [GOES_ON, WAITS],
    "requeuehold": [GOES_ON, WAITS],
    "salloc_cancelled": [GOES_ON, endings.CANCELLED],
    "salloc_preempted": [GOES_ON, PREEMPTING, PREEMPTED],
    "salloc_timelimit": [GOES_ON, endings.TIME_LIMIT],
    "sbatch_step_requeued": [GOES_ON, WAITS],
    "signalled": [GOES_ON, endings.ENDED],
    "suspended": [GOES_ON],
    "timelimit": [GOES_ON, endings.TIME_LIMIT],
    "timelimit_kept": [GOES_ON, endings.TIME_LIMIT],
}
# where memory was limited, by control groups
ONCE = {"out_of_memory": "22.05"}


def recorded(version):
    """The answers of scontrol by situation, each as its fields, in the order of time."""
    found = {}
    with open(os.path.join(TESTS, "fixtures", "slurm", version + ".txt")) as file:
        for line in file:
            situation, program, answer = line.rstrip("\n").split(" ", 2)
            if program == "scontrol":
                found.setdefault(situation, []).append(allocation.fields(answer))
    return found


class Table(unittest.TestCase):
    def test_recorded_answers_of_each_version_mean_the_same(self):
        for version in VERSIONS:
            answers = recorded(version)
            wanted = [one for one in SITUATIONS if ONCE.get(one, version) == version]
            self.assertEqual(set(answers), set(wanted), version)
            for situation in wanted:
                expected = SITUATIONS[situation]
                means = [endings.meaning(fields, 0) for fields in answers[situation]]
                means = [one for at, one in enumerate(means) if at == 0 or one != means[at - 1]]
                if GOES_ON in expected:
                    means = means[means.index(GOES_ON):]
                # Slurm has forgotten it
                if means[-1] == endings.UNKNOWN and len(means) > 1:
                    means.pop()
                self.assertEqual(means, expected, (version, situation))

    def test_a_state_that_no_version_has_is_not_known(self):
        for fields in ({}, {"JobState": "ODD"}, {"Reason": "TimeLimit"}):
            self.assertEqual(endings.meaning(fields, 0), endings.UNKNOWN)

    def test_what_was_before_this_start_of_the_job_says_nothing(self):
        running = {"JobState": "RUNNING", "Restarts": "1", "Reason": "NodeDown"}
        self.assertEqual([endings.meaning(running, count) for count in (0, 1, None)], [WAITS, GOES_ON, GOES_ON])

    def test_the_guide_has_the_same_table(self):
        with open(os.path.join(TESTS, "..", "docs", "guide", "slurm.md")) as file:
            rows = re.findall(r"^\| (`[A-Z_`, ]+`(?: and [^|]*)?) \| ([^|]*) \|", file.read(), re.MULTILINE)
        guide = {state: means.strip() for states, means in rows for state in re.findall(r"`([A-Z_]+)`", states)}
        self.assertEqual(guide, endings.STATES)


def begun(**fields):
    known = dict(restarts=0, is_step=False, kill_wait=30, by_partition=True)
    return endings.Begun(**dict(known, **fields))


class Time(unittest.TestCase):
    """The time that a preempted job has left."""
    FIELDS = {"JobState": "RUNNING", "PreemptTime": "1000", "EndTime": "Unknown", "Requeue": "1"}
    REQUEUE, CANCEL = ({"PreemptMode": mode, "GraceTime": "20"} for mode in ("REQUEUE", "CANCEL"))

    def ending(self, partition, now=1005, known=begun(), **fields):
        return endings.ending(dict(self.FIELDS, **fields), known, partition, now)

    def test_ranks_have_the_grace_time_of_the_site(self):
        found = self.ending(self.REQUEUE)
        self.assertEqual(found, endings.Ending(PREEMPTING, True, True, 45))
        self.assertEqual([endings.grace(found, begun(), wanted) for wanted in (10, 120, 1)], [10, 15, 1])
        self.assertEqual(self.ending(self.REQUEUE, EndTime="1012").left, 37, "its time limit is earlier")
        # the reaper takes whole seconds
        self.assertEqual(repr(endings.grace(self.ending(self.REQUEUE, 1005.4), begun(), 120)), "14")
        # by the policy of a quality of service Slurm does not say, or the clocks differ
        unknown = self.ending(self.REQUEUE, known=begun(by_partition=False))
        self.assertEqual((unknown.requeues, unknown.left), (None, None))
        self.assertEqual([endings.grace(one, begun(), 120) for one in (unknown, self.ending(self.REQUEUE, 2000))],
                         [endings.LEAST] * 2)

    def test_slurm_kills_what_is_left_of_a_job_that_it_has_ended(self):
        for fields in ({"Reason": "TimeLimit"}, {"Reason": "NodeDown"}, {"Restarts": "1"}, {}):
            found = endings.ending(dict({"JobState": "COMPLETING"}, **fields), begun(), {}, 1000)
            self.assertEqual(endings.grace(found, begun(), 120), 30 - endings.RESERVE)
        short = begun(kill_wait=5)
        self.assertEqual(endings.grace(endings.ending({}, short, {}, 0), short, 120), endings.LEAST)

    def test_only_a_batch_job_is_started_again_where_the_site_does_so(self):
        self.assertEqual(self.ending(self.REQUEUE, known=begun(is_step=True))[1:3], (False, False))
        self.assertFalse(self.ending(self.REQUEUE, Requeue="0").may_return)
        self.assertEqual(self.ending(self.CANCEL)[1:3], (False, False))
        self.assertEqual(self.ending({})[1:3], (True, None), "its partition is not known")
        queued = {"JobState": "COMPLETING", "Restarts": "1"}
        self.assertTrue(endings.ending(queued, begun(), {}, 0).may_return, "whatever it was submitted with")
        self.assertFalse(endings.ending(queued, begun(is_step=True), {}, 0).may_return)


class Answers(unittest.TestCase):
    """A supervisor whose Slurm answers late, or not."""

    def setUp(self):
        self.supervisor = job_supervisor.JobSupervisor.__new__(job_supervisor.JobSupervisor)
        self.supervisor.launch, self.supervisor.signals, self.supervisor.last_signal = {"restarts": 2}, [], None
        self.supervisor.hold = hold.Hold({"slurm": begun()._asdict()})
        self.supervisor.allocation = job_state.HELD
        self.now = 0
        for patched in (mock.patch("time.monotonic", lambda: self.now), mock.patch("time.sleep", self.sleep)):
            patched.start()
            self.addCleanup(patched.stop)

    def sleep(self, seconds):
        self.now += seconds

    def answer(self, *states):
        """Lets Slurm answer with these fields, one after the other, and with the last ones again and again."""
        answers = list(states)
        asked = mock.patch.object(allocation, "fields_of",
                                  lambda what, _: (answers.pop(0) if len(answers) > 1 else answers[0])
                                  if what == "job" else {"PreemptMode": "REQUEUE", "GraceTime": "20"})
        asked.start()
        self.addCleanup(asked.stop)

    def end(self):
        """How the end of the job is known, after it was asked to end, and when."""
        self.supervisor.take_signal(signal.SIGTERM)
        self.supervisor.follow_allocation()
        self.supervisor.await_answer()
        return self.supervisor.signals, self.now

    def test_one_question_without_an_answer_decides_nothing(self):
        for fields, expected in (({"JobState": "COMPLETING", "Restarts": "1"}, job_state.REQUEUED),
                                 ({"JobState": "COMPLETING", "Reason": "NodeDown"}, job_state.NODE_LOST),
                                 ({"JobState": "COMPLETING", "PreemptTime": "5"}, job_state.TO_RETURN),
                                 ({"JobState": "RUNNING"}, signal.SIGTERM)):
            self.setUp()
            self.answer({}, {}, fields)
            self.assertEqual(self.end(), ([expected], 2))

    def test_a_slurm_that_stays_silent_is_not_known_before_it_kills_this_program(self):
        self.answer({})
        signals, waited = self.end()
        self.assertEqual((signals, waited), ([job_state.NOT_KNOWN], 30 - endings.RESERVE))
        self.assertEqual(self.supervisor.hold.grace(120), endings.LEAST)

    def test_ranks_that_fail_while_slurm_is_silent_are_no_reason_to_wait_for_long(self):
        self.answer({})
        self.supervisor.follow_allocation()
        self.supervisor.await_answer()
        self.assertEqual((self.supervisor.signals, self.now), ([], hold.PATIENCE))

    def test_ranks_of_other_nodes_have_their_time_although_no_step_can_be_started(self):
        for workers, signals, expected in ((["b"], [job_state.NODE_LOST], 5), ([], [job_state.NODE_LOST], 0),
                                           (["b"], [job_state.NODE_LOST, signal.SIGTERM], 0)):
            self.now = 0
            launcher = mock.Mock(processes=[mock.Mock(poll=lambda: 0 if self.now >= 5 else None)], listen=self.sleep)
            self.supervisor.attempt, self.supervisor.signals = mock.Mock(launcher=launcher), signals
            self.supervisor.launch = {"workers": workers, "node": "a"}
            self.supervisor.roster = mock.Mock(assigned=[{"node": node, "ranks": 1} for node in ["a"] + workers])
            self.supervisor.await_launcher(20)
            self.assertEqual(round(self.now), expected)
            self.supervisor.await_launcher(0)
        self.supervisor.limits, self.supervisor.signals = job_state.Limits(10, 2, 0, None), []
        self.answer({"JobState": "COMPLETING", "Reason": "NodeDown"})
        self.assertIsNone(self.supervisor.given())
        self.end()
        self.assertEqual(self.supervisor.given(), 10)

    def test_ranks_of_other_nodes_are_awaited_no_longer_than_they_need(self):
        with tempfile.TemporaryDirectory() as directory, mock.patch.object(allocation, "PROGRAMS", directory):
            launcher = mock.Mock(processes=[mock.Mock(poll=lambda: None)])
            self.supervisor.attempt, self.supervisor.signals = mock.Mock(launcher=launcher), [job_state.NODE_LOST]
            self.supervisor.launch = {"workers": ["b"], "node": "a"}
            self.supervisor.roster = mock.Mock(assigned=[{"node": "a", "ranks": 2}, {"node": "b", "ranks": 1}])
            os.makedirs(os.path.join(directory, "nodes", "b"))

            def listen(_seconds):
                self.now += 1
                if self.now == 3:
                    with open(os.path.join(directory, "nodes", "b", "states"), "w") as file:
                        file.write("1.0 2 s \n2.0 2 x 0 asked\n")

            launcher.listen = listen
            self.supervisor.await_launcher(20)
            self.assertEqual(self.now, 3)

    def test_the_end_of_an_allocation_of_the_cluster_s_queue_is_known(self):
        self.supervisor.hold = hold.Hold({"queued": True})
        for state, expected in (("NODE_FAIL", job_state.NODE_LOST), ("TIMEOUT", job_state.TIME_LIMIT),
                                ("COMPLETING", signal.SIGTERM), ("ODD", signal.SIGTERM), ("", signal.SIGTERM)):
            self.supervisor.signals, self.supervisor.allocation = [], job_state.HELD
            with mock.patch.object(hold, "deallocated", return_value=state):
                self.assertEqual(self.end(), ([expected], 0), state)
            self.assertEqual(self.supervisor.allocation, job_state.TAKEN if state else job_state.OUTSIDE)
            self.assertEqual((self.supervisor.hold.grace(9), self.supervisor.returns()), (None, None))

    def test_signals_that_slurm_sends_together_are_one_request(self):
        for at, number in ((0, signal.SIGTERM), (0.1, signal.SIGTERM), (1.9, signal.SIGTERM), (9, signal.SIGTERM)):
            self.now = at
            self.supervisor.take_signal(number)
        self.assertEqual(self.supervisor.signals, [signal.SIGTERM] * 2)

    def test_the_time_limit_of_an_allocation_is_that(self):
        self.supervisor.hold = hold.Hold({"slurm": begun(is_step=True)._asdict()})
        self.answer({"JobState": "COMPLETING", "Reason": "TimeLimit"})
        self.assertEqual(self.end()[0], [job_state.TIME_LIMIT])
        self.assertEqual(self.supervisor.hold.grace(120), 30 - endings.RESERVE)

    def test_an_allocation_that_was_restarted_before_does_not_end_its_jobs(self):
        # a shell in it may not have SLURM_RESTART_COUNT
        with mock.patch.dict(os.environ), mock.patch.object(allocation, "fields_of", return_value={}):
            os.environ.pop("SLURM_RESTART_COUNT", None)
            known = allocation.begun({}, {"Restarts": "1"}, True)
            self.assertEqual((known["restarts"], allocation.begun({}, {}, True)["restarts"]), (1, None))
            self.assertEqual(allocation.begun({}, {"Restarts": "1"}, False)["restarts"], 0)
            os.environ["SLURM_RESTART_COUNT"] = "2"
            self.assertEqual(allocation.begun({}, {"Restarts": "1"}, False)["restarts"], 2)
        self.supervisor.hold = hold.Hold({"slurm": known})
        self.answer({"JobState": "RUNNING", "Restarts": "1"})
        self.assertEqual((self.end()[0], self.supervisor.allocation), ([signal.SIGTERM], job_state.OUTSIDE))

    def test_a_preemption_of_which_slurm_tells_steps_alone_is_noticed(self):
        began = {"JobState": "RUNNING", "PreemptTime": "%d" % time.time(), "Requeue": "1"}
        self.supervisor.hold = hold.Hold({"slurm": begun()._asdict()})
        self.answer({"JobState": "RUNNING"})
        self.supervisor.hold.notice()
        self.assertFalse(self.supervisor.hold.is_noticed, "the step has ended for another reason")
        # slurmctld does not answer at first
        with mock.patch.object(hold.time, "sleep", lambda _seconds: self.answer(began)):
            self.answer({})
            self.supervisor.hold.notice()
        self.assertTrue(self.supervisor.hold.is_noticed)
        self.supervisor.follow_allocation()
        self.assertEqual((self.supervisor.signals, self.supervisor.allocation, self.supervisor.hold.is_noticed),
                         ([job_state.TO_RETURN], job_state.TAKEN, False))
        self.assertIsNotNone(self.supervisor.returns())


class Record(unittest.TestCase):
    def test_a_job_that_slurm_starts_again_is_left_to_it(self):
        supervisor = mock.Mock(launch={}, membership=None, signals=[job_state.REQUEUED])
        supervisor.state = job_state.Pausing(*[None] * len(job_state.Pausing._fields))
        left = job_state.Ended({}, False), [(job_state.LEAVE,)]
        with mock.patch.object(job_state, "decide", return_value=left):
            job_supervisor.JobSupervisor.run(supervisor)
        supervisor.leave.assert_called_once_with()
        supervisor.record.assert_not_called()

    def test_who_follows_a_job_whose_end_is_not_known_waits_for_slurm(self):
        for signals, expected in (([job_state.NOT_KNOWN], []), ([job_state.NODE_LOST], ["d", "done"])):
            supervisor, noted = mock.Mock(signals=signals, launch={"own_workers": False}), []
            supervisor.log.write = lambda kind, _lines: noted.append(kind.decode())
            finish = job_supervisor.JobSupervisor.finish
            with mock.patch.object(job_state, "exit_code", return_value=1):
                supervisor.run = lambda: finish(supervisor, {}, False)
                with mock.patch.object(job_supervisor, "JobSupervisor", return_value=supervisor), \
                        mock.patch.object(allocation, "note_end", lambda: noted.append("done")), \
                        mock.patch("builtins.open", mock.mock_open(read_data='{"keep_alive": 5, "slurm": {"x": 1}}')), \
                        mock.patch.object(job_supervisor, "of_this_node", return_value=[]), \
                        mock.patch.object(job_supervisor.files, "create", side_effect=OSError):
                    job_supervisor.main()
            self.assertEqual(noted, expected)


class Requeue(unittest.TestCase):
    """The directory of a job that Slurm starts again."""

    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        self.restarts = 0
        fakes = {"addresses": lambda nodes, *_: {node: "10.0.0.1" for node in nodes}, "configuration": dict,
                 "hostnames": lambda text: text.split(","), "ask": lambda _argv: "JobState=RUNNING"}
        patches = [mock.patch.object(allocation, name, fake) for name, fake in fakes.items()]
        patches += [mock.patch.object(module, name, self.directory)
                    for module, name in ((allocation, "PROGRAMS"), (allocation.files, "HERE"))]
        for patched in patches + [mock.patch.dict(os.environ, SLURM_JOB_ID="7", HVDCTL_PLACE="/nowhere")]:
            patched.start()
            self.addCleanup(patched.stop)
        self.write("job.json", json.dumps({"placement": {"shares": [{"node": "login", "ranks": 2}]}, "sample": 5,
                                           "slurm": {"is_placed": False}}))
        launch = '{"launcher": ["env"], "format": 1, "start_timeout": 5}'
        for name, text in (("launch.json", launch), ("launcher.json", "{}"), ("env.json", "{}"), ("log", "")):
            self.write(name, text)

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "a") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def run_on(self, *nodes):
        """Begins the job on these nodes, where each rank starts and writes a line."""
        os.environ.update(SLURM_JOB_NODELIST=",".join(nodes), SLURM_TASKS_PER_NODE="1(x%d)" % len(nodes))
        allocation.prepare(len(nodes))
        for at, node in enumerate(nodes):
            own = "" if at == 0 else "nodes/%s/" % node
            self.write(own + "log", "line of %s\n" % node)
            self.write(own + "samples", "sample of %s\n" % node)
            self.write(own + "states", "1.0 %d s \n" % at)
            self.write(own + "idle.%d" % at, "1 2 cpu")

    def files(self, name):
        """The nodes that have a file of their own, and its text without the notes of restarts."""
        first = json.loads(self.read("job.json"))["placement"]["shares"][0]["node"]
        found = {first: self.read(name)} if os.path.exists(self.path(name)) else {}
        for node in os.listdir(self.path("nodes")):
            if os.path.exists(self.path("nodes/%s/%s" % (node, name))):
                found[node] = self.read("nodes/%s/%s" % (node, name))
        return {node: re.sub(r"(?m)^[0-9.]+ 0 r .*\n", "", text) for node, text in found.items()}

    def lines(self, **counts):
        return {node: "line of %s\n" % node * count for node, count in counts.items()}

    def test_the_lines_of_each_node_stay_under_its_name(self):
        self.run_on("a", "b")
        self.assertEqual(self.files("log"), self.lines(a=1, b=1))
        followed = os.open(self.path("log"), os.O_RDONLY)
        self.addCleanup(os.close, followed)
        self.run_on("c", "a")
        self.assertEqual(self.files("log"), self.lines(a=2, b=1, c=1))
        self.assertEqual(self.files("samples")["b"], "sample of b\n")
        # a program that followed the log of the first node still does, and learns of the other ones
        text = os.read(followed, 9999).decode()
        self.assertEqual(text.count("line of a"), 2)
        self.assertIn('0 r {"requeued": [{"node": "c", "ranks": 1}, {"node": "a", "ranks": 1}]}', text)
        self.assertEqual(json.loads(self.read("job.json"))["earlier"], ["b"])
        # and back
        self.run_on("b", "a")
        self.assertEqual(self.files("log"), self.lines(a=3, b=2, c=1))
        self.assertEqual(json.loads(self.read("job.json"))["earlier"], ["c"])

    def test_nothing_but_the_log_is_left_of_ranks_that_have_ended(self):
        self.run_on("a", "b")
        os.environ.update(SLURM_JOB_NODELIST="c,d", SLURM_TASKS_PER_NODE="1(x2)")
        allocation.prepare(2)
        left = {os.path.join(where, name) for where, _, names in os.walk(self.directory) for name in names}
        left = {os.path.relpath(path, self.directory) for path in left}
        self.assertFalse({path for path in left if re.search(r"states$|idle\.", path)}, "it would seem to run")
        self.assertEqual({path for path in left if path.endswith("env.json")}, {"env.json", "nodes/d/env.json"})

    def test_a_job_that_is_queued_again_does_not_seem_to_run(self):
        self.run_on("a", "b")
        allocation.forget_ranks()
        self.assertEqual((self.files("states"), self.files("env.json")), ({}, {"a": "{}", "b": "{}"}))
        shutil.rmtree(self.path("nodes"))
        self.write("states", "1.0 0 s \n")
        allocation.forget_ranks()
        self.assertFalse(os.path.exists(self.path("states")), "of a job of one node")

    def test_what_was_not_known_is_known_when_slurm_starts_the_job_again(self):
        for reason, count, expected in ((faults.END_NOT_KNOWN, "1", False), (faults.END_NOT_KNOWN, None, True),
                                        (faults.PREEMPTED_TO_RETURN, "1", False),
                                        (faults.PREEMPTED_FOR_GOOD, "1", True),
                                        (faults.TIME_LIMIT, "1", True), (None, "1", True)):
            with open(self.path("result.json"), "w") as file:
                json.dump({"reason": reason}, file)
            with mock.patch.dict(os.environ):
                os.environ.pop("SLURM_RESTART_COUNT", None)
                os.environ.update({"SLURM_RESTART_COUNT": count} if count else {})
                self.assertEqual(allocation.has_ended(), expected)
            self.assertEqual(os.path.exists(self.path("result.json")), expected)

    def test_slurm_does_not_start_a_job_that_has_ended_once_more(self):
        self.write("result.json", '{"reason": null}')
        with mock.patch.object(allocation, "find_commands"), mock.patch.object(allocation, "note_end") as noted, \
                mock.patch.object(allocation.subprocess, "run") as ran:
            self.assertEqual(job_supervisor.main("2"), 0)
        noted.assert_called_once_with()
        ran.assert_called_once_with(["scancel", "7"])


if __name__ == "__main__":
    unittest.main()
