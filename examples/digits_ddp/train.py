"""Handwritten digits, trained by several processes at once with PyTorch alone (DistributedDataParallel).

The data are the 1,797 real 8 x 8 images of the UCI digits, in digits.csv: nothing is downloaded.
Every process (rank) runs this file. The numbered comments show what turns an ordinary program into a distributed one.
"""
import argparse
import os

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="Train a digit classifier with PyTorch DDP.")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--batch-size", type=int, default=16, help="images per step and rank")
parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
parser.add_argument("--target-accuracy", type=float, metavar="A", help="exit 1 if the final accuracy is below")
options = parser.parse_args()

# 1. Connect to the other ranks. The environment says who and where they are (RANK, WORLD_SIZE, MASTER_ADDR, ...).
on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()

# The ranks of a machine share its cores, and a network this small gains nothing from a second core.
torch.set_num_threads(1)

# 2. Use the GPU of this rank, if the machine has GPUs.
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")

rows = numpy.loadtxt("digits.csv", delimiter=",", dtype="float32")
rows = torch.from_numpy(rows[numpy.random.RandomState(0).permutation(len(rows))])
images, labels = (rows[:, :64] / 16).reshape(-1, 1, 8, 8), rows[:, 64].long()
train_images, test_images, train_labels, test_labels = images[360:], images[:360], labels[360:], labels[:360]
train = TensorDataset(train_images, train_labels)

# 3. Every rank trains on its own part of the data.
sampler = DistributedSampler(train, num_replicas=size, rank=rank, seed=1)
loader = DataLoader(train, batch_size=options.batch_size, sampler=sampler)

torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * 2 * 2, 64), nn.ReLU(), nn.Linear(64, 10),
).to(device)

# 4. After each step all ranks average their gradients, so all models stay the same.
model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
optimizer = torch.optim.Adam(model.parameters(), lr=options.lr * size)

# 5. Continue from this job's checkpoint after a failure (--restarts), or after a node has left or joined (-np MIN:MAX).
job = os.environ.get("HVDCTL_JOB")
saved = torch.load("checkpoint.pt", map_location=device) if rank == 0 and os.path.exists("checkpoint.pt") else None
saved = [saved if saved and saved["job"] == job else None]
dist.broadcast_object_list(saved, device=device)
done = 0
if saved[0]:
    done = saved[0]["epoch"]
    model.load_state_dict(saved[0]["model"])
    optimizer.load_state_dict(saved[0]["optimizer"])
    optimizer.param_groups[0]["lr"] = options.lr * size  # there may be another number of ranks

for epoch in range(done, options.epochs):
    sampler.set_epoch(epoch)  # a new order in each epoch
    for batch, expected in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.to(device)), expected.to(device))
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch + 1}/{options.epochs}: loss {loss.item():.4f}", flush=True)
        checkpoint = {"job": job, "epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(checkpoint, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pt")  # a whole file or none, whenever the node dies

# 6. Only rank 0 tests and writes, because all ranks have the same model.
accuracy = torch.zeros(1, device=device)
if rank == 0:
    with torch.no_grad():
        right = model.module(test_images.to(device)).argmax(1) == test_labels.to(device)
    accuracy[0] = right.float().mean()
    torch.save(model.module.state_dict(), "model.pt")
    print(f"accuracy: {accuracy.item():.4f} with {size} ranks", flush=True)
dist.broadcast(accuracy, 0)
dist.destroy_process_group()
if options.target_accuracy and accuracy.item() < options.target_accuracy:
    raise SystemExit(1)
