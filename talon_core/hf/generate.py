"""TALON inside `model.generate`: a `custom_generate` function for people who have a model already."""

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from talon_core.certify.standing import Lossless
from talon_core.decoder import Decoder
from talon_core.hf.frontend import prepared_request
from talon_core.loading import Parts, decoder_for_model, is_lossless
from talon_core.registry import load_registry


class TalonGenerate:
    """What `as_generate` returns: call it through `model.generate(..., custom_generate=this)`.

    The decoder is made at the first call with a model and kept for the next ones with the same model.

    Args:
        parts: the drafter, policy, rule and backends, by spec or as objects.
        seed: for sampling; None takes torch's default generator, so `torch.manual_seed` makes runs reproducible.
        stop_criterion: a further stop condition; None for no other than those of `generate`.
    """

    def __init__(
        self, parts: Parts, seed: int | None = None, stop_criterion: Callable[..., Tensor] | None = None
    ) -> None:
        self._parts = parts
        self._seed = seed
        self._stop_criterion = stop_criterion
        self._decoder: Decoder | None = None
        self._model: Any = None

    @property
    def lossless(self) -> Lossless:
        """Whether the output has the target's law: False with a lossy rule, "claimed" where a plugin says so alone."""
        return is_lossless(self._parts, load_registry())

    def __call__(self, model: Any, input_ids: Tensor, streamer: Any = None, **prepared: Any) -> Any:
        """Decode in place of transformers' own loop.

        Returns:
            The prompt and the new tokens, shape `(1, length)`, int64; a `GenerateDecoderOnlyOutput` if the
            generation config asks for a dictionary.

        Raises:
            ValueError: for a batch, a padded prompt, beam search, scores or states that are to be returned, a model
                that cannot verify trees, or a logits processor that does not go with the rule.
        """
        streamer = streamer if streamer is not None else _streamer_of_the_caller()
        seed = self._seed if self._seed is not None else int(torch.randint(2**62, ()))
        if self._stop_criterion is not None:
            criteria = [*(prepared.get("stopping_criteria") or ()), self._stop_criterion]
            prepared["stopping_criteria"] = StoppingCriteriaList(criteria)
        request = prepared_request(input_ids, prepared, seed)
        if self._decoder is None or self._model is not model:
            self._decoder, self._model = decoder_for_model(model, None, self._parts), model
        generation = self._decoder.run(request)
        streamed = 0
        for _ in generation:
            if streamer is not None:
                for token in generation.token_ids[streamed:]:  # not the round's array, which plugins have seen
                    streamer.put(torch.tensor([token]))
                streamed = len(generation.token_ids)
        if streamer is not None:
            streamer.end()
        new = torch.as_tensor(np.array(generation.token_ids, dtype=np.int64), device=input_ids.device)
        sequences = torch.cat([input_ids, new[None]], dim=1)
        if prepared["generation_config"].return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences))
        return sequences


def _streamer_of_the_caller() -> Any:
    """The `streamer` that `generate` was given, read from its frame.

    transformers 5.23 gives the prompt to the streamer but does not hand the streamer on to a `custom_generate`
    function; without this, streaming would silently stop after the prompt.
    TODO: drop when every supported transformers passes `streamer` on.
    """
    frame = sys._getframe(2)
    return frame.f_locals.get("streamer") if frame.f_code.co_name == "generate" else None
