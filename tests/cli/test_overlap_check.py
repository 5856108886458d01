"""What the doctor says of drafting while the target verifies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.cli.overlap_check import Overlap

SECONDS = st.floats(1e-4, 10)


def test_a_target_that_needs_all_threads_leaves_nothing_to_gain():
    found = Overlap(2, 2, 0.040, 0.068, 0.005, 0.046)
    assert (found.pays, found.slower) == (False, pytest.approx(1.7))
    assert found.said == (
        "no schedule but sync can gain: with 1 thread in the place of 2 a pass takes 1.70 times as long, and drafting "
        "is 11% of a round; at best it would be 0.67 times as fast"
    )


def test_a_target_that_waits_for_memory_leaves_something():
    found = Overlap(4, 4, 0.040, 0.042, 0.020, 0.062)
    assert found.pays
    assert found.said.startswith(
        "a schedule can make it at best 1.41 times as fast: with 3 threads in the place of 4 a "
    )
    assert found.said.endswith("; talon trace simulate tells how much is left of that with what really comes")


def test_a_core_that_is_free_slows_nobody_down():
    found = Overlap(1, 2, 0.040, None, 0.020, 0.060)
    assert (found.slower, found.at_best) == (1.0, pytest.approx(1.5))
    assert "the target takes 1 of 2 cores, and drafting is 33% of a round" in found.said


def test_on_one_core_nothing_works_at_the_same_time():
    found = Overlap(1, 1, 0.040, None, 0.020, 0.060)
    assert (found.pays, found.at_best) == (False, 1.0)
    assert found.said == ("no schedule but sync can gain: there is one core, on which nothing works at the same time")


def test_cores_that_were_not_free_are_told():
    found = Overlap(2, 2, 0.040, 0.020, 0.020, 0.060)
    assert found.at_best == pytest.approx(1.5)
    assert "something else kept the cores while this was measured" in found.said


@given(SECONDS, SECONDS, SECONDS, st.floats(0, 10))
def test_at_best_nobody_is_faster_than_the_target_or_the_drafter_alone(verify, less, draft, rest):
    found = Overlap(2, 2, verify, less, draft, verify + draft + rest)
    assert found.at_best <= (verify + draft + rest) / (rest + max(verify, draft)) * (1 + 1e-9)
    assert found.at_best <= 2 + 1e-9
    assert found.as_dict()["pays"] is (found.at_best > 1)
