"""Methods on some texts of a trace: on all of them at once where it can be done, else on one after the other."""

from collections.abc import Callable, Sequence

import attrs

from talon_core.policy import TreePolicy
from talon_core.trace.columns import TextTrace
from talon_core.trace.replay import Method, Replay, Totals
from talon_core.trace.several import SeveralTexts
from talon_core.trace.together import together


@attrs.frozen
class Done:
    """What a method did on a text.

    Attributes:
        totals: in numbers.
        deepest: the deepest node that was drafted.
    """

    totals: Totals
    deepest: int


class Trying:
    """Tries methods on some texts, on all of them at once where it can be done.

    Args:
        replay: of the trace.
        texts: of the trace.
    """

    def __init__(self, replay: Replay, texts: Sequence[TextTrace]) -> None:
        self._replay, self._texts = replay, texts
        recorded = bool(texts) and all(text.rows is not None for text in texts)
        self._several = SeveralTexts(texts) if recorded else None

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
        grown = None if self._several is None else together(self._replay, method, self._several)
        if grown is not None:
            return [Done(*each) for each in zip(grown.totals(), grown.deepest(), strict=True)]
        found = []
        for text in self._texts:
            own = self._replay.text(method if policy is None else attrs.evolve(method, policy=policy()), text)
            trees = (one.tree if one.drafted is None else one.drafted for one in own.rounds)
            found.append(Done(Totals.of(own), max(int(tree.depths.max()) for tree in trees)))
        return found
