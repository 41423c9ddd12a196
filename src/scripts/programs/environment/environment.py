"""The environment of ranks in the programs of hvdctl. Python reads nothing from it (`-I`), and environment.sh has set
the variables aside that would change other libraries. `os.environ` has them again from here on, for the programs that
are started: what has begun does not read them any more."""
import os

ASIDE = "HVDCTL_RANKS_"


def restore(env, begun):
    """Restores the environment of ranks. `begun`: NAME=VALUE, as this process was started with. Python itself has set
    LC_CTYPE in place of the locale C (PEP 538)."""
    if not any(line.startswith(b"LC_CTYPE=") for line in begun):
        env.pop("LC_CTYPE", None)
    for name in [name for name in env if name.startswith(ASIDE)]:
        env[name[len(ASIDE):]] = env.pop(name)


def take_back():
    """Restores that of this process, once."""
    with open("/proc/self/environ", "rb") as file:
        restore(os.environ, file.read().split(b"\0"))
