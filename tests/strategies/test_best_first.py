"""What the trees of the likeliest paths have in common."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.engine.drafting import DraftLimits
from talon_core.engine.growing import Growing
from talon_core.forest import Forest, ForestCandidates
from talon_core.testing import draft_trees
from talon_strategies import DDTree, OptTree
from talon_strategies.best_first import Likeliest, LikeliestOfEach


@given(draft_trees(max_nodes=12), st.data())
def test_the_likeliest_are_the_best_of_the_tree_and_the_candidates(tree, data):
    rows = len(tree) - 1
    steps = data.draw(st.lists(st.sampled_from([0.0, -0.5, -1.0, -4.0, -np.inf]), min_size=2 * rows, max_size=2 * rows))
    logp = -np.sort(-np.array(steps).reshape(rows, 2), axis=1)
    frontier = np.arange(1, len(tree))
    candidates = Candidates(
        frontier, np.where(logp > -np.inf, [1, 2], -1), logp, tree.path_logp[frontier][:, None] + logp
    )
    count = data.draw(st.integers(1, 3 * rows + 2))
    found = Likeliest.of(tree.path_logp, candidates, count)
    every = [*tree.path_logp[1:].tolist(), *candidates.path_logp.ravel().tolist()]
    ranked = sorted(range(len(every)), key=lambda place: (-every[place], place))
    expected = [place for place in ranked if every[place] > -np.inf][:count]
    assert found.prob.tolist() == np.exp([every[place] for place in expected]).tolist()
    new = [place for place in expected if place >= rows]
    assert found.chosen.tolist() == [place - rows for place in new]
    assert found.places.tolist() == [expected.index(place) for place in new]


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 4))
def test_of_each_tree_of_a_forest_they_are_those_of_that_tree(seed, trees, width, count, layers):
    numbers = np.random.default_rng(seed)
    forest, frontier = Forest.roots(np.zeros(trees, dtype=np.int64)), np.arange(trees)
    for _ in range(layers):
        steps = numbers.choice([0.0, -0.5, -1.0, -4.0, -np.inf], size=(len(frontier), width))
        logp = -np.sort(-steps, axis=1)
        path_logp, tokens = forest.path_logp[frontier][:, None] + logp, np.where(logp > -np.inf, np.arange(width), -1)
        of = forest.trees[frontier]
        offered = ForestCandidates(frontier, of, logp, path_logp, trees, lambda tokens=tokens: tokens)
        found = LikeliestOfEach.of(forest, offered, count)
        for tree in {*of.tolist()}:
            (rows,), chosen = np.nonzero(of == tree), offered.trees_of(found.chosen) == tree
            own = Candidates(frontier[rows], tokens[rows], logp[rows], path_logp[rows])
            alone = Likeliest.of(forest.path_logp[forest.trees == tree], own, count)
            assert found.prob[found.trees == tree].tolist() == alone.prob.tolist()
            assert (found.chosen[chosen] - rows[0] * width).tolist() == alone.chosen.tolist()
            assert (found.places[chosen] - (found.trees < tree).sum()).tolist() == alone.places.tolist()
        joined = found.chosen[numbers.random(len(found.chosen)) < 0.8]
        if not len(joined):
            break
        first = len(forest)
        forest = forest.grown(tokens.ravel()[joined], frontier[joined // width], path_logp.ravel()[joined])
        frontier = first + np.arange(len(joined))


@given(budget=st.integers(2, 9), depth=st.integers(1, 9))
def test_the_worst_drafter_takes_the_whole_draft_budget(budget, depth):
    """Each layer has one child that is almost certain, and others that are likelier than all before, but for those."""
    for policy in (DDTree(budget=budget), OptTree(budget=budget, depth=depth, delta=0.0)):
        growing, layer = Growing(policy, 0, DraftLimits(50, 100)), 0
        while len(growing.frontier):
            width, rows = growing.width(), len(growing.frontier)
            scores = np.full((rows, width), -np.inf)
            scores[0] = -1e-6 * np.append(1, 1e5 * (20 - layer) + np.arange(width - 1))
            tokens = np.where(scores > -np.inf, np.arange(width), -1)
            paths = growing.tree.path_logp[growing.frontier][:, None] + scores
            growing.grow(Candidates(growing.frontier, tokens, scores, paths), None)
            layer += 1
        assert len(growing.tree) <= policy.draft_budget
        assert layer <= policy.layers
        if depth < 3 or budget < 4:
            continue
        assert len(growing.tree) == policy.draft_budget


def test_a_nodes_ancestors_come_before_it():
    assert DDTree(budget=4).draft_budget == 1 + 3 + 2 + 1
    assert OptTree(budget=4, depth=2).draft_budget == 1 + 3 + 2
    assert DDTree(budget=362).draft_budget <= 65_536 < DDTree(budget=363).draft_budget
