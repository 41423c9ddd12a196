"""Writes the answers to "was Horovod built with MPI?" and "… with Gloo?" into the installed package.

`horovodrun` asks both at every launch, and Horovod answers by importing each framework in a process of its own
(horovod/common/util.py, `mpi_built` and `gloo_built`). Here they are asked once, and only a yes is written down."""
import compileall
import sys

from horovod.common import util

if not (util.mpi_built() and util.gloo_built()):
    sys.exit("the full image lacks a controller")
with open(util.__file__, "a") as file:
    file.write("""

def mpi_built(verbose=False):
    return True


def gloo_built(verbose=False):
    return True
""")
if not compileall.compile_file(util.__file__, quiet=1):
    sys.exit("the changed module does not compile")
