"""Runs a program on a terminal of its own, whose other end is standard input and output. Arguments: the program's.
Standard input has frames: a byte `d` or `s`, two bytes, and for `d` as many bytes of what was typed as these say; for
`s` they are the rows, and the next two the columns. When standard input ends, the program gets SIGHUP, as if the
terminal were closed."""
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios

HEADER = struct.Struct(">cH")


class Terminal:
    """The program's terminal: what was typed and is not taken yet, and frames that are not complete yet."""

    def __init__(self, file):
        self.file, self.typed, self.frames = file, b"", b""
        os.set_blocking(file, False)

    def take(self, data):
        """Takes a part of standard input."""
        self.frames += data
        while len(self.frames) >= HEADER.size:
            kind, number = HEADER.unpack_from(self.frames)
            end = HEADER.size + (2 if kind == b"s" else number)
            if len(self.frames) < end:
                return
            rest, self.frames = self.frames[HEADER.size:end], self.frames[end:]
            if kind == b"s":
                size = struct.pack("HHHH", number, struct.unpack(">H", rest)[0], 0, 0)
                fcntl.ioctl(self.file, termios.TIOCSWINSZ, size)
            else:
                self.typed += rest

    def show(self):
        """Passes on what was written. Returns whether there may be more: no process may have the terminal open any
        more."""
        try:
            data = os.read(self.file, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        while data:
            data = data[os.write(1, data):]
        return True


def has_ended(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def pass_on(terminal, child):
    """Passes on what is typed and written until the program has ended, its terminal is closed, or standard input
    ends."""
    while True:
        # a program in the background may keep the terminal open: what the one itself has written is there already
        is_over = has_ended(child)
        reads = [terminal.file] + [0] * (len(terminal.typed) < 1 << 16)
        ready, writable, _ = select.select(reads, [terminal.file] * bool(terminal.typed), [], 0 if is_over else 0.2)
        if terminal.file in ready:
            if not terminal.show():
                return
        elif is_over:
            return
        if writable:
            with contextlib.suppress(BlockingIOError):
                terminal.typed = terminal.typed[os.write(terminal.file, terminal.typed):]
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return
            terminal.take(data)


def main():
    child, terminal = pty.fork()
    if child == 0:
        try:
            os.execvp(sys.argv[1], sys.argv[1:])
        except OSError as error:
            print("%s: %s" % (sys.argv[1], error.strerror), flush=True)
            os._exit(127)
    try:
        pass_on(Terminal(terminal), child)
    finally:
        os.close(terminal)  # the program gets SIGHUP if it is still there
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(5)
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main())
