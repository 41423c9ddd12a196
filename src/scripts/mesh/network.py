"""The agent's directory: keys, `network.json` of hvdctl, and `state.json` for it."""
import errno
import hashlib
import json
import os
import subprocess

LIMIT = 10


def run(arguments, given=None):
    """The output of a program, or an OSError with its own words."""
    try:
        done = subprocess.run(
            arguments, input=given, stdin=None if given is not None else subprocess.DEVNULL, timeout=LIMIT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, "%s: no end within %d s" % (" ".join(arguments[:3]), LIMIT))
    if done.returncode:
        raise OSError(errno.EIO, (done.stderr or done.stdout).strip() or "%s: exit code %d" % (
            " ".join(arguments[:3]), done.returncode))
    return done.stdout


def replace(path, text):
    """Writes a file that only root reads, as a whole or not at all."""
    new = "%s.%d" % (path, os.getpid())
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


def read_text(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None


class Directory:
    def __init__(self, path):
        self.path = path
        self.private_key = os.path.join(path, "private.key")
        self.new_key = os.path.join(path, "private.key.new")
        self.network = os.path.join(path, "network.json")
        self.state = os.path.join(path, "state.json")
        self.made = os.path.join(path, "made.json")

    def public_key(self, path):
        """The public key of a private key in a file, which is made if it is missing."""
        private = read_text(path)
        if not private or not private.strip():
            private = run(["wg", "genkey"])
            replace(path, private)
        return run(["wg", "pubkey"], private).strip()

    def own_key(self, wanted):
        """This node's public key. The new key takes the place of the old one if the network has it (`wanted`)."""
        if os.path.exists(self.new_key) and self.public_key(self.new_key) == wanted:
            os.rename(self.new_key, self.private_key)
        return self.public_key(self.private_key)

    def stamp(self):
        """A value that changes with network.json, or None if there is none."""
        try:
            found = os.stat(self.network)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read_network(self):
        """network.json and its digest."""
        with open(self.network, "rb") as file:
            data = file.read()
        return json.loads(data.decode()), hashlib.sha256(data).hexdigest()

    def read_made(self):
        """The interface and the range that were made for this network, or None."""
        try:
            made = json.loads(read_text(self.made) or "null")
        except ValueError:
            made = None
        return made and (made["interface"], made["range"])

    def write_made(self, interface, addresses):
        replace(self.made, json.dumps({"interface": interface, "range": addresses}))

    def write_state(self, state):
        new = self.state + ".new"
        with open(new, "w") as file:
            json.dump(state, file)
        os.rename(new, self.state)
