"""Cores and GPUs of machines: the texts of files under /sys by path, and the output of `nvidia-smi`."""

# Constructed after the published topology of the NVIDIA DGX A100, not recorded: two sockets of 64 cores with two
# threads each, four NUMA nodes a socket, eight GPUs next to four of the nodes.
DGX_NODES = {node: "%d-%d,%d-%d" % (16 * node, 16 * node + 15, 128 + 16 * node, 128 + 16 * node + 15)
             for node in range(8)}
DGX_GPUS = """\
0, GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 00000000:07:00.0
1, GPU-4d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 00000000:0F:00.0
2, GPU-3d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 00000000:47:00.0
3, GPU-2d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 00000000:4E:00.0
4, GPU-1d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 00000000:87:00.0
5, GPU-0d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 00000000:90:00.0
6, GPU-6d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 00000000:B7:00.0
7, GPU-7d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 00000000:BD:00.0
"""
# `nvidia-smi -L` after the format in NVIDIA's MIG User Guide
DGX_MIG_DEVICES = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 4: NVIDIA A100-SXM4-40GB (UUID: GPU-1d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 5: NVIDIA A100-SXM4-40GB (UUID: GPU-0d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 6: NVIDIA A100-SXM4-40GB (UUID: GPU-6d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 7g.40gb     Device  0: (UUID: MIG-GPU-6d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/0/0)
"""
DGX = {"/sys/devices/system/node/online": "0-7"}
DGX.update(("/sys/devices/system/node/node%d/cpulist" % node, cpus) for node, cpus in DGX_NODES.items())
DGX.update(("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu, "%d,%d" % (cpu % 128, cpu % 128 + 128))
           for cpu in range(256))
DGX.update(("/sys/bus/pci/devices/0000:%s:00.0/numa_node" % bus, node) for bus, node in
           zip(("07", "0f", "47", "4e", "87", "90", "b7", "bd"), "33117755"))

# a virtual machine with two cores; its GPU has no place
VM = {"/sys/devices/system/node/online": "0", "/sys/devices/system/node/node0/cpulist": "0-1",
      "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0",
      "/sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1",
      "/sys/bus/pci/devices/0000:00:05.0/numa_node": "-1"}
VM_GPUS = "0, GPU-8d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 00000000:00:05.0\n"

# the limits of containers: none, and 2.5 cores, each with control groups version 2 and 1
QUOTAS = [
    ({"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
    ({"/sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
    ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
    ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "125000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000"}, 2),
    ({"/sys/fs/cgroup/cpu.max": "5000 100000"}, 1),
    ({}, None),
]
