"""What passes take: nothing known at first, then medians, on a line that rises."""

from itertools import pairwise

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import Engine, Request, TableTarget
from talon_core.costs import Costs, Line, MeasuredCosts, UnknownCosts
from talon_core.policy import SequenceInfo
from talon_core.profiles.store import find_profile
from talon_core.rounds import Span
from talon_core.testing import TableDrafter
from talon_core.trace.machines import Apart
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


def test_catching_up_is_known_from_what_was_read_and_costs_more_the_more_there_is():
    costs = MeasuredCosts()
    assert costs.catch_up(100) is None
    costs.drafted(100, 1, 5.0)
    assert costs.catch_up(100) is None
    for _ in range(9):
        costs.caught_up(1000, 0.5)
    before = costs.snapshot()
    assert costs.catch_up(1000) == pytest.approx(0.5, rel=0.05)
    assert 0.02 < costs.catch_up(100) < 0.1 < costs.catch_up(500) < 0.4
    assert costs.draft(100, 1) == drafted((100, 5.0), width=1).draft(100, 1)
    costs.caught_up(1000, 9.0)
    assert before.catch_up(1000) == pytest.approx(0.5, rel=0.05)
    costs.forget()
    assert costs.catch_up(100) is None


def test_asking_teaches_nothing():
    costs = MeasuredCosts()
    costs.verify(nodes=3, context=100)
    costs.draft(rows=3, width=10)
    assert (costs.verify(nodes=3, context=100), costs.draft(rows=3, width=10)) == (None, None)


def test_a_pass_that_something_has_held_up_hardly_counts():
    for costs in (verified(*[(4, 0.1)] * 9, (4, 9.0)).verify, drafted(*[(4, 0.1)] * 9, (4, 9.0)).draft):
        assert costs(4, 100) == pytest.approx(0.1, rel=0.05)
    assert verified((4, 9.0), *[(4, 0.1)] * 9).verify(4, 100) == pytest.approx(0.1, rel=0.1)  # the first one, too


@pytest.mark.parametrize("now", [0.2, 3.0, 100.0])
def test_a_machine_that_has_become_another_is_noticed_within_a_few_passes(now):
    costs = verified(*[(4, 1.0), (8, 1.5)] * 500, *[(4, now)] * 4)
    assert costs.verify(4, 100) == pytest.approx(now, rel=0.05)
    assert costs.verify(8, 100) == pytest.approx(1.5 * now, rel=0.1)


SIZES = (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    "seconds",
    [(17.7, 17.8, 19.2, 25.8, 35.1, 53.3), (1, 2, 4, 8, 16, 32), (5, 5, 5, 5, 5, 5), (36, 37, 86, 106, 161, 189)],
)
def test_what_was_measured_often_is_what_a_size_costs(seconds):
    passes = [*zip(SIZES, seconds, strict=True)]
    for costs in (verified(*passes * 20).verify, drafted(*passes * 20).draft):
        assert [costs(size, 100) for size in SIZES] == pytest.approx(seconds, rel=0.05)
        for size, low, high in zip(SIZES[1:-1], seconds[1:-1], seconds[2:], strict=True):
            assert low * 0.95 <= costs(size * 3 // 2, 100) <= high * 1.05


@pytest.mark.parametrize("size", [1, 6, 100])
def test_a_size_that_was_never_measured_is_neither_free_nor_out_of_reach(size):
    costs = verified(*[(size, 1.0)] * 9)
    assert 1.05 < costs.verify(2 * size, 100) < 1.35
    assert costs.verify(2 * size, 100) < costs.verify(4 * size, 100) < costs.verify(16 * size, 100) < 12.0
    if size > 1:
        assert 0.5 < costs.verify(size // 2, 100) < 0.95


@pytest.mark.parametrize("seconds", [(1.0, 1.3), (1.0, 1.0)])
def test_sizes_far_beyond_what_was_measured_are_taken_to_cost_as_many_times_more(seconds):
    """Else the first tree that seems to pay is as large as it may be, and takes twenty times as long as expected."""
    for costs in (verified(*[*zip((1, 2), seconds, strict=True)] * 40).verify, drafted((1, 1.0), (2, 1.0)).draft):
        assert costs(4, 100) < 2.0
        assert costs(64, 100) == pytest.approx(16 * costs(4, 100))
        assert costs(6, 100) == pytest.approx(1.5 * costs(4, 100))


@pytest.mark.parametrize("curve", [lambda nodes: 10.0, lambda nodes: 10.0 + 2.0 * nodes])
def test_a_policy_comes_to_know_large_trees_in_steps(curve):
    """None takes far longer than expected, and in a few rounds it is known whether they are free."""
    costs, taken = verified((1, curve(1))), []
    for _ in range(12):
        told = np.array([costs.verify(nodes, 100) for nodes in range(1, 65)])
        nodes = int((np.arange(1, 65) * 3.0 - told).argmax()) + 1  # each is worth more than it takes
        taken.append((nodes, curve(nodes) / told[nodes - 1]))
        costs.verified(nodes, 100, 1, curve(nodes))
    assert max(ratio for _, ratio in taken) < 2.0
    assert 64 in [nodes for nodes, _ in taken[:7]]


def test_many_passes_of_one_size_do_not_push_out_what_was_seen_of_others():
    """As where plain decoding goes on for long, and nobody asks; and they are soon looked at."""
    costs = verified((1, 1.0), (2, 1.5), (4, 2.0), *[(1, 1.0)] * 1000)
    looked = verified((1, 1.0), (2, 1.5), (4, 2.0), *[(1, 1.0)] * 16)
    assert costs.verify(4, 100) == looked.verify(4, 100)
    assert costs.verify(4, 100) == pytest.approx(2.0, rel=0.15)
    other = verified(*[(1, 9.0)] * 16, *[(1, 1.0)] * 16)
    assert other.verify(1, 100) == verified(*[(1, 1.0)] * 16).verify(1, 100)  # the latest count


def test_what_was_measured_of_few_texts_does_not_make_many_of_them_dear():
    """Each has a root, which need not be tried in steps."""
    costs = verified(*[(1, 1.0)] * 20)
    assert costs.verify(32, 100, batch=32) < 8.0
    assert costs.verify(64, 100, batch=32) < 12.0
    assert costs.verify(128, 100, batch=32) == pytest.approx(2 * costs.verify(64, 100, batch=32))


def test_copies_and_neighbours_know_how_far_was_measured():
    costs = verified((1, 1.0), (4, 2.0), *[(1, 1.0)] * 12)
    copy = costs.snapshot()
    for one in (costs, copy):
        for _ in range(12):
            one.verified(1, 100, 1, 1.1)
    assert [copy.verify(size, 100) for size in (1, 8, 64)] == [costs.verify(size, 100) for size in (1, 8, 64)]
    neighbour = Line.beside(costs._verified[1, 7])
    assert neighbour.at(64) / neighbour.at(8) == pytest.approx(8.0)
    read = MeasuredCosts()
    read.caught_up(16, 0.1)
    assert read.catch_up(1024) < 0.8 * 64 * read.catch_up(16)
    assert read.snapshot().catch_up(1024) == read.catch_up(1024)


def test_a_rise_goes_on_where_nothing_was_measured():
    free, dear = verified(*[(1, 1.0), (4, 1.0)] * 20), verified(*[(1, 1.0), (4, 4.0)] * 20)
    assert free.verify(8, 100) / free.verify(4, 100) < 1.25
    assert dear.verify(8, 100) / dear.verify(4, 100) > 1.5
    assert dear.verify(2**20, 100) > dear.verify(2**15, 100) > 100.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.just(0.0) | TIMES), min_size=1, max_size=30))
def test_more_never_costs_less_whatever_was_measured(passes):
    costs = verified(*passes)
    line = [costs.verify(nodes, 100) for nodes in (*range(1, 100), 5000, 65536)]
    assert all(after >= before > 0 for before, after in pairwise(line))
    assert np.isfinite(line).all()


def test_sizes_that_were_measured_while_the_machine_was_slow_are_not_taken_to_be_dear():
    quiet, slow = [(2, 1.0), (4, 1.4), (2, 1.0), (8, 2.0)], [(2, 2.0), (4, 2.8), (2, 2.0), (4, 2.8)]
    costs = verified(*quiet * 20, *slow * 20)  # the size 8 only before it became slow
    assert [costs.verify(size, 100) for size in (2, 4, 8)] == pytest.approx([2.0, 2.8, 4.0], rel=0.06)


def test_each_context_has_a_line_of_its_own_and_another_takes_the_nearest():
    costs = verified(*[(1, 1.0)] * 9, context=100)
    for _ in range(9):
        costs.verified(1, 4000, 1, 7.0)
    assert [costs.verify(1, context) for context in (1, 64, 127, 300)] == pytest.approx([1.0] * 4, rel=0.05)
    assert [costs.verify(1, context) for context in (2048, 4095, 10**6)] == pytest.approx([7.0] * 3, rel=0.05)


def test_each_size_of_a_batch_has_a_line_of_its_own_and_another_takes_the_nearest():
    costs = verified(*[(4, 1.0)] * 9, batch=1)
    for _ in range(9):
        costs.verified(4, 100, 16, 7.0)
    assert [costs.verify(4, 100, batch) for batch in (1, 2)] == pytest.approx([1.0] * 2, rel=0.05)
    assert [costs.verify(4, 100, batch) for batch in (8, 16, 31, 500)] == pytest.approx([7.0] * 4, rel=0.05)
    assert costs.verify(4, 100) == costs.verify(4, 100, 1)  # alone, where nothing is said


def test_the_batch_is_nearer_than_the_context():
    costs = verified(*[(4, 1.0)] * 9, context=100, batch=1)
    costs.verified(4, 10**6, 4, 7.0)
    assert costs.verify(4, 10**6, 1) == pytest.approx(1.0, rel=0.05)


def test_each_width_of_a_draft_has_a_line_of_its_own_and_another_takes_the_nearest():
    costs = drafted(*[(4, 1.0)] * 9, width=8)
    for _ in range(9):
        costs.drafted(4, 1000, 7.0)
    assert [costs.draft(4, width) for width in (1, 8, 15, 40)] == pytest.approx([1.0] * 4, rel=0.05)
    assert [costs.draft(4, width) for width in (512, 1023, 10**5)] == pytest.approx([7.0] * 3, rel=0.05)


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
    assert own.costs.verify(sum(trees), 5, batch) == pytest.approx(1.0, rel=0.15)
    assert own.costs.draft(batch, 3) == pytest.approx(1.0, rel=0.15)


class Prepares(TableTarget):
    """Says of every other pass that something was made in it for later ones."""

    passes = 0

    def verify(self, trees, *given, **options):
        self.passes += 1
        return attrs.evolve(super().verify(trees, *given, **options), prepared=self.passes % 2 == 1)


@pytest.mark.usefixtures("told")
def test_a_pass_in_which_something_was_prepared_does_not_tell_what_a_pass_takes():
    target, drafter = Prepares(np.eye(3) * 5), TableDrafter([[0.5, 0.3, 0.2]])
    own = Engine(target, Match(), Talon(budget=4, top_k=2), drafter)
    sequence = own.submit(Request(np.arange(5) % 3, 9))
    own.step()
    assert own.costs.passes == []
    assert own.costs.verify(4, 5) is None
    own.step()
    assert own.costs.passes == [(len(sequence.rounds[1].tree), sequence.rounds[1].context, 1)]


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


def test_costs_that_may_change_are_not_taken_to_be_fixed_where_nobody_says_so():
    class Changes(Costs):
        asked = 0

        def verify(self, nodes, context, batch=1):
            self.asked += 1
            return 1.0 + nodes * self.asked

        def draft(self, rows, width):
            return 0.5

    assert not Changes().fixed
    assert not MeasuredCosts().fixed


def test_costs_of_which_all_is_known_are_fixed():
    for costs in (UnknownCosts(), find_profile("h200-llama-3.1-8b")):
        assert costs.fixed
        assert Apart(costs, costs).fixed
        assert not Apart(costs, MeasuredCosts()).fixed


def test_trees_of_several_sizes_take_what_each_takes():
    class KnownToThree(Fixed):
        def verify(self, nodes, context, batch=1):
            return None if nodes > 3 else nodes + context / batch

    assert KnownToThree().verify_each(np.array([1, 3, 2]), 10, 4).tolist() == [3.5, 5.5, 4.5]
    assert KnownToThree().verify_each(np.array([1, 4, 2]), 10) is None
    assert MeasuredCosts().verify_each(np.array([1]), 10) is None


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


def test_a_line_begins_with_what_is_known_of_the_nearest_one():
    costs = verified(*[(nodes, 0.01 + 0.001 * nodes) for nodes in range(8, 88, 8)] * 4, context=100, batch=8)
    costs.verified(40, 128, 8, 0.1)  # twice as long as there
    assert [costs.verify(nodes, 128, 8) for nodes in (8, 40, 80)] == pytest.approx([0.036, 0.1, 0.18], rel=0.2)
    for _ in range(9):
        costs.verified(8, 128, 8, 0.09)
        costs.verified(40, 128, 8, 0.1)
    assert [costs.verify(nodes, 128, 8) for nodes in (8, 24, 40)] == pytest.approx([0.09, 0.095, 0.1], rel=0.1)


def busy(rng, rounds):
    """How much longer a pass takes, round by round, where others compute for a while, and now and then for a moment."""
    slow, factors = 1.0, []
    for _ in range(rounds):
        if rng.random() < (1 / 60 if slow > 1 else 1 / 100):
            slow = 1.0 if slow > 1 else rng.uniform(1.3, 2.2)
        held_up = rng.uniform(1.5, 4.0) if rng.random() < 0.06 else 1.0
        factors.append(slow * held_up * np.exp(rng.normal(0.0, 0.15 if slow > 1 else 0.06)))
    return factors


def paths(rng, rounds):
    """Path probabilities of the likeliest nodes, falling, for each round of a text that is now and then harder."""
    mood, found = 0.0, []
    for _ in range(rounds):
        mood = 0.95 * mood + 0.3 * rng.normal()
        sure = 1 / (1 + np.exp(-0.5 - mood - 0.7 * rng.normal()))
        beside = np.array([1.0, *(1 - sure) * np.array([0.4, 0.2, 0.1, 0.05])])
        found.append(np.sort(np.outer(sure ** np.arange(1, 13), beside), axis=None)[::-1])
    return found


CURVES = {  # milliseconds of a pass: two CPUs, one that computes as much as it reads, and tiles of 16 rows
    "docs/performance.md": lambda nodes: np.interp(nodes, [*SIZES, 64], [17.7, 17.8, 19.2, 25.8, 35.1, 53.3, 90.0]),
    "bound by memory": lambda nodes: np.interp(nodes, [1, 8, 16, 32, 64], [40, 44, 52, 80, 150]),
    "bound by arithmetic": lambda nodes: 10 + 4.0 * nodes,
    "tiles": lambda nodes: 20 + 4.0 * ((nodes - 1) // 16),
}


@pytest.mark.parametrize("curve", CURVES)
def test_trees_by_the_prices_of_a_busy_machine_are_nearly_as_good_as_by_the_true_ones(curve):
    """The tokens a second at the true prices; with medians of each size and isotonic regression they were 6% fewer."""
    nodes, layers, rounds = np.arange(1, 62), 3.75, 300
    true, ratios = CURVES[curve](nodes), []
    for seed in range(3):
        rng, costs, sums = np.random.default_rng(seed), MeasuredCosts(), np.zeros((2, 2))
        for probs, factor in zip(paths(rng, rounds), busy(rng, rounds), strict=True):
            expected = 1.0 + np.append(0.0, np.cumsum(probs))
            told = [costs.verify(int(count), 100) for count in nodes]
            prices = true if None in told else np.array(told) + costs.draft(1, 10)
            for at, seconds in enumerate((true + layers, prices)):
                best = (expected / seconds).argmax()
                sums[at] += expected[best], true[best] + layers
            costs.verified(int(nodes[best]), 100, 1, true[best] * factor)
            costs.drafted(1, 10, layers * factor)
        ratios.append(sums[1, 0] / sums[1, 1] * sums[0, 1] / sums[0, 0])
    assert np.mean(ratios) > 0.975


def spans(*parts):
    """One after the other, as `(part, seconds, work, layer)`, from second 5 on."""
    at, made = 5.0, []
    for part, seconds, *work in parts:
        made.append(Span(part, at, at + seconds, *work))
        at += seconds
    return made


WIDTH, LAYER, GROW = (("policy", 1.0, "width", 0), ("draft", 20.0, "layer", 0), ("policy", 2.0, "grow", 0))
FINISH = ("policy", 4.0, "finish")


def test_besides_is_what_is_neither_a_layer_nor_the_targets_pass():
    costs = MeasuredCosts()
    assert (costs.besides(True), costs.besides(False), costs.beside_layer()) == (None, None, None)
    costs.went(spans(WIDTH, LAYER, GROW, FINISH, ("verify", 30.0), ("accept", 0.5)))
    assert costs.besides(True) == pytest.approx(4.5)
    assert costs.beside_layer() == pytest.approx(3.0)
    assert costs.besides(False) is None
    costs.went(spans(("policy", 0.125, "finish"), ("verify", 30.0), ("commit", 0.25), ("draft", 1, "commit")))
    assert costs.besides(False) == pytest.approx(1.375)
    costs.went(spans(("policy", 9.0, "finish")))  # it has failed before anything was verified
    assert costs.besides(False) == pytest.approx(1.375)
    costs.forget()
    assert (costs.besides(True), costs.beside_layer()) == (None, None)


def test_rounds_that_were_run_ahead_are_told_of_by_themselves():
    costs = MeasuredCosts()
    assert costs.chain(1) is None
    more = ("policy", 5.0, "width", 1), ("draft", 20.0, "layer", 1), ("policy", 2.0, "grow", 1)
    one_layer, two_layers = 4.5, 5.5  # besides passes and layers; a layer takes 23, and 25 in the mean over two
    costs.went(spans(WIDTH, LAYER, GROW, FINISH, ("verify", 30.0), ("accept", one_layer - 4.0)), ahead=True)
    assert [costs.chain(layers) for layers in (1, 2)] == pytest.approx([27.5, 50.5])
    assert (costs.besides(True), costs.beside_layer()) == (None, None)
    costs.went(spans(WIDTH, LAYER, GROW, *more, FINISH, ("verify", 9.0), ("accept", two_layers - 4.0)), ahead=True)
    assert costs.chain(3) == pytest.approx((one_layer + two_layers) / 2 + 3 * (23.0 + 25.0) / 2)
    costs.went(spans(WIDTH, LAYER, GROW, FINISH, ("verify", 30.0), ("accept", 90.0)))
    assert costs.chain(3) == pytest.approx(77.0)
    assert costs.besides(True) == pytest.approx(94.0)
    kept = costs.snapshot()
    costs.forget()
    assert costs.chain(3) is None
    assert kept.chain(3) == pytest.approx(77.0)


def test_what_is_no_span_of_a_round_is_a_part_of_it():
    costs = MeasuredCosts()
    for seconds in (40.0, 41.0, 45.0):
        costs.went(spans(("verify", 30.0), ("accept", 4.0)), seconds=seconds)
    assert costs.besides(False) == pytest.approx(11.0)  # of few the median
    costs.went(spans(WIDTH, LAYER, GROW, FINISH, ("verify", 30.0), ("accept", 4.0)), seconds=80.0)
    whole = sum(span.seconds for span in spans(WIDTH, LAYER, GROW, FINISH, ("verify", 30.0), ("accept", 4.0)))
    beside = costs.besides(True)
    costs.forget()
    costs.went(spans(WIDTH, LAYER, GROW, FINISH, ("verify", 30.0), ("accept", 4.0)))
    assert beside == pytest.approx(costs.besides(True) + 80.0 - whole)


def test_a_round_in_a_dozen_counts_and_a_hiccup_does_not():
    costs = MeasuredCosts()
    for number in range(32):
        seconds = {0: 900.0, 5: 500.0}.get(number, 42.0 if number % 12 == 3 else 31.0)
        costs.went(spans(("verify", 30.0)), seconds=seconds)
    # without the two longest: 27 rounds of a second and three of twelve
    assert costs.besides(False) == pytest.approx((27 * 1.0 + 3 * 12.0) / 30)


def test_what_a_drafter_asks_and_is_told_beside_the_tree_is_no_layer():
    costs, asks = MeasuredCosts(), ("draft", 8.0, "inquiry")
    costs.went(spans(WIDTH, LAYER, GROW, FINISH, asks, ("verify", 30.0)))
    assert costs.beside_layer() == pytest.approx(3.0)
    assert costs.besides(True) == pytest.approx(4.0)
    costs.forget()
    told = ("draft", 0.25, "answers"), ("accept", 0.5), ("draft", 1.0, "commit")
    costs.went(spans(("policy", 4.0, "finish"), asks, ("verify", 30.0), *told))
    assert costs.beside_layer() is None
    assert costs.besides(False) == pytest.approx(5.75)


def test_what_a_drafter_reads_before_it_drafts_is_neither_a_layer_nor_what_lies_besides():
    costs, reads = MeasuredCosts(), ("draft", 50.0, "reading")
    costs.went(spans(WIDTH, reads, LAYER, GROW, FINISH, ("verify", 30.0)))
    assert costs.beside_layer() == pytest.approx(3.0)
    assert costs.besides(True) == pytest.approx(4.0)


def test_what_a_drafter_tells_of_its_best_guess_lies_not_besides():
    costs, tells = MeasuredCosts(), ("draft", 50.0, "guess")
    costs.went(spans(tells, ("verify", 30.0), ("accept", 0.5)))
    costs.went(spans(tells, WIDTH, LAYER, GROW, FINISH, ("verify", 30.0)))
    assert costs.besides(False) == pytest.approx(0.5)
    assert costs.beside_layer() == pytest.approx(3.0)
    assert costs.besides(True) == pytest.approx(4.0)


def test_copies_of_the_policy_are_no_choice_among_the_candidates_of_a_layer():
    """As in a round that drafts ahead and was offered nothing: the policy finishes behind the layer, and is copied."""
    costs = MeasuredCosts()
    costs.went(spans(WIDTH, LAYER, FINISH, ("policy", 8.0, "copy"), ("verify", 30.0)))
    assert costs.beside_layer() == pytest.approx(1.0)
    assert costs.besides(True) == pytest.approx(12.0)


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=6), TIMES, st.booleans())
def test_what_rounds_take_besides_is_divided_between_their_layers_and_the_rest(layers, finish, offered):
    """`offered`: whether there were candidates in the last layer; the policy does not choose among none."""
    costs, parts = MeasuredCosts(), []
    for layer, (width, draft, grow) in enumerate(layers):
        parts += [("policy", width, "width", layer), ("draft", draft, "layer", layer), ("policy", grow, "grow", layer)]
    parts = parts if offered else parts[:-1]
    costs.went(spans(*parts, ("policy", finish, "finish"), ("verify", 30.0), ("commit", 0.25)))
    own = sum(seconds for part, seconds, *_ in parts if part == "policy")
    assert costs.beside_layer() == pytest.approx(own / len(layers), abs=1e-9)
    assert costs.besides(True) == pytest.approx(finish + 0.25, abs=1e-9)
    copied = costs.snapshot()
    costs.went(spans(WIDTH, LAYER, ("policy", 9.0, "grow", 0), ("policy", 9.0, "finish"), ("verify", 1.0)))
    assert copied.beside_layer() == pytest.approx(own / len(layers), abs=1e-9)


def test_a_round_that_was_held_up_does_not_change_what_rounds_take_besides():
    costs = MeasuredCosts()
    for seconds in [1.0, 1.0, 50.0, 1.0, 1.0]:
        costs.went(spans(("verify", 30.0), ("commit", seconds)))
    assert costs.besides(False) == 1.0


def test_besides_is_the_sum_of_what_given_costs_know_and_a_drafter_that_is_not_asked_hears_nothing():
    class Some(Fixed):
        def accept(self, nodes):
            return 0.25 * nodes

        def tell(self, tokens):
            return 0.5 * tokens

    assert [Some().besides(drafted) for drafted in (True, False)] == [0.75, 0.25]
    assert Fixed().besides(True) is None


@pytest.mark.parametrize("batch", [1, 2])
def test_an_engine_tells_what_rounds_take_of_sequences_that_are_alone(batch):
    own = engine()
    submit(own, 2, batch)
    own.step()
    assert (own.costs.besides(True) is not None) == (batch == 1)
