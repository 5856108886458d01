"""Hydra's heads against their formula, with and without the prefix layer, along trees and over rounds."""

import json

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from talon_core import TableTarget, TokenTree
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import FINAL_STATE, Committed, Frontier, Part
from talon_core.plugins.parts import Parts
from talon_drafters import Hydra
from talon_drafters.checkpoints.files import read_checkpoint
from talon_drafters.checkpoints.reading import Sizes
from talon_drafters.hydra.files import hydra_of, save_hydra
from talon_drafters.hydra.network import HydraConfig, HydraHeads
from talon_kernels.native import load
from talon_tests.on_device import check_on_device
from talon_tests.policies import with_policies
from talon_tests.shared_targets import SharedTargets
from talon_tests.tiny_models import tiny_llama, tiny_model

TARGETS = SharedTargets()
VOCAB, HIDDEN, HEADS, INNER = 97, 48, 3, 56
DRAFT_IDS = np.array([3, 4, 9, 20, 21, 22, 40, 77, 90, 96])
OTHER_PREFIX = {
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
}
"""A prefix layer that is not made like the target's layers."""


@attrs.frozen(eq=False)
class Layout:
    """What a Hydra checkpoint has."""

    grounded: bool = True
    layers: int = 1
    own_outputs: bool = True
    vocabulary: bool = False
    prefix: bool = False
    options: dict[str, object] | None = None  # the prefix layer's, where they are not the target's
    before: str = ""  # what stands before all names
    config: dict[str, object] = attrs.field(factory=dict)
    file: str = "hydra_lm_head.safetensors"

    def block(self, head, layer):
        """Published prefix-mlp heads count the dropout before each block."""
        return f"{self.before}hydra_mlp.{head}.{2 * layer + 1 if self.prefix else layer}"

    def output(self, head):
        return f"{self.before}hydra_lm_head.{head}{'.1' if self.prefix else ''}"


LAYOUTS = {
    "mlp": Layout(),
    "mlp, two blocks": Layout(layers=3),
    "mlp, pickled and prefixed": Layout(file="hydra_lm_head.pt", before="hydra_head."),
    "mlp, wrong configuration": Layout(
        config={"hydra_num_heads": 4, "grounded_heads": False, "hydra_head_arch": "mlp"}
    ),
    "mlp, not grounded": Layout(grounded=False, layers=2),
    "sharing": Layout(own_outputs=False),
    "sharing, own vocabulary": Layout(own_outputs=False, vocabulary=True),
    "own vocabulary": Layout(vocabulary=True),
    "prefix-mlp": Layout(prefix=True, config={"hydra_head_arch": "prefix-mlp"}),
    "prefix-mlp, two blocks": Layout(prefix=True, layers=2, before="hydra_head."),
    "prefix-mlp, not grounded": Layout(prefix=True, grounded=False),
    "prefix-mlp, sharing": Layout(prefix=True, own_outputs=False, vocabulary=True),
    "prefix-mlp, another layer": Layout(prefix=True, options=OTHER_PREFIX),
}


def random(rng, *shape):
    return torch.tensor(rng.normal(size=shape) * shape[-1] ** -0.5, dtype=torch.float32)


def prefix_options(layout):
    """Heads, key-value heads, head size, eps and RoPE base of the prefix layer; the tiny Llama's by default."""
    return (3, 3, 10, 1e-3, 500.0) if layout.options else (4, 2, 12, 1e-6, 10_000.0)


def tensors_of(layout, seed=3):
    rng = np.random.default_rng(seed)
    tensors = {}
    for head in range(HEADS):
        for layer in range(layout.layers):
            block, width = layout.block(head, layer), HIDDEN * (head + 2 if layout.grounded and layer == 0 else 1)
            for part in ("linear", "res_connection") if width != HIDDEN else ("linear",):
                tensors[f"{block}.{part}.weight"] = random(rng, HIDDEN, width) * 2
                tensors[f"{block}.{part}.bias"] = random(rng, HIDDEN)
        if layout.own_outputs:
            rows = len(DRAFT_IDS) if layout.vocabulary else VOCAB
            tensors[f"{layout.output(head)}.weight"] = random(rng, rows, HIDDEN) * 2
            tensors[f"{layout.output(head)}.bias"] = random(rng, rows)
    if layout.vocabulary:
        tensors["d2t"] = torch.as_tensor(DRAFT_IDS - np.arange(len(DRAFT_IDS)))
    if layout.prefix:
        heads, kv_heads, size, _, _ = prefix_options(layout)
        name = f"{layout.before}prefix_embeding_layer"
        shapes = {
            "self_attn.q_proj": (heads * size, HIDDEN),
            "self_attn.k_proj": (kv_heads * size, HIDDEN),
            "self_attn.v_proj": (kv_heads * size, HIDDEN),
            "self_attn.o_proj": (HIDDEN, heads * size),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        for part, shape in shapes.items():
            tensors[f"{name}.layers.0.{part}.weight"] = random(rng, *shape) * 2
        for norm in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
            tensors[f"{name}.{norm}.weight"] = 1 + random(rng, HIDDEN)
        tensors[f"{name}.embed_tokens.weight"] = torch.full((5, 3), float("nan"))  # of no use, whatever it is
        tensors[f"{name}.layers.0.self_attn.rotary_emb.inv_freq"] = torch.full((6,), float("nan"))
    return tensors


def written(folder, tensors, config=None, file="hydra_lm_head.safetensors"):
    (folder / "config.json").write_text(json.dumps(config or {}))
    if file.endswith(".safetensors"):
        save_file(tensors, folder / file)
    else:
        torch.save(tensors, folder / file)
    return str(folder)


def written_layout(folder, layout):
    options = {"prefix_config": layout.options} if layout.options else {}
    return written(folder, tensors_of(layout), {**layout.config, **options}, layout.file)


# The formulae, in float64


def norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def rotated(x, base):
    """RoPE: shape `(length, heads, head_dim)`, position by row."""
    length, _, size = x.shape
    angle = np.arange(length)[:, None] * base ** (-np.arange(0, size, 2) / size)  # (length, head_dim / 2)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    one, other = x[..., : size // 2], x[..., size // 2 :]
    return np.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


def plain_prefix(layout, tensors, states):
    """What the prefix layer makes of all states, shape `(length, hidden)`."""
    start = f"{layout.before}prefix_embeding_layer."
    weight = {
        name.removeprefix(start): tensor.double().numpy() for name, tensor in tensors.items() if name.startswith(start)
    }
    heads, kv_heads, size, eps, base = prefix_options(layout)
    x, length = states, len(states)
    normed = norm(x, weight["layers.0.input_layernorm.weight"], eps)
    query, key, value = (
        (normed @ weight[f"layers.0.self_attn.{part}_proj.weight"].T).reshape(length, -1, size) for part in "qkv"
    )
    query, key = rotated(query, base), rotated(key, base)
    mixed = np.zeros((length, heads, size))
    for head in range(heads):
        group = head // (heads // kv_heads)
        for position in range(length):
            score = key[: position + 1, group] @ query[position, head] / np.sqrt(size)
            prob = np.exp(score - score.max())
            mixed[position, head] = prob / prob.sum() @ value[: position + 1, group]
    x = x + mixed.reshape(length, -1) @ weight["layers.0.self_attn.o_proj.weight"].T
    normed = norm(x, weight["layers.0.post_attention_layernorm.weight"], eps)
    gate, up = (normed @ weight[f"layers.0.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
    x = x + (silu(gate) * up) @ weight["layers.0.mlp.down_proj.weight"].T
    return norm(x, weight["norm.weight"], eps)


def plain_law(layout, tensors, model, states, path):
    """The law after a path of tokens, the root first, over the target's vocabulary.

    `states` are those of all tokens before the root, shape `(length, hidden)`.
    """
    weight = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    known = states.double().numpy()
    x = plain_prefix(layout, tensors, known)[-1] if layout.prefix else known[-1]
    head = len(path) - 1
    if layout.grounded:
        with torch.no_grad():
            x = np.concatenate([x, *model.get_input_embeddings()(torch.tensor(path)).double().numpy()])
    for layer in range(layout.layers):
        block = layout.block(head, layer)
        inner = silu(weight[f"{block}.linear.weight"] @ x + weight[f"{block}.linear.bias"])
        if f"{block}.res_connection.weight" in weight:
            x = weight[f"{block}.res_connection.weight"] @ x + weight[f"{block}.res_connection.bias"]
        x = x + inner
    ids = DRAFT_IDS if layout.vocabulary else np.arange(VOCAB)
    if layout.own_outputs:
        logits = weight[f"{layout.output(head)}.weight"] @ x + weight[f"{layout.output(head)}.bias"]
    else:
        logits = model.get_output_embeddings().weight.detach().double().numpy()[ids] @ x
    law = np.zeros(VOCAB)
    law[ids] = np.exp(logits - logits.max())
    return law / law.sum()


def decoder_of(path, policy="chain", model=None, **options):
    return TARGETS.decoder(model or tiny_llama(), None, Parts(Hydra(path), policy, **options))


def states(rng, count):
    return torch.tensor(rng.normal(size=(count, HIDDEN)), dtype=torch.float32)


TREE = TokenTree(tokens=[5, 9, 3, 7, 9, 30], parents=[-1, 0, 0, 1, 2, 2], path_logp=[0, -0.1, -0.2, -0.5, -0.7, -1])
FRONTIERS = {
    "layer by layer": [(1, [0]), (3, [1, 2]), (6, [3, 4, 5])],
    "node by node": [(1, [0]), (3, [2]), (6, [4, 1, 5]), (6, [3])],  # depths are mixed
}
"""How many nodes there are when the drafter is asked, and for which of them."""


# Laws


def along(heads, states, embeddings, output=None):
    """The logits of all heads along sequences of known tokens; for head `i` row `t` is about token `t + 2 + i`."""
    encoded, logits = heads.encode(states), []
    for head in range(heads.config.num_heads):
        rows = max(states.shape[1] - 1 - head, 0)
        read = [encoded[:, :rows]]
        if heads.config.grounded:
            read += [embeddings[:, 1 + after : 1 + after + rows] for after in range(head + 1)]
        logits.append(heads.logits(head, torch.cat(read, dim=-1), output))
    return logits


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize("order", FRONTIERS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_law_at_every_node_is_the_formulas(name, order, accelerate, tmp_path, shared):
    layout = LAYOUTS[name]
    tensors = tensors_of(layout)
    decoder = decoder_of(written_layout(tmp_path, layout), accelerate=accelerate)
    drafter, model = decoder.drafter, decoder.target.model
    assert drafter.max_depth == HEADS
    rng = np.random.default_rng(1)
    known = states(rng, 6)
    with decoder.target.session(), drafter.session():
        shared.start(drafter, [3, 4, 5, 6, 7, 8, 5], known)
        for new in (3, 1, 0):
            for nodes, frontier in FRONTIERS[order]:
                tree = TREE.keep(np.arange(nodes))
                candidates = shared.ask(drafter, tree, frontier, width=4)
                for row, node in enumerate(frontier):
                    truth = plain_law(layout, tensors, model, known, TREE.tokens[TREE.path(node)].tolist())
                    best = np.argsort(-truth, kind="stable")[:4]
                    np.testing.assert_allclose(candidates.law(row), truth, rtol=1e-5, atol=1e-5)
                    assert candidates.tokens[row].tolist() == best.tolist()
                    np.testing.assert_allclose(candidates.logp[row], np.log(truth[best]), rtol=1e-4, atol=1e-5)
                    np.testing.assert_array_equal(
                        candidates.path_logp[row], TREE.path_logp[node] + candidates.logp[row]
                    )
            added = states(rng, new)
            known = torch.cat([known, added])
            if new:
                shared.tell(drafter, [9, 3, 5][-new:], [0], added)


def test_one_pass_is_counted_for_each_layer(tmp_path, shared):
    drafter = decoder_of(written_layout(tmp_path, LAYOUTS["prefix-mlp"])).drafter
    shared.start(drafter, [3, 5], torch.ones(1, HIDDEN))
    for nodes, frontier in FRONTIERS["layer by layer"]:
        assert drafter.propose([Frontier(0, TREE.keep(np.arange(nodes)), np.array(frontier), 2)]).draft_passes == 1


def test_a_law_depends_on_the_path(tmp_path, shared):
    drafter = decoder_of(written_layout(tmp_path, LAYOUTS["mlp"])).drafter
    shared.start(drafter, [3, 5], torch.ones(1, HIDDEN))
    shared.ask(drafter, TREE.keep([0]), width=2)
    candidates = shared.ask(drafter, TREE.keep([0, 1, 2]), [1, 2], width=2)
    assert np.abs(candidates.law(0) - candidates.law(1)).max() > 0.01


# Sequences


@pytest.mark.parametrize("name", ["mlp", "prefix-mlp"])
def test_a_prompt_of_one_token_has_no_state_and_gets_no_guess(name, tmp_path, shared):
    drafter = decoder_of(written_layout(tmp_path, LAYOUTS[name])).drafter
    shared.start(drafter, [5], torch.empty(0, HIDDEN))
    proposed = drafter.propose([Frontier(0, TokenTree.root(5), np.array([0]), 4)])
    assert (proposed.candidates[0].tokens == -1).all()
    assert proposed.draft_passes == 0
    shared.tell(drafter, [7], features=torch.ones(1, HIDDEN))
    candidates = shared.ask(drafter, TokenTree.root(7), width=4)
    assert (candidates.tokens >= 0).all()


@pytest.mark.parametrize("name", ["mlp", "mlp, not grounded", "prefix-mlp", "prefix-mlp, another layer"])
def test_a_batch_gives_each_row_the_candidates_it_gets_alone(name, tmp_path, shared):
    drafter = decoder_of(written_layout(tmp_path, LAYOUTS[name])).drafter
    rng = np.random.default_rng(5)
    counts = [0, 3, 9, 1]
    known = [states(rng, count) for count in counts]
    new = ([1, 2, 3, 1], [2, 1, 1, 4])  # by round and row
    commits = [[Committed(np.full(count, 5), np.array([0]), states(rng, count)) for count in row] for row in new]
    slots = (1, 7, 0, 4)

    def run(rows):
        for row in rows:
            shared.start(drafter, np.full(counts[row] + 1, 5), known[row], slots[row])
        for committed in [None, *commits]:
            if committed:
                drafter.commit({slots[row]: committed[row] for row in rows})
            for nodes, frontier in FRONTIERS["node by node"]:
                # the third of the batch is done after its first layer
                taking = [row for row in rows if row != 2 or nodes == 1]
                tree = TREE.keep(np.arange(nodes))
                asked = [Frontier(slots[row], tree, np.array(frontier), 3 + row) for row in taking]
                yield dict(zip(taking, drafter.propose(asked).candidates, strict=True)) if asked else {}

    together = list(run(range(4)))
    for row in range(4):
        for all_of_them, alone in zip(together, run([row]), strict=True):
            assert (row in all_of_them) == (row in alone)
            if row in alone:
                np.testing.assert_array_equal(all_of_them[row].tokens, alone[row].tokens)
                np.testing.assert_allclose(all_of_them[row].logp, alone[row].logp, rtol=1e-4)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", ["mlp", "prefix-mlp", "prefix-mlp, another layer"])
def test_each_sequence_gets_the_laws_it_gets_alone_whoever_comes_and_goes(name, recorded, tmp_path, shared):
    path = written_layout(tmp_path, LAYOUTS[name])
    drafter = shared.recorded(Hydra(path), tiny_model("llama")) if recorded else decoder_of(path).drafter
    shared.check_turns(drafter, lambda ids: states(np.random.default_rng(int(ids.sum())), len(ids)), VOCAB)


def begun(drafter, rng, counts, shared):
    """Sequences in slots of their own whose prompts have so many states, and the laws at their roots."""
    for slot, count in enumerate(counts):
        shared.start(drafter, np.full(count + 1, 5), states(rng, count), slot)
    return [Frontier(slot, TokenTree.root(5), np.array([0]), 4) for slot in range(len(counts))]


def told(drafter, rng, counts):
    """The texts go on by so many tokens each."""
    drafter.commit(
        {slot: Committed(np.full(count, 5), np.array([0]), states(rng, count)) for slot, count in enumerate(counts)}
    )


def test_states_that_wait_are_taken_over_with_a_text(tmp_path, shared):
    drafter, rng = decoder_of(written_layout(tmp_path, LAYOUTS["prefix-mlp"])).drafter, np.random.default_rng(4)
    known, root = states(rng, 9), TokenTree.root(5)
    shared.start(drafter, np.full(7, 5), known[:6], 0)
    assert drafter.resume(1, np.full(10, 5), 60, 0, 6) == 5  # one state must be heard of
    drafter.read({1: Part(5, 4, known[5:])})
    assert drafter.propose([Frontier(1, root, np.array([0]), 4)]).reading.tokens == 8
    shared.start(drafter, np.full(10, 5), known, 2)
    laws = [shared.ask(drafter, root, slot=slot).law(0) for slot in (1, 2)]
    np.testing.assert_allclose(laws[0], laws[1], rtol=1e-4, atol=1e-7)


def test_the_prefix_layer_takes_the_new_states_of_all_sequences_in_one_pass(tmp_path, shared):
    decoder = decoder_of(written_layout(tmp_path, LAYOUTS["prefix-mlp"]), attention="sdpa")
    drafter, rng, shapes = decoder.drafter, np.random.default_rng(4), []
    frontiers = begun(drafter, rng, [3, 9, 1, 3], shared)
    drafter._heads.prefix.register_forward_hook(
        lambda _, args, named, made: shapes.append(tuple(named["inputs_embeds"].shape)), with_kwargs=True
    )
    drafter.propose(frontiers)
    assert shapes[-1] == (1, 4, HIDDEN)  # the last state of each prompt
    assert shapes[:-1] == [(2, 2, HIDDEN), (1, 8, HIDDEN)]  # on a CPU prompts of one length share a pass
    for counts in ([2, 1, 3, 1], [1, 1, 1, 4]):
        shapes.clear()
        told(drafter, rng, counts)
        drafter.propose(frontiers)
        assert shapes == [(1, sum(counts), HIDDEN)]
        drafter.propose(frontiers)
        assert len(shapes) == 1  # nothing is new


def test_on_a_device_the_prefix_layers_pass_is_recorded(tmp_path, shared):
    drafter = shared.recorded(Hydra(written_layout(tmp_path, LAYOUTS["prefix-mlp"])), tiny_model("llama"))
    rng = np.random.default_rng(4)
    frontiers = begun(drafter, rng, [3, 9, 1], shared)
    drafter.propose(frontiers)
    assert drafter.executor.recorded >= 1
    recorded = []
    for _ in range(5):
        told(drafter, rng, [1, 2, 1])
        drafter.propose(frontiers)
        recorded.append(drafter.executor.recorded)
    assert drafter.executor.failure is None
    assert {*recorded} == {
        recorded[0]
    }  # the first of these passes serves the others; that of the prompts had larger tiles


def test_on_a_cpu_the_prefix_layers_pass_is_written_down_with_its_bits(tmp_path, shared, monkeypatch):
    if load() is None:
        pytest.skip("there are no native kernels here")
    monkeypatch.setattr("talon_core.runtime.repeating.CHECKED", 10**9)
    prefix = {**OTHER_PREFIX, "head_dim": 32, "hidden_size": HIDDEN, "intermediate_size": INNER}
    save_hydra(tmp_path, HydraHeads(HydraConfig(HIDDEN, VOCAB, HEADS, own_outputs=True, prefix=prefix)))
    decoder = decoder_of(str(tmp_path))
    drafter, rng = decoder.drafter, np.random.default_rng(4)
    with decoder.target.session(), drafter.session():
        frontiers = begun(drafter, rng, [3, 9, 1], shared)
        for counts in ([1, 2, 1], [1, 1, 1], [4, 1, 3], [1, 2, 2]):
            drafter.propose(frontiers)
            told(drafter, rng, counts)
        for one in frontiers:
            drafter.propose([one])
    assert drafter.executor.failure is None
    assert drafter.executor.recorded == 1


@pytest.mark.parametrize("waiting", [63, 64, 65, 100])
def test_the_states_of_a_long_pause_count_as_they_came(waiting, tmp_path, shared):
    layout = LAYOUTS["prefix-mlp"]
    decoder = decoder_of(written_layout(tmp_path, layout))
    rng = np.random.default_rng(6)
    known = states(rng, 4)
    shared.start(decoder.drafter, np.full(5, 5), known, more=200)
    shared.ask(decoder.drafter, TokenTree.root(5))
    while len(known) < 4 + waiting:
        added = states(rng, min(7, 4 + waiting - len(known)))
        known = torch.cat([known, added])
        shared.tell(decoder.drafter, np.full(len(added), 5), [0], added)
    candidates = shared.ask(decoder.drafter, TokenTree.root(5))
    truth = plain_law(layout, tensors_of(layout), decoder.target.model, known, [5])
    np.testing.assert_allclose(candidates.law(0), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["prefix-mlp", "prefix-mlp, another layer"])
def test_it_keeps_no_more_states_than_it_may(name, tmp_path, shared, monkeypatch):
    path, known = written_layout(tmp_path, LAYOUTS[name]), states(np.random.default_rng(4), 63)
    read, laws = [], []
    for kept in (1 << 28, 20 * known[0].nbytes):
        monkeypatch.setattr("talon_drafters.hydra.drafter.KEPT_BYTES", kept)
        drafter = decoder_of(path).drafter
        shared.start(drafter, np.full(31, 5), known[:30], 0, at_once=15)
        shared.start(drafter, np.full(9, 5), known[:8], 1)
        for at in range(30, 62, 4):  # nobody drafts
            shared.tell(drafter, np.full(4, 5), [0], known[at : at + 4])
        read.append([drafter.executor.cache.lengths[slot] for slot in (0, 1)])
        assert drafter.resume(2, np.full(64, 5), 100, 0, 62) == 61
        drafter.read({2: Part(61, 2, known[61:])})
        laws.append([shared.ask(drafter, TokenTree.root(5), slot=slot).law(0) for slot in range(3)])
    assert read == [[0, 0], [53, 0]]  # whenever there were more than twenty, all were read of the text that went on
    np.testing.assert_allclose(laws[1], laws[0], rtol=1e-4, atol=1e-7)


def test_a_long_prompt_is_read_in_parts(tmp_path, monkeypatch, shared):
    monkeypatch.setattr("talon_core.runtime.executor.HOST_PROMPT_TOKENS", 7)
    layout = LAYOUTS["prefix-mlp"]
    decoder = decoder_of(written_layout(tmp_path, layout))
    known = states(np.random.default_rng(2), 30)
    shared.start(decoder.drafter, np.full(31, 5), known)
    candidates = shared.ask(decoder.drafter, TokenTree.root(5), width=4)
    truth = plain_law(layout, tensors_of(layout), decoder.target.model, known, [5])
    np.testing.assert_allclose(candidates.law(0), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["sharing", "prefix-mlp"])
def test_while_decoding_the_states_are_those_of_the_tokens_before_the_root(name, tmp_path, shared):
    layout = LAYOUTS[name]
    tensors = tensors_of(layout)
    decoder = decoder_of(written_layout(tmp_path, layout), "talon:budget=80,top_k=30,mu=0.001")
    model = decoder.target.model
    decoder, recording = shared.recorded_laws(decoder)
    result = decoder.generate(np.array([5, 6, 7, 8]), max_new_tokens=12)
    assert any(len(round_.tokens) > 1 for round_ in result.rounds)
    final = model.model(input_ids=torch.tensor([[5, 6, 7, 8, *result.token_ids]])).last_hidden_state[0].detach()
    for ids, path, law in recording.laws[::7]:
        assert [5, 6, 7, 8, *result.token_ids][: len(ids)] == ids
        np.testing.assert_allclose(
            law, plain_law(layout, tensors, model, final[: len(ids) - 1], [ids[-1], *path]), rtol=1e-5, atol=1e-5
        )


@with_policies(
    ("llama", "prefix-mlp"),
    ("llama", "sharing"),
    ("gemma3", "mlp"),
    ("gpt2", "prefix-mlp, another layer"),
    ("cohere", "mlp, not grounded"),
)
def test_greedy_output_is_the_plain_models(architecture, policy, shared, tmp_path):
    target, name = architecture
    model, answers = shared.model_and_truth(target)
    path = written_layout(tmp_path, LAYOUTS[name])
    decoder = decoder_of(path, policy, model)
    for prompt, expected in answers:
        drafted = decoder.generate(prompt, max_new_tokens=len(expected))
        assert drafted.token_ids == expected
        assert drafted.stats.draft_passes > 0


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", ["prefix-mlp, another layer", "mlp, not grounded"])
def test_on_a_device_the_same_trees_are_drafted(name, recorded, tmp_path):
    path = written_layout(tmp_path, LAYOUTS[name])
    usual = decoder_of(path, "talon:budget=20,mu=0.01")
    check_on_device(Hydra(path), usual, [[5, 6, 7, 8, 9], [5], [9, 8, 7, 6], [1, 2, 3]], recorded)


@pytest.mark.parametrize("prefix", [None, {**OTHER_PREFIX, "hidden_size": HIDDEN, "intermediate_size": INNER}])
def test_heads_can_be_trained_and_then_guess_well(prefix, tmp_path):
    model = tiny_model("llama")
    prompt = [5, 6, 7, 8]
    plain = decoder_for_model(model, None, Parts(policy=None)).generate(np.array(prompt), max_new_tokens=40)
    ids = torch.tensor([[*prompt, *plain.token_ids]])
    with torch.no_grad():
        final = model.model(input_ids=ids).last_hidden_state
        embeddings = model.get_input_embeddings()(ids)
    torch.manual_seed(0)
    heads = HydraHeads(HydraConfig(HIDDEN, VOCAB, num_heads=3, prefix=prefix))
    lm_head = model.get_output_embeddings().requires_grad_(False)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=0.01)
    for _ in range(150):
        logits = along(heads, final, embeddings, lm_head)
        loss = sum(torch.nn.functional.cross_entropy(one[0, :-1], ids[0, 2 + i :]) for i, one in enumerate(logits))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_hydra(tmp_path, heads)
    drafted = decoder_of(str(tmp_path), "chain:length=3", model).generate(np.array(prompt), max_new_tokens=40)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.mean_accepted_tokens > 2.5


# The module as training calls it


@pytest.mark.parametrize("name", ["mlp", "mlp, not grounded", "prefix-mlp"])
def test_along_a_sequence_the_heads_say_what_they_say_while_drafting(name, tmp_path):
    layout = LAYOUTS[name]
    tensors = tensors_of(layout)
    model = tiny_model("llama")
    checkpoint = read_checkpoint(written_layout(tmp_path, layout))
    heads = hydra_of(checkpoint, Sizes(HIDDEN, VOCAB), torch.zeros(1), model.config).heads
    ids = torch.tensor([[5, 9, 3, 7, 30, 2], [8, 8, 1, 90, 4, 11]])
    known = torch.stack([states(np.random.default_rng(row), 6) for row in range(2)])
    with torch.no_grad():
        logits = along(heads, known, model.get_input_embeddings()(ids))
    assert [tuple(one.shape) for one in logits] == [(2, 5, VOCAB), (2, 4, VOCAB), (2, 3, VOCAB)]
    for head, one in enumerate(logits):
        for row in range(2):
            for t in range(one.shape[1]):
                path = ids[row, t + 1 : t + 2 + head].tolist()
                truth = plain_law(layout, tensors, model, known[row, : t + 1], path)
                np.testing.assert_allclose(torch.softmax(one[row, t], -1).numpy(), truth, rtol=1e-5, atol=1e-5)


def test_a_sequence_too_short_for_a_head_gives_it_no_rows():
    heads = HydraHeads(HydraConfig(HIDDEN, VOCAB, own_outputs=True))
    logits = along(heads, torch.zeros(1, 3, HIDDEN), torch.zeros(1, 3, HIDDEN))
    assert [one.shape[1] for one in logits] == [2, 1, 0, 0]


def test_heads_without_output_matrices_ask_for_one():
    heads = HydraHeads(HydraConfig(HIDDEN, VOCAB))
    with pytest.raises(ValueError, match="no output matrices of their own; pass the target's LM head as output"):
        along(heads, torch.zeros(1, 3, HIDDEN), torch.zeros(1, 3, HIDDEN))


# Files


@pytest.mark.parametrize("prefix", [None, {**OTHER_PREFIX, "hidden_size": HIDDEN, "intermediate_size": INNER}])
@pytest.mark.parametrize(
    ("layers", "grounded", "own_outputs", "vocabulary"),
    [(1, True, True, None), (2, True, False, torch.as_tensor(DRAFT_IDS)), (2, False, True, torch.as_tensor(DRAFT_IDS))],
)
def test_what_is_saved_is_read_back(layers, grounded, own_outputs, vocabulary, prefix, tmp_path):
    rows = VOCAB if vocabulary is None else len(vocabulary)
    heads = HydraHeads(HydraConfig(HIDDEN, rows, 2, layers, grounded, own_outputs, prefix))
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    save_hydra(tmp_path, heads, vocabulary, {"talon": {"target": "tiny"}})
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.config["talon"] == {"target": "tiny"}
    assert checkpoint.config["hydra_head_arch"] == ("mlp" if prefix is None else "prefix-mlp")
    read = hydra_of(checkpoint, Sizes(HIDDEN, VOCAB), torch.zeros(1))
    assert attrs.evolve(read.heads.config, prefix=None) == attrs.evolve(heads.config, prefix=None)
    assert (read.heads.config.prefix is None) == (prefix is None)
    assert (read.vocabulary is None) == (vocabulary is None)
    assert vocabulary is None or torch.equal(read.vocabulary, vocabulary)
    assert read.heads.state_dict().keys() == heads.state_dict().keys()
    for name, tensor in heads.state_dict().items():
        assert torch.equal(read.heads.state_dict()[name], tensor)
    known, embeddings = torch.randn(2, 1, 7, HIDDEN)
    output = torch.nn.Linear(HIDDEN, rows)
    with torch.no_grad():
        for one, other in zip(
            along(heads, known, embeddings, output), along(read.heads, known, embeddings, output), strict=True
        ):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["mlp, two blocks", "prefix-mlp"])
def test_names_are_the_originals(name, tmp_path):
    layout = LAYOUTS[name]
    tensors = tensors_of(layout)
    checkpoint = read_checkpoint(written_layout(tmp_path, layout))
    read = hydra_of(checkpoint, Sizes(HIDDEN, VOCAB), torch.zeros(1), tiny_model("llama").config)
    save_hydra(tmp_path / "again", read.heads)
    again = load_file(tmp_path / "again" / "hydra_lm_head.safetensors")
    wanted = {name for name in tensors if "embed_tokens" not in name and "inv_freq" not in name}
    assert set(again) == wanted
    assert all(torch.equal(again[name], tensors[name]) for name in wanted)


def test_the_targets_type_is_taken_but_for_the_frequencies_of_rope(tmp_path):
    checkpoint = read_checkpoint(written_layout(tmp_path, LAYOUTS["prefix-mlp"]))
    like = torch.zeros(1, dtype=torch.bfloat16)
    heads = hydra_of(checkpoint, Sizes(HIDDEN, VOCAB), like, tiny_model("llama").config).heads
    assert {tensor.dtype for tensor in heads.state_dict().values()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in heads.buffers()} == {torch.float32}


# What is refused


def without(layout, *names):
    return {name: tensor for name, tensor in tensors_of(layout).items() if name not in names}


MLP, PREFIX = LAYOUTS["mlp"], LAYOUTS["prefix-mlp"]


@pytest.mark.parametrize(
    ("tensors", "config", "sentence"),
    [
        (
            tensors_of(MLP),
            {"hydra_head_arch": "cross-attn"},
            "architecture 'cross-attn'; TALON knows mlp and prefix-mlp",
        ),
        (tensors_of(MLP), {"hydra_head_arch": "eagle-attn"}, "architecture 'eagle-attn'"),
        (tensors_of(MLP), {"hidden_state_offset": 2}, r"reads the hidden state 2 layers below the last"),
        (tensors_of(MLP), {"hydra_head_arch": "prefix-mlp"}, r"has no prefix_embeding_layer\.layers\.0"),
        (
            {**tensors_of(MLP), "hydra_mlp.1.0.linear.weight": torch.zeros(64, 192)},
            {},
            r"hydra_mlp.1.0.linear.weight of shape \(64, 192\); it must be \(48, 144\)",
        ),
        (
            {**tensors_of(MLP), "hydra_lm_head.2.weight": torch.zeros(90, 48)},
            {},
            r"hydra_lm_head.2.weight of shape \(90, 48\); it must be \(97, 48\)",
        ),
        ({**tensors_of(MLP), "fc.weight": torch.zeros(2)}, {}, "fc.weight, which no known layout of Hydra heads has"),
        (without(MLP, "hydra_mlp.1.0.linear.bias"), {}, "lacks the tensor that would be blocks.1.0.linear.bias"),
        ({"d2t": torch.zeros(3, dtype=torch.int64)}, {}, "has no head 0"),
        ({"hydra_lm_head.0.weight": torch.zeros(97, 48)}, {}, "has heads of 0 to 0 blocks"),
        (
            without(PREFIX, "prefix_embeding_layer.norm.weight"),
            {},
            r"lacks the tensor that would be prefix.norm.weight",
        ),
        (
            {**tensors_of(PREFIX), "prefix_embeding_layer.layers.0.self_attn.q_proj.weight": torch.zeros(60, 48)},
            {},
            r"q_proj.weight of shape \(60, 48\); it must be \(48, 48\)",
        ),
        (without(PREFIX, "prefix_embeding_layer.layers.0.mlp.gate_proj.weight"), {}, "lacks the tensor .*gate_proj"),
        (tensors_of(PREFIX), {"prefix_config": 3}, "has prefix_config 3 in its config.json; it must be an object"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_words(tensors, config, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        decoder_of(written(tmp_path, tensors, config))


def test_a_prefix_layer_whose_options_nobody_knows_is_refused(tmp_path):
    path = written_layout(tmp_path, PREFIX)
    with pytest.raises(ValueError, match=r"neither in its config.json \(prefix_config\) nor .* no Llama; add them"):
        decoder_of(path, model=tiny_model("gpt2"))


def test_without_a_path_the_sentence_says_that_one_is_needed():
    with pytest.raises(ValueError, match=r"drafter 'hydra' needs path=FOLDER_OR_ID; none is shipped for this target"):
        decoder_of("")


def test_a_target_that_is_no_transformers_model_is_refused():
    with pytest.raises(ValueError, match="drafter 'hydra' drafts for transformers models, not for a TableTarget"):
        Hydra("somewhere").open(TableTarget(np.zeros((3, 3))))


def test_it_asks_for_the_final_state_and_nothing_else():
    assert Hydra().features(12) == (FINAL_STATE,)
