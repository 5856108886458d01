"""Which layers are left out: those that are less confident than the layers around them."""

import numpy as np

from talon_core.tree import FloatArray

STEP = 0.05
"""By how much lambda moves."""

STEPS = 40
"""How many values of it are tried at most: up to almost two standard deviations."""

EQUAL = 1e-9
"""Scores that differ by no more are equal."""

AROUND = 2
"""Layers on each side that a layer is compared with."""


def skipped(scores: FloatArray, least: float, most: float) -> tuple[int, ...]:
    """The layers to leave out, by how confident each is (ConfLayers, arXiv 2604.14612).

    Layer `i` is left out if its score, in standard deviations from the mean of all, is below

        mean - lambda * std    of the scores around it.

    From 0 on, lambda moves by 0.05 until the share of the layers that are left out is in the range. Where it jumps over
    the range, or stays outside, the share that comes closest to its middle is taken, and of equal ones the first.

    Args:
        scores: of all layers but the first and the last, shape `(layers,)`, float64.
        least: the smallest share of them that is wanted.
        most: the largest.

    Returns:
        Places in `scores`, ascending.
    """
    spread = scores.std() if len(scores) else 0.0
    if not spread > EQUAL:
        return ()
    levels = (scores - scores.mean()) / spread
    means, deviations = np.array([_around(levels, layer) for layer in range(len(levels))]).T
    found: list[tuple[float, tuple[int, ...]]] = []
    move = 0
    for _ in range(STEPS):
        below = np.flatnonzero(levels < means - move * STEP * deviations)
        share = len(below) / len(levels)
        found.append((abs(share - (least + most) / 2), tuple(below.tolist())))
        if least <= share <= most:
            return found[-1][1]
        move += 1 if share > most else -1
    return min(found, key=lambda one: one[0])[1]


def _around(levels: FloatArray, layer: int) -> tuple[float, float]:
    """Mean and standard deviation of the levels around a layer, its own not among them."""
    others = np.concatenate([levels[max(0, layer - AROUND) : layer], levels[layer + 1 : layer + 1 + AROUND]])
    return (float(others.mean()), float(others.std())) if len(others) else (0.0, 0.0)


def every_second(layers: int) -> tuple[int, ...]:
    """What is left out as long as nothing is known: the second, the fourth and so on, of so many, but not the last."""
    return tuple(range(1, layers - 1, 2))
