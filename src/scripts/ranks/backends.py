"""The libraries over which the ranks of `hvdctl verify` and `hvdctl bench` communicate, behind one interface: arrays of
a type, made by repeating the same numbers, and collective operations on them. A backend initializes itself when it is
made. The program that uses it has the modules to try as arguments, in order of preference; the first that works in this
image counts."""
import array
import importlib
import os
import socket
import sys

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}


def free_memory():
    """Returns the bytes that this rank may use: its share of the memory of its machine and its container."""
    names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE")
    ranks = max([int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()] or [1])
    free = []
    try:
        with open("/proc/meminfo") as file:
            free += [1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/memory.max") as most, open("/sys/fs/cgroup/memory.current") as used:
            free.append(int(most.read()) - int(used.read()))
    except (OSError, ValueError):  # there is no limit
        pass
    return min(free or [1 << 30]) // max(1, ranks)


class Torch:
    """Arrays of PyTorch on the CPU, or on the GPU of this rank."""

    def __init__(self, framework, gpu=None):
        self.framework, self.gpu = framework, gpu
        self.device = framework.device("cpu" if gpu is None else "cuda:%d" % gpu)

    @classmethod
    def on_gpu(cls, framework, local_rank):
        """Returns the arrays on the GPU that this rank uses, if it has one."""
        if not framework.cuda.is_available():
            return cls(framework)
        gpu = local_rank % framework.cuda.device_count()
        framework.cuda.set_device(gpu)
        return cls(framework, gpu)

    def name(self):
        return "cpu" if self.gpu is None else self.framework.cuda.get_device_name(self.gpu)

    def free(self):
        """Returns the bytes that this rank may use."""
        return free_memory() if self.gpu is None else self.framework.cuda.mem_get_info(self.gpu)[0]

    def wait(self):
        if self.gpu is not None:
            self.framework.cuda.synchronize(self.gpu)

    def tile(self, numbers, dtype, count):
        """Returns an array of `count` elements in which the numbers repeat."""
        period = self.framework.tensor(numbers, dtype=getattr(self.framework, dtype), device=self.device)
        return period.repeat(-(-count // len(numbers)))[:count].contiguous()

    def integers(self, numbers):
        return self.framework.tensor(numbers, dtype=self.framework.int64)

    def copy(self, into, values):
        into.copy_(values)
        return into

    def differences(self, values, expected, most):
        """Returns how many elements differ, and the first of them with their indices."""
        bits = self.framework.int32 if values.element_size() == 4 else self.framework.int16
        wrong = values.view(bits) != expected.view(bits)
        count = int(wrong.sum())
        if count == 0:
            return 0, []
        indices = wrong.nonzero().flatten()[:most]
        return count, list(zip(indices.tolist(), values[indices].float().tolist()))

    def product(self, side):
        matrix = self.framework.ones(side, side, device=self.device)
        return lambda: self.framework.mm(matrix, matrix)

    def copying(self, count):
        values = self.framework.ones(count, device=self.device)
        into = self.framework.empty_like(values)
        return lambda: into.copy_(values)


class TensorFlow:
    """Arrays of TensorFlow, where it puts them."""

    def __init__(self, framework):
        self.framework = framework

    def name(self):
        gpus = self.framework.config.list_physical_devices("GPU")
        return gpus[0].name if gpus else "cpu"

    def free(self):
        return free_memory()

    def wait(self):
        pass

    def tile(self, numbers, dtype, count):
        period = self.framework.constant(numbers, dtype=getattr(self.framework, dtype))
        return self.framework.tile(period, [-(-count // len(numbers))])[:count]

    def integers(self, numbers):
        return self.framework.constant(numbers, dtype=self.framework.int64)

    def copy(self, _into, values):
        return self.framework.identity(values)

    def differences(self, values, expected, most):
        values, expected = (self.framework.cast(each, self.framework.float32) for each in (values, expected))
        indices = self.framework.where(values != expected)[:, 0].numpy().tolist()
        return len(indices), [(index, float(values[index])) for index in indices[:most]]

    def product(self, side):
        matrix = self.framework.ones([side, side])
        return lambda: self.framework.linalg.matmul(matrix, matrix).numpy()

    def copying(self, count):
        values = self.framework.ones([count])
        return lambda: values + 0.0


class Buffers:
    """Arrays of Python itself."""

    def name(self):
        return "cpu"

    def free(self):
        return free_memory()

    def wait(self):
        pass

    def tile(self, numbers, dtype, count):
        if dtype != "float32":
            raise TypeError("no %s" % dtype)
        values = array.array("f", numbers) * -(-count // len(numbers))
        del values[count:]
        return values

    def integers(self, numbers):
        return array.array("q", numbers)

    def copy(self, into, values):
        memoryview(into)[:] = memoryview(values)
        return into

    def differences(self, values, expected, most):
        if values.tobytes() == expected.tobytes():
            return 0, []
        wrong = [index for index, (value, right) in enumerate(zip(values, expected)) if value != right]
        return len(wrong), [(index, values[index]) for index in wrong[:most]]

    def product(self, side):
        try:
            numpy = importlib.import_module("numpy")
        except ImportError:
            raise TypeError("no matrix product without numpy") from None
        matrix = numpy.ones((side, side), dtype="float32")
        return lambda: matrix @ matrix

    def copying(self, count):
        values, into = memoryview(bytearray(4 * count)), memoryview(bytearray(4 * count))

        def copy():
            into[:] = values
        return copy


class Horovod:
    """Horovod with the framework of a module."""

    def __init__(self, module):
        self.hvd, self.framework = importlib.import_module("horovod." + module), importlib.import_module(module)
        self.hvd.init()
        self.rank, self.size, self.local_rank = self.hvd.rank(), self.hvd.size(), self.hvd.local_rank()
        self.is_mxnet = module == "mxnet"
        self.library = "Horovod " + importlib.import_module("horovod").__version__
        self.arrays = None
        if module == "torch":
            self.arrays = Torch.on_gpu(self.framework, self.local_rank)
        elif module == "tensorflow":
            self.arrays = TensorFlow(self.framework)

    def total(self, number):
        """Returns the sum of the whole numbers of all ranks."""
        if self.is_mxnet:
            one = self.framework.nd.array([number], dtype="int64")
            return int(self.hvd.allreduce(one, name="total", average=False).asscalar())
        return int(self.hvd.allreduce(self.arrays.integers([number]), name="total", op=self.hvd.Sum)[0])

    def from_first(self, number):
        """Returns the whole number of rank 0."""
        return int(self.hvd.broadcast(self.arrays.integers([number]), 0, name="from_first")[0])

    def barrier(self):
        self.total(0)

    def allreduce(self, name, values, _out):
        return self.hvd.allreduce(values, name=name, op=self.hvd.Sum)

    def allgather(self, name, values, _out):
        return self.hvd.allgather(values, name=name)

    def reducescatter(self, name, values, _out):
        return self.hvd.reducescatter(values, name=name, op=self.hvd.Sum)

    def broadcast(self, name, values, _out):
        return self.hvd.broadcast(values, 0, name=name)

    def alltoall(self, name, values, _out):
        result = self.hvd.alltoall(values, name=name)
        return result[0] if isinstance(result, tuple) else result

    def end(self):
        self.hvd.shutdown()


class TorchDistributed:
    """torch.distributed with NCCL if every rank has a GPU, else with Gloo."""

    def __init__(self):
        self.framework = importlib.import_module("torch")
        self.distributed = importlib.import_module("torch.distributed")
        self.distributed.init_process_group("gloo")
        self.rank, self.size = self.distributed.get_rank(), self.distributed.get_world_size()
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.library, self.group = "torch.distributed with Gloo", None
        has_nccl = self.framework.cuda.is_available() and self.distributed.is_nccl_available()
        # NCCL refuses two ranks on one GPU
        has_own = has_nccl and self.local_rank < self.framework.cuda.device_count()
        owners = self.total(int(has_own))
        if 0 < owners < self.size and not has_own:
            place = self.rank, socket.gethostname()
            self.note = "rank %d on %s has no GPU of its own, so all ranks use the processor" % place
        if owners == self.size:
            self.arrays = Torch.on_gpu(self.framework, self.local_rank)
            self.group = self.distributed.new_group(backend="nccl")
            self.library = "torch.distributed with NCCL"
        else:
            self.arrays = Torch(self.framework)

    def total(self, number):
        value = self.framework.tensor([number], dtype=self.framework.int64)
        self.distributed.all_reduce(value)
        return int(value[0])

    def from_first(self, number):
        value = self.framework.tensor([number], dtype=self.framework.int64)
        self.distributed.broadcast(value, 0)
        return int(value[0])

    def barrier(self):
        self.total(0)

    def allreduce(self, _name, values, _out):
        self.distributed.all_reduce(values, group=self.group)
        return values

    def allgather(self, _name, values, out):
        if self.group is None:
            # Gloo of PyTorch 1 takes only lists
            self.distributed.all_gather(list(out.chunk(self.size)), values)
        else:
            self.distributed.all_gather_into_tensor(out, values, group=self.group)
        return out

    def reducescatter(self, _name, values, out):
        self.distributed.reduce_scatter_tensor(out, values, group=self.group)
        return out

    def broadcast(self, _name, values, _out):
        self.distributed.broadcast(values, 0, group=self.group)
        return values

    def alltoall(self, _name, values, out):
        self.distributed.all_to_all_single(out, values, group=self.group)
        return out

    def end(self):
        self.distributed.barrier()
        self.distributed.destroy_process_group()


class Mpi4py:
    """mpi4py, with Python's own arrays. MPI has no sums of numbers of two bytes."""

    def __init__(self):
        self.framework, self.mpi = importlib.import_module("mpi4py"), importlib.import_module("mpi4py.MPI")
        self.world = self.mpi.COMM_WORLD
        self.rank, self.size = self.world.Get_rank(), self.world.Get_size()
        self.local_rank = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or os.environ.get("SLURM_LOCALID", 0))
        self.library = self.mpi.Get_library_version().split(",")[0]
        self.arrays = Buffers()

    def total(self, number):
        return self.world.allreduce(number)

    def from_first(self, number):
        return self.world.bcast(number, root=0)

    def barrier(self):
        self.world.Barrier()

    def allreduce(self, _name, values, out):
        self.world.Allreduce(values, out)
        return out

    def allgather(self, _name, values, out):
        self.world.Allgather(values, out)
        return out

    def reducescatter(self, _name, values, out):
        self.world.Reduce_scatter_block(values, out)
        return out

    def broadcast(self, _name, values, _out):
        self.world.Bcast(values, root=0)
        return values

    def alltoall(self, _name, values, out):
        self.world.Alltoall(values, out)
        return out

    def end(self):
        self.world.Barrier()


BACKENDS = {
    "horovod.torch": lambda: Horovod("torch"),
    "horovod.tensorflow": lambda: Horovod("tensorflow"),
    "horovod.mxnet": lambda: Horovod("mxnet"),
    "torch": TorchDistributed,
    "mpi4py": Mpi4py,
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


def choose(modules):
    """Returns the first backend that works in this image, initialized, or ends the program."""
    reasons = []
    for module in modules:
        is_usable, reason = usable(module)
        if is_usable:
            return BACKENDS[module]()
        reasons += ["%s: %s" % (module, reason)] if reason else []
    sys.exit("nothing in this image lets the ranks communicate (%s): %s" %
             (", ".join(modules), "; ".join(reasons) or "none is installed"))


def framework(backend):
    """Returns the name and the version of a backend's framework."""
    return "%s %s" % (backend.framework.__name__, backend.framework.__version__)
