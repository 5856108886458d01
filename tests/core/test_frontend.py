"""What options mean: what they mean in `model.generate`, and greedy decoding where nothing is said."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import GenerationConfig, PreTrainedTokenizerFast

import talon_core
from talon_core.decoding.decoder import Decoder
from talon_core.hf.frontend import DEFAULT_MAX_NEW_TOKENS, HFFrontend, stop_criterion
from talon_core.request import Request
from talon_tests.tiny_models import tiny_model

IDS = torch.tensor([5, 9, 33, 9, 33, 41, 5, 9])


@pytest.fixture(scope="module")
def shared() -> Decoder:
    return talon_core.load(tiny_model("llama"), policy="talon:budget=6,top_k=2")


@pytest.fixture
def decoder(shared: Decoder) -> Any:
    """A decoder whose model's own generation config may be changed."""
    model = shared.target.model  # type: ignore[attr-defined]
    before = model.generation_config
    model.generation_config = GenerationConfig(**before.to_dict())
    yield shared
    model.generation_config = before


def own(decoder: Decoder, **options: Any) -> None:
    decoder.target.model.generation_config.update(**options)  # type: ignore[attr-defined]


def request(decoder: Decoder, **options: Any) -> Request:
    return decoder.frontend.request(IDS, options)


@pytest.mark.parametrize(
    ("options", "of_the_model", "tokens"),
    [
        ({}, {}, DEFAULT_MAX_NEW_TOKENS),
        ({"max_new_tokens": 7}, {}, 7),
        ({"max_length": 30}, {}, 22),
        ({"max_new_tokens": None, "max_length": 30}, {}, 22),
        ({"generation_config": GenerationConfig(max_new_tokens=9)}, {}, 9),
        ({"generation_config": GenerationConfig(max_length=20)}, {}, 12),
        ({"generation_config": GenerationConfig(max_new_tokens=9), "max_new_tokens": 4}, {}, 4),
        ({"generation_config": GenerationConfig(repetition_penalty=1.2)}, {}, DEFAULT_MAX_NEW_TOKENS),
        ({}, {"max_new_tokens": 11}, 11),
        ({}, {"max_length": 18}, 10),
        ({"max_new_tokens": 7}, {"max_new_tokens": 11}, 7),
        ({"generation_config": GenerationConfig(temperature=0.5)}, {"max_new_tokens": 11}, 11),
    ],
)
def test_the_length_is_what_generate_would_make_of_it(
    decoder: Decoder, options: dict[str, Any], of_the_model: dict[str, Any], tokens: int
) -> None:
    own(decoder, **of_the_model)
    assert request(decoder, **options).max_new_tokens == tokens


@pytest.mark.parametrize("options", [{"max_length": 30}, {"generation_config": GenerationConfig(max_new_tokens=13)}])
def test_as_many_tokens_come_as_generate_gives(decoder: Decoder, options: dict[str, Any]) -> None:
    model = decoder.target.model  # type: ignore[attr-defined]
    plain = model.generate(IDS[None], attention_mask=torch.ones_like(IDS)[None], do_sample=False, **options)
    assert decoder.generate(IDS, **options).token_ids == plain[0, len(IDS) :].tolist()


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ({}, False),
        ({"temperature": 0}, False),
        ({"temperature": 0.5}, True),
        ({"do_sample": True}, True),
        ({"do_sample": False, "temperature": 0.5}, False),
        ({"generation_config": GenerationConfig(max_new_tokens=5)}, False),
        ({"generation_config": GenerationConfig(do_sample=True)}, True),
        ({"generation_config": GenerationConfig(temperature=0.5)}, True),
        ({"generation_config": GenerationConfig(do_sample=False, max_new_tokens=5)}, False),
        ({"generation_config": GenerationConfig(do_sample=True), "temperature": 0}, False),
        ({"generation_config": GenerationConfig(do_sample=True), "do_sample": False}, False),
    ],
)
def test_it_is_greedy_unless_the_call_says_otherwise(decoder: Decoder, options: dict[str, Any], samples: bool) -> None:
    own(decoder, do_sample=True, temperature=0.6, top_k=20)
    assert request(decoder, **options).sampling.do_sample is samples


def test_the_processors_of_a_generation_config_are_those_of_the_options(decoder: Decoder) -> None:
    options: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.3}
    scores = torch.randn(1, 97, generator=torch.Generator().manual_seed(1))
    found = []
    for given in (options, {"generation_config": GenerationConfig(**options)}):
        prepared = scores
        for processor in request(decoder, **given).sampling.processors:
            prepared = processor(IDS[None], prepared.clone())
        found.append(prepared)
    assert torch.equal(*found)
    assert not torch.equal(found[0], scores)


def test_a_generation_config_is_not_changed(decoder: Decoder) -> None:
    given = GenerationConfig(do_sample=True, temperature=0.7)
    before = given.to_dict()
    request(decoder, generation_config=given, temperature=0, max_new_tokens=3)
    assert given.to_dict() == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_length": 0}, "max_length is 0; it must be a whole number and at least 1"),
        ({"max_length": 8}, "`max_length` is set to 8"),
        ({"generation_config": {"max_new_tokens": 5}}, r"generation_config is \{.*\}; it must be a transformers.Gen"),
        ({"output_scores": True}, "output_scores is True; TALON gives back tokens only, so it must be False"),
        ({"stop_strings": "."}, r"stop_strings is '\.'; stop strings need a tokenizer, and there is none"),
        ({"generation_config": GenerationConfig(stop_strings=["."])}, "stop strings need a tokenizer"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(decoder: Decoder, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        request(decoder, **options)


@pytest.mark.parametrize(
    ("template", "messages", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", [{"role": "user", "content": "hi"}], "roles must alternate"),
        ("{{ messages[0].content.text.more }}", [{"role": "user", "content": "hi"}], "has no attribute 'text'"),
        ("{{ messages[0]['content'] + 1 }}", "hi", "can only concatenate str"),
        ("{% for %}", "hi", "Expected an expression"),
    ],
)
def test_a_chat_template_that_raises_is_refused_in_words(
    decoder: Decoder, template: str, messages: Any, reason: str
) -> None:
    made = Tokenizer(models.WordLevel({"hi": 0}, unk_token="hi"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template)
    chatting = HFFrontend(decoder.target.model, tokenizer)  # type: ignore[attr-defined]
    sentence = f"this model's chat template cannot be filled with these messages: .*{reason}"
    with pytest.raises(ValueError, match=sentence) as refused:
        chatting.request(messages, {})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
def test_text_that_is_no_unicode_is_refused_in_words(decoder: Decoder, template: str | None) -> None:
    made = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template)
    frontend = HFFrontend(decoder.target.model, tokenizer)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="the prompt holds half a surrogate pair, which is no character; write both"):
        frontend.encode("a \ud800")


@pytest.mark.parametrize("option", ["forced_bos_token_id", "forced_eos_token_id"])
def test_a_forced_token_that_there_is_not_is_refused_though_it_is_the_models_own(decoder: Decoder, option: str) -> None:
    own(decoder, **{option: 99_999})
    for options in ({}, {"generation_config": GenerationConfig(**{option: 99_999})}):
        with pytest.raises(ValueError, match=rf"^{option} is 99999; it must be a token id, 0 to 96"):
            request(decoder, **options)
    assert request(decoder, **{option: 3}).sampling.processors


def test_a_criterion_for_stop_strings_is_made_once_for_a_tokenizer_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talon_core.hf.frontend.StopStringCriteria", lambda *given: [*given])
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    one, other = (PreTrainedTokenizerFast(tokenizer_object=words) for _ in range(2))
    first: Any = stop_criterion(one, "b")
    assert first == [one, ["b"]]
    assert stop_criterion(one, ["b"]) is first
    assert stop_criterion(one, ["a", "b"]) == [one, ["a", "b"]]
    assert stop_criterion(other, "b") == [other, ["b"]]
    one.add_tokens(["ab"])
    assert stop_criterion(one, "b") is not first
    assert stop_criterion(one, "b") == first
    for number in range(100):
        assert stop_criterion(one, str(number)) == [one, [str(number)]]
