"""What target and drafter cost each other, worked out from made-up times."""

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.profiles.contention import Contention, Stretches, Took, slowed
from talon_core.rounds import Span


def span(start: float, seconds: float) -> Span:
    return Span("verify", start, start + seconds)


def test_work_is_slowed_down_in_the_time_that_both_work() -> None:
    """A pass of 10 beside 6 seconds of another one's work, in which 4 of it are done: 12 seconds."""
    other = [span(1.0, 2.0), span(5.0, 4.0)]
    assert slowed([Took(span(0.0, 12.0), 10.0)], other) == pytest.approx(1.5)
    assert slowed([Took(span(0.0, 12.0), 10.0)], [*reversed(other)]) == pytest.approx(1.5)
    assert slowed([Took(span(20.0, 12.0), 10.0)], other) == 1.0  # nobody worked then
    assert slowed([Took(span(0.0, 5.0), 10.0)], other) == 1.0  # no slower than alone
    assert slowed([], other) == slowed([Took(span(0.0, 12.0), 10.0)], []) == 1.0


@given(
    factor=st.floats(1.0, 4.0),
    works=st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0.0, 1.0)), min_size=1, max_size=6),
)
def test_any_factor_is_found_again(factor: float, works: Sequence[tuple[float, float]]) -> None:
    at, took, other = 0.0, [], []
    for alone, share in works:  # of which so much is done while the other one works
        both = alone * share * factor
        took.append(Took(span(at, both + alone * (1 - share)), alone))
        other.append(span(at, both))
        at += 100.0
    if sum(each.seconds for each in other) > 1e-3:
        assert slowed(took, other) == pytest.approx(factor, rel=1e-6)


def seen() -> Stretches:
    """Passes of 2 with all threads and of 3 with fewer; layers of 1 and 2; each half as slow again, or twice."""
    made = Stretches(passes=[2.0, 2.0, 9.0], passes_fewer=[3.0] * 3, layers={(1, 4): [1.0] * 3, (4, 4): [2.0] * 3})
    made.passes_beside.append(span(0.0, 4.5))
    made.all_passes_beside.extend([span(-4.5, 4.5), span(0.0, 4.5)])
    sizes = [(1, 4), (4, 4), (9, 9)]
    at = -2.0
    for size, seconds in zip(sizes, (2.0, 4.0, 0.5), strict=True):
        made.layers_beside.append((size, span(at, seconds)))
        made.calls_beside.append(span(at, seconds))
        at += seconds
    return made


def test_both_are_compared_with_what_they_take_alone() -> None:
    found = seen().contention("cpu:1", 1, 2)
    assert found == Contention("cpu:1", 1, 2, 2.0, 3.0, 1.5, pytest.approx(1.5), pytest.approx(2.0))
    assert found.shared == pytest.approx(2.25)
    assert found.said == (
        "beside the drafter on cpu:1 a pass of the target takes 1.50 times as long, where 1 thread in the place of 2 "
        "make it 1.50 times as long already; beside the target a layer of the drafter takes 2.00 times as long. With a "
        "profile of 2 threads that is --shared 2.25 --drafter-shared 2.00"
    )
    told = found.as_dict()
    assert (told["shared"], told["said"], told["drafter"]) == (found.shared, found.said, found.drafter)


def test_a_machine_that_was_not_free_is_told_from_one_that_was() -> None:
    found = seen().contention("thread", 2, 2)
    assert found.said.startswith("beside the drafter in a thread a pass of the target takes 1.50 times as long; beside")
    busy = attrs.evolve(found, threads=1, pass_seconds_beside=1.0)
    assert busy.said.endswith("; something else kept the cores while this was measured")
    assert busy.shared == 1.0


def test_too_little_to_say_anything_is_refused() -> None:
    with pytest.raises(ValueError, match="made no pass to be timed"):
        attrs.evolve(seen(), layers={}).contention("thread", 1, 1)
