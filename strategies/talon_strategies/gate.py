"""The confidence gate that TALON and its ablations share."""

import math

from talon_core.tree import FloatArray


def relative_gate(logp: FloatArray, mu: float) -> float:
    """The least score that passes: `mu` times the layer's best (TALON, arXiv 2601.07353, section 5.2), as a logarithm.

    Args:
        logp: natural log-probabilities of one layer's candidates, shape `(frontier, width)`.
        mu: in (0, 1].
    """
    return float(logp.item(logp.argmax())) + math.log(mu)  # of so few numbers sooner found than by `max`
