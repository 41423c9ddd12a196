"""Finds out from the last lines of a rank that failed whether it only gave up waiting for other ranks, or lost its
connection to one: then another rank is the cause. launcher.json has the texts by which such lines are recognized
(text/collectives.rs), which also reads them (diagnosis/missing.rs)."""
import collections
import re
import signal

KEPT = 200  # lines; NCCL's watchdog and what catches its error write some dozens after the reason
LONGEST = 400  # bytes of a line
MOST = 4  # lines that are reported
RANK = re.compile(rb"\[rank\d+\]: ?")  # which PyTorch puts before the lines of an error
# the line with which Python ends a program. A program that was started may have written the reason itself
ERROR = re.compile(rb"(?!\S*(?:CalledProcess|ChildFailed)Error)[A-Za-z_][\w.]*(?:Error|Exception|Timeout)(?::|$)")
MESSAGE = 8  # lines after it that may belong to its message
# what Python writes between an error and one that followed from it
CHAINED = (b"The above exception was the direct cause", b"During handling of the above exception, another exception")
# of PyTorch's log: a warning, such as one about a connection that is tried again, and an error that ends the program
WARNING = re.compile(rb"\[[WI](?:\d{4})? ")
FATAL = re.compile(rb"\[E[^]]* ProcessGroup|\s*what\(\):")
# lines with which libraries for C and C++ say that a connection is lost: NCCL and its tests, Open MPI, MPICH and UCX.
# They report as information what they only try again
NATIVE = re.compile(rb"NCCL WARN |NCCL (?:failure|error)|mca_btl_\w+|An MPI communication peer process|"
                    rb"MPI_ERR_PROC_FAILED|MPID?I?\w*\(\d+\)\.*: |UCX +ERROR ")
NATIVE_END = 60  # lines from the end within which they count: the program has not gone on
TIMED_OUT = re.compile(rb"(?i)timed out|time-?out")
# signals that end a program from outside, or for a fault of its own. NCCL's watchdog ends one with SIGABRT
ENDED_BY = {signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGINT, signal.SIGHUP}


def may_have_given_up(code, asked):
    """Returns whether a rank with this exit code, as Popen has it (negative: a signal), may have ended because it gave
    up. A shell around it ends with 128 + N for signal N."""
    return bool(code) and not asked and (-code if code < 0 else code - 128) not in ENDED_BY


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
        after that. A lost connection counts only in the error that ended it, or at the end of what a program that
        is not Python wrote: programs try again."""
        found, of_message, is_chained = [], 0, False
        for number, line in enumerate(self.lines):
            text = RANK.sub(b"", line, 1) if line.startswith(b"[rank") else line
            is_known = any(known in text for known in self.texts)
            if ERROR.match(text):
                if not is_known and not is_chained:
                    found = []
                of_message, is_chained = MESSAGE + 1, False
            is_chained = is_chained or any(mark in text for mark in CHAINED)
            is_native = number > len(self.lines) - NATIVE_END and NATIVE.search(text)
            if is_known and not WARNING.match(text) and (
                    of_message or FATAL.match(text) or TIMED_OUT.search(text) or is_native):
                found = [one for one in found if one != text] + [text]
            of_message = max(of_message - 1, 0)
        return found[-MOST:]
