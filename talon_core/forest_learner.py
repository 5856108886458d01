"""An optional ability of policies that learn: those of several texts choose for their trees in one call."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.basics.overriding import overrides
from talon_core.drawn import KINDS
from talon_core.errors import PluginError, blaming, naming, written
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_grower import ForestGrower, ForestGrowth, forest_grower, serve_alike
from talon_core.policy import TreePolicy
from talon_core.tree import IntArray


@attrs.frozen(eq=False)
class ForestRound:
    """What became of the trees of a forest.

    Attributes:
        forest: the trees as they were drafted.
        kept: which of its nodes were verified, shape `(nodes,)`.
        accepted: which of these were accepted, the roots of the texts that had a round among them, likewise.
        new: tokens that each text has emitted, 0 of one that had no round, shape `(trees,)`, int64.
    """

    forest: Forest
    kept: NDArray[np.bool_]
    accepted: NDArray[np.bool_]
    new: IntArray


class LearningForest(ABC):
    """The policies of several texts while they choose together; tree `i` of each forest is that of text `i`.

    A round goes as for one tree: `chained` where passes could be run ahead, `widths` and `grow_forest` once per layer,
    then `finish_forest`. A text may have no round, or none in which anything can be drafted: then nothing is asked for
    its tree. After the round comes either `observe_forest`, and the next round; or `hand_back`, after which each policy
    is told by itself.

    Trees, and all that is learnt, must be to the bit those of policies that are asked one by one.

    Attributes:
        policies: they, text by text.
    """

    policies: Sequence[Any]

    def chained(self, trees: IntArray) -> NDArray[np.bool_]:
        """Whether `TreePolicy.chains` says something before a round, for the trees that are to have one.

        It is asked before each round, or never, then nobody would run passes ahead. By default nothing is said.

        Args:
            trees: those, rising, shape `(asked,)`.

        Returns:
            Shape `(asked,)`.
        """
        return np.zeros(len(trees), dtype=bool)

    @abstractmethod
    def widths(self, forest: Forest, trees: IntArray) -> IntArray:
        """`TreePolicy.width` for some trees.

        Args:
            forest: every node so far; read only.
            trees: those that are drafted for, rising, shape `(asked,)`.

        Returns:
            Shape `(asked,)`, whole numbers.
        """

    @abstractmethod
    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        """`TreePolicy.grow` for each tree that has rows in `candidates`; see `ForestGrower.grow_forest`."""

    def finish_forest(self, forest: Forest) -> IntArray | None:
        """`TreePolicy.finish` for each tree; see `ForestGrower.finish_forest`."""
        return None

    @abstractmethod
    def observe_forest(self, round_: ForestRound) -> None:
        """`TreePolicy.observe` for each text that had a round."""

    @abstractmethod
    def hand_back(self) -> None:
        """Each policy is to know what it would know had it been asked by itself in this round, before `observe`."""


class ForestLearner(TreePolicy):
    """A policy that can choose together with those of other texts, each by what it has learnt of its own: for speed.

    Where several texts go on side by side, as in a trace that is replayed, or in the slots of an engine, what is asked
    is the `LearningForest` that `beside` makes, in the place of each policy. `talon_core.testing.check_tree_policy`
    tries both ways. Such a policy draws nothing, and does not learn from times.

    A subclass that overrides `chains`, `width`, `grow`, `finish`, `observe` or one of `hooks` without `beside` is asked
    by itself.
    """

    @abstractmethod
    def beside(self, policies: Sequence[Any]) -> LearningForest:
        """These policies, itself the first of them, as one; between rounds.

        Args:
            policies: of its class, each one that `goes_with` says yes to.
        """

    def learns_beside(self) -> bool:
        """Whether it can be asked together with others; by default yes. One made of policies can where these can."""
        return True

    def goes_with(self, other: TreePolicy) -> bool:
        """Whether a policy of the same class can be asked together with this one; by default if it has equal options.

        What it was told of its text, as `SequenceInfo.costs`, may have to be the same, too.
        """
        return serve_alike([self, other])


def forest_learner(policy: TreePolicy) -> ForestLearner | None:
    """A policy as one that can choose with others; None if it has not the ability, or a subclass has changed it.

    Raises:
        PluginError: if it fails to say so; the message names it.
    """
    if not isinstance(policy, ForestLearner) or not KINDS[policy.children].fixed or policy.children == "sampled":
        return None
    if overrides(type(policy), ("chains", "width", "grow", "finish", "observe", *policy.hooks), "beside"):
        return None
    with blaming("tree policy", policy, "learns_beside"):
        return policy if policy.learns_beside() else None


def forest_learners(policies: Sequence[TreePolicy]) -> Sequence[ForestLearner] | None:
    """Policies, at least one, as some that choose together; None if they cannot."""
    able = [one for one in map(forest_learner, policies) if one is not None]
    together = len(able) == len(policies) and all(go_together(able[0], other) for other in able[1:])
    return able if together else None


def go_together(one: "Together", other: "Together") -> bool:
    """Whether two policies can be asked together.

    Raises:
        PluginError: if one fails to say so; the message names it.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, ForestGrower):
        return serve_alike([one, other])
    with blaming("tree policy", one, "goes_with"):
        return bool(one.goes_with(other))


def beside(policies: Sequence[ForestLearner]) -> LearningForest:
    """Policies that go together as one, checked.

    Raises:
        PluginError: if that fails; the message names the policy.
    """
    with blaming("tree policy", policies[0], "beside"):
        found: object = policies[0].beside(policies)
    if isinstance(found, LearningForest):
        return found
    raise PluginError(
        f"{naming('tree policy', policies[0])} gave {written(found)} from beside; it must be a LearningForest"
    )


Together = ForestGrower | ForestLearner
"""Policies that may be asked for many trees at once."""


def asked_together(policy: TreePolicy) -> Together | None:
    """A policy as one that may be asked together with others; None if it has no such ability.

    Raises:
        PluginError: if it fails to say so; the message names it.
    """
    return forest_grower(policy) or forest_learner(policy)


def as_one(policies: Sequence[Together]) -> ForestGrower | LearningForest:
    """What is asked in the place of policies that go together, at least one.

    Raises:
        PluginError: if that fails; the message names the policy.
    """
    first = policies[0]
    return (
        first
        if isinstance(first, ForestGrower)
        else beside([one for one in policies if isinstance(one, ForestLearner)])
    )
