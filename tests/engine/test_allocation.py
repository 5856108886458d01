"""Sequences that share a pass share its time: of their trees, the nodes that make the most tokens a second."""

import re
from itertools import combinations
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import Allocator, Candidates, Engine, Planner, PluginError, Request, TableTarget, TokenTree
from talon_core.certify.exact import Given
from talon_core.costs import Costs, MeasuredCosts
from talon_core.decoding.decoder import Decoder
from talon_core.drawn import Drawn
from talon_core.engine.allocation import SIZES, BestRate, EqualBudgets, SharedBudget, allocated
from talon_core.engine.allocation import _sizes as compared
from talon_core.engine.planning import Known, Text
from talon_core.rounds import Round, Span
from talon_core.sampling import Sampling
from talon_core.table import Memoryless
from talon_core.testing import TableDrafter
from talon_core.testing.strategies import laws, table_drafters
from talon_strategies import Chain, Match, StaticTree, Talon, TalonSampled
from talon_strategies.rules.hybrid import Hybrid
from talon_strategies.rules.typical import Typical


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
    cut = allocated({3: one, 5: other}, [3, 5], BestRate(), costs, 9, besides)
    best = max(
        tokens_a_second({3: first, 5: second}, costs, besides) for first in subtrees(one) for second in subtrees(other)
    )
    assert tokens_a_second(cut, costs, besides) == pytest.approx(best)


CHAIN = TokenTree([7, 1, 2], [-1, 0, 1], np.log([1.0, 0.6, 0.3]))
WIDE = TokenTree([8, 1, 2], [-1, 0, 0], np.log([1.0, 0.5, 0.01]))


def test_a_worked_example():
    # Seconds are 10 and 1 for each node. Roots alone: 2 tokens in 12 s. Nodes of 0.6, 0.5, 0.3 and 0.01 in turn:
    # 2.6 / 13, 3.1 / 14 (the most: 0.221), 3.4 / 15 = 0.227, 3.41 / 16 = 0.213. So three of four are worth it.
    cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], BestRate(), Line(10.0, 1.0), 9, 0.0)
    assert cut[0].tokens.tolist() == [7, 1, 2]
    assert cut[1].tokens.tolist() == [8, 1]
    # With 2 s and 1 s: 2 / 4, 2.6 / 5, 3.1 / 6, ...: one is.
    cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], BestRate(), Line(2.0, 1.0), 9, 0.0)
    assert [cut[slot].tokens.tolist() for slot in (0, 1)] == [[7, 1], [8]]
    # Drafting has taken 100 s, whatever is verified now.
    cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], BestRate(), Line(2.0, 1.0), 9, 100.0)
    assert [len(cut[slot]) for slot in (0, 1)] == [3, 2]


def test_nothing_is_cut_where_nothing_is_known_or_a_node_costs_nothing():
    for costs in (MeasuredCosts(), Line(1.0, 0.0)):
        cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], BestRate(), costs, 9, 0.0)
        assert (cut[0], cut[1]) == (CHAIN, WIDE)


def test_trees_that_must_stay_as_they_are_stay_so_and_their_nodes_count():
    drawn = TokenTree([7, 1], [-1, 0], np.log([1.0, 0.5]), {0: Drawn([1], np.full(4, 0.25))})
    cut = allocated({0: drawn, 1: CHAIN, 2: WIDE}, [0, 2], BestRate(), Line(0.1, 5.0), 9, 0.0)
    assert (cut[0], cut[1]) == (drawn, CHAIN)
    assert len(cut[2]) == 1


def long_tree(seed, nodes=40):
    """Random parents; the root's children come first."""
    rng = np.random.default_rng(seed)
    parents, path_logp = [-1], [0.0]
    for node in range(1, nodes):
        parents.append(int(rng.integers(0, node)))
        path_logp.append(path_logp[parents[-1]] - rng.exponential())
    return TokenTree(range(nodes), parents, path_logp)


@pytest.mark.parametrize("node", [0.0, 0.05, 0.4, 3.0])
def test_of_many_sizes_some_are_compared_and_the_best_of_them_is_taken(node):
    both, costs = {0: long_tree(0), 1: long_tree(1)}, Line(1.0, node)
    cut = allocated(both, [0, 1], BestRate(), costs, 9, 0.0)
    scores = np.sort(np.concatenate([np.exp(tree.path_logp[1:]) for tree in both.values()]))[::-1]
    sizes = compared(len(scores))
    assert (sizes[0], sizes[-1], len(sizes) <= SIZES) == (0, 78, True)
    rates = [(2 + scores[:count].sum()) / costs.verify(2 + count, 9) for count in sizes]
    assert tokens_a_second(cut, costs, 0.0) == pytest.approx(max(rates))


def test_equally_likely_nodes_are_no_reason_to_verify_more():
    wide = TokenTree(range(6), [-1, 0, 0, 0, 0, 0], [0.0, *[-1.0] * 5])

    class Step(Line):
        def verify(self, nodes, context, batch=1):
            return 1.0 if nodes <= 4 else 100.0

    cut = allocated({0: wide, 1: wide}, [0, 1], BestRate(), Step(0, 0), 9, 0.0)
    assert sum(map(len, cut.values())) == 4


def test_a_child_that_rounding_has_lifted_above_its_parent_does_not_go_first():
    lifted = TokenTree([7, 1, 2], [-1, 0, 1], [0.0, -2.0, -1.9])
    for node in (0.0, 0.05, 0.2, 1.0):
        cut = allocated({0: lifted, 1: WIDE}, [0, 1], BestRate(), Line(1.0, node), 9, 0.0)
        assert cut[0].parents.tolist() == [-1, 0, 1][: len(cut[0])]
    above = TokenTree([7, 1], [-1, 0], [0.0, 800.0])  # and none is likelier than sure
    assert len(allocated({0: above, 1: WIDE}, [0], BestRate(), Line(1.0, 0.5), 9, 0.0)[0]) == 2


@pytest.mark.parametrize("answer", [None, float("nan"), float("inf"), -1.0, "1", True, 1j])
def test_costs_that_do_not_know_cut_nothing(answer):
    class Odd(Line):
        def verify(self, nodes, context, batch=1):
            return answer if nodes > 3 else 1.0

    cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], BestRate(), Odd(0, 0), 9, 0.0)
    assert (cut[0], cut[1]) == (CHAIN, WIDE)


def test_passes_that_take_no_time_are_not_divided_by():
    cut = allocated({0: CHAIN, 1: WIDE}, [0, 1], BestRate(), Line(0.0, 0.0), 9, 0.0)
    assert (cut[0], cut[1]) == (CHAIN, WIDE)


def test_a_shared_budget_goes_to_the_likeliest_nodes_of_all_and_an_equal_one_to_each_alike():
    # The nodes are 0.6 and 0.3 of the chain, 0.5 and 0.01 of the other; both roots are verified in any case.
    both = {0: CHAIN, 1: WIDE}
    for nodes, sizes in ((1, [1, 1]), (2, [1, 1]), (3, [2, 1]), (4, [2, 2]), (5, [3, 2]), (6, [3, 3]), (9, [3, 3])):
        cut = allocated(both, [0, 1], SharedBudget(nodes), MeasuredCosts(), 9, 0.0)
        assert [len(cut[slot]) for slot in (0, 1)] == sizes
    for nodes, sizes in ((1, [1, 1]), (3, [1, 1]), (4, [2, 2]), (5, [2, 2]), (6, [3, 3]), (99, [3, 3])):
        cut = allocated(both, [0, 1], EqualBudgets(nodes), MeasuredCosts(), 9, 0.0)
        assert [len(cut[slot]) for slot in (0, 1)] == sizes


@settings(deadline=None, max_examples=60)
@given(trees(), trees(), st.integers(1, 12))
def test_no_other_choice_of_so_many_nodes_is_likelier(one, other, nodes):
    cut = allocated({3: one, 5: other}, [3, 5], SharedBudget(nodes), MeasuredCosts(), 9, 0.0)
    assert sum(map(len, cut.values())) == min(max(nodes, 2), len(one) + len(other))
    best = max(
        np.exp(first.path_logp).sum() + np.exp(second.path_logp).sum()
        for first in subtrees(one)
        for second in subtrees(other)
        if len(first) + len(second) <= max(nodes, 2)
    )
    assert sum(np.exp(tree.path_logp).sum() for tree in cut.values()) == pytest.approx(best)


def test_nodes_that_are_verified_in_any_case_come_out_of_a_shared_budget():
    drawn = TokenTree([7, 1], [-1, 0], np.log([1.0, 0.5]), {0: Drawn([1], np.full(4, 0.25))})
    for allocator in (SharedBudget(4), EqualBudgets(4)):
        cut = allocated({0: drawn, 1: CHAIN}, [0, 1], allocator, MeasuredCosts(), 9, 0.0)
        assert (cut[0], len(cut[1])) == (drawn, 2)


@attrs.frozen
class Says(Allocator):
    """Answers so."""

    answer: Any

    def shares(self, pass_):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "answered None; it must be a mapping by slot"),
        ({7: 1}, "answered for slot 7; it was asked about 0, 1"),
        ({0: 3}, "gave slot 0 3 nodes; it must be a whole number from 0 to 2"),
        ({0: -1}, "gave slot 0 -1 nodes; it must be a whole number from 0 to 2"),
        ({1: True}, "gave slot 1 True nodes"),
        ({1: 0.5}, "gave slot 1 0.5 nodes"),
    ],
)
def test_nonsense_names_the_allocator(answer, said):
    with pytest.raises(PluginError, match=f"allocator .*Says.* {re.escape(said)}"):
        allocated({0: CHAIN, 1: WIDE}, [0, 1], Says(answer), MeasuredCosts(), 9, 0.0)


@attrs.frozen
class Plans(Planner):
    """Answers so before a round, and cuts nothing."""

    answer: Any
    asked: list[Any] = attrs.field(factory=list)

    def layers(self, round_):
        self.asked.append(round_)
        return self.answer(round_) if callable(self.answer) else self.answer

    def shares(self, pass_):
        return {}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "answered None; it must be a mapping by slot"),
        ({7: 1}, "answered for slot 7; it was asked about 0, 1"),
        ({0: -1}, "gave slot 0 -1 layers; it must be a whole number of at least 0"),
        ({1: True}, "gave slot 1 True layers"),
        ({1: 0.5}, "gave slot 1 0.5 layers"),
        (lambda _: {}[3], "raised KeyError in layers: 3"),
    ],
)
def test_a_plan_that_is_nonsense_ends_the_sequences_of_the_step_in_its_name(answer, said):
    engine = Engine(
        TableTarget(np.zeros((3, 3))), Match(), SIX, TableDrafter([[0.5, 0.3, 0.2]]), allocator=Plans(answer)
    )
    both = [engine.submit(Request(np.array([0]), 9)) for _ in range(2)]
    engine.step()
    assert all(re.search(f"allocator .*Plans.* {re.escape(said)}", str(text.error)) for text in both)


def test_no_more_layers_are_drafted_than_planned_and_none_of_a_slot_that_has_0():
    engine = Engine(
        TableTarget(np.zeros((3, 3))), Match(), SIX, TableDrafter([[0.5, 0.3, 0.2]]), allocator=Plans({0: 0, 1: 2})
    )
    texts = [engine.submit(Request(np.array([0]), 9)) for _ in range(3)]
    engine.step()
    assert [int(text.rounds[0].tree.depths.max()) for text in texts] == [0, 2, 3]
    assert [sum(span.part == "policy" for span in text.rounds[0].spans) for text in texts] == [1, 5, 7]


def test_a_planner_is_asked_where_several_share_a_round_and_about_those_whose_text_stays_the_same():
    target, drafter = TableTarget(np.zeros((3, 3))), TableDrafter([[0.5, 0.3, 0.2]])
    plans = Plans({})
    engine = Engine(target, Hybrid(), TalonSampled(budget=4, top_k=2), drafter, allocator=plans)
    first = engine.submit(Request(np.array([0, 1]), 30, Sampling(do_sample=False)))
    engine.step()
    assert not plans.asked
    for do_sample in (True, False):
        engine.submit(Request(np.zeros(9, dtype=np.int64), 30, Sampling(do_sample)))
    engine.step()
    (one,) = plans.asked
    assert one.latest == {0: first.rounds[0], 2: None}
    assert ({*one.texts}, one.batch, one.context) == ({0, 2}, 3, 9)


def test_what_a_planner_notes_of_a_text_ends_with_it_and_of_the_machine_with_the_engine():
    def notes(round_):
        seen.append(([*round_.texts.values()], round_.machine))
        for place in (*round_.texts.values(), round_.machine):
            place["rounds"] = place.get("rounds", 0) + 1
        return {}

    seen = []
    engine = Engine(
        TableTarget(np.eye(3)), Match(), SIX, TableDrafter([[0.5, 0.3, 0.2]]), allocator=Plans(notes), slots=2
    )
    texts = [engine.submit(Request(np.array([0]), length)) for length in (1, 12, 12)]
    while not texts[0].finished:
        engine.step()
    engine.step()
    places, machine = seen[-1]
    assert machine["rounds"] == len(seen) > 1
    assert [place["rounds"] for place in places] == [len(seen), 1]  # the third text has the slot of the first
    engine.forget()
    assert not seen[-1][1]


def test_an_allocator_that_raises_ends_the_sequences_of_the_step_in_its_name():
    class Raises(Allocator):
        def shares(self, pass_):
            raise KeyError("nobody knows")

    engine = Engine(TableTarget(np.zeros((3, 3))), Match(), SIX, TableDrafter([[0.5, 0.3, 0.2]]), allocator=Raises())
    both = [engine.submit(Request(np.array([0]), 9)) for _ in range(2)]
    engine.step()
    for text in both:
        assert "Raises" in str(text.error)
        assert "KeyError in shares: 'nobody knows'" in str(text.error)


@pytest.mark.parametrize("nodes", [0, -1, True, 1.5, "8"])
@pytest.mark.parametrize("kind", [SharedBudget, EqualBudgets])
def test_budgets_that_are_none_are_refused(kind, nodes):
    with pytest.raises(ValueError, match=r"nodes is .*; it must be a whole number of at least 1"):
        kind(nodes)


def test_what_is_no_allocator_is_refused():
    with pytest.raises(ValueError, match="the allocator is True; it must be"):
        Engine(TableTarget(np.zeros((3, 3))), Match(), allocator=True)


VOCAB = 4


@st.composite
def requests(draw):
    ids = np.array(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4)), dtype=np.int64)
    sampling = Sampling(draw(st.booleans()))
    return Request(ids=ids, max_new_tokens=draw(st.integers(1, 12)), sampling=sampling, seed=draw(st.integers(0, 9)))


PARTS = [
    (Match(), Talon(budget=8, top_k=3)),
    (Match(), TalonSampled(budget=8, top_k=3)),
    (Hybrid(), TalonSampled(budget=8, top_k=3)),
    (Typical(), Talon(budget=8, top_k=3)),
]


@attrs.frozen
class Erratic(Planner):
    """Gives each sequence any layers and each tree any share, or no answer."""

    seed: int

    def layers(self, round_):
        rng = np.random.default_rng((self.seed, round_.context))
        return {slot: int(rng.integers(0, 4)) for slot in round_.latest if rng.random() < 0.8}

    def shares(self, pass_):
        rng = np.random.default_rng((self.seed, pass_.context))
        answered = [slot for slot in pass_.path_logp if rng.random() < 0.8]
        return {slot: int(rng.integers(0, len(pass_.path_logp[slot]) + 1)) for slot in answered}


ALLOCATORS = (
    st.just(BestRate())
    | st.builds(SharedBudget, st.integers(1, 20))
    | st.builds(EqualBudgets, st.integers(1, 20))
    | st.builds(Erratic, st.integers(0, 99))
)


@settings(deadline=None, max_examples=120)
@given(
    st.lists(laws(VOCAB), min_size=VOCAB, max_size=VOCAB),
    table_drafters(VOCAB),
    st.sampled_from(PARTS),
    st.lists(requests(), min_size=2, max_size=4),
    st.builds(Line, st.floats(0.01, 1.0), st.floats(0.0, 1.0)),
    ALLOCATORS,
)
def test_texts_are_those_of_a_sequence_alone_whatever_the_allocator_says(
    rows, drafter, parts, together, costs, allocator
):
    with np.errstate(divide="ignore"):
        target = TableTarget(np.log(np.stack(rows)))
    rule, policy = parts
    decoder = Decoder(target, rule, policy, Given(drafter), lossy=rule.lossy)
    decoder.engine.costs, decoder.engine.allocator = costs, allocator
    results = decoder.run_all(together)
    for request, result in zip(together, results, strict=True):
        alone = Decoder(target, rule, policy, Given(drafter), lossy=rule.lossy).run_all([request])[0]
        assert result.token_ids == alone.token_ids
        if rule.lossy or (rule.name == "hybrid" and request.sampling.do_sample):
            assert [len(one.tree) for one in result.rounds] == [len(one.tree) for one in alone.rounds]


class Clock:
    """Seconds that pass only where a target lets them."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class Slow(TableTarget):
    """A pass takes so long on a clock."""

    def __init__(self, clock, costs, logits=None):
        super().__init__(np.zeros((3, 3)) if logits is None else logits)
        self.clock, self.costs = clock, costs

    def verify(self, trees, greedy=()):
        self.clock.seconds += self.costs.verify(sum(map(len, trees.values())), 0)
        return super().verify(trees, greedy)


def rounds(costs, count, do_sample=False, length=40, policy=None, **how):
    """The rounds of texts that are decoded together, step by step, where passes take so long."""
    clock = Clock()
    drafter = TableDrafter([[0.5, 0.3, 0.2]])
    policy = policy if policy is not None else SIX
    engine = Engine(Slow(clock, costs), Match(), policy, drafter, now=clock, **how)
    texts = [engine.submit(Request(np.array([0]), length, Sampling(do_sample), seed=at)) for at in range(count)]
    for _ in range(4 * length):
        engine.step()
    assert all(text.finished for text in texts)
    return [text.rounds for text in texts]


SIX = StaticTree("0;1;0.0;0.1;0.0.0")
DEAR, FREE = Line(0.001, 1.0), Line(1.0, 0.0)


@pytest.mark.parametrize("do_sample", [False, True])
def test_the_engine_finds_out_what_pays_also_where_all_trees_have_one_size(do_sample):
    for own in rounds(DEAR, 3, do_sample):
        assert len(own[0].tree) == 6  # nothing is known yet
        assert own[0].drafted is None
        # a few steps try what smaller and larger passes take
        assert {len(one.tree) for one in own[6:-3]} == {1}
        assert sum(one.drafted is not None for one in own[6:-3]) < len(own) / 6  # and soon hardly anything is drafted
    for own in rounds(FREE, 3, do_sample):
        assert np.mean([len(one.tree) for one in own[3:-5]]) > 4.5


def test_a_sequence_that_is_alone_gets_its_policys_tree_and_so_does_every_one_where_that_is_asked_for():
    for few in (rounds(DEAR, 1), rounds(DEAR, 3, allocator=None)):
        assert all({len(one.tree) for one in own[:-3]} == {6} for own in few)


@attrs.frozen
class Asked(Line):
    """Notes what it is asked."""

    questions: list[tuple[int, int, int]] = attrs.field(factory=list)

    def verify(self, nodes, context, batch=1):
        self.questions.append((nodes, context, batch))
        return super().verify(nodes, context)


def test_costs_are_asked_of_all_nodes_the_longest_text_and_the_sequences_that_take_part():
    costs = Asked(1.0, 0.1)
    engine = Engine(
        TableTarget(np.zeros((3, 3))), Match(), StaticTree("0;1"), TableDrafter([[0.5, 0.3, 0.2]]), costs=costs
    )
    for length in (1, 5):
        engine.submit(Request(np.zeros(length, dtype=np.int64), 9))
    engine.step()
    assert {question[1:] for question in costs.questions} == {(5, 2)}
    assert costs.questions[-5:] == [(nodes, 5, 2) for nodes in range(2, 7)]


class SlowLayers(Memoryless):
    """Sure of some tokens that repeat themselves, and of others not; a layer takes so long for each text."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.sure, self.asked = clock, seconds, 2, []

    def propose(self, frontiers):
        self.clock.seconds += self.seconds * len(frontiers)
        self.asked.append({one.slot for one in frontiers})
        return super().propose(frontiers)

    def offer(self, tree, frontier, width):
        tokens = tree.tokens[frontier][:, None]
        logp = np.log(np.where(tokens < self.sure, 0.9, 0.25))
        return Candidates(frontier, tokens, logp, tree.path_logp[frontier][:, None] + logp)


def easy_and_hard(seconds, count):
    """Texts that repeat their token, 0 to 3; only of the first two the drafter is sure."""
    clock = Clock()
    drafter = SlowLayers(clock, seconds)
    engine = Engine(Slow(clock, Line(1.0, 0.2), np.eye(4) * 50), Match(), Chain(length=3), drafter, now=clock)
    return engine, drafter, [engine.submit(Request(np.array([token]), 400)) for token in range(count)]


def test_texts_that_gain_draft_and_the_others_do_not():
    engine, drafter, texts = easy_and_hard(0.05, 4)
    for _ in range(30):
        engine.step()
    assert all(one >= {0, 1} for one in drafter.asked)
    assert sum(one > {0, 1} for one in drafter.asked[9:]) < len(drafter.asked[9:]) / 2
    assert len(texts[0].token_ids) > 3 * len(texts[2].token_ids)


def test_where_layers_are_dear_nothing_is_drafted_but_now_and_then():
    engine, drafter, texts = easy_and_hard(9.0, 4)
    for _ in range(100):
        engine.step()
    first = len(drafter.asked)
    assert first <= 20
    for _ in range(60):
        engine.step()
    assert 1 <= len(drafter.asked) - first <= 3
    assert not any(text.finished for text in texts[2:])


def test_that_drafting_pays_now_is_noticed():
    engine, drafter, texts = easy_and_hard(0.1, 4)
    drafter.sure = 0
    for _ in range(30):
        engine.step()
    assert all(len(text.token_ids) < 60 for text in texts)
    drafter.sure = 4
    for _ in range(80):
        engine.step()
    assert all(len(text.token_ids) > 150 for text in texts)


@pytest.mark.parametrize(("drafting", "nodes"), [(1.0, 1), (2.0, 2)])
def test_the_time_of_a_shared_layer_of_the_drafter_counts_once(drafting, nodes):
    class SlowDrafter(TableDrafter):
        def propose(self, frontiers):
            clock.seconds += drafting
            return super().propose(frontiers)

    # A second for each node: 2 tokens in 2 s, 2.55 in 3 s, 3.1 in 4 s. A node is worth it if drafting took 1.64 s.
    clock, target = Clock(), TableTarget(np.zeros((3, 3)))
    drafter = SlowDrafter([[0.55, 0.25, 0.2]])
    engine = Engine(target, Match(), Chain(length=1), drafter, costs=Line(0.0, 1.0), now=clock)
    texts = [engine.submit(Request(np.array([0]), 9)) for _ in range(2)]
    engine.step()
    assert [len(text.rounds[0].tree) for text in texts] == [nodes, nodes]


def learnt(*spans):
    """Seconds of a layer, as they are learnt from a round of one text that took this."""
    known, at, made = Known(), 0.0, []
    for part, seconds, *work in spans:
        made.append(Span(part, at, at + seconds, *work))
        at += seconds
    tree = TokenTree([0, 1], [-1, 0], [0.0, -0.5])
    round_ = Round(tree, np.array([0]), np.array([1]), spans=tuple(made))
    known.learn({0: round_}, {0: Text()}, least=0.1)
    return known.layer.at(1)


def test_what_else_the_drafter_and_the_policy_do_in_a_round_is_no_layer():
    grown = [
        *[("policy", 1.0, "width", 0), ("draft", 4.0, "layer", 0), ("policy", 2.0, "grow", 0)],
        *[("policy", 1.0, "width", 1), ("draft", 4.0, "layer", 1), ("policy", 2.0, "grow", 1)],
        ("policy", 2.0, "finish"),
    ]
    beside = [("draft", 50.0, "inquiry"), ("policy", 50.0, "copy"), ("verify", 9.0)]
    told = [("draft", 50.0, "answers"), ("accept", 1.0), ("draft", 50.0, "commit")]
    assert learnt(*grown, *beside, *told) == learnt(*grown, ("verify", 9.0)) > 5.0
    assert learnt(("policy", 1.0, "finish"), *beside, *told) == learnt(("verify", 9.0))  # where nothing was drafted


def test_costs_that_raise_are_named_and_end_the_sequences_of_the_step():
    class Broken(Line):
        def verify(self, nodes, context, batch=1):
            raise KeyError("nobody knows")

    engine = Engine(
        TableTarget(np.zeros((3, 3))), Match(), StaticTree("0;1"), TableDrafter([[0.5, 0.3, 0.2]]), costs=Broken(1, 1)
    )
    texts = [engine.submit(Request(np.array([0]), 9)) for _ in range(2)]
    engine.step()
    assert {str(text.error) for text in texts} == {
        f"costs 'Broken' ({__name__}.{Broken.__qualname__}) raised KeyError in verify: 'nobody knows'"
    }
