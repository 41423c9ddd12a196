"""Handwritten digits, classified by one layer of neurons that Horovod trains on all ranks, and a table of what it learned.

The table is made by a package that the image lacks: `setup` in hvdctl.toml installs it before the first job.
"""
import argparse
import socket
import sys

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
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
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split((images / 16).astype("float32"), labels, test_size=0.2, random_state=0, stratify=labels)
    train, test, train_labels, test_labels = map(torch.from_numpy, parts)
    # each rank has a part of the images
    train, train_labels = train[hvd.rank()::hvd.size()], train_labels[hvd.rank()::hvd.size()]

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
