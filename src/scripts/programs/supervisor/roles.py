"""The decisions about the roles of one attempt as a state machine: an observation comes in, and new states, actions and
perhaps the end of the attempt come out. It knows no clock, no process and no node; launchers.py makes the observations
and performs the actions. Times are in seconds by one clock. Roles are as launch.json describes them
(launch/description.rs), and are known by their numbers."""
import collections

import faults
import job_state

# seconds for which a failure of a role may be the consequence of an end: its ranks lose their connections to those of
# the role that ends the job some time before the launcher of that exits
SETTLING = 1
MOST_MISSING = 16  # ranks that a fault names

# The states. `again`: how often the role was started again.
Waiting = collections.namedtuple("Waiting", "")  # for those that it needs
# `ready`: whether all of its ranks are.
Running = collections.namedtuple("Running", "since ready again")
Failed = collections.namedtuple("Failed", "until code ready again")  # the attempt ends then, if nothing else ends it
# Its ranks are asked to end. `restarts`: whether it is started again after that.
Ending = collections.namedtuple("Ending", "restarts ready again")
# Nothing is left of it, and it is started again then. `again`: as which of these starts.
Pausing = collections.namedtuple("Pausing", "until again")
# `served`: whether it was asked to end, or never started, because the role that it served has ended; `since`: when it
# was started.
Over = collections.namedtuple("Over", "since ready served")

# The observations. `roles`: one of each role; `pause`: seconds before the first restart of a role.
Observed = collections.namedtuple("Observed", "now roles pause")
# `code`: the exit code of its launcher, None while that runs; `failed`: that of the first rank that has failed, or
# None; `missing`: the ranks in the role that are not ready, all before its start; `ended`: whether nothing is left of a
# role that was asked to end.
Role = collections.namedtuple("Role", "code failed missing ended")

# The actions, which are performed in this order: each a name with the number of the role.
START = "start"  # further argument: how often it was started again
END = "end"  # further argument: whether it has failed, and is to be started again
NOTE_READY = "note ready"  # further argument: seconds since its start

# The end of the attempt. `code`: the exit code; `fault`: as in faults.py, or None; `served`: the roles whose ends count
# for nothing.
End = collections.namedtuple("End", "code fault served")


def begin(roles):
    return [Waiting() for _ in roles]


def is_ready(state):
    return isinstance(state, (Running, Over)) and state.ready


def follow_running(number, role, state, seen, observed):
    failure = seen.code or None if seen.failed is None else seen.failed
    ends = role["ends"]
    if failure is not None:
        if ends["kind"] == "restarts" and state.again < ends["times"]:
            return Ending(True, False, state.again + 1), [(END, number, True)]
        settling = 0 if ends["kind"] == "job" else SETTLING
        return Failed(observed.now + settling, failure, state.ready, state.again), []
    is_new = not state.ready and not seen.missing
    actions = [(NOTE_READY, number, observed.now - state.since)] if is_new else []
    state = state._replace(ready=state.ready or is_new)
    return (Over(state.since, state.ready, False) if seen.code == 0 else state), actions


def follow_ending(number, role, state, seen, observed):
    if not seen.ended:
        return state, []
    if state.restarts:
        until = observed.now + job_state.pause_before(state.again, observed.pause)
        return follow_pause(number, role, Pausing(until, state.again), seen, observed)
    return Over(observed.now, state.ready, True), []


def follow_pause(number, _role, state, _seen, observed):
    if observed.now < state.until:
        return state, []
    return Running(observed.now, False, state.again), [(START, number, state.again)]


def end_with(roles, states):
    """Ends the roles that serve one that is over. One that was not started never is."""
    actions = []
    # one that is not started any more may be served itself, by a role before it
    for number in list(range(len(roles))) * len(roles):
        ends, state = roles[number]["ends"], states[number]
        if ends["kind"] != "with" or not isinstance(states[ends["role"]], Over) or isinstance(state, Over):
            continue
        if isinstance(state, Waiting):
            states[number] = Over(None, False, True)
        elif isinstance(state, (Running, Failed)):
            states[number] = Ending(False, state.ready, state.again)
            actions.append((END, number, False))
    return actions


def is_needed(number, roles, states):
    """Returns whether a role that has not begun waits for this one."""
    return any(isinstance(state, Waiting) and number in role["needs"] for role, state in zip(roles, states))


def late(role, state, now):
    """Returns for how many seconds the ranks of a role that others wait for were not ready if that ends the attempt,
    else None. What has ended, or never began, cannot become ready."""
    if isinstance(state, Over) and not state.ready:
        return 0 if state.since is None else now - state.since
    is_late = isinstance(state, Running) and not state.ready and now > state.since + role["ready_timeout"]
    return role["ready_timeout"] if is_late else None


def names(ranks):
    more = [] if len(ranks) <= MOST_MISSING else ["…"]
    return ", ".join([str(rank) for rank in ranks[:MOST_MISSING]] + more)


def end_of(roles, states, observed):
    """Returns the end of the attempt; None while it goes on."""
    ending_job = [state for role, state in zip(roles, states) if role["ends"]["kind"] == "job"]
    is_over = any(isinstance(state, Over) for state in ending_job)
    # one that is to be started again has failed, but without effect
    served = [number for number, state in enumerate(states)
              if isinstance(state, Pausing) or getattr(state, "served", False)]
    for state in ending_job if is_over else states:
        if isinstance(state, Failed) and observed.now >= state.until:
            return End(state.code, None, served)
    if is_over:
        # others that end the job, too: the first one has
        return End(0, None, [number for number, state in enumerate(states)
                             if number in served or not isinstance(state, Over)])
    for number, (role, state, seen) in enumerate(zip(roles, states, observed.roles)):
        seconds = late(role, state, observed.now) if is_needed(number, roles, states) else None
        if seconds is not None:
            ended = isinstance(state, Over)
            fault = faults.role_not_ready(role["name"], int(seconds), names(seen.missing), ended)
            return End(None, fault, served)
    return End(0, None, served) if all(isinstance(state, Over) for state in states) else None


RULES = {Running: follow_running, Ending: follow_ending, Pausing: follow_pause}


def decide(roles, states, observed):
    """Returns the states after an observation, the actions that it asks for, and the end of the attempt, if it
    ends."""
    states, actions = list(states), []
    for number, (role, state, seen) in enumerate(zip(roles, states, observed.roles)):
        rule = RULES.get(type(state))
        if rule:
            states[number], more = rule(number, role, state, seen, observed)
            actions += more
    end = end_of(roles, states, observed)
    if end:
        # what is left is ended together
        return states, [action for action in actions if action[0] == NOTE_READY], end
    actions += end_with(roles, states)
    for number, (role, state) in enumerate(zip(roles, states)):
        if isinstance(state, Waiting) and all(is_ready(states[one]) for one in role["needs"]):
            states[number] = Running(observed.now, False, 0)
            actions.append((START, number, 0))
    return states, actions, None
