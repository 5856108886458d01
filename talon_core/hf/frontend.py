"""Prompts, options and text for a transformers model."""

import copy
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
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

from talon_core.basics.paths import in_utf8
from talon_core.errors import first_line, of_the_machine, one_line, written
from talon_core.frontend import Frontend, TextStream
from talon_core.hf.arguments import (
    INSIDE_ONLY,
    check_for_decoder,
    check_functions,
    check_ids,
    check_prepared,
    check_tokenizer,
)
from talon_core.hf.text import DecodedStream
from talon_core.hf.values import FORCED, check_seed, check_values
from talon_core.request import Criterion, Request
from talon_core.runtime.embeddings import vocabulary_size
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
        rest = {name: one.item() if isinstance(one, np.generic) else one for name, one in options.items()}
        seed, tokenizer, raw = rest.pop("seed", None), rest.pop("tokenizer", None), rest.pop("raw", None)
        check_seed(seed)
        check_tokenizer(tokenizer)
        check_for_decoder(rest)
        rest = {name: one for name, one in rest.items() if name not in INSIDE_ONLY}  # those that are left are None
        unset = {name for name, one in rest.items() if one is None}
        if raw is not None and not isinstance(raw, bool):
            raise ValueError(f"raw is {written(raw)}; it must be True or False")
        ids = self.encode(prompt, raw=bool(raw))
        if not len(ids):
            raise ValueError("the prompt is empty; it must have at least one token")
        given = _fields(rest.get("generation_config"))
        own = _fields(self.model.generation_config)
        for said in (rest, given):
            check_values(said, vocabulary_size(self.model), own)
        forced = {option: _first(option, rest, given, own) for option in FORCED}
        check_values(forced, vocabulary_size(self.model))  # the model's own, too
        sampling_options(rest, given)
        if not any(said.get(option) for said in (rest, given, own) for option in ("max_new_tokens", "max_length")):
            rest["max_new_tokens"] = DEFAULT_MAX_NEW_TOKENS
        stop_strings = [said["stop_strings"] for said in (rest, given, own) if said.get("stop_strings") is not None]
        if stop_strings:
            criterion = stop_criterion(tokenizer if tokenizer is not None else self.tokenizer, stop_strings[0])
            if criterion is not None:
                rest["stopping_criteria"] = StoppingCriteriaList([*(rest.get("stopping_criteria") or ()), criterion])
            rest["stop_strings"] = None
            unset |= {"stop_strings"} if self.model.generation_config.stop_strings else set()
        return self._prepared(ids, rest, seed, unset)

    def _prepared(self, ids: IntArray, options: dict[str, Any], seed: int | None, unset: Set[str]) -> Request:
        """Let `generate` itself turn options into processors and criteria, up to where it would start decoding.

        Args:
            ids: of the prompt.
            options: of `generate`.
            seed: of the request.
            unset: options that are None because that was said. In a generation config `generate` would put the
                model's own in their places.
        """
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
                nothing = {name: None for name, one in options.items() if one is None and name in unset}
                options = {**config.update(**options), **nothing, "generation_config": config}
            self.model.generate(batch, attention_mask=torch.ones_like(batch), custom_generate=capture, **options)
        except ValueError as error:
            raise ValueError(first_line(error)) from error
        except Exception as error:
            if of_the_machine(error):
                raise
            said = f"{type(error).__name__}: {one_line(error)}"
            raise ValueError(f"generate cannot prepare these options: {said}") from error
        return captured[0]

    def encode(self, prompt: str | list[dict[str, str]] | IntArray | Tensor, raw: bool = False) -> IntArray:
        """Token ids of a prompt, shape `(prompt,)`, int64.

        Raises:
            ValueError: for text without a tokenizer or with half a surrogate pair, chat messages without a chat
                template, or ids of another shape.
        """
        if isinstance(prompt, list) and not any(isinstance(message, dict) for message in prompt):
            prompt = _array(prompt)  # token ids, or nothing
        if isinstance(prompt, str | list) and self.tokenizer is None:
            raise ValueError("a text prompt needs a tokenizer, and this decoder has none; give token ids")
        if isinstance(prompt, str):
            if not prompt:
                raise ValueError("the prompt is empty; it must have at least one character")
            if raw or not self.tokenizer.chat_template:
                return self._tokens(prompt)
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(prompt, list):
            if not self.tokenizer.chat_template:
                raise ValueError("chat messages need a chat template, and this model's tokenizer has none; give text")
            return self._tokens(self._rendered(prompt), add_special_tokens=False)
        if isinstance(prompt, Tensor):
            check_ids(prompt)
            prompt = prompt.cpu().long().numpy()
        ids = _array(prompt)
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

    def _tokens(self, text: str, **options: bool) -> IntArray:
        if not in_utf8(text):
            raise ValueError("the prompt holds half a surrogate pair, which is no character; write both halves or none")
        return np.asarray(self.tokenizer(text, **options)["input_ids"], dtype=np.int64)

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        """Messages as the chat template has them."""
        try:
            return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except Exception as error:  # a template is a program, and may refuse messages in any way
            raise ValueError(
                f"this model's chat template cannot be filled with these messages: {one_line(error)}"
            ) from error

    def text(self, token_ids: Sequence[int]) -> str | None:
        return None if self.tokenizer is None else self._decode(token_ids)

    def text_stream(self) -> TextStream | None:
        return None if self.tokenizer is None else DecodedStream(self.tokenizer, self._decode)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


def _array(prompt: Any) -> NDArray[Any]:
    try:
        return np.asarray(prompt)
    except ValueError:
        raise ValueError(
            f"the prompt's token ids are {written(prompt)}; they must be one sequence of integers"
        ) from None


def stop_criterion(tokenizer: Any, stop_strings: Any) -> StopStringCriteria | None:
    """What stops after a text; None if there is none to stop after.

    `generate` loses its argument `tokenizer` where it is given a `custom_generate`, so it cannot make this itself.

    Raises:
        ValueError: without a tokenizer, or for anything but texts.
    """
    if stop_strings is None or (isinstance(stop_strings, list | tuple) and not stop_strings):
        return None
    texts = [stop_strings] if isinstance(stop_strings, str) else stop_strings
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(
            f"stop_strings is {written(stop_strings)}; it must be a text, or a list of texts, none of them empty"
        )
    if tokenizer is None:
        raise ValueError(f"stop_strings is {stop_strings!r}; stop strings need a tokenizer, and there is none")
    check_tokenizer(tokenizer)
    return _criterion(tokenizer, tuple(texts))


_CRITERIA: WeakKeyDictionary[Any, dict[tuple[int, tuple[str, ...]], StopStringCriteria]] = WeakKeyDictionary()
_MOST_CRITERIA = 32


def _criterion(tokenizer: Any, texts: tuple[str, ...]) -> StopStringCriteria:
    """The criterion for texts, made once: it goes through the whole vocabulary, and keeps nothing of what it sees."""
    try:
        known, key = _CRITERIA.setdefault(tokenizer, {}), (len(tokenizer), texts)  # tokens may be added to it
    except TypeError:  # one that cannot be a key, or has no length
        return StopStringCriteria(tokenizer, [*texts])
    if key not in known:
        if len(known) >= _MOST_CRITERIA:
            known.clear()
        known[key] = StopStringCriteria(tokenizer, [*texts])
    return known[key]


def _first(option: str, *said: Mapping[str, Any]) -> Any:
    """What the first of some says of an option."""
    return next((one[option] for one in said if one.get(option) is not None), None)


def _fields(config: Any) -> Mapping[str, Any]:
    """What a generation config says; nothing if there is none."""
    if config is None:
        return {}
    if not isinstance(config, GenerationConfig):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad option
            f"generation_config is {config!r}; it must be a transformers.GenerationConfig"
        )
    return dict(vars(config))


def sampling_options(options: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Translate our `temperature` 0 into transformers' `do_sample`; `given` is what a generation config says."""
    temperature = options.get("temperature")
    if options.get("do_sample") is None:
        said = given.get("do_sample") if temperature is None else None
        wanted = given.get("temperature") if temperature is None else temperature
        options["do_sample"] = bool(wanted) if said is None else said
    if temperature is not None:
        options["temperature"] = float(temperature)  # transformers refuses whole numbers
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
    own = [one for one in criteria if not _of_the_config(one, config)]
    timed = any(type(one) is MaxTimeCriteria for one in own)  # then generate has put it in the place of the config's
    return Request(
        ids=input_ids[0].cpu().numpy().astype(np.int64),
        max_new_tokens=_max_new_tokens(criteria, config, input_ids.shape[1]),
        sampling=Sampling(bool(config.do_sample), tuple(processors), config.temperature or 1.0),
        eos=_eos(criteria),
        criteria=tuple(_as_criterion(one) for one in own),
        seed=seed,
        max_seconds=None if timed else config.max_time,
    )


def _of_the_config(criterion: Any, config: GenerationConfig) -> bool:
    """Whether a request has fields for what it says. A user's subclass may say anything, so it is none of these."""
    kind = type(criterion)
    if kind is MaxTimeCriteria:
        return bool(criterion.max_time == config.max_time)
    return kind in (MaxLengthCriteria, EosTokenCriteria)


def _max_new_tokens(criteria: StoppingCriteriaList, config: GenerationConfig, prompt: int) -> int:
    lengths = [one.max_length for one in criteria if type(one) is MaxLengthCriteria]
    if lengths:
        return max(int(min(lengths)) - prompt, 1)  # criteria are asked after a token
    if config.max_new_tokens is not None or config.max_length is None:
        return int(config.max_new_tokens or DEFAULT_MAX_NEW_TOKENS)
    return int(config.max_length) - prompt


def _eos(criteria: StoppingCriteriaList) -> frozenset[int]:
    return frozenset(
        int(token) for one in criteria if type(one) is EosTokenCriteria for token in one.eos_token_id.tolist()
    )


def _as_criterion(criterion: Callable[..., Any]) -> Criterion:
    def stops(ids: Tensor) -> bool:
        answer = criterion(ids, None)
        one = answer.item() if isinstance(answer, Tensor | np.ndarray) and np.prod(answer.shape) == 1 else answer
        if not isinstance(one, bool | int | np.bool_):
            name = getattr(criterion, "__name__", type(criterion).__name__)
            raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad option
                f"stopping criterion '{name}' returned {written(answer)}; it must return True or False, or a "
                "tensor that holds one of them"
            )
        return bool(one)

    return stops
