"""The best of all connected trees of a small world, by trying each, for policies that hold tokens against seconds."""

from collections.abc import Callable, Collection, Mapping

from hypothesis import assume

from talon_core.testing import TableDrafter

Path = tuple[int, ...]
"""Tokens from the root's on."""

ROOT: Path = (0,)

Rate = Callable[[float, int, int], float]
"""Tokens a second by the path probabilities of a tree, its nodes, the root among both, and the layers of its draft."""


def connected_trees(paths: Collection[Path], most: int) -> list[frozenset[Path]]:
    """All trees of at most so many nodes: the root, and some of these together with their parents."""
    found = [frozenset({ROOT})]
    for path in sorted(paths, key=len):
        found += [tree | {path} for tree in found if path[:-1] in tree and len(tree) < most]
    return found


def children(drafter: TableDrafter, parents: Mapping[Path, float]) -> dict[Path, float]:
    """What follows some nodes, by the probabilities of their paths."""
    return {
        (*path, token): prob * p
        for path, prob in parents.items()
        for token, p in enumerate(drafter.law_after(path).tolist())
    }


def best_tree(
    probs: Mapping[Path, float], rate: Rate, most: int, layers: int, apart: float
) -> tuple[frozenset[Path], float]:
    """The connected tree of the highest rate, and that rate; worlds in which a second one is hardly lower are left out.

    Args:
        probs: of the paths that may be in it.
        rate: of trees.
        most: nodes that it may have.
        layers: that were drafted.
        apart: so much lower the second one has to be.
    """
    trees = connected_trees(probs, most)
    rates = [rate(1.0 + sum(probs[path] for path in tree if path != ROOT), len(tree), layers) for tree in trees]
    second, first = sorted(rates)[-2:]
    assume(first - second > apart)
    return trees[rates.index(first)], first


def best_of_layers(
    drafter: TableDrafter, rate: Rate, most: int, depth: int, apart: float = 1e-9
) -> tuple[frozenset[Path], int]:
    """The best tree of what was drafted, and how many layers were.

    A layer follows the nodes of the best tree so far that the layer before has brought; another one is drafted as long
    as the newest one has raised the highest rate.

    Args:
        drafter: that drafts.
        rate: of trees.
        most: nodes that a tree may have.
        depth: most layers.
        apart: rates that are less apart are left out.
    """
    expanded, drafted = {ROOT: 1.0}, dict[Path, float]()
    tree, before, layers = frozenset({ROOT}), rate(1.0, 1, 0), 0
    while expanded and layers < depth:
        layers += 1
        newest = children(drafter, expanded)
        drafted |= newest
        tree, highest = best_tree(drafted, rate, most, layers, apart)
        assume(abs(highest - before) > apart)
        if highest <= before:
            break
        before, expanded = highest, {path: prob for path, prob in newest.items() if path in tree}
    return tree, layers


def whole_world(drafter: TableDrafter, depth: int) -> dict[Path, float]:
    """The probabilities of all paths of at most so many tokens."""
    layer, world = {ROOT: 1.0}, dict[Path, float]()
    for _ in range(depth):
        layer = children(drafter, layer)
        world |= layer
    return world
