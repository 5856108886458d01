"""The interface that shares a verification pass among sequences: how many nodes of its tree each one gets."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import attrs

from talon_core.costs import Costs
from talon_core.tree import FloatArray


@attrs.frozen(eq=False)
class SharedPass:
    """What several sequences would have verified in one pass of the target.

    Attributes:
        path_logp: by slot, the drafter's natural log-probabilities of the paths to its drafted nodes, falling, at most
            0, shape `(drafted,)`, float64. Slots whose trees are verified as they are have no entry.
        nodes: that are verified in any case: the roots, and the trees that are verified as they are. What a drafter
            asks about beside the trees (`Inquirer`) is known later, and not counted.
        tokens: that the pass is expected to emit of those.
        batch: sequences that share the pass, at least 2.
        context: committed tokens of the longest text.
        drafting: seconds that drafting took for all of them together.
        costs: what passes take on this machine; it may know nothing yet.
    """

    path_logp: Mapping[int, FloatArray]
    nodes: int
    tokens: float
    batch: int
    context: int
    drafting: float
    costs: Costs


class Allocator(ABC):
    """Shares the nodes of a pass among the sequences that take part in it, beside any policy.

    A policy makes its tree for a sequence that is alone. Where several share a pass, the engine asks `shares` after all
    trees are drafted and before they are verified; of each tree its likeliest nodes are kept, as many as its share. It
    is asked only about trees that may be cut: without drawn children, as which of those are kept must not depend on
    what was drawn, and of sequences whose text is the same whatever tree is verified. So no answer changes a text.
    """

    @abstractmethod
    def shares(self, pass_: SharedPass) -> Mapping[int, int]:
        """How many drafted nodes each slot keeps, its root not counted.

        Args:
            pass_: what could be verified.

        Returns:
            For each slot of `pass_.path_logp` a whole number from 0 to the number of its nodes; a slot without an
            answer keeps them all.
        """
