"""What examples decide without any framework."""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../examples/digits_unequal"))
sys.dont_write_bytecode = True

from shares import part, shares  # noqa: E402


class Shares(unittest.TestCase):
    def test_a_rank_gets_as_much_as_its_speed_allows(self):
        self.assertEqual(shares(32, [1, 1]), [16, 16])
        self.assertEqual(shares(32, [1, 0.5]), [21, 11])
        self.assertEqual(shares(64, [1, 0.5, 0.5, 2]), [16, 8, 8, 32])
        self.assertEqual(shares(3, [1, 1]), [2, 1])

    def test_no_rank_is_without_any_if_there_are_enough(self):
        self.assertEqual(shares(8, [1, 1, 0.001]), [4, 3, 1])
        self.assertEqual(shares(1, [0.5, 1]), [0, 1])
        self.assertEqual(shares(0, [0.5, 1]), [0, 0])

    def test_all_parts_are_the_whole_step(self):
        for speeds in [[1], [1, 1, 1], [0.01, 1], [0.37, 1, 0.9, 0.5, 0.77], [1] * 7 + [0.01]]:
            for total in range(70):
                counts = shares(total, speeds)
                self.assertEqual(sum(counts), total, (total, speeds))
                self.assertTrue(min(counts) >= min(1, total // len(speeds)), counts)
                step = list(range(total))
                parts = [part(step, rank, speeds) for rank in range(len(speeds))]
                self.assertEqual([image for own in parts for image in own], step)
                for count, speed in zip(counts, speeds):
                    exact = total * speed / sum(speeds)
                    self.assertTrue(abs(count - exact) < 1 + len(speeds) / 2, (counts, exact))


if __name__ == "__main__":
    unittest.main()
