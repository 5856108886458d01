"""Laws of a target whose scores are NumPy arrays: what is not said in tensors needs no torch."""

from typing import Any

import attrs
import numpy as np

from talon_core.choices import Choices
from talon_core.engine.sequence_laws import SequenceLaws
from talon_core.sampling import of_arrays
from talon_core.tree import FloatArray

NO_IDS: Any = np.empty((1, 0), dtype=np.int64)
"""For processors that look at scores alone."""


@attrs.frozen(eq=False)
class ArrayLaws(SequenceLaws[FloatArray]):
    """The target's laws at a verified tree, of scores that are an array.

    Processors that know tensors alone are called with tensors.
    """

    def _warp(self, node: int) -> FloatArray:
        scores, warping = self._logits[node : node + 1], self._warping  # (1, vocab)
        path = self._tree.tokens[self._tree.path(node)[1:]] if warping.alone is None else None
        processors = of_arrays(warping.sampling.processors)
        if processors is None:
            from talon_core.engine.warping import processed_array

            return processed_array(warping, scores, path)
        ids = NO_IDS if path is None else warping.prefix.array_with_path(path)
        for processor in processors:
            scores = processor(ids, scores)
        warped: FloatArray = scores[0]
        return warped

    def at(self, node: int) -> FloatArray:
        scores = self._scores(node)
        if not self._warping.sampling.do_sample:
            certain = np.zeros(len(scores))
            certain[int(scores.argmax())] = 1.0
            return certain
        highest = scores.max()
        if not np.isfinite(highest):
            raise self._failed(node)
        weights = np.exp(scores - highest)
        law: FloatArray = weights / weights.sum()
        return law

    def draw(self, node: int, choices: Choices) -> int:
        if self._warping.sampling.do_sample:
            return choices.pick(self.at(node))
        return int(self._scores(node).argmax())
