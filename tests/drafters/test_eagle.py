"""EAGLE-1 and EAGLE-2 heads against their formulae, in every layout in which their files are found."""

import os
from functools import cache

import attrs
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from talon_core import TableTarget
from talon_core.drafter import FINAL_STATE
from talon_core.plugins.parts import Parts
from talon_drafters import Eagle
from talon_drafters.checkpoints.files import read_checkpoint
from talon_drafters.eagle.files import EagleFiles
from talon_tests.policies import with_policies
from talon_tests.shared_targets import SharedTargets
from talon_tests.tiny_models import tiny_llama, tiny_model

TARGETS = SharedTargets()
VOCAB, HIDDEN, HEADS, KV_HEADS = 97, 48, 4, 2


@attrs.frozen(eq=False)
class Case:
    """One kind of head, and how its files say so; `fields` go into `config.json`, `extra` are further tensors."""

    file: str = "pytorch_model.bin"
    layers: int = 1
    head_dim: int = 12
    embedding: bool = True
    fc_bias: bool = True
    biased: tuple[str, ...] = ()
    theta: float = 10000.0
    eps: float = 1e-6
    fields: dict = attrs.field(factory=dict)
    prefix: str = ""
    extra: dict = attrs.field(factory=dict)


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

CASES = {
    "the authors'": Case(),
    "the authors', safetensors": Case(file="model.safetensors"),
    "LLaMA-3": Case(fc_bias=False, theta=500.0, eps=1e-5, fields={"bias": False, "rope_theta": 500.0}),
    "LLaMA-3, transformers 5": Case(
        fc_bias=False, theta=500.0, fields={"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}
    ),
    "Qwen2": Case(fc_bias=False, biased=QKV, fields={"qkv_bias": True}),
    "copied": Case(fields={"architectures": ["LlamaForCausalLMEagle"], "draft_vocab_size": None}),
    "copied, prefixed, with an LM head": Case(prefix="model.", extra={"lm_head.weight": np.ones((VOCAB, HIDDEN))}),
    "old, with frequencies": Case(extra={"layers.0.self_attn.rotary_emb.inv_freq": np.ones(6)}),
    "the target's embedding": Case(embedding=False),
    "two layers": Case(layers=2, fields={"num_hidden_layers": 1}),
    "other heads": Case(head_dim=20, fields={"head_dim": 20}),
}


def weights_of(shared, case, seed=3):
    """Random weights by the authors' names, NumPy float64, exactly what float32 can hold."""
    rng = np.random.default_rng(seed)
    made = {"fc.weight": rng.normal(size=(HIDDEN, 2 * HIDDEN)) * (2 * HIDDEN) ** -0.5}
    if case.fc_bias:
        made["fc.bias"] = rng.normal(size=HIDDEN)
    for layer in range(case.layers):
        sizes = (HIDDEN, HIDDEN, 56, HEADS, KV_HEADS, case.head_dim, case.biased)
        of_it = shared.random_layer(rng, f"layers.{layer}", *sizes)
        made |= {name: one / 2 if "proj" in name else one for name, one in of_it.items()}  # states must not explode
        if layer:  # the first has none
            made[f"layers.{layer}.input_layernorm.weight"] = rng.uniform(0.5, 1.5, HIDDEN)
    if case.embedding:
        made["embed_tokens.weight"] = rng.normal(size=(VOCAB, HIDDEN))
    return {name: array.astype(np.float32).astype(np.float64) for name, array in made.items()}


def config_of(case):
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": 56,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": case.eps,
        "vocab_size": VOCAB,
        **case.fields,
    }


def written_case(shared, folder, case):
    named = {f"{case.prefix}{name}": tensor for name, tensor in weights_of(shared, case).items()}
    return shared.save(folder, {**named, **case.extra}, config_of(case), case.file)


def plain_law(shared, case, weights, model, ids, features):
    """The law after a text and a path of drafted tokens, shape `(vocab,)`, as a function of the path.

    It is the formulae, run row after row; a row that paths have in common is run once. `features` are the target's
    final states at all tokens of the text but the last.
    """
    plain = shared.Written(weights, HEADS, case.head_dim, case.theta, eps=case.eps)
    lm_head = model.get_output_embeddings()
    own = model.get_input_embeddings().weight.detach().double().numpy()
    embedding = weights["embed_tokens.weight"] if case.embedding else own

    @cache
    def states(path):
        """Those that a path's last row reads, and the one that it gives, shape `(rows + 1, hidden)`."""
        known = states(path[:-1]) if path else features
        x = plain.linear(np.concatenate([embedding[[*ids[1:], *path]], known], axis=-1), "fc")
        for layer in range(case.layers):
            x = plain.layer(x, f"layers.{layer}")
        return np.concatenate([known, x[-1:]])

    def law_after(path):
        scores = lm_head.weight.detach().double().numpy() @ states(tuple(path))[-1]
        if lm_head.bias is not None:
            scores = scores + lm_head.bias.detach().double().numpy()
        law = np.exp(scores - scores.max())
        return law / law.sum()

    return law_after


def decoder_of(path, policy="chain", model=None, **options):
    return TARGETS.decoder(model or tiny_llama(), None, Parts(Eagle(path), policy, **options))


def check_drafting(shared, case, path, rounds, model=None, **options):
    """The laws at all nodes of all rounds are the formulae's; returns them."""
    model = model or tiny_llama()
    decoder = decoder_of(path, model=model, **options)
    states = [shared.states_of(model, one.ids, (-1,)) for one in rounds]
    with decoder.target.session(), decoder.drafter.session():
        drafted = shared.draft(decoder.drafter, rounds, states, VOCAB)
    weights = weights_of(shared, case)
    for one, its, laws in zip(rounds, states, drafted, strict=True):
        for round_, tree in enumerate(one.trees):
            ids = one.committed(round_)
            known = one.drafts[round_] and len(ids) > 1
            law_after = plain_law(shared, case, weights, model, ids, its[: len(ids) - 1].double().numpy())
            for node in range(len(tree) if known else 0):
                truth = law_after(tree.tokens[tree.path(node)[1:]].tolist())
                np.testing.assert_allclose(laws[round_][node], truth, rtol=0, atol=1e-5)
            assert known or np.isnan(laws[round_]).all()
    return drafted


# Laws


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_the_law_at_every_node_is_the_formulas_over_several_rounds(name, accelerate, shared, tmp_path):
    path = written_case(shared, tmp_path, CASES[name])
    check_drafting(shared, CASES[name], path, [shared.Rounds.random(1, VOCAB)], accelerate=accelerate)


@pytest.mark.parametrize("architecture", ["gemma3", "gpt2", "qwen3", "phi"])
@pytest.mark.parametrize("name", ["the authors'", "the target's embedding"])
def test_the_last_state_and_the_lm_head_of_other_targets_are_used(name, architecture, shared, tmp_path):
    model = tiny_model(architecture)
    if model.get_output_embeddings().bias is not None:
        torch.nn.init.normal_(model.get_output_embeddings().bias)
    path = written_case(shared, tmp_path, CASES[name])
    check_drafting(shared, CASES[name], path, [shared.Rounds.random(1, VOCAB)], model)


def test_a_batch_gives_each_row_the_laws_it_gets_alone(shared, tmp_path):
    case = CASES["the authors'"]
    path = written_case(shared, tmp_path, case)
    rounds = [
        shared.Rounds.random(1, VOCAB, 9, (9, 0, 4, 6)),
        shared.Rounds.random(2, VOCAB, 1, (3, 5, 1, 6)),
    ]
    together = check_drafting(shared, case, path, rounds)
    for one, laws in zip(rounds, together, strict=True):
        (alone,) = check_drafting(shared, case, path, [one])
        for round_, its in zip(laws, alone, strict=True):
            np.testing.assert_allclose(round_, its, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("recorded", [False, True])
def test_each_sequence_gets_the_laws_it_gets_alone_whoever_comes_and_goes(recorded, shared, tmp_path):
    path, model = written_case(shared, tmp_path, CASES["the authors'"]), tiny_model("llama")
    drafter = shared.recorded(Eagle(path), model) if recorded else decoder_of(path, model=model).drafter
    shared.check_turns(drafter, lambda ids: shared.states_of(model, ids, (-1,)), VOCAB)


@pytest.mark.parametrize("recorded", [False, True])
def test_nodes_that_were_passed_over_may_be_drafted_from_later(recorded, shared, tmp_path):
    path, model = written_case(shared, tmp_path, CASES["the authors'"]), tiny_model("llama")
    drafter = shared.recorded(Eagle(path), model) if recorded else decoder_of(path, model=model).drafter
    shared.check_any_order(drafter, lambda ids: shared.states_of(model, ids, (-1,)), VOCAB)


@pytest.mark.parametrize("policy", ["chain:length=4", "static", "talon:budget=60,top_k=30,mu=0.001"])
def test_while_decoding_the_laws_are_the_formulas(policy, shared, tmp_path):
    case = CASES["the authors'"]
    decoder = decoder_of(written_case(shared, tmp_path, case), policy)
    model = decoder.target.model
    decoder, recording = shared.recorded_laws(decoder)
    result = decoder.generate(np.array([5, 6, 7, 8]), max_new_tokens=12)
    whole = [5, 6, 7, 8, *result.token_ids]
    final, weights = shared.states_of(model, whole, (-1,)).double().numpy(), weights_of(shared, case)
    if policy.startswith("talon"):
        assert any(len(round_.tokens) > 1 for round_ in result.rounds)
    for ids, path, law in recording.laws[:: max(1, len(recording.laws) // 60)]:
        assert whole[: len(ids)] == ids
        law_after = plain_law(shared, case, weights, model, ids, final[: len(ids) - 1])
        np.testing.assert_allclose(law, law_after(path), rtol=0, atol=1e-5)


@with_policies("llama", "gemma3", "gpt2", "qwen3", "cohere")
def test_greedy_output_is_the_plain_models(architecture, policy, shared, tmp_path):
    model, answers = shared.model_and_truth(architecture)
    path = written_case(shared, tmp_path, CASES["the authors'"])
    decoder = decoder_of(path, policy, model)
    for prompt, expected in answers:
        drafted = decoder.generate(prompt, max_new_tokens=len(expected))
        assert drafted.token_ids == expected
        assert drafted.stats.draft_passes > 0


# What is told about it


def test_it_asks_for_the_final_state_and_nothing_else():
    assert Eagle("somewhere").features(12) == (FINAL_STATE,)


def test_a_head_says_what_was_recognised(shared, tmp_path):
    said = decoder_of(written_case(shared, tmp_path, CASES["LLaMA-3"])).drafter.describe()
    assert said == {
        "layout": "eagle",
        "hidden_size": HIDDEN,
        "rope": {"rope_theta": 500.0, "rope_type": "default"},
        "num_layers": 1,
        "fc_bias": False,
        "own_embedding": True,
        "weights": "stored",
    }


def test_files_of_its_kind_are_recognised(shared, tmp_path):
    for number, name in enumerate(("the authors'", "copied, prefixed, with an LM head")):
        path = written_case(shared, tmp_path / str(number), CASES[name])
        assert Eagle.of_files(path) == Eagle(path)
    medusa = shared.save(tmp_path / "medusa", {"0.0.linear.weight": np.zeros((2, 2))}, {})
    assert Eagle.of_files(medusa) is None


def test_the_targets_type_is_taken_but_for_the_frequencies_of_rope(shared, tmp_path):
    checkpoint = read_checkpoint(written_case(shared, tmp_path, CASES["the authors'"]))
    lm_head = torch.nn.Linear(HIDDEN, VOCAB, dtype=torch.bfloat16)
    head = EagleFiles.of(checkpoint).head(lm_head, VOCAB)
    assert {tensor.dtype for tensor in head.state_dict().values()} == {torch.bfloat16}
    assert head.rotary.inv_freq.dtype == torch.float32


def test_the_targets_lm_head_is_shared_and_no_part_of_the_head(shared, tmp_path):
    decoder = decoder_of(written_case(shared, tmp_path, CASES["the authors'"]))
    weight = decoder.target.model.get_output_embeddings().weight
    assert all(parameter is not weight for parameter in decoder.drafter.head.parameters())


# What is refused


AUTHORS = CASES["the authors'"]
REFUSED = {
    "another hidden size": (
        {"fc.weight": np.zeros((32, 64))},
        {},
        r"has fc.weight of shape \(32, 64\); it must be \(48, 96\) for this target",
    ),
    "another vocabulary": (
        {"embed_tokens.weight": np.zeros((100, 48))},
        {},
        r"has embed_tokens.weight of shape \(100, 48\); it must be \(97, 48\)",
    ),
    "no fc": ({"fc.weight": None}, {}, "lacks the tensor fc.weight, so it is no EAGLE-1 or EAGLE-2 head"),
    "no query": (
        {"layers.0.self_attn.q_proj.weight": None},
        {},
        "lacks the tensor layers.0.self_attn.q_proj.weight, so it is no",
    ),
    "no value": ({"layers.0.self_attn.v_proj.weight": None}, {}, "lacks .* layers.0.self_attn.v_proj.weight"),
    "another MLP": (
        {"layers.0.mlp.up_proj.weight": np.zeros((50, 48))},
        {},
        r"has layers.0.mlp.up_proj.weight of shape \(50, 48\); it must be \(56, 48\)",
    ),
    "a norm in front": (
        {"layers.0.input_layernorm.weight": np.ones(48)},
        {},
        "has the tensor layers.0.input_layernorm.weight, which EAGLE-1 and EAGLE-2 heads do not have",
    ),
    "a norm behind": ({"norm.weight": np.ones(48)}, {}, "has the tensor norm.weight, which EAGLE-1"),
    "a missing layer": (
        {"layers.2.self_attn.q_proj.weight": np.ones((48, 48))},
        {},
        "has layer 2 but no layer 1",
    ),
    "a tensor nobody knows": ({"gate": np.ones(48)}, {}, "has a tensor gate, which no known layout of EAGLE heads has"),
    "no number of heads": ({}, {"num_attention_heads": "four"}, "says no num_attention_heads in its config.json"),
    "an EAGLE-3 head": (
        {"midlayer.hidden_norm.weight": np.ones(48)},
        {},
        "is an EAGLE-3 head; use drafter 'eagle3'",
    ),
    "an EAGLE-3 speculator": ({}, {"speculators_model_type": "eagle3"}, "is an EAGLE-3 head; use drafter 'eagle3'"),
    "a P-EAGLE speculator": ({}, {"speculators_model_type": "peagle"}, "is an EAGLE-3 head; use drafter 'eagle3'"),
    "a speculator": ({}, {"speculators_model_type": "eagle"}, "is a speculator of type 'eagle'; drafter 'eagle' reads"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_does_not_fit_is_refused_in_words(name, shared, tmp_path):
    changes, fields, sentence = REFUSED[name]
    tensors = {name: one for name, one in {**weights_of(shared, AUTHORS), **changes}.items() if one is not None}
    with pytest.raises(ValueError, match=sentence) as caught:
        decoder_of(shared.save(tmp_path, tensors, {**config_of(AUTHORS), **fields}))
    assert str(tmp_path) in str(caught.value)


def test_medusa_heads_are_refused(shared, tmp_path):
    path = shared.save(tmp_path, {"0.0.linear.weight": np.zeros((48, 48)), "0.1.weight": np.zeros((97, 48))}, {})
    with pytest.raises(ValueError, match=r"lacks the tensor fc.weight, so it is no EAGLE-1 or EAGLE-2 head"):
        decoder_of(path)


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.system, ("exit 1",)


def test_a_pickle_that_holds_code_is_refused(shared, tmp_path):
    path = shared.save(tmp_path, {}, config_of(AUTHORS), "pytorch_model.bin")
    torch.save({"fc.weight": Malicious()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model.bin of .* holds more than tensors and is not unpickled"):
        decoder_of(path)


def test_embeddings_of_another_width_are_refused(shared, tmp_path):
    config = tiny_model("opt").config
    config.word_embed_proj_dim = 24
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    path = written_case(shared, tmp_path, CASES["the target's embedding"])
    with pytest.raises(ValueError, match=r"48"):
        decoder_of(path, model=model)


def test_a_target_that_is_no_transformers_model_is_refused():
    with pytest.raises(ValueError, match="drafter 'eagle' drafts for transformers models, not for a TableTarget"):
        Eagle("somewhere").open(TableTarget(np.zeros((3, 3))))
