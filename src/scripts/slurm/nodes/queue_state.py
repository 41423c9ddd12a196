"""The decisions of the agent on a job of the cluster's queue as a state machine: an observation comes in, a new state
and actions come out. It knows no clock, no engine, no Slurm and no file; agent.py makes the observations and performs
the actions. Times are in seconds by one clock. An action that fails changes no state: the next round asks for it
again."""
import collections

SIGNALS = 6  # after which the allocation of a job that has ended is cancelled: what waits there may be gone
UNSUBMITTED = 120  # seconds after the start of its launcher in which hvdctl has submitted a job
MISSING = 4  # rounds without a job in the queue after which it is taken for gone
# in which a job has its nodes, or is about to
HAS_NODES = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
NODE_FAIL = "NODE_FAIL"  # the state in which Slurm ends a job that has lost a node

# The states.
Prepared = collections.namedtuple("Prepared", "")  # hvdctl has described it; its launcher has not been seen to run
Waiting = collections.namedtuple("Waiting", "since")  # its launcher waits for nodes, and was seen first at that time
Begun = collections.namedtuple("Begun", "")  # its launcher has its answer: it goes on, or ends
Asked = collections.namedtuple("Asked", "")  # it was asked for its end, because the nodes are no longer the job's
# Its launcher has ended, and what runs in its allocation is signalled. `before`: its state until then; `signals`: how
# many were sent.
Ending = collections.namedtuple("Ending", "before signals")

# The observations. `slurm`: the state of the job by Slurm's queue, None if it is not there; `missing`: for how many
# rounds it has not been there.
# Its launcher runs. `is_submitted`: whether Slurm has given the job a number.
Up = collections.namedtuple("Up", "now slurm missing is_submitted")
# Its launcher does not run. `exists`: whether its container is there; `may_come`: whether hvdctl may still be about to
# start it.
Down = collections.namedtuple("Down", "slurm missing exists has_result may_come")
# how Slurm has ended it, and why; empty if Slurm does not know it
Reported = collections.namedtuple("Reported", "end why")
Answered = collections.namedtuple("Answered", "")  # its launcher has its answer

# The actions, which are performed in this order: each a name with its arguments.
START = "start"  # start its launcher
# place its ranks on the nodes that Slurm has given it, and let its launcher go on; is followed by Answered
PLACE = "place"
INQUIRE = "inquire"  # ask Slurm how it has ended the job; is followed by Reported
SUBMIT = "submit"  # submit it again; is followed by Answered if Slurm refuses it
ANSWER = "answer"  # end its launcher, which waits; arguments as in Reported; is followed by Answered
END_LAUNCHER = "end launcher"  # end its launcher; argument: the state in which Slurm has ended the allocation
SIGNAL = "signal"  # signal what waits in the allocation
CANCEL = "cancel"  # cancel the job in Slurm
RECORD_REMOVAL = "record removal"  # record that its launcher was removed while it waited: nothing else does
FORGET = "forget"  # remove what hvdctl has described of it


def has_waited(state):
    """Returns whether its launcher has no answer yet."""
    return isinstance(state, (Prepared, Waiting))


def is_gone(observed):
    return not observed.slurm and observed.missing > MISSING


def first_wait(_state, observed):
    return wait(Waiting(observed.now), observed)


def wait(state, observed):
    """Of a launcher that waits for nodes."""
    if observed.slurm == "RUNNING":
        return state, [(PLACE,)]
    if observed.is_submitted:
        # not while it is COMPLETING: a prolog may have put it into the queue again
        return state, [(INQUIRE,)] if is_gone(observed) else []
    # hvdctl was ended before it could submit it
    is_late = not observed.slurm and observed.now - state.since > UNSUBMITTED
    return state, [(SUBMIT,)] if is_late else []


def end_wait(state, observed):
    # a slurmctld that was ended before it could save the job does not know it
    return state, [(ANSWER, observed.end, observed.why) if observed.end else (SUBMIT,)]


def begin(_state, _observed):
    return Begun(), []


def check_nodes(state, observed):
    """Of a launcher that has its nodes."""
    if observed.slurm == "PENDING":
        # Slurm puts a job into the queue again that has lost a node
        return Asked(), [(END_LAUNCHER, NODE_FAIL), (CANCEL,)]
    is_lost = observed.slurm not in HAS_NODES if observed.slurm else is_gone(observed)
    return state, [(INQUIRE,)] if is_lost else []


def end_launcher(_state, observed):
    return Asked(), [(END_LAUNCHER, observed.end or NODE_FAIL)]


def keep_from_queue(state, observed):
    return state, [(CANCEL,)] if observed.slurm == "PENDING" else []


def await_launcher(state, observed):
    """Of a job whose launcher has not been seen to run, and does not."""
    is_coming = observed.may_come and not observed.has_result and not can_start(observed)
    return (state, []) if is_coming else start_again(state, observed)


def can_start(observed):
    """Returns whether the machine was started again while its launcher waited."""
    return bool(observed.exists and not observed.has_result and observed.slurm)


def start_again(state, observed):
    """Of a job whose launcher waited, and no longer runs."""
    return (state, [(START,)]) if can_start(observed) else end_allocation(state, observed)


def end_allocation(state, observed):
    """Of a job whose launcher has ended."""
    if not observed.slurm:
        is_unrecorded = has_waited(state) and not observed.has_result
        return state, ([(RECORD_REMOVAL,)] * is_unrecorded + [(FORGET,)] if is_gone(observed) else [])
    if observed.slurm == "RUNNING":
        return Ending(state, 1), [(SIGNAL,)]
    return state, [(CANCEL,)] if observed.slurm != "COMPLETING" else []


def signal_again(state, observed):
    if observed.slurm != "RUNNING" or has_waited(state.before) and can_start(observed):
        before, actions = decide(state.before, observed)
        return state._replace(before=before), actions
    if state.signals < SIGNALS:
        return state._replace(signals=state.signals + 1), [(SIGNAL,)]
    return state, [(CANCEL,)]


def return_up(state, observed):
    """Of a launcher that runs again."""
    return decide(state.before, observed)


RULES = {
    (Prepared, Up): first_wait,
    (Prepared, Down): await_launcher,
    (Waiting, Up): wait,
    (Waiting, Down): start_again,
    (Waiting, Reported): end_wait,
    (Waiting, Answered): begin,
    (Begun, Up): check_nodes,
    (Begun, Reported): end_launcher,
    (Begun, Down): end_allocation,
    (Asked, Up): keep_from_queue,
    (Asked, Down): end_allocation,
    (Ending, Up): return_up,
    (Ending, Down): signal_again,
}


def decide(state, observed):
    """Returns the state after an observation, and the actions that it asks for. A state has no other observations than
    those above."""
    return RULES[type(state), type(observed)](state, observed)
