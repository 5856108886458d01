"""Tree attention in C."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from talon_core.attention import TreeLayout
from talon_kernels.native import Library
from talon_kernels.tree_attention.layout import native_layout

_Strides = ctypes.c_int64 * 10


def tree_attention_native(
    library: Library,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: TreeLayout,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Shapes as in `tree_attention`; float32 on the CPU.

    Raises:
        ValueError: if a parent does not stand before its child.
        MemoryError: if there is no memory for the intermediate results.
    """
    heads, queries, head_dim = query.shape
    value_dim = value.shape[3]
    packed = native_layout(layout)
    # The kernel reads whole vectors, of one width for all three; zeros change neither scores nor outputs.
    width = max(head_dim, value_dim, library.lanes)
    if head_dim < width:
        query = F.pad(query, (0, width - head_dim))
        key = F.pad(key[:, :, : packed.used], (0, width - head_dim))
    if value_dim < width:
        value = F.pad(value[:, :, : packed.used], (0, width - value_dim))
    if query.stride(2) != 1:
        query = query.contiguous()
    if key.stride(3) != 1:
        key = key[:, :, : packed.used].contiguous()
    if value.stride(3) != 1:
        value = value[:, :, : packed.used].contiguous()
    if sinks is not None:
        sinks = sinks.to(torch.float32).contiguous()
    # In memory the heads stand last but one, as the layer's output projection reads them.
    out = query.new_empty((queries, heads, query.shape[2]))
    q, k, v, o = query.stride(), key.stride(), value.stride(), out.stride()
    strides = _Strides(q[0], q[1], o[1], o[0], k[0], k[1], k[2], v[0], v[1], v[2])
    library.tree_attention(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        out.data_ptr(),
        ctypes.addressof(strides),
        packed.numbers.ctypes.data,
        None if sinks is None else sinks.data_ptr(),
        len(key),
        heads,
        key.shape[1],
        query.shape[2],
        scale,
        0.0 if softcap is None else softcap,
        0 if window is None else window,
        torch.get_num_threads(),
    )
    return out[..., :value_dim].transpose(0, 1)
