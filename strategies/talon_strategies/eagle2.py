"""EAGLE-2's dynamic tree, which EAGLE-3 uses unchanged."""

import math

import attrs
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.forest import Count, Level
from talon_core.searching import searched
from talon_strategies.pooled import Pool, RankedAgain


@attrs.frozen
class Eagle2(RankedAgain):
    """Expands the `top_k` best nodes of each layer, then re-ranks everything (EAGLE-2, arXiv 2406.16858, section 4).

    The value of a node is the product of the drafter's probabilities along its path (their V_i). All candidates that
    were ever scored compete in the re-ranking, so the drafted tree is larger than the one that is verified. What is
    behind `budget - 1` others of its own layer has lost already: no more of a layer are kept, nor fewer than are
    expanded. Every round takes `1 + depth` draft passes, whatever the drafter's confidence.

    Attributes:
        budget: nodes sent to the target, the root included, at least 2; EAGLE's `total_token`.
        depth: expanded layers after the first, at least 0; the tree is up to `1 + depth` deep.
        top_k: nodes expanded per layer, and candidates drawn from each, at least 1.
    """

    name = "eagle2"
    purpose = "trees by confidence"
    paper = "arXiv 2406.16858"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    depth: int = attrs.field(default=7, validator=[whole_number, ge(0)], metadata=searched(0, 10))
    top_k: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 12, log=True))

    @property
    def draft_budget(self) -> int:
        return 1 + self.top_k + self.depth * min(self.top_k**2, self._kept)

    @property
    def _kept(self) -> int:
        """Most candidates of a layer that join the drafted tree."""
        return max(self.top_k, self.budget - 1)

    def wanted(self, nodes: Count) -> Count:
        return self.top_k

    def cut(self, layer: int, nodes: Count, pool: Pool) -> tuple[Count, Level]:
        return self._kept, -math.inf

    def expanded(self, layer: int) -> int:
        return self.top_k if layer < self.depth else 0
