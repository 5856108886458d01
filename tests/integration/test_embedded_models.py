"""On the embedded models, in float32: every policy and drafter gives the tokens of `model.generate`."""

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.hf.bits import weight_bits
from talon_core.plugins.parts import Parts, choose_drafter
from talon_core.plugins.registry import load_registry
from talon_core.retrieval import Piece, vocabulary_of, write_index
from talon_drafters.checkpoints.files import shipped
from talon_strategies.acceptance_head import shipped_head
from talon_strategies.speckv import FEATURES
from talon_tests.trained_heads import SHIPPED

pytestmark = [pytest.mark.models, pytest.mark.slow]

NEW_TOKENS, LONGEST, GEMMAS_TOKENS, MATRIX_TOKENS = 32, 64, 26, 200
WINDOW = 512
"""Tokens that Gemma's layers with sliding windows see."""

POLICIES = {
    "none": "none",
    "chain": "chain:length=5",
    "static": "static",
    "eagle2": "eagle2:budget=10,depth=3,top_k=3",
    "opt-tree": "opt-tree:budget=10,delta=0.1,depth=4",
    "ddtree": "ddtree:budget=8",
    "caddtree": "caddtree:budget=12,depth=4",
    "talon-cost": "talon-cost:budget=12,depth=4",
    "bastion": "bastion:budget=12,depth=4",
    "talon": "talon:budget=12,top_k=4,mu=0.1",
    "talon-gate-only": "talon-gate-only:budget=12,mu=0.1",
    "talon-topk-layers": "talon-topk-layers:budget=12,top_k=3,mu=0.1",
    "talon-absolute": "talon-absolute:budget=12,top_k=4",
    "talon-local": "talon-local:budget=12,top_k=4,mu=0.1",
    "svip": "svip",
    "adaedl": "adaedl",
    "ddd": "ddd:budget=10,depth=5,top_k=3,checked=2;4",
    "gammatune": "gammatune",
    "gammatune-plus": "gammatune-plus",
    "heuristic": "heuristic",
    "sps": "sps",
    "bandit": "bandit:of=chain[length=2]+chain[length=5]+none+talon[budget=12;top_k=4;mu=0.1]",
    "specdec-plus-plus": "specdec-plus-plus",
    "speckv": "speckv",
    "taps": "taps:of=talon[budget=12;top_k=4;mu=0.1]",
    "talon-sampled": "talon-sampled:budget=12,top_k=4",
    "talon-cost-sampled": "talon-cost-sampled:budget=12,depth=4",
    "sequoia": "sequoia:budget=10,depth=3",
    "dyspec": "dyspec:budget=10,depth=3",
    "specinfer": "specinfer:widths=3;1;1",
    "sampled-chain": "sampled-chain:length=5",
}
DRAFTERS = {
    "smollm": (
        "ngram",
        "draft-model:skip=9-20",
        *SHIPPED,
        "hybrid",
        "lookahead",
        "conflayers",
        "pld",
        "datastore",
    ),
    "gemma": ("ngram", "lookahead", "conflayers", "draft-model:skip=6-11"),
}
ONCE = [("smollm", policy, "ngram") for policy in POLICIES] + [
    ("smollm", "talon", "draft-model:skip=9-20"),
    *[("smollm", "talon", kind) for kind in SHIPPED],
    ("smollm", "eagle2", "eagle3"),
    ("smollm", "talon", "hybrid"),
    ("smollm", "chain", "pld"),
    ("smollm", "talon", "datastore"),
    ("gemma", "none", "ngram"),
    ("gemma", "talon", "ngram"),
    ("gemma", "eagle2", "draft-model:skip=6-11"),
]
"""Every policy and model at least once, and every drafter but those that tiny models show as well; the other
combinations are the matrix."""

LONG = [("talon", "eagle3"), ("talon", "ngram")]
"""Policies and drafters whose answers are twice as long as those of the others."""

COMBINATIONS = [
    pytest.param(model, policy, drafter, marks=[] if (model, policy, drafter) in ONCE else [pytest.mark.matrix])
    for model, drafters in DRAFTERS.items()
    for policy in POLICIES
    for drafter in drafters
]


def _of_length(count: int) -> dict[str, Any]:
    """Options for so many new tokens."""
    return {"max_new_tokens": count, "min_new_tokens": count}


@pytest.fixture(scope="session")
def expected(request: pytest.FixtureRequest, answers: Any) -> Callable[..., list[int]]:
    """`model.generate`'s new tokens for a model, prompt and options; each computed once in a run."""

    def generate(model_name: str, ids: list[int], **options: Any) -> list[int]:
        model, _ = request.getfixturevalue(model_name)
        batch = torch.tensor([ids])
        out = model.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, **options)
        return [int(token) for token in out[0, len(ids) :]]

    def answer(model_name: str, ids: list[int], **options: Any) -> list[int]:
        question = (model_name, ids, sorted(options.items()))
        found: list[int] = answers.of(question, lambda: generate(model_name, ids, **options))
        return found

    return answer


@pytest.fixture(scope="session")
def datastore_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A drafter with an index of a short text by a model's tokenizer, which the answer to `LIST` has in part."""

    @cache
    def spec(name: str) -> str:
        model, tokenizer = request.getfixturevalue(name)
        documents = [Piece(tokenizer(LIST + "four</li>\n<li>seven</li>\n").input_ids)]
        named = vocabulary_of(tokenizer, model.name_or_path)
        return f"datastore:path={write_index(tmp_path_factory.mktemp('datastore') / 'index', documents, named).folder}"

    return spec


def _decoder(request: pytest.FixtureRequest, model: str, policy: str, drafter: str) -> Decoder:
    if drafter == "datastore":
        drafter = request.getfixturevalue("datastore_of")(model)
    made: Decoder = request.getfixturevalue("shared_target")(*request.getfixturevalue(model), Parts(drafter, policy))
    return made


LIST = "<li>one</li>\n<li>two</li>\n<li>three</li>\n<li>"
"""SmolLM2 goes on with further numbers; an n-gram drafter is right about what is around them, and wrong about them."""

LONG_TEXT = " ".join(
    f"On day {day} the crew of the Heron sailed {day * 7 % 31} miles and wrote in the log that the wind came from the "
    f"{'north' if day % 3 else 'south'} and the water was {'rough' if day % 4 else 'calm'}."
    for day in range(1, 16)
)
LONG_TEXT += " On day 16 the crew of the Heron sailed 19 miles and wrote"
"""About 500 tokens for Gemma: those that follow go past its sliding window, from about the twelfth on."""


def test_so_it_is_where_a_policy_chooses_who_drafts(
    request: pytest.FixtureRequest, expected: Callable[..., list[int]]
) -> None:
    policy = "bandit:of=chain[length=2]+talon[budget=8;top_k=3;mu=0.1],drafters=true"
    decoder: Decoder = request.getfixturevalue("shared_target")(
        *request.getfixturevalue("smollm"), Parts("hybrid:of=eagle3+ngram", policy)
    )
    result = decoder.generate(LIST, raw=True, **_of_length(NEW_TOKENS))
    answer = expected("smollm", result.prompt_ids.tolist(), **_of_length(LONGEST))
    assert result.token_ids == answer[:NEW_TOKENS]
    passes = [round_.draft_passes for round_ in result.rounds if len(round_.tree) > 1]
    assert min(passes) == 0 < max(passes)  # some trees are of the look-up alone


@pytest.mark.parametrize(("model", "policy", "drafter"), COMBINATIONS)
def test_greedy_output_is_that_of_generate(
    request: pytest.FixtureRequest,
    prompts: list[str],
    expected: Callable[..., list[int]],
    model: str,
    policy: str,
    drafter: str,
) -> None:
    decoder = _decoder(request, model, POLICIES[policy], drafter)
    matrix = request.config.getoption("--matrix")
    some = prompts if matrix or request.config.getoption("--prompts") else []
    longest = MATRIX_TOKENS if matrix else {"smollm": LONGEST, "gemma": GEMMAS_TOKENS}[model]
    count = longest if model == "gemma" or matrix or (policy, drafter) in LONG else NEW_TOKENS
    for prompt in some or [{"smollm": LIST, "gemma": LONG_TEXT}[model]]:
        result = decoder.generate(prompt, raw=prompt == LIST, **_of_length(count))
        assert result.token_ids == expected(model, result.prompt_ids.tolist(), **_of_length(longest))[:count], prompt
        assert len(result.token_ids) == count
        if model == "gemma" and prompt == LONG_TEXT:
            assert len(result.prompt_ids) + 10 < WINDOW < len(result.prompt_ids) + count - 10


def test_the_network_of_speckv_was_fitted_on_the_model_as_it_is_loaded(request: pytest.FixtureRequest) -> None:
    model, _ = request.getfixturevalue("smollm")
    traces = shipped_head("speckv", FEATURES).origin["traces"]
    assert [one["weight_bits"] for one in traces if one["target"] == "smollm2-135m"] == [weight_bits(model)]


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_shipped_drafter_is_small_and_guesses_well(
    request: pytest.FixtureRequest, prompts: list[str], kind: str
) -> None:
    least, most_bytes = SHIPPED[kind]
    folder = shipped()[f"smollm2-135m-{kind}"]
    assert sum(file.stat().st_size for file in folder.iterdir()) <= most_bytes
    assert "## Licences" in (folder / "README.md").read_text()
    decoder = _decoder(request, "smollm", "talon:budget=16", kind)
    decoder.engine.allocator = None  # all nodes count, whatever they cost here
    stats = [result.stats for result in decoder.generate([*prompts], max_new_tokens=32)]
    assert sum(one.new_tokens for one in stats) >= least * sum(one.target_passes for one in stats)


def test_the_best_shipped_drafter_is_used_where_none_is_named(request: pytest.FixtureRequest) -> None:
    model, tokenizer = request.getfixturevalue("smollm")
    assert choose_drafter(load_registry(), model) == "eagle3"
    assert choose_drafter(load_registry(), request.getfixturevalue("gemma")[0]) == "ngram"
    decoder = decoder_for_model(model, tokenizer, Parts())
    assert decoder.drafter_spec is not None
    assert decoder.drafter_spec.name == "eagle3"


PROCESSED_TOKENS, MOST_PROCESSED = 10, 16
PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition-penalty": {"repetition_penalty": 1.3},
    "no-repeat-ngram": {"no_repeat_ngram_size": 2, "max_new_tokens": MOST_PROCESSED},
    "bad-words": {"bad_words_ids": [[260], [28, 284]]},
    "suppressed": {"suppress_tokens": [28, 30, 260]},
    "forced": {"forced_eos_token_id": 2, "begin_suppress_tokens": [1653]},
    "several": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 4, "min_new_tokens": 8, "eos_token_id": [2, 282]},
}
"""Each changes SmolLM2's answer to the first prompt, within as many tokens as are decoded."""


@pytest.mark.parametrize("model_name", ["smollm", pytest.param("gemma", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("options", PROCESSORS.values(), ids=PROCESSORS.keys())
def test_processors_are_applied_to_the_true_prefix(
    request: pytest.FixtureRequest,
    prompts: list[str],
    expected: Callable[..., list[int]],
    options: dict[str, Any],
    model_name: str,
) -> None:
    decoder = _decoder(request, model_name, POLICIES["talon"], {"smollm": "eagle3"}.get(model_name, "ngram"))
    given = {"max_new_tokens": PROCESSED_TOKENS, **options}
    result = decoder.generate(prompts[0], **given)
    ids = result.prompt_ids.tolist()
    assert result.token_ids == expected(model_name, ids, **given)
    if model_name == "smollm":
        assert any(round_.accepted for round_ in result.rounds)
        assert result.token_ids != expected(model_name, ids, max_new_tokens=MOST_PROCESSED)[: given["max_new_tokens"]]


def test_stop_strings_cut_where_generate_stops(
    request: pytest.FixtureRequest, expected: Callable[..., list[int]]
) -> None:
    model, tokenizer = request.getfixturevalue("smollm")
    decoder = _decoder(request, "smollm", POLICIES["talon"], "ngram")
    ids = decoder.frontend.request(LIST, {"raw": True}).ids
    whole = tokenizer.decode(expected("smollm", ids.tolist(), **_of_length(LONGEST))[:NEW_TOKENS])
    stop = whole[len(whole) // 2 :][:5]
    result = decoder.generate(ids, max_new_tokens=NEW_TOKENS, stop_strings=[stop])
    batch = torch.as_tensor(ids)[None]
    out = model.generate(
        batch,
        attention_mask=torch.ones_like(batch),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        stop_strings=[stop],
        tokenizer=tokenizer,
    )
    assert result.token_ids == out[0, batch.shape[1] :].tolist()
    assert result.finish_reason == "stop"
    assert len(result.token_ids) < NEW_TOKENS


@pytest.mark.parametrize("stop", [5, ["a", ""], [7], {"a": 1}])
def test_stop_strings_that_are_no_texts_are_refused_in_words(request: pytest.FixtureRequest, stop: Any) -> None:
    decoder = _decoder(request, "smollm", "none", "ngram")
    with pytest.raises(ValueError, match=r"stop_strings is .*; it must be a text, or a list of texts"):
        decoder.generate("Hello", max_new_tokens=2, stop_strings=stop)


def test_sampling_with_a_seed_is_reproducible(request: pytest.FixtureRequest, prompts: list[str]) -> None:
    decoder = _decoder(request, "smollm", POLICIES["talon"], "ngram")
    options: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.02}
    one, same, other = (decoder.generate(prompts[0], seed=seed, **options).token_ids for seed in (7, 7, 8))
    assert one == same != other


def test_streaming_gives_the_same_text(request: pytest.FixtureRequest, prompts: list[str]) -> None:
    decoder = _decoder(request, "smollm", POLICIES["talon"], "ngram")
    stream = decoder.stream(prompts[1] + " 🎈 naïve", max_new_tokens=60)
    assert "".join(chunk.text or "" for chunk in stream) == stream.result().text


def test_the_output_has_the_same_bits_whatever_the_tree(request: pytest.FixtureRequest, prompts: list[str]) -> None:
    """The native CPU kernels are row invariant: verified logits are those of decoding one token at a time, exactly.

    EAGLE-3's trees have many branches, so that a node which sees another one changes bits here, and seldom a token.
    """
    plain = _decoder(request, "smollm", "none", "eagle3")
    drafted = _decoder(request, "smollm", POLICIES["talon"], "eagle3")
    if plain.target.attention.name != "native" or plain.target.accelerator is None:  # type: ignore[attr-defined]
        pytest.skip("no C compiler here: the native kernels are not used")
    logits = [_visited_logits(decoder, prompts[1]) for decoder in (plain, drafted)]
    assert len(logits[0]) >= 40
    for one, other in zip(*logits, strict=True):
        assert torch.equal(one, other)


def _visited_logits(decoder: Decoder, prompt: str) -> list[torch.Tensor]:
    """The logits from which each new token was taken."""
    seen: list[torch.Tensor] = []

    def watch(_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores.clone())
        return scores

    result = decoder.generate(prompt, max_new_tokens=44, logits_processor=[watch])
    return seen[: len(result.token_ids)]


LOADING = """
from pathlib import Path
from talon_core.models.loading import load_model

def most():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

before = most()
model, _ = load_model("smollm2-135m")
print(most() - before, sum(tensor.nbytes for tensor in model.buffers()))
"""
"""Tells by how many bytes a process was larger at most while it loaded a model, and how many the model has."""


def test_loading_takes_less_memory_than_half_of_the_numbers_would(smollm: Any, forked_python: str) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not tell of the most memory that a process has had")
    ran = subprocess.run([forked_python, "-c", LOADING], capture_output=True, text=True, check=True)
    grown, held = map(int, ran.stdout.split())
    assert held <= grown < 4 * 134_515_008 / 2
