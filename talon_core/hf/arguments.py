"""What becomes of each argument of `model.generate`: it is honoured, it changes nothing here, or it is refused."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from talon_core.errors import written
from talon_core.runtime.cache_keyword import CACHE_KEYWORDS

HONOURED = frozenset(
    {
        *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings", "eos_token_id"),
        *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
        *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("bad_words_ids", "sequence_bias", "suppress_tokens", "begin_suppress_tokens", "remove_invalid_values"),
        *("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "renormalize_logits"),
        *("watermarking_config", "bos_token_id", "return_dict_in_generate"),
    }
)
"""Fields of a `GenerationConfig` that mean what they mean in `generate`: they become processors and stop conditions."""

HARMLESS: Mapping[str, str] = {
    "pad_token_id": "one sequence is decoded at a time, or each of a list in its own slot: nothing is padded",
    "use_cache": "there always is a cache, and the tokens are the same without",
    "max_cache_len": "it sizes a static cache of transformers; the cache is TALON's own",
    "cache_config": "it is read by a quantised cache alone, which is refused",
    "prefill_chunk_size": "prompts are read in parts of TALON's own size, with the same result",
    "compile_config": "generate compiles for its static cache alone, which is not used",
    "disable_compile": "as above",
    "continuous_batching_config": "generate reads it with cache_implementation='paged' alone, which is refused",
    "early_stopping": "beam search alone reads it, which is refused",
    "length_penalty": "as above",
    "diversity_penalty": "as above",
    "low_memory": "as above",
    "decoder_start_token_id": "encoder-decoders alone read it, which are refused",
    "num_assistant_tokens": "assisted decoding alone reads it, which is refused",
    "num_assistant_tokens_schedule": "as above",
    "assistant_confidence_threshold": "as above",
    "assistant_lookbehind": "as above",
    "target_lookbehind": "as above",
    "max_matching_ngram_size": "as above",
    "_from_model_config": "it tells where the configuration came from",
    "transformers_version": "it tells what wrote the configuration",
}
"""Fields of a `GenerationConfig` that change no token, and why."""

REFUSED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "num_beams": ("TALON decodes greedily or by sampling", (1,)),
    "num_beam_groups": ("TALON decodes greedily or by sampling", (1,)),
    "num_return_sequences": ("TALON gives one text for a prompt", (1,)),
    "guidance_scale": ("guidance runs the model between TALON's passes", (1,)),
    "penalty_alpha": ("TALON decodes greedily or by sampling", (0,)),
    "dola_layers": ("TALON decodes greedily or by sampling", ()),
    "constraints": ("TALON decodes greedily or by sampling", ()),
    "force_words_ids": ("TALON decodes greedily or by sampling", ()),
    "token_healing": ("TALON does not change the prompt", (False,)),
    "use_mtp": ("TALON drafts with a drafter of its own", (False,)),
    "prompt_lookup_num_tokens": ("TALON drafts with a drafter of its own", ()),
    "assistant_early_exit": ("TALON drafts with a drafter of its own", ()),
    "assistant_ensemble_weight": ("TALON drafts with a drafter of its own", ()),
    "speculation_type": ("TALON drafts with a drafter of its own", ()),
    "is_assistant": ("TALON's target is no assistant", (False,)),
    "cache_implementation": ("TALON has a cache of its own", ("dynamic", "static", "hybrid", "sliding_window")),
    "output_scores": ("TALON gives back tokens only", (False,)),
    "output_logits": ("TALON gives back tokens only", (False,)),
    "output_attentions": ("TALON gives back tokens only", (False,)),
    "output_hidden_states": ("TALON gives back tokens only", (False,)),
}
"""Fields of a `GenerationConfig` that ask for what is not done: why, and which values beside None ask for nothing."""

ARGUMENTS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "assistant_model": ("TALON drafts with a drafter of its own", ()),
    "assistant_tokenizer": ("TALON drafts with a drafter of its own", ()),
    "synced_gpus": ("TALON does not go on for other processes", (False,)),
    "negative_prompt_ids": ("guidance runs the model between TALON's passes", ()),
    "negative_prompt_attention_mask": ("guidance runs the model between TALON's passes", ()),
    **dict.fromkeys(CACHE_KEYWORDS, ("TALON has a cache of its own, and neither reads nor fills another", ())),
}
"""Arguments of `generate` itself that are refused, in the same form."""

PASSED_ON = frozenset({"logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "generation_config"})
"""Arguments of `generate` itself that mean what they mean there, for a `Decoder` too."""

INSIDE_ONLY: Mapping[str, str] = {
    "inputs": "the prompt is given as it is to the decoder",
    "input_ids": "the prompt is given as it is to the decoder",
    "attention_mask": "a prompt has no padding here",
    "streamer": "take `Decoder.stream`, or `as_generate` inside `model.generate`",
    "custom_generate": "the decoder is what decodes",
    "trust_remote_code": "the decoder is what decodes",
}
"""Arguments of `generate` that a `Decoder` does not take, and what to do."""

MODEL_ARGUMENTS = frozenset({"attention_mask", "position_ids", *CACHE_KEYWORDS, "use_cache", "logits_to_keep"})
"""What `generate` hands on for the model and TALON looks at itself, or which changes no token."""

ONLY_IDS = "{} was given; TALON reads the prompt's token ids alone, so it must be left out"


def refuse(options: Mapping[str, Any], table: Mapping[str, tuple[str, tuple[Any, ...]]]) -> None:
    """Refuse what the table names and asks for something.

    Raises:
        ValueError: for the first such option; the sentence names it.
    """
    for option, (why, harmless) in table.items():
        value = options.get(option)
        plain = isinstance(value, bool | int | float | str)
        if value is None or (plain and value in harmless):
            continue
        what = f"is {value!r}" if plain else f"is of class {type(value).__name__}"
        wanted = " or ".join(map(repr, harmless)) if harmless else "left out"
        raise ValueError(f"{option} {what}; {why}, so it must be {wanted}")


def check_for_decoder(options: Mapping[str, Any]) -> None:
    """Refuse arguments of `generate` that mean nothing to a `Decoder`, and lists of what is no function.

    Raises:
        ValueError: for the first; the sentence names it.
    """
    for option, instead in INSIDE_ONLY.items():
        if options.get(option) is not None:
            raise ValueError(f"a decoder does not take {option}: {instead}")
    _refuse_embeddings(options)
    refuse(options, ARGUMENTS)
    refuse(options, REFUSED)  # some of these make generate do something else before it comes to us
    if options.get("return_dict_in_generate") is True:
        raise ValueError("return_dict_in_generate is True; a decoder gives a `Result`, so it must be False or left out")
    for option in ("logits_processor", "stopping_criteria"):
        check_functions(option, options.get(option))
    allowed = options.get("prefix_allowed_tokens_fn")
    if allowed is not None and not callable(allowed):
        raise ValueError(f"prefix_allowed_tokens_fn is {allowed!r}; it must be a function")


def check_functions(option: str, given: Any) -> None:
    """Processors and criteria are called in the middle of decoding, where an error comes too late.

    Raises:
        ValueError: if it is no list of functions.
    """
    if given is None:
        return
    if not isinstance(given, list | tuple):  # what can be read but once would be empty when it is asked for
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad option
            f"{option} is {given!r}; it must be a list of functions"
        )
    for one in given:
        if not callable(one):
            raise ValueError(  # noqa: TRY004 - as above
                f"{option} holds {one!r}; it must be a list of functions"
            )


def check_streamer(streamer: Any) -> None:
    """Refuse what cannot be streamed to.

    Raises:
        ValueError: if it has not the methods of transformers' streamers.
    """
    for method in ("put", "end"):
        found: Callable[..., Any] | None = getattr(streamer, method, None)
        if streamer is not None and not callable(found):
            raise ValueError(f"the streamer is {streamer!r}, which has no {method}; it must have `put` and `end`")


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse what is no tokenizer; None is none at all.

    Raises:
        ValueError: if it has not the methods of transformers' tokenizers that are called.
    """
    for method in ("decode", "get_vocab"):
        if tokenizer is not None and not callable(getattr(tokenizer, method, None)):
            raise ValueError(
                f"the tokenizer is {written(tokenizer)}, which has no {method}; it must be one of transformers'"
            )


def check_prepared(input_ids: Tensor, config: GenerationConfig, prepared: Mapping[str, Any]) -> None:
    """Refuse what `generate` hands to a `custom_generate` function and TALON does not do.

    Args:
        input_ids: shape `(batch, prompt)`, int64.
        config: the generation config that everything has come into.
        prepared: the other arguments; those for the model among them.

    Raises:
        ValueError: for the first; the sentence names it.
    """
    refuse(vars(config), REFUSED)
    _refuse_embeddings(prepared)
    check_ids(input_ids)
    if input_ids.ndim != 2:
        raise ValueError(f"the prompt has shape {tuple(input_ids.shape)}; it must be (1, length)")
    if input_ids.shape[0] != 1:
        raise ValueError(
            f"got a batch of {input_ids.shape[0]} prompts; inside `generate` TALON decodes one prompt, and a list of "
            "them together by talon_core.load(model, tokenizer=tokenizer).generate(prompts)"
        )
    for option, value in prepared.items():
        if value is not None and option not in MODEL_ARGUMENTS:
            raise ValueError(ONLY_IDS.format(option))
    _check_mask(prepared.get("attention_mask"), input_ids.shape)
    positions = prepared.get("position_ids")
    if positions is not None and not _counts_up(positions, input_ids.shape):
        raise ValueError(
            f"position_ids are not 0 to {input_ids.shape[1] - 1}, the places of the prompt's tokens, "
            f"in a tensor of shape {tuple(input_ids.shape)}; leave them out"
        )
    caches = map(prepared.get, CACHE_KEYWORDS)
    if any(getattr(cache, "_is_user_defined", False) for cache in caches):  # generate's mark; others it has made itself
        refuse(prepared, ARGUMENTS)


def check_ids(ids: Tensor) -> None:
    """Refuse a tensor that holds no token ids. One that holds nothing at all may be of any type.

    Raises:
        ValueError: if its elements are no whole numbers, or are not there.
    """
    whole = ids.dtype is not torch.bool and not ids.is_floating_point() and not ids.is_complex()
    dense = ids.layout is torch.strided and not ids.is_meta
    if dense and (whole or not ids.numel()):
        return
    of = str(ids.dtype) if dense else f"{ids.dtype}, on the device {ids.device.type} with the layout {ids.layout}"
    raise ValueError(
        f"the prompt's token ids have shape {tuple(ids.shape)} and type {of.replace('torch.', '')}; "
        f"they must be one sequence of integers{'' if dense else ', in a plain tensor'}"
    )


def _refuse_embeddings(options: Mapping[str, Any]) -> None:
    if options.get("inputs_embeds") is not None:
        raise ValueError(ONLY_IDS.format("inputs_embeds"))


def _check_mask(mask: Any, shape: torch.Size) -> None:
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.shape != shape:
        what = f"has shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"is of class {type(mask).__name__}"
        raise ValueError(f"the attention mask {what}; it must be a tensor of the prompt's shape, {tuple(shape)}")
    if not bool((mask == 1).all()):
        raise ValueError(
            "the attention mask hides part of the prompt, or weighs it: it must be 1 everywhere; "
            "give the prompt without padding"
        )


def _counts_up(positions: Any, shape: torch.Size) -> bool:
    if not isinstance(positions, Tensor) or positions.shape != shape or positions.dtype is torch.bool:
        return False
    return bool((positions[0] == torch.arange(shape[1], device=positions.device)).all())
