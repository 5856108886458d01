"""Spans are told by one clock, the engine's, whoever prepares and wherever that is."""

from itertools import count
from time import perf_counter

import numpy as np
import pytest

from talon_core import Engine, Request, TableTarget
from talon_core.engine.ahead.process import _between
from talon_core.engine.ahead.thread import ThreadWorker
from talon_core.engine.ahead.worker import InLine
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.rounds import Span
from talon_core.testing import TableDrafter
from talon_strategies import Match, Talon

VOCAB = 4
SCHEDULES = load_registry().names("schedule")


class Counting:
    """A clock that goes on by one whenever it is asked, and began long after any other clock of this machine."""

    def __init__(self):
        self._counts = count(1)
        self.last = 1e12

    def __call__(self):
        self.last = 1e12 + next(self._counts)
        return self.last


class Slow(TableTarget):
    """Waits until something was prepared, so that there is a span of it."""

    wait = staticmethod(lambda: None)

    def verify(self, *args, **more):
        self.wait()
        return super().verify(*args, **more)


def spans_of(engine, target):
    sequence = engine.submit(Request(np.array([1, 2, 3]), 24))
    while not sequence.finished:
        engine.step()
    assert sequence.error is None
    return [span for round_ in sequence.rounds for span in round_.spans]


@pytest.mark.parametrize("worker", [InLine, ThreadWorker])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_spans_are_told_by_the_engines_clock(schedule, worker):
    clock, target = Counting(), Slow(np.random.default_rng(0).normal(size=(VOCAB,) * 3) * 2)
    made = build(load_registry(), "schedule", schedule)
    laws = np.random.default_rng(1).dirichlet(np.ones(VOCAB), size=5)
    workers = []
    engine = Engine(
        target,
        Match(),
        Talon(budget=6, top_k=2),
        TableDrafter(laws),
        schedule=made,
        worker=lambda drafter: workers.append(worker(drafter)) or workers[0],
        now=clock,
    )
    if workers and worker is ThreadWorker:
        target.wait = lambda: workers[0]._task is None or workers[0]._task.done.wait(10)
    spans = spans_of(engine, target)
    assert all(1e12 < span.start <= span.end <= clock.last for span in spans)
    assert "verify" in {span.part for span in spans}
    if made.prepares:
        assert {"prepare"} | ({"wait"} if worker is ThreadWorker else set()) <= {span.part for span in spans}


def test_spans_of_a_process_lie_between_the_moments_at_which_it_was_told_and_had_answered():
    spans = [Span("prepare", 10.0, 12.0), Span("prepare", 14.0, 18.0)]
    assert _between((10.0, 100.0), (20.0, 105.0), spans) == [
        Span("prepare", 100.0, 101.0),
        Span("prepare", 102.0, 104.0),
    ]
    assert _between((10.0, 100.0), (10.0, 100.0), spans[:1]) == [Span("prepare", 100.0, 100.0)]
    (outside,) = _between((11.0, 100.0), (11.5, 103.0), spans[:1])  # by a clock that has no more to do with this one
    assert (outside.start, outside.end) == (100.0, 103.0)
    now = perf_counter()
    (same,) = _between((now, now), (now + 3, now + 3), [Span("prepare", now + 1, now + 2)])
    assert (same.start - now, same.end - now) == pytest.approx((1.0, 2.0), abs=1e-6)
