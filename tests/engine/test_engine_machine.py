"""Whatever joins, leaves, is cancelled or prepared beside it, each sequence comes out as it would alone."""

import attrs
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from transformers import NoRepeatNGramLogitsProcessor, TopKLogitsWarper

from talon_core import Engine, Request, TableTarget
from talon_core.certify.adversary import Adversary
from talon_core.engine.ahead.thread import ThreadWorker
from talon_core.sampling import temperature_sampling
from talon_core.testing import TableDrafter
from talon_core.testing.odd_policies import CoinTosser, Erratic
from talon_drafters import Ngram
from talon_strategies import (
    Branch,
    Cached,
    Chain,
    Hybrid,
    Match,
    Pearl,
    RecursiveRejection,
    SampledChain,
    SpecInfer,
    Talon,
    TalonSampled,
)

VOCAB = 4
PROCESSORS = [(), (TopKLogitsWarper(2),), (NoRepeatNGramLogitsProcessor(3),)]
SCHEDULES = [None, Cached(budget=6), Pearl(), Branch(budget=3)]


@attrs.frozen
class FailsForSome(Talon):
    """Fails at the first round of a sequence whose prompt has a length that is told in `is_failing`."""

    name = "fails-for-some"
    fails: bool = False

    def begin(self, sequence):
        return attrs.evolve(self, fails=is_failing(sequence.prompt_length))

    def observe(self, round_):
        if self.fails:
            raise RuntimeError("for some")


def is_failing(length):
    return length % 3 == 2


POLICIES = [
    *[(policy, Match()) for policy in (Talon(budget=4, top_k=2), Chain(length=2), Erratic(3), CoinTosser(), None)],
    (FailsForSome(budget=4, top_k=2), Match()),
    (TalonSampled(budget=4, top_k=2), Hybrid()),
    (SampledChain(length=2), RecursiveRejection()),
    (SpecInfer(widths=(2, 1)), RecursiveRejection()),
]
"""With the rules that they are tried with; the children of the last ones are drawn."""


@attrs.frozen(eq=False)
class Strict(TableDrafter):
    """Refuses whatever does not fit what it was told of a slot's text before."""

    texts: dict = attrs.field(factory=dict)
    read_to: dict = attrs.field(factory=dict)

    def open(self, slot, prompt, room):
        self.texts[slot], self.read_to[slot] = prompt.tolist(), 0

    def resume(self, slot, prompt, room, source, length):
        known = self.texts[source][:length]  # it was not told of the last round of a text that is over
        assert prompt[: len(known)].tolist() == known
        assert length < len(prompt)
        self.texts[slot], self.read_to[slot] = prompt.tolist(), length
        return length

    def read(self, parts):
        for slot, part in parts.items():
            assert part.start == self.read_to[slot]
            self.read_to[slot] = part.end
            assert part.end < len(self.texts[slot])

    def propose(self, frontiers):
        for one in frontiers:
            assert one.tree.tokens[0] == self.texts[one.slot][-1]
            assert self.read_to[one.slot] == len(self.texts[one.slot]) - 1
        return super().propose(frontiers)

    def commit(self, committed):
        for slot, one in committed.items():
            self.texts[slot] += one.tokens.tolist()
            self.read_to[slot] += len(one.tokens)

    def close(self, slot):
        del self.texts[slot], self.read_to[slot]


def target(seed):
    return TableTarget(np.random.default_rng(seed).normal(size=(VOCAB,) * 3) * 2)


def drafter(kind, seed):
    if kind == "ngram":
        return Ngram(min_match=1).open(target(seed))
    laws = np.random.default_rng(seed + 1).dirichlet(np.ones(VOCAB), size=5)
    return Strict(laws) if kind == "strict" else TableDrafter(laws)


@attrs.frozen(eq=False)
class Submitted:
    sequence: object
    request: Request


class Sequences(RuleBasedStateMachine):
    """An engine, and what each request gives in an engine of its own."""

    handles = Bundle("handles")

    @initialize(
        seed=st.integers(0, 9),
        parts=st.sampled_from(POLICIES),
        kind=st.sampled_from(["table", "ngram", "strict"]),
        slots=st.sampled_from([None, 1, 2]),
        rows=st.sampled_from([None, 80]),
        prompt_tokens=st.sampled_from([1, 3, 256]),
        keep=st.booleans(),
        schedule=st.sampled_from(SCHEDULES),
        worker=st.sampled_from([Adversary, ThreadWorker]),
    )
    def start(self, seed, parts, kind, slots, rows, prompt_tokens, keep, schedule, worker):
        policy, accepts = parts
        if policy is None or policy.children != "deterministic":  # what is prepared is drawn from other numbers
            schedule = None
        self.failing = isinstance(policy, FailsForSome)
        self.make = lambda **how: Engine(
            target(seed), accepts, policy, drafter(kind, seed) if policy is not None else None, **how
        )
        how = {"slots": slots, "rows": rows, "prompt_tokens": prompt_tokens, "keep": keep}
        self.engine = self.make(**how, schedule=schedule, worker=worker)
        self.submitted = []

    @rule(
        target=handles,
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
        again=st.none() | handles,
        length=st.integers(1, 7),
        temperature=st.sampled_from([0.0, 1.0]),
        processors=st.sampled_from(PROCESSORS),
        eos=st.sampled_from([frozenset(), frozenset({0})]),
        seed=st.integers(0, 5),
    )
    def submit(self, prompt, again, length, temperature, processors, eos, seed):
        if again is not None:  # the next turn: what was there before, and more
            prompt = [*again.request.ids.tolist(), *again.sequence.token_ids, *prompt][:30]
        sampling = temperature_sampling(temperature, processors)
        request = Request(np.array(prompt), length, sampling, eos, seed=seed)
        one = Submitted(self.engine.submit(request), request)
        self.submitted.append(one)
        return one

    @rule()
    def step(self):
        self.engine.step()

    @rule(only=st.lists(handles, max_size=3))
    def step_some(self, only):
        before = {one: [*one.sequence.token_ids] for one in self.submitted}
        self.engine.step([one.sequence for one in only])
        for one in self.submitted:
            if one not in only:
                assert one.sequence.token_ids == before[one]

    @rule(one=handles)
    def cancel(self, one):
        if not one.sequence.finished:
            self.engine.cancel(one.sequence)
            assert one.sequence.finished

    @invariant()
    def nothing_has_failed_but_what_is_to(self):
        for one in getattr(self, "submitted", ()):
            fails = self.failing and is_failing(len(one.request.ids))
            assert not fails or len(one.sequence.rounds) <= 1
            if one.sequence.error is not None:
                assert fails, one.sequence.error
                assert "'fails-for-some'" in str(one.sequence.error)

    def alone(self, request):
        engine = self.make()
        sequence = engine.submit(attrs.evolve(request))
        while not sequence.finished:
            engine.step()
        return sequence.token_ids, sequence.finish_reason

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        for _ in range(1000):
            if all(one.sequence.finished for one in self.submitted):
                break
            self.engine.step()
        for one in self.submitted:
            assert one.sequence.finished
            fails = self.failing and is_failing(len(one.request.ids))
            assert one.sequence.cancelled or fails == (one.sequence.error is not None)
            tokens, reason = self.alone(one.request)
            if one.sequence.finish_reason is None or one.sequence.error is not None:  # cancelled, or it has failed
                assert tokens[: len(one.sequence.token_ids)] == one.sequence.token_ids
            else:
                assert (one.sequence.token_ids, one.sequence.finish_reason) == (tokens, reason)


Sequences.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestSequences = Sequences.TestCase
