"""A node's log of a job: frames, one a line (record/frames.rs reads them), and the short file `states` next to it."""
import ctypes
import os
import re
import time

LONGEST = 1 << 16  # bytes; a longer line is cut into several frames, so that memory stays bounded
RESERVED = 1 << 16  # bytes for what must be recorded even if the disk is full
KEEP_SIZE, PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE: fallocate(2)
OUTPUT = (b"o", b"e")  # frames with output of a rank
INTERVAL = 1  # seconds between two states of a progress bar in the log
MOST_ROWS = 256  # of a screen whose states wait for that
# control sequences (ECMA-48, 8.3): the cursor moves to another row; all but those for colour and style, and backspaces
MOVE = re.compile(rb"\x1b\[[0-9]{0,3}[ABEF]")
CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-ln-~]|\x08")
BLANK = b" \t\x08"
STYLE = re.compile(rb"\x1b\[[0-?]*m")
# what ends a text on the screen: a newline, a carriage return, or another row
END = re.compile(rb"\r*(\n)|\r+|\x1b\[([0-9]{0,3})([ABEF])")


def fallocate(file, mode, length):
    """fallocate(2) for the file's first bytes."""
    call = ctypes.CDLL(None).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    call(file, mode, 0, length)


def reserve(file):
    """Reserves room on the disk without growing the file, so that a later write fits even if the disk is full by
    then."""
    fallocate(file, KEEP_SIZE, RESERVED)


class Log:
    """The log in which one rank, or the job supervisor (as rank 0), writes its frames."""

    def __init__(self, directory, rank=0):
        self.directory, self.rank = directory, rank
        self.file = self.open("log")
        self.limit = None  # bytes that the log may take on this node
        self.freed = 0  # bytes at its start whose blocks were freed
        self.lost = 0  # lines of output that a full disk did not take
        self.torn = b""  # ends a line that a full disk cut off

    def open(self, name):
        return os.open(os.path.join(self.directory, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind, lines, attempts=1, at=None):
        """Appends frames in one write: with O_APPEND the writes of several ranks do not mix. A full disk loses output,
        not the training."""
        head = b"%.6f %d %s " % (at or time.time(), self.rank, kind)
        data = self.torn + b"".join(head + line + b"\n" for line in lines)
        while data:
            try:
                data = data[os.write(self.file, data):]
                self.torn = b"\n"
            except OSError:
                attempts -= 1
                if attempts <= 0:
                    self.lost += data.lstrip(b"\n").count(b"\n") if kind in OUTPUT else 0
                    return
                time.sleep(1)
        self.torn = b""
        if self.limit:
            self.free_oldest()

    def free_oldest(self):
        """Frees the blocks of the oldest part of the log if the log exceeds its limit. The bytes keep their offsets, so
        that a reader continues where it was."""
        start = os.fstat(self.file).st_size - self.limit
        if start >= self.freed + self.limit // 8:
            self.freed = start
            fallocate(self.file, KEEP_SIZE | PUNCH_HOLE, start)

    def reserve_states(self):
        try:
            states = self.open("states")
            reserve(states)
            os.close(states)
        except OSError:
            pass

    def state(self, kind, text, at=None):
        """Writes a frame about the rank's progress, also into `states`: it shows which rank failed first, even if
        earlier output or a full disk delays the frame in the log."""
        at = at or time.time()
        self.note(kind, text, at)
        self.write(kind, [text], attempts=3 if kind == b"x" else 1, at=at)

    def note(self, kind, text, at, most=None):
        """Writes a frame into `states` only. `most`: the bytes that this file may have before."""
        try:
            states = self.open("states")
            if most is None or os.fstat(states).st_size < most:
                os.write(states, b"%.6f %d %s %s\n" % (at, self.rank, kind, text))
            os.close(states)
        except OSError:
            pass


def updates(line):
    """The states of a progress bar that overwrote one another in a line."""
    return [part for part in line.split(b"\r") if part]


def is_visible(text):
    """Whether a text shows anything on a screen."""
    return bool(text.strip(BLANK)) and (b"\x1b" not in text
                                        or bool(STYLE.sub(b"", CONTROL.sub(b"", text)).strip(BLANK)))


class Lines:
    """Turns a stream's bytes into whole lines; each state of a progress bar is one. A line without an end is shown
    after a second. `see` is called with each line; a true result keeps the line out of the log."""

    def __init__(self, log, kind, see=None):
        self.log, self.kind, self.see = log, kind, see
        self.rest, self.since = b"", 0.0

    def take(self, data):
        lines, self.rest = self.split(self.rest + data)
        self.since = time.monotonic()
        while len(self.rest) > LONGEST:
            lines += self.unseen([self.rest[:LONGEST]])
            self.rest = self.rest[LONGEST:]
        self.show(lines)

    def split(self, data):
        """The lines of the bytes, and those after the last line."""
        *whole, rest = data.split(b"\n")
        lines = [part for line in whole for part in updates(line) or [b""]]
        # the last state of an unfinished line may still grow
        last = rest.rstrip(b"\r").rfind(b"\r") + 1
        return self.unseen(lines + updates(rest[:last])), rest[last:]

    def unseen(self, lines):
        return [line for line in lines if not self.see(line)] if self.see else lines

    def show(self, lines):
        if lines:
            self.log.write(self.kind, lines)

    def idle(self):
        """Shows a line that has waited for its end for a second."""
        if self.rest and time.monotonic() - self.since > 1:
            self.end()

    def end(self):
        self.show(self.unseen(updates(self.rest)))
        self.rest = b""


class LastStates(Lines):
    """Frames of lines in which a progress bar has only its newest state, once a second. A state is text that the next
    one overwrites, because it ends with a carriage return or the cursor has moved up to its row. A row's last text is
    never left out: a terminal would still show it."""

    def __init__(self, log, kind, see=None):
        super().__init__(log, kind, see)
        self.row = self.bottom = 0  # that of the cursor, and the last one
        self.states = {}  # rows to their newest texts, which are not in the log yet
        self.due = self.shown = 0.0  # when they are to be there; when the last ones came there
        self.has_row = False  # whether the log has a text of the cursor's row

    def split(self, data):
        is_plain = not self.states and self.row == self.bottom and b"\r" not in data
        if is_plain and not (b"\x1b[" in data and MOVE.search(data)):
            *lines, rest = data.split(b"\n")
            if lines and self.has_row:
                self.has_row = False
                lines = lines if lines[0] else lines[1:]
            return self.unseen(lines), rest
        lines, start = [], 0
        for end in END.finditer(data):
            newline, count, direction = end.groups()
            if end.end() == len(data) and not newline and not direction:
                break  # a newline may follow the carriage return
            wanted = self.unseen([data[start:end.start()]])
            lines += [line for text in wanted for line in (self.finish(text) if newline else self.overwrite(text))]
            if newline or direction:
                self.move(-int(count or 1) if direction in (b"A", b"F") else int(count or 1), newline)
            start = end.end()
        return lines, data[start:]

    def move(self, rows, adds):
        """Moves the cursor by so many rows. Only a newline adds one at the end."""
        self.row = self.row + rows if adds else min(self.row + rows, self.bottom)
        self.bottom = max(self.row, self.bottom)
        self.has_row = False

    def finish(self, text):
        """The lines for the log after a newline that follows this text."""
        if self.row < self.bottom or self.states.keys() - {self.row}:
            # the cursor has been further up, and may return to this row
            return self.overwrite(text)
        state = self.states.pop(self.row, b"")
        text = text if is_visible(text) else state or text
        return [text] if text or not self.has_row else []

    def overwrite(self, text):
        """Keeps the row's newest text. Returns the lines for the log if there are too many."""
        if not is_visible(text):
            return []
        lines = self.take_states() if len(self.states) >= MOST_ROWS and self.row not in self.states else []
        if not self.states:
            self.due = time.monotonic() + INTERVAL
        self.states[self.row] = text
        return lines

    def take_states(self):
        lines = [CONTROL.sub(b"", self.states[row]) for row in sorted(self.states)]
        self.has_row = self.has_row or self.row in self.states
        self.states, self.shown = {}, time.monotonic()
        return lines

    def idle(self):
        now = time.monotonic()
        if self.rest and now - max(self.since, self.shown) > INTERVAL:
            self.end()
        elif self.states and now >= self.due:
            self.show(self.take_states())

    def end(self):
        rest, self.rest = self.rest, b""
        text = rest.rstrip(b"\r")
        if self.states or rest != text:
            lines = [line for text in self.unseen([text]) for line in self.overwrite(text)]
            lines += self.take_states()
        else:
            lines = self.unseen([text] if text else [])
        self.has_row = self.has_row or bool(lines)
        self.shown = time.monotonic()
        self.show(lines)
