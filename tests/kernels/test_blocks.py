"""Weights in GGUF's blocks: widened to the numbers of GGUF's own reader, and multiplied with the bits of these."""

import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.runtime.blocks import KINDS, BlockEmbedding, BlockLinear, Blocks
from talon_kernels.acceleration import accelerate
from talon_kernels.gated_mlp.native import gated_mlp_native
from talon_kernels.skinny_linear import skinny_linear
from talon_kernels.widening import widen
from talon_tests.tiny_gguf import random_blocks


def in_blocks(kind, rows, columns, seed=0):
    return Blocks(torch.from_numpy(random_blocks(kind, rows, columns, seed)), int(GGMLQuantizationType[kind]), columns)


@pytest.mark.parametrize("kind", KINDS)
def test_widened_rows_have_the_bits_of_the_reader(library, kind):
    blocks = in_blocks(kind, 70, 768)
    rows = torch.tensor([[3, 69, 0], [1, 1, 68]])
    assert torch.equal(widen(blocks, rows, backend="native"), widen(blocks, rows, backend="reference"))


def test_every_number_a_half_can_be_is_widened_rightly(library):
    """Factors that are subnormal, zero, negative or the largest; a damaged file's infinities come out as such."""
    data = torch.zeros((2**16, 34), dtype=torch.uint8)
    data[:, :2] = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.uint8).reshape(-1, 2)
    data[:, 2:] = 1
    blocks = Blocks(data, int(GGMLQuantizationType.Q8_0), 32)
    got, expected = (widen(blocks, torch.arange(2**16), backend=name) for name in ("native", "reference"))
    assert torch.equal(got.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_every_number_of_16_bits_is_widened_to_itself(library, kind, dtype):
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).reshape(-1, 64)
    blocks = Blocks(every.view(torch.uint8), int(GGMLQuantizationType[kind]), 64)
    got, expected = widen(blocks, torch.arange(len(every)), backend="native"), every.view(dtype).float()
    finite = expected.isfinite()
    assert torch.equal(got[finite].view(torch.int32), expected[finite].view(torch.int32))  # zeros have signs
    assert torch.equal(got.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


def test_a_row_that_is_not_there_is_refused(library):
    blocks = in_blocks("Q4_0", 5, 32)
    for wrong in (5, -1):
        with pytest.raises(IndexError, match="5 rows"):
            widen(blocks, torch.tensor([0, wrong]), backend="native")


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=15)
@given(rows=st.integers(1, 70), width=st.integers(1, 6), outputs=st.integers(1, 60), biased=st.booleans())
def test_a_product_has_the_bits_of_the_widened_weight(library, kind, rows, width, outputs, biased):
    inputs = (256 if kind.endswith("K") else 211 if kind.endswith("F16") else 32) * width
    blocks = in_blocks(kind, outputs, inputs)
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn((rows, inputs), generator=generator)
    bias = torch.randn(outputs, generator=generator) if biased else None
    together = skinny_linear(x, blocks, bias, backend="native")
    assert torch.equal(together, skinny_linear(x, blocks.widened(), bias, backend="native"))
    assert torch.equal(together[-1:], skinny_linear(x[-1:], blocks, bias, backend="native"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [
        (1, 6400, 5),
        (4, 1792, 50),
        (5, 1536, 50),
        (6, 1280, 24),
        (8, 1536, 25),
        (8, 1792, 100),
        (8, 768, 25),
        (8, 1024, 100),
    ],
)
def test_an_input_that_is_taken_in_parts_or_bands_gives_the_same_bits(library, kind, rows, inputs, outputs):
    blocks = in_blocks(kind, outputs, inputs)
    x, bias = torch.randn((rows, inputs), generator=torch.Generator().manual_seed(0)), torch.ones(outputs)
    expected = skinny_linear(x, blocks.widened(), bias, backend="native")
    assert torch.equal(skinny_linear(x, blocks, bias, backend="native"), expected)


@pytest.mark.parametrize("kind", ["F32", *KINDS])
@pytest.mark.parametrize("biased", [False, True])
def test_weights_without_columns_make_zeros_and_the_bias(library, kind, biased):
    bias = torch.randn(50, generator=torch.Generator().manual_seed(0)) if biased else None
    expected = torch.zeros(50) if bias is None else bias
    address = None if bias is None else bias.data_ptr()
    for rows in (1, 5, 40, 300):
        y = torch.full((rows, 50), torch.nan)
        of = torch.zeros(1)  # of which nothing is read
        library.linear(of.data_ptr(), of.data_ptr(), address, y.data_ptr(), rows, 50, 0, GGMLQuantizationType[kind], 1)
        assert torch.equal(y, expected.expand(rows, 50))


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_bits_of_blocks(library, threads, kind):
    inputs = 192 * 11 if kind.endswith("F16") else 768
    blocks, x = in_blocks(kind, 250, inputs), torch.randn((45, inputs), generator=torch.Generator().manual_seed(0))
    for rows in (1, 5, 12, 45):
        results = []
        for count in (1, 2):
            threads(count)
            results.append(skinny_linear(x[:rows], blocks, backend="native").view(torch.int32))
        assert torch.equal(*results)


@pytest.mark.parametrize("inputs", [512, 4096 + 256, 70_000 // 256 * 256])
def test_wide_rows_fit_no_panel_and_change_nothing(library, inputs):
    blocks = in_blocks("Q4_K", 9, inputs)
    x = torch.randn((300, inputs), generator=torch.Generator().manual_seed(0))
    got = skinny_linear(x, blocks, backend="native")
    assert torch.equal(got, skinny_linear(x, blocks.widened(), backend="native"))


def test_an_mlp_takes_weights_of_different_kinds(library):
    gate, down = in_blocks("Q4_1", 64, 32, 1), in_blocks("Q8_0", 32, 64, 3)
    up = torch.randn((64, 32), generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    x = torch.randn((5, 32), generator=torch.Generator().manual_seed(4))
    got = gated_mlp_native(library, x, (gate, None), (up, None), (down, None), "silu")
    wide = [(weight, None) for weight in (gate.widened(), up.float(), down.widened())]
    assert torch.equal(got, gated_mlp_native(library, x, *wide, "silu"))


def test_layers_in_blocks_are_replaced_and_keep_no_wide_copy(library):
    blocks, table = in_blocks("Q4_1", 64, 32), in_blocks("Q8_0", 50, 32)
    layer, embedding = BlockLinear(32, 64, blocks), BlockEmbedding(table)
    model = torch.nn.Sequential(embedding, layer)
    expected = skinny_linear(table.widened(), blocks.widened(), backend="native")
    with accelerate(model) as acceleration:
        got = model(torch.arange(50)[None])[0]
    assert acceleration.summary() == {"layer in blocks": 2}
    assert torch.equal(got, expected)
    assert layer._copy.numbers is None
    assert model(torch.arange(50)).shape == (50, 64)  # outside, the layers are their own
    assert layer._copy.numbers is not None


def test_bytes_that_have_changed_are_noticed(library):
    layer = BlockLinear(64, 30, in_blocks("Q5_1", 30, 64))
    acceleration = accelerate(torch.nn.Sequential(layer))
    assert acceleration.watches(layer.data)
    with acceleration:
        before = acceleration.changes
    layer.data[29, -1] ^= 1
    with acceleration:
        assert acceleration.changes == before + 1
    with acceleration:
        assert acceleration.changes == before + 1
