"""The nodes of a job, and what each of them is to its current attempt, as a value: what is observed of nodes comes in,
and which ones take part comes out. It knows no clock, no process, no file and no other node; job_supervisor.py,
membership.py and in_place.py share one. docs/development/elastic.md has a drawing of the states, and who writes and
reads which file.

Where a launcher does not keep the ranks, an attempt has one assignment, and nodes are only RUNNING or LOST. Elsewhere
the launcher makes a new assignment of ranks whenever the nodes have changed. The launcher's own node never leaves: it
is LISTED while its ranks have failed."""

LISTED = "listed"  # the launcher may use it: its ranks take part from the next assignment on
JOINING = "joining"  # it answers; what the job has left there is ended before it is listed
RUNNING = "running"  # listed, and its ranks take part
LEAVING = "leaving"  # it is drained: no longer listed, but its ranks take part until an assignment without it
LOST = "lost"  # none of these: it has left, or it is new and has not answered yet

# why a node leaves
DROPPED, DRAINED, STOPPED = "its connection was lost", "drained", "its worker was stopped"
MISSES = 3  # consecutive unanswered queries after which a node has left: a busy one may miss one
# so many failures of the same node within so many seconds: then it is not used for so long
MAX_FAILURES, FAILURE_PERIOD = 3, 3600


def are_too_many(failures, now):
    """Whether there were too many failures lately, given when they were. A job that runs for weeks may have many."""
    return sum(now - time < FAILURE_PERIOD for time in failures) >= MAX_FAILURES


def ranks(places):
    return sum(place["ranks"] for place in places)


def node_of(rank, places):
    """The node of a rank, None if there is no such rank."""
    for place in places:
        if rank < place["ranks"]:
            return place["node"]
        rank -= place["ranks"]
    return None


def nodes(places):
    return [place["node"] for place in places]


class Roster:
    """`places`: all nodes with ranks, in the order of these; `home`: the launcher's node."""

    def __init__(self, places, home):
        self.places, self.home = list(places), home
        self.misses = {node: 0 for node in nodes(self.others())}  # consecutive unanswered queries
        self.drained = set()  # nodes whose last answer was that they are
        self.recorded = self.places  # where ranks took part when that was recorded last
        self.begin(self.places)

    def begin(self, places):
        """The next attempt has these nodes."""
        self.assigned = places  # where its ranks are, in their order
        self.states = {place["node"]: RUNNING if place in places else LOST for place in self.places}
        self.gone = set()  # nodes whose ranks have ended since the last assignment
        self.reasons = {}  # why nodes have left, until ranks are assigned to them again
        self.failures = {}  # when ranks of a node have failed

    def others(self):
        """All nodes but the launcher's, which needs no query."""
        return [place for place in self.places if place["node"] != self.home]

    def add(self, places):
        """Nodes are added to the job. Returns those that are new."""
        new = [place for place in places if place["node"] not in self.misses]
        self.misses.update({node: MISSES for node in nodes(new)})
        self.states.update({node: LOST for node in nodes(new)})
        # a new list: others may be using the old one
        self.places = self.places + new
        return new

    def answer(self, node, is_ready, is_drained):
        """A query to a node has ended."""
        note = self.drained.add if is_drained else self.drained.discard
        note(node)
        self.misses[node] = MISSES if is_drained else 0 if is_ready else self.misses[node] + 1

    def forget(self, node):
        """A node has to answer before it can join again."""
        if node in self.misses:
            self.misses[node] = MISSES

    def those(self, *states):
        """The nodes in one of these states, in the order of their ranks."""
        return [place for place in self.places if self.states[place["node"]] in states]

    def listed(self):
        """The nodes that the launcher may use."""
        return self.those(LISTED, RUNNING)

    def running(self):
        """Where ranks take part, in their order."""
        return [place for place in self.assigned if self.states[place["node"]] in (RUNNING, LEAVING)]

    def changes(self):
        """The nodes that leave now, and those that can join."""
        leaving = [place for place in self.listed() if self.misses.get(place["node"], 0) >= MISSES]
        return leaving, [place for place in self.those(LOST, LEAVING) if self.misses.get(place["node"]) == 0]

    def leave(self, node, reason):
        """A listed node leaves."""
        self.reasons.setdefault(node, reason)
        if reason != DRAINED:
            self.gone.add(node)
        has_ranks = node in nodes(self.assigned) and node not in self.gone
        self.states[node] = LISTED if node == self.home else LEAVING if has_ranks else LOST

    def fail(self, node, reason, now):
        """Ranks of a node have failed by themselves; those of a node that has left fail because of that."""
        if node not in self.gone and node in nodes(self.listed()):
            self.failures.setdefault(node, []).append(now)
            self.leave(node, reason)

    def fit(self, places, now):
        """Those of the places whose ranks have not failed too often lately."""
        return [place for place in places if not are_too_many(self.failures.get(place["node"], []), now)]

    def come_back(self, places):
        """These nodes join. Returns those that are cleaned first: all but drained ones whose ranks still take part."""
        kept = [node for node in nodes(places) if self.states[node] == LEAVING and node in nodes(self.assigned)]
        self.states.update({node: RUNNING if node in kept else JOINING for node in nodes(places)})
        for node in kept:
            self.reasons.pop(node, None)
        return [place for place in places if place["node"] not in kept]

    def cleaned(self, node, done):
        """A joining node was cleaned, or could not be. If the launcher has assigned ranks to it since it left, they
        take part."""
        is_assigned = node in nodes(self.assigned) and node not in self.gone
        self.states[node] = LOST if not done else RUNNING if is_assigned else LISTED

    def assign(self, places):
        """The launcher has assigned its ranks to these nodes. Listed ones among the others have left, unless the
        launcher knows that already."""
        listed, assigned = nodes(self.listed()), set(nodes(places))
        dropped = [node for node in listed if node not in assigned and node not in self.gone and node != self.home]
        self.assigned, self.gone = places, set()
        self.states.update({node: LOST for node in nodes(self.those(LEAVING)) if node not in assigned})
        self.states.update({node: RUNNING if node in assigned else LISTED for node in listed})
        # the launcher did not know yet that they are drained
        self.states.update({node: LEAVING for node in nodes(self.those(LOST)) if node in assigned & self.drained})
        self.reasons = {node: reason for node, reason in self.reasons.items() if self.states[node] != RUNNING}
        for node in dropped:
            self.leave(node, DROPPED)
            self.forget(node)

    def record(self, running, reasons):
        """Which nodes have left since the last call, each with the reason, and which have joined. `running`: where
        ranks take part; `reasons`: of nodes that left before this attempt."""
        reasons = dict(reasons, **self.reasons)
        left = nodes(place for place in self.recorded if place not in running)
        left = [{"node": node, "reason": DRAINED if node in self.drained else reasons.get(node, "no answer")}
                for node in left]
        joined = nodes(place for place in running if place not in self.recorded)
        self.recorded = running
        return left, joined
