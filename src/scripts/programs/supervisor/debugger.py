"""The stacks of a process that py-spy cannot read, as gdb shows them: only where a person asks for frames of other
languages than Python, since the process does not run while gdb reads it. It goes on whatever becomes of gdb."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
import processes  # noqa: E402

LIMIT = 10  # seconds that gdb may take for all processes of a rank: it reads the symbols of large libraries
REST = 1  # seconds for the end of a gdb that is killed
AFTER = 0.5  # seconds in which a signal of a killed gdb may still stop the process
STOP = 1 << signal.SIGSTOP - 1
# nothing is downloaded, no file of the user's is run, and no values of arguments are shown, which may be secret
SETTINGS = ("set debuginfod enabled off", "set auto-load off", "set pagination off", "set width 0", "set confirm off",
            "set print thread-events off", "set print frame-arguments none", "set python print-stack none")
THREAD = re.compile(r"Thread \d+ \((?:Thread 0x[0-9a-f]+ )?\(?(?:LWP|process) (\d+)\)?\)?(?: \"(.*)\")?")
FRAME = re.compile(r"#\d+ +(?:0x[0-9a-f]+ in )?(.*)")
PLACE = re.compile(r"(.*\)) (?:at|from) (.+?)(?::(\d+))?$")


def find(path):
    """The path of gdb, if there is one."""
    return shutil.which("gdb", path=path) or shutil.which("gdb", path=os.defpath)


def runs_python(pid):
    """Returns whether a process runs Python, also as a part of another program."""
    with contextlib.suppress(OSError):
        if "python" in os.path.basename(os.readlink("/proc/%d/exe" % pid)):
            return True
        with open("/proc/%d/maps" % pid, errors="replace") as file:
            return any("/libpython" in line for line in file)
    return False


def frame(text):
    """The function, the file or library, and the line of a frame."""
    found = PLACE.match(text)
    call, file, line = found.groups() if found else (text, "", None)
    return {"name": call.rpartition(" (")[0] or call, "file": file, "line": int(line or 0)}


def threads(pid, text):
    """The threads that gdb has found in a process, the first one in front."""
    found = []
    for line in text.splitlines():
        thread, one = THREAD.match(line), FRAME.match(line)
        if thread:
            number, name = thread.groups()
            found.append((int(number) != pid, {"name": name or "thread " + number, "active": False, "frames": []}))
        elif one and found:
            found[-1][1]["frames"].append(frame(one.group(1)))
    return [thread for _, thread in sorted(found, key=lambda one: one[0]) if thread["frames"]]


def reason(text):
    """Why gdb has read nothing, in one line of its own words."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("ptrace: ")] or lines[-1:]
    return "gdb: " + (said[0] if said else "it printed nothing")


def is_stopping(pid):
    """Returns whether a signal stops a process, or is about to."""
    if processes.condition(pid) == b"T":
        return True
    with contextlib.suppress(OSError):
        return any((processes.signals("%d/task/%s" % (pid, task), field) or 0) & STOP
                   for task in os.listdir("/proc/%d/task" % pid) for field in (b"SigPnd", b"ShdPnd"))
    return False


def go_on(pid):
    """Lets a process go on that a gdb has stopped which was killed. The kernel ends that it is traced, but SIGSTOP, by
    which gdb begins, may come to the process only then."""
    until = time.monotonic() + AFTER
    while time.monotonic() < until:
        if is_stopping(pid):
            processes.send(signal.SIGCONT, [pid])
        time.sleep(0.02)


def stay_stopped(pid):
    """Waits until a process that a person has stopped is stopped again after gdb, which takes it some time on a busy
    machine, and stops it if it is not."""
    until = time.monotonic() + AFTER
    while time.monotonic() < until:
        if processes.condition(pid) in (b"T", b"X"):
            return
        time.sleep(0.02)
    processes.send(signal.SIGSTOP, [pid])


def end(child):
    """Ends a gdb that takes too long. The kernel lets the process go on. At SIGTERM gdb may leave it stopped, and has
    killed one."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=REST)
    child.stdout.close()
    child.stderr.close()


def read(program, pid, limit, start):
    """The threads of a process. Raises ValueError with the reason if gdb cannot read it in this time. `start`: starts a
    child, as `subprocess.Popen`."""
    was_stopped = is_stopping(pid)
    argv = [program, "-nx", "-batch"]
    for setting in SETTINGS:
        argv += ["-iex", setting]
    argv += ["-p", str(pid), "-ex", "thread apply all backtrace"]
    try:
        child = start(argv, env={"DEBUGINFOD_URLS": "", "PATH": os.defpath, "LC_ALL": "C"}, cwd="/",
                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise ValueError("cannot start gdb: %s" % error.strerror)
    try:
        output, error = child.communicate(timeout=max(limit, 0.01))
    except subprocess.TimeoutExpired:
        end(child)
        raise ValueError("gdb took longer than %g s" % LIMIT)
    finally:
        if was_stopped:
            stay_stopped(pid)
        elif child.returncode is None or child.returncode < 0:
            # it was killed: memory may have run out for it
            go_on(pid)
    found = threads(pid, output.decode(errors="replace"))
    if not found:
        raise ValueError(reason(error.decode(errors="replace")))
    return found
