"""What `hvdctl verify` runs on every rank: a real initialization, a sum over all ranks whose result is known, and what this rank sees
of its machine. One JSON line on standard output. The arguments are the modules over which the ranks may communicate, in order of
preference; the first that works in this image counts."""
import importlib
import json
import os
import platform
import socket
import subprocess
import sys


def horovod(module):
    hvd, framework = importlib.import_module("horovod." + module), importlib.import_module(module)
    hvd.init()
    one = {"torch": lambda: framework.tensor([hvd.rank() + 1], dtype=framework.int64),
           "tensorflow": lambda: framework.constant([hvd.rank() + 1], dtype=framework.int64),
           "mxnet": lambda: framework.nd.array([hvd.rank() + 1], dtype="int64")}[module]()
    how = {"average": False} if module == "mxnet" else {"op": hvd.Sum}
    total = hvd.allreduce(one, name="verify", **how)
    total = int(total.asscalar() if module == "mxnet" else total[0])
    return hvd.rank(), hvd.size(), hvd.local_rank(), total, hvd.shutdown, framework, "Horovod " + importlib.import_module("horovod").__version__


def torch():
    framework = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    distributed.init_process_group("gloo")
    value = framework.tensor([distributed.get_rank() + 1], dtype=framework.int64)
    distributed.all_reduce(value)

    def end():
        distributed.barrier()
        distributed.destroy_process_group()

    rank, size, local = distributed.get_rank(), distributed.get_world_size(), int(os.environ["LOCAL_RANK"])
    return rank, size, local, int(value[0]), end, framework, "torch.distributed with Gloo"


def mpi4py():
    package, mpi = importlib.import_module("mpi4py"), importlib.import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    local = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", 0))
    return world.Get_rank(), world.Get_size(), local, world.allreduce(world.Get_rank() + 1), world.Barrier, package, mpi.Get_library_version().split(",")[0]


BACKENDS = {
    "horovod.torch": lambda: horovod("torch"),
    "horovod.tensorflow": lambda: horovod("tensorflow"),
    "horovod.mxnet": lambda: horovod("mxnet"),
    "torch": torch,
    "mpi4py": mpi4py,
}


def usable(module):
    """Returns whether the module is in this image, and why not if it is broken."""
    try:
        importlib.import_module(module)
        return True, None
    except ModuleNotFoundError as error:
        return False, None if error.name and module.startswith(error.name) else str(error)
    except Exception as error:  # a broken build raises anything
        return False, (str(error) or repr(error)).splitlines()[0]


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = listed.stdout.decode(errors="replace").splitlines()
    return lines if listed.returncode == 0 else None


def main(modules):
    reasons = []
    for module in modules:
        is_usable, reason = usable(module)
        if is_usable:
            break
        reasons += ["%s: %s" % (module, reason)] if reason else []
    else:
        sys.exit("nothing in this image lets the ranks communicate (%s): %s" % (", ".join(modules), "; ".join(reasons) or "none is installed"))
    rank, size, local_rank, total, end, framework, library = BACKENDS[module]()
    print(json.dumps({
        "rank": rank,
        "size": size,
        "local_rank": local_rank,
        "sum": total,
        "hostname": socket.gethostname(),
        "gpus": gpus(),
        "framework": "%s %s" % (framework.__name__, framework.__version__),
        "library": library,
        "python": platform.python_version(),
    }), flush=True)
    end()


main(sys.argv[1:])
