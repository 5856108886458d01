"""TALON's tree with a price for each node and layer, and no knob."""

from collections.abc import Sequence
from itertools import accumulate

import attrs
import numpy as np
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.candidates import Candidates
from talon_core.chains import Chains
from talon_core.choices import Choices
from talon_core.costs import Costs
from talon_core.forest_learner import ForestLearner
from talon_core.policy import Growth, SequenceInfo, TreePolicy
from talon_core.rounds import Round
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import ints, totals
from talon_strategies.best_first import Likeliest
from talon_strategies.calibration import raw
from talon_strategies.chain_plan import (
    DEEPEST,
    FEW,
    ROUNDS,
    UNSEEN,
    WIDTH_OF_CHAINS,
    ChainNote,
    ChainPrices,
    gain_of_branches,
    left_of,
    planned,
)
from talon_strategies.cost_aware import CostAware, rates, sizes_up_to
from talon_strategies.drawing import NOTHING
from talon_strategies.learnt import CREDIT, ENOUGH, SHARE, WIDEST, WIDTH, Learnt
from talon_strategies.prices import ASSUMED, verify_price
from talon_strategies.talon_cost_forests import TalonCostForest

STEPS = 4
"""Of a temperature of 1: texts whose temperatures are nearest to the same one tell each other what drafts bring."""

HOTTEST = 4.0
"""A temperature; of higher ones nothing more is told apart."""

CERTAIN = 0.75
"""How likely a guess is behind which others are worth a look, whatever it takes itself."""

PAUSE = 8
"""Rounds without a draft that follow each other, about: what they take is what drafts are held against."""


@attrs.frozen
class TalonCost(CostAware, ForestLearner):
    """Keeps the likeliest paths that pay, in as many layers as pay, and drafts nothing where plain decoding is faster.

    As TALON (arXiv 2601.07353, section 5.2) it pools a layer's candidates and cuts them by one gate. That is no share
    of the layer's best, but what a node costs: n nodes are verified where 1 + Phi(n) - lambda C_v(n) is highest. Phi
    adds up how likely their paths are to be accepted, by what was accepted in this text so far (`Calibration`). C_v is
    what the pass takes on this machine at this length of the text, and what rounds and their layers take besides
    (`Costs.besides`, `Costs.beside_layer`).

    lambda is what a second is worth: the tokens a second that were expected of the latest rounds, or those of plain
    decoding if these are more. Tokens by seconds of a whole text are highest where each round, and each part of it, is
    held against that rate and not against its own (Dinkelbach, Management Science 13, 1967): a round of a hard place
    must not look for more nodes because it is slow anyway, nor one of an easy place stop early because it is fast.

    Another layer is drafted from those nodes that are worth verifying and of which it is likely to pay: what followed
    such nodes of this text (`Following`), times how likely the path to them is accepted, less what verifying it costs,
    is more than lambda times what the layer takes with so many rows. In a full tree a node costs what the least likely
    one is worth, whose place it takes.

    A draft can turn out to be worth no node, and has cost its layers. Where the latest rounds did not pay for those,
    rounds of plain decoding follow, in which the drafter is not asked: 16 at first, and 64 after each round with a
    draft that did not help. Those tokens count that were expected of these rounds or that came, whichever are more: a
    drafter is often better than it says before its probabilities are calibrated.

    What is expected may be wrong, so there is a second account, of the tokens that rounds have really emitted (the idea
    is that of Conservative Bandits, Wu et al., ICML 2016). By the prices, a text takes at most 1 / 0.98 of the time of
    plain decoding and 2 passes, besides the reading of its prompt, and any part of a text at most 1 / 0.98 of it and 32
    passes, whatever the drafter says and whatever is accepted: layers and nodes that could lead beyond that are not
    drafted, even if they seem to pay. Where not even the first layer may be, nothing is drafted until it may, for at
    most 64 rounds. So what is tried again and again in vain costs a fiftieth of the time. Prices are asked for again
    after 8 rounds at most.

    A drafter may first have to read the text (`Costs.catch_up`): the prompt, when it is asked for the first time, and
    what came while drafting paused. The latter counts as what the draft loses. The prompt is read where that is earned
    back in as many tokens as other texts had, and this one may have, at what drafts have gained in those with prompts
    about as long (`EarnedBack`). Before these have told much, it is taken to gain a little. Where they have gained too
    little it is tried ever less often: in each second such text at first, in each 65th at last. All texts together pay
    for it, from 32 passes, what they have gained and a fiftieth of their time, and never more.

    Where a text is decoded alone, and passes can be run ahead of their rounds (`TreePolicy.chains`), its trees are
    chains, as long as branches would bring less than it costs to do without that (`gain_of_branches`). What it costs is
    found out in a few rounds. Which of a path's tokens join, and which are drafted from, is decided by the same prices
    for up to 16 rounds, in terms of the drafter's own probabilities (`planned`), or until another one could lose more
    than the second account has; what these rounds teach is learnt behind the last of them. Such rounds are priced by
    `Costs.chain`. Where prices are given that know nothing of it, trees are no chains.

    Where a drafter tells its best guess without a pass, and prices are measured as one decodes, guesses are left out
    for which a round with a draft does not pay (`TreePolicy.overlooks`): p < lambda (C_v(2) + layer - plain), but for
    those that are likelier than 0.75, behind which others are worth a look. What the drafter takes to tell of guesses
    that are left out is a part of what the next draft costs; behind each 16 of them it is decided whether to pause, as
    behind a draft. They may go on for a tenth of a second (`SECONDS_AHEAD`) once the second account has nothing left.

    A text's first rounds with a draft are taken to be like the latest ones of others, until it has had a few itself.

    While nothing is known of passes, a node is taken to cost a twentieth and a layer a tenth of a pass over the root.
    All this is ours, and there is nothing to tune: `budget` and `depth` bound the memory that a round may need.

    Attributes:
        budget: most nodes of the tree, the root included, at least 2.
        depth: most layers, at least 1; one draft pass each.
    """

    name = "talon-cost"
    paper = ""
    all_counts = True
    assumed = ASSUMED
    steps = 2
    stand = 8
    hooks = ("scored", "priced", "renew", "worth", "rate", "price", "expanded", "learn", "planned_chains")
    budget: int = attrs.field(default=64, validator=[whole_number, ge(2)])
    depth: int = attrs.field(default=16, validator=[whole_number, ge(1)])
    learnt: Learnt = attrs.field(init=False, eq=False, repr=False, factory=Learnt)

    @property
    def most(self) -> float:
        """Seconds that the round may take: it emits a token, whatever is accepted."""
        return self.known.plain * (self.learnt.credit + 1.0 + SHARE) - self.learnt.catching_up

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        one = super().begin(sequence)
        assert isinstance(one, TalonCost)
        learnt = one.learnt
        learnt.unread, learnt.most_new = sequence.unread, sequence.max_new_tokens
        learnt.rests_on = sequence.rests_on
        known = not sequence.costs.fixed or sequence.costs.chain(1) is not None
        learnt.chainable = sequence.runs_on and known and one.plans_chains
        about = round(min(sequence.temperature, HOTTEST) * STEPS) / STEPS
        alike = f"talon-cost with {sequence.drafter} at about {about:g}"
        learnt.others = sequence.machine.setdefault(alike, learnt.others)
        learnt.expect()
        return one

    @property
    def plans_chains(self) -> bool:
        """Whether chains are planned by what is learnt here, and trees not scored, nor learnt from, in another way."""
        return type(self).scored is TalonCost.scored and type(self).learn is TalonCost.learn

    def beside(self, policies: "Sequence[TalonCost]") -> TalonCostForest:
        return TalonCostForest(policies)

    def goes_with(self, other: TreePolicy) -> bool:
        if not isinstance(other, TalonCost) or other.learnt.rests_on is not self.learnt.rests_on:
            return False
        return other.known.costs is self.known.costs and super().goes_with(other)

    def reads(self) -> bool:
        """Whether what the drafter has to read first is worth it; notes what that takes, where this text pays."""
        known, learnt = self.known, self.learnt
        seconds = (known.costs.catch_up(learnt.unread) or 0.0) if learnt.unread else 0.0
        learnt.catching_up = seconds
        if learnt.begun is None:
            learnt.alike = learnt.others.begun(seconds / known.plain, learnt.unread, learnt.most_new)
            learnt.begun = learnt.alike is not None
            learnt.catching_up = 0.0  # all texts pay
        return learnt.begun

    @property
    def pauses(self) -> bool:
        """Whether nothing is drafted in this round, whatever it costs."""
        learnt = self.learnt
        return learnt.chains is None and (bool(learnt.left) or learnt.begun is False)

    def rests(self) -> int:
        learnt = self.learnt
        if learnt.chains is not None:
            return 0
        return learnt.most_new if learnt.begun is False else max(learnt.left - 1, 0)

    def overlooks(self) -> float | None:
        """As much as pays for a round with one drafted node in the place of one without; at most `CERTAIN`."""
        known, learnt = self.known, self.learnt
        if known.costs.fixed or not learnt.begun or learnt.chains is not None or self.pauses:
            return None
        self.renew_for_round()
        seconds = known.verifying.item(1) + self.layer(1, self.breadth) - known.plain
        return raw(min(self.rate(1.0 / known.plain) * seconds, CERTAIN), learnt.calibration.line)

    @property
    def breadth(self) -> int:
        learnt = self.learnt
        return min(WIDTH_OF_CHAINS if learnt.chained else learnt.width, self.budget - 1)

    @property
    def most_priced(self) -> int:
        return min(2 + DEEPEST, self.budget) if self.learnt.chained else self.budget

    def width(self, tree: TokenTree) -> int:
        return self.breadth if len(tree) > 1 else self.first_width()

    def first_width(self) -> int:
        """`width` for a tree that is the root alone; asked once a round, as it notes what reading the text costs."""
        learnt = self.learnt
        if learnt.wanted is not None:
            return learnt.wanted
        if learnt.chains is not None:
            return learnt.chains.width
        if self.pauses:  # it may not be asked then
            return 0
        self.price_as_chains(False)
        return self.affordable_width()

    def price_as_chains(self, chained: bool) -> None:
        """Whether rounds are priced as those of chains are from now on."""
        if self.learnt.chained is not chained:
            self.learnt.chained = chained
            self.known.stands = 0

    def chains(self) -> Chains | None:
        learnt = self.learnt
        if learnt.drafted >= UNSEEN and learnt.chainable and self.known.costs.chain(1) is None:
            learnt.chainable = False
        if learnt.chains is None and learnt.chainable and learnt.wanted is None and not self.pauses:
            learnt.branching = max(learnt.branching - 1, 0)
            if learnt.branching:
                return None
            self.price_as_chains(True)
            learnt.wanted = self.affordable_width()
            if learnt.wanted:
                self.plan_chains()
        return left_of(learnt.chains, len(learnt.notes), learnt.spare) if learnt.chains else None

    def plan_chains(self) -> None:
        """Decide on the chains of this round and those behind it, or on trees; prices stand as long as these do."""
        learnt, known = self.learnt, self.known
        learnt.rate = self.rate(1.0 / known.plain)
        learnt.spare = known.plain * learnt.credit - learnt.catching_up
        even = known.plain * (1.0 + SHARE)
        most = known.plain * CREDIT[1]
        prices = ChainPrices(known.verifying, learnt.asked, learnt.rate, learnt.spare, even, most)
        chains = self.planned_chains(prices, min(self.depth, self.budget - 1))
        learnt.branching = self.rounds_with_branches(chains.depth)
        if not learnt.branching:
            learnt.chains = chains
            known.stands = max(known.stands, chains.rounds)
            return
        self.price_as_chains(False)
        self.renew_for_round()
        learnt.width = self.looked_at()
        learnt.wanted = self.paid_for(self.breadth)
        if not learnt.wanted:
            learnt.branching = 0
        learnt.others.branched += learnt.branching == 1

    def planned_chains(self, prices: ChainPrices, most: int) -> Chains:
        """The chains of this round and those behind it; see `planned`."""
        return planned(self.learnt.calibration.line, self.learnt.following, prices, most, self.breadth)

    def rounds_with_branches(self, depth: int) -> int:
        """In how many rounds trees are to have branches: where these bring more than such a round takes longer.

        Both are those of a round with as many layers as the chain has tokens. A branch costs what a node behind these
        does.

        Args:
            depth: tokens of the chain that would be drafted in their place.
        """
        known, learnt = self.known, self.learnt
        costs, verifying = known.costs, known.verifying
        ahead, beside = costs.chain(depth), costs.besides(True)
        if ahead is None or len(verifying) < 3:
            return 0
        last = min(depth + 1, len(verifying) - 1)
        price = learnt.rate * (verifying.item(last) - verifying.item(last - 1))
        gain = gain_of_branches(learnt.following, price, depth)
        if not costs.fixed and (beside is None or learnt.others.branched < FEW):
            return int(gain > SHARE)  # so that it becomes known what such a round takes
        layer = (costs.draft(1, self.breadth) or 0.0) + (costs.beside_layer() or 0.0)
        return ROUNDS if gain > learnt.rate * ((beside or 0.0) + depth * layer - ahead) else 0

    def leave_chains(self) -> None:
        """Trees are none from now on."""
        self.learnt.leave_chains()
        self.price_as_chains(False)

    def affordable_width(self) -> int:
        """Candidates of the root that are asked for; 0 where that may not be paid. It notes what reading costs."""
        self.renew_for_round()
        if self.learnt.begun is None and not self.paid_for(self.breadth):
            return 0  # so that nothing is read yet, and nobody pays for that
        if not self.reads():
            self.learnt.asked = 0.0
            return 0
        return self.paid_for(self.breadth)

    def renew_for_round(self) -> None:
        """As `renew`; in this round prices stand."""
        self.renew()
        self.known.stands = max(self.known.stands, 1)

    def paid_for(self, width: int) -> int:
        """So many candidates of the root, or 0 where a layer may not be paid."""
        known, learnt = self.known, self.learnt
        learnt.asked = self.layer(1, width)
        lacking = learnt.asked + known.verifying.item(1) - self.most
        if lacking <= 0.0:
            return width
        learnt.save(lacking / known.plain)
        return 0

    def looked_at(self) -> int:
        """How many candidates of each node are worth a look.

        The k-th likeliest has a probability of at most 1 / k, so beyond the inverse of what the first nodes cost in
        the mean none is worth it. A power of two, as passes of drafters may be recorded by their width.
        """
        verifying = self.known.verifying
        nodes = min(WIDTH, len(verifying) - 1)
        price = self.learnt.rate * (verifying.item(nodes) - verifying.item(0)) / nodes
        return WIDEST if price * WIDEST <= 1.0 else 1 << int(1.0 / price).bit_length()

    def scored(self, tree: TokenTree, candidates: Candidates) -> tuple[FloatArray, Candidates]:
        learnt = self.learnt
        if len(tree) == 1:
            learnt.scores, learnt.own, learnt.layers = np.zeros(1), np.ones(1), []
        learnt.above = learnt.scores.take(candidates.frontier)[:, None]
        learnt.offered = learnt.above + learnt.calibration.accepted(candidates.logp)
        given = candidates.frontier, candidates.tokens, candidates.logp
        return learnt.scores, Candidates(*given, learnt.offered, candidates.law)

    def rate(self, most: float) -> float:
        """What a second is worth, in tokens.

        Args:
            most: tokens a second that this round may reach: what counts before there are enough rounds with a draft.
        """
        learnt = self.learnt
        return most if learnt.drafted < ENOUGH else max(learnt.tokens / learnt.passes, 1.0) / self.known.plain

    def worth(self, prob: FloatArray, seconds: FloatArray) -> int:
        affordable = len(seconds)
        if seconds.item(-1) > self.most:
            affordable = max(int(seconds.searchsorted(self.most, side="right")), 1)
        by_size = rates(prob[: affordable - 1], seconds[:affordable])
        self.learnt.rate = self.rate(by_size.item(by_size.argmax()))
        return int(((by_size - self.learnt.rate) * seconds[:affordable]).argmax())

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        layer = self.priced(tree, candidates)
        known, learnt = self.known, self.learnt
        if learnt.chains is not None:
            return self.grown_chain(tree, candidates, layer, learnt.chains)
        best = Likeliest.of(*self.scored(tree, candidates), self.budget - 1)
        seconds = known.drafting[-1] + known.verifying[: len(best.prob) + 1]
        known.nodes = self.worth(best.prob, seconds)
        conditional = np.exp(learnt.offered - learnt.above)
        learnt.layers.append((learnt.own.take(candidates.frontier), conditional))
        joined = best.chosen[: int(best.places.searchsorted(known.nodes))]
        own, scores = conditional.take(joined), learnt.offered.take(joined)
        price = self.price(known.nodes)
        if price is None:  # another node would take the place of the least likely one
            price = best.prob.item(known.nodes - 1)
        frontier = len(tree) + self.expanded(own, np.exp(scores), price, self.breadth)
        learnt.scores, learnt.own = np.concatenate([learnt.scores, scores]), np.concatenate([learnt.own, own])
        return Growth(joined, frontier=frontier)

    def chain_came(self, logp: FloatArray, nodes: int) -> None:
        known, learnt = self.known, self.learnt
        assert learnt.chains is not None
        known.drafting = [*accumulate([self.layer(1, self.breadth)] * len(logp))]
        known.nodes = nodes
        learnt.layers_of_chain = [*self.as_wide(logp, learnt.chains.width)]

    def as_wide(self, logp: FloatArray, width: int) -> FloatArray:
        """Log-probabilities of candidates with padding where the drafter knows no more, shape `(rows, width)`."""
        lacking = width - logp.shape[1]
        return np.pad(logp, ((0, 0), (0, lacking)), constant_values=-np.inf) if lacking > 0 else logp

    def grown_chain(self, tree: TokenTree, candidates: Candidates, layer: int, chains: Chains) -> Growth:
        """`grow` where the tree is one of these chains."""
        self.learnt.layers_of_chain += [*self.as_wide(candidates.logp[:1], chains.width)]
        path = candidates.path_logp.item(0)
        self.known.nodes = layer + int(path >= chains.joins[layer])
        if self.known.nodes == layer:
            return Growth(NOTHING)
        goes_on = layer + 1 < chains.depth and path >= chains.goes_on[layer]
        return Growth(ints([0]), frontier=ints([len(tree)]) if goes_on else NOTHING)

    def price(self, nodes: int) -> float | None:
        """What one more node costs than so many drafted ones, in tokens; None where the tree is full."""
        verifying = self.known.verifying
        if nodes + 1 >= len(verifying):
            return None
        return self.learnt.rate * (verifying.item(nodes + 1) - verifying.item(nodes))

    def expanded(self, own: FloatArray, reach: FloatArray, price: float, width: int) -> IntArray:
        """Which of the nodes that join are drafted from: those of which the next layer is likely to pay, or none.

        Args:
            own: how likely each is once its parent is accepted, shape `(joined,)`.
            reach: how likely the whole path to it is, likewise.
            price: of a node, in tokens.
            width: candidates of each.
        """
        known, rate = self.known, self.learnt.rate
        if len(known.drafting) >= self.depth or not len(own):
            return NOTHING
        gains = self.learnt.following.gains(own, reach, price)
        order = (-gains).argsort(kind="stable")  # of equals the earlier is first
        sums = gains.take(order).cumsum().tolist()
        best, most = 0, 0.0
        left = self.most - known.drafting[-1] - known.verifying.item(known.nodes)
        for size in sizes_up_to(len(own), self.steps).tolist():
            seconds = known.layers.get((size, width)) or self.layer(size, width)  # nearly always it is known
            surplus = sums[size - 1] - rate * seconds
            if surplus > most and seconds <= left:
                best, most = size, surplus
        chosen = order[:best]
        chosen.sort()
        return chosen

    def finish(self, tree: TokenTree) -> TokenTree:
        if len(tree) == 1 + self.known.nodes or len(tree) == 1:
            return tree
        return tree.keep((-self.learnt.scores).argsort(kind="stable")[: 1 + self.known.nodes])

    def prices_ahead(self, costs: Costs) -> tuple[float, float] | None:
        """What a round takes besides the target's pass and its layers, and a layer, where passes are run ahead.

        None where rounds are none of those, and while nothing is known of them.
        """
        if not self.learnt.chained:
            return None
        one, two = costs.chain(1), costs.chain(2)
        if one is None or two is None:
            return None
        layer = min(max(two - one, 0.0), one)
        return one - layer, layer

    def others(self, costs: Costs) -> float:
        ahead = self.prices_ahead(costs)
        if ahead is not None:
            return ahead[0]
        # before it is known, such a round is taken to be like one without a draft
        return (costs.besides(False) or 0.0) if self.learnt.chained else super().others(costs)

    def layer(self, rows: int, width: int) -> float:
        known = self.known
        if self.learnt.chained and (rows, width) not in known.layers:
            ahead = self.prices_ahead(known.costs)
            if ahead is not None:
                known.layers[rows, width] = ahead[1]
        return super().layer(rows, width)

    def others_of_layer(self, costs: Costs) -> float:
        return 0.0 if self.learnt.chained else super().others_of_layer(costs)

    def spared(self, costs: Costs) -> float:
        together = costs.rest(PAUSE) if self.learnt.rests_on else None
        plain = costs.besides(False) if together is None else together / PAUSE
        drafted = self.others(costs) if self.learnt.chained else costs.besides(True)
        return 0.0 if plain is None or drafted is None else drafted - plain

    def learn(self, round_: Round) -> None:
        """Take note of which tokens a round with a draft has tested."""
        self.learnt.calibration.learn(round_)

    def observe(self, round_: Round) -> None:
        super().observe(round_)
        learnt, nodes = self.learnt, len(round_.tree)
        expected = 1.0
        if self.known.drafting and not learnt.layers_of_chain:
            falling = -learnt.scores
            falling.sort()
            expected = float(totals(np.exp(-falling[:nodes])))
            self.learn(round_)
            for own, brought in learnt.layers:
                learnt.following.learn(own, brought)
        looked = sum([span.seconds for span in round_.spans if span.work == "guess"])
        self.went(len(round_.tokens), nodes, expected, round_.accepted, round_.inquired, looked)
        if round_.sequences > 1 and learnt.chains is not None:  # no pass is run ahead for texts that share passes
            self.leave_chains()

    def went(
        self, new: int, nodes: int, expected: float, accepted: int = 0, beside: int = 0, looked: float = 0.0
    ) -> None:
        """Take note of what a round has brought and taken.

        Args:
            new: tokens that it has emitted.
            nodes: of the tree that was verified.
            expected: tokens of it, where a draft was made.
            accepted: drafted tokens that were, where the tree was one of the chains.
            beside: nodes that the drafter has added to the tree, which take time as its own do.
            looked: seconds in which the drafter has told of its best guess before it drafted anything.
        """
        passes = self.spent(new, nodes, beside, looked)
        if passes is None:
            return
        learnt = self.learnt
        logp, learnt.layers_of_chain = learnt.layers_of_chain, []
        if logp:
            learnt.went_on(ChainNote(logp, nodes - 1, accepted, new, passes))
            if learnt.chains is None:
                self.known.stands = 0  # prices stood for as long as the chains
        else:
            learnt.went([(expected, new, passes)])
            learnt.width = self.looked_at()

    def spent(self, new: int, nodes: int, beside: int = 0, looked: float = 0.0) -> float | None:
        """Book a round; what it took, in passes of plain decoding, if it had a draft, or nodes that were added.

        Args:
            new: tokens that it has emitted.
            nodes: of the tree that was verified.
            beside: as for `went`.
            looked: likewise.
        """
        learnt, known = self.learnt, self.known
        learnt.wanted = None
        asked, learnt.asked = learnt.asked, 0.0
        read, learnt.catching_up = learnt.catching_up, 0.0
        learnt.unread = 0 if asked or known.drafting else learnt.unread + new
        if known.drafting:
            seconds = known.drafting[-1] + known.verifying.item(nodes - 1)
        else:
            learnt.left = max(learnt.left - 1, 0)
            seconds = known.plain + asked
        passes = (seconds + looked + self.added(nodes, beside)) / known.plain
        learnt.paid(new, passes + read / known.plain)
        if looked and not known.drafting:
            learnt.looked(looked / known.plain)
            if learnt.credit < 0.0 and not learnt.left:
                learnt.save(-learnt.credit)
        counts = bool(known.drafting or beside)
        known.drafting = []
        return passes if counts else None

    def added(self, nodes: int, beside: int) -> float:
        """Seconds that nodes take which were added to a tree of so many."""
        if not beside:
            return 0.0
        costs, context = self.known.costs, self.known.context
        return max(verify_price(costs, nodes + beside, context) - verify_price(costs, nodes, context), 0.0)
