"""TALON inside `model.generate`: a `custom_generate` function for people who have a model already."""

import logging
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, ClassVar, cast
from weakref import WeakValueDictionary

import attrs
import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from talon_core.attention import AttentionBackend
from talon_core.certificates.standing import standing
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import AUTO, DEFAULT_DRAFTER, DEFAULT_POLICY, DEFAULT_RULE, DEFAULT_SCHEDULE
from talon_core.drafter import DrafterSpec
from talon_core.engine.generation import Generation
from talon_core.hf.arguments import ARGUMENTS, check_streamer, check_tokenizer, refuse
from talon_core.hf.frontend import HFFrontend, prepared_request, stop_criterion
from talon_core.hf.target import HFTarget
from talon_core.hf.values import check_seed, check_values
from talon_core.plugins.parts import Parts, Resolved, resolve
from talon_core.plugins.registry import load_registry
from talon_core.policy import TreePolicy
from talon_core.request import Request, Result
from talon_core.rule import AcceptanceRule, Lossless
from talon_core.runtime.embeddings import vocabulary_size
from talon_core.schedule import Schedule

LOGGER = logging.getLogger(__name__)


def as_generate(
    *,
    drafter: str | DrafterSpec = DEFAULT_DRAFTER,
    policy: str | TreePolicy | None = DEFAULT_POLICY,
    rule: str | AcceptanceRule = DEFAULT_RULE,
    attention: str | AttentionBackend | None = None,
    accelerate: bool | str = True,
    graphs: bool = True,
    lossy: bool = False,
    schedule: str | Schedule | None = DEFAULT_SCHEDULE,
    draft_on: str = AUTO,
    decoder: Decoder | None = None,
    seed: int | None = None,
    stop_strings: str | list[str] | None = None,
    tokenizer: Any = None,
) -> "TalonGenerate":
    """TALON for `model.generate(..., custom_generate=as_generate(...))`, with transformers' own options.

    Streamers, stopping criteria and logits processors work as they do without it. The model is not changed. What
    `generate` returns has no place for a mark; `lossless` of the object says whether it is the target's own, and `last`
    is the whole result of its last call, statistics included. A text ends with the model's context
    (`max_position_embeddings`), where plain `generate` goes on; the first time, that is logged as a warning.

    A function that calls the object may be given to `generate` in its place, if it does so in the same thread.
    `generate` hands on `stop_strings` only where the function has a parameter of that name.

    Keep the object: it makes its decoder at the first call, and every later call uses it. Objects that are there at the
    same time, over the same model and with the same parts, share one.

    The parts, which are `drafter`, `policy`, `rule`, `attention`, `accelerate`, `graphs`, `lossy`, `schedule` and
    `draft_on`, are options of `talon_core.load`, which tells of each.

    Args:
        decoder: what `load` returned for the same model, to be used in the place of one that is made of the parts.
        seed: for sampling; None takes torch's default generator.
        stop_strings: what ends the text where `generate` is not given `stop_strings` itself.
        tokenizer: the model's tokenizer, which stop strings need: `generate` drops its own argument `tokenizer` where
            it is given a `custom_generate`. That of the `decoder` by default.

    Raises:
        LookupError: for an unknown name.
        ValueError: for stop strings without a tokenizer, or that are no texts; for parts beside a decoder; for a bad
            option, or a rule that does not fit the policy or is lossy where that is not allowed.
    """
    parts = Parts(drafter, policy, rule, attention, accelerate, graphs, lossy, schedule, draft_on)
    if decoder is None:
        return TalonGenerate(resolve(parts, load_registry()), seed, stop_strings, tokenizer)
    if not isinstance(decoder, Decoder) or not isinstance(decoder.target, HFTarget):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
            f"the decoder is {decoder!r}; it must be what talon_core.load returned"
        )
    given = [field for field, value in attrs.asdict(parts, recurse=False).items() if value != getattr(Parts(), field)]
    if given:
        raise ValueError(f"{given[0]} is given beside a decoder, which has its own; give it to talon_core.load")
    if tokenizer is None and isinstance(decoder._frontend, HFFrontend):
        tokenizer = decoder._frontend.tokenizer
    return TalonGenerate(decoder, seed, stop_strings, tokenizer)


class TalonGenerate:
    """What `as_generate` returns: call it through `model.generate(..., custom_generate=this)`.

    Args:
        made_of: what was asked for, of which a decoder is made at the first call with a model; or the decoder.
        seed: for sampling; None takes torch's default generator, so `torch.manual_seed` makes runs reproducible.
        stop_strings: what ends the text where a call does not say it; None for nothing.
        tokenizer: the model's, for stop strings.

    Attributes:
        last: the result of the last call, of what came out of it where it failed; None before the first, and where the
            last call was refused.

    Raises:
        ValueError: for stop strings without a tokenizer, or that are no texts; for what is no seed or no tokenizer.
    """

    _decoders: ClassVar[WeakValueDictionary[tuple[int, Resolved], Decoder]] = WeakValueDictionary()
    """By the `id` of the model and what was asked for; a decoder keeps its model, so the number stays that model's."""

    def __init__(
        self,
        made_of: Resolved | Decoder,
        seed: int | None = None,
        stop_strings: str | list[str] | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.last: Result | None = None
        self._made_of = made_of
        self._seed = seed
        self._stop_strings = stop_strings
        self._tokenizer = tokenizer
        self._decoder: Decoder | None = None
        self._warned = False
        check_seed(seed)  # what is wrong is said at once
        stop_criterion(tokenizer, stop_strings)
        check_tokenizer(tokenizer)

    @property
    def lossless(self) -> Lossless:
        """Whether the output has the target's law: False with a lossy rule, "claimed" where a plugin says so alone."""
        if isinstance(self._made_of, Decoder):
            return self._made_of.lossless
        return standing(self._made_of.rule, self._made_of.policy)

    # generate looks at the names of the parameters: `stop_strings` is handed on because it is one of them
    def __call__(
        self, model: Any, input_ids: Tensor, streamer: Any = None, stop_strings: Any = None, **prepared: Any
    ) -> Any:
        """Decode in place of transformers' own loop.

        Returns:
            The prompt and the new tokens, shape `(1, length)`, int64; a `GenerateDecoderOnlyOutput` that holds nothing
            else if the generation config asks for a dictionary.

        Raises:
            ValueError: for what TALON does not do: see `talon_core.hf.arguments`; for a model that cannot verify
                trees, or a logits processor that does not go with the rule.
            BusyError: if the model is being decoded at this moment.
        """
        self.last = None
        self._check_called(input_ids, prepared)
        of_generate = _arguments_of_generate(model)
        refuse(of_generate, ARGUMENTS)
        streamer = streamer if streamer is not None else of_generate.get("streamer")
        check_streamer(streamer)
        if prepared.get("attention_mask") is None:  # generate drops one that is 1 everywhere, whatever its shape
            prepared["attention_mask"] = of_generate.get("kwargs", {}).get("attention_mask")
        own = vars(model.generation_config) if getattr(model, "generation_config", None) is not None else {}
        check_values(vars(prepared["generation_config"]), vocabulary_size(model), own)
        criterion = stop_criterion(self._tokenizer, stop_strings if stop_strings is not None else self._stop_strings)
        if criterion is not None:
            prepared["stopping_criteria"] = StoppingCriteriaList([*(prepared["stopping_criteria"] or ()), criterion])
        seed = self._seed
        if seed is None and prepared["generation_config"].do_sample:
            seed = int(torch.randint(2**62, ()))  # which draws of torch's, and so is not done for nothing
        tokens = self._decoded(model, prepared_request(input_ids, prepared, seed), streamer)
        new = torch.as_tensor(np.array(tokens, dtype=np.int64), device=input_ids.device)
        sequences = torch.cat([input_ids, new[None]], dim=1)
        if prepared["generation_config"].return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences))
        return sequences

    def _check_called(self, input_ids: Any, prepared: Mapping[str, Any]) -> None:
        """Only `generate` makes processors and stop conditions of a generation config."""
        made = ("generation_config", "logits_processor", "stopping_criteria")
        missing = [name for name in made if name not in prepared]
        if missing or not isinstance(input_ids, Tensor):
            what = (
                f"without {missing[0]}" if missing else f"with a {type(input_ids).__name__} in the place of token ids"
            )
            raise ValueError(
                f"what as_generate returned was called {what}; give it to model.generate as custom_generate, "
                "which prepares its arguments"
            )

    def _decoded(self, model: Any, request: Request, streamer: Any) -> list[int]:
        generation = self._decoder_for(model).run(request)
        put: Callable[[Tensor], None] = streamer.put if streamer is not None else lambda _: None
        try:
            with generation.in_one_session():
                streamed = 0
                for _ in generation:
                    for token in generation.token_ids[streamed:]:  # not the round's array, which plugins have seen
                        put(torch.tensor([token]))
                    streamed = len(generation.token_ids)
        finally:
            self.last = self._with_text(generation.result())
        if streamer is not None:
            streamer.end()
        self._warn_of_context(model, generation)
        return generation.token_ids

    def _warn_of_context(self, model: Any, generation: Generation) -> None:
        """Tell once that a text was ended by the model's context: plain `generate` warns there, and goes on."""
        limit = generation.sequence.limit
        if self._warned or generation.finish_reason != "length" or limit == generation.request.max_new_tokens:
            return
        self._warned = True
        target = self._decoder_for(model).target
        why = f" ({target.context_reason})" if target.context_reason else ""
        LOGGER.warning(
            "a text of %s ended after %d new tokens, where %d were asked for: the model's context holds %d tokens%s, "
            "and TALON decodes none beyond it",
            *(type(model).__name__, limit, generation.request.max_new_tokens, target.context_length, why),
        )

    def _with_text(self, result: Result) -> Result:
        if self._tokenizer is None:
            return result
        return attrs.evolve(result, text=str(self._tokenizer.decode(result.token_ids, skip_special_tokens=True)))

    def _decoder_for(self, model: Any) -> Decoder:
        if isinstance(self._made_of, Decoder):
            target = self._made_of.target
            if not isinstance(target, HFTarget) or target.model is not model:
                raise ValueError(
                    f"as_generate was given a decoder for another model than this {type(model).__name__}; "
                    "make one for it with talon_core.load"
                )
            return self._made_of
        if self._decoder is None or not _decodes(self._decoder, model):
            self._decoder = self._shared(model, self._made_of)
        return self._decoder

    def _shared(self, model: Any, resolved: Resolved) -> Decoder:
        try:
            found = self._decoders.get((id(model), resolved))
        except TypeError:  # a part that is an object may have no hash
            return decoder_for_model(model, None, resolved)
        if found is None or not _decodes(found, model):
            found = self._decoders[id(model), resolved] = decoder_for_model(model, None, resolved)
        return found


def _decodes(decoder: Decoder, model: Any) -> bool:
    """Whether a decoder was made for a model as it is now."""
    target = cast(HFTarget, decoder.target)
    return target.model is model and target.runner.as_loaded.difference() is None


def _arguments_of_generate(model: Any) -> Mapping[str, Any]:
    """The arguments of the `generate` that has called, read from its frame; nothing if this was called by itself.

    transformers 5.23 does not hand its own arguments on to a `custom_generate` function, the streamer among them:
    without this, streaming would silently stop after the prompt, and an assistant model silently do nothing. Between
    the two there may be any number of frames: `custom_generate` may be a function that calls a `TalonGenerate`.
    TODO: drop when every supported transformers passes them on.

    Args:
        model: whose `generate` it must be.
    """
    frame: FrameType | None = sys._getframe(2)  # above `__call__`
    while frame is not None and frame.f_code is not TalonGenerate.__call__.__code__:  # another call has a generate too
        if frame.f_code.co_name == "generate":
            found = frame.f_locals
            if found.get("self") is model and callable(found.get("custom_generate")):
                return found
        frame = frame.f_back
    return {}
