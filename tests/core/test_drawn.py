"""Drawn children: what a record of draws may say, and what is left of it when a tree is extended or pruned."""

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.choices import enumerate_outcomes
from talon_core.drawn import KINDS, Drawn, without
from talon_core.plugins.registry import load_registry
from talon_core.testing import laws
from talon_core.tree import TokenTree

LAW = [0.1, 0.2, 0.3, 0.4]


def tree_of(drawn, node=0, under=((0, 5),), more=()):
    """A root, `under` as (parent, token), the drawn children of a node, and `more`."""
    tokens = [9, *(token for _, token in under), *drawn.nodes.tolist(), *(token for _, token in more)]
    parents = [-1, *(parent for parent, _ in under), *[node] * len(drawn.nodes), *(parent for parent, _ in more)]
    return TokenTree(tokens, parents, -np.arange(float(len(tokens))), {node: drawn})


def test_draws_are_kept_in_their_order():
    drawn = Drawn([3, 0, 2], LAW)
    assert (drawn.tokens.tolist(), drawn.law.tolist(), drawn.replacement) == ([3, 0, 2], LAW, False)
    assert drawn.logp.tolist() == np.log([0.4, 0.1, 0.3]).tolist()
    assert drawn.nodes.tolist() == [3, 0, 2]
    assert drawn.firsts.tolist() == [0, 1, 2]


def test_a_token_that_was_drawn_again_is_one_node_at_its_first_draw():
    drawn = Drawn([3, 3, 0, 3, 2, 0], LAW, replacement=True)
    assert drawn.nodes.tolist() == [3, 0, 2]
    assert drawn.firsts.tolist() == [0, 2, 4]


def test_the_first_draws_alone():
    drawn = Drawn([3, 3, 0], LAW, replacement=True, logp=[-1.0, -2.0, -3.0])
    first = drawn.first(2)
    assert (first.tokens.tolist(), first.logp.tolist(), first.replacement) == ([3, 3], [-1.0, -2.0], True)
    assert np.shares_memory(first.law, drawn.law)


def test_nothing_of_it_can_be_changed():
    law = np.array(LAW)
    drawn = Drawn([1], law)
    law[:] = 0
    assert drawn.law.tolist() == LAW
    for array in (drawn.tokens, drawn.law, drawn.logp):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        drawn.tokens = [2]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tokens": []}, r"at least one token; got shapes \(0,\) and \(4,\)"),
        ({"tokens": [[0, 1]]}, r"one axis each.*got shapes \(1, 2\) and \(4,\)"),
        ({"tokens": [0], "law": [LAW]}, r"got shapes \(1,\) and \(1, 4\)"),
        ({"tokens": [4]}, r"drawn tokens \[4\] are not all among the law's 4 tokens"),
        ({"tokens": [1, -1]}, r"drawn tokens \[1, -1\] are not all among"),
        ({"tokens": [0, 1], "law": [1.0, 0.0]}, r"token 1 cannot be drawn: its law gives it nothing"),
        ({"tokens": [0], "law": [np.nan, 1.0]}, r"token 0 cannot be drawn"),
        ({"tokens": [2, 1, 2]}, r"tokens \[2, 1, 2\] were drawn without replacement, and one of them twice"),
        ({"tokens": [2, 1], "logp": [-1.0]}, r"logp has shape \(1,\) for 2 drawn tokens"),
    ],
)
def test_what_cannot_have_been_drawn_is_refused_in_words(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Drawn(**{"law": LAW, **fields})


@given(laws(5), st.lists(st.integers(0, 4), max_size=5, unique=True))
def test_without_some_tokens_a_law_keeps_the_proportions_of_the_others(law, tokens):
    before = law.copy()
    rest = without(law, tokens)
    assert (law == before).all()
    assert not rest[tokens].any()
    others = np.delete(np.arange(5), tokens)
    assert rest[others] * law[others].sum() == pytest.approx(law[others])
    assert rest.sum() == pytest.approx(1 if law[others].any() else 0)


def candidates(law):
    empty = np.empty((1, 0))
    return Candidates(np.zeros(1, np.int64), empty.astype(np.int64), empty, empty, law=lambda row: law)


@settings(max_examples=50)
@given(laws(4), st.integers(1, 5), st.booleans())
def test_draws_are_of_the_law_one_after_the_other(law, count, replacement):
    total = 0.0
    for prob, drawn in enumerate_outcomes(
        lambda choices: candidates(law).draw(choices, 0, count, replacement=replacement)
    ):
        expected, rest = 1.0, law
        for token in drawn.tokens.tolist():
            expected *= rest[token]
            rest = rest if replacement else without(rest, token)
        assert prob == pytest.approx(expected)
        assert len(drawn.tokens) == (count if replacement else min(count, np.count_nonzero(law)))
        assert (drawn.law.tolist(), drawn.replacement) == (law.tolist(), replacement)
        total += prob
    assert total == pytest.approx(1)


def test_a_law_of_ones_own_and_scores_can_be_given():
    (only,) = enumerate_outcomes(
        lambda choices: candidates(np.array(LAW)).draw(choices, 0, law=np.eye(4)[2], logp=np.array([-7.0]))
    )
    assert (only[1].tokens.tolist(), only[1].logp.tolist()) == ([2], [-7.0])


@pytest.mark.parametrize("node", [0, 1])
def test_a_tree_holds_a_node_for_each_drawn_token(node):
    drawn = Drawn([3, 3, 1], LAW, replacement=True)
    tree = tree_of(drawn, node)
    assert tree.drawn == {node: drawn}
    assert tree.parents.tolist() == [-1, 0, node, node]


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (1, "token 3 was drawn under node 1, and no child of that node holds it"),
        (7, "token 3 was drawn under node 7, and no child of that node holds it"),
        (-1, "token 3 was drawn under node -1, and no child of that node holds it"),
    ],
)
def test_draws_without_nodes_are_refused_in_words(node, sentence):
    with pytest.raises(ValueError, match=sentence):
        TokenTree([9, 3, 5], [-1, 0, 0], [0, 0, 0], {node: Drawn([3], LAW)})


def test_of_several_draws_none_may_lack_its_node():
    with pytest.raises(ValueError, match="token 2 was drawn under node 0"):
        TokenTree([9, 3, 5], [-1, 0, 0], [0, 0, 0], {0: Drawn([3, 2], LAW)})


def test_extending_a_tree_keeps_the_draws_and_adds_the_new_ones():
    first, second = Drawn([3, 1], LAW), Drawn([2], LAW)
    tree = tree_of(first, under=())
    plain = tree.extend([7], [2], [-9.0])
    assert plain.drawn == {0: first}
    drawn = tree.extend([2], [1], [-9.0], {1: second})
    assert drawn.drawn == {0: first, 1: second}
    assert tree.drawn == {0: first}
    with pytest.raises(ValueError, match="token 2 was drawn under node 1"):
        tree.extend([7], [1], [-9.0], {1: second})


#            9                  0
#       5        6            1   2
#     3 1 0                 3 4 5        drawn in this order under node 1, without replacement
#     7                     6
THREE = Drawn([3, 1, 0], LAW)
PRUNED = TokenTree([9, 5, 6, 3, 1, 0, 7], [-1, 0, 0, 1, 1, 1, 3], -np.arange(7.0), {1: THREE})


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ([0, 1, 2, 3, 4, 5, 6], [3, 1, 0]),
        ([0, 1, 3, 4, 5], [3, 1, 0]),
        ([0, 1, 2, 3, 4], [3, 1]),
        ([0, 1, 3, 6], [3]),
        ([0, 1, 2], None),
        ([0, 2], None),
    ],
)
def test_the_first_draws_can_be_kept(nodes, left):
    kept = PRUNED.keep(nodes)
    assert kept.tokens.tolist() == PRUNED.tokens[nodes].tolist()
    assert {node: drawn.tokens.tolist() for node, drawn in kept.drawn.items()} == ({1: left} if left else {})
    assert all(np.shares_memory(drawn.law, THREE.law) for drawn in kept.drawn.values())


@pytest.mark.parametrize("nodes", [[0, 1, 4], [0, 1, 3, 5], [0, 1, 2, 5, 4], [0, 1, 5]])
def test_a_later_draw_is_not_kept_without_an_earlier_one(nodes):
    with pytest.raises(
        ValueError, match=r"of the tokens \[3, 1, 0\], drawn in this order under node 1, a later one is"
    ):
        PRUNED.keep(nodes)


def test_of_draws_with_replacement_all_or_none_are_kept():
    drawn = Drawn([3, 3, 1, 3, 0, 1], LAW, replacement=True, logp=-np.arange(6.0))
    tree = TokenTree([9, 3, 1, 0], [-1, 0, 0, 0], np.zeros(4), {0: drawn})
    assert tree.keep([0, 1, 2, 3]).drawn[0] is drawn
    assert tree.keep([0]).drawn == {}
    for nodes in ([0, 1], [0, 1, 2]):
        with pytest.raises(ValueError, match=r"drawn with replacement under node 0, .* keep all or none"):
            tree.keep(nodes)


def test_fixed_children_beside_a_drawn_one_can_be_dropped():
    drawn = Drawn([2], [0.0, 0.0, 1.0, 0.0])
    tree = TokenTree([9, 0, 1, 2], [-1, 0, 0, 0], [0, -1, -2, -3], {0: drawn})
    assert tree.keep([0, 2, 3]).drawn == {0: drawn}
    assert tree.keep([0, 1, 2]).drawn == {}


def test_draws_are_renumbered_with_their_nodes():
    above, below = Drawn([3, 1], LAW), Drawn([0, 2], LAW)
    tree = TokenTree([9, 6, 5, 3, 1, 0, 2], [-1, 0, 0, 2, 2, 4, 4], np.zeros(7), {2: above, 4: below})
    kept = tree.keep([0, 2, 3, 4, 5])
    assert kept.tokens.tolist() == [9, 5, 3, 1, 0]
    assert kept.drawn[1] is above
    assert kept.drawn[3].tokens.tolist() == [0]
    assert len(kept.drawn) == 2


def test_kinds_say_what_trees_may_hold_and_every_policy_and_rule_names_one():
    assert {name: (kind.fixed, kind.most, kind.replacement) for name, kind in KINDS.items()} == {
        "deterministic": (True, 0, None),
        "sampled": (True, 0, None),
        "iid": (False, None, True),
        "without-replacement": (False, None, False),
        "hybrid": (True, 1, None),
        "sampled-chain": (False, 1, None),
    }
    registry = load_registry()
    policies, rules = (
        [entry.cls for entry in registry.entries[kind].values() if entry.plugin.startswith("talon-core:")]
        for kind in ("tree policy", "rule")
    )
    exact_for = {rule.name: rule.exact_for for rule in rules}
    for policy in policies:
        assert policy.children in KINDS
        assert {policy.children, "any"} & exact_for[policy.default_rule]
    for rule in rules:
        assert rule.exact_for <= {*KINDS, "any"}
        assert bool(rule.exact_for) != rule.lossy


def test_the_record_of_a_round_keeps_what_was_drawn_and_forgets_the_laws():
    drawn = Drawn([2, 0], LAW, logp=[-1.0, -2.0])
    tree = TokenTree([9, 2, 0], [-1, 0, 0], np.zeros(3), {0: drawn})
    record = tree.without_laws().drawn[0]
    assert record.tokens.tolist() == [2, 0]
    assert record.logp.tolist() == [-1.0, -2.0]
    assert not len(record.law)
    assert len(drawn.law)
    fixed = TokenTree([9, 2], [-1, 0], np.zeros(2))
    assert fixed.without_laws() is fixed


def test_a_draw_without_a_law_is_refused_where_its_score_would_come_from_it():
    with pytest.raises(ValueError, match="are not all among the law's 0 tokens"):
        Drawn([2], [])
