"""What the rounds of a text would take, by the costs of a machine."""

from collections.abc import Iterable, Mapping, Sequence

from talon_core.costs import Costs
from talon_core.rounds import Span
from talon_core.trace.columns import TextTrace


def priced(
    costs: Costs, layers: Sequence[tuple[int, int]], nodes: int, context: int, new: int, untold: int
) -> dict[str, float]:
    """Seconds of a round's parts by the costs.

    Args:
        costs: what passes take.
        layers: rows and width of each layer that was drafted.
        nodes: of the tree that was verified.
        context: committed tokens before the round.
        new: that it emitted.
        untold: tokens that were emitted since the drafter was last asked. It hears of them with the first layer; where
            there is none, it goes on waiting.
    """
    draft = sum(costs.draft(*size) or 0.0 for size in layers)
    draft += (costs.tell(untold) or 0.0) if layers and untold else 0.0
    return {"draft": draft, **priced_target(costs, nodes, context, new)}


def priced_target(costs: Costs, nodes: int, context: int, new: int) -> dict[str, float]:
    """Seconds of a round's parts besides the drafter's, see `priced`."""
    return {
        "verify": costs.verify(nodes, context) or 0.0,
        "accept": costs.accept(nodes) or 0.0,
        "commit": costs.commit(new) or 0.0,
    }


def behind(parts: Mapping[str, float], at: float) -> list[Span]:
    """Parts of a round that follow each other."""
    spans = []
    for part, seconds in parts.items():
        spans.append(Span(part, at, at + seconds))
        at += seconds
    return spans


def seconds_of(costs: Costs | None, text: TextTrace, spans: Iterable[Span]) -> float | None:
    """Seconds of a whole text, the reading of the prompt included; None where no costs are known."""
    if costs is None:
        return None
    return (costs.read(text.prompt_tokens) or 0.0) + sum(span.seconds for span in spans)
