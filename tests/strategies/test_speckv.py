import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import SequenceInfo
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build, spelled
from talon_core.rounds import Round
from talon_core.testing import TableDrafter, check_tree_policy
from talon_strategies import SpecKV
from talon_strategies.acceptance_head import AcceptanceHead, shipped_head
from talon_strategies.entropy import OFFERED
from talon_strategies.speckv import FEATURES, compression_of, signals
from talon_tests.entropies import WIDE, bound, entropy, flat_behind, missing
from talon_tests.prices import Prices

SURE, UNSURE = [0.9, 0.1], [0.5, 0.5 - 1e-9, 1e-9]


def head_of(weight, out, last):
    """A head of a single neuron."""
    return AcceptanceHead("head", np.array([weight], np.float64), np.zeros(1), np.array([out], np.float64), last)


CONFIDENT = head_of([0, 10, 0, 0, 0, -0.1], 1.0, -5.0)
"""The surer the drafter was, and the shorter the chain, the more is accepted."""


def served(policy, costs=None, weight_bits=None):
    told = {} if costs is None else {"costs": costs}
    return policy.begin(SequenceInfo(30, 64, 0.0, weight_bits=weight_bits, **told))


def told(policy, drafted):
    """Tell of a round in which nothing was accepted."""
    policy.observe(Round(drafted.tree, np.array([0]), np.array([1]), context=30))


@pytest.mark.parametrize(
    "options", [{}, {"objective": "paper"}, {"gammas": (1,)}, {"gammas": (3, 1), "model": CONFIDENT}]
)
def test_keeps_the_contract(options):
    check_tree_policy(lambda: SpecKV(**options), max_examples=15)


def test_the_first_chain_has_the_usual_length_and_the_next_one_follows_it(draft):
    # a(gamma) = sigmoid(10 * .9 - .1 gamma - 5): .978, .973, .968, .961, so a gamma + 1 is 2.96, 4.89, 6.81, 8.69;
    # with .5: sigmoid(-.2), ... sigmoid(-.8) = .450, .401, .354, .310 and 1.90, 2.61, 3.13, 3.48
    policy = served(SpecKV(objective="paper", model=CONFIDENT))
    for law in (SURE, UNSURE):
        drafted = draft(policy, TableDrafter([law]))
        assert len(drafted.tree) == 1 + 4
        told(policy, drafted)
        assert len(draft(policy, TableDrafter([law])).tree) == 1 + 8  # the paper's objective takes the longest
        policy = served(SpecKV(objective="paper", model=CONFIDENT))


def test_the_rate_asks_what_a_chain_costs(draft):
    # a pass over the root takes 1, a further node .04 and a layer .05: (a gamma + 1) / (1 + .09 gamma) is 2.51, 3.60,
    # 4.42, 5.05 for the sure and 1.61, 1.92, 2.03, 2.02 for the unsure drafter
    for law, gamma in ((SURE, 8), (UNSURE, 6)):
        policy = served(SpecKV(model=CONFIDENT), Prices(node=0.04, layer=0.05))
        told(policy, draft(policy, TableDrafter([law])))
        assert len(draft(policy, TableDrafter([law])).tree) == 1 + gamma


@settings(max_examples=30, deadline=None)
@given(
    prob=st.floats(0.51, 0.99),
    node=st.floats(0.01, 1.0),
    layer=st.floats(0.01, 1.0),
    gammas=st.permutations([1, 2, 3, 5, 8]).map(lambda some: tuple(some[:3])),
)
def test_the_length_is_the_one_of_the_highest_rate(draft, prob, node, layer, gammas):
    policy = served(SpecKV(gammas=gammas, model=CONFIDENT), Prices(node=node, layer=layer))
    drafter = TableDrafter([[prob, 1 - prob]])
    told(policy, draft(policy, drafter))

    def rate(gamma):
        share = 1 / (1 + math.exp(5 - max(10 * prob - 0.1 * gamma, 0)))
        return (share * gamma + 1) / (gamma * layer + 1 + node * gamma)

    found = len(draft(policy, drafter).tree) - 1
    assert rate(found) == pytest.approx(max(map(rate, gammas)))


def test_what_costs_nothing_known_is_assumed(draft):
    # .15 of a pass for each token: (a gamma + 1) / (1 + .15 gamma) is 1.46, 1.63, 1.64 and 1.58 for the unsure drafter
    policy = served(SpecKV(model=CONFIDENT))
    told(policy, draft(policy, TableDrafter([UNSURE])))
    assert len(draft(policy, TableDrafter([UNSURE])).tree) == 1 + 6


def test_what_is_seen_of_a_chain_is_gone_with_the_next_one(draft):
    lengths = []
    for laws in ([SURE, UNSURE], [UNSURE]):
        policy = served(SpecKV(model=CONFIDENT), Prices(node=0.04, layer=0.05))
        for law in laws:
            told(policy, draft(policy, TableDrafter([law])))
        lengths.append(policy.planned)
    assert lengths == [6, 6]  # and 8 after the sure one, see above


def test_signals_by_hand():
    entropies, best = np.log([2.0, 4.0]), np.array([0.5, 0.25])
    assert signals(entropies, best) == pytest.approx((1.5, 0.375, 2.0, 0.25))


@pytest.mark.parametrize("index", range(6), ids=FEATURES)
def test_the_network_looks_at_what_is_said(draft, index):
    """Each input alone, scaled so that it decides: the share is 0 without it."""
    seen = []

    class Noting(AcceptanceHead):
        def accepted(self, features):
            seen.append(np.asarray(features)[:, index])
            return np.zeros(len(features))

    head = Noting("head", np.zeros((1, 6)), np.zeros(1), np.zeros(1), 0.0)
    policy = served(SpecKV(model=head), weight_bits=8)
    told(policy, draft(policy, TableDrafter([[0.5, 0.25, 0.25]])))
    expected = [1.5, 0.5, 1.5, 0.5, 1.0, (2, 4, 6, 8)][index]
    assert seen[0] == pytest.approx(np.broadcast_to(expected, 4))


def features_after(draft, law):
    """What the network is asked about a chain of four tokens of a law, for each of two lengths."""
    seen = []

    class Noting(AcceptanceHead):
        def accepted(self, features):
            seen.append(np.asarray(features))
            return np.zeros(len(features))

    head = Noting("head", np.zeros((1, 6)), np.zeros(1), np.zeros(1), 0.0)
    policy = served(SpecKV(model=head, gammas=(2, 4)))
    told(policy, draft(policy, TableDrafter([law])))
    return seen[0]


@settings(max_examples=30, deadline=None)
@given(best=st.floats(0.2, 0.99), more=st.integers(2, 2000))
def test_with_more_tokens_than_are_looked_at_entropies_are_lower_bounds(draft, best, more):
    law = flat_behind(best, OFFERED + more)
    found = features_after(draft, law)
    for name in ("mean_entropy", "max_entropy"):
        bits = found[:, FEATURES.index(name)]
        assert bits == pytest.approx(np.repeat(bound(law), 2) / math.log(2))
        assert bits == pytest.approx(np.repeat(entropy(law) - missing(law), 2) / math.log(2))
        assert (bits < entropy(law) / math.log(2)).all()


def test_so_a_network_that_knows_whole_entropies_would_choose_longer_chains(draft):
    # share = sigmoid(3 - 4 bits): .742 of the bound, 0.486 bits, and .054 of the entropy, 1.468; a gamma + 1 by
    # 1 + .09 gamma is 2.11, 2.92, 3.54, 4.03 then, and would be .94, .89, .86, .83
    assert (bound(WIDE) / math.log(2), entropy(WIDE) / math.log(2)) == pytest.approx((0.486, 1.468), abs=1e-3)
    policy = served(SpecKV(model=head_of([1, 0, 0, 0, 0, 0], -4.0, 3.0)), Prices(node=0.04, layer=0.05))
    told(policy, draft(policy, TableDrafter([WIDE])))
    assert policy.planned == 8


@pytest.mark.parametrize(
    ("bits", "code"), [(None, 0), (32, 0), (16, 0), (9, 0), (8, 1), (6, 1), (5, 1), (4, 2), (3, 2), (2, 2)]
)
def test_how_weights_are_kept_has_a_code(bits, code):
    assert compression_of(bits) == code
    assert served(SpecKV(), weight_bits=bits).watched.compression == code
    for name, given_code in (("fp16", 0), ("int8", 1), ("nf4", 2)):
        assert served(SpecKV(compression=name), weight_bits=bits).watched.compression == given_code


def test_a_round_without_a_draft_changes_nothing(draft):
    policy = served(SpecKV(model=CONFIDENT), Prices(node=0.04, layer=0.05))
    told(policy, draft(policy, TableDrafter([UNSURE])))
    before = policy.watched.gamma
    policy.observe(Round(draft(policy, TableDrafter([UNSURE])).tree.keep([0]), np.array([0]), np.array([1])))
    assert policy.watched.gamma == before == 6


def test_sequences_do_not_know_of_each_other(draft):
    options = SpecKV(model=CONFIDENT, objective="paper")
    one, other = served(options), served(options)
    told(one, draft(one, TableDrafter([SURE])))
    assert [len(draft(each, TableDrafter([SURE])).tree) for each in (one, other)] == [9, 5]


def test_a_spec_says_its_options_again():
    spec = "speckv:objective=paper,gammas=1;3,compression=nf4"
    policy = build(load_registry(), "tree policy", spec)
    assert policy == SpecKV(objective="paper", gammas=(1, 3), compression="nf4")
    assert spelled(policy) == spec
    assert policy.budget == 4


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"objective": "speed"}, "objective"),
        ({"gammas": "0;2"}, "gammas is .* whole numbers, each at least 1"),
        ({"gammas": "two"}, "gammas is 'two'; it must be numbers"),
        ({"gammas": 3}, "gammas"),
        ({"gammas": ()}, "gammas"),
        ({"compression": "int4"}, "compression"),
        ({"model": 4}, "model is 4; it must be the path of a safetensors file, or none"),
    ],
)
def test_options_out_of_range_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        SpecKV(**options)


def test_the_head_that_comes_with_talon_says_what_it_is_of_and_never_foretells_nonsense():
    head = shipped_head("speckv", FEATURES)
    assert head.origin["features"] == [*FEATURES]
    assert (head.origin["policy"], head.origin["drafter"], len(head.hidden_bias)) == ("speckv", "eagle3", 16)
    assert head.origin["held_out"]["head"] < head.origin["held_out"]["constant"]
    of_the_model = {trace["weight_bits"] for trace in head.origin["traces"] if trace["target"] == "smollm2-135m"}
    assert of_the_model == {6}  # as it says itself when it is loaded: the code is the one that it is served with
    assert {compression_of(trace["weight_bits"]) for trace in head.origin["traces"]} == {0, 1, 2}
    sure, unsure = (0.2, 0.95, 0.6, 0.85), (3.0, 0.3, 4.0, 0.1)
    for gamma, code in itertools.product((2, 4, 6, 8), (0, 1, 2)):
        assert head.accepted((*sure, code, gamma)) > head.accepted((*unsure, code, gamma))
