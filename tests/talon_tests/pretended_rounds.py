"""What rounds on a pretended device ask of the host, as JSON: `python -m talon_tests.pretended_rounds`.

A process of its own, as it has one more kind of device from then on.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from talon_core import load
from talon_core.certify.exact import Given
from talon_core.decoding.decoder import Decoder
from talon_core.engine.bounds import Bounds
from talon_core.hf.frontend import HFFrontend
from talon_core.hf.target import HFTarget
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.request import Result
from talon_core.rounds import Span
from talon_core.rule import AcceptanceRule
from talon_core.runtime import catching_up, transfers
from talon_core.testing.plain_device import PlainDevice
from talon_strategies import Match, RejectionWithoutReplacement, Talon, Traversal
from talon_tests.pretended import Pretended, PretendedBackend
from talon_tests.tiny_models import tiny_model
from talon_tests.trained_heads import KINDS
from talon_tests.two_devices import sends

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [11], [20, 21, 22, 23, 20, 21], [9, 9, 9]]
TALON = "talon:budget=12,top_k=3"
METHODS = {
    "plain": (None, None),
    "ngram": ("ngram", "talon:budget=8,top_k=3"),
    "draft model": ("draft-model:skip=1+2", TALON),
    "conflayers": ("conflayers:context=4,every=3", TALON),
    "hybrid": ("hybrid:of=draft-model[skip=1+2]+ngram", TALON),
    "lookahead": ("lookahead", TALON),
}
TESTED: dict[str, tuple[AcceptanceRule, str]] = {
    "tested in turn": (RejectionWithoutReplacement(), "dyspec:budget=8,depth=3"),
    "tested leaves first": (Traversal(), "dyspec:budget=8,depth=3"),
}
"""Drawn children, by the order of their tests: the rule, and the policy."""
DRAWN = {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "top_k": 50, "seed": 3}
ON_THE_HOST = {**DRAWN, "repetition_penalty": 1.2}
SHORT, LONG = 4, 12
AT_ONCE = Bounds(keep=False)
"""No text is kept: what a prompt copies from another one is not what rounds ask."""


def decoder_on(model: Any, method: str) -> Decoder:
    """A decoder of a model that is on the pretended device, without recorded passes."""
    registry, rule = load_registry(), TESTED[method][0] if method in TESTED else Match()
    drafter, policy = METHODS[method] if method in METHODS else ("ngram", TESTED[method][1])
    drafts = build(registry, "drafter", drafter) if drafter else None
    features = drafts.features(model.config.num_hidden_layers) if drafts else ()
    target = HFTarget(model, PretendedBackend(PlainDevice()), None, features, probe=False)
    decides = build(registry, "tree policy", policy) if policy else None
    return _unmeasured(Decoder(target, rule, decides, drafts, HFFrontend(model), bounds=AT_ONCE))


def _unmeasured(decoder: Decoder) -> Decoder:
    """The decoder, whose passes are not shared by measured times, so that it does the same each time."""
    decoder.engine.allocator = None
    return decoder


def decoder_with(model: Any, pretended: Pretended, heads: str) -> Decoder:
    """As `decoder_on`, with heads of random weights."""
    torch.manual_seed(1)
    rounds = KINDS[heads].rounds
    target = HFTarget(model, PretendedBackend(PlainDevice()), None, rounds.reads, probe=False)
    drafts = Given(rounds.drafter(model, target, pretended))
    return _unmeasured(Decoder(target, Match(), Talon(budget=12, top_k=3), drafts, HFFrontend(model), bounds=AT_ONCE))


def of_rounds(
    pretended: Pretended, decoder: Decoder, prompts: Sequence[Any], options: dict[str, Any]
) -> dict[str, Any]:
    """What the rounds behind the first ones ask, so that neither prompts nor what is made once is among it."""
    found = []
    for tokens in (LONG, SHORT, LONG):  # the first makes what is made once
        pretended.forget()
        results = decoder.generate(prompts, max_new_tokens=tokens, **options)
        passes = {
            "rounds": max(len(one.rounds) for one in results),
            "drafted": max(one.stats.draft_passes for one in results),
        }
        found.append({**pretended.counts, **passes})
    _, short, long = found
    tokens = [one.token_ids for one in results]
    asked = {"tokens": tokens, "questions": dict(pretended.asked), "largest": pretended.largest}
    asked["without a wait"] = without_a_wait(pretended, results)
    return {**{name: long[name] - short[name] for name in long}, **asked}


def without_a_wait(pretended: Pretended, results: Sequence[Result]) -> dict[str, int]:
    """How many passes of the target, and layers of the drafter, were over before their device was waited for."""
    found = {"verify": 0, "draft": 0}
    for round_ in [one for result in results for one in result.rounds]:
        for span in round_.spans:
            if span.part in found and span.work in (None, "layer") and not _waited(pretended, span):
                found[span.part] += 1
    return found


def _waited(pretended: Pretended, span: Span) -> bool:
    return bisect_left(pretended.waits, span.start) < bisect_right(pretended.waits, span.end)


def _asks(_module: object, _args: object, out: torch.Tensor) -> torch.Tensor:
    """A hook that waits for the device."""
    return out * float(out.abs().max() >= 0)


def main() -> None:
    torch.set_num_threads(1)
    usual = load(tiny_model("llama"), policy=None, attention="sdpa")
    expected = {
        "greedy": [usual.generate(one, max_new_tokens=LONG).token_ids for one in PROMPTS],
        "drawn": [one.token_ids for one in usual.generate(PROMPTS, max_new_tokens=LONG, **DRAWN)],
        "drawn on the host": [usual.generate(PROMPTS[0], max_new_tokens=LONG, **ON_THE_HOST).token_ids],
    }
    registry = load_registry()
    for method, (rule, policy) in TESTED.items():
        own = build(registry, "tree policy", policy)
        here = load(tiny_model("llama"), drafter="ngram", policy=own, rule=rule, attention="sdpa")
        expected[method] = [one.token_ids for one in here.generate(PROMPTS, max_new_tokens=LONG, **DRAWN)]
    told: dict[str, Any] = {"expected": expected}
    with ExitStack() as stack:
        pretended = stack.enter_context(Pretended())
        for module in (transfers, catching_up):
            stack.enter_context(patch.object(module, "wait_for", pretended.wait_for))
        model = tiny_model("llama")
        pretended.move(model)
        for method in METHODS:
            told[method] = of_rounds(pretended, decoder_on(model, method), PROMPTS, {})
        for heads in KINDS:
            told[heads] = of_rounds(pretended, decoder_with(model, pretended, heads), PROMPTS, {})
        decoder = decoder_on(model, "ngram")
        told["alone"] = of_rounds(pretended, decoder, PROMPTS[:1], {})
        told["drawn"] = of_rounds(pretended, decoder, PROMPTS, DRAWN)
        told["drawn alone"] = of_rounds(pretended, decoder, PROMPTS[:1], DRAWN)
        told["drawn on the host"] = of_rounds(pretended, decoder, PROMPTS[:1], ON_THE_HOST)
        with torch.no_grad():
            handle = model.model.layers[1].register_forward_hook(_asks)
            told["asking"] = of_rounds(pretended, decoder_on(model, "plain"), PROMPTS[:1], {})
            handle.remove()
        for method in TESTED:
            told[method] = of_rounds(pretended, decoder_on(model, method), PROMPTS, DRAWN)
        for layer in (2, 3):
            pretended.move(model.model.layers[layer], 1)
        try:
            decoder_on(model, "plain").generate(PROMPTS[0], max_new_tokens=2)
        except RuntimeError as error:
            told["nothing is moved"] = str(error)
        for part, index in ((model.model.layers[2], 1), (model.model.layers[3], 1), (model.model.norm, 0)):
            part.register_forward_pre_hook(sends(pretended.device(index)), with_kwargs=True)
        told["two devices"] = of_rounds(pretended, decoder_on(model, "ngram"), PROMPTS, {})
        told["drawn on two devices"] = of_rounds(pretended, decoder_on(model, "ngram"), PROMPTS, DRAWN)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
