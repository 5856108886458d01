"""Made-up prices of passes."""

import attrs

from talon_core.costs import Costs


@attrs.frozen
class Prices(Costs):
    """Made-up prices: a root takes a second, each further node `node` more, a layer `layer`; None where unknown."""

    node: float = 0.0
    layer: float | None = 0.0
    asked: list[int] = attrs.field(factory=list)

    @property
    def fixed(self):
        return True

    def verify(self, nodes, context, batch=1):
        self.asked.append(context)
        return 1.0 + self.node * (nodes - 1)

    def draft(self, rows, width):
        return self.layer


class PricesByLength(Costs):
    """Made-up prices, which a longer text raises."""

    @property
    def fixed(self) -> bool:
        return True

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return 0.02 + 0.0001 * context + 0.001 * nodes

    def draft(self, rows: int, width: int) -> float:
        return 0.002 + 0.0002 * rows + 0.00001 * width

    def catch_up(self, tokens: int) -> float:
        return 0.001 * tokens

    def beside_layer(self) -> float:
        return 0.0005

    def know(self, drafter: str) -> bool:
        return True


class PricesOfChains(PricesByLength):
    """The same where passes of rounds whose trees are chains are run ahead, and other rounds take `beside` more."""

    def __init__(self, beside: float) -> None:
        self._beside = beside

    def besides(self, drafted: bool) -> float:
        return self._beside * drafted

    def chain(self, layers: int) -> float:
        return 0.001 + 0.002 * layers
