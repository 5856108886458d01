"""The clock of rounds: passes that were run ahead lie in the rounds that they were run for."""

import pytest

from talon_core.engine.clock import RoundClock
from talon_core.engine.spans import SlotSpans
from talon_core.target import Verified


class Time:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_it_says_what_one_pass_takes_whatever_was_run_for_nothing_before() -> None:
    time = Time()
    clock = RoundClock(time)
    told = []
    for passes in (3, 0, 2, 1):
        start = clock()
        time.seconds += 10.0 * passes
        told.append(clock.verified(Verified(passes=passes), start))
    assert told == pytest.approx([10.0] * 4)


def rounds(clock: RoundClock, time: Time, passes: list[int]) -> list[tuple[float, float, float]]:
    """Rounds of a second before the target is asked and two behind; of each when it began, was verified, and ended.

    Each pass takes ten seconds.
    """
    found = []
    for run in passes:
        begin = clock()
        time.seconds += 1.0
        start = clock()
        time.seconds += 10.0 * run
        clock.verified(Verified(passes=run), start)
        verified = clock() - start
        time.seconds += 2.0
        found.append((begin, verified, clock()))
    return found


def test_a_round_takes_what_it_takes_with_a_pass_of_its_own() -> None:
    for passes in ([1, 1, 1, 1], [4, 0, 0, 0], [3, 0, 0, 1], [1, 2, 0, 1]):
        time = Time()
        found = rounds(RoundClock(time), time, passes)
        assert [verified for _, verified, _ in found] == pytest.approx([10.0] * 4)
        assert [begin for begin, _, _ in found] == pytest.approx([100.0 + 13.0 * each for each in range(4)])
        assert [end for _, _, end in found] == pytest.approx([113.0 + 13.0 * each for each in range(4)])
        assert found[-1][2] == pytest.approx(time())


def test_what_was_run_for_nothing_counts_where_another_pass_is_run() -> None:
    time = Time()
    clock = RoundClock(time)
    (_, first, _), (_, second, _), (_, other, end) = rounds(clock, time, [4, 0, 1])
    assert (first, second) == pytest.approx((10.0, 10.0))
    assert other == pytest.approx(10.0 + 20.0)
    assert end == pytest.approx(time())


def test_the_time_goes_on_when_no_rounds_will_come() -> None:
    time = Time()
    clock = RoundClock(time)
    rounds(clock, time, [4])
    assert clock() == pytest.approx(time() - 30.0)
    clock.forget()
    assert clock() == time()


def test_what_was_done_between_passes_lies_in_the_rounds_that_it_was_done_for() -> None:
    time = Time()
    clock, found = RoundClock(time), []
    for passes, guess in ((4, 0.0), (0, 3.0), (0, 0.0), (0, 5.0), (1, 0.0)):
        begin = clock()
        clock.goes_on(guess)
        start = clock()
        time.seconds += 10.0 * passes + (8.0 if passes == 4 else 0.0)
        assert clock.verified(Verified(passes=passes), start, 8.0 if passes == 4 else 0.0) == pytest.approx(10.0)
        found.append(clock() - begin)
    assert found == pytest.approx([10.0, 13.0, 10.0, 15.0, 10.0])
    assert clock() == pytest.approx(time())


def test_spans_never_go_backwards() -> None:
    time = Time()
    clock = RoundClock(time)
    spans = SlotSpans([0], clock)
    for run in (5, 0, 0, 3, 0, 1):
        with spans.of("verify", [0]):
            start = clock()
            time.seconds += 10.0 * run + 0.1
            clock.verified(Verified(passes=run), start)
    ends = [moment for span in spans[0] for moment in (span.start, span.end)]
    assert ends == sorted(ends)


def chained(clock: RoundClock, time: Time, rounds: int, layers: int = 2) -> list[tuple[float, float, float]]:
    """Rounds whose draft passes of two seconds and whose target's pass of ten were run ahead of the first of them.

    Each takes a second before the target is asked and two behind; of each when it began, was verified, and ended.
    """
    found = []
    for number in range(rounds):
        begin = clock()
        if not number:
            time.seconds += rounds * (2.0 * layers + 10.0)
            clock.ran_ahead(rounds * (2.0 * layers + 10.0))
        for _ in range(layers):
            clock.goes_on(2.0)
        time.seconds += 1.0
        start = clock()
        assert clock.verified(Verified(passes=0, seconds=10.0), start) == pytest.approx(10.0)
        verified = clock() - start
        time.seconds += 2.0
        found.append((begin, verified, clock()))
    return found


def test_a_round_takes_its_own_draft_passes_where_they_were_run_ahead() -> None:
    time = Time()
    found = chained(RoundClock(time), time, 4)
    assert [verified for _, verified, _ in found] == pytest.approx([10.0] * 4)
    assert [begin for begin, _, _ in found] == pytest.approx([100.0 + 17.0 * each for each in range(4)])
    assert found[-1][2] == pytest.approx(time())


def test_no_more_than_was_run_ahead_is_given_back() -> None:
    time = Time()
    clock = RoundClock(time)
    clock.ran_ahead(3.0)
    assert clock() == pytest.approx(97.0)
    clock.goes_on(2.0)
    assert clock() == pytest.approx(99.0)
    assert clock.verified(Verified(passes=0, seconds=50.0), clock()) == pytest.approx(50.0)
    assert clock() == pytest.approx(time())


def test_draft_passes_that_were_run_ahead_for_nothing_count_where_the_target_runs_another() -> None:
    time = Time()
    clock = RoundClock(time)
    time.seconds += 42.0
    clock.ran_ahead(42.0)
    clock.goes_on(2.0)
    start = clock()
    time.seconds += 10.0
    assert clock.verified(Verified(), start) == pytest.approx(10.0)
    assert clock() - start == pytest.approx(10.0 + 40.0)
    assert clock() == pytest.approx(time())
