"""Models from GGUF files: what transformers makes of them, bit for bit, with the weights in the file's blocks."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM

import talon_core
from talon_core.bench.environment import describe_environment
from talon_core.decoding.loading import decoder_for_model
from talon_core.hf.bits import weight_bits
from talon_core.models.gguf_model import gguf_file_of
from talon_core.models.loading import load_model, load_tokenizer
from talon_core.peer import PeerSetting
from talon_core.peers.gguf_file import gguf_of
from talon_core.plugins.parts import Parts
from talon_core.runtime import output_rows, shared_embedding, shared_output
from talon_core.runtime.blocks import BlockEmbedding, BlockLinear, layers_in_blocks
from talon_core.runtime.weights import weights_hash
from talon_drafters.checkpoints.files import fingerprint
from talon_kernels.compiled import compile_layers
from talon_tests.tiny_gguf import HIDDEN, random_blocks, write_gguf

EVERY_KIND = {
    **{"attn_q": "Q4_0", "attn_k": "Q4_1", "attn_v": "Q5_0", "attn_output": "Q5_1", "ffn_gate": "Q8_0"},
    **{"ffn_up": "Q4_K", "ffn_down": "Q5_K", "token_embd": "Q6_K", "output": "Q8_0"},
}
IDS = torch.arange(40)[None] * 3 % 250


@torch.inference_mode()
def logits(model):
    return model(IDS).logits


def as_transformers_reads_it(path, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype).eval()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A Llama of two layers with tied embeddings, in all kinds of blocks."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", EVERY_KIND, layers=2)


@pytest.mark.parametrize(
    ("architecture", "untied"), [("llama", False), ("llama", True), ("qwen2", False), ("gemma3", False)]
)
def test_the_numbers_are_those_of_transformers(tmp_path, architecture, untied):
    path = write_gguf(tmp_path / "tiny.gguf", EVERY_KIND, architecture, layers=2, untied=untied)
    model, _ = load_model(str(path))
    plain = as_transformers_reads_it(path)
    assert torch.equal(logits(model), logits(plain))
    assert len([*layers_in_blocks(model)]) == 2 * 7 + 2  # every matrix
    assert model.generation_config.to_dict() == plain.generation_config.to_dict()
    assert weights_hash(model) == weights_hash(plain)
    same, _ = load_model(str(path), dequantize=True)
    assert not [*layers_in_blocks(same)]
    assert [(name, tensor.shape) for name, tensor in same.state_dict().items()] == [
        (name, tensor.shape) for name, tensor in plain.state_dict().items()
    ]
    assert all(torch.equal(same.state_dict()[name], tensor) for name, tensor in plain.state_dict().items())


def test_names_are_set_up_as_often_whatever_the_layers(tmp_path, monkeypatch):
    made, set_up = [], gguf.get_tensor_name_map
    monkeypatch.setattr(gguf, "get_tensor_name_map", lambda *args: made.append(args) or set_up(*args))
    counts = []
    for layers in (1, 4):
        path = write_gguf(tmp_path / f"{layers}.gguf", EVERY_KIND, layers=layers, untied=True)
        load_model(str(path))
        counts.append(len(made))
        made.clear()
    assert counts[0] == counts[1] > 0


@pytest.fixture
def of_experts(tmp_path):
    """A model whose experts are gathered from several tensors, and so become float32 numbers."""
    experts, inner = 3, 768  # which is what transformers takes this architecture's to be

    def add_experts(writer):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        writer.add_tensor("blk.0.ffn_gate_inp.weight", np.random.default_rng(0).random((experts, HIDDEN), np.float32))
        for seed, (name, kind, shape) in enumerate(
            [("gate", "Q8_0", (inner, HIDDEN)), ("up", "Q4_K", (inner, HIDDEN)), ("down", "Q6_K", (HIDDEN, inner))]
        ):
            blocks = np.stack([random_blocks(kind, *shape, seed=9 * seed + expert) for expert in range(experts)])
            writer.add_tensor(f"blk.0.ffn_{name}_exps.weight", blocks, raw_dtype=GGMLQuantizationType[kind])

    dense = [f"blk.0.ffn_{name}.weight" for name in ("gate", "up", "down")]
    path = tmp_path / "tiny.gguf"
    return write_gguf(path, EVERY_KIND, "qwen3moe", untied=True, without=dense, settings=add_experts)


def test_experts_are_gathered_from_several_tensors(of_experts):
    model, _ = load_model(str(of_experts))
    assert torch.equal(logits(model), logits(as_transformers_reads_it(of_experts)))
    assert len([*layers_in_blocks(model)]) == 4 + 2


def test_the_bits_of_a_weight_are_the_mean_of_all(of_experts):
    model, _ = load_model(str(of_experts))
    held = {tensor.data_ptr(): tensor.nbytes for tensor in [*model.parameters(), *model.buffers()]}
    numbers = describe_environment(model, None, None)["parameters"]
    assert weight_bits(model) == round(8 * sum(held.values()) / numbers) > 24


def test_what_does_not_stay_in_blocks_is_said_when_a_file_is_loaded(of_experts, file, caplog):
    with caplog.at_level("WARNING", "talon_core.models"):
        model, _ = load_model(str(of_experts))
        in_blocks = sum(layer.data.nbytes for _, layer in layers_in_blocks(model))
        whole = in_blocks + sum(tensor.nbytes for tensor in model.parameters())
        assert [one.getMessage() for one in caplog.records] == [
            f"tiny.gguf: {in_blocks:,} of {whole:,} bytes in blocks; the rest float32 (the file has "
            f"{of_experts.stat().st_size:,} bytes)"
        ]
        assert in_blocks < 0.1 * whole
        caplog.clear()
        load_model(str(file))
        for path in (file, of_experts):
            load_model(str(path), dequantize=True)  # which was asked for
            load_model(str(path), dtype=torch.bfloat16)
    assert not caplog.records


def test_what_the_file_has_as_float32_is_not_complained_of(tmp_path, caplog):
    with caplog.at_level("WARNING", "talon_core.models"):
        load_model(str(write_gguf(tmp_path / "tiny.gguf", "F32")))
    assert not caplog.records


def test_it_is_said_of_what_transformers_reads_itself_too(file, monkeypatch, caplog):
    monkeypatch.setattr("talon_core.models.gguf_model.said_one_by_one", lambda architecture: False)
    with caplog.at_level("WARNING", "talon_core.models"):
        load_model(str(file))
    assert "tiny.gguf: 0 of " in caplog.text


def test_nothing_but_blocks_and_vectors_is_kept(file):
    model, _ = load_model(str(file))
    stored = {id(tensor): tensor.nbytes for tensor in [*model.parameters(), *model.buffers()]}
    assert sum(stored.values()) < 0.25 * 4 * sum(
        tensor.numel() for tensor in as_transformers_reads_it(file).parameters()
    )
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(table, BlockEmbedding)
    assert isinstance(head, BlockLinear)
    assert table.data is head.data


def test_greedy_text_is_that_of_the_plain_weights(file):
    decoder = talon_core.load(str(file), drafter="ngram", policy="talon")
    plain, tokenizer = load_model(str(file), dequantize=True)
    ids = torch.tensor([tokenizer("to be or not to be or not")["input_ids"]])
    told = plain.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, min_new_tokens=12
    )
    result = decoder.generate(ids[0].tolist(), max_new_tokens=12, min_new_tokens=12)
    assert result.token_ids == told[0, ids.shape[1] :].tolist()
    layers = [layer for _, layer in layers_in_blocks(decoder.target.model) if isinstance(layer, BlockLinear)]
    assert {layer.data.dtype for layer in layers} == {torch.uint8}


def test_blocks_that_were_changed_are_noticed_by_the_next_generation(file):
    decoder = talon_core.load(str(file), drafter="ngram", policy="talon")
    prompt = {"prompt": [5, 6, 7, 5, 6], "max_new_tokens": 8, "min_new_tokens": 8}
    before = decoder.generate(**prompt).token_ids
    decoder.target.model.lm_head.data.data[before[0]] = 0  # which PyTorch does not count
    after = decoder.generate(**prompt).token_ids
    assert after[0] != before[0]
    assert after == talon_core.load(decoder.target.model, policy=None).generate(**prompt).token_ids


def test_another_type_is_made_of_the_numbers(file):
    model, _ = load_model(str(file), dtype=torch.bfloat16)
    plain = as_transformers_reads_it(file, torch.bfloat16)
    assert not [*layers_in_blocks(model)]
    assert torch.equal(logits(model), logits(plain))


def test_what_has_no_blocks_of_a_known_kind_becomes_numbers(tmp_path):
    kinds = {**EVERY_KIND, "attn_q": "F16", "ffn_up": "F32", "attn_v": "Q8_0", "ffn_gate": "IQ4_NL"}
    path = tmp_path / "tiny.gguf"
    rows = np.random.default_rng(0).integers(0, 256, (256, HIDDEN // 32 * 18), dtype=np.uint8)
    rows.reshape(256, -1, 18)[..., :2] = np.array([0, 0x2C], dtype=np.uint8)  # a factor of 1/16

    def own_kind(writer):
        writer.add_tensor("blk.0.ffn_gate.weight", rows, raw_dtype=GGMLQuantizationType.IQ4_NL)

    write_gguf(path, kinds | {"ffn_gate": "Q8_0"}, without=["blk.0.ffn_gate.weight"], settings=own_kind)
    model, _ = load_model(str(path))
    names = {name.rpartition(".")[2] for name, _ in layers_in_blocks(model)}
    assert names == {"embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "lm_head"}
    assert torch.equal(logits(model), logits(as_transformers_reads_it(path)))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_numbers_of_16_bits_stay_as_they_are(kind, tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", kind, layers=2)
    (model, tokenizer), (plain, _) = load_model(str(path)), load_model(str(path), dequantize=True)
    kept = [layer.data for _, layer in layers_in_blocks(model)]
    numbers = sum(one.numel() for name, one in plain.named_parameters() if "norm" not in name)
    assert sum({one.data_ptr(): one.nbytes for one in kept}.values()) == 2 * numbers
    texts = []
    for one in (model, plain):
        decoder = decoder_for_model(one, tokenizer, Parts("ngram", "chain:length=3"))
        texts.append(decoder.generate([*range(5, 20)], max_new_tokens=20).token_ids)
        assert decoder.target.own_executor().failure is None
    assert texts[0] == texts[1]


def test_what_drafters_share_stays_in_blocks(file):
    (model, _), (plain, _) = load_model(str(file)), load_model(str(file), dequantize=True)
    tokens, states = torch.tensor([3, 250, 7]), torch.randn(2, HIDDEN)
    part = shared_output(model, tokens)
    assert isinstance(part, BlockLinear)
    assert torch.equal(part(states), shared_output(plain, tokens)(states))
    assert shared_output(model) is model.get_output_embeddings()
    assert torch.equal(shared_embedding(model)(tokens), shared_embedding(plain)(tokens))
    assert torch.equal(output_rows(model, tokens), output_rows(plain, tokens))
    assert fingerprint(model) == fingerprint(plain)


def test_what_is_told_of_a_model(file, monkeypatch, tmp_path):
    (model, tokenizer), (plain, _) = load_model(str(file)), load_model(str(file), dequantize=True)
    assert (weight_bits(model), weight_bits(plain)) == (6, 32)
    ours, theirs = (describe_environment(one, tokenizer, None) for one in (model, plain))
    assert {key: ours[key] for key in ("parameters", "weights_sha256")} == {
        "parameters": sum(parameter.numel() for parameter in plain.parameters()),
        "weights_sha256": theirs["weights_sha256"],
    }
    assert gguf_file_of(model) == gguf_file_of(plain) == file
    monkeypatch.setenv("TALON_CACHE", str(tmp_path))
    written = [gguf_of(PeerSetting(one, None, "tiny", frozenset(), 64, 1)) for one in (model, plain)]
    assert written[0] == written[1]


def test_a_saved_model_has_plain_weights(file, tmp_path):
    (model, _), (plain, _) = load_model(str(file)), load_model(str(file), dequantize=True)
    assert model.state_dict().keys() == plain.state_dict().keys()
    model.save_pretrained(tmp_path / "saved")
    saved, _ = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert torch.equal(logits(saved), logits(plain))


def test_compiled_layers_go_with_blocks(file):
    (model, _), (plain, _) = load_model(str(file)), load_model(str(file), dequantize=True)
    with compile_layers(model, backend="eager"):
        compiled = logits(model)
    torch.compiler.reset()
    torch.testing.assert_close(compiled, logits(plain))


def test_a_model_without_its_blocks_is_refused(file):
    model, _ = load_model(str(file))
    head = model.get_output_embeddings()
    head.data = head.data.to("meta")
    with pytest.raises(ValueError, match="has no weights: lm_head is on the device 'meta'"):
        talon_core.load(model)


def test_a_file_has_its_tokenizer(file):
    _, tokenizer = load_model(str(file))
    assert load_tokenizer(str(file))("ab")["input_ids"] == tokenizer("ab")["input_ids"] == [66, 67]


def test_what_transformers_reads_in_another_way_it_reads_itself(file, monkeypatch):
    monkeypatch.setattr("talon_core.models.gguf_model.said_one_by_one", lambda architecture: architecture != "llama")
    model, tokenizer = load_model(str(file))
    assert not [*layers_in_blocks(model)]
    assert torch.equal(logits(model), logits(as_transformers_reads_it(file)))
    assert tokenizer("ab")["input_ids"] == [66, 67]


def test_other_options_are_for_transformers(file):
    model, _ = load_model(str(file), low_cpu_mem_usage=True)
    assert not [*layers_in_blocks(model)]
    model, _ = load_model(str(file), attn_implementation="eager")
    assert [*layers_in_blocks(model)]
    assert model.config._attn_implementation == "eager"


def test_a_file_is_named_in_its_folder_too(file):
    model, _ = load_model(str(file.parent), gguf_file=file.name)
    assert [*layers_in_blocks(model)]


def cut(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


ODD = {"blk.0.attn_x.weight": np.zeros(4)}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, None),
        ({"without": ["blk.0.ffn_up.weight"]}, r"lacks 1 of the weights .*, such as model\.layers\.0\.mlp\.up_proj"),
        ({"more": ODD}, r"its configuration does not know 1 of its tensors, such as blk\.0\.attn_x\.weight"),
        ({"vocab_size": 200}, r"weight model\.embed_tokens\.weight has shape \(200, 256\) where .* \(259, 256\)"),
        ({"more": {"blk.0.attn_q.bias": np.zeros(9)}}, r"does not know 1 of its tensors, such as blk\.0\.attn_q\.bias"),
        ({"heads": 256}, r"its tensor blk\.0\.attn_q\.weight of shape \(256, 256\) does not fit its configuration \("),
    ],
)
def test_a_file_whose_weights_do_not_fit_is_refused(tmp_path, how, said):
    path = write_gguf(tmp_path / "tiny.gguf", EVERY_KIND, **how)
    if said is None:
        load_model(str(path))
        return
    with pytest.raises(ValueError, match=rf"model '.*' cannot be loaded: .*{said}"):
        load_model(str(path))


def test_factors_of_positions_are_left_out_with_a_warning(tmp_path, caplog):
    path = write_gguf(tmp_path / "tiny.gguf", EVERY_KIND, more={"rope_freqs.weight": np.ones(32)})
    with caplog.at_level("WARNING", "talon_core.models"):
        load_model(str(path))
    assert "does not read rope_freqs.weight" in caplog.text


@pytest.mark.parametrize("share", [0.01, 0.2, 0.9])
def test_a_file_that_is_cut_short_is_refused(tmp_path, share):
    path = write_gguf(tmp_path / "tiny.gguf", EVERY_KIND)
    cut(path, share)
    with pytest.raises(ValueError, match=r"the GGUF file of \d+ bytes is cut short or damaged") as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)


def test_what_is_no_gguf_file_is_refused(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_text("dear reader")
    with pytest.raises(ValueError, match="it does not begin as a GGUF file does; give another file"):
        load_model(str(path))


def test_an_unknown_architecture_is_refused(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", EVERY_KIND)
    path.write_bytes(path.read_bytes().replace(b"llama", b"lemur"))
    with pytest.raises(ValueError, match=r"cannot be loaded: .*architecture lemur is not supported"):
        load_model(str(path))


def test_an_architecture_without_a_model_is_refused(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", EVERY_KIND, "deci")
    with pytest.raises(ValueError, match="transformers has no model of its architecture deci; give a file of another"):
        load_model(str(path))


def test_a_kind_that_nobody_knows_is_refused(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", EVERY_KIND)
    content, name = bytearray(path.read_bytes()), b"blk.0.attn_q.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions, and two of them
    assert content[at] == GGMLQuantizationType.Q4_0
    content[at] = 99
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"attn_q\.weight is of ggml's kind 99, which the package gguf does not know"):
        load_model(str(path))


def test_a_kind_that_nobody_widens_is_refused(tmp_path):
    def integers(writer):
        writer.add_tensor("blk.0.attn_norm.weight", np.ones(HIDDEN, dtype=np.int32))

    path = write_gguf(tmp_path / "tiny.gguf", EVERY_KIND, without=["blk.0.attn_norm.weight"], settings=integers)
    with pytest.raises(ValueError, match=r"blk\.0\.attn_norm\.weight is of the kind I32, which .* cannot widen"):
        load_model(str(path))


def test_a_full_memory_is_nobodys_fault(file, monkeypatch):
    def full(*_, **__):
        raise MemoryError("no room for 9 bytes")

    monkeypatch.setattr("talon_core.models.gguf_weights.StoredMatrix.read", full)
    with pytest.raises(MemoryError, match="no room for 9 bytes"):
        load_model(str(file))
