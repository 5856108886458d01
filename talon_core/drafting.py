"""Growing draft trees: asks the policies, asks the drafter, and checks both of them at every step."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Drafter
from talon_core.errors import PluginError, blaming, naming
from talon_core.policy import Growth, TreePolicy
from talon_core.tree import IntArray, TokenTree, read_only

_KINDS = {"iu": "integers", "f": "floating-point numbers"}
MOST_NODES = 65_536
"""The largest budget: far beyond what pays, and small enough to compute with."""

LOGP_SLACK = 1e-3  # a drafter's half-precision log-probability may come out slightly above 0


@attrs.frozen
class DraftLimits:
    """What bounds one sequence's tree besides its policy.

    Attributes:
        vocab_size: token ids are 0 to `vocab_size - 1`.
        max_depth: deepest node that could still be emitted, counted from the root at 0.
        ends: tokens after which nothing is drafted.
    """

    vocab_size: int
    max_depth: int
    ends: frozenset[int] = frozenset()


@attrs.frozen(eq=False)
class Drafted:
    """A finished tree and what it took.

    Attributes:
        tree: what is sent to the target.
        drafted: the tree as it was drafted, before `TreePolicy.finish` selected from it.
        draft_seconds: time in the drafter, of the whole batch.
        policy_seconds: time in this sequence's policy, the checks included.
    """

    tree: TokenTree
    drafted: TokenTree
    draft_seconds: float
    policy_seconds: float


def checked_budget(policy: TreePolicy, which: str = "budget") -> int:
    """A policy's `budget` or `draft_budget`.

    Raises:
        PluginError: if it is not a whole number of at least 1.
        ValueError: if it is more than `MOST_NODES`, which is what a user has asked for.
    """
    with blaming("tree policy", policy, which):
        budget = getattr(policy, which)
    if not isinstance(budget, int | np.integer) or budget < 1:
        raise PluginError(
            f"{naming('tree policy', policy)} has a {which} of {budget!r}; "
            "it must be a whole number of nodes, at least 1"
        )
    if budget > MOST_NODES:
        raise ValueError(
            f"{naming('tree policy', policy)} has a {which} of {budget} nodes; it must be at most {MOST_NODES}"
        )
    return int(budget)


class _Growing:
    """One sequence's tree while it grows."""

    def __init__(self, policy: TreePolicy, root: int, limits: DraftLimits) -> None:
        self.policy = policy
        self.limits = limits
        self.tree = TokenTree.root(root)
        self.frontier: IntArray = self._usable(np.zeros(1, dtype=np.int64))
        self.drafted_from = np.zeros(1, dtype=bool)
        self.seconds = 0.0
        self.budgets = (checked_budget(policy), checked_budget(policy, "draft_budget"))

    def _usable(self, frontier: IntArray) -> IntArray:
        if not len(frontier):
            return frontier
        deep = self.tree.depths[frontier] >= self.limits.max_depth
        ended = np.isin(self.tree.tokens[frontier], list(self.limits.ends)) if self.limits.ends else deep
        return frontier[~(deep | ended)]

    def fail(self, what: str) -> PluginError:
        return PluginError(f"{naming('tree policy', self.policy)} {what}")

    def width(self) -> int:
        """Candidates wanted per frontier node: at least 1, at most the vocabulary."""
        started = perf_counter()
        with blaming("tree policy", self.policy, "width"):
            width = int(self.policy.width(self.tree))
        self.seconds += perf_counter() - started
        return min(max(width, 1), self.limits.vocab_size)

    def grow(self, candidates: Candidates) -> None:
        """Let the policy choose, check its answer, and take it."""
        self.drafted_from[self.frontier] = True
        if not (candidates.tokens >= 0).any():
            self.frontier = self.frontier[:0]
            return
        started = perf_counter()
        with blaming("tree policy", self.policy, "grow"):
            growth = self.policy.grow(self.tree, candidates)
        chosen = self._checked_choice(growth, candidates)
        if not len(chosen):
            self.frontier = self.frontier[:0]
            self.seconds += perf_counter() - started
            return
        old = len(self.tree)
        self.tree = self.tree.extend(
            candidates.tokens.ravel()[chosen], candidates.parents(chosen), candidates.path_logp.ravel()[chosen]
        )
        self.drafted_from = np.concatenate([self.drafted_from, np.zeros(len(chosen), dtype=bool)])
        if len(self.tree) >= self.budgets[1]:
            self.frontier = self.frontier[:0]
        else:
            self.frontier = self._usable(self._checked_frontier(growth, old))
        self.seconds += perf_counter() - started

    def _checked_choice(self, growth: Growth, candidates: Candidates) -> IntArray:
        if not isinstance(growth, Growth):
            raise self.fail(f"returned {type(growth).__name__} from grow; it must return a Growth")
        chosen = _array(growth.chosen)
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise self.fail(
                f"chose candidates as an array of shape {chosen.shape} and type {chosen.dtype}; "
                "it must be one-dimensional and hold integers"
            )
        chosen = chosen.astype(np.int64)
        tokens = candidates.tokens.ravel()
        if chosen.size and (chosen.min() < 0 or chosen.max() >= tokens.size):
            outside = int(chosen.min() if chosen.min() < 0 else chosen.max())
            raise self.fail(f"chose candidate {outside}; there are candidates 0 to {tokens.size - 1}")
        if len(np.unique(chosen)) != len(chosen):
            raise self.fail("chose the same candidate twice; each may join the tree once")
        if (tokens[chosen] < 0).any():
            raise self.fail("chose a padded candidate (token -1); only candidates with a finite logp exist")
        if len(self.tree) + len(chosen) > self.budgets[1]:
            raise self.fail(
                f"grew its tree to {len(self.tree) + len(chosen)} nodes, the root included; "
                f"its draft_budget is {self.budgets[1]}"
            )
        return chosen

    def _checked_frontier(self, growth: Growth, old: int) -> IntArray:
        if growth.frontier is None:
            return np.arange(old, len(self.tree))
        frontier = _array(growth.frontier)
        if frontier.ndim != 1 or (frontier.size and frontier.dtype.kind not in "iu"):
            raise self.fail(
                f"returned a frontier of shape {frontier.shape} and type {frontier.dtype}, not node indices"
            )
        frontier = frontier.astype(np.int64)
        if frontier.size and (frontier.min() < 0 or frontier.max() >= len(self.tree)):
            raise self.fail(f"wants to draft from a node outside its tree of {len(self.tree)} nodes")
        if len(np.unique(frontier)) != len(frontier) or self.drafted_from[frontier].any():
            raise self.fail("wants to draft from a node twice; each node is drafted from at most once a round")
        if not self.drafted_from[self.tree.parents[frontier]].all():
            raise self.fail("wants to draft from a node whose parent was not drafted from")
        return frontier

    def finish(self) -> TokenTree:
        """Let the policy select, and check what it sends to the target."""
        started = perf_counter()
        with blaming("tree policy", self.policy, "finish"):
            tree = self.policy.finish(self.tree)
        if not isinstance(tree, TokenTree):
            raise self.fail(f"returned {type(tree).__name__} from finish; it must return a TokenTree")
        if len(tree) > self.budgets[0]:
            raise self.fail(f"finished a tree of {len(tree)} nodes, the root included; its budget is {self.budgets[0]}")
        if tree is not self.tree:
            self._check_finished(tree)
        self.seconds += perf_counter() - started
        return tree

    def _check_finished(self, tree: TokenTree) -> None:
        if tree.tokens[0] != self.tree.tokens[0]:
            raise self.fail(f"changed the root's token from {self.tree.tokens[0]} to {tree.tokens[0]}")
        if (tree.tokens < 0).any() or (tree.tokens >= self.limits.vocab_size).any():
            raise self.fail(f"finished a tree with a token outside the vocabulary of {self.limits.vocab_size}")
        if not np.isfinite(tree.path_logp).all():
            raise self.fail("finished a tree with a score that is not finite")
        if int(tree.depths.max()) > self.limits.max_depth:
            raise self.fail(f"finished a tree deeper than {self.limits.max_depth}, the deepest that can be emitted")


def _array(given: object) -> NDArray[Any]:
    """What a policy gave as an array; lists of unequal rows become objects, which the checks refuse."""
    try:
        return np.asarray(given)
    except ValueError:
        return np.empty((0, 0), dtype=object)


def _checked(candidates: Candidates, growing: _Growing, width: int, drafter: Drafter) -> Candidates:
    """The drafter's answer, if it keeps its contract; read only, so that no policy can change what was checked."""

    def fail(what: str) -> PluginError:
        return PluginError(f"{naming('drafter', drafter)} {what}")

    if not isinstance(candidates, Candidates):
        raise fail(f"returned {type(candidates).__name__} from propose; it must return one Candidates per tree")
    tokens, logp, path_logp = candidates.tokens, candidates.logp, candidates.path_logp
    rows = len(growing.frontier)
    for what, array, kinds in (("tokens", tokens, "iu"), ("logp", logp, "f"), ("path_logp", path_logp, "f")):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
            dtype = getattr(array, "dtype", type(array).__name__)
            raise fail(f"returned {what} of type {dtype}; it must be a NumPy array of {_KINDS[kinds]}")
    if tokens.ndim != 2 or tokens.shape != logp.shape or tokens.shape != path_logp.shape or len(tokens) != rows:
        raise fail(
            f"returned tokens, logp and path_logp of shapes {tokens.shape}, {logp.shape} and {path_logp.shape}; "
            f"all must be ({rows}, width), one row for each frontier node"
        )
    if not 1 <= tokens.shape[1] <= width:
        raise fail(f"returned {tokens.shape[1]} candidates per node; between 1 and {width} were asked for")
    if not np.array_equal(candidates.frontier, growing.frontier):
        raise fail("returned candidates for other nodes than the frontier's")
    if tokens.min() < -1 or tokens.max() >= growing.limits.vocab_size:
        bad = int(tokens.min() if tokens.min() < -1 else tokens.max())
        raise fail(f"proposed token {bad}; the target's vocabulary has ids 0 to {growing.limits.vocab_size - 1}")
    real = tokens >= 0
    finite = np.isfinite(path_logp) & (logp <= LOGP_SLACK)
    if not (finite == real).all() or np.isnan(logp).any():
        raise fail(
            "gave a candidate a log-probability that is not a finite number of at most 0 "
            "(padding has token -1 and minus infinity)"
        )
    if (logp > 0).any():  # clipped, so that no path scores above its parent's
        logp = np.minimum(logp, 0.0)
        path_logp = growing.tree.path_logp[growing.frontier][:, None] + logp
    return Candidates(
        frontier=read_only(growing.frontier),
        tokens=read_only(tokens),
        logp=read_only(logp),
        path_logp=read_only(path_logp),
        choices=candidates.choices,
        law=candidates.law,
    )


def draft_trees(
    policies: Sequence[TreePolicy],
    drafter: Drafter,
    roots: Sequence[int],
    limits: Sequence[DraftLimits],
    choices: Sequence[Choices],
) -> list[Drafted]:
    """Draft one tree per sequence.

    Args:
        policies: one per sequence.
        drafter: has been told everything committed so far.
        roots: the last committed token of each sequence.
        limits: what bounds each tree besides its policy.
        choices: randomness handed on to the policies in `Candidates.choices`.

    Raises:
        PluginError: if a policy or the drafter breaks its contract; the message names it.
    """
    growing = [_Growing(*of) for of in zip(policies, roots, limits, strict=True)]
    draft_seconds = 0.0
    while any(len(one.frontier) for one in growing):
        widths = [one.width() if len(one.frontier) else 1 for one in growing]
        started = perf_counter()
        trees, frontiers = [one.tree for one in growing], [read_only(one.frontier) for one in growing]
        with blaming("drafter", drafter, "propose"):
            proposed = drafter.propose(trees, frontiers, widths, choices)
        draft_seconds += perf_counter() - started
        if not isinstance(proposed, list | tuple) or len(proposed) != len(growing):
            count = f"{len(proposed)} items" if isinstance(proposed, list | tuple) else type(proposed).__name__
            raise PluginError(
                f"{naming('drafter', drafter)} returned {count} from propose; it must return a list of "
                f"{len(growing)} Candidates, one per tree"
            )
        for one, candidates, width in zip(growing, proposed, widths, strict=True):
            if len(one.frontier):
                one.grow(_checked(candidates, one, width, drafter))
    return [Drafted(one.finish(), one.tree, draft_seconds, one.seconds) for one in growing]


def draft_tree(
    policy: TreePolicy,
    drafter: Drafter,
    root: int,
    limits: DraftLimits,
    choices: Choices,
) -> Drafted:
    """`draft_trees` for a single sequence."""
    return draft_trees([policy], drafter, [root], [limits], [choices])[0]
