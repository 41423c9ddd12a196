"""Pi by numerical integration, a plain MPI program: every rank sums its part of the interval, and rank 0 adds up the
parts."""
from mpi4py import MPI

STEPS = 10_000_000

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()

# Every rank computes each size-th step, starting with its own number.
width = 1.0 / STEPS
part = sum(4.0 / (1.0 + ((step + 0.5) * width) ** 2) for step in range(rank, STEPS, size)) * width

# Rank 0 adds up the parts of all ranks.
pi = world.reduce(part, op=MPI.SUM, root=0)
print(f"rank {rank} of {size} on {MPI.Get_processor_name()}: {part:.6f}", flush=True)
if rank == 0:
    print(f"pi is about {pi:.10f}", flush=True)
