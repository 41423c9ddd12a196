"""Where PyTorch's flight recorder writes what it knows of the last collective operations when one of them fails: by
default into directories of temporary files, which go with the container and which jobs share. A program that sets one
of these variables keeps all of them as they are."""
import contextlib
import os

from here import HERE, JOB

# the prefixes of its files, which end with the rank; PyTorch has renamed the variable
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# likewise of pipes; what is written to one asks that rank for its file
PIPES = ("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
TEMPORARY = "/tmp"


def has_pipes(directory):
    """Returns whether named pipes can be created there: PyTorch ends the program if they cannot."""
    path = os.path.join(directory, "%s.%d.pipe" % (JOB, os.getpid()))
    with contextlib.suppress(OSError):
        os.mkfifo(path, 0o600)
        os.unlink(path)
        return True
    return False


def variables(env, job, temporary=TEMPORARY):
    """The variables that a rank's environment lacks. In a container, every user may write to its directory of temporary
    files: a program may have become another one."""
    own = HERE if "HVDCTL_PROCESS" in os.environ else temporary
    # `fetch` gets what is written to the project
    directory = job["cwd"] if job.get("project") and os.access(job["cwd"], os.W_OK) else own
    name = {temporary: "nccl_trace_rank_", HERE: "nccl_trace."}.get(directory, "nccl_trace_%s_rank_" % JOB)
    pipe = "dump." if own == HERE else "hvdctl-%s.rank" % JOB
    found = {}
    if not any(name in env for name in FILES):
        found.update(dict.fromkeys(FILES, os.path.join(directory, name)))
    if not any(name in env for name in PIPES) and has_pipes(own):
        found.update(dict.fromkeys(PIPES, os.path.join(own, pipe)))
    return found
