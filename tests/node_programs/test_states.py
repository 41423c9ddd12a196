"""Unit tests of what the two supervisors decide (rank_state.py, job_state.py and roster.py in src/scripts/programs),
and the agent of the cluster's own Slurm (queue_state.py in src/scripts/slurm/nodes): sequences of observations, without
processes, nodes or a clock. tests/node_programs.rs runs them with every interpreter that it finds."""
import ast
import itertools
import os
import signal
import sys
import unittest

sys.dont_write_bytecode = True
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "scripts", "programs")
sys.path[:0] = [PROGRAMS, os.path.join(PROGRAMS, "supervisor"), os.path.join(PROGRAMS, "elastic"),
                os.path.join(PROGRAMS, "slurm"), os.path.join(PROGRAMS, "..", "slurm", "nodes")]
import endings  # noqa: E402
import job_state as job  # noqa: E402
import queue_state as queue  # noqa: E402
import rank_state as rank  # noqa: E402
import roster  # noqa: E402

TERM, KILL, CONT = ((rank.SIGNAL_GROUP, number) for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGCONT))
ASK = [(rank.TERMINATE,), CONT]


def request(now, exited=False, stopped=0, quiet=0, unused=0):
    return rank.Request(now, exited, stopped, quiet, unused)


def sample(now, exited=False, stopped=0, quiet=0):
    return rank.Sample(now, exited, stopped, quiet)


class Purity(unittest.TestCase):
    def test_what_decides_knows_no_clock_no_process_and_no_file(self):
        for module, imports in ((job, ["collections", "signal", "endings", "faults"]), (job.faults, []),
                                (endings, ["collections"]),
                                (rank, ["collections", "signal"]), (roster, []), (queue, ["collections"])):
            with open(module.__file__) as file:
                nodes = list(ast.walk(ast.parse(file.read())))
            imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
            self.assertEqual(imported, imports)
            self.assertFalse([node for node in nodes if isinstance(node, ast.ImportFrom)])
            used = {node.id for node in nodes if isinstance(node, ast.Name)}
            self.assertFalse(used & {"open", "print", "input", "exec", "eval", "__import__"})
            of_signal = {node.attr for node in nodes if isinstance(node, ast.Attribute)
                         and getattr(node.value, "id", "") == "signal"}
            self.assertTrue(all(name.startswith("SIG") for name in of_signal), of_signal)


class Rank(unittest.TestCase):
    def after(self, *observations, **limits):
        """The state after these observations, and the actions of each."""
        limits = rank.Limits(limits.get("grace", 10), limits.get("idle"), limits.get("stall", 0))
        state, all_actions = rank.Running(None), []
        for observation in observations:
            state, actions = rank.decide(state, observation, limits)
            all_actions.append(actions)
        return state, all_actions

    def test_a_program_that_exits_is_not_given_a_grace_period(self):
        for code in (0, 3, -9):
            self.assertEqual(self.after(sample(1), rank.Tick(1), rank.Exit(code)),
                             (rank.Ended(code, False, None), [[], [], []]))

    def test_a_request_begins_the_grace_period_and_a_second_one_does_not(self):
        state, actions = self.after(request(100), request(105), rank.Tick(110), rank.Tick(110.1))
        self.assertEqual((type(state), state.since, state.why), (rank.Asked, 100, rank.REQUEST))
        self.assertEqual(actions, [ASK, [], [(rank.TERMINATE_AWAITED,)], [KILL]])

    def test_an_end_that_was_requested_is_no_failure_of_the_rank_itself(self):
        for code in (0, 1, -15):
            state, actions = self.after(request(100), rank.Exit(code), rank.Group(100, False))
            self.assertEqual((state, actions[1:]), (rank.Ended(code, True, None), [[TERM], []]))

    def test_what_a_shell_leaves_running_gets_the_rest_of_the_grace_period(self):
        observed = [request(100), rank.Exit(143), rank.Group(101, True), request(109), rank.Tick(109),
                    rank.Group(110, True)]
        state, actions = self.after(*observed)
        self.assertEqual((type(state), actions), (rank.Exited, [ASK, [TERM], [], [], [], []]))
        self.assertEqual(self.after(*observed + [rank.Group(110.1, True)])[0], rank.Ended(143, True, None))

    def test_the_group_of_a_program_that_was_killed_gets_no_more_time(self):
        self.assertEqual(self.after(request(100), rank.Exit(-9)), (rank.Ended(-9, True, None), [ASK, []]))

    def test_a_program_that_cannot_be_killed_counts_as_ended(self):
        observed = [request(100)] + [rank.Tick(now) for now in (110.1, 114.9, 115, 115.1)]
        state, actions = self.after(*observed)
        self.assertEqual((state, actions[2:]), (rank.Ended(-9, True, None), [[KILL]] * 3))
        self.assertIsInstance(self.after(*observed[:-1])[0], rank.Asked)

    def test_without_a_grace_period_it_is_killed_at_once(self):
        self.assertEqual(self.after(request(100), rank.Tick(100.01), grace=0)[1],
                         [ASK, [(rank.TERMINATE_AWAITED,), KILL]])

    def test_what_keeps_a_shell_from_its_trap_is_asked_once_and_a_moment_later(self):
        for grace, trap in ((10, 101), (1, 100.5)):
            observed = request(100), rank.Tick(trap), rank.Tick(trap + 0.1), rank.Tick(trap + 0.2)
            self.assertEqual(self.after(*observed, grace=grace)[1], [ASK, [], [(rank.TERMINATE_AWAITED,)], []])
        # a shell without a trap has exited
        self.assertEqual(self.after(request(100), rank.Exit(143), rank.Tick(102))[1], [ASK, [TERM], []])

    def test_what_a_rank_without_progress_does_is_reported_before_it_is_asked(self):
        report = [(rank.REPORT_QUIET, 15)]
        self.assertEqual(self.after(request(100, unused=15))[1], [report + ASK])
        self.assertEqual(self.after(request(100, unused=4.9))[1], [ASK])
        # nothing is left to be described
        self.assertEqual(self.after(request(100, exited=True, unused=15))[1], [[CONT]])

    def test_a_program_that_hardly_uses_a_processor_and_is_silent_makes_no_progress(self):
        progress = rank.Progress(100)
        for second in range(1, 11):
            progress.note_use(3 + 0.01 * second, 100 + second)
        self.assertEqual(progress.unused_for(111), 10)
        progress.last_output = 109
        self.assertEqual(progress.unused_for(111), 2)
        progress.note_use(3.5, 112)
        self.assertEqual(progress.unused_for(113), 1)
        progress.note_use(1, 113)
        self.assertEqual(progress.unused_for(113), 0, "one of its processes has ended")

    def test_an_exit_before_the_request_is_a_failure_of_the_rank_itself(self):
        state, actions = self.after(request(100, exited=True), rank.Exit(3), rank.Group(100, False))
        self.assertEqual((state, actions), (rank.Ended(3, False, None), [[CONT], [TERM], []]))
        # observed in the other order, its process group is not waited for either
        self.assertEqual(self.after(rank.Exit(3), request(100, exited=True)), (rank.Ended(3, False, None), [[], []]))

    def test_a_rank_without_progress_gives_up_and_never_ends_with_success(self):
        observed = sample(59, quiet=59), sample(60, quiet=60), sample(61,
                                                                      quiet=61), request(62, quiet=62), rank.Tick(63)
        state, actions = self.after(*observed, idle=60)
        self.assertEqual(state.why, rank.IDLE)
        self.assertEqual(actions, [[], [], [(rank.REPORT_IDLE, 61)] + ASK, [], [(rank.TERMINATE_AWAITED,)]])
        for code, expected in ((0, 143), (1, 1), (-15, -15)):
            state = self.after(*observed + (rank.Exit(code), rank.Group(63, False)), idle=60)[0]
            self.assertEqual(state, rank.Ended(expected, False, None))
        killed = self.after(*observed + (rank.Tick(76.1),), idle=60)[0]
        self.assertEqual(killed, rank.Ended(-9, False, None), "it cannot be killed")
        self.assertEqual(self.after(*observed + (rank.Exit(-9),), idle=60)[0], rank.Ended(-9, False, None))
        self.assertIsInstance(self.after(*observed[:3])[0], rank.Running, "there is no limit")
        # it exited at that moment
        exited = self.after(sample(61, exited=True, quiet=61), rank.Exit(0), rank.Group(61, False), idle=60)
        self.assertEqual(exited, (rank.Ended(143, False, None), [[(rank.REPORT_IDLE, 61), CONT], [TERM], []]))

    def test_a_rank_that_is_asked_reports_a_long_wait(self):
        for quiet, idle, reports in ((31, 60, [(rank.REPORT_IDLE, 31)]), (30, 60, []), (31, None, [])):
            self.assertEqual(self.after(request(100, quiet=quiet), idle=idle)[1], [reports + ASK])
        self.assertEqual(self.after(request(100, exited=True, quiet=31), idle=60)[1], [[CONT]])
        self.assertEqual(self.after(request(100, stopped=3, quiet=31), idle=60)[1], [ASK], "it was stopped")

    def test_a_program_that_is_stopped_for_too_long_is_killed_and_reported(self):
        state, actions = self.after(sample(29, stopped=29), sample(30, stopped=30), rank.Exit(-9), stall=30)
        self.assertEqual((state, actions), (rank.Ended(-9, False, 30), [[], [KILL], []]))
        # a debugger may have stopped it
        self.assertEqual(self.after(sample(1e6, stopped=1e6))[1], [[]])
        # killed in vain, and others give up: it is still the cause
        state, actions = self.after(sample(30, stopped=30), sample(31, stopped=31), request(32, stopped=32, quiet=40),
                                    stall=30, idle=60)
        self.assertEqual((state.hung, actions), (31, [[KILL], [KILL], ASK]))

    def test_a_program_that_was_stopped_when_others_gave_up_is_the_cause(self):
        for stopped, hung in ((2.9, None), (3, 3), (20, 20)):
            state = self.after(request(100, stopped=stopped), rank.Exit(0), rank.Group(100, False))[0]
            self.assertEqual(state, rank.Ended(0, True, hung))
        self.assertEqual(self.after(sample(61, stopped=5, quiet=61), rank.Exit(0), rank.Group(61, False),
                                    idle=60)[0].hung, 5)

    def test_a_program_that_was_asked_is_no_longer_sampled(self):
        state, actions = self.after(request(100), sample(101, stopped=90, quiet=90), stall=30, idle=60)
        self.assertEqual((state.why, state.hung, actions[1:]), (rank.REQUEST, None, [[]]))

    def test_any_sequence_ends_once_and_keeps_the_first_reason(self):
        kinds = [request, lambda now: request(now, exited=True), lambda now: sample(now, quiet=61),
                 lambda now: sample(now, stopped=31),
                 lambda now: rank.Exit(0), lambda now: rank.Exit(-9), lambda now: rank.Group(now, True), rank.Tick]
        limits = rank.Limits(10, 60, 30)
        for sequence in itertools.product(kinds, repeat=4):
            state, whys, asked = rank.Running(None), [], 0
            for now, kind in enumerate(sequence):
                before = state
                state, actions = rank.decide(state, kind(now), limits)
                whys += [state.why] if hasattr(state, "why") else []
                asked += actions.count((rank.TERMINATE,))
                if isinstance(before, rank.Ended):
                    self.assertEqual((state, actions), (before, []))
            self.assertLessEqual(len(set(whys)), 1)
            self.assertLessEqual(asked, 1)
            # whatever came before, it has an end
            for observation in (request(50), rank.Tick(100), rank.Exit(1), rank.Group(100, True)):
                state = rank.decide(state, observation, limits)[0]
            self.assertIsInstance(state, rank.Ended)

    def test_the_answer_to_the_launcher(self):
        for code, by_reaper, lost, expected in ((0, False, False, (0, 0)), (3, False, False, (3, 0)),
                                                (-15, False, False, (143, 0)),
                                                (-15, True, False, (143, 30)), (0, True, False, (0, 30)),
                                                (-15, True, True, (0, 0)), (3, False, True, (0, 0))):
            self.assertEqual(rank.answer(code, by_reaper, lost, 10), expected)

    def test_a_stopped_program_is_silent_since_its_last_output(self):
        progress = rank.Progress(100)
        self.assertEqual((progress.stopped_for(105), max(progress.quiet)), (0, 0))
        for now in (101, 102):
            progress.note_stopped(True, now)
        self.assertEqual(progress.stopped_for(105), 4)
        progress.last_output = 103
        self.assertEqual(progress.stopped_for(105), 2)
        progress.note_stopped(False, 106)
        self.assertEqual(progress.stopped_for(107), 0)
        # the wait of the last samples, of which the output that follows a failure is one
        progress.note_idle(104, 110)
        progress.last_output = 110
        progress.note_idle(104, 111)
        self.assertEqual((progress.quiet[-1], max(progress.quiet)), (1, 6))
        progress.note_idle(111, 112)
        progress.note_idle(111, 113)
        self.assertEqual(max(progress.quiet), 2)


EXIT = {"code": 0, "asked": False}
OUTCOME = {"started": 2, "exits": [EXIT, EXIT], "hung": [], "lost": [], "silent": [], "silence": {}}
TERMINATED, ENGINE = [signal.SIGTERM], [job.BY_ENGINE]


def attempt(signals=(), code=None, failed=(), changed=False, missing="", waited=0, returns=None):
    return job.Attempt(list(signals), code, list(failed), changed, missing, waited, returns)


def reaped(now=100, signals=(), code=None, failed=(), pause=2, kept=False, returns=None, **outcome):
    return job.Reaped(now, list(signals), code, list(failed), dict(OUTCOME, **outcome), 2, pause, kept, returns)


def present(now, ranks, signals=(), silent=()):
    return job.Present(now, list(signals), ranks, list(silent))


class Job(unittest.TestCase):
    def after(self, *observations, **limits):
        """The state after these observations, and the names of all actions."""
        elastic = job.Elastic(2, 600) if limits.get("elastic") else None
        limits = job.Limits(30, 2, limits.get("restarts", 0), elastic)
        state, names = job.Running(0), []
        for observation in observations:
            state, actions = job.decide(state, observation, limits)
            names += [action[0] for action in actions]
        return state, names

    def end(self, *observations, **limits):
        """Whether the job counts as stopped, and the result."""
        state = self.after(*observations, **limits)[0]
        self.assertIsInstance(state, job.Ended)
        return state.stopped, state.result["launcher"], state.result.get("reason")

    def test_an_attempt_goes_on_until_something_ends_it(self):
        self.assertEqual(self.after(attempt(), attempt()), (job.Running(0), []))
        for ends, expected in (
            ({"code": 0}, (False, 0, None)), ({"code": 3}, (False, 3, None)), ({"failed": [7, 9]}, (False, 7, None)),
            ({"signals": TERMINATED}, (True, None, None)),
            ({"signals": ENGINE}, (False, 1, job.faults.CONTAINER_STOPPED)),
            ({"missing": "1 of 2 on b"}, (False, 1, "1 of 2 on b")),
        ):
            self.assertEqual(self.after(attempt(), attempt(**ends))[1], [job.END_ATTEMPT], ends)
            ended = reaped(code=ends.get("code", 143), failed=ends.get("failed", ()))
            self.assertEqual(self.end(attempt(), attempt(**ends), ended), expected)
            self.assertEqual("reason" in self.after(attempt(**ends), ended)[0].result, expected[2] is not None)

    def test_the_first_of_two_reasons_counts(self):
        for ends, expected in (
            # the launcher's own end is none that was requested
            (attempt(TERMINATED, code=0), (False, 0, None)), (attempt(ENGINE, code=5), (False, 5, None)),
            (attempt(missing="on b", code=0), (False, 0, None)),
            (attempt(TERMINATED, missing="on b"), (False, 1, "on b")),
            (attempt(TERMINATED, failed=[7]), (True, None, None)),
            (attempt(ENGINE, failed=[7]), (False, 1, job.faults.CONTAINER_STOPPED)),
            (attempt(TERMINATED + ENGINE), (True, None, None)),
            (attempt(ENGINE + TERMINATED), (False, 1, job.faults.CONTAINER_STOPPED)),
        ):
            self.assertEqual(self.end(ends, reaped(code=ends.code, failed=ends.failed)), expected, ends)
        # a rank that fails while the attempt ends explains more than its launcher
        self.assertEqual(self.end(attempt(code=1), reaped(code=1, failed=[9])), (False, 9, None))
        self.assertEqual(self.end(attempt(TERMINATED), reaped(TERMINATED, code=1, failed=[9])), (True, None, None))

    def test_the_grace_period(self):
        limits = job.Limits(30, 2, 0, None)
        for signals, changed, seconds in (([], False, 2), (TERMINATED, False, 30), (ENGINE, False, 2), ([], True, 30),
                                          (ENGINE, True, 30),
                                          (TERMINATED * 2, False, 0), (ENGINE + TERMINATED, True, 0)):
            self.assertEqual(job.grace_period(signals, changed, limits), seconds)
        self.assertEqual(job.grace_period([], False, limits._replace(grace=1)), 1)

    def test_a_failed_job_is_restarted_as_often_as_requested(self):
        failure = [attempt(failed=[7]), reaped(100, failed=[7])]
        waits = failure + [job.Tick(101.9)]
        pausing, actions = self.after(*waits, restarts=1)
        self.assertEqual((pausing.failures, pausing.until, actions), (1, 102, [job.END_ATTEMPT, job.RECORD_ATTEMPT]))
        again = waits + [job.Tick(102), job.Tick(103)]
        state, actions = self.after(*again, restarts=1)
        self.assertEqual((state, actions[2:]), (job.Running(1), [job.CHOOSE_NODES, job.START]))
        self.assertEqual(self.end(*again + failure, restarts=1), (False, 7, None))
        # what was kept for another attempt is removed, as far as that was still possible
        self.assertEqual(self.after(*again + failure, restarts=1)[1][4:], [job.END_ATTEMPT])
        succeeded = again + [attempt(code=0), reaped(code=0)]
        self.assertEqual(self.after(*succeeded, restarts=2)[1][4:], [job.END_ATTEMPT, job.CLEAN])
        self.assertEqual(self.end(*succeeded, restarts=2), (False, 0, None))

    def test_an_elastic_job_that_has_failed_uses_only_nodes_that_can_take_part(self):
        failure = [attempt(failed=[7]), reaped(100, failed=[7])]
        waits = failure + [job.Tick(102)]
        state, actions = self.after(*waits, elastic=True, restarts=1)
        self.assertEqual((type(state), state.until, actions[2:]), (job.Regrouping, 702, []))
        state, actions = self.after(*waits + [present(103, 2), job.Tick(103)], elastic=True, restarts=1)
        self.assertEqual((state, actions[2:]), (job.Running(1), [job.RECORD_CHANGE, job.START]))
        # too few of them: others are waited for
        state, actions = self.after(*waits + [present(103, 1)], elastic=True, restarts=1)
        self.assertEqual((type(state), actions[2:]), (job.Regrouping, [job.RECORD_CHANGE]))
        late = waits + [present(103, 1), present(702.1, 1)]
        self.assertEqual(self.end(*late, elastic=True, restarts=1), (False, 1, job.faults.too_few_ranks(2, 600)))

    def test_missing_ranks_are_a_failure_of_the_attempt(self):
        state, actions = self.after(attempt(missing="on b"), reaped(), restarts=1)
        self.assertEqual((state.result["reason"], actions[1:]), ("on b", [job.RECORD_ATTEMPT]))
        # the next one ends without
        ends = job.Tick(102), job.Tick(102), attempt(code=0), reaped(code=0)
        self.assertEqual(self.end(attempt(missing="on b"), reaped(), *ends, restarts=1), (False, 0, None))

    def test_a_launcher_that_ends_with_0_has_not_succeeded_if_a_rank_has_no_exit_or_failed(self):
        failed = [dict(EXIT, code=7), {"code": 143, "asked": True}]
        for outcome in ({"exits": [EXIT]}, {"exits": []}, {"exits": failed}):
            self.assertIsInstance(self.after(attempt(code=0), reaped(code=0, **outcome), restarts=1)[0], job.Pausing)
        self.assertEqual(self.end(attempt(code=0), reaped(code=0, exits=[])), (False, 0, None),
                         "it may not be restarted")

    def test_a_launcher_that_ends_with_0_together_with_its_ranks_was_ended_by_what_was_requested(self):
        for signals, expected in ((ENGINE, (False, 1, job.faults.CONTAINER_STOPPED)),
                                  (ENGINE + TERMINATED, (False, 1, job.faults.CONTAINER_STOPPED)),
                                  (TERMINATED, (True, None, None))):
            # before it was observed, or while the attempt ended
            for limits in ({}, {"elastic": True}):
                ends = attempt(signals, code=0), reaped(100, signals, code=0, exits=[], silent=["b"])
                self.assertEqual(self.end(*ends, **limits), expected)
            for exits in ([], [{"code": 143, "asked": True}] * 2):
                self.assertEqual(self.end(attempt(code=0), reaped(100, signals, code=0, exits=exits)), expected)
            self.assertEqual(self.end(attempt(signals, code=0), reaped(100, signals, code=0)), (False, 0, None),
                             "all have ended with it")

    def test_only_a_success_ends_the_supervisor_with_0(self):
        for launcher, exits, stopped, code in ((0, [0, 0], False, 0), (0, [0], False, 1), (0, [7, 143], False, 1),
                                               (None, [], True, 143), (None, [], False, 1), (7, [0, 0], False, 7)):
            result = {"launcher": launcher, "exits": [dict(EXIT, code=one) for one in exits]}
            self.assertEqual(job.exit_code(result, stopped, 2), code)

    def test_a_job_that_its_launcher_has_ended_was_not_stopped(self):
        ends = attempt(changed=True), reaped(code=1, reason="the limit of 3 resets")
        self.assertEqual(self.end(*ends, elastic=True), (False, 1, "the limit of 3 resets"))

    def test_a_job_that_was_asked_to_end_is_not_restarted(self):
        for limits in ({"restarts": 3}, {"elastic": True}):
            for ends in (attempt(TERMINATED), attempt(TERMINATED, failed=[7]), attempt(TERMINATED, changed=True)):
                self.assertEqual(self.end(ends, reaped(TERMINATED, failed=ends.failed), **limits), (True, None, None))
                self.assertEqual(self.after(ends, reaped(TERMINATED, failed=ends.failed), **limits)[1],
                                 [job.END_ATTEMPT])

    def test_a_stop_between_two_attempts(self):
        failure = [attempt(missing="on b"), reaped(100, silent=["b"])]
        pausing = failure + [job.Tick(101)]
        chosen = pausing + [job.Tick(102)]
        for before in (failure, pausing, chosen):
            state, actions = self.after(*before + [job.Request(TERMINATED)], restarts=1)
            self.assertEqual((state.stopped, actions[-1]), (True, job.CLEAN))
            self.assertNotIn(job.START, actions)
            self.assertNotIn("reason", state.result)
            self.assertEqual(len(state.result["exits"]), 2)
            # the last attempt did not end the job
            state = self.after(*before + [job.Request(ENGINE)], restarts=1)[0]
            self.assertEqual((state.stopped, state.result["reason"], state.result["exits"]),
                             (False, job.faults.CONTAINER_STOPPED, []))
            self.assertEqual(state.result["silent"], [])
        # requested while the ranks ended
        state = self.after(attempt(failed=[7]), reaped(100, TERMINATED, failed=[7]), job.Request(TERMINATED),
                           restarts=1)[0]
        self.assertTrue(state.stopped)

    def test_a_node_that_leaves_or_joins_restarts_an_elastic_job(self):
        change = [attempt(changed=True), reaped(100, code=143)]
        state, actions = self.after(*change + [present(101, 2)], elastic=True)
        self.assertEqual((type(state), actions), (job.Starting, [job.END_ATTEMPT, job.RECORD_CHANGE]))
        # no failure, however often it happens
        state, actions = self.after(*(change + [present(101, 2), job.Tick(101)]) * 3, elastic=True)
        self.assertEqual((state, actions), (job.Running(0), [job.END_ATTEMPT, job.RECORD_CHANGE, job.START] * 3))
        # a rank failed because the node was lost, before it was known to be
        for ends in (attempt(failed=[1]), attempt(code=1), attempt(failed=[1], changed=True)):
            state = self.after(ends, reaped(code=1, failed=ends.failed, silent=["b"]), elastic=True)[0]
            self.assertIsInstance(state, job.Regrouping)

    def test_a_failure_of_an_elastic_job_needs_a_restart(self):
        failure = [attempt(failed=[7]), reaped(100, failed=[7])]
        self.assertEqual(self.end(*failure, elastic=True), (False, 7, None))
        self.assertEqual(self.after(*failure, elastic=True)[1], [job.END_ATTEMPT, job.CLEAN])
        self.assertIsInstance(self.after(*failure, elastic=True, restarts=1)[0], job.Pausing)
        self.assertEqual(self.end(attempt(failed=[7]), reaped(100, TERMINATED, failed=[7]), elastic=True)[0], True)
        self.assertEqual(self.end(attempt(code=0), reaped(code=0), elastic=True), (False, 0, None))

    def test_an_elastic_job_waits_for_enough_ranks(self):
        change = [attempt(changed=True), reaped(100, code=143, silence={"b": "refused"})]
        waiting = change + [present(101, 1), present(300, 1), present(700, 1)]
        state, actions = self.after(*waiting, elastic=True)
        self.assertEqual((type(state), state.waits, actions),
                         (job.Regrouping, True, [job.END_ATTEMPT, job.RECORD_CHANGE]))
        self.assertEqual(self.after(*waiting + [present(700, 2), job.Tick(700)], elastic=True)[1][2:],
                         [job.RECORD_CHANGE, job.START])
        state, actions = self.after(*waiting + [present(700.1, 1, silent=["b"])], elastic=True)
        self.assertEqual((state.stopped, state.result["launcher"], state.result["silent"]), (False, 1, ["b"]))
        self.assertEqual((state.result["reason"], state.result["exits"]), (job.faults.too_few_ranks(2, 600), []))
        self.assertEqual(actions[-1], job.CLEAN)
        # each record says why, and for how long the job waits
        regrouping, limits = self.after(*change, elastic=True)[0], job.Limits(30, 2, 0, job.Elastic(2, 600))
        for ranks, seconds in ((1, 600), (2, 0)):
            actions = job.decide(regrouping, present(101, ranks), limits)[1]
            self.assertEqual(actions, [(job.RECORD_CHANGE, {"b": "refused"}, seconds)])
        # too few from the first query on, and no time to wait
        self.assertEqual(self.after(*change + [present(701, 1)], elastic=True)[1][1:], [job.RECORD_CHANGE, job.CLEAN])

    def test_ranks_that_are_kept_wait_for_others_only_for_a_time(self):
        self.assertEqual(self.after(attempt(waited=600), elastic=True), (job.Running(0), []))
        ends = attempt(waited=600.1), reaped(code=143)
        state, actions = self.after(*ends, elastic=True)
        self.assertEqual((state.stopped, state.result["reason"]), (False, job.faults.too_few_ranks(2, 600)))
        self.assertEqual(actions, [job.END_ATTEMPT])
        self.assertIsInstance(self.after(*ends, elastic=True, restarts=3)[0], job.Ended)
        self.assertEqual(self.after(attempt(waited=9000)), (job.Running(0), []), "it is not elastic")

    def test_a_launcher_that_was_to_keep_the_ranks_and_ends_is_started_again(self):
        asked, failed, early = {"code": 143, "asked": True}, {"code": 7, "asked": False}, {"code": 0, "asked": False}
        for code, exits, kept, expected in ((137, [asked], True, job.Regrouping), (0, [], True, job.Regrouping),
                                            (1, [failed], True, job.Ended), (1, [asked, early], True, job.Ended),
                                            (137, [asked], False, job.Ended)):
            state, actions = self.after(attempt(code=code), reaped(code=code, kept=kept, exits=exits), elastic=True)
            self.assertIsInstance(state, expected, (code, exits, kept))
            self.assertEqual(job.RECORD_LOSS in actions, expected is job.Regrouping)
        # a rank that failed, and the end of all, say more
        self.assertIsInstance(self.after(attempt(failed=[7]), reaped(failed=[7], kept=True, exits=[asked]),
                                         elastic=True)[0], job.Ended)
        lost = reaped(code=137, kept=True, silent=["b"], exits=[failed])
        self.assertIsInstance(self.after(attempt(code=137), lost, elastic=True)[0], job.Regrouping)
        # Horovod has said why it ended the job: its limit of changes
        lost.outcome["reason"] = "the limit of 3 resets"
        self.assertIsInstance(self.after(attempt(code=137), lost, elastic=True)[0], job.Ended)

    def test_a_stop_while_an_elastic_job_chooses_its_nodes(self):
        change = [attempt(changed=True), reaped(100, code=143)]
        for before in (change, change + [present(101, 1)], change + [present(101, 2)]):
            self.assertEqual(self.end(*before + [job.Request(TERMINATED)], elastic=True), (True, None, None))
            self.assertEqual(self.end(*before + [job.Request(ENGINE)], elastic=True),
                             (False, 1, job.faults.CONTAINER_STOPPED))
        # it was requested during the last query
        self.assertEqual(self.end(*change + [present(701, 1, TERMINATED)], elastic=True), (True, 1, None))

    def test_every_state_has_an_end_and_one_way_to_a_start(self):
        states = {state for state, _ in job.RULES}
        self.assertEqual(states, {job.Running, job.Ending, job.Pausing, job.Regrouping, job.Starting, job.Undecided})
        starts = [rule for rule in job.RULES if job.RULES[rule] is job.start]
        self.assertEqual(starts, [(job.Starting, job.Tick)])


def place(number, ranks=1):
    return {"node": "node%d" % number, "address": "10.0.0.%d" % number, "ranks": ranks}


ALL = [place(1), place(2), place(3)]


class Roster(unittest.TestCase):
    """Nodes of a job whose launcher keeps the ranks; node1 is the launcher's."""

    def setUp(self):
        self.roster = roster.Roster(ALL, "node1")
        self.roster.assign(ALL)

    def listed(self):
        return roster.nodes(self.roster.listed())

    def running(self):
        return roster.nodes(self.roster.running())

    def answers(self, node, *codes):
        """Answers of a node: r that it is ready, d that it is drained, - for none."""
        for code in codes:
            self.roster.answer(node, code == "r", code == "d")
        return tuple(map(roster.nodes, self.roster.changes()))

    def states(self, **changed):
        return dict({"node1": roster.RUNNING, "node2": roster.RUNNING, "node3": roster.RUNNING}, **changed)

    def test_a_node_leaves_after_three_queries_without_an_answer_or_when_it_is_drained(self):
        self.assertEqual(self.answers("node2", *"--r--"), ([], []))
        self.assertEqual(self.answers("node2", "-"), (["node2"], []))
        self.assertEqual(self.answers("node3", "d"), (["node2", "node3"], []))
        self.assertEqual(self.roster.drained, {"node3"})
        self.assertEqual((self.answers("node3", "r"), self.roster.drained), ((["node2"], []), set()))

    def test_a_node_that_was_lost_is_used_again_when_it_was_cleaned(self):
        self.roster.leave("node2", "no answer")
        self.assertEqual((self.listed(), self.running()), (["node1", "node3"], ["node1", "node3"]))
        self.assertEqual(self.roster.come_back([place(2)]), [place(2)])
        self.assertEqual(self.answers("node2", "r"), ([], []), "it is being cleaned")
        self.roster.cleaned("node2", False)
        self.assertEqual((self.listed(), self.answers("node2")), (["node1", "node3"], ([], ["node2"])))
        self.roster.come_back([place(2)])
        self.roster.cleaned("node2", True)
        self.assertEqual(self.listed(), ["node1", "node2", "node3"])
        # until the driver uses it, its ranks do not take part
        self.assertEqual((self.running(), self.roster.states), (["node1", "node3"], self.states(node2=roster.LISTED)))
        self.roster.assign([place(1), place(3)])
        self.assertEqual(self.listed(), ["node1", "node2", "node3"], "it was already known to be lost")
        self.roster.assign(ALL)
        self.assertEqual((self.running(), self.roster.states, self.roster.reasons),
                         (["node1", "node2", "node3"], self.states(), {}))

    def test_an_assignment_that_was_made_since_a_node_left_counts_once_it_was_cleaned(self):
        self.roster.leave("node2", "no answer")
        self.roster.come_back([place(2)])
        self.roster.assign(ALL)
        self.assertEqual((self.running(), self.listed()), (["node1", "node3"], ["node1", "node3"]))
        self.roster.cleaned("node2", True)
        self.assertEqual(self.roster.states, self.states())

    def test_a_drained_node_whose_ranks_still_run_needs_no_cleaning(self):
        self.roster.leave("node3", roster.DRAINED)
        self.assertEqual(self.listed(), ["node1", "node2"])
        self.assertEqual(self.running(), ["node1", "node2", "node3"], "it takes part until the next commit")
        self.assertEqual((self.roster.come_back([place(3)]), self.listed()), ([], ["node1", "node2", "node3"]))
        self.assertEqual((self.running(), self.roster.states), (["node1", "node2", "node3"], self.states()))
        self.roster.leave("node3", roster.DRAINED)
        self.roster.assign([place(1), place(2)])
        self.assertEqual(self.running(), ["node1", "node2"])
        self.assertEqual(self.answers("node3", "r"), ([], ["node3"]))
        self.assertEqual(self.roster.come_back([place(3)]), [place(3)], "the driver has ended them")

    def test_a_node_is_leaving_only_while_its_ranks_take_part(self):
        self.roster.leave("node3", roster.DRAINED)
        self.roster.assign([place(1), place(2)])
        self.assertEqual(self.roster.states, self.states(node3=roster.LOST))
        # one that was lost, and that the driver has not used since
        self.roster.leave("node2", "no answer")
        self.roster.come_back([place(2)])
        self.roster.cleaned("node2", True)
        self.roster.leave("node2", roster.DRAINED)
        self.assertEqual((self.running(), self.roster.states["node2"]), (["node1"], roster.LOST))
        # and one that has ranks again: why it left before does not matter
        self.roster.come_back([place(2)])
        self.roster.assign([place(1), place(2)])
        self.roster.cleaned("node2", True)
        self.roster.leave("node2", roster.DRAINED)
        self.assertEqual((self.running(), self.roster.states["node2"]), (["node1", "node2"], roster.LEAVING))

    def test_a_node_that_is_drained_just_before_it_has_ranks_is_leaving(self):
        self.roster.add([place(4)])
        self.roster.come_back([place(4)])
        self.roster.cleaned("node4", True)
        self.answers("node4", "d")
        self.roster.leave("node4", roster.DRAINED)
        self.assertEqual((self.running(), self.roster.states["node4"]), (["node1", "node2", "node3"], roster.LOST))
        self.roster.assign(ALL + [place(4)])
        self.assertEqual((self.running(), self.roster.states["node4"]),
                         (["node1", "node2", "node3", "node4"], roster.LEAVING))
        self.assertEqual((self.roster.come_back([place(4)]), self.roster.states["node4"]), ([], roster.RUNNING))

    def test_a_node_that_the_driver_drops_has_left_and_has_to_answer_again(self):
        self.roster.assign([place(1), place(2)])
        self.assertEqual((self.roster.states, self.roster.reasons),
                         (self.states(node3=roster.LOST), {"node3": roster.DROPPED}))
        self.assertEqual((self.answers("node3"), self.answers("node3", "r")), (([], []), ([], ["node3"])))
        # one that was never in an assignment is dropped, too
        self.roster.come_back([place(3)])
        self.roster.cleaned("node3", True)
        self.roster.assign([place(1), place(2)])
        self.assertEqual(self.listed(), ["node1", "node2", "node3"], "it was lost during that assignment")
        self.roster.assign([place(1), place(2)])
        self.assertEqual(self.listed(), ["node1", "node2"])
        at_first = roster.Roster(ALL, "node1")
        at_first.assign([place(2), place(3)])
        self.assertEqual(at_first.states, self.states(node1=roster.LISTED), "the launcher's node stays")

    def test_a_node_whose_ranks_fail_three_times_within_an_hour_is_unfit_for_so_long(self):
        def is_fit(node, now):
            return bool(self.roster.fit([place(node)], now))

        for now in (0, 100, 3000):
            self.assertTrue(is_fit(2, now))
            self.roster.fail("node2", "exit code 7", now)
            self.assertEqual(self.roster.reasons["node2"], "exit code 7")
            self.roster.fail("node2", "signal 6", now)  # it has left, and all its ranks end
            self.roster.cleaned("node2", True)
            self.roster.assign(ALL)
        self.assertEqual([is_fit(2, now) for now in (3000, 3599, 3600)], [False, False, True])
        for now in range(4):
            self.roster.fail("node1", "exit code 7", now)
        self.assertTrue(is_fit(1, 5), "its ranks end together")
        self.assertEqual((self.listed(), self.running()), (["node1", "node2", "node3"], ["node2", "node3"]))

    def test_what_is_recorded_are_the_changes_since_the_last_record(self):
        self.assertEqual(self.roster.record(self.roster.running(), {}), ([], []))
        self.answers("node3", "d")
        self.roster.leave("node2", "no route")
        self.roster.leave("node3", roster.DRAINED)
        self.roster.assign([place(1)])
        left = [{"node": "node2", "reason": "no route"}, {"node": "node3", "reason": roster.DRAINED}]
        self.assertEqual([self.roster.record(self.roster.running(), {}) for _ in range(2)], [(left, []), ([], [])])
        self.roster.assign([place(1), place(2)])
        self.assertEqual(self.roster.record(self.roster.running(), {}), ([], []),
                         "it was assigned ranks before that was known")

    def test_a_node_that_is_added_joins_once_it_answers(self):
        self.assertEqual((self.roster.add([place(4)]), self.roster.add([place(4), place(2)])), ([place(4)], []))
        self.assertEqual((self.answers("node4"), self.answers("node4", "r")), (([], []), ([], ["node4"])))
        self.assertEqual(self.roster.come_back([place(4)]), [place(4)])
        self.roster.cleaned("node4", True)
        self.assertEqual((self.listed(), self.running()),
                         (["node1", "node2", "node3", "node4"], ["node1", "node2", "node3"]))

    def test_an_attempt_begins_on_the_nodes_that_are_there(self):
        self.roster.fail("node2", "exit code 7", 0)
        self.roster.begin([place(1), place(3)])
        self.assertEqual(self.roster.states, self.states(node2=roster.LOST))
        self.assertEqual((self.running(), self.roster.assigned, self.roster.failures),
                         (["node1", "node3"], [place(1), place(3)], {}))
        self.assertEqual(self.roster.record(self.roster.running(), {"node2": "refused"}),
                         ([{"node": "node2", "reason": "refused"}], []))
        # where ranks are not kept, it ends as soon as another node can join, or one of them leaves
        self.assertEqual(self.answers("node2", "r"), ([], ["node2"]))
        self.assertEqual(self.answers("node3", *"---"), (["node3"], ["node2"]))

    def test_after_any_sequence_a_node_can_come_back(self):
        events = [lambda one: one.leave("node2", "no answer") if place(2) in one.listed() else None,
                  lambda one: one.leave("node2", roster.DRAINED) if place(2) in one.listed() else None,
                  lambda one: one.fail("node2", "exit code 7", 0), lambda one: one.come_back(one.changes()[1]),
                  lambda one: one.states["node2"] == roster.JOINING and one.cleaned("node2", True),
                  lambda one: one.assign(ALL), lambda one: one.assign([place(1), place(3)])]
        for sequence in itertools.product(events, repeat=5):
            one = roster.Roster(ALL, "node1")
            for event in sequence:
                event(one)
                takes_part = place(2) in one.running()
                self.assertEqual(takes_part, place(2) in one.assigned
                                 and one.states["node2"] in (roster.RUNNING, roster.LEAVING))
                self.assertFalse(takes_part and "node2" in one.gone)
            one.answer("node2", True, False)
            for dirty in one.come_back(one.changes()[1]):
                one.cleaned(dirty["node"], True)
            if one.states["node2"] == roster.JOINING:
                one.cleaned("node2", True)
            one.assign(ALL)
            self.assertEqual(one.states, self.states(), sequence)


def up(slurm=None, now=0, missing=0, is_submitted=True):
    return queue.Up(now, slurm, missing, is_submitted)


def down(slurm=None, missing=0, exists=True, has_result=False, may_come=False):
    return queue.Down(slurm, missing, exists, has_result, may_come)


GONE = queue.MISSING + 1  # rounds
ANSWERED = queue.Answered()


def slurm(meaning, may_return=False, requeues=None, left=30):
    return endings.Ending(meaning, may_return, requeues, left)


class Allocation(unittest.TestCase):
    def test_slurm_is_asked_while_it_may_be_the_reason(self):
        for allocation, expected in ((job.HELD, True), (job.UNANSWERED, True), (job.TAKEN, False),
                                     (job.OUTSIDE, False)):
            self.assertEqual(job.depends_on_slurm(allocation), expected)

    def test_an_allocation_that_is_taken_away_is_the_reason_whatever_asked_first(self):
        for meaning, reason in ((endings.PREEMPTED, job.PREEMPTED), (endings.PREEMPTING, job.PREEMPTED),
                                (endings.TIME_LIMIT, job.TIME_LIMIT), (endings.NODE_LOST, job.NODE_LOST),
                                (endings.OUT_OF_MEMORY, job.MEMORY), (endings.CANCELLED, signal.SIGTERM),
                                (endings.ENDED, signal.SIGTERM), (endings.WAITS, job.REQUEUED)):
            for signals in ([], TERMINATED):
                self.assertEqual(job.follow_slurm(slurm(meaning), signals), (job.TAKEN, [(job.NOTE_REASON, reason)]))
        found = job.follow_slurm(slurm(endings.NODE_LOST, requeues=False), TERMINATED)
        self.assertEqual(found, (job.TAKEN, [(job.NOTE_REASON, job.LOST_FOR_GOOD)]), "within an allocation")
        for requeues, reason in ((True, job.TO_RETURN), (False, job.NOT_TO_RETURN)):
            found = job.follow_slurm(slurm(endings.PREEMPTED, requeues=requeues), TERMINATED)
            self.assertEqual(found, (job.TAKEN, [(job.NOTE_REASON, reason)]))

    def test_every_meaning_has_a_consequence(self):
        meanings = set(endings.STATES.values()) | set(endings.REASONS.values())
        meanings -= {endings.GOES_ON, endings.PREEMPTED}
        self.assertEqual(set(job.REASONS), meanings)
        reasons = set(job.REASONS.values()) - {signal.SIGTERM}
        self.assertEqual(reasons | set(job.OF_SLURM), set(job.FAULTS) - {job.BY_ENGINE})

    def test_slurm_is_not_asked_again_when_hvdctl_has_requested_the_end(self):
        self.assertEqual(job.follow_slurm(slurm(endings.GOES_ON), TERMINATED), (job.OUTSIDE, []))
        self.assertEqual(job.follow_slurm(slurm(endings.GOES_ON), []), (job.HELD, []), "a rank has failed")

    def test_the_signal_before_the_time_limit_says_enough_unless_a_preemption_has_sent_it(self):
        for meaning in (endings.GOES_ON, endings.UNKNOWN, endings.TIME_LIMIT):
            self.assertEqual(job.follow_slurm(slurm(meaning), [job.TIME_LIMIT]), (job.OUTSIDE, []))
        self.assertEqual(job.follow_slurm(slurm(endings.PREEMPTING, requeues=True), [job.TIME_LIMIT]),
                         (job.TAKEN, [(job.NOTE_REASON, job.TO_RETURN)]))

    def test_an_answer_that_is_missing_is_not_known_and_asked_for_again(self):
        unknown = slurm(endings.UNKNOWN)
        self.assertEqual(job.follow_slurm(unknown, TERMINATED), (job.UNANSWERED, [(job.NOTE_REASON, job.NOT_KNOWN)]))
        self.assertEqual(job.follow_slurm(unknown, []), (job.HELD, []), "a rank has failed")
        late = [job.NOT_KNOWN]
        self.assertEqual(job.follow_slurm(slurm(endings.GOES_ON), late),
                         (job.OUTSIDE, [(job.NOTE_REASON, signal.SIGTERM)]), "the user has requested it")
        for meaning, reason in ((endings.PREEMPTED, job.PREEMPTED), (endings.WAITS, job.REQUEUED)):
            self.assertEqual(job.follow_slurm(slurm(meaning), late), (job.TAKEN, [(job.NOTE_REASON, reason)]))


class EndBySlurm(unittest.TestCase):
    """The states after an attempt that Slurm has ended, by its words when the attempt begins to end, and at its end."""
    LIMITS = job.Limits(30, 2, 2, None)

    def follow(self, first, last, *answers, begins=None, ends=None, failed=()):
        """The state after an attempt and its end, and the actions."""
        state, actions = job.decide(job.Running(0), attempt(first, failed=failed, returns=begins), self.LIMITS)
        for observed in (reaped(100, last, code=143, failed=failed, returns=ends),) + answers:
            state, more = job.decide(state, observed, self.LIMITS)
            actions = actions + more
        return state, actions

    def test_what_is_not_known_is_recorded_as_that_and_never_as_stopped(self):
        state, actions = self.follow([job.NOT_KNOWN], [job.NOT_KNOWN])
        self.assertEqual((state.stopped, state.result["reason"]), (False, job.faults.END_NOT_KNOWN))
        self.assertEqual(actions, [(job.END_ATTEMPT, False)])
        # Slurm may still start it again: then it needs its files
        self.assertEqual(self.follow([job.NOT_KNOWN], [job.NOT_KNOWN], begins=99)[1], [(job.END_ATTEMPT, True)])

    def test_an_answer_that_comes_later_counts(self):
        state, actions = self.follow([job.NOT_KNOWN], TERMINATED, begins=99)
        self.assertEqual((state.stopped, state.result.get("reason"), actions),
                         (True, None, [(job.END_ATTEMPT, True), (job.CLEAN,)]))
        state, actions = self.follow([job.NOT_KNOWN], [job.NODE_LOST])
        self.assertEqual((state.stopped, state.result["reason"]), (False, job.faults.NODE_FAILED))
        self.assertEqual(self.follow([job.NOT_KNOWN], [job.REQUEUED], begins=99, ends=200)[1],
                         [(job.END_ATTEMPT, True), (job.LEAVE,)])
        # ranks had failed before, and would start again in an allocation that is gone
        state, actions = self.follow([], [job.TO_RETURN], failed=[143])
        self.assertEqual((state.result["reason"], actions),
                         (job.faults.PREEMPTED_TO_RETURN, [(job.END_ATTEMPT, True), (job.CLEAN,)]))

    def test_a_job_that_is_queued_again_keeps_its_files_and_has_no_result(self):
        state, actions = self.follow([job.REQUEUED], [job.REQUEUED], begins=200, ends=200)
        self.assertEqual(actions, [(job.END_ATTEMPT, True), (job.LEAVE,)])
        self.assertFalse(job.is_hurried([job.REQUEUED]), "nothing is recorded")
        # Slurm starts no step again, and the allocation is gone
        state, actions = self.follow([job.REQUEUED], [job.REQUEUED])
        self.assertEqual((state.stopped, state.result["reason"], actions),
                         (False, job.faults.ALLOCATION_REQUEUED, [(job.END_ATTEMPT, False)]))

    def test_a_job_that_is_preempted_waits_for_what_slurm_decides(self):
        preempted = dict(begins=200, ends=200)
        state, actions = self.follow([job.TO_RETURN], [job.TO_RETURN], job.Answer(150, [job.TO_RETURN], 200),
                                     **preempted)
        self.assertEqual((type(state), actions), (job.Undecided, [(job.END_ATTEMPT, True)]))
        left = job.Answer(160, [job.REQUEUED, signal.SIGTERM], None)
        state, actions = self.follow([job.TO_RETURN], [job.TO_RETURN], left, **preempted)
        self.assertEqual(actions, [(job.END_ATTEMPT, True), (job.LEAVE,)])
        # it is not started again, or Slurm says nothing for too long
        for last in (job.Answer(160, [job.TO_RETURN], None), job.Answer(201, [job.TO_RETURN], 300)):
            state, actions = self.follow([job.TO_RETURN], [job.TO_RETURN], last, **preempted)
            self.assertEqual((state.stopped, state.result["reason"], actions),
                             (False, job.faults.PREEMPTED_TO_RETURN, [(job.END_ATTEMPT, True), (job.CLEAN,)]))
        # Slurm is silent, and kills this program soon: it may still start the job again, which needs its files
        state, actions = self.follow([job.TO_RETURN], [job.TO_RETURN], job.Answer(160, [job.NOT_KNOWN], None),
                                     **preempted)
        self.assertEqual((state.result["reason"], actions), (job.faults.PREEMPTED_TO_RETURN, [(job.END_ATTEMPT, True)]))

    def test_ranks_have_the_time_that_slurm_gives(self):
        limits = job.Limits(30, 2, 0, None)
        for signals in ([job.TO_RETURN], [job.NOT_KNOWN], [job.REQUEUED], [job.NODE_LOST], TERMINATED):
            self.assertEqual(job.grace_period(signals, False, limits, 17), 17)
            self.assertEqual(job.grace_period(signals + TERMINATED, False, limits, 17), 0)
        self.assertEqual(job.grace_period([job.PREEMPTED], False, limits), 2, "the cluster's queue")


class Queue(unittest.TestCase):
    def after(self, *observations, state=queue.Prepared()):
        """The name of the state after these observations, and the actions of each."""
        all_actions = []
        for observation in observations:
            state, actions = queue.decide(state, observation)
            all_actions.append(actions)
        return type(state).__name__, all_actions

    def test_a_launcher_goes_on_when_the_job_has_its_nodes(self):
        state, actions = self.after(up("PENDING"), up("CONFIGURING"), up("RUNNING"), ANSWERED, up("RUNNING"),
                                    up("SUSPENDED"))
        self.assertEqual((state, actions), ("Begun", [[], [], [(queue.PLACE,)], [], [], []]))
        # not placed yet: Slurm did not answer
        self.assertEqual(self.after(up("RUNNING"), up("RUNNING")), ("Waiting", [[(queue.PLACE,)]] * 2))

    def test_a_job_that_leaves_the_queue_ends_for_the_reason_that_slurm_has(self):
        observed = [up("PENDING"), up(missing=queue.MISSING), up(missing=GONE), queue.Reported("TIMEOUT", "a reason"),
                    ANSWERED]
        state, actions = self.after(*observed)
        self.assertEqual((state, actions), ("Begun", [[], [], [(queue.INQUIRE,)],
                                                      [(queue.ANSWER, "TIMEOUT", "a reason")], []]))
        # a prolog may have put it into the queue again
        self.assertEqual(self.after(*[up("COMPLETING")] * 9), ("Waiting", [[]] * 9))

    def test_a_job_that_slurm_has_lost_or_never_had_is_submitted(self):
        state, actions = self.after(up(missing=GONE), queue.Reported("", ""), up(missing=1), up("PENDING"))
        self.assertEqual((state, actions), ("Waiting", [[(queue.INQUIRE,)], [(queue.SUBMIT,)], [], []]))
        late = queue.UNSUBMITTED + 8
        observed = [up(now=now, missing=GONE, is_submitted=False) for now in (7, late - 1, late)]
        self.assertEqual(self.after(*observed), ("Waiting", [[], [], [(queue.SUBMIT,)]]))
        # Slurm refuses it
        self.assertEqual(self.after(*observed + [ANSWERED])[0], "Begun")

    def test_a_launcher_is_asked_once_when_its_nodes_are_lost(self):
        for lost in (up("COMPLETING"), up("FAILED"), up(missing=GONE)):
            for end, state in (("TIMEOUT", "TIMEOUT"), ("", queue.NODE_FAIL)):
                found = self.after(lost, lost, queue.Reported(end, ""), lost, lost, state=queue.Begun())
                self.assertEqual(found, ("Asked", [[(queue.INQUIRE,)]] * 2 + [[(queue.END_LAUNCHER, state)], [], []]))
        self.assertEqual(self.after(up(missing=queue.MISSING), state=queue.Begun()), ("Begun", [[]]))
        # it has lost a node
        found = self.after(up("PENDING"), up("PENDING"), state=queue.Begun())
        self.assertEqual(found, ("Asked", [[(queue.END_LAUNCHER, queue.NODE_FAIL), (queue.CANCEL,)],
                                           [(queue.CANCEL,)]]))

    def test_the_allocation_of_a_launcher_that_has_ended_is_ended(self):
        for state in (queue.Begun(), queue.Asked()):
            running = [down("RUNNING", has_result=True)] * (queue.SIGNALS + 2)
            found, actions = self.after(*running, down("COMPLETING"), down(missing=1), down(missing=GONE), state=state)
            self.assertEqual(actions[:-3], [[(queue.SIGNAL,)]] * queue.SIGNALS + [[(queue.CANCEL,)]] * 2)
            self.assertEqual((found, actions[-3:]), ("Ending", [[], [], [(queue.FORGET,)]]))
            self.assertEqual(self.after(down("PENDING"), state=state)[1], [[(queue.CANCEL,)]])

    def test_a_launcher_that_waited_is_started_again_and_one_that_was_removed_is_recorded(self):
        for before in ([], [up("PENDING")]):
            for slurm in ("PENDING", "RUNNING", "COMPLETING"):
                self.assertEqual(self.after(*before + [down(slurm)])[1][-1], [(queue.START,)])
                cancel = {"PENDING": [(queue.CANCEL,)], "RUNNING": [(queue.SIGNAL,)], "COMPLETING": []}[slurm]
                for gone in ({"exists": False}, {"has_result": True}):
                    self.assertEqual(self.after(*before + [down(slurm, **gone)])[1][-1], cancel)
            removed = [down(missing=GONE, exists=False), down(missing=GONE, exists=False, has_result=True)]
            self.assertEqual(self.after(*before + removed)[1][-2:],
                             [[(queue.RECORD_REMOVAL,), (queue.FORGET,)], [(queue.FORGET,)]])
        self.assertEqual(self.after(down("RUNNING"), state=queue.Begun())[1], [[(queue.SIGNAL,)]],
                         "it has had its answer")
        self.assertEqual(self.after(down(missing=GONE, exists=False), state=queue.Begun())[1], [[(queue.FORGET,)]])

    def test_a_job_that_hvdctl_is_about_to_start_is_left_alone(self):
        for slurm in (None, "PENDING", "RUNNING"):
            observed = down(slurm, missing=GONE, exists=False, may_come=True)
            self.assertEqual(self.after(observed, observed), ("Prepared", [[], []]))
        self.assertEqual(self.after(up(), down(missing=GONE, exists=False, may_come=True))[1][-1][-1], (queue.FORGET,),
                         "it was started")
        self.assertEqual(self.after(down("PENDING", has_result=True, may_come=True))[1], [[(queue.CANCEL,)]])

    def test_after_any_sequence_a_launcher_is_asked_at_most_once_and_an_ended_job_forgotten(self):
        slurms = [None, "PENDING", "RUNNING", "COMPLETING"]
        observed = [up(slurm, missing=GONE * (slurm is None)) for slurm in slurms]
        observed += [down(slurm, GONE * (slurm is None), exists) for slurm in slurms for exists in (True, False)]
        # what follows an action
        follow = {queue.PLACE: ANSWERED, queue.ANSWER: ANSWERED, queue.INQUIRE: queue.Reported("CANCELLED", "")}

        def perform(state, observation):
            state, actions = queue.decide(state, observation)
            done = list(actions)
            for name, *_ in actions:
                if name in follow:
                    state, more = perform(state, follow[name])
                    done += more
            return state, done

        for sequence in itertools.product(observed, repeat=4):
            state, done = queue.Prepared(), []
            for observation in sequence:
                state, actions = perform(state, observation)
                done += actions
            self.assertLessEqual(sum(name == queue.END_LAUNCHER for name, *_ in done), 1, sequence)
            self.assertLessEqual(sum(name == queue.ANSWER for name, *_ in done), 1, sequence)
            self.assertEqual(perform(state, down(missing=GONE, exists=False, has_result=True))[1], [(queue.FORGET,)],
                             sequence)


if __name__ == "__main__":
    unittest.main()
