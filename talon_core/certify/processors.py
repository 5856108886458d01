"""Logits processors of small worlds: what those of transformers do to one text, in NumPy, so that no world needs torch.

A certificate is about a policy and a rule, which see laws alone; whose processors have made these is nothing to them.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.sampling import ArrayProcessor
from talon_core.tree import FloatArray, IntArray


class OneText(ArrayProcessor):
    """A processor of the scores after one text."""

    @abstractmethod
    def processed(self, ids: IntArray, scores: FloatArray) -> FloatArray:
        """What it makes of scores.

        Args:
            ids: the text, shape `(length,)`.
            scores: after it, shape `(vocab,)`, float64.

        Returns:
            Scores, shape `(vocab,)`, in memory of their own.
        """

    def __call__(self, ids: Any, scores: Any) -> Any:
        if isinstance(scores, np.ndarray):
            return self.processed(ids[0], scores[0])[None]
        import torch

        found = self.processed(ids[0].cpu().numpy(), scores[0].double().cpu().numpy())
        return torch.from_numpy(found)[None].to(scores)


@attrs.frozen
class TopK(OneText):
    """As `TopKLogitsWarper`."""

    count: int

    def processed(self, ids: IntArray, scores: FloatArray) -> FloatArray:
        return _without(scores, scores < np.sort(scores)[-min(self.count, len(scores))])


@attrs.frozen
class TopP(OneText):
    """As `TopPLogitsWarper`."""

    prob: float

    def processed(self, ids: IntArray, scores: FloatArray) -> FloatArray:
        rising = np.argsort(scores, kind="stable")
        removed = np.cumsum(_law(scores[rising])) <= 1 - self.prob
        removed[-1] = False
        return _without(scores, _placed(removed, rising))


@attrs.frozen
class MinP(OneText):
    """As `MinPLogitsWarper`."""

    share: float

    def processed(self, ids: IntArray, scores: FloatArray) -> FloatArray:
        law = _law(scores)
        return _without(scores, law < self.share * law.max())


@attrs.frozen
class Typical(OneText):
    """As `TypicalLogitsWarper`."""

    mass: float

    def processed(self, ids: IntArray, scores: FloatArray) -> FloatArray:
        law = _law(scores)
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = -np.log(law)
            entropy = np.nansum(surprise * law)
        off = np.abs(surprise - entropy)
        nearest = np.argsort(off, kind="stable")
        last = min(int((np.cumsum(law[nearest]) < self.mass).sum()), len(scores) - 1)
        removed = off[nearest] > off[nearest[last]]
        removed[0] = False
        return _without(scores, _placed(removed, nearest))


@attrs.frozen
class Suppressed(OneText):
    """As `SuppressTokensLogitsProcessor`."""

    token: int

    def processed(self, ids: IntArray, scores: FloatArray) -> FloatArray:
        return _without(scores, np.arange(len(scores)) == self.token)


@attrs.frozen
class RepetitionPenalty(OneText):
    """As `RepetitionPenaltyLogitsProcessor`."""

    penalty: float

    def processed(self, ids: IntArray, scores: FloatArray) -> FloatArray:
        out = scores.copy()
        own = scores[ids]
        out[ids] = np.where(own < 0, own * self.penalty, own / self.penalty)
        return out


@attrs.frozen
class NoRepeatedPair(OneText):
    """As `NoRepeatNGramLogitsProcessor(2)`."""

    def processed(self, ids: IntArray, scores: FloatArray) -> FloatArray:
        repeats = np.zeros(len(scores), dtype=bool)
        repeats[ids[1:][ids[:-1] == ids[-1]]] = True
        return _without(scores, repeats)


PROCESSORS: Mapping[str, OneText] = {
    "top-k 2": TopK(2),
    "top-p 0.7": TopP(0.7),
    "min-p 0.2": MinP(0.2),
    "typical 0.8": Typical(0.8),
    "without token 1": Suppressed(1),
    "repetition penalty 1.7": RepetitionPenalty(1.7),
    "no repeated pair": NoRepeatedPair(),
}
"""By what they do; the last two look at the prefix."""


def _law(scores: FloatArray) -> FloatArray:
    """Their softmax; NaN where they are all minus infinity."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max())
        law: FloatArray = weights / weights.sum()
        return law


def _without(scores: FloatArray, removed: NDArray[np.bool_]) -> FloatArray:
    return np.where(removed, -np.inf, scores)


def _placed(sorted_: NDArray[np.bool_], order: IntArray) -> NDArray[np.bool_]:
    """What was sorted by an order, back in its place."""
    placed = np.empty_like(sorted_)
    placed[order] = sorted_
    return placed
