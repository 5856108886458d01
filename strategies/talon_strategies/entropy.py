"""The entropy of a drafter's law, as far as its candidates tell."""

import numpy as np

from talon_core.candidates import Candidates

OFFERED = 16
"""Candidates that policies ask for at each node whose entropy they look at."""


def entropy_offered(candidates: Candidates, row: int = 0) -> float:
    """The entropy at a frontier row of what is offered there, in nats, with all other tokens taken for one.

    It is never more than the entropy H(q) of the whole law, and equal to it where no more than one token is missing.
    The whole law is not asked for, although it may be there: not every drafter has one and few traces record them, and
    a policy must answer the same on a trace as while one decodes.

    Args:
        candidates: what a drafter offers; of `OFFERED` candidates the bound is the same everywhere.
        row: of the frontier.
    """
    logp = candidates.logp[row]  # (width,)
    logp = logp[: np.searchsorted(-logp, np.inf)]  # without padding
    prob = np.exp(logp)
    rest = 1.0 - float(prob.sum())  # below 0 where the drafter has rounded upwards
    return float(-prob @ logp) - (rest * float(np.log(rest)) if rest > 0 else 0.0)
