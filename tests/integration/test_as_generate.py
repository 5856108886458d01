"""TALON inside `model.generate`, for people who have a model already."""

import copy
import gc
import inspect
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.streamers import BaseStreamer

import talon_core
from talon_core.errors import BusyError
from talon_tests.tiny_models import tiny_model

PROMPT = torch.tensor([[5, 9, 33, 9, 33, 41, 5, 9]])
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(PROMPT)}


@pytest.fixture
def model() -> Any:
    return tiny_model("llama")


def talon(policy: str = "talon:budget=10,top_k=3") -> Any:
    return talon_core.as_generate(drafter="ngram", policy=policy)


class Recorder(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.pieces.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended = True


class NeverSeven(LogitsProcessor):
    """Looks at the prefix: forbids the token that is seven ids above the last one."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, (int(input_ids[0, -1]) + 7) % scores.shape[1]] = -torch.inf
        return scores


class AfterSum(StoppingCriteria):
    """Stops when the ids since the prompt add up to enough."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor([int(input_ids[0, PROMPT.shape[1] :].sum()) > 900])


def test_it_returns_what_generate_returns(model: Any) -> None:
    plain = model.generate(PROMPT, max_new_tokens=50, **GREEDY)
    assert torch.equal(model.generate(PROMPT, max_new_tokens=50, custom_generate=talon(), **GREEDY), plain)


def test_a_dictionary_is_returned_where_it_is_asked_for(model: Any) -> None:
    plain = model.generate(PROMPT, max_new_tokens=20, return_dict_in_generate=True, **GREEDY)
    ours = model.generate(PROMPT, max_new_tokens=20, return_dict_in_generate=True, custom_generate=talon(), **GREEDY)
    assert torch.equal(ours.sequences, plain.sequences)


def test_streamers_get_the_same_tokens_one_by_one(model: Any) -> None:
    plain, ours = Recorder(), Recorder()
    model.generate(PROMPT, max_new_tokens=30, streamer=plain, **GREEDY)
    model.generate(PROMPT, max_new_tokens=30, streamer=ours, custom_generate=talon(), **GREEDY)
    assert ours.pieces == plain.pieces
    assert ours.ended


class Wrapper:
    """Hands on what it is called with, by `__call__` and by a method."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.inner(*given, **named)

    def method(self, *given: Any, **named: Any) -> Any:
        return self(*given, **named)


def generate(*given: Any, **named: Any) -> Any:
    """Is called like the method of transformers, and is none."""
    return talon()(*given, **named)


WRAPPED: dict[str, Callable[[], Any]] = {
    "lambda": lambda: lambda *given, **named: talon()(*given, **named),
    "twice": lambda: lambda *given, **named: (lambda *two, **more: talon()(*two, **more))(*given, **named),
    "partial": lambda: partial(talon()),
    "partial of a function": lambda: partial(lambda flag, *given, **named: talon()(*given, **named), True),
    "object": lambda: Wrapper(talon()),
    "method": lambda: Wrapper(talon()).method,
    "decorated": lambda: torch.no_grad()(Wrapper(talon()).method),
    "in inference mode": lambda: torch.inference_mode()(lambda *given, **named: talon()(*given, **named)),
    "of the same name": lambda: generate,
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_function_around_it_loses_no_argument_of_generate(model: Any, wrapped: str) -> None:
    plain, ours = Recorder(), Recorder()
    model.generate(PROMPT, max_new_tokens=12, streamer=plain, **GREEDY)
    given: dict[str, Any] = {"max_new_tokens": 12, "custom_generate": WRAPPED[wrapped](), **GREEDY}
    model.generate(PROMPT, streamer=ours, **given)
    assert ours.pieces == plain.pieces
    assert ours.ended
    with pytest.raises(ValueError, match="assistant_model is of class LlamaForCausalLM"):
        model.generate(PROMPT, assistant_model=model, **given)


def test_called_by_itself_it_takes_no_arguments_of_a_generate_around_it(model: Any) -> None:
    """The `generate` of another model, or one that decodes itself, has not called it."""
    other, streamer, ours = tiny_model("llama"), Recorder(), talon()
    lone: dict[str, Any] = {
        "generation_config": GenerationConfig(max_new_tokens=3, max_length=PROMPT.shape[1] + 3),
        "stopping_criteria": StoppingCriteriaList(),
        "logits_processor": LogitsProcessorList(),
    }
    assert ours(model, PROMPT, **lone).shape == (1, PROMPT.shape[1] + 3)

    def calls(asked: Any) -> LogitsProcessorList:
        def processor(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            ours(asked, PROMPT, **lone)
            return scores

        return LogitsProcessorList([processor])

    model.generate(PROMPT, max_new_tokens=2, streamer=streamer, logits_processor=calls(model), **GREEDY)
    assert len(streamer.pieces) == 3
    around: dict[str, Any] = {"custom_generate": talon(), "logits_processor": calls(other), "streamer": Recorder()}
    model.generate(PROMPT, max_new_tokens=2, **around, **GREEDY)
    assert len(around["streamer"].pieces) == 3


def test_processors_and_criteria_of_ones_own_work(model: Any) -> None:
    own: dict[str, Any] = {
        "logits_processor": LogitsProcessorList([NeverSeven()]),
        "stopping_criteria": StoppingCriteriaList([AfterSum()]),
    }
    plain = model.generate(PROMPT, max_new_tokens=80, **own, **GREEDY)
    assert plain.shape[1] < PROMPT.shape[1] + 80
    assert torch.equal(model.generate(PROMPT, max_new_tokens=80, custom_generate=talon(), **own, **GREEDY), plain)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One token for each of 95 characters."""
    vocab = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet())[:94], start=2)}
    made = Tokenizer(models.BPE(vocab={"<pad>": 0, "<s>": 1, **vocab, "Ġ": 96}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("several", [False, True])
def test_stop_strings_stop_where_those_of_generate_do(model: Any, tokenizer: Any, several: bool) -> None:
    whole = model.generate(PROMPT, max_new_tokens=40, **GREEDY)[0, PROMPT.shape[1] :]
    stop: Any = tokenizer.decode(whole[17:20])
    stop = ["no such text", stop] if several else stop
    plain = model.generate(PROMPT, max_new_tokens=40, stop_strings=stop, tokenizer=tokenizer, **GREEDY)
    assert plain.shape[1] < PROMPT.shape[1] + 40
    ours = talon_core.as_generate(policy="talon:budget=10,top_k=3", stop_strings=stop, tokenizer=tokenizer)
    for _ in range(2):
        assert torch.equal(model.generate(PROMPT, max_new_tokens=40, custom_generate=ours, **GREEDY), plain)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stop_strings": "."}, r"stop_strings is '\.'; stop strings need a tokenizer, and there is none"),
        ({"stop_strings": [5], "tokenizer": object()}, r"stop_strings is \[5\]; it must be a text, or a list of texts"),
    ],
)
def test_stop_strings_that_cannot_be_looked_for_are_refused_in_words(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        talon_core.as_generate(**options)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"rule": "typical"}, ValueError, "rule 'typical' .* is lossy: .* lossy=True allows it"),
        ({"rule": "block"}, ValueError, "rule 'block' .* is not exact for the deterministic trees"),
        ({"policy": "tallon"}, LookupError, "no tree policy 'tallon'; did you mean 'talon'"),
        ({"lossy": "no"}, ValueError, "lossy is 'no'; it must be True or False"),
        ({"graphs": 1}, ValueError, "graphs is 1; it must be True or False"),
        ({"accelerate": 5}, ValueError, "accelerate is 5; it must be True, False or the name of an accelerator"),
    ],
)
def test_a_bad_part_is_refused_before_there_is_a_model(
    options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        talon_core.as_generate(**options)


def test_a_lossy_rule_is_allowed_by_name_and_marked(model: Any) -> None:
    lossy = talon_core.as_generate(drafter="ngram", policy="chain", rule="typical", lossy=True)
    assert lossy.lossless is False
    assert model.generate(PROMPT, max_new_tokens=5, custom_generate=lossy, **GREEDY).shape == (1, 13)
    assert talon_core.as_generate(drafter="ngram", policy="sampled-chain", lossy=True).lossless is True


def test_a_plugins_word_is_marked_as_such(liar: Any) -> None:
    assert talon_core.as_generate(policy="draws").lossless == "claimed"
    assert talon_core.as_generate(policy="draws", rule="match").lossless is True


def guided(model: Any) -> LogitsProcessorList:
    """A processor that remembers: it has a cache of its own, for another model."""
    return LogitsProcessorList([UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, copy.deepcopy(model))])


def watermarked(_: Any) -> LogitsProcessorList:
    """A processor that remembers which contexts it has seen."""
    own = {"sampling_table_size": 512, "sampling_table_seed": 0, "context_history_size": 64, "device": "cpu"}
    return LogitsProcessorList([SynthIDTextWatermarkLogitsProcessor(ngram_len=3, keys=[1, 5, 9], **own)])


@pytest.mark.parametrize("processors", [guided, watermarked])
def test_a_processor_that_remembers_works_with_rules_that_do_not_look_ahead(model: Any, processors: Any) -> None:
    plain = model.generate(PROMPT, max_new_tokens=30, logits_processor=processors(model), **GREEDY)
    assert not torch.equal(plain, model.generate(PROMPT, max_new_tokens=30, **GREEDY))
    for rule in ("match", "rrs"):
        ours = talon_core.as_generate(drafter="ngram", policy="sampled-chain", rule=rule)
        given = {"logits_processor": processors(model), "custom_generate": ours, **GREEDY}
        assert torch.equal(model.generate(PROMPT, max_new_tokens=30, **given), plain)
    ahead = talon_core.as_generate(drafter="ngram", policy="sampled-chain")
    given = {"logits_processor": processors(model), "custom_generate": ahead, **GREEDY}
    with pytest.raises(ValueError, match=r"remembers what it was called with, and rule 'block' .* instead: .*match"):
        model.generate(PROMPT, max_new_tokens=30, **given)


def test_manual_seed_makes_sampling_reproducible(model: Any) -> None:
    def sampled(seed: int) -> list[int]:
        torch.manual_seed(seed)
        out = model.generate(
            PROMPT, max_new_tokens=30, custom_generate=talon(), **{**GREEDY, "do_sample": True, "temperature": 1.5}
        )
        return [int(token) for token in out[0]]

    assert sampled(1) == sampled(1) != sampled(2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_beams": 3}, "num_beams is 3; TALON decodes greedily or by sampling, so it must be 1"),
        ({"inputs": PROMPT.repeat(2, 1), "attention_mask": torch.ones(2, 8)}, r"batch of 2 .* talon_core\.load\(model"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores is True; TALON gives back tokens"),
        ({"output_logits": True, "return_dict_in_generate": True}, "output_logits is True; TALON gives back tokens"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions is True; TALON gives"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states is True; TALON gives"),
        ({"attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])}, "hides part of the prompt"),
    ],
)
def test_what_it_cannot_do_is_refused_in_words(model: Any, options: dict[str, Any], sentence: str) -> None:
    given = {"inputs": PROMPT, **GREEDY, **options}
    with pytest.raises(ValueError, match=sentence):
        model.generate(max_new_tokens=5, custom_generate=talon(), **given)


def test_the_model_is_as_it_was_after_an_error(model: Any) -> None:
    class Broken(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("broken processor")

    before = model.config._attn_implementation
    with pytest.raises(RuntimeError, match="broken processor"):
        model.generate(PROMPT, max_new_tokens=5, logits_processor=[Broken()], custom_generate=talon(), **GREEDY)
    assert model.config._attn_implementation == before
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_a_streamer_that_raises_leaves_the_model_free(model: Any) -> None:
    class Full(Recorder):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.pieces) > 3:
                raise OSError("no room")

    before, plain = model.config._attn_implementation, model.generate(PROMPT, max_new_tokens=12, **GREEDY)
    ours = talon()
    gc.disable()
    try:
        with pytest.raises(OSError, match="no room") as kept:
            model.generate(PROMPT, max_new_tokens=30, streamer=Full(), custom_generate=ours, **GREEDY)
        assert model.config._attn_implementation == before
        assert torch.equal(model.generate(PROMPT, max_new_tokens=12, **GREEDY), plain)
        assert torch.equal(model.generate(PROMPT, max_new_tokens=12, custom_generate=ours, **GREEDY), plain)
    finally:
        gc.enable()
    assert kept.tb is not None


def test_a_call_inside_a_call_does_not_disturb_it(model: Any) -> None:
    """The same decoder goes on with another text; another decoder of the model is refused."""
    ours, same, other = talon(), talon(), talon("chain:length=2")
    plain = model.generate(PROMPT, max_new_tokens=30, **GREEDY)
    inside: list[torch.Tensor] = []

    class Curious(Recorder):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.pieces) == 3:
                with pytest.raises(BusyError, match="already being decoded"):
                    model.generate(PROMPT, max_new_tokens=3, custom_generate=other, **GREEDY)
                for inner in (ours, same):
                    inside.append(model.generate(PROMPT, max_new_tokens=20, custom_generate=inner, **GREEDY))

    given: dict[str, Any] = {"streamer": Curious(), "custom_generate": ours, **GREEDY}
    assert torch.equal(model.generate(PROMPT, max_new_tokens=30, **given), plain)
    assert [torch.equal(out, plain[:, : out.shape[1]]) for out in inside] == [True, True]
    assert len(ours.last.token_ids) == 30


def test_a_text_that_the_context_ends_is_warned_of_once(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    model.config.max_position_embeddings = 16
    ours = talon()
    with caplog.at_level("WARNING", logger="talon_core"):
        model.generate(PROMPT, max_new_tokens=8, custom_generate=ours, **GREEDY)
        assert not caplog.records
        for _ in range(2):
            assert model.generate(PROMPT, max_new_tokens=30, custom_generate=ours, **GREEDY).shape == (1, 16)
    (record,) = caplog.records
    sentence = (
        "a text of LlamaForCausalLM ended after 8 new tokens, where 30 were asked for: the model's context holds 16"
    )
    assert record.getMessage().startswith(sentence)


def test_objects_over_one_model_with_the_same_parts_share_a_decoder(model: Any) -> None:
    one, same, other = talon(), talon(), talon_core.as_generate(drafter="ngram", policy="chain")
    for ours in (one, same, other):
        model.generate(PROMPT, max_new_tokens=3, custom_generate=ours, **GREEDY)
    assert one._decoder is same._decoder
    assert other._decoder is not one._decoder
    twin = tiny_model("llama")
    twin.generate(PROMPT, max_new_tokens=3, custom_generate=same, **GREEDY)
    assert same._decoder is not one._decoder
    freed = weakref.ref(twin)
    del twin, same
    gc.collect()
    assert freed() is None  # nothing but the objects keeps a model


def test_a_decoder_is_used_again(model: Any, tokenizer: Any) -> None:
    decoder = talon_core.load(model, drafter="ngram", policy="talon:budget=10,top_k=3", tokenizer=tokenizer)
    ours = talon_core.as_generate(decoder=decoder)
    assert ours.last is None
    plain = model.generate(PROMPT, max_new_tokens=20, **GREEDY)
    assert torch.equal(model.generate(PROMPT, max_new_tokens=20, custom_generate=ours, **GREEDY), plain)
    assert ours.last is not None
    assert ours.last.token_ids == plain[0, 8:].tolist()
    assert ours.last.text == tokenizer.decode(plain[0, 8:], skip_special_tokens=True)
    assert ours.last.stats.new_tokens == 20
    assert ours.lossless
    with pytest.raises(ValueError, match="as_generate was given a decoder for another model than this LlamaForC"):
        tiny_model("llama").generate(PROMPT, max_new_tokens=3, custom_generate=ours, **GREEDY)
    with pytest.raises(ValueError, match=r"policy is given beside a decoder, which has its own"):
        talon_core.as_generate(decoder=decoder, policy="chain")
    with pytest.raises(ValueError, match=r"the decoder is 5; it must be what talon_core.load returned"):
        talon_core.as_generate(decoder=5)  # type: ignore[arg-type]


def test_each_call_may_have_its_own_stop_strings(model: Any, tokenizer: Any) -> None:
    whole = model.generate(PROMPT, max_new_tokens=40, **GREEDY)[0, PROMPT.shape[1] :]
    ours = talon_core.as_generate(drafter="ngram", tokenizer=tokenizer, stop_strings=tokenizer.decode(whole[30:33]))
    for at in (9, 17, None):
        stop: dict[str, Any] = {"stop_strings": tokenizer.decode(whole[at : at + 3])} if at is not None else {}
        own = stop or {"stop_strings": tokenizer.decode(whole[30:33])}
        plain = model.generate(PROMPT, max_new_tokens=40, **own, tokenizer=tokenizer, **GREEDY)
        assert torch.equal(model.generate(PROMPT, max_new_tokens=40, **stop, custom_generate=ours, **GREEDY), plain)
        assert ours.last is not None
        assert ours.last.finish_reason == "stop"
    with pytest.raises(ValueError, match="stop strings need a tokenizer, and there is none"):
        model.generate(PROMPT, max_new_tokens=40, stop_strings="x", custom_generate=talon(), **GREEDY)


def test_a_decoder_without_a_tokenizer_takes_one_for_stop_strings(model: Any, tokenizer: Any) -> None:
    decoder = talon_core.load(model, drafter="ngram")
    text = tokenizer.decode(decoder.generate(PROMPT, max_new_tokens=40).token_ids)
    stopped = decoder.generate(PROMPT, max_new_tokens=40, stop_strings=text[9:12], tokenizer=tokenizer)
    assert (stopped.finish_reason, tokenizer.decode(stopped.token_ids)) == ("stop", text[:12])


def test_parts_mean_what_they_mean_for_load(model: Any) -> None:
    ours = talon_core.as_generate(policy=None)
    model.generate(PROMPT, max_new_tokens=5, custom_generate=ours, **GREEDY)
    assert ours._decoder is not None
    assert ours._decoder.policy is None
    # costs belong to one machine and model, bounds to what one decoder serves: who hands them to `load` hands its
    # decoder on
    options = set(inspect.signature(talon_core.load).parameters) - {"model", "model_options", "costs", "bounds"}
    theirs = inspect.signature(talon_core.as_generate).parameters
    assert options <= set(theirs)
    for option in options:
        assert theirs[option].default == inspect.signature(talon_core.load).parameters[option].default


def test_each_module_is_in_the_mode_that_it_was_in(model: Any) -> None:
    model.train()
    frozen = model.model.layers[1]
    frozen.eval()
    before = {name: module.training for name, module in model.named_modules()}
    decoder = talon_core.load(model, policy="talon:budget=6,top_k=2", drafter="draft-model:skip=2")
    assert {name: module.training for name, module in model.named_modules()} == before
    decoder.generate(PROMPT, max_new_tokens=5)
    assert {name: module.training for name, module in model.named_modules()} == before


class Ends(StoppingCriteria):
    """Stops at a length of its own."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor([input_ids.shape[1] >= PROMPT.shape[1] + 3])


class OtherLength(Ends, MaxLengthCriteria):
    """A subclass of what generate makes itself."""


class OtherEnd(Ends, EosTokenCriteria):
    """As above."""


@pytest.mark.filterwarnings("ignore")  # generate's own, of criteria that take precedence
@pytest.mark.parametrize(
    ("options", "new"),
    [
        ({"stopping_criteria": [OtherLength(50)]}, 3),
        ({"stopping_criteria": [OtherEnd(50)]}, 3),
        ({"stopping_criteria": [MaxLengthCriteria(10)]}, 2),
        ({"stopping_criteria": [MaxLengthCriteria(4)]}, 1),
        ({"stopping_criteria": [MaxTimeCriteria(0.0)]}, 1),
        ({"stopping_criteria": [MaxTimeCriteria(0.0)], "max_time": 99.0}, 1),
        ({"stopping_criteria": [MaxTimeCriteria(1e9)], "max_time": 0.0}, 9),
    ],
    ids=lambda given: type(given["stopping_criteria"][0]).__name__ if isinstance(given, dict) else None,
)
def test_criteria_of_generates_own_classes_are_asked_as_it_asks_them(
    model: Any, options: dict[str, Any], new: int
) -> None:
    plain = model.generate(PROMPT, max_new_tokens=9, **options, **GREEDY)
    assert plain.shape == (1, PROMPT.shape[1] + new)
    assert torch.equal(model.generate(PROMPT, max_new_tokens=9, **options, custom_generate=talon(), **GREEDY), plain)


def test_a_call_that_was_refused_leaves_no_result_of_another(model: Any) -> None:
    ours = talon()
    model.generate(PROMPT, max_new_tokens=3, custom_generate=ours, **GREEDY)
    assert ours.last is not None
    with pytest.raises(ValueError, match="num_beams is 2"):
        model.generate(PROMPT, max_new_tokens=3, num_beams=2, custom_generate=ours, **GREEDY)
    assert ours.last is None


def test_without_what_generate_prepares_it_says_how_it_is_called(model: Any) -> None:
    none: dict[str, Any] = {"logits_processor": LogitsProcessorList(), "stopping_criteria": StoppingCriteriaList()}
    config = GenerationConfig(max_new_tokens=3)
    for given, what in [
        ({}, "without generation_config"),
        ({"max_new_tokens": 3}, "without generation_config"),
        ({"generation_config": config}, "without logits_processor"),
        ({"input_ids": [[5, 9]], "generation_config": config, **none}, "with a list in the place of token ids"),
    ]:
        with pytest.raises(ValueError, match=f"was called {what}; give it to model.generate as custom_generate"):
            talon()(model, **{"input_ids": PROMPT, **given})
    assert talon()(model, PROMPT, generation_config=config, **none).shape == (1, PROMPT.shape[1] + 3)
