"""What no option may be: refused in one sentence that names it, by every public entry, before anything is decoded."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

import talon_core
from talon_core.decoding.decoder import Decoder
from talon_core.hf.arguments import HONOURED
from talon_core.hf.values import VALUES
from talon_core.request import Request
from talon_tests.tiny_models import tiny_model

PROMPT = torch.tensor([[5, 9, 33, 9, 33, 41, 5, 9]])
MODEL = tiny_model("llama")
PARTS: dict[str, Any] = {"drafter": "ngram", "policy": "talon:budget=6,top_k=2"}
INSIDE = talon_core.as_generate(**PARTS)
NAN, INFINITY = float("nan"), float("inf")

COUNT = [1.5, True, "3", -1, NAN, [3], torch.tensor([3]), torch.tensor(1.5), np.True_]
SHARE = ["0.5", -0.1, 1.1, NAN, True, [0.5]]
FLAG = ["no", 2, [True], 1.0]
IDS = ["x", 1.5, -1, 97, {3}, [1.5], [True], ["x"], [[1]], [1, 97], [-1], torch.tensor(1.5), torch.tensor([[3]])]

WRONG: dict[str, list[Any]] = {
    **{option: [0, *COUNT] for option in ("max_new_tokens", "max_length")},
    **dict.fromkeys(("min_new_tokens", "min_length", "top_k"), COUNT),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), COUNT),
    **dict.fromkeys(("top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"), SHARE),
    **{option: ["2", 0, -1, NAN, INFINITY, True] for option in ("repetition_penalty", "encoder_repetition_penalty")},
    **dict.fromkeys(("do_sample", "renormalize_logits", "remove_invalid_values"), FLAG),
    "return_dict_in_generate": FLAG,
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), IDS),
    **{option: [5, *IDS] for option in ("suppress_tokens", "begin_suppress_tokens")},
    **{option: ["x", 1.5, True, [1, 2]] for option in ("pad_token_id", "bos_token_id")},
    "forced_bos_token_id": [[3], *IDS],
    "bad_words_ids": ["x", 5, [], [5], [[]], [[-1]], [[97]], [["a"]], [[1.5]]],
    "sequence_bias": [{(5,): NAN}, [[[5], NAN]]],
    "temperature": ["warm", NAN, INFINITY, -1, True, [1], 10**400],
    "max_time": ["x", NAN, -1, True, [1]],
    "exponential_decay_length_penalty": ["x", 5, (1,), ("a", 1.0), (1, "b"), (1, NAN), (-1, 1.1), (1, 2, 3)],
    "watermarking_config": ["x", 5],
    "stop_strings": [5, [5], "", [""], {"a"}, b"x"],
}


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return talon_core.load(MODEL, **PARTS)


def inside(option: str, value: object) -> None:
    """Where transformers is not in the way: it fails at some of these values itself, in words of its own."""
    config = GenerationConfig(max_length=20)
    options = {option: value} if option == "stop_strings" else {}
    if not options:
        setattr(config, option, value)
    none: dict[str, Any] = {"logits_processor": LogitsProcessorList(), "stopping_criteria": StoppingCriteriaList()}
    INSIDE(MODEL, PROMPT, generation_config=config, **none, **options)


def in_a_config(decoder: Decoder, option: str, value: object) -> None:
    config = GenerationConfig()
    setattr(config, option, value)
    decoder.generate(PROMPT, generation_config=config)


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_is_refused_by_every_entry(decoder: Decoder, option: str) -> None:
    entries: list[Callable[[Any], object]] = [
        lambda value: decoder.generate(PROMPT, **{option: value}),
        lambda value: decoder.generate([PROMPT[0], PROMPT[0]], **{option: value}),
        lambda value: decoder.stream(PROMPT, **{option: value}),
        lambda value: in_a_config(decoder, option, value),
        lambda value: inside(option, value),
    ]
    for value in WRONG[option]:
        for entry in entries:
            with pytest.raises(ValueError, match=rf"^{option} is .*; it must be [^\n]*\Z"):
                entry(value)


def test_every_option_that_is_honoured_is_checked() -> None:
    assert set(VALUES) >= HONOURED - {"stop_strings"}
    assert set(WRONG) == {*VALUES, "stop_strings"}


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": np.int64(3)},
        {"max_new_tokens": torch.tensor(3)},
        {"max_length": np.int32(11), "max_new_tokens": None},
        {"eos_token_id": (3, 4)},
        {"eos_token_id": torch.tensor([3, 4])},
        {"eos_token_id": np.array([3])},
        {"eos_token_id": []},
        {"do_sample": 0},
        {"do_sample": np.False_},
        {"max_time": INFINITY},
        {"max_time": np.float32(99)},
        {"stop_strings": []},
        {"pad_token_id": 97},
        {"top_k": 1, "do_sample": True},
        {"top_p": 0, "do_sample": True},
        {"attention_mask": None, "streamer": None, "trust_remote_code": None, "assistant_model": None},
    ],
    ids=lambda options: "+".join(options),
)
def test_what_means_something_is_taken(decoder: Decoder, options: dict[str, Any]) -> None:
    given = {"max_new_tokens": 3, **options}
    expected = [43, 10, 9]
    assert decoder.generate(PROMPT, **given).token_ids == expected
    found = MODEL.generate(PROMPT, **{"pad_token_id": 0, **given}, custom_generate=INSIDE)
    assert found[0, PROMPT.shape[1] :].tolist() == expected


def test_a_whole_number_is_a_temperature(decoder: Decoder) -> None:
    found = [
        decoder.generate(PROMPT, max_new_tokens=9, temperature=of, seed=1).token_ids for of in (2, 2.0, np.int64(2))
    ]
    assert found[0] == found[1] == found[2]


def test_a_value_of_the_models_own_configuration_is_nobodys_mistake(decoder: Decoder) -> None:
    before = MODEL.generation_config
    MODEL.generation_config = GenerationConfig(**before.to_dict())
    MODEL.generation_config.eos_token_id = [3, 97]
    try:
        assert decoder.generate(PROMPT, max_new_tokens=3).token_ids == [43, 10, 9]
        assert MODEL.generate(PROMPT, max_new_tokens=3, pad_token_id=0, custom_generate=INSIDE).shape == (1, 11)
    finally:
        MODEL.generation_config = before


@pytest.mark.parametrize("seed", ["x", 1.5, -1, True, [1], NAN, torch.tensor([1])])
def test_what_is_no_seed_is_refused(decoder: Decoder, seed: Any) -> None:
    entries: list[Callable[[], object]] = [
        lambda: decoder.generate(PROMPT, seed=seed),
        lambda: decoder.generate([PROMPT[0], PROMPT[0]], seed=seed),
        lambda: decoder.stream(PROMPT, seed=seed),
        lambda: decoder.run(Request(PROMPT[0].numpy(), 3, seed=seed)),
        lambda: talon_core.as_generate(seed=seed),
        lambda: talon_core.as_generate(decoder=decoder, seed=seed),
    ]
    for entry in entries:
        with pytest.raises(ValueError, match=r"seed is .*; it must be a whole number and at least 0"):
            entry()


@pytest.mark.parametrize("tokenizer", [5, "x", object()])
def test_what_is_no_tokenizer_is_refused(decoder: Decoder, tokenizer: Any) -> None:
    for entry in (
        lambda: decoder.generate(PROMPT, tokenizer=tokenizer),
        lambda: decoder.stream(PROMPT, tokenizer=tokenizer, stop_strings="x"),
        lambda: talon_core.as_generate(tokenizer=tokenizer),
        lambda: talon_core.as_generate(tokenizer=tokenizer, stop_strings="x"),
    ):
        with pytest.raises(
            ValueError, match=r"the tokenizer is .*, which has no decode; it must be one of transformers'"
        ):
            entry()


IN_GENERATE: list[tuple[dict[str, Any], str]] = [
    ({"inputs": PROMPT.float()}, "token ids have shape .1, 8. and type float32; they must be one sequence of integers"),
    ({"inputs": PROMPT.bool()}, "token ids have shape .1, 8. and type bool"),
    ({"inputs": PROMPT[None], "attention_mask": None}, r"prompt has shape \(1, 1, 8\); it must be \(1, length\)"),
    ({"inputs": PROMPT - 6}, "the prompt holds token -1; the target's vocabulary has ids 0 to 96"),
    ({"inputs": PROMPT + 90}, "the prompt holds token 131"),
    (
        {"attention_mask": torch.ones(1, 7)},
        r"mask has shape \(1, 7\); it must be a tensor of the prompt's shape, ",
    ),
    ({"attention_mask": torch.ones(1, 9)}, r"the attention mask has shape \(1, 9\)"),
    ({"attention_mask": torch.ones(2, 8)}, r"the attention mask has shape \(2, 8\)"),
    ({"attention_mask": torch.ones(1, 0)}, r"the attention mask has shape \(1, 0\)"),
    ({"attention_mask": torch.full((1, 8), NAN)}, "the attention mask hides part of the prompt, or weighs it"),
    ({"attention_mask": torch.full((1, 8), 2)}, "the attention mask hides part of the prompt, or weighs it"),
]


@pytest.mark.parametrize(("given", "sentence"), IN_GENERATE)
def test_a_wrong_prompt_or_mask_is_refused_inside_generate(given: dict[str, Any], sentence: str) -> None:
    options = {"inputs": PROMPT, "attention_mask": torch.ones_like(PROMPT), "pad_token_id": 0, **given}
    with pytest.raises(ValueError, match=sentence):
        MODEL.generate(**options, max_new_tokens=3, custom_generate=INSIDE)


POSITIONS = torch.arange(8)
WRONG_POSITIONS: list[Any] = [
    *(5, "x", POSITIONS.tolist(), [POSITIONS.tolist()], POSITIONS.numpy()[None], POSITIONS, POSITIONS[None, None]),
    *(POSITIONS[None, :7], torch.arange(9)[None], POSITIONS[None].repeat(2, 1), POSITIONS[None].bool()),
    *(POSITIONS[None] * NAN, POSITIONS[None] + 1),
]


@pytest.mark.parametrize("positions", WRONG_POSITIONS, ids=lambda given: type(given).__name__)
def test_wrong_positions_are_refused(decoder: Decoder, positions: Any) -> None:
    sentence = r"position_ids are not 0 to 7, the places of the prompt's tokens, in a tensor of shape \(1, 8\); leave"
    with pytest.raises(ValueError, match=sentence):
        decoder.generate(PROMPT, max_new_tokens=3, position_ids=positions)
    with pytest.raises(ValueError, match=sentence):
        decoder.stream(PROMPT, max_new_tokens=3, position_ids=positions)
    with pytest.raises(ValueError, match=sentence):
        MODEL.generate(PROMPT, max_new_tokens=3, pad_token_id=0, position_ids=positions, custom_generate=INSIDE)


NO_IDS: list[Any] = [
    *(
        PROMPT.float(),
        PROMPT.bfloat16(),
        PROMPT.bool(),
        PROMPT[None],
        torch.tensor(5),
        PROMPT.to_sparse(),
        5,
        1.5,
        None,
    ),
    *(torch.empty(3, dtype=torch.int64, device="meta"), torch.ones(3, requires_grad=True), np.array([5.0]), b"abc"),
    *([5, "x"], [5, 1.5], [None], None, [True], {5, 9}, {"a": 1}, iter([5, 9]), [[5, [9]]], print),
]


@pytest.mark.parametrize("prompt", NO_IDS, ids=lambda given: type(given).__name__)
def test_what_holds_no_token_ids_is_refused(decoder: Decoder, prompt: Any) -> None:
    for entry in (decoder.generate, decoder.stream):
        with pytest.raises(ValueError, match=r"the prompt's token ids .*; they must be one sequence of integers"):
            entry(prompt, max_new_tokens=3)


def test_lists_within_a_list_of_prompts_are_refused(decoder: Decoder) -> None:
    with pytest.raises(
        ValueError, match=r"the prompt's token ids are \[5, \[9\]\]; they must be one sequence of integers"
    ):
        decoder.generate([[5, [9]], [3]], max_new_tokens=3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"raw": "x"}, "raw is 'x'; it must be True or False"),
        ({"inputs_embeds": 5}, "inputs_embeds was given; TALON reads the prompt's token ids alone"),
        ({"logits_processor": (one for one in [print])}, "logits_processor is .*; it must be a list of functions"),
        ({"stopping_criteria": {print}}, "stopping_criteria is .*; it must be a list of functions"),
        ({"stopping_criteria": [lambda *_: "x"]}, "criterion '<lambda>' returned 'x'; it must return True or False"),
        ({"stopping_criteria": [lambda *_: None]}, "stopping criterion '<lambda>' returned None"),
        ({"stopping_criteria": [lambda *_: NAN]}, "stopping criterion '<lambda>' returned nan"),
        ({"stopping_criteria": [lambda *_: torch.zeros(0)]}, "stopping criterion '<lambda>' returned tensor"),
        ({"stopping_criteria": [lambda *_: np.array([True, False])]}, "stopping criterion '<lambda>' returned array"),
        ({"exponential_decay_length_penalty": (1, 1.5)}, "generate cannot prepare these options: .*NoneType"),
        ({"watermarking_config": {"nonsense": 3}}, "generate cannot prepare these options: TypeError: .*nonsense"),
    ],
)
def test_what_else_a_decoder_cannot_use_is_refused(decoder: Decoder, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        decoder.generate(PROMPT, max_new_tokens=3, **options)
    assert decoder.generate(PROMPT, max_new_tokens=3).token_ids == [43, 10, 9]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"ids": [5, 9]}, r"ids are \[5, 9\]; they must be a NumPy array of integers, of one dimension"),
        ({"ids": np.array([[5]])}, r"ids are array\(\[\[5\]\]\); they must"),
        ({"ids": np.array([5.0])}, r"ids are array\(\[5\.\]\); they must"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5; it must be a whole number"),
        ({"max_new_tokens": True}, "max_new_tokens is True; it must be a whole number"),
        ({"max_seconds": NAN}, "max_seconds is nan; it must be a number, at least 0, or None"),
        ({"max_seconds": "x"}, "max_seconds is 'x'"),
        ({"eos": 3}, "eos is 3; it must be a frozenset of token ids"),
        ({"eos": frozenset({"x"})}, r"eos is frozenset\(\{'x'\}\); it must"),
        ({"criteria": (5,)}, r"criteria is \(5,\); it must be a tuple of functions"),
        ({"criteria": print}, "criteria is <built-in function print>"),
    ],
)
def test_a_wrong_field_of_a_request_is_refused(decoder: Decoder, fields: dict[str, Any], sentence: str) -> None:
    request = Request(**{"ids": np.array([5, 9]), "max_new_tokens": 3, **fields})
    with pytest.raises(ValueError, match=sentence):
        decoder.run(request)
    with pytest.raises(ValueError, match=sentence):
        decoder.run_all([request])


@pytest.mark.parametrize("cancel", [5, "x", True, print, threading.Event])
def test_what_cannot_cancel_is_refused(decoder: Decoder, cancel: Any) -> None:
    for entry in (decoder.generate, decoder.stream):
        with pytest.raises(ValueError, match=r"cancel is .*; it must be a threading.Event, or have its method is_set"):
            entry(PROMPT, max_new_tokens=3, cancel=cancel)


def test_a_stream_takes_one_prompt(decoder: Decoder) -> None:
    with pytest.raises(ValueError, match=r"a stream decodes one prompt, and got 2; make a stream of each, or call gen"):
        decoder.stream([PROMPT[0], PROMPT[0]])  # type: ignore[arg-type]
    for one in (PROMPT.tolist(), [PROMPT[0]], [tuple(PROMPT[0].tolist())]):
        chunks = decoder.stream(one, max_new_tokens=3)  # type: ignore[arg-type]
        assert [token for chunk in chunks for token in chunk.round.tokens] == [43, 10, 9]


@pytest.mark.parametrize("beside", ["eos_token_id", "top_k"])
def test_none_beside_a_generation_config_means_what_it_means_in_generate(beside: str) -> None:
    model = tiny_model("llama")
    plain = model.generate(PROMPT, max_new_tokens=12, do_sample=False)[0, PROMPT.shape[1] :].tolist()
    model.generation_config.eos_token_id = plain[3]
    config: dict[str, Any] = {"max_new_tokens": 12}
    if beside == "top_k":  # by default it leaves 50, and here none but the most likely token
        model.generation_config.top_k = 1
        config |= {"do_sample": True, "temperature": 3.0, "eos_token_id": [96]}
    decoder = talon_core.load(model, **PARTS)
    torch.manual_seed(0)
    expected = model.generate(PROMPT, generation_config=GenerationConfig(**config), **{beside: None})
    told = decoder.generate(PROMPT, generation_config=GenerationConfig(**config), seed=1, **{beside: None})
    if beside == "eos_token_id":
        assert told.token_ids == expected[0, PROMPT.shape[1] :].tolist() == plain
    else:
        assert told.token_ids[:4] != plain[:4]
    ended = decoder.generate(PROMPT, generation_config=GenerationConfig(max_new_tokens=12))
    assert ended.token_ids == plain[:4]


def test_a_dictionary_is_not_promised_where_none_comes(decoder: Decoder) -> None:
    with pytest.raises(ValueError, match="return_dict_in_generate is True; a decoder gives a `Result`"):
        decoder.generate(PROMPT, return_dict_in_generate=True)
    assert decoder.generate(PROMPT, max_new_tokens=2, return_dict_in_generate=False).token_ids


def test_greedy_decoding_draws_nothing_of_torch() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    MODEL.generate(PROMPT, max_new_tokens=4, do_sample=False, custom_generate=talon_core.as_generate(**PARTS))
    assert torch.rand(1) == expected


def test_what_makes_no_tokens_of_texts_is_no_tokenizer() -> None:
    half = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # which has `decode`
    with pytest.raises(ValueError, match="it must be a tokenizer, as AutoTokenizer"):
        talon_core.load(MODEL, tokenizer=half, **PARTS)


def test_weights_that_are_elsewhere_are_named() -> None:
    model = tiny_model("llama")
    model.model.layers[0].to("meta")
    model.hf_device_map = {"model.layers.0": "cpu", "lm_head": 0}
    with pytest.raises(ValueError, match=r"the weights of model.layers.0.* are on the cpu, from where each pass would"):
        talon_core.load(model, **PARTS)
