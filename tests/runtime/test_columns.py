"""Processors that differ from tree to tree in a number are called once, and give what each gives alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process

from talon_core.choices import SeededChoices
from talon_core.drawn import Drawn
from talon_core.engine.acceptors import Acceptors, Offered
from talon_core.request import Request
from talon_core.rule import AcceptanceRule
from talon_core.runtime import draws
from talon_core.runtime.columns import COLUMNS, column_of, columns_of
from talon_core.runtime.draws import draw_tokens, warped
from talon_core.runtime.next_tokens import next_tokens
from talon_core.sampling import Sampling, Temperature
from talon_core.target import NodeDraws
from talon_core.tree import TokenTree
from talon_strategies import RejectionWithoutReplacement, Traversal
from talon_tests.drawing_ways import OnDevice
from talon_tests.launches import Launches

OF: Any = logits_process
VOCAB = 40
NONE = torch.empty((0, 0), dtype=torch.int64)

MADE: dict[str, Any] = {
    "temperature": st.floats(0.05, 5).map(OF.TemperatureLogitsWarper),
    "ours": st.floats(0.05, 5).map(Temperature),
    "top-k": st.integers(1, VOCAB + 3).map(OF.TopKLogitsWarper),
    "top-p": st.floats(0, 1).map(OF.TopPLogitsWarper),
    "top-p of two": st.floats(0, 1).map(lambda p: OF.TopPLogitsWarper(p, -3.0, min_tokens_to_keep=2)),
    "min-p": st.floats(0, 1).map(OF.MinPLogitsWarper),
    "min-p of two": st.floats(0, 1).map(lambda p: OF.MinPLogitsWarper(p, min_tokens_to_keep=2)),
    "typical": st.just(0.9).map(OF.TypicalLogitsWarper),
}
"""Processors of a kind; what they differ in is a column, but for the last one, where there is nothing."""

TREES = st.lists(st.sampled_from([*MADE]), min_size=1, max_size=4).flatmap(
    lambda kinds: st.lists(st.tuples(*(MADE[kind] for kind in kinds)), min_size=1, max_size=6)
)
"""For each tree its processors, the same kinds in the same order."""


def scores_of(rows: int, dtype: torch.dtype, seed: int, steps: int) -> Tensor:
    """Scores, with ties where there are few steps, and some that forbid a token."""
    scores = torch.randn((rows, VOCAB), generator=torch.Generator().manual_seed(seed)) * 3
    scores = (scores * steps).round() / steps
    scores[torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed + 1)) < 0.1] = -torch.inf
    return scores.to(dtype)


def ends_of(trees: Sequence[Any]) -> Any:
    return np.cumsum([0, *(1 + place % 3 for place in range(len(trees)))])


@settings(deadline=None, max_examples=150)
@given(trees=TREES, dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), seed=st.integers(0, 99))
@pytest.mark.parametrize("steps", [1, 10**6])
def test_what_is_warped_together_has_the_bits_of_what_is_warped_alone(
    trees: list[tuple[Any, ...]], dtype: torch.dtype, seed: int, steps: int
) -> None:
    starts = ends_of(trees)
    scores = scores_of(int(starts[-1]), dtype, seed, steps)
    columns = columns_of(trees, range(len(trees)), starts, scores.device)
    together = warped(scores, NodeDraws(trees[0], frozenset(), None), columns)
    for place, own in enumerate(trees):
        alone = warped(scores[starts[place] : starts[place + 1]], NodeDraws(own, frozenset(), None))
        assert torch.equal(together[starts[place] : starts[place + 1]], alone)


class OfGPU(Tensor):
    """A tensor of a CPU that says that it is on a GPU."""

    is_cuda = True


def test_on_a_gpu_temperatures_round_as_one_temperature_does_there() -> None:
    """PyTorch multiplies by the reciprocal of a single number there, in the precision of the scores."""
    scores = torch.randn(64, VOCAB)
    temperatures = np.random.default_rng(0).uniform(0.1, 2.0, len(scores))
    warper = OF.TemperatureLogitsWarper(1.0)
    _, warp = COLUMNS[type(warper).__module__, type(warper).__name__]
    column = torch.from_numpy(temperatures)[:, None]
    found = warp(warper, scores.as_subclass(OfGPU), column, 2.0).as_subclass(Tensor)
    expected = scores.numpy() * (np.float32(1) / temperatures.astype(np.float32))[:, None]
    assert np.array_equal(found.numpy(), expected)
    assert not np.array_equal(warp(warper, scores, column, 2.0).numpy(), expected)


def test_a_top_p_is_taken_from_1_before_it_is_rounded() -> None:
    """As Python does it: what is left out adds up to exactly 1/32 here, which rounding the other way would allow."""
    scores = torch.full((2, VOCAB), -torch.inf)
    scores[:, :32] = 0.0
    trees = [(OF.TopPLogitsWarper(0.96875 + 1e-8),), (OF.TopPLogitsWarper(0.5),)]
    columns = columns_of(trees, range(2), np.arange(3), scores.device)
    together = warped(scores, NodeDraws(trees[0], frozenset(), None), columns)
    alone = [own(NONE, scores[:1]) for (own,) in trees]
    assert torch.equal(together, torch.cat(alone))
    assert together.isfinite().sum(-1).tolist() == [32, 16]


@settings(deadline=None, max_examples=50)
@given(trees=TREES, seed=st.integers(0, 99))
def test_tokens_are_those_of_each_tree_alone(trees: list[tuple[Any, ...]], seed: int) -> None:
    starts = ends_of(trees)
    scores = scores_of(int(starts[-1]), torch.float32, seed, 10)
    numbers = torch.rand(len(scores), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for to_draw in (None, np.zeros(1)):
        drawn = {slot: NodeDraws(own, frozenset(), to_draw) for slot, own in enumerate(trees)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(draws, "MOST_SCORES", 2 * VOCAB)  # two rows at a time
            found = next_tokens(scores, numbers, starts, range(len(trees)), drawn)
        assert not found.failed
        for slot, how in drawn.items():
            own = slice(starts[slot], starts[slot + 1])
            alone = warped(scores[own], how)
            expected = alone.argmax(-1) if to_draw is None else draw_tokens(alone, numbers[own])
            assert found.tokens[own].tolist() == expected.tolist()


@pytest.mark.parametrize("rule", [RejectionWithoutReplacement(), Traversal()])
def test_drawn_children_are_tested_by_the_laws_of_each_tree_alone(rule: AcceptanceRule) -> None:
    count, nodes = 9, 4
    law = np.full(VOCAB, 1 / VOCAB)
    tree = TokenTree([0, 1, 2, 3], [-1, 0, 1, 1], np.zeros(4), {0: Drawn([1], law), 1: Drawn([2, 3], law)})
    scores, drawn = scores_of(count * nodes, torch.float32, 0, 10**6), {}
    for slot in range(1, count):  # so that a tree's place is not where its rows are
        processors = OF.TemperatureLogitsWarper(0.2 + slot), OF.TopKLogitsWarper(5 + 4 * slot)
        request, offered = Request(np.array([0]), 5, Sampling(True, processors), frozenset()), Offered()
        acceptor = Acceptors(rule, OnDevice(np.zeros((1, 1)))).of(request, SeededChoices(slot))
        acceptor.offer(slot, tree, offered)
        drawn |= offered.drawn
    starts, numbers = np.arange(count + 1) * nodes, torch.zeros(count * nodes, dtype=torch.float64)
    together = next_tokens(scores, numbers, starts, range(count), drawn)
    for slot in range(1, count):
        alone = next_tokens(scores, numbers, starts, [slot], drawn)
        own = slice(starts[slot], starts[slot + 1])
        assert together.within is not None
        assert alone.within is not None
        assert torch.equal(together.tokens[own], alone.tokens[own])
        assert torch.equal(together.within[own], alone.within[own])
    assert len({*together.tokens.tolist()}) > 5


PROCESSORS = {
    "temperature": lambda by: [OF.TemperatureLogitsWarper(0.5 + by)],
    "all": lambda by: [
        OF.TemperatureLogitsWarper(0.5 + by),
        OF.TopKLogitsWarper(1 + int(30 * by)),
        OF.TopPLogitsWarper(0.1 + 0.8 * by),
        OF.MinPLogitsWarper(0.2 * by),
    ],
}


@pytest.mark.parametrize(("kinds", "most"), [("temperature", 49), ("all", 73)])
def test_a_batch_of_64_temperatures_is_served_at_once(kinds: str, most: int) -> None:
    starts = np.arange(65) * 2
    scores, numbers = scores_of(128, torch.float32, 0, 10**6), torch.rand(128, dtype=torch.float64)
    drawn = {slot: NodeDraws(tuple(PROCESSORS[kinds](slot / 64)), frozenset(), np.zeros(1)) for slot in range(64)}
    with Launches() as launches:
        next_tokens(scores, numbers, starts, range(64), drawn)
    assert launches.counts.total() <= most


def test_another_option_is_no_column_and_parts_trees() -> None:
    """What is kept at least, and what is put in the place of others, is one number for all rows."""
    more = OF.TopPLogitsWarper(0.6, min_tokens_to_keep=5), OF.TopPLogitsWarper(0.7, -2.0)
    processors = [OF.TopPLogitsWarper(0.5), *more]
    scores, starts = scores_of(3, torch.float32, 0, 10**6), np.arange(4)
    drawn = {slot: NodeDraws((one,), frozenset(), np.zeros(1)) for slot, one in enumerate(processors)}
    numbers = torch.full((3,), 0.999, dtype=torch.float64)
    together = next_tokens(scores, numbers, starts, range(3), drawn).tokens
    for slot, one in enumerate(processors):
        assert together[slot] == draw_tokens(one(NONE, scores[slot : slot + 1]), numbers[:1])


def test_only_plain_numbers_of_the_classes_themselves_are_columns() -> None:
    class Inheriting(OF.TemperatureLogitsWarper):
        """It may do anything."""

    by_tensor = OF.TopPLogitsWarper(0.5)
    by_tensor.top_p = torch.tensor(0.5)
    assert column_of(by_tensor) is column_of(Inheriting(0.7)) is column_of(OF.TypicalLogitsWarper(0.9)) is None
    assert {name for _, name in COLUMNS} == {
        "Temperature",
        *(f"{name}LogitsWarper" for name in ("Temperature", "TopK", "TopP", "MinP")),
    }
