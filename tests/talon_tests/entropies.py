"""Entropies of whole laws, and what is known of them by the candidates that policies look at."""

import math
from collections.abc import Iterable, Sequence

from talon_strategies.entropy import OFFERED


def entropy(law: Iterable[float]) -> float:
    """In nats."""
    return -sum(prob * math.log(prob) for prob in law if prob > 0)


def bound(law: Iterable[float]) -> float:
    """The same with all tokens but the `OFFERED` best taken for one."""
    best = sorted(law, reverse=True)
    return entropy([*best[:OFFERED], sum(best[OFFERED:])])


def flat_behind(best: float, vocab_size: int) -> list[float]:
    """A law whose tokens are alike, but for the best one."""
    return [best, *[(1 - best) / (vocab_size - 1)] * (vocab_size - 1)]


def missing(law: Sequence[float]) -> float:
    """By how much the bound of such a law is lower: its tokens beyond `OFFERED` are alike, and there taken for one."""
    tokens = len(law) - OFFERED
    return tokens * law[-1] * math.log(tokens)


WIDE = flat_behind(0.9, OFFERED + 1000)
"""Its entropy is 1.017 nats, and the bound 0.337."""
