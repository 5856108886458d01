"""Sequences that share a pass share its time: of their trees, the nodes that make the most tokens a second."""

from itertools import combinations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import Request, TableTarget, TokenTree
from talon_core.certify.exact import Given
from talon_core.costs import Costs, MeasuredCosts
from talon_core.decoding.decoder import Decoder
from talon_core.drawn import Drawn
from talon_core.engine.allocation import allocated
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter
from talon_core.testing.strategies import laws, table_drafters
from talon_strategies import Match, Talon, TalonSampled
from talon_strategies.rules.hybrid import Hybrid


@attrs.frozen
class Line(Costs):
    """So many seconds a pass, and so many a node."""

    start: float
    node: float

    def verify(self, nodes, context, batch=1):
        return self.start + self.node * nodes

    def draft(self, rows, width):
        return 0.0


@st.composite
def trees(draw):
    """A small tree whose paths become less likely from node to node, some of them by nothing."""
    steps = draw(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.1, 0.7, 1.2, 3.0])), max_size=5))
    parents, path_logp = [-1], [0.0]
    for above, drop in steps:
        parents.append(above % len(parents))
        path_logp.append(path_logp[parents[-1]] - drop)
    return TokenTree(range(len(parents)), parents, path_logp)


def tokens_a_second(kept, costs, besides):
    """Of trees that are verified together."""
    expected = sum(np.exp(tree.path_logp).sum() for tree in kept.values())
    return expected / (costs.verify(sum(map(len, kept.values())), 9, len(kept)) + besides)


def subtrees(tree):
    """Every tree that is left if nodes are taken away."""
    for count in range(len(tree)):
        for nodes in combinations(range(1, len(tree)), count):
            if all(tree.parents[node] in (0, *nodes) for node in nodes):
                yield tree.keep([0, *nodes])


@settings(deadline=None, max_examples=60)
@given(trees(), trees(), st.floats(0.01, 9.0), st.floats(0.0, 2.0), st.floats(0.0, 5.0))
def test_no_other_choice_of_nodes_makes_more_tokens_a_second(one, other, start, node, besides):
    costs = Line(start, node)
    cut = allocated({3: one, 5: other}, [3, 5], costs, 9, besides)
    best = max(
        tokens_a_second({3: first, 5: second}, costs, besides) for first in subtrees(one) for second in subtrees(other)
    )
    assert tokens_a_second(cut, costs, besides) == pytest.approx(best)


CHAIN = TokenTree([7, 1, 2], [-1, 0, 1], np.log([1.0, 0.6, 0.3]))
WIDE = TokenTree([8, 1, 2], [-1, 0, 0], np.log([1.0, 0.5, 0.01]))


def test_a_worked_example():
    # Seconds are 10 and 1 for each node. Roots alone: 2 tokens in 12 s. Nodes of 0.6, 0.5, 0.3 and 0.01 in turn:
    # 2.6 / 13, 3.1 / 14 (the most: 0.221), 3.4 / 15 = 0.227, 3.41 / 16 = 0.213. So three of four are worth it.
    cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], Line(10.0, 1.0), 9, 0.0)
    assert cut[0].tokens.tolist() == [7, 1, 2]
    assert cut[1].tokens.tolist() == [8, 1]
    # With 2 s and 1 s: 2 / 4, 2.6 / 5, 3.1 / 6, ...: one is.
    cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], Line(2.0, 1.0), 9, 0.0)
    assert [cut[slot].tokens.tolist() for slot in (0, 1)] == [[7, 1], [8]]
    # Drafting has taken 100 s, whatever is verified now.
    cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], Line(2.0, 1.0), 9, 100.0)
    assert [len(cut[slot]) for slot in (0, 1)] == [3, 2]


def test_nothing_is_cut_where_nothing_is_known_or_a_node_costs_nothing():
    for costs in (MeasuredCosts(), Line(1.0, 0.0)):
        cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], costs, 9, 0.0)
        assert (cut[0], cut[1]) == (CHAIN, WIDE)


def test_trees_that_must_stay_as_they_are_stay_so_and_their_nodes_count():
    drawn = TokenTree([7, 1], [-1, 0], np.log([1.0, 0.5]), {0: Drawn([1], np.full(4, 0.25))})
    cut = allocated({0: drawn, 1: CHAIN, 2: WIDE}, [0, 2], Line(0.1, 5.0), 9, 0.0)
    assert (cut[0], cut[1]) == (drawn, CHAIN)
    assert len(cut[2]) == 1


VOCAB = 4


@st.composite
def requests(draw):
    ids = np.array(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4)), dtype=np.int64)
    return Request(ids=ids, max_new_tokens=draw(st.integers(1, 12)), sampling=Sampling(draw(st.booleans())), seed=5)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(laws(VOCAB), min_size=VOCAB, max_size=VOCAB),
    table_drafters(VOCAB),
    st.sampled_from([(Match(), Talon(budget=8, top_k=3)), (Hybrid(), TalonSampled(budget=8, top_k=3))]),
    st.lists(requests(), min_size=2, max_size=4),
    st.builds(Line, st.floats(0.01, 1.0), st.floats(0.0, 1.0)),
)
def test_texts_are_those_of_a_sequence_alone_whatever_passes_cost(rows, drafter, parts, together, costs):
    with np.errstate(divide="ignore"):
        target = TableTarget(np.log(np.stack(rows)))
    decoder = Decoder(target, *parts, Given(drafter))
    decoder.engine.costs = costs
    results = decoder.run_all(together)
    for request, result in zip(together, results, strict=True):
        alone = Decoder(target, *parts, Given(drafter)).run_all([request])[0]
        assert result.token_ids == alone.token_ids
        for round_ in result.rounds:
            if round_.drafted is not None:
                assert len(round_.tree) < len(round_.drafted)
                assert not round_.tree.drawn


def engine_rounds(costs, count, allocate=True):
    """The rounds of texts that are decoded together."""
    target = TableTarget(np.zeros((3, 3)))
    decoder = Decoder(target, Match(), Talon(budget=6, top_k=3), Given(TableDrafter([[0.5, 0.3, 0.2]])))
    decoder.engine.costs, decoder.engine.allocate = costs, allocate
    results = decoder.run_all([Request(np.array([0]), 6) for _ in range(count)])
    return [round_ for result in results for round_ in result.rounds]


def test_the_engine_cuts_trees_of_sequences_that_share_a_pass_and_of_no_others():
    dear = Line(0.001, 1.0)
    assert {len(round_.tree) for round_ in engine_rounds(dear, 2)} == {1}
    assert len(engine_rounds(dear, 2)[0].drafted) == 6
    assert max(len(round_.tree) for round_ in engine_rounds(dear, 1)) == 6
    assert max(len(round_.tree) for round_ in engine_rounds(dear, 2, allocate=False)) == 6
    assert max(len(round_.tree) for round_ in engine_rounds(Line(1.0, 0.0), 2)) == 6
