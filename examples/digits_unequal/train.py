"""Handwritten digits on machines that are not equally fast: each rank gets as many images of a step as its speed
allows.

The data are the 1,797 real 8 x 8 images of the UCI digits, in digits.csv: nothing is downloaded. Every process (rank)
runs this file. The numbered comments show what differs from ../digits.
"""
import argparse
import os
import socket
import sys
import time

import horovod.torch as hvd
import numpy
import torch
import torch.nn.functional as F
from shares import part, shares
from torch import nn

parser = argparse.ArgumentParser(description="Train a digit classifier on unequal machines.")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--batch-size", type=int, default=16, help="images per step and rank, on average")
parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
parser.add_argument("--target-accuracy", type=float, metavar="A", help="exit 1 if the final accuracy is below")
options = parser.parse_args()

hvd.init()
on_gpu = torch.cuda.is_available()
device = torch.device("cuda", hvd.local_rank()) if on_gpu else torch.device("cpu")
torch.set_num_threads(1)
torch.manual_seed(1)

rows = numpy.loadtxt("digits.csv", delimiter=",", dtype="float32")
rows = torch.from_numpy(rows[numpy.random.RandomState(0).permutation(len(rows))]).to(device)
images, labels = (rows[:, :64] / 16).reshape(-1, 1, 8, 8), rows[:, 64].long()
train_images, test_images, train_labels, test_labels = images[360:], images[:360], labels[360:], labels[:360]

# 1. The speed of this rank's machine, as `hvdctl bench` has measured it: 1 for the fastest one of the job. All ranks
# know all speeds.
speeds = hvd.allgather_object(float(os.environ.get("HVDCTL_SPEED", "1")))

# 2. A step has as many images as with equal ranks, but a rank twice as fast gets twice as many of them.
batch = options.batch_size * hvd.size()
own = shares(batch, speeds)[hvd.rank()]
where = socket.gethostname()
print(f"rank {hvd.rank()} on {where}: speed {speeds[hvd.rank()]:g}, {own} of the {batch} images of a step", flush=True)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * 2 * 2, 64), nn.ReLU(), nn.Linear(64, 10),
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=options.lr * hvd.size())
# 3. Gradients are added up, not averaged: the mean of the ranks' means would count an image of a small part more than
# one of a large part.
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

computing, started = 0.0, time.monotonic()
for epoch in range(1, options.epochs + 1):
    # 4. All ranks make the same order of all images, and each takes its part of every step.
    order = torch.randperm(len(train_images), generator=torch.Generator().manual_seed(epoch))
    total = torch.zeros(())
    for step in order.split(batch):
        begun = time.monotonic()
        mine = part(step, hvd.rank(), speeds).to(device)
        optimizer.zero_grad()
        # 5. The sum over the rank's images, divided by the images of all ranks: added up, that is the mean over the
        # whole step, however it is split. A last step with fewer images than ranks leaves some ranks without any; their
        # sum is zero.
        loss = F.cross_entropy(model(train_images[mine]), train_labels[mine], reduction="sum") / len(step)
        loss.backward()
        computing += time.monotonic() - begun
        optimizer.step()
        total += loss.detach().cpu() * len(step)
    loss = hvd.allreduce(total, op=hvd.Sum, name="loss").item() / len(train_images)
    if hvd.rank() == 0:
        print(f"epoch {epoch}/{options.epochs}: loss {loss:.4f}", flush=True)

# 6. If the speeds are right, all ranks compute for about as long; a rank that computes less waits for the others.
share = computing / (time.monotonic() - started)
print(f"rank {hvd.rank()} computed {share:.0%} of the time", flush=True)
if hvd.rank() == 0:
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"test accuracy {accuracy:.4f} after {options.epochs} epochs", flush=True)
    if options.target_accuracy and accuracy < options.target_accuracy:
        sys.exit(f"accuracy {accuracy:.4f} is below the target of {options.target_accuracy}")
