"""Methods on some texts of a trace: on all of them at once where it can be done, else on one after the other."""

from collections.abc import Callable, Collection, Sequence

import attrs
import numpy as np

from talon_core.drafter import DrafterSpec
from talon_core.policy import TreePolicy
from talon_core.trace.along import Along
from talon_core.trace.answers import ASKED, Answers, of_one_width
from talon_core.trace.asking import along_of, superset_of
from talon_core.trace.columns import TextTrace
from talon_core.trace.oracle import along_rows
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


class _Rows:
    """What the drafter of a method offers along some texts.

    Args:
        texts: by their places, with its rows; those of which nothing is known are left out.
        answers: where they are from, if the drafter is not the recorded one.
    """

    def __init__(self, texts: dict[int, TextTrace], answers: Answers | None = None) -> None:
        self.texts, self.answers = texts, answers
        self._several: SeveralTexts | None = None

    def several(self) -> SeveralTexts | None:
        """All of them side by side; None where there are none."""
        if self._several is None and self.texts:
            self._several = SeveralTexts([*self.texts.values()])
        return self._several


class Trying:
    """Tries methods on some texts, on all of them at once where it can be done.

    A drafter of texts is asked once, and what it says is kept, see `Answers`. It is asked again for a text where that
    does not answer all questions.

    A policy's own time can be taken on one text after the other alone, and so can that of a drafter of texts. Where the
    replay adds it and a method could be tried on all texts at once, it is taken on some of them; see
    `talon_core.trace.own_time` for the others.

    Args:
        replay: of the trace.
        texts: of the trace.
        timed: the places of those of the texts on which the time is taken; None for all, which are then tried one
            after the other.
    """

    def __init__(self, replay: Replay, texts: Sequence[TextTrace], timed: Collection[int] | None = None) -> None:
        self._replay, self._texts = replay, texts
        self._timed = range(len(texts)) if timed is None else timed
        self._known: list[tuple[DrafterSpec | None, _Rows]] = []  # drafters cannot be hashed

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

        def own() -> Method:
            return method if policy is None else attrs.evolve(method, policy=policy())

        found, own_time = self._together(method), self._replay.adds_own_time
        for place, text in enumerate(self._texts):
            known = found.get(place)
            if known is None:
                answered = None if own_time else self._answered(own(), place)
                found[place] = Done.of(answered or self._replay.text(own(), text))
            elif own_time and place in self._timed:
                taken = self._replay.text(own(), text)
                assert taken.policy_seconds is not None
                totals = known.totals.taking(taken.policy_seconds, taken.drafter_seconds)
                found[place] = attrs.evolve(known, totals=attrs.evolve(totals, timed_texts=1))
        return [found[place] for place in range(len(self._texts))]

    def _together(self, method: Method) -> dict[int, Done]:
        """What a method did on those texts, by their places, on which it can be tried at once."""
        if self._replay.adds_own_time and len(self._timed) == len(self._texts):
            return {}
        rows = self._rows(method.drafter)
        several = rows.several()
        grown = None if several is None else together(self._replay, method, several, FEWEST, rows.answers)
        if grown is None:
            return {}
        done = map(Done, grown.totals(), grown.deepest())
        may_ask = rows.answers is not None  # then there is nobody who cannot answer
        return {place: one for place, one in zip(rows.texts, done, strict=True) if not (may_ask and one.totals.outside)}

    def _answered(self, method: Method, place: int) -> Replayed | None:
        """What a method did on a text, by what its drafter has said along it; None where that does not tell."""
        rows = self._rows(method.drafter)
        if rows.answers is None or place not in rows.texts:
            return None
        if method.policy is None or method.policy.children != "deterministic":  # it draws from laws
            return None
        return self._replay.answered(method, rows.texts[place], rows.answers.max_depth)

    def _rows(self, drafter: DrafterSpec | None) -> _Rows:
        for known, rows in self._known:
            if known == drafter:
                return rows
        if drafter is None:
            found = _Rows({place: text for place, text in enumerate(self._texts) if text.rows is not None})
        else:
            answers = Answers(drafter, self._replay.trace)
            each = {place: answers.of(text) for place, text in enumerate(self._texts)}
            known_texts = {place: text for place, text in each.items() if text is not None}
            found = _Rows(dict(zip(known_texts, of_one_width([*known_texts.values()]), strict=True)), answers)
        self._known.append((drafter, found))
        return found

    def along(self, drafter: DrafterSpec | None, place: int, deepest: int) -> Along:
        """How the offers of a drafter lie along a text.

        Args:
            drafter: as `Method.drafter`.
            place: of the text.
            deepest: node that any method had in its trees.
        """
        known = self._rows(drafter).texts.get(place)
        if known is not None and (drafter is None or deepest <= ASKED.depth):
            return self._offers(known)
        assert drafter is not None
        trace = self._replay.trace
        return along_of(drafter, self._texts[place], trace, superset_of(trace, deepest))

    def _offers(self, text: TextTrace) -> Along:
        """How what was recorded lies along a text; where costs are known, with what an earlier version has left out."""
        assert text.along is not None
        if self._replay.costs is None or text.along.shallow is not None:
            return text.along
        text.recorded.check_sums(np.arange(len(text.recorded.above)))
        return along_rows(text.recorded, text.ids[text.prompt_tokens :].tolist())
