"""Figures of prompts with their percentile bootstrap intervals."""

import math
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
        median: of the prompts' values; for ratios of totals, the ratio; for a mean over sets, the mean.
        low: the interval's lower end; None for fewer than two prompts.
        high: its upper end; likewise.
        prompts: how many values there are.
    """

    median: float
    low: float | None
    high: float | None
    prompts: int

    @property
    def straddles_one(self) -> bool:
        """Whether a ratio's interval holds 1, so that it is not decided on which side the ratio is."""
        return self.low is not None and self.high is not None and self.low <= 1 <= self.high

    @property
    def prompts_to_decide(self) -> float | None:
        """An estimate of how many prompts would take 1 out of a ratio's interval; None where it is out already.

        On the scale of logarithms an interval narrows with the square root of the number of prompts, and the ratio is
        taken to stay where it is. Infinite for a ratio of 1. An estimate, and for few prompts a rough one.
        """
        if not self.straddles_one or self.low is None or self.high is None:
            return None
        near = self.low if self.median > 1 else self.high
        if self.median <= 0 or near <= 0 or self.median == 1:
            return math.inf
        return self.prompts * (math.log(near / self.median) / math.log(self.median)) ** 2


def median_with_interval(values: Sequence[float], resamples: int = RESAMPLES, seed: int = SEED) -> Interval:
    """The median, and between which values the medians of 95 % of the resamples of the same size are.

    Args:
        values: one per prompt, at least one.
        resamples: how many times as many values are drawn from them with replacement.
        seed: of these draws, so that the same values always have the same interval.
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
    return _interval(found, _resampled(values, figure, resamples, seed), len(values))


def mean_with_interval(
    groups: Sequence[FloatArray],
    figure: Callable[[FloatArray], FloatArray],
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """The mean of a figure over groups of prompts that count alike, each resampled by itself.

    Args:
        groups: at least one; each as the `values` of `with_interval`.
        figure: as there.
        resamples: as there.
        seed: of the first group; each further one adds 1.
    """
    found = float(np.mean([figure(values[None])[0] for values in groups]))
    prompts = sum(map(len, groups))
    if min(map(len, groups)) < 2:
        return Interval(found, None, None, prompts)
    figures = [_resampled(values, figure, resamples, seed + number) for number, values in enumerate(groups)]
    return _interval(found, np.mean(figures, axis=0), prompts)


def _resampled(values: FloatArray, figure: Callable[[FloatArray], FloatArray], resamples: int, seed: int) -> FloatArray:
    """The figure of each resample, shape `(resamples,)`."""
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [
            figure(values[rng.integers(len(values), size=(min(CHUNK, resamples - start), len(values)))])
            for start in range(0, resamples, CHUNK)
        ]
    )


def _interval(found: float, figures: FloatArray, prompts: int) -> Interval:
    low, high = np.quantile(figures, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(found, float(low), float(high), prompts)
