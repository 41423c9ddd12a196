"""Reports of the library of a launcher about ranks that keep the others waiting."""
import re
import time

import stacks

MOST_MISSING = 64  # ranks that a library names
NAMED = 90  # seconds for which that counts: Horovod names them once a minute


class HangReports:
    """The reports of the launcher's library on ranks that keep the others waiting: on the standard error of the rank
    that coordinates, or of those that wait for the others to begin. Those with which it gives up become frames.
    launcher.json has the patterns. A library numbers the ranks of its role. `in_job`: returns the number in the job."""

    def __init__(self, log, launcher, in_job=lambda rank: rank):
        self.log, self.init, self.missing, self.in_job = log, launcher["init"].encode(), [], in_job
        self.is_in_list = False  # whether the next line may name a rank
        self.named = None  # when a rank was named last
        self.is_new = False  # whether that is to be read
        self.patterns = {name: re.compile(text.encode()) for name, text in launcher["hang_reports"].items()}

    def match(self, name, line):
        return self.patterns[name].search(line) if name in self.patterns else None

    def see(self, line):
        never_began = self.match("never_began", line)
        if never_began:
            # the waiting ranks abort now
            self.report(never_began.group("rank"), never_began.group("seconds"), self.init)
        rank = self.match("missing_rank", line)
        if self.match("missing", line):
            self.missing, self.is_in_list = [], True
        elif rank and (self.is_in_list or self.missing and rank.group("over")):
            # only the library marks a rank that is over; other threads may write between its lines
            found = rank.group("rank"), rank.group("tensors"), bool(rank.group("over"))
            self.named, self.is_new = time.monotonic(), True
            self.missing = self.missing[:MOST_MISSING - 1] + [found]
        else:
            self.is_in_list = False
        gave_up = self.match("gave_up", line)
        for rank, tensors, is_over in self.missing if gave_up else []:
            if is_over:
                self.report(rank, gave_up.group("seconds"), tensors)

    def take_new(self):
        """Returns whether ranks have been named since the last call."""
        is_new, self.is_new = self.is_new, False
        return is_new

    def awaited(self):
        """The ranks that the others wait for now, by their numbers in the role, with the tensors: the report is
        repeated as long as they wait."""
        if self.named is None or time.monotonic() - self.named > NAMED:
            return []
        text = [(int(rank), tensors.decode(errors="replace")) for rank, tensors, _ in self.missing]
        return [{"rank": rank, "tensors": stacks.short(tensors)} for rank, tensors in text if rank < 1 << 31]

    def report(self, rank, seconds, tensors):
        # a longer number is none of a rank
        number = b"%d" % self.in_job(int(rank)) if len(rank) < 10 else rank
        self.log.state(b"h", b"%s %s %s" % (number, seconds, tensors))
