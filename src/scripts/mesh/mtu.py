"""Decides the MTU to one peer. Without I/O.

Routers on the way say which packets are too large (`ceiling`, by the kernel). Some say nothing, so that packets of the
MTU are sent and have to be answered."""

HIGHEST = 1420
LOWEST = 576
# WireGuard fills packets up to a multiple of this, if they are smaller than the MTU of its interface
UNIT = 16
STEPS = (1420, 1376, 1344, 1280, 1216, 1152, 1088, 1008, 800, LOWEST)
# headers of IP and UDP outside, and WireGuard's own, with IPv4 and IPv6
OVERHEAD = {4: 60, 6: 80}
MISSED = 3
AGAIN = 60.0
SOON = 0.3


def within(packet, version=4):
    """The MTU of a way that lets packets of this size through, in bytes, with addresses of IPv4 or IPv6."""
    inner = packet - OVERHEAD[version]
    return HIGHEST if inner >= HIGHEST else max(LOWEST, inner // UNIT * UNIT)


class PathMtu:
    """`value` is the MTU to use."""

    def __init__(self, ceiling, now, fixed=False):
        self.ceiling = self.value = ceiling
        self.fixed = fixed
        self.begin(now)

    def begin(self, now):
        self.missed = 0
        self.sent = None
        self.proven = False
        self.next = now

    def limit(self, ceiling, now):
        """Takes what the kernel knows now of the way."""
        if self.fixed or ceiling == self.ceiling:
            return
        self.ceiling = ceiling
        if self.value > ceiling or not self.proven:
            self.value = ceiling
            self.begin(now)
        elif self.value < ceiling:
            self.next = now

    def probe(self, now, answers, round_trip):
        """The size of a packet to send now, or None. `answers`: when a small packet was last answered."""
        if self.fixed or now < self.next:
            return None
        if self.sent is not None:
            # a way that answers nothing says nothing of sizes
            if answers is not None and answers > self.sent:
                self.missed += 1
            if self.missed >= MISSED:
                lower = [step for step in STEPS if step < self.value]
                self.value = lower[0] if lower else self.value
                self.missed, self.sent = 0, None
        elif self.proven and self.ceiling > self.value:
            # once a minute a larger one, which may be lost
            self.sent, self.next = None, now + SOON
            self.proven = False
            return self.ceiling
        self.sent = now if self.sent is None else self.sent
        self.next = now + max(SOON, 2 * (round_trip or 0) / 1000)
        return self.value

    def answered(self, size, now):
        if self.fixed or not self.value <= size <= self.ceiling:
            return
        self.value = size
        self.missed = 0
        self.sent = None
        self.proven = True
        self.next = now + AGAIN
