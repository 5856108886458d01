"""A text that SmolLM2 goes on with in several ways, and the law of its next tokens by plain passes of the model."""

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from talon_core.hf.frontend import HFFrontend
from talon_core.runtime.cache_keyword import cache_keyword

QUESTION, BEGINNING = "Write a poem about autumn.", "Dawn begins, and the sky is painted with hues of gold"
"""Three tokens may come next, none of them with a probability above a half, and the drafter does not agree."""

TOKENS, TOP_K = 3, 3
"""So many tokens are looked at, and so many may come at each place."""

OPTIONS: dict[str, Any] = {"temperature": 1.0, "top_k": TOP_K, "max_new_tokens": TOKENS}

Texts = Mapping[tuple[int, ...], float]
"""For sequences of new tokens their probabilities, or how often they came."""


def beginning(model: Any, tokenizer: Any) -> list[int]:
    """The question as a chat has it, and the beginning of an answer."""
    return [*HFFrontend(model, tokenizer).encode(QUESTION).tolist(), *tokenizer(BEGINNING)["input_ids"]]


def plain_law(model: Any, ids: Sequence[int]) -> Texts:
    """The law of the next tokens, each among the `TOP_K` likeliest, from forward passes of the model alone."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    with torch.inference_mode():
        keyword = cache_keyword(model)
        read = model(torch.tensor([ids[:-1]], device=model.device), use_cache=True)[keyword]
        for _ in range(TOKENS):
            known = copy.deepcopy(read)
            known.batch_repeat_interleave(len(law))
            texts = torch.tensor([[ids[-1], *tokens] for tokens in law], device=model.device)
            best = model(texts, **{keyword: known}).logits[:, -1].double().topk(TOP_K)
            probs = torch.softmax(best.values, dim=-1)
            law = {
                (*tokens, token): before * prob
                for (tokens, before), own, of in zip(law.items(), best.indices.tolist(), probs.tolist(), strict=True)
                for token, prob in zip(own, of, strict=True)
            }
    return law


def firsts(texts: Texts, length: int) -> Texts:
    """The same of the first so many tokens."""
    shorter: dict[tuple[int, ...], float] = defaultdict(float)
    for tokens, value in texts.items():
        shorter[tokens[:length]] += value
    return shorter
