"""What PyTorch, and FlashInfer where it is installed, have for the attention of a tree: a kernel's competitors."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor


def pytorch_ways(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scale: float
) -> dict[str, Callable[[], Tensor]]:
    """Ways to attend from the nodes of one tree; which is the fastest differs by GPU and by length.

    Args:
        query: shape `(heads, nodes, head_dim)`.
        key: shape `(1, kv_heads, prefix + nodes, head_dim)`; `heads` is a multiple of `kv_heads`.
        value: as key.
        seen: whether a node attends to another, shape `(nodes, nodes)`, bool.
        scale: factor of the scores.

    Returns:
        By name; each returns `(heads, nodes, head_dim)`. "grouped" has one mask over prefix and tree, and query heads
        that share keys (`enable_gqa`). "folded" makes these heads further rows of one head, so that every kernel of
        PyTorch's takes them. "split" does so too, reads the prefix without a mask, the tree with one, and joins both by
        log-sum-exp, so that only the tree's part needs a kernel that takes masks.
    """
    heads, nodes, dim = query.shape
    kv_heads, prefix = key.shape[1], key.shape[2] - nodes
    group = heads // kv_heads
    mask = torch.ones(nodes, prefix + nodes, dtype=torch.bool, device=query.device)
    mask[:, prefix:] = seen
    of_group, own = mask.repeat(group, 1), torch.zeros(group * nodes, nodes, device=query.device)
    own.masked_fill_(~seen.repeat(group, 1), -torch.inf)
    prefix_keys, prefix_values = key[:, :, :prefix], value[:, :, :prefix]
    tree_keys, tree_values = key[:, :, prefix:], value[:, :, prefix:]

    def grouped() -> Tensor:
        return F.scaled_dot_product_attention(
            query[None], key, value, attn_mask=mask, scale=scale, enable_gqa=True
        ).squeeze(0)

    def folded() -> Tensor:
        rows = query.reshape(1, kv_heads, group * nodes, dim)
        return F.scaled_dot_product_attention(rows, key, value, attn_mask=of_group, scale=scale).reshape(query.shape)

    def split() -> Tensor:
        rows = query.reshape(1, kv_heads, group * nodes, dim)
        out, total = _flash(rows, prefix_keys, prefix_values, scale)
        score = (rows @ tree_keys.transpose(2, 3)).float() * scale + own  # (1, kv_heads, group * nodes, nodes)
        tree_total = score.logsumexp(-1)
        tree_out = torch.softmax(score, -1).to(value.dtype) @ tree_values
        share = torch.sigmoid(total - tree_total)[..., None]  # of the prefix
        return (share * out + (1 - share) * tree_out).to(query.dtype).reshape(query.shape)

    return {"grouped": grouped, "folded": folded} | ({"split": split} if prefix else {})


def _flash(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention to all keys, and the logarithm of what the weights were divided by, `(1, heads, rows)`, float32."""
    if query.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, scale=scale)
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)[:2]


def flashinfer_way(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scale: float
) -> dict[str, Callable[[], Tensor]]:
    """FlashInfer's attention with the tree's mask as bits; nothing where it is not installed. As `pytorch_ways`."""
    if query.device.type != "cuda" or find_spec("flashinfer") is None:
        return {}
    import flashinfer

    nodes, prefix = query.shape[1], key.shape[2] - query.shape[1]
    mask = torch.ones(nodes, prefix + nodes, dtype=torch.bool, device=query.device)
    mask[:, prefix:] = seen
    rows, bits = query.transpose(0, 1), flashinfer.packbits(mask.flatten(), bitorder="little")

    def attend() -> Tensor:
        out: Tensor = flashinfer.single_prefill_with_kv_cache(
            rows, key[0], value[0], packed_custom_mask=bits, kv_layout="HND", sm_scale=scale
        )
        return out.transpose(0, 1)

    return {"flashinfer": attend}
