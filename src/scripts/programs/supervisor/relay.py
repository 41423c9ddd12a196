"""Signals that a person, a site or Slurm sends to a job under Slurm for its ranks (`scancel --signal`). Slurm knows
only its steps: those that start ranks on other nodes, and the batch script, which is the job supervisor. This passes on
to the ranks what reaches only those."""
import contextlib
import signal
import subprocess
import threading
import time

import allocation
import reap
import workers

# a process that does not expect one of them ends, so everything but the ranks' programs ignores them
SIGNALS = reap.PASSED
SAME = 1  # seconds in which one signal may come in several ways (`scancel --full`)


class Relay:
    """The signals for the ranks of a job. `places`: returns the nodes where it has ranks."""

    def __init__(self, node, places, nodes, children):
        self.node, self.places, self.nodes, self.children = node, places, nodes, children
        self.last, self.lock, self.listener = {}, threading.Lock(), None

    def begin(self, steps_alone):
        """Begins to pass signals on. `steps_alone`: whether all ranks are in steps, to which Slurm sends them."""
        # what this process starts inherits that, and is not ended by a signal for all of the batch script's processes
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=self.wait, daemon=True).start()
        if not steps_alone:
            threading.Thread(target=self.listen, daemon=True).start()

    def wait(self):
        """Passes on what the batch script gets (`scancel --batch`)."""
        while True:
            number = signal.sigwait(SIGNALS)
            if not allocation.is_step():
                self.send(number)

    def listen(self):
        """Passes on to the ranks of this node what steps get: they are in none."""
        with contextlib.suppress(OSError):
            self.listener = allocation.listen(self.node, self.children.start)
            with self.listener:
                for line in self.listener.stdout:
                    number = getattr(signal, "SIG" + line.decode(errors="replace").strip(), None)
                    if number in SIGNALS and self.is_new(number):
                        reap.deliver(number)

    def is_new(self, number):
        with self.lock:
            before, self.last[number] = self.last.get(number), time.monotonic()
            return before is None or self.last[number] - before > SAME

    def send(self, number):
        """Sends a signal to the ranks of all nodes."""
        if self.is_new(number):
            here = [place for place in self.places() if place["node"] == self.node]
            others = [place for place in self.places() if place["node"] != self.node]
            if here:
                reap.deliver(number)
            workers.for_each(others, lambda place: self.nodes.signal(place, number))

    def end(self):
        if self.listener and self.listener.poll() is None:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self.listener.terminate()
