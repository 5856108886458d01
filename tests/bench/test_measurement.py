"""What is counted of rounds."""

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.bench.measurement import COUNTS, acceptance_by_depth, acceptance_by_draw, shares_by_depth
from talon_core.drawn import Drawn
from talon_core.rounds import Round
from talon_core.testing import draft_trees
from talon_core.tree import TokenTree

LAW = [0.0, 0.5, 0.3, 0.2]
TREE = TokenTree([9, 0, 2, 1], [-1, 0, 0, 0], np.zeros(4), {0: Drawn([2, 1], LAW)})
"""A fixed child and two drawn ones."""


def walked(*path):
    tokens = np.append(TREE.tokens[[*path[1:]]], 7)
    return Round(TREE, np.array(path), tokens)


def test_acceptance_is_counted_draw_by_draw_and_a_fixed_child_is_none_of_them():
    assert acceptance_by_draw([walked(0, 2), walked(0, 2), walked(0, 3), walked(0)]) == pytest.approx([0.5, 0.25])
    assert acceptance_by_draw([walked(0, 1)]) == [0.0, 0.0]
    assert acceptance_by_draw([]) == []


def counts(rounds, what):
    return [row[what] for row in acceptance_by_depth(rounds)]


DEEP = TokenTree([9, 0, 2, 1, 5, 6], [-1, 0, 0, 1, 3, 2], np.zeros(6))
"""Two branches: one of three tokens, one of two.

9 -- 0 -- 1 -- 5
 `-- 2 -- 6
"""


def through(tree, *path):
    return attrs.evolve(walked(0), tree=tree, path=np.array(path), tokens=np.append(tree.tokens[[*path[1:]]], 7))


def test_acceptance_is_counted_where_the_parent_was_accepted_too():
    """Rounds that stop at the root, after 0, after 2 and 6, and after 0, 1 and 5; and one without a tree."""
    rounds = [through(DEEP, 0), through(DEEP, 0, 1), through(DEEP, 0, 2, 5), through(DEEP, 0, 1, 3, 4)]
    rounds.append(through(TokenTree.root(9), 0))
    assert counts(rounds, "depth") == [1, 2, 3]
    assert counts(rounds, "offered") == [4, 4, 4]  # the tree is that deep, whether or not the walk could get there
    assert counts(rounds, "parent_accepted") == [5, 3, 2]
    assert counts(rounds, "tested") == [4, 3, 1]  # nothing was drafted under 6, nor under the last root
    assert counts(rounds, "accepted") == [3, 2, 1]


def test_of_an_adaptive_policy_the_rounds_that_go_deep_are_chosen_and_the_conditional_share_says_so():
    """Chains are two long in half of the rounds, those in which the drafter is right."""
    sure, unsure = TokenTree([9, 0, 1], [-1, 0, 1], np.zeros(3)), TokenTree([9, 0], [-1, 0], np.zeros(2))
    rounds = [through(sure, 0, 1, 2), through(unsure, 0, 1)] * 5
    _, deep = acceptance_by_depth(rounds)
    assert deep["accepted"] / deep["offered"] == 1
    assert deep["accepted"] / deep["parent_accepted"] == 0.5


@given(st.lists(draft_trees(max_nodes=6, vocab_size=3), min_size=1, max_size=6), st.data())
def test_prompts_together_are_counted_as_if_they_were_one(measurement, trees, data):
    rounds = [through(tree, *tree.path(data.draw(st.integers(0, len(tree) - 1)))) for tree in trees]
    cut = data.draw(st.integers(0, len(rounds)))
    lines = [
        measurement("ngram", prompt, target_passes=len(part), acceptance_by_depth=acceptance_by_depth(part))
        for prompt, part in enumerate([rounds[:cut], rounds[cut:]])
    ]
    together = shares_by_depth(lines)
    assert [{name: row[name] for name in ("depth", *COUNTS)} for row in together] == acceptance_by_depth(rounds)
    reached = 1.0
    for row in together:
        reached *= row["rate_after_parent"] or 0.0
        assert reached == pytest.approx(sum(one.accepted >= row["depth"] for one in rounds) / len(rounds))


@given(st.lists(draft_trees(max_nodes=9, vocab_size=3), max_size=6), st.data())
def test_counts_by_depth_fit_together_whatever_was_accepted(trees, data):
    rounds = [through(tree, *tree.path(data.draw(st.integers(0, len(tree) - 1)))) for tree in trees]
    rows = acceptance_by_depth(rounds)
    assert all(row["accepted"] <= row["tested"] <= min(row["offered"], row["parent_accepted"]) for row in rows)
    assert [row["parent_accepted"] for row in rows[1:]] == [row["accepted"] for row in rows[:-1]]
    assert sum(row["accepted"] for row in rows) == sum(one.accepted for one in rounds)
