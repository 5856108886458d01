import itertools
import logging
import math

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import Growth, SequenceInfo, TreePolicy
from talon_core.errors import PluginError
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build, spelled
from talon_core.rounds import Round
from talon_core.testing import TableDrafter, certify, check_tree_policy
from talon_strategies import (
    AdaEdl,
    Chain,
    DDTree,
    Eagle2,
    OptTree,
    StaticTree,
    Svip,
    Talon,
    TalonAbsolute,
    TalonCost,
    TalonLocal,
    TalonTopkLayers,
    Taps,
)
from talon_strategies.acceptance_head import AcceptanceHead, said_once, shipped_head
from talon_strategies.calibration import CERTAIN
from talon_strategies.entropy import OFFERED
from talon_strategies.taps import FEATURES, examined, learned
from talon_tests.prices import Prices

RISES = [[1, 0, 0, 0, 0], [-1, 0, 0, 0, 0]]
"""The log-odds of the drafter as a difference of two neurons."""


def head_of(weight, bias, out, last=0.0, **origin):
    """A head of these weights."""
    return AcceptanceHead("head", *(np.array(one, dtype=np.float64) for one in (weight, bias, out)), last, origin)


IDENTITY = head_of(RISES, [0, 0], [1, -1])
HALF = head_of(RISES, [0, 0], [0.5, -0.5])
LOOKS = head_of(
    [[1, -0.5, 0, -0.3, 0.2], [-1, 0, 0.5, 0, 0], [0, 1, 1, 1, 1]], [0.5, 0.2, -1.0], [0.8, -0.6, -0.3], -0.4
)


def drafter_of(seed, vocab=6):
    """Laws that look at the path and are neither flat nor certain."""
    weights = np.exp(np.random.default_rng(seed).standard_normal((199, vocab)))
    return TableDrafter(weights / weights.sum(axis=1, keepdims=True))


def served(policy, costs=None):
    told = {} if costs is None else {"costs": costs}
    return policy.begin(SequenceInfo(prompt_length=30, max_new_tokens=64, temperature=0.0, **told))


@given(
    st.integers(0, 99), st.integers(1, 40), st.integers(1, 9), st.sampled_from([LOOKS, shipped_head("taps", FEATURES)])
)
def test_an_estimate_has_the_same_bits_beside_other_rows_and_more_padding(seed, width, rows, head):
    laws = np.random.default_rng(seed).dirichlet(np.ones(width + 1), size=rows)[:, :width]
    logp, depths = -np.sort(-np.log(laws), axis=1), np.arange(1, rows + 1)
    wide = np.pad(logp, ((0, 0), (0, 13)), constant_values=-np.inf)
    found = learned(head, wide, depths)
    for row in range(rows):
        alone = learned(head, logp[row : row + 1], depths[row : row + 1])
        assert np.array_equal(found[row, :width], alone[0])


@attrs.frozen
class Spy(Talon):
    """Notes what it is shown."""

    name = "spy"
    seen: list = attrs.field(init=False, eq=False, factory=list)

    def begin(self, sequence):
        return self

    def width(self, tree):
        return 2

    def grow(self, tree, candidates, choices):
        self.seen.append((tree, candidates))
        return super().grow(tree, candidates, choices)

    def observe(self, round_):
        self.seen.append(round_)


WITHIN = [
    *(Chain(length=4), StaticTree("0;1;2;0.0;0.2;0.2.1"), Eagle2(budget=9, depth=3, top_k=3), DDTree(budget=9)),
    *(OptTree(budget=9, depth=4), Talon(budget=12, top_k=3, mu=0.2), TalonAbsolute(budget=12), TalonLocal(budget=9)),
    *(TalonTopkLayers(budget=12, top_k=3), Svip(h=0.6), AdaEdl(threshold=0.3), TalonCost(budget=12, depth=5)),
]


@pytest.mark.parametrize("within", WITHIN, ids=lambda policy: policy.name)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_who_believes_the_drafter_gets_the_tree_of_the_policy_within(draft, within, seed):
    drafter, costs = drafter_of(seed), Prices(node=0.05, layer=0.02)
    ours, theirs = served(Taps(of=within, model=IDENTITY), costs), served(within, costs)
    for accepted in (1, 0, 0):
        found, expected = draft(ours, drafter), draft(theirs, drafter)
        assert found.tree.tokens.tolist() == expected.tree.tokens.tolist()
        assert found.tree.parents.tolist() == expected.tree.parents.tolist()
        assert found.tree.path_logp.tolist() == expected.tree.path_logp.tolist()
        for policy, drafted in ((ours, found), (theirs, expected)):
            path = drafted.tree.path(min(accepted, len(drafted.tree) - 1))
            drafted_as = None if drafted.drafted is drafted.tree else drafted.drafted
            policy.observe(Round(drafted.tree, path, np.append(drafted.tree.tokens[path[1:]], 5), drafted_as))


REGISTRY = load_registry()
LOOKS_AT_NO_SCORE = {"chain", "static", "gammatune", "heuristic", "sps"}
"""Policies that take candidates by their rank alone, and learn from what was accepted alone."""
SCORED_ALONE = [
    one.name
    for one in REGISTRY.entries["tree policy"].values()
    if one.plugin.startswith("talon-core:") and one.cls.children == "deterministic"
]


def drafted_alike(draft, within, seed):
    """Whether a policy has the same trees in eight rounds, with learned acceptance and without."""
    drafter, costs = drafter_of(seed), Prices(node=0.05, layer=0.02)
    policies = served(Taps(of=within, model=LOOKS), costs), served(within, costs)
    for accepted in (1, 0, 2, 5, 9, 0, 1, 3):
        ours, theirs = (draft(policy, drafter) for policy in policies)
        for found, expected in ((ours.tree, theirs.tree), (ours.drafted, theirs.drafted)):
            if [*zip(found.tokens, found.parents, strict=True)] != [
                *zip(expected.tokens, expected.parents, strict=True)
            ]:
                return False
        for policy, one in zip(policies, (ours, theirs), strict=True):
            path = one.tree.path(min(accepted, len(one.tree) - 1))
            drafted = None if one.drafted is one.tree else one.drafted
            policy.observe(Round(one.tree, path, np.append(one.tree.tokens[path[1:]], 5), drafted, context=30))
    return True


@pytest.mark.parametrize("name", SCORED_ALONE)
def test_trees_change_but_of_policies_that_look_at_no_score(draft, name):
    within = AdaEdl(threshold=0.42) if name == "adaedl" else REGISTRY.entries["tree policy"][name].cls()
    assert all(drafted_alike(draft, within, seed) for seed in range(8)) == (name in LOOKS_AT_NO_SCORE)
    assert name not in LOOKS_AT_NO_SCORE or f"`{name}`" in (Taps.__doc__ or "")


@pytest.mark.parametrize("within", [*WITHIN, Spy(budget=9, top_k=2)], ids=lambda policy: policy.name)
@pytest.mark.parametrize("head", [LOOKS], ids=["looks"])
def test_keeps_the_contract(within, head):
    within = attrs.evolve(within)
    check_tree_policy(lambda: Taps(of=Talon() if isinstance(within, Spy) else within, model=head), max_examples=5)


def test_estimates_by_hand(draft):
    # half the log-odds of .9 and .1 are ln 3 and -ln 3: .75 and .25; a path of two likely tokens has .75 ** 2
    spy = Spy(budget=4, top_k=2)
    drafted = draft(Taps(of=spy, model=HALF), TableDrafter([[0.9, 0.1]]))
    (first, offered), (second, below) = spy.seen
    assert np.exp(offered.logp) == pytest.approx(np.array([[0.75, 0.25]]))
    assert np.exp(second.path_logp) == pytest.approx([1, 0.75, 0.25])
    assert np.exp(below.path_logp) == pytest.approx(np.array([[0.5625, 0.1875], [0.1875, 0.0625]]))
    assert second.tokens.tolist() == drafted.drafted.tokens[:3].tolist()
    assert np.exp(drafted.tree.path_logp) == pytest.approx([1, 0.9, 0.1, 0.81])  # what is recorded is the drafter's
    assert len(first) == 1


def test_what_is_examined_by_hand():
    law = np.log([[0.5, 0.25, 0.25], [0.8, 0.2, 1e-9]])
    found = examined(law, np.array([1, 3]))
    entropy = [1.5 * math.log(2), -0.8 * math.log(0.8) - 0.2 * math.log(0.2)]
    thirds = [-math.log(3), math.log(2), 0, entropy[0], 0]
    assert found[0] == pytest.approx(
        np.array([[0, 0, 0, entropy[0], 0], thirds, [thirds[0], math.log(3), *thirds[2:]]])
    )
    assert found[1, 0] == pytest.approx([math.log(4), 0, math.log(3), entropy[1], math.log(4)])
    assert found[1, 2] == pytest.approx([-CERTAIN, math.log(3), math.log(3), entropy[1], math.log(4)], abs=1e-6)


@settings(deadline=None)
@given(
    weights=st.lists(st.floats(-3, 3), min_size=21, max_size=21),
    law=st.lists(st.floats(1e-6, 1), min_size=1, max_size=20),
    known=st.integers(0, 20),
)
def test_estimates_fall_along_a_row_and_siblings_share_one_token(weights, law, known):
    head = head_of(np.reshape(weights[:15], (3, 5)), weights[15:18], weights[18:21])
    with np.errstate(divide="ignore"):
        logp = np.log([np.sort(law)[::-1] / sum(law)])
    logp[:, known:] = -np.inf
    found = learned(head, logp, np.array([2]))
    assert (np.diff(found[0, : min(known, len(law))]) <= 0).all()
    assert np.exp(found).sum() <= 1 + 1e-12
    assert np.isneginf(found).tolist() == np.isneginf(logp).tolist()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_the_likeliest_paths_are_those_of_the_products_of_estimates(draft, seed):
    drafter, budget = drafter_of(seed, vocab=3), 6
    products = {}
    for depth in (1, 2, 3, 4, 5):
        for path in itertools.product(range(3), repeat=depth):
            law = np.array([drafter.law_after([0, *path[:-1]])])
            order = np.argsort(-law[0])
            estimate = learned(LOOKS, np.log(law[:, order]), np.array([depth]))[0][order.tolist().index(path[-1])]
            products[path] = products.get(path[:-1], 0.0) + estimate
    best = sorted(products, key=products.__getitem__, reverse=True)[: budget - 1]
    tree = draft(Taps(of=DDTree(budget=budget), model=LOOKS), drafter).tree
    assert {tuple(tree.tokens[tree.path(node)[1:]].tolist()) for node in range(1, len(tree))} == {*best}


def test_the_policy_within_sees_as_many_candidates_as_it_asks_for(draft):
    spy = Spy(budget=4, top_k=2)
    draft(Taps(of=spy, model=HALF), drafter_of(3, vocab=30))
    assert [candidates.tokens.shape for _, candidates in spy.seen] == [(1, 2), (2, 2)]
    assert Taps(of=spy, model=HALF).width(spy.seen[0][0]) == OFFERED


@attrs.frozen
class KeepsTwo(Spy):
    """Sends the root and its second node."""

    name = "keeps-two"

    def finish(self, tree):
        return tree.keep([0, 2])


def test_it_is_told_of_rounds_in_the_same_scores(draft):
    spy = KeepsTwo(budget=4, top_k=2)
    policy = Taps(of=spy, model=HALF)
    drafted = draft(policy, TableDrafter([[0.9, 0.1]]))
    assert np.exp(drafted.tree.path_logp) == pytest.approx([1, 0.1])
    policy.observe(Round(drafted.tree, np.array([0]), np.array([1]), drafted.drafted))
    told = spy.seen[-1]
    assert np.exp(told.tree.path_logp) == pytest.approx([1, 0.25])
    assert np.exp(told.drafted.path_logp) == pytest.approx([1, 0.75, 0.25, 0.5625])


def test_a_round_of_plain_decoding_begins_anew(draft):
    policy = served(Taps(of=TalonCost(), model=HALF), Prices(node=1.0, layer=1.0))
    flat = TableDrafter([[0.25, 0.25, 0.25, 0.25]])
    sizes = []
    for _ in range(12):
        drafted = draft(policy, flat)
        sizes.append((len(drafted.tree), drafted.draft_passes))
        round_ = Round(
            drafted.tree, np.array([0]), np.array([1]), None if drafted.drafted is drafted.tree else drafted.drafted
        )
        policy.observe(round_)
    assert {size for size, _ in sizes} == {1}  # it pauses, and is told so


@attrs.frozen
class ChoosesNothing(TreePolicy):
    name = "chooses-nothing"
    budget: int = 4

    def grow(self, tree, candidates, choices):
        return Growth([])


def test_an_empty_choice_ends_the_drafting(draft):
    assert len(draft(Taps(of=ChoosesNothing(), model=LOOKS), drafter_of(0)).tree) == 1


@attrs.frozen
class Broken(TreePolicy):
    name = "broken"
    budget: int = 4
    how: str = "far"

    def grow(self, tree, candidates, choices):
        return {"far": Growth(np.array([10**6])), "none": None}[self.how]


@pytest.mark.parametrize("how", ["far", "none"])
def test_an_error_of_the_policy_within_names_it(draft, how):
    with pytest.raises(PluginError, match="tree policy 'broken'"):
        draft(Taps(of=Broken(how=how), model=LOOKS), drafter_of(0))


def test_a_spec_names_the_policy_and_says_it_again():
    registry = load_registry()
    spec = "taps:of=talon[budget=16;mu=0.1]"
    policy = build(registry, "tree policy", spec)
    assert policy == Taps(of=Talon(budget=16, mu=0.1))
    assert spelled(policy) == spec
    assert policy.budget == 16
    assert Taps(of=Eagle2()).draft_budget == Eagle2().draft_budget
    nested = build(registry, "tree policy", "taps:of=taps[of=talon[budget=16;mu=0.1]]")
    assert nested.of == policy
    assert build(registry, "tree policy", spelled(nested)) == nested
    assert Taps().of == TalonCost()
    assert spelled(Taps()) == "taps"


@pytest.mark.parametrize(
    ("of", "complaint"),
    [
        ("sequoia", "of is 'sequoia', whose children are without-replacement; it must be a policy that"),
        ("tallon", "no tree policy 'tallon'; did you mean 'talon'"),
        ("none", "of: no tree policy 'none'; there are: "),
        ("talon[budget=x]", "option 'budget' of tree policy 'talon' is 'x'; it must be a whole number"),
        ("talon+chain", "it must be a tree policy, its options in brackets"),
        ("talon[budget=3", "it must be a tree policy, its options in brackets"),
        ("", "it must be a tree policy, its options in brackets"),
        (3, "of is 3; it must be a tree policy, or its spec"),
        (Talon, "it must be a tree policy, or its spec"),
    ],
)
def test_what_is_no_policy_that_goes_by_scores_is_refused(of, complaint):
    with pytest.raises(ValueError, match=complaint.replace("[", r"\[")):
        Taps(of=of)


@pytest.mark.parametrize(("drafter", "says"), [("ngram", True), ("eagle3", False), ("", False)])
def test_a_head_of_another_drafter_is_noticed_once(caplog, drafter, says):
    policy = Taps(of=Chain(), model=attrs.evolve(IDENTITY, origin={"drafter": "eagle3"}))
    said_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            policy.begin(SequenceInfo(1, 1, 0.0, drafter=drafter))  # a machine of its own each, as two engines have
    assert [record.getMessage().count("fitted on the drafter 'eagle3'") for record in caplog.records] == [1] * says


def test_it_is_noticed_of_each_file_and_drafter(caplog):
    said_once.cache_clear()
    heads = [attrs.evolve(IDENTITY, source=name, origin={"drafter": "eagle3"}) for name in ("one", "another")]
    with caplog.at_level(logging.WARNING):
        for head, drafter in 2 * [*itertools.product(heads, ("ngram", "pld"))]:
            Taps(of=Chain(), model=head).begin(SequenceInfo(1, 1, 0.0, drafter=drafter))
    assert len(caplog.records) == 4


@pytest.mark.parametrize(("policy", "drafter", "says"), [("taps", None, 0), ("speckv", None, 0), ("taps", "ngram", 1)])
def test_a_certificate_does_not_say_it_of_a_drafter_that_is_made_up(caplog, policy, drafter, says):
    said_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        certify(policy, drafter=drafter, worlds=40)
    assert [record.getMessage().count("this one is 'ngram'") for record in caplog.records] == [1] * says


def test_the_head_that_comes_with_talon_says_what_it_is_of():
    head = shipped_head("taps", FEATURES)
    assert head.origin["features"] == [*FEATURES]
    assert (head.origin["policy"], head.origin["drafter"]) == ("taps", "eagle3")
    assert {trace["target"] for trace in head.origin["traces"]} == {"smollm2-135m"}
    assert head.origin["held_out"]["head"] < head.origin["held_out"]["constant"]
