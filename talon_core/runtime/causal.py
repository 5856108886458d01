"""Attention of prompts on a device: causal, without a mask over all that is cached, in memory that is bounded.

PyTorch has fused kernels for two shapes: all keys, and as many keys as queries, causally. What tokens behind a prefix
see is one of each, so their attention is two *shares*, merged by the logarithms of their sums of exponentials. Which
keys a sliding window leaves takes a mask. It is made for a part of the queries at a time, and so is everything where
PyTorch has no fused kernel and computes with the scores in memory.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from talon_core.errors import one_line

MOST_BYTES = 2**27
"""Bytes that the scores of a part of the queries may take, of one query at least: 134 MB. PyTorch has about four
tensors of this size at a time where it computes without a fused kernel."""

TRIAL_ERROR = 0.04
"""How far shares that are tried may be off: in bfloat16 rounding comes to 0.01, and what is wrong is off by 0.17."""


@attrs.frozen(eq=False)
class Share:
    """Attention over some of the keys that queries see.

    Attributes:
        out: shape `(rows, heads, queries, value_dim)`, of the type of the query.
        lse: natural logarithm of the sum of the exponentials of the scores, shape `(rows, heads, queries)`, float32 or
            float64.
    """

    out: Tensor
    lse: Tensor


Kernel = Callable[[Tensor, Tensor, Tensor, bool, float], Share]
"""`kernel(query, key, value, causal, scale)`: a share, of as many keys as queries if it is causal; shapes as for
`causal_attention`."""


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None = None, most: int = MOST_BYTES
) -> Tensor:
    """Attention of the last tokens of some texts over all that came before them.

    Args:
        query: shape `(rows, heads, queries, head_dim)`.
        key: shape `(rows, kv_heads, end, head_dim)`; `heads` is a multiple of `kv_heads`. The last keys are those of
            the queries' own tokens, so there are at least as many.
        value: shape `(rows, kv_heads, end, value_dim)`.
        scale: factor of the scores.
        window: a key is visible only if it is less than `window` tokens behind; None for all.
        most: bytes that the scores of a part of the queries may take, of one query at least.

    Returns:
        Shape `(rows, heads, queries, value_dim)`, of the query's type.
    """
    end = key.shape[2]
    if window is not None and window < end:
        return in_parts(query, key, value, scale=scale, window=window, most=most)
    kernel = fused_kernel(query, key, value)
    group = query.shape[1] // key.shape[1]
    if query.shape[2] == end and (kernel is flash_share or (kernel is not None and group == 1)):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=group > 1)
    dims = query.shape[3], value.shape[3]
    if kernel is not None and passes_trial(kernel, query.device, query.dtype, dims, group):
        return by_shares(kernel, query, key, value, scale=scale)
    return in_parts(query, key, value, scale=scale, most=most)


def by_shares(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
    """As `causal_attention`, all keys being visible: over the prefix, and over the queries' own tokens causally."""
    start = key.shape[2] - query.shape[2]
    own = kernel(query, key[:, :, start:], value[:, :, start:], True, scale)
    if not start:
        return own.out
    return merged(kernel(query, key[:, :, :start], value[:, :, :start], False, scale), own)


def merged(first: Share, second: Share) -> Tensor:
    """The attention over the keys of two shares, which have none in common; computed in the type of their `lse`."""
    lse = torch.logaddexp(first.lse, second.lse)
    weighted = [one.out * torch.exp(one.lse - lse)[..., None] for one in (first, second)]
    return (weighted[0] + weighted[1]).to(first.out.dtype)


def in_parts(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None = None, most: int = MOST_BYTES
) -> Tensor:
    """As `causal_attention`, with a mask: texts one by one and queries by halves until the scores take `most` bytes."""
    rows, heads, queries, _ = query.shape
    end = key.shape[2]
    start = end - queries
    first = 0 if window is None else max(0, start + 1 - window)  # that any query sees
    if first:
        return in_parts(query, key[:, :, first:], value[:, :, first:], scale=scale, window=window, most=most)
    if rows * heads * queries * end * max(query.element_size(), 4) <= most or rows == queries == 1:
        return _with_mask(query, key, value, scale, window)
    if rows > 1:
        texts = zip(*(torch.split(one, 1) for one in (query, key, value)), strict=True)
        return torch.cat([in_parts(*text, scale=scale, window=window, most=most) for text in texts])
    cut = queries // 2
    before = in_parts(
        query[:, :, :cut], key[:, :, : start + cut], value[:, :, : start + cut], scale=scale, window=window, most=most
    )
    after = in_parts(query[:, :, cut:], key, value, scale=scale, window=window, most=most)
    return torch.cat([before, after], dim=2)


def _with_mask(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
    rows, heads, queries, dim = query.shape
    kv_heads, end = key.shape[1:3]
    at = torch.arange(end, device=query.device)
    behind = at[end - queries :, None] - at
    seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)  # (queries, end)
    # heads that share keys become further queries of one head: keys are not copied, and every kernel knows the shape
    folded = query.reshape(rows, kv_heads, -1, dim)
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=seen.repeat(heads // kv_heads, 1), scale=scale)
    return out.reshape(rows, heads, queries, -1)


def fused_kernel(query: Tensor, key: Tensor, value: Tensor) -> Kernel | None:
    """The kernel of PyTorch that keeps scores to itself and tells their sums; None if it has none for such tensors."""
    if query.device.type != "cuda":
        return None
    from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

    kv_heads = key.shape[1]
    if can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, query.shape[1] > kv_heads)):
        return flash_share
    if can_use_efficient_attention(SDPAParams(query[:, :kv_heads], key, value, None, 0.0, False, False)):
        return efficient_share
    return None


def flash_share(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Share:
    """Flash attention; of grouped heads it reads the keys once."""
    dim = query.shape[3]
    padded = [F.pad(one, (0, -dim % 8)) if dim % 8 else one for one in (query, key, value)]
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*padded, 0.0, causal, False, scale=scale)
    return Share(out[..., :dim], lse)


def efficient_share(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Share:
    """Memory-efficient attention, which knows no groups: each key head with one of its query heads at a time."""
    rows, heads, queries, dim = query.shape
    kv_heads = key.shape[1]
    members = query.reshape(rows, kv_heads, heads // kv_heads, queries, dim).unbind(2)
    compute: Any = torch.ops.aten._scaled_dot_product_efficient_attention
    found = [compute(one, key, value, None, True, 0.0, causal, scale=scale) for one in members]
    out = torch.stack([out for out, *_ in found], dim=2)
    lse = torch.stack([lse[..., :queries] for _, lse, *_ in found], dim=2)  # which is padded
    return Share(out.flatten(1, 2), lse.flatten(1, 2))


@cache
@torch.no_grad()
def passes_trial(kernel: Kernel, device: torch.device, dtype: torch.dtype, dims: tuple[int, int], group: int) -> bool:
    """Whether shares of a kernel, merged, are the attention over all keys; looked at once for each kind of tensors.

    How such kernels tell the sums of their exponentials is not part of PyTorch's documented interface. A kernel that
    fails is not used, with a warning.

    Args:
        kernel: to be tried.
        device: where.
        dtype: of the tensors.
        dims: sizes of a head of keys and of values.
        group: query heads that share a key head.
    """
    generator = torch.Generator().manual_seed(0)
    start, count, scale = 70, 40, dims[0] ** -0.5
    shapes = (2 * group, count, dims[0]), (2, start + count, dims[0]), (2, start + count, dims[1])
    query, key, value = (torch.randn((1, *shape), generator=generator) for shape in shapes)
    value = 0.1 * value
    value[:, :, :start] += 1
    value[:, :, start:] -= 1  # so that a wrong weight shows
    query, key, value = (one.to(device, dtype) for one in (query, key, value))
    expected = in_parts(query.float(), key.float(), value.float(), scale=scale)
    try:
        off = float((by_shares(kernel, query, key, value, scale=scale).float() - expected).abs().amax())
        why = f"it is off by {off:.2g}" if not off <= TRIAL_ERROR else None
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        why = one_line(error)
    if why is not None:
        told = f"a fused kernel of PyTorch is not used for prompts in {dtype} on {device}, which is slower: {why}"
        warnings.warn(told, RuntimeWarning, stacklevel=2)
    return why is None
