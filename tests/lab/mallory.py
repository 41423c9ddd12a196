"""The attempts of a user of a machine on all that appears there: `mallory.py SETTINGS`, a JSON object. Tries until the
file `stop` appears, for `limit` seconds at most, and prints each thing that succeeds once, as "RIGHT WHAT". With
`user`, it runs as root: root finds what there is, in directories that the user cannot list, too, and a child without
privileges tries it. Without `user`, the program tries as it is. Nothing is changed, no byte is sent, and no lock is
kept, except with `hold`. It never reads from a packet socket.

    user     [UID, GID] of the child
    places   directories; what lies there at the start counts only below those in `own`
    own      directories whose contents count, whatever was there before
    ignore   a pattern of paths that are the program's own, in which variables are replaced
    names    [PATTERN, TEXT] pairs that make paths the same in each run
    mark     a variable; only processes that have it, and their ports, count
    job      a variable; only processes that have it with another value than the program itself count
    secrets  texts that nobody else may read, each backwards, because the program's own command line has the settings
    gpus     how many GPUs the program was given; nvidia-smi shows no more
    hold     keep every lock
"""
import fcntl
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time

settings = json.loads(sys.argv[1])
held, mine = {}, {str(os.getpid())}


def opened(path, flags):
    try:
        return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None


def lock(path, fd):
    """Whoever can open a file can lock it, now or as soon as it is free."""
    if path in held:
        os.close(fd)
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if settings.get("hold"):
            held[path] = fd
            return
    except OSError:
        pass
    os.close(fd)


def try_path(path):
    try:
        entry = os.lstat(path)
    except OSError:
        return
    mode = entry.st_mode
    may = lambda right: os.access(path, right, effective_ids=True)
    if stat.S_ISDIR(mode):
        fd = opened(path, os.O_RDONLY | os.O_DIRECTORY)
        if fd is not None:
            yield "list"
            yield "lock"
            lock(path, fd)
        if may(os.W_OK | os.X_OK):
            yield "write"
    elif stat.S_ISSOCK(mode):
        if connects(socket.AF_UNIX, path):
            yield "connect"
    elif stat.S_ISREG(mode):
        fd = opened(path, os.O_RDONLY)
        if fd is not None:
            yield "read"
            yield "lock"
            lock(path, fd)
        # an open for writing would make a program that is being started "busy"
        if may(os.W_OK):
            yield "write"
        if may(os.X_OK):
            yield "execute"
            for bit, name in ((stat.S_ISUID, "setuid"), (stat.S_ISGID, "setgid")):
                if mode & bit:
                    yield name
    elif not stat.S_ISLNK(mode):
        # a reader or a writer of a pipe would be noticed
        for right, name in ((os.R_OK, "read"), (os.W_OK, "write")):
            if may(right):
                yield name


def connects(family, address):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        with socket.socket(family, kind) as one:
            one.settimeout(1)
            try:
                one.connect(address)
                return True
            except OSError as error:
                if family != socket.AF_UNIX or error.errno != 91:  # EPROTOTYPE
                    return False
    return False


def try_process(pid):
    directory = f"/proc/{pid}"
    for name in ("cmdline", "environ", "mem", "maps"):
        fd = opened(f"{directory}/{name}", os.O_RDONLY)
        if fd is None:
            continue
        with open(fd, "rb", buffering=0) as file:
            try:
                # the first page of memory is never there
                text = b"" if name == "mem" else file.readall()
            except OSError:
                continue
        if text or name == "mem":
            yield f"read {name}"
        if any(secret in text for secret in secrets):
            yield f"read secret in {name}"
    for name in ("cwd", "root", "exe"):
        try:
            os.stat(f"{directory}/{name}")
            yield f"follow {name}"
        except OSError:
            pass
    try:
        os.listdir(f"{directory}/fd")
        yield "list fd"
    except OSError:
        pass
    try:
        os.kill(int(pid), 0)
        yield "signal"
    except OSError:
        pass


def try_socket(kind):
    """Whoever has such a socket reads what goes over the loopback and the network, whoever sends it."""
    family, number, protocol = {
        "packet socket": (socket.AF_PACKET, socket.SOCK_RAW, 0),
        "raw socket": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
    }[kind]
    try:
        socket.socket(family, number, protocol).close()
        yield "open"
    except OSError:
        pass


def try_gpus(given):
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    if sum(line.startswith(b"GPU ") for line in listed.splitlines()) > given:
        yield "see"


def attempt(things):
    """The rights to each thing that the calling process has."""
    trials = {
        "path": try_path,
        "process": try_process,
        "socket": try_socket,
        "gpus": try_gpus,
        "unix": lambda name: ["connect"] * connects(socket.AF_UNIX, "\0" + name),
        "port": lambda at: ["connect"] * connects(socket.AF_INET6 if ":" in at[0] else socket.AF_INET, tuple(at)),
    }
    return [list(trials[kind](thing)) for kind, thing in things]


def child(uid, gid):
    """Starts a process of a user that tries what it is sent."""
    (ask, asked), (answered, answer) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(asked), os.close(answered)
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        os.chdir("/")
        with os.fdopen(ask) as questions, os.fdopen(answer, "w") as answers:
            for line in questions:
                print(json.dumps(attempt(json.loads(line))), file=answers, flush=True)
        os._exit(0)
    mine.add(str(pid))
    os.close(ask), os.close(answer)
    questions, answers = os.fdopen(asked, "w"), os.fdopen(answered)

    def by_child(things):
        print(json.dumps(things), file=questions, flush=True)
        return json.loads(answers.readline())

    return by_child


def paths(place):
    """Yields a directory and all that is below it, without following links."""
    yield place
    below = [place]
    while below:
        try:
            entries = list(os.scandir(below.pop()))
        except OSError:
            continue
        for entry in entries:
            yield entry.path
            try:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
            except OSError:
                pass


def marked(pid):
    variable = settings.get("mark") or settings.get("job")
    if variable is None:
        return True
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            values = [line.partition(b"=")[2] for line in file.read().split(b"\0")
                      if line.startswith(variable.encode() + b"=")]
    except OSError:
        return False
    return bool(values) and ("job" not in settings or values[0].decode() != os.environ.get(variable))


def processes():
    for pid in os.listdir("/proc"):
        try:
            if pid.isdigit() and pid not in mine and os.stat(f"/proc/{pid}").st_uid != tried_by:
                yield pid
        except OSError:
            pass


def listeners():
    """Yields address, port and inode of each port on which a program listens."""
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            with open(f"/proc/net/{name}") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == "0A":
                address, port = words[1].split(":")
                raw = bytes.fromhex(address)
                raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                yield socket.inet_ntop(family, raw), int(port, 16), words[9]


def abstract():
    with open("/proc/net/unix") as file:
        return {words[7][1:] for words in map(str.split, file) if len(words) == 8 and words[7].startswith("@")}


def owner_of(inode):
    """The process that has a socket open."""
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") == f"socket:[{inode}]":
                        return pid
            except OSError:
                pass
    return None


secrets = [secret[::-1].encode() for secret in settings.get("secrets", [])]
tried_by = settings["user"][0] if "user" in settings else os.getuid() or -1
privileged = "user" in settings
tries = child(*settings["user"]) if privileged else attempt
ignored = re.compile(os.path.expandvars(settings.get("ignore", "(?!)")))
own = settings.get("own", [])
counts = lambda path: any(path == place or path.startswith(place + "/") for place in own)
before = {path for place in settings["places"] for path in paths(place) if not counts(path)}
# a rank begins when the others are under way
ports_before = {inode for _, _, inode in listeners()} if privileged else set()
abstract_before = abstract() if privileged else set()
names = [(re.compile(pattern), text) for pattern, text in settings.get("names", [])]
programs, said, looked_at = {}, set(), {}


def plain(text):
    for pattern, replacement in names:
        text = pattern.sub(replacement, text)
    return text


def program(inode):
    """The name of the program that listens, or none if it does not count."""
    if not privileged:
        return "a port"
    if inode not in programs:
        pid = owner_of(inode)
        if pid is None:
            return None
        with open(f"/proc/{pid}/comm") as file:
            programs[inode] = file.read().strip() if marked(pid) else None
    return programs[inode]


def kind_of(address):
    return {"127": "loopback", "::1": "loopback"}.get(address.split(".")[0],
                                                      "every address" if address in ("0.0.0.0", "::") else "ADDRESS")


def is_new(thing):
    """Whether a process or a port was not tried often. A process may change when it starts another program."""
    looked_at[thing] = looked_at.get(thing, 0) + 1
    return looked_at[thing] <= 3


def things():
    """Yields what there is: kind, what to try, and how it is called."""
    for place in [*settings["places"], *own]:
        for path in paths(place):
            if path not in before and not ignored.search(path):
                yield "path", path, plain(path)
    for pid in processes():
        if is_new(pid) and marked(pid):
            yield "process", pid, "/proc/PID"
    for kind in ("packet socket", "raw socket"):
        if is_new(kind):
            yield "socket", kind, kind
    if "gpus" in settings and is_new("GPUs"):
        yield "gpus", settings["gpus"], "GPUs of other jobs"
    for address, port, inode in listeners():
        if inode not in ports_before:
            name = program(inode)
            if name is not None and is_new(inode):
                at = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
                yield "port", [at, port], f"{name} at {kind_of(address)}"
    if "mark" not in settings:
        for name in abstract() - abstract_before:
            yield "unix", name, "@" + plain(name)


end, rounds, seen = time.monotonic() + settings["limit"], 0, set()
while time.monotonic() < end and not os.path.exists(settings["stop"]):
    began, rounds = time.monotonic(), rounds + 1
    # a right that somebody has to one of them is one to all that are called the same
    batch = list(things())
    seen.update(name for _, _, name in batch)
    for (kind, _, name), rights in zip(batch, tries([thing[:2] for thing in batch])):
        for right in rights:
            line = f"{right} {name}"
            if kind == "process":
                verb, _, file = right.rpartition(" ")
                line = f"{verb} {name}/{file}" if verb else f"{file} {name}"
            if line not in said:
                said.add(line)
                print(line, flush=True)
    if rounds == 1:
        print("tries", flush=True)
    time.sleep(max(0.01, 3 * (time.monotonic() - began)) if privileged else 0.2)
print(f"tried {len(seen)} in {rounds} rounds", flush=True)
