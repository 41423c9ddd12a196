"""What is in the image, as the ranks find it: a "KEY VALUE" line each; read by core/doctor/inside.rs. Runs in the worker
and changes nothing. Frameworks are not imported where their files say it all: that takes seconds."""
import ctypes
import glob
import importlib.util
import os
import platform
import re
import subprocess
import sys

try:
    from importlib.metadata import version
except ImportError:
    version = None


def say(key, value):
    if value:
        print(key, " ".join(str(value).split()), flush=True)


def installed(*names):
    for name in names:
        try:
            return version(name)
        except Exception:
            continue
    return None


def folder(module):
    try:
        spec = importlib.util.find_spec(module)
        return list(spec.submodule_search_locations)[0]
    except Exception:
        return None


def torch_version(field):
    """A field of torch/version.py, which torch itself reads."""
    try:
        with open(os.path.join(folder("torch"), "version.py")) as file:
            found = re.search(r"^%s(?:\s*:[^=]*)?\s*=\s*['\"]([^'\"]+)" % field, file.read(), re.M)
        return found and found.group(1)
    except Exception:
        return None


def cuda():
    if torch_version("cuda"):
        return torch_version("cuda")
    if os.environ.get("CUDA_VERSION"):
        return os.environ["CUDA_VERSION"]
    for path in glob.glob("/usr/local/cuda/version.*"):
        try:
            with open(path) as file:
                found = re.search(r"\d+\.\d+(\.\d+)?", file.read())
            if found:
                return found.group(0)
        except OSError:
            continue
    return None


def nccl():
    places = ["libnccl.so.2"]
    for module in ("nvidia.nccl", "torch"):
        where = folder(module)
        if where:
            places.append(os.path.join(where, "lib", "libnccl.so.2"))
    for place in places:
        try:
            number = ctypes.c_int()
            ctypes.CDLL(place).ncclGetVersion(ctypes.byref(number))
            number = number.value
            # 2.8.4 is 2804, from 2.9 on 2.9.6 is 20906
            major, rest = divmod(number, 10000 if number >= 10000 else 1000)
            return "%d.%d.%d" % (major, rest // 100, rest % 100)
        except Exception:
            continue
    return None


# Runs in a process of its own: what a framework prints, and an import that crashes, stay there.
BUILT = """
import importlib, sys
extension = importlib.import_module("horovod." + sys.argv[1])
print(*(name for name in sys.argv[2:] if getattr(extension, name + "_built")()))
"""
OPERATIONS = {"nccl": "NCCL", "ddl": "DDL", "ccl": "CCL", "mpi": "MPI", "gloo": "Gloo"}


def built(framework):
    """What Horovod's extension for a framework was built with; none where it cannot be imported."""
    if not folder(framework):
        return None
    try:
        argv = [sys.executable, "-c", BUILT, framework] + list(OPERATIONS)
        answer = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=True).stdout
        return answer.decode(errors="replace").splitlines()[-1].split()
    except Exception:
        return None


def build():
    """What `horovodrun --check-build` shows. That imports each framework up to six times (horovod/runner/launch.py, check_build);
    here each is imported once."""
    extensions = [("TensorFlow", built("tensorflow")), ("PyTorch", built("torch")), ("MXNet", built("mxnet"))]
    frameworks = [name for name, operations in extensions if operations is not None]
    known = next((operations for _, operations in extensions if operations is not None), [])
    operations = [name for operation, name in OPERATIONS.items() if operation in known]
    controllers = [name for name in ("MPI", "Gloo") if name in operations]
    parts = [("frameworks", frameworks), ("controllers", controllers), ("tensor operations", operations)]
    return "; ".join("%s %s" % (name, ", ".join(ticks)) for name, ticks in parts if ticks)


def gpus():
    """How many a program here has; none where there is no nvidia-smi to tell."""
    try:
        said = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20).stdout
        return str(sum(line.startswith(b"GPU ") for line in said.splitlines()))
    except Exception:
        return None


say("python", platform.python_version())
say("torch", torch_version("__version__") or installed("torch"))
say("tensorflow", installed("tensorflow", "tensorflow-cpu", "tensorflow-gpu"))
say("mxnet", installed("mxnet", "mxnet-cu112"))
say("horovod", installed("horovod"))
say("cuda", cuda())
say("nccl", nccl())
say("gpus", gpus())
say("build", build())
