"""An optional ability of tree policies: to choose for many trees in one call."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from talon_core.basics.overriding import overrides
from talon_core.forest import Count, Forest, ForestCandidates
from talon_core.policy import TreePolicy
from talon_core.tree import FloatArray, IntArray

if TYPE_CHECKING:
    from talon_core.forest_drawer import ForestDraws


@attrs.frozen(eq=False)
class ForestGrowth:
    """A policy's answer to one layer of candidates of a forest.

    Attributes:
        chosen: the candidates that join their trees, as indices into the flattened `(frontier, width)` rectangle, shape
            `(chosen,)`, integer, without repetition. They become the nodes `len(forest)`, `len(forest) + 1`, ... in
            this order.
        frontier: the nodes to draft from next, as indices into the grown forest; None (the default) means all that have
            just joined.
        drawn: what was drawn, of a `ForestDrawer`; it joins behind what was chosen.
        logp: by how much `path_logp` of each drawn node differs from its parent's, shape `(draws,)`, float64; None (the
            default) means the natural logarithm of `drawn.prob`.

    A tree for which nothing is chosen, or nothing is drafted from next, has ended.
    """

    chosen: IntArray
    frontier: IntArray | None = None
    drawn: "ForestDraws | None" = None
    logp: FloatArray | None = None


class ForestGrower(TreePolicy):
    """A policy that can choose for many trees in one call: an optional ability, for speed alone.

    Where several trees are wanted at once, as while a trace is replayed, what is asked is `widths` and `grow_forest`
    once per layer, then `finish_forest`, in place of `width`, `grow` and `finish` tree by tree. Both ways must lead to
    the same trees, which `talon_core.testing.check_tree_policy` tries. So such a policy decides by the tree, its
    candidates and the length of the text alone: it draws nothing, and learns nothing from round to round.

    A subclass that overrides `width`, `grow`, `finish` or `observe` alone has its trees grown one by one.
    """

    def learns_nothing(self) -> bool:
        """Whether no tree hangs on what `observe` was told; by default of a policy that does not override it.

        It is asked once, when the sequence takes its slot.

        A policy that only notes there how long its text is, as what passes take depends on that, overrides both, and
        finds the length in `Forest.contexts`. Of what `begin` was told its trees may hang on what is the same for all
        texts, as costs that stay as they are (`Costs.fixed`).
        """
        return type(self).observe is TreePolicy.observe

    def widths(self, forest: Forest) -> Count:
        """`TreePolicy.width` for each tree, shape `(trees,)`, or one number for all."""
        return self.draft_budget - forest.sizes

    @abstractmethod
    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        """`TreePolicy.grow` for each tree that has rows in `candidates`.

        Args:
            forest: every node so far; read only.
            candidates: for each frontier node its best next tokens; of each tree that is there at least one is real.
        """

    def finish_forest(self, forest: Forest) -> IntArray | None:
        """The nodes that are verified, shape `(kept,)`, integer: of each tree a part as `TokenTree.keep` takes it.

        None (the default) means all.
        """
        return None


ALIKE = {"width": "widths", "grow": "grow_forest", "finish": "finish_forest", "observe": "learns_nothing"}
"""Methods for one tree, and what answers in their place for a forest."""


def forest_grower(policy: TreePolicy) -> ForestGrower | None:
    """A policy as one that grows forests; None if it has not the ability, or a subclass has changed what it does."""
    if not isinstance(policy, ForestGrower):
        return None
    cls = type(policy)
    changed = any(overrides(cls, [one], other) for one, other in ALIKE.items())
    changed |= overrides(cls, policy.hooks, "grow_forest")
    return None if changed or policy.children != "deterministic" or not policy.learns_nothing() else policy


def serve_alike(policies: Sequence[TreePolicy]) -> bool:
    """Whether policies, at least one, are equal; those that cannot be compared are not."""
    try:
        return all(bool(policy == policies[0]) for policy in policies)
    except Exception:  # a plugin's options may be anything
        return False
