"""Conversations -> training rows: token ids, what each token is, and where its conversation starts."""

import itertools
import random

import numpy as np

import conversations as C

# what a token is: padding, prompt, or output of a task; "long" is recall in long rows
KINDS = ["padding", "prompt", "chat", "math", "tools", "recall", "story", "memory", "json", "long"]
# loss weight of a kind: tasks with few output tokens that all matter weigh more, stories with much free choice less
WEIGHTS = [0.0, 0.05, 1.0, 1.0, 2.0, 3.0, 0.4, 3.0, 2.0, 3.0]
FIRST_OUTPUT = 2
ALIGN = 8                 # conversations start at multiples of this: groups and candidate blocks never straddle two


def tokenize(tok, segs, kind):
    """ids and kinds of one conversation: the ids a server finds for the whole text. Neighbours of one sort are joined
    before they are encoded, because a token may span the line break between two tool results."""
    ids, kinds = [], []
    for output, group in itertools.groupby(segs, lambda s: s[1]):
        t = tok.encode("".join(text for text, _ in group))
        ids += t
        kinds += [kind if output else 1] * len(t)
    return ids, kinds


class Packer:
    """Fills rows of T tokens. Rows longer than 4,096 hold long recall only, four in five of them one text each."""

    def __init__(self, tok, seed, T):
        self.tok, self.rng, self.T, self.waiting = tok, random.Random(seed), T, []
        self.long = T > 4096

    def draw(self, room):
        """A conversation; in long rows one whose text has about `room` tokens or a random smaller length."""
        if not self.long:
            segs, info = C.conversation(self.rng)
            return tokenize(self.tok, segs, KINDS.index(info["task"]))
        full = self.rng.random() < 0.5
        budget = int(room * (0.88 if full else self.rng.uniform(0.1, 0.88)))
        segs, _ = C.conversation(self.rng, task="recall", budget=budget)
        return tokenize(self.tok, segs, KINDS.index("long"))

    def row(self):
        """ids [T] i16, kinds [T] u8, start [T] i16 (row index of the first token of the token's conversation)."""
        T = self.T
        ids, kinds, st = np.full(T, 2, np.int16), np.zeros(T, np.uint8), np.zeros(T, np.int16)
        at, tries = 0, 0
        while at < T - (512 if self.long else 32) and tries < 6:
            doc = next((d for d in self.waiting if len(d[0]) <= T - at), None)
            if doc is not None:
                self.waiting.remove(doc)
            else:
                doc = self.draw(T - at)
                if len(doc[0]) > T - at:
                    if len(doc[0]) <= T and len(self.waiting) < 16:
                        self.waiting.append(doc)
                    tries += 1
                    continue
            n = len(doc[0])
            ids[at : at + n], kinds[at : at + n], st[at:] = doc[0], doc[1], at
            kinds[at] = 0                                   # nothing predicts BOS
            at = -(-(at + n) // ALIGN) * ALIGN
        if at < T:
            st[at:] = at
        return ids, kinds, st

    def batch(self, rows):
        return tuple(np.stack(x) for x in zip(*(self.row() for _ in range(rows))))
