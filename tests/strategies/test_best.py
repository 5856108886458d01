"""The two ways to ask for the best, which most policies are made of."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.choices import SeededChoices
from talon_core.testing import draft_trees
from talon_core.tree import TokenTree

scores = st.sampled_from([-np.inf, -3.0, -2.0, -1.0, 0.0]) | st.floats(-5, 0)


@st.composite
def rectangles(draw):
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    path_logp = np.array(draw(st.lists(scores, min_size=rows * width, max_size=rows * width))).reshape(rows, width)
    tokens = np.where(path_logp > -np.inf, 1, -1)
    return Candidates(np.arange(rows), tokens, path_logp, path_logp, SeededChoices(0))


@given(rectangles(), st.integers(-1, 22), scores)
def test_candidates_best_sorts_and_cuts(candidates, count, at_least):
    flat = candidates.path_logp.ravel().tolist()
    eligible = [index for index, score in enumerate(flat) if score >= at_least and score > -np.inf]
    expected = sorted(eligible, key=lambda index: (-flat[index], index))[: max(count, 0)]
    assert candidates.best(count, at_least=at_least).tolist() == expected


@given(rectangles(), st.integers(0, 22), st.data())
def test_candidates_best_by_another_score_leaves_padding_out(candidates, count, data):
    size = candidates.tokens.size
    score = np.array(data.draw(st.lists(scores, min_size=size, max_size=size)))
    real = candidates.tokens.ravel() >= 0
    eligible = [index for index in range(size) if real[index] and score[index] > -np.inf]
    expected = sorted(eligible, key=lambda index: (-score[index], index))[:count]
    assert candidates.best(count, score=score.reshape(candidates.tokens.shape)).tolist() == expected


@given(draft_trees(), st.integers(1, 30))
def test_the_best_nodes_of_a_tree_can_be_kept(tree, count):
    best = tree.best(count)
    expected = sorted(range(len(tree)), key=lambda node: (-tree.path_logp[node], node))[:count]
    assert best.tolist() == expected
    assert len(tree.keep(best)) == min(count, len(tree))


@given(draft_trees(), st.integers(1, 30), st.randoms(use_true_random=False))
def test_the_best_nodes_of_a_tree_can_be_kept_whatever_the_rounding(tree, count, random):
    shaken = [score + random.choice([0, 1e-3, 1.0]) for score in tree.path_logp]
    rough = TokenTree(tokens=tree.tokens, parents=tree.parents, path_logp=shaken)
    assert len(rough.keep(rough.best(count))) == min(count, len(tree))
