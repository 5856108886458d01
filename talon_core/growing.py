"""One draft tree while it grows: asks the policy, and checks what it answers."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.drawn import KINDS, ChildrenKind, Drawn, fault
from talon_core.errors import PluginError, blaming, naming
from talon_core.policy import Growth, TreePolicy
from talon_core.tree import IntArray, TokenTree

MOST_NODES = 65_536
"""The largest budget: far beyond what pays, and small enough to compute with."""


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


class Growing:
    """One sequence's tree while it grows."""

    def __init__(self, policy: TreePolicy, root: int, limits: DraftLimits) -> None:
        self.policy = policy
        self.limits = limits
        self.tree = TokenTree.root(root)
        self.frontier: IntArray = self._usable(np.zeros(1, dtype=np.int64))
        self.drafted_from = np.zeros(1, dtype=bool)
        self.seconds = 0.0
        self.budgets = (checked_budget(policy), checked_budget(policy, "draft_budget"))
        self.kind = checked_kind(policy)

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
        drawn = self._checked_draws(growth, candidates, chosen)
        old, count = len(self.tree), len(chosen) + sum(len(one.nodes) for one in drawn.values())
        if old + count > self.budgets[1]:
            raise self.fail(
                f"grew its tree to {old + count} nodes, the root included; its draft_budget is {self.budgets[1]}"
            )
        if not count:
            self.frontier = self.frontier[:0]
            self.seconds += perf_counter() - started
            return
        self.tree = self._grown(candidates, chosen, drawn)
        self.drafted_from = np.concatenate([self.drafted_from, np.zeros(count, dtype=bool)])
        if len(self.tree) >= self.budgets[1]:
            self.frontier = self.frontier[:0]
        else:
            self.frontier = self._usable(self._checked_frontier(growth, old))
        self.seconds += perf_counter() - started

    def _grown(self, candidates: Candidates, chosen: IntArray, drawn: Mapping[int, Drawn]) -> TokenTree:
        tokens, parents = [candidates.tokens.ravel()[chosen]], [candidates.parents(chosen)]
        path_logp = [candidates.path_logp.ravel()[chosen]]
        for row, one in drawn.items():
            parent, firsts = candidates.frontier[row], one.firsts
            tokens.append(one.tokens[firsts])
            parents.append(np.full(len(firsts), parent))
            path_logp.append(self.tree.path_logp[parent] + one.logp[firsts])
        by_parent = {int(candidates.frontier[row]): one for row, one in drawn.items()}
        return self.tree.extend(np.concatenate(tokens), np.concatenate(parents), np.concatenate(path_logp), by_parent)

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
        return chosen

    def _checked_draws(self, growth: Growth, candidates: Candidates, chosen: IntArray) -> Mapping[int, Drawn]:
        """What was drawn, if it is what trees of this policy's kind may hold."""
        kind, name = self.kind, self.policy.children
        if not isinstance(growth.drawn, Mapping):
            raise self.fail(f"returned draws as {type(growth.drawn).__name__}; they are a mapping from frontier rows")
        if len(chosen) and not kind.fixed:
            raise self.fail(f"chose fixed candidates; its children are {name}, so all of them are drawn")
        for row, drawn in growth.drawn.items():
            if not isinstance(drawn, Drawn) or not isinstance(row, int | np.integer):
                raise self.fail(
                    f"returned a draw {row!r}: {type(drawn).__name__}; it must be a frontier row and a Drawn"
                )
            if not 0 <= row < len(candidates.frontier):
                raise self.fail(f"drew for frontier row {row}; there are rows 0 to {len(candidates.frontier) - 1}")
            if kind.most is not None and len(drawn.tokens) > kind.most:
                raise self.fail(f"drew {len(drawn.tokens)} children of one node; its children are {name}")
            if kind.replacement is not None and len(drawn.tokens) > 1 and drawn.replacement != kind.replacement:
                how = "with" if drawn.replacement else "without"
                raise self.fail(f"drew {how} replacement; its children are {name}")
            self._check_law(drawn, candidates.tokens.ravel()[chosen[chosen // candidates.width == row]])
        return growth.drawn

    def _check_law(self, drawn: Drawn, fixed: IntArray) -> None:
        law = drawn.law
        if len(law) != self.limits.vocab_size:
            raise self.fail(f"drew from a law of {len(law)} tokens; the vocabulary has {self.limits.vocab_size}")
        wrong = fault(law)
        if wrong is not None:
            raise self.fail(f"drew from a law that {wrong}")
        if len(fixed) and law[fixed].any():
            token = int(fixed[law[fixed] > 0][0])
            raise self.fail(
                f"drew from a law that gives token {token}, a fixed child of the same node, {law[token]:.3g}; "
                "take fixed children out of the law"
            )
        if not np.isfinite(drawn.logp).all():
            raise self.fail("gave a drawn child a score that is not finite")

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
        self._check_finished_draws(tree)
        if int(tree.depths.max()) > self.limits.max_depth:
            raise self.fail(f"finished a tree deeper than {self.limits.max_depth}, the deepest that can be emitted")

    def _check_finished_draws(self, tree: TokenTree) -> None:
        """Draws cannot be made up, and what was drawn cannot become fixed where rules test what is drawn."""
        if not self.tree.drawn and not tree.drawn:
            return
        for node, drawn in tree.drawn.items():
            path = self.tree.follow(tree.tokens[tree.path(node)[1:]])
            own = self.tree.drawn.get(int(path[-1])) if len(path) == tree.depths[node] + 1 else None
            same = own is not None and own.law is drawn.law and own.replacement == drawn.replacement
            if own is None or not same or not _begins(own.tokens, drawn.tokens):
                raise self.fail("finished a tree with draws that it had not made; select nodes with TokenTree.keep")
        if not self.kind.fixed and not set(tree.parents[1:].tolist()) <= set(tree.drawn):
            raise self.fail("finished a tree that does not say how its children were drawn; use TokenTree.keep")


def checked_kind(policy: TreePolicy) -> ChildrenKind:
    """What a policy's trees may hold.

    Raises:
        PluginError: if there is no such kind.
    """
    try:
        return KINDS[policy.children]
    except (KeyError, TypeError):
        raise PluginError(
            f"{naming('tree policy', policy)} says that its children are {policy.children!r}; "
            f"kinds are {', '.join(KINDS)}"
        ) from None


def _begins(tokens: IntArray, first: IntArray) -> bool:
    return np.array_equal(tokens[: len(first)], first)


def _array(given: object) -> NDArray[Any]:
    """What a policy gave as an array; lists of unequal rows become objects, which the checks refuse."""
    try:
        return np.asarray(given)
    except ValueError:
        return np.empty((0, 0), dtype=object)
