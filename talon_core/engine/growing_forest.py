"""Several draft trees while they grow together: asks their policy for all at once, and checks what it answers."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.drawn import KINDS
from talon_core.engine.checked_policy import checked_budgets, checked_children
from talon_core.engine.growing import given_array
from talon_core.errors import PluginError, blaming, naming
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_drawer import ForestDrawer, ForestDraws, ForestLaws
from talon_core.forest_grower import ForestGrower, ForestGrowth
from talon_core.forest_learner import LearningForest
from talon_core.policy import TreePolicy
from talon_core.tree import FloatArray, IntArray

Taking = Callable[[IntArray, IntArray], tuple[IntArray, FloatArray]]
"""`taking(rows, ranks)`: the tokens of some candidates, -1 for padding, and the log-probabilities of their paths."""

LawsOf = Callable[[ForestCandidates, IntArray], ForestLaws]
"""`laws(shown, rows)`: the laws at those rows of the candidates of a layer that a policy is shown."""


class Alike:
    """How policies are asked that are equal in all that they know: one for all.

    Args:
        grower: it.
    """

    method = "grow_forest"

    def __init__(self, grower: ForestGrower) -> None:
        self.policy: TreePolicy = grower
        self._grower = grower

    def growth(self, forest: Forest, shown: ForestCandidates, laws: ForestLaws | None) -> Any:
        """What it answers to a layer."""
        return self._grower.grow_forest(forest, shown)

    def widths(self, forest: Forest, of: IntArray) -> tuple[NDArray[Any], IntArray]:
        """What it says of widths, and of which trees that is.

        Args:
            forest: every node so far.
            of: the trees of the nodes that are drafted from.
        """
        return given_array(self._grower.widths(forest)), np.arange(forest.size)

    def hand_back(self) -> None:
        """There is nothing that it has learnt for others."""


class Drawers:
    """How policies are asked that draw, and are equal in all that they know.

    Args:
        drawer: one of them.
    """

    method = "draw_forest"

    def __init__(self, drawer: ForestDrawer) -> None:
        self.policy: TreePolicy = drawer
        self._drawer = drawer

    def growth(self, forest: Forest, shown: ForestCandidates, laws: ForestLaws | None) -> Any:
        """As `Alike.growth`."""
        assert laws is not None
        return self._drawer.draw_forest(forest, shown, laws)

    def widths(self, forest: Forest, of: IntArray) -> tuple[NDArray[Any], IntArray]:
        """As `Alike.widths`."""
        return given_array(self._drawer.forest_widths(forest)), np.arange(forest.size)

    def hand_back(self) -> None:
        """There is nothing that it has learnt for others."""


class Learners:
    """How policies are asked that have learnt of their own texts.

    Args:
        forest: they, as one.
    """

    method = "grow_forest"

    def __init__(self, forest: LearningForest) -> None:
        self.policy: TreePolicy = forest.policies[0]
        self._forest = forest

    def growth(self, forest: Forest, shown: ForestCandidates, laws: ForestLaws | None) -> Any:
        """As `Alike.growth`."""
        return self._forest.grow_forest(forest, shown)

    def widths(self, forest: Forest, of: IntArray) -> tuple[NDArray[Any], IntArray]:
        """As `Alike.widths`; they are asked only about trees that are drafted from."""
        (asked,) = np.bincount(of, minlength=forest.size).nonzero()
        return given_array(self._forest.widths(forest, asked.copy())), asked

    def hand_back(self) -> None:
        """Each knows what it would know had it been asked by itself."""
        self._forest.hand_back()


@attrs.frozen(eq=False)
class DrawnLayer:
    """What was drawn in a layer of a forest.

    Attributes:
        draws: as the policy made them.
        order: in which they stand here, node by node, shape `(draws,)`.
        parents: the node under which each was made, likewise.
        nodes: the node that holds its token, likewise; with replacement several may have one.
        logp: by how much `path_logp` of that differs from its parent's, likewise.
    """

    draws: ForestDraws
    order: IntArray
    parents: IntArray
    nodes: IntArray
    logp: FloatArray


class GrowingForest:
    """The trees of sequences with equal policies, while they grow. The checks are those of `Growing`, for all at once.

    Equal are the options; what they have learnt of their texts may differ where they are a `LearningForest`.

    An answer that is wrong for some of the trees ends these alone, and is noted in `faults`; one that is wrong
    altogether is raised.

    Args:
        grower: what serves the sequences, one for all; a `ForestDrawer` where `grow` is given laws.
        roots: their last committed tokens, shape `(trees,)`.
        deepest: the deepest node of each that could still be emitted, see `DraftLimits`, shape `(trees,)`.
        vocab_size: of all; see there.
        ends: likewise.
        contexts: committed tokens of each, shape `(trees,)`; by default one each.
        reserved: as `DraftLimits.budgets`.

    Attributes:
        drawn: of each layer what was drawn in it, None where nothing was.
    """

    def __init__(
        self,
        grower: ForestGrower | ForestDrawer | LearningForest,
        roots: IntArray,
        deepest: IntArray,
        vocab_size: int,
        ends: Collection[int] = (),
        contexts: IntArray | None = None,
        reserved: tuple[int, int] | None = None,
    ) -> None:
        self._grower = grower
        self._asked_as: Alike | Drawers | Learners
        if isinstance(grower, LearningForest):
            self._asked_as = Learners(grower)
        elif isinstance(grower, ForestGrower) and grower.children == "deterministic":  # it may draw for other requests
            self._asked_as = Alike(grower)
        elif isinstance(grower, ForestDrawer):
            self._asked_as = Drawers(grower)
        else:
            self._asked_as = Alike(grower)
        self.policy = self._asked_as.policy
        self.forest = Forest.roots(roots, contexts)
        self._shown = self.forest.copied()  # to the policy
        self.budgets = checked_budgets(self.policy, reserved)
        self.faults: dict[int, PluginError] = {}
        self.selected = False  # by the policy, from what was drafted
        self.drawn: list[DrawnLayer | None] = []
        self._kind = KINDS[checked_children(self.policy)]
        self.vocab_size = vocab_size
        self._deepest, self._ends = deepest, ends
        self._asked: list[IntArray] = []  # nodes that were drafted from, layer by layer
        self.frontier = self._usable(np.arange(len(roots)))

    def _usable(self, nodes: IntArray) -> IntArray:
        """Those of some nodes below which something can be drafted, tree by tree."""
        holding, places = self.forest.holding(nodes)
        trees, tokens = holding.trees.take(places), holding.tokens.take(places)
        good = holding.depths.take(places) < self._deepest.take(trees)
        for end in self._ends:
            good &= tokens != end
        for tree in self.faults:
            good &= trees != tree
        if not good.all():
            nodes, trees = nodes[good], trees[good]
        if (trees[1:] < trees[:-1]).any():
            nodes = nodes[trees.argsort(kind="stable")]
        return nodes

    def trees_of(self, nodes: IntArray) -> IntArray:
        """In which trees some nodes are."""
        holding, places = self.forest.holding(nodes)
        return holding.trees.take(places)

    def leave(self, trees: Sequence[int]) -> None:
        """Nothing more is drafted for some trees."""
        if trees and len(self.frontier):
            self.frontier = self.frontier[~np.isin(self.trees_of(self.frontier), trees)]

    def fail(self, what: str) -> PluginError:
        return PluginError(f"{naming('tree policy', self.policy)} {what}")

    def _blame(self, wrong: IntArray, what: str) -> None:
        """Trees have ended with an error."""
        for tree in wrong.tolist():
            self.faults.setdefault(tree, self.fail(what))

    def widths(self) -> IntArray:
        """Candidates wanted for each row of `frontier`, at most the vocabulary; trees that want none have no rows.

        Returns:
            Shape `(frontier,)`.
        """
        of, size = self.trees_of(self.frontier), self.forest.size
        with blaming("tree policy", self.policy, "widths"):
            given, whom = self._asked_as.widths(self._shown, of)
            if given.dtype.kind not in "iu" or given.shape not in ((), whom.shape):
                raise self.fail(
                    f"returned widths of shape {given.shape} and type {given.dtype}; they must be whole numbers, one "
                    f"for all trees or for each of {len(whom)}"
                )
            wanted = np.zeros(size, dtype=np.int64)
            wanted[whom] = given
        rows = wanted.take(of)
        if (rows < 1).any():
            self.frontier, rows = self.frontier[rows > 0], rows[rows > 0]
        return np.minimum(rows, self.vocab_size)

    def grow(self, candidates: ForestCandidates, taking: Taking, laws: LawsOf | None = None) -> None:
        """Let the policy choose, check its answer, and take it.

        Args:
            candidates: for the frontier; they become the policy's own.
            taking: what they are.
            laws: of a policy that draws.
        """
        frontier = self.frontier
        self._asked.append(frontier)
        self.drawn.append(None)
        shown, rows = _where_something_is(candidates)
        if not len(rows):
            self.frontier = frontier[:0]
            return
        width, offered = shown.width, frontier[rows]
        growth = self._growth(shown, None if laws is None else laws(shown, rows))
        chosen, given = given_array(growth.chosen), growth.frontier
        given = None if given is None else given_array(given)
        chosen = self._checked_choice(chosen, offered, width)
        row = chosen // width
        tokens, path_logp = taking(rows[row], chosen - row * width)
        if (tokens < 0).any():
            what = "chose a padded candidate (token -1); only candidates with a finite logp exist"
            fine = self._but_for(tokens < 0, self.trees_of(offered[row]), what)
            row, tokens, path_logp = row[fine], tokens[fine], path_logp[fine]
        old, before, parents = len(self.forest), self.forest.sizes, offered[row]
        if growth.drawn is not None:
            joining = tokens, parents, path_logp
            tokens, parents, path_logp = self._with_draws(growth.drawn, growth.logp, joining, chosen, offered, width)
        self.forest = self.forest.grown(tokens, parents, path_logp)
        self._shown = self.forest.copied()
        nodes = np.arange(old, len(self.forest)) if given is None else self._checked_frontier(given, old)
        sizes = self.forest.sizes
        for tree in (sizes > self.budgets[1]).nonzero()[0].tolist():
            self._blame(
                np.array([tree]),
                f"grew its tree to {sizes[tree]} nodes, the root included; its draft_budget is {self.budgets[1]}",
            )
        goes_on = (sizes > before) & (sizes < self.budgets[1])
        self.frontier = self._usable(nodes[goes_on.take(self.trees_of(nodes))])

    def _growth(self, shown: ForestCandidates, laws: ForestLaws | None) -> ForestGrowth:
        """What the policy answers."""
        asked_as, what = self._asked_as, self._asked_as.method
        with blaming("tree policy", self.policy, what):
            growth = asked_as.growth(self._shown, shown, laws)
            if not isinstance(growth, ForestGrowth):
                raise self.fail(f"returned {type(growth).__name__} from {what}; it must return a ForestGrowth")
            drawn: object = growth.drawn
            if drawn is not None and (not isinstance(drawn, ForestDraws) or drawn.laws is not laws):
                raise self.fail(f"returned draws from {what} that are not of this layer; laws.drawing gives them")
            return growth

    def _with_draws(
        self,
        draws: ForestDraws,
        logp: FloatArray | None,
        joining: tuple[IntArray, IntArray, FloatArray],
        chosen: IntArray,
        offered: IntArray,
        width: int,
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """What joins with what was drawn behind it: tokens, parents, and log-probabilities of the paths."""
        rows = draws.rows
        self._check_draws(draws, chosen, width)
        own = np.log(draws.prob) if logp is None else given_array(logp)
        if own.shape != rows.shape or own.dtype.kind not in "fiu" or not np.isfinite(own).all():
            raise self.fail(f"gave scores of shape {own.shape} for {len(rows)} draws; each has one, and it is finite")
        turn = np.empty(int(rows.max(initial=-1)) + 1, dtype=np.int64)
        turn[rows[::-1]] = np.arange(len(rows))[::-1]  # when the first of a row was made
        order = turn[rows].argsort(kind="stable")
        held = offered[rows[order]]
        first = np.ones(len(order), dtype=bool)
        if draws.replacement:
            keys = turn[rows[order]] * self.vocab_size + draws.tokens[order]
            _, places, which = np.unique(keys, return_index=True, return_inverse=True)
            first[:] = False
            first[places] = True
            node = (first.cumsum() - 1)[places][which]
        else:
            node = np.arange(len(order))
        begins = len(self.forest) + len(joining[0])
        self.drawn[-1] = DrawnLayer(draws, order, held, begins + node, own[order])
        above, places = self.forest.holding(held[first])
        path_logp = above.path_logp.take(places) + own[order][first]
        found = draws.tokens[order][first], held[first], path_logp
        return (
            np.concatenate([joining[0], found[0]]),
            np.concatenate([joining[1], found[1]]),
            np.concatenate([joining[2], found[2]]),
        )

    def _check_draws(self, draws: ForestDraws, chosen: IntArray, width: int) -> None:
        kind, rows = self._kind, draws.rows
        if len(chosen) and not kind.fixed:
            raise self.fail(
                f"chose fixed candidates; its children are {self.policy.children}, so all of them are drawn"
            )
        most = int(np.bincount(rows).max(initial=0))
        if kind.most is not None and most > kind.most:
            raise self.fail(f"drew {most} children of one node; its children are {self.policy.children}")
        if kind.replacement not in (None, draws.replacement) and most > 1:
            how = "with" if draws.replacement else "without"
            raise self.fail(f"drew {how} replacement; its children are {self.policy.children}")
        beside = chosen[np.isin(chosen // width, rows)]
        if not np.isin(beside, draws.without).all():
            raise self.fail("drew from a law that has a fixed child of the same node; take fixed children out of it")

    def _checked_choice(self, chosen: NDArray[Any], offered: IntArray, width: int) -> IntArray:
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise self.fail(
                f"chose candidates as an array of shape {chosen.shape} and type {chosen.dtype}; "
                "it must be one-dimensional and hold integers"
            )
        chosen, count = chosen.astype(np.int64), len(offered) * width
        if not len(chosen):
            return chosen
        lowest, highest = int(chosen.min()), int(chosen.max())
        if lowest < 0 or highest >= count:
            wrong = lowest if lowest < 0 else highest
            raise self.fail(f"chose candidate {wrong}; there are candidates 0 to {count - 1}")
        once = np.zeros(count, dtype=bool)
        once[chosen] = True
        if np.count_nonzero(once) < len(chosen):
            again = np.bincount(chosen, minlength=count)[chosen] > 1
            trees = self.trees_of(offered[chosen // width])
            chosen = chosen[self._but_for(again, trees, "chose the same candidate twice; each may join the tree once")]
        return chosen

    def _but_for(self, wrong: NDArray[np.bool_], trees: IntArray, what: str) -> NDArray[np.bool_]:
        """Which things belong to other trees than those where something is wrong, which end with an error."""
        self._blame(np.unique(trees[wrong]), what)
        return ~np.isin(trees, [*self.faults])

    def _checked_frontier(self, frontier: NDArray[Any], old: int) -> IntArray:
        if frontier.ndim != 1 or (frontier.size and frontier.dtype.kind not in "iu"):
            raise self.fail(
                f"returned a frontier of shape {frontier.shape} and type {frontier.dtype}, not node indices"
            )
        nodes = frontier.astype(np.int64)
        if not len(nodes):
            return nodes
        lowest, highest = int(nodes.min()), int(nodes.max())
        if lowest < 0 or highest >= len(self.forest):
            raise self.fail(f"wants to draft from a node outside its forest of {len(self.forest)} nodes")
        again = np.bincount(nodes - lowest)[nodes - lowest] > 1
        if lowest < old:  # nothing has been drafted from what has just joined
            asked = np.zeros(len(self.forest), dtype=bool)
            asked[np.concatenate(self._asked)] = True
            again |= asked[nodes]
        if again.any():
            what = "wants to draft from a node twice; each node is drafted from at most once a round"
            self._blame(np.unique(self.trees_of(nodes[again])), what)
        return nodes

    def hand_back(self) -> None:
        """Policies that learn are told of the round by themselves.

        Raises:
            PluginError: if that fails; the message names the policy.
        """
        with blaming("tree policy", self.policy, "hand_back"):
            self._asked_as.hand_back()

    def finish(self) -> NDArray[np.bool_]:
        """Let the policy select, and check what it sends to the target.

        Returns:
            Which nodes of the forest are kept, shape `(nodes,)`.
        """
        forest = self.forest
        with blaming("tree policy", self.policy, "finish_forest"):
            given = self._grower.finish_forest(self._shown)
            nodes = None if given is None else given_array(given)
        self.selected = nodes is not None
        kept = np.ones(len(forest), dtype=bool) if nodes is None else self._checked_kept(nodes)
        sizes = forest.sizes if nodes is None else np.bincount(forest.trees[kept], minlength=forest.size)
        for tree in (sizes > self.budgets[0]).nonzero()[0].tolist():
            self._blame(
                np.array([tree]),
                f"finished a tree of {sizes[tree]} nodes, the root included; its budget is {self.budgets[0]}",
            )
        return kept

    def _checked_kept(self, nodes: NDArray[Any]) -> NDArray[np.bool_]:
        forest = self.forest
        if nodes.ndim != 1 or nodes.dtype.kind not in "iu":
            raise self.fail(
                f"returned nodes of shape {nodes.shape} and type {nodes.dtype} from finish_forest; they must be indices"
            )
        if len(nodes) and (nodes.min() < 0 or nodes.max() >= len(forest)):
            raise self.fail(f"keeps a node outside its forest of {len(forest)} nodes")
        kept = np.zeros(len(forest), dtype=bool)
        kept[nodes] = True
        if np.count_nonzero(kept) < len(nodes):
            raise self.fail("keeps a node twice; give each node once, by its index")
        wrong = kept & ~kept[forest.parents]  # of roots it says nothing
        wrong[: forest.size] = ~kept[: forest.size]
        if wrong.any():
            self._blame(np.unique(forest.trees[wrong]), "keeps a node without its parent, or not the root")
        return kept


def _where_something_is(candidates: ForestCandidates) -> tuple[ForestCandidates, IntArray]:
    """The rows of trees of which the drafter knows something, and which they are."""
    best = candidates.highest(candidates.logp[:, :1])
    (rows,) = (best[candidates.trees] > -np.inf).nonzero()
    if len(rows) == len(candidates.trees):
        return candidates, rows
    some = {name: getattr(candidates, name)[rows] for name in ("frontier", "trees", "logp", "path_logp")}
    return attrs.evolve(candidates, **some, look_up=lambda: candidates.tokens[rows]), rows
