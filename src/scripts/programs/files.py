"""Files in the job's directory that others read while they are written."""
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def create(name):
    """Opens the file that becomes `name` when it is complete. What it has is kept: its space was reserved for the result."""
    return open(os.open(os.path.join(HERE, name + ".new"), os.O_WRONLY | os.O_CREAT, 0o600), "wb")


def write(name, text):
    """Writes a whole file or none, even if the power goes."""
    with create(name) as file:
        file.write(text.encode())
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    path = os.path.join(HERE, name)
    os.rename(path + ".new", path)


def write_json(name, value):
    write(name, json.dumps(value))
