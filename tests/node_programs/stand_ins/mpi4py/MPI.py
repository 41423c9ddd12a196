"""The part of MPI that collectives.py uses. `MPI_FAULT` makes operations wrong on one rank: `OPERATION KIND`, with
commas between several, where KIND is `result` (the rank changes what it received), `missing` (it contributes zeros),
`swapped` (its parts are in another order), or `refused` (it fails)."""
import os
import pickle
import socket
import struct
import time


def receive(connection):
    def exactly(count):
        data = b""
        while len(data) < count:
            more = connection.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data
    return pickle.loads(exactly(struct.unpack("!Q", exactly(8))[0]))


def send(connection, value):
    data = pickle.dumps(value)
    connection.sendall(struct.pack("!Q", len(data)) + data)


class World:
    def __init__(self):
        self.rank, self.size, path = int(os.environ["MPI_RANK"]), int(os.environ["MPI_SIZE"]), os.environ["MPI_SOCKET"]
        self.faults = os.environ.get("MPI_FAULT", "").split(",")
        if self.rank == 0:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path)
                server.listen(self.size)
                others = [server.accept()[0] for _ in range(1, self.size)]
            self.others = {receive(other): other for other in others}
            return
        self.first = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + 20
        while True:
            try:
                self.first.connect(path)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
        send(self.first, self.rank)

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def everything(self, value):
        """Returns the values of all ranks."""
        if self.rank:
            send(self.first, value)
            return receive(self.first)
        values = [value] + [receive(self.others[rank]) for rank in range(1, self.size)]
        for other in self.others.values():
            send(other, values)
        return values

    def exchange(self, operation, values, out, of):
        """Puts into `out` what is made of the values of all ranks."""
        if operation + " refused" in self.faults:
            self.everything(None)
            raise RuntimeError("no such operation")
        if operation + " missing" in self.faults:
            values = values[:0] + type(values)("f", [0] * len(values))
        if operation + " swapped" in self.faults:
            values = values[len(values) // 2:] + values[:len(values) // 2]
        all_values = self.everything(values)
        if any(each is None for each in all_values):
            raise RuntimeError("another rank has no such operation")
        result = of(all_values)
        if operation + " result" in self.faults:
            result[3] += 1
        memoryview(out)[:] = memoryview(type(out)("f", result))

    def part(self, values):
        count = len(values) // self.size
        return values[self.rank * count:(self.rank + 1) * count]

    def Allreduce(self, values, out):
        self.exchange("allreduce", values, out, lambda every: [sum(each) for each in zip(*every)])

    def Allgather(self, values, out):
        self.exchange("allgather", values, out, lambda every: [each for values in every for each in values])

    def Reduce_scatter_block(self, values, out):
        self.exchange("reducescatter", values, out, lambda every: [sum(each) for each in zip(*map(self.part, every))])

    def Bcast(self, values, root):
        self.exchange("broadcast", values, values, lambda every: list(every[root]))

    def Alltoall(self, values, out):
        self.exchange("alltoall", values, out, lambda every: [each for values in every for each in self.part(values)])

    def allreduce(self, number):
        return sum(self.everything(number))

    def bcast(self, number, root):
        return self.everything(number)[root]

    def Barrier(self):
        self.everything(0)


COMM_WORLD = World()


def Get_library_version():
    return "stand-in v0, of these tests"
