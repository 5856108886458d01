"""What a model reads in one pass: over prompts, or over the trees of a batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.attention import AttentionBackend, TreeLayout
from talon_core.hf.attention import Pass, PromptPass, TreePass
from talon_core.hf.cache import TreeCache
from talon_core.tree import IntArray, TokenTree


@attrs.frozen(eq=False)
class PassInputs:
    """What a model reads in a pass over trees, those of all sequences one after another.

    Attributes:
        ids: token ids, shape `(queries,)`, int64.
        positions: shape `(queries,)`, int64.
        counts: queries of each sequence.
        layout: who may attend to whom.
    """

    ids: Tensor
    positions: Tensor
    counts: list[int]
    layout: TreeLayout


_NO_NODES: IntArray = np.empty(0, dtype=np.int64)


def pass_inputs(trees: Sequence[TokenTree | None], first: Sequence[int], prefix_lengths: Sequence[int]) -> PassInputs:
    """What a model reads in a pass over the nodes of each tree from index `first[b]` on.

    Args:
        trees: one for each sequence; None for one that takes no part.
        first: those before are staged in the cache already.
        prefix_lengths: committed tokens in the cache.
    """
    taking = [(tree, start, prefix) for tree, start, prefix in zip(trees, first, prefix_lengths, strict=True) if tree]
    ids = np.concatenate([_NO_NODES, *(tree.tokens[start:] for tree, start, _ in taking)])
    positions = np.concatenate([_NO_NODES, *(tree.depths[start:] + prefix for tree, start, prefix in taking)])
    layout = TreeLayout(
        np.array(prefix_lengths, dtype=np.int64),
        tuple(tree.parents if tree else _NO_NODES for tree in trees),
        np.array([start if tree else 0 for tree, start in zip(trees, first, strict=True)], dtype=np.int64),
    )
    counts = np.diff(layout.starts).tolist()
    return PassInputs(torch.from_numpy(ids), torch.from_numpy(positions), counts, layout)


def prompt_passes(lengths: Sequence[int], chunk: int, rows: int) -> Iterator[tuple[int, list[int]]]:
    """Which prompts run together: each pass takes up to `rows` of them from the same position on, `chunk` tokens each.

    Prompts of similar length come together, so that little of a pass is padding.

    Yields:
        The position, and the prompts' indices.
    """
    ordered = sorted(range(len(lengths)), key=lambda row: lengths[row])
    for begin in range(0, len(ordered), rows):
        group = ordered[begin : begin + rows]
        for start in range(0, lengths[group[-1]], chunk):
            yield start, [row for row in group if lengths[row] > start]


@contextmanager
def fed(
    cache: TreeCache, rows: Sequence[int], counts: Sequence[int], attention: AttentionBackend, prompt: bool = True
) -> Iterator[tuple[Tensor, Pass]]:
    """The next tokens of some sequences, a chain each, go through a model inside, and belong to their prefixes after.

    Args:
        cache: the model's.
        rows: which sequences; they have equally long prefixes.
        counts: how many tokens of each; the pass is as wide as the longest, and shorter ones are padded at the end.
        attention: computes attention where plain causal attention does not serve.
        prompt: the tokens are a prompt's; False for a single sequence whose tokens get the attention of trees.

    Yields:
        Their positions, shape `(len(rows), longest)`, int64, and the pass.
    """
    start, count = cache.lengths[rows[0]], max(counts)
    cache.stage_prompts(rows, count)
    this_pass: Pass
    if prompt:
        this_pass = PromptPass(start, count, attention)
    else:
        this_pass = TreePass(TreeLayout.chain(start, count), attention.attend)
    yield torch.arange(start, start + count).expand(len(rows), count), this_pass
    for row, own in zip(rows, counts, strict=True):
        cache.lengths[row] += own
