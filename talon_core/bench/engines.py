"""What decodes during a run: TALON's engine with some parts, or transformers' own `generate`."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import attrs
import torch

from talon_core.bench.measurement import acceptance_by_depth
from talon_core.decoding.decoder import Decoder
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
    """TALON's engine, measured by itself."""

    def decode(ids: IntArray, options: Mapping[str, Any]) -> Decoded:
        result = decoder.generate(ids, **options)
        depths = acceptance_by_depth(result.rounds)
        return Decoded(list(result.token_ids), result.finish_reason, result.stats.as_dict(), depths, result.rounds)

    return decode


def engine_of_transformers(model: Any, plain: Decoder) -> Engine:
    """transformers' own `generate`, as it comes, stopped where `plain` would stop and measured from outside."""

    def decode(ids: IntArray, options: Mapping[str, Any]) -> Decoded:
        request = plain.frontend.request(ids, options)
        context = plain.target.context_length
        limit = request.max_new_tokens if context is None else min(request.max_new_tokens, context - len(ids))
        batch = torch.as_tensor(ids, device=model.device)[None]
        how: dict[str, Any] = {"do_sample": bool(options["temperature"]), "max_new_tokens": limit}
        if how["do_sample"]:
            how["temperature"] = options["temperature"]
            torch.manual_seed(options["seed"])
        if model.generation_config.pad_token_id is None:
            how["pad_token_id"] = 0  # nothing is padded; without one, generate warns
        _wait_for(model)
        started = perf_counter()
        out = model.generate(batch, attention_mask=torch.ones_like(batch), **how)
        _wait_for(model)
        seconds = perf_counter() - started
        tokens = [int(token) for token in out[0, len(ids) :].tolist()]
        known = {"new_tokens": len(tokens), "seconds": seconds, "tokens_per_second": len(tokens) / seconds}
        stats = {field.name: known.get(field.name) for field in attrs.fields(Stats)}
        return Decoded(tokens, "eos" if tokens[-1] in request.eos else "length", stats, None, None)

    return decode


def _wait_for(model: Any) -> None:
    """A GPU works on after a call has returned."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


@torch.inference_mode()
def logit_gap(model: Any, ids: Sequence[int], one: int, other: int) -> float:
    """How far apart the model's logits of two tokens are after `ids`: a near tie is decided by rounding."""
    logits = model(torch.as_tensor([list(ids)], device=model.device)).logits[0, -1].float()
    return abs(float(logits[one] - logits[other]))
