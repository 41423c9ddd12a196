"""The program of `hvdctl verify` on every rank: a real initialization, a sum over all ranks whose result is known, and
what this rank sees of its machine and where it runs there (place.py). One JSON line on standard output. With `--full`
collective operations of every type follow, whose results are known, and with `--busbw` the bandwidth of allreduce
(collectives.py). The other arguments are the modules over which the ranks may communicate (backends.py)."""
import json
import platform
import socket
import subprocess
import sys

import backends
import place


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = listed.stdout.decode(errors="replace").splitlines()
    return lines if listed.returncode == 0 else None


def main(arguments):
    options = [argument for argument in arguments if argument.startswith("--")]
    backend = backends.choose([argument for argument in arguments if argument not in options])
    listed = gpus()
    print(json.dumps({
        "rank": backend.rank,
        "size": backend.size,
        "local_rank": backend.local_rank,
        "sum": backend.total(backend.rank + 1),
        "hostname": socket.gethostname(),
        "gpus": listed,
        "place": place.find(backend.local_rank, listed),
        "framework": backends.framework(backend),
        "library": backend.library,
        "python": platform.python_version(),
    }), flush=True)
    if options:
        import collectives
        collectives.check(backend, "--full" in options, "--busbw" in options)
    backend.end()


main(sys.argv[1:])
