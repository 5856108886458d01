"""What `talon-cost` may lose, whatever is accepted and whatever passes take."""

from itertools import accumulate

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.policy import SequenceInfo
from talon_core.rounds import Round
from talon_core.testing import TableDrafter, untied_drafters
from talon_strategies import TalonCost, TalonCostSampled
from talon_strategies.talon_cost import CREDIT, SHARE
from talon_tests.prices import Prices

PRICES_STAND = 8
"""Rounds after which a policy knows new prices, at most."""


@attrs.frozen
class Machine(Prices):
    """Made-up prices, of all that a round takes; they may change while one decodes.

    Attributes:
        more: what a round with a draft takes besides passes and layers.
        slower: how many times as long all of it takes, and layers once more.
    """

    more: float = 0.0
    slower: list[float] = attrs.field(factory=lambda: [1.0, 1.0])

    def verify(self, nodes, context, batch=1):
        return self.slower[0] * super().verify(nodes, context)

    def draft(self, rows, width):
        return self.slower[0] * self.slower[1] * self.layer

    def besides(self, drafted):
        return self.slower[0] * (self.more if drafted else 0.0)


@attrs.frozen
class Went:
    """A round: its tokens, and its time in passes of plain decoding."""

    tokens: int
    passes: float


def decoded(draft, policy, costs, drafter, accepted, slower=()):
    """Rounds of a text, of whose trees so many nodes of a deepest path are accepted, or all that there are.

    Args:
        slower: how slow the machine is from some rounds on, by their places.
    """
    one = policy.begin(SequenceInfo(prompt_length=30, max_new_tokens=999, temperature=1.0, costs=costs))
    went, context = [], 30
    for at, most in enumerate(accepted):
        costs.slower[:] = dict(slower).get(at, costs.slower)
        drafted = draft(one, drafter)
        tree = drafted.tree
        path = tree.path(int(tree.depths.argmax()))[: most + 1]
        tokens = np.append(tree.tokens[path[1:]], 0)
        layers = drafted.draft_passes
        seconds = costs.verify(len(tree), context) + costs.besides(layers > 0) + layers * costs.draft(1, 1)
        went.append(Went(len(tokens), seconds / costs.verify(1, context)))
        one.observe(Round(tree, path, tokens, draft_passes=drafted.draft_passes, context=context))
        context += len(tokens)
    return went


def lost(went):
    """Passes by which some rounds took longer than plain decoding and the share that they may lose."""
    return sum(one.passes - (1.0 + SHARE) * one.tokens for one in went)


def lost_in_any_stretch(went):
    """The most that is lost from one round to another."""
    return max(accumulate((lost([one]) for one in went), lambda before, own: max(before, 0.0) + own))


MACHINES = st.builds(
    Machine,
    node=st.floats(0.0, 1.0),
    layer=st.sampled_from([0.0, 0.01, 0.1, 0.4, 1.0, 3.0, 50.0]),
    more=st.sampled_from([0.0, 0.1, 1.0]),
)
PHASES = st.lists(st.tuples(st.integers(1, 25), st.sampled_from([0, 0, 1, 2, 99])), min_size=1, max_size=6)
DRAFTERS = st.one_of(untied_drafters(4), st.just(TableDrafter([[0.97, 0.01, 0.01, 0.01]])))


def rounds_of(phases):
    return [accepted for rounds, accepted in phases for _ in range(rounds)]


@pytest.mark.parametrize("policy", [TalonCost(), TalonCostSampled(budget=20)])
@settings(deadline=None, max_examples=30)
@given(costs=MACHINES, drafter=DRAFTERS, phases=PHASES)
def test_a_text_takes_as_long_as_plain_decoding_by_098_and_four_passes_at_most(draft, policy, costs, drafter, phases):
    went = decoded(draft, policy, costs, drafter, rounds_of(phases))
    assert lost(went) <= CREDIT[0] + 1e-6
    assert lost_in_any_stretch(went) <= CREDIT[1] + 1e-6
    assert (SHARE, CREDIT[0]) == (pytest.approx(1 / 0.98 - 1), 4.0)


@settings(deadline=None, max_examples=30)
@given(
    MACHINES,
    DRAFTERS,
    PHASES,
    st.lists(st.tuples(st.integers(1, 99), st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 10.0))), max_size=3),
)
def test_between_changes_of_the_machine_it_loses_no_more_either(draft, costs, drafter, phases, slower):
    costs = attrs.evolve(costs, slower=[1.0, 1.0])
    went = decoded(draft, TalonCost(), costs, drafter, rounds_of(phases), slower)
    starts = sorted({at for at, _ in slower})
    for start, end in zip([-PRICES_STAND, *starts], [*starts, len(went)], strict=True):
        stretch = went[start + PRICES_STAND : end]
        assert not stretch or lost_in_any_stretch(stretch) <= CREDIT[1] + 1e-6


@pytest.mark.parametrize("layer", [0.1, 3.0])
def test_drafts_that_are_never_accepted_are_made_ever_less_often_though_the_drafter_is_sure(draft, layer):
    sure = TableDrafter([[0.97, 0.01, 0.01, 0.01]])
    went = decoded(draft, TalonCost(), Machine(node=0.1, layer=layer), sure, [0] * 400)
    assert 0.0 < sum(one.passes - 1.0 for one in went) <= CREDIT[0] + SHARE * 400


def test_a_drafter_that_comes_to_be_right_is_noticed_after_a_text_of_nothing_but_misses(draft):
    sure = TableDrafter([[0.97, 0.01, 0.01, 0.01]])
    costs = Machine(node=0.05, layer=0.1)
    went = decoded(draft, TalonCost(), costs, sure, [0] * 200 + [99] * 200)
    assert sum(one.tokens for one in went[300:]) > 2.0 * sum(one.passes for one in went[300:])


def test_what_a_good_stretch_has_gained_is_not_lost_again(draft):
    sure = TableDrafter([[0.97, 0.01, 0.01, 0.01]])
    went = decoded(draft, TalonCost(), Machine(node=0.05, layer=0.1), sure, [99] * 200 + [0] * 200)
    assert lost(went[:200]) < -10 * CREDIT[1]
    assert lost(went[200:]) <= CREDIT[1] + 1e-6
