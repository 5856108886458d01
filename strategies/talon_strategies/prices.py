"""What a round takes by the costs of a machine, and what is assumed while they are not known."""

from collections.abc import Mapping
from typing import TypeVar

from talon_core.costs import Costs
from talon_core.tree import FloatArray

LEAST = 1e-9
"""Seconds of a pass of the target, at least."""

ASSUMED = (0.05, 0.1)
"""What a further node and a layer are taken to cost while nothing is known, in passes over the root alone."""

Nodes = TypeVar("Nodes", float, FloatArray)


def assumed_passes(nodes: Nodes, node: float) -> Nodes:
    """A pass of the target over a tree while nothing is known, in passes over the root alone.

    Args:
        nodes: of the tree, the root included.
        node: what each further one costs.
    """
    return 1.0 + node * (nodes - 1.0)


def verify_price(costs: Costs, nodes: int, context: int, node: float = ASSUMED[0]) -> float:
    """A pass of the target over one tree; in seconds, or while nothing is known in passes over the root alone.

    Args:
        costs: what passes take.
        nodes: of the tree, the root included.
        context: committed tokens.
        node: what each further node is then taken to cost.
    """
    known = costs.verify(nodes, context)
    return assumed_passes(float(nodes), node) if known is None else max(known, LEAST)


def layer_price(
    costs: Costs, rows: int, width: int, context: int, layer: float = ASSUMED[1], others: float = 0.0
) -> float:
    """A layer of the drafter, in the unit of `verify_price`; nothing as long as only the drafter's are not known.

    Args:
        costs: what passes take.
        rows: frontier nodes.
        width: candidates of each.
        context: committed tokens.
        layer: what it is taken to cost while nothing is known of the target's passes.
        others: seconds of it besides the drafter, which count once they are known.
    """
    return layer if costs.verify(1, context) is None else (costs.draft(rows, width) or 0.0) + others


def rounds_price(costs: Costs, passes: Mapping[int, int], layers: Mapping[tuple[int, int], int], context: int) -> float:
    """Several rounds together, in the unit of `verify_price`; layers as `layer_price` has them.

    Args:
        costs: what passes take.
        passes: how many there were of the target, by their nodes.
        layers: how many of the drafter, by rows and candidates of each.
        context: committed tokens.
    """
    # lists, which are sooner added up than what a generator gives; and whether passes are known is asked once
    verifying = sum([count * verify_price(costs, nodes, context) for nodes, count in passes.items()])
    if costs.verify(1, context) is None:
        return verifying + sum([count * ASSUMED[1] for count in layers.values()])
    return verifying + sum([count * (costs.draft(*shape) or 0.0) for shape, count in layers.items()])
