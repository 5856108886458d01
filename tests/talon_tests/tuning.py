"""Costs that are made up."""

from talon_core.costs import Costs


class Priced(Costs):
    """What a node, a layer and a pass cost, in milliseconds."""

    def __init__(self, node: float = 1.0, layer: float = 1.0, each: float = 20.0) -> None:
        self.node, self.layer, self.each = node, layer, each

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return 1e-3 * (self.each + self.node * nodes)

    def draft(self, rows: int, width: int) -> float:
        return 1e-3 * self.layer
