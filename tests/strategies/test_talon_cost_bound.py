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
from talon_strategies.learnt import CREDIT, SHARE
from talon_tests.prices import Prices

PRICES_STAND = 8
"""Rounds after which a policy knows new prices, at most."""


@attrs.frozen
class Machine(Prices):
    """Made-up prices, of all that a round takes; they may change while one decodes.

    Attributes:
        more: what a round with a draft takes besides passes and layers.
        slower: how many times as long all of it takes, and layers once more.
        reading: what the drafter takes to read a token, before it drafts.
    """

    more: float = 0.0
    reading: float = 0.0
    slower: list[float] = attrs.field(factory=lambda: [1.0, 1.0])

    def verify(self, nodes, context, batch=1):
        return self.slower[0] * super().verify(nodes, context)

    def draft(self, rows, width):
        return self.slower[0] * self.slower[1] * self.layer

    def catch_up(self, tokens):
        return self.slower[0] * self.reading * tokens

    def besides(self, drafted):
        return self.slower[0] * (self.more if drafted else 0.0)


@attrs.frozen
class RunsAhead(Machine):
    """The same where passes of chains are run ahead, so that their rounds take next to nothing besides."""

    def chain(self, layers):
        return self.slower[0] * (0.01 + self.slower[1] * self.layer * layers)


@attrs.frozen
class Went:
    """A round: its tokens, and its time in passes of plain decoding."""

    tokens: int
    passes: float


def decoded(draft, policy, costs, drafter, accepted, slower=(), prompt=30, machine=None):
    """Rounds of a text, of whose trees so many nodes of a deepest path are accepted, or all that there are.

    Args:
        slower: how slow the machine is from some rounds on, by their places.
        prompt: its tokens, of which the drafter reads all but the last before it drafts.
        machine: what policies know of it.
    """
    told = SequenceInfo(prompt, max_new_tokens=999, temperature=1.0, costs=costs, unread=prompt - 1, runs_on=True)
    one = policy.begin(told if machine is None else attrs.evolve(told, machine=machine))
    went, context, unread = [], prompt, prompt - 1
    for at, most in enumerate(accepted):
        costs.slower[:] = dict(slower).get(at, costs.slower)
        chained = one.chains() is not None
        drafted = draft(one, drafter)
        tree = drafted.tree
        path = tree.path(int(tree.depths.argmax()))[: most + 1]
        tokens = np.append(tree.tokens[path[1:]], 0)
        layers = sum(span.work == "layer" for span in drafted.spans)
        seconds = costs.verify(len(tree), context)
        seconds += costs.chain(layers) if chained else costs.besides(layers > 0) + layers * costs.draft(1, 1)
        seconds += costs.catch_up(unread) if layers else 0.0
        unread = 0 if layers else unread + len(tokens)
        went.append(Went(len(tokens), seconds / costs.verify(1, context)))
        one.observe(Round(tree, path, tokens, draft_passes=layers, context=context))
        context += len(tokens)
    return went


def lost(went):
    """Passes by which some rounds took longer than plain decoding and the share that they may lose."""
    return sum(one.passes - (1.0 + SHARE) * one.tokens for one in went)


def lost_in_any_stretch(went):
    """The most that is lost from one round to another."""
    return max(accumulate((lost([one]) for one in went), lambda before, own: max(before, 0.0) + own))


PRICES = {
    "node": st.floats(0.0, 1.0),
    "layer": st.sampled_from([0.0, 0.01, 0.1, 0.4, 1.0, 3.0, 50.0]),
    "more": st.sampled_from([0.0, 0.1, 1.0]),
}
MACHINES = st.one_of(st.builds(Machine, **PRICES), st.builds(RunsAhead, **PRICES))
PHASES = st.lists(st.tuples(st.integers(1, 25), st.sampled_from([0, 0, 1, 2, 99])), min_size=1, max_size=6)
DRAFTERS = st.one_of(untied_drafters(4), st.just(TableDrafter([[0.97, 0.01, 0.01, 0.01]])))


def rounds_of(phases):
    return [accepted for rounds, accepted in phases for _ in range(rounds)]


@pytest.mark.parametrize("policy", [TalonCost(), TalonCostSampled(budget=20)])
@settings(deadline=None, max_examples=30)
@given(costs=MACHINES, drafter=DRAFTERS, phases=PHASES)
def test_a_text_takes_as_long_as_plain_decoding_by_098_and_two_passes_at_most(draft, policy, costs, drafter, phases):
    went = decoded(draft, policy, costs, drafter, rounds_of(phases))
    assert lost(went) <= CREDIT[0] + 1e-6
    assert lost_in_any_stretch(went) <= CREDIT[1] + 1e-6
    assert (SHARE, CREDIT[0]) == (pytest.approx(1 / 0.98 - 1), 2.0)


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


@pytest.mark.parametrize(("node", "layer"), [(0.03, 0.55), (0.02, 0.4), (0.01, 0.7)])
def test_what_the_first_rounds_of_long_chains_gain_is_not_lost_by_the_others(draft, node, layer):
    sure = TableDrafter([[0.97, 0.01, 0.01, 0.01]])
    costs = RunsAhead(node=node, layer=layer, more=5.0)
    for good in range(200, 216):  # chains are said anew behind one of them
        went = decoded(draft, TalonCost(), costs, sure, [99] * good + [0] * 40)
        assert went[good - 1].tokens > 4
        assert lost_in_any_stretch(went) <= CREDIT[1] + 1e-6


def test_what_a_good_stretch_has_gained_is_not_lost_again(draft):
    sure = TableDrafter([[0.97, 0.01, 0.01, 0.01]])
    went = decoded(draft, TalonCost(), Machine(node=0.05, layer=0.1), sure, [99] * 200 + [0] * 200)
    assert lost(went[:200]) < -10 * CREDIT[1]
    assert lost(went[200:]) <= CREDIT[1] + 1e-6


SURE = TableDrafter([[0.97, 0.01, 0.01, 0.01]])


def texts(draft, costs, accepted, count, prompt, machine):
    """What some texts of so many rounds each have lost, and in which of them something was drafted."""
    found = [
        decoded(draft, TalonCost(), costs, SURE, [accepted] * 60, prompt=prompt, machine=machine) for _ in range(count)
    ]
    return [lost(one) for one in found], [any(round_.passes != 1.0 for round_ in one) for one in found]


def test_a_prompt_is_read_ever_less_often_where_drafts_of_other_texts_were_in_vain(draft):
    costs, machine = Machine(node=0.05, layer=0.1, reading=0.008), {}
    losses, drafted = texts(draft, costs, 0, 80, 1001, machine)
    assert drafted[0]
    assert not any(drafted[40:50])
    assert sum(drafted) <= 7
    between = np.diff(np.flatnonzero(drafted)).tolist()
    assert between == sorted(between)
    assert between[-1] > 32
    assert all(loss <= 0.0 for loss, own in zip(losses, drafted, strict=True) if not own)
    assert sum(losses) <= 32.0 + CREDIT[0]


def test_a_prompt_is_read_where_the_drafts_of_other_texts_earn_it_back(draft):
    costs, machine = Machine(node=0.05, layer=0.1, reading=0.008), {}
    losses, drafted = texts(draft, costs, 99, 12, 1001, machine)
    assert all(drafted)
    assert all(loss < 0.0 for loss in losses)


def test_a_prompt_is_not_read_that_takes_longer_than_its_answer_can_gain(draft):
    machine = {}
    texts(draft, Machine(node=0.05, layer=0.1, reading=0.008), 99, 3, 101, machine)
    before = sum(texts(draft, Machine(node=0.05, layer=0.1, reading=1.0), 99, 20, 10001, machine)[1])
    assert before == 0


@pytest.mark.parametrize("reading", [0.0, 0.01])
def test_nobody_pays_for_a_prompt_that_is_not_read_as_the_first_layer_costs_too_much(draft, reading):
    costs, machine = Machine(node=0.05, layer=0.1, reading=reading), {}
    went = decoded(
        draft, TalonCost(), costs, SURE, [99] * 200, [(0, (1.0, 25.0)), (1, (1.0, 1.0))], 1001, machine=machine
    )
    assert went[0].passes == 1.0
    assert sum(one.passes > 1.0 for one in went) > 100
    (others,) = machine.values()
    first = next(at for at, one in enumerate(went) if one.passes > 1.0)
    assert went[first].passes > 1000 * reading
    assert others.credit == pytest.approx(32.0 - lost(went))  # that it was read is among what was lost


@settings(deadline=None, max_examples=25)
@given(costs=MACHINES, drafter=DRAFTERS, phases=PHASES, reading=st.sampled_from([0.001, 0.02, 0.5]))
def test_what_is_read_in_vain_is_lost_from_what_all_texts_share(draft, costs, drafter, phases, reading):
    costs, machine = attrs.evolve(costs, reading=reading, slower=[1.0, 1.0]), {}
    rounds, losses = rounds_of(phases), 0.0
    for _ in range(4):
        losses += lost(decoded(draft, TalonCost(), costs, drafter, rounds, prompt=301, machine=machine))
    assert losses <= 32.0 + CREDIT[0] * 4 + 1e-6


@pytest.mark.parametrize("policy", [TalonCost(), TalonCostSampled()])
@pytest.mark.parametrize("reading", [0.01, 0.03, 0.1])
def test_a_text_does_not_pay_for_the_reading_of_its_prompt(draft, policy, reading):
    """All texts do."""
    found = []
    for each in (0.0, reading):
        costs = Machine(node=0.05, layer=0.1, reading=each)
        one = policy.begin(SequenceInfo(101, max_new_tokens=999, temperature=1.0, costs=costs, unread=100))
        tree = draft(one, SURE).tree
        one.observe(Round(tree, np.array([0]), np.array([1]), draft_passes=1, context=101))
        found.append((len(tree), one.learnt.credit))
    assert found[0] == found[1]
    assert found[0][0] > 1
