"""The nodes' names in a container's /etc/hosts. Docker copies the node's file when it starts a container: there the
node's own name is often 127.0.1.1, the address on another network, or missing, and Gloo connects its ranks by that
address (gloo/transport/tcp/device.cc, `lookupAddrForHostname`).

Nodes are a list of [ADDRESS, [NAME, …]], that of the container's own node first. hvdctl runs this text with a call of
`write` after it."""
import ipaddress

PATH = "/etc/hosts"
MARK = "# hvdctl"  # ends the lines that were written here


def is_loopback(address):
    try:
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return False


def entry(line):
    """Address and names of a line."""
    fields = line.split("#")[0].split()
    return fields[:1], fields[1:]


def with_domain(lines, own):
    """The node's name with its domain, as its own loopback lines have it, or the line that was written here earlier."""
    short, found = {name.split(".")[0] for name in own}, []
    for line in lines:
        address, names = entry(line)
        known = [name.lower() for name in names]
        if address and (not own.isdisjoint(known) if line.endswith(MARK) else is_loopback(address[0])):
            found += [name for name in names if "." in name and name.split(".")[0].lower() in short]
    return found


def rewrite(text, nodes):
    """The text of the file with the nodes' names, and with no other line for these. Names that were written earlier and
    are of none of these nodes stay."""
    lines, (own, *others) = text.splitlines(), nodes
    names = with_domain(lines, {name.lower() for name in own[1]}) + own[1]
    taken, ours, kept = set(), [], []
    for address, names in [(own[0], names)] + others:
        new = [name for name in dict.fromkeys(names) if name.lower() not in taken]
        taken.update(name.lower() for name in new)
        ours += ["\t".join([address, " ".join(new), MARK])] * bool(new)
    for line in lines:
        address, names = entry(line)
        left = [name for name in names if name.lower() not in taken]
        if left == names:
            kept.append(line)
        elif left:
            kept.append("\t".join(address + [" ".join(left)] + [MARK] * line.endswith(MARK)))
    return "\n".join(ours + kept) + "\n"


def write(nodes, path=PATH):
    """Writes the nodes' names to the file, in place: it is a mount, which cannot be replaced. Does nothing without
    nodes."""
    if not nodes:
        return
    with open(path, "r+", encoding="utf-8", errors="surrogateescape") as file:
        before = file.read()
        text = rewrite(before, nodes)
        if text != before:
            file.seek(0)
            file.write(text)
            file.truncate()
