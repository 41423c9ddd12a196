"""Finds what a job has written outside the mounts of its container, where it goes with the container: files that may be
results. Their times decide and not what the image has, so that it depends on no storage driver. The system's
directories, caches and hidden files are left out."""
import heapq
import json
import os
import re
import stat
import threading
import time

import files
import processes
from here import HERE, JOB

SYSTEM = {"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys",
          "/usr", "/var"}
INSIDE = ("/usr/src", "/var/tmp")  # in these, and programs write there all the same
TEMPORARY = ("/tmp", "/var/tmp")
LEAST_TEMPORARY = 1 << 20  # bytes; smaller temporary files are no results
NO_RESULTS = re.compile(r"\.|(__pycache__|site-packages|dist-packages|node_modules|lost\+found)$")
# what libraries keep directly below the directories of temporary files
OF_LIBRARIES = re.compile(r"(tmp[a-z0-9_]{8}|pymp-.*|torchinductor_.*|torchelastic_.*|ompi\..*|prte\..*|openmpi-.*|"
                          r"pmix-.*|ray|hvdctl.*)$")
# of these, what tells why a job failed: torch elastic's error files and Ray's logs
WITH_REASONS = re.compile(r"(torchelastic_.*|ray)$")
IN_LIBRARY = re.compile(r"(?:/var)?/tmp/(?:torchelastic_[^/]*|ray)/")
REASON_IN_LIBRARY = re.compile(r".*/error\.json$|(?:/var)?/tmp/ray/session_[^/]*/logs/")
# likewise small temporary files of any program: those of PyTorch's flight recorder, core files
REASON = re.compile(r"(nccl|comm_lib)_trace_.*rank_\d+$|core(\.|$)|.*\.core$")
# how files of Python's faulthandler begin, which may have any name
STACKS = (b"Fatal Python error: ", b"Thread 0x", b"Current thread 0x", b"Timeout (", b"Stack (most recent call first)")
MOST_REASONS = 256 << 20  # bytes of them on a node
VOLUME = re.compile(r"/volumes/[0-9a-f]{64}/_data$")  # of an image's VOLUME, which goes with the container
MOST, LIMIT = 1000, 2.0  # files in the list; seconds
PATIENCE = 3  # seconds in all: a file system may not answer
MOST_DIRECTORIES = 100000  # that are known at once, each with its path in memory
LARGEST, LONGEST = 3, 200  # files that are reported, and characters of their paths
WITH_FILES = 64  # nodes for which the result has their files
# what a node reports
REPORT = {"files": files.is_count, "bytes": files.is_size, "whole": files.is_flag,
          "largest": [{"path": files.is_text, "bytes": files.is_size}]}
UNSEEN = {"files": 0, "bytes": 0, "largest": [], "whole": False}  # the report of a node where nothing could be examined


def mounts(lines):
    """The mount points that outlive the container or have no files of programs, by the lines of mountinfo."""
    found = (line.split(" ")[3:5] for line in lines)
    return {re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), point) for root, point in found
            if not VOLUME.search(root)}


class Found:
    """Files as (bytes, time, path), of which the largest are kept, and whether everything was examined."""

    def __init__(self):
        self.files, self.bytes, self.largest, self.is_whole = 0, 0, [], True
        self.room = 0  # bytes of files that tell why the job failed, which are no results otherwise

    def add(self, file):
        self.files += 1
        self.bytes += file[0]
        self.push(file)

    def add_reason(self, file):
        """Adds a file that tells why the job failed, as long as there is room."""
        if file[0] <= self.room:
            self.room -= file[0]
            self.add(file)
        else:
            self.is_whole = False

    def push(self, file):
        (heapq.heappush if len(self.largest) < MOST else heapq.heappushpop)(self.largest, file)


def find(since, others, top="/", limit=LIMIT, reasons=0):
    """Finds the files that were changed since then, in as many seconds as the limit says. `reasons`: how many bytes of
    files that tell why the job failed; 0 for a job that has not."""
    top = top.rstrip("/")
    found, end, left = Found(), time.monotonic() + limit, [top + "/", *(top + place for place in INSIDE)]
    found.room = reasons
    for directory in left:  # grows: near directories come first
        try:
            # not as a list: it may have millions of entries
            with os.scandir(directory) as entries:
                for entry in entries:
                    if time.monotonic() > end:
                        found.is_whole = False
                        return found
                    examine(entry, entry.path[len(top):], since, others, left, found)
        except (FileNotFoundError, NotADirectoryError):
            pass  # it has been removed
        except OSError:
            found.is_whole = False
    return found


def examine(entry, path, since, others, left, found):
    # before anything is asked of it: a network drive may not answer
    if path in SYSTEM or path in others or NO_RESULTS.match(entry.name):
        return
    if os.path.dirname(path) in TEMPORARY and OF_LIBRARIES.match(entry.name):
        if not (found.room and WITH_REASONS.match(entry.name)):
            return
    try:
        state = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError:
        found.is_whole = False
        return
    if stat.S_ISDIR(state.st_mode):
        if len(left) < MOST_DIRECTORIES:
            left.append(entry.path)
        else:
            found.is_whole = False
    elif stat.S_ISREG(state.st_mode) and state.st_size and state.st_ctime >= since:
        file = state.st_size, state.st_mtime, path
        if IN_LIBRARY.match(path):
            if REASON_IN_LIBRARY.match(path):
                found.add_reason(file)
        elif state.st_size >= LEAST_TEMPORARY or not path.startswith(tuple(place + "/" for place in TEMPORARY)):
            found.add(file)
        elif found.room and (REASON.match(entry.name) or has_stacks(entry.path)):
            found.add_reason(file)


def has_stacks(path):
    """Returns whether a file begins as those of Python's faulthandler do."""
    try:
        # never waits for the writer of a pipe that has taken its place
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return os.read(file, max(map(len, STACKS))).startswith(STACKS)
    except OSError:
        return False
    finally:
        os.close(file)


def began():
    """When the container's main process was started, by the clock of the files' times."""
    started = int(processes.start_time(1)) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def record():
    """Stores the list in the file `outside` of the job's directory, a line each: bytes, time of modification and path
    as JSON. As long as that file is there the container is kept: job/start.sh has made it with a line `?`, which stays
    if not everything could be examined. Returns what is reported of it, or None if there is nothing. Neither fails nor
    takes long, because the job has ended and its result must not depend on this."""
    if "HVDCTL_PROCESS" in os.environ:
        # a process of the login has no container, and what it writes stays where it is (process/main.sh)
        files.remove("outside")
        return None
    reports = [UNSEEN]
    # nothing ends a thread that waits for a file system, and nothing waits for this one
    work = threading.Thread(target=lambda: reports.append(try_to_record()), daemon=True)
    try:
        work.start()
        work.join(PATIENCE)
    except RuntimeError:
        pass  # no more processes are allowed
    return reports[-1]


def try_to_record():
    """Does that. A check (verify, bench) has its working directory in that of the job, and writes nothing."""
    try:
        cwd = files.read_json("job.json", {"cwd": files.is_text})["cwd"]
        if cwd.endswith("/" + JOB):
            files.remove("outside")
            return None
        # some storage drivers copy the image for each container, after the job's directory was made
        since = max(os.stat(os.path.join(HERE, "launcher.json")).st_ctime, began())
        with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
            found = find(since, mounts(lines), reasons=MOST_REASONS if has_failed() else 0)
        if found.is_whole and not found.files:
            files.remove("outside")
            return None
        return store(found)
    except Exception:  # of any kind: memory, names
        return UNSEEN


def has_failed():
    """Returns whether a rank of this node did not end with exit code 0: it has failed, or was asked to end because
    another one has. Lines of `states` are frames of the log (record/frames.rs)."""
    try:
        lines = files.read("states").splitlines()
    except OSError:
        return False
    ends = [line.split(b" ", 4)[3] for line in lines if line.count(b" ") >= 3 and line.split(b" ", 3)[2] == b"x"]
    return any(end != b"0" for end in ends)


def store(found):
    largest = sorted(found.largest, reverse=True)
    if largest:
        try:
            files.write("outside", "".join("%d %d %s\n" % (size, at, json.dumps(path)) for size, at, path in largest))
        except OSError:
            pass  # the disk is full
    size = min(found.bytes, (1 << 63) - 1)  # of sparse files
    reported = [{"path": shown(path), "bytes": size} for size, _, path in largest[:LARGEST]]
    return {"files": found.files, "bytes": size, "largest": reported, "whole": found.is_whole}


def shown(path):
    """The beginning of a path as text for messages."""
    return os.fsencode(path).decode(errors="replace")[:LONGEST]


def of_nodes(reports):
    """What the result has of these nodes' reports: a list, by node."""
    found = []
    for node in sorted(node for node in reports if reports[node]):
        report = reports[node]
        largest = report["largest"][:LARGEST] if len(found) < WITH_FILES else []
        largest = [{"path": one["path"][:LONGEST], "bytes": one["bytes"]} for one in largest]
        found.append({"node": node, "files": report["files"], "bytes": report["bytes"], "largest": largest,
                      "whole": report["whole"]})
    return found
