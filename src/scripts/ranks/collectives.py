"""The program of `hvdctl bench` on every rank: the speed of its device, and collective operations whose results are
known. `hvdctl verify --full` runs the operations alone. JSON lines on standard output (`RankLine` in
src/bench/verdict/answers.rs). The first argument says as JSON what is measured: `sizes` in bytes; whether `all` of them
are measured, or those that the time allows; `budget` in seconds; whether it is `quick`, and measures other operations
than allreduce in one type. The other arguments are the modules over which the ranks may communicate (backends.py)."""
import json
import os
import socket
import sys
import time
import zlib

import backends

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall")
SUMS = ("allreduce", "reducescatter")
TYPES = ("float32", "float16", "bfloat16")

# Up to these, every whole number is exact in the type.
EXACT = {"float32": 1 << 20, "float16": 1 << 11, "bfloat16": 1 << 8}
# The numbers repeat after a prime, so that parts of an array differ, whose sizes are not multiples of it.
PERIOD = 1021
# What an array has before it is received; no result is negative.
POISON = -1

# Sizes that show the bandwidth of allreduce in `verify`, and the seconds for them.
LARGE, LARGE_BUDGET = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20), 4.0
# What every library has if it works at all.
NEEDED = ("allreduce", "float32")
# Names for people.
SHOWN = {"reducescatter": "reduce-scatter", "alltoall": "all-to-all"}
SMALL = (1 << 10, 64 << 10)
LATENCY_BOUND = 256 << 10
MOST_REPETITIONS = 20
MOST_WRONG = 20
# A rank whose device has less than this share of the speed of the fastest of its kind is measured again, with the
# others of its node and while all other nodes wait: up to so many times, and so many nodes each time.
SUSPECT, AGAIN, MOST_NODES = 0.8, 3, 8
# A rank that had its processors for less than this share of the time says little of their speed.
SHORT = 0.8
# The largest number of 31 bits.
MOST = (1 << 31) - 1
# Arrays of a size that are there at once: the rank's own, the one that is exchanged, the result, what is expected, a
# library's copy, and two while they are compared.
COPIES = 7


def numbers(rank, size, dtype, is_sum):
    """Returns what a rank contributes: whole numbers that differ by rank and position, and whose sum over all ranks is
    exact."""
    limit = EXACT[dtype]
    every = -(-size // limit) if is_sum else 1
    most = limit // (-(-size // every)) if is_sum else limit
    return [(rank + 1) * (i + 1) % PERIOD % (most + 1) if (rank + i) % every == 0 else 0 for i in range(PERIOD)]


def rotated(values, start):
    start %= len(values)
    return values[start:] + values[:start]


def suspect(differences, contributions):
    """Returns the one rank whose contribution is missing in a sum, or is there twice. `differences`: position in the
    period, and by how much the result is too large."""
    def explains(values):
        return any(all(extra == sign * values[place] for place, extra in differences) for sign in (-1, 1))
    found = [rank for rank, values in enumerate(contributions) if explains(values)]
    return found[0] if len(found) == 1 else None


class Exchange:
    """A collective operation with arrays of one type and size."""

    def __init__(self, backend, collective, dtype, size_bytes):
        self.backend, self.collective, self.dtype = backend, collective, dtype
        rank, ranks = backend.rank, backend.size
        self.is_sum = collective in SUMS
        self.part = max(1, size_bytes // backends.ITEMSIZE[dtype] // ranks)
        count = self.part * ranks
        self.bytes = count * backends.ITEMSIZE[dtype]
        self.name = "%s.%s.%d" % (collective, dtype, self.bytes)
        self.contributions = [numbers(each, ranks, dtype, self.is_sum) for each in range(ranks)]
        self.received = self.part if collective == "reducescatter" else count
        sent = self.part if collective == "allgather" else count
        self.own = backend.arrays.tile(self.contributions[rank], dtype, sent)
        self.work, self.out = backend.arrays.tile([0], dtype, sent), None
        self.blocks = self.expected()

    def expected(self):
        """Returns the parts of the result: where each begins and ends, the rank that it is from if it is of one, and
        its numbers."""
        rank, ranks, part = self.backend.rank, self.backend.size, self.part
        if self.is_sum:
            total = [sum(values) for values in zip(*self.contributions)]
            return [(0, self.received, None, rotated(total, rank * part if self.collective == "reducescatter" else 0))]
        if self.collective == "broadcast":
            return [(0, self.received, 0, self.contributions[0])]
        start = rank * part if self.collective == "alltoall" else 0
        return [(each * part, (each + 1) * part, each, rotated(self.contributions[each], start))
                for each in range(ranks)]

    def once(self, is_fresh):
        """Runs the operation, and returns its result and the seconds that it took. `is_fresh`: nothing of an earlier
        result may pass."""
        arrays = self.backend.arrays
        self.work = arrays.copy(self.work, self.own)
        if is_fresh:
            self.out = arrays.tile([POISON], self.dtype, self.received)
        arrays.wait()
        self.backend.barrier()
        began = time.monotonic()
        result = getattr(self.backend, self.collective)(self.name, self.work, self.out)
        arrays.wait()
        return result, time.monotonic() - began

    def wrong(self, result):
        """Returns what is wrong in a result, or None."""
        arrays, count, first, sources, differences = self.backend.arrays, 0, None, set(), []
        if len(result) != self.received:
            return self.report(0, "%d elements" % self.received, "%d" % len(result), None)
        for start, stop, source, values in self.blocks:
            expected = arrays.tile(values, self.dtype, stop - start)
            found, places = arrays.differences(result[start:stop], expected, 1000)
            if not found:
                continue
            count += found
            sources.add(source)
            index, value = places[0]
            first = first or (start + index, values[index % PERIOD], value)
            shift = self.backend.rank * self.part if self.collective == "reducescatter" else 0
            differences += [((shift + place) % PERIOD, got - values[place % PERIOD]) for place, got in places]
        if not count:
            return None
        if self.is_sum:
            blamed = suspect(differences, self.contributions)
        else:
            blamed = sources.pop() if len(sources) == 1 else None
        index, expected, got = first
        return self.report(count, "%d at %d" % (expected, index), "%g" % got, blamed)

    def report(self, count, expected, got, blamed):
        return {"collective": self.collective, "dtype": self.dtype, "bytes": self.bytes, "count": count,
                "expected": expected, "got": got, "suspect": blamed}


def say(kind, value):
    print(json.dumps({kind: value}), flush=True)


class Session:
    """The operations of the ranks together. They do the same in the same order: whatever a clock or one rank decides,
    rank 0 decides for all."""

    def __init__(self, backend):
        self.backend, self.reported, self.failures = backend, 0, {}

    def note(self, text):
        if self.backend.rank == 0:
            say("note", text)

    def check(self, exchange, result):
        wrong = exchange.wrong(result)
        if wrong and self.reported < MOST_WRONG:
            self.reported += 1
            say("wrong", wrong)

    def gather(self, first, second):
        """Returns two whole numbers of each rank, which have 31 bits each: every library can exchange sums."""
        own = min(first, MOST) << 31 | min(second, MOST)
        every = [self.backend.total(own if rank == self.backend.rank else 0) for rank in range(self.backend.size)]
        return [number >> 31 for number in every], [number & MOST for number in every]

    def measure_devices(self, seconds):
        """Measures the device of each rank: all at once, and then what looks slow without the other nodes, which may
        share its processors."""
        own = None
        try:
            first = speed(self.backend.arrays, seconds)
            say("speed", first)
            own = comparable(first)
        except TypeError as error:
            self.note(str(error))
        self.backend.barrier()
        here = zlib.crc32(socket.gethostname().encode()) >> 1
        nodes, kinds = self.gather(here, zlib.crc32(first["device"].encode()) >> 1 or 1 if own else 0)
        are_shared = 2 * self.backend.total(int(own is not None and is_short(first))) > self.backend.size
        has_helped = True
        for _ in range(AGAIN):
            slow = suspects(nodes, kinds, self.gather(*(own or (0, 0))))
            # where nodes share processors, and those that wait keep them busy, no further measurement says more
            if not slow or are_shared and not has_helped:
                break
            had_processors = False
            for node in slow:
                self.backend.barrier()
                if node != here or own is None:
                    # some libraries keep a processor busy while they wait
                    time.sleep(seconds)
                    continue
                again = dict(speed(self.backend.arrays, seconds / 2), alone=True)
                say("speed", again)
                own = list(map(max, own, comparable(again)))
                had_processors |= not is_short(again)
            has_helped = self.backend.total(int(had_processors)) > 0

    def check_all(self):
        """Checks every operation and type with small arrays. Returns those that there are."""
        there, lacking = [], {}
        for dtype in TYPES:
            for collective in COLLECTIVES:
                failure = self.check_one(collective, dtype)
                if failure is None:
                    there.append((collective, dtype))
                else:
                    self.failures[(collective, dtype)] = failure
                    lacking.setdefault((dtype, failure), []).append(collective)
        # without it nothing works: the sums of whole numbers that the ranks agree by may go another way
        if NEEDED not in there:
            sys.exit("no allreduce of float32 with %s: %s" % (self.backend.library, self.failures.get(NEEDED)))
        for (dtype, failure), which in lacking.items():
            names = ", ".join(SHOWN.get(name, name) for name in which)
            what = "collectives" if len(which) == len(COLLECTIVES) else names
            self.note("%s has no %s of %s: %s" % (self.backend.library, what, dtype, failure))
        return there

    def check_one(self, collective, dtype):
        """Returns why the operation is not there with this type, on all ranks if on one."""
        failure = None
        for size_bytes in SMALL:
            try:
                exchange = Exchange(self.backend, collective, dtype, size_bytes)
                result, _ = exchange.once(True)
                self.check(exchange, result)
            except Exception as error:  # each library has its own
                failure = (str(error) or repr(error)).splitlines()[0][:200]
            if self.backend.total(int(failure is not None)):
                return failure or "another rank failed"
        return None

    def measure(self, there, sizes, is_all, budget):
        """Measures the operations one after the other. Each has a part of the time; what it leaves, the next ones
        have."""
        end = time.monotonic() + budget
        series = sorted(there, key=lambda which: (which[0] != "allreduce", which[1] != "float32"))
        left, is_complete = sum(map(weight, series)), True
        for which in series:
            now = time.monotonic()
            limit = now + max(0.0, end - now) * weight(which) / left
            left -= weight(which)
            is_complete &= self.measure_sizes(which, sizes, is_all, limit)
        if not is_complete:
            self.note("not every size was measured in time")

    def measure_sizes(self, which, sizes, is_all, limit):
        """Measures an operation with arrays of each size, until rank 0 decides to stop. Returns whether none is left
        out."""
        cost, before = 0.0, sizes[0]
        for index, size_bytes in enumerate(sizes):
            # a small array takes as long as a smaller one
            expected = 2 * cost * (size_bytes / before if size_bytes > LATENCY_BOUND else 1.0)
            goes_on = is_all or index == 0 or time.monotonic() + expected < limit
            if not self.backend.from_first(int(goes_on)):
                return False
            if self.backend.total(int(self.fits(size_bytes))) < self.backend.size:
                self.note("there is not enough memory for arrays of %d bytes" % size_bytes)
                return True
            began = time.monotonic()
            exchange = Exchange(self.backend, which[0], which[1], size_bytes)
            result, _ = exchange.once(True)
            self.check(exchange, result)
            cost, before = time.monotonic() - began, size_bytes
            share = (limit - time.monotonic()) / (len(sizes) - index)
            repetitions = self.backend.from_first(int(min(MOST_REPETITIONS, max(1.0, share / max(cost, 1e-6)))))
            times = []
            for number in range(repetitions):
                result, seconds = exchange.once(number == repetitions - 1)
                times.append(seconds)
            self.check(exchange, result)
            say("exchange", {"collective": which[0], "dtype": which[1], "bytes": exchange.bytes,
                             "times_us": [round(seconds * 1e6, 1) for seconds in times]})
        return True

    def fits(self, size_bytes):
        return COPIES * size_bytes < self.backend.arrays.free()


def weight(which):
    return (8.0 if which[1] == "float32" else 2.0) if which[0] == "allreduce" else 1.0 if which[1] == "float32" else 0.5


def is_short(measured):
    """Whether processors are what may have made a measurement slow."""
    return measured["share"] is not None and measured["share"] < SHORT


def comparable(measured):
    """Returns what is compared of a speed, as whole numbers."""
    return [int(measured[of] / 1e6) for of in ("flops", "copy_bytes_per_s")]


def suspects(nodes, kinds, speeds):
    """Returns the nodes with ranks that are much slower than the fastest one of their kind, the slowest first.
    `speeds`: for each work, the speed of each rank."""
    slowest = {}
    for of_ranks in speeds:
        fastest = {}
        for kind, own in zip(kinds, of_ranks):
            fastest[kind] = max(own, fastest.get(kind, 0))
        for node, kind, own in zip(nodes, kinds, of_ranks):
            if kind and own < SUSPECT * fastest[kind]:
                slowest[node] = min(own / fastest[kind], slowest.get(node, 1.0))
    return sorted(slowest, key=lambda node: (slowest[node], node))[:MOST_NODES]


def processor_times():
    """Returns for how many seconds the threads of this process have run so far, and have waited for a processor; None
    if it is not known."""
    run, waited = 0, 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/schedstat" % thread) as file:
                fields = file.read().split()
            run, waited = run + int(fields[0]), waited + int(fields[1])
    except (OSError, ValueError, IndexError):  # the kernel does not count it, or a thread has ended
        return None
    return run / 1e9, waited / 1e9


def share_since(before):
    """Returns the share of the time since then in which this process had the processors that it wanted; None if it is
    not known."""
    after = processor_times()
    if None in (before, after):
        return None
    run, waited = after[0] - before[0], after[1] - before[1]
    return run / (run + waited) if run > 0 and waited >= 0 else None


def best(work, wait, seconds):
    """Returns the shortest time of some work that is repeated for so long."""
    work()
    wait()
    end, shortest = time.monotonic() + seconds, float("inf")
    while shortest == float("inf") or time.monotonic() < end:
        began = time.monotonic()
        work()
        wait()
        shortest = min(shortest, time.monotonic() - began)
    return shortest


def speed(arrays, seconds):
    """Returns how fast the device of this rank is: a product of matrices, and a copy in its memory."""
    is_gpu = arrays.name() != "cpu"
    side, count = (4096, 64 << 20) if is_gpu else (512, 8 << 20)
    before = processor_times()
    product = best(arrays.product(side), arrays.wait, seconds)
    copy = best(arrays.copying(count), arrays.wait, seconds)
    share = None if is_gpu else share_since(before)
    return {"device": arrays.name(), "flops": 2 * side ** 3 / product, "copy_bytes_per_s": 4 * count / copy,
            "share": share}


def begin(backend):
    """Says with what the ranks communicate. Returns what they do together."""
    say("start", {"rank": backend.rank, "size": backend.size, "library": backend.library,
                  "framework": backends.framework(backend)})
    if getattr(backend, "note", None):
        say("note", backend.note)
    if backend.arrays is None:
        sys.exit("there are no collectives with %s" % backends.framework(backend))
    return Session(backend)


def check(backend, is_full, measures):
    """Runs every operation with small arrays, and measures allreduce with larger ones."""
    session = begin(backend)
    if is_full:
        session.check_all()
    if measures:
        # the first one takes the time in which devices and connections get ready
        session.check_one(*NEEDED)
        session.measure([NEEDED], LARGE, False, LARGE_BUDGET)
    say("end", backend.rank)


def main(request, modules):
    backend = backends.choose(modules)
    session = begin(backend)
    # a rank that still starts would disturb those that measure
    backend.barrier()
    session.measure_devices(min(0.2, request["budget"] / 10))
    there = session.check_all()
    if request.get("quick"):
        there = [which for which in there if which[0] == "allreduce" or which[1] == "float32"]
    # what devices and connections took to get ready does not count
    session.measure(there, request["sizes"], request["all"], request["budget"])
    say("end", backend.rank)
    backend.end()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
