# Appended to inside.py. Reports the Horovod build of the image.
import subprocess
import sys

# Runs in a process of its own, which contains a framework's output and an import that crashes.
BUILT = """
import importlib, sys
extension = importlib.import_module("horovod." + sys.argv[1])
print(*(name for name in sys.argv[2:] if getattr(extension, name + "_built")()))
"""
IMPORT_LIMIT = 120  # seconds for all of them
OPERATIONS = {"nccl": "NCCL", "ddl": "DDL", "ccl": "CCL", "mpi": "MPI", "gloo": "Gloo"}


def built(framework, deadline):
    """Returns what Horovod's extension for a framework was built with; None if it cannot be imported."""
    if not directory(framework):
        return None
    try:
        argv = [sys.executable, "-c", BUILT, framework] + list(OPERATIONS)
        limit = max(0.5, deadline - time.monotonic())
        answer = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=limit, check=True)
        return answer.stdout.decode(errors="replace").splitlines()[-1].split()
    except subprocess.TimeoutExpired:
        unread("build", "importing horovod.%s timed out" % framework)
        return None
    except subprocess.CalledProcessError as error:
        # for example because memory was short
        if error.returncode < 0:
            unread("build", "importing horovod.%s was ended by signal %d" % (framework, -error.returncode))
        return None
    except Exception:
        return None


def build():
    """Returns what `horovodrun --check-build` shows, which imports each framework up to six times
    (horovod/runner/launch.py, check_build); here each is imported once."""
    deadline = time.monotonic() + seconds(IMPORT_LIMIT)
    modules = [("TensorFlow", "tensorflow"), ("PyTorch", "torch"), ("MXNet", "mxnet")]
    extensions = [(name, built(module, deadline)) for name, module in modules]
    frameworks = [name for name, operations in extensions if operations is not None]
    known = next((operations for _, operations in extensions if operations is not None), [])
    operations = [name for operation, name in OPERATIONS.items() if operation in known]
    controllers = [name for name in ("MPI", "Gloo") if name in operations]
    parts = [("frameworks", frameworks), ("controllers", controllers), ("tensor operations", operations)]
    return "; ".join("%s %s" % (name, ", ".join(ticks)) for name, ticks in parts if ticks)


say("horovod", installed("horovod"))
say("build", build())
