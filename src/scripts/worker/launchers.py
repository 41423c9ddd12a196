# Appended to inside.py. Reports the launchers of the image.
import shutil
import subprocess

MPIRUN_LIMIT = 60  # seconds
MPIRUNS = [
    (rb"\(?Open MPI\)? ?v?(\d+(?:\.\d+)*)", "Open MPI %s"),
    (rb"\(?OpenRTE\)? ?v?(\d+(?:\.\d+)*)", "OpenRTE %s"),
    (rb"Intel\(R\) MPI.*?Version (\d+(?:\.\d+)*)", "Intel MPI %s"),
    (rb"HYDRA[^\n]*\s+Version:\s+(\d+(?:\.\d+)*)", "MPICH %s"),
]


def mpirun():
    limit = seconds(MPIRUN_LIMIT)
    try:
        output = subprocess.run(["mpirun", "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                timeout=limit).stdout
        return next((library % found.group(1).decode() for pattern, library in MPIRUNS
                     for found in re.finditer(pattern, output)), None)
    except subprocess.TimeoutExpired:
        unread("launchers", "mpirun --version did not end within %d s" % limit)
        return "version unknown"
    except Exception:
        return None


# A program and the version of what it belongs to, for each launcher that is a program.
LAUNCHERS = [
    ("horovodrun", lambda: "Horovod %s" % installed("horovod")),
    ("torchrun", lambda: "PyTorch %s" % (torch_version("__version__") or installed("torch"))),
    ("mpirun", lambda: mpirun() or "not Open MPI"),
]


def launchers():
    found = ["%s (%s)" % (program, version()) for program, version in LAUNCHERS if shutil.which(program)]
    return ", ".join(found + ["env"])


say("launchers", launchers())


