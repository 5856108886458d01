"""The path of each tree that plain decoding takes, found on a host."""

from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from talon_core.runtime.draws import take_tokens
from talon_core.runtime.host_draws import Warp, warp_of
from talon_core.runtime.inputs import PassInputs
from talon_core.runtime.recording import Walk, Walks
from talon_core.target import NodeDraws


def greedy_walks(
    inputs: PassInputs, best: Tensor, slots: Collection[int], ends: frozenset[int], unwalked: Mapping[int, int]
) -> Walks:
    """Walk along the most likely tokens, as `DeviceBackend.greedy_walk` does on a device.

    In plain Python: for the nodes of a round, calling C takes longer than walking, most of all right behind a pass,
    whose weights have taken all caches.

    Args:
        inputs: whole trees; every node is a query.
        best: the most likely token after each node, shape `(queries,)`, int64.
        slots: where to walk.
        ends: tokens that end their texts.
        unwalked: by slot, how many nodes at the end of its tree no path goes to.
    """
    taken, starts = best.tolist(), inputs.layout.starts
    return _walks(inputs, slots, ends, unwalked, lambda slot, node: taken[int(starts[slot]) + node])


def drawn_walks(
    inputs: PassInputs,
    scores: Tensor,
    slots: Collection[int],
    ends: frozenset[int],
    unwalked: Mapping[int, int],
    drawn: Mapping[int, NodeDraws],
    draw: Callable[[Tensor, Warp, float], int],
) -> Walks:
    """As `greedy_walks`, where tokens of some trees are drawn: after the nodes of the path alone.

    Args:
        inputs: whole trees; every node is a query.
        scores: at every node, shape `(queries, vocab)`.
        slots: where to walk.
        ends: tokens that end their texts.
        unwalked: by slot, how many nodes at the end of its tree no path goes to.
        drawn: how, by slot; in the other slots the most likely tokens are walked along.
        draw: draws a token, as `PassRecorder.draw_token`, from scores of float32.
    """
    starts = inputs.layout.starts

    def after(slot: int, node: int) -> int:
        row = scores[int(starts[slot]) + node]
        own = drawn.get(slot)
        if own is None or own.numbers is None:
            return int(row.argmax())
        warp = warp_of(own)
        if warp is None or row.dtype is not torch.float32:
            return int(take_tokens(row[None], own, torch.from_numpy(own.numbers[node : node + 1])))
        return draw(row, warp, own.numbers.item(node))

    return _walks(inputs, slots, ends, unwalked, after)


def _walks(
    inputs: PassInputs,
    slots: Collection[int],
    ends: frozenset[int],
    unwalked: Mapping[int, int],
    after: Callable[[int, int], int],
) -> Walks:
    """Walk along the tokens that `after` gives for nodes of slots, asked for those of the path alone."""
    trees, starts, ids, walks = inputs.layout.parents, inputs.layout.starts, inputs.ids.tolist(), {}
    for slot in slots:
        parents, first = trees[slot].tolist(), int(starts[slot])
        path, token = [0], after(slot, 0)
        for node in range(1, len(parents) - unwalked.get(slot, 0)):  # parents stand before their children
            if token in ends:
                break
            if parents[node] == path[-1] and ids[first + node] == token:
                path.append(node)
                token = after(slot, node)
        walks[slot] = Walk(np.array(path, dtype=np.int64), token)
    return walks
