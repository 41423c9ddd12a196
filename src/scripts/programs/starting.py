"""Why the program of a rank cannot be started, as far as its file shows it: the kernel's words name the program for what is wrong with
its first line. launch/hints.rs knows these texts."""
import errno
import os
import shutil

HEAD = 4096  # bytes of a file that are read
MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-8 and UTF-16
MACOS = (b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


def find(program, cwd, path):
    """The file that a program is started from, or None."""
    if "/" in program:
        file = os.path.join(cwd, program)
        return file if os.path.exists(file) else None
    return shutil.which(program, path=path)


def available(argv, is_default, path):
    """The command as the image can start it: the default of a project has `python3` in place of a `python` that is missing."""
    if is_default and argv[0] == "python" and not shutil.which("python", path=path) and shutil.which("python3", path=path):
        return ["python3"] + argv[1:]
    return argv


def head(file):
    try:
        with open(file, "rb") as opened:
            return opened.read(HEAD)
    except OSError:
        return b""


def missing(program, cwd, path):
    """Why a program or what it needs is not found."""
    file = find(program, cwd, path)
    if not file:
        if "/" not in program and os.path.isfile(os.path.join(cwd, program)):
            return "./%s is in %s" % (program, cwd)
        return "the image has python3" if program == "python" and shutil.which("python3", path=path) else None
    text = head(file)
    if text.startswith(b"#!"):
        words = os.fsdecode(text[2:].split(b"\n")[0].strip(b" \t")[:200]).replace("\t", " ").split(" ")
        if words[0].endswith("\r"):
            return "its first line names %s\\r (Windows line ends)" % words[0][:-1]
        return None if os.path.exists(words[0]) else "the image has no %s, which its first line names" % words[0]
    return "the image lacks the loader of this program, which was built for another system" if text.startswith(b"\x7fELF") else None


def unsuitable(program, cwd, path):
    """What is wrong with the format of a program's file."""
    text = head(find(program, cwd, path) or os.devnull)
    if text.startswith(MARKS):
        return "it begins with a byte order mark"
    if text.startswith(b"MZ"):
        return "it is a program for Windows"
    if text.startswith(MACOS):
        return "it is a program for macOS"
    if text.startswith(b"\x7fELF"):
        return "it is for another processor"
    return None if text.startswith(b"#!") else "it has no first line #!, which names its interpreter"


def forbidden(program, cwd, path):
    """Why a program may not be executed."""
    file = find(program, cwd, path)
    return "it is not executable" if file and os.path.isfile(file) and not os.stat(file).st_mode & 0o111 else None


REASONS = {errno.ENOENT: missing, errno.ENOEXEC: unsuitable, errno.EACCES: forbidden}


def why(program, number, cwd, path):
    """Why starting a program failed with this error; None if that is not known. `path`: the value of PATH."""
    try:
        return REASONS.get(number, lambda *_: None)(program, cwd, path)
    except (OSError, ValueError):
        return None
