"""Schedules on a trace: the engine's own rounds, and time by costs alone."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import attrs
import pytest

from talon_core import Engine, Request, load
from talon_core.costs import Costs
from talon_core.engine.ahead.worker import InLine
from talon_core.plugins.registry import load_registry
from talon_core.trace.machines import Machines
from talon_core.trace.methods import parse_methods
from talon_core.trace.replay import Method, Replay
from talon_core.trace.schedules import cases, promises
from talon_core.trace.simulate import check_schedule, simulated
from talon_drafters import Ngram
from talon_strategies import Branch, Cached, Chain, Match, Pearl

DRAFTER = "draft-model:skip=2"
CACHED = ("cached:budget=1000", "there")


class Unknown(Costs):
    """Of a machine of which nothing is known."""

    def verify(self, nodes: int, context: int, batch: int = 1) -> None:
        return None

    def draft(self, rows: int, width: int) -> None:
        return None


class Priced(Costs):
    """Each part takes time of another order of magnitude; all of it in whole numbers, so that sums are exact."""

    def __init__(self, verify: int = 10**6, draft: int = 10**3) -> None:
        self._verify, self._draft = verify, draft

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return float(self._verify * (100 + nodes + context))

    def draft(self, rows: int, width: int) -> float:
        return float(self._draft * (10 + rows))

    def accept(self, nodes: int) -> float:
        return 3.0 * nodes

    def commit(self, tokens: int) -> float:
        return 5.0 * tokens

    def tell(self, tokens: int) -> float:
        return 7.0 * tokens

    def catch_up(self, tokens: int) -> float:
        return 11.0 * tokens

    def read(self, tokens: int) -> float:
        return 1e9 * tokens


class WithPolicy(Priced):
    """Tells what the policy takes: two seconds of a layer, and 13 of a round besides the walk and the books."""

    def besides(self, drafted: bool) -> float:
        return (self.accept(1) + self.commit(1) + (self.tell(1) if drafted else 0.0)) + 13.0

    def beside_layer(self) -> float:
        return 2.0


def shape(one: Any) -> tuple[Any, ...]:
    return one.tree.tokens.tolist(), one.tree.parents.tolist(), one.path.tolist(), one.tokens.tolist(), one.context


@pytest.mark.parametrize("costs", [Priced(), WithPolicy()])
@pytest.mark.parametrize("spec", ["talon:budget=6", "chain:length=3", "eagle2:budget=5,depth=3", "ngram/chain", "none"])
def test_in_turn_it_is_what_a_replay_predicts(
    tiny: Any, recorded: Callable[..., Any], spec: str, costs: Priced
) -> None:
    trace = recorded(tiny)
    (method,) = parse_methods([spec], trace, load_registry())
    replay = Replay(trace, costs, timed=False)
    for text in trace:
        expected, found = replay.text(method, text), simulated(trace, method, text, None, Machines(costs))
        assert [shape(one) for one in found.rounds] == [shape(one) for one in expected.rounds]
        assert found.stats.seconds == expected.seconds
        assert found.unanswered.prepared == found.stats.hits == found.stats.misses == 0
        assert found.stats.policy_seconds == sum(one.policy_seconds for one in expected.rounds)
        assert (found.stats.policy_seconds > 0) is isinstance(costs, WithPolicy)


def test_a_policy_takes_its_time_in_rounds_that_begin_with_what_was_prepared(
    tiny: Any, recorded: Callable[..., Any]
) -> None:
    trace = recorded(tiny)
    (method,) = parse_methods(["chain:length=2"], trace, load_registry())
    text = next(iter(trace))
    costs = WithPolicy(draft=0)
    found = simulated(trace, method, text, Cached(budget=1000), Machines(costs))
    assert {one.policy_seconds for one in found.rounds if one.hit and len(one.tree) == 3} == {13.0 + 2 * 2.0}
    without = simulated(trace, method, text, Cached(budget=1000), Machines(Priced(draft=0)))
    assert found.stats.seconds == without.stats.seconds + found.stats.policy_seconds


def test_plain_decoding_takes_its_passes(tiny: Any, recorded: Callable[..., Any]) -> None:
    trace, costs = recorded(tiny), Priced()
    (method,) = parse_methods(["none"], trace, load_registry())
    for text in trace:
        found = simulated(trace, method, text, Cached(), Machines(costs))
        passes = sum(costs.verify(1, text.prompt_tokens + done) for done in range(text.positions))
        assert found.stats.seconds == costs.read(text.prompt_tokens) + passes + 8 * text.positions


@pytest.mark.parametrize("schedule", [Cached(budget=1000), Pearl()])
@pytest.mark.parametrize("spec", ["chain:length=2", "talon:budget=4,top_k=2"])
def test_hits_are_those_of_the_models_that_were_recorded(
    tiny: Any, recorded: Callable[..., Any], spec: str, schedule: Any
) -> None:
    trace = recorded(tiny, width=97)
    model, tokenizer = tiny
    decoder = load(model, tokenizer=tokenizer, drafter=DRAFTER, policy=spec, rule="match")
    parts = decoder.engine.parts
    parts.drafter.uses_target = False  # it does, but nothing here runs at the same time
    how: dict[str, Any] = {"schedule": schedule, "worker": InLine, "allocator": None}
    engine = Engine(parts.target, parts.rule, decoder.policy, parts.drafter, decoder.drafter_spec, **how)
    (method,) = parse_methods([spec], trace, load_registry())
    hits = 0
    for text in [*trace][:2]:
        eos = frozenset(trace["target"]["eos"])
        sequence = engine.submit(Request(text.ids[: text.prompt_tokens], text.positions, eos=eos))
        while not sequence.finished:
            engine.step()
        found = simulated(trace, method, text, schedule, Machines(Priced(draft=0)))
        told = [(one.tokens.tolist(), one.hit) for one in found.rounds]
        assert told == [(one.tokens.tolist(), one.hit) for one in sequence.rounds]
        hits += found.stats.hits
    assert hits


def test_a_recorded_drafter_of_tokens_reads_a_prepared_tree_in_one_call(
    tiny: Any, recorded: Callable[..., Any]
) -> None:
    trace = recorded(tiny, width=97)
    (method,) = parse_methods(["chain:length=3"], trace, load_registry())
    assert method.recorded.takes_paths
    text, told = next(iter(trace)), []
    for one in (method, attrs.evolve(method, recorded=None)):
        found = simulated(trace, one, text, Cached(budget=1000), Machines(Priced(draft=0)))
        calls = sum(span.part == "prepare" for round_ in found.rounds for span in round_.spans)
        told.append((calls, [(round_.tokens.tolist(), round_.hit) for round_ in found.rounds]))
    assert told[0][1] == told[1][1]
    assert told[0][0] < told[1][0]


class ReadsFast(Priced):
    """The target reads a prompt before the drafter has."""

    def read(self, tokens: int) -> float:
        return 10.0 * tokens


@pytest.mark.parametrize("schedule", [None, Cached(budget=4)])
def test_a_drafter_that_catches_up_reads_the_prompt_beside_the_target_where_it_has_a_machine_of_its_own(
    tiny: Any, recorded: Callable[..., Any], schedule: Any
) -> None:
    trace = recorded(tiny)
    (method,) = parse_methods(["chain:length=2"], trace, load_registry())
    text = next(iter(trace))
    waits = attrs.evolve(method, recorded=None)
    for costs in (Priced(), ReadsFast()):
        for machines, apart in ((Machines(costs), False), (Machines(costs, costs, transfer=1.0), True)):
            one, other = (simulated(trace, each, text, schedule, machines).stats.seconds for each in (method, waits))
            both = min(costs.catch_up(text.prompt_tokens - 1), costs.read(text.prompt_tokens) - machines.way)
            assert other - one == (both if apart else 0)


def test_an_instant_source_drafts_where_nothing_was_prepared(tiny: Any, recorded: Callable[..., Any]) -> None:
    """It takes no time by the costs: the target waits for no layer of the drafter."""
    trace = recorded(tiny)
    (method,) = parse_methods(["chain:length=3"], trace, load_registry())
    schedule = Cached(budget=1, instant=Ngram(least=0.0))
    for text in trace:
        found = simulated(trace, method, text, schedule, Machines(Priced()))
        emitted = [token for one in found.rounds for token in one.tokens.tolist()]
        assert emitted == text.ids[text.prompt_tokens :].tolist()
        missed = [one for one in found.rounds if one.hit is False]
        assert any(len(one.tree) > 1 for one in missed)
        layers = [span for one in missed for span in one.spans if span.part == "draft" and span.work == "layer"]
        assert sum(span.seconds for span in layers) == 0


@pytest.mark.parametrize("schedule", [Cached(budget=6), Branch(budget=3), Pearl()])
def test_the_same_question_has_the_same_answer(tiny: Any, recorded: Callable[..., Any], schedule: Any) -> None:
    trace = recorded(tiny)
    (method,) = parse_methods(["talon:budget=6"], trace, load_registry())
    text = next(iter(trace))
    once, again = (simulated(trace, method, text, schedule, Machines(Priced(), shared=1.3)) for _ in range(2))
    assert once.stats == again.stats
    assert [one.spans for one in once.rounds] == [one.spans for one in again.rounds]
    assert once.stats.hits + once.stats.misses > 0


def test_speeds_are_to_the_method_in_turn(tiny: Any, recorded: Callable[..., Any]) -> None:
    trace = recorded(tiny)
    methods = parse_methods(["chain:length=2", "none"], trace, load_registry())
    wanted = cases(methods, {"cached:budget=1000": Cached(budget=1000)}, Machines(Priced(draft=10**6), Priced(draft=1)))
    places = [(one.method.name, one.name, one.place) for one in wanted]
    assert places[:3] == [("chain:length=2", *rest) for rest in (("sync", "here"), ("sync", "there"), CACHED)]
    assert places[3:] == [("none", "sync", "here")]
    answer = promises(trace, wanted, limit=1)
    here, there, ahead, plain = answer.found
    assert (here.speedup, plain.speedup) == (1.0, 1.0)
    assert 1.0 < there.speedup == here.stats.seconds / there.stats.seconds
    assert (answer.best, answer.texts) == (ahead, 2)
    assert 0 < ahead.hits <= 1
    assert here.hits is None
    assert answer.said.startswith("chain:length=2 with the schedule cached:budget=1000 would be 1.")
    assert here.target_works + here.target_waits <= 1
    told = answer.as_dict()["cases"][2]
    assert (told["schedule"], told["drafter"], told["stats"]["hits"]) == (*CACHED, ahead.stats.hits)


def test_where_nothing_is_gained_that_is_said(tiny: Any, recorded: Callable[..., Any]) -> None:
    trace = recorded(tiny)
    methods = parse_methods(["chain:length=2"], trace, load_registry())
    wanted = cases(methods, {"cached": Cached()}, Machines(Priced(draft=10**5), shared=2.5))
    said = promises(trace, wanted, limit=1).said
    assert said.startswith("No schedule pays: the best, chain:length=2 with the schedule cached, would be 0.")
    assert said.endswith("beside a drafter that works it takes 2.50 times as long for a pass.")


def test_where_nothing_should_be_drafted_that_is_said(tiny: Any, recorded: Callable[..., Any]) -> None:
    trace = recorded(tiny)

    class Dear(Priced):
        """Each node takes as long as all else of a pass."""

        def verify(self, nodes: int, context: int, batch: int = 1) -> float:
            return 1e6 * nodes

    methods = parse_methods(["talon:budget=8,top_k=8,mu=0.001"], trace, load_registry())
    answer = promises(trace, cases(methods, {"pearl": Pearl()}, Machines(Dear(draft=10**4))), limit=1)
    assert [one.case.method.name for one in answer.found] == [*["talon:budget=8,top_k=8,mu=0.001"] * 2, "none"]
    assert "with the schedule pearl would be " in answer.said
    assert answer.said.endswith(" times as fast as that.")


def test_costs_that_are_not_known_are_asked_for() -> None:
    method = Method("a method", Chain(length=1), Match())
    with pytest.raises(ValueError, match="does not tell what passes of the target take"):
        cases([method], {}, Machines(Unknown()))
    with pytest.raises(ValueError, match="does not tell what the drafter takes"):
        cases([method], {}, Machines(Priced(), Unknown()))
    asked_here = attrs.evolve(method, drafter=Ngram())
    assert [one.place for one in cases([asked_here], {}, Machines(Priced(), Unknown()))] == ["here", "there", "here"]


def test_a_rule_that_tests_probabilities_is_refused(small: Any, recorded: Callable[..., Any]) -> None:
    trace = recorded(small, laws=True, temperature=1.0, depth=3)
    (method,) = parse_methods(["sampled-chain:length=2/block"], trace, load_registry())
    with pytest.raises(ValueError, match="tests the target's probabilities, and what is simulated follows the text"):
        check_schedule(Replay(trace), method)


def test_what_the_trace_does_not_tell_is_counted(tiny: Any, recorded: Callable[..., Any]) -> None:
    trace = recorded(tiny, depth=2)
    (method,) = parse_methods(["chain:length=4"], trace, load_registry())
    for text in trace:
        expected = Replay(trace, Priced()).text(method, text)
        assert simulated(trace, method, text, None, Machines(Priced())).unanswered == (expected.outside, 0)
        ahead = simulated(trace, method, text, Cached(budget=4), Machines(Priced()))
        deep = [len(before.path) for before, one in pairwise(ahead.rounds) if one.hit]
        assert {*deep} <= {1}  # below deeper outcomes nothing is known
