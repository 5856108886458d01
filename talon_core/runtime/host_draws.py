"""What a host draws tokens by itself with: little is done to scores, and all numbers are known beforehand."""

from collections.abc import Mapping, Sequence
from math import inf

import attrs
import numpy as np

from talon_core.runtime.columns import column_of, number_of
from talon_core.sampling import Processor
from talon_core.target import NodeDraws
from talon_core.tree import FloatArray

MOST_LEFT = 256
"""Of more of the best scores a host does not look for the last one."""

LEAST, MOST = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)
"""Temperatures that are numbers in float32."""


@attrs.frozen
class Warp:
    """What is done to scores before they are a law.

    Attributes:
        temperature: they are divided by it, in float32.
        best: so many of the best are left, and all that are as good as the last of them; 0 for all.
        best_first: whether these are counted before scores are divided, as rounding can make two of them one.
    """

    temperature: float = 1.0
    best: int = 0
    best_first: bool = False

    @classmethod
    def of(cls, warpers: Sequence[Processor]) -> "Warp | None":
        """What processors do, if that is all of it: those of a temperature, and of a top-k; None otherwise."""
        own: dict[str, float] = {}
        for warper in warpers:
            column = column_of(warper)
            if column is None or column[0] not in ("temperature", "top_k") or column[0] in own:
                return None
            if getattr(warper, "filter_value", -inf) != -inf:
                return None
            own[column[0]] = number_of(warper)
        temperature, best = own.get("temperature", 1.0), own.get("top_k", 0.0)
        if not (LEAST <= temperature <= MOST and best == int(best) and 0 <= best <= MOST_LEFT):
            return None
        return cls(temperature, int(best), next(iter(own), "") == "top_k")


def warp_of(draws: NodeDraws | None) -> Warp | None:
    """What is done to scores where a host draws so by itself; None where something is tested, or is not drawn, or more
    is done."""
    if draws is None or draws.tests is not None or draws.numbers is None:
        return None
    return Warp.of(draws.warpers)


def warps_of(warps: Sequence[Warp]) -> FloatArray:
    """Their numbers, shape `(warps, 3)`."""
    return np.array([[one.temperature, one.best, one.best_first] for one in warps], dtype=np.float64)


@attrs.frozen(eq=False)
class ChainDraws:
    """How tokens are drawn in rounds of one text whose trees are chains.

    Attributes:
        warp: what is done to scores.
        numbers: of the draws behind one another, shape `(draws,)`, float64, in [0, 1). A round takes one for the root
            and one for each accepted node; where children were drawn, at most `numbers_of_chain`.
    """

    warp: Warp
    numbers: FloatArray

    @classmethod
    def of(cls, draws: NodeDraws, count: int) -> "ChainDraws | None":
        """The next so many draws of a text; None where they are not known."""
        warp = warp_of(draws)
        return None if warp is None or draws.ahead is None else cls(warp, draws.ahead(count))

    def are(self, draws: NodeDraws | None, place: int, tested: bool = False) -> bool:
        """Whether the draws of a round, of a tree that is a chain, are those from a place on.

        Args:
            draws: of the round.
            place: how many were used before.
            tested: whether the chain's tokens were drawn, and are tested.
        """
        if draws is None or draws.numbers is None or (draws.tests is not None) is not tested:
            return False
        if Warp.of(draws.warpers) != self.warp:
            return False
        return bool(self.numbers[place : place + len(draws.numbers)].tolist() == draws.numbers.tolist())


@attrs.frozen(eq=False)
class DrawnAhead:
    """How tokens are drawn in passes over roots alone that are run behind one another.

    Attributes:
        warps: of the slots in their order.
        numbers: of each pass, shape `(passes, slots)`, float64, in [0, 1).
    """

    warps: Sequence[Warp]
    numbers: FloatArray

    @classmethod
    def of(cls, drawn: Mapping[int, NodeDraws], slots: Sequence[int], passes: int) -> "DrawnAhead | None":
        """As some slots are to be drawn for in so many rounds; None where that is not known of one of them."""
        warps, numbers = [], []
        for slot in slots:
            own = drawn.get(slot)
            warp = warp_of(own)
            if own is None or warp is None or own.ahead is None:
                return None
            warps.append(warp)
            numbers.append(own.ahead(passes))
        return cls(warps, np.array(numbers).T.copy())

    def are(self, drawn: Mapping[int, NodeDraws], slots: Sequence[int], place: int) -> bool:
        """Whether the draws of the round at a place, of trees that are roots alone, are these."""
        for slot, warp, number in zip(slots, self.warps, self.numbers[place].tolist(), strict=True):
            own = drawn.get(slot)
            if own is None or own.numbers is None or own.numbers.item(0) != number or warp_of(own) != warp:
                return False
        return True
