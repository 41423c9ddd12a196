"""Two ranks, of which rank 1 does not come to the collective operation in which rank 0 waits, for each reason that
there is. The operations are stand-ins that only wait: no rank needs a library or a network.

Arguments: the kind of hang, and a path, if rank 0 is to give up when someone connects to that socket; otherwise it
waits for ever."""
import os
import signal
import socket
import subprocess
import sys
import threading
import time

RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK")
RANK = int(next(os.environ[name] for name in RANKS if name in os.environ))
KIND = sys.argv[1]


def wait_for_others():
    """Waits as a library does, in a socket."""
    listener = socket.socket(socket.AF_UNIX)
    # "": the kernel chooses a name
    listener.bind(sys.argv[2] if len(sys.argv) > 2 and RANK == 0 else "")
    listener.listen(1)
    listener.accept()
    error = "RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete"
    print(error, file=sys.stderr, flush=True)
    os._exit(1)


def all_reduce():
    wait_for_others()


def broadcast():
    wait_for_others()


def sleep():
    time.sleep(1000)


def next_batch():
    """Waits for a data loader, which has a process of its own."""
    program = "import time\ndef load():\n    time.sleep(1000)\nload()"
    loader = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    loader.stdout.read(1)


def compute():
    while True:
        pass


def evaluate():
    broadcast()


def train_on():
    """Goes on without the barrier at which the others wait."""
    step = 0
    while True:
        step += sum(range(1000))


def end():
    sys.exit(0)


def lock_twice():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def read_pipe():
    os.read(os.pipe()[0], 1)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def init_process_group():
    """Tries to connect to a listener that takes no more connections, as to a node that does not answer."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    others = [socket.socket() for _ in range(3)]
    for other in others:
        other.setblocking(False)
        other.connect_ex(listener.getsockname())
    time.sleep(0.2)
    socket.socket().connect(listener.getsockname())


KINDS = {"sleep": sleep, "data loader": next_batch, "busy loop": compute, "other branch": evaluate,
         "missing barrier": train_on, "shorter loop": end, "lock": lock_twice, "pipe": read_pipe, "lost node": sleep,
         "stopped": stop, "rendezvous": init_process_group}

print("ready", flush=True)
if RANK == 1:
    KINDS[KIND]()
all_reduce()
