"""How a number of outcomes is shared among the places where a path may end."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from heapq import nlargest
from typing import ClassVar

import attrs
import numpy as np
from attrs.validators import ge

from talon_core.basics.option_checks import number
from talon_core.schedule import Outcome, Outlook
from talon_core.tree import FloatArray, IntArray, TokenTree


class Fanout(ABC):
    """Chooses outcomes. Another way to do it is another class: `Cached(allocation=Mine())`."""

    name: ClassVar[str]
    """What it is called as an option."""

    def nodes(self, tree: TokenTree, budget: int) -> IntArray:
        """The nodes whose next tokens must be known; arguments as for `outcomes`.

        By default those where paths most probably end, so many as there may be outcomes: a node ends the path unless
        one of its children goes on with it, so leaves come before what is above them.
        """
        return np.sort(np.argsort(-path_ends(tree), kind="stable")[:budget])

    @abstractmethod
    def outcomes(self, outlook: Outlook, budget: int) -> Sequence[Outcome]:
        """The outcomes to prepare for, the most important first.

        Args:
            outlook: the verified tree, and what is known of it.
            budget: how many at most.
        """


@attrs.frozen
class Likeliest(Fanout):
    """The outcomes of the greatest probability, if the drafter's laws were the target's.

    The path ends at node `n` and goes on with `t` outside of the tree with the probability of the path to `n` times
    that of `t` after it. Among the nodes that were asked about (`nodes`), no other choice of as
    many outcomes contains what comes more often then. Ours: the published
    allocation is `Geometric`.
    """

    name = "likeliest"

    def outcomes(self, outlook: Outlook, budget: int) -> Sequence[Outcome]:
        found = [
            (score, -node, Outcome(node, token))
            for node in range(len(outlook.tree))
            for token, score in zip(*(array.tolist() for array in outlook.after(node)), strict=True)
        ]
        return [outcome for *_, outcome in nlargest(budget, found, key=lambda one: one[:2])]


@attrs.frozen
class Geometric(Fanout):
    """The likeliest tokens after each node of the likeliest path, fewer the deeper it is, and more at its end.

    SSD (arXiv 2603.03251), its geometric fan-out. With `a` the probability that a drafted token is accepted, a path of
    `K` ends after `k` with probability `a^k (1 - a)`, and at its end with `a^K`. If the `F` likeliest tokens miss the
    target's with probability `F^-r`, the fewest misses for `sum(F_k)` outcomes come of

        F_k = F_0 a^(k / (1 + r)) for k < K,    F_K = F_0 a^(K / (1 + r)) (1 - a)^(-1 / (1 + r)).

    They are rounded so that they add up to the budget. `a` is what was measured in this text (`Outlook.acceptance`).
    SSD drafts chains; along the likeliest path of a tree it is ours.

    Attributes:
        r: how fast misses become fewer, above 0.
    """

    name = "geometric"
    r: float = attrs.field(default=1.0, validator=[number, ge(1e-3)])

    def nodes(self, tree: TokenTree, budget: int) -> IntArray:
        return best_path(tree)

    def outcomes(self, outlook: Outlook, budget: int) -> Sequence[Outcome]:
        path = best_path(outlook.tree).tolist()
        found = []
        shares = whole_shares(geometric_shares(len(path) - 1, outlook.acceptance, self.r, budget), budget)
        for node, share in zip(path, shares, strict=True):
            tokens, scores = outlook.after(node)
            found += [
                (score, Outcome(node, token))
                for token, score in zip(tokens[:share].tolist(), scores[:share].tolist(), strict=True)
            ]
        return [outcome for _, outcome in sorted(found, key=lambda one: -one[0])]


def path_ends(tree: TokenTree) -> FloatArray:
    """The probability that the path ends at each node, and at none of its children, shape `(nodes,)`."""
    reached = np.exp(tree.path_logp)
    goes_on = np.bincount(tree.parents[1:], reached[1:], minlength=len(tree)).astype(np.float64)
    return reached - goes_on


def best_path(tree: TokenTree) -> IntArray:
    """The path to the likeliest of the deepest nodes, root first; indices, int64."""
    deepest = np.flatnonzero(tree.depths == tree.depths.max())
    return tree.path(int(deepest[tree.path_logp[deepest].argmax()]))


def geometric_shares(depth: int, acceptance: float, r: float, budget: int) -> list[float]:
    """The `F_k` of `Geometric` for k from 0 to `depth`; they add up to `budget`.

    Args:
        depth: K.
        acceptance: a, in (0, 1).
        r: likewise.
        budget: likewise.
    """
    shares = [acceptance ** (k / (1 + r)) for k in range(depth)]
    shares.append((acceptance**depth / (1 - acceptance)) ** (1 / (1 + r)))
    return [budget * share / sum(shares) for share in shares]


def whole_shares(shares: Sequence[float], budget: int) -> list[int]:
    """Shares as whole numbers that add up to `budget`: those that lose most by rounding down get one more."""
    whole = [int(share) for share in shares]
    most = sorted(range(len(shares)), key=lambda place: whole[place] - shares[place])
    for place in most[: budget - sum(whole)]:
        whole[place] += 1
    return whole
