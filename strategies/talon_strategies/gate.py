"""The confidence gate that TALON and its ablations share."""

import math

from talon_core.forest import Level


def relative_gate(best: Level, mu: float) -> Level:
    """The least score that passes: `mu` times the layer's best (TALON, arXiv 2601.07353, section 5.2), as a logarithm.

    Args:
        best: the highest natural log-probability among one layer's candidates.
        mu: in (0, 1].
    """
    return best + math.log(mu)
