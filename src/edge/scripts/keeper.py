"""The keeper of a run: the main process of hmaster. It starts the launcher, writes what that says into this node's log,
and when the launcher has ended, or somebody asks for the end (SIGTERM; a second one: no grace), it ends what is left of the run on
every node and writes down how it went. So a run needs nobody's terminal, and no operator's machine, to come to its end.

Wants launch.json beside it: `launcher` (argument vector), `node` (this one's name), `workers` (`{"node", "address"}` of the others),
`port` (of their sshd) and `grace` (seconds between SIGTERM and SIGKILL)."""
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # the folder keeps what was laid there, and no more
import rank  # noqa: E402
import reap  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
asked = []  # the signals that came


def reap_elsewhere(launch, worker, grace, ends, silent):
    """Ends what is left of the run on another node, over the sshd of its worker, as the launcher reaches it."""
    words = "python3 %s %d" % (shlex.quote(os.path.join(HERE, "reap.py")), grace)
    argv = [os.path.join(HERE, "ssh"), "-p", str(launch["port"]), "-o", "ConnectTimeout=5", worker["address"], words]
    # without the run's mark: this ssh is not to be ended with the rest of it
    env = {name: value for name, value in os.environ.items() if name != "HVDCTL_JOB"}
    try:
        said = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=grace + 20)
        last = said.stderr.decode(errors="replace").strip().splitlines()[-1:]
        silent[worker["node"]] = "".join(last) or "no answer"
        answer = json.loads(said.stdout.decode())
        # its clock was read last of all, so only the way back counts
        answer["ahead"] = answer["now"] - time.time()
        ends[worker["node"]] = answer
        silent.pop(worker["node"], None)
    except subprocess.TimeoutExpired:
        silent[worker["node"]] = "no answer within %d s" % (grace + 20)
    except (OSError, ValueError, KeyError):
        silent.setdefault(worker["node"], "no answer")


def reap_everywhere(launch, ends, silent):
    """The ranks of all nodes at once. A second signal takes the rest of the grace time away."""

    def start(grace):
        threads = [threading.Thread(target=reap_elsewhere, args=(launch, worker, grace, ends, silent), daemon=True)
                   for worker in launch["workers"]]
        threads.append(threading.Thread(target=reap.ranks, args=(grace,), daemon=True))
        for thread in threads:
            thread.start()
        return threads

    threads, hurried = start(launch["grace"]), len(asked) > 1
    while any(thread.is_alive() for thread in threads):
        if len(asked) > 1 and not hurried:
            threads, hurried = start(0), True
        time.sleep(0.05)


def write(name, value):
    """A whole file or none, also when the power goes."""
    path = os.path.join(HERE, name)
    with open(path + ".new", "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def main():
    with open(os.path.join(HERE, "launch.json")) as file:
        launch = json.load(file)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: asked.append(number))
    # the ssh of the run's folder comes before any other
    env = dict(os.environ, PATH=HERE + os.pathsep + os.environ.get("PATH", os.defpath))
    lines, selector, code, child = rank.Lines(b"l"), selectors.DefaultSelector(), None, None
    try:
        child = subprocess.Popen(launch["launcher"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
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

    while code is None and not asked:
        listen(0.2)
        code = ended()
        if not selector.get_map():
            time.sleep(0.05)
    stopped = code is None

    # the ranks first, while the launcher still stands: its end takes their connections away
    ends, silent = {}, {}
    reap_everywhere(launch, ends, silent)
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

    def all_of(what):
        """With the node that wrote it down, and the time by this node's clock."""
        return [dict(one, node=node, time=one["time"] - seen["ahead"])
                for node, seen in ends.items() for one in seen[what]]

    write("result.json", {
        "ended": time.time(),
        "launcher": None if stopped else code,
        "stopped": stopped,
        "started": sum(seen["started"] for seen in ends.values()),
        "exits": all_of("exits"),
        "hung": all_of("hung"),
        "silent": [worker["node"] for worker in launch["workers"] if worker["node"] not in ends],
        "silence": {node: words for node, words in silent.items() if node not in ends},
    })
    return 143 if stopped else code


if __name__ == "__main__":
    sys.exit(main())
