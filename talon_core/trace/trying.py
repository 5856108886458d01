"""Methods on some texts of a trace: on all of them at once where it can be done, else on one after the other."""

from collections.abc import Callable, Collection, Sequence

import attrs

from talon_core.policy import TreePolicy
from talon_core.trace.columns import TextTrace
from talon_core.trace.replay import Method, Replay, Replayed, Totals
from talon_core.trace.several import SeveralTexts
from talon_core.trace.together import together

FEWEST = 12
"""Texts that go side by side at least, see `together`: fewer take no longer one by one."""


@attrs.frozen
class Done:
    """What a method did on a text.

    Attributes:
        totals: in numbers.
        deepest: the deepest node that was drafted.
    """

    totals: Totals
    deepest: int

    @classmethod
    def of(cls, replayed: Replayed) -> "Done":
        """By its rounds."""
        trees = (one.tree if one.drafted is None else one.drafted for one in replayed.rounds)
        return cls(Totals.of(replayed), max(int(tree.depths.max()) for tree in trees))


class Trying:
    """Tries methods on some texts, on all of them at once where it can be done.

    A policy's own time can be taken on one text after the other alone. Where the replay adds it and a method could be
    tried on all texts at once, it is taken on some of them; see `talon_core.trace.own_time` for the others.

    Args:
        replay: of the trace.
        texts: of the trace.
        timed: the places of those of the texts on which the time is taken; None for all, which are then tried one
            after the other.
    """

    def __init__(self, replay: Replay, texts: Sequence[TextTrace], timed: Collection[int] | None = None) -> None:
        self._replay, self._texts = replay, texts
        self._timed = range(len(texts)) if timed is None else timed
        recorded = bool(texts) and all(text.rows is not None for text in texts)
        several = recorded and not (replay.adds_own_time and len(self._timed) == len(texts))
        self._several = SeveralTexts(texts) if several else None

    def done(self, method: Method, policy: Callable[[], TreePolicy | None] | None = None) -> list[Done]:
        """What a method did, text by text.

        Args:
            method: has passed `Replay.check`.
            policy: makes one equal to the method's for each text that is tried by itself; by default there is one for
                all, as while one decodes.

        Raises:
            PluginError: if a plugin breaks its contract; the message names it.
            ValueError: if a text was changed since it was recorded.
        """

        def alone(text: TextTrace) -> Replayed:
            return self._replay.text(method if policy is None else attrs.evolve(method, policy=policy()), text)

        grown = None if self._several is None else together(self._replay, method, self._several, FEWEST)
        if grown is None:
            return [Done.of(alone(text)) for text in self._texts]
        found = [Done(*each) for each in zip(grown.totals(), grown.deepest(), strict=True)]
        for place in self._timed if self._replay.adds_own_time else ():
            taken = alone(self._texts[place]).policy_seconds
            assert taken is not None
            totals = attrs.evolve(found[place].totals.taking(taken), timed_texts=1)
            found[place] = attrs.evolve(found[place], totals=totals)
        return found
