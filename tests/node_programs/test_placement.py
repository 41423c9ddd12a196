"""Unit tests of where the roles of a job are in an allocation of Slurm (slurm/placement.py)."""
import json
import os
import sys
import unittest

sys.dont_write_bytecode = True
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAMS = os.path.join(TESTS, "..", "src", "scripts", "programs")
sys.path[:0] = [os.path.join(PROGRAMS, "environment"), PROGRAMS, os.path.join(PROGRAMS, "slurm")]
import placement  # noqa: E402


def placed(nodes, roles):
    rooms = [{"node": "n%d" % number, "slots": slots, "gpus": gpus} for number, (slots, gpus) in enumerate(nodes)]
    described = [{"name": name, "shape": {"size": size, "gpus": gpus, "beside": beside}}
                 for name, size, gpus, beside in roles]
    return placement.place_roles(rooms, described), described


class Placement(unittest.TestCase):
    def test_roles_are_placed_as_without_slurm(self):
        with open(os.path.join(TESTS, "role_placement.json")) as file:
            rows = json.load(file)
        for row in rows:
            try:
                shares, _ = placed(row["nodes"], row["roles"])
                found = {"placed": ", ".join("%s %s" % (share["node"], " ".join(map(str, share["roles"])))
                                             for share in shares)}
            except placement.Lack as why:
                found = {"error": str(why)}
            self.assertEqual(found, {name: row[name] for name in ("placed", "error") if name in row}, row)

    def test_ranks_of_a_node_are_consecutive_role_by_role(self):
        nodes, roles = [(4, 4), (4, 4), (4, 4)], [["a", {"ranks": 4}, 1, None], ["b", {"ranks": 2}, 1, 0],
                                                  ["c", {"ranks": 2}, 2, None]]
        shares, described = placed(nodes, roles)
        self.assertEqual([(one["node"], one["ranks"], one["first"], one["roles"]) for one in shares],
                         [("n0", 4, 0, [3, 1, 0]), ("n1", 2, 4, [1, 1, 0]), ("n2", 2, 6, [0, 0, 2])])
        addresses = {"n0": "10.0.0.1", "n1": "10.0.0.2", "n2": "10.0.0.3"}
        self.assertEqual(placement.places(shares, 1, addresses), [
            {"node": "n0", "address": "10.0.0.1", "ranks": 1, "first": 3},
            {"node": "n1", "address": "10.0.0.2", "ranks": 1, "first": 5}])

        def on(number, gpus):
            found = placement.described([{"name": one["name"]} for one in described], described, shares,
                                             shares[number], gpus)
            return [(one["ranks"], one["first"], one["before"], one["offset"], one["devices"]) for one in found]

        self.assertEqual(on(0, 4), [(3, 0, 0, 0, [0, 3]), (1, 3, 0, 3, [3, 1]), (0, 4, 0, 4, [4, 0])])
        self.assertEqual(on(1, 4), [(1, 4, 3, 0, [0, 1]), (1, 5, 1, 1, [1, 1]), (0, 6, 0, 2, [2, 0])])
        self.assertEqual(on(2, None), [(0, 6, 4, 0, None), (0, 6, 2, 0, None), (2, 6, 0, 0, None)])


if __name__ == "__main__":
    unittest.main()
