"""The greedy walk in plain Python."""

from __future__ import annotations

from torch import Tensor


def greedy_walk_reference(
    best: Tensor, tokens: Tensor, parents: Tensor, sequences: Tensor, ends: Tensor, longest: int
) -> Tensor:
    """Shapes as in `greedy_walk`, any device; reads the numbers on the host."""
    ending = set(ends.tolist())
    walks = []
    for _, nodes, _, start in sequences.tolist():
        path: list[int] = []
        token = -1
        if nodes:
            own = slice(start, start + nodes)
            path, token = _walk(best[own].tolist(), tokens[own].tolist(), parents[own].tolist(), ending, longest)
        walks.append([len(path), token, *path, *[-1] * (longest - len(path))])
    return sequences.new_tensor(walks).reshape(len(sequences), 2 + longest)


def _walk(
    best: list[int], tokens: list[int], parents: list[int], ending: set[int], longest: int
) -> tuple[list[int], int]:
    """The nodes of the path and the token after it."""
    path = [0]
    while True:
        last, token = path[-1], best[path[-1]]
        children = [node for node, parent in enumerate(parents) if parent == last and tokens[node] == token]
        if not children or token in ending or len(path) == longest:
            return path, token
        path.append(children[0])
