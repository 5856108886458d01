import heapq
import zlib
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from talon_core.choices import Choices, enumerate_outcomes
from talon_core.drawn import without
from talon_core.testing import TableDrafter, check_tree_policy, table_drafters, untied_drafters
from talon_strategies import DySpec, RejectionWithoutReplacement, Traversal


def papers_tree(drafter, budget, depth, choices):
    """Algorithm 1, place after place: for each node's path what was drawn there, in order."""
    drawn = defaultdict(list)
    places = [(-1.0, 0, (0,), drafter.law_after((0,)))]
    nodes = ties = 1
    while places and nodes < budget:
        value, _, path, rest = heapq.heappop(places)
        token = choices.pick(rest)
        drawn[path].append(token)
        nodes += 1
        ties += 2
        heapq.heappush(places, (value * (1 - rest[token]), ties, path, without(rest, token)))
        if len(path) < depth:
            child = (*path, token)
            heapq.heappush(places, (value * rest[token], ties + 1, child, drafter.law_after(child)))
        while places and not (places[0][3] > 0).any():
            heapq.heappop(places)
    return dict(drawn)


def draws(tree):
    """What was drawn where, as `papers_tree` gives it."""
    return {tuple(tree.tokens[tree.path(node)].tolist()): drawn.tokens.tolist() for node, drawn in tree.drawn.items()}


class ByPlace(Choices):
    """Draws by inversion of a number that belongs to the place: the law tells which one it is."""

    def __init__(self, seed):
        self.seed = seed

    def pick(self, law):
        number = zlib.crc32(np.round(law, 9).tobytes(), self.seed) / 2**32
        return int(np.searchsorted(np.cumsum(law), number * law.sum(), side="right"))


def test_keeps_the_contract():
    check_tree_policy(DySpec, max_examples=30)


@pytest.mark.parametrize("options", [{"budget": 2}, {"budget": 7, "depth": 1}, {"budget": 20, "temperature": 0.2}])
def test_keeps_the_contract_with_other_options(options):
    check_tree_policy(lambda: DySpec(**options), max_examples=20)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12).flatmap(untied_drafters), st.integers(2, 40), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_layer_by_layer_it_is_the_tree_of_the_paper(draft, drafter, budget, depth, seed):
    laws = drafter.laws + 1e-9  # the last token of all is left with more than rounding
    drafter = TableDrafter(laws / laws.sum(axis=1, keepdims=True))
    tree = draft(DySpec(budget=budget, depth=depth), drafter, ByPlace(seed)).tree
    assert draws(tree) == papers_tree(drafter, budget, depth, ByPlace(seed))


@settings(max_examples=10, deadline=None)
@given(untied_drafters(3), st.integers(2, 4), st.integers(1, 2))
def test_the_law_of_its_trees_is_that_of_the_papers(draft, drafter, budget, depth):
    def law(experiment):
        found = defaultdict(float)
        for prob, drawn in enumerate_outcomes(experiment):
            found[str(sorted(drawn.items()))] += prob
        return found

    ours = law(lambda choices: draws(draft(DySpec(budget=budget, depth=depth), drafter, choices).tree))
    assert ours == pytest.approx(law(lambda choices: papers_tree(drafter, budget, depth, choices)))


@settings(max_examples=30)
@given(untied_drafters(20), st.integers(2, 64), st.integers(1, 8))
def test_the_budget_is_spent_and_the_depth_kept(draft, drafter, budget, depth):
    drafted = draft(DySpec(budget=budget, depth=depth), drafter)
    assert drafted.tree.depths.max() <= depth
    if depth > 1 or budget <= 20:  # of all 20 tokens the last one's place may be worth nothing, by rounding
        assert len(drafted.tree) == budget
    assert len(drafted.drafted) <= DySpec(budget=budget, depth=depth).draft_budget


def test_a_tree_worked_out_by_hand(draft):
    class Likeliest(Choices):
        def pick(self, law):
            return int(law.argmax())

    drafter = TableDrafter([[0.6, 0.25, 0.15]])
    # places by value: 1 for the first token, .6 below it, .4 beside it, .36 two below it
    full = draft(DySpec(budget=5), drafter, Likeliest())
    assert draws(full.tree) == {(0,): [0, 1], (0, 0): [0], (0, 0, 0): [0]}
    # layer by layer, what could still be among the best: 1, .4 and .15; .6 and .25; .36
    assert full.drafted.depths.tolist() == [0, 1, 1, 1, 2, 2, 3]
    # then .25 below the second token, and .24 = .6 * .4 beside the one of .36; .216 comes too late
    more = draft(DySpec(budget=7), drafter, Likeliest())
    assert draws(more.tree) == {(0,): [0, 1], (0, 0): [0, 1], (0, 0, 0): [0], (0, 1): [0]}


def test_a_sure_drafter_is_followed_down_to_the_depth(draft):
    tree = draft(DySpec(budget=60, depth=7), TableDrafter([[0.0, 1.0, 0.0]])).tree
    assert tree.depths.tolist() == list(range(8))


@settings(deadline=None, max_examples=25)
@given(table_drafters(3), table_drafters(3), st.sampled_from([Traversal(), RejectionWithoutReplacement()]))
@example(TableDrafter([[1 / 3, 1 / 3, 1 / 3]]), TableDrafter([[0.1, 0.6, 0.3]]), Traversal())  # all places tie
@example(TableDrafter([[0.5, 0.5, 0.0]]), TableDrafter([[0.1, 0.6, 0.3]]), Traversal())
@example(TableDrafter([[0.7, 0.2, 0.1]]), TableDrafter([[0.1, 0.6, 0.3]]), RejectionWithoutReplacement())
def test_with_its_rules_the_output_has_the_targets_law(rounds_of, drafter, target, rule):
    assert rounds_of(DySpec(budget=4, depth=2), drafter, target).error(rule) < 1e-12


def test_tokens_are_drawn_at_the_temperature(draft):
    law = np.array([0.5, 0.3, 0.2])
    tree = draft(DySpec(budget=4, temperature=0.5), TableDrafter([law])).tree
    assert tree.drawn[0].law == pytest.approx(law**2 / (law**2).sum())


def test_its_default_rule_is_traversal():
    assert (DySpec.default_rule, DySpec.children) == (Traversal.name, "without-replacement")


@pytest.mark.parametrize("options", [{"budget": 1}, {"depth": 0}, {"temperature": 0}, {"temperature": float("nan")}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        DySpec(**options)
