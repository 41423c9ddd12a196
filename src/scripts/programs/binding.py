"""Which cores each rank of a node is bound to, and how many threads each may start.

Memory follows the cores: Linux takes a page from the NUMA node whose core writes to it first (numa(7)). A stricter
policy would take set_mempolicy(2), which Docker's seccomp profile denies to containers without CAP_SYS_NICE.

As a program, with BIND and RANKS, it prints the same for a dry run (start/in_worker.rs), which runs it in the
worker."""
import json
import os
import re
import subprocess
import sys

SYSTEM = "/sys/devices/system/"
LIST_GPUS = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"]
LIST_MIG_DEVICES = ["nvidia-smi", "-L"]


def read(path):
    """A file's text; empty if it cannot be read."""
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def list_gpus(query):
    try:
        return subprocess.run(query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              timeout=20).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return ""


def parse(text):
    """The CPUs of a list such as 0-3,8 (cpuset(7))."""
    found = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def format_list(cpus):
    """The reverse of `parse`."""
    firsts = [cpu for cpu in sorted(cpus) if cpu - 1 not in cpus]
    lasts = [cpu for cpu in sorted(cpus) if cpu + 1 not in cpus]
    return ",".join(str(first) if first == last else "%d-%d" % (first, last) for first, last in zip(firsts, lasts))


def quota(read):
    """How many cores' worth of time the container may use (cgroups(7), versions 2 and 1), or None if there is no
    limit."""
    cfs = "/sys/fs/cgroup/cpu/cpu.cfs_"
    limit = read("/sys/fs/cgroup/cpu.max") or "%s %s" % (read(cfs + "quota_us"), read(cfs + "period_us"))
    found = re.match(r"(\d+) ([1-9]\d*)$", limit)
    return max(1, int(found.group(1)) // int(found.group(2))) if found else None


def numa_nodes(read, usable):
    """The usable CPUs of each NUMA node that has some."""
    nodes = {node: parse(read(SYSTEM + "node/node%d/cpulist" % node)) & usable
             for node in parse(read(SYSTEM + "node/online"))}
    return {node: cpus for node, cpus in nodes.items() if cpus}


def gpu_nodes(read, listed, visible):
    """The NUMA node of each GPU that the ranks see, in their order; -1 if it is not known. `listed`: LIST_GPUS, and
    LIST_MIG_DEVICES if there are any. `visible`: CUDA_VISIBLE_DEVICES or None."""
    nodes, all_gpus = {}, []
    for index, uuid, bus in re.findall(r"^(\d+), (GPU-[\w-]+), [0-9A-Fa-f]{4}([\w:.]+)\s*$", listed, re.M):
        nodes[index] = nodes[uuid] = int(read("/sys/bus/pci/devices/%s/numa_node" % bus.lower()) or -1)
        all_gpus.append(index)
    for gpu, devices in re.findall(r"^GPU (\d+): .*\n((?:\s+MIG .*\n?)*)", listed, re.M):
        nodes.update((uuid, nodes.get(gpu, -1)) for uuid in re.findall(r"\(UUID: (MIG-[^)]+)\)", devices))
    chosen = all_gpus if visible is None else visible.split(",")
    return [nodes.get(name.strip(), -1) for name in chosen if name]


def physical_cores(read, usable, nodes):
    """The usable CPUs of each core (hardware threads share one), those of a NUMA node together."""
    siblings = SYSTEM + "cpu/cpu%d/topology/thread_siblings_list"
    cores = {frozenset(parse(read(siblings % cpu)) & usable or {cpu}) for cpu in usable}
    node_of = {cpu: node for node, cpus in nodes.items() for cpu in cpus}
    return sorted(cores, key=lambda core: (node_of.get(min(core), -1), min(core)))


def bind(how, ranks, usable, read, gpus):
    """The CPUs of each of so many ranks, and how they are bound: as `how` says, or, if that is None, to the NUMA node
    of their GPU where that is known and there are several, else not at all. `gpus`: their NUMA nodes, of which each
    rank takes the next."""
    nodes = numa_nodes(read, usable)
    known = any(node in nodes for node in gpus)
    how = how or ("numa" if known and len(nodes) > 1 else "none")
    home = [gpus[rank % len(gpus)] if known else -1 for rank in range(ranks)]
    if how == "numa":
        if not known:
            home = [sorted(nodes)[rank * len(nodes) // ranks] if nodes else -1 for rank in range(ranks)]
        return how, [nodes.get(node, usable) for node in home]
    if how == "core":
        cores, found = physical_cores(read, usable, nodes), [usable] * ranks
        for place, rank in enumerate(sorted(range(ranks), key=home.__getitem__)):
            first, end = place * len(cores) // ranks, (place + 1) * len(cores) // ranks
            found[rank] = set().union(*cores[first:max(end, first + 1)])
        return how, found
    return "none", [usable] * ranks


def threads(found, limit):
    """How many threads each rank may start so that ranks do not compete for cores, given the CPUs of each and the
    quota: at least 1."""
    least = min(len(cpus) // found.count(cpus) for cpus in found)
    return max(1, min(least, limit // len(found)) if limit else least)


def here(how, ranks, env):
    """How the ranks of this node are bound, the CPUs of each, and their number of threads, given their environment."""
    usable = os.sched_getaffinity(0)
    # nvidia-smi takes a moment, and with one NUMA node there is nothing to choose
    ask = how != "none" and len(numa_nodes(read, usable)) > 1
    visible = env.get("CUDA_VISIBLE_DEVICES")
    queries = [LIST_GPUS, LIST_MIG_DEVICES] if visible and "MIG-" in visible else [LIST_GPUS]
    gpus = gpu_nodes(read, "".join(map(list_gpus, queries)), visible) if ask else []
    how, found = bind(how, ranks, usable, read, gpus)
    return how, found, threads(found, quota(read))


def main(how, ranks):
    how, found, number = here(None if how == "auto" else how, int(ranks), os.environ)
    threads = os.environ.get("OMP_NUM_THREADS", str(number))
    print(json.dumps({"bind": how, "threads": threads, "cpus": [format_list(cpus) for cpus in found]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
