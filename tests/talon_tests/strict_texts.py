"""A look-up that goes on from no text that it was not told of, as drafters do that keep something of each."""

import attrs

from talon_core import Drafter
from talon_drafters import Ngram


class Strict(Drafter):
    """Another drafter, which knows the slots that are open."""

    uses_target = False

    def __init__(self, drafter):
        self.drafter = drafter
        self.max_depth = drafter.max_depth
        self.opened = set()

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
        return self.drafter.propose(frontiers)

    def commit(self, committed):
        self.drafter.commit(committed)


@attrs.frozen
class StrictNgram(Ngram):
    name = "strict-ngram"
    reads_texts = True

    def open(self, target):
        return Strict(super().open(target))
