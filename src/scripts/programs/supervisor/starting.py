"""The program of a rank before its start, and why it cannot be started, as far as its file shows that:
the kernel's words name the program for what is wrong with its first line. model/start_fault.rs has the same faults, and
makes the sentence for people."""
import contextlib
import errno
import fcntl
import os
import re
import shutil
import struct
import termios
import tty

HEAD = 4096  # bytes of a file that are read
MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-8 and UTF-16
MACOS = (b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe")
JAVA_OR_MACOS = b"\xca\xfe\xba\xbe"  # a class of Java's, or a program for several processors
PORTABLE = (b"MZqFpD='", b"jartsr='")  # actually portable executables, which a shell can start
BINARY = MACOS + (b"\x7fELF", b"MZ", JAVA_OR_MACOS)


def find(program, cwd, path):
    """The file that a program is started from, or None."""
    if "/" in program:
        file = os.path.join(cwd, program)
        return file if os.path.exists(file) else None
    return shutil.which(program, path=path)


def available(argv, is_default, path):
    """The command as the image can start it: the default of a project has `python3` in place of a `python` that is
    missing."""
    if is_default and argv[0] == "python" and not shutil.which("python",
                                                               path=path) and shutil.which("python3", path=path):
        return ["python3"] + argv[1:]
    return argv


def head(file, most=HEAD):
    try:
        with open(file, "rb") as opened:
            return opened.read(most)
    except OSError:
        return b""


def missing(program, cwd, path):
    """Which fault hides a program or what it needs, and what that is about."""
    file = find(program, cwd, path)
    if not file:
        if "/" not in program and os.path.isfile(os.path.join(cwd, program)):
            return "not_in_path", cwd
        return ("only_python3", None) if program == "python" and shutil.which("python3", path=path) else None
    text = head(file)
    if text.startswith(b"#!"):
        words = os.fsdecode(text[2:].split(b"\n")[0].strip(b" \t")[:200]).replace("\t", " ").split(" ")
        if words[0].endswith("\r"):
            return "line_ends", words[0][:-1]
        return None if os.path.exists(words[0]) else ("interpreter_missing", words[0])
    return ("loader_missing", None) if text.startswith(b"\x7fELF") else None


def unsuitable(program, cwd, path):
    """The fault of the format of a program's file."""
    text = head(find(program, cwd, path) or os.devnull)
    if text.startswith(MARKS):
        return "byte_order_mark", None
    if text.startswith(PORTABLE):
        return "portable", None
    if text.startswith(b"MZ"):
        return "other_system", "Windows"
    if text.startswith(MACOS):
        return "other_system", "macOS"
    if text.startswith(JAVA_OR_MACOS):
        return "other_system", "Java or macOS"
    if text.startswith(b"\x7fELF"):
        return "other_processor", None
    return None if text.startswith(b"#!") else ("no_interpreter", None)


def forbidden(program, cwd, path):
    """The fault for which a program may not be executed."""
    file = find(program, cwd, path)
    if not file or not os.path.isfile(file) or os.stat(file).st_mode & 0o111:
        return None
    text = head(file)
    if text.startswith(b"#!"):
        return "not_executable", os.fsdecode(text.split(b"\n")[0].rstrip()[:200])
    return ("not_executable" if text.startswith(BINARY) else "no_interpreter_either"), None


# a Python in a command, a script's first line or a script itself; or nohup, which writes to a file of its own in place
# of a terminal
PYTHON = re.compile(rb"(?:^|[^\w.-])(?:(?:python|pypy)[0-9.]*|nohup)(?![\w-])|\.py(?!\w)")
SHOWN = 1 << 16  # bytes of a script in which it is looked for
ROWS, COLUMNS = 24, 80  # of a terminal


def runs_python(argv, cwd, path):
    """Whether the program is Python, or a script that starts it. Those write each line at once (PYTHONUNBUFFERED)."""
    words = [os.fsencode(word) for word in argv]
    if any(map(PYTHON.search, words)):
        return True
    # the program itself, and what a shell or another wrapper reads
    for word in words[:4]:
        with contextlib.suppress(OSError, ValueError):
            file = find(os.fsdecode(word), cwd, path) if word == words[0] else os.path.join(cwd, os.fsdecode(word))
            text = head(file, SHOWN) if file and os.path.isfile(file) else b""
            if (text.startswith(b"#!") or word.endswith(b".sh")) and PYTHON.search(text):
                return True
    return False


def terminal():
    """Returns the two ends of a pseudo-terminal for the output of a program, which writes each line there at once, and
    passes each byte as it is; None if there is none. It controls no process."""
    try:
        ours, theirs = os.openpty()
        tty.setraw(theirs)
        # programs that draw on a terminal expect one that has a size
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        return ours, theirs
    except (OSError, termios.error):
        return None


FAULTS = {errno.ENOENT: missing, errno.ENOEXEC: unsuitable, errno.EACCES: forbidden}
LONGEST = 4096  # characters of a program's name


def failure(program, error, cwd, path):
    """Why a program could not be started in `cwd` with this PATH. The error may name something else: that directory."""
    number = getattr(error, "errno", None)
    # Python 3.7 appends the name to strerror
    program, cause = os.fsdecode(program), os.strerror(number) if number else str(error)
    other = os.fsdecode(getattr(error, "filename", None) or program)
    if other != program:
        return {"program": program[:LONGEST], "error": "%s: %s" % (other[:LONGEST], cause)}
    fault = about = None
    with contextlib.suppress(OSError, ValueError, TypeError):
        fault, about = FAULTS.get(number, lambda *_: None)(program, cwd, path)
    return {"program": program[:LONGEST], "error": cause, "fault": fault, "about": about}
