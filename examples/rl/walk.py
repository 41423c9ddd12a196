"""A walk on a line: it begins in the middle, the right end is worth 1, the left end -1, and each step costs a little.

A policy is a table with a preference for each place and direction. It has to learn to walk to the right.
"""
import numpy

PLACES, MOST_STEPS = 11, 60


def choose(weights, place, random):
    """Returns a direction, 0 (left) or 1 (right), by the preferences at a place."""
    preference = numpy.exp(weights[place] - weights[place].max())
    return int(random.random() < preference[1] / preference.sum())


def episode(weights, random):
    """Returns the places and directions of one walk, and what it was worth."""
    place, steps = PLACES // 2, []
    while 0 < place < PLACES - 1 and len(steps) < MOST_STEPS:
        direction = choose(weights, place, random)
        steps.append((place, direction))
        place += 1 if direction else -1
    end = {PLACES - 1: 1.0, 0: -1.0}.get(place, 0.0)
    return steps, end - 0.01 * len(steps)
