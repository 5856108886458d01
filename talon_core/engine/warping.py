"""Laws of a target whose scores are tensors."""

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.choices import Choices, Foreseen
from talon_core.engine.processors import temperature_and_top_k
from talon_core.engine.sequence_laws import SequenceLaws, Warping
from talon_core.errors import written
from talon_core.runtime.draws import draw_tokens
from talon_core.sampling import Processor
from talon_core.target import NO_TOKEN
from talon_core.tree import FloatArray, IntArray

NO_IDS: Any = torch.empty((1, 0), dtype=torch.int64)
"""For processors that look at scores alone."""


@attrs.frozen(eq=False)
class Left:
    """A law that is 0 for most of the vocabulary.

    Attributes:
        tokens: the others, rising, shape `(tokens,)`, int64.
        probs: theirs, same shape, float64.
    """

    tokens: IntArray
    probs: FloatArray


@attrs.frozen(eq=False)
class WarpedLaws(SequenceLaws[Tensor]):
    """The target's laws at a verified tree, of scores that are a tensor.

    Args:
        best: as that of `NodeOutputs`.
    """

    _best: Callable[[Tensor, int], Tensor] | None = None
    _left: dict[int, Left | None] = attrs.field(factory=dict, init=False)

    def _raw(self, node: int) -> Tensor:
        scores = self._logits[node : node + 1]  # (1, vocab)
        return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores

    def _warp(self, node: int) -> Tensor:
        path = self._tree.tokens[self._tree.path(node)[1:]] if self._warping.alone is None else None
        return processed(self._warping, self._raw(node), path)

    def at(self, node: int) -> FloatArray:
        if not self._warping.sampling.do_sample:
            scores = self._scores(node)
            law = np.zeros(len(scores))
            law[int(scores.argmax())] = 1.0
            return law
        left = self._left_at(node)
        if left is None:
            return self._whole(node)
        law = np.zeros(self._logits.shape[1])
        law[left.tokens] = left.probs
        return law

    def _whole(self, node: int) -> FloatArray:
        law = np.asarray(torch.softmax(self._scores(node).double(), dim=-1).cpu().numpy())
        if isnan(law.item(0)):  # then all of it is
            raise self._failed(node)
        return law

    def _left_at(self, node: int) -> Left | None:
        """What a top-k leaves after `node`, where that can be told without warping every score; None otherwise."""
        alone, best = self._warping.alone, self._best
        if alone is None or best is None:
            return None
        return self._kept(self._left, node, lambda asked: self._left_by_top_k(asked, best, alone))

    def _left_by_top_k(
        self, node: int, best: Callable[[Tensor, int], Tensor], alone: Sequence[Processor]
    ) -> Left | None:
        asked = temperature_and_top_k(alone)
        if asked is None or (asked[1] + 1) ** 2 > self._logits.shape[1]:
            return None  # to find many, each in its place, takes longer than to warp all
        before, count = asked
        raw = self._raw(node)
        found = best(raw, count + 1)[0].numpy()
        if np.isnan(found[-1]):
            return None  # a score is NaN, or the best one infinite: said by those who see all of them
        tokens = found[: count + 1].astype(np.int64)
        scores = raw.numpy()[0, tokens]
        for processor in before:
            scores = processor(NO_IDS, torch.from_numpy(scores[None])).numpy()[0]
        if not scores[count] < scores[count - 1]:
            return None  # a top-k leaves all that are as likely as the last one
        weights = np.exp(scores[:count].astype(np.float64) - scores.item(0))
        order = tokens[:count].argsort()
        return Left(tokens[order], weights[order] / weights.sum())

    def draw(self, node: int, choices: Choices) -> int:
        if not self._warping.sampling.do_sample:
            return int(self._scores(node).argmax())
        if self._logits.device.type == "cpu" or not isinstance(choices, Foreseen):
            left = self._left_at(node)
            return choices.pick(self._whole(node)) if left is None else int(left.tokens[choices.pick(left.probs)])
        # one token comes back, not a law of the whole vocabulary
        scores = self._scores(node)
        number = scores.new_full((1,), float(choices.ahead(1)[0]), dtype=torch.float64)
        token = int(draw_tokens(scores[None], number).cpu())
        choices.used(1)
        if token == NO_TOKEN:
            raise self._failed(node)
        return token

    @property
    def asked(self) -> int:
        return len(self._warped.keys() | self._left.keys())


def processed(warping: Warping, scores: Tensor, path: IntArray | None) -> Tensor:
    """What processors make of scores.

    Args:
        warping: whose they are.
        scores: raw, shape `(1, vocab)`.
        path: the tokens between the committed ones and the scores; None where no processor looks at tokens.

    Returns:
        Scores, shape `(vocab,)`.
    """
    if path is None:
        for processor in warping.alone or ():  # none of these writes into what it is given
            scores = processor(NO_IDS, scores)
        return scores[0]
    ids = warping.prefix.with_path(path)
    scores = scores.clone()  # processors may write into what they are given
    shape = scores.shape
    for processor in warping.sampling.processors:
        scores = processor(ids, scores)
        if not isinstance(scores, Tensor) or scores.shape != shape or not _are_numbers(scores):
            raise _no_scores(processor, scores, shape)
    return scores[0].detach() if scores.requires_grad else scores[0]


def processed_array(warping: Warping, scores: FloatArray, path: IntArray | None) -> FloatArray:
    """As `processed`, from an array to an array, float64."""
    return processed(warping, torch.tensor(scores), path).double().cpu().numpy()


def _are_numbers(scores: Tensor) -> bool:
    return scores.is_floating_point() and scores.layout == torch.strided and not scores.is_meta


def _no_scores(processor: Processor, returned: object, shape: torch.Size) -> ValueError:
    name = getattr(processor, "__name__", type(processor).__name__)
    right = f"scores of shape {tuple(shape)}, as it was given"
    what = written(returned)
    if isinstance(returned, Tensor) and returned.shape == shape:
        what = f"scores that are {returned.dtype} and {returned.layout}, on the device {returned.device}"
        right = "real numbers in a dense tensor, as it was given"
    elif isinstance(returned, Tensor):
        what = f"scores of shape {tuple(returned.shape)}"
    return ValueError(f"logits processor '{name}' returned {what}; it must return {right}")
