"""The path of each tree that plain greedy decoding takes, found on a host."""

from collections.abc import Collection, Mapping

import numpy as np
from torch import Tensor

from talon_core.runtime.inputs import PassInputs
from talon_core.runtime.recording import Walk, Walks


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
    trees, starts, taken, tokens = inputs.layout.parents, inputs.layout.starts, best.tolist(), inputs.ids.tolist()
    walks = {}
    for slot in slots:
        parents, first = trees[slot].tolist(), int(starts[slot])
        path, token = [0], taken[first]
        for node in range(1, len(parents) - unwalked.get(slot, 0)):  # parents stand before their children
            if token in ends:
                break
            if parents[node] == path[-1] and tokens[first + node] == token:
                path.append(node)
                token = taken[first + node]
        walks[slot] = Walk(np.array(path, dtype=np.int64), token)
    return walks
