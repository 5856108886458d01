"""A drafter whose laws depend on the whole text and nothing else, so that what is prepared is what it says later."""

import numpy as np

from talon_core import Candidates, Drafter, Proposed
from talon_core.candidates import LawRows
from talon_core.table import path_number


class WholeTexts(Drafter):
    """Its law after a text is a row of a table, which one hangs on every token.

    Args:
        laws: shape `(tables, vocab)`.
        max_depth: as every drafter's.
        takes_paths: likewise.

    Attributes:
        calls: the slots and nodes of each call of `propose`.
    """

    def __init__(self, laws, max_depth=None, takes_paths=False):
        self.laws = np.asarray(laws, dtype=np.float64)
        self.max_depth, self.takes_paths = max_depth, takes_paths
        self.calls = []
        self.texts = {}
        self.asked = {}

    def open(self, slot, prompt, room):
        self.texts[slot] = prompt.tolist()
        self.asked[slot] = set()

    def commit(self, committed):
        for slot, one in committed.items():
            assert set(one.nodes.tolist()[:-1]) <= self.asked[slot]
            self.texts[slot] += one.tokens.tolist()
            self.asked[slot] = set()

    def close(self, slot):
        del self.texts[slot]

    def propose(self, frontiers):
        self.calls.append([(one.slot, one.nodes.tolist()) for one in frontiers])
        return Proposed([self.offer(one) for one in frontiers], 1)

    def offer(self, one):
        nodes, asked = one.nodes.tolist(), self.asked[one.slot]
        assert asked.isdisjoint(nodes)
        for place, parent in enumerate(one.tree.parents[one.nodes].tolist()):
            assert parent < 0 or parent in asked or (self.takes_paths and parent in nodes[:place])
        assert one.tree.tokens[0] == self.texts[one.slot][-1]
        asked.update(nodes)
        rows = []
        for node in nodes:
            path = one.tree.tokens[one.tree.path(node)[1:]].tolist()
            rows.append(path_number([*self.texts[one.slot], *path]) % len(self.laws))
        laws = self.laws[rows]
        best = np.argsort(-laws, axis=1, kind="stable")[:, : one.width]
        probs = np.take_along_axis(laws, best, axis=1)
        with np.errstate(divide="ignore"):
            logp = np.log(probs)
        tokens = np.where(probs > 0, best, -1)
        return Candidates(one.nodes, tokens, logp, one.tree.path_logp[one.nodes][:, None] + logp, LawRows(laws))
