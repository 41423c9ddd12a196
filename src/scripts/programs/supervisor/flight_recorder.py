"""Where PyTorch's flight recorder writes what it knows of the last collective operations when one of them fails: by
default into directories of temporary files, which go with the container and which jobs share. A program that sets one
of these variables keeps all of them as they are."""
import contextlib
import os
import re
import stat

import processes
from here import HERE, JOB

# the prefixes of its files, which end with the rank; PyTorch has renamed the variable
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# likewise of pipes; what is written to one asks that rank for its file
PIPES = ("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
TEMPORARY = "/tmp"
# those of all of its backends (TORCH_XCCL_…), by what their names end with
ANY_FILE, ANY_PIPE = ("_DUMP_TEMP_FILE", "_DEBUG_INFO_TEMP_FILE"), ("_DEBUG_INFO_PIPE_FILE",)


def has_pipes(directory):
    """Returns whether named pipes can be created there: PyTorch ends the program if they cannot."""
    path = os.path.join(directory, "%s.%d.pipe" % (JOB, os.getpid()))
    with contextlib.suppress(OSError):
        os.mkfifo(path, 0o600)
        os.unlink(path)
        return True
    return False


def variables(env, job, temporary=TEMPORARY, role=None):
    """The variables that a rank's environment lacks. In a container, every user may write to its directory of temporary
    files: a program may have become another one. `role`: the name of its role, as ranks of two have the same
    numbers."""
    own = HERE if "HVDCTL_PROCESS" in os.environ else temporary
    # `fetch` gets what is written to the project
    directory = job["cwd"] if job.get("project") and os.access(job["cwd"], os.W_OK) else own
    name = {temporary: "nccl_trace_rank_", HERE: "nccl_trace."}.get(directory, "nccl_trace_%s_rank_" % JOB)
    pipe = "dump." if own == HERE else "hvdctl-%s.rank" % JOB
    name, pipe = (name + role + ".", pipe + role + ".") if role else (name, pipe)
    found = {}
    if not any(name in env for name in FILES):
        found.update(dict.fromkeys(FILES, os.path.join(directory, name)))
    if not any(name in env for name in PIPES) and has_pipes(own):
        found.update(dict.fromkeys(PIPES, os.path.join(own, pipe)))
    return found


def paths(env, directory, ends):
    """The prefixes that variables of PyTorch have with such names."""
    return [os.path.join(directory, value) for end in ends for name, value in env.items()
            if name.startswith("TORCH_") and name.endswith(end) and value]


def ask(pid):
    """Asks a process of PyTorch for its file. Returns the path of that without the rank, with which PyTorch ends it; an
    empty text if it is not known; None if the process has no pipe for it. The pipe is the one that the process itself
    has open: what has its name may be another file."""
    env = dict(part.decode(errors="surrogateescape").split("=", 1) for part in processes.environment(pid)
               if b"=" in part)
    process = "/proc/%d" % pid
    with contextlib.suppress(OSError):
        directory = os.readlink(process + "/cwd")
        pipes = [os.path.basename(prefix) for prefix in paths(env, directory, ANY_PIPE)]
        for descriptor in os.listdir(process + "/fd") if pipes else []:
            opened = "%s/fd/%s" % (process, descriptor)
            with contextlib.suppress(OSError):
                name = os.path.basename(os.readlink(opened))
                ranks = [re.match(re.escape(prefix) + r"(\d+)\.pipe$", name) for prefix in pipes]
                rank = next(filter(None, ranks), None)
                if rank and write_to(opened):
                    return next(iter(paths(env, directory, ANY_FILE)), "")
    return None


def write_to(path):
    """Writes a byte to a pipe of this login's. Returns whether that is possible without waiting for a reader."""
    status = os.stat(path)
    if not stat.S_ISFIFO(status.st_mode) or status.st_uid != os.geteuid():
        return False
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        return os.write(pipe, b"1") == 1
    finally:
        os.close(pipe)
