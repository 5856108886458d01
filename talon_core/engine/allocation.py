"""The allocators that come with the engine, and the trees that are left of an allocator's answer."""

from collections.abc import Collection, Mapping
from typing import Any

import attrs
import numpy as np

from talon_core.allocation import Allocator, NextRound, Planner, SharedPass
from talon_core.costs import Costs
from talon_core.engine.planning import best_layers, by_slot, pass_seconds
from talon_core.errors import PluginError, blaming, is_whole, naming, written
from talon_core.tree import FloatArray, IntArray, TokenTree

SIZES = 32
"""Sizes of a pass that are compared, at most: the smallest, the largest, and between them by equal factors."""


def _is_budget(_: object, field: "attrs.Attribute[int]", nodes: int) -> None:
    if not is_whole(nodes) or nodes < 1:
        raise ValueError(f"{field.name} is {written(nodes)}; it must be a whole number of at least 1")


@attrs.frozen
class BestRate(Planner):
    """As many layers and likeliest nodes as make the most tokens a second, all sequences together; the default.

    A pass emits one token for each sequence and, by the drafter's probabilities, as many more as those of the drafted
    nodes' paths add up to (OPT-Tree, arXiv 2406.17276, section 3.1). So the likeliest nodes of all trees come first, up
    to that of the compared sizes at which these tokens, divided by the seconds of the round, are most. As long as
    nothing is known of passes, every node is kept.

    Before a round, the same account decides how deep is drafted, and for which texts: what a layer has brought in a
    text's latest rounds, with the mean of all texts where there were few, against the seconds that layers and passes of
    so many sequences take. The drafter's probabilities count as far as they came true. A text that has not drafted yet
    does so in any case. Where some have drafted less than their policies would for a while, all of them draft one layer
    more than is best: after 8 rounds, or as many as there are sequences, then after twice as many, up to 64. So it is
    noticed when that changes. All this is ours.
    """

    def layers(self, round_: NextRound) -> Mapping[int, int]:
        return best_layers(round_)

    def shares(self, pass_: SharedPass) -> Mapping[int, int]:
        likeliest, owners = _likeliest(pass_)
        expected = pass_.tokens + np.concatenate([[0.0], np.cumsum(np.exp(likeliest))])
        best, kept = -1.0, 0
        for count in _sizes(len(likeliest)):
            seconds = pass_seconds(pass_.costs, pass_.nodes + count, pass_.context, pass_.batch)
            if seconds is None or seconds + pass_.drafting <= 0:
                return {}
            rate = float(expected[count]) / (seconds + pass_.drafting)
            if rate >= best:
                best, kept = rate, count
        return _counted(pass_, owners[:kept])


@attrs.frozen
class SharedBudget(Allocator):
    """A fixed number of nodes for a pass, whatever it costs; they go to the likeliest nodes of all sequences.

    The nodes with the largest marginal gain come first, as AdaServe (arXiv 2501.12162) and TurboSpec (arXiv 2406.14066)
    have it for chains and trees of one budget.

    Attributes:
        nodes: of a pass, roots included; every root is verified where there are more.
    """

    nodes: int = attrs.field(validator=_is_budget)

    def shares(self, pass_: SharedPass) -> Mapping[int, int]:
        _, owners = _likeliest(pass_)
        return _counted(pass_, owners[: max(self.nodes - pass_.nodes, 0)])


@attrs.frozen
class EqualBudgets(Allocator):
    """A fixed number of nodes for a pass, the same for each tree that may be cut: what `SharedBudget` is compared with.

    Attributes:
        nodes: of a pass, roots included; every root is verified where there are more.
    """

    nodes: int = attrs.field(validator=_is_budget)

    def shares(self, pass_: SharedPass) -> Mapping[int, int]:
        whole = pass_.nodes - len(pass_.path_logp)  # of the trees that are verified as they are
        each = (self.nodes - whole) // max(len(pass_.path_logp), 1) - 1
        return {slot: min(max(each, 0), len(own)) for slot, own in pass_.path_logp.items()}


def allocated(
    trees: Mapping[int, TokenTree],
    free: Collection[int],
    allocator: Allocator,
    costs: Costs,
    context: int,
    drafting: float,
) -> dict[int, TokenTree]:
    """The trees with as many of their likeliest nodes as the allocator gives them.

    Args:
        trees: by slot.
        free: the slots of which a smaller tree may be verified, as their text is the same whatever the tree.
        allocator: decides.
        costs: what passes take.
        context: committed tokens of the longest text.
        drafting: seconds that drafting took for all together.

    Returns:
        A tree for each slot.

    Raises:
        PluginError: if the costs raise, or the allocator does or answers nonsense; the message names them.
    """
    cuttable = [slot for slot, tree in trees.items() if slot in free and not tree.drawn]
    orders = {slot: trees[slot].best(len(trees[slot]))[1:] for slot in cuttable}  # but the root
    whole = [tree for slot, tree in trees.items() if slot not in orders]
    shared = SharedPass(
        path_logp={slot: _falling(trees[slot].path_logp[order]) for slot, order in orders.items()},
        nodes=len(orders) + sum(map(len, whole)),
        tokens=len(trees) + sum(float(np.exp(np.minimum(tree.path_logp[1:], 0.0)).sum()) for tree in whole),
        batch=len(trees),
        context=context,
        drafting=drafting,
        costs=costs,
    )
    with blaming("allocator", allocator, "shares"):
        shares = allocator.shares(shared)
    _check(allocator, shares, shared)
    cut = dict(trees)
    for slot, share in shares.items():
        if share < len(orders[slot]):
            cut[slot] = trees[slot].keep(np.append(0, orders[slot][:share]))
    return cut


def _check(allocator: Allocator, shares: Any, shared: SharedPass) -> None:
    for slot, share in by_slot(allocator, shares, shared.path_logp).items():
        most = len(shared.path_logp[slot])
        if not is_whole(share) or not 0 <= share <= most:
            raise PluginError(
                f"{naming('allocator', allocator)} gave slot {slot} {written(share)} nodes; "
                f"it must be a whole number from 0 to {most}"
            )


def _likeliest(pass_: SharedPass) -> tuple[FloatArray, IntArray]:
    """Path log-probabilities of all nodes, falling, and the slot of each; those of one slot in their own order."""
    every: FloatArray = np.concatenate([np.empty(0), *pass_.path_logp.values()])
    slots = np.repeat(np.array([*pass_.path_logp], dtype=np.int64), [len(own) for own in pass_.path_logp.values()])
    order = np.argsort(-every, kind="stable")
    return every[order], slots[order]


def _counted(pass_: SharedPass, kept: IntArray) -> dict[int, int]:
    """How often each slot is among those of the nodes that are kept."""
    slots, counts = np.unique(kept, return_counts=True)
    return dict.fromkeys(pass_.path_logp, 0) | dict(zip(slots.tolist(), counts.tolist(), strict=True))


def _falling(path_logp: FloatArray) -> FloatArray:
    """Path log-probabilities that come best first, where rounding has let none be above the one before, or 0."""
    return np.minimum.accumulate(np.minimum(path_logp, 0.0))


def _sizes(most: int) -> list[int]:
    """The numbers of drafted nodes that are compared, rising: 0 to `most`, all where they are few."""
    if most < SIZES:
        return [*range(most + 1)]
    found: list[int] = np.unique(np.geomspace(1, most, SIZES - 1).round().astype(int)).tolist()
    return [0, *found]
