"""Medusa's heads against their formula, in every layout in which their files are found."""

import json
import os
import shutil

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from talon_core import TableTarget, TokenTree
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import FINAL_STATE, Frontier
from talon_core.plugins.parts import Parts
from talon_drafters import Medusa
from talon_drafters.checkpoints import files
from talon_drafters.checkpoints.files import fingerprint, read_checkpoint, shipped_for
from talon_drafters.checkpoints.reading import Sizes
from talon_drafters.medusa.files import medusa_of, save_medusa
from talon_drafters.medusa.network import MedusaConfig, MedusaHeads
from talon_tests.on_device import check_on_device
from talon_tests.policies import with_policies
from talon_tests.shared_targets import SharedTargets
from talon_tests.tiny_models import tiny_llama, tiny_model

TARGETS = SharedTargets()
VOCAB, HIDDEN, HEADS = 97, 48, 3
DRAFT_IDS = np.array([3, 4, 9, 20, 21, 22, 40, 77, 90, 96])
"""A small vocabulary of the drafter's own."""


@attrs.frozen(eq=False)
class Layout:
    """How a checkpoint names its tensors, and what it has of them."""

    block: str = "{head}.{layer}.linear"
    output: str | None = "{head}.{layers}.weight"
    layers: int = 1
    bias: bool = True
    vocabulary: str | None = None
    whole_rows: bool = False  # output matrices have a row for each of the target's tokens
    config: dict[str, object] = attrs.field(factory=dict)
    file: str = "medusa_lm_head.safetensors"


LAYOUTS = {
    "original": Layout(),
    "original, two blocks": Layout(layers=2),
    "original, no blocks": Layout(layers=0),
    "original, prefixed": Layout("medusa_head.{head}.{layer}.linear", "medusa_head.{head}.{layers}.weight"),
    "original, pickled": Layout(file="medusa_lm_head.pt"),
    "original, its number of heads wrong": Layout(config={"medusa_num_heads": 2, "medusa_num_layers": 7}),
    "sharing": Layout(output=None, layers=2),
    "sharing, own vocabulary": Layout(output=None, vocabulary="d2t"),
    "original, own vocabulary": Layout(vocabulary="d2t"),
    "vllm": Layout("blocks.{head}.layers.{layer}", "lm_heads.{head}.weight", 2, bias=False, file="model.safetensors"),
    "vllm, prefixed": Layout("medusa_heads.blocks.{head}.layers.{layer}", "medusa_heads.lm_heads.{head}.weight"),
    "vllm, one output": Layout("blocks.{head}.layers.{layer}", "lm_head.weight"),
    "vllm, the first output": Layout(
        "blocks.{head}.layers.{layer}", "lm_heads.0.weight", config={"original_lm_head": True}
    ),
    "vllm, truncated": Layout("blocks.{head}.layers.{layer}", "lm_heads.{head}.weight", vocabulary="token_map"),
    "vllm, to be truncated": Layout(
        "blocks.{head}.layers.{layer}", "lm_heads.{head}.weight", vocabulary="token_map", whole_rows=True
    ),
}


def random(rng, *shape):
    return torch.tensor(rng.normal(size=shape) * shape[-1] ** -0.5, dtype=torch.float32)


def tensors_of(layout, seed=3):
    rng = np.random.default_rng(seed)
    tensors = {}
    for head in range(HEADS):
        for layer in range(layout.layers):
            block = layout.block.format(head=head, layer=layer)
            tensors[f"{block}.weight"] = random(rng, HIDDEN, HIDDEN) * 2
            if layout.bias:
                tensors[f"{block}.bias"] = random(rng, HIDDEN)
        if layout.output is not None:
            rows = VOCAB if layout.vocabulary is None or layout.whole_rows else len(DRAFT_IDS)
            tensors[layout.output.format(head=head, layers=layout.layers)] = random(rng, rows, HIDDEN) * 4
    if layout.vocabulary == "d2t":
        tensors["d2t"] = torch.as_tensor(DRAFT_IDS - np.arange(len(DRAFT_IDS)))
    elif layout.vocabulary == "token_map":
        tensors["token_map"] = torch.as_tensor(DRAFT_IDS)
    return tensors


def written(folder, tensors, config=None, file="medusa_lm_head.safetensors"):
    """The folder, as text, with a checkpoint in it."""
    (folder / "config.json").write_text(json.dumps(config or {}))
    if file.endswith(".safetensors"):
        save_file(tensors, folder / file)
    else:
        torch.save(tensors, folder / file)
    return str(folder)


def written_layout(folder, layout):
    return written(folder, tensors_of(layout), layout.config, layout.file)


def plain_law(layout, tensors, lm_head, state, head):  # lm_head: the target's, a torch.nn.Linear
    """One head's law over the target's vocabulary, shape `(vocab,)`: the formula, in float64."""
    weights = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    x = state.double().numpy()
    for layer in range(layout.layers):
        block = layout.block.format(head=head, layer=layer)
        inner = weights[f"{block}.weight"] @ x
        if layout.bias:
            inner = inner + weights[f"{block}.bias"]
        x = x + inner / (1 + np.exp(-inner))
    ids = np.arange(VOCAB) if layout.vocabulary is None else DRAFT_IDS
    if layout.output is None:
        logits = lm_head.weight.detach().double().numpy()[ids] @ x
        if lm_head.bias is not None:
            logits += lm_head.bias.detach().double().numpy()[ids]
    else:
        matrix = weights[layout.output.format(head=head, layers=layout.layers)]
        logits = (matrix[ids] if len(matrix) == VOCAB else matrix) @ x
    law = np.zeros(VOCAB)
    law[ids] = np.exp(logits - logits.max())
    return law / law.sum()


def decoder_of(path, policy="chain", model=None, **options):
    return TARGETS.decoder(model or tiny_llama(), None, Parts(Medusa(path), policy, **options))


def target_of(model=None):
    return decoder_for_model(model or tiny_model("llama"), None, Parts(policy=None)).target


def states(rng, count):
    return torch.tensor(rng.normal(size=(count, HIDDEN)), dtype=torch.float32)


TREE = TokenTree(tokens=[5, 9, 3, 7, 9, 30], parents=[-1, 0, 0, 1, 2, 2], path_logp=[0, -0.1, -0.2, -0.5, -0.7, -1])


def layers_of(tree):
    for depth in range(int(tree.depths.max()) + 1):
        nodes = np.flatnonzero(tree.depths <= depth)
        yield depth, tree.keep(nodes), np.flatnonzero(tree.depths[nodes] == depth)


# Laws


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_law_at_every_node_is_the_formulas(name, accelerate, tmp_path, shared):
    layout = LAYOUTS[name]
    decoder = decoder_of(written_layout(tmp_path, layout), accelerate=accelerate)
    drafter, lm_head = decoder.drafter, decoder.target.model.get_output_embeddings()
    assert drafter.max_depth == HEADS
    rng = np.random.default_rng(1)
    given = states(rng, 4)
    with decoder.target.session(), drafter.session():
        shared.start(drafter, [3, 4, 5, 6, 5], given)
        for _ in range(2):
            for depth, tree, frontier in layers_of(TREE):
                candidates = shared.ask(drafter, tree, frontier, width=4)
                truth = plain_law(layout, tensors_of(layout), lm_head, given[-1], depth)
                best = np.argsort(-truth, kind="stable")[:4]
                for row in range(len(frontier)):
                    np.testing.assert_allclose(candidates.law(row), truth, rtol=1e-5, atol=1e-5)
                    assert candidates.tokens[row].tolist() == best.tolist()
                    np.testing.assert_allclose(candidates.logp[row], np.log(truth[best]), rtol=1e-5, atol=1e-5)
                np.testing.assert_array_equal(candidates.path_logp, tree.path_logp[frontier][:, None] + candidates.logp)
            given = states(rng, 2)
            shared.tell(drafter, [9, 5], [0, 1], given)


def test_all_heads_run_once_a_round(tmp_path, shared):
    drafter = decoder_of(written_layout(tmp_path, LAYOUTS["original"])).drafter
    shared.start(drafter, [3, 5], torch.ones(1, HIDDEN))
    for _ in range(2):
        for width, (_, tree, frontier) in zip((2, 5, 1), layers_of(TREE), strict=True):  # a later layer may be wider
            proposed = drafter.propose([Frontier(0, tree, frontier, width)])
            assert proposed.candidates[0].tokens.shape == (len(frontier), width)
            assert proposed.draft_passes == (len(tree) == 1)
        shared.tell(drafter, [5], features=torch.ones(1, HIDDEN))


def test_a_vocabulary_of_its_own_gives_no_more_candidates_than_it_has(tmp_path, shared):
    drafter = decoder_of(written_layout(tmp_path, LAYOUTS["sharing, own vocabulary"])).drafter
    shared.start(drafter, [3, 5], torch.ones(1, HIDDEN))
    candidates = shared.ask(drafter, TokenTree.root(5), width=VOCAB)
    assert sorted(candidates.tokens[0].tolist()) == DRAFT_IDS.tolist()
    law = candidates.law(0)
    assert law.sum() == pytest.approx(1)
    assert set(np.flatnonzero(law)) == set(DRAFT_IDS)


def test_heads_that_share_the_whole_lm_head_copy_nothing(tmp_path):
    decoder = decoder_of(written_layout(tmp_path, LAYOUTS["sharing"]))
    assert decoder.drafter._output is decoder.target.model.get_output_embeddings()


@pytest.mark.parametrize("name", ["sharing", "sharing, own vocabulary"])
def test_the_bias_of_a_shared_lm_head_is_shared(name, tmp_path, shared):
    model = tiny_model("phi")
    torch.nn.init.normal_(model.get_output_embeddings().bias)
    drafter = decoder_of(written_layout(tmp_path, LAYOUTS[name]), model=model).drafter
    given = states(np.random.default_rng(2), 1)
    shared.start(drafter, [3, 5], given)
    candidates = shared.ask(drafter, TokenTree.root(5), width=3)
    truth = plain_law(LAYOUTS[name], tensors_of(LAYOUTS[name]), model.get_output_embeddings(), given[0], 0)
    np.testing.assert_allclose(candidates.law(0), truth, rtol=1e-5, atol=1e-5)


# Sequences


def test_a_prompt_of_one_token_has_no_state_and_gets_no_guess(tmp_path, shared):
    drafter = decoder_of(written_layout(tmp_path, LAYOUTS["original"])).drafter
    shared.start(drafter, [5], torch.empty(0, HIDDEN))
    proposed = drafter.propose([Frontier(0, TokenTree.root(5), np.array([0]), 4)])
    assert (proposed.candidates[0].tokens == -1).all()
    assert proposed.draft_passes == 0
    shared.tell(drafter, [7], features=torch.ones(1, HIDDEN))
    candidates = shared.ask(drafter, TokenTree.root(7), width=4)
    assert (candidates.tokens >= 0).all()


@pytest.mark.parametrize("recorded", [False, True])
def test_each_sequence_gets_the_laws_it_gets_alone_whoever_comes_and_goes(recorded, tmp_path, shared):
    path = written_layout(tmp_path, LAYOUTS["original"])
    drafter = shared.recorded(Medusa(path), tiny_model("llama")) if recorded else decoder_of(path).drafter
    shared.check_turns(drafter, lambda ids: states(np.random.default_rng(int(ids.sum())), len(ids)), VOCAB)


def test_the_heads_run_once_for_all_that_join_in_a_layer_and_once_more_for_who_joins_later(tmp_path, shared):
    drafter = decoder_of(written_layout(tmp_path, LAYOUTS["original"])).drafter
    for slot in (3, 0, 8):
        shared.start(drafter, [3, 5], torch.ones(1, HIDDEN), slot)
    first, second, third = (Frontier(slot, TokenTree.root(5), np.array([0]), 4) for slot in (3, 0, 8))
    assert [drafter.propose(asked).draft_passes for asked in ([first, second], [second, first], [third])] == [1, 0, 1]
    shared.tell(drafter, [5], features=torch.ones(1, HIDDEN), slot=0)
    assert [drafter.propose([one]).draft_passes for one in (first, second, third)] == [0, 1, 0]


def test_while_decoding_the_state_is_that_of_the_token_before_the_root(tmp_path, shared):
    layout = LAYOUTS["sharing"]
    decoder = decoder_of(written_layout(tmp_path, layout), "talon:budget=80,top_k=30,mu=0.001")
    model = decoder.target.model
    decoder, recording = shared.recorded_laws(decoder)
    result = decoder.generate(np.array([5, 6, 7, 8]), max_new_tokens=12)
    final = model.model(input_ids=torch.tensor([[5, 6, 7, 8, *result.token_ids]])).last_hidden_state[0].detach()
    assert len({len(ids) for ids, _, _ in recording.laws}) == result.stats.rounds - (len(result.rounds[-1].tree) == 1)
    assert any(len(round_.tokens) > 1 for round_ in result.rounds)
    for ids, path, law in recording.laws:
        assert [5, 6, 7, 8, *result.token_ids][: len(ids)] == ids
        truth = plain_law(layout, tensors_of(layout), model.get_output_embeddings(), final[len(ids) - 2], len(path))
        np.testing.assert_allclose(law, truth, rtol=1e-5, atol=1e-5)


@with_policies("llama", "gemma3", "gpt2", "opt", "cohere")
def test_greedy_output_is_the_plain_models(architecture, policy, shared, tmp_path):
    model, answers = shared.model_and_truth(architecture)
    path = written_layout(tmp_path, LAYOUTS["sharing, own vocabulary" if policy == "chain" else "original"])
    decoder = decoder_of(path, policy, model)
    for prompt, expected in answers:
        drafted = decoder.generate(prompt, max_new_tokens=len(expected))
        assert drafted.token_ids == expected
        assert 0 < drafted.stats.draft_passes <= drafted.stats.rounds


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", ["original", "sharing, own vocabulary"])
def test_on_a_device_the_same_trees_are_drafted(name, recorded, tmp_path):
    path = written_layout(tmp_path, LAYOUTS[name])
    usual = decoder_of(path, "talon:budget=20,mu=0.01")
    check_on_device(Medusa(path), usual, [[5, 6, 7, 8, 9], [5], [9, 8, 7, 6], [1, 2, 3]], recorded)


def test_heads_can_be_trained_and_then_guess_well(tmp_path):
    model = tiny_model("llama")
    prompt = [5, 6, 7, 8]
    plain = decoder_for_model(model, None, Parts(policy=None)).generate(np.array(prompt), max_new_tokens=40)
    ids = torch.tensor([[*prompt, *plain.token_ids]])
    with torch.no_grad():
        final = model.model(input_ids=ids).last_hidden_state[0]
    torch.manual_seed(0)
    heads = MedusaHeads(MedusaConfig(HIDDEN, VOCAB, num_heads=3))
    lm_head = model.get_output_embeddings().requires_grad_(False)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=0.01)
    for _ in range(150):
        logits = heads(final, lm_head)  # (heads, length, vocab)
        loss = sum(
            torch.nn.functional.cross_entropy(logits[head, : -2 - head], ids[0, 2 + head :]) for head in range(3)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_medusa(tmp_path, heads, config={"base_model_name_or_path": "tiny"})
    drafted = decoder_of(str(tmp_path), "chain:length=3", model).generate(np.array(prompt), max_new_tokens=40)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.mean_accepted_tokens > 2.5


# Files


def test_new_heads_say_what_the_lm_head_says():
    heads = MedusaHeads(MedusaConfig(HIDDEN, VOCAB))
    lm_head = torch.nn.Linear(HIDDEN, VOCAB)
    state = torch.randn(2, 5, HIDDEN)
    logits = heads(state, lm_head)
    assert logits.shape == (4, 2, 5, VOCAB)
    torch.testing.assert_close(logits, lm_head(state).expand(4, -1, -1, -1))
    with pytest.raises(ValueError, match="no output matrices of their own; pass the target's LM head as output"):
        heads(state)


@pytest.mark.parametrize("vocabulary", [None, torch.as_tensor(DRAFT_IDS)])
@pytest.mark.parametrize(("layers", "own_outputs", "bias"), [(1, True, True), (2, False, True), (2, True, False)])
def test_what_is_saved_is_read_back(layers, own_outputs, bias, vocabulary, tmp_path):
    rows = VOCAB if vocabulary is None else len(vocabulary)
    config = MedusaConfig(HIDDEN, rows, 2, layers, bias, own_outputs)
    heads = MedusaHeads(config)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    folder = tmp_path / "made" / "here"
    for _ in range(2):  # the second time, files are replaced
        save_medusa(folder, heads, vocabulary, {"talon": {"target": "tiny"}})
    assert {file.name for file in folder.iterdir()} == {"config.json", "medusa_lm_head.safetensors"}
    checkpoint = read_checkpoint(folder)
    assert checkpoint.config["talon"] == {"target": "tiny"}
    assert checkpoint.config["medusa_num_heads"] == 2
    read = medusa_of(checkpoint, Sizes(HIDDEN, VOCAB), torch.zeros(1))
    assert read.heads.config == config
    assert (read.vocabulary is None) == (vocabulary is None)
    assert vocabulary is None or torch.equal(read.vocabulary, vocabulary)
    assert read.heads.state_dict().keys() == heads.state_dict().keys()
    for name, tensor in heads.state_dict().items():
        assert torch.equal(read.heads.state_dict()[name], tensor)


def test_names_are_the_originals(tmp_path):
    save_medusa(tmp_path, MedusaHeads(MedusaConfig(HIDDEN, VOCAB, 2, 2, own_outputs=True)))
    names = {f"{head}.{layer}.linear.{part}" for head in "01" for layer in "01" for part in ("weight", "bias")}
    assert set(load_file(tmp_path / "medusa_lm_head.safetensors")) == names | {"0.2.weight", "1.2.weight"}


def test_the_targets_type_is_taken(tmp_path):
    read = medusa_of(
        read_checkpoint(written_layout(tmp_path, LAYOUTS["original"])),
        Sizes(HIDDEN, VOCAB),
        torch.zeros(1, dtype=torch.bfloat16),
    )
    assert {tensor.dtype for tensor in read.heads.state_dict().values()} == {torch.bfloat16}


def test_the_heads_are_read_where_the_folder_also_holds_the_targets_weights(tmp_path):
    path = written_layout(tmp_path, LAYOUTS["original, pickled"])
    save_file({"model.norm.weight": torch.ones(HIDDEN)}, tmp_path / "model.safetensors")
    torch.save({"lr": 0.1}, tmp_path / "optimizer.pt")
    assert decoder_of(path).drafter.max_depth == HEADS


def test_weights_in_several_files_are_read_together_and_only_if_all_are_there(tmp_path):
    tensors = tensors_of(LAYOUTS["original"])
    names = sorted(tensors)
    shards = {f"model-0000{part}-of-00002.safetensors": names[part - 1 :: 2] for part in (1, 2)}
    for shard, of_it in shards.items():
        save_file({name: tensors[name] for name in of_it}, tmp_path / shard)
    index = {"weight_map": {name: shard for shard, of_it in shards.items() for name in of_it}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    assert decoder_of(str(tmp_path)).drafter.max_depth == HEADS
    os.remove(tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"lacks model-00002-of-00002.safetensors, which model.safetensors.index.json"):
        decoder_of(str(tmp_path))


# The shipped ones


def test_without_a_path_the_sentence_says_that_one_is_needed():
    sentence = (
        r"drafter 'medusa' needs path=FOLDER_OR_ID; none is shipped for this target \(hidden size 48, 97 tokens\)"
    )
    with pytest.raises(ValueError, match=sentence):
        decoder_of("")


def test_without_a_path_the_one_that_was_trained_for_the_target_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DRAFTERS", tmp_path)
    model = tiny_model("llama")
    for name, of_it in (("another", tiny_model("llama", seed=1)), ("tiny", model)):
        folder = tmp_path / "medusa/shipped" / name
        save_medusa(
            folder, MedusaHeads(MedusaConfig(HIDDEN, VOCAB)), config={"talon": fingerprint(target_of(of_it).model)}
        )
    shutil.copytree(tmp_path / "medusa/shipped/tiny", tmp_path / "hydra/shipped/tiny")
    written(tmp_path / "medusa/shipped/another", tensors_of(LAYOUTS["original"]), {"talon": {"hidden_size": HIDDEN}})
    assert shipped_for(model, "medusa") == "tiny-medusa"
    assert decoder_of("", model=model).drafter.max_depth == 4
    assert decoder_of("tiny-medusa", model=model).drafter.max_depth == 4
    with torch.no_grad():
        model.get_input_embeddings().weight *= 1.05
    assert shipped_for(model, "medusa") is None


def test_a_target_in_half_precision_has_the_same_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DRAFTERS", tmp_path)
    heads = MedusaHeads(MedusaConfig(HIDDEN, VOCAB))
    save_medusa(tmp_path / "medusa/shipped/t", heads, config={"talon": fingerprint(target_of().model)})
    assert shipped_for(tiny_model("llama").bfloat16(), "medusa") == "t-medusa"


# What is refused


def changed(**changes):
    """The original layout's tensors with some replaced, or left out."""
    tensors = tensors_of(LAYOUTS["original"])
    tensors.update({name.replace("__", "."): tensor for name, tensor in changes.items()})
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (
            {**changed(), "1.0.linear.weight": torch.zeros(64, 64)},
            r"1.0.linear.weight of shape \(64, 64\); it must be \(48, 48\)",
        ),
        (
            {**changed(), "2.1.weight": torch.zeros(90, 48)},
            r"has 2.1.weight of shape \(90, 48\); it must be \(97, 48\)",
        ),
        ({**changed(), "fc.weight": torch.zeros(2)}, "a tensor fc.weight, which no known layout of Medusa heads has"),
        ({"d2t": torch.zeros(3, dtype=torch.int64)}, "has no head 0"),
        ({**changed(), "4.0.linear.weight": torch.zeros(48, 48)}, "has head 4 but no head 3"),
        ({**changed(), "0.2.linear.weight": torch.zeros(48, 48)}, "has block 2 of head 0 but no block 1 of head 0"),
        (
            {**changed(), "0.1.linear.weight": torch.zeros(48, 48)},
            "heads of 1 to 2 blocks; they must have equally many",
        ),
        (
            {**changed(), "0.2.weight": torch.zeros(97, 48)},
            "has both 0.1.weight and 0.2.weight, which are the same part",
        ),
        (
            {name: tensor for name, tensor in changed().items() if name != "1.1.weight"},
            "has 2 output matrices for 3 heads; head 1 has none",
        ),
        (
            {name: tensor for name, tensor in changed().items() if name != "1.0.linear.bias"},
            "lacks the tensor that would be blocks.1.0.linear.bias",
        ),
        (
            {name: tensor for name, tensor in changed().items() if name != "0.0.linear.bias"},
            "has a tensor 1.0.linear.bias whose like other heads do not have",
        ),
        ({**changed(), "d2t": torch.tensor([0, 96])}, "maps a token to 97 in d2t; the target has tokens 0 to 96"),
        ({**changed(), "d2t": torch.tensor([5, 4])}, "maps two tokens to the same one in d2t"),
        ({**changed(), "token_map": torch.tensor([-1, 4])}, "maps a token to -1 in token_map"),
        (
            {**changed(), "d2t": torch.tensor([0.5])},
            r"has d2t of type torch.float32 with 1 entries; it must hold whole",
        ),
        ({**changed(), "d2t": torch.zeros(2, 2).long()}, r"has d2t of shape \(2, 2\); it must be \(any\)"),
        ({**changed(), "d2t": torch.tensor([1, 2])}, None),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_words(tensors, sentence, tmp_path):
    path = written(tmp_path, tensors)
    if sentence is None:  # output matrices with a row for each of the target's tokens are cut
        assert decoder_of(path).drafter.max_depth == HEADS
        return
    with pytest.raises(ValueError, match=sentence):
        decoder_of(path)


def test_a_scale_of_logits_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"scales its logits by 0\.5; only 1 is known"):
        decoder_of(written(tmp_path, changed(), {"logit_scale": 0.5}))


def test_a_target_that_is_no_transformers_model_is_refused():
    with pytest.raises(ValueError, match="drafter 'medusa' drafts for transformers models, not for a TableTarget"):
        Medusa("somewhere").open(TableTarget(np.zeros((3, 3))))


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.system, ("exit 1",)


def test_a_pickle_that_holds_code_is_refused(tmp_path):
    path = written(tmp_path, {"0.0.linear.weight": Malicious()}, file="medusa_lm_head.pt")
    with pytest.raises(ValueError, match=r"medusa_lm_head.pt of .* holds more than tensors and is not unpickled"):
        decoder_of(path)


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{}"}, "has no weights; its folder must hold one of"),
        ({"config.json": "{"}, "the config.json of the drafter .* is not JSON"),
        ({"config.json": "[]"}, "the config.json of the drafter .* holds no object"),
        ({"config.json": "{}", "medusa_lm_head.safetensors": "x"}, "medusa_lm_head.safetensors of .* cannot be read"),
        ({"config.json": "{}", "medusa_lm_head.pt": ""}, "medusa_lm_head.pt of .* cannot be read"),
    ],
)
def test_a_folder_without_a_readable_checkpoint_is_refused(contents, sentence, tmp_path):
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        decoder_of(str(tmp_path))


def test_it_asks_for_the_final_state_and_nothing_else():
    assert Medusa().features(12) == (FINAL_STATE,)
