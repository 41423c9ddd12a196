"""Relays packets between peers that have no direct way to each other: relay.py INTERFACE ADDRESS PORT

There is one socket for each peer. What arrives at the socket of X from Y leaves the socket of Y for X, so that each of
the two sees the other at one endpoint. The packets are WireGuard's: encrypted from end to end. Standard input has the
peers' addresses as a line of JSON whenever they change; standard output then has the port of each. Ends when standard
input does."""
import json
import selectors
import socket
import sys

# the port of a peer is this one and its host number, unless another program has it
FIRST = 20000
BUFFER = 4 * 1024 * 1024
AT_ONCE = 64


def open_socket(interface, own, port):
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        opened.setsockopt(socket.SOL_SOCKET, option, BUFFER)
    try:
        opened.bind((own, port))
    except OSError:
        opened.bind((own, 0))
    opened.setblocking(False)
    return opened


def preferred(address):
    """A port that a peer keeps when the relay starts again."""
    first, second = (int(part) for part in address.split(".")[2:])
    return FIRST + (first * 256 + second) % 10000


class Relay:
    def __init__(self, interface, own, port):
        self.interface, self.own, self.port = interface, own, port
        self.sockets = {}
        self.selector = selectors.DefaultSelector()
        self.buffer = bytearray(65536)
        self.view = memoryview(self.buffer)

    def change(self, addresses):
        for address in set(self.sockets) - set(addresses):
            closed = self.sockets.pop(address)
            self.selector.unregister(closed)
            closed.close()
        for address in addresses:
            if address not in self.sockets:
                self.sockets[address] = open_socket(self.interface, self.own, preferred(address))
                self.selector.register(self.sockets[address], selectors.EVENT_READ, address)
        return {address: opened.getsockname()[1] for address, opened in self.sockets.items()}

    def forward(self, opened, address):
        target = (address, self.port)
        for _ in range(AT_ONCE):
            try:
                size, (source, port) = opened.recvfrom_into(self.buffer)
            except OSError:
                return
            out = self.sockets.get(source)
            if out is None or port != self.port or source == address:
                continue
            try:
                out.sendto(self.view[:size], target)
            except OSError:
                # as a router that drops a packet
                pass


def main():
    relay = Relay(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    relay.selector.register(sys.stdin, selectors.EVENT_READ, None)
    while True:
        for key, _ in relay.selector.select():
            if key.data is not None:
                if key.fileobj.fileno() >= 0:
                    relay.forward(key.fileobj, key.data)
                continue
            line = sys.stdin.readline()
            if not line:
                return
            print(json.dumps(relay.change(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
