"""The meaning of Slurm's answers about a job: one table for jobs that Slurm has started and for those within an
allocation of the user's (salloc, sbatch with hvdctl in it). Neither asks Slurm nor knows a clock; allocation.py does.
The guide to Slurm (docs/guide/slurm.md) has the same table for people, hvdctl itself for the queue (model/queue.rs),
and slurm/common.sh for lists: tests compare them.

The fields are those of `scontrol show job`. While Slurm ends a job its state is COMPLETING, whatever has ended it, and
other fields say why. Slurm sends SIGTERM to all processes of a job that it ends, some of them twice, and SIGKILL after
KillWait seconds. Before a preemption with GraceTime it sends SIGTERM to the job's steps, and nothing to the batch
job."""
import collections

GOES_ON = "goes on"  # Slurm does not end it
WAITS = "in the queue"  # it waits in the queue, again if it has run before
PREEMPTING = "being preempted"  # it has some time left, and then either starts again later or has ended
PREEMPTED = "preempted"
TIME_LIMIT = "time limit"
NODE_LOST = "node lost"
CANCELLED = "cancelled"
OUT_OF_MEMORY = "out of memory"
NOT_STARTED = "nodes not started"
ENDED = "ended by itself"
UNKNOWN = "not known"  # Slurm has not answered, or with what this table does not have

# Of the state of a job (squeue(1), JOB STATE CODES). One that is COMPLETING has the meaning of its other fields.
STATES = {
    "PENDING": WAITS, "REQUEUED": WAITS, "REQUEUE_HOLD": WAITS, "REQUEUE_FED": WAITS, "SPECIAL_EXIT": WAITS,
    "RESV_DEL_HOLD": WAITS,
    "CONFIGURING": GOES_ON, "RUNNING": GOES_ON, "SUSPENDED": GOES_ON, "STOPPED": GOES_ON, "SIGNALING": GOES_ON,
    "RESIZING": GOES_ON, "STAGE_OUT": GOES_ON, "EXPEDITING": GOES_ON,
    "TIMEOUT": TIME_LIMIT, "DEADLINE": TIME_LIMIT, "PREEMPTED": PREEMPTED, "NODE_FAIL": NODE_LOST,
    "OUT_OF_MEMORY": OUT_OF_MEMORY, "CANCELLED": CANCELLED, "REVOKED": CANCELLED,
    "BOOT_FAIL": NOT_STARTED, "LAUNCH_FAILED": NOT_STARTED, "RECONFIG_FAIL": NOT_STARTED,
    "COMPLETED": ENDED, "FAILED": ENDED,
}
# Of the reason of a job that is COMPLETING. Any other one, such as that for which it waited, says nothing. Nor does
# JobLaunchFailure: up to 22.05 a batch job whose main process was killed has it.
REASONS = {"TimeLimit": TIME_LIMIT, "DeadLine": TIME_LIMIT, "NodeDown": NODE_LOST, "OutOfMemory": OUT_OF_MEMORY,
           "NonZeroExitCode": ENDED}
NEVER = ("", "None", "N/A", "Unknown", "(null)")  # no time

# The least time in seconds before SIGKILL that is left to record how the job has ended.
RESERVE = 6
# How long ranks get if Slurm does not say how long they have.
LEAST = 2

# `meaning`: of those above; `may_return`: whether Slurm starts this program again, or may after a preemption;
# `requeues`: whether it starts those again that it ends so there, or None if that is not known; `left`: how many
# seconds are left until Slurm kills what is left of the job, or None if it does not say
Ending = collections.namedtuple("Ending", "meaning may_return requeues left")
# `restarts`: how often Slurm had started the job again when this program began; `is_step`: whether it runs in a step of
# an allocation of the user's, which Slurm never starts again; `kill_wait`: of Slurm's configuration, in seconds;
# `by_partition`: whether its partition says what a preemption does
Begun = collections.namedtuple("Begun", "restarts is_step kill_wait by_partition")


def number(text):
    return int(text) if text and text.isdigit() else None


def meaning(fields, restarts=None):
    """The meaning of the fields of a job; none of them if Slurm has not answered. `restarts`: as in Begun, None if that
    is not known."""
    state, reason = fields.get("JobState", ""), REASONS.get(fields.get("Reason"))
    count = number(fields.get("Restarts"))
    if state and None not in (restarts, count) and count > restarts:
        return WAITS
    is_preempted = fields.get("PreemptTime", "") not in NEVER
    if state == "COMPLETING":
        return reason or (PREEMPTED if is_preempted else CANCELLED)
    known = STATES.get(state, UNKNOWN)
    return PREEMPTING if known == GOES_ON and is_preempted else known


def ending(fields, begun, partition, now):
    """The ending that Slurm prepares for a job. `partition`: the fields of its partition, none if they are not known;
    `now`: in seconds since the epoch, as the times in the fields."""
    found, is_batch = meaning(fields, begun.restarts), not begun.is_step
    if found == WAITS:
        return Ending(found, is_batch, None, begun.kill_wait)
    if found not in (PREEMPTING, PREEMPTED):
        return Ending(found, False, None if is_batch else False, begun.kill_wait)
    mode = partition.get("PreemptMode") if begun.by_partition else None
    requeues = None if mode is None else "REQUEUE" in mode and is_batch
    if found == PREEMPTED:
        return Ending(found, False, requeues, begun.kill_wait)
    began, end = number(fields.get("PreemptTime")), number(fields.get("EndTime"))
    time = number(partition.get("GraceTime")) if begun.by_partition else None
    if None not in (time, began):
        end = began + time if end is None else min(end, began + time)
    left = None if end is None else max(end - now, 0) + begun.kill_wait
    return Ending(found, is_batch and fields.get("Requeue") == "1" and requeues is not False, requeues, left)


def grace(ending, begun, wanted):
    """The seconds that ranks have for a last checkpoint, of those that they want: Slurm kills this program at the same
    time as the ranks. In the grace time of a preemption they have all of that, and `KillWait` is for the record."""
    if ending.left is None:
        return min(wanted, LEAST)
    before = begun.kill_wait if ending.meaning == PREEMPTING else RESERVE
    return max(min(wanted, int(ending.left - before)), min(wanted, LEAST))
