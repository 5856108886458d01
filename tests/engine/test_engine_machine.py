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
from talon_strategies import Branch, Cached, Chain, Match, Pearl, Talon

VOCAB = 4
PROCESSORS = [(), (TopKLogitsWarper(2),), (NoRepeatNGramLogitsProcessor(3),)]
SCHEDULES = [None, Cached(budget=6), Pearl(), Branch(budget=3)]
POLICIES = [Talon(budget=4, top_k=2), Chain(length=2), Erratic(3), CoinTosser(), None]


def target(seed):
    return TableTarget(np.random.default_rng(seed).normal(size=(VOCAB,) * 3) * 2)


def drafter(kind, seed):
    if kind == "ngram":
        return Ngram(min_match=1).open(target(seed))
    laws = np.random.default_rng(seed + 1).dirichlet(np.ones(VOCAB), size=5)
    return TableDrafter(laws)


@attrs.frozen(eq=False)
class Submitted:
    sequence: object
    request: Request


class Sequences(RuleBasedStateMachine):
    """An engine, and what each request gives in an engine of its own."""

    handles = Bundle("handles")

    @initialize(
        seed=st.integers(0, 9),
        policy=st.sampled_from(POLICIES),
        kind=st.sampled_from(["table", "ngram"]),
        slots=st.sampled_from([None, 1, 2]),
        rows=st.sampled_from([None, 80]),
        prompt_tokens=st.sampled_from([1, 3, 256]),
        keep=st.booleans(),
        schedule=st.sampled_from(SCHEDULES),
        worker=st.sampled_from([Adversary, ThreadWorker]),
    )
    def start(self, seed, policy, kind, slots, rows, prompt_tokens, keep, schedule, worker):
        self.make = lambda **how: Engine(
            target(seed), Match(), policy, drafter(kind, seed) if policy is not None else None, **how
        )
        how = {"slots": slots, "rows": rows, "prompt_tokens": prompt_tokens, "keep": keep}
        self.engine = self.make(**how, schedule=schedule if policy is not None else None, worker=worker)
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
    def nothing_has_failed(self):
        assert all(one.sequence.error is None for one in getattr(self, "submitted", ()))

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
            tokens, reason = self.alone(one.request)
            if one.sequence.finish_reason is None:  # cancelled
                assert tokens[: len(one.sequence.token_ids)] == one.sequence.token_ids
            else:
                assert (one.sequence.token_ids, one.sequence.finish_reason) == (tokens, reason)


Sequences.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestSequences = Sequences.TestCase
