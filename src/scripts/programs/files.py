"""Files in the job's directory that others read while they are written, and what comes from another process or node:
nothing of it is taken for granted, because ranks can change every file of their job."""
import contextlib
import json
import os
import stat

from here import HERE

MOST = 1 << 20  # bytes that are read of a file or a line


def create(name):
    """Opens the file that becomes `name` when it is complete. What it has is kept: its space was reserved for the
    result."""
    return open(os.open(os.path.join(HERE, name + ".new"), os.O_WRONLY | os.O_CREAT, 0o600), "wb")


def write(name, text, is_lasting=True, mode=0o600):
    """Writes a whole file or none; if it is lasting, even if the power goes, which may take a disk a while."""
    with create(name) as file:
        if mode != 0o600:
            os.fchmod(file.fileno(), mode)
        file.write(text.encode())
        file.truncate()
        file.flush()
        if is_lasting:
            os.fsync(file.fileno())
    path = os.path.join(HERE, name)
    os.rename(path + ".new", path)


def remove(name):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(HERE, name))


def write_json(name, value):
    write(name, json.dumps(value))


def read(name):
    """Returns the first bytes of a file. Does not wait for a writer, as for that of a pipe in its place, and follows no
    link."""
    with open(os.open(os.path.join(HERE, name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
        return file.read(MOST) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def load(name):
    """Returns what hvdctl has described in a file of the job."""
    with open(os.path.join(HERE, name), "rb") as file:
        return json.load(file)


def read_json(name, shape):
    return parse(read(name), shape)


def parse(text, shape):
    """Returns the value of a JSON text. Raises ValueError if it does not have the shape."""
    try:
        value = json.loads(text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply")
    if not fits(value, shape):
        raise ValueError("it does not have the expected form")
    return value


def fits(value, shape):
    """Returns whether a value has a shape: `[SHAPE]` is a list of such values, `{NAME: SHAPE}` an object whose fields
    have these shapes, and a function decides itself. A field that is missing is None."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(fits(value.get(name), one) for name, one in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0]) for one in value)
    return shape(value)


def optional(shape):
    return lambda value: value is None or fits(value, shape)


def is_number(value):
    """Whether a value is a number that a time may be: neither infinite nor `NaN`, which no other JSON parser reads."""
    return type(value) in (int, float) and -1e15 < value < 1e15


def is_code(value):
    return type(value) is int and -1 << 31 <= value < 1 << 31


def is_count(value):
    return is_code(value) and value >= 0


def is_size(value):
    return type(value) is int and 0 <= value < 1 << 63


def is_text(value):
    """Whether a value is a text, without halves of characters, which no other JSON parser reads."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def is_flag(value):
    return isinstance(value, bool)
