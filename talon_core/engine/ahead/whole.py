"""A tree that is drafted whole where the drafter is: one message asks for it, and one brings all its layers.

A copy of the policy goes there and chooses by each layer what is asked in the next. The sequence's own policy chooses
here once more when it is shown the layers, so that what it learns, what it draws and what it raises stay here.
"""

import io
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.costs import Costs
from talon_core.drafter import Frontier, Proposed
from talon_core.engine.ahead.asking import narrowed
from talon_core.engine.checked_candidates import checked_candidates
from talon_core.engine.growing import Growing
from talon_core.tree import FloatArray

if TYPE_CHECKING:
    from talon_core.engine.drafting import Wanted


@attrs.frozen(eq=False)
class Whole:
    """A tree whose root the drafter is asked about next.

    Attributes:
        wanted: it. Its policy has said how many candidates it wants after the root.
        width: so many.
        least: how many the drafter is asked for at least, at each node.
    """

    wanted: "Wanted"
    width: int
    least: int


@attrs.frozen(eq=False)
class Layer:
    """What a drafter has answered in another process.

    Attributes:
        proposed: likewise, without laws.
        number: by which the laws of the first of its candidates are asked for; each has the next one.
        asked: the frontier, where it was asked before anybody here has wanted it.
        laws: those that were looked at there, by row.
    """

    proposed: Proposed
    number: int
    asked: Frontier | None = None
    laws: dict[int, FloatArray] = attrs.field(factory=dict)

    def answers(self, frontier: Frontier) -> bool:
        """Whether it is the answer to this frontier, of this very tree."""
        own, other = self.asked, frontier
        return (
            own is not None
            and own.width == other.width
            and np.array_equal(own.nodes, other.nodes)
            and np.array_equal(own.tree.tokens, other.tree.tokens)
            and np.array_equal(own.tree.parents, other.tree.parents)
        )


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> None:
        if isinstance(obj, Costs):
            raise pickle.PicklingError("what passes take is measured here")


def sent(whole: Whole) -> bytes | None:
    """A tree as it can be drafted elsewhere; None where it is drafted layer by layer.

    That is so where its policy cannot be sent, and where it asks what passes take: that is measured here, by layers.
    """
    written = io.BytesIO()
    try:
        _Pickler(written).dump(whole)
    except Exception:  # whatever a policy holds
        return None
    return written.getvalue()


class GrowingWhole:
    """A tree while it grows beside its drafter. Of its own errors nothing is told: what goes wrong does so again where
    the sequence is.

    Args:
        whole: the tree.
    """

    def __init__(self, whole: Whole) -> None:
        self._whole, self._width = whole, whole.width
        self._growing = Growing(whole.wanted.policy, whole.wanted.root, whole.wanted.limits)

    def after(self, layer: Layer, law: Callable[[int], FloatArray]) -> Frontier | None:
        """What is asked after a layer; None at the end.

        Args:
            layer: of this tree alone; gets the laws that the policy looks at.
            law: of the drafter, at its rows.
        """
        growing, wanted = self._growing, self._whole.wanted

        def looked_at(row: int) -> FloatArray:
            layer.laws[row] = law(row).copy()
            return layer.laws[row]

        try:
            (given,) = layer.proposed.candidates
            offered = attrs.evolve(narrowed(given, self._width), law=looked_at)
            growing.grow(self._checked(offered), wanted.choices)
            self._width = growing.width() if len(growing.frontier) else 0
        except Exception:
            return None
        width = max(self._width, self._whole.least)
        return Frontier(wanted.slot, growing.tree.without_laws(), growing.frontier, width) if self._width else None

    def _checked(self, offered: Candidates) -> Candidates:
        growing = self._growing
        vocab_size = growing.limits.vocab_size
        return checked_candidates("", offered, growing.tree, growing.frontier, vocab_size, self._width)
