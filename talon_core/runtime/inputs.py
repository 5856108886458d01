"""What a model reads in one pass: over prompts, or over the trees of a batch."""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from talon_core.attention import TreeLayout
from talon_core.tree import IntArray, TokenTree


@attrs.frozen(eq=False)
class PassInputs:
    """What a model reads in a pass over trees, those of all sequences one after another.

    Attributes:
        ids: token ids, shape `(queries,)`, int64.
        positions: shape `(queries,)`, int64.
        counts: queries of each slot.
        layout: who may attend to whom.
    """

    ids: IntArray
    positions: IntArray
    counts: list[int]
    layout: TreeLayout


_NO_NODES: IntArray = np.empty(0, dtype=np.int64)


Staged = Mapping[int, tuple[TokenTree, int]]
"""By slot a tree, and the index of its first node that is not staged in the cache yet."""


def pass_inputs(staged: Staged, prefix_lengths: Sequence[int]) -> PassInputs:
    """What a model reads in a pass over the nodes of trees that are not staged yet, in the order of the slots.

    Args:
        staged: the trees of the slots that take part.
        prefix_lengths: committed tokens in the cache, of each slot.
    """
    taking = [(*staged[slot], prefix_lengths[slot]) for slot in sorted(staged)]
    ids = np.concatenate([_NO_NODES, *[tree.tokens[start:] for tree, start, _ in taking]])
    positions = np.concatenate([_NO_NODES, *[tree.depths[start:] + prefix for tree, start, prefix in taking]])
    slots = range(len(prefix_lengths))
    layout = TreeLayout(
        np.array(prefix_lengths, dtype=np.int64),
        tuple(staged[slot][0].parents if slot in staged else _NO_NODES for slot in slots),
        np.array([staged[slot][1] if slot in staged else 0 for slot in slots], dtype=np.int64),
    )
    counts = [0] * len(prefix_lengths)
    for slot, (tree, start) in staged.items():
        counts[slot] = len(tree) - start
    return PassInputs(ids, positions, counts, layout)


def prompt_passes(parts: Mapping[int, tuple[int, int]], chunk: int, rows: int) -> Iterator[tuple[int, list[int]]]:
    """Which prompts run together: each pass takes up to `rows` of them from the same position on, `chunk` tokens each.

    Parts of similar length come together, so that little of a pass is padding.

    Args:
        parts: by slot the position of the first token, and how many there are, at least one.
        chunk: most tokens of each in a pass.
        rows: most parts in a pass.

    Yields:
        Where the pass begins, counted from the beginning of the parts, and their slots.
    """
    for start in sorted({start for start, _ in parts.values()}):
        ordered = sorted((slot for slot, part in parts.items() if part[0] == start), key=lambda slot: parts[slot][1])
        for begin in range(0, len(ordered), rows):
            group = ordered[begin : begin + rows]
            for offset in range(0, parts[group[-1]][1], chunk):
                yield offset, [slot for slot in group if parts[slot][1] > offset]
