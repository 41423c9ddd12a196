"""Handwritten digits, trained by several processes at once with TensorFlow alone (tf.distribute).

The data are the 1,797 real 8 x 8 images of the UCI digits, in digits.csv: nothing is downloaded.
Every process (rank) runs this same file. The numbered comments are what makes an ordinary program a distributed one.
"""
import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: TensorFlow's start-up notes, once per rank

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

parser = argparse.ArgumentParser(description="Train a digit classifier with tf.distribute.")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--batch-size", type=int, default=16, help="images per step and rank")
parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one rank")
parser.add_argument("--target-accuracy", type=float, metavar="A", help="exit 1 if the final accuracy is below")
options = parser.parse_args()

# 1. Take the GPU of this rank, if there are any.
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[int(os.environ["LOCAL_RANK"])], "GPU")

# 2. Find the other ranks. Who and where they are stands in the environment (TF_CONFIG). This comes before any other
# operation.
strategy = tf.distribute.MultiWorkerMirroredStrategy()
size = strategy.num_replicas_in_sync
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if size > 1 else 0

rows = np.loadtxt("digits.csv", delimiter=",", dtype="float32")
rows = rows[np.random.RandomState(0).permutation(len(rows))]
images, labels = (rows[:, :64] / 16).reshape(-1, 8, 8, 1), rows[:, 64].astype("int64")
train_images, test_images, train_labels, test_labels = images[360:], images[:360], labels[360:], labels[:360]

# 3. Every rank reads another part of the data: the strategy splits the batches of all, which are `size` times as large.
sharding = tf.data.Options()
sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
train = tf.data.Dataset.from_tensor_slices((train_images, train_labels)).shuffle(len(train_images), seed=1)
train = train.batch(options.batch_size * size).with_options(sharding)
test = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(len(test_images)).with_options(sharding)

# 4. After each step all ranks average their gradients, because model and optimizer are made under the strategy.
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([
        layers.Conv2D(32, 3, padding="same", activation="relu", input_shape=(8, 8, 1)), layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10),
    ])
    model.compile(tf.keras.optimizers.Adam(options.lr * size), metrics=["accuracy"],
                  loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

history = model.fit(train, epochs=options.epochs, verbose=0)
_, accuracy = model.evaluate(test, verbose=0)  # on all ranks: each tests a part

# 5. One rank writes; all have the same model.
if rank == 0:
    model.save_weights("model.h5")
    print(f"accuracy: {accuracy:.4f} with {size} ranks, loss {history.history['loss'][-1]:.4f}", flush=True)
if options.target_accuracy and accuracy < options.target_accuracy:
    raise SystemExit(1)
