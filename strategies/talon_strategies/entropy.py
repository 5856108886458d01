"""The entropy of a drafter's law, as far as its candidates tell."""

import numpy as np

from talon_core.candidates import Candidates
from talon_core.tree import FloatArray
from talon_core.tree_arrays import totals

OFFERED = 16
"""Candidates that policies ask for at each node whose entropy they look at."""

LEAST = np.log(np.finfo(np.float64).tiny)
"""A log-probability that adds nothing to an entropy, in the place of minus infinity."""


def entropy_offered(candidates: Candidates, row: int = 0) -> float:
    """The entropy at a frontier row of what is offered there, in nats, with all other tokens taken for one.

    It is never more than the entropy H(q) of the whole law, and equal to it where no more than one token is missing.
    The whole law is not asked for, although it may be there: not every drafter has one and few traces record them, and
    a policy must answer the same on a trace as while one decodes.

    Args:
        candidates: what a drafter offers; of `OFFERED` candidates the bound is the same everywhere.
        row: of the frontier.
    """
    return float(entropies_of(candidates.logp[row : row + 1])[0])


def entropies_of(logp: FloatArray) -> FloatArray:
    """The entropies of some rows of candidates, as `entropy_offered` has them.

    Args:
        logp: natural log-probabilities, minus infinity for padding, shape `(rows, width)`.

    Returns:
        Shape `(rows,)`, in nats.
    """
    prob = np.exp(logp)
    rest = np.maximum(1.0 - totals(prob), 0.0)  # below 0 where the drafter has rounded upwards
    others = rest * np.log(np.where(rest > 0, rest, 1.0))
    entropies: FloatArray = -totals(prob * np.maximum(logp, LEAST)) - others
    return entropies
