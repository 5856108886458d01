"""Tokens that are drawn within a recorded pass: those that come out where they are drawn behind it."""

import warnings
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation import logits_process

from talon_core.choices import SeededChoices
from talon_core.drawn import Drawn
from talon_core.runtime import recorded_draws
from talon_core.runtime.device import DeviceExecutor
from talon_core.runtime.executor import TreeView
from talon_core.runtime.next_tokens import next_tokens
from talon_core.runtime.recorded_draws import DRAW_FILL, HARMLESS, DrawingForm, DrawingForms, numbers_in, sent_draws
from talon_core.runtime.recording import Recorder
from talon_core.sampling import Temperature
from talon_core.target import DrawnTests, NodeDraws
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import Tape, TapedBackend, TapeRecorder
from talon_core.tree import TokenTree

of: Any = logits_process
CPU = torch.device("cpu")
VOCAB = 90
MADE: dict[str, tuple[Callable[[Any], Any], st.SearchStrategy[Any]]] = {
    "our temperature": (Temperature, st.sampled_from([0.3, 0.7, 1.0, 1.9])),
    "temperature": (of.TemperatureLogitsWarper, st.floats(0.1, 3.0)),
    "top-k": (of.TopKLogitsWarper, st.integers(1, 2 * VOCAB)),
    "top-p": (of.TopPLogitsWarper, st.floats(0.05, 1.0)),
    "at least two of top-p": (lambda p: of.TopPLogitsWarper(p, min_tokens_to_keep=2), st.floats(0.05, 1.0)),
    "min-p": (of.MinPLogitsWarper, st.floats(0.0, 1.0)),
}
"""What makes a processor of its number, and which numbers it may have."""


def sent_to_device(numbers: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values).int() for name, values in numbers.items()}


@settings(deadline=None, max_examples=60)
@given(
    kinds=st.lists(st.sampled_from([*MADE]), max_size=4, unique=True),
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    half=st.booleans(),
    data=st.data(),
)
def test_tokens_are_those_that_are_taken_behind_the_pass(
    kinds: list[str], counts: list[int], half: bool, data: st.DataObject
) -> None:
    """To the bit, drawn and best ones, whatever numbers the processors of each tree have, beside padding."""
    starts = np.cumsum([0, *counts])
    rows = int(starts[-1]) + 3
    torch.manual_seed(len(kinds))
    logits = (torch.randn(rows, VOCAB) * 3).to(torch.bfloat16 if half else torch.float32)
    drawn = {}
    for slot, count in enumerate(counts):
        if slot % 2 == 0 or data.draw(st.booleans()):
            own = tuple(MADE[kind][0](data.draw(MADE[kind][1])) for kind in kinds)
            drawn[slot] = NodeDraws(own, frozenset(), SeededChoices(slot).ahead(count))
    slots = range(len(counts))
    form = DrawingForms().of(slots, drawn, len(slots))
    assert form is not None
    sent = {name: np.append(values, [form.fill[name]] * 3) for name, values in form.sent(starts, drawn).items()}
    more = sent_to_device(sent)
    with Tape():  # which refuses questions
        found = form.tokens(logits, more)
    behind = next_tokens(logits, numbers_in(more), starts, slots, drawn).tokens
    assert found[: starts[-1]].tolist() == behind[: starts[-1]].tolist()


def numbered(*warpers: Any) -> NodeDraws:
    return NodeDraws(warpers, frozenset(), np.array([0.5]))


def test_forms_differ_where_more_than_a_number_does() -> None:
    def form(*draws: NodeDraws) -> DrawingForm | None:
        return DrawingForms().of(range(len(draws)), dict(enumerate(draws)), len(draws))

    cool, hot = (numbered(of.TemperatureLogitsWarper(by), of.TopKLogitsWarper(k)) for by, k in ((0.5, 5), (1.5, 64)))
    assert form(cool) == form(hot) == form(cool, hot) is not None
    assert len({form(cool), form(hot)}) == 1
    others = [
        numbered(),
        numbered(of.TemperatureLogitsWarper(0.5)),
        numbered(Temperature(0.5), of.TopKLogitsWarper(5)),
        numbered(of.TopKLogitsWarper(5), of.TemperatureLogitsWarper(0.5)),
        numbered(of.TemperatureLogitsWarper(0.5), of.TopKLogitsWarper(5, min_tokens_to_keep=2)),
        numbered(of.TemperatureLogitsWarper(0.5), of.TopKLogitsWarper(5, filter_value=-1e9)),
        numbered(of.TemperatureLogitsWarper(0.5), of.TopKLogitsWarper(65)),
    ]
    assert len({form(cool), *map(form, others)}) == len(others) + 1
    for other in others[:-1]:
        assert form(cool, other) is None


def test_what_is_not_known_has_no_form() -> None:
    tree = TokenTree([0, 1], [-1, 0], np.zeros(2), {0: Drawn([1], np.full(4, 0.25))})
    cool = numbered(Temperature(0.5))
    unknown = [
        attrs.evolve(cool, numbers=None),
        attrs.evolve(cool, tests=DrawnTests("in-turn", tree)),
        numbered(of.SuppressTokensLogitsProcessor([3])),
        numbered(of.TopPLogitsWarper(0.5), lambda _ids, scores: scores),
        numbered(of.TopPLogitsWarper(0.5, filter_value="nothing")),  # raises an error, which is this text's alone
    ]
    for draws in unknown:
        assert DrawingForms().of([0], {0: draws}, 1) is None
        assert DrawingForms().of([0, 1], {0: cool, 1: draws}, 2) is None
        assert DrawingForms().of([0], {0: cool, 1: draws}, 1) is not None  # where it is not taken part in
    assert DrawingForms().of([0, 1], {}, 2) is None


def test_what_processors_are_is_held_for_no_more_texts_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_draws, "MOST_KINDS", 3)
    forms = DrawingForms()
    for number in range(1, 9):
        form = forms.of([0], {0: numbered(Temperature(number / 4))}, 1)
        assert form is not None
        assert len(forms._kinds) <= 3
    forms.forget()
    assert not forms._kinds


def test_where_few_trees_are_drawn_the_scores_of_all_others_are_left_alone() -> None:
    cool = numbered(Temperature(0.5))
    for drawn, trees, recorded in ((1, 1, True), (1, 2, True), (1, 3, False), (3, 6, True), (3, 7, False)):
        form = DrawingForms().of(range(drawn), dict.fromkeys(range(drawn), cool), trees)
        assert (form is not None) == recorded


def test_padding_is_drawn_from_with_numbers_that_harm_nothing() -> None:
    every = [make(1 if kind == "top-k" else 1.0) for kind, (make, _) in MADE.items()]
    form = DrawingForms().of([0], {0: numbered(*every)}, 1)
    assert form is not None
    more = sent_to_device({name: np.array([value]) for name, value in form.fill.items()})
    assert DRAW_FILL.items() < form.fill.items()
    assert numbers_in(more).tolist() == [-1.0]
    assert form.tokens(torch.arange(float(VOCAB))[None], more).tolist() == [VOCAB - 1]
    nobody = form.sent(np.array([0, 1]), {})
    assert {name: int(values[0]) for name, values in nobody.items()} == form.fill
    assert HARMLESS == 1.0
    assert sent_draws(np.array([0, 1]), {}).items() <= nobody.items()


class Still(Recorder):
    """Repeats nothing, so that what is launched beside recorded passes can be seen."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        self.recorded += 1
        return function(), lambda: None


class Launched(TorchDispatchMode):
    """Notes what is asked of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


TREE = TokenTree([0, 1, 2, 3], [-1, 0, 0, 1], np.zeros(4))
TOP = (of.TemperatureLogitsWarper, of.TopKLogitsWarper, of.TopPLogitsWarper)


def drawn_by(*numbers: Any) -> NodeDraws:
    return NodeDraws(tuple(make(by) for make, by in zip(TOP, numbers, strict=True)), frozenset(), np.full(4, 0.4))


def walks_of(executor: DeviceExecutor, drawn: list[dict[int, NodeDraws]], logits: Tensor) -> list[Any]:
    """What comes out of a walk of two trees for each of these draws."""
    found = []
    for draws in drawn:
        for slot in (0, 1):
            executor.cache.open(slot, 32)
        inputs = executor.inputs({0: (TREE, 0), 1: (TREE, 0)})
        _, walks = executor.walk(
            inputs, lambda view: (logits[: len(view.ids)],), "outputs", [0, 1], frozenset(), drawn=draws
        )
        found.append({slot: (walk.path.tolist(), walk.token) for slot, walk in walks.items()})
        for slot in (0, 1):
            executor.cache.close(slot)
    return found


DRAWS: list[dict[int, NodeDraws]] = [
    {0: drawn_by(0.7, 5, 0.9)},
    {0: drawn_by(1.3, 64, 0.5), 1: drawn_by(0.2, 7, 1.0)},
    {1: drawn_by(1.0, 1, 0.3)},
]


def test_one_recording_does_for_any_numbers() -> None:
    torch.manual_seed(3)
    logits = torch.randn(128, VOCAB) * 2
    plain = walks_of(DeviceExecutor(PlainDevice(), CPU), DRAWS, logits)
    recorded = DeviceExecutor(TapedBackend(PlainDevice()), CPU, TapeRecorder())
    assert walks_of(recorded, DRAWS[:1], logits) == plain[:1]
    assert recorded.preparations == 1
    assert walks_of(recorded, DRAWS, logits) == plain
    assert recorded.preparations == 1


def test_it_can_be_recorded_before_it_is_wanted() -> None:
    logits = torch.randn(128, VOCAB)
    executor = DeviceExecutor(PlainDevice(), CPU, Still())
    walks_of(executor, [{}], logits)  # so that there are buffers
    for slot in (0, 1):
        executor.cache.open(slot, 32)
    executor.prepare([0, 1], 4, lambda view: (logits[: len(view.ids)],), "outputs", frozenset(), DRAWS[0])
    for slot in (0, 1):
        executor.cache.close(slot)
    prepared = executor.preparations
    walks_of(executor, DRAWS, logits)
    assert executor.preparations == prepared > 1


@pytest.mark.parametrize("draws", [*DRAWS, {0: NodeDraws((), frozenset(), np.full(4, 0.4))}])
def test_a_walk_of_drawn_tokens_is_one_recording_with_nothing_behind_it(draws: dict[int, NodeDraws]) -> None:
    """What is launched beside it is what is launched beside a greedy walk: the numbers there, and the path back."""
    launched = []
    for how in ({}, draws):
        still = Still()
        executor = DeviceExecutor(PlainDevice(), CPU, still)
        logits = torch.randn(128, VOCAB)
        walks_of(executor, [how], logits)
        assert still.recorded == 1
        with Launched() as seen:
            walks_of(executor, [how], logits)
        assert still.recorded == 1
        launched.append(seen.names)
    assert launched[0] == launched[1] != []


class Asking(TorchDispatchMode):
    """A device on which sorting waits for the host."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "sort" in str(function):
            raise RuntimeError("sorting waits")
        return function(*args, **(kwargs or {}))


class Forbids(TapeRecorder):
    """Records nothing that waits."""

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        with Asking():
            function()  # as a device finds it
        return super().record(function)


def test_where_a_device_cannot_record_how_tokens_are_drawn_they_are_drawn_behind_recorded_passes() -> None:
    logits = torch.randn(128, VOCAB)
    plain = walks_of(DeviceExecutor(PlainDevice(), CPU), [*DRAWS, {}], logits)
    executor = DeviceExecutor(TapedBackend(PlainDevice()), CPU, Forbids())
    with pytest.warns(RuntimeWarning, match="drawn behind CUDA graphs, .*: sorting waits"):
        assert walks_of(executor, DRAWS[:1], logits) == plain[:1]
    assert (executor.failure, executor.recorded) == (None, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert walks_of(executor, [*DRAWS, {}], logits) == plain
    assert (executor.failure, executor.recorded) == (None, 2)  # one to draw behind, and the greedy one


def test_where_drawing_cannot_be_recorded_other_passes_are_prepared_in_its_place() -> None:
    logits = torch.randn(128, VOCAB)
    executor = DeviceExecutor(TapedBackend(PlainDevice()), CPU, Forbids())
    walks_of(executor, [{}], logits)  # so that there are buffers
    for slot in (0, 1):
        executor.cache.open(slot, 32)
    before = executor.preparations
    with pytest.warns(RuntimeWarning, match="sorting waits"):
        executor.prepare([0, 1], 4, lambda view: (logits[: len(view.ids)],), "outputs", frozenset(), DRAWS[1])
    sizes = executor.recorded
    assert executor.preparations == before + sizes  # the greedy one was there, and one was tried in vain
    for slot in (0, 1):
        executor.cache.close(slot)
    walks_of(executor, [{0: drawn_by(0.7, 5, 0.9), 1: drawn_by(0.2, 7, 1.0)}], logits)
    assert executor.preparations <= before + sizes + 1  # of the size that was tried in vain


def test_where_a_pass_itself_cannot_be_recorded_nothing_is_tried_again() -> None:
    class Never(Still):
        def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
            self.recorded += 1
            raise RuntimeError("a pass waits")

    recorder, logits = Never(), torch.randn(128, VOCAB)
    executor = DeviceExecutor(PlainDevice(), CPU, recorder)
    with pytest.warns(RuntimeWarning, match="passes run without CUDA graphs, which is slower: a pass waits"):
        walks_of(executor, [{}], logits)
    walks_of(executor, DRAWS, logits)
    assert (executor.failure, recorder.recorded) == ("a pass waits", 1)


BEHIND = {0: NodeDraws((of.SuppressTokensLogitsProcessor([3]),), frozenset(), np.full(4, 0.4))}


@pytest.mark.parametrize("draws", [{}, DRAWS[1], BEHIND])
def test_a_pass_is_not_shown_what_is_sent_for_the_walk(draws: dict[int, NodeDraws]) -> None:
    """Each number would be brought to another type first, by a launch of its own."""
    executor, seen = DeviceExecutor(PlainDevice(), CPU, Still()), []

    def work(view: TreeView) -> tuple[Tensor]:
        seen.append(dict(view.more))
        return (torch.zeros(len(view.ids), VOCAB),)

    for slot in (0, 1):
        executor.cache.open(slot, 32)
    inputs = executor.inputs({0: (TREE, 0), 1: (TREE, 0)})
    executor.walk(inputs, work, "outputs", [0, 1], frozenset(), drawn=draws)
    assert seen == [{}]


def test_what_is_not_known_is_launched_behind_the_recording() -> None:
    still = Still()
    executor = DeviceExecutor(PlainDevice(), CPU, still)
    logits = torch.randn(128, VOCAB)
    walks_of(executor, [BEHIND], logits)
    with Launched() as seen:
        walks_of(executor, [BEHIND], logits)
    assert any("softmax" in name for name in seen.names)
