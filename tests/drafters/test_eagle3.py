"""EAGLE-3 heads against their formulae, in every layout and with every flag that published files have."""

import json
import os
import shutil
from functools import cache
from itertools import accumulate

import attrs
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from talon_core import TableTarget
from talon_core.certify.exact import Given, ancestral_law, distance
from talon_core.cli import main
from talon_core.costs import UnknownCosts
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Committed, Frontier, Part
from talon_core.plugins.parts import Parts
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import describe_options, join_spec
from talon_core.request import Request
from talon_core.runtime.executor import HostExecutor
from talon_core.sampling import Sampling
from talon_core.target import NOT_GREEDY, NodeOutputs, Verified
from talon_core.tree import TokenTree
from talon_drafters import Eagle3
from talon_drafters.checkpoints import files
from talon_drafters.checkpoints.files import fingerprint, read_checkpoint
from talon_drafters.eagle3.files import Eagle3Files
from talon_drafters.eagle3.network import Eagle3Config, Eagle3Head
from talon_drafters.eagle3.options import default_states
from talon_drafters.heads import feature_drafter
from talon_drafters.heads.feature_drafter import FeatureDrafter
from talon_kernels.backends import ReferenceAttention
from talon_kernels.native import load
from talon_strategies.rules.match import Match
from talon_tests.begun_texts import begun_law
from talon_tests.on_device import check_on_device
from talon_tests.policies import with_policies
from talon_tests.shared_targets import SharedTargets
from talon_tests.tiny_models import SMALL, of_words, tiny_llama, tiny_model

VOCAB, HIDDEN, HEADS, KV_HEADS, LAYERS = 97, 48, 4, 2, 8
STATES = (2, 4, 5)
"""What is fused by default of a target of eight layers."""
DRAFT_IDS = np.array([1, 3, 4, 9, 20, 21, 22, 40, 41, 55, 60, 77, 90, 96])
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,
}


TARGETS = SharedTargets()


@cache
def target_model():
    """A random Llama deep enough for its low, middle and high states to differ."""
    torch.manual_seed(5)
    config = LlamaConfig(**{**SMALL, "num_hidden_layers": LAYERS})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@attrs.frozen(eq=False)
class Case:
    """One kind of head, and how its files say so.

    Attributes:
        layout: "native", "speculators" or "nvidia".
        config: entries of `config.json` in the place of, or beside, those that the layout always has.
        fields: the same for those that speak of the layers.
        renamed: names in the file in the place of the authors'.
        without: names that are not in the file.
        states: the target's states that are fused, as transformers counts them.
        options: of the drafter, beside `path`.
        theta: RoPE's base.
        scaling: RoPE's scaling.
    """

    layout: str = "native"
    file: str = "model.safetensors"
    hidden: int = HIDDEN
    head_dim: int = 12
    layers: int = 1
    draft_ids: np.ndarray | None = DRAFT_IDS
    maps: tuple[str, ...] = ("d2t", "t2d")
    own_embedding: bool = False
    biased: tuple[str, ...] = ()
    fc_bias: bool = False
    head_norms: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    embedding_norm: bool = True
    last_norm: bool = True
    theta: float = 10000.0
    scaling: dict | None = None
    eps: float = 1e-5
    states: tuple[int, ...] = STATES
    config: dict = attrs.field(factory=dict)
    fields: dict = attrs.field(factory=dict)
    renamed: dict = attrs.field(factory=dict)
    without: tuple[str, ...] = ()
    options: dict = attrs.field(factory=dict)


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
SPECULATORS = {"layout": "speculators", "norm_before_residual": True}
"""What is true of such a file where it does not say otherwise."""
SHIFTED = {f"layers.{layer + 1}.": f"layers.{layer}." for layer in range(2)}

CASES = {
    # layouts
    "native": Case(),
    "native, pickled": Case(file="pytorch_model.bin"),
    "native, its number of layers wrong": Case(fields={"num_hidden_layers": 40}),
    "native, layers prefixed": Case(
        renamed={"midlayer.": "model.midlayer.", "fc.": "model.fc.", "norm.": "model.norm."}
    ),
    "native, layers.0": Case(renamed={"midlayer.": "layers.0."}),
    "native, the whole vocabulary": Case(draft_ids=None, maps=()),
    "native, head_dim said": Case(head_dim=20, fields={"head_dim": 20}),
    "SpecForge": Case(
        own_embedding=True,
        config={"architectures": ["LlamaForCausalLMEagle3"], "norm_output": True},
        options={"norm_output": "no"},
    ),
    "SpecForge, EAGLE-3.1": Case(norm_output=True, config={"norm_output": True}, options={"norm_output": "yes"}),
    "SpecForge, maps untouched": Case(own_embedding=True, draft_ids=None),
    "vLLM's name for the map": Case(renamed={"midlayer.": "layers.0.", "d2t": "draft_id_to_target_id"}, maps=("d2t",)),
    "speculators": Case(**SPECULATORS),
    "speculators, embedding": Case(**SPECULATORS, own_embedding=True),
    "speculators, flags said": Case(
        "speculators", config={"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False}
    ),
    "nvidia": Case("nvidia", config={"eagle_config": {"use_aux_hidden_state": True, "next_layer_regular": True}}),
    "nvidia, fewer norms": Case(
        "nvidia",
        embedding_norm=False,
        last_norm=False,
        config={"eagle_config": {"use_input_layernorm_in_first_layer": False, "use_last_layernorm": False}},
    ),
    "nvidia, norm_before_fc": Case(
        "nvidia", norm_before_fc=True, config={"eagle_config": {"norm_before_fc": True, "parallel_draft_step": 1}}
    ),
    # flags
    "norm_before_residual": Case(norm_before_residual=True, config={"norm_before_residual": True}),
    "norm_before_fc": Case(norm_before_fc=True, config={"norm_before_fc": True}),
    "norm_before_fc, not said": Case(norm_before_fc=True),
    "fc_norm": Case(fc_norm=True, config={"fc_norm": True}),
    "aux_norm": Case(
        fc_norm=True,
        config={"use_aux_norm": True},
        renamed={"fc_norm.0.": "aux_norm_low.", "fc_norm.1.": "aux_norm_mid.", "fc_norm.2.": "aux_norm_high."},
    ),
    "both norms before fc": Case(**SPECULATORS, fc_norm=True, norm_before_fc=True),
    "norm_output": Case(**SPECULATORS, norm_output=True, config={"norm_output": True}),
    "all of the speculators' flags": Case(
        "speculators",
        layers=2,
        norm_output=True,
        norm_before_fc=True,
        fc_norm=True,
        head_norms=True,
        config={"norm_before_residual": False, "norm_output": True, "norm_before_fc": True, "fc_norm": True},
        fields={"model_type": "qwen3"},
    ),
    "fc with a bias": Case(fc_bias=True),
    # sizes
    "narrower than the target": Case(hidden=32, head_dim=8, own_embedding=True, config={"target_hidden_size": HIDDEN}),
    "wider than the target": Case(hidden=64, head_dim=16, own_embedding=True, layers=2, fc_norm=True),
    "two states": Case(states=(1, 6), options={"layers": (1, 6), "layer_ids_are": "boundary"}),
    "four states": Case(
        states=(1, 3, 5, 7),
        fc_norm=True,
        config={"num_aux_hidden_states": 4, "eagle_aux_hidden_state_layer_ids": [0, 2, 4, 6]},
        options={"layer_ids_are": "block"},
    ),
    "states in another order": Case(states=(5, 1, 3), options={"layers": "5+1+3", "layer_ids_are": "boundary"}),
    "ids in eagle_config": Case(
        "nvidia",
        states=(1, 3, 7),
        config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}},
        options={"layer_ids_are": "boundary"},
    ),
    "the layers that are given go before those in the file": Case(
        states=(2, 3, 4),
        config={"eagle_aux_hidden_state_layer_ids": [5, 6, 7]},
        options={"layers": "1+2+3", "layer_ids_are": "block"},
    ),
    "the first state of all": Case(states=(0, 1, 2), options={"layers": "0+1+2", "layer_ids_are": "boundary"}),
    # layers
    "three layers": Case(layers=3),
    "three layers, midlayer in front": Case(layers=3, renamed=SHIFTED),
    "three layers of the speculators": Case(**SPECULATORS, layers=3, head_norms=True),
    "biases in attention": Case(biased=(*QKV, "self_attn.o_proj"), fields={"attention_bias": True}),
    "biases of Qwen2": Case(biased=QKV, layers=2),
    "biases in the MLP": Case(biased=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
    "Qwen3's norms": Case(head_norms=True, head_dim=20, fields={"head_dim": 20}),
    "no eps": Case(eps=1e-6, fields={"rms_norm_eps": None}),
    # RoPE
    "rope_theta": Case(theta=500.0, fields={"rope_theta": 500.0}),
    "rope_theta, whole": Case(theta=500.0, fields={"rope_theta": 500}),
    "rope_parameters": Case(theta=700.0, fields={"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}),
    "rope_scaling, linear": Case(
        scaling={"type": "linear", "factor": 4.0}, fields={"rope_scaling": {"type": "linear", "factor": 4.0}}
    ),
    "rope_scaling, llama3": Case(theta=50.0, scaling=LLAMA3, fields={"rope_theta": 50.0, "rope_scaling": LLAMA3}),
    "rope_parameters, llama3": Case(
        **SPECULATORS, theta=50.0, scaling=LLAMA3, fields={"rope_parameters": {**LLAMA3, "rope_theta": 50.0}}
    ),
    "rope of Qwen3": Case(
        theta=50.0, scaling=LLAMA3, head_norms=True, fields={"rope_theta": 50.0, "rope_scaling": LLAMA3}
    ),
}


def first(case):
    return "layers.0" if case.layout == "speculators" else "midlayer"


def later(case, layer):
    return f"layers.{layer}"


def weights_of(shared, case, seed=3):
    """Random weights by the authors' names, NumPy float64, exactly what float32 can hold."""
    rng = np.random.default_rng(seed)
    hidden, inputs = case.hidden, len(case.states) * HIDDEN
    made = {"fc.weight": rng.normal(size=(hidden, inputs)) * inputs**-0.5}
    if case.fc_bias:
        made["fc.bias"] = rng.normal(size=hidden)
    if case.norm_before_fc:
        made["input_norm.weight"] = rng.uniform(0.5, 1.5, inputs)
    if case.fc_norm:
        made |= {f"fc_norm.{number}.weight": rng.uniform(0.5, 1.5, HIDDEN) for number in range(len(case.states))}
    sizes = (hidden, 56, HEADS, KV_HEADS, case.head_dim, case.biased, case.head_norms)
    made |= shared.random_layer(rng, first(case), 2 * hidden, *sizes)
    made[f"{first(case)}.hidden_norm.weight"] = rng.uniform(0.5, 1.5, hidden)
    if case.embedding_norm:
        made[f"{first(case)}.input_layernorm.weight"] = rng.uniform(0.5, 1.5, hidden)
    for layer in range(1, case.layers):
        made |= shared.random_layer(rng, later(case, layer), hidden, *sizes)
        made[f"{later(case, layer)}.input_layernorm.weight"] = rng.uniform(0.5, 1.5, hidden)
    if case.last_norm:
        made["norm.weight"] = rng.uniform(0.5, 1.5, hidden)
    rows = VOCAB if case.draft_ids is None else len(case.draft_ids)
    made["lm_head.weight"] = 3 * rng.normal(size=(rows, hidden)) * hidden**-0.5
    if case.own_embedding:
        made["embed_tokens.weight"] = rng.normal(size=(VOCAB, hidden))
    return {name: array.astype(np.float32).astype(np.float64) for name, array in made.items()}


def maps_of(case):
    ids = np.arange(VOCAB) if case.draft_ids is None else case.draft_ids
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[torch.as_tensor(ids)] = True
    found = {"d2t": torch.as_tensor(ids - np.arange(len(ids))), "t2d": known}
    return {name: found[name] for name in case.maps}


def config_of(case):
    layers = {
        "model_type": "llama",
        "hidden_size": case.hidden,
        "intermediate_size": 56,
        "num_hidden_layers": case.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": case.eps,
        "max_position_embeddings": 2048,
        "vocab_size": VOCAB,
        **case.fields,
    }
    if case.layout == "speculators":
        layers = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "transformer_layer_config": layers,
            "eagle_aux_hidden_state_layer_ids": None,
            "target_hidden_size": None,
        }
    elif case.layout == "nvidia":
        layers["eagle_config"] = {}
    rows = VOCAB if case.draft_ids is None else len(case.draft_ids)
    return {**layers, "draft_vocab_size": rows, **case.config}


def name_in_file(case, name):
    for ours, theirs in case.renamed.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def written_case(shared, folder, case, seed=3):
    tensors = {**weights_of(shared, case, seed), **maps_of(case)}
    named = {name_in_file(case, name): tensor for name, tensor in tensors.items() if name not in case.without}
    return shared.save(folder, named, config_of(case), case.file)


def plain_law(shared, case, weights, embedding, ids, features):
    """The law after a text and a path of drafted tokens, shape `(vocab,)`, as a function of the path.

    It is the formulae, run row after row; a row that paths have in common is run once. `features` are the target's
    states at all tokens of the text but the last, side by side, as they are fused.
    """
    plain = shared.Written(weights, HEADS, case.head_dim, case.theta, case.scaling, case.eps)
    top = first(case)
    embedding = weights["embed_tokens.weight"] if case.own_embedding else embedding
    x = features
    if case.norm_before_fc:
        x = plain.norm(x, "input_norm.weight")
    if case.fc_norm:
        parts = np.split(x, len(case.states), axis=-1)
        x = np.concatenate([plain.norm(one, f"fc_norm.{at}.weight") for at, one in enumerate(parts)], axis=-1)
    fused = plain.linear(x, "fc")

    @cache
    def row(path):
        """The last row's output, and what is fused or drafted with after it, shape `(rows + 1, hidden)`."""
        g, e = row(path[:-1])[1] if path else fused, embedding[[*ids[1:], *path]]
        if case.embedding_norm:
            e = plain.norm(e, f"{top}.input_layernorm.weight")
        normed = plain.norm(g, f"{top}.hidden_norm.weight")
        residual = normed if case.norm_before_residual else g
        a = residual + plain.attention(np.concatenate([e, normed], axis=-1), top)
        y = a + plain.mlp(plain.norm(a, f"{top}.post_attention_layernorm.weight"), top)
        for layer in range(1, case.layers):
            y = plain.layer(y, later(case, layer))
        last = plain.norm(y[-1], "norm.weight") if case.last_norm else y[-1]
        return last, np.concatenate([g, [last if case.norm_output else y[-1]]])

    def law_after(path):
        scores = plain.linear(row(tuple(path))[0], "lm_head")
        law = np.zeros(VOCAB)
        law[slice(None) if case.draft_ids is None else case.draft_ids] = np.exp(scores - scores.max())
        return law / law.sum()

    return law_after


def decoder_of(path, policy="chain", model=None, accelerate=True, **options):
    parts = Parts(Eagle3(path, **options), policy, accelerate=accelerate)
    return TARGETS.decoder(model or target_model(), None, parts)


def fused(shared, case, model, ids):
    """What the reference reads: the plain model's states, in the order in which they are fused, float64."""
    return shared.states_of(model, ids, case.states).double().numpy()


def table_of(model):
    """The target's embeddings, without the scale that some models apply to them."""
    return model.get_input_embeddings().weight.detach().double().numpy()


def check_drafting(shared, case, path, rounds, model=None, **options):
    """The laws at all nodes of all rounds are the formulae's; returns them."""
    model = model or target_model()
    decoder = decoder_of(path, model=model, **{**case.options, **options})
    asked = decoder.target.runner.features
    both = [shared.states_of(model, one.ids, (*asked, *case.states)) for one in rounds]
    states = [one[:, : HIDDEN * len(asked)] for one in both]
    with decoder.target.session(), decoder.drafter.session():
        drafted = shared.draft(decoder.drafter, rounds, states, VOCAB)
    weights = weights_of(shared, case)
    for one, its, laws in zip(rounds, both, drafted, strict=True):
        features = its[:, HIDDEN * len(asked) :].double().numpy()
        for round_, tree in enumerate(one.trees):
            ids = one.committed(round_)
            known = one.drafts[round_] and len(ids) > 1
            law_after = plain_law(shared, case, weights, table_of(model), ids, features[: len(ids) - 1])
            for node in range(len(tree) if known else 0):
                truth = law_after(tree.tokens[tree.path(node)[1:]].tolist())
                np.testing.assert_allclose(laws[round_][node], truth, rtol=0, atol=1e-5)
            assert known or np.isnan(laws[round_]).all()
    return drafted


# Laws


@pytest.mark.parametrize("layout", ["SpecForge", "speculators"])
def test_one_command_goes_from_a_head_in_either_layout_to_a_table(layout, shared, tmp_path, capsys):
    case, lengths, words = CASES[layout], (1, 3), "t5 t6 t7 t8"
    path = written_case(shared, tmp_path / "head", case)
    model, tokenizer = of_words(num_hidden_layers=LAYERS)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "one.txt").write_text(words)
    drafter = join_spec("eagle3", {"path": path, **case.options})
    where = ["--model", str(tmp_path / "model"), "--drafter", drafter, "--prompts", str(tmp_path / "one.txt")]
    sizes = ["--max-new-tokens", "16", "--nodes", "4", "--depth", "3", "--width", "8"]
    tried = [f"chain:length={length}" for length in lengths]
    command = ["trace", "record", *where, *sizes, *(part for one in tried for part in ("--try", one))]
    capsys.readouterr()
    assert main([*command, "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["replay"]["methods"]
    assert [one["method"] for one in found] == tried
    ids = tokenizer(words)["input_ids"]
    for method, one in zip(tried, found, strict=True):
        stats = decoder_of(path, method, model, **case.options).generate(ids, max_new_tokens=16).stats
        assert (one["target_passes"], one["draft_passes"]) == (stats.target_passes, stats.draft_passes)
        assert one["draft_passes"] > 0 == one["outside"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert all(method in shown for method in ("MAT", *tried))


@pytest.mark.parametrize("name", CASES)
def test_the_law_at_every_node_is_the_formulas_over_several_rounds(name, shared, tmp_path):
    case = CASES[name]
    path = written_case(shared, tmp_path, case)
    check_drafting(shared, case, path, [shared.Rounds.random(1, VOCAB)])


@pytest.mark.parametrize("architecture", ["gemma3", "gpt2", "qwen3", "opt"])
def test_states_and_embeddings_of_other_targets_are_read_raw(architecture, shared, tmp_path):
    case = Case(states=default_states(4))
    path = written_case(shared, tmp_path, case)
    check_drafting(shared, case, path, [shared.Rounds.random(2, VOCAB)], tiny_model(architecture))


def test_without_an_accelerator_the_laws_are_the_same(shared, tmp_path):
    path = written_case(shared, tmp_path, CASES["native"])
    check_drafting(shared, CASES["native"], path, [shared.Rounds.random(1, VOCAB)], accelerate=False)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_prompts_are_drafted_from_as_soon_as_a_state_is_known(length, shared, tmp_path):
    path = written_case(shared, tmp_path, CASES["native"])
    rounds = [shared.Rounds.random(1, VOCAB, length, (4, 5, 0, 7))]
    ((laws, *others),) = check_drafting(shared, CASES["native"], path, rounds)
    assert np.isnan(laws).all() == (length == 1)
    assert not np.isnan(others[0]).any()


def test_long_prompts_are_read_in_parts(shared, tmp_path, monkeypatch):
    monkeypatch.setattr("talon_core.runtime.executor.HOST_PROMPT_TOKENS", 7)
    path = written_case(shared, tmp_path, CASES["three layers"])
    check_drafting(shared, CASES["three layers"], path, [shared.Rounds.random(1, VOCAB, 33, (5, 3))])


def test_prompts_of_several_lengths_are_read_in_one_pass_where_there_is_room(shared, tmp_path, monkeypatch):
    """As on a device, where padding costs less than a pass; each one's candidates are those that it gets alone."""
    path, rng = written_case(shared, tmp_path, CASES["three layers"]), np.random.default_rng(3)
    prompts = [rng.integers(3, VOCAB, length) for length in (10, 30, 17, 2)]
    states = [shared.states_of(target_model(), prompt, STATES)[:-1] for prompt in prompts]

    def read(slots):
        """The candidates of these slots, and the passes of the head that read their prompts."""
        decoder, shapes = decoder_of(path), []
        drafter = decoder.drafter
        monkeypatch.setattr("talon_core.runtime.executor.HOST_PROMPT_TOKENS", 12)
        monkeypatch.setattr(type(drafter.executor), "prompts", 4)
        keys = drafter.head.layers[0].self_attn.k_proj
        handle = keys.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape[:2])))
        for slot in slots:
            drafter.open(slot, prompts[slot], 64)
        drafter.read({slot: Part(0, len(states[slot]), states[slot]) for slot in slots})
        asked = [Frontier(slot, TokenTree.root(prompts[slot][-1]), np.array([0]), 4) for slot in slots]
        proposed = drafter.propose(asked)
        handle.remove()
        return dict(zip(slots, proposed.candidates, strict=True)), shapes[:-1]

    together, shapes = read(range(4))
    assert shapes == [(3, 12), (2, 12), (1, 4)]
    for slot in range(4):
        (alone,) = read([slot])[0].values()
        np.testing.assert_array_equal(together[slot].tokens, alone.tokens)
        np.testing.assert_allclose(together[slot].logp, alone.logp, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("many", [3, 64])
def test_after_a_pause_the_laws_are_the_formulas(many, shared, tmp_path, monkeypatch):
    """What waits is run at once, or where there is much of it, read as a prompt is."""
    monkeypatch.setattr("talon_core.runtime.staging.MANY_PENDING", many)
    path = written_case(shared, tmp_path, CASES["native"])
    sizes = (4, *[0] * 9, 5, 0, 3)
    rounds = [shared.Rounds.random(1, VOCAB, 9, sizes), shared.Rounds.random(2, VOCAB, 4, (0, *sizes[1:], 0))]
    for some in (rounds[:1], rounds):
        check_drafting(shared, CASES["native"], path, some)


def test_before_it_is_asked_and_while_drafting_pauses_nothing_is_computed(shared, tmp_path, monkeypatch):
    drafter = decoder_of(written_case(shared, tmp_path, CASES["native"])).drafter
    one = shared.Rounds.random(1, VOCAB, 9, (0, 0, 0))
    states = shared.states_of(target_model(), one.ids, STATES)
    for step in ("fuse", "read", "forward"):
        monkeypatch.setattr(drafter.head, step, None)
    shared.start(drafter, one.prompt, states[: len(one.prompt) - 1])
    at = len(one.prompt) - 1
    for _, tokens in one.accepted:
        drafter.commit({0: Committed(tokens, np.zeros(1, dtype=np.int64), states[at : at + len(tokens)])})
        at += len(tokens)
    assert drafter.executor.cache.lengths == [0]


def test_what_was_read_before_a_draft_is_told_apart_from_the_pass(shared, tmp_path, monkeypatch):
    monkeypatch.setattr("talon_core.runtime.staging.MANY_PENDING", 5)
    drafter = decoder_of(written_case(shared, tmp_path, CASES["native"])).drafter
    one = shared.Rounds.random(1, VOCAB, 9, (2, 0, 0, 2))
    states = shared.states_of(target_model(), one.ids, STATES)

    def read():
        return drafter.propose([Frontier(0, TokenTree.root(int(one.ids[0])), np.array([0]), 3)]).reading

    shared.start(drafter, one.prompt, states[: len(one.prompt) - 1])
    assert read().tokens == len(one.prompt) - 2  # but for the pair of the root, which is drafted from
    shared.tell(drafter, [5, 6], [0], states[8:10])
    assert read() is None  # two pairs, as after any round
    shared.tell(drafter, [5], [0], states[10:11])
    for _ in range(3):
        shared.tell(drafter, [5, 6], [0], states[8:10])
    reading = read()
    assert reading.tokens == 6
    assert 0.0 < reading.seconds < 10.0


def test_it_keeps_no_more_features_than_it_may(shared, tmp_path, monkeypatch):
    path, one = written_case(shared, tmp_path, CASES["native"]), shared.Rounds.random(1, VOCAB, 12)
    states = shared.states_of(target_model(), one.ids, STATES)
    lengths, laws = [], []
    for kept in (1 << 28, 5 * states[0].nbytes):
        monkeypatch.setattr("talon_drafters.heads.feature_drafter.KEPT_BYTES", kept)
        drafter = decoder_of(path).drafter
        shared.start(drafter, one.prompt, states[: len(one.prompt) - 1], at_once=4)
        lengths.append(drafter.executor.cache.lengths[0])
        laws.append(shared.ask(drafter, one.trees[0]).law(0))
    assert lengths == [0, 7]  # after eight tokens all pairs but one were read, and the last three wait with it
    np.testing.assert_allclose(laws[1], laws[0], rtol=1e-4, atol=1e-7)


def test_what_waits_is_read_when_it_is_too_much_behind_a_round_too(shared, tmp_path, monkeypatch):
    path, one = written_case(shared, tmp_path, CASES["native"]), shared.Rounds.random(1, VOCAB, 12)
    ids = np.resize(one.ids, 40)
    states = shared.states_of(target_model(), ids, STATES)
    lengths, laws = [], []
    for kept in (1 << 28, 20 * states[0].nbytes):
        monkeypatch.setattr("talon_drafters.heads.feature_drafter.KEPT_BYTES", kept)
        drafter = decoder_of(path).drafter
        shared.start(drafter, ids[:5], states[:4])
        shared.ask(drafter, TokenTree.root(int(ids[4])))  # its cache was written in a draft pass
        for place in range(5, 35):
            shared.tell(drafter, ids[place : place + 1], [0], states[place - 1 : place])
        lengths.append(drafter.executor.cache.lengths[0])
        laws.append(shared.ask(drafter, TokenTree.root(int(ids[34]))).law(0))
    assert lengths[0] < lengths[1]
    np.testing.assert_allclose(laws[1], laws[0], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("slot", [0, 2])
@pytest.mark.parametrize("length", [5, 8, 11])
def test_what_waits_is_taken_over_with_a_text(slot, length, shared, tmp_path):
    """So the target need not read again what a drafter was never asked about."""
    path, one = written_case(shared, tmp_path, CASES["native"]), shared.Rounds.random(1, VOCAB, 9)
    states = shared.states_of(target_model(), one.ids, STATES)
    own = np.append(one.ids[:length], [4, 5])
    its = shared.states_of(target_model(), own, STATES)
    drafter = decoder_of(path).drafter
    shared.start(drafter, own, its[: length + 1])
    expected = shared.ask(drafter, TokenTree.root(5)).law(0)
    drafter = decoder_of(path).drafter
    shared.start(drafter, one.ids[:9], states[:8])
    shared.tell(drafter, one.ids[9:12], [0], states[8:11])  # nothing was drafted
    assert drafter.resume(slot, own, 60, 0, length) == length
    drafter.read({slot: Part(length, 1, its[length : length + 1])})
    assert drafter.executor.cache.lengths[slot] == 0
    np.testing.assert_allclose(shared.ask(drafter, TokenTree.root(5), slot=slot).law(0), expected, rtol=1e-4, atol=1e-7)


def wide(name):
    """A case with heads that are wide enough for passes to be written down on a host."""
    case = CASES[name]
    return attrs.evolve(case, head_dim=32, fields={**case.fields, "head_dim": 32})


@pytest.mark.parametrize("name", ["native", "fc_norm", "states in another order", "three layers of the speculators"])
def test_passes_that_are_written_down_have_the_bits_of_the_pass(name, shared, tmp_path, monkeypatch):
    if load() is None:
        pytest.skip("there are no native kernels here")
    monkeypatch.setattr("talon_core.runtime.repeating.CHECKED", 10**9)
    case = wide(name)
    model = target_model.__wrapped__()  # the others' has hooks of transformers, once somebody asked for its states
    decoder = decoder_of(written_case(shared, tmp_path, case), "talon:budget=12", model, **case.options)
    decoder.generate([[*range(5, 20)], [*range(30, 37)]], max_new_tokens=24)
    decoder.generate([*range(5, 20)], max_new_tokens=24)
    assert decoder.drafter.executor.failure is None
    assert decoder.drafter.executor.recorded >= 2


def test_a_parameter_that_is_exchanged_is_drafted_with(shared, tmp_path):
    if load() is None:
        pytest.skip("there are no native kernels here")
    case = wide("native")
    path = written_case(shared, tmp_path, case)
    model = target_model.__wrapped__()
    decoder, other = (decoder_of(path, "talon:budget=12", model) for _ in range(2))
    prompt = [*range(5, 20)]
    before = decoder.generate(prompt, max_new_tokens=30)
    assert decoder.drafter.executor.recorded
    for one in (decoder, other):
        head = one.drafter.head
        head.lm_head.weight = torch.nn.Parameter(-head.lm_head.weight.detach(), requires_grad=False)
    after, expected = (one.generate(prompt, max_new_tokens=30) for one in (decoder, other))
    trees = [[round_.tree.tokens.tolist() for round_ in ran.rounds] for ran in (before, after, expected)]
    assert trees[0] != trees[1]
    assert trees[1] == trees[2]
    assert decoder.drafter.executor.recorded


@pytest.mark.parametrize("name", ["native", "three layers of the speculators"])
def test_a_batch_gives_each_row_the_laws_it_gets_alone(name, shared, tmp_path):
    path = written_case(shared, tmp_path, CASES[name])
    sizes = ((9, 0, 4, 1, 6), (3, 5, 0, 8, 6), (2, 2, 0, 1, 12))
    rounds = [
        shared.Rounds.random(seed, VOCAB, prompt, of_it)
        for seed, prompt, of_it in zip((1, 2, 3), (9, 17, 1), sizes, strict=True)
    ]
    for some in (rounds[:2], rounds[1:], rounds):
        together = check_drafting(shared, CASES[name], path, some)
        for one, laws in zip(some, together, strict=True):
            (alone,) = check_drafting(shared, CASES[name], path, [one])
            for round_, its in zip(laws, alone, strict=True):
                np.testing.assert_allclose(round_, its, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", ["native", "three layers of the speculators"])
def test_each_sequence_gets_the_laws_it_gets_alone_whoever_comes_and_goes(name, recorded, shared, tmp_path):
    path = written_case(shared, tmp_path, CASES[name])
    drafter = shared.recorded(Eagle3(path), target_model()) if recorded else decoder_of(path).drafter
    shared.check_turns(drafter, lambda ids: shared.states_of(target_model(), ids, STATES), VOCAB)


def test_nothing_of_an_earlier_text_is_left(shared, tmp_path):
    decoder = decoder_of(written_case(shared, tmp_path, CASES["native"]))
    rounds = [shared.Rounds.random(seed, VOCAB, 9 * seed) for seed in (1, 2)]
    states = [shared.states_of(target_model(), one.ids, STATES) for one in rounds]
    laws = [shared.draft(decoder.drafter, [rounds[which]], [states[which]], VOCAB) for which in (0, 1, 0)]
    for before, after in zip(laws[0][0], laws[2][0], strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("slot", [0, 2])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_prompt_that_is_taken_over_whole_is_drafted_from_without_reading(slot, goes_on, shared, tmp_path):
    drafter = decoder_of(written_case(shared, tmp_path, CASES["native"])).drafter
    one = shared.Rounds.random(1, VOCAB)
    count, states = len(one.prompt) - 1, shared.states_of(target_model(), one.ids, STATES)
    with drafter.session():
        shared.start(drafter, one.prompt, states[:count])
        expected = shared.ask(drafter, one.trees[0]).law(0)
        if goes_on:
            path, tokens = one.accepted[0]
            shared.tell(drafter, tokens, path, states[count : count + len(tokens)])
            shared.ask(drafter, one.trees[1])
        assert drafter.resume(slot, one.prompt, 60, 0, count) == count
        np.testing.assert_allclose(shared.ask(drafter, one.trees[0], slot=slot).law(0), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("slot", [0, 2])
def test_a_prompt_that_begins_as_one_that_was_drafted_for_is_read_from_where_it_differs(slot, shared, tmp_path):
    """The target need not read the last token again that both have, as the drafter keeps its features."""
    drafter = decoder_of(written_case(shared, tmp_path, CASES["native"])).drafter
    text = np.array([5, 6, 7, 8, 9, 10, 11, 12])
    other = np.array([5, 6, 7, 8, 4, 3, 2])
    states, its = (shared.states_of(target_model(), ids, STATES) for ids in (text, other))
    tree = TokenTree.root(2)
    with drafter.session():
        shared.start(drafter, other, its[:6], slot=1)
        expected = shared.ask(drafter, tree, slot=1).law(0)
        shared.start(drafter, text, states[:7])
        shared.ask(drafter, TokenTree.root(12))
        assert drafter.resume(slot, other, 60, 0, 4) == 4
        drafter.read({slot: Part(4, 2, its[4:6])})
        np.testing.assert_allclose(shared.ask(drafter, tree, slot=slot).law(0), expected, rtol=1e-5, atol=1e-8)
        assert drafter.resume(3, other, 60, slot, 5) == 5  # of what has come since as well
        drafter.read({3: Part(5, 1, its[5:6])})
        np.testing.assert_allclose(shared.ask(drafter, tree, slot=3).law(0), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("bound", ["BEGINNING", "BEGINNING_BYTES"])
@pytest.mark.parametrize("parts", [[7], [2, 2, 3], [1, 6]])
def test_features_of_the_beginning_alone_are_kept(bound, parts, shared, tmp_path, monkeypatch):
    drafter = decoder_of(written_case(shared, tmp_path, CASES["native"])).drafter
    text = np.array([5, 6, 7, 8, 9, 10, 11, 12])
    states = shared.states_of(target_model(), text, STATES)
    monkeypatch.setattr(feature_drafter, bound, 3 if bound == "BEGINNING" else 4 * states[0].nbytes - 1)
    with drafter.session():
        drafter.open(0, text, 60)
        for end, count in zip(accumulate(parts), parts, strict=True):
            drafter.read({0: Part(end - count, count, states[end - count : end])})
        shared.ask(drafter, TokenTree.root(12))
        for length, told in ((5, 4), (4, 3), (3, 3), (2, 2), (1, 1)):
            assert drafter.resume(1, text[:6], 60, 0, length) == told


def test_features_behind_others_that_nobody_knows_are_not_kept_as_the_beginning(shared, tmp_path):
    drafter = decoder_of(written_case(shared, tmp_path, CASES["native"])).drafter
    text = np.array([5, 6, 7, 8, 9, 10, 11, 12])
    states = shared.states_of(target_model(), text, STATES)
    with drafter.session():
        shared.start(drafter, text, states[:7])
        shared.ask(drafter, TokenTree.root(12))
        drafter._slots[0].beginning = None  # as of a text that was resumed where they were not known
        assert drafter.resume(1, text, 60, 0, 4) == 3
        drafter.read({1: Part(3, 4, states[3:7])})
        shared.ask(drafter, TokenTree.root(12), slot=1)
        assert drafter.resume(2, text[:6], 60, 1, 4) == 3


def test_a_longer_prompt_than_one_that_is_taken_over_is_read_from_its_end_on(shared, tmp_path):
    drafter = decoder_of(written_case(shared, tmp_path, CASES["native"])).drafter
    text = np.array([5, 6, 7, 8, 9, 10, 11, 12])
    states, tree = shared.states_of(target_model(), text, STATES), TokenTree.root(11)
    with drafter.session():
        shared.start(drafter, text[:7], states[:6], slot=1)
        expected = shared.ask(drafter, tree, slot=1).law(0)
        shared.start(drafter, text[:5], states[:4])
        assert drafter.resume(2, text[:7], 60, 0, 4) == 4
        drafter.read({2: Part(4, 2, states[4:6])})
        np.testing.assert_allclose(shared.ask(drafter, tree, slot=2).law(0), expected, rtol=1e-5, atol=1e-8)
        assert drafter.resume(0, text[:7], 60, 2, 4) == 4  # the features at the fourth token are kept


def test_a_second_answer_to_a_prompt_begins_without_reading_it(shared, tmp_path, monkeypatch):
    decoder = decoder_of(written_case(shared, tmp_path, CASES["native"]))
    read, reads = decoder.target.read, []
    monkeypatch.setattr(decoder.target, "read", lambda parts: reads.append(parts) or read(parts))
    prompt = np.arange(5, 14)
    first, second = (decoder.generate(prompt, max_new_tokens=12) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert len(reads) == 1


def test_candidates_are_no_more_than_its_vocabulary(shared, tmp_path):
    decoder = decoder_of(written_case(shared, tmp_path, CASES["native"]))
    one = shared.Rounds.random(1, VOCAB)
    states = shared.states_of(target_model(), one.ids, STATES)
    ((law, *_), *_) = shared.draft(decoder.drafter, [one], [states], VOCAB, widths=(VOCAB,))
    assert set(np.flatnonzero(law[0])) == set(DRAFT_IDS)


# Decoding


@pytest.mark.parametrize(
    "policy", ["chain:length=4", "static", "eagle2:budget=40,depth=4,top_k=6", "talon:budget=60,top_k=30,mu=0.001"]
)
def test_while_decoding_the_laws_are_the_formulas(policy, shared, tmp_path):
    case = Case(draft_ids=None, maps=())
    decoder = decoder_of(written_case(shared, tmp_path, case), policy)
    decoder, recording = shared.recorded_laws(decoder)
    result = decoder.generate(np.array([5, 6, 7, 8]), max_new_tokens=10)
    whole = [5, 6, 7, 8, *result.token_ids]
    features, weights = fused(shared, case, target_model(), whole), weights_of(shared, case)
    assert len({len(ids) for ids, _, _ in recording.laws}) >= result.stats.rounds - 1
    if policy.startswith("talon"):
        assert any(len(round_.tokens) > 1 for round_ in result.rounds)
    for ids, path, law in recording.laws[:: max(1, len(recording.laws) // 60)]:
        assert whole[: len(ids)] == ids
        law_after = plain_law(shared, case, weights, table_of(target_model()), ids, features[: len(ids) - 1])
        np.testing.assert_allclose(law, law_after(path), rtol=0, atol=1e-5)


def test_each_layer_of_a_tree_is_one_pass(shared, tmp_path):
    decoder = decoder_of(written_case(shared, tmp_path, CASES["native"]), "chain:length=3")
    result = decoder.generate(np.array([5, 6, 7, 8]), max_new_tokens=9)
    assert [round_.draft_passes for round_ in result.rounds] == [int(one.tree.depths.max()) for one in result.rounds]


@with_policies("llama", "gemma3", "gpt2", "qwen3", "opt", "mistral-window")
def test_greedy_output_is_the_plain_models(architecture, policy, shared, tmp_path):
    model, answers = shared.model_and_truth(architecture)
    path = written_case(shared, tmp_path, CASES["native" if policy == "chain" else "SpecForge, maps untouched"])
    decoder = decoder_of(path, policy, model)
    for prompt, expected in answers:
        drafted = decoder.generate(prompt, max_new_tokens=len(expected))
        assert drafted.token_ids == expected
        assert drafted.stats.draft_passes > 0


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("case", ["native", "SpecForge, maps untouched"])
def test_on_a_device_the_same_trees_are_drafted(case, recorded, shared, tmp_path):
    path = written_case(shared, tmp_path, attrs.evolve(CASES[case], states=default_states(4)))
    usual = decoder_of(path, "talon:budget=20,mu=0.01", tiny_llama())
    check_on_device(Eagle3(path), usual, [[5, 6, 7, 8, 9], [5], [9, 8, 7, 6], [1, 2, 3]], recorded)


class StatefulTable(TableTarget):
    """A table that also gives states: random ones, which depend on the last token of each prefix."""

    STATES = torch.tensor(np.random.default_rng(8).normal(size=(3, 6)), dtype=torch.float32)

    def read(self, parts):
        super().read(parts)
        return {slot: self.STATES[torch.tensor(tokens)] for slot, tokens in parts.items()}

    def verify(self, trees, greedy=NOT_GREEDY):
        outputs = super().verify(trees, greedy).outputs
        states = {slot: self.STATES[torch.tensor(tree.tokens)] for slot, tree in trees.items()}
        return Verified({slot: NodeOutputs(one.logits, states[slot]) for slot, one in outputs.items()})


@pytest.mark.parametrize("policy", load_registry().names("tree policy"))
@pytest.mark.parametrize("do_sample", [True, False])
def test_the_law_of_the_output_is_exactly_the_targets(policy, do_sample):
    torch.manual_seed(0)
    cls = load_registry().get("tree policy", policy).cls
    drawn = cls.children != "deterministic"  # drawn children multiply the outcomes
    layer = LlamaConfig(hidden_size=4, intermediate_size=5, num_attention_heads=2, head_dim=2)
    drafted = torch.tensor([0, 2]) if drawn else None
    head = Eagle3Head(Eagle3Config(layer, 2, 2 if drawn else 3), drafted, (3, 4))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    drafter = FeatureDrafter(head, head.embed_tokens, 3, HostExecutor(ReferenceAttention(), torch.device("cpu")))
    small = {"budget": 3 if drawn else 5, "top_k": 2, "depth": 2, "checked": (1,), "widths": (1, 1)}
    made = cls(**{option: value for option, value in small.items() if option in describe_options(cls)})
    target = StatefulTable(np.random.default_rng(4).normal(size=(3, 3, 3)))
    for prompt in ([1], [2, 0]):
        request = Request(np.array(prompt), 3, Sampling(do_sample))
        decoder = Decoder(target, Match(), made, Given(drafter), costs=UnknownCosts())  # outcomes must not know a clock
        assert distance(begun_law(decoder, request), ancestral_law(target, request)) <= 1e-12


# What explicit layer ids mean


def fitted(shared, folder, states, others, ids):
    """A head that guesses a greedy text of the target from these states, and something else from the other ones."""
    model = target_model()
    case = Case(
        states=states, draft_ids=None, maps=(), config={"eagle_aux_hidden_state_layer_ids": list(ids)}, layers=1
    )
    weights = weights_of(shared, case)
    for name in ("midlayer.self_attn.o_proj.weight", "midlayer.mlp.down_proj.weight"):
        weights[name] = np.zeros_like(weights[name])  # what is fused goes through unchanged
    text = [
        *range(8),
        *decoder_for_model(model, None, Parts(policy=None)).generate(np.arange(8), max_new_tokens=64).token_ids,
    ]
    plain = shared.Written(weights, HEADS, case.head_dim, eps=case.eps)
    normed, wanted = [], []
    for read, shift in ((states, 0), (others, 1)):
        features = shared.states_of(model, text, read).double().numpy()[6:-2]
        normed.append(plain.norm(plain.linear(features, "fc"), "norm.weight"))
        wanted.append(np.eye(VOCAB)[(np.array(text[8:]) + shift) % VOCAB])
    weights["lm_head.weight"] = np.linalg.lstsq(np.concatenate(normed), np.concatenate(wanted), rcond=None)[0].T
    return shared.save(folder, weights, config_of(case))


@pytest.mark.parametrize(("right", "states"), [("boundary", (1, 3, 6)), ("block", (2, 4, 7))])
def test_the_meaning_of_explicit_ids_is_found_by_drafting_both_ways(right, states, shared, tmp_path):
    others = {"boundary": (2, 4, 7), "block": (1, 3, 6)}[right]
    path = fitted(shared, tmp_path, states, others, (1, 3, 6))
    decoder = decoder_of(path, "chain:length=1")
    said = decoder.drafter.describe()
    wrong = {"boundary": "block", "block": "boundary"}[right]
    assert (said["layer_ids_are"], said["states"]) == (right, states)
    assert said["agreement_by_meaning"][right] > 0.5 > said["agreement_by_meaning"][wrong]
    assert decoder.target.runner.features == (1, 2, 3, 4, 6, 7)
    assert not any(decoder.target.runner.cache.lengths)  # nothing of what was tried is left
    prompt = np.arange(8)
    assert decoder.generate(prompt, max_new_tokens=40).stats.mean_accepted_tokens > 1.4
    misled = decoder_of(path, "chain:length=1", layer_ids_are=wrong)
    assert misled.drafter.describe()["layer_ids_are"] == wrong
    assert "agreement_by_meaning" not in misled.drafter.describe()
    assert misled.generate(prompt, max_new_tokens=40).stats.mean_accepted_tokens < 1.4


@pytest.mark.parametrize(("ids", "meaning"), [((2, 4, 5), "boundary"), ((1, 3, 4), "block")])
def test_where_both_agree_equally_the_usual_states_are_meant(ids, meaning, shared, tmp_path):
    case = Case(config={"eagle_aux_hidden_state_layer_ids": list(ids)})
    weights = weights_of(shared, case)
    weights["lm_head.weight"] = np.zeros_like(weights["lm_head.weight"])
    path = shared.save(tmp_path, {**weights, **maps_of(case)}, config_of(case))
    said = decoder_of(path).drafter.describe()
    assert (said["layer_ids_are"], said["states"]) == (meaning, STATES)


def test_a_meaning_that_the_target_has_no_layers_for_is_not_tried(shared, tmp_path):
    path = written_case(shared, tmp_path, Case(config={"eagle_aux_hidden_state_layer_ids": [2, 4, 8]}))
    said = decoder_of(path).drafter.describe()
    assert (said["layer_ids_are"], said["states"]) == ("boundary", (2, 4, 8))
    with pytest.raises(ValueError, match="fuses layers 2, 4, 8, which a target of 8 layers does not have"):
        decoder_of(path, layer_ids_are="block")


@pytest.mark.parametrize("right", ["yes", "no"])
def test_what_norm_output_means_is_found_by_drafting_both_ways(right, shared, tmp_path):
    """The head's layer changes nothing, so that its second guess is made of a state that was normed twice, or once."""
    model = target_model()
    case = Case(draft_ids=None, maps=(), config={"norm_output": True}, norm_output=right == "yes")
    weights = weights_of(shared, case)
    for name in ("midlayer.self_attn.o_proj.weight", "midlayer.mlp.down_proj.weight"):
        weights[name] = np.zeros_like(weights[name])
    text = [
        *range(8),
        *decoder_for_model(model, None, Parts(policy=None)).generate(np.arange(8), max_new_tokens=64).token_ids,
    ]
    plain = shared.Written(weights, HEADS, case.head_dim, eps=case.eps)
    features = shared.states_of(model, text, STATES).double().numpy()[6:-3]
    once = plain.norm(plain.linear(features, "fc"), "norm.weight")
    twice = plain.norm(once, "norm.weight")
    true, false = (np.eye(VOCAB)[(np.array(text[9:]) + shift) % VOCAB] for shift in (0, 1))
    wanted = [false, true] if right == "yes" else [true, false]
    weights["lm_head.weight"] = np.linalg.lstsq(np.concatenate([once, twice]), np.concatenate(wanted), rcond=None)[0].T
    path = shared.save(tmp_path, weights, config_of(case))
    said = decoder_of(path).drafter.describe()
    wrong = {"yes": "no", "no": "yes"}[right]
    assert said["norm_output"] == (right == "yes")
    assert said["agreement_by_norm_output"][right] > 0.5 > said["agreement_by_norm_output"][wrong]
    told = decoder_of(path, norm_output=wrong).drafter.describe()
    assert told["norm_output"] == (wrong == "yes")
    assert "agreement_by_norm_output" not in told


def test_the_check_stays_within_a_short_context(shared, tmp_path):
    config = LlamaConfig(**{**SMALL, "max_position_embeddings": 12})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    path = written_case(shared, tmp_path, Case(config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}))
    assert set(decoder_of(path, model=model).drafter.describe()["agreement_by_meaning"]) == {"boundary", "block"}


@pytest.mark.parametrize(("layers", "states"), [(1, (1, 0, 0)), (4, (2, 2, 1)), (16, (2, 8, 13)), (32, (2, 16, 29))])
def test_by_default_a_low_a_middle_and_a_high_state_are_fused(layers, states):
    assert default_states(layers) == states
    assert Eagle3().features(layers) == tuple(sorted(set(states)))


# What is told about it


def test_a_head_says_what_was_recognised(shared, tmp_path):
    case = CASES["all of the speculators' flags"]
    said = decoder_of(written_case(shared, tmp_path, case)).drafter.describe()
    assert said["layout"] == "speculators"
    assert (said["hidden_size"], said["target_hidden_size"], said["draft_vocab_size"]) == (48, 48, len(DRAFT_IDS))
    assert (said["layers_like"], said["num_layers"], said["num_fused"]) == ("qwen3", 2, 3)
    assert all(said[flag] for flag in ("norm_output", "norm_before_fc", "fc_norm"))
    assert not any(said[flag] for flag in ("norm_before_residual", "own_embedding", "whole_vocabulary"))
    assert (said["layer_ids_are"], said["states"]) == ("default", STATES)
    assert said["rope"]["rope_theta"] == 10000.0


def test_files_of_its_kind_are_recognised(shared, tmp_path):
    for number, name in enumerate(("native, pickled", "speculators", "nvidia", "SpecForge")):
        path = written_case(shared, tmp_path / str(number), CASES[name])
        assert Eagle3.of_files(path) == Eagle3(path)
    assert Eagle3.of_files(shared.save(tmp_path / "other", {"0.0.linear.weight": np.zeros((2, 2))}, {})) is None
    with pytest.raises(ValueError, match="there is no drafter"):
        Eagle3.of_files(str(tmp_path / "nowhere"))


def test_the_targets_type_is_taken_but_for_the_frequencies_of_rope(shared, tmp_path):
    checkpoint = read_checkpoint(written_case(shared, tmp_path, CASES["native"]))
    head = Eagle3Files.of(checkpoint).head(HIDDEN, VOCAB, torch.zeros(1, dtype=torch.bfloat16))
    assert {tensor.dtype for tensor in head.state_dict().values()} == {torch.bfloat16}
    assert head.rotary.inv_freq.dtype == torch.float32
    assert head.target_ids.tolist() == DRAFT_IDS.tolist()


def test_a_configuration_is_left_as_it_was_read(shared, tmp_path):
    checkpoint = read_checkpoint(written_case(shared, tmp_path, CASES["rope_scaling, llama3"]))
    Eagle3Files.of(checkpoint).head(HIDDEN, VOCAB, torch.zeros(1))
    assert checkpoint.config["rope_scaling"] == LLAMA3


def test_only_shapes_can_be_read(shared, tmp_path):
    for number, name in enumerate(("native", "native, pickled")):
        path = written_case(shared, tmp_path / str(number), CASES[name])
        whole, shapes = read_checkpoint(path), read_checkpoint(path, only_shapes=True)
        assert shapes.config == whole.config
        assert {name: one.shape for name, one in shapes.tensors.items()} == {
            name: one.shape for name, one in whole.tensors.items()
        }
        assert all(one.is_meta for one in shapes.tensors.values())


def test_without_a_path_the_one_that_was_trained_for_the_target_is_taken(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DRAFTERS", tmp_path)
    (tmp_path / "eagle3/shipped").mkdir(parents=True)
    written_case(shared, tmp_path / "eagle3/shipped/tiny", Case(config={"talon": fingerprint(target_model())}))
    assert decoder_of("").drafter.describe()["states"] == STATES
    shutil.rmtree(tmp_path / "eagle3/shipped/tiny")
    with pytest.raises(ValueError, match=r"drafter 'eagle3' needs path=FOLDER_OR_ID; none is shipped for this target"):
        decoder_of("")


# What is refused


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


NATIVE, SPECS = CASES["native"], CASES["speculators"]
D2T = maps_of(NATIVE)["d2t"]

# a kind of head, tensors in the place of its own or beside them (None takes one out), and what is said
REFUSED = {
    "another hidden size": (
        Case(hidden=32, head_dim=8),
        {"fc.weight": zeros(32, 96)},
        r"has fc.weight of shape \(32, 96\) and no embed_tokens.weight, so it was made for a target of hidden size "
        "32; this target's is 48",
    ),
    "another target_hidden_size": (
        Case(own_embedding=True, config={"target_hidden_size": 64}),
        {},
        r"was made for a target of hidden size 64 \(target_hidden_size\); this target's is 48",
    ),
    "half a state": (
        NATIVE,
        {"fc.weight": zeros(48, 100)},
        r"has fc.weight of shape \(48, 100\), which does not fuse whole states of this target, whose hidden size is 48",
    ),
    "other states than it says": (
        Case(config={"num_aux_hidden_states": 2}),
        {},
        r"has fc.weight of shape \(48, 144\), which does not fuse 2 states",
    ),
    "two states, three layers": (
        NATIVE,
        {"fc.weight": zeros(48, 96)},
        r"fuses 2 states of width 48, but 3 layers are named; give them as layers=..., 2 numbers joined by \+",
    ),
    "another vocabulary, said": (
        Case(fields={"vocab_size": 100}),
        {},
        "was made for a vocabulary of 100 tokens; this target has 97",
    ),
    "another vocabulary, embedded": (
        CASES["SpecForge"],
        {"embed_tokens.weight": zeros(100, 48)},
        r"has embed_tokens.weight of shape \(100, 48\); it must be \(97, any\)",
    ),
    "another vocabulary, marked": (
        NATIVE,
        {"t2d": zeros(100, dtype=torch.bool)},
        r"has t2d of shape \(100,\); it must be \(97\)",
    ),
    "a whole vocabulary of another size": (
        CASES["native, the whole vocabulary"],
        {"lm_head.weight": zeros(90, 48)},
        "has lm_head.weight with 90 rows and no d2t to say which of the target's 97 tokens they are",
    ),
    "d2t of another length": (NATIVE, {"d2t": D2T[:-1]}, "has 14 rows in lm_head.weight and 13 tokens in d2t"),
    "d2t out of range": (NATIVE, {"d2t": D2T + 1}, "maps a token to 97 in d2t; the target has tokens 0 to 96"),
    "d2t below range": (NATIVE, {"d2t": D2T - 2}, "maps a token to -1 in d2t; the target has tokens 0 to 96"),
    "d2t repeated": (
        NATIVE,
        {"d2t": torch.where(torch.arange(14) == 3, D2T - 5, D2T)},
        "maps two tokens to the same one in d2t",
    ),
    "d2t of fractions": (NATIVE, {"d2t": D2T.float()}, "has d2t of type torch.float32 with 14 entries"),
    "no fc": (NATIVE, {"fc.weight": None}, "lacks the tensor fc.weight"),
    "no LM head": (NATIVE, {"lm_head.weight": None}, "lacks the tensor lm_head.weight"),
    "no last norm": (NATIVE, {"norm.weight": None}, "lacks the tensor norm.weight"),
    "no norm of the embedding": (
        SPECS,
        {"layers.0.input_layernorm.weight": None},
        "lacks the tensor layers.0.input_layernorm.weight",
    ),
    "no norm of the feature": (
        NATIVE,
        {"midlayer.hidden_norm.weight": None},
        "lacks the tensor that would be layers.0.hidden_norm.weight in TALON",
    ),
    "no query": (
        NATIVE,
        {"midlayer.self_attn.q_proj.weight": None},
        "lacks the tensor layers.0.self_attn.q_proj.weight",
    ),
    "no output": (NATIVE, {"midlayer.self_attn.o_proj.weight": None}, "lacks .* layers.0.self_attn.o_proj.weight"),
    "a layer between is missing": (
        CASES["three layers"],
        {"layers.1.self_attn.q_proj.weight": None},
        "lacks the tensor that would be layers.1.self_attn.q_proj.weight",
    ),
    "a query of another width": (
        NATIVE,
        {"midlayer.self_attn.q_proj.weight": zeros(48, 48)},
        r"midlayer.self_attn.k_proj.weight of shape \(24, 96\); it must be \(any, 48\)",
    ),
    "queries that are no whole heads": (
        Case(fields={"head_dim": 20}),
        {},
        r"q_proj.weight of shape \(48, 96\) and k_proj.weight of \(24, 96\); they do not fit 4 heads of size 20",
    ),
    "an output of another width": (
        NATIVE,
        {"midlayer.mlp.down_proj.weight": zeros(48, 60)},
        r"has midlayer.mlp.down_proj.weight of shape \(48, 60\); it must be \(48, 56\)",
    ),
    "no number of heads": (Case(fields={"num_attention_heads": None}), {}, "says no num_attention_heads in its config"),
    "RoPE of an unknown type": (
        Case(fields={"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}),
        {},
        "has a config.json that transformers refuses: .*spiral",
    ),
    "no number": (Case(fields={"rms_norm_eps": "small"}), {}, "has a config.json that transformers refuses: .*small"),
    "a tensor nobody knows": (
        NATIVE,
        {"gate.weight": zeros(2)},
        "has a tensor gate.weight, which no known layout of EAGLE-3 heads has",
    ),
    "a tensor that does not belong": (
        NATIVE,
        {"midlayer.self_attn.sinks": zeros(4)},
        "has a tensor midlayer.self_attn.sinks whose like other heads do not have",
    ),
    "two names for one": (
        NATIVE,
        {"model.fc.weight": zeros(48, 144)},
        "has both fc.weight and model.fc.weight, which are the same part of EAGLE-3 heads",
    ),
    "a flag without its tensor": (
        Case(config={"norm_before_fc": True}),
        {},
        "says norm_before_fc=True in its config.json and lacks the tensor input_norm.weight",
    ),
    "a tensor without its flag": (
        Case(fc_norm=True, config={"fc_norm": False}),
        {},
        "says fc_norm=False in its config.json and has the tensor fc_norm.0.weight",
    ),
    "P-EAGLE, by its tensor": (NATIVE, {"mask_hidden": zeros(1, 144)}, r"drafts in parallel \(P-EAGLE\)"),
    "P-EAGLE, by its token": (Case(config={"pard_token": 7}), {}, r"drafts in parallel \(P-EAGLE\)"),
    "a sliding window": (Case(fields={"use_sliding_window": True, "sliding_window": 256}), {}, "a sliding window"),
    "layers with a sliding window": (Case(fields={"layer_types": ["sliding_attention"]}), {}, "a sliding window"),
    "P-EAGLE of the speculators": (
        Case("speculators", config={"speculators_model_type": "peagle"}),
        {},
        "is a speculator of type 'peagle'; drafter 'eagle3' reads type 'eagle3'",
    ),
    "another speculator": (
        Case("speculators", config={"speculators_model_type": "dflash"}),
        {},
        "is a speculator of type 'dflash'",
    ),
    "a speculator without its layers": (
        Case("speculators", config={"transformer_layer_config": None}),
        {},
        "has no transformer_layer_config in its config.json",
    ),
    "parallel steps": (
        Case("nvidia", config={"eagle_config": {"parallel_draft_step": 4}}),
        {},
        r"drafts in parallel \(P-EAGLE\)",
    ),
    "a flag that is not built": (
        Case("nvidia", config={"eagle_config": {"use_mtp_layernorm": True}}),
        {},
        "has use_mtp_layernorm=True, which drafter 'eagle3' cannot run",
    ),
    "no fused states": (
        Case("nvidia", config={"eagle_config": {"use_aux_hidden_state": False}}),
        {},
        "has use_aux_hidden_state=False, which drafter 'eagle3' cannot run",
    ),
    "a flag nobody knows": (
        Case("nvidia", config={"eagle_config": {"use_time_travel": True}}),
        {},
        "has use_time_travel=True in its eagle_config, which drafter 'eagle3' does not know",
    ),
    "layers that are none": (
        Case(config={"eagle_aux_hidden_state_layer_ids": ["low", "high"]}),
        {},
        "eagle_aux_hidden_state_layer_ids=.*; it must be a list of layers",
    ),
    "layers beyond the target": (
        Case(config={"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}),
        {},
        "drafter 'eagle3' fuses layers 2, 16, 29, which a target of 8 layers does not have",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_does_not_fit_is_refused_in_words(name, shared, tmp_path):
    case, changes, sentence = REFUSED[name]
    tensors = {**weights_of(shared, case), **maps_of(case), **changes}
    named = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(ValueError, match=sentence) as caught:
        decoder_of(shared.save(tmp_path, named, config_of(case)))
    assert str(tmp_path) in str(caught.value) or "layers" in name


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("fc.weight", "layers.0.self_attn.q_proj.weight"), "is an EAGLE-1 or EAGLE-2 head; use drafter 'eagle'"),
        (("0.0.linear.weight", "0.1.weight"), "has neither a midlayer nor a hidden_norm, so it is no EAGLE-3 head"),
        (("model.layers.0.self_attn.q_proj.weight", "lm_head.weight"), "so it is no EAGLE-3 head"),
    ],
)
def test_another_kind_of_drafter_is_refused(names, sentence, shared, tmp_path):
    path = shared.save(tmp_path, {name: np.zeros((2, 2)) for name in names}, {})
    with pytest.raises(ValueError, match=sentence):
        decoder_of(path)


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.system, ("exit 1",)


def test_a_pickle_that_holds_code_is_refused(shared, tmp_path):
    path = shared.save(tmp_path, {}, config_of(NATIVE))
    os.remove(tmp_path / "model.safetensors")
    torch.save({"fc.weight": Malicious()}, tmp_path / "pytorch_model.bin")
    sentence = r"pytorch_model.bin of .* holds more than tensors and is not unpickled"
    with pytest.raises(ValueError, match=sentence):
        decoder_of(path)
    with pytest.raises(ValueError, match=sentence):
        Eagle3.of_files(path)


def test_embeddings_of_another_width_are_refused(shared, tmp_path):
    config = tiny_model("opt").config
    config.word_embed_proj_dim = 24
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    path = written_case(shared, tmp_path, Case(states=default_states(4)))
    with pytest.raises(ValueError, match="reads embeddings of width 48; this target's have width 24"):
        decoder_of(path, model=model)


def test_a_target_that_is_no_transformers_model_is_refused():
    with pytest.raises(ValueError, match="drafter 'eagle3' drafts for transformers models, not for a TableTarget"):
        Eagle3("somewhere").open(TableTarget(np.zeros((3, 3))))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layers": "2+x"}, r"layers is '2\+x'; it must be numbers such as 2\+15\+27"),
        ({"layer_ids_are": "blocks"}, "layer_ids_are.*must be in"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_words(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Eagle3("somewhere", **options)


def test_a_folder_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"there is no drafter '\./nowhere'; give a folder, or a Hugging Face id"):
        decoder_of("./nowhere")
