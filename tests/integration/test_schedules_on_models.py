"""Drafting while SmolLM2 verifies: the same text with every schedule, whatever sleeps."""

import numpy as np
import pytest

from talon_core import Engine, Request
from talon_core.engine.ahead.worker import InLine
from talon_core.plugins.parts import Parts
from talon_strategies import Branch, Cached, Chain, Match, Pearl, SampledChain, Talon
from talon_tests.sleeping import sleeping

pytestmark = [pytest.mark.models, pytest.mark.slow]

PROMPT = "Repeat this twice: The quick brown fox jumps over the lazy dog."
SCHEDULES = [Cached(budget=6), Cached(budget=6, allocation="geometric"), Branch(budget=4), Pearl()]
DRAFTERS = ["ngram", "eagle3", "hybrid"]
POLICIES = [Chain(length=3), Talon(budget=6, top_k=3)]
NEW_TOKENS = 16
LONGEST = 0.02
"""Seconds that a worker sleeps."""


def engine(decoder, policy, schedule, seed=0, worker=None):
    parts, worker = decoder.engine.parts, worker if worker is not None else sleeping(seed, LONGEST)
    return Engine(
        parts.target, Match(), policy, decoder.drafter, decoder.drafter_spec, schedule=schedule, worker=worker
    )


def text(engine, request):
    sequence = engine.submit(request)
    with engine.session():
        while not sequence.finished:
            engine.step()
    if sequence.error is not None:
        raise sequence.error
    return sequence


def policy_of(drafter, place):
    """Of the policies in turn: with every drafter and with every schedule, by its place, each policy is tried."""
    return POLICIES[(DRAFTERS.index(drafter) + place) % len(POLICIES)]


def test_every_policy_meets_every_drafter_and_every_schedule():
    places = range(len(SCHEDULES))
    for policy in POLICIES:
        assert all(any(policy_of(drafter, place) == policy for place in places) for drafter in DRAFTERS)
        assert all(any(policy_of(drafter, place) == policy for drafter in DRAFTERS) for place in places)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_texts_are_those_of_plain_decoding(smollm, shared_target, answers, drafter):
    model, tokenizer = smollm
    decoder = shared_target(model, tokenizer, Parts(drafter, "chain:length=3"))
    ids = decoder.frontend.request(PROMPT, {}).ids
    plain = answers.of(
        ("schedules", PROMPT, NEW_TOKENS),
        lambda: text(Engine(decoder.target, Match()), Request(ids, NEW_TOKENS)).token_ids,
    )
    for place, schedule in enumerate(SCHEDULES):
        policy = policy_of(drafter, place)
        sequence = text(engine(decoder, policy, schedule, seed=place), Request(ids, NEW_TOKENS))
        assert sequence.token_ids == plain, (schedule, policy)
        hits = [one.hit for one in sequence.rounds]
        assert True in hits or False in hits


def test_a_draft_model_goes_ahead(smollm, shared_target):
    """The target's own model drafts, and pearl goes on behind the end: it is always right, so that everything is
    accepted and, where there is time, every round but the first hits."""
    model, tokenizer = smollm
    decoder = shared_target(model, tokenizer, Parts("draft-model:model=smollm2-135m", "chain:length=2"))
    ids = decoder.frontend.request(PROMPT, {}).ids
    sequence = text(engine(decoder, Chain(length=2), Pearl(), worker=InLine), Request(ids, 12))
    assert sequence.token_ids == text(Engine(decoder.target, Match()), Request(ids, 12)).token_ids
    assert all(one.accepted == len(one.tree) - 1 for one in sequence.rounds)
    assert [one.hit for one in sequence.rounds] == [None] + [True] * (len(sequence.rounds) - 1)
    assert [len(one.tree) for one in sequence.rounds[:-1]] == [1] + [3] * (len(sequence.rounds) - 2)


def test_drawn_texts_are_the_same_whatever_is_prepared(smollm, shared_target):
    """Sample-and-match draws each token of a text from the target's law by the same numbers, whatever was drafted: with
    what was prepared, with what was not, and in time or late."""
    model, tokenizer = smollm
    decoder = shared_target(model, tokenizer, Parts("eagle3", "chain:length=3"))
    request = decoder.frontend.request(PROMPT, {"temperature": 1.0, "seed": 3, "max_new_tokens": 16})
    (plain,) = [one.token_ids for one in decoder.run_all([request])]
    hits = set()
    for schedule in (Cached(budget=6), Pearl()):
        for worker in (InLine, sleeping(0, LONGEST)):
            again = Request(np.array(request.ids), 16, request.sampling, request.eos, seed=3)
            sequence = text(engine(decoder, Chain(length=3), schedule, worker=worker), again)
            assert sequence.token_ids == plain
            hits |= {one.hit for one in sequence.rounds}
    assert {True, False} <= hits


def test_a_policy_that_draws_gets_laws_of_what_was_prepared(smollm, shared_target):
    """The trees of hits are drawn, too, each from the law of its own node."""
    model, tokenizer = smollm
    decoder = shared_target(model, tokenizer, Parts("eagle3", "chain:length=3"))
    request = decoder.frontend.request(PROMPT, {"temperature": 1.0, "seed": 3, "max_new_tokens": 16})
    sequence = text(engine(decoder, SampledChain(length=2), Cached(budget=24), worker=InLine), request)
    assert sequence.finish_reason in ("length", "eos")
    assert any(one.tree.drawn for one in sequence.rounds if one.hit)
    assert all(one.tree.drawn for one in sequence.rounds if len(one.tree) > 1)
