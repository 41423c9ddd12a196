"""The role of a rank, as its supervisor needs to know it. Its number is the argument of the supervisor; launcher.json
has what all ranks of the role on this node have in common (launch/description.rs), roles.json where the ranks of all
roles are (ports.py). Without an argument it is a job without roles, and all ranks are of one kind."""
import contextlib
import os
import re

import files
from here import HERE

ROLES = "roles.json"
ROLE = {"ranks": files.is_count, "hosts": [files.is_text],
        "ports": lambda ports: isinstance(ports, dict) and all(files.fits(one, [files.is_text])
                                                               for one in ports.values())}
VARIABLE = "HVDCTL_ROLE"
HOSTS = "HOSTS"  # ends the name of the variable with the addresses of a role's nodes
PORT = re.compile(r"\$(?:\{PORT_([A-Z0-9_]+)\}|PORT_([A-Z0-9_]+))")
# those by which programs find their GPUs, of which Slurm sets the ones that fit
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
LONGEST = 100 << 10  # bytes of a variable: the kernel takes 128 KiB (MAX_ARG_STRLEN). roles.json has the rest


def first_number(names, environment):
    """The first of these variables that is set; 0 if none is."""
    return next((int(environment[name]) for name in names if environment.get(name)), 0)


def described(arguments):
    """Returns the description of the launcher of a rank in launcher.json, by the arguments of its supervisor."""
    found = files.load("launcher.json")
    return found["roles"][int(arguments[0])] if arguments else found


def read():
    """Where the ranks of all roles are, by the names of these."""
    found = files.read_json(ROLES, lambda roles: isinstance(roles, dict))
    return {name: role for name, role in found.items() if files.fits(role, ROLE)}


def part_of(launcher, visible):
    """The part of a role in the GPUs of its node, where Slurm has given these to the job as a whole. `launcher`: the
    role as launcher.json has it."""
    if not launcher.get("devices"):
        return visible
    first, count = launcher["devices"]
    return ",".join(visible.split(",")[first:first + count])


def upper(name):
    return name.upper().replace("-", "_")


class Role:
    """The role of a rank. `launcher`, `job`: launcher.json and job.json as they are for it; `given`: the file with its
    environment; `rank`, `index`: its number in the job, and among all ranks of this node; `name`: None without roles;
    `ports`: those of the rank by their names; `address`: that of its node."""

    def __init__(self, arguments, env):
        self.launcher, self.job, self.given = described(arguments), files.load("job.json"), "env.json"
        self.rank = first_number(self.launcher["rank"], env)
        self.index = first_number(self.launcher["local_rank"], env)
        self.name, self.ports, self.address, self.all, self.number = None, {}, None, {}, None
        self.in_role = self.rank
        if not arguments:
            return
        self.number, self.name = int(arguments[0]), self.launcher["name"]
        self.job, self.given = dict(self.job, **self.launcher["job"]), "env.%d.json" % self.number
        on_node = self.in_role - self.launcher["before"]
        self.rank, self.index = self.launcher["first"] + on_node, self.launcher["offset"] + on_node
        self.all = read()
        own = self.all[self.name]
        self.address = own["hosts"][self.in_role]
        self.ports = {name: int(own["ports"][name][self.in_role].rpartition(":")[2]) for name in self.launcher["ports"]}

    def in_job(self, rank):
        """The number in the job of a rank of this role, or of one that its library names so."""
        if self.name is None:
            return rank
        before = 0
        for share in self.job["placement"]["shares"]:
            of_roles = share.get("roles", ())
            own = of_roles[self.number] if self.number < len(of_roles) else 0
            if rank < before + own:
                return share["first"] + sum(of_roles[:self.number]) + rank - before
            before += own
        return rank

    def fill_in(self, text):
        """A text with the rank's ports in the place of `$PORT_NAME` and `${PORT_NAME}`."""
        values = {upper(name): str(port) for name, port in self.ports.items()}
        return PORT.sub(lambda found: values.get(found.group(1) or found.group(2), found.group()), text)

    def command(self):
        """Its arguments. Those that are no UTF-8 are lists of bytes (text/argument.rs)."""
        return [self.fill_in(part) if isinstance(part, str) else bytes(part) for part in self.job["command"]]

    def variables(self):
        """The variables by which it finds the ranks of all roles; empty without roles."""
        if self.name is None:
            return {}
        found = {VARIABLE: self.name, VARIABLE + "S": os.path.join(HERE, ROLES)}
        for name, role in self.all.items():
            lists = dict({HOSTS: list(dict.fromkeys(role["hosts"]))},
                         **{upper(port): addresses for port, addresses in role["ports"].items()})
            found.update(("%s_%s_%s" % (VARIABLE, upper(name), what), ",".join(some)) for what, some in lists.items())
        found.update(("PORT_" + upper(name), str(port)) for name, port in self.ports.items())
        return {name: value for name, value in found.items() if len(value) < LONGEST}

    def bound_by(self, env):
        """The environment by which all ranks of this node are bound to cores: with the first GPU of each of them, in
        their order."""
        if self.name is None or "CUDA_VISIBLE_DEVICES" not in env:
            return env
        gpus = []
        for number, role in enumerate(files.load("launcher.json")["roles"]):
            given = {}
            with contextlib.suppress(OSError):
                given = files.load("env.%d.json" % number)
            found = given.get("CUDA_VISIBLE_DEVICES")
            if found is None and role.get("devices"):
                found = part_of(role, env["CUDA_VISIBLE_DEVICES"])
            own = [gpu for gpu in (found or "").split(",") if gpu]
            gpus += [own[at * len(own) // role["ranks"]] if own else "none" for at in range(role["ranks"])]
        return dict(env, CUDA_VISIBLE_DEVICES=",".join(gpus))
