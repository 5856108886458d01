"""A policy's own time is a part of what a replay predicts, also where it is taken on some of the texts alone."""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core import TokenTree
from talon_core.costs import Costs
from talon_core.forest import Forest
from talon_core.plugins.registry import load_registry
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.methods import parse_method, parse_methods
from talon_core.trace.own_time import to_be_timed, with_own_time
from talon_core.trace.processes import one_by_one
from talon_core.trace.replay import Method, Replay, Totals
from talon_core.trace.run import Answer, dealt, replayed, tried_on
from talon_core.trace.sweep import Line, Sweep, Work
from talon_core.tree import IntArray
from talon_strategies import Match, Talon
from talon_tests.prices import PricesByLength

TOGETHER = (
    *("none", "chain:length=4", "talon:budget=16", "eagle2:budget=12", "svip", "gammatune", "bandit", "caddtree"),
    *("ngram/talon:budget=8", "pld/chain", "hybrid:of=ngram+pld/talon:budget=8"),
)
ONE_BY_ONE = ("talon-cost", "hybrid:of=ngram+pld/talon-cost")  # of so few texts


@attrs.define
class Clock:
    """Stands still but where it is set forward.

    Attributes:
        seconds: what it shows.
    """

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@attrs.frozen
class Slow(Talon):
    """Takes a quarter of a second for each tree, and much longer for many at once."""

    name = "slow"
    clock: Clock = attrs.field(factory=Clock, eq=False)

    def finish(self, tree: TokenTree) -> TokenTree:
        self.clock.seconds += 0.25
        return super().finish(tree)

    def finish_forest(self, forest: Forest) -> IntArray | None:
        self.clock.seconds += 1000.0
        return super().finish_forest(forest)


def tried(trace: Trace, policy: Slow, timed: Sequence[int]) -> list[Totals]:
    """A policy on all texts, where time is taken on some."""
    replay = Replay(trace, PricesByLength(), now=policy.clock)
    names = trace.texts()
    found = tried_on(replay, [Method("slow", policy, Match())], [*trace], [names[place] for place in timed])
    return [totals for ((totals, _),) in found]


@pytest.mark.parametrize("timed", [[0], [2], [0, 3]])
def test_it_is_exact_where_each_round_takes_the_policy_as_long(timed: list[int]) -> None:
    trace = read_trace(SHIPPED)
    all_timed, some = tried(trace, Slow(), range(4)), tried(trace, Slow(), timed)
    assert [place for place, one in enumerate(some) if one.timed_texts] == timed
    assert len({one.target_passes for one in all_timed}) > 1  # else a mean by texts would do
    for one, other in zip(all_timed, with_own_time(some), strict=True):
        assert other.policy_seconds == pytest.approx(0.25 * other.target_passes)
        assert other.predicted_seconds == pytest.approx(one.predicted_seconds)
        assert without_time(other) == without_time(one)


def without_time(totals: Totals) -> Totals:
    return attrs.evolve(totals, predicted_seconds=None, policy_seconds=None, drafter_seconds=None, timed_texts=0)


def test_what_was_taken_stands_as_it_is() -> None:
    taken = [Totals(8, 4, 0, 9, 3, 0, 10.0, 2.0, 1), Totals(9, 6, 0, 9, 3, 0, 20.0, 6.0, 1)]
    assert with_own_time(taken) == taken
    left_out = Totals(8, 5, 0, 9, 3, 0, 7.0)
    assert with_own_time([*taken, left_out])[2] == Totals(8, 5, 0, 9, 3, 0, 11.0, 4.0, 0)
    assert with_own_time([left_out]) == [left_out]


def answer(trace: Trace, specs: Sequence[str], time_all: bool, costs: Costs | None = PricesByLength()) -> Answer:  # noqa: B008
    return replayed(trace, parse_methods(specs, trace, load_registry()), 1, costs=costs, time_all=time_all)


@pytest.mark.parametrize("spec", [*TOGETHER, *ONE_BY_ONE])
def test_all_but_time_is_as_where_it_is_taken_on_every_text(spec: str) -> None:
    trace = read_trace(SHIPPED)
    (some,), (each,) = (answer(trace, [spec], time_all).tried for time_all in (False, True))
    assert without_time(some.totals) == without_time(each.totals)
    assert some.oracle == each.oracle
    assert each.totals.timed_texts == 4
    assert some.totals.timed_texts == (4 if spec in ONE_BY_ONE else 2)


def test_the_answer_says_how_many_texts_were_timed_where_anything_is_predicted() -> None:
    trace = read_trace(SHIPPED)
    talon, cost = answer(trace, ["talon", "talon-cost"], False).as_dict()["methods"]
    assert (talon["timed_texts"], cost["timed_texts"]) == (2, 4)
    assert 0 < talon["policy_seconds"] < talon["predicted_seconds"]
    (plain,) = answer(trace, ["talon"], False, costs=None).as_dict()["methods"]
    assert not plain.keys() & {"policy_seconds", "timed_texts", "predicted_seconds"}


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 30))
def test_texts_are_dealt_out_evenly_and_in_their_order(count: int, workers: int, most: int) -> None:
    shards = dealt(range(count), workers, most)
    assert [text for shard in shards for text in shard] == [*range(count)]
    sizes = [*map(len, shards)]
    assert 0 < min(sizes) <= max(sizes) <= min(most, min(sizes) + 1)
    assert len(shards) % workers == 0 or len(shards) == count


@pytest.mark.parametrize("spec", [*TOGETHER, *ONE_BY_ONE])
def test_it_can_be_left_out_and_then_the_same_question_has_the_same_answer(spec: str) -> None:
    trace, methods = read_trace(SHIPPED), parse_methods([spec], read_trace(SHIPPED), load_registry())
    one, again = (replayed(trace, methods, 1, costs=PricesByLength(), timed=False).tried[0] for _ in range(2))
    assert one.totals == again.totals
    assert (one.totals.policy_seconds, one.totals.timed_texts) == (None, 0)
    assert without_time(one.totals) == without_time(answer(trace, [spec], False).tried[0].totals)


def test_the_texts_stand_among_all_in_different_sets_and_processes() -> None:
    assert to_be_timed(range(96)) == [0, 17, 34, 51, 68, 85]
    assert to_be_timed(range(24)) == [0, 13]
    assert to_be_timed([]) == []
    for count in range(1, 90):
        found = to_be_timed(range(count))
        assert len(found) == len({*found}) == min(count, max(2, -(-count // 16)))
    for others in (2, 3, 6):  # as many sets, in turn, or shards
        assert len({place % others for place in to_be_timed(range(96))}) == others
        assert all({*shard} & {*to_be_timed(range(96))} for shard in dealt(range(96), others))


def text_of(line: Line) -> str:
    return json.dumps(line.as_dict(), ensure_ascii=False)


def lines(sweep: Sweep, folder: Path) -> list[Line]:
    return sweep.run(folder, one_by_one)


def test_a_sweep_works_out_again_what_is_to_be_timed_and_was_not(tmp_path: Path) -> None:
    def sweep(time_all: bool) -> Sweep:
        return Sweep([SHIPPED], ["chain:length=2"], PricesByLength(), "made up", time_all)

    first = lines(sweep(False), tmp_path)
    assert all(one.totals.timed_texts == 1 for one in first)  # a unit has one text of so few
    without = attrs.evolve(first[0], totals=attrs.evolve(first[0].totals, timed_texts=0))
    results = tmp_path / "results.jsonl"
    results.write_text(results.read_text().replace(text_of(first[0]), text_of(without)))
    assert lines(sweep(False), tmp_path)[0] == without
    again = lines(sweep(True), tmp_path)
    assert again[0].totals.timed_texts == 1
    assert again[1:] == first[1:]
    assert lines(sweep(True), tmp_path) == again


def test_a_sweep_that_leaves_the_time_out_takes_no_line_that_has_it(tmp_path: Path) -> None:
    def sweep(timed: bool) -> list[Line]:
        return lines(Sweep([SHIPPED], ["chain:length=2"], PricesByLength(), "made up", timed=timed), tmp_path)

    trace, replay = read_trace(SHIPPED), Replay(read_trace(SHIPPED), PricesByLength(), timed=False)
    method = parse_method("chain:length=2", trace, load_registry())
    timed, untimed = sweep(True), sweep(False)
    assert all(one.totals.policy_seconds is not None for one in timed)
    expected = [Totals.of(replay.text(method, trace.text(one.set, one.prompt))) for one in timed]
    assert [one.totals for one in untimed] == expected
    assert all((one.policy_seconds, one.timed_texts) == (None, 0) for one in expected)
    kept = (tmp_path / "results.jsonl").read_text()
    assert (sweep(True), sweep(False)) == (timed, untimed)  # both are kept
    assert (tmp_path / "results.jsonl").read_text() == kept
    assert not pickle.loads(pickle.dumps(Work(PricesByLength(), timed=False))).timed  # as another machine gets it
