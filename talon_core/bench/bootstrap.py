"""Figures of prompts with their percentile bootstrap intervals."""

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from talon_core.tree import FloatArray

RESAMPLES = 10_000
CHUNK = 500
"""Resamples that are drawn at once: enough to be fast, few enough for long prompt sets to fit in memory."""
LEVEL = 0.95
SEED = 0


@attrs.frozen
class Interval:
    """A figure of all prompts with its percentile bootstrap interval, of level 0.95.

    Attributes:
        median: of the prompts' values; for ratios of totals, the ratio.
        low: the interval's lower end; None for fewer than two prompts.
        high: its upper end; likewise.
        prompts: how many values there are.
    """

    median: float
    low: float | None
    high: float | None
    prompts: int


def median_with_interval(values: Sequence[float], resamples: int = RESAMPLES, seed: int = SEED) -> Interval:
    """The median, and between which values the medians of 95 % of the resamples of the same size are.

    Args:
        values: one per prompt, at least one.
        resamples: how many times as many values are drawn from them with replacement.
        seed: of these drawings, so that the same values always have the same interval.
    """
    array = np.asarray(values, dtype=np.float64)
    return with_interval(array, lambda drawn: np.median(drawn, axis=1), resamples, seed)


def with_interval(
    values: FloatArray, figure: Callable[[FloatArray], FloatArray], resamples: int = RESAMPLES, seed: int = SEED
) -> Interval:
    """A figure of prompts, and between which values it is for 95 % of the resamples of as many prompts.

    Args:
        values: what is known of each prompt, shape `(prompts, ...)`.
        figure: from shape `(resamples, prompts, ...)` to `(resamples,)`.
        resamples: how many.
        seed: of drawing them.
    """
    found = float(figure(values[None])[0])
    if len(values) < 2:
        return Interval(found, None, None, len(values))
    rng = np.random.default_rng(seed)
    figures = np.concatenate(
        [
            figure(values[rng.integers(len(values), size=(min(CHUNK, resamples - start), len(values)))])
            for start in range(0, resamples, CHUNK)
        ]
    )
    low, high = np.quantile(figures, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(found, float(low), float(high), len(values))
