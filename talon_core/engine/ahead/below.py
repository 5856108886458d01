"""What is drafted below one outcome: a tree of its own within the tree that the drafter sees."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from talon_core.candidates import Law
from talon_core.choices import Choices
from talon_core.engine.ahead.prepared import Path, Row, candidates_of
from talon_core.engine.growing import DraftLimits, Growing
from talon_core.policy import TreePolicy
from talon_core.tree import IntArray


class Below:
    """The tree below one outcome, grown as a policy would probably grow it. Nothing of it is verified: it says where
    the drafter is asked.

    Args:
        policy: grows it.
        token: of the outcome: the root.
        node: what the root is in the tree that the drafter sees.
        limits: what bounds it besides its policy.
        choices: the policy's randomness.
        now: the clock, in seconds.

    Attributes:
        rows: what the drafter has answered, by path.
        nodes: by own node, what it is in the tree that the drafter sees.
    """

    def __init__(
        self,
        policy: TreePolicy,
        token: int,
        node: int,
        limits: DraftLimits,
        choices: Choices,
        now: Callable[[], float],
    ) -> None:
        self._growing = Growing(policy, token, limits, now)
        self._choices = choices
        self._paths: list[Path] = [()]
        self._width = 0
        self.nodes = [node]
        self.rows: dict[Path, Row] = {}

    def frontier(self) -> tuple[list[int], int]:
        """The nodes to ask the drafter at, as it counts them, and how many candidates are wanted; no nodes at the end.

        Raises:
            PluginError: if the policy fails.
        """
        if not len(self._growing.frontier):
            return [], 0
        self._width = self._growing.width()
        return [self.nodes[node] for node in self._growing.frontier.tolist()], self._width

    def grow(self, rows: Sequence[Row], law: Law) -> tuple[IntArray, list[int]]:
        """Keep what the drafter has answered, and grow by it.

        Args:
            rows: at the nodes of the frontier, in their order.
            law: the handle of their whole laws.

        Returns:
            The tokens that have joined, shape `(new,)`, int64, and their parents as the drafter counts them. `joined`
            tells what they are there.

        Raises:
            PluginError: if the policy fails, or breaks its contract.
        """
        own, old = self._growing, len(self._growing.tree)
        for node, row in zip(own.frontier.tolist(), rows, strict=True):
            self.rows[self._paths[node]] = row
        own.grow(candidates_of(own.frontier, own.tree.path_logp[own.frontier], rows, self._width, law), self._choices)
        parents = own.tree.parents[old:].tolist()
        new = own.tree.tokens[old:]
        self._paths += [(*self._paths[parent], token) for parent, token in zip(parents, new.tolist(), strict=True)]
        return new, [self.nodes[parent] for parent in parents]

    def joined(self, nodes: Iterable[int]) -> None:
        """The nodes that have joined, in their order, as the drafter counts them."""
        self.nodes += nodes

    def end(self) -> None:
        """Nothing more is asked for it."""
        self._growing.frontier = np.empty(0, dtype=np.int64)
