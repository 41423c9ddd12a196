"""Measures the network between this node and others from inside its worker, with sockets only. hvdctl runs it on every
node that takes part: `python3 -I -c PROGRAM`.

Standard input has one JSON object a line. The first is {"token", "address", "interface", "limit", "answer_limit"}: the
program listens at the address, on a port of the kernel's choice, and answers only connections that begin with the
token. It ends when standard input ends, or after `limit` seconds; it waits `answer_limit` seconds for another node.
Every further line is a request:

    {"do": "link"}       prints what the kernel knows of the interface, and its counters
    {"do": "compute"}    prints the speed of a processor, and the share of it that this program gets
    {"do": "measure", "from", "to", "address", "port", "warm", "seconds", "streams": [1, 4], "probes", "sizes"}
                         measures both directions of a pair with the program at that address, and prints one line for
                         each; over a long line for longer than these seconds

Standard output has one JSON object a line. The last one for a request is {"done": REQUEST}. null is what could not be
measured. A direction that could not be measured at all is {"from", "to", "error"}."""
import hmac
import json
import os
import queue
import socket
import statistics
import struct
import sys
import threading
import time

BLOCK = 256 * 1024  # stays in a processor's cache, where a larger one would not
MESSAGE = 64 * 1024  # the longest line between two of these programs
CONNECTIONS = 64  # at once, with those of strangers
TICK = 0.002  # between bursts of probes
BURST = 10
REPEATED = 5  # the probes of one size
PATIENCE = 10  # more seconds for probes that keep arriving
# round trips: until a connection is up to speed, and those that are then measured at least
SPEEDING_UP, COUNTED = 12, 8
LONGEST_TRIP = 0.3  # seconds; longer ones are measured as if they were as long
ECHO = b"x" * 63 + b"\n"
WRONG = (OSError, ValueError, KeyError, TypeError, RecursionError)  # what happens if the other node sends anything else

# Linux's numbers, which Python's socket module lacks
MTU_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
WITHOUT_FRAGMENTS = 3  # IP_PMTUDISC_PROBE: and whatever the kernel believes the path's MTU to be
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # of IP and UDP
OVERFLOWS = 40  # SO_RXQ_OVFL
TCP_FIELDS = {"snd_mss": ("I", 16), "pmtu": ("I", 60), "retransmits": ("I", 100), "min_rtt": ("I", 148),
              "segments": ("I", 156)}


def read(path):
    """The text of a file, or None where it cannot be read: an interface that is down has no speed, a virtual one no
    duplex."""
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, ValueError):
        return None


def number(text):
    """A number that the kernel knows: -1 stands for an unknown speed."""
    try:
        value = int(text)
    except (TypeError, ValueError):
        return None
    return value if value >= 0 else None


def has_hardware(interface, depth=4):
    """Returns whether an interface is a device, or is made of devices: a pair of virtual interfaces claims 10 Gb/s at
    any speed."""
    directory = "/sys/class/net/" + interface
    try:
        entries = os.listdir(directory)
    except OSError:
        return False
    lower = [entry[len("lower_"):] for entry in entries if entry.startswith("lower_")]
    return "device" in entries or depth > 0 and any(has_hardware(name, depth - 1) for name in lower)


def link(interface):
    """Returns what the kernel knows of an interface. The speed is in Mb/s."""
    directory = "/sys/class/net/%s/" % interface
    counters = {}
    for name in ("rx_errors", "tx_errors", "rx_crc_errors", "rx_missed_errors", "collisions", "rx_dropped",
                 "tx_dropped", "rx_packets", "tx_packets"):
        counters[name] = number(read(directory + "statistics/" + name))
    speed, duplex = None, None
    if has_hardware(interface):
        speed, duplex = number(read(directory + "speed")), read(directory + "duplex")
    faster = {}
    for name in os.listdir("/sys/class/net") if speed else ():
        other = number(read("/sys/class/net/%s/speed" % name)) or 0
        if other > speed and read("/sys/class/net/%s/operstate" % name) == "up" and has_hardware(name):
            faster[name] = other
    return {"interface": interface, "speed": speed or None, "mtu": number(read(directory + "mtu")),
            "duplex": duplex if duplex in ("full", "half") else None, "counters": counters, "faster": faster}


class Processors:
    """How busy the machine's processors are from now on."""

    def __init__(self):
        self.before = self.times()

    @staticmethod
    def times():
        """For all processors and for each: user, nice, system, idle, iowait, irq, softirq and steal, in ticks."""
        lines = (read("/proc/stat") or "").splitlines()
        rows = [line.split() for line in lines if line.startswith("cpu")]
        return {row[0]: [int(field) for field in row[1:9]] for row in rows if len(row) > 8}

    def usage(self):
        """The idle and the stolen share of all processors, and the idle share of the busiest one; None where no tick
        has passed."""
        spent = {}
        for name, after in self.times().items():
            ticks = [new - old for new, old in zip(after, self.before.get(name, after))]
            if sum(ticks) > 0:
                spent[name] = ((ticks[3] + ticks[4]) / sum(ticks), ticks[7] / sum(ticks))
        idle, steal = spent.pop("cpu", (None, None))
        return {"idle": idle, "steal": steal, "busiest_idle": min((share[0] for share in spent.values()), default=None)}


def throttled():
    """For how many seconds a limit on processors has stopped this container; None where that is not counted."""
    for path, field, unit in (("/sys/fs/cgroup/cpu.stat", "throttled_usec", 1e6),
                              ("/sys/fs/cgroup/cpu/cpu.stat", "throttled_time", 1e9)):
        for line in (read(path) or "").splitlines():
            name, _, value = line.partition(" ")
            if name == field and number(value) is not None:
                return number(value) / unit
    return None


def compute():
    """Returns the speed of one processor in loops a second of its time, the share of the time that this program got,
    and the speed of a copy in memory in bytes a second. Medians: a short disturbance does not count."""
    def once():
        start, spent, value = time.monotonic(), time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID), 1
        for _ in range(100000):
            value = (value * 5 + 1) & 0xFFFFFFFF
        spent = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) - spent
        return 100000 / spent, spent, time.monotonic() - start

    def copy(source, target):
        spent = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
        target[:] = source
        return len(source) / (time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) - spent)

    processors, stopped, start, rounds = Processors(), throttled(), time.monotonic(), []
    # longer than the 100 ms in which a limit of processors lets a program run and wait
    until = time.monotonic() + 0.4
    while time.monotonic() < until or len(rounds) < 5:
        rounds.append(once())
    source, target = bytes(16 << 20), memoryview(bytearray(16 << 20))
    copied = statistics.median(copy(source, target) for _ in range(5))
    spent, wall = sum(spent for _, spent, _ in rounds), sum(wall for _, _, wall in rounds)
    after, lasted = throttled(), time.monotonic() - start
    # each processor on which the container is stopped is counted
    stopped = None if None in (stopped, after) else min(1.0, (after - stopped) / lasted)
    return dict(processors.usage(), loops_per_s=statistics.median(speed for speed, _, _ in rounds), share=spent / wall,
                copy_bytes_per_s=copied, throttled=stopped)


def tcp_info(connection):
    """What the kernel counted for a connection; None for what an older one does not count."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        info = b""
    fields = {}
    for name, (form, offset) in TCP_FIELDS.items():
        known = len(info) >= offset + struct.calcsize(form)
        fields[name] = struct.unpack_from(form, info, offset)[0] if known else None
    return fields


class Token:
    """What a connection must begin with."""

    def __init__(self, text):
        self.bytes = text.encode()

    def connect(self, address, port, limit, header):
        """Connects to another of these programs. The header says what the connection is for."""
        connection = socket.create_connection((address, port), timeout=limit)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(self.bytes + json.dumps(header).encode() + b"\n")
        return connection

    def is_sent(self, connection):
        received = b""
        while len(received) < len(self.bytes):
            more = connection.recv(len(self.bytes) - len(received))
            if not more:
                return False
            received += more
        return hmac.compare_digest(received, self.bytes)


class Lines:
    """A connection over which two of these programs agree on what they measure."""

    def __init__(self, connection):
        self.connection, self.file = connection, connection.makefile("rb")

    def write(self, message):
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def line(self):
        line = self.file.readline(MESSAGE)
        if not line.endswith(b"\n"):
            raise OSError("the other node ended the measurement")
        return line

    def read(self):
        return json.loads(self.line().decode())

    def echo(self):
        """Returns what the other side sends, until it sends something else."""
        line = self.line()
        while line == ECHO:
            self.connection.sendall(line)
            line = self.line()

    def round_trips(self, seconds, most):
        """Measures round trips of a small message, in µs. The first ones are for the processors' caches."""
        times, until = [], time.monotonic() + seconds
        while len(times) < most and (time.monotonic() < until or len(times) < 5):
            start = time.perf_counter()
            self.connection.sendall(ECHO)
            self.line()
            times.append((time.perf_counter() - start) * 1e6)
        self.connection.sendall(b"\n")
        times = sorted(times[len(times) // 10:])
        return {"median": statistics.median(times), "min": times[0], "p99": times[(len(times) - 1) * 99 // 100],
                "count": len(times)}


def send(connection, until):
    """Sends until the receiver has enough and closes the connection."""
    block = memoryview(bytes(BLOCK))
    info = tcp_info(connection)
    # what has not arrived by then is of no use
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        while time.monotonic() < until:
            connection.settimeout(max(0.001, until - time.monotonic()))
            connection.send(block)
            # a connection that is reset may have lost its counters
            info = tcp_info(connection)
    except OSError:
        pass
    finally:
        connection.close()
    return info


def receive(connection, begin, end):
    """Returns the number of bytes that arrive between two times. Closes the connection, also with bytes on their
    way."""
    block, received = bytearray(BLOCK), 0
    try:
        while True:
            now = time.monotonic()
            if now >= end:
                break
            connection.settimeout(end - now)
            count = connection.recv_into(block)
            if not count:
                break
            received += count if time.monotonic() >= begin else 0
    except OSError:
        pass
    finally:
        connection.close()
    return received


def in_threads(work, items):
    """Does the work on all items at once. Sockets wait and copy without the interpreter's lock."""
    results = [None] * len(items)

    def one(index):
        results[index] = work(items[index])

    threads = [threading.Thread(target=one, args=(index,), daemon=True) for index in range(len(items))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def pace(request, trips):
    """The times of a transfer: over a long line, connections need longer until they are up to speed."""
    trip = min(LONGEST_TRIP, trips["median"] / 1e6)
    return {"warm": max(request["warm"], SPEEDING_UP * trip), "seconds": max(request["seconds"], COUNTED * trip)}


def transfer(connections, request, sends):
    """One side of a transfer over some connections at once. The receiver counts, after the time in which connections
    get up to speed."""
    processors, now = Processors(), time.monotonic()
    begin, end = now + request["warm"], now + request["warm"] + request["seconds"]
    if not sends:
        received = in_threads(lambda connection: receive(connection, begin, end), connections)
        return {"bytes_per_s": sum(received) / request["seconds"], "receiver": processors.usage()}
    infos = in_threads(lambda connection: send(connection, end + 1), connections)
    result = {"sender": processors.usage()}
    for name in ("retransmits", "segments"):
        counts = [info[name] for info in infos]
        result[name] = None if None in counts else sum(counts)
    for name in ("snd_mss", "pmtu", "min_rtt"):
        known = [info[name] for info in infos if info[name]]
        result[name] = min(known, default=None)
    return result


class Probes:
    """Numbered datagrams in one direction. They show what TCP hides by sending again, and sizes that do not pass."""

    def __init__(self, address, nonce):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket, self.nonce, self.family = socket.socket(family, socket.SOCK_DGRAM), nonce.encode(), family
        self.socket.bind((address, 0))
        self.port = self.socket.getsockname()[1]
        for option, value in ((OVERFLOWS, 1), (socket.SO_RCVBUF, 4 << 20)):
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, option, value)
            except OSError:
                pass

    def send(self, target, count, sizes):
        """Sends probes of each size and then many small ones. Returns the largest size that this machine can send."""
        level, option = MTU_DISCOVER[self.family]
        self.socket.setsockopt(level, option, WITHOUT_FRAGMENTS)
        sendable, unsent = None, 0
        for size in sorted(sizes):
            padding = b"\0" * (size - HEADERS[self.family] - len(self.nonce) - 8)
            for _ in range(REPEATED):
                try:
                    self.socket.sendto(self.nonce + struct.pack("!II", 0, size) + padding, target)
                    sendable = size
                except OSError:
                    break
            time.sleep(TICK)
        for index in range(count):
            try:
                self.socket.sendto(self.nonce + struct.pack("!II", 1, index), target)
            except OSError:
                # its own queue or firewall lost it
                unsent += 1
            if index % BURST == BURST - 1:
                time.sleep(TICK)
        # the last ones carry the number of those that the receiver was too slow for
        time.sleep(0.02)
        for index in range(REPEATED):
            try:
                self.socket.sendto(self.nonce + struct.pack("!II", 2, index), target)
            except OSError:
                pass
            time.sleep(TICK)
        return {"sent": count, "unsent": unsent, "sendable": sendable}

    def receive(self, until):
        """Counts probes until all kinds have ended, or none arrives any more: a sender without a processor is slow, and
        loses nothing."""
        small, sizes, overflowed, last = set(), set(), 0, until + PATIENCE
        ended = 0
        while ended < REPEATED and time.monotonic() < until:
            self.socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                data, ancillary, _, _ = self.socket.recvmsg(65535, 64)
            except OSError:
                break
            if not data.startswith(self.nonce) or len(data) < len(self.nonce) + 8:
                continue
            for _, kind, value in ancillary:
                if kind == OVERFLOWS and len(value) >= 4:
                    overflowed = struct.unpack_from("I", value)[0]
            kind, index = struct.unpack_from("!II", data, len(self.nonce))
            if kind == 2 and not ended:
                # the others may still be on their way, or lost
                until = min(until, time.monotonic() + 0.1)
            elif not ended:
                until = max(until, min(last, time.monotonic() + 1))
            ended += kind == 2
            {0: sizes, 1: small}.get(kind, set()).add(index)
        return {"received": len(small), "overflowed": overflowed, "largest": max(sizes, default=None),
                "ended": ended > 0}

    def take_part(self, request, sends, target):
        """One side of the probes. The receiver waits four times as long as they should take."""
        with self.socket:
            if sends:
                return self.send(target, request["probes"], request["sizes"])
            return self.receive(time.monotonic() + request["probes"] / BURST * TICK * 4 + 1)


class Server:
    """The side of a pair that is asked."""

    def __init__(self, address, token, limit):
        self.address, self.token, self.limit = address, token, limit
        self.streams, self.free = {}, threading.Semaphore(CONNECTIONS)
        self.listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self.listener.bind((address, 0))
        self.listener.listen(CONNECTIONS)
        self.port = self.listener.getsockname()[1]

    def serve(self):
        while True:
            self.free.acquire()
            try:
                connection, peer = self.listener.accept()
            except OSError:  # the node has no file or memory for it
                self.free.release()
                time.sleep(0.1)
                continue
            threading.Thread(target=self.answer, args=(connection, peer), daemon=True).start()

    def answer(self, connection, peer):
        try:
            # a stranger's must not take the place of another for long
            connection.settimeout(min(2, self.limit))
            if not self.token.is_sent(connection):
                connection.close()
                return
            connection.settimeout(self.limit)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # byte by byte: what follows is not this line's
            header = b""
            while not header.endswith(b"\n") and len(header) < 256:
                header += connection.recv(1) or b"\n"
            header = json.loads(header.decode())
            if "stream" in header:
                self.streams.setdefault(header["stream"], queue.Queue()).put(connection)
                return
            with connection:
                self.control(Lines(connection), peer[0])
        except (*WRONG, queue.Empty):
            connection.close()
        finally:
            self.free.release()

    def control(self, lines, peer):
        """Takes part in measurements until the connection ends."""
        while True:
            request = lines.read()
            if request["do"] == "echo":
                lines.write({})
                lines.echo()
            elif request["do"] == "transfer":
                waiting = self.streams.setdefault(request["id"], queue.Queue())
                connections = [waiting.get(timeout=self.limit) for _ in range(request["streams"])]
                del self.streams[request["id"]]
                lines.write({})
                lines.write(transfer(connections, request, request["server_sends"]))
            elif request["do"] == "probe":
                probes = Probes(self.address, request["nonce"])
                lines.write({"port": probes.port})
                lines.write(probes.take_part(request, request["server_sends"], (peer, request["port"])))


class Pair:
    """Measures both directions between this node and another."""

    def __init__(self, server, request):
        self.server, self.request = server, request
        self.lines = Lines(self.connect({}))

    def connect(self, header):
        return self.server.token.connect(self.request["address"], self.request["port"], self.server.limit, header)

    def transfer(self, plan, streams, server_sends):
        name = os.urandom(8).hex()
        self.lines.write(dict(plan, do="transfer", id=name, streams=streams, server_sends=server_sends))
        connections = [self.connect({"stream": name}) for _ in range(streams)]
        self.lines.read()
        own = transfer(connections, plan, not server_sends)
        return dict(own, streams=streams, **self.lines.read())

    def probe(self, server_sends):
        plan = {"probes": self.request["probes"], "sizes": self.request["sizes"]}
        probes = Probes(self.server.address, os.urandom(8).hex())
        self.lines.write(dict(plan, do="probe", nonce=probes.nonce.decode(), port=probes.port,
                              server_sends=server_sends))
        target = (self.request["address"], self.lines.read()["port"])
        result = probes.take_part(plan, not server_sends, target)
        result.update(self.lines.read())
        # where no datagram arrives, none is lost: a firewall has an opinion
        known = result["ended"] or result["received"] > 0
        return result if known else None

    def measure(self):
        self.lines.write({"do": "echo"})
        self.lines.read()
        trips = self.lines.round_trips(0.2, 1000)
        plan = pace(self.request, trips)
        for server_sends in (False, True):
            ends = ("to", "from") if server_sends else ("from", "to")
            transfers = [self.transfer(plan, streams, server_sends) for streams in self.request["streams"]]
            yield {"from": self.request[ends[0]], "to": self.request[ends[1]], "round_trip_us": trips,
                   "transfers": transfers, "probes": self.probe(server_sends)}


def reason(error, limit):
    """Why a measurement failed, in a few words."""
    if isinstance(error, socket.timeout):
        return "no answer within %g s" % limit
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def measure(server, request):
    """Yields one result for each direction, also where one fails."""
    missing = [(request["from"], request["to"]), (request["to"], request["from"])]
    try:
        for result in Pair(server, request).measure():
            # fails for what the other node has made infinite
            json.dumps(result, allow_nan=False)
            missing.pop(0)
            yield result
    except WRONG as error:
        for start, end in missing:
            yield {"from": start, "to": end, "error": reason(error, server.limit)}


def requests(lines):
    """Reads requests until standard input ends, and then ends the program, whatever it does at the moment."""
    for line in iter(sys.stdin.readline, ""):
        lines.put(line)
    os._exit(0)


def show(message):
    print(json.dumps(message), flush=True)


def main():
    first = json.loads(sys.stdin.readline())
    watchdog = threading.Timer(first["limit"], os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    try:
        server = Server(first["address"], Token(first["token"]), first["answer_limit"])
    except OSError as error:
        show({"error": "cannot listen at %s: %s" % (first["address"], error.strerror or error)})
        return
    lines = queue.Queue()
    for work, arguments in ((server.serve, ()), (requests, (lines,))):
        threading.Thread(target=work, args=arguments, daemon=True).start()
    show({"listening": server.port})
    while True:
        request = json.loads(lines.get())
        if request["do"] == "link":
            show(link(first["interface"]))
        elif request["do"] == "compute":
            show(compute())
        elif request["do"] == "measure":
            for result in measure(server, request):
                show(result)
        show({"done": request["do"]})


if __name__ == "__main__":
    main()
