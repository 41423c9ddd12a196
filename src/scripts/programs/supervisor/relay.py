"""Signals that a person or a site sends to a job under Slurm for its ranks (`scancel --signal`). Slurm knows only its
steps and the batch script, which is the job supervisor: some ranks are in no step, and rank supervisors leave the
process groups that Slurm knows. This passes on to the ranks what comes there."""
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
OTHERS_FIRST = 5  # seconds in which the ranks of other nodes get it before those of this one
SAME = 1  # seconds in which one signal may come in several ways (`scancel --full`)


class Relay:
    """The signals for the ranks of a job. `places`: returns the nodes where it has ranks; `ended`: called when Slurm
    has ended the step that listens, as it does when it begins to preempt the job."""

    def __init__(self, node, places, nodes, children, ended):
        self.node, self.places, self.nodes, self.children, self.ended = node, places, nodes, children, ended
        self.last, self.lock, self.listener, self.is_over = {}, threading.Lock(), None, False

    def begin(self):
        """Begins to pass signals on."""
        # what this process starts inherits that, and is not ended by a signal for all of the batch script's processes
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=self.wait, daemon=True).start()
        if not allocation.is_step():
            threading.Thread(target=self.listen, daemon=True).start()

    def wait(self):
        """Passes on what this process gets: as the batch script that of `scancel --batch`."""
        while True:
            self.send(signal.sigwait(SIGNALS))

    def listen(self):
        """Passes on what a step gets."""
        with contextlib.suppress(OSError):
            self.listener = allocation.listen(self.node, self.children.start)
            with self.listener:
                for line in self.listener.stdout:
                    number = getattr(signal, "SIG" + line.decode(errors="replace").strip(), None)
                    if number in SIGNALS:
                        self.send(number)
            if not self.is_over:
                self.ended()

    def is_new(self, number):
        with self.lock:
            before, self.last[number] = self.last.get(number), time.monotonic()
            return before is None or self.last[number] - before > SAME

    def send(self, number):
        """Sends a signal to the ranks of all nodes."""
        if self.is_new(number):
            here = [place for place in self.places() if place["node"] == self.node]
            others = [place for place in self.places() if place["node"] != self.node]
            sending = threading.Thread(target=workers.for_each, daemon=True,
                                       args=(others, lambda place: self.nodes.signal(place, number)))
            sending.start()
            # the program of rank 0 may end the job at this signal
            sending.join(OTHERS_FIRST)
            if here:
                reap.deliver(number)

    def end(self):
        self.is_over = True
        if self.listener and self.listener.poll() is None:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self.listener.terminate()
