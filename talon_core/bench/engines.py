"""What decodes during a run: TALON's engine with some parts, or whatever else decodes, measured from outside."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import attrs
import torch

from talon_core.bench.measurement import acceptance_by_depth
from talon_core.bench.timed import Timed, timed
from talon_core.decoding.decoder import Decoder
from talon_core.peer import PeerAnswer
from talon_core.request import Request
from talon_core.rounds import Round, Stats
from talon_core.tree import IntArray


@attrs.frozen
class Decoded:
    """One answer, and what it took.

    Attributes:
        token_ids: the new tokens.
        finish_reason: as in `Result`.
        stats: the fields of `Stats`; None where they are not known.
        acceptance_by_depth: see the function of that name; None where it is not known.
        rounds: every round; None where they are not known.
    """

    token_ids: list[int]
    finish_reason: str
    stats: Mapping[str, float | None]
    acceptance_by_depth: Sequence[Mapping[str, int]] | None
    rounds: Sequence[Round] | None


Engine = Callable[[IntArray, Mapping[str, Any]], Decoded]
"""`engine(ids, options)`: decode a prompt of shape `(prompt,)`, int64, with the options of `Decoder.generate`."""


def engine_of(decoder: Decoder) -> Engine:
    """TALON's engine; its seconds are those of the whole call, as they are of whatever is measured from outside."""

    def decode(ids: IntArray, options: Mapping[str, Any]) -> Decoded:
        started = perf_counter()
        result = decoder.generate(ids, **options)
        stats = result.stats.of_call(perf_counter() - started)
        depths = acceptance_by_depth(result.rounds)
        return Decoded(list(result.token_ids), result.finish_reason, stats.as_dict(), depths, result.rounds)

    return decode


def engine_of_transformers(model: Any, plain: Decoder) -> Engine:
    """transformers' own `generate`, as it comes."""
    from talon_core.hf.generated import generated

    return engine_from_outside(timed(lambda request: PeerAnswer(generated(model, request)), model.device), plain)


def engine_from_outside(answer: Timed, plain: Decoder) -> Engine:
    """Whatever answers a request, measured from outside: the prompt is read, and tokens count, as with `plain`.

    Args:
        answer: gives at least one token; what it gives beyond the end of the text or the limit is cut off.
        plain: plain decoding with the target, which knows the limits.
    """

    def decode(ids: IntArray, options: Mapping[str, Any]) -> Decoded:
        request = plain.frontend.request(ids, options)
        request = attrs.evolve(request, max_new_tokens=request.limit(plain.target))
        found, seconds = answer(request)
        tokens = counted(found.token_ids, request)
        known: dict[str, float | None] = {
            "new_tokens": len(tokens),
            "seconds": seconds,
            "tokens_per_second": len(tokens) / seconds,
            "target_passes": found.target_passes,
            "draft_passes": found.draft_passes,
            "prefill_seconds": found.prefill_seconds,
        }
        stats = {field.name: known.get(field.name) for field in attrs.fields(Stats)}
        return Decoded(tokens, "eos" if tokens[-1] in request.eos else "length", stats, None, None)

    return decode


def counted(token_ids: Sequence[int], request: Request) -> list[int]:
    """The tokens that count: up to and including the first that ends the text, and no more than the limit."""
    tokens = list(token_ids[: request.max_new_tokens])
    end = next((place for place, token in enumerate(tokens) if token in request.eos), len(tokens))
    return tokens[: end + 1]


@torch.inference_mode()
def logit_gap(model: Any, ids: Sequence[int], one: int, other: int) -> float:
    """How far apart the model's logits of two tokens are after `ids`: a near tie is decided by rounding."""
    logits = model(torch.as_tensor([list(ids)], device=model.device)).logits[0, -1].float()
    return abs(float(logits[one] - logits[other]))
