"""What a host draws by itself with, and when it is the same."""

import numpy as np
import pytest
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from talon_core.runtime.host_draws import MOST_LEFT, ChainDraws, DrawnAhead, Warp, warps_of
from talon_core.sampling import Temperature
from talon_core.target import DrawnTests, NodeDraws
from talon_core.tree import TokenTree

NUMBERS = np.linspace(0.0, 0.9, 10)
NO_END: frozenset[int] = frozenset()


@pytest.mark.parametrize(
    ("warpers", "warp"),
    [
        ((), Warp()),
        ((Temperature(0.7),), Warp(0.7)),
        ((TemperatureLogitsWarper(0.7),), Warp(0.7)),
        ((TopKLogitsWarper(5), Temperature(0.7)), Warp(0.7, 5, True)),
        ((Temperature(0.7), TopKLogitsWarper(5)), Warp(0.7, 5)),
        ((TopKLogitsWarper(MOST_LEFT),), Warp(1.0, MOST_LEFT, True)),
        ((TopKLogitsWarper(MOST_LEFT + 1),), None),
        ((TopKLogitsWarper(5, filter_value=-1e9),), None),
        ((Temperature(0.7), Temperature(0.7)), None),
        ((TopPLogitsWarper(0.9), Temperature(0.7)), None),
        ((Temperature(0.7), MinPLogitsWarper(0.1)), None),
        ((lambda ids, scores: scores,), None),
        ((Temperature(1e-60),), None),
        ((Temperature(1e39),), None),
        ((Temperature(1e308),), None),
    ],
)
def test_a_temperature_and_a_top_k_are_known(warpers, warp):
    assert Warp.of(warpers) == warp


def test_warps_are_told_in_numbers():
    assert warps_of([Warp(0.5, 7, True), Warp()]).tolist() == [[0.5, 7.0, 1.0], [1.0, 0.0, 0.0]]


MILD = (Temperature(0.7),)


def draws(numbers=NUMBERS[:1], warpers=MILD, tests=None, ahead=True):
    return NodeDraws(warpers, NO_END, numbers, tests, (lambda count: NUMBERS[:count]) if ahead else None)


TESTS = DrawnTests("in-turn", TokenTree.root(3))
OTHERS = {
    "numbers": draws(NUMBERS[1:2]),
    "temperature": draws(warpers=(Temperature(0.8),)),
    "top-k": draws(warpers=(Temperature(0.7), TopKLogitsWarper(3))),
    "top-p": draws(warpers=(Temperature(0.7), TopPLogitsWarper(0.5))),
    "tests": draws(tests=TESTS),
    "most likely": draws(numbers=None),
}


def test_draws_of_rounds_to_come_are_those_that_were_known():
    known = DrawnAhead.of({0: draws(), 2: draws()}, [0, 2], 4)
    assert known is not None
    assert known.numbers.tolist() == [[number] * 2 for number in NUMBERS[:4]]
    assert known.are({0: draws(NUMBERS[2:3]), 2: draws(NUMBERS[2:3])}, [0, 2], 2)
    for other in OTHERS.values():
        assert not known.are({0: draws(), 2: other}, [0, 2], 0)
    assert not known.are({0: draws()}, [0, 2], 0)


def test_draws_of_chains_are_those_that_were_known():
    known = ChainDraws.of(draws(), 9)
    assert known is not None
    assert known.are(draws(NUMBERS[3:6]), 3)
    assert not known.are(draws(NUMBERS[3:6]), 4)
    assert not known.are(None, 0)
    for other in OTHERS.values():
        assert not known.are(other, 0)


@pytest.mark.parametrize("wrong", ["top-p", "tests", "most likely"])
def test_what_a_host_does_not_draw_is_not_drawn_ahead(wrong):
    assert DrawnAhead.of({0: draws(), 1: OTHERS[wrong]}, [0, 1], 3) is None
    assert ChainDraws.of(OTHERS[wrong], 3) is None


def test_without_further_numbers_nothing_is_drawn_ahead():
    assert DrawnAhead.of({0: draws(ahead=False)}, [0], 3) is None
    assert DrawnAhead.of({}, [0], 3) is None
    assert ChainDraws.of(draws(ahead=False), 3) is None
