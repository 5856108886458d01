"""The strategies that plugin authors draw from: what they give fits together, and the awkward cases are among it."""

import functools

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from talon_core.choices import SeededChoices
from talon_core.drawn import KINDS, without
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.errors import PluginError
from talon_core.table import TableDrafter
from talon_core.testing import (
    CoinTosser,
    Erratic,
    HostileDrafter,
    World,
    candidates,
    check_tree_policy,
    drawn_trees,
    hostile_candidates,
    hostile_drafters,
    odd_policies,
    worlds,
)

RECORDED = [name for name, kind in KINDS.items() if not kind.fixed or kind.most]


@functools.cache
def examples(make, *arguments):
    """Some hundred things of a strategy, always the same ones."""
    found = []

    @settings(max_examples=120, phases=[Phase.generate], derandomize=True, deadline=None, database=None)
    @given(make(*arguments))
    def collect(one):
        found.append(one)

    collect()
    return found


def spelled(value):
    """A parameter in the name of a test."""
    return value.replace(" ", "-") if isinstance(value, str) else value.__name__.strip("<>")


def real(met):
    return met[1].tokens >= 0


MET = pytest.mark.parametrize("strategy", [candidates(), hostile_candidates()], ids=["candidates", "hostile"])


@MET
def test_candidates_fit_their_tree(strategy):
    @settings(deadline=None, max_examples=30)
    @given(strategy)
    def holds(met):
        tree, offered = met
        assert offered.tokens.shape == offered.logp.shape == offered.path_logp.shape
        assert offered.tokens.shape[0] == len(offered.frontier) == len(set(offered.frontier.tolist()))
        assert offered.frontier.max() < len(tree)
        assert not np.isin(offered.frontier, tree.parents).any()  # nobody has drafted from them before
        assert real(met).any()
        assert (np.isfinite(offered.path_logp) == real(met)).all()
        assert (offered.logp <= 0).all()
        assert (offered.path_logp == tree.path_logp[offered.frontier][:, None] + offered.logp).all()
        below = np.where(real(met), offered.logp, -np.inf)
        assert (below[:, 1:] <= below[:, :-1]).all()
        assert len(offered.best(10**6)) == real(met).sum()

    holds()


@settings(deadline=None, max_examples=30)
@given(candidates())
def test_candidates_have_the_law_that_they_are_the_best_of(met):
    _, offered = met
    for row, tokens in enumerate(offered.tokens):
        law = offered.law(row)
        assert law.sum() == pytest.approx(1)
        known = tokens[tokens >= 0]
        assert np.exp(offered.logp[row, : len(known)]) == pytest.approx(law[known], rel=2e-3)
        assert law[known].sum() == pytest.approx(np.sort(law)[::-1][: len(known)].sum())


@settings(deadline=None, max_examples=30)
@given(hostile_candidates())
def test_hostile_candidates_have_laws_too_where_something_is_known(met):
    _, offered = met
    for row, known in enumerate(real(met)):
        if known.any():
            law = offered.law(row)
            assert law.sum() == pytest.approx(1)
            assert law[offered.tokens[row][known]] == pytest.approx(np.exp(offered.logp[row][known]))
        else:
            with pytest.raises(PluginError, match=f"frontier row {row} is all padding and has no law"):
                offered.law(row)


@settings(max_examples=30)
@given(candidates(vocab_size=5))
def test_draws_from_candidates_are_of_the_law(met):
    _, offered = met
    drawn = offered.draw(SeededChoices(0), 0, 2, replacement=True)
    assert (offered.law(0)[drawn.tokens] > 0).all()
    assert len(offered.law(0)) == 5


@MET
def test_nothing_of_candidates_can_be_written_to(strategy):
    @settings(deadline=None, max_examples=30)
    @given(strategy)
    def holds(met):
        tree, offered = met
        for array in (offered.tokens, offered.logp, offered.path_logp, offered.frontier, tree.tokens, tree.path_logp):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0

    holds()


PASSED_OVER = "a node that could have been drafted from earlier"


@pytest.mark.parametrize(
    ("make", "what", "condition"),
    [
        (candidates, "padding", lambda met: not real(met).all()),
        (candidates, "no padding, and many", lambda met: real(met).all() and real(met).size >= 12),
        (candidates, "one column", lambda met: met[1].width == 1),
        (candidates, "the root alone", lambda met: len(met[0]) == 1),
        (candidates, "several rows", lambda met: len(met[1].frontier) >= 4),
        (candidates, PASSED_OVER, lambda met: len(set(met[0].depths[met[1].frontier].tolist())) > 1),
        (candidates, "a third layer", lambda met: met[0].depths.max() >= 3),
        (hostile_candidates, "one column", lambda met: met[1].width == 1 and len(met[1].frontier) > 1),
        (hostile_candidates, "one row", lambda met: len(met[1].frontier) == 1 and met[1].width > 1),
        (hostile_candidates, "very many rows", lambda met: len(met[1].frontier) >= 100),
        (hostile_candidates, "very wide rows", lambda met: met[1].width >= 100),
        (hostile_candidates, "a vocabulary of 2", lambda met: len(met[0]) > 1 and met[0].tokens.max() <= 1),
        (
            hostile_candidates,
            "rows of padding beside full ones",
            lambda met: {False, True} <= set(real(met).all(axis=1).tolist()) and not real(met).any(axis=1).all(),
        ),
        (hostile_candidates, "ties everywhere", lambda met: met[1].path_logp.size > 8 and np.ptp(met[1].logp) == 0),
        (hostile_candidates, "certain tokens", lambda met: (met[1].path_logp[:, 0] == 0).all() and len(met[0]) > 1),
        (hostile_candidates, "hopeless tokens", lambda met: (met[1].path_logp <= -2e300)[real(met)].any()),
        (
            hostile_candidates,
            "hardly possible tokens",
            lambda met: ((met[1].logp < -700) & (met[1].logp > -800)).any(),
        ),
    ],
    ids=spelled,
)
def test_among_the_candidates_there_is(make, what, condition):
    assert any(map(condition, examples(make)))


@pytest.mark.parametrize("wrong", [{"vocab_size": 1, "kinds": ("tied",)}, {"vocab_size": 2, "kinds": ("sulking",)}])
def test_a_hostile_drafter_of_unknown_rows_or_of_one_token_is_refused(wrong):
    with pytest.raises(ValueError, match=r"vocab_size' must be >= 2: 1|'kinds' must be in .*'tied'.*got 'sulking'"):
        HostileDrafter(**wrong)


def children(tree, node):
    return tree.tokens[tree.parents == node].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_trees_hold_what_their_kind_allows(kind):
    allowed = KINDS[kind]

    @settings(deadline=None, max_examples=30)
    @given(drawn_trees(kind, vocab_size=4, max_nodes=9))
    def holds(tree):
        assert len(tree) <= 9
        assert tree.tokens.max() < 4
        for node in range(len(tree)):
            own = tree.drawn.get(node)
            fixed = [token for token in children(tree, node) if own is None or token not in own.tokens]
            assert allowed.fixed or not fixed
            assert len(set(children(tree, node))) == len(children(tree, node))
            if own is None:
                continue
            assert allowed.most is None or len(own.tokens) <= allowed.most
            assert allowed.replacement is None or len(own.tokens) == 1 or own.replacement == allowed.replacement
            assert not own.law[fixed].any()
            assert own.law.sum() == pytest.approx(1)
            places = [tree.child(node, token) for token in own.nodes.tolist()]
            assert places == sorted(places)
            assert tree.path_logp[places] - tree.path_logp[node] == pytest.approx(own.logp[own.firsts])

    holds()


@pytest.mark.parametrize(
    ("kind", "what", "condition"),
    [
        ("iid", "a token drawn twice", lambda tree: any(len(one.firsts) < len(one.tokens) for one in drawn(tree))),
        ("without-replacement", "three draws", lambda tree: any(len(one.tokens) == 3 for one in drawn(tree))),
        ("hybrid", "fixed beside drawn", lambda tree: any(len(children(tree, node)) > 1 for node in tree.drawn)),
        ("hybrid", "drawn alone", lambda tree: any(len(children(tree, node)) == 1 for node in tree.drawn)),
        ("hybrid", "fixed alone", lambda tree: set(tree.parents[1:].tolist()) - set(tree.drawn)),
        ("sampled-chain", "three in a row", lambda tree: tree.depths.max() >= 3),
        ("without-replacement", "draws below draws", lambda tree: len(tree.drawn) > 1),
        ("deterministic", "some nodes", lambda tree: len(tree) > 4),
        ("sampled", "an unlikely child alone", lambda tree: len(tree) == 2 and tree.path_logp[1] < -5),
    ],
    ids=spelled,
)
def test_among_the_drawn_trees_there_is(kind, what, condition):
    assert any(map(condition, examples(drawn_trees, kind)))


def drawn(tree):
    return tree.drawn.values()


@settings(max_examples=30)
@given(drawn_trees())
def test_without_a_kind_drawn_trees_are_of_any_that_records_its_draws(tree):
    for node, own in tree.drawn.items():
        fixed = [token for token in children(tree, node) if token not in own.tokens]
        assert without(own.law, fixed) == pytest.approx(own.law)


def test_a_kind_that_does_not_exist_is_refused_in_words():
    with pytest.raises(ValueError, match="there is no kind 'chain' of trees; kinds are deterministic, sampled, iid, "):
        drawn_trees("chain")


def test_odd_policies_are_of_both_sorts_and_keep_the_contract():
    assert {type(policy) for policy in examples(odd_policies)} == {Erratic, CoinTosser}
    for policy in (Erratic(seed=3, budget=4), CoinTosser(budget=3)):
        check_tree_policy(lambda policy=policy: policy, max_examples=30)


@settings(deadline=None, max_examples=30)
@given(odd_policies(), st.integers(0, 99), hostile_drafters())
def test_odd_policies_grow_a_tree_on_anything(policy, seed, drafter):
    limits = DraftLimits(drafter.vocab_size, max_depth=5)
    tree = draft_tree(policy, drafter, 0, limits, SeededChoices(seed)).tree
    assert len(tree) <= policy.budget


@settings(deadline=None, max_examples=20)
@given(worlds())
def test_worlds_make_their_target_and_drafter(world):
    assert isinstance(world, World)
    assert world.make_target().vocab_size == world.vocab_size
    assert isinstance(world.make_drafter(), TableDrafter)
