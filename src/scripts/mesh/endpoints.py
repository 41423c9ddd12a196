"""Addresses and endpoints: which texts are valid, and in which order a peer's endpoints are tried. Without I/O."""
import ipaddress

# networks that only neighbours reach; `is_private` of Python has more, such as those of documentation
PRIVATE = [
    ipaddress.ip_network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
]


def address_of(text):
    """The address, or None if it is no text of one that another machine can be reached at."""
    # a scope belongs to one node
    if not isinstance(text, str) or len(text) > 45 or "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    unusable = (
        address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local
        or text == "255.255.255.255" or (address.version == 6 and address.ipv4_mapped is not None)
    )
    return None if unusable else address


def join(host, port):
    return "[%s]:%d" % (host, port) if ":" in host else "%s:%d" % (host, port)


def split(endpoint):
    """Host and port of `host:port` or `[host]:port`, or None."""
    if not isinstance(endpoint, str) or len(endpoint) > 300:
        return None
    host, colon, port = endpoint.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    # other scripts have digits of their own, which `isdigit` and `int` accept
    if not colon or not host or not 0 < len(port) < 6 or port.strip("0123456789"):
        return None
    return (host, int(port)) if 0 < int(port) < 65536 else None


def valid(endpoint):
    """Host and port if the host is an address, or None."""
    parts = split(endpoint)
    return parts if parts and address_of(parts[0]) else None


def is_private(host):
    address = ipaddress.ip_address(host)
    return any(address.version == net.version and address in net for net in PRIVATE)


def is_near(host, own):
    """True if the address is in a network of one of this node's interfaces, `own`: texts as of `192.168.1.5/24`."""
    address = ipaddress.ip_address(host)
    return any(address in ipaddress.ip_interface(text).network for text in own)


def candidates(in_use, configured, seen, local, own, port, inside):
    """The endpoints to try for a peer, the likeliest first, each once.

    `in_use` is the last one that worked, `configured` those of hvdctl, `seen` those that other nodes see (newest
    first), `local` the addresses of its interfaces, `own` those of this node with their prefixes. None is in the
    network `inside`, whose packets would take the way that is looked for.
    """
    near = [join(host, port) for host in local if is_near(host, own)]
    far = [join(host, port) for host in local if not is_near(host, own)]
    private = [endpoint for endpoint in seen if is_private(split(endpoint)[0])]
    ordered = [in_use] if in_use else []
    ordered += near + configured + [endpoint for endpoint in seen if endpoint not in private] + private + far
    mine = {ipaddress.ip_interface(text).ip for text in own}
    versions = {address.version for address in mine} or {4}
    found = []
    for endpoint in ordered:
        parts = valid(endpoint)
        if not parts or endpoint in found:
            continue
        address = ipaddress.ip_address(parts[0])
        if address in mine or address.version not in versions or address in inside:
            continue
        found.append(endpoint)
    return found
