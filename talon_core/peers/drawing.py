"""How tokens are drawn, for programs that have no processors of transformers'."""

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from talon_core.request import Request

KNOWN = {"TemperatureLogitsWarper": "temperature", "TopKLogitsWarper": "top_k", "TopPLogitsWarper": "top_p"}
"""Processors that are numbers elsewhere, and the attribute that has theirs."""


@attrs.frozen
class Drawing:
    """Numbers that say how a token is drawn.

    Attributes:
        temperature: 0 is greedy.
        top_k: of the likeliest tokens only so many; 0 for all.
        top_p: of the likeliest tokens only so many that their probabilities reach this; 1 for all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


def drawing_of(request: "Request") -> Drawing:
    """The numbers of a request.

    Raises:
        ValueError: if it has a processor that is no such number, as the model's own generation config may ask for.
    """
    found: dict[str, float] = {}
    for processor in request.sampling.processors:
        name = type(processor).__name__
        if name not in KNOWN:
            raise ValueError(f"{name} is applied to the model's scores, which this peer cannot do; leave it out")
        found[KNOWN[name]] = getattr(processor, KNOWN[name])
    if not request.sampling.do_sample:
        return Drawing()
    return Drawing(found.get("temperature", 1.0), int(found.get("top_k", 0)), float(found.get("top_p", 1.0)))
