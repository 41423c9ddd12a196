"""Handwritten digits, trained by PyTorch on a Spark cluster of its own: the ranks of this job.

Rank 0 is Spark's master and the driver; every rank, rank 0 too, is a worker with the cores and memory of the rank. The
driver grades the executors by a short task, and trains with TorchDistributor on all of them. The data are the
1,797 images of the UCI digits, in digits.csv.
"""
import argparse
import hmac
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

START_LIMIT = 180  # seconds for the master to answer, and for all workers to register
GRADE_SECONDS = 0.5
SECRET_FILE = "/etc/spark/secret"  # `setup` in hvdctl.toml makes it, the same for all nodes


def spark_home():
    """Spark's directory. Ends the program if the image has no Spark or no Java."""
    java = os.environ.get("JAVA_HOME")
    if not (os.path.exists(os.path.join(java, "bin", "java")) if java else shutil.which("java")):
        sys.exit("there is no Java runtime in this image, which Spark needs: run without --no-setup, or install a JRE "
                 "in the image")
    try:
        import pyspark
    except ImportError:
        sys.exit("there is no pyspark in this image: run without --no-setup, or put the lines of `setup` in "
                 "hvdctl.toml into the image")
    return os.path.dirname(pyspark.__file__)


def own_address(master):
    """The address of this node from which the master is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))
        return probe.getsockname()[0]


def memory_mib():
    """The memory of this rank in MiB: its share of half of the node's, or of the container's."""
    with open("/proc/meminfo") as file:
        total = int(next(line for line in file if line.startswith("MemTotal:")).split()[1]) // 1024
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                total = min(total, int(file.read()) >> 20)
        except (OSError, ValueError):
            pass
    return max(512, total // 2 // int(os.environ["LOCAL_WORLD_SIZE"]))


def job_secret():
    """The secret of this job's cluster, from SPARK_SECRET or from the image. Ends the program if neither is there."""
    secret = os.environ.pop("SPARK_SECRET", "")  # no child process needs it
    if not secret:
        try:
            with open(SECRET_FILE) as file:
                secret = file.read().strip()
        except OSError:
            sys.exit("there is no secret for the Spark cluster, and without one everyone on the nodes' network could "
                     "run programs in it: run without --no-setup, or set SPARK_SECRET to a random value and add "
                     "-e SPARK_SECRET")
    if len(secret) < 16:
        sys.exit("the secret of the Spark cluster is shorter than 16 characters")
    return hmac.new(secret.encode(), os.environ["HVDCTL_JOB"].encode(), "sha256").hexdigest()


def configure(directory, secret):
    """Writes Spark's configuration into a directory that only root can enter."""
    lines = ["spark.ui.enabled false", "spark.ui.killEnabled false", "spark.ui.showConsoleProgress false",
             "spark.master.ui.decommission.allow.mode DENY",  # which any user of the node could ask for otherwise
             "spark.port.maxRetries 0",  # a master on another port is of no use
             "spark.barrier.sync.timeout %d" % START_LIMIT, "spark.authenticate true",
             "spark.authenticate.secret " + secret,
             "spark.network.crypto.enabled true", "spark.network.crypto.saslFallback false",
             "spark.network.crypto.authEngineVersion 2"]
    with open(os.open(os.path.join(directory, "spark-defaults.conf"), os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(os.path.join(directory, "log4j2.properties"), "w") as file:
        file.write("rootLogger.level = error\nrootLogger.appenderRef.stderr.ref = stderr\n"
                   "appender.stderr.type = Console\nappender.stderr.name = stderr\n"
                   "appender.stderr.target = SYSTEM_ERR\nappender.stderr.layout.type = PatternLayout\n"
                   "appender.stderr.layout.pattern = %p %c{1}: %m%n%ex\n")


def last_lines(directory):
    """The end of what the master and the workers have logged, for the message of a failure."""
    path = os.path.join(directory, "log")
    if not os.path.exists(path):
        return ""
    with open(path, errors="replace") as file:
        return "".join(file.readlines()[-15:])


def answers(address, port):
    try:
        socket.create_connection((address, port), timeout=5).close()
        return True
    except OSError:
        return False


def wait_for(what, condition, children=()):
    """Waits until a condition holds. Ends the program after START_LIMIT, or when a process that it needs has ended."""
    until = time.monotonic() + START_LIMIT
    while not condition():
        for child in children:
            if child.poll() is not None:
                sys.exit("%s: a process of Spark exited with code %d" % (what, child.returncode))
        if time.monotonic() > until:
            sys.exit("%s: not within %d s" % (what, START_LIMIT))
        time.sleep(0.5)


def wait_until_gone(address, port, worker):
    """Waits until the master has ended, which closes a connection to it. Ends the program if the worker ends first, or
    the network fails."""
    with socket.create_connection((address, port), timeout=5) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        is_open = True
        while is_open:
            try:
                # the master says nothing to who says nothing
                if select.select([connection], [], [], 1)[0]:
                    is_open = connection.recv(1024) != b""
            except ConnectionResetError:
                is_open = False
            except OSError as error:
                sys.exit("the connection to Spark's master is lost: %s" % error)
            if is_open and worker.poll() is not None:
                sys.exit("Spark's worker exited with code %d" % worker.returncode)


def end(children, limit):
    """Ends child processes, by force after this many seconds."""
    until = time.monotonic() + limit
    for child in reversed(children):
        child.terminate()
    for child in children:
        try:
            child.wait(max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()


def grade(_):
    """A task: the rounds of a small computation that an executor does in GRADE_SECONDS."""
    from pyspark import BarrierTaskContext
    context = BarrierTaskContext.get()
    context.barrier()  # all executors compute at the same time
    rounds, until = 0, time.perf_counter() + GRADE_SECONDS
    while time.perf_counter() < until:
        sum(number * number for number in range(1000))
        rounds += 1
    yield rounds / GRADE_SECONDS, socket.gethostname(), context.getTaskInfos()[context.partitionId()].address


def train(epochs, limit, data):
    """What TorchDistributor runs on every executor. Returns the accuracy on images that were not trained on."""
    from datetime import timedelta

    import numpy
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo", timeout=timedelta(seconds=limit))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rows = numpy.loadtxt(data, delimiter=",", dtype="float32")  # 64 pixels and the digit
    rows = torch.from_numpy(rows[numpy.random.RandomState(0).permutation(len(rows))])
    test, test_labels = rows[:360, :64] / 16, rows[:360, 64].long()
    own = rows[360 + dist.get_rank()::dist.get_world_size()]
    images, labels = own[:, :64] / 16, own[:, 64].long()
    model = DistributedDataParallel(torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(epochs):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model.module(test).argmax(1) == test_labels).float().mean().item()
    dist.destroy_process_group()
    return accuracy


def drive(master, address, size, children, options):
    """The driver, on rank 0. Returns the accuracy."""
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession
    session = (SparkSession.builder.master(master).appName("digits")
               .config("spark.driver.host", address).config("spark.driver.bindAddress", address)
               .config("spark.executor.memory", "%dm" % options.executor_memory)
               .config("spark.scheduler.minRegisteredResourcesRatio", "1.0").getOrCreate())
    context = session.sparkContext
    spark = context._jsc.sc()

    def are_registered():
        if spark.isStopped():
            sys.exit("Spark's master has not accepted the driver, or has ended")
        return spark.getExecutorMemoryStatus().size() == size + 1  # the driver is one of them

    wait_for("%d executors" % size, are_registered, children)
    graded = sorted(context.parallelize(range(size), size).barrier().mapPartitions(grade).collect(), reverse=True)
    if len({executor for _, _, executor in graded}) < size:
        sys.exit("Spark has graded one executor twice: %s" % graded)
    print("executors, the fastest first:", flush=True)
    for speed, host, executor in graded:
        print("  %-20s %s %6.0f rounds/s" % (host, executor, speed), flush=True)
    accuracy = TorchDistributor(num_processes=size, local_mode=False, use_gpu=False).run(
        train, options.epochs, START_LIMIT, os.path.abspath("digits.csv"))
    print("test accuracy %.4f with %d executors" % (accuracy, size), flush=True)
    session.stop()
    return accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--executor-memory", type=int, default=1024, metavar="MIB")
    parser.add_argument("--target-accuracy", type=float, default=0.0, help="exit 1 if the final accuracy is below")
    options = parser.parse_args()
    home, rank, size = spark_home(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    secret, memory = job_secret(), memory_mib()
    if memory < options.executor_memory:
        sys.exit("an executor needs %d MiB of memory and this rank has %d: choose another number with --executor-memory"
                 % (options.executor_memory, memory))
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    master, here = "spark://%s:%d" % (address, port), own_address(address)
    cores = os.environ.get("OMP_NUM_THREADS", "1")  # hvdctl's figure for each rank of the node
    children, directory = [], tempfile.mkdtemp()

    def clean_up(limit):
        end(children, limit)
        shutil.rmtree(directory, ignore_errors=True)  # executors may still write there

    def on_sigterm(number, _):
        clean_up(1)  # when a rank has failed, hvdctl gives the others 2 seconds
        os._exit(128 + number)  # an exception could be taken for one of Spark's

    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        configure(directory, secret)
        os.environ.update(SPARK_HOME=home, SPARK_CONF_DIR=directory, SPARK_LOCAL_IP=here, SPARK_NO_DAEMONIZE="1",
                          PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_DIRS=directory, TMPDIR=directory)

        def start(name, *arguments):
            program = [os.path.join(home, "bin", "spark-class"), "org.apache.spark.deploy." + name, "--webui-port", "0",
                       "--host", here]
            # --host is where Spark listens for Spark; its web page, which asks for no secret, listens at SPARK_LOCAL_IP
            env = dict(os.environ, SPARK_LOCAL_IP="127.0.0.1")
            with open(os.path.join(directory, "log"), "ab") as log:
                children.append(subprocess.Popen(program + list(arguments), env=env, stdout=log, stderr=log))

        if rank == 0:
            start("master.Master", "--port", str(port))
        wait_for("Spark's master at %s:%d" % (address, port), lambda: answers(address, port), children)
        start("worker.Worker", "--cores", cores, "--memory", "%dm" % memory, "--work-dir", directory, master)
        if rank > 0:
            # until the driver has ended, and the master with it
            wait_until_gone(address, port, children[-1])
        else:
            accuracy = drive(master, here, size, children, options)
    except BaseException:
        print(last_lines(directory), file=sys.stderr, flush=True)
        raise
    finally:
        clean_up(10)
    if rank == 0 and accuracy < options.target_accuracy:
        sys.exit("accuracy %.4f is below the target of %g" % (accuracy, options.target_accuracy))


if __name__ == "__main__":
    main()
