"""Tokens that are drawn within a recorded pass: the numbers of processors are sent with it, whatever they are."""

from collections.abc import Collection, Hashable, Mapping

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.runtime.columns import Columns, column_of, kind_of, number_of
from talon_core.runtime.draws import NOT_DRAWN, WarperError, as_words, numbers_of, of_words, take_tokens
from talon_core.sampling import Processor
from talon_core.target import NodeDraws
from talon_core.tree import FloatArray, IntArray

_DRAW = "draw"
"""The name of the numbers that are drawn with."""

_SOME: FloatArray = np.empty(0)
"""Something is drawn; with which numbers is sent."""

LEAST_TOP_K = 64
"""A recording does for any top-k up to so many at least: few are larger."""

MOST_WARPED_FOR_ONE = 2
"""In a recorded pass the scores of all trees are warped, also of those whose best tokens are taken: of no more than so
many for each one that is drawn. Else it takes less to launch what is done with the scores of the drawn ones alone."""

MOST_KINDS = 1024
"""Texts whose processors are held."""

HARMLESS = 1.0
"""What is sent as the number of any processor for nodes that nothing is drawn for: each can be called with it."""


def sent_draws(starts: IntArray, drawn: Mapping[int, NodeDraws]) -> dict[str, IntArray]:
    """The numbers of all nodes of a pass as they are sent, by name: of 32 bits, each shape `(queries,)`, int64.

    Args:
        starts: where the nodes of each slot start, shape `(slots + 1,)`.
        drawn: by slot, for whole trees.
    """
    return _words(_DRAW, numbers_of(starts, drawn))


def numbers_in(more: Mapping[str, Tensor]) -> Tensor:
    """The numbers of the nodes, out of what was sent, shape `(queries,)`, float64."""
    return _number(_DRAW, more)


def _words(name: str, values: FloatArray) -> dict[str, IntArray]:
    return dict(zip(_names(name), as_words(values), strict=True))


def _number(name: str, more: Mapping[str, Tensor]) -> Tensor:
    return of_words(*(more[each] for each in _names(name)))


def _names(name: str) -> tuple[str, str]:
    return f"{name} low", f"{name} high"


def _padding(value: float) -> tuple[int, int]:
    low, high = as_words(np.array([value]))
    return int(low[0]), int(high[0])


HARMLESS_WORDS = _padding(HARMLESS)

DRAW_FILL = dict(zip(_names(_DRAW), _padding(NOT_DRAWN), strict=True))
"""What is sent for padding, by the names of `sent_draws`."""


@attrs.frozen
class DrawingForm:
    """How tokens are taken in a recorded pass: the best of some trees, and those of others drawn.

    Scores are warped by processors of the same kinds in the same order, each with a number that is sent. Two forms are
    equal where one recording does for both.

    Attributes:
        warpers: processors of these kinds; their own numbers are not looked at.
        most: for a top-k at least the largest that is sent; 0 for others.
        kinds: what the processors are; tells forms apart.
    """

    warpers: tuple[Processor, ...] = attrs.field(eq=False)
    most: tuple[float, ...]
    kinds: tuple[Hashable, ...]

    @property
    def fill(self) -> dict[str, int]:
        """What is sent for padding, by the names of `sent`."""
        fill = dict(DRAW_FILL)
        for name in self._columns:
            fill |= zip(_names(name), HARMLESS_WORDS, strict=True)
        return fill

    def sent(self, starts: IntArray, drawn: Mapping[int, NodeDraws]) -> dict[str, IntArray]:
        """What is sent for a pass, as `sent_draws` says, and the number of each processor for each node.

        Args:
            starts: where the nodes of each slot start, shape `(slots + 1,)`.
            drawn: as for `of`.
        """
        of_slots: FloatArray = np.full((len(starts) - 1, len(self.warpers)), HARMLESS)
        for slot, draws in drawn.items():
            of_slots[slot] = _numbers_of(draws.warpers)
        more = sent_draws(starts, drawn)
        for name, column in zip(self._columns, np.repeat(of_slots, np.diff(starts), axis=0).T, strict=True):
            more |= _words(name, column)
        return more

    def tokens(self, logits: Tensor, more: Mapping[str, Tensor]) -> Tensor:
        """The token after each node, shape `(queries,)`, int64, as `next_tokens` finds it.

        Args:
            logits: raw scores, shape `(queries, vocab)`.
            more: what was sent, by name.

        Raises:
            RuntimeError: if the device cannot do it while it records, as anything else that is recorded may.
        """
        numbers, columns = numbers_in(more), [_number(name, more) for name in self._columns]
        told = Columns(torch.stack(columns, dim=-1), self.most) if columns else None
        try:
            drawn = take_tokens(logits, NodeDraws(self.warpers, frozenset(), _SOME), numbers, told)
        except WarperError as error:  # no processor of the user's was called
            raise error.__cause__ or error from None
        return torch.where(numbers < 0, logits.argmax(-1), drawn)

    @property
    def _columns(self) -> list[str]:
        return [f"warp {place}" for place in range(len(self.warpers))]


def _numbers_of(warpers: tuple[Processor, ...]) -> list[float]:
    return [number_of(warper) for warper in warpers]


class DrawingForms:
    """The forms of passes. What processors are is found once for those of a text: a batch has many, in each round."""

    def __init__(self) -> None:
        self._kinds: dict[int, tuple[tuple[Processor, ...], tuple[Hashable, ...] | None]] = {}

    def of(self, slots: Collection[int], drawn: Mapping[int, NodeDraws], trees: int) -> DrawingForm | None:
        """The form of a pass; None if something is tested, or what is done with scores is not known here, or differs in
        more than numbers, or if hardly anything is drawn.

        Args:
            slots: where tokens are taken.
            drawn: in which of these, and how; the best of the raw scores in the others.
            trees: how many take part in the pass.
        """
        draws = [drawn[slot] for slot in sorted(slots) if slot in drawn]
        if not draws or MOST_WARPED_FOR_ONE * len(draws) < trees:
            return None
        if any(one.tests is not None or one.numbers is None for one in draws):
            return None
        kinds = {self._kinds_of(one.warpers) for one in draws}
        (own,) = kinds if len(kinds) == 1 else (None,)
        if own is None:
            return None
        most = np.max([_numbers_of(one.warpers) for one in draws], axis=0)
        return DrawingForm(draws[0].warpers, tuple(map(_room, draws[0].warpers, most)), own)

    def forget(self) -> None:
        """Give up what is known of processors."""
        self._kinds.clear()

    def _kinds_of(self, warpers: tuple[Processor, ...]) -> tuple[Hashable, ...] | None:
        """The kind of each processor; None if one of them is not known here."""
        held = self._kinds.get(id(warpers))
        if held is not None and held[0] is warpers:
            return held[1]
        kinds = tuple(map(kind_of, warpers)) if all(map(_is_known, warpers)) else None
        if len(self._kinds) >= MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[id(warpers)] = warpers, kinds
        return kinds


def _is_known(warper: Processor) -> bool:
    """Whether its number may be sent, and all else that it has are plain numbers, with which it raises no error."""
    own = getattr(warper, "__dict__", {})  # one with slots has none
    return column_of(warper) is not None and all(type(value) in (int, float) for value in own.values())


def _room(warper: Processor, most: float) -> float:
    """What a recording has room for where the largest number of a processor is this one: a power of two for a top-k."""
    found = column_of(warper)
    return float(2 ** np.ceil(np.log2(max(most, LEAST_TOP_K)))) if found is not None and found[0] == "top_k" else 0.0
