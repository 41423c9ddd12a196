"""The messages between agents. A peer may send anything: what is read here is checked, and may only make this node
try endpoints, where a handshake without the right key fails."""
import json

import endpoints

PORT = 931
# as many fit into a packet of the smallest MTU
SOUGHT = 12
LOCAL = 8
LONGEST = 9000


def hello(number, local, sought=(), via=None, punch=False, size=0):
    """A hello asks for a reply. `local`: addresses of the sender. `sought`: names of nodes about which the receiver is
    asked. `via`: the node through which the sender reaches the receiver. `punch`: asks the receiver to try the
    sender's outside endpoints now. `size`: length of the IP packet, for looking whether it arrives."""
    message = {"hello": number}
    if size:
        # the headers of IPv4 and UDP have 28 bytes
        text = json.dumps(message, separators=(",", ":"))
        return text.encode() + b" " * (size - 28 - len(text))
    message["local"] = list(local)[:LOCAL]
    message["via"] = via
    if sought:
        message["seek"] = list(sought)[:SOUGHT]
    if punch:
        message["punch"] = True
    return json.dumps(message, separators=(",", ":")).encode()


def reply(number, via=None, seen=None):
    """`seen` has, for each node sought that the sender reaches directly: its outside endpoint, the MTU to it, the
    round trip in milliseconds, and the port at which the sender relays to it."""
    message = {"reply": number, "via": via}
    if seen:
        message["seen"] = seen
    return json.dumps(message, separators=(",", ":")).encode()


def is_number(value, lowest, highest):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and lowest <= value <= highest


def read_seen(value):
    if not isinstance(value, list) or len(value) != 4:
        return None
    endpoint, mtu, round_trip, port = value
    if not endpoints.valid(endpoint) or not is_number(mtu, 576, 9000) or not is_number(round_trip, 0, 60000):
        return None
    if port is not None and not is_number(port, 1024, 65535):
        return None
    return endpoint, int(mtu), round_trip, port if port is None else int(port)


def read(data):
    """The message with its valid parts only, or None if it is none."""
    if len(data) > LONGEST:
        return None
    try:
        message = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    kinds = [kind for kind in ("hello", "reply") if is_number(message.get(kind), 0, 2 ** 53)]
    if len(kinds) != 1:
        return None
    found = {kinds[0]: int(message[kinds[0]])}
    if "via" in message:
        found["via"] = message["via"] if isinstance(message["via"], str) else None
    if isinstance(message.get("local"), list):
        found["local"] = [text for text in message["local"][:LOCAL] if endpoints.address_of(text)]
    if isinstance(message.get("seek"), list):
        found["seek"] = [name for name in message["seek"][:SOUGHT] if isinstance(name, str)]
    if message.get("punch") is True:
        found["punch"] = True
    if isinstance(message.get("seen"), dict):
        seen = {name: read_seen(value) for name, value in list(message["seen"].items())[:SOUGHT]}
        found["seen"] = {name: value for name, value in seen.items() if value}
    return found
