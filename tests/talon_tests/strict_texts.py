"""A look-up that goes on from no text and no tree that it was not told of, as drafters that keep something of each."""

import attrs

from talon_core import Drafter
from talon_drafters import Ngram


class Strict(Drafter):
    """Another drafter, which knows the slots that are open, and what it was shown of their trees."""

    uses_target = False

    def __init__(self, drafter):
        self.drafter = drafter
        self.max_depth = drafter.max_depth
        self.opened = set()
        self.trees = {}

    def open(self, slot, prompt, room):
        self.opened.add(slot)
        self.drafter.open(slot, prompt, room)

    def resume(self, slot, prompt, room, source, length):
        if source not in self.opened:
            raise KeyError(source)
        self.opened.add(slot)
        return self.drafter.resume(slot, prompt, room, source, length)

    def read(self, parts):
        assert self.opened >= {*parts}
        self.drafter.read(parts)

    def close(self, slot):
        self.opened.remove(slot)
        self.drafter.close(slot)

    def propose(self, frontiers):
        for one in frontiers:
            before, tree = self.trees.get(one.slot), one.tree
            if before is not None and len(tree) > 1:
                assert tree.tokens[: len(before)].tolist() == before.tokens.tolist()
                assert tree.parents[: len(before)].tolist() == before.parents.tolist()
            self.trees[one.slot] = tree
        return self.drafter.propose(frontiers)

    def commit(self, committed):
        for slot, one in committed.items():
            tree = self.trees.pop(slot, None)
            drafted = [int(node) for node in one.nodes[1:] if tree is not None and node < len(tree)]
            assert [tree.tokens[node] for node in drafted] == one.tokens[: len(drafted)].tolist()
            assert [tree.parents[node] for node in drafted] == one.nodes[: len(drafted)].tolist()
        self.drafter.commit(committed)


@attrs.frozen
class StrictNgram(Ngram):
    name = "strict-ngram"
    reads_texts = True

    def open(self, target):
        return Strict(super().open(target))
