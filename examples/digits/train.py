"""Handwritten digits, trained by several processes at once with Horovod and PyTorch.

The data are the 1,797 real 8 x 8 images of the UCI digits, in digits.csv: nothing is downloaded.
Every process (rank) runs this file. The numbered comments show what turns an ordinary program into a Horovod one.
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def arguments():
    parser = argparse.ArgumentParser(description="Train a digit classifier with Horovod and PyTorch.")
    parser.add_argument("--epochs", type=int, default=15, help="total number of epochs, including resumed ones")
    parser.add_argument("--batch-size", type=int, default=16, help="images per step and rank")
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", default="checkpoint.pt", metavar="PATH", help="written after every epoch")
    parser.add_argument("--fresh", action="store_true", help="start from the beginning even if there is a checkpoint")
    parser.add_argument("--target-accuracy", type=float, metavar="A", help="exit 1 if the final accuracy is below")
    return parser.parse_args()


def digits():
    rows = numpy.loadtxt("digits.csv", delimiter=",", dtype="float32")  # a row is 64 pixels and the digit
    # The split has its own seed, not --seed: a resumed job must never train on its test images.
    rows = torch.from_numpy(rows[numpy.random.RandomState(0).permutation(len(rows))])
    images, labels = (rows[:, :64] / 16).reshape(-1, 1, 8, 8), rows[:, 64].long()
    return TensorDataset(images[360:], labels[360:]), TensorDataset(images[:360], labels[:360])


def network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 2 * 2, 64), nn.ReLU(), nn.Linear(64, 10),
    )


def save(path, epoch, model, optimizer):
    """Writes a temporary file and renames it: whenever the program dies, `path` is a complete checkpoint."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + ".tmp", "wb") as file:
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def train_one_epoch(model, optimizer, loader, device):
    model.train()
    total = torch.zeros(())
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        total += loss.detach().cpu()
    # 8. A rank knows only its own part of the data: average over all ranks before printing.
    return hvd.allreduce(total / len(loader), op=hvd.Average, name="loss").item()


@torch.no_grad()
def evaluate(model, test, device):
    model.eval()
    # Every rank tests each size-th image, and the counts are summed: exact even if the images do not divide evenly.
    images, labels = test[hvd.rank()::hvd.size()]
    correct = (model(images.to(device)).argmax(1).cpu() == labels).sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / len(test)


def main():
    args = arguments()

    # 1. Start Horovod: from here on, each process knows its rank and the number of ranks.
    hvd.init()
    first = hvd.rank() == 0

    # 2. One GPU per rank: the n-th rank of a machine takes that machine's n-th GPU.
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
        device = torch.device("cuda", hvd.local_rank())
    else:
        device = torch.device("cpu")
    # The ranks of a machine share its cores, and a network this small gains nothing from a second core.
    torch.set_num_threads(1)
    print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}, device {device}", flush=True)

    # 3. Each rank trains on its own part of the data. Every epoch has a new order, the same on all ranks.
    torch.manual_seed(args.seed)
    train, test = digits()
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)

    # 4. N ranks process N batches per step, so the learning rate is N times as large.
    model = network().to(device)
    lr = args.lr * hvd.size()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    # 5. From here on, optimizer.step() averages the gradients over all ranks before it applies them.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # 6. Only rank 0 reads the checkpoint (other machines need not have the file) and broadcasts the epoch to continue
    # from.
    done = 0
    if first and not args.fresh and os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # after step 5, which starts with an empty state
        optimizer.param_groups[0]["lr"] = lr  # the number of ranks may have changed since
        done = saved["epoch"]
        print(f"resumed from {args.checkpoint} after epoch {done}", flush=True)
    done = hvd.broadcast(torch.tensor(done), root_rank=0, name="done").item()

    # 7. All ranks start with the state of rank 0, new or resumed.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    accuracy = evaluate(model, test, device)
    for epoch in range(done + 1, args.epochs + 1):
        started = time.monotonic()
        sampler.set_epoch(epoch)
        loss = train_one_epoch(model, optimizer, loader, device)
        accuracy = evaluate(model, test, device)
        done = epoch
        # 9. Only rank 0 prints and writes; otherwise N ranks would write the same file at the same time.
        if first:
            seconds = time.monotonic() - started
            print(f"epoch {epoch}/{args.epochs}: loss {loss:.4f}, accuracy {accuracy:.4f}, {seconds:.1f} s", flush=True)
            save(args.checkpoint, epoch, model, optimizer)

    if first:
        print(f"test accuracy {accuracy:.4f} after {done} epochs", flush=True)
        if args.target_accuracy is not None and accuracy < args.target_accuracy:
            sys.exit(f"accuracy {accuracy:.4f} is below the target of {args.target_accuracy}")


if __name__ == "__main__":
    main()
