"""Places the ranks of a job on the nodes that Slurm has given it.

For the roles of a job it decides as launch/role_placement.rs, in whose words it also says what does not fit:
tests/role_placement.json has what both return. A room is a node without ranks: {"node", "slots", "gpus"}, the latter
None without GPUs. A role is as launch.json has it: its name, and "shape", its size, the GPUs of each rank, and the role
whose nodes it shares (launch/description.rs)."""
import os
import re

NO_LIMIT = 1 << 32


def per_node(text):
    """The numbers in a list of Slurm such as `2(x3),1`."""
    counts = []
    for part in text.split(","):
        count, times = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part).groups()
        counts += [int(count)] * int(times or 1)
    return counts


def shares(nodes, counts, ranks):
    """The nodes with ranks, each with how many and the first of them. `ranks`: those of the job, or 0 for all."""
    placed, first = [], 0
    for node, count in zip(nodes, counts):
        count = min(count, ranks - first) if ranks else count
        if count > 0:
            placed.append({"node": node, "ranks": count, "first": first})
            first += count
    if ranks and first < ranks:
        raise RuntimeError("Slurm has allocated %d tasks, and the job has %d ranks" % (first, ranks))
    return placed


def gpus_of(gres):
    """The number of GPUs in generic resources such as `gpu:a100:2,shard:1`."""
    return sum(int(one.rpartition(":")[2]) for one in gres.split(",") if re.match(r"gpu:(.*:)?\d+$", one))


def tasks(ranks, gpus):
    """How many of so many ranks each node may have, by the tasks and the GPUs (`gpus`) that Slurm has given there."""
    # in a step within an allocation, slurm/submit.sh has passed on those of that
    of_allocation = os.environ.pop("HVDCTL_TASKS", "")
    counts = per_node(of_allocation or os.environ["SLURM_TASKS_PER_NODE"])
    if of_allocation:
        return counts
    if not ranks and "SLURM_NTASKS" not in os.environ:
        # the number of tasks is not given: one for each GPU
        return gpus if any(gpus) else counts
    is_placed = any(name in os.environ for name in ("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU",
                                                     "SLURM_GPUS_PER_TASK"))
    return counts if is_placed else by_gpus(counts, gpus, ranks)


def by_gpus(counts, gpus, ranks):
    """The tasks of each node so that no two share a GPU while another one is free: Slurm places them by cores."""
    ranks = ranks or sum(counts)
    if sum(gpus) < ranks:
        return counts
    counts = [min(count, has) for count, has in zip(counts, gpus)]
    for at, has in enumerate(gpus):
        counts[at] += min(has - counts[at], max(ranks - sum(counts), 0))
    return counts


class Lack(RuntimeError):
    """Not all ranks can be placed."""


def count(number, unit):
    return "%d %s%s" % (number, unit, "" if number == 1 else "s")


def most(room, gpus):
    """How many ranks with so many GPUs (or slots) fit."""
    if not gpus:
        return NO_LIMIT
    return room["slots"] // gpus if room["gpus"] is None else min(room["slots"], room["gpus"] // gpus)


def without(room, ranks, gpus):
    """The room that is left after so many ranks; None if they do not fit."""
    slots = ranks * gpus if room["gpus"] is None else ranks * bool(gpus)
    left = dict(room, slots=room["slots"] - slots)
    if room["gpus"] is not None:
        left["gpus"] = room["gpus"] - ranks * gpus
    return None if left["slots"] < 0 or (left["gpus"] or 0) < 0 else left


def resources(room):
    if room["gpus"] is not None and room["gpus"] <= room["slots"]:
        return count(room["gpus"], "GPU")
    return count(room["slots"], "slot")


def each(gpus):
    return "" if gpus == 1 else " with %d GPUs or slots each" % gpus


def of_each_node(size):
    """How many ranks each node has, if the size of a role says that."""
    return size.get("per_node") or size.get("nodes", {}).get("ranks")


def evenly(ranks, nodes):
    return [ranks // nodes + (node < ranks % nodes) for node in range(nodes)]


def filled(rooms, ranks):
    """How many of so many ranks each of these has, if they are filled in order; None if they are too few."""
    given = []
    for room in rooms:
        given.append(min(room, ranks))
        ranks -= given[-1]
    return None if ranks else given


def groups(shapes):
    """The roles that share nodes: the first one of each group, and the others."""
    def root(role):
        for _ in shapes:
            role = role if shapes[role]["beside"] is None else shapes[role]["beside"]
        return role

    return [(base, [role for role in range(len(shapes)) if role != base and root(role) == base])
            for base, shape in enumerate(shapes) if shape["beside"] is None]


class Roles:
    def __init__(self, rooms, roles):
        self.rooms, self.names, self.shapes = rooms, [role["name"] for role in roles], [role["shape"] for role in roles]

    def is_open(self, base):
        """Returns whether a group gets all nodes that the others leave."""
        return "per_node" in self.shapes[base]["size"]

    def place(self):
        """The ranks of each role on each room."""
        all_groups = groups(self.shapes)
        opened = [self.names[base] for base, _ in all_groups if self.is_open(base)]
        if len(opened) > 1:
            raise Lack("the roles %s and %s would both get all nodes that are left" % tuple(opened[:2]))
        return self.place_groups(all_groups, list(range(len(self.rooms))))

    def place_groups(self, left, free):
        if not left:
            return [[0] * len(self.shapes) for _ in self.rooms]
        (base, beside), others = left[0], left[1:]
        size, gpus = self.shapes[base]["size"], self.shapes[base]["gpus"]
        least = of_each_node(size) or 1
        usable = [node for node in free if most(self.rooms[node], gpus) >= least]
        nodes = size.get("nodes", {}).get("nodes")

        def too_few(wanted):
            here = ", ".join(self.rooms[node]["node"] for node in usable) or "none"
            return Lack("the role %s needs %s with room for %s%s; of the nodes left these have it: %s" % (
                self.names[base], wanted, count(least, "rank"), each(gpus), here))

        if nodes:
            if nodes > len(usable):
                raise too_few(count(nodes, "node"))
            sizes = [nodes]
        elif self.is_open(base):
            sizes = range(len(usable), 0, -1)
        else:
            sizes = range(1, min(len(usable), size["ranks"]) + 1)
        lack = too_few("a node")
        for number in sizes:
            chosen = usable[:number]
            try:
                counts = self.place_group(base, beside, chosen)
            except Lack as why:
                lack = why
                continue
            try:
                table = self.place_groups(others, [node for node in free if node not in chosen])
            except Lack as why:
                if not self.is_open(base):
                    raise
                # with fewer nodes it leaves more of them
                lack = why
                continue
            for node, ranks in zip(chosen, counts):
                table[node] = ranks
            return table
        raise lack

    def place_group(self, base, beside, nodes):
        """The ranks of each role on each of these nodes, all of which the group has."""
        table = [[0] * len(self.shapes) for _ in nodes]
        for role in beside:
            size = self.shapes[role]["size"]
            on_each = evenly(size["ranks"], len(nodes)) if "ranks" in size else \
                [of_each_node(size) or 1] * len(nodes)
            for counts, ranks in zip(table, on_each):
                counts[role] = ranks
        rooms = [self.left(self.rooms[node], counts) for node, counts in zip(nodes, table)]
        for counts, ranks in zip(table, self.place_base(base, beside, nodes, rooms, table)):
            counts[base] = ranks
        return table

    def place_base(self, base, beside, nodes, rooms, table):
        """How many ranks of the first role of a group each node has, where the others leave these rooms."""
        size, gpus = self.shapes[base]["size"], self.shapes[base]["gpus"]
        room = [most(one, gpus) for one in rooms]

        def of_each(ranks):
            for node, counts, has in zip(nodes, table, room):
                if has < ranks:
                    raise self.too_much(self.rooms[node], [ranks if role == base else other
                                                           for role, other in enumerate(counts)])
            return [ranks] * len(nodes)

        if "ranks" in size:
            of_each(1)
            more = filled([has - 1 for has in room], size["ranks"] - len(nodes))
            if more is None:
                next_to = " next to " + ", ".join(self.names[role] for role in beside) if beside else ""
                shown = ", ".join("%s: %d" % (one["node"], has) for one, has in zip(rooms, room))
                raise Lack("the role %s has %s%s, but the nodes left have room for fewer%s (%s)" % (
                    self.names[base], count(size["ranks"], "rank"), each(gpus), next_to, shown))
            return [1 + ranks for ranks in more]
        ranks = of_each_node(size)
        if ranks:
            return of_each(ranks)
        of_each(1)
        return [min(has, max(one["slots"], 1)) for has, one in zip(room, rooms)]

    def left(self, room, counts):
        """The room that these ranks leave of a node."""
        left = room
        for shape, ranks in zip(self.shapes, counts):
            left = without(left, ranks, shape["gpus"]) if ranks and left else left
        if left is None:
            raise self.too_much(room, counts)
        return left

    def too_much(self, room, counts):
        ranks = ["%s of %s%s" % (count(ranks, "rank"), name, each(shape["gpus"]))
                 for name, shape, ranks in zip(self.names, self.shapes, counts) if ranks]
        return Lack("%s has %s, too few for %s" % (room["node"], resources(room), " and ".join(ranks)))


def placed(nodes, ranks, gpus, roles=None):
    """The shares of the nodes with ranks, that of the first node first, on which the launchers run. `ranks`: those of
    the job, or 0 for all tasks that Slurm has given; `gpus`: how many each node has given; `roles`: if there are any,
    their sizes count instead."""
    if not roles:
        return shares(nodes, tasks(ranks, gpus), ranks)
    rooms = [{"node": node, "slots": slots, "gpus": own or None}
             for node, slots, own in zip(nodes, tasks(0, gpus), gpus)]
    try:
        found = place_roles(rooms, roles)
    except Lack as why:
        raise RuntimeError("the roles do not fit on what Slurm has given: %s" % why)
    if found[0]["node"] != nodes[0]:
        found.insert(0, {"node": nodes[0], "ranks": 0, "first": 0, "roles": [0] * len(roles)})
    return found


def place_roles(rooms, roles):
    """The nodes with ranks, each with how many ranks of each role it has. Raises Lack if not all can be placed."""
    placed, first = [], 0
    for room, counts in zip(rooms, Roles(rooms, roles).place()):
        if any(counts):
            placed.append({"node": room["node"], "ranks": sum(counts), "first": first, "roles": counts})
            first += sum(counts)
    return placed


def places(placed, number, addresses):
    """The nodes of a role's ranks: RolePlace of launch/description.rs."""
    return [{"node": share["node"], "address": addresses[share["node"]], "ranks": share["roles"][number],
             "first": share["first"] + sum(share["roles"][:number])} for share in placed if share["roles"][number]]


def described(described_roles, roles, placed, share, gpus):
    """The roles in launcher.json of a node. `described_roles`: each role there without its ranks;
    `gpus`: the number of GPUs of the node, which the ranks take role by role; None without."""
    found, taken = [], 0
    for number, (one, role) in enumerate(zip(described_roles, roles)):
        ranks, offset = share["roles"][number], sum(share["roles"][:number])
        before = sum(other["roles"][number] for other in placed if other["first"] < share["first"])
        devices = None if gpus is None else [taken, ranks * role["shape"]["gpus"]]
        taken += ranks * role["shape"]["gpus"]
        found.append(dict(one, ranks=ranks, first=share["first"] + offset, before=before, offset=offset,
                          devices=devices))
    return found


def table(roles, placed, addresses):
    """Where the ranks of the roles are, before their ports are chosen: as addresses.py."""
    of_ranks = {role["name"]: [place["address"] for place in places(placed, number, addresses)
                               for _ in range(place["ranks"])] for number, role in enumerate(roles)}
    return {name: {"ranks": len(hosts), "hosts": hosts, "ports": {}} for name, hosts in of_ranks.items()}
