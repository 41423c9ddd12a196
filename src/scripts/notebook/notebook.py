"""JupyterLab in a job, and the programs that its cells start on all nodes of the job. The first argument says which:

- `serve`: every rank of the job. Rank 0 starts JupyterLab and reports in a line of JSON that it answers; the others
  wait for its end.
- `page`: gives JupyterLab the token that is a line of standard input, in place of any earlier one, and lets hvdctl
  connect to it.
- `forward PORT`: lets hvdctl connect to a port of the node.
- `launch PROGRAM…`: a cell runs this ($HVDCTL_LAUNCH). It starts PROGRAM as every rank of a launch, on all slots of the
  job.
- `guard MARK`: ends what is left of a launch on all nodes when `launch` ends without success, however it ends.
- `rank MARK PROGRAM…`: the launcher starts this as each of these ranks, PROGRAM with the environment that the job has
  on this node.
- `receive`: unpacks files of the project that have changed on the first node, from standard input.
- `end MARK`: ends what is left of a launch on this node.
- `over`: lets the ranks that wait end.

In its directory, notebook.json describes the nodes and the launcher (start/by_hand.rs)."""
import contextlib
import http.client
import io
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # the job's directory keeps only what was put there
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there
import files  # noqa: E402
import node_launcher  # noqa: E402
import processes  # noqa: E402
import tunnel  # noqa: E402
from here import HERE, command_of  # noqa: E402

DESCRIPTION = "notebook.json"
RANK = "notebook_rank.json"  # how programs of launches are started on this node
RECEIVED = "notebook_received.json"  # size and time of the files that the first node has sent
SENT = "notebook_sent.json"  # the same there, of the files that all other nodes have
CONFIG = "notebook_config.json"  # Jupyter's configuration, until it has been read
PAGE = "notebook_page.json"  # JupyterLab's process and socket
OVER = "notebook_over"
MARK = "HVDCTL_LAUNCH_MARK"  # in the environment of all processes of a launch
START_LIMIT = 90  # seconds until JupyterLab answers
RENEW_LIMIT = 20  # seconds until it takes another token
END_LIMIT = 5  # seconds for a program of a launch that was interrupted
LOGIN_LIMIT = 30  # seconds for a node to end what is left, or to receive files
MOST = 10 << 20  # bytes of a changed file that is sent to the other nodes: code, and no checkpoints
MOST_SHOWN = 10  # names in a message
MOST_SENT = 1 << 30  # bytes of all of them in one launch
SLOWEST = 1 << 20  # bytes a second in which a node receives them
LEFT_OUT = {".git", ".ipynb_checkpoints", "__pycache__"}
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEBUGGER = "@jupyterlab/debugger-extension"
# what kernels are asked: all of Jupyter's protocol but `debug_request`, for which ipykernel would listen on a TCP port,
# where every user of the node could run code in the kernel
MESSAGES = ["execute_request", "inspect_request", "complete_request", "history_request", "is_complete_request",
            "connect_request",
            "comm_info_request", "kernel_info_request", "comm_open", "comm_msg", "comm_close", "input_reply",
            "interrupt_request",
            "shutdown_request", "create_subshell_request", "delete_subshell_request", "list_subshell_request",
            "abort_request", "clear_request", "usage_request"]


def own(arguments):
    """This program, on any node."""
    return command_of("notebook.py", *arguments)


def ssh(description, node, command, **more):
    """Starts a command in another node's worker."""
    argv = [os.path.join(HERE, "ssh"), "-p", str(description["port"]), "-o", "ConnectTimeout=10", node["address"]]
    return subprocess.Popen(argv + [" ".join(map(shlex.quote, command))], **more)


def on_others(description, command, stdin=b"", limit=LOGIN_LIMIT):
    """Runs a command on all other nodes at once, with this on standard input. Returns what each wrote, by the node's
    name, and the nodes on which it failed, each with the error."""
    written, failed = {}, []

    def run(node):
        name, reason = node["node"], None
        try:
            with ssh(description, node, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE) as child:
                try:
                    output, errors = child.communicate(stdin, limit)
                    if child.returncode != 0:
                        reason = errors.decode(errors="replace").strip() or "exit code %d" % child.returncode
                    else:
                        written[name] = output
                except subprocess.TimeoutExpired:
                    child.kill()
                    reason = "no answer within %d s" % limit
        except (OSError, RuntimeError, ValueError) as error:
            # such as too many open files
            reason = str(error)
        if reason is not None:
            failed.append("%s: %s" % (name, reason))

    threads = [threading.Thread(target=run, args=(node,)) for node in description["nodes"][1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return written, failed


def program_environment(description, node, given):
    """The environment of a launch's programs on this node: that of this rank, without what says which rank it is."""
    env = {name: value for name, value in os.environ.items() if name not in description["remove"]}
    # null: not set, whatever the launcher sets
    env.update((name, value) for name, value in description["nodes"][node]["environment"].items() if name not in given)
    # of all ranks of the node: this one has its own part (rank_supervisor.py)
    env.update((name, given[name]) for name in [VISIBLE] if name in given)
    if "OMP_NUM_THREADS" not in given:
        env["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // description["nodes"][node]["ranks"]))
    return env


def serve():
    description, node = files.load(DESCRIPTION), int(os.environ["NODE_RANK"])
    if os.environ["LOCAL_RANK"] == "0":
        env = program_environment(description, node, files.load("env.json"))
        files.write_json(RANK, {"cwd": os.getcwd(), "environment": env,
                                "defaults": description["nodes"][node]["defaults"]})
        # what was uploaded with a time that is still to come was not written here
        files.write_json(RECEIVED, changed_files(os.stat(os.path.join(HERE, RANK)).st_mtime))
    if os.environ["RANK"] != "0":
        while not os.path.exists(os.path.join(HERE, OVER)):
            time.sleep(1)
        return 0
    try:
        # of this job alone: the secret that signs cookies, and the sockets of kernels, whose paths have to be short
        private = tempfile.mkdtemp(prefix="hvdctl-", dir="/tmp")
        try:
            return jupyter(description, private)
        finally:
            shutil.rmtree(private, ignore_errors=True)
    finally:
        files.write(OVER, "")
        end_waiting(description)


def end_waiting(description):
    """Lets the ranks of the other nodes end. Where that fails the job fails, and its supervisor ends them."""
    if on_others(description, own(["over"]))[1]:
        time.sleep(2)
        failed = on_others(description, own(["over"]))[1]
        if failed:
            sys.exit("cannot end the ranks that wait on " + "; ".join(failed))


def jupyter(description, private):
    """Runs JupyterLab with this directory, and reports when it answers. Returns its exit code."""
    # nobody gets this token: `page` gives it another one
    nodes, token, path = description["nodes"], secrets.token_hex(16), os.path.join(private, "jupyter.sock")
    # it shows colours and pages in cells as always
    left_out = {"OMP_NUM_THREADS", "TERM", "PAGER"} - set(files.load("env.json"))
    env = {name: value for name, value in os.environ.items() if name not in description["remove"]
           and name not in left_out}
    env.update(HVDCTL_NODES=",".join(node["node"] for node in nodes),
               HVDCTL_NP=str(sum(node["ranks"] for node in nodes)),
               HVDCTL_HOSTS=",".join("%s:%d" % (node["address"], node["ranks"]) for node in nodes),
               HVDCTL_LAUNCH=" ".join(map(shlex.quote, own(["launch"]))), JUPYTER_RUNTIME_DIR=private,
               JUPYTER_CONFIG_PATH=":".join(filter(None, [private, env.get("JUPYTER_CONFIG_PATH")])))
    # names of version 2, and of those before; they win over the image's own configuration. A socket in a closed
    # directory: ranks and other users of the node can read or try what goes over TCP. With the default port, or
    # JUPYTER_PORT contradicts the socket
    server = {"token": token, "password": "", "allow_root": True, "open_browser": False, "allow_remote_access": False,
              "sock": path, "sock_mode": "0600", "port": 8888}
    config = {"ServerApp": dict(server, root_dir=os.getcwd()), "NotebookApp": dict(server, notebook_dir=os.getcwd()),
              "IdentityProvider": {"token": token}, "PasswordIdentityProvider": {"hashed_password": ""},
              "KernelManager": {"transport": "ipc"}, "MappingKernelManager": {"allowed_message_types": MESSAGES}}
    files.write_json(CONFIG, config)
    # whoever opens a notebook is not offered what is refused
    os.mkdir(os.path.join(private, "labconfig"))
    files.write_json(os.path.join(private, "labconfig", "page_config.json"), {"disabledExtensions": {DEBUGGER: True}})
    program = [sys.executable, os.path.join(HERE, "notebook_server.py"), "--config=" + os.path.join(HERE, CONFIG),
               "--no-browser", "--allow-root"]
    child = subprocess.Popen(program, env=env, stdin=subprocess.DEVNULL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    try:
        if wait_until_ready(child, path, token):
            files.write_json(PAGE, {"pid": child.pid, "socket": path})
            print(json.dumps({"notebook": "ready"}), flush=True)
    finally:
        files.remove(CONFIG)
    code = child.wait()
    return code if code >= 0 else 128 - code


def wait_until_ready(child, path, token):
    """Waits until JupyterLab answers, and only to who has the token. Returns whether it does; otherwise it is ended."""
    until = time.monotonic() + START_LIMIT
    while child.poll() is None:
        if time.monotonic() > until:
            print("JupyterLab does not answer within %d s" % START_LIMIT, file=sys.stderr, flush=True)
            child.kill()
        elif status(path, token) == 200:
            if status(path, None) in (401, 403):
                return True
            print("JupyterLab answers without the token: its configuration in the image allows that", file=sys.stderr,
                  flush=True)
            child.kill()
        else:
            time.sleep(0.1)
        child.poll()
    return False


class Local(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=5)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def status(path, token):
    """The status of an answer to a request for the files; None if there is no answer."""
    connection = Local(path)
    try:
        connection.request("GET", "/api/contents?content=0",
                           headers={"Authorization": "token " + token} if token else {})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def page():
    token, server = sys.stdin.buffer.readline().decode().strip(), files.load(PAGE)
    files.write(os.path.join(os.path.dirname(server["socket"]), "token"), token)
    os.kill(server["pid"], signal.SIGUSR2)
    until = time.monotonic() + RENEW_LIMIT
    while status(server["socket"], token) != 200:
        if time.monotonic() > until:
            sys.exit("JupyterLab takes no other token within %d s" % RENEW_LIMIT)
        time.sleep(0.05)
    print("ready", flush=True)
    tunnel.reach(server["socket"])


def forward(port):
    """Lets hvdctl connect to a port of this node that a program of the notebook listens on, now or later."""
    sys.stdin.buffer.readline()
    print("ready", flush=True)
    tunnel.reach(("127.0.0.1", port))


def launch(program):
    description, here, given = files.load(DESCRIPTION), files.load(RANK), files.load("env.json")
    mark = secrets.token_hex(8)
    # a kernel that is restarted hangs up, and the guard below ends the ranks
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    send_changes(description)
    # as the launcher of a job: without the user's variables, which it would write into the command line of ssh, except
    # those that it reads
    reads = tuple(description["reads"])
    env = {name: value for name, value in here["environment"].items() if value is not None
           and (name not in given or name.startswith(reads))}
    env.update(description["environment"])
    env[MARK] = mark
    # each rank has its own node's environment from RANK
    env = node_launcher.inherited(env, description["inherits"])
    for name, text in description["files"].items():
        files.write(name, text)
    # a session of its own: what ends this process, as an interrupted cell does, does not end it
    guard = subprocess.Popen(own(["guard", mark]), stdin=subprocess.PIPE, env=here["environment"],
                             start_new_session=True)
    code = 1
    try:
        code = wait_for_all(list(start(description, mark, program, env)))
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        print("cannot start the launcher: %s: %s; hvdctl notebook --launcher chooses another one" %
              (error.filename, error.strerror), file=sys.stderr, flush=True)
        code = 127
    finally:
        guard.communicate(b"done" if code == 0 else b"")
    return code


def guard(mark):
    """Waits until `launch` has ended. Unless it says that all ranks have, ends them on all nodes."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == b"done":
        return 0
    end(mark)
    for failed in on_others(files.load(DESCRIPTION), own(["end", mark]))[1]:
        print("ranks may still be running on %s; hvdctl stop ends the notebook and all of its ranks" % failed,
              file=sys.stderr, flush=True)
    return 0


def start(description, mark, program, env):
    """Starts the launcher, or every agent or rank if it is started on every node."""
    for command in description["commands"]:
        argv, node = command["argv"] + ["rank", mark] + program, command["node"]
        for variables in command["variables"] or [[]]:
            if node == 0:
                yield subprocess.Popen(argv, env=dict(env, **dict(one.split("=", 1) for one in variables)),
                                       stdin=subprocess.DEVNULL)
            else:
                yield ssh(description, description["nodes"][node], ["env", MARK + "=" + mark] + variables + argv,
                          env=env, stdin=subprocess.DEVNULL)


def wait_for_all(children):
    """Waits until all have ended, or one has failed. Returns its exit code."""
    while children:
        for child in list(children):
            code = child.poll()
            if code:
                return code if code > 0 else 128 - code
            if code == 0:
                children.remove(child)
        time.sleep(0.05)
    return 0


def rank(mark, program):
    here = files.load(RANK)
    env = dict(here["defaults"])
    env.update(os.environ)
    env.update(here["environment"])
    env[MARK] = mark
    # setproctitle would write over it
    env.setdefault("SPT_NOENV", "1")
    os.chdir(here["cwd"])
    devices = (env.get(VISIBLE) or "").split(",")
    if any(name.strip().startswith("MIG-") for name in devices):
        # CUDA uses only the first MIG device, so each rank gets one
        names = files.load(DESCRIPTION)["local_rank"]
        number = next((int(os.environ[name]) for name in names if os.environ.get(name)), 0)
        env[VISIBLE] = devices[number % len(devices)]
    env = {name: value for name, value in env.items() if value is not None}
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        print("%s: cannot start %s: %s" % (os.uname().nodename, program[0], error.strerror), file=sys.stderr,
              flush=True)
        return 127


def end(mark):
    """Ends the processes of a launch here: SIGTERM, and SIGKILL after a few seconds."""
    wanted, spared = (MARK + "=" + mark).encode(), set(processes.ancestors(os.getpid()) or [os.getpid()])

    def left():
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        return [pid for pid in pids if pid not in spared and wanted in processes.environment(pid)]

    until = time.monotonic() + END_LIMIT
    processes.send(signal.SIGTERM, left())
    while left() and time.monotonic() < until:
        time.sleep(0.05)
    processes.send(signal.SIGKILL, left())
    return 0


def changed_files(since):
    """Size and time of the regular files below the project's directory that came there or were written since then, by
    name. A notebook is no code of ranks, and changes all the time."""
    found = {}
    for directory, directories, names in os.walk("."):
        directories[:] = [name for name in directories if name not in LEFT_OUT]
        for name in names:
            path = os.path.join(directory, name)[2:]
            with contextlib.suppress(OSError):
                about = os.lstat(path)
                # one that was moved or unpacked keeps its time
                is_new = max(about.st_mtime, about.st_ctime) > since
                if is_new and stat.S_ISREG(about.st_mode) and not name.endswith(".ipynb"):
                    found[path] = [about.st_size, about.st_mtime]
    return found


def known(name):
    """What a file has about other files; nothing if it is not there."""
    with contextlib.suppress(OSError, ValueError):
        return files.load(name)
    return {}


def send_changes(description):
    """Sends to the other nodes what has changed in the project since the job began there: code that was edited here."""
    if len(description["nodes"]) == 1:
        return
    os.chdir(files.load(RANK)["cwd"])
    changed, sent = changed_files(os.stat(os.path.join(HERE, RANK)).st_mtime), known(SENT)
    for path in sorted(path for path, (size, _) in changed.items() if size > MOST):
        print("not sent to the other nodes, because it is larger than 10 MiB: %s" % path, file=sys.stderr, flush=True)
    new = {path: about for path, about in changed.items() if about[0] <= MOST and sent.get(path) != about}
    size = sum(about[0] for about in new.values())
    if size > MOST_SENT:
        sys.exit("%d files of %d MiB have changed in the project, too much to send to the other nodes: put data in "
                 "another directory, such as $HVDCTL_DATA" % (len(new), size >> 20))
    if not new:
        return
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in list(new):
                try:
                    archive.inodes.clear()  # a second name of a file is packed as a file
                    about = archive.gettarinfo(path)
                    about.type = tarfile.REGTYPE
                    with open(path, "rb") as file:
                        text = file.read(MOST + 1)
                except OSError:
                    # it is gone: there is nothing to send
                    del new[path]
                    continue
                # it may have changed meanwhile: the next launch sends it again
                about.size = len(text)
                archive.addfile(about, io.BytesIO(text))
        packed.seek(0)
        kept, failed = on_others(description, own(["receive"]), packed.read(), LOGIN_LIMIT + size // SLOWEST)
    for node, names in sorted(kept.items()):
        names = names.decode(errors="replace").strip()
        if names:
            print("%s keeps what was written there: %s" % (node, names), file=sys.stderr, flush=True)
    if failed:
        sys.exit("cannot send what has changed in the project to " + "; ".join(failed))
    sent.update(new)
    files.write_json(SENT, sent)


def receive():
    """Unpacks files into the project's directory, except those in whose place ranks of this node have written
    something, which is printed."""
    os.chdir(files.load(RANK)["cwd"])
    since, received, kept = os.stat(os.path.join(HERE, RANK)).st_mtime, known(RECEIVED), []

    def is_in_the_way(path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            about = os.lstat(path)
            if stat.S_ISDIR(about.st_mode):
                return True
            return about.st_mtime > since and received.get(path) != [about.st_size, about.st_mtime]
        return False

    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            for member in archive:
                if not member.isfile() or member.name.startswith("/") or ".." in member.name.split("/"):
                    continue
                above = member.name.split("/")[:-1]
                directories = ["/".join(above[:depth + 1]) for depth in range(len(above))]
                obstacles = [path for path in directories if os.path.islink(path)
                             or not os.path.isdir(path)] + [member.name]
                written = list(filter(is_in_the_way, obstacles))
                if written:
                    kept += written
                    continue
                for path in obstacles[:-1]:
                    files.remove(os.path.abspath(path))
                os.makedirs("/".join(above) or ".", exist_ok=True)
                new = member.name + ".hvdctl-new"
                with open(new, "wb") as file:
                    file.write(archive.extractfile(member).read())
                os.chmod(new, member.mode & 0o755)
                os.utime(new, (member.mtime, member.mtime))
                about = os.lstat(new)
                received[member.name] = [about.st_size, about.st_mtime]
                os.rename(new, member.name)
    finally:
        files.write_json(RECEIVED, received)
    if kept:
        more = len(kept) - MOST_SHOWN
        print(", ".join(kept[:MOST_SHOWN]) + (" and %d more" % more if more > 0 else ""))
    return 0


def main():
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "launch" and not rest:
        print("usage: $HVDCTL_LAUNCH PROGRAM [ARGUMENT…]", file=sys.stderr)
        return 2
    if what == "over":
        files.write(OVER, "")
        return 0
    return {"serve": serve, "page": page, "forward": lambda: forward(int(rest[0])), "launch": lambda: launch(rest),
            "rank": lambda: rank(rest[0], rest[1:]), "receive": receive, "guard": lambda: guard(rest[0]),
            "end": lambda: end(rest[0])}[what]()


if __name__ == "__main__":
    sys.exit(main())
