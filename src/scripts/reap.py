"""Ends what is left of a run in this container, and prints as JSON how its ranks on this node ended. Wants the grace time in
seconds, and `again` where the run is to be started again. It is called by the run's keeper, in hmaster and over the workers' sshd.

A process belongs to the run when its environment says HVDCTL_JOB=ID: other runs' are never touched. A rank's supervisor (rank.py)
passes SIGTERM on to its program, waits the grace time for it (a last checkpoint), and writes down how it ended.

With `started` in place of all that it ends nothing, and prints how many ranks have started.

A line with READY comes first, to say that it is there, whatever the image's start-up files have printed before; the JSON is one
line, and comes when the ranks have ended. To each line that
then comes it says what its clock shows. With the end of its standard input it ends what else is left of the run: the fronts of the
ranks go only when the ranks of all nodes have ended, and with them MPI's daemons, which no rank outlives."""
import json
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
JOB = os.path.basename(HERE)
MARK = b"HVDCTL_JOB=" + JOB.encode()  # in the environment of all that is the run's
SUPERVISOR = b"hvdctl-rank"  # the name of a rank's supervisor; the process that the launcher started has the same command line
ASKED = signal.SIGUSR1  # asks a supervisor for the end together with all others, so that its launcher need not hear of it
FAILED = b"hvdctl: a rank has failed with "  # and its exit code: a front's word to the keeper, on the launcher's own output
AFTER_FAILURE = 2  # seconds that the other ranks have when one has failed: all are to be gone within 5
READY = b"hvdctl: the reaper is there"  # and what came before is not from here
SPARED = {1, os.getpid()}  # the keeper itself, where this runs in it


def environment(pid):
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def name(pid):
    try:
        with open("/proc/%d/comm" % pid, "rb") as file:
            return file.read().strip()
    except OSError:
        return b""


def mine():
    """The run's processes and whether each is a program of a rank, or started by one."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        given = environment(pid) if pid not in SPARED else []
        if MARK in given:
            found[pid] = b"HVDCTL_PROGRAM=1" in given
    return found


def programs():
    return [pid for pid, program in mine().items() if program]


def alive():
    """The programs that nobody has killed. The others wait in the kernel, and no grace time helps them (killed.sh)."""
    return [pid for pid in programs() if not killed(pid)]


def killed(pid):
    try:
        with open("/proc/%d/status" % pid, "rb") as file:
            pending = next(line for line in file if line.startswith(b"SigPnd:"))
    except (OSError, StopIteration):
        return False
    return bool(int(pending.split()[1], 16) & 1 << signal.SIGKILL - 1)


def supervisors():
    return [pid for pid, program in mine().items() if not program and name(pid) == SUPERVISOR]


def send(number, pids):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def gone(seconds, left):
    """Waits until there are none left; false where some are after the time."""
    limit = time.monotonic() + seconds
    while left():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def ranks(grace):
    """Programs and their supervisors."""
    asked = set()

    def left():
        # a rank may be starting just now: its supervisor is asked as soon as it is there
        new = set(supervisors()) - asked if grace > 0 else set()
        send(ASKED, new)
        asked.update(new)
        return alive()

    # where a supervisor was killed, nobody passes the signal on
    if grace > 0 and not supervisors():
        send(signal.SIGTERM, programs())
    if not gone(grace, left):
        send(signal.SIGKILL, programs())
    # a supervisor whose program has ended has a last line to write
    gone(3, supervisors)


def rest():
    """Everything else of the run: what is left of supervisors and launcher."""
    send(signal.SIGTERM, mine())
    if not gone(2, mine):
        send(signal.SIGKILL, mine())


def forget(again):
    """Removes what the next try is not to find, or what none needs any more: nobody starts then, and env.json may be secret."""
    try:
        os.unlink(os.path.join(HERE, "states" if again else "env.json"))
    except FileNotFoundError:
        pass


def states():
    """How many ranks started on this node, how they ended, what output of them a full disk lost, and which ones were said to hang: `states` holds these frames of the
    log once more."""
    started, exits, hung, lost = 0, [], [], []
    try:
        with open(os.path.join(HERE, "states"), errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        words = line.split(" ", 5)
        try:
            marks = " ".join(words[4:]).split()
            if words[2] == "s":
                started += 1
            elif words[2] == "x":
                exits.append({"time": float(words[0]), "rank": int(words[1]), "code": int(words[3]),
                              "signal": int(words[3]) - 128 if "signal" in marks else None,
                              "asked": "asked" in marks, "oom": "oom" in marks})
            elif words[2] == "w":
                lost.append({"time": float(words[0]), "rank": int(words[1]), "lines": int(words[3])})
            elif words[2] == "h":
                hung.append({"time": float(words[0]), "rank": int(words[3]), "seconds": int(words[4]),
                             "tensors": words[5] or None})
            elif words[2] == "i":
                hung.append({"time": float(words[0]), "rank": int(words[1]), "seconds": int(words[3]), "idle": words[4]})
        except (IndexError, ValueError):
            pass  # cut off by a full disk
    return {"started": started, "exits": exits, "hung": hung, "lost": lost}


def started():
    """How many ranks of this node have started their program. A full disk may have kept that out of `states`: then those count
    that run. They lead process groups."""
    running = 0
    for pid in programs():
        try:
            running += os.getpgid(pid) == pid
        except ProcessLookupError:
            pass
    return max(running, states()["started"])


def late(_signal, _frame):
    raise TimeoutError


def main():
    os.write(1, b"\n" + READY + b"\n")
    if sys.argv[1] == "started":
        print(started(), flush=True)
        return
    grace = int(sys.argv[1])
    ranks(grace)
    seen = states()
    forget(sys.argv[2:] == ["again"])
    # a keeper whose machine has gone does not end anything any more, and one that was killed does not hear
    signal.signal(signal.SIGALRM, late)
    signal.alarm(grace + 40)
    try:
        print(json.dumps(seen), flush=True)
        for _ in sys.stdin:
            print(time.time(), flush=True)
    except OSError:
        pass
    signal.alarm(0)
    rest()


if __name__ == "__main__":
    main()
