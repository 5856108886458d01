"""What policies have in common that hold the tokens they expect against the seconds they take."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import ClassVar

import attrs
import numpy as np
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.costs import Costs, MeasuredCosts
from talon_core.forest import Count
from talon_core.policy import Growth, SequenceInfo, TreePolicy
from talon_core.rounds import Round
from talon_core.searching import searched
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import distinct
from talon_strategies.best_first import BestFirst, Likeliest
from talon_strategies.prices import LEAST, assumed_passes, layer_price


@attrs.define(eq=False)
class Known:
    """What a policy knows of its sequence, and of the round that it drafts.

    Attributes:
        costs: what passes take.
        context: committed tokens.
        verifying: seconds besides the drafting with 0, 1, ... drafted nodes, shape `(budget,)`.
        plain: seconds of a round in which nothing is drafted.
        layers: seconds of layers, by rows and width.
        stands: further rounds for which these prices stand.
        asked: whether they were asked for in this round.
        times: in how many rounds before they were.
        drafting: seconds of the round's layers up to each of them.
        rates: the highest without drafting, and after each layer, in tokens a second.
        nodes: how many drafted nodes are worth verifying.
    """

    costs: Costs = attrs.field(factory=MeasuredCosts)
    context: int = 1
    verifying: FloatArray = attrs.field(factory=lambda: np.empty(0))
    plain: float = LEAST
    layers: dict[tuple[int, int], float] = attrs.field(factory=dict)
    stands: int = 0
    asked: bool = False
    times: int = 0
    drafting: list[float] = attrs.field(factory=list)
    rates: list[float] = attrs.field(factory=list)
    nodes: int = 0


@attrs.frozen
class CostAware(BestFirst):
    """A policy that verifies as many of the likeliest paths as are worth it, and drafts as many layers.

    With the n likeliest nodes, whose path probabilities add up to Phi(n), a round is expected to emit 1 + Phi(n) tokens
    in the seconds of its layers, its verification and what else it takes: that is its rate. The papers' drafters have
    one pass only; what follows of layers is ours. Another layer is drafted as long as the newest one has raised the
    highest rate, at first over that of a round without drafting, and from those nodes alone that are worth verifying.

    Prices are those of a sequence that is alone. As long as nothing is known of the target's passes, nodes and layers
    are taken to cost `assumed`; layers nothing, as long as only the drafter's passes are not known.

    Attributes:
        budget: most nodes of the tree, the root included, at least 2.
        depth: most layers, at least 1.
        known: of the sequence and the round.
    """

    purpose = "trees by cost"

    all_counts: ClassVar[bool] = False
    """Whether what rounds and layers take besides the passes counts (`Costs.besides`, `Costs.beside_layer`)."""

    assumed: ClassVar[tuple[float, float]] = (0.0, 0.0)
    """What a further node and a layer cost while nothing is known, in passes over the root alone."""

    stand: ClassVar[int] = 1
    """Rounds for which prices stand before they are asked for again, at most: at first 1, and one more each time."""

    steps: ClassVar[int] = 8
    """Sizes of a tree whose price is asked for, from a power of two to the next."""

    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    depth: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 12))
    known: Known = attrs.field(init=False, eq=False, repr=False, factory=Known)

    @property
    def layers(self) -> int:
        return self.depth

    @property
    def breadth(self) -> int:
        """Candidates of each node of a layer that is drafted."""
        return self.budget - 1

    @property
    def most_priced(self) -> int:
        """Nodes of the largest tree whose price is asked for, the root included."""
        return self.budget

    @abstractmethod
    def worth(self, prob: FloatArray, seconds: FloatArray) -> Count:
        """How many drafted nodes are worth verifying.

        Args:
            prob: path probabilities of the likeliest, falling, shape `(nodes,)`.
            seconds: of the round with 0, 1, ... of them, shape `(nodes + 1,)`, rising.
        """

    def scored(self, tree: TokenTree, candidates: Candidates) -> tuple[FloatArray, Candidates]:
        """Path log-probabilities of the nodes that have been drafted, and candidates with theirs; the drafter's own."""
        return tree.path_logp, candidates

    def curves(self, sizes: IntArray, seconds: FloatArray) -> FloatArray:
        """Seconds of the target's pass over trees of 1, 2, ... nodes; by default as the costs say.

        Args:
            sizes: nodes of some trees, rising, from 1 to the most, shape `(sizes,)`.
            seconds: what the costs say of them after texts of several lengths, shape `(contexts, sizes)`.

        Returns:
            Shape `(contexts, nodes)`.
        """
        nodes = np.arange(1, sizes[-1] + 1)
        return np.array([np.interp(nodes, sizes, one) for one in seconds])

    def others(self, costs: Costs) -> float:
        """Seconds of a round besides drafting and the target's pass, where these count."""
        return (costs.besides(True) or 0.0) if self.all_counts else 0.0

    def others_of_layer(self, costs: Costs) -> float:
        """Seconds of a layer besides the drafter, where these count."""
        return (costs.beside_layer() or 0.0) if self.all_counts else 0.0

    def spared(self, costs: Costs) -> float:
        """Seconds of `others` that a round takes less in which nothing is drafted; by default none."""
        return 0.0

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        one = super().begin(sequence)
        assert isinstance(one, CostAware)
        one.known.costs, one.known.context = sequence.costs, sequence.prompt_length
        return one

    def observe(self, round_: Round) -> None:
        self.passed(round_.context + len(round_.tokens))

    def passed(self, context: int) -> None:
        """A round is over, after which the text has so many committed tokens."""
        known = self.known
        known.context = context
        if known.asked:
            known.asked, known.times = False, known.times + 1
            known.stands = max(known.stands, min(known.times, self.stand))
        known.stands -= 1

    def priced(self, tree: TokenTree, candidates: Candidates) -> int:
        """Note what the newest layer takes, and with the first one what verifying does; which layer it is, from 0."""
        layer, known = int(tree.depths[candidates.frontier[0]]), self.known
        if layer == 0:
            self.renew()
            known.drafting, known.rates = [], [1.0 / known.plain]
        before = known.drafting[layer - 1] if layer else 0.0
        known.drafting[layer:] = [before + self.layer(len(candidates.frontier), self.breadth)]
        return layer

    def renew(self) -> None:
        """Ask for prices, where those that are known do not stand any more."""
        known = self.known
        if known.stands < 1:
            (prices,) = self.prices([known.context])
            self.told(prices)

    def told(self, prices: FloatArray) -> None:
        """Take note of what `prices` says of the text, shape `(1 + most_priced,)`."""
        known = self.known
        known.plain, known.verifying = prices.item(0), prices[1:]
        known.layers, known.asked = {}, True

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        layer, known = self.priced(tree, candidates), self.known
        best = Likeliest.of(*self.scored(tree, candidates), self.budget - 1)
        seconds = known.drafting[-1] + known.verifying[: len(best.prob) + 1]
        known.nodes = int(self.worth(best.prob, seconds))
        known.rates[layer + 1 :] = [float(rates(best.prob, seconds)[known.nodes])]
        goes_on = layer + 1 < self.depth and known.rates[-1] > known.rates[-2]
        expanded = int(np.searchsorted(best.places, known.nodes)) if goes_on else 0
        return Growth(best.chosen, frontier=len(tree) + np.arange(expanded))

    def finish(self, tree: TokenTree) -> TokenTree:
        return tree.keep(tree.best(1 + self.known.nodes))

    def prices(self, contexts: Sequence[int]) -> FloatArray:
        """Seconds of a round in which nothing is drafted, and those besides the drafting with 0, 1, ... drafted nodes.

        As long as nothing is known of passes after a text of one of these lengths, they are passes over the root alone.

        Args:
            contexts: committed tokens, of one text or of several.

        Returns:
            Shape `(contexts, 1 + most_priced)`.
        """
        costs, most = self.known.costs, self.most_priced
        sizes = sizes_up_to(most, self.steps)
        told = costs.verify_after(sizes, contexts)
        verifying = np.tile(assumed_passes(np.arange(1.0, 1.0 + most), self.assumed[0]), (len(told), 1))
        plain = verifying[:, 0].copy()
        known = [place for place, seconds in enumerate(told) if seconds is not None]
        if known:
            seconds = np.array([told[place] for place in known])
            verifying[known] = np.maximum(self.curves(sizes, seconds), LEAST) + self.others(costs)
            plain[known] = np.maximum(verifying[known, 0] - self.spared(costs), LEAST)
        return np.column_stack([plain, verifying])

    def layer(self, rows: int, width: int) -> float:
        """Seconds of a layer; while nothing is known of passes, in passes over the root alone.

        Args:
            rows: frontier nodes.
            width: candidates of each.
        """
        known = self.known
        if (rows, width) not in known.layers:
            others = self.others_of_layer(known.costs)
            known.layers[rows, width] = layer_price(known.costs, rows, width, known.context, self.assumed[1], others)
        return known.layers[rows, width]


def rates(prob: FloatArray, seconds: FloatArray) -> FloatArray:
    """Expected tokens a second with the n likeliest nodes, by n: (1 + Phi(n)) / seconds(n), shape `(..., nodes + 1)`.

    Args:
        prob: path probabilities of the likeliest nodes, falling, shape `(..., nodes)`.
        seconds: of the round with 0, 1, ... of them, shape `(..., nodes + 1)`.
    """
    expected = np.empty(seconds.shape)
    expected[..., 0], expected[..., 1:] = 1.0, prob
    by_size: FloatArray = expected.cumsum(axis=-1) / seconds
    return by_size


@cache
def sizes_up_to(most: int, steps: int) -> IntArray:
    """Sizes of trees from 1 to `most`: powers of two, between two of them up to `steps - 1` others, and `most`.

    Products go by blocks of rows, mostly of 2, 4 or 8, so a price changes its slope behind such a size. What is asked
    for at other sizes alone does not show how many nodes cost next to nothing.

    Args:
        most: the largest size.
        steps: from a power of two to the next, at equal distances.
    """
    powers = 1 << np.arange(most.bit_length())[:, None]
    sizes = (powers + powers * np.arange(steps) // steps).ravel()
    return np.append(distinct(sizes[sizes < most]), most)
