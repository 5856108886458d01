import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.testing import TableDrafter, untied_drafters
from talon_core.tree import TokenTree
from talon_strategies.entropy import OFFERED, entropy_offered
from talon_tests.entropies import WIDE, bound, entropy, flat_behind, missing


def offered(law, width=OFFERED):
    """What a drafter of this law offers at the root."""
    with np.errstate(divide="ignore"):
        return Candidates.from_logits(TokenTree.root(0), np.array([0]), np.log(np.array([law])), width)


def test_a_law_by_hand():
    law = [0.25, 0.5, 0.25]  # 0.5 ln 2 + 0.5 ln 4 = 1.5 ln 2
    assert entropy_offered(offered(law)) == pytest.approx(1.5 * math.log(2))
    assert entropy_offered(offered(law, width=1)) == pytest.approx(math.log(2))  # 0.5, and a half for all others


def test_it_can_be_far_below_that_of_the_law_although_one_token_is_nearly_sure():
    law = flat_behind(0.9, 49152)  # the numbers of the manual, of which nothing is worse with a best of 0.9
    assert entropy(law) == pytest.approx(1.405, abs=5e-4)
    assert entropy_offered(offered(law)) == pytest.approx(0.325, abs=5e-4)


@given(best=st.floats(0.1, 0.99), more=st.integers(1, 5000))
def test_where_all_but_one_token_are_alike_it_is_less_by_what_the_others_share(best, more):
    """Tokens that are not looked at have the probability R together: m of them, all alike, add R ln m."""
    law = flat_behind(best, OFFERED + more)
    assert entropy(law) - entropy_offered(offered(law)) == pytest.approx(missing(law), abs=1e-15 * len(law) + 1e-12)
    assert missing(law) == pytest.approx(law[-1] * more * math.log(more))


def test_that_law_by_hand():
    assert (entropy(WIDE), bound(WIDE)) == pytest.approx((1.0173, 0.3367), abs=1e-4)
    assert missing(WIDE) == pytest.approx(0.1 * 1000 / 1015 * math.log(1000))


@given(untied_drafters(OFFERED + 1))
def test_it_is_that_of_the_law_where_at_most_one_token_is_missing(drafter):
    law = drafter.law_after([0])
    assert entropy_offered(offered(law)) == pytest.approx(entropy(law), abs=1e-12)


@given(st.integers(2, 80).flatmap(untied_drafters))
def test_it_is_never_more_than_that_of_the_law(drafter):
    law = drafter.law_after([0])
    assert entropy_offered(offered(law)) == pytest.approx(bound(law), abs=1e-12)
    assert entropy_offered(offered(law)) <= entropy(law) + 1e-12


def test_padding_adds_nothing_and_each_row_has_its_own():
    law = [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    with np.errstate(divide="ignore"):
        both = Candidates.from_logits(TokenTree([0, 1], [-1, 0], [0.0, 0.0]), np.array([0, 1]), np.log(law), 3)
    assert [entropy_offered(both, row) for row in (0, 1)] == pytest.approx([math.log(2), 0.0])


def test_the_whole_law_is_not_asked_for():
    full = offered(TableDrafter(np.ones((1, 40)) / 40).law_after([0]))
    assert entropy_offered(full.detached()) == entropy_offered(full) < math.log(40)


def test_a_drafter_that_rounds_upwards_has_no_mass_left():
    one = offered([0.5, 0.5])
    more = attrs.evolve(one, logp=one.logp + 1e-4)
    assert entropy_offered(more) == pytest.approx(math.log(2), abs=1e-3)
