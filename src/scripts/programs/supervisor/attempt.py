"""One attempt at a job: the launcher, from its start until nothing is left of it, whether its ranks have started, and
what the nodes reported at its end. job_supervisor.py decides with job_state.py when it begins and ends."""
import contextlib
import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import threading
import time

import files
import frames
import node_launcher
import ports
import processes
import reap
import roster
import variables
import workers
from here import command_of

HERE = os.path.dirname(os.path.abspath(__file__))
MAX_UNANSWERED = 3  # queries without an answer after which a node counts as having started no ranks
OF_NODE = {"HOSTNAME", "HOME", "PWD", "OLDPWD", "SHLVL", "_"}  # variables that differ from node to node
# those of a process of the login (process/main.sh): a launcher passes its environment on to the ranks of other nodes.
# Ranks of this node read them in `process.json`
OF_PROCESS = {"HVDCTL_PROCESS", "HVDCTL_PLACE", "HVDCTL_MAIN"}
OF_ALLOCATION = {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}  # by which srun asks for as many nodes
INHERITED = "inherited.json"  # the environment of which the launcher gets a part only (rank_supervisor.py)
# keeps the GPUs of this node from this container (runtime/docker/request.rs)
NO_GPU = ("NVIDIA_VISIBLE_DEVICES", "void")


def of_this_node(launch):
    """The names of variables that this process has and the ranks of other nodes must not get."""
    if not launch.get("slurm"):
        return OF_PROCESS
    of_slurm = {name for name in os.environ if variables.OF_TASK.match(name) or variables.OF_NODE.match(name)}
    if launch.get("roles"):
        # it would take them for the nodes and tasks of a role
        return OF_PROCESS | {"HVDCTL_NODE"} | set(launch.get("own", ())) | of_slurm | OF_ALLOCATION
    # Slurm's own launcher numbers its tasks, but takes these for how many of them are asked for
    asks = {name for name in of_slurm if "TASKS" in name}
    return OF_PROCESS | {"HVDCTL_NODE"} | set(launch.get("own", ())) | of_slurm - asks


# of what ranks have said and done at the end (`outcome`): bytes in all, as JSON; characters of a text; ranks of which
# two lines are kept. A line of NCCL names its operation behind up to 210 characters
MOST_WORDS, LONGEST, FIRST = 128 << 10, 240, 32
SHORTER = 160  # characters of a text, without the time and place in a log before it, if that is too much
LOGGED = re.compile(r"\[E[^]]*\] ?")
# places that are kept of ranks at the end, and seconds without progress from which a rank has waited (record/waits.rs)
MOST_PLACES, LEAST_QUIET = 16, 5
PLACE = {"quiet": files.is_count, "processes": [{"threads": [{"frames": [{"file": files.is_text}]}]}]}
MOST_EVENT = 96 << 10  # bytes of an event in the log, whose readers skip longer frames than 144 KiB (record/frames.rs)


class Position:
    """Where a launcher or a rank is started: on which of the nodes (`places`, in rank order), and as which rank there.
    `node` is the launcher's node; `port`: the one at which ranks find one another, if hvdctl has not chosen it.
    launch/description.rs has the same for dry runs; tests/launcher_arguments.json has what both return."""

    def __init__(self, places, node, index=0, local_rank=0, port=None):
        self.places, self.node, self.index, self.local_rank, self.port = places, node, index, local_rank, port
        self.rank = roster.ranks(places[:index]) + local_rank

    def text(self, part):
        """The text of an argument here."""
        if isinstance(part, str):
            return part
        (name, of), = part.items()
        return str(getattr(self, "of_" + name)(**of))

    def of_ranks(self):
        return roster.ranks(self.places)

    def of_hosts(self):
        return ",".join("%s:%d" % (place["address"], place["ranks"]) for place in self.places)

    def of_hostfile(self):
        return "".join("%s slots=%d\n" % (place["address"], place["ranks"]) for place in self.places)

    def of_interface(self, shared, alone):
        return alone if [place["node"] for place in self.places] == [self.node] else shared

    def of_nodes(self):
        return len(self.places)

    def of_node(self):
        return self.index

    def of_local_ranks(self):
        return self.places[self.index]["ranks"]

    def of_first_address(self):
        return self.places[0]["address"]

    def of_first_endpoint(self, port):
        return "%s:%d" % (self.of_first_address(), self.of_rendezvous_port(port))

    def of_rendezvous_port(self, port):
        return self.port or port

    def of_rank(self):
        return self.rank

    def of_local_rank(self):
        return self.local_rank

    def of_tf_config(self, port):
        port = self.of_rendezvous_port(port)
        workers = ["%s:%d" % (place["address"], port + rank) for place in self.places for rank in range(place["ranks"])]
        return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": self.rank}})


class StartCheck:
    """Checks that all ranks start in time. Queries the nodes at the deadline, and again those that do not answer.
    `since`: when the launcher has assigned the ranks. On other nodes than this one, nothing is left of ranks that it
    has replaced. `role`: the number of the role that has them. If that is started again, the others record its earlier
    starts, too; `ahead`: by how many seconds their clocks are."""

    def __init__(self, launch, nodes, places, since=0, role=None, ahead=None):
        self.node, self.limit, self.nodes, self.places = launch["node"], launch["start_timeout"], nodes, list(places)
        self.since, self.role, self.ahead = since, role, ahead or {}
        self.of = "" if role is None else " of " + launch["roles"][role]["name"]
        self.next = time.monotonic() + self.limit
        self.thread, self.unanswered, self.missing = None, {}, {}

    def forget_others(self, places):
        """Queries none but these nodes from now on."""
        nodes = {place["node"] for place in places}
        self.places = [place for place in self.places if place["node"] in nodes]

    def query(self):
        """Queries the nodes if it is time to. Does not wait; `missing` has the nodes where ranks are known to be
        missing, as text."""
        if self.places and time.monotonic() > self.next and not (self.thread and self.thread.is_alive()):
            self.next = time.monotonic() + self.limit
            self.thread = threading.Thread(target=self.poll, daemon=True)
            self.thread.start()

    def poll(self):
        # a node that answered late is queried once more
        for pause in (0, 1):
            time.sleep(pause)
            started = {}
            workers.for_each(self.places, lambda place: self.ask(place, started))
            self.places = [place for place in self.places if started.get(place["node"], 0) < place["ranks"]]
            if not self.places:
                return
        self.missing = self.describe(started)

    def ask(self, place, started):
        if place["node"] != self.node:
            count = self.nodes.started(place, self.role, self.since_on(place["node"]))
        else:
            count = reap.started(self.since, None if self.role is None else reap.Role(self.role))
        if count is not None:
            started[place["node"]] = count

    def since_on(self, node):
        """Since when ranks of another node count, by its clock."""
        return self.since + self.ahead[node] if self.role is not None and node in self.ahead else 0

    def describe(self, started):
        missing = {}
        for place in self.places:
            node = place["node"]
            if node in started:
                missing[node] = "%d of %d%s on %s" % (started[node], place["ranks"], self.of, node)
            else:
                self.unanswered[node] = self.unanswered.get(node, 0) + 1
                if self.unanswered[node] == MAX_UNANSWERED:
                    missing[node] = "no answer from %s" % node
        return missing


class Launcher:
    """The processes that start the ranks: one process for all nodes, or one on each. Its `code` is the exit code of the
    first that failed, else 0 when all have ended, and None until then. `role`: the number of the role whose ranks these
    are, in a job with roles (launchers.py)."""
    served, fault = (), None  # what ends a job with roles

    def __init__(self, launch, log, children, nodes, role=None):
        self.launch, self.children, self.nodes = launch, children, nodes
        self.mark, self.given = {}, "env.json"  # in its environment; the file with that of its ranks
        self.ready = set()  # the ranks that are ready, by their numbers in the job
        if role is not None:
            self.launch = dict(launch, **launch["roles"][role])
            self.mark, self.given = {"HVDCTL_ROLE": self.launch["name"]}, "env.%d.json" % role
        self.failures, self.code, self.processes = [], None, []
        self.stopping = []  # ranks whose workers are, and the addresses of their nodes
        self.port, self.taken = None, set()  # Position; ports that it must not be
        self.lines, self.selector = frames.Lines(log, b"l", self.see), selectors.DefaultSelector()

    def see(self, line):
        """Reads the exit code of a failed rank, and its node's address, as soon as its launcher shim reports it, and
        what rank supervisors report."""
        ready = re.search(reap.READY_RANK + rb"(\d{1,9})(?!\d)", line)
        if ready:
            self.ready.add(int(ready.group(1)))
            return ready
        stopping = re.search(reap.STOPPING + rb"(\d{1,9})(?!\d)(?: on (\S+))?", line)
        if stopping:
            self.stopping.append((int(stopping.group(1)), (stopping.group(2) or b"").decode(errors="replace")))
            return stopping
        # other programs may write there: 0 is no failure, and a longer number no exit code
        found = re.search(reap.FAILED + rb"([1-9]\d{0,2})(?!\d)(?: on (\S+))?", line)
        if found:
            self.failures.append((int(found.group(1)), (found.group(2) or b"").decode(errors="replace")))
        return found

    def choose_port(self, places):
        """Chooses the port at which ranks find one another for a job that a queue lets begin: it may have waited for
        days."""
        if self.launch.get("slurm") or self.launch.get("queued"):
            count = max((place["ranks"] for place in places), default=1)
            self.port = ports.free_port(count, self.taken)
            self.taken.update(range(self.port, self.port + count))

    def start(self, places, number):
        self.choose_port(places)
        # the remote shell in the job's directory comes before any other
        env = dict(os.environ, PATH=HERE + os.pathsep + os.environ.get("PATH", os.defpath), HVDCTL_RESTART=str(number))
        for name in of_this_node(self.launch):
            env.pop(name, None)
        if env.get(NO_GPU[0]) == NO_GPU[1]:
            del env[NO_GPU[0]]  # launchers pass their environment on to the ranks of other nodes
        patterns = self.launch.get("inherits")  # descriptions of earlier builds do not have it
        try:
            if patterns is not None:
                # it would show the rest in command lines
                files.write_json(INHERITED, env)
                env = node_launcher.inherited(env, patterns)
            env.update(self.launch.get("environment", {}), **self.mark)
            for process in self.start_processes(places, env):
                self.processes.append(process)
                os.set_blocking(process.stdout.fileno(), False)
                self.selector.register(process.stdout, selectors.EVENT_READ)
        except OSError as error:
            self.lines.take(("%s: %s\n" % (error.filename or HERE, error.strerror)).encode(errors="replace"))
            self.code = 127

    def start_processes(self, places, env):
        here = self.launch["node"]
        for name, part in self.launch["files"].items():
            files.write(name, self.position(places).text(part))
        if self.launch["start"] == "central":
            argv = [self.position(places).text(part) for part in self.launch["launcher"]]
            env.update(node_launcher.own_variables(self.launch["reads"], self.given))
            yield self.children.start(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, start_new_session=True, bufsize=0)
            return
        for index, place in enumerate(places):
            request = json.dumps(self.request(places, index, env)).encode() + b"\n"
            program = command_of("node_launcher.py")
            if place["node"] == here:
                process = self.children.start(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                              stderr=subprocess.STDOUT, start_new_session=True, bufsize=0)
            else:
                process = self.nodes.ssh(place, [], [" ".join(map(shlex.quote, program))], subprocess.PIPE,
                                         subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                         env=env if self.launch.get("slurm") else None)
            try:
                process.stdin.write(request)
                process.stdin.close()
            except OSError:
                pass  # its exit code and output show why
            yield process

    def position(self, places, *at):
        return Position(places, self.launch["node"], *at, port=self.port)

    def request(self, places, index, env):
        """Returns the request to a node (node_launcher.py)."""
        at = self.position(places, index)
        given = {name: value for name, value in env.items() if name not in OF_NODE}
        if self.launch.get("slurm") and places[index]["node"] != self.launch["node"]:
            # the remote shell has passed the rest on, and the node has set what is its own
            given = {name: value for name, value in given.items() if name == "HVDCTL_JOB"}
        request = {"env": given,
                   "reads": self.launch["reads"],
                   "argv": [at.text(part) for part in self.launch["launcher"]], "ranks": places[index]["ranks"],
                   "variables": None}
        if self.mark:
            request["given"] = self.given
        if self.launch["start"] == "per-rank":
            positions = [self.position(places, index, local) for local in range(places[index]["ranks"])]
            request["variables"] = [{name: at.text(value) for name, value in self.launch["variables"].items()}
                                    for at in positions]
        return request

    def listen(self, seconds):
        """Logs the launcher's output for at most this many seconds; returns after the first output."""
        if not self.selector.get_map():
            # its output is closed; it may still run
            time.sleep(min(seconds, 0.01))
        for key, _ in self.selector.select(seconds) if self.selector.get_map() else []:
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                self.lines.take(data)
            else:
                self.selector.unregister(key.fileobj)
        self.lines.idle()

    def poll(self):
        """Its exit code, or None while it runs."""
        if self.code is None:
            codes = [process.poll() for process in self.processes]
            ended = [code if code >= 0 else 128 - code for code in codes if code is not None]
            # 255 of ssh itself, for a connection that failed or broke, is not the exit code of a rank
            ended = [1 if code == 255 and len(codes) > 1 else code for code in ended]
            if any(ended) or len(ended) == len(codes):
                self.code = next((code for code in ended if code), 0)
        return self.code

    def end(self):
        """Ends what is left of it, its process groups included."""
        limit = time.monotonic() + 2
        for number in (signal.SIGTERM, signal.SIGKILL):
            processes.send(number, [process.pid for process in self.processes], os.killpg)
            while any(process.poll() is None for process in self.processes) and time.monotonic() < limit:
                self.listen(0.05)
            limit += 2
        self.poll()

    def close(self):
        self.listen(0)
        self.lines.end()


def size(value):
    return len(json.dumps(value))


def words_of_ranks(gave_up, quiet):
    """The lines with which ranks gave up, and what ranks did when they were asked to end, within limits: two lines of
    the ranks that gave up first, and one of each other. Nothing at all if that is too much: a rank that is left out
    would count as one that went on, and that the others waited for."""
    lines = {}
    for line in sorted(gave_up, key=lambda line: line["time"]):
        lines.setdefault(line["rank"], []).append(line["text"])
    quiet = [{"rank": one["rank"], "seconds": one["seconds"], "does": one["does"][:SHORTER]} for one in quiet]
    for first, shortened in ((FIRST, lambda text: text[:LONGEST]),
                             (0, lambda text: LOGGED.sub("", text, 1)[:SHORTER])):
        kept = [{"rank": rank, "text": shortened(text)} for number, (rank, texts) in enumerate(lines.items())
                for text in texts[:2 if number < first else 1]]
        words = {"gave_up": kept, "quiet": quiet}
        if size(words) <= MOST_WORDS:
            return words
    return {"gave_up": [], "quiet": []}


def places_of_ranks(placed, has_waited):
    """Where ranks were when they were asked to end, those at the same place together, the fewest first; empty if that
    had nothing to do with waiting. `has_waited`: whether a rank gave up waiting, hung or made no progress."""
    groups = {}
    for one in placed:
        with contextlib.suppress(ValueError, IndexError):
            found = files.parse(one["text"].encode(), PLACE)
            main = found["processes"][0]
            inner = main["threads"][0]["frames"] if main["threads"] else []
            # as in model/stack.rs: frames of the kernel are no place
            is_code = any(frame["file"] for frame in inner)
            key = json.dumps(inner if is_code else [main.get("failure"), main.get("does")])
            group = groups.setdefault(key, {"ranks": [], "quiet": -1})
            group["ranks"].append(one["rank"])
            if found["quiet"] > group["quiet"]:
                group.update(quiet=found["quiet"], stack=one["text"])
    if not has_waited and all(group["quiet"] < LEAST_QUIET for group in groups.values()):
        return []
    found = sorted(groups.values(), key=lambda group: (len(group["ranks"]), min(group["ranks"])))
    kept = found if len(found) <= MOST_PLACES else found[:MOST_PLACES - 1] + found[-1:]
    return [{"ranks": sorted(group["ranks"]), "stack": group["stack"]} for group in kept]


def without_places(outcome):
    """The report of the nodes, without where ranks were: the log has that."""
    return {name: value for name, value in outcome.items() if name != "places"}


def without_words(outcome, most=0):
    """The report of the nodes, without what ranks have said and done if it is longer than this."""
    return outcome if size(outcome) <= most else dict(outcome, gave_up=[], quiet=[])


def outcome(report, places, node, since=lambda rank: 0):
    """Merges the nodes' reports about the ranks, with times by the clock of the launcher's node. `since`: returns the
    time before which what is known of a rank is left out: it was replaced, or started again."""
    took_part = [(place["node"], report.ends[place["node"]]) for place in places if place["node"] in report.ends]
    others = [place["node"] for place in places if place["node"] != node]

    def all_of(what):
        every = [dict(one, node=name, time=one["time"] - end["ahead"]) for name, end in took_part
                 for one in end.get(what) or []]
        return [one for one in every if one["time"] >= since(one["rank"])]

    has_waited = any(all_of(what) for what in ("gave_up", "hung", "quiet"))
    places = places_of_ranks(all_of("places"), has_waited)
    return {
        **({"places": places} if places else {}),
        "started": sum(end["started"] for _, end in took_part),
        "exits": all_of("exits"),
        "hung": all_of("hung"),
        "lost": all_of("lost"),
        "silent": [name for name in others if name not in report.ends],
        "silence": {name: words for name, words in dict(report.silent).items() if name in others
                    and name not in report.ends},
        **words_of_ranks(all_of("gave_up"), all_of("quiet")),
    }


class Attempt:
    """One start of the launcher, until nothing is left of it. `driver`: keeps the ranks; `changed`: whether nodes leave
    or join; `failed`: exit codes of ranks that failed, and that the driver does not replace; `outcome`: what the nodes
    reported at its end; `is_recorded`: whether it is recorded as a failed one."""

    def __init__(self, launcher, driver):
        self.launcher, self.driver, self.changed, self.failed, self.outcome = launcher, driver, False, [], None
        self.started, self.is_recorded = time.time(), False
        self.stopping = []  # the nodes whose workers are
        self.check, self.connected = None, None  # whether its ranks have started; when the connections were opened

    def keeps_ranks(self):
        """Whether ranks that are left are kept when nodes leave or join."""
        return bool(self.driver and self.driver.keeps_ranks())
