"""The hold of a scheduler on the nodes of a job, as the job supervisor asks for it: of a site's Slurm, which may not
answer, or of the cluster's queue, whose agent writes the end of an allocation to the file `deallocated`."""
import time

import allocation
import endings
import files

PATIENCE = 30  # seconds for an answer when ranks have failed, and nothing else has ended the job
PAUSE = 1  # second between two questions
DECISION = 120  # seconds beyond the grace time for Slurm to end a job that it preempts: it looks once in a while
BURST = 2  # seconds within which Slurm sends SIGTERM more than once


def deallocated():
    """The state in which the cluster's queue has ended the allocation (slurm/nodes/agent.py); empty if it has
    not."""
    try:
        return files.read("deallocated").decode(errors="replace").strip()
    except OSError:
        return ""


class Hold:
    """The answers of Slurm about a job. `ending`: the last one (endings.py); `is_noticed`: whether Slurm has begun to
    preempt the job since then."""

    def __init__(self, launch):
        known = launch.get("slurm")
        self.begun = endings.Begun(**known) if isinstance(known, dict) else None
        self.ending, self.asked, self.unanswered = None, None, None
        self.began = None  # when it was first asked why the job ends
        self.is_noticed = False

    def ask(self):
        """Returns what Slurm does to the job now."""
        asked, self.is_noticed = time.monotonic(), False
        if self.begun:
            found = allocation.ending(self.begun)
        else:
            state = deallocated()
            means = endings.STATES.get(state, endings.ENDED) if state else endings.GOES_ON
            means = endings.CANCELLED if state == "COMPLETING" else means
            found = endings.Ending(means, False, None, None)
        if found.meaning != endings.UNKNOWN:
            self.unanswered = None
        elif self.unanswered is None:
            self.unanswered = asked
        self.began = None if found.meaning == endings.GOES_ON else self.began or asked
        self.ending, self.asked = found, asked
        return found

    def notice(self):
        """Finds out whether a preemption has begun, of which Slurm tells only the steps of the job."""
        until = time.monotonic() + PATIENCE
        while self.begun and time.monotonic() < until:
            found = allocation.ending(self.begun).meaning
            if found != endings.UNKNOWN:
                self.is_noticed = found == endings.PREEMPTING
                return
            time.sleep(PAUSE)

    def grace(self, wanted):
        """The seconds that ranks have, of those that they want, before Slurm kills them; None if Slurm does not end the
        job, or it is the cluster's queue."""
        if not (self.begun and self.ending) or self.ending.meaning == endings.GOES_ON:
            return None
        # it has sent SIGTERM before it was asked, and the grace time of a preemption has an end
        since = self.asked if self.ending.meaning == endings.PREEMPTING else self.began
        passed = int(time.monotonic() - since)
        left = self.ending.left
        return endings.grace(self.ending._replace(left=left and left - passed), self.begun, wanted)

    def is_awaited(self, was_asked):
        """Returns whether an answer that is missing is still waited for. `was_asked`: whether the end of the job was
        requested: then Slurm may kill this program, which has to record the end before that."""
        if self.unanswered is None:
            return False
        limit = max(self.begun.kill_wait - endings.RESERVE, endings.LEAST) if was_asked else PATIENCE
        return time.monotonic() < self.unanswered + limit

    def decides_until(self):
        """Returns when Slurm has certainly decided what becomes of a job that it preempts, by the monotonic clock."""
        return time.monotonic() + (self.ending.left or 0) + DECISION
