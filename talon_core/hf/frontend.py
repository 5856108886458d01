"""Prompts, options and text for a transformers model."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from talon_core.frontend import Frontend, TextStream
from talon_core.hf.arguments import check_for_decoder, check_functions, check_prepared
from talon_core.hf.text import DecodedStream
from talon_core.request import Criterion, Request
from talon_core.sampling import Sampling
from talon_core.tree import IntArray

DEFAULT_MAX_NEW_TOKENS = 256
"""Where neither the options nor the model's own generation config say anything about the length."""


@attrs.frozen(eq=False)
class HFFrontend(Frontend):
    """Prepares requests as `model.generate` would, from the same options and the model's own generation config.

    Attributes:
        model: the target's model.
        tokenizer: its tokenizer; None if prompts are token ids and nothing is shown as text.
    """

    model: Any
    tokenizer: Any = None

    def request(self, prompt: str | list[dict[str, str]] | IntArray | Tensor, options: Mapping[str, Any]) -> Request:
        """Make a request; `options` are those of `transformers.GenerationConfig`, and these.

        `temperature` 0 (the default) is greedy and anything above samples; `do_sample` overrules. Both may stand in a
        `generation_config` as well; those of the model's own are not asked, so that decoding is greedy unless the
        call says otherwise. At most 256 tokens come where neither the options, the `generation_config` nor the
        model's own set `max_new_tokens` or `max_length`. `seed` makes sampling reproducible. `raw` leaves the chat
        template out. `logits_processor`, `stopping_criteria` and `prefix_allowed_tokens_fn` are as in `generate`, and
        `tokenizer` is for `stop_strings` where it is not to be the model's own. `max_time` counts from the start of
        the prefill. What `talon_core.hf.arguments` refuses is refused by name.
        """
        rest = dict(options)
        seed = rest.pop("seed", None)
        tokenizer = rest.pop("tokenizer", None)
        check_for_decoder(rest)
        ids = self.encode(prompt, raw=bool(rest.pop("raw", False)))
        if not len(ids):
            raise ValueError("the prompt is empty; it must have at least one token")
        given = _fields(rest.get("generation_config"))
        own = _fields(self.model.generation_config)
        sampling_options(rest, given)
        for option in ("max_new_tokens", "max_length"):
            if rest.get(option) is not None:
                _require_whole(option, rest[option], at_least=1)
        if not any(said.get(option) for said in (rest, given, own) for option in ("max_new_tokens", "max_length")):
            rest["max_new_tokens"] = DEFAULT_MAX_NEW_TOKENS
        if seed is not None:
            _require_whole("seed", seed, at_least=0)
        seconds = rest.get("max_time")
        if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
            raise ValueError(f"max_time is {seconds!r}; it must be a number of seconds, at least 0")
        stop_strings = next((said["stop_strings"] for said in (rest, given, own) if said.get("stop_strings")), None)
        criterion = stop_criterion(tokenizer if tokenizer is not None else self.tokenizer, stop_strings)
        if criterion is not None:
            rest["stopping_criteria"] = StoppingCriteriaList([*(rest.get("stopping_criteria") or ()), criterion])
            rest["stop_strings"] = None
        return self._prepared(ids, rest, seed)

    def _prepared(self, ids: IntArray, options: dict[str, Any], seed: int | None) -> Request:
        """Let `generate` itself turn options into processors and criteria, up to where it would start decoding."""
        if self.model.device.type == "meta":  # generate would try to read from it
            raise ValueError(
                f"{type(self.model).__name__} has no weights any more: it is on the device 'meta'; load it again"
            )
        captured: list[Request] = []

        def capture(_model: Any, input_ids: Tensor, **prepared: Any) -> Tensor:
            captured.append(prepared_request(input_ids, prepared, seed))
            return input_ids

        batch = torch.as_tensor(ids, device=self.model.device)[None]
        config = copy.deepcopy(options.pop("generation_config", None))
        if self.model.generation_config.pad_token_id is None and getattr(config, "pad_token_id", None) is None:
            options.setdefault("pad_token_id", 0)  # nothing is padded; without one, generate warns
        try:
            if config is not None:  # generate warns where it is given both
                unset = {"stop_strings": None} if self.model.generation_config.stop_strings else {}
                options = {**config.update(**options), **unset, "generation_config": config}
            self.model.generate(batch, attention_mask=torch.ones_like(batch), custom_generate=capture, **options)
        except (ValueError, TypeError) as error:
            raise ValueError(str(error).strip().splitlines()[0]) from error
        return captured[0]

    def encode(self, prompt: str | list[dict[str, str]] | IntArray | Tensor, raw: bool = False) -> IntArray:
        """Token ids of a prompt, shape `(prompt,)`, int64.

        Raises:
            ValueError: for text without a tokenizer, chat messages without a chat template, or ids of another shape.
        """
        if isinstance(prompt, list) and not any(isinstance(message, dict) for message in prompt):
            prompt = np.asarray(prompt)  # token ids, or nothing
        if isinstance(prompt, str | list) and self.tokenizer is None:
            raise ValueError("a text prompt needs a tokenizer, and this decoder has none; give token ids")
        if isinstance(prompt, str):
            if not prompt:
                raise ValueError("the prompt is empty; it must have at least one character")
            if raw or not self.tokenizer.chat_template:
                return np.asarray(self.tokenizer(prompt)["input_ids"], dtype=np.int64)
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(prompt, list):
            if not self.tokenizer.chat_template:
                raise ValueError("chat messages need a chat template, and this model's tokenizer has none; give text")
            rendered = self._rendered(prompt)
            return np.asarray(self.tokenizer(rendered, add_special_tokens=False)["input_ids"], dtype=np.int64)
        ids = np.asarray(prompt.cpu() if isinstance(prompt, Tensor) else prompt)
        if ids.ndim == 2 and len(ids) == 1:
            ids = ids[0]
        if ids.ndim == 1 and not len(ids):
            return np.empty(0, dtype=np.int64)  # whatever its type, it is empty, and that is what is wrong with it
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(
                f"the prompt's token ids have shape {ids.shape} and type {ids.dtype}; "
                "they must be one sequence of integers"
            )
        return ids.astype(np.int64)

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        """Messages as the chat template has them."""
        try:
            return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except Exception as error:  # a template is a program, and may refuse messages in any way
            said = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"this model's chat template cannot be filled with these messages: {said}") from error

    def text(self, token_ids: Sequence[int]) -> str | None:
        return None if self.tokenizer is None else self._decode(token_ids)

    def text_stream(self) -> TextStream | None:
        return None if self.tokenizer is None else DecodedStream(self.tokenizer, self._decode)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


def stop_criterion(tokenizer: Any, stop_strings: Any) -> StopStringCriteria | None:
    """What stops after a text; None if there is none to stop after.

    `generate` loses its argument `tokenizer` where it is given a `custom_generate`, so it cannot make this itself.

    Raises:
        ValueError: without a tokenizer, or for anything but texts.
    """
    if not stop_strings:
        return None
    _require_texts("stop_strings", stop_strings)
    if tokenizer is None:
        raise ValueError(f"stop_strings is {stop_strings!r}; stop strings need a tokenizer, and there is none")
    return StopStringCriteria(tokenizer, stop_strings)


def _fields(config: Any) -> Mapping[str, Any]:
    """What a generation config says; nothing if there is none."""
    if config is None:
        return {}
    if not isinstance(config, GenerationConfig):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad option
            f"generation_config is {config!r}; it must be a transformers.GenerationConfig"
        )
    return dict(vars(config))


def _require_whole(option: str, value: Any, at_least: int) -> None:
    if not isinstance(value, int | np.integer) or value < at_least:
        raise ValueError(f"{option} is {value!r}; it must be a whole number and at least {at_least}")


def _require_texts(option: str, value: Any) -> None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{option} is {value!r}; it must be a text, or a list of texts, none of them empty")


def sampling_options(options: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Translate our `temperature` 0 into transformers' `do_sample`; `given` is what a generation config says."""
    temperature = options.get("temperature")
    if temperature is not None and not (isinstance(temperature, int | float) and temperature >= 0):
        raise ValueError(f"temperature is {temperature}; it must be 0 (greedy) or more")
    if options.get("do_sample") is None:
        said = given.get("do_sample") if temperature is None else None
        wanted = given.get("temperature") if temperature is None else temperature
        options["do_sample"] = bool(wanted) if said is None else said
    if not options["do_sample"]:
        # generate warns about sampling options that greedy decoding does not use, the model's own defaults included
        options.update(temperature=1.0, top_p=1.0, top_k=50, min_p=None, typical_p=1.0)


def prepared_request(input_ids: Tensor, prepared: Mapping[str, Any], seed: int | None) -> Request:
    """A request from what `generate` hands to a `custom_generate` function.

    Args:
        input_ids: shape `(1, prompt)`, int64.
        prepared: `generation_config`, `logits_processor`, `stopping_criteria` and, it may be, `attention_mask`.
        seed: for sampling; None takes a fresh one.

    Raises:
        ValueError: for a batch, a padded prompt, a way of decoding that is not greedy or sampling, or scores or states
            that are to be returned.
    """
    rest = dict(prepared)
    config: GenerationConfig = rest.pop("generation_config")
    processors = rest.pop("logits_processor", None) or LogitsProcessorList()
    criteria = rest.pop("stopping_criteria", None) or StoppingCriteriaList()
    check_prepared(input_ids, config, rest)
    check_functions("logits_processor", processors)
    check_functions("stopping_criteria", criteria)
    made = (MaxLengthCriteria, EosTokenCriteria, *([MaxTimeCriteria] if config.max_time is not None else []))
    return Request(
        ids=input_ids[0].cpu().numpy().astype(np.int64),
        max_new_tokens=_max_new_tokens(criteria, config, input_ids.shape[1]),
        sampling=Sampling(bool(config.do_sample), tuple(processors)),
        eos=_eos(criteria),
        criteria=tuple(_as_criterion(one) for one in criteria if not isinstance(one, made)),
        seed=seed,
        max_seconds=config.max_time,
    )


def _max_new_tokens(criteria: StoppingCriteriaList, config: GenerationConfig, prompt: int) -> int:
    lengths = [one.max_length for one in criteria if isinstance(one, MaxLengthCriteria)]
    if not lengths:
        lengths = [config.max_length if config.max_length else prompt + DEFAULT_MAX_NEW_TOKENS]
    return int(min(lengths)) - prompt


def _eos(criteria: StoppingCriteriaList) -> frozenset[int]:
    return frozenset(
        int(token) for one in criteria if isinstance(one, EosTokenCriteria) for token in one.eos_token_id.tolist()
    )


def _as_criterion(criterion: Callable[..., Any]) -> Criterion:
    def stops(ids: Tensor) -> bool:
        answer = criterion(ids, None)
        return bool(answer.all()) if isinstance(answer, Tensor) else bool(answer)

    return stops
