"""The addresses of the ranks of all roles: chosen for each attempt, and written on every node for the ranks
(ports.py)."""
import json

import files
import ports
import workers


def reserved(launch):
    """The ports that something else of the job uses, or will: the sshd of its workers, and what the launchers tell
    their ranks, from that on one for each rank of a node."""
    taken = {launch["port"]}
    for role in launch["roles"]:
        most = max((place["ranks"] for place in role["places"]), default=1)
        for part in list(role["launcher"]) + list(role["variables"].values()):
            given = [of.get("port") for of in part.values()] if isinstance(part, dict) else []
            taken.update(port + rank for port in filter(None, given) for rank in range(most))
    return sorted(taken)


def counts(roles):
    """How many ports each node needs."""
    found = {}
    for role in roles:
        for place in role["places"]:
            found[place["node"]] = found.get(place["node"], 0) + place["ranks"] * len(role["ports"])
    return found


def table(roles, chosen):
    """Where the ranks of the roles are, given the ports of each node: for each role the hosts and ports of its ranks in
    their order."""
    left, found = {node: list(some) for node, some in chosen.items()}, {}
    for role in roles:
        of_ranks = [place for place in role["places"] for _ in range(place["ranks"])]
        given = {name: ["%s:%d" % (place["address"], left[place["node"]].pop(0)) for place in of_ranks]
                 for name in role["ports"]}
        found[role["name"]] = {"ranks": len(of_ranks), "hosts": [place["address"] for place in of_ranks],
                               "ports": given}
    return found


class Node:
    """Another node, which chooses ports and writes the file. `error`: why it cannot."""

    def __init__(self, nodes, worker):
        self.nodes, self.worker, self.child, self.ports, self.error = nodes, worker, None, [], None

    def choose(self, count, taken):
        try:
            self.child = self.nodes.start_reaper(self.worker, "ports", str(count), *map(str, taken))
            late = workers.kill_after(self.child, workers.PROGRAM_LIMIT)
            workers.await_ready(self.child)
            self.ports = files.parse(self.child.stdout.readline(files.MOST), [files.is_count])
            late.cancel()
            if len(self.ports) != count:
                raise ValueError("%d ports of %d" % (len(self.ports), count))
        except (OSError, ValueError) as error:
            self.fail("choose ports", error)

    def write(self, text):
        late = workers.kill_after(self.child, workers.PROGRAM_LIMIT)
        try:
            self.child.stdin.write(text)
            self.child.stdin.close()
        except OSError:
            pass  # its exit code says so
        if self.child.wait():
            self.fail("write %s" % ports.ROLES, "exit code %d" % self.child.returncode)
        late.cancel()

    def fail(self, what, error):
        self.end()
        said = self.child.stderr.read(1 << 16).decode(errors="replace").strip().splitlines() if self.child else []
        self.error = "cannot %s on %s: %s" % (what, self.worker["node"], said[-1] if said else error)

    def end(self):
        if self.child and self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def choose(launch, nodes):
    """Chooses the ports of all ranks and writes them on every node, before ranks start. Does nothing for roles without
    ports: hvdctl has written the file. Returns the ports of all nodes. Raises OSError, with the node."""
    roles = launch["roles"]
    if not any(role["ports"] for role in roles):
        return set()
    needed, taken = counts(roles), reserved(launch)
    others = [Node(nodes, worker) for worker in launch["workers"]]
    try:
        workers.for_each(others, lambda node: node.choose(needed.get(node.worker["node"], 0), taken))
        check(others)
        chosen = {node.worker["node"]: node.ports for node in others}
        chosen[launch["node"]] = ports.choose(needed.get(launch["node"], 0), taken)
        text = json.dumps(table(roles, chosen))
        workers.for_each(others, lambda node: node.write(text.encode()))
        ports.write(text)
        check(others)
        return {port for some in chosen.values() for port in some}
    finally:
        for node in others:
            node.end()


def check(nodes):
    """Raises the first error of these nodes."""
    for node in nodes:
        if node.error:
            raise OSError(node.error)
