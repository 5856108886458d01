import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import Svip
from talon_strategies.entropy import OFFERED
from talon_tests.entropies import WIDE, bound, entropy


@pytest.mark.parametrize("options", [{}, {"length": 1}, {"h": 0.0}, {"h": 2.0, "factor": 9.0}])
def test_keeps_the_contract(options):
    check_tree_policy(lambda: Svip(**options), max_examples=20)


@given(
    drafter=st.integers(2, 16).flatmap(untied_drafters),
    length=st.integers(1, 9),
    h=st.sampled_from([0.0, 0.2, 0.4]),
    factor=st.sampled_from([0.15, 0.5]),
)
def test_the_chain_ends_where_the_entropy_is_high(draft, chain_until, drafter, length, h, factor):
    def ends(law):
        found = np.sqrt(factor * -(law[law > 0] * np.log(law[law > 0])).sum())
        assume(abs(found - h) > 1e-9)
        return found > h

    tree = draft(Svip(length=length, h=h, factor=factor), drafter).tree
    assert tree.tokens.tolist() == chain_until(drafter, length, ends)


@given(
    drafter=st.integers(OFFERED + 2, 90).flatmap(untied_drafters),
    h=st.sampled_from([0.2, 0.4, 0.6]),
    factor=st.sampled_from([0.15, 0.5]),
)
def test_with_more_tokens_than_are_looked_at_a_lower_bound_ends_the_chain_and_no_sooner(
    draft, chain_until, drafter, h, factor
):
    def chain_by(known):
        def ends(law):
            found = np.sqrt(factor * known(law))
            assume(abs(found - h) > 1e-9)
            return found > h

        return chain_until(drafter, 9, ends)

    tokens = draft(Svip(length=9, h=h, factor=factor), drafter).tree.tokens.tolist()
    papers = chain_by(entropy)
    assert tokens == chain_by(bound)
    assert tokens[: len(papers)] == papers


def test_a_chain_may_be_as_long_as_can_be_where_the_papers_ends_at_once(draft):
    assert 0.15 * entropy(WIDE) > 0.3**2 > 0.15 * bound(WIDE)
    assert len(draft(Svip(), TableDrafter([WIDE])).tree) == 1 + 40


@pytest.mark.parametrize(("prob", "drafted"), [(0.71, 1), (0.72, 40)])
def test_the_authors_numbers_end_a_chain_above_an_entropy_of_0_6(draft, prob, drafted):
    # H = 0.602 and 0.593 nats: sqrt(0.15 H) = 0.3005 and 0.2983
    assert len(draft(Svip(), TableDrafter([[prob, 1 - prob]])).tree) == 1 + drafted


@pytest.mark.parametrize("options", [{"h": -0.1}, {"factor": 0}, {"factor": float("inf")}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Svip(**options)
