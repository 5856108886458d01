"""`talon-cost` for several texts at once: layer by layer, in one call for all their trees."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_grower import ForestGrowth
from talon_core.forest_learner import ForestRound, LearningForest
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import by_number, highest_of_each, lowest_of_rows, taken
from talon_strategies.calibration import CalibrationOfEach, calibrated
from talon_strategies.chain_forests import ChainsOfEach
from talon_strategies.cost_aware import rates, sizes_up_to
from talon_strategies.following import FollowingOfEach, best_of

if TYPE_CHECKING:
    from talon_strategies.talon_cost import TalonCost


class TalonCostForest(LearningForest):
    """The policies of several texts. What each text's numbers are is in its policy; arrays stand side by side here.

    All is computed by the operations that a policy does for its tree, in their order; sums are added up one after the
    other (`totals`).

    Args:
        policies: of equal options, and with the same costs.
    """

    policies: "Sequence[TalonCost]"

    def __init__(self, policies: "Sequence[TalonCost]") -> None:
        self.policies = policies
        for one in policies:
            one.leave_chains()  # before what they have learnt is taken over
        self._first = policies[0]
        self._known = [one.known for one in policies]
        self._learnt = [one.learnt for one in policies]
        texts, budget = len(policies), self._first.budget
        self._following = FollowingOfEach([one.following for one in self._learnt])
        self._calibration = CalibrationOfEach([one.calibration for one in self._learnt])
        self._verifying = np.zeros((texts, budget))
        for own, known in zip(self._verifying, self._known, strict=True):
            own[: len(known.verifying)] = known.verifying
        self._costs = self._first.known.costs
        self._told: dict[tuple[bool, bool, int, int], float] = {}  # what layers take, for all texts
        self._widths: list[int] = []
        self._layers = np.empty((0, texts, budget))  # by width, seconds of layers of so many rows; see `_priced`
        self._sizes = np.zeros((budget, budget), dtype=bool)  # which frontiers are looked at, by the nodes there are
        for nodes in range(1, budget):
            self._sizes[nodes, sizes_up_to(nodes, self._first.steps)] = True
        self._most, self._rate, self._usual, self._drafting = np.zeros((4, texts))
        self._nodes, self._kinds = np.zeros((2, texts), dtype=np.int64)
        self._chains = ChainsOfEach(texts)
        self._begin(texts)

    def _begin(self, texts: int) -> None:
        """Of the next round nothing is known but the roots."""
        self._scores, self._own = np.zeros(texts), np.ones(texts)  # of each node of the forest
        self._trees: IntArray = np.arange(texts)  # in which each is
        self._seen: list[tuple[IntArray, FloatArray, FloatArray]] = []  # layer by layer, of each node drafted from
        self._drafted = np.zeros(texts, dtype=bool)

    def chained(self, trees: IntArray) -> NDArray[np.bool_]:
        asked = [text for text in trees.tolist() if self._learnt[text].chains is None]
        for text in asked:
            learnt = self._learnt[text]
            if learnt.chainable and learnt.branching < 2 and not self.policies[text].pauses:
                self.policies[text].price_as_chains(True)
        self._renew([text for text in asked if not self.policies[text].pauses and self._known[text].stands < 1])
        self._following.hand_back(np.array(asked, dtype=np.int64))
        for text in asked:
            self._chains.begin(text, self.policies[text].chains())
            if self._learnt[text].branching and self._learnt[text].wanted is not None:  # it has asked for other prices
                self._priced_as_trees(text)
        return self._chains.on[trees]

    def _priced_as_trees(self, text: int) -> None:
        """A policy has asked for other prices than those of chains."""
        self._verifying[text] = self._known[text].verifying
        self._layers[:, text] = np.inf

    def widths(self, forest: Forest, trees: IntArray) -> IntArray:
        if forest.layer:
            return np.array(self._widths)[self._kinds[trees]]
        texts = trees.tolist()
        self._renew([text for text in texts if not self.policies[text].pauses and self._known[text].stands < 1])
        before = [self._learnt[text].chained for text in texts]
        found = [self.policies[text].first_width() for text in texts]
        for text, chained in zip(texts, before, strict=True):
            if chained and not self._learnt[text].chained:
                self._priced_as_trees(text)
        self._kinds[trees] = [self._kind(width) for width in found]
        return np.array(found)

    def _renew(self, texts: Sequence[int]) -> None:
        """Ask for the prices of texts of which none stand."""
        for chained in (False, True):
            alike = [text for text in texts if self._learnt[text].chained is chained]
            if not alike:
                continue
            prices = self.policies[alike[0]].prices([self._known[text].context for text in alike])
            for text, own in zip(alike, prices, strict=True):
                self.policies[text].told(own)
                self._known[text].stands = 1
            self._verifying[alike, : prices.shape[1] - 1] = prices[:, 1:]
            self._layers[:, alike] = np.inf

    def _kind(self, width: int) -> int:
        """Where in `_layers` those are with so many candidates of each row."""
        if width not in self._widths:
            self._widths.append(width)
            self._layers = np.concatenate([self._layers, np.full((1, *self._verifying.shape), np.inf)])
        return self._widths.index(width)

    def _priced(self, trees: IntArray, kinds: IntArray, rows: NDArray[np.bool_]) -> FloatArray:
        """Seconds of layers of 1, 2, ... rows, infinite of those that nobody has asked for.

        Args:
            trees: of which texts, shape `(trees,)`.
            kinds: of the layer of each, see `_kind`, likewise.
            rows: which are wanted, shape `(trees, sizes)`.

        Returns:
            Shape `(trees, sizes)`.
        """
        sizes = slice(1, 1 + rows.shape[1])
        seconds: FloatArray = self._layers[kinds, trees, sizes]
        unknown = rows & (seconds == np.inf)
        if not unknown.any():
            return seconds
        of, places = unknown.nonzero()
        texts = trees[of].tolist()
        fixed, costs = self._costs.fixed, self._costs
        knows = {text: fixed and costs.verify(1, self._known[text].context) is not None for text in {*texts}}
        for text, kind, size in zip(texts, kinds[of].tolist(), (places + 1).tolist(), strict=True):
            question = knows[text], self._learnt[text].chained, size, self._widths[kind]
            if question in self._told:
                self._layers[kind, text, size] = self._told[question]
            else:
                self._layers[kind, text, size] = self.policies[text].layer(*question[2:])
                if fixed:  # the others would be told the same
                    self._told[question] = self._layers.item(kind, text, size)
        return self._layers[kinds, trees, sizes]

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        rows = np.bincount(candidates.trees, minlength=forest.size)
        (trees,) = rows.nonzero()
        if forest.layer == 0:
            self._start(trees.tolist())
        rows, kinds = rows[trees], self._kinds[trees]
        asked = np.arange(1, 1 + int(rows.max())) == rows[:, None]
        self._drafting[trees] += self._priced(trees, kinds, asked)[asked]
        chained = self._chains.on[candidates.trees]
        if not chained.any():
            grown = self._grown(forest, candidates, trees, rows, kinds)
        else:
            grown = self._grown_chains(forest, candidates.of_rows(chained))
            if not chained.all():
                on = self._chains.on[trees]
                others = self._grown(forest, candidates.of_rows(~chained), trees[~on], rows[~on], kinds[~on])
                grown = grown.beside(others, chained, candidates)
        self._scores, self._own = np.concatenate([self._scores, grown.scores]), np.concatenate([self._own, grown.own])
        self._trees = np.concatenate([self._trees, candidates.trees_of(grown.joined)])
        return ForestGrowth(grown.joined, frontier=len(forest) + grown.goes_on.nonzero()[0])

    def _grown_chains(self, forest: Forest, candidates: ForestCandidates) -> "_Grown":
        """A layer of texts whose trees are chains."""
        joined, goes_on, nodes = self._chains.grown(forest.layer, candidates)
        self._nodes[candidates.trees] = nodes
        return _Grown(joined, goes_on, np.zeros(len(joined)), np.ones(len(joined)))

    def _grown(
        self, forest: Forest, candidates: ForestCandidates, trees: IntArray, rows: IntArray, kinds: IntArray
    ) -> "_Grown":
        """A layer of the other texts.

        Args:
            forest: every node so far.
            candidates: of these texts alone.
            trees: which they are, shape `(trees,)`.
            rows: of each, likewise.
            kinds: of the layer of each, likewise.
        """
        above = self._scores.take(candidates.frontier)[:, None]
        line = self._calibration.lines.take(candidates.trees, axis=0)
        offered = above + calibrated(candidates.logp, line[:, :1], line[:, 1:])
        conditional = np.exp(offered - above)
        self._note(candidates, conditional)
        places, falling = self._likeliest(trees, rows, offered)
        prob = np.exp(-falling)
        self._decide(trees, prob, (falling < np.inf).sum(axis=1))
        joins = (places >= 0) & (np.arange(places.shape[1]) < self._nodes[trees, None])
        joined, counts = places[joins], joins.sum(axis=1)
        own, scores = conditional.take(joined), offered.take(joined)
        goes_on = np.zeros(len(joined), dtype=bool)
        if forest.layer + 1 < self._first.depth and len(joined):
            price = self._prices_of_nodes(trees, prob)
            goes_on = self._expanded(trees, kinds, counts, own, np.exp(scores), price)
        return _Grown(joined, goes_on, scores, own)

    def _start(self, texts: Sequence[int]) -> None:
        """The first layer of these texts was drafted."""
        for text in texts:
            policy = self.policies[text]
            self._most[text], self._usual[text] = policy.most, policy.rate(np.nan)
        self._drafting[texts] = 0.0
        self._drafted[texts] = True

    def _note(self, candidates: ForestCandidates, conditional: FloatArray) -> None:
        """Take note of what follows the nodes that were drafted from."""
        self._seen.append((candidates.trees, self._own.take(candidates.frontier), best_of(conditional)))

    def _likeliest(self, trees: IntArray, rows: IntArray, offered: FloatArray) -> tuple[IntArray, FloatArray]:
        """The likeliest of all nodes that have been drafted, the newest candidates among them, as `Likeliest` has them.

        Args:
            trees: that have candidates, shape `(trees,)`.
            rows: of each, likewise.
            offered: log-probabilities of the paths to them, minus infinity for padding, shape `(frontier, width)`.

        Returns:
            The flat indices of those that are candidates, -1 for others; and the negative log-probabilities of their
            paths, infinite where there are no more. Best first, shape `(trees, nodes)`.
        """
        held = rows * offered.shape[1]
        side_by_side = _in_rows(-offered.ravel(), held)
        drafted, size = self._trees[len(self.policies) :], 0
        if len(drafted):
            places = np.full(len(self.policies), -1)
            places[trees] = np.arange(len(trees))
            of = places[drafted]
            order = of.argsort(kind="stable")
            order = order[np.count_nonzero(of < 0) :]
            earlier = _in_rows(-self._scores[len(self.policies) + order], np.bincount(of[order], minlength=len(trees)))
            side_by_side, size = np.concatenate([earlier, side_by_side], axis=1), earlier.shape[1]
        order, falling = lowest_of_rows(side_by_side, self._first.budget - 1)
        flat = order + ((held.cumsum() - held) - size)[:, None]
        return np.where((order >= size) & (falling < np.inf), flat, -1), falling

    def _decide(self, trees: IntArray, prob: FloatArray, held: IntArray) -> None:
        """How many nodes are worth verifying, and what a second is worth; see `TalonCost.worth`.

        Args:
            trees: which, shape `(trees,)`.
            prob: path probabilities of the likeliest nodes of each, falling, zeros behind them, shape `(trees, nodes)`.
            held: how many there are, shape `(trees,)`.
        """
        sizes, most = np.arange(1 + prob.shape[1]), self._most[trees]
        seconds = self._drafting[trees, None] + self._verifying[trees, : len(sizes)]
        affordable = held + 1
        for place in (seconds[np.arange(len(trees)), held] > most).nonzero()[0].tolist():
            own = seconds[place, : affordable[place]]
            affordable[place] = max(int(own.searchsorted(most[place], side="right")), 1)
        by_size = np.where(sizes < affordable[:, None], rates(prob, seconds), -np.inf)
        usual = self._usual[trees]
        rate = np.where(np.isnan(usual), by_size.max(axis=1), usual)
        self._rate[trees] = rate
        self._nodes[trees] = ((by_size - rate[:, None]) * seconds).argmax(axis=1)

    def _prices_of_nodes(self, trees: IntArray, prob: FloatArray) -> FloatArray:
        """What one more node costs, in tokens; see `TalonCost.price`. Shape `(trees,)`."""
        nodes = self._nodes[trees]
        full = nodes + 1 >= self._verifying.shape[1]
        behind = np.where(full, nodes, nodes + 1)
        price: FloatArray = self._rate[trees] * (self._verifying[trees, behind] - self._verifying[trees, nodes])
        if full.any():
            price[full] = prob[full, nodes[full] - 1]
        return price

    def _expanded(
        self, trees: IntArray, kinds: IntArray, counts: IntArray, own: FloatArray, reach: FloatArray, price: FloatArray
    ) -> NDArray[np.bool_]:
        """Which of the nodes that join are drafted from, shape `(joined,)`; see `TalonCost.expanded`.

        Args:
            trees: that have a layer, shape `(trees,)`.
            kinds: of the layers of each, likewise.
            counts: nodes that join each, likewise.
            own: as there, shape `(joined,)`.
            reach: likewise.
            price: of a node, shape `(trees,)`.
        """
        gains = self._following.gains(trees.repeat(counts), own, reach, price.repeat(counts))
        falling = _in_rows(-gains, counts)
        sizes = np.arange(falling.shape[1])
        order = falling.argsort(axis=1, kind="stable")  # of equals the earlier is first
        gained = -taken(falling, order)
        there = sizes < counts[:, None]
        gained[~there] = 0.0
        looked_at = self._sizes[counts, 1 : 1 + len(sizes)]
        seconds = self._priced(trees, kinds, looked_at)
        left = self._most[trees] - self._drafting[trees] - self._verifying[trees, self._nodes[trees]]
        pays = looked_at & (seconds <= left[:, None])
        surplus = np.full(pays.shape, -np.inf)
        np.subtract(gained.cumsum(axis=1), self._rate[trees, None] * seconds, out=surplus, where=pays)
        best = surplus.argmax(axis=1)
        best[surplus[np.arange(len(trees)), best] <= 0.0] = -1
        chosen = np.empty(there.shape, dtype=bool)
        chosen[np.arange(len(trees))[:, None], order] = sizes <= best[:, None]
        return chosen[there]

    def finish_forest(self, forest: Forest) -> IntArray | None:
        counts = np.where(self._drafted, 1 + self._nodes, 1)
        if (counts >= forest.sizes).all():
            return None
        order = by_number(forest.trees, forest.size)
        kept = order[highest_of_each(self._scores[order], forest.sizes, counts)]
        kept.sort()
        return kept

    def observe_forest(self, round_: ForestRound) -> None:
        forest, texts = round_.forest, len(self.policies)
        (running,) = round_.new.nonzero()
        nodes = np.bincount(forest.trees[round_.kept], minlength=texts)
        drafted = self._drafted & (round_.new > 0) & ~self._chains.on
        chained = self._drafted & (round_.new > 0) & self._chains.on
        expected = [0.0] * texts
        if drafted.any():
            expected = self._expected(forest, nodes, drafted)
            self._calibrate(round_, drafted)
            of, own, best = (np.concatenate(each) for each in zip(*self._seen, strict=True))
            self._following.learn(of, own, best)
        self._tell((drafted | chained).nonzero()[0].tolist())
        told = (each[running].tolist() for each in (round_.new, forest.contexts, nodes, chained))
        for text, new, context, size, in_chain in zip(running.tolist(), *told, strict=True):
            policy = self.policies[text]
            policy.passed(context + new)
            if in_chain:
                self._chains.book(text, new, policy.spent(new, size) or 0.0)
            else:
                policy.went(new, size, expected[text])
        if chained.any():
            accepted = np.bincount(forest.trees[round_.accepted], minlength=texts) - 1
            self._learn_chains(self._chains.note(chained.nonzero()[0], nodes - 1, accepted))
        self._begin(texts)

    def _learn_chains(self, texts: IntArray) -> None:
        """The rounds are over for which the chains of some texts stood; see `learn_chains`."""
        if not len(texts):
            return
        of, logp, layers = self._chains.seen(texts)
        line = self._calibration.lines[of]
        conditional = np.exp(calibrated(logp, line[:, :1], line[:, 1:]))
        own, tested, accepted, expected = self._chains.learnt(texts, layers, conditional[:, 0])
        self._calibration.learn(of[tested], logp[tested, 0], accepted[tested])
        self._following.learn(of, own, best_of(conditional))
        for text, tokens in zip(texts.tolist(), expected, strict=True):
            learnt = self._learnt[text]
            learnt.chains, self._known[text].stands = None, 0
            learnt.went(zip(tokens, *self._chains.booked(text), strict=True))

    def _expected(self, forest: Forest, nodes: IntArray, drafted: NDArray[np.bool_]) -> list[float]:
        """Tokens that were expected of each tree that was verified; 0 where nothing was drafted."""
        held = forest.sizes
        falling = np.full((len(held), int(held.max())), np.inf)
        falling[np.arange(falling.shape[1]) < held[:, None]] = -self._scores[by_number(forest.trees, forest.size)]
        falling.sort(axis=1)
        sums = np.exp(-falling).cumsum(axis=1)  # added up in their order, as of one text
        found: list[float] = np.where(drafted, sums[np.arange(len(held)), nodes - 1], 0.0).tolist()
        return found

    def _calibrate(self, round_: ForestRound, drafted: NDArray[np.bool_]) -> None:
        """Learn from the tokens that were tested; see `Calibration.learn`."""
        forest = round_.forest
        tested = round_.kept & round_.accepted[forest.parents] & (forest.parents >= 0) & drafted[forest.trees]
        (nodes,) = tested.nonzero()
        nodes = nodes[by_number(forest.trees[nodes], forest.size)]
        logp = forest.path_logp[nodes] - forest.path_logp[forest.parents[nodes]]
        self._calibration.learn(forest.trees[nodes], logp, round_.accepted[nodes])

    def _tell(self, texts: Sequence[int]) -> None:
        """Tell the policies of texts that were drafted for what `TalonCost.went` asks for."""
        for text in texts:
            known, learnt = self._known[text], self._learnt[text]
            known.drafting, known.nodes = [float(self._drafting[text])], int(self._nodes[text])
            if not self._chains.on[text]:
                learnt.rate = float(self._rate[text])

    def hand_back(self) -> None:
        self._following.hand_back()
        for text in self._chains.on.nonzero()[0].tolist():
            self._learnt[text].notes, self._learnt[text].layers_of_chain = self._chains.handed_back(text)
            self._learnt[text].spare = self._chains.spare(text)
        self._tell(self._drafted.nonzero()[0].tolist())
        texts = (self._drafted & ~self._chains.on).nonzero()[0].tolist()
        order = by_number(self._trees, len(self.policies))
        nodes = _parts(self._trees[order], len(self.policies))
        scores, own = self._scores[order], self._own[order]
        of, *seen = (np.concatenate(each) for each in zip(*self._seen, strict=True)) if texts else (self._trees,)
        order = by_number(of, len(self.policies))
        asked = _parts(of[order], len(self.policies))
        seen = [each[order] for each in seen]
        for text in texts:
            learnt = self._learnt[text]
            learnt.scores, learnt.own = scores[nodes[text]], own[nodes[text]]
            learnt.layers = [(seen[0][asked[text]], seen[1][asked[text]])]
        self._begin(len(self.policies))


@attrs.frozen(eq=False)
class _Grown:
    """What has joined in a layer.

    Attributes:
        joined: flat indices of the candidates, tree by tree, shape `(joined,)`.
        goes_on: which of them are drafted from, likewise.
        scores: log-probabilities of the paths to them, calibrated, likewise; 0 in chains.
        own: probabilities of them once their parents are accepted, likewise; 1 in chains.
    """

    joined: IntArray
    goes_on: NDArray[np.bool_]
    scores: FloatArray
    own: FloatArray

    def beside(self, others: "_Grown", rows: NDArray[np.bool_], candidates: ForestCandidates) -> "_Grown":
        """This, and what has joined other trees in the same layer.

        Args:
            others: that.
            rows: which of the candidates' rows this is of, shape `(frontier,)`; the others are those of `others`.
            candidates: of all trees.
        """
        width = candidates.width
        flat = [
            those.nonzero()[0][one.joined // width] * width + one.joined % width
            for those, one in ((rows, self), (~rows, others))
        ]
        joined = np.concatenate(flat)
        order = candidates.trees_of(joined).argsort(kind="stable")
        goes_on = np.concatenate([self.goes_on, others.goes_on])
        scores, own = np.concatenate([self.scores, others.scores]), np.concatenate([self.own, others.own])
        return _Grown(joined[order], goes_on[order], scores[order], own[order])


def _parts(trees: IntArray, size: int) -> list[slice]:
    """Where the things of each tree stand among those of all, tree by tree."""
    ends = np.bincount(trees, minlength=size).cumsum().tolist()
    return [slice(*ends) for ends in zip([0, *ends[:-1]], ends, strict=True)]


def _in_rows(numbers: FloatArray, counts: IntArray) -> FloatArray:
    """Numbers that stand behind each other in rows of their own, shape `(rows, most)`, infinite ones behind them.

    Args:
        numbers: row by row, shape `(numbers,)`.
        counts: of each row, shape `(rows,)`.
    """
    most = int(counts.max())
    if len(counts) * most == len(numbers):
        return numbers.reshape(len(counts), most)
    found = np.full((len(counts), most), np.inf)
    found[np.arange(most) < counts[:, None]] = numbers
    return found
