"""Decides how each peer is reached. Without I/O: times are passed in, and what has to be done is returned."""
import ipaddress

import endpoints
import messages
import mtu

# seconds between two hellos to a peer that answers, and to one that does not
SETTLED, UNSETTLED = 2.0, 1.0
# seconds without an answer after which a peer is looked for, and those of each attempt
LOST, ATTEMPT = 5.0, 1.0
# WireGuard drops both of two handshakes that cross: one of the two nodes waits so much longer
LATER = 0.25
# a peer that has not been found for so long is tried less often
PATIENT, RARELY = 60.0, 5.0
# what another node has seen counts for so long
NEWS = 10.0
# a relayed peer's attempts at a direct way: when each begins after the peer was asked to try as well, and how long
# another one waits
PUNCH, TRIAL, BETWEEN = 0.1, 1.0, 3.0
# all of them have failed: they are tried again after so long, because a node may have been busy, or a router replaced
AGAIN = 20.0, 60.0, 300.0, 3600.0
# a peer to which TCP connects is tried again after so long, and one to which it does not
CONNECTS, REFUSES = 60.0, 5.0


class Peer:
    """Another node as this one sees it."""

    def __init__(self, node, now, limit):
        self.name, self.address, self.key = node["name"], node["address"], node["public_key"]
        self.configured, self.local = [], []
        self.describe(node)
        self.reported_local = None
        # by node: when it said so, and what it said (endpoint, MTU, round trip, port for relaying)
        self.seen = {}
        self.state, self.since, self.via = "unreachable", now, None
        self.endpoint = self.worked = self.handshake = None
        self.sent = self.received = 0
        self.round_trip = self.answered = self.grown = self.heard = None
        self.unanswered = {}
        self.next_hello = self.next_attempt = now
        self.lost = now
        self.attempted = self.shaken = self.relayed_at = None
        self.queue, self.tried = [], {}
        self.trial, self.next_trial, self.punched = None, now, None
        self.rounds, self.next_round = 0, now
        # whether TCP connects, and when it has failed the first time
        self.tcp = self.failed = None
        self.next_connection = now
        limit, fixed = limit
        self.path = mtu.PathMtu(limit, now, fixed)
        self.route, self.refresh = None, False

    def describe(self, node):
        changed = (self.configured, self.local) != (node.get("endpoints") or [], node.get("local") or [])
        self.configured, self.local = node.get("endpoints") or [], node.get("local") or []
        return changed

    def is_connected(self):
        return self.state != "unreachable"

    def is_quiet(self, now):
        """True if a hello has not been answered."""
        return self.answered is None or now - self.answered > SETTLED + UNSETTLED


class Peers:
    """All peers of a node. `own` are its addresses with their prefixes, `resolved` the addresses of host names."""

    def __init__(self):
        self.peers, self.addresses = {}, {}
        self.own = None
        self.resolved = {}
        self.relay_ports = {}
        self.number = 0
        self.turn = 0
        self.network = self.inside = None
        self.changed = True

    # --- the network

    def apply(self, network, now):
        """Takes the network that hvdctl has written. Returns the changes for the interface (see Device.change)."""
        self.network, self.inside = network, ipaddress.ip_network(network["range"])
        limit = (network.get("mtu") or mtu.HIGHEST, bool(network.get("mtu")))
        nodes = {node["name"]: node for node in network["nodes"] if node["name"] != network["node"]}
        nodes = {name: node for name, node in nodes.items() if node.get("public_key")}
        changes = []
        for name, peer in list(self.peers.items()):
            node = nodes.get(name)
            if node is None or (node["public_key"], node["address"]) != (peer.key, peer.address):
                changes.append((peer.key, peer.address, None, "remove"))
                del self.peers[name]
                if node is not None and node["address"] == peer.address:
                    # a new key, and most likely the old place
                    self.peers[name] = Peer(node, now, limit)
                    self.peers[name].worked, self.peers[name].seen = peer.worked, peer.seen
                    self.peers[name].reported_local, self.peers[name].route = peer.reported_local, peer.route
            elif peer.describe(node) and not peer.is_connected():
                peer.queue, peer.next_attempt = [], now
        for name, node in nodes.items():
            if name not in self.peers:
                self.peers[name] = Peer(node, now, limit)
        for peer in self.peers.values():
            peer.seen = {by: said for by, said in peer.seen.items() if by in self.peers}
            if peer.path.fixed != limit[1] or (limit[1] and peer.path.value != limit[0]):
                peer.path = mtu.PathMtu(limit[0], now, limit[1])
        self.addresses = {peer.address: peer for peer in self.peers.values()}
        changes += [(peer.key, peer.address, None, "add") for peer in self.peers.values()]
        self.changed = True
        return changes

    def moved(self, own, now):
        """This node has other addresses: each way may be another one now."""
        before, self.own = self.own, own
        for peer in self.peers.values() if before is not None else ():
            peer.next_hello = now
            peer.tried = {}
            if not peer.is_connected():
                peer.queue, peer.next_attempt = [], now
            elif peer.answered is not None:
                # one that does not answer now will not do so later
                peer.answered = min(peer.answered, now - LOST + 2 * ATTEMPT)
                peer.refresh = True

    def by_address(self, address):
        return self.addresses.get(address)

    # --- what the interface shows

    def looked(self, found, now):
        """Takes what the interface knows of its peers (Device.look)."""
        for peer in self.peers.values():
            seen = found.get(peer.key)
            if seen is None:
                continue
            if seen["received"] > peer.received:
                peer.grown = now
            if seen["handshake"] and seen["handshake"] != peer.handshake:
                peer.shaken = now
            peer.handshake, peer.sent, peer.received = seen["handshake"], seen["sent"], seen["received"]
            before, peer.endpoint = peer.endpoint, seen["endpoint"]
            if peer.endpoint != before:
                self.changed = True
            self.settle(peer, now, new=peer.endpoint != before)

    def via_of(self, endpoint):
        """The node through which packets to the endpoint go, or None if they take their own way."""
        parts = endpoints.valid(endpoint)
        relaying = self.by_address(parts[0]) if parts else None
        return relaying.name if relaying else None

    def leads_out(self, endpoint):
        """True if packets to the endpoint leave this node directly, or through one that it reaches directly."""
        parts = endpoints.valid(endpoint)
        if parts is None or ipaddress.ip_address(parts[0]) not in self.inside:
            return parts is not None
        relaying = self.by_address(parts[0])
        return relaying is not None and relaying.state == "direct"

    def settle(self, peer, now, new=False):
        """Decides the state of a peer by its answers and its endpoint."""
        lives = peer.answered is not None and now - peer.answered < LOST
        # traffic shows that a peer whose agent is silent is alive
        if not lives and peer.is_connected() and peer.grown is not None:
            lives = now - peer.grown < LOST
        lives = lives and self.leads_out(peer.endpoint)
        via = self.via_of(peer.endpoint) if lives else None
        state = "unreachable" if not lives else "relayed" if via else "direct"
        if peer.trial and state == "direct" and not peer.answered > peer.trial["starts"]:
            # an endpoint that is only tried
            return
        if (state, via) != (peer.state, peer.via) or (new and state != "unreachable"):
            self.enter(peer, state, via, now)

    def enter(self, peer, state, via, now):
        if state != peer.state or via != peer.via:
            peer.since = now
        before, peer.state, peer.via = peer.state, state, via
        self.changed = True
        if state == "unreachable":
            # one that was relayed is relayed again at once
            peer.lost = now - LOST if before == "relayed" else now
            peer.queue, peer.tried, peer.trial = self.news(peer), {}, None
            peer.round_trip, peer.next_attempt, peer.relayed_at = None, now, None
            peer.unanswered = {}
            peer.tcp = peer.failed = None
            return
        if state == "direct":
            peer.worked = peer.endpoint
            peer.trial = None
        elif before != "relayed":
            peer.rounds, peer.next_round = 0, now + AGAIN[0]
        peer.path.begin(now)
        if before == "unreachable":
            # the answer before had to wait for the handshake
            peer.next_hello = peer.next_connection = now
            for other in self.peers.values():
                # those who are looked for may be known there
                if other.state == "direct":
                    other.next_hello = min(other.next_hello, now)

    # --- messages

    def sought(self, now):
        """The names of the peers that have no direct way, or may have lost it, as many as fit, in turn."""
        names = sorted(peer.name for peer in self.peers.values() if peer.state != "direct" or peer.is_quiet(now))
        if len(names) > messages.SOUGHT:
            self.turn += messages.SOUGHT
            start = self.turn % len(names)
            names = (names[start:] + names[:start])[:messages.SOUGHT]
        return names

    def hello(self, peer, now, size=0, punch=False):
        """The next hello to a peer."""
        self.number += 1
        sought = ()
        if peer.state == "direct" and not size:
            sought = [name for name in self.sought(now) if name != peer.name]
        peer.unanswered[self.number] = (now, size, sought)
        if len(peer.unanswered) > 20:
            del peer.unanswered[min(peer.unanswered)]
        local = [text.split("/")[0] for text in self.own or ()]
        return messages.hello(self.number, local, sought, peer.via, punch, size)

    def received(self, peer, message, now):
        """Takes a message of a peer. Returns the reply, or None, and True if the interface should be looked at."""
        reply, look = None, not peer.is_connected() or peer.trial is not None
        peer.heard = now
        if "local" in message and message["local"] != peer.reported_local:
            peer.reported_local = message["local"]
            if not peer.is_connected():
                peer.queue = []
        if message.get("via") != peer.via and "via" in message:
            look = True
        if "hello" in message:
            seen = {}
            for name in message.get("seek", ()):
                other = self.peers.get(name)
                if other and other.state == "direct" and other.endpoint and name != peer.name:
                    route = other.path.value
                    seen[name] = [other.endpoint, route, other.round_trip or 0, self.relay_ports.get(name)]
            reply = messages.reply(message["hello"], peer.via, seen)
            if not peer.is_connected():
                peer.next_hello = min(peer.next_hello, now)
            if message.get("punch") and peer.state == "relayed" and (peer.punched is None or now - peer.punched > 10):
                peer.punched, peer.tried, peer.next_trial = now, {}, now
        else:
            self.answered(peer, message, now)
        return reply, look

    def answered(self, peer, message, now):
        sent = peer.unanswered.pop(message["reply"], None)
        if sent is None:
            return
        at, size, sought = sent
        if size:
            peer.path.answered(size, now)
            return
        # those before it are late or lost
        peer.unanswered = {
            number: one for number, one in peer.unanswered.items() if one[1] or number > message["reply"]}
        peer.answered = max(peer.answered or at, at)
        took = (now - at) * 1000
        if peer.round_trip is None or took < peer.round_trip:
            self.changed = self.changed or took < (peer.round_trip or 0) / 2
            peer.round_trip = took
        else:
            peer.round_trip = 0.8 * peer.round_trip + 0.2 * took
        for name in sought:
            if name in self.peers and name not in message.get("seen", {}):
                # it does not reach that peer any more
                self.peers[name].seen.pop(peer.name, None)
        for name, said in message.get("seen", {}).items():
            other = self.peers.get(name)
            if other is None or name == peer.name or peer.state != "direct":
                continue
            if other.state == "direct" and not other.is_quiet(now):
                continue
            new = peer.name not in other.seen or other.seen[peer.name][1][0] != said[0]
            other.seen[peer.name] = (now, said)
            if new and not other.is_connected() and said[0] not in other.tried and self.is_candidate(other, said[0]):
                other.queue = [said[0]] + [one for one in other.queue if one != said[0]]

    def news(self, peer):
        """Where others have seen a peer since it was last reached."""
        found = sorted(peer.seen.values(), key=lambda one: -one[0])
        found = [said[0] for at, said in found if at > (peer.answered or 0) and said[0] != peer.worked]
        allowed = self.candidates(peer)
        return [endpoint for endpoint in dict.fromkeys(found) if endpoint in allowed]

    def is_candidate(self, peer, endpoint):
        return endpoint in self.candidates(peer)

    # --- the search

    def candidates(self, peer):
        configured = []
        for text in peer.configured:
            parts = endpoints.split(text)
            if parts and endpoints.valid(text):
                configured.append(text)
            elif parts:
                configured += [endpoints.join(host, parts[1]) for host in self.resolved.get(parts[0], ())]
        news = sorted(peer.seen.values(), key=lambda one: -one[0])
        local = [text for text in (peer.reported_local or []) + peer.local if endpoints.address_of(text)]
        port = self.network["port"]
        return endpoints.candidates(
            peer.worked, configured, [said[0] for _, said in news], local, self.own or (), port, self.inside)

    def names(self):
        """Host names of the endpoints of peers that are not reached."""
        parts = [endpoints.split(text) for peer in self.peers.values() if peer.state != "direct"
                 for text in peer.configured]
        return {part[0] for part in parts if part and not endpoints.address_of(part[0])}

    def relaying(self, peer, now):
        """The node through which packets to the peer take the least time, or None."""
        found = []
        for name, (at, said) in peer.seen.items():
            node = self.peers.get(name)
            if node and node.state == "direct" and said[3] and now - at < NEWS:
                # by tenths of a millisecond, so that both ends choose the same of two equal ones
                found.append((round((node.round_trip or 0) + said[2], 1), name))
        return self.peers[min(found)[1]] if found else None

    def attempt(self, peer, now):
        """The endpoint that is tried next for a peer that is not reached, or None."""
        recent = [at for at in (peer.shaken, peer.heard) if at is not None]
        begun = max(recent) if recent else None
        if begun is not None and peer.attempted is not None and begun > peer.attempted and now - begun < 2 * ATTEMPT:
            # a handshake has just succeeded: another one would break what it began
            return None
        relaying = self.relaying(peer, now) if now - peer.lost >= LOST + 2 * self.later(peer) else None
        if relaying and (peer.relayed_at is None or now - peer.relayed_at >= 4 * ATTEMPT):
            peer.relayed_at = now
            return endpoints.join(relaying.address, peer.seen[relaying.name][1][3])
        if not peer.queue:
            peer.queue = self.candidates(peer)
        if not peer.queue:
            return None
        endpoint = peer.queue.pop(0)
        peer.tried[endpoint] = now
        return endpoint

    def later(self, peer):
        own, other = (ipaddress.ip_address(address) for address in (self.network["address"], peer.address))
        return LATER if own > other else 0

    def search(self, peer, now):
        if now < peer.next_attempt:
            return []
        endpoint = self.attempt(peer, now)
        if endpoint is None:
            peer.next_attempt = now + ATTEMPT / 2
            return []
        peer.attempted = now
        peer.handshake = None
        peer.received = peer.sent = 0
        peer.next_attempt = now + (ATTEMPT if now - peer.lost < PATIENT else RARELY) + self.later(peer)
        peer.next_hello = now
        return [("try", peer, endpoint)]

    def try_direct(self, peer, now):
        """A relayed peer's attempt at a direct way. Its session goes on, so that a failure costs a second at most."""
        trial = peer.trial
        if trial is None:
            if now >= peer.next_round:
                peer.rounds = min(peer.rounds + 1, len(AGAIN) - 1)
                peer.tried, peer.next_round = {}, now + AGAIN[peer.rounds]
            fresh = [one for one in self.candidates(peer) if one not in peer.tried]
            if not fresh or now < peer.next_trial:
                return []
            peer.trial = {"endpoint": fresh[0], "back": peer.endpoint, "starts": now + PUNCH, "moved": None}
            peer.tried[fresh[0]] = now
            return [("punch", peer)]
        if now < trial["starts"]:
            return []
        if now < trial["starts"] + TRIAL:
            # packets of the peer set the endpoint back
            if trial["moved"] is None or now - trial["moved"] >= TRIAL / 3:
                trial["moved"] = now
                peer.next_hello = now
                return [("move", peer, trial["endpoint"])]
            return []
        peer.trial = None
        peer.next_trial = now + BETWEEN
        # not that which was tried, until the interface is looked at again
        peer.endpoint = trial["back"]
        return [("move", peer, trial["back"])]

    # --- the MTU

    def ceiling(self, peer, outer, now):
        """Takes the largest packet that the way to the peer's endpoint lets through, in bytes."""
        host = endpoints.split(peer.endpoint)[0] if peer.endpoint else ""
        peer.path.limit(mtu.within(outer, 6 if ":" in host else 4), now)

    def relayed_ceiling(self, peer, now):
        relaying = self.peers.get(peer.via)
        said = peer.seen.get(peer.via)
        sizes = [relaying.path.value] if relaying else []
        sizes += [said[1][1]] if said else []
        if sizes:
            peer.path.limit(mtu.within(min(sizes)), now)

    # --- TCP

    def connects(self, peer, now):
        """True if a connection by TCP is due, as ranks make them: a firewall may let only answers to UDP through."""
        if not peer.is_connected() or peer.is_quiet(now) or now < peer.next_connection:
            return False
        # an agent that starts again refuses for a moment
        return peer.failed is None or peer.answered > peer.failed

    def connected(self, peer, succeeded, began, now):
        """Takes the result of a connection that was begun at this time."""
        if not peer.is_connected():
            return
        before = peer.tcp
        if succeeded:
            peer.tcp, peer.failed, peer.next_connection = True, None, now + CONNECTS
        elif peer.failed is not None and peer.failed < began:
            peer.tcp, peer.next_connection = False, now + REFUSES
        else:
            peer.failed = peer.next_hello = peer.next_connection = now
        self.changed = self.changed or peer.tcp != before

    # --- what is due

    def due(self, now):
        """Returns what has to be done now: tuples of an action, a peer and a value."""
        actions = []
        seeking = any(peer.state != "direct" or peer.is_quiet(now) for peer in self.peers.values())
        for peer in self.peers.values():
            self.settle(peer, now)
            if peer.refresh and peer.is_connected():
                # WireGuard remembers this node's old address with the endpoint
                actions.append(("move", peer, peer.endpoint))
            peer.refresh = False
            if not peer.is_connected():
                actions += self.search(peer, now)
            elif peer.state == "relayed" or peer.trial:
                actions += self.try_direct(peer, now)
                self.relayed_ceiling(peer, now)
            if now >= peer.next_hello:
                often = peer.is_quiet(now) or not peer.is_connected() or (seeking and peer.state == "direct")
                peer.next_hello = now + (UNSETTLED if often else SETTLED)
                actions.append(("hello", peer))
            if peer.is_connected() and not peer.trial:
                size = peer.path.probe(now, peer.answered, peer.round_trip)
                if size:
                    actions.append(("probe", peer, size))
                    # a small one as well: only if that is answered, the size is the reason
                    peer.next_hello = now if not peer.path.proven else peer.next_hello
            if self.connects(peer, now):
                peer.next_connection = now + REFUSES
                actions.append(("connect", peer))
            if peer.route != peer.path.value:
                peer.route = peer.path.value
                self.changed = True
                actions.append(("route", peer, peer.route))
        return actions

    def is_settled(self, now):
        """True if no peer is looked for, except for those that have been away for long."""
        return not any(peer.trial or (not peer.is_connected() and now - peer.lost < PATIENT)
                       for peer in self.peers.values())
