"""TALON's tree with a price for each node and layer, and no knob."""

import attrs
import numpy as np
from attrs.validators import ge

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.policy import Growth
from talon_core.rounds import Round
from talon_core.tree import FloatArray, TokenTree
from talon_strategies.caddtree import CaDDTree
from talon_strategies.calibration import Calibration
from talon_strategies.options import whole_number
from talon_strategies.prices import ASSUMED

WIDTH = 10
"""Candidates of each node that are looked at: TALON's K (arXiv 2601.07353, section 5.2)."""

MEMORY = 0.9
"""What a round's tokens and seconds still count for after the next one."""

ENOUGH = 3
"""Rounds with a draft before it is decided whether drafting pays."""

LOSS = 0.02
"""The share of plain decoding's speed that may be lost before drafting pauses; less than what it hides would bring."""

PAUSES = (4, 64)
"""Rounds of plain decoding before drafting is tried again: at first, and at most."""


@attrs.define(eq=False)
class Learnt:
    """What is known of a text.

    Attributes:
        calibration: of the drafter's probabilities.
        scores: log-probabilities of the paths to this round's nodes, calibrated, the root's first.
        offered: those of the newest candidates, shape `(frontier, width)`.
        tokens: expected of the latest rounds with a draft; the later a round was, the more it counts.
        passes: what these rounds took, in passes of plain decoding.
        drafted: how many there were.
        pause: rounds of plain decoding that were decided on last; 0 where drafting paid.
        left: those of them that are left.
    """

    calibration: Calibration = attrs.field(factory=Calibration)
    scores: FloatArray = attrs.field(factory=lambda: np.zeros(1))
    offered: FloatArray = attrs.field(factory=lambda: np.empty((0, 0)))
    tokens: float = 0.0
    passes: float = 0.0
    drafted: int = 0
    pause: int = 0
    left: int = 0

    def went(self, tokens: float, passes: float) -> None:
        """A round with a draft is over: decide whether others follow."""
        self.tokens, self.passes = MEMORY * self.tokens + tokens, MEMORY * self.passes + passes
        self.drafted += 1
        if self.drafted >= ENOUGH:
            pays = self.tokens >= (1.0 - LOSS) * self.passes
            self.left = self.pause = 0 if pays else min(max(2 * self.pause, PAUSES[0]), PAUSES[1])


@attrs.frozen
class TalonCost(CaDDTree):
    """Keeps the likeliest paths that pay, in as many layers as pay, and drafts nothing where plain decoding is faster.

    As TALON (arXiv 2601.07353, section 5.2) it pools a layer's candidates and cuts them by one gate. That is no share
    of the layer's best: it lies where the expected tokens a second, (1 + Phi) / (layers C_q + C_v(n)), are highest, by
    what passes cost on this machine at this length of the text. `CostAware` has that rule, and the one for layers. Phi
    adds up how likely paths are to be accepted, by what was accepted in this text so far, see `Calibration`.

    A draft can turn out to be worth no node, and has cost its layers. Where the expected tokens of the latest rounds
    did not pay for those, rounds of plain decoding follow, in which the drafter is not asked: 4 at first, and twice as
    many after each round with a draft that did not help. While nothing is known of passes, a node is taken to cost a
    twentieth and a layer a tenth of a pass over the root. All this is ours, and there is nothing to tune: `budget` and
    `depth` bound the memory that a round may need.

    Attributes:
        budget: most nodes of the tree, the root included, at least 2.
        depth: most layers, at least 1; one draft pass each.
    """

    name = "talon-cost"
    paper = ""
    assumed = ASSUMED
    budget: int = attrs.field(default=64, validator=[whole_number, ge(2)])
    depth: int = attrs.field(default=16, validator=[whole_number, ge(1)])
    learnt: Learnt = attrs.field(init=False, eq=False, repr=False, factory=Learnt)

    def width(self, tree: TokenTree) -> int:
        return 0 if self.learnt.left and len(tree) == 1 else min(WIDTH, self.budget - 1)

    def scored(self, tree: TokenTree, candidates: Candidates) -> tuple[FloatArray, Candidates]:
        learnt = self.learnt
        if len(tree) == 1:
            learnt.scores = np.zeros(1)
        reached = learnt.scores[candidates.frontier][:, None]
        learnt.offered = reached + learnt.calibration.accepted(candidates.logp)
        given = candidates.frontier, candidates.tokens, candidates.logp
        return learnt.scores, Candidates(*given, learnt.offered, candidates.law)

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        growth, learnt = super().grow(tree, candidates, choices), self.learnt
        learnt.scores = np.append(learnt.scores, learnt.offered.take(growth.chosen))
        return growth

    def finish(self, tree: TokenTree) -> TokenTree:
        if len(tree) == 1:
            return tree
        return tree.keep(np.argsort(-self.learnt.scores, kind="stable")[: 1 + self.known.nodes])

    def learn(self, round_: Round) -> None:
        """Take note of which tokens a round with a draft has tested."""
        self.learnt.calibration.learn(round_)

    def observe(self, round_: Round) -> None:
        super().observe(round_)
        learnt, known = self.learnt, self.known
        if not known.drafting:  # the drafter was not asked
            learnt.left = max(learnt.left - 1, 0)
            return
        nodes = len(round_.tree)
        expected = np.exp(-np.sort(-learnt.scores)[:nodes]).sum()
        self.learn(round_)
        learnt.went(float(expected), float((sum(known.drafting) + known.verifying[nodes - 1]) / known.verifying[0]))
        known.drafting = []
