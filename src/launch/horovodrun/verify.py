"""What `hvdctl verify` runs on every rank: a real init, an allreduce whose result is known, and what this rank sees
of its machine. One JSON line on standard output."""
import importlib
import importlib.util
import json
import platform
import socket
import subprocess
import sys


def load():
    """The first framework whose Horovod part works in this image; PyTorch first because it loads fastest."""
    reasons = []
    for name in ("torch", "tensorflow", "mxnet"):
        if importlib.util.find_spec(name) is None:
            continue
        try:
            hvd = importlib.import_module("horovod." + name)
            return name, importlib.import_module(name), hvd
        except Exception as error:  # a build without this framework raises ImportError, a broken one anything
            reasons.append("%s: %s" % (name, str(error).splitlines()[0] if str(error) else repr(error)))
    sys.exit("no framework in this image works with Horovod: %s" % ("; ".join(reasons) or "none is installed"))


def total(name, framework, hvd, value):
    """The sum of `value` over all ranks."""
    if name == "torch":
        return int(hvd.allreduce(framework.tensor([value], dtype=framework.int64), op=hvd.Sum, name="verify")[0])
    if name == "tensorflow":
        return int(hvd.allreduce(framework.constant([value], dtype=framework.int64), op=hvd.Sum, name="verify")[0])
    return int(hvd.allreduce(framework.nd.array([value], dtype="int64"), average=False, name="verify").asscalar())


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = listed.stdout.decode(errors="replace").splitlines()
    return lines if listed.returncode == 0 else None


name, framework, hvd = load()
hvd.init()
size = hvd.size()
print(json.dumps({
    "rank": hvd.rank(),
    "size": size,
    "local_rank": hvd.local_rank(),
    "sum": total(name, framework, hvd, hvd.rank() + 1),
    "hostname": socket.gethostname(),
    "gpus": gpus(),
    "framework": "%s %s" % (name, framework.__version__),
    "horovod": importlib.import_module("horovod").__version__,
    "python": platform.python_version(),
}), flush=True)
hvd.shutdown()
