"""Removes what the ranks of a job have left in /dev/shm: libraries create files there that a process cannot remove when
it is killed. They take memory until the worker is removed, or the machine starts again."""
import os
import re
import stat

import processes
from here import JOB

TOP = "/dev/shm"
# what libraries create there: semaphores, NCCL, PyTorch, Python's multiprocessing, PSM, UCX, CUDA, Open MPI, MPICH,
# Intel MPI, libfabric and MosaicML's streaming. What has another name may be a program's own, for example data for the
# next job
NAMES = re.compile(r"sem\.|nccl-|torch_\d|psm_[0-9a-f]|psm[23]?_shm|pym-\d|ucx_|cuda\.shm\.|vader_segment\.|"
                   r"sm_segment\.|mpich_shar|Intel_MPI|fi_shm|ofi_shm|__KMP_REGISTERED_LIB_|"
                   r"\d{6}_(locals|barrier|next_epoch|cache_usage|shard_|resume|epoch_)")


class NotKnown(Exception):
    """It cannot be found out which files are in use."""


def files(since, top=TOP, names=NAMES):
    """The regular files of this user that have such a name and are not older: paths and what `stat` says of them."""
    found = {}
    try:
        entries = list(os.scandir(top))
    except OSError:
        return found
    for entry in entries:
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        is_own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
        if is_own and about.st_ctime >= since and names.match(entry.name):
            found[entry.path] = about
    return found


def identity(about):
    return about.st_dev, about.st_ino


def mapped(pid):
    """The files that a process has mapped."""
    with open("/proc/%d/maps" % pid, "rb") as maps:
        for line in maps:
            fields = line.split(None, 5)
            major, minor = fields[3].split(b":")
            yield os.makedev(int(major, 16), int(minor, 16)), int(fields[4])


def opened(pid):
    """The files that a process has open."""
    for descriptor in os.listdir("/proc/%d/fd" % pid):
        try:
            yield identity(os.stat("/proc/%d/fd/%s" % (pid, descriptor)))
        except FileNotFoundError:
            pass


def in_use():
    """The files that processes have open or mapped. Processes of other users do not use this user's."""
    used = set()
    for pid in processes.all_processes():
        try:
            used.update(mapped(pid))
            used.update(opened(pid))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended
        except OSError:
            try:
                is_own = os.stat("/proc/%d" % pid).st_uid == os.geteuid()
            except OSError:
                continue
            if is_own and processes.condition(pid) not in processes.ENDED:
                raise NotKnown
    return used


def is_of_other_job(pid):
    """Returns whether a process belongs to another job, which may open a file again that it has closed."""
    given = processes.environment(pid)
    return any(one.startswith(b"HVDCTL_JOB=") and one != b"HVDCTL_JOB=" + JOB.encode() for one in given)


def remove(top=TOP):
    """Removes the files that no process uses, unless another job runs here. Returns their number and bytes."""
    try:
        # the job's programs were written when the job was created on this node
        found = files(os.stat(__file__).st_mtime, top)
        if not found or any(map(is_of_other_job, processes.all_processes())):
            return 0, 0
        used = in_use()
    except (OSError, ValueError, NotKnown):
        return 0, 0
    count = size = 0
    for path, about in found.items():
        try:
            if identity(about) not in used and identity(os.lstat(path)) == identity(about):
                os.unlink(path)
                count, size = count + 1, size + about.st_blocks * 512
        except OSError:
            pass
    return count, size
