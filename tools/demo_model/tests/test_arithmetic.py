"""The worked steps of arithmetic.py against Python's own arithmetic. Run: python3 -m unittest discover -s tests"""

import os
import random
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import arithmetic as A  # noqa: E402


class Steps(unittest.TestCase):
    def test_every_equation_holds_and_the_last_number_is_the_result(self):
        rng = random.Random(1)
        cases = [(17, 23, "*"), (99, 99, "*"), (50, 70, "*"), (11, 10, "*"), (1000, 1, "-"), (999, 999, "+"), (5, 5, "-")]
        cases += [(rng.randint(1, 99), rng.randint(1, 99), "*") for _ in range(2000)]
        for a, b, sym in cases:
            text = A.steps(a, b, sym)
            want = {"*": a * b, "+": a + b, "-": a - b}[sym]
            self.assertEqual(int(re.findall(r"\d+", text)[-1]), want, text)
            for left, right, note in re.findall(r"(\d+(?: [*+-] \d+)+) = (\d+)( borrow)?", text):
                self.assertEqual(eval(left), int(right), text)

    def test_held_out_pairs_never_train(self):
        rng = random.Random(2)
        for _ in range(3000):
            a, b = A.numbers(rng, "mul", "train")
            self.assertFalse(A.held_out(a, b))
        self.assertTrue(A.held_out(17, 23) and A.held_out(23, 17))


if __name__ == "__main__":
    unittest.main()
