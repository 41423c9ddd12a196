"""The nodes of an elastic job. One that does not answer, or is drained, leaves; one that answers again joins, as does
one that `hvdctl up` has added to the job. Unless the ranks are kept (in_place.py), each change ends the current
attempt, and the next one begins on the nodes that are there: its program continues from what it saved last."""
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


class Membership:
    """Queries the nodes, in a thread of its own. That of the launcher never leaves."""

    def __init__(self, roster, nodes):
        self.roster, self.nodes = roster, nodes
        self.next, self.thread = 0.0, None

    def added(self):
        """The nodes that were added to the job since the last call. They are queried from now on, and join as soon as
        they are ready. The writer of the file waits until it has been renamed: only then does the node belong to the
        job."""
        taken = JOINING + ".taken"
        try:
            os.rename(os.path.join(HERE, JOINING), os.path.join(HERE, taken))
            places = files.read_json(taken, PLACES)
        except (OSError, ValueError):
            return []
        return self.roster.add(places)

    def poll(self):
        workers.for_each(self.roster.others(), self.ask)
        self.next = time.monotonic() + PERIOD

    def ask(self, place):
        code = self.nodes.ready(place)
        self.roster.answer(place["node"], code == 0, code == reap.DRAINED)

    def query(self):
        """Queries the nodes if it is time to. Does not wait."""
        if time.monotonic() > self.next and not (self.thread and self.thread.is_alive()):
            self.thread = threading.Thread(target=self.poll, daemon=True)
            self.thread.start()

    def present(self):
        """The nodes besides the launcher's that can take part. Ends what is left of the previous attempt there."""
        answering = self.nodes.answering(self.roster.others())
        if self.thread:
            # an answer to an earlier query would count for a node that has not been cleaned
            self.thread.join()
        # the others are asked again before they join
        for place in self.roster.others():
            self.roster.forget(place["node"])
        workers.for_each([place for place in self.roster.others() if place["node"] in answering], self.ask)
        return {node for node, misses in self.roster.misses.items() if misses == 0}
