"""Finds what a job has written outside the mounts of its container, where it goes with the container: files that may be results. Their
times decide and not what the image has, so that it depends on no storage driver. The system's directories, caches and hidden files are
left out."""
import json
import os
import re
import stat
import time

import files

HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEM = {"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr", "/var"}
INSIDE = ("/usr/src", "/var/tmp")  # in these, and programs write there all the same
TEMPORARY = ("/tmp/", "/var/tmp/")
LEAST_TEMPORARY = 1 << 20  # bytes; smaller temporary files are no results
NO_RESULTS = re.compile(r"\.|__pycache__$|site-packages$|dist-packages$|node_modules$|lost\+found$|"
                        r"(tmp[a-z0-9_]{8}|pymp-.*|torchinductor_.*|torchelastic_.*|ompi\..*|prte\..*|openmpi-.*|pmix-.*|ray|hvdctl.*)$")
VOLUME = re.compile(r"/volumes/[0-9a-f]{64}/_data$")  # of an image's VOLUME, which goes with the container
MOST, LIMIT = 1000, 2.0  # files in the list; seconds
LARGEST, LONGEST = 3, 200  # files that are reported, and characters of their paths
WITH_FILES = 64  # nodes for which the result has their files
# what a node reports
REPORT = {"files": files.is_count, "bytes": files.is_size, "whole": files.is_flag,
          "largest": [{"path": files.is_text, "bytes": files.is_size}]}


def mounts(lines):
    """The mount points that outlive the container or have no files of programs, by the lines of mountinfo."""
    found = (line.split(" ")[3:5] for line in lines)
    return {re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), point) for root, point in found if not VOLUME.search(root)}


def find(since, others, top="/", limit=LIMIT):
    """The files that were changed since then as (bytes, time, path), the largest first, and whether all directories were examined."""
    found, end, left = [], time.monotonic() + limit, [top, *(top.rstrip("/") + place for place in INSIDE)]
    for directory in left:  # grows: near directories come first
        if time.monotonic() > end:
            return sorted(found, reverse=True), False
        try:
            entries = list(os.scandir(directory))
        except OSError:
            continue
        for entry in entries:
            path = entry.path[len(top.rstrip("/")):]
            # before anything is asked of it: a network drive may not answer
            if path in SYSTEM or path in others or NO_RESULTS.match(entry.name):
                continue
            try:
                state = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(state.st_mode):
                left.append(entry.path)
            elif stat.S_ISREG(state.st_mode) and state.st_size and state.st_ctime >= since:
                if state.st_size >= LEAST_TEMPORARY or not path.startswith(TEMPORARY):
                    found.append((state.st_size, state.st_mtime, path))
    return sorted(found, reverse=True), True


def record():
    """Stores the list in the file `outside` of the job's directory, a line each: bytes, time of modification and path as JSON. Returns what
    is reported of it, or None if there is nothing. A check (verify, bench) has its working directory there, and writes nothing."""
    try:
        cwd = files.read_json("job.json", {"cwd": files.is_text})["cwd"]
        if cwd.endswith("/" + os.path.basename(HERE)):
            return None
        since = os.stat(os.path.join(HERE, "launcher.json")).st_ctime
        with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
            found, is_whole = find(since, mounts(lines))
    except (OSError, ValueError):
        return None
    return store(found, is_whole) if found else None


def store(found, is_whole):
    try:
        files.write("outside", "".join("%d %d %s\n" % (size, at, json.dumps(path)) for size, at, path in found[:MOST]))
    except OSError:
        pass  # the disk is full
    largest = [{"path": shown(path), "bytes": size} for size, _, path in found[:LARGEST]]
    size = min(sum(size for size, _, _ in found), (1 << 63) - 1)  # of sparse files
    return {"files": len(found), "bytes": size, "largest": largest, "whole": is_whole}


def shown(path):
    """The beginning of a path as text for messages."""
    return os.fsencode(path).decode(errors="replace")[:LONGEST]


def of_nodes(reports):
    """What the result has of these nodes' reports: a list, by node."""
    found = []
    for node in sorted(node for node in reports if reports[node]):
        report = reports[node]
        largest = report["largest"][:LARGEST] if len(found) < WITH_FILES else []
        largest = [{"path": shown(one["path"]), "bytes": one["bytes"]} for one in largest]
        found.append({"node": node, "files": report["files"], "bytes": report["bytes"], "largest": largest, "whole": report["whole"]})
    return found
