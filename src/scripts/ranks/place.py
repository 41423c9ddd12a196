"""Where a rank runs: its cores, their NUMA nodes, and the GPU or MIG device that a program uses by its local rank."""
import ctypes
import json
import os
import re
import subprocess
import sys

import binding

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
LIMIT = 30  # seconds for the driver, which may hang
FAILURE = "CUDA does not work there: %s failed: %s"


class Uuid(ctypes.Structure):
    """CUuuid, 16 bytes."""

    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


class Refused(Exception):
    """A call of CUDA's driver failed, with this code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def call(driver, name, *arguments):
    code = getattr(driver, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(text))
        raise Refused(code, FAILURE % (name, (text.value or b"error %d" % code).decode(errors="replace")))


def identity(raw, is_mig):
    """A UUID as nvidia-smi writes it."""
    digits = bytes(raw).hex()
    parts = re.match("(.{8})(.{4})(.{4})(.{4})(.{12})", digits).groups()
    return ("MIG-" if is_mig else "GPU-") + "-".join(parts)


def own_device(driver, local_rank, is_mig):
    """The UUID and the place on the PCI bus of the device that a program with this local rank uses; both are None
    without one. No context is made, so no memory of the GPU is used."""
    call(driver, "cuInit", 0)
    number, device = ctypes.c_int(), ctypes.c_int()
    call(driver, "cuDeviceGetCount", ctypes.byref(number))
    if not number.value:
        return None, None
    call(driver, "cuDeviceGet", ctypes.byref(device), local_rank % number.value)
    uuid, bus = Uuid(), ctypes.create_string_buffer(32)
    # the second version returns that of a MIG device instead of its GPU's
    get = "cuDeviceGetUuid_v2" if hasattr(driver, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    call(driver, get, ctypes.byref(uuid), device)
    call(driver, "cuDeviceGetPCIBusId", bus, len(bus), device)
    return identity(uuid.bytes, is_mig), bus.value.decode().lower()


def listed_device(listed, visible, local_rank):
    """The same by the lines of `nvidia-smi -L` and CUDA_VISIBLE_DEVICES, where there is no CUDA driver."""
    gpus = re.findall(r"^GPU (\d+): .*\(UUID: ([^)]+)\)", "\n".join(listed), re.M)
    mig = re.findall(r"^\s+MIG .*\(UUID: ([^)]+)\)", "\n".join(listed), re.M)
    names = dict(gpus, **{uuid: uuid for uuid in mig + [uuid for _, uuid in gpus]})
    chosen = [uuid for _, uuid in gpus] if visible is None else [names.get(name.strip()) for name in visible.split(",")
                                                                 if name.strip()]
    return chosen[local_rank % len(chosen)] if chosen else None


def load():
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def gpu(driver, local_rank, listed, visible):
    """The rank's device, its NUMA node, and why CUDA has none; each may be None. Without `listed`, the container should
    have no GPU."""
    if not listed or visible == "":
        return None, None, None
    if driver is None:
        return listed_device(listed, visible, local_rank), None, None
    try:
        uuid, bus = own_device(driver, local_rank, "MIG-" in (visible or ""))
    except Refused as refused:
        if refused.code == NO_DEVICE and visible is not None:
            return None, None, None  # hidden on purpose: CUDA_VISIBLE_DEVICES=-1
        return None, None, str(refused)
    node = binding.read("/sys/bus/pci/devices/%s/numa_node" % bus)
    return uuid, int(node) if node.isdigit() else None, None


def ask(local_rank, listed, visible):
    """As `gpu`, in a process of its own: one that hangs in the driver cannot be ended, so it is not waited for. A fork
    is not enough: CUDA cannot be initialized in a forked child."""
    child = subprocess.Popen([sys.executable or "python3", "-B", os.path.abspath(__file__)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
    try:
        answer, _ = child.communicate(json.dumps([local_rank, listed, visible]).encode(), LIMIT)
        return json.loads(answer.decode())
    except subprocess.TimeoutExpired:
        child.kill()
        return None, None, FAILURE % ("cuInit", "no answer within %d s" % LIMIT)
    except ValueError:
        return None, None, FAILURE % ("cuInit", "its process ended without an answer")


def find(local_rank, listed):
    """The place of this rank, given the lines of `nvidia-smi -L` in its container."""
    visible, cpus = os.environ.get("CUDA_VISIBLE_DEVICES"), os.sched_getaffinity(0)
    usable = cpus
    try:
        # what the container may use is what its first process may
        usable = os.sched_getaffinity(1) | cpus
    except OSError:
        pass
    nodes = binding.numa_nodes(binding.read, usable)
    device, gpu_numa, error = ask(local_rank, listed, visible) if listed else (None, None, None)
    return {
        "device": device,
        "cuda_error": error,
        "gpu_numa": gpu_numa,
        "cpus": binding.format_list(cpus),
        "numa": sorted(node for node, of_node in nodes.items() if of_node & cpus),
        "numa_nodes": sorted(nodes),
        "cores": len(binding.physical_cores(binding.read, usable, nodes)),
        "visible_devices": visible,
        "device_order": os.environ.get("CUDA_DEVICE_ORDER"),
    }


if __name__ == "__main__":
    print(json.dumps(gpu(load(), *json.load(sys.stdin))))
