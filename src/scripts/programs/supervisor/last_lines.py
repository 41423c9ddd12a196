"""Finds out from the last lines of a rank that failed whether it only gave up waiting for other ranks, or lost its
connection to one: then another rank is the cause. launcher.json has the texts by which such lines are recognized
(text/collectives.rs), which also reads them (diagnosis/missing.rs)."""
import collections
import re

KEPT = 200  # lines; NCCL's watchdog and what catches its error write some dozens after the reason
LONGEST = 400  # bytes of a line
MOST = 4  # lines that are reported
RANK = re.compile(rb"\[rank\d+\]: ?")  # which PyTorch puts before the lines of an error
# the line with which Python ends a program. A program that was started may have written the reason itself
ERROR = re.compile(rb"(?!\S*(?:CalledProcess|ChildFailed)Error)[A-Za-z_][\w.]*(?:Error|Exception|Timeout)(?::|$)")
# what Python writes between an error and one that followed from it
CHAINED = (b"The above exception was the direct cause", b"During handling of the above exception, another exception")


class LastLines:
    """The last lines of both streams of a rank. Only the end of a rank looks into them, so that they cost it
    nothing."""

    def __init__(self, texts):
        self.texts = [text.encode() for text in texts]
        self.lines = collections.deque(maxlen=KEPT)

    def see(self, line):
        self.lines.append(line[:LONGEST])

    def gave_up(self):
        """The last lines that say why the rank gave up, each once, in their order; empty if another error ended it
        after that."""
        found, is_over = [], False
        for line in reversed(self.lines):
            is_over = is_over and not any(text in line for text in CHAINED)
            text = RANK.sub(b"", line, 1) if line.startswith(b"[rank") else line
            if any(known in line for known in self.texts):
                if not is_over and text not in found:
                    found.append(text)
            elif ERROR.match(text):
                is_over = True
        return found[:MOST][::-1]
