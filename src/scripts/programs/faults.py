"""The faults other than a rank's that end a job, as in result.json: a kind with its facts. model/fault.rs has the same
kinds, and makes the sentence for people."""


def fault(kind, **facts):
    return dict(facts, kind=kind)


CONTAINER_STOPPED = fault("container_stopped")
CONTAINER_REMOVED = fault("container_removed")
TIME_LIMIT = fault("time_limit")
PREEMPTED = fault("preempted")
# where jobs that are preempted are started again, and where they are not
PREEMPTED_TO_RETURN, PREEMPTED_FOR_GOOD = fault("preempted", requeues=True), fault("preempted", requeues=False)
ALLOCATION_REQUEUED = fault("allocation_requeued")
NODE_FAILED_IN_ALLOCATION = fault("node_failed", requeues=False)  # of the user's, where Slurm starts nothing again
END_NOT_KNOWN = fault("end_not_known")
OUT_OF_MEMORY = fault("out_of_memory")
NODE_FAILED = fault("node_failed")
NODES_NOT_STARTED = fault("nodes_not_started")
CANCELLED_IN_QUEUE = fault("cancelled_in_queue")
ENDED_IN_QUEUE = fault("ended_in_queue")


def not_started(seconds, missing):
    return fault("not_started", seconds=seconds, missing=missing)


def worker_stopped(node):
    return fault("worker_stopped", node=node)


def too_few_ranks(ranks, seconds):
    return fault("too_few_ranks", ranks=ranks, seconds=seconds)


def role_not_ready(role, seconds, ranks, ended):
    """`ranks`: those that were not ready, by their numbers in the role; `ended`: whether it has ended, or never
    began."""
    return fault("role_not_ready", role=role, seconds=seconds, ranks=ranks, **({"ended": True} if ended else {}))


def not_allocated(message):
    return fault("not_allocated", message=message)


def no_commands(message):
    return fault("no_commands", message=message)


def not_shared(message):
    return fault("not_shared", message=message)


def of_driver(message):
    """Why Horovod's elastic driver has ended the job."""
    # horovod/runner/elastic/constants.py
    return fault("too_many_changes" if "number of resets" in message else "driver", message=message)
