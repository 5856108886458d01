"""On SmolLM2, in float32: sequences that join, leave and are cancelled beside each other come out as they do alone."""

import random
from typing import Any

import attrs
import pytest

from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.engine.sequence import Sequence
from talon_core.plugins.parts import Parts
from talon_core.request import Request

pytestmark = [pytest.mark.models, pytest.mark.slow]

PROMPTS = [
    "The capital of France is",
    "Write a list of three fruits:",
    "def add(a, b):",
    "Once upon a time there was a dragon who",
    "Question: what is seven times eight? Answer:",
]
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 3, "top_k": 20},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 0.7, "seed": 5},
    {"temperature": 0, "no_repeat_ngram_size": 3},
]


def alone(decoder: Decoder, request: Request) -> list[int]:
    generation = decoder.run(attrs.evolve(request))
    generation.finish()
    return generation.token_ids


@pytest.mark.parametrize("drafter", ["eagle3", "medusa"])
def test_sequences_come_out_as_alone_whatever_joins_leaves_or_is_cancelled(
    smollm: Any, shared_target: Any, drafter: str
) -> None:
    decoder = shared_target(*smollm, Parts(drafter))
    requests = [
        decoder.frontend.request(prompt, {"raw": True, "max_new_tokens": 8 + 4 * at, **options})
        for at, (prompt, options) in enumerate(zip(PROMPTS, OPTIONS, strict=True))
    ]
    lonely = shared_target(*smollm, Parts(drafter))  # its requests come one after another
    expected = [alone(lonely, request) for request in requests]
    dice = random.Random(0)
    waiting, running = [*enumerate(requests)] * 2, {}
    dice.shuffle(waiting)
    engine, cancelled = decoder.engine, []
    with engine.session():
        while waiting or running:
            if waiting and dice.random() < 0.4 and len(running) < 4:
                at, request = waiting.pop()
                running[engine.submit(attrs.evolve(request))] = at
            engine.step(None if dice.random() < 0.7 else dice.sample([*running], k=len(running) // 2))
            begun = [one for one in running if len(one.rounds) == 2]
            if begun and len(cancelled) < 2:
                cancelled.append(begun[-1])
                engine.cancel(begun[-1])
            for one in [one for one in running if one.finished]:
                _check(one, expected[running.pop(one)])
    assert len(cancelled) == 2


def _check(one: Sequence, expected: list[int]) -> None:
    assert one.error is None
    if one.finish_reason is None:
        assert one.cancelled
        assert one.token_ids == expected[: len(one.token_ids)]
    else:
        assert one.token_ids == expected


def test_next_turns_of_two_conversations_read_only_what_is_new_and_say_the_same(
    smollm: Any, shared_target: Any
) -> None:
    decoder = decoder_for_model(*smollm, Parts("eagle3"))  # its own target, whose reads are counted
    target = decoder.target
    read: list[int] = []
    before = target.read
    target.read = lambda parts: (read.extend(map(len, parts.values())), before(parts))[1]  # type: ignore[method-assign]
    chats = [[{"role": "user", "content": f"Name a {what}."}] for what in ("colour", "large town in Africa")]
    for turn, said in enumerate(("And another?", "Which is warmer?", "Why?")):
        for number, chat in enumerate(chats):  # both begin alike, with the template's system prompt
            read.clear()
            result = decoder.generate(chat, temperature=0, max_new_tokens=16)
            fresh = shared_target(*smollm, Parts("eagle3")).generate(chat, temperature=0, max_new_tokens=16)
            assert result.token_ids == fresh.token_ids
            length = len(result.prompt_ids)
            if turn == number == 0:
                assert sum(read) == length - 1  # the first turn is read whole
            else:
                assert sum(read) < length / 2  # else the end of the answer, if there is one, and what was said then
            chat += [{"role": "assistant", "content": result.text}, {"role": "user", "content": said}]
