"""Draws whose laws are computed when somebody asks for them."""

import numpy as np
import pytest

from talon_core.drawn import DrawnLater
from talon_core.target import DrawnTests, numbers_of_chain
from talon_core.tree import chain_of

LAWS = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
LOGP = np.log([0.7, 0.5])


@pytest.fixture
def asked():
    return []


@pytest.fixture
def tree(asked):
    def law(node):
        asked.append(node)
        return LAWS[node]

    return chain_of([1, 2, 0], LOGP, DrawnLater([2, 0], LOGP.tolist(), law))


def test_each_node_has_its_draw(tree):
    assert [*tree.drawn] == [0, 1]
    assert [one.tokens.tolist() for one in tree.drawn.values()] == [[2], [0]]
    assert [one.law.tolist() for one in tree.drawn.values()] == LAWS.tolist()
    assert [one.logp.item() for one in tree.drawn.values()] == LOGP.tolist()


@pytest.mark.parametrize("node", [-1, 2, 7])
def test_other_nodes_have_none(tree, asked, node):
    assert tree.drawn.get(node) is None
    assert not asked


def test_a_record_needs_no_laws(tree, asked):
    record = tree.without_laws()
    assert not asked
    assert {node: (one.tokens.tolist(), one.logp.item(), len(one.law)) for node, one in record.drawn.items()} == {
        0: ([2], LOGP[0], 0),
        1: ([0], LOGP[1], 0),
    }
    assert record.path_logp.tolist() == tree.path_logp.tolist()


def test_what_is_kept_and_copied_of_it_has_its_laws(tree):
    assert tree.copied().drawn[1].law.tolist() == LAWS[1].tolist()
    assert tree.keep([0, 1]).drawn[0].law.tolist() == LAWS[0].tolist()


def test_as_many_numbers_are_told_as_tests_and_draws_along_it_may_take(tree):
    assert numbers_of_chain(2) == DrawnTests("in-turn", tree).most_numbers == 5
