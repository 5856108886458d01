"""Greedy output equals `model.generate`, token for token, on tiny random models of many architectures."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from talon_core.decoding.loading import decoder_for_model
from talon_core.hf.target import _context
from talon_core.plugins.parts import Parts
from talon_core.plugins.registry import load_registry
from talon_core.retrieval import IndexedVocabulary, Piece, write_index
from talon_tests.tiny_models import ARCHITECTURES, SMALL, tiny_model
from talon_tests.trained_heads import TRAINED

NEW_TOKENS, MATRIX_TOKENS = 24, 200
PROMPT = torch.randint(3, 97, (21,), generator=torch.Generator().manual_seed(5))
WORDS = [9, 23, 41]
"""Tokens that the models say more often than others, so that heads that are not trained are right now and then."""
CHANGES = {"gemma2": {"initializer_range": 0.1}, "gemma3": {"initializer_range": 0.1}}
"""Entries of the configurations of models that would say one token again and again."""
POLICIES = {
    "none": "none",
    "chain": "chain:length=4",
    "static": "static",
    "eagle2": "eagle2:budget=10,depth=3,top_k=3",
    "opt-tree": "opt-tree:budget=10,delta=0.1,depth=4",
    "ddtree": "ddtree:budget=8",
    "caddtree": "caddtree:budget=12,depth=4",
    "talon-cost": "talon-cost:budget=12,depth=4",
    "bastion": "bastion:budget=12,depth=4",
    "talon": "talon:budget=12,top_k=3,mu=0.1",
    "talon-gate-only": "talon-gate-only:budget=12,mu=0.1",
    "talon-topk-layers": "talon-topk-layers:budget=12,top_k=3,mu=0.1",
    "talon-absolute": "talon-absolute:budget=12,top_k=3",
    "talon-local": "talon-local:budget=12,top_k=3,mu=0.1",
    "svip": "svip:length=6,h=0.7",
    "adaedl": "adaedl:length=6,threshold=0.1",
    "ddd": "ddd:budget=10,depth=4,top_k=3,checked=1;3",
    "gammatune": "gammatune:length=6",
    "gammatune-plus": "gammatune-plus:length=6,tau=0.05",
    "heuristic": "heuristic:length=6",
    "sps": "sps:length=6",
    "bandit": "bandit:of=chain[length=2]+chain[length=5]+none+talon[budget=12;top_k=3;mu=0.1]",
    "specdec-plus-plus": "specdec-plus-plus:length=6",
    "speckv": "speckv:gammas=2;4",
    "taps": "taps:of=talon[budget=12;top_k=3;mu=0.1]",
    "talon-sampled": "talon-sampled:budget=12,top_k=3",
    "talon-cost-sampled": "talon-cost-sampled:budget=12,depth=4",
    "sequoia": "sequoia:budget=10,depth=3",
    "dyspec": "dyspec:budget=10,depth=3",
    "specinfer": "specinfer:widths=3;1;1",
    "sampled-chain": "sampled-chain:length=4",
}
HEADS = {name: trained.made(draft_vocab=60, **trained.anywhere) for name, trained in TRAINED.items()}
"""Untrained: what they draft is mostly wrong."""

DRAFTERS = {
    "ngram": "ngram",
    "draft-model": "draft-model:skip=1-2",
    **dict.fromkeys(HEADS, ""),
    "hybrid": "hybrid:of=draft-model[skip=1-2]+ngram",
    "conflayers": "conflayers:context=8,every=8",
    "lookahead": "lookahead:window=3,ngram=4",
    "pld": "pld",
    "datastore": "",
}
SOME = {
    "conflayers": ("llama", "gemma3", "gpt2", "opt"),
    **dict.fromkeys(("lookahead", "pld", "datastore"), ("llama", "gemma3", "gpt-oss", "deepseek-v3")),
}
"""Drafters whose own tests have many architectures, or whose nodes are like any other's."""
ELSEWHERE = {"eagle"}
"""`tests/drafters/test_eagle.py` has it on targets of its own."""
DRAFTING = [policy for policy in POLICIES if policy != "none"]
ONCE = {
    ([*ARCHITECTURES][place % len(ARCHITECTURES)], DRAFTING[(place + 3 * turn) % len(DRAFTING)], drafter)
    for place in range(max(len(ARCHITECTURES), len(DRAFTING)))
    for turn, drafter in enumerate(DRAFTERS)
    if drafter not in SOME
}
ONCE |= {(architecture, "talon", drafter) for drafter, of_it in SOME.items() for architecture in of_it}
ONCE |= {("llama", "none", "ngram")}
"""Every architecture with every drafter but `SOME`, and every policy with each of them; the others are the matrix."""

COMBINATIONS = [
    pytest.param(*names, marks=[] if names in ONCE else [pytest.mark.matrix])
    for architecture in ARCHITECTURES
    for names in [
        *((architecture, policy, drafter) for policy in DRAFTING for drafter in DRAFTERS),
        (architecture, "none", "ngram"),  # which needs no drafter
    ]
]


def plain(model: Any, ids: torch.Tensor, **options: Any) -> list[int]:
    """New tokens of transformers' own greedy decoding."""
    out = model.generate(
        ids[None], attention_mask=torch.ones_like(ids)[None], do_sample=False, pad_token_id=0, **options
    )
    return [int(token) for token in out[0, len(ids) :]]


@cache
def model_and_truth(architecture: str, new_tokens: int = NEW_TOKENS) -> tuple[Any, list[int]]:
    """A model, and what transformers' own greedy decoding makes of the prompt."""
    model = tiny_model(architecture, **CHANGES.get(architecture, {}))
    with torch.no_grad():
        model.get_output_embeddings().weight[WORDS] *= 3
    truth = plain(model, PROMPT, max_new_tokens=new_tokens)
    assert len(set(truth)) > 1  # one token again and again would come of most errors, too
    return model, truth


def datastore_of(architecture: str, folder: Path) -> Path:
    """An index of parts of the answer, each with another token behind it: what is found is right, and then wrong."""
    model, truth = model_and_truth(architecture)
    parts = [[*truth[start : start + 7], WORDS[start % 3]] for start in range(0, NEW_TOKENS, 5)]
    named = IndexedVocabulary(architecture, model.config.vocab_size, "none")
    return write_index(folder, map(Piece, parts), named).folder


@pytest.fixture(scope="session")
def spec_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """The spec of a drafter for an architecture; heads and datastores are made, and written where the spec says."""

    @cache
    def spec(architecture: str, drafter: str) -> str:
        if drafter == "datastore":
            return f"datastore:path={datastore_of(architecture, tmp_path_factory.mktemp('datastore') / 'index')}"
        if drafter not in HEADS:
            return DRAFTERS[drafter]
        folder, tokens = tmp_path_factory.mktemp("heads") / drafter, torch.arange(20, 80)
        torch.manual_seed(0)
        head = HEADS[drafter].make(model_and_truth(architecture)[0], tokens)
        HEADS[drafter].export(head, tokens, {}, folder)
        return f"{drafter}:path={folder}"

    return spec


def test_every_policy_and_drafter_of_ours_is_in_the_matrix() -> None:
    registered = load_registry().entries["tree policy"].values()
    assert {one.name for one in registered if one.plugin.startswith("talon-core:")} == set(DRAFTING)
    drafters = load_registry().entries["drafter"].values()
    assert {one.name for one in drafters if one.plugin.startswith("talon-core:")} == {*DRAFTERS, *ELSEWHERE}
    others = DRAFTERS.keys() - SOME.keys()
    assert {(policy, drafter) for _, policy, drafter in ONCE} >= {(p, d) for p in DRAFTING for d in others}
    assert {(architecture, drafter) for architecture, _, drafter in ONCE} == {
        *((architecture, drafter) for architecture in ARCHITECTURES for drafter in others),
        *((architecture, drafter) for drafter, some in SOME.items() for architecture in some),
    }


@pytest.mark.parametrize(("architecture", "policy", "drafter"), COMBINATIONS)
def test_greedy_output_is_that_of_generate(
    request: pytest.FixtureRequest,
    shared_target: Any,
    architecture: str,
    policy: str,
    drafter: str,
    spec_of: Callable[[str, str], str],
) -> None:
    new_tokens = MATRIX_TOKENS if request.config.getoption("--matrix") else NEW_TOKENS
    model, expected = model_and_truth(architecture, new_tokens)
    assert len(expected) == new_tokens
    decoder = shared_target(model, None, Parts(spec_of(architecture, drafter), POLICIES[policy]))
    assert decoder.generate(PROMPT, max_new_tokens=new_tokens).token_ids == expected


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_attention_backend_and_processors_give_the_same_and_leave_the_model_as_it_was(architecture: str) -> None:
    model, expected = model_and_truth(architecture)
    penalties: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "repetition_penalty": 1.4, "no_repeat_ngram_size": 3}
    penalised = plain(model, PROMPT, **penalties)
    assert penalised != expected
    text = torch.cat([PROMPT, torch.tensor(expected)])[None]
    with torch.inference_mode():
        before = model(text).logits
    for attention in ("sdpa", "reference"):
        parts = Parts("draft-model:skip=1", "talon:budget=14,top_k=4", attention=attention)
        decoder = decoder_for_model(model, None, parts)
        assert decoder.generate(PROMPT, max_new_tokens=NEW_TOKENS).token_ids == expected, attention
        assert decoder.generate(PROMPT, **penalties).token_ids == penalised, attention
    with torch.inference_mode():
        assert torch.equal(model(text).logits, before), "the model is not as it was"


def longrope(**changes: Any) -> Any:
    """A Phi-3 whose position embeddings change for the whole text when it grows past 64 tokens."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [8.0] * 6, "rope_theta": 1e4, **changes}
    config = transformers.Phi3Config(**{**SMALL, "original_max_position_embeddings": 64, "rope_parameters": rope})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize("drafter", ["ngram", "draft-model:skip=1-2"])
def test_a_model_with_longrope_is_decoded_as_far_as_its_first_position_embeddings_go(drafter: str) -> None:
    model = longrope()
    decoder = decoder_for_model(model, None, Parts(drafter, POLICIES["talon"]))
    assert decoder.target.context_length == 64
    result = decoder.generate(PROMPT, max_new_tokens=64)
    assert (len(result.token_ids), result.finish_reason) == (64 - len(PROMPT), "length")
    assert result.token_ids == plain(model, PROMPT, max_new_tokens=64 - len(PROMPT))
    with pytest.raises(
        ValueError,
        match=r"the prompt has 64 tokens; the target's context holds 64 \(beyond it the model's RoPE of type "
        r"'longrope' changes for the whole text\), the output included, so the prompt must be shorter",
    ):
        decoder.generate(PROMPT.repeat(4)[:64])


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, 256),
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}, 128),
        ({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, 256),
        (
            {
                "rope_type": "llama3",
                "factor": 2.0,
                "rope_theta": 1e4,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
            256,
        ),
    ],
)
def test_only_position_embeddings_that_change_with_the_length_shorten_the_context(
    rope: dict[str, Any], context: int
) -> None:
    config = transformers.LlamaConfig(**{**SMALL, "rope_parameters": rope})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    assert decoder_for_model(model, None, Parts(policy="none")).target.context_length == context


def test_position_embeddings_that_differ_by_kind_of_layer_are_all_looked_at() -> None:
    model = tiny_model("gemma3")
    long = {"rope_type": "longrope", "original_max_position_embeddings": 100}
    model.config.rope_parameters["full_attention"] = {**model.config.rope_parameters["full_attention"], **long}
    assert _context(model.config) == (100, "beyond it the model's RoPE of type 'longrope' changes for the whole text")


def falcon() -> Any:
    config = transformers.FalconConfig(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4)
    return AutoModelForCausalLM.from_config(config)


def bloom() -> Any:
    return AutoModelForCausalLM.from_config(
        transformers.BloomConfig(vocab_size=97, hidden_size=48, n_layer=2, n_head=4)
    )


def mamba() -> Any:
    return AutoModelForCausalLM.from_config(
        transformers.MambaConfig(vocab_size=97, hidden_size=48, num_hidden_layers=2, state_size=4)
    )


@pytest.mark.parametrize("make", [falcon, bloom, mamba])
def test_a_model_whose_attention_cannot_be_replaced_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"choose another target|cannot verify a tree|only full and sliding-window"):
        decoder_for_model(make(), None, Parts())


@pytest.mark.parametrize("architecture", ["llama", "stablelm"])
def test_a_model_that_is_called_within_its_own_pass_does_not_take_part_in_it(architecture: str) -> None:
    """Layers that get no keyword look for the pass that runs; here another one does, of one token behind nothing."""
    model = tiny_model(architecture)
    decoder = decoder_for_model(model, None, Parts("ngram", "chain:length=2"))
    expected = decoder.generate(PROMPT.tolist(), max_new_tokens=8).token_ids
    called = []

    def look(*_: Any) -> None:
        if not called:
            called.append(True)
            model(torch.tensor([[1]]))

    hook = model.lm_head.register_forward_hook(look)
    with pytest.raises(RuntimeError, match="this model is being decoded by TALON"):
        decoder.generate(PROMPT.tolist(), max_new_tokens=8)
    hook.remove()
    assert decoder.generate(PROMPT.tolist(), max_new_tokens=8).token_ids == expected


def test_an_encoder_decoder_is_refused() -> None:
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="encoder-decoder"):
        decoder_for_model(transformers.T5ForConditionalGeneration(config), None, Parts())
