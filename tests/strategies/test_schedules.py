"""What our schedules prepare for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core import TokenTree
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build, spelled
from talon_core.schedule import Outcome, Outlook
from talon_core.testing import draft_trees
from talon_drafters import Ngram
from talon_strategies import Branch, Cached, Pearl, Sync
from talon_strategies.schedules.fanout import Geometric, Likeliest, best_path, geometric_shares, whole_shares

VOCAB = 6


def outlook(tree, seed=0, width=VOCAB, **counts):
    """Every node's laws at random."""
    laws = np.random.default_rng(seed).dirichlet(np.ones(VOCAB), size=len(tree))
    best = np.argsort(-laws, axis=1)[:, :width]
    logp = np.log(np.take_along_axis(laws, best, axis=1))
    return Outlook(tree, dict(enumerate(best)), dict(enumerate(logp)), **counts)


def chain(length, token=0):
    return TokenTree([token] * (length + 1), [*range(-1, length)], -0.1 * np.arange(length + 1))


def test_the_shares_are_those_of_the_paper():
    """K = 7, a = 0.8, r = 1 and 24 outcomes, worked out by hand."""
    shares = geometric_shares(7, 0.8, 1.0, 24)
    assert [round(share, 1) for share in shares] == [3.9, 3.5, 3.1, 2.8, 2.5, 2.2, 2.0, 4.0]


@given(
    depth=st.integers(0, 9), acceptance=st.floats(0.01, 0.99), r=st.floats(0.1, 4.0), budget=st.integers(1, 60)
)  # fmt: skip
def test_no_other_shares_miss_less(depth, acceptance, r, budget):
    """The shares are where the expected misses, sum P(k) F_k^-r, have the same slope in every F_k."""
    shares = np.array(geometric_shares(depth, acceptance, r, budget))
    ends = acceptance ** np.arange(depth + 1) * np.append(np.full(depth, 1 - acceptance), 1.0)
    slopes = ends * shares ** (-r - 1)
    np.testing.assert_allclose(slopes, slopes[0], rtol=1e-6)
    assert sum(whole_shares([*shares], budget)) == budget
    assert np.abs(whole_shares([*shares], budget) - shares).max() < 1


@given(draft_trees(), st.integers(1, 40), st.integers(0, 9))
def test_the_likeliest_outcomes_are_prepared_for_and_none_is_in_the_tree(tree, budget, seed):
    known = outlook(tree, seed)
    found = Likeliest().outcomes(known, budget)
    every = {}
    for node in range(len(tree)):
        for token, logp in zip(known.tokens[node].tolist(), known.logp[node].tolist(), strict=True):
            if tree.child(node, token) is None:
                every[Outcome(node, token)] = tree.path_logp[node] + logp
    assert len(found) == len({*found}) == min(budget, len(every))
    scores = [every[one] for one in found]
    assert scores == sorted(scores, reverse=True)
    assert all(score <= scores[-1] for one, score in every.items() if one not in found)


def test_what_is_asked_for_are_the_places_where_paths_most_probably_end():
    tree = TokenTree([0, 1, 2, 1], [-1, 0, 0, 1], np.log([1.0, 0.9, 0.06, 0.8]))
    assert Likeliest().nodes(tree, 1).tolist() == [3]  # 0.8 of it, and 0.1 at its parent, 0.06 at 2, 0.04 at the root
    assert Likeliest().nodes(tree, 2).tolist() == [1, 3]
    assert Likeliest().nodes(tree, 3).tolist() == [1, 2, 3]
    assert Likeliest().nodes(tree, 9).tolist() == [0, 1, 2, 3]


def test_geometric_shares_outcomes_along_the_likeliest_path_alone():
    tree = TokenTree([0, 1, 2, 1, 2], [-1, 0, 0, 1, 1], np.log([1.0, 0.6, 0.4, 0.2, 0.4]))
    assert best_path(tree).tolist() == [0, 1, 4]
    found = Geometric().outcomes(outlook(tree), 9)
    assert {one.node for one in found} == {0, 1, 4}
    assert len(found) == 9


def test_more_is_prepared_for_where_more_was_accepted():
    tree = chain(3)

    def at_the_end(**counts):
        return sum(one.node == 3 for one in Geometric().outcomes(outlook(tree, **counts), 8))

    assert at_the_end(accepted=90, tested=100) > at_the_end(accepted=10, tested=100)


def test_pearl_goes_on_behind_the_end_of_the_likeliest_path():
    tree = TokenTree([0, 1, 2, 1, 2], [-1, 0, 0, 1, 1], np.log([1.0, 0.6, 0.4, 0.2, 0.4]))
    known = outlook(tree)
    assert Pearl().outcomes(known) == [Outcome(4, int(known.tokens[4][0]))]
    assert Pearl().nodes(tree).tolist() == [0, 1, 4]


def test_branch_forks_where_the_path_most_probably_ends():
    tree = chain(2)
    tokens = {node: np.array([0, 1, 2]) for node in range(3)}
    probs = {0: [0.9, 0.05, 0.03], 1: [0.5, 0.3, 0.1], 2: [0.6, 0.2, 0.1]}
    known = Outlook(tree, tokens, {node: np.log(probs[node]) for node in range(3)})
    assert Branch(budget=3).outcomes(known)[0] == Outcome(2, 0)  # nothing of the last node's is in the tree
    assert Branch(budget=3).outcomes(known) == [Outcome(2, 0), Outcome(2, 1), Outcome(2, 2)]
    later = Outlook(tree.keep([0, 1, 2]).scored(np.array([0.0, -0.1, -2.0])), tokens, known.logp)
    assert Branch(budget=3).outcomes(later) == [Outcome(1, 1), Outcome(2, 0), Outcome(1, 2)]


def test_branch_forks_where_many_tokens_may_end_the_path_each_of_them_unlikely():
    tree = TokenTree([0, 1], [-1, 0], np.log([1.0, 0.3]))
    tokens = {0: np.array([1, 2, 3]), 1: np.array([0, 1, 2])}
    known = Outlook(tree, tokens, {0: np.log([0.3, 0.1, 0.1]), 1: np.log([0.4, 0.3, 0.1])})
    # at the root by 0.7, of which 0.2 are known, and behind the token by 0.3, of which 0.24 are
    assert {one.node for one in Branch(budget=3).outcomes(known)[:1]} == {0}


@pytest.mark.parametrize("schedule", [Cached(), Cached(allocation="geometric"), Branch(), Pearl()])
def test_where_nothing_is_known_nothing_is_prepared(schedule):
    assert [*schedule.outcomes(Outlook(chain(2), {}, {}))] == []


def test_schedules_are_built_by_spec():
    registry = load_registry()
    assert registry.names("schedule") == ["branch", "cached", "pearl", "sync"]
    made = build(registry, "schedule", "cached:budget=9,allocation=geometric")
    assert made == Cached(budget=9, allocation="geometric")
    assert spelled(made) == "cached:budget=9,allocation=geometric"
    assert isinstance(Cached(allocation=Geometric(r=2.0)).fanout, Geometric)
    with pytest.raises(ValueError, match="allocation is 'best'; it must be one of likeliest, geometric"):
        build(registry, "schedule", "cached:allocation=best")
    assert Cached(instant="ngram[min_match=2]").instant == Ngram(min_match=2)
    for wrong in ("ngram[min_match=12", "ngram[min_match=4]]", "ngram+pld", ""):
        with pytest.raises(ValueError, match=r"instant is '.*'; it must be a drafter, its options in brackets, as ngr"):
            Cached(instant=wrong)
    assert not Sync.prepares
