"""An optional ability of policies that learn: to say whose tree a round's is."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import attrs

from talon_core.basics.overriding import overrides
from talon_core.errors import PluginError, blaming, is_whole, naming, written
from talon_core.policy import TreePolicy
from talon_core.rounds import Round
from talon_core.tree import FloatArray

Measure = Callable[[FloatArray], FloatArray]
"""What is computed of each row of log-probabilities by itself: `(rows, width)` to `(rows,)`."""


@attrs.frozen(eq=False, slots=False)
class AskedLayer:
    """A layer of a round that a drafter was asked for.

    Attributes:
        rows: frontier nodes.
        width: candidates that were asked for, of each.
        look_up: gives `logp`.
    """

    rows: int
    width: int
    look_up: Callable[[], FloatArray]

    @cached_property
    def logp(self) -> FloatArray:
        """What was offered, as `Candidates.logp` has it, shape `(rows, offered)`; looked up when it is asked for."""
        return self.look_up()

    def measured(self, measure: Measure) -> FloatArray:
        """What a function says of each row of `logp`, shape `(rows,)`.

        Where many trees were grown at once, it is computed once for the rows of all of them. So give the same function
        in each round, one of a module and no lambda.

        Args:
            measure: from `(rows, width)` to `(rows,)`. It looks at each row by itself, and more padding at a row's end,
                which is minus infinity, changes nothing.
        """
        return measure(self.logp)


def _check_policy(_: object, __: object, policy: Any) -> None:
    if not isinstance(policy, TreePolicy):
        raise TypeError(f"the policy of a TreePlan is {written(policy)}; it must be a TreePolicy")


def _check_depth(_: object, __: object, depth: Any) -> None:
    if depth is None:
        return
    if not is_whole(depth):
        raise TypeError(f"the depth of a TreePlan is {written(depth)}; it must be a whole number, or None")
    if depth < 0:
        raise ValueError(f"the depth of a TreePlan is {depth}; it must be at least 0")


@attrs.frozen(cache_hash=True)
class TreePlan:
    """Whose tree a round has.

    Attributes:
        policy: a `ForestGrower` that can be hashed.
        depth: the tree is that of `policy` where no node deeper than this can be used, at least 0; None for no limit.
            Where plans differ in this alone, trees are grown once for all of them.

    Raises:
        TypeError: if the policy is none, or the depth no whole number.
        ValueError: if the depth is less than 0.
    """

    policy: TreePolicy = attrs.field(validator=_check_policy)
    depth: int | None = attrs.field(default=None, validator=_check_depth)

    def ended(self, depth: int | None) -> "TreePlan":
        """The plan of the same tree without the nodes that are deeper than this; None for all of it.

        Raises:
            TypeError, ValueError: if it is no whole number, or less than 0.
        """
        if depth is None:
            return self
        shorter = TreePlan(self.policy, depth)
        return self if self.depth is not None and self.depth < depth else shorter


@attrs.frozen
class RoundCounts:
    """A round in numbers.

    Attributes:
        nodes: of the tree that was verified, the root included.
        drafted_nodes: of the tree while it was drafted, likewise.
        accepted: drafted tokens that were.
        new: tokens that the round emitted.
        context: tokens of the text before it.
    """

    nodes: int
    drafted_nodes: int
    accepted: int
    new: int
    context: int

    @classmethod
    def of(cls, round_: Round) -> "RoundCounts":
        """Those of a round."""
        return cls(len(round_.tree), round_.drafted_nodes, round_.accepted, len(round_.tokens), round_.context)


class ForestPlanner(TreePolicy):
    """A policy whose tree of a round is that of another one, which remembers nothing: an optional ability, for speed.

    What it has learnt decides which one that is, as the length of a chain. Where many texts are tried, as while a trace
    is replayed, the trees of a `ForestGrower` are grown at many positions at once; then such a policy is not asked for
    them with `width`, `grow` and `finish`, but whose they are: `plan`, `ends_after`, `drafted`, `observe`, round by
    round. Both ways must lead to the same trees, which `talon_core.testing.check_tree_policy` tries.

    A subclass that overrides `width`, `grow` or `finish` without `plan` is asked for its trees itself.
    """

    @abstractmethod
    def plan(self) -> TreePlan | None:
        """Whose tree this round's is, until the next `observe` an equal one; None, always, if it cannot be said."""

    def ends_after(self, layers: Iterator[AskedLayer]) -> int | None:
        """After how many layers this round's tree ends, where that is decided while it is drafted.

        So the tree is that of `plan` without the nodes that are deeper. Called after `plan`, and nothing may change.

        Args:
            layers: of the whole tree that was planned, those of which the drafter knew anything, the root's first. Take
                no more of them than are needed: each is looked up when it is taken.

        Returns:
            The depth of the deepest node there may be, at least 0; None if nothing ends the tree but its plan.
        """
        return None

    def drafted(self, layers: Sequence[AskedLayer] | None) -> None:
        """Called before `observe`, in the place of `width`, `grow` and `finish`: what the drafter has offered.

        Args:
            layers: those of which it knew anything; None where nothing could have been drafted, as at a text's end.
        """


class CountingPlanner(ForestPlanner):
    """A `ForestPlanner` that learns from numbers alone.

    A replay tells it of each round with `observe_counts` and makes no `Round`, which takes longer than all else that is
    asked of such a policy; unless a subclass overrides `observe`, which otherwise calls it.
    """

    def counts_suffice(self) -> bool:
        """Whether it learns from numbers alone; by default where nobody has changed `observe`.

        One made of policies, which tells these of rounds, can where they can.
        """
        return type(self).observe is CountingPlanner.observe

    def observe(self, round_: Round) -> None:
        self.observe_counts(RoundCounts.of(round_))

    @abstractmethod
    def observe_counts(self, counts: RoundCounts) -> None:
        """What `observe` is for, in numbers."""


def counting_planner(policy: TreePolicy) -> CountingPlanner | None:
    """A policy as one that is told of rounds in numbers; None if it is none, or a subclass wants to know more."""
    return policy if isinstance(policy, CountingPlanner) and policy.counts_suffice() else None


def plan_of(policy: ForestPlanner) -> TreePlan | None:
    """What a policy plans for this round, checked; see `ForestPlanner.plan`.

    Raises:
        PluginError: if it fails, or gives what is no plan.
    """
    with blaming("tree policy", policy, "plan"):
        plan: object = policy.plan()
    if plan is None or isinstance(plan, TreePlan):
        return plan
    raise PluginError(
        f"{naming('tree policy', policy)} gave {written(plan)} as its plan; it must be a TreePlan, or None where it "
        "cannot be said"
    )


def forest_planner(policy: TreePolicy) -> ForestPlanner | None:
    """A policy as one that plans; None if it has not the ability, or a subclass has changed what it does."""
    if not isinstance(policy, ForestPlanner) or policy.children != "deterministic":
        return None
    changed = overrides(type(policy), ("width", "grow", "finish", *policy.hooks), "plan")
    return None if changed else policy
