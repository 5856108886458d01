import heapq

import attrs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.errors import PluginError
from talon_core.table import Memoryless
from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import DDTree


def every_path(drafter, depth):
    """The path probability of every path of 1 to `depth` tokens."""
    known = {(0,): 1.0}
    for length in range(depth):
        for path in [path for path in known if len(path) == 1 + length]:
            known |= {(*path, token): known[path] * p for token, p in enumerate(drafter.law_after(path).tolist())}
    del known[(0,)]
    return known


def likeliest(known, count):
    """The root, and the `count` likeliest paths, if there are no ties."""
    values = np.sort([prob for prob in known.values() if prob > 0])
    assume((values[:-1] < values[1:] * (1 - 1e-9)).all())
    return {(0,), *sorted(known, key=known.__getitem__, reverse=True)[:count]}


@attrs.frozen(eq=False)
class Block(Memoryless):
    """A drafter of blocks: a law for each position, whatever comes before it, and none after the last."""

    laws: np.ndarray

    def offer(self, tree, frontier, width):
        depth = int(tree.depths[frontier[0]])
        if depth >= len(self.laws):
            return Candidates.unknown(frontier)
        return Candidates.from_logits(tree, frontier, np.log(np.tile(self.laws[depth], (len(frontier), 1))), width)


def papers_tree(laws, count):
    """Algorithm 1: a heap over tuples of ranks, each popped one followed by its next sibling and its first child."""
    ranked = np.argsort(-laws, axis=1)
    found, heap = {(0,)}, [(-laws[0].max(), (0,))]
    while heap and len(found) <= count:
        negative, ranks = heapq.heappop(heap)
        found.add((0, *(int(ranked[depth, rank]) for depth, rank in enumerate(ranks))))
        depth, rank = len(ranks) - 1, ranks[-1]
        law = laws[depth][ranked[depth]]
        if rank + 1 < len(law):
            heapq.heappush(heap, (negative / law[rank] * law[rank + 1], (*ranks[:-1], rank + 1)))
        if depth + 1 < len(laws):
            heapq.heappush(heap, (negative * laws[depth + 1].max(), (*ranks, 0)))
    return found


def test_keeps_the_contract():
    check_tree_policy(DDTree, max_examples=20)


@pytest.mark.parametrize("budget", [2, 9])
def test_keeps_the_contract_with_other_options(budget):
    check_tree_policy(lambda: DDTree(budget=budget), max_examples=15)


@given(drafter=st.integers(2, 3).flatmap(untied_drafters), budget=st.integers(2, 6))
def test_the_tree_is_the_likeliest_of_all_paths(draft, paths, drafter, budget):
    known = every_path(drafter, budget - 1)
    assert paths(draft(DDTree(budget=budget), drafter).tree) == likeliest(known, budget - 1)


@given(drafter=untied_drafters(6), budget=st.integers(2, 60), depth=st.integers(1, 3))
def test_or_of_those_that_the_drafter_goes_down_to(paths, drafter, budget, depth):
    tree = draft_tree(DDTree(budget=budget), drafter, 0, DraftLimits(6, depth), None).tree
    assert paths(tree) == likeliest(every_path(drafter, depth), budget - 1)


@given(seed=st.integers(0, 2**32 - 1), positions=st.integers(1, 6), spread=st.sampled_from([0.3, 1.0, 4.0]))
def test_for_a_drafter_of_blocks_it_is_the_papers_heap(paths, seed, positions, spread):
    weights = np.exp(spread * np.random.default_rng(seed).standard_normal((positions, 8)))
    laws = weights / weights.sum(axis=1, keepdims=True)
    tree = draft_tree(DDTree(budget=40), Block(laws), 0, DraftLimits(8, 100), None).tree
    assert paths(tree) == papers_tree(laws, 39)


def test_the_tree_of_three_positions_by_hand(paths):
    laws = np.array([[0.6, 0.4], [0.9, 0.1], [0.5, 0.5 - 1e-9]])
    tree = draft_tree(DDTree(budget=6), Block(laws), 0, DraftLimits(2, 100), None).tree
    # .6, .54 = .6 x .9, .4, .36 = .4 x .9, .27 = .54 x .5; the sibling of the last has a little less
    assert paths(tree) == {(0,), (0, 0), (0, 0, 0), (0, 1), (0, 1, 0), (0, 0, 0, 0)}


def test_a_layer_of_which_nothing_is_among_the_likeliest_is_the_last(draft):
    drafted = draft(DDTree(budget=4), TableDrafter([[0.4, 0.35, 0.25]]))
    assert drafted.draft_passes == 0  # a table has no model
    assert drafted.drafted.depths.tolist() == [0, 1, 1, 1]
    assert len(draft(DDTree(budget=4), TableDrafter([[0.99, 0.01]])).tree) == 4


@pytest.mark.parametrize("options", [{"budget": 1}, {"budget": 2.5}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        DDTree(**options)


def test_a_budget_whose_drafts_have_no_room_gets_a_sentence(draft):
    with pytest.raises((ValueError, PluginError), match="draft_budget of 65704 nodes"):
        draft(DDTree(budget=363), TableDrafter([[0.5, 0.5]]))
