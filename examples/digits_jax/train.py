"""Handwritten digits, trained by several processes at once with JAX.

The data are the 1,797 real 8 x 8 images of the UCI digits, in digits.csv: nothing is downloaded.
Every process (rank) runs this same file. The numbered comments are what makes an ordinary program a distributed one.
"""
import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

parser = argparse.ArgumentParser(description="Train a digit classifier with JAX.")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=16, help="images per step and rank")
parser.add_argument("--lr", type=float, default=0.3, help="learning rate")
parser.add_argument("--target-accuracy", type=float, metavar="A", help="exit 1 if the final accuracy is below")
options = parser.parse_args()

# 1. Find the other ranks, and take the GPU of this one. JAX itself reads none but the address from the environment.
jax.distributed.initialize(
    os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"]),
    local_device_ids=int(os.environ["LOCAL_RANK"]))
rank, size = jax.process_index(), jax.process_count()

# 2. One device of each rank is a place of the axis "data": batches are divided along it, everything else is the same
# everywhere.
mesh = jax.make_mesh((size,), ("data",))
divided, same = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

rows = np.loadtxt("digits.csv", delimiter=",", dtype="float32")
rows = rows[np.random.RandomState(0).permutation(len(rows))]
images, labels = rows[:, :64] / 16, rows[:, 64].astype("int64")
train_images, test_images, train_labels, test_labels = images[360:], images[:360], labels[360:], labels[:360]


def layer(key, inputs, outputs):
    return {"weights": jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5, "bias": jnp.zeros(outputs)}


def predict(model, batch):
    hidden = jax.nn.relu(batch @ model[0]["weights"] + model[0]["bias"])
    return hidden @ model[1]["weights"] + model[1]["bias"]


def loss_of(model, batch, expected):
    return -jnp.take_along_axis(jax.nn.log_softmax(predict(model, batch)), expected[:, None], axis=1).mean()


# 3. The batch of a step is that of all ranks together, so its mean loss, and with it the gradient, is that of all
# ranks. JAX sees that every rank has another part of it and adds the all-reduce.
@jax.jit
def step(model, batch, expected):
    loss, gradient = jax.value_and_grad(loss_of)(model, batch, expected)
    return jax.tree.map(lambda value, slope: value - options.lr * slope, model, gradient), loss


# All ranks begin with the same model, because they have the same key.
keys = jax.random.split(jax.random.key(1))
model = jax.device_put([layer(keys[0], 64, 128), layer(keys[1], 128, 10)], same)

# 4. Every rank reads another part of the data. All make as many steps.
per_rank = len(train_images) // size
for epoch in range(options.epochs):
    order = np.random.default_rng(epoch).permutation(len(train_images))[rank * per_rank:(rank + 1) * per_rank]
    for start in range(0, per_rank - options.batch_size + 1, options.batch_size):
        mine = order[start:start + options.batch_size]
        batch = jax.make_array_from_process_local_data(divided, train_images[mine])
        expected = jax.make_array_from_process_local_data(divided, train_labels[mine])
        model, loss = step(model, batch, expected)
    if rank == 0:
        print(f"epoch {epoch + 1}/{options.epochs}: loss {loss:.4f}", flush=True)

# 5. Every rank has the same model: each tests it on its own, and only rank 0 writes.
model = jax.tree.map(np.asarray, model)
accuracy = float((predict(model, test_images).argmax(1) == test_labels).mean())
if rank == 0:
    np.savez("model.npz", *jax.tree.leaves(model))
    print(f"accuracy: {accuracy:.4f} with {size} ranks", flush=True)
if options.target_accuracy and accuracy < options.target_accuracy:
    raise SystemExit(1)
