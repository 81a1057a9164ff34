"""Rows of packing.py: every conversation starts aligned, is whole, and ends with the end token."""

import os
import random
import sys
import unittest

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import conversations  # noqa: E402
import packing  # noqa: E402
import tokenizer as TK  # noqa: E402

TOK = TK.Tokenizer(os.path.join(HERE, "..", "tok", "tokenizer.json"))


class Rows(unittest.TestCase):
    def check(self, length, rows, seed):
        ids, kinds, start = packing.Packer(TOK, seed, length).batch(rows)
        for i, k, s in zip(ids, kinds, start):
            for first in np.unique(s):
                self.assertEqual(first % packing.ALIGN, 0)
                here = np.nonzero(s == first)[0]
                text = i[here][i[here] != 2]
                if len(text) == 0:
                    continue                                     # the padding after the last conversation
                self.assertEqual((text[0], text[-1]), (0, 1), "BOS .. EOS")
                self.assertEqual(k[first], 0, "nothing predicts BOS")
            self.assertEqual(set(k[i == 2]) - {0}, set(), "padding has no weight")

    def test_short(self):
        self.check(1024, 60, 3)

    def test_ids_are_those_of_the_whole_text(self):
        rng = random.Random(5)
        for _ in range(600):
            segs, _ = conversations.conversation(rng)
            ids, kinds = packing.tokenize(TOK, segs, 2)
            self.assertEqual(ids, TOK.encode("".join(text for text, _ in segs)))
            self.assertEqual(len(ids), len(kinds))

    def test_long(self):
        self.check(8192, 30, 4)


if __name__ == "__main__":
    unittest.main()
