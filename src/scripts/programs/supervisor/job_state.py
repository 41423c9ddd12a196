"""The decisions of the job supervisor as a state machine: an observation comes in, a new state and actions come
out. It knows no clock, no process and no node; job_supervisor.py makes the observations and performs the actions. Times
are in seconds by one clock. A launcher may start ranks as often as it likes: only what ends an attempt is decided
here."""
import collections
import signal

import endings
import faults

BY_ENGINE = signal.SIGUSR1  # the signal with which the engine stops this container (runtime/docker/request.rs)
TIME_LIMIT = 50  # what Slurm sends some time before the end of the allocation (schedule/slurm/options.rs)
# in the place of the signal with which Slurm takes the allocation away: why it does, if it has said so
(PREEMPTED, TO_RETURN, NOT_TO_RETURN, NODE_LOST, LOST_FOR_GOOD, MEMORY, REQUEUED,
 NOT_KNOWN) = range(signal.SIGRTMIN, signal.SIGRTMIN + 8)
FAULTS = {BY_ENGINE: faults.CONTAINER_STOPPED, TIME_LIMIT: faults.TIME_LIMIT, PREEMPTED: faults.PREEMPTED,
          TO_RETURN: faults.PREEMPTED_TO_RETURN, NOT_TO_RETURN: faults.PREEMPTED_FOR_GOOD,
          NODE_LOST: faults.NODE_FAILED, LOST_FOR_GOOD: faults.NODE_FAILED_IN_ALLOCATION,
          MEMORY: faults.OUT_OF_MEMORY, REQUEUED: faults.ALLOCATION_REQUEUED,
          NOT_KNOWN: faults.END_NOT_KNOWN}
OF_SLURM = (PREEMPTED, TO_RETURN, NOT_TO_RETURN, NODE_LOST, LOST_FOR_GOOD, MEMORY, REQUEUED, NOT_KNOWN)

# The hold of Slurm on the nodes of a job.
OUTSIDE = "outside"  # no allocation, or one whose end hvdctl itself has requested
HELD = "held"  # an allocation
UNANSWERED = "unanswered"  # an allocation; the job was asked to end, and Slurm has not said why
TAKEN = "taken"  # an allocation that Slurm takes away
# why Slurm takes the allocation away, by its answer (endings.py). What the user or the site has cancelled is a request
REASONS = {endings.TIME_LIMIT: TIME_LIMIT, endings.NODE_LOST: NODE_LOST, endings.NOT_STARTED: NODE_LOST,
           endings.OUT_OF_MEMORY: MEMORY, endings.WAITS: REQUEUED, endings.CANCELLED: signal.SIGTERM,
           endings.ENDED: signal.SIGTERM}

# Why an attempt ends.
EXITED = "exited"  # the launcher has exited
FAILED = "failed"  # a rank has failed
FAULT = "fault"  # ranks have not started, a worker has been stopped, or the engine stops the job
SHORTAGE = "shortage"  # an elastic job has waited for more ranks for too long
REQUESTED = "requested"  # the user has requested the end
CHANGED = "changed"  # a node leaves or joins an elastic job

# `grace`, `after_failure`: grace periods of the ranks in seconds; `restarts`: how often a failed job is restarted;
# `elastic`: None for a job that is not.
Limits = collections.namedtuple("Limits", "grace after_failure restarts elastic")
# `timeout`: for how many seconds an elastic job waits for that many ranks.
Elastic = collections.namedtuple("Elastic", "min_ranks timeout")

# The states. `failures`: of attempts so far; `result`: of the last attempt.
Running = collections.namedtuple("Running", "failures")
# The rest of the attempt is being ended. `fault`: as in faults.py; `may_restart`: whether there may be another attempt;
# `keeps`: whether it keeps its files, for that or because Slurm may start the job again.
Ending = collections.namedtuple("Ending", "failures why fault changed may_restart keeps")
Pausing = collections.namedtuple("Pausing", "failures result until")
# The nodes of an elastic job are chosen. `waits`: whether there were too few.
Regrouping = collections.namedtuple("Regrouping", "failures result until waits")
Starting = collections.namedtuple("Starting", "failures result")
# `stopped`: whether its end was requested.
Ended = collections.namedtuple("Ended", "result stopped")
# Slurm preempts the job, and has not decided whether it starts it again. `until`: when it certainly has.
Undecided = collections.namedtuple("Undecided", "result until")

# The observations. `signals`: those that requested the end, in order; `code`: the launcher's exit code, None while it
# runs; `failed`: the exit codes of ranks that failed; `fault`: the fault if ranks have not started in time, or a worker
# has been stopped; `waited`: for how many seconds the ranks that were kept have waited for others; `returns`: until
# when Slurm may start the job again, so that it keeps its files; None if it does not.
Attempt = collections.namedtuple("Attempt", "signals code failed changed fault waited returns")
# The attempt has ended on all nodes. `outcome`: what they reported, with a `reason` (faults.py) if the launcher has
# ended the job for a reason of its own; `ranks`: how many it had; `pause`: that before another one; `kept`: whether its
# launcher was to keep the ranks, and may be started again to do that; `returns`: as above.
Reaped = collections.namedtuple("Reaped", "now signals code failed outcome ranks pause kept returns")
Request = collections.namedtuple("Request", "signals")  # of the end, between two attempts
Tick = collections.namedtuple("Tick", "now")
Answer = collections.namedtuple("Answer", "now signals returns")  # of Slurm, about a job that it preempts
# The nodes that can take part: with how many ranks, and which others do not answer.
Present = collections.namedtuple("Present", "now signals ranks silent")

# The actions, which are performed in this order: each a name with its arguments.
START = "start"  # start the launcher
END_ATTEMPT = "end attempt"  # end it on all nodes; argument: whether there may be another one
CLEAN = "clean"  # remove what was kept for another attempt
RECORD_ATTEMPT = "record attempt"  # record one that failed; arguments: its result, seconds before the next one
CHOOSE_NODES = "choose nodes"  # use the nodes that answer
# record which nodes left and joined; arguments: why they were silent, seconds to wait for others
RECORD_CHANGE = "record change"
RECORD_LOSS = "record loss"  # record that the launcher that was to keep the ranks has exited; argument: its exit code
LEAVE = "leave"  # leave everything to Slurm, which starts the job again: it keeps its files and has no result
NOTE_REASON = "note reason"  # let this signal be the first that requested the end


# seconds between two attempts, or two starts of a role; the first pause is `restart_pause`, and each is twice the one
# before
LONGEST_PAUSE = 300


def pause_before(number, first):
    """Seconds before a restart, where 1 is the first one."""
    return min(first * 2 ** (number - 1), LONGEST_PAUSE)


def fault_of(signals):
    """The fault if not the user has requested the end first."""
    return FAULTS.get(signals[0]) if signals else None


def is_hurried(signals):
    """Whether what requested the end does not wait for long until it kills what is left."""
    return signals[:1] == [BY_ENGINE] or signals[:1] != [REQUEUED] and is_of_slurm(signals)


def is_of_slurm(signals):
    """Returns whether Slurm has requested the end first, and neither the user nor the engine."""
    return bool(signals) and signals[0] in OF_SLURM


def is_open(signals):
    """Returns whether Slurm may still start a job again whose end is recorded: it has not said why it asked for
    that."""
    return signals[:1] == [NOT_KNOWN]


def is_urgent(signals):
    """Whether a second signal ends the grace period."""
    return len(signals) > 1


def grace_period(signals, changed, limits, given=None):
    """The ranks' grace period. They get all of it if none has failed and there is time for it. `given`: the seconds
    that they have before Slurm kills them, if it does."""
    if is_urgent(signals):
        return 0
    if given is not None:
        return given
    on_request = signals and not is_hurried(signals)
    return limits.grace if on_request or changed else min(limits.grace, limits.after_failure)


def succeeded(result, ranks):
    """Returns whether an attempt needs no other one, by the rule of diagnosis/root_cause.rs. A launcher's exit code
    alone does not say so: mpirun of Open MPI 5 ends with 0 when it has lost a node, and a horovodrun that is ended
    because a rank has failed may, too. Ranks that were asked to end because their role served one that has ended count
    for nothing."""
    served = result.get("served", ())
    codes = [one["code"] for one in result["exits"] if one.get("rank") not in served]
    return result["launcher"] == 0 and len(codes) == ranks - len(served) > 0 and not any(codes)


def exit_code(result, stopped, ranks):
    """The exit code of the job supervisor: 0 only for a job that has succeeded."""
    if stopped:
        return 128 + signal.SIGTERM
    return 0 if succeeded(result, ranks) else result["launcher"] or 1


def shortage(limits):
    return faults.too_few_ranks(limits.elastic.min_ranks, limits.elastic.timeout)


def has_ended(outcome):
    """Whether a rank has ended by itself."""
    return any(not rank["asked"] for rank in outcome["exits"])


def reason(observed, limits):
    """Why an attempt ends now, and the fault; None if it goes on."""
    fault = fault_of(observed.signals)
    if observed.code is not None:
        return EXITED, None
    if observed.fault and not observed.changed:
        return FAULT, observed.fault
    if observed.signals:
        return (FAULT, fault) if fault else (REQUESTED, None)
    if observed.failed:
        return FAILED, None
    if limits.elastic and observed.waited > limits.elastic.timeout:
        return SHORTAGE, shortage(limits)
    return (CHANGED, None) if observed.changed else None


def follow(state, observed, limits):
    found = reason(observed, limits)
    if found is None:
        return state, []
    why, fault = found
    may_restart = bool((limits.elastic or state.failures < limits.restarts) and not observed.signals
                       and why != SHORTAGE)
    keeps = may_restart or observed.returns is not None
    return Ending(state.failures, why, fault, observed.changed, may_restart, keeps), [(END_ATTEMPT, keeps)]


def reason_by_now(state, observed):
    """Why the attempt has ended, and the fault: Slurm may have said so only since then."""
    is_of_signal = state.why == REQUESTED or state.fault in FAULTS.values()
    if observed.signals and is_of_signal or is_of_slurm(observed.signals):
        fault = fault_of(observed.signals)
        return FAULT if fault else REQUESTED, fault
    return state.why, state.fault


def conclude(state, observed, limits):
    """Decides what follows an attempt."""
    code = observed.failed[0] if observed.failed else observed.code
    result = dict(observed.outcome, launcher=code)
    why, fault = reason_by_now(state, observed)
    stopped, fault = why == REQUESTED, fault or result.get("reason")
    if observed.signals and code == 0 and not state.may_restart and not fault and not succeeded(result, observed.ranks):
        # its ranks were ended together with it: 0 is no exit code of theirs
        fault = fault_of(observed.signals)
        stopped = not fault
    if stopped or why == CHANGED:
        result["launcher"] = None
    if fault and not stopped:
        result.update(launcher=1, reason=fault)
    if observed.signals[:1] == [REQUEUED] and observed.returns is not None:
        return Ended(result, stopped), [(LEAVE,)]
    if observed.returns is not None and is_of_slurm(observed.signals):
        return Undecided(result, observed.returns), []
    if is_of_slurm(observed.signals) or state.keeps and not state.may_restart:
        return Ended(result, stopped), [(CLEAN,)] if state.keeps and not is_open(observed.signals) else []
    if not state.may_restart:
        return Ended(result, stopped), []
    if succeeded(result, observed.ranks):
        return Ended(result, stopped), [(CLEAN,)]
    if "reason" in observed.outcome:
        return Ended(result, stopped), [(CLEAN,)]
    if limits.elastic:
        # a rank that has ended, even with 0, lets Horovod's driver end the others
        lost = state.why == EXITED and observed.kept and not has_ended(result)
        if lost or state.changed or result["silent"]:
            actions = [(RECORD_LOSS, observed.code)] if lost else []
            return Regrouping(state.failures, result, observed.now + limits.elastic.timeout, False), actions
    if state.failures < limits.restarts:
        pausing = Pausing(state.failures + 1, result, observed.now + observed.pause)
        return pausing, [(RECORD_ATTEMPT, result, observed.pause)]
    if observed.signals:
        return stop(Starting(state.failures, result), observed, limits)
    return Ended(result, False), [(CLEAN,)]


def stop(state, observed, _limits):
    """Ends the job between two attempts."""
    fault = fault_of(observed.signals)
    result = {name: value for name, value in state.result.items() if name != "reason"}
    if fault:
        # the last attempt did not end the job; its result is in attempts.json
        result.update(launcher=1, reason=fault, exits=[], hung=[], silent=[], silence={})
    return Ended(result, not fault), [(CLEAN,)]


def pause(state, observed, limits):
    if observed.now < state.until:
        return state, []
    if limits.elastic:
        # its nodes may have been drained meanwhile, or be too few
        return Regrouping(state.failures, state.result, observed.now + limits.elastic.timeout, False), []
    return Starting(state.failures, state.result), [(CHOOSE_NODES,)]


def regroup(state, observed, limits):
    """Waits until an elastic job has enough ranks."""
    reasons = state.result["silence"]
    if observed.ranks >= limits.elastic.min_ranks:
        return Starting(state.failures, state.result), [(RECORD_CHANGE, reasons, 0)]
    actions = [] if state.waits else [(RECORD_CHANGE, reasons, limits.elastic.timeout)]
    if observed.now <= state.until:
        return state._replace(waits=True), actions
    result = dict(state.result, launcher=1, reason=shortage(limits), exits=[], hung=[], silent=observed.silent)
    if observed.signals:
        state, more = stop(state._replace(result=result), observed, limits)
        return state, actions + more
    return Ended(result, False), actions + [(CLEAN,)]


def await_decision(state, observed, _limits):
    """Waits until Slurm starts a job again that it preempts, or has ended it."""
    if observed.signals[:1] == [REQUEUED]:
        return Ended(state.result, False), [(LEAVE,)]
    if observed.returns is not None and observed.now <= state.until:
        return state, []
    return Ended(state.result, False), [] if is_open(observed.signals) else [(CLEAN,)]


def start(state, _observed, _limits):
    return Running(state.failures), [(START,)]


# Between two attempts a request ends the job; during one it ends the attempt, and the job with it.
RULES = {
    (Running, Attempt): follow,
    (Ending, Reaped): conclude,
    (Pausing, Tick): pause,
    (Pausing, Request): stop,
    (Regrouping, Present): regroup,
    (Regrouping, Request): stop,
    (Starting, Tick): start,
    (Starting, Request): stop,
    (Undecided, Answer): await_decision,
}


def depends_on_slurm(allocation):
    """Returns whether Slurm may be the reason when a job is asked to end, or ranks have failed."""
    return allocation in (HELD, UNANSWERED)


def follow_slurm(ending, signals):
    """Returns what an allocation is after Slurm has answered (endings.Ending), and the actions that this asks for.
    Slurm itself ends what it has on the nodes of one that it takes away. Its own signal before the time limit says
    enough, unless a preemption has sent it."""
    is_limit = signals[:1] == [TIME_LIMIT]
    if ending.meaning in (endings.PREEMPTING, endings.PREEMPTED):
        reason = {None: PREEMPTED, True: TO_RETURN, False: NOT_TO_RETURN}[ending.requeues]
        return TAKEN, [(NOTE_REASON, reason)]
    if ending.meaning in REASONS and not is_limit:
        reason = REASONS[ending.meaning]
        is_final = reason == NODE_LOST and ending.requeues is False
        return TAKEN, [(NOTE_REASON, LOST_FOR_GOOD if is_final else reason)]
    if ending.meaning == endings.UNKNOWN and not is_limit:
        return (UNANSWERED, [(NOTE_REASON, NOT_KNOWN)]) if signals else (HELD, [])
    # an answer that was missing: the user has requested the end
    actions = [(NOTE_REASON, signal.SIGTERM)] if signals[:1] == [NOT_KNOWN] else []
    return OUTSIDE if signals else HELD, actions


def decide(state, observed, limits):
    """Returns the state after an observation, and the actions that it asks for. A state has no other observations than
    those above."""
    return RULES[type(state), type(observed)](state, observed, limits)
