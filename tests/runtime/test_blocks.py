"""Weights in blocks: the numbers that they stand for, and layers that do what their plain likes do, bit for bit."""

import copy

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import nn

from talon_core.runtime.blocks import (
    KINDS,
    BlockEmbedding,
    BlockLinear,
    Blocks,
    block_sizes,
    forget_widened,
    like_weight,
    named_weights,
    shape_of_weight,
)
from talon_core.runtime.modules import marks_of, modules_of
from talon_tests.tiny_gguf import random_blocks

ROWS, COLUMNS = 7, 256


def made(kind="Q4_1", rows=ROWS, seed=0):
    data = torch.from_numpy(random_blocks(kind, rows, COLUMNS, seed))
    return Blocks(data, int(GGMLQuantizationType[kind]), COLUMNS)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_stand_for_what_the_reader_of_gguf_says(kind):
    blocks = made(kind, 600)
    expected = torch.from_numpy(dequantize(blocks.data.numpy(), GGMLQuantizationType[kind]))
    found = blocks.widened()
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    assert torch.equal(found, expected)
    rows = torch.tensor([599, 3, 3, 0])
    assert torch.equal(blocks.widened(rows), expected[rows])
    assert torch.equal(blocks.of_rows(rows).widened(), expected[rows])
    assert blocks.widened(rows[:0]).shape == (0, COLUMNS)
    assert blocks.bits == 8 * blocks.data.numel() / expected.numel()


def test_there_is_no_row_before_the_first_or_behind_the_last():
    for row in (-1, ROWS):
        with pytest.raises(IndexError):
            made().widened(torch.tensor([row]))


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (torch.zeros(2, 160, dtype=torch.uint8), 10, "blocks of ggml's kind 10 are not understood; kinds are F16, "),
        (torch.zeros(2, 159, dtype=torch.uint8), 3, r"are contiguous uint8 rows of 160 bytes; .* shape \(2, 159\)"),
        (torch.zeros(2, 160, dtype=torch.int8), 3, "the data has type torch.int8"),
        (torch.zeros(2, 320, dtype=torch.uint8)[:, ::2], 3, "are contiguous uint8 rows"),
        (torch.zeros(160, dtype=torch.uint8), 3, r"shape \(160,\)"),
    ],
)
def test_what_are_no_blocks_is_refused(data, kind, said):
    with pytest.raises(ValueError, match=said):
        Blocks(data, kind, COLUMNS)


def test_a_row_is_a_number_of_whole_blocks():
    with pytest.raises(ValueError, match="250 columns in blocks of 32 numbers"):
        Blocks(torch.zeros(2, 140, dtype=torch.uint8), 3, 250)


def plain_and_in_blocks(kind="Q4_1", bias=True):
    blocks = made(kind)
    plain = nn.Linear(COLUMNS, ROWS, bias=bias).requires_grad_(False)
    plain.weight = nn.Parameter(blocks.widened(), requires_grad=False)
    return plain, BlockLinear(COLUMNS, ROWS, blocks, plain.bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(COLUMNS,), (1, COLUMNS), (2, 9, COLUMNS), (0, COLUMNS)])
def test_a_linear_layer_gives_the_bits_of_the_plain_one(shape, bias):
    plain, layer = plain_and_in_blocks(bias=bias)
    x = torch.randn(shape)
    assert torch.equal(layer(x), plain(x))
    assert torch.equal(layer.weight, plain.weight)
    assert shape_of_weight(layer) == shape_of_weight(plain) == (ROWS, COLUMNS)


def test_a_linear_layer_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"the blocks are 7 rows of 256 numbers; .* needs 8 rows of 256"):
        BlockLinear(COLUMNS, 8, made())


def kept(layer):
    """Bytes of the tensors that a layer holds."""
    others = [layer._copy.numbers] if layer._copy.numbers is not None else []
    return sum(tensor.nbytes for tensor in [*layer.parameters(), *layer.buffers(), *others])


def test_the_numbers_are_kept_from_the_first_pass_until_they_are_forgotten():
    _, layer = plain_and_in_blocks(bias=False)
    stored = layer.data.nbytes
    assert kept(layer) == stored
    with torch.inference_mode():
        layer(torch.randn(2, COLUMNS))
    assert layer.weight is layer.weight
    assert not layer.weight.is_inference()
    assert kept(layer) == stored + 4 * ROWS * COLUMNS
    forget_widened(nn.ModuleList([layer]))
    assert kept(layer) == stored


def test_changed_blocks_are_other_numbers():
    _, layer = plain_and_in_blocks()
    x = torch.randn(2, COLUMNS)
    before, marks = layer(x), marks_of(modules_of(layer), lambda _: False)
    assert marks_of(modules_of(layer), lambda _: False) == marks
    layer.data[3] = made(seed=1).data[3]
    assert marks_of(modules_of(layer), lambda _: False) != marks
    changed = (layer(x) != before).any(dim=0)
    assert changed.tolist() == [row == 3 for row in range(ROWS)]


def test_a_change_that_nobody_counts_is_noticed():
    for layer in (plain_and_in_blocks()[1], plain_and_in_blocks("Q6_K")[1]):
        marks = marks_of(modules_of(layer), lambda _: False)
        layer.data.data[2, 5] += 1
        assert marks_of(modules_of(layer), lambda _: False) != marks


def test_a_layer_computes_in_the_type_that_its_model_is_brought_to():
    plain, layer = plain_and_in_blocks()
    table = BlockEmbedding(layer.blocks)
    model = nn.ModuleList([layer, table, plain]).to(torch.bfloat16)
    x = torch.randn(3, COLUMNS, dtype=torch.bfloat16)
    assert torch.equal(layer(x), plain(x))
    assert layer.data.dtype == torch.uint8
    assert table(torch.tensor([2])).dtype == like_weight(layer).dtype == torch.bfloat16
    model.to(torch.float32)
    assert layer.weight.dtype == torch.float32


def test_a_copy_of_a_layer_is_its_own():
    _, layer = plain_and_in_blocks()
    twin = copy.deepcopy(layer)
    twin.data.zero_()
    assert (twin.weight == 0).all()
    assert not (layer.weight == 0).any()


class Scaled(nn.Embedding):
    """An embedding as Gemma has it."""

    def forward(self, ids):
        return super().forward(ids) * torch.tensor(3.5).to(self.weight.dtype)


@pytest.mark.parametrize("cls", [nn.Embedding, Scaled])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (1, 0)])
def test_an_embedding_gives_the_rows_that_are_asked_for(cls, shape):
    blocks = made("Q6_K")
    plain = cls(ROWS, COLUMNS, padding_idx=6)
    plain.weight = nn.Parameter(blocks.widened())
    layer = BlockEmbedding(blocks, plain if cls is Scaled else None)
    ids = torch.randint(0, ROWS, shape)
    assert torch.equal(layer(ids), plain(ids))
    assert torch.equal(layer.look_up(ids), nn.functional.embedding(ids, plain.weight))
    assert plain.padding_idx == 6
    assert plain.weight is not None  # it is as it was
    assert sum(tensor.nbytes for tensor in [*layer.parameters(), *layer.buffers()]) == blocks.data.nbytes
    with pytest.raises(IndexError):
        layer(torch.tensor([ROWS]))


def test_weights_have_the_names_and_the_order_that_they_have_without_blocks():
    blocks = made()
    plain = nn.ModuleDict({"table": nn.Embedding(ROWS, COLUMNS), "norm": nn.LayerNorm(4)})
    plain["head"] = nn.Linear(COLUMNS, ROWS)
    plain["head"].weight = plain["table"].weight
    model = nn.ModuleDict({"table": BlockEmbedding(blocks), "norm": nn.LayerNorm(4)})
    model["head"] = BlockLinear(COLUMNS, ROWS, blocks, torch.zeros(ROWS))
    assert [name for name, _ in named_weights(model)] == [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in named_weights(plain)] == [name for name, _ in plain.named_parameters()]
    assert dict(named_weights(BlockLinear(COLUMNS, ROWS, blocks))).keys() == {"weight"}


def test_the_kinds_have_the_sizes_of_ggml():
    assert {GGMLQuantizationType(kind).name: tuple(size) for kind, size in block_sizes().items()} == {
        **{
            "F16": (1, 2),
            "BF16": (1, 2),
            "Q4_0": (32, 18),
            "Q4_1": (32, 20),
            "Q5_0": (32, 22),
            "Q5_1": (32, 24),
            "Q8_0": (32, 34),
        },
        **{"Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)},
    }


def test_a_state_dict_may_be_given_back_and_another_may_not():
    blocks = Blocks(torch.from_numpy(random_blocks("Q4_1", 5, 64)), int(GGMLQuantizationType.Q4_1), 64)
    layer = BlockLinear(64, 5, blocks)
    state = layer.state_dict()
    layer.load_state_dict(state)
    with pytest.raises(RuntimeError, match="other numbers cannot be put into blocks"):
        layer.load_state_dict({**state, "weight": state["weight"] + 1})
