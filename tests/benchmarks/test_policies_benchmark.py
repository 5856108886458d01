"""What one layer of a policy costs near 60 nodes. The aim is a median under 60 microseconds; it is not asserted."""

import attrs
import numpy as np
import pytest

from talon_core.choices import SeededChoices
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.policy import Growth, TreePolicy
from talon_core.testing import TableDrafter
from talon_strategies import (
    Chain,
    Eagle2,
    StaticTree,
    Talon,
    TalonAbsolute,
    TalonGateOnly,
    TalonLocal,
    TalonTopkLayers,
)

VOCAB = 2000
BINARY_OF_59 = [tuple(map(int, f"{node:b}"[1:])) for node in range(2, 61)]

POLICIES = [
    Chain(length=59),
    Eagle2(),
    StaticTree(shape=BINARY_OF_59),
    Talon(),
    TalonAbsolute(threshold=1e-3),
    TalonGateOnly(),
    TalonLocal(),
    TalonTopkLayers(),
]


@attrs.frozen
class Recording(TreePolicy):
    """Hands on to another policy and remembers what it was asked."""

    name = "recording"
    policy: TreePolicy
    asked: list = attrs.field(factory=list)

    @property
    def budget(self):
        return self.policy.budget

    @property
    def draft_budget(self):
        return self.policy.draft_budget

    def width(self, tree):
        return self.policy.width(tree)

    def grow(self, tree, candidates, choices):
        self.asked.append((tree, candidates))
        return self.policy.grow(tree, candidates, choices)

    def finish(self, tree):
        return self.policy.finish(tree)


@pytest.fixture(scope="module")
def drafter():
    """Laws as a language model's: about as many of them peaked as flat."""
    generator = np.random.default_rng(0)
    weights = np.exp(generator.uniform(1.0, 6.0, (199, 1)) * generator.standard_normal((199, VOCAB)))
    return TableDrafter(weights / weights.sum(axis=1, keepdims=True))


def one_round(policy, drafter):
    """What the policy was asked for in a whole round, and the tree that was drafted."""
    recording = Recording(policy)
    drafted = draft_tree(recording, drafter, 0, DraftLimits(VOCAB, max_depth=100), SeededChoices(0)).drafted
    return recording.asked, drafted


@pytest.mark.parametrize("which", ["widest", "last"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_grow(benchmark, drafter, policy, which):
    asked, _ = one_round(policy, drafter)
    tree, candidates = asked[-1] if which == "last" else max(asked, key=lambda layer: layer[1].tokens.size)
    asked_for = (tree, candidates, SeededChoices(0))
    growth = benchmark.pedantic(policy.grow, args=asked_for, rounds=200, iterations=5, warmup_rounds=5)
    assert isinstance(growth, Growth)
    benchmark.extra_info.update(nodes=len(tree), candidates=candidates.tokens.size)


def test_finish_of_eagle2(benchmark, drafter):
    _, drafted = one_round(Eagle2(), drafter)
    tree = benchmark.pedantic(Eagle2().finish, args=(drafted,), rounds=200, iterations=5, warmup_rounds=5)
    assert len(tree) == 60
    benchmark.extra_info.update(nodes=len(drafted))
