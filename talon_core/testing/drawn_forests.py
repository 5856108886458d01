"""Forests of a policy that draws, grown from whole laws; for the checks of its contract."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates, Law
from talon_core.choices import Choices
from talon_core.drafter import Frontier
from talon_core.drawn import Drawn, sharpened, without
from talon_core.engine.drafting import DraftLimits
from talon_core.engine.growing_forest import GrowingForest
from talon_core.engine.offers import Offers
from talon_core.forest import ForestCandidates
from talon_core.forest_drawer import ForestDrawer, ForestDraws, ForestLaws, check_rows
from talon_core.testing.hostile import AnyDrafter
from talon_core.tree import FloatArray, IntArray, TokenTree


class WholeLaws(ForestLaws):
    """Laws that are there as a whole.

    Args:
        laws: that of each frontier row.
        candidates: at the frontier.
        choices: of each tree.
    """

    def __init__(self, laws: Sequence[Callable[[], FloatArray]], candidates: ForestCandidates, choices: list[Choices]):
        self.laws, self.candidates, self.choices = laws, candidates, choices

    def drawing(
        self, temperature: float = 1.0, *, replacement: bool = False, without: IntArray | None = None
    ) -> "WholeDraws":
        out = np.arange(0) if without is None else np.asarray(without)
        return WholeDraws(self, temperature, replacement, out)


class WholeDraws(ForestDraws):
    """Draws from such, one after the other, as `Candidates.draw` makes them."""

    def __init__(self, source: WholeLaws, temperature: float, replacement: bool, out: IntArray) -> None:
        self.replacement, self.without = replacement, out
        self.rows, self.tokens, self.prob = np.arange(0), np.arange(0), np.empty(0)
        self.laws: ForestLaws | None = source
        self._source, self._temperature = source, temperature
        self._whole: dict[int, FloatArray] = {}
        self._rest: dict[int, FloatArray] = {}

    def law(self, row: int) -> FloatArray:
        """The law of a row's first draw, shape `(vocab,)`."""
        if row not in self._whole:
            law, pool = sharpened(self._source.laws[row](), self._temperature), self._source.candidates
            out = self.without[self.without // pool.width == row]
            self._whole[row] = self._rest[row] = without(law, pool.tokens.ravel()[out]) if len(out) else law
        return self._whole[row]

    def draw(self, rows: IntArray) -> NDArray[np.bool_]:
        check_rows(np.asarray(rows), self._source.candidates)
        came = np.zeros(len(rows), dtype=bool)
        for place, row in enumerate(rows.tolist()):
            law, rest = self.law(row), self._rest[row]
            if not rest.any():
                continue
            token = self._source.choices[int(self._source.candidates.trees[row])].pick(rest)
            came[place] = True
            self.rows, self.tokens = np.append(self.rows, row), np.append(self.tokens, token)
            self.prob = np.append(self.prob, law[token])
            if not self.replacement:
                self._rest[row] = without(rest, token)
        return came


def drawn_forest(
    policy: ForestDrawer,
    drafter: AnyDrafter,
    roots: Sequence[int],
    limits: Sequence[DraftLimits],
    choices: list[Choices],
) -> tuple[list[TokenTree], list[TokenTree]]:
    """Trees of a policy that are drawn together.

    Args:
        policy: it.
        drafter: it.
        roots: of each tree.
        limits: likewise; they differ in `max_depth` alone.
        choices: likewise.

    Returns:
        The trees as they are verified, and as they were drafted.

    Raises:
        PluginError: if the policy breaks its contract; the message names it.
    """
    deepest = np.array([one.max_depth for one in limits])
    growing = GrowingForest(policy, np.array(roots), deepest, limits[0].vocab_size, limits[0].ends)
    while len(growing.frontier):
        widths = growing.widths()
        if not len(widths):
            break
        pool, laws = _offered(growing, drafter, widths)

        def taking(row: IntArray, rank: IntArray, pool: ForestCandidates = pool) -> tuple[IntArray, FloatArray]:
            return pool.tokens[row, rank], pool.path_logp[row, rank]

        def of(shown: ForestCandidates, rows: IntArray, laws: list[Callable[[], FloatArray]] = laws) -> ForestLaws:
            return WholeLaws([laws[row] for row in rows.tolist()], shown, choices)

        growing.grow(pool, taking, of)
        for fault in growing.faults.values():
            raise fault
    kept = growing.finish()
    for fault in growing.faults.values():
        raise fault
    drafted = [_tree(growing, number) for number in range(len(roots))]
    verified = [
        tree.keep((kept[growing.forest.trees == number]).nonzero()[0]) if growing.selected else tree
        for number, tree in enumerate(drafted)
    ]
    return verified, drafted


def _offered(
    growing: GrowingForest, drafter: AnyDrafter, widths: IntArray
) -> tuple[ForestCandidates, list[Callable[[], FloatArray]]]:
    """What a drafter offers at the frontier of each tree."""
    forest, frontier = growing.forest, growing.frontier
    trees, offers = growing.trees_of(frontier), Offers(drafter)
    found: list[Candidates] = []
    for number in dict.fromkeys(trees.tolist()):
        own = trees == number
        places = (forest.trees == number).nonzero()[0].searchsorted(frontier[own])
        tree = _tree(growing, number)
        asked = Frontier(0, tree, places, int(widths[own][0]))
        proposed = offers.ask([asked], [dict(tree.drawn)])
        found.append(offers.checked(proposed.candidates[0], asked, growing.vocab_size))
    width = max(one.width for one in found)
    tokens, logp = np.full((len(frontier), width), -1), np.full((len(frontier), width), -np.inf)
    laws: list[Callable[[], FloatArray]] = []
    for one in found:
        rows = slice(len(laws), len(laws) + len(one.frontier))
        tokens[rows, : one.width], logp[rows, : one.width] = one.tokens, one.logp
        laws += [_law(one.law, row) for row in range(len(one.frontier))]
    above, places = forest.holding(frontier)
    path_logp = above.path_logp[places][:, None] + logp
    return ForestCandidates(frontier.copy(), trees.copy(), logp, path_logp, forest.size, lambda: tokens), laws


def _law(law: Law, row: int) -> Callable[[], FloatArray]:
    return lambda: law(row)


def _tree(growing: GrowingForest, number: int) -> TokenTree:
    """One of the trees, with what was drawn in it."""
    forest, plain = growing.forest, growing.forest.tree(number)
    own, drawn = (forest.trees == number).nonzero()[0], dict[int, Drawn]()
    for layer in growing.drawn:
        for parent in (
            [] if layer is None else dict.fromkeys(layer.parents[forest.trees[layer.parents] == number].tolist())
        ):
            assert layer is not None
            assert isinstance(layer.draws, WholeDraws)
            of = layer.parents == parent
            law = layer.draws.law(int(layer.draws.rows[layer.order[of]][0]))
            tokens = layer.draws.tokens[layer.order[of]]
            drawn[int(own.searchsorted(parent))] = Drawn(tokens, law, layer.draws.replacement, layer.logp[of])
    return TokenTree(plain.tokens, plain.parents, plain.path_logp, drawn)
