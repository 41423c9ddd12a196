"""Ends what is left of a job in this container, and prints as JSON how its ranks on this node ended. Arguments: the
grace period in seconds, `again` if the job is to be restarted, and `failed` if a rank has failed: the stacks of the
others are recorded then. The job supervisor calls it in hmaster and over the workers' sshd.

A process belongs to the job if its environment says HVDCTL_JOB=ID: other jobs' are never touched. A rank supervisor
passes SIGTERM on to its program, waits the grace period for it (a last checkpoint), and records how it ended.

With `role=NUMBER` it ends nothing but the ranks of that role, and removes nothing.

With `started` as its first argument it ends nothing, and prints how many ranks have started. With `ports`, a number and
the ports that are taken it chooses ports and writes where all roles are (ports.py). With `ready` it exits with
0 if ranks can start here: the job's record exists, and so does their working directory, and the worker is not stopping.
On a drained node it exits with DRAINED. With `signal` and a number it sends that signal to the ranks' programs. With
`step` and a command line it runs that in a shell, as the first process of a step of Slurm's, and requests the end of
the ranks when Slurm does.

Its first line is READY, since the image's start-up files may have printed something before; the JSON is one line,
printed when the ranks have ended. To each line that then comes it answers with the time by its clock, but to OUTSIDE
with what the job has written outside the mounts, as JSON (outside.py): an earlier version answers with the time here,
too. At the end of its standard input it ends what else is left of the job: the launcher shims exit only when the ranks
of all nodes have ended, and with them the launcher's daemons, which no rank outlives."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
import files  # noqa: E402
import outside  # noqa: E402
import shared_memory  # noqa: E402
from here import HERE, JOB  # noqa: E402
from processes import command, environment, is_killed, name, send, signals  # noqa: E402

MARK = b"HVDCTL_JOB=" + JOB.encode()  # in the environment of all processes of the job
SUPERVISOR = b"hvdctl-rank"  # the name of a rank supervisor; its launcher shim has the same command line
# requests the end of a rank together with all others, so that its launcher need not learn of it; people do not send it
ASKED = signal.SIGRTMIN + 2
PASSED = {signal.SIGUSR1, signal.SIGUSR2}  # signals of people for their programs, which end no program of hvdctl's
# its exit code, and its node's address: from a launcher shim, in the launcher's output
FAILED = b"hvdctl: a rank has failed with "
# the number of a rank, and its node's address if that is known: from a rank supervisor, in the launcher's output
STOPPING = b"hvdctl: the worker is stopping: rank "
# of a worker that is asked to end, or whose sshd has ended (worker/init.py)
STOPPING_MARK = os.path.join(os.environ.get("HVDCTL_PLACE", "/run/hvdctl"), "stopping")
# the number of a rank, and its node's address if that is known: from a rank supervisor, in the launcher's output
READY_RANK = b"hvdctl: a rank is ready: "
AFTER_FAILURE = 2  # grace period of the other ranks in seconds when one has failed: all must be gone within 5
READY = b"hvdctl: the reaper is there"  # text before it is from start-up files
OUTSIDE = "outside"  # asks for the files outside the mounts
WANTED = "stack.wanted"  # a request for the stacks of this node's ranks (stacks.py)
READING = 0.7  # seconds for which a reading delays the end of a rank at most
ENVIRONMENT = re.compile(r"env\.\d+\.json\Z")  # that of the ranks of a role
DRAINED = 3  # exit code of `ready` on a drained node
MOST_TENSORS = 1000  # characters of their names
MOST_WORDS = 400  # characters of a line of a rank, and of what it does
MOST_PLACE = 2000  # of where a rank was, as JSON (stacks.py)
IDLE = (None, "blocked", "kernel", "waiting")  # what a rank without progress does (activity.py)
# what is reported at the end, in numbers that the result's readers can read
REPORT = {
    "started": files.is_count,
    "exits": [{"time": files.is_number, "rank": files.is_count, "code": files.is_code,
               "signal": files.optional(files.is_code), "asked": files.is_flag, "oom": files.is_flag}],
    "hung": [{"time": files.is_number, "rank": files.is_count, "seconds": files.is_count,
              "tensors": files.optional(files.is_text), "idle": lambda idle: idle in IDLE}],
    "lost": [{"time": files.is_number, "rank": files.is_count, "lines": files.is_count}],
    "gave_up": [{"time": files.is_number, "rank": files.is_count, "text": files.is_text}],
    "quiet": [{"time": files.is_number, "rank": files.is_count, "seconds": files.is_count, "does": files.is_text}],
    "places": files.optional([{"time": files.is_number, "rank": files.is_count, "text": files.is_text}]),
}
ROLE = "role="  # begins the argument with the number of a role
SPARED = {1, os.getpid()}  # the job supervisor itself, if this runs in it


class Role:
    """A role of the job, by its number: its processes here have its name in their environment, or are rank supervisors
    with that number (rank_role.py)."""

    def __init__(self, number):
        described = files.load("launcher.json")["roles"][number]
        self.mark, self.number = b"HVDCTL_ROLE=" + described["name"].encode(), b"%d" % number
        self.ranks = range(described["first"], described["first"] + described["ranks"])

    def has(self, pid, given):
        if self.mark in given:
            return True
        arguments = command(pid)[-2:]
        return arguments[1:] == [self.number] and arguments[0].endswith(b"/rank_supervisor.py")


def role_of(arguments):
    """The role that arguments name; None if they name none."""
    number = next((one[len(ROLE):] for one in arguments if one.startswith(ROLE)), None)
    return None if number is None else Role(int(number))


def mine(role=None):
    """The processes of the job, or of one of its roles, and whether each is a rank's program or descends from one."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        given = environment(pid) if pid not in SPARED else []
        if MARK in given and (role is None or role.has(pid, given)):
            found[pid] = b"HVDCTL_PROGRAM=1" in given
    return found


def programs(role=None):
    return [pid for pid, program in mine(role).items() if program]


def alive(role=None):
    """The programs that have not been killed yet."""
    return [pid for pid in programs(role) if not is_killed(pid)]


def supervisors(role=None):
    return [pid for pid, program in mine(role).items() if not program and name(pid) == SUPERVISOR]


def gone(seconds, left):
    """Waits until `left()` is empty. Returns whether it was in time."""
    limit = time.monotonic() + seconds
    while left():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def ranks(grace, failed=False, role=None):
    """Ends the ranks' programs, and with them their supervisors. `failed`: whether a rank has failed;
    `role`: the only one whose ranks are ended."""
    asked = set()
    if failed and grace > 0:
        # without it only the stacks are missing
        with contextlib.suppress(OSError):
            files.write(WANTED, json.dumps({"number": "", "locals": False, "native": False, "failed": True}), False)

    def left():
        # a rank may be starting just now: its supervisor is asked as soon as it exists
        new = set(supervisors(role)) - asked if grace > 0 else set()
        send(ASKED, new)
        asked.update(new)
        return alive(role)

    # a killed supervisor does not pass the signal on; a new one has no program yet
    running = programs(role)
    if grace > 0 and not supervisors(role):
        send(signal.SIGTERM, running)
    if not gone(grace + READING if failed and grace > 0 else grace, left):
        send(signal.SIGKILL, programs(role))
    # the supervisor of an ended program still writes its last frame
    gone(3, lambda: supervisors(role))


def rest(role=None):
    """Ends everything else of the job, or of one of its roles: what is left of supervisors and launcher. A rank that
    started late gets SIGTERM from its supervisor, which records that the end was requested."""
    send(signal.SIGTERM, [pid for pid, program in mine(role).items() if not program])
    if not gone(2, lambda: mine(role)):
        send(signal.SIGKILL, mine(role))
        gone(1, lambda: mine(role))
    if role is None:
        shared_memory.remove()


def forget(again):
    """Removes what the next attempt must not find or, if there is none, what may be secret; no rank starts without it.
    A rank supervisor that was killed has left that its rank was idle (waiting.py)."""
    removed = ("world.json", "states") if again else ("world.json", "env.json", "inherited.json", "inherited.json.new",
                                                      "first.json", "own.json", "process.json", "notebook_rank.json",
                                                      "py-spy")
    for file in os.listdir(HERE) if os.path.isdir(HERE) else []:
        if file in removed or not again and ENVIRONMENT.match(file) or file.startswith(("idle.", "place.", "stack.")):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(HERE, file))


def parse_states(lines, since=0, of=None, again=False):
    """How many ranks started, how they ended, which of them hang or were reported to, how much of their output a full
    disk lost, which gave up waiting, which made no progress when they were asked to end, and where they were, since
    then, by the lines of `states`, which are frames of the log. Leaves out what is cut off by a full disk, or
    impossible. `of`: the ranks that count; None: all. `again`: whether one that starts again counts once."""
    found = {"started": 0, "exits": [], "hung": [], "lost": [], "gave_up": [], "quiet": [], "places": []}
    places, begun = {}, set()

    def add(name, **fields):
        if files.fits([fields], REPORT[name]):
            found[name].append(fields)

    for line in lines:
        words = line.split(" ", 5)
        try:
            kind, rank, at = words[2], int(words[1]), float(words[0])
            if at < since or of is not None and rank not in of:
                continue
            if kind == "s":
                found["started"] += not (again and rank in begun)
                begun.add(rank)
            elif kind == "x":
                code, marks = int(words[3]), " ".join(words[4:]).split()
                add("exits", time=at, rank=rank, code=code, signal=code - 128 if "signal" in marks else None,
                    asked="asked" in marks, oom="oom" in marks)
            elif kind == "w":
                add("lost", time=at, rank=rank, lines=int(words[3]))
            elif kind == "h":
                add("hung", time=at, rank=int(words[3]), seconds=int(words[4]), tensors=words[5][:MOST_TENSORS] or None)
            elif kind == "i":
                add("hung", time=at, rank=rank, seconds=int(words[3]), idle=words[4])
            elif kind == "u":
                add("gave_up", time=at, rank=rank, text=" ".join(words[3:])[:MOST_WORDS])
            elif kind == "v":
                add("quiet", time=at, rank=rank, seconds=int(words[3]), does=" ".join(words[4:])[:MOST_WORDS])
            elif kind == "k":
                text = " ".join(words[3:])
                places[rank] = dict(time=at, rank=rank, text=text if len(text) <= MOST_PLACE else "")
        except (IndexError, ValueError):
            pass
    for one in places.values():
        add("places", **one)
    return found


def deliver(number):
    """Sends a signal to those processes of the ranks' programs that catch it: as from Slurm, all of them get it, but a
    shell around the training, or a program that has not begun to catch it, is not ended by it. Where Slurm itself has
    just sent it to all processes of the ranks, their supervisors have it, too."""
    bit = 1 << number - 1
    if any((signals(pid, b"ShdPnd") or 0) & bit for pid in supervisors()):
        return
    send(number, [pid for pid in programs() if (signals(pid, b"SigCgt") or 0) & bit])


def have_roles():
    """Returns whether the ranks of the job have roles, some of which may be started again."""
    with contextlib.suppress(OSError, ValueError):
        return "roles" in files.load("launcher.json")
    return False  # the suppressed error


def states(since=0, of=None):
    try:
        return parse_states(files.read("states").decode(errors="replace").splitlines(), since, of, have_roles())
    except OSError:
        return parse_states([])


def step(command):
    """Runs a command line and returns its exit code. At SIGTERM it requests the end of the ranks and waits for it: the
    command may have ended before, as some launchers do, or a rank may be starting just now."""
    requests = []

    def ask():
        asked = set()
        while True:
            new = set(supervisors()) - asked
            send(signal.SIGTERM, new)
            asked |= new
            time.sleep(0.05)

    def request(_number, _frame):
        if not requests:
            threading.Thread(target=ask, daemon=True).start()
        requests.append(True)

    signal.signal(signal.SIGTERM, request)
    code = subprocess.call(["sh", "-c", command])
    # each of them ends in its grace period
    while requests and supervisors():
        time.sleep(0.05)
    return code if code >= 0 else 128 - code


def ends_in(directory):
    """How many ranks have recorded their end in the directory of a node."""
    with open(os.path.join(directory, "states"), errors="replace") as file:
        return len(parse_states(file.read().splitlines())["exits"])


def started(since=0, role=None):
    """How many ranks of this node, or of one role, have started their program since then, or still run it. A full disk
    may have kept the starts out of `states`: then those that run count. They lead process groups."""
    running = 0
    for pid in programs(role):
        try:
            running += os.getpgid(pid) == pid
        except ProcessLookupError:
            pass
    recorded = states(since, role and role.ranks)
    # one that runs since before may have ended
    return max(running + (len(recorded["exits"]) if since else 0), recorded["started"])


def ready():
    """The exit code of `ready`."""
    try:
        record = files.read_json("job.json", {"cwd": files.is_text})
        # node/drain.sh
        if os.path.exists(os.path.join(HERE, "drained")):
            return DRAINED
        return 0 if os.path.isdir(record["cwd"]) and not os.path.exists(STOPPING_MARK) else 1
    except (OSError, ValueError):
        return 1


def late(_signal, _frame):
    raise TimeoutError


def main():
    if sys.argv[1] == "ready":
        return ready()
    if sys.argv[1] == "signal":
        return deliver(int(sys.argv[2]))
    if sys.argv[1] == "step":
        return step(sys.argv[2])
    os.write(1, b"\n" + READY + b"\n")
    if sys.argv[1] == "started":
        print(started(float(sys.argv[2]), role_of(sys.argv)), flush=True)
        return 0
    if sys.argv[1] == "ports":
        import ports  # takes a while, and ranks start and end without it
        return ports.serve(int(sys.argv[2]), set(map(int, sys.argv[3:])))
    grace, role = int(sys.argv[1]), role_of(sys.argv)
    ranks(grace, "failed" in sys.argv[2:], role)
    reported, again = states(), "again" in sys.argv[2:]
    if role is None and not again:
        forget(again)
    # limits the wait for a job supervisor whose machine is gone, or that was killed
    signal.signal(signal.SIGALRM, late)
    signal.alarm(grace + 40)
    try:
        print(json.dumps(reported), flush=True)
        for line in sys.stdin:
            # not before it has been read: a job supervisor that got no answer asks once more, over another connection
            if role is None and again:
                forget(again)
            print(json.dumps(outside.record()) if line.strip() == OUTSIDE else time.time(), flush=True)
    except OSError:
        pass
    signal.alarm(0)
    rest(role)
    return 0


if __name__ == "__main__":
    sys.exit(main())
