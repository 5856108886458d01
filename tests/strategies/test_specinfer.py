import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import enumerate_outcomes
from talon_core.testing import TableDrafter, check_tree_policy, table_drafters, untied_drafters
from talon_strategies import RecursiveRejection, SpecInfer

WIDTHS = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def test_keeps_the_contract():
    check_tree_policy(SpecInfer, max_examples=40)


@pytest.mark.parametrize("options", [{"widths": "1"}, {"widths": "2;2;2"}, {"widths": "1;5", "temperature": 0.1}])
def test_keeps_the_contract_with_other_options(options):
    check_tree_policy(lambda: SpecInfer(**options), max_examples=20)


@settings(max_examples=50)
@given(untied_drafters(6), WIDTHS, st.sampled_from([0.5, 1.0, 2.0]))
def test_each_node_of_a_layer_has_as_many_draws_as_the_layers_width(draft, drafter, widths, temperature):
    policy = SpecInfer(widths=widths, temperature=temperature)
    tree = draft(policy, drafter).tree
    assert tree.depths.max() == len(widths)
    assert len(tree) <= policy.budget == 1 + sum(np.prod(widths[:depth]) for depth in range(1, len(widths) + 1))
    for node, depth in enumerate(tree.depths.tolist()):
        assert (node in tree.drawn) == (depth < len(widths))
        if node in tree.drawn:
            drawn = tree.drawn[node]
            assert (len(drawn.tokens), drawn.replacement) == (widths[depth], True)
            law = drafter.law_after(tree.tokens[tree.path(node)].tolist()) ** (1 / temperature)
            assert drawn.law == pytest.approx(law / law.sum())


@settings(max_examples=50)
@given(table_drafters(3), WIDTHS)
def test_a_token_that_is_drawn_twice_under_one_node_is_one_node(draft, drafter, widths):
    tree = draft(SpecInfer(widths=widths), drafter).tree
    for node, drawn in tree.drawn.items():
        children = tree.tokens[tree.parents == node].tolist()
        assert children == list(dict.fromkeys(drawn.tokens.tolist()))


def test_what_is_sure_is_drawn_again_and_again_and_is_a_chain(draft):
    tree = draft(SpecInfer(widths=(3, 2, 1)), TableDrafter([[0.0, 1.0]])).tree
    assert tree.parents.tolist() == [-1, 0, 1, 2]
    assert [drawn.tokens.tolist() for drawn in tree.drawn.values()] == [[1, 1, 1], [1, 1], [1]]


def test_draws_are_independent(draft):
    law = np.array([0.5, 0.3, 0.2])
    for prob, tree in enumerate_outcomes(lambda c: draft(SpecInfer(widths=(3,)), TableDrafter([law]), c).tree):
        assert prob == pytest.approx(np.prod(law[tree.drawn[0].tokens]))


@settings(deadline=None, max_examples=25)
@given(table_drafters(3), table_drafters(3), st.sampled_from([(3,), (2, 1), (1, 2)]), st.sampled_from([0.4, 1.0]))
def test_with_its_rule_the_output_has_the_targets_law(rounds_of, drafter, target, widths, temperature):
    policy = SpecInfer(widths=widths, temperature=temperature)
    assert policy.default_rule == RecursiveRejection.name
    assert rounds_of(policy, drafter, target).error(RecursiveRejection()) < 1e-12


def test_text_and_numbers_say_the_same():
    assert SpecInfer(widths="3;2") == SpecInfer(widths=[3, 2]) == SpecInfer(widths=(np.int64(3), 2))
    assert (SpecInfer().widths, SpecInfer().budget) == ((3, 1, 1, 1), 13)


@pytest.mark.parametrize("widths", ["", "3;;1", "3;one", "2.5"])
def test_text_that_is_no_list_of_numbers_is_refused_in_words(widths):
    with pytest.raises(ValueError, match=rf"^widths is '{widths}'; it must be numbers with ; between them"):
        SpecInfer(widths=widths)


@pytest.mark.parametrize("widths", [(), "3;0", "-1", [2.5], ["3"], [None], 3, None])
def test_what_are_no_widths_is_refused_in_words(widths):
    with pytest.raises(ValueError, match=r"^widths is .*; it must be one or more whole numbers, each at least 1"):
        SpecInfer(widths=widths)


@pytest.mark.parametrize("temperature", [0, -1, float("nan")])
def test_a_temperature_out_of_range_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        SpecInfer(temperature=temperature)
