"""The nodes of an elastic job. One that does not answer, or is drained, leaves; one that answers again joins, as does one that `hvdctl up`
has added to the job. Unless the ranks are kept (in_place.py), each change ends the current attempt, and the next one begins on the nodes
that are there: its program continues from what it saved last."""
import os
import threading
import time

import files
import reap
import workers

PERIOD = 2  # seconds between two queries to a node
HERE = os.path.dirname(os.path.abspath(__file__))
JOINING = "joining.json"  # nodes that are added to the job, as launch.json has them (start/join.rs)
PLACES = [{"node": files.is_text, "address": files.is_text, "ranks": files.is_count}]  # the shape of JOINING
MISSES = 3  # consecutive unanswered queries after which a node has left: a busy one may miss one


class Membership:
    """Queries the nodes, in a thread of its own. `places` are all nodes with ranks; that of the launcher never leaves."""

    def __init__(self, elastic, home, nodes, places):
        self.min_ranks, self.timeout, self.nodes = elastic["min_ranks"], elastic["timeout"], nodes
        self.workers = [place for place in places if place["node"] != home]
        self.misses = {place["node"]: 0 for place in self.workers}
        self.drained = set()
        self.next, self.thread = 0.0, None

    def added(self):
        """The nodes that were added to the job since the last call. They are queried from now on, and join as soon as they are
        ready. The writer of the file waits until it has been renamed: only then does the node belong to the job."""
        taken = JOINING + ".taken"
        try:
            os.rename(os.path.join(HERE, JOINING), os.path.join(HERE, taken))
            places = files.read_json(taken, PLACES)
        except (OSError, ValueError):
            return []
        places = [place for place in places if place["node"] not in self.misses]
        for place in places:
            self.misses[place["node"]] = MISSES
            self.workers.append(place)
        return places

    def forget(self, node):
        """A node has to answer before it can join again."""
        if node in self.misses:
            self.misses[node] = MISSES

    def poll(self):
        workers.for_each(self.workers, self.ask)
        self.next = time.monotonic() + PERIOD

    def ask(self, place):
        node, code = place["node"], self.nodes.ready(place)
        if code == reap.DRAINED:
            self.drained.add(node)
            self.misses[node] = MISSES
        else:
            self.drained.discard(node)
            self.misses[node] = 0 if code == 0 else self.misses[node] + 1

    def change(self, used):
        """The nodes of `used` that leave, and the others that can join. Does not wait."""
        if time.monotonic() > self.next and not (self.thread and self.thread.is_alive()):
            self.thread = threading.Thread(target=self.poll, daemon=True)
            self.thread.start()
        leaving = [place for place in self.workers if place in used and self.misses[place["node"]] >= MISSES]
        joining = [place for place in self.workers if place not in used and self.misses[place["node"]] == 0]
        return leaving, joining

    def present(self):
        """The nodes besides the launcher's that can take part. Ends what is left of the previous attempt there."""
        answering = self.nodes.answering(self.workers)
        if self.thread:
            # an answer to an earlier query would count for a node that has not been cleaned
            self.thread.join()
        # the others are asked again before they join
        self.misses = {place["node"]: MISSES for place in self.workers}
        workers.for_each([place for place in self.workers if place["node"] in answering], self.ask)
        return {node for node, misses in self.misses.items() if misses == 0}
