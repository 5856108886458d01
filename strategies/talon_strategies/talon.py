"""TALON's confidence-aware tree."""

import math

import attrs
from attrs.validators import ge, gt, le, lt

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.policy import Growth, TreePolicy
from talon_core.searching import searched
from talon_core.tree import TokenTree
from talon_strategies.gate import relative_gate
from talon_strategies.options import number, whole_number


@attrs.frozen
class Talon(TreePolicy):
    """Keeps every candidate at least `mu` times as likely as its layer's best (TALON, arXiv 2601.07353, section 5.2).

    The first layer is the `top_k` best (their robust tree initialisation); every later one is what passes the gate,
    all parents pooled, scored by the probability of the path from the root; a layer that does not fit is cut to its
    best. What survives is drafted from next, until the tree is full: deep where the drafter is sure, wide where it
    is not. The paper scores the whole draft vocabulary; the best `budget - nodes` of each parent, which the default
    `width` asks for, give the same tree.

    Attributes:
        budget: nodes of the tree, the root included, at least 2; their N.
        top_k: size of the first layer, at least 1; their K.
        mu: the gate, in (0, 1]; the larger, the deeper and narrower the tree.
        least: the smallest path probability that is worth a node, in [0, 1); the tree ends where nothing reaches it,
            budget or not. 0 is the paper's algorithm. Where a node is not free to verify, as on a CPU, it saves what
            would hardly be accepted: this is ours.
    """

    name = "talon"
    purpose = "trees by confidence"
    paper = "arXiv 2601.07353"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    top_k: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 16, log=True))
    mu: float = attrs.field(default=0.03, validator=[number, gt(0), le(1)], metadata=searched(0.01, 0.6, log=True))
    least: float = attrs.field(default=0.0, validator=[number, ge(0), lt(1)], metadata=searched(0.0, 0.4))

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        room = self.budget - len(tree)
        floor = math.log(self.least) if self.least else -math.inf
        if len(tree) == 1:
            return Growth(candidates.best(min(self.top_k, room), at_least=floor))
        return Growth(candidates.best(room, at_least=max(relative_gate(candidates.path_logp, self.mu), floor)))
