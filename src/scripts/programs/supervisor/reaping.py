"""The end of ranks on several nodes at once: on this one, and over the connections to the others."""
import functools
import threading

import reap


class Reaping:
    """Threads that end the ranks of this node and of others, one for each node. What else is left there is ended only
    when the ranks of all nodes have ended (`finish`). `options`: of `workers.Workers.reap`; `role`: the number of the
    only role that is ended."""

    def __init__(self, nodes, others, grace, failed=False, role=None, **options):
        self.everywhere = threading.Event()

        def here(ended):
            reap.ranks(grace, failed, None if role is None else reap.Role(role))
            ended.set()

        elsewhere = functools.partial(nodes.reap, grace=grace, everywhere=self.everywhere, failed=failed, role=role,
                                      **options)
        work = [functools.partial(elsewhere, worker) for worker in others] + [here]
        self.waits = [threading.Event() for _ in work]
        self.threads = [threading.Thread(target=one, kwargs={"ended": ended}, daemon=True)
                        for one, ended in zip(work, self.waits)]
        for thread in self.threads:
            thread.start()

    def has_ended(self):
        """Waits a moment for the ranks of all nodes. Does not wait for a thread that failed."""
        return all(ended.wait(0.05) or not thread.is_alive() for ended, thread in zip(self.waits, self.threads))

    def finish(self):
        """Lets the nodes end the rest."""
        self.everywhere.set()

    def join(self):
        for thread in self.threads:
            thread.join()
