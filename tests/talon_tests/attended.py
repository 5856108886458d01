"""Inputs of tree attention, and the law that its errors are held to. Nothing here needs pytest."""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.attention import PackedLayout, PackedShape, TreeLayout
from talon_kernels.tree_attention.reference import tree_attention_reference


def layout_of(
    prefixes: Sequence[int], trees: Sequence[Sequence[int]], firsts: Sequence[int] | None = None
) -> TreeLayout:
    """The layout of trees, each given by the parents of its nodes."""
    parents = tuple(np.array(tree, dtype=np.int64) for tree in trees)
    return TreeLayout(np.array(prefixes), parents, np.array(firsts or [0] * len(trees)))


def packed(
    layout: TreeLayout, device: Any, batch: int = 0, nodes: int = 0, queries: int = 0, most: int = 0
) -> PackedLayout:
    """The layout in a shape that is larger by so many."""
    more = batch, nodes, queries, most
    shape = PackedShape(*(own + one for own, one in zip(attrs.astuple(layout.shape), more, strict=True)))
    numbers = np.zeros(shape.size, dtype=np.int32)
    shape.write(layout, numbers)
    return shape.views(torch.from_numpy(numbers).to(device))


def truth_of(
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
    """One query of one head at a time, in float64; shapes as in `tree_attention`."""
    group = len(query) // key.shape[1]
    query, key, value = query.double(), key.double(), value.double()
    out = torch.zeros(*query.shape[:2], value.shape[3], dtype=torch.float64)
    for row, parents in enumerate(layout.parents):
        prefix, first, start = (int(x[row]) for x in (layout.prefix_lengths, layout.first_queries, layout.starts))
        for node in range(first, len(parents)):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, int(parents[path[0]]))
            rows = torch.tensor([*range(prefix), *(prefix + step for step in path)])
            positions = torch.arange(prefix + len(path))
            if window is not None:
                rows = rows[positions[-1] - positions < window]
            for head in range(len(query)):
                at = start + node - first
                score = scale * key[row, head // group, rows] @ query[head, at]
                if softcap is not None:
                    score = softcap * torch.tanh(score / softcap)
                if sinks is not None:
                    score = torch.cat([score, sinks[head : head + 1].double()])
                prob = score.softmax(0)[: len(rows)]
                out[head, at] = prob @ value[row, head // group, rows]
    return out


def check(got: Tensor, query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, **options: Any) -> None:
    """Twice the error of the reference in its type, and one rounding step of what is added up."""
    queries = layout.queries
    here = [x.cpu() for x in (query[:, :queries], key, value)]
    if options.get("sinks") is not None:
        options["sinks"] = options["sinks"].cpu()
    truth = truth_of(*here, layout, **options)
    low = tree_attention_reference(*here, layout, **options)
    assert got.dtype == low.dtype == query.dtype
    assert got.shape == (*query.shape[:2], value.shape[3])
    got = got.cpu().double()
    assert (got[:, queries:] == 0).all()
    # A score is rounded relative to its own size, and this absolute error is the weight's relative error.
    score = 0.0
    if query.dtype == torch.float32:
        score = abs(options["scale"]) * query[:, :queries].norm(dim=2).max() * key.nan_to_num().norm(dim=3).max()
    step = torch.finfo(query.dtype).eps * (1 + float(score)) * value.nan_to_num().abs().max().item()
    allowed = 2 * (low.double() - truth).abs().max().item() + step
    assert (got[:, :queries] - truth).abs().max().item() <= allowed


def used_rows(layout: TreeLayout, batch: int) -> list[int]:
    """How many rows each sequence has; more than the layout has have none."""
    return [*(layout.prefix_lengths + layout.nodes).tolist(), *[0] * (batch - len(layout.parents))]


def buffers(
    layout: TreeLayout,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    dtype: torch.dtype,
    device: Any = "cpu",
    spare: int = 2,
    seed: int = 0,
    strided: bool = False,
    more: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value; NaN where nobody wrote, in `more` sequences and behind the queries too."""
    random = torch.Generator().manual_seed(seed)
    batch, capacity = len(layout.parents) + more, int((layout.prefix_lengths + layout.nodes).max()) + spare

    def filled(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(dtype).to(device)

    if strided:  # rows before heads, and a little beside them
        query = filled(layout.queries + more, heads, head_dim + 3)[:, :, 3:].transpose(0, 1)
        key = filled(batch, capacity, kv_heads, head_dim).transpose(1, 2)
        value = filled(batch, kv_heads, value_dim, capacity).transpose(2, 3)
    else:
        query = filled(heads, layout.queries + more, head_dim)
        key, value = filled(batch, kv_heads, capacity, head_dim), filled(batch, kv_heads, capacity, value_dim)
    query[:, layout.queries :] = torch.nan
    for row, end in enumerate(used_rows(layout, batch)):
        key[row, :, end:] = value[row, :, end:] = torch.nan
    return query, key, value
