"""How many images of each step a rank gets."""


def shares(total, speeds):
    """Splits `total` images over ranks in proportion to their speeds. Every rank gets at least one, if there are
    enough."""
    least = min(1, total // len(speeds))
    rest = total - least * len(speeds)
    # what is left after the least share of everyone, so that each has as close to its proportion as whole images allow
    wanted = [max(0.0, total * speed / sum(speeds) - least) for speed in speeds]
    exact = [rest * part / (sum(wanted) or 1) for part in wanted]
    counts = [int(part) for part in exact]
    # the largest fractions get the images that rounding down has left; the lower rank, if two are equal
    order = sorted(range(len(speeds)), key=lambda rank: (counts[rank] - exact[rank], rank))
    for rank in order[: rest - sum(counts)]:
        counts[rank] += 1
    return [least + count for count in counts]


def part(images, rank, speeds):
    """Returns the images of a step that a rank gets; the parts of all ranks are the whole."""
    counts = shares(len(images), speeds)
    begin = sum(counts[:rank])
    return images[begin : begin + counts[rank]]
