"""Every span of a round says what it is of: nobody has to tell it by where it lies."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from talon_core import Drafter, Engine, Inquirer, Inquiry, Proposed, Request, Schedule, TableTarget
from talon_core.engine.ahead.thread import ThreadWorker
from talon_core.engine.ahead.worker import InLine, Worker
from talon_core.rounds import LAYERED, WORKS, Round, Span
from talon_core.testing import TableDrafter
from talon_core.tree import IntArray, TokenTree
from talon_strategies import Cached, Chain, Match, Talon

VOCAB = 4
TABLE = np.random.default_rng(0).normal(size=(VOCAB,) * 3) * 2
LAWS = np.random.default_rng(1).dirichlet(np.ones(VOCAB), size=5)
POLICIES = (Chain(length=3), Talon(budget=12, top_k=2))
SCHEDULES = (None, Cached(budget=8))


class Clock:
    """Goes on by one whenever it is asked, and knows what was done since it was asked before."""

    def __init__(self) -> None:
        self._counts = count(1)
        self.done: list[tuple[int, str]] = []  # before which time, and what

    def __call__(self) -> float:
        self.now = next(self._counts)
        return float(self.now)

    def note(self, what: str) -> None:
        self.done.append((self.now, what))

    def within(self, span: Span) -> list[str]:
        """What was done in a span; nothing else was going on then."""
        return [what for at, what in self.done if span.start <= at < span.end]


class Noted(Drafter):
    """Drafts from tables, and tells the clock of every call."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.inner = clock, TableDrafter(LAWS)
        self.max_depth = self.inner.max_depth

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self.inner.open(slot, prompt, room)

    def propose(self, frontiers: Any) -> Proposed:
        self.clock.note("layer")
        return self.inner.propose(frontiers)

    def commit(self, committed: Any) -> None:
        self.clock.note("commit")
        self.inner.commit(committed)


class Asks(Noted, Inquirer):
    """It also asks the target what comes after the root."""

    most_added = 1

    def inquire(self, slot: int, tree: TokenTree, deepest: int) -> Inquiry:
        self.clock.note("inquiry")
        nothing = np.zeros(0, dtype=np.int64)
        return Inquiry(nothing, nothing, np.array([0]))


class Waits(TableTarget):
    """Takes as long as all that is prepared in a thread."""

    def __init__(self) -> None:
        super().__init__(TABLE)
        self.workers: list[Worker] = []

    def verify(self, *args: Any, **more: Any) -> Any:
        for worker in self.workers:
            if isinstance(worker, ThreadWorker) and worker._task is not None:
                assert worker._task.done.wait(60)
        return super().verify(*args, **more)


def rounds_of(
    drafter: Drafter,
    policy: Any,
    clock: Any,
    schedule: Schedule | None = None,
    kind: Callable[[Drafter], Worker] = InLine,
    texts: int = 1,
) -> list[list[Round]]:
    target = Waits()

    def worker(behind: Drafter) -> Worker:
        target.workers.append(kind(behind))
        return target.workers[-1]

    more: dict[str, Any] = {} if schedule is None else {"schedule": schedule, "worker": worker}
    engine = Engine(target, Match(), policy, drafter, now=clock, **more)
    sequences = [engine.submit(Request(np.array([1, 2, number % VOCAB]), 14)) for number in range(texts)]
    while not all(one.finished for one in sequences):
        engine.step()
    assert [one.error for one in sequences] == [None] * texts
    return [one.rounds for one in sequences]


def works(round_: Round, part: str) -> list[tuple[str | None, int | None]]:
    return [(span.work, span.layer) for span in round_.spans if span.part == part]


def layers(round_: Round, part: str = "draft") -> list[int | None]:
    return [layer for work, layer in works(round_, part) if work == "layer"]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("kind", [Noted, Asks])
def test_layers_questions_answers_and_the_commit_are_told_apart(kind: type[Noted], policy: Any) -> None:
    clock = Clock()
    (rounds,) = rounds_of(kind(clock), policy, clock)
    asks = kind is Asks
    for number, one in enumerate(rounds, start=1):
        own = works(one, "draft")
        assert [work for work, _ in own if work != "layer"] == [
            *["inquiry", "answers"] * (asks and bool(layers(one))),
            *["commit"] * (number < len(rounds)),
        ]
        assert layers(one) == [*range(len(layers(one)))]
        for span in one.spans:
            if span.part == "draft":
                assert clock.within(span) == ([] if span.work == "answers" else [span.work])
    assert max(len(layers(one)) for one in rounds) == 3


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_policy_is_asked_for_the_width_of_each_layer_and_chooses_from_it(policy: Any) -> None:
    clock = Clock()
    (rounds,) = rounds_of(Noted(clock), policy, clock)
    for one in rounds:
        drafted = [(work, layer) for layer in layers(one) for work in ("width", "grow")]
        own = works(one, "policy")
        assert own[: len(drafted)] == drafted
        assert own[len(drafted) :] in ([("finish", None)], [("width", len(layers(one))), ("finish", None)])


@pytest.mark.parametrize("worker", [InLine, ThreadWorker])
@pytest.mark.parametrize("kind", [Noted, Asks])
def test_what_is_prepared_says_so_and_changes_no_name_of_the_rest(kind: type[Noted], worker: type[Worker]) -> None:
    clock, asks = Clock(), kind is Asks
    (rounds,) = rounds_of(kind(clock), Chain(length=3), clock, Cached(budget=8), worker)
    assert any(one.hit for one in rounds)
    for number, one in enumerate(rounds, start=1):
        drafted = layers(one)
        assert drafted == [*range(len(drafted))]
        beside = [*["inquiry", "answers"] * (asks and bool(drafted)), *["commit"] * (number < len(rounds))]
        assert [work for work, _ in works(one, "draft") if work != "layer"] == beside
        assert [work for work, _ in works(one, "policy")][-2:] == ["finish", "copy"]
        calls = layers(one, "prepare")
        assert calls == [*range(len(calls))]
        assert {work for work, _ in works(one, "prepare")} <= {"layer", "look"}
        for span in one.spans:
            if span.part == "prepare":
                assert ("layer" in clock.within(span)) == (span.work == "layer")
    assert any(layers(one, "prepare") for one in rounds)
    assert max(len(layers(one)) for one in rounds) == 3


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_layer_that_sequences_share_is_the_same_span_in_each_and_trees_that_grow_together_are_told_apart(
    schedule: Schedule | None,
) -> None:
    clock = Clock()
    texts = rounds_of(Noted(clock), Talon(budget=8, top_k=2), clock, schedule, texts=17)
    firsts = [one[0] for one in texts]
    assert all(works(one, "policy")[0] == ("begin", None) for one in firsts)
    assert all(("end", None) in works(one, "policy") for one in firsts)
    first = {span for one in firsts for span in one.spans if span.part == "draft" and span.layer == 0}
    assert len(first) == 1
    for one in firsts:
        own = [layer for work, layer in works(one, "policy") if work == "grow"]
        assert own[: len(layers(one))] == layers(one) == [*range(len(layers(one)))]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("kind", [Noted, Asks])
def test_what_rounds_say_is_what_spans_can_say_and_adds_up(kind: type[Noted], schedule: Schedule | None) -> None:
    clock = Clock()
    (rounds,) = rounds_of(kind(clock), Chain(length=3), clock, schedule)
    for one in rounds:
        for span in one.spans:
            assert span.work in WORKS[span.part] if span.part in WORKS else span.work is None
            assert (span.layer is None) == (span.work not in LAYERED)
            assert Span.from_dict(span.as_dict()) == span
        drafter = [span for span in one.spans if span.part == "draft"]
        assert one.layer_seconds == [span.seconds for span in drafter if span.work == "layer"]
        assert one.draft_seconds == sum(span.seconds for span in drafter)


def test_rounds_without_drafts_have_no_layers() -> None:
    clock = Clock()
    (rounds,) = rounds_of(Asks(clock), Chain(length=3), clock)
    engine = Engine(TableTarget(TABLE), Match(), None, None, now=Clock())
    sequence = engine.submit(Request(np.array([1, 2, 0]), 4))
    while not sequence.finished:
        engine.step()
    assert all(one.layer_seconds == [] and not layers(one) for one in sequence.rounds)
    assert any(one.layer_seconds for one in rounds)
