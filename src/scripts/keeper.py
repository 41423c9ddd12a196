"""The keeper of a run: the main process of hmaster. It starts the launcher, writes what that says into this node's log,
and when that has ended, a rank has failed, or somebody asks for the end (SIGTERM; a second one: no grace), it ends what is left of
the run on every node and writes down how it went. So a run needs nobody's terminal, and no operator's machine, to come to its end.

Where the engine stops hmaster (SIGUSR1: `docker stop`, the end of the engine or of the machine) nobody asked hvdctl for the end, and
the run has failed.

A run that failed is started again where that was asked for, on the nodes that answer; tries.json has the tries that failed.

Wants launch.json beside it: `launcher` (argument vector), `node`, `address` and `ranks` of this one, `workers` (the same of the
others), `port` (of their sshd), `grace` (seconds between SIGTERM and SIGKILL where the end is asked for), `start_timeout`
(seconds for all ranks to start), `restarts` (how often at most), `restart_pause` (seconds before the first one), `keep_alive`
(seconds between keep-alive probes of connections) and `own_workers` (whether they end with the run)."""
import functools
import json
import os
import re
import select
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # the folder keeps what was laid there, and no more
import rank  # noqa: E402
import reap  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SOCKETS = "/run/hvdctl-" + os.path.basename(HERE)  # ssh.sh looks there as well; /run is root's alone
STANDING = ["-S", os.path.join(SOCKETS, "%r@%h:%p")]
BY_ENGINE = signal.SIGUSR1  # what the engine stops this container with (edge/docker/body.rs)
SILENCES = 3  # how often a node does not answer when it is asked for its ranks' starts before it counts as having none
AGAIN = 20  # seconds after which a connection that is not there is tried again; 5 s beyond `keep_alive`, where that is less
LONGEST_PAUSE = 300  # seconds between two tries; the first pause is `restart_pause`, and each is twice the one before
asked = []  # the signals that came
standing = {}  # the connections to the other nodes


def ssh(launch, worker, options, words, stdin, others):
    """Starts a shell's words in a worker, over its sshd, as the launcher reaches it."""
    argv = [os.path.join(HERE, "ssh"), "-p", str(launch["port"]), "-o", "ConnectTimeout=5"] + options + [worker["address"]] + words
    # without the run's mark: this ssh is not to be ended with the rest of it
    env = {name: value for name, value in os.environ.items() if name != "HVDCTL_JOB"}
    return subprocess.Popen(argv, env=env, stdin=stdin, stdout=others, stderr=others, bufsize=0)


def connect(launch):
    """Opens a connection to each worker that has none: the launcher's question whether it answers goes over it, and at the end what
    ends the ranks. Where it does not come about, each logs in by itself. A worker of the run's own is not abandoned while it stands
    (core/spec.rs)."""
    try:
        os.makedirs(SOCKETS, 0o700, exist_ok=True)
        for worker in launch["workers"]:
            if worker["node"] not in standing or standing[worker["node"]].poll() is not None:
                alone = STANDING + ["-N", "-o", "ControlMaster=auto", "-o", "ControlPersist=no"]
                standing[worker["node"]] = ssh(launch, worker, alone, [], subprocess.DEVNULL, subprocess.DEVNULL)
    except OSError:
        pass


def hang_up(node):
    """Ends the connection to a node; ssh takes its socket away then."""
    child = standing.pop(node, None)
    if child and child.poll() is None:
        child.terminate()


def disconnect():
    for node in list(standing):
        hang_up(node)
    shutil.rmtree(SOCKETS, ignore_errors=True)


def ahead(child):
    """By how many seconds the clock of another reap.py is ahead of this one. What the shortest round took is all that this can be
    wrong by, however busy the nodes are: ranks that fail one because of the other do so within fractions of a second."""
    rounds = []
    for _ in range(5):
        asked = time.time()
        child.stdin.write(b"\n")
        said = float(child.stdout.readline())
        answered = time.time()
        rounds.append((answered - asked, said - (asked + answered) / 2))
    return min(rounds)[1]


def reaper(launch, worker, *wants):
    """Starts a reap.py on another node. A connection that stands may lead to a machine that has gone, and nobody knows it yet:
    where nothing comes over it, another one is opened."""
    words = [" ".join(["python3", shlex.quote(os.path.join(HERE, "reap.py")), *wants])]
    child = ssh(launch, worker, STANDING, words, subprocess.PIPE, subprocess.PIPE)
    heard = select.poll()
    heard.register(child.stdout, select.POLLIN)
    if not heard.poll(5000):
        child.kill()
        with child:
            pass  # not read to their ends: the connection that stands may hold the pipes open
        hang_up(worker["node"])
        child = ssh(launch, worker, [], words, subprocess.PIPE, subprocess.PIPE)
    return child


def await_ready(child):
    """Reads what a reap.py says up to its first line: the image's start-up files may have printed something."""
    line = None
    while line != reap.READY:
        line = child.stdout.readline()
        if not line:
            raise OSError("no answer")
        line = line.strip()


def reap_elsewhere(launch, worker, grace, ends, silent, again, ended, everywhere):
    """Ends the run's ranks on another node, and what else is left of it there once they have ended `everywhere`. `silent` has
    what was heard in place of an answer."""
    node = worker["node"]
    silent[node] = "no answer"
    try:
        child = reaper(launch, worker, str(grace), *["again"] * again)
    except OSError:
        ended.set()
        return
    limit = grace + 15
    late = threading.Timer(limit, child.kill)
    late.start()
    with child:
        try:
            await_ready(child)
            ends[node] = dict(json.loads(child.stdout.readline().decode()), ahead=0.0)
            silent.pop(node, None)
            ends[node]["ahead"] = ahead(child)
        except (OSError, ValueError, TypeError):
            # that the connection broke when the clocks were compared takes nothing away from what it said
            if node not in ends and child.wait() != -signal.SIGKILL:
                last = child.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
                silent[node] = "".join(last) or "no answer"
        late.cancel()
        ended.set()
        everywhere.wait()
        late = threading.Timer(15, child.kill)
        late.start()
    late.cancel()
    if node in silent and child.returncode == -signal.SIGKILL:
        silent[node] = "no answer within %d s" % limit
        hang_up(node)


def of_each(workers, work):
    """Does it for all workers at once."""
    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def reap_everywhere(launch, ends, silent, again):
    """The ranks of all nodes at once. A second signal takes the rest of the grace time away; an engine does not wait for long."""
    patience = launch["grace"] if asked and not by_engine() else min(launch["grace"], reap.AFTER_FAILURE)

    def here(grace, ended):
        reap.ranks(grace)
        ended.set()

    def start(grace):
        everywhere = threading.Event()
        elsewhere = functools.partial(reap_elsewhere, launch, grace=grace, ends=ends, silent=silent, again=again,
                                      everywhere=everywhere)
        work = [functools.partial(elsewhere, worker) for worker in launch["workers"]] + [functools.partial(here, grace)]
        nodes = [threading.Event() for _ in work]
        threads = [threading.Thread(target=one, kwargs={"ended": ended}, daemon=True) for one, ended in zip(work, nodes)]
        for thread in threads:
            thread.start()
        return everywhere, nodes, threads

    hurried = len(asked) > 1
    everywhere, nodes, threads = start(0 if hurried else patience)
    # a thread that failed is waited for no longer
    while not all(ended.wait(0.05) or not thread.is_alive() for ended, thread in zip(nodes, threads)):
        if len(asked) > 1 and not hurried:
            hurried = True
            everywhere.set()
            everywhere, nodes, threads = start(0)
    everywhere.set()
    for thread in threads:
        thread.join()


def by_engine():
    """Why the run ends where it is the engine that wants it; else nothing."""
    if asked[:1] == [BY_ENGINE]:
        return "its launcher's container was stopped: by `docker stop`, or by the end of the engine or the machine"
    return None


def new(name):
    return open(os.open(os.path.join(HERE, name + ".new"), os.O_WRONLY | os.O_CREAT, 0o600), "wb")


def write(name, value):
    """A whole file or none, also when the power goes."""
    with new(name) as file:
        file.write(json.dumps(value).encode())
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    path = os.path.join(HERE, name)
    os.rename(path + ".new", path)


class Starts:
    """Whether all ranks start in time: their nodes are asked when it is over, and those that do not answer are asked again."""

    def __init__(self, launch, used):
        self.launch, self.places = launch, list(used)
        self.next = time.monotonic() + launch["start_timeout"]
        self.looking, self.silences, self.words = None, {}, ""

    def missing(self):
        """Where ranks are missing, in words; empty as long as nothing is known to be. It does not wait."""
        if self.places and time.monotonic() > self.next and not (self.looking and self.looking.is_alive()):
            self.next = time.monotonic() + self.launch["start_timeout"]
            self.looking = threading.Thread(target=self.look, daemon=True)
            self.looking.start()
        return self.words

    def look(self):
        # the slowest answer may take long: who was late when it was asked is asked once more
        for pause in (0, 1):
            time.sleep(pause)
            started = {}
            of_each(self.places, lambda place: self.ask(place, started))
            self.places = [place for place in self.places if started.get(place["node"], 0) < place["ranks"]]
            if not self.places:
                return
        words = []
        for place in self.places:
            node = place["node"]
            if node in started:
                words.append("%d of %d on %s" % (started[node], place["ranks"], node))
            else:
                self.silences[node] = self.silences.get(node, 0) + 1
                words += ["no answer from %s" % node] * (self.silences[node] == SILENCES)
        self.words = ", ".join(words)

    def ask(self, place, started):
        """How many ranks have started on a node, where it answers. With a log-in of its own: the connection that stands is for the
        end."""
        if place["node"] == self.launch["node"]:
            started[place["node"]] = reap.started()
            return
        words = ["python3 %s started" % shlex.quote(os.path.join(HERE, "reap.py"))]
        try:
            child = ssh(self.launch, place, [], words, subprocess.DEVNULL, subprocess.PIPE)
        except OSError:
            return
        late = threading.Timer(15, child.kill)
        late.daemon = True
        late.start()
        with child:
            try:
                await_ready(child)
                started[place["node"]] = int(child.stdout.readline())
            except (OSError, ValueError):
                pass
        late.cancel()


def attempt(launch, used, number):
    """Starts the launcher on these nodes, and ends what is left when it has ended, or a rank has failed. Gives its exit code, or that
    rank's (none where the end was asked for), how many ranks started, how they ended, and which nodes did not answer then; and
    whether there is to be another try."""
    # the ssh of the run's folder comes before any other
    env = dict(os.environ, PATH=HERE + os.pathsep + os.environ.get("PATH", os.defpath),
               HVDCTL_RESTART=str(number))
    failed = []  # the exit codes of ranks that failed, as soon as they have

    def see(line):
        told = re.search(reap.FAILED + rb"(\d+)", line)
        failed.extend([int(told.group(1))] if told else [])
        return told

    lines, selector, code, child = rank.Lines(b"l", see), selectors.DefaultSelector(), None, None
    connect(launch)
    try:
        child = subprocess.Popen(launcher(launch, used), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, start_new_session=True, bufsize=0)
        os.set_blocking(child.stdout.fileno(), False)
        selector.register(child.stdout, selectors.EVENT_READ)
    except OSError as error:
        lines.take(("%s: %s\n" % (launch["launcher"][0], error)).encode(errors="replace"))
        code = 127

    def listen(seconds):
        for key, _ in selector.select(seconds) if selector.get_map() else []:
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                lines.take(data)
            else:
                selector.unregister(key.fileobj)
        lines.idle()

    def ended():
        """The launcher's exit code once it has one. The main process of a container inherits every orphan, and takes note of
        its end."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid == child.pid:
                return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    # a launcher that waits for ranks that never come would do so for ever
    starts, fault, connected = Starts(launch, used), None, time.monotonic()
    while code is None and not asked and not fault and not failed:
        listen(0.2)
        if time.monotonic() > connected + min(launch.get("keep_alive", 15) + 5, AGAIN):
            connect(launch)
            connected = time.monotonic()
        code = ended()
        if code is None and not selector.get_map():
            time.sleep(0.01)
        if code is None and starts.missing():
            fault = "not all ranks had started within %d s: %s" % (launch["start_timeout"], starts.words)
    if code is None and not fault:
        fault = by_engine()
    stopped = code is None and not fault and (asked or not failed)
    again = code != 0 and not asked and number < launch["restarts"]

    # the ranks first, while the launcher still stands: its end takes their connections away
    ends, silent = {}, {}
    reap_everywhere(launch, ends, silent, again)
    limit = time.monotonic() + 2
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            if child:
                os.killpg(child.pid, number)
        except ProcessLookupError:
            pass
        while child and code is None and time.monotonic() < limit:
            listen(0.05)
            code = ended()
        limit += 2
    reap.rest()
    listen(0)
    lines.end()

    ends[launch["node"]] = dict(reap.states(), ahead=0.0)
    reap.forget(again)
    names = [place["node"] for place in used if place["node"] != launch["node"]]
    took_part = [dict(ends[place["node"]], node=place["node"]) for place in used if place["node"] in ends]

    def all_of(what):
        """With the node that wrote it down, and the time by this node's clock."""
        return [dict(one, node=seen["node"], time=one["time"] - seen["ahead"]) for seen in took_part for one in seen[what]]

    result = {
        "launcher": None if stopped else 1 if fault else failed[0] if failed else code,
        "started": sum(seen["started"] for seen in took_part),
        "exits": all_of("exits"),
        "hung": all_of("hung"),
        "lost": all_of("lost"),
        "silent": [node for node in names if node not in ends],
        "silence": {node: words for node, words in dict(silent).items() if node in names and node not in ends},
    }
    if fault:
        result["fault"] = fault
    return result, again


def launcher(launch, used):
    """The launcher's vector for these nodes."""
    argv = list(launch["launcher"])
    argv[argv.index("-np") + 1] = str(ranks(used))
    if [place["node"] for place in used] == [launch["node"]]:
        # all others have gone: horovodrun takes no other interface for ranks of its own node (driver_service.py)
        argv[argv.index("--network-interfaces") + 1] = "lo"
    argv[argv.index("-H") + 1] = ",".join("%s:%d" % (place["address"], place["ranks"]) for place in used)
    return argv


def ranks(used):
    return sum(place["ranks"] for place in used)


def note(words):
    rank.frames(b"r", [words.encode(errors="replace")])


def failure(result, used):
    """Who failed first (core/job.rs has the same order); `used` are the nodes, the ranks of each in a row."""
    gave_up = {end["rank"] for end in result["exits"] if not end["asked"]}
    named = [hung for hung in result["hung"] if not hung.get("idle")]
    idle = [hung for hung in result["hung"] if hung.get("idle")]
    if any(hung["rank"] in gave_up for hung in idle):
        named = named or [hung for hung in idle if hung["idle"] != "waiting"]
        if not named:
            return "the ranks waited for one another, or for one that did not come"
    for hung in sorted(named, key=lambda hung: hung["time"])[:1]:
        ends = [end for end in result["exits"] if end["rank"] == hung["rank"]]
        if hung.get("tensors") and any(end["code"] == 0 and not end["asked"] and end["time"] < hung["time"] for end in ends):
            return "rank %d ended with 0 while the others waited for it" % hung["rank"]
        places = [place["node"] for place in used for _ in range(place["ranks"])]
        if hung.get("tensors") and places[hung["rank"]:][:1] in [[node] for node in result["silent"]]:
            return "%s did not answer at the end" % places[hung["rank"]]
        return "rank %d hung" % hung["rank"]
    places = [place["node"] for place in used for _ in range(place["ranks"])]
    seen = {end["rank"] for end in result["exits"]}
    cut = [node for rank, node in enumerate(places) if rank not in seen and node in result["silent"]]
    if cut and "fault" not in result:
        return "%s did not answer at the end" % ", ".join(dict.fromkeys(cut))
    failed = [end for end in result["exits"] if end["code"] != 0]
    if all(end["asked"] for end in failed):
        if "fault" in result:
            return result["fault"]
        if result["silent"]:
            return "%s did not answer at the end" % ", ".join(result["silent"])
    if not failed:
        return "the launcher, or a rank that nobody saw end, ended with %s" % result["launcher"]
    first = min(failed, key=lambda end: (end["asked"], end["time"]))
    how = "was killed by signal %d" % first["signal"] if first.get("signal") else "ended with %d" % first["code"]
    return "rank %d on %s %s" % (first["rank"], first["node"], how)


def healthy(launch, places):
    """Those of the nodes that answer, with nothing of the try before on them; all where that leaves none."""
    seen = {launch["node"]: None}
    now = threading.Event()
    now.set()
    of_each(launch["workers"], lambda worker: reap_elsewhere(launch, worker, 0, seen, {}, True, threading.Event(), now))
    left = [place for place in places if place["node"] in seen]
    return left or places


def main():
    with open(os.path.join(HERE, "launch.json")) as file:
        launch = json.load(file)
    os.environ["HVDCTL_KEEP_ALIVE"] = str(launch.get("keep_alive", 15))  # ssh.sh reads it
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, BY_ENGINE):
        signal.signal(number, lambda number, _frame: asked.append(number))
    try:
        with new("result.json") as result:
            rank.reserve(result.fileno())
    except OSError:
        pass
    here = {name: launch[name] for name in ("node", "address", "ranks")}
    places = [place for place in [here] + launch["workers"] if place["ranks"]]
    tries, used = [], places
    while True:
        started = time.time()
        result, again = attempt(launch, used, len(tries))
        stopped = result["launcher"] is None
        if not again:
            break
        tries.append(dict(result, started=started, ended=time.time(), ranks=ranks(used)))
        try:
            write("tries.json", tries)
        except OSError:
            pass  # a full disk is no reason to give up
        pause = min(launch.get("restart_pause", 2) * 2 ** (len(tries) - 1), LONGEST_PAUSE)
        note("%s; try %d of %d begins in %d s" % (failure(result, used), len(tries) + 1, launch["restarts"] + 1, pause))
        limit = time.monotonic() + pause
        while time.monotonic() < limit and not asked:
            time.sleep(0.05)
        if asked:
            # between two tries: how the last one ended is known, and what was kept for the next is to go
            result.pop("fault", None)
            stopped = not by_engine()
            if not stopped:
                # not the last try ended the run; how that went is in tries.json
                result.update(fault=by_engine(), exits=[], hung=[], silent=[], silence={})
            reap_everywhere(launch, {}, {}, False)
            reap.forget(False)
            break
        used = healthy(launch, places)
        gone = [place["node"] for place in places if place not in used]
        if gone:
            left = "1 rank" if ranks(used) == 1 else "%d ranks" % ranks(used)
            note("%s did not answer: %s on the other nodes" % (", ".join(gone), left))

    if launch["own_workers"]:
        of_each(launch["workers"], lambda worker: end_worker(launch, worker))
    write("result.json", dict(
        result,
        ended=time.time(),
        launcher=None if stopped else result["launcher"],
        stopped=stopped,
        ranks=ranks(used),
    ))
    # a rank that waits in the kernel may keep this container from ending: nobody is to wait for that
    rank.frames(b"d", [b""])
    disconnect()
    return 143 if stopped else result["launcher"]


def end_worker(launch, worker):
    """Its main process ends, and with it the container, which removes itself."""
    try:
        ssh(launch, worker, STANDING, ["kill 1"], subprocess.DEVNULL, subprocess.DEVNULL).wait(20)
    except (OSError, subprocess.SubprocessError):
        pass


if __name__ == "__main__":
    sys.exit(main())
