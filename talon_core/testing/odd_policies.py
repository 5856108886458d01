"""Well-formed policies that no paper would propose: whatever they do, the output must keep its law."""

from collections.abc import Sequence

import attrs
import numpy as np
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.policy import Growth, TreePolicy
from talon_core.tree import TokenTree


def _scramble(seed: int, numbers: Sequence[int]) -> np.random.Generator:
    return np.random.default_rng([seed, *(int(number) + 1 for number in numbers)])


@attrs.frozen
class Erratic(TreePolicy):
    """Well-formed but senseless: chooses, orders, drafts from and drops nodes by a hash of what it sees."""

    name = "erratic"
    seed: int = 0
    budget: int = 6
    spare: int = 3

    @property
    def draft_budget(self) -> int:
        return self.budget + self.spare

    def width(self, tree: TokenTree) -> int:
        return int(_scramble(self.seed, tree.tokens.tolist()).integers(-1, 6))

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        rng = _scramble(self.seed, [*tree.tokens.tolist(), *tree.parents.tolist()])
        real = np.flatnonzero(candidates.tokens.ravel() >= 0)
        room = min(self.draft_budget - len(tree), len(real))
        chosen = rng.permutation(real)[: rng.integers(0, room + 1)]
        ready = np.array([len(tree) + i for i in range(len(chosen))])  # their parents were drafted from just now
        return Growth(chosen, None if rng.random() < 0.3 else ready[rng.random(len(ready)) < 0.7].astype(np.int64))

    def finish(self, tree: TokenTree) -> TokenTree:
        rng = _scramble(self.seed, tree.tokens.tolist())
        keep = [0]
        for node in range(1, len(tree)):
            if int(tree.parents[node]) in keep and len(keep) < self.budget and rng.random() < 0.8:
                keep.append(node)
        return tree.keep(keep)


@attrs.frozen
class CoinTosser(TreePolicy):
    """Keeps each of the few best candidates by the toss of a coin: its trees are random, the output's law is not."""

    name = "coin-tosser"
    children = "sampled"
    budget: int = 4

    def width(self, tree: TokenTree) -> int:
        return 2

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        best = candidates.best(min(2, self.budget - len(tree)))
        return Growth(np.array([one for one in best if choices.coin(0.4)], dtype=np.int64))


def odd_policies() -> st.SearchStrategy[TreePolicy]:
    """Policies that behave as badly as the rules allow, each with few nodes; for whatever has to bear with policies."""
    erratic = st.builds(Erratic, seed=st.integers(0, 10_000), budget=st.integers(2, 7), spare=st.integers(0, 3))
    return erratic | st.builds(CoinTosser, budget=st.integers(2, 5))
