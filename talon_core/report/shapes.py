"""What trees look like, and which of their nodes are accepted: counted round by round."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import attrs
import numpy as np

from talon_core.report.figures import ALL, RankShares, TreeShapes
from talon_core.rounds import Round

MOST_RANKS = 12
"""Children of a node whose ranks are told apart; all policies together have few beyond it."""


@attrs.define
class Shapes:
    """Counts of one method."""

    _widths: dict[str | None, list[Counter[int]]] = attrs.field(factory=lambda: defaultdict(list))
    _rounds: Counter[str | None] = attrs.field(factory=Counter)
    _nodes: Counter[str | None] = attrs.field(factory=Counter)
    _tested: Counter[tuple[int, int]] = attrs.field(factory=Counter)
    _accepted: Counter[tuple[int, int]] = attrs.field(factory=Counter)

    def add(self, set_name: str, rounds: Sequence[Round]) -> None:
        """Count the rounds of one text."""
        for one in rounds:
            widths = np.bincount(one.tree.depths)[1:].tolist()
            for group in (ALL, set_name):
                self._rounds[group] += 1
                self._nodes[group] += len(one.tree)
                known = self._widths[group]
                known += [Counter() for _ in range(len(widths) - len(known))]
                for counts, width in zip(known, widths, strict=False):
                    counts[width] += 1
            self._rank(one)

    def _rank(self, one: Round) -> None:
        tree, path = one.tree, one.path.tolist()
        for place, node in enumerate(path):
            children = np.flatnonzero(tree.parents == node)
            if not len(children):
                continue
            best_first = children[np.argsort(-tree.path_logp[children], kind="stable")].tolist()
            depth = place + 1
            self._tested.update((depth, rank) for rank in range(1, min(len(best_first), MOST_RANKS) + 1))
            if depth < len(path):
                self._accepted[depth, best_first.index(path[depth]) + 1] += 1

    def ranks(self) -> RankShares | None:
        """How often each rank was accepted; None where nothing was drafted."""
        if not self._tested:
            return None
        depths = max(depth for depth, _ in self._tested)
        ranks = {depth: max(rank for at, rank in self._tested if at == depth) for depth in range(1, depths + 1)}

        def table(counts: Counter[tuple[int, int]]) -> list[list[int]]:
            return [[counts[depth, rank] for rank in range(1, ranks[depth] + 1)] for depth in range(1, depths + 1)]

        return RankShares(table(self._tested), table(self._accepted))

    def shapes(self, method: str, group: str | None) -> TreeShapes | None:
        """The trees of a set, or of all; None where nothing was drafted."""
        if not self._widths.get(group):
            return None
        rounds = self._rounds[group]
        return TreeShapes(group, method, rounds, self._nodes[group] / rounds, self._widths[group])
