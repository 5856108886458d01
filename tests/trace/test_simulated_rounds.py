"""What is simulated is what the engine does: the same rounds and hits, and no time that nothing took."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import Costs, Drafter, DrafterSpec, Engine, Request, Schedule, TableTarget, TreePolicy
from talon_core.engine.ahead.preparing import Preparing
from talon_core.engine.ahead.worker import InLine, Stopped, Worker
from talon_core.rounds import Span
from talon_core.trace.clocked import Clock
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import Trace
from talon_core.trace.machines import Machines
from talon_core.trace.replay import Method
from talon_core.trace.simulate import Simulated, simulated
from talon_strategies import Branch, Cached, Chain, Eagle2, Match, Pearl, Talon
from talon_tests.whole_texts import WholeTexts

VOCAB, NEW = 4, 16
PROMPT = np.array([1, 2, 3])
LAWS = np.random.default_rng(1).dirichlet(np.ones(VOCAB), size=11)
SCHEDULES = [Cached(budget=1000), Cached(budget=2), Cached(budget=3, allocation="geometric"), Branch(budget=3), Pearl()]
POLICIES = [Talon(budget=6, top_k=2), Chain(length=3), Eagle2(budget=5)]
MANIFEST: dict[str, Any] = {
    "target": {"vocab_size": VOCAB, "eos": []},
    "drafter": {"name": "whole-texts"},
    "settings": {"depth": 12, "max_new_tokens": NEW, "seed": 0, "temperature": 0.0},
    "environment": {},
}


@attrs.frozen
class Tabled(DrafterSpec):
    name = "whole-texts"
    reads_texts = True

    def open(self, target: Any) -> WholeTexts:
        return WholeTexts(LAWS)


@attrs.frozen
class Whole(Costs):
    """Whole numbers of seconds, so that sums are exact."""

    of_verify: int = 0
    of_draft: int = 0
    of_rest: int = 0

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return float(self.of_verify)

    def draft(self, rows: int, width: int) -> float:
        return float(self.of_draft)

    def accept(self, nodes: int) -> float:
        return float(self.of_rest)

    def commit(self, tokens: int) -> float:
        return float(self.of_rest)

    def tell(self, tokens: int) -> float:
        return float(self.of_rest)

    def read(self, tokens: int) -> float:
        return float(tokens)

    def know(self, drafter: str) -> bool:
        return True


def decoded(policy: TreePolicy, schedule: Schedule | None, calls: int | None = None) -> Any:
    """The real engine, with a target that is no text: so many calls of the drafter are made beside each pass."""
    target = TableTarget(np.random.default_rng(0).normal(size=(VOCAB,) * 3) * 2)
    worker = partial(InLine, calls=lambda: calls)
    how: dict[str, Any] = {"schedule": schedule, "worker": worker, "allocator": None, "costs": Whole()}
    engine = Engine(target, Match(), policy, WholeTexts(LAWS), **how)
    sequence = engine.submit(Request(PROMPT, NEW, seed=0))
    while not sequence.finished:
        engine.step()
    return sequence


TEXT = TextTrace("tables", 0, np.array([*PROMPT, *decoded(POLICIES[0], None).token_ids]), len(PROMPT), "length", 0.0)


def simulation(policy: TreePolicy, schedule: Schedule | None, machines: Machines) -> Simulated:
    method = Method("a method", policy, Match(), Tabled())
    return simulated(Trace(Path("nowhere"), MANIFEST), method, TEXT, schedule, machines)


def shape(one: Any) -> tuple[Any, ...]:
    tree = one.tree.tokens.tolist(), one.tree.parents.tolist()
    return tree, one.path.tolist(), one.tokens.tolist(), one.hit, one.draft_passes


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("calls", [0, 1, 2, 4, None])
def test_rounds_and_hits_are_those_of_the_engine_whose_drafter_was_as_far(policy, schedule, calls):
    costs = Whole(of_verify=6 * (calls or 0) if calls is not None else 6, of_draft=0 if calls is None else 6)
    expected = decoded(policy, schedule, calls)
    found = simulation(policy, schedule, Machines(costs))
    assert [shape(one) for one in found.rounds] == [shape(one) for one in expected.rounds]
    assert found.stats.hits == expected.result(None, True).stats.hits


def of(found: Simulated, *parts: str) -> list[Any]:
    return [span for one in found.rounds for span in one.spans if span.part in parts]


@settings(max_examples=60, deadline=None)
@given(
    schedule=st.sampled_from([None, *SCHEDULES]),
    policy=st.sampled_from(POLICIES),
    costs=st.builds(Whole, of_verify=st.integers(0, 9), of_draft=st.integers(0, 9), of_rest=st.integers(0, 2)),
    there=st.none() | st.builds(Whole, of_draft=st.integers(0, 9), of_rest=st.integers(0, 2)),
    transfer=st.integers(0, 3),
    shared=st.sampled_from([1.0, 1.5, 2.0]),
)
def test_nothing_is_faster_than_what_it_is_made_of(schedule, policy, costs, there, transfer, shared):
    machines = Machines(costs, there, float(transfer), shared)
    found = simulation(policy, schedule, machines)
    rounds, stats = found.rounds, found.stats
    assert [token for one in rounds for token in one.tokens.tolist()] == TEXT.ids[len(PROMPT) :].tolist()
    assert costs.of_verify * len(rounds) <= stats.verify_seconds <= shared * costs.of_verify * len(rounds) + 1e-9
    rest = stats.prefill_seconds + stats.verify_seconds + stats.draft_seconds
    rest += stats.accept_seconds + stats.commit_seconds
    assert stats.seconds == pytest.approx(rest)  # the target works, or waits for somebody, and nothing comes between
    assert stats.wait_seconds <= stats.draft_seconds
    calls = sorted((span.start, span.end) for span in of(found, "prepare"))
    passes = sorted((span.start, span.end) for span in of(found, "verify"))
    for spans in (calls, passes):  # nobody does two things at a time
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(spans))
    for one in rounds:
        begun = [span.start for span in one.spans if span.part == "prepare"]
        pass_of = next(span for span in one.spans if span.part == "verify")
        assert all(start >= pass_of.start + machines.way - 1e-9 for start in begun)
    if schedule is None:
        assert not of(found, "prepare", "wait")
    for one in rounds:
        drafter = [(span.work, span.layer) for span in one.spans if span.part == "draft"]
        drafted = [("layer", layer) for layer in range(len(one.layer_seconds))]
        assert drafter == [*drafted, *[("commit", None)] * (one is not rounds[-1])]
        calls = [(span.work, span.layer) for span in one.spans if span.part == "prepare"]
        first = [("reading", None)] * (("reading", None) in calls)
        assert calls == [*first, *(("layer", layer) for layer in range(len(calls) - len(first)))]


@settings(max_examples=20, deadline=None)
@given(schedule=st.sampled_from(SCHEDULES), policy=st.sampled_from(POLICIES), verify=st.integers(1, 9))
def test_a_drafter_that_takes_nothing_is_never_waited_for(schedule, policy, verify):
    found = simulation(policy, schedule, Machines(Whole(of_verify=verify)))
    assert found.stats.seconds == found.stats.prefill_seconds + verify * len(found.rounds)


def test_a_hit_saves_the_drafting_and_a_call_that_runs_is_waited_for():
    everything, policy = SCHEDULES[0], Chain(length=1)
    quick = simulation(policy, everything, Machines(Whole(of_verify=10, of_draft=3)))
    assert all(one.hit for one in quick.rounds[1:-1])
    # the first tree waits for its layer; later ones are there, and the calls beside a pass of 10 end before it does
    assert quick.stats.draft_seconds == 3 + quick.stats.wait_seconds
    slow = simulation(policy, everything, Machines(Whole(of_verify=10, of_draft=7)))
    waits = [span.seconds for span in of(slow, "wait")]
    assert {*waits} <= {0.0, 4.0}  # two calls of 7 beside a pass of 10
    assert 4.0 in waits


def test_what_lies_between_two_machines_is_waited_for():
    policy, there = Chain(length=1), Whole(of_draft=3)
    near = simulation(policy, None, Machines(Whole(of_verify=10), there))
    far = simulation(policy, None, Machines(Whole(of_verify=10), there, transfer=5.0))
    layers = len(of(near, "draft")) - (len(near.rounds) - 1)  # one of each round but the last is its commit
    assert far.stats.seconds - near.stats.seconds == 10.0 * layers  # what was accepted goes with the next layer


def test_what_is_prepared_apart_takes_one_message_each_way_beside_the_pass():
    everything, policy = SCHEDULES[0], Chain(length=1)
    for transfer, expected in ((5.0, 0.0), (12.0, 4.0)):
        found = simulation(policy, everything, Machines(Whole(of_verify=20), Whole(), transfer=transfer))
        assert all(one.hit for one in found.rounds[1:-1])
        assert {span.seconds for span in of(found, "wait")} == {expected}  # 2 * 12 - 20
    told = simulation(policy, everything, Machines(Whole(of_verify=20), Whole(of_rest=7)))
    assert told.stats.draft_seconds == 0  # what was accepted is heard beside the pass, too
    assert told.stats.prepare_seconds > 0


@attrs.frozen
class Pricing(Chain):
    """Holds what passes take, and could ask it at each layer."""

    name = "pricing"
    costs: Costs = attrs.field(factory=Whole)


@pytest.mark.parametrize(("policy", "whole"), [(Chain(length=3), True), (Pricing(length=3), False)])
def test_a_tree_that_is_drafted_apart_takes_one_message_each_way_or_one_for_each_layer(policy, whole):
    found = simulation(policy, Cached(budget=2), Machines(Whole(of_verify=50), Whole(of_draft=3), transfer=5.0))
    layers = [[span.seconds for span in one.spans if span.part == "draft" and span.seconds] for one in found.rounds]
    drafted = [seconds for one, seconds in zip(found.rounds, layers, strict=True) if not one.hit and seconds]
    assert len(drafted) > 2
    for first, *others in drafted:
        assert first == 3 + 10
        assert {*others} <= {3.0 if whole else 13.0}
    assert any(others for _, *others in drafted)


def test_each_is_slower_while_the_other_works_and_as_fast_as_alone_after():
    policy = Chain(length=1)
    machines = Machines(Whole(of_verify=14, of_draft=3), shared=1.5, drafter_shared=2.0)
    found = simulation(policy, SCHEDULES[0], machines)
    second = found.rounds[1]
    pass_of = next(span for span in second.spans if span.part == "verify")
    calls = [(span.start - pass_of.start, span.seconds) for span in second.spans if span.part == "prepare"]
    # three calls of 6 beside the pass, in which 12 of its 14 are done, and the rest of it alone
    assert calls == [(0.0, 6.0), (6.0, 6.0), (12.0, 6.0)]
    assert pass_of.seconds == 18 + 2
    slow = simulation(policy, SCHEDULES[0], Machines(Whole(of_verify=4, of_draft=3), shared=1.0, drafter_shared=2.0))
    # a pass of 4 is over when 2 of the call's 3 are done; the last one takes no longer than alone
    assert [span.seconds for span in slow.rounds[1].spans if span.part == "prepare"] == [5.0]
    assert slow.rounds[1].wait_seconds == 1.0


class Ticks(Clock):
    """A clock that is let go on in small steps, in each of which the drafter does a little, too."""

    step = 1 / 128

    def __init__(self):
        super().__init__()
        self.beside = lambda busy: False  # lets the drafter work for a step; whether it did

    def spend(self, seconds, slower=None):
        """Somebody works for what takes so long alone; the target, if it is said how much slower it is beside."""
        while seconds > 1e-9:
            both = self.beside(slower is not None)
            seconds -= self.step / (slower if both and slower is not None else 1.0)
            self.seconds += self.step


class Slowed(TableTarget):
    """A target whose passes go on by ticks."""

    def __init__(self, ticks, machines):
        super().__init__(np.random.default_rng(0).normal(size=(VOCAB,) * 3) * 2)
        self.ticks, self.machines = ticks, machines

    def verify(self, *given):
        self.ticks.spend(self.machines.target.verify(1, 1), self.machines.shared)
        return super().verify(*given)


class Steps(Worker):
    """A worker that gets on by ticks: how far it comes is never worked out, but seen."""

    def __init__(self, drafter, ticks, machines):
        self.drafter, self.ticks, self.machines = drafter, ticks, machines
        self.preparing, self.left, self.over = None, 0.0, True
        ticks.beside = self.work

    def prepare(self, schedule, jobs):
        self.preparing = Preparing(self.drafter.inner, schedule, jobs, self.ticks.now)
        self.left, self.over = 0.0, False

    def work(self, target_works):
        if self.left <= 1e-9 and not self.over:
            self.over = not self.preparing.step()
            self.left = 0.0 if self.over else self.machines.target.draft(1, 1)
        if self.over:
            return False
        self.left -= self.ticks.step / (self.machines.drafter_shared if target_works else 1.0)
        return True

    def stop(self):
        started = self.ticks.seconds
        while self.left > 1e-9:
            self.left -= self.ticks.step
            self.ticks.seconds += self.ticks.step
        self.over = True
        return Stopped(self.preparing.prepared(), spans=[Span("wait", started, self.ticks.seconds)])


class Timed(Drafter):
    """Whose layers take time when the target waits for them."""

    def __init__(self, inner, ticks, machines):
        self.inner, self.ticks, self.machines = inner, ticks, machines
        self.max_depth = inner.max_depth

    def open(self, slot, prompt, room):
        self.inner.open(slot, prompt, room)

    def close(self, slot):
        self.inner.close(slot)

    def commit(self, committed):
        self.inner.commit(committed)

    def propose(self, frontiers):
        self.ticks.spend(self.machines.target.draft(1, 1))
        return self.inner.propose(frontiers)


@pytest.mark.parametrize("shared", [1.0, 1.3, 1.9])
@pytest.mark.parametrize("drafter_shared", [1.0, 1.6])
@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize(("verify", "draft"), [(11, 2), (7, 5), (3, 4)])
def test_seconds_are_those_of_the_engine_on_a_clock_that_ticks(schedule, shared, drafter_shared, verify, draft):
    """The engine's own worker protocol on a clock of small steps, in which nothing is worked out beforehand."""
    machines = Machines(Whole(of_verify=verify, of_draft=draft), shared=shared, drafter_shared=drafter_shared)
    ticks = Ticks()
    drafter = Timed(WholeTexts(LAWS), ticks, machines)
    how: dict[str, Any] = {"schedule": schedule, "worker": partial(Steps, ticks=ticks, machines=machines)}
    how |= {"allocator": None, "costs": machines.costs, "now": ticks.now}
    engine = Engine(Slowed(ticks, machines), Match(), Chain(length=2), drafter, **how)
    sequence = engine.submit(Request(PROMPT, NEW, seed=0))
    while not sequence.finished:
        engine.step()
    found = simulation(Chain(length=2), schedule, machines)
    seconds = found.stats.seconds - found.stats.prefill_seconds
    assert seconds == pytest.approx(ticks.seconds, rel=0.02)
    assert [shape(one) for one in found.rounds] == [shape(one) for one in sequence.rounds]


def test_a_target_that_shares_its_memory_is_slower_while_the_drafter_works():
    policy = Chain(length=1)
    alone = simulation(policy, SCHEDULES[0], Machines(Whole(of_verify=12, of_draft=3)))
    beside = simulation(policy, SCHEDULES[0], Machines(Whole(of_verify=12, of_draft=3), shared=1.5))
    assert alone.stats.verify_seconds < beside.stats.verify_seconds <= 1.5 * alone.stats.verify_seconds
