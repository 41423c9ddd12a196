"""Batch inference: each rank labels its share of a file, without any exchange between ranks.

The model is the mean image of each digit, which is enough to show the pattern. A real one would be loaded from a file.
"""
import argparse
import json
import os

import numpy

parser = argparse.ArgumentParser(description="Label the images of a file.")
parser.add_argument("file")
options = parser.parse_args()

# 1. The environment says which rank this is, and of how many.
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
output = f"labels/part-{rank:05d}-of-{size:05d}.jsonl"

# 2. A share that was finished before a failure is not done again (--restarts). Another job begins anew.
job = os.environ["HVDCTL_JOB"]
os.makedirs("labels", exist_ok=True)
if os.path.exists(output):
    with open(output) as file:
        if json.loads(file.readline()).get("job") == job:
            print(f"{output} is there already", flush=True)
            raise SystemExit(0)

rows = numpy.loadtxt(options.file, delimiter=",", dtype="float32")
images, digits = rows[:, :64], rows[:, 64].astype(int)
known = numpy.arange(len(rows)) % 2 == 0
model = numpy.stack([images[known & (digits == digit)].mean(0) for digit in range(10)])

# 3. The share of this rank: every SIZE-th line, so that all shares have the same size.
right = 0
with open(output + ".new", "w") as file:
    file.write(json.dumps({"job": job, "rank": rank}) + "\n")
    for number in range(rank, len(rows), size):
        label = int(((model - images[number]) ** 2).sum(1).argmin())
        right += label == digits[number]
        file.write(json.dumps({"line": number + 1, "label": label}) + "\n")
os.replace(output + ".new", output)  # a whole share or none
count = len(range(rank, len(rows), size))
print(f"{count} images, {100 * right / count:.1f} % of them right: {output}", flush=True)
