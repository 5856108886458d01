"""Every argument of `model.generate` is honoured, changes nothing, or is refused by name; none is ignored."""

import inspect
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
    WatermarkingConfig,
)
from transformers.generation import GenerationMixin

import talon_core
from talon_core.decoding.decoder import Decoder
from talon_core.hf.arguments import ARGUMENTS, HARMLESS, HONOURED, INSIDE_ONLY, PASSED_ON, REFUSED
from talon_core.runtime.cache_keyword import cache_keyword
from talon_tests.tiny_models import tiny_model

PROMPT = torch.tensor([[5, 9, 33, 9, 33, 41, 5, 9]])
SHORT = torch.tensor([[5, 9, 33]])
MODEL = tiny_model("llama")
CACHE = cache_keyword(MODEL)
PARTS: dict[str, Any] = {"drafter": "ngram", "policy": "talon:budget=10,top_k=3"}
INSIDE = talon_core.as_generate(**PARTS)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return talon_core.load(MODEL, **PARTS)


def plain(**options: Any) -> list[int]:
    given = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "inputs": PROMPT, **options}
    given.setdefault("attention_mask", torch.ones_like(PROMPT))
    return [int(token) for token in MODEL.generate(**given)[0, PROMPT.shape[1] :]]


def test_each_field_of_a_generation_config_is_of_one_kind() -> None:
    """A field that a later transformers adds fails here: decide what becomes of it."""
    kinds = [HONOURED, set(HARMLESS), set(REFUSED)]
    assert sum(map(len, kinds)) == len(set().union(*kinds))
    fields = set(vars(GenerationConfig()))
    assert fields - set().union(*kinds) == set()
    assert set().union(*kinds) - fields == set()


def test_each_parameter_of_generate_is_of_one_kind() -> None:
    kinds = [set(ARGUMENTS), PASSED_ON, set(INSIDE_ONLY)]
    parameters = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    assert sum(map(len, kinds)) == len(set().union(*kinds))
    assert parameters - set().union(*kinds) == set()


class Even:
    """Allows even tokens only; told the row."""

    def __call__(self, row: int, ids: torch.Tensor) -> list[int]:
        assert row == 0
        return list(range(0, 97, 2))


CHANGING: dict[str, Any] = {
    "min_new_tokens": {"min_new_tokens": 20, "eos_token_id": [3, 35, 88, 91, 10, 76]},
    "min_length": {"min_length": 30, "eos_token_id": [3, 35, 88, 91, 10, 76]},
    "eos_token_id": {"eos_token_id": list(range(0, 97, 9))},
    "max_length": {"max_new_tokens": None, "max_length": 20},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 2.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[token] for token in range(1, 97, 2)]},
    "sequence_bias": {"sequence_bias": {(11,): 12.0, (5, 9): -4.0}},
    "suppress_tokens": {"suppress_tokens": list(range(40))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(90))},
    "forced_eos_token_id": {"forced_eos_token_id": 7},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (2, 3.0), "eos_token_id": 7},
    "watermarking_config": {"watermarking_config": WatermarkingConfig(bias=9.0)},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": Even()},
    "logits_processor": {"logits_processor": LogitsProcessorList([lambda ids, scores: scores.roll(1, -1)])},
    "stopping_criteria": {"stopping_criteria": StoppingCriteriaList([lambda ids, scores: torch.tensor([True])])},
    "generation_config": {"generation_config": GenerationConfig(suppress_tokens=list(range(50)), do_sample=False)},
}


@pytest.mark.filterwarnings("ignore:Passing `generation_config`:UserWarning")
@pytest.mark.parametrize("option", CHANGING)
def test_what_is_honoured_is_what_generate_makes_of_it(decoder: Decoder, option: str) -> None:
    options = CHANGING[option]
    expected = plain(**options)
    assert expected != plain()
    assert plain(**options, custom_generate=INSIDE) == expected
    assert decoder.generate(PROMPT, **{"max_new_tokens": 24, **options}).token_ids == expected


def test_a_forced_first_token_comes_behind_a_prompt_of_one(decoder: Decoder) -> None:
    options = {"inputs": PROMPT[:, :1], "attention_mask": None, "forced_bos_token_id": 7, "max_new_tokens": 4}
    expected = [int(token) for token in MODEL.generate(**options, do_sample=False, pad_token_id=0)[0, 1:]]
    assert expected[0] == 7
    inside = MODEL.generate(**options, do_sample=False, pad_token_id=0, custom_generate=INSIDE)[0, 1:]
    assert inside.tolist() == expected
    assert decoder.generate(PROMPT[0, :1], forced_bos_token_id=7, max_new_tokens=4).token_ids == expected


@pytest.mark.parametrize(
    "options",
    [
        {"use_cache": False},
        {"position_ids": torch.arange(8)[None]},
        {"logits_to_keep": 3},
        {"num_beams": 1, "early_stopping": False, "length_penalty": 1.0},
        {"cache_implementation": "static", "disable_compile": True},
        {"attention_mask": torch.ones_like(PROMPT).float()},
        {"attention_mask": torch.ones_like(PROMPT).bool()},
        {"synced_gpus": False, "num_return_sequences": 1, "guidance_scale": 1.0},
    ],
    ids=lambda options: "+".join(options),
)
def test_what_asks_for_nothing_is_let_through(decoder: Decoder, options: dict[str, Any]) -> None:
    expected = plain(**options)
    assert expected == plain()
    assert plain(**options, custom_generate=INSIDE) == expected
    if "attention_mask" not in options:
        assert decoder.generate(PROMPT, max_new_tokens=24, **options).token_ids == expected


def filled() -> DynamicCache:
    cache = DynamicCache()
    MODEL(torch.tensor([[8, 8]]), **{cache_keyword(MODEL): cache})
    return cache


UNUSED = [
    ({"inputs_embeds": torch.zeros(1, 8, 48)}, "inputs_embeds was given; TALON reads the prompt's token ids alone"),
    ({"position_ids": torch.arange(3, 11)[None]}, "position_ids are not 0 to 7"),
    ({"position_ids": torch.arange(8).flip(0)[None]}, "position_ids are not 0 to 7"),
    ({CACHE: DynamicCache()}, f"{CACHE} is of class DynamicCache; TALON has a cache of its own"),
    ({"assistant_model": MODEL}, "assistant_model is of class LlamaForCausalLM; TALON drafts with a drafter of its"),
    ({"synced_gpus": True}, "synced_gpus is True; TALON does not go on for other processes, so it must be False"),
    ({"negative_prompt_ids": SHORT}, "negative_prompt_ids is of class Tensor; guidance runs the model between"),
    ({"negative_prompt_attention_mask": SHORT}, "negative_prompt_attention_mask is of class Tensor; guidance"),
    ({"num_beams": 2}, "num_beams is 2; TALON decodes greedily or by sampling, so it must be 1"),
    ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is 2; TALON gives one text"),
    ({"guidance_scale": 2.0}, "guidance_scale is 2.0; guidance runs the model between TALON's passes, so it must be 1"),
    ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha is 0.6; TALON decodes greedily or by sampling"),
    ({"dola_layers": "low"}, "dola_layers is 'low'; TALON decodes greedily or by sampling, so it must be left out"),
    ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3; TALON drafts with a drafter of its own"),
    ({"assistant_early_exit": 2}, "assistant_early_exit is 2; TALON drafts with a drafter of its own"),
    ({"use_mtp": True}, "use_mtp is True; TALON drafts with a drafter of its own, so it must be False"),
    ({"is_assistant": True}, "is_assistant is True; TALON's target is no assistant"),
    ({"cache_implementation": "offloaded"}, "cache_implementation is 'offloaded'; TALON has a cache of its own, so"),
    ({"output_scores": True, "return_dict_in_generate": True}, "output_scores is True; TALON gives back tokens"),
    ({"is_causal": False}, "is_causal was given; TALON reads the prompt's token ids alone"),
    ({"output_router_logits": True}, "output_router_logits was given"),
    ({"nonsense": 3}, "not used by the model: .'nonsense'"),
    ({"use_model_defaults": False}, "not used by the model: .'use_model_defaults'"),
    ({"logits_processor": [5]}, "logits_processor holds 5; it must be a list of functions"),
    ({"stopping_criteria": [5]}, "stopping_criteria holds 5; it must be a list of functions"),
]


@pytest.mark.filterwarnings("ignore")  # generate's own, on the way
@pytest.mark.parametrize(("options", "sentence"), UNUSED, ids=lambda given: "+".join(given) if given else None)
def test_what_is_not_done_is_refused_by_name(decoder: Decoder, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        plain(**options, custom_generate=INSIDE)
    with pytest.raises(ValueError, match=sentence):
        decoder.generate(PROMPT, max_new_tokens=5, **options)
    with pytest.raises(ValueError, match=sentence):
        decoder.generate([PROMPT[0], SHORT[0]], max_new_tokens=5, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({CACHE: filled()}, f"{CACHE} is of class DynamicCache"),
        ({"attention_mask": torch.full((1, 8), 0.5)}, "the attention mask hides part of the prompt, or weighs it"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 0, 1]])}, "the attention mask hides part of the prompt"),
        ({"inputs": PROMPT.repeat(2, 1), "attention_mask": None}, "a batch of 2 prompts"),
        ({"token_type_ids": torch.zeros_like(PROMPT)}, "token_type_ids"),
    ],
    ids=lambda given: "+".join(given) if isinstance(given, dict) else None,
)
def test_a_prompt_that_is_more_than_its_tokens_is_refused_inside_generate(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        plain(**options, custom_generate=INSIDE)


class Deaf:
    """Can be given tokens, but not told that there are no more."""

    def put(self, value: torch.Tensor) -> None:
        pass


def test_what_cannot_be_streamed_to_is_refused_before_anything_is_decoded() -> None:
    with pytest.raises(ValueError, match=r"the streamer is .*Deaf.* has no end; it must have `put` and `end`"):
        plain(streamer=Deaf(), custom_generate=INSIDE)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"streamer": object()}, "a decoder does not take streamer: take `Decoder.stream`"),
        ({"inputs": PROMPT}, "a decoder does not take inputs: the prompt is given as it is"),
        ({"input_ids": PROMPT}, "a decoder does not take input_ids: the prompt is given as it is"),
        ({"custom_generate": print}, "a decoder does not take custom_generate"),
        ({"attention_mask": torch.zeros_like(PROMPT)}, "a decoder does not take attention_mask: a prompt has no pad"),
        ({"past_key_values": object()}, "past_key_values is of class object"),
        ({"assistant_tokenizer": object()}, "assistant_tokenizer is of class object"),
        ({"token_healing": True}, "token_healing is True; TALON does not change the prompt, so it must be False"),
        ({"cache_implementation": "paged"}, "cache_implementation is 'paged'"),
        ({"logits_processor": 5}, "logits_processor is 5; it must be a list of functions"),
        ({"prefix_allowed_tokens_fn": 5}, "prefix_allowed_tokens_fn is 5; it must be a function"),
        ({"batch_size": "x"}, "batch_size is 'x'; it must be a whole number and at least 1"),
        ({"batch_size": 0}, "batch_size is 0; it must be a whole number"),
        ({"seed": "x"}, "seed is 'x'; it must be a whole number"),
    ],
    ids=lambda given: "+".join(f"{name}" for name in given) if isinstance(given, dict) else None,
)
def test_what_a_decoder_does_not_take_is_refused_by_name(
    decoder: Decoder, options: dict[str, Any], sentence: str
) -> None:
    for prompt in (PROMPT, [PROMPT[0], SHORT[0]]):
        with pytest.raises(ValueError, match=sentence):
            decoder.generate(prompt, **options)


def test_a_function_of_allowed_tokens_is_told_the_place_of_its_prompt(decoder: Decoder) -> None:
    def only(row: int, ids: torch.Tensor) -> list[int]:
        return [20 + row]

    results = decoder.generate([PROMPT[0], SHORT[0]], max_new_tokens=3, prefix_allowed_tokens_fn=only)
    assert [result.token_ids for result in results] == [[20] * 3, [21] * 3]


def test_what_cannot_be_copied_is_refused_for_a_list(decoder: Decoder) -> None:
    class Single:
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is one only")

    with pytest.raises(ValueError, match=r"logits_processor cannot be copied, and each prompt .*: there is one only"):
        decoder.generate([PROMPT[0], SHORT[0]], logits_processor=[Single()])
