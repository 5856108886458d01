"""`check_greedy` on tiny and real models: what is right passes, what is wrong is found and told from rounding."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from talon_core import build
from talon_core.certify.greedy import Divergence, GreedyCheck, PromptCheck, _Own, check_greedy
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.hf.frontend import HFFrontend
from talon_core.hf.target import HFTarget
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_core.plugins.specs import spelled
from talon_core.rule import Accepted
from talon_core.runtime import executor
from talon_core.sampling import Sampling
from talon_core.target import NOT_GREEDY, Verified
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_tests.tiny_models import ARCHITECTURES, tiny_model

NEW_TOKENS, HALF_TOKENS, SMOLLM_TOKENS = 24, 40, 16
PROMPTS = [np.random.default_rng(0).integers(3, 97, length) for length in (1, 7, 33)]
TEXTS = ["The capital of France is", "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n"]
"""SmolLM2 goes on with near ties after each: in bfloat16 a disturbance of the size of rounding lets outputs part."""

TALON = ("talon:budget=12,top_k=3", "match")
WAYS = {
    "plain": ("none", "match"),
    "talon": TALON,
    "talon-sampled": ("talon-sampled:budget=8,top_k=2", "hybrid"),
    "sequoia": ("sequoia:budget=8,depth=3", "traversal"),
    "specinfer": ("specinfer:widths=2;1", "rrs"),
    "sampled-chain": ("sampled-chain:length=3", "block"),
}
"""Policies and rules of every kind; at temperature 0 each accepts the model's best tokens and nothing else."""

HALF = torch.bfloat16
Change = Callable[[Any, torch.Tensor], None]
"""`change(tree, logits (nodes, vocab))` writes into the logits."""


def tiny(model: Any, way: tuple[str, str] = TALON) -> Decoder:
    policy, rule = way
    return decoder_for_model(model, None, Parts("draft-model:skip=2", policy, rule, attention="sdpa"))


def disturb(decoder: Decoder, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Let the target say something else than its model does."""
    verify = decoder.target.verify

    def disturbed(trees: Any, greedy: Any = NOT_GREEDY) -> Verified:
        verified = verify(trees)  # what the target itself would choose is not what it is made to say
        outputs = {slot: attrs.evolve(one, logits=one.logits.clone()) for slot, one in verified.outputs.items()}
        for slot, one in outputs.items():
            change(trees[slot], one.logits)
        return Verified(outputs, verified.accepted)

    monkeypatch.setattr(decoder.target, "verify", disturbed)


class SwapOnce:
    """Exchanges the two best tokens, once: at the first child that is accepted and where they are far apart."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.gap: float | None = None

    def __call__(self, tree: Any, logits: torch.Tensor) -> None:
        child = tree.child(0, int(logits[0].argmax()))
        if child is None or self.gap is not None:
            return
        (best, second), (one, other) = (found.tolist() for found in logits[child].topk(2))
        if best - second >= self.least:
            self.gap = best - second
            logits[child, one], logits[child, other] = second, best


class Noise:
    """Moves each score at random by up to so many units in the last place of bfloat16, and rounds it."""

    def __init__(self, units: float) -> None:
        self.units = units
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, _tree: Any, logits: torch.Tensor) -> None:
        share = 2 * torch.rand(logits.shape, generator=self.generator).to(logits.device) - 1
        unit = 2.0 ** (logits.float().abs().max().log2().floor() - 7)
        logits += (self.units * unit * share).to(logits.dtype)


@pytest.fixture(scope="module")
def llama() -> Any:
    """A tiny model that nothing changes."""
    return tiny_model("llama")


@pytest.mark.usefixtures("generated_once")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_exact_decoder_passes(llama: Any, way: tuple[str, str]) -> None:
    model, told = llama, []
    check = check_greedy(tiny(model, way), model, PROMPTS, NEW_TOKENS, lambda done, all_: told.append((done, all_)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert check.passed
    assert (check.identical, check.compared, check.divergences) == (3, 3 * NEW_TOKENS, [])
    assert (check.model, check.dtype, check.rule) == ("LlamaForCausalLM", "float32", way[1])
    assert check.policy == (None if way[0] == "none" else spelled(build("tree policy", way[0])))
    assert check.drafter == (None if way[0] == "none" else "draft-model:skip=2")
    answer = check.as_dict()
    assert json.loads(json.dumps(answer)) == answer
    assert answer["passed"]
    assert [one["prompt_tokens"] for one in answer["prompts"]] == [1, 7, 33]
    assert answer["target_passes"] < answer["nodes_verified"] or way[0] == "none"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_disturbed_node_is_found_in_every_architecture(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(architecture)
    decoder, swap = tiny(model), SwapOnce(0.02)
    disturb(decoder, monkeypatch, swap)
    check = check_greedy(decoder, model, PROMPTS[1:2], NEW_TOKENS)
    (divergence,) = check.divergences
    assert not check.passed
    assert divergence.verdict == "error"
    assert divergence.gap == pytest.approx(swap.gap, rel=1e-3)
    assert divergence.rounding is not None
    assert divergence.rounding < 1e-3
    assert check.compared == divergence.at + 1
    assert not model.get_input_embeddings()._forward_hooks  # nothing is left behind


@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "qwen3-moe", "gemma3", "opt"])
def test_in_half_precision_an_exact_decoder_parts_at_near_ties_only(architecture: str) -> None:
    model = tiny_model(architecture).to(HALF)
    check = check_greedy(tiny(model), model, PROMPTS, HALF_TOKENS)
    assert check.dtype == "bfloat16"
    assert check.passed, check.divergences


def test_experts_that_nearly_tie_are_chosen_by_rounding_too() -> None:
    """Scores jump then: passes of one library agree to the last digit there, and none of them tells of it."""
    model, rng = tiny_model("gpt-oss").to(torch.float16), np.random.default_rng(0)
    prompts = [rng.integers(3, 97, length) for length in (5, 21, 33, 60)]
    check = check_greedy(tiny(model), model, prompts, 60)
    assert check.passed, check.divergences


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_positions_that_are_one_too_far_are_found(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama").to(dtype)
    decoder = tiny(model, WAYS["plain"])
    off_by_one(monkeypatch)
    check = check_greedy(decoder, model, PROMPTS, NEW_TOKENS)
    assert not check.passed
    assert "error" in [one.verdict for one in check.divergences]


def off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tokens of a tree think that they are one place further from the prompt."""
    inputs = executor.pass_inputs

    def shifted(*args: Any) -> Any:
        right = inputs(*args)
        return attrs.evolve(right, positions=right.positions + 1)

    monkeypatch.setattr(executor, "pass_inputs", shifted)


def twins(model: Any) -> int:
    """Makes the model's first token after a prompt tie with the token whose id is one more; returns the former."""
    first = int(tiny(model).generate(PROMPTS[1], max_new_tokens=1).token_ids[0])
    with torch.no_grad():
        model.lm_head.weight[first + 1] = model.lm_head.weight[first]
    return first


def test_in_float32_a_divergence_at_a_tie_is_called_rounding_and_is_not_excused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("llama")
    first = twins(model)
    decoder = tiny(model)
    assert check_greedy(decoder, model, PROMPTS[1:2], 5).passed

    def prefer_the_twin(_tree: Any, logits: torch.Tensor) -> None:
        logits[:, first + 1] += 1e-6

    disturb(decoder, monkeypatch, prefer_the_twin)
    check = check_greedy(decoder, model, PROMPTS[1:2], 5)
    (divergence,) = check.divergences
    assert (divergence.at, divergence.expected, divergence.emitted) == (0, first, first + 1)
    assert (divergence.gap, divergence.verdict, check.passed) == (0.0, "rounding", False)


def test_a_tie_of_two_other_tokens_is_no_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama").to(HALF)
    first = twins(model)
    decoder = tiny(model)

    def forget_both(_tree: Any, logits: torch.Tensor) -> None:
        logits[:, first : first + 2] = -9.0

    disturb(decoder, monkeypatch, forget_both)
    check = check_greedy(decoder, model, PROMPTS[1:2], 1)
    (divergence,) = check.divergences
    assert divergence.emitted not in (first, first + 1)
    assert (divergence.expected, divergence.verdict, check.passed) == (first, "error", False)


@attrs.frozen(eq=False)
class Forgetful(HFFrontend):
    """Does not do what the model's generation config says."""

    def request(self, prompt: Any, options: Any) -> Any:
        return attrs.evolve(super().request(prompt, options), sampling=Sampling(), eos=frozenset())


def forgetful(decoder: Decoder) -> Decoder:
    frontend = Forgetful(decoder.target.model)  # type: ignore[attr-defined]
    return Decoder(decoder.target, decoder.rule, decoder.policy, decoder.drafter_spec, frontend)


def test_the_models_own_processors_count_on_both_sides() -> None:
    model = tiny_model("llama")
    decoder, wrong = tiny(model), forgetful(tiny(model))
    assert check_greedy(wrong, model, PROMPTS, NEW_TOKENS).passed
    model.generation_config.repetition_penalty = 1.4
    model.generation_config.temperature, model.generation_config.do_sample = 0.6, True  # as many have; greedy is asked
    assert check_greedy(decoder, model, PROMPTS, NEW_TOKENS).passed
    check = check_greedy(wrong, model, PROMPTS, NEW_TOKENS)
    assert not check.passed
    for divergence in check.divergences:
        assert divergence.verdict == "error"
        assert divergence.gap is not None
        assert divergence.gap > 0


def test_a_token_that_the_model_forbids_is_an_error_without_a_gap() -> None:
    model = tiny_model("llama").to(HALF)
    decoder, wrong = tiny(model), forgetful(tiny(model))
    first = decoder.generate(PROMPTS[1], max_new_tokens=1).token_ids[0]
    model.generation_config.suppress_tokens = [first]
    assert check_greedy(decoder, model, PROMPTS[1:2], NEW_TOKENS).passed
    check = check_greedy(wrong, model, PROMPTS[1:2], NEW_TOKENS)
    (divergence,) = check.divergences
    assert not check.passed
    assert (divergence.at, divergence.emitted, divergence.gap, divergence.rounding) == (0, first, None, None)
    assert divergence.verdict == "error"


def test_an_output_that_does_not_end_where_the_models_does_is_an_error() -> None:
    model = tiny_model("llama")
    decoder, wrong = tiny(model), forgetful(tiny(model))
    tokens = decoder.generate(PROMPTS[1], max_new_tokens=NEW_TOKENS).token_ids
    model.generation_config.eos_token_id = tokens[10]
    end = tokens.index(tokens[10]) + 1
    check = check_greedy(decoder, model, PROMPTS[1:2], NEW_TOKENS)
    assert check.passed
    assert check.compared == end
    check = check_greedy(wrong, model, PROMPTS[1:2], NEW_TOKENS)
    assert check.divergences == [Divergence(end, None, tokens[end])]
    assert check.divergences[0].verdict == "error"
    assert not check.passed


def test_outputs_are_compared_up_to_the_end_of_the_context() -> None:
    model = tiny_model("llama")
    long = np.random.default_rng(1).integers(3, 97, 251)
    check = check_greedy(tiny(model), model, [long], NEW_TOKENS)
    assert check.passed
    assert check.compared == 256 - 251


def test_what_a_device_walks_by_itself_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    usual = tiny(model)
    target = HFTarget(model, TapedBackend(PlainDevice()), graphs=TapeRecorder)
    decoder = Decoder(target, usual.rule, usual.policy, usual.drafter_spec, usual.frontend)
    assert check_greedy(decoder, model, PROMPTS, 12).passed
    verify = target.verify

    def wrong(trees: Any, greedy: Any = NOT_GREEDY) -> Verified:
        accepted = verify(trees, greedy).accepted
        assert accepted.keys() == trees.keys()  # all are walked
        return Verified(accepted={slot: Accepted(one.path, (one.token + 1) % 97) for slot, one in accepted.items()})

    monkeypatch.setattr(target, "verify", wrong)
    check = check_greedy(decoder, model, PROMPTS, 12)
    assert [one.verdict for one in check.divergences] == ["error"] * 3


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ([], "there are no prompts; a check needs at least one"),
        ([[5, 6], []], "prompt 1 cannot be decoded: the prompt is empty"),
        ([[5, 6], [97]], "prompt 1 cannot be decoded: the prompt holds token 97"),
        ([list(range(3, 90)) * 3], "prompt 0 cannot be decoded: the prompt has 261 tokens; the target's context"),
    ],
)
def test_prompts_that_cannot_be_checked_are_refused_in_words(prompts: list[list[int]], sentence: str) -> None:
    model = tiny_model("llama")
    with pytest.raises(ValueError, match=sentence):
        check_greedy(tiny(model), model, [np.array(ids, dtype=np.int64) for ids in prompts], 5)


@pytest.mark.parametrize(
    ("gap", "rounding", "verdict"),
    [
        (0.5, 0.25, "rounding"),
        (0.501, 0.25, "error"),
        (0.0, 0.0, "rounding"),
        (None, None, "error"),
        (1.0, np.nan, "error"),
    ],
)
def test_only_a_gap_of_at_most_two_levels_is_rounding(gap: Any, rounding: Any, verdict: str) -> None:
    divergence = Divergence(3, 5, 6, gap, rounding)
    assert divergence.verdict == attrs.asdict(divergence)["verdict"] == verdict
    prompts = (PromptCheck(0, 7, 40, 9, 60, None), PromptCheck(1, 7, 4, 9, 60, divergence))
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        check = GreedyCheck("some", dtype, "ngram", "talon", "match", 40, prompts)
        assert (check.identical, check.compared) == (1, 44)
        assert check.passed == (verdict == "rounding" and dtype in ("bfloat16", "float16"))


EMBEDDED = [("eagle3", WAYS["talon"]), ("eagle3", WAYS["sequoia"]), ("ngram", WAYS["plain"])]


@pytest.fixture(scope="module")
def half(smollm: tuple[Any, Any]) -> tuple[Any, Any]:
    """SmolLM2 in bfloat16; where it is not in the cache, `smollm` says so."""
    return load_model("smollm2-135m", dtype=HALF)


@pytest.fixture
def embedded(shared_target: Any) -> Callable[..., Decoder]:
    """Makes decoders of a loaded model."""

    def make(model: Any, tokenizer: Any, drafter: str = "eagle3", way: tuple[str, str] = TALON) -> Decoder:
        made: Decoder = shared_target(model, tokenizer, Parts(drafter, *way, graphs=False))
        return made

    return make


@pytest.fixture(scope="module")
def said() -> dict[Any, tuple[list[int], list[torch.Tensor]]]:
    """By a model and a text, the tokens that the model adds to it by itself, and the scores of each step."""
    return {}


@pytest.fixture
def generated_once(said: dict[Any, tuple[list[int], list[torch.Tensor]]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model generates that lives on is computed once; whoever watches is shown all its scores again."""
    generate = _Own._generate

    def once(own: Any, *, logits_processor: Any = None, **more: Any) -> list[int]:
        if logits_processor is None:
            return generate(own, **more)
        assert not more
        stops = own._model.generation_config.stop_strings
        question = id(own._model), str(own._ids.tolist()), str(sorted(own._how.items(), key=str)), str(stops)
        if question not in said:
            scores: list[torch.Tensor] = []

            def keep(_ids: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
                scores.append(found.clone())
                return found

            said[question] = generate(own, logits_processor=[keep]), scores
        tokens, scores = said[question]
        for found in scores:
            for watch in logits_processor:
                watch(own._ids, found)
        return tokens

    monkeypatch.setattr(_Own, "_generate", once)


def encoded(decoder: Decoder, texts: Sequence[str] = TEXTS) -> list[Any]:
    return [np.array(decoder.frontend.tokenizer(text)["input_ids"]) for text in texts]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("generated_once")
@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize(("drafter", "way"), EMBEDDED)
@pytest.mark.parametrize("dtype", ["smollm", "half"])
def test_smollm_passes(
    request: pytest.FixtureRequest,
    embedded: Callable[..., Decoder],
    dtype: str,
    drafter: str,
    way: tuple[str, str],
) -> None:
    model, tokenizer = request.getfixturevalue(dtype)
    decoder = embedded(model, tokenizer, drafter, way)
    check = check_greedy(decoder, model, encoded(decoder), SMOLLM_TOKENS)
    assert check.passed, check.divergences
    assert check.dtype == {"smollm": "float32", "half": "bfloat16"}[dtype]
    assert check.identical + len(check.divergences) == 2


@pytest.mark.usefixtures("generated_once")
@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["smollm", "half"])
def test_a_disturbed_node_is_found_in_smollm(
    request: pytest.FixtureRequest,
    embedded: Callable[..., Decoder],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, tokenizer = request.getfixturevalue(dtype)
    decoder, swap = embedded(model, tokenizer), SwapOnce(3.0)
    disturb(decoder, monkeypatch, swap)
    check = check_greedy(decoder, model, encoded(decoder, TEXTS[1:]), SMOLLM_TOKENS)
    (divergence,) = check.divergences
    assert not check.passed
    assert divergence.verdict == "error"
    assert divergence.gap is not None
    assert divergence.gap > 2.0


@pytest.mark.usefixtures("generated_once")
@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize(("units", "passes"), [(1, True), (16, False)])
def test_a_disturbance_of_the_size_of_rounding_is_called_rounding_and_a_larger_one_error(
    half: tuple[Any, Any],
    embedded: Callable[..., Decoder],
    monkeypatch: pytest.MonkeyPatch,
    units: float,
    passes: bool,
) -> None:
    model, tokenizer = half
    decoder = embedded(model, tokenizer)
    disturb(decoder, monkeypatch, Noise(units))
    check = check_greedy(decoder, model, encoded(decoder), SMOLLM_TOKENS)
    assert len(check.divergences) == len(TEXTS)
    assert check.passed == passes, check.divergences


@pytest.mark.usefixtures("generated_once")
@pytest.mark.models
@pytest.mark.slow
def test_positions_that_are_one_too_far_are_found_in_smollm_in_float32(
    smollm: tuple[Any, Any],
    embedded: Callable[..., Decoder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What that changes is of the size of rounding in bfloat16, where nothing could find it."""
    decoder = embedded(*smollm)
    off_by_one(monkeypatch)
    check = check_greedy(decoder, smollm[0], encoded(decoder, TEXTS[1:]), SMOLLM_TOKENS)
    (divergence,) = check.divergences
    assert not check.passed
    assert divergence.verdict == "error"


@pytest.mark.usefixtures("generated_once")
@pytest.mark.models
@pytest.mark.slow
def test_the_models_own_stop_strings_count_on_both_sides(
    smollm: tuple[Any, Any],
    embedded: Callable[..., Decoder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = smollm[0]
    decoder = embedded(*smollm)
    whole = decoder.generate(TEXTS[1], raw=True, max_new_tokens=SMOLLM_TOKENS).text
    assert whole is not None
    monkeypatch.setattr(model.generation_config, "stop_strings", [whole[len(whole) // 2 :][:4]])
    check = check_greedy(decoder, model, encoded(decoder, TEXTS[1:]), SMOLLM_TOKENS)
    assert check.passed
    assert check.compared < SMOLLM_TOKENS
    disturb(decoder, monkeypatch, SwapOnce(0.5))
    check = check_greedy(decoder, model, encoded(decoder, TEXTS[1:]), SMOLLM_TOKENS)
    assert [one.verdict for one in check.divergences] == ["error"]
