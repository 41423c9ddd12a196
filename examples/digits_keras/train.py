"""Handwritten digits, trained by several processes at once with Horovod and Keras (TensorFlow 2).

The data are the 1,797 real 8 x 8 images of the UCI digits, in digits.csv: nothing is downloaded.
Every process (rank) runs this file. The numbered comments show what turns an ordinary program into a Horovod one.
"""
import argparse
import io
import os
import socket
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: hides TensorFlow's start-up messages

import h5py
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import broadcast_object
from tensorflow.keras import layers


def arguments():
    parser = argparse.ArgumentParser(description="Train a digit classifier with Horovod and Keras.")
    parser.add_argument("--epochs", type=int, default=15, help="total number of epochs, including resumed ones")
    parser.add_argument("--batch-size", type=int, default=16, help="images per step and rank")
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", default="checkpoint.h5", metavar="PATH", help="written after every epoch")
    parser.add_argument("--fresh", action="store_true", help="start from the beginning even if there is a checkpoint")
    parser.add_argument("--target-accuracy", type=float, metavar="A", help="exit 1 if the final accuracy is below")
    return parser.parse_args()


def digits():
    rows = np.loadtxt("digits.csv", delimiter=",", dtype="float32")  # a row is 64 pixels and the digit
    # The split has its own seed, not --seed: a resumed job must never train on its test images.
    rows = rows[np.random.RandomState(0).permutation(len(rows))]
    images, labels = (rows[:, :64] / 16).reshape(-1, 8, 8, 1), rows[:, 64].astype("int64")
    return images[360:], images[:360], labels[360:], labels[:360]


class Share(tf.keras.utils.Sequence):
    """The batches of one rank. Every epoch has its own order, the same on all ranks; each rank takes its part of it."""

    def __init__(self, images, labels, batch_size, seed, epoch):
        self.images, self.labels, self.batch_size, self.seed, self.epoch = images, labels, batch_size, seed, epoch
        self.deal()

    def deal(self):
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.images))
        # Padded to equal parts: if a rank had one step less, the others would wait for its gradients.
        order = np.resize(order, -(-len(order) // hvd.size()) * hvd.size())
        self.mine = order[hvd.rank()::hvd.size()]

    def __len__(self):
        return -(-len(self.mine) // self.batch_size)

    def __getitem__(self, step):
        chosen = self.mine[step * self.batch_size:(step + 1) * self.batch_size]
        return self.images[chosen], self.labels[chosen]

    def on_epoch_end(self):
        self.epoch += 1
        self.deal()


def network():
    return tf.keras.Sequential([
        layers.Conv2D(32, 3, padding="same", activation="relu", input_shape=(8, 8, 1)), layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10),
    ])


def save(path, epoch, model):
    """Writes a temporary file and renames it: whenever the program dies, `path` is a complete checkpoint."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with h5py.File(path + ".tmp", "w") as file:
        model.save(file, save_format="h5")  # the weights and the optimizer's state
        file.attrs["epoch"] = epoch
    os.replace(path + ".tmp", path)


def evaluate(model, images, labels):
    # Every rank tests each size-th image, and the counts are summed: exact even if the images do not divide evenly.
    mine = slice(hvd.rank(), None, hvd.size())
    correct = (model.predict_on_batch(images[mine]).argmax(1) == labels[mine]).sum()
    return int(hvd.allreduce(correct, name="correct", op=hvd.Sum)) / len(labels)


class Report(tf.keras.callbacks.Callback):
    """Tests the model, prints the result and writes the checkpoint after each epoch."""

    def __init__(self, images, labels, args):
        super().__init__()
        self.images, self.labels, self.args = images, labels, args

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        accuracy = evaluate(self.model, self.images, self.labels)  # on all ranks: it contains an allreduce
        # 8. Only rank 0 prints and writes; otherwise N ranks would write the same file at the same time.
        if hvd.rank() == 0:
            done, loss, seconds = epoch + 1, logs["loss"], time.monotonic() - self.started
            of = self.args.epochs
            print(f"epoch {done}/{of}: loss {loss:.4f}, accuracy {accuracy:.4f}, {seconds:.1f} s", flush=True)
            save(self.args.checkpoint, done, self.model)


def main():
    args = arguments()

    tf.get_logger().setLevel("ERROR")  # otherwise each rank warns that Horovod's broadcast slows the first step

    # 1. Start Horovod: from here on, each process knows its rank and the number of ranks.
    hvd.init()
    first = hvd.rank() == 0

    # 2. One GPU per rank: the n-th rank of a machine takes that machine's n-th GPU, and only the memory it needs.
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
        tf.config.experimental.set_memory_growth(gpus[hvd.local_rank()], True)
    # The ranks of a machine share its cores, and a network this small gains nothing from a second core.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    device = f"gpu:{hvd.local_rank()}" if gpus else "cpu"
    print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}, device {device}", flush=True)

    tf.keras.utils.set_random_seed(args.seed)
    train_images, test_images, train_labels, test_labels = digits()
    lr = args.lr * hvd.size()

    # 3. Only rank 0 reads the checkpoint (other machines need not have the file) and broadcasts it.
    saved = None
    if first and not args.fresh and os.path.exists(args.checkpoint):
        with open(args.checkpoint, "rb") as file:
            saved = file.read()
    saved = broadcast_object(saved, root_rank=0, name="checkpoint")

    if saved:
        with h5py.File(io.BytesIO(saved), "r") as file:
            model = hvd.load_model(file)  # Keras's own load_model would lose Horovod's part of the optimizer
            done = int(file.attrs["epoch"])
        model.optimizer.learning_rate = lr  # the number of ranks may have changed since
        if first:
            print(f"resumed from {args.checkpoint} after epoch {done}", flush=True)
    else:
        # 4. N ranks process N batches per step, so the learning rate is N times as large.
        optimizer = tf.keras.optimizers.Adam(learning_rate=lr)
        # 5. This optimizer averages the gradients over all ranks before it applies them.
        optimizer = hvd.DistributedOptimizer(optimizer)
        model = network()
        model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        done = 0

    callbacks = [
        # 6. All ranks continue with the state of rank 0 after its first step.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # 7. A rank knows only its own part of the data: the loss is averaged over all ranks before it is printed.
        hvd.callbacks.MetricAverageCallback(),
        Report(test_images, test_labels, args),
    ]
    share = Share(train_images, train_labels, args.batch_size, args.seed, epoch=done)
    model.fit(share, initial_epoch=done, epochs=args.epochs, shuffle=False, callbacks=callbacks, verbose=0)

    accuracy = evaluate(model, test_images, test_labels)
    if first:
        print(f"test accuracy {accuracy:.4f} after {max(done, args.epochs)} epochs", flush=True)
        if args.target_accuracy is not None and accuracy < args.target_accuracy:
            sys.exit(f"accuracy {accuracy:.4f} is below the target of {args.target_accuracy}")


if __name__ == "__main__":
    main()
