"""Learns from the episodes that the generators play, by REINFORCE.

hvdctl tells each rank where the ranks of all roles are: HVDCTL_ROLE_GENERATOR_HTTP has an address with a port for each
generator.
"""
import argparse
import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy
import walk

parser = argparse.ArgumentParser(description="Train a policy with the help of generators.")
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--episodes", type=int, default=40, help="of each generator in a round")
parser.add_argument("--lr", type=float, default=0.5, help="learning rate")
parser.add_argument("--target", type=float, default=0.8, help="exit 1 if the last round is worth less")
options = parser.parse_args()

# 1. Find the generators.
generators = os.environ["HVDCTL_ROLE_GENERATOR_HTTP"].split(",")
# requests stay in the cluster, whatever proxy the environment names
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def play(address, weights, patience=60):
    """Asks a generator for episodes. One that has failed is started again under the same address."""
    request = json.dumps({"weights": weights.tolist(), "episodes": options.episodes}).encode()
    until = time.monotonic() + patience
    while True:
        try:
            with opener.open(f"http://{address}/", request, timeout=patience) as answer:
                return json.loads(answer.read())["episodes"]
        except OSError as error:
            if time.monotonic() > until:
                raise SystemExit(f"{address} does not answer: {error}")
            time.sleep(0.5)


weights = numpy.zeros((walk.PLACES, 2))
with ThreadPoolExecutor(len(generators)) as pool:
    for number in range(options.rounds):
        # 2. All generators play at the same time, with the same weights.
        played = pool.map(lambda address: play(address, weights), generators)
        episodes = [episode for of_one in played for episode in of_one]
        values = numpy.array([value for _, value in episodes])
        # 3. Steps of walks that were worth more than the average become more likely.
        gradient = numpy.zeros_like(weights)
        for (steps, _), advantage in zip(episodes, values - values.mean()):
            for place, direction in steps:
                right = 1 / (1 + numpy.exp(weights[place][0] - weights[place][1]))
                gradient[place] += advantage * (numpy.eye(2)[direction] - [1 - right, right])
        weights += options.lr * gradient / len(episodes)
        print(f"round {number + 1}/{options.rounds}: {len(episodes)} episodes, worth {values.mean():.2f}", flush=True)

with open("weights.json", "w") as file:
    json.dump(weights.tolist(), file)
# 4. The end of the trainer ends the job: hvdctl asks the generators to end.
raise SystemExit(0 if values.mean() >= options.target else 1)
