"""What passes take: nothing known at first, then medians, on a line that rises."""

from itertools import pairwise

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core import Engine, Request, TableTarget
from talon_core.costs import LATEST, OLD, Costs, MeasuredCosts
from talon_core.policy import SequenceInfo
from talon_core.testing import TableDrafter
from talon_strategies import Match, Talon

TIMES = st.floats(1e-6, 10.0)


def verified(*passes, context=100, batch=1):
    """Costs that were told of passes of so many nodes and seconds."""
    costs = MeasuredCosts()
    for nodes, seconds in passes:
        costs.verified(nodes, context, batch, seconds)
    return costs


def drafted(*layers, width=10):
    costs = MeasuredCosts()
    for rows, seconds in layers:
        costs.drafted(rows, width, seconds)
    return costs


def test_nothing_is_known_before_the_first_pass():
    costs = MeasuredCosts()
    assert costs.verify(nodes=1, context=1) is None
    assert costs.draft(rows=1, width=1) is None
    costs.verified(5, 100, 1, 0.5)
    assert costs.draft(rows=1, width=1) is None
    assert drafted((1, 0.5)).verify(nodes=1, context=1) is None


def test_asking_teaches_nothing():
    costs = MeasuredCosts()
    costs.verify(nodes=3, context=100)
    costs.draft(rows=3, width=10)
    assert (costs.verify(nodes=3, context=100), costs.draft(rows=3, width=10)) == (None, None)


def test_the_median_of_a_size_counts_and_not_a_pass_that_something_has_held_up():
    assert verified((4, 0.1), (4, 9.0), (4, 0.2)).verify(4, 100) == 0.2
    assert drafted((4, 0.1), (4, 9.0), (4, 0.2)).draft(4, 10) == 0.2


def test_the_latest_passes_of_a_size_count():
    costs = verified(*[(4, 1.0)] * 1000, *[(4, 3.0)] * (LATEST // 2 + 1))
    assert costs.verify(4, 100) == 3.0
    costs = verified(*[(4, 1.0)] * LATEST, *[(4, 3.0)] * (LATEST // 2 - 1))
    assert costs.verify(4, 100) == 1.0


def test_between_sizes_and_beyond_them_there_is_a_line():
    for costs in (verified((1, 1.0), (5, 3.0), (9, 4.0)).verify, drafted((1, 1.0), (5, 3.0), (9, 4.0)).draft):
        assert [costs(size, 100) for size in (1, 2, 3, 5, 7, 9)] == pytest.approx([1.0, 1.5, 2.0, 3.0, 3.5, 4.0])
        assert [costs(size, 100) for size in (13, 17)] == pytest.approx([5.0, 6.0])  # as the last step rises


def test_below_the_smallest_size_the_straight_line_goes_on_and_of_a_single_size_a_part_takes_a_part():
    assert [verified((8, 2.0), (16, 3.0)).verify(nodes, 100) for nodes in (1, 4)] == pytest.approx([1.125, 1.5])
    assert verified((8, 2.0), (9, 3.0)).verify(1, 100) == 0.0  # no pass takes less
    assert verified((8, 3.0), (9, 2.0)).verify(1, 100) == 2.5
    assert [verified((8, 2.0)).verify(nodes, 100) for nodes in (2, 8, 64)] == [0.5, 2.0, 2.0]  # so that all are tried


def test_more_never_costs_less_whatever_was_measured():
    costs = verified((1, 2.0), (4, 1.0), (8, 3.0))
    assert [costs.verify(nodes, 100) for nodes in (1, 4, 6, 8)] == pytest.approx([1.5, 1.5, 2.25, 3.0])
    costs = verified((1, 2.0), (1, 2.0), (1, 2.0), (4, 1.0), (8, 3.0))  # what was seen oftener counts more
    assert [costs.verify(nodes, 100) for nodes in (1, 4, 8)] == pytest.approx([1.75, 1.75, 3.0])


@given(st.lists(st.tuples(st.integers(1, 40), TIMES), min_size=1, max_size=30))
def test_the_line_rises_through_any_passes_and_stays_within_what_was_seen_between_them(passes):
    costs = verified(*passes)
    line = [costs.verify(nodes, 100) for nodes in range(1, 100)]
    assert all(after >= before - 1e-9 for before, after in pairwise(line))
    largest = max(nodes for nodes, _ in passes)
    seen = [seconds for _, seconds in passes]
    smallest = min(nodes for nodes, _ in passes)
    assert all(min(seen) - 1e-9 <= seconds <= max(seen) + 1e-9 for seconds in line[smallest - 1 : largest])
    assert min(line) >= 0


@given(st.lists(st.tuples(st.integers(1, 40), TIMES), min_size=1, max_size=30), st.randoms())
def test_the_order_of_a_few_passes_does_not_matter(passes, random):
    shuffled = [*passes]
    random.shuffle(shuffled)
    one, other = verified(*passes), verified(*shuffled)
    assert [one.verify(nodes, 9) for nodes in range(1, 60)] == [other.verify(nodes, 9) for nodes in range(1, 60)]


def test_each_context_has_a_line_of_its_own_and_another_takes_the_nearest():
    costs = verified((1, 1.0), context=100)
    costs.verified(1, 4000, 1, 7.0)
    assert [costs.verify(1, context) for context in (1, 64, 127, 300)] == [1.0] * 4
    assert [costs.verify(1, context) for context in (2048, 4095, 10**6)] == [7.0] * 3


def test_each_size_of_a_batch_has_a_line_of_its_own_and_another_takes_the_nearest():
    costs = verified((4, 1.0), batch=1)
    costs.verified(4, 100, 16, 7.0)
    assert [costs.verify(4, 100, batch) for batch in (1, 2)] == [1.0] * 2
    assert [costs.verify(4, 100, batch) for batch in (8, 16, 31, 500)] == [7.0] * 4
    assert costs.verify(4, 100) == 1.0  # alone, where nothing is said


def test_the_batch_is_nearer_than_the_context():
    costs = verified((4, 1.0), context=100, batch=1)
    costs.verified(4, 10**6, 4, 7.0)
    assert costs.verify(4, 10**6, 1) == 1.0


def test_each_width_of_a_draft_has_a_line_of_its_own_and_another_takes_the_nearest():
    costs = drafted((4, 1.0), width=8)
    costs.drafted(4, 1000, 7.0)
    assert [costs.draft(4, width) for width in (1, 8, 15, 40)] == [1.0] * 4
    assert [costs.draft(4, width) for width in (512, 1023, 10**5)] == [7.0] * 3


class Told(MeasuredCosts):
    """Writes down what it is told, without the seconds."""

    def __init__(self):
        super().__init__()
        self.passes, self.layers = [], []

    def verified(self, nodes, context, batch, seconds):
        self.passes.append((nodes, context, batch))
        super().verified(nodes, context, batch, seconds)

    def drafted(self, rows, width, seconds):
        self.layers.append((rows, width))
        super().drafted(rows, width, seconds)


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr("talon_core.engine.engine.MeasuredCosts", Told)


def engine(**how):
    """One in which every look at the clock takes a second."""
    clock = iter(range(10**6))
    target, drafter = TableTarget(np.eye(3) * 5), TableDrafter([[0.5, 0.3, 0.2]])
    return Engine(target, Match(), Talon(budget=4, top_k=2), drafter, now=lambda: float(next(clock)), **how)


def submit(engine, length, count):
    return [engine.submit(Request(np.arange(length) % 3, 3)) for _ in range(count)]


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("batch", [1, 2])
def test_an_engine_tells_every_pass_with_the_nodes_of_all_trees_and_the_longest_text(batch):
    own = engine()
    sequences = [*submit(own, 5, 1), *submit(own, 2, batch - 1)]
    own.step()
    trees = [len(one.rounds[0].tree) for one in sequences]
    assert own.costs.passes == [(sum(trees), 5, batch)]
    assert own.costs.layers[0] == (batch, 3)  # a root each; the vocabulary has three tokens
    assert own.costs.verify(sum(trees), 5, batch) == 1.0
    assert own.costs.draft(batch, 3) == 1.0


@pytest.mark.usefixtures("told")
def test_reading_a_prompt_is_no_pass_over_trees():
    own = engine(prompt_tokens=1)
    (first,) = submit(own, 2, 1)
    own.step()
    submit(own, 9, 1)
    own.step()  # the first goes on, and one token of the other's prompt is read
    assert [batch for *_, batch in own.costs.passes] == [1, 1]
    assert len(own.costs.passes) == len(first.rounds)


def test_an_engine_forgets_what_passes_took_and_measures_anew():
    own = engine()
    submit(own, 5, 1)
    own.step()
    assert None not in (own.costs.verify(1, 5), own.costs.draft(1, 3))
    own.forget()
    assert (own.costs.verify(1, 5), own.costs.draft(1, 3)) == (None, None)
    own.step()
    assert own.costs.verify(1, 5) is not None


class Fixed(Costs):
    def verify(self, nodes, context, batch=1):
        return 1.0 + nodes

    def draft(self, rows, width):
        return 0.5


def test_costs_that_are_given_are_those_that_policies_are_told_and_a_sequence_has_some_by_itself():
    seen = []

    @attrs.frozen
    class Asks(Talon):
        def begin(self, sequence):
            seen.append(sequence.costs)
            return attrs.evolve(self)

    fixed = Fixed()
    own = Engine(TableTarget(np.eye(3)), Match(), Asks(budget=3), TableDrafter([[0.5, 0.3, 0.2]]), costs=fixed)
    (one,) = submit(own, 2, 1)
    while not one.finished:
        own.step()
    assert seen == [fixed]
    assert own.costs is fixed
    assert SequenceInfo(prompt_length=1, max_new_tokens=1, temperature=0.0).costs.verify(1, 1) is None


def test_measured_costs_that_are_handed_in_are_told_of_passes():
    costs = MeasuredCosts()
    engine = Engine(
        TableTarget(np.zeros((3, 3))), Match(), Talon(budget=4), TableDrafter([[0.5, 0.3, 0.2]]), costs=costs
    )
    engine.submit(Request(np.array([1]), 4))
    engine.step()
    assert costs.verify(4, 2) is not None
    assert engine.costs is costs


def test_a_size_of_another_batch_or_context_does_not_hide_what_is_known():
    costs = verified(*[(nodes, 0.01 + 0.001 * nodes) for nodes in range(8, 88, 8)], context=100, batch=8)
    costs.verified(40, 128, 8, 0.1)  # twice as long as there
    assert [costs.verify(nodes, 128, 8) for nodes in (8, 40, 80)] == pytest.approx([0.036, 0.1, 0.18])
    costs.verified(8, 128, 8, 0.09)  # now it has a line of its own
    assert [costs.verify(nodes, 128, 8) for nodes in (8, 24, 40)] == pytest.approx([0.09, 0.095, 0.1])


def test_a_size_that_has_not_come_for_long_is_forgotten():
    costs = verified((64, 9.0), *[(4, 1.0), (8, 2.0)] * (OLD // 2 - 1))
    assert costs.verify(64, 100) == 9.0
    costs.verified(4, 100, 1, 1.0)
    costs.verified(8, 100, 1, 2.0)
    assert costs.verify(64, 100) == pytest.approx(16.0)  # as the last step rises
    assert verified((64, 9.0), *[(4, 1.0)] * 2 * OLD).verify(64, 100) == 9.0  # or there would be one size
