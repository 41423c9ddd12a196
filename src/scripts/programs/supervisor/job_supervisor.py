"""The job supervisor, the main process of hmaster. It starts the launcher and logs its output on this node. When the
launcher has ended, a rank has failed, or the end is requested (SIGTERM; a second one: no grace period), it ends what is
left of the job on every node and records the result. So a job needs neither a terminal nor the operator's machine to
end.

Under a site's Slurm it is the batch job, with the number of ranks as argument, and allocation.py begins the job there
before anything else. Signals of people reach the ranks (relay.py), and one that they have asked for comes some time
before the end of the allocation.

If the engine stops hmaster (SIGUSR1: `docker stop`, the end of the engine or of the machine), the end was not requested
through hvdctl, and the job has failed.

A failed job is restarted if that was requested, on the nodes that answer; attempts.json has the failed attempts. An
elastic job is restarted whenever a node leaves or joins (membership.py), unless its launcher keeps the ranks that are
left (in_place.py); members.json has its nodes and those changes. joining.json has nodes that `hvdctl up` adds to it.

A job with roles has a launcher for each of them (launchers.py).

job_state.py decides what is done about the job; this file observes it and acts, attempt.py has one start of its
launcher. launch.json in its directory describes what to start and how (launch/description.rs). This program knows no
launcher by name."""
import contextlib
import json
import os
import signal
import sys
import threading
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
import allocation  # noqa: E402
import endings  # noqa: E402
import faults  # noqa: E402
import files  # noqa: E402
import frames  # noqa: E402
import hold  # noqa: E402
import hosts  # noqa: E402
import in_place  # noqa: E402
import job_state  # noqa: E402
import launchers  # noqa: E402
import membership  # noqa: E402
import outside  # noqa: E402
import processes  # noqa: E402
import reap  # noqa: E402
import reaping  # noqa: E402
import relay  # noqa: E402
import result  # noqa: E402
import roster  # noqa: E402
import workers  # noqa: E402
from attempt import (  # noqa: E402
    MOST_EVENT, Attempt, Launcher, StartCheck, of_this_node, outcome, without_places, without_words)

HERE = os.path.dirname(os.path.abspath(__file__))
RECONNECT = 20  # seconds after which a broken connection is opened again; 5 s beyond `keep_alive` if that is less
WITH_WORDS = 5  # failed attempts of which attempts.json has what the ranks have said


class JobSupervisor:
    """A job from its first attempt to its result."""
    allocation, has_roles = job_state.OUTSIDE, False

    def __init__(self, launch):
        self.launch, self.children = launch, processes.Children()
        self.has_roles = bool(launch.get("roles"))
        self.hold, self.last_signal = hold.Hold(launch), None
        self.signals = []  # that requested the end of this job, in order
        requests = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
        for number in requests if launch.get("slurm") else requests + [job_state.BY_ENGINE]:
            signal.signal(number, lambda number, _frame: self.take_signal(number))
        if launch.get("slurm"):
            signal.signal(job_state.TIME_LIMIT, lambda *_: self.note_limit())
        if launch.get("slurm") or launch.get("queued"):
            self.allocation = job_state.HELD
        self.log, self.nodes = frames.Log(HERE), workers.Workers(launch, self.children)
        here = {name: launch[name] for name in ("node", "address", "ranks")}
        self.roster = roster.Roster([place for place in [here] + launch["workers"] if place["ranks"]], launch["node"])
        self.state = job_state.Running(failures=0)
        self.attempt = None  # the current one
        # how often the launcher was started
        begun = self.hold.begun
        self.starts = begun.restarts if begun and begun.restarts and not begun.is_step else 0
        self.attempts = []  # the results of those that failed
        self.outside = []  # files that are outside the mounts
        self.reasons = {}  # why nodes have left an elastic job, as far as that is known
        self.silent = []  # nodes that roles need and that did not answer before this attempt
        self.losses = []  # when a launcher that kept the ranks has ended by itself
        self.is_recorded = False
        elastic = launch["elastic"]
        self.membership = membership.Membership(self.roster, self.nodes) if elastic else None
        limits = job_state.Elastic(elastic["min_ranks"], elastic["timeout"]) if elastic else None
        self.limits = job_state.Limits(launch["grace"], reap.AFTER_FAILURE, launch["restarts"], limits)
        self.changes = []  # of its nodes so far
        self.relay = relay.Relay(launch["node"], lambda: self.roster.assigned, self.nodes, self.children,
                                 self.hold.notice)
        self.warning = launch.get("warning")  # the signal that is still to come before the end

    def write_names(self):
        """Writes the nodes' names to /etc/hosts here; hvdctl itself has written them to the workers'."""
        try:
            hosts.write(self.launch["names"])
        except OSError as error:
            lines = frames.Lines(self.log, b"l")
            text = "cannot write the nodes' names to %s: %s\n" % (hosts.PATH, error.strerror)
            lines.take(text.encode(errors="replace"))
            lines.end()

    def note_limit(self):
        """Requests the end of the job, or lets its ranks have their signal first: Slurm sends one at that time."""
        if self.is_repeated(job_state.TIME_LIMIT):
            return
        warning, self.warning = self.warning, None
        if not warning:
            self.signals.append(job_state.TIME_LIMIT)
            return

        def warn():
            self.relay.send(warning["signal"])
            time.sleep(warning["seconds"])
            self.last_signal = None
            os.kill(os.getpid(), job_state.TIME_LIMIT)

        threading.Thread(target=warn, daemon=True).start()

    def run(self):
        """Runs the job and returns the exit code of this process."""
        if self.launch.get("slurm"):
            self.relay.begin()
        self.write_names()
        if self.membership:
            self.write_members()
        self.start()
        observe = {job_state.Running: self.observe_attempt, job_state.Ending: self.observe_end,
                   job_state.Pausing: self.observe_pause,
                   job_state.Regrouping: self.observe_nodes, job_state.Starting: self.observe_requests,
                   job_state.Undecided: self.observe_decision}
        perform = {job_state.START: self.start, job_state.END_ATTEMPT: self.end_attempt, job_state.CLEAN: self.clean,
                   job_state.RECORD_ATTEMPT: self.record_attempt, job_state.CHOOSE_NODES: self.choose_nodes,
                   job_state.RECORD_CHANGE: self.record_change, job_state.RECORD_LOSS: self.record_loss,
                   job_state.LEAVE: self.leave}
        while not isinstance(self.state, job_state.Ended):
            if self.signals:
                self.follow_allocation()
            self.state, actions = job_state.decide(self.state, observe[type(self.state)](), self.limits)
            if isinstance(self.state, job_state.Ended) and job_state.is_hurried(self.signals):
                # what is left to do may take longer than there is time before this process is killed
                try:
                    self.record(*self.state)
                except OSError:
                    pass  # the disk may be full: what is left is cleaned up first, which makes room
            for action, *arguments in actions:
                perform[action](*arguments)
        return self.finish(*self.state)

    def is_repeated(self, number):
        """Returns whether a signal has just come already: Slurm sends some twice, which is one request."""
        now, last = time.monotonic(), self.last_signal
        self.last_signal = number, now
        return self.hold.begun and last and last[0] == number and now < last[1] + hold.BURST

    def take_signal(self, number):
        """Notes a signal that requests the end."""
        if not self.is_repeated(number):
            self.signals.append(number)

    def follow_allocation(self):
        """When the job is asked to end, or ranks have failed, finds out whether that is because Slurm takes the
        allocation away."""
        if self.allocation == job_state.HELD:
            self.ask_slurm()

    def await_answer(self):
        """Asks Slurm again for an answer that is missing, as long as there is time."""
        while job_state.depends_on_slurm(self.allocation) and self.hold.is_awaited(bool(self.signals)):
            time.sleep(hold.PAUSE)
            self.ask_slurm()

    def ask_slurm(self):
        self.allocation, actions = job_state.follow_slurm(self.hold.ask(), self.signals)
        for _, reason in actions:
            self.note_reason(reason)

    def returns(self):
        """Returns until when Slurm may start the job again, by the monotonic clock; None if it does not."""
        ending = self.hold.ending
        if not ending or ending.may_return:
            return self.hold.decides_until() if ending else None
        is_unknown = ending.meaning == endings.UNKNOWN and self.allocation == job_state.UNANSWERED
        return time.monotonic() if is_unknown and self.launch["restarts"] and not self.hold.begun.is_step else None

    def leave(self):
        allocation.forget_ranks()
        self.nodes.disconnect_all()
        os._exit(128 + signal.SIGTERM)

    def note_reason(self, reason):
        self.signals[:1] = [reason]

    def ranks(self):
        """The number of ranks of the current attempt."""
        return roster.ranks(self.roster.assigned)

    def record(self, outcome, stopped):
        """Records the result, once: room on the disk was reserved for one."""
        if not self.is_recorded:
            outcome = dict(outcome, outside=self.outside)
            fault, launcher = outcome.pop("reason", None), outcome.pop("launcher")
            result.write(files.write, self.launch["format"], self.ranks(), fault, stopped, launcher, **outcome)
        self.is_recorded = True

    def finish(self, outcome, stopped):
        """Ends what is left, and records the result. Returns the exit code of this process."""
        if self.launch["own_workers"]:
            self.nodes.end_all()
        self.record(outcome, stopped)
        if not job_state.is_open(self.signals):
            # a rank that waits in the kernel may keep this container alive; do not wait for it
            self.log.write(b"d", [b""])
            if self.launch.get("slurm"):
                allocation.remove_secrets()
        self.relay.end()
        self.nodes.disconnect_all()
        return job_state.exit_code(outcome, stopped, self.ranks())

    def start(self):
        """Starts the launcher."""
        places = self.roster.recorded = self.roster.assigned
        elastic = self.launch["elastic"]
        driver = in_place.Driver(self.roster, self.nodes) if elastic and elastic["in_place"] else None
        of = launchers.Launchers if self.has_roles else Launcher
        self.attempt = Attempt(of(self.launch, self.log, self.children, self.nodes), driver)
        self.nodes.connect()
        if self.has_roles:
            self.attempt.launcher.silent = self.silent
        self.attempt.launcher.start(places, self.starts)
        self.attempt.check, self.attempt.connected = StartCheck(self.launch, self.nodes, places), time.monotonic()
        if self.has_roles:
            self.attempt.check = self.attempt.launcher  # some begin later
        self.starts += 1

    def observe_attempt(self):
        attempt = self.attempt
        launcher = attempt.launcher
        if launcher.code is None and not (self.signals or launcher.failures or launcher.stopping):
            self.follow_launcher()
        self.follow_stops()
        self.follow_failures()
        self.follow_missing()
        if self.signals or attempt.launcher.code or attempt.failed or self.hold.is_noticed:
            self.follow_allocation()
        missing = ", ".join(attempt.check.missing.values())
        fault = faults.not_started(self.launch["start_timeout"], missing) if missing else attempt.launcher.fault
        if attempt.stopping:
            fault = faults.worker_stopped(attempt.stopping[0])
        waited = attempt.driver.waited() if attempt.driver else 0
        if self.allocation in (job_state.TAKEN, job_state.UNANSWERED):
            return job_state.Attempt(self.signals[:], None, [], False, None, 0, self.returns())
        return job_state.Attempt(self.signals[:], attempt.launcher.code, attempt.failed[:], attempt.changed, fault,
                                 waited, None)

    def follow_launcher(self):
        """Waits a moment for the launcher, and checks its ranks and nodes: it would wait forever for ranks that never
        start."""
        self.attempt.launcher.listen(0.2)
        if time.monotonic() > self.attempt.connected + min(self.launch["keep_alive"] + 5, RECONNECT):
            self.nodes.connect()
            self.attempt.connected = time.monotonic()
        # the main process of a container inherits every orphan
        self.children.reap_orphans()
        if self.attempt.launcher.poll() is not None:
            return
        if self.membership:
            self.add_nodes()
            self.follow_nodes()
        if not self.attempt.changed:
            self.attempt.check.query()

    def follow_nodes(self):
        """Lets the driver use the nodes that can take part. Without one that keeps the ranks, a change ends the
        attempt."""
        self.membership.query()
        driver = self.attempt.driver
        if driver:
            driver.read()
        if not self.attempt.keeps_ranks():
            self.attempt.changed = any(self.roster.changes())
            return
        is_new = driver.follow(self.attempt.launcher.processes, self.launch["grace"])
        running = self.roster.running()
        is_short = roster.ranks(running) < self.limits.elastic.min_ranks
        has_changed = driver.note_shortage(is_short)
        if running != self.roster.recorded:
            self.record_change({}, self.limits.elastic.timeout if is_short else 0, running)
        if is_new or has_changed:
            driver.send_worlds(running, self.starts - 1)
        if is_new:
            self.attempt.check = StartCheck(self.launch, self.nodes, running, driver.assigned)
        self.attempt.check.forget_others(running)

    def follow_stops(self):
        """A worker that is stopping ends the attempt, with the grace period for all ranks, unless the job can continue
        without its node."""
        attempt = self.attempt
        while attempt.launcher.stopping:
            rank, address = attempt.launcher.stopping.pop(0)
            # not every launcher tells ranks the address
            node = next((place["node"] for place in self.roster.places if place["address"] == address),
                        roster.node_of(rank, self.roster.assigned))
            if node in (None, self.launch["node"]):
                # a program of the user has written it: the launcher's node needs no worker
                continue
            if attempt.keeps_ranks():
                attempt.driver.leave(node, roster.STOPPED)
            elif self.limits.elastic:
                self.reasons[node], attempt.changed = roster.STOPPED, True
            else:
                attempt.stopping.append(node)

    def follow_failures(self):
        """A rank that failed ends the attempt, unless the driver replaces it."""
        attempt = self.attempt
        while attempt.launcher.failures:
            code, address = attempt.launcher.failures.pop(0)
            node = next((place["node"] for place in self.roster.places if place["address"] == address), None)
            if not (node and self.replaces(node, "a rank there ended with exit code %d" % code)):
                attempt.failed.append(code)

    def follow_missing(self):
        """Ranks that have not started end the attempt, unless the driver can continue without their node."""
        check, launcher = self.attempt.check, self.attempt.launcher
        reason = "not all of its ranks had started within %d s" % self.launch["start_timeout"]
        for place in [place for place in self.roster.places if place["node"] in check.missing]:
            if place["node"] != self.launch["node"] and self.replaces(place["node"], reason):
                # the driver would wait for what does not start
                self.attempt.driver.disconnect(launcher.processes, place)
                check.missing.pop(place["node"], None)

    def replaces(self, node, reason):
        """Returns whether the job goes on in place when ranks of a node have failed: not if it has failed too often and
        is the launcher's, which the driver always uses, or if there are too few ranks without it."""
        driver = self.attempt.driver
        if not self.attempt.keeps_ranks():
            return False
        self.roster.forget(node)
        driver.fail(node, reason)
        fit = self.roster.fit(self.roster.places, time.monotonic())
        is_home_fit = all(place in fit for place in self.roster.places if place["node"] == self.roster.home)
        return is_home_fit and roster.ranks(fit) >= self.limits.elastic.min_ranks

    def end_attempt(self, again):
        """Ends what is left of an attempt. `again`: whether there may be another one."""
        driver = self.attempt.driver
        # the ranks first, while the launcher still runs: its end takes their connections away
        report, given, began = workers.Report(), self.given(), time.monotonic()
        self.reap_everywhere(report, again)
        if given:
            self.await_launcher(began + given)
        self.attempt.launcher.end()
        reap.rest()
        self.attempt.launcher.close()
        if driver:
            driver.close()
        report.ends[self.launch["node"]] = dict(reap.states(), ahead=0.0)
        reap.forget(again)
        # a node that was lost since the driver assigned its ranks is known to be silent
        since = driver.assigned if driver else 0
        self.attempt.outcome = outcome(report, self.roster.assigned, self.launch["node"],
                                       self.attempt.launcher.since if self.has_roles else lambda _: since)
        if self.has_roles:
            self.attempt.launcher.add_to(self.attempt.outcome)
        error = driver and driver.error()
        if error:
            self.attempt.outcome["reason"] = faults.of_driver(error)

    def given(self):
        """The seconds that ranks have before Slurm kills them; None if it does not."""
        is_taken = self.allocation in (job_state.TAKEN, job_state.UNANSWERED)
        return self.hold.grace(self.limits.grace) if is_taken else None

    def await_launcher(self, until):
        """Lets ranks of other nodes use their grace period, too: Slurm has asked them to end, starts no more steps that
        could do so, and ends those of ranks with their launcher."""
        processes = self.attempt.launcher.processes if self.launch["workers"] else []
        while time.monotonic() < until and not job_state.is_urgent(self.signals):
            if all(process.poll() is not None for process in processes) or self.have_others_ended():
                return
            self.attempt.launcher.listen(0.05)

    def have_others_ended(self):
        """Returns whether the ranks of the other nodes have ended, by what they record in the directory that all nodes
        of an allocation share."""
        others = [place for place in self.roster.assigned if place["node"] != self.launch["node"]]
        with contextlib.suppress(OSError):
            return all(reap.ends_in(allocation.node_directory(place["node"])) >= place["ranks"] for place in others)
        return False

    def observe_end(self):
        attempt = self.attempt
        if not attempt.keeps_ranks():
            self.follow_failures()
        self.await_answer()
        if self.allocation == job_state.TAKEN:
            attempt.outcome.update(silent=[], silence={})
        pause = job_state.pause_before(len(self.attempts) + 1, self.launch["restart_pause"])
        is_frequent = roster.are_too_many(self.losses, time.monotonic())
        kept = attempt.keeps_ranks() and not is_frequent and "reason" not in attempt.outcome
        returns = self.returns() if self.allocation == job_state.TAKEN else None
        return job_state.Reaped(time.monotonic(), self.signals[:], attempt.launcher.code, attempt.failed[:],
                                attempt.outcome, self.ranks(), pause, kept, returns)

    def observe_decision(self):
        """Asks what Slurm does to a job that it preempts."""
        time.sleep(hold.PAUSE)
        self.ask_slurm()
        # before the end of the grace time nothing is lost by waiting
        is_silent = self.hold.ending.meaning == endings.UNKNOWN
        is_open = self.hold.ending.may_return or is_silent and (len(self.signals) == 1 or self.hold.is_awaited(True))
        return job_state.Answer(time.monotonic(), self.signals[:], time.monotonic() if is_open else None)

    def observe_requests(self):
        if self.signals:
            self.await_answer()
        return job_state.Request(self.signals[:]) if self.signals else job_state.Tick(time.monotonic())

    def observe_pause(self):
        if not self.signals:
            self.add_nodes()
            time.sleep(0.05)
        return self.observe_requests()

    def observe_nodes(self):
        """Uses the nodes of an elastic job that can take part."""
        if self.state.waits:
            time.sleep(0.5)
        if self.signals:
            return self.observe_requests()
        self.add_nodes()
        present = {self.launch["node"]}
        # a query that failed on this node, as it has no memory for one, says nothing of the others
        while not self.query_nodes(present) and time.monotonic() <= self.state.until:
            time.sleep(0.5)
        if self.signals:
            return self.observe_requests()
        self.roster.begin([place for place in self.roster.places if place["node"] in present])
        silent = [node for node in roster.nodes(self.roster.those(roster.LOST)) if node not in self.roster.drained]
        return job_state.Present(time.monotonic(), self.signals[:], self.ranks(), silent)

    def query_nodes(self, present):
        """Adds the nodes that can take part. Returns whether it could query them, or is to end."""
        answers = []
        query = threading.Thread(target=lambda: answers.append(self.membership.present()), daemon=True)
        query.start()
        # a node that does not answer takes long: an engine that stops this container does not wait for that
        while query.is_alive() and not self.signals:
            query.join(0.05)
        present.update(*answers)
        return bool(answers or self.signals)

    def reap_everywhere(self, report, again):
        """Ends the ranks of all nodes at once. If there is no other attempt, notes which files are outside the
        mounts."""
        urgent = job_state.is_urgent(self.signals)
        attempt = self.attempt
        # 0: the roles that end the job have ended, and nothing has failed
        serves = attempt.launcher.code == 0 and attempt.launcher.served
        has_time = attempt.changed or bool(attempt.stopping or serves)
        ends = self.start_reaping(job_state.grace_period(self.signals, has_time, self.limits, self.given()), report,
                                  again)
        while not ends.has_ended():
            if job_state.is_urgent(self.signals) and not urgent:
                urgent = True
                ends.finish()
                ends = self.start_reaping(0, report, again)
        ends.finish()
        ends.join()
        if not again:
            # what has stopped this process may not wait for long
            is_container = "HVDCTL_PROCESS" not in os.environ
            here = outside.UNSEEN if is_container and job_state.is_hurried(self.signals) else outside.record()
            self.outside = outside.of_nodes(dict(report.outside, **{self.launch["node"]: here}))

    def start_reaping(self, grace, report, again):
        """Begins to end the ranks of all nodes."""
        failed = bool(self.attempt.failed or self.attempt.launcher.code)
        # nodes that had left before this attempt are waited for only at the end of the job
        reached = [worker for worker in self.launch["workers"] if not again or worker in self.roster.assigned]
        return reaping.Reaping(self.nodes, reached, grace, failed, report=report, again=again)

    def record_attempt(self, outcome, pause):
        """Records an attempt that failed."""
        self.attempt.is_recorded = True
        outcome = without_places(outcome)
        # readers of the list of jobs skip a file that is too large (job/list.sh)
        recorded = outcome if len(self.attempts) < WITH_WORDS else without_words(outcome)
        self.attempts.append(dict(recorded, started=self.attempt.started, ended=time.time(), ranks=self.ranks()))
        try:
            files.write_json("attempts.json", self.attempts)
        except OSError:
            pass  # a full disk is no reason to give up
        shares = [{"node": place["node"], "ranks": place["ranks"]} for place in self.roster.assigned]
        number = len(self.attempts) + 1
        self.note({"failed": without_words(outcome, MOST_EVENT), "shares": shares, "attempt": number,
                   "attempts": self.launch["restarts"] + 1, "pause": pause})

    def clean(self):
        """Removes what was kept for another attempt, on all nodes."""
        self.reap_everywhere(workers.Report(), False)
        reap.forget(False)

    def add_nodes(self):
        """Adds the nodes that joined an elastic job to its workers."""
        self.launch["workers"].extend(self.membership.added() if self.membership else [])

    def choose_nodes(self):
        """Uses the nodes that answer, or all if none would be left. Roles keep their numbers of ranks, and so need all
        of their nodes."""
        answering = self.nodes.answering(self.launch["workers"]) | {self.launch["node"]}
        if self.has_roles:
            self.silent = [node for node in roster.nodes(self.roster.assigned) if node not in answering]
            return
        self.roster.begin([place for place in self.roster.places if place["node"] in answering] or self.roster.places)
        gone = roster.nodes(self.roster.those(roster.LOST))
        if gone:
            self.note({"gone": gone, "ranks": self.ranks()})

    def record_loss(self, code):
        """Logs that a launcher that was to keep the ranks has ended by itself."""
        self.losses.append(time.monotonic())
        self.note({"lost_driver": code})

    def record_change(self, reasons, waits, kept=None):
        """Logs which nodes left and joined. `waits`: for how many seconds the job waits for others, if they are too
        few; `kept`: where ranks take part, if the other ones are kept."""
        reasons, self.reasons = dict(self.reasons, **reasons), {}
        left, joined = self.roster.record(self.roster.running() if kept is None else kept, reasons)
        if self.attempt.is_recorded and not (left or joined or waits):
            return
        change = {"left": left, "joined": joined, "ranks": roster.ranks(self.roster.recorded),
                  "wanted": roster.ranks(self.roster.places), "waits": waits, "kept": kept is not None}
        self.note(change)
        self.changes.append(dict(change, time=time.time()))
        self.write_members()

    def write_members(self):
        members = [{"node": place["node"], "ranks": place["ranks"]} for place in self.roster.recorded]
        try:
            files.write_json("members.json", {"members": members, "changes": self.changes})
        except OSError:
            pass  # a full disk is no reason to give up

    def note(self, event):
        """Logs an event of a restart (record/restart.rs)."""
        self.log.write(b"r", [json.dumps(event).encode()])


def main(ranks=None):
    if ranks is not None and not allocation.begin(int(ranks)):
        return 0
    launch = files.load("launch.json")
    os.environ["HVDCTL_KEEP_ALIVE"] = str(launch["keep_alive"])  # programs/ssh.sh reads it
    processes.raise_open_files()  # a launcher has several for each rank
    supervisor = JobSupervisor(launch)
    of_process = {name: os.environ[name] for name in of_this_node(launch) if name in os.environ}
    try:
        if of_process:
            files.write_json("process.json", of_process)
        with files.create(result.NAME) as file:
            frames.reserve(file.fileno())
    except OSError:
        pass
    code = supervisor.run()
    if launch.get("slurm") and not job_state.is_open(supervisor.signals):
        allocation.note_end()
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
