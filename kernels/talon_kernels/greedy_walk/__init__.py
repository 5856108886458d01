"""Which path of each tree plain greedy decoding takes, found on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.greedy_walk.native import greedy_walk_native
from talon_kernels.greedy_walk.reference import greedy_walk_reference
from talon_kernels.native import load, unavailable
from talon_kernels.triton_runtime import takes_triton

__all__ = ["greedy_walk"]

TOKEN_TYPES = (torch.int32, torch.int64)


def greedy_walk(
    best: Tensor,
    tokens: Tensor,
    parents: Tensor,
    sequences: Tensor,
    ends: Tensor,
    longest: int,
    *,
    backend: str | None = None,
) -> Tensor:
    """Follow each tree from its root for as long as it holds the target's most likely tokens.

    The rule `match` at temperature 0, for a whole batch: from node 0 on, the walk goes to the first child that holds
    the node's best token. It stops where there is none, where that token ends the text, or where the path has
    `longest` nodes; the best token of the last node is the next token, then.

    With the triton backend it is one launch, whose size depends on shapes alone: everything else is read in device
    memory, so a captured CUDA graph can go on with new numbers.

    Args:
        best: the target's most likely token after each node, shape `(queries,)`, int64 or int32: the nodes of all
            sequences, one after another, as `PackedLayout.sequences` has them.
        tokens: the token of each node, shape `(queries,)`, int32.
        parents: the parent of each node, an index into its own tree, shape `(queries,)`, int32; -1 for the root.
            Parents stand before their children.
        sequences: shape `(batch, 4)`, int32, as in `PackedLayout`; of a pass whose queries are all nodes, so that its
            first query, in the third column, is 0 in each sequence. The nodes and the start, in the second and the
            fourth column, are all that is read.
        ends: the tokens that end the text, shape `(ends,)`, int64 or int32; may be empty.
        longest: most nodes of a path, at least 1.
        backend: "triton" (on GPUs; on the CPU if TRITON_INTERPRET=1 is set before it is first used), "native" (C, on
            the CPU) or "reference"; None takes triton for tensors on a GPU, if it is installed, and native on the CPU,
            if the kernels can be built.

    Returns:
        Shape `(batch, 2 + longest)`, int32: number of nodes of the path, the root included, then the next token, then
        the path's nodes, ascending, then -1. For a sequence without nodes 0, and then -1.

    Raises:
        ValueError: if shapes, types or devices do not fit, longest is less than 1, or the backend asked for cannot run.
    """
    if best.dim() != 1 or best.shape != tokens.shape or best.shape != parents.shape:
        raise ValueError(
            "best, tokens and parents are (queries,); "
            f"got {tuple(best.shape)}, {tuple(tokens.shape)} and {tuple(parents.shape)}"
        )
    if sequences.dim() != 2 or sequences.shape[1] != 4 or ends.dim() != 1:
        raise ValueError(
            f"sequences is (batch, 4) and ends (ends,); got {tuple(sequences.shape)} and {tuple(ends.shape)}"
        )
    for name, tensor, types in (
        ("best", best, TOKEN_TYPES),
        ("tokens", tokens, (torch.int32,)),
        ("parents", parents, (torch.int32,)),
        ("sequences", sequences, (torch.int32,)),
        ("ends", ends, TOKEN_TYPES),
    ):
        if tensor.dtype not in types or tensor.device != best.device or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {' or '.join(map(str, types))} on {best.device}, as best is; "
                f"got {tensor.dtype} on {tensor.device} with strides {tensor.stride()}"
            )
    if longest < 1:
        raise ValueError(f"longest is {longest}; it must be at least 1, for the root")
    on_host = best.device.type == "cpu"
    library = load() if on_host and backend in (None, "native") else None
    if library is not None:
        return greedy_walk_native(library, best, tokens, parents, sequences, ends, longest)
    if backend == "native":
        why = unavailable() if on_host else f"it runs on the CPU, not on {best.device}"
        raise ValueError(f"backend 'native' cannot be used here: {why}")
    if takes_triton("greedy_walk", backend, best.device, others=("native",)):
        from talon_kernels.greedy_walk.triton import greedy_walk_triton

        return greedy_walk_triton(best, tokens, parents, sequences, ends, longest)
    return greedy_walk_reference(best, tokens, parents, sequences, ends, longest)
