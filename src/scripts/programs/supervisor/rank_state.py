"""The decisions of the supervisor of one rank as a state machine: an observation comes in, a new state and
actions come out. It knows no clock, no process and no node; rank_supervisor.py makes the observations and performs the
actions. Times are in seconds by one clock. A state belongs to one start of a program, not to a job or to a rank's
number."""
import collections
import signal

UNKILLABLE = 5  # seconds after which a killed program counts as ended although it still waits in the kernel
TRAPPED = 1  # second after which a shell that still runs after SIGTERM has a trap, and waits for its program first
MIN_STOPPED = 3  # seconds that a program must have been stopped to count as the cause when other ranks give up
MIN_QUIET = 5  # seconds without progress that are reported when a rank is asked to end: others may have waited for it
BUSY = 0.03  # of a core: a program that uses less, and writes nothing, may be waiting
ASKED_BY_REAPER = 20  # seconds beyond the grace period for which a shim then stays

# Why a program was asked for its end. Only an end for REQUEST is no failure of this rank's own.
REQUEST = "request"  # a signal, or the launcher is gone
IDLE = "idle"  # it has waited for other ranks for too long
TOO_LATE = "too late"  # it was requested, but the program had exited before

# The limits in seconds: the grace period; that without progress (None: no limit); that for a stopped program (0: no
# limit).
Limits = collections.namedtuple("Limits", "grace idle stall")

# The states. `hung`: for how many seconds the program was stopped, if that is why it ends, or others did; else None.
Running = collections.namedtuple("Running", "hung")
# It was asked for its end. `trap`: when what keeps a shell from its trap is asked too; None once it was.
Asked = collections.namedtuple("Asked", "since why trap hung")
# It has exited after that, and what is left of its process group gets the rest of the grace period.
Exited = collections.namedtuple("Exited", "since why code hung")
# `code` as Popen has it (negative: a signal); `asked`: whether it ended because it was asked to, and not by a failure
# of its own.
Ended = collections.namedtuple("Ended", "code asked hung")

# The observations. `exited`: whether it has exited, although its exit has not been observed yet; `stopped` and `quiet`:
# for how many seconds it has been stopped, and has made no progress.
# A request of the end, by a signal or because the launcher is gone. `unused`: for how many seconds it has made no
# progress, or hardly used a processor.
Request = collections.namedtuple("Request", "now exited stopped quiet unused")
Sample = collections.namedtuple("Sample", "now exited stopped quiet")  # of what its processes do, once a second
Exit = collections.namedtuple("Exit", "code")
Group = collections.namedtuple("Group", "now alive")  # whether its process group still has processes
Tick = collections.namedtuple("Tick", "now")

# The actions, which are performed in this order: each a name with its arguments.
REPORT_IDLE = "report idle"  # for how many seconds it has made no progress
REPORT_QUIET = "report quiet"  # the same when it is asked to end, with what it does
TERMINATE = "terminate"  # sends SIGTERM to the program, and notes what keeps a shell from its trap
TERMINATE_AWAITED = "terminate awaited"  # sends SIGTERM to that
SIGNAL_GROUP = "signal group"  # sends a signal to its process group


def ask(state, why, observed, limits):
    """Asks for the end and begins the grace period."""
    actions, hung = [], state.hung
    # others may have given up waiting for it before its own time was over
    if hung is None and observed.stopped >= MIN_STOPPED:
        hung = observed.stopped
    if not observed.exited:
        # only the program: it ends its own children (such as data loaders) before or after a last checkpoint
        actions.append((TERMINATE,))
        if hung is None and why == REQUEST and limits.idle and observed.quiet > limits.idle / 2:
            # its output of the last seconds may be about the failure that ends it
            actions.insert(0, (REPORT_IDLE, observed.quiet))
        if why == REQUEST and observed.unused >= MIN_QUIET:
            # what the program does is gone with it
            actions.insert(0, (REPORT_QUIET, observed.unused))
    elif why == REQUEST:
        why = TOO_LATE
    # a stopped process handles no other signal
    actions.append((SIGNAL_GROUP, signal.SIGCONT))
    return Asked(observed.now, why, observed.now + min(TRAPPED, limits.grace / 2), hung), actions


def end(code, why, hung):
    # it exited with 0 after its checkpoint, but the launcher must not take that for success while others run
    return Ended(128 + signal.SIGTERM if why == IDLE and code == 0 else code, why == REQUEST, hung)


def request(state, observed, limits):
    return ask(state, REQUEST, observed, limits)


def fail(state, observed, _limits):
    return end(observed.code, None, state.hung), []


def check_progress(state, observed, limits):
    actions = []
    # other ranks wait for a stopped process in silence, and the library's own check is only made between two rounds
    # with all ranks; 0, the default: a debugger may have stopped it, so that is only reported
    if 0 < limits.stall <= observed.stopped:
        state = Running(observed.stopped)
        actions.append((SIGNAL_GROUP, signal.SIGKILL))
    if limits.idle and observed.quiet > limits.idle:
        state, more = ask(state, IDLE, observed, limits)
        actions += [(REPORT_IDLE, observed.quiet)] + more
    return state, actions


def enforce(state, observed, limits):
    """Enforces the time limits of a program that was asked."""
    actions = []
    if state.trap is not None and observed.now > state.trap:
        state = state._replace(trap=None)
        actions.append((TERMINATE_AWAITED,))
    if observed.now > state.since + limits.grace:
        actions.append((SIGNAL_GROUP, signal.SIGKILL))
    if observed.now > state.since + limits.grace + UNKILLABLE:
        # it waits in the kernel, for example for a file system: the others must not wait for it
        state = end(-signal.SIGKILL, state.why, state.hung)
    return state, actions


def exit_when_asked(state, observed, _limits):
    if observed.code == -signal.SIGKILL:
        # the program was killed before its grace period was over, so its group gets no more time
        return end(observed.code, state.why, state.hung), []
    # a shell around the training exits at once; the training then gets SIGTERM and the rest of the grace period
    return Exited(state.since, state.why, observed.code, state.hung), [(SIGNAL_GROUP, signal.SIGTERM)]


def await_group(state, observed, limits):
    if observed.alive and observed.now <= state.since + limits.grace:
        return state, []
    return end(state.code, state.why, state.hung), []


# Nothing else changes a state: a second request, for example, does not begin another grace period.
RULES = {
    (Running, Request): request,
    (Running, Sample): check_progress,
    (Running, Exit): fail,
    (Asked, Tick): enforce,
    (Asked, Exit): exit_when_asked,
    (Exited, Group): await_group,
}


def decide(state, observed, limits):
    """Returns the state after an observation, and the actions that it asks for."""
    rule = RULES.get((type(state), type(observed)))
    return rule(state, observed, limits) if rule else (state, [])


def answer(code, with_others, lost_launcher, grace):
    """The exit code that the shim passes on to the launcher, and the seconds for which it keeps it. If the end of all
    ranks was requested, by the reaper or because a worker is stopping, each has its grace period, and a launcher that
    sees one of them end would end its daemons under the others."""
    if lost_launcher:
        # without its launcher the shim has no exit code to report; a rank that ended because the launcher was gone has
        # not failed
        return 0, 0
    return code if code >= 0 else 128 - code, grace + ASKED_BY_REAPER if with_others else 0


class Progress:
    """Since when a program has been silent, stopped, without progress, and without using a processor."""

    def __init__(self, now):
        self.last_output, self.stopped = now, None
        self.used, self.sampled, self.unused = 0, now, now  # seconds of processor time, and by which sample
        self.quiet = collections.deque([0], maxlen=3)  # seconds without progress, by the last samples

    def note_stopped(self, is_stopped, now):
        self.stopped = (self.stopped or now) if is_stopped else None

    def note_idle(self, since, now):
        self.quiet.append(now - max(since, self.last_output))

    def note_use(self, used, now):
        """Takes how many seconds of processor time it has used. This is coarser than `activity.py`, and costs
        nothing."""
        # less than before: a process has gone
        if not 0 <= used - self.used <= BUSY * (now - self.sampled):
            self.unused = now
        self.used, self.sampled = used, now

    def unused_for(self, now):
        """For how many seconds it has hardly used a processor, and been silent."""
        return now - max(self.unused, self.last_output)

    def stopped_for(self, now):
        """For how many seconds it has been stopped and silent."""
        return 0 if self.stopped is None else now - max(self.stopped, self.last_output)
