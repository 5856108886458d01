"""Attention of prompts on a device: the plain one, in shares or in parts, and in memory that is bounded."""

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from talon_core.attention import TreeLayout
from talon_core.runtime.causal import (
    MOST_BYTES,
    Kernel,
    Share,
    by_shares,
    causal_attention,
    efficient_share,
    flash_share,
    merged,
    passes_trial,
)
from talon_core.runtime.passes import PromptPass
from talon_kernels import ReferenceAttention

CPU = torch.device("cpu")
MEGABYTE = 2**20


def plain_share(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Share:
    """The definition of a share, with all scores in memory."""
    group = query.shape[1] // key.shape[1]
    score = query @ key.repeat_interleave(group, 1).transpose(2, 3) * scale
    if causal:
        score = score.masked_fill(torch.ones_like(score, dtype=torch.bool).triu(1), -torch.inf)
    return Share(score.softmax(-1) @ value.repeat_interleave(group, 1), score.logsumexp(-1))


def flash_of_cpu(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Share:
    """PyTorch's flash attention for CPUs, which tells its sums as those for GPUs do."""
    group = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(group, 1) for one in (key, value))
    compute: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return Share(*compute(query, key, value, 0.0, causal, scale=scale))


def by_definition(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
    layout = TreeLayout.chain(key.shape[2] - query.shape[2], query.shape[2])
    rows = zip(query.double(), key.double(), value.double(), strict=True)
    attend = ReferenceAttention().attend
    return torch.stack([attend(q, k[None], v[None], layout, scale=scale, window=window) for q, k, v in rows])


def inputs(
    rows: int, heads: tuple[int, int], start: int, count: int, dims: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(start + 100 * count)
    (kv_heads, group), (dim, value_dim) = heads, dims
    shapes = (kv_heads * group, count, dim), (kv_heads, start + count, dim), (kv_heads, start + count, value_dim)
    query, key, value = (torch.randn((rows, *shape), generator=generator, dtype=torch.float64) for shape in shapes)
    return query, key, value


shapes = (
    st.integers(1, 3),
    st.tuples(st.integers(1, 3), st.integers(1, 4)),
    st.integers(0, 70),
    st.integers(1, 40),
)


@settings(max_examples=60, deadline=None)
@given(*shapes, st.floats(0.05, 3))
@example(2, (2, 4), 63, 7, 1.0)
@example(1, (1, 1), 0, 1, 1.0)
def test_shares_of_the_prefix_and_of_the_own_tokens_make_up_the_whole(
    rows: int, heads: tuple[int, int], start: int, count: int, scale: float
) -> None:
    tensors = inputs(rows, heads, start, count, (9, 9))
    expected = by_definition(*tensors, scale, None)
    found = by_shares(plain_share, *tensors, scale=scale)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    query, key, value = (one.float() for one in tensors)
    found = by_shares(flash_of_cpu, query, key, value, scale=scale)
    assert found.dtype is torch.float32
    # a score of d products rounds by d + 1 halves of eps at most, and a weight by as much as two scores do; sums of
    # weights and of weighted values round once for each key
    products = scale * query.abs().amax() * key.abs().amax() * 9
    rounding = torch.finfo(torch.float32).eps * (10 * products + key.shape[2])
    assert (found - expected).abs().max() <= value.abs().max() * rounding


@settings(max_examples=60, deadline=None)
@given(*shapes, st.none() | st.integers(1, 90), st.integers(1, 20_000))
@example(2, (2, 4), 63, 7, 5, 1)
@example(3, (1, 2), 0, 40, None, 4000)
def test_parts_with_masks_make_up_the_whole(
    rows: int, heads: tuple[int, int], start: int, count: int, window: int | None, most: int
) -> None:
    tensors = inputs(rows, heads, start, count, (9, 5))
    found = causal_attention(*tensors, scale=0.3, window=window, most=most)
    torch.testing.assert_close(found, by_definition(*tensors, 0.3, window), rtol=0, atol=1e-12)


def test_shares_are_merged_in_the_type_of_their_sums() -> None:
    one = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    sums = torch.tensor([[[100.0]]]), torch.tensor([[[100.0 - math.log(3)]]])
    found = merged(Share(one, sums[0]), Share(-one, sums[1]))
    assert (found.dtype, found.item()) == (torch.bfloat16, 0.5)  # three quarters less one
    alone = merged(Share(one, sums[0]), Share(-one, torch.full((1, 1, 1), -torch.inf)))
    assert alone.item() == 1


class KernelsOfGpus(TorchDispatchMode):
    """While entered, PyTorch's kernels for GPUs compute on a CPU, with what they ask for and what they tell."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().removeprefix("aten::_scaled_dot_product_")
        if name == "flash_attention":
            query, key, value, dropout, causal, mask = (*args, *(0.0, False, False)[len(args) - 3 :])
            assert query.shape[3] == key.shape[3] == value.shape[3]
            assert query.shape[3] % 8 == dropout == mask == 0
        elif name == "efficient_attention":
            query, key, value, bias, sums, dropout, causal = (*args, *(0.0, False)[len(args) - 5 :])
            assert query.shape[1] == key.shape[1] == value.shape[1]  # it knows no groups
            assert (bias, sums, dropout) == (None, True, 0)
        else:
            return func(*args, **kwargs)
        assert not causal or query.shape[2] == key.shape[2]
        share = plain_share(query, key, value, causal, kwargs["scale"])
        other = torch.empty(0)
        if name == "flash_attention":
            return share.out, share.lse, other, other, query.shape[2], key.shape[2], other, other, other
        return share.out, torch.nn.functional.pad(share.lse, (0, -query.shape[2] % 32), value=torch.nan), other, other


@pytest.mark.parametrize(
    ("kernel", "dims"), [(flash_share, (9, 9)), (flash_share, (16, 16)), (efficient_share, (9, 5))]
)
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("start", [0, 1, 50])
def test_fused_kernels_are_given_what_they_know(
    kernel: Kernel, dims: tuple[int, int], group: int, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talon_core.runtime.causal.fused_kernel", lambda *_: kernel)
    tensors = inputs(2, (3, group), start, 7, dims)
    with KernelsOfGpus(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = causal_attention(*tensors, scale=0.3)
    torch.testing.assert_close(found, by_definition(*tensors, 0.3, None), rtol=0, atol=1e-12)
    with KernelsOfGpus():
        windowed = causal_attention(*tensors, scale=0.3, window=3)
    torch.testing.assert_close(windowed, by_definition(*tensors, 0.3, 3), rtol=0, atol=1e-12)


class Largest(TorchDispatchMode):
    """While entered, notes the bytes of the largest memory that an operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        given = {one.untyped_storage()._cdata for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)}
        made = [one.untyped_storage() for one in tree_iter(out) if isinstance(one, Tensor)]
        self.bytes = max([self.bytes, *(one.nbytes() for one in made if one._cdata not in given)])
        return out


LLAMA, WIDE = (8, 4, 128), (2, 8, 320)


@pytest.mark.parametrize("window", [None, 512, 4096])
@pytest.mark.parametrize(
    ("dtype", "heads", "start"),
    [
        (torch.float32, LLAMA, 0),
        (torch.float32, LLAMA, 4096),
        (torch.float32, LLAMA, 28_672),
        (torch.bfloat16, WIDE, 0),
        (torch.bfloat16, WIDE, 28_672),
        (torch.bfloat16, LLAMA, 28_672),
    ],
)
def test_no_memory_of_a_prompts_pass_is_larger_than_is_said(
    dtype: torch.dtype, heads: tuple[int, int, int], start: int, window: int | None
) -> None:
    """Where PyTorch has no fused kernel: tensors of the kind "meta" are worked on by its plain one."""
    kv_heads, group, dim = heads
    count = 4096
    query = torch.empty((1, kv_heads * group, count, dim), dtype=dtype, device="meta")
    key, value = torch.empty((2, 1, kv_heads, start + count, dim), dtype=dtype, device="meta")
    with Largest() as largest:
        out = PromptPass(start, count, ReferenceAttention()).attend(query, key, value, 0.1, window=window)
    assert out.shape == query.shape
    keys_as_float32 = 4 * key.numel()  # which the plain kernel multiplies by the scale
    assert largest.bytes <= max(MOST_BYTES, 4 * query.numel(), keys_as_float32)


def test_layers_with_a_cap_are_bounded_too() -> None:
    query = torch.empty((1, 32, 1024, 128), device="meta")
    key, value = torch.empty((2, 1, 8, 16_384, 128), device="meta")
    with Largest() as largest:
        PromptPass(15_360, 1024, ReferenceAttention()).attend(query, key, value, 0.1, softcap=30.0)
    assert largest.bytes <= max(MOST_BYTES, 4 * 32 * 16_384 * 128)  # keys are copied for each head


@pytest.mark.parametrize("kernel", [flash_share, efficient_share])
def test_shares_need_no_memory_beside_the_output(kernel: Kernel) -> None:
    """Of a prompt of 128k tokens: there are no scores, no mask and no keys for each head."""
    query = torch.empty((1, 32, 4096, 128), dtype=torch.bfloat16, device="meta")
    key, value = torch.empty((2, 1, 8, 131_072, 128), dtype=torch.bfloat16, device="meta")
    with Largest() as largest:
        out = by_shares(kernel, query, key, value, scale=0.1)
    assert (out.shape, out.dtype) == (query.shape, query.dtype)
    assert largest.bytes <= 4 * query.numel() == 64 * MEGABYTE


def test_a_kernel_is_used_where_its_shares_make_up_the_whole() -> None:
    def other_logarithm(*of: Any) -> Share:
        share = flash_of_cpu(*of)
        return Share(share.out, share.lse / math.log(2))

    def other_corner(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Share:
        return flash_of_cpu(query, key, value, False, scale)

    def missing(*of: Any) -> Share:
        raise RuntimeError("no such\nkernel")

    kind: Any = (CPU, torch.float32, (16, 16), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert passes_trial(flash_of_cpu, *kind)
        assert passes_trial(flash_of_cpu, CPU, torch.bfloat16, (16, 16), 1)
    for wrong, why in ((other_logarithm, "off by 0"), (other_corner, "off by"), (missing, "no such kernel")):
        with pytest.warns(RuntimeWarning, match=f"not used for prompts in torch.float32 on cpu.*{why}"):
            assert not passes_trial(wrong, *kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not passes_trial(missing, *kind)  # found out once
