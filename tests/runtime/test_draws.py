"""Tokens drawn on a device: by inversion of exactly the target's law, with the numbers that a rule would use."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process

from talon_core.choices import BLOCK, Choices, SeededChoices, enumerate_outcomes
from talon_core.engine.processors import OF_TRANSFORMERS, PREFIX_FREE, prefix_free
from talon_core.laws import Laws
from talon_core.rule import Accepted, descend
from talon_core.runtime import draws
from talon_core.runtime.device import DeviceExecutor
from talon_core.runtime.draws import NOT_DRAWN, as_words, draw_tokens, numbers_of, of_words, take_tokens
from talon_core.runtime.next_tokens import next_tokens
from talon_core.sampling import Temperature
from talon_core.target import NO_TOKEN, NodeDraws
from talon_core.testing import TableDrafter, TableLaws, draft_trees, laws, table_drafters
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import Tape, TapedBackend, TapeRecorder
from talon_core.tree import FloatArray, TokenTree
from talon_strategies import Match

CPU = torch.device("cpu")
STEPS = 2**53
"""A number to draw with is one of so many, from 0 on, divided by this."""
CLOSE = 1e-12
SIZES = [1, 2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]


def scores_of(law: FloatArray) -> Tensor:
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(law))


def drawn_with(scores: Tensor, steps: Sequence[int]) -> list[int]:
    """The tokens that come out with these numbers."""
    numbers = torch.tensor([step / STEPS for step in steps], dtype=torch.float64)
    found: list[int] = draw_tokens(scores.expand(len(steps), -1), numbers).tolist()
    return found


def measured_law(scores: Tensor) -> FloatArray:
    """How many of all numbers give each token, as a share: where the token changes is found by halving."""
    tokens = len(scores)
    below, above = (
        [-1] * (tokens - 1),
        [STEPS] * (tokens - 1),
    )  # with the first the token is at most t, with the other not
    for _ in range(54):
        middle = [(low + high) // 2 for low, high in zip(below, above, strict=True)]
        if middle == below:
            break
        for token, drawn in enumerate(drawn_with(scores, [max(step, 0) for step in middle])):
            if drawn <= token:
                below[token] = middle[token]
            else:
                above[token] = middle[token]
    return np.diff([0, *above, STEPS]) / STEPS


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 7).flatmap(laws))
def test_the_law_of_what_is_drawn_is_the_softmax(law: FloatArray) -> None:
    assert abs(measured_law(scores_of(law)) - law).max() < CLOSE


@pytest.mark.parametrize("size", SIZES)
def test_the_law_is_the_softmax_in_any_number_of_blocks(size: int) -> None:
    rng = np.random.default_rng(size)
    law = rng.dirichlet(np.full(size, 0.3)) * (rng.random(size) < 0.7)
    law[size // 2] = 1.0
    law /= law.sum()
    if size > 1:
        assert abs(measured_law(scores_of(law)) - law).max() < CLOSE
    drawn = drawn_with(scores_of(law), [*range(0, STEPS, STEPS // 97), STEPS - 1])
    assert drawn == sorted(drawn)  # so that the places where it changes say all


@pytest.mark.parametrize("size", SIZES)
def test_what_cannot_be_is_never_drawn(size: int) -> None:
    """At the ends of all blocks, and with the least and the greatest numbers."""
    for allowed in ({size // 2}, {0}, {size - 1}, {0, size - 1}, {size // 3, size // 2}):
        scores = torch.full((size,), -torch.inf)
        scores[sorted(allowed)] = torch.arange(len(allowed)) * 30.0
        assert {*drawn_with(scores, [0, 1, STEPS // 2, STEPS - 1])} <= allowed


def test_sums_that_rounding_makes_uneven_let_out_nothing_that_cannot_be() -> None:
    """A device adds up in an order of its own: past a part of 0 a sum may be a little more, or less."""
    parts = torch.tensor([[0.5, 0.0, 0.5, 0.0]], dtype=torch.float64)
    upto = torch.tensor([[0.5, 0.5 + CLOSE, 1.0, 1.0 + CLOSE]], dtype=torch.float64)
    for threshold, place in ((0.0, 0), (0.5, 2), (1.0, 2), (1.1, 2)):
        thresholds = torch.tensor([[threshold]], dtype=torch.float64)
        assert draws._first_above(upto, parts, thresholds).tolist() == [[place]]


@pytest.mark.parametrize("size", SIZES)
def test_the_same_tokens_as_on_the_host(size: int) -> None:
    rng = np.random.default_rng(1)
    scores = torch.from_numpy(rng.normal(size=(200, size)) * 4)
    host, device = SeededChoices(5), SeededChoices(5)
    expected = [host.pick(torch.softmax(row, dim=-1).numpy()) for row in scores]
    assert draw_tokens(scores, torch.from_numpy(device.ahead(200))).tolist() == expected


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_row_without_a_law_has_no_token_and_its_neighbours_have(wrong: float) -> None:
    scores = torch.zeros((3, BLOCK + 9))
    scores[1] = -torch.inf
    scores[1, BLOCK + 3] = wrong
    tokens = draw_tokens(scores, torch.full((3,), 0.5, dtype=torch.float64)).tolist()
    assert tokens[1] == NO_TOKEN
    assert tokens[0] == tokens[2] != NO_TOKEN


def test_numbers_are_sent_without_losing_a_bit() -> None:
    numbers = np.array([0.0, 1 / STEPS, 0.5, 1 - 1 / STEPS, *SeededChoices(0).ahead(96)])
    every = numbers_of(np.array([0, 0, 100, 103]), {1: NodeDraws((), frozenset(), numbers)})
    low, high = as_words(every)
    assert abs(np.stack([low, high])).max() <= 2**31
    assert of_words(torch.from_numpy(low).int(), torch.from_numpy(high).int()).tolist() == [*numbers, *[NOT_DRAWN] * 3]


def test_many_rows_are_warped_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    scores, numbers = torch.randn(11, 30), torch.rand(11, dtype=torch.float64)
    seen = []

    def noted(_ids: Tensor, some: Tensor) -> Tensor:
        seen.append(len(some))
        return some / 0.7

    how = NodeDraws((noted,), frozenset(), numbers.numpy())
    together = take_tokens(scores, how, numbers).tolist()
    monkeypatch.setattr(draws, "MOST_SCORES", 100)
    assert take_tokens(scores, how, numbers).tolist() == together
    assert seen == [11, 3, 3, 3, 2]


def test_half_precision_is_widened_before_it_is_warped() -> None:
    scores = torch.randn(2, 5, dtype=torch.bfloat16)

    def warp(_ids: Tensor, some: Tensor) -> Tensor:
        assert some.dtype == torch.float32
        return some

    for numbers in (np.zeros(2), None):
        take_tokens(scores, NodeDraws((warp,), frozenset(), numbers), torch.zeros(2, dtype=torch.float64))


def warpers() -> list[Any]:
    """One of each class that is taken to look at scores alone, and some with other options."""
    of: Any = logits_process
    return [
        of.TemperatureLogitsWarper(0.7),
        of.TopKLogitsWarper(5),
        of.TopPLogitsWarper(0.8),
        of.TopPLogitsWarper(0.3, min_tokens_to_keep=2),
        of.MinPLogitsWarper(0.1),
        of.TypicalLogitsWarper(0.9),
        of.EpsilonLogitsWarper(0.02),
        of.InfNanRemoveLogitsProcessor(),
        of.LogitNormalization(),
        of.SuppressTokensLogitsProcessor([3, 4]),
    ]


def test_there_is_a_test_for_each_processor_that_looks_at_scores_alone() -> None:
    assert {type(one).__name__ for one in warpers()} == PREFIX_FREE
    assert {type(one).__module__ for one in warpers()} == {OF_TRANSFORMERS}
    first, second, third = *warpers()[:2], Temperature(0.7)
    assert prefix_free([[first, second], third]) == (first, second, third)


@pytest.mark.parametrize("warper", [*warpers(), Temperature(0.7)], ids=lambda one: type(one).__name__)
def test_processors_that_look_at_scores_alone_do_so(warper: Any) -> None:
    """The same for each row whatever stands beside it and before it, nothing written into what they are given."""
    torch.manual_seed(0)
    scores = torch.randn(7, 60) * 3
    scores[2, 5:] = -torch.inf
    given, none = scores.clone(), torch.empty((7, 0), dtype=torch.int64)
    together = warper(none, given)
    assert torch.equal(given, scores)
    for row in range(7):
        ids = torch.randint(0, 60, (1, 5 + row))
        assert torch.equal(warper(ids, scores[row : row + 1]), together[row : row + 1])


@pytest.mark.parametrize("warper", [*warpers(), Temperature(0.7)], ids=lambda one: type(one).__name__)
def test_drawing_asks_the_device_for_nothing(warper: Any) -> None:
    scores, numbers = torch.randn(4, 60), torch.rand(4, dtype=torch.float64)
    how = NodeDraws((warper,), frozenset(), numbers.numpy())
    expected = take_tokens(scores, how, numbers).tolist()
    with Tape():  # which refuses questions
        found = take_tokens(scores, how, numbers)
    assert found.tolist() == expected


class Inheriting(logits_process.TopKLogitsWarper):
    """It may look at anything."""


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        (logits_process.RepetitionPenaltyLogitsProcessor(1.2), "RepetitionPenaltyLogitsProcessor"),
        (logits_process.EtaLogitsWarper(0.1), "EtaLogitsWarper"),
        (Inheriting(3), "Inheriting"),
        (warpers, "warpers"),
    ],
)
def test_others_are_named(processor: Any, name: str) -> None:
    assert prefix_free([*warpers(), processor]) == name


def test_trees_that_are_warped_alike_are_warped_together() -> None:
    calls = []

    class Warp:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, _ids: Tensor, scores: Tensor) -> Tensor:
            calls.append((self.factor, len(scores)))
            if self.factor == 0:
                raise ValueError("a bad option")
            return scores * self.factor

    torch.manual_seed(0)
    starts = np.array([0, 3, 5, 5, 9, 10, 12])
    logits, numbers = torch.randn(16, 20), torch.rand(16, dtype=torch.float64)  # four rows are padding
    factors = {0: 2.0, 1: 2.0, 3: 0.5, 4: 2.0, 5: 0.0}
    drawn = {slot: NodeDraws((Warp(by),), frozenset(), np.zeros(1)) for slot, by in factors.items()}
    found = next_tokens(logits, numbers, starts, [5, 4, 3, 1, 0], drawn)
    tokens, failed = found.tokens, found.failed
    assert (calls, failed) == ([(2.0, 6), (0.5, 4), (0.0, 2)], {5})
    for slot, by in factors.items():
        own = slice(starts[slot], starts[slot + 1])
        expected = draw_tokens(logits[own] * by, numbers[own]).tolist() if by else [NO_TOKEN] * 2
        assert tokens[own].tolist() == expected
    assert tokens[12:].tolist() == [NO_TOKEN] * 4


def device_walk(
    executor: DeviceExecutor, tree: TokenTree, logits: Tensor, numbers: FloatArray, end: int | None
) -> tuple[list[int], int]:
    """Where an executor goes in a tree, drawing at each depth with one of the numbers."""
    ends = frozenset() if end is None else frozenset({end})
    drawn = {0: NodeDraws((), ends, numbers[tree.depths])}
    executor.cache.open(0, 32)

    def work(view: Any) -> tuple[Tensor]:
        return (F.pad(logits, (0, 0, 0, len(view.ids) - len(logits))),)

    _, walks = executor.walk(executor.inputs({0: (tree, 0)}), work, "table", [0], ends, drawn=drawn)
    assert executor.cache.lengths == [len(walks[0][0])]
    return walks[0][0].tolist(), walks[0][1]


@settings(deadline=None, max_examples=25)
@given(target=table_drafters(3), tree=draft_trees(max_nodes=9, vocab_size=3), end=st.none() | st.integers(0, 2))
def test_walks_have_exactly_the_law_of_the_rule(target: TableDrafter, tree: TokenTree, end: int | None) -> None:
    """For every walk of the rule, the numbers that lead the device along it are a box, whose volume is its probability.

    Its edges are intervals of which each is as long as the law says. Where the device goes is tried in all corners, so
    no other walk has a part of the box; and all boxes together have the volume 1.
    """
    executor = DeviceExecutor(PlainDevice(), CPU)
    table = [TableLaws(target, tree).at(node) for node in range(len(tree))]
    logits = torch.stack([scores_of(law) for law in table])
    whole = 0.0
    for prob, (accepted, taken) in enumerate_outcomes(lambda choices: noted_walk(choices, target, tree, end)):
        whole += prob
        edges = []
        for node, token in zip(accepted.path, taken, strict=True):
            upto = np.cumsum(table[node])
            edges.append((upto[token] - table[node][token] + CLOSE, upto[token] - CLOSE))
        if any(high - low < CLOSE for low, high in edges):
            continue  # thinner than what rounding leaves open
        deeper = [0.5] * (int(tree.depths.max()) + 1 - len(edges))
        for corner in itertools.product(*edges):
            numbers = np.array([*corner, *deeper])
            assert device_walk(executor, tree, logits, numbers, end) == (accepted.path.tolist(), accepted.token)
    assert whole == pytest.approx(1.0, abs=CLOSE)


def noted_walk(choices: Choices, target: TableDrafter, tree: TokenTree, end: int | None) -> tuple[Accepted, list[int]]:
    accepted = Match().walk(tree, TableLaws(target, tree, end), choices)
    return accepted, [*tree.tokens[accepted.path[1:]].tolist(), accepted.token]


@settings(deadline=None, max_examples=10)
@given(st.lists(draft_trees(max_nodes=9, vocab_size=5), min_size=3, max_size=3), st.integers(0, 99))
def test_batches_are_walked_as_each_tree_alone_recorded_or_not(trees: list[TokenTree], seed: int) -> None:
    """One tree is drawn for, one takes the best tokens, one is left to the host; drawn ones may have other warpers."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *map(len, trees)])
    logits = torch.from_numpy(rng.normal(size=(starts[-1], 5)) * 2)
    choices = SeededChoices(seed)
    numbers = choices.ahead(16)
    expected = {}
    for slot in (0, 1):
        own = logits[starts[slot] : starts[slot + 1]] if slot else logits[: starts[1]] / 2.0
        laws_ = {node: torch.softmax(own[node], dim=-1).numpy() for node in range(len(trees[slot]))}
        take = {0: lambda law: choices.pick(law), 1: lambda law: int(law.argmax())}[slot]
        found = descend(trees[slot], NoEnd(), lambda node, laws_=laws_, take=take: take(laws_[node]))
        expected[slot] = found.path.tolist(), found.token
    halving: Any = logits_process.TemperatureLogitsWarper(2.0)
    for backend, recorder in ((PlainDevice(), None), (TapedBackend(PlainDevice()), TapeRecorder())):
        executor = DeviceExecutor(backend, CPU, recorder)
        kept = torch.zeros(64, 5, dtype=torch.float64)
        kept[: len(logits)] = logits
        for _ in range(2):
            for slot in range(3):
                executor.cache.open(slot, 32)
            drawn = {0: NodeDraws((halving,), frozenset(), numbers[trees[0].depths])}
            inputs = executor.inputs({slot: (tree, 0) for slot, tree in enumerate(trees)})
            made, walks = executor.walk(
                inputs, lambda view, kept=kept: (kept[: len(view.ids)],), "table", [0, 1], frozenset(), drawn=drawn
            )
            assert {slot: (walk.path.tolist(), walk.token) for slot, walk in walks.items()} == expected
            assert torch.equal(made[0][: len(logits)], logits)
            assert executor.cache.lengths == [len(expected[0][0]), len(expected[1][0]), 0]
            assert executor.cache.staged == [0, 0, len(trees[2])]


class NoEnd(Laws):
    def at(self, node: int) -> FloatArray:
        raise AssertionError("nobody asks")

    def ends(self, token: int) -> bool:
        return False
