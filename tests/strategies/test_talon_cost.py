import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core import Engine, Request, TableTarget
from talon_core.policy import SequenceInfo
from talon_core.rounds import Round, Span
from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_core.trace.clocked import Clock, Clocked
from talon_core.tree import TokenTree
from talon_strategies import CaDDTree, Match, TalonCost, TalonCostSampled
from talon_strategies.following import Following, Seen
from talon_strategies.learnt import ENOUGH, LOOKS, PAUSES, SHARE, WIDEST, WIDTH, Learnt
from talon_strategies.talon_cost import CERTAIN
from talon_tests.prices import Prices


def served(policy, costs):
    return policy.begin(SequenceInfo(prompt_length=30, max_new_tokens=64, temperature=0.0, costs=costs))


def round_of(drafted, accepted=0):
    """The round of a tree of which the first path is accepted, so many nodes deep."""
    path = [0]
    while len(path) <= accepted:
        path.append(int(np.flatnonzero(drafted.tree.parents == path[-1])[0]))
    tokens = np.append(drafted.tree.tokens[path[1:]], 99)
    return Round(drafted.tree, np.array(path), tokens, draft_passes=drafted.draft_passes)


@pytest.mark.parametrize("options", [{}, {"budget": 2}, {"budget": 9, "depth": 1}])
def test_keeps_the_contract(options):
    check_tree_policy(lambda: TalonCost(**options), max_examples=15)


@given(
    drafter=st.integers(2, 9).flatmap(untied_drafters),
    budget=st.integers(2, WIDTH),
    node=st.floats(0.001, 0.5),
    layer=st.floats(0.001, 0.3),
)
def test_while_nothing_is_learnt_a_layers_nodes_are_caddtrees(draft, drafter, budget, node, layer):
    ours, theirs = (
        draft(served(policy(budget=budget, depth=1), Prices(node=node, layer=layer)), drafter).tree
        for policy in (TalonCost, CaDDTree)
    )
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.parents.tolist() == theirs.parents.tolist()


@pytest.mark.parametrize(("rate", "nodes"), [(1.0, 3), (1.6, 2), (3.0, 1), (8.0, 0)])
def test_a_node_joins_while_it_brings_more_than_its_time_is_worth(rate, nodes):
    policy = served(TalonCost(), Prices(node=0.1))
    policy.learnt.drafted, policy.learnt.tokens, policy.learnt.passes = ENOUGH, 10 * rate, 10.0
    policy.known.plain = 1.0
    prob = np.array([0.5, 0.2, 0.15, 0.05])
    assert policy.worth(prob, 1.0 + 0.1 * np.arange(5)) == nodes


def test_a_second_is_worth_at_least_what_plain_decoding_makes_of_it():
    policy = served(TalonCost(), Prices())
    policy.learnt.drafted, policy.learnt.tokens, policy.learnt.passes = ENOUGH, 5.0, 10.0
    policy.known.plain = 0.25
    assert policy.rate(most=100.0) == 4.0
    policy.learnt.tokens = 15.0
    assert policy.rate(most=100.0) == 6.0


class PricesOfNow(Prices):
    """As while one decodes: they may change. A round with a draft takes 0.05 more besides."""

    fixed = False

    def besides(self, drafted):
        return 0.05 * drafted


@pytest.mark.parametrize(("rate", "share"), [(1.0, 0.35), (1.6, 0.56), (2.0, 0.7), (3.0, CERTAIN)])
def test_a_guess_is_overlooked_that_pays_for_no_round_with_a_draft(rate, share):
    """A node takes 0.2, a layer 0.1 and such a round 0.05 besides; behind a certain guess others are worth a look."""
    policy = served(TalonCost(), PricesOfNow(node=0.2, layer=0.1))
    assert policy.overlooks() is None  # before it is decided whether the text is drafted for
    assert policy.width(TokenTree.root(1)) > 0
    learnt = policy.learnt
    learnt.drafted, learnt.tokens, learnt.passes = ENOUGH, 10 * rate, 10.0
    assert np.exp(policy.overlooks()) == pytest.approx(share)
    learnt.calibration.line[:] = -1.0, 1.0  # the drafter is too sure
    odds = np.log(share / (1 - share)) + 1.0
    assert np.exp(policy.overlooks()) == pytest.approx(1 / (1 + np.exp(-odds)))
    learnt.left = 5
    assert policy.overlooks() is None  # it rests anyway


def overlooked(seconds):
    """A round in which the drafter has told of its best guess in so many seconds, and nothing was drafted."""
    spans = (Span("draft", 2.0, 2.0 + seconds, "guess"),)
    return Round(TokenTree.root(0), np.array([0]), np.array([1]), spans=spans)


@pytest.mark.parametrize(("seconds", "looks", "pause"), [(0.05, LOOKS, PAUSES[0]), (0.2, 12, 8)])
def test_drafting_pauses_where_guesses_are_asked_for_in_vain_or_more_is_lost_than_may_be(seconds, looks, pause):
    """After 12 of these 12 * (0.2 - 0.0204) are lost: 0.155 passes more than 2, or what 8 of plain decoding gain."""
    policy = served(TalonCost(), PricesOfNow(node=0.2, layer=0.1))
    assert policy.width(TokenTree.root(1)) > 0
    policy.observe(Round(TokenTree.root(0), np.array([0]), np.array([1])))
    before = policy.learnt.credit = 2.0
    for number in range(1, 1 + looks):
        assert policy.overlooks() is not None
        policy.observe(overlooked(seconds))
        assert policy.learnt.credit == pytest.approx(before + number * (SHARE - seconds))
    for left in range(pause, 0, -1):  # of the first of them it was told ahead
        assert policy.overlooks() is None
        assert (policy.learnt.left, policy.rests()) == (left, left - 1)
        policy.observe(overlooked(0.001) if left > 2 else Round(TokenTree.root(0), np.array([0]), np.array([1])))
    assert policy.overlooks() is not None


def test_where_drafts_have_gained_guesses_are_asked_for_as_long_as_they_cost_no_more():
    learnt = Learnt()
    for _ in range(ENOUGH):
        learnt.went([(1.0, 3, 1.5)])
    gained = learnt.emitted - learnt.passes
    looks = 0
    while not learnt.left:
        learnt.looked(0.1)
        looks += 1
    may = gained / (0.1 - SHARE)
    assert may < looks <= may + LOOKS
    assert learnt.left == learnt.pause == PAUSES[0]
    assert (learnt.looks, learnt.looking) == (0, 0.0)  # what it took is forgotten
    assert learnt.emitted - learnt.passes == pytest.approx(gained)


def test_guesses_that_cost_no_more_than_may_be_lost_are_asked_for_on_and_on():
    learnt = Learnt()
    for _ in range(10 * LOOKS):
        learnt.looked(0.9 * SHARE)
    assert not learnt.left
    learnt.went([(1.0, 1, 1.0)])
    assert learnt.passes == pytest.approx(1.0 + 10 * LOOKS * 0.9 * SHARE)  # the draft has taken that, too
    assert learnt.others.drafts[1] == pytest.approx(learnt.passes)


def test_nothing_is_overlooked_at_given_prices():
    """So that a replay, which has the drafter's answers alone, asks in the same rounds."""
    policy = served(TalonCost(), Prices(node=0.2, layer=0.1))
    assert policy.width(TokenTree.root(1)) > 0
    assert policy.overlooks() is None


@pytest.mark.parametrize(("followed", "layers"), [(0.9, 2), (0.1, 1)])
def test_another_layer_is_drafted_where_what_has_followed_such_nodes_would_pay_for_it(draft, followed, layers):
    drafter = TableDrafter([[0.6, 0.4]])
    policy = served(TalonCost(depth=2), Prices(node=0.05, layer=0.2))
    policy.learnt.following = Following((Seen((followed, 0.0, 0.0)),) * 2)
    drafted = draft(policy, drafter)
    assert (
        int(drafted.drafted.depths.max()) == layers
    )  # the likelier child is reached with 0.6: 0.9 of it is worth 0.2 passes


def test_a_full_tree_goes_on_where_what_follows_is_likelier_than_its_least_likely_node(draft):
    drafter = TableDrafter([[0.9, 0.1]])
    for layer, depth in ((0.01, 3), (0.8, 2)):  # 0.81 of the likeliest is followed by 0.8, and replaces one of 0.1
        policy = served(TalonCost(budget=4), Prices(node=0.0, layer=layer))
        drafted = draft(policy, drafter)
        assert len(drafted.tree) == 4
        assert int(drafted.tree.depths.max()) == depth


@pytest.mark.parametrize(("node", "width"), [(0.0, WIDEST), (0.02, 32), (0.3, 4), (2.0, 1)])
def test_so_many_candidates_are_looked_at_as_could_be_worth_a_node(draft, node, width):
    drafter = TableDrafter([[0.25, 0.25, 0.25, 0.25]])
    policy = served(TalonCost(), Prices(node=node, layer=0.0))
    drafted = draft(policy, drafter)
    assert policy.width(drafted.tree) == WIDTH
    policy.observe(round_of(drafted))
    policy.learnt.left = 0
    assert policy.width(drafted.tree) == width
    policy.learnt.left = 1
    assert policy.width(TokenTree.root(0)) == 0


def test_what_was_rejected_is_worth_less_the_next_time(draft):
    drafter = TableDrafter([[0.7, 0.2, 0.1]])
    policy = served(TalonCost(budget=8, depth=4), Prices(node=0.05, layer=0.01))
    sizes = []
    for _ in range(6):
        drafted = draft(policy, drafter)
        sizes.append(len(drafted.tree))
        policy.observe(round_of(drafted))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


def test_drafting_pauses_where_it_does_not_pay_and_longer_while_that_stays_so(draft):
    drafter = TableDrafter([[0.25, 0.25, 0.25, 0.25]])  # worth no node at these prices
    policy, asked = served(TalonCost(), Prices(node=0.5, layer=0.2)), []
    for _ in range(ENOUGH + 16 + 1 + 64 + 1 + 64 + 1):
        drafted = draft(policy, drafter)
        assert len(drafted.tree) == 1
        asked.append(int(any(span.part == "draft" for span in drafted.spans)))
        policy.observe(round_of(drafted))
    assert asked == [1] * ENOUGH + [0] * 16 + [1] + [0] * 64 + [1] + [0] * 64 + [1]
    assert PAUSES == (16, 64)


@pytest.mark.parametrize(("passes", "left"), [(1.0, 0), (1.001, PAUSES[0])])
def test_drafting_pauses_where_it_loses_anything_and_not_where_it_costs_nothing(passes, left):
    learnt = Learnt()
    for _ in range(ENOUGH):
        learnt.went([(1.0, 1, passes)])
    assert learnt.left == left


def test_the_first_pause_is_short_also_behind_rounds_that_are_learnt_from_together():
    learnt = Learnt()
    for pause in (*PAUSES, PAUSES[-1]):
        learnt.went([(1.0, 1, 1.5)] * 16)
        assert learnt.left == learnt.pause == pause


@pytest.mark.parametrize(("new", "left"), [(1, PAUSES[0]), (2, 0)])
def test_drafting_goes_on_where_more_comes_than_is_expected(new, left):
    learnt = Learnt()
    for _ in range(ENOUGH):
        learnt.went([(1.0, new, 1.5)])
    assert learnt.left == left


def test_it_goes_on_as_soon_as_drafting_pays_again(draft):
    flat, sharp = TableDrafter([[0.25, 0.25, 0.25, 0.25]]), TableDrafter([[0.97, 0.01, 0.01, 0.01]])
    policy = served(TalonCost(), Prices(node=0.3, layer=0.1))
    for _ in range(ENOUGH):
        policy.observe(round_of(draft(policy, flat)))
    assert policy.learnt.left == PAUSES[0]
    for _ in range(PAUSES[0]):
        policy.observe(round_of(draft(policy, sharp)))
    drafted = draft(policy, sharp)
    assert len(drafted.tree) > 4
    policy.observe(round_of(drafted, accepted=4))
    assert (policy.learnt.left, policy.learnt.pause) == (0, 0)


@attrs.frozen
class Besides(Prices):
    """Prices of rounds that take something else besides: the first of these in plain decoding, the other else."""

    plain: float = 0.0
    drafted: float = 0.0

    def besides(self, drafted):
        return self.drafted if drafted else self.plain


def test_drafting_pauses_where_what_rounds_take_besides_passes_costs_more_than_it_brings(draft):
    drafter = TableDrafter([[0.3, 0.25, 0.25, 0.2]])  # a tree brings 0.8 for 0.6 passes and a layer of 0.1
    left = []
    for costs in (Prices(0.2, 0.1), Besides(0.2, 0.1, plain=0.5, drafted=0.5), Besides(0.2, 0.1, drafted=0.5)):
        policy = served(TalonCost(depth=1), costs)
        for _ in range(ENOUGH):
            drafted = draft(policy, drafter)
            assert len(drafted.tree) > 1  # what the draft has cost is spent: its nodes are worth verifying
            policy.observe(round_of(drafted, accepted=1))
        left.append(policy.learnt.left)
    assert left == [0, 0, PAUSES[0]]


@pytest.mark.parametrize("beside", [1, 5, 1000])
def test_a_round_is_billed_for_nodes_that_its_drafter_has_added(draft, beside):
    drafter = TableDrafter([[0.7, 0.1, 0.1, 0.1]])
    passes = []
    for inquired in (0, beside):
        policy = served(TalonCost(budget=16, depth=1), Prices(node=0.1))
        policy.observe(attrs.evolve(round_of(draft(policy, drafter)), inquired=inquired))
        passes.append(policy.learnt.passes)
    assert passes[1] - passes[0] == pytest.approx(0.1 * beside)


@pytest.mark.parametrize(("beside", "left"), [(0, 0), (5, PAUSES[0])])
def test_nodes_that_are_added_where_nothing_is_known_are_billed_too_and_end_in_a_pause(beside, left):
    policy = served(TalonCost(), Prices(node=0.1))
    alone = Round(TokenTree.root(1), np.array([0]), np.array([2]), inquired=beside)
    before = policy.learnt.credit
    for _ in range(ENOUGH):
        assert policy.width(TokenTree.root(1)) > 0
        policy.observe(alone)  # the drafter has offered nothing
    assert policy.learnt.left == left
    assert policy.learnt.credit - before == pytest.approx(ENOUGH * (SHARE - 0.1 * beside))


@pytest.mark.parametrize(("layer", "rounds"), [(2.001, 0), (2.99, 48), (100.0, 64)])
def test_where_a_draft_costs_more_than_may_be_lost_it_is_said_how_long_nothing_is_drafted(draft, layer, rounds):
    policy, drafter = served(TalonCost(), Prices(node=0.0, layer=layer)), TableDrafter([[0.97, 0.01, 0.01, 0.01]])
    for left in range(rounds, 0, -1):  # a round without a draft earns a fiftieth of a pass
        drafted = draft(policy, drafter)
        assert not any(span.part == "draft" for span in drafted.spans)
        assert policy.rests() == left - 1
        policy.observe(round_of(drafted))
    asked = any(span.part == "draft" for span in draft(policy, drafter).spans)
    assert asked is (layer < 100)
    assert policy.rests() == (0 if asked else 63)


def test_texts_of_which_one_rests_otherwise_are_not_served_together():
    costs = Prices(node=0.1, layer=0.1)
    one, again = served(TalonCost(), costs), served(TalonCost(), costs)
    other = TalonCost().begin(SequenceInfo(30, 64, 1.0, costs, rests_on=True))
    assert one.goes_with(again)
    assert not one.goes_with(other)


@attrs.frozen
class AtRest(Besides):
    """Knows what eight rounds take that follow each other without a draft."""

    def rest(self, rounds):
        return {8: 0.8}[rounds]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("made", [TalonCost, TalonCostSampled])
@pytest.mark.parametrize(("rests_on", "plain"), [(True, 1.1), (False, 1.5)])
def test_drafts_are_held_against_rounds_that_follow_each_other_without_one(draft, temperature, made, rests_on, plain):
    costs = AtRest(0.2, 0.1, plain=0.5, drafted=0.7)
    told = SequenceInfo(30, 64, temperature, costs, rests_on=rests_on)
    policy = made().begin(told)
    draft(policy, TableDrafter([[0.3, 0.25, 0.25, 0.2]]))
    assert policy.known.plain == pytest.approx(plain)
    assert policy.known.verifying[0] == pytest.approx(1.7)


@attrs.frozen
class Slow(TalonCost):
    """Takes its time for each layer, or once a round, by a clock."""

    clock: Clock = attrs.field(factory=Clock)
    each_layer: float = 0.0
    each_round: float = 0.0

    def grow(self, tree, candidates, choices):
        self.clock.spend(self.each_layer)
        return super().grow(tree, candidates, choices)

    def finish(self, tree):
        self.clock.spend(self.each_round)
        return super().finish(tree)


class Passing(TableTarget):
    """A target whose passes take a second each, and a fiftieth for each further node.

    Args:
        logits: of all its tokens.
        clock: whose time passes.
    """

    def __init__(self, logits, clock):
        super().__init__(logits)
        self.clock = clock

    def verify(self, trees, *how):
        self.clock.spend(sum(1.0 + 0.02 * (len(tree) - 1) for tree in trees.values()))
        return super().verify(trees, *how)


def layers_drafted(each_layer=0.0, each_round=0.0):
    """Layers of most rounds, once times are known, of a policy that takes so many seconds for each layer and round."""
    clock, law = Clock(), np.array([[0.9, 0.06, 0.04]])
    drafter = Clocked(TableDrafter(law), Prices(layer=0.02), clock)
    policy = Slow(budget=16, depth=8, clock=clock, each_layer=each_layer, each_round=each_round)
    engine = Engine(Passing(np.log(law).repeat(3, axis=0), clock), Match(), policy, drafter, now=clock.now)
    sequence = engine.submit(Request(np.array([0, 1]), 200))
    while not sequence.finished:
        engine.step()
    return np.median([depth_of(one) for one in sequence.rounds[6:-8]])


def depth_of(round_):
    return int((round_.tree if round_.drafted is None else round_.drafted).depths.max())


def test_a_policy_that_is_slow_in_each_layer_drafts_fewer_layers_and_one_that_is_slow_once_a_round_does_not():
    fast, slow, slower = (layers_drafted(each_layer=seconds) for seconds in (0.0, 0.6, 2.0))
    assert fast == layers_drafted(each_round=0.6) == 8
    assert 1 <= slow < 6
    assert slower == 0


def test_nothing_is_known_of_another_text():
    policy = served(TalonCost(), Prices())
    policy.learnt.left = 7
    again = served(policy, Prices())
    assert again.learnt.left == 0
    assert again.learnt is not policy.learnt


@pytest.mark.parametrize("options", [{"budget": 1}, {"depth": 0}, {"budget": 2.5}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        TalonCost(**options)


def test_a_tree_that_is_drafted_again_does_not_change_when_prices_are_asked_for(draft):
    drafter, sure = TableDrafter([[0.9, 0.1]]), []
    for times in (1, 2):
        costs = Prices(node=0.001, layer=0.001)
        policy, asked = served(TalonCost(), costs), []
        for _ in range(12):
            costs.asked.clear()
            for _ in range(times):
                drafted = draft(policy, drafter)
            asked.append(len(costs.asked) > 2)  # besides what a layer asks
            policy.observe(round_of(drafted, accepted=1))
        sure.append(asked)
    assert sure[0] == sure[1]
    assert 1 < sum(sure[0]) < 12


@pytest.mark.parametrize("stand", [1, 2, 3, 8])
@pytest.mark.parametrize("policy", [CaDDTree, TalonCost])
def test_prices_stand_for_one_round_more_each_time_they_are_asked_for(policy, stand, draft, monkeypatch):
    monkeypatch.setattr(policy, "stand", stand)
    costs, drafter, asked = Prices(node=0.001, layer=0.001), TableDrafter([[0.9, 0.1]]), []
    own = served(policy(), costs)
    for number in range(60):
        costs.asked.clear()
        drafted = draft(own, drafter)
        asked += [number] * (len(costs.asked) > 2)  # besides what a layer asks
        own.observe(round_of(drafted, accepted=1))
    expected, stands = [0], 1
    while expected[-1] + stands < 60:
        expected.append(expected[-1] + stands)
        stands = min(stands + 1, stand)
    assert asked == expected


def test_texts_tell_those_of_about_the_same_temperature_what_drafts_bring():
    machine = {}

    def others(temperature):
        told = SequenceInfo(30, 64, temperature, Prices(node=0.1, layer=0.1), machine, drafter="one")
        return TalonCost().begin(told).learnt.others

    known = {temperature: others(temperature) for temperature in (0.0, 0.3, 0.7, 1.0, 9.0)}
    assert len({*map(id, known.values())}) == 5
    assert others(0.28) is known[0.3]
    assert others(1.1) is known[1.0]
    assert others(1e308) is known[9.0]
