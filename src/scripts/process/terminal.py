"""Runs a program on a terminal of its own, whose other end is standard input and output. Arguments: the program's. Standard input has
frames: a byte `d` or `s`, two bytes, and for `d` as many bytes of what was typed as these say; for `s` they are the rows, and the next
two the columns. When standard input ends, the program gets SIGHUP, as if the terminal were closed."""
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios

HEADER = struct.Struct(">cH")


def read_whole(count):
    """Exactly so many bytes of standard input; nothing at its end."""
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            return b""
        data += part
    return data


def write_all(file, data):
    while data:
        data = data[os.write(file, data):]


def take_frame(terminal):
    """Takes one frame. Returns whether there was one."""
    head = read_whole(HEADER.size)
    if not head:
        return False
    kind, number = HEADER.unpack(head)
    if kind == b"s":
        columns = read_whole(2)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", number, struct.unpack(">H", columns)[0], 0, 0))
    else:
        write_all(terminal, read_whole(number))
    return True


def pass_on(terminal):
    """Passes on what is typed and written until the program's terminal is closed or standard input ends."""
    files = [0, terminal]
    while True:
        ready = select.select(files, [], [])[0]
        if terminal in ready:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # no process has the terminal open any more
                return
            if not data:
                return
            write_all(1, data)
        if 0 in ready and not take_frame(terminal):
            return


def main():
    child, terminal = pty.fork()
    if child == 0:
        try:
            os.execvp(sys.argv[1], sys.argv[1:])
        except OSError as error:
            print("%s: %s" % (sys.argv[1], error.strerror), flush=True)
            os._exit(127)
    try:
        pass_on(terminal)
    finally:
        os.close(terminal)  # the program gets SIGHUP if it is still there
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(5)
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main())
