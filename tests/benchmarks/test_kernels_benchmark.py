"""What the kernels cost by the number of rows, at the sizes of a small model. No time is asserted."""

import numpy as np
import pytest
import torch

from talon_core.attention import TreeLayout
from talon_kernels.gated_mlp import gated_mlp
from talon_kernels.native import load
from talon_kernels.rms_norm import rms_norm
from talon_kernels.skinny_linear import skinny_linear
from talon_kernels.tree_attention import tree_attention

ROWS = [1, 2, 4, 8, 16, 32]
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, PREFIX = 576, 1536, 9, 3, 64, 256


@pytest.fixture(params=["native", "reference"])
def backend(request):
    if request.param == "native" and load() is None:
        pytest.skip("no native kernels here")
    return request.param


@pytest.mark.parametrize("rows", ROWS)
def test_skinny_linear(benchmark, backend, rows):
    x, weight = torch.randn(rows, HIDDEN), torch.randn(INNER, HIDDEN)
    benchmark(skinny_linear, x, weight, backend=backend)


@pytest.mark.parametrize("rows", ROWS)
def test_gated_mlp(benchmark, backend, rows):
    x, gate, up = torch.randn(rows, HIDDEN), torch.randn(INNER, HIDDEN), torch.randn(INNER, HIDDEN)
    down = torch.randn(HIDDEN, INNER)
    benchmark(gated_mlp, x, gate, up, down, "silu", backend=backend)


@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm(benchmark, backend, rows):
    x, weight = torch.randn(rows, HIDDEN), torch.randn(HIDDEN)
    benchmark(rms_norm, x, weight, 1e-5, backend=backend)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("way", ["native", "sdpa", "reference"])
def test_tree_attention(benchmark, way, rows):
    if way == "native" and load() is None:
        pytest.skip("no native kernels here")
    parents = np.array([-1] + [(node - 1) // 2 for node in range(1, rows)])
    layout = TreeLayout(np.array([PREFIX]), (parents,), np.array([0]))
    query = torch.randn(HEADS, rows, HEAD_DIM)
    key = torch.randn(1, KV_HEADS, 512, HEAD_DIM)
    benchmark(tree_attention, query, key, key.clone(), layout, scale=0.125, backend=way)


@pytest.mark.parametrize("rows", ROWS)
def test_layout_for_the_native_kernel(benchmark, rows):
    from talon_kernels.tree_attention.layout import native_layout

    parents = np.array([-1] + [(node - 1) // 2 for node in range(1, rows)])
    benchmark(lambda: native_layout(TreeLayout(np.array([PREFIX]), (parents,), np.array([0]))))
