"""Time of a verification by node count, of a whole round, and of drafting a batch, on a tiny model (`make bench`)."""

from collections.abc import Sequence
from copy import deepcopy
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

from talon_core.attention import PackedShape
from talon_core.candidates import Candidates
from talon_core.choices import SeededChoices
from talon_core.costs import MeasuredCosts
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Drafter, Frontier, Proposed
from talon_core.engine.checked_policy import checked_growers
from talon_core.engine.drafting import DraftLimits, Wanted, draft_trees
from talon_core.engine.faults import Faults
from talon_core.engine.offers import Offers
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_core.policy import SequenceInfo, TreePolicy
from talon_core.runtime.inputs import PassInputs, pass_inputs
from talon_core.tree import TokenTree
from talon_strategies import Chain, Eagle2, Talon, TalonCost
from talon_tests.tiny_models import tiny_model


@pytest.mark.parametrize("nodes", [1, 4, 8, 16, 32])
def test_verify(benchmark: Any, nodes: int) -> None:
    target: Any = decoder_for_model(tiny_model("llama"), None, Parts(policy="none")).target
    rng = np.random.default_rng(0)
    tree = TokenTree(rng.integers(0, 97, nodes), np.arange(-1, nodes - 1) // 2, np.zeros(nodes))
    with target.session():
        target.open(0, 256)
        target.read({0: rng.integers(0, 97, 127)})

        def verify() -> Any:
            outputs = target.verify({0: tree}).outputs[0]
            target.runner.cache.committed({0: 0})
            return outputs

        outputs = benchmark(verify)
    assert outputs.logits.shape == (nodes, 97)
    assert torch.isfinite(outputs.logits).all()


@pytest.mark.parametrize("drafter", ["ngram", "draft-model:skip=1-2"])
def test_whole_rounds(benchmark: Any, drafter: str) -> None:
    decoder = decoder_for_model(tiny_model("llama"), None, Parts(drafter=drafter))
    prompt = np.random.default_rng(0).integers(0, 97, 64)
    result = benchmark(lambda: decoder.generate(prompt, max_new_tokens=64))
    assert len(result.token_ids) == 64


POLICIES = [Talon(), TalonCost(), Eagle2(), Chain()]


def is_whole(policy: TreePolicy, sizes: list[int]) -> bool:
    """Whether trees have as many nodes as the policy makes of the same row for anybody, and more than the root."""
    (size,) = {*sizes}
    return 1 < size <= policy.budget if isinstance(policy, TalonCost) else size == policy.budget


class SameRow(Drafter):
    """Offers the same tokens after every node, so that what is timed is the host's work besides the drafter."""

    max_depth = None
    row = np.sort(np.log(np.random.default_rng(0).dirichlet(np.full(60, 0.2))).clip(-40, 0))[::-1]

    def open(self, slot: int, prompt: object, room: int) -> None:
        """It needs no prompt."""

    def commit(self, committed: object) -> None:
        """It remembers nothing."""

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        found = []
        for one in frontiers:
            shape = len(one.nodes), min(one.width, len(self.row))
            logp = np.broadcast_to(self.row[: shape[1]], shape)
            path_logp = one.tree.path_logp.take(one.nodes)[:, None] + logp
            found.append(Candidates(one.nodes, np.broadcast_to(np.arange(shape[1]), shape), logp, path_logp))
        return Proposed(found, 1)


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_drafting_of_a_batch(benchmark: Any, policy: TreePolicy, batch: int) -> None:
    told = SequenceInfo(prompt_length=1, max_new_tokens=64, temperature=0.0)
    limits, choices, offers = DraftLimits(100, 20), SeededChoices(0), Offers(SameRow())
    policies = [policy.begin(told) for _ in range(batch)]
    wanted = [
        Wanted(slot, own, slot, limits, choices, 1, checked_growers(own, None)) for slot, own in enumerate(policies)
    ]
    drafted = benchmark(lambda: draft_trees(wanted, offers, Faults(), MeasuredCosts()))
    assert is_whole(policy, [len(one.tree) for one in drafted.values()])


class HostCost:
    """What the host does for one pass over trees of a batch: drafting them, and writing down what the pass reads.

    Args:
        policy: makes the trees.
        batch: sequences, each behind 100 tokens.
    """

    def __init__(self, policy: TreePolicy, batch: int) -> None:
        told = SequenceInfo(prompt_length=1, max_new_tokens=64, temperature=0.0)
        self._limits, self._choices, self._offers = DraftLimits(100, 20), SeededChoices(0), Offers(SameRow())
        own = [policy.begin(told) for _ in range(batch)]
        self._policies = [(one, checked_growers(one, None)) for one in own]
        self._prefixes = [100] * batch
        self._shape = PackedShape(batch, 64, 64 * batch, 64)
        self._numbers = np.zeros(self._shape.size, dtype=np.int32)

    def draft(self) -> dict[int, TokenTree]:
        how = self._limits, self._choices, 1
        wanted = [Wanted(slot, own, slot, *how, growers) for slot, (own, growers) in enumerate(self._policies)]
        drafted = draft_trees(wanted, self._offers, Faults(), MeasuredCosts())
        return {slot: one.tree for slot, one in drafted.items()}

    def write(self, trees: dict[int, TokenTree]) -> PassInputs:
        inputs = pass_inputs({slot: (tree, 0) for slot, tree in trees.items()}, self._prefixes)
        self._shape.write(inputs.layout, self._numbers)
        return inputs


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_host_cost_of_a_sequence_in_a_batch_over_one_alone(benchmark: Any, policy: TreePolicy) -> None:
    """`extra_info` has the ratios, of medians in turn: below 1 where sequences share work, 1 where each is for itself.

    Others are those of writing the inputs over drafting, for each batch.
    """
    batches = {batch: HostCost(policy, batch) for batch in (1, 8, 64)}
    times: dict[tuple[str, int], list[float]] = {}

    def in_turn() -> None:
        for batch, cost in batches.items():
            started = perf_counter()
            trees = cost.draft()
            drafted = perf_counter()
            inputs = cost.write(trees)
            written = perf_counter()
            assert len(inputs.counts) == batch
            assert is_whole(policy, inputs.counts)
            times.setdefault(("draft", batch), []).append(drafted - started)
            times.setdefault(("inputs", batch), []).append(written - drafted)

    benchmark.pedantic(in_turn, rounds=15, warmup_rounds=2)
    taken = {of: median(found) for of, found in times.items()}
    alone = taken["draft", 1] + taken["inputs", 1]
    for batch in batches:
        both = taken["draft", batch] + taken["inputs", batch]
        benchmark.extra_info[f"batch {batch}, a sequence over one alone"] = both / batch / alone
        benchmark.extra_info[f"batch {batch}, inputs over draft"] = taken["inputs", batch] / taken["draft", batch]


@pytest.fixture(scope="module")
def wide() -> Any:
    """SmolLM2 in float32."""
    return load_model("smollm2-135m", dequantize=True)[0]


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("weights", ["stored", "wide", "narrow"])
def test_plain_decoding_by_the_weights_numbers(
    benchmark: Any, smollm: tuple[Any, Any], request: pytest.FixtureRequest, weights: str
) -> None:
    """32 tokens by SmolLM2 in blocks, in float32, and rounded to numbers that bfloat16 has: read at half the bytes."""
    model = smollm[0] if weights == "stored" else request.getfixturevalue("wide")
    if weights == "narrow":
        model = deepcopy(model).to(torch.bfloat16).float()
    decoder = decoder_for_model(model, None, Parts(policy="none"))
    prompt, new = np.arange(3, 67), 32 if benchmark.enabled else 2
    result = benchmark.pedantic(lambda: decoder.generate(prompt, max_new_tokens=new), rounds=5, warmup_rounds=1)
    assert len(result.token_ids) == new
