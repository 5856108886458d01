"""The nearest curve that rises and bends upwards, by least squares."""

import numpy as np

from talon_core.tree import FloatArray, IntArray

TINY = 1e-12
"""What is left of a gradient that is none, by the largest value."""


def convex_fit(sizes: IntArray, values: FloatArray) -> FloatArray:
    """The numbers nearest to some values, by least squares, whose first and second differences are at least 0.

    They are those of a level, and of hinges at the sizes with weights of at least 0: a problem that Lawson and Hanson's
    active sets solve ("Solving Least Squares Problems", 1974, chapter 23).

    Args:
        sizes: where the values are, rising, shape `(points,)`.
        values: shape `(points,)`, finite.

    Returns:
        Shape `(points,)`.
    """
    places = (sizes - sizes[0]) / max(float(sizes[-1] - sizes[0]), 1.0)
    hinges = np.maximum(places[:, None] - places[None, :-1], 0.0)
    hinges -= hinges.mean(axis=0)  # the level, which may be any, is the mean of the values
    level = values.mean()
    return np.asarray(level + hinges @ _weights(hinges, values - level))


def _weights(hinges: FloatArray, values: FloatArray) -> FloatArray:
    """Weights of at least 0 with which hinges come nearest to values."""
    weights, held = np.zeros(hinges.shape[1]), np.zeros(hinges.shape[1], dtype=bool)
    least = TINY * max(float(np.abs(values).max(initial=0.0)), TINY)
    for _ in range(3 * hinges.shape[1]):  # more are never needed, but for rounding
        gain = np.where(held, -np.inf, hinges.T @ (values - hinges @ weights))
        if gain.max(initial=-np.inf) <= least:
            break
        held[gain.argmax()] = True
        while held.any():
            wanted = np.zeros(len(weights))
            wanted[held] = np.linalg.lstsq(hinges[:, held], values, rcond=None)[0]
            if wanted[held].min() > 0:
                weights = wanted
                break
            ends = held & (wanted <= 0)
            weights = weights + (weights[ends] / (weights[ends] - wanted[ends])).min() * (wanted - weights)
            held &= weights > TINY
            weights[~held] = 0.0
    return weights
