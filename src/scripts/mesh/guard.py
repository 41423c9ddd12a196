"""Keeps the addresses of the network apart from all others. A node accepts packets for any of its addresses on any of
its interfaces, so that neighbours would reach what listens in the network only; and packets for the network would take
the default route, unencrypted, while its interface is missing."""
import network

# how often it is looked whether both are still there, in seconds: firewalls and managers of networks remove what they
# do not know
LOOK = 10.0
RULES = """table ip {table}
delete table ip {table}
table ip {table} {{
  chain arriving {{
    type filter hook prerouting priority -300
    iifname "{name}" accept
    iifname "lo" accept
    ip daddr {range} drop
  }}
}}
"""


class Guard:
    """The rule and the route of an interface and its range of addresses. `fault` says why neighbours are not kept out,
    if they are not."""

    def __init__(self, interface, addresses):
        self.interface, self.range = interface, addresses
        self.table = "hvdctl_" + interface
        self.fault = None

    def close(self):
        """Keeps neighbours out."""
        faults = []
        for command, given in (
            (["nft", "-f", "-"], RULES.format(table=self.table, name=self.interface, range=self.range)),
            # after all other routes
            (["ip", "route", "replace", "unreachable", self.range, "metric", "4294967295"], None),
        ):
            try:
                network.run(command, given)
            except OSError as error:
                faults.append("%s: %s" % (command[0], error.strerror or error))
        self.fault = "; ".join(faults) or None

    def look(self):
        """Keeps them out again if the rule or the route is gone."""
        try:
            network.run(["nft", "list", "table", "ip", self.table])
            is_closed = self.range in network.run(["ip", "route", "show", "type", "unreachable"]).split()
        except OSError:
            is_closed = False
        if not is_closed:
            self.close()

    def open(self):
        """Removes the rule and the route."""
        rule, route = ["nft", "delete", "table", "ip", self.table], ["ip", "route", "del", "unreachable", self.range]
        for command in (rule, route):
            try:
                network.run(command)
            except OSError:
                # it is gone already
                pass
