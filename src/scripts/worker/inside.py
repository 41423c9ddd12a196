"""Prints what is in the image, as the ranks find it, as "KEY VALUE" lines for checks/details.rs. Runs in the worker and
changes nothing. hvdctl puts lines before it that set NAMES, the nodes' host names, and LIMIT, for how many seconds it
may run; the launchers append programs of their own (src/launch). Frameworks are not imported if their files suffice,
because that takes seconds."""
import os
import sys

# a module in the project or in PYTHONPATH may be named like one of Python's
OF_RANKS, STANDARD = sys.path[:], os.path.dirname(os.__file__)
sys.path[:] = [path for path in OF_RANKS if path in (STANDARD, os.path.join(STANDARD, "lib-dynload"))]
import ctypes  # noqa: E402
import glob  # noqa: E402
import importlib.util  # noqa: E402
import platform  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import socket  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402

FOR_LAUNCHERS = shutil, subprocess  # the programs of launchers use them

try:
    from importlib.metadata import version
except ImportError:
    version = None
sys.path[:] = OF_RANKS

NAMES_LIMIT = 15  # seconds for the addresses of all names
DEADLINE = time.monotonic() + globals()["LIMIT"]
# what is to be read, in this order
left = ["python", "torch", "tensorflow", "mxnet", "jax", "mpi4py", "cuda", "nccl", "ibverbs", "launchers", "horovod",
        "build"]


def say(key, value):
    if key in left:
        left.remove(key)
    if value:
        print(key, " ".join(str(value).split()), flush=True)


def unread(key, why):
    """Says that a value is unknown, which is not the same as nothing."""
    say("unread:" + key, why)


def seconds(limit):
    """A limit in seconds, shortened so that all ends before the deadline."""
    return max(0.5, min(limit, DEADLINE - time.monotonic() - 1))


def give_up():
    """Ends this program at its deadline, and says what it was reading: the file system of the image may not answer."""
    for key in left[:]:
        unread(key, "reading %s did not end within %d s" % (left[0], globals()["LIMIT"]))
    os._exit(0)


def installed(*names):
    for name in names:
        try:
            return version(name)
        except Exception:
            continue
    return None


def directory(module):
    try:
        spec = importlib.util.find_spec(module)
        return list(spec.submodule_search_locations)[0]
    except Exception:
        return None


def torch_version(field):
    """A field of torch/version.py, which torch itself reads."""
    try:
        with open(os.path.join(directory("torch"), "version.py")) as file:
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
        where = directory(module)
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


def ibverbs():
    """The library by which NCCL and MPI use InfiniBand and the like."""
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return None
    return "1"


def addresses(name):
    """Returns the IPv4 addresses of a host name; None if it is unknown."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return list(dict.fromkeys(address[0] for *_, address in found))


watchdog = threading.Timer(globals()["LIMIT"], give_up)
watchdog.daemon = True
watchdog.start()
say("python", platform.python_version())
say("torch", torch_version("__version__") or installed("torch"))
say("tensorflow", installed("tensorflow", "tensorflow-cpu", "tensorflow-gpu"))
say("mxnet", installed("mxnet", "mxnet-cu112"))
say("jax", installed("jax"))
say("mpi4py", installed("mpi4py"))
say("cuda", cuda())
say("nccl", nccl())
say("ibverbs", ibverbs())
# last, and within a time limit: a name server may not answer
found = {}
lookups = [threading.Thread(target=lambda host=host: found.update({host: addresses(host)}), daemon=True)
           for host in globals()["NAMES"]]
for lookup in lookups:
    lookup.start()
limit = time.monotonic() + seconds(NAMES_LIMIT)
for lookup in lookups:
    lookup.join(max(0, limit - time.monotonic()))
for host, resolved in sorted(found.items()):
    print("name:" + host, *(resolved or [""]), flush=True)
