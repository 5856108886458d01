"""One draft tree while it grows: asks the policy, and checks what it answers."""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Frontier
from talon_core.drawn import KINDS, Drawn, fault
from talon_core.engine.checked_policy import checked_budgets, checked_children
from talon_core.errors import PluginError, blaming, described, is_whole, naming, written
from talon_core.policy import Growth, TreePolicy
from talon_core.rounds import Span
from talon_core.tree import IntArray, TokenTree, with_nodes
from talon_core.tree_arrays import ints


@attrs.frozen
class DraftLimits:
    """What bounds one sequence's tree besides its policy.

    Attributes:
        vocab_size: token ids are 0 to `vocab_size - 1`.
        max_depth: deepest node that could still be emitted, counted from the root at 0.
        ends: tokens after which nothing is drafted.
        children: the kind of trees that the rule is exact for; None for what the policy says of itself.
        budgets: the policy's `budget` and `draft_budget` when its sequence began, by which memory was reserved; None
            where none was.
    """

    vocab_size: int
    max_depth: int
    ends: frozenset[int] = frozenset()
    children: str | None = None
    budgets: tuple[int, int] | None = None


THE_ROOT, NO_NODES = ints([0]), ints([0])[:0]


class Growing:
    """One sequence's tree while it grows.

    The policy never sees what is kept here. It is shown copies, and what it answers is read once, copied and checked.
    """

    def __init__(
        self, policy: TreePolicy, root: int, limits: DraftLimits, now: Callable[[], float] = perf_counter
    ) -> None:
        self.policy = policy
        self.limits = limits
        self.tree = TokenTree.root(root)
        goes_on = root not in limits.ends and limits.max_depth > 0
        self._wanted = THE_ROOT  # what the policy would draft from next, were there no limits
        self.frontier = THE_ROOT if goes_on else NO_NODES
        self._drafted_from: set[int] = set()
        self.spans: list[Span] = []  # of the policy
        self._layer = 0  # that is drafted next
        self._now = now
        self.budgets = checked_budgets(policy, limits.budgets)
        self.children = checked_children(policy)
        self.kind = KINDS[self.children]
        if limits.children not in (None, self.children):
            raise self.fail(
                f"says that its children are {self.children}, and said {limits.children} when its rule was checked; "
                "that must stay as it is"
            )
        self.shown_draws: dict[int, Drawn] = {}
        self.shown = self.tree.copied()

    def within(self, limits: DraftLimits) -> "Growing":
        """The same tree as another object, to go on from here within limits that may be of another depth.

        A policy is not told how deep it may draft: as long as the same frontiers are usable, the tree is the same.

        Args:
            limits: the same but for `max_depth`.
        """
        own = object.__new__(Growing)
        own.__dict__.update(self.__dict__)
        own.limits = limits
        own._drafted_from, own.spans = {*self._drafted_from}, [*self.spans]
        own.shown = self.tree.copied()
        own.shown_draws = {**own.shown.drawn}
        own.frontier = own._usable(own._wanted)
        return own

    def _usable(self, nodes: IntArray) -> IntArray:
        ends, most = self.limits.ends, self.limits.max_depth
        tokens, depths = self.tree.tokens.take(nodes).tolist(), self.tree.depths.take(nodes).tolist()
        if ends.isdisjoint(tokens) and max(depths, default=0) < most:
            return nodes
        held = zip(nodes.tolist(), tokens, depths, strict=True)
        return np.array([node for node, token, depth in held if depth < most and token not in ends], dtype=np.int64)

    def fail(self, what: str) -> PluginError:
        return PluginError(f"{naming('tree policy', self.policy)} {what}")

    def width(self) -> int:
        """Candidates wanted per frontier node, at most the vocabulary; 0 where the policy wants none, and ends."""
        started = self._now()
        try:  # and no `blaming`, which takes longer than most policies
            given: Any = self.policy.width(self.shown)
        except (PluginError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self.fail(f"raised {described(error, 'width')}") from error
        try:
            width = int(given)
        except Exception:  # whatever is no number
            raise self.fail(f"returned {written(given)} from width; it must be a number of candidates") from None
        self.spans.append(Span("policy", started, self._now(), "width", self._layer))
        if width < 1:
            self.frontier = self.frontier[:0]
        return min(max(width, 0), self.limits.vocab_size)

    def asked(self) -> Frontier | None:
        """What is asked of a drafter for its next layer, where it grows alone, in slot 0; None where it is to end."""
        if not len(self.frontier):
            return None
        frontier, width = self.frontier, self.width()
        return Frontier(0, self.tree, frontier, width) if width else None

    def grow(self, candidates: Candidates, choices: Choices) -> None:
        """Let the policy choose, check its answer, and take it.

        Args:
            candidates: the engine's own, for the frontier.
            choices: the policy's randomness.
        """
        self._drafted_from.update(self.frontier.tolist())
        self._wanted, layer, self._layer = NO_NODES, self._layer, self._layer + 1
        if candidates.tokens.item(0) < 0 and candidates.tokens.max() < 0:
            self.frontier = NO_NODES
            return
        started = self._now()
        try:
            growth = self.policy.grow(self.shown, candidates.copied(), choices)
            if not isinstance(growth, Growth):
                raise self.fail(f"returned {type(growth).__name__} from grow; it must return a Growth")
            chosen, frontier, drawn = given_array(growth.chosen), growth.frontier, growth.drawn
            frontier = None if frontier is None else given_array(frontier)
            drawn = dict(drawn) if isinstance(drawn, Mapping) else drawn
        except (PluginError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self.fail(f"raised {described(error, 'grow')}") from error
        chosen = self._checked_choice(chosen, candidates)
        own = self._checked_draws(drawn, candidates, chosen)
        old, count = len(self.tree), len(chosen) + sum([len(one.nodes) for one in own.values()])
        if old + count > self.budgets[1]:
            raise self.fail(
                f"grew its tree to {old + count} nodes, the root included; its draft_budget is {self.budgets[1]}"
            )
        if count:
            self._take(candidates, chosen, own)
            if old + count < self.budgets[1]:
                self._wanted = self._checked_frontier(frontier, old)
        self.frontier = self._usable(self._wanted) if len(self._wanted) else NO_NODES
        self.spans.append(Span("policy", started, self._now(), "grow", layer))

    def _take(self, candidates: Candidates, chosen: IntArray, drawn: Mapping[int, Drawn]) -> None:
        fixed = candidates.tokens.take(chosen), candidates.parents(chosen), candidates.path_logp.take(chosen)
        self.tree = with_nodes(self.tree, *fixed, self.tree.drawn, layer=True)
        for row, one in drawn.items():
            parent, firsts = int(candidates.frontier[row]), one.firsts
            score = self.tree.path_logp[parent]
            children = one.tokens[firsts], np.full(len(firsts), parent), score + one.logp[firsts]
            self.tree = with_nodes(self.tree, *children, {**self.tree.drawn, parent: one}, layer=True)
            self.shown_draws[parent] = one.copied()
        self.shown = self.tree.copied(self.shown_draws)

    def _checked_choice(self, chosen: NDArray[Any], candidates: Candidates) -> IntArray:
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise self.fail(
                f"chose candidates as an array of shape {chosen.shape} and type {chosen.dtype}; "
                "it must be one-dimensional and hold integers"
            )
        chosen = chosen.astype(np.int64)
        flat, count = chosen.tolist(), candidates.tokens.size  # of so few numbers Python's own checks are faster
        if not flat:
            return chosen
        lowest, highest = min(flat), max(flat)
        if lowest < 0 or highest >= count:
            wrong = lowest if lowest < 0 else highest
            raise self.fail(f"chose candidate {wrong}; there are candidates 0 to {count - 1}")
        if len(set(flat)) < len(flat):
            raise self.fail("chose the same candidate twice; each may join the tree once")
        if min(candidates.tokens.take(chosen).tolist()) < 0:
            raise self.fail("chose a padded candidate (token -1); only candidates with a finite logp exist")
        return chosen

    def _checked_draws(self, drawn: object, candidates: Candidates, chosen: IntArray) -> dict[int, Drawn]:
        """Copies of what was drawn, if it is what trees of this policy's kind may hold."""
        if not isinstance(drawn, dict):
            raise self.fail(f"returned draws as {type(drawn).__name__}; they are a mapping from frontier rows")
        if len(chosen) and not self.kind.fixed:
            raise self.fail(f"chose fixed candidates; its children are {self.children}, so all of them are drawn")
        own: dict[int, Drawn] = {}
        for row, given in drawn.items():
            if not isinstance(given, Drawn) or not is_whole(row):
                raise self.fail(
                    f"returned a draw {written(row)}: {type(given).__name__}; it must be a frontier row and a Drawn"
                )
            if not 0 <= row < len(candidates.frontier):
                raise self.fail(f"drew for frontier row {row}; there are rows 0 to {len(candidates.frontier) - 1}")
            with blaming("tree policy", self.policy, "grow"):
                one = own[int(row)] = own_draws(given)
            if self.kind.most is not None and len(one.tokens) > self.kind.most:
                raise self.fail(f"drew {len(one.tokens)} children of one node; its children are {self.children}")
            if self.kind.replacement not in (None, one.replacement) and len(one.tokens) > 1:
                how = "with" if one.replacement else "without"
                raise self.fail(f"drew {how} replacement; its children are {self.children}")
            self._check_law(one, candidates.tokens.ravel()[chosen[chosen // candidates.width == row]])
        return own

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

    def _checked_frontier(self, frontier: NDArray[Any] | None, old: int) -> IntArray:
        if frontier is None:
            return np.arange(old, len(self.tree))
        if frontier.ndim != 1 or (frontier.size and frontier.dtype.kind not in "iu"):
            raise self.fail(
                f"returned a frontier of shape {frontier.shape} and type {frontier.dtype}, not node indices"
            )
        frontier = frontier.astype(np.int64)
        nodes = frontier.tolist()
        if nodes and (min(nodes) < 0 or max(nodes) >= len(self.tree)):
            raise self.fail(f"wants to draft from a node outside its tree of {len(self.tree)} nodes")
        if len(set(nodes)) < len(nodes) or not self._drafted_from.isdisjoint(nodes):
            raise self.fail("wants to draft from a node twice; each node is drafted from at most once a round")
        if not self._drafted_from.issuperset(self.tree.parents[frontier].tolist()):
            raise self.fail("wants to draft from a node whose parent was not drafted from")
        return frontier

    def finish(self) -> TokenTree:
        """Let the policy select, and check what it sends to the target."""
        started = self._now()
        with blaming("tree policy", self.policy, "finish"):
            given = self.policy.finish(self.shown)
            if not isinstance(given, TokenTree):
                raise self.fail(f"returned {type(given).__name__} from finish; it must return a TokenTree")
            tree = self.tree if given is self.shown else _own_tree(given)
        if len(tree) > self.budgets[0]:
            raise self.fail(f"finished a tree of {len(tree)} nodes, the root included; its budget is {self.budgets[0]}")
        if tree is not self.tree:
            self._check_finished(tree)
        self.spans.append(Span("policy", started, self._now(), "finish"))
        return tree

    def _check_finished(self, tree: TokenTree) -> None:
        if tree.tokens[0] != self.tree.tokens[0]:
            raise self.fail(f"changed the root's token from {self.tree.tokens[0]} to {tree.tokens[0]}")
        tokens = tree.tokens.tolist()
        if min(tokens) < 0 or max(tokens) >= self.limits.vocab_size:
            raise self.fail(f"finished a tree with a token outside the vocabulary of {self.limits.vocab_size}")
        if not np.isfinite(tree.path_logp).all():
            raise self.fail("finished a tree with a score that is not finite")
        self._check_finished_draws(tree)
        if max(tree.depths.tolist()) > self.limits.max_depth:
            raise self.fail(f"finished a tree deeper than {self.limits.max_depth}, the deepest that can be emitted")

    def _check_finished_draws(self, tree: TokenTree) -> None:
        """Draws cannot be made up, and what was drawn cannot become fixed where rules test what is drawn."""
        if not self.tree.drawn and not tree.drawn:
            return
        for node, drawn in tree.drawn.items():
            path = self.tree.follow(tree.tokens[tree.path(node)[1:]])
            own = self.tree.drawn.get(int(path[-1])) if len(path) == tree.depths[node] + 1 else None
            if own is None or own.replacement != drawn.replacement or not _same_start(own, drawn):
                raise self.fail("finished a tree with draws that it had not made; select nodes with TokenTree.keep")
        if not self.kind.fixed and not set(tree.parents[1:].tolist()) <= set(tree.drawn):
            raise self.fail("finished a tree that does not say how its children were drawn; use TokenTree.keep")


def own_draws(given: Drawn) -> Drawn:
    """What a plugin has given as draws, as a new object of this very class, whatever it was.

    Raises:
        ValueError: if it is none.
    """
    if not isinstance(given.replacement, bool | np.bool_):
        raise ValueError(  # noqa: TRY004 - as the other faults of draws
            f"replacement of draws is {written(given.replacement)}; it must be True or False"
        )
    return Drawn(given.tokens, given.law, bool(given.replacement), given.logp)


def _own_tree(given: TokenTree) -> TokenTree:
    drawn = {}
    for node, one in dict(given.drawn).items():
        if not is_whole(node) or not isinstance(one, Drawn):
            raise ValueError(
                f"a tree's draws hold {written(node)}: {type(one).__name__}; it must be a node and a Drawn"
            )
        drawn[int(node)] = own_draws(one)
    return TokenTree(given.tokens, given.parents, given.path_logp, drawn)


def _same_start(own: Drawn, drawn: Drawn) -> bool:
    """Whether draws are the first of these; laws share their memory unless somebody has made them anew."""
    same_law = own.law.base is drawn.law.base or np.array_equal(own.law, drawn.law)
    return same_law and np.array_equal(own.tokens[: len(drawn.tokens)], drawn.tokens)


def given_array(given: object) -> NDArray[Any]:
    """What a policy gave as an array; lists of unequal rows become objects, which the checks refuse."""
    try:
        return np.asarray(given)
    except ValueError:
        return np.empty((0, 0), dtype=object)
