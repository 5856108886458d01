"""transformers' own `generate`, as it comes, for a request of TALON's."""

from typing import Any

import torch

from talon_core.request import Request


def generated(model: Any, request: Request, **options: Any) -> list[int]:
    """The new tokens of `model.generate`, which decodes as it does without TALON.

    Args:
        model: a transformers causal LM.
        request: the prompt, the limit, the temperature and the seed; whatever else `generate` does by default is not
            changed.
        options: further ones of `generate`, such as another way of drafting.
    """
    batch = torch.as_tensor(request.ids, device=model.device)[None]
    how: dict[str, Any] = {"do_sample": request.sampling.do_sample, "max_new_tokens": request.max_new_tokens, **options}
    if request.sampling.do_sample:
        how["temperature"] = request.sampling.temperature
        if request.seed is not None:
            torch.manual_seed(request.seed)
    if model.generation_config.pad_token_id is None:
        how["pad_token_id"] = 0  # nothing is padded; without one, generate warns
    out = model.generate(batch, attention_mask=torch.ones_like(batch), **how)
    return [int(token) for token in out[0, len(request.ids) :].tolist()]
