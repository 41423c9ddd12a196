"""Handwritten digits, classified by one layer of neurons that Horovod trains on all ranks, and a table of what it
learned.

The table is made by a package that the image lacks: `setup` in hvdctl.toml installs it before the first job.
"""
import argparse
import socket
import sys

import horovod.torch as hvd
import numpy
import torch
import torch.nn.functional as F
from tabulate import tabulate


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--target-accuracy", type=float, default=0.0, help="exit 1 if the final accuracy is below")
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}", flush=True)
    rows = numpy.loadtxt("digits.csv", delimiter=",", dtype="float32")  # a row is 64 pixels and the digit
    rows = torch.from_numpy(rows[numpy.random.RandomState(0).permutation(len(rows))])
    images, labels = rows[:, :64] / 16, rows[:, 64].long()
    test, test_labels = images[:360], labels[:360]
    # each rank has a part of the other images
    train, train_labels = images[360 + hvd.rank()::hvd.size()], labels[360 + hvd.rank()::hvd.size()]

    model = torch.nn.Linear(64, 10)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for _ in range(args.steps):
        optimizer.zero_grad()
        F.cross_entropy(model(train), train_labels).backward()
        optimizer.step()

    with torch.no_grad():
        found = model(test).argmax(1)
    accuracy = (found == test_labels).float().mean().item()
    if hvd.rank() == 0:
        of_digit = [(digit, (found[test_labels == digit] == digit).float().mean().item()) for digit in range(10)]
        print(tabulate(of_digit, headers=["digit", "accuracy"], floatfmt=".2f"))
        print(f"test accuracy {accuracy:.4f}", flush=True)
    if accuracy < args.target_accuracy:
        sys.exit(f"accuracy {accuracy:.4f} is below the target of {args.target_accuracy}")


if __name__ == "__main__":
    main()
