"""Handwritten digits with Horovod's elastic API. Nodes may leave and join while it trains:

    hvdctl train examples/digits_elastic -np 1:2

The data are the 1,797 real 8 x 8 images of the UCI digits, in digits.csv: nothing is downloaded. Every process (rank)
runs this same file. The numbered comments are what makes an ordinary program an elastic one.
"""
import argparse
import sys

import horovod.torch as hvd
import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="Train a digit classifier with Horovod Elastic.")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--batch-size", type=int, default=16, help="images per step and rank")
parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
parser.add_argument("--target-accuracy", type=float, metavar="A", help="exit 1 if the final accuracy is below")
options = parser.parse_args()

hvd.init()
on_gpu = torch.cuda.is_available()
device = torch.device("cuda", hvd.local_rank()) if on_gpu else torch.device("cpu")
torch.set_num_threads(1)
torch.manual_seed(1)

rows = numpy.loadtxt("digits.csv", delimiter=",", dtype="float32")
rows = torch.from_numpy(rows[numpy.random.RandomState(0).permutation(len(rows))])
images, labels = (rows[:, :64] / 16).reshape(-1, 1, 8, 8), rows[:, 64].long()
train_images, test_images, train_labels, test_labels = images[360:], images[:360], labels[360:], labels[:360]

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * 2 * 2, 64), nn.ReLU(), nn.Linear(64, 10),
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


# 1. Horovod calls this function again whenever a node has left or joined. Before that, it brings the state of all ranks
# in line with that of rank 0.
@hvd.elastic.run
def train(state):
    # 2. What depends on the number of ranks is made here: the share of the data and the learning rate.
    data = TensorDataset(train_images, train_labels)
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)
    for group in state.optimizer.param_groups:
        group["lr"] = options.lr * hvd.size()
    while state.epoch < options.epochs:
        sampler.set_epoch(state.epoch)
        for batch, expected in loader:
            state.optimizer.zero_grad()
            loss = F.cross_entropy(state.model(batch.to(device)), expected.to(device))
            loss.backward()
            state.optimizer.step()
        state.epoch += 1
        # 3. After a change, training continues from the last commit, which is in the memory of every rank. A commit
        # takes a little time: choose how much work may be lost. A node joins, or leaves when it is drained, at a
        # commit.
        state.commit()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}/{options.epochs}: loss {loss.item():.4f}, {hvd.size()} ranks", flush=True)


# 4. What is committed: the model, the optimizer, and how far the training is.
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)
train(state)

if hvd.rank() == 0:
    with torch.no_grad():
        right = model(test_images.to(device)).argmax(1) == test_labels.to(device)
    accuracy = right.float().mean().item()
    print(f"test accuracy {accuracy:.4f} after {state.epoch} epochs", flush=True)
    if options.target_accuracy and accuracy < options.target_accuracy:
        sys.exit(f"accuracy {accuracy:.4f} is below the target of {options.target_accuracy}")
